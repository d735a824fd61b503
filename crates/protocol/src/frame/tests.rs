//! Tests for frames and records that are intact, truncated or corrupted.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::common::Entries;

fn message(data: Vec<u8>) -> Entries {
    Entries {
        data: data.into(),
        lengths: Vec::new(),
    }
}

fn decode_all(
    decoder: &mut FrameDecoder,
    input: &mut BytesMut,
) -> Result<Vec<Entries>, FrameError> {
    let mut messages = Vec::new();
    while let Some(body) = decoder.decode(input)? {
        messages.push(Entries::decode(body).expect("body of a message"));
    }
    Ok(messages)
}

fn header(length: u32, more: bool) -> BytesMut {
    let bits = length | if more { MORE_FOLLOWS } else { 0 };
    BytesMut::from(&bits.to_le_bytes()[..])
}

proptest! {
    #[test]
    fn messages_survive_any_split(
        bodies in vec(vec(any::<u8>(), 0..200), 0..10),
        frame_max in 1..100_usize,
        cuts in vec(1..50_usize, 1..20),
    ) {
        let sent: Vec<Entries> = bodies.into_iter().map(message).collect();
        let mut wire = BytesMut::new();
        for message in &sent {
            encode_split(message, (frame_max, MESSAGE_MAX), &mut wire).expect("small message");
        }
        let mut decoder = FrameDecoder::new(FRAME_MAX);
        let (mut input, mut received) = (BytesMut::new(), Vec::new());
        for cut in cuts.iter().cycle() {
            if wire.is_empty() {
                break;
            }
            let part = wire.split_to((*cut).min(wire.len()));
            input.extend_from_slice(&part);
            received.extend(decode_all(&mut decoder, &mut input).expect("own frames"));
        }
        prop_assert_eq!(received, sent);
        prop_assert!(input.is_empty() && decoder.fragments_len() == 0);
    }

    #[test]
    fn random_bytes_never_panic_and_never_allocate_ahead(bytes in vec(any::<u8>(), 0..300)) {
        let mut decoder = FrameDecoder::new(1 << 30);
        let mut input = BytesMut::from(&bytes[..]);
        while let Ok(Some(_)) = decoder.decode(&mut input) {}
        prop_assert!(decoder.fragments.capacity() <= 1024);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn records_survive_cuts_and_key_changes(
        plain in vec(any::<u8>(), 1..200_000),
        rekey_records in 1..4_u64,
    ) {
        let (mut sealer, mut opener) = linked_halves(rekey_records);
        let (mut wire, mut out) = (BytesMut::new(), BytesMut::new());
        // Creates many records, small ones first.
        for part in plain.chunks(50_000) {
            for part in [&part[..part.len().min(10)], &part[part.len().min(10)..]] {
                let mut part = BytesMut::from(part);
                while !part.is_empty() {
                    sealer.seal(&mut part, &mut wire).expect("fresh keys");
                }
            }
        }
        let mut raw = BytesMut::new();
        while !wire.is_empty() {
            raw.extend_from_slice(&wire.split_to(wire.len().min(30_011)));
            while opener.open(&mut raw, &mut out).expect("own records") {}
        }
        prop_assert!(raw.is_empty());
        prop_assert_eq!(&out[..], &plain[..]);
    }
}

#[test]
fn refuses_headers_before_their_content_arrives() {
    let check = |mut input: BytesMut| {
        FrameDecoder::new(1000)
            .decode(&mut input)
            .expect_err("must be refused")
    };
    let too_large = u32::try_from(FRAME_MAX).expect("fits") + 1;
    assert_eq!(
        check(header(too_large, false)),
        FrameError::FrameTooLarge {
            found: FRAME_MAX + 1
        }
    );
    assert_eq!(
        check(header(1001, true)),
        FrameError::MessageTooLarge {
            found: 1001,
            limit: 1000
        }
    );
    assert_eq!(check(header(0, true)), FrameError::EmptyFragment);
}

#[test]
fn fragments_count_towards_the_message_limit() {
    let mut input = header(600, true);
    input.extend_from_slice(&[0; 600]);
    input.extend_from_slice(&header(600, false));
    let refused = FrameDecoder::new(1000).decode(&mut input);
    assert_eq!(
        refused,
        Err(FrameError::MessageTooLarge {
            found: 1200,
            limit: 1000
        })
    );
}

#[test]
fn splits_only_messages_beyond_one_frame() {
    let mut out = BytesMut::new();
    encode_message(&message(vec![7; FRAME_MAX + 10]), MESSAGE_MAX, &mut out)
        .expect("below the limit");
    let first = u32::from_le_bytes(*out.first_chunk().expect("header"));
    assert_eq!(
        first,
        MORE_FOLLOWS | u32::try_from(FRAME_MAX).expect("fits")
    );
    let mut decoder = FrameDecoder::new(2 * FRAME_MAX);
    let messages = decode_all(&mut decoder, &mut out).expect("own frames");
    assert_eq!(messages, [message(vec![7; FRAME_MAX + 10])]);
}

#[test]
fn bytes_fields_are_slices_of_the_receive_buffer() {
    let mut input = BytesMut::new();
    encode_message(&message(vec![7; 1000]), MESSAGE_MAX, &mut input).expect("small message");
    let received = input.as_ptr_range();
    let body = FrameDecoder::new(FRAME_MAX)
        .decode(&mut input)
        .expect("own frame");
    let entries = Entries::decode(body.expect("complete")).expect("own message");
    assert!(received.contains(&entries.data.as_ptr()));
}

#[test]
fn notices_every_changed_bit_of_a_record() {
    let (mut sealer, _) = linked_halves(10);
    let mut wire = BytesMut::new();
    sealer
        .seal(&mut BytesMut::from("hello"), &mut wire)
        .expect("fresh keys");
    // If the length changes, the opener waits for more bytes or fails. If the content changes, the
    // record counts as forged.
    for bit in 8 * RECORD_HEADER_LEN..8 * wire.len() {
        let (mut again, mut opener) = linked_halves(10);
        let mut raw = BytesMut::new();
        again
            .seal(&mut BytesMut::from("hello"), &mut raw)
            .expect("fresh keys");
        raw[bit / 8] ^= 1 << (bit % 8);
        let mut out = BytesMut::new();
        assert_eq!(
            opener.open(&mut raw, &mut out),
            Err(FrameError::Forged),
            "bit {bit}"
        );
        assert!(out.is_empty());
    }
}

#[test]
fn refuses_repeated_reordered_and_short_records() {
    let (mut sealer, mut opener) = linked_halves(10);
    let (mut first, mut second, mut out) = (BytesMut::new(), BytesMut::new(), BytesMut::new());
    sealer
        .seal(&mut BytesMut::from("one"), &mut first)
        .expect("fresh keys");
    sealer
        .seal(&mut BytesMut::from("two"), &mut second)
        .expect("fresh keys");
    assert_eq!(
        opener.open(&mut second.clone(), &mut out),
        Err(FrameError::Forged)
    );
    assert_eq!(opener.open(&mut first.clone(), &mut out), Ok(true));
    assert_eq!(opener.open(&mut first, &mut out), Err(FrameError::Forged));
    assert_eq!(opener.open(&mut second, &mut out), Ok(true));
    assert_eq!(&out[..], b"onetwo");
    let mut short = BytesMut::from(&[16, 0][..]);
    assert_eq!(
        opener.open(&mut short, &mut out),
        Err(FrameError::RecordTooShort { found: 16 })
    );
}

#[test]
fn stops_when_nonces_are_used_up() {
    let (mut sealer, mut opener) = linked_halves(u64::MAX);
    let (mut wire, mut out) = (BytesMut::new(), BytesMut::new());
    sealer.nonce = u64::MAX;
    let refused = sealer.seal(&mut BytesMut::from("x"), &mut wire);
    assert_eq!(refused, Err(FrameError::Exhausted));
    assert!(wire.is_empty());
    sealer.nonce = 0;
    sealer
        .seal(&mut BytesMut::from("x"), &mut wire)
        .expect("fresh keys");
    opener.nonce = u64::MAX;
    assert_eq!(opener.open(&mut wire, &mut out), Err(FrameError::Exhausted));
}

/// Returns the sealer of one side and the opener of the other.
fn linked_halves(rekey_records: u64) -> (RecordSealer, RecordOpener) {
    let params: snow::params::NoiseParams = "Noise_NN_25519_AESGCM_SHA256".parse().expect("suite");
    let mut left = snow::Builder::new(params.clone())
        .build_initiator()
        .expect("initiator");
    let mut right = snow::Builder::new(params)
        .build_responder()
        .expect("responder");
    let (mut message, mut payload) = ([0; 128], [0; 128]);
    let length = left
        .write_message(&[], &mut message)
        .expect("first message");
    right
        .read_message(&message[..length], &mut payload)
        .expect("first message");
    let length = right
        .write_message(&[], &mut message)
        .expect("second message");
    left.read_message(&message[..length], &mut payload)
        .expect("second message");
    let (mut sealer, _) = record_halves(left.into_stateless_transport_mode().expect("done"));
    let (_, mut opener) = record_halves(right.into_stateless_transport_mode().expect("done"));
    sealer.rekey_records = rekey_records;
    opener.rekey_records = rekey_records;
    (sealer, opener)
}
