//! Records memory, cpus and GPUs of tasks over time: a thread samples the process trees of tasks
//! that have been running for seconds.
//!
//! A short task costs a table entry, and nothing is read for it. One sample of all processes serves
//! all tasks. The pause between samples is the shortest spacing of points of any curve, and at
//! least a hundred times the duration of the last sample. Calls are sampled like tasks: the usage
//! of their interpreter, minus what it used before the call. The event loop never waits for a
//! sample: the table is locked only while numbers are copied, and a sample that hangs leaves gaps
//! in the curves. See `docs/usage.md`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hq_core::curve::{Curve, CurveBuilder, GpuLook, GpusGiven, HEARTBEAT_CURVES_MAX, SPACING_MIN};
use hq_core::limits::UNACKNOWLEDGED_MAX;
use hq_core::time::Time;
use hq_core::worker_state::{InstanceKey, LaunchToken, Report};
use rustix::time::{ClockId, clock_gettime};

use super::amounts::GrantedAmounts;
use super::gpus::{self, Answer, GpuWatch, HeldGpus, Numbers};
use super::processes::{Families, KIB, Process, Processes};
use super::shares::Shares;
use crate::clock;

/// The pause after a sample, as a multiple of its duration. Sampling thus costs at most one percent
/// of a cpu.
const REST: u32 = 100;
/// The longest pause between two samples. Shorter peaks are not seen.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// The longest pause after a slow sample, so that curves have points even on a very busy machine.
const REST_MAX: Duration = Duration::from_secs(30);
/// If all processes of a tree except the largest use at least this much memory, in KiB, the thread
/// asks for the shared memory: after a `fork`, most of it is shared.
const SHARED_MIN_KIB: u64 = 64 * KIB;

/// A process that is older than a call by at most this much counts as part of the call. The kernel
/// records start times only in ticks, and on a busy machine an interpreter begins a call before the
/// worker records the start.
const BEGIN_TOLERANCE: Duration = Duration::from_millis(500);

/// The maximum number of tasks whose samples are stored while the lock is held once.
const NOTED_AT_ONCE: usize = 512;

/// The minimum age of a running task whose curve is sent to the server. Most tasks end earlier.
const TOLD_AGE_MIN: Duration = Duration::from_secs(30);
/// A curve is sent again when the task's age has grown by half, and at least this often.
const TOLD_PAUSE_MAX: Duration = Duration::from_secs(300);

/// A running task.
#[derive(Debug)]
struct Watched {
    key: InstanceKey,
    pid: u32,
    started: Time,
    given: GrantedAmounts,
    /// The start time of the process by the kernel's clock, because its pid may be reused.
    began: Option<u64>,
    /// For a call, the CPU time that its interpreter had used before the call.
    before: Option<Duration>,
    /// For a call, the CPU time of older processes at the first sample.
    old: Duration,
    builder: CurveBuilder,
    /// The age of the task when its curve was last sent.
    told: Duration,
}

impl Watched {
    fn note(&mut self, seen: &TaskSample) {
        if self.began.is_none() && self.before.is_some() {
            // The usage of processes left by an earlier call counts from here on. How much of it
            // came before this call is unknown.
            self.old = seen.cpu_of_old;
        }
        if *self.began.get_or_insert(seen.began) != seen.began {
            return;
        }
        let before = self.before.unwrap_or_default().saturating_add(self.old);
        let cpu = seen.cpu.saturating_sub(before);
        if let Some((given, look)) = seen.gpus {
            self.builder.look_at_gpus(given, look);
        }
        self.builder.look(seen.age, seen.memory_kib, cpu);
    }
}

#[derive(Debug, Default)]
struct State {
    tasks: BTreeMap<LaunchToken, Watched>,
    /// Whether the thread wants the next task to wake it.
    is_slow: bool,
    is_over: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code can panic while the data is inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The curves of a worker's running tasks, and of ended tasks whose curves the server has not
/// acknowledged.
#[derive(Debug)]
pub(crate) struct Curves {
    shared: Arc<Shared>,
    /// Whether the thread is running. Without it, there are no curves.
    is_looking: bool,
    ended: BTreeMap<InstanceKey, Curve>,
    /// Ended tasks whose curves were sent, by report number.
    sent: VecDeque<(u64, Vec<InstanceKey>)>,
}

impl Curves {
    /// Starts the thread. `hq` is the path of this program.
    pub(super) fn start(hq: PathBuf) -> Self {
        let shared = Arc::new(Shared::default());
        let sampler = Sampler {
            shared: Arc::clone(&shared),
            processes: Processes::new("/proc"),
            shares: None,
            hq,
            gpus: None,
            numbers: Numbers::find(),
            waited: Duration::ZERO,
            elsewhere: Duration::ZERO,
        };
        let thread = thread::Builder::new().name("hq-curves".into());
        let started = thread.spawn(move || sampler.run());
        if let Err(error) = &started {
            tracing::warn!("The usage of tasks over time is not recorded: {error}");
        }
        Self {
            shared,
            is_looking: started.is_ok(),
            ended: BTreeMap::new(),
            sent: VecDeque::new(),
        }
    }

