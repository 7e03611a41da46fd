use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;
use siltstone::{Error, ErrorKind, Options};

use super::*;
use crate::strategy::choose;
use crate::workload::{OpKind, Spec};

fn small() -> Options {
    let mut options = Options { cache_bytes: 256 << 10, ..Options::default() };
    options.keyspace.memtable_bytes = 64 << 10;
    options.keyspace.file_bytes = 32 << 10;
    options.keyspace.size_ratio = 4;
    options
}

fn question(text: &str, strategies: &[&str], world: Place, repeat: u32) -> Question {
    let strategies: Vec<_> = strategies.iter().map(|name| choose(name).unwrap()).collect();
    let spec = Spec::parse(text, "test.toml").unwrap();
    Question::new(&spec, &strategies, world, repeat, &small(), SimDevice::default(), "").unwrap()
}

/// A load, then a mix of everything, which one client does.
const MIX: &str = r#"
name = "mix"
records = 3000
values = { bytes = 100, checked = true }

[[phase]]
name = "load"
operations = "100%"
batch = 4
settle = true
mix = [{ do = "insert" }]

[[phase]]
name = "warm"
operations = 500
warm_up = true
mix = [{ do = "update" }]

[[phase]]
name = "mix"
operations = 4000
mix = [
    { do = "get", share = 0.3, law = { kind = "zipf", theta = 0.99 } },
    { do = "get-missing", share = 0.1 },
    { do = "multi-get", share = 0.05, length = 5 },
    { do = "update", share = 0.2 },
    { do = "read-modify-write", share = 0.1 },
    { do = "insert", share = 0.05 },
    { do = "delete", share = 0.05 },
    { do = "delete-missing", share = 0.02 },
    { do = "scan", share = 0.05, length = 20 },
    { do = "scan-reverse", share = 0.05, length = 20 },
    { do = "range-delete", share = 0.03, length = 3 },
    { do = "take-snapshot", every = 500 },
    { do = "drop-snapshot", every = 700 },
    { do = "flush", every = 1500 },
    { do = "compact", every = 3000 },
]
"#;

/// Several clients, an open loop, a writer beside it, and time that ends a phase.
const CLIENTS: &str = r#"
name = "clients"
records = 2000

[[phase]]
name = "load"
operations = "100%"
clients = 2
mix = [{ do = "insert" }]

[[phase]]
name = "open"
duration = "500ms"
clients = 3
arrivals = { kind = "open", per_second = 4000.0, spacing = "poisson" }
mix = [{ do = "get", share = 0.5 }, { do = "update", share = 0.5 }]
beside = [{ name = "writer", clients = 1, think = "1ms", mix = [{ do = "update" }] }]
"#;

/// All files of a results folder but those that may differ.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    fn add(folder: &Path, from: &Path, files: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add(folder, &path, files);
            } else if path.file_name().is_some_and(|name| name != folder::MACHINE) {
                let name = path.strip_prefix(folder).unwrap().to_string_lossy().into_owned();
                files.insert(name, fs::read(path).unwrap());
            }
        }
    }
    let mut files = BTreeMap::new();
    add(folder, folder, &mut files);
    files
}

fn go_on(_: &RunProgress) -> bool {
    true
}

