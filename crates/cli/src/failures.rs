//! Groups failed tasks by their cause, according to the last line of their output.

use std::collections::{BTreeMap, BTreeSet};

use hq_core::outcome::NO_ROOM;
use hq_core::signature::{one_line, sample, signature, without_paths};

/// If this many tasks with the same error had the same last words, the remaining ones are assumed
/// to have them too.
const ALIKE_MIN: usize = 3;

/// A task that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failed {
    /// The task id within its job.
    pub(crate) task: u32,
    /// The host on which the task ran.
    pub(crate) host: String,
    /// The error.
    pub(crate) error: String,
    /// The names and values of its parameters.
    pub(crate) params: Vec<(String, String)>,
}

/// Tasks that failed in the same way.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Group {
    /// The error text. In sentences, `#` replaces numbers.
    pub(crate) error: String,
    /// The last words of the tasks. `#` replaces numbers and `/…` replaces paths where they differ.
    /// `None` if there was no output.
    pub(crate) words: Option<String>,
    /// The error and the last words of one task, unchanged.
    pub(crate) example: String,
    /// Whether all outputs that were read had exactly these words.
    pub(crate) is_same: bool,
    /// The number of tasks whose output was read. The others had the same error, and are assumed to
    /// have the same words.
    pub(crate) read: usize,
    /// The task ids in ascending order.
    pub(crate) tasks: Vec<u32>,
    /// The hosts on which the tasks ran.
    pub(crate) hosts: BTreeSet<String>,
    /// The parameters that have the same value in all tasks.
    pub(crate) params: Vec<(String, String)>,
}

impl Group {
    /// Returns the cause of `count` tasks on one line: `exit code 2: ValueError: no index for chr7,
    /// and 11 like it`.
    pub(crate) fn reason(&self, count: usize) -> String {
        if self.is_same || count <= 1 {
            return self.example.clone();
        }
        format!("{}, and {} like it", self.example, count - 1)
    }
}

/// Returns the essential words of an error text: `Program terminated with exit code 2.` becomes
/// `exit code 2`. In sentences, `#` replaces numbers.
pub(crate) fn error_words(error: &str) -> String {
    end_words(error).unwrap_or_else(|| signature(first_line(error)))
}

fn end_words(error: &str) -> Option<String> {
    let line = first_line(error);
    if let Some((_, signal)) = line.split_once("Received signal ")
        && let Some((_, name)) = signal.split_once('(')
    {
        return Some(format!("killed by {}", name.trim_end_matches([')', '.'])));
    }
    let how = line.strip_prefix("Program terminated with ")?;
    let how = how.trim_end_matches('.');
    // The worker added this line. It also explains why the output may be empty.
    let no_room = error.lines().find(|line| line.starts_with(NO_ROOM));
    Some(no_room.map_or_else(
        || how.to_owned(),
        |line| format!("{how}; {}", signature(line)),
    ))
}

fn first_line(error: &str) -> &str {
    error.trim().lines().next().unwrap_or_default()
}

/// Returns an error and the last words of its task, unchanged. `words` is `None` if the output was
/// not read.
fn reason(error: &str, words: Option<Option<&str>>) -> String {
    let (ended, words) = (end_words(error), words.map(|words| words.map(one_line)));
    match (ended, words) {
        (Some(ended), Some(Some(words))) => format!("{ended}: {words}"),
        (Some(ended), Some(None)) => format!("{ended}; no output"),
        (Some(ended), None) => format!("{ended}; its output was not read"),
        // A sentence is a reason by itself.
        (None, words) => {
            let sentence = one_line(first_line(error));
            match words.flatten() {
                Some(words) => format!("{}: {words}", sentence.trim_end_matches('.')),
                None => sentence,
            }
        }
    }
}

