//! What the writer has been handed and has not dealt with.

use std::sync::mpsc::Receiver;

use super::Message;
use super::pending::Pending;

/// Messages that were taken out of the queue, as what they want.
pub(super) struct Inbox {
    pub(super) pending: Pending,
    /// Number of the last changes.
    pub(super) upto: u64,
    /// Questions in their order; they are about all that came before them.
    pub(super) asked: Vec<Message>,
    /// Somebody waits for the changes.
    pub(super) is_hurried: bool,
    /// More may come.
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

    /// Takes a message and what is behind it in the queue. Of much that has piled up that is a part, so that no turn is long however
    /// fast more comes: the writer would be taken for one that hangs. While nothing can be stored it is all: what is behind may be
    /// the end.
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
                // What was handed over may be stored already; what comes next is not meant.
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
