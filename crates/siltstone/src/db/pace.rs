//! Pacing: writers slow down gradually as the debt of flushes and merges grows, so that none of them runs into a wall.
//!
//! The *debt* of a keyspace is a number: 0 while background work keeps up, 1 where its writers stop. What writers together may
//! write at a debt is the [write control](crate::schedule::write_control)'s; `delay` learns what merges and flushes can sustain. Writers owe
//! `bytes / rate`, which the time that passes pays for; those who are ahead of it make short pauses, spread over the writes, instead of one
//! long stop.
//!
//! Runs come and go in steps: a debt jumps when a memtable is flushed, and more when a merge ends or a deeper one holds it up. If every jump
//! stopped writers at once, they would queue at every other one although merges keep up on the whole. So as long as the debt is not steep,
//! writers have a credit of some seconds: the price bounds what they write over those, and who was slower for a moment catches
//! up. It is what they left unused of a price: a time without a price earns none, or the first to come would bind no one for seconds. And while a merge that takes runs away is under way, writers share what room there is before the stop over
//! the time that it still needs.
//!
//! Flushes are met in the same way: with the last memtable that there is memory for, writers are no faster than to have filled it when the
//! flush under way gives the next one back.
//!
//! Each keyspace has its own debt, its own limits and its own price. They share the memory for memtables, whose last quarter is kept for
//! keyspaces that hold little of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use super::core::{Core, KeyspaceCore};
use crate::event::Event;
use crate::num::{to_f64, to_u64};
use crate::schedule::contract::{self, Work};
use crate::schedule::write_control::{STEEP_DEBT, Seen, Sustained, WriteControl};
use crate::version::{KeyspaceId, Level};

/// A writer looks at the clock when it owes this much, and pauses when it is ahead by as much. The kernel's timers are good to about a
/// fifth of it.
const PAUSE_NS: u64 = 250_000;
/// The longest pause: at the lowest rates a large value would owe seconds. Where `delay` may be slower than by default it is longer, as long as
/// the [least rate](crate::schedule::write_control::Delay::least_bytes_per_s) takes for so many bytes: a small record must be able to pay.
const LONGEST_PAUSE_NS: u64 = 8_000_000;
const LONGEST_PAUSE_BYTES: u64 = 512;
/// The same where a user has said how long a write may wait.
const LONGEST_PROMISED_PAUSE_NS: u64 = 1_000_000_000;
/// Of the time in which writers wrote less than they might have, as much may be made good: the kernel wakes them late.
const CREDIT_NS: u64 = 10_000_000;
/// The same while the debt is below [`STEEP_DEBT`].
const CALM_CREDIT_NS: u64 = 2_000_000_000;
/// How fast the merge that writers wait for goes on is averaged over so long.
const RELIEF_NS: u64 = 500_000_000;
/// What is sustained is not looked at more often: a debt says little about a shorter time.
const LEARN_NS: u64 = 20_000_000;
/// Of the memory for memtables what is kept for keyspaces that take no more than their part: one in so many.
const KEPT_SHARE: u64 = 4;
/// The debt from which a listener is warned, and below which the warning is forgotten.
const WARN_DEBT: f64 = 0.75;
const CALM_DEBT: f64 = 0.5;

/// The current price of writing to a keyspace and how far its writers are ahead of it.
///
/// The rate of all writers together is kept, not a pause for each of them: who is slower than the price anyway does not pause.
pub(crate) struct Pace {
    /// Nanoseconds that a KiB of user data costs; 0 while writers run free.
    ns_per_kib: AtomicU64,
    longest_pause_ns: u64,
    /// What was written since a writer looked at the clock. Changed under the writer lock, but for what is forgotten when there is no price.
    owed_ns: AtomicU64,
    /// When all that was written before is paid for.
    paid_ns: AtomicU64,
    /// How far that may lie back.
    credit_ns: AtomicU64,
    /// How far it lay back when the price went: so far it does when there is one again.
    unused_ns: AtomicU64,
    /// Bytes that were paid for.
    paid_bytes: AtomicU64,
    /// Whether a writer paused since what is sustained was looked at.
    held: AtomicBool,
    learnt: Mutex<Learnt>,
}

