//! Parses the output of batch systems into inputs for automatic allocation. Pure.
//!
//! The output is not trusted. Output that is not clearly an answer counts as an error, and a
//! submission that was not clearly rejected may have succeeded.

mod pbs;
mod slurm;

use hq_core::autoalloc::{LookupOutcome, Report, SubmitOutcome};
use hq_core::batch::{
    CommandTemplate, FindFormat, StateMeaning, StatusFormat, SubmitFormat, SystemSpec,
};

use super::command::{CommandError, ProgramResult};

/// The maximum length of output quoted in messages, in bytes.
const SHOWN_LEN_MAX: usize = 2_000;
/// The maximum length of a job id, in bytes. Longer texts are not accepted as ids.
const JOB_LEN_MAX: usize = 256;

/// Error messages of `qsub` and `sbatch` that mean that the program did not reach its server. They
/// are used for batch system descriptions without such an entry, for example in queues that were
/// created before the entry existed.
const UNREACHABLE: [&str; 2] = [
    "cannot connect to server",
    "Unable to contact slurm controller",
];

/// The result of running a command.
pub(super) type Answer = Result<ProgramResult, CommandError>;

/// The expected name and directory of our job. They ensure that no other job is canceled or
/// counted. Empty if unknown.
#[derive(Clone, Debug, Default)]
pub(super) struct ExpectedJob {
    pub(super) name: Option<String>,
    /// All paths of the directory from which the job was submitted.
    pub(super) dirs: Vec<String>,
}

impl ExpectedJob {
    /// Returns whether a job is not ours. The directory decides if it is known, because a site may
    /// change names, and another server of the same user may have allocations with the same names.
    fn is_foreign(&self, name: Option<&str>, dir: Option<&str>) -> bool {
        match dir {
            Some(dir) if !self.dirs.is_empty() => self.dirs.iter().all(|own| own != dir),
            Some(_) | None => {
                let own = self.name.as_deref();
                own.zip(name).is_some_and(|(own, name)| own != name)
            }
        }
    }

    /// Returns whether a job is the one that was searched for: one from our directory or, if that is
    /// unknown, with our name.
    fn is_found(&self, name: Option<&str>, dir: Option<&str>) -> bool {
        let dir_decides = dir.is_some() && !self.dirs.is_empty();
        !self.is_foreign(name, dir) && (dir_decides || self.has_name(name))
    }

    fn has_name(&self, name: Option<&str>) -> bool {
        self.name.is_some() && self.name.as_deref() == name
    }

    /// Returns a report if the job is not ours.
    fn foreign(&self, name: Option<&str>, dir: Option<&str>) -> Option<Report> {
        let is_foreign = self.is_foreign(name, dir);
        is_foreign.then(|| {
            let (name, dir) = (name.unwrap_or_default(), dir.unwrap_or_default());
            let text = format!("the job of this id is another one: `{name}`, submitted in {dir}");
            Report::Foreign(shown(&text))
        })
    }
}

/// A job whose state is requested.
#[derive(Clone, Debug)]
pub(super) struct Question<'a> {
    /// The job's id, without a cluster.
    pub(super) id: &'a str,
    pub(super) ours: ExpectedJob,
}

/// Returns the outcome of a submission.
pub(super) fn submitted(system: &SystemSpec, answer: &Answer) -> SubmitOutcome {
    let ran = match answer {
        Ok(ran) => ran,
        Err(error @ CommandError::Start { .. }) => {
            return SubmitOutcome::Refused(shown(&error.to_string()));
        }
        Err(error) => return SubmitOutcome::Unclear(shown(&error.to_string())),
    };
    let failure = shown(&ran.failure());
    match ran.code {
        None => return SubmitOutcome::Unclear(failure),
        Some(0) => {}
        Some(_) => {
            return if says_one_of(ran, &system.unclear) {
                SubmitOutcome::Unclear(failure)
            } else if is_unreachable(system, ran) {
                SubmitOutcome::Unreachable(failure)
            } else {
                SubmitOutcome::Refused(failure)
            };
        }
    }
    let id = match system.submit_format {
        SubmitFormat::Sbatch => slurm::submitted_id(&ran.stdout),
        SubmitFormat::LastLine => last_line(&ran.stdout).map(str::to_owned),
    };
    match id.filter(|id| is_job_id(id)) {
        Some(id) => SubmitOutcome::Accepted(id.into()),
        None => {
            let text = format!(
                "Missing job id in {} output\n{}",
                ran.program,
                ran.stdout.trim()
            );
            SubmitOutcome::Unclear(shown(&text))
        }
    }
}

/// Returns the last line that is not blank.
fn last_line(text: &str) -> Option<&str> {
    let mut lines = text.lines().rev().map(str::trim);
    lines.find(|line| !line.is_empty())
}

/// Returns whether a failed submission did not reach the batch system.
fn is_unreachable(system: &SystemSpec, ran: &ProgramResult) -> bool {
    if system.unreachable.is_empty() {
        return UNREACHABLE.iter().any(|text| ran.stderr.contains(text));
    }
    says_one_of(ran, &system.unreachable)
}

