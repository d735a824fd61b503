//! Compares each documented JSON example with the actual output: the same keys, types and nulls,
//! keys in alphabetical order, and an indentation of two blanks. Also compares the headers and
//! labels of the tables.
//!
//! An example stands for its shape, because numbers, texts and times differ between runs. `"a|b"`
//! is one of these words, `null` is null, and a single element in a list stands for all of them.

use serde_json::{Value, json};

use crate::harness::{Env, Ran};

/// Adds the differences between an example and a real value, by path.
fn differences(path: &str, example: &Value, real: &Value, found: &mut Vec<String>) {
    match (example, real) {
        (Value::Object(wanted), Value::Object(real)) => {
            for key in wanted.keys().filter(|key| !real.contains_key(*key)) {
                found.push(format!("{path}.{key} is missing"));
            }
            for (key, value) in real {
                match wanted.get(key) {
                    Some(wanted) => differences(&format!("{path}.{key}"), wanted, value, found),
                    None => found.push(format!("{path}.{key} is too much")),
                }
            }
        }
        (Value::Array(wanted), Value::Array(real)) => {
            if wanted.len() != 1 && wanted.len() != real.len() {
                found.push(format!("{path}: {} elements", real.len()));
            }
            for (index, value) in real.iter().enumerate() {
                let wanted = wanted.get(index).or(wanted.first()).unwrap_or(&Value::Null);
                differences(&format!("{path}[{index}]"), wanted, value, found);
            }
            if real.is_empty() && !wanted.is_empty() {
                found.push(format!("{path} is empty"));
            }
        }
        (Value::String(words), Value::String(real)) if words.contains('|') => {
            if !words.split('|').any(|word| word == real) {
                found.push(format!("{path}: {real:?} is none of {words}"));
            }
        }
        (Value::Number(wanted), Value::Number(real)) => {
            if wanted.is_f64() != real.is_f64() {
                found.push(format!("{path}: {real} should look like {wanted}"));
            }
        }
        (Value::String(_), Value::String(_))
        | (Value::Bool(_), Value::Bool(_))
        | (Value::Null, Value::Null) => {}
        (wanted, real) => found.push(format!("{path}: {real} should look like {wanted}")),
    }
}

#[track_caller]
pub(crate) fn same_shape(example: &Value, real: &Value) {
    let mut found = Vec::new();
    differences("", example, real, &mut found);
    assert!(found.is_empty(), "{found:#?}\nin {real:#}");
}

impl Env {
    /// Runs a command in JSON mode with both streams merged into one, as careless scripts do.
    #[track_caller]
    pub(crate) fn prints(&self, args: &[&str], example: &Value) -> Value {
        let ran = self.hq(&[&["--output-mode=json"], args].concat());
        assert_eq!(ran.stderr, "", "{args:?} writes nothing but JSON");
        let text = ran.ok();
        let real: Value =
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e} in {text}"));
        assert_eq!(text, format!("{real:#}\n"), "keys in order, two blanks");
        same_shape(example, &real);
        real
    }
}

fn task_stats() -> Value {
    json!({"aborted": 0, "canceled": 0, "failed": 1, "finished": 2, "running": 0, "waiting": 0})
}

fn job_summary() -> Value {
    json!({"cancel_reason": null, "id": 1, "is_open": false, "name": "work", "task_count": 3,
           "task_stats": task_stats()})
}

fn finished_task() -> Value {
    json!({"cwd": "/w", "finished_at": "2026", "id": 1, "started_at": "2026", "state": "finished",
           "stderr": "/w/e", "stdout": "/w/o", "worker": 1})
}

fn failed_task() -> Value {
    let mut task = finished_task();
    task["state"] = json!("failed");
    task["error"] = json!("Program terminated with exit code 1.");
    task
}

fn template() -> Value {
    json!({
        "crash_limit": 5, "pin_mode": null, "priority": 0,
        "program": { "args": ["bash"], "cwd": "/w", "env": {"A": "B"},
                     "stderr": "/w/job-1/%{TASK_ID}.stderr", "stdout": "/w/job-1/%{TASK_ID}.stdout" },
        "resources": [ { "min_time": 0.0, "n_nodes": 0,
            "resources": [ { "request": {"Compact": 10000}, "resource": "cpus" } ], "weight": 10000 } ],
        "task_dir": false, "time_limit": null
    })
}

