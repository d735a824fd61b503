//! Launches calls: finds or starts the interpreters that they need, and handles the spawn engine's
//! events about interpreters.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hq_core::outcome::Usage;
use hq_core::resource::pool::PoolSet;
use hq_core::template::{PinMode, TaskTemplate};
use hq_core::time::Time;
use hq_core::worker_state::{ExitStatus, LaunchEvent, LaunchFailure, LaunchTask, LaunchToken};
use hq_spawn::{Event, SpawnPlan, Stdio, Termination, Token};
use serde_json::json;

use super::interpreter::Ends;
use super::{Call, Interpreter, Kind, PendingInterpreter, Recipe, cannot_prepare, needs};
use crate::clock;
use crate::launcher::amounts::{given_to, memory_of};
use crate::launcher::memory::{MemoryOveruse, MemoryWatch};
use crate::launcher::template::CompiledTemplate;
use crate::launcher::{SIGKILL, TaskLauncher, failure};
use crate::leftovers::MARK;

/// How long an idle interpreter may take to end. Its threads get 5 seconds (python/hq/_interpreter.py).
const LEAVE_MAX: Duration = Duration::from_secs(10);

impl TaskLauncher {
    /// Passes a call to an interpreter. Starts an interpreter if none is available.
    pub(in crate::launcher) fn launch_call(&mut self, task: &LaunchTask, pools: &PoolSet) {
        let token = task.token;
        if let Err(text) = self.try_launch_call(task, pools) {
            let failure = LaunchFailure::Permanent(text);
            self.failed.push(LaunchEvent::Failed { token, failure });
        }
    }

    fn try_launch_call(&mut self, task: &LaunchTask, pools: &PoolSet) -> Result<(), Box<str>> {
        let compiled = self.compiled(task, pools)?;
        let values = compiled.index_values(task, pools);
        let kind = Kind {
            template: Arc::clone(&task.template.task),
            variant: task.variant,
            fixed: values.fixed,
            // If nothing enforces limits, calls with different limits can share an interpreter.
            memory_limit: self.memory_limit(task, pools),
        };
        let uid = self.surroundings.server_uid.clone();
        let cwd = compiled.paths(task.key, &uid).cwd;
        let call = Call {
            token: task.token,
            key: task.key,
            place: place(
                &cwd,
                &values.of_call,
                &cpus(&compiled, task, pools)?,
                (self.calls.long.dir(), self.calls.long.limit()),
            ),
            compiled,
            payload: task.entry().unwrap_or_default().into(),
            server_uid: uid,
            given: given_to(task, pools, kind.memory_limit.is_some()),
            since: None,
            cpu_before: Duration::ZERO,
            needs: Vec::new(),
        };
        let references = needs::of_payload(&call.payload)?;
        if !references.is_empty() {
            let recipe = self.recipe(&call, task, pools, (kind, cwd))?;
            self.calls.park(task.lane, recipe, call, references);
            self.start_wanted();
            // The call may have ended already.
            self.wake.notify_one();
            return Ok(());
        }
        // No interpreter of this kind is idle.
        let Some(call) = self.calls.push(task.lane, &kind, call) else {
            return Ok(());
        };
        let recipe = self.recipe(&call, task, pools, (kind, cwd))?;
        self.make_room(task, pools);
        self.start_interpreter(PendingInterpreter {
            lane: task.lane,
            recipe,
            calls: VecDeque::from([call]),
        });
        // The new interpreter may push the number of idle ones above the limit.
        self.end_surplus();
        Ok(())
    }

    /// Starts interpreters for calls whose values have arrived, and processes of interpreters whose
    /// files have been created.
    pub(in crate::launcher) fn start_wanted(&mut self) {
        for wanted in self.calls.take_wanted() {
            self.start_interpreter(wanted);
        }
        for (id, ends) in self.calls.take_prepared() {
            self.start_process(id, ends);
        }
    }

    fn recipe(
        &self,
        call: &Call,
        task: &LaunchTask,
        pools: &PoolSet,
        (kind, cwd): (Kind, Vec<u8>),
    ) -> Result<Recipe, Box<str>> {
        let text = |error: hq_spawn::PlanError| format!("Cannot {error}").into_boxed_str();
        let environment = call.compiled.environment(task, pools).map_err(text)?;
        let Some((env, mut task_env)) = environment else {
            return Err("the worker was sent a call whose variant does not exist".into());
        };
        let mark = format!("{}/{}/{}", call.server_uid, task.key, self.nonce);
        task_env.set(MARK, &mark).map_err(text)?;
        let cwd = PathBuf::from(OsString::from_vec(cwd));
        let mut plan = SpawnPlan::new(call.compiled.args.clone(), env)
            .task_env(task_env)
            .cwd(&cwd)
            .marker(format!("{MARK}={mark}"))
            .create_dirs(true);
        if let Some(score) = self.memory.as_ref().and_then(MemoryWatch::task_score) {
            plan = plan.oom_score_adj(score);
        }
        Ok(Recipe {
            plan,
            kind,
            args: task.template.task.args.clone(),
            cwd,
        })
    }

