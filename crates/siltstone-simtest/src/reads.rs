//! The checks of a world that read: gets, walks of ranges, everything at once, and the census of files at rest.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use siltstone::Snapshot;
use siltstone::compaction::{Sizes, Strategy};
use siltstone::io::{Clock, Rng};

use crate::counters::Rare;
use crate::model::{Pos, Uid, equal, show};
use crate::ops::{Edge, Value, Walk, index, number};
use crate::store::{Check, FOLDER, Violation, broken};
use crate::world::{REST_NS, World};

/// Handles beside those of tables: log segments, manifest, superblock, lock, what a merge reads and writes.
const OTHER_HANDLES: u64 = 40;

/// Up to which position keyspaces that may lose data have lost some.
type Losses = BTreeMap<Uid, Pos>;

type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

impl World {
    /// The snapshot that a number means, with its position and what was lost before it: what is lost later, it sees still. Without a number
    /// it is the present, which needs no snapshot.
    fn moment(&self, snapshot: Option<u8>) -> (Option<&Snapshot>, Pos, Losses) {
        match snapshot {
            Some(n) if !self.snapshots.is_empty() => {
                let (snapshot, at, losses) = &self.snapshots[usize::from(n) % self.snapshots.len()];
                if *at + 50 < self.model.last() {
                    self.counters.reach(Rare::OldSnapshotRead);
                }
                if *at == 0 && self.model.last() > 0 {
                    self.counters.reach(Rare::EmptySnapshotRead);
                }
                (Some(snapshot), *at, losses.clone())
            }
            _ => (None, self.model.last(), self.model.losses().clone()),
        }
    }

    pub(crate) fn check_get(&mut self, slot: usize, key: u32, snapshot: Option<u8>) -> Check {
        self.note_losses();
        let (snapshot, at, losses) = self.moment(snapshot);
        let live = &self.live[slot];
        let outcome = match snapshot {
            Some(snapshot) => live.handle.get_at(self.key_bytes(key), snapshot),
            None => live.handle.get(self.key_bytes(key)),
        };
        let want = self.model.get(live.uid, key, at);
        let Some(found) = self.allow(outcome)? else {
            return Ok(());
        };
        self.compare(slot, key, want, found.as_deref(), at, &losses)
    }

    fn compare(
        &self,
        slot: usize,
        key: u32,
        want: Option<Value>,
        have: Option<&[u8]>,
        at: Pos,
        losses: &Losses,
    ) -> Check {
        let lost = || have.is_none() && self.model.may_miss(losses, self.live[slot].uid, key, at);
        if equal(want, have, &mut Vec::new()) || lost() {
            return Ok(());
        }
        broken(format!(
            "keyspace {} key #{key} {} at {at} of {}: want {want:?}, have {:?}",
            self.live[slot].name,
            show(self.key_bytes(key)),
            self.model.last(),
            have.map(|value| (value.len(), value[..value.len().min(8)].to_vec())),
        ))
    }

    pub(crate) fn check_multi_get(&mut self, slot: usize, keys: Vec<u32>, snapshot: Option<u8>) -> Check {
        self.note_losses();
        let (snapshot, at, losses) = self.moment(snapshot);
        let live = &self.live[slot];
        let bytes: Vec<&[u8]> = keys.iter().map(|key| self.key_bytes(*key)).collect();
        let found = match snapshot {
            Some(snapshot) => live.handle.multi_get_at(&bytes, snapshot),
            None => live.handle.multi_get(&bytes),
        };
        if found.len() != keys.len() {
            return broken(format!("multi_get of {} keys gives {} answers", keys.len(), found.len()));
        }
        let uid = live.uid;
        for (key, outcome) in keys.into_iter().zip(found) {
            let want = self.model.get(uid, key, at);
            if let Some(have) = self.allow(outcome)? {
                self.compare(slot, key, want, have.as_deref(), at, &losses)?;
            }
        }
        Ok(())
    }

    /// The bounds that two edges mean.
    pub(crate) fn bounds(&self, from: Option<Edge>, to: Option<Edge>) -> Bounds {
        let bound = |edge: Option<Edge>| match edge {
            None => Bound::Unbounded,
            Some(edge) => {
                let mut key = self.key_bytes(edge.key).to_vec();
                match edge.tweak {
                    1 => key.push(0),
                    2 => drop(key.pop()),
                    3 => key.push(0xff),
                    _ => {}
                }
                if edge.inclusive { Bound::Included(key) } else { Bound::Excluded(key) }
            }
        };
        (bound(from), bound(to))
    }

