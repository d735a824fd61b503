//! Live readers of events. Each reader is separated from the writer by a bounded queue.
//!
//! The writer never waits for a reader and does no work for individual readers: all of them share
//! the same events. A reader that is too slow is disconnected. It can still read its queue, and the
//! rest from the file.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::event::Event;

/// The maximum number of events in a reader's queue.
const QUEUE_LEN: usize = 65_536;
/// The maximum size of a reader's queue in bytes.
const QUEUE_BYTES: usize = 32 << 20;
/// The maximum number of recent events that are kept for readers that reconnect.
const RECENT_LEN: usize = 32_768;
/// The maximum size of recent events in bytes.
const RECENT_BYTES: usize = 16 << 20;
/// How long recent events are kept after the last reader has left.
const RECENT_SPAN: Duration = Duration::from_secs(120);

/// Events and their size in bytes.
#[derive(Default)]
struct Events {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
}

impl Events {
    fn push(&mut self, event: Arc<Event>) {
        self.bytes += event.size();
        self.events.push_back(event);
    }

    fn pop(&mut self) -> Option<Arc<Event>> {
        let event = self.events.pop_front()?;
        self.bytes -= event.size();
        Some(event)
    }
}

#[derive(Default)]
struct Queue {
    waiting: Events,
    reader: Option<Waker>,
    /// Whether no more events follow, because the writer has ended or the reader was too slow.
    has_ended: bool,
    /// Whether the reader has disconnected.
    is_left: bool,
}

type Shared = Arc<Mutex<Queue>>;

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    // Each change of a queue is a single step, so a panic elsewhere leaves no partial state.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The events starting at a given number, for one reader.
pub struct Live(Shared);

impl Live {
    /// Returns the next events, at most `count_max`. An empty list means that no more events
    /// follow, because the writer has ended or this reader was too slow.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: no events are lost.
    pub async fn next(&mut self, count_max: usize) -> Vec<Arc<Event>> {
        poll_fn(|ctx| self.poll_next(ctx, count_max)).await
    }

    fn poll_next(&mut self, ctx: &mut Context<'_>, count_max: usize) -> Poll<Vec<Arc<Event>>> {
        let mut queue = lock(&self.0);
        if queue.waiting.events.is_empty() && !queue.has_ended {
            queue.reader = Some(ctx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(take(&mut queue, count_max))
    }

    /// Returns queued events, at most `count_max`. Returns `None` if no more events follow.
    pub fn ready(&mut self, count_max: usize) -> Option<Vec<Arc<Event>>> {
        let mut queue = lock(&self.0);
        let events = take(&mut queue, count_max);
        (!events.is_empty() || !queue.has_ended).then_some(events)
    }
}

fn take(queue: &mut Queue, count_max: usize) -> Vec<Arc<Event>> {
    std::iter::from_fn(|| queue.waiting.pop())
        .take(count_max)
        .collect()
}

impl Drop for Live {
    fn drop(&mut self) {
        let mut queue = lock(&self.0);
        queue.is_left = true;
        // Free the memory now, because the writer only drops the queue at the next event, which may
        // come much later.
        queue.waiting = Events::default();
    }
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let queue = lock(&self.0);
        f.debug_struct("Live")
            .field("waiting", &queue.waiting.events.len())
            .field("has_ended", &queue.has_ended)
            .finish()
    }
}

/// All readers, and the recent events.
#[derive(Default)]
pub(crate) struct Subscribers {
    queues: Vec<Shared>,
    recent: RecentEvents,
}

impl Subscribers {
    pub(crate) fn subscribe(&mut self) -> Live {
        let queue = Shared::default();
        self.queues.push(Arc::clone(&queue));
        // The reader may leave before the next event and then reconnect.
        self.recent.read = Some(Instant::now());
        Live(queue)
    }

    /// Returns whether there are readers, or were recently. Removes readers that have left.
    pub(crate) fn are_there(&mut self) -> bool {
        self.queues.retain(|queue| !lock(queue).is_left);
        self.recent.is_wanted(!self.queues.is_empty())
    }

    /// Returns the events after the number `after`, up to `upto`. Returns `None` if they are only
    /// in the file.
    pub(crate) fn since(&self, after: i64, upto: i64) -> Option<Vec<Arc<Event>>> {
        self.recent.since(after, upto)
    }

    /// Sends all events after the number `before` to the readers.
    pub(crate) fn publish(&mut self, before: i64, events: Vec<Event>) {
        let events: Vec<Arc<Event>> = events.into_iter().map(Arc::new).collect();
        for event in &events {
            self.recent.push(before, Arc::clone(event));
        }
        self.queues.retain(|queue| {
            let mut queue = lock(queue);
            for event in &events {
                let waiting = &queue.waiting;
                if waiting.events.len() >= QUEUE_LEN || waiting.bytes >= QUEUE_BYTES {
                    queue.has_ended = true;
                    break;
                }
                queue.waiting.push(Arc::clone(event));
            }
            if let Some(reader) = queue.reader.take() {
                reader.wake();
            }
            !queue.has_ended && !queue.is_left
        });
    }
}

impl Subscribers {
    /// Disconnects all readers, because some events are only in the file: they were stored before
    /// there were any subscribers and could not be published until now. Readers that have
    /// subscribed in the meantime must not miss them. They subscribe again with the number of their
    /// last event.
    pub(crate) fn skip(&mut self) {
        self.recent.restart();
        self.end_all();
    }

