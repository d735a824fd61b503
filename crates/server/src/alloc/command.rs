//! Runs the commands of batch systems, with a time limit and never on a thread that makes
//! decisions.

use std::path::Path;
use std::time::Duration;

use hq_core::batch::CommandTemplate;
use hq_core::words::has_word;
use tokio::process::Command;

use crate::command::{self, Limits, RunError};

/// How long to wait for an answer. Clients of batch systems retry for many seconds while their
/// server restarts.
pub(super) const TIMEOUT: Duration = Duration::from_secs(90);
/// The maximum size of the output that is kept per stream, in bytes. It is enough for the states of
/// ten thousand jobs.
const OUTPUT_MAX: u64 = 64 << 20;

/// The result of a program that was started.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ProgramResult {
    /// The name of the program.
    pub(super) program: String,
    /// The exit code. `None` if a signal ended the program.
    pub(super) code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// The reason why a program gave no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    /// The program cannot be started.
    #[error("{program} start failed\n{source}{}", not_found(program, source))]
    Start {
        program: String,
        source: std::io::Error,
    },
    /// The program did not end in time and was killed.
    #[error("{program} execution failed\nno answer within {} s", time.as_secs())]
    Timeout { program: String, time: Duration },
    /// The system lost track of the program.
    #[error("{program} execution failed\n{source}")]
    Wait {
        program: String,
        source: std::io::Error,
    },
}

/// Returns the error for a missing program, with the directories that were searched.
fn not_found(program: &str, error: &std::io::Error) -> String {
    if error.kind() != std::io::ErrorKind::NotFound {
        return String::new();
    }
    format!(
        "\n`{program}` is not in the PATH of the server: start the server where the batch system's commands are, or load its module before"
    )
}

impl ProgramResult {
    /// Returns whether the program exited with 0.
    pub(super) fn is_ok(&self) -> bool {
        self.code == Some(0)
    }

    /// Returns a description of the result for users.
    pub(super) fn failure(&self) -> String {
        let code = self
            .code
            .map_or_else(|| "killed by a signal".to_owned(), |code| code.to_string());
        format!(
            "{} execution failed\nExit code: {code}\nStderr: {}\nStdout: {}",
            self.program,
            self.stderr.trim(),
            self.stdout.trim()
        )
    }
}

/// Returns whether an environment variable comes from the batch job that the server itself runs in,
/// or conflicts with the script of an allocation. The batch system's programs would interpret such
/// a variable as an option.
fn is_of_own_job(name: &str) -> bool {
    const KEPT: [&str; 2] = ["SLURM_CONF", "SLURM_CLUSTERS"];
    const AGAINST_SCRIPT: &str =
        "SBATCH_TIMELIMIT SBATCH_OUTPUT SBATCH_JOB_NAME SBATCH_ARRAY_INX SBATCH_WAIT";
    // This excludes the PBS variables that select the installation, such as `PBS_CONF_FILE`.
    const OF_JOBS: &str = "SLURM_ SRUN_ PMI PBS_ACCOUNT PBS_ARRAY PBS_ENVIRONMENT PBS_HOOK PBS_JOB PBS_MOMPORT \
        PBS_NODE PBS_NP PBS_O_ PBS_QUEUE PBS_TASKNUM";
    has_word(AGAINST_SCRIPT, name)
        || OF_JOBS.split(' ').any(|begin| name.starts_with(begin)) && !KEPT.contains(&name)
}

/// Runs a command in a directory.
pub(super) async fn run(
    argv: &[String],
    directory: &Path,
    is_parsed: bool,
    cluster: Option<&str>,
    time: Duration,
) -> Result<ProgramResult, CommandError> {
    let program = argv.first().cloned().unwrap_or_default();
    let mut command = Command::new(&program);
    command
        .args(argv.iter().skip(1))
        .current_dir(directory)
        .env("PWD", directory);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_of_own_job) {
            command.env_remove(name);
        }
    }
    if is_parsed {
        // These variables are not set for submissions, which pass their environment on to the job.
        // The output of other commands is only parsed here.
        command
            .env("LC_ALL", "C")
            .env("SLURM_TIME_FORMAT", "standard")
            .env_remove("SQUEUE_FORMAT");
    }
    if let Some(cluster) = cluster {
        // This is set even if the batch system's description does not mention clusters.
        command.env("SLURM_CLUSTERS", cluster);
    }
    let limits = Limits {
        time,
        output_bytes: OUTPUT_MAX,
    };
    match command::run(command, &[], limits).await {
        Ok(ended) => Ok(ProgramResult {
            program,
            code: ended.status.code(),
            stdout: ended.stdout,
            stderr: ended.stderr,
        }),
        Err(RunError::Start(source)) => Err(CommandError::Start { program, source }),
        Err(RunError::Timeout(time)) => Err(CommandError::Timeout { program, time }),
        Err(RunError::Wait(source)) => Err(CommandError::Wait { program, source }),
    }
}

