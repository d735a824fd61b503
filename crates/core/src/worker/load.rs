//! The last reported hardware usage of a worker's machine.

use crate::hardware::{HardwareUsage, Share};
use crate::time::Timestamp;

/// The hardware usage of a machine, including that of other users' processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// When the worker reported it.
    pub at: Timestamp,
    /// The load of all cpus together.
    pub cpus: Share,
    /// The memory that programs could not get, in bytes.
    pub memory_used: u64,
    /// The total memory, in bytes.
    pub memory_total: u64,
    /// The average load of the GPUs, if there are any.
    pub gpus: Option<Share>,
}

impl Load {
    pub(crate) fn of(usage: &HardwareUsage, at: Timestamp) -> Self {
        let mean = |sum: u64, count: usize| Share::of(sum, 10_000 * count as u64);
        let cpus = usage.cpus.iter();
        let gpus = || usage.nvidia.iter().chain(&usage.amd).flatten();
        let gpu_sum = gpus()
            .map(|gpu| u64::from(gpu.processor.hundredths()))
            .sum();
        Self {
            at,
            cpus: mean(
                cpus.map(|cpu| u64::from(cpu.hundredths())).sum(),
                usage.cpus.len(),
            ),
            memory_used: usage.memory_total.saturating_sub(usage.memory_free),
            memory_total: usage.memory_total,
            gpus: gpus().next().map(|_| mean(gpu_sum, gpus().count())),
        }
    }
}
