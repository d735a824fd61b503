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

use crate::event::{Event, ExitStatus, ResourceUsage};
use crate::event_queue::EventQueue;
use crate::live::{Key, Running, Table};
use crate::orphans::{self, Orphans, Task};
use crate::placement::Life;
use crate::signal;
use crate::sys::{self, Epoll, WaitFor, Waited};

/// Epoll data of the wake-up counter and of the event timer. Keys of children never get there: it would take 2³²
/// successive children in the last of 2³² slots.
const WAKE: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;

/// What spawner threads, the reaper and the public front share about children.
pub(crate) struct Watch {
    pub(crate) table: Mutex<Table>,
    pub(crate) events: EventQueue,
    epoll: Epoll,
    wake: OwnedFd,
    orphans: Mutex<Orphans>,
    adopting: bool,
    wait_pidfd: bool,
    stop: AtomicBool,
}

impl Watch {
    pub(crate) fn new(events: EventQueue, wait_pidfd: bool) -> std::io::Result<Self> {
        let epoll = Epoll::new()?;
        let wake = sys::eventfd()?;
        epoll.add(wake.as_fd(), WAKE, false)?;
        epoll.add(events.timer(), TIMER, false)?;
        let orphans = Orphans::new();
        Ok(Self {
            table: Mutex::default(),
            events,
            epoll,
            wake,
            adopting: orphans.adopting(),
            orphans: Mutex::new(orphans),
            wait_pidfd,
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

    /// Body of the reaper thread. `finish` is handed children that have ended.
    pub(crate) fn run(&self, finish: impl Fn(&mut Vec<Running>)) {
        signal::block_all();
        let mut ready = Vec::new();
        let mut ended = Vec::new();
        let mut due = Vec::new();
        let mut tick_at = self.adopting.then(Instant::now);
        while !self.stop.load(Ordering::Acquire) {
            let now = Instant::now();
            let next_kill = self.kill_due(now, &mut due);
            let until = [next_kill, tick_at].into_iter().flatten().min();
            ready.clear();
            self.sleep(until, now, &mut ready);
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
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Reaps children that have ended and reports them. They have been taken out of the table. `lazily`: nobody
    /// waits for the news. Answers how the last of them fared.
    pub(crate) fn finish(&self, ended: &mut Vec<Running>, lazily: bool) -> Option<Life> {
        let at = sys::monotonic_now();
        let any_running = self.adopting && !self.table().is_empty();
        let mut orphans = self.orphans();
        let leaked = orphans.on_ended(ended, any_running, || self.tasks());
        let follow_up = orphans.follows_up();
        drop(orphans);
        if follow_up {
            // It may sleep longer than the look-out for late ones allows.
            self.wake_reaper();
        }
        let mut life = None;
        let exits = ended.drain(..).map(|child| {
            let waited = self.reap(&child);
            life = Some(Life::new(child.started, at, &waited.usage));
            let leaked = if self.adopting || !child.leader {
                leaked.get(&child.token).copied().unwrap_or(0)
            } else {
                orphans::count_left(child.pid)
            };
            Event::Exited {
                token: child.token,
                status: waited.status,
                usage: waited.usage,
                started: child.started,
                ended: at,
                leaked,
            }
        });
        let exits: Vec<_> = exits.collect();
        if lazily {
            self.events.extend_lazily(exits.into_iter());
        } else {
            self.events.extend(exits.into_iter());
        }
        life
    }

    fn reap(&self, child: &Running) -> Waited {
        let which = match &child.pidfd {
            Some(fd) if self.wait_pidfd => WaitFor::Pidfd(fd.as_fd()),
            Some(_) | None => WaitFor::Pid(child.pid),
        };
        match sys::wait(which, 0) {
            Ok(Some(waited)) => waited,
            result => {
                // Somebody else in this process reaped a child that is not theirs. Its status is lost.
                tracing::error!(
                    pid = child.pid,
                    ?result,
                    "a child was reaped by somebody else"
                );
                Waited {
                    pid: child.pid,
                    status: ExitStatus::Code(255),
                    usage: ResourceUsage::default(),
                }
            }
        }
    }

    /// Sends SIGKILL where it is due; answers when it is next.
    fn kill_due(&self, now: Instant, due: &mut Vec<Key>) -> Option<Instant> {
        due.clear();
        let mut table = self.table();
        let next = table.due(now, due);
        if due.is_empty() {
            return next;
        }
        if !self.adopting {
            let tasks: Vec<_> = due
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
        for key in due.iter() {
            if let Some(child) = table.get(*key) {
                let _ = sys::kill(child.target(), libc::SIGKILL);
            }
        }
        next
    }

    /// Looks after orphans if it is time to; answers when it is next.
    fn tick(&self, at: Instant) -> Instant {
        let now = Instant::now();
        let mut orphans = self.orphans();
        if now < at {
            // A batch of ended children may have left something behind.
            return at.min(now + orphans.pause());
        }
        let any_running = !self.table().is_empty();
        now + orphans.tick(any_running, || self.tasks())
    }

    fn tasks(&self) -> Vec<Task> {
        self.table().iter().map(Task::from).collect()
    }

    fn orphans(&self) -> MutexGuard<'_, Orphans> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the reaper thread. `finish` is handed children that have ended.
pub(crate) fn start(
    watch: &Arc<Watch>,
    finish: impl Fn(&mut Vec<Running>) + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    let watch = Arc::clone(watch);
    std::thread::Builder::new()
        .name("spawn-reaper".to_owned())
        .spawn(move || watch.run(finish))
}
