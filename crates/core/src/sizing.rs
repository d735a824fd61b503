//! The measured needs of a group of tasks, and the requests derived from them for similar tasks.
//!
//! The memory is computed like the first allocation of Tovar et al., "A Job Sizing Strategy for
//! High-Throughput Scientific Workflows" (IEEE TPDS 29(2), 2018), which Work Queue and TaskVine
//! also use for the tasks of a category. It is the size with the smallest expected product of
//! reserved memory and time, provided that tasks that exceed it run again with the largest size.
//! The time is a quantile.
//!
//! Both are derived from histograms. Each class is a sixteenth of a power of two wide, so a
//! histogram has at most a few thousand numbers, regardless of the number and order of tasks.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::resource::amount::{Amount, UNITS_PER_WHOLE};

/// The base-2 logarithm of the number of classes per power of two. Values are overestimated by up
/// to a sixteenth.
const STEP_BITS: u32 = 4;
/// The bits that are set in the last of four consecutive classes.
const COARSE: u16 = 3;

/// With fewer tasks than this, nothing is predicted.
pub const TASKS_MIN: u64 = 10;

/// The default number of retries of a task with learned memory: enough doublings to get from a
/// share of a worker to all of its memory. After an attempt with all of the memory, there is no
/// further retry.
pub const RETRIES: u16 = 16;

/// The default fraction of the tasks whose run time should fit into a worker's remaining lifetime,
/// in thousandths.
pub const PREDICT_DEFAULT: u16 = 950;

/// Shorter run times are not predicted, because little is lost if the tasks are cut off.
const PREDICTED_MIN: Duration = Duration::from_secs(1);

/// How tasks are sized based on the finished tasks of their submission.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct LearnSpec {
    /// How the memory is learned. `None` if it is as requested.
    pub memory: Option<FirstMemory>,
    /// The fraction of the tasks whose run time should fit into a worker's remaining lifetime, in
    /// thousandths. 0 means off, and `None` means [`PREDICT_DEFAULT`].
    pub predict: Option<u16>,
    /// Whether the user set the number of retries of tasks with learned memory.
    pub are_retries_given: bool,
}

/// The memory of the first tasks, before anything is learned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FirstMemory {
    /// An equal share of a worker's memory for as many tasks as can run in parallel.
    Share,
    /// A given amount.
    Given(Amount),
}

impl LearnSpec {
    /// Returns the fraction of the tasks whose run time should fit, in thousandths. 0 means off.
    #[must_use]
    pub fn predict_permille(self) -> u16 {
        self.predict.unwrap_or(PREDICT_DEFAULT)
    }
}

/// Converts KiB to an amount of [`MEMORY`](crate::growth::MEMORY), in whole MiB.
#[must_use]
pub fn memory_amount(kib: u64) -> Amount {
    Amount::whole(
        u32::try_from(kib.div_ceil(1_024))
            .unwrap_or(u32::MAX)
            .max(1),
    )
}

/// Converts an amount of [`MEMORY`](crate::growth::MEMORY) to KiB.
#[must_use]
pub fn kib(amount: Amount) -> u64 {
    let kib = u128::from(amount.0) * 1_024 / u128::from(UNITS_PER_WHOLE);
    u64::try_from(kib).unwrap_or(u64::MAX)
}

/// Measurements of finished tasks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    /// The tasks by class of memory in KiB.
    memory: BTreeMap<u16, Mass>,
    /// The number of tasks by class of run time in milliseconds.
    time: BTreeMap<u16, u64>,
    count: u64,
}

/// The tasks of one class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Mass {
    count: u64,
    run_ms: u64,
}

/// A size that may be too small for some tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FirstSize {
    /// The memory in KiB.
    pub kib: u64,
    /// The number of tasks that needed more.
    pub larger: u64,
    /// The product of reserved memory and time, in KiB · ms, if all tasks start with this size and
    /// larger tasks run once more with the maximum.
    pub cost: u128,
}

impl Needs {
    /// Adds a finished task with its peak memory in KiB.
    pub fn note(&mut self, memory_kib: u64, run: Duration) {
        let run_ms = u64::try_from(run.as_millis()).unwrap_or(u64::MAX);
        let mass = self.memory.entry(class(memory_kib)).or_default();
        mass.count += 1;
        mass.run_ms = mass.run_ms.saturating_add(run_ms);
        *self.time.entry(class(run_ms)).or_default() += 1;
        self.count += 1;
    }

