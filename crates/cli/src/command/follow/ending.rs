//! The last lines of a wait: how the jobs ended, and which command shows more.

use std::io::IsTerminal as _;
use std::time::Duration;

use hq_core::job::JobState;
use hq_core::signature::last_words;
use hq_core::words::{count, part};
use hq_protocol::client::{
    self,
    TaskState::{Aborted, Canceled, Failed},
};
use tokio::time::{Instant, timeout_at};

use crate::args::global::OutputMode;
use crate::client::tail::WORDS_LINES;
use crate::client::{Client, JobInfo};
use crate::command::Context;
use crate::error::{CliError, CliResult, exit};
use crate::output::console::error_line;
use crate::output::format::cut;
use crate::output::view::{job_state, nonzero, params_text, sum, task_state_word, totals};
use crate::parse::selector::Selector;
use crate::text::clean;

/// The maximum number of jobs to describe individually.
const TOLD_MAX: usize = 8;
/// The maximum length of an error or an output line, in characters.
const ERROR_MAX: usize = 200;
/// How long to read outputs. Nodes that do not answer must not delay the end of a wait.
const WORDS_TIMEOUT: Duration = Duration::from_secs(2);

/// Describes the jobs that did not succeed in a human-readable form.
pub(super) async fn print_failures(
    client: &mut Client,
    jobs: &[client::JobSummary],
    context: &Context,
) -> CliResult<()> {
    if context.mode() != OutputMode::Cli {
        return Ok(());
    }
    let bad: Vec<_> = jobs.iter().filter(|job| !is_good(job)).collect();
    let mut told = Vec::new();
    for job in bad.iter().take(TOLD_MAX) {
        let failed = match totals(job).failed {
            0 => None,
            // The job may have been forgotten meanwhile.
            _ => client.ask(JobInfo(&Selector::one(job.id))).await.ok(),
        };
        let first =
            failed.and_then(|infos| infos.jobs.into_iter().next()?.failed.into_iter().next());
        told.push((job, first));
    }
    // The outputs are read last: after a timeout, the connection could mistake a late answer for
    // the answer to its next request.
    let mut may_ask = true;
    let deadline = Instant::now() + WORDS_TIMEOUT;
    for (job, first) in told {
        let said = match &first {
            Some(task) if may_ask && has_run(&task.error) => {
                let said = timeout_at(deadline, words(client, job.id, task.id)).await;
                may_ask = said.is_ok();
                said.ok().flatten()
            }
            Some(_) | None => None,
        };
        error_line(&line(job, first.as_ref(), said.as_deref()));
    }
    if bad.len() > TOLD_MAX {
        error_line(&format!(
            "… and {} more; `hq job list --all` lists them",
            count((bad.len() - TOLD_MAX) as u64, "job")
        ));
    }
    if bad.is_empty() && !jobs.is_empty() && std::io::stderr().is_terminal() {
        error_line(&good(jobs));
    }
    Ok(())
}

/// Returns the last line of a task's standard error, or else of its standard output, if its worker
/// can be reached.
async fn words(client: &mut Client, job: u32, task: u32) -> Option<String> {
    for is_stderr in [true, false] {
        // Output that cannot be read is ignored.
        let text = client.last_lines_of_worker((job, task), is_stderr, WORDS_LINES);
        if let Some(line) = last_words(&text.await.ok()??) {
            return Some(clean(line.trim()));
        }
    }
    None
}

/// Returns whether a task with this error has run. A task that could not be started has no output.
fn has_run(error: &str) -> bool {
    error.starts_with("Program terminated") || error.contains("ime limit")
}

/// Fails if any task did not finish, for commands whose exit code reports that.
pub(super) fn require_good(jobs: &[client::JobSummary]) -> CliResult<()> {
    if jobs.iter().all(is_good) {
        return Ok(());
    }
    Err(CliError::AlreadyReported(exit::FAILURE))
}

fn is_good(job: &client::JobSummary) -> bool {
    let counts = totals(job);
    counts.ended() == counts.finished
}

fn good(jobs: &[client::JobSummary]) -> String {
    let tasks = count(sum(jobs).total(), "task");
    match jobs {
        [job] => format!("Job {} finished: {tasks}", job.id),
        _ => format!("{} finished: {tasks}", count(jobs.len() as u64, "job")),
    }
}

