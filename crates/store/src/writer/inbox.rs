//! Messages that the writer has received but not handled yet.

use std::sync::mpsc::Receiver;

use super::Message;
use super::pending::Pending;

/// Messages from the queue, sorted by purpose.
pub(super) struct Inbox {
    pub(super) pending: Pending,
    /// The number of the last changes.
    pub(super) upto: u64,
    /// The requests in order. Each request applies to all earlier changes.
    pub(super) asked: Vec<Message>,
    /// Whether a client is waiting for the changes.
    pub(super) is_hurried: bool,
    /// Whether more messages may arrive.
    pub(super) is_open: bool,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self {
            pending: Pending::default(),
            upto: 0,
            asked: Vec::new(),
            is_hurried: false,
            is_open: true,
        }
    }

    /// Takes a message and those queued after it. If there are many, it takes only some of them, so
    /// that a turn stays short even if more arrive quickly; otherwise, the writer would seem to
    /// hang. While the store cannot commit, it takes all messages, because the message to stop may
    /// be queued after them.
    pub(super) fn take(&mut self, first: Message, queue: &Receiver<Message>, can_store: bool) {
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                Message::Changes(number, changes) => {
                    self.upto = number;
                    self.pending.push(number, changes);
                }
                Message::Values(values) => self.pending.push_values(values),
                Message::Curves(curves) => self.pending.push_curves(curves),
                // Earlier changes may have already been stored, and later ones are not urgent.
                Message::Hurry => self.is_hurried |= !self.pending.is_empty(),
                Message::Stop => self.is_open = false,
                other @ (Message::Flush(_)
                | Message::Prune(_)
                | Message::Position(..)
                | Message::Stopped
                | Message::Subscribe(..)) => self.asked.push(other),
            }
            let is_enough = can_store && self.pending.is_long();
            next = (!is_enough).then(|| queue.try_recv().ok()).flatten();
        }
    }
}
