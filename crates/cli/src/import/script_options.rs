//! The requests of a batch script in a form independent of the batch system, and the equivalent
//! options of hq.

use super::System;
use super::units::{JOB, NAME, clock, memory_text};
use super::used::Uses;
use crate::parse::after::parse_after;
use crate::parse::limit::parse_running;
use crate::parse::retry::parse_signal;

/// An option with its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Choice {
    pub(crate) words: Vec<String>,
    /// Whether the option is not allowed in `#HQ` lines.
    pub(crate) is_outer: bool,
    /// Whether the option only imitates a default of the batch system.
    pub(crate) is_usual: bool,
}

/// The requested memory, and whether it is per node, cpu or GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Memory {
    /// All memory of the node.
    All,
    /// The memory per node in KiB.
    Node(u64),
    /// The memory per cpu in KiB.
    Cpu(u64),
    /// The memory per GPU in KiB.
    Gpu(u64),
}

/// Whether a number of GPUs is per node, task or job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GpuUnit {
    Job,
    Node,
    Task,
}

/// The recipient and the events of notifications by mail.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Mail {
    pub(super) address: Option<String>,
    pub(super) at_end: bool,
    pub(super) at_failure: bool,
}

/// Everything that the lines request.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an option of its own"
)]
pub(super) struct ScriptOptions {
    pub(super) system: System,
    pub(super) script: String,
    pub(super) name: Option<String>,
    pub(super) array: Option<String>,
    /// The maximum number of tasks that run at the same time.
    pub(super) max_running: Option<u32>,
    pub(super) nodes: Option<u32>,
    pub(super) tasks: Option<u32>,
    pub(super) tasks_per_node: Option<u32>,
    pub(super) cpus_per_task: Option<u32>,
    pub(super) is_exclusive: bool,
    pub(super) memory: Option<Memory>,
    pub(super) gpus: Option<(&'static str, u32, GpuUnit)>,
    /// The time limit in seconds.
    pub(super) time: Option<u64>,
    /// The path patterns of the output files, with placeholders of hq.
    pub(super) stdout: Option<String>,
    pub(super) stderr: Option<String>,
    /// Whether standard error goes to the file of standard output.
    pub(super) is_merged: bool,
    pub(super) stdin: Option<String>,
    pub(super) after: Vec<String>,
    pub(super) after_each: Option<String>,
    pub(super) mail: Mail,
    pub(super) env: Vec<(String, String)>,
    /// Whether variables of the shell are passed on.
    pub(super) passes_env: bool,
    pub(super) cwd: Option<String>,
    /// The signal, and how many seconds before the end it is sent.
    pub(super) signal: Option<(String, u64)>,
    pub(super) never_restarts: bool,
    pub(super) priority: Option<i32>,
    pub(super) waits: bool,
    pub(super) shell: Option<String>,
    /// The options that concern workers, as they were written.
    pub(super) of_workers: Vec<String>,
    pub(super) notes: Vec<String>,
}

impl ScriptOptions {
    pub(super) fn new(system: System, script: &str) -> Self {
        Self {
            system,
            script: script.to_owned(),
            is_merged: system != System::Pbs,
            passes_env: system != System::Pbs,
            ..Self::default()
        }
    }

    /// Adds a note about a difference. A repeated note appears only once.
    pub(super) fn note(&mut self, text: String) {
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// Records an option without an equivalent in hq.
    pub(super) fn untranslated(&mut self, shown: &str) {
        self.note(format!("`{shown}`: not translated"));
    }

    /// Passes a variable on: `NAME=VALUE`, or `NAME` with its value in this shell.
    pub(super) fn add_variable(&mut self, option: &str, part: &str) {
        let pair = match part.split_once('=') {
            Some((name, value)) => Some((name.to_owned(), value.to_owned())),
            None => std::env::var(part)
                .ok()
                .map(|value| (part.to_owned(), value)),
        };
        match pair {
            Some(pair) => self.env.push(pair),
            None => self.note(format!("`{option}{part}`: it is not set here")),
        }
    }

    /// Waits for jobs. `shown` is the condition as it was written.
    pub(super) fn wait_for<'a>(
        &mut self,
        kind: &str,
        jobs: impl Iterator<Item = &'a str>,
        shown: &str,
    ) {
        let end = match kind {
            "afterok" | "done" => "ok",
            "afterany" | "ended" => "any",
            _ => {
                return self.note(format!(
                    "`{shown}`: a job waits for the success (`--after JOB`) or for any end (`--after JOB:any`) of another"
                ));
            }
        };
        self.after.extend(jobs.map(|job| format!("{job}:{end}")));
    }

    /// Requests mail about an event. `shown` is the event as it was written.
    pub(super) fn mail_at(&mut self, event: &str, shown: &str) {
        match event {
            "NONE" | "n" => self.mail = Mail::default(),
            "END" | "e" => self.mail.at_end = true,
            "FAIL" | "a" => self.mail.at_failure = true,
            "ALL" => (self.mail.at_end, self.mail.at_failure) = (true, true),
            _ => self.note(format!(
                "`{shown}`: mail is sent at the end of a job and at its first failure"
            )),
        }
    }

