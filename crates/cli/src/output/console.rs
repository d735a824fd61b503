//! The process's own standard output and error: the only place that writes to them.

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use crate::args::global::ColorMode;

/// Size of the buffer of standard output, in bytes: a page of tasks fits.
const BUFFER_LEN: usize = 64 * 1024;

/// Buffered standard output; flush it before a command ends.
pub(crate) type Console = BufWriter<Stdout>;

/// Standard output with a buffer.
pub(crate) fn stdout() -> Console {
    BufWriter::with_capacity(BUFFER_LEN, io::stdout())
}

/// Writes to standard error; nobody can be told if that fails.
pub(crate) fn error_line(text: &str) {
    let mut text = text.to_owned();
    text.push('\n');
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Whether to use colours.
pub(crate) fn use_colors(mode: ColorMode) -> bool {
    match mode {
        ColorMode::Auto => io::stdout().is_terminal(),
        ColorMode::Always => true,
        ColorMode::Never => false,
    }
}
