//! Each rule finds what it names, and nothing in a healthy cluster.

use super::*;
use crate::resource::amount::UNITS_PER_WHOLE;

#[test]
fn one_task_asks_and_several_ask() {
    let check = |waiting, job, why, text: &str| assert_eq!(why_waiting(waiting, job, why), text);
    let why = "they ask for 8 cpus, no worker has more than 4, and for 1 gpus, no worker has any";
    check(
        1_200,
        None,
        why,
        &format!("none of 1 200 waiting tasks runs: {why}"),
    );
    check(
        2,
        Some(7),
        why,
        &format!("none of 2 waiting tasks of job 7 runs: {why}"),
    );
    let why = &why.replace("they ask", "it asks");
    check(
        1,
        None,
        "they ask for 8 cpus, no worker has more than 4, and for 1 gpus, no worker has any",
        &format!("its waiting task does not run: {why}"),
    );
    check(
        1,
        Some(7),
        "each of their requested resources exists",
        "the waiting task of job 7 does not run: each of its requested resources exists",
    );
    check(
        1,
        None,
        "there is no worker",
        "its waiting task does not run: there is no worker",
    );
}

fn share(job: u32, host: &str, error: Option<&str>, count: u64) -> Share {
    Share {
        job,
        worker: 1,
        host: host.to_owned(),
        error: error.map(str::to_owned),
        count,
    }
}

fn job(id: u32, (finished, failed, waiting, running): (u64, u64, u64, u64)) -> JobFacts<'static> {
    JobFacts {
        id,
        name: "j",
        waiting,
        running,
        finished,
        failed,
        total: finished + failed + waiting + running,
        notes: &[],
    }
}

const HERE: WorkerFacts = WorkerFacts {
    connected: 1,
    lost: 0,
    total: 1,
    last_lost: String::new(),
    unkillable: 0,
    first_unkillable: String::new(),
    unlimited: 0,
    first_unlimited: (String::new(), ""),
};

fn texts(jobs: &[JobFacts<'_>], queues: &[QueueFacts<'_>], shares: &[Share]) -> Vec<String> {
    let obstacles = [Obstacle {
        job: 3,
        why: "they ask for gpus".to_owned(),
    }];
    let facts = Facts {
        jobs,
        workers: &HERE,
        queues,
        shares,
        broken: &[],
        obstacles: Some(&obstacles),
        internal_errors: 0,
        journal: None,
    };
    find(&facts).iter().map(ToString::to_string).collect()
}

#[test]
fn names_a_broken_node_a_failing_job_and_a_starving_queue() {
    let queue = QueueFacts {
        id: 4,
        name: "gpu",
        is_paused: true,
        is_failing: false,
        reason: "it failed 3 times",
    };
    let shares = [
        share(1, "n1", None, 90),
        share(1, "n2", Some("exit code 127"), 5),
        share(2, "n1", Some("exit code 1"), 39),
        share(2, "n1", None, 2),
        share(2, "n2", Some("exit code 1"), 1),
    ];
    let jobs = [
        job(1, (90, 5, 0, 0)),
        job(2, (2, 40, 0, 1)),
        job(3, (0, 0, 1_234, 0)),
    ];
    assert_eq!(
        texts(&jobs, &[queue], &shares),
        [
            "Broken node n2: 5 of 5 tasks failed there, mostly: exit code 127; the same jobs succeed elsewhere",
            "Failing job 2 j: 40 of 43 tasks failed, mostly: exit code 1",
            "Starving queue 4 gpu: asks for no allocations: it failed 3 times",
            "Starving job 3 j: none of 1 234 waiting tasks runs: they ask for gpus",
        ]
    );
}

#[test]
fn of_what_a_batch_system_said_the_complaint_counts() {
    let failed = "next attempt in 9 s, after a failure: sbatch execution failed; Exit code: 1; ";
    let reason = |streams: &str| queue_reason(&format!("{failed}{streams}")).to_owned();
    assert_eq!(
        reason("Stderr: no such partition; Stdout:"),
        "no such partition"
    );
    assert_eq!(reason("Stderr: ; Stdout: usage"), "usage");
    assert_eq!(
        reason("Stderr: ; Stdout:"),
        format!("{failed}Stderr: ; Stdout:")
    );
    assert_eq!(queue_reason("nothing waits for it"), "nothing waits for it");
}

#[test]
fn a_run_without_problems_has_none() {
    let jobs = [job(1, (100, 0, 9, 3))];
    assert!(texts(&jobs, &[], &[share(1, "n1", None, 100)]).is_empty());
}

#[test]
fn a_job_that_fails_on_every_node_is_not_the_fault_of_nodes() {
    // Half of the tasks at random: some nodes had worse luck than others.
    let shares: Vec<Share> = [("n1", 30, 20), ("n2", 18, 32), ("n3", 26, 24)]
        .iter()
        .flat_map(|(host, good, bad)| {
            [
                share(1, host, None, *good),
                share(1, host, Some("exit code 1"), *bad),
            ]
        })
        .collect();
    assert!(suspect_hosts(&shares).is_empty());
    // Even if it is the only node.
    assert!(suspect_hosts(&[share(1, "n1", Some("signal 9 (SIGKILL)"), 10)]).is_empty());
}

