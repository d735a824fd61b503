//! Builds a submit from options and a command, with the checks and warnings in their documented
//! order.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hq_core::bound::{LimitUse, Rate, SubmitLimits, USES_MAX};
use hq_core::growth::{GrowSpec, memory};
use hq_core::id::JobId;
use hq_core::params::{Params, begins_with_param};
use hq_core::range::IdArray;
use hq_core::resource::amount::UNITS_PER_WHOLE;
use hq_core::resource::request::{RequestVariants, ResourceRequest};
use hq_core::retry::{RetryCause, RetrySpec, StopSpec};
use hq_core::sizing::{self, FirstMemory, LearnSpec};
use hq_core::template::{
    After, ArrayIds, ArraySpec, ByteText, Entries, PinMode, StdioSpec, SubmitBody, SubmitSpec,
    SubmitTarget, TaskFiles, TaskTemplate,
};

use super::entries::{EntryList, read_json, read_lines};
use super::files::{check_apart, check_placeholders, task_files};
use super::habits::{self, Front, Typed, Verb};
use super::learn;
use super::params::{self, fill_name, tells_apart, without};
use super::placeholder::{self, PathRole};
use super::{PreparedSubmit, SubmitContext, bare_submit, content, default_output, reads_stdin};
use crate::args::submit::{Destination, RequestOptions, TaskOptions, YesNo};
use crate::error::{CliError, CliResult};
use crate::parse::learn::TimeRequest;
use crate::parse::request::{RequestAmount, ResourceArg};
use crate::parse::retry::RetryOn;
use crate::parse::value::{EnvPair, StdioArg, into_bytes};

/// The number of output files above which a warning is given.
const OUTPUT_FILES_MAX: u64 = 999;

/// The default working directory.
pub(crate) const DEFAULT_CWD: &[u8] = b"%{SUBMIT_DIR}";

/// A submit as the user describes it.
#[derive(Debug)]
pub(crate) struct SubmitRequest {
    /// The options, with directives already merged in.
    pub(crate) options: TaskOptions,
    /// The job to create or to add to.
    pub(crate) destination: Destination,
    /// The jobs to wait for.
    pub(crate) after: Vec<After>,
    /// The ids to use if the options name none.
    pub(crate) default_ids: Option<IdArray>,
    /// The form of the command line: the verb, and the words before the program.
    pub(crate) typed: (Verb, Front),
}

/// Checks the options and builds the submit.
pub(crate) fn build(
    request: SubmitRequest,
    context: SubmitContext<'_>,
) -> CliResult<PreparedSubmit> {
    let SubmitRequest {
        mut options,
        destination,
        after,
        default_ids,
        typed,
    } = request;
    let needs = Needs::of(&options, |text| CliError::new(text))?;
    let mut notes = Vec::new();
    let params = params::build(&options, &mut notes)?;
    let entry_in_args = look_at(&options, &typed, params.as_deref(), &mut notes)?;
    let target = build_target(&options, destination, params.as_deref())?;
    let (ids, entries) = build_ids(&options, default_ids, params.as_deref(), &mut notes)?;
    note_values(&options, entries.as_ref(), &needs.retry, &mut notes);
    let mut warnings = Vec::new();
    if let Some(params) = &params {
        params::check(&options, params, &mut warnings)?;
    }
    let stream = options.stream.take();
    let limits = limits(
        std::mem::take(&mut options.limit),
        max_running(&options)?,
        options.max_rate,
    )?;
    let frame = Frame {
        context,
        params,
        is_streamed: stream.is_some(),
        count: Some(count_of(&ids)),
    };
    let template = TaskTemplate {
        entry_in_args,
        ..build_template(options, needs, &frame, &mut warnings)?
    };
    let body = SubmitBody::Array(ArraySpec {
        ids,
        entries,
        template: Arc::new(template),
    });
    let spec = SubmitSpec {
        stream_dir: stream_dir(stream.as_deref(), context, &mut warnings)?,
        after,
        notes,
        limits,
        ..bare_submit(target, context.submit_dir, body)
    };
    Ok(PreparedSubmit::new(spec, warnings))
}

