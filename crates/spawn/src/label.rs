//! Labels tasks with a number that all their descendants inherit and that other processes of the
//! user can read.
//!
//! The environment identifies the task of a process only while it is readable. It is not readable
//! for a program that made itself unreadable (`ssh-agent`, for any user except root), and it is
//! lost if the process clears it (`env -i`). The limit on file locks, `RLIMIT_LOCKS`, has no such
//! gaps: the kernel has ignored it since 2.4.25, children inherit it, it survives execve, and a
//! process that may signal another one may read its limits (prlimit(2)).
//!
//! ```text
//!  bit 63  62 … 59       58 … 36       35 … 24          23 … 0
//!       0  level, one    launcher's    low bits of      task, counted
//!          bit of four   process id    when it began    in the process
//! ```
//!
//! The label is the task's soft limit. An outermost launcher also sets the hard limit to the label,
//! which an unprivileged process can never raise again. A launcher inside a task (level 1 and
//! above) sees the soft limit of that task and gives its own tasks a lower one. If it loses a task,
//! that task therefore still has the label of the outermost launcher in its hard limit.
//!
//! A process with the label of a task is killed with the task. Two tasks of one process must
//! therefore never have the same label, even across launchers and over time: all launchers share
//! one counter, which skips the labels of living tasks when it wraps around.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::raw::{self, KernelRlimit};
use crate::sys;

const TASK_BITS: u32 = 24;
const BEGAN_BITS: u32 = 12;
const PID_BITS: u32 = 22;
const LEVEL_SHIFT: u32 = TASK_BITS + BEGAN_BITS + PID_BITS;
/// The bit of the outermost level. Inner levels use lower bits.
const OUTERMOST: u32 = LEVEL_SHIFT + 4;
const LEVELS: u32 = 4;

/// Returns the low bits of a number.
const fn low(value: u64, bits: u32) -> u64 {
    value & ((1 << bits) - 1)
}

/// The task numbers of this process.
#[derive(Debug)]
struct Numbers {
    next: u64,
    /// The numbers of tasks that are being created or have not been reaped.
    used: BTreeSet<u64>,
}

impl Numbers {
    /// Returns a number that no other task has.
    fn take(&mut self) -> u64 {
        loop {
            let number = self.next;
            self.next = low(number + 1, TASK_BITS);
            // The loop terminates, because a process has far fewer children than numbers exist.
            if self.used.insert(number) {
                return number;
            }
        }
    }
}

static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers {
    next: 0,
    used: BTreeSet::new(),
});

fn numbers() -> MutexGuard<'static, Numbers> {
    // A panic cannot leave the numbers partially updated.
    NUMBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Identifies one task and all its descendants. No other task of this process gets the same label
/// until this value is dropped.
#[derive(Debug)]
pub(crate) struct Label {
    limit: KernelRlimit,
}

impl Label {
    /// Returns the resource limit of the task.
    pub(crate) const fn limit(&self) -> KernelRlimit {
        self.limit
    }

    /// Returns the label itself.
    pub(crate) const fn value(&self) -> u64 {
        self.limit.soft
    }
}

impl Drop for Label {
    fn drop(&mut self) {
        numbers().used.remove(&low(self.limit.soft, TASK_BITS));
    }
}

/// The labels of one launcher.
#[derive(Debug)]
pub(crate) struct Labels {
    base: u64,
    /// The hard limit of tasks. `None` if the hard limit is set to the label.
    hard: Option<u64>,
}

impl Labels {
    /// Returns `None` if the limits leave no room, because the site has set them or because too
    /// many launchers are nested. Also returns `None` if the launcher's start time is unknown
    /// (`began` is 0), because a later process with the same id would be mistaken for the launcher.
    pub(crate) fn new(pid: libc::pid_t, began: u64) -> Option<Self> {
        let own = sys::limit_of(0, raw::RLIMIT_LOCKS).ok()?;
        Self::within(own, pid, began)
    }

