//! Tests very many live children, next to children of this process that are not the launcher's.
#![expect(unsafe_code, reason = "limits and adoption of the test process")]

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};

use hq_spawn::{Backend, Event, ExitStatus, Termination, Token};
use tempfile::TempDir;

use crate::harness::{End, Rig, best, command, compiled, eventually, has, number_from_env};
use crate::isolated::{alone, children};
use crate::skip::skip;

/// The number of children created by other code in this process.
const FOREIGN: usize = 20;
/// The number of processes that other users of the machine can still create while the test runs.
const SPARE: u64 = 2000;
/// A generous estimate of the kernel and user memory of one pausing process.
const PROCESS_KIB: u64 = 150;

#[test]
fn many_live_children_are_told_apart_and_foreign_ones_left_alone() {
    let name = "scale::many_live_children_are_told_apart_and_foreign_ones_left_alone";
    alone(name, &[], || {
        // 30 000 would fill the default range of process ids, so this number is created only on
        // request.
        let count = number_from_env("HQ_SPAWN_TEST_CHILDREN", 1000);
        raise_limits(count as u64 + 1000);
        if let Err(reason) = room_for(count as u64) {
            skip(&format!("{count} live children: {reason}"));
            return;
        }
        let dir = TempDir::new().unwrap();
        let pausing = compiled(
            &dir,
            "pausing",
            "#include <unistd.h>\nint main(void) { for (;;) pause(); }",
        )
        .map_or_else(
            || vec!["/bin/sleep".to_owned(), "100000".to_owned()],
            |path| vec![path.to_str().unwrap().to_owned()],
        );
        // With the best backend, each child needs a descriptor.
        let with_pidfd = count.min(descriptor_limit() - 500);
        println!("{count} live children, {with_pidfd} with a descriptor each");
        for (backend, count) in [
            (Backend::ClonePidfd, with_pidfd),
            (Backend::PosixSpawnWait, count),
            (Backend::Fork, with_pidfd / 10),
        ] {
            if has(backend) {
                check(backend, &pausing, count);
            }
        }
        adopt_orphans(true);
        check(best(), &pausing, with_pidfd / 10);
    });
}

fn check(backend: Backend, pausing: &[String], count: usize) {
    let mut rig = Rig::with(|config| {
        config.backend = Some(backend);
        config.raise_descriptor_limit = true;
    });
    let argv: Vec<&str> = pausing.iter().map(String::as_str).collect();
    let plan = command(&argv);
    let mut foreign: Vec<Child> = (0..FOREIGN / 2).map(|_| foreign_child()).collect();
    let tokens = rig.spawn_batch((0..count).map(|_| plan.clone()));
    foreign.extend((FOREIGN / 2..FOREIGN).map(|_| foreign_child()));
    let mut staying = Command::new(&pausing[0])
        .args(&pausing[1..])
        .spawn()
        .unwrap();
    rig.wait_started(&tokens);
    assert_eq!(rig.launcher.pending(), count);

    // Short-lived children come and go in between. One is ended from outside, and some on request.
    let short = rig.spawn_batch((0..100).map(|_| command(&["/bin/true"])));
    assert!(
        rig.ends(&short)
            .values()
            .all(|end| is(end, ExitStatus::Code(0)))
    );
    let outside = rig.pid(tokens[count / 2]);
    // SAFETY: kill takes plain numbers; the child is alive and belongs to this process.
    let sent = unsafe { libc::kill(outside.cast_signed(), libc::SIGTERM) };
    assert_eq!(sent, 0);
    assert!(is(&rig.end(tokens[count / 2]), by(libc::SIGTERM)));
    let asked: Vec<Token> = tokens.iter().copied().step_by(count / 10).skip(1).collect();
    let asked: Vec<Token> = asked
        .into_iter()
        .filter(|token| *token != tokens[count / 2])
        .collect();
    for token in &asked {
        rig.launcher.terminate(*token, Termination::KILL);
    }
    assert!(
        rig.ends(&asked)
            .values()
            .all(|end| is(end, by(libc::SIGKILL)))
    );
    assert_eq!(
        rig.launcher.pending(),
        count - 1 - asked.len(),
        "{backend:?}: no other child ended"
    );

    rig.launcher.kill_all();
    let ends = rig.ends(&tokens);
    let killed = ends
        .values()
        .filter(|end| is(end, by(libc::SIGKILL)))
        .count();
    assert_eq!((ends.len(), killed), (count, count - 1), "{backend:?}");
    assert_eq!(rig.launcher.pending(), 0);
    each_was_reported_once(rig.events());

    for child in &mut foreign {
        let status = eventually("the foreign child ends", || child.try_wait().unwrap());
        assert_eq!(
            status.code(),
            Some(7),
            "{backend:?} reaped a child that is not its own"
        );
    }
    assert!(
        staying.try_wait().unwrap().is_none(),
        "it ended a child that is not its own"
    );
    staying.kill().unwrap();
    staying.wait().unwrap();
    drop(rig);
    assert_eq!(children(), Vec::<String>::new());
}

