//! `hq server …`.

mod background;

use std::io::IsTerminal as _;
use std::path::Path;
use std::time::{Duration, Instant};

use hq_core::words::count;
use hq_protocol::access::{Access, AccessFile, ServerDir, ServerUid};
use hq_protocol::client;
use hq_protocol::{SecretKey, ServerKey};
use hq_server::{Journal, RunError, Server, ServerConfig, StartError, Stop};
use tokio::signal::unix::{SignalKind, signal};

use super::Context;
use super::situation::is_unfinished;
use super::worker::start::own_hostname;
use crate::args::server::{DebugDumpArgs, GenerateAccessArgs, StartArgs, StopArgs, WaitArgs};
use crate::client::{Client, JobList, ServerInfo, access_error};
use crate::error::{Caused as _, CliError, CliResult};
use crate::output::ServerView;
use crate::output::format::words;
use crate::parse::selector::Selector;
use crate::signals::Warnings;
use crate::submit::read_job;
use crate::version::VERSION;

/// How long to wait at shutdown for threads that read the journal or other files.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause between two attempts of `server wait`.
const WAIT_STEP: Duration = Duration::from_millis(250);

/// Runs `hq server start`, which runs the server until it is stopped.
pub(super) fn start(args: StartArgs, context: &mut Context) -> CliResult<()> {
    if args.detached {
        background::detach();
    }
    tracing::info!("hq {VERSION}");
    if !args.background {
        warn_about_open_planes(&args);
        refuse_huge_pages();
    }
    let runtime = crate::runtime::on_several_threads()?;
    let result = if args.background {
        runtime.block_on(background::start(context))
    } else {
        runtime.block_on(serve(args, context))
    };
    // Closes all connections. If the journal's file system hangs, the kernel keeps the process and
    // its open descriptors, but clients that wait for the server to end must not wait for that.
    runtime.shutdown_timeout(CLOSE_TIMEOUT);
    result
}

/// Disables huge pages for this process. If the system enables them for all processes, a page fault
/// has to zero 2 MiB. Children inherit the setting, but a server's children are only batch system
/// commands and notifications, not tasks.
fn refuse_huge_pages() {
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "cannot do without huge pages");
    }
}

async fn serve(args: StartArgs, context: &mut Context) -> CliResult<()> {
    let dir = context.server_dir()?;
    let config = ServerConfig {
        server_dir: dir.root().to_path_buf(),
        is_default_dir: context.global.server_dir.is_none(),
        host: args.host,
        client_port: args.client_port,
        worker_port: args.worker_port,
        access_file: args.access_file,
        idle_timeout: args.idle_timeout,
        client_auth: !args.disable_client_authentication_and_encryption,
        worker_auth: !args.disable_worker_authentication_and_encryption,
        journal: match args.journal {
            Some(path) => Journal::File(path),
            None if args.no_journal => Journal::None,
            None => Journal::InServerDir,
        },
        journal_size_max: args.journal_max_size.0,
        resume: args.resume,
        fresh: args.fresh,
        http: args.http,
        quarantine: args.quarantine,
        notify: args.notify,
        read_job: Some(read_job),
        version: VERSION.to_owned(),
    };
    let advice = match &config.journal {
        Journal::File(path) => advice_on_journal(path),
        Journal::None | Journal::InServerDir => None,
    };
    let mut shutdown = Box::pin(stop_signal()?);
    let started = tokio::select! {
        started = Server::start(config) => started,
        // The start may be waiting for another start, or for a heartbeat.
        _ = &mut shutdown => return Err(CliError::new("The server did not start: it received a signal")),
    };
    let server = started.map_err(|error| match (start_error(&error), advice) {
        (error, Some(advice)) => error.with_help(advice),
        (error, None) => error,
    })?;
    if let Some(why) = wrong_host(&server.info().worker_host) {
        tracing::warn!("{why}");
    }
    // A server continues even if its standard output is closed.
    let shown = context.show(&ServerView {
        info: server.info(),
        dir: Some(dir.root()),
    });
    if let Err(error) = shown.and_then(|()| context.flush()) {
        tracing::debug!(?error, "cannot print the server's table");
    }
    print_ready(&dir);
    server.run(shutdown).await.map_err(|error| match &error {
        RunError::Access(error) => access_error(error),
        RunError::Store => CliError::new(error.to_string()),
    })?;
    tracing::info!("Server stopped");
    Ok(())
}