    /// Parses `IDS%LIMIT`.
    pub(super) fn set_array(&mut self, text: &str) {
        let (ids, limit) = match text.split_once('%') {
            Some((ids, limit)) => (ids, Some(limit)),
            None => (text, None),
        };
        if super::ids_of(ids).is_none() {
            self.note(format!(
                "array `{text}`: the ids cannot be read; specify `--array` yourself"
            ));
            return;
        }
        self.array = Some(ids.to_owned());
        match limit.map(parse_running).transpose() {
            Ok(limit) => self.max_running = limit,
            Err(error) => self.note(format!("array `{text}`: {error}")),
        }
    }

    pub(super) fn node_count(&self) -> u32 {
        match (self.nodes, self.tasks, self.tasks_per_node) {
            (Some(nodes), _, _) => nodes.max(1),
            (None, Some(tasks), Some(each)) => tasks.div_ceil(each.max(1)).max(1),
            (None, _, _) => 1,
        }
    }

    /// Returns the number of processes of an MPI program on all nodes.
    pub(super) fn task_count(&self) -> u32 {
        let each = self.tasks_per_node.unwrap_or(1);
        let all = each.saturating_mul(self.node_count());
        self.tasks.unwrap_or(all).max(1)
    }

    /// Returns the number of cpus of a task that shares a node.
    pub(super) fn cpu_count(&self) -> u32 {
        let each = self.cpus_per_task.unwrap_or(1).max(1);
        self.task_count().saturating_mul(each)
    }

    pub(super) fn job_name(&self) -> String {
        let name = self.name.as_ref().unwrap_or(&self.script);
        // This matches how names of commands are shown elsewhere.
        name.replace(['\n', '\t'], " ")
    }

    fn gpu_count(&self) -> u32 {
        match self.gpus {
            None => 0,
            Some((_, count, GpuUnit::Job | GpuUnit::Node)) => count,
            Some((_, count, GpuUnit::Task)) => count.saturating_mul(self.task_count()),
        }
    }

    /// Returns everything as options.
    pub(super) fn choices(&mut self, uses: &Uses) -> Vec<Choice> {
        let mut choices = Choices::default();
        let is_named = self.name.is_some();
        choices.add(!is_named, &["--name", &self.job_name()]);
        if let Some(array) = &self.array {
            choices.add(false, &["--array", array]);
            if let Some(max) = self.max_running {
                choices.add(false, &["--max-running", &max.to_string()]);
            }
        }
        self.add_resources(&mut choices);
        self.add_times(&mut choices);
        self.add_output(&mut choices);
        if let Some(cwd) = &self.cwd {
            choices.add(false, &["--cwd", cwd]);
        }
        for (name, value) in &self.env {
            choices.add(false, &["--env", &format!("{name}={value}")]);
        }
        if self.never_restarts {
            choices.add(false, &["--crash-limit", "never-restart"]);
        }
        match self.priority {
            None | Some(0) => {}
            Some(priority) => choices.add(false, &[&format!("--priority={priority}")]),
        }
        self.add_outer(&mut choices, uses);
        self.note_workers();
        choices.0
    }

    fn add_resources(&mut self, choices: &mut Choices) {
        let nodes = self.node_count();
        if nodes > 1 {
            choices.add(false, &["--nodes", &nodes.to_string()]);
            if self.memory.is_some() || self.gpus.is_some() {
                self.note(format!(
                    "{nodes} nodes: tasks get whole nodes, so memory and GPUs are not requested"
                ));
            }
            return;
        }
        if self.is_exclusive {
            choices.add(false, &["--cpus", "all"]);
        } else if self.cpu_count() > 1 || self.cpus_per_task.is_some() {
            choices.add(false, &["--cpus", &self.cpu_count().to_string()]);
        }
        let kib = match self.memory {
            None => None,
            Some(Memory::All) => {
                choices.add(false, &["--resource", "mem=all"]);
                None
            }
            Some(Memory::Node(kib)) => Some(kib),
            Some(Memory::Cpu(kib)) => Some(kib.saturating_mul(self.cpu_count().into())),
            Some(Memory::Gpu(kib)) => Some(kib.saturating_mul(self.gpu_count().into())),
        };
        if let Some(kib) = kib.filter(|kib| *kib > 0) {
            let amount = format!("mem={}", memory_text(kib));
            choices.add(false, &["--resource", &amount]);
        }
        if let Some((resource, _, _)) = self.gpus
            && self.gpu_count() > 0
        {
            let amount = format!("{resource}={}", self.gpu_count());
            choices.add(false, &["--resource", &amount]);
        }
    }

    fn add_times(&mut self, choices: &mut Choices) {
        let mut limit = self.time;
        if let Some((signal, before)) = self.signal.clone() {
            match (limit, parse_signal(&signal)) {
                (Some(all), Ok(_)) if all > before => {
                    // hq sends the signal at the time limit, and kills the task later.
                    limit = Some(all - before);
                    choices.add(false, &["--stop-signal", &signal]);
                    choices.add(false, &["--stop-grace", &format!("{before}s")]);
                    self.note(format!(
                        "signal `{signal}@{before}`: a task that receives it counts as failed, even if it then exits with 0; `--retries` starts it again"
                    ));
                }
                _ => self.note(format!(
                    "signal `{signal}@{before}`: a signal before the end requires a longer time limit"
                )),
            }
        }
        if let Some(seconds) = limit.filter(|seconds| *seconds > 0) {
            choices.add(false, &["--time-limit", &clock(seconds)]);
        }
    }

