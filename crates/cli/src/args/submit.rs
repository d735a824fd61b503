//! `hq submit …`, and the options that describe tasks, which directives and `hq run` share.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use hq_core::bound::{LimitUse, Rate};
use hq_core::growth::GrowSpec;
use hq_core::template::{CrashLimit, NotifyEvent, NotifySpec, NotifyTarget, PinMode};
use serde::Deserialize;

use crate::parse::after::{AfterArg, parse_after};
use crate::parse::array::{ArrayArg, parse_array};
use crate::parse::duration::{parse_duration, parse_limit};
use crate::parse::file_value;
use crate::parse::learn::{TimeRequest, parse_share, parse_time_request};
use crate::parse::limit::{parse_limit_use, parse_rate, parse_running};
use crate::parse::notify::parse_notify_target;
use crate::parse::param::{ParamArg, parse_param};
use crate::parse::request::{RequestAmount, ResourceArg, parse_request, parse_resource_arg};
use crate::parse::retry::{RetryOn, parse_retry_grow, parse_retry_on, parse_signal};
use crate::parse::selector::{SingleSelector, parse_last_or_id};
use crate::parse::value::{
    EnvPair, StdioArg, parse_crash_limit, parse_env, parse_job_name, parse_stdio, parse_weight,
    path_parser,
};

/// Headings of options in the help.
pub(super) const TASKS: &str = "Tasks";
pub(super) const RESOURCES: &str = "Resources";
pub(super) const OUTPUT: &str = "Output";
const FAILURES: &str = "Failures";
const LIMITS: &str = "Limits";
const ORDER: &str = "Order";
const DONE_WORK: &str = "Finished work";
const OPEN_JOBS: &str = "Open jobs";
const WAITING: &str = "Waiting and notifications";

