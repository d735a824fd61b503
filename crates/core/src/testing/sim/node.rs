//! A machine of the simulated world: a real [`WorkerState`], and simulated processes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Rng;
use crate::id::{InstanceId, JobId, TaskKey, WorkerId};
use crate::outcome::LostReason;
use crate::server_state::{self, LinkId, Reattach, WorkerCommand};
use crate::time::{Now, Time};
use crate::worker_config::WorkerConfig;
use crate::worker_state::{
    Effect, ExitReason, ExitStatus, Holding, Input, InstanceKey, LaunchEvent, LaunchFailure,
    LaunchTask, LaunchToken, Report, WorkAssignment, WorkTemplate, WorkerState,
};

/// How long a worker that completes its running tasks waits for its server.
const SERVER_WAIT: Duration = Duration::from_secs(2);
/// Patience with tasks that others wait for: so little that it often comes to an end.
const PATIENCE: Duration = Duration::from_millis(4);

/// Longest time that a process takes to end after it was asked to.
const ENDING_MAX: Duration = Duration::from_millis(3_000);

/// One launched instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    pub(super) key: InstanceKey,
    lane: LaunchToken,
    /// Its program runs since then.
    since: Option<Time>,
    /// It was asked to end and will have ended by then.
    dies_at: Option<Time>,
}

impl Process {
    /// Whether its program runs and was not asked to end.
    pub(super) const fn runs(&self) -> bool {
        self.since.is_some() && self.dies_at.is_none()
    }
}

/// Result of a process's turn.
pub(super) enum Turn {
    Started(InstanceKey),
    Succeeded(InstanceKey),
    Other,
}

/// A machine with a worker.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) config: WorkerConfig,
    /// Id that the server gave it last.
    pub(super) id: Option<WorkerId>,
    pub(super) state: WorkerState,
    /// Its connection; `None` = disconnected.
    pub(super) link: Option<LinkId>,
    /// Its registration on that connection was answered.
    pub(super) is_answered: bool,
    /// Registrations so far.
    registrations: u64,
    /// No packets pass in either direction until then.
    pub(super) silent_until: Time,
    pub(super) next_heartbeat: Time,
    /// Heartbeats since the last message of the server.
    pub(super) unanswered: u32,
    pub(super) processes: BTreeMap<LaunchToken, Process>,
    /// Programs that ran for a moment although they had been asked to end; not checked yet.
    pub(super) slipped: Vec<(TaskKey, InstanceId)>,
    /// It has just said goodbye to a server that shuts down, and its tasks continue.
    pub(super) has_taken_leave: bool,
    /// Instances whose ends were in a report, by its number.
    pub(super) said: Vec<(u64, Vec<(TaskKey, InstanceId)>)>,
    /// Programs of this job never end by themselves.
    pub(super) sleeper: Option<JobId>,
    /// Why it ended.
    pub(super) exit: Option<ExitReason>,
}

impl Node {
    pub(super) fn new(now: Now, config: WorkerConfig) -> Self {
        let mut state = WorkerState::new(now, &config, None);
        state.limit_patience(PATIENCE);
        state.wait_for_server(SERVER_WAIT);
        Self {
            state,
            config,
            id: None,
            link: None,
            is_answered: false,
            registrations: 0,
            silent_until: Time(0),
            next_heartbeat: now.mono,
            unanswered: 0,
            processes: BTreeMap::new(),
            slipped: Vec::new(),
            has_taken_leave: false,
            said: Vec::new(),
            sleeper: None,
            exit: None,
        }
    }

    /// The connection on which it can send.
    pub(super) fn up(&self) -> Option<LinkId> {
        self.link.filter(|_| self.is_answered)
    }

    /// Whether none of its packets get through.
    pub(super) fn is_silent(&self, now: Now) -> bool {
        now.mono < self.silent_until
    }