fn start_error(error: &StartError) -> CliError {
    match error {
        StartError::Access(error) => access_error(error),
        // This error's text already includes its cause.
        StartError::State { .. } => CliError::new(error.to_string()),
        StartError::AlreadyOnline { .. }
        | StartError::Starting { .. }
        | StartError::OtherVersionOnline { .. }
        | StartError::AccessDamaged { .. }
        | StartError::JournalGone { .. }
        | StartError::FreshJournal { .. }
        | StartError::NothingToResume { .. }
        | StartError::Store(_)
        | StartError::Listen { .. }
        | StartError::Http { .. }
        | StartError::System(_) => match std::error::Error::source(error) {
            Some(source) => crate::runtime::not_started(error.to_string(), source),
            None => CliError::new(error.to_string()),
        },
    }
}

/// Logs that the server is ready, and the next steps.
fn print_ready(dir: &ServerDir) {
    let hint = dir.hint();
    tracing::info!(
        "The server is ready. To start a worker on a node, run `hq worker start{hint}` there"
    );
}

/// Completes on SIGINT, which comes from a user, or on SIGTERM, which comes from a service manager
/// or a shutdown. After SIGTERM, workers wait for the next server, as they do after the announced
/// end of an allocation. SIGHUP is ignored, so that a logout does not end the server.
fn stop_signal() -> CliResult<impl Future<Output = Stop>> {
    let listen = |kind| signal(kind).caused("Cannot handle signals");
    let (mut interrupt, mut terminate) = (
        listen(SignalKind::interrupt())?,
        listen(SignalKind::terminate())?,
    );
    let mut hangup = listen(SignalKind::hangup())?;
    let mut warnings = Warnings::listen().caused("Cannot handle signals")?;
    Ok(async move {
        let how = loop {
            tokio::select! {
                _ = interrupt.recv() => break Stop::WithWorkers,
                _ = terminate.recv() => break Stop::KeepWorkers,
                () = warnings.recv() => break Stop::KeepWorkers,
                _ = hangup.recv() => tracing::debug!("ignoring SIGHUP"),
            }
        };
        tracing::info!("Received a signal, stopping the server");
        how
    })
}

/// Returns why other machines cannot reach a server under this name.
pub(super) fn wrong_host(host: &str) -> Option<String> {
    let address = host
        .trim_matches(['[', ']'])
        .parse::<std::net::IpAddr>()
        .ok();
    let is_any = address.is_some_and(|address| address.is_unspecified());
    let is_here = host == "localhost" || address.is_some_and(|address| address.is_loopback());
    (is_any || is_here).then(|| format!(
        "Workers and clients connect to the host of the server, and `{host}` means the machine on which they run: only this machine \
             reaches the server. It accepts connections to all its addresses anyway: start it with `--host NAME`, a name of this machine that others can resolve"
    ))
}

fn warn_about_open_planes(args: &StartArgs) {
    for (is_open, who) in [
        (args.disable_client_authentication_and_encryption, "client"),
        (args.disable_worker_authentication_and_encryption, "worker"),
    ] {
        if is_open {
            tracing::warn!("===================================================================");
            tracing::warn!("Authentication and encryption of {who} connections are DISABLED.");
            tracing::warn!("Every process that reaches the {who} port can run programs as you.");
            tracing::warn!("===================================================================");
        }
    }
}

/// Returns advice for a path that cannot be a journal.
fn advice_on_journal(path: &Path) -> Option<String> {
    if path.is_dir() {
        let file = path.join("journal");
        return Some(format!("name a file in it: `--journal {}`", file.display()));
    }
    let dir = path.parent().filter(|dir| *dir != Path::new(""))?;
    (!dir.exists()).then(|| format!("create its directory first: `mkdir -p {}`", dir.display()))
}

