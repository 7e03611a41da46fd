//! What is looked at beside a load.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use siltstone::{Db, Event, EventListener, Result};

use crate::num::ratio;
use crate::workload::{KeyLaw, KeyPicker, KeyWriter, Workload};

/// How many memtables were flushed while a merge had the disk, where merges run one after the other (`single`): what a tree must have room
/// for (luo19 section 5.1.3).
#[derive(Default)]
pub struct FlushesBeside(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    flushes: u64,
    /// How many there were when the last merge ended.
    at_end: u64,
    /// How many there were when a merge that has not ended was chosen, by its job's number.
    at_choice: BTreeMap<u64, u64>,
    /// By the level that merges write.
    beside: BTreeMap<u8, Beside>,
}

/// Flushes during the merges into a level.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Beside {
    /// The merges.
    pub merges: u64,
    /// Flushes during all of them.
    pub flushes: u64,
    /// The most during one of them.
    pub most: u64,
}

impl FlushesBeside {
    /// Forgets all merges that have ended.
    pub(super) fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).beside.clear();
    }

    /// What was seen, by the level that merges write.
    pub(super) fn seen(&self) -> BTreeMap<u8, Beside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).beside.clone()
    }
}

impl EventListener for FlushesBeside {
    fn event(&self, event: &Event) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = &mut *seen;
        match event {
            Event::FlushEnd { .. } => seen.flushes += 1,
            Event::CompactionStart { decision, .. } => {
                seen.at_choice.insert(decision.job, seen.flushes);
            }
            Event::CompactionEnd { decision, moved: false, .. } => {
                // It had to wait until the one before had ended.
                let began = seen.at_choice.remove(&decision.job).unwrap_or_default().max(seen.at_end);
                let flushes = seen.flushes - began;
                let beside = seen.beside.entry(decision.to_level).or_default();
                beside.merges += 1;
                beside.flushes += flushes;
                beside.most = beside.most.max(flushes);
                seen.at_end = seen.flushes;
            }
            _ => {}
        }
    }
}

/// Data pages that a query looks into, from the cache or from disk.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct QueryPages {
    /// For one record by its key.
    pub point: f64,
    /// For a hundred records.
    pub short: f64,
    /// For a hundredth of all records (luo19: a million of a hundred million).
    pub long: f64,
}

/// Asks a store now and then.
pub(super) struct Queries {
    picker: KeyPicker,
    keys: KeyWriter,
    long_records: u64,
    rounds: u64,
    /// Queries and pages of each kind.
    asked: [(u64, u64); 3],
}

/// Queries of a round.
const POINTS: u64 = 64;
const SHORTS: u64 = 8;
/// Rounds from one long range to the next.
const LONG_EVERY: u64 = 8;
const SHORT_RECORDS: u64 = 100;

impl Queries {
    pub(super) fn new(workload: &Workload) -> Queries {
        Queries {
            picker: KeyPicker::new(workload, KeyLaw::Uniform, "queries"),
            keys: KeyWriter::new(workload.key_bytes),
            long_records: (workload.records / 100).max(SHORT_RECORDS),
            rounds: 0,
            asked: [(0, 0); 3],
        }
    }

    /// A round of all kinds.
    pub(super) fn ask(&mut self, db: &Db) -> Result<()> {
        let keyspace = db.default_keyspace();
        let long = u64::from(self.rounds.is_multiple_of(LONG_EVERY));
        self.rounds += 1;
        for (kind, times) in [POINTS, SHORTS, long].into_iter().enumerate() {
            let before = pages(db);
            for _ in 0..times {
                let key = self.keys.key(self.picker.pick());
                let records = match kind {
                    0 => {
                        keyspace.get(key)?;
                        continue;
                    }
                    1 => SHORT_RECORDS,
                    _ => self.long_records,
                };
                let mut range = keyspace.range(key..)?;
                let mut left = records;
                while left > 0 && range.advance()? {
                    left -= 1;
                }
            }
            let (queries, looked) = &mut self.asked[kind];
            *queries += times;
            *looked += pages(db) - before;
        }
        Ok(())
    }

    pub(super) fn pages(&self) -> QueryPages {
        let [point, short, long] = self.asked.map(|(queries, pages)| ratio(pages, queries));
        QueryPages { point, short, long }
    }
}

fn pages(db: &Db) -> u64 {
    let stats = db.stats();
    stats.cache_hits + stats.cache_misses
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use siltstone::Options;
    use siltstone::io::sim::Device;

    use super::super::{SimWorld, World};
    use super::*;

    #[test]
    fn queries_look_into_as_many_pages_as_there_are_runs() {
        let workload = Workload { seed: 1, records: 2000, key_bytes: 16, value_bytes: 84, phases: Vec::new() };
        let world = SimWorld::new(Device::default(), 0, 1);
        let mut options = Options::default();
        options.keyspace.strategy = "tiering".to_owned();
        let db = world.open(&options, Some(Arc::new(FlushesBeside::default()))).unwrap();
        let mut keys = KeyWriter::new(16);
        let pages_with = |runs: u64, keys: &mut KeyWriter| {
            for n in (0..2000).filter(|n| n % 3 == runs) {
                db.default_keyspace().put(keys.key(n), [7; 84]).unwrap();
            }
            db.flush().unwrap();
            let mut queries = Queries::new(&workload);
            for _ in 0..8 {
                queries.ask(&db).unwrap();
            }
            queries.pages()
        };
        let [one, two, three] = [0, 1, 2].map(|runs| pages_with(runs, &mut keys));
        assert!((0.99..1.1).contains(&three.point), "all are there by now, each in one run: {three:?}");
        assert!(one.short < two.short && two.short < three.short, "{one:?} {two:?} {three:?}");
        assert!(three.long >= three.short);
    }
}