    /// Starts the curve of a task.
    pub(super) fn add(
        &self,
        token: LaunchToken,
        what: (InstanceKey, GrantedAmounts),
        process: (u32, Time),
    ) {
        self.watch(token, what, process, None);
    }

    /// Starts the curve of a call, in an interpreter that has already used `before`.
    pub(super) fn add_call(
        &self,
        token: LaunchToken,
        what: (InstanceKey, GrantedAmounts),
        process: (u32, Time),
        before: Duration,
    ) {
        self.watch(token, what, process, Some(before));
    }

    fn watch(
        &self,
        token: LaunchToken,
        (key, given): (InstanceKey, GrantedAmounts),
        (pid, started): (u32, Time),
        before: Option<Duration>,
    ) {
        if !self.is_looking {
            return;
        }
        let watched = Watched {
            key,
            pid,
            started,
            given,
            began: None,
            before,
            old: Duration::ZERO,
            builder: CurveBuilder::default(),
            told: Duration::ZERO,
        };
        let mut state = self.shared.lock();
        state.tasks.insert(token, watched);
        // With many short tasks, this wakes the thread at most every two seconds.
        if std::mem::take(&mut state.is_slow) {
            self.shared.changed.notify_one();
        }
    }

    /// Ends the curve of a task that ran for `run` and used `cpu` according to the kernel.
    pub(super) fn end(&mut self, token: LaunchToken, run: Duration, cpu: Duration) {
        let Some(watched) = self.shared.lock().tasks.remove(&token) else {
            return;
        };
        // If a task was never sampled, its memory is unknown, however long it ran.
        if watched.began.is_none() {
            return;
        }
        // The interpreter may or may not have waited for older processes, so the samples are used.
        let cpu = if watched.old.is_zero() {
            cpu
        } else {
            Duration::ZERO
        };
        let curve = watched.builder.finish(run, cpu, watched.given.asked);
        if let Some(curve) = curve {
            self.ended.insert(watched.key, curve);
        }
        // Otherwise, the curves of tasks whose end is never reported would stay forever.
        if self.ended.len() > UNACKNOWLEDGED_MAX {
            self.ended.pop_first();
        }
    }

    /// Forgets a call whose curve was sent.
    pub(super) fn forget(&self, token: LaunchToken) {
        self.shared.lock().tasks.remove(&token);
    }

    /// Returns the curves of the tasks whose ends are in a report. They are kept until it is
    /// acknowledged.
    pub(crate) fn of_report(&mut self, report: &Report) -> Vec<(InstanceKey, Curve)> {
        if self.ended.is_empty() {
            return Vec::new();
        }
        let rows = report.ended.iter();
        let found: Vec<(InstanceKey, Curve)> = rows
            .filter_map(|row| Some((row.key, self.ended.get(&row.key)?.clone())))
            .collect();
        if !found.is_empty() {
            let keys = found.iter().map(|(key, _)| *key).collect();
            self.sent.push_back((report.seq, keys));
        }
        found
    }

    /// Records that the server has stored all reports up to this number.
    pub(crate) fn acknowledge(&mut self, seq: u64) {
        while let Some((_, keys)) = self.sent.pop_front_if(|(number, _)| *number <= seq) {
            for key in keys {
                self.ended.remove(&key);
            }
        }
    }

    /// Handles a reconnect. The worker sends unacknowledged reports again under other numbers. If
    /// the server does not know this worker, they are void.
    pub(crate) fn on_server_back(&mut self, reattached: bool) {
        self.sent.clear();
        if !reattached {
            self.ended.clear();
            // The tasks still running are about to be killed. Tasks of the new server may have the
            // same ids.
            self.shared.lock().tasks.clear();
        }
    }

