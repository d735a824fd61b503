//! Relays: workers that carry the connections of other workers to the server, over one connection
//! of their own.
//!
//! ```text
//! worker ── entry: handshake with the worker key, plane `relay` ──▶ relay
//! worker ── from there: handshake, records, frames of the worker plane ── channel ──▶ server
//! ```
//!
//! A relay sees the ciphertext of a connection whose keys only its two ends have. It can end a
//! channel; changed, dropped, repeated or reordered bytes are detected as on any network. See
//! `docs/protocol.md` and `docs/adr/0020-relays-carry-what-they-cannot-read.md`.

mod entry;
mod link;
mod mux;

use std::ops::RangeInclusive;

pub use entry::{Admission, EntryError, admit, answer, enter};
pub use link::{Aborter, ChannelStream, LinkError, RelayLink};
pub use mux::{MuxError, Side};

/// Limit of data in one frame: a turn of a channel.
pub const CHUNK_MAX: usize = 16 << 10;

/// Bytes per channel that this release accepts before it gives credit: enough for 100 MB/s at a
/// round trip of a millisecond, and little enough for thousands of channels whose ends do not read.
pub const WINDOW: u32 = 128 << 10;

/// Valid windows.
pub const WINDOWS: RangeInclusive<u32> = (16 << 10)..=(16 << 20);

/// Channels of one relay.
pub const CHANNELS_MAX: usize = 4_096;

/// Limits of one side of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Bytes of a channel before it gives credit; within [`WINDOWS`].
    pub window: u32,
    /// Channels at once.
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
