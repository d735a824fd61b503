//! The queue of requests and the threads that work on it: which request is next, and what is tried again when.
//!
//! The threads live as long as their launcher, because the kernel sends a child's parent-death signal when the
//! *thread* that created it ends. They keep signals blocked. A failure that is the machine's (no process, no
//! memory, no descriptor) pauses the pool and lowers the number of threads at work; each success raises it again.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::SpawnError;
use crate::event::{Event, Token};
use crate::kin::Kin;
use crate::lanes::{Job, Lane, Lanes};
use crate::live::{InFlight, Key, Running, Termination};
use crate::mechanism::Backend;
use crate::placement::ChildTimes;
use crate::plan::SpawnPlan;
use crate::prepare::Common;
use crate::reaper::Watch;
use crate::resolve::Resolver;
use crate::stack::ChildStack;
use crate::sys;
use crate::waiter::Waiter;

/// First and longest pause after a transient failure. The first is about what a short task takes to end and
/// give something back, the last keeps a full machine from being hammered.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// How long a request meets transient failures until somebody should hear of it, and how often that is said at most.
pub(crate) const TROUBLE: Duration = Duration::from_secs(1);
const TROUBLE_PAUSE: Duration = Duration::from_secs(60);

/// How long a creation may take before another thread takes over the place of the one that hangs. Usually it takes
/// less than a millisecond, and a slow file system answers within a second.
const STALL: Duration = Duration::from_secs(1);

/// How many threads there may be on top at a time, because creations hang. Each holds a stack.
const STALLED_MAX: usize = 256;

/// How many creations may hang until nothing more is tried that resembles them: the other half is for others.
const SUSPECTS_MAX: usize = STALLED_MAX / 2;

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Requests that wait before they are tried again.
    delayed: Vec<(Instant, Job)>,
    /// Requests behind others.
    lanes: Lanes,
    /// Threads that wait for the end of a child of theirs and may be called away.
    waiters: Vec<Arc<ChildWaiter>>,
    /// Nothing starts before this time: the machine is short of something.
    paused_until: Option<Instant>,
    /// Successive transient failures.
    failures: u32,
    /// Creations under way, a thread each; those that hang included.
    at_work: Vec<AtWork>,
    /// Keys of the creations that hang, each once.
    suspects: Vec<Kin>,
    /// Threads that create a process now, and how many may. Those that hang do not count.
    active: usize,
    active_max: usize,
    /// The reaper looks for creations that hang.
    is_watched: bool,
    /// The pool's own threads.
    dedicated: usize,
    /// Threads that wait for work.
    idle: usize,
    /// Borrowed threads at work; see [`Threads::Borrowed`].
    borrowed: usize,
    stop: bool,
}

/// A creation under way.
#[derive(Debug)]
struct AtWork {
    key: Key,
    token: Token,
    kin: Kin,
    since: Instant,
    /// Also tells which thread it is.
    in_flight: Arc<InFlight>,
    /// It hangs, and another thread has taken over.
    is_stalled: bool,
}

/// Waits for the end of a thread's last child, and lets the pool interrupt that wait when there is other work.
#[derive(Debug)]
pub(crate) struct ChildWaiter(OwnedFd);

impl ChildWaiter {
    pub(crate) fn new() -> io::Result<Self> {
        sys::eventfd().map(Self)
    }

    /// Waits for the end of a child, by the number of its pidfd, or until called. Returns whether the child ended.
    pub(crate) fn wait(&self, pidfd: RawFd) -> bool {
        let (ended, called) = sys::wait_either(pidfd, self.0.as_fd());
        if called {
            sys::consume_counter(self.0.as_fd());
        }
        ended
    }

    fn call(&self) {
        sys::eventfd_signal(self.0.as_fd());
    }
}

impl Queue {
    /// Creations that hang.
    fn stalled(&self) -> usize {
        self.at_work.iter().filter(|work| work.is_stalled).count()
    }

    /// Threads on top of the others: for each creation that hangs one that takes over, and one to try more of the
    /// same, so that any number of them have hung after a few seconds and not one after the other.
    fn extra_threads(&self) -> usize {
        (2 * self.stalled()).min(STALLED_MAX)
    }

