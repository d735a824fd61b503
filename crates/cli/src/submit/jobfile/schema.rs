//! The tables of a job file, whose keys become [`TaskOptions`].

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use hq_core::growth::GrowSpec;
use hq_core::range::IdArray;
use hq_core::template::CrashLimit;
use serde::Deserialize;
use serde::de::{Deserializer, Error};

use crate::args::submit::{PinArg, RequestOptions, TaskOptions, YesNo};
use crate::parse::file_value::{self, OwnAmount, Scalar, ScalarVisitor};
use crate::parse::request::ResourceArg;
use crate::parse::retry::RetryOn;
use crate::parse::value::{EnvPair, StdioArg};

/// Defines a table of a task, with its own keys and then the keys that become [`TaskOptions`]. The
/// function after `=` reads a value that serde cannot read.
///
/// In serde, `flatten` and `deny_unknown_fields` are mutually exclusive, so each table contains all
/// keys.
macro_rules! task_table {
    (
        $options:tt
        $($(#[$doc:meta])* $table:ident from $raw:ident $raw_name:literal $own:tt)*
    ) => {
        $(task_table!(@ $(#[$doc])* $table $raw $raw_name $own $options);)*
    };
    (
        @ $(#[$doc:meta])* $table:ident $raw:ident $raw_name:literal
        { $($own:ident: $own_type:ty $(= $own_with:literal)?,)* }
        { $($key:ident: $type:ty $(= $with:literal)?,)* }
    ) => {
        #[derive(Deserialize, Default)]
        #[serde(deny_unknown_fields, default)]
        struct $raw {
            $($(#[serde(deserialize_with = $own_with)])? $own: $own_type,)*
            #[serde(deserialize_with = "file_value::words")]
            command: Option<Vec<OsString>>,
            #[serde(deserialize_with = "file_value::shell_line")]
            shell: Option<String>,
            cpus: Option<OwnAmount<false>>,
            mem: Option<OwnAmount<true>>,
            $($(#[serde(deserialize_with = $with)])? $key: $type,)*
            #[serde(rename = "data_layer")]
            _data_layer: bool,
        }

        $(#[$doc])*
        #[derive(Deserialize)]
        #[serde(try_from = $raw_name)]
        pub(super) struct $table {
            $(pub(super) $own: $own_type,)*
            pub(super) options: TaskOptions,
        }

        impl TryFrom<$raw> for $table {
            type Error = &'static str;

            fn try_from(raw: $raw) -> Result<Self, Self::Error> {
                let options = TaskOptions {
                    command: one_command(raw.command, raw.shell)?,
                    resource: own_request(raw.cpus, raw.mem, &raw.request)?,
                    $($key: raw.$key,)*
                    ..TaskOptions::default()
                };
                Ok(Self { $($own: raw.$own,)* options })
            }
        }
    };
}

task_table! {
    {
        env: Vec<EnvPair> = "file_value::environment",
        cwd: Option<PathBuf> = "file_value::path",
        stdout: Option<StdioArg>,
        stderr: Option<StdioArg>,
        stdin: Option<Vec<u8>> = "file_value::bytes",
        pin: Option<PinArg> = "pin",
        task_dir: bool,
        time_limit: Option<Duration> = "file_value::duration",
        priority: Option<i32> = "file_value::priority",
        crash_limit: Option<CrashLimit> = "file_value::crash_limit",
        retries: Option<u16>,
        retry_on: Option<RetryOn> = "file_value::causes",
        retry_delay: Option<Duration> = "file_value::duration",
        retry_grow: Option<GrowSpec> = "file_value::growth",
        stop_signal: Option<i32> = "file_value::signal",
        stop_grace: Option<Duration> = "file_value::duration",
        predict: Option<u16> = "file_value::predict",
        inputs: Vec<PathBuf> = "file_value::paths",
        outputs: Vec<PathBuf> = "file_value::paths",
        check_outputs: bool,
        by_content: bool,
        enforce_memory: Option<YesNo> = "yes_no",
        request: Vec<RequestOptions>,
    }
    /// `[[task]]`.
    TaskTable from RawTask "RawTask" {
        id: Option<TaskKey>,
        deps: Vec<TaskKey>,
    }
    /// `[array]`.
    ArrayTable from RawArray "RawArray" {
        ids: Option<IdArray> = "file_value::ids",
        entries: Option<Vec<String>>,
        each_row: Option<PathBuf> = "file_value::path",
    }
}

/// Returns the command of a task from either of its two notations.
fn one_command(
    command: Option<Vec<OsString>>,
    shell: Option<String>,
) -> Result<Vec<OsString>, &'static str> {
    match (command, shell) {
        (Some(command), None) => Ok(command),
        (None, Some(line)) => Ok(vec!["sh".into(), "-c".into(), line.into()]),
        (None, None) => Err("missing field `command`"),
        (Some(_), Some(_)) => Err("`command` and `shell` both say what to run: keep one of them"),
    }
}

/// Returns the request that `cpus` and `mem` of the task itself form.
fn own_request(
    cpus: Option<OwnAmount<false>>,
    mem: Option<OwnAmount<true>>,
    requests: &[RequestOptions],
) -> Result<Vec<ResourceArg>, &'static str> {
    let amounts = cpus.map(|cpus| cpus.0).into_iter();
    let amounts: Vec<_> = amounts.chain(mem.map(|mem| mem.0)).collect();
    if !amounts.is_empty() && !requests.is_empty() {
        return Err(
            "`cpus` and `mem` at a task are its request: move them into `resources` of `request`",
        );
    }
    Ok(amounts)
}

/// Reads how a task is bound to its cpus.
fn pin<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PinArg>, D::Error> {
    match &*String::deserialize(deserializer)? {
        "none" => Ok(None),
        "taskset" => Ok(Some(PinArg::Taskset)),
        "omp" => Ok(Some(PinArg::Omp)),
        other => Err(D::Error::custom(format!(
            "expected `none`, `taskset` or `omp`, found `{other}`"
        ))),
    }
}

/// Reads a switch.
fn yes_no<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<YesNo>, D::Error> {
    let is_on = bool::deserialize(deserializer)?;
    Ok(Some(if is_on { YesNo::Yes } else { YesNo::No }))
}

/// The maximum length of a task's name in bytes.
const NAME_LEN_MAX: usize = 200;

/// The key that identifies a task within a file: its number or a name.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum TaskKey {
    /// The id of the task.
    Number(u32),
    /// A text with at least one letter, so that it cannot be a number.
    Name(Box<str>),
}

impl fmt::Display for TaskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => write!(f, "`{name}`"),
        }
    }
}

impl TaskKey {
    fn name(name: &str) -> Result<Self, String> {
        let wrong = if name.trim().parse::<u64>().is_ok() {
            format!(
                "the number of a task stands without quotes: write `{}`",
                name.trim()
            )
        } else if !name.chars().any(char::is_alphabetic) {
            format!("a name needs a letter, found `{}`", name.escape_debug())
        } else if name.chars().any(char::is_control) {
            format!(
                "a name is one line of plain text, found `{}`",
                name.escape_debug()
            )
        } else if name.len() > NAME_LEN_MAX {
            format!(
                "a name has at most {NAME_LEN_MAX} bytes, found {}",
                name.len()
            )
        } else {
            return Ok(Self::Name(name.into()));
        };
        Err(wrong)
    }
}

impl<'de> Deserialize<'de> for TaskKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The YAML parser reports no position of values of other types.
        let unexpected = |found: &dyn fmt::Display| {
            Err(format!(
                "expected a number from 0 to {} or a name, found `{found}`",
                u32::MAX
            ))
        };
        deserializer.deserialize_any(ScalarVisitor("a number or a name", |scalar: Scalar<'_>| {
            Some(match scalar {
                Scalar::Text(name) => Self::name(name),
                Scalar::Whole(number) => match u32::try_from(number) {
                    Ok(id) => Ok(Self::Number(id)),
                    Err(_) => unexpected(&number),
                },
                Scalar::Real(number) => unexpected(&number),
                Scalar::Switch(word) => unexpected(&word),
            })
        }))
    }
}
