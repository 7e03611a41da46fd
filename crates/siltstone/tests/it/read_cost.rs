//! The trigger `read-cost` in a whole store: reads have the runs merged away that they have paid for.

use siltstone::Db;

use crate::explain::{Machine, load, options};

/// What a range and a point lookup pay for a run, in bytes (`db/read_work.rs`).
const RANGE_BYTES: u64 = 512;
const GET_BYTES: u64 = 32;
/// How late a reader looks at the most.
const RANGES_LATE: u64 = 64;
const GETS_LATE: u64 = 1024;

/// A store at rest with two runs of all keys in L0.
fn two_runs(machine: &Machine) -> Db {
    let db = machine.open(&options());
    load(&db, 3000);
    db.default_keyspace().compact::<&str>(.., &siltstone::Cancel::new()).unwrap();
    (0..2).for_each(|_| add_run(&db));
    assert_eq!(runs_of_l0(machine, &db), 2);
    db
}

/// Writes a part of a memtable, over all keys, and flushes it.
fn add_run(db: &Db) {
    for i in 0..50 {
        db.default_keyspace().put(format!("key-{:04}", 6 * i), format!("{i:040}")).unwrap();
    }
    db.flush().unwrap();
}

/// After what is due now; who waits for rest would have them merged.
fn runs_of_l0(machine: &Machine, db: &Db) -> u64 {
    machine.executor.run_until_idle();
    db.stats().keyspaces[0].levels[0].runs
}

/// How many reads of `bytes` for each of two runs have paid for the merge of everything.
fn price(db: &Db, bytes: u64) -> u64 {
    db.stats().disk_bytes.div_ceil(2 * bytes)
}

fn scan(db: &Db, times: u64) {
    for _ in 0..times {
        assert!(db.default_keyspace().range("key-0100"..).unwrap().next().is_some());
    }
}

/// Looks up a key between two that are there: each run is asked.
fn look_up(db: &Db, times: u64) {
    for _ in 0..times {
        assert!(db.default_keyspace().get("key-0100-").unwrap().is_none());
    }
}

#[test]
fn ranges_pay_for_a_merge() {
    let machine = Machine::new();
    let db = two_runs(&machine);
    let price = price(&db, RANGE_BYTES);
    scan(&db, price - 1);
    assert_eq!(runs_of_l0(&machine, &db), 2, "{price} ranges are the price");
    scan(&db, RANGES_LATE);
    assert_eq!(runs_of_l0(&machine, &db), 0);
    let decisions = db.default_keyspace().decisions();
    let last = decisions.iter().rfind(|decision| decision.is_merge_done()).unwrap();
    assert!(last.record.trigger == "read-cost" && last.record.value >= last.record.threshold, "{last}");
    // Nothing is left to be spared: reads change nothing.
    let merges = db.stats().compactions;
    scan(&db, 3 * price);
    assert_eq!((runs_of_l0(&machine, &db), db.stats().compactions), (0, merges));
}

#[test]
fn lookups_pay_for_a_merge_and_a_reopened_store_begins_at_nothing() {
    let machine = Machine::new();
    let db = two_runs(&machine);
    // Three runs are asked each time.
    let price = price(&db, GET_BYTES);
    look_up(&db, price - 1);
    assert_eq!(runs_of_l0(&machine, &db), 2, "{price} lookups are the price");
    db.close().unwrap();
    let db = machine.open(&options());
    look_up(&db, price - 1);
    assert_eq!(runs_of_l0(&machine, &db), 2);
    look_up(&db, GETS_LATE);
    assert_eq!(runs_of_l0(&machine, &db), 0);
}

#[test]
fn what_was_read_before_a_run_came_does_not_count_for_it() {
    let machine = Machine::new();
    let db = two_runs(&machine);
    scan(&db, price(&db, RANGE_BYTES) * 3 / 4);
    add_run(&db);
    assert_eq!(runs_of_l0(&machine, &db), 3);
    // Two runs have three quarters of the old price each, the third has nothing yet: a little more is due than for two.
    let pending = db.default_keyspace().pending().unwrap();
    assert!(pending.next.is_none(), "{pending:?}");
    scan(&db, price(&db, RANGE_BYTES) * 3 / 4 + RANGES_LATE);
    assert_eq!(runs_of_l0(&machine, &db), 0);
}
