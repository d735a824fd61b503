//! Calls: tasks that an interpreter carries out which was there before.
//!
//! ```text
//!   launcher ──▶ CallPool ── packets ──▶ interpreter (a process of the spawn engine)
//!                   ▲ │ idle, busy            │
//!                   │ └─ leased to a lane ◀───┘ answers: a value, or what went wrong
//! ```
//!
//! An interpreter is started for the first call of its kind and leased to a lane: the calls of a lane use one grant and
//! run one after the other. When the lane is over, it waits for the next lane with calls of its kind. It ends with the
//! worker, as every process of the spawn engine does.
//!
//! Calls travel as packets of a socket of which the worker keeps both ends. A packet is received once: by the
//! interpreter, which takes one when it is about to begin with it, or by the worker, which takes it back. So it is certain
//! whether a call has begun, however the interpreter ends and whatever it does meanwhile.

mod interpreter;
mod launch;
mod needs;
mod packet;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hq_core::curve::SPACING_MIN;
use hq_core::outcome::Usage;
use hq_core::placeholder::TaskPaths;
use hq_core::retry::StopSpec;
use hq_core::template::{ByteText, CrashLimit, TaskTemplate};
use hq_core::time::Time;
use hq_core::worker_state::{ExitStatus, InstanceKey, LaunchEvent, LaunchFailure, LaunchToken};
use hq_spawn::{SpawnPlan, Token};
use tokio::sync::mpsc;

use super::amounts::Given;
use super::template::CompiledTemplate;
use crate::clock;
use crate::values::{HoldError, Reference, ValueFile, ValueStore};
pub(super) use interpreter::Interpreter;
use interpreter::{Packet, Packets, Sent};
use needs::Parked;
use packet::{Answer, CpuTime, Done};

/// Tokens of interpreters, which tasks never have.
const INTERPRETER: u64 = 1 << 63;

/// Bytes of values that wait for the server; then no call is sent to an interpreter.
const VALUES_MAX: usize = 256 << 20;

/// Interpreters that wait for calls, besides one for each cpu: of other kinds than those that run now.
const SPARE_MAX: usize = 2;

/// Properties that calls must share to be carried out by one interpreter.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    pub(super) template: Arc<TaskTemplate>,
    pub(super) variant: u32,
    /// Variables that are read when a program starts, such as those that name its GPUs.
    pub(super) fixed: Vec<(String, String)>,
    /// Memory that it may use, in KiB.
    pub(super) memory_limit: Option<u64>,
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        let (ours, theirs) = (&self.template, &other.template);
        // Nearly always the same template; each submit has its own, though, and may be like an
        // earlier one.
        let is_same = Arc::ptr_eq(ours, theirs)
            || ours.args == theirs.args
                && ours.env == theirs.env
                && ours.stdin == theirs.stdin
                && ours.stop == theirs.stop
                && ours.requests == theirs.requests;
        is_same
            && self.variant == other.variant
            && self.fixed == other.fixed
            && self.memory_limit == other.memory_limit
    }
}

/// A call that was handed over.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) token: LaunchToken,
    pub(super) key: InstanceKey,
    pub(super) compiled: Arc<CompiledTemplate>,
    /// Directory, variables and cpus, encoded.
    pub(super) place: Arc<[u8]>,
    /// The function and its arguments, encoded.
    pub(super) payload: Box<[u8]>,
    pub(super) server_uid: Box<str>,
    /// Beside which its use over time is shown.
    pub(super) given: Given,
    /// Since when it counts as started; `None` = it waits for its turn.
    pub(super) since: Option<Time>,
    /// CPU time of its interpreter at that time.
    pub(super) cpu_before: Duration,
    /// Values that it reads, which stay here for that long.
    pub(super) needs: Vec<Arc<ValueFile>>,
}

impl Call {
    /// Where it writes to.
    fn paths(&self) -> TaskPaths {
        self.compiled.paths(self.key, &self.server_uid)
    }
}

/// How to start an interpreter again.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub(super) plan: SpawnPlan,
    pub(super) kind: Kind,
    /// Arguments, for the errors of its start.
    pub(super) args: Vec<ByteText>,
    pub(super) cwd: PathBuf,
}