/// Nanoseconds that were taken from what is owed, to be paid.
#[must_use]
pub(crate) struct Due(u64);

/// What is sustained, and when that was looked at last.
struct Learnt {
    sustained: Sustained,
    relief: Relief,
    at_ns: u64,
    paid_bytes: u64,
    flushing_ns: u64,
}

/// How fast the merges went on that take runs away, by the clock: their lane may have others to step, and beside fast writers they are slower
/// than on average.
#[derive(Clone, Copy, Default)]
struct Relief {
    /// The one under way, and what it had still to read.
    ending: Option<(u64, u64)>,
    bytes_per_s: f64,
    /// For how long they were seen, at most [`RELIEF_NS`]: what is known counts as much.
    seen_ns: u64,
}

impl Relief {
    /// The one under way is job `ending.0` and has `ending.1` bytes still to read, `elapsed_ns` after the last look.
    fn look(&mut self, ending: Option<(u64, u64)>, elapsed_ns: u64) {
        let before = std::mem::replace(&mut self.ending, ending);
        let (Some((job, left)), Some((job_before, left_before))) = (ending, before) else { return };
        if job != job_before {
            return;
        }
        let speed = to_f64(left_before.saturating_sub(left)) * 1e9 / to_f64(elapsed_ns.max(1));
        self.seen_ns = self.seen_ns.saturating_add(elapsed_ns).min(RELIEF_NS);
        self.bytes_per_s += (speed - self.bytes_per_s) * (to_f64(elapsed_ns) / to_f64(self.seen_ns.max(1))).min(1.0);
    }

    /// How long merges need for so many bytes, in seconds, where on average they need `ns_per_byte`; none if nothing is known. Late rather
    /// than soon: who was told too early comes to the stop.
    fn takes_s(&self, bytes: u64, ns_per_byte: Option<f64>) -> Option<f64> {
        let on_average = ns_per_byte.map(|ns| to_f64(bytes) * ns / 1e9);
        // A merge that begins opens its files first: its first moments are no speed, and would stop writers.
        let is_known = self.seen_ns >= RELIEF_NS / 4;
        let lately = is_known.then(|| to_f64(bytes) / self.bytes_per_s.max(1.0));
        on_average.into_iter().chain(lately).reduce(f64::max)
    }
}

impl Pace {
    /// For a keyspace whose option `max_write_stall` is `stall`: no pause is longer than that, and each may be. With `limit` writes
    /// may not be faster than their price says, however long that takes.
    pub(crate) fn new(stall: Option<Duration>, control: &WriteControl) -> Pace {
        let stall = stall.map(|stall| u64::try_from(stall.as_nanos()).unwrap_or(u64::MAX));
        let unpromised = match control {
            WriteControl::Limit(_) => u64::MAX,
            WriteControl::Delay(delay) => {
                LONGEST_PAUSE_NS.max(LONGEST_PAUSE_BYTES * 1_000_000_000 / delay.least_bytes_per_s.max(1))
            }
            WriteControl::Stop | WriteControl::CompactionFirst => LONGEST_PAUSE_NS,
        };
        Pace {
            ns_per_kib: AtomicU64::new(0),
            longest_pause_ns: stall.map_or(unpromised, |stall| stall.min(LONGEST_PROMISED_PAUSE_NS)),
            owed_ns: AtomicU64::new(0),
            paid_ns: AtomicU64::new(0),
            credit_ns: AtomicU64::new(CREDIT_NS),
            unused_ns: AtomicU64::new(0),
            paid_bytes: AtomicU64::new(0),
            held: AtomicBool::new(false),
            learnt: Mutex::new(Learnt {
                sustained: Sustained::presumed(control),
                relief: Relief::default(),
                at_ns: 0,
                paid_bytes: 0,
                flushing_ns: 0,
            }),
        }
    }

