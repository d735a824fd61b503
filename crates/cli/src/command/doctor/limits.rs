//! Checks the limits of this user and process (`ulimit`).

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit};

use super::check::{Check, State};
use crate::output::format::words;

const MIB: u64 = 1 << 20;
/// A worker needs a file descriptor for each running task, and a server needs one for each
/// connection. Both need some for themselves.
const FILES_FEW: u64 = 4_096;
/// With fewer descriptors, neither a server nor a worker can run.
const FILES_MIN: u64 = 64;
/// The maximum total size in bytes of the files of a server with a million tasks.
const FILE_BYTES_FEW: u64 = 1 << 30;
/// The number of bytes that a server writes before the first job.
const FILE_BYTES_MIN: u64 = MIB;
/// The allocator reserves addresses in large blocks and uses only a small part of them.
const ADDRESSES_FEW: u64 = 4 << 30;
/// The number of bytes that InfiniBand libraries lock at once.
const LOCKED_FEW: u64 = 64 * MIB;
/// A worker with many cpus can reach a limit below this.
pub(super) const PROCESSES_FEW: u64 = 512;
/// This is enough for a server and a client, or for a worker and one task, with their threads.
pub(super) const PROCESSES_MIN: u64 = 32;

/// The resource limits of this process. `None` means no limit.
#[derive(Clone, Debug, Default)]
struct Limits {
    /// The hard limit. Servers and workers raise their soft limit to it.
    open_files: Option<u64>,
    /// The limit on processes and threads of the user. Root has no limit.
    processes: Option<u64>,
    /// The number of processes and threads that the user has now.
    processes_now: u64,
    cpu_seconds: Option<u64>,
    file_bytes: Option<u64>,
    address_bytes: Option<u64>,
    locked_bytes: Option<u64>,
    has_infiniband: bool,
}

/// Returns all checks of limits.
pub(super) fn checks() -> Vec<Check> {
    judge(&Limits::of_this_process())
}

impl Limits {
    fn of_this_process() -> Self {
        let soft = |resource| getrlimit(resource).current;
        let is_root = rustix::process::geteuid().is_root();
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        Self {
            open_files: maximum,
            processes: soft(Resource::Nproc).filter(|_| !is_root),
            processes_now: threads_of_user(),
            cpu_seconds: soft(Resource::Cpu),
            file_bytes: soft(Resource::Fsize),
            address_bytes: soft(Resource::As),
            locked_bytes: soft(Resource::Memlock),
            has_infiniband: Path::new("/dev/infiniband").exists(),
        }
    }
}

/// Returns the number of threads of all processes of this user. The limit on processes counts
/// threads.
fn threads_of_user() -> u64 {
    let user = rustix::process::getuid().as_raw();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ours = processes.filter(|entry| {
        let is_process = entry
            .file_name()
            .as_encoded_bytes()
            .iter()
            .all(u8::is_ascii_digit);
        is_process && entry.metadata().is_ok_and(|found| found.uid() == user)
    });
    let counts = ours.filter_map(|entry| {
        let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
        let threads = status
            .lines()
            .find_map(|line| line.strip_prefix("Threads:"))?;
        threads.trim().parse::<u64>().ok()
    });
    counts.sum()
}

fn judge(limits: &Limits) -> Vec<Check> {
    let mut checks = vec![open_files(limits.open_files), processes(limits)];
    checks.extend(limits.cpu_seconds.map(cpu_time));
    checks.extend(limits.file_bytes.map(file_size));
    checks.extend(limits.address_bytes.map(addresses));
    if limits.has_infiniband {
        checks.push(locked_memory(limits.locked_bytes));
    }
    checks
}

fn open_files(hard: Option<u64>) -> Check {
    let what = "open files";
    let Some(count) = hard else {
        return Check::good(what, "no limit");
    };
    let text = format!("at most {count}");
    let advice = "A worker needs one per running task, a server one per worker and client. Raise the hard limit \
                  (`ulimit -Hn`; `nofile` in /etc/security/limits.conf, `LimitNOFILE=` of systemd).";
    Check::of_amount(what, text, (count, FILES_MIN, FILES_FEW), advice)
}