/// An interpreter that is to be started.
pub(super) struct Wanted {
    pub(super) lane: LaunchToken,
    pub(super) recipe: Recipe,
    pub(super) calls: VecDeque<Call>,
}

/// All interpreters of a worker.
pub(crate) struct CallPool {
    interpreters: BTreeMap<u64, Interpreter>,
    /// Number of the interpreter that a lane uses.
    lanes: HashMap<LaunchToken, u64>,
    /// Number of the interpreter that has a call.
    calls: HashMap<LaunchToken, u64>,
    last: u64,
    /// Answers of all interpreters. Unbounded, but each interpreter is sent a few calls at most.
    packets: (Packets, mpsc::UnboundedReceiver<Packet>),
    /// Ends whose output has been put where it belongs; one for each call that wrote something.
    copied: (
        mpsc::UnboundedSender<LaunchEvent>,
        mpsc::UnboundedReceiver<LaunchEvent>,
    ),
    events: Vec<LaunchEvent>,
    /// Calls that have ended and ran for so long that they may have been looked at.
    long_ends: Vec<LongEnd>,
    values: HashMap<InstanceKey, Box<[u8]>>,
    value_bytes: usize,
    /// Values that are too long for the server.
    pub(crate) long: ValueStore,
    /// Calls that wait for values of other workers.
    parked: Vec<Parked>,
    /// Those whose values are here, for which there is no interpreter.
    wanted: Vec<Wanted>,
    idle_max: usize,
    /// Where payloads are put that do not fit into a packet.
    pub(super) dir: PathBuf,
}

/// End of a call as its use over time sees it: age, and CPU time since it began.
pub(super) type LongEnd = (LaunchToken, Duration, Duration);

/// A call that has its turn, and where.
pub(super) struct Turn {
    pub(super) key: InstanceKey,
    pub(super) given: Given,
    pub(super) pid: u32,
    pub(super) cpu_before: Duration,
}