/// Properties of every task of a submit, from the command line, `#HQ` lines, settings or a job file.
/// No value has a default here, so that they can be merged.
#[derive(Args, Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct TaskOptions {
    /// The program and its arguments.
    #[arg(skip)]
    pub(crate) command: Vec<OsString>,

    /// The standard input of every task.
    #[arg(skip)]
    pub(crate) stdin: Option<Vec<u8>>,

    /// The variants of the request in a job file. If empty, other options describe the request.
    #[arg(skip)]
    pub(crate) request: Vec<RequestOptions>,

    /// Name of the job [default: name of the program; for a script ending in `.sh` its interpreter, such as `bash`]
    #[arg(help_heading = TASKS, long, value_name = "TEXT", value_parser = parse_job_name)]
    pub(crate) name: Option<String>,

    /// Create one task for each of these ids, such as `1-100` or `0-10:2,50`; HQ_TASK_ID contains the id
    ///
    /// `1-100%5` means `--array 1-100 --max-running 5`, as in Slurm.
    #[arg(help_heading = TASKS, long, value_name = "IDS", value_parser = parse_array)]
    pub(crate) array: Option<ArrayArg>,

    /// Create one task for each line of a file, also empty ones; HQ_ENTRY contains the line
    ///
    /// `-` reads the lines from standard input. Task ids start at 0, and --array selects lines. `hq run` also replaces
    /// `{}` in the command with the line, except for programs that use braces themselves, such as find, xargs, awk and jq:
    /// write `$HQ_ENTRY` there, inside a shell command.
    #[arg(help_heading = TASKS, long, value_name = "FILE", conflicts_with = "from_json", value_parser = path_parser())]
    pub(crate) each_line: Option<PathBuf>,

    /// The texts of --each-line end with NUL instead of line feeds, as `find -print0` writes them
    #[arg(help_heading = TASKS, long, requires = "each_line")]
    pub(crate) null: bool,

    /// Create one task for each row of a table; its columns are parameters, as with --param
    ///
    /// FILE is `.csv`, `.tsv` with a header line, or `.jsonl` or `.json` with an object for each row. For other names, and
    /// for `-`, which is standard input, the first line decides. hq replaces `{lr}` in arguments and paths with the value in
    /// the column `lr`, and sets HQ_PARAM_LR. Task ids start at 0, and --array selects rows. With --param, each row is
    /// combined with each value.
    #[arg(help_heading = TASKS, long, value_name = "FILE", conflicts_with_all = ["each_line", "from_json"], value_parser = path_parser())]
    pub(crate) each_row: Option<PathBuf>,

    /// Create one task for each item of a JSON array; HQ_ENTRY contains the item as JSON
    ///
    /// A text therefore keeps its quotes. `-` reads the array from standard input. Task ids start at 0, and --array selects
    /// items. `hq run` also replaces `{}` in the command with the item, as for --each-line.
    #[arg(help_heading = TASKS, long, value_name = "FILE", value_parser = path_parser())]
    pub(crate) from_json: Option<PathBuf>,

    /// Create one task for each combination of values, such as `lr=0.1,0.01` and `seed=1-100`; may be repeated
    ///
    /// hq replaces `{lr}` in arguments and paths with the value of the task, and sets HQ_PARAM_LR. Commas separate values;
    /// `1-100`, `0-1:0.25` and `10-1:-1` are ranges, `@FILE` means the lines of a file, and double quotes protect commas
    /// and ranges. A parameter that begins with `+` is paired value by value with the parameter before it:
    /// `--param size=1,2 --param +mem=4,8`. The last parameter changes fastest. Task ids start at 0, and --array selects
    /// combinations.
    #[arg(help_heading = TASKS, long, value_name = "NAME=VALUES", value_parser = raw(parse_param), conflicts_with_all = ["each_line", "from_json"])]
    pub(crate) param: Vec<ParamArg>,

    /// Cpus of each task, such as `4`, `"8 compact!"` or `all` [default: 1]
    ///
    /// A policy after the amount says how to choose cpus from several groups (NUMA nodes): `compact` takes as few groups
    /// as possible, and equally many cpus from each; `tight` fills one group after the other; `scatter` spreads.
    /// `compact!` and `tight!` wait for the fewest groups.
    #[arg(help_heading = RESOURCES, long, value_name = "AMOUNT", value_parser = parse_request, conflicts_with = "nodes")]
    pub(crate) cpus: Option<RequestAmount>,

    /// Another resource each task needs, such as `gpus/nvidia=1` or `mem=4G`; may be repeated
    ///
    /// Memory without a unit is MiB; K, M, G and T are powers of 1024. Fractions such as `gpus/nvidia=0.5` are possible.
    /// With `mem=auto` hq chooses the size. The first tasks get the worker's memory divided by the number of tasks that
    /// fit there by their cpus, or 4 GiB with `mem=auto:4G`. Later tasks get the size that wastes least. A task that runs
    /// out of memory is retried with more.
    #[arg(help_heading = RESOURCES, long, value_name = "NAME=AMOUNT", value_parser = parse_resource_arg)]
    pub(crate) resource: Vec<ResourceArg>,

    /// Kill tasks that use more memory than the `mem` they requested [default: yes]
    ///
    /// A task that requests no `mem` has no limit. A worker enforces the limit if it detected its own `mem`, or was
    /// started with `--enforce-memory`. See `hq doc resources`.
    #[arg(help_heading = RESOURCES, long, value_enum, value_name = "YES|NO", num_args = 0..=1, require_equals = true, default_missing_value = "yes",
          hide_possible_values = true)]
    pub(crate) enforce_memory: Option<YesNo>,

    /// Run each task on this many whole nodes of one group [default: tasks share nodes]
    ///
    /// The command starts on the first node; HQ_NODE_FILE lists all. Not with --cpus or --resource.
    #[arg(help_heading = RESOURCES, long, value_name = "COUNT", conflicts_with = "pin")]
    pub(crate) nodes: Option<u32>,

    /// Start tasks only on workers with at least this much time left, or `auto` [default: auto]
    ///
    /// `auto` is the time that most tasks of the array have taken so far, see --predict. hq starts to predict when ten
    /// tasks have ended, and ignores predictions below a second. No effect in `hq run`, whose worker has no time limit.
    #[arg(help_heading = RESOURCES, long, value_name = "DURATION", value_parser = parse_time_request)]
    pub(crate) time_request: Option<TimeRequest>,

    /// Share of the tasks that must fit into the time of `--time-request auto` [default: 0.95]
    ///
    /// No effect in `hq run`.
    #[arg(help_heading = RESOURCES, long, value_name = "SHARE", value_parser = parse_share)]
    pub(crate) predict: Option<u16>,

    /// Also start tasks on workers that will probably end before them
    ///
    /// No effect in `hq run`.
    #[arg(help_heading = RESOURCES, long, conflicts_with = "predict")]
    pub(crate) no_predict: bool,

    /// Stop each attempt of a task after this time, such as `90s`, `2h30m` or `01:30:00` [default: none]
    ///
    /// A plain number is seconds. The attempt gets --stop-signal and has failed; --retries allows further attempts.
    #[arg(help_heading = FAILURES, long, value_name = "DURATION", value_parser = parse_limit)]
    pub(crate) time_limit: Option<Duration>,

    /// Factor for the value of these tasks when hq chooses between tasks of equal priority [default: 1.0]
    ///
    /// It is a hint. Use --priority to determine an order.
    #[arg(help_heading = ORDER, long, value_name = "WEIGHT", value_parser = parse_weight)]
    pub(crate) weight: Option<u32>,

    /// Run tasks with a larger number first; write a negative number as --priority=-1 [default: 0]
    #[arg(help_heading = ORDER, long, value_name = "NUMBER")]
    pub(crate) priority: Option<i32>,

    /// Bind each task to its cpus [default: not bound]
    #[arg(help_heading = RESOURCES, long, value_enum, value_name = "MODE")]
    pub(crate) pin: Option<PinArg>,

    /// Working directory of the tasks, created if missing [default: the directory of the submit]
    ///
    /// It can contain the placeholders of --stdout except `%{CWD}`.
    #[arg(help_heading = TASKS, long, value_name = "PATH", value_parser = path_parser())]
    pub(crate) cwd: Option<PathBuf>,

    /// File for standard output: `none`, a path, or `PATH:rm-if-finished`
    ///
    /// `:rm-if-finished` deletes the file if the task succeeds. Relative paths start at the working directory of the task.
    /// Placeholders are `%{JOB_ID}`, `%{TASK_ID}`, `%{INSTANCE_ID}`, `%{CWD}`, `%{SUBMIT_DIR}` and `%{SERVER_UID}`. Both
    /// streams can go to one file. [default: %{CWD}/job-%{JOB_ID}/%{TASK_ID}.stdout; `hq run` writes no file, but prints
    /// the output]
    #[arg(help_heading = OUTPUT, long, value_name = "FILE", value_parser = raw(parse_stdio))]
    pub(crate) stdout: Option<StdioArg>,

    /// File for standard error, as for --stdout
    ///
    /// [default: %{CWD}/job-%{JOB_ID}/%{TASK_ID}.stderr; `hq run` prints it to standard error]
    #[arg(help_heading = OUTPUT, long, value_name = "FILE", value_parser = raw(parse_stdio))]
    pub(crate) stderr: Option<StdioArg>,

    /// Write the output of all tasks into a few files in this directory, instead of two files per task
    ///
    /// A relative path starts at the directory of the submit. `hq output-log DIR cat JOB stdout` and `hq job cat JOB stdout`
    /// print the output. With --stdout or --stderr, that stream goes to files of its own.
    #[arg(help_heading = OUTPUT, long, alias = "log", value_name = "DIR", value_parser = path_parser())]
    pub(crate) stream: Option<PathBuf>,

    /// Set an environment variable for the tasks; may be repeated
    ///
    /// `KEY` alone sets it to the empty text. With `hq submit`, tasks otherwise have the environment of their worker, not of
    /// your shell.
    #[arg(help_heading = TASKS, long, value_name = "KEY=VALUE", value_parser = raw(parse_env))]
    pub(crate) env: Vec<EnvPair>,

    /// Create a private directory for each task on the worker's local disk (HQ_TASK_DIR); remove it when the task ends
    #[arg(help_heading = TASKS, long)]
    pub(crate) task_dir: bool,

    /// Fail a task when this many of its workers have crashed; until then, restart it [default: 5]
    ///
    /// A number, `unlimited`, or `never-restart`: the task then fails when it loses its worker for any reason, even if you
    /// stop the worker. The restarts do not count as --retries.
    #[arg(help_heading = FAILURES, long, value_name = "LIMIT", value_parser = parse_crash_limit)]
    pub(crate) crash_limit: Option<CrashLimit>,

    /// Signal to send to the process group of a task at its time limit or when it is canceled: a name or number
    /// [default: SIGINT]
    #[arg(help_heading = FAILURES, long, value_name = "SIGNAL", value_parser = parse_signal)]
    pub(crate) stop_signal: Option<i32>,

    /// Time between --stop-signal and SIGKILL [default: 1s]
    #[arg(help_heading = FAILURES, long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) stop_grace: Option<Duration>,

    /// Retry a failed task up to this many times [default: 0]
    ///
    /// hq keeps the output of earlier attempts next to the output, as `0.stdout.attempt-0`. `hq run` prints it to standard
    /// error if it prints the output.
    #[arg(help_heading = FAILURES, long, value_name = "COUNT")]
    pub(crate) retries: Option<u16>,

    /// Failures to retry: `exit`, `signal`, `timeout`, `oom`, `start`, `lost`, exit codes such as
    /// `3,10-20`, names of signals [default: exit,signal,timeout,oom]
    ///
    /// Needs --retries, --retry-grow or `mem=auto`. `start` means that the program could not be started, `lost` that the
    /// worker was lost and --crash-limit allows no restart.
    #[arg(help_heading = FAILURES, long, value_name = "CAUSES", value_parser = parse_retry_on)]
    pub(crate) retry_on: Option<RetryOn>,

    /// Time to wait before the first retry; it doubles with each retry, up to 10 minutes [default: 1s]
    #[arg(help_heading = FAILURES, long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) retry_delay: Option<Duration>,

    /// Increase memory or time limit after a task ran out of it: `mem=2,time=1.5` [default: no increase]
    ///
    /// With these factors, a task that ran out of memory requests twice as much `mem` in its next attempt. A task that
    /// reached its time limit gets one and a half times the time limit and time request. Both are bounded by the largest
    /// worker or allocation that could run the task, and by `max` after a factor: `mem=2,max=64GiB,time=1.5,max=1d`. Other
    /// failures increase nothing. Without --retries, hq retries three times in all, after failures with a factor and those
    /// that you list in --retry-on.
    #[arg(help_heading = FAILURES, long, value_name = "FACTORS", value_parser = parse_retry_grow)]
    pub(crate) retry_grow: Option<GrowSpec>,

    /// Abort all other tasks, also running ones, when more than this many have failed [default: never]
    #[arg(help_heading = FAILURES, long, value_name = "COUNT")]
    pub(crate) max_fails: Option<u32>,

    /// Count each task toward this limit of the server, and wait for its turn; may be repeated
    ///
    /// `hq limit set db 10` sets the limit `db`. With `db=2` each task counts twice.
    #[arg(help_heading = LIMITS, long, value_name = "NAME[=AMOUNT]", value_parser = parse_limit_use)]
    pub(crate) limit: Vec<LimitUse>,

    /// Run at most this many tasks of the job at the same time [default: no limit]
    ///
    /// In an open job, the latest submit with this option decides for all tasks of the job.
    #[arg(help_heading = LIMITS, long, value_name = "COUNT", value_parser = parse_running)]
    pub(crate) max_running: Option<u32>,

    /// Start at most this many tasks of the job in a period: `20/s`, `100/min` or `50/h` [default: no limit]
    ///
    /// After a pause, the starts of one second may happen at once.
    #[arg(help_heading = LIMITS, long, value_name = "RATE", value_parser = parse_rate)]
    pub(crate) max_rate: Option<Rate>,

    /// File that each task reads, such as `in/%{TASK_ID}.dat`; may be repeated
    ///
    /// hq neither copies it nor waits for it: --skip-done uses it to detect changes. The path can contain placeholders and
    /// parameters. It is relative to the working directory of the task.
    #[arg(help_heading = DONE_WORK, long, value_name = "PATH", value_parser = path_parser())]
    pub(crate) inputs: Vec<PathBuf>,

    /// File that each task writes; may be repeated
    ///
    /// When a task has finished and all its inputs and outputs exist, the worker writes a record next to the first output,
    /// `.NAME.hq-done`, which --skip-done reads.
    #[arg(help_heading = DONE_WORK, long, value_name = "PATH", value_parser = path_parser())]
    pub(crate) outputs: Vec<PathBuf>,

    /// Fail tasks that exit with 0 while one of their --outputs does not exist
    #[arg(help_heading = DONE_WORK, long)]
    pub(crate) check_outputs: bool,

    /// Compare files by content: a new modification time with the same content is no change
    ///
    /// The submit that makes the outputs and the one that compares them both need this option. The worker hashes inputs and
    /// outputs when a task has finished, for at most 30 s. Files that it has not hashed by then are compared by
    /// modification time.
    #[arg(help_heading = DONE_WORK, long)]
    pub(crate) by_content: bool,

    /// Leave out tasks that hq has finished before, if their inputs, outputs and command are unchanged since
    ///
    /// The command includes --env, --stdin, parameters and the working directory, but not the content of the program file.
    /// Outputs that were made without hq, or without --outputs, do not count. The new job contains only the other tasks. A task also runs if one of its dependencies has to run,
    /// or if it waits for a job that has not ended. If no task is left, the job has no tasks and is finished. `--dry-run`
    /// lists the tasks that would run, and why.
    #[arg(help_heading = DONE_WORK, long)]
    pub(crate) skip_done: bool,
}

