//! Starts a new process on the CPU of the thread that creates it.
//!
//! The kernel looks for the idlest CPU when a process is created and again at its exec. The first
//! choice is misled, because the creating thread still counts as running although it is about to
//! sleep until the child's exec. The child therefore queues behind other processes on another CPU,
//! with cold caches, while its parent's CPU becomes idle. The second choice may then move it back.
//! A thread that is pinned to its CPU during the clone passes that CPU on to its child. The child
//! inherits the pinning and releases both right before its exec, so that the second choice is
//! unrestricted and the parent may wake up on any CPU.
//!
//! This costs a few system calls and gains nothing as long as every process finds an idle CPU
//! anyway. A thread is therefore pinned only while its short-lived children have to wait for a CPU.
//! This is measured when they exit: see [`CpuPressure`].
//!
//! Both get back the thread's previous mask. A thread that may run on every CPU of its control
//! group gets a mask of all ones instead: the kernel keeps an explicit mask, and would restrict the
//! thread to it when the group gets more CPUs later.

use std::cell::Cell;

use crate::event::{MonotonicNs, ResourceUsage};
use crate::sys;

/// The times of a child that has ended, in nanoseconds. Together they show how busy the machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChildTimes {
    /// From the start of the child's creation until its exit was noticed.
    pub(crate) lived: u64,
    /// The time that the child spent on a CPU.
    pub(crate) on_cpu: u64,
}

impl ChildTimes {
    pub(crate) const fn new(
        started: MonotonicNs,
        ended: MonotonicNs,
        usage: &ResourceUsage,
    ) -> Self {
        let on_cpu_us = usage.user_us.saturating_add(usage.system_us);
        Self {
            lived: ended.since(started),
            on_cpu: on_cpu_us.saturating_mul(1000),
        }
    }
}

/// Tracks whether recent children had to wait for a CPU.
///
/// It keeps two moving averages: the time that children spent on a CPU, and the rest of their
/// lives. A sleeping child looks like a waiting one, but pinning costs such a child almost nothing.
#[derive(Debug, Clone, Copy)]
struct CpuPressure {
    on_cpu: u64,
    off_cpu: u64,
    is_crowded: bool,
}

impl CpuPressure {
    /// The number of children that the averages cover.
    const CHILDREN: u64 = 64;
    /// The maximum contribution of one child, so that a long-lived one does not dominate the
    /// averages for long.
    const LIFE_MAX_NS: u64 = 5_000_000;
    /// The maximum overhead of creating a process and noticing its exit on an idle machine.
    const OVERHEAD_NS: u64 = 100_000;

    /// The initial state. Pinning threads when it does not help costs little; not pinning when it
    /// would help costs much.
    const UNKNOWN: Self = Self {
        on_cpu: 0,
        off_cpu: 0,
        is_crowded: true,
    };

    fn learn(&mut self, life: ChildTimes) {
        let average = |average: u64, new: u64| {
            (average * (Self::CHILDREN - 1) + new.min(Self::LIFE_MAX_NS)) / Self::CHILDREN
        };
        self.on_cpu = average(self.on_cpu, life.on_cpu);
        self.off_cpu = average(self.off_cpu, life.lived.saturating_sub(life.on_cpu));
        let much = self.on_cpu / 2 + Self::OVERHEAD_NS;
        // Children of pinned threads wait less. Only a much shorter wait means that the machine has
        // become idle.
        self.is_crowded = self.off_cpu > if self.is_crowded { much / 2 } else { much };
    }
}

/// The affinity that the child restores after a clone on the thread's own CPU.
#[derive(Debug)]
pub(crate) struct CpuPin<'a> {
    /// The pinned thread.
    pub(crate) thread: libc::pid_t,
    /// The thread's previous mask in the kernel's layout.
    pub(crate) mask: &'a [usize],
    /// Set by the child when it has released the thread.
    pub(crate) released: Cell<bool>,
}

