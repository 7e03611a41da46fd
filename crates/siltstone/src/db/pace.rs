//! Pacing: writers slow down gradually as the debt of flushes and merges grows, so that none of them runs into a wall.
//!
//! The *debt* of the store is a number: 0 while background work keeps up, 1 where writers stop. At debt `d` writers together may
//! write `(1 - d)^3` of [`FREE_RATE`]: a barrier that falls to nothing before the stop. So the debt settles where that rate is
//! what merges can sustain, without anyone measuring it. Writers owe `bytes / rate` and pay in short pauses, spread over the
//! writes, instead of one long stop (luo19 section 4.3 calls the alternative "stop", ours "delay").

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::core::Core;
use crate::num::to_u64;

/// Faster than any single writer: what a debt of nearly nothing allows, in bytes a second.
const FREE_RATE: f64 = 512e6;
/// A stop is left to the hard limits, in bytes a second.
const MIN_RATE: f64 = 64e3;
/// A writer pauses when it owes this much. The kernel's timers are good to about a fifth of it.
const PAUSE_NS: i64 = 250_000;
/// The longest pause: at the lowest rates a large value would owe seconds.
const LONGEST_PAUSE_NS: i64 = 10_000_000;

/// The current price of writing and what writers owe.
#[derive(Default)]
pub(crate) struct Pace {
    /// Nanoseconds that a KiB of user data costs; 0 while writers run free.
    ns_per_kib: AtomicU64,
    /// Below zero when the last pause was longer than asked for.
    owed_ns: AtomicI64,
}

impl Pace {
    /// How long a writer of `bytes` should pause now; 0 nearly always.
    #[inline]
    fn pause_ns(&self, bytes: u64) -> u64 {
        let price = self.ns_per_kib.load(Relaxed);
        if price == 0 {
            return 0;
        }
        let cost = i64::try_from(bytes * price / 1024).unwrap_or(i64::MAX / 2);
        let owed = self.owed_ns.fetch_add(cost, Relaxed).saturating_add(cost);
        if owed < PAUSE_NS {
            return 0;
        }
        // Of concurrent writers one takes the whole debt.
        u64::try_from(self.owed_ns.swap(0, Relaxed).clamp(0, LONGEST_PAUSE_NS)).unwrap_or(0)
    }

    /// Sets the price for `debt`.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and bounded by MIN_RATE")]
    fn set_debt(&self, debt: f64) {
        if debt <= 0.0 {
            self.ns_per_kib.store(0, Relaxed);
            self.owed_ns.store(0, Relaxed);
            return;
        }
        let rate = (FREE_RATE * (1.0 - debt).powi(3)).max(MIN_RATE);
        self.ns_per_kib.store((1024.0 * 1e9 / rate) as u64, Relaxed);
    }
}

impl Core {
    /// Lets a writer of `bytes` pay for the debt of background work. Called before it takes any lock.
    #[inline]
    pub(crate) fn pay(&self, bytes: u64) {
        let ns = self.pace.pause_ns(bytes);
        if ns > 0 {
            self.pause(ns);
        }
    }

    #[cold]
    fn pause(&self, ns: u64) {
        let Some(workers) = self.workers.get() else { return };
        let began = self.clock.mono_ns();
        workers.sleep(Duration::from_nanos(ns));
        let slept = self.clock.mono_ns().saturating_sub(began);
        self.counters.pace_ns.add(slept);
        // What the kernel slept too long is credited.
        let credit = i64::try_from(slept.saturating_sub(ns)).unwrap_or(0).min(LONGEST_PAUSE_NS);
        self.pace.owed_ns.fetch_sub(credit, Relaxed);
    }

    /// Looks at the debt and sets the price of writing. Called after every step of background work and every rotation.
    pub(crate) fn retune(&self) {
        self.pace.set_debt(self.debt());
    }

    /// The debt of background work, from 0 (it keeps up) to 1 (writers stop): the worst of all keyspaces' runs and of the
    /// memory for memtables. What a running flush or merge has done already counts as paid, so the debt moves smoothly.
    #[expect(clippy::cast_precision_loss, reason = "counts of runs, and ratios of sizes")]
    fn debt(&self) -> f64 {
        let mut debt = 0.0f64;
        let mut memory = -(self.flushed_so_far.load(Relaxed) as f64);
        let merged = self.runs_merged_so_far();
        for keyspace in self.keyspaces.load().values() {
            let view = keyspace.view.load();
            let slots = std::iter::once(&view.memtable).chain(&view.immutables);
            memory += slots.map(|slot| slot.table.bytes() as f64).sum::<f64>();
            let runs = to_u64(view.tree.runs.len() + view.immutables.len()) as f64;
            let merged = merged.iter().filter(|(id, _)| *id == keyspace.id).map(|(_, runs)| runs).sum::<f64>();
            let (slow, stop) = (keyspace.slow_runs.load(Relaxed) as f64, keyspace.stop_runs.load(Relaxed) as f64);
            debt = debt.max((runs - merged - slow) / (stop - slow).max(1.0));
        }
        // Writers stop when the budget is used up; below four fifths of it they need not care.
        let budget = self.options.write_memory_bytes as f64;
        debt.max((memory - 0.8 * budget) / (0.2 * budget)).min(1.0)
    }
}
