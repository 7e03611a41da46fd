//! A workload of known numbers is run on a store that records it; what is read, replayed and fitted must be that workload.

use std::path::Path;
use std::sync::Arc;

use siltstone::io::sim::{Device, SimClock, SimExecutor, SimFs};
use siltstone::io::{Fs, RealFs, Rng};
use siltstone::trace::{Op, Record, TraceHeader, TraceOptions, TraceWriter, Write};
use siltstone::version::KeyspaceId;
use siltstone::{Batch, Db, Durability, Env, Options};

use super::fit::{AccessLaw, Fit, SizeShape, fit};
use super::*;
use crate::load::{SimWorld, World};
use crate::num::float;
use crate::workload::{Generator, OpKind, Spec};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Runs a spec on a store in memory that records it; `gap_ns` gives the time between two operations. The trace is copied to a real file.
fn record(spec: &Spec, path: &Path, gap_ns: &mut dyn FnMut(u64) -> u64) {
    let clock = SimClock::new();
    let fs = SimFs::new(&clock, 1);
    let env = Env {
        fs: Arc::new(fs.clone()),
        clock: clock.clone(),
        executor: Arc::new(SimExecutor::new(&clock, 1)),
        rng: Rng::new(1),
        ..Env::default()
    };
    let db = Db::open_with("/store", Options::default(), env).unwrap();
    db.start_trace("/trace", TraceOptions::default()).unwrap();
    let store = db.default_keyspace();
    let mut generator = Generator::new(spec, 0).unwrap();
    let (mut done, mut first_halves) = (0, 0);
    loop {
        while let Some(op) = generator.next().unwrap() {
            clock.advance(gap_ns(done));
            done += 1;
            if op.kind == OpKind::ReadModifyWrite {
                store.get(op.key).unwrap();
                clock.advance(1000);
                first_halves += 1;
            }
            match op.kind {
                kind if kind.has_value() => store.put(op.key, op.value).unwrap(),
                OpKind::Delete => store.delete(op.key).unwrap(),
                OpKind::Scan => {
                    let mut range = store.range(op.key..).unwrap();
                    (0..op.count).all(|_| range.advance().unwrap());
                }
                _ => drop(store.get(op.key).unwrap()),
            }
        }
        if !generator.next_phase() {
            break;
        }
    }
    let summary = db.stop_trace().unwrap();
    assert_eq!((summary.operations, summary.lost), (done + first_halves, 0));
    std::fs::write(path, fs.read_all("/trace").unwrap()).unwrap();
}

fn fitted(path: &Path) -> Fit {
    fit("again", &mut || Source::open(path), &mut |_, _| true).unwrap()
}

fn poisson(mean_ns: f64) -> impl FnMut(u64) -> u64 {
    let mut rng = Rng::new(7);
    move |_| {
        let uniform = (float(rng.next_u64() >> 11) + 1.0) / float(1 << 53);
        crate::num::floor(-libm::log(uniform) * mean_ns)
    }
}

const MIXED: &str = r#"
name = "mixed"
records = 20_000
[keys]
kind = "string"
bytes = 20
[values]
bytes = { kind = "normal", mean = 200, deviation = 30, min = 50, max = 400 }
[[phase]]
name = "load"
operations = "100%"
mix = [{ do = "insert" }]
[[phase]]
name = "reads"
operations = 60_000
mix = [
    { do = "get", share = 0.5, law = { kind = "zipf", theta = 0.9 } },
    { do = "get-missing", share = 0.2 },
    { do = "update", share = 0.3 },
]
[[phase]]
name = "scans"
operations = 40_000
mix = [
    { do = "scan", share = 0.4, length = { kind = "uniform", min = 1, max = 20 } },
    { do = "update", share = 0.3, law = { kind = "latest", theta = 0.8 } },
    { do = "get", share = 0.3, law = { kind = "hotspot", data = 0.1, operations = 0.8 } },
]
"#;

