//! Parses the output of `sbatch` and `scontrol show job`.

use hq_core::autoalloc::Report;
use hq_core::batch::SystemSpec;

use super::{Question, last_line, meaning};

/// Returns the job id, with the cluster after a semicolon. `sbatch` prints it in the `Submitted
/// batch job` line. `sbatch --parsable` and wrappers of `sbatch` print it alone in the last line.
pub(super) fn submitted_id(text: &str) -> Option<String> {
    const BEGIN: &str = "submitted batch job";
    let mut lines = text.lines().map(str::trim);
    let said = lines.find(|line| {
        let begin = line.get(..BEGIN.len());
        begin.is_some_and(|begin| begin.eq_ignore_ascii_case(BEGIN))
    });
    let Some(said) = said else {
        let alone = last_line(text)?;
        let id = alone.split(';').next().unwrap_or_default();
        let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
        return is_id.then(|| alone.trim_end_matches(';').to_owned());
    };
    let words: Vec<&str> = said.split_whitespace().skip(3).collect();
    match words[..] {
        [id, "on", "cluster", cluster, ..] => Some(format!("{id};{cluster}")),
        [id, ..] => Some(id.to_owned()),
        [] => None,
    }
}

/// Returns the value of a key. The value can contain spaces, and ends at the next key or at the end
/// of its line.
fn text_of<'a>(record: &'a str, key: &str) -> Option<&'a str> {
    let mut lines = record.lines();
    let text = lines.find_map(|line| Some(line.split_once(key)?.1))?;
    let is_key = |(at, _): &(usize, &str)| {
        let word = text[at + 1..].split_once('=').map(|(word, _)| word);
        word.is_some_and(|word| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphabetic()))
    };
    let end = text
        .match_indices(' ')
        .find(is_key)
        .map_or(text.len(), |(at, _)| at);
    Some(text[..end].trim_end())
}

/// Reasons of waiting jobs that do not explain why a job ended.
const WAIT_REASONS: [&str; 3] = ["Resources", "Priority", "BeginTime"];

/// Parses `JobId=12 JobName=… JobState=RUNNING Reason=None …`, possibly for several tasks of one
/// job.
pub(super) fn report(system: &SystemSpec, text: &str, jobs: &[Question<'_>]) -> Vec<Report> {
    let of_job = |job: &Question<'_>| {
        let id = job.id;
        let records = text.split("\n\n");
        let value = |record: &str, key: &str| {
            let mut words = record.split_whitespace();
            let found = words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
            found.map(str::to_owned)
        };
        let mut own = records.filter(|record| value(record, "JobId").as_deref() == Some(id));
        let Some(record) = own.next() else {
            return Report::Error(format!("there is no JobId={id} in the answer").into());
        };
        let (name, dir) = (text_of(record, " JobName="), text_of(record, " WorkDir="));
        if let Some(foreign) = job.ours.foreign(name, dir) {
            return foreign;
        }
        let Some(state) = value(record, "JobState") else {
            return Report::Unreadable(
                format!("there is no JobState of {id} in the answer").into(),
            );
        };
        // Slurm keeps the reason why a job waited, even if the job was canceled while it waited.
        let is_stale = |reason: &str| state == "CANCELLED" && WAIT_REASONS.contains(&reason);
        let reason = value(record, "Reason");
        let reason = reason.filter(|reason| reason != "None" && !is_stale(reason));
        let exit = value(record, "ExitCode").filter(|exit| exit != "0:0");
        let exit = exit.map(|exit| format!("exit code {}", exit.trim_end_matches(":0")));
        let hint: Vec<String> = [reason, exit].into_iter().flatten().collect();
        meaning(system, &state, &hint.join(", "))
    };
    jobs.iter().map(of_job).collect()
}
