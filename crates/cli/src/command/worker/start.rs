//! `hq worker start` and `hq worker hwdetect`.

use std::io::IsTerminal as _;
use std::path::Path;
use std::time::{Duration, Instant};

use hq_core::resource::amount::Amount;
use hq_core::resource::descriptor::{DescriptorError, ResourceDescriptor, ResourceItem};
use hq_core::worker_config::{
    Allocation, BatchSystem, HEARTBEAT_MIN, MemoryLimits, OnServerLost, WorkerConfig,
};
use hq_protocol::Plane;
use hq_protocol::access::{Access, AccessFile, RelayAddress, ServerDir, announced_relays};
use hq_protocol::client;
use hq_spawn::keeper::{self, KeeperContext};
use hq_worker::hardware::{CPUS, DetectSet, Detector, GPUS_AMD, GPUS_NVIDIA, MEMORY};
use hq_worker::{
    Connector, DataProvider, Interrupt, RegisterError, Relay, RelayOptions, ServerLocation,
    WorkDir, WorkerEnd, WorkerParams,
};
use rustix::process::Signal;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::sync::mpsc;

use super::{lifetime, signals};
use crate::args::submit::YesNo;
use crate::args::worker::{
    DetectResources, HwdetectArgs, ManagerArg, OnServerLostArg, RelayListen, StartArgs,
};
use crate::client::access_error;
use crate::command::Context;
use crate::command::alloc::SHORT;
use crate::error::{Caused as _, CliError, CliResult};
use crate::output::format::{now_unix_ns, words};
use crate::parse::coupling::parse_coupling;
use crate::parse::resource::CpuDefinition;
use crate::signals::Warnings;
use crate::version::VERSION;

/// The default of `--heartbeat`.
const HEARTBEAT: Duration = Duration::from_secs(8);

/// The default of `--retract-check-interval`.
const RETRACT_CHECK: Duration = Duration::from_secs(30);

/// How long a worker waits for the access file of a server that is starting.
const ACCESS_PATIENCE: Duration = Duration::from_secs(10);
/// The interval for polling the access file.
const ACCESS_STEP: Duration = Duration::from_millis(100);
/// A wait shorter than this needs no message.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// How long to wait for the announcements of relays.
const RELAYS_PATIENCE: Duration = Duration::from_secs(1);

/// Signals within this time count as one.
const SAME_SIGNAL: Duration = Duration::from_millis(500);

/// The maximum number of signals that wait for the worker.
const INTERRUPTS_MAX: usize = 4;

/// Runs `hq worker start`, which runs the worker until it ends.
pub(crate) fn start(args: StartArgs, context: &mut Context) -> CliResult<()> {
    // Report mistakes of the user before anything starts.
    let resources = resources(&args)?;
    let mut allocation = allocation(args.manager)?;
    if let Some(other) = allocation
        .as_mut()
        .filter(|a| a.manager == BatchSystem::Other)
    {
        // For this batch system, only the option specifies the time limit.
        other.time_limit = args.time_limit;
    }
    if let Some(limit) = args.time_limit
        && limit < SHORT
        && std::io::stderr().is_terminal()
    {
        tracing::warn!(
            "The worker ends after {}; a number alone is in seconds: for minutes write `--time-limit 30min`",
            words(limit)
        );
    }
    let keeper = split_off_keeper()?;
    tracing::info!("hq {VERSION}");
    hq_worker::end_leftovers();
    // Uses a single thread, so that the ends of tasks reach the event loop without a thread switch.
    let runtime = crate::runtime::on_this_thread()?;
    let result = runtime.block_on(work(args, resources, allocation, keeper, context));
    runtime.shutdown_background();
    result
}

/// Continues in a child process, which the original process watches: see [`keeper`].
pub(crate) fn split_off_keeper() -> CliResult<KeeperContext> {
    keeper::split().caused("Cannot supervise the tasks")
}

/// Runs `hq worker hwdetect`.
pub(crate) fn hwdetect(args: &HwdetectArgs, context: &mut Context) -> CliResult<()> {
    let set = DetectSet {
        one_cpu_per_core: args.no_hyper_threading,
        ..DetectSet::ALL
    };
    let found = Detector::this_machine().detect(set);
    let descriptor = ResourceDescriptor::new(found, Vec::new()).map_err(|e| refused(&e))?;
    context.show(&hq_protocol::common::ResourceDescriptor::from(&descriptor))
}

