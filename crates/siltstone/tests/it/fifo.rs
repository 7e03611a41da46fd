//! RocksDB's FIFO: the oldest data is dropped, and nothing is merged. What a reader may rely on, on a real folder with real threads.

#![allow(clippy::disallowed_methods, reason = "tests of the real thing use real files and threads")]

use std::sync::mpsc::sync_channel;

use siltstone::compaction::strategies;
use siltstone::io::Rng;
use siltstone::{Db, ErrorKind, Keyspace, KeyspaceOptions, Options};

const MEMTABLE: u64 = 16 << 10;
/// The limit of the strategy that is tested, in memtables.
const LIMIT: u64 = 4;

/// The preset with a limit that a test reaches.
fn fifo() -> String {
    let preset = strategies().iter().find(|preset| preset.name == "rocksdb-fifo").unwrap();
    assert!(preset.loses_oldest());
    preset.text.replace("memtables = 16.0", "memtables = 4.0")
}

fn options(strategy: &str, may_lose_oldest: bool) -> Options {
    let keyspace = KeyspaceOptions {
        memtable_bytes: MEMTABLE,
        file_bytes: 8 << 10,
        block_bytes: 512,
        strategy: strategy.to_owned(),
        may_lose_oldest,
        ..KeyspaceOptions::default()
    };
    Options { write_memory_bytes: 256 << 10, cache_bytes: 1 << 20, keyspace, ..Options::default() }
}

fn key(n: u64) -> String {
    format!("key-{n:05}")
}

fn load(keyspace: &Keyspace, round: u64, records: u64) {
    let mut rng = Rng::new(round);
    for n in 0..records {
        keyspace.put(key(rng.below(500)), format!("{round:04}-{n:06}-{}", "v".repeat(80))).unwrap();
    }
}

fn contents(keyspace: &Keyspace) -> Vec<(Vec<u8>, Vec<u8>)> {
    keyspace.range::<&str>(..).unwrap().map(|r| r.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
}

#[test]
fn a_strategy_that_drops_data_is_refused_without_the_option() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |outcome: siltstone::Result<()>| {
        let error = outcome.unwrap_err();
        let text = error.to_string();
        assert!(error.kind() == ErrorKind::InvalidArgument && text.contains("may_lose_oldest = true"), "{text}");
    };
    refused(Db::open(folder.path().join("new"), options("rocksdb-fifo", false)).map(drop));
    let db = Db::open(folder.path(), options("leveling", false)).unwrap();
    let keyspace = db.default_keyspace();
    refused(db.create_keyspace("other", options(&fifo(), false).keyspace).map(drop));
    refused(keyspace.set_strategy("rocksdb-fifo"));
    refused(keyspace.plan_switch("rocksdb-fifo").map(drop));
    keyspace.set_may_lose_oldest(true).unwrap();
    keyspace.set_strategy("rocksdb-fifo").unwrap();
    refused(keyspace.set_may_lose_oldest(false));
    drop((keyspace, db));
    let db = Db::open(folder.path(), options("leveling", false)).unwrap();
    let keyspace = db.default_keyspace();
    assert!(keyspace.options().may_lose_oldest && keyspace.options().strategy == "rocksdb-fifo");
    // The strategy before the last would take over from a policy that panics.
    keyspace.set_strategy("leveling").unwrap();
    refused(keyspace.set_may_lose_oldest(false));
    keyspace.set_strategy("tiering").unwrap();
    keyspace.set_may_lose_oldest(false).unwrap();
    refused(keyspace.set_strategy("rocksdb-fifo"));
}

