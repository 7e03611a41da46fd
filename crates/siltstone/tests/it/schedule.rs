//! Merge schedulers, constraints and write control of a whole store, in virtual time on one thread, so that every number is the same each time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use siltstone::io::sim::{Device, Profile, SimClock, SimExecutor, SimFs};
use siltstone::io::{Clock, IoClass, Rng};
use siltstone::schedule::constraint::{Global, Local};
use siltstone::schedule::write_control::Limit;
use siltstone::schedule::{Constraint, Scheduler, WriteControl};
use siltstone::{Db, ErrorKind, Event, Keyspace, KeyspaceOptions, MergeLimit, Options};

use crate::explain::{Machine, options};

fn with(change: impl FnOnce(&mut KeyspaceOptions)) -> Options {
    let mut options = options();
    change(&mut options.keyspace);
    options
}

fn put(keyspace: &Keyspace, n: u64) {
    keyspace.put(format!("key-{:05}", n * 7919 % 3000), format!("{n:040}")).unwrap();
}

fn contents(keyspace: &Keyspace) -> Vec<(Vec<u8>, Vec<u8>)> {
    keyspace.range::<&str>(..).unwrap().map(|r| r.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
}

#[test]
fn whoever_schedules_the_store_holds_the_same_and_comes_to_rest() {
    let mut held = None;
    for name in Scheduler::NAMES {
        let machine = Machine::new();
        let mut options = with(|keyspace| keyspace.strategy = "tiering".to_owned());
        options.scheduler = Scheduler::from_text(name).unwrap();
        let db = machine.open(&options);
        for n in 0..6000 {
            put(&db.default_keyspace(), n);
        }
        db.flush().unwrap();
        db.wait_idle().unwrap();
        assert!(db.merges().is_empty());
        assert_eq!(db.stats().scheduler, name);
        let contents = contents(&db.default_keyspace());
        assert!(held.get_or_insert_with(|| contents.clone()) == &contents, "{name}");
        db.close().unwrap();
    }
}

/// Writes until several merges are under way of which one waits.
fn until_one_waits(machine: &Machine, db: &Db) -> u64 {
    for n in 0..200_000 {
        put(&db.default_keyspace(), n);
        machine.executor.step_random();
        if let Some(merge) = db.merges().iter().find(|merge| !merge.steps) {
            return merge.job;
        }
    }
    panic!("no merge ever waits");
}

#[test]
fn a_merge_that_waits_says_for_whom_and_goes_on_where_it_was_under_another_scheduler() {
    let machine = Machine::new();
    let mut options = with(|keyspace| keyspace.strategy = "tiering".to_owned());
    options.scheduler = Scheduler::Single;
    let db = machine.open(&options);
    let waiting = until_one_waits(&machine, &db);
    let pending = db.default_keyspace().pending().unwrap();
    let merge = pending.merges.iter().find(|merge| merge.job == waiting).unwrap();
    let first = pending.merges.iter().find(|merge| merge.steps).unwrap();
    assert_eq!(merge.why, format!("waits for job {}, which was chosen earlier", first.job));
    assert_eq!((pending.scheduler.as_str(), db.stats().merges_waiting), ("single", 1));
    // Its turn under another scheduler; the other keeps what it has done, and its number.
    let before = first.clone();
    db.limit_merge(before.job, MergeLimit { paused: true, ..MergeLimit::default() }).unwrap();
    assert_eq!(
        db.merges().iter().find(|merge| merge.job == before.job).unwrap().why,
        "is paused, or its own rate is used up"
    );
    db.set_scheduler(Scheduler::default()).unwrap();
    while db.merges().iter().any(|merge| merge.job == waiting) {
        assert!(machine.executor.step_random());
    }
    let after = db.merges().into_iter().find(|merge| merge.job == before.job).unwrap();
    assert_eq!(after.left_bytes, before.left_bytes, "paused");
    db.limit_merge(before.job, MergeLimit::default()).unwrap();
    db.wait_idle().unwrap();
    let decisions = db.default_keyspace().decisions();
    let mut jobs: Vec<u64> = decisions.iter().map(|decision| decision.job).collect();
    assert!(jobs.contains(&before.job) && jobs.contains(&waiting));
    jobs.sort_unstable();
    assert!(jobs.windows(2).all(|pair| pair[0] < pair[1]), "every job ended once: {jobs:?}");
    assert_eq!(db.limit_merge(before.job, MergeLimit::default()).unwrap_err().kind(), ErrorKind::NotFound);
    let set = machine.heard.0.lock().iter().filter(|event| matches!(event, Event::SchedulerSet { .. })).count();
    assert_eq!(set, 1);
}

#[test]
fn a_budget_and_a_rate_of_its_own_are_kept() {
    let machine = Machine::new();
    let db = machine.open(&options());
    db.set_rate_limit(200_000);
    let moved = |db: &Db| db.stats().compaction_bytes_stepped + db.stats().flush_bytes;
    let (began, before) = (machine.clock.mono_ns(), moved(&db));
    for n in 0..6000 {
        put(&db.default_keyspace(), n);
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let (seconds, bytes) = ((machine.clock.mono_ns() - began) as f64 / 1e9, (moved(&db) - before) as f64);
    // Steps count keys and values, files a little more; and the last steps need not be waited for.
    assert!(bytes / seconds < 240_000.0 && bytes / seconds > 150_000.0, "{bytes} bytes in {seconds} s");
    db.set_rate_limit(0);
    for n in 0..100_000 {
        put(&db.default_keyspace(), n);
        if let Some(merge) = db.merges().first().filter(|merge| merge.left_bytes > 30_000) {
            db.limit_merge(merge.job, MergeLimit { rate_bytes_per_s: 10_000, paused: false }).unwrap();
            let began = machine.clock.mono_ns();
            while db.merges().iter().any(|other| other.job == merge.job) {
                if !machine.executor.step_random() {
                    machine.clock.advance_to(machine.executor.next_deadline().unwrap());
                }
            }
            let seconds = (machine.clock.mono_ns() - began) as f64 / 1e9;
            assert!(seconds > 2.0, "{} bytes at 10 kB/s in {seconds} s", merge.left_bytes);
            return;
        }
    }
    panic!("no merge is large enough");
}

#[test]
fn files_are_forced_while_they_are_written() {
    let syncs = |force_every_bytes| {
        let machine = Machine::new();
        let db = machine.open(&Options {
            force_every_bytes,
            write_memory_bytes: 16 << 20,
            ..with(|keyspace| keyspace.memtable_bytes = 2 << 20)
        });
        let value = vec![b'v'; 1000];
        for n in 0..1000 {
            db.default_keyspace().put(format!("{n:05}"), &value).unwrap();
        }
        db.flush().unwrap();
        let classes = machine.fs.bytes_by_class();
        classes.iter().find(|(class, _)| *class == IoClass::Flush).unwrap().1.syncs
    };
    let (rarely, often) = (syncs(0), syncs(256 << 10));
    // A megabyte in pieces of a quarter; what is appended at once may exceed that.
    assert!(often > rarely && often <= rarely + 4, "{rarely} and {often}");
}

#[test]
fn a_busy_keyspace_slows_down_no_other() {
    for control in ["stop", "delay", "{ kind = \"limit\", rate_bytes_per_s = 100000 }"] {
        let machine = Machine::new();
        let options = Options::from_text(&format!("[keyspace]\nwrite_control = {}\n", quoted(control))).unwrap();
        let control = options.keyspace.write_control;
        let db = machine.open(&with(|keyspace| keyspace.write_control = control));
        let light = db.create_keyspace("light", with(|_| ()).keyspace).unwrap();
        let heavy = db.default_keyspace();
        for n in 0..20_000 {
            put(&heavy, n);
            if n % 25 == 0 {
                put(&light, n);
            }
        }
        let (light, heavy) = (light.stats(), heavy.stats());
        assert!(heavy.stalls > 0 || heavy.pace_ns > 0, "{control}: the load is too low");
        assert!(light.ingested_bytes > 30_000, "{control}: it writes as well: {}", light.ingested_bytes);
        assert_eq!((light.stalls, light.stall_ns), (0, 0), "{control}");
        assert!(
            light.pace_ns * 50 < (heavy.pace_ns + heavy.stall_ns),
            "{control}: {} of {}",
            light.pace_ns,
            heavy.pace_ns
        );
    }
}

fn quoted(option: &str) -> String {
    if option.starts_with('{') { option.to_owned() } else { format!("{option:?}") }
}

#[test]
fn a_limit_is_kept_and_compaction_first_waits_for_the_shape() {
    let machine = Machine::new();
    let limit = WriteControl::Limit(Limit { rate_bytes_per_s: 50_000 });
    let db = machine.open(&with(|keyspace| keyspace.write_control = limit));
    let began = machine.clock.mono_ns();
    for n in 0..4000 {
        put(&db.default_keyspace(), n);
    }
    let rate = db.stats().user_bytes_written as f64 * 1e9 / (machine.clock.mono_ns() - began) as f64;
    assert!((30_000.0..52_000.0).contains(&rate), "{rate} bytes a second");

    let machine = Machine::new();
    let db = machine.open(&with(|keyspace| keyspace.write_control = WriteControl::CompactionFirst));
    for n in 0..4000 {
        put(&db.default_keyspace(), n);
        let stats = db.stats();
        assert!(stats.merges == 0 && stats.keyspaces[0].immutables <= 1, "a write came between: {n}");
    }
    assert!(db.stats().compactions > 10);
}

/// A writer who fills segments faster than they are made, where the log of mutable memtables may have so many bytes; the flushes per full memtable.
fn outrun_the_log(max_bytes: u64) -> f64 {
    let machine = Machine::new();
    machine.fs.set_device(None);
    machine.executor.set_side_by_side(true);
    machine.executor.set_step_cost_ns(200_000);
    let mut options = with(|keyspace| {
        keyspace.strategy = "tiering".to_owned();
        keyspace.write_control = WriteControl::Stop;
        keyspace.memtable_bytes = 32 << 10;
    });
    options.write_memory_bytes = 256 << 10;
    options.log.segment_bytes = 8 << 10;
    options.log.max_bytes = max_bytes;
    let db = machine.open(&options);
    let (mut most_log, mut most_dead) = (0, 0);
    for n in 0..5000 {
        // A segment takes three of them, and each step of the background takes longer.
        db.default_keyspace().put(format!("key-{:05}", n * 7919 % 3000), "x".repeat(1000)).unwrap();
        machine.executor.run_for(20_000);
        let (stats, files) = (db.stats(), machine.fs.files());
        let keyspace = &stats.keyspaces[0];
        assert!(keyspace.runs + keyspace.immutables <= keyspace.stop_runs, "{stats:?}");
        assert!(stats.memtable_bytes <= options.write_memory_bytes + keyspace.memtable_bytes, "{stats:?}");
        let tables = files.into_iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "sst"));
        let tables: u64 = tables.map(|(_, bytes)| bytes).sum();
        most_log = most_log.max(stats.log_kept_bytes);
        most_dead = most_dead.max(tables - stats.disk_bytes - stats.spare_bytes);
    }
    let stats = db.stats();
    assert!(stats.stalls > 10);
    assert!(most_log < 2 * options.write_memory_bytes, "{most_log} bytes of log were kept");
    assert!(most_dead < 768 << 10, "{most_dead} bytes of tables that are in no tree");
    stats.flushes as f64 / (stats.user_bytes_written as f64 / options.keyspace.memtable_bytes as f64)
}

