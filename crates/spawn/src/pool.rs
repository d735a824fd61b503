//! Spawner threads: take a request, create the process, hand it to the reaper, try again what may pass.
//!
//! The threads live as long as their launcher, because the kernel sends a child's parent-death signal when the
//! *thread* that created it ends. They keep all signals blocked. A failure that is the machine's (no process, no
//! memory, no descriptor) pauses the pool and lowers the number of threads at work; each success raises it again.

use std::collections::{HashMap, VecDeque};
use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::backend::{self, Backend, Created};
use crate::error::{SpawnError, Stage};
use crate::event::{Event, MonotonicNs, Token};
use crate::keeper;
use crate::live::{InFlight, Key, Running, Termination};
use crate::plan::SpawnPlan;
use crate::prepare::{self, Common, Scratch};
use crate::probe::Features;
use crate::reaper::Watch;
use crate::resolve::{Resolved, Resolver};
use crate::signal;
use crate::stack::ChildStack;
use crate::sys::{self, WaitFor};

/// First and longest pause after a transient failure. The first is about what a short task takes to end and
/// give something back, the last keeps a full machine from being hammered.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// How often a thread without pidfds looks for its ended children: quickly after it found one, then more slowly.
const POLL_MIN: Duration = Duration::from_micros(200);
const POLL_MAX: Duration = Duration::from_millis(5);

/// How long a thread without pidfds waits for its last children once everything was killed.
const LAST_CHILDREN_LIMIT: Duration = Duration::from_secs(5);

/// One request.
#[derive(Debug)]
struct Job {
    token: Token,
    plan: SpawnPlan,
    /// When it first met a transient failure, and how many there were.
    trouble: Option<(Instant, u32)>,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Requests that wait before they are tried again.
    delayed: Vec<(Instant, Job)>,
    /// Nothing starts before this time: the machine is short of something.
    paused_until: Option<Instant>,
    /// Successive transient failures.
    failures: u32,
    /// Threads that create a process now, and how many may.
    active: usize,
    active_max: usize,
    /// Threads that wait for work.
    idle: usize,
    stop: bool,
}

/// What a thread does next.
enum Next {
    Job(Box<Job>, Key),
    /// Look for ended children.
    Poll,
    Stop,
}

/// What became of the last request of a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    None,
    Done,
    /// The machine is short of something.
    Short,
    /// This request alone has to wait.
    Later,
}

/// The queue and what all spawner threads share.
pub(crate) struct Pool {
    queue: Mutex<Queue>,
    work: Condvar,
    threads: usize,
    watch: Arc<Watch>,
    common: Common,
    resolver: Resolver,
    backend: Backend,
    features: Features,
    transient_limit: Duration,
}

impl Pool {
    pub(crate) fn new(
        watch: Arc<Watch>,
        common: Common,
        backend: Backend,
        features: Features,
        threads: usize,
        transient_limit: Duration,
    ) -> Self {
        let queue = Queue {
            active_max: threads,
            ..Queue::default()
        };
        Self {
            queue: Mutex::new(queue),
            work: Condvar::new(),
            threads,
            watch,
            common,
            resolver: Resolver::default(),
            backend,
            features,
            transient_limit,
        }
    }

    /// Starts the threads. Those that started before a failure are stopped again by the caller's `stop`.
    pub(crate) fn start(self: &Arc<Self>) -> io::Result<Vec<JoinHandle<()>>> {
        (0..self.threads)
            .map(|index| {
                let stack = ChildStack::new()?;
                let pool = Arc::clone(self);
                std::thread::Builder::new()
                    .name(format!("spawner-{index}"))
                    .spawn(move || Spawner::new(&pool, stack).run())
            })
            .collect()
    }

    /// Queues requests.
    pub(crate) fn push(&self, requests: impl Iterator<Item = (Token, SpawnPlan)>) {
        let mut queue = self.lock();
        let before = queue.jobs.len();
        queue.jobs.extend(requests.map(|(token, plan)| Job {
            token,
            plan,
            trouble: None,
        }));
        let wanted = (queue.jobs.len() - before).min(queue.idle);
        drop(queue);
        for _ in 0..wanted {
            self.work.notify_one();
        }
    }

