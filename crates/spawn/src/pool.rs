//! The queue of requests and its threads: the order of requests, and when to retry.
//!
//! The threads live as long as their launcher, because the kernel sends a child's parent-death
//! signal when the *thread* that created it ends. They block signals. A failure caused by the
//! machine (no process, no memory, no descriptor) pauses the pool and lowers the number of active
//! threads; each success raises it again.

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

/// Minimum pause after a transient failure: meanwhile, a short task typically ends and frees
/// resources.
const PAUSE_MIN: Duration = Duration::from_millis(2);
/// Maximum pause. It limits the load of retries on a full machine.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// Time of repeated transient failures before a request causes a warning.
pub(crate) const TROUBLE: Duration = Duration::from_secs(1);
/// Minimum interval of these warnings.
const TROUBLE_PAUSE: Duration = Duration::from_secs(60);

/// Time until another thread replaces one whose creation hangs. A creation usually takes less than
/// a millisecond, and a slow file system responds within a second.
const STALL: Duration = Duration::from_secs(1);

/// Maximum additional threads for hanging creations. Each has a stack.
const STALLED_MAX: usize = 256;

/// Number of hanging creations at which similar requests are held back: the other half is for other
/// requests.
const SUSPECTS_MAX: usize = STALLED_MAX / 2;

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Requests that wait before a retry.
    delayed: Vec<(Instant, Job)>,
    /// Requests that wait behind others of their lane.
    lanes: Lanes,
    /// Threads that wait for the end of their last child and may be interrupted.
    waiters: Vec<Arc<ChildWaiter>>,
    /// No request starts before this time: the machine lacks a resource.
    paused_until: Option<Instant>,
    /// Consecutive transient failures.
    failures: u32,
    /// Creations in progress, one thread each, including hanging ones.
    at_work: Vec<CreationInProgress>,
    /// Distinct path groups of the hanging creations.
    suspects: Vec<PathGroup>,
    /// Threads that create a process now, and their maximum. Hanging ones do not count.
    active: usize,
    active_max: usize,
    /// Whether the reaper checks for hanging creations.
    is_watched: bool,
    /// Number of the pool's own threads.
    dedicated: usize,
    /// Threads that wait for work.
    idle: usize,
    /// Borrowed threads at work; see [`Threads::Borrowed`].
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
    /// Whether it hangs and another thread has replaced it.
    is_stalled: bool,
}

/// Waits for the end of a thread's last child. The pool can interrupt the wait when there is other
/// work.
#[derive(Debug)]
pub(crate) struct ChildWaiter(OwnedFd);

impl ChildWaiter {
    pub(crate) fn new() -> io::Result<Self> {
        sys::eventfd().map(Self)
    }

    /// Waits for the end of a child, by the number of its pidfd, or for an interruption. Returns
    /// whether the child ended.
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
    /// Number of hanging creations.
    fn stalled(&self) -> usize {
        self.at_work.iter().filter(|work| work.is_stalled).count()
    }

    /// Number of additional threads: one replacement per hanging creation, and one that tries
    /// similar requests, so that all of them hang after a few seconds instead of one after the
    /// other.
    fn extra_threads(&self) -> usize {
        (2 * self.stalled()).min(STALLED_MAX)
    }

    /// Removes the next request, if a thread may handle it. Requests that resemble a hanging
    /// creation come after all others and leave a thread free for one that does not.
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

    /// Ends the turn of a lane and queues its next request.
    fn leave(&mut self, lane: Lane) {
        if let Some(job) = self.lanes.leave(lane) {
            self.jobs.push_back(job);
        }
    }

    /// Removes a request that has no process yet. Returns the lane that it blocked, if any.
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

/// Source of the threads.
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

/// Main function of a thread of the pool, with a stack for its children. Returns when the thread
/// has no more work.
pub(crate) type Work = fn(&Arc<Pool>, ChildStack);

/// Next action of a thread.
pub(crate) enum Next {
    Job {
        job: Box<Job>,
        key: Key,
        /// Whether no other request waits for a thread.
        alone: bool,
    },
    /// There is nothing to create: wait for the end of the last child.
    WaitForChild,
    /// There is other work: leave the last child to the reaper.
    HandOver,
    Stop,
}

/// Result of the last request of a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    None,
    Done,
    /// The machine lacks a resource.
    Short,
    /// Only this request has to wait.
    Later,
}