#[test]
fn a_writer_who_is_faster_than_the_log_is_made_passes_no_limit() {
    // A memtable with a log of its own of 88 KiB is full before it is set aside; one that may have less is not.
    let (full, early) = (outrun_the_log(128 << 10), outrun_the_log(64 << 10));
    assert!(full < 1.1 && early > 1.15, "{full} and {early}");
}

/// The longest that a write waited in virtual time, and the stalls, when writers write as fast as they can.
fn longest_wait(stall: Option<Duration>) -> (u64, u64, Vec<Event>) {
    let machine = Machine::new();
    let db = machine.open(&with(|keyspace| {
        keyspace.write_control = WriteControl::Stop;
        keyspace.max_write_stall = stall;
        keyspace.size_ratio = 4;
    }));
    let mut longest = 0;
    for n in 0..30_000 {
        let began = machine.clock.mono_ns();
        put(&db.default_keyspace(), n);
        // The first merges are measured before anything can be promised.
        if n > 3000 {
            longest = longest.max(machine.clock.mono_ns() - began);
        }
    }
    let stalls = db.stats().stalls;
    let heard = machine.heard.0.lock().clone();
    (longest, stalls, heard)
}

#[test]
fn a_promise_of_a_longest_stall_shortens_the_stalls_and_a_warning_comes_before_each() {
    let (without, stalls, heard) = longest_wait(None);
    let (with, _, _) = longest_wait(Some(Duration::from_millis(20)));
    assert!(stalls > 10, "{stalls}");
    // On this one-threaded machine flushes, merges and the log run one after the other, which no measure of merges alone foresees.
    assert!(with * 3 < without * 2, "{with} ns with the promise, {without} without");
    let told = |wanted: fn(&Event) -> bool| heard.iter().position(wanted).unwrap();
    let ahead = told(|event| matches!(event, Event::StallAhead { .. }));
    let stall = told(|event| matches!(event, Event::Stall { .. }));
    assert!(ahead < stall, "{:?}", &heard[..=stall]);
}

