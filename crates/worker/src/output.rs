//! Manages the files of a task: its private directory, its own error message, and the outputs to
//! remove when it finishes.
//!
//! Everything here may block on a file system: [`Preparation::run`] runs on the thread that creates
//! the process, [`Cleanup::finish`] on a blocking thread.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hq_core::id::InstanceId;
use hq_private::Place;
use hq_spawn::Stdio;
use rustix::fs::{Mode, OFlags, StatVfsMountFlags};

use crate::done::Done;

/// The maximum length in bytes of an error message that is taken from a task.
const MESSAGE_MAX: usize = 2048;

/// The name of the file with the error message of a task, in its task directory.
pub(crate) const ERROR_FILE: &str = "hq-error";

/// The names of the files in the task directory that list the nodes of a multi-node task.
pub(crate) const NODE_FILE: &str = "hq-nodefile";
pub(crate) const HOST_FILE: &str = "hq-hostfile";

/// The cleanup after an instance has ended.
#[derive(Debug, Default)]
pub(crate) struct Cleanup {
    /// Output files to remove if the task finishes.
    pub(crate) remove_if_finished: Vec<PathBuf>,
    /// The private directory, which is removed no matter how the task ends.
    pub(crate) task_dir: Option<PathBuf>,
    /// The task's inputs and outputs.
    pub(crate) done: Option<Arc<Done>>,
    /// Files or directories whose file system may have been full when the task failed.
    pub(crate) places: Vec<PathBuf>,
}

/// A result that is reported before the cleanup completes.
#[derive(Debug)]
pub(crate) enum CleanupFinding {
    /// The task's own error message.
    Words(Box<str>),
    /// Why a task failed although it exited with 0.
    Failure(Box<str>),
    /// The file system of this path is full.
    Full(PathBuf),
}

impl Cleanup {
    /// Creates the cleanup for a task with these inputs and outputs.
    pub(crate) fn new(done: Option<Done>) -> Self {
        Self {
            done: done.map(Arc::new),
            ..Self::default()
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.remove_if_finished.is_empty()
            && self.task_dir.is_none()
            && self.done.is_none()
            && self.places.is_empty()
    }

    /// Runs the cleanup. The report of the task's end waits for some results. These are passed to
    /// `found` as soon as they are known.
    pub(crate) fn finish(self, has_finished: bool, mut found: impl FnMut(CleanupFinding)) {
        let mut has_finished = has_finished;
        let ended = self.done.filter(|_| has_finished).map(|done| done.end());
        if let Some(Err(words)) = ended {
            // The output files explain the failure, so they are kept.
            has_finished = false;
            found(CleanupFinding::Failure(words));
        // The message is reported first, because the report of the task's end waits for it.
        } else if let Some(directory) = self.task_dir.as_deref().filter(|_| !has_finished)
            && let Some(words) = read_message(&directory.join(ERROR_FILE))
        {
            found(CleanupFinding::Words(words));
        }
        if let Some(full) = self.places.into_iter().find(|place| is_full(place)) {
            found(CleanupFinding::Full(full));
        }
        if has_finished {
            for path in &self.remove_if_finished {
                log_failure(path, hq_private::remove_output(path));
            }
        }
        if let Some(directory) = self.task_dir {
            log_failure(&directory, hq_private::remove_tree(&directory));
        }
    }
}

/// The free space in bytes below which a file system counts as full. File systems reserve the last
/// few blocks.
const ROOM_MIN: u64 = 64 << 10;

/// Returns whether the file system of a path is full, or `false` if that is unknown.
fn is_full(place: &Path) -> bool {
    let Ok(found) = rustix::fs::statvfs(place) else {
        return false;
    };
    // Read-only file systems, and those without a size such as /proc, report meaningless numbers.
    if found.f_flag.contains(StatVfsMountFlags::RDONLY) || found.f_blocks == 0 {
        return false;
    }
    let (blocks, files) = if rustix::process::geteuid().is_root() {
        (found.f_bfree, found.f_ffree)
    } else {
        (found.f_bavail, found.f_favail)
    };
    let has_no_files = found.f_files > 0 && files == 0;
    has_no_files || blocks.saturating_mul(found.f_frsize) < ROOM_MIN
}

/// Directories and files that must be created or moved away before an instance starts.
#[derive(Debug, Default)]
pub(crate) struct Preparation {
    /// The number of the earlier attempt, and the output files that it may have written.
    earlier: Option<(InstanceId, Vec<PathBuf>)>,
    task_dir: Option<PathBuf>,
    /// The nodes of a multi-node task, for files in that directory.
    nodes: Arc<[Box<str>]>,
    is_dir_made: bool,
    /// The inputs and outputs, until their state has been recorded.
    done: Option<Arc<Done>>,
}

impl Preparation {
    /// Creates the preparation for a task with these inputs and outputs.
    pub(crate) fn new(done: Option<Arc<Done>>) -> Self {
        Self {
            done,
            ..Self::default()
        }
    }