    /// Applies an input to the worker; returns its messages to the server.
    pub(super) fn apply(&mut self, now: Now, input: Input, rng: &mut Rng) -> Vec<Report> {
        let mut reports = Vec::new();
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let mut effects = Vec::new();
            self.state.apply(now, input, &mut effects);
            self.state.check_invariants();
            let mut events = Vec::new();
            for effect in effects {
                match effect {
                    Effect::Launch(tasks) => self.launch(tasks),
                    Effect::Withdraw(tokens) => {
                        events.extend(tokens.into_iter().filter_map(|token| self.withdraw(token)));
                    }
                    Effect::Terminate(token) => {
                        events.extend(self.terminate(now.mono, token, rng));
                    }
                    // The signals of the simulation are fatal.
                    Effect::Kill(token) | Effect::Signal(token, _) => {
                        if let Some(process) = self.processes.get_mut(&token) {
                            process.dies_at = Some(now.mono);
                        }
                    }
                    Effect::Report(report) => reports.push(report),
                    Effect::DropTemplate(_) => {}
                    Effect::Farewell => self.has_taken_leave = true,
                    Effect::Exit(reason) => self.exit = Some(reason),
                }
            }
            if !events.is_empty() {
                inputs.push(Input::Launcher(events));
            }
        }
        for report in &reports {
            let ends = report.ended.iter().map(|row| parts(row.key));
            self.said.push((report.seq, ends.collect()));
        }
        reports
    }

    fn launch(&mut self, tasks: Vec<LaunchTask>) {
        for task in tasks {
            let process = Process {
                key: task.key,
                lane: task.lane,
                since: None,
                dies_at: None,
            };
            let old = self.processes.insert(task.token, process);
            assert!(old.is_none(), "{:?} is used once", task.token);
        }
    }

    fn is_first(&self, token: LaunchToken) -> bool {
        let lane = self.processes[&token].lane;
        let mut mates = self.processes.iter().filter(|(_, p)| p.lane == lane);
        mates.next().is_some_and(|(first, _)| *first == token)
    }

    fn withdraw(&mut self, token: LaunchToken) -> Option<LaunchEvent> {
        let process = self.processes.get(&token)?;
        if process.since.is_some() || self.is_first(token) {
            return None;
        }
        self.processes.remove(&token);
        let failure = LaunchFailure::Cancelled;
        Some(LaunchEvent::Failed { token, failure })
    }

    /// Tasks that have not started never will; running ones may take their time.
    fn terminate(&mut self, now: Time, token: LaunchToken, rng: &mut Rng) -> Option<LaunchEvent> {
        let process = self.processes.get_mut(&token)?;
        if process.since.is_none() && rng.chance(70) {
            self.processes.remove(&token);
            let failure = LaunchFailure::Cancelled;
            return Some(LaunchEvent::Failed { token, failure });
        }
        let millis = u128::from(rng.below(1_000)) * ENDING_MAX.as_millis() / 1_000;
        let quick = rng.chance(40);
        let left = if quick {
            0
        } else {
            u64::try_from(millis).unwrap_or(0)
        };
        // Asked to end while it was being created: its program runs for a moment.
        if process.since.is_none() {
            process.since = Some(now);
            self.slipped.push(parts(process.key));
        }
        process.dies_at = Some(now + Duration::from_millis(left));
        None
    }

    /// Advances one of its processes.
    pub(super) fn turn(&mut self, now: Now, rng: &mut Rng) -> Option<(Turn, LaunchEvent)> {
        let able: Vec<LaunchToken> = self
            .processes
            .iter()
            .filter(|(_, process)| process.dies_at.is_none_or(|at| at <= now.mono))
            .filter(|(_, process)| {
                process.since.is_none() || Some(process.key.task.job) != self.sleeper
            })
            .map(|(token, _)| *token)
            .filter(|token| self.is_first(*token))
            .collect();
        let count = u32::try_from(able.len()).unwrap_or(u32::MAX);
        let token = *able.get(rng.below(count.max(1)) as usize)?;
        let process = self.processes[&token];
        let Some(since) = process.since else {
            if rng.chance(8) {
                self.processes.remove(&token);
                let failure = match rng.chance(50) {
                    true => LaunchFailure::Transient,
                    false => LaunchFailure::Permanent("cannot start".into()),
                };
                return Some((Turn::Other, LaunchEvent::Failed { token, failure }));
            }
            self.processes.get_mut(&token)?.since = Some(now.mono);
            let started = LaunchEvent::Started {
                token,
                at: now.mono,
            };
            return Some((Turn::Started(process.key), started));
        };
        self.processes.remove(&token);
        let status = match rng.below(12) {
            0 => ExitStatus::Code(1),
            1 => ExitStatus::Signal(9),
            _ => ExitStatus::Code(0),
        };
        let turn = match status {
            ExitStatus::Code(0) if process.dies_at.is_none() => Turn::Succeeded(process.key),
            ExitStatus::Code(_)
            | ExitStatus::Signal(_)
            | ExitStatus::OutOfMemory
            | ExitStatus::ExceededMemory => Turn::Other,
        };
        let exited = LaunchEvent::Exited {
            token,
            status,
            ended: now.mono,
            run: now.mono.since(since).max(Duration::from_micros(10)),
            usage: crate::outcome::Usage::default(),
            message: None,
        };
        Some((turn, exited))
    }

    /// Time at which the next process that was asked to end has ended.
    pub(super) fn next_death(&self) -> Option<Time> {
        self.processes.values().filter_map(|p| p.dies_at).min()
    }

    /// Running instances that were not asked to end.
    pub(super) fn running(&self) -> impl Iterator<Item = (TaskKey, InstanceId)> + '_ {
        let live = self.processes.values();
        let live = live.filter(|p| p.since.is_some() && p.dies_at.is_none());
        live.map(|process| parts(process.key))
    }

    /// Its message to a server that it returns to.
    pub(super) fn reattach(&mut self, now: Now, server_uid: &str) -> Option<Reattach> {
        let worker = self.id?;
        let Holding {
            launching,
            started,
            variants,
        } = self.state.holding(now.mono);
        // Reports that were not acknowledged follow, under new numbers.
        self.said.clear();
        self.registrations += 1;
        Some(Reattach {
            worker,
            server_uid: server_uid.into(),
            launching: launching.into_iter().map(parts).collect(),
            report: told(Report {
                started,
                ..Report::default()
            }),
            variants: variants.into_iter().map(|(key, v)| (key.task, v)).collect(),
            number: self.registrations,
        })
    }

    /// Instances whose ends the server has acknowledged with this number.
    pub(super) fn acknowledged(&mut self, seq: u64) -> Vec<(TaskKey, InstanceId)> {
        let (over, kept) = std::mem::take(&mut self.said)
            .into_iter()
            .partition(|(number, _)| *number <= seq);
        self.said = kept;
        let over: Vec<(u64, Vec<_>)> = over;
        over.into_iter().flat_map(|(_, ends)| ends).collect()
    }
}

