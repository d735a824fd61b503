//! The worker's state machine. It reacts to tasks, processes, time and the loss of its server.
//!
//! The state machine takes inputs and emits effects. It handles neither processes nor sockets. The
//! states of a task are
//! ```text
//!  assigned ──▶ backlog ──▶ launched (see `running.rs`) ──▶ outbox ──▶ reported
//!                  │ retract, request cannot be served here      ▲
//!                  └─────────────────────────────────────────────┘
//! ```
//!
//! The states of the worker itself are
//!
//! ```text
//!  Active ◀──▶ Detached (no server, reconnects)
//!    │ drain, server lost     │ stop, idle timeout, time limit, interrupt
//!    ▼                        ▼
//!  Draining ────────────▶ Stopping ──▶ Exited
//! ```
//!
//! The free and the granted resources always add up to the worker's resources. Every assigned
//! instance ends in exactly one report row (repeated until it is acknowledged), with the end of the
//! worker, or as void. A task never takes resources that a waiting task of higher priority could
//! use. Late, duplicate and unknown messages change nothing and are counted.

mod backlog;
mod effect;
mod ending;
mod entry;
mod input;
mod lanes;
mod outbox;
mod running;
mod schedule;
mod successors;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use effect::{Effect, EndedRow, ExitReason, Holding, LaunchTask, Report, StartedRow};
pub use input::{
    ExitStatus, Input, InstanceKey, Interrupt, LaunchEvent, LaunchFailure, LaunchToken,
    WorkAssignment, WorkTemplate,
};

use backlog::Backlog;
use entry::{Class, NewEntry};
pub use outbox::EVENT_DELAY;
use outbox::{EndReport, Outbox, Urgency};
pub(crate) use outbox::{STREAM_INTERVAL, STREAM_PART};
pub(crate) use running::AHEAD_OF_MANY;
use running::{EndCause, Phase, RunningTask, RunningTasks};
use successors::Successor;

use crate::id::{InstanceId, JobId};
use crate::job::TemplateId;
use crate::outcome::Outcome;
use crate::range::{IdArray, IdRange};
use crate::resource::pool::{PoolRequest, PoolSet};
use crate::template::CrashLimit;
use crate::time::{Now, Time};
use crate::worker_config::{OnServerLost, WorkerConfig};

/// How long a task may run while successors on this worker wait for it to end. After that, the
/// successors return to the server, because they would overtake more urgent or larger tasks.
pub(crate) const SUCCESSOR_PATIENCE: Duration = Duration::from_millis(100);

/// The minimum interval between checks of waiting tasks' time requests, regardless of the
/// configuration.
const TIME_REQUEST_CHECK_MIN: Duration = Duration::from_millis(100);

/// Counts messages that make no sense or refer to unknown objects. Each such message is harmless.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ignored {
    /// The number of assigned instances that the worker already had.
    pub assigned: u64,
    /// The number of assignments with a template, variant or entries that do not exist.
    pub malformed: u64,
    /// The number of templates that were received twice with different content, or dropped while
    /// unknown.
    pub templates: u64,
    /// The number of retracted instances that are not on this worker or have started.
    pub retracted: u64,
    /// The number of killed instances that are not on this worker.
    pub killed: u64,
    /// The number of launcher events for unknown tokens or in an impossible order.
    pub launcher: u64,
}

/// The phase of the worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// The worker accepts and starts tasks.
    Active,
    /// The worker has no server. Running tasks continue, and reports are kept.
    Detached,
    /// The worker starts no tasks, and exits when the running tasks have ended.
    Draining(ExitReason),
    /// The worker has asked its tasks to end, and exits when they have ended or at the deadline.
    Stopping { reason: ExitReason, deadline: Time },
    /// The worker has exited. Further inputs have no effect.
    Exited,
}

/// A template, with its requests converted to this worker's pools.
#[derive(Clone, Debug)]
struct KnownTemplate {
    work: Arc<WorkTemplate>,
    /// The request of each variant, or `None` if this worker can never serve it.
    requests: Vec<Option<PoolRequest>>,
    /// The moving average of the run times of the template's tasks.
    run: Option<Duration>,
}