    /// What is sustained, and how fast relief comes, as far as was seen by `now`; `work` is what was measured, `flushing_ns` how long flushes were
    /// under way, `ending` the [merge that ends next](super::work::Compactions::ending).
    fn learn(
        &self,
        control: &WriteControl,
        work: &Work,
        debt: f64,
        flushing_ns: u64,
        ending: Option<(u64, u64)>,
        now: u64,
    ) -> (Sustained, Relief) {
        let mut learnt = self.learnt.lock();
        let elapsed = now.saturating_sub(learnt.at_ns);
        if let WriteControl::Delay(delay) = control
            && elapsed >= LEARN_NS
        {
            let paid = self.paid_bytes.load(Relaxed);
            let before = std::mem::replace(&mut learnt.paid_bytes, paid);
            let flushing_before = std::mem::replace(&mut learnt.flushing_ns, flushing_ns);
            let seen = Seen {
                elapsed_s: to_f64(elapsed) / 1e9,
                debt,
                flushing: (to_f64(flushing_ns.saturating_sub(flushing_before)) / to_f64(elapsed)).min(1.0),
                // Without a price nobody counts.
                written: (self.ns_per_kib.load(Relaxed) > 0).then(|| paid - before),
                held: self.held.swap(false, Relaxed),
                measured: work.sustainable_bytes_per_s(),
            };
            learnt.sustained.learn(delay, &seen);
            learnt.relief.look(ending, elapsed);
            learnt.at_ns = now;
        }
        (learnt.sustained, learnt.relief)
    }

    /// Charges a write of `bytes`, under the writer lock; nearly never it is time to pay what is due, for all writers, when the lock is free.
    #[inline]
    pub(crate) fn charge(&self, bytes: u64) -> Option<Due> {
        let price = self.ns_per_kib.load(Relaxed);
        if price == 0 {
            return None;
        }
        let cost = bytes.saturating_mul(price) / 1024;
        let owed = self.owed_ns.load(Relaxed).saturating_add(cost);
        let is_due = owed >= PAUSE_NS;
        self.owed_ns.store(if is_due { 0 } else { owed }, Relaxed);
        is_due.then_some(Due(owed))
    }

    /// How long the writer that pays at `now` should pause.
    fn pause_ns(&self, Due(owed): Due, now: u64) -> u64 {
        let credit = self.credit_ns.load(Relaxed);
        let price = self.ns_per_kib.load(Relaxed).max(1);
        self.paid_bytes.fetch_add(owed.saturating_mul(1024) / price, Relaxed);
        let pay = |paid: u64| {
            let due = paid.max(now.saturating_sub(credit)).saturating_add(owed);
            due.min(now.saturating_add(self.longest_pause_ns))
        };
        let before = self.paid_ns.fetch_update(Relaxed, Relaxed, |paid| Some(pay(paid))).unwrap_or_else(|paid| paid);
        let ahead = pay(before).saturating_sub(now);
        if ahead < PAUSE_NS {
            return 0;
        }
        self.held.store(true, Relaxed);
        ahead
    }

    /// Sets the price for a rate in bytes a second from `now` on; none is no price. Writers who are `calm` may be faster for seconds after they were slower.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and rates are at least 1")]
    fn set_rate(&self, rate: Option<f64>, calm: bool, now: u64) {
        self.credit_ns.store(if calm { CALM_CREDIT_NS } else { CREDIT_NS }, Relaxed);
        let had_price = self.ns_per_kib.load(Relaxed) > 0;
        match rate {
            Some(rate) => {
                if !had_price {
                    self.paid_ns.store(now.saturating_sub(self.unused_ns.load(Relaxed)), Relaxed);
                }
                self.ns_per_kib.store((1024.0 * 1e9 / rate) as u64, Relaxed);
            }
            None if had_price => {
                self.ns_per_kib.store(0, Relaxed);
                self.owed_ns.store(0, Relaxed);
                let unused = now.saturating_sub(self.paid_ns.load(Relaxed));
                self.unused_ns.store(unused.min(CALM_CREDIT_NS), Relaxed);
            }
            None => {}
        }
    }
}

impl Core {
    /// Lets a writer pay for the debt of a keyspace. Called without any lock.
    #[cold]
    pub(crate) fn pay(&self, keyspace: &KeyspaceCore, due: Due) {
        let Some(workers) = self.workers.get() else { return };
        let began = self.clock.mono_ns();
        let ns = keyspace.pace.pause_ns(due, began);
        if ns == 0 {
            return;
        }
        workers.sleep(Duration::from_nanos(ns));
        let slept = self.clock.mono_ns().saturating_sub(began);
        self.counters.pace_ns.add(slept);
        keyspace.waits.pace_ns.add(slept);
    }

