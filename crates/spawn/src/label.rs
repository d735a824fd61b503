//! A number that everything a task starts inherits, and that another process of the user can read.
//!
//! The environment tells whose a process is only while it can be read: not that of a program that has made itself
//! unreadable (`ssh-agent`, for any user but root), and not if it was cleared (`env -i`). What nobody thinks of is the
//! limit of file locks, `RLIMIT_LOCKS`: the kernel has not looked at it since 2.4.25, children inherit it, it survives
//! execve, and whoever may signal a process may read it (prlimit(2)).
//!
//! ```text
//!  bit 63  62 … 59       58 … 36       35 … 24          23 … 0
//!       0  level, one    launcher's    low bits of      task, counted
//!          bit of four   process id    when it began
//! ```
//!
//! The label is the task's soft limit. A launcher that is not below another one sets the hard limit to the same
//! number, which an unprivileged process can never raise again. A launcher inside a task (level 1 and so on) finds the
//! soft limit of that task, and gives its own tasks a lower one: so those that it loses still name their outermost
//! launcher in their hard limit.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::raw::KernelRlimit;
use crate::sys;

const TASK_BITS: u32 = 24;
const BEGAN_BITS: u32 = 12;
const PID_BITS: u32 = 22;
const LEVEL_SHIFT: u32 = TASK_BITS + BEGAN_BITS + PID_BITS;
/// Bit of the outermost level; the others are below.
const OUTERMOST: u32 = LEVEL_SHIFT + 4;
const LEVELS: u32 = 4;

/// Low bits of a number.
const fn low(value: u64, bits: u32) -> u64 {
    value & ((1 << bits) - 1)
}

/// The labels of one launcher.
#[derive(Debug)]
pub(crate) struct Labels {
    base: u64,
    /// `None`: the hard limit becomes the label.
    hard: Option<u64>,
    next: AtomicU64,
}

impl Labels {
    /// `None` where the limits leave no room: the site has set them, or there are too many launchers around this one.
    pub(crate) fn new(pid: libc::pid_t, began: u64) -> Option<Self> {
        let own = sys::limit_of(0, libc::RLIMIT_LOCKS).ok()?;
        Self::within(own, pid, began)
    }

    fn within(own: KernelRlimit, pid: libc::pid_t, began: u64) -> Option<Self> {
        let level = level_of(own.soft).map_or(0, |level| level + 1);
        if level >= LEVELS {
            return None;
        }
        let base = 1 << (OUTERMOST - 1 - level)
            | low(u64::from(pid.unsigned_abs()), PID_BITS) << (TASK_BITS + BEGAN_BITS)
            | low(began, BEGAN_BITS) << TASK_BITS;
        let highest = base | low(u64::MAX, TASK_BITS);
        (highest <= own.hard).then_some(Self {
            base,
            hard: (level > 0).then_some(own.hard),
            next: AtomicU64::new(0),
        })
    }

    /// The limit of the next task; its soft one is the label.
    pub(crate) fn next(&self) -> KernelRlimit {
        let count = self.next.fetch_add(1, Ordering::Relaxed);
        let soft = self.base | low(count, TASK_BITS);
        KernelRlimit {
            soft,
            hard: self.hard.unwrap_or(soft),
        }
    }
}

/// How many launchers are around the one that gave this label; `None` if it is none.
fn level_of(limit: u64) -> Option<u32> {
    let level = limit >> LEVEL_SHIFT;
    (level.is_power_of_two() && level < 1 << LEVELS).then(|| LEVELS - 1 - level.trailing_zeros())
}

/// The launcher that gave a label: its process id, and what is known of when it began.
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
        assert_ne!(first.soft, second.soft);
        assert_eq!(first.soft, first.hard);
        let (pid, is_launcher) = launcher_of(second.soft).unwrap();
        assert_eq!(pid, 4_194_303);
        assert!(is_launcher(0x12_3456) && !is_launcher(0x12_3457));
        assert!(launcher_of(u64::MAX).is_none());
        assert!(launcher_of(1024).is_none());
        assert!(launcher_of(i64::MAX.unsigned_abs()).is_none());
    }

    #[test]
    fn a_launcher_inside_a_task_keeps_the_outermost_label() {
        let mut around = UNLIMITED;
        let mut labels = Vec::new();
        for pid in 1..=4 {
            around = Labels::within(around, pid, 0).unwrap().next();
            labels.push(around);
        }
        assert!(labels.iter().all(|label| label.hard == labels[0].soft));
        assert!(labels.windows(2).all(|pair| pair[1].soft < pair[0].soft));
        assert!(Labels::within(around, 5, 0).is_none(), "too deep");
    }

    #[test]
    fn limits_of_the_site_are_left_alone() {
        let site = KernelRlimit {
            soft: 1024,
            hard: 4096,
        };
        assert!(Labels::within(site, 1, 0).is_none());
    }
}
