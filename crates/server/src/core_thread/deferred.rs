//! Registrations deferred while the store cannot commit: a worker whose connection ended meanwhile
//! would count as lost. Workers retry every few seconds, so many of these registrations are
//! abandoned.

use std::collections::VecDeque;

use crate::core_handle::Newcomer;

/// Number of entries before the first check which ones still wait.
const LOOK_MIN: usize = 64;

#[derive(Default)]
pub(super) struct Newcomers {
    here: VecDeque<Newcomer>,
    /// Number of entries at which that is checked again.
    look_at: usize,
}

impl Newcomers {
    pub(super) fn push(&mut self, newcomer: Newcomer) {
        if self.here.len() >= self.look_at {
            self.here.retain(|other| !other.seat.is_closed());
            // Doubling amortizes the cost of the check.
            self.look_at = (2 * self.here.len()).max(LOOK_MIN);
        }
        self.here.push_back(newcomer);
    }

    /// The oldest one that still waits.
    pub(super) fn pop(&mut self) -> Option<Newcomer> {
        std::iter::from_fn(|| self.here.pop_front()).find(|newcomer| !newcomer.seat.is_closed())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.here.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use hq_core::testing::worker_config;
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn those_that_gave_up_take_no_room_and_the_others_keep_their_order() {
        let mut newcomers = Newcomers::default();
        let mut waiting = Vec::new();
        for number in 0..10_000_u32 {
            let (seat, answer) = oneshot::channel();
            newcomers.push(Newcomer {
                config: Box::new(worker_config(number + 1)),
                reattach: None,
                seat,
            });
            if number % 1_000 == 7 {
                waiting.push((worker_config(number + 1), answer));
            }
            assert!(newcomers.here.len() <= LOOK_MIN + 1, "{number}");
        }
        for (config, _answer) in &waiting {
            let next = newcomers.pop().expect("it waits");
            assert_eq!(next.config.resources, config.resources);
        }
        assert!(newcomers.pop().is_none());
        assert!(newcomers.is_empty());
    }
}