/// Returns the arguments of a command for some jobs, with `%{name}` replaced.
pub(super) fn words(
    template: &CommandTemplate,
    values: &[(&str, &str)],
    jobs: &[&str],
) -> Vec<String> {
    let mut argv = Vec::new();
    let has_cluster = values.iter().any(|(name, _)| *name == "cluster");
    // Arguments with an empty placeholder are omitted, as are such lines in a script.
    let is_void = |word: &str| !has_cluster && word.contains("%{cluster}");
    for group in &template.0 {
        let first = jobs.first().copied().unwrap_or_default();
        let repeated = if group.each_job { jobs } else { &[first] };
        for job in repeated {
            for word in group.words.iter().filter(|word| !is_void(word)) {
                argv.push(fill(word, values, job));
            }
        }
    }
    argv
}

fn fill(word: &str, values: &[(&str, &str)], job: &str) -> String {
    let find = |name: &str| {
        let found = values.iter().find(|(other, _)| *other == name);
        found
            .map(|(_, value)| *value)
            .or((name == "job").then_some(job))
    };
    replace(word, find)
}

/// Replaces each `%{name}` that has a value.
pub(super) fn replace<'a>(text: &str, find: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("%{") {
        filled.push_str(before);
        let found = after
            .split_once('}')
            .and_then(|(name, after)| Some((find(name)?, after)));
        if let Some((value, after)) = found {
            filled.push_str(value);
            rest = after;
        } else {
            filled.push_str("%{");
            rest = after;
        }
    }
    filled.push_str(rest);
    filled
}

#[cfg(test)]
mod tests {
    use super::*;
    use hq_core::batch::Words;

    fn argv(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    async fn shell(script: &str, timeout: Duration) -> Result<ProgramResult, CommandError> {
        run(
            &argv(&["sh", "-c", script]),
            Path::new("/"),
            true,
            None,
            timeout,
        )
        .await
    }

    #[tokio::test]
    async fn failures_are_told_in_three_lines() {
        let ran = shell("echo out; echo ' err' >&2; exit 3", TIMEOUT).await;
        assert_eq!(
            ran.expect("it runs").failure(),
            "sh execution failed\nExit code: 3\nStderr: err\nStdout: out"
        );
        let missing = run(
            &argv(&["no-such-program-x"]),
            Path::new("/"),
            true,
            None,
            TIMEOUT,
        )
        .await;
        let text = missing.expect_err("there is none").to_string();
        assert!(
            text.starts_with("no-such-program-x start failed\nNo such file"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn what_does_not_answer_is_killed() {
        let ran = shell("sleep 1000 & sleep 1000", Duration::from_millis(100)).await;
        assert!(matches!(ran, Err(CommandError::Timeout { .. })));
    }

    #[tokio::test]
    async fn answers_do_not_depend_on_the_locale() {
        let ran = shell("echo $LC_ALL", TIMEOUT).await.expect("it runs");
        assert_eq!(ran.stdout, "C\n");
    }

    #[test]
    fn variables_of_the_job_of_the_server_are_not_passed_on() {
        for (name, is_dropped) in [
            ("SLURM_JOB_ID", true),
            ("SLURM_MEM_PER_CPU", true),
            ("SLURM_CONF", false),
            ("SLURM_CLUSTERS", false),
            ("SRUN_CPUS_PER_TASK", true),
            ("PMIX_RANK", true),
            ("PMI_FD", true),
            ("PBS_JOBID", true),
            ("PBS_O_WORKDIR", true),
            ("PBS_CONF_FILE", false),
            ("PBS_SERVER", false),
            ("SBATCH_TIMELIMIT", true),
            ("SBATCH_ACCOUNT", false),
            ("PATH", false),
        ] {
            assert_eq!(is_of_own_job(name), is_dropped, "{name}");
        }
    }

    #[test]
    fn words_of_each_job_are_repeated() {
        let words_of = |words: &[&str], each_job| Words {
            words: words.iter().map(|word| (*word).into()).collect(),
            each_job,
        };
        let template = CommandTemplate(vec![
            words_of(&["qstat"], false),
            words_of(&["-f", "%{job}"], true),
            words_of(&["%{script}%{x}%{"], false),
        ]);
        let filled = words(&template, &[("script", "/a b")], &["1", "2"]);
        assert_eq!(filled, ["qstat", "-f", "1", "-f", "2", "/a b%{x}%{"]);
        let template = CommandTemplate(vec![words_of(&["x", "-M%{cluster}", "%{job}"], false)]);
        assert_eq!(words(&template, &[], &["1"]), ["x", "1"]);
        assert_eq!(
            words(&template, &[("cluster", "c")], &["1"]),
            ["x", "-Mc", "1"]
        );
    }
}
