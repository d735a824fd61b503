//! The order of notifications: which one is sent next, the pauses after failures, and the
//! concurrency per target. This module neither delivers notifications nor reads the clock.
//!
//! A target that does not answer blocks its deliveries until they time out. A target may use two of
//! the eight slots, so that deliveries to other targets can continue. Pauses use no slot.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::time::Instant;

/// The maximum number of simultaneous deliveries.
const RUNNING_MAX: usize = 8;
/// The maximum number of simultaneous deliveries to one target.
const RUNNING_TO_ONE_MAX: usize = 2;
/// The maximum number of waiting and pausing notifications. Further ones are dropped.
const WAITING_MAX: usize = 10_000;

/// The unfinished notifications. `K` identifies a delivery in progress.
pub(super) struct Queue<K, T> {
    ready: VecDeque<(Box<str>, T)>,
    /// Pausing notifications, by the time when they are due and a number that keeps their order.
    resting: BTreeMap<(Instant, u64), (Box<str>, T)>,
    running: HashMap<K, Box<str>>,
    last: u64,
}

impl<K: Eq + Hash, T> Queue<K, T> {
    pub(super) fn new() -> Self {
        Self {
            ready: VecDeque::new(),
            resting: BTreeMap::new(),
            running: HashMap::new(),
            last: 0,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.ready.len() + self.resting.len() >= WAITING_MAX
    }

    /// Adds a notification for `place`.
    pub(super) fn add(&mut self, place: Box<str>, item: T) {
        self.ready.push_back((place, item));
    }

    /// Records that a delivery to `place` has started.
    pub(super) fn begin(&mut self, key: K, place: Box<str>) {
        self.running.insert(key, place);
    }

    /// Records that a delivery has ended. If `again` is given, the notification is queued again at
    /// that time.
    pub(super) fn end(&mut self, key: &K, again: Option<(Instant, T)>) {
        let place = self.running.remove(key);
        if let (Some(place), Some((at, item))) = (place, again) {
            self.last += 1;
            self.resting.insert((at, self.last), (place, item));
        }
    }

    /// Returns when the next pause ends.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.resting.first_key_value().map(|((at, _), _)| *at)
    }

    /// Returns the next notification to send, if a slot is free.
    pub(super) fn next(&mut self, now: Instant) -> Option<(Box<str>, T)> {
        while let Some(due) = self.resting.first_entry().filter(|due| due.key().0 <= now) {
            self.ready.push_back(due.remove());
        }
        if self.running.len() >= RUNNING_MAX {
            return None;
        }
        let running = &self.running;
        let has_turn = |place: &str| {
            let to_it = running.values().filter(|other| ***other == *place);
            to_it.count() < RUNNING_TO_ONE_MAX
        };
        let position = self.ready.iter().position(|(place, _)| has_turn(place))?;
        self.ready.remove(position)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_place_that_hangs_leaves_turns_to_others() {
        let (mut queue, now) = (Queue::new(), Instant::now());
        for number in 0..20 {
            queue.add("dead".into(), number);
        }
        queue.add("alive".into(), 20);
        let mut begun = Vec::new();
        while let Some((place, number)) = queue.next(now) {
            queue.begin(number, place);
            begun.push(number);
        }
        assert_eq!(begun, [0, 1, 20]);
        queue.end(&0, Some((now + Duration::from_secs(10), 0)));
        assert_eq!(queue.next(now).map(|(_, number)| number), Some(2));
        queue.begin(2, "dead".into());
        assert!(queue.next(now).is_none());
        assert_eq!(queue.next_due(), Some(now + Duration::from_secs(10)));
        queue.end(&1, None);
        queue.end(&2, None);
        let later = now + Duration::from_secs(10);
        let order: Vec<i32> = std::iter::from_fn(|| queue.next(later).map(|(_, n)| n)).collect();
        assert_eq!(order.last(), Some(&0), "after the waiting ones");
        assert_eq!(order.len(), 18);
        assert_eq!(queue.next_due(), None);
    }

    #[test]
    fn there_is_a_limit_for_all_and_for_what_waits() {
        let (mut queue, now) = (Queue::new(), Instant::now());
        for number in 0..WAITING_MAX {
            assert!(!queue.is_full(), "{number}");
            queue.add(number.to_string().into(), number);
        }
        assert!(queue.is_full());
        for number in 0..RUNNING_MAX {
            let (place, found) = queue.next(now).expect("a turn");
            assert_eq!(found, number);
            queue.begin(number, place);
        }
        assert!(queue.next(now).is_none());
    }
}
