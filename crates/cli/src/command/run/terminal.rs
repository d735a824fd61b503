//! Standard error as a terminal for the progress bar.
//!
//! The library pads the bar to the right margin. Text that the terminal echoes, such as `^C`, would
//! then wrap to the next line, and the bar could not be removed. This terminal omits the padding.

use std::io;
use std::sync::{Mutex, PoisonError};

use indicatif::TermLike;

use crate::output::console::{error_text, terminal_size};

/// The columns and rows of a terminal whose size is unknown.
const SIZE_DEFAULT: (u16, u16) = (80, 24);

/// Buffered standard error. Output appears at the next flush.
#[derive(Debug, Default)]
pub(super) struct Terminal {
    pending: Mutex<String>,
}

impl Terminal {
    fn push(&self, text: &str) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.push_str(text);
    }

    fn push_move(&self, count: usize, letter: char) -> io::Result<()> {
        if count > 0 {
            self.push(&format!("\x1b[{count}{letter}"));
        }
        Ok(())
    }
}

fn size() -> (u16, u16) {
    terminal_size(io::stderr()).unwrap_or(SIZE_DEFAULT)
}

impl TermLike for Terminal {
    fn width(&self) -> u16 {
        size().0
    }

    fn height(&self) -> u16 {
        size().1
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.push_move(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.push_move(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.push_move(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.push_move(n, 'D')
    }

    fn write_line(&self, s: &str) -> io::Result<()> {
        self.push(s);
        self.push("\n");
        Ok(())
    }

    fn write_str(&self, s: &str) -> io::Result<()> {
        if !s.bytes().all(|byte| byte == b' ') {
            self.push(s);
        }
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.push("\r\x1b[2K");
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let written = error_text(&pending);
        pending.clear();
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_not_filled_up() {
        let terminal = Terminal::default();
        for text in ["[##..] 1/2", "     ", ""] {
            terminal.write_str(text).expect("buffered");
        }
        terminal.clear_line().expect("buffered");
        let pending = terminal.pending.lock().expect("nobody panicked");
        assert_eq!(*pending, "[##..] 1/2\r\x1b[2K");
    }
}
