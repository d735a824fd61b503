//! Snapshots of tasks.

use super::*;
use client::TaskState;

fn all_states() -> client::TaskPageReply {
    let states = [
        TaskState::Waiting,
        TaskState::Running,
        TaskState::Finished,
        TaskState::Failed,
        TaskState::Canceled,
        TaskState::Aborted,
    ];
    let tasks = (8..)
        .zip(states)
        .map(|(id, state)| sample::task(id, state))
        .collect();
    sample::page(1, tasks)
}

fn list(mode: OutputMode, view: TaskListView, pages: &[client::TaskPageReply]) -> String {
    written(mode, |output, out| {
        let mut shown = TaskLists::new(output, out, view);
        for page in pages {
            shown.job(page.job)?;
            shown.tasks(page)?;
        }
        shown.finish().map(drop)
    })
}

const SINGLE: TaskListView = TaskListView {
    is_single_job: true,
    is_verbose: false,
};

#[test]
fn task_list_in_every_mode() {
    let page = all_states();
    insta::assert_snapshot!(list(OutputMode::Cli, SINGLE, std::slice::from_ref(&page)), @"
    +---------+----------+--------+----------+---------------------+
    | Task ID | State    | Worker | Makespan | Error               |
    +---------+----------+--------+----------+---------------------+
    |       8 | WAITING  |        |          |                     |
    |       9 | RUNNING  | node1  | 1m       |                     |
    |      10 | FINISHED | node1  | 7ms      |                     |
    |      11 | FAILED   | node1  | 7ms      | Program terminat... |
    |      12 | CANCELED |        |          |                     |
    |      13 | ABORTED  |        |          |                     |
    +---------+----------+--------+----------+---------------------+
    ");
    insta::assert_snapshot!(list(OutputMode::Json, SINGLE, std::slice::from_ref(&page)), @r#"
    {
      "1": [
        {
          "id": 8,
          "state": "waiting"
        },
        {
          "cwd": "/w",
          "id": 9,
          "started_at": "2026-11-21T08:15:48.261653512Z",
          "state": "running",
          "stderr": null,
          "stdout": "/w/job-1/out",
          "worker": 1
        },
        {
          "cwd": "/w",
          "finished_at": "2026-11-21T08:15:48.268953512Z",
          "id": 10,
          "started_at": "2026-11-21T08:15:48.261653512Z",
          "state": "finished",
          "stderr": null,
          "stdout": "/w/job-1/out",
          "worker": 1
        },
        {
          "cwd": "/w",
          "error": "Program terminated with exit code 1.",
          "finished_at": "2026-11-21T08:15:48.268953512Z",
          "id": 11,
          "started_at": "2026-11-21T08:15:48.261653512Z",
          "state": "failed",
          "stderr": null,
          "stdout": "/w/job-1/out",
          "worker": 1
        },
        {
          "id": 12,
          "state": "canceled"
        },
        {
          "id": 13,
          "state": "aborted"
        }
      ]
    }
    "#);
    assert_eq!(list(OutputMode::Quiet, SINGLE, &[page]), "");
    assert_eq!(list(OutputMode::Json, SINGLE, &[]), "{}\n");
}

#[test]
fn task_list_of_several_jobs_has_a_column_for_them() {
    let several = TaskListView {
        is_single_job: false,
        is_verbose: true,
    };
    let pages = [1, 12].map(|job| sample::page(job, vec![sample::task(0, TaskState::Failed)]));
    insta::assert_snapshot!(list(OutputMode::Cli, several, &pages), @"
    +--------+---------+--------+--------+----------+--------------------------------------+
    | Job ID | Task ID | State  | Worker | Makespan | Error                                |
    +--------+---------+--------+--------+----------+--------------------------------------+
    |      1 |       0 | FAILED | node1  | 7ms      | Program terminated with exit code 1. |
    |     12 |       0 | FAILED | node1  | 7ms      | Program terminated with exit code 1. |
    +--------+---------+--------+--------+----------+--------------------------------------+
    ");
    insta::assert_snapshot!(list(OutputMode::Cli, several, &[]), @"
    +--------+---------+-------+--------+----------+-------+
    | Job ID | Task ID | State | Worker | Makespan | Error |
    +--------+---------+-------+--------+----------+-------+
    ");
}

#[test]
fn task_info_as_table_and_json() {
    let mut task = sample::task(2, TaskState::Failed);
    task.deps = vec![1, 3];
    task.started_unix_ns = None;
    task.finished_unix_ns = None;
    let page = sample::page(1, vec![task]);
    let infos = |mode| {
        written(mode, |output, out| {
            let mut shown = TaskInfos::new(output, out, false);
            shown.tasks(&page)?;
            shown.finish()
        })
    };
    insta::assert_snapshot!(infos(OutputMode::Cli), @"
    +--------------+--------------------------------------+
    | Task ID      | 2                                    |
    | State        | FAILED                               |
    | Command      | bash                                 |
    |              | -c                                   |
    |              | test $HQ_TASK_ID != 2                |
    | Environment  | A=B                                  |
    | Worker       | node1                                |
    | Start        |                                      |
    | End          |                                      |
    | Makespan     |                                      |
    | Workdir      | /w                                   |
    | Stdout       | /w/job-1/out                         |
    | Stderr       | <None>                               |
    | Time limit   | None                                 |
    | Resources    | cpus: 1 compact                      |
    | Priority     | 0                                    |
    | Pin          | none                                 |
    | Task dir     | no                                   |
    | Crash limit  | 5                                    |
    | Dependencies | 1,3                                  |
    | Error        | Program terminated with exit code 1. |
    +--------------+--------------------------------------+
    ");
    insta::assert_snapshot!(infos(OutputMode::Json), @r#"
    [
      {
        "cwd": "/w",
        "error": "Program terminated with exit code 1.",
        "id": 2,
        "state": "failed",
        "stderr": null,
        "stdout": "/w/job-1/out"
      }
    ]
    "#);
}

#[test]
fn task_ids_in_every_mode() {
    let job = |job, ids| client::JobTaskIds {
        job,
        ids: Some(ids),
    };
    let mut ids = sample::ids(2, 1);
    ids.ranges.push(common::IdRange {
        first: 7,
        count: 3,
        step: 1,
        slack: 0,
    });
    let one = client::TaskIdsReply {
        jobs: vec![job(11, ids)],
    };
    insta::assert_snapshot!(print_all(&one), @r#"
    2,7-9
    ---
    {
      "11": [
        2,
        7,
        8,
        9
      ]
    }
    ---
    2,7-9
    "#);
    let two = client::TaskIdsReply {
        jobs: vec![
            job(1, sample::ids(0, 1)),
            job(2, common::IdArray::default()),
        ],
    };
    insta::assert_snapshot!(print(OutputMode::Cli, &two), @"
    1: 0
    2:
    ");
    let none = client::TaskIdsReply {
        jobs: vec![job(2, common::IdArray::default())],
    };
    assert_eq!(print(OutputMode::Cli, &none), "\n");
}

#[test]
#[expect(clippy::too_many_lines, reason = "most lines are snapshots")]
fn explanation_as_text_and_json() {
    use client::explain_item::Item;
    let item = |item| client::ExplainItem { item: Some(item) };
    let resource = |name: &str, request_units, worker_units| {
        item(Item::Resource(client::ResourceAmount {
            resource: name.into(),
            request_units,
            worker_units,
        }))
    };
    let time = client::TimeItem {
        min_time_ns: 3_600_000_000_000,
        remaining_ns: None,
    };
    let blocked = client::VariantExplanation {
        items: vec![
            item(Item::Time(time)),
            resource("cpus", 80_000, 40_000),
            resource("gpus", 20_000, 0),
        ],
        hindrances: Vec::new(),
    };
    let fitting = client::VariantExplanation {
        items: vec![resource("cpus", 1, 40_000)],
        hindrances: Vec::new(),
    };
    let worker = explained;
    let explanation = client::Explanation {
        job: 3,
        task: 0,
        dep_count: 3,
        waiting_dep_count: 2,
        workers: vec![
            worker(1, vec![blocked.clone()]),
            worker(2, vec![blocked, fitting.clone()]),
            worker(3, vec![fitting]),
        ],
        is_ready: false,
        sent_to: None,
        unkillable: None,
        start_overdue_ns: None,
        next_attempt_in_ns: None,
        name: None,
        is_held: false,
        limits: Vec::new(),
    };
    insta::assert_snapshot!(explain(&explanation, false), @"
    Task 3@0 is not ready to run, because 2/3 dependencies are not finished.
    The task can run on 2 workers: 2-3
    +-----------+-----------+---------+------+----------+---------+
    | Worker Id | Runnable  | Variant | Type | Provides | Request |
    +-----------+-----------+---------+------+----------+---------+
    | 1         | No        | 0       | time | unknown  | 1h      |
    |           |           |         | cpus | 4        | 8       |
    |           |           |         | gpus | 0        | 2       |
    | 2         | Yes (1/2) | 0       | time | unknown  | 1h      |
    |           |           |         | cpus | 4        | 8       |
    |           |           |         | gpus | 0        | 2       |
    |           |           | 1       | cpus | 4        | 0.0001  |
    | 3         | Yes       | 0       | cpus | 4        | 0.0001  |
    +-----------+-----------+---------+------+----------+---------+
    ");
    let small = client::Explanation {
        workers: explanation.workers[..1].to_vec(),
        ..explanation
    };
    insta::assert_snapshot!(print(OutputMode::Json, &ExplanationView { explanation: &small, is_verbose: false }), @r#"
    {
      "explanation": {
        "n_task_deps": 3,
        "n_waiting_deps": 2,
        "workers": [
          {
            "variants": [
              [
                {
                  "Time": {
                    "min_time": {
                      "nanos": 0,
                      "secs": 3600
                    },
                    "remaining_time": null
                  }
                },
                {
                  "Resources": {
                    "request_amount": 80000,
                    "resource": "cpus",
                    "worker_amount": 40000
                  }
                },
                {
                  "Resources": {
                    "request_amount": 20000,
                    "resource": "gpus",
                    "worker_amount": 0
                  }
                }
              ]
            ],
            "worker_id": 1
          }
        ]
      },
      "task_id": {
        "job_id": 3,
        "job_task_id": 0
      }
    }
    "#);
}

#[test]
fn explain_says_what_is_missing_now() {
    let resource = |units| client::ExplainItem {
        item: Some(client::explain_item::Item::Resource(
            client::ResourceAmount {
                resource: "cpus".into(),
                request_units: units,
                worker_units: 40_000,
            },
        )),
    };
    let variant = |units, hindrances: &[&str]| client::VariantExplanation {
        items: vec![resource(units)],
        hindrances: hindrances.iter().map(ToString::to_string).collect(),
    };
    let busy = "cpus: 2 missing, 1 of 3 free";
    let worker = explained;
    let explanation = client::Explanation {
        job: 3,
        task: 0,
        workers: vec![
            worker(1, vec![variant(30_000, &[busy])]),
            worker(2, vec![variant(50_000, &[])]),
            worker(3, vec![variant(30_000, &[busy])]),
            worker(4, vec![variant(30_000, &[])]),
        ],
        is_ready: true,
        ..client::Explanation::default()
    };
    let text = explain(&explanation, true);
    let now: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("Now"))
        .collect();
    let expected = [
        "Now on worker 1,3: cpus: 2 missing, 1 of 3 free",
        "Now on worker 4: free, it starts next",
    ];
    assert_eq!(now, expected);
    let sent = client::Explanation {
        is_ready: false,
        sent_to: Some(4),
        ..explanation
    };
    let text = explain(&sent, true);
    assert!(
        text.ends_with("The task was sent to worker 4, which starts it as soon as resources are free; it has not reported the start.\n")
    );
    let ahead = client::Explanation {
        dep_count: 1,
        waiting_dep_count: 1,
        ..sent.clone()
    };
    let text = explain(&ahead, true);
    assert!(text.ends_with(
        "was sent ahead to worker 4, which starts it when its dependency has finished there.\n"
    ));
    let overdue = client::Explanation {
        start_overdue_ns: Some(73_000_000_000),
        ..sent
    };
    for is_verbose in [false, true] {
        let text = explain(&overdue, is_verbose);
        let said =
            "Worker 4 has had the task and free resources for 1m 13s, but has not started it";
        assert!(text.contains(said), "{text}");
        assert!(!text.contains("as soon as resources are free"), "{text}");
    }
}

fn explain(explanation: &client::Explanation, is_verbose: bool) -> String {
    let view = ExplanationView {
        explanation,
        is_verbose,
    };
    print(OutputMode::Cli, &view)
}

fn explained(worker: u32, variants: Vec<client::VariantExplanation>) -> client::WorkerExplanation {
    client::WorkerExplanation {
        worker,
        variants,
        kept: None,
    }
}
