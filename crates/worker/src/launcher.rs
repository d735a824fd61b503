//! Turns tasks into running processes: makes plans for the spawn engine and translates its events
//! for the core.
//!
//! Owns the spawn engine and with it all processes: dropping the launcher kills them. It makes no
//! decisions and does not know the server.

mod amounts;
mod busy;
mod calls;
mod cleaners;
mod control_group;
mod curves;
mod failure;
mod gpus;
mod held;
mod inherited;
mod memory;
mod oom;
mod processes;
mod running_task;
mod shares;
mod streaming;
mod template;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hq_core::id::WorkerId;
use hq_core::job::TemplateId;
use hq_core::outcome::Usage;
use hq_core::resource::pool::PoolSet;
use hq_core::template::{CrashLimit, PinMode, StdioSpec};
use hq_core::time::Time;
use hq_core::worker::Unkillable;
use hq_core::worker_state::{
    EVENT_DELAY, ExitStatus, LaunchEvent, LaunchFailure, LaunchTask, LaunchToken,
};
use hq_spawn::keeper::why_unkillable;
use hq_spawn::{
    CpuSet, Event, Launcher, LauncherConfig, LauncherError, SpawnError, SpawnPlan, Stdio, TaskEnv,
    Termination, Token,
};
use tokio::sync::{Notify, mpsc};

use crate::leftovers::{MARK, nonce};
use crate::node_check::RecentDirs;
use crate::notify::NotifyAccess;
use crate::output::{self, Cleanup, Preparation};
use amounts::given_to;
use busy::BusyPrograms;
pub(crate) use calls::CallPool;
use cleaners::Cleaners;
use control_group::ControlGroups;
pub(crate) use curves::Curves;
#[cfg(feature = "nvml")]
pub use gpus::serve_gpu_usage;
use inherited::inherited;
use memory::{MemoryOveruse, MemoryWatch};
use oom::OomWatch;
use running_task::{RunningTask, RunningTasks};
use streaming::Streaming;
use template::{BaseEnvironment, CompiledTemplate};

/// The signal that the kernel's OOM killer sends. It may also come from other senders.
const SIGKILL: i32 = rustix::process::Signal::KILL.as_raw();

/// Launches tasks and collects their events.
pub(crate) struct TaskLauncher {
    engine: Launcher,
    wake: Arc<Notify>,
    surroundings: BaseEnvironment,
    /// An identifier that is unique per worker on this machine, even within this process.
    nonce: Box<str>,
    task_dirs: PathBuf,
    templates: BTreeMap<TemplateId, Arc<CompiledTemplate>>,
    running: RunningTasks,
    /// Boxed because futures that contain the launcher are moved.
    calls: Box<CallPool>,
    oom: OomWatch,
    /// Set if memory limits are enforced.
    memory: Option<MemoryWatch>,
    /// Set if the kernel enforces memory limits. Tasks without a group are watched instead.
    groups: Option<Box<ControlGroups>>,
    excess_tx: mpsc::UnboundedSender<MemoryOveruse>,
    excess_rx: mpsc::UnboundedReceiver<MemoryOveruse>,
    /// How tasks send messages to the worker. `None` if they cannot.
    notify: Option<NotifyAccess>,
    /// The resource usage of tasks over time.
    curves: Curves,
    /// A buffer for events of the engine.
    drained: Vec<Event>,
    /// Launches that failed before they reached the engine.
    failed: Vec<LaunchEvent>,
    /// The instances whose output goes to stream files.
    streaming: Streaming,
    busy: BusyPrograms,
    /// Templates for which a leaked process has already been reported.
    leaking: BTreeSet<TemplateId>,
    /// The end events that wait for the cleanup after their task.
    cleaners: Cleaners,
    /// The instances that survived SIGKILL.
    unkillable: BTreeMap<LaunchToken, Unkillable>,
    /// Whether the set has changed since the last call of [`Self::take_unkillable_changed`].
    unkillable_changed: bool,
    /// The directories of the most recent tasks.
    recent_dirs: Arc<RecentDirs>,
}

