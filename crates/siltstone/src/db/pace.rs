//! Pacing: writers slow down gradually as the debt of flushes and merges grows, so that none of them runs into a wall.
//!
//! The *debt* of a keyspace is a number: 0 while background work keeps up, 1 where its writers stop. What writers together may
//! write at a debt is the [write control](crate::schedule::write_control)'s; with `delay` it is a barrier that falls to next to nothing
//! before the stop, so the debt settles where that rate is what merges can sustain, without anyone measuring it. Writers owe
//! `bytes / rate` and pay in short pauses, spread over the writes, instead of one long stop.
//!
//! Each keyspace has its own debt, its own limits and its own price. They share the memory for memtables: a keyspace that takes more of it
//! than its part pays for the debt of all; the last quarter is kept for those that take less.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::core::{Core, KeyspaceCore};
use crate::event::Event;
use crate::num::{to_f64, to_u64};
use crate::schedule::contract::{self, Work};
use crate::version::{KeyspaceId, Level};

/// A writer pauses when it owes this much. The kernel's timers are good to about a fifth of it.
const PAUSE_NS: i64 = 250_000;
/// The longest pause: at the lowest rates a large value would owe seconds.
const LONGEST_PAUSE_NS: i64 = 10_000_000;
/// The same where a user has said how long a write may wait.
const LONGEST_PROMISED_PAUSE_NS: i64 = 1_000_000_000;
/// Of the memory for memtables what is kept for keyspaces that take no more than their part: one in so many.
pub(crate) const KEPT_SHARE: u64 = 4;
/// The debt from which a listener is warned, and below which the warning is forgotten.
const WARN_DEBT: f64 = 0.75;
const CALM_DEBT: f64 = 0.5;

/// The current price of writing to a keyspace and what its writers owe.
pub(crate) struct Pace {
    /// Nanoseconds that a KiB of user data costs; 0 while writers run free.
    ns_per_kib: AtomicU64,
    longest_pause_ns: i64,
    /// Below zero when the last pause was longer than asked for.
    owed_ns: AtomicI64,
}

impl Pace {
    /// For a keyspace whose option `max_write_stall` is `stall`: no pause is longer than that, and each may be. `keeps_rate` where writes
    /// may not be faster than their price says, however long that takes.
    pub(crate) fn new(stall: Option<Duration>, keeps_rate: bool) -> Pace {
        let stall = stall.map(|stall| i64::try_from(stall.as_nanos()).unwrap_or(i64::MAX));
        let unpromised = if keeps_rate { i64::MAX } else { LONGEST_PAUSE_NS };
        Pace {
            ns_per_kib: AtomicU64::new(0),
            longest_pause_ns: stall.map_or(unpromised, |stall| stall.min(LONGEST_PROMISED_PAUSE_NS)),
            owed_ns: AtomicI64::new(0),
        }
    }

    /// How long a writer of `bytes` should pause now; 0 nearly always.
    #[inline]
    fn pause_ns(&self, bytes: u64) -> u64 {
        let price = self.ns_per_kib.load(Relaxed);
        if price == 0 {
            return 0;
        }
        let cost = i64::try_from(bytes.saturating_mul(price) / 1024).unwrap_or(i64::MAX / 2);
        let owed = self.owed_ns.fetch_add(cost, Relaxed).saturating_add(cost);
        if owed < PAUSE_NS {
            return 0;
        }
        // Of concurrent writers one takes the whole debt.
        u64::try_from(self.owed_ns.swap(0, Relaxed).clamp(0, self.longest_pause_ns)).unwrap_or(0)
    }

    /// Sets the price for a rate in bytes a second; none is no price.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and rates are at least 1")]
    fn set_rate(&self, rate: Option<f64>) {
        match rate {
            Some(rate) => self.ns_per_kib.store((1024.0 * 1e9 / rate) as u64, Relaxed),
            None => {
                self.ns_per_kib.store(0, Relaxed);
                self.owed_ns.store(0, Relaxed);
            }
        }
    }
}

