//! Limits on running tasks and on starts: their changes, and the places that tasks take.

use super::{ChangeKind, Ctx, ServerState, SubmitRefusal};
use crate::bound::{Bound, LIMITS_MAX, LimitChange, Rate, SubmitLimits, UNLIMITED, known};
use crate::id::{JobId, TaskKey};
use crate::job::{Job, SubmitAt, TaskAt};
use crate::refusal::Refusal;
use crate::scheduler::task_limits::{LimitState, TaskLimits};
use crate::time::{Now, Time};
use crate::worker::{Assigned, Turn};

/// Why no task with a limit starts after a restart.
const MAY_RUN: &str = "may run on workers that have not come back after a restart of the server";

impl ServerState {
    /// Returns the limits of tasks.
    #[must_use]
    pub const fn task_limits(&self) -> &TaskLimits {
        self.dispatcher.limits()
    }

    /// Returns why limits let no task of this submit start now, as sentences without a full stop.
    #[must_use]
    pub fn blocking_limits(&self, at: SubmitAt) -> Vec<String> {
        let limits = self.dispatcher.limits();
        self.blocking_texts(&limits.blocking(at), limits.set_of(at) != UNLIMITED)
    }

    /// Returns why limits let ready tasks of a job wait, as sentences without a full stop.
    #[must_use]
    pub fn blocking_limits_of(&self, job: &Job) -> Vec<String> {
        if job.counts().waiting == 0 {
            return Vec::new();
        }
        let limits = self.dispatcher.limits();
        let is_limited = !limits.sets_of(job.id).is_empty();
        self.blocking_texts(&limits.blocking_job(job.id), is_limited)
    }

    fn blocking_texts(&self, blocking: &[LimitState], is_limited: bool) -> Vec<String> {
        if blocking.is_empty() && is_limited && self.dispatcher.limits().is_closed() {
            return vec![format!(
                "its limits: tasks that count toward them {MAY_RUN}"
            )];
        }
        blocking.iter().map(ToString::to_string).collect()
    }

    /// Returns how many ready tasks wait for a limit of the server, and why, as part of a sentence.
    #[must_use]
    pub fn awaited_limit(&self, limit: &LimitState) -> Option<(u64, String)> {
        let (limits, name) = (self.dispatcher.limits(), &limit.name);
        if limits.is_closed() && limit.ready > 0 {
            let why = format!("limit {name}: tasks that count toward it {MAY_RUN}");
            return Some((limit.ready, why));
        }
        let awaited = limits.awaited(name)?;
        Some((awaited.ready, awaited.to_string()))
    }

    /// Sets, changes or removes a limit of the server.
    pub(super) fn change_limit(
        &mut self,
        ctx: &mut Ctx<'_>,
        change: &LimitChange,
    ) -> Result<(), Refusal> {
        let LimitChange { name, bound, .. } = change;
        let limits = self.dispatcher.limits();
        let before = limits.bound(name);
        if before.is_none() && bound.is_some() && limits.len() >= LIMITS_MAX {
            let text = format!("the server has {LIMITS_MAX} limits, which is the maximum");
            return Err(Refusal::too_large(text));
        }
        if bound.is_none() {
            self.check_removal(change, before)?;
        }
        if before == *bound {
            return Ok(());
        }
        self.dispatcher.limits_mut().set(name, *bound, ctx.now.mono);
        ctx.persist(ChangeKind::LimitChanged {
            name: name.clone(),
            bounds: [before, *bound],
        });
        self.recall_behind(ctx, None);
        self.dispatcher.note_ready();
        Ok(())
    }

    /// Checks whether a limit can be removed.
    fn check_removal(&self, change: &LimitChange, before: Option<Bound>) -> Result<(), Refusal> {
        let name = &change.name;
        if before.is_none() {
            let known = known(&self.limit_names());
            return Err(Refusal::not_found(format!(
                "There is no limit {name:?}{known}"
            )));
        }
        let users = match change.is_forced {
            true => Vec::new(),
            false => self.jobs_with_limit(name),
        };
        if users.is_empty() {
            return Ok(());
        }
        let ids: Vec<String> = users.iter().take(5).map(|(id, _)| id.to_string()).collect();
        let more = if users.len() > ids.len() { ", ..." } else { "" };
        let word = if users.len() == 1 { "job" } else { "jobs" };
        let count: u64 = users.iter().map(|(_, count)| u64::from(*count)).sum();
        Err(Refusal::conflict(format!(
            "{count} unfinished tasks of {word} {}{more} count toward limit {name:?}; wait for \
             their end, or let them run without the limit with --force",
            ids.join(", "),
        )))
    }

    /// Asks workers for the tasks of a job, or of all jobs, that were sent behind others because of
    /// their limits, which have changed.
    pub(super) fn recall_behind(&mut self, ctx: &mut Ctx<'_>, job: Option<JobId>) {
        let (workers, jobs) = (&mut self.workers, &self.jobs);
        self.heads.recall_behind(ctx, workers, jobs, job);
    }

