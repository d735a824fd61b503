//! Determines the remaining lifetime of the batch job that contains a worker, according to its
//! batch system.
//!
//! The batch system is queried once before the worker starts, without another thread and with a
//! time limit. If there is no answer, the worker starts without a lifetime.

use std::io::{Read as _, Seek as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hq_core::batch::qstat;
use hq_core::worker_config::BatchSystem;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, fmt::strtime};

/// How long to wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// How long to wait for an answer when the worker is ending and has little time.
const ENDING_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum length of an answer in bytes.
const ANSWER_MAX: u64 = 1 << 20;

/// Returns the lifetime of a worker with the option `limit` in an allocation with the remaining
/// time `left`.
pub(super) fn of_worker(limit: Option<Duration>, left: Option<Duration>) -> Option<Duration> {
    let of_allocation = left.map(hq_core::batch::worker_lifetime);
    match (limit, of_allocation) {
        (Some(limit), Some(left)) => Some(limit.min(left)),
        (limit, left) => limit.or(left),
    }
}

/// Two sources agree if they differ by at most this. PBS updates the time of a job every two
/// minutes.
const AGREEMENT: SignedDuration = SignedDuration::from_secs(150);

/// Returns the remaining time of a Slurm job.
pub(super) fn left_in_slurm(job: &str) -> Option<Duration> {
    let answer = ask("scontrol", &["show", "job", job]).unwrap_or_default();
    let end = std::env::var("SLURM_JOB_END_TIME").ok();
    of_slurm(
        &answer,
        end.as_deref(),
        Timestamp::now(),
        &TimeZone::system(),
    )
    .best("Slurm")
}

/// Returns the remaining time of a PBS job.
pub(super) fn left_in_pbs(job: &str) -> Option<Duration> {
    let (now, zone) = (Timestamp::now(), TimeZone::system());
    let found = ask("qstat", &["-f", "-F", "json", job]);
    let found = found.and_then(|text| of_pbs(&qstat::strict_json(&text), job, now, &zone));
    let found = found.or_else(|| {
        let text = ask("qstat", &["-f", job])?;
        of_pbs(&qstat::plain_as_json(&text), job, now, &zone)
    });
    found?.best("PBS")
}

/// The remaining time of a job, as reported by a batch system.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct TimeLeft {
    /// The job's time limit.
    limit: Option<SignedDuration>,
    /// The remaining time according to each source, best source first. All sources except the batch
    /// system's own computation depend on the clock of this node, which may be wrong.
    sources: Vec<SignedDuration>,
}

impl TimeLeft {
    /// Returns the first source that another one confirms (the shorter of the two), or else the
    /// first source. A running job has some time left, but not more than its limit. If no source
    /// gives such a value, only the limit is known.
    fn best(&self, system: &str) -> Option<Duration> {
        let longest = self
            .limit
            .map_or(SignedDuration::MAX, |limit| limit.saturating_add(AGREEMENT));
        let is_possible = |left: &&SignedDuration| left.is_positive() && **left <= longest;
        let possible: Vec<SignedDuration> =
            self.sources.iter().filter(is_possible).copied().collect();
        let confirmed = possible.iter().enumerate().find_map(|(at, one)| {
            let mut others = possible.iter().skip(at + 1);
            let other = others.find(|other| (**other - *one).abs() <= AGREEMENT)?;
            Some(*one.min(other))
        });
        if let (Some(wrong), None) = (self.sources.first(), possible.first()) {
            tracing::warn!(
                "{system} reports that this job has {wrong:#} left, but it runs: the clock of this node, or of {system}, is wrong. The worker ignores this time limit"
            );
        }
        let left = confirmed.or(possible.first().copied()).or(self.limit);
        let left = left.map(|left| self.limit.map_or(left, |limit| left.min(limit)));
        left.and_then(|left| Duration::try_from(left).ok())
    }
}

/// Parses `RunTime=00:01:00 TimeLimit=00:10:00 … EndTime=2026-11-21T08:00:00` in local time.
/// Unlimited jobs have no end. `end` is the end in seconds since 1970, which newer releases set in
/// the environment.
fn of_slurm(answer: &str, end: Option<&str>, now: Timestamp, zone: &TimeZone) -> TimeLeft {
    let value = |key: &str| {
        let mut words = answer.split_whitespace();
        words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    };
    let limit = value("TimeLimit").and_then(slurm_duration);
    let computed = limit.zip(value("RunTime").and_then(slurm_duration));
    let told = value("EndTime").and_then(|text| text.parse::<DateTime>().ok());
    let told = told.and_then(|end| zone.to_timestamp(end).ok());
    let variable = end.and_then(|text| Timestamp::from_second(text.trim().parse().ok()?).ok());
    let sources = [
        computed.map(|(limit, passed)| limit - passed),
        told.map(|end| end.duration_since(now)),
        variable.map(|end| end.duration_since(now)),
    ];
    TimeLeft {
        limit,
        sources: sources.into_iter().flatten().collect(),
    }
}

