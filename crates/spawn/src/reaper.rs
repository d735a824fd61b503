//! The thread that notices ended children, and what is done with them.
//!
//! It sleeps in epoll on the pidfds of all children, so its cost does not depend on how many there are. Whatever
//! ended by the time it wakes is handled as one batch: taken out of the table under one lock, freed of leftovers,
//! reaped with resource usage, reported with one lock and at most one wake-up. It also sends every SIGKILL whose
//! time has come.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::event::{Event, ExitStatus, ResourceUsage, Token};
use crate::event_queue::EventQueue;
use crate::live::{Due, InFlight, Key, Running, Table};
use crate::orphans::{self, Census, Orphans, Task};
use crate::placement::ChildTimes;
use crate::procfs;
use crate::signal;
use crate::sys::{self, Epoll, WaitFor, Waited};

/// Epoll data of the wake-up counter and of the event timer. Keys of children never get there: it would take 2³²
/// successive children in the last of 2³² slots.
const WAKE: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;

/// Pause between two looks whether the tracer of an ended child has let go of it: nothing tells of it.
const HELD_PAUSE: Duration = Duration::from_millis(100);

/// State about children that spawner threads, the reaper and the public front share.
pub(crate) struct Watch {
    table: Mutex<Table>,
    /// Children that have ended and cannot be reaped yet, because somebody traces them. They are not in the table.
    held: Mutex<Vec<Running>>,
    pub(crate) events: EventQueue,
    epoll: Epoll,
    wake: OwnedFd,
    orphans: Mutex<Orphans>,
    adopting: bool,
    /// Orphans are found only by looking at all processes, the launcher's children among them.
    seeking: bool,
    means: Means,
    stop: AtomicBool,
}

/// Mechanism that notices ends of children.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Means {
    /// A pidfd can be waited for.
    pub(crate) wait_pidfd: bool,
    /// The id of a child is known from the moment that it exists.
    pub(crate) names_at_once: bool,
    /// The kernel's list of children is used if there is one.
    pub(crate) list_children: bool,
}

impl Watch {
    /// `unkillable_after`: how long after SIGKILL a child that still exists is reported.
    pub(crate) fn new(
        events: EventQueue,
        means: Means,
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

    /// The table of children.
    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        // Its methods do not panic half way.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the reaper look at deadlines and at the stop flag.
    pub(crate) fn wake_reaper(&self) {
        sys::eventfd_signal(self.wake.as_fd());
    }

    /// Ends the reaper thread; children that still live are no longer watched.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake_reaper();
    }

    /// Watches a child that is in the table. Reports it when it has ended already.
    pub(crate) fn watch(&self, key: Key, pidfd: &OwnedFd) -> std::io::Result<()> {
        self.epoll.add(pidfd.as_fd(), key.0, true)
    }

    /// Whether the reaper wakes up from time to time by itself.
    pub(crate) const fn ticks(&self) -> bool {
        self.adopting
    }

    /// Body of the reaper thread. `finish` is handed children that have ended; `look_for_stalls` looks for creations
    /// that hang and returns when to look again.
    pub(crate) fn run(
        &self,
        finish: impl Fn(&mut Vec<Running>),
        look_for_stalls: impl Fn(Instant) -> Option<Instant>,
    ) {
        signal::block_all();
        let mut ready = Vec::new();
        let mut ended = Vec::new();
        let mut due = Due::default();
        let mut tick_at = self.adopting.then(Instant::now);
        while !self.stop.load(Ordering::Acquire) {
            let now = Instant::now();
            let next_kill = self.kill_due(now, &mut due);
            let next_stall = look_for_stalls(now);
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
            // Only a bug can cause it; do not burn a CPU on it.
            tracing::error!(%error, "cannot wait for children");
            sys::pause(Duration::from_millis(100));
        }
    }