fn job_info() -> Value {
    json!([{
        "finished_at": "2026",
        "info": job_summary(),
        "max_fails": null,
        "started_at": "2026",
        "submits": [ { "array": template() } ],
        "tasks": [ finished_task(), failed_task(), finished_task() ]
    }])
}

#[test]
fn json_of_jobs_and_tasks() {
    let env = Env::with_worker(2);
    let script = "test $HQ_TASK_ID != 2";
    let submit = [
        "submit",
        "--array=1-3",
        "--env=A=B",
        "--name=work",
        "--",
        "bash",
        "-c",
        script,
    ];
    let id = env.prints(&submit, &json!({"id": 1}));
    assert_eq!(id, json!({"id": 1}));
    env.prints(&["job", "wait", "last"], &json!({}));
    let info = env.prints(&["job", "info", "1"], &job_info());
    assert_eq!(info[0]["info"]["task_stats"], task_stats());
    assert_eq!(info[0]["tasks"][1]["error"], failed_task()["error"]);
    let program = &info[0]["submits"][0]["array"]["program"];
    let stdout = env.path("job-1/%{TASK_ID}.stdout");
    assert_eq!(program["stdout"].as_str(), stdout.to_str());
    let list = env.prints(&["job", "list", "--all"], &json!([job_summary()]));
    assert_eq!(list, json!([job_summary()]));
    assert_eq!(env.json(&["job", "list"]), json!([]));
    let counts = json!({"Aborted": 0, "Canceled": 0, "Failed": 1, "Finished": 0, "Running": 0, "Waiting": 0});
    assert_eq!(env.prints(&["job", "summary"], &counts), counts);
    let tasks = json!([finished_task(), failed_task(), finished_task()]);
    env.prints(&["task", "list", "1"], &json!({"1": tasks}));
    env.prints(&["task", "info", "1", "2"], &json!([failed_task()]));
    assert_eq!(
        env.prints(&["job", "task-ids", "1"], &json!({"1": [1]})),
        json!({"1": [1, 2, 3]})
    );
    env.prints(&["job", "forget", "1"], &json!({}));
    env.prints(&["job", "open"], &json!({"id": 2}));
    assert_eq!(
        env.prints(
            &["job", "summary"],
            &json!({"Aborted": 0, "Canceled": 0, "Failed": 0, "Finished": 0,
            "Opened": 1, "Running": 0, "Waiting": 0})
        )["Opened"],
        1
    );
    env.prints(&["job", "close", "2"], &json!({}));
    let error = env
        .hq(&["job", "cat", "2", "stdout", "--output-mode=json"])
        .exits_with(1)
        .stdout;
    assert_eq!(
        error,
        "{\n  \"error\": \"JSON output mode doesn't support job output\"\n}\n"
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "examples are long")]
fn json_of_every_kind_of_task() {
    let mut env = Env::new();
    env.start_server();
    env.write("graph.toml", "name = \"g\"\nmax_fails = 7\n[[task]]\ncommand = [\"false\"]\nstdout = \"none\"\n\
        crash_limit = \"unlimited\"\npin = \"omp\"\ntime_limit = \"5s\"\n[[task.request]]\nresources = { cpus = \"all\" }\n\
        [[task.request]]\nweight = 2.0\nresources = { cpus = \"1 scatter\" }\n\
        [[task]]\nid = 9\ncommand = [\"true\"]\ndeps = [10]\ncrash_limit = \"never-restart\"\n");
    env.prints(&["job", "submit-file", "graph.toml"], &json!({"id": 1}));
    let waiting = json!([{"id": 9, "state": "waiting"}]);
    assert_eq!(env.prints(&["task", "info", "1", "9"], &waiting), waiting);
    let explained = json!({
        "explanation": { "n_task_deps": 1, "n_waiting_deps": 1, "workers": [] },
        "task_id": { "job_id": 1, "job_task_id": 9 }
    });
    assert_eq!(
        env.prints(&["task", "explain", "1", "9"], &explained),
        explained
    );
    env.start_worker(2);
    env.wait_job("1");
    let (mut first, mut second) = (template(), template());
    for template in [&mut first, &mut second] {
        template["program"]["env"] = json!({});
    }
    first["crash_limit"] = json!("unlimited");
    first["pin_mode"] = json!("openmp");
    first["time_limit"] = json!(5.0);
    first["program"]["stdout"] = Value::Null;
    first["resources"] = json!([
        {"min_time": 0.0, "n_nodes": 0, "resources": [{"request": "All", "resource": "cpus"}], "weight": 10000},
        {"min_time": 0.0, "n_nodes": 0, "resources": [{"request": {"Scatter": 10000}, "resource": "cpus"}], "weight": 20000},
    ]);
    second["crash_limit"] = json!("never-restart");
    let mut info = job_info();
    info[0]["max_fails"] = json!(7);
    info[0]["submits"] = json!([{"graph": [first, second]}]);
    let mut failed = failed_task();
    failed["stdout"] = Value::Null;
    info[0]["tasks"] = json!([{"id": 9, "state": "aborted"}, failed]);
    let real = env.prints(&["job", "info", "1"], &info);
    let template = |index: usize| real[0]["submits"][0]["graph"][index].clone();
    assert_eq!(
        template(0)["resources"],
        info[0]["submits"][0]["graph"][0]["resources"]
    );
    assert_eq!(
        (
            template(0)["pin_mode"].clone(),
            template(1)["crash_limit"].clone()
        ),
        (json!("openmp"), json!("never-restart"))
    );

    let long = env.submit(&["--array=1-2", "--cpus=2", "--", "sleep", "1000"]);
    env.wait_running(&long, 1);
    let running = json!({"cwd": "/w", "id": 1, "started_at": "2026", "state": "running", "stderr": "/w/e",
                         "stdout": "/w/o", "worker": 1});
    env.prints(&["task", "info", &long, "1"], &json!([running]));
    let resource = json!({ "Resources": { "request_amount": 20000, "resource": "cpus", "worker_amount": 20000 } });
    let explained = json!({
        "explanation": { "n_task_deps": 0, "n_waiting_deps": 0,
                         "workers": [ { "variants": [ [ resource ] ], "worker_id": 1 } ] },
        "task_id": { "job_id": 2, "job_task_id": 2 }
    });
    assert_eq!(
        env.prints(&["task", "explain", &long, "2"], &explained),
        explained
    );
    env.hq(&[
        "job",
        "cancel",
        &long,
        "--reason=enough",
        "--output-mode=json",
    ])
    .ok();
    let canceled = json!([
        {"cwd": "/w", "finished_at": "2026", "id": 1, "started_at": "2026", "state": "canceled", "stderr": "/w/e",
         "stdout": "/w/o", "worker": 1},
        {"id": 2, "state": "canceled"}
    ]);
    env.prints(&["task", "info", &long, "1-2"], &canceled);
    let reason = &env.json(&["job", "info", &long])[0]["info"]["cancel_reason"];
    assert_eq!(reason, "enough");
    let timed = env.submit(&["--time-request=1h", "--cpus=99", "--", "true"]);
    let time =
        json!({ "Time": { "min_time": {"nanos": 0, "secs": 3600}, "remaining_time": null } });
    let explained = env.json(&["task", "explain", &timed, "0"]);
    let variant = &explained["explanation"]["workers"][0]["variants"][0];
    same_shape(&json!([time, resource]), variant);
}