/// Parses `[DAYS-]HH:MM:SS`, also with fewer parts.
fn slurm_duration(text: &str) -> Option<SignedDuration> {
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let mut seconds: i64 = 0;
    for part in clock.split(':') {
        seconds = seconds
            .checked_mul(60)?
            .checked_add(part.parse::<u32>().ok()?.into())?;
    }
    let days: i64 = days.parse::<u32>().ok()?.into();
    Some(SignedDuration::from_secs(days * 86_400 + seconds))
}

/// Parses the JSON of `qstat -f`.
fn of_pbs(answer: &str, job: &str, now: Timestamp, zone: &TimeZone) -> Option<TimeLeft> {
    let answer: serde_json::Value = serde_json::from_str(answer).ok()?;
    let job = answer.get("Jobs")?.get(job)?;
    let time = |list: &str| {
        let of_list = job.get(list).and_then(|list| list.get("walltime"));
        // The value has the same form as in plain text.
        let text = of_list.or(job.get(format!("{list}.walltime")))?.as_str()?;
        let time = crate::parse::duration::parse_duration(text).ok()?;
        SignedDuration::try_from(time).ok()
    };
    let limit = time("Resource_List")?;
    let start = job.get("stime").and_then(serde_json::Value::as_str);
    let start = start.and_then(|text| strtime::parse("%a %b %d %H:%M:%S %Y", text).ok());
    let start = start.and_then(|parsed| zone.to_timestamp(parsed.to_datetime().ok()?).ok());
    let sources = [
        time("resources_used").map(|used| limit - used),
        start.map(|start| limit - now.duration_since(start)),
    ];
    Some(TimeLeft {
        limit: Some(limit),
        sources: sources.into_iter().flatten().collect(),
    })
}

/// Returns whether the batch system is ending the job, as far as one second of waiting shows. If
/// there is no answer, and in PBS, which does not report it, the worker assumes so when it receives
/// a stop signal.
pub(super) fn is_ending(manager: BatchSystem, job: &str) -> bool {
    match manager {
        BatchSystem::Slurm => {
            let answer = ask_within(ENDING_TIMEOUT, "scontrol", &["show", "job", job]);
            answer.is_none_or(|answer| is_ending_in_slurm(&answer))
        }
        BatchSystem::Pbs | BatchSystem::Other => true,
    }
}

/// Returns whether Slurm is ending a job. Slurm reports the job's state, and the time of a decision
/// to preempt it.
fn is_ending_in_slurm(answer: &str) -> bool {
    let value = |key: &str| {
        let mut words = answer.split_whitespace();
        words.find_map(|word| word.strip_prefix(key))
    };
    let is_preempted = value("PreemptTime=").is_some_and(|time| time != "None");
    is_preempted || value("JobState=") != Some("RUNNING")
}

/// Returns the standard output of a program that succeeded in time.
fn ask(program: &str, args: &[&str]) -> Option<String> {
    ask_within(ANSWER_TIMEOUT, program, args)
}