fn refused(error: &DescriptorError) -> CliError {
    let refused = CliError::new(error.to_string());
    if *error == DescriptorError::CpusWithoutIdentity {
        return refused.with_help("a worker has at least one cpu: `--cpus 1`");
    }
    refused
}

async fn work(
    args: StartArgs,
    resources: ResourceDescriptor,
    allocation: Option<Allocation>,
    keeper: KeeperContext,
    context: &mut Context,
) -> CliResult<()> {
    let dir = context.server_dir()?;
    let (path, file) = wait_for_access(&dir).await?;
    let access = file
        .plane(Plane::Worker, &path)
        .map_err(|e| access_error(&e))?;
    let connector = Connector {
        via: args.via.clone(),
        ..connector(access, &path, args.relay.is_none()).await
    };
    let provider = DataProvider::bind()
        .await
        .caused("Cannot listen on a port for other workers")?;
    let work_dir =
        WorkDir::create(args.work_dir.as_deref()).caused("Cannot prepare the working directory")?;
    let hostname = args.hostname.clone().unwrap_or_else(own_hostname);
    // The signal handlers are set up before the registration, because every later signal must find
    // a handler.
    let mut interrupts = interrupts(allocation.clone())?;
    let is_relay = args.relay.is_some();
    let find = move || find_again(&dir, !is_relay);
    let relay = match args.relay.clone() {
        Some(listen) => {
            let started = start_relay(listen, &hostname, &connector, find.clone());
            tokio::select! {
                started = started => Some(started?),
                Some(interrupt) = interrupts.recv() => return report_end(end_by(interrupt)),
            }
        }
        None => None,
    };
    let address = (hostname, provider.port());
    let mut config = configuration(&args, address, allocation, resources);
    config.work_dir = work_dir.path().to_string_lossy().into();
    config.process_pid = keeper.front_pid;
    let hq_path = own_path()?;
    let params = WorkerParams {
        config,
        hq_path,
        work_dir,
        keeper: Some(keeper),
        spawn_threads: None,
        values_limit: args.values_limit.map(|size| size.0.unwrap_or(u64::MAX)),
    };
    let worker = match connector.register(params, find, &mut interrupts).await {
        Ok(worker) => worker.with_relay(relay),
        Err(error) => {
            if let Some(relay) = relay {
                relay.finish().await;
            }
            return not_registered(error);
        }
    };
    let info = worker_info(worker.id().as_u32(), worker.config());
    // A worker continues even if its standard output is closed.
    if let Err(error) = context.show(&info).and_then(|()| context.flush()) {
        tracing::debug!(?error, "cannot print the worker's table");
    }
    let end = Box::pin(worker.run(interrupts)).await;
    drop(provider);
    report_end(end)
}

/// Returns the worker's configuration, without its directory and process.
fn configuration(
    args: &StartArgs,
    (hostname, port): (String, u16),
    allocation: Option<Allocation>,
    resources: ResourceDescriptor,
) -> WorkerConfig {
    WorkerConfig {
        group: group(args, allocation.as_ref()),
        listen_address: format!("{hostname}:{port}").into(),
        hostname: hostname.into(),
        work_dir: "".into(),
        heartbeat: args.heartbeat.unwrap_or(HEARTBEAT),
        idle_timeout: args.idle_timeout,
        time_limit: lifetime::of_worker(
            args.time_limit,
            allocation
                .as_ref()
                .and_then(|allocation| allocation.time_limit),
        ),
        overview_interval: args
            .overview_interval
            .filter(|interval| !interval.is_zero()),
        retract_check_interval: args.retract_check_interval.unwrap_or(RETRACT_CHECK),
        min_utilization: args.min_utilization.unwrap_or_default(),
        on_server_lost: match args.on_server_lost {
            OnServerLostArg::Reconnect => OnServerLost::Reconnect,
            OnServerLostArg::Stop => OnServerLost::Stop,
            OnServerLostArg::FinishRunning => OnServerLost::FinishRunning,
        },
        takes_successors: true,
        takes_signals: true,
        memory_limits: memory_limits(args),
        process_pid: 0,
        allocation,
        return_digest: None,
        resources,
    }
}

