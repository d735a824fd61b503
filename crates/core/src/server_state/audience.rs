//! Informs the recipients of news about jobs: watching clients and targets of notifications.
//!
//! A watching client receives changes at most once per interval, and the completion of its jobs
//! immediately. A notification is sent once, and remains owed until the shell reports its delivery.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::{Ctx, Effect, NoticeKey, Notification, RequestId, WatchSpec, WatchUpdate, WatchedJob};
use crate::id::JobId;
use crate::job::{Job, Jobs};
use crate::range::{IdArray, IdRange};
use crate::selector::Selected;
use crate::time::Time;

/// How long an undelivered message of a task is kept. A client watches a job shortly after
/// submitting it, and again after its connection has broken. The job's first task may have sent a
/// message by then.
const UNHEARD_AGE_MAX: Duration = Duration::from_secs(10);
/// The maximum number of kept messages, each of at most 1 KiB. The newest ones are kept.
const UNHEARD_MAX: usize = 4_096;

#[derive(Clone, Debug, Default)]
struct Followed {
    changed: bool,
    ended_tasks: VecDeque<IdRange>,
}

#[derive(Clone, Debug)]
struct Watch {
    spec: WatchSpec,
    jobs: BTreeMap<JobId, Followed>,
    /// The jobs that have not ended. This set avoids examining all jobs on each change.
    pending: BTreeSet<JobId>,
    /// The earliest time of the next update.
    next: Time,
    /// Whether no update has been sent yet.
    is_new: bool,
    /// The unknown ids in the request, which are sent with the first update.
    not_found: IdArray,
    notifications: Vec<Notification>,
}

impl Watch {
    fn has_ended(&self, job: Option<&Job>) -> bool {
        job.is_none_or(|job| {
            if self.spec.until_idle {
                job.is_idle()
            } else {
                job.is_completed()
            }
        })
    }

    /// Returns whether every job has ended. The amortized cost is O(1) per job, except that open
    /// jobs can resume.
    fn all_ended(&mut self, jobs: &BTreeMap<JobId, Job>) -> bool {
        // Jobs that have ended are removed, so they are not examined again.
        while let Some(first) = self.pending.first().copied() {
            if !self.has_ended(jobs.get(&first)) {
                return false;
            }
            self.pending.pop_first();
        }
        // An open job that had ended may have received new tasks.
        let revived = self
            .jobs
            .keys()
            .filter(|id| !self.has_ended(jobs.get(id)))
            .copied();
        self.pending = revived.collect();
        self.pending.is_empty()
    }

    const fn wants_changes(&self) -> bool {
        self.spec.with_progress || self.spec.with_outcomes
    }

    fn update(&mut self, jobs: &BTreeMap<JobId, Job>, done: bool) -> WatchUpdate {
        let everything = done || self.is_new;
        self.is_new = false;
        let mut update = WatchUpdate {
            jobs: Vec::new(),
            done,
            not_found: std::mem::take(&mut self.not_found),
            notifications: std::mem::take(&mut self.notifications),
        };
        let (until_idle, mut rows) = (self.spec.until_idle, std::mem::take(&mut self.jobs));
        for (id, followed) in &mut rows {
            // The first and the last update list all jobs.
            if !everything && !followed.changed {
                continue;
            }
            followed.changed = false;
            let ended = jobs.get(id).is_none_or(|job| {
                if until_idle {
                    job.is_idle()
                } else {
                    job.is_completed()
                }
            });
            let ended_tasks = std::mem::take(&mut followed.ended_tasks);
            update.jobs.push(WatchedJob {
                job: *id,
                ended,
                ended_tasks,
            });
        }
        self.jobs = rows;
        update
    }
}

