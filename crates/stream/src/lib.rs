//! Stores the output of many tasks in few files.
//!
//! A worker writes one file per stream directory for any number of tasks: [`Pump`] reads the
//! tasks' pipes and appends checksummed blocks. [`StreamDir`] and [`Index`] find the output of a
//! task, even in files that are still being written or were cut off. [`OutputReader`] reads the
//! output of a single task from a stream or a plain file. See `docs/streaming.md` for the format.
//!
//! The crate identifies a task only by three numbers and does not depend on how the task is run.

#![forbid(unsafe_code)]

mod format;
mod index;
mod output;
mod pump;
mod scan;
mod sink;

pub use format::{BlockHeader, BlockKind, Channel, FileHeader, FormatError, Key};
pub use index::{Chunk, Index, OpenError, Stream, StreamDir, Summary, TaskStreams};
pub use output::{From as ReadFrom, OutputReader, Part, Source};
pub use pump::{EndKind, Ends, Pump, PumpEvent, StreamStart};
pub use scan::{Block, ReadAt, Scanner};

/// The file name extension of stream files.
pub const SUFFIX: &str = "hqs";
