//! Calls: tasks that an already running interpreter executes.
//!
//! ```text
//!   launcher ──▶ CallPool ── packets ──▶ interpreter (a process of the spawn engine)
//!                   ▲ │ idle, busy            │
//!                   │ └─ leased to a lane ◀───┘ answers: a value, or what went wrong
//! ```
//!
//! The pool starts an interpreter for the first call of its kind and leases it to a lane: the calls
//! of a lane share one grant and run one after the other. At the end of the lane, the interpreter
//! waits for the next lane with calls of its kind. Like every process of the spawn engine, it ends
//! with the worker.
//!
//! Calls are sent as packets over a socket, and the worker keeps both of its ends open. Each packet
//! is received once: by the interpreter just before it begins the call, or by the worker, which
//! takes it back. The worker therefore always knows whether a call has begun, no matter how the
//! interpreter ends.

mod ends;
mod interpreter;
mod launch;
mod needs;
mod packet;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hq_core::placeholder::TaskPaths;
use hq_core::retry::StopSpec;
use hq_core::template::{ByteText, CrashLimit, TaskTemplate};
use hq_core::time::Time;
use hq_core::worker_state::{ExitStatus, InstanceKey, LaunchEvent, LaunchFailure, LaunchToken};
use hq_spawn::{SpawnPlan, Token};
use tokio::sync::mpsc;

use super::amounts::GrantedAmounts;
use super::template::CompiledTemplate;
use crate::clock;
use crate::overview::memory_available;
use crate::values::{Reference, ValueFile, ValueStore};
use ends::{keep, kill_requested, long_end, usage_of, value_of};
pub(super) use interpreter::Interpreter;
use interpreter::{Ends, Outputs, Packet, SendOutcome, create_outputs};
use needs::ParkedCall;
use packet::Answer;

/// The bit that marks the tokens of interpreters. The tokens of tasks never have it.
const INTERPRETER: u64 = 1 << 63;

/// The maximum size of unacknowledged values in bytes. When it is reached, no more calls are sent
/// to interpreters.
const VALUES_MAX: usize = 256 << 20;

/// The number of idle interpreters that are kept in addition to one per cpu, for kinds that take
/// turns.
const SPARE_MAX: usize = 2;

/// How long an interpreter stays idle. Its modules and what `init` loaded take memory that no
/// request counts.
const IDLE_TIME_MAX: Duration = Duration::from_mins(1);

/// The properties that calls must have in common to share an interpreter.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    pub(super) template: Arc<TaskTemplate>,
    pub(super) variant: u32,
    /// The variables that a program reads when it starts, such as the names of its GPUs.
    pub(super) fixed: Vec<(String, String)>,
    /// The memory that an interpreter may use, in KiB.
    pub(super) memory_limit: Option<u64>,
}

impl Kind {
    /// Returns whether calls of both templates can share an interpreter.
    pub(super) fn is_shared(ours: &Arc<TaskTemplate>, theirs: &Arc<TaskTemplate>) -> bool {
        // Usually both have the same template. But each submit has its own template, which may
        // equal an earlier one.
        Arc::ptr_eq(ours, theirs)
            || ours.args == theirs.args
                && ours.env == theirs.env
                && ours.stdin == theirs.stdin
                && ours.stop == theirs.stop
                && ours.requests == theirs.requests
    }

    /// Returns whether `fixed` of another process names a GPU of this kind.
    fn shares_gpu(&self, fixed: &[(String, String)]) -> bool {
        let meets = |ours: &str, theirs: &str| {
            ours.split(',')
                .any(|gpu| theirs.split(',').any(|other| gpu == other))
        };
        self.fixed.iter().any(|(name, ours)| {
            // An idle interpreter does not use its cpus.
            name != "OMP_PLACES"
                && fixed
                    .iter()
                    .any(|(other, theirs)| name == other && meets(ours, theirs))
        })
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        Self::is_shared(&self.template, &other.template)
            && self.variant == other.variant
            && self.fixed == other.fixed
            && self.memory_limit == other.memory_limit
    }
}