/// Defines how options are combined: the first that is set, or both lists. The compiler refuses a
/// table that lacks an option.
macro_rules! combine {
    (
        $base:tt $extra:ident
        either: $($either:ident)*; before: $($before:ident)*; after: $($after:ident)*;
        not: $($other:ident)*;
    ) => {
        let TaskOptions { $($either,)* $($before,)* $($after,)* $($other: _,)* } = $extra;
        $($base.$either.combine($either);)*
        $($base.$before.splice(0..0, $before);)*
        $($base.$after.extend($after);)*
    };
}

trait Combine {
    /// Keeps a value that is set, and otherwise takes the other.
    fn combine(&mut self, extra: Self);
}

impl<T> Combine for Option<T> {
    fn combine(&mut self, extra: Self) {
        *self = self.take().or(extra);
    }
}

impl Combine for bool {
    fn combine(&mut self, extra: Self) {
        *self |= extra;
    }
}

impl TaskOptions {
    /// Adds options with a lower precedence. Parameters and what a job file adds are left out.
    pub(crate) fn combine(&mut self, mut extra: Self) {
        // Each of these options sets the limit of running tasks.
        if self.max_running.is_some() {
            extra.array = extra.array.map(|array| array.ids.into());
        }
        if self
            .array
            .as_ref()
            .is_some_and(|array| array.max_running.is_some())
        {
            extra.max_running = None;
        }
        combine! { self extra
            either: name array each_line null each_row from_json cpus enforce_memory nodes time_request predict
                no_predict time_limit weight priority pin cwd stdout stderr stream task_dir
                crash_limit stop_signal stop_grace retries retry_on retry_delay retry_grow max_fails
                max_running max_rate
                check_outputs by_content skip_done;
            // The record is stored next to the first output, so the script's outputs come first.
            before: env outputs;
            after: resource inputs limit;
            not: param command stdin request;
        }
    }
}

