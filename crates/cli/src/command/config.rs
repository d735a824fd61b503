//! `hq config`.

use std::ffi::OsString;
use std::io::Write as _;

use clap::parser::ValueSource;
use serde_json::{Value, json};

use super::Context;
use crate::args;
use crate::args::global::OutputMode;
use crate::config::{self, Section, Setting};
use crate::error::CliResult;
use crate::output::json::write_value;

/// Where a value comes from.
enum Origin<'a> {
    Default,
    Environment,
    CommandLine,
    File(&'a Setting),
}

impl Origin<'_> {
    const fn name(&self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Environment => "environment",
            Self::CommandLine => "command line",
            Self::File(_) => "file",
        }
    }

    fn text(&self) -> String {
        match self {
            Self::File(setting) => format!("{}, line {}", setting.path.display(), setting.line),
            Self::Default | Self::Environment | Self::CommandLine => self.name().to_owned(),
        }
    }
}

struct Row<'a> {
    key: String,
    value: String,
    origin: Origin<'a>,
}

pub(super) fn show(context: &mut Context) -> CliResult<()> {
    let none = config::Config::default();
    let config = config::current().unwrap_or(&none);
    let rows = rows(config, context);
    match context.mode() {
        OutputMode::Json => {
            let files = config.files.iter();
            let files: Vec<Value> = files
                .map(|(path, exists)| json!({"path": path.display().to_string(), "exists": exists}))
                .collect();
            let rows: Vec<Value> = rows.iter().map(shape).collect();
            write_value(&mut context.out, &json!({"files": files, "settings": rows}))?;
        }
        OutputMode::Quiet => {
            for row in &rows {
                writeln!(context.out, "{}={}", row.key, row.value)?;
            }
        }
        OutputMode::Cli => {
            let keys = rows.iter().map(|row| row.key.chars().count()).max();
            let values = rows.iter().map(|row| row.value.chars().count()).max();
            let (keys, values) = (keys.unwrap_or(0), values.unwrap_or(0));
            for Row { key, value, origin } in &rows {
                let origin = origin.text();
                writeln!(context.out, "{key:keys$}  {value:values$}  {origin}")?;
            }
            writeln!(context.out)?;
            for (path, exists) in &config.files {
                let is_there = if *exists { "read" } else { "not there" };
                writeln!(context.out, "{}: {is_there}", path.display())?;
            }
        }
    }
    context.flush()
}

/// Returns the settings of all commands, and the settings that files make for single commands.
fn rows<'a>(config: &'a config::Config, context: &Context) -> Vec<Row<'a>> {
    let words: Vec<OsString> = std::env::args_os().collect();
    // The words have already been parsed successfully.
    let matches = args::command().try_get_matches_from(words).ok();
    let leaf = matches.as_ref().and_then(|matches| matches.subcommand());
    let global = ["colors", "output-mode", "server-dir"].map(|key| {
        let id = key.replace('-', "_");
        let source = leaf.and_then(|(_, leaf)| leaf.value_source(&id));
        let told = leaf.and_then(|(_, leaf)| leaf.get_raw(&id)?.next_back());
        let found = config
            .settings
            .iter()
            .find(|one| one.section == Section::Global && one.key == key);
        let origin = match (source, found) {
            (Some(ValueSource::CommandLine), _) => Origin::CommandLine,
            (Some(ValueSource::EnvVariable), _) => Origin::Environment,
            (_, Some(setting)) => Origin::File(setting),
            (_, None) => Origin::Default,
        };
        let value = match (&origin, told) {
            (Origin::File(setting), _) => setting.values.join(", "),
            (_, Some(told)) => told.to_string_lossy().into_owned(),
            (_, None) => match context.server_dir() {
                Ok(dir) => dir.root().display().to_string(),
                // Without a home directory, commands that need the server directory report the
                // error themselves.
                Err(_) => String::new(),
            },
        };
        let key = key.to_owned();
        Row { key, value, origin }
    });
    let others = config.settings.iter();
    let others = others.filter(|setting| setting.section != Section::Global);
    let others = others.map(|setting| Row {
        key: setting.full_key(),
        value: if setting.values.is_empty() {
            "true".to_owned()
        } else {
            setting.values.join(", ")
        },
        origin: Origin::File(setting),
    });
    global.into_iter().chain(others).collect()
}

fn shape(row: &Row<'_>) -> Value {
    let place = match row.origin {
        Origin::File(setting) => Some(setting),
        Origin::Default | Origin::Environment | Origin::CommandLine => None,
    };
    json!({
        "key": row.key,
        "value": row.value,
        "from": row.origin.name(),
        "file": place.map(|setting| setting.path.display().to_string()),
        "line": place.map(|setting| setting.line),
    })
}
