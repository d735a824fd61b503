//! Templates, shared by the tasks of one submit, and the specification of a submit.
//!
//! A template is sent to a worker once; a task adds only its id, instance and entry. Paths are
//! bytes as the user gave them, placeholders included: the worker replaces placeholders that differ
//! per task.

use std::sync::Arc;
use std::time::Duration;

use crate::growth::MEMORY;
use crate::id::{InstanceId, JobId, TaskId};
use crate::params::{Params, fill};
use crate::range::IdArray;
use crate::resource::request::RequestVariants;
use crate::retry::{RetrySpec, StopSpec};
use crate::sizing::LearnSpec;
pub use crate::texts::{ByteText, Entries};

/// Where a standard stream of a task goes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum StdioSpec {
    /// `/dev/null`.
    None,
    /// A file, relative to the working directory of the task.
    File {
        /// Path with placeholders.
        path: ByteText,
        /// Delete the file if the task finishes.
        remove_if_finished: bool,
    },
    /// Into the stream directory of the submit.
    Stream,
}

/// How cpus are bound to a task.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum PinMode {
    /// Not at all.
    #[default]
    None,
    /// Affinity mask.
    Taskset,
    /// OpenMP variables only.
    OpenMp,
}

/// How many lost workers a task survives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CrashLimit {
    /// Fails with the first loss of its worker, for any reason.
    NeverRestart,
    /// Fails after this many crashes of its worker; at least 1.
    Max(u32),
    /// Always restarts.
    Unlimited,
}

impl Default for CrashLimit {
    fn default() -> Self {
        Self::Max(5)
    }
}

/// Everything that the tasks of one submit share.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TaskTemplate {
    /// Program and arguments; never empty.
    pub args: Vec<ByteText>,
    /// Variables the user set, sorted by name, names unique.
    pub env: Vec<(ByteText, ByteText)>,
    /// Working directory, absolute or relative to the submit directory, with placeholders.
    pub cwd: ByteText,
    /// Standard output.
    pub stdout: StdioSpec,
    /// Standard error.
    pub stderr: StdioSpec,
    /// Bytes fed to standard input; `None` = `/dev/null`.
    pub stdin: Option<Arc<[u8]>>,
    /// Whether each task gets a private directory.
    pub task_dir: bool,
    /// Cpu binding.
    pub pin: PinMode,
    /// Longest run of an instance.
    pub time_limit: Option<Duration>,
    /// Larger runs first.
    pub priority: i32,
    /// Survived losses.
    pub crash_limit: CrashLimit,
    /// Resource request.
    pub requests: RequestVariants,
    /// How it is stopped.
    pub stop: StopSpec,
    /// Whether it is retried after a failure.
    pub retry: RetrySpec,
    /// Whether the program is an interpreter that executes the entries of tasks one after the
    /// other, and answers each with a value.
    pub is_call: bool,
    /// Parameters used in arguments and paths; only for arrays.
    pub params: Option<Arc<Params>>,
    /// Needs learned from finished tasks.
    pub learn: LearnSpec,
    /// Input and output files named by the user.
    pub files: TaskFiles,
    /// Whether a worker that can enforces its `mem` request as a limit.
    pub enforce_memory: bool,
    /// Name of its step in a job file, if the step is one task. Only for display.
    pub name: Option<Box<str>>,
    /// Whether `{}` in the arguments is replaced by the entry.
    pub entry_in_args: bool,
}

impl TaskTemplate {
    /// Whether it requests `mem` and enforces it.
    #[must_use]
    pub fn has_memory_limit(&self) -> bool {
        let asks = || {
            let mut variants = self.requests.as_slice().iter();
            variants.any(|variant| {
                variant
                    .entries
                    .iter()
                    .any(|entry| &*entry.resource == MEMORY)
            })
        };
        self.enforce_memory && (self.learn.memory.is_some() || asks())
    }

    /// Names and values that the arguments of a task are filled with; `entry` has the empty name:
    /// its placeholder is `{}`.
    #[must_use]
    pub fn arg_values(&self, task: TaskId, entry: Option<&[u8]>) -> Vec<(&str, ByteText)> {
        let params = self.params.as_deref();
        let mut values = params.map_or_else(Vec::new, |params| params.values(task));
        let entry = entry.filter(|_| self.entry_in_args);
        values.extend(entry.map(|entry| ("", entry.into())));
        values
    }

    /// The arguments of a task with these values.
    #[must_use]
    pub fn filled_args(&self, values: &[(&str, ByteText)]) -> Vec<ByteText> {
        let args = self.args.iter();
        args.map(|arg| fill(arg, values).into()).collect()
    }
}

/// Files that a task reads and writes: paths with placeholders, relative to the working directory.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct TaskFiles {
    /// Files that it reads.
    pub inputs: Vec<ByteText>,
    /// Output files. The record of completed work is stored next to the first one, see
    /// [`crate::done`].
    pub outputs: Vec<ByteText>,
    /// Whether a task that exits with 0 fails if an output is missing.
    pub must_exist: bool,
    /// Whether the record contains digests, so that files with other times may count as unchanged.
    pub by_content: bool,
}