    fn add_output(&self, choices: &mut Choices) {
        let (is_array, name) = (self.array.is_some(), self.job_name());
        // In the batch system, elements of an array are separate jobs.
        let job = if is_array {
            "%{JOB_ID}_%{TASK_ID}"
        } else {
            "%{JOB_ID}"
        };
        let whole = |path: &String| path.replace(JOB, job).replace(NAME, &name);
        let usual = |channel: &str| match (self.system, is_array) {
            (System::Slurm, false) => Some("slurm-%{JOB_ID}.out".to_owned()),
            (System::Slurm, true) => Some("slurm-%{JOB_ID}_%{TASK_ID}.out".to_owned()),
            (System::Pbs, false) => Some(format!("%{{SUBMIT_DIR}}/{name}.{channel}%{{JOB_ID}}")),
            (System::Pbs, true) => Some(format!(
                "%{{SUBMIT_DIR}}/{name}.{channel}%{{JOB_ID}}.%{{TASK_ID}}"
            )),
            // LSF would send the output by mail.
            (System::Lsf, _) => None,
        };
        match (&self.stdout, usual("o")) {
            (Some(path), _) => choices.add(false, &["--stdout", &whole(path)]),
            (None, Some(path)) => choices.add(true, &["--stdout", &path]),
            (None, None) => {}
        }
        match (&self.stderr, usual("e")) {
            (Some(path), _) => choices.add(false, &["--stderr", &whole(path)]),
            (None, _) if self.merges() => choices.add(true, &["--stderr", "none"]),
            (None, Some(path)) => choices.add(true, &["--stderr", &path]),
            (None, None) => {}
        }
    }

    /// Returns whether the script itself must redirect standard error to its output.
    pub(super) fn merges(&self) -> bool {
        let has_output = self.stdout.is_some() || self.system != System::Lsf;
        self.is_merged && self.stderr.is_none() && has_output
    }

    fn add_outer(&mut self, choices: &mut Choices, uses: &Uses) {
        for after in std::mem::take(&mut self.after) {
            if parse_after(&after).is_ok() {
                choices.add_outer(&["--after", &after]);
            } else {
                self.note(format!(
                    "dependency on `{after}`: use hq's number of that job, `--after JOB`"
                ));
            }
        }
        if let Some(each) = &self.after_each {
            choices.add_outer(&["--after-each", each]);
        }
        let events: Vec<&str> = [(self.mail.at_end, "end"), (self.mail.at_failure, "failure")]
            .into_iter()
            .filter_map(|(is_on, event)| is_on.then_some(event))
            .collect();
        if !events.is_empty() {
            let user = std::env::var("USER").unwrap_or_else(|_| "$USER".to_owned());
            let address = self.mail.address.clone().unwrap_or(user);
            let address = crate::text::shell_text(&[address]);
            let target = format!("cmd:mail -s hq {address}");
            choices.add_outer(&["--notify", &target]);
            choices.add_outer(&["--notify-on", &events.join(",")]);
        }
        if self.waits {
            choices.add_outer(&["--wait"]);
        }
        if self.passes_env {
            for (name, value) in uses.set_here(&self.env) {
                // The value is not in the script and may be a secret, so it is not shown when a
                // script is only translated.
                choices.push(&["--env", &format!("{name}={value}")], true, true);
            }
        }
    }

    fn note_workers(&mut self) {
        let options = self.of_workers.join(" ");
        match (options.is_empty(), self.system) {
            (true, _) => {}
            (false, System::Slurm | System::Pbs) => {
                let system = self.system.label().to_ascii_lowercase();
                self.note(format!(
                    "`{options}`: belongs to the workers, as in `hq alloc add {system} --time-limit 1h -- {options}`"
                ));
            }
            (false, System::Lsf) => self.note(format!(
                "`{options}`: belongs to the workers: give it to the batch job that runs `hq worker start`"
            )),
        }
    }
}

/// The options, in the order they were added.
#[derive(Default)]
struct Choices(Vec<Choice>);

impl Choices {
    fn add(&mut self, is_usual: bool, words: &[&str]) {
        self.push(words, is_usual, false);
    }

    fn add_outer(&mut self, words: &[&str]) {
        self.push(words, false, true);
    }

    fn push(&mut self, words: &[&str], is_usual: bool, is_outer: bool) {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        // In a `#HQ` line, a line break would end the option and start a command of the script, and
        // a backslash has a different meaning than in the original line. On a command line, quotes
        // protect both.
        let is_outer = is_outer
            || words
                .iter()
                .any(|word| word.contains(|c: char| c == '\\' || c.is_control() && c != '\t'));
        self.0.push(Choice {
            words,
            is_outer,
            is_usual,
        });
    }
}
