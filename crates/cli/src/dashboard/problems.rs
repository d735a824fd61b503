//! What is wrong with a run, in sentences, worst first: the answer to a look of ten seconds.
//!
//! Pure rules over the snapshot. A node is suspect if most of what ends there fails while the same
//! jobs go well elsewhere; otherwise failures are blamed on the job.

use std::collections::BTreeMap;

use super::model::{EndedShare, JobRow, Obstacle, QueueRow, Snapshot};

/// Fewer failures than this say nothing about a node.
const NODE_FAILURES_MIN: u64 = 3;

/// How bad something is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Severity {
    /// Work is lost.
    Error,
    /// Work does not go on.
    Warning,
}

/// One finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Problem {
    pub(crate) severity: Severity,
    pub(crate) text: String,
}

#[derive(Clone, Copy, Default)]
struct Ends {
    good: u64,
    bad: u64,
}

impl Ends {
    const fn add(&mut self, share: &EndedShare) {
        if share.error.is_some() {
            self.bad += share.count;
        } else {
            self.good += share.count;
        }
    }

    const fn is_mostly_bad(self) -> bool {
        self.bad > self.good
    }
}

/// All findings.
pub(crate) fn find(
    snapshot: &Snapshot,
    ended: &[EndedShare],
    obstacles: Option<&[Obstacle]>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    let suspects = suspect_hosts(ended);
    for (host, ends) in &suspects {
        let total = ends.good + ends.bad;
        problems.push(Problem {
            severity: Severity::Error,
            text: format!(
                "node {host}: {} of {total} tasks failed there, elsewhere the same jobs go well",
                ends.bad
            ),
        });
    }
    for job in &snapshot.jobs {
        problems.extend(failing_job(job, ended, &suspects));
    }
    problems.extend(lost_workers(snapshot));
    problems.extend(snapshot.queues.iter().filter_map(stuck_queue));
    problems.extend(starving(snapshot, obstacles));
    problems.sort_by_key(|problem| problem.severity);
    problems
}

fn suspect_hosts(ended: &[EndedShare]) -> BTreeMap<&str, Ends> {
    let (mut hosts, mut jobs) = (
        BTreeMap::<&str, Ends>::new(),
        BTreeMap::<(u32, &str), Ends>::new(),
    );
    for share in ended {
        hosts.entry(&share.host).or_default().add(share);
        jobs.entry((share.job, &share.host)).or_default().add(share);
    }
    hosts.retain(|host, ends| {
        let fails_elsewhere = |job: u32| {
            let mut elsewhere = Ends::default();
            for ((_, _), other) in jobs.iter().filter(|((id, at), _)| *id == job && at != host) {
                elsewhere.good += other.good;
                elsewhere.bad += other.bad;
            }
            elsewhere.good == 0 || elsewhere.is_mostly_bad()
        };
        let its_own: u64 = jobs
            .iter()
            .filter(|((job, at), _)| at == host && !fails_elsewhere(*job))
            .map(|(_, ends)| ends.bad)
            .sum();
        ends.is_mostly_bad() && its_own >= NODE_FAILURES_MIN
    });
    hosts
}

fn failing_job(
    job: &JobRow,
    ended: &[EndedShare],
    suspects: &BTreeMap<&str, Ends>,
) -> Option<Problem> {
    if job.counts.failed == 0 {
        return None;
    }
    let mut errors = BTreeMap::<&str, u64>::new();
    let mut blamed = false;
    for share in ended.iter().filter(|share| share.job == job.id) {
        let Some(error) = &share.error else { continue };
        if suspects.contains_key(share.host.as_str()) {
            blamed = true;
        } else {
            *errors.entry(error).or_default() += share.count;
        }
    }
    // The shares are read less often than the counts: until they are there the counts are all that is known.
    let left = if errors.is_empty() && !blamed {
        job.counts.failed
    } else {
        errors.values().sum()
    };
    if left == 0 {
        return None;
    }
    let most = errors.iter().max_by_key(|(_, count)| **count);
    let why = most.map_or(String::new(), |(error, _)| format!(", mostly: {error}"));
    Some(Problem {
        severity: Severity::Error,
        text: format!(
            "job {} `{}`: {left} of {} tasks failed{why}",
            job.id,
            job.name,
            job.counts.total()
        ),
    })
}

/// A queue that gets nothing.
fn stuck_queue(queue: &QueueRow) -> Option<Problem> {
    let (id, name, reason) = (queue.id, &queue.name, &queue.reason);
    let text = if queue.is_paused {
        format!("queue {id} `{name}` is paused: {reason}")
    } else if reason.contains("failure") {
        format!("queue {id} `{name}`: {reason}")
    } else {
        return None;
    };
    Some(Problem {
        severity: Severity::Warning,
        text,
    })
}

