//! Programs that cannot be executed because a process has them open for writing.
//!
//! Usually the file is still being copied and will soon be complete, so the task waits, on this
//! worker or on another. The wait is bounded, because a writer may never close the file.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hq_core::job::TemplateId;

/// How long tasks of a template wait for their program.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// How long a program counts as busy after it was last found busy. This is longer than the pause
/// until a waiting task is launched again, on this worker or on another.
const FRESH: Duration = Duration::from_secs(60);

/// The first and the last failure of a series without a longer break.
#[derive(Clone, Copy, Debug)]
struct BusySpan {
    first: Instant,
    last: Instant,
}

/// Templates whose programs were found busy.
#[derive(Debug, Default)]
pub(super) struct BusyPrograms(BTreeMap<TemplateId, BusySpan>);

impl BusyPrograms {
    /// Records that the program was busy. Returns whether its tasks have waited long enough.
    pub(super) fn found(&mut self, template: TemplateId, program: &str, now: Instant) -> bool {
        let before = self.0.get(&template).copied();
        // If the last failure was long ago, the tasks ran elsewhere or were canceled, and the wait
        // starts over.
        let before = before.filter(|found| now.saturating_duration_since(found.last) < FRESH);
        if before.is_none() {
            tracing::warn!(
                program,
                "Tasks wait because their program is open for writing (text file busy); they fail after {} s",
                WAIT_MAX.as_secs()
            );
        }
        // The wait is measured from the first failure of any task of the template.
        let first = before.map_or(now, |found| found.first);
        self.0.insert(template, BusySpan { first, last: now });
        now.saturating_duration_since(first) >= WAIT_MAX
    }

    /// Forgets a template whose program could be executed, or that has no more tasks.
    pub(super) fn forget(&mut self, template: TemplateId) {
        self.0.remove(&template);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_program_is_waited_for_but_not_for_ever() {
        let mut busy = BusyPrograms::default();
        let start = Instant::now();
        let mut found = |template, seconds| {
            let now = start + Duration::from_secs(seconds);
            busy.found(TemplateId(template), "program", now)
        };
        assert!(!found(1, 0) && !found(1, 59) && !found(2, 59));
        assert!(found(1, 60) && !found(2, 61));
        busy.forget(TemplateId(1));
        assert!(!busy.found(TemplateId(1), "program", start + WAIT_MAX));
    }

    #[test]
    fn a_program_that_is_busy_again_later_is_waited_for_again() {
        let mut busy = BusyPrograms::default();
        let start = Instant::now();
        let mut found = |seconds| {
            let now = start + Duration::from_secs(seconds);
            busy.found(TemplateId(1), "program", now)
        };
        assert!(!found(0) && !found(15));
        // The tasks were canceled, and new ones arrive an hour later.
        assert!(!found(3600) && !found(3650));
        assert!(found(3661));
    }
}
