//! Environments and argument lists, encoded once and shared.
//!
//! An [`EnvBlock`] is an environment shared by many tasks, built once per submit. A task adds its
//! few own variables in a [`TaskEnv`] buffer. A spawn only gathers pointers and copies no strings.
//! This module does not deal with processes; it guarantees that its output is valid for `execve`.

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fmt::{self, Display, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use crate::error::PlanError;

/// The position of a variable in its block's text.
#[derive(Clone, Copy)]
struct Entry {
    start: usize,
    name_len: usize,
    /// The length of `NAME=value`, without the NUL.
    len: usize,
}

/// All variables in one buffer. The kernel reads them in order at every spawn, when the previous
/// program has evicted them from the CPU caches; reading contiguous memory is then cheap.
#[derive(Default, Clone)]
struct EnvInner {
    /// `NAME=value\0` in the order of `entries`.
    text: Vec<u8>,
    entries: Vec<Entry>,
    by_name: HashMap<Box<[u8]>, usize>,
}

/// A complete environment, shared by reference.
///
/// Cloning increments a reference count. [`EnvBlock::overlay`] makes a copy, once for the many
/// tasks of a submit.
#[derive(Clone)]
pub struct EnvBlock(Arc<EnvInner>);

impl EnvBlock {
    /// Returns the environment of the current process, byte for byte.
    ///
    /// Capture it once at startup. If a name occurs twice, the first variable is used, as in
    /// `getenv`.
    #[must_use]
    pub fn capture() -> Self {
        let mut inner = EnvInner::default();
        for (name, value) in std::env::vars_os() {
            if !inner.by_name.contains_key(name.as_bytes()) {
                // The names and values of a running process's environment contain no NUL.
                let _ = inner.put(&name, &value);
            }
        }
        Self(Arc::new(inner))
    }

    /// Creates an empty environment.
    #[must_use]
    pub fn empty() -> Self {
        Self(Arc::new(EnvInner::default()))
    }

    /// Returns this environment with `vars` added. A later variable replaces an earlier one with
    /// the same name.
    ///
    /// # Errors
    ///
    /// If a name is empty or contains `=` or NUL, or a value contains NUL.
    pub fn overlay<I>(&self, vars: I) -> Result<Self, PlanError>
    where
        I: IntoIterator<Item = (OsString, OsString)>,
    {
        let mut vars = vars.into_iter().peekable();
        if vars.peek().is_none() {
            return Ok(self.clone());
        }
        let mut inner = EnvInner::clone(&self.0);
        for (name, value) in vars {
            inner.put(&name, &value)?;
        }
        inner.pack();
        Ok(Self(Arc::new(inner)))
    }

    /// Returns the value of a variable.
    #[must_use]
    pub fn get(&self, name: &OsStr) -> Option<&OsStr> {
        let index = *self.0.by_name.get(name.as_bytes())?;
        self.iter().nth(index).map(|(_, value)| value)
    }

    /// Returns the number of variables.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.entries.len()
    }

    /// Returns whether there are no variables.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.entries.is_empty()
    }

    /// Iterates over the names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0.entries.iter().map(|entry| {
            let (name, value) = self.0.text_of(*entry).split_at(entry.name_len);
            let value = value.get(1..).unwrap_or_default();
            (OsStr::from_bytes(name), OsStr::from_bytes(value))
        })
    }

    /// Appends the pointers of this block and of `task` to `out`, without the final null.
    ///
    /// This takes one pointer per variable of the block and one look-up per variable of the task.
    /// The pointers are valid as long as neither `self` nor `task` is changed or dropped.
    pub(crate) fn gather(&self, task: &TaskEnv, out: &mut Vec<*const libc::c_char>) {
        let base = out.len();
        let text: *const libc::c_char = self.0.text.as_ptr().cast();
        let entries = self.0.entries.iter();
        out.extend(entries.map(|entry| text.wrapping_add(entry.start)));
        for (name, text) in task.entries() {
            let pointer = text.as_ptr().cast();
            match self.0.by_name.get(name) {
                Some(index) => {
                    if let Some(slot) = out.get_mut(base + index) {
                        *slot = pointer;
                    }
                }
                None => out.push(pointer),
            }
        }
    }
}

