//! A store at rest: it holds no more than its tables, rules that go by time keep it, and `one-leveling` leaves reads one run in L0, for little,
//! or none where L0 is large beside what lies below it.

use std::sync::Arc;

use siltstone::io::Rng;
use siltstone::io::sim::{Profile, SimClock, SimExecutor, SimFs};
use siltstone::{Db, Env, KeyspaceStats, Options};

use crate::db::{key, tiny};
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
    (0..3).for_each(|_| flush(&db, 10));
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
fn runs_of_l0_that_are_large_beside_the_tree_go_down_as_far_as_it_reaches() {
    let machine = Machine::new();
    let mut options = options();
    // L1 holds little: most of the tree lies below.
    options.keyspace.level1_bytes = 12 << 10;
    let db = machine.open(&options);
    load_below_l0(&db);
    flush(&db, 150);
    db.wait_idle().unwrap();
    flush(&db, 30);
    db.wait_idle().unwrap();
    let runs = |db: &Db| stats(db).levels.iter().map(|level| level.runs).collect::<Vec<_>>();
    assert_eq!(runs(&db), [0, 1, 1], "the second is too little to go further than L1");
    let before = stats(&db);
    (0..3).for_each(|_| flush(&db, 50));
    db.wait_idle().unwrap();
    assert_eq!(runs(&db), [0, 0, 1]);
    let all: u64 = before.levels.iter().map(|level| level.bytes).sum();
    let written = stats(&db).merge_bytes_written - before.merge_bytes_written;
    assert!(written < all + all / 4, "{written} bytes were written to merge {all}: once");
}

