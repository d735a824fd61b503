//! Parses selectors of jobs and workers: `last`, `all`, or ids.

use std::fmt;

use hq_core::range::IdArray;
use hq_protocol::client;

use super::ParseError;
use super::array::parse_id_array;
use crate::error::{CliError, CliResult};

/// A selector: `last`, `all`, or an id array.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Selector {
    /// The highest id that was ever allocated.
    Last,
    /// All jobs or workers that the command can apply to.
    All,
    /// These ids.
    Ids(IdArray),
}

/// A selector of one job or worker: `last` or one id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SingleSelector {
    /// The highest id that was ever allocated.
    Last,
    /// This id.
    Id(u32),
}

/// One or more jobs and some of their tasks: `3`, `3.7`, `last.1-4`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct JobTasks<J = SingleSelector> {
    /// The job.
    pub(crate) job: J,
    /// The ids of the tasks. `None` means all tasks.
    pub(crate) tasks: Option<IdArray>,
}

impl<J> JobTasks<J> {
    /// Returns the selected tasks, which another argument or option may also specify.
    pub(crate) fn tasks(&self, apart: Option<&IdArray>) -> CliResult<Option<IdArray>> {
        match (&self.tasks, apart) {
            (Some(_), Some(_)) => Err(CliError::usage(
                "the tasks are named twice: after the `.`, and in a separate word or option",
            )),
            (tasks, apart) => Ok(tasks.as_ref().or(apart).cloned()),
        }
    }

    /// Like `tasks`, for commands where tasks must be specified.
    pub(crate) fn some_tasks(&self, apart: Option<&IdArray>) -> CliResult<IdArray> {
        self.tasks(apart)?.ok_or_else(|| {
            CliError::usage(
                "the ids of the tasks are missing; `3.7` is task 7 of job 3, and `hq task list 3` lists the tasks of job 3",
            )
        })
    }
}

impl fmt::Display for SingleSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Last => f.write_str("last"),
            Self::Id(id) => id.fmt(f),
        }
    }
}

impl From<SingleSelector> for Selector {
    fn from(selector: SingleSelector) -> Self {
        match selector {
            SingleSelector::Last => Self::Last,
            SingleSelector::Id(id) => Self::one(id),
        }
    }
}

impl Selector {
    /// Selects one id.
    pub(crate) fn one(id: u32) -> Self {
        Self::Ids(IdArray::single(id))
    }

    /// Converts the selector to a message for the server.
    pub(crate) fn to_message(&self) -> client::Selector {
        use client::selector::Selector as Wire;
        let selector = match self {
            Self::Last => Wire::Last(client::Empty {}),
            Self::All => Wire::All(client::Empty {}),
            Self::Ids(ids) => Wire::Ids(ids.into()),
        };
        client::Selector {
            selector: Some(selector),
        }
    }
}

/// Rejects `2_3`: in Slurm, this is a task of an array; here, it would be job 23.
fn check_groups(text: &str) -> Result<(), ParseError> {
    for (at, _) in text.match_indices('_') {
        let digits = text[at + 1..].bytes().take_while(u8::is_ascii_digit);
        if digits.count() != 3 {
            let note = "`_` must precede three digits, as in `1_000`";
            return Err(super::Cursor::new("ID", text).note_at(at, note));
        }
    }
    Ok(())
}

/// Parses an id array without ambiguous ids.
fn parse_ids(text: &str) -> Result<Selector, ParseError> {
    check_groups(text)?;
    parse_id_array(text).map(Selector::Ids)
}

/// Parses `last`, `all` or an id array.
pub(crate) fn parse_selector(text: &str) -> Result<Selector, ParseError> {
    match text {
        "last" => Ok(Selector::Last),
        "all" => Ok(Selector::All),
        ids => parse_ids(ids),
    }
}

/// Parses `last` or an id array.
pub(crate) fn parse_last_or_ids(text: &str) -> Result<Selector, ParseError> {
    match text {
        "last" => Ok(Selector::Last),
        ids => parse_ids(ids),
    }
}