/// Whether a token of the spawn engine is that of an interpreter.
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
            events: Vec::new(),
            long_ends: Vec::new(),
            values: HashMap::new(),
            value_bytes: 0,
            long: ValueStore::new(dir.clone(), host, values_limit),
            parked: Vec::new(),
            wanted: Vec::new(),
            // As many as can be busy at once, and some for kinds that take turns.
            idle_max: cpus + SPARE_MAX,
            dir,
        }
    }

    /// Waits for answers of interpreters.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
    pub(super) async fn news(&mut self) {
        // Those of calls that were handed on since the last look, as the start of one whose interpreter was idle.
        if !self.events.is_empty() {
            return;
        }
        tokio::select! {
            Some((id, packet)) = self.packets.1.recv() => self.on_packet(id, &packet),
            Some(event) = self.copied.1.recv() => self.events.push(event),
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
        while let Some(fetched) = self.long.try_next() {
            self.on_fetched(fetched);
        }
    }

    /// Moves what has happened to the end of `events`.
    pub(super) fn collect(&mut self, events: &mut Vec<LaunchEvent>) {
        self.take_packets();
        events.append(&mut self.events);
    }

    /// Long calls that have ended since the last time.
    pub(super) fn take_long_ends(&mut self) -> Vec<LongEnd> {
        std::mem::take(&mut self.long_ends)
    }

    /// The call, if its interpreter is at it and it has not ended.
    pub(super) fn turn(&self, token: LaunchToken) -> Option<Turn> {
        let interpreter = self.interpreters.get(self.calls.get(&token)?)?;
        let first = interpreter.sent.front();
        let call = first.or_else(|| interpreter.waiting.front())?;
        (call.token == token).then_some(Turn {
            key: call.key,
            given: call.given.clone(),
            pid: interpreter.pid?,
            cpu_before: call.cpu_before,
        })
    }

    /// Name for an interpreter that is about to be started.
    pub(super) const fn next_id(&mut self) -> u64 {
        self.last += 1;
        // Tokens of tasks never get as far as this bit.
        self.last | INTERPRETER
    }

    /// Hands a call to the interpreter of its lane, or to one that waits; gives it back if there is none.
    pub(super) fn push(&mut self, lane: LaunchToken, kind: &Kind, call: Call) -> Option<Call> {
        let leased = self.lanes.get(&lane).copied();
        let found = leased.and_then(|id| Some((id, &self.interpreters.get(&id)?.recipe.kind)));
        let id = match found {
            Some((_, other)) if other != kind => {
                // Another interpreter would not wait for this one, with which it would share the grant.
                self.events.push(LaunchEvent::Failed {
                    token: call.token,
                    failure: LaunchFailure::Cancelled,
                });
                return None;
            }
            // One that ends hands the call on.
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

    /// The one of a kind that was used last, among those that wait.
    fn idle(&self, kind: &Kind) -> Option<u64> {
        let idle = self.interpreters.iter().filter(|(_, one)| {
            one.lane.is_none() && one.is_ready && !one.is_ending && one.recipe.kind == *kind
        });
        // The one that was busy last has its memory still warm, and others become surplus.
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
        // Once its calls are known: an answer may come at once.
        interpreter.listen(id, self.packets.0.clone());
        self.interpreters.insert(id, interpreter);
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Interpreter> {
        self.interpreters.get_mut(&id)
    }

    /// Interpreters that have waited longest, of which there are too many.
    pub(super) fn surplus(&mut self) -> Vec<Token> {
        let mut idle: Vec<(Time, u64)> = self
            .interpreters
            .iter()
            .filter(|(_, one)| one.lane.is_none() && !one.is_ending)
            .map(|(id, one)| (one.idle_since, *id))
            .collect();
        if idle.len() <= self.idle_max {
            return Vec::new();
        }
        // Those that have been idle longest end first.
        idle.sort_unstable();
        idle.truncate(idle.len() - self.idle_max);
        for (_, id) in &idle {
            if let Some(one) = self.interpreters.get_mut(id) {
                one.is_ending = true;
            }
        }
        idle.into_iter().map(|(_, id)| Token(id)).collect()
    }

    /// Sends what waits, as long as it fits.
    fn pump(&mut self, id: u64) {
        // The server takes values from here; until it has, more of them would only cost memory.
        if self.value_bytes >= VALUES_MAX {
            return;
        }
        let dir = self.dir.clone();
        let Some(interpreter) = self.interpreters.get_mut(&id) else {
            return;
        };
        // Calls that were sent before it is ready could not be taken back from one that never will be.
        if !interpreter.is_ready || interpreter.is_ending {
            return;
        }
        while let Some(call) = interpreter.waiting.pop_front() {
            match interpreter.send(&dir, call) {
                Sent::Yes => {}
                Sent::Full(call) => {
                    interpreter.waiting.push_front(call);
                    break;
                }
                Sent::Failed(call, text) => {
                    self.calls.remove(&call.token);
                    let failure = LaunchFailure::Permanent(text);
                    self.events.push(LaunchEvent::Failed {
                        token: call.token,
                        failure,
                    });
                }
            }
        }
        note_turn(interpreter, &mut self.events);
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
        // Nothing refers to a place in it now.
        interpreter.shrink_output();
    }

    fn on_packet(&mut self, id: u64, packet: &[u8]) {
        let Some(interpreter) = self.interpreters.get_mut(&id) else {
            return;
        };
        let answer = match packet::parse(packet) {
            Ok(answer) => answer,
            Err(reason) => {
                tracing::error!("an interpreter sent what makes no sense: {reason}");
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
                    tracing::error!("an interpreter answered what it was not asked");
                    return;
                };
                self.calls.remove(&call.token);
                // Its result may need the room of what it has read.
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
                        // The worker ends if nobody wants it.
                        let _ = copied.send(event);
                    }),
                    None => self.events.push(event),
                }
            }
        }
        self.pump(id);
    }

    /// The process of an interpreter runs.
    pub(super) fn on_started(&mut self, id: u64, pid: u32) {
        if let Some(interpreter) = self.interpreters.get_mut(&id) {
            interpreter.pid = Some(pid);
            note_turn(interpreter, &mut self.events);
        }
    }

    /// Takes a call back that has not begun; `false` if it has. If its interpreter is to end then, it gets no other one.
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
        // One that counts as started is not asked back, but it may be told to end.
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
                Some(since) => told_to_end(token, since),
            });
        }
        if let Some(id) = id.filter(|_| found.is_some() || !ends_otherwise) {
            self.pump(id);
        }
        found.is_some()
    }

    /// The interpreter that carries out a call which is to end; it ends with it.
    pub(super) fn end(&mut self, token: LaunchToken) -> Option<Token> {
        let id = *self.calls.get(&token)?;
        let interpreter = self.interpreters.get_mut(&id)?;
        interpreter.is_ending = true;
        Some(Token(id))
    }

    /// How a call is told to end; `None` = there is no such call.
    pub(super) fn stop_of(&self, token: LaunchToken) -> Option<StopSpec> {
        let Some(id) = self.calls.get(&token) else {
            let parked = self.parked.iter().find(|one| one.token() == token)?;
            return Some(parked.recipe.kind.template.stop);
        };
        Some(self.interpreters.get(id)?.recipe.kind.template.stop)
    }

    /// Whether a call is in an interpreter or waits for one.
    pub(super) fn has(&self, token: LaunchToken) -> bool {
        self.calls.contains_key(&token) || self.parked.iter().any(|one| one.token() == token)
    }

    /// An interpreter has not come about.
    pub(super) fn on_failed(&mut self, id: u64, failure: impl Fn() -> LaunchFailure) {
        let Some(mut interpreter) = self.remove(id) else {
            return;
        };
        // It never ran, so no call has begun.
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
            // The lane may have another one by now.
            && self.lanes.get(&lane) == Some(&id)
        {
            self.lanes.remove(&lane);
        }
        Some(interpreter)
    }

    /// An interpreter has ended, which has used so much: the call that it was at, if any, ends with it. The others go to a new one.
    pub(super) fn on_exited(
        &mut self,
        id: u64,
        (status, usage): (ExitStatus, Usage),
        message: Option<Box<str>>,
    ) -> Option<Wanted> {
        if let Some(interpreter) = self.interpreters.get(&id) {
            // Answers from before its end count, although the end may be heard of first.
            interpreter.drain(id, &self.packets.0);
        }
        self.take_packets();
        if let Some(interpreter) = self.interpreters.get_mut(&id) {
            interpreter.take_back_sent();
        }
        let mut interpreter = self.remove(id)?;
        // It had taken the calls that could not be taken back: these have begun.
        let mut begun: Vec<Call> = interpreter.sent.drain(..).collect();
        let mut waiting = std::mem::take(&mut interpreter.waiting);
        let mut status = status;
        let mut words = message;
        if !interpreter.is_ready {
            // Whatever is the matter with it, another one would do no better.
            let all = !interpreter.is_ending;
            let first = waiting.iter().position(|call| call.since.is_some());
            let of_end = first.and_then(|first| waiting.remove(first));
            begun.extend(of_end);
            if all {
                begun.extend(waiting.drain(..));
                words = words.or_else(|| Some(interpreter.stillborn(status)));
                status = ExitStatus::Code(1);
            }
        } else if words.is_none()
            && let ExitStatus::Code(code) = status
        {
            words =
                Some(format!("The interpreter ended with exit code {code} during the call").into());
            status = ExitStatus::Code(1);
        }
        let ends = interpreter.output_ends();
        let total = CpuTime {
            user: usage.user,
            system: usage.system,
        };
        let rest = usage_of(total.since(interpreter.cpu), usage.max_rss_kib);
        // Of several that never began the first one has waited for the interpreter.
        let mut rest = Some(rest);
        for call in begun {
            self.calls.remove(&call.token);
            // The file that it has begun to write belongs to nobody.
            let _ = std::fs::remove_file(self.long.place_of(call.token.0));
            let now = clock::now().mono;
            let since = call.since.unwrap_or(now);
            // The core hears of a start before it hears of an end.
            if call.since.is_none() {
                self.events.push(LaunchEvent::Started {
                    token: call.token,
                    at: now,
                });
            }
            self.long_ends.extend(long_end(&call, now, total));
            let event = LaunchEvent::Exited {
                token: call.token,
                status,
                ended: now,
                run: now.since(since),
                usage: rest.take().unwrap_or_default(),
                message: words.clone(),
            };
            let copied = self.copied.0.clone();
            match interpreter.take_output(&call, ends, false) {
                Some(copy) => copy.run(move || {
                    // The worker ends if nobody wants it.
                    let _ = copied.send(event);
                }),
                None => self.events.push(event),
            }
        }
        let lane = interpreter.lane?;
        (!waiting.is_empty()).then(|| Wanted {
            lane,
            recipe: interpreter.recipe.clone(),
            calls: waiting,
        })
    }

    /// Value of a call that has ended, for the server.
    pub(crate) fn value(&self, key: InstanceKey) -> Option<&[u8]> {
        self.values.get(&key).map(AsRef::as_ref)
    }

    pub(crate) fn has_values(&self) -> bool {
        !self.values.is_empty()
    }

    /// The server has these values.
    pub(crate) fn forget_values(&mut self, keys: impl IntoIterator<Item = InstanceKey>) {
        // Those that stood still for it go on.
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

    /// Nobody wants to know what calls came to.
    pub(crate) fn forget_all_values(&mut self) {
        self.values.clear();
        self.value_bytes = 0;
    }
}