#[test]
fn runs_that_share_no_keys_become_one_without_being_written_again() {
    let machine = Machine::new();
    let db = loaded(&machine);
    for n in [0, 2, 1] {
        for i in 0..8 {
            db.default_keyspace().put(format!("key-0{n}{i:02}"), format!("{i:040}")).unwrap();
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
    assert_eq!(db.default_keyspace().range::<&str>(..).unwrap().count(), 300);
}

/// The newer runs were to be merged into the place of the oldest, over whose files that merge would have written: no legal plan, so an idle store
/// kept the three runs for ever.
#[test]
fn the_oldest_run_may_lie_between_those_that_join_it() {
    let one_leveling = include_str!("../../../../strategies/one-leveling.toml");
    let rewriting = one_leveling.replace("name = \"one-leveling\"", "name = \"rewriting\"\nreuse = \"never\"");
    for (strategy, order) in [one_leveling, &rewriting].into_iter().flat_map(|s| [(s, [1, 0, 2]), (s, [1, 2, 0])]) {
        let machine = Machine::new();
        let mut options = options();
        options.keyspace.strategy = strategy.to_owned();
        let db = machine.open(&options);
        load_below_l0(&db);
        for n in order {
            for i in 0..8 {
                db.default_keyspace().put(format!("key-0{n}{i:02}"), format!("{i:040}")).unwrap();
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
        assert_eq!(db.default_keyspace().range::<&str>(..).unwrap().count(), 300);
    }
}

#[test]
fn it_is_rest_when_nothing_was_written_for_ten_seconds() {
    let machine = Machine::new();
    let db = loaded(&machine);
    for _ in 0..3 {
        flush(&db, 10);
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
    for (records, runs) in [(50, 1), (1, 2), (1, 2), (10, 1)] {
        flush(&db, records);
        db.wait_idle().unwrap();
        assert_eq!(runs_of_l0(&db), runs);
    }
}

#[test]
fn who_rests_after_each_flush_has_little_in_l0() {
    let machine = Machine::new();
    let db = loaded(&machine);
    let (mut bytes, mut went_down) = (0, 0);
    for n in 0..48 {
        for i in 0..20 {
            db.default_keyspace().put(format!("key-{:04}", 48 * i + n), format!("{i:040}")).unwrap();
        }
        db.flush().unwrap();
        db.wait_idle().unwrap();
        let levels = stats(&db).levels;
        let before = std::mem::replace(&mut bytes, levels[0].bytes);
        assert!(levels[0].runs <= 2 && 4 * bytes <= levels[1].bytes, "{levels:?}");
        went_down += u64::from(bytes < before);
    }
    assert!((8..=24).contains(&went_down), "{went_down} times of 48");
}

/// What is made ready for writers, and what is given back when they pause, are not the same thing done and undone for ever.
#[test]
fn a_store_with_half_a_memtable_comes_to_rest() {
    let clock = SimClock::new();
    let executor = Arc::new(SimExecutor::new(&clock, 1));
    let fs = SimFs::new(&clock, 1);
    let env = Env { fs: Arc::new(fs), clock: clock.clone(), executor: executor.clone(), ..Env::default() };
    // Large enough for huge pages, which are made ready.
    let mut options = Options { write_memory_bytes: 16 << 20, ..tiny() };
    options.keyspace.memtable_bytes = 4 << 20;
    options.log.segment_bytes = 1 << 20;
    options.log.max_bytes = 64 << 20;
    let db = Db::open_with("/half", options, env).unwrap();
    let write = |bytes: u64| {
        for n in 0..bytes / 1000 {
            db.default_keyspace().put(key(n), "x".repeat(1000)).unwrap();
            executor.run_for(1000);
        }
    };
    for bytes in [3_000_000, 9_000_000] {
        write(bytes);
        executor.run_for(60_000_000_000);
    }
}

/// Tables and log segments are kept for seconds, to be written over, and segments are made ahead; who waits for rest has the space back at once.
#[test]
fn at_rest_a_store_takes_what_its_tables_take() {
    let clock = SimClock::new();
    let fs = SimFs::new(&clock, 1);
    let executor = Arc::new(SimExecutor::new(&clock, 1));
    let env = Env { fs: Arc::new(fs.clone()), clock: clock.clone(), executor: executor.clone(), ..Env::default() };
    let segment = 32 << 10;
    let mut options = Options { write_memory_bytes: 256 << 10, ..tiny() };
    options.log.segment_bytes = segment;
    options.log.max_bytes = 512 << 10;
    options.keyspace.memtable_bytes = 64 << 10;
    let db = Db::open_with("/resting", options.clone(), env).unwrap();
    let bytes_of = |extension: &str| {
        let files = fs.files().into_iter().filter(|(path, _)| path.extension().is_some_and(|e| e == extension));
        files.map(|(_, bytes)| bytes).sum::<u64>()
    };
    let (mut spares_seen, mut most_log) = (false, 0);
    for _ in 0..10 {
        (0..8000).for_each(|n| db.default_keyspace().put(key(n * 7 % 100), "some value".repeat(9)).unwrap());
        db.flush().unwrap();
        executor.run_for(1_000_000_000);
        spares_seen |= db.stats().spare_bytes > 0;
        most_log = bytes_of("log").max(most_log);
        db.wait_idle().unwrap();
        assert_eq!(db.stats().spare_bytes, 0);
        assert_eq!(bytes_of("sst"), db.stats().disk_bytes);
        assert_eq!(bytes_of("log"), segment / 4, "a short segment");
    }
    assert!(spares_seen && most_log > 4 * segment, "{most_log}");

    // A writer that fills segments fast and stops before it has filled a memtable: what was made ahead is given back all the same.
    let mut written = 0;
    while bytes_of("log") < 4 * segment {
        assert!(written < segment, "segments are made ahead");
        db.default_keyspace().put(key(1), "x".repeat(1000)).unwrap();
        written += 1000;
        executor.run_for(1000);
    }
    executor.run_for(11_000_000_000);
    assert!(bytes_of("log") <= written + 2 * segment, "{} for {written}", bytes_of("log"));

    // Nothing is missed of what was given back.
    let after = fs.crash(Profile::Nasty, &mut Rng::new(1));
    drop(db);
    let executor = Arc::new(SimExecutor::new(&clock, 1));
    let env = Env { fs: Arc::new(after), clock, executor, ..Env::default() };
    let db = Db::open_with("/resting", options, env).unwrap();
    assert_eq!(db.default_keyspace().range::<&[u8]>(..).unwrap().count(), 100);
}

/// A store on which nobody works wakes when a rule's time has come.
#[test]
fn an_idle_store_keeps_the_times_of_its_strategy() {
    let clock = SimClock::new();
    let fs = SimFs::new(&clock, 1);
    let executor = SimExecutor::new(&clock, 1);
    let env = Env { fs: Arc::new(fs), clock, executor: Arc::new(executor.clone()), ..Env::default() };
    let mut options = Options::default();
    options.keyspace.strategy = r#"
        name = "stale"
        layout = { kind = "one-leveling", l0_runs = 2 }
        [[rule]]
        levels = [0]
        trigger = { kind = "sorted-runs" }
        granularity = { kind = "sorted-runs" }
        [[rule]]
        trigger = { kind = "file-staleness", age = "1h" }
        granularity = { kind = "file" }
        movement = ["oldest"]
    "#
    .to_owned();
    let db = Db::open_with("/stale", options, env).unwrap();
    let keyspace = db.default_keyspace();
    for _ in 0..2 {
        keyspace.put("key", "value").unwrap();
        keyspace.flush().unwrap();
        db.wait_idle().unwrap();
    }
    let runs = || keyspace.tree().levels.iter().map(|level| level.runs.len()).collect::<Vec<_>>();
    assert_eq!(runs(), [1, 1]);
    executor.run_for(3_590 * 1_000_000_000);
    assert_eq!(runs(), [1, 1], "ten seconds early");
    executor.run_for(20 * 1_000_000_000);
    assert_eq!(runs(), [0, 1]);
}

/// A store in which nothing is written for the time of the trigger `idle` brings everything to the last level; one that is written to does not,
/// and a reopened store waits anew.
#[test]
fn a_store_that_is_not_written_to_compacts() {
    let clock = SimClock::new();
    let fs = Arc::new(SimFs::new(&clock, 1));
    let executor = SimExecutor::new(&clock, 1);
    let second = 1_000_000_000;
    let open = || {
        let env = Env { fs: fs.clone(), clock: clock.clone(), executor: Arc::new(executor.clone()), ..Env::default() };
        let mut options = tiny();
        options.keyspace.strategy = "dlsm".to_owned();
        Db::open_with("/idle", options, env).unwrap()
    };
    let runs = |db: &Db| {
        let tree = db.default_keyspace().tree();
        tree.levels.iter().map(|level| level.runs.len()).collect::<Vec<_>>()
    };
    let db = open();
    let keyspace = db.default_keyspace();
    let mut rng = Rng::new(2);
    for n in 0..3000 {
        keyspace.put(key(rng.below(100_000)), "x".repeat(60)).unwrap();
        // Writers come by every six seconds for a long time.
        if (2900..2999).contains(&n) {
            executor.run_for(6 * second);
        }
    }
    executor.run_until_idle();
    let before = runs(&db);
    assert!(before.len() >= 3 && before.iter().sum::<usize>() > before.len(), "{before:?}");
    executor.run_for(9 * second);
    assert_eq!(runs(&db), before, "a second early");
    drop(keyspace);
    drop(db);
    let db = open();
    let before = runs(&db);
    executor.run_for(9 * second);
    assert_eq!(runs(&db), before, "it was opened nine seconds ago");
    // The time of a write is not known better than the pause is long.
    executor.run_for(12 * second);
    let after = runs(&db);
    assert!(after.iter().sum::<usize>() == 1 && after.last() == Some(&1), "{after:?}");
    // One more write begins another pause.
    db.default_keyspace().put("key", "value").unwrap();
    db.default_keyspace().flush().unwrap();
    executor.run_until_idle();
    assert_eq!(runs(&db)[0], 1);
    executor.run_for(9 * second);
    assert_eq!(runs(&db)[0], 1);
    executor.run_for(12 * second);
    assert_eq!(runs(&db), after);
    // And who waits for rest need not wait for the pause.
    db.default_keyspace().put("key", "value").unwrap();
    db.default_keyspace().flush().unwrap();
    db.wait_idle().unwrap();
    assert_eq!(runs(&db), after);
}
