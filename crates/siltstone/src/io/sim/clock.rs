//! Virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::super::Clock;

/// Where virtual time begins: not at 0, so that code which subtracts a little works as it would after boot.
const START_NS: u64 = 1_000_000_000;
/// The wall clock at the beginning of virtual time: some day of 2025.
const WALL_START_NS: i64 = 1_750_000_000_000_000_000;

/// A clock that moves only when told to.
#[derive(Debug)]
pub struct SimClock {
    mono_ns: AtomicU64,
    /// Wall clock minus monotonic clock.
    wall_offset_ns: AtomicI64,
}

impl SimClock {
    /// A clock at the beginning of virtual time.
    pub fn new() -> Arc<SimClock> {
        Arc::new(SimClock { mono_ns: AtomicU64::new(START_NS), wall_offset_ns: AtomicI64::new(WALL_START_NS) })
    }

    /// Lets `ns` nanoseconds pass.
    pub fn advance(&self, ns: u64) {
        self.mono_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Lets time pass until `mono_ns`; nothing happens if that is over.
    pub fn advance_to(&self, mono_ns: u64) {
        self.mono_ns.fetch_max(mono_ns, Ordering::Relaxed);
    }

    /// Moves the wall clock, as an administrator or a time server might.
    pub fn shift_wall(&self, ns: i64) {
        self.wall_offset_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn mono_ns(&self) -> u64 {
        self.mono_ns.load(Ordering::Relaxed)
    }

    fn wall_ns(&self) -> u64 {
        self.mono_ns().saturating_add_signed(self.wall_offset_ns.load(Ordering::Relaxed))
    }
}
