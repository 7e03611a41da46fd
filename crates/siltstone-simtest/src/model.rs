//! What the store should hold: every version of every key, by position in the one order of acknowledged writes.
//!
//! The model is deliberately a different program from the engine: no code is shared, a key is a number in a sorted table, a
//! version is a position. Each acknowledged write (a whole batch, an ingest) is one position. After a crash the store must equal
//! the model at *some* position that is neither before the last durable one nor after the last begun one; [`Model::positions`]
//! finds all that fit in one pass over the versions. Where some writes are not logged a keyspace has all of them up to what it has flushed,
//! and beyond that only those that are: [`Model::mixed_positions`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::ops::Value;

/// A position in the order of writes; 0 is the empty store.
pub type Pos = u64;

/// The number of a keyspace, never used twice in a world (a name may be).
pub type Uid = u64;

/// What a recovered keyspace holds: key number and value, ascending.
pub type Contents = Vec<(u32, Vec<u8>)>;

/// The whole history of a world.
#[derive(Clone)]
pub struct Model {
    keys: Arc<Vec<Vec<u8>>>,
    /// The live keyspaces' histories, key by key, oldest version first.
    keyspaces: BTreeMap<Uid, Vec<Vec<Version>>>,
    last: Pos,
    /// Keyspaces that may lose their oldest data: the last position of which something has been lost.
    losing: BTreeMap<Uid, Pos>,
    /// Positions whose call failed: they may or may not have happened, whatever is read meanwhile.
    doubtful: Vec<Doubtful>,
}

/// One version of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Version {
    at: Pos,
    value: Option<Value>,
    /// It is in the log, or durable since it was written.
    logged: bool,
}

/// A write that returned an error: it may appear, whole, after a reopen.
#[derive(Clone, Debug)]
struct Doubtful {
    at: Pos,
    writes: Vec<(Uid, u32, Option<Value>)>,
}

/// Why a recovered store is wrong.
#[derive(Debug)]
pub struct Mismatch(pub String);

impl Model {
    /// The model of an empty store over these keys.
    pub fn new(keys: Arc<Vec<Vec<u8>>>) -> Model {
        Model { keys, keyspaces: BTreeMap::new(), last: 0, losing: BTreeMap::new(), doubtful: Vec::new() }
    }

    /// The table of keys.
    pub fn keys(&self) -> &Arc<Vec<Vec<u8>>> {
        &self.keys
    }

    /// The number of a key of the table.
    pub fn key_number(&self, key: &[u8]) -> Option<u32> {
        self.keys.binary_search_by(|probe| probe[..].cmp(key)).ok().map(|i| u32::try_from(i).expect("a small table"))
    }

    /// The last position.
    pub fn last(&self) -> Pos {
        self.last
    }

    /// A keyspace comes into being, empty.
    pub fn create(&mut self, keyspace: Uid) {
        self.keyspaces.insert(keyspace, vec![Vec::new(); self.keys.len()]);
    }

    /// A keyspace is gone, with its history.
    pub fn remove(&mut self, keyspace: Uid) {
        self.keyspaces.remove(&keyspace);
        self.losing.remove(&keyspace);
    }

    /// From now on a key of the keyspace may be missing although it was not deleted.
    pub fn may_lose(&mut self, keyspace: Uid) {
        self.losing.entry(keyspace).or_insert(0);
    }

    /// Something of these positions has been lost, nothing of later ones.
    pub fn lose_up_to(&mut self, keyspace: Uid, at: Pos) {
        let lost = self.losing.entry(keyspace).or_insert(0);
        *lost = (*lost).max(at);
    }

    /// Up to where each keyspace that may lose data has lost something.
    pub fn losses(&self) -> &BTreeMap<Uid, Pos> {
        &self.losing
    }

    /// Whether a key that is there at `at` may be missing after what was lost: its newest version then is no younger.
    pub fn may_miss(&self, losses: &BTreeMap<Uid, Pos>, keyspace: Uid, key: u32, at: Pos) -> bool {
        let Some(lost) = losses.get(&keyspace) else { return false };
        let versions = self.keyspaces.get(&keyspace).map_or(&[][..], |keys| &keys[index(key)][..]);
        versions.iter().rev().find(|version| version.at <= at).is_some_and(|version| version.at <= *lost)
    }