/// Runs `hq server stop`.
pub(super) async fn stop(args: StopArgs, context: &mut Context) -> CliResult<()> {
    let mut client = Client::connect_any(&context.server_dir()?).await?;
    tracing::info!("Stopping server");
    if std::io::stderr().is_terminal()
        && !args.keep_workers
        && let Ok(client::JobList { jobs }) = client.ask(JobList(&Selector::All)).await
    {
        let unfinished = jobs.iter().filter(|job| is_unfinished(job)).count();
        if unfinished > 0 {
            tracing::warn!(
                "{} left unfinished: `hq server start --resume` continues them; with `hq server stop --keep-workers`, running tasks would have continued",
                count(unfinished as u64, "job")
            );
        }
    }
    client.server_stop(args.keep_workers).await?;
    context.done()
}

/// Runs `hq server info`.
pub(super) async fn info(context: &mut Context) -> CliResult<()> {
    let info = context.ask(ServerInfo).await?;
    let info = &info;
    context.show(&ServerView { info, dir: None })
}

/// Runs `hq server wait`.
pub(super) async fn wait(args: WaitArgs, context: &mut Context) -> CliResult<()> {
    let timeout = words(args.timeout);
    tracing::info!("Waiting for server to become available (timeout: {timeout})...");
    let dir = context.server_dir()?;
    let start = Instant::now();
    loop {
        let left = args.timeout.saturating_sub(start.elapsed());
        let attempt = tokio::time::timeout(left.max(WAIT_STEP), Client::connect(&dir)).await;
        if matches!(attempt, Ok(Ok(_))) {
            tracing::info!("Successfully connected to server");
            return context.done();
        }
        let left = args.timeout.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(CliError::new(format!(
                "Timeout after {timeout}: Could not connect to server at `{}`. \
                 Make sure that the server is running.",
                dir.root().display()
            )));
        }
        tokio::time::sleep(left.min(WAIT_STEP)).await;
    }
}

/// Runs `hq server generate-access`.
pub(super) fn generate_access(args: GenerateAccessArgs, context: &mut Context) -> CliResult<()> {
    let host = args.host.unwrap_or_else(own_hostname);
    let failed = |error| CliError::caused("Cannot make a key", &error);
    let pair = ServerKey::generate().map_err(failed)?;
    let access = |own: Option<String>, port: u16| -> CliResult<Access> {
        let key = SecretKey::generate().map_err(failed)?;
        Ok(Access {
            host: own.unwrap_or_else(|| host.clone()),
            port,
            key: Some(key.with_server(&pair)),
        })
    };
    let uid = ServerUid::generate().map_err(|e| access_error(&e))?;
    let full = AccessFile::full(
        VERSION,
        uid,
        access(args.client_host, args.client_port)?,
        access(args.worker_host, args.worker_port)?,
    );
    store(&full, &args.access_file)?;
    if let Some(path) = &args.client_file {
        store(&full.client_only(), path)?;
    }
    if let Some(path) = &args.worker_file {
        store(&full.worker_only(), path)?;
    }
    context.done()
}

fn store(file: &AccessFile, path: &Path) -> CliResult<()> {
    file.create(path).map_err(|error| access_error(&error))?;
    tracing::info!("Storing access file as '{}'", path.display());
    Ok(())
}

/// Runs `hq server debug-dump`.
pub(super) async fn debug_dump(args: DebugDumpArgs, context: &mut Context) -> CliResult<()> {
    use std::os::unix::ffi::OsStrExt as _;
    let mut client = context.connect().await?;
    tracing::info!("Dumping server state ...");
    let path = args.path.as_os_str().as_bytes().to_vec().into();
    let written = client.ask(client::DebugDump { path }).await?.path;
    let written = Path::new(std::ffi::OsStr::from_bytes(&written));
    tracing::info!("Dump finished: '{}'", written.display());
    context.done()
}
