//! What `explain` draws of a store in virtual time, on a modelled disk: the same each time.

use std::path::Path;
use std::sync::Arc;

use siltstone::io::Rng;
use siltstone::io::sim::{Device, SimClock, SimExecutor, SimFs};
use siltstone::{Cancel, Env, KeyspaceOptions, Options};

use super::*;

fn store(strategy: &str) -> Db {
    let clock = SimClock::new();
    let fs = SimFs::new(&clock, 1);
    let device = Device {
        bandwidth_bytes_per_s: 10 << 20,
        iops: 10_000,
        latency_ns: 100_000,
        sync_ns: 1_000_000,
        ..Device::default()
    };
    fs.set_device(Some(device));
    let env = Env {
        fs: Arc::new(fs),
        rng: Rng::new(1),
        executor: Arc::new(SimExecutor::new(&clock, 1)),
        clock,
        ..Env::default()
    };
    let mut options = Options { compaction_threads: 1, write_memory_bytes: 192 << 20, ..Options::default() };
    options.log.segment_bytes = 16 << 20;
    options.keyspace = KeyspaceOptions {
        strategy: strategy.to_owned(),
        memtable_bytes: 8 << 10,
        file_bytes: 8 << 10,
        block_bytes: 512,
        size_ratio: 3,
        ..KeyspaceOptions::default()
    };
    let db = Db::open_with("/store", options, env).unwrap();
    let keyspace = db.default_keyspace();
    for i in 0..1200 {
        keyspace.put(format!("key-{:04}", i * 7919 % 300), format!("{i:040}")).unwrap();
        if i % 40 == 0 {
            keyspace.delete(format!("key-{:04}", i % 300)).unwrap();
        }
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    db
}

fn draw(strategy: &str) -> String {
    let db = store(strategy);
    let keyspace = db.default_keyspace();
    let kept = keyspace.decisions();
    let mut text = draw::decisions(&keyspace, kept.len(), &kept, false);
    text += "\n";
    text += &draw::pending(&keyspace, &keyspace.pending().unwrap());
    keyspace.put("key-0001", "one more, so that there is something to do by hand").unwrap();
    keyspace.compact::<&str>(.., &Cancel::new()).unwrap();
    let kept = keyspace.decisions();
    text += "\n";
    text + &draw::decisions(&keyspace, kept.len(), &kept[kept.len() - 1..], true)
}

#[test]
fn golden() {
    // An L0 of eight runs, so that a small tree comes to merges.
    let preset = siltstone::compaction::strategies().iter().find(|preset| preset.name == "one-leveling").unwrap();
    let short = preset.text.replace("= 32", "= 8").replace("level1_memtables = 16.0", "level1_memtables = 4.0");
    let text: String = [&short, "leveldb", "tiering", "rocksdb-universal"].map(draw).join("\n---\n\n");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/explain.txt");
    if std::env::var_os("GOLDEN").is_some_and(|value| value == "rewrite") {
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, expected, "GOLDEN=rewrite cargo test -p siltstone-cli rewrites {}", path.display());
}
