//! Measures the usage of NVIDIA GPUs by tasks. A separate process queries the driver's library,
//! which may hang or crash.
//!
//! The process exists only while tasks hold GPUs. The sampling thread waits a moment for the reply.
//! A late reply is used for the next sample, and the curve has a gap until then. See
//! `docs/usage.md`.

#[cfg(feature = "nvml")]
mod answers;
#[cfg(feature = "nvml")]
mod nvml;
#[cfg(feature = "nvml")]
mod process;
mod watch;
#[cfg(feature = "nvml")]
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hq_core::curve::{GpuLook, GpusGiven};

#[cfg(feature = "nvml")]
pub use answers::serve_gpu_usage;
pub(super) use watch::{Answer, GpuWatch};

/// The number of a machine's initial pid namespace, see `namespaces(7)`.
const FIRST_NAMESPACE: u64 = 0xEFFF_FFFC;

impl GpuWatch {
    /// Starts to query a process of the program `hq`, which replies if it can access a driver.
    pub(super) fn start(hq: &Path) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        #[cfg(feature = "nvml")]
        let open = {
            let mut opener = process::Opener::new(hq.into(), Arc::clone(&is_over));
            move || opener.open()
        };
        #[cfg(not(feature = "nvml"))]
        let open = {
            let _ = hq;
            || None::<NoProbe>
        };
        Self::asking(open, is_over)
    }
}

#[cfg(not(feature = "nvml"))]
enum NoProbe {}

#[cfg(not(feature = "nvml"))]
impl watch::GpuProbe for NoProbe {
    fn ask(&mut self, _: &watch::Names) -> Result<watch::GpuReply, watch::Failure> {
        match *self {}
    }
}

/// The GPUs that an instance holds.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct HeldGpus {
    /// The names of the GPUs: positions ordered by bus address, or unique ids of devices or device
    /// parts.
    pub(super) names: Box<[Box<str>]>,
    /// The requested amount, in ten-thousandths.
    pub(super) units: u64,
}

/// The driver's data about one device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Device {
    /// The utilization in thousandths.
    busy_milli: Option<u64>,
    /// The memory in use and the total memory, in KiB.
    memory_kib: Option<(u64, u64)>,
    /// `None` if the driver reports no usage per process.
    processes: Option<Vec<Process>>,
}

/// The memory that a process uses on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Process {
    pid: u32,
    /// `None` if the driver does not know it.
    kib: Option<u64>,
}

/// Devices by name, without devices that do not answer.
pub(super) type Devices = BTreeMap<Box<str>, Device>;

/// The processes of this machine, as far as they matter for GPUs.
pub(super) struct ProcessView<'a> {
    /// The processes of the instance.
    pub(super) own: &'a BTreeSet<u32>,
    /// Returns whether a pid is visible in this namespace.
    pub(super) is_here: &'a dyn Fn(u32) -> bool,
    pub(super) numbers: &'a mut Numbers,
}

/// Whether the driver's pids are valid in this namespace. In a container they may differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Numbers {
    Certain,
    /// It is not known yet.
    Doubtful,
    /// The driver has reported the pid of a process of the task, on a device that the task holds.
    Proven,
}

impl Numbers {
    /// Derives the answer from this process's namespace.
    pub(super) fn find() -> Self {
        let is_first = |found: std::fs::Metadata| found.ino() == FIRST_NAMESPACE;
        if std::fs::metadata("/proc/self/ns/pid").is_ok_and(is_first) {
            Self::Certain
        } else {
            Self::Doubtful
        }
    }
}

impl HeldGpus {
    /// Returns the usage of the instance's devices. If a value is unknown for one device, it is
    /// unknown for the sum.
    pub(super) fn look(
        &self,
        devices: &Devices,
        seen: &mut ProcessView<'_>,
    ) -> (GpusGiven, GpuLook) {
        let mut given = GpusGiven {
            units: self.units,
            ..GpusGiven::default()
        };
        let found: Option<Vec<&Device>> = self.names.iter().map(|name| devices.get(name)).collect();
        let Some(found) = found.filter(|found| !found.is_empty()) else {
            return (given, GpuLook::default());
        };
        let used: Vec<Option<MemoryUse>> = found.iter().map(|device| device.used(seen)).collect();
        let look = GpuLook {
            busy_milli: found.iter().map(|device| device.busy_milli).sum(),
            memory_kib: used.iter().map(|used| Some(used.as_ref()?.kib)).sum(),
        };
        let all = found.iter().map(|device| Some(device.memory_kib?.1));
        given.memory_kib = all.sum::<Option<u64>>().unwrap_or(0);
        given.is_memory_of_devices = used.iter().flatten().any(|used| used.is_of_device);
        (given, look)
    }
}

struct MemoryUse {
    kib: u64,
    is_of_device: bool,
}

impl Device {
    /// Returns the memory that an instance uses.
    fn used(&self, seen: &mut ProcessView<'_>) -> Option<MemoryUse> {
        let kib = self.processes.as_deref().and_then(|all| own(all, seen));
        if let Some(kib) = kib {
            return Some(MemoryUse {
                kib,
                is_of_device: false,
            });
        }
        let (kib, _) = self.memory_kib?;
        Some(MemoryUse {
            kib,
            is_of_device: true,
        })
    }
}

