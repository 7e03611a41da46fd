//! The store through its public interface, on a real folder with real threads.

#![allow(
    clippy::disallowed_methods,
    clippy::cast_possible_truncation,
    reason = "tests of the real thing use real files and threads"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use siltstone::compaction::{CompactionPolicy, strategies};
use siltstone::io::Rng;
use siltstone::io::sim::{Profile, SimClock, SimExecutor, SimFs};
use siltstone::options::{Compression, MemtableKind};
use siltstone::{Batch, Cancel, Db, Durability, Env, ErrorKind, Event, EventListener, KeyspaceOptions, Options};

/// A preset's text with other words in the place of some.
pub(crate) fn preset(name: &str, words: &[(&str, &str)]) -> String {
    let mut text = strategies().iter().find(|preset| preset.name == name).unwrap().text.to_owned();
    for (from, to) in words {
        assert!(text.contains(from), "{from} is not in {name}");
        text = text.replace(from, to);
    }
    text
}

/// The default strategy with an L0 of eight runs and an L1 of four memtables, so that a small tree comes to merges, and with tombstones that stay
/// until they are a quarter of the rest.
pub(crate) fn short_l0() -> String {
    preset(
        "one-leveling",
        &[("= 32", "= 8"), ("level1_memtables = 16.0", "level1_memtables = 4.0"), (", share = 0.15", "")],
    )
}

/// Options with which every rare state comes up within a few thousand writes.
pub(crate) fn tiny() -> Options {
    let mut options = Options { write_memory_bytes: 32 << 10, cache_bytes: 64 << 10, ..Options::default() };
    options.log.segment_bytes = 16 << 10;
    options.log.max_bytes = 64 << 10;
    options.keyspace = KeyspaceOptions {
        memtable_bytes: 8 << 10,
        file_bytes: 4 << 10,
        block_bytes: 256,
        size_ratio: 3,
        strategy: short_l0(),
        compression: vec![Compression::None, Compression::Lz4],
        ..KeyspaceOptions::default()
    };
    options
}

pub(crate) fn key(n: u64) -> String {
    format!("key-{n:05}")
}

/// The disk `fs`, its clock, and lanes of their own.
pub(crate) fn simulated(fs: &SimFs) -> Env {
    let clock = fs.clock();
    let executor = Arc::new(SimExecutor::new(&clock, 1));
    Env { fs: Arc::new(fs.clone()), clock, executor, rng: Rng::new(1), ..Env::default() }
}

