//! Filter bits by run: the shares against an oracle, and false positives measured in a store on disk.

#![allow(
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "tests use real files and compute with counts"
)]

use std::path::Path;

use siltstone::compaction::filters::{NewFiles, monkey, shared_rate};
use siltstone::compaction::{CompactionPolicy, LsmView, Place, PlanInput, Sizes, Strategy};
use siltstone::io::Rng;
use siltstone::version::text::parse;
use siltstone::version::{LevelId, RunOrder};
use siltstone::{Db, KeyspaceOptions, Options};

const LN2_2: f64 = std::f64::consts::LN_2 * std::f64::consts::LN_2;

fn index(n: u64) -> usize {
    usize::try_from(n).unwrap()
}

/// The false-positive rate of an ideal Bloom filter.
fn rate(bits: f64) -> f64 {
    (-bits * LN2_2).exp()
}

/// c of p_r = min(1, c n_r), by bisection on the memory that it takes.
fn bisected(entries: &[u64], bits_per_key: f64) -> Vec<f64> {
    let memory = |ln_c: f64| -> f64 {
        entries.iter().map(|n| *n as f64 * -(ln_c + (*n as f64).ln()).min(0.0)).sum::<f64>() / LN2_2
    };
    let budget = bits_per_key * entries.iter().sum::<u64>() as f64;
    let (mut low, mut high) = (-200.0f64, 0.0f64);
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if memory(middle) > budget { low = middle } else { high = middle }
    }
    entries.iter().map(|n| -(high + (*n as f64).ln()).min(0.0) / LN2_2).collect()
}

#[test]
fn monkey_shares_are_the_best() {
    let mut rng = Rng::new(4);
    let mut clamped = 0;
    for _ in 0..10_000 {
        let runs = rng.between(1, 12);
        let entries: Vec<u64> = (0..runs)
            .map(|_| {
                let scale = rng.below(30);
                1 + rng.below(1 << scale)
            })
            .collect();
        let bits_per_key = [0.0, 0.3, 1.0, 2.0, 5.0, 10.0][usize::try_from(rng.below(6)).unwrap()];
        let found = monkey(&entries, bits_per_key);
        let expected = bisected(&entries, bits_per_key);
        for (found, expected) in found.iter().zip(&expected) {
            let expected = expected.min(64.0);
            assert!(
                (found - expected).abs() < 1e-6 * (1.0 + expected),
                "{entries:?} at {bits_per_key}: {found} {expected}"
            );
        }
        clamped += u32::from(found.contains(&0.0) && bits_per_key > 0.0);
        // No bits that change hands make it better.
        if found.iter().all(|bits| *bits < 64.0) && runs > 1 {
            let sum = |bits: &[f64]| bits.iter().map(|bits| rate(*bits)).sum::<f64>();
            let (from, to) = (index(rng.below(runs)), index(rng.below(runs)));
            let moved = (found[from] * entries[from] as f64 * 0.1).min(entries[to] as f64);
            let mut other = found.clone();
            other[from] -= moved / entries[from] as f64;
            other[to] += moved / entries[to] as f64;
            assert!(from == to || sum(&other) >= sum(&found) * (1.0 - 1e-9), "{entries:?}: {found:?} {other:?}");
        }
    }
    assert!(clamped > 500, "{clamped}");
}

fn strategy(layout: &str, filter_bits: &str) -> String {
    format!(
        "name = \"measured\"\nlayout = {{ kind = \"{layout}\" }}\nreuse = \"never\"\nfilter_bits = {filter_bits}\n\
         [[rule]]\nlevels = \"tiered\"\ntrigger = {{ kind = \"sorted-runs\" }}\ngranularity = {{ kind = \"sorted-runs\" }}\n\
         [[rule]]\nlevels = \"leveled\"\ntrigger = {{ kind = \"level-saturation\" }}\ngranularity = {{ kind = \"level\" }}\n"
    )
}

