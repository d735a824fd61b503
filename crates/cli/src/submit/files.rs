//! Handles the inputs and outputs of tasks before the submit: their paths, and the dependencies
//! derived from them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use hq_core::id::{InstanceId, JobId, TaskId};
use hq_core::params::Params;
use hq_core::placeholder::{FilePaths, PathPatterns, PathValues};
use hq_core::template::{ByteText, GraphTask, TaskFiles, TaskTemplate};

use super::params::{tells_apart, without};
use super::placeholder::{PathRole, check, replace};
use crate::error::{CliError, CliResult};

/// Placeholders that differ in each job or attempt. A file whose path contains them could not be
/// found again.
const FLEETING: [&str; 3] = ["%{JOB_ID}", "%{INSTANCE_ID}", "%{SERVER_UID}"];

/// Returns the files of tasks from the options or keys with the same names.
pub(crate) fn task_files(
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
    (must_exist, by_content): (bool, bool),
    cwd: &[u8],
) -> CliResult<TaskFiles> {
    let needless = [
        (must_exist, "--check-outputs requires --outputs"),
        (
            by_content,
            "--by-content needs --outputs: hq records contents next to them",
        ),
    ];
    if let Some((_, text)) = needless
        .iter()
        .find(|(asked, _)| *asked && outputs.is_empty())
    {
        return Err(CliError::new(*text).with_help("name them with --outputs"));
    }
    let all = || inputs.iter().chain(&outputs);
    if all().any(Vec::is_empty) {
        return Err(CliError::new(
            "Expected the path of an input or output, found nothing",
        ));
    }
    if let Some(path) = outputs.iter().find(|path| !has_name(path)) {
        return Err(CliError::new(format!(
            "The output {} has no file name, so the record of the task cannot be stored next to it",
            String::from_utf8_lossy(path)
        ))
        .with_help("name a file or directory that the task writes"));
    }
    let depends_on_cwd = all().any(|path| !path.starts_with(b"/"));
    let paths = all()
        .map(Vec::as_slice)
        .chain(depends_on_cwd.then_some(cwd));
    for path in paths {
        if let Some(name) = fleeting(path) {
            let text = String::from_utf8_lossy(path);
            return Err(CliError::new(format!(
                "The path {text} of an input or output, or of its working directory, changes with {name}"
            ))
            .with_help("the next submit looks for the same files: use %{TASK_ID} or parameters"));
        }
    }
    let texts = |paths: Vec<Vec<u8>>| paths.into_iter().map(ByteText::from).collect();
    Ok(TaskFiles {
        inputs: texts(inputs),
        outputs: texts(outputs),
        must_exist,
        by_content,
    })
}

/// Returns whether a path ends with a file name, unlike `/`, `.`, `..` and paths that end with
/// these.
fn has_name(path: &[u8]) -> bool {
    let last = path
        .split(|byte| *byte == b'/')
        .rfind(|part| !part.is_empty());
    last.is_some_and(|name| name != b"." && name != b"..")
}

/// Rejects misspelled placeholders, and warns about unknown ones.
pub(crate) fn check_placeholders(
    paths: &[Vec<u8>],
    role: PathRole,
    params: Option<&Params>,
    warnings: &mut Vec<String>,
) -> CliResult<()> {
    for path in paths {
        check(&without(path, params), role, warnings)?;
    }
    Ok(())
}

/// Rejects an output that several tasks of an array would write, because the file of one task would
/// count as the output of all.
pub(crate) fn check_apart(files: &TaskFiles, cwd: &[u8], params: Option<&Params>) -> CliResult<()> {
    let is_shared = |output: &&ByteText| {
        let path = replace(output, &[("CWD", cwd)]);
        // Both parts may contain parameters.
        let path = if path.starts_with(b"/") {
            path
        } else {
            [cwd, b"/", &path].concat()
        };
        !tells_apart(&path, params)
    };
    let Some(output) = files.outputs.iter().find(is_shared) else {
        return Ok(());
    };
    let instead = match params {
        Some(_) => "put `%{TASK_ID}`, or all parameters, into its path",
        None => "put `%{TASK_ID}` into its path",
    };
    Err(CliError::new(format!(
        "All tasks would write the output {}",
        String::from_utf8_lossy(output)
    ))
    .with_help(format!("{instead}, so that each task has its own")))
}

