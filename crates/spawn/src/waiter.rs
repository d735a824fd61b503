//! Ended children where the kernel has no pidfds: one thread that sleeps until any child of this process ends.
//!
//! It does not reap what it is woken for before it knows that it is a child of the launcher: others in this process
//! have children, too. One that they leave unreaped would be seen again and again; then the thread looks at its own
//! children one by one, with pauses.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::live::Key;
use crate::signal;
use crate::sys::{self, WaitFor};

/// Pauses while somebody else's ended child hides others: short at first, because usually it is reaped at once, or is
/// one of ours that has ended before it was entered here.
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
struct Children {
    keys: HashMap<libc::pid_t, Key>,
    stop: bool,
}

/// Children that only a wait by process id tells of.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    children: Mutex<Children>,
    changed: Condvar,
}

impl Waiter {
    /// Waits for a child from now on. It is in the table of children as running.
    pub(crate) fn add(&self, pid: libc::pid_t, key: Key) {
        self.lock().keys.insert(pid, key);
        self.changed.notify_one();
    }

    /// Has the thread end as soon as it has no child.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.changed.notify_one();
    }

    /// Body of the thread. `finish` is handed children that have ended and have not been reaped.
    pub(crate) fn run(&self, mut finish: impl FnMut(Key)) {
        signal::block_all();
        let mut pause = PAUSE_MIN;
        while self.wait_for_children() {
            let found = match sys::wait(WaitFor::Any, libc::WNOWAIT) {
                Ok(Some(waited)) => self.lock().keys.remove(&waited.pid),
                Ok(None) | Err(_) => None,
            };
            let ended = match found {
                Some(key) => vec![key],
                None => self.take_ended(),
            };
            if ended.is_empty() {
                sys::pause(pause);
                pause = (pause * 2).min(PAUSE_MAX);
            } else {
                pause = PAUSE_MIN;
            }
            ended.into_iter().for_each(&mut finish);
        }
    }

    /// Waits until there is a child; returns whether there is one.
    fn wait_for_children(&self) -> bool {
        let mut children = self.lock();
        while children.keys.is_empty() && !children.stop {
            let waited = self.changed.wait(children);
            children = waited.unwrap_or_else(PoisonError::into_inner);
        }
        !children.keys.is_empty()
    }

    /// Takes out those that have ended, or are no children of this process any more.
    fn take_ended(&self) -> Vec<Key> {
        let has_ended = |pid: &libc::pid_t, _: &mut Key| {
            !matches!(
                sys::wait(WaitFor::Pid(*pid), libc::WNOHANG | libc::WNOWAIT),
                Ok(None)
            )
        };
        let mut children = self.lock();
        let ended = children.keys.extract_if(has_ended);
        ended.map(|(_, key)| key).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Children> {
        // Its operations do not panic half way.
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