    /// Takes out the request that is next, if one more may be worked on. What resembles a creation that hangs comes
    /// after all others, and leaves a place free for one that does not.
    fn take_next(&mut self) -> Option<Job> {
        let stalled = self.stalled();
        let free = (self.active_max + stalled).saturating_sub(self.active);
        if free == 0 {
            return None;
        }
        let is_suspect = |job: &Job| self.suspects.contains(&job.kin);
        match self.jobs.iter().position(|job| !is_suspect(job)) {
            Some(index) => self.jobs.remove(index),
            None if free > 1 && stalled < SUSPECTS_MAX => self.jobs.pop_front(),
            None => None,
        }
    }

    /// Finds out what is to be suspected now.
    fn suspect(&mut self) {
        self.suspects.clear();
        for work in self.at_work.iter().filter(|work| work.is_stalled) {
            if !self.suspects.contains(&work.kin) {
                self.suspects.push(work.kin);
            }
        }
    }

    /// Whatever waits in a lane comes to its turn.
    fn leave(&mut self, lane: Lane) {
        if let Some(job) = self.lanes.leave(lane) {
            self.jobs.push_back(job);
        }
    }

    /// Takes out a request that has no process yet. Returns the lane that it held up, if any.
    #[expect(clippy::option_option, reason = "not found, and found without a lane")]
    fn remove(&mut self, token: Token) -> Option<Option<Lane>> {
        if let Some(index) = self.jobs.iter().position(|job| job.token == token) {
            return self.jobs.remove(index).map(|job| job.lane);
        }
        if let Some(index) = self.delayed.iter().position(|(_, job)| job.token == token) {
            return Some(self.delayed.swap_remove(index).1.lane);
        }
        self.lanes.remove(token).map(|_| None)
    }
}

/// Runs a closure on another thread, soon.
pub(crate) type RunOnThread = Box<dyn Fn(Box<dyn FnOnce() + Send>) + Send + Sync>;

/// Where the threads come from.
pub(crate) enum Threads {
    /// Threads of the pool's own.
    Dedicated,
    /// Threads that are borrowed while there is work.
    #[cfg_attr(
        not(feature = "tokio"),
        expect(dead_code, reason = "only tokio lends threads")
    )]
    Borrowed(RunOnThread),
}

/// Main function of a thread of the pool, with a stack for its children; returns when there is no more work for the thread.
pub(crate) type Work = fn(&Arc<Pool>, ChildStack);

/// Next action of a thread.
pub(crate) enum Next {
    Job {
        job: Box<Job>,
        key: Key,
        /// No other request waits for a thread.
        alone: bool,
    },
    /// There is nothing to create: wait for the end of the last child.
    WaitForChild,
    /// There is something else to do: leave the last child to the reaper.
    HandOver,
    Stop,
}

/// Result of the last request of a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
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
    source: Threads,
    work_on: Work,
    /// Those of the pool's own threads that nobody has asked for.
    handles: Mutex<Vec<JoinHandle<()>>>,
    /// When transient failures were last warned of.
    warned: Mutex<Option<Instant>>,
    pub(crate) watch: Arc<Watch>,
    /// Waits for children without pidfds.
    pub(crate) waiter: Waiter,
    pub(crate) common: Common,
    pub(crate) resolver: Resolver,
    pub(crate) backend: Backend,
    pub(crate) transient_limit: Duration,
}

impl Pool {
    pub(crate) fn new(
        watch: Arc<Watch>,
        common: Common,
        backend: Backend,
        (threads, source): (usize, Threads),
        transient_limit: Duration,
        work_on: Work,
    ) -> Self {
        let queue = Queue {
            active_max: threads,
            ..Queue::default()
        };
        Self {
            queue: Mutex::new(queue),
            work: Condvar::new(),
            threads,
            source,
            work_on,
            handles: Mutex::default(),
            warned: Mutex::default(),
            watch,
            waiter: Waiter::default(),
            common,
            resolver: Resolver::default(),
            backend,
            transient_limit,
        }
    }

    /// Starts the threads. Those that started before a failure are stopped again by the caller's `stop`.
    pub(crate) fn start(self: &Arc<Self>) -> io::Result<()> {
        match self.backend {
            Backend::ClonePidfd => {}
            Backend::PosixSpawnWait | Backend::Fork => self.start_waiter()?,
        }
        match self.source {
            Threads::Dedicated => (0..self.threads).try_for_each(|_| self.add_thread()),
            Threads::Borrowed(_) => Ok(()),
        }
    }

