//! Helpers for tests of this crate and its users: builders, single steps of a server's state, and
//! the simulated world.

pub mod ledger;
pub mod sim;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::batch::{
    CommandTemplate, FindFormat, QueueParams, StatusFormat, SubmitFormat, SystemSpec,
};
use crate::id::QueueId;
use crate::range::IdArray;
use crate::resource::amount::Amount;
use crate::resource::descriptor::{ResourceDescriptor, ResourceItem, ResourceKind};
use crate::resource::request::RequestVariants;
use crate::retry::{RetrySpec, StopSpec};
use crate::scheduler::demand::{QueueQuery, WorkerKind};
use crate::server_state::{Command, Effect, Input, RequestId, ServerState};
use crate::template::{
    ArrayIds, ArraySpec, CrashLimit, PinMode, StdioSpec, SubmitBody, SubmitSpec, SubmitTarget,
    TaskFiles, TaskTemplate,
};
use crate::time::{Now, Time, Timestamp};
use crate::worker_config::{MemoryLimits, OnServerLost, WorkerConfig};

/// A constant time for tests.
pub const NOW: Now = Now {
    mono: Time(0),
    wall: Timestamp(7),
};

/// Effects of a server on an input, decisions included, until requests are answered.
pub fn apply(state: &mut ServerState, input: Input) -> Vec<Effect> {
    let mut effects = Vec::new();
    state.apply(NOW, input, &mut effects);
    state.settle(NOW, &mut effects);
    while state.unanswered() > 0 {
        state.settle(NOW, &mut effects);
    }
    effects
}

/// Effects of a server on a command of a client.
pub fn request(state: &mut ServerState, command: Command) -> Vec<Effect> {
    apply(state, Input::Request(RequestId(1), command))
}

/// What the templates of a submit of a job share.
#[must_use]
pub fn header(job: crate::id::JobId) -> Arc<crate::job::SubmitHeader> {
    Arc::new(crate::job::SubmitHeader {
        job,
        job_name: "x".into(),
        submit_dir: Box::from(*b"/w"),
        stream_dir: None,
    })
}

/// Number of workers that automatic allocation would request, for a queue of up to nine workers
/// with this many cpus and an hour each.
#[must_use]
pub fn workers_wanted(state: &ServerState, now: Time, cpus: u64) -> u32 {
    let kind = WorkerKind {
        resources: [("cpus".into(), cpus * 10_000)].into(),
        others_plentiful: true,
        time_limit: Duration::from_secs(3_600),
        min_utilization: 0.0,
    };
    let query = QueueQuery {
        queue: QueueId(1),
        assumed: kind.clone(),
        kinds: vec![kind],
        coming: Vec::new(),
        connected: Vec::new(),
        workers_max: 9,
        nodes_max: 1,
    };
    state.demand(now, &[query])[0].workers
}

/// A new job with `count` tasks, ids from 0 on, and defaults.
#[must_use]
pub fn array_submit(count: u32, template: TaskTemplate) -> SubmitSpec {
    SubmitSpec {
        target: SubmitTarget::NewJob {
            name: "x".into(),
            max_fails: None,
        },
        submit_dir: Box::from(*b"/w"),
        stream_dir: None,
        after: Vec::new(),
        notify: Vec::new(),
        origin: None,
        nonce: None,
        notes: Vec::new(),
        limits: crate::bound::SubmitLimits::default(),
        body: SubmitBody::Array(ArraySpec {
            ids: ArrayIds::Given(IdArray::consecutive(0, count).unwrap_or_default()),
            entries: None,
            template: Arc::new(template),
        }),
    }
}

/// A template with these arguments and defaults.
#[must_use]
pub fn template(args: &[&str]) -> TaskTemplate {
    TaskTemplate {
        args: args.iter().map(|arg| arg.as_bytes().into()).collect(),
        env: Vec::new(),
        cwd: Box::from(*b"/w"),
        stdout: StdioSpec::None,
        stderr: StdioSpec::None,
        stdin: None,
        task_dir: false,
        pin: PinMode::None,
        time_limit: None,
        priority: 0,
        crash_limit: CrashLimit::default(),
        requests: RequestVariants::default(),
        stop: StopSpec::default(),
        retry: RetrySpec::default(),
        is_call: false,
        learn: crate::sizing::LearnSpec::default(),
        params: None,
        files: TaskFiles::default(),
        enforce_memory: true,
        name: None,
        entry_in_args: false,
    }
}

/// A worker with this many cpus and defaults.
#[must_use]
pub fn worker_config(cpus: u32) -> WorkerConfig {
    WorkerConfig {
        hostname: "node1".into(),
        group: "default".into(),
        listen_address: "node1:1".into(),
        work_dir: "/tmp/w".into(),
        heartbeat: Duration::from_secs(8),
        idle_timeout: None,
        time_limit: None,
        overview_interval: None,
        retract_check_interval: Duration::from_secs(30),
        min_utilization: 0.0,
        on_server_lost: OnServerLost::Stop,
        takes_successors: true,
        takes_signals: true,
        memory_limits: MemoryLimits::Enforced,
        process_pid: 1,
        allocation: None,
        return_digest: None,
        resources: ResourceDescriptor::cpus(cpus),
    }
}

/// Returns a worker of a batch job that offers these units of cpus.
#[must_use]
pub fn batch_worker(units: u64, lifetime: Option<Duration>) -> Arc<WorkerConfig> {
    let cpus = ResourceItem {
        name: "cpus".into(),
        kind: ResourceKind::Sum(Amount(units)),
    };
    Arc::new(WorkerConfig {
        time_limit: lifetime,
        resources: ResourceDescriptor {
            items: vec![cpus],
            ..ResourceDescriptor::cpus(1)
        },
        ..worker_config(1)
    })
}

/// The parameters of a queue of an imaginary batch system, with a limit of an hour.
#[must_use]
pub fn queue_params() -> QueueParams {
    QueueParams {
        system: SystemSpec {
            name: "test".into(),
            manager: "test".into(),
            script: "".into(),
            each_node: "".into(),
            each_node_shell: "".into(),
            submit: CommandTemplate::default(),
            submit_format: SubmitFormat::LastLine,
            status: CommandTemplate::default(),
            status_fallback: CommandTemplate::default(),
            status_format: StatusFormat::Lines,
            cancel: CommandTemplate::default(),
            find: CommandTemplate::default(),
            find_format: FindFormat::Lines,
            missing: Vec::new(),
            unclear: Vec::new(),
            unreachable: Vec::new(),
            states: BTreeMap::new(),
        },
        name: None,
        time_limit: Duration::from_secs(3_600),
        backlog: 1,
        max_workers_per_alloc: 1,
        max_worker_count: None,
        start_command: None,
        stop_command: None,
        wrap_command: None,
        worker_time_limit: None,
        keep_waiting: false,
        idle_timeout: Duration::from_secs(300),
        min_utilization: 0.0,
        worker_args: Vec::new(),
        additional_args: Vec::new(),
        amounts: BTreeMap::new(),
    }
}
