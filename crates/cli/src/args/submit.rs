//! `hq submit …`, and the options that describe tasks, which directives and `hq run` share.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use hq_core::growth::GrowSpec;
use hq_core::range::IdArray;
use hq_core::template::{CrashLimit, NotifyEvent, NotifySpec, NotifyTarget, PinMode};

use crate::parse::after::{AfterArg, parse_after};
use crate::parse::array::parse_id_array;
use crate::parse::duration::{parse_duration, parse_limit};
use crate::parse::learn::{TimeRequest, parse_share, parse_time_request};
use crate::parse::notify::parse_notify_target;
use crate::parse::param::{ParamArg, parse_param};
use crate::parse::request::{RequestAmount, ResourceArg, parse_request, parse_resource_arg};
use crate::parse::retry::{RetryOn, parse_retry_grow, parse_retry_on, parse_signal};
use crate::parse::selector::{SingleSelector, parse_last_or_id};
use crate::parse::value::{
    EnvPair, StdioArg, parse_crash_limit, parse_env, parse_job_name, parse_stdio, parse_weight,
    path_parser,
};

/// What every task of a submit is like. No value has a default here, so that directives of a script
/// can be merged with the command line.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TaskOptions {
    /// Name of the job [default: file name of the command]
    #[arg(long, value_name = "TEXT", value_parser = parse_job_name)]
    pub(crate) name: Option<String>,

    /// One task for each of these ids, such as `1-100` or `0-10:2,50`
    #[arg(long, value_name = "IDS", value_parser = parse_id_array)]
    pub(crate) array: Option<IdArray>,

    /// One task for each line of a file; the task finds its line in HQ_ENTRY
    #[arg(long, value_name = "FILE", conflicts_with = "from_json", value_parser = path_parser())]
    pub(crate) each_line: Option<PathBuf>,

    /// One task for each item of a JSON array; the task finds its item in HQ_ENTRY
    #[arg(long, value_name = "FILE", value_parser = path_parser())]
    pub(crate) from_json: Option<PathBuf>,

    /// One task for each combination of values, such as `lr=0.1,0.01` and `seed=1-100`; may be repeated
    ///
    /// `{lr}` in arguments and in paths becomes the value of the task, which is also in HQ_PARAM_LR. Values stand between
    /// commas; `1-100`, `0-1:0.25` and `10-1:-1` are ranges, `@FILE` stands for the lines of a file, and what is in double
    /// quotes is one text. With `+` in front a parameter does not make combinations but goes along with the one before:
    /// `--param size=1,2 --param +mem=4,8`. The last parameter changes fastest.
    #[arg(long, value_name = "NAME=VALUES", value_parser = param_parser(), conflicts_with_all = ["each_line", "from_json"])]
    pub(crate) param: Vec<ParamArg>,

    /// Cpus of each task, such as `4`, `"8 compact!"` or `all` [default: 1]
    ///
    /// After the amount may come how cpus of several groups (NUMA nodes) are chosen: `compact`,
    /// `compact!`, `tight`, `tight!` or `scatter`.
    #[arg(long, value_name = "AMOUNT", value_parser = parse_request, conflicts_with = "nodes")]
    pub(crate) cpus: Option<RequestAmount>,

    /// Another resource each task needs, such as `gpus/nvidia=1` or `mem=2048`; may be repeated
    ///
    /// `mem=auto` gives the first tasks of an array their share of a worker's memory, or with `mem=auto:4G` that much, and later ones
    /// as much as it takes least memory times time if those that need more run again with more.
    #[arg(long, value_name = "NAME=AMOUNT", value_parser = parse_resource_arg)]
    pub(crate) resource: Vec<ResourceArg>,

    /// Whether tasks that use more memory than the `mem` that they ask for are ended [default: yes]
    ///
    /// Workers enforce it if they detected their own `mem`, or were started with `--enforce-memory`. `hq doc resources` says what
    /// counts as used.
    #[arg(long, value_enum, value_name = "YES|NO", num_args = 0..=1, require_equals = true, default_missing_value = "yes",
          hide_possible_values = true)]
    pub(crate) enforce_memory: Option<YesNo>,

    /// Run each task on this many whole nodes; 0 means a share of one node [default: 0]
    #[arg(long, value_name = "COUNT", conflicts_with = "pin")]
    pub(crate) nodes: Option<u32>,

    /// Start tasks only on workers that will live at least this long, or `auto` [default: auto]
    ///
    /// `auto` is the time within which most tasks of the array have ended so far (--predict); it is not asked for before ten of
    /// them have ended, and not if it is less than a second.
    #[arg(long, value_name = "DURATION", value_parser = parse_time_request)]
    pub(crate) time_request: Option<TimeRequest>,

    /// Share of the tasks that `--time-request auto` is enough for [default: 0.95]
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub(crate) predict: Option<u16>,

    /// Start tasks also on workers that will end before most of them would
    #[arg(long, conflicts_with = "predict")]
    pub(crate) no_predict: bool,

    /// Kill a task, which then counts as failed, after this time [default: none]
    #[arg(long, value_name = "DURATION", value_parser = parse_limit)]
    pub(crate) time_limit: Option<Duration>,

    /// How much these tasks count when the scheduler weighs alternatives [default: 1.0]
    #[arg(long, value_name = "WEIGHT", value_parser = parse_weight)]
    pub(crate) weight: Option<u32>,

    /// Tasks with a larger number run first; write negative numbers as --priority=-1 [default: 0]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) priority: Option<i32>,

    /// Bind each task to its cpus [default: not bound]
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) pin: Option<PinArg>,

    /// Working directory of the tasks [default: %{SUBMIT_DIR}]
    #[arg(long, value_name = "PATH", value_parser = path_parser())]
    pub(crate) cwd: Option<PathBuf>,

    /// File for standard output: `none`, a path, or `PATH:rm-if-finished`
    ///
    /// With `:rm-if-finished` the file is deleted if the task succeeds. Relative paths start at the
    /// working directory of the task. [default: %{CWD}/job-%{JOB_ID}/%{TASK_ID}.stdout; `hq run` prints it]
    #[arg(long, value_name = "FILE", value_parser = stdio_parser())]
    pub(crate) stdout: Option<StdioArg>,

    /// File for standard error, as for --stdout
    ///
    /// [default: %{CWD}/job-%{JOB_ID}/%{TASK_ID}.stderr]
    #[arg(long, value_name = "FILE", value_parser = stdio_parser())]
    pub(crate) stderr: Option<StdioArg>,

    /// Collect the output of all tasks in this directory instead of two files per task
    #[arg(long, alias = "log", value_name = "DIR", value_parser = path_parser())]
    pub(crate) stream: Option<PathBuf>,

    /// Set an environment variable for the tasks; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = env_parser())]
    pub(crate) env: Vec<EnvPair>,

    /// Give each task a private directory (HQ_TASK_DIR) that is removed when the task ends
    #[arg(long)]
    pub(crate) task_dir: bool,

    /// How many times a task may lose its worker to a crash before it fails [default: 5]
    ///
    /// A number, `never-restart`, or `unlimited`.
    #[arg(long, value_name = "LIMIT", value_parser = parse_crash_limit)]
    pub(crate) crash_limit: Option<CrashLimit>,

    /// Signal that tells a task to end, at its time limit or a cancel [default: SIGINT]
    #[arg(long, value_name = "SIGNAL", value_parser = parse_signal)]
    pub(crate) stop_signal: Option<i32>,

    /// Time from that signal until the task is killed [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) stop_grace: Option<Duration>,

    /// Try a failed task again up to this many times [default: 0]
    ///
    /// What earlier attempts wrote is kept beside the output, as `0.stdout.attempt-0`; `hq run` prints it on standard error if
    /// it prints the output.
    #[arg(long, value_name = "COUNT")]
    pub(crate) retries: Option<u16>,

    /// After which failures: `exit`, `signal`, `timeout`, `oom`, `start`, `lost`, exit codes such as
    /// `3,10-20`, names of signals [default: exit,signal,timeout,oom]
    #[arg(long, value_name = "CAUSES", value_parser = parse_retry_on)]
    pub(crate) retry_on: Option<RetryOn>,

    /// Wait before the second attempt; doubles each time up to 10 minutes [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) retry_delay: Option<Duration>,

    /// Give an attempt more of what the one before ran out of: `mem=2,time=1.5` [default: as much as before]
    ///
    /// After an attempt that was out of memory the next one asks for twice as much of the resource `mem`; after one that reached
    /// its time limit, time limit and time request are one and a half times as long. Nothing grows beyond what the largest
    /// worker or allocation offers that could run the task, nor beyond a bound that stands behind a factor:
    /// `mem=2,max=64GiB,time=1.5,max=1d`. After other failures nothing grows. Without `--retries` there are three retries, after
    /// these failures only.
    #[arg(long, value_name = "FACTORS", value_parser = parse_retry_grow)]
    pub(crate) retry_grow: Option<GrowSpec>,

    /// Give up the rest of the job when more than this many tasks have failed [default: never]
    #[arg(long, value_name = "COUNT")]
    pub(crate) max_fails: Option<u32>,

    /// A file that each task reads, such as `in/%{TASK_ID}.dat`; may be repeated
    ///
    /// With placeholders and parameters, relative to the working directory of the task.
    #[arg(long, value_name = "PATH", value_parser = path_parser())]
    pub(crate) inputs: Vec<PathBuf>,

    /// A file that each task writes; may be repeated
    ///
    /// When a task has finished and its outputs are there, a record is kept beside the first one, as `.NAME.hq-done`.
    #[arg(long, value_name = "PATH", value_parser = path_parser())]
    pub(crate) outputs: Vec<PathBuf>,

    /// A task that exits with 0 and leaves one of its outputs missing has failed
    #[arg(long)]
    pub(crate) check_outputs: bool,

    /// Record contents of inputs and outputs, too: a file with another time and the same content has not changed
    ///
    /// The worker reads them when a task has finished, for at most 30 s; of what takes longer the time counts. Later submits with this option
    /// read those whose times differ.
    #[arg(long)]
    pub(crate) by_content: bool,

    /// Leave out tasks whose work is done: outputs are there, and inputs and command as they were when the task last finished
    ///
    /// What depends on a task that runs, or waits for a job that has not ended, runs. `--dry-run` says what runs, and why.
    #[arg(long)]
    pub(crate) skip_done: bool,
}

