//! Output of `sbatch` and `scontrol show job`.

use hq_core::autoalloc::Report;
use hq_core::batch::SystemSpec;

use super::meaning;

/// Fourth word of the line that says so.
pub(super) fn submitted_id(text: &str) -> Option<&str> {
    const BEGIN: &str = "submitted batch job";
    let mut lines = text.lines().map(str::trim);
    let line = lines.find(|line| {
        let begin = line.get(..BEGIN.len());
        begin.is_some_and(|begin| begin.eq_ignore_ascii_case(BEGIN))
    })?;
    line.split_whitespace().nth(3)
}

/// From `JobId=12 JobName=… JobState=RUNNING Reason=None …`, perhaps with several tasks of one job.
pub(super) fn report(system: &SystemSpec, text: &str, jobs: &[&str]) -> Vec<Report> {
    let of_job = |job: &&str| {
        let records = text.split("\n\n");
        let value = |record: &str, key: &str| {
            let mut words = record.split_whitespace();
            let found = words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
            found.map(str::to_owned)
        };
        let mut own = records.filter(|record| value(record, "JobId").as_deref() == Some(*job));
        let Some(record) = own.next() else {
            return Report::Error(format!("there is no JobId={job} in the answer").into());
        };
        let Some(state) = value(record, "JobState") else {
            return Report::Error(format!("there is no JobState of {job} in the answer").into());
        };
        let reason = value(record, "Reason").filter(|reason| reason != "None");
        meaning(system, &state, &reason.unwrap_or_default())
    };
    jobs.iter().map(of_job).collect()
}
