//! Registrations that are deferred while the store cannot commit. If such a worker were registered,
//! it would count as lost when its connection ended. Workers retry every few seconds, so many of
//! these registrations are abandoned.

use std::collections::VecDeque;

use crate::core_handle::PendingRegistration;

/// The number of entries at which abandoned ones are removed for the first time.
const LOOK_MIN: usize = 64;

#[derive(Default)]
pub(super) struct DeferredRegistrations {
    waiting: VecDeque<PendingRegistration>,
    /// The number of entries at which abandoned ones are removed next.
    look_at: usize,
}

impl DeferredRegistrations {
    pub(super) fn push(&mut self, pending: PendingRegistration) {
        if self.waiting.len() >= self.look_at {
            self.waiting.retain(|other| !other.reply.is_closed());
            // Doubling amortizes the cost of the check.
            self.look_at = (2 * self.waiting.len()).max(LOOK_MIN);
        }
        self.waiting.push_back(pending);
    }

    /// Returns the oldest registration whose worker still waits.
    pub(super) fn pop(&mut self) -> Option<PendingRegistration> {
        std::iter::from_fn(|| self.waiting.pop_front()).find(|pending| !pending.reply.is_closed())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use hq_core::testing::worker_config;
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn abandoned_registrations_are_dropped_and_the_others_keep_their_order() {
        let mut deferred = DeferredRegistrations::default();
        let mut waiting = Vec::new();
        for number in 0..10_000_u32 {
            let (reply, answer) = oneshot::channel();
            deferred.push(PendingRegistration {
                config: Box::new(worker_config(number + 1)),
                reattach: None,
                reply,
            });
            if number % 1_000 == 7 {
                waiting.push((worker_config(number + 1), answer));
            }
            assert!(deferred.waiting.len() <= LOOK_MIN + 1, "{number}");
        }
        for (config, _answer) in &waiting {
            let next = deferred.pop().expect("it waits");
            assert_eq!(next.config.resources, config.resources);
        }
        assert!(deferred.pop().is_none());
        assert!(deferred.is_empty());
    }
}