fn lines(folder: &Path, name: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder.join(name)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Issue 6, acceptance 5: stopped after some trials and in the midst of others, killed in one, done again on one thread and on three, and spread
/// over launchers: always the same files, bit for bit.
#[test]
fn a_simulated_run_that_is_interrupted_gives_the_same_files() {
    let dir = tempfile::tempdir().unwrap();
    for text in [MIX, CLIENTS] {
        let question = question(text, &["leveling", "tiering"], Place::Sim, 2);
        let whole = dir.path().join(&question.name);
        let results = Results::create(&whole, question.clone()).unwrap();
        let rows = run_all(&results, 3, None, &go_on).unwrap();
        assert_eq!(rows.len(), 4);
        let expected = files(&whole);
        for name in ["run.json", "rows.jsonl", "rows.csv", "trials/tiering-2/tree.jsonl", "trials/leveling-1/row.json"]
        {
            assert!(expected.get(name).is_some_and(|bytes| !bytes.is_empty()), "{name}: {:?}", expected.keys());
        }
        assert_eq!(expected.len(), 3 + 4 * 5);

        let broken = dir.path().join(format!("{}-broken", question.name));
        let mut results = Results::create(&broken, question.clone()).unwrap();
        for looks in [3, 25, 12] {
            let looked = AtomicU64::new(0);
            let stop = |_: &RunProgress| looked.fetch_add(1, Ordering::Relaxed) < looks;
            let error = run_all(&results, 1, None, &stop).unwrap_err();
            let kind = error.chain().find_map(|cause| cause.downcast_ref()).map(Error::kind);
            assert_eq!(kind, Some(ErrorKind::Cancelled), "{error:#}");
            assert!(!broken.join("rows.jsonl").exists(), "no rows before all trials are there");
            drop(results);
            // What a killed process leaves.
            let partial = broken.join("trials/.tiering-2.partial");
            fs::create_dir_all(partial.join("siltstone-load-x")).unwrap();
            fs::write(partial.join("tree.jsonl"), "{\"at_s\":0.1,").unwrap();
            results = Results::resume(&broken, Some(&question)).unwrap();
        }
        run_all(&results, 2, None, &go_on).unwrap();
        assert!(files(&broken) == expected);

        let spread = dir.path().join(format!("{}-spread", question.name));
        let results = Results::create(&spread, question.clone()).unwrap();
        for (task, place) in results.write_tasks().unwrap().into_iter().rev() {
            let task = Task::parse(&fs::read_to_string(task).unwrap()).unwrap();
            assert!(run_trial(&task, &place, None, &|_| true).unwrap());
            assert!(!run_trial(&task, &place, None, &|_| true).unwrap(), "it is there already");
        }
        run_all(&results, 1, None, &|_| panic!("nothing is left to do")).unwrap();
        fs::remove_dir_all(spread.join("tasks")).unwrap();
        assert!(files(&spread) == expected);
    }
}

#[test]
fn figures_fit_each_other_in_both_worlds() {
    let dir = tempfile::tempdir().unwrap();
    for world in [Place::Sim, Place::Disk] {
        let out = dir.path().join(world.name());
        let results = Results::create(&out, question(MIX, &["leveling", "tiering"], world, 1)).unwrap();
        let rows = run_all(&results, 1, None, &go_on).unwrap();
        assert_eq!(rows[0].fingerprint, rows[1].fingerprint);
        for row in &rows {
            let [load, mix] = &row.phases[..] else { panic!("the warm-up counts for nothing: {:?}", row.phases) };
            assert_eq!((load.operations, load.kinds["insert"].count), (3000, 3000));
            assert_eq!(row.operations, load.operations + mix.operations);
            let of = |kind: OpKind| &mix.kinds[kind.name()];
            assert_eq!(of(OpKind::Get).found, of(OpKind::Get).count, "existing keys are found");
            assert_eq!(of(OpKind::GetMissing).found, 0);
            assert_eq!(of(OpKind::MultiGet).found, 5 * of(OpKind::MultiGet).count);
            assert!(of(OpKind::Scan).found > 10 * of(OpKind::Scan).count);
            let deleted = of(OpKind::Delete).count + of(OpKind::RangeDelete).found;
            assert_eq!(row.live_records, 3000 + of(OpKind::Insert).count - deleted);
            assert!(row.write_amplification > 0.5 && row.read_amplification > 0.0, "{row:?}");
            assert_eq!(row.flushes > 2, row.settle_s > 0.0);
            assert_eq!(row.files, row.levels.iter().map(|level| level.files).sum::<u64>());
            assert_eq!((row.cpu_s.is_some(), row.memory_bytes.is_some()), (world == Place::Disk, world == Place::Disk));

            let trial = out.join("trials").join(format!("{}-1", row.strategy));
            assert_eq!(fs::read_dir(&trial).unwrap().count(), 6, "the store is gone");
            let windows = lines(&trial, "windows.jsonl");
            let in_windows: u64 = windows
                .iter()
                .filter(|window| window["phase"] == "mix")
                .flat_map(|window| window["operations"].as_object().unwrap().values())
                .map(|count| count.as_u64().unwrap())
                .sum();
            assert_eq!(in_windows, mix.operations);
            let ends: Vec<f64> = windows.iter().map(|window| window["at_s"].as_f64().unwrap()).collect();
            assert!(ends.is_sorted(), "{ends:?}");
            assert!(lines(&trial, "compactions.jsonl").iter().any(|line| line["kind"] == "flush"));
        }
        let csv = fs::read_to_string(out.join("rows.csv")).unwrap();
        let columns: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
        assert!(columns.starts_with(&["workload", "strategy"]) && columns.contains(&"mix.get.latency.p99_ns"));
        assert_eq!(csv.lines().count(), 3);
    }
}

/// Half a millisecond an operation is 2000 a second: half of the load piles up, and its latency tells so, its processing time does not.
#[test]
fn an_open_loop_counts_from_when_operations_were_due() {
    let text = r#"
name = "late"
records = 100
[[phase]]
name = "load"
operations = "100%"
mix = [{ do = "insert" }]
[[phase]]
name = "late"
operations = 4000
arrivals = { kind = "open", per_second = 4000.0 }
mix = [{ do = "update" }]
"#;
    let mut question = question(text, &["leveling"], Place::Sim, 1);
    question.device = Some(SimDevice { operation_ns: 500_000, ..SimDevice::default() });
    let dir = tempfile::tempdir().unwrap();
    let results = Results::create(&dir.path().join("out"), question).unwrap();
    let rows = run_all(&results, 1, None, &go_on).unwrap();
    let late = &rows[0].phases[1].kinds["update"];
    assert!((late.latency.p50_ns / 1_000_000).abs_diff(500) < 40, "{late:?}");
    assert!(late.processing.p50_ns < 1_000_000, "{late:?}");
    assert!((rows[0].phases[1].elapsed_s - 2.0).abs() < 0.1, "{:?}", rows[0].phases[1]);
    let windows = lines(&dir.path().join("out/trials/leveling-1"), "windows.jsonl");
    let most = windows.iter().map(|window| window["queued"].as_u64().unwrap()).max().unwrap();
    assert!(most.abs_diff(2000) < 100, "{most}");
}

#[test]
fn what_differs_is_refused_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let asked = question(CLIENTS, &["leveling"], Place::Sim, 1);
    let results = Results::create(&out, asked.clone()).unwrap();
    let held = Results::resume(&out, None).unwrap_err().to_string();
    assert!(held.contains("another process"), "{held}");
    run_all(&results, 1, None, &go_on).unwrap();
    drop(results);
    let again = Results::create(&out, asked.clone()).unwrap_err().to_string();
    assert!(again.contains("--resume"), "{again}");
    let refused = |question: &Question| Results::resume(&out, Some(question)).unwrap_err().to_string();
    let other = refused(&question(&CLIENTS.replace("2000", "2001"), &["leveling", "tiering"], Place::Sim, 1));
    assert!(other.contains("records = 2000") && other.contains("records = 2001"), "{other}");
    assert!(other.contains("leveling,tiering"), "{other}");
    assert!(refused(&Question { commit: "abc".to_owned(), ..asked.clone() }).contains("commit"));
    let world = refused(&question(CLIENTS, &["leveling"], Place::Disk, 1));
    assert!(world.contains("\"sim\"") && world.contains("\"disk\""), "{world}");
    // Another build asked: it alone may do what is open, and any may gather what is finished.
    let theirs = Question { commit: "abc".to_owned(), ..asked };
    let results = Results::create(&dir.path().join("theirs"), theirs).unwrap();
    let build = format!("{:#}", results.check_build("def").unwrap_err());
    assert!(build.contains("leveling-1 is open") && build.contains("\"abc\"") && build.contains("\"def\""), "{build}");
    results.check_build("abc").unwrap();
    run_all(&results, 1, None, &go_on).unwrap();
    results.check_build("def").unwrap();
    assert!(!dir.path().join("none").exists() && Results::resume(&dir.path().join("none"), None).is_err());

    // A row that tells of other records than its neighbour's, and a folder of another format.
    let both = dir.path().join("both");
    let results = Results::create(&both, question(MIX, &["leveling", "tiering"], Place::Sim, 1)).unwrap();
    run_all(&results, 2, None, &go_on).unwrap();
    let path = both.join("trials/tiering-1/row.json");
    let row: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let mut changed = row.clone();
    changed["fingerprint"] = "0000000000000000".into();
    fs::write(&path, changed.to_string()).unwrap();
    let error = run_all(&results, 1, None, &go_on).unwrap_err().to_string();
    assert!(error.contains("different records"), "{error}");
    changed["format"] = 2.into();
    fs::write(&path, changed.to_string()).unwrap();
    let error = format!("{:#}", run_all(&results, 1, None, &go_on).unwrap_err());
    assert!(error.contains("format is 2") && error.contains("writes 1"), "{error}");
    drop(results);
    let text = fs::read_to_string(both.join("run.json")).unwrap();
    fs::write(both.join("run.json"), text.replace("\"format\": 1", "\"format\": 7")).unwrap();
    let error = format!("{:#}", Results::resume(&both, None).unwrap_err());
    assert!(error.contains("format is 7") && error.contains("run.json"), "{error}");
}

