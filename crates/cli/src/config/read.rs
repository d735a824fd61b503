//! Parses files into settings.

use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Config, Section, Setting};
use crate::error::{CliError, CliResult};
use crate::text::closest;

/// The maximum size of a file in bytes. This is more than a user would write by hand.
const FILE_LEN_MAX: u64 = 1 << 20;

/// Reads these files. Later files have precedence.
///
/// # Errors
///
/// Returns an error if a file exists but is unreadable or invalid.
pub(super) fn all(paths: &[PathBuf]) -> CliResult<Config> {
    let mut config = Config::default();
    for path in paths {
        let text = text(path)?;
        config.files.push((path.clone(), text.is_some()));
        for setting in text.map_or_else(|| Ok(Vec::new()), |text| settings(path, &text))? {
            let is_same =
                |known: &Setting| (known.section, &known.key) == (setting.section, &setting.key);
            config.settings.retain(|known| !is_same(known));
            config.settings.push(setting);
        }
    }
    config
        .settings
        .sort_by(|a, b| (a.section, &a.key).cmp(&(b.section, &b.key)));
    Ok(config)
}

fn text(path: &Path) -> CliResult<Option<String>> {
    use std::io::Read as _;
    let failed =
        |error: std::io::Error| CliError::new(format!("Cannot read {}: {error}", path.display()));
    // This is the usual way to request that no file is read.
    if path == Path::new("/dev/null") {
        return Ok(Some(String::new()));
    }
    let file = match hq_private::open_trusted(path) {
        Ok(file) => file,
        Err(error) => {
            let kind = error.kind();
            // If the home directory belongs to another user, as after `setpriv` or `su` without
            // `-`, this user has no settings.
            let is_hidden = kind == ErrorKind::PermissionDenied && path.metadata().is_err();
            let is_missing =
                is_hidden || matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory);
            return if is_missing {
                Ok(None)
            } else {
                Err(failed(error))
            };
        }
    };
    let mut text = String::new();
    file.take(FILE_LEN_MAX)
        .read_to_string(&mut text)
        .map_err(failed)?;
    Ok(Some(text))
}

/// A file that is being read.
#[derive(Clone, Copy)]
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    fn line(self, at: usize) -> usize {
        self.text[..at.min(self.text.len())].matches('\n').count() + 1
    }

    fn refuse(self, span: &Range<usize>, why: &str) -> CliError {
        let at = span.start.min(self.text.len());
        let before = self.text[..at].rsplit('\n').next().unwrap_or_default();
        let (line, column) = (self.line(at), before.chars().count() + 1);
        let path = self.path.display();
        CliError::new(format!("{path}, line {line}, column {column}: {why}"))
            .with_help("`hq doc config` lists the possible settings")
    }
}

fn settings(path: &Path, text: &str) -> CliResult<Vec<Setting>> {
    let source = Source { path, text };
    let root = DeTable::parse(text).map_err(|error| {
        let span = error.span().unwrap_or_default();
        source.refuse(&span, error.message().trim_end())
    })?;
    let mut found = Vec::new();
    table(source, "", root.get_ref(), &mut found)?;
    Ok(found)
}

/// Reads the table `name`.
fn table(
    source: Source<'_>,
    name: &str,
    entries: &DeTable<'_>,
    found: &mut Vec<Setting>,
) -> CliResult<()> {
    let section = Section::ALL.into_iter().find(|one| one.name() == name);
    for (key, value) in entries {
        if let DeValue::Table(inner) = value.get_ref() {
            let inner_name = match name {
                "" => key.get_ref().to_string(),
                outer => format!("{outer}.{}", key.get_ref()),
            };
            let begins = |section: &Section| {
                let rest = section.name().strip_prefix(inner_name.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            if !Section::ALL.iter().any(begins) {
                let why = format!(
                    "expected the table [submit], [server.start] or [worker.start], found [{inner_name}]"
                );
                return Err(source.refuse(&key.span(), &why));
            }
            table(source, &inner_name, inner, found)?;
            continue;
        }
        let Some(section) = section else {
            let why = format!("expected a table [{name}.start], found `{}`", key.get_ref());
            return Err(source.refuse(&key.span(), &why));
        };
        found.push(setting(source, section, key, value)?);
    }
    Ok(())
}

fn setting(
    source: Source<'_>,
    section: Section,
    key: &Spanned<std::borrow::Cow<'_, str>>,
    value: &Spanned<DeValue<'_>>,
) -> CliResult<Setting> {
    let command = section.command();
    let name = key.get_ref().as_ref();
    let known: Vec<&str> = command
        .get_arguments()
        .filter_map(clap::Arg::get_long)
        .filter(|long| !section.excluded().contains(long))
        .collect();
    if !known.contains(&name) {
        let place = if section == Section::Global {
            "of all commands".to_owned()
        } else {
            format!("of [{}]", section.name())
        };
        let meant = closest(name, known.iter().copied());
        let advice = crate::args::of_option(&["submit"], &format!("--{name}"));
        let meant = match (advice.filter(|_| section.name() == "submit"), meant) {
            (Some(advice), _) => format!("; {advice}"),
            (None, Some(meant)) => format!("; did you mean `{meant}`?"),
            (None, None) => String::new(),
        };
        let why = format!("`{name}` is not an option {place} that can have a default{meant}");
        return Err(source.refuse(&key.span(), &why));
    }
    let takes_no = |arg: &clap::Arg| {
        let mut values = arg.get_possible_values().into_iter();
        arg.get_long() == Some(name) && values.any(|value| value.get_name() == "no")
    };
    let is_false = matches!(value.get_ref(), DeValue::Boolean(false));
    let values = if is_false && command.get_arguments().any(takes_no) {
        Ok(Some(vec!["no".to_owned()]))
    } else {
        values(value.get_ref())
    };
    let values = values.map_err(|why| source.refuse(&value.span(), why))?;
    let setting = Setting {
        section,
        key: name.to_owned(),
        values: values.unwrap_or_default(),
        path: source.path.to_path_buf(),
        line: source.line(key.span().start),
    };
    match section.command().try_get_matches_from(setting.words()) {
        Ok(_) => Ok(setting),
        Err(error) => Err(source.refuse(&value.span(), &format!("{name}: {}", reason(&error)))),
    }
}

/// Returns the values as arguments, or `None` for an enabled option without a value.
fn values(value: &DeValue<'_>) -> Result<Option<Vec<String>>, &'static str> {
    match value {
        DeValue::Boolean(true) => Ok(None),
        DeValue::Boolean(false) => {
            Err("an option without a value is `true`; to disable it, remove the line")
        }
        DeValue::Array(items) if items.is_empty() => Err("expected at least one value"),
        DeValue::Array(items) => {
            let words = items.iter().map(|item| word(item.get_ref()));
            words.collect::<Result<_, _>>().map(Some)
        }
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Datetime(_)
        | DeValue::Table(_) => Ok(Some(vec![word(value)?])),
    }
}

fn word(value: &DeValue<'_>) -> Result<String, &'static str> {
    match value {
        DeValue::String(text) if text.contains('\0') => Err("a text cannot contain NUL"),
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) => Ok(number.to_string()),
        DeValue::Float(number) => Ok(number.to_string()),
        DeValue::Boolean(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
            Err("expected a text or a number")
        }
    }
}

/// Returns in one line why words were rejected.
pub(super) fn reason(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    first.strip_prefix("error: ").unwrap_or(first).to_owned()
}
