//! Paths with placeholders, such as `%{TASK_ID}.out`.
//!
//! A path is split once per template, and then rendered for each task without searching it again.
//! Unknown placeholders stay unchanged. This module handles only bytes, and accesses no file
//! system.

use std::sync::Arc;

use crate::id::{InstanceId, JobId, TaskId};
use crate::params::{Params, placeholder_at};
use crate::template::{ByteText, StdioSpec, TaskTemplate};

/// A placeholder in a path, written `%{NAME}`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placeholder {
    /// The id of the job.
    JobId,
    /// The id of the task.
    TaskId,
    /// The id of the instance.
    InstanceId,
    /// The directory of the submission.
    SubmitDir,
    /// The uid of the server.
    ServerUid,
    /// The working directory of the task.
    Cwd,
}

impl Placeholder {
    fn from_name(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"JOB_ID" => Self::JobId,
            b"TASK_ID" => Self::TaskId,
            b"INSTANCE_ID" => Self::InstanceId,
            b"SUBMIT_DIR" => Self::SubmitDir,
            b"SERVER_UID" => Self::ServerUid,
            b"CWD" => Self::Cwd,
            _ => return None,
        })
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    Literal(Box<[u8]>),
    Placeholder(Placeholder),
    /// The value of the parameter with this number.
    Param(usize),
}

/// A path split into literals and placeholders.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathPattern(Vec<Part>);

/// The values of the placeholders for one task.
#[derive(Clone, Copy, Debug)]
pub struct PathValues<'a> {
    /// The job.
    pub job: JobId,
    /// The task.
    pub task: TaskId,
    /// The instance.
    pub instance: InstanceId,
    /// The absolute directory of the submission.
    pub submit_dir: &'a [u8],
    /// The uid of the server.
    pub server_uid: &'a str,
    /// The absolute working directory of the task. Empty while it is being rendered itself.
    pub cwd: &'a [u8],
}

impl PathPattern {
    /// Splits a path into literals and placeholders.
    #[must_use]
    pub fn parse(path: &[u8]) -> Self {
        Self::parse_with(path, None)
    }

    /// Splits a path that may contain parameters.
    fn parse_with(path: &[u8], params: Option<&Params>) -> Self {
        let mut parts = Vec::new();
        let mut literal = Vec::new();
        let mut rest = path;
        let mut before = None;
        while let Some((&first, tail)) = rest.split_first() {
            let found = known_at(rest).or_else(|| {
                let params = params?;
                let at = placeholder_at(rest, before, |name| params.position(name));
                at.map(|(which, length)| (Part::Param(which), length))
            });
            if let Some((part, length)) = found {
                if !literal.is_empty() {
                    parts.push(Part::Literal(std::mem::take(&mut literal).into()));
                }
                parts.push(part);
                rest = rest.get(length..).unwrap_or_default();
                before = Some(b'}');
            } else {
                literal.push(first);
                rest = tail;
                before = Some(first);
            }
        }
        if !literal.is_empty() {
            parts.push(Part::Literal(literal.into()));
        }
        Self(parts)
    }

    /// Returns whether all tasks of a submission have the same path.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        self.0.iter().all(|part| {
            !matches!(
                part,
                Part::Param(_)
                    | Part::Placeholder(
                        Placeholder::TaskId | Placeholder::InstanceId | Placeholder::Cwd
                    )
            )
        })
    }

    /// Appends the path of one task to `out`.
    pub fn render(&self, values: &PathValues<'_>, out: &mut Vec<u8>) {
        self.render_with(values, &[], out);
    }

    fn render_with(&self, values: &PathValues<'_>, params: &[(&str, ByteText)], out: &mut Vec<u8>) {
        for part in &self.0 {
            match part {
                Part::Literal(bytes) => out.extend_from_slice(bytes),
                Part::Param(which) => out.extend(params.get(*which).iter().flat_map(|(_, v)| v)),
                Part::Placeholder(Placeholder::JobId) => push_number(values.job.0, out),
                Part::Placeholder(Placeholder::TaskId) => push_number(values.task.0, out),
                Part::Placeholder(Placeholder::InstanceId) => push_number(values.instance.0, out),
                Part::Placeholder(Placeholder::SubmitDir) => out.extend(values.submit_dir),
                Part::Placeholder(Placeholder::ServerUid) => out.extend(values.server_uid.bytes()),
                Part::Placeholder(Placeholder::Cwd) => out.extend(values.cwd),
            }
        }
    }
}