/// The look at a workload's size took as many operations of each phase: with `compare` it deleted all keys that it had inserted, and ended
/// with "no key is left for `get`" before a trial had begun.
#[test]
fn the_size_of_what_is_loaded_is_known_beforehand() {
    for (name, bytes) in [("compare", 116_000_000), ("ycsb-d", 0), ("queue", 0), ("time-series", 0)] {
        let spec = Spec::choose(name, &[]).unwrap();
        let found = load_bytes(&spec).unwrap();
        if bytes > 0 {
            assert!(found.abs_diff(bytes) < bytes / 50, "{name}: {found} for {bytes}");
        }
        assert!(found > 1_000_000, "{name}: {found}");
    }
}

fn rows(question: Question, jobs: usize) -> anyhow::Result<Vec<Row>> {
    let dir = tempfile::tempdir().unwrap();
    let results = Results::create(&dir.path().join("out"), question).unwrap();
    run_all(&results, jobs, None, &go_on)
}

/// Whoever was stopped because of another's error came first, so a run that failed was called interrupted.
#[test]
fn of_several_trials_the_one_that_failed_is_told() {
    for _ in 0..10 {
        let mut question = question(MIX, &["leveling", "tiering", "one-leveling", "leveldb"], Place::Sim, 1);
        question.strategies[1].text = "no such strategy".to_owned();
        let error = format!("{:#}", rows(question, 4).unwrap_err());
        assert!(error.contains("trial tiering-1") && error.contains("no such strategy"), "{error}");
    }
}

