//! Larger requests for the next attempt of a task that ran out of memory or time.
//!
//! The grant of an attempt is stored as a multiple of the request. So it applies to every variant,
//! and takes two numbers in the journal.

use std::time::Duration;

use crate::outcome::Outcome;
use crate::resource::amount::Amount;
use crate::resource::request::{Policy, RequestVariants, ResourceEntry, ResourceRequest};

/// Name of the resource that a task can exhaust.
pub const MEMORY: &str = "mem";

/// Largest factor of [`Growth`].
pub const PERMILLE_MAX: u32 = 100_000;

/// Scale of the request as submitted.
const ONCE: u32 = 1_000;

/// Growth of a request from attempt to attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Growth<T> {
    /// Factor in thousandths, above 1 000 and up to [`PERMILLE_MAX`].
    pub permille: u32,
    /// Upper bound.
    pub max: Option<T>,
}

/// Growth of requests by kind of failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct GrowSpec {
    /// Growth of [`MEMORY`] after an attempt that ran out of it.
    pub memory: Option<Growth<Amount>>,
    /// Growth of time limit and time request after an attempt that reached its limit.
    pub time: Option<Growth<Duration>>,
}

/// Grant of an attempt as a multiple of the request, in thousandths.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Scale {
    /// Scale of [`MEMORY`].
    pub memory: u32,
    /// Scale of time limit and time request.
    pub time: u32,
}

impl Default for Scale {
    /// The request as submitted.
    fn default() -> Self {
        Self {
            memory: ONCE,
            time: ONCE,
        }
    }
}

/// The parts of a request that can grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked<'a> {
    /// Amounts that grow.
    pub grow: GrowSpec,
    /// Resources and time request.
    pub requests: &'a RequestVariants,
    /// Longest run of an attempt.
    pub time_limit: Option<Duration>,
}

/// Grant of an attempt, in stored form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Multiple of the request.
    pub scale: Scale,
    /// [`MEMORY`], if requested.
    pub memory: Option<Amount>,
    /// Its time limit, if it has one.
    pub time_limit: Option<Duration>,
}

/// The largest offer among workers that could run the task otherwise; `None` = no such worker, or
/// unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Largest {
    /// Amount of [`MEMORY`].
    pub memory: Option<Amount>,
    /// Longest remaining lifetime of a worker, which a task may use up; [`Duration::MAX`] =
    /// unlimited.
    pub lifetime: Option<Duration>,
}

impl Scale {
    /// A scale in thousandths; `None` = less than the request.
    #[must_use]
    pub fn new(memory: u32, time: u32) -> Option<Self> {
        (memory >= ONCE && time >= ONCE).then_some(Self { memory, time })
    }

    /// Scale of the attempt after one with this outcome. Never less than before; unchanged after
    /// failures that larger requests cannot cure.
    #[must_use]
    pub fn after(self, outcome: &Outcome, asked: Asked<'_>, largest: Largest) -> Self {
        let grow = asked.grow;
        match outcome {
            Outcome::OutOfMemory(_) => {
                let (Some(growth), Some(base)) = (grow.memory, memory(asked.requests)) else {
                    return self;
                };
                // The last bound is the largest amount that can be encoded.
                let bounds = [growth.max, largest.memory, Some(Amount::whole(u32::MAX))];
                let most = bounds.into_iter().flatten().map(|most| most.0).min();
                Self {
                    memory: grown(self.memory, growth.permille, u128::from(base.0), most),
                    ..self
                }
            }
            Outcome::TimeLimit => {
                let (Some(growth), Some(limit)) = (grow.time, asked.time_limit) else {
                    return self;
                };
                let max = growth.max.map(crate::time::nanos);
                let time = grown(self.time, growth.permille, limit.as_nanos(), max);
                // The task would never get a worker whose lifetime is below the time request.
                let request = asked.requests.as_slice().iter();
                let request = request.map(|variant| variant.min_time.as_nanos()).max();
                let lifetime = largest.lifetime.map(crate::time::nanos);
                let time = match request {
                    Some(request) if request > 0 => {
                        grown(self.time, growth.permille, request, lifetime).min(time)
                    }
                    _ => time,
                };
                Self { time, ..self }
            }
            Outcome::Finished
            | Outcome::ExitCode(_)
            | Outcome::Signal(_)
            | Outcome::Killed
            | Outcome::Message(_) => self,
        }
    }

