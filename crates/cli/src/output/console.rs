//! The process's own standard output and error: the only place that writes to them.

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::os::fd::AsFd;

use super::format::printable;
use crate::args::global::ColorMode;

/// Size of the buffer of standard output, in bytes: a page of tasks fits.
const BUFFER_LEN: usize = 64 * 1024;

/// Buffered standard output; flush it before a command ends.
pub(crate) type Console = BufWriter<Stdout>;

/// Standard output with a buffer.
pub(crate) fn stdout() -> Console {
    BufWriter::with_capacity(BUFFER_LEN, io::stdout())
}

/// Writes to standard error, hidden characters written out; a failure is ignored.
pub(crate) fn error_line(text: &str) {
    let mut text = printable(text).into_owned();
    text.push('\n');
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Writes a text with colours to standard error, without them where it is no terminal.
pub(crate) fn error_styled(text: &str) {
    // A failure has no place where it could be reported.
    let _ = anstream::stderr().write_all(text.as_bytes());
}

/// Writes to standard error as it is.
pub(crate) fn error_text(text: &str) -> io::Result<()> {
    let mut stderr = io::stderr().lock();
    stderr.write_all(text.as_bytes())?;
    stderr.flush()
}

/// Columns and rows of a terminal; `None` if it is none or does not tell.
pub(crate) fn terminal_size(stream: impl AsFd) -> Option<(u16, u16)> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    (size.ws_col > 0).then_some((size.ws_col, size.ws_row))
}

/// Writes bytes to standard error; a failure is ignored.
pub(crate) fn error_bytes(bytes: &[u8]) {
    let _ = io::stderr().write_all(bytes);
}

/// Number of the terminal's colour for a task: one of the six that are neither black nor white.
pub(crate) const fn color_of_task(task: u32) -> u32 {
    31 + task % 6
}

/// Whether to use colours.
pub(crate) fn use_colors(mode: ColorMode) -> bool {
    match mode {
        ColorMode::Auto => io::stdout().is_terminal() && !is_unwanted(),
        ColorMode::Always => true,
        ColorMode::Never => false,
    }
}

/// The user has said to all programs that colours are not welcome (<https://no-color.org>).
fn is_unwanted() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}