    /// Moves the output of an earlier attempt out of the way: `0.stdout` becomes
    /// `0.stdout.attempt-0`. A file that cannot be moved is overwritten, as if there had been no
    /// earlier attempt.
    pub(crate) fn keep_earlier(&mut self, instance: InstanceId, files: [&Stdio; 2]) {
        let Some(earlier) = instance.as_u32().checked_sub(1) else {
            return;
        };
        let mut paths: Vec<PathBuf> = files
            .into_iter()
            .filter_map(|stdio| match stdio {
                Stdio::File { path } => Some(path.clone()),
                Stdio::Null | Stdio::Bytes(_) | Stdio::Inherit | Stdio::Fd(_) => None,
            })
            .collect();
        paths.dedup();
        self.earlier = Some((InstanceId(earlier), paths)).filter(|(_, paths)| !paths.is_empty());
    }

    /// Requests a private directory, with files that list the nodes of a multi-node task.
    pub(crate) fn make_task_dir(&mut self, path: PathBuf, nodes: &Arc<[Box<str>]>) {
        self.task_dir = Some(path);
        self.nodes = Arc::clone(nodes);
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.earlier.is_none() && self.task_dir.is_none() && self.done.is_none()
    }

    /// Runs the preparation. It can be called again after a failure. [`Cleanup::finish`] removes
    /// what was created.
    ///
    /// `is_cancelled` returns whether the attempt was canceled. If so, files are left alone,
    /// because the task may already be running elsewhere and writing to them.
    pub(crate) fn run(
        &mut self,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(), (PathBuf, io::Error)> {
        if let Some((earlier, files)) = self.earlier.take() {
            for path in files {
                log_failure(&path, keep(&path, earlier, is_cancelled));
            }
        }
        if let Some(done) = self.done.take_if(|_| !is_cancelled()) {
            done.begin();
        }
        let Some(directory) = &self.task_dir else {
            return Ok(());
        };
        if !self.is_dir_made {
            hq_private::create_dir(directory).map_err(|error| (directory.clone(), error))?;
            self.is_dir_made = true;
        }
        if self.nodes.is_empty() {
            return Ok(());
        }
        write_node_files(directory, &self.nodes)
    }
}

/// Describes why [`Preparation::run`] failed.
pub(crate) fn describe(path: &Path, error: &io::Error) -> String {
    let shown = path.display();
    let name = path.file_name().and_then(OsStr::to_str);
    if name.is_some_and(|name| [NODE_FILE, HOST_FILE].contains(&name)) {
        format!("Cannot write {shown}: {error}")
    } else {
        format!("Cannot create task_dir in worker's workdir at {shown}: {error}")
    }
}

/// Renames the output of an earlier attempt. If it is a link, renames its target instead. The link
/// stays, so that this attempt writes to the same place, and a second link next to it points to the
/// renamed file.
fn keep(path: &Path, earlier: InstanceId, is_cancelled: &dyn Fn() -> bool) -> io::Result<()> {
    let place = Place::new(path)?;
    let behind = place.behind_links()?;
    let file = behind.as_ref().unwrap_or(&place).at();
    let found = fs::symlink_metadata(&file)?;
    // The file system may have hung and answered only after the attempt was canceled. Devices such
    // as `/dev/null` must stay: root could move them for all users.
    if is_cancelled() || !found.is_file() {
        return Ok(());
    }
    let kept = attempt_name(&place.at(), earlier);
    forget_later(&place.at(), earlier);
    // A failed launch leaves an empty file, and the next launch has the same number.
    if kept.exists() && found.len() == 0 {
        return Ok(());
    }
    let Some(behind) = &behind else {
        return fs::rename(file, kept);
    };
    fs::rename(&file, attempt_name(&file, earlier))?;
    // An existing file is from an earlier job. Anything other than a link or a regular file is left
    // alone.
    if fs::symlink_metadata(&kept).is_ok_and(|found| found.is_symlink() || found.is_file()) {
        fs::remove_file(&kept)?;
    }
    let target = std::path::absolute(attempt_name(behind.path(), earlier))?;
    std::os::unix::fs::symlink(target, kept)
}

/// Returns the name under which the output of an attempt is kept.
#[must_use]
pub fn attempt_name(path: &Path, attempt: InstanceId) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(format!(".attempt-{attempt}"));
    PathBuf::from(name)
}

/// Returns whether a path is the default output path, such as `job-1/0.stdout`, which other users
/// can guess in advance.
pub(crate) fn has_default_name(path: &Path) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let dir = path
        .parent()
        .and_then(Path::file_name)
        .and_then(OsStr::to_str);
    let job = dir.and_then(|dir| dir.strip_prefix("job-"));
    let name = path.file_name().and_then(OsStr::to_str);
    let task = name.and_then(|name| {
        name.strip_suffix(".stdout")
            .or(name.strip_suffix(".stderr"))
    });
    job.is_some_and(is_number) && task.is_some_and(is_number)
}