/// Returns the limit of running tasks, which `--max-running` or `--array` sets.
fn max_running(options: &TaskOptions) -> CliResult<Option<u32>> {
    let of_array = options.array.as_ref().and_then(|array| array.max_running);
    match (options.max_running, of_array) {
        (Some(_), Some(max)) => Err(CliError::new(format!(
            "`%{max}` in --array means --max-running {max}, and --max-running is also given"
        ))
        .with_help("leave out one of them")),
        (max, of_array) => Ok(max.or(of_array)),
    }
}

/// Returns the limits of a submit. Rejects a limit that is named twice.
pub(crate) fn limits(
    uses: Vec<LimitUse>,
    max_running: Option<u32>,
    max_rate: Option<Rate>,
) -> CliResult<SubmitLimits> {
    let mut names = BTreeSet::new();
    if let Some(twice) = uses.iter().find(|part| !names.insert(&part.name)) {
        let name = &twice.name;
        return Err(CliError::new(format!("limit {name} is named twice"))
            .with_help(format!("`{name}=2` lets each task count twice")));
    }
    if uses.len() > USES_MAX {
        let text = format!(
            "a submit has at most {USES_MAX} limits, this one {}",
            uses.len()
        );
        return Err(CliError::new(text));
    }
    Ok(SubmitLimits {
        uses,
        max_running,
        max_rate,
    })
}

/// The parts of a submit that do not describe its tasks.
#[derive(Clone, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) context: SubmitContext<'a>,
    pub(crate) params: Option<Arc<Params>>,
    /// Whether output without a path goes to the stream.
    pub(crate) is_streamed: bool,
    /// The number of tasks. `None` if paths keep all their placeholders, as in a job file.
    pub(crate) count: Option<u32>,
}

/// Builds what tasks share from their description.
pub(crate) fn build_template(
    mut options: TaskOptions,
    needs: Needs,
    frame: &Frame<'_>,
    warnings: &mut Vec<String>,
) -> CliResult<TaskTemplate> {
    let paths = build_paths(&options, frame, warnings)?;
    let env = build_env(std::mem::take(&mut options.env), warnings);
    let files = build_files(&options, &paths.cwd, frame, warnings)?;
    Ok(TaskTemplate {
        env,
        params: frame.params.clone(),
        files,
        ..assemble(options, needs, paths)
    })
}

/// Builds what tasks share, without variables and files.
pub(crate) fn assemble(options: TaskOptions, needs: Needs, paths: Paths) -> TaskTemplate {
    let stop = StopSpec::default();
    TaskTemplate {
        args: options.command.into_iter().map(into_bytes).collect(),
        env: Vec::new(),
        cwd: paths.cwd,
        stdout: paths.stdout,
        stderr: paths.stderr,
        stdin: options.stdin.map(Arc::from),
        task_dir: options.task_dir,
        pin: options.pin.map_or(PinMode::None, PinMode::from),
        time_limit: options.time_limit,
        priority: options.priority.unwrap_or_default(),
        crash_limit: options.crash_limit.unwrap_or_default(),
        requests: needs.requests,
        stop: StopSpec {
            signal: options.stop_signal.unwrap_or(stop.signal),
            grace: options.stop_grace.unwrap_or(stop.grace),
        },
        retry: needs.retry,
        is_call: false,
        learn: needs.learn,
        params: None,
        files: TaskFiles::default(),
        enforce_memory: options.enforce_memory != Some(YesNo::No),
        name: None,
        entry_in_args: false,
    }
}

/// Returns whether options describe retries although no retries are enabled.
pub(crate) fn are_retries_missing(retry: &RetrySpec) -> bool {
    let usual = RetrySpec::default();
    retry.limit == 0 && (retry.on != usual.on || retry.delay != usual.delay)
}