#[test]
fn the_levels_above_the_last_count_as_full() {
    // A record has 10 bytes. L0 and L1 hold as much: 4 runs of 10 entries, one of 40. L2 will hold 1000 + 100 - 30.
    let version =
        parse("L0 9:a-z:100:10\nL1 order=3 3:a-b:1000:100 4:c-d:1000:100\nL2 order=1 5:a-b:300:30 6:c-z:9700:970")
            .unwrap();
    let view = LsmView::new(&version, Sizes { memtable_bytes: 100, file_bytes: 1, size_ratio: 0, level1_bytes: 0 });
    let input = |level: u8, files: usize| {
        let run = &version.levels[usize::from(level)].runs[0];
        PlanInput { level: LevelId(level), run: run.order, files: run.files[..files].to_vec() }
    };
    let place = |level: u8, run: u64| Place { level: LevelId(level), run: RunOrder(run) };
    let replaced = [input(1, 1), input(2, 1)];
    let new = NewFiles { place: place(2, 1), entries: 100, replaced: &replaced, option_bits: 5.0 };
    let bits = |kind: &str, new: &NewFiles<'_>| {
        let strategy = Strategy::parse(&strategy("one-leveling", kind)).unwrap();
        strategy.filter_bits(&view, new)
    };
    let shares = monkey(&[10, 10, 10, 10, 40, 1070], 5.0);
    assert_eq!(bits("{ kind = \"monkey\" }", &new), shares[5]);
    let flush = NewFiles { place: place(0, 10), entries: 7, replaced: &[], option_bits: 5.0 };
    assert_eq!(bits("{ kind = \"monkey\" }", &flush), monkey(&[10, 10, 10, 10, 40, 1000], 5.0)[0]);
    assert_eq!(bits("{ kind = \"uniform\" }", &new), 5.0);
    assert_eq!(bits("{ kind = \"none-on-oldest\" }", &new), 0.0);
    assert_eq!(bits("{ kind = \"none-on-oldest\" }", &flush), 5.0);
    assert_eq!(bits("{ kind = \"per-level\", bits = [9.0, 7.0] }", &new), 7.0);
    assert_eq!(bits("{ kind = \"per-level\", bits = [9.0, 7.0] }", &flush), 9.0);
}

/// A tiered tree of several levels.
struct Measured {
    /// Of each run, newest first: its level, its entries, and the share of the lookups that fall into one of its files.
    runs: Vec<(u8, u64, f64)>,
    /// False positives for each lookup of a key that is not there.
    false_positives: f64,
    /// Of all files.
    bytes: u64,
}

/// A store into which so many memtables of 1000 records with even keys in random order were flushed, and these keys.
fn filled(folder: &Path, strategy: String, size_ratio: u32, bits_per_key: f64, flushes: u32) -> (Db, Vec<[u8; 8]>) {
    let keyspace = KeyspaceOptions {
        memtable_bytes: 256 << 10,
        file_bytes: 16 << 10,
        size_ratio,
        filter_bits_per_key: bits_per_key,
        strategy,
        ..KeyspaceOptions::default()
    };
    let db = Db::open(folder, Options { keyspace, compaction_threads: 1, ..Options::default() }).unwrap();
    let store = db.default_keyspace();
    let mut rng = Rng::new(8);
    let mut keys = Vec::new();
    for _ in 0..flushes {
        for n in 0..1000u64 {
            let key = (2 * rng.below(1 << 30)).to_be_bytes();
            store.put(key, n.to_be_bytes()).unwrap();
            keys.push(key);
        }
        db.flush().unwrap();
        db.wait_idle().unwrap();
    }
    (db, keys)
}

fn measure(filter_bits: &str, bits_per_key: f64) -> Measured {
    let folder = tempfile::tempdir().unwrap();
    // Every run covers nearly all keys. A file that moves would bring the bits of the level above with it. With a ratio of 3, 26 flushes
    // leave two runs in each of three levels.
    let (db, _) = filled(folder.path(), strategy("tiering", filter_bits), 3, bits_per_key, 26);
    let store = db.default_keyspace();
    let mut rng = Rng::new(9);
    let before = db.stats();
    let keys: Vec<_> = (0..20_000).map(|_| (2 * rng.below(1 << 30) + 1).to_be_bytes()).collect();
    for key in &keys {
        assert_eq!(store.get(key).unwrap(), None);
    }
    let asked = (db.stats().filter_false_positives - before.filter_false_positives) as f64;
    let mut runs = Vec::new();
    for level in store.tree().levels {
        for run in level.runs {
            let covered = keys.iter().filter(|key| {
                let at = run.files.partition_point(|file| file.largest < key[..]);
                run.files.get(at).is_some_and(|file| file.smallest <= key[..])
            });
            let share = covered.count() as f64 / keys.len() as f64;
            runs.push((level.level, run.files.iter().map(|file| file.entries).sum(), share));
        }
    }
    Measured { runs, false_positives: asked / keys.len() as f64, bytes: db.stats().disk_bytes }
}