    fn start_interpreter(&mut self, wanted: PendingInterpreter) {
        let PendingInterpreter {
            lane,
            recipe,
            calls,
        } = wanted;
        match Interpreter::new(recipe, lane) {
            Ok(interpreter) => {
                let id = self.calls.next_id();
                self.calls.add(id, interpreter, calls);
                self.calls.create_outputs(id);
            }
            Err(error) => {
                let failure = cannot_prepare(&error);
                self.failed
                    .extend(calls.into_iter().map(|call| LaunchEvent::Failed {
                        token: call.token,
                        failure: failure.clone(),
                    }));
            }
        }
    }

    fn start_process(&mut self, id: u64, ends: Ends) {
        let Some(interpreter) = self.calls.get_mut(id) else {
            return;
        };
        let mut plan = interpreter.recipe.plan.clone();
        let limit = interpreter.recipe.kind.memory_limit;
        let group = limit.and_then(|limit| self.make_group(LaunchToken(id), limit));
        if let Some(group) = &group {
            plan = plan.cgroup(Arc::clone(&group.fd));
        }
        let kills = self.oom.before_start();
        if let Some(interpreter) = self.calls.get_mut(id) {
            interpreter.group = group;
            interpreter.oom_kills_before = kills;
        }
        plan = plan
            .stdin(Stdio::Fd(ends.socket))
            .stdout(Stdio::Fd(ends.stdout))
            .stderr(Stdio::Fd(ends.stderr));
        self.engine.spawn(Token(id), plan);
    }

    /// Kills interpreters that were asked to end and do not.
    fn end_idle(&self, tokens: Vec<Token>) {
        let leave = Termination {
            signal: rustix::process::Signal::CONT.as_raw(),
            grace: LEAVE_MAX,
        };
        for token in tokens {
            self.engine.terminate(token, leave);
        }
    }

    /// Ends interpreters that are no longer of use.
    pub(crate) fn end_surplus(&mut self) {
        let surplus = self.calls.surplus(clock::now().mono);
        self.end_idle(surplus);
    }

    /// Ends the idle interpreters of a template of a completed job.
    pub(in crate::launcher) fn end_idle_of(&mut self, template: &Arc<TaskTemplate>) {
        let is_theirs = |one: &Interpreter| Kind::is_shared(&one.recipe.kind.template, template);
        let idle = self.calls.end_idle(is_theirs);
        self.end_idle(idle);
    }

    /// Ends idle interpreters whose GPUs or memory a task needs.
    pub(in crate::launcher) fn make_room(&mut self, task: &LaunchTask, pools: &PoolSet) {
        if !self.calls.has_idle() {
            return;
        }
        let Ok(compiled) = self.compiled(task, pools) else {
            // The launch fails for the same reason.
            return;
        };
        let fixed = compiled.index_values(task, pools).fixed;
        let idle = self.calls.in_the_way(&fixed, memory_of(task, pools));
        self.end_idle(idle);
    }

    /// Ends a call. If it has begun, its interpreter is killed with it.
    pub(in crate::launcher) fn end_call(&mut self, token: LaunchToken, how: Termination) {
        // The call has not begun, so its interpreter can continue with other calls.
        if self.calls.take_back(token, true) {
            self.wake.notify_one();
            return;
        }
        // A running call cannot be ended alone. Its interpreter ends with it, and its queued calls
        // go to another interpreter.
        if let Some(interpreter) = self.calls.end(token) {
            self.engine.terminate(interpreter, how);
        }
    }

    /// Kills an interpreter that uses more memory than its calls requested.
    pub(in crate::launcher) fn end_interpreter_for_memory(&mut self, excess: MemoryOveruse) {
        if let Some(interpreter) = self.calls.get_mut(excess.token.0) {
            interpreter.excess = Some(excess);
            self.engine
                .terminate(Token(excess.token.0), Termination::KILL);
        }
    }

