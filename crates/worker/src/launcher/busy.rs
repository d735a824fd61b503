//! Programs that cannot be executed because somebody has them open for writing.
//!
//! Usually the file is being copied and will soon be whole, so the task waits, here or on another worker. But a writer
//! that never closes it would let the task wait for ever, with nobody being told.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hq_core::job::TemplateId;

/// How long tasks of a template wait for their program.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// When the program of a template was found busy first, of those that are.
#[derive(Debug, Default)]
pub(super) struct BusyPrograms(BTreeMap<TemplateId, Instant>);

impl BusyPrograms {
    /// The program is busy; says whether its tasks have waited long enough.
    pub(super) fn found(&mut self, template: TemplateId, program: &str, now: Instant) -> bool {
        let since = *self.0.entry(template).or_insert_with(|| {
            tracing::warn!(
                program,
                "Tasks wait because their program is open for writing (text file busy); they fail after {} s",
                WAIT_MAX.as_secs()
            );
            now
        });
        now.saturating_duration_since(since) >= WAIT_MAX
    }

    /// A task of the template has started, or none will.
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
}
