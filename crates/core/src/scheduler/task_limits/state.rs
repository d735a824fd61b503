//! The use of a limit, for users.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::{LimitId, TaskLimits, parts};
use crate::bound::{Bound, LimitUse, SetId};
use crate::id::{JobId, WorkerId};
use crate::job::SubmitAt;
use crate::words::duration;

/// A limit of the server and its use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LimitState {
    /// The name.
    pub name: Box<str>,
    /// The bound. `None` if the limit was removed while tasks referred to it.
    pub bound: Option<Bound>,
    /// The places that are taken.
    pub used: u64,
    /// The places that are taken, by job.
    pub users: Vec<(JobId, u64)>,
    /// The lost workers whose tasks may still run, each with the places of these tasks.
    pub lost: Vec<(WorkerId, u64)>,
    /// The number of ready tasks that count toward the limit.
    pub ready: u64,
    /// When the next task may start, if the limit is a rate that lets none start now.
    pub next_in: Option<Duration>,
    /// How much the waiting task counts.
    pub amount: u32,
}

/// The shortest time to the next start that is shown.
const NEXT_SHOWN_MIN: Duration = Duration::from_secs(2);
/// The maximum number of jobs that are named as users of a limit.
const USERS_SHOWN: usize = 4;
/// The maximum number of lost workers that are named.
const LOST_SHOWN: usize = 2;

impl fmt::Display for LimitState {
    /// Says why tasks wait for the limit.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.bound, &*self.name) {
            (Some(Bound::Running(max)), "") => {
                let used = self.used;
                write!(
                    f,
                    "limit of the job: {used} of {max} tasks run (--max-running)"
                )?;
            }
            (Some(Bound::Rate(rate)), "") => write!(f, "limit of the job: {rate} (--max-rate)")?,
            (Some(Bound::Running(max)), name) => {
                write!(f, "limit {name}: {} of {max} in use", self.used)?;
                for (index, (job, used)) in self.users.iter().take(USERS_SHOWN).enumerate() {
                    let before = match index {
                        0 => " by",
                        _ if index + 1 == self.users.len() => " and",
                        _ => ",",
                    };
                    write!(f, "{before} job {job} ({used})")?;
                }
                if let Some(others) = self.users.len().checked_sub(USERS_SHOWN + 1) {
                    write!(f, " and {} other jobs", others + 1)?;
                }
            }
            (Some(Bound::Rate(rate)), name) => write!(f, "limit {name}: {rate}")?,
            (None, name) => write!(f, "limit {name}")?,
        }
        if self.amount > 1 {
            write!(f, "; a task counts {}", self.amount)?;
        }
        if let Some(next) = self.next_in.filter(|next| *next >= NEXT_SHOWN_MIN) {
            let next = Duration::from_secs(next.as_secs());
            write!(f, ", the next task starts in {}", duration(next))?;
        }
        for (worker, places) in self.lost.iter().take(LOST_SHOWN) {
            write!(
                f,
                "; {places} by tasks that may still run on lost worker {worker}"
            )?;
        }
        match self.lost.len().saturating_sub(LOST_SHOWN) {
            0 => Ok(()),
            more => write!(f, ", and more on {more} others"),
        }
    }
}

/// Why tasks wait.
impl TaskLimits {
    /// Returns the limits that let no task of a submit start now. The limit of its job has no name.
    #[must_use]
    pub fn blocking(&self, at: SubmitAt) -> Vec<LimitState> {
        let parts = parts(&self.sets, self.set_of(at));
        let blocking = parts.filter_map(|(id, amount)| self.blocked_by(*id, *amount));
        blocking.collect()
    }

    /// Returns the limits that let no ready task of a job start now. Jobs with the same limits are not
    /// distinguished.
    pub(crate) fn blocking_job(&self, job: JobId) -> Vec<LimitState> {
        let is_ready = |set: &SetId| self.sets.get(set).is_some_and(|set| set.queued > 0);
        let ready = self.sets_of(job).into_iter().filter(is_ready);
        // The parts of sets overlap.
        let parts = ready.flat_map(|set| parts(&self.sets, set));
        let parts: BTreeMap<LimitId, u32> = parts.copied().collect();
        let blocking = parts.iter();
        blocking
            .filter_map(|(id, amount)| self.blocked_by(*id, *amount))
            .collect()
    }

    /// Returns the limits of the server that tasks of a job count toward.
    #[must_use]
    pub fn uses_of(&self, job: JobId) -> BTreeSet<LimitUse> {
        let sets = self.sets_of(job).into_iter();
        let parts = sets.flat_map(|set| parts(&self.sets, set));
        let uses = parts.filter_map(|(id, amount)| {
            let limit = self.limits.get(id)?;
            // Removed limits stay known while unfinished tasks refer to them.
            limit.bound()?;
            let name = limit.name.clone()?;
            let amount = *amount;
            Some(LimitUse { name, amount })
        });
        uses.collect()
    }

    /// Returns a limit of the server if it lets some ready tasks not start now. Only these count as
    /// `ready`.
    #[must_use]
    pub fn awaited(&self, name: &str) -> Option<LimitState> {
        let id = self.names.get(name)?;
        let limit = self.limits.get(id)?;
        let (mut waiting, mut least) = (0, u32::MAX);
        for set in limit.sets.iter().filter_map(|set| self.sets.get(set)) {
            let part = set.parts.iter().find(|(of, _)| of == id);
            let amount = part.map_or(1, |(_, amount)| *amount);
            if set.queued > 0 && limit.starts(amount, self.now) == 0 {
                waiting += set.queued;
                least = least.min(amount);
            }
        }
        if waiting == 0 {
            return None;
        }
        let state = self.blocked_by(*id, least)?;
        let ready = waiting;
        Some(LimitState { ready, ..state })
    }

    /// Returns a limit if it lets no task with this amount start now.
    fn blocked_by(&self, id: LimitId, amount: u32) -> Option<LimitState> {
        let limit = self.limits.get(&id)?;
        if limit.starts(amount, self.now) > 0 {
            return None;
        }
        let mut state = self.state_of(id)?;
        // The limit of a job may have both bounds.
        state.amount = amount;
        if limit.places(amount) > 0 {
            let bucket = limit.bucket?;
            state.bound = Some(Bound::Rate(bucket.rate));
            state.next_in = Some(bucket.next_at(amount, self.now).since(self.now));
        }
        Some(state)
    }
}
