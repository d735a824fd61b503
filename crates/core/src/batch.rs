//! Batch systems: their descriptions, and the parameters of a queue.
//!
//! A description is data: the commands to run, how to parse their output, and the meaning of the
//! state words. A new batch system needs only a file. New parser code is needed only if its
//! commands print a new format. `docs/batch-systems.md` explains the entries. Other modules read
//! files, convert messages and run commands.

pub mod qstat;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::shell::double_quoted;
use crate::words::duration;

/// The parameters of a queue.
#[derive(Clone, PartialEq, Debug)]
pub struct QueueParams {
    /// The batch system.
    pub system: SystemSpec,
    /// The prefix of names and directories.
    pub name: Option<Box<str>>,
    /// The wall time of an allocation.
    pub time_limit: Duration,
    /// The number of allocations that may wait, at least 1.
    pub backlog: u32,
    /// The maximum number of nodes of an allocation, at least 1.
    pub max_workers_per_alloc: u32,
    /// The maximum number of workers of the queue.
    pub max_worker_count: Option<u32>,
    /// A shell command that runs before each worker.
    pub start_command: Option<Box<str>>,
    /// A shell command that runs after each worker.
    pub stop_command: Option<Box<str>>,
    /// A command that is put in front of `hq worker start`.
    pub wrap_command: Option<Box<str>>,
    /// The lifetime of a worker, at most `time_limit`.
    pub worker_time_limit: Option<Duration>,
    /// Whether allocations stay in the batch system when no task needs them anymore.
    pub keep_waiting: bool,
    /// The idle timeout of a worker.
    pub idle_timeout: Duration,
    /// The minimum fraction of a worker's cpus that must be busy.
    pub min_utilization: f32,
    /// Arguments of `worker start`, quoted for a shell.
    pub worker_args: Vec<Box<str>>,
    /// Additional arguments for the submit command.
    pub additional_args: Vec<Box<str>>,
    /// The units that workers are configured to offer, by resource name.
    pub amounts: BTreeMap<Box<str>, u64>,
}

/// How long before the end of its allocation a worker ends, so that it can stop its tasks and
/// report to the server.
const MARGIN_MAX: Duration = Duration::from_secs(10);
/// For a short allocation, the margin is its time limit divided by this.
const MARGIN_PART: u32 = 10;

/// Returns the lifetime of a worker, given the remaining time of its allocation.
#[must_use]
pub fn worker_lifetime(left: Duration) -> Duration {
    Duration::from_secs((left - MARGIN_MAX.min(left / MARGIN_PART)).as_secs())
}

impl QueueParams {
    /// Returns the value of an option among the arguments after `--`. The last one wins, as in
    /// batch systems.
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

    /// Returns the lifetime that workers are started with.
    #[must_use]
    pub fn worker_limit(&self) -> Duration {
        self.worker_time_limit.unwrap_or(self.time_limit)
    }

    /// Returns the visible arguments of the workers, quoted for a shell.
    #[must_use]
    pub fn visible_args(&self) -> Vec<String> {
        let mut args: Vec<String> = self.worker_args.iter().map(ToString::to_string).collect();
        args.push("--time-limit".to_owned());
        args.push(double_quoted(&duration(self.worker_limit())));
        args
    }

    fn is_slurm(&self) -> bool {
        &*self.system.manager == "slurm"
    }

    /// Returns the name of the queue's jobs, if its options set one.
    #[must_use]
    pub fn own_name(&self) -> Option<&str> {
        let name = match &*self.system.manager {
            "slurm" => self.option(&["job-name"], 'J'),
            "pbs" => self.option(&[], 'N'),
            _ => None,
        };
        // The options are written to the script, where the batch system removes quotes.
        name.map(|name| name.trim_matches(['"', '\'']))
    }

    /// Returns the directory of the queue's jobs, if its options set one.
    #[must_use]
    pub fn own_dir(&self) -> Option<&str> {
        self.is_slurm()
            .then(|| self.option(&["chdir", "workdir"], 'D'))?
    }

