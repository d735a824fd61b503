//! Computes the current request of a task: a pure function of its template, its own earlier
//! attempts, the needs of the other tasks of its submission, and the offers of workers.

use std::time::Duration;

use crate::growth::{Largest, MEMORY, Scale, memory, min_time, set_memory};
use crate::outcome::Outcome;
use crate::resource::amount::Amount;
use crate::resource::request::{RequestVariants, ResourceRequest};
use crate::sizing::{Needs, coarse_below};
use crate::template::TaskTemplate;
use crate::time::nanos;

/// The memory of the first tasks while no worker could run them.
const FIRST_MEMORY: Amount = Amount::whole(512);

/// The base of the memory [`Scale`] of a task with learned memory, which has no requested memory to
/// serve as a base.
const AUTO_BASE: Amount = Amount::whole(16);

/// How the earlier attempts of a task change its request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Factors {
    /// The growth after attempts that ran out of memory or time.
    pub scale: Scale,
    /// The remaining lifetime that its worker should have, because earlier attempts were cut off by
    /// the end of their workers. Zero if none was.
    pub wanted: Duration,
}

/// The request of a task, relative to its template.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Ask {
    /// The multiple of the memory, the time limit and the time request.
    pub scale: Scale,
    /// An amount of memory that replaces the multiple. `None` if the memory is as requested.
    pub memory: Option<Amount>,
    /// The minimum remaining lifetime of its worker.
    pub min_time: Duration,
}

/// The offers of workers to the tasks of a submission, which bound [`learned`].
#[derive(Clone, Copy, Debug)]
pub struct Offered {
    /// The largest memory of a worker that could run one of the tasks. `None` if there is no such
    /// worker.
    pub memory: Option<Amount>,
    /// The memory of the first tasks. `None` if no worker could run one.
    pub first: Option<Amount>,
    /// The shortest lifetime of a worker. `None` if no worker has a limited lifetime.
    pub lifetime_min: Option<Duration>,
}

/// A failed attempt, with the bounds of the next one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Failed {
    /// The memory of the attempt.
    pub had: Option<Amount>,
    /// The most memory that another task needed.
    pub needed: Amount,
    /// The largest offers of workers.
    pub largest: Largest,
}

impl Factors {
    /// Returns the factors that would apply if no attempt had been cut off.
    #[must_use]
    pub const fn uncut(self) -> Self {
        Self {
            scale: self.scale,
            wanted: Duration::ZERO,
        }
    }
}

impl Ask {
    /// Returns the request as submitted, or as grown. `is_sized` says whether the memory is learned.
    #[must_use]
    pub fn grown(is_sized: bool, scale: Scale) -> Self {
        let is_sized = is_sized && scale != Scale::default();
        let memory = is_sized.then(|| Amount(scaled(AUTO_BASE.0.into(), scale.memory)));
        Self {
            scale,
            memory,
            min_time: Duration::ZERO,
        }
    }

    /// Returns the template with this request.
    #[must_use]
    pub fn task(self, asked: &TaskTemplate) -> TaskTemplate {
        let variants = asked.requests.as_slice().iter();
        let variants = variants.map(|variant| self.variant(variant)).collect();
        let limit = asked.time_limit;
        TaskTemplate {
            // Larger amounts cannot violate the rules for requests.
            requests: RequestVariants::new(variants).unwrap_or_else(|_| asked.requests.clone()),
            time_limit: limit.map(|limit| times(limit, self.scale.time)),
            ..asked.clone()
        }
    }

    fn variant(self, asked: &ResourceRequest) -> ResourceRequest {
        let mut variant = asked.clone();
        variant.min_time = times(variant.min_time, self.scale.time).max(self.min_time);
        for entry in &mut variant.entries {
            if &*entry.resource == MEMORY {
                entry.amount.0 = scaled(entry.amount.0.into(), self.scale.memory);
            }
        }
        if let Some(amount) = self.memory.filter(|_| variant.n_nodes == 0) {
            set_memory(&mut variant, amount);
        }
        variant
    }
}

/// Returns the request of a task. `learned` is the request of tasks without factors, and `most` is
/// the longest remaining lifetime of a worker that could run the task.
#[must_use]
pub fn ask(task: &TaskTemplate, own: Factors, learned: Ask, most: Duration) -> Ask {
    let ask = if own.scale == Scale::default() {
        learned
    } else {
        Ask::grown(task.learn.memory.is_some(), own.scale)
    };
    // Like every other task, it starts only on workers that would have given most tasks enough
    // time. The user may have set a time request meanwhile.
    let min_time = match is_predicted(task) {
        true => learned.min_time.max(own.wanted.min(most)),
        false => Duration::ZERO,
    };
    Ask { min_time, ..ask }
}