fn stdio_parser() -> impl TypedValueParser<Value = StdioArg> {
    OsStringValueParser::new().try_map(|text| parse_stdio(&text))
}

fn param_parser() -> impl TypedValueParser<Value = ParamArg> {
    OsStringValueParser::new().try_map(|text| parse_param(&text))
}

fn env_parser() -> impl TypedValueParser<Value = EnvPair> {
    OsStringValueParser::new().try_map(|text| parse_env(&text))
}

/// Value of an option that can be turned off.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum YesNo {
    /// Do it
    #[value(alias = "true")]
    Yes,
    /// Leave it
    #[value(alias = "false")]
    No,
}

/// How cpus are bound to a task.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
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
    /// In the command's file if its name ends in `.sh`
    #[default]
    Auto,
    /// In the command's file
    File,
    /// In what --stdin reads
    Stdin,
    /// Nowhere
    Off,
}

/// Who is told of a job by the server.
#[derive(Args, Debug, Default)]
pub(crate) struct NotifyArgs {
    /// Let the server tell of the job: `cmd:COMMAND`, or an address that gets a POST request; may be repeated
    ///
    /// COMMAND is a line for the shell, run on the machine of the server. Both get the same JSON: id, name, state and
    /// counts of the job and a failed task. What fails is tried again four times within six minutes.
    #[arg(long, value_name = "TARGET", value_parser = parse_notify_target)]
    pub(crate) notify: Vec<NotifyTarget>,

