//! The queue of requests and the threads that handle them: the order of requests, and when to
//! retry.
//!
//! The threads live as long as their launcher, because the kernel sends a child's parent-death
//! signal when the *thread* that created the child ends. They block signals. A failure caused by
//! the machine (no process, no memory, no descriptor) pauses the pool and lowers the number of
//! active threads; each success raises it again.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::SpawnError;
use crate::event::{Event, Token};
use crate::lanes::{Job, Lane, Lanes};
use crate::live::{InFlight, Key, Running, Termination};
use crate::mechanism::Backend;
use crate::path_group::PathGroup;
use crate::placement::ChildTimes;
use crate::plan::SpawnPlan;
use crate::prepare::Common;
use crate::reaper::Watch;
use crate::resolve::Resolver;
use crate::stack::ChildStack;
use crate::sys;
use crate::waiter::Waiter;

/// The minimum pause after a transient failure. During this time, a short task typically ends and
/// frees resources.
const PAUSE_MIN: Duration = Duration::from_millis(2);
/// The maximum pause. It limits the load caused by retries on an overloaded machine.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// How long a request must keep failing for transient reasons before a warning is logged.
pub(crate) const TROUBLE: Duration = Duration::from_secs(1);
/// The minimum interval between these warnings.
const TROUBLE_PAUSE: Duration = Duration::from_secs(60);

/// How long a creation must hang before another thread replaces its thread. A creation usually
/// takes less than a millisecond, and even a slow file system responds within a second.
const STALL: Duration = Duration::from_secs(1);

/// The maximum number of additional threads for hanging creations. Each thread has a stack.
const STALLED_MAX: usize = 256;

/// The number of hanging creations at which similar requests are held back. The other half of the
/// additional threads is reserved for other requests.
const SUSPECTS_MAX: usize = STALLED_MAX / 2;

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Requests that wait until they are retried.
    delayed: Vec<(Instant, Job)>,
    /// Requests that wait for an earlier request in their lane.
    lanes: Lanes,
    /// Threads that wait for their last child to exit and may be interrupted.
    waiters: Vec<Arc<ChildWaiter>>,
    /// No request starts before this time, because the machine lacks a resource.
    paused_until: Option<Instant>,
    /// The number of consecutive transient failures.
    failures: u32,
    /// The creations in progress, including hanging ones. Each runs on its own thread.
    at_work: Vec<CreationInProgress>,
    /// The distinct path groups of the hanging creations.
    suspects: Vec<PathGroup>,
    /// The number of threads that are creating a process, and its maximum. Hanging threads are not
    /// counted.
    active: usize,
    active_max: usize,
    /// Whether the reaper checks for hanging creations.
    is_watched: bool,
    /// The number of the pool's own threads.
    dedicated: usize,
    /// The number of threads that wait for work.
    idle: usize,
    /// The number of borrowed threads that are working; see [`Threads::Borrowed`].
    borrowed: usize,
    stop: bool,
}

/// A creation in progress.
#[derive(Debug)]
struct CreationInProgress {
    key: Key,
    token: Token,
    path_group: PathGroup,
    since: Instant,
    /// Also identifies the thread.
    in_flight: Arc<InFlight>,
    /// Whether the creation hangs and another thread has replaced its thread.
    is_stalled: bool,
}

/// Waits for a thread's last child to exit. The pool can interrupt the wait when there is other
/// work.
#[derive(Debug)]
pub(crate) struct ChildWaiter(OwnedFd);

impl ChildWaiter {
    pub(crate) fn new() -> io::Result<Self> {
        sys::eventfd().map(Self)
    }

    /// Waits for a child, given by the number of its pidfd, to exit, or for an interruption.
    /// Returns whether the child has exited.
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
    /// Returns the number of hanging creations.
    fn stalled(&self) -> usize {
        self.at_work.iter().filter(|work| work.is_stalled).count()
    }

    /// Returns the number of additional threads: one replacement per hanging creation, and one that
    /// tries similar requests, so that all of them hang after a few seconds instead of one after
    /// another.
    fn extra_threads(&self) -> usize {
        (2 * self.stalled()).min(STALLED_MAX)
    }

