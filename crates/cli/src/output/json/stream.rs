//! Pretty-printed JSON that is written as its parts arrive.

use std::io;

use serde_json::Value;

use crate::output::Out;

/// Nested objects and arrays that are written from the outside in.
pub(super) struct JsonStream<'a> {
    out: Out<'a>,
    /// The closing bracket of each open level, and whether the level already has an element.
    levels: Vec<(char, bool)>,
}

impl<'a> JsonStream<'a> {
    /// Creates a stream where no level is open.
    pub(super) fn new(out: Out<'a>) -> Self {
        Self {
            out,
            levels: Vec::new(),
        }
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

    /// Closes the innermost level. The outermost one is followed by a line feed.
    pub(super) fn close(&mut self) -> io::Result<()> {
        let Some((close, has_element)) = self.levels.pop() else {
            return Ok(());
        };
        if has_element {
            self.new_line()?;
        }
        write!(self.out, "{close}")?;
        if self.levels.is_empty() {
            writeln!(self.out)?;
        }
        Ok(())
    }

    /// Closes every level.
    pub(super) fn close_all(&mut self) -> io::Result<()> {
        while !self.levels.is_empty() {
            self.close()?;
        }
        Ok(())
    }

    /// Returns the number of open levels.
    pub(super) fn depth(&self) -> usize {
        self.levels.len()
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
        let mut stream = JsonStream::new(&mut streamed);
        stream.open_array(None).expect("memory");
        stream.open_object(None).expect("memory");
        stream.open_array(Some("a")).expect("memory");
        stream.close().expect("memory");
        stream.value(Some("b"), &whole[0]["b"]).expect("memory");
        stream.close().expect("memory");
        stream.value(None, &whole[1]).expect("memory");
        stream.close_all().expect("memory");
        let expected = format!("{}\n", serde_json::to_string_pretty(&whole).expect("value"));
        assert_eq!(String::from_utf8(streamed).expect("utf-8"), expected);
    }
}