/// Puts, deletes and batches against a map, with reopens; the whole contents compared from both ends.
fn model(strategy: &str, memtable: MemtableKind) {
    let folder = tempfile::tempdir().unwrap();
    let mut options = tiny();
    options.keyspace.strategy = strategy.to_owned();
    options.keyspace.memtable = memtable;
    let mut rng = Rng::new(7);
    let mut model: BTreeMap<String, String> = BTreeMap::new();
    let mut db = Db::open(folder.path(), options.clone()).unwrap();
    for round in 0..6u64 {
        let keyspace = db.default_keyspace();
        for i in 0..1500u64 {
            let (key, value) = (key(rng.below(800)), format!("{round}-{i}-{}", "x".repeat(rng.below(60) as usize)));
            match rng.below(10) {
                0..3 => {
                    keyspace.delete(&key).unwrap();
                    model.remove(&key);
                }
                3 => {
                    let mut batch = Batch::new();
                    batch.put(&keyspace, &key, &value);
                    batch.delete(&keyspace, "key-00001");
                    db.write(batch).unwrap();
                    model.insert(key, value);
                    model.remove("key-00001");
                }
                _ => {
                    keyspace.put(&key, &value).unwrap();
                    model.insert(key, value);
                }
            }
            let probe = self::key(rng.below(800));
            let found = keyspace.get(&probe).unwrap();
            assert_eq!(found.as_deref(), model.get(&probe).map(String::as_bytes), "{strategy}: {probe}");
        }
        let pairs = |(k, v): (&String, &String)| (k.as_bytes().to_vec(), v.as_bytes().to_vec());
        let expected: Vec<_> = model.iter().map(pairs).collect();
        let found =
            |r: siltstone::Result<(siltstone::Bytes, siltstone::Bytes)>| r.map(|(k, v)| (k.to_vec(), v.to_vec()));
        let forward: Vec<_> = keyspace.range::<&str>(..).unwrap().map(found).collect::<Result<_, _>>().unwrap();
        assert_eq!(forward, expected, "{strategy}");
        let mut backward: Vec<_> =
            keyspace.range::<&str>(..).unwrap().rev().map(found).collect::<Result<_, _>>().unwrap();
        backward.reverse();
        assert_eq!(backward, expected, "{strategy}");
        let prefix: Vec<_> = keyspace.prefix("key-001").unwrap().map(found).collect::<Result<_, _>>().unwrap();
        assert_eq!(prefix, expected.iter().filter(|(k, _)| k.starts_with(b"key-001")).cloned().collect::<Vec<_>>());
        // From both ends towards the middle: every record once.
        let mut range = keyspace.range::<&str>(..).unwrap();
        let mut ends = 0;
        while range.next().transpose().unwrap().is_some() {
            ends += 1;
            ends += usize::from(range.next_back().transpose().unwrap().is_some());
        }
        assert_eq!(ends, expected.len());
        match round {
            1 => db.flush().unwrap(),
            2 => keyspace.compact::<&str>(.., &Cancel::new()).unwrap(),
            3 => db.wait_idle().unwrap(),
            _ => {}
        }
        let report = db.verify().unwrap();
        assert!(report.damage.is_empty(), "{:?}", report.damage);
        assert!(db.stats().flushes > 0 || round == 0);
        db.close().unwrap();
        db = Db::open(folder.path(), options.clone()).unwrap();
    }
}

#[test]
fn a_store_agrees_with_a_map_under_every_strategy() {
    // Mostly waiting for syncs: side by side it takes a quarter of the time.
    let presets = siltstone::compaction::strategies().iter().filter(|preset| !preset.loses_oldest());
    let presets: Vec<_> = presets.collect();
    std::thread::scope(|scope| {
        for part in presets.chunks(presets.len().div_ceil(8)) {
            scope.spawn(|| part.iter().for_each(|preset| model(preset.name, MemtableKind::Tree)));
        }
    });
    model("one-leveling", MemtableKind::SortedVector);
}

/// PebblesDB: of the keys that a merge writes, a guard of its level begins a file, in the store too; and the records are those of a map.
#[test]
fn merged_files_end_at_guards() {
    let folder = tempfile::tempdir().unwrap();
    let preset = siltstone::compaction::strategies().iter().find(|preset| preset.name == "pebblesdb").unwrap();
    let few_bits = preset.text.replace("guard_bits = 27", "guard_bits = 9").replace("levels = 7", "levels = 4");
    let strategy = siltstone::compaction::Strategy::parse(&few_bits).unwrap();
    let mut options = tiny();
    options.write_memory_bytes = 256 << 10;
    options.keyspace = KeyspaceOptions { strategy: few_bits.clone(), memtable_bytes: 64 << 10, ..options.keyspace };
    let db = Db::open(folder.path(), options).unwrap();
    let keyspace = db.default_keyspace();
    let keys: Vec<String> = (0..400).map(|n| format!("key-{n:04}")).collect();
    for round in 0..40 {
        // Each flush holds all keys, so whatever a merge writes in a range, it meets all of it.
        for key in &keys {
            keyspace.put(key, format!("{round} {}", "z".repeat(30))).unwrap();
        }
        db.flush().unwrap();
    }
    db.wait_idle().unwrap();
    let tree = keyspace.tree();
    let mut begun = 0;
    for level in tree.levels.iter().filter(|level| level.level > 0) {
        let mask = strategy.guards(siltstone::version::LevelId(level.level)).unwrap();
        for file in level.runs.iter().flat_map(|run| &run.files) {
            let inner = |key: &&String| file.smallest < key.as_bytes() && file.largest >= key.as_bytes();
            let guard = keys.iter().filter(inner).find(|key| mask.is_guard(key.as_bytes()));
            assert_eq!(guard, None, "L{}: {file:?}", level.level);
            begun += u32::from(mask.is_guard(&file.smallest));
        }
    }
    assert!(begun > 10 && tree.levels.len() > 2, "{begun} files begin with a guard");
    let found: Vec<_> = keyspace.range::<&str>(..).unwrap().map(Result::unwrap).collect();
    assert_eq!(found.len(), keys.len());
    assert!(found.iter().all(|(_, value)| value.starts_with(b"39 ")));
    db.close().unwrap();
    model(&few_bits, MemtableKind::Tree);
    model(&format!("release = \"progressive\"\n{few_bits}"), MemtableKind::Tree);
}

