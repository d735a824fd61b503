//! Helpers for tests of this crate and its users: builders and the simulated world.

pub mod sim;

use std::time::Duration;

use crate::resource::descriptor::ResourceDescriptor;
use crate::resource::request::RequestVariants;
use crate::retry::{RetrySpec, StopSpec};
use crate::template::{CrashLimit, PinMode, StdioSpec, TaskTemplate};
use crate::worker_config::{OnServerLost, WorkerConfig};

/// A template with these arguments and defaults for everything else.
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
    }
}

/// A worker with this many cpus and defaults for everything else.
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
        process_pid: 1,
        allocation: None,
        resources: ResourceDescriptor::cpus(cpus),
    }
}
