//! Tests with real pipes and files.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc;

use super::*;
use crate::{Index, StreamDir};

struct Bench {
    pump: Pump,
    woken: mpsc::Receiver<()>,
    events: Vec<PumpEvent>,
}

impl Bench {
    fn new() -> Self {
        let (sender, woken) = mpsc::channel();
        let wake = move || {
            let _ = sender.send(());
        };
        Self {
            pump: Pump::start("node1", wake).expect("a pump"),
            woken,
            events: Vec::new(),
        }
    }

    fn begin(&self, token: u64, task: u32, dir: &Path) -> [File; 2] {
        let start = StreamStart {
            key: Key {
                job: 1,
                task,
                instance: 0,
            },
            dir: dir.to_owned(),
            server_uid: "uid".into(),
            worker: 1,
            channels: [true, true],
        };
        let ends = self.pump.begin(token, start).expect("pipes");
        [ends.stdout, ends.stderr].map(|end| {
            let end = Arc::into_inner(end.expect("asked for")).expect("not shared");
            File::from(end)
        })
    }

    /// Waits for an event that matches.
    fn wait(&mut self, wanted: impl Fn(&PumpEvent) -> bool) -> PumpEvent {
        loop {
            if let Some(at) = self.events.iter().position(&wanted) {
                return self.events.remove(at);
            }
            self.woken
                .recv_timeout(Duration::from_secs(30))
                .expect("an event in time");
            self.pump.drain_events(&mut self.events);
        }
    }

    fn end(&mut self, token: u64) -> Option<String> {
        self.pump.end(token, EndKind::Ended);
        let closed = self.wait(|e| matches!(e, PumpEvent::Closed { token: t, .. } if *t == token));
        let PumpEvent::Closed { error, .. } = closed else {
            panic!("{closed:?}");
        };
        error
    }
}

fn content(dir: &Path, task: u32, channel: Channel) -> Vec<u8> {
    let mut dir = StreamDir::open(dir, None).expect("a stream directory");
    let mut index = Index::default();
    dir.update(&mut index, |_| true).expect("readable");
    let mut out = Vec::new();
    let stream = index.stream(1, task).expect("task");
    for chunk in stream
        .chunks
        .iter()
        .filter(|chunk| chunk.channel == channel)
    {
        dir.read(chunk, &mut out).expect("readable");
    }
    out
}

#[test]
fn everything_a_task_wrote_is_in_the_file_when_it_is_closed() {
    let parent = tempfile::tempdir().expect("directory");
    let dir = parent.path().join("a/b");
    let mut bench = Bench::new();
    let threads: Vec<_> = (0..8u32)
        .map(|task| {
            let [mut out, mut err] = bench.begin(u64::from(task), task, &dir);
            std::thread::spawn(move || {
                for line in 0..5000 {
                    writeln!(out, "{task} out {line}").expect("pipe");
                    if line % 100 == 0 {
                        writeln!(err, "{task} err {line}").expect("pipe");
                    }
                }
                // A descendant may keep the pipe open.
                (out, err)
            })
        })
        .collect();
    let kept: Vec<_> = threads
        .into_iter()
        .map(|t| t.join().expect("writer"))
        .collect();
    for task in 0..8u32 {
        assert_eq!(bench.end(u64::from(task)), None);
        let lines = |name: &str, step: usize| -> String {
            (0..5000)
                .step_by(step)
                .map(|line| format!("{task} {name} {line}\n"))
                .collect()
        };
        let out = String::from_utf8(content(&dir, task, Channel::Stdout)).expect("text");
        assert_eq!(out, lines("out", 1));
        let err = String::from_utf8(content(&dir, task, Channel::Stderr)).expect("text");
        assert_eq!(err, lines("err", 100));
    }
    drop(kept);
    assert_eq!(
        std::fs::read_dir(&dir).expect("directory").count(),
        1,
        "one file"
    );
}

#[test]
fn large_output_passes_through_bounded_pipes() {
    let parent = tempfile::tempdir().expect("directory");
    let mut bench = Bench::new();
    let [mut out, _err] = bench.begin(3, 0, parent.path());
    let block: Vec<u8> = (0..1_000_003u32).map(|i| (i % 251) as u8).collect();
    for _ in 0..10 {
        out.write_all(&block).expect("pipe");
    }
    drop(out);
    assert_eq!(bench.end(3), None);
    assert_eq!(content(parent.path(), 0, Channel::Stdout), block.repeat(10));
}

#[test]
fn a_directory_that_cannot_be_made_is_refused() {
    let mut bench = Bench::new();
    let _ends = bench.begin(1, 0, Path::new("/proc/nothing/here"));
    let refused = bench.wait(|e| matches!(e, PumpEvent::Refused { .. }));
    let PumpEvent::Refused { token: 1, error } = refused else {
        panic!("{refused:?}");
    };
    assert!(error.contains("/proc/nothing/here"), "{error}");
}

#[test]
fn a_file_that_was_removed_between_tasks_is_made_again() {
    let parent = tempfile::tempdir().expect("directory");
    let dir = parent.path().join("log");
    let mut bench = Bench::new();
    for task in 0..2 {
        let [mut out, _] = bench.begin(task.into(), task, &dir);
        out.write_all(b"x").expect("pipe");
        drop(out);
        assert_eq!(bench.end(task.into()), None);
        assert_eq!(content(&dir, task, Channel::Stdout), b"x");
        std::fs::remove_dir_all(&dir).expect("removable");
    }
}

/// The name of the next test, and the variable that makes it run with a file size limit.
const FULL: (&str, &str) = (
    "pump::tests::a_file_that_cannot_be_written_breaks_its_tasks",
    "HQ_STREAM_FILES_ARE_FULL",
);

#[test]
fn a_file_that_cannot_be_written_breaks_its_tasks() {
    let (name, variable) = FULL;
    if std::env::var_os(variable).is_some() {
        write_more_than_there_is_room_for();
    } else {
        // The limit applies to a whole process and must not affect other tests.
        let program = std::env::current_exe().expect("this program");
        let ended = std::process::Command::new("bash")
            .args(["-c", "trap '' XFSZ; ulimit -f 4; exec \"$0\" \"$@\""])
            .arg(program)
            .args(["--exact", name])
            .env(variable, "1")
            .output()
            .expect("it starts");
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(
            ended.status.success() && said.contains("1 passed"),
            "{said}"
        );
    }
}

fn write_more_than_there_is_room_for() {
    let dir = tempfile::tempdir().expect("directory");
    let mut bench = Bench::new();
    let [mut stdout, _stderr] = bench.begin(1, 1, dir.path());
    bench.wait(|e| *e == PumpEvent::Ready { token: 1 });
    stdout
        .write_all(&[b'x'; 16_384])
        .expect("the pipe takes it");
    bench.wait(|e| *e == PumpEvent::Broken { token: 1 });
    let error = bench.end(1).expect("its output is lost");
    assert!(error.starts_with("cannot write to "), "{error}");
}
