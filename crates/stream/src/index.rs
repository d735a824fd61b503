//! Finds the output of tasks in a stream directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::SUFFIX;
use crate::format::{BlockKind, Channel, FormatError};
use crate::scan::{Block, Scanner};

/// Why a stream directory cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory has no stream file of the requested server.
    #[error("No log files found")]
    NoFiles,
    /// The directory has files of several servers; their uids.
    #[error("Found streams from multiple server instances:")]
    SeveralServers(Vec<String>),
    /// The directory or a file cannot be read.
    #[error("cannot read {path}")]
    Io {
        /// Path of the directory or file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
}

/// A piece of output of one channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Time at which the worker read it, in nanoseconds since 1970.
    pub unix_ns: i64,
    /// Channel of the output.
    pub channel: Channel,
    /// Length in bytes.
    pub length: u32,
    file: u32,
    at: u64,
    checksum: u32,
}

impl Chunk {
    /// The payload of a block with output of this channel.
    pub(crate) const fn new(file: u32, block: &Block, channel: Channel) -> Self {
        Self {
            unix_ns: block.header.unix_ns,
            channel,
            length: block.header.length,
            file,
            at: block.payload_at,
            checksum: block.header.payload_checksum,
        }
    }
}

/// Output of one instance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stream {
    /// Bytes of standard output and standard error.
    pub sizes: [u64; 2],
    /// Pieces in order, only of requested jobs.
    pub chunks: Vec<Chunk>,
    starts: u32,
    ends: u32,
    abandoned: u32,
}

impl Stream {
    /// Whether the file has its end.
    #[must_use]
    pub const fn is_finished(&self) -> bool {
        self.ends > 0 && self.ends + self.abandoned >= self.starts
    }

    /// Whether it never ran on this worker.
    const fn is_abandoned(&self) -> bool {
        self.abandoned > 0 && self.abandoned >= self.starts && self.ends == 0
    }
}

/// All instances of one task, by number; the last one counts.
pub type TaskStreams = BTreeMap<u32, Stream>;

/// Counts and sizes of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Files.
    pub files: u64,
    /// Jobs with output.
    pub jobs: u64,
    /// Tasks with output.
    pub tasks: u64,
    /// Instances, including superseded ones.
    pub streams: u64,
    /// Last instances without an end.
    pub opened: u64,
    /// Instances that a later one replaced.
    pub superseded: u64,
    /// Bytes of standard output and standard error of last instances.
    pub sizes: [u64; 2],
    /// Bytes of standard output and standard error of superseded instances.
    pub superseded_sizes: [u64; 2],
}

/// Streams of a directory, with the position of their pieces in its files.
#[derive(Debug, Default)]
pub struct Index {
    tasks: BTreeMap<(u32, u32), TaskStreams>,
}

impl Index {
    fn add(&mut self, file: u32, block: &Block, keep: bool) {
        let header = &block.header;
        let key = header.key;
        let task = self.tasks.entry((key.job, key.task)).or_default();
        let stream = task.entry(key.instance).or_default();
        match header.kind {
            BlockKind::Start => stream.starts += 1,
            BlockKind::End => stream.ends += 1,
            BlockKind::Abandoned => stream.abandoned += 1,
            BlockKind::Data(channel) => {
                stream.sizes[channel.index()] += u64::from(header.length);
                if keep {
                    stream.chunks.push(Chunk::new(file, block, channel));
                }
            }
        }
    }

    fn streams(&self) -> impl Iterator<Item = ((u32, u32), Vec<&Stream>)> {
        self.tasks.iter().filter_map(|(key, task)| {
            let ran = task.values().filter(|stream| !stream.is_abandoned());
            let ran: Vec<&Stream> = ran.collect();
            (!ran.is_empty()).then_some((*key, ran))
        })
    }

    /// Ids of jobs, ascending.
    #[must_use]
    pub fn jobs(&self) -> BTreeSet<u32> {
        self.streams().map(|((job, _), _)| job).collect()
    }

    /// Last instances of the tasks of a job, by task.
    #[must_use]
    pub fn tasks(&self, job: u32) -> BTreeMap<u32, &Stream> {
        self.current()
            .filter(|((of_job, _), _)| *of_job == job)
            .map(|((_, task), stream)| (task, stream))
            .collect()
    }

    /// Last instances of all tasks.
    pub fn current(&self) -> impl Iterator<Item = ((u32, u32), &Stream)> {
        self.streams()
            .filter_map(|(key, streams)| Some((key, *streams.last()?)))
    }

    /// Last instance of a task.
    #[must_use]
    pub fn stream(&self, job: u32, task: u32) -> Option<&Stream> {
        let task = self.tasks.get(&(job, task))?;
        task.values().rev().find(|stream| !stream.is_abandoned())
    }

    /// Number of the last instance of a task.
    #[must_use]
    pub fn instance(&self, job: u32, task: u32) -> Option<u32> {
        let task = self.tasks.get(&(job, task))?;
        let mut ran = task
            .iter()
            .rev()
            .filter(|(_, stream)| !stream.is_abandoned());
        ran.next().map(|(instance, _)| *instance)
    }