/// A call that was passed to the pool.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) token: LaunchToken,
    pub(super) key: InstanceKey,
    pub(super) compiled: Arc<CompiledTemplate>,
    /// The encoded directory, variables and cpus.
    pub(super) place: Arc<[u8]>,
    /// The encoded function and its arguments.
    pub(super) payload: Box<[u8]>,
    pub(super) server_uid: Box<str>,
    /// The granted amounts, shown next to the usage curve of the call.
    pub(super) given: GrantedAmounts,
    /// When the call started. `None` while it is queued.
    pub(super) since: Option<Time>,
    /// The CPU time that the interpreter had used when the call started.
    pub(super) cpu_before: Duration,
    /// The values that the call reads. They are kept here until the call ends.
    pub(super) needs: Vec<Arc<ValueFile>>,
}

impl Call {
    /// Returns the paths of the call's output.
    fn paths(&self) -> TaskPaths {
        self.compiled.paths(self.key, &self.server_uid)
    }
}

/// The data that is needed to start another interpreter of the same kind.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub(super) plan: SpawnPlan,
    pub(super) kind: Kind,
    /// The arguments, for error messages if the start fails.
    pub(super) args: Vec<ByteText>,
    pub(super) cwd: PathBuf,
}

/// An interpreter that must be started.
pub(super) struct PendingInterpreter {
    pub(super) lane: LaunchToken,
    pub(super) recipe: Recipe,
    pub(super) calls: VecDeque<Call>,
}

type Channel<T> = (mpsc::UnboundedSender<T>, mpsc::UnboundedReceiver<T>);

/// All interpreters of a worker.
pub(crate) struct CallPool {
    interpreters: BTreeMap<u64, Interpreter>,
    /// The number of the interpreter that each lane uses.
    lanes: HashMap<LaunchToken, u64>,
    /// The number of the interpreter that has each call.
    calls: HashMap<LaunchToken, u64>,
    last: u64,
    /// The answers of all interpreters. The channel is unbounded, but each interpreter is sent only
    /// a few calls at a time.
    packets: Channel<Packet>,
    /// The end events of calls whose output has been copied to its file, one for each call that
    /// wrote something.
    copied: Channel<LaunchEvent>,
    /// The outputs of interpreters that have been created or truncated, at most one for each
    /// interpreter.
    outputs: Channel<(u64, io::Result<Outputs>)>,
    /// The interpreters whose process can be started.
    prepared: Vec<(u64, Ends)>,
    events: Vec<LaunchEvent>,
    /// Ended calls that ran long enough to have a usage curve.
    long_ends: Vec<LongEnd>,
    values: HashMap<InstanceKey, Box<[u8]>>,
    value_bytes: usize,
    /// The values that are too long for the server.
    pub(crate) long: ValueStore,
    /// The calls that wait for values of other workers.
    parked: Vec<ParkedCall>,
    /// The calls whose values have arrived but that have no interpreter.
    wanted: Vec<PendingInterpreter>,
    idle_max: usize,
    /// The directory for output.
    dir: PathBuf,
}

/// The end of a call for its usage curve: the run time, and the CPU time since its start.
pub(super) type LongEnd = (LaunchToken, Duration, Duration);

/// A call that is running, and its interpreter.
pub(super) struct RunningCall {
    pub(super) key: InstanceKey,
    pub(super) given: GrantedAmounts,
    pub(super) pid: u32,
    pub(super) cpu_before: Duration,
}

/// Returns whether a token of the spawn engine belongs to an interpreter.
pub(super) const fn is_interpreter(token: u64) -> bool {
    token & INTERPRETER != 0
}

