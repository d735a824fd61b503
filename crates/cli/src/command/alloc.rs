//! `hq alloc …`.

mod check;

use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use hq_core::batch::SystemSpec;
use hq_core::resource::descriptor::{ResourceDescriptor, ResourceItem};
use hq_core::shell::{self, double_quoted as quoted};
use hq_core::time::nanos;
use hq_protocol::client::{self, AllocQueueSpec};

use super::Context;
use crate::args::alloc::{
    AllocCommand, AllocationFilter, InfoArgs, ListArgs, LogArgs, OnServerLostArg, QueueArgs,
    RemoveArgs, SystemCommand, TemplateArgs, TemplateName,
};
use crate::args::deferred::Deferred;
use crate::args::global::OutputMode;
use crate::args::submit::YesNo;
use crate::batch_system;
use crate::client::{AllocAdd, AllocDryRun, AllocInfo, AllocLog, AllocPause, AllocResume, Client};
use crate::error::{CliError, CliResult};
use crate::output::console::Shown as _;
use crate::output::format::words;
use crate::output::{AllocationsView, QueuesView};
use crate::parse::resource::CpuDefinition;

/// The idle timeout of workers in allocations.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// A longer idle timeout causes a warning.
const IDLE_TIMEOUT_LONG: Duration = Duration::from_secs(10 * 60);

pub(super) async fn run(command: AllocCommand, context: &mut Context) -> CliResult<()> {
    match command {
        AllocCommand::List(args) => list(&args, context).await,
        AllocCommand::Info(args) => info(&args, context).await,
        AllocCommand::Log(args) => log(&args, context).await,
        AllocCommand::Add { system } => add(system, context).await,
        AllocCommand::DryRun { system } => dry_run(system, context).await,
        AllocCommand::Pause(args) => {
            let queue = args.queue;
            context.alloc(AllocPause(queue)).await?;
            tracing::info!("Allocation queue {queue} successfully paused");
            context.done()
        }
        AllocCommand::Resume(args) => {
            let queue = args.queue;
            context.alloc(AllocResume(queue)).await?;
            tracing::info!("Allocation queue {queue} successfully resumed");
            context.done()
        }
        AllocCommand::Remove(args) => remove(&args, context).await,
        AllocCommand::Template(args) => template(&args, context),
    }
}

async fn list(args: &ListArgs, context: &mut Context) -> CliResult<()> {
    let query = client::AllocListQuery {};
    let queues = &context.ask(query).await?.queues;
    let is_verbose = args.verbose;
    context.show(&QueuesView { queues, is_verbose })
}

async fn info(args: &InfoArgs, context: &mut Context) -> CliResult<()> {
    let mut found = context.alloc(AllocInfo(args.queue)).await?;
    use client::alloc_allocation::State;
    let wanted = args.filter.map(|filter| match filter {
        AllocationFilter::Queued => State::Queued,
        AllocationFilter::Running => State::Running,
        AllocationFilter::Finished => State::Finished,
        AllocationFilter::Failed => State::Failed,
    });
    found
        .allocations
        .retain(|allocation| wanted.is_none_or(|wanted| allocation.state() == wanted));
    found.allocations.sort_by(|a, b| a.id.cmp(&b.id));
    say_state(args.queue, found.is_paused, &found.reason);
    context.show(&AllocationsView {
        allocations: &found.allocations,
        is_verbose: args.verbose,
    })
}

/// Logs why a queue requests more allocations or none.
pub(super) fn say_state(queue: u32, is_paused: bool, reason: &str) {
    let state = if is_paused { "PAUSED" } else { "ACTIVE" };
    tracing::info!("Queue {queue} is {state}: {reason}");
}

async fn log(args: &LogArgs, context: &mut Context) -> CliResult<()> {
    let query = AllocLog(args.allocation.clone());
    let dir = context.alloc(query).await?;
    let path = Path::new(std::ffi::OsStr::from_bytes(&dir)).join(args.stream.to_string());
    tracing::info!("Outputting allocation path at {}", path.display());
    match std::fs::File::open(&path) {
        Ok(mut file) if context.mode() != OutputMode::Quiet => {
            std::io::copy(&mut file, context.out.as_is())?;
        }
        Ok(_) => {}
        Err(error) => {
            tracing::warn!("File at `{}` cannot be opened: {error}", path.display());
        }
    }
    Ok(())
}