impl fmt::Debug for EnvBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may be secrets, so they are never printed.
        write!(f, "EnvBlock({} variables)", self.len())
    }
}

impl EnvInner {
    /// Returns the `NAME=value` text of a variable.
    fn text_of(&self, entry: Entry) -> &[u8] {
        self.text
            .get(entry.start..entry.start + entry.len)
            .unwrap_or_default()
    }

    /// Adds or replaces a variable. The text of a replaced variable stays until [`EnvInner::pack`].
    fn put(&mut self, name: &OsStr, value: &OsStr) -> Result<(), PlanError> {
        let (name, value) = (name.as_bytes(), value.as_bytes());
        check_name(name)?;
        check_value(name, value)?;
        let entry = Entry {
            start: self.text.len(),
            name_len: name.len(),
            len: name.len() + 1 + value.len(),
        };
        self.text.reserve(entry.len + 1);
        self.text.extend_from_slice(name);
        self.text.push(b'=');
        self.text.extend_from_slice(value);
        self.text.push(0);
        if let Some(index) = self.by_name.get(name) {
            self.entries[*index] = entry;
        } else {
            self.by_name.insert(Box::from(name), self.entries.len());
            self.entries.push(entry);
        }
        Ok(())
    }

    /// Removes replaced text and restores the order.
    fn pack(&mut self) {
        let lengths = self.entries.iter().map(|entry| entry.len + 1);
        let mut packed = Vec::with_capacity(lengths.sum());
        for index in 0..self.entries.len() {
            let entry = self.entries[index];
            self.entries[index].start = packed.len();
            packed.extend_from_slice(self.text_of(entry));
            packed.push(0);
        }
        self.text = packed;
    }
}

fn check_name(name: &[u8]) -> Result<(), PlanError> {
    if name.is_empty() || name.contains(&b'=') || name.contains(&0) {
        return Err(PlanError::BadVariableName {
            name: String::from_utf8_lossy(name).into_owned(),
        });
    }
    Ok(())
}

fn check_value(name: &[u8], value: &[u8]) -> Result<(), PlanError> {
    if value.contains(&0) {
        return Err(PlanError::NulInVariable {
            name: String::from_utf8_lossy(name).into_owned(),
        });
    }
    Ok(())
}

/// The variables of one task, in one buffer.
///
/// They replace variables with the same name in the task's [`EnvBlock`]. Each variable costs a
/// look-up in the block per spawn, so include only variables that differ between the tasks of a
/// submit.
#[derive(Clone, Default)]
pub struct TaskEnv {
    /// `NAME=value\0` in order.
    text: Vec<u8>,
    /// Start of each entry in `text` and the length of its name.
    entries: Vec<(usize, usize)>,
}