impl TaskFiles {
    /// Whether the user named no files.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty() && self.outputs.is_empty()
    }
}

/// One task of a graph submit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GraphTask {
    /// Id inside the job.
    pub id: TaskId,
    /// Position in [`GraphSpec::templates`].
    pub template: u32,
    /// Ids of dependencies in the same submit; no duplicates.
    pub deps: Vec<TaskId>,
}

/// Tasks with dependencies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GraphSpec {
    /// Distinct templates.
    pub templates: Vec<Arc<TaskTemplate>>,
    /// The tasks, in any order.
    pub tasks: Vec<GraphTask>,
}

/// Ids of an array submit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ArrayIds {
    /// As given; new in the job.
    Given(IdArray),
    /// This many ids: from 0 in a new job, after the highest existing id in an open one.
    Next(u32),
}

/// Tasks that share one template.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArraySpec {
    /// Ids of the tasks.
    pub ids: ArrayIds,
    /// Entries in the order of the ids, one per id.
    pub entries: Option<Entries>,
    /// Template of the tasks.
    pub template: Arc<TaskTemplate>,
}

/// Body of a submit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SubmitBody {
    /// One template, many ids.
    Array(ArraySpec),
    /// Tasks with dependencies.
    Graph(GraphSpec),
}

impl SubmitBody {
    /// The different templates of its tasks.
    #[must_use]
    pub fn templates(&self) -> &[Arc<TaskTemplate>] {
        match self {
            Self::Array(array) => std::slice::from_ref(&array.template),
            Self::Graph(graph) => &graph.templates,
        }
    }

    /// Number of tasks with individual data.
    #[must_use]
    pub fn listed(&self) -> usize {
        match self {
            Self::Array(array) => array.entries.as_ref().map_or(0, Entries::len),
            Self::Graph(graph) => graph.tasks.len(),
        }
    }
}

/// Where the tasks of a submit go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SubmitTarget {
    /// A new, closed job.
    NewJob {
        /// Name shown to users.
        name: Box<str>,
        /// Tolerated number of failed tasks; `None` = all.
        max_fails: Option<u32>,
    },
    /// A new job that its own tasks can submit to; it closes when no task is left that could.
    SelfClosing {
        /// Name shown to users.
        name: Box<str>,
        /// Tolerated number of failed tasks; `None` = all.
        max_fails: Option<u32>,
        /// Limit of tasks over its lifetime; `None` = the number of ids.
        tasks_max: Option<u32>,
    },
    /// An open job.
    Attach(JobId),
}

/// The task that submits to its own job. A repetition by a later attempt adds nothing: submits are
/// recognized by key, otherwise by order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The submitting task, in the same job.
    pub task: TaskId,
    /// The attempt of it that submits.
    pub instance: InstanceId,
    /// A name that the task gave to this submit.
    pub key: Option<Box<str>>,
    /// Hash of the submit. Two submits with equal hashes count as equal.
    pub digest: u64,
}

/// Another job that the tasks of a submit wait for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct After {
    /// Id of the job.
    pub job: JobId,
    /// Whether each task waits for the task with its id; otherwise all wait for the end of the
    /// whole job.
    pub is_each: bool,
    /// Whether any outcome will do; otherwise the tasks are aborted unless it finishes.
    pub is_any: bool,
}

/// Event of a notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotifyEvent {
    /// The job has ended, in any way.
    End,
    /// Its first task has failed.
    Failure,
}

impl NotifyEvent {
    /// Its name for users and programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::End => "end",
            Self::Failure => "failure",
        }
    }
}

/// Recipient of a notification.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotifyTarget {
    /// A shell command, run on the server's machine.
    Command(Box<str>),
    /// An `http` or `https` URL that gets a POST request.
    Webhook(Box<str>),
}

/// A notification.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotifySpec {
    /// Recipient.
    pub target: NotifyTarget,
    /// Event that is reported.
    pub event: NotifyEvent,
}

/// A validated submit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubmitSpec {
    /// New or open job.
    pub target: SubmitTarget,
    /// Directory where the user submitted; absolute.
    pub submit_dir: ByteText,
    /// Stream directory with placeholders, if output is streamed.
    pub stream_dir: Option<ByteText>,
    /// Other jobs that the tasks wait for.
    pub after: Vec<After>,
    /// Notifications of its end or its first failure.
    pub notify: Vec<NotifySpec>,
    /// The submitting task, if it submits to its own job; `None` = a user, or another job.
    pub origin: Option<Origin>,
    /// Random number of the client that identifies a repetition, if it adds an array to an open
    /// job.
    pub nonce: Option<u64>,
    /// Probable mistakes found by the client, complete sentences; shown with the job.
    pub notes: Vec<Box<str>>,
    /// The tasks.
    pub body: SubmitBody,
}