/// Returns the placeholder at the start of `rest` and its length, if it is a placeholder that every
/// path may contain.
fn known_at(rest: &[u8]) -> Option<(Part, usize)> {
    let inner = rest.strip_prefix(b"%{")?;
    let end = inner.iter().position(|byte| *byte == b'}')?;
    let placeholder = Placeholder::from_name(inner.get(..end)?)?;
    Some((Part::Placeholder(placeholder), end + b"%{}".len()))
}

fn push_number(number: u32, out: &mut Vec<u8>) {
    use std::io::Write;
    // Writing to a vector cannot fail.
    let _ = write!(out, "{number}");
}

/// Joins a path to a base directory, unless the path is absolute.
#[must_use]
pub fn join(base: &[u8], path: &[u8]) -> Vec<u8> {
    if path.first() == Some(&b'/') {
        return path.to_vec();
    }
    let mut joined = base.strip_suffix(b"/").unwrap_or(base).to_vec();
    if !path.is_empty() {
        joined.push(b'/');
        joined.extend_from_slice(path);
    }
    joined
}

/// Replaces the placeholders whose values are known when a submission is accepted, `%{JOB_ID}` and
/// `%{SERVER_UID}`, and keeps all others.
#[must_use]
pub fn fill_known(path: &[u8], job: JobId, server_uid: &str) -> Vec<u8> {
    let mut out = path.to_vec();
    for (name, value) in [
        ("%{JOB_ID}", job.to_string()),
        ("%{SERVER_UID}", server_uid.to_string()),
    ] {
        out = replace(&out, name.as_bytes(), value.as_bytes());
    }
    out
}

fn replace(text: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(from) {
            out.extend_from_slice(to);
            rest = after;
        } else {
            out.push(first);
            rest = tail;
        }
    }
    out
}

/// The resolved paths of one task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskPaths {
    /// The absolute working directory.
    pub cwd: Vec<u8>,
    /// The standard output, with an absolute path.
    pub stdout: StdioSpec,
    /// The standard error, with an absolute path.
    pub stderr: StdioSpec,
}

/// The patterns of one template, each split once.
#[derive(Clone, Debug)]
pub struct PathPatterns {
    cwd: PathPattern,
    stdout: Option<(PathPattern, bool)>,
    stderr: Option<(PathPattern, bool)>,
    stdout_other: StdioSpec,
    stderr_other: StdioSpec,
    inputs: Vec<PathPattern>,
    outputs: Vec<PathPattern>,
    params: Option<Arc<Params>>,
}

/// The resolved paths of the files that one task reads and writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilePaths {
    /// The absolute paths of the files that the task reads.
    pub inputs: Vec<Vec<u8>>,
    /// The absolute paths of the files that the task writes.
    pub outputs: Vec<Vec<u8>>,
}

impl PathPatterns {
    /// Splits the paths of a template.
    #[must_use]
    pub fn new(template: &TaskTemplate) -> Self {
        let parse = |path: &[u8]| PathPattern::parse_with(path, template.params.as_deref());
        let split = |stdio: &StdioSpec| match stdio {
            StdioSpec::File {
                path,
                remove_if_finished,
            } => Some((parse(path), *remove_if_finished)),
            StdioSpec::None | StdioSpec::Stream => None,
        };
        Self {
            cwd: parse(&template.cwd),
            stdout: split(&template.stdout),
            stderr: split(&template.stderr),
            stdout_other: template.stdout.clone(),
            stderr_other: template.stderr.clone(),
            inputs: template
                .files
                .inputs
                .iter()
                .map(|path| parse(path))
                .collect(),
            outputs: template
                .files
                .outputs
                .iter()
                .map(|path| parse(path))
                .collect(),
            params: template.params.clone(),
        }
    }

    /// Returns the files of one task, with the working directory `values.cwd`.
    #[must_use]
    pub fn files(&self, values: &PathValues<'_>) -> FilePaths {
        let params = self.params.as_deref();
        let params = params.map_or_else(Vec::new, |params| params.values(values.task));
        let all = |patterns: &[PathPattern]| {
            let paths = patterns.iter().map(|pattern| {
                let mut path = Vec::new();
                pattern.render_with(values, &params, &mut path);
                join(values.cwd, &path)
            });
            paths.collect()
        };
        FilePaths {
            inputs: all(&self.inputs),
            outputs: all(&self.outputs),
        }
    }