/// All watching clients. Each job itself records which notifications it owes.
#[derive(Clone, Debug, Default)]
pub(super) struct Audience {
    watches: BTreeMap<RequestId, Watch>,
    by_job: BTreeMap<JobId, BTreeSet<RequestId>>,
    due: BTreeSet<(Time, RequestId)>,
    /// The watches that have been added or have received task messages since the last settle.
    fresh: Vec<RequestId>,
    /// The undelivered messages of tasks, oldest first, with their arrival times.
    unheard: VecDeque<(Time, Notification)>,
}

impl Audience {
    pub(super) fn add(
        &mut self,
        now: Time,
        request: RequestId,
        spec: WatchSpec,
        selected: Selected<JobId>,
    ) {
        let Selected {
            rows: jobs,
            not_found,
        } = selected;
        for job in &jobs {
            self.by_job.entry(*job).or_default().insert(request);
        }
        let pending = jobs.iter().copied().collect();
        let jobs = jobs
            .into_iter()
            .map(|job| (job, Followed::default()))
            .collect();
        let notifications = if spec.with_notifications {
            self.take_unheard(now, &jobs)
        } else {
            Vec::new()
        };
        self.watches.insert(
            request,
            Watch {
                spec,
                jobs,
                pending,
                next: now,
                is_new: true,
                not_found,
                notifications,
            },
        );
        self.fresh.push(request);
    }

    /// Removes and returns the recent undelivered messages of the given jobs' tasks.
    fn take_unheard(&mut self, now: Time, jobs: &BTreeMap<JobId, Followed>) -> Vec<Notification> {
        self.drop_old_unheard(now);
        let (heard, unheard) = std::mem::take(&mut self.unheard)
            .into_iter()
            .partition(|(_, notification)| jobs.contains_key(&notification.task.job));
        self.unheard = unheard;
        let heard: VecDeque<_> = heard;
        heard
            .into_iter()
            .map(|(_, notification)| notification)
            .collect()
    }

    fn drop_old_unheard(&mut self, now: Time) {
        while let Some((came, _)) = self.unheard.front()
            && *came + UNHEARD_AGE_MAX < now
        {
            self.unheard.pop_front();
        }
    }