/// Returns the request of tasks without factors, given the needs of the finished ones. `before` is
/// their current request.
#[must_use]
pub fn learned(task: &TaskTemplate, needs: &Needs, offered: Offered, before: Ask) -> Ask {
    let memory = task.learn.memory.map(|_| {
        let memory = needs.memory().or(offered.first);
        // If no worker could run them, the request stays unchanged.
        let memory = memory.or(before.memory).unwrap_or(FIRST_MEMORY);
        // A larger amount would wait forever.
        offered.memory.map_or(memory, |most| memory.min(most))
    });
    let permille = if is_predicted(task) {
        task.learn.predict_permille()
    } else {
        0
    };
    // If no worker has a limited lifetime, there is nothing to predict. Long tasks need a chance on
    // every worker, so in the first half of each lifetime every task may start.
    let most = offered.lifetime_min.map(|life| coarse_below(life / 2));
    Ask {
        memory,
        min_time: needs.min_time(permille).min(most.unwrap_or_default()),
        ..before
    }
}

/// Returns whether the run time of a task is predicted. A time request of the user takes
/// precedence.
#[must_use]
pub fn is_predicted(task: &TaskTemplate) -> bool {
    // The interpreter of a call outlives it.
    task.learn.predict_permille() > 0 && !task.is_call && min_time(&task.requests).is_zero()
}

/// Returns the scale of the attempt after one with this outcome. It never decreases, and stays
/// unchanged after failures that larger requests cannot cure.
#[must_use]
pub fn grow(task: &TaskTemplate, before: Scale, outcome: &Outcome, failed: Failed) -> Scale {
    let (grow, largest) = (task.retry.grow, failed.largest);
    let is_sized = task.learn.memory.is_some();
    let mut scale = before;
    match outcome {
        Outcome::OutOfMemory(_) if is_sized => {
            let more = failed
                .had
                .map(|had| more(had, failed.needed, largest.memory));
            scale.memory = more.map_or(before.memory, auto_scale);
        }
        Outcome::OutOfMemory(_) => {
            if let (Some(growth), Some(base)) = (grow.memory, memory(&task.requests)) {
                // The last bound is the largest amount that can be encoded.
                let bounds = [growth.max, largest.memory, Some(Amount::whole(u32::MAX))];
                let most = bounds.into_iter().flatten().map(|most| most.0).min();
                scale.memory = grown(before.memory, growth.permille, u128::from(base.0), most);
            }
        }
        Outcome::TimeLimit => {
            if let (Some(growth), Some(limit)) = (grow.time, task.time_limit) {
                let up_to = |base: Duration, most: Option<Duration>| {
                    let most = most.map(nanos);
                    grown(before.time, growth.permille, base.as_nanos(), most)
                };
                scale.time = up_to(limit, growth.max);
                // No worker could meet a time request longer than the longest lifetime.
                let request = min_time(&task.requests);
                if !request.is_zero() {
                    scale.time = scale.time.min(up_to(request, largest.lifetime));
                }
            }
            // Once it has grown, the request is no longer learned.
            let had = failed.had.filter(|_| is_sized && scale != before);
            scale.memory = had.map_or(before.memory, auto_scale);
        }
        Outcome::Finished
        | Outcome::ExitCode(_)
        | Outcome::Signal(_)
        | Outcome::Killed
        | Outcome::Message(_) => {}
    }
    scale.memory = scale.memory.max(before.memory);
    scale
}

/// Returns whether an attempt with learned memory had as much memory as the largest offer.
#[must_use]
pub fn had_most(had: Amount, largest: Option<Amount>) -> bool {
    auto_scale(more(had, Amount::default(), largest)) <= auto_scale(had)
}

/// Returns more memory for a task that exhausted `had`: the known need of other tasks or twice
/// `had`, whichever is larger, but at most the largest offer.
fn more(had: Amount, needed: Amount, largest: Option<Amount>) -> Amount {
    let more = needed.max(Amount(had.0.saturating_mul(2)));
    largest.map_or(more, |largest| more.min(largest)).max(had)
}

fn auto_scale(amount: Amount) -> u32 {
    // Rounded down, because a slightly larger request would fit on no worker.
    let permille = u128::from(amount.0) * 1_000 / u128::from(AUTO_BASE.0);
    u32::try_from(permille).unwrap_or(u32::MAX).max(1_001)
}

fn times(duration: Duration, permille: u32) -> Duration {
    Duration::from_nanos(scaled(duration.as_nanos(), permille))
}

