//! From command lines, scripts and job files to a validated submit.
//!
//! Nothing here talks to a server. Files named by the user are read; what they say is parsed once into
//! `hq-core` types. Warnings are returned, not logged, so that the caller decides who sees them.

use std::path::Path;

use hq_core::template::SubmitSpec;

pub(crate) mod build;
pub(crate) mod directives;
pub(crate) mod entries;
pub(crate) mod exact_json;
pub(crate) mod jobfile;
pub(crate) mod placeholder;

/// What a submit is resolved against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubmitContext<'a> {
    /// Directory in which the user submits; absolute.
    pub(crate) submit_dir: &'a Path,
    /// Uid of the server, if the access file tells it.
    pub(crate) server_uid: Option<&'a str>,
    /// Where output goes for which the user named no file; `None` = the documented default.
    pub(crate) output_dir: Option<&'a Path>,
}

/// Path pattern of a stream for which the user named no file.
pub(crate) fn default_output(context: SubmitContext<'_>, suffix: &str) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    let name = format!("%{{TASK_ID}}.{suffix}");
    match context.output_dir {
        Some(dir) => dir.join(name).as_os_str().as_bytes().to_vec(),
        None => format!("%{{CWD}}/job-%{{JOB_ID}}/{name}").into_bytes(),
    }
}

/// A submit and what the user should know about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PreparedSubmit {
    /// The submit.
    pub(crate) spec: SubmitSpec,
    /// Complete sentences.
    pub(crate) warnings: Vec<String>,
}

/// Builds the submit of a job file and forgets it.
pub(crate) fn check_job_file(content: &str) -> crate::error::CliResult<()> {
    let context = SubmitContext {
        submit_dir: Path::new("/w"),
        server_uid: None,
        output_dir: None,
    };
    jobfile::parse(Path::new("job.toml"), content, None, context).map(|_| ())
}
