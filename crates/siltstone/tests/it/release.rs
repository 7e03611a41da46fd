//! Merges that release their inputs while they run: the room that they need, and what is left of one that comes to nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use siltstone::compaction::Action;
use siltstone::io::Rng;
use siltstone::io::sim::{Profile, SimExecutor, SimFs};
use siltstone::{Bytes, Db, Env, Event, EventListener, KeyspaceOptions, Options};

use crate::db::{preset, short_l0};

/// The largest merge, in bytes of input.
#[derive(Default)]
struct Largest(Mutex<u64>);

impl EventListener for Largest {
    fn event(&self, event: &Event) {
        if let Event::CompactionStart { input_bytes, decision, .. } = event
            && decision.action == Action::Merge
        {
            let mut largest = self.0.lock();
            *largest = (*largest).max(*input_bytes);
        }
    }
}

struct Machine {
    fs: SimFs,
    executor: SimExecutor,
    largest: Arc<Largest>,
}

impl Machine {
    fn on(fs: SimFs, seed: u64) -> Machine {
        Machine { executor: SimExecutor::new(&fs.clock(), seed), fs, largest: Arc::default() }
    }

    fn new(seed: u64) -> Machine {
        Machine::on(SimFs::new(&siltstone::io::sim::SimClock::new(), seed), seed)
    }

    fn open(&self, strategy: &str, threads: u32) -> Db {
        let mut options = Options { write_memory_bytes: 64 << 10, compaction_threads: threads, ..Options::default() };
        options.log.segment_bytes = 32 << 10;
        options.keyspace = KeyspaceOptions {
            memtable_bytes: 16 << 10,
            file_bytes: 4 << 10,
            block_bytes: 512,
            size_ratio: 4,
            strategy: strategy.to_owned(),
            ..KeyspaceOptions::default()
        };
        let env = Env {
            fs: Arc::new(self.fs.clone()),
            clock: self.fs.clock(),
            executor: Arc::new(self.executor.clone()),
            listener: Some(self.largest.clone()),
            ..Env::default()
        };
        Db::open_with("/store", options, env).unwrap()
    }

    fn table_files(&self) -> BTreeMap<String, u64> {
        let files = self.fs.files().into_iter();
        let name = |path: &std::path::Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        files.map(|(path, bytes)| (name(&path), bytes)).filter(|(name, _)| name.ends_with(".sst")).collect()
    }

    /// Bytes of tables beyond what is alive in the tree.
    fn extra_bytes(&self, db: &Db) -> u64 {
        let stats = db.default_keyspace().stats();
        self.table_files().values().sum::<u64>() - (stats.disk_bytes - stats.dead_bytes)
    }
}

/// ScyllaDB's with fragments and buckets for a small tree.
fn small_ics() -> String {
    preset(
        "scylla-ics",
        &[("min_bytes = 52428800", "min_bytes = 8192"), ("file_bytes = 1048576000", "file_bytes = 2048")],
    )
}

struct Grown {
    /// The most bytes beyond the live ones.
    peak: u64,
    /// Input of the largest merge.
    largest: u64,
    amplification: f64,
    /// Sizes of the runs, largest first.
    runs: Vec<u64>,
    /// The largest file of the largest run.
    file: u64,
    metric: u64,
}

