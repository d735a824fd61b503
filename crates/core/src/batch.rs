//! Batch systems: the description of one, and the parameters of a queue.
//!
//! A description is data: the commands to run, how to parse their output, the meaning of its state
//! words. A new batch system is a file. New parser code is only needed if its commands print a new
//! format. `docs/batch-systems.md` explains the entries. Other modules read files, convert messages
//! and run commands.

pub mod qstat;

use std::collections::BTreeMap;
use std::time::Duration;

/// Parameters of a queue.
#[derive(Clone, PartialEq, Debug)]
pub struct QueueParams {
    /// The batch system.
    pub system: SystemSpec,
    /// Prefix of names and directories.
    pub name: Option<Box<str>>,
    /// Wall time of an allocation.
    pub time_limit: Duration,
    /// Allocations that may wait, at least 1.
    pub backlog: u32,
    /// Most nodes of an allocation, at least 1.
    pub max_workers_per_alloc: u32,
    /// Most workers of the queue.
    pub max_worker_count: Option<u32>,
    /// Shell command run before each worker.
    pub start_command: Option<Box<str>>,
    /// Shell command run after each worker.
    pub stop_command: Option<Box<str>>,
    /// Command prefix of `hq worker start`.
    pub wrap_command: Option<Box<str>>,
    /// Lifetime of a worker, at most `time_limit`.
    pub worker_time_limit: Option<Duration>,
    /// Whether allocations stay in the batch system when no task needs them anymore.
    pub keep_waiting: bool,
    /// Idle timeout of a worker.
    pub idle_timeout: Duration,
    /// Lower bound of the share of a worker's cpus that must be busy.
    pub min_utilization: f32,
    /// Words of `worker start`, quoted for a shell.
    pub worker_args: Vec<Box<str>>,
    /// Further words of the submit command.
    pub additional_args: Vec<Box<str>>,
    /// Units that workers are configured to offer, by name.
    pub amounts: BTreeMap<Box<str>, u64>,
}

/// A worker ends this long before its allocation, to stop its tasks and to report to the server.
const MARGIN_MAX: Duration = Duration::from_secs(10);
/// Margin of a short allocation, as a divisor of its time limit.
const MARGIN_PART: u32 = 10;

/// Lifetime of a worker, given the time left of its allocation.
#[must_use]
pub fn worker_lifetime(left: Duration) -> Duration {
    Duration::from_secs((left - MARGIN_MAX.min(left / MARGIN_PART)).as_secs())
}

impl QueueParams {
    /// Value of an option among the words after `--`; the last one wins, as in batch systems.
    #[must_use]
    pub fn option(&self, long: &[&str], short: char) -> Option<&str> {
        let mut words = self
            .additional_args
            .iter()
            .flat_map(|arg| arg.split_whitespace());
        let mut found = None;
        while let Some(word) = words.next() {
            let (name, value) = if let Some(text) = word.strip_prefix("--") {
                let (name, value) = text
                    .split_once('=')
                    .map_or((text, None), |(n, v)| (n, Some(v)));
                (long.contains(&name), value)
            } else {
                let value = word
                    .strip_prefix('-')
                    .and_then(|text| text.strip_prefix(short));
                (value.is_some(), value.filter(|value| !value.is_empty()))
            };
            if name {
                found = value.or_else(|| words.next());
            }
        }
        found
    }

    fn is_slurm(&self) -> bool {
        &*self.system.manager == "slurm"
    }

    /// Name of its jobs, if set by its options.
    #[must_use]
    pub fn own_name(&self) -> Option<&str> {
        match &*self.system.manager {
            "slurm" => self.option(&["job-name"], 'J'),
            "pbs" => self.option(&[], 'N'),
            _ => None,
        }
    }

    /// Directory of its jobs, if set by its options.
    #[must_use]
    pub fn own_dir(&self) -> Option<&str> {
        self.is_slurm()
            .then(|| self.option(&["chdir", "workdir"], 'D'))?
    }

    /// Slurm clusters that its options name, if any.
    #[must_use]
    pub fn clusters(&self) -> Option<&str> {
        self.is_slurm()
            .then(|| self.option(&["clusters", "cluster"], 'M'))?
    }
}

/// Splits a job text into id and cluster. With several clusters the text is `ID;CLUSTER`, as
/// `sbatch --parsable` prints it: each cluster numbers jobs by itself.
#[must_use]
pub fn job_parts(job: &str) -> (&str, Option<&str>) {
    job.split_once(';')
        .map_or((job, None), |(id, cluster)| (id, Some(cluster)))
}

