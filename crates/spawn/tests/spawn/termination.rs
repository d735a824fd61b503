//! Tests how children are ended: with signals, after a grace period, while queued, and all at once.

use std::time::{Duration, Instant};

use hq_spawn::{Event, ExitStatus, SpawnErrorKind, Stdio, Termination};
use tempfile::TempDir;

use crate::harness::{
    End, PATIENCE, Rig, best, command, eventually, eventually_lines, is_alive, rungs, sh,
};

const LONG: Duration = Duration::from_secs(600);

fn killed_by(signal: i32) -> ExitStatus {
    ExitStatus::Signal {
        signal,
        core_dumped: false,
    }
}

#[track_caller]
fn status(end: End) -> ExitStatus {
    match end {
        End::Exited(status, _) => status,
        End::Failed(error) => panic!("{error}"),
    }
}

#[test]
fn the_signal_reaches_the_whole_group_and_may_be_handled() {
    for backend in rungs() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("out");
        let mut rig = Rig::new(backend);
        // The subshell is another process of the same group.
        let script = "(trap 'echo inner; exit 0' USR1; echo ready; while :; do sleep 0.02; done) & \
                      trap 'wait; echo outer; exit 7' USR1; echo ready; wait";
        let token = rig.spawn(sh(script).stdout(Stdio::File { path: path.clone() }));
        eventually_lines(&path, 2);
        rig.launcher.terminate(
            token,
            Termination {
                signal: libc::SIGUSR1,
                grace: LONG,
            },
        );
        assert_eq!(status(rig.end(token)), ExitStatus::Code(7));
        assert_eq!(eventually_lines(&path, 4)[2..], ["inner", "outer"]);
    }
}

#[test]
fn sigkill_follows_after_the_grace_period() {
    for backend in rungs() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("out");
        let mut rig = Rig::new(backend);
        let script = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
        let token = rig.spawn(sh(script).stdout(Stdio::File { path: path.clone() }));
        eventually_lines(&path, 1);
        let grace = Duration::from_millis(300);
        let before = Instant::now();
        rig.launcher.terminate(
            token,
            Termination {
                signal: libc::SIGTERM,
                grace,
            },
        );
        assert_eq!(status(rig.end(token)), killed_by(9));
        assert!(before.elapsed() >= grace);
    }
}

#[test]
fn a_stopped_child_sees_the_signal() {
    let mut rig = Rig::new(best());
    let token = rig.spawn(sh("kill -STOP $$; exec sleep 1000"));
    let pid = rig.pid(token);
    eventually("the child stops", || {
        crate::harness::stat_fields(pid).filter(|fields| fields[0] == "T")
    });
    rig.launcher.terminate(
        token,
        Termination {
            signal: libc::SIGTERM,
            grace: LONG,
        },
    );
    assert_eq!(status(rig.end(token)), killed_by(15));
}

#[test]
fn unknown_and_finished_tokens_are_ignored() {
    let mut rig = Rig::new(best());
    rig.launcher
        .terminate(hq_spawn::Token(999), Termination::KILL);
    let token = rig.spawn(command(&["/bin/true"]));
    rig.end(token);
    rig.launcher.terminate(token, Termination::KILL);
    rig.succeed(command(&["/bin/true"]));
    let about = rig
        .events()
        .iter()
        .filter(|event| event.token() == token)
        .count();
    assert_eq!(about, 2);
}

#[test]
fn kill_all_ends_running_and_queued() {
    for backend in rungs() {
        let mut rig = Rig::new(backend);
        let tokens: Vec<_> = (0..50)
            .map(|_| rig.spawn(command(&["/bin/sleep", "1000"])))
            .collect();
        rig.pid(tokens[0]);
        rig.launcher.kill_all();
        for end in rig.ends(&tokens).into_values() {
            match end {
                End::Exited(status, _) => assert_eq!(status, killed_by(9)),
                End::Failed(error) => assert_eq!(error.kind(), SpawnErrorKind::Cancelled),
            }
        }
        assert_eq!(rig.launcher.pending(), 0);
    }
}