/// Cassandra's UCS: no output of a merge holds keys of two shards.
#[test]
fn merged_files_end_at_the_borders_of_shards() {
    let folder = tempfile::tempdir().unwrap();
    let ucs = siltstone::compaction::strategies().iter().find(|preset| preset.name == "cassandra-ucs").unwrap();
    let mut options = tiny();
    options.keyspace.strategy = ucs.text.replace("target_bytes = 1073741824", "target_bytes = 4000");
    let db = Db::open(folder.path(), options).unwrap();
    let keyspace = db.default_keyspace();
    // Every memtable covers all keys, numbers of two bytes, so that the shards never shift.
    for round in 0..60u16 {
        for n in 0..64u16 {
            keyspace.put((n * 1023 + n.min(1) * round).to_be_bytes(), "y".repeat(30)).unwrap();
        }
        keyspace.put([0xff; 2], "end").unwrap();
        db.flush().unwrap();
    }
    db.wait_idle().unwrap();
    let tree = keyspace.tree();
    let mut parts = 0;
    for run in tree.levels.iter().flat_map(|level| &level.runs).filter(|run| run.files.len() > 1) {
        for file in &run.files {
            let shard = |key: &[u8]| key[0] / 64;
            assert_eq!(shard(&file.smallest), shard(&file.largest), "{file:?}");
            parts += 1;
        }
    }
    assert!(parts >= 4, "{parts}");
}

#[test]
fn snapshots_see_their_moment_across_flushes_and_merges() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path(), tiny()).unwrap();
    let keyspace = db.default_keyspace();
    let mut snapshots = Vec::new();
    for round in 0..8 {
        snapshots.push((round, db.snapshot()));
        for n in 0..300 {
            keyspace.put(key(n), format!("{round}-{}", "y".repeat(40))).unwrap();
        }
        if round % 3 == 2 {
            keyspace.delete(key(5)).unwrap();
            keyspace.compact::<&str>(.., &Cancel::new()).unwrap();
        }
    }
    for (round, snapshot) in &snapshots {
        let expected = match round {
            0 => None,
            3 | 6 => None,
            _ => Some(format!("{}-{}", round - 1, "y".repeat(40))),
        };
        let found = keyspace.get_at(key(5), snapshot).unwrap();
        assert_eq!(found.as_deref(), expected.as_ref().map(String::as_bytes), "round {round}");
        let all = keyspace.range_at::<&str>(.., snapshot).unwrap().count();
        assert_eq!(all, if *round == 0 { 0 } else { 300 - usize::from(expected.is_none()) });
    }
    drop(snapshots);
    keyspace.put("poke", "").unwrap();
    keyspace.compact::<&str>(.., &Cancel::new()).unwrap();
    let stats = keyspace.stats();
    assert_eq!((stats.entries, stats.tombstones), (301, 0), "old versions are gone when no snapshot holds them");
}

