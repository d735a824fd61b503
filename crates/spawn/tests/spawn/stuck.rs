//! Tests children that hang before their exec or after SIGKILL, or that are held by a tracer.
#![expect(unsafe_code, reason = "a process that traces another one")]

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use hq_spawn::{
    Backend, Event, ExitStatus, SpawnErrorKind, SpawnPlan, Stage, Stdio, Termination, Token,
};
use tempfile::TempDir;

use crate::harness::{End, Rig, best, command, eventually, has, rungs, sh};
use crate::isolated::{alone, children};
use crate::skip::skip;

const KILLED: ExitStatus = ExitStatus::Signal {
    signal: libc::SIGKILL,
    core_dumped: false,
};

fn fifo(dir: &TempDir) -> PathBuf {
    let path = dir.path().join("fifo");
    let made = Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    path
}

/// Returns a plan that blocks while opening a FIFO for reading, until a writer opens it.
fn hanging(fifo: &Path) -> SpawnPlan {
    sh("exit 3").stdin(Stdio::File { path: fifo.into() })
}

/// Releases all processes that wait for a writer.
fn release(fifo: &Path) {
    drop(fs::OpenOptions::new().write(true).open(fifo).unwrap());
}

#[track_caller]
fn status(end: End) -> ExitStatus {
    match end {
        End::Exited(status, _) => status,
        End::Failed(error) => panic!("{error}"),
    }
}

#[test]
fn a_slow_preparation_is_not_the_childs_time() {
    let mut rig = Rig::new(best());
    let (release, hung) = std::sync::mpsc::channel::<()>();
    let token = rig.spawn(sh("exit 0").prepare(move |_| {
        let _ = hung.recv();
        Ok(())
    }));
    let Event::Exited { ended, .. } = rig.succeed(sh("exit 0")) else {
        panic!("it has ended");
    };
    drop(release);
    let begun = rig.wait(token, |event| match event {
        Event::Started { at, .. } => Some(*at),
        Event::Exited { .. }
        | Event::Failed { .. }
        | Event::Stalled { .. }
        | Event::Unkillable { .. } => None,
    });
    assert!(begun >= ended, "{begun:?}, {ended:?}");
}

#[test]
fn an_output_that_nobody_reads_fails_at_once() {
    for backend in rungs() {
        let dir = TempDir::new().unwrap();
        let path = fifo(&dir);
        let mut rig = Rig::new(backend);
        // Without a parent-death signal, the C library could create the child.
        let plan = sh("exit 0").death_signal(None);
        let to_fifo = Stdio::File { path: path.clone() };
        let error = rig.fail(plan.clone().stdout(to_fifo.clone()));
        assert_eq!(error.stage, Stage::Stdout, "{backend:?}: {error}");
        assert!(error.to_string().contains("FIFO"), "{error}");
        let error = rig.fail(plan.stderr(to_fifo));
        assert_eq!(error.stage, Stage::Stderr, "{backend:?}: {error}");
    }
}

#[test]
fn outputs_block_for_the_program() {
    for backend in rungs() {
        let dir = TempDir::new().unwrap();
        let path = fifo(&dir);
        let read_and_write = || fs::OpenOptions::new().read(true).write(true).open(&path);
        let mut reader = read_and_write().unwrap();
        let mut rig = Rig::new(backend);
        let file = dir.path().join("file");
        let plan = command(&["cat", "/proc/self/fdinfo/1", "/proc/self/fdinfo/2"])
            .stderr(Stdio::File { path: file.clone() });
        let flags = |text: &str| -> Vec<i32> {
            text.lines()
                .filter_map(|line| line.strip_prefix("flags:"))
                .map(|flags| i32::from_str_radix(flags.trim(), 8).unwrap())
                .collect()
        };
        for death in [None, Some(libc::SIGKILL)] {
            let to_fifo = Stdio::File { path: path.clone() };
            rig.succeed(plan.clone().death_signal(death).stdout(to_fifo));
            let mut text = [0; 4096];
            let read = reader.read(&mut text).unwrap();
            let flags = flags(std::str::from_utf8(&text[..read]).unwrap());
            assert_eq!(flags.len(), 2, "{backend:?}");
            assert!(flags.iter().all(|flags| flags & libc::O_NONBLOCK == 0));
        }
    }
}