#[test]
#[expect(clippy::too_many_lines, reason = "examples are long")]
fn json_of_server_and_workers() {
    let mut env = Env::new();
    let pid = env.start_server();
    let server = json!({
        "client_host": "login1", "client_port": 35973, "journal_path": null, "pid": 28998, "server_dir": null,
        "server_uid": "hY0C00", "start_date": "2026", "version": "0.26.2-dev", "worker_host": "login1",
        "worker_port": 35435
    });
    let mut real = env.hq(&["server", "info", "--output-mode=json"]).ok();
    // State is always kept here, so the path may be known without a request.
    let value: Value = serde_json::from_str(&real).expect("JSON");
    if value["journal_path"].is_string() {
        real = real.replace(&value["journal_path"].to_string(), "null");
    }
    let value: Value = serde_json::from_str(&real).expect("JSON");
    same_shape(&server, &value);
    assert_eq!(value["pid"], pid);
    let access: Value =
        serde_json::from_str(&env.read("server/hq-current/access.json")).expect("JSON");
    let plane = json!({"host": "login1", "port": 35973, "secret_key": "00"});
    same_shape(
        &json!({"client": plane, "server_uid": "hY0C00", "version": "0.26.2-dev", "worker": plane}),
        &access,
    );
    assert_eq!(
        access["client"]["secret_key"].as_str().map(str::len),
        Some(192)
    );
    env.start_worker_with(&[
        "--cpus=2x4",
        "--resource=foo=range(0-3)",
        "--resource=gpus/nvidia=[0,1]",
        "--resource=lanes=2x2",
        "--resource=mem=sum(24105.5507)",
        "--coupling=cpus[0]:lanes[0]",
        "--time-limit=1h50m",
        "--on-server-lost=stop",
    ]);
    let worker = json!({
        "allocation": null,
        "configuration": {
            "group": "default", "heartbeat_interval": 8.0, "hostname": "node1", "idle_timeout": null,
            "listen_address": "node1:41577", "min_utilization": 0.0, "on_server_lost": "stop",
            "resources": {
                "coupling": { "weights": [ { "group1_idx": 0, "group2_idx": 0, "resource1_idx": 0,
                                             "resource2_idx": 1, "weight": 256 } ] },
                "resources": [
                    { "kind": "groups", "name": "cpus", "groups": [["0", "1", "2", "3"], ["4", "5", "6", "7"]] },
                    { "kind": "range", "name": "foo", "start": 0, "end": 3 },
                    { "kind": "list", "name": "gpus/nvidia", "values": ["0", "1"] },
                    { "kind": "groups", "name": "lanes", "groups": [["0", "1"], ["2", "3"]] },
                    { "kind": "sum", "name": "mem", "size": 241_055_507 } ] },
            "time_limit": 6600.0, "work_dir": "/tmp/hq-workerjTD0sa/work" },
        "ended": null, "id": 1, "last_task_started": null, "runtime_info": null, "started": "2026"
    });
    let real = env.prints(&["worker", "list"], &json!([worker]));
    let resources = |worker: &Value| worker["configuration"]["resources"]["resources"].clone();
    assert_eq!(resources(&real[0]), resources(&worker));
    let job = env.submit(&["--", "sleep", "1000"]);
    env.wait_running(&job, 1);
    let mut busy = worker.clone();
    busy["last_task_started"] =
        json!({ "task_id": { "job_id": 2, "job_task_id": 1 }, "time": "2026" });
    busy["runtime_info"] = json!({ "SingleNodeTasks": { "assigned_tasks": 1, "is_reserved": false, "running_tasks": 1 } });
    let real = env.prints(&["worker", "info", "1"], &json!([busy]));
    assert_eq!(real[0]["runtime_info"], busy["runtime_info"]);
    env.prints(&["worker", "wait", "1"], &json!({}));
    env.hq(&["worker", "address", "1", "--output-mode=json"])
        .says("\n{}\n")
        .ok();
    env.hq(&["worker", "stop", "1", "--output-mode=json"]).ok();
    let mut gone = busy;
    gone["ended"] = json!({ "at": "2026" });
    gone["runtime_info"] = Value::Null;
    crate::harness::wait_for("the worker has stopped", || {
        let states = env.workers();
        (states == ["STOPPED"])
            .then_some(())
            .ok_or(states.join(","))
    });
    env.prints(&["worker", "info", "1"], &json!([gone]));
    let hardware = env.json(&["worker", "hwdetect"]);
    assert!(hardware["coupling"]["weights"].is_array() && hardware["resources"].is_array());
    let dump = env.path("dump").display().to_string();
    env.hq(&["server", "debug-dump", &dump, "--output-mode=json"])
        .says("{}")
        .ok();
}