/// Returns the placeholder that makes a path differ in each job or attempt.
pub(crate) fn fleeting(path: &[u8]) -> Option<&'static str> {
    let text = String::from_utf8_lossy(path);
    FLEETING.into_iter().find(|name| text.contains(name))
}

/// Returns the working directory of one task, and the paths of its files.
pub(crate) fn paths_of(
    patterns: &PathPatterns,
    task: TaskId,
    submit_dir: &[u8],
) -> (Vec<u8>, FilePaths) {
    let values = PathValues {
        job: JobId(0),
        task,
        instance: InstanceId(0),
        submit_dir,
        server_uid: "",
        cwd: &[],
    };
    let cwd = patterns.render(&values).cwd;
    let files = patterns.files(&PathValues {
        cwd: &cwd,
        ..values
    });
    (cwd, files)
}

/// Adds a dependency for each task that reads another task's output.
pub(crate) fn add_edges(
    templates: &[std::sync::Arc<TaskTemplate>],
    tasks: &mut [GraphTask],
    submit_dir: &Path,
) -> CliResult<()> {
    if templates.iter().all(|template| template.files.is_empty()) {
        return Ok(());
    }
    let patterns: Vec<PathPatterns> = templates.iter().map(|t| PathPatterns::new(t)).collect();
    let submit_dir = submit_dir.as_os_str().as_bytes();
    let files: Vec<FilePaths> = tasks
        .iter()
        .filter_map(|task| {
            let patterns = patterns.get(task.template as usize)?;
            Some(paths_of(patterns, task.id, submit_dir).1)
        })
        .collect();
    let mut writers: HashMap<PathBuf, TaskId> = HashMap::new();
    for (task, files) in tasks.iter().zip(&files) {
        for output in &files.outputs {
            let path = normal(output);
            if let Some(other) = writers
                .insert(path, task.id)
                .filter(|other| *other != task.id)
            {
                let path = String::from_utf8_lossy(output);
                return Err(CliError::new(format!(
                    "Tasks {other} and {} both write {path}",
                    task.id
                ))
                .with_help("give each of them outputs of its own"));
            }
        }
    }
    for (task, files) in tasks.iter_mut().zip(&files) {
        let found = files
            .inputs
            .iter()
            .filter_map(|input| writers.get(&normal(input)));
        let id = task.id;
        task.deps
            .extend(found.copied().filter(|writer| *writer != id));
        task.deps.sort_unstable();
        task.deps.dedup();
    }
    Ok(())
}

/// Returns a path without `.` and repeated slashes. Keeps `..`, which may lead elsewhere after a
/// symbolic link.
fn normal(path: &[u8]) -> PathBuf {
    let path = PathBuf::from(OsString::from_vec(path.to_vec()));
    path.components()
        .filter(|part| !matches!(part, Component::CurDir))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_no_later_submit_could_find_are_refused() {
        let files = |output: &str, cwd: &str| {
            task_files(
                Vec::new(),
                vec![output.into()],
                (false, false),
                cwd.as_bytes(),
            )
        };
        assert!(files("out/%{TASK_ID}.txt", "%{SUBMIT_DIR}").is_ok());
        assert!(files("/out/a", "/run/%{JOB_ID}").is_ok());
        for (output, cwd) in [
            ("out/%{JOB_ID}", "/w"),
            ("out/a", "/run/%{JOB_ID}"),
            ("", "/w"),
            ("/", "/w"),
            (".", "/w"),
            ("..", "/w"),
            ("a/../", "/w"),
        ] {
            assert!(files(output, cwd).is_err(), "{output} in {cwd}");
        }
        for how in [(true, false), (false, true)] {
            assert!(task_files(vec!["a".into()], Vec::new(), how, b"/w").is_err());
        }
    }
}