    /// Returns the paths of one task. `values.cwd` is ignored, because it is derived from the other
    /// values.
    #[must_use]
    pub fn render(&self, values: &PathValues<'_>) -> TaskPaths {
        let params = self.params.as_deref();
        let params = params.map_or_else(Vec::new, |params| params.values(values.task));
        let mut cwd = Vec::new();
        self.cwd.render_with(
            &PathValues {
                cwd: &[],
                ..*values
            },
            &params,
            &mut cwd,
        );
        let cwd = join(values.submit_dir, &cwd);
        let stdio = |pattern: &Option<(PathPattern, bool)>, other: &StdioSpec| match pattern {
            Some((pattern, remove_if_finished)) => {
                let mut path = Vec::new();
                pattern.render_with(
                    &PathValues {
                        cwd: &cwd,
                        ..*values
                    },
                    &params,
                    &mut path,
                );
                StdioSpec::File {
                    path: join(&cwd, &path).into(),
                    remove_if_finished: *remove_if_finished,
                }
            }
            None => other.clone(),
        };
        let stdout = stdio(&self.stdout, &self.stdout_other);
        let stderr = stdio(&self.stderr, &self.stderr_other);
        TaskPaths {
            cwd,
            stdout,
            stderr,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> PathValues<'static> {
        PathValues {
            job: JobId(3),
            task: TaskId(7),
            instance: InstanceId(1),
            submit_dir: b"/s",
            server_uid: "AbCdEf",
            cwd: b"/c",
        }
    }

    fn rendered(path: &str) -> String {
        let mut out = Vec::new();
        PathPattern::parse(path.as_bytes()).render(&values(), &mut out);
        String::from_utf8(out).expect("test paths are text")
    }

    #[test]
    fn replaces_known_names_and_keeps_the_rest() {
        assert_eq!(
            rendered("%{CWD}/%{JOB_ID}-%{TASK_ID}.%{INSTANCE_ID}"),
            "/c/3-7.1"
        );
        assert_eq!(rendered("%{SUBMIT_DIR}%{SERVER_UID}"), "/sAbCdEf");
        assert_eq!(rendered("%{NOPE}%%{TASK_ID"), "%{NOPE}%%{TASK_ID");
        assert_eq!(rendered("%{X%{TASK_ID}"), "%{X7");
    }

    #[test]
    fn relative_paths_hang_below_submit_dir_and_cwd() {
        let mut template = crate::testing::template(&["x"]);
        template.cwd = Box::from(*b"d/%{TASK_ID}");
        template.stdout = StdioSpec::File {
            path: Box::from(*b"%{CWD}/job-%{JOB_ID}/out"),
            remove_if_finished: false,
        };
        template.stderr = StdioSpec::File {
            path: Box::from(*b"err"),
            remove_if_finished: true,
        };
        let paths = PathPatterns::new(&template).render(&values());
        assert_eq!(paths.cwd, b"/s/d/7");
        let path = |stdio: &StdioSpec| match stdio {
            StdioSpec::File { path, .. } => String::from_utf8_lossy(path).into_owned(),
            StdioSpec::None | StdioSpec::Stream => String::new(),
        };
        assert_eq!(path(&paths.stdout), "/s/d/7/job-3/out");
        assert_eq!(path(&paths.stderr), "/s/d/7/err");
        assert_eq!(
            fill_known(b"%{JOB_ID}/%{TASK_ID}", JobId(4), "u"),
            b"4/%{TASK_ID}"
        );
    }

    #[test]
    fn paths_name_parameters_of_their_task() {
        let value = crate::template::Entries::new(*b"a%{JOB_ID}{x}", [13]).expect("adds up");
        let params = vec![crate::params::Param {
            name: "x".into(),
            is_along: false,
            values: vec![crate::params::Values::Texts(value)],
        }];
        let mut template = crate::testing::template(&["x"]);
        template.cwd = Box::from(*b"d-{x}");
        template.stdout = StdioSpec::File {
            path: Box::from(*b"%{CWD}/%{x}.%{TASK_ID}.${x}"),
            remove_if_finished: false,
        };
        let path = |template: &TaskTemplate| {
            let paths = PathPatterns::new(template).render(&values());
            match paths.stdout {
                StdioSpec::File { path, .. } => String::from_utf8_lossy(&path).into_owned(),
                StdioSpec::None | StdioSpec::Stream => String::new(),
            }
        };
        assert_eq!(path(&template), "/s/d-{x}/%{x}.7.${x}");
        let params = Params::new(params, 7).expect("fits");
        template.params = Some(Arc::new(params));
        // Placeholders in a value are not replaced.
        let expected = "/s/d-a%{JOB_ID}{x}/a%{JOB_ID}{x}.7.${x}";
        assert_eq!(path(&template), expected);
    }
}
