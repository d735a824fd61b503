//! Peers without the server's private key that change messages: no client takes them for the
//! server.

use bytes::BytesMut;
use hq_protocol::handshake::Handshake;
use hq_protocol::{Plane, SecretKey};

/// Runs one input: the kind of peer, then changes of a byte: which message, where, and how.
pub(crate) fn run(data: &[u8]) {
    let Some((mode, changes)) = data.split_first() else {
        return;
    };
    let plane = [Plane::Client, Plane::Worker][usize::from(mode & 1)];
    let [shared, server, other] = ["5a", "09", "2f"].map(|byte| byte.repeat(32));
    let key = |parts: &[&String]| {
        let digits: String = parts.iter().map(|part| part.as_str()).collect();
        SecretKey::from_hex(&digits).ok()
    };
    let impostor = match mode >> 1 & 3 {
        0 => None,
        1 => key(&[&shared]),
        2 => key(&[&shared, &server]),
        _ => key(&[&shared, &server, &other]),
    };
    let expected = key(&[&shared, &server]);
    let mut worker = Handshake::connecting(plane, expected.as_ref(), [7; 16]);
    let mut impostor = Handshake::accepting(plane, impostor.as_ref(), [8; 16]);
    for message in 0_u8..4 {
        let (from, to) = match message % 2 {
            0 => (&mut worker, &mut impostor),
            _ => (&mut impostor, &mut worker),
        };
        let mut bytes = from.take_output();
        for change in changes.chunks_exact(3) {
            let at = usize::from(change[1]);
            if change[0] % 4 == message && at < bytes.len() {
                bytes[at] ^= change[2];
            }
        }
        let result = to.receive(&mut BytesMut::from(&bytes[..]));
        assert!(message % 2 == 0 || !matches!(result, Ok(Some(_))));
    }
}