/// What a lookup in vain costs is what the filters' rates come to, level by level, and Monkey's shares make it as much less as they should.
#[test]
fn measured_false_positives_are_those_of_the_bits() {
    // One level after the other has 2 bits a key, the others so many that they hardly count.
    for level in [0u8, 2] {
        let mut bits = ["20"; 8];
        bits[usize::from(level)] = "2";
        let measured = measure(&format!("{{ kind = \"per-level\", bits = [{}] }}", bits.join(", ")), 10.0);
        assert!(measured.runs.iter().any(|(other, ..)| *other == level), "{:?}", measured.runs);
        let shares = measured.runs.iter().filter(|(other, ..)| *other == level).map(|(.., share)| share);
        let expected = rate(2.0) * shares.sum::<f64>();
        let found = measured.false_positives;
        // A filter has whole lines of 512 bits, so small files get a little more.
        assert!(found > 0.75 * expected && found < 1.15 * expected, "L{level}: {found}, expected {expected}");
    }
    let bits = 4.0;
    let (uniform, monkey_) = (measure("{ kind = \"uniform\" }", bits), measure("{ kind = \"monkey\" }", bits));
    let sum = |runs: &[(u8, u64, f64)], bits: &[f64]| {
        runs.iter().zip(bits).map(|((.., share), bits)| share * rate(*bits)).sum::<f64>()
    };
    let entries = |of: &Measured| -> Vec<u64> { of.runs.iter().map(|(_, entries, _)| *entries).collect() };
    assert_eq!(entries(&uniform), entries(&monkey_), "the bits decide nothing about the tree");
    let entries = entries(&monkey_);
    let even = sum(&uniform.runs, &[bits; 6]);
    let best = sum(&monkey_.runs, &monkey(&entries, bits));
    let (found, found_even) = (monkey_.false_positives, uniform.false_positives);
    assert!(
        best < 0.8 * even && (found / found_even - best / even).abs() < 0.1,
        "{found} {found_even}, expected {best} {even}"
    );
    assert!(
        (found_even / even - 1.0).abs() < 0.2 && (found / best - 1.0).abs() < 0.25,
        "{found} {best}, {found_even} {even}"
    );
    // Not for more memory: files differ by their filters alone.
    assert!(monkey_.bytes < uniform.bytes + uniform.bytes / 100, "{} {}", monkey_.bytes, uniform.bytes);
}

/// Runs that a lookup asks in vain, for keys that are there and for keys that are not.
fn asked_in_vain(strategy: &str, runs: u32, flushes: u32) -> [f64; 2] {
    let folder = tempfile::tempdir().unwrap();
    let (db, there) = filled(folder.path(), strategy.to_owned(), runs + 1, 10.0, flushes);
    let store = db.default_keyspace();
    [true, false].map(|is_there| {
        let mut rng = Rng::new(10);
        let before = db.stats().filter_false_positives;
        for _ in 0..40_000 {
            let absent = (2 * rng.below(1 << 30) + 1).to_be_bytes();
            let key = if is_there { there[index(rng.below(there.len() as u64))] } else { absent };
            assert_eq!(store.get(key).unwrap().is_some(), is_there);
        }
        (db.stats().filter_false_positives - before) as f64 / 40_000.0
    })
}

/// A lookup asks one run of a level and a share of a run in vain, no matter how many there are.
#[test]
fn slimdb_asks_one_run_of_a_level() {
    let uniform = strategy("tiering", "{ kind = \"uniform\" }");
    // One run with 10 bits a key.
    let [_, rate] = asked_in_vain(&uniform, 2, 1);
    assert!(rate > 0.006 && rate < 0.013, "{rate}");
    for (runs, flushes, levels) in [(4, 24, 2.0), (8, 8, 1.0), (16, 16, 1.0)] {
        let [present, absent] = asked_in_vain("slimdb", runs, flushes);
        assert!(absent < 1.2 * levels * rate && present < absent, "{runs} runs: {present}, {absent}, one run: {rate}");
        let [_, without] = asked_in_vain(&uniform, runs, flushes);
        assert!(without > 0.7 * levels * f64::from(runs) * rate, "{runs} runs: {without}");
        // What it costs: a flat filter would need 1.44 bits a key for each doubling of the runs.
        let doublings = f64::from(runs + 1).log2();
        let more = shared_rate(10.0, runs + 1) - 10.0;
        assert!(more > 1.44 * doublings && more < 1.8 * doublings, "{runs} runs: {more}");
    }
}
