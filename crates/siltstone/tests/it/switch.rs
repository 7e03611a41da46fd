//! The strategy of an open store changes: durably, without a rewrite, while merges run; and its dry run.

#![allow(
    clippy::disallowed_methods,
    clippy::cast_possible_truncation,
    reason = "tests of the real thing use real files and threads"
)]

use std::sync::Arc;

use parking_lot::Mutex;
use siltstone::io::Rng;
use siltstone::{Db, Env, ErrorKind, Event, EventListener, Keyspace, KeyspaceOptions, Options};

/// A few dozen flushes make a tree of several levels.
fn small(strategy: &str) -> Options {
    let keyspace = KeyspaceOptions {
        memtable_bytes: 16 << 10,
        file_bytes: 8 << 10,
        block_bytes: 512,
        size_ratio: 3,
        strategy: strategy.to_owned(),
        ..KeyspaceOptions::default()
    };
    Options { write_memory_bytes: 256 << 10, cache_bytes: 1 << 20, keyspace, ..Options::default() }
}

fn load(keyspace: &Keyspace, seed: u64, records: u64) {
    let mut rng = Rng::new(seed);
    for n in 0..records {
        keyspace.put(format!("key-{:06}", rng.below(20_000)), format!("{seed}-{n}-{}", "v".repeat(60))).unwrap();
    }
}

fn contents(keyspace: &Keyspace) -> Vec<(Vec<u8>, Vec<u8>)> {
    keyspace.range::<&str>(..).unwrap().map(|r| r.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
}

#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl EventListener for Told {
    fn event(&self, event: &Event) {
        if let Event::StrategySet { from, to, .. } = event {
            self.0.lock().push(format!("{from} -> {to}"));
        }
    }
}

#[test]
fn a_switch_is_durable_told_and_rewrites_nothing_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let told = Arc::new(Told::default());
    let env = || Env { listener: Some(told.clone()), ..Env::default() };
    let db = Db::open_with(folder.path(), small("tiering"), env()).unwrap();
    let keyspace = db.default_keyspace();
    load(&keyspace, 1, 4000);
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let before = contents(&keyspace);
    for wrong in ["no-such", "name = \"x\"\nlayout = { kind = \"leveling\" }\nrule = []\nlevles = 1\n"] {
        assert_eq!(keyspace.set_strategy(wrong).unwrap_err().kind(), ErrorKind::InvalidArgument, "{wrong}");
        assert_eq!(keyspace.plan_switch(wrong).unwrap_err().kind(), ErrorKind::InvalidArgument, "{wrong}");
    }
    assert_eq!(keyspace.options().strategy, "tiering");
    keyspace.set_strategy("leveling").unwrap();
    assert_eq!((keyspace.options().strategy.as_str(), keyspace.stats().strategy.as_str()), ("leveling", "leveling"));
    db.wait_idle().unwrap();
    assert!(keyspace.tree().levels.iter().all(|level| level.runs.len() <= 1), "{:?}", keyspace.stats().levels);
    assert!(keyspace.switch_progress().unwrap().is_done);
    assert_eq!(contents(&keyspace), before);
    db.close().unwrap();
    assert_eq!(keyspace.set_strategy("tiering").unwrap_err().kind(), ErrorKind::Closed);

    let db = Db::open_with(folder.path(), small("tiering"), env()).unwrap();
    let keyspace = db.default_keyspace();
    assert_eq!(keyspace.options().strategy, "leveling", "what the store says counts");
    let mine = include_str!("../../../../strategies/leveldb.toml").replace("\"leveldb\"", "\"mine\"");
    keyspace.set_strategy(&mine).unwrap();
    assert_eq!(keyspace.stats().strategy, "mine");
    db.close().unwrap();
    let db = Db::open_read_only(folder.path(), small("tiering")).unwrap();
    let keyspace = db.default_keyspace();
    assert_eq!((keyspace.stats().strategy.as_str(), contents(&keyspace)), ("mine", before));
    assert_eq!(keyspace.set_strategy("tiering").unwrap_err().kind(), ErrorKind::ReadOnly);
    assert!(keyspace.plan_switch("tiering").unwrap().settled);
    assert_eq!(*told.0.lock(), ["tiering -> leveling", "leveling -> mine"]);
}

#[test]
fn switching_to_and_fro_under_load_keeps_the_records_and_converges() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path(), small("leveling")).unwrap();
    let keyspace = db.default_keyspace();
    let presets = siltstone::compaction::strategies().iter().filter(|preset| !preset.loses_oldest());
    let names: Vec<&str> = presets.map(|preset| preset.name).collect();
    let mut rng = Rng::new(3);
    for round in 0..12 {
        load(&keyspace, round, 700);
        keyspace.set_strategy(names[rng.below(names.len() as u64) as usize]).unwrap();
    }
    keyspace.set_strategy("leveling").unwrap();
    let before = contents(&keyspace);
    db.flush().unwrap();
    db.wait_idle().unwrap();
    assert_eq!(contents(&keyspace), before);
    let progress = keyspace.switch_progress().unwrap();
    assert!(progress.is_done && progress.left_bytes == 0 && progress.share() == 1.0, "{progress:?}");
    let report = db.verify().unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    assert!(keyspace.tree().levels.iter().all(|level| level.runs.len() <= 1));
}

/// Bytes that merges did after a switch, against the dry run before it.
#[test]
fn a_dry_run_tells_what_the_switch_takes() {
    for (from, to) in [("tiering", "leveling"), ("leveling", "tiering"), ("tiering", "one-leveling")] {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(folder.path(), small(from)).unwrap();
        let keyspace = db.default_keyspace();
        load(&keyspace, 1, 12_000);
        db.flush().unwrap();
        db.wait_idle().unwrap();
        let before = db.stats();
        let plan = keyspace.plan_switch(to).unwrap();
        assert!(plan.settled && plan.seconds.is_some(), "{plan:?}");
        assert_eq!(keyspace.plan_switch(from).unwrap().merges, 0, "nothing is due where nothing changes");
        keyspace.set_strategy(to).unwrap();
        db.wait_idle().unwrap();
        let after = db.stats();
        let read = after.compaction_bytes_read - before.compaction_bytes_read;
        let written = after.compaction_bytes_written - before.compaction_bytes_written;
        let close = |predicted: u64, actual: u64| predicted.abs_diff(actual) * 5 <= actual.max(predicted);
        assert!(
            close(plan.read_bytes, read) && close(plan.write_bytes, written),
            "{from} -> {to}: read {} of {read}, wrote {} of {written}",
            plan.read_bytes,
            plan.write_bytes
        );
    }
}
