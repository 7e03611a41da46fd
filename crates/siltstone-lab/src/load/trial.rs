//! One store, loaded with all keys and then put under one load.

use std::collections::BTreeMap;
use std::sync::Arc;

use siltstone::io::Rng;
use siltstone::{Db, EventListener, KeyspaceStats, Options, Result};

use super::beside::{Beside, FlushesBeside, Queries, QueryPages};
use super::driver::{Load, LoadResult, Moment, drive};
use super::world::World;
use crate::num::{float, index};
use crate::workload::{KeyLaw, KeyPicker, KeyWriter, ValueSource, Workload};

/// What is tried.
#[derive(Clone, Copy, Debug)]
pub struct Trial<'a> {
    /// The store.
    pub options: &'a Options,
    /// Its keys, all of which are loaded first, in random order. Phases are not looked at.
    pub workload: &'a Workload,
    /// Which of them are updated.
    pub law: KeyLaw,
    /// How.
    pub load: &'a Load,
    /// Whether the store is asked at the end of every window that counts. In a world whose reads cost time it takes the writer's.
    pub queries: bool,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct TrialResult {
    /// The writes.
    pub load: LoadResult,
    /// The store's tree at the end, and what it counted since it was opened.
    pub stats: KeyspaceStats,
    /// Flushes during merges, by the level that the merges write; of use where they run one after the other.
    pub flushes_beside: BTreeMap<u8, Beside>,
    /// What the queries looked into; nothing without any.
    pub query_pages: QueryPages,
}

/// Which part of a trial is at work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// All keys are loaded.
    Load,
    /// The store is under the load.
    Drive,
}

impl Trial<'_> {
    /// Makes the store in `world`, loads it, waits until nothing is left to merge, and puts it under the load. `watch` ends the run early by
    /// answering false.
    ///
    /// # Errors
    /// The first error of the store.
    pub fn run(&self, world: &dyn World, watch: &mut dyn FnMut(Stage, Moment) -> bool) -> Result<TrialResult> {
        self.go(world, true, watch)
    }

    /// The same in a world that [`load`](Trial::load) has left, or a fork of it.
    ///
    /// # Errors
    /// The first error of the store.
    pub fn run_loaded(&self, world: &dyn World, watch: &mut dyn FnMut(Stage, Moment) -> bool) -> Result<TrialResult> {
        self.go(world, false, watch)
    }

    /// Makes the store in `world`, loads it, waits until nothing is left to merge, and closes it.
    ///
    /// # Errors
    /// The first error of the store.
    pub fn load(&self, world: &dyn World, watch: &mut dyn FnMut(Stage, Moment) -> bool) -> Result<()> {
        let db = world.open(self.options, None)?;
        self.fill(world, &db, watch)?;
        db.close()
    }

    fn fill(&self, world: &dyn World, db: &Db, watch: &mut dyn FnMut(Stage, Moment) -> bool) -> Result<()> {
        let mut writer = Writer::new(self.workload, db, KeyLaw::Shuffled, "load");
        writer.fill(world, self.workload.records, &mut |moment| watch(Stage::Load, moment))?;
        db.wait_idle()
    }

    fn go(&self, world: &dyn World, is_new: bool, watch: &mut dyn FnMut(Stage, Moment) -> bool) -> Result<TrialResult> {
        let beside = Arc::new(FlushesBeside::default());
        let db = world.open(self.options, Some(Arc::clone(&beside) as Arc<dyn EventListener>))?;
        if is_new {
            self.fill(world, &db, watch)?;
        }
        let mut writer = Writer::new(self.workload, &db, self.law, "updates");
        beside.forget();
        let mut queries = self.queries.then(|| Queries::new(self.workload));
        let (mut windows, mut asked) = (0, Ok(()));
        let mut gauge = || {
            windows += 1;
            if let Some(queries) = queries.as_mut().filter(|_| windows * self.load.window_ns > self.load.warm_up_ns)
                && asked.is_ok()
            {
                asked = queries.ask(&db);
            }
            db.stats().runs
        };
        let mut driving = |moment| watch(Stage::Drive, moment);
        let load = drive(world, self.load, &mut || writer.put(), &mut gauge, &mut driving)?;
        asked?;
        let stats = writer.keyspace.stats();
        // What is left to merge is of no interest; closing does not wait for it.
        db.close()?;
        let query_pages = queries.map(|queries| queries.pages()).unwrap_or_default();
        Ok(TrialResult { load, stats, flushes_beside: beside.seen(), query_pages })
    }
}

/// Puts records of a workload.
struct Writer {
    keyspace: siltstone::Keyspace,
    picker: KeyPicker,
    keys: KeyWriter,
    values: ValueSource,
    value_bytes: usize,
}

impl Writer {
    fn new(workload: &Workload, db: &Db, law: KeyLaw, label: &str) -> Writer {
        let value_bytes = index(u64::from(workload.value_bytes));
        Writer {
            keyspace: db.default_keyspace(),
            picker: KeyPicker::new(workload, law, label),
            keys: KeyWriter::new(workload.key_bytes),
            values: ValueSource::new(value_bytes, Rng::new(workload.seed).split("values")),
            value_bytes,
        }
    }

    /// Loads every key once. An early end shows in the load that follows.
    fn fill(&mut self, world: &dyn World, records: u64, watch: &mut dyn FnMut(Moment) -> bool) -> Result<()> {
        for done in 0..records {
            self.put()?;
            world.spend();
            let share = float(done) / float(records);
            if done.is_multiple_of(1 << 12) && !watch(Moment { share, operations: done }) {
                break;
            }
        }
        Ok(())
    }

    fn put(&mut self) -> Result<()> {
        self.keyspace.put(self.keys.key(self.picker.pick()), self.values.next(self.value_bytes))
    }
}