    /// Adds the needs of other tasks.
    pub fn add(&mut self, others: &Self) {
        for (class, mass) in &others.memory {
            let sum = self.memory.entry(*class).or_default();
            sum.count += mass.count;
            sum.run_ms = sum.run_ms.saturating_add(mass.run_ms);
        }
        for (class, count) in &others.time {
            *self.time.entry(*class).or_default() += count;
        }
        self.count += others.count;
    }

    /// Returns the number of tasks.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the size that is sufficient for all of the tasks, in KiB. `None` if there are no
    /// tasks.
    #[must_use]
    pub fn memory_max(&self) -> Option<u64> {
        self.memory.last_key_value().map(|(class, _)| bound(*class))
    }

    /// Returns the product of reserved memory and time, in KiB · ms, if each task gets this much
    /// memory.
    #[must_use]
    pub fn cost(&self, kib: u64) -> u128 {
        let run: u128 = self
            .memory
            .values()
            .map(|mass| u128::from(mass.run_ms))
            .sum();
        u128::from(kib) * run
    }

    /// Returns the size with the smallest expected product of memory and time. `None` if there are
    /// no tasks.
    #[must_use]
    pub fn first_size(&self) -> Option<FirstSize> {
        let largest = u128::from(self.memory_max()?);
        let mut above = Mass::default();
        let mut best: Option<FirstSize> = None;
        // The classes are tried in descending order, so that fewer tasks run twice if costs are
        // equal.
        for (class, mass) in self.memory.iter().rev() {
            let kib = bound(*class);
            // A failed attempt is assumed to last as long as the next one.
            let cost = self.cost(kib) + largest * u128::from(above.run_ms);
            if best.is_none_or(|best| cost < best.cost) {
                best = Some(FirstSize {
                    kib,
                    larger: above.count,
                    cost,
                });
            }
            above.count += mass.count;
            above.run_ms = above.run_ms.saturating_add(mass.run_ms);
        }
        best
    }

    /// Returns the time within which this fraction of the tasks, in thousandths, ended. `None` if
    /// there are no tasks.
    #[must_use]
    pub fn run_time(&self, permille: u32) -> Option<Duration> {
        let wanted = u128::from(self.count) * u128::from(permille);
        let mut seen = 0;
        let found = self.time.iter().find(|(_, count)| {
            seen += u128::from(**count) * 1_000;
            seen >= wanted
        });
        found.map(|(class, _)| Duration::from_millis(bound(*class)))
    }

    /// Returns the required remaining lifetime of a worker for a task. Zero if it is too short to
    /// matter. It is coarser than [`Needs::run_time`], so that the tasks of very many jobs have few
    /// distinct requests.
    #[must_use]
    pub fn min_time(&self, permille: u16) -> Duration {
        let time = self.run_time(permille.into()).unwrap_or_default();
        if permille == 0 || self.count < TASKS_MIN || time < PREDICTED_MIN {
            return Duration::ZERO;
        }
        coarse(time)
    }

    /// Returns the memory of a task, if enough is known.
    #[must_use]
    pub fn memory(&self) -> Option<Amount> {
        let size = self.first_size().filter(|_| self.count >= TASKS_MIN)?;
        Some(memory_amount(size.kib))
    }
}

/// Rounds a time up by at most a quarter, so that there are few distinct values.
#[must_use]
pub fn coarse(time: Duration) -> Duration {
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(bound(class(ms) | COARSE))
}

/// Rounds a time down by at most a quarter, so that there are few distinct values.
#[must_use]
pub fn coarse_below(time: Duration) -> Duration {
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let below = (class(ms) & !COARSE).checked_sub(1);
    Duration::from_millis(below.map_or(0, |class| bound(class) + 1))
}

