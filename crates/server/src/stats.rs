//! The server's measurements of itself: durations and connections.
//!
//! Recording costs an atomic or two, or a short uncontended lock. Figures that can be read from the
//! state are in [`crate::metrics`].

use std::time::Duration;

use hq_protocol::Plane;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// Upper bound of the first bucket, in seconds: a batch with one small message.
const SHORTEST: f64 = 16e-6;
/// Number of buckets, by factors of four up to about one second, which nothing on the core's thread
/// should ever take.
const BUCKETS: u16 = 9;

/// Handles to the measurements; clones record into the same ones.
#[derive(Clone, Debug)]
pub(crate) struct Stats {
    /// A batch of the core's thread: inputs, scheduling, effects.
    pub(crate) batches: Durations,
    /// The scheduling part of a batch.
    pub(crate) rounds: Durations,
    /// From the core to the disk.
    pub(crate) commits: Durations,
    pub(crate) clients: PlaneStats,
    pub(crate) workers: PlaneStats,
    /// Peers that were disconnected because they did not read in time.
    pub(crate) cut_off: Counter,
    /// Requests that showed the token.
    pub(crate) http_requests: Counter,
    /// Requests that did not.
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

/// Distribution of a duration.
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

/// Connections of one plane.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlaneStats {
    /// Authenticated ones that are open.
    pub(crate) open: Gauge,
    pub(crate) accepted: Counter,
    /// Peers that failed to authenticate, or used another protocol.
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
