//! Templates, which the tasks of one submission share, and the specification of a submission.
//!
//! A template is sent to a worker once, and a task adds only its id, instance and entry. Paths are
//! the bytes that the user gave, including placeholders. The worker replaces placeholders whose
//! values differ between tasks.

use std::sync::Arc;
use std::time::Duration;

use crate::bound::SubmitLimits;
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
    /// The output is discarded (`/dev/null`).
    None,
    /// The output goes to a file, relative to the working directory of the task.
    File {
        /// The path, with placeholders.
        path: ByteText,
        /// Whether to delete the file if the task finishes.
        remove_if_finished: bool,
    },
    /// The output goes to the stream directory of the submission.
    Stream,
}

/// How a task is bound to its cpus.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum PinMode {
    /// The task is not bound.
    #[default]
    None,
    /// The task is bound by an affinity mask.
    Taskset,
    /// The task is bound only by OpenMP variables.
    OpenMp,
}

/// How many worker losses a task survives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CrashLimit {
    /// The task fails at the first loss of its worker, for any reason.
    NeverRestart,
    /// The task fails after this many crashes of its worker, at least 1.
    Max(u32),
    /// The task always restarts.
    Unlimited,
}

impl Default for CrashLimit {
    fn default() -> Self {
        Self::Max(5)
    }
}

/// The properties that the tasks of one submission share.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TaskTemplate {
    /// The program and its arguments. Never empty.
    pub args: Vec<ByteText>,
    /// The environment variables that the user set, sorted by name. Names are unique.
    pub env: Vec<(ByteText, ByteText)>,
    /// The working directory with placeholders, absolute or relative to the submission directory.
    pub cwd: ByteText,
    /// The standard output.
    pub stdout: StdioSpec,
    /// The standard error.
    pub stderr: StdioSpec,
    /// The bytes for standard input. `None` means `/dev/null`.
    pub stdin: Option<Arc<[u8]>>,
    /// Whether each task gets a private directory.
    pub task_dir: bool,
    /// How the task is bound to its cpus.
    pub pin: PinMode,
    /// How long an instance may run.
    pub time_limit: Option<Duration>,
    /// The priority. Tasks with larger values run first.
    pub priority: i32,
    /// How many worker losses the task survives.
    pub crash_limit: CrashLimit,
    /// The resource request.
    pub requests: RequestVariants,
    /// How the task is stopped.
    pub stop: StopSpec,
    /// Whether and how the task is retried after a failure.
    pub retry: RetrySpec,
    /// Whether the program is an interpreter that executes the entries of tasks one after the
    /// other, and answers each of them with a value.
    pub is_call: bool,
    /// The parameters used in arguments and paths. Only for arrays.
    pub params: Option<Arc<Params>>,
    /// The requests that are learned from finished tasks.
    pub learn: LearnSpec,
    /// The input and output files that the user named.
    pub files: TaskFiles,
    /// Whether the `mem` request is enforced as a limit by workers that can do so.
    pub enforce_memory: bool,
    /// The name of the step in its job file, if the step is one task. Only for display.
    pub name: Option<Box<str>>,
    /// Whether `{}` in the arguments is replaced by the entry.
    pub entry_in_args: bool,
}

impl TaskTemplate {
    /// Returns whether the task requests `mem` and enforces it.
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

    /// Returns the names and values for a task's arguments. `entry` has the empty name, because its
    /// placeholder is `{}`.
    #[must_use]
    pub fn arg_values(&self, task: TaskId, entry: Option<&[u8]>) -> Vec<(&str, ByteText)> {
        let params = self.params.as_deref();
        let mut values = params.map_or_else(Vec::new, |params| params.values(task));
        let entry = entry.filter(|_| self.entry_in_args);
        values.extend(entry.map(|entry| ("", entry.into())));
        values
    }

    /// Returns the arguments of a task with these values.
    #[must_use]
    pub fn filled_args(&self, values: &[(&str, ByteText)]) -> Vec<ByteText> {
        let args = self.args.iter();
        args.map(|arg| fill(arg, values).into()).collect()
    }
}

/// The files that a task reads and writes: paths with placeholders, relative to the working
/// directory.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct TaskFiles {
    /// The files that the task reads.
    pub inputs: Vec<ByteText>,
    /// The files that the task writes. The record of completed work is stored next to the first
    /// one; see [`crate::done`].
    pub outputs: Vec<ByteText>,
    /// Whether a task that exits with 0 fails if an output is missing.
    pub must_exist: bool,
    /// Whether the record contains digests, so that files with different times can count as
    /// unchanged.
    pub by_content: bool,
}

impl TaskFiles {
    /// Returns whether the user named no files.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty() && self.outputs.is_empty()
    }
}

