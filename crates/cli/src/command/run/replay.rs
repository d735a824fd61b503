//! Prints the output of tasks, one task after the other, and collects data for the summary.
//!
//! Runs on a separate thread, and deletes each file after printing it. By default, it prints in the
//! order of task ids, and the output of a task that ends early stays in its files until its turn.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use hq_core::id::InstanceId;
use hq_core::signature::{last_words, signature, without_paths};
use hq_core::template::{ArrayIds, ArraySpec, Entries, SubmitBody};
use hq_protocol::client;
use hq_worker::attempt_name;
use tokio::sync::mpsc;

use super::StopReason;
use super::disk_space::DiskSpace;
use super::screen::Screen;
use crate::error::{Caused as _, CliError, CliResult};
use crate::failures::error_words;
use crate::output::format::cut;
use crate::text::last_lines;
use crate::text::lossy;

/// The maximum number of different failures in the summary. Further failed tasks are only counted.
const GROUPS_MAX: usize = 100;

/// The number of bytes at the end of a file that are searched for those lines.
const TAIL_LEN: u64 = 4096;

/// The number of characters of an entry that are shown.
const ENTRY_MAX: usize = 80;

/// How to replay.
#[derive(Debug)]
pub(super) struct ReplayOptions {
    /// The directory with the captured output.
    pub(super) dir: PathBuf,
    /// Whether output appears in the order of task ids instead of the order of their ends.
    pub(super) is_ordered: bool,
    /// Whether anything is printed.
    pub(super) is_printed: bool,
}

/// A group of similar failures for the summary, with the first one as an example.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    pub(super) task: u32,
    /// The task's entry, or its name in a job file.
    pub(super) entry: Option<String>,
    /// The parameters of the task. For several tasks, the parameters that all of them share.
    pub(super) params: Vec<client::Param>,
    pub(super) error: String,
    /// How often the task was started.
    pub(super) attempts: u32,
    /// The last lines of its standard error.
    pub(super) tail: Vec<String>,
    /// The ids of all tasks in the group, in the order of their output.
    pub(super) tasks: Vec<u32>,
}

/// Failed tasks, and other tasks that have not finished.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Failures {
    /// The groups of failures, largest first.
    pub(super) groups: Vec<Failure>,
    pub(super) count: usize,
    /// The tasks that failed or were canceled or aborted.
    pub(super) undone: Vec<u32>,
    /// The directory that was full while tasks wrote their output to it.
    pub(super) full: Option<PathBuf>,
}

/// The thread that prints.
pub(super) struct Replay {
    ended: Sender<client::EndedTask>,
    thread: JoinHandle<CliResult<Failures>>,
}

impl Replay {
    /// Starts the thread. It sends to `stop` when the reader of standard output has gone.
    pub(super) fn start(
        options: ReplayOptions,
        body: &SubmitBody,
        screen: Screen,
        stop: mpsc::Sender<StopReason>,
    ) -> CliResult<Self> {
        let (ended, receiver) = channel();
        let mut printer = Printer {
            entries: EntryNames::new(body),
            order: if options.is_ordered {
                task_order(body)
            } else {
                Vec::new()
            },
            disk_space: DiskSpace::new(&options.dir),
            options,
            screen,
            failures: Failures::default(),
            ways: BTreeMap::new(),
            stop: stop.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("replay".to_owned())
            .spawn(move || {
                let result = printer.run(&receiver);
                if result.is_err() {
                    // The receiver is gone only if the run is ending.
                    let _ = stop.blocking_send(StopReason::OutputClosed);
                }
                let mut failures = printer.failures;
                let groups = &mut failures.groups;
                groups.sort_by_key(|group| std::cmp::Reverse(group.tasks.len()));
                result.map(|()| failures)
            })
            .caused("Cannot start a thread")?;
        Ok(Self { ended, thread })
    }

    /// Hands over tasks that have ended.
    pub(super) fn add(&self, tasks: Vec<client::EndedTask>) {
        for task in tasks {
            // If the thread ended early, it has already reported why.
            let _ = self.ended.send(task);
        }
    }

    /// Waits until everything is printed.
    pub(super) fn finish(self) -> CliResult<Failures> {
        drop(self.ended);
        self.thread
            .join()
            .unwrap_or_else(|_| Err(CliError::new("Printing the output failed")))
    }
}

/// Returns the ids of all tasks in ascending order.
fn task_order(body: &SubmitBody) -> Vec<u32> {
    let mut ids: Vec<u32> = match body {
        SubmitBody::Array(ArraySpec {
            ids: ArrayIds::Given(ids),
            ..
        }) => ids.iter().collect(),
        SubmitBody::Array(ArraySpec {
            ids: ArrayIds::Next(count),
            ..
        }) => (0..*count).collect(),
        SubmitBody::Graph(graph) => graph.tasks.iter().map(|task| task.id.as_u32()).collect(),
    };
    ids.sort_unstable();
    ids
}

/// Names that users recognize: the entries of an array, or the names of the steps of a graph.
enum EntryNames {
    None,
    Entries(ArrayIds, Entries),
    Steps(BTreeMap<u32, Box<str>>),
}

impl EntryNames {
    fn new(body: &SubmitBody) -> Self {
        match body {
            SubmitBody::Array(array) => match &array.entries {
                Some(entries) => Self::Entries(array.ids.clone(), entries.clone()),
                None => Self::None,
            },
            SubmitBody::Graph(graph) => {
                let named = graph.tasks.iter().filter_map(|task| {
                    let template = graph.templates.get(task.template as usize)?;
                    Some((task.id.as_u32(), template.name.clone()?))
                });
                Self::Steps(named.collect())
            }
        }
    }