async fn add(system: SystemCommand, context: &mut Context) -> CliResult<()> {
    let (spec, args) = queue_spec(system, context)?;
    let mut client = context.connect().await?;
    if !args.no_dry_run
        && let Err(error) = try_out(&mut client, &spec).await
    {
        tracing::error!("Dry-run (test allocation submission) has failed");
        let help = after_trial(&error.text().unwrap_or_default());
        return Err(error.with_help(help));
    }
    let queue = client.alloc(AllocAdd(spec)).await?;
    tracing::info!("Allocation queue {queue} successfully created");
    warn_about(&args);
    context.done()
}

async fn dry_run(system: SystemCommand, context: &mut Context) -> CliResult<()> {
    let (spec, _) = queue_spec(system, context)?;
    let mut client = context.connect().await?;
    match try_out(&mut client, &spec).await {
        Ok(()) => context.done(),
        Err(error) => Err(match error.text() {
            Some(text) => CliError::refused(&text),
            None => error,
        }),
    }
}

/// The messages, in lower case, that a batch system prints when it does not respond.
const UNANSWERED: [&str; 10] = [
    "fetch_config",
    "unable to contact",
    "unable to establish",
    "connection refused",
    "timed out",
    "no answer",
    "cannot connect",
    "unknown host",
    "no route to host",
    "communication",
];

/// Returns what to do after a failed trial, based on the output of the batch system.
fn after_trial(text: &str) -> &'static str {
    let text = text.to_lowercase();
    if text.contains("is not in the path") {
        "workers can also be started by hand: `hq worker start`; `--no-dry-run` makes the queue without a trial"
    } else if UNANSWERED.iter().any(|part| text.contains(part)) {
        "the batch system did not answer the server's machine: try `sinfo` or `qstat` there; start the server on a login node of the cluster, \
         with the variables that name the system (SLURM_CONF, PBS_CONF_FILE); `--no-dry-run` makes the queue without a trial"
    } else {
        "the batch system refused the trial; its own options follow `--`, as in `hq alloc add slurm --time-limit 1h -- --partition=NAME`"
    }
}

async fn try_out(client: &mut Client, spec: &AllocQueueSpec) -> CliResult<()> {
    client.alloc(AllocDryRun(spec.clone())).await?;
    tracing::info!(
        "A trial allocation was submitted successfully. It was immediately canceled to avoid \
         wasting resources."
    );
    Ok(())
}

async fn remove(args: &RemoveArgs, context: &mut Context) -> CliResult<()> {
    let RemoveArgs { queue, force } = *args;
    let remove = client::AllocRemove { queue, force };
    context.alloc(remove).await?;
    tracing::info!("Allocation queue {queue} successfully removed");
    context.done()
}

fn template(args: &TemplateArgs, context: &mut Context) -> CliResult<()> {
    context
        .out
        .data()
        .write_all(batch_system::text(args.name).as_bytes())?;
    Ok(())
}

fn warn_about(args: &QueueArgs) {
    if args.cpus.is_none() && args.resource.is_empty() {
        tracing::warn!(
            "No worker resources were provided for this queue. The first allocation is a probe, which shows what its workers offer. To specify that beforehand, use --cpus and --resource."
        );
    }
    if args
        .idle_timeout
        .is_some_and(|timeout| timeout > IDLE_TIMEOUT_LONG)
    {
        tracing::warn!(
            "You have set an idle timeout longer than 10 minutes. This can result in wasted \
             allocation duration."
        );
    }
}

/// A time limit below this is rarely intended.
pub(super) const SHORT: Duration = Duration::from_secs(120);

