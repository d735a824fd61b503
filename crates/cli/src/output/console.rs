//! Standard output and standard error of the process. No other module writes to them.

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::os::fd::AsFd;

use rustix::fs::FileType;

use super::format::printable;
use crate::args::global::{ColorMode, OutputMode};

/// The size of the buffer of standard output, in bytes. A page of tasks fits into it.
const BUFFER_LEN: usize = 64 * 1024;

/// A writer that escapes hidden characters, because tasks, workers, batch systems and other users
/// choose names, errors and paths.
pub(crate) trait Shown: Write {
    /// Returns the underlying writer, for the unchanged output of tasks and for colors around
    /// escaped texts.
    fn as_is(&mut self) -> &mut dyn Write;

    /// Writes lines of a task that stand next to other text. On a terminal, hidden characters other
    /// than colors are escaped, because lines must not change the text around them.
    fn lines_of_task(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// Returns whether standard output is a regular file.
pub(crate) fn is_stdout_file() -> bool {
    let found = rustix::fs::fstat(io::stdout());
    found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_file())
}

/// Buffered standard output. It must be flushed before a command ends.
pub(crate) struct Console {
    out: BufWriter<Stdout>,
    is_terminal: bool,
    /// Whether the output is human-readable, even in a file.
    is_text: bool,
}

impl Console {
    pub(crate) fn new(mode: OutputMode) -> Self {
        let is_terminal = io::stdout().is_terminal();
        Self {
            out: BufWriter::with_capacity(BUFFER_LEN, io::stdout()),
            is_terminal,
            is_text: is_terminal || mode == OutputMode::Cli,
        }
    }

    /// Returns a writer for output that programs read in every mode. Hidden characters are escaped
    /// only on a terminal.
    pub(crate) fn data(&mut self) -> &mut Self {
        self.is_text = self.is_terminal;
        self
    }
}

impl Write for Console {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_text {
            return self.out.write(bytes);
        }
        let text = String::from_utf8_lossy(bytes);
        self.out.write_all(printable(&text).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Shown for Console {
    fn as_is(&mut self) -> &mut dyn Write {
        &mut self.out
    }

    fn lines_of_task(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.is_terminal {
            return self.out.write_all(bytes);
        }
        let text = String::from_utf8_lossy(bytes);
        self.out.write_all(
            colored(&text, |number| {
                number.bytes().all(|byte| byte.is_ascii_digit())
            })
            .as_bytes(),
        )
    }
}

#[cfg(test)]
impl Shown for Vec<u8> {
    fn as_is(&mut self) -> &mut dyn Write {
        self
    }

    fn lines_of_task(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }
}

/// Writes a text to standard error with hidden characters escaped. Errors are ignored.
pub(crate) fn error_line(text: &str) {
    let mut text = printable(text).into_owned();
    text.push('\n');
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Writes a text with the colors of the command line parser to standard error, or without colors if
/// that is not a terminal.
pub(crate) fn error_styled(text: &str) {
    // The text contains typed words, and a shell may have inserted file names among them.
    // Reset, bold, underlined, red, green, yellow: none of them hides text.
    let shown = colored(text, |number| {
        matches!(number, "0" | "1" | "4" | "31" | "32" | "33")
    });
    // An error while printing cannot be reported.
    let _ = anstream::stderr().write_all(shown.as_bytes());
}

/// Escapes the hidden characters of a text, except in sequences that set colors of which all
/// numbers are allowed.
fn colored(text: &str, is_allowed: impl Fn(&str) -> bool) -> String {
    let mut parts = text.split("\x1b[");
    let mut shown = printable(parts.next().unwrap_or_default()).into_owned();
    for part in parts {
        let after = part
            .split_once('m')
            .map(|(numbers, after)| (numbers.split(';').all(&is_allowed), after));
        let (color, text) = match after {
            Some((true, after)) => (&part[..part.len() - after.len()], after),
            Some((false, _)) | None => ("", part),
        };
        shown.push_str(if color.is_empty() {
            "\\u001b["
        } else {
            "\x1b["
        });
        shown.push_str(color);
        shown.push_str(&printable(text));
    }
    shown
}

/// Writes a text to standard error unchanged.
pub(crate) fn error_text(text: &str) -> io::Result<()> {
    let mut stderr = io::stderr().lock();
    stderr.write_all(text.as_bytes())?;
    stderr.flush()
}

/// Returns the columns and rows of a terminal, or `None` if the stream is not a terminal or the
/// size is unknown.
pub(crate) fn terminal_size(stream: impl AsFd) -> Option<(u16, u16)> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    (size.ws_col > 0).then_some((size.ws_col, size.ws_row))
}

/// Writes bytes to standard error. Errors are ignored.
pub(crate) fn error_bytes(bytes: &[u8]) {
    let _ = io::stderr().write_all(bytes);
}

/// Writes the text before a line of a task, in one of the six colors that are neither black nor
/// white.
pub(crate) fn write_prefix(
    out: &mut impl Shown,
    has_color: bool,
    task: u32,
    prefix: &str,
) -> io::Result<()> {
    if !has_color {
        return write!(out, "{prefix} ");
    }
    write!(out.as_is(), "\x1b[{}m{prefix}\x1b[0m ", 31 + task % 6)
}

/// Returns whether to use colors.
pub(crate) fn use_colors(mode: ColorMode) -> bool {
    match mode {
        ColorMode::Auto => io::stdout().is_terminal() && !is_unwanted(),
        ColorMode::Always => true,
        ColorMode::Never => false,
    }
}

/// Returns whether the user disabled colors in all programs (<https://no-color.org>).
fn is_unwanted() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}
