//! Time. Correctness never depends on it: it paces, measures and dates, no more.

/// A clock. Both times are in nanoseconds.
pub trait Clock: Send + Sync + 'static {
    /// Nanoseconds since some fixed moment; never goes back.
    fn mono_ns(&self) -> u64;
    /// Nanoseconds since 1970, as the wall clock has it: may jump either way.
    fn wall_ns(&self) -> u64;
}

/// The operating system's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealClock;

impl Clock for RealClock {
    fn mono_ns(&self) -> u64 {
        now(rustix::time::ClockId::Monotonic)
    }

    fn wall_ns(&self) -> u64 {
        now(rustix::time::ClockId::Realtime)
    }
}

fn now(id: rustix::time::ClockId) -> u64 {
    let t = rustix::time::clock_gettime(id);
    // Both are positive after 1970.
    u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
}