    /// The numbers of the keys within bounds.
    fn numbers(&self, bounds: &Bounds) -> std::ops::Range<u32> {
        let keys = self.model.keys();
        let low = match &bounds.0 {
            Bound::Unbounded => 0,
            Bound::Included(edge) => keys.partition_point(|key| key < edge),
            Bound::Excluded(edge) => keys.partition_point(|key| key <= edge),
        };
        let high = match &bounds.1 {
            Bound::Unbounded => keys.len(),
            Bound::Included(edge) => keys.partition_point(|key| key <= edge),
            Bound::Excluded(edge) => keys.partition_point(|key| key < edge),
        };
        number(low as u64)..number(high.max(low) as u64)
    }

    pub(crate) fn check_range(
        &mut self,
        slot: usize,
        from: Option<Edge>,
        to: Option<Edge>,
        walk: Walk,
        limit: u32,
        snapshot: Option<u8>,
    ) -> Check {
        let bounds = self.bounds(from, to);
        self.note_losses();
        let (snapshot, at, losses) = self.moment(snapshot);
        let live = &self.live[slot];
        let outcome = match snapshot {
            Some(snapshot) => live.handle.range_at(bounds.clone(), snapshot),
            None => live.handle.range(bounds.clone()),
        };
        let Some(range) = self.allow(outcome)? else {
            return Ok(());
        };
        let numbers = self.numbers(&bounds);
        self.walk(slot, range, numbers, (at, losses), walk, limit).map_err(|v| Violation(format!("{bounds:?} {}", v.0)))
    }

    pub(crate) fn check_prefix(
        &mut self,
        slot: usize,
        key: u32,
        len: u8,
        reverse: bool,
        snapshot: Option<u8>,
    ) -> Check {
        let key = self.key_bytes(key);
        let prefix = key[..key.len().min(usize::from(len))].to_vec();
        self.note_losses();
        let (snapshot, at, losses) = self.moment(snapshot);
        let live = &self.live[slot];
        let outcome = match snapshot {
            Some(snapshot) => live.handle.prefix_at(&prefix, snapshot),
            None => live.handle.prefix(&prefix),
        };
        let keys = self.model.keys();
        let low = keys.partition_point(|key| key[..] < prefix[..]);
        let len = keys[low..].partition_point(|key| key.starts_with(&prefix));
        let numbers = number(low as u64)..number((low + len) as u64);
        let Some(range) = self.allow(outcome)? else {
            return Ok(());
        };
        let walk = if reverse { Walk::Reverse } else { Walk::Forward };
        self.walk(slot, range, numbers, (at, losses), walk, u32::MAX)
            .map_err(|v| Violation(format!("prefix {} {}", show(&prefix), v.0)))
    }

    /// Walks a range beside the model: the same entries in the same order, and no more.
    fn walk(
        &mut self,
        slot: usize,
        mut range: siltstone::Range,
        numbers: std::ops::Range<u32>,
        (at, losses): (Pos, Losses),
        walk: Walk,
        limit: u32,
    ) -> Check {
        let uid = self.live[slot].uid;
        let mut numbers = numbers;
        let end = numbers.end;
        let mut backwards = matches!(walk, Walk::Reverse);
        let mut draws = Rng::new(match walk {
            Walk::BothEnds(seed) | Walk::Seeks(seed) => seed,
            _ => 0,
        });
        let mut buffer = Vec::new();
        for step in 0..limit {
            if matches!(walk, Walk::BothEnds(_)) {
                backwards = draws.one_in(2);
            }
            if matches!(walk, Walk::Seeks(_)) && draws.one_in(4) && !numbers.is_empty() {
                let target = numbers.start + number(draws.below(u64::from(numbers.end - numbers.start)));
                let outcome = range.seek(self.key_bytes(target));
                if self.allow(outcome)?.is_none() {
                    return Ok(());
                }
                // The back begins anew.
                numbers = target..end;
                backwards = draws.one_in(2);
            }
            let have = if matches!(walk, Walk::Lending) {
                range
                    .advance()
                    .map(|there| there.then(|| (range.key().to_vec().into(), range.value().to_vec().into())))
                    .transpose()
            } else if backwards {
                range.next_back()
            } else {
                range.next()
            };
            let found = match &have {
                Some(Ok((key, _))) => self.model.key_number(key),
                _ => None,
            };
            // What may be lost is passed by, up to what was found.
            let passes = |want: &(u32, Value)| {
                found == Some(want.0)
                    || !self.model.may_miss(&losses, uid, want.0, at)
                    || found.is_some_and(|found| if backwards { want.0 < found } else { found < want.0 })
            };
            let mut expected = self.model.scan(uid, numbers.clone(), at);
            let want = if backwards { expected.rfind(passes) } else { expected.find(passes) };
            drop(expected);
            match (want, have) {
                (None, None) => {
                    if matches!(walk, Walk::BothEnds(_)) && step > 1 {
                        self.counters.reach(Rare::EndsMet);
                    }
                    return Ok(());
                }
                (_, Some(Err(error))) => {
                    self.allow::<()>(Err(error))?;
                    // The error is sticky: no entry may follow it.
                    return match range.next() {
                        Some(Ok(_)) => broken("a range goes on after an error"),
                        _ => Ok(()),
                    };
                }
                (Some((key, value)), Some(Ok((have_key, have_value)))) => {
                    let right =
                        have_key[..] == *self.key_bytes(key) && equal(Some(value), Some(&have_value[..]), &mut buffer);
                    if !right {
                        return broken(format!(
                            "{walk:?} at {at} of {} in {}: want key #{key} {} {value:?}, have {} ({} bytes)",
                            self.model.last(),
                            self.live[slot].name,
                            show(self.key_bytes(key)),
                            show(&have_key),
                            have_value.len()
                        ));
                    }
                    if backwards {
                        numbers.end = key;
                    } else {
                        numbers.start = key + 1;
                    }
                }
                (Some((key, _)), None) => {
                    return broken(format!(
                        "{walk:?} at {at} of {} in {} ends before key #{key} {}",
                        self.model.last(),
                        self.live[slot].name,
                        show(self.key_bytes(key))
                    ));
                }
                (None, Some(Ok((key, _)))) => {
                    return broken(format!(
                        "{walk:?} at {at} of {} in {} goes on to {}",
                        self.model.last(),
                        self.live[slot].name,
                        show(&key)
                    ));
                }
            }
        }
        Ok(())
    }