/// Selects at most `max` tasks whose output is read, spread over the job and over the errors. Half
/// of them are chosen in proportion to the frequency of the errors, and the other half equally, so
/// that rare errors are covered.
pub(crate) fn to_read(failed: &[Failed], max: usize) -> Vec<&Failed> {
    if failed.len() <= max {
        return failed.iter().collect();
    }
    let mut ways = BTreeMap::<String, Vec<&Failed>>::new();
    for one in failed {
        ways.entry(error_words(&one.error)).or_default().push(one);
    }
    let equal = max / 2 / ways.len();
    let mut ways: Vec<(usize, Vec<&Failed>)> = ways
        .into_values()
        .map(|alike| {
            let by_size = (max - max / 2) * alike.len() / failed.len();
            (alike.len().min(equal + by_size), alike)
        })
        .collect();
    let shared: usize = ways.iter().map(|(share, _)| share).sum();
    let mut left = max.saturating_sub(shared);
    // Distributes the selections that rare errors do not need, and the rounding error.
    ways.sort_by_key(|(_, alike)| std::cmp::Reverse(alike.len()));
    let mut chosen = Vec::new();
    for (share, alike) in ways {
        let more = left.min(alike.len() - share);
        left -= more;
        let some = sample(alike.len(), share + more);
        chosen.extend(some.filter_map(|at| alike.get(at)));
    }
    chosen
}

/// Returns the groups, largest first. `said` contains the last words of the tasks whose output was
/// read.
pub(crate) fn group(failed: &[Failed], said: &BTreeMap<u32, Option<String>>) -> Vec<Group> {
    let mut groups = BTreeMap::<(String, Option<Option<String>>), Group>::new();
    for one in failed {
        let read = said.get(&one.task).map(Option::as_deref);
        let example = reason(&one.error, read);
        let words = read.map(|words| words.map(signature));
        let error = error_words(&one.error);
        // Lines that differ only in paths have the same cause.
        let cause = words
            .as_ref()
            .map(|words| words.as_deref().map(without_paths));
        let group = groups
            .entry((error.clone(), cause.clone()))
            .or_insert_with(|| Group {
                error,
                words: words.clone().flatten(),
                example: example.clone(),
                is_same: true,
                params: one.params.clone(),
                ..Group::default()
            });
        // Keeps the parts that all lines share.
        if group.words != words.flatten() {
            group.words = cause.flatten();
        }
        group.is_same &= group.example == example;
        group.params.retain(|pair| one.params.contains(pair));
        group.read += usize::from(said.contains_key(&one.task));
        group.tasks.push(one.task);
        group.hosts.insert(one.host.clone());
    }
    let mut groups = join_unread(groups.into_values().collect());
    for group in &mut groups {
        group.tasks.sort_unstable();
    }
    groups.sort_by_cached_key(|group| {
        let size = std::cmp::Reverse(group.tasks.len());
        // Among groups of the same size and error, the groups with the fewest known words come
        // first.
        (
            size,
            group.error.clone(),
            group.read > 0,
            group.words.clone(),
        )
    });
    groups
}

/// Failed tasks with a common property, regardless of their causes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct FailureGroup {
    /// The property, which is a host or an error.
    pub(crate) name: String,
    /// The task ids in ascending order.
    pub(crate) tasks: Vec<u32>,
    /// The hosts on which the tasks ran.
    pub(crate) hosts: BTreeSet<String>,
    /// The causes and their number of tasks, most frequent first.
    pub(crate) reasons: Vec<(String, usize)>,
}