/// A variant of what each task requests.
#[derive(Deserialize, Clone, PartialEq, Eq, Hash, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RequestOptions {
    /// The number of whole nodes.
    pub(crate) n_nodes: u32,
    /// How much time workers must have left.
    #[serde(deserialize_with = "file_value::time_request")]
    pub(crate) time_request: Option<TimeRequest>,
    /// The weight in units of 1/10 000.
    #[serde(deserialize_with = "file_value::weight")]
    pub(crate) weight: Option<u32>,
    /// The amounts.
    #[serde(deserialize_with = "file_value::resources")]
    pub(crate) resources: Vec<ResourceArg>,
}

/// Returns the parser of a value that need not be UTF-8.
fn raw<T: Clone + Send + Sync + 'static>(
    parse: fn(&OsStr) -> Result<T, String>,
) -> impl TypedValueParser<Value = T> {
    OsStringValueParser::new().try_map(move |text| parse(&text))
}

/// Value of an option that can be turned off.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum YesNo {
    /// Enable
    #[value(alias = "true")]
    Yes,
    /// Disable
    #[value(alias = "false")]
    No,
}

/// How cpus are bound to a task.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum PinArg {
    /// By an affinity mask
    Taskset,
    /// By OpenMP variables
    Omp,
}

impl From<PinArg> for PinMode {
    fn from(pin: PinArg) -> Self {
        match pin {
            PinArg::Taskset => Self::Taskset,
            PinArg::Omp => Self::OpenMp,
        }
    }
}