    /// Removes and returns the next request that a thread may handle. Requests that resemble a
    /// hanging creation come after all others, and one thread is always left free for the others.
    fn take_next(&mut self) -> Option<Job> {
        let stalled = self.stalled();
        let free = (self.active_max + stalled).saturating_sub(self.active);
        if free == 0 {
            return None;
        }
        let is_suspect = |job: &Job| self.suspects.contains(&job.path_group);
        match self.jobs.iter().position(|job| !is_suspect(job)) {
            Some(index) => self.jobs.remove(index),
            None if free > 1 && stalled < SUSPECTS_MAX => self.jobs.pop_front(),
            None => None,
        }
    }

    /// Recomputes the suspects.
    fn suspect(&mut self) {
        self.suspects.clear();
        for work in self.at_work.iter().filter(|work| work.is_stalled) {
            if !self.suspects.contains(&work.path_group) {
                self.suspects.push(work.path_group);
            }
        }
    }

    /// Ends the turn of a lane's current request and queues the next one.
    fn leave(&mut self, lane: Lane) {
        if let Some(job) = self.lanes.leave(lane) {
            self.jobs.push_back(job);
        }
    }

    /// Removes a request that has no process yet. Returns the lane that it occupied, if any.
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

/// Runs a closure on another thread soon.
pub(crate) type RunOnThread = Box<dyn Fn(Box<dyn FnOnce() + Send>) + Send + Sync>;

/// The source of the threads.
pub(crate) enum Threads {
    /// The pool's own threads.
    Dedicated,
    /// Threads that are borrowed while there is work.
    #[cfg_attr(
        not(feature = "tokio"),
        expect(dead_code, reason = "only tokio lends threads")
    )]
    Borrowed(RunOnThread),
}

/// The main function of a thread of the pool, with a stack for its children. It returns when the
/// thread has no more work.
pub(crate) type Work = fn(&Arc<Pool>, ChildStack);

/// The next action of a thread.
pub(crate) enum Next {
    Job {
        job: Box<Job>,
        key: Key,
        /// Whether no other request is waiting for a thread.
        alone: bool,
    },
    /// There is nothing to create: wait for the last child to exit.
    WaitForChild,
    /// There is other work: let the reaper wait for the last child.
    HandOver,
    Stop,
}

/// The result of a thread's last request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    None,
    Done,
    /// The machine lacks a resource.
    Short,
    /// Only this request has to wait.
    Later,
}

/// The queue and all other state that spawner threads share.
pub(crate) struct Pool {
    queue: Mutex<Queue>,
    work: Condvar,
    threads: usize,
    source: Threads,
    work_on: Work,
    /// The handles of the pool's own threads that were not taken yet.
    handles: Mutex<Vec<JoinHandle<()>>>,
    /// The time of the last warning about transient failures.
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

    /// Starts the threads. If this fails, the caller must call `stop` to end the threads that were
    /// started.
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

    /// Returns the threads, to be joined after [`Pool::stop`] when there are no more children.
    pub(crate) fn take_threads(&self) -> Vec<JoinHandle<()>> {
        self.waiter.stop();
        std::mem::take(&mut *self.handles())
    }

