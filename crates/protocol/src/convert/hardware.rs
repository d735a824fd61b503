//! Hardware usage of workers.

use hq_core::hardware::{GpuUsage, HardwareUsage, NetworkCounters, Share};
use hq_core::limits::shortened;

use super::wire::{FromWire, ToWire, field, list, optional, or_default, received, wire};
use super::{ConvertError, Within, required, text};
use crate::worker;

/// The maximum number of cpus, more than any machine has.
const CPUS_MAX: usize = 1 << 16;
/// The maximum number of GPUs, more than any machine has. A vendor's tool reports them, or any
/// program with its name.
const GPUS_MAX: usize = 1 << 10;
/// The maximum length of a GPU's address in bytes.
const GPU_ID_MAX: usize = 256;

impl From<&HardwareUsage> for worker::ToServer {
    fn from(usage: &HardwareUsage) -> Self {
        worker::to_server::Message::Overview(usage.into()).into()
    }
}

wire! {
    HardwareUsage = worker::Overview {
        unix_seconds,
        cpus: list(CPUS_MAX, received) => some_cpus,
        memory_free,
        memory_total,
        network: or_default,
        nvidia: optional(gpus) => some_gpus,
        amd: optional(gpus) => some_gpus,
    }
}

wire! {
    NetworkCounters = worker::NetworkCounters {
        rx_bytes, rx_packets, rx_errors, tx_bytes, tx_packets, tx_errors,
    }
}

wire! { GpuUsage = worker::Gpu { id: text => short_id, processor, memory, } }

impl FromWire<u32> for Share {
    fn from_wire(_: &str, found: u32) -> Result<Self, ConvertError> {
        Ok(Self::from_hundredths(found.into()))
    }
}

impl ToWire<u32> for Share {
    fn to_wire(&self) -> u32 {
        self.hundredths().into()
    }
}

fn some_cpus(cpus: &[Share]) -> Vec<u32> {
    cpus.iter().take(CPUS_MAX).map(ToWire::to_wire).collect()
}

fn gpus(field: &str, found: worker::Gpus) -> Result<Vec<GpuUsage>, ConvertError> {
    let gpu = |_: &str, gpu: worker::Gpu| gpu.try_into();
    list(GPUS_MAX, gpu)("gpus", found.gpus).within(field)
}

fn some_gpus(gpus: &Option<Vec<GpuUsage>>) -> Option<worker::Gpus> {
    gpus.as_ref().map(|gpus| worker::Gpus {
        gpus: gpus.iter().take(GPUS_MAX).map(Into::into).collect(),
    })
}

fn short_id(id: &str) -> String {
    shortened(id, GPU_ID_MAX)
}
