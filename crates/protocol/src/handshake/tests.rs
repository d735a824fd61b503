//! Tests of handshakes with every kind of peer.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::key::ServerKey;

const KEY: SecretKey = SecretKey::from_bytes([7; 32]);
const OTHER_KEY: SecretKey = SecretKey::from_bytes([8; 32]);

fn connecting(plane: Plane, key: Option<&SecretKey>) -> Handshake {
    Handshake::connecting(plane, key, [1; NONCE_LEN])
}

fn accepting(plane: Plane, key: Option<&SecretKey>) -> Handshake {
    Handshake::accepting(plane, key, [2; NONCE_LEN])
}

type End = Result<Option<Session>, HandshakeError>;

/// Passes bytes between two handshakes until neither has output.
fn run(mut left: Handshake, mut right: Handshake) -> (End, End) {
    let (mut left_end, mut right_end) = (Ok(None), Ok(None));
    loop {
        let to_right = left.take_output();
        if !to_right.is_empty() && matches!(right_end, Ok(None)) {
            right_end = right.receive(&mut BytesMut::from(&to_right[..]));
        }
        let to_left = right.take_output();
        if to_left.is_empty() {
            return (left_end, right_end);
        }
        if matches!(left_end, Ok(None)) {
            left_end = left.receive(&mut BytesMut::from(&to_left[..]));
        }
    }
}

fn errors(left: Handshake, right: Handshake) -> (HandshakeError, HandshakeError) {
    let (left, right) = run(left, right);
    (
        left.expect_err("connecting side"),
        right.expect_err("accepting side"),
    )
}

#[test]
fn equal_keys_agree() {
    for plane in [Plane::Client, Plane::Worker] {
        let (left, right) = run(connecting(plane, Some(&KEY)), accepting(plane, Some(&KEY)));
        let (left, right) = (left.expect("left"), right.expect("right"));
        assert!(
            left.is_some_and(|session| session.version == VERSIONS.min && session.keys.is_some())
        );
        assert!(
            right.is_some_and(|session| session.version == VERSIONS.min && session.keys.is_some())
        );
    }
}

/// Returns the keys of a new server: those of its full access file, and those of its clients and
/// workers.
fn server_keys() -> (SecretKey, SecretKey) {
    let full = KEY.with_server(&ServerKey::generate().expect("random numbers"));
    let to_connect = full.to_connect();
    (full, to_connect)
}

#[test]
fn the_server_proves_itself_to_those_who_know_its_public_key() {
    use Plane::{Client, Relay, Worker};
    let (full, public) = server_keys();
    for (plane, dialing, listening, version) in [
        (Client, &public, &full, PROVEN),
        (Worker, &public, &full, PROVEN),
        (Client, &full, &full, PROVEN),
        // A worker of the previous release.
        (Worker, &KEY, &full, 2),
        // A relay has the keys of a worker.
        (Relay, &public, &public, 2),
        (Relay, &KEY, &public, 2),
    ] {
        let (left, right) = run(
            connecting(plane, Some(dialing)),
            accepting(plane, Some(listening)),
        );
        for end in [left, right] {
            let session = end.expect("the same server").expect("done");
            assert_eq!((session.version, session.keys.is_some()), (version, true));
        }
    }
    let (left, right) = errors(
        connecting(Client, Some(&KEY)),
        accepting(Client, Some(&full)),
    );
    assert!(matches!(left, HandshakeError::VersionMismatch { .. }));
    assert!(matches!(right, HandshakeError::VersionMismatch { .. }));
}

#[test]
fn who_has_all_but_the_private_key_of_the_server_is_not_the_server() {
    let (_, public) = server_keys();
    let (other, _) = server_keys();
    let versions = |min, max| VersionRange { min, max };
    for plane in [Plane::Client, Plane::Worker] {
        for key in [Some(&KEY), Some(&public), Some(&other), None] {
            for range in [versions(2, 2), VERSIONS, versions(3, 3)] {
                let impostor = Handshake::new(Side::Accepting, plane, key, [2; NONCE_LEN], range);
                let (left, _) = run(connecting(plane, Some(&public)), impostor);
                let left = left.expect_err("no peer is the server");
                let is_expected = (matches!(left, HandshakeError::VersionMismatch { .. })
                    && range.max < PROVEN)
                    || (matches!(left, HandshakeError::EncryptionMismatch { .. }) && key.is_none())
                    || (matches!(left, HandshakeError::WrongKey { .. }) && key == Some(&other))
                    // The impostor lacks the private key that an answer needs.
                    || (matches!(left, HandshakeError::Refused { .. }) && key.is_some());
                assert!(is_expected, "{plane} {range}: {left}");
            }
        }
    }
}

