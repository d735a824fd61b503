//! How long the batch job around a worker still lives, as its batch system says.
//!
//! Asked once, before the worker starts, without a second thread and with a time limit. If there is no
//! answer the worker goes on without one.

use std::io::{Read as _, Seek as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hq_core::worker_config::BatchSystem;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, fmt::strtime};

/// Longest wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest wait when the worker is told to end: then there is little time.
const ENDING_TIMEOUT: Duration = Duration::from_secs(1);
/// The worker ends this much before its allocation, to end its tasks and to tell the server.
const MARGIN_MAX: Duration = Duration::from_secs(10);
/// Margin of a short allocation, as a divisor of its time limit.
const MARGIN_PART: u32 = 10;
/// Longest answer that is read, in bytes.
const ANSWER_MAX: u64 = 1 << 20;

/// Lifetime of a worker that was given `limit`, in an allocation that has `left`.
pub(super) fn of_worker(limit: Option<Duration>, left: Option<Duration>) -> Option<Duration> {
    let of_allocation = left.map(|left| {
        let left = left - MARGIN_MAX.min(left / MARGIN_PART);
        Duration::from_secs(left.as_secs())
    });
    match (limit, of_allocation) {
        (Some(limit), Some(left)) => Some(limit.min(left)),
        (limit, left) => limit.or(left),
    }
}

/// Time that a Slurm job has left.
pub(super) fn left_in_slurm(job: &str) -> Option<Duration> {
    let now = Timestamp::now();
    if let Ok(text) = std::env::var("SLURM_JOB_END_TIME") {
        return until_second(&text, now);
    }
    let answer = ask("scontrol", &["show", "job", job])?;
    end_time(&answer, now, &TimeZone::system())
}

/// Time that a PBS job has left.
pub(super) fn left_in_pbs(job: &str) -> Option<Duration> {
    let answer = ask("qstat", &["-f", "-F", "json", job])?;
    left_of_walltime(&answer, job, Timestamp::now(), &TimeZone::system())
}

/// Whether the batch system is ending the job, as far as can be told within a second. Without an answer,
/// and in PBS, which does not tell, a worker that is told to end believes that it is.
pub(super) fn is_ending(manager: BatchSystem, job: &str) -> bool {
    match manager {
        BatchSystem::Slurm => {
            let answer = ask_within(ENDING_TIMEOUT, "scontrol", &["show", "job", job]);
            answer.is_none_or(|answer| is_ending_in_slurm(&answer))
        }
        BatchSystem::Pbs | BatchSystem::Other => true,
    }
}

/// Slurm tells the state, and when it decided to preempt a job that still runs.
fn is_ending_in_slurm(answer: &str) -> bool {
    let value = |key: &str| {
        let mut words = answer.split_whitespace();
        words.find_map(|word| word.strip_prefix(key))
    };
    let is_preempted = value("PreemptTime=").is_some_and(|time| time != "None");
    is_preempted || value("JobState=") != Some("RUNNING")
}

/// Standard output of a program that ended well and in time.
fn ask(program: &str, args: &[&str]) -> Option<String> {
    ask_within(ANSWER_TIMEOUT, program, args)
}