    /// Takes a recovered keyspace's word for what is missing: losses of the moments before a crash were told to nobody. What it has, may be as
    /// old as the first equal version that could have survived, from the one current at `floor` on: empty values look alike, and only
    /// the old one may be lost later.
    pub fn note_missing(&mut self, keyspace: Uid, found: &Contents, floor: Pos) {
        if !self.losing.contains_key(&keyspace) {
            return;
        }
        let mut found = found.iter().peekable();
        let mut buffer = Vec::new();
        let mut lost = 0;
        for (key, versions) in (0..).zip(self.keyspaces.get_mut(&keyspace).into_iter().flatten()) {
            match found.next_if(|(found, _)| *found == key) {
                Some((_, value)) => {
                    let from = versions.partition_point(|version| version.at <= floor).saturating_sub(1);
                    let oldest = versions[from..].iter().position(|old| equal(old.value, Some(value), &mut buffer));
                    versions.truncate(oldest.map_or(versions.len(), |oldest| from + oldest + 1));
                }
                None => {
                    lost = versions.last().filter(|last| last.value.is_some()).map_or(lost, |last| lost.max(last.at))
                }
            }
        }
        self.lose_up_to(keyspace, lost);
    }

    /// Whether the keyspace is live.
    pub fn has(&self, keyspace: Uid) -> bool {
        self.keyspaces.contains_key(&keyspace)
    }

    /// An acknowledged write, whole. Later entries of one batch win.
    pub fn commit(&mut self, writes: impl IntoIterator<Item = (Uid, u32, Option<Value>)>, logged: bool) -> Pos {
        self.last += 1;
        for (keyspace, key, value) in writes {
            if let Some(versions) = self.keyspaces.get_mut(&keyspace) {
                push(&mut versions[index(key)], Version { at: self.last, value, logged });
            }
        }
        self.last
    }

    /// A write whose call failed. `visible` says whether reads show it now; a crash may show it or not, either way.
    pub fn doubt(&mut self, writes: Vec<(Uid, u32, Option<Value>)>, visible: bool) {
        if visible {
            self.commit(writes.iter().copied(), true);
        } else {
            self.last += 1;
        }
        self.doubtful.push(Doubtful { at: self.last, writes });
    }

    /// How many writes are in doubt.
    pub fn doubtful(&self) -> usize {
        self.doubtful.len()
    }

    /// The value of a key at a position.
    #[inline]
    pub fn get(&self, keyspace: Uid, key: u32, at: Pos) -> Option<Value> {
        let versions = &self.keyspaces.get(&keyspace)?[index(key)];
        versions.iter().rev().find(|version| version.at <= at).and_then(|version| version.value)
    }

