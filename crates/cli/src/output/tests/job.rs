//! Snapshots of jobs.

use super::*;
use hq_core::job::{JobState, JobTotals};

fn infos(mode: OutputMode, jobs: &[client::JobDetail]) -> String {
    written(mode, |output, out| {
        let mut shown = JobInfos::new(output, out, false);
        for job in jobs {
            shown.job(job)?;
            let task = sample::task(2, client::TaskState::Failed);
            shown.tasks(&sample::page(1, vec![task]))?;
        }
        shown.finish()
    })
}

#[test]
fn submit_and_open_print_the_id() {
    insta::assert_snapshot!(print_all(&NewJob { id: 3, is_open: false }), @r#"
    Job submitted successfully, job ID: 3
    ---
    {
      "id": 3
    }
    ---
    3
    "#);
    insta::assert_snapshot!(print_all(&NewJob { id: 3, is_open: true }), @r#"
    Job 3 is open.
    ---
    {
      "id": 3
    }
    ---
    3
    "#);
}

#[test]
#[expect(clippy::too_many_lines, reason = "most lines are snapshots")]
fn job_list_in_every_mode() {
    let long = "x".repeat(60);
    let mut canceled = sample::summary(
        2,
        &long,
        false,
        client::TaskStats {
            canceled: 1,
            ..Default::default()
        },
    );
    canceled.cancel_reason = Some("too slow".into());
    let jobs = [
        sample::summary(1, "work", false, sample::stats(0, 2, 1)),
        canceled,
        sample::summary(16, "", true, client::TaskStats::default()),
    ];
    let jobs: Vec<_> = jobs.iter().collect();
    let view = JobListView {
        jobs: &jobs,
        total: 6,
        with_reason: false,
        progress_at_ns: None,
        is_all: false,
    };
    insta::assert_snapshot!(print(OutputMode::Cli, &view), @"
    +-----+----------------------------------------------------+----------+-------+
    |  ID | Name                                               | State    | Tasks |
    +-----+----------------------------------------------------+----------+-------+
    |   1 | work                                               | FAILED   | 3     |
    |   2 | xxxxxxxxxxxxxxxxxxxxxxxx...xxxxxxxxxxxxxxxxxxxxxxx | CANCELED | 1     |
    | *16 |                                                    | OPENED   | 0     |
    +-----+----------------------------------------------------+----------+-------+
    * = Open jobs
    There are 6 jobs in total. Use `--all` to display all jobs.
    ");
    insta::assert_snapshot!(print(OutputMode::Quiet, &view), @"
    1 FAILED
    2 CANCELED
    16 OPENED
    ");
    let view = JobListView {
        jobs: &jobs[1..2],
        with_reason: true,
        progress_at_ns: None,
        ..view
    };
    insta::assert_snapshot!(print(OutputMode::Json, &view), @r#"
    [
      {
        "cancel_reason": "too slow",
        "id": 2,
        "is_open": false,
        "name": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "task_count": 1,
        "task_stats": {
          "aborted": 0,
          "canceled": 1,
          "failed": 0,
          "finished": 0,
          "running": 0,
          "waiting": 0
        }
      }
    ]
    "#);
    let verbose = print(OutputMode::Cli, &view);
    assert!(verbose.contains("| Cancel Reason |") && verbose.contains("| too slow      |"));
    let none = JobListView {
        jobs: &[],
        total: 1,
        with_reason: false,
        progress_at_ns: None,
        is_all: false,
    };
    insta::assert_snapshot!(print(OutputMode::Cli, &none), @"
    +----+------+-------+-------+
    | ID | Name | State | Tasks |
    +----+------+-------+-------+
    There is 1 job in total. Use `--all` to display all jobs.
    ");
    assert_eq!(print(OutputMode::Json, &none), "[]\n");
}

#[test]
fn job_summary_in_every_mode() {
    let mut counts = JobTotals::default();
    for (state, count) in [
        (JobState::Running, 1),
        (JobState::Waiting, 12),
        (JobState::Failed, 3),
    ] {
        (0..count).for_each(|_| counts.add(state));
    }
    insta::assert_snapshot!(print_all(&counts), @r#"
    +----------+-------+
    | Status   | Count |
    +----------+-------+
    | RUNNING  |     1 |
    | WAITING  |    12 |
    | FINISHED |     0 |
    | FAILED   |     3 |
    | ABORTED  |     0 |
    | CANCELED |     0 |
    +----------+-------+
    ---
    {
      "Aborted": 0,
      "Canceled": 0,
      "Failed": 3,
      "Finished": 0,
      "Running": 1,
      "Waiting": 12
    }
    ---
    RUNNING 1
    WAITING 12
    FINISHED 0
    FAILED 3
    ABORTED 0
    CANCELED 0
    "#);
}

#[test]
#[expect(clippy::too_many_lines, reason = "most lines are snapshots")]
fn job_info_in_every_mode() {
    let jobs = [sample::job()];
    insta::assert_snapshot!(infos(OutputMode::Cli, &jobs), @"
    +----------------------+--------------------------------------------+
    | ID                   | 1                                          |
    | Name                 | work                                       |
    | State                | [########################################] |
    |                      | FAILED (1)                                 |
    |                      | FINISHED (2)                               |
    | Cancel Reason        |                                            |
    | Session              | closed                                     |
    | Tasks                | 3; Ids: 1-3                                |
    | Workers              | node1                                      |
    | Resources            | cpus: 1 compact                            |
    | Pin                  | none                                       |
    | Priority             | 0                                          |
    | Command              | bash                                       |
    |                      | -c                                         |
    |                      | test $HQ_TASK_ID != 2                      |
    | Stdout               | /w/job-1/%{TASK_ID}.stdout                 |
    | Stderr               | /w/job-1/%{TASK_ID}.stderr                 |
    | Environment          | A=B                                        |
    | Working directory    | /w                                         |
    | Task time limit      | None                                       |
    | Crash limit          | 5                                          |
    | Submission date      | 2026-11-21 08:15:48 UTC                    |
    | Submission directory | /w                                         |
    | Makespan             | 11ms                                       |
    +----------------------+--------------------------------------------+
    +---------+--------+--------------------------------------+
    | Task ID | Worker | Error                                |
    +---------+--------+--------------------------------------+
    | 2       | node1  | Program terminated with exit code 1. |
    +---------+--------+--------------------------------------+
    1 tasks failed.
    ");
    insta::assert_snapshot!(infos(OutputMode::Json, &jobs), @r#"
    [
      {
        "finished_at": "2026-11-21T08:15:48.273053512Z",
        "info": {
          "cancel_reason": null,
          "id": 1,
          "is_open": false,
          "name": "work",
          "task_count": 3,
          "task_stats": {
            "aborted": 0,
            "canceled": 0,
            "failed": 1,
            "finished": 2,
            "running": 0,
            "waiting": 0
          }
        },
        "max_fails": null,
        "started_at": "2026-11-21T08:15:48.261653512Z",
        "submits": [
          {
            "array": {
              "crash_limit": 5,
              "pin_mode": null,
              "priority": 0,
              "program": {
                "args": [
                  "bash",
                  "-c",
                  "test $HQ_TASK_ID != 2"
                ],
                "cwd": "/w",
                "env": {
                  "A": "B",
                  "HQ_X": "hidden"
                },
                "stderr": "/w/job-1/%{TASK_ID}.stderr",
                "stdout": "/w/job-1/%{TASK_ID}.stdout"
              },
              "resources": [
                {
                  "min_time": 0.0,
                  "n_nodes": 0,
                  "resources": [
                    {
                      "request": {
                        "Compact": 10000
                      },
                      "resource": "cpus"
                    }
                  ],
                  "weight": 10000
                }
              ],
              "task_dir": false,
              "time_limit": null
            }
          }
        ],
        "tasks": [
          {
            "cwd": "/w",
            "error": "Program terminated with exit code 1.",
            "finished_at": "2026-11-21T08:15:48.268953512Z",
            "id": 2,
            "started_at": "2026-11-21T08:15:48.261653512Z",
            "state": "failed",
            "stderr": null,
            "stdout": "/w/job-1/out",
            "worker": 1
          }
        ]
      }
    ]
    "#);
    assert_eq!(infos(OutputMode::Quiet, &jobs), "");
    assert_eq!(infos(OutputMode::Json, &[]), "[]\n");
}

#[test]
fn job_info_of_an_empty_open_job() {
    let job = client::JobDetail {
        summary: Some(sample::summary(
            6,
            "job",
            true,
            client::TaskStats::default(),
        )),
        submitted_unix_ns: sample::START,
        now_unix_ns: sample::START + 4_000_000_000,
        ..Default::default()
    };
    insta::assert_snapshot!(infos(OutputMode::Cli, std::slice::from_ref(&job)), @"
    +-----------------+--------------------------------------------+
    | ID              | 6                                          |
    | Name            | job                                        |
    | State           | [........................................] |
    | Cancel Reason   |                                            |
    | Session         | open                                       |
    | Tasks           | 0                                          |
    | Workers         |                                            |
    | Submission date | 2026-11-21 08:15:48 UTC                    |
    | Makespan        | 4s                                         |
    +-----------------+--------------------------------------------+
    ");
    let json = infos(OutputMode::Json, &[job]);
    assert!(
        json.contains("\"finished_at\": \"2026-11-21T08:15:52.261653512Z\""),
        "{json}"
    );
}

#[test]
fn job_info_of_a_graph_with_variants() {
    let mut job = sample::job();
    job.summary = Some(sample::summary(
        1,
        "g",
        false,
        client::TaskStats {
            waiting: 1,
            ..sample::stats(1, 0, 0)
        },
    ));
    job.finished_unix_ns = None;
    job.worker_count = 5;
    job.workers.push(sample::worker_ref(2));
    job.task_ids = Some(sample::ids(3, 2));
    job.submits[0].is_graph = true;
    job.submits[0].graph_templates = vec![0, 0];
    insta::assert_snapshot!(infos(OutputMode::Cli, std::slice::from_ref(&job)), @"
    +----------------------+--------------------------------------------+
    | ID                   | 1                                          |
    | Name                 | g                                          |
    | State                | [####################....................] |
    |                      | RUNNING (1)                                |
    |                      | WAITING (1)                                |
    | Cancel Reason        |                                            |
    | Session              | closed                                     |
    | Tasks                | 2; Ids: 3-4                                |
    | Workers              | node1,node2, … (5 total)                   |
    | Submission date      | 2026-11-21 08:15:48 UTC                    |
    | Submission directory | /w                                         |
    | Makespan             | 1m                                         |
    +----------------------+--------------------------------------------+
    ");
    let json = infos(OutputMode::Json, &[job]);
    assert!(json.contains("\"graph\": ["), "{json}");
    assert_eq!(
        json.matches("\"stdout\": \"/w/job-%{JOB_ID}/%{TASK_ID}.stdout\"")
            .count(),
        2
    );
}

#[test]
fn variants_and_weights_are_listed() {
    let mut job = sample::job();
    let template = &mut job.submits[0].templates[0];
    let mut preferred = sample::request(&[
        ("cpus", common::Policy::ForceTight, 40_000),
        ("aux", common::Policy::All, 0),
    ]);
    preferred.weight_units = 15_000;
    let mut nodes = sample::request(&[]);
    nodes.n_nodes = 3;
    template.requests = vec![preferred, nodes];
    template
        .args
        .push(["word"; 20].join(" ").into_bytes().into());
    insta::assert_snapshot!(infos(OutputMode::Cli, std::slice::from_ref(&job)), @"
    +----------------------+---------------------------------------------------------------------------------+
    | ID                   | 1                                                                               |
    | Name                 | work                                                                            |
    | State                | [########################################]                                      |
    |                      | FAILED (1)                                                                      |
    |                      | FINISHED (2)                                                                    |
    | Cancel Reason        |                                                                                 |
    | Session              | closed                                                                          |
    | Tasks                | 3; Ids: 1-3                                                                     |
    | Workers              | node1                                                                           |
    | Resources            | # Variant 1                                                                     |
    |                      | aux: all                                                                        |
    |                      | cpus: 4 tight!                                                                  |
    |                      | [weight: 1.5]                                                                   |
    |                      |                                                                                 |
    |                      | # Variant 2                                                                     |
    |                      | nodes: 3                                                                        |
    | Pin                  | none                                                                            |
    | Priority             | 0                                                                               |
    | Command              | bash                                                                            |
    |                      | -c                                                                              |
    |                      | test $HQ_TASK_ID != 2                                                           |
    |                      | word word word word word word word word word word word word word word word word |
    |                      | word word word word                                                             |
    | Stdout               | /w/job-1/%{TASK_ID}.stdout                                                      |
    | Stderr               | /w/job-1/%{TASK_ID}.stderr                                                      |
    | Environment          | A=B                                                                             |
    | Working directory    | /w                                                                              |
    | Task time limit      | None                                                                            |
    | Crash limit          | 5                                                                               |
    | Submission date      | 2026-11-21 08:15:48 UTC                                                         |
    | Submission directory | /w                                                                              |
    | Makespan             | 11ms                                                                            |
    +----------------------+---------------------------------------------------------------------------------+
    +---------+--------+--------------------------------------+
    | Task ID | Worker | Error                                |
    +---------+--------+--------------------------------------+
    | 2       | node1  | Program terminated with exit code 1. |
    +---------+--------+--------------------------------------+
    1 tasks failed.
    ");
    let json = infos(OutputMode::Json, &[job]);
    assert!(
        json.contains("\"request\": \"All\"") && json.contains("\"ForceTight\": 40000"),
        "{json}"
    );
}
