//! Notifications about the end of a job or its first failure, and their outcomes.
//!
//! A notification becomes due once. It is owed until the shell reports its delivery, even across a
//! server restart, so it is sent at least once.

use super::audience::owe_notices;
use super::{ChangeKind, Ctx, ServerState};
use crate::id::JobId;
use crate::notice::{NoticeKey, NoticeOutcome, NoticeState};

impl ServerState {
    /// Records the outcome of a notification.
    pub(super) fn note_notified(
        &mut self,
        ctx: &mut Ctx<'_>,
        key: NoticeKey,
        attempts: u32,
        error: Option<Box<str>>,
    ) {
        let job = self.jobs.get_mut(key.job);
        let notice = job.and_then(|job| job.notices.get_mut(key.number as usize));
        // The job may have been forgotten in the meantime.
        let Some(notice) = notice.filter(|notice| notice.state == NoticeState::Owed) else {
            return;
        };
        let outcome = NoticeOutcome {
            at: ctx.now.wall,
            attempts,
            error,
        };
        notice.state = NoticeState::Done(outcome.clone());
        let event = notice.spec.event;
        let notified = ChangeKind::JobNotified {
            key,
            event,
            outcome,
        };
        ctx.persist(notified);
    }

    /// Restores the outcome of a notification from an earlier run of the server. Must be called
    /// after the last submit has been restored.
    pub fn restore_notified(&mut self, key: NoticeKey, outcome: NoticeOutcome) {
        let job = self.jobs.get_mut(key.job);
        if let Some(notice) = job.and_then(|job| job.notices.get_mut(key.number as usize)) {
            notice.state = NoticeState::Done(outcome);
        }
    }

    /// Resends the notifications that an earlier run of the server owed.
    pub(super) fn restore_owed_notices(&mut self, ctx: &mut Ctx<'_>) {
        let with_notices = self
            .jobs
            .all()
            .values()
            .filter(|job| !job.notices.is_empty());
        // Some of them may have been sent already, but a repetition is better than a loss.
        let ids: Vec<JobId> = with_notices.map(|job| job.id).collect();
        for id in ids {
            owe_notices(ctx, id, &mut self.jobs);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Command, Effect, Input, JobRecord};
    use super::*;
    use crate::range::IdArray;
    use crate::selector::Selector;
    use crate::task::TaskState;
    use crate::template::{NotifyEvent, NotifySpec, NotifyTarget, SubmitSpec};
    use crate::testing::{NOW, apply, array_submit, request, template};

    const FIRST: NoticeKey = NoticeKey {
        job: JobId(1),
        number: 0,
    };

    fn notices(effects: &[Effect]) -> Vec<NoticeKey> {
        let keys = effects.iter().filter_map(|effect| {
            if let Effect::Notify(key) = effect {
                Some(*key)
            } else {
                None
            }
        });
        keys.collect()
    }

    /// Returns a submit with one task and with notifications about its end and its failure.
    fn spec() -> SubmitSpec {
        let notify = |event| NotifySpec {
            target: NotifyTarget::Command("mail".into()),
            event,
        };
        let mut submit = array_submit(1, template(&["true"]));
        submit.notify = vec![notify(NotifyEvent::End), notify(NotifyEvent::Failure)];
        submit
    }

    fn submitted() -> ServerState {
        let mut state = ServerState::new("test");
        let effects = request(&mut state, Command::Submit(Box::new(spec())));
        assert!(notices(&effects).is_empty(), "nothing has happened");
        state
    }

    fn cancel() -> Command {
        Command::CancelJobs {
            jobs: Selector::Ids(IdArray::single(1)),
            reason: "".into(),
        }
    }

    fn outcome(state: &ServerState) -> &NoticeState {
        &state.jobs()[&JobId(1)].notices[0].state
    }

    #[test]
    fn an_end_is_told_once_and_what_became_of_it_is_stored() {
        let mut state = submitted();
        let effects = request(&mut state, cancel());
        assert_eq!(notices(&effects), [FIRST], "no task has failed");
        assert!(notices(&request(&mut state, cancel())).is_empty());
        let told = || Input::Notified {
            key: FIRST,
            attempts: 2,
            error: None,
        };
        let effects = apply(&mut state, told());
        let is_stored = |effect: &Effect| {
            matches!(effect, Effect::Persist(change)
                if matches!(change.kind, ChangeKind::JobNotified { .. }))
        };
        assert_eq!(effects.iter().filter(|e| is_stored(e)).count(), 1);
        let done = NoticeOutcome {
            at: NOW.wall,
            attempts: 2,
            error: None,
        };
        assert_eq!(outcome(&state), &NoticeState::Done(done));
        let again = apply(&mut state, told());
        assert!(!again.iter().any(is_stored), "only the first counts");
    }

    /// Returns the notifications sent after a restart if the first one has the given stored
    /// outcome.
    fn restored(outcome: Option<NoticeOutcome>) -> Vec<NoticeKey> {
        let mut state = ServerState::new("test");
        let job = JobId(1);
        state.restore_job(JobRecord {
            id: job,
            name: "job".into(),
            max_fails: None,
            is_open: false,
            cancel_reason: None,
            submitted: NOW.wall,
            is_completed: true,
        });
        let task = IdArray::single(0);
        let submitted = state.restore_submit(job, task.clone(), &Arc::new(spec()));
        submitted.expect("it was accepted before");
        state.restore_dropped(job, &task, TaskState::Canceled, NOW.wall);
        if let Some(outcome) = outcome {
            state.restore_notified(FIRST, outcome);
        }
        state.finish_restore(NOW);
        let mut effects = Vec::new();
        state.settle(NOW, &mut effects);
        notices(&effects)
    }

    #[test]
    fn what_was_owed_is_owed_after_a_restart_and_what_was_done_is_not() {
        assert_eq!(restored(None), [FIRST]);
        let done = NoticeOutcome {
            at: NOW.wall,
            attempts: 1,
            error: None,
        };
        assert_eq!(restored(Some(done)), []);
    }
}