impl Core {
    /// Lets a writer of `bytes` pay for the debt of a keyspace. Called before it takes any lock.
    #[inline]
    pub(crate) fn pay(&self, keyspace: &KeyspaceCore, bytes: u64) {
        let ns = keyspace.pace.pause_ns(bytes);
        if ns > 0 {
            self.pause(keyspace, ns);
        }
    }

    #[cold]
    fn pause(&self, keyspace: &KeyspaceCore, ns: u64) {
        let Some(workers) = self.workers.get() else { return };
        let began = self.clock.mono_ns();
        workers.sleep(Duration::from_nanos(ns));
        let slept = self.clock.mono_ns().saturating_sub(began);
        self.counters.pace_ns.add(slept);
        keyspace.waits.pace_ns.add(slept);
        // What the kernel slept too long is credited.
        let credit = i64::try_from(slept.saturating_sub(ns)).unwrap_or(0).min(LONGEST_PAUSE_NS);
        keyspace.pace.owed_ns.fetch_sub(credit, Relaxed);
    }

    /// Looks at the debts and sets the prices of writing. Called after every step of background work and every rotation.
    pub(crate) fn retune(&self) {
        let keyspaces = self.keyspaces.load();
        let memory = self.memory_debt();
        let part = self.options.write_memory_bytes / KEPT_SHARE / to_u64(keyspaces.len()).max(1);
        let compactions = self.compaction.lock();
        for keyspace in keyspaces.values() {
            let view = keyspace.view.load();
            let runs = keyspace.counted_runs(&view);
            let debt = keyspace.limits().debt(to_f64(runs) - compactions.runs_merged_so_far(keyspace.id));
            let shares_memory = keyspaces.len() == 1 || view.memory_bytes() > part;
            let debt = if shares_memory { debt.max(memory) } else { debt };
            let by_debt = keyspace.options.write_control.rate(debt);
            let by_contract = keyspace.options.max_write_stall.and_then(|stall| {
                let next_bytes = view.tree.version.levels.iter().take(2).map(Level::bytes).sum();
                let relief_s = self.relief_s(compactions.relief_bytes(keyspace.id, next_bytes))?;
                // The memtable in use fills first, and then one for each run that there may be more.
                let runs_left = keyspace.stop_runs.load(Relaxed).saturating_sub(runs).saturating_add(1);
                let room = runs_left.saturating_mul(keyspace.options.memtable_bytes);
                let room = room.saturating_sub(view.memtable.table.bytes());
                contract::rate_for(room, relief_s, stall.as_secs_f64())
            });
            let by_flush = keyspace.options.max_write_stall.and_then(|stall| {
                // The oldest of the full memtables goes next, and with it its memory.
                let oldest = view.immutables.last()?.table.bytes();
                let relief_s = to_f64(oldest) * self.work(0, 0).flush_ns_per_byte()? / 1e9;
                let waiting = self.immutable_bytes.load(Relaxed);
                let room = self.immutable_limit(keyspace).saturating_sub(waiting) + keyspace.options.memtable_bytes;
                let room = room.saturating_sub(view.memtable.table.bytes());
                contract::rate_for(room, relief_s, stall.as_secs_f64())
            });
            keyspace.pace.set_rate([by_debt, by_contract, by_flush].into_iter().flatten().reduce(f64::min));
            self.warn(keyspace, debt, runs);
        }
    }

    /// Tells once when the limit comes near, and again only after it was far away. Told later, when no lock is held.
    fn warn(&self, keyspace: &KeyspaceCore, debt: f64, runs: u64) {
        let limit = keyspace.stop_runs.load(Relaxed);
        // With one memtable more writers wait for flushes.
        let waiting = self.immutable_bytes.load(Relaxed);
        let is_full = waiting > 0 && waiting + keyspace.options.memtable_bytes >= self.immutable_limit(keyspace);
        if debt >= WARN_DEBT || runs >= limit || is_full {
            if !keyspace.warned.swap(true, Relaxed) {
                keyspace.untold.lock().push(Event::StallAhead { keyspace: keyspace.id, debt, runs, limit });
                self.is_untold.store(true, Relaxed);
            }
        } else if debt < CALM_DEBT {
            keyspace.warned.store(false, Relaxed);
        }
    }

