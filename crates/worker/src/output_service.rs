//! Serves the output of running tasks to clients, through the server.
//!
//! A request names a file or a stream and an offset, so no state is needed between requests.
//! Positions in stream files are cached for a while to save searching. No file system reports
//! reliably when a file grows, so a waiting request polls.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hq_protocol::convert::{OUTPUT_DATA_MAX, OutputRequest, OutputSource, ReadFrom};
use hq_protocol::worker;
use hq_stream::{Channel, Key, OutputReader, Source};
use tokio::sync::{Semaphore, mpsc};

/// The maximum number of concurrent reads. On a slow file system, each occupies a thread.
const READS_MAX: usize = 8;
/// The maximum number of running and waiting reads. On a hanging file system they would pile up.
const QUEUE_MAX: usize = 256;
/// How long a read may take, including its wait. This is shorter than the server's timeout, so that
/// the server learns the reason for a delay.
const PATIENCE: Duration = Duration::from_secs(8);

/// The maximum number of cached stream readers.
const READERS_MAX: usize = 64;

/// The pause between two reads of a file that does not grow doubles from this value up to the
/// maximum.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Answers requests for output.
#[derive(Debug)]
pub(crate) struct OutputService {
    shared: Arc<Shared>,
    answers_tx: mpsc::Sender<worker::Output>,
    answers: mpsc::Receiver<worker::Output>,
}

#[derive(Debug)]
struct Shared {
    reads: Arc<Semaphore>,
    /// Permits for running and waiting reads.
    places: Semaphore,
    patience: Duration,
    /// Unused readers, the most recent last.
    readers: Mutex<Vec<(Source, OutputReader)>>,
}

impl OutputService {
    pub(crate) fn new() -> Self {
        Self::with_limits(READS_MAX, QUEUE_MAX, PATIENCE)
    }

    fn with_limits(reads: usize, queue: usize, patience: Duration) -> Self {
        // An answer has at most a quarter of a MiB. The next answer waits in its tokio task.
        let (answers_tx, answers) = mpsc::channel(1);
        Self {
            shared: Arc::new(Shared {
                reads: Arc::new(Semaphore::new(reads)),
                places: Semaphore::new(queue),
                patience,
                readers: Mutex::default(),
            }),
            answers_tx,
            answers,
        }
    }

    /// Answers a request asynchronously.
    pub(crate) fn read(&self, request: OutputRequest) {
        let shared = Arc::clone(&self.shared);
        let answers = self.answers_tx.clone();
        tokio::spawn(async move {
            let answer = shared.answer(request).await;
            // This fails only if the worker ends.
            let _ = answers.send(answer).await;
        });
    }

    /// Returns the next answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> worker::Output {
        match self.answers.recv().await {
            Some(answer) => answer,
            // Unreachable: `self` holds a sender.
            None => std::future::pending().await,
        }
    }
}

/// Reads the available bytes of an output on this machine, as its worker would. May hang with the
/// file system.
#[must_use]
pub fn read_output(request: OutputRequest) -> worker::Output {
    let mut reader = OutputReader::new(source(request.source));
    let part = reader.read(place(request.from), OUTPUT_DATA_MAX as u64);
    answer(request.id, part.map_err(|error| error.to_string()))
}

const fn place(from: ReadFrom) -> hq_stream::ReadFrom {
    match from {
        ReadFrom::Offset(offset) => hq_stream::ReadFrom::Offset(offset),
        ReadFrom::LastLines(lines) => hq_stream::ReadFrom::LastLines(lines),
    }
}

fn answer(id: u64, part: Result<hq_stream::Part, String>) -> worker::Output {
    match part {
        Ok(part) => worker::Output {
            id,
            offset: part.offset,
            data: part.bytes.into(),
            next: part.next,
            size: part.size,
            error: None,
        },
        Err(error) => worker::Output {
            id,
            error: Some(error),
            ..worker::Output::default()
        },
    }
}

impl Shared {
    async fn answer(self: Arc<Self>, request: OutputRequest) -> worker::Output {
        let source = source(request.source);
        let from = place(request.from);
        let limit = Instant::now() + request.wait;
        let mut pause = PAUSE_MIN;
        loop {
            let part = self.look(source.clone(), from).await;
            let is_over = Instant::now() + pause > limit;
            match part {
                Ok(part) if part.bytes.is_empty() && part.next == part.offset && !is_over => {}
                part => return answer(request.id, part),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Reads the available bytes.
    async fn look(
        self: &Arc<Self>,
        source: Source,
        from: hq_stream::ReadFrom,
    ) -> Result<hq_stream::Part, String> {
        let Ok(_place) = self.places.try_acquire() else {
            return Err(format!(
                "{QUEUE_MAX} reads of output wait on this node: its file system is very slow or hangs. Try again later"
            ));
        };
        let work = async {
            // The semaphore is never closed.
            let permit = Arc::clone(&self.reads).acquire_owned().await;
            let shared = Arc::clone(self);
            let read = move || {
                // The permit is held until the read ends, even if the request has timed out.
                let _permit = permit;
                let mut reader = shared.take_reader(&source);
                let part = reader.read(from, OUTPUT_DATA_MAX as u64);
                shared.keep_reader(source, reader);
                part.map_err(|error| error.to_string())
            };
            tokio::task::spawn_blocking(read).await
        };
        match tokio::time::timeout(self.patience, work).await {
            Ok(Ok(part)) => part,
            Ok(Err(_)) => Err("the reading thread failed".into()),
            Err(_) => Err(format!(
                "the output could not be read on its node within {} s: the file system there is very slow or hangs. Try again later",
                self.patience.as_secs()
            )),
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

    #[tokio::test]
    async fn reads_that_do_not_end_hold_up_neither_those_who_ask_nor_memory() {
        let path = std::path::Path::new("/dev/null");
        let mut service = OutputService::with_limits(2, 3, Duration::from_millis(50));
        // Simulates two reads that hang in the kernel.
        let hung = Arc::clone(&service.shared.reads).acquire_many_owned(2);
        let hung = hung.await.expect("never closed");
        for id in 1..=3 {
            service.read(request(id, path, 0, Duration::ZERO));
        }
        let mut told = Vec::new();
        for _ in 1..=3 {
            told.push(service.next().await);
        }
        for answer in told {
            let error = answer.error.expect("it could not be read");
            assert!(error.contains("file system there"), "{error}");
        }
        // Simulates three requests that wait for a long time.
        let shared = Arc::clone(&service.shared);
        let waiting = shared.places.try_acquire_many(3);
        let waiting = waiting.expect("their places are free again");
        service.read(request(4, path, 0, Duration::ZERO));
        let error = service.next().await.error.expect("there is no place");
        assert!(error.contains("reads of output wait"), "{error}");
        drop((hung, waiting));
        let dir = tempfile::tempdir().expect("directory");
        let file = dir.path().join("out");
        std::fs::write(&file, "x").expect("written");
        // A busy machine may take longer than the service's timeout.
        let answer = loop {
            service.read(request(5, &file, 0, Duration::ZERO));
            let answer = service.next().await;
            if answer.error.is_none() {
                break answer;
            }
        };
        assert_eq!(&answer.data[..], b"x");
    }
}