    /// Of what --notify tells: `end` of the job, its first `failure`, or both [default: end]
    #[arg(
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
    /// Its first task has failed
    Failure,
}

impl NotifyArgs {
    /// Each target with each event.
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
    /// Let the tasks of the new job add tasks to it with `--job $HQ_JOB_ID`; it closes by itself when all have ended
    #[arg(long, conflicts_with = "job")]
    pub(crate) open: bool,

    /// With --open: most tasks that the job may ever have [default: no limit]
    #[arg(long, value_name = "COUNT", requires = "open")]
    pub(crate) max_tasks: Option<u32>,

    /// In a task, for its own job: submit only if no attempt of the task has submitted under this name
    ///
    /// Without it a task that is tried again may make the same submits in the same order: what an earlier attempt has
    /// submitted is not submitted a second time.
    #[arg(long, value_name = "NAME", requires = "job")]
    pub(crate) once: Option<String>,
}

/// Where the tasks of a submit go.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Destination {
    /// An open job.
    pub(crate) attach: Option<u32>,
    /// Otherwise a new one, which its own tasks can add tasks to.
    pub(crate) is_open: bool,
    /// Most tasks of that.
    pub(crate) tasks_max: Option<u32>,
}

impl OwnTasksArgs {
    /// With the option --job.
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
    /// Block until the new jobs have ended; with `--wait=ok` exit with 1 unless every task finished
    #[arg(
        long,
        value_enum,
        value_name = "UNTIL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "end",
        conflicts_with = "progress"
    )]
    pub(crate) wait: Option<WaitFor>,

    /// Block until the new jobs have ended, and show their progress
    #[arg(long)]
    pub(crate) progress: bool,
}

