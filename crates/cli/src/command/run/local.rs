//! Uses this machine as a worker.

use std::io::IsTerminal as _;
use std::num::NonZeroU32;
use std::time::Duration;

use hq_core::resource::amount::Amount;
use hq_core::resource::descriptor::{ResourceDescriptor, ResourceKind};
use hq_core::resource::request::{Policy, ResourceRequest};
use hq_core::template::SubmitSpec;
use hq_core::words::{amount, count, quantity};
use hq_core::worker_config::{MemoryLimits, OnServerLost, WorkerConfig};
use hq_protocol::Plane;
use hq_server::EmbeddedServer;
use hq_spawn::keeper::KeeperContext;
use hq_worker::hardware::{CPUS, DetectSet, Detector};
use hq_worker::{Interrupt, WorkDir, WorkerEnd, WorkerParams};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::command::worker::start::{own_hostname, own_path};
use crate::error::{Caused as _, CliError, CliResult};
use crate::output::console::error_line;

/// The default heartbeat interval. Heartbeats within one process are of little use.
const HEARTBEAT: Duration = Duration::from_secs(8);

/// The interval of checks for retraction. A worker in this process has no lifetime that could run
/// out.
const RETRACT_CHECK: Duration = Duration::from_secs(3600);

/// The maximum number of interrupts that wait until the worker handles them.
const INTERRUPTS_MAX: usize = 8;

/// The resources that this machine offers to `hq run`.
pub(in crate::command) struct LocalMachine {
    resources: ResourceDescriptor,
}

impl LocalMachine {
    /// Detects the resources that this process may use, limited to `cpus` cpus.
    pub(in crate::command) fn detect(cpus: Option<NonZeroU32>) -> CliResult<Self> {
        let mut items = Detector::this_machine().detect(DetectSet::ALL);
        if let Some(limit) = cpus {
            for item in items.iter_mut().filter(|item| &*item.name == CPUS) {
                item.kind = limited(&item.kind, limit);
            }
        }
        let resources = ResourceDescriptor::new(items, Vec::new())
            .map_err(|error| CliError::new(error.to_string()))?;
        Ok(Self { resources })
    }

    /// Starts a worker in this process that offers these resources. Returns a handle to stop it.
    /// With `has_memory_limit`, prints a note if this machine cannot enforce memory limits.
    pub(in crate::command) async fn start_worker(
        self,
        server: &mut EmbeddedServer,
        keeper: KeeperContext,
        has_memory_limit: bool,
    ) -> CliResult<(JoinHandle<WorkerEnd>, mpsc::Sender<Interrupt>)> {
        let stream = server.connect_worker();
        let connection = hq_protocol::connect(stream, Plane::Worker, None)
            .await
            .caused("Cannot start the worker")?;
        let worker = hq_worker::register(connection, self.into_params(keeper)?)
            .await
            .caused("Cannot start the worker")?;
        if has_memory_limit
            && std::io::stderr().is_terminal()
            && let Some(why) = worker.config().memory_limits.obstacle()
        {
            error_line(&format!(
                "Tasks that use more than their requested `mem` are not killed here: {why}"
            ));
        }
        let (control, interrupts) = mpsc::channel(INTERRUPTS_MAX);
        Ok((tokio::spawn(worker.run(interrupts)), control))
    }

    /// Rejects tasks that could never start on this machine and would wait forever.
    pub(super) fn check_fits(&self, spec: &SubmitSpec) -> CliResult<()> {
        for template in spec.body.templates() {
            let variants = template.requests.as_slice();
            if variants
                .iter()
                .any(|variant| self.missing(variant).is_none())
            {
                continue;
            }
            if let Some(text) = variants.iter().find_map(|variant| self.missing(variant)) {
                return Err(CliError::new(text));
            }
        }
        Ok(())
    }