    /// Handles an event of the spawn engine about an interpreter.
    pub(in crate::launcher) fn on_interpreter_event(&mut self, event: Event) {
        let id = event.token().0;
        match event {
            Event::Started { pid, at, .. } => {
                self.calls.on_started(id, pid, Time(at.0));
                let limit = self.calls.get_mut(id).and_then(|one| match one.group {
                    // The kernel enforces the limit of a group.
                    Some(_) => None,
                    None => one.recipe.kind.memory_limit,
                });
                if let (Some(watch), Some(limit)) = (&self.memory, limit) {
                    watch.add(LaunchToken(id), pid, limit);
                }
            }
            Event::Stalled { pid, .. } => {
                tracing::warn!(pid, "The start of an interpreter hangs");
            }
            Event::Unkillable { pid, .. } => {
                tracing::warn!(
                    pid,
                    "An interpreter cannot be killed: {}",
                    hq_spawn::keeper::why_unkillable(pid)
                );
            }
            Event::Failed { error, .. } => {
                let recipe = self.calls.get_mut(id).map(|one| one.recipe.clone());
                self.calls.on_failed(id, || match &recipe {
                    Some(recipe) => failure::translate(&error, &recipe.args, &recipe.cwd, false),
                    None => LaunchFailure::Permanent(error.to_string().into()),
                });
            }
            Event::Exited { status, usage, .. } => {
                let usage = Usage {
                    max_rss_kib: usage.max_rss_kib,
                    user: Duration::from_micros(usage.user_us),
                    system: Duration::from_micros(usage.system_us),
                };
                self.on_interpreter_exited(id, status, usage);
            }
        }
    }

    /// Starts and stops the usage curves of calls. A call that has already ended was too short for
    /// a curve.
    pub(in crate::launcher) fn follow_calls(&mut self, events: &[LaunchEvent]) {
        for (token, age, cpu) in self.calls.take_long_ends() {
            self.curves.end(token, age, cpu);
        }
        for event in events {
            match event {
                LaunchEvent::Started { token, at } => {
                    if let Some(turn) = self.calls.turn(*token) {
                        let process = (turn.pid, *at);
                        let what = (turn.key, turn.given.clone());
                        self.curves.add_call(*token, what, process, turn.cpu_before);
                    }
                }
                LaunchEvent::Failed { token, .. } | LaunchEvent::Exited { token, .. } => {
                    self.curves.forget(*token);
                }
            }
        }
    }

    fn on_interpreter_exited(&mut self, id: u64, status: hq_spawn::ExitStatus, usage: Usage) {
        if let Some(watch) = &self.memory {
            // Another process may get its pid from now on.
            watch.remove(LaunchToken(id));
        }
        let Some(interpreter) = self.calls.get_mut(id) else {
            return;
        };
        let (group, watched) = (interpreter.group.take(), interpreter.excess);
        let before = interpreter.oom_kills_before;
        let by_kernel = group.and_then(|group| {
            let used = group.excess();
            let (token, limit) = (LaunchToken(id), group.limit);
            if let Some(groups) = &mut self.groups {
                groups.take_back(group, used.is_some());
            }
            used.map(|used| MemoryOveruse { token, used, limit })
        });
        let excess = by_kernel.or(watched);
        let status = match status {
            // Unlike a task, an interpreter does not exit by itself while it has calls.
            _ if excess.is_some() => ExitStatus::ExceededMemory,
            hq_spawn::ExitStatus::Code(code) => ExitStatus::Code(code),
            hq_spawn::ExitStatus::Signal { signal, .. }
                if signal == SIGKILL && self.oom.has_struck(before) =>
            {
                ExitStatus::OutOfMemory
            }
            hq_spawn::ExitStatus::Signal { signal, .. } => ExitStatus::Signal(signal),
        };
        let words = excess.map(MemoryOveruse::words);
        if let Some(wanted) = self.calls.on_exited(id, (status, usage), words) {
            self.start_interpreter(wanted);
        }
    }
}

/// Returns the names of the cpus that a call is pinned to. The list is empty if it is not pinned.
fn cpus(
    compiled: &CompiledTemplate,
    task: &LaunchTask,
    pools: &PoolSet,
) -> Result<Vec<u32>, Box<str>> {
    if compiled.work.task.pin != PinMode::Taskset {
        return Ok(Vec::new());
    }
    let number = |name: &&str| {
        let parsed = name.parse();
        parsed.map_err(|_| format!("Pinning failed, `{name}` is not the number of a CPU").into())
    };
    compiled.cpu_names(task, pools).iter().map(number).collect()
}

/// Encodes the directory, variables and cpus of a call for its interpreter.
fn place(
    cwd: &[u8],
    variables: &[(String, String)],
    cpus: &[u32],
    (values, limit): (&Path, u64),
) -> Arc<[u8]> {
    let env: serde_json::Map<String, serde_json::Value> = variables
        .iter()
        .map(|(name, value)| (name.clone(), json!(value)))
        .collect();
    // Each byte is mapped to a character, which JSON can contain. The interpreter maps the
    // characters back.
    let text = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| char::from(*byte))
            .collect::<String>()
    };
    let values = text(values.as_os_str().as_bytes());
    let place = json!({
        "cwd": text(cwd), "env": env, "cpus": cpus, "values": values, "values_limit": limit,
    });
    place.to_string().into_bytes().into()
}
