//! Documented JSON examples, as in [`crate::shapes`], that need several nodes, a batch system or a
//! listener.

use serde_json::{Value, json};

use crate::batch_pbs::env_with_pbs;
use crate::harness::{Env, wait_for};
use crate::shapes::same_shape;

/// Parses lines of `journal stream` or `replay`.
fn events(text: &str) -> Vec<Value> {
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")))
        .collect()
}

/// Waits for a line that matches the example, by type or by keys.
fn wait_event(
    what: &str,
    mut read: impl FnMut() -> String,
    is_it: impl Fn(&Value) -> bool,
) -> Value {
    wait_for(what, || {
        let text = read();
        // The last line may be incomplete.
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let found = events(whole).into_iter().find(|line| is_it(&line["event"]));
        found.ok_or(text)
    })
}

fn wrapped(event: &Value) -> Value {
    json!({"event": event, "time": "2026-11-21T08:15:50.314Z"})
}

#[test]
fn json_of_multi_node_tasks() {
    let mut env = Env::new();
    env.start_server();
    for _ in 0..2 {
        env.start_worker(1);
    }
    let gang = env.submit(&["--nodes=2", "--", "sleep", "1000"]);
    env.wait_running(&gang, 1);
    let running = json!({"cwd": "/w", "id": 0, "started_at": "2026", "state": "running", "stderr": "/w/e",
                         "stdout": "/w/o", "workers": [1, 2]});
    let task = env.prints(&["task", "info", &gang, "0"], &json!([running]));
    assert_eq!(task[0]["workers"], running["workers"]);
    let info = env.json(&["job", "info", &gang]);
    assert_eq!(
        info[0]["submits"][0]["array"]["resources"],
        json!([{"min_time": 0.0, "n_nodes": 2, "resources": [], "weight": 10000}])
    );
    for (worker, is_main) in [("1", true), ("2", false)] {
        let info = env.json(&["worker", "info", worker]);
        let wanted = json!({"MultiNodeTask": {"main_node": is_main}});
        assert_eq!(info[0]["runtime_info"], wanted);
    }
    let large = env.submit(&["--nodes=9", "--", "true"]);
    let variant = json!([{"WorkerGroup": {"group_size": 2, "n_nodes": 9}}]);
    let explained = json!({
        "explanation": { "n_task_deps": 0, "n_waiting_deps": 0, "workers": [
            { "variants": [variant], "worker_id": 1 }, { "variants": [variant], "worker_id": 2 } ] },
        "task_id": { "job_id": 2, "job_task_id": 0 }
    });
    let real = env.prints(&["task", "explain", &large, "0"], &explained);
    assert_eq!(real, explained);
    let started = wait_event(
        "the start of the task",
        || env.hq(&["journal", "replay"]).ok(),
        |event| event["type"] == "task-started",
    );
    let example =
        json!({"type": "task-started", "job": 1, "task": 0, "instance": 0, "workers": [1, 2]});
    same_shape(&wrapped(&example), &started);
    assert_eq!(started["event"], example);
}

#[test]
fn json_of_detected_hardware() {
    let env = Env::new();
    let detected = env.json(&["worker", "hwdetect"]);
    let mut example = json!({"coupling": {"weights": []}, "resources": []});
    let kinds = [
        json!({"kind": "groups", "name": "cpus", "groups": [["0"]]}),
        json!({"kind": "range", "name": "foo", "start": 0, "end": 3}),
        json!({"kind": "list", "name": "gpus/nvidia", "values": ["0"]}),
        json!({"kind": "sum", "name": "mem", "size": 241_055_507}),
    ];
    let resources = detected["resources"].as_array().expect("a list");
    let of_kind = |resource: &Value| {
        let kind = kinds.iter().find(|kind| kind["kind"] == resource["kind"]);
        kind.unwrap_or_else(|| panic!("{resource}")).clone()
    };
    example["resources"] = resources.iter().map(of_kind).collect();
    same_shape(&example, &detected);
    assert!(resources.iter().any(|resource| resource["name"] == "cpus"));
}