impl TaskLauncher {
    /// Starts the spawn engine.
    pub(crate) fn start(
        threads: Option<usize>,
        hq_path: PathBuf,
        task_dirs: PathBuf,
        host: &str,
        values_limit: Option<u64>,
    ) -> Result<Self, LauncherError> {
        let wake = Arc::new(Notify::new());
        // Threads of the engine only wake the owner, which then takes the events.
        let notify = Arc::clone(&wake);
        let mut config = LauncherConfig::new(Arc::new(move || notify.notify_one()));
        config.threads = threads.unwrap_or(0);
        // Each running task uses descriptors, so the usual soft limit of 1024 is soon reached.
        config.raise_descriptor_limit = true;
        // The channel is unbounded, but holds at most one message per running task.
        let (excess_tx, excess_rx) = mpsc::unbounded_channel();
        let engine = Launcher::start(config)?;
        let curves = Curves::start(hq_path.clone());
        Ok(Self {
            engine,
            streaming: Streaming::new(host, Arc::clone(&wake)),
            wake,
            surroundings: BaseEnvironment {
                env: inherited(),
                hq_path,
                server_uid: "".into(),
            },
            nonce: nonce().into(),
            calls: Box::new(CallPool::new(task_dirs.clone(), host, values_limit)),
            task_dirs,
            templates: BTreeMap::new(),
            running: RunningTasks::default(),
            oom: OomWatch::of_this_machine(),
            memory: None,
            groups: None,
            excess_tx,
            excess_rx,
            notify: None,
            curves,
            drained: Vec::new(),
            failed: Vec::new(),
            busy: BusyPrograms::default(),
            leaking: BTreeSet::new(),
            cleaners: Cleaners::new(),
            unkillable: BTreeMap::new(),
            unkillable_changed: false,
            recent_dirs: Arc::default(),
        })
    }

    /// Starts to kill tasks that use more memory than they requested. Applies to tasks launched
    /// later.
    pub(crate) fn enforce_memory(&mut self) -> std::io::Result<()> {
        self.memory = Some(MemoryWatch::start(self.excess_tx.clone())?);
        match ControlGroups::find(Path::new("/"), &self.nonce) {
            Ok(groups) => {
                let base = groups.base().display();
                tracing::info!("Memory limits of tasks are enforced by control groups in {base}");
                self.groups = Some(Box::new(groups));
            }
            Err(reason) => {
                tracing::info!("Memory limits of tasks are enforced by sampling: {reason}");
            }
        }
        Ok(())
    }

    /// Returns the identifier that is unique per worker.
    pub(crate) fn nonce(&self) -> &str {
        &self.nonce
    }

    /// Sets the server and this worker's id there for all tasks launched later.
    pub(crate) fn set_server(&mut self, uid: Box<str>, worker: WorkerId, ip: Option<IpAddr>) {
        self.calls.long.set_worker(worker.as_u32(), ip);
        self.surroundings.server_uid = uid;
        self.streaming.set_worker(worker);
    }

    /// Lets tasks launched later send messages.
    pub(crate) fn set_notify(&mut self, access: NotifyAccess) {
        self.notify = Some(access);
    }

    /// Starts tasks. Failed starts are reported with the next events.
    pub(crate) fn launch(&mut self, tasks: Vec<LaunchTask>, pools: &PoolSet) {
        let mut plans = Vec::with_capacity(tasks.len());
        for task in tasks {
            let token = task.token;
            // A call needs no process of its own.
            if task.template.task.is_call {
                self.launch_call(&task, pools);
                continue;
            }
            self.make_room(&task, pools);
            match self.prepare(&task, pools) {
                Ok((plan, running)) => {
                    self.running.insert(token, running);
                    // A task with streamed output waits until its file is open.
                    plans.extend(self.streaming.park(task.lane, token, plan));
                }
                Err(failure) => self.failed.push(LaunchEvent::Failed { token, failure }),
            }
        }
        // All plans are passed at once, because each call wakes a thread.
        self.engine.spawn_in_lanes(plans);
        // For these failures, no process ends that would wake the collector.
        if !self.failed.is_empty() {
            self.wake.notify_one();
        }
    }