impl TaskEnv {
    /// Creates an environment without variables.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            text: Vec::new(),
            entries: Vec::new(),
        }
    }

    /// Sets a variable, replacing an earlier one with the same name.
    ///
    /// # Errors
    ///
    /// If the name is empty or contains `=` or NUL, or the value contains NUL.
    pub fn set(&mut self, name: &str, value: impl AsRef<OsStr>) -> Result<(), PlanError> {
        check_name(name.as_bytes())?;
        let value = value.as_ref().as_bytes();
        check_value(name.as_bytes(), value)?;
        let start = self.begin(name);
        self.text.extend_from_slice(value);
        self.finish(start, name.len());
        Ok(())
    }

    /// Sets a variable to the text that `value` displays.
    ///
    /// # Errors
    ///
    /// Same as [`TaskEnv::set`].
    pub fn set_display(&mut self, name: &str, value: impl Display) -> Result<(), PlanError> {
        check_name(name.as_bytes())?;
        let start = self.begin(name);
        let value_start = self.text.len();
        // Writing to a vector cannot fail. If formatting `value` fails, the output written so far
        // remains.
        let _ = write!(Utf8Sink(&mut self.text), "{value}");
        if let Err(error) = check_value(name.as_bytes(), &self.text[value_start..]) {
            self.text.truncate(start);
            return Err(error);
        }
        self.finish(start, name.len());
        Ok(())
    }

    /// Returns the value of a variable.
    #[must_use]
    pub fn get(&self, name: &OsStr) -> Option<&OsStr> {
        let found = self.iter().find(|(found, _)| *found == name);
        found.map(|(_, value)| value)
    }

    /// Returns the number of variables.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no variables.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Iterates over the names and values, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.entries().map(|(name, text)| {
            let value = text.get(name.len() + 1..text.len() - 1);
            (
                OsStr::from_bytes(name),
                OsStr::from_bytes(value.unwrap_or_default()),
            )
        })
    }

    /// Iterates over the name and the complete `NAME=value\0` text of each variable.
    fn entries(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.entries
            .iter()
            .enumerate()
            .map(|(index, &(start, name_len))| {
                let end = self
                    .entries
                    .get(index + 1)
                    .map_or(self.text.len(), |&(next, _)| next);
                (&self.text[start..start + name_len], &self.text[start..end])
            })
    }

    fn begin(&mut self, name: &str) -> usize {
        let start = self.text.len();
        self.text.extend_from_slice(name.as_bytes());
        self.text.push(b'=');
        start
    }

    /// Completes the entry that starts at `start`, and removes an earlier entry with the same name.
    fn finish(&mut self, start: usize, name_len: usize) {
        self.text.push(0);
        let name = self.text[start..start + name_len].to_vec();
        let earlier = self.entries().position(|(found, _)| found == name);
        self.entries.push((start, name_len));
        if let Some(index) = earlier {
            let (from, _) = self.entries[index];
            let (to, _) = self.entries[index + 1];
            self.text.drain(from..to);
            self.entries.remove(index);
            for entry in &mut self.entries[index..] {
                entry.0 -= to - from;
            }
        }
    }
}

impl fmt::Debug for TaskEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskEnv({} variables)", self.len())
    }
}

struct Utf8Sink<'a>(&'a mut Vec<u8>);

impl fmt::Write for Utf8Sink<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// An argument list, encoded once and shared. Element 0 is the program.
#[derive(Clone)]
pub struct ArgBlock(Arc<Vec<CString>>);

impl ArgBlock {
    /// Encodes an argument list.
    ///
    /// # Errors
    ///
    /// If the list or the program name is empty, or an argument contains NUL.
    pub fn new<I>(args: I) -> Result<Self, PlanError>
    where
        I: IntoIterator<Item: AsRef<OsStr>>,
    {
        let mut encoded = Vec::new();
        for (index, arg) in args.into_iter().enumerate() {
            let arg = CString::new(arg.as_ref().as_bytes())
                .map_err(|_| PlanError::NulInArgument { index })?;
            encoded.push(arg);
        }
        match encoded.first() {
            None => Err(PlanError::NoProgram),
            Some(program) if program.is_empty() => Err(PlanError::EmptyProgram),
            Some(_) => Ok(Self(Arc::new(encoded))),
        }
    }

    /// Returns the program as it was given.
    #[must_use]
    pub fn program(&self) -> &OsStr {
        self.0
            .first()
            .map_or(OsStr::new(""), |arg| OsStr::from_bytes(arg.to_bytes()))
    }

    /// Iterates over the program and its arguments.
    pub fn iter(&self) -> impl Iterator<Item = &OsStr> {
        self.0.iter().map(|arg| OsStr::from_bytes(arg.to_bytes()))
    }

    /// Appends the pointers of all arguments to `out`, without the final null. They are valid as
    /// long as `self` is.
    pub(crate) fn gather(&self, out: &mut Vec<*const libc::c_char>) {
        out.extend(self.0.iter().map(|arg| arg.as_ptr()));
    }

    /// Returns the program as a C string.
    pub(crate) fn program_c(&self) -> &CStr {
        self.0.first().map_or(c"", CString::as_c_str)
    }
}

impl fmt::Debug for ArgBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests;
