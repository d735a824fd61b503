//! Converts command lines, scripts and job files into a validated submit.
//!
//! Nothing here sends requests to a server. This module reads the files that the user names, and
//! parses their content once into types of `hq-core`. It returns warnings instead of logging them,
//! so that the caller decides who sees them.

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use hq_core::id::JobId;
use hq_core::template::{SubmitBody, SubmitSpec, SubmitTarget};
use hq_protocol::limits::REQUEST_MAX;
use hq_server::{JobFormat, JobText};

use crate::args::submit::{Destination, TaskOptions};
use crate::error::{CliError, CliResult};
use crate::parse::param::ParamSource;
use crate::text::closest;
use habits::{Front, Verb};
use skip::{OuterDependencies, SkipPlan, leave_out};

pub(crate) mod build;
mod content;
pub(crate) mod directives;
pub(crate) mod entries;
pub(crate) mod exact_json;
pub(crate) mod files;
pub(crate) mod habits;
pub(crate) mod jobfile;
mod learn;
pub(crate) mod origin;
pub(crate) mod params;
pub(crate) mod placeholder;
pub(crate) mod plan;
mod rows;
pub(crate) mod skip;

/// Reads a file that the user named. It may be a device or an endless FIFO, so no more is read than
/// one request can contain.
pub(crate) fn read_all(
    source: &str,
    input: impl std::io::Read,
    bytes_max: usize,
) -> CliResult<Vec<u8>> {
    let mut data = Vec::new();
    let mut input = input.take(bytes_max as u64 + 1);
    std::io::Read::read_to_end(&mut input, &mut data)
        .map_err(|error| CliError::new(format!("Cannot read {source}: {error}")))?;
    if data.len() > bytes_max {
        return Err(CliError::new(format!(
            "{source} has more than {bytes_max} bytes, the limit of one submit"
        ))
        .with_help("write large data to files, and pass their paths to tasks"));
    }
    Ok(data)
}

/// The state of standard input, which can be read only once.
#[derive(Debug)]
enum Stdin {
    Fresh,
    /// Standard input was read before it is needed.
    Kept(Vec<u8>),
    Taken,
}

static STDIN: Mutex<Stdin> = Mutex::new(Stdin::Fresh);

/// Reads all of standard input. Must only be called if the user requested it.
pub(crate) fn read_stdin() -> CliResult<Vec<u8>> {
    let mut state = STDIN.lock().unwrap_or_else(PoisonError::into_inner);
    match std::mem::replace(&mut *state, Stdin::Taken) {
        Stdin::Kept(data) => return Ok(data),
        Stdin::Taken => {
            return Err(
                CliError::new("Standard input can be read only once, but is named twice")
                    .with_help("put one of the two into a file"),
            );
        }
        Stdin::Fresh => {}
    }
    announce_stdin("Reading data from stdin. In the interactive mode press Ctrl-D to submit.");
    read_all("standard input", std::io::stdin().lock(), REQUEST_MAX)
}