/// Adds warnings about unusual lines of tasks, about retries, and about the time of tasks.
fn note_values(
    options: &TaskOptions,
    lines: Option<&Entries>,
    retry: &RetrySpec,
    notes: &mut Vec<Box<str>>,
) {
    if are_retries_missing(retry) {
        let text = "no task is retried: `--retry-on` and `--retry-delay` require a number of retries, such as `--retries 3`";
        notes.push(text.into());
    }
    let list = options.each_line.as_ref().or(options.from_json.as_ref());
    if let (Some(path), Some(_)) = (list, lines.filter(|lines| lines.is_empty())) {
        // Without tasks nothing else matters.
        notes.retain(|note| note.starts_with(content::LIST_HAS));
        if notes.is_empty() {
            notes.push(content::note_on_nothing(path).into());
        }
    } else if let (Some(path), Some(lines)) = (&options.each_line, lines)
        && let Some(note) = content::note_on_lines(path, lines, options.null)
    {
        notes.insert(0, note.into());
    }
    if let Some(TimeRequest::Given(asked)) = options.time_request
        && options.time_limit.is_some_and(|limit| limit < asked)
    {
        let text = "`--time-request` is longer than `--time-limit`: tasks wait for workers with more time left than any task can use";
        notes.push(text.into());
    }
}

/// Returns the number of tasks.
pub(crate) fn count_of(ids: &ArrayIds) -> u32 {
    match ids {
        ArrayIds::Given(ids) => ids.len(),
        ArrayIds::Next(count) => *count,
    }
}

/// Detects habits of other tools. Returns whether `{}` means the entry of a task.
fn look_at(
    options: &TaskOptions,
    (verb, front): &(Verb, Front),
    params: Option<&Params>,
    notes: &mut Vec<Box<str>>,
) -> CliResult<bool> {
    let command = &options.command;
    let has_stdin = options.stdin.is_some() || reads_stdin(options, command);
    let typed = Typed::of_options((*verb, front), options, command, (params, has_stdin));
    notes.extend(habits::look(&typed)?);
    Ok(typed.takes_entry())
}

fn build_files(
    options: &TaskOptions,
    cwd: &[u8],
    frame: &Frame<'_>,
    warnings: &mut Vec<String>,
) -> CliResult<TaskFiles> {
    let params = frame.params.as_deref();
    let bytes = |paths: &[PathBuf]| -> Vec<Vec<u8>> {
        let paths = paths.iter().map(|path| path.as_os_str().as_bytes());
        paths.map(<[u8]>::to_vec).collect()
    };
    let (inputs, outputs) = (bytes(&options.inputs), bytes(&options.outputs));
    for (paths, role) in [(&inputs, PathRole::Input), (&outputs, PathRole::Output)] {
        check_placeholders(paths, role, params, warnings)?;
    }
    let how = (options.check_outputs, options.by_content);
    let files = task_files(inputs, outputs, how, cwd)?;
    if frame.count.is_some_and(|count| count > 1) {
        check_apart(&files, cwd, params)?;
    }
    Ok(files)
}

/// The number of retries of tasks whose requests grow, if the user sets none.
const GROWN_RETRIES: u16 = 3;

/// The requests of tasks, what hq learns about them, and the retries.
#[derive(Debug)]
pub(crate) struct Needs {
    requests: RequestVariants,
    learn: LearnSpec,
    retry: RetrySpec,
}

impl Needs {
    /// Checks the options about requests and retries. `refuse` makes an error of a broken rule
    /// about requests.
    pub(crate) fn of(options: &TaskOptions, refuse: fn(&str) -> CliError) -> CliResult<Self> {
        let (requests, memory, is_timed) = build_requests(options, refuse)?;
        let learn = learn::build(options, memory, is_timed)?;
        let retry = build_retry(options, &requests, memory.is_some())?;
        Ok(Self {
            requests,
            learn,
            retry,
        })
    }
}