fn ask_within(timeout: Duration, program: &str, args: &[&str]) -> Option<String> {
    let mut output = hq_private::unnamed_file(&std::env::temp_dir()).ok()?;
    let mut child = Command::new(program)
        .args(args)
        .env("LC_ALL", "C")
        .env("SLURM_TIME_FORMAT", "standard")
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
                // The program may just have ended.
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

    /// The answer for a job of ten minutes that started at 08:00 and has been running for two
    /// minutes.
    const ANSWER: &str = "JobId=12 JobName=hq-1-1\n   RunTime=00:02:00 TimeLimit=00:10:00 TimeMin=N/A\n \
                          StartTime=2026-11-21T08:00:00 EndTime=2026-11-21T08:10:00 Deadline=N/A\n";

    #[test]
    fn the_time_left_in_slurm_needs_no_right_clock() {
        let answer = ANSWER;
        let no_run_time = answer.replace("RunTime", "X");
        // `scontrol` computes the run time with the clock of the node that it runs on.
        let ahead = answer.replace("00:02:00", "00:32:00");
        let one_source = answer.replace("EndTime", "X");
        let unlimited = answer
            .replace("00:10:00", "UNLIMITED")
            .replace("2026-11-21T08:10:00", "Unknown");
        let end = Some("1795248600");
        for (answer, end, clock, left) in [
            (answer, end, "08:02", Some(480)),
            (answer, None, "08:02", Some(480)),
            // The clock is wrong: an end in the past or beyond the limit is ignored.
            (answer, end, "09:02", Some(480)),
            (answer, end, "07:02", Some(480)),
            (&*ahead, end, "08:32", Some(600)),
            (&*no_run_time, end, "08:32", Some(600)),
            // Two sources that agree take precedence over one.
            (
                &*answer.replace("00:02:00", "00:09:00"),
                end,
                "08:02",
                Some(480),
            ),
            (&*no_run_time, None, "08:02", Some(480)),
            (&*one_source, None, "09:00", Some(480)),
            // A time in a user-defined format is not interpreted.
            (
                &*no_run_time.replace("T08:10:00", " 08:10:00"),
                end,
                "08:02",
                Some(480),
            ),
            (&*unlimited, None, "08:02", None),
            ("", end, "08:02", Some(480)),
            ("", None, "08:02", None),
            (
                "TimeLimit=1-00:00:00 RunTime=01:00",
                None,
                "08:02",
                Some(86_340),
            ),
        ] {
            let now = at(&format!("2026-11-21T{clock}:00Z"));
            let found = of_slurm(answer, end, now, &TimeZone::UTC).best("Slurm");
            assert_eq!(found, left.map(Duration::from_secs), "{clock} {answer}");
        }
    }

    #[test]
    fn the_time_left_in_slurm_is_right_with_wrong_clocks_and_time_formats() {
        const STANDARD: &str = "2026-11-21T08:10:00";
        let no_run_time = ANSWER.replace("RunTime", "X");
        let formats = [
            STANDARD,
            "08:10:00",
            "1795248600",
            "08:10",
            "2026-11-21 08:10:00",
        ];
        let wrong = [180, 3_600, 86_400].map(|secs| [secs, -secs]);
        for (format, wrong) in formats
            .iter()
            .flat_map(|f| wrong.as_flattened().iter().map(move |w| (f, w)))
        {
            let now = at("2026-11-21T08:02:00Z") + SignedDuration::from_secs(*wrong);
            let left = |answer: &str| {
                of_slurm(&answer.replace(STANDARD, format), None, now, &TimeZone::UTC).best("Slurm")
            };
            assert_eq!(
                left(ANSWER),
                Some(Duration::from_secs(480)),
                "{format} {wrong}"
            );
            let left = left(&no_run_time).expect("the limit is known");
            assert!(
                (1..=600).contains(&left.as_secs()),
                "{format} {wrong}: {left:?}"
            );
        }
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
    fn the_time_left_in_pbs_needs_no_right_clock() {
        // A shortened answer of OpenPBS 23.06 about a job of ten minutes that has been running for
        // half a minute.
        let json = r#"{"pbs_version": "23.06.06", "Jobs": {"1.pbshost": {"job_state": "R",
            "Resource_List": {"ncpus": 1, "walltime": "00:10:00"},
            "resources_used": {"walltime": "00:00:30"},
            "stime": "Sat Nov 21 09:21:26 2026"}}}"#;
        let plain = "Job Id: 1.pbshost\n    resources_used.walltime = 00:00:30\n    \
                     Resource_List.walltime = 00:10:00\n    stime = Sat Nov 21 09:21:26 2026\n";
        let unused = json.replace("resources_used", "x");
        for (answer, job, clock, left) in [
            (json, "1.pbshost", "09:21:56", Some(570)),
            (
                &*qstat::plain_as_json(plain),
                "1.pbshost",
                "09:21:56",
                Some(570),
            ),
            (&*unused, "1.pbshost", "09:21:56", Some(570)),
            (json, "1.pbshost", "10:21:56", Some(570)),
            (json, "1.pbshost", "08:21:56", Some(570)),
            (&*unused, "1.pbshost", "10:21:56", Some(600)),
            (json, "2.pbshost", "09:21:56", None),
        ] {
            let now = at(&format!("2026-11-21T{clock}Z"));
            let found = of_pbs(answer, job, now, &TimeZone::UTC);
            let found = found.and_then(|found| found.best("PBS"));
            assert_eq!(found, left.map(Duration::from_secs), "{clock} {answer}");
        }
    }
}