#[test]
fn an_answer_without_the_private_key_is_not_taken() {
    let (full, public) = server_keys();
    let (mut left, mut right) = (
        connecting(Plane::Worker, Some(&public)),
        accepting(Plane::Worker, Some(&full)),
    );
    let waits = right.receive(&mut BytesMut::from(&left.take_output()[..]));
    assert!(waits.expect("a hello").is_none());
    let waits = left.receive(&mut BytesMut::from(&right.take_output()[..]));
    assert!(waits.expect("a hello").is_none());
    let answer = encode_frame(Frame::Noise(vec![9; 48].into()));
    let error = left
        .receive(&mut BytesMut::from(&answer[..]))
        .expect_err("it proves nothing");
    assert!(
        matches!(error, HandshakeError::NotTheServer { .. }),
        "{error}"
    );
}

#[test]
fn only_the_full_key_is_the_owners() {
    let (full, public) = server_keys();
    let (other, _) = server_keys();
    for plane in [Plane::Client, Plane::Worker] {
        for (key, expected) in [(&full, Some(true)), (&public, Some(false)), (&other, None)] {
            let (left, right) = run(connecting(plane, Some(key)), accepting(plane, Some(&full)));
            let session = right.ok().flatten();
            assert_eq!(session.map(|session| session.is_owner), expected, "{plane}");
            assert_eq!(left.is_ok_and(|left| left.is_some()), expected.is_some());
        }
    }
}

#[test]
fn no_keys_agree_on_plain() {
    let (left, right) = run(
        connecting(Plane::Client, None),
        accepting(Plane::Client, None),
    );
    assert!(
        left.expect("left")
            .is_some_and(|session| session.keys.is_none())
    );
    assert!(
        right
            .expect("right")
            .is_some_and(|session| session.keys.is_none())
    );
}

#[test]
fn different_keys_are_refused_on_both_sides() {
    let plane = Plane::Worker;
    let (full, public) = server_keys();
    let stranger = OTHER_KEY.with_server(public.server().expect("a pair"));
    for (dialing, listening) in [(&KEY, &OTHER_KEY), (&stranger, &full), (&OTHER_KEY, &full)] {
        let (left, right) = errors(
            connecting(plane, Some(dialing)),
            accepting(plane, Some(listening)),
        );
        for error in [left, right] {
            assert!(
                matches!(
                    error,
                    HandshakeError::WrongKey {
                        plane: Plane::Worker
                    }
                ),
                "{error}"
            );
        }
    }
}

#[test]
fn different_roles_are_refused_on_both_sides() {
    let (left, right) = errors(
        connecting(Plane::Worker, Some(&KEY)),
        accepting(Plane::Client, Some(&KEY)),
    );
    assert!(
        matches!(
            left,
            HandshakeError::WrongPlane {
                ours: Plane::Worker
            }
        ),
        "{left}"
    );
    assert!(
        matches!(
            right,
            HandshakeError::WrongPlane {
                ours: Plane::Client
            }
        ),
        "{right}"
    );
}

#[test]
fn plain_and_keyed_refuse_each_other() {
    for (dialing, listening) in [(Some(&KEY), None), (None, Some(&KEY))] {
        let (left, right) = errors(
            connecting(Plane::Client, dialing),
            accepting(Plane::Client, listening),
        );
        for (error, key) in [(left, dialing), (right, listening)] {
            let HandshakeError::EncryptionMismatch { we_have_key, .. } = error else {
                panic!("{error}");
            };
            assert_eq!(we_have_key, key.is_some());
        }
    }
}