    fn start_waiter(self: &Arc<Self>) -> io::Result<()> {
        let pool = Arc::clone(self);
        let finish = move |pool: &Arc<Self>, key| {
            let child = pool.watch.table().take(key);
            pool.finish(&mut child.into_iter().collect(), false);
        };
        let handle = std::thread::Builder::new()
            .name("spawn-waiter".to_owned())
            .spawn(move || pool.waiter.run(|key| finish(&pool, key)))?;
        self.handles().push(handle);
        Ok(())
    }

    fn add_thread(self: &Arc<Self>) -> io::Result<()> {
        let stack = ChildStack::new()?;
        let index = self.lock().dedicated;
        let pool = Arc::clone(self);
        let handle = std::thread::Builder::new()
            .name(format!("spawner-{index}"))
            .spawn(move || (pool.work_on)(&pool, stack))?;
        self.lock().dedicated += 1;
        self.handles().push(handle);
        Ok(())
    }

    /// The threads, to be joined after [`Pool::stop`], when there are no children any more.
    pub(crate) fn take_threads(&self) -> Vec<JoinHandle<()>> {
        self.waiter.stop();
        std::mem::take(&mut *self.handles())
    }

    /// Looks for creations that hang: reports them and has other threads take over. Returns when to look again.
    ///
    /// The thread itself cannot be helped. It waits for its child, or for a file system, and comes back to the pool
    /// when that answers, or when somebody kills the child.
    pub(crate) fn look_for_stalls(self: &Arc<Self>, now: Instant) -> Option<Instant> {
        let mut queue = self.lock();
        let is_old = |work: &AtWork| now.saturating_duration_since(work.since) >= STALL;
        let mut found = Vec::new();
        for work in &mut queue.at_work {
            if !work.is_stalled && is_old(work) {
                work.is_stalled = true;
                found.push((work.key, work.token, Arc::clone(&work.in_flight)));
            }
        }
        queue.active -= found.len();
        if !found.is_empty() {
            queue.suspect();
        }
        let fresh = queue.at_work.iter().filter(|work| !work.is_stalled);
        let mut next = fresh.map(|work| work.since + STALL).min();
        let missing = self.missing_threads(&queue);
        queue.is_watched = next.is_some();
        if found.is_empty() && missing == 0 {
            return next;
        }
        // Somebody may be idle who was not allowed to start anything.
        self.call_threads(queue);
        for (_, token, _) in &found {
            tracing::warn!(
                token = token.0,
                "creating a process takes longer than a second; another thread takes over"
            );
        }
        self.watch.report_stalls(&found);
        for _ in 0..missing {
            if let Err(error) = self.add_thread() {
                tracing::warn!(%error, "cannot start a thread in place of one that hangs");
                // Tried again, whether somebody starts anything meanwhile or not.
                next = Some(next.map_or(now + STALL, |next| next.min(now + STALL)));
                break;
            }
        }
        next
    }

