//! Decision records of a whole store: in memory, in events, across a close, in a damaged file. Virtual time on one thread, so that every
//! number is the same each time.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use siltstone::compaction::{Action, Appraisal, Decision, Ending, Verdict};
use siltstone::io::sim::{CallKind, Device, Errno, Fault, SimClock, SimExecutor, SimFs};
use siltstone::io::{Clock, Executor, Fs, Rng};
use siltstone::{Cancel, Db, Env, Event, EventListener, KeyspaceOptions, Options};

use crate::db::short_l0;

/// A simulated machine with a slow disk, so that I/O takes time.
pub(crate) struct Machine {
    pub(crate) fs: SimFs,
    pub(crate) clock: Arc<SimClock>,
    pub(crate) executor: SimExecutor,
    pub(crate) heard: Arc<Heard>,
}

/// The events of compactions.
#[derive(Default)]
pub(crate) struct Heard(pub(crate) Mutex<Vec<Event>>);

impl EventListener for Heard {
    fn event(&self, event: &Event) {
        self.0.lock().push(event.clone());
    }
}

impl Machine {
    pub(crate) fn new() -> Machine {
        let clock = SimClock::new();
        let fs = SimFs::new(&clock, 1);
        fs.set_device(Some(Device {
            bandwidth_bytes_per_s: 10 << 20,
            iops: 10_000,
            latency_ns: 100_000,
            sync_ns: 1_000_000,
            ..Device::default()
        }));
        Machine { fs, executor: SimExecutor::new(&clock, 1), clock, heard: Arc::default() }
    }

    pub(crate) fn env(&self) -> Env {
        Env {
            fs: Arc::new(self.fs.clone()) as Arc<dyn Fs>,
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            rng: Rng::new(1),
            executor: Arc::new(self.executor.clone()) as Arc<dyn Executor>,
            listener: Some(Arc::clone(&self.heard) as Arc<dyn EventListener>),
            ..Env::default()
        }
    }

    pub(crate) fn open(&self, options: &Options) -> Db {
        Db::open_with("/store", options.clone(), self.env()).unwrap()
    }
}

pub(crate) fn options() -> Options {
    let mut options = Options { write_memory_bytes: 64 << 10, compaction_threads: 1, ..Options::default() };
    options.log.segment_bytes = 16 << 10;
    options.keyspace = KeyspaceOptions {
        memtable_bytes: 8 << 10,
        file_bytes: 8 << 10,
        block_bytes: 512,
        size_ratio: 3,
        strategy: short_l0(),
        ..KeyspaceOptions::default()
    };
    options
}

/// The same with so few runs that merges come often and wait for nobody.
fn few_runs() -> Options {
    let mut options = options();
    options.keyspace.max_runs = 10;
    options
}