/// First bytes of what calls came to, where they are not those of an interpreter; see python/hq/_pickle.py.
const HELD: u8 = 7;
const LOST: u8 = 8;
const TOO_LARGE: u8 = 9;
const DIED: u8 = 10;

/// Value of a call, and the reason if it failed.
fn value_of(
    done: &Done<'_>,
    long: &mut ValueStore,
    call: &Call,
    can_be_made_again: bool,
) -> (Box<[u8]>, Option<Box<str>>) {
    if !done.is_held {
        let failure = (!done.is_ok).then(|| done.message.clone().into());
        return (done.value.into(), failure);
    }
    match long.hold(done.token, call.key, can_be_made_again) {
        Ok(reference) => (value_of_kind(HELD, reference.json()), None),
        Err(error) => {
            let kind = match error {
                HoldError::NoRoom(_) => TOO_LARGE,
                HoldError::Io(_) => DIED,
            };
            let text = format!("The result of the call cannot stay on its worker: {error}");
            let value = [&[kind][..], text.as_bytes()].concat();
            (value.into(), Some(text.into()))
        }
    }
}

/// A value that the worker makes itself.
fn value_of_kind(kind: u8, json: &serde_json::Value) -> Box<[u8]> {
    let mut value = vec![kind];
    value.extend(json.to_string().into_bytes());
    value.into()
}