    /// Compares everything: each keyspace now, one keyspace at each snapshot, and the laws of the trees.
    pub(crate) fn check_all(&mut self, seed: u64) -> Check {
        let mut draws = Rng::new(seed);
        let everything: Bounds = (Bound::Unbounded, Bound::Unbounded);
        let all = 0..number(self.config.keys.len() as u64);
        for slot in 0..self.live.len() {
            let walk = if draws.one_in(2) { Walk::Lending } else { Walk::Reverse };
            let outcome = self.live[slot].handle.range::<Vec<u8>>(everything.clone());
            if let Some(range) = self.allow(outcome)? {
                self.note_losses();
                let now = (self.model.last(), self.model.losses().clone());
                self.walk(slot, range, all.clone(), now, walk, u32::MAX)?;
            }
        }
        for snapshot in 0..self.snapshots.len() {
            let slot = index(&mut draws, self.live.len() as u64);
            let (held, at, losses) = &self.snapshots[snapshot];
            let (at, losses) = (*at, losses.clone());
            let outcome = self.live[slot].handle.range_at::<Vec<u8>>(everything.clone(), held);
            if let Some(range) = self.allow(outcome)? {
                let walk = if draws.one_in(2) { Walk::Lending } else { Walk::Reverse };
                self.walk(slot, range, all.clone(), (at, losses), walk, u32::MAX)
                    .map_err(|v| Violation(format!("snapshot at {at}: {}", v.0)))?;
            }
        }
        self.check_trees()?;
        let handles = self.machine.fs.open_handles();
        // A merge opens one file of each run that it reads, and one that it writes; as many lanes as there are may share it.
        let trees = self.live.iter().map(|live| live.handle.tree());
        let runs: usize = trees.map(|tree| tree.levels.iter().map(|level| level.runs.len()).sum::<usize>()).sum();
        let merges = u64::from(self.options.compaction_threads).pow(2) * (runs as u64 + 1);
        let limit = u64::from(self.options.max_open_files) + OTHER_HANDLES + merges;
        if handles > limit {
            return broken(format!("{handles} files are open, the limit is {limit}"));
        }
        Ok(())
    }