#[test]
#[expect(clippy::too_many_lines, reason = "examples are long")]
fn json_of_events_that_are_listened_to() {
    let mut env = Env::new();
    env.start_server_with(&["--journal=j"]);
    env.start_worker_with(&["--cpus=1"]);
    let pid = env.spawn("listener", &["journal", "stream"]);
    let read = || env.read("listener.log");
    let of_type = |kind: &'static str| move |event: &Value| event["type"] == kind;
    wait_event("the server's start", read, of_type("server-start"));
    env.write(
        "graph.toml",
        "name = \"g\"\nmax_fails = 7\nstream = \"log\"\n\
        [[task]]\nid = 1\ncommand = [\"sh\", \"-c\", \"$HQ task notify 'a b'; exit 3\"]\n\
        [[task.request]]\nresources = { cpus = 99 }\n[[task.request]]\nresources = { cpus = 1 }\n\
        [[task]]\nid = 2\ncommand = [\"true\"]\ndeps = [1]\n",
    );
    env.hq(&["job", "submit-file", "graph.toml"]).ok();
    env.wait_job("1");
    let limits = [
        "--time-limit=1h",
        "--crash-limit=unlimited",
        "--time-request=5s",
    ];
    env.submit(
        &[
            &limits[..],
            &["--array=1,3-5", "--cpus=1 scatter", "--", "true"],
        ]
        .concat(),
    );
    env.wait_job("2");
    let graph = json!({ "submit_dir": "/w", "stream_path": "/w/log", "task_desc": {"n_tasks": 2} });
    let resources = json!({"variants": [ {"n_nodes": 0, "min_time": {"nanos": 0, "secs": 5}, "weight": 10000,
        "resources": [ {"resource": "cpus", "policy": {"Scatter": 10000}} ]} ]});
    let array = json!({ "submit_dir": "/w", "stream_path": null,
        "task_desc": { "ids": {"ranges": [{"start": 1, "count": 1, "step": 1}]}, "priority": 0,
            "time_limit": {"nanos": 0, "secs": 3600}, "crash_limit": "Unlimited", "resources": resources } });
    let task = json!({"job_id": 1, "job_task_id": 1});
    let examples = [
        json!({"type": "job-created", "job": 1, "closed_job": true,
               "job_desc": {"name": "g", "max_fails": 7}, "submit_desc": graph}),
        json!({"type": "task-started", "job": 1, "task": 1, "instance": 0, "worker": 1, "variant": 1}),
        json!({"message": [97, 32, 98], "task_id": task, "worker_id": 1}),
        json!({"type": "task-aborted", "tasks": [{"job_id": 1, "job_task_id": 2}]}),
        json!({"type": "task-failed", "job": 1, "task": 1, "error": "Program terminated with exit code 3."}),
        json!({"type": "job-completed", "job": 1}),
        json!({"job_id": 1}),
        json!({"type": "job-created", "job": 2, "closed_job": true,
               "job_desc": {"name": "true", "max_fails": null}, "submit_desc": array}),
    ];
    for example in &examples {
        let keys = |event: &Value| {
            event
                .as_object()
                .map(|map| map.keys().cloned().collect::<Vec<_>>())
        };
        let is_it = |event: &Value| {
            let same_job = example.get("job").is_none_or(|job| event["job"] == *job);
            event.get("type") == example.get("type") && keys(event) == keys(example) && same_job
        };
        let line = wait_event(&example.to_string(), read, is_it);
        same_shape(&wrapped(example), &line);
        if example.get("submit_desc").is_none() {
            assert_eq!(line["event"], *example);
        }
    }
    let exported = events(&env.hq(&["journal", "export", "j"]).ok());
    let untyped = exported
        .iter()
        .find(|line| line["event"].get("type").is_none());
    assert_eq!(untyped, None, "those are only live");
    crate::harness::signal(pid, "TERM");
    env.wait_exit("listener");
}