/// Returns a line such as `Job 28 failed: 1 of 1 tasks; task 0: …; see …`.
fn line(
    job: &client::JobSummary,
    first: Option<&client::FailedTask>,
    said: Option<&str>,
) -> String {
    let (id, totals) = (job.id, totals(job));
    let counts = nonzero(totals, [Failed, Canceled, Aborted]).map(|(state, count)| {
        let part = part(count, job.task_count.into(), "task");
        format!("{part} {}", task_state_word(state))
    });
    let counts: Vec<String> = counts.collect();
    let state = match job_state(job) {
        JobState::Canceled => "was canceled",
        JobState::Aborted => "was aborted",
        JobState::Failed
        | JobState::Waiting
        | JobState::Running
        | JobState::Finished
        | JobState::Opened => "failed",
    };
    let mut text = format!("Job {id} {state}: {}", counts.join(", "));
    if let Some(reason) = job
        .cancel_reason
        .as_deref()
        .filter(|reason| !reason.is_empty())
    {
        text.push_str(&format!(" ({reason})"));
    }
    let Some(task) = first else {
        text.push_str(&format!("; `hq job info {id}` shows more"));
        return text;
    };
    let error = task.error.lines().next().unwrap_or_default();
    let error = cut(error, ERROR_MAX).unwrap_or_else(|| error.to_owned());
    let error = error.trim_end_matches('.');
    let mut look = if has_run(error) {
        format!(
            "`hq job cat {id} stderr --tasks {}` prints what it wrote",
            task.id
        )
    } else {
        format!("`hq task info {id}.{}` shows more", task.id)
    };
    if totals.failed > 1 {
        look.push_str(&format!(", `hq job failures {id}` says why all failed"));
    }
    let said = said.map(|said| cut(said, ERROR_MAX).unwrap_or_else(|| said.to_owned()));
    let said = said.map_or_else(String::new, |said| format!(": {said}"));
    let params = match params_text(&task.params) {
        params if params.is_empty() => params,
        params => format!(" ({})", cut(&params, ERROR_MAX).unwrap_or(params)),
    };
    text.push_str(&format!(
        "; task {}{params}: {error}{said}; {look}",
        task.id
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(stats: client::TaskStats) -> client::JobSummary {
        client::JobSummary {
            id: 28,
            task_count: 10,
            stats: Some(stats),
            ..client::JobSummary::default()
        }
    }

    #[test]
    fn the_line_names_the_failure_and_where_to_look() {
        let failed = job(client::TaskStats {
            finished: 8,
            failed: 1,
            aborted: 1,
            ..client::TaskStats::default()
        });
        let task = client::FailedTask {
            id: 3,
            error: "Program terminated with exit code 1.".to_owned(),
            ..client::FailedTask::default()
        };
        let with_params = client::FailedTask {
            params: vec![client::Param {
                name: "lr".to_owned(),
                value: b"0.1".to_vec().into(),
            }],
            ..task.clone()
        };
        let text = line(&failed, Some(&with_params), None);
        assert!(text.contains("; task 3 (lr=0.1): Program"), "{text}");
        assert_eq!(
            line(&failed, Some(&task), None),
            "Job 28 failed: 1 of 10 tasks failed, 1 of 10 tasks aborted; task 3: Program terminated with exit code 1; \
             `hq job cat 28 stderr --tasks 3` prints what it wrote"
        );
        let several = job(client::TaskStats {
            failed: 10,
            ..client::TaskStats::default()
        });
        assert_eq!(
            line(&several, Some(&task), Some("ValueError: no index for chr3")),
            "Job 28 failed: 10 of 10 tasks failed; task 3: Program terminated with exit code 1: ValueError: no index for chr3; \
             `hq job cat 28 stderr --tasks 3` prints what it wrote, `hq job failures 28` says why all failed"
        );
        let canceled = client::JobSummary {
            cancel_reason: Some("enough".to_owned()),
            ..job(client::TaskStats {
                canceled: 10,
                ..client::TaskStats::default()
            })
        };
        assert_eq!(
            line(&canceled, None, None),
            "Job 28 was canceled: 10 of 10 tasks canceled (enough); `hq job info 28` shows more"
        );
    }
}
