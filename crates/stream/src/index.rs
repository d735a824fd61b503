//! Finds the output of tasks in a stream directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::SUFFIX;
use crate::format::{BlockKind, Channel, FormatError};
use crate::scan::{Block, Scanner};

/// The reason why a stream directory cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory has no stream file of the requested server.
    #[error("No log files found")]
    NoFiles,
    /// The directory has files of several servers. Contains the uids of these servers.
    #[error("Found streams from multiple server instances:")]
    SeveralServers(Vec<String>),
    /// The directory or a file cannot be read.
    #[error("cannot read {path}")]
    Io {
        /// The path of the directory or file.
        path: PathBuf,
        /// The error reported by the operating system.
        #[source]
        source: io::Error,
    },
}

/// A piece of the output of one channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// When the worker read it, in nanoseconds since 1970.
    pub unix_ns: i64,
    /// The channel of the output.
    pub channel: Channel,
    /// The length in bytes.
    pub length: u32,
    file: u32,
    at: u64,
    checksum: u32,
}

impl Chunk {
    /// Creates a chunk for the payload of a block with output of this channel.
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

/// The output of one instance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stream {
    /// The sizes of standard output and standard error, in bytes.
    pub sizes: [u64; 2],
    /// The pieces of the output, in order. Recorded only for requested jobs.
    pub chunks: Vec<Chunk>,
    starts: u32,
    ends: u32,
    abandoned: u32,
}

impl Stream {
    /// Returns whether the instance has ended, according to the file.
    #[must_use]
    pub const fn is_finished(&self) -> bool {
        self.ends > 0 && self.ends + self.abandoned >= self.starts
    }

    /// Returns whether the instance never ran on this worker.
    const fn is_abandoned(&self) -> bool {
        self.abandoned > 0 && self.abandoned >= self.starts && self.ends == 0
    }
}

/// All instances of one task, by number. Only the last one is current.
pub type TaskStreams = BTreeMap<u32, Stream>;

/// The number of items in a directory and their sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// The number of files.
    pub files: u64,
    /// The number of jobs with output.
    pub jobs: u64,
    /// The number of tasks with output.
    pub tasks: u64,
    /// The number of instances, including superseded ones.
    pub streams: u64,
    /// The number of tasks whose last instance has not ended.
    pub opened: u64,
    /// The number of instances that were replaced by a later one.
    pub superseded: u64,
    /// The sizes of the last instances' standard output and standard error, in bytes.
    pub sizes: [u64; 2],
    /// The sizes of the superseded instances' standard output and standard error, in bytes.
    pub superseded_sizes: [u64; 2],
}

/// The streams of a directory, with the positions of their pieces in its files.
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

    /// Returns the ids of the jobs in ascending order.
    #[must_use]
    pub fn jobs(&self) -> BTreeSet<u32> {
        self.streams().map(|((job, _), _)| job).collect()
    }

    /// Returns the last instance of each task of a job, by task id.
    #[must_use]
    pub fn tasks(&self, job: u32) -> BTreeMap<u32, &Stream> {
        self.current()
            .filter(|((of_job, _), _)| *of_job == job)
            .map(|((_, task), stream)| (task, stream))
            .collect()
    }

    /// Iterates over the last instances of all tasks.
    pub fn current(&self) -> impl Iterator<Item = ((u32, u32), &Stream)> {
        self.streams()
            .filter_map(|(key, streams)| Some((key, *streams.last()?)))
    }

    /// Returns the last instance of a task.
    #[must_use]
    pub fn stream(&self, job: u32, task: u32) -> Option<&Stream> {
        let task = self.tasks.get(&(job, task))?;
        task.values().rev().find(|stream| !stream.is_abandoned())
    }

    /// Returns the number of the last instance of a task.
    #[must_use]
    pub fn instance(&self, job: u32, task: u32) -> Option<u32> {
        let task = self.tasks.get(&(job, task))?;
        let mut ran = task
            .iter()
            .rev()
            .filter(|(_, stream)| !stream.is_abandoned());
        ran.next().map(|(instance, _)| *instance)
    }

    /// Returns the counts and sizes, without the number of files.
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
    /// If there are no files, if they belong to several servers and `server_uid` is `None`, or if
    /// they cannot be read.
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

    /// Returns the number of files.
    #[must_use]
    pub fn file_count(&self) -> u64 {
        self.files.len() as u64
    }

    /// Returns the number of damaged bytes skipped so far.
    #[must_use]
    pub fn damaged_bytes(&self) -> u64 {
        self.files.iter().map(Scanner::damaged_bytes).sum()
    }

    /// Opens the files that were created since the directory was last read.
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

    /// Adds all new blocks to the index. Chunks are recorded only for jobs that `keep` selects.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn update(&mut self, index: &mut Index, keep: impl Fn(u32) -> bool) -> io::Result<()> {
        self.each_new(|file, block| index.add(file, block, keep(block.header.key.job)))
    }

    /// Calls `see` for each new block, with the number of the block's file.
    pub(crate) fn each_new(&mut self, mut see: impl FnMut(u32, &Block)) -> io::Result<()> {
        for (number, file) in (0..).zip(&mut self.files) {
            while let Some(block) = file.next_block()? {
                see(number, &block);
            }
        }
        Ok(())
    }

    /// Appends the bytes of a chunk to `out`. Returns `false` and appends nothing if the bytes are
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

/// Opens a stream file. Returns `None` if it is not a stream file or its header is not written yet.
fn open_file(path: &Path) -> Result<Option<Scanner<File>>, OpenError> {
    let failed = |source| OpenError::Io {
        path: path.to_owned(),
        source,
    };
    let file = match hq_private::open_in_named_dir(path) {
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

/// Returns whether an error affects only this file and not the whole directory: the file is not a
/// regular file, is a broken or circular link, or is not accessible to this user.
fn is_about_this_file(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, NotFound, PermissionDenied};
    [InvalidInput, NotFound, PermissionDenied].contains(&error.kind())
        || error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}
