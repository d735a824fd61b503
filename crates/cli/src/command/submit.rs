//! `hq submit` and `hq job submit-file`.

mod after;
mod batch;
pub(super) mod dry_run;
mod learn_from;

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use hq_core::range::IdArray;
use hq_core::template::{After, SubmitSpec};
use hq_core::words::has_word;

use super::notify::Callback;
use super::{Context, follow, situation};
use crate::args::global::OutputMode;
use crate::args::job::SubmitFileArgs;
use crate::args::submit::{Destination, DirectivesMode, FollowArgs, SubmitArgs, TaskOptions};
use crate::client::Client;
use crate::config::{complete_tasks, submit_words};
use crate::error::{Caused as _, CliError, CliResult};
use crate::output::NewJob;
use crate::output::console::is_stdout_file;
use crate::parse::selector::Selector;
use crate::submit::build::{SubmitRequest, build};
use crate::submit::habits::{Front, Verb, given_options};
use crate::submit::plan::kinds;
use crate::submit::skip::OuterDependencies;
use crate::submit::{PreparedSubmit, SubmitContext, directives, jobfile, origin, read_for_tasks};

/// How long a waiting user waits before learning that none of the job's tasks can run. Most short
/// jobs have ended by then.
const OBSTACLE_DELAY: Duration = Duration::from_millis(250);

/// Submits a command.
pub(super) async fn submit(args: SubmitArgs, context: &mut Context) -> CliResult<()> {
    if jobfile::in_command("submit", &args.command)?.is_some() {
        return submit_file(file_args(args)?, context).await;
    }
    let is_batch = args.command.len() == 1 && args.command[0] == "-";
    if args.dry_run {
        if is_batch {
            return Err(dry_run::refuse_batch());
        }
        let stdin = read_for_tasks(args.stdin, &args.command, Verb::Submit)?;
        return dry_run::submit(args, stdin, context).await;
    }
    let mut client = context.connect().await?;
    if is_batch {
        return batch::run(&mut client, context).await;
    }
    let stdin = read_for_tasks(args.stdin, &args.command, Verb::Submit)?;
    submit_through(client, args, stdin, context).await
}

/// Submits a command with standard input for its tasks.
pub(super) async fn submit_given(
    args: SubmitArgs,
    stdin: Option<Vec<u8>>,
    context: &mut Context,
) -> CliResult<()> {
    let client = context.connect().await?;
    submit_through(client, args, stdin, context).await
}

async fn submit_through(
    mut client: Client,
    mut args: SubmitArgs,
    stdin: Option<Vec<u8>>,
    context: &mut Context,
) -> CliResult<()> {
    let how = args.follow;
    let on_notify = args.on_notify.take();
    let prepared = prepare(args, stdin, &mut client).await?;
    let mode = context.mode();
    let callback = on_notify
        .as_deref()
        .map(|program| Callback::start(program, mode));
    let callback = callback.transpose()?;
    let job = send(&prepared, &mut client, context).await?;
    let ended = wait_after_submit(
        &mut client,
        (job, &prepared),
        how,
        context,
        callback.as_ref(),
    )
    .await;
    if let Some(callback) = callback {
        callback.finish();
    }
    ended
}

/// Reads directives and files, and validates everything that can be validated without a server.
async fn prepare(
    mut args: SubmitArgs,
    stdin: Option<Vec<u8>>,
    client: &mut Client,
) -> CliResult<PreparedSubmit> {
    let conditions = after::resolve(&args, client).await?;
    let server_uid = client.server_uid().map(str::to_owned);
    let once = args.own.once.take();
    let learn_from = args.learn_from;
    let (mut prepared, skips_done) = prepare_with(args, stdin, conditions, server_uid.as_deref())?;
    // The digest covers the original request, not the remaining tasks: a later attempt may find
    // more finished tasks or learn other sizes, and still submits the same work.
    origin::add(&mut prepared.spec, server_uid.as_deref(), once.as_deref())?;
    learn_from::apply(learn_from, &mut prepared, client).await?;
    if !skips_done {
        return Ok(prepared);
    }
    let unended = after::unended(&prepared.spec.after, client).await?;
    prepared.skip_done(&unended)
}

/// Like `prepare`, but without a server: the dependencies and the ids are already known. Also
/// returns whether to leave out finished tasks.
fn prepare_with(
    mut args: SubmitArgs,
    stdin: Option<Vec<u8>>,
    conditions: (Vec<After>, Option<IdArray>),
    server_uid: Option<&str>,
) -> CliResult<(PreparedSubmit, bool)> {
    let destination = args.own.place(args.job);
    (args.tasks.command, args.tasks.stdin) = (args.command, stdin);
    let mut request = complete(Verb::Submit, args.tasks, args.directives, destination)?;
    (request.after, request.default_ids) = conditions;
    let skips_done = request.options.skip_done;
    let submit_dir = current_dir()?;
    let mut prepared = build(request, SubmitContext::new(&submit_dir, server_uid))?;
    prepared.spec.notify = args.notify.specs();
    Ok((prepared, skips_done))
}

/// Adds `#HQ` lines and settings to the options of a command line.
pub(super) fn complete(
    verb: Verb,
    mut options: TaskOptions,
    mode: DirectivesMode,
    destination: Destination,
) -> CliResult<SubmitRequest> {
    let front = Front::of(&options.command).with_settings(submit_words());
    directives::find(mode, &options.command, options.stdin.as_deref())?.apply(&mut options);
    complete_tasks(&mut options, destination.attach.is_some())?;
    Ok(SubmitRequest {
        options,
        destination,
        after: Vec::new(),
        default_ids: None,
        typed: (verb, front),
    })
}