    /// The debt of the memory for memtables, from 0 (below four fifths of it) to 1 (writers stop). What a running flush has written already
    /// counts as free.
    fn memory_debt(&self) -> f64 {
        let keyspaces = self.keyspaces.load();
        let held: u64 = keyspaces.values().map(|keyspace| keyspace.view.load().memory_bytes()).sum();
        let used = held.saturating_sub(self.flushed_so_far.load(Relaxed));
        let budget = to_f64(self.options.write_memory_bytes);
        ((to_f64(used) - 0.8 * budget) / (0.2 * budget)).clamp(0.0, 1.0)
    }

    /// How long the lanes take for so many bytes of a merge's input, in seconds; none if it was never measured.
    fn relief_s(&self, bytes: u64) -> Option<f64> {
        Some(to_f64(bytes) * self.work(0, 0).merge_ns_per_byte()? / 1e9)
    }

    /// What was measured, and what is owed.
    fn work(&self, flush_debt_bytes: u64, merge_debt_bytes: u64) -> Work {
        Work {
            flushed_user_bytes: self.counters.flushed_user_bytes.get(),
            flush_bytes: self.counters.flush_bytes.get(),
            flush_ns: self.counters.flush_ns.get(),
            merge_bytes: self.counters.compaction_bytes_stepped.get(),
            merge_ns: self.counters.compaction_ns.get(),
            lanes: self.options.compaction_threads,
            budget_bytes_per_s: self.limiter.rate_bytes_per_s(),
            flush_debt_bytes,
            merge_debt_bytes,
        }
    }

    /// What background work sustains and owes now: what waits to be flushed, and what merges under way have still to read.
    pub(crate) fn work_now(&self) -> Work {
        let immutable = |keyspace: &KeyspaceCore| keyspace.view.load().immutable_bytes();
        let waiting: u64 = self.keyspaces.load().values().map(|keyspace| immutable(keyspace)).sum();
        let merging = self.compaction.lock().left_bytes(None);
        self.work(waiting.saturating_sub(self.flushed_so_far.load(Relaxed)), merging)
    }

    /// The same for the bytes of one keyspace.
    pub(crate) fn owed_by(&self, keyspace: &KeyspaceCore) -> Work {
        let merging = self.compaction.lock().left_bytes(Some(keyspace.id));
        self.work(keyspace.view.load().immutable_bytes(), merging)
    }

    /// How much of the memory for full memtables a keyspace may take. The last part is kept for those that hold little of it.
    pub(crate) fn immutable_limit(&self, keyspace: &KeyspaceCore) -> u64 {
        let limit = self.options.write_memory_bytes / 2;
        let keyspaces = to_u64(self.keyspaces.load().len()).max(1);
        let kept = limit / KEPT_SHARE;
        let is_light = keyspace.view.load().immutable_bytes() <= kept / keyspaces;
        if keyspaces == 1 || is_light { limit } else { limit - kept }
    }
}

impl super::work::Compactions {
    /// Of the runs of L0 of a keyspace those that are merged already, in fractions: the debt sinks while a merge runs, not only at its end.
    fn runs_merged_so_far(&self, keyspace: KeyspaceId) -> f64 {
        self.of(keyspace).map(|running| running.runs_merged_so_far()).sum()
    }

    /// Bytes that merges of a keyspace have still to read until it has fewer runs: of the merge that ends next of those that take runs
    /// away; without one, of all that are under way, and then of what is due next, `next_bytes` (they may be in its way).
    fn relief_bytes(&self, keyspace: KeyspaceId, next_bytes: u64) -> u64 {
        let ends = self.of(keyspace).filter_map(|running| running.relief_bytes()).min();
        ends.unwrap_or_else(|| self.left_bytes(Some(keyspace)).saturating_add(next_bytes))
    }
}