/// Returns whether and how to retry tasks. Missing options get their defaults. `is_sized` means
/// that the tasks' memory is learned.
fn build_retry(
    options: &TaskOptions,
    requests: &RequestVariants,
    is_sized: bool,
) -> CliResult<RetrySpec> {
    let grow = build_grow(options, requests)?;
    let usual = RetrySpec::default();
    let cured = [
        (grow.memory.is_some() || is_sized).then_some(RetryCause::OutOfMemory),
        grow.time.map(|_| RetryCause::TimeLimit),
    ];
    let cured = cured.into_iter().flatten();
    let does_grow = grow != GrowSpec::default() || is_sized;
    let mut on = match &options.retry_on {
        Some(RetryOn(causes)) => causes.clone(),
        // The user requested no retries other than those with a grown request.
        None if does_grow && options.retries.is_none() => Vec::new(),
        None => usual.on,
    };
    for cause in cured {
        if !on.contains(&cause) {
            on.push(cause);
        }
    }
    let usual_limit = match (does_grow, is_sized) {
        (_, true) => sizing::RETRIES,
        (true, false) => GROWN_RETRIES,
        (false, false) => usual.limit,
    };
    Ok(RetrySpec {
        limit: options.retries.unwrap_or(usual_limit),
        on,
        delay: options.retry_delay.unwrap_or(usual.delay),
        grow,
    })
}

/// Returns how requests grow. Fails if no request can grow.
fn build_grow(options: &TaskOptions, requests: &RequestVariants) -> CliResult<GrowSpec> {
    let grow = options.retry_grow.unwrap_or_default();
    let refuse = |text: &str| Err(CliError::new(text));
    if options.retries == Some(0) && grow != GrowSpec::default() {
        return refuse(
            "nothing can grow: with 0 retries there is no next attempt. Leave out --retries, or give a number",
        );
    }
    if let Some(growth) = grow.memory {
        let Some(asked) = memory(requests) else {
            return refuse(
                "mem cannot grow: the tasks request no amount of it. Add --resource mem=SIZE",
            );
        };
        if growth.max.is_some_and(|max| max <= asked) {
            return refuse("mem cannot grow: the tasks already request its max, or more");
        }
    }
    if let Some(growth) = grow.time {
        let Some(limit) = options.time_limit else {
            return refuse(
                "time cannot grow: the tasks have no time limit. Add --time-limit DURATION",
            );
        };
        if growth.max.is_some_and(|max| max <= limit) {
            return refuse("time cannot grow: the time limit is already its max, or more");
        }
    }
    Ok(grow)
}

/// Returns the requests, the memory to be learned, and whether the time is learned.
fn build_requests(
    options: &TaskOptions,
    refuse: fn(&str) -> CliError,
) -> CliResult<(RequestVariants, Option<FirstMemory>, bool)> {
    let asked = variants(options);
    // Job files may have many templates, which keep this list.
    let (mut variants, mut memories) = (Vec::with_capacity(asked.len()), Vec::new());
    for variant in &*asked {
        let (entries, memory) = learn::split(&variant.resources)?;
        memories.push(memory);
        variants.push(ResourceRequest {
            entries,
            n_nodes: variant.n_nodes,
            min_time: match variant.time_request {
                Some(TimeRequest::Given(time)) => time,
                Some(TimeRequest::Auto) | None => Duration::ZERO,
            },
            weight: variant
                .weight
                .unwrap_or(u32::try_from(UNITS_PER_WHOLE).unwrap_or(u32::MAX)),
        });
    }
    if options.cpus.is_some() && options.resource.iter().any(|asked| asked.name() == "cpus") {
        return Err(
            CliError::new("--cpus and --resource cpus=... cannot be combined")
                .with_help("they mean the same: leave out one of them"),
        );
    }
    let memory = memories.first().copied().flatten();
    if memories.iter().any(|other| *other != memory) {
        return Err(refuse(
            "mem = \"auto\" is for all requests of a task, or for none",
        ));
    }
    let takes_nodes = variants.iter().any(|variant| variant.n_nodes > 0);
    let requests = RequestVariants::new(variants).map_err(|error| refuse(&error.to_string()))?;
    if memory.is_some() && takes_nodes {
        return Err(refuse(learn::WHOLE_NODES));
    }
    let is_timed = |variant: &RequestOptions| variant.time_request == Some(TimeRequest::Auto);
    Ok((requests, memory, asked.iter().any(is_timed)))
}

