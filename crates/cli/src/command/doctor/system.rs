//! Checks the node itself: program, kernel, control groups, limits.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use hq_spawn::{
    ArgBlock, Backend, EnvBlock, Event, Features, Launcher, LauncherConfig, SpawnPlan, Token,
};
use hq_worker::hardware::{ControlGroups, Detector};

use super::check::{Check, State};
use super::limits::{self, PROCESSES_FEW, PROCESSES_MIN};
use crate::version;

/// The time limit for a process that prints the version of this program.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(5);
const MIB: u64 = 1 << 20;
/// The minimum memory for a worker with a few thousand tasks.
const MEMORY_FEW: u64 = 256 * MIB;

/// Facts about how processes are created.
#[derive(Debug)]
struct Processes {
    kernel: String,
    features: Features,
    /// How processes are created and how long it took, or the error.
    created: Result<(Backend, Duration), String>,
    /// Whether an environment variable chooses how.
    is_forced: bool,
}

/// Returns all checks of the node.
pub(super) fn checks() -> Vec<Check> {
    let mut checks = vec![program(), processes(&try_process())];
    checks.extend(control_groups(&Detector::this_machine().control_groups()));
    checks.extend(limits::checks());
    checks
}

fn program() -> Check {
    let path = std::env::current_exe().map_or_else(
        |error| format!("its path is unknown: {error}"),
        |path| path.display().to_string(),
    );
    let (target, libc) = (version::target(), version::libc());
    Check::good(
        "program",
        format!("hq {} ({target}, {libc}): {path}", version::VERSION),
    )
}

/// Runs this program with the spawn engine.
fn try_process() -> Processes {
    let uname = rustix::system::uname();
    let kernel = format!(
        "{} {}",
        uname.sysname().to_string_lossy(),
        uname.release().to_string_lossy()
    );
    Processes {
        kernel,
        features: hq_spawn::features(),
        created: create(),
        is_forced: std::env::var_os("HQ_SPAWN_BACKEND").is_some_and(|name| !name.is_empty()),
    }
}

fn create() -> Result<(Backend, Duration), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let (sender, woken) = mpsc::sync_channel(1);
    let wake = Arc::new(move || {
        // One pending wake-up is enough.
        let _ = sender.try_send(());
    });
    let launcher = Launcher::start(LauncherConfig::new(wake)).map_err(|error| error.to_string())?;
    let argv = ArgBlock::new([program.as_os_str(), "--version".as_ref()])
        .map_err(|error| error.to_string())?;
    let began = Instant::now();
    launcher.spawn(Token(1), SpawnPlan::new(argv, EnvBlock::capture()));
    let mut events = Vec::new();
    loop {
        let left = PROCESS_TIMEOUT.saturating_sub(began.elapsed());
        match woken.recv_timeout(left) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                return Err(format!(
                    "a process did not end within {} s",
                    PROCESS_TIMEOUT.as_secs()
                ));
            }
        }
        launcher.drain_events(&mut events);
        for event in events.drain(..) {
            match event {
                Event::Exited { status, .. } if status.success() => {
                    return Ok((launcher.backend(), began.elapsed()));
                }
                Event::Exited { status, .. } => {
                    return Err(format!("a process ended with {status}"));
                }
                Event::Failed { error, .. } => return Err(error.to_string()),
                Event::Started { .. } | Event::Stalled { .. } | Event::Unkillable { .. } => {}
            }
        }
    }
}

fn processes(found: &Processes) -> Check {
    let what = "processes";
    let (backend, took) = match &found.created {
        Ok(created) => *created,
        Err(error) => {
            return State::Broken.check(
                what,
                format!("{}: {error}", found.kernel),
                "Tasks cannot be started. See the limits of processes and open files below, `HQ_SPAWN_BACKEND` in your \
                 environment, and the seccomp profile of the container, if this is one.",
            );
        }
    };
    let millis = took.as_millis();
    let text = format!(
        "{}: created by {} in {millis} ms",
        found.kernel,
        backend.name()
    );
    let missing = missing(found.features);
    if missing.is_empty() && backend == found.features.best() {
        return Check::good(what, text);
    }
    if found.is_forced {
        return State::Poor.check(
            what,
            text,
            "HQ_SPAWN_BACKEND selects how processes are created. Without it hq chooses the fastest way.",
        );
    }
    State::Poor.check(
        what,
        format!("{text}, without {}", missing.join(", ")),
        "Everything works, but short tasks start more slowly. A newer kernel has the missing features; on a newer kernel, the seccomp profile of a container hides them.",
    )
}

/// Returns the missing features of newer kernels, with the version that introduced each.
fn missing(features: Features) -> Vec<&'static str> {
    [
        (features.clone_pidfd, "CLONE_PIDFD (Linux 5.2)"),
        (features.pidfd_open, "pidfd_open (5.3)"),
        (features.wait_pidfd, "waitid on a pidfd (5.4)"),
        (features.close_range, "close_range (5.9)"),
        (
            features.shared_memory,
            "a clone that shares memory (this is an emulator)",
        ),
        (
            features.adoption,
            "adoption of daemons (they can outlive their task)",
        ),
    ]
    .into_iter()
    .filter_map(|(is_there, name)| (!is_there).then_some(name))
    .collect()
}