    /// Checks for hanging creations, reports them and replaces their threads. Returns when to check
    /// again.
    ///
    /// The hanging thread itself cannot be interrupted. It waits for its child or for a file
    /// system, and returns to the pool when the file system responds or the child is killed.
    pub(crate) fn find_stalls(self: &Arc<Self>, now: Instant) -> Option<Instant> {
        let mut queue = self.lock();
        let is_old = |work: &CreationInProgress| now.saturating_duration_since(work.since) >= STALL;
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
        // A thread may be idle because it was not allowed to start a request.
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
                tracing::warn!(%error, "cannot start a thread to replace a hanging one");
                // Check again later, no matter whether a thread starts a request in the meantime.
                next = Some(next.map_or(now + STALL, |next| next.min(now + STALL)));
                break;
            }
        }
        next
    }

    /// Logs, at a limited rate, that the machine lacks a resource.
    pub(crate) fn warn_of_trouble(&self, error: &SpawnError) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|at| at.elapsed() >= TROUBLE_PAUSE) {
            *warned = Some(Instant::now());
            tracing::warn!(%error, "cannot create processes at present; retrying");
        }
    }

    /// Returns the number of threads to start in place of hanging ones.
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
        // Collect first: the iterator is the caller's code and must not run under the lock.
        let new: Vec<_> = requests
            .map(|(lane, token, plan)| Job {
                path_group: PathGroup::of(&plan),
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

    /// Ensures that threads handle the queue: idle threads first, then threads that are waiting for
    /// a child.
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

    /// Reaps and reports children that have exited and were removed from the table, and queues the
    /// next requests of their lanes. `alone` means that the caller takes the next request itself,
    /// so no other thread needs to be woken. Returns the times of the last child.
    pub(crate) fn finish(
        self: &Arc<Self>,
        ended: &mut Vec<Running>,
        alone: bool,
    ) -> Option<ChildTimes> {
        let mut lanes: Vec<_> = ended.iter().filter_map(|child| child.lane).collect();
        // While there is more to do, the consumer may be woken later.
        let lazily = lanes.len() == ended.len() && {
            let queue = self.lock();
            lanes.iter().all(|lane| queue.lanes.has_next(*lane))
        };
        let life = self.watch.finish(ended, lazily);
        if !ended.is_empty() {
            // Children that have not been reported yet block the next request in their lane.
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

    /// Continues a lane after a request that did not create a child.
    pub(crate) fn leave(self: &Arc<Self>, lane: Option<Lane>) {
        if let Some(lane) = lane {
            let mut queue = self.lock();
            queue.leave(lane);
            self.call_threads(queue);
        }
    }

    /// Removes a request that waits behind another one. Other requests are ignored.
    pub(crate) fn withdraw(&self, token: Token) {
        let removed = self.lock().lanes.remove(token);
        if removed.is_some() {
            self.watch.events.push(cancelled(token));
        }
    }

    /// Returns a waiter for a thread that may wait for its last child. Returns `None` for a
    /// borrowed thread, which never waits.
    pub(crate) fn waiter(&self) -> Option<Arc<ChildWaiter>> {
        match self.source {
            Threads::Dedicated => ChildWaiter::new().ok().map(Arc::new),
            Threads::Borrowed(_) => None,
        }
    }

    /// Records that the thread no longer waits for its child.
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

    /// Ends a request or a child.
    pub(crate) fn terminate(self: &Arc<Self>, token: Token, how: Termination) {
        let mut queue = self.lock();
        let Some(lane) = queue.remove(token) else {
            // Both locks are held, so the request cannot be missed while it moves from the queue to
            // the table.
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

    /// Sends a signal to the process group of a running child.
    pub(crate) fn signal(&self, token: Token, signal: i32) {
        // The lock keeps the child from being reaped, and its pid from being reused.
        let table = self.watch.table();
        if let Some(child) = table.child(token) {
            let _ = sys::kill(child.target(), signal);
        }
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

    /// Ends the threads as soon as the queue is empty.
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

    /// Returns the number of requests that have no process yet.
    pub(crate) fn queued(&self) -> usize {
        let queue = self.lock();
        queue.jobs.len() + queue.delayed.len() + queue.lanes.len()
    }

    /// Waits for the next action. With `waiter`, the thread has a child to wait for.
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
            // A borrowed thread returns to its owner.
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

    /// Records that a thread, identified by `in_flight`, is starting to create a process.
    fn begin(&self, queue: &mut Queue, job: &Job, in_flight: &Arc<InFlight>) -> Key {
        let token = job.token;
        let key = self.watch.table().begin(token, Arc::clone(in_flight));
        queue.active += 1;
        queue.at_work.push(CreationInProgress {
            key,
            token,
            path_group: job.path_group,
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
        let is_own = |work: &CreationInProgress| Arc::ptr_eq(&work.in_flight, in_flight);
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

    /// Moves requests whose delay has expired to the front. Returns when the pool's pause ends, if
    /// it is paused.
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

    /// Retries a request after a pause.
    pub(crate) fn delay(&self, job: Job, pause: Duration) {
        self.lock().delayed.push((Instant::now() + pause, job));
    }

    fn handles(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        // The protected value is valid between any two operations.
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // The queue is valid between any two operations.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the pause after this many consecutive failures.
pub(crate) fn pause(failures: u32) -> Duration {
    PAUSE_MIN
        .saturating_mul(1 << failures.min(10))
        .min(PAUSE_MAX)
}

/// Returns the last event of a request that never started.
pub(crate) fn cancelled(token: Token) -> Event {
    Event::Failed {
        token,
        error: SpawnError::cancelled(),
    }
}

/// Sends a signal to a child in the table. The caller must hold the table's lock.
pub(crate) fn signal_group(child: &Running, signal: i32) {
    let _ = sys::kill(child.target(), signal);
    // A stopped process would only receive the signal once it is continued.
    let _ = sys::kill(child.target(), libc::SIGCONT);
}