/// Tolerances: shares 0.01, theta 0.05, hotspots 0.03, means 1 %, borders of phases a window.
#[test]
fn a_recorded_workload_is_recognised() {
    let folder = folder();
    let path = folder.path().join("mixed.trace");
    record(&Spec::parse(MIXED, "mixed").unwrap(), &path, &mut poisson(100_000.0));
    let fit = fitted(&path);
    assert_eq!((fit.keys, fit.preloaded), (20_000, 0));
    assert_eq!(fit.key_bytes.law, SizeShape::Constant { value: 20 });
    let SizeShape::Normal { mean, deviation, .. } = fit.value_bytes.as_ref().unwrap().law else {
        panic!("{:?}", fit.value_bytes)
    };
    assert!((mean / 200.0 - 1.0).abs() < 0.01 && (deviation / 30.0 - 1.0).abs() < 0.03, "{mean} {deviation}");
    let operations: Vec<u64> = fit.phases.iter().map(|phase| phase.operations).collect();
    assert_eq!(operations.len(), 3, "{operations:?}");
    for (found, known) in operations.iter().zip([20_000u64, 60_000, 40_000]) {
        assert!(found.abs_diff(known) < 1024, "{operations:?}");
    }
    let [load, reads, scans] = &fit.phases[..] else { unreachable!() };
    assert_eq!(load.name, "load");
    let op = |phase: &super::fit::PhaseFit, kind: &str, share: f64| {
        let op = phase.mix.iter().find(|op| op.kind == kind).unwrap_or_else(|| panic!("no {kind}: {:?}", phase.mix));
        assert!((op.share - share).abs() < 0.01, "{kind} {}", op.share);
        op.clone()
    };
    op(reads, "get-missing", 0.2);
    let access = |op: super::fit::OpFit| {
        let access = op.access.unwrap();
        assert!(access.is_good, "{access:?}");
        access.law
    };
    let AccessLaw::Zipf { theta } = access(op(reads, "get", 0.5)) else { panic!("{:?}", reads.mix) };
    assert!((theta - 0.9).abs() < 0.05, "{theta}");
    assert_eq!(access(op(reads, "update", 0.3)), AccessLaw::Uniform);
    assert!((reads.empty_lookups.unwrap() - 0.2 / 0.7).abs() < 0.01);
    let AccessLaw::Latest { theta } = access(op(scans, "update", 0.3)) else { panic!("{:?}", scans.mix) };
    assert!((theta - 0.8).abs() < 0.05, "{theta}");
    let AccessLaw::Hotspot { data, operations } = access(op(scans, "get", 0.3)) else { panic!("{:?}", scans.mix) };
    assert!((data - 0.1).abs() < 0.03 && (operations - 0.8).abs() < 0.03, "{data} {operations}");
    let scan = op(scans, "scan", 0.4);
    let length = scan.length.clone().unwrap();
    assert!(matches!(length.law, SizeShape::Uniform { min: 1, max: 20 }) && length.is_good, "{length:?}");
    for phase in &fit.phases {
        assert_eq!(phase.arrivals.law, "poisson", "{:?}", phase.arrivals);
        assert!((phase.arrivals.per_second / 10_000.0 - 1.0).abs() < 0.05, "{:?}", phase.arrivals);
    }
    // What was fitted is a spec, and its own trace is described alike.
    let spec = Spec::parse(&fit.spec, "again").unwrap();
    let again = folder.path().join("again.trace");
    record(&spec, &again, &mut |_| 100_000);
    let again = fitted(&again);
    assert_eq!(again.phases.len(), 3);
    assert!(again.phases.iter().all(|phase| phase.arrivals.law == "constant"));
    for (a, b) in fit.phases.iter().zip(&again.phases) {
        for (a, b) in a.mix.iter().zip(&b.mix) {
            assert!(a.kind == b.kind && (a.share - b.share).abs() < 0.02, "{a:?} {b:?}");
        }
    }
}

