//! The maximum number of simultaneous expensive requests of each kind: for each holder with fewer
//! rights than the owner, for all such holders together, and in total. The rest is reserved for the
//! owner.
//!
//! Requests that only wait are bounded by the number of connections that they occupy, see
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
    /// Queries to the core, which run one after the other. The owner's queries do not wait.
    LOOKS: 16, 48, usize::MAX;
    /// Followers of events. Up to 4 MiB may be buffered for each.
    STREAMS: 32, 64, 96;
    /// Readers of the whole journal file. Each occupies one of 512 blocking threads while its
    /// client reads.
    FILES: 32, 48, 64;
    /// Reads of the journal for dashboards.
    READS: 16, 48, READS_MAX;
    /// Users' queries, which can take minutes.
    QUERIES: 32, 48, READS_MAX;
    /// Requests for timelines. Each reads all tasks.
    TIMELINES: 1, 1, 2;
    /// Job descriptions in transit. Each has up to 64 MiB, and its parsed form also takes memory.
    DESCRIPTIONS: 2, 3, 4;
    /// Client requests in transit that are larger than [`LARGE_REQUEST`]. The owner's requests do
    /// not wait.
    LARGE_REQUESTS: 4, 4, usize::MAX;
    /// The same for the first messages from workers.
    LARGE_REGISTRATIONS: 16, 16, usize::MAX;
}

/// The maximum number of simultaneous reads of the journal. On a hanging disk they never end.
pub(crate) const READS_MAX: usize = 64;

/// How many bytes of an incomplete message every connection may keep in memory.
pub(crate) const LARGE_REQUEST: usize = 64 << 10;
