//! Merges that link what they would only copy: what that saves (VT-tree, X-Engine), what it costs, and that nobody can tell.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use siltstone::compaction::Strategy;
use siltstone::io::sim::{Profile, SimClock, SimExecutor, SimFs};
use siltstone::io::{Fs, Rng};
use siltstone::version::SstId;
use siltstone::{Bytes, Db, Env, Keyspace, KeyspaceOptions, KeyspaceStats, Options};

use crate::db::{preset, short_l0};

const FILE_BYTES: u64 = 16 << 10;

struct Machine {
    fs: SimFs,
    executor: SimExecutor,
}

impl Machine {
    fn on(fs: SimFs, seed: u64) -> Machine {
        Machine { executor: SimExecutor::new(&fs.clock(), seed), fs }
    }

    fn new(seed: u64) -> Machine {
        Machine::on(SimFs::new(&SimClock::new(), seed), seed)
    }

    fn open_in(&self, dir: &str, strategy: &str, threads: u32) -> Db {
        let mut options = Options { write_memory_bytes: 64 << 10, compaction_threads: threads, ..Options::default() };
        options.log.segment_bytes = 32 << 10;
        options.keyspace = KeyspaceOptions {
            memtable_bytes: FILE_BYTES,
            file_bytes: FILE_BYTES,
            block_bytes: 512,
            size_ratio: 4,
            strategy: strategy.to_owned(),
            ..KeyspaceOptions::default()
        };
        let env = Env {
            fs: Arc::new(self.fs.clone()),
            clock: self.fs.clock(),
            executor: Arc::new(self.executor.clone()),
            ..Env::default()
        };
        Db::open_with(dir, options, env).unwrap()
    }

    fn open(&self, strategy: &str) -> Db {
        self.open_in("/store", strategy, 2)
    }

    fn table_files(&self) -> BTreeMap<u64, u64> {
        let files = self.fs.files().into_iter();
        let number = |path: &std::path::Path| path.file_stem().unwrap().to_str().unwrap().parse().ok();
        let tables =
            files.filter(|(path, _)| path.starts_with("/store") && path.extension().is_some_and(|e| e == "sst"));
        tables.filter_map(|(path, bytes)| Some((number(&path)?, bytes))).collect()
    }
}

const STITCH: &str = "reuse = { kind = \"stitch\", max_dead_percent = 50 }";

fn vt_tree() -> String {
    preset("vt-tree", &[])
}

/// The same tree without stitching.
fn plain() -> String {
    preset("vt-tree", &[(STITCH, "reuse = \"picked\"")])
}

/// Tables of the tree: their bytes, and those that files have.
fn tables(keyspace: &Keyspace) -> BTreeMap<SstId, (u64, u64)> {
    let mut tables = BTreeMap::new();
    for file in keyspace.tree().levels.iter().flat_map(|level| &level.runs).flat_map(|run| &run.files) {
        let (_, alive) = tables.entry(file.table()).or_insert((file.table_bytes(), 0));
        *alive += file.bytes;
    }
    tables
}