/// db_bench's fillrandom: ever fewer of the puts are of new keys, and yet it is one workload.
#[test]
fn puts_on_any_key_are_one_phase() {
    let folder = folder();
    let path = folder.path().join("fill.trace");
    let text = MIXED.split("[[phase]]").next().unwrap().to_owned();
    let text = text + "[[phase]]\nname = \"fill\"\noperations = 40_000\nmix = [{ do = \"upsert\" }]\n";
    record(&Spec::parse(&text, "fill").unwrap(), &path, &mut |_| 1000);
    let fit = fitted(&path);
    assert_eq!(fit.phases.len(), 1, "{}", fit.spec);
    assert_eq!(fit.phases[0].mix.len(), 1, "{}", fit.spec);
    assert_eq!(fit.phases[0].mix[0].kind, "upsert");
    Spec::parse(&fit.spec, "again").unwrap();
}

/// YCSB F: a read-modify-write is a get and a put, two calls of one operation. The rate was told as 1500 a second.
#[test]
fn a_read_modify_write_comes_once() {
    let folder = folder();
    let path = folder.path().join("f.trace");
    let text = MIXED.split("[[phase]]\nname = \"reads\"").next().unwrap().to_owned()
        + r#"
[[phase]]
name = "f"
operations = 20_000
mix = [{ do = "get", share = 0.5 }, { do = "read-modify-write", share = 0.5 }]
[[phase]]
name = "chance"
operations = 20_000
mix = [
    { do = "get", share = 0.5, law = { kind = "hotspot", data = 0.001, operations = 1.0 } },
    { do = "update", share = 0.5, law = { kind = "hotspot", data = 0.001, operations = 1.0 } },
]
"#;
    record(&Spec::parse(&text, "f").unwrap(), &path, &mut |_| 1_000_000);
    let fit = fitted(&path);
    let kinds: Vec<Vec<&str>> = fit.phases.iter().map(|phase| phase.mix.iter().map(|op| op.kind).collect()).collect();
    assert_eq!(kinds.len(), 3, "{kinds:?}");
    assert!(kinds[1].contains(&"read-modify-write"), "{kinds:?}");
    assert!(!kinds[2].contains(&"read-modify-write"), "{kinds:?}");
    for phase in &fit.phases {
        assert!((phase.arrivals.per_second / 1000.0 - 1.0).abs() < 0.01, "{:?}", phase.arrivals);
    }
}

#[test]
fn bursts_are_recognised() {
    let folder = folder();
    let path = folder.path().join("bursts.trace");
    let text = MIXED.split("[[phase]]\nname = \"reads\"").next().unwrap();
    // A second at 1000 a second, half a second at 10000: a period of 6000 operations.
    let mut gap = |done: u64| if done % 6000 < 1000 { 1_000_000 } else { 100_000 };
    record(&Spec::parse(text, "bursts").unwrap(), &path, &mut gap);
    let fit = fitted(&path);
    let arrivals = &fit.phases[0].arrivals;
    assert_eq!(arrivals.law, "bursts", "{arrivals:?}");
    let near = |(rate, time): (f64, f64), known_rate: f64, known_time: f64| {
        assert!((rate / known_rate - 1.0).abs() < 0.15 && (time / known_time - 1.0).abs() < 0.1, "{arrivals:?}");
    };
    near(arrivals.stretches[0], 1000.0, 1.0);
    near(arrivals.stretches[1], 10_000.0, 0.5);
    Spec::parse(&fit.spec, "again").unwrap();
}