/// Says on a terminal that a command reads what is typed there.
fn announce_stdin(text: &str) {
    if std::io::stdin().is_terminal() {
        // If standard error is closed, the message is lost.
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

/// Reads a text file; `-` is standard input.
pub(crate) fn read_text(path: &Path) -> std::io::Result<String> {
    if !is_stdin(path) {
        return std::fs::read_to_string(path);
    }
    announce_stdin("Reading standard input, which Ctrl-D ends");
    std::io::read_to_string(std::io::stdin())
}

/// Reads standard input for the tasks of a command that has `--stdin`.
pub(crate) fn read_for_tasks(
    is_wanted: bool,
    command: &[OsString],
    verb: Verb,
) -> CliResult<Option<Vec<u8>>> {
    if !is_wanted {
        return Ok(None);
    }
    let front = Front::of(command);
    // A user would not type the input of a file that is not a program.
    if std::io::stdin().is_terminal() {
        front.refuse_input_file(verb)?;
    }
    let data = read_stdin()?;
    if data.is_empty() && front.is_input_unseen() {
        tracing::warn!("Standard input is empty, and so is that of the tasks");
    }
    Ok(Some(data))
}

/// Reads standard input now, for a later [`read_stdin`].
pub(crate) fn keep_stdin() -> CliResult<()> {
    let data = read_stdin()?;
    *STDIN.lock().unwrap_or_else(PoisonError::into_inner) = Stdin::Kept(data);
    Ok(())
}

/// Returns whether `-` names standard input as the file with tasks.
pub(crate) fn reads_stdin(options: &TaskOptions, command: &[OsString]) -> bool {
    let files = options.each_line.iter().chain(&options.each_row);
    let files = files.chain(&options.from_json);
    let params = options
        .param
        .iter()
        .filter_map(|param| match &param.source {
            ParamSource::Lines(path) => Some(path),
            ParamSource::Given(_) => None,
        });
    matches!(command, [file] if is_stdin(Path::new(file)))
        || files.chain(params).any(|path| is_stdin(path))
}

/// Returns whether a path means standard input.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Reads a file that describes tasks. `-` means standard input.
pub(crate) fn read_file(path: &Path) -> CliResult<Vec<u8>> {
    if is_stdin(path) {
        return read_stdin();
    }
    let shown = path.display().to_string();
    let file = std::fs::File::open(path).map_err(|error| unreadable(path, &error))?;
    read_all(&shown, file, REQUEST_MAX).map_err(|error| match path.is_dir() {
        true => error.with_help("it is a directory: name a file in it"),
        false => error,
    })
}

/// Returns the error about a named file that cannot be opened, with a guess at what was intended.
pub(crate) fn unreadable(path: &Path, error: &std::io::Error) -> CliError {
    let shown = path.display();
    let failed = CliError::new(format!("Cannot read {shown}: {error}"));
    if error.kind() == std::io::ErrorKind::NotFound {
        return failed.with_help(replacement_hint(path));
    }
    if error.kind() == std::io::ErrorKind::PermissionDenied {
        let help =
            format!("you are not allowed to read it; `ls -ld {shown}` shows its permissions");
        return failed.with_help(help);
    }
    failed
}

/// Describes what exists instead of the expected file.
fn replacement_hint(path: &Path) -> String {
    let parent = path.parent().filter(|dir| *dir != Path::new(""));
    let dir = parent.unwrap_or(Path::new("."));
    if let Some(meant) = similar_file(path) {
        return format!("did you mean `{}`?", meant.display());
    }
    let here = std::env::current_dir().unwrap_or_default();
    match (dir.is_dir(), path.is_absolute()) {
        (false, _) => format!("the directory `{}` does not exist", dir.display()),
        (true, true) => format!("`ls {}` lists what is there", dir.display()),
        (true, false) => format!("paths are relative to this directory, {}", here.display()),
    }
}

/// Returns the file of a directory with the most similar name.
pub(crate) fn similar_file(path: &Path) -> Option<PathBuf> {
    let dir = path.parent().filter(|dir| *dir != Path::new(""));
    let names = dir.unwrap_or(Path::new(".")).read_dir().ok()?;
    let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let names: Vec<String> = names.collect();
    let meant = closest(
        path.file_name()?.to_str()?,
        names.iter().map(String::as_str),
    )?;
    Some(path.with_file_name(meant))
}

/// The context for resolving a submit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubmitContext<'a> {
    /// The absolute directory of the user's submit command.
    pub(crate) submit_dir: &'a Path,
    /// The uid of the server. `None` if the access file has none.
    pub(crate) server_uid: Option<&'a str>,
    /// The directory for output without an explicit path. `None` selects the documented default.
    pub(crate) output_dir: Option<&'a Path>,
    /// Whether this process may read files that the submit names. The files of an HTTP client are on
    /// another host or belong to another user.
    pub(crate) reads_files: bool,
}

impl<'a> SubmitContext<'a> {
    /// Creates the context of a submit to a server.
    pub(crate) const fn new(submit_dir: &'a Path, server_uid: Option<&'a str>) -> Self {
        Self {
            submit_dir,
            server_uid,
            output_dir: None,
            reads_files: true,
        }
    }
}

/// Returns the path pattern of an output without an explicit path.
pub(crate) fn default_output(context: SubmitContext<'_>, suffix: &str) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    let name = format!("%{{TASK_ID}}.{suffix}");
    match context.output_dir {
        Some(dir) => dir.join(name).as_os_str().as_bytes().to_vec(),
        None => format!("%{{CWD}}/job-%{{JOB_ID}}/{name}").into_bytes(),
    }
}

/// Returns a submit that has only tasks.
pub(crate) fn bare_submit(target: SubmitTarget, submit_dir: &Path, body: SubmitBody) -> SubmitSpec {
    use std::os::unix::ffi::OsStrExt as _;
    SubmitSpec {
        target,
        submit_dir: submit_dir.as_os_str().as_bytes().into(),
        stream_dir: None,
        after: Vec::new(),
        notify: Vec::new(),
        origin: None,
        nonce: None,
        notes: Vec::new(),
        limits: hq_core::bound::SubmitLimits::default(),
        body,
    }
}

/// A submit with its warnings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PreparedSubmit {
    /// The submit.
    pub(crate) spec: SubmitSpec,
    /// The warnings, as complete sentences.
    pub(crate) warnings: Vec<String>,
    /// The finished tasks, if they were determined.
    pub(crate) skipped: Option<SkipPlan>,
}

