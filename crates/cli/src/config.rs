//! Reads the defaults of options from a user file and a site file, once at startup.
//!
//! The command line, `#HQ` lines and the environment override these settings. A key is a long
//! option without its dashes. The options of a command are in a table with the command's name. The
//! values become arguments of the command line, so that they have the same meaning and the same
//! validation.

mod read;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args as _, FromArgMatches as _};

use crate::args::global::GlobalArgs;
use crate::args::server::StartArgs as ServerStart;
use crate::args::submit::TaskOptions;
use crate::args::worker::StartArgs as WorkerStart;
use crate::args::{self, Cli};
use crate::error::{CliError, CliResult};
use crate::submit::directives;

/// Where settings may appear.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Section {
    /// At the top of the file: options of all commands.
    Global,
    /// `[submit]`: options of tasks, for `hq submit` and `hq run`.
    Submit,
    /// `[server.start]`.
    ServerStart,
    /// `[worker.start]`.
    WorkerStart,
}

impl Section {
    pub(crate) const ALL: [Self; 4] = [
        Self::Global,
        Self::Submit,
        Self::ServerStart,
        Self::WorkerStart,
    ];

    /// Returns the name in the file, or an empty text for the top of the file.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Global => "",
            Self::Submit => "submit",
            Self::ServerStart => "server.start",
            Self::WorkerStart => "worker.start",
        }
    }

    /// Returns the options that a file cannot set, because they request a single action.
    const fn excluded(self) -> &'static [&'static str] {
        match self {
            Self::Global => &["debug"],
            Self::Submit => &[
                "array",
                "each-line",
                "null",
                "each-row",
                "from-json",
                "param",
                "name",
            ],
            Self::ServerStart => &["background", "detached", "resume", "fresh"],
            Self::WorkerStart => &["background", "detached"],
        }
    }

    /// Returns a command line that has only the options of this section.
    fn command(self) -> clap::Command {
        let command = clap::Command::new("config").no_binary_name(true);
        match self {
            Self::Global => GlobalArgs::augment_args(command),
            Self::Submit => TaskOptions::augment_args(command),
            Self::ServerStart => ServerStart::augment_args(command),
            Self::WorkerStart => WorkerStart::augment_args(command),
        }
        .disable_help_flag(true)
    }
}

/// A setting in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Setting {
    pub(crate) section: Section,
    /// The long option without its dashes.
    pub(crate) key: String,
    /// The values as on the command line, one per occurrence. Empty for an option without a value.
    pub(crate) values: Vec<String>,
    pub(crate) path: PathBuf,
    /// The line number, starting from 1.
    pub(crate) line: usize,
}

impl Setting {
    /// Returns the key with the name of its table.
    pub(crate) fn full_key(&self) -> String {
        if self.section == Section::Global {
            return self.key.clone();
        }
        format!("{}.{}", self.section.name(), self.key)
    }

    /// Returns the setting as words of a command line.
    fn words(&self) -> Vec<OsString> {
        let key = &self.key;
        if self.values.is_empty() {
            return vec![format!("--{key}").into()];
        }
        let values = self.values.iter();
        values
            .map(|value| format!("--{key}={value}").into())
            .collect()
    }
}

/// All settings that apply.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Config {
    /// The possible files, lowest precedence first, and whether each exists.
    pub(crate) files: Vec<(PathBuf, bool)>,
    /// The settings, ordered by section and key.
    pub(crate) settings: Vec<Setting>,
}

static CONFIG: OnceLock<Config> = OnceLock::new();

/// Returns the settings of this process, or `None` before they were read.
pub(crate) fn current() -> Option<&'static Config> {
    CONFIG.get()
}

/// Reads the files, and adds the settings that the command line does not contain.
///
/// # Errors
///
/// Returns an error if a file is invalid.
pub(crate) fn apply(cli: Cli, words: Vec<OsString>) -> CliResult<Cli> {
    let config = read::all(&paths())?;
    let config = CONFIG.get_or_init(|| config);
    if config.settings.is_empty() {
        return Ok(cli);
    }
    Ok(config.complete(words).unwrap_or(cli))
}

/// Warns about a file that a variable names and that does not exist.
pub(crate) fn warn_about_missing_file() {
    let files = current().map_or(&[][..], |config| &config.files);
    let is_missing = |path: OsString| files.contains(&(path.into(), false));
    for name in ["HQ_SITE_CONFIG", "HQ_CONFIG"] {
        if std::env::var_os(name).is_some_and(is_missing) {
            tracing::warn!("the file in {name} does not exist; `{name}=/dev/null` means no file");
        }
    }
}