/// Commands and formats of a batch system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SystemSpec {
    /// Name for people.
    pub name: Box<str>,
    /// Value of `worker start --manager`.
    pub manager: Box<str>,
    /// The script.
    pub script: Box<str>,
    /// Starts a program on each of several nodes.
    pub each_node: Box<str>,
    /// Runs a shell command on each of several nodes.
    pub each_node_shell: Box<str>,
    /// Submits a script.
    pub submit: CommandTemplate,
    /// Where the output contains the id.
    pub submit_format: SubmitFormat,
    /// Asks for the states of jobs.
    pub status: CommandTemplate,
    /// Used if `status` gives no usable output; may be empty.
    pub status_fallback: CommandTemplate,
    /// Format of the output.
    pub status_format: StatusFormat,
    /// Cancels a job.
    pub cancel: CommandTemplate,
    /// Looks for a job by name.
    pub find: CommandTemplate,
    /// Format of the output.
    pub find_format: FindFormat,
    /// Output fragments that mean an unknown job.
    pub missing: Vec<Box<str>>,
    /// Error fragments of failed submissions that may have happened nevertheless.
    pub unclear: Vec<Box<str>>,
    /// Error fragments of submissions that did not reach the batch system.
    pub unreachable: Vec<Box<str>>,
    /// Meaning of each state word of the batch system.
    pub states: BTreeMap<Box<str>, StateMeaning>,
}

/// Words of a command, with placeholders.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CommandTemplate(pub Vec<Words>);

/// Consecutive words of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Words {
    /// The words.
    pub words: Vec<Box<str>>,
    /// Repeated for each job.
    pub each_job: bool,
}

impl CommandTemplate {
    /// Whether there is nothing to run.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it begins with a program that does not depend on the job.
    #[must_use]
    pub fn names_program(&self) -> bool {
        let first = self.0.first().filter(|first| !first.each_job);
        first.is_some_and(|first| first.words.first().is_some_and(|word| !word.is_empty()))
    }

    /// Whether one run handles several jobs.
    #[must_use]
    pub fn takes_many(&self) -> bool {
        self.0.iter().any(|words| words.each_job)
    }
}

/// Where the output of a submission contains the id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubmitFormat {
    /// All of the last line that is not blank.
    LastLine,
    /// Fourth word of a line that begins with `submitted batch job`.
    Sbatch,
}

/// Format of the output of a status command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatusFormat {
    /// Lines of id, state and, perhaps, a text.
    Lines,
    /// `Key=Value` words of one job.
    Scontrol,
    /// JSON of `qstat -f -F json`.
    PbsJson,
}

/// Format of the output of a search by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FindFormat {
    /// Lines of id and optional working directory. No output with exit code 0 means no such job.
    Lines,
    /// JSON of `qstat -f -F json`.
    PbsJson,
}

/// Meaning of a state word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateMeaning {
    /// Waits.
    Queued,
    /// Has nodes.
    Running,
    /// Has nodes, and its processes are suspended.
    Suspended,
    /// Is about to end, or to be requeued.
    Completing,
    /// Succeeded.
    Finished,
    /// Failed.
    Failed,
    /// Failed; the batch system may restart it.
    FailedMayReturn,
}

/// Error in a description. `Display` names the entry.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DescriptionError {
    /// Unknown placeholder.
    #[error("{entry}: unknown placeholder `%{{{name}}}`, expected one of: {}", .allowed.join(", "))]
    Placeholder {
        /// Name of the entry.
        entry: &'static str,
        /// The text between the braces.
        name: Box<str>,
        /// Names that are allowed there.
        allowed: &'static [&'static str],
    },
    /// The script starts no worker.
    #[error("script.text: expected `%{{command}}` where the worker starts")]
    NoWorker,
    /// The command is empty.
    #[error("{0}: expected the name of a program first")]
    NoProgram(&'static str),
    /// Only a status command can be about several jobs.
    #[error("{0}: words for each job belong to status.command")]
    EachJob(&'static str),
    /// An empty fragment would match every output.
    #[error(
        "{0}: expected words of an answer, found an empty text, which is in every answer; leave it out"
    )]
    EmptyText(&'static str),
}

/// Defines the placeholders of an entry as an enum, so that the code that fills them in must cover
/// each: an accepted placeholder without a value would end up in the script verbatim.
macro_rules! placeholders {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $name {
            /// All placeholders.
            pub const ALL: &[Self] = &[$(Self::$variant),+];
            /// Names between the braces, in the same order.
            const NAMES: &[&str] = &[$($text),+];

            /// Name between the braces.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

            /// The placeholder of this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|placeholder| placeholder.name() == name)
            }

            /// Whether a text contains it.
            #[must_use]
            pub fn is_in(self, text: &str) -> bool {
                text.contains(&format!("%{{{}}}", self.name()))
            }
        }
    };
}