/// A replay of a trace stores what was stored where values follow from their keys and lengths as a replay makes them.
#[test]
fn a_replay_leaves_the_same_store() {
    let folder = folder();
    let path = folder.path().join("replayed.trace");
    let mut rng = Rng::new(5);
    let first = Db::open(folder.path().join("first"), Options::default()).unwrap();
    let other = first.create_keyspace("other", first.default_keyspace().options()).unwrap();
    first.start_trace(&path, TraceOptions::default()).unwrap();
    let mut value = Vec::new();
    for _ in 0..3000 {
        let space = if rng.below(3) == 0 { other.clone() } else { first.default_keyspace() };
        let key = format!("{:04}", rng.below(500));
        value_of(key.as_bytes(), usize::try_from(rng.below(60)).unwrap(), &mut value);
        match rng.below(4) {
            0 => space.delete(&key).unwrap(),
            1 => {
                let mut batch = Batch::new();
                batch.put(&space, &key, &value);
                batch.delete(&other, "0001");
                first.write(batch).unwrap();
            }
            2 => drop(space.get(&key).unwrap()),
            _ => space.put(&key, &value).unwrap(),
        }
    }
    first.stop_trace().unwrap();
    let contents = |db: &Db, name: &str| -> Vec<_> {
        db.keyspace(name).unwrap().range::<&[u8]>(..).unwrap().map(Result::unwrap).collect()
    };
    for pace in [Pace::Fast, Pace::Recorded(1e6)] {
        let world = SimWorld::new(Device::default(), 1000, 1);
        let second = world.open(&Options::default(), None).unwrap();
        let mut source = Source::open(&path).unwrap();
        let ask = Replay { pace, durability: Some(Durability::None) };
        let result = replay(&mut source, &second, &world, ask, &mut |_| true).unwrap();
        assert_eq!((result.operations, result.found_as_recorded), (3000, Some(1.0)), "{result:?}");
        for name in ["default", "other"] {
            let stored = contents(&first, name);
            assert!(stored.len() > 100 && stored == contents(&second, name));
        }
    }
    // In virtual time a paced replay takes as long as the recording, divided by the speed.
    let mut source = Source::open(&path).unwrap();
    let recorded_s = show(&mut source, Show { first: 0, hex: false }, &mut |_, _| true).unwrap().elapsed_s.unwrap();
    let world = SimWorld::new(Device::default(), 1, 1);
    let third = world.open(&Options::default(), None).unwrap();
    let mut source = Source::open(&path).unwrap();
    let ask = Replay { pace: Pace::Recorded(0.01), durability: Some(Durability::None) };
    let result = replay(&mut source, &third, &world, ask, &mut |_| true).unwrap();
    assert!((result.elapsed_s / (100.0 * recorded_s) - 1.0).abs() < 0.01, "{} {recorded_s}", result.elapsed_s);
}

#[test]
fn text_comes_back_and_broken_lines_are_refused() {
    let folder = folder();
    let [text, trace, back] = ["a.txt", "a.trace", "b.txt"].map(|name| folder.path().join(name));
    let lines = "I a 1\nI b 22 and blanks\nU a 4444\nQ a\nQ zz\nS a c\nR b c\nD c\n";
    std::fs::write(&text, lines).unwrap();
    let go = &mut |_: u64, _: u64| true;
    assert_eq!(import(&mut Source::open(&text).unwrap(), &trace, go).unwrap().operations, 8);
    let out = std::fs::File::create(&back).unwrap();
    let done = export(&mut Source::open(&trace).unwrap(), out, false, go).unwrap();
    assert_eq!((done.operations, done.left_out), (8, 0));
    let shape = |text: &str| -> Vec<(usize, String)> {
        text.lines()
            .map(|line| (line.len(), line.split(' ').take(if line.starts_with(['I', 'U']) { 2 } else { 3 }).collect()))
            .collect()
    };
    assert_eq!(shape(lines), shape(&std::fs::read_to_string(&back).unwrap()));
    let world = SimWorld::new(Device::default(), 1000, 1);
    let db = world.open(&Options::default(), None).unwrap();
    let ask = Replay { pace: Pace::Fast, durability: None };
    let result = replay(&mut Source::open(&text).unwrap(), &db, &world, ask, &mut |_| true).unwrap();
    assert_eq!((result.range_deletes, result.range_deleted_keys, result.kinds["range"].found), (1, 1, 2));
    assert_eq!(db.default_keyspace().get("a").unwrap().as_deref(), Some(&b"4444"[..]));
    // The text does not say what was found, and neither does the trace that was made of it.
    let again = replay(&mut Source::open(&trace).unwrap(), &db, &world, ask, &mut |_| true).unwrap();
    assert_eq!((result.found_as_recorded, again.found_as_recorded), (None, None));
    let paced = Replay { pace: Pace::Recorded(1.0), durability: None };
    assert!(replay(&mut Source::open(&text).unwrap(), &db, &world, paced, &mut |_| true).is_err());
    for wrong in ["X a", "I a", "I", "Q a b", "D ", "S a", "R a b c", "q a", "I  v"] {
        std::fs::write(&text, format!("Q a\n\n{wrong}\n")).unwrap();
        let error = import(&mut Source::open(&text).unwrap(), &folder.path().join("no.trace"), go).unwrap_err();
        let error = format!("{error:#}");
        assert!(
            error.contains("a.txt:3: ") && error.contains(&format!("{wrong:?}")) && error.contains("expected"),
            "{error}"
        );
        assert!(!folder.path().join("no.trace").exists());
    }
}