    /// Returns the files for standard output and standard error of a job, if the queue's options set
    /// them. Relative paths start at the directory of the allocation. `None` also for a path that
    /// only the batch system knows.
    #[must_use]
    pub fn own_outputs(&self, id: &str, name: &str) -> [Option<String>; 2] {
        if self.is_slurm() {
            let dir = self
                .own_dir()
                .map_or_else(String::new, |dir| format!("{dir}/"));
            let path = |pattern: &str| {
                let path = slurm_path(pattern, id, name)?;
                let is_relative = !path.starts_with('/');
                Some(if is_relative {
                    dir.clone() + &path
                } else {
                    path
                })
            };
            let options = [self.option(&["output"], 'o'), self.option(&["error"], 'e')];
            return options.map(|pattern| pattern.and_then(path));
        }
        if &*self.system.manager != "pbs" {
            return [None, None];
        }
        // `[HOST:]PATH`. PBS chooses the name of a file in a directory, and replaces `$PBS_JOBID` and
        // `^array_index^`.
        let path = |text: &str| {
            let host = text.split_once(':').filter(|(host, _)| !host.contains('/'));
            let path = host.map_or(text, |(_, path)| path);
            let is_plain = !path.ends_with('/') && !path.contains(['$', '^', '"', '\'']);
            is_plain.then(|| path.to_owned())
        };
        let [output, error] = ['o', 'e'].map(|short| self.option(&[], short).and_then(path));
        match self.option(&[], 'j') {
            Some("oe") => [output.clone(), output.or_else(|| Some("stdout".to_owned()))],
            Some("eo") => [error.clone().or_else(|| Some("stderr".to_owned())), error],
            Some(_) | None => [output, error],
        }
    }

    /// Returns the Slurm clusters that the queue's options name, if any.
    #[must_use]
    pub fn clusters(&self) -> Option<&str> {
        self.is_slurm()
            .then(|| self.option(&["clusters", "cluster"], 'M'))?
    }
}

/// Fills in the pattern of a file name; see `sbatch(1)`, "filename pattern". `None` if it contains
/// something that is unknown here, such as the node, or characters that turn patterns off.
fn slurm_path(pattern: &str, id: &str, name: &str) -> Option<String> {
    if pattern.contains(['\\', '"', '\'']) {
        return None;
    }
    let mut parts = pattern.split('%');
    let mut path = parts.next()?.to_owned();
    while let Some(part) = parts.next() {
        let width = part.bytes().take_while(u8::is_ascii_digit).count();
        let (width, rest) = part.split_at(width);
        // As in Slurm.
        let width = width.parse().map_or(0, |width: usize| width.min(10));
        match rest.chars().next() {
            Some('j' | 'A') => path += &format!("{id:0>width$}{}", &rest[1..]),
            Some('x') => path += &format!("{name}{}", &rest[1..]),
            // `%%` is a percent sign.
            None if part.is_empty() => path += &format!("%{}", parts.next()?),
            Some(_) | None => return None,
        }
    }
    Some(path)
}

/// Splits a job's text into its id and its cluster. If there are several clusters, the text is
/// `ID;CLUSTER`, as `sbatch --parsable` prints it, because each cluster has its own job numbers.
#[must_use]
pub fn job_parts(job: &str) -> (&str, Option<&str>) {
    job.split_once(';')
        .map_or((job, None), |(id, cluster)| (id, Some(cluster)))
}

/// The commands and formats of a batch system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SystemSpec {
    /// The name, for display.
    pub name: Box<str>,
    /// The value of `worker start --manager`.
    pub manager: Box<str>,
    /// The text of the job script.
    pub script: Box<str>,
    /// The command that starts a program on each of several nodes.
    pub each_node: Box<str>,
    /// The command that runs a shell command on each of several nodes.
    pub each_node_shell: Box<str>,
    /// The command that submits a script.
    pub submit: CommandTemplate,
    /// Where the output of `submit` contains the id.
    pub submit_format: SubmitFormat,
    /// The command that requests the states of jobs.
    pub status: CommandTemplate,
    /// The command to use if `status` gives no usable output. May be empty.
    pub status_fallback: CommandTemplate,
    /// The format of the output of `status`.
    pub status_format: StatusFormat,
    /// The command that cancels a job.
    pub cancel: CommandTemplate,
    /// The command that searches for a job by name.
    pub find: CommandTemplate,
    /// The format of the output of `find`.
    pub find_format: FindFormat,
    /// Fragments of output that indicate an unknown job.
    pub missing: Vec<Box<str>>,
    /// Fragments of error messages of failed submissions that may have created a job nevertheless.
    pub unclear: Vec<Box<str>>,
    /// Fragments of error messages of submissions that did not reach the batch system.
    pub unreachable: Vec<Box<str>>,
    /// The meaning of each state word of the batch system.
    pub states: BTreeMap<Box<str>, StateMeaning>,
}

/// The words of a command, with placeholders.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CommandTemplate(pub Vec<Words>);

/// Consecutive words of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Words {
    /// The words.
    pub words: Vec<Box<str>>,
    /// Whether the words are repeated for each job.
    pub each_job: bool,
}

impl CommandTemplate {
    /// Returns whether there is nothing to run.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the command starts with a program that does not depend on the job.
    #[must_use]
    pub fn names_program(&self) -> bool {
        let first = self.0.first().filter(|first| !first.each_job);
        first.is_some_and(|first| first.words.first().is_some_and(|word| !word.is_empty()))
    }