    /// Ends a request or child.
    pub(crate) fn terminate(&self, token: Token, how: Termination) {
        let mut queue = self.lock();
        if let Some(index) = queue.jobs.iter().position(|job| job.token == token) {
            queue.jobs.remove(index);
        } else if let Some(index) = queue.delayed.iter().position(|(_, job)| job.token == token) {
            queue.delayed.swap_remove(index);
        } else {
            // Between the queue and the table there is no gap: both locks are held.
            let mut table = self.watch.table();
            drop(queue);
            let now = Instant::now();
            if let Some((child, signal)) = table.terminate(token, how, now) {
                signal_group(child, signal);
            }
            drop(table);
            self.watch.wake_reaper();
            return;
        }
        drop(queue);
        self.watch.events.push(cancelled(token));
    }

    /// Cancels all requests and kills all children.
    pub(crate) fn kill_all(&self) {
        let mut queue = self.lock();
        let jobs = std::mem::take(&mut queue.jobs);
        let delayed = std::mem::take(&mut queue.delayed);
        self.watch.table().terminate_all(Instant::now());
        drop(queue);
        let delayed = delayed.into_iter().map(|(_, job)| job);
        self.watch.events.extend(
            jobs.into_iter()
                .chain(delayed)
                .map(|job| cancelled(job.token)),
        );
        self.watch.wake_reaper();
    }

    /// Has the threads end as soon as nothing is queued.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.work.notify_all();
    }

    /// Number of requests that have no process yet.
    pub(crate) fn queued(&self) -> usize {
        let queue = self.lock();
        queue.jobs.len() + queue.delayed.len()
    }

    /// Waits for the next thing to do, at most `patience`.
    fn next(
        &self,
        outcome: Outcome,
        patience: Option<Duration>,
        in_flight: &Arc<InFlight>,
    ) -> Next {
        let mut queue = self.lock();
        self.account(&mut queue, outcome);
        let poll_at = patience.map(|patience| Instant::now() + patience);
        loop {
            let resume_at = self.release_delayed(&mut queue);
            if resume_at.is_none()
                && queue.active < queue.active_max
                && let Some(job) = queue.jobs.pop_front()
            {
                queue.active += 1;
                let key = self.watch.table().begin(job.token, Arc::clone(in_flight));
                return Next::Job(Box::new(job), key);
            }
            if queue.stop && queue.jobs.is_empty() && queue.delayed.is_empty() {
                return Next::Stop;
            }
            let next_delayed = queue.delayed.iter().map(|(at, _)| *at).min();
            let until = [poll_at, resume_at, next_delayed]
                .into_iter()
                .flatten()
                .min();
            queue.idle += 1;
            queue = match until {
                None => self
                    .work
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let timeout = until.saturating_duration_since(Instant::now());
                    self.work
                        .wait_timeout(queue, timeout)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
            queue.idle -= 1;
            if poll_at.is_some_and(|at| at <= Instant::now()) {
                return Next::Poll;
            }
        }
    }

    fn account(&self, queue: &mut Queue, outcome: Outcome) {
        if outcome == Outcome::None {
            return;
        }
        queue.active -= 1;
        match outcome {
            Outcome::None | Outcome::Later => {}
            Outcome::Done => {
                queue.failures = 0;
                if queue.active_max < self.threads {
                    queue.active_max += 1;
                    self.work.notify_one();
                }
            }
            Outcome::Short => {
                queue.active_max = (queue.active_max / 2).max(1);
                queue.paused_until = Some(Instant::now() + pause(queue.failures));
                queue.failures = queue.failures.saturating_add(1);
            }
        }
    }

    /// Moves requests whose time has come to the front. Answers until when the pool pauses, if it does.
    fn release_delayed(&self, queue: &mut Queue) -> Option<Instant> {
        if queue.delayed.is_empty() && queue.paused_until.is_none() {
            return None;
        }
        let now = Instant::now();
        let mut index = 0;
        while let Some((at, _)) = queue.delayed.get(index) {
            if *at <= now {
                let (_, job) = queue.delayed.swap_remove(index);
                queue.jobs.push_front(job);
            } else {
                index += 1;
            }
        }
        queue.paused_until = queue.paused_until.filter(|until| *until > now);
        queue.paused_until
    }

    fn delay(&self, job: Job, pause: Duration) {
        self.lock().delayed.push((Instant::now() + pause, job));
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // The queue is valid between any two operations.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pause(failures: u32) -> Duration {
    PAUSE_MIN
        .saturating_mul(1 << failures.min(10))
        .min(PAUSE_MAX)
}

fn cancelled(token: Token) -> Event {
    Event::Failed {
        token,
        error: SpawnError::cancelled(),
    }
}

/// Sends a signal to a child in the table, whose lock is held.
fn signal_group(child: &Running, signal: i32) {
    let _ = sys::kill(child.target(), signal);
    // A stopped process would not see the signal before somebody continues it.
    let _ = sys::kill(child.target(), libc::SIGCONT);
}

/// One spawner thread.
struct Spawner<'a> {
    pool: &'a Pool,
    stack: ChildStack,
    scratch: Scratch,
    /// Children without pidfd, which only this thread can wait for.
    own: HashMap<libc::pid_t, Key>,
    poll: Duration,
    in_flight: Arc<InFlight>,
    /// Pidfds of children that failed before their program ran; see [`InFlight`] for why they are kept a while.
    failed: Vec<OwnedFd>,
}

