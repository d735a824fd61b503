//! Batch systems: what is known of one, and what is asked of it for a queue.
//!
//! A description is data: which commands to run, how to read their answers, what its words for states mean. A new
//! batch system is a file, and a new kind of answer only if its commands print something that no other's do.
//! `docs/batch-systems.md` explains the entries. Other modules read files, convert messages and run commands.

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
    /// Shell command before each worker.
    pub start_command: Option<Box<str>>,
    /// Shell command after each worker.
    pub stop_command: Option<Box<str>>,
    /// Put in front of `hq worker start`.
    pub wrap_command: Option<Box<str>>,
    /// Lifetime of a worker, at most `time_limit`.
    pub worker_time_limit: Option<Duration>,
    /// Allocations that wait for tasks that are gone stay in the batch system.
    pub keep_waiting: bool,
    /// Idle timeout of a worker.
    pub idle_timeout: Duration,
    /// Least share of its cpus that must be busy.
    pub min_utilization: f32,
    /// Words of `worker start`, quoted for a shell.
    pub worker_args: Vec<Box<str>>,
    /// Further words of the submit command.
    pub additional_args: Vec<Box<str>>,
    /// Units that workers are told to offer, by name.
    pub amounts: BTreeMap<Box<str>, u64>,
}

/// A worker ends this much before its allocation, to end its tasks and to tell the server.
const MARGIN_MAX: Duration = Duration::from_secs(10);
/// Margin of a short allocation, as a divisor of its time limit.
const MARGIN_PART: u32 = 10;

/// Lifetime of a worker whose allocation has this time left.
#[must_use]
pub fn worker_lifetime(left: Duration) -> Duration {
    Duration::from_secs((left - MARGIN_MAX.min(left / MARGIN_PART)).as_secs())
}

impl QueueParams {
    /// Value of an option among the words after `--`; the last one wins, as in the batch systems.
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

    /// Name of its jobs, if its options give them one.
    #[must_use]
    pub fn own_name(&self) -> Option<&str> {
        match &*self.system.manager {
            "slurm" => self.option(&["job-name"], 'J'),
            "pbs" => self.option(&[], 'N'),
            _ => None,
        }
    }

    /// Directory of its jobs, if its options give them one.
    #[must_use]
    pub fn own_dir(&self) -> Option<&str> {
        self.is_slurm()
            .then(|| self.option(&["chdir", "workdir"], 'D'))?
    }

    /// The Slurm clusters to which it submits, if its options name any.
    #[must_use]
    pub fn clusters(&self) -> Option<&str> {
        self.is_slurm()
            .then(|| self.option(&["clusters", "cluster"], 'M'))?
    }
}

/// The id of a job and its cluster. Where a batch system has several clusters, the text for a job is `ID;CLUSTER`, as
/// `sbatch --parsable` prints it: the same id exists on each cluster.
#[must_use]
pub fn job_parts(job: &str) -> (&str, Option<&str>) {
    job.split_once(';')
        .map_or((job, None), |(id, cluster)| (id, Some(cluster)))
}

/// How to talk to a batch system.
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
    /// Where the id is in its answer.
    pub submit_format: SubmitFormat,
    /// Asks for the states of jobs.
    pub status: CommandTemplate,
    /// Asked if that gives no usable answer; may be empty.
    pub status_fallback: CommandTemplate,
    /// Shape of the answer.
    pub status_format: StatusFormat,
    /// Cancels a job.
    pub cancel: CommandTemplate,
    /// Looks for a job by name.
    pub find: CommandTemplate,
    /// Shape of the answer.
    pub find_format: FindFormat,
    /// Texts of answers that do not know a job.
    pub missing: Vec<Box<str>>,
    /// Texts of refused submissions that may have happened.
    pub unclear: Vec<Box<str>>,
    /// Texts of refused submissions that did not reach the batch system.
    pub unreachable: Vec<Box<str>>,
    /// Meanings of the words that the batch system uses for states.
    pub states: BTreeMap<Box<str>, StateMeaning>,
}

/// Words of a command, with placeholders.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CommandTemplate(pub Vec<Words>);