/// Returns the site's file, then the user's file, which has precedence.
fn paths() -> Vec<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let site = set("HQ_SITE_CONFIG").map_or_else(|| "/etc/hq/config.toml".into(), PathBuf::from);
    let below = |dir: OsString| Path::new(&dir).join("hq/config.toml");
    let user = set("HQ_CONFIG")
        .map(PathBuf::from)
        .or_else(|| set("XDG_CONFIG_HOME").map(below))
        .or_else(|| set("HOME").map(|home| Path::new(&home).join(".config/hq/config.toml")));
    [Some(site), user].into_iter().flatten().collect()
}

impl Config {
    fn of(&self, section: Section) -> impl Iterator<Item = &Setting> {
        let settings = self.settings.iter();
        settings.filter(move |setting| setting.section == section)
    }

    /// Returns the command line with the missing settings added, or `None` if nothing was missing.
    fn complete(&self, mut words: Vec<OsString>) -> Option<Cli> {
        let mut found = None;
        let parse = |words: &[OsString]| args::command().try_get_matches_from(words);
        for (section, setting) in self.settings.iter().map(|one| (one.section, one)) {
            let Ok(matches) = parse(&words) else {
                return found;
            };
            let (path, leaf) = leaf(&matches);
            let is_there = match section {
                Section::Global => true,
                Section::Submit => false,
                Section::ServerStart => path == ["server", "start"],
                Section::WorkerStart => path == ["worker", "start"],
            };
            if !is_there || is_said(leaf, &setting.key) {
                continue;
            }
            let mut more = words.clone();
            let at = match section {
                Section::Global => 1,
                // These commands end with options, except after `--`.
                Section::Submit | Section::ServerStart | Section::WorkerStart => {
                    let end = words.iter().position(|word| word == "--");
                    end.unwrap_or(words.len())
                }
            };
            more.splice(at..at, setting.words());
            // A default that conflicts with an option of the command line is ignored.
            match parse(&more) {
                Ok(matches) => {
                    found = Cli::from_arg_matches(&matches).ok();
                    words = more;
                }
                Err(error) if error.kind() == ErrorKind::ArgumentConflict => {}
                Err(_) => return found,
            }
        }
        found
    }

    /// Returns the task options that neither the command line nor a script sets.
    pub(crate) fn task_defaults(&self) -> CliResult<TaskOptions> {
        let words: Vec<OsString> = self.of(Section::Submit).flat_map(Setting::words).collect();
        let found = Section::Submit
            .command()
            .try_get_matches_from(words)
            .and_then(|mut matches| TaskOptions::from_arg_matches_mut(&mut matches));
        // Each setting was validated when it was read, so only combinations can be invalid.
        found.map_err(|error| {
            let text = read::reason(&error);
            CliError::new(format!(
                "The settings of [submit] cannot be combined: {text}"
            ))
            .with_help("`hq config` shows their origin")
        })
    }
}

/// Returns the settings of `[submit]` as words of a command line.
pub(crate) fn submit_words() -> Vec<String> {
    let settings = current()
        .into_iter()
        .flat_map(|config| config.of(Section::Submit));
    let words = settings.flat_map(Setting::words);
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect()
}

/// Adds defaults to the task options of a submit. `is_attached` marks tasks for an existing job.
pub(crate) fn complete_tasks(options: &mut TaskOptions, is_attached: bool) -> CliResult<()> {
    if let Some(config) = current().filter(|config| config.of(Section::Submit).next().is_some()) {
        directives::add_defaults(options, config.task_defaults()?, is_attached);
    }
    Ok(())
}

/// Returns the command that was typed, and its arguments.
fn leaf(matches: &ArgMatches) -> (Vec<&str>, &ArgMatches) {
    let (mut path, mut leaf) = (Vec::new(), matches);
    while let Some((name, more)) = leaf.subcommand() {
        path.push(name);
        leaf = more;
    }
    (path, leaf)
}

/// Returns whether the command line or the environment sets the option.
pub(crate) fn is_said(matches: &ArgMatches, key: &str) -> bool {
    let id = key.replace('-', "_");
    // The lookup would panic for an option that the command does not have.
    let is_known = matches.try_contains_id(&id).is_ok();
    is_known
        && matches!(
            matches.value_source(&id),
            Some(ValueSource::CommandLine | ValueSource::EnvVariable)
        )
}
