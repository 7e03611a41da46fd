//! The budget for the space that merges take for a time (`extra_space_bytes`), and readers that hold replaced files.

use siltstone::{Cancel, Db, ErrorKind, Options, Range};

use crate::explain::{Machine, options};

const SECOND: u64 = 1_000_000_000;
const MOST_RUNS: u32 = 12;

/// Room for a few merges, and for less than the tree.
fn budgeted() -> Options {
    let mut options = options();
    options.extra_space_bytes = 300 << 10;
    options.keyspace.max_runs = MOST_RUNS;
    options
}

fn put(db: &Db, i: u64) -> siltstone::Result<()> {
    db.default_keyspace().put(format!("key-{:05}", i * 7919 % 3000), format!("{i:060}"))
}

/// A range over the first records, which is held while others are written until a write fails or `writes` have succeeded; the result of the last
/// one.
fn write_beside_a_range(db: &Db, writes: u64) -> (Range, siltstone::Result<()>) {
    (0..6000).for_each(|i| put(db, i).unwrap());
    let mut range = db.default_keyspace().range::<&str>(..).unwrap();
    assert!(range.advance().unwrap());
    let written = (6000..6000 + writes).try_for_each(|i| {
        let runs = db.stats().runs;
        assert!(runs <= MOST_RUNS.into(), "{runs} runs");
        put(db, i)
    });
    (range, written)
}

/// Merges that waited for the files of an open iterator counted as none: writers passed the limit of runs for as long as it was open (298 runs
/// where 10 were allowed), and `wait_idle` said that all was done.
#[test]
fn an_open_range_that_holds_all_space_stops_writers_until_it_is_dropped() {
    let machine = Machine::new();
    let db = machine.open(&budgeted());
    let (range, written) = write_beside_a_range(&db, 30_000);
    assert_eq!(written.unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(db.default_keyspace().debt().unwrap().runs >= MOST_RUNS.into(), "as long as there is room, nobody is told");
    assert_eq!(db.wait_idle().unwrap_err().kind(), ErrorKind::NoSpace);
    let compacted = db.default_keyspace().compact::<&str>(.., &Cancel::new());
    assert_eq!(compacted.unwrap_err().kind(), ErrorKind::NoSpace);
    db.checkpoint("/copy").unwrap();
    // Nothing is tried, and nothing told, while it is open.
    let (steps, errors) = (machine.executor.steps(), db.stats().background_errors);
    machine.executor.run_for(60 * SECOND);
    assert!(machine.executor.steps() - steps < 60, "{} steps", machine.executor.steps() - steps);
    assert_eq!(db.stats().background_errors, errors);
    assert_eq!(range.count(), 2999, "it reads what it began with");
    db.wait_idle().unwrap();
    assert_eq!(db.default_keyspace().debt().unwrap().merges, 0);
    assert!(db.stats().runs < MOST_RUNS.into());
    (0..6000).for_each(|i| put(&db, i).unwrap());
}

#[test]
fn who_reads_for_less_than_a_second_is_waited_for() {
    for (ns, told) in [(SECOND / 2, 0), (10 * SECOND, 1)] {
        let machine = Machine::new();
        let db = machine.open(&budgeted());
        let (range, _) = write_beside_a_range(&db, 0);
        machine.executor.run_for(ns);
        assert_eq!(db.stats().background_errors, told);
        drop(range);
        db.wait_idle().unwrap();
    }
}
