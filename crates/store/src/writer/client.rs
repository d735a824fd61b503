//! Requests to the writer, and concurrent reads. A caller never waits for a writer that hangs.

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

/// The interval at which a waiting caller checks whether the writer hangs.
const HANG_CHECK: Duration = Duration::from_millis(500);

/// The reason why a file is not complete after a flush.
#[derive(Debug, thiserror::Error)]
pub enum FlushError {
    /// Everything is on disk, but a reader prevents a part of it from being moved into this file.
    #[error("everything is on disk, but a program that reads the journal keeps a part of it in `{path}-wal`; try again when that program has ended, or copy both files", path = .0.display())]
    Reader(PathBuf),
    /// The writer has ended or hangs.
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

    /// Connects to the store for reading. In the server, this is the only safe way, because opening
    /// the file in any other way would drop the locks that exclude other processes.
    ///
    /// # Errors
    ///
    /// Returns a human-readable message.
    pub fn read(&self) -> Result<Connection, String> {
        let connected = self.place.read().map(reader::fast);
        connected.map_err(|error| format!("the journal cannot be read: {error}"))
    }

    /// Returns the size of the file and its write-ahead log in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.place.len_bytes()
    }

    /// Queues values of calls. They are on disk as soon as any later change is.
    pub fn store_values(&self, values: Vec<CallValue>) {
        // If the writer has ended, it has reported the reason.
        let _ = self.messages.send(Message::Values(values));
    }

    /// Queues usage curves. They are stored with the next changes. If the disk has not accepted any
    /// data for a long time, they are dropped.
    pub fn store_curves(&self, curves: Vec<TaskCurve>) {
        // Workers keep sending curves, but the writer does not drain the queue.
        if self.hangs_for().is_some() {
            return;
        }
        // If the writer has ended, it has reported the reason.
        let _ = self.messages.send(Message::Curves(curves));
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.place.path
    }

    /// Returns how long the writer has made no progress, if it hangs because the disk or file
    /// system does not respond.
    #[must_use]
    pub fn hangs_for(&self) -> Option<Duration> {
        self.pulse.hangs_for()
    }

    /// Returns how long the store has been unable to commit and the reason, for example that the
    /// disk is full. The writer retries.
    #[must_use]
    pub fn trouble(&self) -> Option<(Duration, String)> {
        self.pulse.trouble()
    }

    /// Records that the server ends together with its workers, so that a server started normally
    /// does not continue from its state. Without this call, the workers wait for the next server.
    pub fn note_stopped(&self) {
        // If the writer has ended, the store shows that the server did not shut down properly.
        let _ = self.messages.send(Message::Stopped);
    }

    /// Waits until all earlier changes are in the file itself. Until the next change, a copy of the
    /// file is then complete without its write-ahead log.
    ///
    /// # Errors
    ///
    /// Returns an error if the writer has ended or hangs, or if a reader prevents the log from
    /// being moved into the file.
    pub fn flush(&self) -> Result<(), FlushError> {
        let (tx, rx) = mpsc::sync_channel(1);
        // If the writer has ended, it does not send an answer.
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
    /// Returns a human-readable message.
    pub fn prune(&self) -> Result<Pruned, String> {
        let (tx, rx) = mpsc::sync_channel(1);
        // If the writer has ended, it does not send an answer.
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

    /// Returns the position in the journal, and the events after the number `after` if they are
    /// recent. Returns `None` if the writer has ended or hangs.
    #[must_use]
    pub fn position(&self, after: i64) -> Option<Position> {
        let (tx, rx) = mpsc::sync_channel(1);
        self.messages.send(Message::Position(after, tx)).ok()?;
        self.answer(&rx)
    }

    /// Subscribes to new events. Includes the events after the number `after` if they are recent.
    /// Returns `None` if the writer has ended or hangs.
    #[must_use]
    pub fn subscribe(&self, after: Option<i64>) -> Option<Subscription> {
        let (tx, rx) = mpsc::sync_channel(1);
        self.messages.send(Message::Subscribe(after, tx)).ok()?;
        self.answer(&rx)
    }

    /// Waits for the writer's answer unless the writer hangs. A waiting caller occupies a thread.
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
        // No thread reads from this queue.
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