/// Where directives are looked for.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum DirectivesMode {
    /// In the file that the first word names, if it ends in `.sh`; `bash job.sh` is not searched
    #[default]
    Auto,
    /// In the file that the first word names
    File,
    /// In the standard input that --stdin reads
    Stdin,
    /// Nowhere
    Off,
}

/// Notifications about a job.
#[derive(Args, Debug, Default)]
pub(crate) struct NotifyArgs {
    /// Notify when the job ends or fails: run `cmd:COMMAND`, or send a POST request to a URL; may be repeated
    ///
    /// The server runs COMMAND in a shell on its own machine. Both get the same JSON, on standard input or as the body of
    /// the request: id, name, state and counts of the job, and a failed task. The server retries a failed notification four
    /// times within about six minutes.
    #[arg(help_heading = WAITING, long, value_name = "TARGET", value_parser = parse_notify_target)]
    pub(crate) notify: Vec<NotifyTarget>,

    /// When to notify: at the `end` of the job, at its first `failure`, or `end,failure` for both [default: end]
    #[arg(help_heading = WAITING,
        long,
        value_enum,
        value_name = "EVENTS",
        value_delimiter = ',',
        requires = "notify"
    )]
    pub(crate) notify_on: Vec<NotifyOn>,
}

/// Event of a notification.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotifyOn {
    /// The job has ended, in any way
    End,
    /// A task of the job has failed, for the first time
    Failure,
}