#[test]
fn json_of_hardware_overviews() {
    let mut env = Env::new();
    env.start_server_with(&["--journal=j"]);
    env.start_worker_with(&["--cpus=1", "--overview-interval=100ms"]);
    let line = crate::harness::wait_for("an overview", || {
        let lines = env.hq(&["journal", "replay"]).ok();
        let overview = lines.lines().find(|line| line.contains("worker-overview"));
        overview.map(str::to_owned).ok_or(lines)
    });
    let line: Value = serde_json::from_str(&line).expect("JSON");
    let network = json!({"rx_bytes": 0, "rx_packets": 0, "rx_errors": 0,
        "tx_bytes": 0, "tx_packets": 0, "tx_errors": 0});
    let state = json!({ "timestamp": 1_795_250_210, "cpu_usage": {"cpu_per_core_percent_usage": [93.75, 98.0]},
        "memory_usage": {"free": 24_454_983_680_u64, "total": 25_276_502_016_u64}, "network_usage": network,
        "nvidia_gpus": null, "amd_gpus": null });
    let event = json!({"type": "worker-overview", "id": 1, "hw-state": {"state": state}});
    same_shape(
        &json!({"event": event, "time": "2026-11-21T08:15:50.314Z"}),
        &line,
    );
    let memory = &line["event"]["hw-state"]["state"]["memory_usage"];
    assert!(
        memory["free"].as_u64() <= memory["total"].as_u64(),
        "{line}"
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "examples are long")]
fn json_of_the_journal() {
    let mut env = Env::new();
    env.start_server_with(&["--journal=j"]);
    env.start_worker_with(&["--cpus=2", "--on-server-lost=stop"]);
    env.hq(&["job", "open", "--name=open"]).ok();
    env.submit(&["--job=1", "--array=1-10:3", "--cpus=2", "--", "true"]);
    env.hq(&["job", "close", "1"]).ok();
    env.wait_job("1");
    env.submit(&["--max-fails=3", "--wait", "--", "false"]);
    let long = env.submit(&["--", "sleep", "1000"]);
    env.wait_running(&long, 1);
    env.hq(&["job", "cancel", &long, "--reason=why"]).ok();
    env.wait_job(&long);
    env.hq(&["worker", "stop", "all"]).ok();
    crate::harness::wait_for("the worker has stopped", || {
        (env.workers() == ["STOPPED"])
            .then_some(())
            .ok_or_else(String::new)
    });
    env.hq(&["server", "stop"]).ok();
    env.wait_exit("server");
    let exported = env
        .hq(&["journal", "export", "j"])
        .says("INFO Outputted ")
        .ok();
    let lines: Vec<Value> = exported
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON a line"))
        .collect();
    let resources = json!({"variants": [ {"n_nodes": 0, "min_time": {"nanos": 0, "secs": 0}, "weight": 10000,
        "resources": [ {"resource": "cpus", "policy": {"Compact": 20000}} ]} ]});
    let submit = json!({ "submit_dir": "/w", "stream_path": null,
        "task_desc": { "ids": {"ranges": [{"start": 1, "count": 10, "step": 3}]}, "priority": 0,
            "time_limit": null, "crash_limit": {"MaxCrashes": 5}, "resources": resources } });
    let duration = json!({"nanos": 0, "secs": 8});
    let configuration = json!({ "extra": { "ProcessPid": "9788" }, "group": "default",
        "heartbeat_interval": duration, "hostname": "vm", "idle_timeout": null, "listen_address": "vm:38249",
        "min_utilization": 0.0, "on_server_lost": "Stop", "overview_configuration": null,
        "resources": { "coupling": {"weights": []},
            "resources": [ {"kind": {"List": {"values": ["0"]}}, "name": "cpus"} ] },
        "retract_check_interval": duration, "time_limit": null, "work_dir": "/tmp/hq-workerX/work" });
    let examples = [
        json!({"type": "server-start", "server_uid": "hY0C00"}),
        json!({"type": "worker-connected", "id": 1, "configuration": configuration}),
        json!({"type": "job-open", "job_id": 1, "name": "open", "max_fails": null}),
        json!({"type": "job-created", "job": 1, "closed_job": false,
               "job_desc": {"name": "open", "max_fails": null}, "submit_desc": submit}),
        json!({"type": "job-close", "job_id": 1}),
        json!({"type": "job-completed", "job": 1}),
        json!({"type": "task-started", "job": 1, "task": 1, "instance": 0, "worker": 1}),
        json!({"type": "task-finished", "job": 1, "task": 1}),
        json!({"type": "task-failed", "job": 2, "task": 0, "error": "x"}),
        json!({"type": "job-cancel", "job_id": 3, "reason": "why"}),
        json!({"type": "task-canceled", "tasks": [{"job_id": 3, "job_task_id": 0}]}),
        json!({"type": "worker-lost", "id": 1, "reason": "Stopped|ConnectionLost|HeartbeatLost|IdleTimeout|TimeLimitReached"}),
        json!({"type": "server-stop"}),
    ];
    for example in &examples {
        let kind = &example["type"];
        let of_kind = |line: &&Value| line["event"]["type"] == *kind;
        let line = lines
            .iter()
            .find(of_kind)
            .unwrap_or_else(|| panic!("no {kind} in {exported}"));
        let mut wrapped = json!({"event": example, "time": "2026-11-21T08:15:50.314Z"});
        if kind == "worker-connected" {
            // The display of this machine's cpus does not matter.
            wrapped["event"]["configuration"]["resources"] =
                line["event"]["configuration"]["resources"].clone();
        }
        same_shape(&wrapped, line);
        let time = line["time"].as_str().expect("text");
        assert_eq!(
            (time.len(), time.ends_with('Z')),
            (24, true),
            "milliseconds: {time}"
        );
    }
    for line in &lines {
        let kind = line["event"]["type"]
            .as_str()
            .expect("every line has a type");
        assert!(
            examples.iter().any(|example| example["type"] == kind),
            "undocumented: {kind}"
        );
    }
    let created = lines
        .iter()
        .find(|line| line["event"]["type"] == "job-created")
        .expect("seen above");
    let ranges = &created["event"]["submit_desc"]["task_desc"]["ids"]["ranges"];
    assert_eq!(
        *ranges,
        json!([{"start": 1, "count": 10, "step": 3}]),
        "count is the width"
    );
}