    /// The present entries of a keyspace at a position whose key numbers lie in `keys`.
    pub fn scan(
        &self,
        keyspace: Uid,
        keys: std::ops::Range<u32>,
        at: Pos,
    ) -> impl DoubleEndedIterator<Item = (u32, Value)> + '_ {
        keys.filter_map(move |key| self.get(keyspace, key, at).map(|value| (key, value)))
    }

    /// Checks what a recovered store holds. Returns the latest position in `allowed` that it equals, together with the
    /// doubtful writes to leave out (a bit each).
    ///
    /// # Errors
    /// What differs at the position that fits best.
    pub fn positions(
        &self,
        recovered: &BTreeMap<Uid, Contents>,
        allowed: RangeInclusive<Pos>,
    ) -> Result<(Pos, u64), Mismatch> {
        let mut best: Option<(usize, Pos, u64)> = None;
        let subsets = 1u64 << self.doubtful.len().min(6);
        for without in 0..subsets {
            let model = if self.doubtful.is_empty() { None } else { Some(self.settled(without)) };
            let model = model.as_ref().unwrap_or(self);
            let wrong = model.wrong_keys(recovered);
            for at in allowed.clone().rev() {
                let wrong = wrong[usize::try_from(at).expect("positions fit memory")];
                if wrong == 0 {
                    return Ok((at, without));
                }
                if best.is_none_or(|(fewest, ..)| wrong < fewest) {
                    best = Some((wrong, at, without));
                }
            }
        }
        let (_, at, without) = best.unwrap_or((0, *allowed.end(), 0));
        Err(Mismatch(format!(
            "recovered state equals no position of {allowed:?} (last {}, {} in doubt); nearest is {at}: {}",
            self.last,
            self.doubtful.len(),
            self.settled(without).differences(recovered, at)
        )))
    }

    /// Checks what a recovered store holds in which some writes were not logged: the log up to one position of `allowed`, for all keyspaces the
    /// same, and of each keyspace everything up to a position that is no younger, nor older than what it is known to have `flushed`. (A table is
    /// durable only after the log of what is older than it.) Returns the latest such position of the log, and for each keyspace the first and the
    /// last up to which it may have flushed.
    ///
    /// # Errors
    /// Which keyspaces are in no such state if the whole log is there.
    pub fn mixed_positions(
        &self,
        recovered: &BTreeMap<Uid, Contents>,
        allowed: RangeInclusive<Pos>,
        flushed: &BTreeMap<Uid, Pos>,
    ) -> Result<(Pos, BTreeMap<Uid, RangeInclusive<Pos>>), Mismatch> {
        let versions = || self.keyspaces.values().flatten().flatten();
        let logged: BTreeSet<Pos> = versions().filter(|version| version.logged).map(|version| version.at).collect();
        let found: Vec<(Uid, Vec<Found>)> =
            recovered.iter().filter_map(|(uid, contents)| Some((*uid, self.compare(*uid, contents)?))).collect();
        let fits = |log: Pos| -> BTreeMap<Uid, RangeInclusive<Pos>> {
            let known = |uid| flushed.get(uid).copied().unwrap_or(0).min(log);
            found.iter().filter_map(|(uid, keys)| Some((*uid, flushed_positions(keys, log, known(uid))?))).collect()
        };
        // A log that ends before an unlogged write and one that ends after it are the same.
        let ends = allowed.clone().rev().filter(|at| at == allowed.end() || logged.contains(&(at + 1)));
        for log in ends {
            let fits = fits(log);
            if fits.len() == found.len() {
                return Ok((log, fits));
            }
        }
        let fits = fits(*allowed.end());
        let wrong: Vec<Uid> = found.iter().map(|(uid, _)| *uid).filter(|uid| !fits.contains_key(uid)).collect();
        Err(Mismatch(format!(
            "recovered state equals no log of {allowed:?} with keyspaces flushed from {flushed:?} on; with the whole log keyspaces {wrong:?} differ; \
             with all writes:{}",
            self.differences(recovered, *allowed.end())
        )))
    }

    /// Of each key of a keyspace which of its versions the recovered one may have.
    fn compare(&self, uid: Uid, contents: &Contents) -> Option<Vec<Found>> {
        let mut found = contents.iter().peekable();
        let mut buffer = Vec::new();
        let keys = (0..).zip(self.keyspaces.get(&uid)?);
        let compare = keys.map(|(key, versions)| {
            let value = found.next_if(|(k, _)| *k == key).map(|(_, value)| &value[..]);
            let may_be_lost = value.is_none() && self.losing.contains_key(&uid);
            let mut is_right = |version: &Version| may_be_lost || equal(version.value, value, &mut buffer);
            Found {
                absent: value.is_none(),
                versions: versions.iter().map(|v| (v.at, v.logged, is_right(v))).collect(),
            }
        });
        Some(compare.collect())
    }

    /// The log ended at `log`, and each keyspace had flushed up to the end of its range at most: later writes never happened. Whether what it had
    /// not flushed for certain is in a table is open where a newer version hides it.
    pub fn truncate_mixed(&mut self, log: Pos, flushed: &BTreeMap<Uid, RangeInclusive<Pos>>) {
        for (uid, keys) in &mut self.keyspaces {
            let flushed = flushed.get(uid).map_or(log, |flushed| *flushed.end());
            let stays = |version: &Version| version.at <= flushed || version.logged && version.at <= log;
            keys.iter_mut().for_each(|versions| versions.retain(stays));
        }
        self.last = log;
    }

    /// For each position, how many keys of the recovered store differ from the model there.
    fn wrong_keys(&self, recovered: &BTreeMap<Uid, Contents>) -> Vec<usize> {
        let len = usize::try_from(self.last).expect("positions fit memory") + 2;
        let mut steps = vec![0i64; len];
        let mut buffer = Vec::new();
        // Keyspaces that the store does not have are not asked about: the caller has compared the names.
        for (uid, contents) in recovered {
            let Some(versions) = self.keyspaces.get(uid) else {
                continue;
            };
            let mut found = contents.iter().peekable();
            for (key, versions) in versions.iter().enumerate() {
                let key = u32::try_from(key).expect("a small table");
                let value = found.next_if(|(k, _)| *k == key).map(|(_, value)| &value[..]);
                // What may be lost may be missing at any position; what is there must be the newest version of some.
                let may_be_lost = value.is_none() && self.losing.contains_key(uid);
                let mut right = value.is_none();
                if !right {
                    steps[0] += 1;
                }
                for version in versions {
                    let now = may_be_lost || equal(version.value, value, &mut buffer);
                    let at = usize::try_from(version.at).expect("positions fit memory");
                    steps[at] += i64::from(right) - i64::from(now);
                    right = now;
                }
            }
        }
        let mut sum = 0;
        steps
            .iter()
            .map(|step| {
                sum += step;
                usize::try_from(sum).expect("counts never fall below zero")
            })
            .collect()
    }

    fn differences(&self, recovered: &BTreeMap<Uid, Contents>, at: Pos) -> String {
        let mut text = String::new();
        let mut buffer = Vec::new();
        let mut shown = 0;
        for (uid, contents) in recovered {
            let found: BTreeMap<u32, &[u8]> = contents.iter().map(|(k, v)| (*k, &v[..])).collect();
            for key in 0..u32::try_from(self.keys.len()).expect("a small table") {
                let want = self.get(*uid, key, at);
                let have = found.get(&key).copied();
                if !equal(want, have, &mut buffer) {
                    shown += 1;
                    if shown > 5 {
                        return text + " ...";
                    }
                    let have = have.map(|value| (value.len(), &value[..value.len().min(8)]));
                    text += &format!(
                        " keyspace {uid} key #{key} {}: want {want:?}, have {have:?};",
                        show(&self.keys[index(key)])
                    );
                }
            }
        }
        text
    }

    /// The model without the doubtful writes whose bit in `without` is set, with the others done.
    fn settled(&self, without: u64) -> Model {
        let mut model = self.clone();
        for (i, doubtful) in self.doubtful.iter().enumerate() {
            for &(uid, key, value) in &doubtful.writes {
                let Some(versions) = model.keyspaces.get_mut(&uid) else {
                    continue;
                };
                let versions = &mut versions[index(key)];
                versions.retain(|version| version.at != doubtful.at);
                if without >> i & 1 == 0 {
                    let place = versions.partition_point(|version| version.at < doubtful.at);
                    versions.insert(place, Version { at: doubtful.at, value, logged: true });
                }
            }
        }
        model.doubtful.clear();
        model
    }

    /// The recovered position becomes the present: later writes never happened, doubts are settled.
    pub fn truncate(&mut self, at: Pos, without: u64) {
        if !self.doubtful.is_empty() {
            *self = self.settled(without);
        }
        for versions in self.keyspaces.values_mut().flatten() {
            while versions.last().is_some_and(|version| version.at > at) {
                versions.pop();
            }
        }
        self.last = at;
    }

    /// Forgets versions that no position from `floor` on shows: worlds live long.
    pub fn forget_before(&mut self, floor: Pos) {
        for versions in self.keyspaces.values_mut().flatten() {
            let shown = versions.partition_point(|version| version.at <= floor);
            if shown > 16 {
                versions.drain(..shown - 1);
            }
        }
    }
}

