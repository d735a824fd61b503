//! Converts JSON descriptions of tasks, which programs send, into templates.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hq_core::bound::{LimitUse, Rate, SubmitLimits};
use hq_core::template::{ByteText, CrashLimit, StdioSpec, TaskTemplate};
use serde::Deserialize;

use crate::args::submit::{PinArg, RequestOptions, TaskOptions};
use crate::error::{Caused as _, CliError, CliResult};
use crate::parse::file_value;
use crate::parse::learn::TimeRequest;
use crate::parse::request::{ResourceArg, parse_named_request};
use crate::parse::retry::parse_retry_grow;
use crate::submit::build::{Needs, Paths, assemble, limits};

/// A description that tasks share.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TemplateSpec {
    args: Vec<String>,
    env: BTreeMap<String, String>,
    cwd: Option<String>,
    stdout: Option<StdioText>,
    stderr: Option<StdioText>,
    task_dir: bool,
    pin: bool,
    time_limit: Option<f64>,
    priority: i32,
    crash_limit: Option<CrashText>,
    retries: u16,
    retry_grow: Option<String>,
    /// The variants of the request.
    requests: Vec<RequestText>,
    is_call: bool,
    /// The limits of calls and programs of executors.
    limits: Option<LimitsSpec>,
}

/// Limits, as in a job file.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields, default)]
struct LimitsSpec {
    #[serde(deserialize_with = "file_value::limit_uses")]
    limit: Vec<LimitUse>,
    #[serde(deserialize_with = "file_value::running")]
    max_running: Option<u32>,
    #[serde(deserialize_with = "file_value::rate")]
    max_rate: Option<Rate>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct StdioText {
    path: String,
    #[serde(default)]
    remove_if_finished: bool,
}

#[derive(Deserialize, Debug)]
#[serde(untagged)]
enum CrashText {
    Max(u32),
    Word(String),
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields, default)]
struct RequestText {
    n_nodes: u32,
    resources: BTreeMap<String, String>,
    min_time: f64,
}

impl Default for RequestText {
    fn default() -> Self {
        Self {
            n_nodes: 0,
            resources: BTreeMap::from([("cpus".to_owned(), "1".to_owned())]),
            min_time: 0.0,
        }
    }
}

fn bytes(text: String) -> ByteText {
    text.into_bytes().into()
}

fn seconds(what: &str, value: f64) -> CliResult<Duration> {
    Duration::try_from_secs_f64(value).caused(format!("Invalid {what} of {value} seconds"))
}

fn stdio(text: Option<StdioText>) -> StdioSpec {
    match text {
        None => StdioSpec::None,
        Some(StdioText {
            path,
            remove_if_finished,
        }) => StdioSpec::File {
            path: bytes(path),
            remove_if_finished,
        },
    }
}

impl TemplateSpec {
    /// Takes the limits, which belong to a submit and not to its template.
    pub(super) fn take_limits(&mut self) -> CliResult<SubmitLimits> {
        let found = self.limits.take().unwrap_or_default();
        limits(found.limit, found.max_running, found.max_rate)
    }

    /// Builds the template. `stdin` is the standard input of its tasks.
    pub(super) fn build(self, stdin: Option<&[u8]>, submit_dir: &Path) -> CliResult<TaskTemplate> {
        if self.args.first().is_none_or(String::is_empty) {
            return Err(CliError::new("A task needs a program"));
        }
        if self.limits.is_some() {
            return Err(CliError::new("A job with dependencies has no limits"));
        }
        let paths = Paths {
            cwd: match self.cwd {
                Some(cwd) => bytes(cwd),
                None => submit_dir.as_os_str().as_bytes().into(),
            },
            stdout: stdio(self.stdout),
            stderr: stdio(self.stderr),
        };
        let requests = self.requests.into_iter().map(RequestText::build);
        let grow = self.retry_grow.as_deref().map(parse_retry_grow);
        let limit = self.time_limit.map(|limit| seconds("time limit", limit));
        let options = TaskOptions {
            command: self.args.into_iter().map(OsString::from).collect(),
            stdin: stdin.map(<[u8]>::to_vec),
            request: requests.collect::<CliResult<_>>()?,
            time_limit: limit.transpose()?,
            retry_grow: grow
                .transpose()
                .map_err(|error| CliError::new(format!("Invalid retry_grow: {error}")))?,
            retries: Some(self.retries).filter(|retries| *retries > 0),
            task_dir: self.task_dir,
            pin: self.pin.then_some(PinArg::Taskset),
            priority: Some(self.priority),
            ..TaskOptions::default()
        };
        let needs = Needs::of(&options, |text| CliError::new(text))?;
        let env = self.env.into_iter();
        Ok(TaskTemplate {
            env: env
                .map(|(name, value)| (bytes(name), bytes(value)))
                .collect(),
            crash_limit: self
                .crash_limit
                .map_or(Ok(CrashLimit::default()), CrashText::build)?,
            is_call: self.is_call,
            ..assemble(options, needs, paths)
        })
    }
}

impl CrashText {
    fn build(self) -> CliResult<CrashLimit> {
        match self {
            Self::Max(0) => Ok(CrashLimit::Unlimited),
            Self::Max(max) => Ok(CrashLimit::Max(max)),
            Self::Word(word) if word == "never-restart" => Ok(CrashLimit::NeverRestart),
            Self::Word(word) if word == "unlimited" => Ok(CrashLimit::Unlimited),
            Self::Word(word) => Err(CliError::new(format!(
                "Invalid crash limit `{word}`: expected a number, `never-restart` or `unlimited`"
            ))),
        }
    }
}

impl RequestText {
    fn build(self) -> CliResult<RequestOptions> {
        let parse = |(name, amount): (String, String)| {
            let entry = parse_named_request(&format!("{name}={amount}"));
            let entry = entry.map(ResourceArg::Amount);
            entry.map_err(|error| CliError::new(format!("Invalid request for {name}: {error}")))
        };
        let resources = self.resources.into_iter().filter(|_| self.n_nodes == 0);
        Ok(RequestOptions {
            n_nodes: self.n_nodes,
            resources: resources.map(parse).collect::<CliResult<_>>()?,
            time_request: Some(TimeRequest::Given(seconds("time request", self.min_time)?)),
            weight: None,
        })
    }
}

/// A template and the limits of its tasks.
type Limited = (Arc<TaskTemplate>, SubmitLimits);

/// The templates that the program has defined.
#[derive(Debug, Default)]
pub(super) struct Templates(Mutex<HashMap<u64, Limited>>);

impl Templates {
    pub(super) fn add(&self, name: u64, template: TaskTemplate, limits: SubmitLimits) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(name, (Arc::new(template), limits));
    }

    pub(super) fn get(&self, name: u64) -> Option<Limited> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&name).cloned()
    }
}
