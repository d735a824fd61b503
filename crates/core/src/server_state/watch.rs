//! Clients that follow jobs: told of changes at most once per interval, and of the end at once.

use std::collections::{BTreeMap, BTreeSet};

use super::{Ctx, Effect, Notification, RequestId, WatchSpec, WatchUpdate, WatchedJob};
use crate::id::{JobId, TaskId};
use crate::job::Job;
use crate::range::IdArray;
use crate::selector::Selected;
use crate::time::Time;

#[derive(Clone, Debug, Default)]
struct Followed {
    changed: bool,
    ended_tasks: Vec<TaskId>,
}

#[derive(Clone, Debug)]
struct Watch {
    spec: WatchSpec,
    jobs: BTreeMap<JobId, Followed>,
    /// Jobs not yet seen to have ended; spares looking at all of them on each change.
    pending: BTreeSet<JobId>,
    /// Earliest time of the next update.
    next: Time,
    /// Nothing was sent yet.
    is_new: bool,
    /// What the request named in vain; taken by the first update.
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

    /// Whether every job has ended. Amortised O(1) a job, except that open jobs can come back to life.
    fn all_ended(&mut self, jobs: &BTreeMap<JobId, Job>) -> bool {
        while let Some(first) = self.pending.first().copied() {
            if !self.has_ended(jobs.get(&first)) {
                return false;
            }
            self.pending.pop_first();
        }
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

/// All watching clients.
#[derive(Clone, Debug, Default)]
pub(super) struct Watches {
    watches: BTreeMap<RequestId, Watch>,
    by_job: BTreeMap<JobId, BTreeSet<RequestId>>,
    due: BTreeSet<(Time, RequestId)>,
    /// Watches that were added, or have messages of tasks, since the last settle.
    fresh: Vec<RequestId>,
}

impl Watches {
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
        self.watches.insert(
            request,
            Watch {
                spec,
                jobs,
                pending,
                next: now,
                is_new: true,
                not_found,
                notifications: Vec::new(),
            },
        );
        self.fresh.push(request);
    }

    pub(super) fn remove(&mut self, request: RequestId) {
        let Some(watch) = self.watches.remove(&request) else {
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

    /// Notes that a task ended, for those who want to know which.
    pub(super) fn note_ended(&mut self, job: JobId, task: TaskId) {
        let Some(requests) = self.by_job.get(&job) else {
            return;
        };
        for request in requests {
            let watch = self
                .watches
                .get_mut(request)
                .filter(|watch| watch.spec.with_outcomes);
            if let Some(followed) = watch.and_then(|watch| watch.jobs.get_mut(&job)) {
                followed.ended_tasks.push(task);
            }
        }
    }

    /// Passes a message of a task on to those who want such.
    pub(super) fn note_notification(&mut self, notification: &Notification) {
        let requests = self
            .by_job
            .get(&notification.task.job)
            .into_iter()
            .flatten();
        for request in requests {
            let watch = self
                .watches
                .get_mut(request)
                .filter(|watch| watch.spec.with_notifications);
            if let Some(watch) = watch {
                watch.notifications.push(notification.clone());
                self.fresh.push(*request);
            }
        }
    }

    /// Notes that every unfinished task of a job is about to be ended. O(tasks) only if somebody
    /// wants their names.
    pub(super) fn note_ended_job(&mut self, id: JobId, jobs: &BTreeMap<JobId, Job>) {
        let count = jobs.get(&id).map_or(0, |job| job.submits.len());
        for number in 0..u32::try_from(count).unwrap_or(u32::MAX) {
            self.note_ended_submit(id, number, jobs);
        }
    }

    /// The same for one submit.
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
            return;
        };
        for (from, to, phase) in submit.tasks.runs(0, submit.tasks.len()) {
            if phase.is_terminal() {
                continue;
            }
            for task in submit
                .ids
                .slice(from, to)
                .iter()
                .flat_map(crate::range::IdRange::iter)
            {
                self.note_ended(id, TaskId(task));
            }
        }
    }

    /// Sends what is due after a batch of inputs.
    pub(super) fn settle(
        &mut self,
        ctx: &mut Ctx<'_>,
        changed: &BTreeSet<JobId>,
        jobs: &BTreeMap<JobId, Job>,
    ) {
        let mut candidates: BTreeSet<RequestId> =
            std::mem::take(&mut self.fresh).into_iter().collect();
        for job in changed {
            let Some(requests) = self.by_job.get(job) else {
                continue;
            };
            for request in requests {
                if let Some(followed) = self
                    .watches
                    .get_mut(request)
                    .and_then(|watch| watch.jobs.get_mut(job))
                {
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
            self.due.remove(&(time, request));
            candidates.insert(request);
        }
        for request in candidates {
            self.advance(ctx, request, jobs);
        }
    }

    fn advance(&mut self, ctx: &mut Ctx<'_>, request: RequestId, jobs: &BTreeMap<JobId, Job>) {
        let Some(watch) = self.watches.get_mut(&request) else {
            return;
        };
        let done = watch.all_ended(jobs);
        if done {
            ctx.emit(Effect::WatchUpdate(request, watch.update(jobs, true)));
            self.remove(request);
        } else if !watch.notifications.is_empty() {
            ctx.emit(Effect::WatchUpdate(request, watch.update(jobs, false)));
        } else if watch.wants_changes() {
            if watch.next <= ctx.now.mono {
                self.due.remove(&(watch.next, request));
                watch.next = ctx.now.mono + watch.spec.interval;
                ctx.emit(Effect::WatchUpdate(request, watch.update(jobs, false)));
            } else {
                self.due.insert((watch.next, request));
            }
        }
    }
}