/// Keeps a value until the server has it.
fn keep(
    values: &mut HashMap<InstanceKey, Box<[u8]>>,
    bytes: &mut usize,
    key: InstanceKey,
    value: Box<[u8]>,
) {
    if value.is_empty() {
        return;
    }
    *bytes += value.len();
    // A later attempt of one instance does not exist, but its bytes must never be counted twice.
    let before = values.insert(key, value);
    *bytes -= before.map_or(0, |value| value.len());
}

/// The end of a call that was told to end before its interpreter had begun with it.
fn told_to_end(token: LaunchToken, since: Time) -> LaunchEvent {
    let now = clock::now().mono;
    LaunchEvent::Exited {
        token,
        status: ExitStatus::Signal(rustix::process::Signal::TERM.as_raw()),
        ended: now,
        run: Duration::from_nanos(now.0.saturating_sub(since.0)),
        usage: Usage::default(),
        message: None,
    }
}

/// The end of a call that somebody may have looked at, when its interpreter has used so much.
fn long_end(call: &Call, ended: Time, total: CpuTime) -> Option<LongEnd> {
    let age = ended.since(call.since?);
    let cpu = total.sum().saturating_sub(call.cpu_before);
    (age >= SPACING_MIN).then_some((call.token, age, cpu))
}

const fn usage_of(cpu: CpuTime, max_rss_kib: u64) -> Usage {
    Usage {
        max_rss_kib,
        user: cpu.user,
        system: cpu.system,
    }
}

/// The first call of an interpreter has its turn.
fn note_turn(interpreter: &mut Interpreter, events: &mut Vec<LaunchEvent>) {
    let cpu = interpreter.cpu.sum();
    let first = match interpreter.sent.front_mut() {
        Some(first) => Some(first),
        // The time that the interpreter takes to start is the call's.
        None if interpreter.pid.is_some() && !interpreter.is_ready => {
            interpreter.waiting.front_mut()
        }
        None => None,
    };
    if let Some(call) = first.filter(|call| call.since.is_none()) {
        let at = clock::now().mono;
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