#[test]
fn the_store_tells_what_it_sustains_and_owes() {
    let machine = Machine::new();
    let db = machine.open(&with(|keyspace| {
        // Merges are most of the work.
        keyspace.strategy = "1-lvl".to_owned();
        keyspace.write_control = WriteControl::Stop;
    }));
    assert_eq!(db.stats().sustainable_write_bytes_per_s, None);
    let began = machine.clock.mono_ns();
    for n in 0..40_000 {
        put(&db.default_keyspace(), n);
    }
    let stats = db.stats();
    let written = stats.user_bytes_written as f64 * 1e9 / (machine.clock.mono_ns() - began) as f64;
    let sustained = stats.sustainable_write_bytes_per_s.unwrap();
    // Writers who write as fast as they can write as much as is sustained, since lanes are never idle. Here lanes do not run side by
    // side, flushes are not free, and whoever logs takes the disk as well.
    assert!(sustained > written * 0.8 && sustained < written * 2.5, "{sustained} said, {written} measured");
    assert!(stats.debt_bytes > 0 && stats.debt_seconds.unwrap() > 0.0);
    assert_eq!(stats.debt_bytes, stats.keyspaces[0].debt_bytes);
    db.flush().unwrap();
    db.wait_idle().unwrap();
    assert_eq!((db.stats().debt_bytes, db.stats().debt_seconds), (0, Some(0.0)));
}

