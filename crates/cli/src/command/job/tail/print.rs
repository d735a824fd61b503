//! Prints chunks of output as they arrive.

use std::collections::BTreeMap;
use std::io;

use serde_json::json;

use super::reader::OutputChunk;
use crate::args::job::StreamArg;
use crate::output::console::{self, Shown};

/// The maximum length in bytes of an incomplete line that is held back.
const LINE_MAX: usize = 64 * 1024;

/// How output is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    /// The output of one task, unchanged.
    Raw,
    /// The lines of several tasks, prefixed with task and channel. The flag selects colors.
    Prefixed(bool),
    /// A JSON object for each line.
    Json,
}

/// Prints chunks: unchanged for a single task, otherwise line by line.
pub(super) struct Printer {
    job: u32,
    shape: Shape,
    /// The incomplete lines, and the instance that wrote each.
    open: BTreeMap<(u32, usize), (u32, Vec<u8>)>,
}

impl Printer {
    pub(super) const fn new(job: u32, shape: Shape) -> Self {
        Self {
            job,
            shape,
            open: BTreeMap::new(),
        }
    }

    /// Prints the complete lines of a chunk, and flushes.
    pub(super) fn print(&mut self, piece: &OutputChunk, out: &mut impl Shown) -> io::Result<()> {
        if self.shape == Shape::Raw {
            if piece.channel == StreamArg::Stderr {
                console::error_bytes(&piece.bytes);
            } else {
                out.as_is().write_all(&piece.bytes)?;
            }
            return out.flush();
        }
        let channel = piece.channel as usize;
        let key = (piece.task, channel);
        // An instance that was replaced writes nothing more.
        if let Some((instance, line)) = self.open.remove(&key) {
            if instance == piece.instance {
                self.open.insert(key, (instance, line));
            } else {
                self.line(key, instance, &line, out)?;
            }
        }
        let (_, mut text) = self.open.remove(&key).unwrap_or_default();
        text.extend_from_slice(&piece.bytes);
        let mut rest = &text[..];
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.line(key, piece.instance, &rest[..end], out)?;
            rest = &rest[end + 1..];
        }
        if rest.len() > LINE_MAX {
            self.line(key, piece.instance, rest, out)?;
        } else if !rest.is_empty() {
            self.open.insert(key, (piece.instance, rest.to_vec()));
        }
        out.flush()
    }

    /// Prints the remainder of a task's last lines.
    pub(super) fn end(&mut self, task: u32, out: &mut impl Shown) -> io::Result<()> {
        for channel in [StreamArg::Stdout, StreamArg::Stderr] {
            let key = (task, channel as usize);
            if let Some((instance, line)) = self.open.remove(&key) {
                self.line(key, instance, &line, out)?;
            }
        }
        out.flush()
    }

    fn line(
        &self,
        (task, channel): (u32, usize),
        instance: u32,
        line: &[u8],
        out: &mut impl Shown,
    ) -> io::Result<()> {
        match self.shape {
            Shape::Json => {
                let name = if channel == 0 { "stdout" } else { "stderr" };
                let line = String::from_utf8_lossy(line);
                let line = json!({ "channel": name, "instance": instance, "job": self.job, "line": line, "task": task });
                writeln!(out, "{line}")
            }
            Shape::Raw | Shape::Prefixed(_) => {
                let prefix = format!("{}.{task}:{channel}>", self.job);
                let has_color = self.shape == Shape::Prefixed(true);
                console::write_prefix(out, has_color, task, &prefix)?;
                out.lines_of_task(line)?;
                out.write_all(b"\n")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(task: u32, channel: StreamArg, text: &str) -> OutputChunk {
        OutputChunk {
            task,
            instance: 0,
            channel,
            bytes: text.into(),
        }
    }

    fn check(shape: Shape, expected: &str) {
        let mut printer = Printer::new(3, shape);
        let mut out = Vec::new();
        let pieces = [
            piece(1, StreamArg::Stdout, "a\nb"),
            piece(2, StreamArg::Stdout, "other\n"),
            piece(1, StreamArg::Stderr, "err\n"),
            piece(1, StreamArg::Stdout, "c\nopen"),
            OutputChunk {
                instance: 1,
                ..piece(1, StreamArg::Stdout, "again")
            },
        ];
        for piece in &pieces {
            printer.print(piece, &mut out).expect("memory");
        }
        printer.end(2, &mut out).expect("memory");
        printer.end(1, &mut out).expect("memory");
        assert_eq!(String::from_utf8(out).expect("text"), expected);
    }

    #[test]
    fn lines_of_tasks_do_not_mix() {
        let expected = "3.1:0> a\n3.2:0> other\n3.1:1> err\n3.1:0> bc\n3.1:0> open\n3.1:0> again\n";
        check(Shape::Prefixed(false), expected);
    }

    #[test]
    fn prefixes_have_the_colour_of_their_task() {
        let mut printer = Printer::new(3, Shape::Prefixed(true));
        let mut out = Vec::new();
        let line = piece(1, StreamArg::Stdout, "a\n");
        printer.print(&line, &mut out).expect("memory");
        assert_eq!(out, b"\x1b[32m3.1:0>\x1b[0m a\n");
    }

    #[test]
    fn each_line_is_an_object() {
        let mut printer = Printer::new(3, Shape::Json);
        let mut out = Vec::new();
        let line = piece(1, StreamArg::Stderr, "a \"b\"\n");
        printer.print(&line, &mut out).expect("memory");
        let expected = "{\"channel\":\"stderr\",\"instance\":0,\"job\":3,\"line\":\"a \\\"b\\\"\",\"task\":1}\n";
        assert_eq!(String::from_utf8(out).expect("text"), expected);
    }

    #[test]
    fn one_task_is_printed_as_it_is() {
        let mut printer = Printer::new(3, Shape::Raw);
        let mut out = Vec::new();
        printer
            .print(&piece(1, StreamArg::Stdout, "no newline"), &mut out)
            .expect("memory");
        printer.end(1, &mut out).expect("memory");
        assert_eq!(out, b"no newline");
    }
}