    /// Returns the curves of running tasks that are due to be sent, at most
    /// [`HEARTBEAT_CURVES_MAX`].
    pub(crate) fn news(&self, now: Time) -> Vec<(InstanceKey, Curve)> {
        let mut state = self.shared.lock();
        let due = state.tasks.values_mut().filter_map(|task| {
            let age = now.since(task.started);
            let next = (task.told + task.told / 2).min(task.told + TOLD_PAUSE_MAX);
            if age < next.max(TOLD_AGE_MIN) {
                return None;
            }
            let curve = task.builder.curve(task.given.asked)?;
            task.told = age;
            Some((task.key, curve))
        });
        due.take(HEARTBEAT_CURVES_MAX).collect()
    }
}

impl Drop for Curves {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_one();
    }
}

/// The sampling thread.
struct Sampler {
    shared: Arc<Shared>,
    processes: Processes,
    /// Started on demand.
    shares: Option<Shares>,
    /// The path of this program.
    hq: PathBuf,
    /// Started on demand.
    gpus: Option<GpuWatch>,
    /// Whether the GPU driver uses the pids of this namespace.
    numbers: Numbers,
    /// How long the last sample waited for a driver, which costs no CPU time.
    waited: Duration,
    /// The CPU time that the last sample used in the GPU probe process.
    elsewhere: Duration,
}

/// A task that is old enough to be sampled.
struct DueTask {
    token: LaunchToken,
    pid: u32,
    started: Time,
    gpus: Option<Arc<HeldGpus>>,
}

/// A sample of one task.
struct TaskSample {
    token: LaunchToken,
    age: Duration,
    memory_kib: u64,
    cpu: Duration,
    /// The part of the CPU time that belongs to processes older than the call.
    cpu_of_old: Duration,
    began: u64,
    /// Set only for a task that holds GPUs.
    gpus: Option<(GpusGiven, GpuLook)>,
}

/// Returns the time since boot, the clock for process start times.
fn uptime() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

impl Sampler {
    fn run(mut self) {
        let (mut pause, mut rest) = (SPACING_MIN, Duration::ZERO);
        while self.wait(pause, rest) {
            let begin = Instant::now();
            // This clock is read first, so that a pause of this thread cannot make a process of the
            // call seem older than the call.
            let since_boot = uptime();
            self.look(clock::now().mono, since_boot);
            let took = begin.elapsed().saturating_sub(self.waited);
            let took = took.saturating_add(self.elsewhere);
            rest = took.saturating_mul(REST).min(REST_MAX);
            pause = self.spacing_min().min(PAUSE_MAX);
        }
    }

    /// Waits until there are tasks, and then for `pause`, at least `rest`. Returns whether to
    /// continue.
    fn wait(&self, pause: Duration, rest: Duration) -> bool {
        let begin = Instant::now();
        let mut until = begin + pause.max(rest);
        let mut state = self.shared.lock();
        while state.tasks.is_empty() && !state.is_over {
            state.is_slow = true;
            let waited = self.shared.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
            until = Instant::now() + SPACING_MIN;
        }
        // A new task is sampled soon, even if all others have been running for hours.
        state.is_slow = until > Instant::now() + SPACING_MIN;
        while !state.is_over
            && let left = until.saturating_duration_since(Instant::now())
            && !left.is_zero()
        {
            let was_slow = state.is_slow;
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if was_slow && !state.is_slow {
                until = until.min((begin + rest).max(Instant::now() + SPACING_MIN));
            }
        }
        !state.is_over
    }

    /// Returns the shortest spacing of points of all tasks.
    fn spacing_min(&self) -> Duration {
        let state = self.shared.lock();
        let spans = state.tasks.values().map(|task| task.builder.spacing());
        spans.min().unwrap_or(SPACING_MIN)
    }

