//! Pretty-printed JSON with keys in alphabetical order: one value per command.
//!
//! [`serde_json::Value`] keeps keys sorted. Lists of tasks are never held as a whole:
//! [`JsonStream`] writes them element by element.

use std::io;

use hq_protocol::common;
use serde_json::Value;

use super::Out;

/// Writes a pretty-printed value and a line feed.
pub(crate) fn write_value(out: Out<'_>, value: &Value) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)
}

/// Returns the destination of an output: a path, `<pipe>`, or null.
pub(super) fn stdio_value(stdio: &common::Stdio, path: impl Fn(&[u8]) -> String) -> Option<String> {
    match stdio.kind() {
        common::stdio::Kind::None => None,
        common::stdio::Kind::File => Some(path(&stdio.path)),
        common::stdio::Kind::Stream => Some("<pipe>".to_owned()),
    }
}

/// An object or array whose parts are written as they arrive, from the outside in.
pub(super) struct JsonStream<'a> {
    out: Out<'a>,
    /// The brackets of the whole, which is opened by its first element or its end.
    root: Option<(char, char)>,
    /// The closing bracket of each open level, and whether the level already has an element.
    levels: Vec<(char, bool)>,
}

impl<'a> JsonStream<'a> {
    pub(super) fn array(out: Out<'a>) -> Self {
        let root = Some(('[', ']'));
        Self {
            out,
            root,
            levels: Vec::new(),
        }
    }

    pub(super) fn object(out: Out<'a>) -> Self {
        let root = Some(('{', '}'));
        Self {
            out,
            root,
            levels: Vec::new(),
        }
    }

    fn open_root(&mut self) -> io::Result<()> {
        if let Some((open, close)) = self.root.take() {
            write!(self.out, "{open}")?;
            self.levels.push((close, false));
        }
        Ok(())
    }

    /// Opens an array as the next element, under a key if the parent is an object.
    pub(super) fn open_array(&mut self, key: Option<&str>) -> io::Result<()> {
        self.open(key, '[', ']')
    }

    /// Opens an object as the next element, under a key if the parent is an object.
    pub(super) fn open_object(&mut self, key: Option<&str>) -> io::Result<()> {
        self.open(key, '{', '}')
    }

    fn open(&mut self, key: Option<&str>, open: char, close: char) -> io::Result<()> {
        self.begin(key)?;
        write!(self.out, "{open}")?;
        self.levels.push((close, false));
        Ok(())
    }

    /// Writes a complete element.
    pub(super) fn value(&mut self, key: Option<&str>, value: &Value) -> io::Result<()> {
        self.begin(key)?;
        let text = serde_json::to_string_pretty(value)?;
        // JSON strings contain no line feeds, so indentation follows each one.
        let mut lines = text.split('\n');
        if let Some(first) = lines.next() {
            self.out.write_all(first.as_bytes())?;
        }
        for line in lines {
            self.new_line()?;
            self.out.write_all(line.as_bytes())?;
        }
        Ok(())
    }

    fn begin(&mut self, key: Option<&str>) -> io::Result<()> {
        self.open_root()?;
        if let Some((_, has_element)) = self.levels.last_mut() {
            let separator: &[u8] = if *has_element { b"," } else { b"" };
            *has_element = true;
            self.out.write_all(separator)?;
            self.new_line()?;
        }
        if let Some(key) = key {
            serde_json::to_writer(&mut *self.out, key)?;
            self.out.write_all(b": ")?;
        }
        Ok(())
    }

    fn new_line(&mut self) -> io::Result<()> {
        write!(self.out, "\n{:1$}", "", self.levels.len() * 2)
    }

    /// Closes the innermost level.
    fn close(&mut self) -> io::Result<()> {
        let Some((close, has_element)) = self.levels.pop() else {
            return Ok(());
        };
        if has_element {
            self.new_line()?;
        }
        write!(self.out, "{close}")
    }

    /// Closes every level except the whole.
    pub(super) fn close_inner(&mut self) -> io::Result<()> {
        while self.levels.len() > 1 {
            self.close()?;
        }
        Ok(())
    }

    /// Opens an array for a job in the whole, which is an object.
    pub(super) fn next_array(&mut self, job: u32) -> io::Result<()> {
        self.close_inner()?;
        self.open_array(Some(&job.to_string()))
    }

    /// Closes every level, and ends the line.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.open_root()?;
        self.close_inner()?;
        self.close()?;
        writeln!(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn looks_like_a_value_printed_at_once() {
        let whole = json!([{ "a": [], "b": { "x": [1, 2], "y": {} } }, "t"]);
        let mut streamed = Vec::new();
        let mut stream = JsonStream::array(&mut streamed);
        stream.open_object(None).expect("memory");
        stream.open_array(Some("a")).expect("memory");
        stream.close().expect("memory");
        stream.value(Some("b"), &whole[0]["b"]).expect("memory");
        stream.close().expect("memory");
        stream.value(None, &whole[1]).expect("memory");
        stream.finish().expect("memory");
        let expected = format!("{}\n", serde_json::to_string_pretty(&whole).expect("value"));
        assert_eq!(String::from_utf8(streamed).expect("utf-8"), expected);
    }
}