    /// The request, multiplied by this scale.
    #[must_use]
    pub fn requests(self, asked: &RequestVariants) -> RequestVariants {
        let variants = asked.as_slice().iter();
        let variants = variants.map(|variant| self.apply_to(variant)).collect();
        // Larger amounts cannot violate a rule of requests.
        RequestVariants::new(variants).unwrap_or_else(|_| asked.clone())
    }

    /// A time limit, multiplied by this scale.
    #[must_use]
    pub fn time_limit(self, asked: Duration) -> Duration {
        times(asked, self.time)
    }

    fn apply_to(self, variant: &ResourceRequest) -> ResourceRequest {
        let mut variant = variant.clone();
        variant.min_time = times(variant.min_time, self.time);
        for entry in &mut variant.entries {
            if &*entry.resource == MEMORY {
                let units = u128::from(entry.amount.0) * u128::from(self.memory);
                entry.amount = Amount(narrow(units / u128::from(ONCE)));
            }
        }
        variant
    }
}

/// The largest amount of memory that any variant requests as a number.
#[must_use]
pub fn memory(requests: &RequestVariants) -> Option<Amount> {
    let variants = requests.as_slice().iter();
    variants.filter_map(|one| memory_of(&one.entries)).max()
}

/// The amount of memory that a variant requests as a number.
#[must_use]
pub fn memory_of(entries: &[ResourceEntry]) -> Option<Amount> {
    entries
        .iter()
        // A request for all memory cannot grow.
        .filter(|entry| &*entry.resource == MEMORY && entry.policy != Policy::All)
        .map(|entry| entry.amount)
        .max()
}

/// `scale` times the factor, bounded by the multiple of `base` that fits into `most`.
fn grown(scale: u32, permille: u32, base: u128, most: Option<u64>) -> u32 {
    let wanted = u64::from(scale) * u64::from(permille) / u64::from(ONCE);
    // Rounded down: a slightly larger request would fit no worker.
    let bound = most.map_or(u64::MAX, |most| {
        narrow(u128::from(most) * u128::from(ONCE) / base.max(1))
    });
    u32::try_from(wanted.min(bound))
        .unwrap_or(u32::MAX)
        .max(scale)
}

fn times(duration: Duration, scale: u32) -> Duration {
    let nanos = duration.as_nanos().saturating_mul(u128::from(scale)) / u128::from(ONCE);
    Duration::from_nanos(narrow(nanos))
}

