//! The trigger `tombstone-share` in a whole store: what was deleted goes when tombstones are a quarter of the rest, and snapshots allow it.

use siltstone::Db;

use crate::explain::{Machine, options};

const KEYS: u64 = 3000;

fn key(i: u64) -> String {
    format!("key-{i:04}")
}

/// A store whose records all lie below L0.
fn loaded(machine: &Machine) -> Db {
    let db = machine.open(&options());
    for i in 0..KEYS {
        db.default_keyspace().put(key(i * 7919 % KEYS), format!("{i:040}")).unwrap();
    }
    db.flush().unwrap();
    db.default_keyspace().compact::<&str>(.., &siltstone::Cancel::new()).unwrap();
    db
}

/// Deletes so many of the keys, spread evenly, and returns the bytes of tables afterwards.
fn delete(db: &Db, keys: u64) -> u64 {
    for i in 0..keys {
        db.default_keyspace().delete(key(i * KEYS / keys)).unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    db.stats().disk_bytes
}

fn merged_for_tombstones(db: &Db) -> bool {
    db.default_keyspace().decisions().iter().any(|decision| decision.record.trigger == "tombstone-share")
}

#[test]
fn what_was_deleted_goes_when_it_is_worth_it() {
    let machine = Machine::new();
    let db = loaded(&machine);
    let before = db.stats().disk_bytes;
    let after = delete(&db, KEYS * 3 / 4);
    assert!(merged_for_tombstones(&db) && after < before * 2 / 5, "{before} bytes, then {after}");
    assert_eq!(db.default_keyspace().range::<&str>(..).unwrap().count(), 750);

    for (deleted, goes) in [(KEYS * 23 / 100, false), (KEYS * 27 / 100, true)] {
        let machine = Machine::new();
        let db = loaded(&machine);
        delete(&db, deleted);
        assert_eq!(merged_for_tombstones(&db), goes, "{deleted} of {KEYS}");
    }
}

#[test]
fn a_snapshot_keeps_it_until_it_is_dropped() {
    let machine = Machine::new();
    let db = loaded(&machine);
    let before = db.stats().disk_bytes;
    let snapshot = db.snapshot();
    let kept = delete(&db, KEYS * 3 / 4);
    assert!(!merged_for_tombstones(&db) && kept >= before, "{before} bytes, then {kept}");
    drop(snapshot);
    db.wait_idle().unwrap();
    let after = db.stats().disk_bytes;
    assert!(merged_for_tombstones(&db) && after < before * 2 / 5, "{before} bytes, then {after}");
}