    fn within(own: KernelRlimit, pid: libc::pid_t, began: u64) -> Option<Self> {
        let level = level_of(own.soft).map_or(0, |level| level + 1);
        if level >= LEVELS || began == 0 {
            return None;
        }
        let base = 1 << (OUTERMOST - 1 - level)
            | low(u64::from(pid.unsigned_abs()), PID_BITS) << (TASK_BITS + BEGAN_BITS)
            | low(began, BEGAN_BITS) << TASK_BITS;
        let highest = base | low(u64::MAX, TASK_BITS);
        (highest <= own.hard).then_some(Self {
            base,
            hard: (level > 0).then_some(own.hard),
        })
    }

    /// Returns the label of the next task.
    pub(crate) fn next(&self) -> Label {
        let soft = self.base | numbers().take();
        let hard = self.hard.unwrap_or(soft);
        Label {
            limit: KernelRlimit { soft, hard },
        }
    }
}

/// Returns how many launchers enclose the one that assigned this label. Returns `None` if it is not
/// a label.
fn level_of(limit: u64) -> Option<u32> {
    let level = limit >> LEVEL_SHIFT;
    (level.is_power_of_two() && level < 1 << LEVELS).then(|| LEVELS - 1 - level.trailing_zeros())
}

/// Returns the launcher that assigned a label: its process id, and a predicate for its start time.
pub(crate) fn launcher_of(label: u64) -> Option<(libc::pid_t, impl Fn(u64) -> bool)> {
    level_of(label)?;
    let pid = low(label >> (TASK_BITS + BEGAN_BITS), PID_BITS);
    let began = low(label >> TASK_BITS, BEGAN_BITS);
    let is_launcher = move |other: u64| low(other, BEGAN_BITS) == began;
    Some((libc::pid_t::try_from(pid).ok()?, is_launcher))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNLIMITED: KernelRlimit = KernelRlimit {
        soft: u64::MAX,
        hard: u64::MAX,
    };

    #[test]
    fn a_label_names_its_launcher_and_no_other_task() {
        let labels = Labels::within(UNLIMITED, 4_194_303, 0x12_3456).unwrap();
        let [first, second] = [labels.next(), labels.next()];
        assert_ne!(first.value(), second.value());
        assert_eq!(first.limit().soft, first.limit().hard);
        let (pid, is_launcher) = launcher_of(second.value()).unwrap();
        assert_eq!(pid, 4_194_303);
        assert!(is_launcher(0x12_3456) && !is_launcher(0x12_3457));
        assert!(launcher_of(u64::MAX).is_none());
        assert!(launcher_of(1024).is_none());
        assert!(launcher_of(i64::MAX.unsigned_abs()).is_none());
    }

    #[test]
    fn no_two_tasks_of_a_process_have_one_label() {
        let launchers = [(); 2].map(|()| Labels::within(UNLIMITED, 7, 7).unwrap());
        let labels: Vec<_> = launchers.iter().map(Labels::next).collect();
        assert_ne!(labels[0].value(), labels[1].value());
    }

    #[test]
    fn a_task_that_lives_long_keeps_its_number_for_itself() {
        let last = low(u64::MAX, TASK_BITS);
        let mut numbers = Numbers {
            next: last,
            used: [0, 1, 3].into(),
        };
        let taken = [(); 3].map(|()| numbers.take());
        assert_eq!(taken, [last, 2, 4]);
        numbers.used.remove(&1);
        numbers.next = 0;
        assert_eq!(numbers.take(), 1, "its task has ended");
    }

    #[test]
    fn a_launcher_inside_a_task_keeps_the_outermost_label() {
        let mut around = UNLIMITED;
        let mut labels = Vec::new();
        for pid in 1..=4 {
            around = Labels::within(around, pid, 7).unwrap().next().limit();
            labels.push(around);
        }
        assert!(labels.iter().all(|label| label.hard == labels[0].soft));
        assert!(labels.windows(2).all(|pair| pair[1].soft < pair[0].soft));
        assert!(Labels::within(around, 5, 7).is_none(), "too deep");
    }

    #[test]
    fn a_launcher_that_cannot_be_told_from_a_later_one_gives_no_labels() {
        assert!(Labels::within(UNLIMITED, 1, 0).is_none());
    }

    #[test]
    fn limits_of_the_site_are_left_alone() {
        let site = KernelRlimit {
            soft: 1024,
            hard: 4096,
        };
        assert!(Labels::within(site, 1, 7).is_none());
    }
}