    /// Looks at the debts and sets the prices of writing. Called after every step of background work and every rotation.
    pub(crate) fn retune(&self) {
        let keyspaces = self.keyspaces.load();
        let compactions = self.compaction.lock();
        let work = self.work(0, compactions.left_bytes(None));
        let memory = self.memory_left(&keyspaces);
        let now = self.clock.mono_ns();
        let flushing_ns = self.flushing.busy_ns(now);
        for keyspace in keyspaces.values() {
            let view = keyspace.view.load();
            let runs = keyspace.counted_runs(&view);
            let debt = keyspace.limits().debt(to_f64(runs) - compactions.runs_merged_so_far(keyspace.id));
            // How many memtables may still be set aside before the oldest of them must be on disk.
            let limit = self.immutable_limit(keyspace);
            let memtable = &view.memtable.table;
            let spare = limit.saturating_sub(memory.waiting).div_ceil(memtable.full_bytes().max(1));
            let control = &keyspace.options.write_control;
            let ending = compactions.ending(keyspace.id);
            let ending_bytes = ending.map(|(_, left)| left);
            let (sustained, relief) = keyspace.pace.learn(control, &work, debt, flushing_ns, ending, now);
            // How long merges take for so many bytes of their input, in seconds; none if it was never measured.
            let relief_s = |bytes: u64| relief.takes_s(bytes, work.merge_ns_per_byte());
            let by_debt = control.rate(debt, &sustained);
            // The memtable in use fills first, and then one for each run that there may be more.
            let rooms = keyspace.stop_runs.load(Relaxed).saturating_sub(runs).saturating_add(1);
            let room = rooms.saturating_mul(memtable.full_bytes()).saturating_sub(memtable.bytes());
            // Writers stop in the end whatever the debt is, so they may be no faster than to get there when there is room again.
            let is_delay = matches!(control, WriteControl::Delay(_));
            let slowly = |room: u64, relief_s: Option<f64>| match control {
                WriteControl::Delay(delay) => {
                    contract::rate_for(room, relief_s?, 0.0).map(|rate| rate.max(to_f64(delay.least_bytes_per_s)))
                }
                _ => None,
            };
            let by_room = slowly(room, ending_bytes.and_then(relief_s))
                .filter(|rate| by_debt.is_some_and(|by_debt| *rate < by_debt));
            let by_contract = keyspace.options.max_write_stall.and_then(|stall| {
                let relief_bytes = ending_bytes.unwrap_or_else(|| {
                    let next_bytes: u64 = view.tree.version.levels.iter().take(2).map(Level::bytes).sum();
                    compactions.left_bytes(Some(keyspace.id)).saturating_add(next_bytes)
                });
                contract::rate_for(room, relief_s(relief_bytes)?, stall.as_secs_f64())
            });
            // The same for memory.
            let left = memtable.full_bytes().saturating_sub(memtable.bytes()).min(memory.active);
            let by_flush = if spare == 0 { slowly(left, memory.relief_s) } else { None };
            let by_flush_contract = keyspace.options.max_write_stall.and_then(|stall| {
                let room = left.saturating_add(spare.saturating_mul(memtable.full_bytes()));
                contract::rate_for(room, memory.relief_s?, stall.as_secs_f64())
            });
            let bounds = [by_room, by_contract, by_flush, by_flush_contract];
            let calm = is_delay && debt < STEEP_DEBT && bounds.iter().all(Option::is_none);
            let rate = bounds.into_iter().chain([by_debt]).flatten().reduce(f64::min);
            keyspace.pace.set_rate(rate, calm, now);
            self.warn(keyspace, debt, runs);
        }
    }

    /// Tells once when the limit comes near, and again only after it was far away. Told later, when no lock is held.
    fn warn(&self, keyspace: &KeyspaceCore, debt: f64, runs: u64) {
        let limit = keyspace.stop_runs.load(Relaxed);
        // With one memtable more writers wait for flushes.
        let waiting = self.immutable_bytes.load(Relaxed);
        let memtable_bytes = keyspace.view.load().memtable.table.full_bytes();
        let is_full = waiting > 0 && waiting + memtable_bytes >= self.immutable_limit(keyspace);
        if debt >= WARN_DEBT || runs >= limit || is_full {
            if !keyspace.warned.swap(true, Relaxed) {
                keyspace.untold.lock().push(Event::StallAhead { keyspace: keyspace.id, debt, runs, limit });
                self.is_untold.store(true, Relaxed);
            }
        } else if debt < CALM_DEBT {
            keyspace.warned.store(false, Relaxed);
        }
    }