const TIMED: &str = r#"
name = "timed"
records = 100
[[phase]]
name = "load"
operations = "100%"
mix = [{ do = "insert" }]
[[phase]]
name = "timed"
"#;

/// A phase that lasts half a second ended when nothing was due any more, or when its clients had thought.
#[test]
fn time_ends_a_phase_on_disk_as_in_the_simulation() {
    let stretches = r#"arrivals = { kind = "stretches", of = [{ per_second = 1000.0, for = "100ms" }, { per_second = 0.0, for = "10s" }] }"#;
    for how in [stretches, "think = \"3s\""] {
        let text = format!("{TIMED}duration = \"500ms\"\n{how}\nmix = [{{ do = \"update\" }}]\n");
        for world in [Place::Sim, Place::Disk] {
            let rows = rows(question(&text, &["leveling"], world, 1), 1).unwrap();
            let elapsed_s = rows[0].phases[1].elapsed_s;
            assert!((0.5..2.0).contains(&elapsed_s), "{how}, {}: {elapsed_s}", world.name());
        }
    }
}

/// The last batch of a client that was not full ended after the phase did; reads of a batched read-modify-write found nothing.
#[test]
fn what_waits_for_its_batch_is_in_the_figures() {
    let text = format!(
        "{TIMED}operations = 400\nclients = 4\nbatch = 1000\ndurability = \"sync\"\nmix = [{{ do = \"read-modify-write\" }}]\n"
    );
    let mut question = question(&text, &["leveling"], Place::Sim, 1);
    question.device = Some(SimDevice { sync_ns: 1_000_000_000, ..SimDevice::default() });
    let phase = &rows(question, 1).unwrap()[0].phases[1];
    let of = &phase.kinds["read-modify-write"];
    assert!(phase.elapsed_s >= 1.0, "{phase:?}");
    assert_eq!((of.count, of.found), (400, 400));
}

/// Gets from memory took no virtual time, and a phase of them no end.
#[test]
fn a_device_without_time_is_refused() {
    let task = &question(CLIENTS, &["leveling"], Place::Sim, 1).tasks().unwrap()[0];
    let text = serde_json::to_string(task).unwrap();
    assert!(Task::parse(&text).is_ok());
    let text = text.replace("\"operation_ns\":20000", "\"operation_ns\":0");
    assert!(Task::parse(&text).unwrap_err().to_string().contains("operation_ns: found 0"));
}
