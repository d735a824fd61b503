//! The server's measurements of itself: durations and connections.
//!
//! Recording costs one or two atomic operations, or a short uncontended lock. Figures that can be
//! read from the state are in [`crate::metrics`].

use std::time::Duration;

use hq_protocol::Plane;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// The upper bound of the first bucket in seconds, about the time of a batch with one small
/// message.
const SHORTEST: f64 = 16e-6;
/// The number of buckets. Their bounds grow by a factor of four up to about one second, and nothing
/// on the core's thread should ever take that long.
const BUCKETS: u16 = 9;

/// Handles to the measurements. Clones record into the same measurements.
#[derive(Clone, Debug)]
pub(crate) struct Stats {
    /// The time of a batch on the core's thread: inputs, scheduling and effects.
    pub(crate) batches: Durations,
    /// The time of the scheduling part of a batch.
    pub(crate) rounds: Durations,
    /// The time that changes take from the core to the disk.
    pub(crate) commits: Durations,
    pub(crate) clients: PlaneStats,
    pub(crate) workers: PlaneStats,
    /// The number of peers that were disconnected because they did not read in time.
    pub(crate) cut_off: Counter,
    /// The number of requests with a valid token.
    pub(crate) http_requests: Counter,
    /// The number of requests without a valid token.
    pub(crate) http_refused: Counter,
}

impl Stats {
    pub(crate) fn new() -> Self {
        Self {
            batches: Durations::new(),
            rounds: Durations::new(),
            commits: Durations::new(),
            clients: PlaneStats::default(),
            workers: PlaneStats::default(),
            cut_off: Counter::default(),
            http_requests: Counter::default(),
            http_refused: Counter::default(),
        }
    }

    pub(crate) const fn plane(&self, plane: Plane) -> &PlaneStats {
        match plane {
            Plane::Client => &self.clients,
            Plane::Worker | Plane::Relay => &self.workers,
        }
    }
}

/// The distribution of a duration.
#[derive(Clone, Debug)]
pub(crate) struct Durations(pub(crate) Histogram);

impl Durations {
    fn new() -> Self {
        Self(Histogram::new(exponential_buckets(SHORTEST, 4.0, BUCKETS)))
    }

    pub(crate) fn observe(&self, duration: Duration) {
        self.0.observe(duration.as_secs_f64());
    }
}

/// The connections of one plane.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlaneStats {
    /// The number of open authenticated connections.
    pub(crate) open: Gauge,
    pub(crate) accepted: Counter,
    /// The number of peers that failed to authenticate or used another protocol.
    pub(crate) refused: Counter,
}

impl PlaneStats {
    /// Counts a connection as open until the guard is dropped.
    pub(crate) fn open(&self) -> OpenGuard {
        self.accepted.inc();
        self.open.inc();
        OpenGuard(self.open.clone())
    }
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct OpenGuard(Gauge);

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