    fn missing(&self, request: &ResourceRequest) -> Option<String> {
        if request.n_nodes > 1 {
            let wanted = request.n_nodes;
            return Some(format!(
                "A task needs {}, but `hq run` uses only this machine. Use a server with workers",
                count(wanted.into(), "node")
            ));
        }
        request.entries.iter().find_map(|entry| {
            let name = &entry.resource;
            let pool = self.resources.items.iter().find(|item| item.name == *name);
            let total = pool.map_or(Amount::ZERO, |item| item.kind.total());
            (!entry.fits(total)).then(|| {
                let wanted = if entry.policy == Policy::All {
                    format!("all {name}")
                } else {
                    amount(name, entry.amount)
                };
                let offered = match total {
                    Amount::ZERO => "none".to_owned(),
                    total => quantity(name, total),
                };
                format!("A task needs {wanted}, but this machine has {offered}")
            })
        })
    }

    /// Returns the parameters of the worker to register.
    fn into_params(self, keeper: KeeperContext) -> CliResult<WorkerParams> {
        let work_dir = WorkDir::create(None).caused("Cannot prepare the working directory")?;
        let config = WorkerConfig {
            hostname: own_hostname().into(),
            group: "default".into(),
            listen_address: "localhost:0".into(),
            work_dir: work_dir.path().to_string_lossy().into(),
            heartbeat: HEARTBEAT,
            idle_timeout: None,
            time_limit: None,
            overview_interval: None,
            retract_check_interval: RETRACT_CHECK,
            min_utilization: 0.0,
            on_server_lost: OnServerLost::Stop,
            takes_successors: true,
            takes_signals: true,
            memory_limits: MemoryLimits::Enforced,
            process_pid: keeper.front_pid,
            allocation: None,
            return_digest: None,
            resources: self.resources,
        };
        let hq_path = own_path()?;
        Ok(WorkerParams {
            config,
            hq_path,
            work_dir,
            keeper: Some(keeper),
            spawn_threads: None,
            values_limit: None,
        })
    }
}

/// Returns the first `limit` cpus. Cpus beyond the existing ones get numbers, but no location.
fn limited(kind: &ResourceKind, limit: NonZeroU32) -> ResourceKind {
    let mut left = limit.get() as usize;
    if kind.total() < Amount::whole(limit.get()) {
        return ResourceKind::Range {
            start: 0,
            end: limit.get() - 1,
        };
    }
    let mut groups = kind.indices();
    for group in &mut groups {
        group.truncate(left);
        left -= group.len();
    }
    groups.retain(|group| !group.is_empty());
    match groups.len() {
        1 => ResourceKind::List(groups.pop().unwrap_or_default()),
        _ => ResourceKind::Groups(groups),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::resource::parse_definition;

    #[test]
    fn cpus_are_limited_from_the_end() {
        let limit = |text: &str, count: u32| {
            let kind = parse_definition(text).expect("valid").kind;
            limited(&kind, NonZeroU32::new(count).expect("positive"))
        };
        let names = |values: &[&str]| values.iter().map(|v| (*v).into()).collect::<Vec<_>>();
        assert_eq!(
            limit("cpus=[0,1,2]", 2),
            ResourceKind::List(names(&["0", "1"]))
        );
        assert_eq!(
            limit("cpus=2x2", 3),
            ResourceKind::Groups(vec![names(&["0", "1"]), names(&["2"])])
        );
        assert_eq!(limit("cpus=2x2", 2), ResourceKind::List(names(&["0", "1"])));
        assert_eq!(
            limit("cpus=[5]", 4),
            ResourceKind::Range { start: 0, end: 3 }
        );
    }

    #[test]
    fn impossible_tasks_are_refused() {
        let item = |text: &str| parse_definition(text).expect("valid");
        let items = vec![item("cpus=[0,1]"), item("mem=sum(10)")];
        let resources = ResourceDescriptor::new(items, Vec::new()).expect("valid");
        let machine = LocalMachine { resources };
        assert_eq!(machine.missing(&ResourceRequest::cpus(2)), None);
        assert_eq!(
            machine.missing(&ResourceRequest::cpus(3)).as_deref(),
            Some("A task needs 3 cpus, but this machine has 2")
        );
    }
}