    /// Fails a launch as canceled if it still waits in its lane.
    pub(crate) fn withdraw(&mut self, token: LaunchToken) {
        if self.calls.has(token) {
            self.calls.take_back(token, false);
            self.wake.notify_one();
        // The engine does not know a launch that still waits for its stream file.
        } else if !self.streaming.give_up(token) {
            self.engine.withdraw(Token(token.0));
        }
    }

    /// Sends the task's stop signal to its process group, and SIGKILL to all remaining processes
    /// after the grace period.
    pub(crate) fn terminate(&mut self, token: LaunchToken) {
        let running = self.running.get(token);
        let stop = self
            .calls
            .stop_of(token)
            .or_else(|| running.map(|task| task.template.task.stop));
        let stop = stop.unwrap_or_default();
        let how = Termination {
            signal: stop.signal,
            grace: stop.grace,
        };
        self.end(token, how);
    }

    /// Sends SIGKILL to every process of the task.
    pub(crate) fn kill(&mut self, token: LaunchToken) {
        self.end(token, Termination::KILL);
    }

    /// Sends a signal to the process group of the task.
    pub(crate) fn signal(&self, token: LaunchToken, signal: i32) {
        self.engine.signal(Token(token.0), signal);
    }

    fn end(&mut self, token: LaunchToken, how: Termination) {
        if self.streaming.give_up(token) {
            return;
        }
        if self.calls.has(token) {
            self.end_call(token, how);
            return;
        }
        self.engine.terminate(Token(token.0), how);
    }

    /// Forgets a template that no task will use again.
    pub(crate) fn drop_template(&mut self, id: TemplateId) {
        let gone = self.templates.remove(&id);
        if let Some(gone) = gone.filter(|gone| gone.work.task.is_call) {
            self.end_idle_of(&gone.work.task);
        }
        // Templates are compared by number here. One that arrives later with the same number is a
        // different template.
        self.busy.forget(id);
        self.leaking.remove(&id);
    }