/// Writes `n` records over 300 keys and lets all merges end.
pub(crate) fn load(db: &Db, n: u64) {
    let keyspace = db.default_keyspace();
    for i in 0..n {
        keyspace.put(format!("key-{:04}", i * 7919 % 300), format!("{i:040}")).unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
}

#[test]
fn records_tell_what_was_predicted_and_what_it_cost() {
    let machine = Machine::new();
    let db = machine.open(&few_runs());
    load(&db, 3000);
    let decisions = db.default_keyspace().decisions();
    let merges: Vec<_> = decisions.iter().filter(|decision| decision.is_merge_done()).collect();
    assert!(merges.len() >= 5, "{decisions:#?}");
    assert_eq!(merges[0].predicted_ns, None, "nothing to go by yet");
    let stats = db.stats();
    let mut read = 0;
    for (n, merge) in merges.iter().enumerate() {
        let ended = merge.ended.as_ref().unwrap();
        read += ended.bytes_read;
        assert_eq!(ended.bytes_read, merge.record.read_bytes, "what is read is known before: {merge}");
        assert!(ended.bytes_written > 0 && ended.bytes_written <= merge.record.write_bytes, "an upper bound: {merge}");
        assert!(ended.entries_written + ended.dropped_versions == ended.entries_read, "{ended:?}");
        // In the simulation computing takes no time; what is not I/O is waiting.
        assert!(ended.io_ns > 0 && ended.cpu_ns == 0 && ended.took_ns >= ended.io_ns, "{ended:?}");
        if n > 0 {
            let (predicted, took) = (merge.predicted_ns.unwrap(), ended.took_ns);
            assert!(predicted / 4 < took && took < predicted * 4, "predicted {predicted}, took {took}: {merge}");
        }
        assert!(merge.started_ms > 0 && merge.strategy == "one-leveling");
    }
    assert_eq!(read, stats.compaction_bytes_read);
    let jobs: Vec<u64> = decisions.iter().map(|decision| decision.job).collect();
    assert!(jobs.is_sorted_by(|a, b| a < b), "{jobs:?}");

    // Events carry the same records.
    let heard = machine.heard.0.lock();
    let told = heard.iter().filter_map(|event| match event {
        Event::CompactionEnd { decision, reason, .. } => {
            assert_eq!(*reason, decision.to_string());
            Some(Decision::clone(decision))
        }
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), decisions.iter().map(|d| Decision::clone(d)).collect::<Vec<_>>());
}

#[test]
fn records_come_back_after_a_close_and_stay_few() {
    let machine = Machine::new();
    let options = Options { decision_records: 6, ..few_runs() };
    let mut last = Vec::new();
    for _ in 0..4 {
        let db = machine.open(&options);
        let back = db.default_keyspace().decisions();
        assert_eq!(back, last, "what the store before had kept");
        load(&db, 3000);
        last = db.default_keyspace().decisions();
        assert_eq!(last.len(), 6);
        let jobs: Vec<u64> = last.iter().map(|decision| decision.job).collect();
        assert!(jobs.is_sorted_by(|a, b| a < b) && back.iter().all(|old| old.job < jobs[5]), "{jobs:?}");
        db.close().unwrap();
    }
    let read_only = Env { read_only: true, ..machine.env() };
    let db = Db::open_with("/store", options.clone(), read_only).unwrap();
    assert_eq!(db.default_keyspace().decisions(), last);
    drop(db);
    // None are kept if none are wanted.
    let db = machine.open(&Options { decision_records: 0, ..options });
    load(&db, 2000);
    assert!(db.default_keyspace().decisions().is_empty());
}

#[test]
fn the_file_stays_small_and_may_be_cut_anywhere() {
    let machine = Machine::new();
    let options = Options { decision_records: 3, ..options() };
    let db = machine.open(&options);
    load(&db, 60_000);
    db.close().unwrap();
    let bytes = machine.fs.read_all("/store/DECISIONS").unwrap();
    assert!(bytes.len() < 80 << 10, "{} bytes for three decisions", bytes.len());
    let all = machine.open(&options).default_keyspace().decisions();
    // A short one, to be cut everywhere.
    let db = machine.open(&options);
    load(&db, 1000);
    db.close().unwrap();
    let bytes = machine.fs.read_all("/store/DECISIONS").unwrap();
    let whole = machine.open(&options).default_keyspace().decisions();
    assert_ne!(whole, all);
    for cut in (0..bytes.len()).step_by(7) {
        machine.fs.write_all("/store/DECISIONS", &bytes[..cut]).unwrap();
        let read_only = Env { read_only: true, ..machine.env() };
        let db = Db::open_with("/store", options.clone(), read_only).unwrap();
        assert!(db.default_keyspace().decisions().len() <= whole.len());
    }
    // And a writer goes on with what was left.
    let db = machine.open(&options);
    load(&db, 1000);
    assert_eq!(db.default_keyspace().decisions().len(), 3);
}

#[test]
fn a_store_without_room_for_records_works_on() {
    for kind in [CallKind::Create, CallKind::Append, CallKind::Rename, CallKind::Remove] {
        let machine = Machine::new();
        let db = machine.open(&options());
        for name in ["DECISIONS", "DECISIONS.new"] {
            machine.fs.set_fault(Fault::nth(1, Errno::NoSpace).of(kind).suffix(name).sticky());
        }
        load(&db, 2000);
        let kept = db.default_keyspace().decisions();
        assert!(kept.len() > 3, "in memory they are kept");
        assert!(!machine.heard.0.lock().iter().any(|event| matches!(event, Event::Error { .. })));
        machine.fs.clear_faults();
        load(&db, 500);
        let kept = db.default_keyspace().decisions();
        db.close().unwrap();
        assert_eq!(
            machine.open(&options()).default_keyspace().decisions(),
            kept,
            "{kind:?}: written when it was possible"
        );
    }
}

#[test]
fn what_fails_or_is_cancelled_says_so() {
    let machine = Machine::new();
    let db = machine.open(&options());
    load(&db, 500);
    machine.fs.set_fault(Fault::nth(2, Errno::Io).of(CallKind::Append).class(siltstone::io::IoClass::Compaction(1)));
    load_through(&machine, &db, 2000);
    let decisions = db.default_keyspace().decisions();
    let failed = decisions.iter().filter_map(|decision| decision.ended.as_ref());
    let failed: Vec<_> = failed.filter(|ended| matches!(ended.ending, Ending::Failed(_))).collect();
    assert_eq!(failed.len(), 1, "{decisions:#?}");
    let Ending::Failed(why) = &failed[0].ending else { unreachable!() };
    assert!(why.contains(".sst"), "{why}");
    assert!(failed[0].bytes_read > 0);
    let heard = machine.heard.0.lock();
    assert!(heard.iter().any(|event| matches!(event, Event::CompactionAbandoned { .. })));
    drop(heard);

    let cancel = Cancel::new();
    cancel.cancel();
    assert!(db.default_keyspace().compact::<&str>(.., &cancel).is_err());
    // A run above the others, so that there is something to merge.
    db.default_keyspace().put("key-0000", "newer").unwrap();
    db.flush().unwrap();
    db.default_keyspace().compact::<&str>(.., &Cancel::new()).unwrap();
    let manual = db.default_keyspace().decisions();
    assert!(manual.iter().any(|decision| decision.to_string().ends_with("manual") && decision.action == Action::Merge));
}

/// As [`load`], but writes go on when the store says that it is in trouble.
fn load_through(machine: &Machine, db: &Db, n: u64) {
    let keyspace = db.default_keyspace();
    for i in 0..n {
        let _ = keyspace.put(format!("key-{:04}", i * 7919 % 300), format!("{i:040}"));
    }
    let settled = (0..20).any(|_| {
        machine.executor.run_for(1_000_000_000);
        db.flush().and_then(|()| db.wait_idle()).is_ok()
    });
    assert!(settled, "the fault is gone, the store works again");
}

#[test]
fn a_folder_is_judged_without_the_records() {
    // A store is whole without the file.
    let machine = Machine::new();
    let db = machine.open(&options());
    load(&db, 1000);
    db.close().unwrap();
    machine
        .fs
        .remove_file(Path::new("/store/DECISIONS"), siltstone::io::IoCtx::foreground(siltstone::io::IoClass::Meta))
        .unwrap();
    let db = machine.open(&options());
    assert!(db.default_keyspace().decisions().is_empty());
    assert_eq!(db.default_keyspace().range::<&str>(..).unwrap().count(), 300);
}

#[test]
fn what_is_pending_is_what_is_done_next() {
    // A store that was cut off in the middle: looked at read-only, then opened.
    let machine = Machine::new();
    let db = machine.open(&few_runs());
    let keyspace = db.default_keyspace();
    for i in 0..5400u64 {
        keyspace.put(format!("key-{:04}", i * 7919 % 300), format!("{i:040}")).unwrap();
    }
    db.close().unwrap();
    machine.heard.0.lock().clear();
    let read_only = Env { read_only: true, ..machine.env() };
    let looker = Db::open_with("/store", few_runs(), read_only).unwrap();
    let pending = looker.default_keyspace().pending().unwrap();
    let next = pending.next.as_ref().expect("runs had gathered");
    assert_eq!(pending.rules[0].appraisal.verdict, Verdict::Next);
    assert!(next.predicted_ns.is_some() && pending.running.is_empty() && pending.refused.is_none());
    drop(looker);
    let db = machine.open(&few_runs());
    db.wait_idle().unwrap();
    let heard = machine.heard.0.lock();
    let first = heard.iter().find_map(|event| match event {
        Event::CompactionStart { decision, .. } => Some(Decision::clone(decision)),
        _ => None,
    });
    let first = first.unwrap();
    assert_eq!((first.inputs, first.record), (next.inputs.clone(), next.record.clone()));
    drop(heard);
    // When all is done, every rule is there with its figures, and none fires but perhaps the one of idle stores, which finds nothing.
    let pending = db.default_keyspace().pending().unwrap();
    assert!(pending.next.is_none());
    let is_quiet = |rule: &Appraisal| match rule.trigger.as_str() {
        "idle" => matches!(rule.verdict, Verdict::Nothing | Verdict::Quiet),
        _ => rule.verdict == Verdict::Quiet,
    };
    assert!(pending.rules.iter().all(|rule| is_quiet(&rule.appraisal)), "{pending:#?}");
    assert!(pending.rules.iter().any(|rule| rule.appraisal.score() > 0.0));
}

#[test]
fn what_compaction_costs_adds_up() {
    let machine = Machine::new();
    let db = machine.open(&options());
    let other = db.create_keyspace("other", options().keyspace).unwrap();
    load(&db, 4000);
    let keyspace = db.default_keyspace();
    // The tombstones come to an L0 that is empty, and stay there, since they are a fifth of what is there.
    keyspace.compact::<&str>(.., &Cancel::new()).unwrap();
    for n in 0..300 {
        if n % 6 == 0 {
            keyspace.delete(format!("key-{n:04}")).unwrap();
        }
        other.put(format!("key-{n:04}"), "x").unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    machine.clock.advance(5_000_000_000);
    for n in 0..400 {
        keyspace.get(format!("key-{n:04}")).unwrap();
        other.get("nothing").unwrap();
    }
    let (store, stats) = (db.stats(), keyspace.stats());
    // 4000 records of 8 + 40 bytes, 50 tombstones of 8.
    assert_eq!(stats.ingested_bytes, 4000 * 48 + 50 * 8);
    let written = stats.flush_bytes + stats.merge_bytes_written;
    assert!((stats.write_amplification - written as f64 / stats.ingested_bytes as f64).abs() < 1e-9);
    assert!(stats.write_amplification > 1.0 && stats.merge_write_amplification < stats.write_amplification);
    assert_eq!(stats.merge_bytes_read + other.stats().merge_bytes_read, store.compaction_bytes_read);
    assert_eq!(stats.merge_bytes_written + other.stats().merge_bytes_written, store.compaction_bytes_written);
    let sum = |figure: fn(&siltstone::ReasonStats) -> u64| stats.reasons.iter().map(figure).sum::<u64>();
    assert_eq!(sum(|r| r.bytes_read), stats.merge_bytes_read);
    assert_eq!(sum(|r| r.moved_files), stats.levels.iter().map(|level| level.moved_files).sum::<u64>());
    assert_eq!(sum(|r| r.jobs), stats.levels.iter().map(|level| level.jobs).sum::<u64>());
    assert_eq!(stats.reasons, stats.kept_reasons, "all of them are kept still");
    assert!(stats.reasons.iter().any(|r| r.reason == "sorted-runs"), "{:?}", stats.reasons);
    assert_eq!((store.gets, stats.gets, other.stats().gets), (800, 400, 400));
    assert_eq!(store.filter_checks, stats.filter_checks + other.stats().filter_checks);
    assert!(stats.files_per_get > 0.5 && stats.pages_per_get <= stats.files_per_get);
    let latency = stats.latency;
    assert!(latency.merges > 3 && latency.p50_ns <= latency.p90_ns && latency.p99_ns <= latency.max_ns);
    assert!(latency.mean_io_ns > 0 && latency.mean_io_ns <= latency.mean_ns);
    assert!(stats.temporary_bytes_peak > 0 && stats.temporary_bytes_peak <= stats.merge_bytes_written);
    assert!(stats.tombstones > 0 && stats.oldest_tombstone_age_ms >= 5000, "{}", stats.oldest_tombstone_age_ms);
    assert_eq!(stats.oldest_tombstone_age_ms, stats.levels.iter().map(|l| l.oldest_tombstone_age_ms).max().unwrap());
    assert!(stats.runs_over_time.len() > 10 && stats.runs_over_time.is_sorted_by_key(|sample| sample.at_ms));
    // 250 records are seen; what is stored beyond them nobody needs.
    let unique = 250 * 48;
    let expected = (stats.raw_bytes - unique) as f64 / unique as f64;
    assert!((keyspace.space_amplification(&Cancel::new()).unwrap() - expected).abs() < 1e-9 && expected > 0.0);
    keyspace.compact::<&str>(.., &Cancel::new()).unwrap();
    assert_eq!(keyspace.space_amplification(&Cancel::new()).unwrap(), 0.0);
    let stats = keyspace.stats();
    assert_eq!((stats.tombstones, stats.oldest_tombstone_age_ms, stats.space_amplification_percent), (0, 0, 0.0));
    assert!(stats.reasons.iter().any(|r| r.reason == "manual" && r.jobs > 0));
    // What a dropped keyspace has counted stays with the store.
    db.drop_keyspace("other").unwrap();
    assert_eq!(db.stats().gets, 800);
}