#[test]
fn a_child_that_hangs_in_its_creation_is_ended_gently_or_not() {
    let name = "stuck::a_child_that_hangs_in_its_creation_is_ended_gently_or_not";
    alone(name, &[], || {
        if !has(Backend::ClonePidfd) {
            return skip("only the pidfd of a clone is known before the program runs");
        }
        let dir = TempDir::new().unwrap();
        let path = fifo(&dir);
        let mut rig = Rig::with(|config| {
            // Only with this backend is the pidfd known before the program runs.
            config.backend = Some(Backend::ClonePidfd);
            config.threads = 1;
        });
        let soft = Termination {
            signal: libc::SIGTERM,
            grace: Duration::from_millis(50),
        };
        for how in [soft, Termination::KILL] {
            let token = rig.spawn(hanging(&path));
            eventually("it exists", || (children().len() == 1).then_some(()));
            rig.launcher.terminate(token, how);
            match rig.end(token) {
                End::Failed(error) => assert_eq!(error.kind(), SpawnErrorKind::Cancelled),
                End::Exited(status, _) => assert_eq!(status, KILLED),
            }
            rig.succeed(command(&["/bin/true"]));
        }
    });
}

#[test]
fn kill_all_ends_a_child_that_hangs_while_it_opens_a_file() {
    let name = "stuck::kill_all_ends_a_child_that_hangs_while_it_opens_a_file";
    alone(name, &[], || {
        if !has(Backend::ClonePidfd) {
            return skip("only the pidfd of a clone is known before the program runs");
        }
        let dir = TempDir::new().unwrap();
        let path = fifo(&dir);
        let mut rig = Rig::new(best());
        let tokens = [hanging(&path), hanging(&path)].map(|plan| rig.spawn(plan));
        eventually("both exist", || (children().len() == 2).then_some(()));
        rig.launcher.kill_all();
        for end in rig.ends(&tokens).into_values() {
            match end {
                End::Failed(error) => assert_eq!(error.kind(), SpawnErrorKind::Cancelled),
                End::Exited(status, _) => assert_eq!(status, KILLED),
            }
        }
        assert_eq!(rig.launcher.pending(), 0);
        rig.succeed(command(&["/bin/true"]));
    });
}

#[test]
fn others_start_while_as_many_creations_hang_as_there_are_threads() {
    let rungs = rungs();
    let dirs: Vec<_> = rungs.iter().map(|_| TempDir::new().unwrap()).collect();
    let fifos: Vec<_> = dirs.iter().map(fifo).collect();
    let mut rigs: Vec<_> = rungs.iter().copied().map(Rig::new).collect();
    let stalled = |event: &Event| match event {
        Event::Stalled { pid, .. } => Some(*pid),
        Event::Started { .. }
        | Event::Unkillable { .. }
        | Event::Failed { .. }
        | Event::Exited { .. } => None,
    };
    // All of them hang at the same time, because each takes a second.
    let hanging: Vec<[Token; 2]> = std::iter::zip(&rigs, &fifos)
        .map(|(rig, fifo)| [(); 2].map(|()| rig.spawn(hanging(fifo))))
        .collect();
    for (index, backend) in rungs.into_iter().enumerate() {
        let rig = &mut rigs[index];
        // This is done repeatedly, because a thread that was replaced must count as free.
        for _ in 0..3 {
            rig.succeed(command(&["/bin/true"]));
        }
        for token in hanging[index] {
            let pid = rig.wait(token, stalled);
            if backend == Backend::ClonePidfd {
                assert!(crate::harness::is_alive(pid.unwrap()));
            }
        }
        release(&fifos[index]);
        for token in hanging[index] {
            assert_eq!(status(rig.end(token)), ExitStatus::Code(3), "{backend:?}");
            let told = rig.events().iter().filter(|event| event.token() == token);
            assert_eq!(told.filter_map(stalled).count(), 1, "{backend:?}");
        }
        // These tasks need the threads that hung and their replacements.
        let tokens = rig.spawn_batch((0..20).map(|_| command(&["/bin/true"])));
        assert_eq!(rig.ends(&tokens).len(), 20);
    }
}

/// Even if more creations hang than there can be additional threads, other requests still start,
/// both while the creations begin to hang and when all of them do.
#[test]
fn any_number_of_hanging_creations_leaves_a_thread_for_others() {
    const THREADS: usize = 8;
    const HANGING: usize = 80;
    let dir = TempDir::new().unwrap();
    let path = fifo(&dir);
    let mut rig = Rig::with(|config| config.threads = THREADS);
    let tokens = rig.spawn_batch((0..HANGING).map(|_| hanging(&path)));
    let is_stalled = |event: &Event| matches!(event, Event::Stalled { .. }).then_some(());
    let stalled = |rig: &Rig| rig.events().iter().filter_map(is_stalled).count();
    rig.succeed(command(&["/bin/true"]));
    let found = stalled(&rig);
    // The hanging requests came first, but the creations already in progress are enough to identify
    // the others.
    assert!(found < HANGING / 2, "{found} hang");
    for token in &tokens {
        rig.wait(*token, is_stalled);
    }
    rig.succeed(command(&["/bin/true"]));
    release(&path);
    for end in rig.ends(&tokens).into_values() {
        assert_eq!(status(end), ExitStatus::Code(3));
    }
}

