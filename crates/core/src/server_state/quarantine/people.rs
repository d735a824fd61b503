//! Quarantines that users request, and the display of all quarantines.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{AVOIDED_MAX, ServerState};
use crate::id::WorkerId;
use crate::quarantine::{Quarantine, QuarantineMode, Suspicion};
use crate::selector::{Selected, Selector};
use crate::server_state::{Ctx, StopResult};
use crate::time::{Now, Timestamp};
#[cfg(any(test, feature = "testing"))]
use crate::worker::Standing;

impl ServerState {
    /// Sets how this server handles workers with failing tasks.
    pub const fn set_quarantine_mode(&mut self, mode: QuarantineMode) {
        self.suspicions.mode = mode;
    }

    /// Returns the quarantine of a worker, including its probe phase.
    #[must_use]
    pub fn quarantine(&self, id: WorkerId) -> Option<&Quarantine> {
        self.suspicions.cases.get(&id)?.quarantine.as_ref()
    }

    /// Returns the time at which the server stopped trusting a worker.
    #[must_use]
    pub fn doubted_since(&self, id: WorkerId) -> Option<Timestamp> {
        Some(self.suspicions.cases.get(&id)?.since)
    }

    /// Returns the quarantines of all live workers.
    pub fn quarantines(&self) -> impl Iterator<Item = &Quarantine> {
        let cases = self.suspicions.cases.values();
        cases.filter_map(|case| case.quarantine.as_ref())
    }

    /// Returns the short names of the batch system nodes that the next allocation should avoid.
    #[must_use]
    pub fn nodes_to_avoid(&self, now: Timestamp) -> Vec<String> {
        // The origin of a worker that ended long ago is unknown.
        let is_of_batch_system = |worker: WorkerId| {
            let known = self.workers.known(worker);
            known.is_none_or(|worker| worker.config.allocation.is_some())
        };
        let all = self.all_quarantines(now);
        let nodes = all.filter(|(_, quarantine)| is_of_batch_system(quarantine.worker));
        let nodes = nodes.map(|(host, _)| host.split('.').next().unwrap_or(host));
        // The name becomes part of a script.
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let nodes = nodes.filter(|node| !node.is_empty() && node.chars().all(is_name));
        let nodes: BTreeSet<&str> = nodes.collect();
        nodes
            .into_iter()
            .take(AVOIDED_MAX)
            .map(str::to_owned)
            .collect()
    }

    /// Returns the host and quarantine of each quarantined worker, live or lost.
    fn all_quarantines(&self, now: Timestamp) -> impl Iterator<Item = (&str, &Quarantine)> {
        let former = self.suspicions.former.iter();
        let former = former.filter(move |(_, quarantine)| quarantine.until > now);
        let live = self.quarantines().filter_map(|quarantine| {
            let worker = self.workers.get(quarantine.worker)?;
            Some((&*worker.config.hostname, quarantine))
        });
        former
            .map(|(host, quarantine)| (&**host, quarantine))
            .chain(live)
    }

    /// Returns the workers that seem broken but still get tasks.
    pub fn suspicions(&self) -> impl Iterator<Item = (WorkerId, Suspicion)> {
        self.suspicions.cases.iter().filter_map(|(id, case)| {
            let suspicion = Suspicion {
                since: case.since,
                why: case.told.clone()?,
            };
            Some((*id, suspicion))
        })
    }

    pub(in crate::server_state) fn quarantine_workers(
        &mut self,
        ctx: &mut Ctx<'_>,
        selector: &Selector,
        span: Duration,
        why: &str,
    ) -> Selected<(WorkerId, StopResult)> {
        let workers = self.workers.select(selector);
        workers.filter_map(|id| {
            let Some(worker) = self.workers.get(id) else {
                return Some((id, StopResult::AlreadyStopped));
            };
            // The worker is about to end anyway.
            if worker.is_stopping() {
                return Some((id, StopResult::AlreadyStopped));
            }
            let quarantine = Quarantine {
                worker: id,
                since: ctx.now.wall,
                until: ctx.now.wall.plus(span),
                round: 1,
                is_asked: true,
                why: why.into(),
            };
            self.begin_quarantine(ctx, quarantine);
            Some((id, StopResult::Quarantined))
        })
    }

    pub(in crate::server_state) fn release_workers(
        &mut self,
        ctx: &mut Ctx<'_>,
        selector: &Selector,
    ) -> Selected<(WorkerId, StopResult)> {
        let workers = match selector {
            Selector::All => Selected::all(self.doubtful()),
            Selector::Last | Selector::Ids(_) => self.workers.select(selector),
        };
        workers.filter_map(|id| {
            let Some(worker) = self.workers.get(id) else {
                return Some((id, StopResult::AlreadyStopped));
            };
            let result = if worker.is_trusted() {
                StopResult::NotQuarantined
            } else {
                StopResult::Released
            };
            // This also clears a mere suspicion, so that evidence is collected anew.
            self.trust(ctx, id, "somebody released it");
            Some((id, result))
        })
    }

    /// Restores a stored quarantine. Must be called after the last worker has been restored.
    pub fn restore_quarantine(&mut self, now: Now, quarantine: Quarantine) {
        let id = quarantine.worker;
        if self.workers.get(id).is_some() {
            self.resume_quarantine(now, quarantine);
        } else if let Some(host) = self.workers.hostname(id) {
            self.suspicions.former.insert(host.into(), quarantine);
        }
    }

    /// Panics unless the cases agree with the workers.
    #[cfg(any(test, feature = "testing"))]
    pub(in crate::server_state) fn check_suspicions(&self) {
        for worker in self.workers.live().values().filter(|w| !w.is_trusted()) {
            let case = self.suspicions.cases.get(&worker.id);
            let case = case.expect("who is not trusted has a case");
            assert!(
                case.due.is_some() || worker.standing() == Standing::Probed,
                "the case of {} goes on",
                worker.id
            );
        }
        for (id, case) in &self.suspicions.cases {
            assert!(self.workers.get(*id).is_some(), "cases are of live workers");
            assert_eq!(
                case.due.is_some(),
                case.due
                    .is_some_and(|due| self.suspicions.due.contains(&(due, *id)))
            );
        }
    }
}