fn scaled(number: u128, permille: u32) -> u64 {
    let scaled = number.saturating_mul(permille.into()) / 1_000;
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// Returns `scale` times the factor, bounded by the multiple of `base` that fits into `most`.
fn grown(scale: u32, permille: u32, base: u128, most: Option<u64>) -> u32 {
    let wanted = u128::from(scale) * u128::from(permille) / 1_000;
    // Rounded down, because a slightly larger request would fit on no worker.
    let bound = most.map_or(u128::MAX, |most| u128::from(most) * 1_000 / base.max(1));
    let most = u32::try_from(wanted.min(bound)).unwrap_or(u32::MAX);
    most.max(scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::growth::{GrowSpec, Growth};
    use crate::resource::request::{Policy, ResourceEntry};
    use crate::testing::template;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn after(task: &TaskTemplate, scale: Scale, outcome: &Outcome, largest: Largest) -> Scale {
        let failed = Failed {
            largest,
            ..Failed::default()
        };
        grow(task, scale, outcome, failed)
    }

    /// Returns the memory and the time limit at this scale.
    fn gets(task: &TaskTemplate, scale: Scale) -> (Option<Amount>, Option<Duration>) {
        let task = Ask::grown(task.learn.memory.is_some(), scale).task(task);
        (memory(&task.requests), task.time_limit)
    }

    fn asked(memory: u32, grow: GrowSpec) -> TaskTemplate {
        let mut request = ResourceRequest::cpus(1);
        request.entries.push(ResourceEntry {
            resource: MEMORY.into(),
            policy: Policy::Compact,
            amount: Amount::whole(memory),
        });
        let mut task = template(&["true"]);
        task.requests = RequestVariants::new(vec![request]).expect("valid");
        task.time_limit = Some(HOUR);
        task.retry.grow = grow;
        task
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
    fn what_a_task_asks_for_follows_from_its_own_attempts_and_from_others() {
        let sized = {
            let mut task = template(&["true"]);
            task.learn.memory = Some(crate::sizing::FirstMemory::Share);
            task
        };
        let learned = Ask {
            memory: Some(Amount::whole(500)),
            min_time: HOUR / 4,
            ..Ask::default()
        };
        let (once, grown) = (Scale::default(), Scale::new(80_000, 1_000));
        let grown = grown.expect("more than asked for");
        // The scale, the wanted and the offered time in quarters of an hour, and the resulting
        // memory and time.
        for (scale, wanted, most, memory, time) in [
            (once, 0, 8, 500, 1),
            (once, 6, 8, 500, 6),
            (once, 6, 4, 500, 4),
            (once, 6, 0, 500, 1),
            (grown, 0, 8, 1_280, 1),
            (grown, 6, 4, 1_280, 4),
        ] {
            let wanted = HOUR / 4 * wanted;
            let asked = ask(&sized, Factors { scale, wanted }, learned, HOUR / 4 * most);
            let all = (asked.scale, asked.memory, asked.min_time);
            assert_eq!(all, (scale, Some(Amount::whole(memory)), HOUR / 4 * time));
        }
    }

    #[test]
    fn only_what_ran_out_grows() {
        let task = asked(100, both(None, None));
        let once = Scale::default();
        let oom = after(&task, once, &Outcome::OutOfMemory(None), Largest::default());
        assert_eq!((oom.memory, oom.time), (2_000, 1_000));
        let both = after(&task, oom, &Outcome::TimeLimit, Largest::default());
        assert_eq!((both.memory, both.time), (2_000, 1_500));
        for cause in [Outcome::ExitCode(1), Outcome::Signal(9), Outcome::Killed] {
            assert_eq!(after(&task, both, &cause, Largest::default()), both);
        }
        let grown = (Some(Amount::whole(200)), Some(HOUR * 3 / 2));
        assert_eq!(gets(&task, both), grown);
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
            scale = after(&task, scale, &Outcome::OutOfMemory(None), largest);
            scale = after(&task, scale, &Outcome::TimeLimit, largest);
            sizes.push(gets(&task, scale));
        }
        assert_eq!(sizes[0], (Some(Amount::whole(6_000)), Some(HOUR * 3 / 2)));
        assert_eq!(sizes[1], (Some(Amount::whole(7_998)), Some(HOUR * 2)));
        assert_eq!(sizes[2], sizes[1], "there is no more");
        let less = Largest {
            memory: Some(Amount::whole(4_000)),
            lifetime: None,
        };
        let same = after(&task, scale, &Outcome::OutOfMemory(None), less);
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
        let scale = after(&task, Scale::default(), &Outcome::TimeLimit, largest);
        let requests = Ask::grown(false, scale).task(&task).requests;
        assert_eq!(requests.as_slice()[0].min_time, HOUR * 5 / 4);
    }

    #[test]
    fn without_a_request_nothing_grows() {
        let mut task = asked(1, both(None, None));
        task.requests = RequestVariants::default();
        task.time_limit = None;
        for outcome in [Outcome::OutOfMemory(None), Outcome::TimeLimit] {
            let scale = after(&task, Scale::default(), &outcome, Largest::default());
            assert_eq!(scale, Scale::default());
        }
    }

    #[test]
    fn numbers_without_end_stay_numbers() {
        let mut task = asked(7, both(None, None));
        task.time_limit = Some(Duration::MAX);
        let mut scale = Scale::default();
        for _ in 0..100 {
            scale = after(
                &task,
                scale,
                &Outcome::OutOfMemory(None),
                Largest::default(),
            );
            scale = after(&task, scale, &Outcome::TimeLimit, Largest::default());
        }
        let most = gets(&task, scale).0.expect("it asks for some");
        assert!(most > Amount::whole(7) && most <= Amount::whole(u32::MAX));
    }
}