fn queue_spec(
    system: SystemCommand,
    context: &Context,
) -> CliResult<(AllocQueueSpec, Box<QueueArgs>)> {
    let (args, default) = match system {
        SystemCommand::Pbs(Deferred(args)) => (args, Some(&PBS)),
        SystemCommand::Slurm(Deferred(args)) => (args, Some(&SLURM)),
        SystemCommand::Other(Deferred(args)) => (args, None),
    };
    let system = description(&args, default, context)?;
    for name in check::asked_twice(&system, &args.additional_args) {
        tracing::warn!(
            "`-l {name}=…` after `--` has no effect: the script requests `{name}` itself, and PBS uses the first request. Change that line in your own description: `hq alloc template pbs > \
             my.toml`, then --template my.toml"
        );
    }
    let spec = spec(&args, &system)?;
    check::check(&spec)?;
    if let Some((option, why)) = check::impossible(&spec) {
        return Err(CliError::new(format!(
            "`{option}` after `--` cannot work: {why}. Leave it out, or change the script in your own description: \
             `hq alloc template --help`"
        )));
    }
    if args.time_limit < SHORT {
        tracing::warn!(
            "Each allocation, and each of its workers, ends after {}; a number alone is in seconds: for minutes write `--time-limit 30min`",
            words(args.time_limit)
        );
    }
    if let Some((option, other)) = check::foreign(&spec) {
        tracing::warn!("`{option}` after `--` is an option of {other}");
    }
    for (option, ours) in check::contradictions(&spec) {
        tracing::warn!(
            "`{option}` after `--` overrides the script, but hq relies on {ours}. Use {ours} instead"
        );
    }
    Ok((spec, args))
}

/// Where a command finds the description of its batch system. Descriptions without their own
/// command, such as the one for Grid Engine, can only be printed and used with `--template`.
struct DefaultDescription {
    /// The name of a file in the server directory that replaces the built-in description.
    file: &'static str,
    /// The description to use if that file does not exist.
    built_in: TemplateName,
}

const PBS: DefaultDescription = DefaultDescription {
    file: "templates/pbs.toml",
    built_in: TemplateName::Pbs,
};
const SLURM: DefaultDescription = DefaultDescription {
    file: "templates/slurm.toml",
    built_in: TemplateName::Slurm,
};

/// Returns the description of the batch system: from `--template`, from the server directory, or
/// the built-in one.
fn description(
    args: &QueueArgs,
    default: Option<&DefaultDescription>,
    context: &Context,
) -> CliResult<SystemSpec> {
    if let Some(path) = &args.template {
        return batch_system::load(path);
    }
    let Some(default) = default else {
        return Err(CliError::new(
            "`hq alloc add other` needs --template FILE; `hq alloc template sge` prints an example",
        ));
    };
    let own = context.server_dir()?.root().join(default.file);
    if own.exists() {
        tracing::info!("Using the description {}", own.display());
        return batch_system::load_trusted(&own);
    }
    batch_system::built_in(default.built_in)
}

fn spec(args: &QueueArgs, system: &SystemSpec) -> CliResult<AllocQueueSpec> {
    if args
        .worker_time_limit
        .is_some_and(|limit| limit > args.time_limit)
    {
        return Err(CliError::new(
            "Worker time limit cannot be larger than queue time limit",
        ));
    }
    Ok(AllocQueueSpec {
        system: Some(system.into()),
        name: args.name.clone(),
        time_limit_ns: nanos(args.time_limit),
        backlog: args.backlog,
        max_workers_per_alloc: args.max_workers_per_alloc,
        max_worker_count: args.max_worker_count,
        start_command: args.worker_start_cmd.clone(),
        stop_command: args.worker_stop_cmd.clone(),
        wrap_command: args.worker_wrap_cmd.clone(),
        worker_time_limit_ns: args.worker_time_limit.map(nanos),
        keep_waiting: args.keep_waiting,
        idle_timeout_ns: nanos(args.idle_timeout.unwrap_or(IDLE_TIMEOUT)),
        min_utilization: args.min_utilization.unwrap_or_default(),
        worker_args: worker_args(args),
        additional_args: args.additional_args.clone(),
        amounts: amounts(args)?,
    })
}