    /// What the memory for memtables has room for.
    fn memory_left(&self, keyspaces: &BTreeMap<KeyspaceId, Arc<KeyspaceCore>>) -> MemoryLeft {
        let active: u64 = keyspaces.values().map(|keyspace| keyspace.view.load().memtable.table.bytes()).sum();
        MemoryLeft {
            waiting: self.immutable_bytes.load(Relaxed),
            active: (self.options.write_memory_bytes / 2).saturating_sub(active),
            relief_s: self.flushing.left_ns(self.clock.mono_ns()).map(|ns| ns / 1e9),
        }
    }

    /// What was measured, and what is owed.
    pub(super) fn work(&self, flush_debt_bytes: u64, merge_debt_bytes: u64) -> Work {
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
        self.work(waiting.saturating_sub(self.flushing.so_far()), merging)
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

/// The memory for memtables, as it is.
struct MemoryLeft {
    /// Bytes of full memtables.
    waiting: u64,
    /// Bytes that all memtables in use may still grow by.
    active: u64,
    /// Until the flush under way ends; none if there is none, or nothing is known of its speed.
    relief_s: Option<f64>,
}

/// How far the flush under way is: what writers who have filled their memory wait for.
#[derive(Default)]
pub(crate) struct Flushing {
    began_ns: AtomicU64,
    /// Bytes of the memtable; 0 while none is flushed.
    bytes: AtomicU64,
    /// Bytes of it that are written.
    so_far: AtomicU64,
    /// How long flushes before it were under way.
    busy_ns: AtomicU64,
    /// How long a KiB takes that a flush writes, an average over the last few of them; 0 before the first one's end.
    ns_per_kib: AtomicU64,
    /// How long finishing and syncing a file takes, likewise.
    end_ns: AtomicU64,
}

impl Flushing {
    pub(crate) fn begin(&self, bytes: u64, now_ns: u64) {
        self.began_ns.store(now_ns, Relaxed);
        self.so_far.store(0, Relaxed);
        self.bytes.store(bytes, Relaxed);
    }

    /// `bytes` more are written.
    pub(crate) fn advance(&self, bytes: u64) {
        self.so_far.fetch_add(bytes, Relaxed);
    }

    /// It is over. Its last step took `end_ns`, if it came to that.
    pub(crate) fn end(&self, end_ns: Option<u64>, now_ns: u64) {
        let bytes = self.bytes.swap(0, Relaxed);
        self.so_far.store(0, Relaxed);
        if bytes == 0 {
            return;
        }
        let took_ns = now_ns.saturating_sub(self.began_ns.load(Relaxed));
        self.busy_ns.fetch_add(took_ns, Relaxed);
        if let Some(end_ns) = end_ns {
            let average = |of: &AtomicU64, ns: u64, share: u64| {
                let before = of.load(Relaxed);
                of.store(if before == 0 { ns } else { before - before / share + ns / share }, Relaxed);
            };
            average(&self.end_ns, end_ns, 4);
            // Sooner: it doubles and halves with what else the machine does, as merges that begin.
            average(&self.ns_per_kib, took_ns.saturating_sub(end_ns).saturating_mul(1024) / bytes, 2);
        }
    }

    /// Bytes of it that are written.
    pub(crate) fn so_far(&self) -> u64 {
        self.so_far.load(Relaxed)
    }

    /// How long flushes were under way, in all, about: to whoever looks while one ends, it may be a flush less.
    fn busy_ns(&self, now_ns: u64) -> u64 {
        let is_busy = self.bytes.load(Relaxed) > 0;
        let this_ns = if is_busy { now_ns.saturating_sub(self.began_ns.load(Relaxed)) } else { 0 };
        self.busy_ns.load(Relaxed) + this_ns
    }

    /// When it will be over, in nanoseconds from `now_ns`. It goes on as it went so far, the first quarter of it as the last few did.
    fn left_ns(&self, now_ns: u64) -> Option<f64> {
        let (bytes, so_far) = (self.bytes.load(Relaxed), self.so_far.load(Relaxed));
        if bytes == 0 {
            return None;
        }
        let elapsed = to_f64(now_ns.saturating_sub(self.began_ns.load(Relaxed)));
        let presumed = to_f64(bytes) / 4.0;
        let per_byte = match self.ns_per_kib.load(Relaxed) {
            0 if so_far == 0 => return None,
            0 => elapsed / to_f64(so_far),
            lately => (to_f64(lately) / 1024.0 * presumed + elapsed) / (presumed + to_f64(so_far)),
        };
        Some(to_f64(bytes.saturating_sub(so_far)) * per_byte + to_f64(self.end_ns.load(Relaxed)))
    }
}

impl super::work::Compactions {
    /// Of the runs of L0 of a keyspace those that are merged already, in fractions: the debt sinks while a merge runs, not only at its end.
    fn runs_merged_so_far(&self, keyspace: KeyspaceId) -> f64 {
        self.of(keyspace).map(|running| running.runs_merged_so_far()).sum()
    }

    /// The merge of a keyspace that ends next of those that take runs away: its job, and the bytes that it has still to read; none if no such is
    /// under way.
    fn ending(&self, keyspace: KeyspaceId) -> Option<(u64, u64)> {
        self.of(keyspace).filter_map(|running| running.relief()).min_by_key(|(_, left)| *left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::write_control::{Delay, Limit};

    const MS: u64 = 1_000_000;

    /// Writes `bytes` a millisecond for `ms`, as far as the pauses allow, from `now` on; says when that was done.
    fn write(pace: &Pace, now: &mut u64, ms: u64, bytes: u64) -> u64 {
        for _ in 0..ms {
            *now += MS;
            if let Some(due) = pace.charge(bytes) {
                *now += pace.pause_ns(due, *now);
            }
        }
        *now
    }

    #[test]
    fn writers_keep_the_rate_and_who_is_slower_does_not_pause() {
        let pace = Pace::new(None, &WriteControl::default());
        pace.set_rate(Some(1e6), false, 0);
        let mut now = 1000 * MS;
        assert_eq!(write(&pace, &mut now, 100, 900), 1100 * MS, "900 bytes a millisecond are below the rate");
        let took = write(&pace, &mut now, 100, 2000) - 1100 * MS;
        assert!((185 * MS..=200 * MS).contains(&took), "200,000 bytes at 1,000 a millisecond, less the credit: {took}");
    }

    #[test]
    fn the_calm_catch_up_for_seconds_and_the_urgent_do_not() {
        for (calm, least, most) in [(true, 1000, 1001), (false, 1980, 2000)] {
            let pace = Pace::new(None, &WriteControl::default());
            pace.set_rate(Some(1e6), calm, 0);
            let mut now = 10_000 * MS;
            let took = write(&pace, &mut now, 1000, 2000) - 10_000 * MS;
            assert!((least * MS..=most * MS).contains(&took), "calm {calm}: {took}");
        }
    }

    #[test]
    fn a_time_without_a_price_earns_no_credit_and_takes_none() {
        let pace = Pace::new(None, &WriteControl::default());
        let mut now = 10_000 * MS;
        pace.set_rate(Some(1e6), true, now);
        let took = write(&pace, &mut now, 1000, 2000) - 10_000 * MS;
        assert!((1980 * MS..=2000 * MS).contains(&took), "the first price binds at once: {took}");
        // Half of a second of the price is left unused, and then there is none for a minute.
        now = write(&pace, &mut now, 1000, 500);
        pace.set_rate(None, true, now);
        now += 60_000 * MS;
        pace.set_rate(Some(1e6), true, now);
        let began = now;
        let took = write(&pace, &mut now, 1000, 2000) - began;
        assert!((1480 * MS..=1510 * MS).contains(&took), "that half is there still: {took}");
    }

    #[test]
    fn relief_comes_as_late_as_the_merge_under_way_goes_on() {
        let mut relief = Relief::default();
        assert_eq!((relief.takes_s(8, None), relief.takes_s(4_000_000_000, Some(2.0))), (None, Some(8.0)));
        relief.look(Some((1, 10_000_000_000)), 20 * MS);
        assert_eq!(relief.takes_s(8, None), None, "one look is no speed");
        let mut left = 10_000_000_000;
        let mut go_on = |relief: &mut Relief, looks: u32, bytes: u64| {
            for _ in 0..looks {
                left -= bytes;
                relief.look(Some((1, left)), 20 * MS);
            }
        };
        let slow = |relief: &Relief| relief.takes_s(1_000_000_000, Some(1.0)).map(f64::round);
        go_on(&mut relief, 1, 0);
        assert_eq!(slow(&relief), Some(1.0), "a merge that opens its files has no speed");
        go_on(&mut relief, 9, 5_000_000);
        assert_eq!(
            slow(&relief),
            Some(4.0),
            "250 MB/s, whatever the average, and but a tenth of the time without any progress"
        );
        go_on(&mut relief, 200, 40_000_000);
        let fast = |relief: &Relief| relief.takes_s(2_000_000_000, None).map(f64::round);
        assert_eq!((fast(&relief), relief.takes_s(2_000_000_000, Some(3.0))), (Some(1.0), Some(6.0)), "the slower one");
        relief.look(Some((2, 50)), 60_000 * MS);
        relief.look(None, 20 * MS);
        assert_eq!(fast(&relief), Some(1.0), "another merge, a minute later, says nothing of what was read");
        relief.look(Some((3, 50)), 20 * MS);
        relief.look(Some((3, 50)), 20 * MS);
        assert_eq!(fast(&relief), Some(1.0), "nor is a moment without progress a standstill");
    }

    #[test]
    fn no_pause_is_longer_than_promised_and_what_was_not_paid_is_forgotten() {
        let longest = |stall: Option<u64>, control: WriteControl| {
            let pace = Pace::new(stall.map(Duration::from_millis), &control);
            pace.set_rate(Some(1e3), false, 0);
            let pause = pace.pause_ns(pace.charge(1000).unwrap(), 1000 * MS);
            assert_eq!(pace.pause_ns(Due(0), 1000 * MS + pause), 0);
            pause / MS
        };
        let delay = WriteControl::default();
        let limit = WriteControl::Limit(Limit { rate_bytes_per_s: 1000 });
        assert_eq!((longest(None, delay), longest(Some(3), delay), longest(None, limit)), (8, 3, 990));
        let slow = |least_bytes_per_s| WriteControl::Delay(Delay { least_bytes_per_s, ..Delay::default() });
        assert_eq!((longest(None, slow(6400)), longest(None, slow(1_000_000))), (80, 8), "512 bytes can be paid for");
    }

    #[test]
    fn a_flush_is_expected_to_go_on_as_it_went() {
        let flushing = Flushing::default();
        assert_eq!(flushing.left_ns(0), None, "nothing is flushed");
        flushing.begin(4096, 100);
        assert_eq!(flushing.left_ns(100), None, "and nothing known");
        flushing.advance(1024);
        assert_eq!(flushing.left_ns(6244), Some(18432.0), "6 ns a byte so far");
        flushing.end(Some(700), 8992);
        assert_eq!((flushing.busy_ns(9500), flushing.left_ns(9500)), (8892, None));
        flushing.begin(4096, 10_000);
        assert_eq!(
            flushing.left_ns(10_000),
            Some(8892.0),
            "2 ns a byte before, and the last step takes as long as it did"
        );
        flushing.advance(1024);
        assert_eq!(flushing.left_ns(16_144), Some(12_988.0), "the one before counts as much as a quarter of it");
        assert_eq!(flushing.busy_ns(16_144), 15_036);
        flushing.end(Some(700), 27_084);
        flushing.begin(4096, 30_000);
        assert_eq!(flushing.left_ns(30_000), Some(12_988.0), "4 ns a byte: 3 on average");
        flushing.end(None, 90_000);
        flushing.begin(4096, 90_000);
        assert_eq!(flushing.left_ns(90_000), Some(12_988.0), "what came to nothing says nothing");
        assert_eq!(flushing.so_far(), 0);
    }
}