#[test]
fn newest_common_version_wins() {
    let make = |side, min, max| {
        Handshake::new(
            side,
            Plane::Client,
            Some(&KEY),
            [0; NONCE_LEN],
            VersionRange { min, max },
        )
    };
    let old = |side| make(side, 1, 1);
    let both = |side| make(side, 1, 2);
    let new = |side| make(side, 2, 3);
    let version = |(left, right): (End, End)| {
        let left = left.expect("left").expect("done").version;
        assert_eq!(right.expect("right").expect("done").version, left);
        left
    };
    assert_eq!(
        version(run(both(Side::Connecting), old(Side::Accepting))),
        1
    );
    assert_eq!(
        version(run(new(Side::Connecting), both(Side::Accepting))),
        2
    );
    let (left, right) = errors(new(Side::Connecting), old(Side::Accepting));
    assert_eq!(
        left.to_string(),
        "no common protocol version: this side speaks 2 to 3, the peer 1; use the same program on both sides \
         (builds of one release can differ) and the server's current access file"
    );
    assert!(matches!(right, HandshakeError::VersionMismatch { .. }));
}

#[test]
fn a_changed_hello_breaks_the_exchange() {
    let (mut left, mut right) = (
        connecting(Plane::Client, Some(&KEY)),
        accepting(Plane::Client, Some(&KEY)),
    );
    let mut hello = BytesMut::from(&left.take_output()[..]);
    // An attacker on the path announces an older version.
    let body = wire::Handshake::decode(&hello[HEADER_LEN..]).expect("own hello");
    let Some(Frame::Hello(mut changed)) = body.frame else {
        panic!("no hello")
    };
    changed.version_max += 1;
    hello = BytesMut::from(&encode_frame(Frame::Hello(changed))[..]);
    assert!(
        right
            .receive(&mut hello)
            .expect("plausible hello")
            .is_none()
    );
    let mut answer = BytesMut::from(&right.take_output()[..]);
    assert!(left.receive(&mut answer).expect("honest hello").is_none());
    let mut noise = BytesMut::from(&left.take_output()[..]);
    let refused = right.receive(&mut noise).expect_err("prologue differs");
    assert!(matches!(refused, HandshakeError::WrongKey { .. }));
}

#[test]
fn an_overheard_exchange_cannot_be_replayed() {
    let (mut left, mut right) = (
        connecting(Plane::Client, Some(&KEY)),
        accepting(Plane::Client, Some(&KEY)),
    );
    let hello = left.take_output();
    right
        .receive(&mut BytesMut::from(&hello[..]))
        .expect("hello");
    left.receive(&mut BytesMut::from(&right.take_output()[..]))
        .expect("hello");
    let overheard = [hello, left.take_output()].concat();
    let mut later = Handshake::accepting(Plane::Client, Some(&KEY), [3; NONCE_LEN]);
    let refused = later
        .receive(&mut BytesMut::from(&overheard[..]))
        .expect_err("other nonce");
    assert!(matches!(refused, HandshakeError::WrongKey { .. }));
}

#[test]
fn oversize_frames_are_refused_by_their_header() {
    let mut input = BytesMut::from(&MAGIC[..]);
    input.extend_from_slice(&1025_u16.to_le_bytes());
    let mut machine = accepting(Plane::Client, Some(&KEY));
    let refused = machine.receive(&mut input).expect_err("too large");
    assert!(matches!(
        refused,
        HandshakeError::FrameTooLarge { found: 1025 }
    ));
    assert!(!machine.take_output().is_empty());
}

#[test]
fn a_frame_of_the_largest_size_is_waited_for_to_its_end() {
    let mut input = BytesMut::from(&MAGIC[..]);
    input.extend_from_slice(&1024_u16.to_le_bytes());
    let frame = take_frame(&mut input).expect("as large as allowed");
    assert!(frame.is_none(), "its bytes are missing");
    input.extend_from_slice(&[0; 1024]);
    let frame = take_frame(&mut input).expect("whole");
    assert_eq!(frame.map(|frame| frame.len()), Some(HEADER_LEN + 1024));
    assert!(input.is_empty());
}

#[test]
fn strangers_are_noticed_at_the_first_byte_and_told_nothing() {
    let mut machine = accepting(Plane::Client, Some(&KEY));
    let refused = machine
        .receive(&mut BytesMut::from("G"))
        .expect_err("no magic");
    assert!(matches!(refused, HandshakeError::NotOurProtocol));
    assert!(machine.take_output().is_empty());
}

#[test]
fn a_frame_out_of_turn_is_malformed() {
    let noise = encode_frame(Frame::Noise(vec![0; 48].into()));
    let refusal = encode_frame(Frame::Refusal(wire::Refusal::default()));
    for frame in [noise, refusal] {
        let refused = accepting(Plane::Client, Some(&KEY))
            .receive(&mut BytesMut::from(&frame[..]))
            .expect_err("not a hello");
        assert!(matches!(refused, HandshakeError::Malformed));
    }
}

