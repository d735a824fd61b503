//! Decides whether to send tasks of a job to workers ahead of their turn.

use std::time::Duration;

use super::{Job, TaskSlot};
use crate::time::Time;

/// The upper bound of the credit earned by tasks whose turn has come.
const CREDIT_MAX: i16 = 512;

/// Below this credit, nothing is sent ahead for a while.
const CREDIT_MIN: i16 = -64;

/// The length of the first pause. Each further pause is twice as long.
const PAUSE: Duration = Duration::from_secs(1);

/// The number of doublings. The longest pause is a minute.
const PAUSES_MAX: u8 = 6;

/// The balance of tasks sent ahead: those that were used minus those that were returned unused.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AheadCredit {
    credit: i16,
    pauses: u8,
    /// The end of the last pause.
    until: Option<Time>,
}

impl AheadCredit {
    /// Notes that it is the turn of a task that was sent ahead.
    pub(crate) fn note_turn(&mut self) {
        self.credit = self.credit.saturating_add(1).min(CREDIT_MAX);
        if self.credit == CREDIT_MAX {
            self.pauses = 0;
        }
    }

    /// Notes a task that its worker returned on its own initiative.
    pub(crate) fn note_returned(&mut self, now: Time) {
        // Returns of tasks sent before the pause do not count, because a batch may be returned at
        // once.
        if !self.pays(now) {
            return;
        }
        self.credit = self.credit.saturating_sub(1);
        if self.credit < CREDIT_MIN {
            self.until = Some(now + PAUSE * 2_u32.pow(self.pauses.into()));
            self.pauses = PAUSES_MAX.min(self.pauses + 1);
            self.credit = 0;
        }
    }

    /// Returns whether to send further tasks ahead.
    pub(crate) fn pays(&self, now: Time) -> bool {
        self.until.is_none_or(|until| until <= now)
    }
}

impl Job {
    /// Returns whether a worker with an earlier instance of a task was lost, so that the task has
    /// had more instances than failed attempts.
    pub(crate) fn was_lost(&self, slot: TaskSlot) -> bool {
        let submit = self.submit(slot);
        submit.is_some_and(|submit| {
            let first = submit.tasks.first_instance().0;
            let record = submit.tasks.record(slot.index);
            record.is_some_and(|record| {
                record.instance().0.saturating_sub(first) > u32::from(record.retry_count())
            })
        })
    }

    /// Returns whether an instance of a task was lost or failed, so that its next instance differs
    /// from those of its neighbors.
    pub(crate) fn was_tried(&self, slot: TaskSlot) -> bool {
        let submit = self.submit(slot);
        submit.is_some_and(|submit| {
            let record = submit.tasks.record(slot.index);
            record.is_some_and(|record| {
                // After a restart of the server, all other tasks may have the same first instance.
                record.instance() != submit.tasks.first_instance()
                    || record.crash_count() > 0
                    || record.retry_count() > 0
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn returned(credit: &mut AheadCredit, count: u32, now: Time) {
        (0..count).for_each(|_| credit.note_returned(now));
    }

    #[test]
    fn what_comes_back_again_and_again_is_sent_ahead_less_and_less() {
        let mut credit = AheadCredit::default();
        let mut now = Time(1);
        for pause in [1, 2, 4, 8, 16, 32, 64, 64] {
            returned(&mut credit, 64, now);
            assert!(credit.pays(now), "that may be chance");
            credit.note_returned(now);
            assert!(!credit.pays(now + Duration::from_millis(pause * 1_000 - 1)));
            now = now + Duration::from_secs(pause);
            assert!(credit.pays(now));
        }
    }

    #[test]
    fn what_comes_back_in_one_go_is_one_pause() {
        let mut credit = AheadCredit::default();
        returned(&mut credit, 10_000, Time(1));
        assert!(credit.pays(Time(1) + PAUSE));
    }

    #[test]
    fn a_few_that_come_back_are_outweighed_by_those_whose_turn_comes() {
        let mut credit = AheadCredit::default();
        for _ in 0..100 {
            returned(&mut credit, 30, Time(1));
            (0..31).for_each(|_| credit.note_turn());
        }
        assert!(credit.pays(Time(1)));
        // Even with a high credit, a series of returns is noticed.
        (0..10_000).for_each(|_| credit.note_turn());
        returned(&mut credit, 577, Time(1));
        assert!(!credit.pays(Time(1)));
    }
}
