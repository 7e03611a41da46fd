//! Files that join the one that was picked, against oracles that look at every possibility: RocksDB's contiguous round-robin, Cassandra's aid for
//! a starved level.

use std::fmt::Write as _;

use bytes::Bytes;
use siltstone::compaction::{Action, CompactionPolicy, LsmView, Sizes, Strategy};
use siltstone::io::Rng;
use siltstone::version::LevelId;
use siltstone::version::text::parse;

use super::sim::Sim;

/// A file as the oracles see it: id, first, last, bytes.
type File = (u64, u64, u64, u64);

fn meets(a: &File, first: u64, last: u64) -> bool {
    a.1 <= last && first <= a.2
}

/// A sorted run over the keys 0 to 299; `ids` are given out from its end.
fn random_run(rng: &mut Rng, ids: &mut Vec<u64>, mean: u64) -> Vec<File> {
    let mut files = Vec::new();
    let mut at = rng.below(mean);
    while at < 300 {
        let last = (at + rng.below(2 * mean)).min(299);
        files.push((ids.pop().unwrap(), at, last, rng.between(1, 400)));
        at = last + 1 + rng.below(mean);
    }
    files
}

/// The numbers 1 to 400 in any order.
fn shuffled(rng: &mut Rng) -> Vec<u64> {
    let mut ids: Vec<u64> = (1..=400).collect();
    for n in (1..ids.len()).rev() {
        ids.swap(n, usize::try_from(rng.below(u64::try_from(n).unwrap() + 1)).unwrap());
    }
    ids
}

fn text_of(levels: &[Vec<File>]) -> String {
    let mut text = String::new();
    for (n, files) in levels.iter().enumerate().filter(|(_, files)| !files.is_empty()) {
        write!(text, "L{} order=1", n + 1).unwrap();
        for (id, first, last, bytes) in files {
            write!(text, " {id}:{first:03}-{last:03}:{bytes}").unwrap();
        }
        text.push('\n');
    }
    text
}

fn bytes_of(files: &[File]) -> u64 {
    files.iter().map(|file| file.3).sum()
}