/// Returns the words of the header, or the labels of the rows, of each table that a command prints.
fn labels(ran: Ran) -> Vec<Vec<String>> {
    // A table without rows results from an unknown id.
    assert!(matches!(ran.code, Some(0 | 1)), "{}", ran.stderr);
    let text = ran.stdout;
    let mut tables: Vec<Vec<String>> = Vec::new();
    let mut rules = 0;
    let mut is_horizontal = false;
    let cells = |line: &str| -> Vec<String> {
        let inner = line.trim_matches('|');
        inner
            .split(" | ")
            .map(|cell| cell.trim().to_owned())
            .collect()
    };
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        if line.starts_with('+') {
            let starts = rules == 0;
            rules += 1;
            if starts {
                is_horizontal = lines
                    .get(index + 2)
                    .is_some_and(|line| line.starts_with('+'));
                tables.push(Vec::new());
            }
            let ends = match is_horizontal {
                false => rules == 2,
                true => {
                    rules == 3
                        || (rules == 2 && !lines.get(index + 1).is_some_and(|l| l.starts_with('|')))
                }
            };
            if ends {
                rules = 0;
            }
        } else if line.starts_with('|') && rules > 0 {
            let Some(table) = tables.last_mut() else {
                continue;
            };
            match is_horizontal {
                true if rules == 1 => *table = cells(line),
                true => {}
                false => table.extend(cells(line).first().filter(|cell| !cell.is_empty()).cloned()),
            }
        }
    }
    tables
}