    pub(super) fn remove(&mut self, request: RequestId) {
        let Some(watch) = self.watches.remove(&request) else {
            // The last update was sent before the client left.
            return;
        };
        self.due.remove(&(watch.next, request));
        for job in watch.jobs.keys() {
            if let Some(requests) = self.by_job.get_mut(job) {
                requests.remove(&request);
                if requests.is_empty() {
                    self.by_job.remove(job);
                }
            }
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.due.first().map(|(time, _)| *time)
    }

    /// Records completed tasks for the clients that asked for their ids.
    pub(super) fn note_ended(&mut self, job: JobId, tasks: IdRange) {
        let Some(requests) = self.by_job.get(&job) else {
            // No client watches the job.
            return;
        };
        for request in requests {
            let watch = self
                .watches
                .get_mut(request)
                .filter(|watch| watch.spec.with_outcomes);
            if let Some(followed) = watch.and_then(|watch| watch.jobs.get_mut(&job)) {
                tasks.append_to(&mut followed.ended_tasks);
            }
        }
    }

    /// Forwards a message of a task to interested clients. If there are none, keeps it for a while.
    pub(super) fn note_notification(&mut self, now: Time, notification: Notification) {
        let requests = self
            .by_job
            .get(&notification.task.job)
            .into_iter()
            .flatten();
        let mut is_heard = false;
        for request in requests {
            let watch = self
                .watches
                .get_mut(request)
                .filter(|watch| watch.spec.with_notifications);
            if let Some(watch) = watch {
                watch.notifications.push(notification.clone());
                self.fresh.push(*request);
                is_heard = true;
            }
        }
        // If a delivered message were kept, a client that watches again would receive it twice.
        if is_heard {
            return;
        }
        self.drop_old_unheard(now);
        if self.unheard.len() == UNHEARD_MAX {
            self.unheard.pop_front();
        }
        self.unheard.push_back((now, notification));
    }

    /// Records that every unfinished task of a job is about to end. Takes O(tasks) time only if a
    /// client wants the ids.
    pub(super) fn note_ended_job(&mut self, id: JobId, jobs: &BTreeMap<JobId, Job>) {
        let count = jobs.get(&id).map_or(0, |job| job.submits.len());
        for number in 0..u32::try_from(count).unwrap_or(u32::MAX) {
            self.note_ended_submit(id, number, jobs);
        }
    }

    /// Records that every unfinished task of one submit is about to end.
    pub(super) fn note_ended_submit(
        &mut self,
        id: JobId,
        number: u32,
        jobs: &BTreeMap<JobId, Job>,
    ) {
        let wanted = self.by_job.get(&id).is_some_and(|requests| {
            requests
                .iter()
                .any(|r| self.watches.get(r).is_some_and(|w| w.spec.with_outcomes))
        });
        let submit = jobs
            .get(&id)
            .and_then(|job| job.submits.get(number as usize));
        let Some(submit) = submit.filter(|_| wanted) else {
            // No client wants the ids of ended tasks.
            return;
        };
        for (from, to, phase) in submit.tasks.runs(0, submit.tasks.len()) {
            if phase.is_terminal() {
                continue;
            }
            for tasks in submit.ids.slice(from, to) {
                self.note_ended(id, tasks);
            }
        }
    }

    /// Handles the jobs changed by a batch: first their notifications, then the watching clients.
    pub(super) fn settle(&mut self, ctx: &mut Ctx<'_>, changed: &BTreeSet<JobId>, jobs: &mut Jobs) {
        for id in changed {
            owe_notices(ctx, *id, jobs);
        }
        self.update(ctx, changed, jobs.all());
    }

    fn update(
        &mut self,
        ctx: &mut Ctx<'_>,
        changed: &BTreeSet<JobId>,
        jobs: &BTreeMap<JobId, Job>,
    ) {
        let mut candidates: BTreeSet<RequestId> =
            std::mem::take(&mut self.fresh).into_iter().collect();
        for job in changed {
            let Some(requests) = self.by_job.get(job) else {
                // No client watches the job.
                continue;
            };
            for request in requests {
                if let Some(followed) = self
                    .watches
                    .get_mut(request)
                    .and_then(|watch| watch.jobs.get_mut(job))
                {
                    // Several changes to a job between two updates result in one row.
                    followed.changed = true;
                    candidates.insert(*request);
                }
            }
        }
        while let Some((time, request)) = self
            .due
            .first()
            .copied()
            .filter(|(time, _)| *time <= ctx.now.mono)
        {
            // The request is inserted again with its next time if more updates follow.
            self.due.remove(&(time, request));
            candidates.insert(request);
        }
        for request in candidates {
            self.advance(ctx, request, jobs);
        }
    }

    fn advance(&mut self, ctx: &mut Ctx<'_>, request: RequestId, jobs: &BTreeMap<JobId, Job>) {
        let Some(watch) = self.watches.get_mut(&request) else {
            // The client left after the job had changed.
            return;
        };
        let done = watch.all_ended(jobs);
        // The completion of all jobs is reported immediately, regardless of the interval.
        if done {
            ctx.emit(Effect::WatchUpdate(request, watch.update(jobs, true)));
            self.remove(request);
        } else if !watch.notifications.is_empty() {
            ctx.emit(Effect::WatchUpdate(request, watch.update(jobs, false)));
        } else if watch.wants_changes() {
            // Changes within the interval are reported together at its end.
            if watch.next <= ctx.now.mono {
                self.due.remove(&(watch.next, request));
                // The next update is due at this time if something changes within the interval. The
                // set is sorted by this time.
                watch.next = ctx.now.mono + watch.spec.interval;
                ctx.emit(Effect::WatchUpdate(request, watch.update(jobs, false)));
            } else {
                self.due.insert((watch.next, request));
            }
        }
    }
}

/// Emits the notifications of a job that are due.
pub(super) fn owe_notices(ctx: &mut Ctx<'_>, id: JobId, jobs: &mut Jobs) {
    // A forgotten job has no notifications left.
    for number in jobs
        .get_mut(id)
        .map(Job::take_due_notices)
        .unwrap_or_default()
    {
        ctx.emit(Effect::Notify(NoticeKey { job: id, number }));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::id::{TaskId, TaskKey};
    use crate::selector::Selector;
    use crate::server_state::{Command, Input, LinkId, ServerState, WorkerMessage};
    use crate::testing::{NOW, apply, array_submit, request, template, worker_config};
    use crate::time::Now;

    /// Creates a state with a job that runs on a worker.
    fn running() -> ServerState {
        let mut state = ServerState::new("test");
        let connected = Input::WorkerConnected(LinkId(1), worker_config(1));
        apply(&mut state, connected);
        let submit = array_submit(1, template(&["true"]));
        request(&mut state, Command::Submit(Box::new(submit)));
        state
    }

    fn say(state: &mut ServerState, seconds: u64, text: &str) {
        let now = later(seconds);
        let message: Arc<[u8]> = text.as_bytes().into();
        let notify = WorkerMessage::Notify(TaskKey::new(JobId(1), TaskId(0)), message);
        let input = Input::WorkerMessage(crate::id::WorkerId(1), notify);
        state.apply(now, input, &mut Vec::new());
    }

    /// Returns the first update for a client that starts to watch after this many seconds.
    fn watch(
        state: &mut ServerState,
        seconds: u64,
        jobs: Selector,
        with_notifications: bool,
    ) -> Vec<String> {
        let spec = WatchSpec {
            jobs,
            until_idle: false,
            with_progress: true,
            with_outcomes: false,
            with_notifications,
            interval: Duration::ZERO,
        };
        let mut effects = Vec::new();
        let id = RequestId(9);
        state.apply(
            later(seconds),
            Input::Request(id, Command::Watch(spec)),
            &mut effects,
        );
        state.settle(later(seconds), &mut effects);
        state.apply(later(seconds), Input::RequestGone(id), &mut effects);
        let told = effects.into_iter().filter_map(|effect| {
            if let Effect::WatchUpdate(_, update) = effect {
                Some(update.notifications)
            } else {
                None
            }
        });
        let text = |told: Notification| String::from_utf8_lossy(&told.message).into_owned();
        told.flatten().map(text).collect()
    }

    fn later(seconds: u64) -> Now {
        Now {
            mono: NOW.mono + Duration::from_secs(seconds),
            ..NOW
        }
    }

    #[test]
    fn who_watches_a_moment_later_hears_what_a_task_has_said() {
        let mut state = running();
        say(&mut state, 0, "first");
        say(&mut state, 1, "second");
        let others = watch(&mut state, 1, Selector::Ids(IdArray::single(2)), true);
        assert!(others.is_empty(), "{others:?}");
        let silent = watch(&mut state, 1, Selector::All, false);
        assert!(silent.is_empty(), "it was not asked for: {silent:?}");
        assert_eq!(
            watch(&mut state, 2, Selector::All, true),
            ["first", "second"]
        );
        let again = watch(&mut state, 2, Selector::All, true);
        assert!(again.is_empty(), "it was heard: {again:?}");
    }

    #[test]
    fn old_messages_and_more_than_can_be_kept_are_dropped() {
        let mut state = running();
        say(&mut state, 0, "old");
        say(&mut state, 12, "new");
        assert_eq!(watch(&mut state, 20, Selector::All, true), ["new"]);
        for number in 0..=UNHEARD_MAX {
            say(&mut state, 21, &number.to_string());
        }
        let heard = watch(&mut state, 21, Selector::All, true);
        assert_eq!(heard.len(), UNHEARD_MAX);
        assert_eq!(heard.first().map(String::as_str), Some("1"));
    }
}
