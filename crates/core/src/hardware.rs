//! The hardware usage of a machine, as its worker periodically reports it.
//!
//! The core only forwards it, and makes no decisions based on it.

/// One sample of a machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HardwareUsage {
    /// The time of the sample, in seconds since the epoch.
    pub unix_seconds: u64,
    /// The load of each cpu since the last sample.
    pub cpus: Vec<Share>,
    /// The memory available to programs, in bytes.
    pub memory_free: u64,
    /// The total memory, in bytes.
    pub memory_total: u64,
    /// The network traffic since boot, without loopback.
    pub network: NetworkCounters,
    /// The NVIDIA GPUs. `None` if the worker offers none, or if their tool does not answer.
    pub nvidia: Option<Vec<GpuUsage>>,
    /// The AMD GPUs. `None` for the same reasons.
    pub amd: Option<Vec<GpuUsage>>,
}

/// A part of a whole, in hundredths of a percent: 0 to 10 000.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share(u16);

impl Share {
    /// 0 %.
    pub const NONE: Self = Self(0);
    /// 100 %.
    pub const ALL: Self = Self(10_000);

    /// Creates a share from hundredths of a percent, at most 100 %.
    #[must_use]
    pub fn from_hundredths(hundredths: u64) -> Self {
        u16::try_from(hundredths).map_or(Self::ALL, |value| Self(value.min(Self::ALL.0)))
    }

    /// Returns the share that `part` is of `whole`. 0 % if `whole` is 0.
    #[must_use]
    pub fn of(part: u64, whole: u64) -> Self {
        let hundredths = u128::from(part) * 10_000 / u128::from(whole).max(1);
        Self::from_hundredths(u64::try_from(hundredths).unwrap_or(u64::MAX))
    }

    /// Returns the share in hundredths of a percent.
    #[must_use]
    pub const fn hundredths(self) -> u16 {
        self.0
    }

    /// Returns the share in percent.
    #[must_use]
    pub fn percent(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

/// The totals of all network interfaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NetworkCounters {
    /// The number of bytes received.
    pub rx_bytes: u64,
    /// The number of packets received.
    pub rx_packets: u64,
    /// The number of failures to receive.
    pub rx_errors: u64,
    /// The number of bytes sent.
    pub tx_bytes: u64,
    /// The number of packets sent.
    pub tx_packets: u64,
    /// The number of failures to send.
    pub tx_errors: u64,
}

/// The usage of one GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuUsage {
    /// The address on the PCI bus.
    pub id: Box<str>,
    /// The load of its processors.
    pub processor: Share,
    /// The share of its memory in use.
    pub memory: Share,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_stay_between_nothing_and_everything() {
        assert_eq!(Share::of(1, 3).hundredths(), 3333);
        assert_eq!(Share::of(7, 0), Share::ALL);
        assert_eq!(Share::of(0, 0), Share::NONE);
        assert_eq!(Share::of(u64::MAX, 1), Share::ALL);
        assert!((Share::of(15, 16).percent() - 93.75).abs() < f64::EPSILON);
    }
}