/// Returns the Noise message of a peer that knows the key, with a payload that no correct peer
/// sends.
fn noise_with_payload(noise: &mut HandshakeState) -> BytesMut {
    let mut message = vec![0; HANDSHAKE_FRAME_MAX];
    let length = noise.write_message(b"!", &mut message).expect("it fits");
    message.truncate(length);
    BytesMut::from(&encode_frame(Frame::Noise(message.into()))[..])
}

#[test]
fn bytes_in_the_first_encrypted_message_are_refused() {
    let mut peer = connecting(Plane::Worker, Some(&KEY));
    let mut machine = accepting(Plane::Worker, Some(&KEY));
    let hello = peer.take_output();
    let waits = machine.receive(&mut BytesMut::from(&hello[..]));
    assert!(waits.expect("a hello").is_none());
    let answer = machine.take_output();
    let mut noise = start_noise(Side::Connecting, (&KEY, 2), KEY.shared(), [&hello, &answer])
        .expect("a valid key");
    let refused = machine
        .receive(&mut noise_with_payload(&mut noise))
        .expect_err("nothing is expected in it");
    assert!(matches!(refused, HandshakeError::Malformed), "{refused}");
    // The peer is notified but gets no keys.
    let output = machine.take_output();
    let told = peer.receive(&mut BytesMut::from(&[answer, output].concat()[..]));
    assert!(
        matches!(told, Err(HandshakeError::Refused { .. })),
        "{told:?}"
    );
}

#[test]
fn bytes_in_the_encrypted_answer_are_refused() {
    let mut machine = connecting(Plane::Client, Some(&KEY));
    let mut peer = accepting(Plane::Client, Some(&KEY));
    let hello = machine.take_output();
    let waits = peer.receive(&mut BytesMut::from(&hello[..]));
    assert!(waits.expect("a hello").is_none());
    let answer = peer.take_output();
    let waits = machine.receive(&mut BytesMut::from(&answer[..]));
    assert!(waits.expect("a hello").is_none());
    let mut first = BytesMut::from(&machine.take_output()[..]);
    let raw = take_frame(&mut first).expect("ours").expect("whole");
    let frame = wire::Handshake::decode(&raw[HEADER_LEN..]).expect("ours");
    let Some(Frame::Noise(message)) = frame.frame else {
        panic!("no Noise message")
    };
    let mut noise = start_noise(Side::Accepting, (&KEY, 2), KEY.shared(), [&answer, &hello])
        .expect("a valid key");
    let mut payload = [0; HANDSHAKE_FRAME_MAX];
    let length = noise.read_message(&message, &mut payload).expect("the key");
    assert_eq!(length, 0, "ours carries nothing");
    let refused = machine
        .receive(&mut noise_with_payload(&mut noise))
        .expect_err("nothing is expected in it");
    assert!(matches!(refused, HandshakeError::Malformed), "{refused}");
}

#[test]
fn bytes_behind_the_handshake_stay() {
    let mut left = connecting(Plane::Client, None);
    let mut right = accepting(Plane::Client, None);
    right
        .receive(&mut BytesMut::from(&left.take_output()[..]))
        .expect("hello");
    let mut input = BytesMut::from(&right.take_output()[..]);
    input.extend_from_slice(b"first message");
    assert!(left.receive(&mut input).expect("hello").is_some());
    assert_eq!(&input[..], b"first message");
}

proptest! {
    #[test]
    fn random_bytes_never_panic(
        bytes in vec(any::<u8>(), 0..200),
        with_magic: bool,
        with_key: bool,
        is_dialing: bool,
    ) {
        let key = with_key.then_some(&KEY);
        let mut machine = match is_dialing {
            true => connecting(Plane::Client, key),
            false => accepting(Plane::Client, key),
        };
        let mut input = BytesMut::new();
        if with_magic {
            input.extend_from_slice(&MAGIC);
            input.extend_from_slice(&u16::try_from(bytes.len()).expect("short").to_le_bytes());
        }
        input.extend_from_slice(&bytes);
        let result = machine.receive(&mut input);
        let is_encrypted = matches!(result, Ok(Some(Session { keys: Some(_), .. })));
        prop_assert!(!is_encrypted);
    }
}
