//! Files around a task: its private directory, its own error message, outputs that go when it finishes.
//!
//! Everything here may block on a file system; [`Cleanup::finish`] runs on a blocking thread.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use hq_core::id::InstanceId;
use hq_spawn::Stdio;
use rustix::fs::{Mode, OFlags};

/// Longest error message that is taken from a task, in bytes.
const MESSAGE_MAX: usize = 2048;

/// Name of the file in the task directory into which a task writes its error message.
pub(crate) const ERROR_FILE: &str = "hq-error";

/// Names of the files in the task directory that list the nodes of a multi-node task.
pub(crate) const NODE_FILE: &str = "hq-nodefile";
pub(crate) const HOST_FILE: &str = "hq-hostfile";

/// What is to be done when an instance has ended.
#[derive(Debug, Default)]
pub(crate) struct Cleanup {
    /// Output files to remove if the task finishes.
    pub(crate) remove_if_finished: Vec<PathBuf>,
    /// Private directory, removed however the task ends.
    pub(crate) task_dir: Option<PathBuf>,
}

impl Cleanup {
    pub(crate) fn is_empty(&self) -> bool {
        self.remove_if_finished.is_empty() && self.task_dir.is_none()
    }

    /// Does it; `said` gets the task's own words about its failure as soon as they are known.
    pub(crate) fn finish(self, has_finished: bool, said: impl FnOnce(Box<str>)) {
        // First, for somebody waits for it.
        if let Some(directory) = self.task_dir.as_deref().filter(|_| !has_finished)
            && let Some(words) = read_message(&directory.join(ERROR_FILE))
        {
            said(words);
        }
        if has_finished {
            for path in &self.remove_if_finished {
                log_failure(path, fs::remove_file(path));
            }
        }
        if let Some(directory) = self.task_dir {
            log_failure(&directory, fs::remove_dir_all(&directory));
        }
    }
}

/// Creates the private directory of an instance.
pub(crate) fn create_task_dir(parent: &Path, name: &str) -> Result<PathBuf, Box<str>> {
    let path = parent.join(name);
    fs::create_dir(&path).map_err(|error| {
        let shown = path.display();
        format!("Cannot create task_dir in worker's workdir at {shown}: {error}")
    })?;
    Ok(path)
}

/// Moves what an earlier attempt wrote out of the way of the next one: `0.stdout` becomes
/// `0.stdout.attempt-0`. What cannot be moved is overwritten, as without another attempt.
pub(crate) fn keep_earlier(instance: InstanceId, files: [&Stdio; 2]) {
    let Some(earlier) = instance.as_u32().checked_sub(1) else {
        return;
    };
    let mut paths: Vec<&PathBuf> = files
        .into_iter()
        .filter_map(|stdio| match stdio {
            Stdio::File { path } => Some(path),
            Stdio::Null | Stdio::Bytes(_) | Stdio::Inherit | Stdio::Fd(_) => None,
        })
        .collect();
    paths.dedup();
    for path in paths {
        let mut kept = path.clone().into_os_string();
        kept.push(format!(".attempt-{earlier}"));
        log_failure(path, fs::rename(path, kept));
    }
}

/// Writes the node file (short names) and the host file (full names) of a multi-node task.
pub(crate) fn write_node_files(directory: &Path, nodes: &[Box<str>]) -> Result<(), Box<str>> {
    let lines = |name: &dyn Fn(&str) -> String| {
        let lines: Vec<String> = nodes.iter().map(|node| name(node) + "\n").collect();
        lines.concat()
    };
    let write = |file: &str, content: String| {
        let path = directory.join(file);
        fs::write(&path, content)
            .map_err(|error| format!("Cannot write {}: {error}", path.display()).into_boxed_str())
    };
    write(NODE_FILE, lines(&short_name))?;
    write(HOST_FILE, lines(&str::to_owned))
}

/// Up to the first dot; addresses stay whole.
fn short_name(host: &str) -> String {
    let is_address = host.parse::<std::net::IpAddr>().is_ok();
    match host.split_once('.') {
        Some((short, _)) if !is_address => short.to_owned(),
        Some(_) | None => host.to_owned(),
    }
}