impl<'a> Spawner<'a> {
    fn new(pool: &'a Pool, stack: ChildStack) -> Self {
        Self {
            pool,
            stack,
            scratch: Scratch::new(),
            own: HashMap::new(),
            poll: POLL_MIN,
            in_flight: Arc::default(),
            failed: Vec::new(),
        }
    }

    fn run(mut self) {
        signal::block_all();
        let mut outcome = Outcome::None;
        loop {
            let patience = (!self.own.is_empty()).then_some(self.poll);
            match self.pool.next(outcome, patience, &self.in_flight) {
                Next::Job(job, key) => {
                    outcome = self.launch(*job, key);
                    // Children must be noticed however long the queue is.
                    self.reap_own();
                }
                Next::Poll => {
                    outcome = Outcome::None;
                    self.reap_own();
                }
                Next::Stop => break,
            }
        }
        let limit = Instant::now() + LAST_CHILDREN_LIMIT;
        while !self.own.is_empty() && Instant::now() < limit {
            self.reap_own();
            std::thread::sleep(POLL_MAX);
        }
    }

    fn launch(&mut self, mut job: Job, key: Key) -> Outcome {
        let started = sys::monotonic_now();
        let result = if keeper::is_halted() {
            Err(SpawnError::cancelled())
        } else {
            self.create(&job.plan)
        };
        match result {
            Ok(created) => {
                self.started(job, key, started, created);
                Outcome::Done
            }
            Err(error) => {
                let cancel = self.pool.watch.table().abandon(key);
                self.failed.clear();
                if cancel {
                    self.pool.watch.events.push(cancelled(job.token));
                    return Outcome::Done;
                }
                if error.is_transient() {
                    let (since, times) = job.trouble.unwrap_or_else(|| (Instant::now(), 0));
                    if since.elapsed() < self.pool.transient_limit {
                        tracing::debug!(token = job.token.0, %error, "spawn failed for now");
                        job.trouble = Some((since, times + 1));
                        self.pool.delay(job, pause(times));
                        // A busy program file is no reason to hold up others.
                        return if error.errno == libc::ETXTBSY {
                            Outcome::Later
                        } else {
                            Outcome::Short
                        };
                    }
                }
                let token = job.token;
                self.pool.watch.events.push(Event::Failed { token, error });
                Outcome::Done
            }
        }
    }

    /// The program runs: enters it into the table and has it watched.
    fn started(&mut self, job: Job, key: Key, started: MonotonicNs, created: Created) {
        let watch = &self.pool.watch;
        let Created { pid, pidfd } = created;
        // Reported before it is watched, so that its end cannot come first.
        watch.events.push_lazily(Event::Started {
            token: job.token,
            pid: pid.unsigned_abs(),
            at: started,
        });
        if pidfd.is_none() {
            self.own.insert(pid, key);
        }
        let child = Running {
            token: job.token,
            pid,
            pidfd,
            started,
            leader: job.plan.new_session,
            marker: job.plan.marker,
        };
        let mut table = watch.table();
        let kill = table.running(key, child);
        self.failed.clear();
        if let Some(child) = table.get(key)
            && let Some(pidfd) = &child.pidfd
            && let Err(error) = watch.watch(key, pidfd)
        {
            // Out of kernel memory or over the user's limit of watches: the child cannot be supervised.
            tracing::error!(%error, pid, "cannot watch a child; ending it");
            let _ = sys::kill(child.target(), libc::SIGKILL);
            let mut ended: Vec<_> = table.take(key).into_iter().collect();
            drop(table);
            watch.finish(&mut ended);
            return;
        }
        if let Some(how) = kill {
            if let Some((child, signal)) = table.terminate(job.token, how, Instant::now()) {
                signal_group(child, signal);
            }
            drop(table);
            watch.wake_reaper();
        }
    }

