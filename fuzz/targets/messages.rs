//! Frames after authentication, and what they hold: every message becomes a valid core type or an error.

use bytes::{Bytes, BytesMut};
use hq_protocol::convert::{ClientRequest, FromServer, FromWorker};
use hq_protocol::frame::FrameDecoder;
use hq_protocol::{Message, client, worker};

/// Runs one input; a panic is the finding.
pub(crate) fn run(data: &[u8]) {
    let Some((mode, rest)) = data.split_first() else {
        return;
    };
    let mut decoder = FrameDecoder::new(1 << 16);
    let mut input = BytesMut::from(rest);
    loop {
        match decoder.decode(&mut input) {
            Ok(Some(message)) => digest(*mode, message),
            Ok(None) => return,
            Err(error) => {
                let _ = error.to_string();
                return;
            }
        }
    }
}

fn digest(mode: u8, bytes: Bytes) {
    let refusal = match mode % 3 {
        0 => client::Request::decode(bytes)
            .ok()
            .and_then(|message| ClientRequest::try_from(message).err()),
        1 => worker::ToServer::decode(bytes)
            .ok()
            .and_then(|message| FromWorker::try_from(message).err()),
        _ => worker::ToWorker::decode(bytes)
            .ok()
            .and_then(|message| FromServer::try_from(message).err()),
    };
    if let Some(error) = refusal {
        let _ = error.to_string();
    }
}