/// Returns the variants of the request. Without a list of them, other options describe the only one.
fn variants(options: &TaskOptions) -> Cow<'_, [RequestOptions]> {
    if !options.request.is_empty() {
        return Cow::Borrowed(&options.request);
    }
    let n_nodes = options.nodes.unwrap_or(0);
    let mut resources = options.resource.clone();
    let names_cpus = resources.iter().any(|asked| asked.name() == "cpus");
    // Requests for whole nodes exclude other requests.
    if n_nodes == 0 && !names_cpus {
        let cpus = options.cpus.unwrap_or(RequestAmount::ONE);
        resources.push(ResourceArg::Amount(cpus.for_resource("cpus")));
    }
    Cow::Owned(vec![RequestOptions {
        n_nodes,
        time_request: options.time_request,
        weight: options.weight,
        resources,
    }])
}

fn build_target(
    options: &TaskOptions,
    destination: Destination,
    params: Option<&Params>,
) -> CliResult<SubmitTarget> {
    let Some(job) = destination.attach else {
        let name = options
            .name
            .clone()
            .unwrap_or_else(|| default_name(&options.command));
        let name = params.map_or_else(|| name.clone(), |params| fill_name(&name, params));
        return Ok(new_job(name.into(), options.max_fails, destination));
    };
    for (option, is_given) in [
        ("--name", options.name.is_some()),
        ("--max-fails", options.max_fails.is_some()),
    ] {
        if is_given {
            return Err(CliError::new(format!(
                "Parameter {option} is not allowed when submitting to an open job."
            )));
        }
    }
    Ok(SubmitTarget::Attach(JobId(job)))
}

/// Returns the specification of a new job.
pub(crate) fn new_job(
    name: Box<str>,
    max_fails: Option<u32>,
    destination: Destination,
) -> SubmitTarget {
    if destination.is_open {
        SubmitTarget::SelfClosing {
            name,
            max_fails,
            tasks_max: destination.tasks_max,
        }
    } else {
        SubmitTarget::NewJob { name, max_fails }
    }
}

fn default_name(command: &[OsString]) -> String {
    let program = command.first().map(Path::new).and_then(Path::file_name);
    let name = program
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    name.replace(['\n', '\t'], " ")
}

fn build_ids(
    options: &TaskOptions,
    default_ids: Option<IdArray>,
    params: Option<&Params>,
    notes: &mut Vec<Box<str>>,
) -> CliResult<(ArrayIds, Option<Entries>)> {
    if let Some(params) = params {
        return Ok((params::ids(params, options)?, None));
    }
    let list = if let Some(path) = &options.each_line {
        tracing::info!("Reading file: {}", path.display());
        read_lines(path, if options.null { 0 } else { b'\n' })?
    } else if let Some(path) = &options.from_json {
        tracing::info!("Reading json file: {}", path.display());
        read_json(path)?
    } else {
        let ids = options
            .array
            .as_deref()
            .cloned()
            .or(default_ids)
            .map_or(ArrayIds::Next(1), ArrayIds::Given);
        return Ok((ids, None));
    };
    if let Some(array) = &options.array {
        notes.extend(content::note_on_ids(list.count()?, array).map(String::into_boxed_str));
    }
    with_entries(list, options.array.as_deref())
}

fn with_entries(
    list: EntryList,
    array: Option<&IdArray>,
) -> CliResult<(ArrayIds, Option<Entries>)> {
    let (ids, entries) = match array {
        Some(array) => list.select(array)?,
        None => (ArrayIds::Next(list.count()?), list.finish()?),
    };
    Ok((ids, Some(entries)))
}