/// Aim of a wait.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitFor {
    /// The end of the jobs, whatever it is
    End,
    /// Success: the exit code is 1 unless every task finished
    Ok,
}

/// Options of `submit`.
#[derive(Args, Debug)]
#[command(after_long_help = super::examples::SUBMIT)]
pub(crate) struct SubmitArgs {
    #[command(flatten)]
    pub(crate) tasks: TaskOptions,

    /// Read standard input to its end and give it to every task
    #[arg(long)]
    pub(crate) stdin: bool,

    /// Add the tasks to this open job [default: make a new job]
    #[arg(long, value_name = "ID")]
    pub(crate) job: Option<u32>,

    #[command(flatten)]
    pub(crate) own: OwnTasksArgs,

    /// Start no task before this job has ended; may be repeated
    ///
    /// `JOB`, which is an id or `last`, or `JOB:ok`: every task of it has to finish, otherwise the new
    /// tasks are aborted. With `JOB:any` it may end in any way.
    #[arg(long, value_name = "JOB[:ok|any]", value_delimiter = ',', value_parser = parse_after)]
    pub(crate) after: Vec<AfterArg>,

    /// Start each task as soon as the task with its id in this job has finished, or ended in any way
    ///
    /// Without --array, --each-line, --from-json and --param there is one task for each task of that job.
    #[arg(long, value_name = "JOB[:ok|any]", value_parser = parse_after)]
    pub(crate) after_each: Option<AfterArg>,

    /// With `--resource mem=auto`: begin with what the tasks of this job needed; an id or `last`
    #[arg(long, value_name = "JOB", value_parser = parse_last_or_id)]
    pub(crate) learn_from: Option<SingleSelector>,

    #[command(flatten)]
    pub(crate) follow: FollowArgs,

    /// With --wait or --progress: run this program for each notification of a task
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) on_notify: Option<String>,

    #[command(flatten)]
    pub(crate) notify: NotifyArgs,

    /// Show what would be submitted, and submit nothing; works without a server, too
    ///
    /// Number of tasks, what each asks for, command and paths of the first and the last one, and the workers that could run
    /// them.
    #[arg(long, conflicts_with_all = ["wait", "progress"])]
    pub(crate) dry_run: bool,

    /// Where to look for `#HQ` lines with more options [default: auto]
    #[arg(long, value_enum, value_name = "MODE", default_value_t = DirectivesMode::Auto, hide_default_value = true)]
    pub(crate) directives: DirectivesMode,

    /// Program and arguments of the tasks; no shell is involved. A lone `-` reads submissions from
    /// standard input, a JSON object per line
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}