/// Creates or truncates a file for output.
pub(crate) fn create_output(path: &Path) -> io::Result<File> {
    if has_default_name(path) {
        hq_private::create_output(path)
    } else {
        File::create(path)
    }
}

/// Removes kept output that has the names of attempts that this job has not made yet. Such output
/// is from an earlier job with the same paths, and would look like output of this job.
fn forget_later(path: &Path, earlier: InstanceId) {
    for attempt in earlier.as_u32().saturating_add(1)..=u32::MAX {
        let name = attempt_name(path, InstanceId(attempt));
        let is_kept = |found: fs::Metadata| found.is_file() || found.is_symlink();
        if !fs::symlink_metadata(&name).is_ok_and(is_kept) {
            return;
        }
        log_failure(&name, fs::remove_file(&name));
    }
}

/// Writes the node file (short names) and the host file (full names) of a multi-node task.
fn write_node_files(directory: &Path, nodes: &[Box<str>]) -> Result<(), (PathBuf, io::Error)> {
    let lines = |name: &dyn Fn(&str) -> String| {
        let lines: Vec<String> = nodes.iter().map(|node| name(node) + "\n").collect();
        lines.concat()
    };
    let write = |file: &str, content: String| {
        let path = directory.join(file);
        hq_private::write_file(&path, content.as_bytes()).map_err(|error| (path, error))
    };
    write(NODE_FILE, lines(&short_name))?;
    write(HOST_FILE, lines(&str::to_owned))
}

