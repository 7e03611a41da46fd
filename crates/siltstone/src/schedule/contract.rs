//! What background work can sustain, what it owes, and the promise of a longest stall that follows from both.
//!
//! Everything is derived from what was measured since the store was opened: how long flushes and merges took for how many bytes. So the
//! figures follow the machine, the value sizes and the strategy, and nobody has to guess a rate.

use crate::num::to_f64;

/// What background work has done, and what there is to do.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Work {
    /// Bytes of keys and values that were flushed.
    pub flushed_user_bytes: u64,
    /// Bytes that flushes wrote.
    pub flush_bytes: u64,
    /// Time in flushes.
    pub flush_ns: u64,
    /// Bytes of input that merges have stepped through.
    pub merge_bytes: u64,
    /// Time in merges, of all lanes together.
    pub merge_ns: u64,
    /// Merges that can step at once.
    pub lanes: u32,
    /// The budget of background I/O in bytes a second; 0 is none.
    pub budget_bytes_per_s: u64,
    /// Bytes of full memtables that wait for their flush.
    pub flush_debt_bytes: u64,
    /// Bytes of input that merges under way have still to step through.
    pub merge_debt_bytes: u64,
}

impl Work {
    /// Nanoseconds that a lane takes for a byte of a merge's input; none before the first step.
    pub fn merge_ns_per_byte(&self) -> Option<f64> {
        (self.merge_bytes > 0 && self.merge_ns > 0).then(|| to_f64(self.merge_ns) / to_f64(self.merge_bytes))
    }

    /// Nanoseconds that the flush lane takes for a byte of keys and values; none before the first flush.
    pub fn flush_ns_per_byte(&self) -> Option<f64> {
        (self.flushed_user_bytes > 0 && self.flush_ns > 0)
            .then(|| to_f64(self.flush_ns) / to_f64(self.flushed_user_bytes))
    }

    /// The rate of writes, in bytes of keys and values a second, that flushes and merges can take for ever: the least of what the
    /// flush lane, the merging lanes and the budget allow. What merges still owe for what was written counts as if it were
    /// done. None before the first flush.
    pub fn sustainable_bytes_per_s(&self) -> Option<f64> {
        let by_flushes = 1e9 / self.flush_ns_per_byte()?;
        let user = to_f64(self.flushed_user_bytes);
        let merge_bytes = to_f64(self.merge_bytes.saturating_add(self.merge_debt_bytes));
        let by_merges = match self.merge_ns_per_byte() {
            Some(ns) => f64::from(self.lanes.max(1)) * user * 1e9 / (merge_bytes * ns),
            None => f64::INFINITY,
        };
        let by_budget = match self.budget_bytes_per_s {
            0 => f64::INFINITY,
            budget => to_f64(budget) * user / (to_f64(self.flush_bytes) + merge_bytes).max(1.0),
        };
        Some(by_flushes.min(by_merges).min(by_budget))
    }

    /// Bytes that flushes and merges have still to move.
    pub fn debt_bytes(&self) -> u64 {
        self.flush_debt_bytes.saturating_add(self.merge_debt_bytes)
    }

    /// How long that takes if nothing more is written, in seconds; none if it was never measured.
    pub fn debt_seconds(&self) -> Option<f64> {
        let flushing = match self.flush_debt_bytes {
            0 => 0.0,
            bytes => to_f64(bytes) * self.flush_ns_per_byte()? / 1e9,
        };
        let merging = match self.merge_debt_bytes {
            0 => 0.0,
            bytes => to_f64(bytes) * self.merge_ns_per_byte()? / 1e9 / f64::from(self.lanes.max(1)),
        };
        let budget = match self.budget_bytes_per_s {
            0 => 0.0,
            rate => to_f64(self.debt_bytes()) / to_f64(rate),
        };
        Some(flushing.max(merging).max(budget))
    }
}

/// The rate at which a keyspace may be written, in bytes a second, so that a writer that comes to the limit waits at most `max_stall_s`
/// seconds: there is room for `room_bytes` until then, and in `relief_s` seconds the next merge ends that makes more.
/// None if as fast as writers can.
pub fn rate_for(room_bytes: u64, relief_s: f64, max_stall_s: f64) -> Option<f64> {
    let covered = relief_s - max_stall_s;
    (covered > 0.0).then(|| (to_f64(room_bytes) / covered).max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::Rng;

    #[test]
    fn the_slowest_part_decides_what_is_sustained() {
        let work = Work {
            flushed_user_bytes: 1_000_000,
            flush_bytes: 1_000_000,
            flush_ns: 10_000_000,
            merge_bytes: 9_000_000,
            merge_ns: 900_000_000,
            lanes: 2,
            ..Work::default()
        };
        let rate = |work: Work| work.sustainable_bytes_per_s().unwrap().round();
        assert_eq!(rate(work), 2_222_222.0, "two lanes need 0.45 s for the merges of a megabyte");
        assert_eq!(rate(Work { lanes: 200, ..work }), 100_000_000.0, "then the flush lane is the limit");
        assert_eq!(rate(Work { merge_debt_bytes: 9_000_000, ..work }), 1_111_111.0, "what is owed counts");
        assert_eq!(rate(Work { budget_bytes_per_s: 5_000_000, ..work }), 500_000.0, "ten bytes are moved for each one");
        assert_eq!(Work::default().sustainable_bytes_per_s(), None);
        let owing = Work { merge_debt_bytes: 18_000_000, flush_debt_bytes: 1_000_000, ..work };
        assert_eq!((owing.debt_bytes(), owing.debt_seconds()), (19_000_000, Some(0.9)));
        assert_eq!(Work { budget_bytes_per_s: 1_000_000, ..owing }.debt_seconds(), Some(19.0));
        assert_eq!(Work { merge_debt_bytes: 1, ..Work::default() }.debt_seconds(), None);
    }

    /// Who writes at the rate that is said meets the limit at most so long before the relief.
    #[test]
    fn the_rate_keeps_the_promise() {
        let mut rng = Rng::new(1);
        for _ in 0..10_000 {
            let (room, relief) = (rng.between(1, 1 << 30), to_f64(rng.between(1, 10_000)) / 1e3);
            let stall = to_f64(rng.below(5000)) / 1e3;
            match rate_for(room, relief, stall) {
                None => assert!(relief <= stall, "{relief} {stall}"),
                Some(rate) => {
                    let full_after = to_f64(room) / rate;
                    assert!(relief - full_after <= stall + 1e-6 || rate <= 1.0, "{room} {relief} {stall}: {rate}");
                }
            }
        }
    }
}