fn narrow(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::request::ResourceEntry;

    const HOUR: Duration = Duration::from_secs(3_600);

    /// The growable part of a task.
    struct Task {
        grow: GrowSpec,
        requests: RequestVariants,
        time_limit: Option<Duration>,
    }

    impl Task {
        fn after(&self, scale: Scale, outcome: &Outcome, largest: Largest) -> Scale {
            let asked = Asked {
                grow: self.grow,
                requests: &self.requests,
                time_limit: self.time_limit,
            };
            scale.after(outcome, asked, largest)
        }

        /// Memory and time limit at this scale.
        fn gets(&self, scale: Scale) -> (Option<Amount>, Option<Duration>) {
            let limit = self.time_limit.map(|limit| scale.time_limit(limit));
            (memory(&scale.requests(&self.requests)), limit)
        }
    }

    fn asked(memory: u32, grow: GrowSpec) -> Task {
        let mut request = ResourceRequest::cpus(1);
        request.entries.push(ResourceEntry {
            resource: MEMORY.into(),
            policy: Policy::Compact,
            amount: Amount::whole(memory),
        });
        Task {
            grow,
            requests: RequestVariants::new(vec![request]).expect("valid"),
            time_limit: Some(HOUR),
        }
    }

    fn both(memory_max: Option<u32>, time_max: Option<Duration>) -> GrowSpec {
        GrowSpec {
            memory: Some(Growth {
                permille: 2_000,
                max: memory_max.map(Amount::whole),
            }),
            time: Some(Growth {
                permille: 1_500,
                max: time_max,
            }),
        }
    }

    #[test]
    fn only_what_ran_out_grows() {
        let task = asked(100, both(None, None));
        let once = Scale::default();
        let oom = task.after(once, &Outcome::OutOfMemory(None), Largest::default());
        assert_eq!((oom.memory, oom.time), (2_000, 1_000));
        let both = task.after(oom, &Outcome::TimeLimit, Largest::default());
        assert_eq!((both.memory, both.time), (2_000, 1_500));
        for cause in [Outcome::ExitCode(1), Outcome::Signal(9), Outcome::Killed] {
            assert_eq!(task.after(both, &cause, Largest::default()), both);
        }
        let grown = (Some(Amount::whole(200)), Some(HOUR * 3 / 2));
        assert_eq!(task.gets(both), grown);
    }

    #[test]
    fn growth_ends_at_its_maximum_and_at_what_is_offered() {
        let task = asked(3_000, both(Some(100_000), Some(HOUR * 2)));
        let largest = Largest {
            memory: Some(Amount::whole(8_000)),
            lifetime: None,
        };
        let mut scale = Scale::default();
        let mut sizes = Vec::new();
        for _ in 0..3 {
            scale = task.after(scale, &Outcome::OutOfMemory(None), largest);
            scale = task.after(scale, &Outcome::TimeLimit, largest);
            sizes.push(task.gets(scale));
        }
        assert_eq!(sizes[0], (Some(Amount::whole(6_000)), Some(HOUR * 3 / 2)));
        assert_eq!(sizes[1], (Some(Amount::whole(7_998)), Some(HOUR * 2)));
        assert_eq!(sizes[2], sizes[1], "there is no more");
        let less = Largest {
            memory: Some(Amount::whole(4_000)),
            lifetime: None,
        };
        let same = task.after(scale, &Outcome::OutOfMemory(None), less);
        assert_eq!(same, scale, "it never shrinks");
    }

    #[test]
    fn a_time_request_grows_up_to_the_longest_lifetime() {
        let mut task = asked(1, both(None, None));
        let mut request = task.requests.as_slice()[0].clone();
        request.min_time = HOUR;
        task.requests = RequestVariants::new(vec![request]).expect("valid");
        let largest = Largest {
            memory: None,
            lifetime: Some(HOUR * 5 / 4),
        };
        let scale = task.after(Scale::default(), &Outcome::TimeLimit, largest);
        let requests = scale.requests(&task.requests);
        assert_eq!(requests.as_slice()[0].min_time, HOUR * 5 / 4);
    }

    #[test]
    fn without_a_request_nothing_grows() {
        let mut task = asked(1, both(None, None));
        task.requests = RequestVariants::default();
        task.time_limit = None;
        for outcome in [Outcome::OutOfMemory(None), Outcome::TimeLimit] {
            let scale = task.after(Scale::default(), &outcome, Largest::default());
            assert_eq!(scale, Scale::default());
        }
    }

    #[test]
    fn numbers_without_end_stay_numbers() {
        let mut task = asked(7, both(None, None));
        task.time_limit = Some(Duration::MAX);
        let mut scale = Scale::default();
        for _ in 0..100 {
            scale = task.after(scale, &Outcome::OutOfMemory(None), Largest::default());
            scale = task.after(scale, &Outcome::TimeLimit, Largest::default());
        }
        let most = task.gets(scale).0.expect("it asks for some");
        assert!(most > Amount::whole(7) && most <= Amount::whole(u32::MAX));
    }
}
