//! `--dry-run`: shows what would be submitted, as far as it is known in advance.

use std::collections::BTreeMap;
use std::time::Duration;

use hq_core::id::JobId;
use hq_core::resource::amount::Amount;
use hq_core::resource::request::RequestVariants;
use hq_core::template::After;
use hq_protocol::client;

use super::{Context, after, current_dir, learn_from, prepare_with};
use crate::args::job::SubmitFileArgs;
use crate::args::submit::SubmitArgs;
use crate::client::Client;
use crate::error::{CliError, CliResult};
use crate::output::format::{elapsed, now_unix_ns, short_words};
use crate::parse::selector::{Selector, SingleSelector};
use crate::source::{host, is_connected, resources};
use crate::submit::plan::{Plan, PlannedWorker, WorkerCapacity, fits, kinds, plan};
use crate::submit::skip::OuterDependencies;
use crate::submit::{PreparedSubmit, SubmitContext, jobfile};

/// Shows what `hq submit` would do.
pub(super) async fn submit(
    args: SubmitArgs,
    stdin: Option<Vec<u8>>,
    context: &mut Context,
) -> CliResult<()> {
    let mut server = connect(context).await;
    let (after, default_ids) = match &mut server {
        Ok(client) => after::resolve(&args, client).await?,
        Err(_) => match known_after(&args) {
            Some(after) => (after, None),
            // Only the server can resolve this job or these tasks.
            None => return server.map(drop),
        },
    };
    let mut client = server.ok();
    let uid = client
        .as_ref()
        .and_then(Client::server_uid)
        .map(str::to_owned);
    let learn_from = args.learn_from;
    let (mut prepared, skips_done) =
        prepare_with(args, stdin, (after, default_ids), uid.as_deref())?;
    match &mut client {
        Some(client) => learn_from::apply(learn_from, &mut prepared, client).await?,
        None if learn_from.is_some() => {
            tracing::warn!("no server can be queried about the job of --learn-from");
        }
        None => {}
    }
    if skips_done {
        let unended = match &mut client {
            Some(client) => after::unended(&prepared.spec.after, client).await?,
            // Without a server, all these dependencies count as unfinished.
            None => OuterDependencies {
                job: prepared.spec.after.first().map(|after| after.job),
                each: None,
            },
        };
        prepared = prepared.skip_done(&unended)?;
    }
    show(&prepared, client.as_mut(), uid.as_deref(), context).await
}

/// Shows what `hq job submit-file` would do.
pub(super) async fn submit_file(args: &SubmitFileArgs, context: &mut Context) -> CliResult<()> {
    let mut client = connect(context).await.ok();
    let uid = client
        .as_ref()
        .and_then(Client::server_uid)
        .map(str::to_owned);
    let submit_dir = current_dir()?;
    let place = SubmitContext::new(&submit_dir, uid.as_deref());
    let mut prepared = jobfile::load(&args.path, args.own.place(args.job), place)?;
    if args.skip_done {
        prepared = prepared.skip_done(&OuterDependencies::default())?;
    }
    show(&prepared, client.as_mut(), uid.as_deref(), context).await
}

/// Connects to the server if one is running. If it is unreachable, reports that and continues
/// without it.
async fn connect(context: &Context) -> CliResult<Client> {
    let server = context.connect().await;
    let found = context.server_dir()?.load_access_any();
    let is_there = !found.is_err_and(|error| error.is_no_server_yet());
    if is_there && let Some(why) = server.as_ref().err().and_then(CliError::text) {
        tracing::warn!("The server cannot be queried for its workers: {why}");
    }
    server
}

/// Returns the conditions that can be understood without a server.
fn known_after(args: &SubmitArgs) -> Option<Vec<After>> {
    if args.after_each.is_some() {
        return None;
    }
    let known = args.after.iter().map(|arg| match arg.job {
        SingleSelector::Id(id) => Some(After {
            job: JobId(id),
            is_each: false,
            is_any: arg.is_any,
        }),
        SingleSelector::Last => None,
    });
    known.collect()
}

async fn show(
    prepared: &PreparedSubmit,
    client: Option<&mut Client>,
    uid: Option<&str>,
    context: &mut Context,
) -> CliResult<()> {
    prepared.report();
    let submit_dir = current_dir()?;
    let mut plan = plan(prepared, SubmitContext::new(&submit_dir, uid));
    if let Some(client) = client {
        add_workers(&mut plan, prepared, client).await?;
    }
    print(&plan, context)
}

/// Prints a plan in the output mode.
pub(in crate::command) fn print(plan: &Plan, context: &mut Context) -> CliResult<()> {
    context.show(plan)
}

/// Adds all connected workers, whether each could run some of the tasks, and the tasks that no
/// worker could run.
async fn add_workers(
    plan: &mut Plan,
    prepared: &PreparedSubmit,
    client: &mut Client,
) -> CliResult<()> {
    let mut all = client.workers(&Selector::All, false).await?.workers;
    all.retain(is_connected);
    let mut sizes = BTreeMap::<&str, u32>::new();
    for worker in &all {
        *sizes.entry(group(worker)).or_default() += 1;
    }
    let mut unfit = kinds(&prepared.spec.body);
    let all_kinds = unfit.clone();
    let planned = all.iter().map(|worker| {
        let amounts: Vec<(String, Amount)> = resources(worker)
            .map(|one| (one.name.to_owned(), Amount(one.total)))
            .collect();
        let offer = WorkerCapacity {
            amounts: &amounts,
            group_size: sizes.get(group(worker)).copied().unwrap_or_default(),
            left: left(worker),
        };
        let can_run = |kind: &&RequestVariants| !worker.is_draining && fits(kind, offer);
        unfit.retain(|kind| !can_run(kind));
        PlannedWorker {
            id: worker.id,
            hostname: host(worker).to_owned(),
            fits: all_kinds.iter().any(can_run),
        }
    });
    plan.workers = Some(planned.collect());
    plan.unfit = unfit.into_iter().map(shown).collect();
    Ok(())
}

/// Formats the resource requests of a kind of task on one line.
fn shown(requests: &RequestVariants) -> String {
    let variants = requests.as_slice().iter().map(|request| {
        let entries = request.entries.iter();
        let mut parts: Vec<String> = entries
            .map(|entry| format!("{}: {entry}", entry.resource))
            .collect();
        if request.n_nodes > 0 {
            parts.push(format!("nodes: {}", request.n_nodes));
        }
        if !request.min_time.is_zero() {
            parts.push(format!("time request: {}", short_words(request.min_time)));
        }
        parts.join(", ")
    });
    variants.collect::<Vec<_>>().join(" or ")
}

fn group(worker: &client::WorkerInfo) -> &str {
    let config = worker.config.as_ref();
    config.map_or("", |config| config.group.as_str())
}

/// Returns the remaining lifetime of a worker, or `None` if it is unlimited.
fn left(worker: &client::WorkerInfo) -> Option<Duration> {
    let limit = worker.config.as_ref()?.time_limit_ns?;
    let age = elapsed(worker.started_unix_ns, now_unix_ns());
    Some(Duration::from_nanos(limit).saturating_sub(age))
}

/// Returns the error for the lines of `hq submit -`, which cannot be shown.
pub(super) fn refuse_batch() -> CliError {
    CliError::new("`--dry-run` shows one submit, but `-` reads many").with_help(
        "give the options and the command of one of them: `hq submit --dry-run -- ./program`"
            .to_owned(),
    )
}
