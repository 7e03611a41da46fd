//! Virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use super::super::Clock;

/// Where virtual time begins: not at 0, so that code which subtracts a little works as it would after boot.
const START_NS: u64 = 1_000_000_000;
/// The wall clock at the beginning of virtual time: some day of 2025.
const WALL_START_NS: i64 = 1_750_000_000_000_000_000;

/// A clock that moves only when told to.
///
/// When lanes run side by side ([`SimExecutor::set_side_by_side`](super::SimExecutor::set_side_by_side)), a lane in a step has a time of its
/// own: what it waits for passes for it alone, and the others go on from where they are.
#[derive(Debug)]
pub struct SimClock {
    mono_ns: AtomicU64,
    /// How far the lane in a step is ahead of all others.
    ahead_ns: AtomicU64,
    /// Whether time passes for the lane in a step only.
    alone: AtomicBool,
    /// Wall clock minus monotonic clock.
    wall_offset_ns: AtomicI64,
}

impl SimClock {
    /// A clock at the beginning of virtual time.
    pub fn new() -> Arc<SimClock> {
        Arc::new(SimClock {
            mono_ns: AtomicU64::new(START_NS),
            ahead_ns: AtomicU64::new(0),
            alone: AtomicBool::new(false),
            wall_offset_ns: AtomicI64::new(WALL_START_NS),
        })
    }

    /// Lets `ns` nanoseconds pass.
    pub fn advance(&self, ns: u64) {
        let time = if self.alone.load(Ordering::Relaxed) { &self.ahead_ns } else { &self.mono_ns };
        time.fetch_add(ns, Ordering::Relaxed);
    }

    /// Lets time pass until `mono_ns`; nothing happens if that is over.
    pub fn advance_to(&self, mono_ns: u64) {
        self.advance(mono_ns.saturating_sub(self.mono_ns()));
    }

    pub(super) fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Relaxed)
    }

    /// From here on time passes for a lane alone.
    pub(super) fn begin_alone(&self) {
        self.alone.store(true, Ordering::Relaxed);
    }

    /// Ends that: returns the lane's own time. For everybody else no time has passed.
    pub(super) fn end_alone(&self) -> u64 {
        let own_ns = self.mono_ns();
        self.alone.store(false, Ordering::Relaxed);
        self.ahead_ns.store(0, Ordering::Relaxed);
        own_ns
    }

    /// Moves the wall clock, as an administrator or a time server might.
    pub fn shift_wall(&self, ns: i64) {
        self.wall_offset_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn mono_ns(&self) -> u64 {
        self.mono_ns.load(Ordering::Relaxed) + self.ahead_ns.load(Ordering::Relaxed)
    }

    fn wall_ns(&self) -> u64 {
        self.mono_ns().saturating_add_signed(self.wall_offset_ns.load(Ordering::Relaxed))
    }
}