#[test]
fn keyspaces_come_go_and_keep_their_options() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path(), tiny()).unwrap();
    let options = KeyspaceOptions { strategy: "tiering".to_owned(), block_bytes: 512, ..tiny().keyspace };
    let users = db.create_keyspace("users", options.clone()).unwrap();
    assert_eq!(db.create_keyspace("users", options.clone()).unwrap_err().kind(), ErrorKind::AlreadyExists);
    let wrong = KeyspaceOptions { strategy: "no-such".to_owned(), ..options.clone() };
    assert_eq!(db.create_keyspace("x", wrong).unwrap_err().kind(), ErrorKind::InvalidArgument);
    for n in 0..2000 {
        let mut batch = Batch::new();
        batch.put(&users, key(n), "user");
        batch.put(&db.default_keyspace(), key(n), "default");
        db.write_with(&batch, if n % 100 == 0 { Durability::Sync } else { Durability::Buffered }).unwrap();
    }
    db.close().unwrap();
    assert_eq!(users.put("a", "b").unwrap_err().kind(), ErrorKind::Closed);
    drop(users);

    let db = Db::open(folder.path(), tiny()).unwrap();
    assert_eq!(db.list_keyspaces(), ["default", "users"]);
    let users = db.keyspace("users").unwrap();
    assert_eq!(users.options(), options);
    assert_eq!(users.get(key(1999)).unwrap().as_deref(), Some(&b"user"[..]));
    assert_eq!(users.range::<&str>(..).unwrap().count(), 2000);
    db.drop_keyspace("users").unwrap();
    assert_eq!(users.get("a").unwrap_err().kind(), ErrorKind::NotFound);
    // It answered from the last memtable.
    for found in users.multi_get(&[key(1999), key(2000)]) {
        assert_eq!(found.unwrap_err().kind(), ErrorKind::NotFound);
    }
    assert_eq!(db.drop_keyspace("default").unwrap_err().kind(), ErrorKind::InvalidArgument);
    db.wait_idle().unwrap();
    db.close().unwrap();
    let db = Db::open(folder.path(), tiny()).unwrap();
    assert_eq!(db.list_keyspaces(), ["default"]);
    assert_eq!(db.default_keyspace().range::<&str>(..).unwrap().count(), 2000);
}

/// A batch knew its store by an address, which the next store got when the first one was closed: it took the writes, into whichever of its keyspaces
/// had the number.
#[test]
fn a_batch_of_a_closed_store_is_no_other_store_s() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: String| Db::open(folder.path().join(name), tiny()).unwrap();
    for n in 0..20 {
        let mut batch = Batch::new();
        batch.put(&open(format!("a{n}")).default_keyspace(), "key", "value");
        let db = open(format!("b{n}"));
        assert_eq!(db.write(batch).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(db.default_keyspace().get("key").unwrap(), None);
    }
}

/// Whatever a flush or a merge has reached when its keyspace is dropped, its files go too.
#[test]
fn a_dropped_keyspace_leaves_no_file() {
    let options = Options { compaction_threads: 1, ..tiny() };
    let mut most_files = 0;
    for steps in 0..200 {
        let clock = SimClock::new();
        let fs = SimFs::new(&clock, 1);
        let executor = SimExecutor::new(&clock, steps);
        let env = Env { fs: Arc::new(fs.clone()), clock, executor: Arc::new(executor.clone()), ..Env::default() };
        let db = Db::open_with("/dropped", options.clone(), env).unwrap();
        let users = db.create_keyspace("users", options.keyspace.clone()).unwrap();
        (0..300).for_each(|n| {
            users.put(key(n * 7 % 100), "a value of some length, a hundred bytes or so".repeat(2)).unwrap()
        });
        let tables = || fs.files().iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "sst")).count();
        for _ in 0..steps {
            let _ = executor.step_random();
        }
        most_files = most_files.max(tables());
        db.drop_keyspace("users").unwrap();
        // Some may be kept for seconds, to be written over.
        executor.run_for(11_000_000_000);
        assert_eq!(tables(), 0, "dropped after {steps} steps");
    }
    assert!(most_files > 3);
}

