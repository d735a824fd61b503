//! Snapshots of workers.

use super::*;

#[test]
fn worker_list_in_every_mode() {
    let mut second = sample::worker();
    second.id = 12;
    second.state = client::worker_info::State::HeartbeatLost.into();
    if let Some(config) = &mut second.config {
        config.allocation = Some(common::Allocation {
            manager: common::BatchSystem::Slurm.into(),
            id: "103".into(),
            cluster: None,
            time_limit_ns: None,
        });
        config.resources = Some(common::ResourceDescriptor {
            items: vec![sample::item(
                "cpus",
                common::resource_item::Kind::Groups(common::IndexGroups {
                    groups: vec![
                        sample::list(&["0", "1", "2", "3"]),
                        sample::list(&["4", "5"]),
                        sample::list(&["6", "7", "8", "9"]),
                    ],
                }),
            )],
            coupling: Vec::new(),
        });
    }
    let workers = [sample::worker(), second];
    insta::assert_snapshot!(print(OutputMode::Cli, &WorkerListView(&workers)), @"
    +----+----------------+----------+---------------------------------------------------------+---------+----------------+
    | ID | State          | Hostname | Resources                                               | Manager | Manager Job ID |
    +----+----------------+----------+---------------------------------------------------------+---------+----------------+
    |  1 | RUNNING        | node1    | cpus 2x2 [coupled]; foo 4; gpus/nvidia 2; mem 23.54 GiB | None    | N/A            |
    | 12 | HEARTBEAT LOST | node1    | cpus 1x2 2x4                                            | SLURM   | 103            |
    +----+----------------+----------+---------------------------------------------------------+---------+----------------+
    ");
    insta::assert_snapshot!(print(OutputMode::Quiet, &WorkerListView(&workers)), @"
    1 RUNNING
    12 HEARTBEAT LOST
    ");
    insta::assert_snapshot!(print(OutputMode::Cli, &WorkerListView(&[])), @"
    +----+-------+----------+-----------+---------+----------------+
    | ID | State | Hostname | Resources | Manager | Manager Job ID |
    +----+-------+----------+-----------+---------+----------------+
    ");
    assert_eq!(print(OutputMode::Json, &WorkerListView(&[])), "[]\n");
}

#[test]
#[expect(clippy::too_many_lines, reason = "most lines are snapshots")]
fn worker_info_as_table_and_json() {
    let mut ended = sample::worker();
    ended.ended_unix_ns = Some(sample::START);
    ended.runtime = None;
    ended.last_task = None;
    let workers = [sample::worker()];
    insta::assert_snapshot!(print(OutputMode::Cli, &WorkerInfosView(&workers)), @r#"
    +-------------------+---------------------------------------------+
    | Worker            | 1                                           |
    | State             | RUNNING                                     |
    | Hostname          | node1                                       |
    | Started           | "2026-11-21T08:15:48.261653512Z"            |
    | Data provider     | node1:40857                                 |
    | Working directory | /tmp/hq-worker/work                         |
    | Heartbeat         | 8s                                          |
    | Idle timeout      | None                                        |
    | Overview interval | None                                        |
    | Resources         | cpus: 2x2 [coupled]                         |
    |                   | foo: 4                                      |
    |                   | gpus/nvidia: 2                              |
    |                   | mem: 23.54 GiB                              |
    | Time Limit        | 1h 50m                                      |
    | Process pid       | 29076                                       |
    | Group             | default                                     |
    | Manager           | None                                        |
    | Manager Job ID    | N/A                                         |
    | Last task started | 5@2; Time: "2026-11-21T08:15:48.261653512Z" |
    | Runtime Info      | assigned tasks: 3; running tasks: 2         |
    +-------------------+---------------------------------------------+
    "#);
    insta::assert_snapshot!(print(OutputMode::Json, &WorkerInfosView(&workers)), @r#"
    [
      {
        "allocation": null,
        "configuration": {
          "group": "default",
          "heartbeat_interval": 8.0,
          "hostname": "node1",
          "idle_timeout": null,
          "listen_address": "node1:40857",
          "min_utilization": 0.1,
          "on_server_lost": "stop",
          "resources": {
            "coupling": {
              "weights": [
                {
                  "group1_idx": 0,
                  "group2_idx": 1,
                  "resource1_idx": 0,
                  "resource2_idx": 0,
                  "weight": 256
                }
              ]
            },
            "resources": [
              {
                "groups": [
                  [
                    "0",
                    "1"
                  ],
                  [
                    "2",
                    "3"
                  ]
                ],
                "kind": "groups",
                "name": "cpus"
              },
              {
                "end": 3,
                "kind": "range",
                "name": "foo",
                "start": 0
              },
              {
                "kind": "list",
                "name": "gpus/nvidia",
                "values": [
                  "0",
                  "1"
                ]
              },
              {
                "kind": "sum",
                "name": "mem",
                "size": 241055507
              }
            ]
          },
          "time_limit": 6600.0,
          "work_dir": "/tmp/hq-worker/work"
        },
        "ended": null,
        "id": 1,
        "last_task_started": {
          "task_id": {
            "job_id": 5,
            "job_task_id": 2
          },
          "time": "2026-11-21T08:15:48.261653512Z"
        },
        "runtime_info": {
          "SingleNodeTasks": {
            "assigned_tasks": 3,
            "is_reserved": false,
            "running_tasks": 2
          }
        },
        "started": "2026-11-21T08:15:48.261653512Z"
      }
    ]
    "#);
    let json = print(OutputMode::Json, &ended);
    assert!(
        json.starts_with('{') && json.contains("\"runtime_info\": null"),
        "{json}"
    );
    assert!(
        json.contains("\"at\": \"2026-11-21T08:15:48.261653512Z\""),
        "{json}"
    );
    let both = print(
        OutputMode::Cli,
        &WorkerInfosView(&[sample::worker(), ended.clone()]),
    );
    assert_eq!(both.matches("+\n\n+").count(), 1, "{both}");
}

#[test]
fn runtime_info_names_multi_node_work() {
    for (main, text) in [
        (Some(true), "running multinode task; main node"),
        (Some(false), "running multinode task; secondary node"),
        (None, "assigned tasks: 0; reserved for a multi-node task"),
    ] {
        let mut worker = sample::worker();
        worker.runtime = Some(client::RuntimeInfo {
            assigned_tasks: 0,
            running_tasks: 0,
            is_reserved: true,
            multi_node_main: main,
            resources: Vec::new(),
            load: None,
        });
        let shown = print(OutputMode::Cli, &WorkerInfosView(&[worker.clone()]));
        assert!(
            shown.contains(&format!("| Runtime Info      | {text}")),
            "{shown}"
        );
    }
}

#[test]
fn hardware_as_text_and_json() {
    let resources = sample::resources();
    insta::assert_snapshot!(print(OutputMode::Cli, &resources), @"
    Summary:
    cpus: 2x2 [coupled]
    foo: 4
    gpus/nvidia: 2
    mem: 23.54 GiB

    Full Description:
    cpus: [[0,1],[2,3]]
    foo: range(0-3)
    gpus/nvidia: [0,1]
    mem: sum(24105.5507)
    ");
    let json = print(OutputMode::Json, &common::ResourceDescriptor::default());
    insta::assert_snapshot!(json, @r#"
    {
      "coupling": {
        "weights": []
      },
      "resources": []
    }
    "#);
}