    /// Reaps children that have ended and reports them. They have been taken out of the table. Those that cannot be
    /// reaped yet stay in `ended`, for [`Watch::hold`]. `lazily`: nobody waits for the news. Returns how the last of
    /// them fared.
    pub(crate) fn finish(&self, ended: &mut Vec<Running>, lazily: bool) -> Option<ChildTimes> {
        let at = sys::monotonic_now();
        let mut orphans = self.orphans();
        let any_running = || !self.table().is_empty();
        let leaked = orphans.on_ended(ended, any_running, || self.census());
        let follow_up = orphans.follows_up();
        drop(orphans);
        if !self.adopting {
            // A thread that waited for a cpu had not said yet that they run, and so they alone were killed.
            let early = ended.iter().filter(|child| child.killed_early);
            let early: Vec<_> = early.map(Task::from).collect();
            if !early.is_empty() {
                orphans::kill_descendants_of(&early);
            }
        }
        if follow_up {
            // It may sleep longer than the look-out for late ones allows.
            self.wake_reaper();
        }
        // `None`, as long as usual, is the least.
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

    /// `None`: it has ended, but cannot be reaped yet.
    fn reap(&self, child: &Running) -> Option<Waited> {
        // Never blocking: a pidfd also tells of the end of a traced process, which its tracer has to take note of
        // before we can. That may be a debugger at its prompt, and all other children would wait for it.
        match sys::wait(self.wait_for(child), libc::WNOHANG) {
            Ok(waited) => waited,
            Err(error) => {
                // Somebody else in this process reaped a child that is not theirs. Its status is lost.
                tracing::error!(
                    pid = child.pid,
                    %error,
                    "a child was reaped by somebody else"
                );
                Some(Waited {
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

    /// Keeps ended children that cannot be reaped until they can.
    pub(crate) fn hold(&self, children: &mut Vec<Running>) {
        for child in &*children {
            let tracer = procfs::tracer_of(child.pid);
            tracing::warn!(
                pid = child.pid,
                tracer,
                "a child has ended and is held by the process that traces it; it counts as running until it is let go"
            );
        }
        self.held().append(children);
        self.wake_reaper();
    }

    /// Moves held children that can be reaped by now to `ended`. Returns when to look at the others again.
    fn take_released(&self, now: Instant, ended: &mut Vec<Running>) -> Option<Instant> {
        let mut held = self.held();
        let is_released = |child: &mut Running| {
            let flags = libc::WNOHANG | libc::WNOWAIT;
            !matches!(sys::wait(self.wait_for(child), flags), Ok(None))
        };
        ended.extend(held.extract_if(.., is_released));
        (!held.is_empty()).then_some(now + HELD_PAUSE)
    }

    /// Reports creations that hang, unless they have come to an end meanwhile.
    pub(crate) fn report_stalls(&self, stalls: &[(Key, Token, Arc<InFlight>)]) {
        let table = self.table();
        for (key, token, in_flight) in stalls {
            if table.is_starting(*key) {
                // Under the lock: the last event of the child comes after it has left the table.
                self.events.append(Event::Stalled {
                    token: *token,
                    pid: procfs::pid_of(in_flight.pidfd()),
                });
            }
        }
        drop(table);
        self.events.notify();
    }

    /// Sends SIGKILL where it is due, reports whom it did not end; returns when to look again.
    fn kill_due(&self, now: Instant, due: &mut Due) -> Option<Instant> {
        due.clear();
        let mut table = self.table();
        let next = table.due(now, due);
        for &(token, pid) in &due.unkillable {
            // Under the lock: the last event of the child comes after it has left the table.
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
            // Reading all of /proc takes milliseconds. Numbers stay valid without the lock: signals go through
            // pidfds that were checked again, or to children that are in the table under the lock below.
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

    /// Looks after orphans if it is time to; returns when it is next.
    fn tick(&self, at: Instant) -> Instant {
        let now = Instant::now();
        let mut orphans = self.orphans();
        if now < at {
            // A batch of ended children may have left something behind.
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
        // Its methods do not panic half way.
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
    look_for_stalls: impl Fn(Instant) -> Option<Instant> + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    let watch = Arc::clone(watch);
    std::thread::Builder::new()
        .name("spawn-reaper".to_owned())
        .spawn(move || watch.run(finish, look_for_stalls))
}