#[test]
fn what_a_trace_holds_is_shown() {
    let folder = folder();
    let path = folder.path().join("shown.trace");
    let fs: Arc<dyn Fs> = Arc::new(RealFs);
    let header = TraceHeader { began_ns: 1, hashed_beyond: None, is_untimed: false };
    let mut writer = TraceWriter::create(&fs, &path, &header).unwrap();
    let id = KeyspaceId(0);
    let put = |key: &'static str, value_len| Write { keyspace: id, key: key.into(), value_len };
    let ops = [
        Op::Keyspace { id, name: "default".to_owned() },
        Op::Write(put("apple", Some(3)), Durability::Sync),
        Op::Batch(vec![put("b\n", Some(5)), put("apple", None)], Durability::Buffered),
        Op::Get { keyspace: id, key: "apple".into(), found: None },
        Op::MultiGet { keyspace: id, keys: vec![("b".into(), Some(5)), ("c".into(), None)] },
        Op::Lost { operations: 7 },
        Op::Flush { keyspace: None },
    ];
    for (at, op) in ops.into_iter().enumerate() {
        writer.push(&Record { at_ns: 250_000_000 * crate::num::count(at), op }).unwrap();
    }
    writer.finish().unwrap();
    let shown = show(&mut Source::open(&path).unwrap(), Show { first: 9, hex: false }, &mut |_, _| true).unwrap();
    let golden = r#"     0.000000 s  keyspace 0 is "default"
     0.250000 s  put default/apple 3 B sync
     0.500000 s  batch of 2: put default/b\n 5 B, delete default/apple
     0.750000 s  get default/apple -> nothing
     1.000000 s  multi-get of 2 in default: b -> 5 B, c -> nothing
     1.250000 s  7 operations are lost here
     1.500000 s  flush"#;
    assert_eq!(shown.first.join("\n"), golden);
    assert_eq!((shown.operations, shown.lost, shown.end.as_str()), (5, 7, "stopped"));
    assert_eq!(shown.empty_lookups, Some(2.0 / 3.0));
    // Damage: what comes before it, and where it is.
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[60] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let shown = show(&mut Source::open(&path).unwrap(), Show { first: 9, hex: false }, &mut |_, _| true).unwrap();
    assert!(shown.operations == 0 && shown.error.as_ref().unwrap().contains("offset 48"), "{:?}", shown.error);
}

/// Writes a trace of `ops`, `gap_ns` apart, in the keyspaces 0 and 1.
fn written(path: &Path, gap_ns: u64, ops: impl IntoIterator<Item = Op>) {
    let fs: Arc<dyn Fs> = Arc::new(RealFs);
    let header = TraceHeader { began_ns: 1, hashed_beyond: None, is_untimed: false };
    let _ = std::fs::remove_file(path);
    let mut writer = TraceWriter::create(&fs, path, &header).unwrap();
    let names =
        [(0, "default"), (1, "other")].map(|(n, name)| Op::Keyspace { id: KeyspaceId(n), name: name.to_owned() });
    for (at, op) in names.into_iter().chain(ops).enumerate() {
        writer.push(&Record { at_ns: gap_ns * crate::num::count(at), op }).unwrap();
    }
    writer.finish().unwrap();
}

fn put(keyspace: u32, key: &str) -> Op {
    let write = Write { keyspace: KeyspaceId(keyspace), key: key.to_owned().into(), value_len: Some(3) };
    Op::Write(write, Durability::Buffered)
}

fn multi_get(keys: &[(&str, bool)]) -> Op {
    let keys = keys.iter().map(|(key, is_there)| (key.to_string().into(), is_there.then_some(3))).collect();
    Op::MultiGet { keyspace: KeyspaceId(0), keys }
}