/// The whole state of a worker.
#[derive(Clone, Debug)]
pub struct WorkerState {
    pools: PoolSet,
    backlog: Backlog,
    running: RunningTasks,
    outbox: Outbox,
    templates: BTreeMap<TemplateId, KnownTemplate>,
    /// The assigned instances that will not start on this worker. They are returned on request,
    /// when their obstacle is gone, or when the worker ends. They are not returned immediately,
    /// because the server does not know the reason and would send them again and again.
    declined: BTreeSet<InstanceKey>,
    /// The instances that ended together with the worker and are reported by its end. Until then,
    /// the server must not conclude that they never ran.
    spent: BTreeSet<InstanceKey>,
    mode: Mode,
    on_server_lost: OnServerLost,
    /// How long to wait for a lost server after the last task has ended, with
    /// [`OnServerLost::FinishRunning`].
    server_wait: Duration,
    /// Whether the worker runs in a batch system job, whose signals also reach the tasks.
    in_allocation: bool,
    idle_timeout: Option<Duration>,
    idle_since: Option<Time>,
    /// Whether the worker is a node of a multi-node task that runs on another worker.
    is_held: bool,
    /// Whether other workers reach the server through this worker.
    is_relaying: bool,
    /// When the server was lost, or `None` while it is connected.
    serverless_since: Option<Time>,
    /// When the worker's own time limit expires.
    life_end: Option<Time>,
    time_request_check: Duration,
    next_time_request_check: Time,
    /// When waiting successors are checked next, or `None` if no running task has any.
    next_successor_check: Option<Time>,
    /// The value of [`SUCCESSOR_PATIENCE`], unless it was shortened.
    successor_patience: Duration,
    /// Whether anything has happened since the last round that may let a task start.
    may_start: bool,
    ignored: Ignored,
}

impl WorkerState {
    /// Creates the state of a newly registered worker, whose life began at `born`. The server's
    /// `idle_timeout_default` applies if the worker does not have its own idle timeout.
    #[must_use]
    pub fn new(born: Now, config: &WorkerConfig, idle_timeout_default: Option<Duration>) -> Self {
        let check = config.retract_check_interval.max(TIME_REQUEST_CHECK_MIN);
        Self {
            pools: PoolSet::new(&config.resources),
            backlog: Backlog::default(),
            running: RunningTasks::default(),
            outbox: Outbox::default(),
            templates: BTreeMap::new(),
            declined: BTreeSet::new(),
            spent: BTreeSet::new(),
            mode: Mode::Active,
            on_server_lost: config.on_server_lost,
            server_wait: Duration::ZERO,
            in_allocation: config.allocation.is_some(),
            idle_timeout: config.idle_timeout.or(idle_timeout_default),
            idle_since: Some(born.mono),
            is_held: false,
            is_relaying: false,
            serverless_since: None,
            life_end: config.time_limit.map(|limit| born.mono + limit),
            time_request_check: check,
            next_time_request_check: born.mono + check,
            next_successor_check: None,
            successor_patience: SUCCESSOR_PATIENCE,
            may_start: false,
            ignored: Ignored::default(),
        }
    }

    /// Sets how long to wait for a lost server after the last task has ended, with
    /// [`OnServerLost::FinishRunning`].
    pub const fn wait_for_server(&mut self, wait: Duration) {
        self.server_wait = wait;
    }

    /// Handles one input and appends the resulting effects.
    pub fn apply(&mut self, now: Now, input: Input, effects: &mut Vec<Effect>) {
        let now = now.mono;
        // The shell may still have queued inputs, but no effect may follow the exit.
        if self.mode == Mode::Exited {
            return;
        }
        match input {
            Input::Assign {
                templates,
                assignments,
                drop_templates,
            } => {
                self.on_templates(templates);
                for assignment in assignments {
                    self.on_assignment(now, assignment);
                }
                // This comes last, because a task of the same message may still need one of the
                // templates.
                self.on_drop_templates(drop_templates, effects);
            }
            Input::Retract(keys) => self.on_retract(keys),
            Input::Kill(keys) => self.on_kill(now, keys, effects),
            Input::KillNow(keys) => {
                let running = keys.iter().filter_map(|key| self.running.token_of(*key));
                let running: Vec<_> = running.collect();
                self.on_kill(now, keys, effects);
                effects.extend(running.into_iter().map(Effect::Kill));
            }
            Input::Signal(keys, signal) => {
                // Tasks that have ended meanwhile are skipped.
                let running = keys.iter().filter_map(|key| self.running.token_of(*key));
                effects.extend(running.map(|token| Effect::Signal(token, signal)));
            }
            Input::TimeLimit(keys, limit) => {
                for key in keys {
                    self.running.set_time_limit(key, limit);
                }
            }
            Input::Hold(is_held) => self.is_held = is_held,
            Input::Relaying(is_relaying) => self.is_relaying = is_relaying,
            Input::Stop => self.begin_stopping(now, ExitReason::Stopped, effects),
            Input::ServerEnds => self.on_server_ends(now, effects),
            Input::Launcher(events) => {
                for event in events {
                    self.on_launch_event(now, event);
                }
            }
            Input::Timer => {}
            Input::ServerLost => self.on_server_lost(now, effects),
            Input::ServerGone => self.on_server_gone(),
            Input::ServerBack { reattached } => self.on_server_back(reattached, effects),
            Input::Acknowledged(seq) => {
                // No task starts while too many completions are unacknowledged, and no other input
                // would trigger a round.
                let was_full = self.outbox.is_full();
                self.outbox.acknowledge(seq);
                self.may_start |= was_full;
            }
            Input::Interrupt(interrupt) => self.on_interrupt(now, interrupt, effects),
        }
        self.advance(now, effects);
    }