    /// Says in the log that the machine is short of something, now and then.
    pub(crate) fn warn_of_trouble(&self, error: &SpawnError) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|at| at.elapsed() >= TROUBLE_PAUSE) {
            *warned = Some(Instant::now());
            tracing::warn!(%error, "no process can be created for now; it is tried again");
        }
    }

    /// How many threads have to be started in place of those that hang.
    fn missing_threads(&self, queue: &Queue) -> usize {
        match self.source {
            Threads::Dedicated if !queue.stop => {
                let wanted = self.threads + queue.extra_threads();
                wanted.saturating_sub(queue.dedicated)
            }
            Threads::Dedicated | Threads::Borrowed(_) => 0,
        }
    }

    /// Queues requests.
    pub(crate) fn push(
        self: &Arc<Self>,
        requests: impl Iterator<Item = (Option<Lane>, Token, SpawnPlan)>,
    ) {
        // Collected first: the iterator is the caller's code and must not run under the lock.
        let new: Vec<_> = requests
            .map(|(lane, token, plan)| Job {
                kin: Kin::of(&plan),
                token,
                plan,
                lane,
                trouble: None,
            })
            .collect();
        let mut queue = self.lock();
        for job in new {
            if let Some(job) = queue.lanes.enter(job) {
                queue.jobs.push_back(job);
            }
        }
        self.call_threads(queue);
    }

    /// Sees to it that somebody works on what is queued: idle threads first, then such as only wait for a child.
    fn call_threads(self: &Arc<Self>, mut queue: MutexGuard<'_, Queue>) {
        let wanted = queue.jobs.len();
        let waking = wanted.min(queue.idle);
        let keep = queue.waiters.len().saturating_sub(wanted - waking);
        let called = queue.waiters.split_off(keep);
        let borrowing = match self.source {
            Threads::Dedicated => 0,
            Threads::Borrowed(_) => {
                let most = self.threads + queue.extra_threads();
                (wanted - waking).min(most.saturating_sub(queue.borrowed))
            }
        };
        queue.borrowed += borrowing;
        drop(queue);
        for _ in 0..waking {
            self.work.notify_one();
        }
        for waiter in called {
            waiter.call();
        }
        for _ in 0..borrowing {
            self.borrow_thread();
        }
    }

    /// Reaps and reports children that have ended and were taken out of the table; what waited behind them is
    /// queued. `alone`: the caller asks for the next request itself, nobody needs to be woken for it. Answers how the
    /// last of them fared.
    pub(crate) fn finish(
        self: &Arc<Self>,
        ended: &mut Vec<Running>,
        alone: bool,
    ) -> Option<ChildTimes> {
        let mut lanes: Vec<_> = ended.iter().filter_map(|child| child.lane).collect();
        // The consumer may sleep a little while there is more to do.
        let lazily = lanes.len() == ended.len() && {
            let queue = self.lock();
            lanes.iter().all(|lane| queue.lanes.has_next(*lane))
        };
        let life = self.watch.finish(ended, lazily);
        if !ended.is_empty() {
            // Not reported yet: what waits behind them must not start before.
            lanes.retain(|lane| !ended.iter().any(|child| child.lane == Some(*lane)));
            self.watch.hold(ended);
        }
        if lanes.is_empty() {
            return life;
        }
        let mut queue = self.lock();
        for lane in lanes {
            queue.leave(lane);
        }
        if !alone {
            self.call_threads(queue);
        }
        life
    }

    /// A request of this lane has come to nothing.
    pub(crate) fn leave(self: &Arc<Self>, lane: Option<Lane>) {
        if let Some(lane) = lane {
            let mut queue = self.lock();
            queue.leave(lane);
            self.call_threads(queue);
        }
    }

    /// Takes out a request that waits behind another one; does nothing to any other.
    pub(crate) fn withdraw(&self, token: Token) {
        let removed = self.lock().lanes.remove(token);
        if removed.is_some() {
            self.watch.events.push(cancelled(token));
        }
    }

    /// Waiter for a thread that may wait for its last child; `None` for a borrowed thread, which never does.
    pub(crate) fn waiter(&self) -> Option<Arc<ChildWaiter>> {
        match self.source {
            Threads::Dedicated => ChildWaiter::new().ok().map(Arc::new),
            Threads::Borrowed(_) => None,
        }
    }

    /// The thread does not wait for its child any more.
    pub(crate) fn stop_waiting(&self, waiter: &Arc<ChildWaiter>) {
        self.lock()
            .waiters
            .retain(|other| !Arc::ptr_eq(other, waiter));
    }

    fn borrow_thread(self: &Arc<Self>) {
        if let Threads::Borrowed(run) = &self.source {
            let pool = Arc::clone(self);
            run(Box::new(move || match ChildStack::new() {
                Ok(stack) => (pool.work_on)(&pool, stack),
                Err(error) => {
                    tracing::error!(%error, "no memory for a child stack");
                    pool.lock().borrowed -= 1;
                }
            }));
        }
    }

    /// Ends a request or child.
    pub(crate) fn terminate(self: &Arc<Self>, token: Token, how: Termination) {
        let mut queue = self.lock();
        let Some(lane) = queue.remove(token) else {
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
        };
        drop(queue);
        self.watch.events.push(cancelled(token));
        self.leave(lane);
    }

    /// Cancels all requests and kills all children.
    pub(crate) fn kill_all(&self) {
        let mut queue = self.lock();
        let waiting = queue.lanes.drain();
        let delayed = std::mem::take(&mut queue.delayed);
        let mut jobs: Vec<_> = delayed.into_iter().map(|(_, job)| job).collect();
        jobs.extend(std::mem::take(&mut queue.jobs));
        for lane in jobs.iter().filter_map(|job| job.lane) {
            queue.lanes.leave(lane);
        }
        jobs.extend(waiting);
        self.watch.table().terminate_all(Instant::now());
        drop(queue);
        let jobs = jobs.into_iter();
        self.watch
            .events
            .extend(jobs.map(|job| cancelled(job.token)));
        self.watch.wake_reaper();
    }

    /// Has the threads end as soon as nothing is queued.
    pub(crate) fn stop(&self) {
        let mut queue = self.lock();
        queue.stop = true;
        let waiters = std::mem::take(&mut queue.waiters);
        drop(queue);
        self.work.notify_all();
        for waiter in waiters {
            waiter.call();
        }
    }

    /// Number of requests that have no process yet.
    pub(crate) fn queued(&self) -> usize {
        let queue = self.lock();
        queue.jobs.len() + queue.delayed.len() + queue.lanes.len()
    }

    /// Waits for the next thing to do. With `waiter` the thread has a child to wait for.
    pub(crate) fn next(
        &self,
        outcome: Outcome,
        in_flight: &Arc<InFlight>,
        waiter: Option<&Arc<ChildWaiter>>,
    ) -> Next {
        let mut queue = self.lock();
        self.account(&mut queue, outcome, in_flight);
        if let Some(waiter) = waiter {
            if queue.stop || !queue.jobs.is_empty() || !queue.delayed.is_empty() {
                return Next::HandOver;
            }
            queue.waiters.push(Arc::clone(waiter));
            return Next::WaitForChild;
        }
        loop {
            let resume_at = self.release_delayed(&mut queue);
            if resume_at.is_none()
                && let Some(job) = queue.take_next()
            {
                let key = self.begin(&mut queue, &job, in_flight);
                return Next::Job {
                    job: Box::new(job),
                    key,
                    alone: queue.jobs.is_empty(),
                };
            }
            let nothing_to_do = queue.jobs.is_empty() && queue.delayed.is_empty();
            if nothing_to_do && queue.stop {
                return Next::Stop;
            }
            // A borrowed thread is given back.
            if nothing_to_do && matches!(self.source, Threads::Borrowed(_)) {
                queue.borrowed -= 1;
                return Next::Stop;
            }
            let next_delayed = queue.delayed.iter().map(|(at, _)| *at).min();
            let until = [resume_at, next_delayed].into_iter().flatten().min();
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
        }
    }

    /// A thread, known by what it has in flight, begins to create a process.
    fn begin(&self, queue: &mut Queue, job: &Job, in_flight: &Arc<InFlight>) -> Key {
        let token = job.token;
        let key = self.watch.table().begin(token, Arc::clone(in_flight));
        queue.active += 1;
        queue.at_work.push(AtWork {
            key,
            token,
            kin: job.kin,
            since: Instant::now(),
            in_flight: Arc::clone(in_flight),
            is_stalled: false,
        });
        if !std::mem::replace(&mut queue.is_watched, true) && !self.watch.ticks() {
            self.watch.wake_reaper();
        }
        key
    }

    fn account(&self, queue: &mut Queue, outcome: Outcome, in_flight: &Arc<InFlight>) {
        if outcome == Outcome::None {
            return;
        }
        let is_own = |work: &AtWork| Arc::ptr_eq(&work.in_flight, in_flight);
        let own = queue.at_work.iter().position(is_own);
        let own = own.map(|index| queue.at_work.swap_remove(index));
        match own {
            Some(work) if work.is_stalled => queue.suspect(),
            Some(_) => queue.active -= 1,
            None => {}
        }
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

    /// Tries a request again after a pause.
    pub(crate) fn delay(&self, job: Job, pause: Duration) {
        self.lock().delayed.push((Instant::now() + pause, job));
    }

    fn handles(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        // Its methods do not panic half way.
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // The queue is valid between any two operations.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pause after this many failures in a row.
pub(crate) fn pause(failures: u32) -> Duration {
    PAUSE_MIN
        .saturating_mul(1 << failures.min(10))
        .min(PAUSE_MAX)
}

/// The last event of a request that never started.
pub(crate) fn cancelled(token: Token) -> Event {
    Event::Failed {
        token,
        error: SpawnError::cancelled(),
    }
}

/// Sends a signal to a child in the table, whose lock is held.
pub(crate) fn signal_group(child: &Running, signal: i32) {
    let _ = sys::kill(child.target(), signal);
    // A stopped process would not see the signal before somebody continues it.
    let _ = sys::kill(child.target(), libc::SIGCONT);
}
