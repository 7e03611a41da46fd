//! What is remembered of each operation.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;

use anyhow::{Result, bail};
use bytes::Bytes;
use siltstone::key::hash;
use siltstone::trace::{Op, TraceEnd, Write};
use siltstone::version::KeyspaceId;
use siltstone::{Durability, prefix_bounds};

use super::super::{Source, name_of};
use super::arrivals::Times;
use super::laws::{Accesses, fit_sizes};
use super::{OpFit, PhaseFit};
use crate::num::{count, float, ratio};
use crate::workload::OpKind;

/// How often each size came.
pub(super) type Sizes = BTreeMap<u64, u64>;

/// The keys of the trace, by a hash of keyspace and key.
#[derive(Default)]
pub(super) struct Population {
    /// Its number, counted by when it was seen as stored first.
    numbers: HashMap<u64, u32>,
    /// Keys that a read found before any write stored them.
    found_first: u64,
    inserts: u64,
    ascending: u64,
    last_insert: Vec<u8>,
    pub(super) key_bytes: Sizes,
    pub(super) value_bytes: Sizes,
    names: BTreeMap<KeyspaceId, (String, u64)>,
    knows_found: bool,
}

impl Population {
    pub(super) fn keys(&self) -> u64 {
        count(self.numbers.len())
    }

    /// The keys that were there before, as far as anyone can tell: where a read finds a key that no put has stored, any key may have been there
    /// before its first put, and they are all taken for old.
    pub(super) fn preloaded(&self) -> u64 {
        if self.found_first == 0 { 0 } else { self.keys() }
    }

    pub(super) fn sorted_inserts(&self) -> f64 {
        ratio(self.ascending, self.inserts.saturating_sub(1))
    }

    /// Names of keyspaces and how many of the operations were in each.
    pub(super) fn keyspaces(&self) -> Vec<(String, u64)> {
        let used = self.names.iter().filter(|(_, (_, used))| *used > 0);
        used.map(|(id, (name, used))| (name_of(*id, name), *used)).collect()
    }
}

/// What is remembered of a kind in a phase.
#[derive(Default)]
struct Seen {
    count: u64,
    /// Of inserts: keys that had been deleted.
    reused: u64,
    accesses: Accesses,
    lengths: Sizes,
    prefixes: Sizes,
}

#[derive(Default)]
struct Phase {
    /// Its puts choose among all keys, stored or not.
    fills: bool,
    operations: u64,
    /// Each has a time, so a read-modify-write is two of them.
    calls: u64,
    lookups: u64,
    empty: u64,
    batches: Sizes,
    durabilities: BTreeMap<&'static str, u64>,
    times: Times,
    kinds: BTreeMap<OpKind, Seen>,
}

/// Reads a trace, for the first or the second time.
pub(super) struct Observer<'a> {
    /// While it is read first, who learns; later what was learnt.
    learning: Option<&'a mut Population>,
    learnt: Option<&'a Population>,
    /// The operation at which each phase ends but the last.
    borders: Vec<u64>,
    phases: Vec<Phase>,
    is_untimed: bool,
    done: u64,
    /// Keys that are known to be stored at this point of the second reading: their numbers are below this.
    stored: u32,
    /// Hashes of the keys that were deleted and not stored again.
    gone: HashSet<u64>,
    /// A lookup whose key the next operation may store.
    looked: Option<(u64, u32)>,
    lost: u64,
    left_out: u64,
    unbounded: u64,
    dropped: u64,
}

