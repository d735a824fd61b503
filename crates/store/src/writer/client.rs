//! Requests to the writer, and reads beside it. A writer that hangs is not waited for.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use rusqlite::Connection;

use super::{Message, Position, Subscription};
use crate::compact::Pruned;
use crate::curves::TaskCurve;
use crate::place::Place;
use crate::pulse::Pulse;
use crate::reader;
use crate::values::CallValue;

/// How often who waits for the writer looks whether it hangs.
const HANG_CHECK: Duration = Duration::from_millis(500);

/// Why a file is not complete after a flush.
#[derive(Debug, thiserror::Error)]
pub enum FlushError {
    /// The disk has everything, but not all of it in this file.
    #[error("everything is on disk, but a program that reads the journal keeps a part of it in `{path}-wal`; try again when that program has ended, or copy both files", path = .0.display())]
    Reader(PathBuf),
    /// The writer is gone or hangs.
    #[error("the state cannot be written at present")]
    NotWritten,
}

/// Asks the writer for things beside changes; can be cloned.
#[derive(Clone, Debug)]
pub struct StoreClient {
    place: Place,
    messages: Sender<Message>,
    pulse: Pulse,
}

impl StoreClient {
    pub(super) const fn new(place: Place, messages: Sender<Message>, pulse: Pulse) -> Self {
        Self {
            place,
            messages,
            pulse,
        }
    }

    /// Connects to the store to read beside the writer. The only way to do so in the server: opening the file in any
    /// other way would drop the locks that keep others from it.
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

    /// Hands over values of calls. They are on disk as soon as any change is that is handed over afterwards.
    pub fn store_values(&self, values: Vec<CallValue>) {
        // If the writer is gone, its last report said why.
        let _ = self.messages.send(Message::Values(values));
    }

    /// Hands over what tasks used over time, which is stored along with the next changes, and dropped if the disk has taken none for long.
    pub fn store_curves(&self, curves: Vec<TaskCurve>) {
        // Workers go on sending them, and nobody takes them out of the queue.
        if self.hangs_for().is_some() {
            return;
        }
        // If the writer is gone, its last report said why.
        let _ = self.messages.send(Message::Curves(curves));
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.place.path
    }

    /// How long the writer has not got on, if it hangs: the disk or file system does not answer.
    #[must_use]
    pub fn hangs_for(&self) -> Option<Duration> {
        self.pulse.hangs_for()
    }

    /// For how long nothing can be stored, and why, e.g. because the disk is full. It is tried again.
    #[must_use]
    pub fn trouble(&self) -> Option<(Duration, String)> {
        self.pulse.trouble()
    }

    /// The server ends together with its workers: a plain start does not continue it. Without this call the store says that
    /// the workers wait for the next server.
    pub fn note_stopped(&self) {
        // If the writer is gone, the store says that the server did not end in order.
        let _ = self.messages.send(Message::Stopped);
    }

    /// Returns when all that was handed over before is on disk, in the file itself: until the next change a copy of the file is
    /// whole without its write-ahead log.
    ///
    /// # Errors
    ///
    /// The writer is gone or hangs, or a reader keeps the log from being moved into the file.
    pub fn flush(&self) -> Result<(), FlushError> {
        let (tx, rx) = mpsc::sync_channel(1);
        // If the writer is gone, there is no answer.
        let _ = self.messages.send(Message::Flush(tx));
        match self.answer(&rx) {
            Some(true) => Ok(()),
            Some(false) => Err(FlushError::Reader(self.place.path.clone())),
            None => Err(FlushError::NotWritten),
        }
    }

    /// Drops everything about completed and forgotten jobs and lost workers; shrinks the file.
    ///
    /// # Errors
    ///
    /// A sentence for users.
    pub fn prune(&self) -> Result<Pruned, String> {
        let (tx, rx) = mpsc::sync_channel(1);
        // If the writer is gone, there is no answer.
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

    /// How far the journal is, and the events behind the number `after` if they are not long ago. `None` if the writer
    /// has ended, or hangs.
    #[must_use]
    pub fn position(&self, after: i64) -> Option<Position> {
        let (tx, rx) = mpsc::sync_channel(1);
        self.messages.send(Message::Position(after, tx)).ok()?;
        self.answer(&rx)
    }

    /// Events from now on, and those behind the number `after` if they are not long ago. `None` if the
    /// writer has ended, or hangs.
    #[must_use]
    pub fn subscribe(&self, after: Option<i64>) -> Option<Subscription> {
        let (tx, rx) = mpsc::sync_channel(1);
        self.messages.send(Message::Subscribe(after, tx)).ok()?;
        self.answer(&rx)
    }

    /// Waits for an answer of the writer, but not with a writer that hangs: a waiting caller occupies a thread.
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
        // Nobody takes a message out of the queue.
        let (messages, never_read) = mpsc::channel();
        let place = Place {
            path: "state.db".into(),
            file_system: FileSystem::Local,
        };
        let pulse = Pulse::default();
        let client = StoreClient::new(place, messages, pulse.clone());
        pulse.rest(|| ());
        assert_eq!(client.hangs_for(), None, "the step has just begun");
        let asking = client.clone();
        let asked =
            std::thread::spawn(move || (asking.position(0).is_none(), asking.flush().is_err()));
        pulse.pretend_to_hang();
        // Those who asked before it was known give up, those who ask now do not begin to wait.
        assert_eq!(asked.join().expect("no panic"), (true, true));
        assert!(client.subscribe(None).is_none());
        let refused = client.prune().expect_err("nobody prunes");
        assert!(refused.contains("has not answered for 16 s"), "{refused}");
        assert!(client.hangs_for().is_some());
        let waiting = never_read.try_iter().count();
        client.store_curves(Vec::new());
        assert_eq!(
            never_read.try_iter().count(),
            0,
            "beside {waiting} of others"
        );
        let seen = pulse.rest(|| client.hangs_for());
        assert_eq!(seen, None, "it got on");
    }
}