    fn of(&self, task: u32) -> Option<String> {
        let text = match self {
            Self::None => return None,
            Self::Entries(ids, entries) => {
                let index = match ids {
                    ArrayIds::Given(ids) => ids.position(task)?,
                    ArrayIds::Next(_) => task,
                };
                lossy(entries.get(index)?)
            }
            Self::Steps(names) => names.get(&task)?.to_string(),
        };
        Some(cut(&text, ENTRY_MAX).unwrap_or(text))
    }
}

struct Printer {
    options: ReplayOptions,
    entries: EntryNames,
    /// The ids in the order of printing. If empty, outputs are printed as tasks end.
    order: Vec<u32>,
    screen: Screen,
    failures: Failures,
    /// The positions of groups, by error and last words.
    ways: BTreeMap<(String, Option<String>), usize>,
    disk_space: DiskSpace,
    stop: mpsc::Sender<StopReason>,
}

impl Printer {
    fn run(&mut self, ended: &Receiver<client::EndedTask>) -> CliResult<()> {
        let mut waiting: BTreeMap<u32, client::EndedTask> = BTreeMap::new();
        let mut next = 0;
        for task in ended {
            self.check_disk_space(task.id);
            if !self.options.is_ordered {
                self.replay(&task)?;
                continue;
            }
            waiting.insert(task.id, task);
            while let Some(task) = self.order.get(next).and_then(|id| waiting.remove(id)) {
                self.replay(&task)?;
                next += 1;
            }
        }
        // This is only reached if the run was interrupted. Print the available output anyway.
        for task in waiting.values() {
            self.replay(task)?;
        }
        Ok(())
    }

    /// Returns the paths of the captured output of a task.
    fn captured(&self, task: u32) -> (PathBuf, PathBuf) {
        let file = |channel| self.options.dir.join(format!("{task}.{channel}"));
        (file("stdout"), file("stderr"))
    }

    /// Reports if the disk may have been full. Tasks that write their output elsewhere do not need
    /// space here.
    fn check_disk_space(&mut self, task: u32) {
        let (stdout, stderr) = self.captured(task);
        if !(stdout.exists() || stderr.exists()) || !self.disk_space.look() {
            return;
        }
        self.failures.full = self.options.dir.parent().map(Path::to_owned);
        // The receiver is gone only if the run is ending.
        let _ = self.stop.blocking_send(StopReason::DiskFull);
    }

    fn replay(&mut self, task: &client::EndedTask) -> CliResult<()> {
        let (stdout, stderr) = self.captured(task.id);
        let state = task.state();
        if state != client::TaskState::Finished {
            self.failures.undone.push(task.id);
        }
        if state == client::TaskState::Failed {
            self.note_failure(task, (&stdout, &stderr));
        }
        self.replay_earlier(task, [&stdout, &stderr])?;
        if self.options.is_printed {
            let (mut out, mut err) = (open(&stdout)?, open(&stderr)?);
            if out.is_some() || err.is_some() {
                self.screen.print(|| -> CliResult<()> {
                    if let Some(file) = &mut out {
                        copy(file, &mut io::stdout().lock())?;
                    }
                    if let Some(file) = &mut err {
                        copy(file, &mut io::stderr().lock())?;
                    }
                    Ok(())
                })?;
            }
        }
        // The disk is checked again, because printing may have taken long, and because removing the
        // files will free space.
        self.check_disk_space(task.id);
        remove(&stdout);
        remove(&stderr);
        Ok(())
    }

