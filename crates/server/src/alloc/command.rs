//! Commands of a batch system: run with a time limit, off every thread that decides.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use hq_protocol::convert::CommandTemplate;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;

/// Longest wait for an answer. Clients of batch systems try again by themselves for many seconds while
/// their server restarts.
pub(super) const TIMEOUT: Duration = Duration::from_secs(90);
/// Most bytes that are read of each stream; the state of ten thousand jobs fits.
const OUTPUT_MAX: u64 = 64 << 20;
/// After the program has ended, what it left behind may hold its streams open for this long.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// What a program that was started left.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Ran {
    /// Name of the program.
    pub(super) program: String,
    /// Exit code; `None` = ended by a signal.
    pub(super) code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    /// The program cannot be started.
    #[error("{program} start failed\n{source}")]
    Start {
        program: String,
        source: std::io::Error,
    },
    /// It did not end in time and was killed.
    #[error("{program} execution failed\nno answer within {} s", TIMEOUT.as_secs())]
    Timeout { program: String },
    /// The system lost track of it.
    #[error("{program} execution failed\n{source}")]
    Wait {
        program: String,
        source: std::io::Error,
    },
}

impl Ran {
    /// Whether it ended with exit code 0.
    pub(super) fn is_ok(&self) -> bool {
        self.code == Some(0)
    }

    /// What happened, for people.
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

/// Runs a command in a directory. The process group is killed if the time is up or nobody waits.
pub(super) async fn run(
    argv: &[String],
    directory: &Path,
    is_parsed: bool,
    timeout: Duration,
) -> Result<Ran, CommandError> {
    let program = argv.first().cloned().unwrap_or_default();
    let mut command = Command::new(&program);
    command
        .args(argv.iter().skip(1))
        .current_dir(directory)
        .env("PWD", directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    if is_parsed {
        // The environment of a submission travels with the job; answers are for us alone.
        command
            .env("LC_ALL", "C")
            .env("SLURM_TIME_FORMAT", "standard")
            .env_remove("SQUEUE_FORMAT");
    }
    let mut child = command.spawn().map_err(|source| CommandError::Start {
        program: program.clone(),
        source,
    })?;
    let group = child
        .id()
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(rustix::process::Pid::from_raw);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let reading = tokio::spawn(async move { tokio::join!(read(stdout), read(stderr)) });
    let ended = tokio::time::timeout(timeout, child.wait()).await;
    if ended.is_err()
        && let Some(group) = group
    {
        // It may have ended just now.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = child.wait().await;
    }
    let output = tokio::time::timeout(DRAIN_TIMEOUT, reading).await;
    let status: ExitStatus = match ended {
        Err(_) => return Err(CommandError::Timeout { program }),
        Ok(Err(source)) => return Err(CommandError::Wait { program, source }),
        Ok(Ok(status)) => status,
    };
    let (stdout, stderr) = output.ok().and_then(Result::ok).unwrap_or_default();
    Ok(Ran {
        program,
        code: status.code(),
        stdout,
        stderr,
    })
}

async fn read(stream: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        // What was read before an error counts.
        let _ = stream.take(OUTPUT_MAX).read_to_end(&mut bytes).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The words of a command for some jobs, with `%{name}` replaced.
pub(super) fn words(
    template: &CommandTemplate,
    values: &[(&str, &str)],
    jobs: &[&str],
) -> Vec<String> {
    let mut argv = Vec::new();
    for group in &template.0 {
        let first = jobs.first().copied().unwrap_or_default();
        let repeated = if group.each_job { jobs } else { &[first] };
        for job in repeated {
            for word in &group.words {
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

/// Replaces each `%{name}` for which there is a value.
pub(super) fn replace<'a>(text: &'a str, find: impl Fn(&'a str) -> Option<&'a str>) -> String {
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
    use hq_protocol::convert::Words;

    fn argv(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    async fn shell(script: &str, timeout: Duration) -> Result<Ran, CommandError> {
        run(&argv(&["sh", "-c", script]), Path::new("/"), true, timeout).await
    }

    #[tokio::test]
    async fn failures_are_told_in_three_lines() {
        let ran = shell("echo out; echo ' err' >&2; exit 3", TIMEOUT).await;
        assert_eq!(
            ran.expect("it runs").failure(),
            "sh execution failed\nExit code: 3\nStderr: err\nStdout: out"
        );
        let missing = run(&argv(&["no-such-program-x"]), Path::new("/"), true, TIMEOUT).await;
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
    }
}