#[test]
fn a_good_node_is_not_blamed_for_the_bad_job_beside_the_good_one() {
    let mut shares = Vec::new();
    for host in ["n1", "n2"] {
        shares.push(share(1, host, None, 20));
        shares.push(share(1, host, Some("exit code 4"), 3));
        shares.push(share(2, host, Some("exit code 1"), 200));
    }
    assert!(suspect_hosts(&shares).is_empty());
}

#[test]
fn several_nodes_that_fail_fast_are_found_although_most_tasks_end_there() {
    let mut shares = Vec::new();
    for host in ["n1", "n2", "n3"] {
        shares.push(share(1, host, None, 20));
    }
    for host in ["n4", "n5"] {
        shares.push(share(1, host, Some("exit code 127"), 3_000));
    }
    assert_eq!(
        suspect_hosts(&shares).into_iter().collect::<Vec<_>>(),
        ["n4", "n5"]
    );
}

#[test]
fn a_job_that_runs_on_the_one_large_node_only_is_to_blame_itself() {
    let mut shares = vec![share(1, "large", None, 50)];
    for host in ["n1", "n2", "n3"] {
        shares.push(share(1, host, Some("out of memory"), 9));
    }
    assert!(suspect_hosts(&shares).is_empty());
}

#[test]
fn a_failing_job_stays_one_if_most_of_it_ended_on_a_broken_node() {
    let shares = [
        share(1, "n1", None, 90),
        share(1, "n2", Some("exit code 127"), 900),
        share(2, "n1", Some("exit code 3"), 1),
        share(2, "n2", Some("exit code 3"), 39),
    ];
    assert_eq!(
        texts(
            &[job(1, (90, 900, 0, 0)), job(2, (0, 40, 0, 0))],
            &[],
            &shares
        ),
        [
            "Broken node n2: 900 of 900 tasks failed there, mostly: exit code 127; the same jobs succeed elsewhere",
            "Failing job 2 j: 40 of 40 tasks failed, mostly: exit code 3",
        ]
    );
}

#[test]
fn a_failing_job_of_which_all_ended_on_a_broken_node_is_named() {
    let shares = [
        share(1, "n1", None, 90),
        share(1, "n2", Some("exit code 127"), 900),
        share(2, "n2", Some("exit code 3"), 40),
    ];
    assert_eq!(
        texts(
            &[job(1, (90, 900, 0, 0)), job(2, (0, 40, 0, 0))],
            &[],
            &shares
        ),
        [
            "Broken node n2: 900 of 900 tasks failed there, mostly: exit code 127; the same jobs succeed elsewhere",
            "Failing job 2 j: 40 of 40 tasks failed, mostly: exit code 3; all of them on broken nodes",
        ]
    );
}

#[test]
fn memory_is_told_in_gibibytes() {
    let units = |whole: u64| Amount(whole * UNITS_PER_WHOLE);
    assert_eq!(
        lacking("mem", units(9_000_000), units(24_105)),
        "they ask for 8789.06 GiB of memory, no worker has more than 23.54 GiB"
    );
    assert_eq!(
        lacking("gpus/nvidia", Amount(1), units(0)),
        "they ask for all gpus/nvidia, no worker has any"
    );
    assert_eq!(
        lacking("gpus/amd", units(2), units(0)),
        "they ask for 2 GPUs (gpus/amd), no worker has any"
    );
}

#[test]
fn few_failures_among_many_tasks_are_a_warning() {
    let shares = [
        share(1, "n1", None, 999),
        share(1, "n1", Some("exit code 2"), 1),
    ];
    assert_eq!(
        texts(&[job(1, (999, 1, 0, 0))], &[], &shares),
        ["Failures in job 1 j: 1 of 1 000 tasks failed, mostly: exit code 2"]
    );
}

#[test]
fn a_journal_that_takes_nothing_comes_first() {
    let shares = [share(1, "n1", Some("exit code 1"), 90)];
    for (reason, expected) in [
        (
            None,
            "Hanging journal /scratch/state.db: its disk or file system",
        ),
        (
            Some("disk is full"),
            "Unwritable journal /scratch/state.db: it cannot be written (disk is full)",
        ),
    ] {
        let facts = Facts {
            jobs: &[job(1, (0, 90, 0, 0))],
            workers: &HERE,
            queues: &[],
            broken: &[],
            shares: &shares,
            obstacles: None,
            internal_errors: 0,
            journal: Some(JournalFacts {
                path: "/scratch/state.db",
                reason,
            }),
        };
        let found: Vec<String> = find(&facts).iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with(expected), "{found:?}");
    }
}
