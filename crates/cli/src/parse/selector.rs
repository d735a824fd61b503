//! Selectors of jobs and workers: `last`, `all`, or ids.

use hq_core::range::IdArray;
use hq_protocol::client;

use super::ParseError;
use super::array::parse_id_array;

/// `last`, `all`, or an id array.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Selector {
    /// Highest id that was ever allocated.
    Last,
    /// Everything the command can mean.
    All,
    /// These ids.
    Ids(IdArray),
}

/// `last` or one id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SingleSelector {
    /// Highest id that was ever allocated.
    Last,
    /// This id.
    Id(u32),
}

/// A job and some of its tasks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct JobTasks {
    /// The job.
    pub(crate) job: SingleSelector,
    /// Ids of its tasks; `None` = all.
    pub(crate) tasks: Option<IdArray>,
}

impl Selector {
    /// The selector as the server understands it.
    pub(crate) fn to_message(&self) -> client::Selector {
        use client::selector::Selector as Wire;
        let selector = match self {
            Self::Last => Wire::Last(client::Empty {}),
            Self::All => Wire::All(client::Empty {}),
            Self::Ids(ids) => Wire::Ids(array_to_message(ids)),
        };
        client::Selector {
            selector: Some(selector),
        }
    }
}

/// Exactly one job, or one worker.
pub(crate) fn one_job(id: u32) -> Result<Selector, crate::error::CliError> {
    use crate::error::CliError;
    let ids = IdArray::consecutive(id, 1).map_err(|e| CliError::caused("Broken job id", &e))?;
    Ok(Selector::Ids(ids))
}

/// An id array as it travels.
pub(crate) fn array_to_message(ids: &IdArray) -> hq_protocol::common::IdArray {
    let ranges = ids
        .ranges()
        .iter()
        .map(|range| hq_protocol::common::IdRange {
            first: range.first(),
            count: range.count(),
            step: range.step(),
            slack: range.end() - range.last(),
        })
        .collect();
    hq_protocol::common::IdArray { ranges }
}

/// Reads `last`, `all` or an id array.
pub(crate) fn parse_selector(text: &str) -> Result<Selector, ParseError> {
    match text {
        "last" => Ok(Selector::Last),
        "all" => Ok(Selector::All),
        ids => parse_id_array(ids).map(Selector::Ids),
    }
}

/// Reads `last` or an id array.
pub(crate) fn parse_last_or_ids(text: &str) -> Result<Selector, ParseError> {
    match text {
        "last" => Ok(Selector::Last),
        ids => parse_id_array(ids).map(Selector::Ids),
    }
}

/// Reads `last` or one id.
pub(crate) fn parse_last_or_id(text: &str) -> Result<SingleSelector, ParseError> {
    if text == "last" {
        return Ok(SingleSelector::Last);
    }
    let mut cursor = super::Cursor::new("ID", text);
    let id = cursor.number(&["number", "`last`"])?;
    cursor.finish(&["end of input"])?;
    Ok(SingleSelector::Id(id))
}

/// Reads `JOB` or `JOB.TASKS`: `last` or one id, and an id array.
pub(crate) fn parse_job_tasks(text: &str) -> Result<JobTasks, ParseError> {
    let (job, tasks) = match text.split_once('.') {
        Some((job, tasks)) => (job, Some(tasks)),
        None => (text, None),
    };
    Ok(JobTasks {
        job: parse_last_or_id(job)?,
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
    }
}
