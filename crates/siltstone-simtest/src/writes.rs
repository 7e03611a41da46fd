//! What a world does when its client writes: batches, ingests, flushes, keyspaces that come and go.

use std::collections::BTreeMap;

use siltstone::Durability;
use siltstone::io::Rng;
use siltstone::{Batch, ErrorKind, Keyspace, KeyspaceOptions, MergeLimit};

use crate::config::keyspace_options;
use crate::counters::Rare;
use crate::model::Uid;
use crate::ops::{Ack, Value, number};
use crate::store::{Check, broken};
use crate::world::{Change, Live, World};

/// More keyspaces than this do not exist at once.
const MOST_KEYSPACES: usize = 4;

impl World {
    pub(crate) fn write_one(&mut self, slot: usize, key: u32, value: Option<Value>, ack: Ack, seed: u64) -> Check {
        let changes = vec![(self.live[slot].uid, key, value)];
        self.trace_write(&changes);
        let live = &self.live[slot];
        let bytes = &self.config.keys[usize::try_from(key).expect("a small table")];
        let outcome = match value {
            Some(value) => {
                let mut buffer = Vec::new();
                value.fill(&mut buffer);
                if buffer.len() > usize::try_from(live.options.block_bytes).unwrap_or(usize::MAX) {
                    self.counters.reach(Rare::LargeRecord);
                    if buffer.len() as u64 > live.options.memtable_bytes {
                        self.counters.reach(Rare::HugeRecord);
                    }
                }
                if ack == Ack::Buffered && seed.is_multiple_of(2) {
                    live.handle.put(bytes, &buffer)
                } else {
                    live.handle.put_with(bytes, &buffer, durability(ack))
                }
            }
            None => live.handle.delete_with(bytes, durability(ack)),
        };
        self.written(outcome, changes, ack)
    }

    pub(crate) fn write_batch(&mut self, writes: &[crate::ops::Write], ack: Ack) -> Check {
        let mut batch = Batch::new();
        let mut changes = Vec::with_capacity(writes.len());
        let mut buffer = Vec::new();
        for write in writes {
            let live = &self.live[self.slot(write.keyspace)];
            let key = self.key(write.key);
            match write.value {
                Some(value) => {
                    value.fill(&mut buffer);
                    batch.put(&live.handle, self.key_bytes(key), &buffer);
                }
                None => batch.delete(&live.handle, self.key_bytes(key)),
            }
            changes.push((live.uid, key, write.value));
        }
        self.trace_write(&changes);
        let outcome = self.db().write_with(&batch, durability(ack));
        self.written(outcome, changes, ack)
    }

    /// Tells the model of a write that has returned.
    pub(crate) fn written(&mut self, outcome: siltstone::Result<()>, changes: Vec<Change>, ack: Ack) -> Check {
        if self.allow(outcome)?.is_some() {
            let at = self.model.commit(changes, ack != Ack::None);
            if !self.model.losses().is_empty() {
                self.seqs.push((self.db().last_seq().0, at));
            }
            if ack != Ack::None {
                self.floor_kill = at;
            }
            if ack == Ack::Sync {
                self.floor_power = at;
            }
            return Ok(());
        }
        let kind = self.last_error;
        let visible = self.is_visible(&changes)?;
        // A write that was refused has not happened, and may not appear later. Only where the sync of its own record failed is
        // it open: that is what poisons a store, so the refusals that follow leave no doubt either.
        let poisons = kind == Some(ErrorKind::Poisoned) && !std::mem::replace(&mut self.poisoned, true);
        if visible || poisons {
            self.model.doubt(changes, visible);
        }
        Ok(())
    }

