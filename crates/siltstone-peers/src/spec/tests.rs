use std::path::Path;
use std::time::Instant;

use super::*;
use crate::engines::siltstone::Siltstone;
use crate::row::agree;

fn shipped(name: &str) -> Spec {
    Spec::choose(name, &[("records".to_owned(), 3000.into())]).expect("a shipped spec")
}

fn rows<S: Store>(engine: Engine, spec: &Spec) -> Vec<Row> {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let job = Job { budget: Budget::small(), spec: spec.text().to_owned() };
    run::<S>(engine, &job, dir.path()).expect("the spec runs")
}

/// Of every engine that this build has.
fn all(spec: &Spec) -> Vec<Vec<Row>> {
    vec![
        rows::<Siltstone>(Engine::Siltstone, spec),
        #[cfg(feature = "rocksdb")]
        rows::<crate::engines::rocksdb::RocksDb>(Engine::RocksDb, spec),
        #[cfg(feature = "leveldb")]
        rows::<crate::engines::leveldb::LevelDb>(Engine::LevelDb, spec),
        #[cfg(feature = "fjall")]
        rows::<crate::engines::fjall::Fjall>(Engine::Fjall, spec),
        #[cfg(feature = "pebble")]
        rows::<crate::engines::pebble::Pebble>(Engine::Pebble, spec),
        #[cfg(feature = "redb")]
        rows::<crate::engines::redb::Redb>(Engine::Redb, spec),
    ]
}

#[test]
fn all_engines_find_the_same_records_under_every_ycsb_workload() {
    for name in ["ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-e", "ycsb-f"] {
        let rows = all(&shipped(name)).concat();
        agree(&rows).expect("equal operations find equal records");
        assert_eq!((&rows[0].workload[..], &rows[1].workload[..]), (&format!("{name}-load")[..], name));
        assert_eq!((rows[0].ops, rows[1].ops), (3000, 3000));
        let read = rows[1].fingerprint.expect("it follows from the spec");
        assert!(read.found > 0 && read.bytes > 0, "{name}: {read:?}");
        assert!(rows[1].contents.is_some_and(|contents| contents.found >= 3000));
    }
}

/// A store that never replaces a value: every key is found, and what is found is wrong.
struct Stale(Siltstone);

impl Store for Stale {
    fn open(path: &Path, budget: &Budget) -> Result<Stale> {
        Siltstone::open(path, budget).map(Stale)
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        if self.0.get(key, &mut Sink::new())? { Ok(()) } else { self.0.put(key, value) }
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.0.delete(key)
    }

    fn get(&self, key: &[u8], sink: &mut Sink) -> Result<bool> {
        self.0.get(key, sink)
    }

    fn scan(&self, from: &[u8], nexts: usize, sink: &mut Sink) -> Result<usize> {
        self.0.scan(from, nexts, sink)
    }

    fn settle(&self) -> Result<Instant> {
        self.0.settle()
    }
}

#[test]
fn an_engine_that_answers_with_old_values_is_found_out() {
    let spec = shipped("ycsb-a");
    let rows = [rows::<Siltstone>(Engine::Siltstone, &spec), rows::<Stale>(Engine::Fjall, &spec)].concat();
    let error = agree(&rows).expect_err("they answer differently").to_string();
    assert!(error.starts_with("ycsb-a: the engines disagree about the records read: fjall has"), "{error}");
}

#[test]
fn what_the_engines_do_not_have_in_common_is_refused_with_the_reason() {
    for (name, reason) in [
        ("insert-benchmark", "insert-benchmark: it has indexes, and not every engine has atomic batches here"),
        ("readwhilewriting", "readwhilewriting, phase readwhilewriting: it has more than one client"),
        ("luo19-bursts", "luo19-bursts, phase measure: it ends by time"),
        ("readreverse", "readreverse, phase readreverse: `scan-reverse` is not what every engine can do"),
    ] {
        let error = check(&shipped(name)).expect_err(name).to_string();
        assert!(error.starts_with(reason), "{error}");
    }
}