impl PreparedSubmit {
    /// Creates a submit whose finished tasks are not determined yet.
    pub(crate) const fn new(spec: SubmitSpec, warnings: Vec<String>) -> Self {
        Self {
            spec,
            warnings,
            skipped: None,
        }
    }

    /// Leaves out finished tasks. `unended` contains the unfinished dependencies.
    pub(crate) fn skip_done(mut self, unended: &OuterDependencies) -> CliResult<Self> {
        self.skipped = Some(leave_out(&mut self.spec, unended)?);
        Ok(self)
    }

    /// Logs the warnings.
    pub(crate) fn report(&self) {
        for warning in &self.warnings {
            tracing::warn!("{warning}");
        }
        // Scripts find the notes with the job.
        if std::io::stderr().is_terminal() {
            for note in &self.spec.notes {
                tracing::warn!("{note}");
            }
        }
        if let Some(skipped) = &self.skipped {
            tracing::info!("{skipped}");
        }
    }
}

/// Parses a job that a program describes to the server, in the format of `hq job submit-file`.
pub(crate) fn read_job(job: JobText<'_>) -> Result<(SubmitSpec, Vec<String>), String> {
    let context = SubmitContext {
        reads_files: false,
        ..SubmitContext::new(job.submit_dir, Some(job.server_uid))
    };
    let source = jobfile::Source {
        path: Path::new("the description"),
        content: job.text,
        format: match job.format {
            JobFormat::Json => jobfile::Format::Json,
            JobFormat::Toml => jobfile::Format::Toml,
            JobFormat::Yaml => jobfile::Format::Yaml,
        },
    };
    let destination = Destination {
        attach: job.open_job.map(JobId::as_u32),
        ..Destination::default()
    };
    match jobfile::parse(source, destination, context) {
        Ok(prepared) => Ok((prepared.spec, prepared.warnings)),
        Err(error) => Err(error.text().unwrap_or_default()),
    }
}

/// Builds and drops the submit of a job file.
pub(crate) fn check_job_file(content: &str) -> CliResult<()> {
    let context = SubmitContext {
        reads_files: false,
        ..SubmitContext::new(Path::new("/w"), None)
    };
    let source = jobfile::Source {
        path: Path::new("job.toml"),
        content,
        format: jobfile::Format::Toml,
    };
    jobfile::parse(source, Destination::default(), context).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_ends_is_not_read_to_its_end() {
        let refused = read_all("/dev/zero", std::io::repeat(0), 1_000);
        let text = refused
            .expect_err("it never ends")
            .text()
            .unwrap_or_default();
        assert!(
            text.contains("/dev/zero has more than 1000 bytes"),
            "{text}"
        );
        let all = read_all("x", &[7; 1_000][..], 1_000);
        assert_eq!(all.map(|data| data.len()).ok(), Some(1_000));
    }
}