/// Whatever was fitted is a spec that `run` takes and that does not end for want of keys. Each of these was refused, or ended so.
#[test]
fn what_is_fitted_can_be_run() {
    let folder = folder();
    let path = folder.path().join("odd.trace");
    let runs = |what: &str, path: &Path| {
        let fit = fitted(path);
        let spec = Spec::parse(&fit.spec, what).unwrap();
        let mut generator = Generator::new(&spec, 0).unwrap();
        loop {
            while generator.next().unwrap_or_else(|error| panic!("{what}: {error}\n{}", fit.spec)).is_some() {}
            if !generator.next_phase() {
                return fit;
            }
        }
    };
    let text = folder.path().join("odd.txt");
    for lines in ["Q a\nQ b\n", "S a b\n", "D a\n"] {
        std::fs::write(&text, lines).unwrap();
        assert!(runs(lines, &text).notes.iter().any(|note| note.contains("before anything was seen stored")));
    }
    // A cache, or sessions: keys go and come back.
    let load = (0..1000).map(|i| format!("I k{i:05} v\n"));
    let churn = (0..5000).map(|i| format!("D k{0:05}\nI k{0:05} v\n", i * 7 % 1000));
    std::fs::write(&text, load.chain(churn).collect::<String>()).unwrap();
    let fit = runs("churn", &text);
    let last = fit.phases.last().unwrap();
    let insert = last.mix.iter().find(|op| op.kind == "insert").unwrap();
    assert!(insert.reused > 4000 && insert.reused == insert.count, "{}", fit.spec);
    // An operation an hour; two keyspaces and calls over several keys.
    written(&path, 3_600_000_000_000, (0..6).map(|i| put(0, &format!("k{i}"))));
    runs("an hour apart", &path);
    let ops = (0..500).map(|i| put(i % 2, &format!("k{i}")));
    written(&path, 1000, ops.chain([multi_get(&[("k0", true), ("k2", true)])]));
    assert!(runs("two keyspaces", &path).notes.iter().any(|note| note.contains("`multi-get` is a `get`")));
}

/// A multi-get stores nothing: its first key passed for stored though it was not found, and those after it never did.
#[test]
fn a_multi_get_tells_which_keys_are_there() {
    let folder = folder();
    let path = folder.path().join("multi.trace");
    let keys: Vec<String> = (0..300).map(|i| format!("k{i:05}")).collect();
    written(&path, 1000, keys.iter().flat_map(|key| [multi_get(&[(key, false)]), put(0, key)]));
    let fit = fitted(&path);
    let count = |kind: &str| -> u64 {
        let ops = fit.phases.iter().flat_map(|phase| &phase.mix);
        ops.filter(|op| op.kind == kind).map(|op| op.count).sum()
    };
    assert_eq!((count("insert"), count("update")), (300, 0), "{}", fit.spec);
    written(&path, 1000, [multi_get(&[("a", true), ("b", true), ("c", false)])]);
    assert_eq!(fitted(&path).keys, 2);
}

/// A get that turned out to be half of a read-modify-write still counted as one in sequence: random gets were called sequential.
#[test]
fn gets_that_are_taken_back_leave_no_sequence() {
    let folder = folder();
    let path = folder.path().join("pairs.txt");
    let mut rng = Rng::new(3);
    let load = (0..1000).map(|i| format!("I k{i:05} v\n"));
    let cycles = (0..3000).map(|i| {
        let (a, b, c) = (2 * i % 1000, (2 * i + 1) % 1000, rng.below(1000));
        format!("Q k{a:05}\nU k{a:05} v\nQ k{b:05}\nU k{b:05} v\nQ k{c:05}\n")
    });
    std::fs::write(&path, load.chain(cycles).collect::<String>()).unwrap();
    let fit = fitted(&path);
    let get = fit.phases.last().unwrap().mix.iter().find(|op| op.kind == "get").unwrap().access.clone().unwrap();
    assert_eq!(get.law, AccessLaw::Uniform, "{get:?}");
    assert!(get.tried.values().all(|distance| *distance >= 0.0), "{get:?}");
}
