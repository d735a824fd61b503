//! Delivers events to the consumer and decides when to wake it.
//!
//! A push to an empty queue wakes the consumer, except that events that are not urgent may wait a
//! few milliseconds for more events. The start and exit of a short task then cost one wake-up, and
//! so do many starts in a row. In a steady stream of events, the thread that pushes the next event
//! wakes the consumer when a wake-up is due, so the timer and its thread stay idle.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::event::Event;
use crate::keeper;
use crate::sys;

/// The function that is called when the event queue becomes non-empty. It runs on a thread of the
/// launcher and must not block.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

#[derive(Debug, Default)]
struct Queue {
    events: Vec<Event>,
    /// Whether the consumer was woken and has not drained the queue yet.
    signalled: bool,
    /// Set while events wait for more events. The first event after this time wakes the consumer;
    /// the timer is also set.
    lingering: Option<Instant>,
}

/// The queue of events. Any thread may push. The reaper's epoll must contain the timer.
pub(crate) struct EventQueue {
    queue: Mutex<Queue>,
    timer: OwnedFd,
    delay: Duration,
    wake: Wake,
}

impl EventQueue {
    pub(crate) fn new(wake: Wake, delay: Duration) -> std::io::Result<Self> {
        Ok(Self {
            queue: Mutex::default(),
            timer: sys::timerfd()?,
            delay,
            wake,
        })
    }

    /// Returns the timer. [`EventQueue::on_timer`] must be called when it is readable.
    pub(crate) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// Adds an event that may wait for more events. `None` stands for the default time.
    pub(crate) fn push_lazily(&self, event: Event, delay: Option<Duration>) {
        self.extend_lazily(std::iter::once(event), delay);
    }

    /// Adds events that may wait for more events. `None` stands for the default time.
    pub(crate) fn extend_lazily(
        &self,
        events: impl Iterator<Item = Event>,
        delay: Option<Duration>,
    ) {
        let delay = delay.unwrap_or(self.delay);
        if delay.is_zero() {
            return self.extend(events);
        }
        let now = Instant::now();
        let mut queue = self.lock();
        queue.events.extend(events);
        let until = now + delay / 2;
        match queue.lingering {
            _ if queue.signalled => {}
            Some(lingering) if lingering <= now => self.signal(queue),
            Some(lingering) if lingering <= until => {}
            Some(_) | None => {
                queue.lingering = Some(until);
                drop(queue);
                sys::timerfd_arm(self.timer.as_fd(), delay);
            }
        }
    }

    /// Adds an event and wakes the consumer.
    pub(crate) fn push(&self, event: Event) {
        self.extend(std::iter::once(event));
    }

    /// Adds events and wakes the consumer once.
    pub(crate) fn extend(&self, events: impl Iterator<Item = Event>) {
        let mut queue = self.lock();
        queue.events.extend(events);
        self.signal(queue);
    }

    /// Adds an event without waking the consumer, for callers that hold a lock. They must call
    /// [`EventQueue::notify`] afterwards.
    pub(crate) fn append(&self, event: Event) {
        self.lock().events.push(event);
    }

    /// Wakes the consumer if events are queued.
    pub(crate) fn notify(&self) {
        self.signal(self.lock());
    }

    /// Must be called when the timer expires. Wakes the consumer if events are still waiting.
    pub(crate) fn on_timer(&self) {
        sys::consume_counter(self.timer.as_fd());
        self.notify();
    }

    /// Moves all events to `into`. Moves none if the front process has died: the keeper then kills
    /// the children, and their exits must not look as if they had ended on their own.
    pub(crate) fn drain(&self, into: &mut Vec<Event>) {
        let mut queue = self.lock();
        queue.signalled = false;
        queue.lingering = None;
        if keeper::is_halted() {
            queue.events.clear();
            return;
        }
        into.append(&mut queue.events);
    }

    /// Wakes the consumer unless it is awake or the queue is empty. The lock is released before the
    /// call.
    fn signal(&self, mut queue: MutexGuard<'_, Queue>) {
        let wake = !queue.signalled && !queue.events.is_empty();
        queue.signalled |= wake;
        drop(queue);
        if wake {
            (self.wake)();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // The queue is valid between any two operations.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::event::{MonotonicNs, Token};

    #[test]
    fn the_consumer_is_woken_once_per_drain() {
        let wakes = Arc::new(AtomicUsize::new(0));
        let queue = queue(&wakes, Duration::from_secs(100));
        queue.push_lazily(started(1), None);
        assert_eq!(wakes.load(Ordering::Relaxed), 0);
        queue.push(started(2));
        queue.push(started(3));
        queue.push_lazily(started(4), None);
        assert_eq!(wakes.load(Ordering::Relaxed), 1);
        assert_eq!(tokens(&queue), [1, 2, 3, 4]);
        queue.on_timer();
        assert_eq!(wakes.load(Ordering::Relaxed), 1, "nothing waits");
        queue.push_lazily(started(5), None);
        queue.on_timer();
        assert_eq!(wakes.load(Ordering::Relaxed), 2);
        assert_eq!(tokens(&queue), [5]);
    }

    #[test]
    fn in_a_stream_of_events_the_one_that_comes_when_it_is_time_wakes() {
        let wakes = Arc::new(AtomicUsize::new(0));
        let queue = queue(&wakes, Duration::from_millis(2));
        let mut token = 0;
        // This test does not call `on_timer`.
        while wakes.load(Ordering::Relaxed) == 0 {
            token += 1;
            queue.push_lazily(started(token), None);
        }
        assert!(token > 1, "the first one waits for company");
        assert_eq!(tokens(&queue).len() as u64, token);
    }

    #[test]
    fn who_may_wait_least_decides() {
        let wakes = Arc::new(AtomicUsize::new(0));
        let queue = queue(&wakes, Duration::from_millis(2));
        queue.push_lazily(started(1), Some(Duration::from_secs(100)));
        let mut token = 1;
        // This test does not call `on_timer`.
        while wakes.load(Ordering::Relaxed) == 0 {
            token += 1;
            queue.push_lazily(started(token), None);
        }
        assert!(token > 2, "the second one waits for company, too");
        assert_eq!(tokens(&queue).len() as u64, token);
    }

    #[test]
    fn without_delay_every_first_event_wakes() {
        let wakes = Arc::new(AtomicUsize::new(0));
        let queue = queue(&wakes, Duration::ZERO);
        queue.push_lazily(started(1), None);
        assert_eq!(wakes.load(Ordering::Relaxed), 1);
    }

    fn queue(wakes: &Arc<AtomicUsize>, delay: Duration) -> EventQueue {
        let wakes = Arc::clone(wakes);
        let wake = Arc::new(move || {
            wakes.fetch_add(1, Ordering::Relaxed);
        });
        EventQueue::new(wake, delay).unwrap()
    }

    fn started(token: u64) -> Event {
        Event::Started {
            token: Token(token),
            pid: 1,
            at: MonotonicNs(0),
        }
    }

    fn tokens(queue: &EventQueue) -> Vec<u64> {
        let mut events = Vec::new();
        queue.drain(&mut events);
        events.iter().map(|event| event.token().0).collect()
    }
}
