//! Sample messages to print.

use hq_protocol::{client, common};

/// 2026-11-21 08:15:48.261653512 UTC
pub(super) const START: i64 = 1_795_248_948_261_653_512;

pub(super) fn server() -> client::ServerInfo {
    client::ServerInfo {
        server_uid: "hY0C00".into(),
        client_host: "login1".into(),
        client_port: 35973,
        worker_host: "login1".into(),
        worker_port: 35435,
        version: "0.1.0-dev".into(),
        pid: 28998,
        start_unix_ns: START,
        journal_path: None,
        now_unix_ns: START + 1,
        internal_error_count: 0,
        knows_nonces: true,
        knows_limits: true,
    }
}

pub(super) fn stats(running: u32, finished: u32, failed: u32) -> client::TaskStats {
    client::TaskStats {
        running,
        finished,
        failed,
        ..Default::default()
    }
}

pub(super) fn summary(
    id: u32,
    name: &str,
    is_open: bool,
    stats: client::TaskStats,
) -> client::JobSummary {
    let task_count = stats.running
        + stats.finished
        + stats.failed
        + stats.canceled
        + stats.aborted
        + stats.waiting;
    client::JobSummary {
        id,
        name: name.into(),
        is_open,
        task_count,
        stats: Some(stats),
        cancel_reason: None,
        pace: None,
        resubmitted_as: None,
    }
}

pub(super) fn ids(first: u32, count: u32) -> common::IdArray {
    common::IdArray {
        ranges: vec![common::IdRange {
            first,
            count,
            step: 1,
            slack: 0,
        }],
    }
}

pub(super) fn worker_ref(id: u32) -> client::WorkerRef {
    client::WorkerRef {
        id,
        hostname: format!("node{id}"),
    }
}

pub(super) fn file(path: &str) -> common::Stdio {
    common::Stdio {
        kind: common::stdio::Kind::File.into(),
        path: path.as_bytes().to_vec().into(),
        remove_if_finished: false,
    }
}

pub(super) fn request(entries: &[(&str, common::Policy, u64)]) -> common::ResourceRequest {
    let entries = entries
        .iter()
        .map(|(resource, policy, amount_units)| common::ResourceEntry {
            resource: (*resource).into(),
            policy: (*policy).into(),
            amount_units: *amount_units,
        })
        .collect();
    common::ResourceRequest {
        entries,
        n_nodes: 0,
        min_time_ns: 0,
        weight_units: 10_000,
    }
}

pub(super) fn template() -> common::TaskTemplate {
    let words: [&[u8]; 3] = [b"bash", b"-c", b"test $HQ_TASK_ID != 2"];
    let variable = |name: &[u8], value: &[u8]| common::EnvVar {
        name: name.to_vec().into(),
        value: value.to_vec().into(),
    };
    common::TaskTemplate {
        name: None,
        stop: None,
        retry: None,
        is_call: false,
        learn: None,
        params: Vec::new(),
        params_first: 0,
        inputs: Vec::new(),
        outputs: Vec::new(),
        outputs_must_exist: false,
        files_by_content: false,
        no_memory_limit: false,
        entry_in_args: false,
        args: words.iter().map(|word| word.to_vec().into()).collect(),
        env: vec![variable(b"A", b"B"), variable(b"HQ_X", b"hidden")],
        cwd: b"/w".to_vec().into(),
        stdout: Some(file("/w/job-%{JOB_ID}/%{TASK_ID}.stdout")),
        stderr: Some(file("/w/job-%{JOB_ID}/%{TASK_ID}.stderr")),
        stdin: None,
        task_dir: false,
        pin: common::PinMode::None.into(),
        time_limit_ns: None,
        priority: 0,
        crash_limit: Some(common::CrashLimit {
            kind: common::crash_limit::Kind::Max.into(),
            max: 5,
        }),
        requests: vec![request(&[("cpus", common::Policy::Compact, 10_000)])],
    }
}

