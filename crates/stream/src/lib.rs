//! The output of many tasks in few files.
//!
//! A worker writes one file per stream directory, whatever the number of tasks: [`Pump`] reads the tasks'
//! pipes and appends checksummed blocks. [`StreamDir`] and [`Index`] find the output of a task again, also
//! while files are being written or after they were cut off; [`OutputReader`] looks at one task only, whatever
//! kind of file it writes. The format is in `docs/streaming.md`.
//!
//! Nothing here knows what a task is beyond its three numbers, nor who runs it.

#![forbid(unsafe_code)]

mod format;
mod index;
mod output;
mod pump;
mod regular;
mod scan;
mod sink;

pub use format::{BlockHeader, BlockKind, Channel, FileHeader, FormatError, Key};
pub use index::{Chunk, Index, OpenError, Stream, StreamDir, Summary, TaskStreams};
pub use output::{From as ReadFrom, OutputReader, Part, Source};
pub use pump::{EndKind, Ends, Pump, PumpEvent, StreamStart};
pub use regular::open_regular;
pub use scan::{Block, ReadAt, Scanner};

/// Suffix of stream files.
pub const SUFFIX: &str = "hqs";