/// Pins one thread to its CPU and releases it.
#[derive(Debug)]
pub(crate) struct Placement {
    thread: libc::pid_t,
    online: usize,
    mask: Vec<usize>,
    one: Vec<usize>,
    /// The last checked mask, and whether it contains all CPUs that the control group allows.
    known: Option<(Vec<usize>, bool)>,
    /// Whether pinning works on this machine. Cleared when the kernel rejects it.
    usable: bool,
    pressure: CpuPressure,
}

/// The number of CPUs in the first mask. A machine with more CPUs rejects it as too short.
const CPUS: usize = 1024;
const CPUS_MAX: usize = 1 << 16;
const WORD_BITS: usize = usize::BITS as usize;

impl Placement {
    /// Creates the state for the calling thread.
    pub(crate) fn new() -> Self {
        let mut placement = Self {
            thread: sys::gettid(),
            online: sys::cpus_online(),
            mask: Vec::new(),
            one: Vec::new(),
            known: None,
            usable: true,
            pressure: CpuPressure::UNKNOWN,
        };
        let mut cpus = CPUS;
        while cpus <= CPUS_MAX {
            placement.mask.resize(cpus / WORD_BITS, 0);
            placement.one.resize(cpus / WORD_BITS, 0);
            match sys::affinity(&mut placement.mask) {
                Ok(()) => return placement,
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => cpus *= 2,
                Err(_) => break,
            }
        }
        placement.usable = false;
        placement
    }

