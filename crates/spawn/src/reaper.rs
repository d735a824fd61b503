//! The thread that notices when children exit and handles them.
//!
//! It sleeps in epoll on the pidfds of all children, so the cost of noticing an exit does not depend
//! on their number. The cost of reaping does before Linux 5.13: even a wait for one child then walks
//! the list of live children. Without pidfds, `waiter.rs` notices exits, with more such walks.
//!
//! All children that have exited when it wakes form one batch: it removes them from the table under
//! one lock, kills their leftovers, reaps them with resource usage, and reports them under one lock
//! and with at most one wake-up. It also sends every SIGKILL that is due.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::event::{Event, ExitStatus, ResourceUsage, Token};
use crate::event_queue::EventQueue;
use crate::live::{DueActions, InFlight, Key, Running, Table};
use crate::orphans::{self, Census, Orphans, Task};
use crate::placement::ChildTimes;
use crate::procfs;
use crate::signal;
use crate::sys::{self, Epoll, ReapedChild, WaitFor};

/// The epoll data of the wake-up counter and of the event timer. The keys of children never reach
/// these values: that would take 2³² successive children in the last of 2³² slots.
const WAKE: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;

/// The interval at which to check whether an ended child was released by its tracer. No event
/// reports this.
const HELD_PAUSE: Duration = Duration::from_millis(100);

/// The state of children that spawner threads, the reaper and the launcher share.
pub(crate) struct Watch {
    table: Mutex<Table>,
    /// Children that have exited but cannot be reaped yet because they are traced. They are not in
    /// the table.
    held: Mutex<Vec<Running>>,
    pub(crate) events: EventQueue,
    epoll: Epoll,
    wake: OwnedFd,
    orphans: Mutex<Orphans>,
    adopting: bool,
    /// Whether orphans are found only by scanning all processes, which include the launcher's
    /// children.
    seeking: bool,
    means: ReapMechanism,
    stop: AtomicBool,
}

/// How the exits of children are noticed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReapMechanism {
    /// Whether it is possible to wait for a pidfd.
    pub(crate) wait_pidfd: bool,
    /// Whether the id of a child is known as soon as the child exists.
    pub(crate) names_at_once: bool,
    /// Whether to use the kernel's list of children if there is one.
    pub(crate) list_children: bool,
}

impl Watch {
    /// Creates the state. `unkillable_after` is how long a child can exist after SIGKILL before it
    /// is reported.
    pub(crate) fn new(
        events: EventQueue,
        means: ReapMechanism,
        unkillable_after: Duration,
    ) -> std::io::Result<Self> {
        let epoll = Epoll::new()?;
        let wake = sys::eventfd()?;
        epoll.add(wake.as_fd(), WAKE, false)?;
        epoll.add(events.timer(), TIMER, false)?;
        let orphans = Orphans::new(means.list_children);
        Ok(Self {
            table: Mutex::new(Table::new(unkillable_after)),
            held: Mutex::default(),
            events,
            epoll,
            wake,
            adopting: orphans.adopting(),
            seeking: orphans.is_seeking(),
            orphans: Mutex::new(orphans),
            means,
            stop: AtomicBool::new(false),
        })
    }

    /// Locks the table of children.
    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        // Its methods do not panic halfway through.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the reaper check deadlines and the stop flag.
    pub(crate) fn wake_reaper(&self) {
        sys::eventfd_signal(self.wake.as_fd());
    }