/// Returns how the worker enforces the `mem` of tasks.
fn memory_limits(args: &StartArgs) -> MemoryLimits {
    match args.enforce_memory {
        Some(YesNo::Yes) => MemoryLimits::Enforced,
        Some(YesNo::No) => MemoryLimits::Off,
        None if args.resource.iter().any(|item| &*item.name == MEMORY) => MemoryLimits::Declared,
        None => MemoryLimits::Enforced,
    }
}

fn not_registered(error: RegisterError) -> CliResult<()> {
    if let RegisterError::Interrupted(interrupt) = error {
        return report_end(end_by(interrupt));
    }
    Err(CliError::caused("Cannot register at the server", &error))
}

/// Waits for the access file of a server that a script may just have started.
async fn wait_for_access(dir: &ServerDir) -> CliResult<(std::path::PathBuf, AccessFile)> {
    let start = Instant::now();
    let mut is_told = false;
    loop {
        let error = match dir.load_access(VERSION) {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        if !error.is_no_server_yet() || start.elapsed() >= ACCESS_PATIENCE {
            return Err(access_error(&error));
        }
        if start.elapsed() >= SILENCE_MAX && !std::mem::replace(&mut is_told, true) {
            tracing::info!(
                "Waiting up to {} s for a server: '{}' contains no access file yet; `hq server start{}` creates one",
                ACCESS_PATIENCE.as_secs(),
                dir.root().display(),
                dir.hint()
            );
        }
        tokio::time::sleep(ACCESS_STEP).await;
    }
}

/// Starts a relay.
async fn start_relay(
    listen: RelayListen,
    hostname: &str,
    connector: &Connector,
    find: impl Fn() -> ServerLocation + Send + Sync + 'static,
) -> CliResult<Relay> {
    let options = RelayOptions {
        port: listen.port,
        host: listen.host,
        hostname: hostname.to_owned(),
    };
    let relay = Relay::start(options, connector, find, crate::runtime::on_another_thread)
        .await
        .caused("Cannot start as a relay")?;
    tracing::info!(
        "Relay at {}: other workers find it in the server directory, or with `hq worker start --via {}`",
        relay.address(),
        relay.address()
    );
    Ok(relay)
}

/// Returns how to connect to the server of an access file, with the relays that are announced next
/// to the file.
async fn connector(access: &Access, path: &Path, wants_relays: bool) -> Connector {
    if access
        .key
        .as_ref()
        .is_some_and(|key| key.server().is_none())
    {
        tracing::warn!(
            "The access file '{}' is from an earlier release and lacks the server's public key: another holder of the workers' key can impersonate the server. Replace the file with the server's current one",
            path.display()
        );
    }
    let instance = path.parent().map(Path::to_path_buf);
    let relays = match instance.clone().filter(|_| wants_relays) {
        Some(instance) => {
            let read = tokio::task::spawn_blocking(move || announced(&instance));
            // If the file system hangs, a later attempt finds the relays.
            let read = tokio::time::timeout(RELAYS_PATIENCE, read).await;
            read.map_or_else(|_| Vec::new(), Result::unwrap_or_default)
        }
        None => Vec::new(),
    };
    Connector {
        relays,
        instance,
        ..Connector::new(&access.host, access.port, access.key.clone())
    }
}

fn announced(instance: &Path) -> Vec<RelayAddress> {
    announced_relays(instance).into_iter().flatten().collect()
}

/// Finds the current location of the server, because a restarted server has another port and
/// another directory.
fn find_again(dir: &ServerDir, wants_relays: bool) -> ServerLocation {
    match load_again(dir, wants_relays) {
        Some(connector) => ServerLocation::At(Box::new(connector)),
        // Only a definite answer counts, because a file system may be away for a while.
        None if matches!(dir.root().try_exists(), Ok(false)) => ServerLocation::Gone,
        None => ServerLocation::Unknown,
    }
}

fn load_again(dir: &ServerDir, wants_relays: bool) -> Option<Connector> {
    // After an update, the server is a different release but still the same server.
    let in_use = dir.load_access_any();
    // Workers of a batch job start with the directory of a single server process,
    // `<server-dir>/001`.
    let parent = std::path::absolute(dir.root()).ok();
    let later = parent
        .as_deref()
        .and_then(Path::parent)
        .map(|parent| ServerDir::new(parent, false))
        .and_then(|dir| dir.load_access_any().ok())
        .filter(|(_, later)| {
            let uid = in_use.as_ref().ok().map(|(_, file)| &file.server_uid);
            later.server_uid.is_some() && uid == Some(&later.server_uid)
        });
    let (path, file) = later.or(in_use.ok())?;
    let access = file.plane(Plane::Worker, &path).ok()?;
    let instance = path.parent().map(Path::to_path_buf);
    let announced = instance.as_deref().filter(|_| wants_relays).map(announced);
    Some(Connector {
        relays: announced.unwrap_or_default(),
        instance,
        ..Connector::new(&access.host, access.port, access.key.clone())
    })
}

/// Returns how a worker ends that has not started yet.
const fn end_by(interrupt: Interrupt) -> WorkerEnd {
    match interrupt {
        Interrupt::Terminate | Interrupt::Drain | Interrupt::Signalled => WorkerEnd::Interrupted,
        Interrupt::Preempt => WorkerEnd::Preempted,
    }
}

fn report_end(end: WorkerEnd) -> CliResult<()> {
    let reason = match end {
        WorkerEnd::ServerLost | WorkerEnd::ServerEnded => {
            return Err(CliError::new("Server connection closed"));
        }
        WorkerEnd::Stopped => "the server asked for it",
        WorkerEnd::IdleTimeout => "idle timeout reached",
        WorkerEnd::TimeLimit => "time limit reached",
        WorkerEnd::Interrupted => "received a signal",
        WorkerEnd::Preempted => "the batch system ends the allocation",
    };
    tracing::info!("Worker stopped: {reason}");
    Ok(())
}

/// Turns signals into interrupts of the worker. Queries whether the batch system is ending the
/// worker. Until the answer arrives, it is unknown why a task was ended by the same signal.
fn interrupts(allocation: Option<Allocation>) -> CliResult<mpsc::Receiver<Interrupt>> {
    let listen = |kind| signal(kind).caused("Cannot handle signals");
    // `nohup` and shells ignore these signals for background processes. The worker keeps ignoring
    // them.
    let unless_ignored = |kind: SignalKind| match signals::is_ignored(kind.as_raw_value()) {
        true => Ok(None),
        false => listen(kind).map(Some),
    };
    let mut interrupt = unless_ignored(SignalKind::interrupt())?;
    let mut hangup = unless_ignored(SignalKind::hangup())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut suspend = listen(SignalKind::from_raw(Signal::TSTP.as_raw()))?;
    let mut warnings = Warnings::listen().caused("Cannot handle signals")?;
    let (tx, rx) = mpsc::channel(INTERRUPTS_MAX);
    tokio::spawn(async move {
        let mut last: Option<Instant> = None;
        loop {
            let received = tokio::select! {
                () = next(&mut interrupt) => Received::Other,
                () = next(&mut hangup) => Received::Other,
                _ = terminate.recv() => Received::Terminate,
                // Batch systems send this signal before they suspend a job.
                _ = suspend.recv() => Received::Terminate,
                () = warnings.recv() => Received::Warning,
            };
            // A signal to all processes arrives twice: directly, and through the front process.
            if last.is_some_and(|last| last.elapsed() < SAME_SIGNAL) {
                continue;
            }
            tracing::info!("Received a signal, stopping the worker");
            let is_first = last.is_none();
            let is_preempted = match allocation.clone().filter(|_| is_first) {
                // Only a batch system sends this signal early.
                Some(_) if received == Received::Warning => true,
                Some(allocation) if received == Received::Terminate => {
                    let _ = tx.send(Interrupt::Signalled).await;
                    let asking = tokio::task::spawn_blocking(move || {
                        lifetime::is_ending(allocation.manager, &allocation.id)
                    });
                    asking.await.unwrap_or(true)
                }
                Some(_) | None => false,
            };
            last = Some(Instant::now());
            let interrupt = if is_preempted {
                Interrupt::Preempt
            } else {
                Interrupt::Terminate
            };
            if tx.send(interrupt).await.is_err() {
                return;
            }
        }
    });
    Ok(rx)
}

/// The kind of a received signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Received {
    /// The allocation may be ending.
    Terminate,
    /// The allocation will end soon.
    Warning,
    Other,
}