fn ask_within(timeout: Duration, program: &str, args: &[&str]) -> Option<String> {
    let mut output = hq_private::unnamed_file(&std::env::temp_dir()).ok()?;
    let mut child = Command::new(program)
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(output.try_clone().ok()?)
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if start.elapsed() < timeout => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(None) | Err(_) => {
                tracing::warn!("`{program}` does not answer");
                // It may be gone just now.
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    };
    if !status.success() {
        return None;
    }
    output.rewind().ok()?;
    let mut text = String::new();
    output.take(ANSWER_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

fn until_second(text: &str, now: Timestamp) -> Option<Duration> {
    let end = Timestamp::from_second(text.trim().parse().ok()?).ok()?;
    Some(Duration::try_from(end.duration_since(now)).unwrap_or_default())
}

/// From `EndTime=2026-11-21T08:00:00`, local time; there is none of unlimited jobs.
fn end_time(answer: &str, now: Timestamp, zone: &TimeZone) -> Option<Duration> {
    let value = answer
        .split_whitespace()
        .find_map(|word| word.strip_prefix("EndTime="))?;
    left_until(value.parse().ok()?, now, zone)
}

fn left_until(end: DateTime, now: Timestamp, zone: &TimeZone) -> Option<Duration> {
    let end = zone.to_timestamp(end).ok()?;
    Some(Duration::try_from(end.duration_since(now)).unwrap_or_default())
}

/// Asked for, less what has passed since the start.
fn left_of_walltime(answer: &str, job: &str, now: Timestamp, zone: &TimeZone) -> Option<Duration> {
    let answer: serde_json::Value = serde_json::from_str(answer).ok()?;
    let job = answer.get("Jobs")?.get(job)?;
    let walltime = job.get("Resource_List")?.get("walltime")?.as_str()?;
    let limit = crate::parse::duration::parse_duration(walltime).ok()?;
    let start = job.get("stime")?.as_str()?;
    let start = strtime::parse("%a %b %d %H:%M:%S %Y", start)
        .ok()?
        .to_datetime()
        .ok()?;
    let passed = now.duration_since(zone.to_timestamp(start).ok()?);
    let passed = Duration::try_from(passed).unwrap_or_default();
    Some(limit.saturating_sub(passed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    #[test]
    fn workers_end_before_their_allocation() {
        let secs = Duration::from_secs;
        assert_eq!(of_worker(None, None), None);
        assert_eq!(of_worker(Some(secs(5)), None), Some(secs(5)));
        assert_eq!(of_worker(None, Some(secs(60))), Some(secs(54)));
        assert_eq!(
            of_worker(Some(secs(3_600)), Some(secs(3_600))),
            Some(secs(3_590))
        );
        assert_eq!(of_worker(Some(secs(30)), Some(secs(3_600))), Some(secs(30)));
    }

    #[test]
    fn reads_what_slurm_says() {
        let now = at("2026-11-21T08:00:00Z");
        let answer = "JobId=12 JobName=hq-1-1\n   StartTime=2026-11-21T08:00:00 \
                      EndTime=2026-11-21T08:05:00 Deadline=N/A\n";
        let left = end_time(answer, now, &TimeZone::UTC);
        assert_eq!(left, Some(Duration::from_secs(300)));
        assert_eq!(end_time("EndTime=Unknown", now, &TimeZone::UTC), None);
        assert_eq!(end_time("", now, &TimeZone::UTC), None);
        assert_eq!(
            until_second("1795248060", now),
            Some(Duration::from_secs(60))
        );
        assert_eq!(until_second("soon", now), None);
    }

    #[test]
    fn sees_that_slurm_ends_a_job() {
        for (answer, is_ending) in [
            (
                "JobState=RUNNING Reason=None PreemptEligibleTime=x PreemptTime=None",
                false,
            ),
            ("JobState=RUNNING PreemptTime=2026-11-21T08:00:00", true),
            ("JobState=CANCELLED Reason=None", true),
            ("JobState=TIMEOUT", true),
            ("", true),
        ] {
            assert_eq!(is_ending_in_slurm(answer), is_ending, "{answer}");
        }
    }

    #[test]
    fn reads_what_pbs_says() {
        let now = at("2026-11-21T09:21:56Z");
        // As OpenPBS 23.06 answered, shortened.
        let answer = r#"{"pbs_version": "23.06.06", "Jobs": {"1.pbshost": {"job_state": "R",
            "Resource_List": {"ncpus": 1, "walltime": "00:02:00"},
            "stime": "Sat Nov 21 09:21:26 2026"}}}"#;
        let left = |job| left_of_walltime(answer, job, now, &TimeZone::UTC);
        assert_eq!(left("1.pbshost"), Some(Duration::from_secs(90)));
        assert_eq!(left("2.pbshost"), None);
    }
}