    /// Ends the reaper thread. Living children are no longer watched.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake_reaper();
    }

    /// Watches a child that is in the table. Reports it if it has already ended.
    pub(crate) fn watch(&self, key: Key, pidfd: &OwnedFd) -> std::io::Result<()> {
        self.epoll.add(pidfd.as_fd(), key.0, true)
    }

    /// Returns whether the reaper wakes up regularly on its own.
    pub(crate) const fn ticks(&self) -> bool {
        self.adopting
    }

    /// The body of the reaper thread. It passes ended children to `finish`. `find_stalls` checks
    /// for hanging creations and returns when to check again.
    pub(crate) fn run(
        &self,
        finish: impl Fn(&mut Vec<Running>),
        find_stalls: impl Fn(Instant) -> Option<Instant>,
    ) {
        signal::block_all();
        let mut ready = Vec::new();
        let mut ended = Vec::new();
        let mut due = DueActions::default();
        let mut tick_at = self.adopting.then(Instant::now);
        while !self.stop.load(Ordering::Acquire) {
            let now = Instant::now();
            let next_kill = self.kill_due(now, &mut due);
            let next_stall = find_stalls(now);
            let next_held = self.take_released(now, &mut ended);
            let until = [next_kill, next_stall, next_held, tick_at];
            ready.clear();
            if ended.is_empty() {
                self.sleep(until.into_iter().flatten().min(), now, &mut ready);
            }
            let mut table = self.table();
            for data in &ready {
                match *data {
                    WAKE => sys::consume_counter(self.wake.as_fd()),
                    TIMER => {}
                    data => ended.extend(table.take(Key(data))),
                }
            }
            drop(table);
            if !ended.is_empty() {
                finish(&mut ended);
            }
            if ready.contains(&TIMER) {
                self.events.on_timer();
            }
            tick_at = tick_at.map(|at| self.tick(at));
        }
    }

    fn sleep(&self, until: Option<Instant>, now: Instant, ready: &mut Vec<u64>) {
        let timeout = until.map(|at| at.saturating_duration_since(now));
        if let Err(error) = self.epoll.wait(ready, timeout) {
            // Only a bug can cause this error. Pause, to avoid a busy loop.
            tracing::error!(%error, "cannot wait for children");
            sys::pause(Duration::from_millis(100));
        }
    }

    /// Reaps and reports ended children that were removed from the table. Children that cannot be
    /// reaped yet stay in `ended`, for [`Watch::hold`]. `lazily` means that the events are not
    /// urgent. Returns the times of the last child.
    pub(crate) fn finish(&self, ended: &mut Vec<Running>, lazily: bool) -> Option<ChildTimes> {
        let at = sys::monotonic_now();
        let mut orphans = self.orphans();
        let any_running = || !self.table().is_empty();
        let leaked = orphans.on_ended(ended, any_running, || self.census());
        let follow_up = orphans.follows_up();
        drop(orphans);
        if !self.adopting {
            // A delayed spawner thread had not yet reported that these children run, so SIGKILL was
            // sent only to the children themselves.
            let early = ended.iter().filter(|child| child.killed_early);
            let early: Vec<_> = early.map(Task::from).collect();
            if !early.is_empty() {
                orphans::kill_descendants_of(&early);
            }
        }
        if follow_up {
            // The reaper may be about to sleep past the next search for late orphans.
            self.wake_reaper();
        }
        // `None` (the default time) counts as the shortest delay.
        let delay = ended.iter().map(|child| child.event_delay).min().flatten();
        let mut life = None;
        let mut exits = Vec::with_capacity(ended.len());
        let mut reaped = Vec::with_capacity(ended.len());
        ended.retain(|child| {
            let Some(waited) = self.reap(child) else {
                return true;
            };
            reaped.push(child.pid);
            life = Some(ChildTimes::new(child.started, at, &waited.usage));
            let counted = leaked.get(&child.token).copied();
            let leaked = counted.unwrap_or_else(|| {
                if (self.adopting && !self.seeking) || !child.leader {
                    0
                } else {
                    orphans::count_left(child.pid)
                }
            });
            exits.push(Event::Exited {
                token: child.token,
                status: waited.status,
                usage: waited.usage,
                started: child.started,
                ended: at,
                leaked,
            });
            false
        });
        self.table().reaped(&reaped);
        if lazily {
            self.events.extend_lazily(exits.into_iter(), delay);
        } else {
            self.events.extend(exits.into_iter());
        }
        life
    }

    /// Reaps a child that has ended. Returns `None` if it cannot be reaped yet.
    fn reap(&self, child: &Running) -> Option<ReapedChild> {
        // This must not block. A pidfd also reports the exit of a traced process, which its tracer
        // must acknowledge first. The tracer may be a debugger waiting at its prompt, and all other
        // children would have to wait for it.
        match sys::wait(self.wait_for(child), libc::WNOHANG) {
            Ok(waited) => waited,
            Err(error) => {
                // Other code in this process reaped the child, so its status is lost.
                tracing::error!(
                    pid = child.pid,
                    %error,
                    "other code in this process reaped a child; its exit status is lost"
                );
                Some(ReapedChild {
                    pid: child.pid,
                    status: ExitStatus::Code(255),
                    usage: ResourceUsage::default(),
                })
            }
        }
    }

    fn wait_for<'a>(&self, child: &'a Running) -> WaitFor<'a> {
        match &child.pidfd {
            Some(fd) if self.means.wait_pidfd => WaitFor::Pidfd(fd.as_fd()),
            Some(_) | None => WaitFor::Pid(child.pid),
        }
    }

    /// Keeps ended children until they can be reaped.
    pub(crate) fn hold(&self, children: &mut Vec<Running>) {
        for child in &*children {
            let tracer = procfs::tracer_of(child.pid);
            tracing::warn!(
                pid = child.pid,
                tracer,
                "a child has ended, but its tracer has not released it; it counts as running until then"
            );
        }
        self.held().append(children);
        self.wake_reaper();
    }

    /// Moves the children that can now be reaped from `held` to `ended`. Returns when to check the
    /// others again.
    fn take_released(&self, now: Instant, ended: &mut Vec<Running>) -> Option<Instant> {
        let mut held = self.held();
        let is_released = |child: &mut Running| {
            let flags = libc::WNOHANG | libc::WNOWAIT;
            !matches!(sys::wait(self.wait_for(child), flags), Ok(None))
        };
        ended.extend(held.extract_if(.., is_released));
        (!held.is_empty()).then_some(now + HELD_PAUSE)
    }

    /// Reports hanging creations, unless they have finished in the meantime.
    pub(crate) fn report_stalls(&self, stalls: &[(Key, Token, Arc<InFlight>)]) {
        let table = self.table();
        for (key, token, in_flight) in stalls {
            if table.is_starting(*key) {
                // This is done under the lock, because the last event of the child follows only
                // after it has left the table.
                self.events.append(Event::Stalled {
                    token: *token,
                    pid: procfs::pid_of(in_flight.pidfd()),
                });
            }
        }
        drop(table);
        self.events.notify();
    }

    /// Sends SIGKILL to the children for which it is due, and reports those that survived it.
    /// Returns when to check again.
    fn kill_due(&self, now: Instant, due: &mut DueActions) -> Option<Instant> {
        due.clear();
        let mut table = self.table();
        let next = table.due(now, due);
        for &(token, pid) in &due.unkillable {
            // This is done under the lock, because the last event of the child follows only after
            // it has left the table.
            self.events.append(Event::Unkillable { token, pid });
        }
        if !due.unkillable.is_empty() {
            drop(table);
            self.events.notify();
            table = self.table();
        }
        if due.kill.is_empty() {
            return next;
        }
        if !self.adopting {
            let tasks: Vec<_> = due
                .kill
                .iter()
                .filter_map(|key| table.get(*key))
                .map(Task::from)
                .collect();
            // The lock is released because reading all of /proc takes milliseconds. Ids stay valid
            // without the lock: signals are sent through pidfds whose processes are checked again,
            // or to children that are in the table when the lock is held below.
            drop(table);
            orphans::kill_descendants_of(&tasks);
            table = self.table();
        }
        for key in &due.kill {
            if let Some(child) = table.get(*key) {
                let _ = sys::kill(child.target(), libc::SIGKILL);
            }
        }
        next
    }

    /// Handles orphans if it is time to do so, and returns when to do it next.
    fn tick(&self, at: Instant) -> Instant {
        let now = Instant::now();
        let mut orphans = self.orphans();
        if now < at {
            // A batch of ended children may have left orphans behind.
            return at.min(now + orphans.pause());
        }
        let any_running = || !self.table().is_empty();
        now + orphans.tick(any_running, || self.census())
    }

    fn census(&self) -> Census {
        let table = self.table();
        let creating = self.seeking.then(|| table.creating());
        Census {
            running: table.iter().map(Task::from).collect(),
            ending: table.ending().to_vec(),
            has_nameless: !self.means.names_at_once
                && creating
                    .as_ref()
                    .is_some_and(|creating| !creating.is_empty()),
            creating: creating.into_iter().flatten().flatten().collect(),
        }
    }

    fn held(&self) -> MutexGuard<'_, Vec<Running>> {
        // Its methods do not panic halfway through.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn orphans(&self) -> MutexGuard<'_, Orphans> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the reaper thread; see [`Watch::run`].
pub(crate) fn start(
    watch: &Arc<Watch>,
    finish: impl Fn(&mut Vec<Running>) + Send + 'static,
    find_stalls: impl Fn(Instant) -> Option<Instant> + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    let watch = Arc::clone(watch);
    std::thread::Builder::new()
        .name("spawn-reaper".to_owned())
        .spawn(move || watch.run(finish, find_stalls))
}