#[test]
fn json_of_allocations() {
    let Some(env) = env_with_pbs() else { return };
    let add = [
        "alloc",
        "add",
        "pbs",
        "-t5m",
        "--no-dry-run",
        "--cpus=2",
        "--idle-timeout=2s",
    ];
    let added = env.hq(&[&add[..], &["--output-mode=json", "--", "-q", "qexp"]].concat());
    assert_eq!(
        serde_json::from_str::<Value>(&added.ok()).ok(),
        Some(json!({}))
    );
    let queue = |resources: Value| {
        json!([{ "additional_args": ["-q"], "backlog": 1, "id": 2, "known_worker_resources": resources,
            "manager": "PBS", "max_worker_count": null, "max_workers_per_alloc": 1, "name": null,
            "state": "Active", "timelimit": 300.0, "worker_args": ["--on-server-lost"] }])
    };
    let list = env.prints(&["alloc", "list"], &queue(Value::Null));
    assert_eq!(list[0]["additional_args"], json!(["-q", "qexp"]));
    let job = env.submit(&[
        "--stdout=none",
        "--",
        "sh",
        "-c",
        "until test -e go; do sleep 0.05; done",
    ]);
    env.wait_running(&job, 1);
    let mut allocation = json!([{ "ended_at": null, "id": "103.pbs", "queued_at": "2026", "started_at": "2026",
        "status": "running", "target_worker_count": 1, "workdir": "/autoalloc/1/001" }]);
    let real = env.prints(&["alloc", "info", "1"], &allocation);
    let id = real[0]["id"].clone();
    let worker = env.json(&["worker", "list"])[0].clone();
    assert_eq!(worker["allocation"], json!({"id": id, "manager": "PBS"}));
    assert_eq!(worker["configuration"]["group"], id);
    wait_for("the queue knows what its workers offer", || {
        let queue = &env.json(&["alloc", "list"])[0];
        let is_known = !queue["known_worker_resources"].is_null();
        is_known.then_some(()).ok_or_else(|| queue.to_string())
    });
    env.prints(
        &["alloc", "list"],
        &queue(worker["configuration"]["resources"].clone()),
    );
    env.write("go", "");
    allocation[0]["ended_at"] = json!("2026");
    wait_for("the allocation is over", || {
        let info = env.json(&["alloc", "info", "1"]);
        (info[0]["status"] == "finished")
            .then_some(())
            .ok_or_else(|| info.to_string())
    });
    env.prints(&["alloc", "info", "1"], &allocation);
    let removed = env.hq(&["alloc", "remove", "1", "--output-mode=json"]).ok();
    assert_eq!(removed.trim_end(), "{}");
    json_of_allocation_events(&env, &id);
}

fn json_of_allocation_events(env: &Env, id: &Value) {
    let duration = json!({"nanos": 0, "secs": 3600});
    let params = json!({ "additional_args": ["-q"], "backlog": 1, "cli_resource_descriptor": null,
        "idle_timeout": duration, "manager": "Pbs|Slurm", "max_worker_count": null, "max_workers_per_alloc": 1,
        "min_utilization": 0.0, "name": null, "timelimit": duration, "worker_args": ["--on-server-lost"],
        "worker_start_cmd": null, "worker_stop_cmd": null, "worker_wrap_cmd": null });
    let examples = [
        json!({"type": "autoalloc-queue-created", "queue-id": 1, "params": params}),
        json!({"type": "autoalloc-allocation-queued", "queue-id": 1, "allocation-id": id, "worker-count": 1}),
        json!({"type": "autoalloc-allocation-started", "queue-id": 1, "allocation-id": id}),
        json!({"type": "autoalloc-allocation-finished", "queue-id": 1, "allocation-id": id}),
        json!({"type": "autoalloc-queue-removed", "queue-id": 1}),
    ];
    let replay = || env.hq(&["journal", "replay"]).ok();
    for example in examples {
        let line = wait_event(&example.to_string(), replay, |event| {
            event["type"] == example["type"]
        });
        let mut example = wrapped(&example);
        let descriptor = &line["event"]["params"]["cli_resource_descriptor"];
        if descriptor.is_object() {
            let item = json!({"kind": {"Range": {"start": 0, "end": 1}}, "name": "cpus"});
            same_shape(
                &json!({"coupling": {"weights": []}, "resources": [item]}),
                descriptor,
            );
            example["event"]["params"]["cli_resource_descriptor"] = descriptor.clone();
        }
        same_shape(&example, &line);
    }
    let connected = wait_event("the worker", replay, |event| {
        event["type"] == "worker-connected"
    });
    let extra = &connected["event"]["configuration"]["extra"];
    let text = extra["JobManager"].as_str().expect("text");
    let manager: Value = serde_json::from_str(text).expect("JSON in it");
    let time_limit = json!({"nanos": 0, "secs": 6600});
    let example = json!({"manager": "Pbs", "allocation_id": id, "time_limit": time_limit, "max_memory_mb": null});
    same_shape(&example, &manager);
    assert_eq!(manager["allocation_id"], *id);
}