impl NotifyArgs {
    /// Returns each combination of a target and an event.
    pub(crate) fn specs(&self) -> Vec<NotifySpec> {
        let events = if self.notify_on.is_empty() {
            &[NotifyOn::End][..]
        } else {
            &self.notify_on
        };
        let mut specs = Vec::new();
        for target in &self.notify {
            for event in events {
                let spec = NotifySpec {
                    target: target.clone(),
                    event: match event {
                        NotifyOn::End => NotifyEvent::End,
                        NotifyOn::Failure => NotifyEvent::Failure,
                    },
                };
                if !specs.contains(&spec) {
                    specs.push(spec);
                }
            }
        }
        specs
    }
}

/// Jobs that get tasks from their own tasks.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct OwnTasksArgs {
    /// Let others, above all its own tasks, add tasks to the new job (`--job $HQ_JOB_ID`); it closes when no task is left
    #[arg(help_heading = OPEN_JOBS, long, conflicts_with = "job")]
    pub(crate) open: bool,

    /// With --open: maximum number of tasks in the job [default: no limit]
    #[arg(help_heading = OPEN_JOBS, long, value_name = "COUNT", requires = "open")]
    pub(crate) max_tasks: Option<u32>,

    /// In a task, for its own job: submit only once under this name, in this or an earlier attempt of the task
    ///
    /// hq ignores later submits under the same name, even with different content. Without the option, a later attempt must
    /// first repeat the submits of earlier attempts exactly, in any order: hq ignores these, and until then refuses others.
    #[arg(help_heading = OPEN_JOBS, long, value_name = "NAME", requires = "job")]
    pub(crate) once: Option<String>,
}

/// The destination of the tasks of a submit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Destination {
    /// Add them to this open job.
    pub(crate) attach: Option<u32>,
    /// Otherwise create a job. Says whether its own tasks can add tasks to it.
    pub(crate) is_open: bool,
    /// The maximum number of tasks in that job.
    pub(crate) tasks_max: Option<u32>,
}