impl CallPool {
    pub(super) fn new(dir: PathBuf, host: &str, values_limit: Option<u64>) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            interpreters: BTreeMap::new(),
            lanes: HashMap::new(),
            calls: HashMap::new(),
            last: 0,
            packets: mpsc::unbounded_channel(),
            copied: mpsc::unbounded_channel(),
            outputs: mpsc::unbounded_channel(),
            prepared: Vec::new(),
            events: Vec::new(),
            long_ends: Vec::new(),
            values: HashMap::new(),
            value_bytes: 0,
            long: ValueStore::new(dir.clone(), host, values_limit),
            parked: Vec::new(),
            wanted: Vec::new(),
            // This is the number that can be busy at once, and a few more for kinds that take
            // turns.
            idle_max: cpus + SPARE_MAX,
            dir,
        }
    }

    /// Waits for answers of interpreters.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(super) async fn news(&mut self) {
        // These events come from calls that were sent since the last collection, for example when a
        // call started in an idle interpreter.
        if !self.events.is_empty() {
            return;
        }
        tokio::select! {
            Some((id, packet)) = self.packets.1.recv() => self.on_packet(id, &packet),
            Some(event) = self.copied.1.recv() => self.events.push(event),
            Some((id, outputs)) = self.outputs.1.recv() => self.on_outputs(id, outputs),
            fetched = self.long.next() => self.on_fetched(fetched),
        }
        self.take_packets();
    }

    fn take_packets(&mut self) {
        while let Ok((id, packet)) = self.packets.1.try_recv() {
            self.on_packet(id, &packet);
        }
        while let Ok(event) = self.copied.1.try_recv() {
            self.events.push(event);
        }
        while let Ok((id, outputs)) = self.outputs.1.try_recv() {
            self.on_outputs(id, outputs);
        }
        while let Some(fetched) = self.long.try_next() {
            self.on_fetched(fetched);
        }
    }

    /// Appends all new events to `events`.
    pub(super) fn collect(&mut self, events: &mut Vec<LaunchEvent>) {
        self.take_packets();
        events.append(&mut self.events);
    }

    /// Returns the long calls that have ended since the last call of this method.
    pub(super) fn take_long_ends(&mut self) -> Vec<LongEnd> {
        std::mem::take(&mut self.long_ends)
    }

    /// Returns the call if it is running.
    pub(super) fn turn(&self, token: LaunchToken) -> Option<RunningCall> {
        let interpreter = self.interpreters.get(self.calls.get(&token)?)?;
        let first = interpreter.sent.front();
        let call = first.or_else(|| interpreter.waiting.front())?;
        (call.token == token).then_some(RunningCall {
            key: call.key,
            given: call.given.clone(),
            pid: interpreter.pid?,
            cpu_before: call.cpu_before,
        })
    }

    /// Returns the token for an interpreter that is about to be started.
    pub(super) const fn next_id(&mut self) -> u64 {
        self.last += 1;
        // Tokens of tasks never reach this bit.
        self.last | INTERPRETER
    }

    /// Passes a call to the interpreter of its lane, or to an idle one. Returns the call if there
    /// is neither.
    pub(super) fn push(&mut self, lane: LaunchToken, kind: &Kind, call: Call) -> Option<Call> {
        let leased = self.lanes.get(&lane).copied();
        let found = leased.and_then(|id| Some((id, &self.interpreters.get(&id)?.recipe.kind)));
        let id = match found {
            Some((_, other)) if other != kind => {
                // A second interpreter would run at the same time as this one, which holds the
                // grant of the lane.
                self.events.push(LaunchEvent::Failed {
                    token: call.token,
                    failure: LaunchFailure::Cancelled,
                });
                return None;
            }
            // An interpreter that is ending passes the call on.
            Some((id, _)) => id,
            None => match self.idle(kind) {
                Some(id) => id,
                None => return Some(call),
            },
        };
        let token = call.token;
        let Some(interpreter) = self.interpreters.get_mut(&id) else {
            return Some(call);
        };
        interpreter.lane = Some(lane);
        interpreter.waiting.push_back(call);
        self.lanes.insert(lane, id);
        self.calls.insert(token, id);
        self.pump(id);
        None
    }

    /// Returns the most recently used idle interpreter of a kind.
    fn idle(&self, kind: &Kind) -> Option<u64> {
        let idle = self.interpreters.iter().filter(|(_, one)| {
            one.lane.is_none() && one.is_ready && !one.is_ending && one.recipe.kind == *kind
        });
        // The one that was busy last has the warmest caches. The others become surplus.
        idle.max_by_key(|(_, one)| one.idle_since)
            .map(|(id, _)| *id)
    }

    /// Adds an interpreter that is being started.
    pub(super) fn add(&mut self, id: u64, mut interpreter: Interpreter, calls: VecDeque<Call>) {
        if let Some(lane) = interpreter.lane {
            self.lanes.insert(lane, id);
        }
        for call in &calls {
            self.calls.insert(call.token, id);
        }
        interpreter.waiting = calls;
        // This must follow the recording of its calls, because an answer may arrive at once.
        interpreter.listen(id, self.packets.0.clone());
        self.interpreters.insert(id, interpreter);
    }

    /// Begins to create the outputs of an interpreter, see [`Self::take_prepared`].
    pub(super) fn create_outputs(&self, id: u64) {
        let outputs = self.outputs.0.clone();
        create_outputs(self.dir.clone(), move |created| {
            // This fails only if the worker ends.
            let _ = outputs.send((id, created));
        });
    }

    /// Takes over outputs that were created or truncated.
    fn on_outputs(&mut self, id: u64, outputs: io::Result<Outputs>) {
        let Some(interpreter) = self.interpreters.get_mut(&id) else {
            return;
        };
        let ends = match outputs {
            Ok(outputs) if interpreter.is_shrinking => {
                interpreter.on_shrunk(outputs);
                // Without a waiting call, the outputs would be truncated again, and forever if that
                // fails.
                if !interpreter.waiting.is_empty() {
                    self.pump(id);
                }
                return;
            }
            created => created.and_then(|outputs| interpreter.open(outputs)),
        };
        match ends {
            Ok(ends) => self.prepared.push((id, ends)),
            Err(error) => self.on_failed(id, || cannot_prepare(&error)),
        }
    }

    /// Returns the interpreters whose process can be started.
    pub(super) fn take_prepared(&mut self) -> Vec<(u64, Ends)> {
        std::mem::take(&mut self.prepared)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Interpreter> {
        self.interpreters.get_mut(&id)
    }

    /// Returns the surplus idle interpreters and those that were idle for [`IDLE_TIME_MAX`], the
    /// longest idle first.
    pub(super) fn surplus(&mut self, now: Time) -> Vec<Token> {
        let mut idle: Vec<Time> = self.all_idle().map(|(_, one)| one.idle_since).collect();
        // The longest idle ones end first.
        idle.sort_unstable();
        let surplus = idle.len().saturating_sub(self.idle_max);
        let kept_since = idle.get(surplus).copied();
        self.end_idle(|one| {
            now.since(one.idle_since) >= IDLE_TIME_MAX
                || kept_since.is_none_or(|since| one.idle_since < since)
        })
    }

    pub(super) fn has_idle(&self) -> bool {
        self.all_idle().next().is_some()
    }

    fn all_idle(&self) -> impl Iterator<Item = (u64, &Interpreter)> {
        let all = self.interpreters.iter().map(|(id, one)| (*id, one));
        all.filter(|(_, one)| one.lane.is_none() && !one.is_ending)
    }

    /// Returns the idle interpreters that hold a GPU of `fixed` or, if memory is needed, all of
    /// them. `memory_kib` is what the new process requests.
    pub(super) fn in_the_way(
        &mut self,
        fixed: &[(String, String)],
        memory_kib: Option<u64>,
    ) -> Vec<Token> {
        let is_short = memory_kib.is_some_and(|kib| memory_available() / 1024 < kib);
        self.end_idle(|one| is_short || one.recipe.kind.shares_gpu(fixed))
    }

    /// Asks idle interpreters to end and returns them.
    pub(super) fn end_idle(&mut self, is_needless: impl Fn(&Interpreter) -> bool) -> Vec<Token> {
        let idle = self.all_idle().filter(|(_, one)| is_needless(one));
        let idle: Vec<u64> = idle.map(|(id, _)| id).collect();
        for id in &idle {
            if let Some(one) = self.interpreters.get_mut(id) {
                one.hang_up();
            }
        }
        idle.into_iter().map(Token).collect()
    }

    /// Sends queued calls as long as they fit.
    fn pump(&mut self, id: u64) {
        // Values stay in memory until the server takes them, so no new ones are produced.
        if self.value_bytes >= VALUES_MAX {
            return;
        }
        let Some(interpreter) = self.interpreters.get_mut(&id) else {
            return;
        };
        if !interpreter.is_open() {
            return;
        }
        while let Some(call) = interpreter.waiting.pop_front() {
            match interpreter.send(call) {
                SendOutcome::Yes => {}
                SendOutcome::Full(call) => {
                    interpreter.waiting.push_front(call);
                    break;
                }
                SendOutcome::Failed(call, text) => {
                    self.calls.remove(&call.token);
                    let failure = LaunchFailure::Permanent(text);
                    self.events.push(LaunchEvent::Failed {
                        token: call.token,
                        failure,
                    });
                }
            }
        }
        note_turn(interpreter, clock::now().mono, &mut self.events);
        self.release_if_idle(id);
    }

    fn release_if_idle(&mut self, id: u64) {
        let Some(interpreter) = self.interpreters.get_mut(&id) else {
            return;
        };
        if !interpreter.sent.is_empty() || !interpreter.waiting.is_empty() {
            return;
        }
        if let Some(lane) = interpreter.lane.take() {
            self.lanes.remove(&lane);
        }
        interpreter.idle_since = clock::now().mono;
        // No call refers to a position in the file now.
        let outputs = self.outputs.0.clone();
        interpreter.shrink_output(move |shrunk| {
            // This fails only if the worker ends.
            let _ = outputs.send((id, Ok(shrunk)));
        });
    }

    fn on_packet(&mut self, id: u64, packet: &[u8]) {
        let Some(interpreter) = self.interpreters.get_mut(&id) else {
            return;
        };
        let answer = match packet::parse(packet) {
            Ok(answer) => answer,
            Err(reason) => {
                tracing::error!("an interpreter sent an invalid message: {reason}");
                return;
            }
        };
        match answer {
            Answer::Ready(cpu) => {
                interpreter.is_ready = true;
                interpreter.cpu = cpu;
            }
            Answer::Done(done) => {
                let Some(mut call) = interpreter.take_sent(LaunchToken(done.token)) else {
                    tracing::error!("an interpreter sent an unexpected reply");
                    return;
                };
                self.calls.remove(&call.token);
                // The result of the call may need the space that its input values take up.
                call.needs.clear();
                let can_be_made_again =
                    interpreter.recipe.kind.template.crash_limit != CrashLimit::NeverRestart;
                let (value, failure) = value_of(&done, &mut self.long, &call, can_be_made_again);
                keep(&mut self.values, &mut self.value_bytes, call.key, value);
                let is_ok = failure.is_none();
                let ended = clock::now().mono;
                let used = done.cpu.since(interpreter.cpu);
                interpreter.cpu = done.cpu;
                self.long_ends.extend(long_end(&call, ended, done.cpu));
                let event = LaunchEvent::Exited {
                    token: call.token,
                    status: ExitStatus::Code(i32::from(!is_ok)),
                    ended,
                    run: done.run,
                    usage: usage_of(used, done.max_rss_kib),
                    message: failure,
                };
                let copied = self.copied.0.clone();
                match interpreter.take_output(&call, (done.out_end, done.err_end), is_ok) {
                    Some(copy) => copy.run(move || {
                        // This fails only if the worker ends.
                        let _ = copied.send(event);
                    }),
                    None => self.events.push(event),
                }
            }
        }
        self.pump(id);
    }

    /// Records that the process of an interpreter is running. Its creation began at `at`.
    pub(super) fn on_started(&mut self, id: u64, pid: u32, at: Time) {
        if let Some(interpreter) = self.interpreters.get_mut(&id) {
            interpreter.pid = Some(pid);
            note_turn(interpreter, at, &mut self.events);
        }
    }

    /// Takes back a call that has not begun. Returns `false` if it has begun. If this returns
    /// `false` and `ends_otherwise` is set, the interpreter gets no other call, because it will be
    /// killed.
    pub(super) fn take_back(&mut self, token: LaunchToken, ends_otherwise: bool) -> bool {
        if self.unpark(token) {
            self.events.push(LaunchEvent::Failed {
                token,
                failure: LaunchFailure::Cancelled,
            });
            return true;
        }
        let Some(interpreter) = self
            .calls
            .get(&token)
            .copied()
            .and_then(|id| self.interpreters.get_mut(&id))
        else {
            return false;
        };
        interpreter.take_back_sent();
        // The server does not retract a call that counts as started, but the user may cancel it.
        let may_go = |call: &Call| call.since.is_none() || (ends_otherwise && interpreter.is_ready);
        let position = interpreter
            .waiting
            .iter()
            .position(|call| call.token == token && may_go(call));
        let found = position.and_then(|position| interpreter.waiting.remove(position));
        let id = self.calls.get(&token).copied();
        if let Some(call) = &found {
            self.calls.remove(&token);
            self.events.push(match call.since {
                None => LaunchEvent::Failed {
                    token,
                    failure: LaunchFailure::Cancelled,
                },
                Some(since) => kill_requested(token, since),
            });
        }
        if let Some(id) = id.filter(|_| found.is_some() || !ends_otherwise) {
            self.pump(id);
        }
        found.is_some()
    }

    /// Returns the interpreter of a call that must end. The interpreter is killed together with the
    /// call.
    pub(super) fn end(&mut self, token: LaunchToken) -> Option<Token> {
        let id = *self.calls.get(&token)?;
        let interpreter = self.interpreters.get_mut(&id)?;
        interpreter.is_ending = true;
        Some(Token(id))
    }

    /// Returns how a call is stopped, or `None` if the call is unknown.
    pub(super) fn stop_of(&self, token: LaunchToken) -> Option<StopSpec> {
        let Some(id) = self.calls.get(&token) else {
            let parked = self.parked.iter().find(|one| one.token() == token)?;
            return Some(parked.recipe.kind.template.stop);
        };
        Some(self.interpreters.get(id)?.recipe.kind.template.stop)
    }

    /// Returns whether the pool has the call, running or queued.
    pub(super) fn has(&self, token: LaunchToken) -> bool {
        self.calls.contains_key(&token) || self.parked.iter().any(|one| one.token() == token)
    }

    /// Records that an interpreter could not be started.
    pub(super) fn on_failed(&mut self, id: u64, failure: impl Fn() -> LaunchFailure) {
        let Some(mut interpreter) = self.remove(id) else {
            return;
        };
        // The interpreter never ran, so no call has begun.
        for call in interpreter.waiting.drain(..) {
            self.calls.remove(&call.token);
            self.events.push(LaunchEvent::Failed {
                token: call.token,
                failure: failure(),
            });
        }
    }

    fn remove(&mut self, id: u64) -> Option<Interpreter> {
        let interpreter = self.interpreters.remove(&id)?;
        if let Some(lane) = interpreter.lane
            // The lane may have another interpreter by now.
            && self.lanes.get(&lane) == Some(&id)
        {
            self.lanes.remove(&lane);
        }
        Some(interpreter)
    }

    /// Returns the value of a call that has ended, for the server.
    pub(crate) fn value(&self, key: InstanceKey) -> Option<&[u8]> {
        self.values.get(&key).map(AsRef::as_ref)
    }

    pub(crate) fn has_values(&self) -> bool {
        !self.values.is_empty()
    }

    /// Drops values that the server has stored.
    pub(crate) fn forget_values(&mut self, keys: impl IntoIterator<Item = InstanceKey>) {
        // Interpreters that paused because of the limit continue.
        let was_full = self.value_bytes >= VALUES_MAX;
        for key in keys {
            if let Some(value) = self.values.remove(&key) {
                self.value_bytes -= value.len();
            }
        }
        if was_full && self.value_bytes < VALUES_MAX {
            let all: Vec<u64> = self.interpreters.keys().copied().collect();
            for id in all {
                self.pump(id);
            }
        }
    }

    /// Drops all values, because no server will ask for them.
    pub(crate) fn forget_all_values(&mut self) {
        self.values.clear();
        self.value_bytes = 0;
    }
}

/// Returns the failure for an interpreter that cannot be prepared.
fn cannot_prepare(error: &io::Error) -> LaunchFailure {
    LaunchFailure::Permanent(format!("Cannot prepare an interpreter: {error}").into())
}

/// Marks the first call of an interpreter as started.
fn note_turn(interpreter: &mut Interpreter, at: Time, events: &mut Vec<LaunchEvent>) {
    let cpu = interpreter.cpu.sum();
    let first = match interpreter.sent.front_mut() {
        Some(first) => Some(first),
        // The start-up time of the interpreter counts as the call's.
        None if interpreter.pid.is_some() && !interpreter.is_ready => {
            interpreter.waiting.front_mut()
        }
        None => None,
    };
    if let Some(call) = first.filter(|call| call.since.is_none()) {
        call.since = Some(at);
        call.cpu_before = cpu;
        events.push(LaunchEvent::Started {
            token: call.token,
            at,
        });
    }
}

#[cfg(test)]
mod tests;