    /// Prints the output of earlier attempts to standard error, because it is not a result.
    fn replay_earlier(&self, task: &client::EndedTask, files: [&Path; 2]) -> CliResult<()> {
        for attempt in 0..task.instance {
            let kept = files.map(|file| attempt_name(file, InstanceId(attempt)));
            let mut found = Vec::new();
            for path in kept.iter().filter(|_| self.options.is_printed) {
                found.extend(open(path)?);
            }
            if !found.is_empty() {
                self.screen.print(|| -> CliResult<()> {
                    let (number, all) = (attempt + 1, task.instance + 1);
                    let mut err = io::stderr().lock();
                    writeln!(err, "Task {}, attempt {number} of {all}:", task.id)?;
                    found.iter_mut().try_for_each(|file| copy(file, &mut err))
                })?;
            }
            kept.iter().for_each(|path| remove(path));
        }
        Ok(())
    }

    fn note_failure(&mut self, task: &client::EndedTask, (stdout, stderr): (&Path, &Path)) {
        self.failures.count += 1;
        let named = task.paths.as_ref().and_then(|paths| paths.stderr.as_ref());
        let named = named.map(|stdio| {
            use std::os::unix::ffi::OsStrExt;
            PathBuf::from(std::ffi::OsStr::from_bytes(&stdio.path))
        });
        let tail_of_error = tail(stderr).or_else(|| tail(&named?)).unwrap_or_default();
        let error = task.error.clone().unwrap_or_default();
        let said = |lines: &[String]| {
            let text = lines.join("\n");
            last_words(&text).map(|words| without_paths(&signature(words)))
        };
        let words = said(&tail_of_error).or_else(|| said(&tail(stdout)?));
        let groups = &mut self.failures.groups;
        let count = self.ways.len();
        let at = match self.ways.entry((error_words(&error), words)) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(_) if count >= GROUPS_MAX => return,
            Entry::Vacant(new) => {
                groups.push(Failure {
                    task: task.id,
                    entry: self.entries.of(task.id),
                    params: task.params.clone(),
                    error,
                    attempts: task.instance + 1,
                    tail: tail_of_error,
                    tasks: Vec::new(),
                });
                *new.insert(count)
            }
        };
        if let Some(group) = groups.get_mut(at) {
            group.params.retain(|param| task.params.contains(param));
            group.tasks.push(task.id);
        }
    }
}

/// Opens a file, unless it is missing or empty.
fn open(path: &Path) -> CliResult<Option<File>> {
    let unreadable = |e| {
        CliError::caused(
            format!("Cannot read the output of a task, {}", path.display()),
            &e,
        )
    };
    match File::open(path) {
        Ok(file) => {
            let is_empty = file.metadata().map_err(unreadable)?.len() == 0;
            Ok((!is_empty).then_some(file))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(error)),
    }
}

fn copy(file: &mut File, out: &mut impl Write) -> CliResult<()> {
    io::copy(file, out)?;
    out.flush()?;
    Ok(())
}

fn remove(path: &Path) {
    // The file does not exist if the task never started or wrote elsewhere. The directory is
    // removed at the end.
    let _ = std::fs::remove_file(path);
}

/// Returns the last nonempty lines of a file.
fn tail(path: &Path) -> Option<Vec<String>> {
    let mut file = File::open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let length = file.metadata().ok()?.len();
    let start = length.saturating_sub(TAIL_LEN);
    file.seek(SeekFrom::Start(start)).ok()?;
    let mut bytes = Vec::new();
    file.take(TAIL_LEN).read_to_end(&mut bytes).ok()?;
    let text = lossy(&bytes);
    let lines = last_lines(&text).into_iter();
    Some(lines.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_has_the_last_lines() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("err");
        let text: String = (0..1000).map(|i| format!("line {i}\n\n")).collect();
        std::fs::write(&path, text).expect("written");
        let lines = tail(&path).expect("readable");
        assert_eq!(
            lines,
            ["line 995", "line 996", "line 997", "line 998", "line 999"]
        );
        assert_eq!(tail(&dir.path().join("none")), None);
        assert_eq!(tail(dir.path()), None);
    }
}
