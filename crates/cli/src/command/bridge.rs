//! `hq bridge`: the client for programs in other languages.
//!
//! ```text
//!   program ──frames──▶ stdin ─▶ dispatch ─┬▶ submitter ──▶ server     one connection, calls in batches
//!                                          ├▶ watchers  ◀── server     one connection for each followed job
//!           ◀─frames─── stdout ◀───────────┴▶ questions ──▶ server     one connection each
//! ```
//!
//! A frame is a `u32` length, a `u32` length of its JSON, the JSON, and a blob that the JSON
//! describes. The bridge reports events as they happen, without requests. It ends when its standard
//! input is closed, and with `--local` it then also ends its server and worker. It does not
//! interpret the values of calls.

use std::sync::Arc;

use hq_protocol::access::ServerDir;
use hq_server::{EmbeddedConfig, EmbeddedServer};
use hq_spawn::keeper::KeeperContext;
use hq_worker::Interrupt;
use tokio::sync::{mpsc, oneshot};

use super::Context;
use super::run::local::LocalMachine;
use super::worker::start::split_off_keeper;
use crate::args::other::BridgeArgs;
use crate::client::Client;
use crate::error::{Caused as _, CliError, CliResult};
use crate::version::VERSION;

mod calls;
mod dispatch;
mod frame;
mod questions;
mod spec;
mod talk;
mod values;
mod watch;

/// The maximum number of requests that wait for a connection.
const DIALS_MAX: usize = 16;

/// Serves the program that started the bridge, until it closes standard input.
pub(super) fn run(args: BridgeArgs, context: &mut Context) -> CliResult<()> {
    let frames = frame::Frames::take_stdio()?;
    if !args.local {
        let dialer = Dialer::Dir(context.server_dir()?);
        let runtime = crate::runtime::on_this_thread()?;
        let result = runtime.block_on(dispatch::serve(frames, dialer));
        runtime.shutdown_background();
        return result;
    }
    let keeper = split_off_keeper()?;
    let machine = LocalMachine::detect(args.cpus)?;
    let runtime = crate::runtime::on_several_threads()?;
    let result = runtime.block_on(serve_alone(frames, machine, keeper));
    runtime.shutdown_background();
    result
}

/// How to reach the server.
#[derive(Clone, Debug)]
enum Dialer {
    /// Through its directory.
    Dir(ServerDir),
    /// The server is in this process.
    Local(mpsc::Sender<oneshot::Sender<CliResult<Client>>>),
}

impl Dialer {
    /// Opens a connection.
    async fn connect(&self) -> CliResult<Client> {
        match self {
            Self::Dir(dir) => Client::connect(dir).await,
            Self::Local(asks) => {
                let gone = || CliError::new("The server in this process has ended");
                let (reply, client) = oneshot::channel();
                asks.send(reply).await.map_err(|_| gone())?;
                client.await.map_err(|_| gone())?
            }
        }
    }

    /// Returns whether a server that was lost can come back.
    const fn may_return(&self) -> bool {
        matches!(self, Self::Dir(_))
    }
}

/// Serves with a separate server and worker in this process, like `hq run`.
async fn serve_alone(
    frames: frame::Frames,
    machine: LocalMachine,
    keeper: KeeperContext,
) -> CliResult<()> {
    let config = EmbeddedConfig {
        version: VERSION.to_owned(),
        idle_timeout: None,
    };
    let mut server = EmbeddedServer::start(config).caused("Cannot start the server")?;
    let (worker, control) = machine.start_worker(&mut server, keeper, false).await?;
    let (asks, mut asked) = mpsc::channel::<oneshot::Sender<CliResult<Client>>>(DIALS_MAX);
    let uid = server.info().server_uid.clone();
    let serving = tokio::spawn(async move {
        while let Some(reply) = asked.recv().await {
            let client = Client::in_process(server.connect_client(), uid.clone()).await;
            // The task that requested the connection may have ended.
            let _ = reply.send(client);
        }
        server.shutdown().await;
    });
    let result = dispatch::serve(frames, Dialer::Local(asks)).await;
    // The program has ended, so its tasks do not have to finish. The second request kills them.
    for _ in 0..2 {
        let _ = control.send(Interrupt::Terminate).await;
    }
    if let Err(error) = worker.await {
        tracing::error!(%error, "the worker did not end cleanly");
    }
    serving.abort();
    result
}

/// State that all parts share.
#[derive(Clone, Debug)]
struct Shared {
    dialer: Dialer,
    out: frame::Out,
    templates: Arc<spec::Templates>,
}