/// Returns the amounts that the workers will offer, as far as the options determine them.
fn amounts(args: &QueueArgs) -> CliResult<Vec<client::AllocAmount>> {
    let mut items: Vec<ResourceItem> = args.resource.iter().map(|r| r.value.clone()).collect();
    match args.cpus.as_ref().map(|cpus| &cpus.value) {
        Some(CpuDefinition::Pool(kind)) => items.push(ResourceItem {
            name: hq_worker::hardware::CPUS.into(),
            kind: kind.clone(),
        }),
        Some(CpuDefinition::Zero) => {
            return Err(CliError::new("--cpus 0: a worker needs at least one cpu"));
        }
        None => {}
    }
    let checked = ResourceDescriptor::new(items, Vec::new());
    let checked = checked.map_err(|error| CliError::new(error.to_string()))?;
    let amount = |item: &ResourceItem| client::AllocAmount {
        resource: item.name.to_string(),
        units: item.kind.total().0,
    };
    Ok(checked.items.iter().map(amount).collect())
}

/// Returns the arguments of `hq worker start` in the script of the allocation.
fn worker_args(args: &QueueArgs) -> Vec<String> {
    let mut words = Vec::new();
    let mut add = |option: &str, value: String| {
        words.push(option.to_owned());
        words.push(value);
    };
    if let Some(cpus) = &args.cpus {
        add("--cpus", quoted(&cpus.text));
    }
    for resource in &args.resource {
        add("--resource", quoted(&resource.text));
    }
    if let Some(coupling) = &args.coupling {
        add("--coupling", quoted(coupling));
    }
    if let Some(group) = &args.group {
        add("--group", bare(group));
    }
    if args.no_hyper_threading {
        words.push("--no-hyper-threading".to_owned());
    }
    match args.enforce_memory {
        Some(YesNo::Yes) => words.push("--enforce-memory".to_owned()),
        Some(YesNo::No) => words.push("--enforce-memory=no".to_owned()),
        None => {}
    }
    let mut add = |option: &str, value: String| {
        words.push(option.to_owned());
        words.push(value);
    };
    if let Some(detect) = &args.detect_resources {
        add("--detect-resources", bare(&detect.text));
    }
    if let Some(interval) = &args.overview_interval {
        add("--overview-interval", quoted(&interval.text));
    }
    if let Some(share) = args.min_utilization.filter(|share| *share > 0.0) {
        add("--min-utilization", share.to_string());
    }
    let action = match args.on_server_lost {
        OnServerLostArg::Reconnect => "reconnect",
        OnServerLostArg::Stop => "stop",
        OnServerLostArg::FinishRunning => "finish-running",
    };
    add("--on-server-lost", quoted(action));
    words
}

/// Returns the text without quotes if a shell would not change it.
fn bare(text: &str) -> String {
    if shell::is_plain(text) {
        text.to_owned()
    } else {
        quoted(text)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: QueueArgs,
    }

    #[test]
    fn a_failed_trial_is_told_by_what_the_batch_system_printed() {
        for (printed, part) in [
            (
                "qsub start failed\n`qsub` is not in the PATH of the server",
                "`hq worker start`",
            ),
            (
                "sbatch: error: fetch_config: DNS SRV lookup failed",
                "did not answer",
            ),
            (
                "sbatch: error: Unable to contact slurm controller",
                "did not answer",
            ),
            (
                "pbs_iff: cannot connect to host\nqsub: Connection refused",
                "did not answer",
            ),
            (
                "sbatch: error: invalid partition specified: x",
                "-- --partition=NAME",
            ),
        ] {
            assert!(after_trial(printed).contains(part), "{printed}");
        }
    }

    #[test]
    fn memory_limits_are_passed_on_to_workers() {
        for option in [None, Some("--enforce-memory"), Some("--enforce-memory=no")] {
            let line = ["hq", "--time-limit=1h"].into_iter().chain(option);
            let args = worker_args(&Line::parse_from(line).args);
            let found: Vec<&str> = args
                .iter()
                .map(String::as_str)
                .filter(|word| word.starts_with("--enforce-memory"))
                .collect();
            assert_eq!(found, option.into_iter().collect::<Vec<_>>(), "{args:?}");
        }
    }
}