    /// Whether reads show a write that failed: all of it or none.
    pub(crate) fn is_visible(&mut self, changes: &[Change]) -> Check<bool> {
        let mut last: BTreeMap<(Uid, u32), Option<Value>> = BTreeMap::new();
        for &(uid, key, value) in changes {
            last.insert((uid, key), value);
        }
        let (mut news, mut olds) = (0, 0);
        let mut buffer = Vec::new();
        self.note_losses();
        for ((uid, key), value) in last {
            let Some(live) = self.live.iter().find(|live| live.uid == uid) else {
                continue;
            };
            let outcome = live.handle.get(self.key_bytes(key));
            let Some(found) = self.allow(outcome)? else {
                continue;
            };
            let at = self.model.last();
            let mut old = self.model.get(uid, key, at);
            // Only what may be lost by now: a deletion that took place must not pass for a loss.
            if found.is_none() && self.model.may_miss(self.model.losses(), uid, key, at) {
                old = None;
            }
            let is_new = crate::model::equal(value, found.as_deref(), &mut buffer);
            let is_old = crate::model::equal(old, found.as_deref(), &mut buffer);
            match (is_new, is_old) {
                (true, true) => {}
                (true, false) => news += 1,
                (false, true) => olds += 1,
                (false, false) => {
                    return broken("after a failed write a key has neither its old nor its new value");
                }
            }
        }
        if news > 0 && olds > 0 {
            return broken("a part of a failed batch is visible");
        }
        Ok(news > 0)
    }

    pub(crate) fn flush(&mut self, which: Option<u8>) -> Check {
        let outcome = match which {
            None => self.db().flush(),
            Some(n) => self.live[self.slot(n)].handle.flush(),
        };
        if self.allow(outcome)?.is_none() {
            return Ok(());
        }
        let last = self.model.last();
        match which {
            Some(n) => {
                let uid = self.live[self.slot(n)].uid;
                self.flushed.insert(uid, last);
            }
            None => {
                self.flushed.extend(self.live.iter().map(|live| (live.uid, last)));
                (self.floor_kill, self.floor_power) = (last, last);
            }
        }
        Ok(())
    }

    pub(crate) fn ingest(&mut self, keyspace: u8, first: u32, by: u32, count: u32, value: Value) -> Check {
        let slot = self.slot(keyspace);
        let keys = number(self.config.keys.len() as u64);
        let mut changes = Vec::new();
        let mut entries = Vec::new();
        for i in 0..count {
            let key = u64::from(self.key(first)) + u64::from(i) * u64::from(by);
            if key >= u64::from(keys) {
                break;
            }
            let value = Value { id: value.id + u64::from(i), len: value.len };
            let mut bytes = Vec::new();
            value.fill(&mut bytes);
            let key = number(key);
            entries.push((self.key_bytes(key).to_vec(), bytes));
            changes.push((self.live[slot].uid, key, Some(value)));
        }
        let sent = entries.len() as u64;
        let outcome = self.live[slot].handle.ingest(entries);
        if let Ok(taken) = &outcome
            && *taken != sent
        {
            return broken(format!("ingest of {sent} records reports {taken}"));
        }
        if outcome.is_ok() && self.overlaps(&changes) {
            self.counters.reach(Rare::IngestOverlapped);
        }
        self.written(outcome.map(|_| ()), changes, Ack::Sync)
    }

    /// Whether a keyspace holds something between the first and the last key of an ingest into it.
    fn overlaps(&self, ingest: &[Change]) -> bool {
        let (Some((uid, first, _)), Some((_, last, _))) = (ingest.first(), ingest.last()) else { return false };
        self.model.scan(*uid, *first..last + 1, self.model.last()).next().is_some()
    }

    pub(crate) fn create_keyspace(&mut self, name: u8, seed: u64) -> Check {
        if self.live.len() == MOST_KEYSPACES {
            return Ok(());
        }
        let name = format!("keyspace-{}", name % 5);
        let options = keyspace_options(&mut Rng::new(seed), self.config.may_lose);
        let exists = self.live.iter().any(|live| live.name == name);
        let outcome = self.db().create_keyspace(&name, options.clone());
        if exists {
            return match outcome {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
                other => self.allow(other.map(|_| ()))?.map_or(Ok(()), |()| broken("a keyspace was created twice")),
            };
        }
        let Some(handle) = self.allow(outcome)? else {
            return self.settle_keyspaces();
        };
        if handle.options() != options {
            return broken("a keyspace has other options than it was created with");
        }
        if self.names_dropped.contains(&name) {
            self.counters.reach(Rare::NameReused);
        }
        self.adopt(name, handle, options);
        Ok(())
    }

