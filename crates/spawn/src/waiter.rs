//! Notices ended children where the kernel has no pidfds: one thread sleeps until any child of this
//! process ends.
//!
//! It reaps no child before it knows that the child belongs to the launcher, because other code in
//! this process may have children as well. An unreaped one of those would be reported again and
//! again; the thread then checks its own children one by one, with pauses.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::live::Key;
use crate::signal;
use crate::sys::{self, WaitFor};

/// First pause while another ended child hides the launcher's. It is short: usually that child is
/// reaped at once, or it is one of the launcher's that ended before it was added here.
const PAUSE_MIN: Duration = Duration::from_micros(200);
/// Maximum of the growing pauses.
const PAUSE_MAX: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
struct Children {
    keys: HashMap<libc::pid_t, Key>,
    stop: bool,
}

/// Children whose end only a wait by process id reports.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    children: Mutex<Children>,
    changed: Condvar,
}

impl Waiter {
    /// Waits for a child from now on. The table of children has it as running.
    pub(crate) fn add(&self, pid: libc::pid_t, key: Key) {
        self.lock().keys.insert(pid, key);
        self.changed.notify_one();
    }

    /// Ends the thread once it has no child.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.changed.notify_one();
    }

    /// Body of the thread. It passes ended, unreaped children to `finish`.
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

    /// Removes children that have ended, or are not children of this process any more.
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