/// The drop was durable at once, and what was written before it was not. Who moved a record to another keyspace and dropped the first one found it
/// in neither after a power loss.
#[test]
fn a_dropped_keyspace_takes_nothing_that_was_moved_before() {
    let fs = SimFs::new(&SimClock::new(), 1);
    let db = Db::open_with("/moved", tiny(), simulated(&fs)).unwrap();
    let users = db.create_keyspace("users", tiny().keyspace).unwrap();
    users.put_with("name", "precious", Durability::Sync).unwrap();
    db.default_keyspace().put("name", users.get("name").unwrap().unwrap()).unwrap();
    db.drop_keyspace("users").unwrap();
    let after = fs.crash(Profile::Strict, &mut Rng::new(1));
    let db = Db::open_with("/moved", tiny(), simulated(&after)).unwrap();
    assert_eq!(db.list_keyspaces(), ["default"]);
    assert_eq!(db.default_keyspace().get("name").unwrap().as_deref(), Some(&b"precious"[..]));
}

#[test]
fn a_checkpoint_is_a_store_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("store"), folder.path().join("copy"));
    let db = Db::open(&path, tiny()).unwrap();
    let keyspace = db.default_keyspace();
    (0..3000).for_each(|n| keyspace.put(key(n % 700), format!("{n}")).unwrap());
    db.checkpoint(&copy).unwrap();
    assert_eq!(db.checkpoint(&copy).unwrap_err().kind(), ErrorKind::AlreadyExists);
    (0..3000).for_each(|n| keyspace.put(key(n % 700), "later").unwrap());
    keyspace.compact::<&str>(.., &Cancel::new()).unwrap();
    drop((db, keyspace));
    let copied = Db::open(&copy, tiny()).unwrap();
    assert!(copied.verify().unwrap().damage.is_empty());
    for n in 0..700u64 {
        let last = (0..5).map(|i| n + 700 * i).filter(|m| *m < 3000).max().unwrap();
        assert_eq!(copied.default_keyspace().get(key(n)).unwrap().as_deref(), Some(last.to_string().as_bytes()));
    }
    copied.default_keyspace().put("new", "write").unwrap();
}

/// A seek placed the front, but the back looked only for one that had moved: it went on to records before the sought key.
#[test]
fn the_back_of_a_range_stops_at_what_the_front_sought() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path(), tiny()).unwrap();
    let keyspace = db.default_keyspace();
    ["a", "c", "e", "g"].into_iter().for_each(|key| keyspace.put(key, "").unwrap());
    let mut range = keyspace.range::<&str>(..).unwrap();
    let backward = |range: &mut siltstone::Range| range.rev().map(|record| record.unwrap().0).collect::<Vec<_>>();
    for (sought, found) in [("e", &["g", "e"][..]), ("d", &["g", "e"]), ("h", &[]), ("", &["g", "e", "c", "a"])] {
        range.seek(sought).unwrap();
        assert_eq!(backward(&mut range), found, "{sought}");
        assert!(range.next().is_none(), "{sought}: the back has met the front");
    }
    // What the back has yielded, the front does not.
    range.seek("e").unwrap();
    assert_eq!(range.next_back().unwrap().unwrap().0, "g");
    assert_eq!(range.next().unwrap().unwrap().0, "e");
    assert!(range.next_back().is_none());
}