    /// Ends the queues of all current readers.
    fn end_all(&mut self) {
        for queue in self.queues.drain(..) {
            let mut queue = lock(&queue);
            queue.has_ended = true;
            if let Some(reader) = queue.reader.take() {
                reader.wake();
            }
        }
    }
}

impl Drop for Subscribers {
    fn drop(&mut self) {
        self.end_all();
    }
}

/// Recent events, for readers that reconnect. The file is not indexed by event number.
#[derive(Default)]
struct RecentEvents {
    /// All events after this number are kept. `None` if no events are kept.
    after: Option<i64>,
    kept: Events,
    /// When a reader was last connected.
    read: Option<Instant>,
}

impl RecentEvents {
    /// Returns whether events must be kept. `has_reader` is whether there is a reader now.
    fn is_wanted(&mut self, has_reader: bool) -> bool {
        if has_reader {
            self.read = Some(Instant::now());
        }
        let is_wanted = self.read.is_some_and(|at| at.elapsed() < RECENT_SPAN);
        if !is_wanted && self.after.is_some() {
            *self = Self::default();
        }
        is_wanted
    }

    /// Drops the events, but keeps the time of the last reader.
    fn restart(&mut self) {
        *self = Self {
            read: self.read,
            ..Self::default()
        };
    }

    fn push(&mut self, before: i64, event: Arc<Event>) {
        self.after.get_or_insert(before);
        self.kept.push(event);
        while self.kept.events.len() > RECENT_LEN || self.kept.bytes > RECENT_BYTES {
            let Some(oldest) = self.kept.pop() else { break };
            self.after = Some(oldest.seq());
        }
    }

    fn since(&self, after: i64, upto: i64) -> Option<Vec<Arc<Event>>> {
        if after >= upto {
            return Some(Vec::new());
        }
        if self.after.is_none_or(|kept| after < kept) {
            return None;
        }
        let newer = self.kept.events.iter().filter(|event| event.seq() > after);
        Some(newer.cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(seq: i64, len: usize) -> Event {
        Event {
            seq,
            data: Some("x".repeat(len)),
            ..Event::default()
        }
    }

    fn seqs(events: Option<Vec<Arc<Event>>>) -> Option<Vec<i64>> {
        Some(events?.iter().map(|event| event.seq()).collect())
    }

    #[test]
    fn a_reader_costs_nothing_before_there_is_an_event_and_after_it_went() {
        let mut all = Subscribers::default();
        let live: Vec<Live> = (0..100).map(|_| all.subscribe()).collect();
        let room = |all: &Subscribers| -> usize {
            let queues = all.queues.iter();
            queues
                .map(|queue| lock(queue).waiting.events.capacity())
                .sum()
        };
        assert_eq!(room(&all), 0);
        assert!(all.are_there());
        all.publish(0, vec![event(1, 10)]);
        assert!(room(&all) >= 100);
        drop(live);
        assert_eq!(room(&all), 0, "what waited went with its reader");
        all.are_there();
        assert!(all.queues.is_empty(), "no event is needed to forget them");
    }

    #[test]
    fn a_reader_that_went_before_the_first_event_can_come_back() {
        let mut all = Subscribers::default();
        assert!(!all.are_there());
        drop(all.subscribe());
        assert!(all.are_there());
        all.publish(4, vec![event(5, 1)]);
        assert_eq!(seqs(all.since(4, 5)), Some(vec![5]));
    }

    #[test]
    fn a_reader_that_is_too_slow_ends_and_keeps_what_was_before() {
        let mut all = Subscribers::default();
        let (mut slow, mut quick) = (all.subscribe(), all.subscribe());
        let len = QUEUE_BYTES / 10;
        for seq in 1..=20 {
            all.publish(seq - 1, vec![event(seq, len)]);
            assert_eq!(seqs(quick.ready(9)), Some(vec![seq]));
        }
        assert_eq!(seqs(slow.ready(99)), Some((1..=10).collect()));
        assert_eq!(slow.ready(99), None);
        assert_eq!(seqs(quick.ready(9)), Some(Vec::new()), "it goes on");
        drop(all);
        assert_eq!(quick.ready(9), None);
    }

    #[test]
    fn no_reader_misses_events_stored_before_it_subscribed() {
        let mut all = Subscribers::default();
        // Events 5 to 7 were stored but could not be published before the subscription.
        let mut live = all.subscribe();
        all.skip();
        assert_eq!(live.ready(9), None, "it has to come again");
        assert_eq!(seqs(all.since(4, 8)), None, "they are in the file only");
        let mut again = all.subscribe();
        all.publish(8, vec![event(9, 1)]);
        assert_eq!(seqs(again.ready(9)), Some(vec![9]));
        assert_eq!(seqs(all.since(8, 9)), Some(vec![9]));
        assert_eq!(seqs(all.since(7, 9)), None);
    }

    #[test]
    fn the_last_events_are_kept_up_to_a_number_and_a_size() {
        let mut all = Subscribers::default();
        let _reader = all.subscribe();
        assert!(all.are_there());
        let len = RECENT_BYTES / 4;
        for seq in 5..=9 {
            all.publish(seq - 1, vec![event(seq, len)]);
        }
        assert_eq!(seqs(all.since(6, 9)), Some(vec![7, 8, 9]));
        assert_eq!(seqs(all.since(5, 9)), None, "they are in the file only");
        let many = i64::try_from(RECENT_LEN).expect("small") * 2;
        all.publish(9, (10..=many).map(|seq| event(seq, 1)).collect());
        assert_eq!(all.recent.kept.events.len(), RECENT_LEN);
    }
}