/// Returns the memory of the instance's processes, or `None` if it is unknown.
fn own(all: &[Process], seen: &mut ProcessView<'_>) -> Option<u64> {
    let own = all.iter().filter(|one| seen.own.contains(&one.pid));
    let sum = own.clone().map(|one| one.kib).sum();
    if *seen.numbers == Numbers::Certain {
        return sum;
    }
    if own.count() > 0 {
        *seen.numbers = Numbers::Proven;
        return sum;
    }
    // In a container, the list may be missing or contain other pids. Pids that are invisible here
    // may belong to the instance.
    let is_nobody_else = all.iter().all(|one| (seen.is_here)(one.pid));
    (*seen.numbers == Numbers::Proven && is_nobody_else).then_some(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(of: &[&str]) -> HeldGpus {
        HeldGpus {
            names: of.iter().map(|name| (*name).into()).collect(),
            units: 10_000 * of.len() as u64,
        }
    }

    fn device(busy_milli: u64, memory: (u64, u64), processes: &[(u32, u64)]) -> Device {
        let processes = processes.iter().map(|(pid, kib)| Process {
            pid: *pid,
            kib: Some(*kib),
        });
        Device {
            busy_milli: Some(busy_milli),
            memory_kib: Some(memory),
            processes: Some(processes.collect()),
        }
    }

    fn devices(all: &[(&str, Device)]) -> Devices {
        let all = all.iter();
        all.map(|(name, device)| ((*name).into(), device.clone()))
            .collect()
    }

    /// Processes 10 to 19 belong to the task; processes below 100 are visible.
    fn usage_with(
        held: &HeldGpus,
        devices: &Devices,
        numbers: &mut Numbers,
    ) -> (GpusGiven, GpuLook) {
        let mut seen = ProcessView {
            own: &(10..20).collect(),
            is_here: &|pid| pid < 100,
            numbers,
        };
        held.look(devices, &mut seen)
    }

    fn look(held: &HeldGpus, devices: &Devices) -> (GpusGiven, GpuLook) {
        usage_with(held, devices, &mut Numbers::Certain)
    }

    #[test]
    fn utilisations_are_added_up_and_memory_is_that_of_the_tasks_own_processes() {
        let devices = devices(&[
            (
                "0",
                device(900, (5_000, 80_000), &[(10, 3_000), (11, 500), (30, 1_500)]),
            ),
            ("1", device(250, (900, 80_000), &[(10, 700)])),
            ("2", device(1_000, (70_000, 80_000), &[(31, 70_000)])),
        ]);
        let (given, found) = look(&held(&["0", "1"]), &devices);
        assert_eq!(
            (found.busy_milli, found.memory_kib),
            (Some(1_150), Some(4_200))
        );
        assert_eq!((given.units, given.memory_kib), (20_000, 160_000));
        assert!(!given.is_memory_of_devices);
        // Other processes may use the device; their memory does not count.
        let (given, found) = look(&held(&["2"]), &devices);
        assert_eq!((found.busy_milli, found.memory_kib), (Some(1_000), Some(0)));
        assert!(!given.is_memory_of_devices);
    }

    #[test]
    fn a_lost_device_makes_a_gap_and_no_smaller_sum() {
        let devices = devices(&[("0", device(900, (5_000, 80_000), &[]))]);
        let (given, found) = look(&held(&["0", "1"]), &devices);
        assert_eq!(found, GpuLook::default());
        assert_eq!((given.units, given.memory_kib), (20_000, 0));
        assert_eq!(look(&held(&[]), &devices).1, GpuLook::default());
    }

    #[test]
    fn where_processes_are_not_told_the_memory_is_that_of_the_devices() {
        let mut untold = device(100, (5_000, 80_000), &[]);
        untold.processes = None;
        let mut unknown = device(100, (4_000, 80_000), &[(10, 1)]);
        unknown.processes = Some(vec![Process { pid: 10, kib: None }]);
        for (device, kib) in [(untold, 5_000), (unknown, 4_000)] {
            let (given, found) = look(&held(&["0"]), &devices(&[("0", device)]));
            assert_eq!(found.memory_kib, Some(kib));
            assert!(given.is_memory_of_devices);
        }
        // One device reports no utilization, like a part of a device.
        let part = Device {
            busy_milli: None,
            ..device(0, (5_000, 80_000), &[(10, 9)])
        };
        let (_, found) = look(&held(&["0"]), &devices(&[("0", part)]));
        assert_eq!((found.busy_milli, found.memory_kib), (None, Some(9)));
    }

    #[test]
    fn numbers_of_another_namespace_are_not_trusted_until_one_is_proven() {
        let of = |processes: &[(u32, u64)], numbers: &mut Numbers| {
            let devices = devices(&[("0", device(100, (5_000, 80_000), processes))]);
            let (given, found) = usage_with(&held(&["0"]), &devices, numbers);
            (found.memory_kib, given.is_memory_of_devices)
        };
        let numbers = &mut Numbers::Doubtful;
        // No listed pid is visible, or one happens to match another process, or there is no list.
        assert_eq!(of(&[(4_711, 3_000)], numbers), (Some(5_000), true));
        assert_eq!(of(&[(50, 3_000)], numbers), (Some(5_000), true));
        assert_eq!(of(&[], numbers), (Some(5_000), true));
        // The driver has translated the pids.
        assert_eq!(
            of(&[(10, 3_000), (50, 2_000)], numbers),
            (Some(3_000), false)
        );
        assert_eq!(*numbers, Numbers::Proven);
        assert_eq!(of(&[], numbers), (Some(0), false));
        assert_eq!(of(&[(50, 2_000)], numbers), (Some(0), false));
        assert_eq!(of(&[(4_711, 3_000)], numbers), (Some(5_000), true));
    }
}