#[test]
fn a_local_constraint_bounds_each_level() {
    let machine = Machine::new();
    let constraint = Constraint::Local(Local { per_level: 4 });
    let db = machine.open(&with(|keyspace| {
        keyspace.strategy = "tiering".to_owned();
        keyspace.constraint = constraint;
        keyspace.write_control = WriteControl::Stop;
    }));
    for n in 0..20_000 {
        put(&db.default_keyspace(), n);
        if n % 50 == 0 {
            let tree = db.default_keyspace().tree();
            assert!(tree.levels.iter().all(|level| level.runs.len() <= 4), "{:?}", db.stats().keyspaces[0].levels);
        }
    }
    assert!(db.default_keyspace().stats().stalls > 0);
    db.wait_idle().unwrap();
}

#[test]
fn what_a_layout_cannot_work_with_is_refused() {
    let machine = Machine::new();
    let wrong = with(|keyspace| keyspace.constraint = Constraint::Global(Global { max_runs: 3 }));
    let error = Db::open_with("/store", wrong.clone(), machine.env()).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidArgument && error.to_string().contains("max_runs = 3"), "{error}");
    assert!(machine.fs.files().is_empty(), "refused before anything is created");
    let db = machine.open(&options());
    let error = db.create_keyspace("other", wrong.keyspace).unwrap_err().to_string();
    assert!(error.contains("at least 10"), "{error}");
    let error = db.set_scheduler(Scheduler::Greedy(siltstone::schedule::Greedy { width: 99 })).unwrap_err().to_string();
    assert!(error.contains("width = 99"), "{error}");
}

