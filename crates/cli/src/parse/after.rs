//! Parses jobs to wait for: `7`, `last:any`.

use super::selector::{SingleSelector, parse_last_or_id};

/// A value of `--after` and `--after-each`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AfterArg {
    /// The job.
    pub(crate) job: SingleSelector,
    /// Whether the job may end in any way.
    pub(crate) is_any: bool,
}

/// Parses `JOB`, `JOB:ok` or `JOB:any`.
pub(crate) fn parse_after(text: &str) -> Result<AfterArg, String> {
    let (job, is_any) = match text.split_once(':') {
        None => (text, false),
        Some((job, "ok")) => (job, false),
        Some((job, "any")) => (job, true),
        Some((_, other)) => {
            return Err(format!(
                "expected `ok` or `any` after the job, found `{other}`"
            ));
        }
    };
    let job = parse_last_or_id(job).map_err(|error| error.to_string())?;
    Ok(AfterArg { job, is_any })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_and_how_it_has_to_end() {
        let after = |job, is_any| Ok(AfterArg { job, is_any });
        assert_eq!(parse_after("7"), after(SingleSelector::Id(7), false));
        assert_eq!(parse_after("7:ok"), after(SingleSelector::Id(7), false));
        assert_eq!(parse_after("last:any"), after(SingleSelector::Last, true));
        for bad in ["", ":any", "7:", "7:maybe", "1-3", "x"] {
            assert!(parse_after(bad).is_err(), "{bad}");
        }
    }
}