/// Returns whether standard error contains one of the texts.
fn says_one_of(ran: &ProgramResult, texts: &[Box<str>]) -> bool {
    texts.iter().any(|text| ran.stderr.contains(&**text))
}

/// Returns whether a text can be an id: one word of moderate length.
fn is_job_id(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= JOB_LEN_MAX
        && !text.starts_with('-')
        && !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

/// Returns the state of each job in an answer, with `None` for jobs that it does not mention.
/// Returns `None` for the whole answer if it cannot be used.
pub(super) fn reports(
    system: &SystemSpec,
    answer: &Answer,
    jobs: &[Question<'_>],
) -> Option<Vec<Option<Report>>> {
    let ran = answer.as_ref().ok()?;
    ran.code?;
    let knows_not_all = says_one_of(ran, &system.missing);
    match system.status_format {
        StatusFormat::Scontrol => {
            if knows_not_all && !ran.is_ok() {
                return Some(vec![Some(Report::Missing); jobs.len()]);
            }
            let found = ran
                .is_ok()
                .then(|| slurm::report(system, &ran.stdout, jobs))?;
            Some(found.into_iter().map(Some).collect())
        }
        // The program prints the jobs that it knows, even if its exit code says that others are
        // unknown.
        StatusFormat::PbsJson => pbs::reports(system, ran, jobs),
        StatusFormat::Lines => {
            if !ran.is_ok() && !knows_not_all {
                return None;
            }
            Some(
                jobs.iter()
                    .map(|job| Some(of_lines(system, &ran.stdout, job.id)))
                    .collect(),
            )
        }
    }
}

/// Returns whether the batch system reported no jobs at all because ended jobs were requested as
/// well.
pub(super) fn keeps_no_history(system: &SystemSpec, answer: &Answer) -> bool {
    let is_pbs = system.status_format == StatusFormat::PbsJson;
    is_pbs && answer.as_ref().is_ok_and(pbs::keeps_no_history)
}

/// Returns the command to run if the first one gives no answer. Empty if there is none.
pub(super) fn status_fallback(system: &SystemSpec) -> CommandTemplate {
    if !system.status_fallback.is_empty() {
        return system.status_fallback.clone();
    }
    if system.status_format != StatusFormat::PbsJson {
        return CommandTemplate::default();
    }
    // Allocations must not be lost because a description has no fallback command.
    let other = pbs::without_history(&system.status);
    if other == system.status {
        CommandTemplate::default()
    } else {
        other
    }
}

/// Returns the status command with plain output, for unreadable JSON. Empty if there is none.
pub(super) fn status_plain(system: &SystemSpec) -> CommandTemplate {
    if system.status_format != StatusFormat::PbsJson {
        return CommandTemplate::default();
    }
    pbs::without_history(&pbs::in_plain_text(&system.status))
}

/// The commands of a search for a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Search {
    /// Prints jobs or their ids.
    pub(super) find: CommandTemplate,
    /// Requests the states of jobs whose ids `find` printed.
    pub(super) status: CommandTemplate,
}

/// Returns searches. A job does not exist if none of them finds it.
pub(super) fn searches(system: &SystemSpec) -> Vec<Search> {
    let search = |change: fn(&CommandTemplate) -> CommandTemplate| Search {
        find: change(&system.find),
        status: change(&system.status),
    };
    match system.find_format {
        FindFormat::Lines => vec![search(CommandTemplate::clone)],
        // Some PBS releases omit jobs from their JSON output.
        FindFormat::PbsJson => vec![search(CommandTemplate::clone), search(pbs::in_plain_text)],
    }
}

/// Returns the command to run if a command of a search failed for lack of history, or `None` if it
/// gave an answer.
pub(super) fn find_without_history(
    system: &SystemSpec,
    asked: &CommandTemplate,
    answer: &Answer,
) -> Option<CommandTemplate> {
    let is_pbs = system.find_format == FindFormat::PbsJson;
    let is_refused = is_pbs && answer.as_ref().is_ok_and(pbs::keeps_no_history);
    is_refused.then(|| pbs::without_history(asked))
}

/// Returns the ids that the search command of PBS printed, or `None` if the answer is not a list of
/// ids.
pub(super) fn found_ids<'a>(system: &SystemSpec, answer: &'a Answer) -> Option<Vec<&'a str>> {
    let ran = answer.as_ref().ok().filter(|ran| ran.is_ok())?;
    let lines = ran.stdout.lines().map(str::trim);
    let ids: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    let is_pbs_id = |id: &&str| is_job_id(id) && id.starts_with(|c: char| c.is_ascii_digit());
    (system.find_format == FindFormat::PbsJson && ids.iter().all(is_pbs_id)).then_some(ids)
}

fn of_lines(system: &SystemSpec, text: &str, job: &str) -> Report {
    let line = text
        .lines()
        .find(|line| line.split_whitespace().next() == Some(job));
    let Some(line) = line else {
        return Report::Missing;
    };
    let mut words = line.split_whitespace().skip(1);
    let state = words.next().unwrap_or_default();
    let rest: Vec<&str> = words.collect();
    meaning(system, state, &rest.join(" "))
}

