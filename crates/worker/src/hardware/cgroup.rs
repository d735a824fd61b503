//! The limits of the control groups that contain this process, for versions 1 and 2.
//!
//! Any level above this process may set a limit, and the smallest limit applies. Inside a
//! container, the paths in `/proc/self/cgroup` may not exist below `/sys/fs/cgroup`, so the root of
//! the mount is always read.

use std::path::{Path, PathBuf};

use super::Detector;

const MOUNT: &str = "sys/fs/cgroup";

/// Returns the cpu time per period in whole cpus, at least 1. `None` means no limit.
pub(super) fn cpu_quota(detector: &Detector) -> Option<u32> {
    let v2 = levels(detector, "").into_iter().filter_map(|directory| {
        let text = detector.read(directory.join("cpu.max"))?;
        let (quota, period) = text.trim().split_once(' ')?;
        Some((quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?))
    });
    let v1 = levels(detector, "cpu").into_iter().filter_map(|directory| {
        // -1 means no limit, and does not parse.
        let number = |file: &str| {
            detector
                .read(directory.join(file))
                .and_then(|text| text.trim().parse::<u64>().ok())
        };
        Some((number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?))
    });
    let cpus = v2
        .chain(v1)
        .filter_map(|(quota, period)| quota.checked_div(period));
    cpus.min()
        .map(|cpus| u32::try_from(cpus).unwrap_or(u32::MAX).max(1))
}

/// Returns the memory limit in bytes. `None` means no limit.
pub(super) fn memory_limit(detector: &Detector) -> Option<u64> {
    let number = |path: PathBuf| {
        detector
            .read(path)
            .and_then(|text| text.trim().parse::<u64>().ok())
    };
    let v2 = levels(detector, "")
        .into_iter()
        .filter_map(|dir| number(dir.join("memory.max")));
    let v1 = levels(detector, "memory").into_iter();
    let v1 = v1.filter_map(|dir| number(dir.join("memory.limit_in_bytes")));
    v2.chain(v1).min()
}

/// Returns the directories of this process's control group and of all its ancestors, for a version
/// 1 controller or for version 2 (`""`).
fn levels(detector: &Detector, controller: &str) -> Vec<PathBuf> {
    let base = Path::new(MOUNT).join(controller);
    let membership = detector.read("proc/self/cgroup").unwrap_or_default();
    let path = membership.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let ours = match controller {
            "" => controllers.is_empty(),
            _ => controllers.split(',').any(|name| name == controller),
        };
        ours.then_some(path)
    });
    let relative = Path::new(path.unwrap_or("/").trim_start_matches('/'));
    let climbs = relative
        .components()
        .any(|part| matches!(part, std::path::Component::ParentDir));
    let relative = if climbs { Path::new("") } else { relative };
    relative.ancestors().map(|level| base.join(level)).collect()
}

/// The limits of the control groups that contain this process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ControlGroups {
    /// The version, 2 or 1. `None` if no control group is visible.
    pub version: Option<u8>,
    /// Whether this user may create groups with memory limits for tasks.
    pub can_limit_memory: bool,
    /// The cpu time limit in whole cpus. `None` means no limit.
    pub cpus: Option<u32>,
    /// The memory limit in bytes. `None` means no limit.
    pub memory_bytes: Option<u64>,
    /// The number of processes and threads that may still be started. `None` means no limit.
    pub processes_left: Option<u64>,
}

/// Reads all limits without changing anything.
pub(super) fn survey(detector: &Detector) -> ControlGroups {
    let groups = levels(detector, "");
    let has = |file: &str, word: &str| {
        let text = groups
            .first()
            .and_then(|ours| detector.read(ours.join(file)));
        text.is_some_and(|text| text.split_ascii_whitespace().any(|name| name == word))
    };
    let is_v2 = groups
        .iter()
        .any(|group| detector.path(group.join("cgroup.controllers")).exists());
    let is_v1 = ["memory", "cpu", "pids"]
        .iter()
        .any(|name| detector.path(Path::new(MOUNT).join(name)).is_dir());
    let is_ours = groups.first().is_some_and(|ours| {
        ["", "cgroup.procs", "cgroup.subtree_control"]
            .iter()
            .all(|file| is_writable(&detector.path(ours.join(file))))
    });
    ControlGroups {
        version: if is_v2 { Some(2) } else { is_v1.then_some(1) },
        can_limit_memory: is_v2 && is_ours && has("cgroup.controllers", "memory"),
        cpus: cpu_quota(detector),
        memory_bytes: memory_limit(detector),
        processes_left: processes_left(detector),
    }
}

fn is_writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Returns the smallest number of remaining processes of any level.
fn processes_left(detector: &Detector) -> Option<u64> {
    let both = levels(detector, "")
        .into_iter()
        .chain(levels(detector, "pids"));
    let left = both.filter_map(|group| {
        let number = |file: &str| {
            let text = detector.read(group.join(file))?;
            text.trim().parse::<u64>().ok()
        };
        Some(number("pids.max")?.saturating_sub(number("pids.current")?))
    });
    left.min()
}