/// Returns the name up to the first dot. Addresses are returned unchanged.
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
    // A task may have put anything there: a FIFO would block, and a link could lead to another
    // user's file.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Usually the file does not exist. An unreadable one counts as no message.
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
            tracing::warn!(?path, %error, "cannot clean up after a task");
        }
        Ok(()) | Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(content: &[u8]) -> Option<Box<str>> {
        let parent = tempfile::tempdir().expect("temporary directory");
        let directory = parent.path().join("t");
        fs::create_dir(&directory).expect("new");
        fs::write(directory.join(ERROR_FILE), content).expect("writable");
        let cleanup = Cleanup {
            task_dir: Some(directory.clone()),
            ..Cleanup::default()
        };
        let mut message = None;
        cleanup.finish(false, |found| {
            if let CleanupFinding::Words(words) = found {
                message = Some(words);
            }
        });
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
            let directory = parent.path().join(kind);
            fs::create_dir(&directory).expect("new");
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
            ..Cleanup::default()
        };
        fs::write(&path, "").expect("writable");
        let nothing = |found| panic!("it found {found:?}");
        cleanup().finish(false, nothing);
        assert!(path.exists());
        cleanup().finish(true, nothing);
        assert!(!path.exists());
        cleanup().finish(true, nothing);
    }

    #[test]
    fn only_regular_files_are_moved_or_removed() {
        let parent = tempfile::tempdir().expect("temporary directory");
        let path = |name: &str| parent.path().join(name);
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, path("fifo"), mode).expect("a FIFO");
        std::os::unix::net::UnixListener::bind(path("socket")).expect("a socket");
        for name in ["fifo", "socket"] {
            let kept = path(&format!("{name}.attempt-0"));
            attempt(1, &path(name))
                .run(&|| false)
                .expect("nothing that can fail");
            let cleanup = Cleanup {
                remove_if_finished: vec![path(name)],
                ..Cleanup::default()
            };
            cleanup.finish(true, |found| panic!("it found {found:?}"));
            assert!(fs::symlink_metadata(path(name)).is_ok(), "{name}");
            assert!(fs::symlink_metadata(kept).is_err(), "{name}");
        }
        // These are devices that root could remove for all users.
        let place = Place::new(Path::new("/dev/stdout")).expect("a directory");
        assert!(place.behind_links().is_ok_and(|behind| behind.is_none()));
        std::os::unix::fs::symlink("/dev/null", path("null")).expect("a link");
        attempt(1, &path("null"))
            .run(&|| false)
            .expect("nothing that can fail");
        assert!(fs::symlink_metadata(path("null.attempt-0")).is_err());
    }

    #[test]
    fn what_an_earlier_attempt_wrote_behind_a_link_is_kept() {
        let parent = tempfile::tempdir().expect("temporary directory");
        let path = |name: &str| parent.path().join(name);
        fs::create_dir(path("large")).expect("new");
        std::os::unix::fs::symlink("large/out", path("middle")).expect("a link");
        std::os::unix::fs::symlink("middle", path("out")).expect("a link");
        for number in 0..3 {
            attempt(number, &path("out"))
                .run(&|| false)
                .expect("nothing that can fail");
            fs::write(path("out"), number.to_string()).expect("writable");
        }
        let read = |name: &str| fs::read_to_string(path(name)).expect("kept");
        assert_eq!(read("out.attempt-0") + &read("out.attempt-1"), "01");
        assert_eq!(read("large/out.attempt-1") + &read("large/out"), "12");
        let link = fs::symlink_metadata(path("out")).expect("it stays");
        assert!(link.is_symlink());
        let cleanup = Cleanup {
            remove_if_finished: vec![path("out")],
            ..Cleanup::default()
        };
        cleanup.finish(true, |found| panic!("it found {found:?}"));
        assert_eq!(read("large/out"), "2", "only regular files are removed");
    }

    #[test]
    fn what_an_earlier_job_kept_of_later_attempts_goes() {
        let parent = tempfile::tempdir().expect("temporary directory");
        let path = |name: &str| parent.path().join(name);
        for name in ["out", "out.attempt-0", "out.attempt-1", "out.attempt-2"] {
            fs::write(path(name), "earlier job").expect("writable");
        }
        fs::write(path("out"), "first").expect("writable");
        attempt(1, &path("out"))
            .run(&|| false)
            .expect("nothing that can fail");
        let kept = fs::read_to_string(path("out.attempt-0")).expect("kept");
        assert_eq!(kept, "first");
        for stale in ["out.attempt-1", "out.attempt-2"] {
            assert!(!path(stale).exists(), "{stale} is of another job");
        }
    }

    #[test]
    fn what_cannot_be_prepared_says_where() {
        let parent = tempfile::tempdir().expect("temporary directory");
        let prepare = |path: &Path| {
            let mut preparation = Preparation::default();
            preparation.make_task_dir(path.to_owned(), &["a".into()].into());
            preparation
        };
        let (path, error) = prepare(Path::new("/nonexistent/1"))
            .run(&|| false)
            .expect_err("no parent");
        assert_eq!(
            describe(&path, &error),
            "Cannot create task_dir in worker's workdir at /nonexistent/1: \
             No such file or directory (os error 2)"
        );
        // A directory left by a failed attempt must not make the next one fail.
        let made = parent.path().join("made");
        let mut preparation = prepare(&made);
        let node_file = made.join(NODE_FILE);
        let rename = std::mem::replace(&mut preparation.nodes, [].into());
        preparation.run(&|| false).expect("writable");
        preparation.nodes = rename;
        fs::create_dir(&node_file).expect("writable");
        let (path, error) = preparation
            .run(&|| false)
            .expect_err("a directory is in the way");
        let expected = format!("Cannot write {}: ", node_file.display());
        assert!(describe(&path, &error).starts_with(&expected));
        fs::remove_dir(&node_file).expect("empty");
        preparation.run(&|| false).expect("writable");
        assert!(node_file.is_file());
        let (path, error) = prepare(&made).run(&|| false).expect_err("it is there");
        assert_eq!((path, error.kind()), (made, io::ErrorKind::AlreadyExists));
    }

    #[test]
    fn what_an_earlier_attempt_wrote_is_kept_once() {
        let parent = tempfile::tempdir().expect("temporary directory");
        let path = parent.path().join("out");
        let kept = || fs::read_to_string(parent.path().join("out.attempt-0"));
        fs::write(&path, "first").expect("writable");
        assert!(attempt(0, &path).is_empty());
        let mut preparation = attempt(1, &path);
        preparation.run(&|| false).expect("nothing that can fail");
        fs::write(&path, "second").expect("writable");
        preparation.run(&|| false).expect("nothing that can fail");
        assert_eq!(kept().expect("kept"), "first");
        // The same attempt is launched again on another worker.
        fs::write(&path, "").expect("writable");
        attempt(1, &path)
            .run(&|| false)
            .expect("nothing that can fail");
        assert_eq!(kept().expect("kept"), "first");
        // Another job runs in the same directory.
        fs::write(&path, "other").expect("writable");
        attempt(1, &path)
            .run(&|| false)
            .expect("nothing that can fail");
        assert_eq!(kept().expect("kept"), "other");
    }

    #[test]
    fn nothing_is_moved_or_removed_behind_links_of_others() {
        use std::os::unix::fs::{lchown, symlink};
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let parent = tempfile::tempdir().expect("temporary directory");
        let path = |name: &str| parent.path().join(name);
        for (link, target, out) in [("dir", "own", "dir/out"), ("out", "own/out", "out")] {
            fs::create_dir(path("own")).expect("new");
            for name in ["own/out", "own/out.attempt-1"] {
                fs::write(path(name), "precious").expect("writable");
            }
            symlink(target, path(link)).expect("a link");
            lchown(path(link), Some(65_533), None).expect("root may do that");
            let mut preparation = attempt(1, &path(out));
            preparation.run(&|| false).expect("nothing that can fail");
            let cleanup = Cleanup {
                remove_if_finished: vec![path(out)],
                ..Cleanup::default()
            };
            cleanup.finish(true, |found| panic!("it found {found:?}"));
            let left = fs::read_dir(path("own")).expect("there").count();
            assert_eq!((left, path("own/out").exists()), (2, true), "{link}");
            fs::remove_dir_all(path("own")).expect("ours");
        }
    }

    #[test]
    fn an_attempt_that_nobody_wants_any_more_moves_nothing() {
        let parent = tempfile::tempdir().expect("temporary directory");
        let path = |name: &str| parent.path().join(name);
        let content = |name: &str| fs::read_to_string(path(name)).expect("it stayed");
        // The second attempt hung. Meanwhile, a fourth one was running on another worker.
        for name in ["out.attempt-0", "out.attempt-1", "out.attempt-2", "out"] {
            fs::write(path(name), name).expect("writable");
        }
        attempt(1, &path("out"))
            .run(&|| true)
            .expect("nothing that can fail");
        for name in ["out.attempt-0", "out.attempt-1", "out.attempt-2", "out"] {
            assert_eq!(content(name), name);
        }
    }

    fn attempt(instance: u32, path: &Path) -> Preparation {
        let file = Stdio::File {
            path: path.to_owned(),
        };
        let mut preparation = Preparation::default();
        preparation.keep_earlier(InstanceId(instance), [&file, &file]);
        preparation
    }
}
