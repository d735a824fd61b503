//! Handshakes under way at a port of the worker: bounded, without keeping those away that have the key.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use tokio::task::AbortHandle;

/// Peers that may be in the handshake at once, and how long one may take when others wait. A peer without the key must
/// not keep away those that have it.
const STRANGERS_MAX: usize = 64;
const GRACE: Duration = Duration::from_millis(500);

/// However few descriptors there are, so many peers may be in the handshake.
const STRANGERS_MIN: usize = 4;
/// Part of the descriptors that they may take: tasks need some, too, and anybody can open connections.
const PARTS: u64 = 8;

/// Handshakes under way, oldest first.
pub(crate) struct Strangers {
    queue: VecDeque<(AbortHandle, Instant)>,
    max: usize,
}

impl Strangers {
    pub(crate) fn new() -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self {
            queue: VecDeque::new(),
            max: share(descriptors),
        }
    }

    /// Waits until there is room for another one, which takes [`GRACE`] at most.
    pub(crate) async fn make_room(&mut self) {
        self.queue.retain(|(task, _)| !task.is_finished());
        if self.queue.len() < self.max {
            return;
        }
        if let Some((oldest, since)) = self.queue.pop_front() {
            tokio::time::sleep_until((since + GRACE).into()).await;
            // If it has ended meanwhile, nothing happens.
            oldest.abort();
        }
    }

    /// A handshake has begun. What follows it is for another task: this one may be ended.
    pub(crate) fn add(&mut self, handshake: AbortHandle) {
        self.queue.push_back((handshake, Instant::now()));
    }
}

/// How many may be in the handshake where the process may have so many descriptors.
fn share(descriptors: u64) -> usize {
    let part = usize::try_from(descriptors / PARTS).unwrap_or(usize::MAX);
    part.clamp(STRANGERS_MIN, STRANGERS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_leave_descriptors_to_others() {
        let shares = [0, 64, 256, 1_024, u64::MAX].map(share);
        assert_eq!(shares, [4, 8, 32, 64, 64]);
    }
}