fn lost_workers(snapshot: &Snapshot) -> Option<Problem> {
    let bad = |reason: &str| reason.contains("lost");
    let lost = snapshot
        .workers
        .iter()
        .filter(|worker| worker.ended.as_deref().is_some_and(bad));
    let hosts: Vec<&str> = lost.map(|worker| worker.host.as_str()).collect();
    let (last, count) = (hosts.last()?, hosts.len());
    Some(Problem {
        severity: Severity::Warning,
        text: format!("workers lost: {count}, the last one on {last}"),
    })
}

/// Jobs of which nothing runs. Where nobody can be asked for the reason, only if nothing runs at all: it is
/// normal that jobs wait for others.
fn starving(snapshot: &Snapshot, obstacles: Option<&[Obstacle]>) -> Vec<Problem> {
    let has_worker = snapshot.connected().next().is_some();
    let is_idle = snapshot.jobs.iter().all(|job| job.counts.running == 0);
    let mut found = Vec::new();
    for job in snapshot.jobs.iter().filter(|job| job.is_starving()) {
        let known = obstacles.unwrap_or_default();
        let why = match known.iter().find(|known| known.job == job.id) {
            _ if !has_worker => "there is no worker".to_owned(),
            Some(known) => known.why.clone(),
            None if obstacles.is_none() && is_idle => {
                format!("see `hq task explain {} TASK`", job.id)
            }
            None => continue,
        };
        found.push(Problem {
            severity: Severity::Warning,
            text: format!(
                "job {} `{}`: none of {} waiting tasks runs, {why}",
                job.id, job.name, job.counts.waiting
            ),
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::model::{Counts, WorkerRow};
    use super::*;

    fn share(job: u32, host: &str, error: Option<&str>, count: u64) -> EndedShare {
        EndedShare {
            job,
            worker: 1,
            host: host.to_owned(),
            error: error.map(str::to_owned),
            count,
        }
    }

    fn job(id: u32, counts: Counts) -> JobRow {
        JobRow {
            id,
            name: format!("j{id}"),
            is_open: false,
            counts,
        }
    }

    fn texts(snapshot: &Snapshot, ended: &[EndedShare]) -> Vec<String> {
        let no_gpu = Obstacle {
            job: 3,
            why: "they ask for gpus".to_owned(),
        };
        let obstacles = Some(&[no_gpu][..]);
        find(snapshot, ended, obstacles)
            .into_iter()
            .map(|problem| problem.text)
            .collect()
    }

    #[test]
    fn names_a_broken_node_a_failing_template_and_a_starving_queue() {
        let counts = |failed, waiting, finished| Counts {
            failed,
            waiting,
            finished,
            ..Counts::default()
        };
        let snapshot = Snapshot {
            jobs: vec![
                job(1, counts(5, 0, 90)),
                job(2, counts(40, 0, 2)),
                job(3, counts(0, 9, 0)),
            ],
            workers: vec![WorkerRow::default()],
            queues: vec![QueueRow {
                id: 4,
                is_paused: true,
                name: "gpu".to_owned(),
                reason: "it failed 3 times".to_owned(),
                ..QueueRow::default()
            }],
            ..Snapshot::default()
        };
        let ended = [
            share(1, "n1", None, 90),
            share(1, "n2", Some("exit code 127"), 5),
            share(2, "n1", Some("exit code 1"), 39),
            share(2, "n1", None, 2),
            share(2, "n2", Some("exit code 1"), 1),
        ];
        assert_eq!(
            texts(&snapshot, &ended),
            [
                "node n2: 6 of 6 tasks failed there, elsewhere the same jobs go well",
                "job 2 `j2`: 39 of 42 tasks failed, mostly: exit code 1",
                "queue 4 `gpu` is paused: it failed 3 times",
                "job 3 `j3`: none of 9 waiting tasks runs, they ask for gpus",
            ]
        );
    }

    #[test]
    fn a_run_without_problems_has_none() {
        let counts = Counts {
            running: 3,
            waiting: 9,
            finished: 100,
            ..Counts::default()
        };
        let snapshot = Snapshot {
            jobs: vec![job(1, counts)],
            workers: vec![WorkerRow::default()],
            ..Snapshot::default()
        };
        assert!(texts(&snapshot, &[share(1, "n1", None, 100)]).is_empty());
    }

    #[test]
    fn the_only_node_is_not_blamed_for_a_bad_job() {
        let counts = Counts {
            failed: 10,
            ..Counts::default()
        };
        let snapshot = Snapshot {
            jobs: vec![job(1, counts)],
            ..Snapshot::default()
        };
        let found = texts(&snapshot, &[share(1, "n1", Some("killed by signal 9"), 10)]);
        assert_eq!(
            found,
            ["job 1 `j1`: 10 of 10 tasks failed, mostly: killed by signal 9"]
        );
    }
}