/// L1 goes down by `movement`, whatever it holds.
fn strategy(movement: &str, expand: &str) -> Strategy {
    Strategy::parse(&format!(
        "name = \"x\"\nlayout = {{ kind = \"leveling\" }}\nreuse = \"never\"\nexpand = {{ {expand} }}\n[[rule]]\nlevels = [1]\n\
         trigger = {{ kind = \"level-saturation\", full_at = 0.000001 }}\ngranularity = {{ kind = \"file\" }}\nmovement = [\"{movement}\"]\n"
    ))
    .unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn contiguous_files_are_as_many_as_rocksdb_takes() {
    let strategy = strategy("round-robin", "contiguous_files = 8");
    let mut rng = Rng::new(41);
    let (mut several, mut by_bytes, mut by_level, mut to_end, mut borders) = (0, 0, 0, 0, 0);
    for _ in 0..10_000 {
        let mut ids = shuffled(&mut rng);
        let mean = rng.between(4, 20);
        let mut levels = vec![random_run(&mut rng, &mut ids, mean), random_run(&mut rng, &mut ids, 12)];
        if levels[0].is_empty() {
            levels[0].push((ids.pop().unwrap(), 3, 4, 50));
        }
        let text = text_of(&levels);
        let version = parse(&text).unwrap();
        let held = bytes_of(&levels[0]);
        let capacity = rng.between(1, held + 200);
        let cursor = rng.below(320);
        let below = rng.below(300);
        let cursors = [Bytes::new(), format!("{cursor:03}").into(), format!("{below:03}").into()];
        let sizes = Sizes { memtable_bytes: 100, file_bytes: 400, size_ratio: 0, level1_bytes: capacity };
        let view = LsmView::new(&version, sizes).with_cursors(&cursors);
        let plan = strategy.pick(&view).expect("the level is always full");
        // All that could go: from the first file behind the cursor to the end of the run.
        let start = levels[0].iter().position(|file| file.2 > cursor).unwrap_or(0);
        let rest = &levels[0][start..];
        let total = |len: usize| {
            let (first, last) = (rest[0].1, rest[len - 1].2);
            let met: u64 = levels[1].iter().filter(|file| meets(file, first, last)).map(|file| file.3).sum();
            bytes_of(&rest[..len]) + met
        };
        let over = |len: usize| held - bytes_of(&rest[..len - 1]) > capacity;
        let fits = |len: usize| total(len) <= 8 * 400;
        let len = (2..=rest.len()).take_while(|len| over(*len) && fits(*len)).last().unwrap_or(1);
        let input = &plan.inputs[0];
        let taken: Vec<u64> = input.files.iter().map(|file| file.id.0).collect();
        assert_eq!(
            taken,
            rest[..len].iter().map(|file| file.0).collect::<Vec<_>>(),
            "{text}cursor {cursor}, {capacity}"
        );
        assert_eq!(plan.input_bytes(), total(len));
        let end = Bytes::from(format!("{:03}", rest[len - 1].2));
        assert_eq!(plan.cursor, Some((LevelId(1), end)));
        // The output ends a file behind the cursor of its level.
        let keys = || plan.files().flat_map(|file| [&file.smallest, &file.largest]);
        let inside = *keys().min().unwrap() <= cursors[2] && cursors[2] < *keys().max().unwrap();
        assert_eq!(plan.borders.is_empty(), !inside, "{text}{below}");
        assert!(plan.borders.iter().all(|border| *border > cursors[2] && *border < format!("{:03}", below + 1)));
        several += u32::from(len > 1);
        to_end += u32::from(len > 1 && len == rest.len());
        by_level += u32::from(len < rest.len() && !over(len + 1));
        by_bytes += u32::from(len < rest.len() && over(len + 1));
        borders += u32::from(inside);
    }
    let counts = [several, by_bytes, by_level, to_end, borders];
    assert!(counts.iter().all(|n| *n > 300), "{counts:?}");
}

/// RocksDB's: the cursor stays on a border of files, as merges into the level end a file there; and a pick begins where the last one ended.
#[test]
fn a_round_robin_cursor_stays_between_two_files() {
    let sizes = Sizes { memtable_bytes: 200, file_bytes: 100, size_ratio: 4, level1_bytes: 0 };
    let mut sim = Sim::named("rocksdb-round-robin", sizes);
    let mut rng = Rng::new(19);
    let (mut several, mut picks, mut merges) = (0, 0, 0);
    for _ in 0..900 {
        let keys: Vec<u32> = (0..20).map(|_| u32::try_from(rng.below(4000)).unwrap()).collect();
        sim.flush(&keys, &[]);
        while let Some((plan, files)) = sim.step() {
            // A file that moves stays as it is.
            let cursor = &sim.cursors[plan.output.level.index()];
            if !cursor.is_empty() && plan.action == Action::Merge {
                merges += 1;
                let spans = files.iter().find(|file| file.smallest <= cursor && *cursor < file.largest);
                assert!(spans.is_none(), "{plan}");
            }
            picks += u32::from(plan.cursor.is_some());
            several += u32::from(plan.cursor.is_some() && plan.inputs[0].files.len() > 1);
        }
    }
    assert!(picks > 200 && several > 20 && merges > 500, "{picks} {several} {merges}");
}

#[test]
fn the_starved_level_lends_the_file_that_cassandra_would_if_it_may() {
    let strategy = strategy("largest", "starved_files = 60");
    let plain = self::strategy("largest", "");
    let mut rng = Rng::new(43);
    let (mut lent, mut not_starved, mut in_the_way, mut none) = (0, 0, 0, 0);
    for _ in 0..20_000 {
        let mut ids = shuffled(&mut rng);
        let wide = rng.between(10, 120);
        let mut levels = vec![random_run(&mut rng, &mut ids, wide)];
        for _ in 0..rng.between(1, 3) {
            let mean = rng.between(6, 40);
            levels.push(random_run(&mut rng, &mut ids, mean));
        }
        if rng.one_in(2) {
            // An old last level.
            let last = levels.last_mut().unwrap();
            for (n, file) in last.iter_mut().enumerate() {
                file.0 = 900 + u64::try_from(n).unwrap();
            }
            for files in levels.iter_mut().rev().skip(1) {
                files.iter_mut().for_each(|file| file.0 += 1040 + 40 * (file.0 % 2));
            }
        }
        if levels.iter().any(Vec::is_empty) {
            continue;
        }
        let text = text_of(&levels);
        let version = parse(&text).unwrap();
        let sizes = Sizes { memtable_bytes: 100, file_bytes: 400, size_ratio: 0, level1_bytes: 1 };
        let view = LsmView::new(&version, sizes);
        let ids = |plan: &siltstone::compaction::Plan| plan.files().map(|file| file.id.0).collect::<Vec<_>>();
        let own = plain.pick(&view).unwrap();
        let found = strategy.pick(&view).unwrap();
        let taken: Vec<&File> = levels.iter().flatten().filter(|file| ids(&own).contains(&file.0)).collect();
        let (first, end) =
            (taken.iter().map(|file| file.1).min().unwrap(), taken.iter().map(|file| file.2).max().unwrap());
        let newest = |files: &[File]| files.iter().map(|file| file.0).max().unwrap();
        let all: Vec<File> = levels.concat();
        let (last, above) = levels.split_last().unwrap();
        let starved = newest(&all) >= newest(last) + 60;
        let within: Vec<&File> = last.iter().filter(|file| first <= file.1 && file.2 <= end).collect();
        // Cassandra knows no order of age in which the levels between would be passed.
        let passes = |file: &&&File| above.iter().skip(2).flatten().all(|other| !meets(other, file.1, file.2));
        let mut expected = ids(&own);
        if starved && levels.len() > 2 {
            match within.iter().find(passes) {
                Some(file) => {
                    expected.push(file.0);
                    lent += 1;
                }
                None if within.is_empty() => none += 1,
                None => in_the_way += 1,
            }
        } else {
            not_starved += 1;
        }
        assert_eq!(ids(&found), expected, "{text}");
        assert_eq!(found.output, own.output);
        found.check(&view).unwrap_or_else(|broken| panic!("{text}{found}: {broken}"));
    }
    let counts = [lent, not_starved, in_the_way, none];
    assert!(counts.iter().all(|n| *n > 300), "{counts:?}");
}

/// LCS: when what is written stays in the upper levels, the last one is worked off all the same.
#[test]
fn lcs_works_off_a_level_that_nothing_reaches() {
    let sizes = Sizes { memtable_bytes: 200, file_bytes: 100, size_ratio: 4, level1_bytes: 0 };
    for name in ["cassandra-lcs", "scylla-lcs"] {
        // Jobs that wrote to the last level after the load, and jobs that borrowed from it.
        let measure = |starved_files: u32| {
            let mut strategy = Strategy::named(name).unwrap();
            assert_eq!(strategy.expand.starved_files, 275);
            strategy.expand.starved_files = starved_files;
            let mut sim = Sim::new(strategy, sizes);
            let mut rng = Rng::new(12);
            for _ in 0..400 {
                let keys: Vec<u32> = (0..20).map(|_| u32::try_from(rng.below(2500)).unwrap()).collect();
                sim.flush(&keys, &[]);
                sim.settle();
            }
            let last = sim.view().last_level();
            assert_eq!(last, LevelId(3), "{name}");
            let (mut reached, mut lent) = (0, 0);
            // From now on a tenth of the keys changes. L2 has room for those; what else it held has gone down after a while.
            for n in 0..600 {
                let keys: Vec<u32> = (0..20).map(|_| u32::try_from(10 * rng.below(250)).unwrap()).collect();
                sim.flush(&keys, &[]);
                while let Some((plan, _)) = sim.step() {
                    reached += u32::from(n > 200 && plan.output.level == last);
                    lent += u32::from(plan.output.level < last && plan.inputs.iter().any(|input| input.level == last));
                }
            }
            (reached, lent)
        };
        let (without, _) = measure(0);
        let (with, lent) = measure(275);
        assert!(without == 0 && with > 5 && lent > 5, "{name}: {without} and {with} jobs, {lent} files lent");
    }
}
