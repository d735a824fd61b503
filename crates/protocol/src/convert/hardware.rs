//! Hardware usage of workers.

use hq_core::hardware::{GpuUsage, HardwareUsage, NetworkCounters, Share};
use hq_core::limits::shortened;

use super::{ConvertError, Within, at_most, text};
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
        let NetworkCounters {
            rx_bytes,
            rx_packets,
            rx_errors,
            tx_bytes,
            tx_packets,
            tx_errors,
        } = usage.network;
        let overview = worker::Overview {
            unix_seconds: usage.unix_seconds,
            cpus: usage
                .cpus
                .iter()
                .take(CPUS_MAX)
                .map(|share| share.hundredths().into())
                .collect(),
            memory_free: usage.memory_free,
            memory_total: usage.memory_total,
            network: Some(worker::NetworkCounters {
                rx_bytes,
                rx_packets,
                rx_errors,
                tx_bytes,
                tx_packets,
                tx_errors,
            }),
            nvidia: usage.nvidia.as_deref().map(gpus_message),
            amd: usage.amd.as_deref().map(gpus_message),
        };
        Self {
            message: Some(worker::to_server::Message::Overview(overview)),
        }
    }
}

fn gpus_message(gpus: &[GpuUsage]) -> worker::Gpus {
    let gpu = |gpu: &GpuUsage| worker::Gpu {
        id: shortened(&gpu.id, GPU_ID_MAX),
        processor: gpu.processor.hundredths().into(),
        memory: gpu.memory.hundredths().into(),
    };
    worker::Gpus {
        gpus: gpus.iter().take(GPUS_MAX).map(gpu).collect(),
    }
}

impl TryFrom<worker::Overview> for HardwareUsage {
    type Error = ConvertError;

    fn try_from(message: worker::Overview) -> Result<Self, ConvertError> {
        at_most("cpus", message.cpus.len(), CPUS_MAX)?;
        let network = message.network.unwrap_or_default();
        Ok(Self {
            unix_seconds: message.unix_seconds,
            cpus: message.cpus.into_iter().map(share).collect(),
            memory_free: message.memory_free,
            memory_total: message.memory_total,
            network: NetworkCounters {
                rx_bytes: network.rx_bytes,
                rx_packets: network.rx_packets,
                rx_errors: network.rx_errors,
                tx_bytes: network.tx_bytes,
                tx_packets: network.tx_packets,
                tx_errors: network.tx_errors,
            },
            nvidia: message.nvidia.map(gpus).transpose().within("nvidia")?,
            amd: message.amd.map(gpus).transpose().within("amd")?,
        })
    }
}

fn gpus(message: worker::Gpus) -> Result<Vec<GpuUsage>, ConvertError> {
    at_most("gpus", message.gpus.len(), GPUS_MAX)?;
    let gpu = |gpu: worker::Gpu| {
        Ok(GpuUsage {
            id: text("id", gpu.id)?,
            processor: share(gpu.processor),
            memory: share(gpu.memory),
        })
    };
    message.gpus.into_iter().map(gpu).collect()
}

fn share(hundredths: u32) -> Share {
    Share::from_hundredths(hundredths.into())
}
