//! The commands of `hq worker …` that send requests to a server.

use std::io::Write as _;
use std::time::Duration;

use hq_core::time::nanos;
use hq_core::words::count;
use hq_protocol::client::{self, worker_stop_result};

use super::Context;
use super::missing::{self, Missing};
use crate::args::global::OutputMode;
use crate::args::worker::{
    AddressArgs, ListArgs, QuarantineArgs, SelectorArgs, WaitArgs, WorkerFilter,
};
use crate::client::{Client, WorkerDrain, WorkerRelease, WorkerStop};
use crate::error::{CliError, CliResult};
use crate::output::console::error_line;
use crate::output::{WorkerInfosView, WorkerListView};
use crate::parse::selector::Selector;
use crate::source::{host, is_connected};

mod deploy;
mod lifetime;
mod signals;
pub(super) mod start;

pub(super) use deploy::deploy_ssh;
pub(super) use start::{hwdetect, start};

/// How often `worker wait` checks.
const WAIT_STEP: Duration = Duration::from_secs(1);

/// Runs `hq worker stop`.
pub(super) async fn stop(args: SelectorArgs, context: &mut Context) -> CliResult<()> {
    let found = context.ask(WorkerStop(&args.selector)).await?;
    let is_empty = found.results.is_empty();
    let missing = report_changes(found, "Stopping", "stopped", context)?;
    let missing = missing.or_none(&args.selector, is_empty, missing::NO_WORKER, context);
    missing.end(missing::WORKERS, context)
}

/// Runs `hq worker drain`.
pub(super) async fn drain(args: SelectorArgs, context: &mut Context) -> CliResult<()> {
    const DRAINING: &str = "gets no new tasks and stops when its running ones have ended";
    let found = context.ask(WorkerDrain(&args.selector)).await?;
    report_changes(found, "Draining", DRAINING, context)?.end(missing::WORKERS, context)
}

/// Runs `hq worker quarantine`.
pub(super) async fn quarantine(args: QuarantineArgs, context: &mut Context) -> CliResult<()> {
    let request = client::QuarantineWorkers {
        workers: Some(args.selector.to_message()),
        span_ns: nanos(args.span),
        why: args.reason.unwrap_or_default(),
    };
    let found = context.ask(request).await?;
    report_changes(found, "Setting aside", "", context)?.end(missing::WORKERS, context)
}

/// Runs `hq worker release`.
pub(super) async fn release(args: SelectorArgs, context: &mut Context) -> CliResult<()> {
    let found = context.ask(WorkerRelease(&args.selector)).await?;
    report_changes(found, "Releasing", "", context)?.end(missing::WORKERS, context)
}

/// Logs what happened to each worker. `stopping` says that of a worker that stops, if the command
/// stops workers. Returns the workers that do not exist.
fn report_changes(
    found: client::WorkerStopResults,
    doing: &str,
    stopping: &str,
    context: &mut Context,
) -> CliResult<Missing> {
    for result in found.results {
        use worker_stop_result::Kind;
        let worker = result.worker;
        match Kind::try_from(result.kind) {
            Ok(Kind::Stopped | Kind::Draining) if !stopping.is_empty() => {
                tracing::info!("Worker {worker} {stopping}");
            }
            Ok(Kind::Quarantined) => tracing::info!(
                "Worker {worker} gets no new tasks until `hq worker release {worker}`, or until its quarantine ends and a probe \
                 task succeeds there"
            ),
            Ok(Kind::Released) => tracing::info!("Worker {worker} gets tasks again"),
            Ok(Kind::NotQuarantined) => {
                tracing::warn!("{doing} worker {worker} changes nothing; it was not in quarantine");
            }
            Ok(Kind::AlreadyStopped | Kind::Draining | Kind::Stopped) | Err(_) => {
                tracing::warn!("{doing} worker {worker} failed; worker is already stopped");
            }
        }
    }
    let missing = Missing::of(found.not_found.as_ref());
    missing.report_failed(doing, "worker");
    context.done()?;
    Ok(missing)
}

/// Runs `hq worker list`.
pub(super) async fn list(args: ListArgs, context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    let mut workers = client.workers(&Selector::All, false).await?.workers;
    let filter = (!args.all).then(|| args.filter.unwrap_or(WorkerFilter::Running));
    let count = args.filter.map_or(workers.len(), |_| 0);
    workers.retain(|worker| {
        let is_running = is_connected(worker);
        match filter {
            None => true,
            Some(WorkerFilter::Running) => is_running,
            Some(WorkerFilter::Offline) => !is_running,
        }
    });
    workers.sort_unstable_by_key(|worker| worker.id);
    context.show(&WorkerListView(&workers))?;
    context.note_hidden(count.saturating_sub(workers.len()), "worker");
    Ok(())
}

/// Runs `hq worker info`.
pub(super) async fn info(args: SelectorArgs, context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    let found = client.workers(&args.selector, true).await?;
    let missing = Missing::of(found.not_found.as_ref());
    missing.report_not_found("Worker");
    context.show(&WorkerInfosView(&found.workers))?;
    let is_empty = found.workers.is_empty();
    let missing = missing.or_none(&args.selector, is_empty, missing::NO_WORKER, context);
    missing.end(missing::WORKERS, context)
}

/// Runs `hq worker address`.
pub(super) async fn address(args: AddressArgs, context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    let found = client.workers(&Selector::one(args.worker), false).await?;
    let Some(worker) = found.workers.first() else {
        return Err(CliError::new(format!("Worker {} not found", args.worker))
            .with_help(format!("`{}` lists existing ids", missing::WORKERS)));
    };
    writeln!(context.out, "{}", host(worker))?;
    context.done()
}

/// Runs `hq worker wait`.
pub(super) async fn wait(args: WaitArgs, context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    let mut told = None;
    loop {
        let found = running_count(&mut client).await?;
        let wanted = args.count;
        if found >= wanted as usize {
            return context.done();
        }
        tokio::time::sleep(WAIT_STEP).await;
        if context.mode() == OutputMode::Cli && told.replace(found) != Some(found) {
            error_line(&format!(
                "Waiting for {}, {found} connected; `hq worker start` starts one, `hq alloc add` has a batch system start them",
                count(wanted.into(), "worker")
            ));
        }
    }
}

/// Returns the number of connected workers.
pub(super) async fn running_count(client: &mut Client) -> CliResult<usize> {
    let workers = client.workers(&Selector::All, false).await?.workers;
    Ok(workers.iter().filter(|worker| is_connected(worker)).count())
}