    /// Samples the processes of all tasks that are old enough. `uptime` is not later than `now`.
    fn look(&mut self, now: Time, uptime: Duration) {
        (self.waited, self.elsewhere) = (Duration::ZERO, Duration::ZERO);
        let tasks = self.due(now);
        // Nothing is read for tasks that are too young.
        if tasks.is_empty() {
            return;
        }
        self.ask_for_gpus(&tasks);
        let families = Families::new(self.processes.look());
        let answer = self.answer_of_gpus();
        let mut seen = Vec::with_capacity(tasks.len());
        for DueTask {
            token,
            pid,
            started,
            gpus,
        } in tasks
        {
            let Some(root) = families.get(pid) else {
                continue;
            };
            let tree = families.tree(pid);
            let age = now.since(started);
            let is_old = |process: &&&Process| {
                let began = self.processes.began_at(process);
                process.pid != pid && uptime.saturating_sub(began) > age + BEGIN_TOLERANCE
            };
            let old = tree.iter().filter(is_old);
            let gpus = gpus.map(|held| {
                let mut seen = gpus::ProcessView {
                    own: &tree.iter().map(|process| process.pid).collect(),
                    is_here: &|pid| families.get(pid).is_some(),
                    numbers: &mut self.numbers,
                };
                held.look(&answer.devices, &mut seen)
            });
            seen.push(TaskSample {
                token,
                age,
                cpu_of_old: old.map(|process| process.cpu).sum(),
                memory_kib: self.memory_of(&tree),
                cpu: tree.iter().map(|process| process.cpu).sum(),
                began: root.began,
                gpus,
            });
        }
        // The samples are stored in chunks. Otherwise, with very many tasks, the event loop would
        // have to wait for the lock.
        for some in seen.chunks(NOTED_AT_ONCE) {
            let mut state = self.shared.lock();
            for seen in some {
                // The task may have ended meanwhile.
                if let Some(task) = state.tasks.get_mut(&seen.token) {
                    task.note(seen);
                }
            }
        }
    }

    /// Returns the tasks that are old enough.
    fn due(&self, now: Time) -> Vec<DueTask> {
        let state = self.shared.lock();
        let tasks = state.tasks.iter();
        let tasks = tasks.filter(|(_, task)| now.since(task.started) >= SPACING_MIN);
        let due = tasks.map(|(token, task)| DueTask {
            token: *token,
            pid: task.pid,
            started: task.started,
            gpus: task.given.gpus.clone(),
        });
        due.collect()
    }

    /// Asks for the devices that tasks hold. The answer arrives while processes are sampled.
    fn ask_for_gpus(&mut self, tasks: &[DueTask]) {
        let held = tasks.iter().filter_map(|task| task.gpus.as_ref());
        let names: BTreeSet<Box<str>> = held.flat_map(|held| held.names.iter().cloned()).collect();
        if !names.is_empty() {
            let start = || GpuWatch::start(&self.hq);
            self.gpus.get_or_insert_with(start).ask(names);
        }
    }

    fn answer_of_gpus(&mut self) -> Answer {
        let begin = Instant::now();
        let answer = self.gpus.as_mut().map(GpuWatch::answer).unwrap_or_default();
        (self.waited, self.elsewhere) = (begin.elapsed(), answer.cpu);
        answer
    }

