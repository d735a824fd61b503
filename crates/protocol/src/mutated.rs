//! Mutates the inputs of the fuzz targets in every test run.
//!
//! A fuzzer finds more. This catches the regressions that a fuzzer would find immediately.

use std::path::Path;

use bytes::BytesMut;

use crate::convert::{ClientRequest, FromServer, FromWorker};
use crate::frame::FrameDecoder;
use crate::handshake::Handshake;
use crate::{Message as _, Plane, SecretKey, client, worker};

/// The number of mutations per handshake, which is slow, and per message.
const HANDSHAKES: u64 = 200;
const MESSAGES: u64 = 5_000;

/// Returns the corpus of a fuzz target. Each input is a mode followed by bytes.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let entries = std::fs::read_dir(dir.join(target)).expect("the corpus");
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        std::fs::read(entry.expect("an entry").path()).expect("a file")
    };
    entries.map(read).collect()
}

/// Randomly flips, truncates, repeats or inserts bytes.
fn mutate(bytes: &mut Vec<u8>, seed: u64) {
    let mut chance = seed;
    let mut below = |bound: usize| {
        chance = chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(chance >> 33).expect("31 bits") % bound.max(1)
    };
    for _ in 0..=below(3) {
        let at = below(bytes.len());
        let what = u8::try_from(below(256)).expect("a byte");
        match below(4) {
            0 if at < bytes.len() => bytes[at] ^= what,
            1 => bytes.truncate(at),
            2 => bytes.insert(at, what),
            _ => bytes.extend_from_within(at..),
        }
    }
}

fn for_variants(target: &str, variants: u64, check: impl Fn(u8, &[u8])) {
    for whole in corpus(target) {
        check(whole[0], &whole[1..]);
        for seed in 0..variants {
            let mut bytes = whole[1..].to_vec();
            mutate(&mut bytes, seed);
            check(whole[0], &bytes);
        }
    }
}

#[test]
fn changed_handshakes_end_with_a_session_or_an_error() {
    for_variants("handshake", HANDSHAKES, |mode, bytes| {
        let plane = [Plane::Client, Plane::Worker][usize::from(mode & 1)];
        let key = SecretKey::from_hex(&"5a".repeat(32)).expect("a key");
        let key = Some(&key).filter(|_| mode & 2 != 0);
        let mut side = if mode & 4 == 0 {
            Handshake::accepting(plane, key, [7; 16])
        } else {
            Handshake::connecting(plane, key, [7; 16])
        };
        let mut input = BytesMut::from(bytes);
        if let Err(error) = side.receive(&mut input) {
            assert!(!error.to_string().is_empty());
        }
    });
}

#[path = "../../../fuzz/targets/impostor.rs"]
mod impostor;

#[test]
fn nobody_without_the_private_key_is_taken_for_the_server() {
    for_variants("impostor", HANDSHAKES, |mode, bytes| {
        impostor::run(&[&[mode], bytes].concat());
    });
}

#[test]
fn changed_messages_become_core_types_or_are_refused() {
    for_variants("messages", MESSAGES, |_, bytes| {
        let mut decoder = FrameDecoder::new(1 << 16);
        let mut input = BytesMut::from(bytes);
        while let Ok(Some(message)) = decoder.decode(&mut input) {
            // Each side must survive messages meant for another side.
            if let Ok(request) = client::Request::decode(message.clone()) {
                let _ = ClientRequest::try_from(request);
            }
            if let Ok(report) = worker::ToServer::decode(message.clone()) {
                let _ = FromWorker::try_from(report);
            }
            if let Ok(order) = worker::ToWorker::decode(message) {
                let _ = FromServer::try_from(order);
            }
        }
    });
}