/// The queue and all that spawner threads share.
pub(crate) struct Pool {
    queue: Mutex<Queue>,
    work: Condvar,
    threads: usize,
    source: Threads,
    work_on: Work,
    /// Handles of the pool's own threads that were not taken yet.
    handles: Mutex<Vec<JoinHandle<()>>>,
    /// Time of the last warning about transient failures.
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

    /// Starts the threads. After a failure the caller's `stop` ends the threads that were started.
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

    /// The threads, to be joined after [`Pool::stop`] when there are no children any more.
    pub(crate) fn take_threads(&self) -> Vec<JoinHandle<()>> {
        self.waiter.stop();
        std::mem::take(&mut *self.handles())
    }

    /// Checks for hanging creations: reports them and replaces their threads. Returns when to check
    /// again.
    ///
    /// The hanging thread itself cannot be interrupted. It waits for its child or for a file
    /// system, and returns to the pool when that responds or the child is killed.
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
                // Check again, whether a thread starts a request meanwhile or not.
                next = Some(next.map_or(now + STALL, |next| next.min(now + STALL)));
                break;
            }
        }
        next
    }

    /// Logs at a limited rate that the machine lacks a resource.
    pub(crate) fn warn_of_trouble(&self, error: &SpawnError) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|at| at.elapsed() >= TROUBLE_PAUSE) {
            *warned = Some(Instant::now());
            tracing::warn!(%error, "cannot create processes at present; retrying");
        }
    }

    /// Number of threads to start in place of hanging ones.
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

    /// Ensures that a thread handles the queue: idle threads first, then threads that wait for a
    /// child.
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

    /// Reaps and reports children that have ended and were removed from the table, and queues the
    /// requests behind them. `alone`: the caller takes the next request itself, so no thread needs
    /// to be woken. Returns the times of the last child.
    pub(crate) fn finish(
        self: &Arc<Self>,
        ended: &mut Vec<Running>,
        alone: bool,
    ) -> Option<ChildTimes> {
        let mut lanes: Vec<_> = ended.iter().filter_map(|child| child.lane).collect();
        // The consumer may be woken later while there is more to do.
        let lazily = lanes.len() == ended.len() && {
            let queue = self.lock();
            lanes.iter().all(|lane| queue.lanes.has_next(*lane))
        };
        let life = self.watch.finish(ended, lazily);
        if !ended.is_empty() {
            // Children that were not reported yet block the next request of their lane.
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

    /// Continues a lane after a request that created no child.
    pub(crate) fn leave(self: &Arc<Self>, lane: Option<Lane>) {
        if let Some(lane) = lane {
            let mut queue = self.lock();
            queue.leave(lane);
            self.call_threads(queue);
        }
    }

    /// Removes a request that waits behind another one; ignores others.
    pub(crate) fn withdraw(&self, token: Token) {
        let removed = self.lock().lanes.remove(token);
        if removed.is_some() {
            self.watch.events.push(cancelled(token));
        }
    }

    /// Waiter for a thread that may wait for its last child; `None` for a borrowed thread, which
    /// never does.
    pub(crate) fn waiter(&self) -> Option<Arc<ChildWaiter>> {
        match self.source {
            Threads::Dedicated => ChildWaiter::new().ok().map(Arc::new),
            Threads::Borrowed(_) => None,
        }
    }

    /// The thread no longer waits for its child.
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
            // With both locks held the request cannot slip between queue and table.
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

    /// Number of requests that have no process yet.
    pub(crate) fn queued(&self) -> usize {
        let queue = self.lock();
        queue.jobs.len() + queue.delayed.len() + queue.lanes.len()
    }

    /// Waits for the next action. With `waiter` the thread has a child to wait for.
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
            // A borrowed thread is returned.
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

    /// Records that a thread, identified by `in_flight`, starts to create a process.
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

    /// Moves requests whose delay has expired to the front. Returns the end of the pool's pause, if
    /// there is one.
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

/// The pause after this many consecutive failures.
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
    // A stopped process would receive the signal only when it is continued.
    let _ = sys::kill(child.target(), libc::SIGCONT);
}