    /// Shortens the time that successors wait for long tasks.
    #[cfg(any(test, feature = "testing"))]
    pub const fn limit_patience(&mut self, patience: Duration) {
        self.successor_patience = patience;
    }

    /// Returns when the next [`Input::Timer`] is due, or `None` if no timer is needed.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let idle = self.idle_deadline();
        let report = self.report_due();
        let held = self.outbox.hold_over();
        // A deadline of a previous mode would wake the worker again and again.
        let deadlines = match self.mode {
            Mode::Active | Mode::Detached => [
                report,
                self.running.next_deadline(),
                idle,
                self.abandon_deadline(),
                self.life_end,
                self.check_due(),
                self.withdrawal_due(),
                self.next_successor_check,
                held,
            ],
            Mode::Draining(_) => [
                report,
                self.running.next_deadline(),
                None,
                None,
                self.life_end,
                None,
                self.withdrawal_due(),
                None,
                held,
            ],
            Mode::Stopping { deadline, .. } => [
                report,
                Some(deadline),
                None,
                None,
                None,
                None,
                None,
                None,
                None,
            ],
            Mode::Exited => [None; 9],
        };
        deadlines.into_iter().flatten().min()
    }

    /// Returns the number of tasks whose program is starting or running.
    #[must_use]
    pub fn running_count(&self) -> usize {
        self.running.len()
    }

    /// Returns the number of waiting tasks.
    #[must_use]
    pub fn queued_count(&self) -> u64 {
        self.backlog.len()
    }

    /// Returns the number of messages ignored so far.
    #[must_use]
    pub const fn ignored(&self) -> Ignored {
        self.ignored
    }

    /// Returns the pools that grants refer to, with their names and sizes.
    #[must_use]
    pub const fn pools(&self) -> &PoolSet {
        &self.pools
    }

    /// Returns whether an instance was asked to end, so that its exit status no longer determines
    /// its outcome.
    #[must_use]
    pub fn is_ending(&self, token: LaunchToken) -> bool {
        self.running
            .get(token)
            .is_some_and(|task| matches!(task.phase, Phase::Ending(_)))
    }

    fn on_templates(&mut self, templates: Vec<Arc<WorkTemplate>>) {
        for work in templates {
            if let Some(known) = self.templates.get(&work.id) {
                // A number identifies one template. A different template with the same number is a
                // bug in the server, which is counted here.
                if known.work != work {
                    self.ignored.templates += 1;
                }
                continue;
            }
            let requests = work.task.requests.as_slice().iter();
            let requests = requests
                .map(|request| self.pools.compile(request))
                .collect();
            self.templates.insert(
                work.id,
                KnownTemplate {
                    work,
                    requests,
                    run: None,
                },
            );
        }
    }

    fn on_drop_templates(&mut self, ids: Vec<TemplateId>, effects: &mut Vec<Effect>) {
        for id in ids {
            match self.templates.remove(&id) {
                Some(_) => effects.push(Effect::DropTemplate(id)),
                None => self.ignored.templates += 1,
            }
        }
    }

    fn on_assignment(&mut self, now: Time, assignment: WorkAssignment) {
        let WorkAssignment {
            template,
            ids,
            instance,
            variant,
            entries,
            nodes,
            follows,
        } = assignment;
        let Some(known) = self.templates.get(&template) else {
            // Without a template, the tasks have no ids, so nothing can be reported about them.
            self.ignored.malformed += 1;
            return;
        };
        let work = Arc::clone(&known.work);
        let job = work.job;
        let key = |id| InstanceKey::new(job, id, instance);
        // The tasks are returned on request or when the worker ends. If they were returned now, the
        // server would only send them again.
        if self.mode != Mode::Active {
            self.declined.extend(ids.iter().map(key));
            return;
        }
        let request = known.requests.get(variant as usize);
        let asked = work.task.requests.as_slice().get(variant as usize);
        // If an entry is missing, a task would get the entry of its neighbor.
        let count_fits = entries
            .as_ref()
            .is_none_or(|entries| entries.len() == ids.len() as usize)
            && (follows.is_none() || ids.len() == 1);
        let (Some(request), Some(asked), true) = (request, asked, count_fits) else {
            self.ignored.malformed += 1;
            let text = "the worker was sent a task whose variant or entry does not exist";
            for key in self.not_here(ids.iter().map(key)) {
                let ended = EndReport::unstarted(key, Outcome::Message(text.into()), now);
                self.outbox.push_ended(ended, Urgency::Soon);
            }
            return;
        };
        let min_time = asked.min_time;
        // The server's estimate of the remaining time may be outdated.
        let too_long = self.life_end.is_some_and(|end| end.since(now) < min_time);
        let Some(request) = request.clone().filter(|_| !too_long) else {
            let returned = self.not_here(ids.iter().map(key));
            self.outbox.push_retracted(returned);
            return;
        };
        // An assignment can be repeated after a reconnect, but known instances must not run twice.
        let skip = self.skip_launched(job, &ids, instance);
        let count = ids.len();
        let class = Class::new(request, min_time, &work.task);
        let after = follows.map(|(task, of)| InstanceKey::new(job, task.as_u32(), of));
        let first = ids.ranges().first().map(IdRange::first);
        let entry = NewEntry {
            template: work,
            instance,
            variant,
            ids,
            entries,
            nodes,
        };
        if let (Some(after), Some(task)) = (after, first) {
            let key = key(task);
            if skip.is_empty() && !self.backlog.contains(key) {
                self.on_successor(after, Successor { key, class, entry });
            } else {
                self.ignored.assigned += 1;
            }
            return;
        }
        let added = self.backlog.push(class, entry, &skip);
        self.may_start |= added > 0;
        // Instances that already wait or run are not added again.
        self.ignored.assigned += u64::from(count - added);
    }

    /// Returns the positions of instances that are already launched. Also declines the instances
    /// whose running task will end without a report.
    fn skip_launched(&mut self, job: JobId, ids: &IdArray, instance: InstanceId) -> Vec<u32> {
        let (first, last) = backlog::span(ids);
        let launched = self.running.between(job, first, last);
        let launched = launched.filter(|key| key.instance == instance);
        let launched: Vec<InstanceKey> = launched.collect();
        let mut skip = Vec::with_capacity(launched.len());
        for key in launched {
            let Some(position) = ids.position(key.task.task.as_u32()) else {
                // The id is in a gap of these ids.
                continue;
            };
            skip.push(position);
            if self.is_void(key) {
                // The running task was assigned by another server, or by one that lost its state.
                // Two tasks with the same name must not run.
                self.declined.insert(key);
            }
        }
        skip
    }

    /// Handles the arrival of a task that follows another one.
    fn on_successor(&mut self, after: InstanceKey, successor: Successor) {
        if self.knows(after) && !self.is_void(after) {
            self.backlog.push_behind(after, successor);
            if let Some(token) = self.running.token_of(after) {
                self.note_awaited(token);
            }
        } else if self.outbox.has_finished(after) {
            // The predecessor ended while this task was in transit.
            self.backlog.push(successor.class, successor.entry, &[]);
            self.may_start = true;
        } else {
            // The predecessor failed or was returned, and the server already knows that.
            self.outbox.push_retracted([successor.key]);
        }
    }

    /// Returns to the server an instance that will not start on this worker, and its successors.
    fn give_back(&mut self, key: InstanceKey) {
        self.outbox.push_retracted([key]);
        self.give_up_successors(key);
    }

    /// Returns to the server the successors of an instance that does not finish on this worker.
    fn give_up_successors(&mut self, key: InstanceKey) {
        let behind = self.backlog.drop_behind(key);
        self.outbox.push_retracted(behind);
    }

    /// Returns the instances that neither wait nor run on this worker, or that run but will end
    /// without a report.
    fn not_here(&self, keys: impl Iterator<Item = InstanceKey>) -> Vec<InstanceKey> {
        keys.filter(|key| !self.knows(*key) || self.is_void(*key))
            .collect()
    }

    /// Returns whether an instance waits or is launched.
    fn knows(&self, key: InstanceKey) -> bool {
        self.running.token_of(key).is_some() || self.backlog.contains(key)
    }

    /// Returns whether an instance was asked to end because the server does not want its result.
    fn is_void(&self, key: InstanceKey) -> bool {
        let task = self.running.token_of(key);
        let task = task.and_then(|token| self.running.get(token));
        task.is_some_and(|task| task.phase == Phase::Ending(EndCause::Void))
    }

    /// Handles a retraction. A task that is no longer on this worker gets no answer, because one is
    /// already in transit. The server could mistake a second answer for the answer to the next
    /// assignment of the same instance.
    fn on_retract(&mut self, keys: Vec<InstanceKey>) {
        for key in keys {
            // The instance was kept until now. It is returned once, however often the server
            // requests it.
            if self.declined.remove(&key) {
                self.outbox.push_retracted([key]);
            } else if self.backlog.remove(key) {
                // No room is reserved for the task anymore.
                self.may_start = true;
                self.give_back(key);
            } else {
                // The task may still return unstarted from its lane.
                self.running.ask_for(key);
                self.ignored.retracted += 1;
            }
        }
    }

    fn on_kill(&mut self, now: Time, keys: Vec<InstanceKey>, effects: &mut Vec<Effect>) {
        for key in keys {
            // The task has not started, so no process will end. Its end is reported here instead.
            if self.declined.remove(&key) || self.backlog.remove(key) {
                self.may_start = true;
                let ended = EndReport::unstarted(key, Outcome::Killed, now);
                self.outbox.push_ended(ended, Urgency::Soon);
                self.give_up_successors(key);
            } else if let Some(token) = self.running.token_of(key) {
                self.end_task(token, EndCause::Killed, effects);
            } else if !self.outbox.kill_held(key) {
                self.ignored.killed += 1;
            }
        }
    }

    /// Asks a launched instance to end, unless it was asked before.
    fn end_task(&mut self, token: LaunchToken, cause: EndCause, effects: &mut Vec<Effect>) {
        let phase = self.running.get(token).map(|task| task.phase);
        match (phase, cause) {
            // The signals are sent once, however often they are requested.
            (Some(Phase::Starting | Phase::Running { .. }), _) => {
                self.running.set_phase(token, Phase::Ending(cause));
                effects.push(Effect::Terminate(token));
            }
            // The signals have already been sent, so only the reported outcome changes.
            (Some(Phase::Ending(EndCause::TimeLimit)), EndCause::Killed)
            | (Some(Phase::Ending(EndCause::TimeLimit | EndCause::Killed)), EndCause::Void) => {
                self.running.set_phase(token, Phase::Ending(cause));
            }
            (Some(Phase::Ending(_)) | None, _) => {}
        }
    }

    fn on_launch_event(&mut self, now: Time, event: LaunchEvent) {
        match event {
            LaunchEvent::Started { token, at } => self.on_task_started(token, at),
            LaunchEvent::Failed { token, failure } => self.on_launch_failed(now, token, failure),
            LaunchEvent::Exited {
                token,
                status,
                ended,
                run,
                usage,
                message,
            } => {
                let Some(task) = self.take_ended(now, token) else {
                    return;
                };
                // The run time is noted for every outcome. Whether it counts for the next task of
                // the same kind depends only on the phase.
                self.note_run(&task, run);
                let is_by_itself = matches!(task.phase, Phase::Starting | Phase::Running { .. });
                let outcome = match task.phase {
                    Phase::Starting | Phase::Running { .. } => Some(outcome_of(status, message)),
                    Phase::Ending(EndCause::Killed) => Some(Outcome::Killed),
                    // The task had ended by itself when its time limit expired.
                    Phase::Ending(EndCause::TimeLimit)
                        if task.time_limit.is_some_and(|limit| run < limit) =>
                    {
                        Some(outcome_of(status, message))
                    }
                    Phase::Ending(EndCause::TimeLimit) => Some(Outcome::TimeLimit),
                    // This completion is not reported. When this worker is gone, the server
                    // requeues the task and knows the reason.
                    Phase::Ending(EndCause::WorkerEnd) => {
                        self.spent.insert(task.key);
                        None
                    }
                    Phase::Ending(EndCause::Void) => None,
                };
                let has_finished = outcome == Some(Outcome::Finished);
                let goes_on = has_finished && self.backlog.go_on_from(task.key);
                if !has_finished {
                    self.give_up_successors(task.key);
                }
                if let Some(outcome) = outcome {
                    // A failure is reported soon, because the server may retry the task or fail its
                    // job.
                    let haste = match has_finished {
                        true if goes_on => Urgency::Link,
                        true if task.is_one_of_many => Urgency::Stream,
                        true | false => Urgency::Soon,
                    };
                    let ended = EndReport {
                        key: task.key,
                        outcome,
                        at: ended,
                        run,
                        usage,
                    };
                    if self.in_allocation && is_by_itself && !has_finished {
                        self.outbox.hold_end(now, ended);
                    } else {
                        self.outbox.push_ended(ended, haste);
                    }
                }
            }
        }
    }

    fn on_task_started(&mut self, token: LaunchToken, at: Time) {
        let Some(task) = self.running.get(token) else {
            self.ignored.launcher += 1;
            return;
        };
        match task.phase {
            Phase::Starting => {
                let deadline = task.time_limit.map(|limit| at + limit);
                // A start is reported soon if the task takes a long time or must not start twice.
                let is_link = self.backlog.is_any_behind(task.key);
                let is_in_company = task.is_one_of_many || is_link;
                let is_short = is_in_company && task.expected < AHEAD_OF_MANY;
                let template = self.templates.get(&task.template);
                let starts_once = template
                    .is_some_and(|known| known.work.task.crash_limit == CrashLimit::NeverRestart);
                let haste = match is_short && !starts_once {
                    true if is_link => Urgency::Link,
                    true => Urgency::Stream,
                    false => Urgency::Soon,
                };
                self.outbox.push_started(task.key, at, haste);
                let since = at;
                self.running
                    .set_phase(token, Phase::Running { since, deadline });
                self.note_awaited(token);
            }
            // A process cannot start twice, so only the first start counts.
            Phase::Running { .. } => self.ignored.launcher += 1,
            // The task was asked to end while it started. Its end counts.
            Phase::Ending(_) => {}
        }
    }

    fn on_launch_failed(&mut self, now: Time, token: LaunchToken, failure: LaunchFailure) {
        let lane = self.running.get(token).map(|task| task.lane);
        let lane = lane.and_then(|lane| self.running.lane(lane));
        let class = lane.map(|lane| Arc::clone(&lane.class));
        let Some(task) = self.take_ended(now, token) else {
            return;
        };
        let outcome = match (task.phase, failure) {
            (Phase::Ending(EndCause::WorkerEnd), _) => {
                // Its successors are declined as well. The task never ran, so the next worker may
                // use the same instance.
                self.declined.insert(task.key);
                return;
            }
            (Phase::Ending(EndCause::Void), _) => return,
            (Phase::Ending(EndCause::TimeLimit), _) => Outcome::TimeLimit,
            (Phase::Ending(EndCause::Killed), _) => Outcome::Killed,
            (_, LaunchFailure::Permanent(text)) => Outcome::Message(text),
            (_, LaunchFailure::Transient) => {
                self.give_back(task.key);
                return;
            }
            (_, LaunchFailure::Cancelled) => {
                self.put_back(task, class);
                return;
            }
        };
        let key = task.key;
        let ended = EndReport::unstarted(key, outcome, now);
        self.outbox.push_ended(ended, Urgency::Soon);
        self.give_up_successors(key);
    }

    /// Removes an instance, and frees its resources unless its lane continues.
    fn take_ended(&mut self, now: Time, token: LaunchToken) -> Option<RunningTask> {
        let Some(task) = self.running.remove(token) else {
            self.ignored.launcher += 1;
            return None;
        };
        // Only the last task of a lane frees the common grant.
        if let Some(grant) = self.running.leave_lane(token, &task, now) {
            self.pools.release(&grant);
        }
        if self.declined.remove(&task.key) {
            self.outbox.push_retracted([task.key]);
        }
        self.may_start = true;
        Some(task)
    }
}

/// Returns the outcome of an instance that ended by itself.
fn outcome_of(status: ExitStatus, message: Option<Box<str>>) -> Outcome {
    match (status, message) {
        // Success comes first, because a message from a successful task explains nothing.
        (ExitStatus::Code(0), _) => Outcome::Finished,
        (ExitStatus::ExceededMemory, words) => Outcome::OutOfMemory(words),
        (_, Some(message)) => Outcome::Message(message),
        (ExitStatus::OutOfMemory, None) => Outcome::OutOfMemory(None),
        (ExitStatus::Code(code), None) => Outcome::ExitCode(code),
        (ExitStatus::Signal(signal), None) => Outcome::Signal(signal),
    }
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
