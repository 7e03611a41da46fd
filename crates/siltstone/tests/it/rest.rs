//! What `one-leveling` does at rest: reads find one run in L0, for little, and L0 still goes down when it holds what it may.

use siltstone::{Db, KeyspaceStats};

use crate::explain::{Machine, load, options};

const SECOND: u64 = 1_000_000_000;

/// A store whose records all lie below L0, and that nothing more was written to.
fn loaded(machine: &Machine) -> Db {
    let db = machine.open(&options());
    load_below_l0(&db);
    db
}

fn load_below_l0(db: &Db) {
    load(db, 3000);
    db.default_keyspace().compact::<&str>(.., &siltstone::Cancel::new()).unwrap();
}

/// Writes so many records, over all keys, and flushes them.
fn flush(db: &Db, records: u64) {
    for i in 0..records {
        db.default_keyspace().put(format!("key-{:04}", 300 / records * i), format!("{i:040}")).unwrap();
    }
    db.flush().unwrap();
}

fn stats(db: &Db) -> KeyspaceStats {
    db.stats().keyspaces[0].clone()
}

fn runs_of_l0(db: &Db) -> u64 {
    stats(db).levels[0].runs
}

#[test]
fn runs_of_l0_are_merged_into_one_and_the_rest_stays_as_it_is() {
    let machine = Machine::new();
    let db = loaded(&machine);
    (0..3).for_each(|_| flush(&db, 50));
    machine.executor.run_until_idle();
    let before = stats(&db);
    assert_eq!(before.levels[0].runs, 3);
    db.wait_idle().unwrap();
    let after = stats(&db);
    assert_eq!((after.levels[0].runs, after.levels[1].runs), (1, 1));
    assert_eq!(after.merge_bytes_read - before.merge_bytes_read, before.levels[0].bytes);
    let decisions = db.default_keyspace().decisions();
    assert_eq!(decisions.iter().rfind(|decision| decision.is_merge_done()).unwrap().record.trigger, "idle");
}

#[test]
fn runs_that_share_no_keys_become_one_without_being_written_again() {
    let machine = Machine::new();
    let db = loaded(&machine);
    for n in [5, 7, 6] {
        for i in 0..50 {
            db.default_keyspace().put(format!("key-{n}{i:03}"), format!("{i:040}")).unwrap();
        }
        db.flush().unwrap();
    }
    machine.executor.run_until_idle();
    let before = stats(&db);
    assert_eq!(before.levels[0].runs, 3);
    db.wait_idle().unwrap();
    let after = stats(&db);
    assert_eq!((after.levels[0].runs, after.levels[0].bytes), (1, before.levels[0].bytes));
    assert_eq!(after.merge_bytes_written, before.merge_bytes_written);
    assert_eq!(db.default_keyspace().range("key-5".."key-8").unwrap().count(), 150);
}

/// The newer runs were to be merged into the place of the oldest, over whose files that merge would have written: no legal plan, so an idle store
/// kept the three runs for ever.
#[test]
fn the_oldest_run_may_lie_between_those_that_join_it() {
    let one_leveling = include_str!("../../../../strategies/one-leveling.toml");
    let rewriting = one_leveling.replace("name = \"one-leveling\"", "name = \"rewriting\"\nreuse = \"never\"");
    for (strategy, order) in [one_leveling, &rewriting].into_iter().flat_map(|s| [(s, [6, 5, 7]), (s, [6, 7, 5])]) {
        let machine = Machine::new();
        let mut options = options();
        options.keyspace.strategy = strategy.to_owned();
        let db = machine.open(&options);
        load_below_l0(&db);
        for n in order {
            for i in 0..50 {
                db.default_keyspace().put(format!("key-{n}{i:03}"), format!("{i:040}")).unwrap();
            }
            db.flush().unwrap();
        }
        machine.executor.run_until_idle();
        let before = stats(&db);
        assert_eq!(before.levels[0].runs, 3);
        db.wait_idle().unwrap();
        let after = stats(&db);
        assert_eq!(after.levels[0].runs, 1, "{order:?}");
        assert_eq!(after.merge_bytes_written > before.merge_bytes_written, strategy == rewriting, "{order:?}");
        assert_eq!(db.default_keyspace().range("key-5".."key-8").unwrap().count(), 150);
    }
}

#[test]
fn it_is_rest_when_nothing_was_written_for_ten_seconds() {
    let machine = Machine::new();
    let db = loaded(&machine);
    for _ in 0..3 {
        flush(&db, 50);
        machine.executor.run_for(9 * SECOND);
    }
    assert_eq!(runs_of_l0(&db), 3);
    machine.executor.run_for(12 * SECOND);
    assert_eq!(runs_of_l0(&db), 1);
}

#[test]
fn little_that_came_is_not_worth_a_large_run() {
    let machine = Machine::new();
    let db = loaded(&machine);
    for (records, runs) in [(150, 1), (5, 2), (5, 2), (5, 2), (50, 1)] {
        flush(&db, records);
        db.wait_idle().unwrap();
        assert_eq!(runs_of_l0(&db), runs);
    }
}

#[test]
fn one_run_goes_down_when_it_is_as_large_as_the_runs_that_would() {
    let machine = Machine::new();
    let db = loaded(&machine);
    let memtable_bytes = options().keyspace.memtable_bytes;
    let (mut bytes, mut went_down) = (0, 0);
    for n in 0..24 {
        for i in 0..100 {
            db.default_keyspace().put(format!("key-{:04}", 24 * i + n), format!("{i:040}")).unwrap();
        }
        db.flush().unwrap();
        db.wait_idle().unwrap();
        let before = std::mem::replace(&mut bytes, stats(&db).levels[0].bytes);
        assert!(bytes < 4 * memtable_bytes, "{bytes} bytes in L0");
        went_down += u64::from(bytes < before);
    }
    assert!((3..=6).contains(&went_down), "{went_down} times of 24");
}