fn processes(limits: &Limits) -> Check {
    let what = "processes of this user";
    let now = limits.processes_now;
    let Some(all) = limits.processes else {
        return Check::good(what, format!("{now} now, no limit"));
    };
    let text = format!("{now} now, at most {all}");
    let advice = "Each task needs at least one, and threads count as well. End leftover processes (`ps -Lu $USER`), or raise the limit (`ulimit -u`; `nproc` in /etc/security/limits.conf).";
    let left = (all.saturating_sub(now), PROCESSES_MIN, PROCESSES_FEW);
    Check::of_amount(what, text, left, advice)
}

fn cpu_time(limit: u64) -> Check {
    State::Poor.check(
        "cpu time",
        format!(
            "at most {} for each process",
            words(Duration::from_secs(limit))
        ),
        "The kernel kills a server, a worker or a task that has used that much. Start the server on a node without this limit (`ulimit -t`), or inside a separate batch job.",
    )
}

fn file_size(limit: u64) -> Check {
    let what = "size of files";
    let text = format!("at most {} MiB", limit / MIB);
    let advice = "The journal of a server and the output of tasks cannot exceed it. Raise the limit (`ulimit -f`).";
    Check::of_amount(what, text, (limit, FILE_BYTES_MIN, FILE_BYTES_FEW), advice)
}

fn addresses(limit: u64) -> Check {
    let what = "address space";
    let text = format!("at most {} MiB", limit / MIB);
    let advice = "Servers and workers reserve more address space than they use, and the reservation may fail. Raise the limit (`ulimit -v`), \
                  or start the server on a machine without it.";
    Check::of_amount(what, text, (limit, 0, ADDRESSES_FEW), advice)
}

fn locked_memory(limit: Option<u64>) -> Check {
    let what = "locked memory";
    match limit {
        None => Check::good(what, "no limit"),
        Some(bytes) if bytes < LOCKED_FEW => State::Poor.check(
            what,
            format!("at most {} KiB", bytes >> 10),
            "hq does not need it, but MPI programs cannot use InfiniBand with so little, and tasks inherit the limit. Raise it \
             before the worker starts (`ulimit -l`; `memlock` in /etc/security/limits.conf).",
        ),
        Some(bytes) => Check::good(what, format!("at most {} MiB", bytes / MIB)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(limits: &Limits) -> Vec<(String, State)> {
        judge(limits)
            .into_iter()
            .map(|check| (check.what, check.state))
            .collect()
    }

    #[test]
    fn no_limits_are_good_and_tight_ones_are_judged() {
        let none = states(&Limits::default());
        let expected = [
            ("open files", State::Good),
            ("processes of this user", State::Good),
        ];
        assert_eq!(none, expected.map(|(name, state)| (name.to_owned(), state)));
        let tight = Limits {
            open_files: Some(32),
            processes: Some(100),
            processes_now: 90,
            cpu_seconds: Some(3_600),
            file_bytes: Some(512),
            address_bytes: Some(1 << 30),
            locked_bytes: Some(65_536),
            has_infiniband: true,
        };
        let found: Vec<State> = states(&tight).into_iter().map(|(_, state)| state).collect();
        use State::{Broken, Poor};
        assert_eq!(found, [Broken, Broken, Poor, Broken, Poor, Poor]);
        let login_node = Limits {
            open_files: Some(1_024),
            processes: Some(400),
            processes_now: 500,
            ..Limits::default()
        };
        let found: Vec<State> = states(&login_node)
            .into_iter()
            .map(|(_, state)| state)
            .collect();
        assert_eq!(found, [Poor, Broken], "more than allowed leaves nothing");
    }

    #[test]
    fn our_own_threads_are_counted() {
        assert!(threads_of_user() >= 1);
    }
}