/// A recovered key beside its history.
struct Found {
    /// It is not there.
    absent: bool,
    /// Position of each version, whether it is logged, and whether it is what was found.
    versions: Vec<(Pos, bool, bool)>,
}

/// The first and the last position from `known` to `log` up to which a keyspace may have flushed, if the log ends at `log` and its keys are these.
fn flushed_positions(keys: &[Found], log: Pos, known: Pos) -> Option<RangeInclusive<Pos>> {
    let mut wrong = 0i64;
    // What changes with each position: how many keys more are wrong from it on.
    let mut steps: BTreeMap<Pos, i64> = BTreeMap::new();
    for key in keys {
        let there = key.versions.iter().filter(|(at, ..)| *at <= log);
        let newest_logged = there.clone().rev().find(|(_, logged, _)| *logged);
        let (base, mut right) = newest_logged.map_or((0, key.absent), |&(at, _, right)| (at, right));
        wrong += i64::from(!right);
        for &(at, _, now) in there.filter(|(at, ..)| *at > base) {
            *steps.entry(at).or_default() += i64::from(right) - i64::from(now);
            right = now;
        }
    }
    let mut fits: Option<RangeInclusive<Pos>> = None;
    let mut from = 0;
    for (next, step) in steps.into_iter().chain([(log + 1, 0)]) {
        if wrong == 0 && next > known {
            fits = Some(fits.map_or(from.max(known), |fits| *fits.start())..=next - 1);
        }
        (from, wrong) = (next, wrong + step);
    }
    fits
}

