//! Drains workers. A drained worker gets no new tasks, returns its unstarted tasks, and stops once
//! no task runs.
//!
//! Only the server keeps track of this. The worker just receives retractions and, finally, a stop
//! command.

use super::{ChangeKind, Ctx, ServerState, StopResult, WorkerCommand};
use crate::bug;
use crate::id::WorkerId;
use crate::selector::{Selected, Selector};

impl ServerState {
    pub(super) fn drain_workers(
        &mut self,
        ctx: &mut Ctx<'_>,
        selector: &Selector,
    ) -> Selected<(WorkerId, StopResult)> {
        let workers = self.workers.select(selector);
        workers.filter_map(|id| Some((id, self.drain_worker(ctx, id))))
    }

    fn drain_worker(&mut self, ctx: &mut Ctx<'_>, id: WorkerId) -> StopResult {
        let Some(is_new) = self.workers.drain(id) else {
            return StopResult::AlreadyStopped;
        };
        if is_new {
            self.dispatcher.note_plans_changed();
            ctx.persist(ChangeKind::WorkerDraining(id));
        }
        StopResult::Draining
    }

    /// Continues to drain a worker of an earlier run that is expected to return.
    pub fn restore_draining(&mut self, id: WorkerId) {
        // The drain was stored when it was requested.
        self.workers.drain(id);
    }

    /// Retracts unstarted tasks of drained workers, and stops workers that have no tasks left.
    pub(super) fn go_on_draining(&mut self, ctx: &mut Ctx<'_>) {
        if self.workers.draining().is_empty() {
            return;
        }
        for id in self.workers.draining().clone() {
            let Some(worker) = self.workers.get_mut(id) else {
                bug!("worker {id} drains, but is not live");
                continue;
            };
            // The tasks of a disconnected worker are only known when it is back, and a multi-node
            // task must end first.
            if worker.is_away() || worker.node().is_some() {
                continue;
            }
            // The tasks stay assigned until the worker reports their return, so it is not stopped
            // before then.
            let back = worker.take_unstarted(|_, _| true);
            let is_empty = worker.assigned().is_empty();
            if !back.is_empty() {
                ctx.send(id, WorkerCommand::Retract(back));
            }
            if is_empty {
                self.workers.stop(id);
                ctx.send(id, WorkerCommand::StopDrained);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{
        Command, Effect, EndedRow, Input, LinkId, Report, StartedRow, WorkerMessage,
    };
    use super::*;
    use crate::id::{InstanceId, TaskKey};
    use crate::outcome::{Outcome, Usage};
    use crate::range::IdArray;
    use crate::testing::{apply, array_submit, request, template, worker_config};

    fn report(state: &mut ServerState, report: Report) -> Vec<Effect> {
        apply(
            state,
            Input::WorkerMessage(WorkerId(1), WorkerMessage::Report(report)),
        )
    }

    fn drain() -> Command {
        Command::DrainWorkers(Selector::Ids(IdArray::single(1)))
    }

    fn sent_tasks(state: &ServerState, worker: u32) -> Vec<(TaskKey, InstanceId)> {
        let worker = &state.workers()[&WorkerId(worker)];
        let assigned = worker.assigned().iter();
        assigned.map(|(key, task)| (*key, task.instance)).collect()
    }

    /// Creates a state with a worker that has one cpu and more tasks than it can run.
    fn busy() -> ServerState {
        let mut state = ServerState::new("test");
        apply(
            &mut state,
            Input::WorkerConnected(LinkId(1), worker_config(1)),
        );
        let spec = array_submit(5, template(&["true"]));
        request(&mut state, Command::Submit(Box::new(spec)));
        state
    }

    #[test]
    fn a_drained_worker_gives_back_what_waits_ends_what_runs_and_stops() {
        let mut state = busy();
        let sent = sent_tasks(&state, 1);
        let (first, rest) = sent.split_first().expect("something was sent");
        let started = StartedRow {
            task: first.0,
            instance: first.1,
            age: Duration::ZERO,
        };
        report(
            &mut state,
            Report {
                started: vec![started],
                ..Report::default()
            },
        );
        let effects = request(&mut state, drain());
        let back = effects.iter().find_map(|effect| {
            let Effect::ToWorker(_, WorkerCommand::Retract(back)) = effect else {
                return None;
            };
            Some(back.clone())
        });
        assert_eq!(back.unwrap_or_default(), rest);
        let is_told =
            |effect: &Effect| matches!(effect, Effect::Persist(change) if change.kind.is_urgent());
        assert!(effects.iter().any(is_told), "it outlives the server");
        let effects = report(
            &mut state,
            Report {
                retracted: rest.to_vec(),
                ..Report::default()
            },
        );
        assert_eq!(sent_tasks(&state, 1), [*first], "{effects:?}");
        let ended = EndedRow {
            task: first.0,
            instance: first.1,
            age: Duration::ZERO,
            run: Duration::from_secs(1),
            outcome: Outcome::Finished,
            usage: Usage::default(),
        };
        let effects = report(
            &mut state,
            Report {
                ended: vec![ended],
                ..Report::default()
            },
        );
        let is_stop =
            |effect: &&Effect| matches!(effect, Effect::ToWorker(_, WorkerCommand::StopDrained));
        assert_eq!(effects.iter().filter(is_stop).count(), 1);
        assert!(sent_tasks(&state, 1).is_empty(), "and nothing new");
        apply(
            &mut state,
            Input::WorkerConnected(LinkId(2), worker_config(1)),
        );
        assert!(!sent_tasks(&state, 2).is_empty(), "the others go on");
        state.check_invariants();
    }

    #[test]
    fn an_idle_worker_stops_at_once_and_a_missing_one_is_named() {
        let mut state = ServerState::new("test");
        apply(
            &mut state,
            Input::WorkerConnected(LinkId(1), worker_config(1)),
        );
        let all = Selector::Ids(IdArray::consecutive(1, 2).expect("fits"));
        let effects = request(&mut state, Command::DrainWorkers(all));
        let found = effects.iter().find_map(|effect| {
            let Effect::Reply(_, super::super::Reply::Workers(found)) = effect else {
                return None;
            };
            Some(found.clone())
        });
        let expected = Selected {
            rows: vec![(WorkerId(1), StopResult::Draining)],
            not_found: IdArray::single(2),
        };
        assert_eq!(found, Some(expected));
        let is_stop =
            |effect: &Effect| matches!(effect, Effect::ToWorker(_, WorkerCommand::StopDrained));
        assert!(effects.iter().any(is_stop));
        let again = request(&mut state, drain());
        assert!(!again.iter().any(is_stop));
    }
}