    /// Returns the names of the limits.
    pub(super) fn limit_names(&self) -> Vec<Box<str>> {
        let limits = self.dispatcher.limits().named_limits();
        let limits = limits.filter(|limit| limit.bound.is_some());
        limits.map(|limit| limit.name).collect()
    }

    /// Returns the jobs with unfinished tasks that count toward a limit, and the number of these
    /// tasks.
    fn jobs_with_limit(&self, name: &str) -> Vec<(JobId, u32)> {
        let jobs = self.jobs.all().values().filter(|job| !job.is_idle());
        let counts = jobs.map(|job| {
            let submits = job.submits.iter().filter(|submit| {
                let mut uses = submit.limits.uses.iter();
                uses.any(|part| &*part.name == name)
            });
            let left = submits.map(|submit| submit.unfinished());
            (job.id, left.sum::<u32>())
        });
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// Restores a limit of the server.
    pub fn restore_limit(&mut self, name: &str, bound: Bound) {
        let limits = self.dispatcher.limits_mut();
        limits.set(name, Some(bound), Time(0));
    }

    /// Checks the limits of a submit.
    pub(super) fn check_limits(&self, limits: &SubmitLimits) -> Result<(), SubmitRefusal> {
        for part in &limits.uses {
            let name = part.name.clone();
            match self.dispatcher.limits().bound(&part.name) {
                Some(bound) if part.amount > bound.count() => {
                    let amount = part.amount;
                    return Err(SubmitRefusal::LimitTooSmall {
                        name,
                        amount,
                        bound,
                    });
                }
                Some(_) => {}
                None => {
                    let names = self.limit_names();
                    return Err(SubmitRefusal::UnknownLimit { name, names });
                }
            }
        }
        Ok(())
    }

    /// Applies the limits of a new or restored submit. Returns whether those of its job change.
    pub(super) fn limit_submit(&mut self, now: Time, at: SubmitAt) -> bool {
        let Some(submit) = self.jobs.submit(at) else {
            return false;
        };
        let limits = submit.limits.clone();
        self.dispatcher.limits_mut().add_submit(at, &limits.uses);
        let job = self.jobs.get(at.job);
        let before = job.map_or((None, None), |job| (job.max_running, job.max_rate));
        let max = limits.max_running.or(before.0);
        let rate = limits.max_rate.or(before.1);
        let is_changed = before != (max, rate);
        if is_changed {
            self.limit_job(now, at.job, max, rate);
        }
        is_changed
    }

    /// Sets the limits of a job.
    pub(super) fn limit_job(&mut self, now: Time, id: JobId, max: Option<u32>, rate: Option<Rate>) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        (job.max_running, job.max_rate) = (max, rate);
        let submits = u32::try_from(job.submits.len()).unwrap_or(u32::MAX);
        let limits = self.dispatcher.limits_mut();
        let moved = limits.set_job(id, max, rate, submits, now);
        if moved.is_empty() {
            return;
        }
        self.dispatcher.move_submits(id, &moved);
        // The tasks that run already count toward the new limit.
        let limits = self.dispatcher.limits_mut();
        let holders = self.jobs.get(id).into_iter().flat_map(Job::sent_to);
        for worker in holders {
            let Some(worker) = self.workers.get_mut(*worker) else {
                continue;
            };
            for (task, assigned) in worker.assigned_of_mut(id) {
                let set = limits.set_of(assigned.slot.of(id).submit());
                let before = std::mem::replace(&mut assigned.limits, set);
                if assigned.turn == Turn::Now {
                    limits.take_place(set, task.job);
                    limits.give_back(before, task.job, 1);
                }
            }
        }
    }

    /// Starts no task with a limit while tasks that this server run does not know of may run.
    pub(super) fn close_limits(&mut self, now: Now) {
        let is_awaited = self.workers.awaited() > 0;
        self.dispatcher.limits_mut().close(is_awaited);
        for worker in self.workers.ended().values() {
            let Some((at, reason)) = worker.ended() else {
                continue;
            };
            let age = now.wall.since(at);
            let left = worker.survival(reason).saturating_sub(age);
            if reason.is_lost() && !left.is_zero() {
                self.dispatcher.limits_mut().close_until(now.mono + left);
            }
        }
    }

    /// Gives back the places of a task that its worker no longer has. Returns the task that was
    /// sent behind it because of its limits.
    pub(super) fn note_left(&mut self, task: TaskKey, assigned: &Assigned) -> Option<TaskAt> {
        if assigned.turn == Turn::Now {
            let limits = self.dispatcher.limits_mut();
            limits.give_back(assigned.limits, task.job, 1);
        }
        self.heads.take_behind(assigned.slot.of(task.job))
    }
}
