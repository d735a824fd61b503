//! Faults of the simulated world other than crashes of the server.

use std::time::Duration;

use super::{SILENCE_MAX, World};
use crate::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use crate::outcome::{Outcome, Usage};
use crate::range::IdArray;
use crate::selector::Selector;
use crate::server_state::{Command, EndedRow, Input, LinkEnd, Report, WorkerMessage};
use crate::worker_state::{self, Interrupt};

impl World {
    /// Breaks a connection. The worker notices it, but the server may not have noticed it when the
    /// worker reconnects.
    pub(super) fn cut_one(&mut self) {
        let Some(number) = self.pick_node() else {
            return;
        };
        let how = [LinkEnd::Closed, LinkEnd::Broken][self.rng.below(2) as usize];
        self.lose_server(number, how);
    }

    /// Makes the packets of a machine vanish for a while, shorter or longer than the silence limit.
    pub(super) fn silence_one(&mut self) {
        let Some(number) = self.pick_node() else {
            return;
        };
        let most = if self.rng.chance(60) { 7 } else { 1 };
        // This is up to half the limit, or up to three and a half times the limit.
        let silence = SILENCE_MAX * self.rng.below(500) * most / 1_000;
        let Some(node) = self.nodes.get_mut(&number) else {
            return;
        };
        node.silent_until = self.now.mono + silence;
        if silence > node.config.silence_max() {
            self.summary.partitions += 1;
        }
    }

    /// Reconnects a worker that has no connection.
    pub(super) fn come_back(&mut self) {
        let nodes = self.nodes.iter();
        let away = nodes.filter(|(_, node)| !node.is_answered && !node.is_silent(self.now));
        let away: Vec<u32> = away.map(|(number, _)| *number).collect();
        let count = u32::try_from(away.len()).expect("few");
        let Some(number) = away.get(self.rng.below(count.max(1)) as usize).copied() else {
            return;
        };
        // Sometimes the worker times out during the registration and connects again.
        if self.rng.chance(20) {
            self.hang_up(number, LinkEnd::Closed);
        }
        self.dial(number);
    }

    /// Makes a machine vanish with everything that runs on it.
    pub(super) fn lose_one(&mut self) {
        if let Some(number) = self.pick_node() {
            let how = [LinkEnd::Closed, LinkEnd::Broken][self.rng.below(2) as usize];
            self.hang_up(number, how);
            self.nodes.remove(&number);
        }
    }

    /// Stops a worker, as a user on the machine or a client would.
    pub(super) fn interrupt_one(&mut self) {
        let Some(number) = self.pick_node() else {
            return;
        };
        let interrupt = match self.rng.below(4) {
            0 => Interrupt::Terminate,
            1 => Interrupt::Drain,
            2 => Interrupt::Preempt,
            _ => {
                if let Some(id) = self.nodes[&number].id {
                    let workers = Selector::Ids(IdArray::single(id.0));
                    self.request(Command::StopWorkers(workers));
                }
                return;
            }
        };
        self.tell_node(number, worker_state::Input::Interrupt(interrupt));
    }

    /// Sends meaningless messages.
    pub(super) fn send_nonsense(&mut self) {
        let task = TaskKey::new(JobId(self.rng.below(9)), TaskId(self.rng.below(9)));
        let row = EndedRow {
            task,
            instance: InstanceId(self.rng.below(3)),
            outcome: Outcome::Finished,
            age: Duration::ZERO,
            run: Duration::from_micros(10),
            usage: Usage::default(),
        };
        let worker = WorkerId(1_000 + self.rng.below(9));
        let report = Report {
            ended: vec![row],
            ..Report::default()
        };
        self.apply(Input::WorkerMessage(worker, WorkerMessage::Report(report)));
        self.apply(Input::WorkerGone(worker, LinkEnd::Broken));
    }

    /// Sets the wall clock, on which nothing may depend.
    pub(super) fn turn_clock(&mut self) {
        let by = Duration::from_secs(u64::from(self.rng.below(100_000)));
        self.now.wall = if self.rng.chance(50) {
            self.now.wall.plus(by)
        } else {
            self.now.wall.minus(by)
        };
    }

    /// Sometimes suspends all processes for a while.
    pub(super) fn stand_still(&mut self) {
        if self.rng.chance(20) {
            let millis = u64::from(self.rng.below(20_000));
            self.skip(Duration::from_millis(millis));
            self.tick_server();
            self.tick_nodes();
        }
    }
}
