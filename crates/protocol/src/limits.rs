//! Message limits, one per direction of each plane.
//!
//! Every message that one side can build must pass the reader of the other side. The writer
//! therefore knows the limit of the reader and rejects larger messages: an oversized message is an
//! error where it is built and does not end the connection. Long content is split (assignments,
//! reports, pages, lines of the journal). Content that cannot be split is rejected at the submit.
//! [`hq_core::limits`] bounds the size of an assignment or report with estimates that do not depend
//! on the encoding. The tests of this module check these estimates.
//!
//! | direction | limit | why |
//! |---|---|---|
//! | client to server | [`REQUEST_MAX`] | a submit is stored as one value |
//! | server to client | [`REPLY_MAX`] | a client asks for less, or page by page |
//! | server to worker | [`TO_WORKER_MAX`] | a worker does what its server says |
//! | worker to server | [`TO_SERVER_MAX`], [`TO_SERVER_DECODED_MAX`] | a node may be in wrong hands |

mod shape;

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::handshake::Plane;
pub use shape::Shape;

/// The valid durations of a quarantine that a user requests.
pub const QUARANTINE_SPANS: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_hours(24 * 366);

/// The maximum size of a client's request in bytes. Large requests are submits with many entries or
/// dependencies. The store keeps a submit as one value, and `SQLite` accepts at most 10^9 bytes.
pub const REQUEST_MAX: usize = 512 << 20;

/// The maximum size of a reply to a client in bytes. Large replies are details of jobs with large
/// environments and id lists. A server sends an error instead of a larger reply.
pub const REPLY_MAX: usize = 1 << 30;

/// The maximum size of a message to a worker in bytes. It exceeds every submit that was ever
/// accepted, because submits that an older server stored must be delivered as well. Assignments are
/// split at [`hq_core::limits::ASSIGN_BYTES_MAX`], so a message is large only if it contains a
/// template, which has at most [`hq_core::limits::TEMPLATE_BYTES_MAX`] bytes, or more if it is from
/// an older server.
pub const TO_WORKER_MAX: usize = 1 << 30;

/// The maximum size of a worker's message in bytes. The largest is the registration of a
/// reconnecting worker, which lists all its tasks. Reports are split at
/// [`hq_core::limits::REPORT_BYTES_MAX`].
pub const TO_SERVER_MAX: usize = 16 << 20;

/// The maximum estimated memory of a worker's decoded message, in bytes. An empty element takes two
/// bytes on the wire and up to two hundred in memory, and a node is not trusted.
pub const TO_SERVER_DECODED_MAX: usize = 8 * TO_SERVER_MAX;

/// The maximum size in bytes of a page of tasks, a part of the journal or a part of an update. A
/// single larger element is sent anyway.
pub const PAGE_BYTES_MAX: usize = 4 << 20;

/// The maximum size of a query's result in bytes.
pub const QUERY_BYTES_MAX: usize = REPLY_MAX / 4;

// Checks that everything core sends fits: a registration with the worker's own part, and a
// template.
const _: () = {
    use hq_core::limits::{
        LAUNCHED_MAX, REPORT_BYTES_MAX, START_BYTES, TEMPLATE_BYTES_MAX, UNACKNOWLEDGED_MAX,
        VARIANT_BYTES,
    };
    let named = UNACKNOWLEDGED_MAX + LAUNCHED_MAX;
    let registration = named * START_BYTES + LAUNCHED_MAX * VARIANT_BYTES;
    assert!(registration <= TO_SERVER_MAX * 3 / 4);
    assert!(REPORT_BYTES_MAX <= TO_SERVER_MAX);
    assert!(TEMPLATE_BYTES_MAX <= TO_WORKER_MAX / 2);
    assert!(TEMPLATE_BYTES_MAX <= REQUEST_MAX / 2);
};

/// The limits of a connection after the handshake.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum size in bytes of a received message, summed over its fragments.
    pub message_max: usize,
    /// The maximum size in bytes of a sent message, which the peer accepts.
    pub send_max: usize,
    /// The memory limit of a decoded message from the peer, and the shape for counting it. `None`
    /// if the peer is trusted.
    pub decoded: Option<(usize, &'static Shape)>,
}

impl Limits {
    /// Returns the limits of the side that dialed.
    #[must_use]
    pub const fn connecting(plane: Plane) -> Self {
        match plane {
            Plane::Client => Self {
                message_max: REPLY_MAX,
                send_max: REQUEST_MAX,
                decoded: None,
            },
            // On the relay plane, no message follows the handshake.
            Plane::Worker | Plane::Relay => Self {
                message_max: TO_WORKER_MAX,
                send_max: TO_SERVER_MAX,
                decoded: None,
            },
        }
    }

    /// Returns the limits of the side that listens.
    #[must_use]
    pub const fn accepting(plane: Plane) -> Self {
        let other = Self::connecting(plane);
        Self {
            message_max: other.send_max,
            send_max: other.message_max,
            decoded: match plane {
                Plane::Client => None,
                Plane::Worker | Plane::Relay => Some((TO_SERVER_DECODED_MAX, &shape::TO_SERVER)),
            },
        }
    }
}

#[cfg(test)]
mod tests;