/// Waits for the next occurrence of a signal. Never completes for an ignored signal.
async fn next(signal: &mut Option<Signals>) {
    match signal {
        // The stream of a signal does not end.
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Returns the worker as the server will show it, for this worker's own table.
fn worker_info(id: u32, config: &WorkerConfig) -> client::WorkerInfo {
    client::WorkerInfo {
        id,
        state: client::worker_info::State::Running.into(),
        config: Some(config.into()),
        started_unix_ns: now_unix_ns(),
        ..client::WorkerInfo::default()
    }
}

pub(crate) fn own_hostname() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// Returns the absolute path of this executable, which tasks see as `HQ`.
pub(crate) fn own_path() -> CliResult<std::path::PathBuf> {
    std::env::current_exe()
        .and_then(std::fs::canonicalize)
        .caused("Cannot find the path of this program")
}

fn group(args: &StartArgs, allocation: Option<&Allocation>) -> Box<str> {
    match (&args.group, allocation) {
        (Some(group), _) => group.as_str().into(),
        (None, Some(allocation)) => allocation.id.clone(),
        (None, None) => "default".into(),
    }
}

/// Returns the resources that the worker offers: those defined explicitly, and detected ones for
/// the rest.
fn resources(args: &StartArgs) -> CliResult<ResourceDescriptor> {
    if args
        .heartbeat
        .is_some_and(|heartbeat| heartbeat <= HEARTBEAT_MIN)
    {
        return Err(CliError::new(
            "The heartbeat interval has to be longer than 150ms",
        ));
    }
    let mut items = args.resource.clone();
    let names_cpus = items.iter().any(|item| &*item.name == CPUS);
    match &args.cpus {
        Some(_) if names_cpus => {
            return Err(CliError::new(
                "Parameters --cpus and --resource cpus=... cannot be combined",
            ));
        }
        Some(CpuDefinition::Zero) => return Err(refused(&DescriptorError::CpusWithoutIdentity)),
        Some(CpuDefinition::Pool(kind)) => {
            items.push(ResourceItem {
                name: CPUS.into(),
                kind: kind.clone(),
            });
        }
        None => {}
    }
    // The definition is checked before detection, so that an invalid definition is reported even if
    // detection fails.
    ResourceDescriptor::new(items.clone(), Vec::new()).map_err(|e| refused(&e))?;
    let wanted = args.detect_resources.unwrap_or(DetectResources::ALL);
    let is_free = |name: &str| !items.iter().any(|item| &*item.name == name);
    let set = DetectSet {
        cpus: wanted.cpus && is_free(CPUS),
        memory: wanted.mem && is_free(MEMORY),
        gpus_nvidia: wanted.gpus_nvidia && is_free(GPUS_NVIDIA),
        gpus_amd: wanted.gpus_amd && is_free(GPUS_AMD),
        one_cpu_per_core: args.no_hyper_threading,
    };
    let detected = Detector::this_machine().detect(set);
    items.extend(detected);
    if !items.iter().any(|item| &*item.name == CPUS) {
        return Err(CliError::new(
            "You have to specify --cpus explicitly when opting out of CPU automatic detection",
        ));
    }
    note_on_cpus(&items);
    let descriptor = ResourceDescriptor::new(items, Vec::new()).map_err(|e| refused(&e))?;
    let Some(coupling) = &args.coupling else {
        return Ok(descriptor);
    };
    let weights = parse_coupling(coupling, &descriptor.items).map_err(CliError::new)?;
    ResourceDescriptor::new(descriptor.items, weights).map_err(|e| refused(&e))
}

/// Warns that the worker offers more cpus than the machine has.
fn note_on_cpus(items: &[ResourceItem]) {
    let offered = items.iter().find(|item| &*item.name == CPUS);
    let offered = offered.map(|item| item.kind.total()).unwrap_or_default();
    let here = std::thread::available_parallelism().map_or(u32::MAX, |count| {
        u32::try_from(count.get()).unwrap_or(u32::MAX)
    });
    if offered > Amount::whole(here) && std::io::stderr().is_terminal() {
        tracing::warn!(
            "The worker offers {offered} cpus, but this process can use only {here}: tasks share them and run longer"
        );
    }
}

/// Returns the batch job that contains this process, according to its environment variables.
fn allocation(manager: ManagerArg) -> CliResult<Option<Allocation>> {
    let variable = |name| {
        std::env::var(name)
            .ok()
            .filter(|value: &String| !value.is_empty())
    };
    let slurm = || variable("SLURM_JOB_ID").or_else(|| variable("SLURM_JOBID"));
    let pbs = || variable("PBS_ENVIRONMENT").map(|_| variable("PBS_JOBID"));
    let of = |manager, id: String, time_limit| Allocation {
        manager,
        id: id.into(),
        cluster: variable("SLURM_CLUSTER_NAME")
            .filter(|_| manager == BatchSystem::Slurm)
            .map(Into::into),
        time_limit,
    };
    let in_pbs = |id: Option<String>| {
        let id = id.ok_or_else(|| CliError::new("PBS_ENVIRONMENT is set, but PBS_JOBID is not"))?;
        tracing::info!("PBS environment detected");
        let time_limit = lifetime::left_in_pbs(&id);
        Ok(Some(of(BatchSystem::Pbs, id, time_limit)))
    };
    let in_slurm = |id: String| {
        tracing::info!("SLURM environment detected");
        let time_limit = lifetime::left_in_slurm(&id);
        Some(of(BatchSystem::Slurm, id, time_limit))
    };
    match manager {
        ManagerArg::None => Ok(None),
        ManagerArg::Detect => match (pbs(), slurm()) {
            (Some(id), _) => in_pbs(id),
            (None, Some(id)) => Ok(in_slurm(id)),
            (None, None) => Ok(None),
        },
        ManagerArg::Pbs => match pbs() {
            Some(id) => in_pbs(id),
            None => Err(CliError::new(
                "--manager pbs: expected to run inside a PBS job, but PBS_ENVIRONMENT is not set",
            )),
        },
        ManagerArg::Other => match variable("HQ_ALLOCATION_ID") {
            Some(id) => Ok(Some(of(BatchSystem::Other, id, None))),
            None => Err(CliError::new(
                "--manager other: expected the id of the job in HQ_ALLOCATION_ID, but it is not set",
            )),
        },
        ManagerArg::Slurm => match slurm() {
            Some(id) => Ok(in_slurm(id)),
            None => Err(CliError::new(
                "--manager slurm: expected to run inside a Slurm job, but SLURM_JOB_ID is not set",
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: StartArgs,
    }

    fn offered(words: &[&str]) -> Result<Vec<String>, String> {
        let line = Line::try_parse_from(std::iter::once("hq").chain(words.iter().copied()));
        let args = line.map_err(|error| error.to_string())?.args;
        let resources = resources(&args).map_err(|error| error.text().unwrap_or_default())?;
        Ok(resources
            .items
            .iter()
            .map(|i| format!("{} {}", i.name, i.kind.total()))
            .collect())
    }

    #[test]
    fn explicit_definitions_replace_detection() {
        let words = ["--cpus=3", "--resource=mem=sum(5.5)", "--resource=a=[x]"];
        let resources = offered(&[&words[..], &["--detect-resources=cpus,mem"]].concat());
        assert_eq!(
            resources,
            Ok(vec!["a 1".into(), "cpus 3".into(), "mem 5.5".into()])
        );
    }

    #[test]
    fn broken_definitions_have_their_texts() {
        for (words, message) in [
            (
                &["--cpus=0"][..],
                "Resource kind `sum` cannot be used with CPUs. CPUs must have identity",
            ),
            (
                &["--resource=cpus=sum(4)"],
                "Resource kind `sum` cannot be used with CPUs. CPUs must have identity",
            ),
            (
                &["--cpus=1", "--resource=cpus=[1]"],
                "Parameters --cpus and --resource cpus=... cannot be combined",
            ),
            (
                &["--resource=foo=[1]", "--resource=foo=[2]"],
                "Resource foo defined twice",
            ),
            (&["--resource=foo=sum(0)"], "Resource foo is empty"),
            (
                &["--resource=foo=[[1],[1]]"],
                "Invalid resource definition for foo: GenericError(\"Non unique indices\")",
            ),
            (
                &["--detect-resources=none"],
                "You have to specify --cpus explicitly when opting out of CPU automatic detection",
            ),
            (
                &["--cpus=2", "--coupling=foo[0]:cpus[0]"],
                "Resource not found: foo",
            ),
            (
                &["--cpus=2", "--heartbeat=100ms"],
                "The heartbeat interval has to be longer than 150ms",
            ),
        ] {
            assert_eq!(offered(words), Err(message.to_owned()), "{words:?}");
        }
    }
}
