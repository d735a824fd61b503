//! Runs a part of a test under strace and reads its record.
//!
//! The part runs in a process of its own (`isolated::alone`). strace writes one file for each
//! thread and each child, and detaches from a child when it executes its program (`-b execve`):
//! only the code of the launcher is traced, and no tracer delays the end of a child. The part
//! marks where an interesting section begins and ends by looking for a file that does not exist.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::isolated::{alone, is_alone};
use crate::skip::skip;

/// The directory, which does not exist, of the files whose names mark sections.
const MARKS: &str = "/hq-spawn-test-section";
const BEGIN: &str = "begin";
/// The text that strace writes instead of a result when it detaches.
const DETACHED: &str = " <detached ...>";

/// Marks the beginning of a section of the trace, runs it, and marks its end.
pub(crate) fn section(name: &str, run: impl FnOnce()) {
    let mark = |edge: &str| {
        let path = Path::new(MARKS).join(name).join(edge);
        assert!(!path.exists());
    };
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mark(BEGIN);
    run();
    mark(ignored.unwrap().trim());
}

/// The events of one section. System calls are as strace writes them, without results.
#[derive(Debug, Default)]
pub(crate) struct Section {
    /// The calls of all threads except the one that ran the section.
    pub(crate) launcher: Vec<String>,
    /// The children that these threads created.
    pub(crate) children: Vec<Child>,
    /// How long it took.
    pub(crate) millis: u64,
    /// The signals that the launcher ignored. The lowest bit is signal 1.
    pub(crate) ignored: u64,
}

#[derive(Debug)]
pub(crate) struct Child {
    /// The call of the launcher that created it.
    pub(crate) creation: String,
    /// Its own calls, up to the one that executed its program.
    pub(crate) calls: Vec<String>,
}

/// Runs `body` alone and returns its sections by name. Returns `None` in the process that ran it,
/// and where strace is missing.
pub(crate) fn trace(test: &str, body: fn()) -> Option<BTreeMap<String, Section>> {
    if is_alone() {
        body();
        return None;
    }
    let dir = TempDir::new().unwrap();
    let files = dir.path().join("calls");
    let files = files.to_str().unwrap();
    // It appends, because an id may be used again.
    let strace = "strace -ff -ttt -b execve -A -o".split(' ');
    let strace: Vec<&str> = strace.chain([files]).collect();
    let tried = Command::new(strace[0])
        .args(&strace[1..])
        .arg("true")
        .output();
    match tried {
        Err(error) => {
            skip(&format!("strace (package strace) is needed: {error}"));
            return None;
        }
        Ok(output) if !output.status.success() => {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            skip(&format!("strace cannot be used here: {}", text.trim()));
            return None;
        }
        Ok(_) => {}
    }
    for entry in fs::read_dir(dir.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    // Descriptor 3 becomes that of `/dev/null`.
    let shell = ["sh", "-c", "exec \"$@\" 3<&-", "sh"];
    alone(test, &[&shell, &strace[..]].concat(), body);
    Some(sections(&read(dir.path())))
}

/// A system call.
#[derive(Debug)]
struct Call {
    /// When it began, in microseconds.
    at: u64,
    text: String,
    result: String,
}

/// A thread or child, whose id another one may have had before.
#[derive(Debug)]
struct Life {
    id: u32,
    calls: Vec<Call>,
    /// Whether it executed a program, as only children do.
    is_child: bool,
}

impl Life {
    const fn new(id: u32) -> Self {
        Self {
            id,
            calls: Vec::new(),
            is_child: false,
        }
    }
}

fn read(dir: &Path) -> Vec<Life> {
    let mut lives = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let id = path.extension().unwrap().to_str().unwrap();
        let id = id.parse().unwrap();
        let mut life = Life::new(id);
        for line in fs::read_to_string(&path).unwrap().lines() {
            let (time, event) = line.split_once(' ').unwrap();
            life.calls.extend(parse(time, event));
            life.is_child = event.ends_with(DETACHED);
            if life.is_child || event.starts_with("+++ ") {
                lives.push(std::mem::replace(&mut life, Life::new(id)));
            }
        }
    }
    lives
}

/// Parses a call such as `close(3) = 0`. Returns `None` for other events, and for calls that only a
/// tracer causes: it makes signals visible that the kernel would have dropped at once, and these
/// interrupt calls.
fn parse(time: &str, event: &str) -> Option<Call> {
    let (text, result) = event
        .rsplit_once(" = ")
        .or_else(|| event.split_once(DETACHED).map(|(text, _)| (text, "")))?;
    // Kernels before 6.3 do not know a flag of this call. The child tries again without it.
    let is_refused = text.starts_with("memfd_create(") && result.contains("EINVAL");
    let is_interrupted = result.contains("ERESTART") || result.contains("EINTR");
    if is_refused || is_interrupted || text.starts_with("restart_syscall(") {
        return None;
    }
    let (seconds, micros) = time.split_once('.').unwrap();
    let number = |text: &str| text.parse::<u64>().unwrap();
    Some(Call {
        at: number(seconds) * 1_000_000 + number(micros),
        text: text.trim_end().to_owned(),
        result: result.to_owned(),
    })
}

fn sections(lives: &[Life]) -> BTreeMap<String, Section> {
    let mut sections = BTreeMap::new();
    for main in lives {
        let mut begin = 0;
        for Call { at, text, .. } in &main.calls {
            let Some((_, mark)) = text.split_once(MARKS) else {
                continue;
            };
            // "/NAME/EDGE", and more arguments of the call
            let mark: Vec<&str> = mark.split(['/', '"']).collect();
            let (name, edge) = (mark[1], mark[2]);
            if edge == BEGIN {
                begin = *at;
            } else {
                let mut section = between(lives, main, begin, *at);
                section.ignored = u64::from_str_radix(edge, 16).unwrap();
                sections.insert(name.to_owned(), section);
            }
        }
    }
    sections
}

fn between(lives: &[Life], main: &Life, begin: u64, end: u64) -> Section {
    let mut section = Section {
        millis: (end - begin) / 1000,
        ..Section::default()
    };
    let threads = lives
        .iter()
        .filter(|life| !life.is_child && !std::ptr::eq(*life, main));
    let calls = threads.flat_map(|thread| &thread.calls);
    for call in calls.filter(|call| (begin..end).contains(&call.at)) {
        section.launcher.push(call.text.clone());
        if let Some(id) = created(call) {
            let is_it = |life: &&Life| {
                life.id == id && life.calls.first().is_some_and(|first| first.at >= call.at)
            };
            let child = lives.iter().find(is_it).expect("it made a call");
            section.children.push(Child {
                creation: call.text.clone(),
                calls: child.calls.iter().map(|call| call.text.clone()).collect(),
            });
        }
    }
    section
}

/// Returns the id of the process that a call created. A thread is no process.
fn created(call: &Call) -> Option<u32> {
    let names = ["clone(", "clone3(", "fork(", "vfork("];
    let is_creation = names.iter().any(|name| call.text.starts_with(name));
    if !is_creation || call.text.contains("CLONE_THREAD") {
        return None;
    }
    call.result.parse().ok()
}
