//! How many costly requests of each kind there can be at once: of one lesser right, of all lesser
//! rights, and in all. The rest is the owner's.
//!
//! Requests that only wait are bounded by the connections that they occupy, see
//! [`hq_protocol::admission::port`].

use std::sync::LazyLock;

use hq_protocol::admission::{Pool, Share};

macro_rules! pools {
    ($($(#[$doc:meta])* $name:ident: $each:expr, $others:expr, $all:expr;)*) => {
        $($(#[$doc])*
        pub(crate) static $name: LazyLock<Pool> =
            LazyLock::new(|| Pool::new(Share::requests($each, $others, $all)));)*
    };
}

pools! {
    /// Queries of the core, one after the other. The owner's queries do not wait.
    LOOKS: 16, 48, usize::MAX;
    /// Followers of events. Up to 4 MiB wait for each one.
    STREAMS: 32, 64, 96;
    /// Readers of the whole journal file. Each occupies a blocking thread while its client reads;
    /// there are 512.
    FILES: 32, 48, 64;
    /// Reads of the journal for dashboards.
    READS: 16, 48, READS_MAX;
    /// Queries of users, which can take minutes.
    QUERIES: 32, 48, READS_MAX;
    /// Timelines: each reads all tasks.
    TIMELINES: 1, 1, 2;
    /// Descriptions of jobs on their way: each has up to 64 MiB, and is in memory once more as what
    /// it describes.
    DESCRIPTIONS: 2, 3, 4;
    /// Requests of clients larger than [`LARGE_REQUEST`], in transit. The owner's requests do not
    /// wait.
    LARGE_REQUESTS: 4, 4, usize::MAX;
    /// The same for the first messages of workers.
    LARGE_REGISTRATIONS: 16, 16, usize::MAX;
}

/// Maximum simultaneous reads of the journal. On a hanging disk they never end.
pub(crate) const READS_MAX: usize = 64;

/// Bytes of an incomplete message that every connection can keep in memory.
pub(crate) const LARGE_REQUEST: usize = 64 << 10;