/// The paths of tasks, as far as they are known at the submit.
#[derive(Debug)]
pub(crate) struct Paths {
    pub(crate) cwd: ByteText,
    pub(crate) stdout: StdioSpec,
    pub(crate) stderr: StdioSpec,
}

fn build_paths(
    options: &TaskOptions,
    frame: &Frame<'_>,
    warnings: &mut Vec<String>,
) -> CliResult<Paths> {
    let (context, params) = (frame.context, frame.params.as_deref());
    let cwd = options
        .cwd
        .as_deref()
        .map_or(DEFAULT_CWD, |cwd| cwd.as_os_str().as_bytes());
    check_cwd(cwd)?;
    let stdout = raw_stdio(options.stdout.as_ref(), "stdout", frame);
    let stderr = raw_stdio(options.stderr.as_ref(), "stderr", frame);
    for (spec, role) in [(&stdout, PathRole::Stdout), (&stderr, PathRole::Stderr)] {
        if let StdioSpec::File { path, .. } = spec {
            placeholder::check(&without(path, params), role, warnings)?;
        }
    }
    placeholder::check(&without(cwd, params), PathRole::Cwd, warnings)?;
    let Some(count) = frame.count else {
        return Ok(Paths {
            cwd: cwd.into(),
            stdout,
            stderr,
        });
    };
    let resolver = PathResolver::with_params(cwd, params, context);
    let paths = Paths {
        stdout: resolver.stdio(stdout),
        stderr: resolver.stdio(stderr),
        cwd: resolver.cwd.clone().into(),
    };
    warn_about_files(&paths, params, count, context, warnings);
    Ok(paths)
}

/// Rejects a working directory that is defined in terms of itself.
fn check_cwd(cwd: &[u8]) -> CliResult<()> {
    if placeholder::contains(cwd, "CWD") {
        return Err(CliError::new(
            "Working directory path cannot contain the working directory placeholder `%{CWD}`.",
        ));
    }
    Ok(())
}

fn warn_about_files(
    paths: &Paths,
    params: Option<&Params>,
    count: u32,
    context: SubmitContext<'_>,
    warnings: &mut Vec<String>,
) {
    let has_task_id = |path: &[u8]| tells_apart(path, params);
    let mut files = 0;
    for (name, spec) in [("stdout", &paths.stdout), ("stderr", &paths.stderr)] {
        let StdioSpec::File { path, .. } = spec else {
            continue;
        };
        files += u64::from(count);
        let is_below_cwd = !path.starts_with(b"/");
        if count > 1 && !has_task_id(path) && !(is_below_cwd && has_task_id(&paths.cwd)) {
            warnings.push(format!(
                "You have submitted an array job, but the `{name}` path does not contain the task ID placeholder.\n\
                 Individual tasks might thus overwrite the file. Consider adding `%{{TASK_ID}}` to the `--{name}` value.\n\
                 Without `--{name}`, `hq job cat JOB {name} > FILE` writes the output of all tasks into one file."
            ));
        }
    }
    if files > OUTPUT_FILES_MAX && context.output_dir.is_none() {
        warnings.push(format!(
            "The job will create {files} files for stdout and stderr. \
             Consider using the `--stream` option to stream all outputs into a single file"
        ));
    }
}

/// Returns an output with its default path. No placeholders are replaced.
fn raw_stdio(arg: Option<&StdioArg>, suffix: &str, frame: &Frame<'_>) -> StdioSpec {
    let default = || default_output(frame.context, suffix).into();
    match arg {
        None if frame.is_streamed => StdioSpec::Stream,
        None => StdioSpec::File {
            path: default(),
            remove_if_finished: false,
        },
        Some(StdioArg::None) => StdioSpec::None,
        Some(StdioArg::File {
            path,
            remove_if_finished,
        }) => StdioSpec::File {
            path: path.clone().unwrap_or_else(default),
            remove_if_finished: *remove_if_finished,
        },
    }
}