const fn parts(key: InstanceKey) -> (TaskKey, InstanceId) {
    (key.task, key.instance)
}

const fn key((task, instance): (TaskKey, InstanceId)) -> InstanceKey {
    InstanceKey { task, instance }
}

/// A report as the server reads it.
pub(super) fn told(report: Report) -> server_state::Report {
    let started = report.started.into_iter();
    let ended = report.ended.into_iter();
    server_state::Report {
        seq: report.seq,
        sent: report.sent,
        started: started
            .map(|row| server_state::StartedRow {
                task: row.key.task,
                instance: row.key.instance,
                age: row.age,
            })
            .collect(),
        ended: ended
            .map(|row| server_state::EndedRow {
                task: row.key.task,
                instance: row.key.instance,
                outcome: row.outcome,
                age: row.age,
                run: row.run,
                usage: row.usage,
            })
            .collect(),
        retracted: report.retracted.into_iter().map(parts).collect(),
    }
}

/// A command as the worker reads it; `None` if its state is not concerned.
pub(super) fn heard(command: WorkerCommand) -> Option<Input> {
    Some(match command {
        WorkerCommand::Assign {
            templates,
            assignments,
            awaits: _,
        } => Input::Assign {
            templates: templates.iter().map(|shared| work(shared)).collect(),
            assignments: assignments
                .into_iter()
                .map(|assignment| WorkAssignment {
                    template: assignment.template,
                    ids: assignment.ids,
                    instance: assignment.instance,
                    variant: assignment.variant,
                    entries: assignment.entries,
                    nodes: assignment.nodes.into(),
                    follows: assignment.follows,
                })
                .collect(),
            drop_templates: Vec::new(),
        },
        WorkerCommand::DropTemplates(drop_templates) => Input::Assign {
            templates: Vec::new(),
            assignments: Vec::new(),
            drop_templates,
        },
        WorkerCommand::Retract(tasks) => Input::Retract(tasks.into_iter().map(key).collect()),
        WorkerCommand::Kill(tasks) => Input::Kill(tasks.into_iter().map(key).collect()),
        WorkerCommand::KillNow(tasks) => Input::KillNow(tasks.into_iter().map(key).collect()),
        WorkerCommand::Signal(tasks, signal) => {
            Input::Signal(tasks.into_iter().map(key).collect(), signal)
        }
        WorkerCommand::TimeLimit(tasks, limit) => {
            Input::TimeLimit(tasks.into_iter().map(key).collect(), limit)
        }
        WorkerCommand::Hold(is_held) => Input::Hold(is_held),
        WorkerCommand::Stop | WorkerCommand::StopDrained => Input::Stop,
        WorkerCommand::ServerEnds => Input::ServerEnds,
        WorkerCommand::Acknowledge(seq) => Input::Acknowledged(seq),
        WorkerCommand::Ping(_) => return None,
    })
}

fn work(shared: &crate::job::SharedTemplate) -> Arc<WorkTemplate> {
    Arc::new(WorkTemplate {
        id: shared.id,
        job: shared.header.job,
        job_name: shared.header.job_name.clone(),
        submit_dir: shared.header.submit_dir.clone(),
        stream_dir: shared.header.stream_dir.clone(),
        task: Arc::clone(&shared.task),
    })
}

/// Message to the server about the end of a worker that still has a connection.
pub(super) const fn goodbye(reason: ExitReason) -> Option<LostReason> {
    match reason {
        ExitReason::Stopped | ExitReason::ServerEnded => Some(LostReason::Stopped),
        ExitReason::IdleTimeout => Some(LostReason::IdleTimeout),
        ExitReason::TimeLimit => Some(LostReason::TimeLimitReached),
        ExitReason::Preempted => Some(LostReason::AllocationEnded),
        ExitReason::Interrupted => Some(LostReason::ConnectionLost),
        ExitReason::ServerLost => None,
    }
}
