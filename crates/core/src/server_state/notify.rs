//! Who is told of the end of a job, or of its first failure, and what became of it.
//!
//! A notification is due once. It is owed until the shell says what became of it, also through a restart of the server, so
//! that it is sent at least once.

use super::{ChangeKind, Ctx, Effect, ServerState};
use crate::id::JobId;
use crate::notice::{NoticeKey, NoticeOutcome, NoticeState};
use crate::template::NotifyEvent;

impl ServerState {
    /// Notes what is to be told of a job that changed.
    pub(super) fn note_due(&mut self, ctx: &mut Ctx<'_>, id: JobId) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        if job.notices.is_empty() {
            return;
        }
        let (is_over, has_failed) = (job.is_completed(), job.counts().failed > 0);
        for (notice, number) in job.notices.iter_mut().zip(0..) {
            let is_due = match notice.spec.event {
                NotifyEvent::End => is_over,
                NotifyEvent::Failure => has_failed,
            };
            if is_due && notice.state == NoticeState::Waiting {
                notice.state = NoticeState::Owed;
                ctx.emit(Effect::Notify(NoticeKey { job: id, number }));
            }
        }
    }

    /// Takes note of what became of a notification.
    pub(super) fn note_notified(
        &mut self,
        ctx: &mut Ctx<'_>,
        key: NoticeKey,
        (attempts, error): (u32, Option<Box<str>>),
    ) {
        let job = self.jobs.get_mut(key.job);
        let notice = job.and_then(|job| job.notices.get_mut(key.number as usize));
        // The job may have been forgotten meanwhile.
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

    /// What became of a notification in an earlier run of the server; to be called behind the last submit.
    pub fn restore_notified(&mut self, key: NoticeKey, outcome: NoticeOutcome) {
        let job = self.jobs.get_mut(key.job);
        if let Some(notice) = job.and_then(|job| job.notices.get_mut(key.number as usize)) {
            notice.state = NoticeState::Done(outcome);
        }
    }

    /// Owes again what an earlier run of the server owed.
    pub(super) fn restore_owed_notices(&mut self, ctx: &mut Ctx<'_>) {
        let with_notices = self
            .jobs
            .all()
            .values()
            .filter(|job| !job.notices.is_empty());
        let ids: Vec<JobId> = with_notices.map(|job| job.id).collect();
        for id in ids {
            self.note_due(ctx, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Command, Input};
    use super::*;
    use crate::range::IdArray;
    use crate::selector::Selector;
    use crate::template::{NotifySpec, NotifyTarget};
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

    fn submitted() -> ServerState {
        let mut state = ServerState::new("test");
        let spec = |event| NotifySpec {
            target: NotifyTarget::Command("mail".into()),
            event,
        };
        let mut submit = array_submit(1, template(&["true"]));
        submit.notify = vec![spec(NotifyEvent::End), spec(NotifyEvent::Failure)];
        let effects = request(&mut state, Command::Submit(Box::new(submit)));
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

    #[test]
    fn what_was_owed_is_owed_after_a_restart_and_what_was_done_is_not() {
        let mut state = submitted();
        request(&mut state, cancel());
        let mut effects = Vec::new();
        for notice in &mut state.jobs.get_mut(JobId(1)).expect("the job").notices {
            notice.state = NoticeState::Waiting;
        }
        let mut done = state.clone();
        state.restore_owed_notices(&mut Ctx::new(NOW, &mut effects));
        state.settle(NOW, &mut effects);
        assert_eq!(notices(&effects), [FIRST]);
        done.restore_notified(
            FIRST,
            NoticeOutcome {
                at: NOW.wall,
                attempts: 1,
                error: None,
            },
        );
        let mut effects = Vec::new();
        done.restore_owed_notices(&mut Ctx::new(NOW, &mut effects));
        done.settle(NOW, &mut effects);
        assert!(notices(&effects).is_empty());
    }
}
