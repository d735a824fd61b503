//! Requests to the writer and concurrent reads. No caller waits for a writer that hangs.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use rusqlite::Connection;

use super::{Message, Position, Subscription};
use crate::compact::Pruned;
use crate::curves::TaskCurve;
use crate::place::Place;
use crate::pulse::WriterProgress;
use crate::reader;
use crate::values::CallValue;

/// Interval at which a waiting caller checks whether the writer hangs.
const HANG_CHECK: Duration = Duration::from_millis(500);

/// Why a file is not complete after a flush.
#[derive(Debug, thiserror::Error)]
pub enum FlushError {
    /// Everything is on disk, but a reader keeps a part of it out of this file.
    #[error("everything is on disk, but a program that reads the journal keeps a part of it in `{path}-wal`; try again when that program has ended, or copy both files", path = .0.display())]
    Reader(PathBuf),
    /// The writer is gone or hangs.
    #[error("the state cannot be written at present")]
    NotWritten,
}

/// A cloneable handle for requests to the writer.
#[derive(Clone, Debug)]
pub struct StoreClient {
    place: Place,
    messages: Sender<Message>,
    pulse: WriterProgress,
}

impl StoreClient {
    pub(super) const fn new(
        place: Place,
        messages: Sender<Message>,
        pulse: WriterProgress,
    ) -> Self {
        Self {
            place,
            messages,
            pulse,
        }
    }

    /// Connects to the store for reading. In the server this is the only safe way: opening the file
    /// differently would drop the locks that keep other processes out.
    ///
    /// # Errors
    ///
    /// A sentence for users.
    pub fn read(&self) -> Result<Connection, String> {
        let connected = self.place.read().map(reader::fast);
        connected.map_err(|error| format!("the journal cannot be read: {error}"))
    }

    /// Bytes of the file and its write-ahead log.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.place.len_bytes()
    }

    /// Queues values of calls. They are on disk as soon as any later change is.
    pub fn store_values(&self, values: Vec<CallValue>) {
        // A writer that is gone has reported why.
        let _ = self.messages.send(Message::Values(values));
    }

    /// Queues usage curves. They are stored with the next changes, and dropped if the disk has
    /// accepted nothing for long.
    pub fn store_curves(&self, curves: Vec<TaskCurve>) {
        // Workers keep sending curves, and the writer does not drain the queue.
        if self.hangs_for().is_some() {
            return;
        }
        // A writer that is gone has reported why.
        let _ = self.messages.send(Message::Curves(curves));
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.place.path
    }

    /// How long the writer has made no progress, if it hangs because the disk or file system does
    /// not respond.
    #[must_use]
    pub fn hangs_for(&self) -> Option<Duration> {
        self.pulse.hangs_for()
    }

    /// How long the store has been unable to commit, and why, e.g. because the disk is full. The
    /// writer retries.
    #[must_use]
    pub fn trouble(&self) -> Option<(Duration, String)> {
        self.pulse.trouble()
    }

    /// Records that the server ends together with its workers, so that a plain start does not
    /// continue it. Without this call the workers wait for the next server.
    pub fn note_stopped(&self) {
        // If the writer is gone, the store says that the server did not end in order.
        let _ = self.messages.send(Message::Stopped);
    }

    /// Returns when all earlier changes are in the file itself: until the next change a copy of the
    /// file is complete without its write-ahead log.
    ///
    /// # Errors
    ///
    /// The writer is gone or hangs, or a reader keeps the log from being moved into the file.
    pub fn flush(&self) -> Result<(), FlushError> {
        let (tx, rx) = mpsc::sync_channel(1);
        // A writer that is gone sends no answer.
        let _ = self.messages.send(Message::Flush(tx));
        match self.answer(&rx) {
            Some(true) => Ok(()),
            Some(false) => Err(FlushError::Reader(self.place.path.clone())),
            None => Err(FlushError::NotWritten),
        }
    }

    /// Drops all completed and forgotten jobs and lost workers, and shrinks the file.
    ///
    /// # Errors
    ///
    /// A sentence for users.
    pub fn prune(&self) -> Result<Pruned, String> {
        let (tx, rx) = mpsc::sync_channel(1);
        // A writer that is gone sends no answer.
        let _ = self.messages.send(Message::Prune(tx));
        self.answer(&rx).unwrap_or_else(|| {
            Err(match self.hangs_for() {
                Some(span) => format!(
                    "the disk of the journal has not answered for {} s; it may still be pruned when it does",
                    span.as_secs()
                ),
                None => "the writer of the journal has ended".to_owned(),
            })
        })
    }

    /// Position of the journal, and the events after the number `after` if they are recent. `None`
    /// if the writer has ended or hangs.
    #[must_use]
    pub fn position(&self, after: i64) -> Option<Position> {
        let (tx, rx) = mpsc::sync_channel(1);
        self.messages.send(Message::Position(after, tx)).ok()?;
        self.answer(&rx)
    }

    /// Subscribes to events from now on. Includes those after the number `after` if they are
    /// recent. `None` if the writer has ended or hangs.
    #[must_use]
    pub fn subscribe(&self, after: Option<i64>) -> Option<Subscription> {
        let (tx, rx) = mpsc::sync_channel(1);
        self.messages.send(Message::Subscribe(after, tx)).ok()?;
        self.answer(&rx)
    }

    /// Waits for an answer of the writer, unless it hangs: a waiting caller occupies a thread.
    fn answer<T>(&self, answer: &Receiver<T>) -> Option<T> {
        while self.hangs_for().is_none() {
            match answer.recv_timeout(HANG_CHECK) {
                Ok(answer) => return Some(answer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::FileSystem;

    #[test]
    fn a_writer_that_hangs_is_not_waited_for() {
        // No thread drains this queue.
        let (messages, never_read) = mpsc::channel();
        let place = Place {
            path: "state.db".into(),
            file_system: FileSystem::Local,
        };
        let pulse = WriterProgress::default();
        let client = StoreClient::new(place, messages, pulse.clone());
        pulse.rest(|| ());
        assert_eq!(client.hangs_for(), None, "the step has just begun");
        let asking = client.clone();
        let asked =
            std::thread::spawn(move || (asking.position(0).is_none(), asking.flush().is_err()));
        pulse.pretend_to_hang();
        // Callers that were already waiting give up, and new ones do not start to wait.
        assert_eq!(asked.join().expect("no panic"), (true, true));
        assert!(client.subscribe(None).is_none());
        let refused = client.prune().expect_err("the writer hangs");
        assert!(refused.contains("has not answered for 16 s"), "{refused}");
        assert!(client.hangs_for().is_some());
        let waiting = never_read.try_iter().count();
        client.store_curves(Vec::new());
        assert_eq!(
            never_read.try_iter().count(),
            0,
            "next to {waiting} other requests"
        );
        let seen = pulse.rest(|| client.hangs_for());
        assert_eq!(seen, None, "it got on");
    }
}