/// Random writes, one merge at a time, the disk looked at after every step.
fn grow(strategy: &str) -> Grown {
    let machine = Machine::new(3);
    let db = machine.open(strategy, 1);
    let keyspace = db.default_keyspace();
    let mut rng = Rng::new(8);
    let mut peak = 0;
    for n in 0..11_500u32 {
        keyspace.put(rng.next_u64().to_be_bytes(), format!("{n:080}")).unwrap();
        while machine.executor.step_random() {
            peak = peak.max(machine.extra_bytes(&db));
        }
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let stats = keyspace.stats();
    let tree = keyspace.tree();
    let runs = tree.levels.iter().flat_map(|level| &level.runs);
    let mut runs: Vec<(u64, u64)> = runs
        .map(|run| {
            let bytes = run.files.iter().map(|file| file.bytes);
            (bytes.clone().sum(), bytes.max().unwrap_or(0))
        })
        .collect();
    runs.sort_unstable_by_key(|run| std::cmp::Reverse(*run));
    let file = runs.first().map_or(0, |(_, file)| *file);
    let runs = runs.into_iter().map(|(bytes, _)| bytes).collect();
    let largest = *machine.largest.0.lock();
    let metric = stats.temporary_bytes_peak;
    Grown { peak, largest, amplification: stats.write_amplification, runs, file, metric }
}

/// Plain tiering needs as much room as the largest merge has input; a merge that releases what it has used up needs little, and writes as
/// much.
#[test]
fn sifrdb_needs_little_room_for_a_merge() {
    let released = grow("sifrdb");
    let plain = grow(&preset("sifrdb", &[("release = \"progressive\"", "release = \"at-end\"")]));
    assert!(released.largest > 800_000 && released.largest == plain.largest, "{} {}", released.largest, plain.largest);
    assert!(released.peak * 5 < released.largest, "{} of {}", released.peak, released.largest);
    assert!(plain.peak * 10 > plain.largest * 9, "{} of {}", plain.peak, plain.largest);
    assert!((released.amplification / plain.amplification - 1.0).abs() < 0.02);
    // The metric says about the same; what was released and is not deleted yet it does not count.
    assert!(released.metric * 5 < released.largest, "{}", released.metric);
    assert!(plain.metric * 10 > plain.largest * 9, "{}", plain.metric);
}

/// Room for some fragments, not for a run; and at rest the two largest tiers together keep the goal.
#[test]
fn scylla_ics_needs_room_for_fragments_only_and_keeps_its_goal() {
    let grown = grow(&small_ics());
    assert!(grown.largest > 500_000, "{}", grown.largest);
    assert!(grown.peak * 5 < grown.largest, "{} of {}", grown.peak, grown.largest);
    let [largest, second, ..] = grown.runs[..] else { panic!("{:?}", grown.runs) };
    assert!(2 * (largest + second) <= 3 * largest, "{:?}", grown.runs);
    // Its fragments are its own, half as large as the files that the keyspace's options ask for.
    assert!((1024..3072).contains(&grown.file), "{} bytes", grown.file);
}

fn contents(db: &Db) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pair = |found: siltstone::Result<_>| found.map(|(key, value): (Bytes, Bytes)| (key.to_vec(), value.to_vec()));
    db.default_keyspace().range::<&[u8]>(..).unwrap().map(|found| pair(found).unwrap()).collect()
}

fn named_files(db: &Db) -> BTreeSet<String> {
    let tree = db.default_keyspace().tree();
    let files = tree.levels.iter().flat_map(|level| &level.runs).flat_map(|run| &run.files);
    files.map(|file| format!("{:06}.sst", file.id.0)).collect()
}

/// Crashes after every step, closes in the middle of what follows: the same contents, no damage, no file that nothing names.
#[test]
fn a_merge_that_comes_to_nothing_keeps_what_it_has_released() {
    let leveled = short_l0().replace("\nlayout", "\nrelease = \"progressive\"\nlayout");
    for (n, strategy) in (0..).zip([preset("sifrdb", &[]), leveled, small_ics()]) {
        let machine = Machine::new(n);
        let db = machine.open(&strategy, 2);
        let keyspace = db.default_keyspace();
        let mut rng = Rng::new(n);
        for i in 0..3000u64 {
            let key = format!("{:04}", rng.below(1500));
            match rng.below(4) {
                0 => keyspace.delete(key).unwrap(),
                _ => keyspace.put(key, format!("{i:060}")).unwrap(),
            }
        }
        db.flush().unwrap();
        let expected = contents(&db);
        let (mut steps, mut cut, mut cut_again) = (0u64, 0, 0);
        while machine.executor.step_random() {
            steps += 1;
            let dead = keyspace.stats().dead_bytes;
            if dead == 0 && steps % 16 != 0 {
                continue;
            }
            assert!(contents(&db) == expected, "step {steps}");
            cut += u32::from(dead > 0);
            // The power fails. The next life begins the rest of the merge, and is closed in the middle of it.
            let mut machine = Machine::on(machine.fs.crash(Profile::Nasty, &mut rng), steps);
            for life in 0..2 {
                let db = machine.open(&strategy, 2);
                assert!(contents(&db) == expected, "step {steps}, life {life}");
                assert!(db.verify().unwrap().damage.is_empty(), "step {steps}");
                for _ in 0..rng.below(60) {
                    machine.executor.step_random();
                }
                cut_again += u32::from(life == 0 && db.default_keyspace().stats().dead_bytes > 0);
                if life == 1 {
                    db.wait_idle().unwrap();
                    // Some files are kept for seconds, to be written over.
                    machine.executor.run_for(11_000_000_000);
                    assert!(contents(&db) == expected, "step {steps}, at rest");
                    assert_eq!(machine.table_files().into_keys().collect::<BTreeSet<_>>(), named_files(&db));
                }
                db.close().unwrap();
                machine = Machine::on(machine.fs.clone(), steps + 1);
            }
        }
        assert!(cut > 3 && cut_again > 3, "{n}: {cut} and {cut_again} looks at slices in {steps} steps");
    }
}
