//! The command line of a benchmark: options that each have a value.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, Result, anyhow, ensure};

/// The value of an option, with its name for errors.
#[derive(Debug)]
pub struct Value {
    name: String,
    text: String,
}

impl Value {
    /// Parses the value as a number or any other type.
    ///
    /// # Errors
    ///
    /// If it is invalid.
    pub fn get<T: FromStr<Err: Display>>(&self) -> Result<T> {
        let Self { name, text } = self;
        let value = text.parse();
        value.map_err(|error| anyhow!("{name} does not take '{text}': {error}"))
    }

    /// Returns the absolute path of an existing file, because servers and workers run in other
    /// directories.
    ///
    /// # Errors
    ///
    /// If there is no such file.
    pub fn file(&self) -> Result<PathBuf> {
        existing(&self.text)
    }

    /// Returns the name and the file of `LABEL=PATH`.
    ///
    /// # Errors
    ///
    /// If the value has another form, or if there is no such file.
    pub fn labelled_file(&self) -> Result<(String, PathBuf)> {
        let (label, path) = self
            .text
            .split_once('=')
            .with_context(|| format!("{} takes LABEL=PATH", self.name))?;
        Ok((label.to_owned(), existing(path)?))
    }

    /// Parses comma-separated numbers.
    ///
    /// # Errors
    ///
    /// If any of them is invalid.
    pub fn list<T: FromStr<Err: Display>>(&self) -> Result<Vec<T>> {
        let one = |text: &str| {
            let name = self.name.clone();
            let text = text.to_owned();
            Self { name, text }.get()
        };
        self.text.split(',').map(one).collect()
    }
}

fn existing(path: impl AsRef<Path>) -> Result<PathBuf> {
    let path = path.as_ref();
    std::fs::canonicalize(path).with_context(|| format!("cannot find {}", path.display()))
}

/// Passes each option to `set`, which returns whether it is known.
///
/// # Errors
///
/// If `set` fails, an option is unknown, or an option has no value.
pub fn each(
    mut args: impl Iterator<Item = String>,
    mut set: impl FnMut(&str, &Value) -> Result<bool>,
) -> Result<()> {
    while let Some(name) = args.next() {
        let text = args
            .next()
            .with_context(|| format!("{name} needs a value"))?;
        let value = Value { name, text };
        ensure!(set(&value.name, &value)?, "unknown option {}", value.name);
    }
    Ok(())
}

/// Returns the path of the `hq` that was built with this benchmark.
///
/// # Errors
///
/// If the path of this program is unknown.
pub fn hq_beside() -> Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("hq"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(words: &[&str]) -> Result<u32> {
        let mut count = 0;
        each(
            words.iter().map(|word| (*word).to_owned()),
            |name, value| {
                match name {
                    "--count" => count = value.get()?,
                    "--each" => count = value.list::<u32>()?.iter().sum(),
                    "--peer" => count = u32::from(value.labelled_file()?.1.is_absolute()),
                    _ => return Ok(false),
                }
                Ok(true)
            },
        )?;
        Ok(count)
    }

    #[test]
    fn an_option_has_a_value_and_errors_name_both() {
        assert_eq!(count(&["--count", "1", "--count", "7"]).expect("valid"), 7);
        assert_eq!(count(&["--each", "1,20,3"]).expect("valid"), 24);
        assert_eq!(count(&["--peer", "old=."]).expect("valid"), 1);
        for (words, expected) in [
            (&["--count"][..], "--count needs a value"),
            (
                &["--count", "x"],
                "--count does not take 'x': invalid digit",
            ),
            (
                &["--each", "1,x"],
                "--each does not take 'x': invalid digit",
            ),
            (&["--peer", "."], "--peer takes LABEL=PATH"),
            (&["--peer", "a=/is/not"], "cannot find /is/not"),
            (&["--size", "1"], "unknown option --size"),
        ] {
            let error = count(words).expect_err("not valid").to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