/// Writes `count` records under `key(n)` and lets everything come to rest.
fn load(strategy: &str, count: u64, mut key: impl FnMut(u64) -> String) -> (KeyspaceStats, Db, Machine) {
    let machine = Machine::new(5);
    let db = machine.open(strategy);
    let keyspace = db.default_keyspace();
    for n in 0..count {
        keyspace.put(key(n), format!("{n:080}")).unwrap();
        while machine.executor.step_random() {}
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    machine.executor.run_until_idle();
    assert!(db.verify().unwrap().damage.is_empty());
    (keyspace.stats(), db, machine)
}

/// Input that is sorted, or sorted in pieces: sixteen writers, each in ascending order. Runs overlap in all of it, so nothing moves, and yet it
/// is written once.
#[test]
fn vt_tree_writes_presorted_input_once() {
    let sorted = |n: u64| format!("{n:08}");
    let streams = |n: u64| format!("{:02}/{:08}", n / 40 % 16, n / 640 * 40 + n % 40);
    for (name, key) in [("sorted", &sorted as &dyn Fn(u64) -> String), ("streams", &streams)] {
        let (stitched, ..) = load(&vt_tree(), 20_000, key);
        let (copied, ..) = load(&plain(), 20_000, key);
        let (wa, plain_wa) = (stitched.merge_write_amplification, copied.merge_write_amplification);
        assert!(wa < 0.05, "{name}: merges wrote {wa} times the input");
        if name == "streams" {
            assert!(plain_wa > 1.5, "without stitching {plain_wa}");
            assert!(stitched.merge_bytes_linked > stitched.ingested_bytes);
        }
        // What flushes write for a byte of input is no merge's business.
        let flushed = stitched.write_amplification - wa;
        let whole = stitched.write_amplification / flushed;
        assert!((whole - 1.0).abs() < 0.05, "{name}: {whole}");
    }
}

/// Where nothing is sorted nothing can be linked, and nothing is lost by trying.
#[test]
fn vt_tree_does_not_change_what_random_input_costs() {
    let keys = || {
        let mut rng = Rng::new(3);
        move |_| format!("{:08}", rng.below(100_000_000))
    };
    let (stitched, ..) = load(&vt_tree(), 12_000, keys());
    let (copied, ..) = load(&plain(), 12_000, keys());
    let ratio = stitched.merge_write_amplification / copied.merge_write_amplification;
    assert!(copied.merge_write_amplification > 1.5);
    assert!((ratio - 1.0).abs() < 0.05, "{ratio}");
}

/// Input that is sorted here and not there: files become slices of shared tables, parts of tables die, and no table is more dead at rest
/// than it may be.
#[test]
fn fragments_grow_in_number_and_are_bounded() {
    let mut rng = Rng::new(4);
    let machine = Machine::new(4);
    let db = machine.open(&vt_tree());
    let keyspace = db.default_keyspace();
    let (mut slices, mut dead, mut at_rest) = (0, 0, 0);
    for n in 0..400u64 {
        // A stretch of new keys in order, and updates behind it.
        let from = rng.below(4000);
        for i in 0..30 {
            keyspace.put(format!("{:06}", from + i), format!("{n:080}")).unwrap();
        }
        for _ in 0..rng.below(6) {
            keyspace.put(format!("{:06}", rng.below(4000)), format!("{n:080}")).unwrap();
        }
        while machine.executor.step_random() {}
        let stats = keyspace.stats();
        slices = slices.max(stats.slices);
        dead = dead.max(stats.dead_bytes);
        assert_eq!(tables(&keyspace).values().map(|(bytes, _)| bytes).sum::<u64>(), stats.disk_bytes);
        if n.is_multiple_of(20) {
            db.wait_idle().unwrap();
            // Some files are kept for seconds, to be written over.
            machine.executor.run_for(11_000_000_000);
            let stats = keyspace.stats();
            for (id, (bytes, alive)) in tables(&keyspace) {
                assert!(2 * alive >= bytes, "of table {} with {bytes} bytes {alive} are alive at rest", id.0);
            }
            assert!(2 * stats.dead_bytes <= stats.disk_bytes);
            at_rest += u64::from(stats.slices > 0);
            let named: BTreeSet<u64> = tables(&keyspace).keys().map(|id| id.0).collect();
            assert_eq!(machine.table_files().into_keys().collect::<BTreeSet<_>>(), named);
        }
    }
    assert!(slices > 10 && dead > 20_000 && at_rest > 5, "{slices} slices, {dead} bytes dead, {at_rest} looks");
    assert!(keyspace.stats().reasons.iter().any(|reason| reason.reason == "layout" && reason.jobs > 0));
}

/// Files of one level that reach into files of the next only in part: what lies beside is linked.
#[test]
fn x_engine_writes_less_than_it_merges_where_ranges_are_disjoint() {
    // Bursts, each in a narrow range of its own.
    let mut rng = Rng::new(6);
    let mut from = 0;
    let key = |n: u64| {
        if n.is_multiple_of(100) {
            from = rng.below(1_000_000);
        }
        format!("{:08}", from + rng.below(300))
    };
    let (stats, db, _machine) = load("x-engine", 15_000, key);
    let (written, linked) = (stats.merge_bytes_written, stats.merge_bytes_linked);
    assert!(linked * 5 > written, "{linked} linked, {written} written");
    // Every decision says both.
    let decisions = db.default_keyspace().decisions();
    let by_decision: u64 = decisions.iter().filter_map(|d| d.ended.as_ref()).map(|ended| ended.bytes_linked).sum();
    assert!(by_decision > 0 && by_decision <= linked);
}

fn contents(found: impl Iterator<Item = siltstone::Result<(Bytes, Bytes)>>) -> Vec<(Vec<u8>, Vec<u8>)> {
    found.map(|pair| pair.unwrap()).map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// Stitched trees against a map: snapshots, deletes, ingestion, ranges from both ends, crashes, checkpoints, another strategy in between.
#[test]
fn a_stitched_tree_agrees_with_a_map() {
    let small = "reuse = { kind = \"stitch\", min_bytes = 600, max_dead_percent = 80 }";
    let leveled = preset("leveling", &[("layout", &format!("{small}\nlayout"))]);
    let partial = short_l0().replace("\nlayout", &format!("\n{small}\nlayout"));
    let tiered = preset("vt-tree", &[(STITCH, small)]);
    let released = preset("sifrdb", &[]);
    let (mut linked, mut shared) = (0, 0);
    for seed in 0..12u64 {
        let mut rng = Rng::new(seed);
        let strategy = [&leveled, &partial, &tiered][usize::try_from(seed % 3).unwrap()];
        let mut machine = Machine::new(seed);
        let mut db = machine.open(strategy);
        let mut model: BTreeMap<String, String> = BTreeMap::new();
        let mut old = None;
        for n in 0..90u64 {
            let keyspace = db.default_keyspace();
            let from = rng.below(2500);
            match rng.below(12) {
                // A stretch in order: put, or deleted.
                0..7 => {
                    for i in from..from + rng.between(1, 120) {
                        let (key, value) = (format!("{i:05}"), format!("{n:060}"));
                        keyspace.put(&key, &value).unwrap();
                        model.insert(key, value);
                    }
                }
                7 => {
                    for i in from..from + rng.below(60) {
                        keyspace.delete(format!("{i:05}")).unwrap();
                        model.remove(&format!("{i:05}"));
                    }
                }
                8 => {
                    let records = (from..from + rng.between(1, 300)).map(|i| (format!("{i:05}"), format!("i{n:060}")));
                    let records: Vec<_> = records.collect();
                    keyspace.ingest(records.clone()).unwrap();
                    model.extend(records);
                }
                9 => old = Some((db.snapshot(), model.clone())),
                10 => old = None,
                _ if rng.one_in(3) => {
                    old = None;
                    db.sync().unwrap();
                    let fs = machine.fs.crash(Profile::Nasty, &mut rng);
                    drop(db);
                    machine = Machine::on(fs, seed + n);
                    db = machine.open(strategy);
                }
                _ if rng.one_in(4) => {
                    // Merges that release slices of shared tables.
                    keyspace.set_strategy(&released).unwrap();
                    for _ in 0..rng.below(200) {
                        machine.executor.step_random();
                    }
                    keyspace.set_strategy(strategy).unwrap();
                }
                _ => db.flush().unwrap(),
            }
            for _ in 0..rng.below(100) {
                machine.executor.step_random();
            }
            let keyspace = db.default_keyspace();
            let all: Vec<_> = model.iter().map(|(k, v)| (k.clone().into_bytes(), v.clone().into_bytes())).collect();
            assert!(contents(keyspace.range::<&[u8]>(..).unwrap()) == all, "seed {seed}, step {n}");
            let (first, last) = (format!("{:05}", rng.below(2700)), format!("{:05}", rng.below(2700)));
            let (first, last) = if first < last { (first, last) } else { (last, first) };
            let mut part: Vec<_> = model.range(first.clone()..last.clone()).collect();
            part.reverse();
            let part: Vec<_> =
                part.into_iter().map(|(k, v)| (k.clone().into_bytes(), v.clone().into_bytes())).collect();
            assert!(contents(keyspace.range(first..last).unwrap().rev()) == part, "seed {seed}, step {n}: backwards");
            for _ in 0..20 {
                let key = format!("{:05}", rng.below(2700));
                let found = keyspace.get(&key).unwrap().map(|value| String::from_utf8(value.to_vec()).unwrap());
                assert_eq!(found, model.get(&key).cloned(), "seed {seed}, step {n}: {key}");
            }
            if let Some((snapshot, then)) = &old {
                let then: Vec<_> = then.iter().map(|(k, v)| (k.clone().into_bytes(), v.clone().into_bytes())).collect();
                let seen = contents(keyspace.range_at::<&[u8]>(.., snapshot).unwrap());
                assert!(seen == then, "seed {seed}, step {n}: a snapshot");
            }
            let tree = keyspace.tree();
            let files = tree.levels.iter().flat_map(|level| &level.runs).flat_map(|run| &run.files);
            shared += files.filter(|file| file.table() != file.id).count();
        }
        linked += db.default_keyspace().stats().merge_bytes_linked;
        assert!(db.verify().unwrap().damage.is_empty());
        db.checkpoint("/copy").unwrap();
        let expected = contents(db.default_keyspace().range::<&[u8]>(..).unwrap());
        let tables: BTreeSet<SstId> = tables(&db.default_keyspace()).into_keys().collect();
        db.close().unwrap();
        for id in tables {
            machine
                .fs
                .remove_file(
                    format!("/store/{:06}.sst", id.0).as_ref(),
                    siltstone::io::IoCtx::foreground(siltstone::io::IoClass::Meta),
                )
                .unwrap();
        }
        let copy = machine.open_in("/copy", strategy, 1);
        assert!(contents(copy.default_keyspace().range::<&[u8]>(..).unwrap()) == expected);
        assert!(copy.verify().unwrap().damage.is_empty());
        copy.close().unwrap();
    }
    assert!(linked > 500_000 && shared > 300, "{linked} bytes linked, {shared} looks at shared tables");
}

/// A dropped keyspace takes its shared tables along; a table that a reader is in stays as long.
#[test]
fn shared_tables_go_with_their_keyspace() {
    let machine = Machine::new(9);
    let db = machine.open(&vt_tree());
    let options = KeyspaceOptions {
        strategy: vt_tree(),
        memtable_bytes: FILE_BYTES,
        file_bytes: FILE_BYTES,
        block_bytes: 512,
        ..KeyspaceOptions::default()
    };
    let keyspace = db.create_keyspace("other", options).unwrap();
    for n in 0..6000u64 {
        keyspace.put(format!("{:02}/{:08}", n / 40 % 16, n), format!("{n:080}")).unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    assert!(keyspace.stats().slices > 0);
    let mut range = keyspace.range::<&[u8]>(..).unwrap();
    range.next().unwrap().unwrap();
    db.drop_keyspace("other").unwrap();
    machine.executor.run_until_idle();
    assert!(!machine.table_files().is_empty());
    assert_eq!(range.count(), 5999);
    drop(keyspace);
    machine.executor.run_for(11_000_000_000);
    assert_eq!(machine.table_files(), BTreeMap::new());
}

#[test]
fn what_does_not_go_together_is_refused() {
    for (name, from, to, what) in [
        ("vt-tree", STITCH, "reuse = \"stich\"", "`moves-first`, `picked`, `stitch`, `never`"),
        ("vt-tree", "max_dead_percent = 50", "max_dead = 50", "max_dead_percent"),
        ("vt-tree", "max_dead_percent = 50", "max_dead_percent = 100", "from 0 to 99"),
        ("vt-tree", "max_dead_percent = 50", "min_bytes = 0", "min_bytes is above 0"),
        ("vt-tree", "\n[[rule]]", "release = \"progressive\"\n[[rule]]", "release = \"at-end\""),
        ("pebblesdb", "reuse = \"never\"", STITCH, "another layout than guarded"),
    ] {
        let error = Strategy::parse(&preset(name, &[(from, to)])).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("line "), "{to}: {error}");
    }
}
