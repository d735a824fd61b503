//! Shows what tasks write, while they write it, to those who ask the server for it.
//!
//! A question names a file or a stream and an offset, so nothing has to be remembered between two of them; that
//! places in stream files are, for a while, only saves looking for them again. There is no way to be told
//! when a file on any file system grows, so a question that has to wait looks again and again.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hq_protocol::convert::{OUTPUT_DATA_MAX, OutputRequest, OutputSource, ReadFrom};
use hq_protocol::worker;
use hq_stream::{Channel, Key, OutputReader, Source};
use tokio::sync::{Semaphore, mpsc};

/// Files that are read at one time. Others wait: on a slow file system each costs a thread.
const READS_MAX: usize = 8;

/// Stream readers that are kept.
const READERS_MAX: usize = 64;

/// Pauses between two looks at a file that does not grow: doubled from the first to the last.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Answers questions about output.
#[derive(Debug)]
pub(crate) struct OutputService {
    shared: Arc<Shared>,
    answers_tx: mpsc::Sender<worker::Output>,
    answers: mpsc::Receiver<worker::Output>,
}

#[derive(Debug)]
struct Shared {
    reads: Semaphore,
    /// Readers that nobody uses now, the latest last.
    readers: Mutex<Vec<(Source, OutputReader)>>,
}

impl OutputService {
    pub(crate) fn new() -> Self {
        // An answer is at most a quarter of a MiB; the task with the next one waits.
        let (answers_tx, answers) = mpsc::channel(1);
        Self {
            shared: Arc::new(Shared {
                reads: Semaphore::new(READS_MAX),
                readers: Mutex::default(),
            }),
            answers_tx,
            answers,
        }
    }

    /// Answers a question, later.
    pub(crate) fn read(&self, request: OutputRequest) {
        let shared = Arc::clone(&self.shared);
        let answers = self.answers_tx.clone();
        tokio::spawn(async move {
            let answer = shared.answer(request).await;
            // If the worker ends, nobody needs it.
            let _ = answers.send(answer).await;
        });
    }

    /// The next answer.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
    pub(crate) async fn next(&mut self) -> worker::Output {
        match self.answers.recv().await {
            Some(answer) => answer,
            // Cannot be: `self` holds a sender.
            None => std::future::pending().await,
        }
    }
}

impl Shared {
    async fn answer(self: Arc<Self>, request: OutputRequest) -> worker::Output {
        let source = source(request.source);
        let from = match request.from {
            ReadFrom::Offset(offset) => hq_stream::ReadFrom::Offset(offset),
            ReadFrom::LastLines(lines) => hq_stream::ReadFrom::LastLines(lines),
        };
        let limit = Instant::now() + request.wait;
        let mut pause = PAUSE_MIN;
        loop {
            let part = self.look(source.clone(), from).await;
            let is_over = Instant::now() + pause > limit;
            match part {
                Ok(part) if part.bytes.is_empty() && part.next == part.offset && !is_over => {}
                Ok(part) => {
                    return worker::Output {
                        id: request.id,
                        offset: part.offset,
                        data: part.bytes.into(),
                        next: part.next,
                        size: part.size,
                        error: None,
                    };
                }
                Err(error) => {
                    return worker::Output {
                        id: request.id,
                        error: Some(error),
                        ..worker::Output::default()
                    };
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Reads what is there now.
    async fn look(
        self: &Arc<Self>,
        source: Source,
        from: hq_stream::ReadFrom,
    ) -> Result<hq_stream::Part, String> {
        // The semaphore is never closed.
        let _permit = self.reads.acquire().await;
        let shared = Arc::clone(self);
        let read = move || {
            let mut reader = shared.take_reader(&source);
            let part = reader.read(from, OUTPUT_DATA_MAX as u64);
            shared.keep_reader(source, reader);
            part.map_err(|error| error.to_string())
        };
        match tokio::task::spawn_blocking(read).await {
            Ok(part) => part,
            Err(_) => Err("the reading thread failed".into()),
        }
    }

    fn take_reader(&self, source: &Source) -> OutputReader {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let known = readers.iter().position(|(of, _)| of == source);
        known.map_or_else(
            || OutputReader::new(source.clone()),
            |index| readers.remove(index).1,
        )
    }

    fn keep_reader(&self, source: Source, reader: OutputReader) {
        if matches!(source, Source::File(_)) {
            return;
        }
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if readers.len() >= READERS_MAX {
            readers.remove(0);
        }
        readers.push((source, reader));
    }
}

fn source(source: OutputSource) -> Source {
    let path = |bytes: Box<[u8]>| PathBuf::from(OsString::from_vec(bytes.into_vec()));
    match source {
        OutputSource::File(file) => Source::File(path(file)),
        OutputSource::Stream {
            dir,
            server_uid,
            task,
            instance,
            is_stderr,
        } => Source::Stream {
            dir: path(dir),
            server_uid: server_uid.into(),
            key: Key {
                job: task.job.as_u32(),
                task: task.task.as_u32(),
                instance: instance.as_u32(),
            },
            channel: if is_stderr {
                Channel::Stderr
            } else {
                Channel::Stdout
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn request(id: u64, file: &std::path::Path, offset: u64, wait: Duration) -> OutputRequest {
        OutputRequest {
            id,
            source: OutputSource::File(file.as_os_str().as_encoded_bytes().into()),
            from: ReadFrom::Offset(offset),
            wait,
        }
    }

    #[tokio::test]
    async fn an_answer_comes_when_the_file_grows() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("out");
        let mut service = OutputService::new();
        service.read(request(1, &path, 0, Duration::ZERO));
        let answer = service.next().await;
        assert_eq!((answer.id, answer.size, answer.error), (1, 0, None));
        service.read(request(2, &path, 0, Duration::from_secs(30)));
        tokio::task::yield_now().await;
        let mut file = std::fs::File::create(&path).expect("created");
        file.write_all(b"first\n").expect("written");
        let answer = service.next().await;
        assert_eq!((answer.id, &answer.data[..]), (2, &b"first\n"[..]));
        file.write_all(b"second\n").expect("written");
        service.read(request(3, &path, answer.next, Duration::from_secs(30)));
        let answer = service.next().await;
        assert_eq!((&answer.data[..], answer.next), (&b"second\n"[..], 13));
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_told() {
        let mut service = OutputService::new();
        let path = std::path::Path::new("/");
        service.read(request(1, path, 0, Duration::ZERO));
        let answer = service.next().await;
        assert!(answer.error.is_some(), "{answer:?}");
    }
}