#[test]
fn dropping_the_launcher_kills_what_is_left() {
    for backend in rungs() {
        let mut rig = Rig::new(backend);
        let tokens: Vec<_> = (0..5)
            .map(|_| rig.spawn(command(&["/bin/sleep", "1000"])))
            .collect();
        let pids: Vec<_> = tokens.iter().map(|token| rig.pid(*token)).collect();
        let before = Instant::now();
        drop(rig);
        assert!(before.elapsed() < PATIENCE);
        assert!(pids.iter().all(|pid| !is_alive(*pid)));
    }
}

#[test]
fn members_of_the_group_that_outlive_the_leader_are_ended_and_counted() {
    for backend in rungs() {
        let mut rig = Rig::new(backend);
        // The processes are counted after they were killed, and may have disappeared by then.
        let is_counted = (0..50).any(|_| {
            let dir = TempDir::new().unwrap();
            let path = dir.path().join("out");
            let plan = sh("sleep 1000 & echo $!; sleep 1000 & echo $!; exit 0")
                .stdout(Stdio::File { path: path.clone() });
            let event = rig.succeed(plan);
            let left: Vec<u32> = eventually_lines(&path, 2)
                .iter()
                .map(|line| line.parse().unwrap())
                .collect();
            eventually("the leftovers end", || {
                left.iter().all(|pid| !is_alive(*pid)).then_some(())
            });
            matches!(event, Event::Exited { leaked: 1.., .. })
        });
        assert!(is_counted, "{backend:?}");
    }
}

#[test]
fn marked_descendants_in_other_sessions_are_killed_with_their_task() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("out");
    let mut rig = Rig::new(best());
    let marker = format!("HQ_SPAWN_TEST_MARKER={}", dir.path().display());
    let (name, value) = marker.split_once('=').unwrap();
    let mut env = hq_spawn::TaskEnv::new();
    env.set(name, value).unwrap();
    // One process is a child in another session, and the other is an orphan in another session.
    let script = "setsid sleep 1000 & echo $!; (setsid sleep 1001 & echo $!); exec sleep 1000";
    let plan = sh(script)
        .task_env(env)
        .marker(marker.clone())
        .stdout(Stdio::File { path: path.clone() });
    let token = rig.spawn(plan);
    let pids: Vec<u32> = eventually_lines(&path, 2)
        .iter()
        .map(|line| line.parse().unwrap())
        .collect();
    eventually("both have their own session", || {
        pids.iter()
            .all(|pid| {
                crate::harness::stat_fields(*pid).is_some_and(|fields| fields[3] == pid.to_string())
            })
            .then_some(())
    });
    rig.launcher.terminate(token, Termination::KILL);
    assert_eq!(status(rig.end(token)), killed_by(9));
    eventually("no descendant survives", || {
        pids.iter().all(|pid| !is_alive(*pid)).then_some(())
    });
}

#[test]
fn the_end_of_a_task_leaves_those_of_other_launchers_alone() {
    let dir = TempDir::new().unwrap();
    let mut rigs = [(); 2].map(|()| Rig::new(best()));
    // These are the first tasks of two launchers in one process.
    let tokens = [0, 1].map(|index| {
        let marker = format!("HQ_SPAWN_TEST_MARKER={}/{index}", dir.path().display());
        rigs[index].spawn(command(&["/bin/sleep", "1000"]).marker(marker))
    });
    // A task that has not started would be canceled.
    rigs[0].pid(tokens[0]);
    rigs[1].pid(tokens[1]);
    rigs[0].launcher.terminate(tokens[0], Termination::KILL);
    assert_eq!(status(rigs[0].end(tokens[0])), killed_by(9));
    // By now, all processes that are killed with a task have received their signal, and would not
    // react to another one.
    let gently = Termination {
        signal: libc::SIGTERM,
        grace: LONG,
    };
    rigs[1].launcher.terminate(tokens[1], gently);
    assert_eq!(status(rigs[1].end(tokens[1])), killed_by(15));
}
