//! One limit: its places, and the token bucket of a rate.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::bound::{Bound, Rate, SetId};
use crate::id::JobId;
use crate::time::{Time, nanos};

/// The size of a token bucket.
const BURST: Duration = Duration::from_secs(1);
/// The shortest pause between two updates that wait for tokens.
const WAKE_MIN: Duration = Duration::from_millis(2);

#[derive(Clone, Debug, Default)]
pub(super) struct Limit {
    /// The name. `None` for the limit of one job.
    pub(super) name: Option<Box<str>>,
    pub(super) max: Option<u64>,
    pub(super) bucket: Option<Bucket>,
    /// The places that are taken, also while nothing bounds them.
    pub(super) used: u64,
    /// The places that are taken, by job.
    pub(super) users: BTreeMap<JobId, u64>,
    /// For a limit of a job, the number of groups of queues with tasks that count toward it.
    pub(super) groups: u64,
    /// The sets with the limit. For a limit of the server, the families.
    pub(super) sets: BTreeSet<SetId>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    pub(super) rate: Rate,
    /// The content in nanoseconds of waiting. Negative after starts that cost more than it held.
    pub(super) level: i64,
    pub(super) at: Time,
}

impl Bucket {
    fn capacity(&self) -> i64 {
        let capacity = self.rate.interval_ns().max(nanos(BURST));
        i64::try_from(capacity).unwrap_or(i64::MAX)
    }

    pub(super) fn is_full(&self, now: Time) -> bool {
        self.level_at(now) >= self.capacity()
    }

    fn level_at(&self, now: Time) -> i64 {
        let gained = i64::try_from(nanos(now.since(self.at))).unwrap_or(i64::MAX);
        self.level.saturating_add(gained).min(self.capacity())
    }

    /// Returns the level at which a task with this amount may start.
    fn cost(&self, amount: u32) -> i64 {
        let cost = self.rate.interval_ns().saturating_mul(u64::from(amount));
        i64::try_from(cost).unwrap_or(i64::MAX).min(self.capacity())
    }

    /// Returns the level of a bucket with another rate that holds as many starts.
    fn starts_at_rate(&self, rate: Rate, now: Time) -> i64 {
        let level = i128::from(self.level_at(now)) * i128::from(rate.interval_ns());
        let level = level / i128::from(self.rate.interval_ns());
        i64::try_from(level).unwrap_or(i64::MAX)
    }

    pub(super) fn starts(&self, amount: u32, now: Time) -> u64 {
        let starts = self.level_at(now) / self.cost(amount).max(1);
        u64::try_from(starts).unwrap_or(0)
    }

    pub(super) fn take(&mut self, amount: u64, now: Time) {
        let cost = self.rate.interval_ns().saturating_mul(amount);
        let cost = i64::try_from(cost).unwrap_or(i64::MAX);
        (self.level, self.at) = (self.level_at(now).saturating_sub(cost), now);
    }

    /// Returns when one more task than now may start.
    pub(super) fn next_at(&self, amount: u32, now: Time) -> Time {
        let (level, cost) = (self.level_at(now), self.cost(amount).max(1));
        let missing = if level < 0 {
            cost.saturating_sub(level)
        } else {
            cost - level % cost
        };
        now + Duration::from_nanos(u64::try_from(missing).unwrap_or(0)).max(WAKE_MIN)
    }
}

impl Limit {
    /// Returns for how many tasks there are places.
    pub(super) fn places(&self, amount: u32) -> u64 {
        self.max.map_or(u64::MAX, |max| {
            // A task that counts more than the limit, which was lowered, runs alone.
            let amount = u64::from(amount).min(max).max(1);
            max.saturating_sub(self.used) / amount
        })
    }

    pub(super) fn starts(&self, amount: u32, now: Time) -> u64 {
        let bucket = self.bucket.as_ref();
        self.places(amount)
            .min(bucket.map_or(u64::MAX, |bucket| bucket.starts(amount, now)))
    }

    pub(super) fn set(&mut self, max: Option<u32>, rate: Option<Rate>, now: Time) {
        self.max = max.map(u64::from);
        let before = self.bucket;
        self.bucket = rate.map(|rate| Bucket {
            rate,
            level: match before {
                Some(before) => before.starts_at_rate(rate, now),
                // A new limit lets one task start. After a restart, that task may have started.
                None if now == Time(0) => 0,
                None => i64::try_from(rate.interval_ns()).unwrap_or(i64::MAX),
            },
            at: now,
        });
    }

    pub(super) fn bound(&self) -> Option<Bound> {
        let max = self.max.and_then(|max| u32::try_from(max).ok());
        let rate = self.bucket.map(|bucket| Bound::Rate(bucket.rate));
        max.map(Bound::Running).or(rate)
    }
}