impl<'a> Observer<'a> {
    pub(super) fn first(population: &'a mut Population, is_untimed: bool) -> Observer<'a> {
        Observer { learning: Some(population), ..Observer::new(is_untimed, Vec::new()) }
    }

    pub(super) fn second(population: &'a Population, parts: &[(u64, bool)], is_untimed: bool) -> Observer<'a> {
        let preloaded = if population.preloaded() > 0 { u32::MAX } else { 0 };
        let borders = parts.iter().map(|(end, _)| *end).take(parts.len().saturating_sub(1)).collect();
        let mut observer =
            Observer { learnt: Some(population), stored: preloaded, ..Observer::new(is_untimed, borders) };
        for (phase, (_, fills)) in observer.phases.iter_mut().zip(parts) {
            phase.fills = *fills;
        }
        observer
    }

    fn new(is_untimed: bool, borders: Vec<u64>) -> Observer<'static> {
        let phases = (0..=borders.len()).map(|_| Phase::default()).collect();
        Observer {
            learning: None,
            learnt: None,
            borders,
            phases,
            is_untimed,
            done: 0,
            stored: 0,
            gone: HashSet::new(),
            looked: None,
            lost: 0,
            left_out: 0,
            unbounded: 0,
            dropped: 0,
        }
    }

    /// Reads everything; `each` is told the kind of each operation.
    pub(super) fn read(
        &mut self,
        source: &mut Source,
        watch: &mut dyn FnMut(u64, f64) -> bool,
        each: &mut dyn FnMut(OpKind, u64),
    ) -> Result<()> {
        if let Some(population) = &mut self.learning {
            population.knows_found = matches!(source, Source::Trace(_)) && !self.is_untimed;
        }
        let mut calls = 0u64;
        while let Some(step) = source.step()? {
            calls += 1;
            self.see(step.at_ns, &step.op, each)?;
            if calls.is_multiple_of(1 << 12) {
                let (bytes, read) = source.progress();
                if !watch(self.done, ratio(read, bytes)) {
                    bail!("ended before the trace was read: nothing is known of it yet");
                }
            }
        }
        Ok(())
    }

    fn see(&mut self, at_ns: u64, op: &Op, each: &mut dyn FnMut(OpKind, u64)) -> Result<()> {
        match op {
            Op::Keyspace { id, name } => {
                if let Some(population) = &mut self.learning {
                    population.names.entry(*id).or_default().0.clone_from(name);
                }
                return Ok(());
            }
            Op::Lost { operations } => {
                self.lost += operations;
                return Ok(());
            }
            Op::DropKeyspace { .. } => {
                self.dropped += 1;
                return Ok(());
            }
            _ => {}
        }
        if !self.is_untimed {
            self.phase().times.add(at_ns);
        }
        self.phase().calls += 1;
        match op {
            Op::Write(write, durability) => {
                *self.phase().batches.entry(1).or_default() += 1;
                self.durable(*durability);
                self.write(write, each)
            }
            Op::Batch(writes, durability) => {
                *self.phase().batches.entry(count(writes.len())).or_default() += 1;
                self.durable(*durability);
                writes.iter().try_for_each(|write| self.write(write, each))
            }
            Op::Get { keyspace, key, found } => self.get(*keyspace, key, found.is_some(), each),
            Op::MultiGet { keyspace, keys } => {
                let mut first = None;
                for (at, (key, found)) in keys.iter().enumerate() {
                    let is_there = self.look(*keyspace, key, found.is_some());
                    let number = self.number(*keyspace, key, is_there)?;
                    first = if at == 0 { number } else { first };
                }
                self.add(OpKind::MultiGet, first, Some(count(keys.len())), each);
                Ok(())
            }
            Op::Range { keyspace, lower, upper, forward, backward, .. } => {
                self.range(*keyspace, (lower, upper), *forward, *backward, each)
            }
            Op::DeleteRange { keyspace, lower, .. } => {
                let number = self.number(*keyspace, lower, false)?;
                self.add(OpKind::RangeDelete, number, None, each);
                Ok(())
            }
            Op::Flush { .. } => self.bare(OpKind::Flush, each),
            Op::Compact { .. } => self.bare(OpKind::Compact, each),
            _ => {
                self.left_out += 1;
                Ok(())
            }
        }
    }

    fn phase(&mut self) -> &mut Phase {
        let at = self.borders.partition_point(|border| *border <= self.done);
        &mut self.phases[at]
    }

    fn bare(&mut self, kind: OpKind, each: &mut dyn FnMut(OpKind, u64)) -> Result<()> {
        self.add(kind, None, None, each);
        Ok(())
    }

    fn durable(&mut self, durability: Durability) {
        let name = match durability {
            Durability::Buffered => "buffered",
            Durability::Sync => "sync",
            Durability::None => "none",
        };
        *self.phase().durabilities.entry(name).or_default() += 1;
    }

    /// Counts an operation, on the key of a number if it has one.
    fn add(&mut self, kind: OpKind, number: Option<u32>, length: Option<u64>, each: &mut dyn FnMut(OpKind, u64)) {
        each(kind, self.done);
        let stored = self.stored_keys();
        let phase = self.phase();
        phase.operations += 1;
        let kind = match kind {
            OpKind::Insert | OpKind::Update if phase.fills => OpKind::Upsert,
            kind => kind,
        };
        let seen = phase.kinds.entry(kind).or_default();
        seen.count += 1;
        if let Some(number) = number {
            seen.accesses.add(number, stored);
        }
        if let Some(length) = length {
            *seen.lengths.entry(length).or_default() += 1;
        }
        self.done += 1;
        self.looked = None;
    }

    /// Keys that are stored here, as far as is known.
    fn stored_keys(&self) -> u32 {
        let all = |population: &Population| u32::try_from(population.numbers.len()).unwrap_or(u32::MAX);
        match (&self.learning, self.learnt) {
            (Some(population), _) => all(population),
            (None, Some(population)) => self.stored.min(all(population)),
            (None, None) => 0,
        }
    }

    /// The number of a key, if it is stored; `is_stored` says that it must be.
    fn number(&mut self, keyspace: KeyspaceId, key: &[u8], is_stored: bool) -> Result<Option<u32>> {
        let hash = hash_of(keyspace, key);
        if let Some(population) = self.learnt {
            return Ok(population.numbers.get(&hash).copied());
        }
        let Some(population) = &mut self.learning else { return Ok(None) };
        population.names.entry(keyspace).or_default().1 += 1;
        let known = population.numbers.get(&hash).copied();
        if known.is_none() && is_stored {
            let number = u32::try_from(population.numbers.len());
            let Ok(number) = number else { bail!("more than four billion keys are too many to describe") };
            population.numbers.insert(hash, number);
            *population.key_bytes.entry(count(key.len())).or_default() += 1;
            return Ok(Some(number));
        }
        Ok(known)
    }

    fn write(&mut self, write: &Write, each: &mut dyn FnMut(OpKind, u64)) -> Result<()> {
        let hash = hash_of(write.keyspace, &write.key);
        let known = match (&self.learning, self.learnt) {
            (Some(population), _) => population.numbers.contains_key(&hash),
            (None, Some(population)) => population.numbers.get(&hash).is_some_and(|number| *number < self.stored),
            (None, None) => false,
        };
        let Some(length) = write.value_len else {
            let number = self.number(write.keyspace, &write.key, false)?;
            let is_there = known && self.gone.insert(hash);
            let kind = if is_there { OpKind::Delete } else { OpKind::DeleteMissing };
            self.add(kind, number.filter(|_| is_there), None, each);
            return Ok(());
        };
        let comes_back = known && self.gone.remove(&hash);
        if let Some(population) = &mut self.learning {
            *population.value_bytes.entry(u64::from(length)).or_default() += 1;
            if !known {
                population.inserts += 1;
                population.ascending += u64::from(*population.last_insert < *write.key && population.inserts > 1);
                population.last_insert.clear();
                population.last_insert.extend_from_slice(&write.key);
            }
        }
        let number = self.number(write.keyspace, &write.key, true)?;
        if !known {
            self.stored = self.stored.max(number.map_or(0, |number| number.saturating_add(1)));
            self.add(OpKind::Insert, None, None, each);
        } else if comes_back {
            self.phase().kinds.entry(OpKind::Insert).or_default().reused += 1;
            self.add(OpKind::Insert, None, None, each);
        } else if self.looked.is_some_and(|(looked, _)| looked == hash) {
            self.take_back_get();
            self.add(OpKind::ReadModifyWrite, number, None, each);
        } else {
            self.add(OpKind::Update, number, None, each);
        }
        Ok(())
    }

    /// The lookup just before was the first half of a read-modify-write.
    fn take_back_get(&mut self) {
        self.done -= 1;
        let phase = self.phase();
        if let Some(seen) = phase.kinds.get_mut(&OpKind::Get) {
            seen.count -= 1;
            seen.accesses.take_back();
            phase.operations -= 1;
            phase.lookups -= 1;
        }
    }

    fn look(&mut self, keyspace: KeyspaceId, key: &Bytes, found: bool) -> bool {
        let hash = hash_of(keyspace, key);
        let knows = match (&self.learning, self.learnt) {
            (Some(population), _) => population.knows_found,
            (None, Some(population)) => population.knows_found,
            (None, None) => false,
        };
        let is_there = if knows {
            found
        } else {
            match (&self.learning, self.learnt) {
                _ if self.gone.contains(&hash) => false,
                (Some(population), _) => population.numbers.contains_key(&hash),
                (None, Some(population)) => population.numbers.get(&hash).is_some_and(|n| *n < self.stored),
                (None, None) => false,
            }
        };
        if let Some(population) = &mut self.learning
            && is_there
            && !population.numbers.contains_key(&hash)
        {
            population.found_first += 1;
        }
        let phase = self.phase();
        phase.lookups += 1;
        phase.empty += u64::from(!is_there);
        is_there
    }

    fn get(&mut self, keyspace: KeyspaceId, key: &Bytes, found: bool, each: &mut dyn FnMut(OpKind, u64)) -> Result<()> {
        if !self.look(keyspace, key, found) {
            self.number(keyspace, key, false)?;
            self.add(OpKind::GetMissing, None, None, each);
            return Ok(());
        }
        let number = self.number(keyspace, key, true)?;
        self.add(OpKind::Get, number, None, each);
        self.looked = number.map(|number| (hash_of(keyspace, key), number));
        Ok(())
    }

    fn range(
        &mut self,
        keyspace: KeyspaceId,
        (lower, upper): (&Bound<Bytes>, &Bound<Bytes>),
        forward: u64,
        backward: u64,
        each: &mut dyn FnMut(OpKind, u64),
    ) -> Result<()> {
        let (kind, read) = match (forward, backward) {
            (u64::MAX, _) => (OpKind::Scan, None),
            (0, backward) if backward > 0 => (OpKind::ScanReverse, Some(backward)),
            (forward, backward) => (OpKind::Scan, Some(forward + backward)),
        };
        let from = if kind == OpKind::ScanReverse { upper } else { lower };
        let (Bound::Included(key) | Bound::Excluded(key)) = from else {
            self.unbounded += 1;
            self.add(kind, None, read, each);
            return Ok(());
        };
        let (first, behind) = prefix_bounds(key);
        let borrowed = |bound: &Bound<Vec<u8>>| bound.as_ref().map(|key| Bytes::copy_from_slice(key));
        let is_prefix = kind == OpKind::Scan && borrowed(&first) == *lower && borrowed(&behind) == *upper;
        let number = self.number(keyspace, key, false)?;
        if is_prefix {
            *self.phase().kinds.entry(OpKind::ScanPrefix).or_default().prefixes.entry(count(key.len())).or_default() +=
                1;
            self.add(OpKind::ScanPrefix, number, read, each);
        } else {
            self.add(kind, number, read, each);
        }
        Ok(())
    }

    /// What a spec cannot say of what was read.
    pub(super) fn notes(&self, source: &Source) -> Vec<String> {
        let mut notes = Vec::new();
        let mut note = |n: u64, what: &str| {
            if n > 0 {
                notes.push(format!("{n} {what}"));
            }
        };
        note(self.lost, "operations are missing in the trace: they came faster than it could be written");
        note(self.left_out, "ingestions are left out: their keys are not in the trace");
        note(self.dropped, "keyspaces were dropped, which a spec does not do");
        note(self.unbounded, "ranges began at no key; the spec begins them at one");
        if let Some(TraceEnd::Torn(at)) = source.end() {
            notes.push(format!("the trace breaks off at byte {at}"));
        }
        if source.header().hashed_beyond.is_some() {
            notes.push("the keys are hashes: their order is not the true one".to_owned());
        }
        notes
    }

    /// The phases as they were observed.
    pub(super) fn phases(self) -> Vec<PhaseFit> {
        let is_untimed = self.is_untimed;
        let phases = self.phases.into_iter().filter(|phase| phase.operations > 0);
        phases.enumerate().map(|(at, phase)| phase.fit(at, is_untimed)).collect()
    }
}

impl Phase {
    /// A lookup and a put of one key meet by chance as well: few such pairs are no read-modify-writes.
    fn part_chance_pairs(&mut self) {
        let updates = self.kinds.get(&OpKind::Update).map_or(0, |seen| seen.count);
        let pairs = self.kinds.get(&OpKind::ReadModifyWrite).map_or(0, |seen| seen.count);
        if 5 * pairs >= updates {
            return;
        }
        self.kinds.remove(&OpKind::ReadModifyWrite);
        self.kinds.entry(OpKind::Update).or_default().count += pairs;
        self.kinds.entry(OpKind::Get).or_default().count += pairs;
        self.operations += pairs;
        self.lookups += pairs;
    }

