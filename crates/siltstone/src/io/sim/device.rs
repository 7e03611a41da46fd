//! A modelled device: what a call costs in virtual time.
//!
//! A call costs its latency and its bytes at the device's bandwidth, but no less than its share of the operations per second.
//! All in integers, with the remainder carried on: a rate that is rounded down falsifies a load by percents.

use std::collections::BTreeMap;

use super::super::IoClass;

/// What a device can do. A zero costs nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Device {
    /// Bytes a second, read or written.
    pub bandwidth_bytes_per_s: u64,
    /// Calls a second.
    pub iops: u64,
    /// Nanoseconds before each call's first byte.
    pub latency_ns: u64,
    /// Nanoseconds that a sync takes.
    pub sync_ns: u64,
}

/// What was moved for one class of I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClassBytes {
    /// Bytes read.
    pub read: u64,
    /// Bytes written, stores to log segments included.
    pub written: u64,
    /// Syncs of files and folders.
    pub syncs: u64,
}

/// Costs and counts.
#[derive(Clone, Default)]
pub(super) struct Meter {
    pub(super) device: Option<Device>,
    /// Byte-nanoseconds not charged yet, less than the bandwidth.
    remainder: u64,
    pub(super) classes: BTreeMap<IoClass, ClassBytes>,
}

impl Meter {
    pub(super) fn new(device: Option<Device>) -> Meter {
        Meter { device, ..Meter::default() }
    }

    pub(super) fn class(&mut self, class: IoClass) -> &mut ClassBytes {
        self.classes.entry(class).or_default()
    }

    /// The nanoseconds that a call with `bytes` bytes takes.
    pub(super) fn call_ns(&mut self, bytes: u64) -> u64 {
        let Some(device) = self.device else { return 0 };
        let share = 1_000_000_000u64.checked_div(device.iops).unwrap_or(0);
        device.latency_ns + self.transfer_ns(bytes).max(share)
    }

    /// The nanoseconds that `bytes` bytes take, on their way already: stores to a log segment.
    pub(super) fn transfer_ns(&mut self, bytes: u64) -> u64 {
        let bandwidth = self.device.map_or(0, |device| device.bandwidth_bytes_per_s);
        if bandwidth == 0 {
            return 0;
        }
        let work = u128::from(bytes) * 1_000_000_000 + u128::from(self.remainder);
        self.remainder = u64::try_from(work % u128::from(bandwidth)).unwrap_or(0);
        u64::try_from(work / u128::from(bandwidth)).unwrap_or(u64::MAX)
    }

    pub(super) fn sync_ns(&self) -> u64 {
        self.device.map_or(0, |device| device.sync_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_nanosecond_is_lost_to_rounding() {
        let device = Device { bandwidth_bytes_per_s: 3_000_000_007, iops: 0, latency_ns: 0, sync_ns: 0 };
        let mut meter = Meter { device: Some(device), ..Meter::default() };
        let total: u64 = (0..3_000_007u64).map(|_| meter.call_ns(1000)).sum();
        // 3,000,007,000 bytes at 3,000,000,007 a second: a second and 2,331 ns. Rounding each call would lose a third of it.
        assert_eq!(total, 1_000_002_330);
    }
}
