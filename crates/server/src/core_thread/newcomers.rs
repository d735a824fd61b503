//! Workers that came while the store took nothing: a seat could not be stored, and one whose connection ends meanwhile would be a
//! worker that was lost. They try again every few seconds, so many of those that are here do not wait any more.

use std::collections::VecDeque;

use crate::core_handle::Newcomer;

/// So many may be here before anybody looks who still waits.
const LOOK_MIN: usize = 64;

#[derive(Default)]
pub(super) struct Newcomers {
    here: VecDeque<Newcomer>,
    /// How many may be here until it is looked again who still waits.
    look_at: usize,
}

impl Newcomers {
    pub(super) fn push(&mut self, newcomer: Newcomer) {
        if self.here.len() >= self.look_at {
            self.here.retain(|other| !other.seat.is_closed());
            // A look at all of them is paid by as many that come.
            self.look_at = (2 * self.here.len()).max(LOOK_MIN);
        }
        self.here.push_back(newcomer);
    }

    /// The one that has waited the longest of those that still wait.
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