    /// Returns whether one run of the command handles several jobs.
    #[must_use]
    pub fn takes_many(&self) -> bool {
        self.0.iter().any(|words| words.each_job)
    }
}

/// Where the output of a submission contains the id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubmitFormat {
    /// The last line that is not blank, as a whole.
    LastLine,
    /// The fourth word of a line that begins with `submitted batch job`.
    Sbatch,
}

/// The format of the output of a status command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatusFormat {
    /// Lines with an id, a state and an optional text.
    Lines,
    /// `Key=Value` words of one job.
    Scontrol,
    /// The JSON output of `qstat -f -F json`.
    PbsJson,
}

/// The format of the output of a search by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FindFormat {
    /// Lines with an id and an optional working directory. No output with exit code 0 means that
    /// there is no such job.
    Lines,
    /// The JSON output of `qstat -f -F json`, or the output of `qselect`: ids, whose states are then
    /// requested.
    PbsJson,
}

/// The meaning of a state word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateMeaning {
    /// The job waits.
    Queued,
    /// The job has nodes.
    Running,
    /// The job has nodes, but its processes are suspended.
    Suspended,
    /// The job is about to end or to be requeued.
    Completing,
    /// The job succeeded.
    Finished,
    /// The job failed.
    Failed,
    /// The job failed, but the batch system may restart it.
    FailedMayReturn,
}

/// An error in a description. `Display` names the entry.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DescriptionError {
    /// A placeholder is unknown.
    #[error("{entry}: unknown placeholder `%{{{name}}}`, expected one of: {}", .allowed.join(", "))]
    Placeholder {
        /// The name of the entry.
        entry: &'static str,
        /// The text between the braces.
        name: Box<str>,
        /// The names that are allowed there.
        allowed: &'static [&'static str],
    },
    /// The script starts no worker.
    #[error("script.text: expected `%{{command}}` where the worker starts")]
    NoWorker,
    /// The command is empty.
    #[error("{0}: expected the name of a program first")]
    NoProgram(&'static str),
    /// A command other than the status command has words for each job.
    #[error("{0}: words for each job belong to status.command")]
    EachJob(&'static str),
    /// An empty fragment would match every output.
    #[error(
        "{0}: expected words of an answer, found an empty text, which is in every answer; leave it out"
    )]
    EmptyText(&'static str),
}

/// Defines the placeholders of an entry as an enum, so that the code that replaces them must cover
/// all of them. Otherwise an accepted placeholder without a value would end up in the script
/// verbatim.
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
            /// The names between the braces, in the same order.
            const NAMES: &[&str] = &[$($text),+];

            /// Returns the name between the braces.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

            /// Returns the placeholder with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|placeholder| placeholder.name() == name)
            }

            /// Returns whether a text contains the placeholder.
            #[must_use]
            pub fn is_in(self, text: &str) -> bool {
                text.contains(&format!("%{{{}}}", self.name()))
            }
        }
    };
}

placeholders! {
    /// The placeholders of `script.text`.
    ScriptPlaceholder {
        /// The number of nodes.
        Nodes = "nodes",
        /// The name of the job.
        Name = "name",
        /// The directory of the allocation.
        Dir = "dir",
        /// The time limit as `HH:MM:SS`.
        Walltime = "walltime",
        /// The time limit in seconds.
        Seconds = "seconds",
        /// Additional arguments for the submit command. A line that contains this is omitted if
        /// there are none.
        Args = "args",
        /// The command that starts the workers.
        Command = "command",
        /// The nodes to avoid, separated by commas. A line that contains this is omitted if there
        /// are none.
        Excluded = "excluded",
        /// Always empty. A line that contains this is omitted unless the job is submitted only to
        /// be canceled.
        IfTest = "if-test",
    }
}

placeholders! {
    /// The placeholders of `script.each-node` and `script.each-node-shell`.
    EachNodePlaceholder {
        /// The number of nodes.
        Nodes = "nodes",
        /// `--export=ALL ` if the user's options contain `--export`, because workers would
        /// otherwise have no PATH.
        Export = "export",
        /// The command that starts one worker.
        Command = "command",
        /// The command that starts one worker, quoted as a single shell word.
        QuotedCommand = "quoted-command",
    }
}

/// The placeholders of the other entries. `server::alloc::work` provides their values.
const IN_SUBMIT: &[&str] = &["script", "dir", "name"];
const IN_FIND: &[&str] = &["name", "dir", "cluster"];
const IN_JOB: &[&str] = &["job", "cluster"];

impl SystemSpec {
    /// Checks that the entries are consistent, as far as this is possible without the batch system.
    ///
    /// # Errors
    ///
    /// Returns the first inconsistency.
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
    /// Checks that the command starts with a program and that all placeholders are known.
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

/// Checks that all placeholders are known.
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

    /// Returns the row of an entry.
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