/// Parses `last` or one id.
pub(crate) fn parse_last_or_id(text: &str) -> Result<SingleSelector, ParseError> {
    if text == "last" {
        return Ok(SingleSelector::Last);
    }
    parse_id(text, &["number", "`last`"]).map(SingleSelector::Id)
}

fn parse_id(text: &str, expected: &'static [&'static str]) -> Result<u32, ParseError> {
    check_groups(text)?;
    let mut cursor = super::Cursor::new("ID", text);
    let id = cursor.number(expected)?;
    cursor.finish(&["end of input"])?;
    Ok(id)
}

/// Parses `JOB` or `JOB.TASKS`, where JOB is `last` or one id, and TASKS is an id array.
pub(crate) fn parse_job_tasks(text: &str) -> Result<JobTasks, ParseError> {
    with_tasks(text, parse_last_or_id)
}

/// Parses `JOBS` or `JOBS.TASKS`, where JOBS is `last` or an id array, and TASKS is an id array.
pub(crate) fn parse_jobs_tasks(text: &str) -> Result<JobTasks<Selector>, ParseError> {
    with_tasks(text, parse_last_or_ids)
}

/// Parses `ID` or `ID.TASKS`.
pub(crate) fn parse_id_tasks(text: &str) -> Result<JobTasks<u32>, ParseError> {
    with_tasks(text, |job| parse_id(job, &["number"]))
}

/// Splits off the tasks. Also accepts `3@7`, which two tables print for compatibility with scripts.
fn with_tasks<J>(
    text: &str,
    parse_job: impl Fn(&str) -> Result<J, ParseError>,
) -> Result<JobTasks<J>, ParseError> {
    let (job, tasks) = match text.split_once(['.', '@']) {
        Some((job, tasks)) => (job, Some(tasks)),
        None => (text, None),
    };
    Ok(JobTasks {
        job: parse_job(job)?,
        tasks: tasks.map(parse_id_array).transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_for_sets() {
        assert_eq!(parse_selector("last"), Ok(Selector::Last));
        assert_eq!(parse_selector("all"), Ok(Selector::All));
        assert!(matches!(parse_selector("1-3"), Ok(Selector::Ids(ids)) if ids.len() == 3));
        assert!(parse_last_or_ids("all").is_err());
        assert_eq!(parse_last_or_id("7"), Ok(SingleSelector::Id(7)));
        assert_eq!(parse_last_or_id("last"), Ok(SingleSelector::Last));
        assert!(parse_last_or_id("1,2").is_err());
        for (text, is_read) in [
            ("2_3", false),
            ("1_000", true),
            ("1_0_01", false),
            ("1,1_000_000", true),
        ] {
            assert_eq!(parse_selector(text).is_ok(), is_read, "{text}");
        }
        assert!(parse_last_or_id("2_3").is_err() && parse_job_tasks("2_3").is_err());
    }

    #[test]
    fn tasks_follow_their_job() {
        let found = parse_job_tasks("last.2-4,7").expect("valid");
        assert_eq!(found.job, SingleSelector::Last);
        assert_eq!(found.tasks.map(|ids| ids.len()), Some(4));
        let found = parse_job_tasks("12").expect("valid");
        assert_eq!((found.job, found.tasks), (SingleSelector::Id(12), None));
        for wrong in ["", ".3", "1.", "1.2.3", "all", "1-2"] {
            assert!(parse_job_tasks(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_job_tasks("3@7"), parse_job_tasks("3.7"));
        let found = parse_jobs_tasks("1-2.5").expect("valid");
        assert!(matches!(&found.job, Selector::Ids(ids) if ids.len() == 2));
        let five = parse_id_array("5").expect("valid");
        assert_eq!(found.tasks(None), Ok(Some(five.clone())));
        assert!(found.tasks(Some(&five)).is_err(), "named twice");
        let job = parse_id_tasks("3").expect("valid");
        assert_eq!(job.tasks(Some(&five)), Ok(Some(five)));
        assert!(job.some_tasks(None).is_err(), "not named");
    }
}