#[test]
#[expect(clippy::too_many_lines, reason = "examples are long")]
fn tables_have_the_documented_labels() {
    let env = Env::with_worker(2);
    let job = env.submit(&[
        "--array=1-3",
        "--wait",
        "--",
        "bash",
        "-c",
        "test $HQ_TASK_ID != 2",
    ]);
    let cases: &[(&[&str], &[&[&str]])] = &[
        (
            &["server", "info"],
            &[&[
                "Server UID",
                "Client host",
                "Client port",
                "Worker host",
                "Worker port",
                "Version",
                "Pid",
                "Start date",
                "Journal path",
            ]],
        ),
        (
            &["worker", "list"],
            &[&[
                "ID",
                "State",
                "Hostname",
                "Resources",
                "Manager",
                "Manager Job ID",
            ]],
        ),
        (
            &["worker", "info", "1"],
            &[&[
                "Worker",
                "State",
                "Hostname",
                "Started",
                "Data provider",
                "Working directory",
                "Heartbeat",
                "Idle timeout",
                "Overview interval",
                "Resources",
                "Time Limit",
                "Process pid",
                "Group",
                "Manager",
                "Manager Job ID",
                "Last task started",
                "Runtime Info",
            ]],
        ),
        (&["job", "list"], &[&["ID", "Name", "State", "Tasks"]]),
        (
            &["job", "list", "--all", "--verbose"],
            &[&["ID", "Name", "State", "Tasks", "Cancel Reason"]],
        ),
        (&["job", "summary"], &[&["Status", "Count"]]),
        (
            &["job", "info", &job],
            &[
                &[
                    "ID",
                    "Name",
                    "State",
                    "Cancel Reason",
                    "Session",
                    "Tasks",
                    "Workers",
                    "Resources",
                    "Pin",
                    "Priority",
                    "Command",
                    "Stdout",
                    "Stderr",
                    "Environment",
                    "Working directory",
                    "Task time limit",
                    "Crash limit",
                    "Submission date",
                    "Submission directory",
                    "Makespan",
                ],
                &["Task ID", "Worker", "Error"],
            ],
        ),
        (
            &["task", "list", &job],
            &[&["Task ID", "State", "Worker", "Makespan", "Error"]],
        ),
        (
            &["task", "list", "77"],
            &[&["Job ID", "Task ID", "State", "Worker", "Makespan", "Error"]],
        ),
        (
            &["task", "info", &job, "1"],
            &[&[
                "Task ID",
                "State",
                "Command",
                "Environment",
                "Worker",
                "Start",
                "End",
                "Makespan",
                "Workdir",
                "Stdout",
                "Stderr",
                "Time limit",
                "Resources",
                "Priority",
                "Pin",
                "Task dir",
                "Crash limit",
                "Dependencies",
                "Error",
            ]],
        ),
    ];
    for (args, wanted) in cases {
        assert_eq!(labels(env.hq(args)), *wanted, "{args:?}");
    }
    let waiting = env.submit(&["--cpus=9", "--", "true"]);
    assert_eq!(
        labels(env.hq(&["task", "explain", &waiting, "0"])),
        [[
            "Worker Id",
            "Runnable",
            "Variant",
            "Type",
            "Provides",
            "Request"
        ]]
    );
    let open = env.hq(&["job", "open"]).ok();
    assert_eq!(open, "Job 3 is open.\n");
    assert_eq!(
        labels(env.hq(&["job", "info", "3"])),
        [[
            "ID",
            "Name",
            "State",
            "Cancel Reason",
            "Session",
            "Tasks",
            "Workers",
            "Submission date",
            "Makespan"
        ]]
    );
    let listed = env.hq(&["job", "list"]).ok();
    assert!(
        listed.contains("| *3 | job  | OPENED  | 0     |\n"),
        "{listed}"
    );
    assert!(
        listed.ends_with(
            "* = Open jobs\nThere are 3 jobs in total. Use `--all` to display all jobs.\n"
        ),
        "{listed}"
    );
}