/// Returns the failures grouped by a property other than their reason, largest group first.
pub(crate) fn failure_groups(
    failed: &[Failed],
    groups: &[Group],
    name: impl Fn(&Failed) -> String,
) -> Vec<FailureGroup> {
    let by_id: BTreeMap<u32, &Failed> = failed.iter().map(|one| (one.task, one)).collect();
    let mut by_name = BTreeMap::<String, FailureGroup>::new();
    for group in groups {
        let mut counts = BTreeMap::<String, usize>::new();
        for one in group.tasks.iter().filter_map(|task| by_id.get(task)) {
            let name = name(one);
            let target = by_name.entry(name.clone()).or_insert_with(|| FailureGroup {
                name: name.clone(),
                ..FailureGroup::default()
            });
            target.tasks.push(one.task);
            target.hosts.insert(one.host.clone());
            *counts.entry(name).or_default() += 1;
        }
        for (name, count) in counts {
            if let Some(target) = by_name.get_mut(&name) {
                target.reasons.push((group.reason(count), count));
            }
        }
    }
    let mut found: Vec<FailureGroup> = by_name.into_values().collect();
    for target in &mut found {
        target.tasks.sort_unstable();
        target
            .reasons
            .sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    }
    found.sort_by_key(|target| std::cmp::Reverse(target.tasks.len()));
    found
}