fn push(versions: &mut Vec<Version>, version: Version) {
    match versions.last_mut() {
        Some(last) if last.at == version.at => *last = version,
        _ => versions.push(version),
    }
}

fn index(key: u32) -> usize {
    usize::try_from(key).expect("a key number fits memory")
}

/// Whether a stored value is the one that the recipe makes.
pub fn equal(want: Option<Value>, have: Option<&[u8]>, buffer: &mut Vec<u8>) -> bool {
    match (want, have) {
        (None, None) => true,
        (Some(want), Some(have)) if index(want.len) == have.len() => {
            want.fill(buffer);
            buffer[..] == *have
        }
        _ => false,
    }
}

/// A key for a human: short, escaped.
pub fn show(key: &[u8]) -> String {
    if key.len() > 40 {
        format!("{}... ({} bytes)", key[..24].escape_ascii(), key.len())
    } else {
        format!("\"{}\"", key.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(id: u64) -> Option<Value> {
        Some(Value { id, len: 8 })
    }

    fn contents(model: &Model, at: Pos) -> BTreeMap<Uid, Contents> {
        let mut buffer = Vec::new();
        let entries = model.scan(1, 0..3, at).map(|(key, value)| {
            value.fill(&mut buffer);
            (key, buffer.clone())
        });
        BTreeMap::from([(1, entries.collect())])
    }

    fn history() -> Model {
        let mut model = Model::new(Arc::new(vec![b"a".to_vec(), b"b".to_vec(), b"c".to_vec()]));
        model.create(1);
        model.commit([(1, 0, value(1))], true);
        model.commit([(1, 0, value(2)), (1, 1, value(3))], true);
        model.commit([(1, 0, None)], true);
        model.commit([(1, 0, value(2))], true);
        model
    }

    #[test]
    fn every_position_is_found_and_the_latest_of_equal_ones_wins() {
        let model = history();
        for at in 0..=4 {
            let found = model.positions(&contents(&model, at), 0..=4).unwrap();
            // Positions 2 and 4 look alike.
            assert_eq!(found, (if at == 2 { 4 } else { at }, 0));
        }
        assert!(model.positions(&contents(&model, 1), 2..=4).is_err(), "a lost durable write must be noticed");
    }

    #[test]
    fn what_may_be_lost_may_be_missing_but_not_old() {
        let mut model = history();
        let mut found = contents(&model, 4);
        found.get_mut(&1).unwrap().remove(0);
        assert!(model.positions(&found, 4..=4).is_err());
        model.may_lose(1);
        assert_eq!(model.positions(&found, 4..=4).unwrap(), (4, 0));
        let older = contents(&model, 1);
        assert!(model.positions(&older, 4..=4).is_err(), "an older version is not the newest");
        model.note_missing(1, &found[&1], 0);
        assert_eq!(model.losses()[&1], 4);
        let losses = BTreeMap::from([(1, 2)]);
        assert!(model.may_miss(&losses, 1, 1, 4) && !model.may_miss(&losses, 1, 0, 4));
    }

    #[test]
    fn a_recovered_value_may_be_the_old_one_of_two_that_are_equal() {
        for (floor, may_miss) in [(2, true), (5, true), (6, false)] {
            let mut model = history();
            model.may_lose(1);
            let empty = |id| Some(Value { id, len: 0 });
            model.commit([(1, 0, empty(9))], true);
            model.commit([(1, 0, empty(10))], true);
            model.note_missing(1, &contents(&model, 6)[&1], floor);
            assert_eq!(model.may_miss(&BTreeMap::from([(1, 5)]), 1, 0, 6), may_miss, "floor {floor}");
        }
    }

    #[test]
    fn half_a_batch_is_no_position() {
        let model = history();
        let mut half = contents(&model, 2);
        half.get_mut(&1).unwrap().pop();
        assert!(model.positions(&half, 0..=4).is_err());
    }

    #[test]
    fn a_failed_write_may_appear_or_not_but_only_whole() {
        let mut model = history();
        model.doubt(vec![(1, 1, value(9)), (1, 2, value(9))], false);
        model.commit([(1, 0, value(7))], true);
        let without = contents(&model, 6);
        assert_eq!(model.positions(&without, 6..=6).unwrap(), (6, 1));
        let with = contents(&model.settled(0), 6);
        assert_eq!(model.positions(&with, 6..=6).unwrap(), (6, 0));
        let mut half = with;
        half.get_mut(&1).unwrap().pop();
        assert!(model.positions(&half, 6..=6).is_err());
    }

    /// Two keyspaces of three keys; 1 and 3 are logged.
    fn mixed_history() -> Model {
        let mut model = Model::new(Arc::new(vec![b"a".to_vec(), b"b".to_vec(), b"c".to_vec()]));
        model.create(1);
        model.create(2);
        model.commit([(1, 0, value(1)), (2, 0, value(2))], true);
        model.commit([(1, 1, value(3))], false);
        model.commit([(1, 2, value(4))], true);
        model.commit([(2, 1, value(5))], false);
        model
    }

    fn mixed_contents(first: &[(u32, u64)], second: &[(u32, u64)]) -> BTreeMap<Uid, Contents> {
        let contents = |entries: &[(u32, u64)]| {
            let mut buffer = Vec::new();
            let entries = entries.iter().map(|&(key, id)| {
                value(id).expect("always some").fill(&mut buffer);
                (key, buffer.clone())
            });
            entries.collect()
        };
        BTreeMap::from([(1, contents(first)), (2, contents(second))])
    }

    #[test]
    fn what_is_not_logged_is_there_up_to_what_its_keyspace_has_flushed() {
        let model = mixed_history();
        let find = |first: &[(u32, u64)], second: &[(u32, u64)], floor, flushed: &[(Uid, Pos)]| {
            let flushed = flushed.iter().copied().collect();
            let found = model.mixed_positions(&mixed_contents(first, second), floor..=4, &flushed);
            found.ok().map(|(log, fits)| (log, fits[&1].clone(), fits[&2].clone()))
        };
        let (all, logged) = ([(0, 1), (1, 3), (2, 4)], [(0, 1), (2, 4)]);
        assert_eq!(find(&all, &[(0, 2), (1, 5)], 0, &[]), Some((4, 2..=4, 4..=4)));
        assert_eq!(find(&logged, &[(0, 2)], 0, &[]), Some((4, 0..=1, 0..=3)));
        assert_eq!(find(&logged, &[(0, 2)], 0, &[(1, 2)]), None, "a flushed write is lost");
        assert_eq!(find(&[(0, 1)], &[(0, 2)], 0, &[]), Some((2, 0..=1, 0..=2)));
        assert_eq!(find(&[(0, 1)], &[(0, 2)], 3, &[]), None, "a logged write is lost");
        assert_eq!(find(&[], &[(0, 2)], 0, &[]), None, "half of a logged batch is lost");
        assert_eq!(find(&[(0, 1)], &[(0, 2), (1, 5)], 0, &[]), None, "a table is older than the log before it");
        assert_eq!(find(&[(0, 1), (1, 3)], &[(0, 2)], 0, &[]), Some((2, 2..=2, 0..=2)));
    }

    #[test]
    fn an_unlogged_write_that_a_logged_one_hides_may_come_back_once() {
        let mut model = mixed_history();
        model.commit([(1, 1, value(6))], true);
        let killed = mixed_contents(&[(0, 1), (1, 6), (2, 4)], &[(0, 2)]);
        let (log, fits) = model.mixed_positions(&killed, 5..=5, &BTreeMap::new()).expect("nothing logged is lost");
        assert_eq!((log, &fits[&1], &fits[&2]), (5, &(0..=5), &(0..=3)));
        model.truncate_mixed(log, &fits);
        // The power goes, and with it the last of the log: 3 was in a table, or was not.
        for first in [&[(0, 1), (1, 3), (2, 4)][..], &[(0, 1), (2, 4)]] {
            let found = model.mixed_positions(&mixed_contents(first, &[(0, 2)]), 1..=5, &BTreeMap::new());
            assert_eq!(found.expect("3 may be there or not").0, 4);
        }
        let hidden = mixed_contents(&[(0, 1), (1, 6), (2, 4)], &[(0, 2), (1, 5)]);
        assert!(model.mixed_positions(&hidden, 1..=5, &BTreeMap::new()).is_err(), "what was lost is back");
    }
}
