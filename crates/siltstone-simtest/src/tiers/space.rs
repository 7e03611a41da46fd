//! The budget for space that merges take for a time (`extra_space_bytes`): never exceeded, and nothing waits for ever.
//!
//! The oracle looks at the disk: all tables that are there, less those that the trees name and what a flush may be writing. It looks
//! after every step of a lane. Now and then ranges are held open, whose files count: who waits behind them is told, and when they are gone the store
//! comes to rest. What was written and not refused is there all the time, and after a killed process: merges in parts, or stopped midway, lose nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use siltstone::compaction::Action;
use siltstone::io::sim::Profile;
use siltstone::io::{Clock, Executor, Fs, Rng};
use siltstone::{Db, Env, ErrorKind, Event, EventListener};

use super::Budget;
use crate::config::Config;
use crate::ops::index;
use crate::pool::Report;
use crate::store::{Check, FOLDER, Machine, Violation, broken};

/// Writes in a world.
const WRITES: u64 = 600;

/// Runs `worlds` worlds.
pub fn run(budget: &Budget, worlds: u64) -> Report {
    let pool = budget.pool("space");
    let replay = |n| format!("space --base {} --only {n}", budget.base);
    pool.run(worlds, replay, |n| {
        let counts = world(budget.seed(n ^ 0x5_9ace))?;
        pool.count("worlds", 1);
        pool.count("writes", counts.writes);
        pool.count("refused_writes", counts.refused);
        pool.count("looks_at_the_disk", counts.looks);
        pool.count("compactions", counts.compactions);
        Ok(())
    });
    pool.finish()
}

/// Runs the world with this number.
pub fn run_only(budget: &Budget, n: u64) -> Report {
    let pool = budget.pool("space");
    let replay = |_| format!("space --base {} --only {n}", budget.base);
    pool.run(1, replay, |_| world(budget.seed(n ^ 0x5_9ace)).map(drop));
    pool.finish()
}

#[derive(Default)]
struct Counts {
    writes: u64,
    refused: u64,
    looks: u64,
    compactions: u64,
    /// Bytes of files that were dropped without a merge, all in all and at the last look at which nothing waited to be deleted.
    dropped: [u64; 2],
}

/// Bytes of the files that were dropped without a merge: dead tombstones, or the oldest data.
#[derive(Default)]
struct Dropped(AtomicU64);