    /// Waits until there may be events to collect.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn news(&mut self) -> Vec<LaunchEvent> {
        tokio::select! {
            () = self.wake.notified() => Vec::new(),
            step = self.cleaners.news() => {
                let mut ended = Vec::new();
                self.cleaners.collect(step, &mut ended);
                ended
            }
            excess = self.excess_rx.recv() => {
                if let Some(excess) = excess {
                    self.end_for_memory(excess);
                }
                Vec::new()
            }
            () = self.calls.news() => Vec::new(),
        }
    }

    /// Returns the calls, including values that the server has not acknowledged.
    pub(crate) fn calls(&mut self) -> &mut CallPool {
        &mut self.calls
    }

    /// Returns the usage curves, including unacknowledged ones.
    pub(crate) const fn curves(&mut self) -> &mut Curves {
        &mut self.curves
    }

    /// Collects events. `is_ending` returns whether the worker has asked an instance to end.
    pub(crate) fn collect(
        &mut self,
        events: &mut Vec<LaunchEvent>,
        is_ending: impl Fn(LaunchToken) -> bool,
    ) {
        events.append(&mut self.failed);
        self.cleaners.collect(None, events);
        // This comes before the end events, because a task may have exited since the watcher found
        // it.
        while let Ok(excess) = self.excess_rx.try_recv() {
            self.end_for_memory(excess);
        }
        let mut drained = std::mem::take(&mut self.drained);
        self.engine.drain_events(&mut drained);
        for event in drained.drain(..) {
            if calls::is_interpreter(event.token().0) {
                self.on_interpreter_event(event);
                continue;
            }
            // The core does not need warnings.
            let Some((event, has_exited_well)) = self.translate(event, &is_ending) else {
                continue;
            };
            let is_start = matches!(event, LaunchEvent::Started { .. });
            if !is_start {
                self.forget_unkillable(token_of(&event));
            }
            if !is_start && self.streaming.has(token_of(&event)) {
                // The end event is forwarded once the output is in the file.
                self.streaming.hold(event, has_exited_well);
            } else {
                self.conclude(event, has_exited_well, &is_ending, events);
            }
        }
        self.drained = drained;
        let others = events.len();
        self.calls.collect(events);
        self.follow_calls(&events[others..]);
        // This includes calls whose values have just arrived.
        self.start_wanted();
        events.append(&mut self.failed);
        let news = self.streaming.collect();
        self.engine.spawn_in_lanes(news.start);
        // Further output of these tasks would be lost, so they must stop.
        for token in news.broken {
            self.terminate(token);
        }
        for (event, has_exited_well) in news.ended {
            self.conclude(event, has_exited_well, &is_ending, events);
        }
    }

    /// Forwards an event. An end event is forwarded only after the cleanup.
    fn conclude(
        &mut self,
        event: LaunchEvent,
        has_exited_well: bool,
        is_ending: impl Fn(LaunchToken) -> bool,
        events: &mut Vec<LaunchEvent>,
    ) {
        if matches!(event, LaunchEvent::Started { .. }) {
            events.push(event);
            return;
        }
        let token = token_of(&event);
        let Some(task) = self.running.remove(token) else {
            events.push(event);
            return;
        };
        let is_ending = is_ending(token);
        let places = self.places_of(&task, &event, is_ending);
        let cleanup = Cleanup {
            places,
            ..task.cleanup.unwrap_or_default()
        };
        if cleanup.is_empty() {
            events.push(event);
        } else {
            // A task that exits with 0 after it was asked to end has not finished. Its own message
            // explains the end.
            let has_finished = has_exited_well && !is_ending;
            self.cleaners.add(event, cleanup, has_finished);
        }
    }

    /// Returns the directories whose file system may have been full when the task failed.
    fn places_of(&self, task: &RunningTask, event: &LaunchEvent, is_ending: bool) -> Vec<PathBuf> {
        let has_failed = match event {
            LaunchEvent::Exited { status, .. } => match status {
                ExitStatus::Code(code) => *code != 0,
                ExitStatus::Signal(_) => true,
                ExitStatus::OutOfMemory | ExitStatus::ExceededMemory => false,
            },
            LaunchEvent::Started { .. } | LaunchEvent::Failed { .. } => false,
        };
        let Some(compiled) = self.templates.get(&task.template.id) else {
            return Vec::new();
        };
        if !has_failed || is_ending {
            return Vec::new();
        }
        let paths = compiled.paths(task.key, &self.surroundings.server_uid);
        let file = |spec| match spec {
            StdioSpec::File { path, .. } => {
                Some(task.cwd.join(OsString::from_vec(path.into_vec())))
            }
            StdioSpec::None | StdioSpec::Stream => None,
        };
        let outputs = [paths.stdout, paths.stderr].into_iter().filter_map(file);
        outputs
            .chain([task.cwd.clone(), std::env::temp_dir()])
            .collect()
    }

    /// Kills every task and waits up to a few seconds until they have ended. Blocks.
    pub(crate) fn shutdown(self) {
        self.engine.shutdown();
        // Dropping the streams first stores the output that the tasks have written so far.
        drop(self.streaming);
    }

    /// Returns the event for the core, if there is one, and whether a process exited with 0.
    fn translate(
        &mut self,
        event: Event,
        is_ending: impl Fn(LaunchToken) -> bool,
    ) -> Option<(LaunchEvent, bool)> {
        let translated = match event {
            Event::Started { token, at, pid } => {
                let (token, at) = (LaunchToken(token.0), Time(at.0));
                self.note_start(token, pid, at);
                (LaunchEvent::Started { token, at }, false)
            }
            Event::Stalled { token, pid } => {
                self.warn_of_stall(LaunchToken(token.0), pid);
                return None;
            }
            Event::Unkillable { token, pid } => {
                self.note_unkillable(LaunchToken(token.0), pid);
                return None;
            }
            Event::Failed { token, error } => {
                let token = LaunchToken(token.0);
                self.leave_group(token);
                let failure = self.failure_of(token, &error);
                (LaunchEvent::Failed { token, failure }, false)
            }
            Event::Exited {
                token,
                status,
                usage,
                started,
                ended,
                leaked,
            } => {
                let token = LaunchToken(token.0);
                let watched = self.stop_watching(token);
                let run = Duration::from_nanos(ended.since(started));
                let cpu = usage.user_us.saturating_add(usage.system_us);
                self.curves.end(token, run, Duration::from_micros(cpu));
                // A task may lose one process to the OOM killer and still succeed.
                let by_kernel = self.leave_group(token).filter(|_| !status.success());
                // The kernel's figures are exact; the watcher's come from its last look.
                let excess = by_kernel.or(watched);
                let is_ended = excess.is_some() || is_ending(token);
                if leaked > 0 && !is_ended {
                    self.warn_of_leak(token, leaked);
                }
                let event = LaunchEvent::Exited {
                    token,
                    status: match status {
                        // This holds even if the task exited before the signal arrived: a control
                        // group would have killed it.
                        _ if excess.is_some() => ExitStatus::ExceededMemory,
                        hq_spawn::ExitStatus::Code(code) => ExitStatus::Code(code),
                        hq_spawn::ExitStatus::Signal { signal, .. }
                            if signal == SIGKILL && self.is_oom_victim(token) =>
                        {
                            ExitStatus::OutOfMemory
                        }
                        hq_spawn::ExitStatus::Signal { signal, .. } => ExitStatus::Signal(signal),
                    },
                    ended: Time(ended.0),
                    run,
                    usage: Usage {
                        max_rss_kib: usage.max_rss_kib,
                        user: Duration::from_micros(usage.user_us),
                        system: Duration::from_micros(usage.system_us),
                    },
                    message: excess.map(MemoryOveruse::words),
                };
                (event, status.success() && excess.is_none())
            }
        };
        Some(translated)
    }

    /// Records that the program of a task was executed.
    fn note_start(&mut self, token: LaunchToken, pid: u32, at: Time) {
        self.watch_memory(token, pid);
        if let Some(task) = self.running.get(token) {
            let what = (task.key, task.given.clone());
            self.curves.add(token, what, (pid, at));
            // The program could be executed, so no process has it open for writing anymore.
            self.busy.forget(task.template.id);
        }
    }

    /// Returns why a task could not be started, and whether to retry.
    fn failure_of(&mut self, token: LaunchToken, error: &SpawnError) -> LaunchFailure {
        let Some(task) = self.running.get(token) else {
            return LaunchFailure::Permanent(error.to_string().into());
        };
        let args = task.args();
        let program = args.first().map_or(&b""[..], |program| program);
        let program = String::from_utf8_lossy(program);
        // This is evaluated last, because the call also records that the program was busy.
        let is_hopeless = failure::is_busy_program(error)
            && self.busy.found(task.template.id, &program, Instant::now());
        failure::translate(error, &args, &task.cwd, is_hopeless)
    }

    /// Warns that a task left processes behind.
    fn warn_of_leak(&mut self, token: LaunchToken, leaked: u32) {
        let Some(task) = self.running.get(token) else {
            return;
        };
        let task_key = task.key;
        // The worker warns once per template, because a job with a million such tasks would fill
        // the log.
        if self.leaking.insert(task.template.id) {
            tracing::warn!(
                task = %task_key,
                leaked,
                "A task left processes behind when it ended; they were killed. Further cases of the same submit are not logged"
            );
        } else {
            tracing::debug!(task = %task_key, leaked, "a task left processes behind");
        }
    }

    /// Warns that a task takes longer than a second to start.
    fn warn_of_stall(&self, token: LaunchToken, pid: Option<u32>) {
        let Some(task) = self.running.get(token) else {
            return;
        };
        tracing::warn!(
            task = %task.key,
            pid,
            directory = %task.cwd.display(),
            "The start of a task hangs: its directory, its program or its output is on a file system that does not answer. Other tasks continue"
        );
    }

    /// Records a task that did not react to SIGKILL.
    fn note_unkillable(&mut self, token: LaunchToken, pid: Option<u32>) {
        let Some(running) = self.running.get(token) else {
            return;
        };
        tracing::warn!(
            task = %running.key,
            pid,
            directory = %running.cwd.display(),
            "A task cannot be killed: {}. Its resources stay reserved until it exits",
            why_unkillable(pid)
        );
        let unkillable = Unkillable {
            task: running.key.task,
            instance: running.key.instance,
            pid,
        };
        self.unkillable.insert(token, unkillable);
        self.unkillable_changed = true;
    }

    /// Removes the record of an instance that has ended after all.
    fn forget_unkillable(&mut self, token: LaunchToken) {
        if let Some(ended) = self.unkillable.remove(&token) {
            self.unkillable_changed = true;
            tracing::info!(task = %ended.task, pid = ended.pid, "A task that could not be killed has ended");
        }
    }

    /// Returns the instances that did not react to SIGKILL, for the server.
    pub(crate) fn unkillable(&self) -> impl Iterator<Item = Unkillable> + '_ {
        self.unkillable.values().copied()
    }

    /// Returns the directories of the most recent tasks.
    pub(crate) const fn recent_dirs(&self) -> &Arc<RecentDirs> {
        &self.recent_dirs
    }

    /// Returns whether the set has changed since the last call.
    pub(crate) fn take_unkillable_changed(&mut self) -> bool {
        std::mem::take(&mut self.unkillable_changed)
    }

    fn prepare(
        &mut self,
        task: &LaunchTask,
        pools: &PoolSet,
    ) -> Result<(SpawnPlan, RunningTask), LaunchFailure> {
        let (plan, running) = self.plan(task, pools).map_err(LaunchFailure::Permanent)?;
        let streams = |spec: &StdioSpec| *spec == StdioSpec::Stream;
        let spec = &task.template.task;
        let channels = [streams(&spec.stdout), streams(&spec.stderr)];
        // Most tasks stream nothing, so no thread is started for them.
        if channels == [false, false] {
            return Ok((plan, running));
        }
        let uid = &self.surroundings.server_uid;
        let plan = self.streaming.begin(task, channels, uid, plan)?;
        Ok((plan, running))
    }

    fn plan(
        &mut self,
        task: &LaunchTask,
        pools: &PoolSet,
    ) -> Result<(SpawnPlan, RunningTask), Box<str>> {
        let compiled = self.compiled(task, pools)?;
        let text = |error: hq_spawn::PlanError| format!("Cannot {error}").into_boxed_str();
        let Some((env, mut task_env)) = compiled.environment(task, pools).map_err(text)? else {
            return Err("the worker was sent a task whose variant does not exist".into());
        };
        let uid = &self.surroundings.server_uid;
        // The marker is also set in the environment, so that a worker that starts later recognizes
        // leftover processes.
        let mark = format!("{uid}/{}/{}", task.key, self.nonce);
        task_env.set(MARK, &mark).map_err(text)?;
        let paths = compiled.paths(task.key, uid);
        let cwd = self.recent_dirs.note(OsString::from_vec(paths.cwd).into());
        let mut cleanup = Cleanup::new(compiled.done(task, &cwd, uid));
        let stdout = stdio(paths.stdout, &mut cleanup)?;
        let stderr = stdio(paths.stderr, &mut cleanup)?;
        if let Some(access) = &self.notify {
            task_env
                .set("HQ_ACCESS_KEY", access.key_of(task.key.task))
                .map_err(text)?;
        }
        let spec = &compiled.work.task;
        let mut preparation = Preparation::new(cleanup.done.clone());
        if spec.retry.limit > 0 {
            // The files of the previous attempt show why another one was needed.
            preparation.keep_earlier(task.key.instance, [&stdout, &stderr]);
        }
        let affinity = match spec.pin {
            PinMode::Taskset => Some(affinity(&compiled.cpu_names(task, pools))?),
            PinMode::None | PinMode::OpenMp => None,
        };
        // A multi-node task always has a directory, for its list of nodes.
        if spec.task_dir || !task.nodes.is_empty() {
            let directory = self.name_task_dir(task, &mut task_env).map_err(text)?;
            preparation.make_task_dir(directory.clone(), &task.nodes);
            cleanup.task_dir = Some(directory);
        }
        let args = compiled.args(task).map_err(text)?;
        let mut plan = SpawnPlan::new(args, env)
            .task_env(task_env)
            .cwd(&cwd)
            .stdin(spec.stdin.clone().map_or(Stdio::Null, Stdio::Bytes))
            .stdout(stdout)
            .stderr(stderr)
            .marker(format!("{MARK}={mark}"))
            // If this worker is lost before the server learns of the start, the server restarts the
            // task elsewhere.
            .report_start_at_once(spec.crash_limit == CrashLimit::NeverRestart)
            .create_dirs(true)
            .guard_outputs(output::has_default_name);
        if !preparation.is_empty() {
            plan = plan.prepare(move |is_cancelled| preparation.run(is_cancelled));
        }
        if let Some(cpus) = affinity {
            plan = plan.affinity(cpus);
        }
        let memory_limit = self.memory_limit(task, pools);
        let group = memory_limit.and_then(|limit| self.make_group(task.token, limit));
        plan = self.hold(plan, group.as_ref());
        if task.is_one_of_many {
            plan = plan.event_delay(EVENT_DELAY);
        }
        Ok((
            plan,
            RunningTask {
                key: task.key,
                template: Arc::clone(&task.template),
                entries: task.entries.clone(),
                cwd,
                cleanup: Some(cleanup).filter(|cleanup| !cleanup.is_empty()),
                memory_limit,
                given: given_to(task, pools, memory_limit.is_some()),
                group,
                excess: None,
                oom_kills_before: self.oom.before_start(),
            },
        ))
    }

    /// Chooses the task's directory and sets the variables that refer to files in it.
    fn name_task_dir(
        &self,
        task: &LaunchTask,
        task_env: &mut TaskEnv,
    ) -> Result<PathBuf, hq_spawn::PlanError> {
        // The token makes the name unique per launch: the directory of an earlier attempt may still
        // be in the process of being removed.
        let key = task.key.to_string().replace('/', "-");
        let directory = self.task_dirs.join(format!("{key}-{}", task.token.0));
        task_env.set("HQ_TASK_DIR", &directory)?;
        task_env.set("HQ_ERROR_FILENAME", directory.join(output::ERROR_FILE))?;
        if !task.nodes.is_empty() {
            task_env.set("HQ_NODE_FILE", directory.join(output::NODE_FILE))?;
            task_env.set("HQ_HOST_FILE", directory.join(output::HOST_FILE))?;
            task_env.set_display("HQ_NUM_NODES", task.nodes.len())?;
        }
        Ok(directory)
    }

    fn compiled(
        &mut self,
        task: &LaunchTask,
        pools: &PoolSet,
    ) -> Result<Arc<CompiledTemplate>, Box<str>> {
        let work = &task.template;
        if let Some(known) = self.templates.get(&work.id)
            // After a reconnect, the same number may refer to another template.
            && Arc::ptr_eq(&known.work, work)
        {
            return Ok(Arc::clone(known));
        }
        let compiled = CompiledTemplate::new(work, &self.surroundings, pools);
        let compiled = Arc::new(compiled.map_err(|error| format!("Cannot {error}"))?);
        self.templates.insert(work.id, Arc::clone(&compiled));
        Ok(compiled)
    }
}

fn token_of(event: &LaunchEvent) -> LaunchToken {
    match event {
        LaunchEvent::Started { token, .. }
        | LaunchEvent::Failed { token, .. }
        | LaunchEvent::Exited { token, .. } => *token,
    }
}

fn stdio(spec: StdioSpec, cleanup: &mut Cleanup) -> Result<Stdio, Box<str>> {
    match spec {
        StdioSpec::None => Ok(Stdio::Null),
        StdioSpec::File {
            path,
            remove_if_finished,
        } => {
            let path = PathBuf::from(OsString::from_vec(path.into_vec()));
            if remove_if_finished {
                cleanup.remove_if_finished.push(path.clone());
            }
            Ok(Stdio::File { path })
        }
        // A pipe replaces this when the stream begins.
        StdioSpec::Stream => Ok(Stdio::Null),
    }
}

fn affinity(cpus: &[&str]) -> Result<CpuSet, Box<str>> {
    if cpus.is_empty() {
        return Err("Pinning failed, no CPU ids allocated for task".into());
    }
    cpus.iter()
        .map(|name| {
            name.parse::<u32>()
                .map_err(|_| format!("Pinning failed, `{name}` is not the number of a CPU").into())
        })
        .collect()
}

#[cfg(test)]
mod tests;