pub(super) fn job() -> client::JobDetail {
    client::JobDetail {
        summary: Some(summary(1, "work", false, stats(0, 2, 1))),
        submitted_unix_ns: START,
        finished_unix_ns: Some(START + 11_400_000),
        max_fails: None,
        submits: vec![client::SubmitInfo {
            params: Vec::new(),
            submit_dir: b"/w".to_vec().into(),
            stream_dir: None,
            is_graph: false,
            ids: Some(ids(1, 3)),
            templates: vec![template()],
            graph_templates: Vec::new(),
            notes: Vec::new(),
        }],
        workers: vec![worker_ref(1)],
        worker_count: 1,
        failed: vec![client::FailedTask {
            params: Vec::new(),
            id: 2,
            workers: vec![worker_ref(1)],
            error: "Program terminated with exit code 1.".into(),
        }],
        task_ids: None,
        now_unix_ns: START + 60_000_000_000,
        notifications: Vec::new(),
        held: None,
        holds_new: false,
        held_count: 0,
        limits: None,
        waits: Vec::new(),
        revised: Vec::new(),
    }
}

pub(super) fn task(id: u32, state: client::TaskState) -> client::TaskInfo {
    let ran = matches!(
        state,
        client::TaskState::Running | client::TaskState::Finished | client::TaskState::Failed
    );
    let ended = ran && state != client::TaskState::Running;
    client::TaskInfo {
        id,
        state: state.into(),
        paths: ran.then(|| client::TaskPaths {
            cwd: b"/w".to_vec().into(),
            stdout: Some(file("/w/job-1/out")),
            stderr: Some(common::Stdio::default()),
        }),
        started_unix_ns: ran.then_some(START),
        finished_unix_ns: ended.then_some(START + 7_300_000),
        workers: if ran { vec![worker_ref(1)] } else { Vec::new() },
        error: (state == client::TaskState::Failed)
            .then(|| "Program terminated with exit code 1.".to_owned()),
        ..Default::default()
    }
}

pub(super) fn page(job: u32, tasks: Vec<client::TaskInfo>) -> client::TaskPageReply {
    client::TaskPageReply {
        job,
        job_found: true,
        tasks,
        templates: vec![template()],
        now_unix_ns: START + 60_000_000_000,
        ..Default::default()
    }
}

pub(super) fn list(values: &[&str]) -> common::IndexGroup {
    common::IndexGroup {
        values: values.iter().map(|v| (*v).to_owned()).collect(),
    }
}

pub(super) fn item(name: &str, kind: common::resource_item::Kind) -> common::ResourceItem {
    common::ResourceItem {
        name: name.into(),
        kind: Some(kind),
    }
}

pub(super) fn resources() -> common::ResourceDescriptor {
    use common::resource_item::Kind;
    let groups = vec![list(&["0", "1"]), list(&["2", "3"])];
    common::ResourceDescriptor {
        items: vec![
            item("cpus", Kind::Groups(common::IndexGroups { groups })),
            item("foo", Kind::Range(common::IndexSpan { start: 0, end: 3 })),
            item("gpus/nvidia", Kind::List(list(&["0", "1"]))),
            item("mem", Kind::SumUnits(241_055_507)),
        ],
        coupling: vec![common::CouplingWeight {
            resource1: 0,
            group1: 0,
            resource2: 0,
            group2: 1,
            weight: 256,
        }],
    }
}

pub(super) fn worker() -> client::WorkerInfo {
    client::WorkerInfo {
        id: 1,
        state: client::worker_info::State::Running.into(),
        config: Some(common::WorkerConfig {
            hostname: "node1".into(),
            group: "default".into(),
            listen_address: "node1:40857".into(),
            work_dir: "/tmp/hq-worker/work".into(),
            heartbeat_ns: 8_000_000_000,
            idle_timeout_ns: None,
            time_limit_ns: Some(6_600_000_000_000),
            overview_interval_ns: None,
            retract_check_interval_ns: 30_000_000_000,
            min_utilization: 0.1,
            on_server_lost: common::OnServerLost::Stop.into(),
            takes_successors: true,
            takes_signals: true,
            memory_limits: common::MemoryLimits::Enforced.into(),
            process_pid: 29076,
            return_digest: Vec::new().into(),
            allocation: None,
            resources: Some(resources()),
        }),
        started_unix_ns: START,
        ended_unix_ns: None,
        last_task: Some(client::LastTask {
            job: 5,
            task: 2,
            started_unix_ns: START,
        }),
        runtime: Some(client::RuntimeInfo {
            assigned_tasks: 3,
            running_tasks: 2,
            is_reserved: false,
            multi_node_main: None,
            resources: Vec::new(),
            load: None,
        }),
        is_draining: false,
        quarantine: None,
        node_faults: Vec::new(),
        via: None,
        unkillable: Vec::new(),
    }
}