    fn fit(mut self, at: usize, is_untimed: bool) -> PhaseFit {
        self.part_chance_pairs();
        let only = |kind| self.kinds.keys().all(|seen| *seen == kind);
        let is_load = only(OpKind::Insert) || only(OpKind::Upsert);
        let mix: Vec<OpFit> = self
            .kinds
            .iter()
            .filter(|(_, seen)| seen.count > 0)
            .map(|(kind, seen)| OpFit {
                kind: kind.name(),
                count: seen.count,
                reused: seen.reused,
                share: ratio(seen.count, self.operations),
                access: seen.accesses.fit(),
                length: (!seen.lengths.is_empty()).then(|| fit_sizes(&seen.lengths)),
                prefix_bytes: (!seen.prefixes.is_empty()).then(|| mean(&seen.prefixes).max(1)),
            })
            .collect();
        PhaseFit {
            name: if at == 0 && is_load { "load".to_owned() } else { format!("part-{}", at + 1) },
            operations: self.operations,
            elapsed_s: (!is_untimed).then(|| self.times.elapsed_s()),
            batch: mean(&self.batches).max(1),
            empty_lookups: (self.lookups > 0).then(|| ratio(self.empty, self.lookups)),
            arrivals: self.times.fit(float(self.operations) / float(self.calls.max(1))),
            mix,
            durability: self.durabilities.iter().max_by_key(|(_, n)| **n).map_or("buffered", |(name, _)| *name),
        }
    }
}

/// The mean of sizes, rounded.
fn mean(sizes: &Sizes) -> u64 {
    let n: u64 = sizes.values().sum();
    let sum: u64 = sizes.iter().map(|(size, n)| size * n).sum();
    crate::num::floor(ratio(sum, n).round())
}

fn hash_of(keyspace: KeyspaceId, key: &[u8]) -> u64 {
    hash(key) ^ (u64::from(keyspace.0) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