    /// The laws of every tree: files exist with the size that the tree says, in one place each; runs are sorted and disjoint
    /// and stand by age. Returns the files that trees name.
    fn check_trees(&self) -> Check<BTreeSet<String>> {
        let sizes: BTreeMap<String, u64> = self
            .machine
            .fs
            .files()
            .into_iter()
            .filter(|(path, _)| path.starts_with(FOLDER))
            .filter_map(|(path, bytes)| Some((path.file_name()?.to_str()?.to_owned(), bytes)))
            .collect();
        let mut named = BTreeSet::new();
        for live in &self.live {
            let tree = live.handle.tree();
            for level in &tree.levels {
                let mut newer = u64::MAX;
                for run in &level.runs {
                    let place = format!("{} level {} run {}", live.name, level.level, run.order);
                    if run.order >= newer {
                        return broken(format!("{place} stands behind run {newer}"));
                    }
                    newer = run.order;
                    if run.files.is_empty() {
                        return broken(format!("{place} is empty"));
                    }
                    for pair in run.files.windows(2) {
                        if pair[0].largest >= pair[1].smallest {
                            return broken(format!("{place}: files {:?} and {:?} overlap", pair[0].id, pair[1].id));
                        }
                    }
                    for file in &run.files {
                        if file.smallest > file.largest || file.min_seq > file.max_seq || file.entries == 0 {
                            return broken(format!("{place}: {file:?} is not in order"));
                        }
                        let name = format!("{:06}.sst", file.table().0);
                        if file.whole.is_some() {
                            self.counters.reach(Rare::Slice);
                        }
                        match sizes.get(&name) {
                            None => return broken(format!("{place}: {name} does not exist")),
                            Some(bytes) if *bytes != file.table_bytes() => {
                                return broken(format!(
                                    "{place}: {name} has {bytes} bytes, the tree says {}",
                                    file.table_bytes()
                                ));
                            }
                            Some(_) => {}
                        }
                        if file.table() != file.id {
                            self.counters.reach(Rare::Linked);
                        }
                        if !named.insert(name.clone()) && file.whole.is_none() {
                            return broken(format!("{place}: {name} stands in two places"));
                        }
                    }
                }
            }
        }
        Ok(named)
    }

    /// At rest a strategy that drops the oldest data holds less than its limit, unless a snapshot sees the data.
    fn check_limits(&self) -> Check {
        for live in self.live.iter().filter(|live| live.options.may_lose_oldest) {
            let Ok(strategy) = Strategy::resolve(&live.options.strategy) else { continue };
            let limits = strategy.rules.iter().map(|rule| rule.trigger.limit_bytes(Sizes::from(&live.options)));
            let limit = limits.min().unwrap_or(u64::MAX);
            let bytes: u64 = live.handle.stats().levels.iter().map(|level| level.bytes).sum();
            if bytes < limit {
                continue;
            }
            if self.snapshots.is_empty() {
                return broken(format!("at rest {} holds {bytes} bytes, its limit is {limit}", live.name));
            }
            self.counters.reach(Rare::LossWaited);
        }
        Ok(())
    }

    /// Lets everything come to rest, within a virtual minute (R13), and counts what is left (R17): no file that nothing
    /// names but those that are kept to be written over, one manifest, few logs.
    pub(crate) fn rest(&mut self) -> Check {
        let start = self.machine.clock.mono_ns();
        let outcome = self.db().wait_idle();
        let rested = self.allow(outcome)?.is_some();
        let took = self.machine.clock.mono_ns() - start;
        if took > REST_NS {
            return broken(format!("the store came to rest only after {} virtual seconds", took / 1_000_000_000));
        }
        if !rested || self.tolerant || self.messy {
            return Ok(());
        }
        self.check_limits()?;
        self.machine.executor.run_until_idle();
        if !self.db().merges().is_empty() {
            // A date has come since, and what it makes due waits for bandwidth: what it writes has no name in a tree yet.
            return Ok(());
        }
        let named = self.check_trees()?;
        let mut manifests = 0;
        let (mut log_bytes, mut unnamed_bytes) = (0, 0);
        for (path, bytes) in self.machine.fs.files() {
            if !path.starts_with(FOLDER) {
                continue;
            }
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.ends_with(".sst") {
                unnamed_bytes += if named.contains(name) { 0 } else { bytes };
            } else if name.ends_with(".log") {
                log_bytes += bytes;
            } else if name.starts_with("MANIFEST-") {
                manifests += 1;
            } else if !["SUPERBLOCK", "LOCK", "DECISIONS", "DECISIONS.new"].contains(&name) {
                return broken(format!("at rest there is a file {name}"));
            }
        }
        let spare_bytes = self.db().stats().spare_bytes;
        if unnamed_bytes != spare_bytes {
            return broken(format!(
                "at rest no tree names {unnamed_bytes} bytes of tables, of which {spare_bytes} are kept to be written over"
            ));
        }
        if manifests != 1 {
            return broken(format!("at rest there are {manifests} manifests"));
        }
        // What memtables hold on to, the segment in use, the one prepared, and one oversized record.
        let log = &self.options.log;
        let limit = log.max_bytes + 4 * log.segment_bytes + 2_000_000;
        if log_bytes > limit {
            return broken(format!("at rest the log has {log_bytes} bytes, more than {limit}"));
        }
        Ok(())
    }
}