    /// Creates the process, mending what can be mended at once.
    fn create(&mut self, plan: &SpawnPlan) -> Result<Created, SpawnError> {
        /// A missing directory each for the working directory and both outputs, and a moved program.
        const REPAIRS_MAX: usize = 4;
        let mut resolved = self.pool.resolver.resolve(plan)?;
        let mut repairs = 0;
        loop {
            let mut error = match self.try_create(plan, &resolved) {
                Ok(created) => return Ok(created),
                Err(error) => error,
            };
            if error.errno != libc::ENOENT || repairs == REPAIRS_MAX {
                return Err(error);
            }
            repairs += 1;
            match (&resolved, error.stage) {
                (Resolved::Found { cached: true, .. }, Stage::Exec) => {
                    resolved = self.pool.resolver.resolve_again(plan)?;
                }
                (_, Stage::Exec) => {
                    let exists = error.path().is_some_and(|path| in_cwd(plan, path).exists());
                    error.program_exists = exists;
                    return Err(error);
                }
                (_, Stage::Chdir | Stage::Stdout | Stage::Stderr) if plan.create_dirs => {
                    create_directory_for(plan, &error)?;
                }
                _ => return Err(error),
            }
        }
    }

    fn try_create(&mut self, plan: &SpawnPlan, resolved: &Resolved) -> Result<Created, SpawnError> {
        let pool = self.pool;
        let stack = &self.stack;
        let found: Option<&Arc<CStr>> = match resolved {
            Resolved::AsGiven => None,
            Resolved::Found { path, .. } => Some(path),
        };
        let share = pool.backend.shares_descriptors();
        let (in_flight, failed) = (&self.in_flight, &mut self.failed);
        self.scratch
            .with_child_plan(plan, found, &pool.common, share, |child| {
                backend::create(pool.backend, &pool.features, child, stack, in_flight).map_err(
                    |failure| {
                        failed.extend(failure.pidfd);
                        let path = prepare::path_of(failure.stage, plan, found);
                        SpawnError::new(failure.stage, failure.errno, path)
                    },
                )
            })
    }

    /// Reaps ended children that have no pidfd.
    fn reap_own(&mut self) {
        if self.own.is_empty() {
            return;
        }
        let mut ended = Vec::new();
        let flags = libc::WNOHANG | libc::WNOWAIT;
        while let Ok(Some(waited)) = sys::wait(WaitFor::OwnThread, flags) {
            let key = self.own.remove(&waited.pid);
            let Some(child) = key.and_then(|key| self.pool.watch.table().take(key)) else {
                // Not ours to report; taken so that it does not hide the others.
                let _ = sys::wait(WaitFor::Pid(waited.pid), libc::WNOHANG);
                continue;
            };
            ended.push(child);
            self.pool.watch.finish(&mut ended);
            self.poll = POLL_MIN;
        }
        self.poll = (self.poll * 2).min(POLL_MAX);
    }
}

/// A path of the task as seen from here.
fn in_cwd(plan: &SpawnPlan, path: &Path) -> PathBuf {
    plan.cwd
        .as_ref()
        .map_or_else(|| path.to_path_buf(), |cwd| cwd.join(path))
}

/// Creates the directory whose absence made a step fail.
fn create_directory_for(plan: &SpawnPlan, failed: &SpawnError) -> Result<(), SpawnError> {
    let directory = match (failed.stage, failed.path()) {
        (Stage::Chdir, Some(path)) => path.to_path_buf(),
        (_, Some(path)) => {
            let path = in_cwd(plan, path);
            path.parent().map(Path::to_path_buf).unwrap_or(path)
        }
        (_, None) => return Err(failed.clone()),
    };
    // A dangling symbolic link, say: creating the directory would not help.
    if directory.is_dir() {
        return Err(failed.clone());
    }
    std::fs::create_dir_all(&directory).map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        SpawnError::new(Stage::CreateDir, errno, Some(directory))
    })
}
