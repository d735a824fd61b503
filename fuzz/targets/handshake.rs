//! Frames before authentication: both sides answer any input with a session or an error.

use bytes::BytesMut;
use hq_protocol::handshake::Handshake;
use hq_protocol::{Plane, SecretKey};

/// Runs one input; a panic is the finding.
pub(crate) fn run(data: &[u8]) {
    let Some((mode, rest)) = data.split_first() else {
        return;
    };
    let plane = if mode & 1 == 0 {
        Plane::Client
    } else {
        Plane::Worker
    };
    let key = SecretKey::from_hex(&"5a".repeat(32))
        .ok()
        .filter(|_| mode & 2 != 0);
    let nonce = [7; 16];
    let mut side = if mode & 4 == 0 {
        Handshake::accepting(plane, key.as_ref(), nonce)
    } else {
        Handshake::connecting(plane, key.as_ref(), nonce)
    };
    // In pieces, as from a network.
    let mut input = BytesMut::new();
    for piece in rest.chunks(1 + usize::from(mode >> 3)) {
        input.extend_from_slice(piece);
        let result = side.receive(&mut input);
        let _ = side.take_output();
        if let Err(error) = &result {
            let _ = error.to_string();
        }
        if !matches!(result, Ok(None)) {
            return;
        }
    }
}