placeholders! {
    /// Placeholders of `script.text`.
    ScriptPlaceholder {
        /// Number of nodes.
        Nodes = "nodes",
        /// Name of the job.
        Name = "name",
        /// Directory of the allocation.
        Dir = "dir",
        /// Time limit as `HH:MM:SS`.
        Walltime = "walltime",
        /// Time limit in seconds.
        Seconds = "seconds",
        /// Further words of the submit command. A line that contains it is dropped if there are
        /// none.
        Args = "args",
        /// Command that starts the workers.
        Command = "command",
        /// Nodes to avoid, separated by commas. A line that contains it is dropped if there are
        /// none.
        Excluded = "excluded",
        /// Empty. A line that contains it is dropped unless the job is submitted only to be
        /// canceled.
        IfTest = "if-test",
    }
}

placeholders! {
    /// Placeholders of `script.each-node` and `script.each-node-shell`.
    EachNodePlaceholder {
        /// Number of nodes.
        Nodes = "nodes",
        /// `--export=ALL ` if the user's options contain `--export`, because workers would
        /// otherwise have no PATH.
        Export = "export",
        /// Command that starts one worker.
        Command = "command",
        /// The same command, quoted as one shell word.
        QuotedCommand = "quoted-command",
    }
}

/// Placeholders of the other entries, whose values `server::alloc::work` has.
const IN_SUBMIT: &[&str] = &["script", "dir", "name"];
const IN_FIND: &[&str] = &["name", "dir", "cluster"];
const IN_JOB: &[&str] = &["job", "cluster"];

impl SystemSpec {
    /// Checks that the entries are consistent, as far as possible without the batch system.
    ///
    /// # Errors
    ///
    /// The first inconsistency.
    pub fn check(&self) -> Result<(), DescriptionError> {
        let each_node = EachNodePlaceholder::NAMES;
        check_text("script.text", &self.script, ScriptPlaceholder::NAMES)?;
        check_text("script.each-node", &self.each_node, each_node)?;
        check_text("script.each-node-shell", &self.each_node_shell, each_node)?;
        if !ScriptPlaceholder::Command.is_in(&self.script) {
            return Err(DescriptionError::NoWorker);
        }
        self.submit.check("submit.command", IN_SUBMIT)?;
        self.status.check("status.command", IN_JOB)?;
        if !self.status_fallback.is_empty() {
            self.status_fallback.check("status.fallback", IN_JOB)?;
        }
        self.cancel.check("cancel.command", IN_JOB)?;
        self.find.check("find.command", IN_FIND)?;
        for (entry, texts) in [
            ("missing", &self.missing),
            ("submit.unclear", &self.unclear),
            ("submit.unreachable", &self.unreachable),
        ] {
            if texts.iter().any(|text| text.trim().is_empty()) {
                return Err(DescriptionError::EmptyText(entry));
            }
        }
        Ok(())
    }
}

impl CommandTemplate {
    /// Checks that it begins with a program, and that every placeholder is known.
    fn check(
        &self,
        entry: &'static str,
        allowed: &'static [&'static str],
    ) -> Result<(), DescriptionError> {
        if !self.names_program() {
            return Err(DescriptionError::NoProgram(entry));
        }
        for group in &self.0 {
            if group.each_job && allowed != IN_JOB {
                return Err(DescriptionError::EachJob(entry));
            }
            for word in &group.words {
                check_text(entry, word, allowed)?;
            }
        }
        Ok(())
    }
}

/// Checks that every placeholder is known.
fn check_text(
    entry: &'static str,
    text: &str,
    allowed: &'static [&'static str],
) -> Result<(), DescriptionError> {
    for after in text.split("%{").skip(1) {
        let name = after.split_once('}').map_or(after, |(name, _)| name);
        if !allowed.contains(&name) {
            return Err(DescriptionError::Placeholder {
                entry,
                name: name.into(),
                allowed,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page that explains the entries.
    const PAGE: &str = include_str!("../../../docs/batch-systems.md");

    /// The row of an entry.
    fn row(entry: &str) -> &'static str {
        let mut lines = PAGE.lines();
        let is_of = |line: &&str| line.starts_with(&format!("| `{entry}`"));
        lines.find(is_of).expect("the page explains the entry")
    }

    #[test]
    fn every_placeholder_is_explained() {
        let script = row("script.text");
        for placeholder in ScriptPlaceholder::ALL {
            assert!(placeholder.is_in(script), "{placeholder:?}: {script}");
            let found = ScriptPlaceholder::from_name(placeholder.name());
            assert_eq!(found, Some(*placeholder));
        }
        let each_node = row("script.each-node");
        for placeholder in EachNodePlaceholder::ALL {
            assert!(placeholder.is_in(each_node), "{placeholder:?}: {each_node}");
        }
    }
}