/// Ten minutes of load in which every scheduler gets its turn every few seconds, on a disk that is slow enough for stalls, with a crash every
/// forty seconds or so: what was acknowledged is there, every writer gets on, and in the end the tree comes to rest.
#[test]
fn schedulers_take_turns_under_load_with_crashes_and_nothing_is_lost() {
    let mut rng = Rng::new(6);
    let mut options = with(|keyspace| {
        keyspace.strategy = "asterixdb-tiering".to_owned();
        keyspace.write_control = WriteControl::Stop;
        keyspace.constraint = Constraint::Global(Global { max_runs: 12 });
    });
    options.compaction_threads = 2;
    let start = |fs: SimFs, clock: Arc<SimClock>, seed: u64| {
        fs.set_device(Some(Device {
            bandwidth_bytes_per_s: 30_000,
            background_writes_only: true,
            ..Device::default()
        }));
        let executor = SimExecutor::new(&clock, seed);
        executor.set_side_by_side(true);
        Machine { fs, clock, executor, heard: Arc::default() }
    };
    let clock = SimClock::new();
    let mut machine = start(SimFs::new(&clock, 1), clock, 1);
    let mut db = machine.open(&options);
    let mut expected: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let (mut n, mut stalls, mut crashes, mut turns) = (0u64, 0, 0u32, Scheduler::NAMES.iter().cycle());
    const SECOND: u64 = 1_000_000_000;
    let (mut switch_ns, mut crash_ns) = (0, 40 * SECOND);
    let begin_ns = machine.clock.mono_ns();
    while machine.clock.mono_ns() - begin_ns < 600 * SECOND {
        let now_ns = machine.clock.mono_ns() - begin_ns;
        if now_ns >= switch_ns {
            db.set_scheduler(Scheduler::from_text(turns.next().unwrap()).unwrap()).unwrap();
            switch_ns = now_ns + 2 * SECOND;
        }
        if now_ns >= crash_ns {
            let profile = Profile::ALL[usize::try_from(rng.below(5)).unwrap()];
            if profile != Profile::Kill {
                db.sync().unwrap();
            }
            stalls += db.stats().stalls;
            let disk = machine.fs.crash(profile, &mut rng);
            drop(db);
            let clock = disk.clock();
            crashes += 1;
            machine = start(disk, clock, crashes.into());
            db = machine.open(&options);
            let found: BTreeMap<_, _> = contents(&db.default_keyspace()).into_iter().collect();
            assert!(found == expected, "after crash {crashes}, {profile:?}, at {} s", now_ns / SECOND);
            crash_ns = now_ns + 20 * SECOND + rng.below(40 * SECOND);
        }
        for _ in 0..10 {
            n += 1;
            let (key, value) = (format!("key-{:05}", rng.below(3000)), format!("{n:040}"));
            db.default_keyspace().put(&key, &value).unwrap();
            expected.insert(key.into_bytes(), value.into_bytes());
        }
        machine.executor.run_for(10 * SECOND / 250);
    }
    stalls += db.stats().stalls;
    assert!(stalls > 50 && crashes >= 10, "{stalls} stalls, {crashes} crashes: the test shows nothing");
    db.flush().unwrap();
    db.wait_idle().unwrap();
    assert!(db.merges().is_empty() && db.stats().runs < 12, "{} runs", db.stats().runs);
    let found: BTreeMap<_, _> = contents(&db.default_keyspace()).into_iter().collect();
    assert!(found == expected);
    assert_eq!(machine.fs.violations(), Vec::<String>::new());
    db.close().unwrap();
}