/// A task of a submitted graph.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GraphTask {
    /// The id in the job.
    pub id: TaskId,
    /// The position of its template in [`GraphSpec::templates`].
    pub template: u32,
    /// The ids of its dependencies in the same submission, without duplicates.
    pub deps: Vec<TaskId>,
}

/// Tasks with dependencies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GraphSpec {
    /// The distinct templates.
    pub templates: Vec<Arc<TaskTemplate>>,
    /// The tasks, in any order.
    pub tasks: Vec<GraphTask>,
}

/// The ids of a submitted array.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ArrayIds {
    /// The given ids, which are new in the job.
    Given(IdArray),
    /// This many ids, starting at 0 in a new job, or after the highest existing id in an open one.
    Next(u32),
}

/// Tasks that share one template.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArraySpec {
    /// The ids of the tasks.
    pub ids: ArrayIds,
    /// The entries, one per id and in the same order.
    pub entries: Option<Entries>,
    /// The template of the tasks.
    pub template: Arc<TaskTemplate>,
}

/// The body of a submission.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SubmitBody {
    /// Many tasks with one template.
    Array(ArraySpec),
    /// Tasks with dependencies.
    Graph(GraphSpec),
}

impl SubmitBody {
    /// Returns the distinct templates of the tasks.
    #[must_use]
    pub fn templates(&self) -> &[Arc<TaskTemplate>] {
        match self {
            Self::Array(array) => std::slice::from_ref(&array.template),
            Self::Graph(graph) => &graph.templates,
        }
    }

    /// Returns the number of tasks with individual data.
    #[must_use]
    pub fn listed(&self) -> usize {
        match self {
            Self::Array(array) => array.entries.as_ref().map_or(0, Entries::len),
            Self::Graph(graph) => graph.tasks.len(),
        }
    }
}

/// The job to which the tasks of a submission are added.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SubmitTarget {
    /// A new, closed job.
    NewJob {
        /// The name that users see.
        name: Box<str>,
        /// The number of tolerated failed tasks. `None` means that all may fail.
        max_fails: Option<u32>,
    },
    /// A new job to which its own tasks can submit. It closes when no task that could do so is
    /// left.
    SelfClosing {
        /// The name that users see.
        name: Box<str>,
        /// The number of tolerated failed tasks. `None` means that all may fail.
        max_fails: Option<u32>,
        /// The maximum number of tasks over the job's lifetime. `None` means the number of ids.
        tasks_max: Option<u32>,
    },
    /// An open job.
    Attach(JobId),
}

/// A task that submits to its own job. If a later attempt repeats a submission, no tasks are added.
/// Repetitions are recognized by the key, or otherwise by the content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The submitting task, in the same job.
    pub task: TaskId,
    /// The submitting attempt.
    pub instance: InstanceId,
    /// The name that the task gave to this submission.
    pub key: Option<Box<str>>,
    /// A hash of the submission. Two submissions with equal hashes count as equal.
    pub digest: u64,
}

/// Another job that the tasks of a submission wait for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct After {
    /// The id of the job.
    pub job: JobId,
    /// Whether each task waits for the task with the same id. Otherwise, all tasks wait until the
    /// whole job has ended.
    pub is_each: bool,
    /// Whether any outcome is accepted. Otherwise, the tasks are aborted unless the job or task
    /// finishes.
    pub is_any: bool,
}

/// The event of a notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotifyEvent {
    /// The job has ended, in any way.
    End,
    /// The first task has failed.
    Failure,
}

impl NotifyEvent {
    /// Returns the name for users and programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::End => "end",
            Self::Failure => "failure",
        }
    }
}

/// The target of a notification.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotifyTarget {
    /// A shell command that runs on the server's machine.
    Command(Box<str>),
    /// An `http` or `https` URL that receives a POST request.
    Webhook(Box<str>),
}

/// A notification.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotifySpec {
    /// The target.
    pub target: NotifyTarget,
    /// The event that is reported.
    pub event: NotifyEvent,
}

/// A validated submission.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubmitSpec {
    /// The new or open job.
    pub target: SubmitTarget,
    /// The absolute directory from which the user submitted.
    pub submit_dir: ByteText,
    /// The stream directory with placeholders, if output is streamed.
    pub stream_dir: Option<ByteText>,
    /// The other jobs that the tasks wait for.
    pub after: Vec<After>,
    /// The notifications about the job's end or first failure.
    pub notify: Vec<NotifySpec>,
    /// The submitting task, if it submits to its own job. `None` for a user or another job.
    pub origin: Option<Origin>,
    /// A random number that identifies repetitions by the client, if an array is added to an open
    /// job.
    pub nonce: Option<u64>,
    /// Possible mistakes that the client found, as complete sentences. Shown with the job.
    pub notes: Vec<Box<str>>,
    /// The limits on the tasks.
    pub limits: SubmitLimits,
    /// The tasks.
    pub body: SubmitBody,
}
