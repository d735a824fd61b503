//! Hardware usage of a machine, as its worker reports it periodically.
//!
//! The core only forwards it and makes no decision by it.

/// One sample of a machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HardwareUsage {
    /// Time of the sample, in seconds since the epoch.
    pub unix_seconds: u64,
    /// Load of each cpu since the last sample.
    pub cpus: Vec<Share>,
    /// Memory available to programs, in bytes.
    pub memory_free: u64,
    /// Total memory, in bytes.
    pub memory_total: u64,
    /// Network traffic since boot, without loopback.
    pub network: NetworkCounters,
    /// NVIDIA GPUs; `None` = the worker offers none, or their tool does not answer.
    pub nvidia: Option<Vec<GpuUsage>>,
    /// AMD GPUs, likewise.
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

    /// From hundredths of a percent, at most 100 %.
    #[must_use]
    pub fn from_hundredths(hundredths: u64) -> Self {
        u16::try_from(hundredths).map_or(Self::ALL, |value| Self(value.min(Self::ALL.0)))
    }

    /// `part` of `whole`; 0 % if `whole` is 0.
    #[must_use]
    pub fn of(part: u64, whole: u64) -> Self {
        let hundredths = u128::from(part) * 10_000 / u128::from(whole).max(1);
        Self::from_hundredths(u64::try_from(hundredths).unwrap_or(u64::MAX))
    }

    /// In hundredths of a percent.
    #[must_use]
    pub const fn hundredths(self) -> u16 {
        self.0
    }

    /// In percent.
    #[must_use]
    pub fn percent(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

/// Totals of all network interfaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NetworkCounters {
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Failures to receive.
    pub rx_errors: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Failures to send.
    pub tx_errors: u64,
}

/// One GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuUsage {
    /// Address on the PCI bus.
    pub id: Box<str>,
    /// Load of its processors.
    pub processor: Share,
    /// Memory in use.
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