    /// Pins the calling thread, which must be the one that called [`Placement::new`], to its
    /// current CPU. Returns `None` and does not pin it if that would be useless or is impossible.
    pub(crate) fn hold(&mut self) -> Option<CpuPin<'_>> {
        if !self.usable || !self.pressure.is_crowded || sys::affinity(&mut self.mask).is_err() {
            return None;
        }
        let cpus: usize = self
            .mask
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum();
        if cpus < 2 {
            return None;
        }
        if cpus >= self.online || self.is_all_that_is_allowed() {
            self.mask.fill(usize::MAX);
        }
        let cpu = sys::current_cpu()?;
        self.one.fill(0);
        *self.one.get_mut(cpu / WORD_BITS)? = 1 << (cpu % WORD_BITS);
        if let Err(error) = sys::set_affinity(0, &self.one) {
            // EINVAL means that the thread was moved and this CPU is no longer allowed. Other
            // errors are permanent.
            if error.raw_os_error() != Some(libc::EINVAL) {
                tracing::debug!(%error, "cannot start processes on the CPU of their creator");
                self.usable = false;
            }
            return None;
        }
        Some(CpuPin {
            thread: self.thread,
            mask: &self.mask,
            released: Cell::new(false),
        })
    }

    /// Returns whether only the control group restricts the calling thread to its current mask
    /// `mask`.
    fn is_all_that_is_allowed(&mut self) -> bool {
        if let Some((mask, answer)) = &self.known
            && *mask == self.mask
        {
            return *answer;
        }
        // The kernel intersects a mask of all ones with the CPUs of the group.
        let all = vec![usize::MAX; self.mask.len()];
        let mut widest = vec![0; self.mask.len()];
        let answer = sys::set_affinity(0, &all).is_ok()
            && sys::affinity(&mut widest).is_ok()
            && widest == self.mask;
        if !answer && let Err(error) = sys::set_affinity(0, &self.mask) {
            // The group has changed in the meantime.
            tracing::debug!(%error, "the CPUs of a spawner thread were widened");
        }
        self.known = Some((self.mask.clone(), answer));
        answer
    }

    /// Records the times of an ended child of this thread.
    pub(crate) fn learn(&mut self, life: ChildTimes) {
        self.pressure.learn(life);
    }

    /// Restores the calling thread's mask if the child did not do so.
    pub(crate) fn release(&mut self) {
        if sys::set_affinity(0, &self.mask).is_err() {
            // None of these CPUs is allowed anymore.
            self.mask.fill(usize::MAX);
            if let Err(error) = sys::set_affinity(0, &self.mask) {
                tracing::error!(%error, "a spawner thread stays pinned to one CPU");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> Vec<usize> {
        let mut mask = vec![0; CPUS_MAX / WORD_BITS];
        sys::affinity(&mut mask).expect("this thread's mask");
        mask
    }

    fn life(lived_us: u64, on_cpu_us: u64) -> ChildTimes {
        ChildTimes {
            lived: lived_us * 1000,
            on_cpu: on_cpu_us * 1000,
        }
    }

    #[test]
    fn threads_are_held_while_children_wait_for_a_cpu() {
        let mut pressure = CpuPressure::UNKNOWN;
        // Measured with `/bin/true`: on an idle machine, next to busy programs, and next to busy
        // programs with pinned threads.
        let (alone, crowded, held) = (life(880, 780), life(2_500, 880), life(1_200, 780));
        let mut after = |children, life| {
            for _ in 0..children {
                pressure.learn(life);
            }
            pressure.is_crowded
        };
        assert!(!after(64, alone));
        assert!(after(64, crowded));
        assert!(after(1_000, held), "better, since they are held");
        assert!(!after(200, alone));
        assert!(!after(1, life(3_600_000_000, 0)), "one that slept");
        assert!(!after(1_000, life(250, 170)), "very short ones, alone");
    }

    #[test]
    fn a_thread_is_held_to_one_cpu_and_released() {
        let before = allowed();
        let mut placement = Placement::new();
        let Some(pin) = placement.hold() else {
            let cpus: u32 = before.iter().map(|word| word.count_ones()).sum();
            assert_eq!(cpus, 1, "not held although there is a choice");
            return;
        };
        assert_eq!(pin.thread, sys::gettid());
        let held = allowed();
        assert_eq!(held.iter().map(|word| word.count_ones()).sum::<u32>(), 1);
        placement.release();
        assert_eq!(allowed(), before);
    }

    #[test]
    fn a_thread_that_only_its_control_group_restricts_gets_all_it_may_ever_have() {
        let before = allowed();
        sys::set_affinity(0, &vec![usize::MAX; before.len()]).expect("cut by the control group");
        let widest = allowed();
        let mut placement = Placement::new();
        // Pretend that the machine has more CPUs than the group.
        placement.online = CPUS_MAX;
        if let Some(pin) = placement.hold() {
            assert!(pin.mask.iter().all(|word| *word == usize::MAX));
            placement.release();
        } else {
            let cpus: u32 = widest.iter().map(|word| word.count_ones()).sum();
            assert_eq!(cpus, 1, "not held although there is a choice");
        }
        assert_eq!(allowed(), widest);
    }

    #[test]
    fn a_mask_that_somebody_has_set_is_put_back() {
        let mut placement = Placement::new();
        let cpu = sys::current_cpu().expect("a CPU");
        let mut one = vec![0; placement.mask.len()];
        one[cpu / WORD_BITS] = 1 << (cpu % WORD_BITS);
        let is_restricted = allowed()[..one.len()] != one;
        sys::set_affinity(0, &one).expect("the CPU this runs on, or ran on a moment ago");
        placement.mask.clone_from(&one);
        for _ in 0..2 {
            assert_eq!(placement.is_all_that_is_allowed(), !is_restricted);
            assert_eq!(&allowed()[..one.len()], one);
        }
    }

    #[test]
    fn a_thread_with_one_cpu_is_left_alone() {
        let mut placement = Placement::new();
        let cpu = sys::current_cpu().expect("a CPU");
        let mut one = vec![0; CPUS_MAX / WORD_BITS];
        one[cpu / WORD_BITS] = 1 << (cpu % WORD_BITS);
        sys::set_affinity(0, &one).expect("the CPU this runs on, or ran on a moment ago");
        assert!(placement.hold().is_none());
        assert_eq!(allowed(), one);
    }
}
