//! Notices ended children if the kernel has no pidfds: one thread sleeps until any child of this
//! process ends.
//!
//! Each of its waits walks the list of this process's children, on every kernel: up to two walks
//! for each child that ends, each 10 to 30 ns for each live child.
//!
//! It does not reap a child before it knows that the child belongs to the launcher, because other
//! code in this process may also have children. An unreaped child of such code would be reported
//! again and again, so the thread then checks the launcher's children one by one, with pauses.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::live::Key;
use crate::signal;
use crate::sys::{self, WaitFor};

/// The first pause while another ended child hides the launcher's children. It is short, because
/// usually that child is reaped at once, or it belongs to the launcher and ended before it was
/// added here.
const PAUSE_MIN: Duration = Duration::from_micros(200);
/// The maximum length of the growing pauses.
const PAUSE_MAX: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
struct Children {
    keys: HashMap<libc::pid_t, Key>,
    stop: bool,
}

/// Children whose exit is only reported by a wait for their process id.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    children: Mutex<Children>,
    changed: Condvar,
}

impl Waiter {
    /// Starts to wait for a child. The table of children already lists it as running.
    pub(crate) fn add(&self, pid: libc::pid_t, key: Key) {
        self.lock().keys.insert(pid, key);
        self.changed.notify_one();
    }

    /// Ends the thread when it has no children left.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.changed.notify_one();
    }

    /// The body of the thread. It passes ended, unreaped children to `finish`.
    pub(crate) fn run(&self, mut finish: impl FnMut(Key)) {
        signal::block_all();
        let mut pause = PAUSE_MIN;
        while self.wait_for_children() {
            let found = match sys::wait(WaitFor::Any, libc::WNOWAIT) {
                Ok(Some(waited)) => self.claim(waited.pid),
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

    /// Waits until there is a child, and returns whether there is one.
    fn wait_for_children(&self) -> bool {
        let mut children = self.lock();
        while children.keys.is_empty() && !children.stop {
            let waited = self.changed.wait(children);
            children = waited.unwrap_or_else(PoisonError::into_inner);
        }
        !children.keys.is_empty()
    }

    /// Removes an ended child. Waits a moment for it to be added: a short-lived child often ends before that,
    /// and [`Waiter::take_ended`] makes a system call for each child.
    fn claim(&self, pid: libc::pid_t) -> Option<Key> {
        let is_unknown = |children: &mut Children| !children.keys.contains_key(&pid);
        let children = self.lock();
        let waited = self
            .changed
            .wait_timeout_while(children, PAUSE_MIN, is_unknown);
        let (mut children, _) = waited.unwrap_or_else(PoisonError::into_inner);
        children.keys.remove(&pid)
    }

    /// Removes the children that have ended or are no longer children of this process.
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
        // Its operations do not panic halfway through.
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