/// Returns the meaning of a state word. `hint` is additional text from the batch system.
fn meaning(system: &SystemSpec, state: &str, hint: &str) -> Report {
    let words = shown(&match hint {
        "" => state.to_owned(),
        hint => format!("{state}: {hint}"),
    });
    match system.states.get(state) {
        Some(StateMeaning::Queued) => {
            Report::Queued(if hint.is_empty() { words } else { shown(hint) })
        }
        Some(StateMeaning::Running) => Report::Running,
        Some(StateMeaning::Suspended) => Report::Suspended(words),
        Some(StateMeaning::Completing) => Report::Completing(words),
        Some(StateMeaning::Finished) => Report::Finished(words),
        Some(meaning @ (StateMeaning::Failed | StateMeaning::FailedMayReturn)) => Report::Failed {
            text: words,
            may_return: *meaning == StateMeaning::FailedMayReturn,
        },
        None => {
            let text = format!("Unknown {} job status {state}", system.name);
            Report::Unreadable(shown(&text))
        }
    }
}

/// Returns the outcome of the search for our job.
pub(super) fn parse_lookup(
    system: &SystemSpec,
    answer: &Answer,
    ours: &ExpectedJob,
) -> LookupOutcome {
    let ran = match answer {
        Ok(ran) => ran,
        Err(error) => return LookupOutcome::Error(shown(&error.to_string())),
    };
    let found = match system.find_format {
        FindFormat::Lines => find_line(&ran.stdout, ours),
        FindFormat::PbsJson => match pbs::find(&ran.stdout, ours) {
            Ok(found) => found,
            Err(pbs::NotJson) if ran.is_ok() => {
                let text = format!("{} printed neither jobs nor ids", ran.program);
                return LookupOutcome::Error(text.into());
            }
            Err(pbs::NotJson) => None,
        },
    };
    // PBS prints the jobs that it knows even if another job has vanished meanwhile.
    let is_pbs = system.find_format == FindFormat::PbsJson;
    let is_answer = ran.is_ok() && !(is_pbs && pbs::keeps_no_history(ran));
    if !is_answer && (found.is_none() || !is_pbs) {
        return LookupOutcome::Error(shown(&ran.failure()));
    }
    match found.filter(|id| is_job_id(id)) {
        Some(job) => LookupOutcome::Found(job.into()),
        None => LookupOutcome::Absent,
    }
}

/// Returns the id from the first line that contains either our directory or no directory. Adds the
/// cluster from a preceding `CLUSTER: name` line.
fn find_line(text: &str, ours: &ExpectedJob) -> Option<String> {
    let mut cluster = None;
    text.lines().find_map(|line| {
        let line = line.trim();
        if let Some(name) = line.strip_prefix("CLUSTER:") {
            cluster = Some(name.trim());
            return None;
        }
        let (id, dir) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let dir = Some(dir.trim()).filter(|dir| !dir.is_empty());
        let is_ours = !id.is_empty() && !ours.is_foreign(None, dir);
        is_ours.then(|| match cluster {
            Some(cluster) => format!("{id};{cluster}"),
            None => id.to_owned(),
        })
    })
}

/// Returns `Ok` if a job has been canceled or does not exist.
pub(super) fn canceled(system: &SystemSpec, answer: &Answer) -> Result<(), Box<str>> {
    match answer {
        Ok(ran) if ran.is_ok() => Ok(()),
        Ok(ran) if says_one_of(ran, &system.missing) => Ok(()),
        Ok(ran) => Err(shown(&ran.failure())),
        Err(error) => Err(shown(&error.to_string())),
    }
}

/// Returns the report about a job after an unreadable answer.
pub(super) fn unread(answer: &Answer, job: &str) -> Report {
    let text = complaint(answer);
    match answer {
        // The job exists, so there is no reason to give it up.
        Ok(ran) if pbs::names(&ran.stdout.replace(['"', ':', '='], " "), job) => {
            Report::Unreadable(text)
        }
        Ok(_) | Err(_) => Report::Error(text),
    }
}

/// Returns why an answer cannot be used.
pub(super) fn complaint(answer: &Answer) -> Box<str> {
    match answer {
        Ok(ran) if ran.is_ok() => shown(&format!(
            "{} gave no usable answer\n{}",
            ran.program,
            ran.stdout.trim()
        )),
        Ok(ran) => shown(&ran.failure()),
        Err(error) => shown(&error.to_string()),
    }
}

/// Truncates a text to a bounded length.
fn shown(text: &str) -> Box<str> {
    let text = text.trim();
    if text.len() <= SHOWN_LEN_MAX {
        return text.into();
    }
    let end = (0..=SHOWN_LEN_MAX)
        .rev()
        .find(|end| text.is_char_boundary(*end));
    format!("{}…", &text[..end.unwrap_or(0)]).into()
}

#[cfg(test)]
mod tests;
