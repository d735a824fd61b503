//! Detects the resources of the node: cpus by NUMA node, memory, GPUs.
//!
//! Reads only `/proc`, `/sys` and the environment, and executes nothing. All files are looked up
//! below a root directory, so that tests can describe other machines. Resources that this process
//! may not use (because of its affinity mask or control group limits) are left out.

mod cgroup;
mod cpus;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use hq_core::resource::amount::{Amount, UNITS_PER_WHOLE};
use hq_core::resource::descriptor::{ResourceItem, ResourceKind};
use hq_core::words;

/// The name of the cpu resource.
pub const CPUS: &str = "cpus";
/// The name of the memory resource, whose amount is in MiB.
pub const MEMORY: &str = "mem";
/// The name of the NVIDIA GPU resource.
pub const GPUS_NVIDIA: &str = "gpus/nvidia";
/// The name of the AMD GPU resource.
pub const GPUS_AMD: &str = "gpus/amd";

pub use cgroup::ControlGroups;

const MIB: u64 = 1 << 20;

/// The resources to look for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DetectSet {
    /// Whether to detect cpus.
    pub cpus: bool,
    /// Whether to detect memory.
    pub memory: bool,
    /// Whether to detect NVIDIA GPUs.
    pub gpus_nvidia: bool,
    /// Whether to detect AMD GPUs.
    pub gpus_amd: bool,
    /// Whether to use only one cpu of each physical core.
    pub one_cpu_per_core: bool,
}

impl DetectSet {
    /// All resources, with every hardware thread.
    pub const ALL: Self = Self {
        cpus: true,
        memory: true,
        gpus_nvidia: true,
        gpus_amd: true,
        one_cpu_per_core: false,
    };
}

/// Looks up an environment variable.
type Variables = Box<dyn Fn(&str) -> Option<OsString> + Send + Sync>;

/// Reads the hardware of one machine.
pub struct Detector {
    root: PathBuf,
    variable: Variables,
}

impl Default for Detector {
    fn default() -> Self {
        Self::this_machine()
    }
}

impl Detector {
    /// Creates a detector for this machine and the environment of this process.
    #[must_use]
    pub fn this_machine() -> Self {
        Self::new("/", |name| std::env::var_os(name))
    }

    /// Creates a detector for a machine described by the files below `root` and these environment
    /// variables.
    #[must_use]
    pub fn new(
        root: impl Into<PathBuf>,
        variable: impl Fn(&str) -> Option<OsString> + Send + Sync + 'static,
    ) -> Self {
        Self {
            root: root.into(),
            variable: Box::new(variable),
        }
    }

    /// Returns every existing resource of `set`, in no particular order.
    #[must_use]
    pub fn detect(&self, set: DetectSet) -> Vec<ResourceItem> {
        let item = |name: &str, kind| ResourceItem {
            name: name.into(),
            kind,
        };
        let mut items = Vec::new();
        if set.cpus {
            items.push(item(CPUS, self.cpus(set.one_cpu_per_core)));
        }
        if set.memory {
            items.extend(self.memory().map(|kind| item(MEMORY, kind)));
        }
        if set.gpus_nvidia {
            items.extend(self.gpus_nvidia().map(|kind| item(GPUS_NVIDIA, kind)));
        }
        if set.gpus_amd {
            items.extend(self.gpus_amd().map(|kind| item(GPUS_AMD, kind)));
        }
        items
    }

    /// Returns the usable cpus: grouped by NUMA node, or as a list if there is only one node.
    #[must_use]
    pub fn cpus(&self, one_per_core: bool) -> ResourceKind {
        let mut groups = cpus::usable(self, one_per_core);
        if let Some(quota) = cgroup::cpu_quota(self) {
            cpus::limit(&mut groups, quota, "control group");
        }
        // Batch systems that set no affinity still announce the job's share of the node.
        for name in ["SLURM_CPUS_ON_NODE", "NCPUS"] {
            // Only inside PBS does `NCPUS` have this meaning.
            if name == "NCPUS" && self.text_variable("PBS_JOBID").is_none() {
                continue;
            }
            let share = self.text_variable(name);
            if let Some(share) = share.and_then(|text| text.parse().ok()).filter(|n| *n > 0) {
                cpus::limit(&mut groups, share, "batch system");
            }
        }
        let count: usize = groups.iter().map(Vec::len).sum();
        match groups.len() {
            1 => tracing::info!("Detected {}", words::count(count as u64, "cpu")),
            nodes => tracing::info!("Detected {count} cpus of {nodes} NUMA nodes"),
        }
        let names = |group: &Vec<u32>| {
            group
                .iter()
                .map(|cpu| cpu.to_string().into_boxed_str())
                .collect::<Vec<_>>()
        };
        match groups.as_slice() {
            [group] => ResourceKind::List(names(group)),
            _ => ResourceKind::Groups(groups.iter().map(names).collect()),
        }
    }