impl EventListener for Dropped {
    fn event(&self, event: &Event) {
        if let Event::CompactionEnd { decision, .. } = event
            && decision.action == Action::Drop
        {
            let bytes = decision.inputs.iter().map(|input| input.bytes).sum();
            self.0.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

fn world(seed: u64) -> Check<Counts> {
    let mut config = Config::from_seed(seed);
    config.keys.retain(|key| key.len() < 100);
    let mut rng = Rng::new(seed).split("space");
    let options = &mut config.options;
    options.rate_limit_bytes_per_s = 0;
    options.keyspace.delete_by = None;
    // From what is too little for anything to what is enough for most.
    options.extra_space_bytes = options.keyspace.memtable_bytes.max(options.keyspace.file_bytes) * rng.between(1, 24);
    let machine = Machine::new(seed);
    let dropped = Arc::new(Dropped::default());
    let env = Env {
        fs: Arc::new(machine.fs.clone()) as Arc<dyn Fs>,
        clock: Arc::clone(&machine.clock) as Arc<dyn Clock>,
        rng: Rng::new(seed),
        executor: Arc::new(machine.executor.clone()) as Arc<dyn Executor>,
        listener: Some(Arc::clone(&dropped) as Arc<dyn EventListener>),
        ..Env::default()
    };
    let db = Db::open_with(FOLDER, config.options.clone(), env).map_err(|e| Violation(format!("open: {e:?}")))?;
    let mut counts = Counts::default();
    let keyspace = db.default_keyspace();
    let mut held = Vec::new();
    let mut expected = Records::new();
    for n in 0..WRITES {
        if rng.one_in(60) {
            held.push(keyspace.range::<&[u8]>(..).map_err(|e| Violation(format!("range: {e:?}")))?);
        }
        if rng.one_in(100) {
            held.clear();
        }
        let key = &config.keys[index(&mut rng, config.keys.len() as u64)];
        let value = (!rng.one_in(5)).then(|| [&n.to_be_bytes()[..], &vec![b'v'; index(&mut rng, 200)]].concat());
        let written = match &value {
            None => keyspace.delete(key),
            Some(value) => keyspace.put(key, value),
        };
        match written {
            Ok(()) => {
                counts.writes += 1;
                match value {
                    None => expected.remove(key),
                    Some(value) => expected.insert(key.clone(), value),
                };
            }
            // Nothing more fits: told, not hung.
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                counts.refused += 1;
                machine.executor.run_for(1_000_000_000);
            }
            Err(error) => return broken(format!("write: {error:?}")),
        }
        look(&machine, &db, &config, &dropped, &mut counts)?;
        for _ in 0..rng.below(12) {
            if !machine.executor.step_random() {
                break;
            }
            look(&machine, &db, &config, &dropped, &mut counts)?;
        }
        if rng.one_in(60) {
            let killed = Machine::with_disk(machine.fs.crash(Profile::Kill, &mut rng), seed);
            let found = killed.open(&config.options, seed, None).map_err(|e| Violation(format!("open: {e:?}")))?;
            compare(&db, &config, &expected)?;
            compare(&found, &config, &expected).map_err(|v| Violation(format!("after a kill: {}", v.0)))?;
        }
    }
    drop(held);
    match db.wait_idle() {
        Err(error) if error.kind() != ErrorKind::NoSpace => return broken(format!("rest: {error:?}")),
        Err(error) if error.what().contains("hold open") => return broken(format!("nothing is held: {error:?}")),
        _ => {}
    }
    compare(&db, &config, &expected).map_err(|v| Violation(format!("at rest: {}", v.0)))?;
    counts.compactions = db.stats().compactions;
    db.close().map_err(|e| Violation(format!("close: {e:?}")))?;
    Ok(counts)
}

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// Whether the store holds what was written, where it may lose nothing.
fn compare(db: &Db, config: &Config, expected: &Records) -> Check {
    if config.options.keyspace.may_lose_oldest {
        return Ok(());
    }
    let failed = |e| Violation(format!("range: {e:?}"));
    let mut range = db.default_keyspace().range::<&[u8]>(..).map_err(failed)?;
    let mut expected = expected.iter();
    while range.advance().map_err(failed)? {
        let found = (range.key(), range.value());
        match expected.next() {
            Some((key, value)) if (&key[..], &value[..]) == found => {}
            other => return broken(format!("finds {found:?} in the place of {other:?}")),
        }
    }
    expected.next().map_or(Ok(()), |missing| broken(format!("{missing:?} is gone")))
}

fn look(machine: &Machine, db: &Db, config: &Config, dropped_by_now: &Dropped, counts: &mut Counts) -> Check {
    counts.looks += 1;
    let tables = |(path, bytes): &(std::path::PathBuf, u64)| {
        (path.starts_with(FOLDER) && path.extension().is_some_and(|ext| ext == "sst")).then_some(*bytes)
    };
    let on_disk: u64 = machine.fs.files().iter().filter_map(tables).sum();
    let stats = db.default_keyspace().stats();
    // What a flush writes is no merge's: at most one memtable, and what blocks, index and filter add to so small a table.
    let flushing = 3 * config.options.keyspace.memtable_bytes + 16_384;
    let extra = on_disk.saturating_sub(stats.disk_bytes);
    // What was dropped takes no room for a merge, only its own until it is deleted.
    let [dropped, deleted] = &mut counts.dropped;
    *dropped = dropped_by_now.0.load(Ordering::Relaxed);
    if extra == 0 {
        *deleted = *dropped;
    }
    let flushing = if stats.immutables > 0 { flushing } else { 0 };
    let allowed = config.options.extra_space_bytes + flushing + (*dropped - *deleted);
    if extra > allowed {
        return broken(format!(
            "{extra} bytes on disk beyond the live files, {} are allowed for merges ({} memtables to be flushed)\n{:?}",
            config.options.extra_space_bytes,
            stats.immutables,
            db.default_keyspace().tree()
        ));
    }
    Ok(())
}