/// Returns the class of a number: its power of two, and the bits that follow its first bit.
fn class(number: u64) -> u16 {
    let power = u64::BITS - 1 - number.max(1).leading_zeros();
    // Each of the first numbers has a separate class.
    let Some(shift) = power.checked_sub(STEP_BITS) else {
        return u16::try_from(number).unwrap_or(0);
    };
    let within = number >> shift;
    u16::try_from((u64::from(shift) << STEP_BITS) + within).unwrap_or(u16::MAX)
}

/// Returns the largest number of a class.
fn bound(class: u16) -> u64 {
    let class = u64::from(class);
    let steps = 1 << STEP_BITS;
    let Some(above) = class.checked_sub(steps) else {
        return class;
    };
    let shift = above >> STEP_BITS;
    let next = u128::from(class - (shift << STEP_BITS) + 1) << shift;
    u64::try_from(next - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 10;
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_class_is_at_most_a_sixteenth_wide() {
        let mut number = 0_u64;
        while number < u64::MAX / 3 {
            for value in [
                number,
                number + 1,
                number.saturating_mul(2).saturating_sub(1),
            ] {
                let most = bound(class(value));
                assert!(
                    value <= most && most - value <= value / 16,
                    "{value}: {most}"
                );
                assert_eq!(class(most), class(value));
                assert!(most == u64::MAX || class(most + 1) == class(value) + 1);
            }
            number = number + number / 16 + 1;
        }
        assert_eq!(bound(class(u64::MAX)), u64::MAX);
    }

    #[test]
    fn few_large_tasks_run_twice_and_others_do_not() {
        let needs = |small: u32, large: u64| {
            let mut needs = Needs::default();
            for number in 0..100 {
                needs.note(if number < small { 100 } else { large } * MIB, SECOND);
            }
            needs
        };
        let few = needs(98, 6_400);
        let size = few.first_size().expect("there are tasks");
        assert!((100 * MIB..107 * MIB).contains(&size.kib), "{size:?}");
        assert_eq!(size.larger, 2);
        assert!(size.cost * 4 < few.cost(6_400 * MIB), "{size:?}");
        // Running four of ten tasks twice costs more than a third more memory for all of them.
        let many = needs(60, 130);
        let size = many.first_size().expect("there are tasks");
        assert_eq!((size.larger, Some(size.kib)), (0, many.memory_max()));
    }

    #[test]
    fn a_long_task_counts_for_more_than_a_short_one() {
        let mut needs = Needs::default();
        for _ in 0..9 {
            needs.note(100 * MIB, SECOND);
        }
        // Nine tenths of the tasks are small, but the large one takes nearly all of the time.
        needs.note(400 * MIB, SECOND * 100);
        assert_eq!(needs.first_size().map(|size| size.larger), Some(0));
    }

    #[test]
    fn what_is_learned_does_not_depend_on_the_order() {
        let tasks: Vec<u64> = (0..500).map(|number| number * 7_919 % 1_009 + 1).collect();
        let mut forward = Needs::default();
        let mut parts = [Needs::default(), Needs::default()];
        for (number, task) in tasks.iter().enumerate() {
            forward.note(*task * MIB, SECOND * u32::try_from(*task).expect("small"));
            let other = tasks[tasks.len() - 1 - number];
            parts[number % 2].note(other * MIB, SECOND * u32::try_from(other).expect("small"));
        }
        let [mut sum, part] = parts;
        sum.add(&part);
        assert_eq!(sum, forward);
    }

    #[test]
    fn a_coarse_time_below_another_is_hardly_shorter() {
        for ms in (16..100_000).chain([1 << 40]) {
            let time = Duration::from_millis(ms);
            let below = coarse_below(time);
            assert!(below <= time && below >= time * 3 / 4, "{ms}: {below:?}");
            assert_eq!(coarse_below(below), below);
        }
    }

    #[test]
    fn a_quantile_of_the_time_covers_its_share() {
        let mut needs = Needs::default();
        assert_eq!((needs.run_time(900), needs.first_size()), (None, None));
        for number in 1..=100 {
            needs.note(MIB, SECOND * number);
        }
        for (permille, least) in [(500, 50), (900, 90), (1_000, 100), (1, 1)] {
            let time = needs.run_time(permille).expect("there are tasks");
            let range = SECOND * least..=SECOND * least * 17 / 16;
            assert!(range.contains(&time), "{permille}: {time:?}");
        }
    }
}