#[test]
fn ingested_records_appear_at_once_above_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path(), tiny()).unwrap();
    let keyspace = db.default_keyspace();
    (0..1000).for_each(|n| keyspace.put(key(n), "old").unwrap());
    let before = db.snapshot();
    assert_eq!(keyspace.ingest((500..2500).map(|n| (key(n), "ingested"))).unwrap(), 2000);
    let unsorted = keyspace.ingest([("b", ""), ("a", "")]).unwrap_err();
    assert_eq!(unsorted.kind(), ErrorKind::InvalidArgument);
    let check = |n: u64, expected: Option<&str>, at_before: Option<&str>| {
        assert_eq!(keyspace.get(key(n)).unwrap().as_deref(), expected.map(str::as_bytes), "{n}");
        assert_eq!(keyspace.get_at(key(n), &before).unwrap().as_deref(), at_before.map(str::as_bytes), "{n} before");
    };
    for settled in [false, true] {
        if settled {
            keyspace.compact::<&str>(.., &Cancel::new()).unwrap();
        }
        check(499, Some("old"), Some("old"));
        check(500, Some("ingested"), Some("old"));
        check(999, Some("ingested"), Some("old"));
        check(2499, Some("ingested"), None);
        assert_eq!(keyspace.range::<&str>(..).unwrap().rev().count(), 2500);
        assert_eq!(keyspace.range_at::<&str>(.., &before).unwrap().count(), 1000);
        assert_eq!(
            keyspace.range(key(990)..key(1010)).unwrap().filter(|r| r.as_ref().unwrap().1 == "ingested").count(),
            20
        );
        keyspace.put(key(700), "newer").unwrap();
        check(700, Some("newer"), Some("old"));
    }
    assert!(db.verify().unwrap().damage.is_empty());
    db.close().unwrap();
    drop((before, keyspace));
    let db = Db::open(folder.path(), tiny()).unwrap();
    assert_eq!(db.default_keyspace().range::<&str>(..).unwrap().count(), 2500);
}

/// Beside damage nothing is lost, and nothing comes up that was overwritten or deleted: a salvage agrees with a map but for the keys that
/// `verify` says.
#[test]
fn a_salvage_gives_what_no_damage_affects() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = tiny();
    options.keyspace.strategy = "tiering".to_owned();
    let mut rng = Rng::new(5);
    let mut model = BTreeMap::new();
    let db = Db::open(folder.path(), options.clone()).unwrap();
    for i in 0..6000 {
        let key = key(rng.below(2000)).into_bytes();
        if rng.one_in(4) {
            db.default_keyspace().delete(&key).unwrap();
            model.remove(&key);
        } else {
            let value = format!("{i}-{}", "x".repeat(rng.below(60) as usize)).into_bytes();
            db.default_keyspace().put(&key, &value).unwrap();
            model.insert(key, value);
        }
    }
    db.wait_idle().unwrap();
    db.close().unwrap();
    let tables = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut tables: Vec<_> = tables.filter(|path| path.extension().is_some_and(|ending| ending == "sst")).collect();
    tables.sort();
    assert!(tables.len() > 8, "{tables:?}");
    for round in 0..30 {
        let bad: Vec<_> = (0..=rng.below(3)).map(|_| tables[rng.below(tables.len() as u64) as usize].clone()).collect();
        let good: Vec<_> = bad.iter().map(|path| std::fs::read(path).unwrap()).collect();
        for (path, good) in bad.iter().zip(&good) {
            let mut bytes = good.clone();
            bytes[rng.below(good.len() as u64) as usize] ^= 0x10;
            std::fs::write(path, bytes).unwrap();
        }
        if round % 10 == 9 {
            std::fs::remove_file(&bad[0]).unwrap();
        }
        let db = Db::open_read_only(folder.path(), options.clone()).unwrap();
        let damage = db.verify().unwrap().damage;
        assert!(!damage.is_empty());
        let from = if rng.one_in(2) { Vec::new() } else { key(rng.below(2000)).into_bytes() };
        let is_well = |key: &Vec<u8>| damage.iter().all(|bad| *key < bad.first_key || *key > bad.last_key);
        let expected: Vec<_> = model.range(from.clone()..).filter(|(key, _)| is_well(key)).collect();
        let snapshot = db.snapshot();
        let mut rest = db.default_keyspace().salvage(from.., &snapshot, &damage).unwrap();
        let mut found = Vec::new();
        while rest.advance().unwrap() {
            found.push((rest.key().to_vec(), rest.value().to_vec()));
        }
        assert!(found.iter().map(|(key, value)| (key, value)).eq(expected), "round {round}: {damage:?}");
        // Damage that it was not told of ends it.
        let told_nothing = db.default_keyspace().salvage::<&[u8]>(.., &snapshot, &[]);
        let ended = told_nothing.and_then(|mut rest| {
            while rest.advance()? {}
            Ok(())
        });
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Corruption);
        for (path, good) in bad.iter().zip(&good).rev() {
            std::fs::write(path, good).unwrap();
        }
    }
}