/// Some words of a command.
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

    /// Whether it begins with a program, which is the same for all jobs.
    #[must_use]
    pub fn names_program(&self) -> bool {
        let first = self.0.first().filter(|first| !first.each_job);
        first.is_some_and(|first| first.words.first().is_some_and(|word| !word.is_empty()))
    }

    /// Whether it takes several jobs at once.
    #[must_use]
    pub fn takes_many(&self) -> bool {
        self.0.iter().any(|words| words.each_job)
    }
}

/// Where the id is in the answer to a submission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubmitFormat {
    /// All of the last line that is not blank.
    LastLine,
    /// Fourth word of a line that begins with `submitted batch job`.
    Sbatch,
}

/// Shape of an answer about states.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatusFormat {
    /// Lines of id, state and, perhaps, a text.
    Lines,
    /// `Key=Value` words of one job.
    Scontrol,
    /// JSON of `qstat -f -F json`.
    PbsJson,
}

/// Shape of an answer about names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FindFormat {
    /// Lines of id and, perhaps, working directory; nothing, and exit code 0, if there is no such job.
    Lines,
    /// JSON of `qstat -f -F json`.
    PbsJson,
}

/// State of a job that a word of the batch system stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateMeaning {
    /// Waits.
    Queued,
    /// Has nodes.
    Running,
    /// Has nodes, and its processes are stopped for a while.
    Suspended,
    /// Is about to end, or to be requeued.
    Completing,
    /// Ended well.
    Finished,
    /// Ended otherwise.
    Failed,
    /// The same, and the batch system may start it again by itself.
    FailedMayReturn,
}

/// Error in a description. `Display` names the entry.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DescriptionError {
    /// Nothing would replace it.
    #[error("{entry}: unknown placeholder `%{{{name}}}`, expected one of: {}", .allowed.join(", "))]
    Placeholder {
        /// Name of the entry.
        entry: &'static str,
        /// The text between the braces.
        name: Box<str>,
        /// Names that are allowed there.
        allowed: &'static [&'static str],
    },
    /// No worker would start.
    #[error("script.text: expected `%{{command}}` where the worker starts")]
    NoWorker,
    /// There is nothing to run.
    #[error("{0}: expected the name of a program first")]
    NoProgram(&'static str),
    /// Only a question about jobs is about several of them.
    #[error("{0}: words for each job belong to status.command")]
    EachJob(&'static str),
    /// Every answer would be one of those that are meant.
    #[error(
        "{0}: expected words of an answer, found an empty text, which is in every answer; leave it out"
    )]
    EmptyText(&'static str),
}

/// The placeholders of an entry as an enum, so that code that fills them in must have a value for each: one that is
/// accepted and not filled in would stand in a script as it is.
macro_rules! placeholders {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $name {
            /// All of them.
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
        /// Further words of the submit command. A line with it is left out if there are none.
        Args = "args",
        /// Command that starts the workers.
        Command = "command",
        /// Nodes that are to be avoided, separated by commas. A line with it is left out if there are none.
        Excluded = "excluded",
        /// Nothing; a line with it is left out unless the job is submitted only to be canceled.
        IfTest = "if-test",
    }
}

placeholders! {
    /// Placeholders of `script.each-node` and `script.each-node-shell`.
    EachNodePlaceholder {
        /// Number of nodes.
        Nodes = "nodes",
        /// `--export=ALL` and a blank if the user's options contain `--export`, which would leave workers without PATH.
        Export = "export",
        /// Command that starts one worker.
        Command = "command",
        /// The same as one word of a shell.
        QuotedCommand = "quoted-command",
    }
}

/// Placeholders of the other entries, whose values `server::alloc::work` has.
const IN_SUBMIT: &[&str] = &["script", "dir", "name"];
const IN_FIND: &[&str] = &["name", "dir", "cluster"];
const IN_JOB: &[&str] = &["job", "cluster"];

impl SystemSpec {
    /// Whether the entries make sense together, as far as that can be said without the batch system.
    ///
    /// # Errors
    ///
    /// The first thing that does not.
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
    /// Whether it begins with a program, and every placeholder means something.
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

/// Requires that every placeholder means something.
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
