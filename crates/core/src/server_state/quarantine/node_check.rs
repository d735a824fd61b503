//! Handles workers whose nodes have problems, which they report or their clocks show.
//!
//! As with failing tasks, users are notified. The worker gets no tasks if the server may act, if
//! another worker is available, and if at least half of the workers remain. It gets tasks again as
//! soon as a heartbeat reports no problem. There is no probe, unless the worker was also in
//! quarantine because of failing tasks.

use super::{ChangeKind, Ctx, QuarantineMode, ServerState};
use crate::id::WorkerId;
use crate::node_check::{NodeFault, sentence};
use crate::time::{Now, Timestamp};
use crate::worker::{Standing, Worker};

impl ServerState {
    /// Handles the node problems in a heartbeat.
    pub(in crate::server_state) fn note_node(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: WorkerId,
        mut faults: Vec<NodeFault>,
        sent: Option<Timestamp>,
    ) {
        let is_off = self.suspicions.mode == QuarantineMode::Off;
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        let check = worker.node_check_mut();
        if let Some(sent) = sent {
            check.clock.note(ctx.now.wall, sent);
        }
        faults.extend(check.clock.fault());
        if is_off {
            faults.clear();
        }
        if faults.is_empty() && check.faults.is_empty() {
            return;
        }
        let is_known = |fault: &NodeFault| check.faults.iter().any(|known| known.is_like(fault));
        let is_news = !faults.iter().all(is_known);
        check.since = check
            .since
            .or(Some(ctx.now.wall))
            .filter(|_| !faults.is_empty());
        check.faults = faults;
        let why = sentence(&check.faults);
        if is_news {
            tracing::warn!(worker = %id, "something is wrong with the node of a worker: {why}");
            let why = why.as_str().into();
            ctx.persist(ChangeKind::WorkerSuspected { worker: id, why });
        }
        if why.is_empty() {
            self.note_fit(ctx, id);
        }
        // Whether the worker can pause depends on all workers.
        let may_act = self.suspicions.mode == QuarantineMode::Act;
        let is_unfit = may_act && !why.is_empty() && self.can_rest(ctx.now, id);
        self.set_unfit(id, is_unfit);
    }

    /// Notes that the node of a worker has no problem anymore.
    fn note_fit(&mut self, ctx: &mut Ctx<'_>, id: WorkerId) {
        let why = "nothing is wrong with its node any more";
        if self.quarantine(id).is_none() {
            self.note_released(ctx, id, why);
            return;
        }
        tracing::info!(worker = %id, "{why}");
        let standing = self.workers.get(id).map(Worker::standing);
        if standing == Some(Standing::Quarantined) && self.is_probe_wanted(id) {
            // The cause of the failures is probably gone, which one task will show. A quarantine
            // that a user requested remains.
            self.probe(ctx.now.mono, id);
        }
    }

    /// Returns whether a worker can pause without harm to other workers.
    fn can_rest(&self, now: Now, id: WorkerId) -> bool {
        let others = self.workers.live().values().filter(|w| w.id != id);
        let (serving, rest) = others.fold((0, 0), |(serving, rest), other| {
            if other.is_serving() {
                (serving + 1, rest)
            } else if other.is_unfit() || !other.is_trusted() {
                (serving, rest + 1)
            } else {
                (serving, rest)
            }
        });
        serving > rest && !self.is_needed(now.mono, id)
    }

    fn set_unfit(&mut self, id: WorkerId, is_unfit: bool) {
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        if worker.is_unfit() == is_unfit {
            return;
        }
        worker.node_check_mut().is_unfit = is_unfit;
        if is_unfit {
            self.suspicions.unfit.insert(id);
        } else {
            self.suspicions.unfit.remove(&id);
        }
        self.dispatcher.note_room(id);
        self.dispatcher.note_plans_changed();
    }

    /// Returns the workers whose nodes have problems.
    pub fn faulty_workers(&self) -> impl Iterator<Item = &Worker> {
        let live = self.workers.live().values();
        live.filter(|worker| !worker.node_faults().is_empty())
    }
}