    /// Returns the memory in MiB: the minimum of the machine's memory and the limits of the control
    /// group and the batch system.
    #[must_use]
    pub fn memory(&self) -> Option<ResourceKind> {
        let machine = self.machine_memory();
        let limits = [
            (machine, "machine"),
            (cgroup::memory_limit(self), "control group"),
            (self.slurm_memory(), "batch system"),
        ];
        let known = limits
            .into_iter()
            .filter_map(|(bytes, who)| Some((bytes?, who)));
        // Returns the first of equal minimums: a limit that restricts nothing is not worth a log
        // line.
        let (bytes, who) = known.min_by_key(|(bytes, _)| *bytes)?;
        let amount = |bytes: u64| {
            let units = u128::from(bytes) * u128::from(UNITS_PER_WHOLE) / u128::from(MIB);
            Amount(u64::try_from(units).unwrap_or(u64::MAX))
        };
        let shown = |bytes| words::quantity(MEMORY, amount(bytes));
        tracing::info!("Detected {} of memory", shown(bytes));
        if let Some(all) = machine.filter(|all| *all > bytes) {
            let (limit, all) = (shown(bytes), shown(all));
            tracing::info!("The {who} limits this process to {limit} of {all} of memory");
        }
        let amount = amount(bytes);
        (amount > Amount::ZERO).then_some(ResourceKind::Sum(amount))
    }

    /// Returns the memory of this node that Slurm granted. Slurm reports 0 if it granted all
    /// memory.
    fn slurm_memory(&self) -> Option<u64> {
        let number = |name: &str| {
            let text = self.text_variable(name)?;
            text.parse::<u64>().ok().filter(|number| *number > 0)
        };
        let mib = number("SLURM_MEM_PER_NODE").or_else(|| {
            let per_cpu = number("SLURM_MEM_PER_CPU")?;
            Some(per_cpu.saturating_mul(number("SLURM_CPUS_ON_NODE")?))
        });
        mib.map(|mib| mib.saturating_mul(MIB))
    }

    fn machine_memory(&self) -> Option<u64> {
        let info = self.read("proc/meminfo")?;
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"))?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
        Some(kib.saturating_mul(1024))
    }

    /// Reads the limits of the control groups that contain this process.
    #[must_use]
    pub fn control_groups(&self) -> ControlGroups {
        cgroup::survey(self)
    }

    /// Returns the NVIDIA GPUs named in the environment or, if it names none, those that the driver
    /// lists.
    #[must_use]
    pub fn gpus_nvidia(&self) -> Option<ResourceKind> {
        const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";
        if let Some(list) = self.text_variable(VARIABLE) {
            return gpus_of_variable(VARIABLE, &list);
        }
        let count = fs::read_dir(self.path("proc/driver/nvidia/gpus"))
            .ok()?
            .count();
        if count == 0 {
            return None;
        }
        tracing::info!("Detected {count} GPUs from `/proc/driver/nvidia/gpus`");
        Some(ResourceKind::List(
            (0..count).map(|gpu| gpu.to_string().into()).collect(),
        ))
    }

    /// Returns the AMD GPUs named in the environment.
    #[must_use]
    pub fn gpus_amd(&self) -> Option<ResourceKind> {
        const VARIABLE: &str = "ROCR_VISIBLE_DEVICES";
        gpus_of_variable(VARIABLE, &self.text_variable(VARIABLE)?)
    }

    fn text_variable(&self, name: &str) -> Option<String> {
        (self.variable)(name).map(|value| value.to_string_lossy().into_owned())
    }

    fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root.join(relative)
    }

    fn read(&self, relative: impl AsRef<Path>) -> Option<String> {
        fs::read_to_string(self.path(relative)).ok()
    }
}

/// Returns the GPUs named by a variable of a GPU runtime. Programs do not see GPUs whose names
/// follow an invalid one.
fn gpus_of_variable(variable: &str, list: &str) -> Option<ResourceKind> {
    let names: Vec<&str> = list
        .split(',')
        .map(str::trim)
        .take_while(|name| !matches!(*name, "-1" | "NoDevFiles"))
        .filter(|name| !name.is_empty())
        .collect();
    if names.is_empty() {
        return None;
    }
    let joined = names.join(",");
    if names.iter().collect::<BTreeSet<_>>().len() < names.len() {
        tracing::warn!("{variable} contains duplicates ({joined})");
        return None;
    }
    tracing::info!("Detected GPUs {joined} from `{variable}`");
    Some(ResourceKind::List(
        names.into_iter().map(Into::into).collect(),
    ))
}

/// Parses `0-3,8,10-11`. Returns an empty list for invalid text.
fn parse_cpu_list(text: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
            // No kernel supports more cpus than this; a longer range means a broken file.
            (Ok(first), Ok(last)) if last.saturating_sub(first) < CPUS_MAX => {
                cpus.extend(first..=last);
            }
            (Ok(_) | Err(_), Ok(_) | Err(_)) => return Vec::new(),
        }
    }
    cpus
}

/// A number of cpus that exceeds the limit of every kernel.
const CPUS_MAX: u32 = 1 << 16;

#[cfg(test)]
mod tests;
