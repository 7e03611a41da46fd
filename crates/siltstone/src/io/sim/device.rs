//! A modelled device: what a call costs in virtual time.
//!
//! A call costs its latency and its bytes at the device's bandwidth, but no less than its share of the operations per second.
//! All in integers, with the remainder carried on: a rate that is rounded down falsifies a load by percents.
//!
//! The device does one thing at a time: a call that comes while it is at work waits its turn. So jobs that run side by side share
//! its bandwidth.

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
    /// Only what flushes and merges write is charged, as in luo19 (section 3.1): reads come from a cache, the log has a disk of its own.
    pub background_writes_only: bool,
}

impl Device {
    fn charges(&self, class: IoClass, writes: bool) -> bool {
        !self.background_writes_only || (writes && matches!(class, IoClass::Flush | IoClass::Compaction(_)))
    }
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
    /// When the device has done all that it was asked for.
    free_at_ns: u64,
    pub(super) classes: BTreeMap<IoClass, ClassBytes>,
}

impl Meter {
    pub(super) fn new(device: Option<Device>) -> Meter {
        Meter { device, ..Meter::default() }
    }

    pub(super) fn class(&mut self, class: IoClass) -> &mut ClassBytes {
        self.classes.entry(class).or_default()
    }

    /// The nanoseconds that a call at `now_ns` with `bytes` bytes takes.
    pub(super) fn call_ns(&mut self, now_ns: u64, bytes: u64, class: IoClass, writes: bool) -> u64 {
        let Some(device) = self.device.filter(|device| device.charges(class, writes)) else { return 0 };
        let share = 1_000_000_000u64.checked_div(device.iops).unwrap_or(0);
        let work_ns = self.transfer_ns(bytes).max(share);
        device.latency_ns + self.queue_ns(now_ns, work_ns)
    }

    /// The nanoseconds that `bytes` bytes take, on their way already: stores to a log segment.
    pub(super) fn store_ns(&mut self, now_ns: u64, bytes: u64, class: IoClass) -> u64 {
        if self.device.is_none_or(|device| !device.charges(class, true)) {
            return 0;
        }
        let work_ns = self.transfer_ns(bytes);
        self.queue_ns(now_ns, work_ns)
    }

    /// How long somebody waits at `now_ns` for `work_ns` of the device's time.
    fn queue_ns(&mut self, now_ns: u64, work_ns: u64) -> u64 {
        self.free_at_ns = self.free_at_ns.max(now_ns) + work_ns;
        self.free_at_ns - now_ns
    }

    fn transfer_ns(&mut self, bytes: u64) -> u64 {
        let bandwidth = self.device.map_or(0, |device| device.bandwidth_bytes_per_s);
        if bandwidth == 0 {
            return 0;
        }
        let work = u128::from(bytes) * 1_000_000_000 + u128::from(self.remainder);
        self.remainder = u64::try_from(work % u128::from(bandwidth)).unwrap_or(0);
        u64::try_from(work / u128::from(bandwidth)).unwrap_or(u64::MAX)
    }

    pub(super) fn sync_ns(&mut self, now_ns: u64, class: IoClass) -> u64 {
        let device = self.device.filter(|device| device.charges(class, true));
        device.map_or(0, |device| self.queue_ns(now_ns, device.sync_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_nanosecond_is_lost_to_rounding() {
        let device = Device { bandwidth_bytes_per_s: 3_000_000_007, ..Device::default() };
        let mut meter = Meter { device: Some(device), ..Meter::default() };
        let mut total = 0;
        for _ in 0..3_000_007u64 {
            total += meter.call_ns(total, 1000, IoClass::UserRead, false);
        }
        // 3,000,007,000 bytes at 3,000,000,007 a second: a second and 2,331 ns. Rounding each call would lose a third of it.
        assert_eq!(total, 1_000_002_330);
    }

    #[test]
    fn a_device_does_one_thing_at_a_time() {
        let device = Device { bandwidth_bytes_per_s: 1_000_000_000, latency_ns: 5, ..Device::default() };
        let mut meter = Meter { device: Some(device), ..Meter::default() };
        assert_eq!(meter.call_ns(1000, 100, IoClass::Flush, true), 105);
        assert_eq!(
            meter.call_ns(1010, 100, IoClass::Compaction(1), false),
            195,
            "90 ns for the first, 100 and the latency"
        );
        assert_eq!(meter.call_ns(2000, 100, IoClass::Log, true), 105, "the device was idle meanwhile");
        meter.device = Some(Device { background_writes_only: true, ..device });
        assert_eq!(meter.call_ns(3000, 100, IoClass::Compaction(1), false), 0);
        assert_eq!(meter.store_ns(3000, 100, IoClass::Log), 0);
        assert_eq!(meter.call_ns(3000, 100, IoClass::Compaction(1), true), 105);
    }
}
