//! A worker as the server sees one: it has tasks, says what happens to them, and keeps what it said.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::id::{InstanceId, TaskKey};
use crate::outcome::Outcome;
use crate::server_state::{EndedRow, Report, StartedRow, WorkerCommand, WorkerMessage};

/// So few that reports are divided often.
const ENDS_PER_REPORT: usize = 2;

/// One instance as a virtual worker sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct VirtualTask {
    pub(super) instance: InstanceId,
    pub(super) cpus: u32,
    pub(super) started: bool,
}

/// A virtual worker: does what the server says, at its own pace.
#[derive(Debug)]
pub(super) struct VirtualWorker {
    pub(super) cpus: u32,
    pub(super) tasks: BTreeMap<TaskKey, VirtualTask>,
    /// Cpus of each template it was sent, with the job.
    pub(super) templates: BTreeMap<u32, (u32, crate::id::JobId)>,
    /// Commands under way to it.
    pub(super) inbox: VecDeque<WorkerCommand>,
    /// Messages under way to the server, in order.
    pub(super) outbox: VecDeque<WorkerMessage>,
    pub(super) stopping: bool,
    /// Comes back when its connection broke.
    pub(super) reconnects: bool,
    /// Has no connection.
    pub(super) away: bool,
    /// Ends that were not acknowledged, by number of their report.
    pub(super) unacknowledged: Vec<(u64, Vec<EndedRow>)>,
    pub(super) last_seq: u64,
}

impl VirtualWorker {
    pub(super) const fn new(cpus: u32, reconnects: bool) -> Self {
        Self {
            cpus,
            tasks: BTreeMap::new(),
            templates: BTreeMap::new(),
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            stopping: false,
            reconnects,
            away: false,
            unacknowledged: Vec::new(),
            last_seq: 0,
        }
    }

    /// Sends a report, or several if it has many ends; they are kept until they are acknowledged.
    pub(super) fn send(&mut self, mut report: Report) {
        while report.ended.len() > ENDS_PER_REPORT {
            let ended = report.ended.drain(..ENDS_PER_REPORT).collect();
            self.send_one(Report {
                ended,
                ..Report::default()
            });
        }
        self.send_one(report);
    }

    fn send_one(&mut self, mut report: Report) {
        if !report.ended.is_empty() {
            self.last_seq += 1;
            report.seq = self.last_seq;
            let ends = report.ended.clone();
            self.unacknowledged.push((self.last_seq, ends));
        }
        if !self.away {
            self.outbox.push_back(WorkerMessage::Report(report));
        }
    }

    /// The server knows it again: what was not acknowledged follows.
    pub(super) fn go_on(&mut self) {
        self.away = false;
        let ends = std::mem::take(&mut self.unacknowledged).into_iter();
        self.send(Report {
            ended: ends.flat_map(|(_, rows)| rows).collect(),
            ..Report::default()
        });
    }

    /// The connection breaks: what is under way is lost, what has not started is given up.
    pub(super) fn cut(&mut self) {
        self.away = true;
        self.inbox.clear();
        self.outbox.clear();
        self.templates.clear();
        self.tasks.retain(|_, task| task.started);
    }

    /// What runs, for a server that it comes back to.
    pub(super) fn running(&self) -> Report {
        let started = self.tasks.iter().map(|(task, t)| StartedRow {
            task: *task,
            instance: t.instance,
            age: Duration::ZERO,
        });
        Report {
            started: started.collect(),
            ..Report::default()
        }
    }

    /// What ended and was not acknowledged, for the same server.
    pub(super) fn untold(&self) -> Vec<(TaskKey, InstanceId)> {
        let rows = self.unacknowledged.iter().flat_map(|(_, rows)| rows);
        rows.filter(|row| row.outcome != Outcome::Killed)
            .map(|row| (row.task, row.instance))
            .collect()
    }

    pub(super) fn free(&self) -> u32 {
        let used: u32 = self
            .tasks
            .values()
            .filter(|t| t.started)
            .map(|t| t.cpus)
            .sum();
        assert!(used <= self.cpus, "a worker never runs more than it has");
        self.cpus - used
    }
}
