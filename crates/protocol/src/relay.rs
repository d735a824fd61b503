//! Relays: workers that forward the connections of other workers to the server, over a single
//! connection.
//!
//! ```text
//! worker ── entry: handshake with the worker key, plane `relay` ──▶ relay
//! worker ── from there: handshake, records, frames of the worker plane ── channel ──▶ server
//! ```
//!
//! A relay sees only ciphertext, because only the two ends of a connection have its keys. It can
//! end a channel. As on any network, the ends detect changed, dropped, repeated or reordered bytes.
//! See `docs/protocol.md` and `docs/adr/0020-relays-carry-what-they-cannot-read.md`.

mod entry;
mod link;
mod mux;

use std::ops::RangeInclusive;

pub use entry::{Admission, EntryError, admit, answer, enter};
pub use link::{Aborter, ChannelStream, LinkError, RelayLink};
pub use mux::{MuxError, Side};

/// The maximum number of data bytes in one frame, which is the turn of a channel.
pub const CHUNK_MAX: usize = 16 << 10;

/// How many bytes of a channel this release accepts before it gives credit: enough for 100 MB/s
/// with a round trip of a millisecond, and few enough for thousands of channels whose ends do not
/// read.
pub const WINDOW: u32 = 128 << 10;

/// The valid windows, in bytes.
pub const WINDOWS: RangeInclusive<u32> = (16 << 10)..=(16 << 20);

/// The maximum number of channels of one relay.
pub const CHANNELS_MAX: usize = 4_096;

/// The limits of one side of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// The bytes that it accepts from a channel before it gives credit; within [`WINDOWS`].
    pub window: u32,
    /// The maximum number of open channels.
    pub channels_max: usize,
}

impl Terms {
    /// The limits of this release.
    pub const OURS: Self = Self {
        window: WINDOW,
        channels_max: CHANNELS_MAX,
    };
}

#[cfg(test)]
mod tests;