/// Adds tasks whose output was not read to the group with the same error, if that error has only
/// one group.
fn join_unread(groups: Vec<Group>) -> Vec<Group> {
    let (mut read, unread): (Vec<Group>, Vec<Group>) =
        groups.into_iter().partition(|group| group.read > 0);
    let mut left = Vec::new();
    for rest in unread {
        let mut alike = read.iter_mut().filter(|group| group.error == rest.error);
        match (alike.next(), alike.next()) {
            (Some(group), None) if group.read >= ALIKE_MIN => {
                group.params.retain(|pair| rest.params.contains(pair));
                group.is_same = false;
                group.tasks.extend(rest.tasks);
                group.hosts.extend(rest.hosts);
            }
            _ => left.push(rest),
        }
    }
    read.extend(left);
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_with_the_same_last_words_are_one_group() {
        let failed = |task: u32, error: &str| Failed {
            task,
            host: format!("n{}", task % 2),
            error: error.to_owned(),
            params: vec![
                ("lr".to_owned(), "0.1".to_owned()),
                ("seed".to_owned(), task.to_string()),
            ],
        };
        let exit = "Program terminated with exit code 2.";
        let all = [
            failed(9, exit),
            failed(1, exit),
            failed(2, exit),
            failed(3, exit),
            failed(4, exit),
            failed(5, "Error: Cannot execute \"./job_5\""),
            failed(6, "Out of memory: used 188.8 of 50 MiB"),
        ];
        let word = |task: u32| Some(format!("ValueError: no index for chr{task}"));
        let said = BTreeMap::from([
            (1, word(1)),
            (2, None),
            (6, None),
            (3, Some("other".to_owned())),
            (9, word(9)),
        ]);
        let groups = group(&all, &said);
        let shown: Vec<_> = groups
            .iter()
            .map(|group| {
                let reason = group.reason(group.tasks.len());
                (reason, group.tasks.clone(), group.hosts.len())
            })
            .collect();
        let expected = [
            (
                "exit code 2: ValueError: no index for chr9, and 1 like it",
                vec![1, 9],
                1,
            ),
            ("Error: Cannot execute \"./job_5\"", vec![5], 1),
            ("Out of memory: used 188.8 of 50 MiB", vec![6], 1),
            ("exit code 2; its output was not read", vec![4], 1),
            ("exit code 2; no output", vec![2], 1),
            ("exit code 2: other", vec![3], 1),
        ];
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(reason, tasks, hosts)| (reason.to_owned(), tasks, hosts))
            .collect();
        assert_eq!(shown, expected);
        let params: Vec<usize> = groups.iter().map(|group| group.params.len()).collect();
        assert_eq!(params, [1, 2, 2, 2, 2, 2], "what all of a group have");
    }

    #[test]
    fn failures_are_put_together_by_node_and_by_exit_code() {
        let failed: Vec<Failed> = (0..30)
            .map(|task| Failed {
                task,
                host: if task < 20 { "n1" } else { "n2" }.to_owned(),
                error: format!("Program terminated with exit code {}.", 1 + task % 3),
                params: Vec::new(),
            })
            .collect();
        let said = failed.iter().map(|one| (one.task, Some("lost".to_owned())));
        let groups = group(&failed, &said.collect());
        let nodes = failure_groups(&failed, &groups, |one| one.host.clone());
        let sizes: Vec<_> = nodes
            .iter()
            .map(|group| (group.name.as_str(), group.tasks.len(), group.reasons.len()))
            .collect();
        assert_eq!(sizes, [("n1", 20, 3), ("n2", 10, 3)]);
        assert_eq!(nodes[0].reasons[0], ("exit code 1: lost".to_owned(), 7));
        let codes = failure_groups(&failed, &groups, |one| error_words(&one.error));
        assert_eq!(codes.len(), 3);
        assert_eq!((codes[0].tasks.len(), codes[0].hosts.len()), (10, 2));
    }

    #[test]
    fn what_is_rare_is_read_as_well() {
        let failed: Vec<Failed> = (0..10_000)
            .map(|task| Failed {
                task,
                host: "n1".to_owned(),
                error: match task % 1_000 {
                    7 => "Program terminated with exit code 3.".to_owned(),
                    _ => "Program terminated with exit code 1.".to_owned(),
                },
                params: Vec::new(),
            })
            .collect();
        let read = to_read(&failed, 200);
        let rare = read.iter().filter(|one| one.error.contains('3')).count();
        assert_eq!(rare, 10, "all of them");
        assert_eq!(read.len(), 200);
        let causes: BTreeSet<u32> = read.iter().map(|one| one.task % 12).collect();
        assert_eq!(causes.len(), 12);
        assert_eq!(to_read(&failed[..200], 200).len(), 200);
        assert!(to_read(&failed, 0).is_empty());
    }

    #[test]
    fn many_failures_with_few_causes_are_few_groups() {
        let failed: Vec<Failed> = (0..100_000)
            .map(|task| Failed {
                task,
                host: format!("n{}", task % 7),
                error: format!("Program terminated with exit code {}.", 1 + task % 12),
                params: Vec::new(),
            })
            .collect();
        let read = to_read(&failed, 200);
        // Each task names a different file.
        let words = |task: u32| {
            format!(
                "cause {}: /data/{task:x}/in.bam",
                "abcdefghijkl".split_at((task % 12) as usize).1
            )
        };
        let said = read.iter().map(|one| (one.task, Some(words(one.task))));
        let groups = group(&failed, &said.collect());
        assert_eq!(groups.len(), 12, "{groups:?}");
        let sum: usize = groups.iter().map(|group| group.tasks.len()).sum();
        assert_eq!(sum, 100_000);
        let masked = |group: &Group| group.words.clone().unwrap_or_default();
        assert!(groups.iter().all(|group| masked(group).ends_with(": /…")));
        let reasons = groups.iter().map(|group| group.reason(group.tasks.len()));
        assert!(
            reasons
                .into_iter()
                .all(|reason| reason.ends_with(" like it"))
        );
        // One of the tasks has other words, so the words of the remaining tasks are unknown.
        let other = read[0].task;
        let said = read.iter().map(|one| {
            let words = if one.task == other {
                "another".to_owned()
            } else {
                words(one.task)
            };
            (one.task, Some(words))
        });
        assert_eq!(group(&failed, &said.collect()).len(), 14);
    }

    #[test]
    fn errors_are_told_in_few_words() {
        let signal =
            "Program terminated with exit code -1. Received signal 9 (SIGKILL).\nOut of memory";
        assert_eq!(error_words(signal), "killed by SIGKILL");
        assert_eq!(error_words("Time limit reached"), "Time limit reached");
        let full = format!("Program terminated with exit code 1.\n{NO_ROOM}/scratch/7.stdout");
        assert_eq!(
            error_words(&full),
            format!("exit code 1; {NO_ROOM}/scratch/#.stdout")
        );
    }
}