    pub(crate) fn adopt(&mut self, name: String, handle: Keyspace, options: KeyspaceOptions) {
        let uid = self.next_uid;
        self.next_uid += 1;
        self.model.create(uid);
        if options.may_lose_oldest {
            self.model.may_lose(uid);
        }
        self.flushed.insert(uid, self.model.last());
        self.live.push(Live {
            uid,
            name,
            handle,
            options,
            came_from: None,
            strategy_in_doubt: None,
            may_lose_in_doubt: None,
        });
    }

    /// Another strategy for a keyspace, perhaps the one that it comes from.
    pub(crate) fn set_strategy(&mut self, slot: usize, strategy: u8, back: bool, seed: u64) -> Check {
        let mut names = crate::config::strategies();
        if self.live[slot].options.may_lose_oldest && seed.is_multiple_of(3) {
            names = crate::config::losing_strategies();
        } else if seed.is_multiple_of(5) {
            self.check_refused(slot)?;
        }
        let drawn = names[usize::from(strategy) % names.len()].clone();
        let live = &self.live[slot];
        let (next, is_back) = match &live.came_from {
            Some(before) if back => (before.clone(), true),
            _ => (drawn, false),
        };
        let (from, handle) = (live.options.strategy.clone(), live.handle.clone());
        if seed.is_multiple_of(4) {
            // A dry run changes nothing, and comes to an end.
            let outcome = handle.plan_switch(&next);
            if let Some(plan) = self.allow(outcome)?
                && !plan.settled
            {
                return broken(format!("the dry run from {from} to {next} does not come to rest: {plan:?}"));
            }
        }
        if is_back && from != next {
            let outcome = handle.switch_progress();
            if self.allow(outcome)?.is_some_and(|progress| !progress.is_done) {
                self.counters.reach(Rare::SwitchedBack);
            }
        }
        if self.probe.is_merging(handle.id()) && from != next {
            self.counters.reach(Rare::SwitchedWhileMerging);
        }
        let outcome = handle.set_strategy(&next);
        let done = self.allow(outcome)?.is_some();
        let live = &mut self.live[slot];
        if done {
            live.came_from = Some(std::mem::replace(&mut live.options.strategy, next));
            live.strategy_in_doubt = None;
        } else if self.last_error == Some(ErrorKind::Poisoned) && live.strategy_in_doubt.is_none() {
            // Only the call that poisons leaves a doubt; those after it are refused.
            live.strategy_in_doubt = Some(next);
        }
        if self.live[slot].handle.options() != self.live[slot].options {
            return broken(format!("after a switch from {from} the keyspace has other options than it should"));
        }
        Ok(())
    }

    /// Allows a keyspace, or forbids it, to lose its oldest data.
    pub(crate) fn set_may_lose(&mut self, slot: usize, may: bool) -> Check {
        if !self.config.may_lose {
            return Ok(());
        }
        // What was lost until now counts later, too.
        self.note_losses();
        let outcome = self.live[slot].handle.set_may_lose_oldest(may);
        if !may && matches!(&outcome, Err(e) if e.kind() == ErrorKind::InvalidArgument) {
            return Ok(());
        }
        let done = self.allow(outcome)?.is_some();
        let live = &mut self.live[slot];
        if done {
            live.options.may_lose_oldest = may;
            // What it came from may be a strategy that is forbidden now.
            live.came_from.take_if(|_| !may);
        } else if self.last_error == Some(ErrorKind::Poisoned) && live.may_lose_in_doubt.is_none() {
            live.may_lose_in_doubt = Some(may);
        }
        if may {
            self.model.may_lose(live.uid);
        }
        if live.handle.options() != live.options {
            return broken("a keyspace that was told whether it may lose data has other options than it should");
        }
        Ok(())
    }

    /// A strategy that loses data is refused where the keyspace does not allow it.
    fn check_refused(&self, slot: usize) -> Check {
        let live = &self.live[slot];
        if live.options.may_lose_oldest {
            return Ok(());
        }
        match live.handle.set_strategy("rocksdb-fifo") {
            Ok(()) => broken("a keyspace that may lose nothing took a strategy that loses the oldest data"),
            Err(_) => Ok(()),
        }
    }

