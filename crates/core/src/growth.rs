//! Larger requests for the next attempt of a task that ran out of memory or time.
//!
//! The grant of an attempt is stored as a multiple of the request. It therefore applies to every
//! variant, and takes only two numbers in the journal.

use std::time::Duration;

use crate::resource::amount::Amount;
use crate::resource::request::{Policy, RequestVariants, ResourceEntry, ResourceRequest};

/// The name of the resource that a task can exhaust.
pub const MEMORY: &str = "mem";

/// The largest factor of a [`Growth`].
pub const PERMILLE_MAX: u32 = 100_000;

/// The scale of the request as submitted.
const ONCE: u32 = 1_000;

/// The growth of a request from attempt to attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Growth<T> {
    /// The factor in thousandths, above 1 000 and up to [`PERMILLE_MAX`].
    pub permille: u32,
    /// The upper bound.
    pub max: Option<T>,
}

/// The growth of requests by kind of failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct GrowSpec {
    /// The growth of [`MEMORY`] after an attempt that ran out of it.
    pub memory: Option<Growth<Amount>>,
    /// The growth of the time limit and the time request after an attempt that reached its limit.
    pub time: Option<Growth<Duration>>,
}

/// The grant of an attempt as a multiple of the request, in thousandths.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Scale {
    /// The scale of [`MEMORY`].
    pub memory: u32,
    /// The scale of the time limit and the time request.
    pub time: u32,
}

impl Default for Scale {
    /// Returns the scale of the request as submitted.
    fn default() -> Self {
        Self {
            memory: ONCE,
            time: ONCE,
        }
    }
}

/// The grant of an attempt, in stored form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The multiple of the request.
    pub scale: Scale,
    /// The amount of [`MEMORY`], if requested.
    pub memory: Option<Amount>,
    /// Its time limit, if it has one.
    pub time_limit: Option<Duration>,
}

/// The largest offers of workers that could run the task otherwise. `None` if there is no such
/// worker, or if its offers are unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Largest {
    /// The amount of [`MEMORY`].
    pub memory: Option<Amount>,
    /// The longest remaining lifetime of a worker, all of which a task may use. [`Duration::MAX`]
    /// means unlimited.
    pub lifetime: Option<Duration>,
}

impl Scale {
    /// Creates a scale in thousandths. Returns `None` if it is less than the request.
    #[must_use]
    pub fn new(memory: u32, time: u32) -> Option<Self> {
        (memory >= ONCE && time >= ONCE).then_some(Self { memory, time })
    }
}

/// Returns the largest amount of memory that any variant requests as a number.
#[must_use]
pub fn memory(requests: &RequestVariants) -> Option<Amount> {
    let variants = requests.as_slice().iter();
    variants.filter_map(|one| memory_of(&one.entries)).max()
}

/// Sets the amount of memory that a variant requests.
pub fn set_memory(request: &mut ResourceRequest, amount: Amount) {
    request.entries.retain(|entry| &*entry.resource != MEMORY);
    request.entries.push(ResourceEntry {
        resource: MEMORY.into(),
        policy: Policy::default(),
        amount,
    });
}

/// Returns the longest time request of all variants.
#[must_use]
pub fn min_time(requests: &RequestVariants) -> Duration {
    let variants = requests.as_slice().iter();
    variants.map(|one| one.min_time).max().unwrap_or_default()
}

/// Returns the amount of memory that a variant requests as a number.
#[must_use]
pub fn memory_of(entries: &[ResourceEntry]) -> Option<Amount> {
    entries
        .iter()
        // A request for all memory cannot grow.
        .filter(|entry| &*entry.resource == MEMORY && entry.policy != Policy::All)
        .map(|entry| entry.amount)
        .max()
}