/// The proof: bytes written by compaction = 0. And a read gives the newest version or nothing, all that is younger than what was lost is there,
/// the files stay below the limit and a flush, and a reopened store holds the same.
#[test]
fn nothing_is_merged_and_only_the_oldest_goes() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path(), options(&fifo(), true)).unwrap();
    let keyspace = db.default_keyspace();
    let mut newest: Vec<Option<(u64, String)>> = vec![None; 1000];
    let mut rng = Rng::new(5);
    let mut deleted_and_lost = 0;
    for n in 0..8000u64 {
        let at = rng.below(1000);
        if rng.one_in(5) {
            keyspace.delete(key(at)).unwrap();
            newest[usize::try_from(at).unwrap()] = None;
        } else {
            let value = format!("{n:06}-{}", "v".repeat(usize::try_from(rng.below(120)).unwrap()));
            keyspace.put(key(at), &value).unwrap();
            newest[usize::try_from(at).unwrap()] = Some((db.snapshot().seq().0, value));
        }
        if n % 1000 == 999 {
            db.wait_idle().unwrap();
            let stats = keyspace.stats();
            assert!(stats.disk_bytes < LIMIT * MEMTABLE, "{} bytes", stats.disk_bytes);
            for (at, newest) in (0..).zip(&newest) {
                let found = keyspace.get(key(at)).unwrap();
                match (newest, found) {
                    (None, None) => deleted_and_lost += 1,
                    (Some((_, value)), Some(found)) => assert_eq!(value.as_bytes(), found),
                    (Some((seq, _)), None) => {
                        assert!(*seq <= stats.lost_up_to, "{at}: {seq} is younger than what was lost")
                    }
                    (None, Some(found)) => panic!("{at}: a deleted record is back: {found:?}"),
                }
            }
        }
    }
    let stats = keyspace.stats();
    assert_eq!((stats.merge_bytes_written, stats.merge_bytes_read), (0, 0));
    assert!(stats.lost_files > 5 && stats.lost_records > 1000 && stats.lost_bytes > 5 * MEMTABLE, "{stats:?}");
    assert_eq!(stats.reasons.iter().map(|reason| reason.dropped_files).sum::<u64>(), stats.lost_files);
    assert!(stats.levels.iter().skip(1).all(|level| level.runs == 0), "all stays in L0");
    assert!(deleted_and_lost > 0);
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let before = contents(&keyspace);
    assert!(!before.is_empty() && before.len() < 1000);
    db.close().unwrap();
    let db = Db::open(folder.path(), options(&fifo(), true)).unwrap();
    assert_eq!(contents(&db.default_keyspace()), before);
    assert!(db.verify().unwrap().damage.is_empty());
}

#[test]
fn what_a_snapshot_or_an_iterator_sees_stays() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path(), options(&fifo(), true)).unwrap();
    let keyspace = db.default_keyspace();
    load(&keyspace, 1, 300);
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let before = contents(&keyspace);
    let snapshot = db.snapshot();
    for round in 2..8 {
        load(&keyspace, round, 300);
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let stats = keyspace.stats();
    assert!(stats.disk_bytes > LIMIT * MEMTABLE && stats.lost_files == 0, "{stats:?}");
    let seen = |snapshot| -> Vec<_> {
        keyspace
            .range_at::<&str>(.., snapshot)
            .unwrap()
            .map(|r| r.unwrap())
            .map(|(k, v)| (k.to_vec(), v.to_vec()))
            .collect()
    };
    assert_eq!(seen(&snapshot), before);
    let pending = keyspace.pending().unwrap();
    assert!(pending.next.is_none() && pending.rules.iter().any(|rule| rule.appraisal.trigger == "total-size"));
    // An iterator keeps the files that it reads, not the tree.
    let now = contents(&keyspace);
    let mut iterator = keyspace.range::<&str>(..).unwrap();
    let first = iterator.next().unwrap().unwrap();
    drop(snapshot);
    db.wait_idle().unwrap();
    let stats = keyspace.stats();
    assert!(stats.disk_bytes < LIMIT * MEMTABLE && stats.lost_files > 0, "{stats:?}");
    let rest: Vec<_> = iterator.map(|r| r.unwrap()).collect();
    let walked = std::iter::once(first).chain(rest).map(|(k, v)| (k.to_vec(), v.to_vec())).collect::<Vec<_>>();
    assert_eq!(walked, now);
    // The dry run of a smaller limit says what would be lost.
    let plan = keyspace.plan_switch(&fifo().replace("memtables = 4.0", "memtables = 1.0")).unwrap();
    assert!(plan.settled && plan.lost_files > 0 && plan.lost_bytes > MEMTABLE && plan.write_bytes == 0, "{plan:?}");
    assert_eq!(plan.dropped_files, 0);
}

/// Snapshots come and go while the oldest data is dropped: none sees data first and misses it afterwards. The writer is at most two rounds
/// ahead of the snapshots: one that held back the dropping of all that a free writer brings would take longer with each of them.
#[test]
fn snapshots_are_steady_while_data_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path(), options(&fifo(), true)).unwrap();
    let keyspace = db.default_keyspace();
    let mut looks = 0;
    std::thread::scope(|scope| {
        let (written, rounds) = sync_channel(1);
        let keyspace = &keyspace;
        scope.spawn(move || {
            for round in 0..40 {
                load(keyspace, round, 300);
                // Nobody takes the rounds once a look has failed.
                if written.send(()).is_err() {
                    break;
                }
            }
        });
        for () in rounds {
            let snapshot = db.snapshot();
            let seen = || keyspace.range_at::<&str>(.., &snapshot).unwrap().map(|r| r.unwrap()).collect::<Vec<_>>();
            let first = seen();
            for _ in 0..3 {
                std::thread::yield_now();
                assert!(seen() == first, "what snapshot {:?} saw has gone", snapshot.seq());
            }
            looks += 1;
        }
    });
    db.wait_idle().unwrap();
    let lost = keyspace.stats().lost_files;
    assert!(looks == 40 && lost > 5, "{looks} {lost}");
}