    /// Learns up to which position keyspaces have lost data. Losses are counted anew in each life of the store.
    pub(crate) fn note_losses(&mut self) {
        let ended = self.probe.compactions();
        if self.model.losses().is_empty() || self.losses_seen == ended {
            return;
        }
        self.losses_seen = ended;
        for live in self.live.iter().filter(|live| live.options.may_lose_oldest) {
            let lost = live.handle.stats().lost_up_to;
            if lost > 0 {
                let at = self.seqs.iter().find(|(seq, _)| *seq >= lost).map_or(self.model.last(), |(_, at)| *at);
                self.model.lose_up_to(live.uid, at);
                self.counters.reach(Rare::OldestLost);
            }
        }
    }

    /// Another merge scheduler, and at times another rate limit; and at times a merge under way gets a rate of its own, or is paused for a while.
    pub(crate) fn set_scheduler(&mut self, seed: u64) -> Check {
        if seed.is_multiple_of(5) {
            self.db().set_rate_limit([0, 1 << 20, 16 << 20][usize::from(seed.to_le_bytes()[7] % 3)]);
        }
        let scheduler = crate::config::scheduler(seed);
        let waiting = self.db().merges().iter().any(|merge| !merge.steps);
        if waiting && self.db().scheduler() != scheduler {
            self.counters.reach(Rare::RescheduledWhileWaiting);
        }
        let outcome = self.db().set_scheduler(scheduler);
        if self.allow(outcome)?.is_some() && self.db().scheduler() != scheduler {
            return broken("the store has another scheduler than it was given");
        }
        if let Some(merge) = self.db().merges().first().filter(|_| seed.is_multiple_of(3)) {
            let paused = seed.is_multiple_of(2);
            // Ten seconds for what is left of a merge of huge records: the store has a minute to come to rest.
            let rate = (merge.left_bytes / 10).max(50_000);
            let limit = |paused| MergeLimit { rate_bytes_per_s: if paused { 0 } else { rate }, paused };
            let outcome = self.db().limit_merge(merge.job, limit(paused));
            self.allow(outcome)?;
            if paused {
                let (before, job) = (merge.left_bytes, merge.job);
                for _ in 0..8 {
                    self.machine.executor.step_random();
                }
                let after = self.db().merges().iter().find(|merge| merge.job == job).map(|merge| merge.left_bytes);
                let outcome = self.db().limit_merge(job, limit(false));
                if after.is_some_and(|after| after != before) {
                    return broken(format!("a paused merge went on: {before} bytes were left, then {after:?}"));
                }
                if after.is_some() {
                    self.allow(outcome)?;
                    self.counters.reach(Rare::MergePaused);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn drop_keyspace(&mut self, keyspace: u8) -> Check {
        let slot = self.slot(keyspace);
        if slot == 0 {
            return Ok(());
        }
        let name = self.live[slot].name.clone();
        let outcome = self.db().drop_keyspace(&name);
        if self.allow(outcome)?.is_none() {
            return self.settle_keyspaces();
        }
        let dropped = self.live.remove(slot);
        if self.marks.is_none() {
            self.model.remove(dropped.uid);
        }
        self.names_dropped.push(name);
        if dropped.handle.put(b"late", b"").is_ok() {
            return broken("a put into a dropped keyspace succeeds");
        }
        Ok(())
    }

    /// After a create or drop that failed: takes the store's word for which keyspaces there are.
    pub(crate) fn settle_keyspaces(&mut self) -> Check {
        self.keyspaces_in_doubt = true;
        let names = self.db().list_keyspaces();
        let gone: Vec<Uid> = self.live.iter().filter(|live| !names.contains(&live.name)).map(|live| live.uid).collect();
        for uid in gone {
            self.model.remove(uid);
            self.live.retain(|live| live.uid != uid);
        }
        for name in names {
            if self.live.iter().all(|live| live.name != name) {
                let outcome = self.db().keyspace(&name);
                if let Some(handle) = self.allow(outcome)? {
                    let options = handle.options();
                    self.adopt(name, handle, options);
                }
            }
        }
        Ok(())
    }
}

pub(crate) fn durability(ack: Ack) -> Durability {
    match ack {
        Ack::None => Durability::None,
        Ack::Buffered => Durability::Buffered,
        Ack::Sync => Durability::Sync,
    }
}