    /// Returns the anonymous memory of a tree in KiB. Shared pages count once if the kernel reports
    /// them in time.
    fn memory_of(&mut self, tree: &[&Process]) -> u64 {
        // Before Linux 4.5, the kernel does not report the anonymous part.
        let own = |process: &&Process| {
            let own = self.processes.own(process.pid);
            (process.pid, own.unwrap_or(process.rss))
        };
        let own: Vec<(u32, u64)> = tree.iter().map(own).collect();
        let sum: u64 = own.iter().map(|(_, kib)| kib).sum();
        let largest = own.iter().map(|(_, kib)| *kib).max().unwrap_or(0);
        if sum - largest < SHARED_MIN_KIB {
            return sum;
        }
        let shares = self
            .shares
            .get_or_insert_with(|| Shares::start(&self.processes));
        let shared = shares.sum(own.iter().map(|(pid, _)| *pid).collect());
        // The shares include swap, so the sum without swap is not an upper bound.
        shared.map_or(sum, |shared| shared.max(largest))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use hq_core::curve::Asked;
    use hq_core::id::{InstanceId, JobId};
    use hq_core::outcome::{Outcome, Usage};
    use hq_core::worker_state::EndedRow;

    use super::*;

    const ASKED: Asked = Asked {
        memory_kib: 4_096,
        is_memory_limit: false,
        cpu_units: 10_000,
    };

    fn given() -> GrantedAmounts {
        GrantedAmounts {
            asked: ASKED,
            gpus: None,
        }
    }

    fn key(task: u32) -> InstanceKey {
        InstanceKey::new(JobId(1), task, InstanceId(0))
    }

    const fn at(seconds: u64) -> Time {
        Time(1_000_000_000 * seconds)
    }

    fn curves() -> Curves {
        Curves {
            shared: Arc::default(),
            is_looking: true,
            ended: BTreeMap::new(),
            sent: VecDeque::new(),
        }
    }

    /// Describes a process with its anonymous memory, its CPU time in ticks, and its start time.
    fn process(proc: &Path, pid: u32, parent: u32, (kib, ticks, began): (u64, u64, u64)) {
        let own = proc.join(pid.to_string());
        fs::create_dir_all(&own).expect("writable");
        let stat = format!(
            "{pid} (a b) S {parent} {pid} {pid} 0 0 0 0 0 0 0 {ticks} 0 0 0 0 0 0 0 {began} 0 9 0\n"
        );
        fs::write(own.join("stat"), stat).expect("writable");
        let status = format!("RssAnon:\t{kib} kB\nRssFile:\t9999 kB\nRssShmem:\t0 kB\n");
        fs::write(own.join("status"), status).expect("writable");
    }

    /// The time since boot at each sample.
    const UPTIME: Duration = Duration::from_secs(1_000);

    fn sampler(curves: &Curves, proc: &Path) -> Sampler {
        Sampler {
            shared: Arc::clone(&curves.shared),
            processes: Processes::with_pages(proc, 4),
            shares: None,
            hq: PathBuf::new(),
            gpus: None,
            numbers: Numbers::Certain,
            waited: Duration::ZERO,
            elsewhere: Duration::ZERO,
        }
    }

    fn report(seq: u64, tasks: &[u32]) -> Report {
        let ended = tasks.iter().map(|task| EndedRow {
            key: key(*task),
            outcome: Outcome::Finished,
            age: Duration::ZERO,
            run: Duration::from_secs(9),
            usage: Usage::default(),
        });
        Report {
            seq,
            ended: ended.collect(),
            ..Report::default()
        }
    }

    #[test]
    fn a_tree_is_looked_at_and_its_curve_goes_with_its_end() {
        let proc = tempfile::tempdir().expect("temporary directory");
        let mut curves = curves();
        let mut sampler = sampler(&curves, proc.path());
        curves.add(LaunchToken(7), (key(3), given()), (10, at(100)));
        let ticks = sampler.processes.look().len() as u64;
        assert_eq!(ticks, 0, "no process yet");
        let second = rustix::param::clock_ticks_per_second();
        process(proc.path(), 10, 1, (1_000, second, 5));
        process(proc.path(), 11, 10, (500, second, 6));
        sampler.look(at(101), UPTIME);
        assert!(
            curves.shared.lock().tasks[&LaunchToken(7)].began.is_none(),
            "too young"
        );
        sampler.look(at(102), UPTIME);
        process(proc.path(), 11, 10, (2_000, 2 * second, 6));
        sampler.look(at(104), UPTIME);
        // Another process has the pid now.
        process(proc.path(), 10, 1, (900_000, 0, 70));
        sampler.look(at(106), UPTIME);
        let run = Duration::from_secs(6);
        curves.end(LaunchToken(7), run, Duration::from_secs(5));
        let found = curves.of_report(&report(1, &[2, 3]));
        let [(found_key, curve)] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!((*found_key, curve.asked), (key(3), ASKED));
        let points: Vec<(u64, u64)> = curve
            .points()
            .map(|point| (point.memory_kib, point.cpu_milli))
            .collect();
        // The fraction is stored in a byte, in 255 steps.
        assert_eq!(points[1..], [(3_000, 501), (3_000, 1_000)]);
        assert_eq!(points[0].1, 1_000);
        assert!((1_500..1_512).contains(&points[0].0), "{points:?}");
    }

    #[test]
    fn a_call_has_what_its_interpreter_used_since_it_began() {
        let proc = tempfile::tempdir().expect("temporary directory");
        let mut curves = curves();
        let mut sampler = sampler(&curves, proc.path());
        let second = rustix::param::clock_ticks_per_second();
        let of_machine = |seconds: u64| seconds * second;
        // The interpreter has been running for 500 s, and the call for 2 s at the first sample.
        let before = Duration::from_secs(300);
        curves.add_call(LaunchToken(7), (key(3), given()), (10, at(98)), before);
        process(proc.path(), 10, 1, (1_000, 301 * second, of_machine(500)));
        // One process is left from an earlier call. Another belongs to this call: the interpreter
        // began before the worker recorded the start.
        let own = of_machine(998) - second * 2 / 5;
        process(proc.path(), 11, 10, (100, 70 * second, of_machine(600)));
        process(proc.path(), 12, 10, (10, second, own));
        sampler.look(at(100), UPTIME);
        process(proc.path(), 11, 10, (100, 71 * second, of_machine(600)));
        process(proc.path(), 12, 10, (10, 2 * second, own));
        sampler.look(at(102), UPTIME);
        // The interpreter waited for both processes, but only after the last sample.
        let cpu = Duration::from_secs(301 + 71 + 2) - before;
        curves.end(LaunchToken(7), Duration::from_millis(4_100), cpu);
        let [(_, curve)] = &curves.of_report(&report(1, &[3]))[..] else {
            panic!("no curve");
        };
        let cpus: Vec<u64> = curve.points().map(|point| point.cpu_milli).collect();
        assert_eq!(cpus, [1_000, 1_000]);
        assert_eq!(curve.memory_peak_kib, 1_110);
        // The next call ends before the first sample.
        curves.add_call(LaunchToken(8), (key(4), given()), (10, at(102)), before);
        curves.forget(LaunchToken(8));
        assert!(curves.shared.lock().tasks.is_empty());
    }

    #[test]
    fn a_curve_is_kept_until_its_report_is_acknowledged() {
        let mut curves = curves();
        for task in [1, 2] {
            let token = LaunchToken(task.into());
            curves.add(token, (key(task), given()), (10, at(0)));
            curves
                .shared
                .lock()
                .tasks
                .get_mut(&token)
                .expect("added")
                .began = Some(1);
            curves.end(token, Duration::from_secs(9), Duration::ZERO);
        }
        assert_eq!(curves.of_report(&report(1, &[1])).len(), 1);
        // The connection breaks, and both ends are sent again in the next report.
        curves.on_server_back(true);
        assert_eq!(curves.of_report(&report(2, &[1, 2])).len(), 2);
        curves.acknowledge(1);
        assert_eq!(curves.ended.len(), 2);
        curves.acknowledge(2);
        assert!(curves.ended.is_empty() && curves.sent.is_empty());
    }

    #[test]
    fn a_server_that_knows_nothing_of_the_tasks_hears_nothing_of_them() {
        let mut curves = curves();
        for task in [1, 2] {
            let token = LaunchToken(task.into());
            curves.add(token, (key(task), given()), (10, at(0)));
            let mut state = curves.shared.lock();
            let watched = state.tasks.get_mut(&token).expect("added");
            watched.began = Some(1);
            watched
                .builder
                .look(Duration::from_secs(40), 9, Duration::ZERO);
        }
        curves.end(LaunchToken(1), Duration::from_secs(50), Duration::ZERO);
        curves.on_server_back(false);
        assert!(curves.news(at(60)).is_empty());
        curves.end(LaunchToken(2), Duration::from_secs(60), Duration::ZERO);
        // Tasks of the new server have the same ids, and are too short for curves.
        assert!(curves.of_report(&report(1, &[1, 2])).is_empty());
    }

    #[test]
    fn short_tasks_and_those_nobody_looked_at_have_none() {
        let mut curves = curves();
        curves.add(LaunchToken(1), (key(1), given()), (10, at(0)));
        curves.end(LaunchToken(1), Duration::from_millis(900), Duration::ZERO);
        curves.add(LaunchToken(2), (key(2), given()), (11, at(0)));
        curves.end(LaunchToken(2), Duration::from_secs(90), Duration::ZERO);
        assert!(curves.ended.is_empty());
        assert!(curves.shared.lock().tasks.is_empty());
    }

    #[test]
    fn running_tasks_are_told_of_less_and_less_often() {
        let curves = curves();
        curves.add(LaunchToken(1), (key(1), given()), (10, at(0)));
        let mut told = Vec::new();
        for second in (2..=3_600).step_by(2) {
            let mut state = curves.shared.lock();
            let task = state.tasks.get_mut(&LaunchToken(1)).expect("added");
            task.builder
                .look(Duration::from_secs(second), 1, Duration::ZERO);
            drop(state);
            if !curves.news(at(second)).is_empty() {
                told.push(second);
            }
        }
        assert_eq!(told[..7], [30, 46, 70, 106, 160, 240, 360]);
        let pauses = told.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(pauses.max() <= Some(302), "{told:?}");
        assert!(told.len() < 25, "{told:?}");
    }
}