#[derive(Default)]
struct Count {
    flushes: AtomicU64,
    compactions: AtomicU64,
}

impl EventListener for Count {
    fn event(&self, event: &Event) {
        match event {
            Event::FlushEnd { .. } => self.flushes.fetch_add(1, Ordering::Relaxed),
            Event::CompactionEnd { reason, .. } => {
                assert!(reason.contains("-> L"), "{reason}");
                self.compactions.fetch_add(1, Ordering::Relaxed)
            }
            Event::Error { error, .. } => panic!("{error}"),
            _ => 0,
        };
    }
}

#[test]
fn many_threads_write_read_and_sync_while_merges_run() {
    let folder = tempfile::tempdir().unwrap();
    let listener = Arc::new(Count::default());
    let env = Env { listener: Some(listener.clone()), ..Env::default() };
    let db = Db::open_with(folder.path(), tiny(), env).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (keyspace, thread_db) = (db.default_keyspace(), db.clone());
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for n in 0..3000u64 {
                    let key = format!("{thread}-{:04}", rng.below(300));
                    let durability = if n % 50 == 0 { Durability::Sync } else { Durability::Buffered };
                    keyspace.put_with(&key, format!("{n:06}"), durability).unwrap();
                    assert_eq!(keyspace.get(&key).unwrap().unwrap(), format!("{n:06}"));
                    if n % 20 == 0 {
                        // Whoever looks on takes the same locks as those who plan and merge.
                        assert!(thread_db.stats().puts > 0);
                        keyspace.pending().unwrap();
                        thread_db.snapshot();
                    }
                    if n % 500 == 0 {
                        // Another thread's keys: some value that was written, whole.
                        for record in keyspace.range::<&str>(..).unwrap() {
                            assert_eq!(record.unwrap().1.len(), 6);
                        }
                    }
                }
            });
        }
    });
    db.wait_idle().unwrap();
    assert!(listener.flushes.load(Ordering::Relaxed) > 10 && listener.compactions.load(Ordering::Relaxed) > 3);
    assert_eq!(db.stats().puts, 12_000);
    assert!(db.verify().unwrap().damage.is_empty());
}

/// `coldest` goes by the reads that happened: of the files of a full L1, the one whose keys nobody asked for goes down.
#[test]
fn the_file_that_nobody_reads_goes_down() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::default();
    options.keyspace.memtable_bytes = 1 << 20;
    options.keyspace.file_bytes = 4 << 10;
    options.keyspace.level1_bytes = 32 << 10;
    options.keyspace.strategy = r#"
        name = "coldest"
        layout = { kind = "one-leveling", l0_runs = 2 }
        reuse = "never"
        [[rule]]
        levels = [0]
        trigger = { kind = "sorted-runs" }
        granularity = { kind = "sorted-runs" }
        [[rule]]
        levels = "leveled"
        trigger = { kind = "level-saturation" }
        granularity = { kind = "file" }
        movement = ["coldest"]
    "#
    .to_owned();
    let db = Db::open(folder.path(), options).unwrap();
    let keyspace = db.default_keyspace();
    let load = |keys: std::ops::Range<u64>| {
        for n in keys {
            keyspace.put(key(n), [7; 90]).unwrap();
        }
        keyspace.flush().unwrap();
        db.wait_idle().unwrap();
    };
    load(0..125);
    load(125..250);
    let level1 = keyspace.tree().levels[1].runs[0].files.clone();
    assert!(level1.len() > 4 && keyspace.tree().levels.len() == 2, "{:?}", keyspace.tree());
    let cold = &level1[3];
    for n in 0..250 {
        let key = key(n);
        if key.as_bytes() < &cold.smallest[..] || key.as_bytes() > &cold.largest[..] {
            assert!(keyspace.get(&key).unwrap().is_some());
        }
    }
    load(250..280);
    load(280..310);
    let went = &keyspace.tree().levels[2].runs[0].files[0];
    assert_eq!((&went.smallest, &went.largest), (&cold.smallest, &cold.largest));
}