/// Returns the stream directory with all placeholders replaced that are known at the submit.
pub(crate) fn stream_dir(
    dir: Option<&Path>,
    context: SubmitContext<'_>,
    warnings: &mut Vec<String>,
) -> CliResult<Option<ByteText>> {
    let Some(dir) = dir else { return Ok(None) };
    let dir = dir.as_os_str().as_bytes();
    warnings.extend(placeholder::unknown_warning(dir, PathRole::Stream));
    let known = replace_known(dir, context, None);
    let path = Path::new(std::ffi::OsStr::from_bytes(&known));
    if context.submit_dir.join(path).is_file() {
        return Err(CliError::new(format!(
            "`{}` is a file, and the tasks' streams need a directory",
            path.display()
        ))
        .with_help("workers create the directory: `--stream DIR`; `--stdout FILE` writes a file"));
    }
    Ok(Some(known.into()))
}

/// Replaces placeholders that are known at the submit, first in the working directory.
pub(crate) struct PathResolver<'a> {
    context: SubmitContext<'a>,
    cwd: Vec<u8>,
    /// Whether the whole working directory differs between tasks, so that its placeholder stays.
    is_open: bool,
}

impl<'a> PathResolver<'a> {
    /// Makes the working directory absolute.
    pub(crate) fn new(cwd: &[u8], context: SubmitContext<'a>) -> Self {
        let cwd = replace_known(cwd, context, None);
        let absolute = context.submit_dir.join(std::ffi::OsStr::from_bytes(&cwd));
        // This removes `.` and repeated slashes from displayed paths.
        let absolute: PathBuf = absolute.components().collect();
        Self {
            context,
            cwd: absolute.as_os_str().as_bytes().to_vec(),
            is_open: false,
        }
    }

    /// Like `new`, but with parameters. A directory that starts with a parameter becomes absolute
    /// only when the value is known, because the value may be a whole path.
    fn with_params(cwd: &[u8], params: Option<&Params>, context: SubmitContext<'a>) -> Self {
        if !params.is_some_and(|params| begins_with_param(cwd, params)) {
            return Self::new(cwd, context);
        }
        Self {
            context,
            cwd: replace_known(cwd, context, None),
            is_open: true,
        }
    }

    /// Returns the absolute working directory. Placeholders that differ per task are left.
    pub(crate) fn cwd(&self) -> ByteText {
        self.cwd.clone().into()
    }

    /// Returns the output with all placeholders replaced, except placeholders that differ between
    /// tasks.
    pub(crate) fn stdio(&self, spec: StdioSpec) -> StdioSpec {
        let cwd = (!self.is_open).then_some(&*self.cwd);
        match spec {
            StdioSpec::File {
                path,
                remove_if_finished,
            } => StdioSpec::File {
                path: replace_known(&path, self.context, cwd).into(),
                remove_if_finished,
            },
            StdioSpec::None | StdioSpec::Stream => spec,
        }
    }
}

fn replace_known(path: &[u8], context: SubmitContext<'_>, cwd: Option<&[u8]>) -> Vec<u8> {
    let mut values = vec![("SUBMIT_DIR", context.submit_dir.as_os_str().as_bytes())];
    values.extend(context.server_uid.map(|uid| ("SERVER_UID", uid.as_bytes())));
    values.extend(cwd.map(|cwd| ("CWD", cwd)));
    placeholder::replace(path, &values)
}

fn build_env(pairs: Vec<EnvPair>, warnings: &mut Vec<String>) -> Vec<(ByteText, ByteText)> {
    let count = pairs.len();
    let pairs = pairs.into_iter().map(|pair| (pair.name, pair.value));
    let map: BTreeMap<_, _> = pairs.collect();
    if map.len() < count {
        warnings.push(
            "Some environment variables were ignored. Check if you haven't used duplicate keys."
                .to_owned(),
        );
    }
    map.into_iter().collect()
}

#[cfg(test)]
mod tests;