/// A cgroup v1 control group. While it is frozen, its processes do not even react to SIGKILL.
struct Freezer(PathBuf);

impl Freezer {
    fn new() -> Option<Self> {
        let name = format!("hq-spawn-test-{}", std::process::id());
        let path = Path::new("/sys/fs/cgroup/freezer").join(name);
        fs::create_dir(&path).ok()?;
        Some(Self(path))
    }

    fn put(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    fn set(&self, state: &str) {
        let path = self.0.join("freezer.state");
        fs::write(&path, state).unwrap();
        eventually(state, || {
            (fs::read_to_string(&path).unwrap().trim() == state).then_some(())
        });
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("freezer.state"), "THAWED");
        eventually("the group is empty", || fs::remove_dir(&self.0).ok());
    }
}

#[test]
fn a_child_that_survives_sigkill_is_reported() {
    let Some(freezer) = Freezer::new() else {
        skip("needs root and a freezer of control groups, version 1");
        return;
    };
    let mut rig = Rig::with(|config| config.unkillable_after = Duration::from_millis(50));
    let token = rig.spawn(command(&["/bin/sleep", "1000"]));
    let pid = rig.pid(token);
    freezer.put(pid);
    freezer.set("FROZEN");
    rig.launcher.terminate(token, Termination::KILL);
    let reported = rig.wait(token, |event| match event {
        Event::Unkillable { pid, .. } => Some(*pid),
        Event::Started { .. }
        | Event::Stalled { .. }
        | Event::Failed { .. }
        | Event::Exited { .. } => None,
    });
    assert_eq!(reported, Some(pid));
    rig.succeed(command(&["/bin/true"]));
    freezer.set("THAWED");
    assert_eq!(status(rig.end(token)), KILLED);
}

/// A process that traces another one until this value is dropped, and acknowledges nothing.
struct Tracer {
    pid: libc::pid_t,
}

impl Tracer {
    fn attach(target: u32) -> Self {
        let (mut ready, mut told) = std::io::pipe().unwrap();
        let target = target.cast_signed();
        // SAFETY: the child only makes system calls, and ends without returning.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: seizing takes plain numbers.
            let result = unsafe { libc::ptrace(libc::PTRACE_SEIZE, target, 0, 0) };
            let answer = [u8::from(result == 0)];
            // SAFETY: one byte is valid for reads.
            unsafe { libc::write(told.as_raw_fd(), answer.as_ptr().cast(), 1) };
            loop {
                // SAFETY: pause takes nothing.
                unsafe { libc::pause() };
            }
        }
        assert!(pid > 0);
        told.flush().unwrap();
        let mut answer = [0];
        ready.read_exact(&mut answer).unwrap();
        let tracer = Self { pid };
        assert_eq!(answer, [1], "it may not trace");
        tracer
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // SAFETY: this child has not been waited for.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        // SAFETY: as above; a null status is allowed.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }
}

#[test]
fn a_traced_child_that_ended_holds_up_nobody() {
    let name = "stuck::a_traced_child_that_ended_holds_up_nobody";
    alone(name, &[], || {
        for backend in rungs() {
            let mut rig = Rig::new(backend);
            let traced = rig.spawn(command(&["/bin/sleep", "1000"]));
            let tracer = Tracer::attach(rig.pid(traced));
            let stubborn = rig.spawn(sh("trap '' TERM; echo ready; while :; do sleep 0.05; done"));
            rig.pid(stubborn);
            rig.launcher.terminate(traced, Termination::KILL);
            let tokens = rig.spawn_batch((0..10).map(|_| command(&["/bin/true"])));
            for end in rig.ends(&tokens).into_values() {
                assert_eq!(status(end), ExitStatus::Code(0), "{backend:?}");
            }
            let soft = Termination {
                signal: libc::SIGTERM,
                grace: Duration::from_millis(20),
            };
            rig.launcher.terminate(stubborn, soft);
            assert!(matches!(rig.end(stubborn), End::Exited(..)));
            let has_ended =
                |event: &Event| event.token() == traced && !matches!(event, Event::Started { .. });
            assert!(!rig.events().iter().any(has_ended), "{backend:?}");
            drop(tracer);
            assert_eq!(status(rig.end(traced)), KILLED, "{backend:?}");
        }
        assert_eq!(children(), Vec::<String>::new());
    });
}