fn foreign_child() -> Child {
    Command::new("/bin/sh")
        .args(["-c", "exit 7"])
        .spawn()
        .unwrap()
}

fn by(signal: i32) -> ExitStatus {
    ExitStatus::Signal {
        signal,
        core_dumped: false,
    }
}

fn is(end: &End, expected: ExitStatus) -> bool {
    matches!(end, End::Exited(status, _) if *status == expected)
}

fn each_was_reported_once(events: &[Event]) {
    let mut counts: HashMap<Token, (u32, u32)> = HashMap::new();
    for event in events {
        let (started, ended) = counts.entry(event.token()).or_default();
        match event {
            Event::Started { .. } => *started += 1,
            Event::Stalled { .. } | Event::Unkillable { .. } => {}
            Event::Exited { .. } => *ended += 1,
            Event::Failed { error, .. } => panic!("{error}"),
        }
    }
    assert!(counts.values().all(|count| *count == (1, 1)));
}

/// Raises the limits of this process as far as allowed.
fn raise_limits(wanted: u64) {
    for resource in [libc::RLIMIT_NOFILE, libc::RLIMIT_NPROC] {
        let mut limit = libc::rlimit64 {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: `limit` is valid for writes.
        assert_eq!(unsafe { libc::getrlimit64(resource, &raw mut limit) }, 0);
        limit.rlim_cur = limit.rlim_cur.max(wanted);
        limit.rlim_max = limit.rlim_max.max(wanted);
        // SAFETY: `limit` is valid for reads. Without permission to raise it, the limit stays
        // unchanged.
        unsafe { libc::setrlimit64(resource, &raw const limit) };
    }
}

/// Returns the reason why `count` children cannot live on this machine now.
fn room_for(count: u64) -> Result<(), String> {
    let number = |path: &str| {
        let text = fs::read_to_string(path).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let at_least = |what: &str, has: Option<u64>, wanted: u64| match has {
        Some(has) if has < wanted => Err(format!("{what} leaves {has}, {wanted} are needed")),
        Some(_) | None => Ok(()),
    };
    // "0.20 0.18 0.12 1/80 11206": the number of threads on the machine follows the slash.
    let load = fs::read_to_string("/proc/loadavg").unwrap();
    let used: u64 = load.split(['/', ' ']).nth(4).unwrap().parse().unwrap();
    for path in ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"] {
        let left = number(path).map(|limit| limit.saturating_sub(used));
        at_least(path, left, count + SPARE)?;
    }
    let memory = fs::read_to_string("/proc/meminfo").unwrap();
    let free = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let free = free.and_then(|text| text.trim().split(' ').next()?.parse().ok());
    at_least("free memory in KiB", free, (count + SPARE) * PROCESS_KIB)?;
    at_least(
        "/proc/sys/fs/epoll/max_user_watches",
        number("/proc/sys/fs/epoll/max_user_watches"),
        count,
    )?;
    let processes = Some(soft_limit("Max processes"));
    at_least("the limit of processes", processes, count + 500)?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    for group in groups.lines().filter_map(|line| line.strip_prefix("0::/")) {
        let directory = PathBuf::from("/sys/fs/cgroup").join(group);
        let limit = number(&directory.join("pids.max").display().to_string());
        at_least("the control group", limit, count + SPARE)?;
    }
    Ok(())
}

fn descriptor_limit() -> usize {
    usize::try_from(soft_limit("Max open files")).unwrap()
}

fn soft_limit(name: &str) -> u64 {
    let limits = fs::read_to_string("/proc/self/limits").unwrap();
    let found = limits.lines().find_map(|line| line.strip_prefix(name));
    let soft = found.unwrap().split_whitespace().next().unwrap();
    soft.parse().unwrap_or(u64::MAX)
}

fn adopt_orphans(yes: bool) {
    // SAFETY: PR_SET_CHILD_SUBREAPER takes one number.
    let result = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, libc::c_ulong::from(yes)) };
    assert_eq!(result, 0);
}