impl OwnTasksArgs {
    /// Combines these options with the option --job.
    pub(crate) const fn place(&self, job: Option<u32>) -> Destination {
        Destination {
            attach: job,
            is_open: self.open,
            tasks_max: self.max_tasks,
        }
    }
}

/// Whether a command stays until its jobs have ended.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct FollowArgs {
    /// Wait until the new jobs have ended; exit with 0 even if tasks failed, unless `--wait=ok`
    #[arg(help_heading = WAITING,
        long,
        value_enum,
        value_name = "UNTIL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "end",
        conflicts_with = "progress"
    )]
    pub(crate) wait: Option<WaitFor>,

    /// Wait until the new jobs have ended, and show their progress; exit with 0 even if tasks failed
    ///
    /// Not with --wait. `hq job wait --ok` then tells the result.
    #[arg(help_heading = WAITING, long)]
    pub(crate) progress: bool,
}

/// Aim of a wait.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitFor {
    /// All jobs have ended
    End,
    /// All jobs have ended; exit with 1 unless every task finished
    Ok,
}

/// Options of `submit`.
#[derive(Args, Debug)]
#[command(after_long_help = super::examples::SUBMIT)]
pub(crate) struct SubmitArgs {
    #[command(flatten)]
    pub(crate) tasks: TaskOptions,

    /// Read standard input to its end, and pass it to every task
    #[arg(help_heading = TASKS, long)]
    pub(crate) stdin: bool,

    /// Add the tasks to this open job [default: create a job]
    ///
    /// Without --array, their ids continue after the highest id of the job. With --array, the job must not have these ids
    /// yet.
    #[arg(help_heading = OPEN_JOBS, long, value_name = "ID")]
    pub(crate) job: Option<u32>,

    #[command(flatten)]
    pub(crate) own: OwnTasksArgs,

    /// Start no task before this job has finished; may be repeated
    ///
    /// JOB is an id or `last`. With `JOB` or `JOB:ok` the new tasks are aborted unless every task of that job finishes.
    /// With `JOB:any` they start however it ends.
    #[arg(help_heading = ORDER, long, value_name = "JOB[:ok|any]", value_delimiter = ',', value_parser = parse_after)]
    pub(crate) after: Vec<AfterArg>,

    /// Start each task when the task with the same id in this job has finished; with `:any`, when it has ended
    ///
    /// If that task does not finish, only this one is aborted. Without --array, --each-line, --each-row,
    /// --from-json and --param, hq creates one task for each task of that job.
    #[arg(help_heading = ORDER, long, value_name = "JOB[:ok|any]", value_parser = parse_after)]
    pub(crate) after_each: Option<AfterArg>,

    /// With `--resource mem=auto`: start with the memory that the tasks of this job needed; an id or `last`
    #[arg(help_heading = RESOURCES, long, value_name = "JOB", value_parser = parse_last_or_id)]
    pub(crate) learn_from: Option<SingleSelector>,

    #[command(flatten)]
    pub(crate) follow: FollowArgs,

    /// With --wait or --progress: run this program here for each message of a task (`hq task notify`)
    ///
    /// The message is its last argument, and in HQ_NOTIFY_MESSAGE.
    #[arg(help_heading = WAITING, long, value_name = "PROGRAM", requires = "FollowArgs")]
    pub(crate) on_notify: Option<String>,

    #[command(flatten)]
    pub(crate) notify: NotifyArgs,

    /// Show what would be submitted, and submit nothing; works without a server
    ///
    /// Prints the number of tasks, their requests, command and paths of the first and last task, and the workers that
    /// could run them.
    #[arg(long, conflicts_with_all = ["wait", "progress"])]
    pub(crate) dry_run: bool,

    /// Where to look for `#HQ` lines with options; the command line takes precedence [default: auto]
    #[arg(long, value_enum, value_name = "MODE", default_value_t = DirectivesMode::Auto, hide_default_value = true)]
    pub(crate) directives: DirectivesMode,

    /// Program of the tasks and its arguments, after the options of hq; no shell interprets them. A single `-` reads
    /// submits from standard input, one JSON object per line, see `hq doc many-jobs`
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}