#[test]
fn quiet_lines_are_ids_and_states() {
    let env = Env::with_worker(2);
    let quiet = |args: &[&str]| env.hq(&[&["--output-mode=quiet"], args].concat()).ok();
    assert_eq!(
        quiet(&[
            "submit",
            "--array=2,7,9,20-30",
            "--",
            "bash",
            "-c",
            "exit 1"
        ]),
        "1\n"
    );
    assert_eq!(quiet(&["job", "wait", "1"]), "");
    assert_eq!(quiet(&["job", "open"]), "2\n");
    assert_eq!(quiet(&["job", "list", "--all"]), "1 FAILED\n2 OPENED\n");
    assert_eq!(
        quiet(&["job", "summary"]),
        "RUNNING 0\nWAITING 0\nFINISHED 0\nFAILED 1\nABORTED 0\nCANCELED 0\n"
    );
    assert_eq!(quiet(&["worker", "list"]), "1 RUNNING\n");
    assert_eq!(quiet(&["job", "task-ids", "1"]), "2,7,9,20-30\n");
    assert_eq!(
        quiet(&["job", "task-ids", "1-2", "--filter=finished"]),
        "1: \n2: \n"
    );
    for args in [
        &["server", "info"][..],
        &["worker", "info", "1"],
        &["job", "info", "1"],
        &["job", "close", "2"],
        &["job", "progress", "1"],
        &["task", "list", "1"],
        &["task", "info", "1", "2"],
        &["job", "cat", "1", "stdout"],
        &["job", "forget", "1"],
    ] {
        assert_eq!(quiet(args), "", "{args:?}");
    }
}