fn read_message(path: &Path) -> Option<Box<str>> {
    let mut bytes = Vec::new();
    let limit = MESSAGE_MAX as u64 + 1;
    // A task may have put anything there: a FIFO would block, and a link lead to another user's file.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // A missing file is the usual case; anything else that cannot be read is no message either.
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return Some("Task created an error file, but it is not a regular file".into());
    }
    file.take(limit).read_to_end(&mut bytes).ok()?;
    if bytes.is_empty() {
        return Some("Task created an error file, but it is empty".into());
    }
    let is_truncated = bytes.len() > MESSAGE_MAX;
    bytes.truncate(MESSAGE_MAX);
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    if is_truncated {
        text.push_str("\n[The message was truncated]");
    }
    Some(text.into())
}

fn log_failure(path: &Path, result: io::Result<()>) {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(?path, %error, "cannot tidy up after a task");
        }
        Ok(()) | Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(content: &[u8]) -> Option<Box<str>> {
        let parent = tempfile::tempdir().expect("temporary directory");
        let directory = create_task_dir(parent.path(), "t").expect("new");
        fs::write(directory.join(ERROR_FILE), content).expect("writable");
        let cleanup = Cleanup {
            task_dir: Some(directory.clone()),
            ..Cleanup::default()
        };
        let mut message = None;
        cleanup.finish(false, |words| message = Some(words));
        assert!(!directory.exists());
        message
    }

    #[test]
    fn own_message_is_read_and_cut() {
        assert_eq!(message(b"went wrong").as_deref(), Some("went wrong"));
        let empty = message(b"").expect("says so");
        assert_eq!(&*empty, "Task created an error file, but it is empty");
        let exact = message(&[b'x'; MESSAGE_MAX]).expect("text");
        assert_eq!(exact.len(), MESSAGE_MAX);
        let long = message(&[b'x'; 3000]).expect("text");
        let expected = format!("{}\n[The message was truncated]", "x".repeat(MESSAGE_MAX));
        assert_eq!(*long, *expected);
    }

    #[test]
    fn what_is_no_regular_file_has_no_message() {
        let parent = tempfile::tempdir().expect("temporary directory");
        for kind in ["fifo", "link"] {
            let directory = create_task_dir(parent.path(), kind).expect("new");
            let path = directory.join(ERROR_FILE);
            if kind == "fifo" {
                rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR).expect("a FIFO");
            } else {
                std::os::unix::fs::symlink("/etc/passwd", &path).expect("a link");
            }
            let words = read_message(&path);
            let expected = "Task created an error file, but it is not a regular file";
            assert!(words.is_none_or(|words| &*words == expected), "{kind}");
        }
    }

    #[test]
    fn node_files_have_short_and_full_names() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let nodes: Vec<Box<str>> = vec!["n1.x.org".into(), "10.0.0.7".into(), "n3".into()];
        write_node_files(dir.path(), &nodes).expect("writable");
        let read = |name| fs::read_to_string(dir.path().join(name)).expect("written");
        assert_eq!(read(NODE_FILE), "n1\n10.0.0.7\nn3\n");
        assert_eq!(read(HOST_FILE), "n1.x.org\n10.0.0.7\nn3\n");
    }

    #[test]
    fn outputs_go_only_when_the_task_finishes() {
        let parent = tempfile::tempdir().expect("temporary directory");
        let path = parent.path().join("out");
        let cleanup = || Cleanup {
            remove_if_finished: vec![path.clone()],
            task_dir: None,
        };
        fs::write(&path, "").expect("writable");
        let nothing = |words| panic!("it said {words}");
        cleanup().finish(false, nothing);
        assert!(path.exists());
        cleanup().finish(true, nothing);
        assert!(!path.exists());
        cleanup().finish(true, nothing);
    }

    #[test]
    fn task_dir_that_cannot_be_made_says_where() {
        let error = create_task_dir(Path::new("/nonexistent"), "1").expect_err("no parent");
        assert_eq!(
            &*error,
            "Cannot create task_dir in worker's workdir at /nonexistent/1: \
             No such file or directory (os error 2)"
        );
    }
}
