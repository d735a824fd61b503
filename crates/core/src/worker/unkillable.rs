//! Instances that do not react to SIGKILL. They either sleep in the kernel, most likely because of
//! a hanging file system, or have changed to another user.
//!
//! Nothing can end them. They are therefore reported to users, and their resources stay reserved
//! until they end by themselves.

use super::Worker;
use crate::id::{InstanceId, TaskKey};

/// An instance that was sent SIGKILL some time ago and still exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unkillable {
    /// The job and the id of the task.
    pub task: TaskKey,
    /// The number of the instance.
    pub instance: InstanceId,
    /// The id of its process, if it has one.
    pub pid: Option<u32>,
}

impl Unkillable {
    /// Returns the location as text, such as `unkillable on node n17, pid 4711`.
    #[must_use]
    pub fn whereabouts(&self, host: &str) -> String {
        let mut text = format!("unkillable on node {host}");
        if let Some(pid) = self.pid {
            text += &format!(", pid {pid}");
        }
        text
    }
}

impl Worker {
    /// Returns the unkillable instances on this worker, according to its last report.
    #[must_use]
    pub fn unkillable(&self) -> &[Unkillable] {
        &self.unkillable
    }

    /// Replaces the unkillable instances with those of the worker's complete report. Logs new and
    /// ended ones.
    pub(crate) fn set_unkillable(&mut self, told: &[Unkillable]) {
        let node = &*self.config.hostname;
        for one in told.iter().filter(|one| !self.unkillable.contains(one)) {
            tracing::warn!(
                worker = %self.id, node, pid = one.pid, job = %one.task.job, task = %one.task.task,
                "A task cannot be killed: it sleeps in the kernel, most likely for a file system that does not \
                 answer, or has become another user. Its resources stay reserved until it exits"
            );
        }
        for one in self.unkillable.iter().filter(|one| !told.contains(one)) {
            tracing::info!(
                worker = %self.id, node, pid = one.pid, job = %one.task.job, task = %one.task.task,
                "A task that could not be killed has ended"
            );
        }
        self.unkillable.clear();
        self.unkillable.extend_from_slice(told);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::id::{JobId, TaskId, WorkerId};
    use crate::outcome::{Outcome, Usage};
    use crate::selector::Selector;
    use crate::server_state::{
        Command, EndedRow, Input, LinkId, Report, ServerState, StartedRow, WorkerMessage,
    };
    use crate::testing::{apply, array_submit, request, template, worker_config};

    const WORKER: WorkerId = WorkerId(1);
    const HUNG: Unkillable = Unkillable {
        task: TaskKey::new(JobId(1), TaskId(0)),
        instance: InstanceId(0),
        pid: Some(7),
    };

    fn tell(state: &mut ServerState, message: WorkerMessage) {
        apply(state, Input::WorkerMessage(WORKER, message));
    }

    fn heartbeat(state: &mut ServerState, unkillable: &[Unkillable]) {
        let message = WorkerMessage::Heartbeat {
            unkillable: unkillable.to_vec(),
            held: Vec::new(),
            faults: Vec::new(),
            sent: None,
        };
        tell(state, message);
    }

    #[test]
    fn what_cannot_be_killed_keeps_its_resources_until_it_has_ended() {
        let mut state = ServerState::new("test");
        let joined = Input::WorkerConnected(LinkId(1), worker_config(1));
        apply(&mut state, joined);
        let submit = array_submit(1, template(&["x"]));
        request(&mut state, Command::Submit(Box::new(submit)));
        let (task, instance) = (HUNG.task, HUNG.instance);
        let age = Duration::ZERO;
        let started = vec![StartedRow {
            task,
            instance,
            age,
        }];
        let report = Report {
            started,
            ..Report::default()
        };
        tell(&mut state, WorkerMessage::Report(report));
        heartbeat(&mut state, &[HUNG]);
        let cancel = Command::CancelJobs {
            jobs: Selector::All,
            reason: "".into(),
        };
        request(&mut state, cancel);
        let free = |state: &ServerState| state.workers()[&WORKER].free()[0];
        assert_eq!(state.workers()[&WORKER].unkillable(), [HUNG]);
        assert_eq!(
            free(&state),
            0,
            "for its user it is canceled, the cpu is taken"
        );
        assert_eq!(HUNG.whereabouts("n1"), "unkillable on node n1, pid 7");
        // The worker reports it in every heartbeat.
        heartbeat(&mut state, &[HUNG]);
        let ended = vec![EndedRow {
            task,
            instance,
            outcome: Outcome::Killed,
            age,
            run: Duration::from_secs(9),
            usage: Usage::default(),
        }];
        let report = Report {
            seq: 1,
            sent: None,
            ended,
            ..Report::default()
        };
        tell(&mut state, WorkerMessage::Report(report));
        heartbeat(&mut state, &[]);
        assert_eq!(state.workers()[&WORKER].unkillable(), []);
        assert!(free(&state) > 0, "it is given to others again");
    }

    #[test]
    fn a_worker_says_nothing_about_tasks_of_others() {
        use crate::server_state::{ChangeKind, Effect};
        let mut state = ServerState::new("test");
        let submit = array_submit(1, template(&["x"]));
        apply(
            &mut state,
            Input::WorkerConnected(LinkId(1), worker_config(1)),
        );
        request(&mut state, Command::Submit(Box::new(submit)));
        apply(
            &mut state,
            Input::WorkerConnected(LinkId(2), worker_config(1)),
        );
        let later = Unkillable {
            instance: InstanceId(1),
            ..HUNG
        };
        let unknown = Unkillable {
            task: TaskKey::new(JobId(7), TaskId(0)),
            ..HUNG
        };
        let other = WorkerId(2);
        for (worker, told, kept) in [
            (WORKER, HUNG, true),
            (WORKER, later, false),
            (WORKER, unknown, false),
            (other, HUNG, false),
        ] {
            let heartbeat = WorkerMessage::Heartbeat {
                unkillable: vec![told],
                held: Vec::new(),
                faults: Vec::new(),
                sent: None,
            };
            apply(&mut state, Input::WorkerMessage(worker, heartbeat));
            let shown = state.workers()[&worker].unkillable();
            assert_eq!(shown.contains(&told), kept, "{worker} {told:?}");
        }
        let mut notify = |worker, task| {
            let message = WorkerMessage::Notify(task, (*b"words").into());
            let effects = apply(&mut state, Input::WorkerMessage(worker, message));
            effects.iter().any(|effect| {
                matches!(effect, Effect::Persist(change)
                    if matches!(change.kind, ChangeKind::TaskNotified { .. }))
            })
        };
        assert!(notify(WORKER, HUNG.task));
        assert!(!notify(other, HUNG.task) && !notify(other, unknown.task));
        // A process that the task left behind may speak after its end.
        let ended = EndedRow {
            task: HUNG.task,
            instance: HUNG.instance,
            outcome: Outcome::Finished,
            age: Duration::ZERO,
            run: Duration::from_secs(1),
            usage: Usage::default(),
        };
        let report = Report {
            ended: vec![ended],
            ..Report::default()
        };
        tell(&mut state, WorkerMessage::Report(report));
        let mut notify = |worker| {
            let message = WorkerMessage::Notify(HUNG.task, (*b"words").into());
            apply(&mut state, Input::WorkerMessage(worker, message)).len()
        };
        assert!(notify(WORKER) > notify(other));
    }
}