fn control_groups(found: &ControlGroups) -> Vec<Check> {
    let what = "control groups";
    let main = match (found.version, found.can_limit_memory) {
        (None, _) => State::Poor.check(
            what,
            "none",
            "Workers sample the memory of tasks instead, and cannot see limits of a container. Mount /sys/fs/cgroup into the container.",
        ),
        (Some(version), true) => Check::good(
            what,
            format!("version {version}, workers can use them for memory limits"),
        ),
        (Some(version), false) => Check::good(
            what,
            format!(
                "version {version}, not delegated to this user: workers sample the memory of tasks instead"
            ),
        ),
    };
    let mut checks = vec![main];
    if let Some(cpus) = found.cpus {
        checks.push(Check::good(
            "cpus of the control group",
            format!("time of {cpus}"),
        ));
    }
    // A limit above the memory of any machine is not a limit.
    if let Some(bytes) = found.memory_bytes.filter(|bytes| *bytes < 1 << 50) {
        checks.push(group_memory(bytes));
    }
    if let Some(left) = found.processes_left {
        checks.push(group_processes(left));
    }
    checks
}

fn group_memory(bytes: u64) -> Check {
    let what = "memory of the control group";
    let text = format!("{} MiB", bytes / MIB);
    let advice =
        "The kernel kills processes that need more. Request more memory for the job or container.";
    Check::of_amount(what, text, (bytes, 0, MEMORY_FEW), advice)
}

fn group_processes(left: u64) -> Check {
    let text = format!("{left} more");
    let advice = "Raise pids.max of the job or container (`TasksMax=` of systemd, `--pids-limit` of Podman and Docker).";
    let left = (left, PROCESSES_MIN, PROCESSES_FEW);
    Check::of_amount("processes of the control group", text, left, advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Features = Features {
        clone_pidfd: true,
        pidfd_open: true,
        wait_pidfd: true,
        close_range: true,
        shared_memory: true,
        adoption: true,
    };

    fn found(features: Features, created: Result<Backend, &str>) -> Processes {
        Processes {
            kernel: "Linux 4.18".to_owned(),
            features,
            created: created
                .map(|backend| (backend, Duration::from_millis(3)))
                .map_err(str::to_owned),
            is_forced: false,
        }
    }

    #[test]
    fn an_old_kernel_is_slower_and_a_forced_backend_is_named() {
        let good = processes(&found(ALL, Ok(Backend::ClonePidfd)));
        assert_eq!(good.state, State::Good);
        assert_eq!(good.found, "Linux 4.18: created by clone-pidfd in 3 ms");
        let old = Features {
            clone_pidfd: false,
            pidfd_open: false,
            wait_pidfd: false,
            close_range: false,
            shared_memory: true,
            adoption: true,
        };
        let poor = processes(&found(old, Ok(Backend::PosixSpawnWait)));
        assert_eq!(poor.state, State::Poor);
        assert!(
            poor.found
                .contains("without CLONE_PIDFD (Linux 5.2), pidfd_open"),
            "{poor:?}"
        );
        let mut forced = found(ALL, Ok(Backend::Fork));
        forced.is_forced = true;
        let advice = processes(&forced).advice.unwrap_or_default();
        assert!(advice.contains("HQ_SPAWN_BACKEND"), "{advice}");
        let broken = processes(&found(ALL, Err("no thread")));
        assert_eq!(broken.state, State::Broken);
        assert!(broken.found.ends_with(": no thread"), "{broken:?}");
    }

    #[test]
    fn control_groups_that_are_missing_or_nearly_used_up_are_told() {
        let none = control_groups(&ControlGroups::default());
        assert_eq!((none.len(), none[0].state), (1, State::Poor));
        let tight = control_groups(&ControlGroups {
            version: Some(2),
            can_limit_memory: false,
            cpus: Some(2),
            memory_bytes: Some(100 * MIB),
            processes_left: Some(20),
        });
        let states: Vec<State> = tight.iter().map(|check| check.state).collect();
        assert_eq!(
            states,
            [State::Good, State::Good, State::Poor, State::Broken]
        );
        assert_eq!(tight[3].found, "20 more");
        let unlimited = control_groups(&ControlGroups {
            version: Some(1),
            memory_bytes: Some(9_223_372_036_854_771_712),
            ..ControlGroups::default()
        });
        assert_eq!(unlimited.len(), 1, "{unlimited:?}");
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        let checks = checks();
        let names: Vec<&str> = checks.iter().map(|check| check.what.as_str()).collect();
        assert_eq!(names[..3], ["program", "processes", "control groups"]);
        for check in &checks {
            assert_eq!(
                check.advice.is_none(),
                check.state == State::Good,
                "{check:?}"
            );
        }
    }
}
