//! Message limits: one per direction of each plane, with reasons.
//!
//! Rule: every message that one side can build passes the reader of the other side. So the writer
//! knows the same limit and rejects larger messages, and an oversized message is an error where it
//! is made instead of the end of the connection. Long content is divided (assignments, reports,
//! pages, lines of the journal); indivisible content is rejected at the submit. [`hq_core::limits`]
//! decides the size of an assignment or report, and counts without knowing the wire. The tests here
//! check its counts.
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

/// Range of durations for a quarantine on request.
pub const QUARANTINE_SPANS: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_hours(24 * 366);

/// Largest request of a client: a submit with many entries or dependencies. The store keeps a
/// submit as one value, and `SQLite` accepts at most 10^9 bytes.
pub const REQUEST_MAX: usize = 512 << 20;

/// Largest reply to a client: details of jobs with large environments and id lists. A server with a
/// larger reply sends an error instead.
pub const REPLY_MAX: usize = 1 << 30;

/// Largest message to a worker. Above any submit that was ever accepted, because those stored by an
/// older server must be delivered as well. Assignments are divided at
/// [`hq_core::limits::ASSIGN_BYTES_MAX`], so only a template of up to
/// [`hq_core::limits::TEMPLATE_BYTES_MAX`], or larger from an older server, makes a large message.
pub const TO_WORKER_MAX: usize = 1 << 30;

/// Largest message of a worker: the registration of a reconnecting worker that lists all its tasks.
/// Reports are divided at [`hq_core::limits::REPORT_BYTES_MAX`].
pub const TO_SERVER_MAX: usize = 16 << 20;

/// Limit of the memory of a worker's decoded message, estimated from its elements, in bytes. An
/// empty element takes two bytes on the wire and up to two hundred in memory, and a node is not
/// trusted.
pub const TO_SERVER_DECODED_MAX: usize = 8 * TO_SERVER_MAX;

/// Limit of bytes of one page of tasks, of one part of the journal and of one part of an update,
/// unless a single element is larger.
pub const PAGE_BYTES_MAX: usize = 4 << 20;

/// Largest result of a query.
pub const QUERY_BYTES_MAX: usize = REPLY_MAX / 4;

// Everything that core sends fits: a registration with the worker's own part, and a template.
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

/// Limits of a connection after the handshake.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest message that is accepted from the peer, in bytes, fragments added up.
    pub message_max: usize,
    /// Largest message that is sent: what the peer accepts.
    pub send_max: usize,
    /// Limit of the memory of a decoded message of the peer, and how it is counted; `None` = the
    /// peer is trusted.
    pub decoded: Option<(usize, &'static Shape)>,
}

impl Limits {
    /// Limits of the side of a plane that dialed.
    #[must_use]
    pub const fn connecting(plane: Plane) -> Self {
        match plane {
            Plane::Client => Self {
                message_max: REPLY_MAX,
                send_max: REQUEST_MAX,
                decoded: None,
            },
            // At a relay no message follows the handshake.
            Plane::Worker | Plane::Relay => Self {
                message_max: TO_WORKER_MAX,
                send_max: TO_SERVER_MAX,
                decoded: None,
            },
        }
    }

    /// Limits of the side of a plane that listens.
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