    /// Counts and sizes, without the number of files.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let mut summary = Summary {
            jobs: self.jobs().len() as u64,
            ..Summary::default()
        };
        let add = |sum: &mut [u64; 2], sizes: [u64; 2]| {
            sum[0] += sizes[0];
            sum[1] += sizes[1];
        };
        for (_, streams) in self.streams() {
            summary.tasks += 1;
            summary.streams += streams.len() as u64;
            if let Some((last, older)) = streams.split_last() {
                summary.opened += u64::from(!last.is_finished());
                summary.superseded += older.len() as u64;
                add(&mut summary.sizes, last.sizes);
                for stream in older {
                    add(&mut summary.superseded_sizes, stream.sizes);
                }
            }
        }
        summary
    }
}

/// The files of one server in a stream directory.
#[derive(Debug)]
pub struct StreamDir {
    path: PathBuf,
    server_uid: String,
    files: Vec<Scanner<File>>,
    known: BTreeSet<PathBuf>,
}

impl StreamDir {
    /// Opens the files of a directory.
    ///
    /// # Errors
    ///
    /// If there are none, if they are of several servers and `server_uid` is `None`, or if they
    /// cannot be read.
    pub fn open(path: &Path, server_uid: Option<&str>) -> Result<Self, OpenError> {
        let mut found = Vec::new();
        let mut known = BTreeSet::new();
        for file in stream_files(path)? {
            if let Some(scanner) = open_file(&file)? {
                known.insert(file);
                found.push(scanner);
            }
        }
        let uids: BTreeSet<&str> = found
            .iter()
            .map(|f| f.header().server_uid.as_str())
            .collect();
        let uid = match (server_uid, uids.len()) {
            (Some(uid), _) => uid.to_owned(),
            (None, 0) => return Err(OpenError::NoFiles),
            (None, 1) => found[0].header().server_uid.clone(),
            (None, _) => {
                let uids = uids.into_iter().map(str::to_owned).collect();
                return Err(OpenError::SeveralServers(uids));
            }
        };
        found.retain(|file| file.header().server_uid == uid);
        if found.is_empty() {
            return Err(OpenError::NoFiles);
        }
        Ok(Self {
            path: path.to_owned(),
            server_uid: uid,
            files: found,
            known,
        })
    }

    /// Number of files.
    #[must_use]
    pub fn file_count(&self) -> u64 {
        self.files.len() as u64
    }

    /// Damaged bytes skipped so far.
    #[must_use]
    pub fn damaged_bytes(&self) -> u64 {
        self.files.iter().map(Scanner::damaged_bytes).sum()
    }

    /// Opens files that were created since.
    ///
    /// # Errors
    ///
    /// If the directory or a file cannot be read.
    pub fn refresh(&mut self) -> Result<(), OpenError> {
        for file in stream_files(&self.path)? {
            if self.known.contains(&file) {
                continue;
            }
            if let Some(scanner) = open_file(&file)? {
                self.known.insert(file);
                if scanner.header().server_uid == self.server_uid {
                    self.files.push(scanner);
                }
            }
        }
        Ok(())
    }

    /// Adds all new blocks to the index, with chunks only of the jobs that `keep` selects.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn update(&mut self, index: &mut Index, keep: impl Fn(u32) -> bool) -> io::Result<()> {
        self.each_new(|file, block| index.add(file, block, keep(block.header.key.job)))
    }

    /// Passes all new blocks to `see`, with the number of their file.
    pub(crate) fn each_new(&mut self, mut see: impl FnMut(u32, &Block)) -> io::Result<()> {
        for (number, file) in (0..).zip(&mut self.files) {
            while let Some(block) = file.next_block()? {
                see(number, &block);
            }
        }
        Ok(())
    }

    /// Appends the bytes of a chunk to `out`. Returns `false` and appends nothing if they are
    /// damaged.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn read(&self, chunk: &Chunk, out: &mut Vec<u8>) -> io::Result<bool> {
        let Some(file) = self.files.get(chunk.file as usize) else {
            return Ok(false);
        };
        let mut payload = Vec::new();
        let is_whole = file.read_payload(chunk.at, chunk.length, chunk.checksum, &mut payload)?;
        if is_whole {
            out.append(&mut payload);
        }
        Ok(is_whole)
    }
}

fn stream_files(dir: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let failed = |source: io::Error| {
        use io::ErrorKind::{NotADirectory, NotFound};
        if [NotFound, NotADirectory].contains(&source.kind()) {
            return OpenError::NoFiles;
        }
        OpenError::Io {
            path: dir.to_owned(),
            source,
        }
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|suffix| suffix == SUFFIX) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// `None`: not a stream file, or its header is not written yet.
fn open_file(path: &Path) -> Result<Option<Scanner<File>>, OpenError> {
    let failed = |source| OpenError::Io {
        path: path.to_owned(),
        source,
    };
    let file = match crate::regular::open_regular(path) {
        Ok(file) => file,
        Err(error) if is_about_this_file(&error) => {
            tracing::warn!("cannot read {}, skipping it: {error}", path.display());
            return Ok(None);
        }
        Err(error) => return Err(failed(error)),
    };
    match Scanner::open(file).map_err(failed)? {
        Ok(scanner) => Ok(Some(scanner)),
        Err(error @ (FormatError::NoHeader | FormatError::Version(_))) => {
            tracing::warn!("cannot read {}, skipping it: {error}", path.display());
            Ok(None)
        }
    }
}

/// Whether an error concerns one file and not the others of the directory: it is not a regular
/// file, is a broken or circular link, or is not accessible for this user.
fn is_about_this_file(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, NotFound, PermissionDenied};
    [InvalidInput, NotFound, PermissionDenied].contains(&error.kind())
        || error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}
