//! Converts JSON descriptions of tasks, which programs send, into templates.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hq_core::resource::request::{RequestVariants, ResourceRequest};
use hq_core::retry::StopSpec;
use hq_core::sizing::LearnSpec;
use hq_core::template::{ByteText, CrashLimit, PinMode, StdioSpec, TaskFiles, TaskTemplate};
use serde::Deserialize;

use crate::error::{CliError, CliResult};
use crate::parse::request::parse_named_request;
use crate::parse::retry::parse_retry_grow;
use crate::submit::build::{build_grow, build_retry};

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
    Duration::try_from_secs_f64(value)
        .map_err(|error| CliError::caused(format!("Invalid {what} of {value} seconds"), &error))
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
    /// Builds the template. `stdin` is the standard input of its tasks.
    pub(super) fn build(self, stdin: Option<&[u8]>, submit_dir: &Path) -> CliResult<TaskTemplate> {
        if self.args.first().is_none_or(String::is_empty) {
            return Err(CliError::new("A task needs a program"));
        }
        let cwd = match self.cwd {
            Some(cwd) => cwd.into(),
            None => submit_dir.as_os_str().to_owned(),
        };
        let requests = self.requests.into_iter().map(RequestText::build);
        let requests = match requests.collect::<CliResult<Vec<_>>>()? {
            none if none.is_empty() => RequestVariants::default(),
            some => RequestVariants::new(some).map_err(|error| CliError::new(error.to_string()))?,
        };
        let time_limit = self
            .time_limit
            .map(|limit| seconds("time limit", limit))
            .transpose()?;
        let grow = self.retry_grow.as_deref().map(parse_retry_grow);
        let grow = grow
            .transpose()
            .map_err(|error| CliError::new(format!("Invalid retry_grow: {error}")))?;
        let retries = Some(self.retries).filter(|retries| *retries > 0);
        let grow = build_grow((grow, retries), &requests, time_limit)?;
        use std::os::unix::ffi::OsStringExt as _;
        Ok(TaskTemplate {
            args: self.args.into_iter().map(bytes).collect(),
            env: self
                .env
                .into_iter()
                .map(|(name, value)| (bytes(name), bytes(value)))
                .collect(),
            cwd: cwd.into_vec().into(),
            stdout: stdio(self.stdout),
            stderr: stdio(self.stderr),
            stdin: stdin.map(Arc::from),
            task_dir: self.task_dir,
            pin: if self.pin {
                PinMode::Taskset
            } else {
                PinMode::None
            },
            time_limit,
            priority: self.priority,
            crash_limit: match self.crash_limit {
                None => CrashLimit::default(),
                Some(CrashText::Max(0)) => CrashLimit::Unlimited,
                Some(CrashText::Max(max)) => CrashLimit::Max(max),
                Some(CrashText::Word(word)) if word == "never-restart" => CrashLimit::NeverRestart,
                Some(CrashText::Word(word)) if word == "unlimited" => CrashLimit::Unlimited,
                Some(CrashText::Word(word)) => {
                    return Err(CliError::new(format!(
                        "Invalid crash limit `{word}`: expected a number, `never-restart` or `unlimited`"
                    )));
                }
            },
            requests,
            stop: StopSpec::default(),
            retry: build_retry(retries, None, None, (grow, false)),
            is_call: self.is_call,
            learn: LearnSpec::default(),
            params: None,
            files: TaskFiles::default(),
            enforce_memory: true,
            name: None,
            entry_in_args: false,
        })
    }
}

impl RequestText {
    fn build(self) -> CliResult<ResourceRequest> {
        let parse = |(name, amount): (String, String)| {
            parse_named_request(&format!("{name}={amount}"))
                .map_err(|error| CliError::new(format!("Invalid request for {name}: {error}")))
        };
        let entries = if self.n_nodes > 0 {
            Vec::new()
        } else {
            let parsed: CliResult<Vec<_>> = self.resources.into_iter().map(parse).collect();
            parsed?
        };
        Ok(ResourceRequest {
            entries,
            n_nodes: self.n_nodes,
            min_time: seconds("time request", self.min_time)?,
            ..ResourceRequest::cpus(1)
        })
    }
}

/// The templates that the program has defined.
#[derive(Debug, Default)]
pub(super) struct Templates(Mutex<HashMap<u64, Arc<TaskTemplate>>>);

impl Templates {
    pub(super) fn add(&self, name: u64, template: TaskTemplate) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(name, Arc::new(template));
    }

    pub(super) fn get(&self, name: u64) -> Option<Arc<TaskTemplate>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&name).cloned()
    }
}