/// The options of `hq submit` that may be used with a job file.
const FILE_OPTIONS: &str = "--job --open --max-tasks --once --skip-done --dry-run --notify --notify-on --wait --progress \
    --output-mode --server-dir --colors --debug";

/// Returns the command line for a job file.
fn file_args(args: SubmitArgs) -> CliResult<SubmitFileArgs> {
    check_file_options(&args.command, FILE_OPTIONS)?;
    let path = args.command.into_iter().next().unwrap_or_default();
    Ok(SubmitFileArgs {
        path: path.into(),
        job: args.job,
        own: args.own,
        skip_done: args.tasks.skip_done,
        dry_run: args.dry_run,
        notify: args.notify,
        follow: args.follow,
    })
}

/// Rejects task options, which a job file sets itself.
pub(super) fn check_file_options(command: &[OsString], known: &str) -> CliResult<()> {
    let given = given_options(command);
    let Some(option) = given.iter().find(|option| !has_word(known, option)) else {
        return Ok(());
    };
    let file = command
        .first()
        .map(|path| path.to_string_lossy())
        .unwrap_or_default();
    Err(CliError::new(format!(
        "`{option}` applies to a command, but {file} is a job file, which describes its tasks itself"
    ))
    .with_help(format!(
        "leave it out, and write it into {file}; `hq doc dependencies` lists the keys"
    )))
}

/// Submits a job file.
pub(super) async fn submit_file(args: SubmitFileArgs, context: &mut Context) -> CliResult<()> {
    if args.dry_run {
        return dry_run::submit_file(&args, context).await;
    }
    let mut client = context.connect().await?;
    let submit_dir = current_dir()?;
    let server_uid = client.server_uid().map(str::to_owned);
    let place = SubmitContext::new(&submit_dir, server_uid.as_deref());
    let mut prepared = jobfile::load(&args.path, args.own.place(args.job), place)?;
    prepared.spec.notify = args.notify.specs();
    let once = args.own.once.as_deref();
    // The digest covers the file, not the remaining tasks.
    origin::add(&mut prepared.spec, client.server_uid(), once)?;
    if args.skip_done {
        prepared = prepared.skip_done(&OuterDependencies::default())?;
    }
    let job = send(&prepared, &mut client, context).await?;
    wait_after_submit(&mut client, (job, &prepared), args.follow, context, None).await
}

async fn send(
    prepared: &PreparedSubmit,
    client: &mut Client,
    context: &mut Context,
) -> CliResult<u32> {
    prepared.report();
    let job = client.submit((&prepared.spec).into()).await?;
    context.show(&NewJob {
        id: job,
        is_open: false,
    })?;
    // The output is flushed now, because scripts use the id while we wait.
    context.flush()?;
    if context.mode() == OutputMode::Cli && std::io::stderr().is_terminal() && is_stdout_file() {
        tracing::warn!(
            "Standard output is a file, and the output of tasks is not written there: `hq job cat {job} stdout` prints it; \
             `hq run … > FILE` runs tasks and writes what they print"
        );
    }
    Ok(job)
}

/// Follows a new job if requested, and warns if its tasks cannot run.
async fn wait_after_submit(
    client: &mut Client,
    (job, prepared): (u32, &PreparedSubmit),
    how: FollowArgs,
    context: &mut Context,
    callback: Option<&Callback>,
) -> CliResult<()> {
    let is_for_people = context.mode() == OutputMode::Cli;
    if is_for_people
        && std::io::stderr().is_terminal()
        && has_memory_limit(&prepared.spec)
        && let Some(note) = situation::unlimited(client, job).await?
    {
        tracing::warn!("{note}");
    }
    if is_for_people && how.wait.is_none() {
        warn_obstacle(client, job, prepared).await?;
    }
    let dir = context.server_dir()?;
    let obstacle = async {
        tokio::time::sleep(OBSTACLE_DELAY).await;
        // The warning is optional, so errors are ignored.
        if let Ok(mut other) = Client::connect(&dir).await {
            let _ = warn_obstacle(&mut other, job, prepared).await;
        }
        std::future::pending::<Infallible>().await
    };
    let ended = follow::wait_after_submit(client, Selector::one(job), how, context, callback);
    tokio::select! {
        ended = ended => ended,
        // The checks run concurrently with the wait, because each request waits for a commit and
        // would delay the end of a short job.
        never = obstacle, if is_for_people && how.wait.is_some() => match never {},
    }
}

/// Warns that currently none of a new job's tasks can run.
async fn warn_obstacle(client: &mut Client, job: u32, prepared: &PreparedSubmit) -> CliResult<()> {
    let requests = kinds(&prepared.spec.body);
    if let Some(why) = situation::at_submit(client, job, &requests).await? {
        tracing::warn!("{why}");
    }
    Ok(())
}

/// Returns whether a task requests memory and is limited to it.
pub(super) fn has_memory_limit(spec: &SubmitSpec) -> bool {
    let mut templates = spec.body.templates().iter();
    templates.any(|template| template.has_memory_limit())
}

/// Returns the working directory under the name that the user knows.
pub(crate) fn current_dir() -> CliResult<PathBuf> {
    std::env::current_dir().caused("Cannot find the current directory")
}
