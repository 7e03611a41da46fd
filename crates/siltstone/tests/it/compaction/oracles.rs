//! Choices among files against oracles that look at every possibility, on random trees: which file, which window, which targets.

use std::fmt::Write as _;

use siltstone::compaction::layout::Layout;
use siltstone::compaction::targets::{Basis, LevelTargets};
use siltstone::compaction::{CompactionPolicy, LsmView, Sizes, Strategy};
use siltstone::io::Rng;
use siltstone::version::text::parse;
use siltstone::version::{LevelId, Version};

/// A file as the oracles see it.
#[derive(Clone, Copy, Debug)]
struct File {
    id: u64,
    first: u64,
    last: u64,
    bytes: u64,
    entries: u64,
    tombstones: u64,
}

impl File {
    fn meets(&self, other: &File) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// RocksDB's compensated size, with the average record instead of the average value.
    fn weight(&self) -> u64 {
        let surplus = (2 * self.tombstones).saturating_sub(self.entries);
        (self.bytes + 2 * surplus * (self.bytes / self.entries)).max(1)
    }
}

/// Levels 1, 2 and 3 with random files; L1 has at least one.
fn random_levels(rng: &mut Rng) -> Vec<Vec<File>> {
    let few_sizes = rng.one_in(2);
    let mut id = 0;
    let mut level = |rng: &mut Rng, mean: u64, gaps: bool| {
        let mut files = Vec::new();
        let mut at = rng.below(mean);
        while at < 160 {
            id += 1;
            let last = (at + rng.below(2 * mean)).min(159);
            let bytes = if few_sizes { 100 * rng.between(1, 3) } else { rng.between(1, 4000) };
            let entries = rng.between(1, 50);
            let tombstones = if rng.one_in(4) { rng.below(entries + 1) } else { 0 };
            files.push(File { id, first: at, last, bytes, entries, tombstones });
            at = last + 1 + if gaps { rng.below(mean) } else { 0 };
        }
        files
    };
    let mean = rng.between(6, 24);
    let mut first = level(rng, mean, true);
    if first.is_empty() {
        first.push(File { id: 9999, first: 3, last: 5, bytes: 7, entries: 1, tombstones: 0 });
    }
    let (gaps2, gaps3) = (rng.one_in(3), rng.one_in(3));
    vec![first, level(rng, 12, gaps2), level(rng, 6, gaps3)]
}

fn version(levels: &[Vec<File>]) -> Version {
    let mut text = String::new();
    for (n, files) in levels.iter().enumerate().filter(|(_, files)| !files.is_empty()) {
        write!(text, "L{} order=1", n + 1).unwrap();
        for file in files {
            let File { id, first, last, bytes, entries, tombstones } = file;
            write!(text, " {id}:{first:03}-{last:03}:{bytes}:{entries}:{tombstones}").unwrap();
        }
        text.push('\n');
    }
    parse(&text).unwrap()
}

fn overlap(file: &File, below: &[File]) -> u64 {
    below.iter().filter(|other| file.meets(other)).map(|other| other.bytes).sum()
}

/// Whether a/b is smaller than c/d.
fn smaller(a: u64, b: u64, c: u64, d: u64) -> bool {
    u128::from(a) * u128::from(d) < u128::from(c) * u128::from(b)
}

/// A strategy that takes from L1 by `movement`, whatever the level holds.
fn picks(movement: &str, more: &str) -> Strategy {
    let granularity =
        if movement == "max-ratio-window" { "{ kind = \"files\", window_files = 16 }" } else { "{ kind = \"file\" }" };
    let text = format!(
        "name = \"oracle\"\nlayout = {{ kind = \"leveling\" }}\nreuse = \"never\"\n{more}\n[[rule]]\nlevels = [1]\n\
         trigger = {{ kind = \"level-saturation\", full_at = 0.000001 }}\ngranularity = {granularity}\nmovement = [\"{movement}\"]\n"
    );
    Strategy::parse(&text).unwrap_or_else(|error| panic!("{error}"))
}

/// The files that the strategy takes from L1.
fn taken(strategy: &Strategy, version: &Version) -> Vec<u64> {
    let sizes = Sizes { memtable_bytes: 1000, file_bytes: 500, size_ratio: 0, level1_bytes: 1 };
    let plan = strategy.pick(&LsmView::new(version, sizes)).expect("the level is always full");
    let input = plan.inputs.iter().find(|input| input.level == LevelId(1)).unwrap();
    input.files.iter().map(|file| file.id.0).collect()
}

/// Runs `oracle` beside `movement` on 10,000 trees; how often the choice was not the first file.
fn compare(movement: &str, more: &str, oracle: impl Fn(&[Vec<File>]) -> Vec<u64>) {
    let strategy = picks(movement, more);
    let mut rng = Rng::new(5).split(movement);
    let mut others = 0;
    for _ in 0..10_000 {
        let levels = random_levels(&mut rng);
        let expected = oracle(&levels);
        assert_eq!(taken(&strategy, &version(&levels)), expected, "{movement} on {levels:?}");
        others += u32::from(expected[0] != levels[0][0].id);
    }
    assert!(others > 2500, "{movement}: only {others} choices were not the first file");
}

fn least(files: &[File], ratio: impl Fn(&File) -> (u64, u64)) -> usize {
    let mut best = 0;
    for n in 1..files.len() {
        let ((a, b), (c, d)) = (ratio(&files[n]), ratio(&files[best]));
        if smaller(a, b, c, d) {
            best = n;
        }
    }
    best
}

#[test]
fn least_overlap_is_the_least_of_all() {
    compare("least-overlap-parent", "", |levels| {
        vec![levels[0][least(&levels[0], |file| (overlap(file, &levels[1]), file.bytes))].id]
    });
    compare("min-overlap-ratio", "", |levels| {
        vec![levels[0][least(&levels[0], |file| (overlap(file, &levels[1]), file.weight()))].id]
    });
    compare("least-overlap-grandparent", "", |levels| {
        let below = if levels[2].is_empty() { &levels[1] } else { &levels[2] };
        vec![levels[0][least(&levels[0], |file| (overlap(file, below), file.bytes))].id]
    });
    compare("choose-best", "", |levels| {
        let met = |file: &File| levels[1].iter().filter(|other| file.meets(other)).count();
        vec![levels[0].iter().min_by_key(|file| met(file)).unwrap().id]
    });
}

/// The files within 5 % of the smallest ratio, and the smallest ratio's position.
fn near_minimum(levels: &[Vec<File>]) -> (Vec<usize>, usize) {
    let ratio = |file: &File| (overlap(file, &levels[1]), file.weight());
    let best = least(&levels[0], ratio);
    let (a, b) = ratio(&levels[0][best]);
    // c/d <= 1.05 a/b, as 100 c b <= 105 a d.
    let near = |n: &usize| {
        let (c, d) = ratio(&levels[0][*n]);
        100 * u128::from(c) * u128::from(b) <= 105 * u128::from(a) * u128::from(d)
    };
    let near: Vec<usize> = (0..levels[0].len()).filter(near).collect();
    assert!(near.contains(&best), "the candidates hold the minimum");
    (near, best)
}

#[test]
fn refined_mor_is_as_described() {
    let several = std::cell::Cell::new(0);
    compare("refined-mor", "", |levels| {
        let files = &levels[0];
        let (near, best) = near_minimum(levels);
        let choice = match near.last() {
            _ if overlap(&files[best], &levels[1]) == 0 => best,
            Some(last) if near.len() > 1 && last + 1 == files.len() => *last,
            _ if near.len() == 1 => best,
            _ => {
                several.set(several.get() + 1);
                let successor = |n: usize| (overlap(&files[n + 1], &levels[1]), files[n + 1].weight());
                let mut choice = near[0];
                for n in &near[1..] {
                    let ((a, b), (c, d)) = (successor(choice), successor(*n));
                    if smaller(a, b, c, d) {
                        choice = *n;
                    }
                }
                choice
            }
        };
        vec![files[choice].id]
    });
    assert!(several.get() > 200, "only {} choices among several", several.get());
}

#[test]
fn refined_mor_as_released_takes_the_right_most() {
    compare("refined-mor-rightmost", "", |levels| {
        let (near, best) = near_minimum(levels);
        let free = overlap(&levels[0][best], &levels[1]) == 0;
        vec![levels[0][if free { best } else { *near.last().unwrap() }].id]
    });
}

/// HyperLevelDB's window, of all windows of neighbours.
#[test]
fn the_window_has_the_best_ratio_of_all_windows() {
    let windows = std::cell::Cell::new(0);
    compare("max-ratio-window", "", |levels| {
        let (files, below) = (&levels[0], &levels[1]);
        let mut best: Option<(f64, u64, std::ops::Range<usize>)> = None;
        for start in 0..files.len() {
            for end in start + 1..=files.len() {
                let window = &files[start..end];
                let hull = File { first: window[0].first, last: window[end - start - 1].last, ..window[0] };
                let own: u64 = window.iter().map(|file| file.bytes).sum();
                let rewritten = overlap(&hull, below);
                if window.iter().any(|file| overlap(file, below) == 0) || own + rewritten >= 16 * 500 {
                    continue;
                }
                let ratio = own as f64 / rewritten as f64;
                if best.as_ref().is_none_or(|(r, bytes, _)| ratio > *r || ratio == *r && own + rewritten < *bytes) {
                    best = Some((ratio, own + rewritten, start..end));
                }
            }
        }
        let fewest = |file: &&File| below.iter().filter(|other| file.meets(other)).count();
        match best {
            Some((.., window)) => {
                windows.set(windows.get() + u32::from(window.len() > 1));
                files[window].iter().map(|file| file.id).collect()
            }
            None => vec![files.iter().min_by_key(fewest).unwrap().id],
        }
    });
    assert!(windows.get() > 1000, "only {} windows of several files", windows.get());
}

#[test]
fn ties_are_broken_as_said() {
    let most = |levels: &[Vec<File>]| levels[0].iter().map(|file| file.bytes).max().unwrap();
    compare("largest", "tie_break = \"right-most\"", |levels| {
        vec![levels[0].iter().rev().find(|file| file.bytes == most(levels)).unwrap().id]
    });
    compare("largest", "tie_break = \"largest-successor\"", |levels| {
        let files = &levels[0];
        let mut choice: Option<usize> = None;
        for n in (0..files.len()).filter(|n| files[*n].bytes == most(levels)) {
            let value = |n: usize| files.get(n + 1).map(|file| (overlap(file, &levels[1]), file.weight()));
            // None, the last file of the level, goes before all.
            let better = |old: usize| match (value(old), value(n)) {
                (Some((a, b)), Some((c, d))) => smaller(a, b, c, d),
                (Some(_), None) => true,
                (None, _) => false,
            };
            if choice.is_none_or(better) {
                choice = Some(n);
            }
        }
        vec![files[choice.unwrap()].id]
    });
}

/// What is merged is 32 runs, and no more than 32 stay behind: the oldest go.
#[test]
fn one_leveling_merges_more_the_more_wait() {
    let strategy = Strategy::named("one-leveling").unwrap();
    for (runs, merged) in [(32, 32), (48, 32), (64, 32), (65, 33), (140, 108)] {
        let text: String = (0..runs).rev().map(|n| format!("L0 {}:a-z:1K\n", n + 2)).collect();
        let version = parse(&format!("{text}L1 1:a-z:1K\n")).unwrap();
        let sizes = Sizes { memtable_bytes: 1000, file_bytes: 500, size_ratio: 0, level1_bytes: 0 };
        let plan = strategy.pick(&LsmView::new(&version, sizes)).unwrap();
        let taken = plan.inputs.iter().filter(|input| input.level == LevelId(0));
        let ids: Vec<u64> = taken.flat_map(|input| input.files.iter().map(|file| file.id.0)).collect();
        let oldest: Vec<u64> = (0..merged).rev().map(|n| n + 2).collect();
        assert_eq!(ids, oldest, "of {runs} runs");
    }
}

/// Dice: every file of a level can come up, about equally often, and other seeds throw other dice.
#[test]
fn random_is_even_and_pure() {
    let levels: Vec<Vec<File>> = vec![
        (0..10)
            .map(|n| File { id: n, first: n * 10, last: n * 10 + 5, bytes: 100, entries: 1, tombstones: 0 })
            .collect(),
    ];
    let version = version(&levels);
    for (movement, more) in [("random", ""), ("largest", "tie_break = \"seeded\"\n")] {
        let mut hits = [0u32; 10];
        for seed in 1..=2000 {
            let strategy = picks(movement, &format!("{more}seed = {seed}"));
            let file = taken(&strategy, &version)[0];
            assert_eq!(taken(&strategy, &version), [file]);
            hits[usize::try_from(file).unwrap()] += 1;
        }
        assert!(hits.iter().all(|n| (140..260).contains(n)), "{movement}: {hits:?}");
    }
}

#[test]
fn sequence_numbers_and_creation_are_three_different_ages() {
    let version = parse("L1 1:a-b:9@seq=3..9,created=2 2:c-d:9@seq=2..10,created=3 3:e-f:9@seq=4..8,created=4 4:g-h:9@seq=5..9,created=1").unwrap();
    for (movement, expected) in [("oldest", 4), ("oldest-smallest-seq", 2), ("oldest-largest-seq", 3)] {
        assert_eq!(taken(&picks(movement, ""), &version), [expected], "{movement}");
    }
}

/// The order by tombstones is total: expired, by age, then by number; files without any are equal.
#[test]
fn expired_tombstones_order_all_files() {
    let version =
        parse("L1 1:a-b:9:9 2:c-d:9:9:2@oldest=70 3:e-f:9:9:1@oldest=50 4:g-h:9:9:3@oldest=50 5:i-j:1:9\nL2 6:a-b:9")
            .unwrap();
    assert_eq!(taken(&picks("expired-tombstones", ""), &version), [4]);
    let version = parse("L1 1:a-b:9:9 5:i-j:1:9\nL2 6:a-b:9").unwrap();
    assert_eq!(taken(&picks("expired-tombstones", ""), &version), [1]);
    assert_eq!(taken(&picks("expired-tombstones\", \"least-overlap-parent", ""), &version), [5]);
}

/// The rules of RocksDB's dynamic level sizes, told from the text of its wiki instead of from its loop: the largest level divided down
/// to each level gives what it would hold; the base is the deepest level that must not be left empty.
fn dynamic_oracle(held: &[u64], levels: usize, ratio: u64, most: u64) -> (usize, Vec<Option<u64>>) {
    let last = (levels - 1).max(held.iter().rposition(|bytes| *bytes > 0).unwrap_or(0));
    let mut targets = vec![None; 33];
    let Some(first) = (1..=last).find(|level| held.get(*level).copied().unwrap_or(0) > 0) else {
        return (last, targets);
    };
    let largest = *held[1..].iter().max().unwrap();
    // What `level` would hold if every level were smaller by the ratio than the one below it, rounded down each time.
    let ideal = |level: usize| (level..last).fold(largest, |bytes, _| bytes / ratio);
    let least = most / ratio;
    let (base, own) = if ideal(first) <= least {
        (first, least + 1)
    } else {
        let base = (1..=first).rev().find(|level| *level == 1 || ideal(*level) <= most).unwrap();
        (base, ideal(base).min(most))
    };
    for (level, target) in targets.iter_mut().enumerate().take(last).skip(base) {
        *target = Some((own * ratio.pow(u32::try_from(level - base).unwrap())).max(most));
    }
    (base, targets)
}

#[test]
fn dynamic_targets_are_rocksdbs() {
    let mut rng = Rng::new(12);
    let layout = Layout::OneLeveling { l0_runs: 4, two_phase: false };
    let (mut bases, mut unnecessary) = ([0u32; 12], 0);
    for _ in 0..20_000 {
        let levels = rng.between(2, 8);
        let ratio = rng.between(2, 10);
        let most = rng.between(1, 5000);
        let mut held = vec![0u64; 9];
        let top = rng.between(1, 8);
        for level in top..=rng.between(top, 8) {
            // Level by level about the ratio, or anything.
            let scale = ratio.pow(u32::try_from(level - top).unwrap()).min(1 << 30);
            held[usize::try_from(level).unwrap()] =
                if rng.one_in(4) { rng.below(1 << 36) } else { rng.between(0, 2 * most) * scale };
        }
        let lines = held.iter().enumerate().filter(|(_, bytes)| **bytes > 0);
        let text: String = lines.map(|(level, bytes)| format!("L{level} order=1 {level}:a-b:{bytes}\n")).collect();
        let version = parse(&text).unwrap();
        let sizes = Sizes { memtable_bytes: 10, file_bytes: 10, size_ratio: 0, level1_bytes: most };
        let view = LsmView::new(&version, sizes);
        let basis =
            Basis { view: &view, layout: &layout, ratio: u32::try_from(ratio).unwrap(), level1_memtables: None };
        let targets = LevelTargets::Dynamic { levels: u8::try_from(levels).unwrap() }.targets(&basis);
        let (base, expected) = dynamic_oracle(&held, usize::try_from(levels).unwrap(), ratio, most);
        let what = format!("{text}levels {levels}, ratio {ratio}, L1 {most}: {targets:?}");
        assert_eq!(usize::from(targets.base.0), base, "{what}");
        for (level, expected) in expected.iter().enumerate() {
            if let Some(bytes) = expected {
                assert_eq!(targets.bytes[level], *bytes as f64, "L{level}\n{what}");
            }
        }
        bases[base] += 1;
        unnecessary += u32::from(held[base] > 0 && base > 1);
    }
    assert!(bases[1..8].iter().all(|n| *n > 300) && unnecessary > 1000, "{bases:?} {unnecessary}");
}

/// RocksDB's score with dynamic targets, from the bytes of the levels, top down: what is full counts ten times, divided by its target and by
/// what the levels above have too much; L0 also by its bytes against the base.
#[test]
fn scores_with_dynamic_targets_are_rocksdbs() {
    let strategy = Strategy::named("rocksdb-leveled").unwrap();
    let mut rng = Rng::new(21);
    let mut from = [0u32; 7];
    for _ in 0..10_000 {
        let memtable = 100;
        let mut text = String::new();
        let l0 = rng.below(6);
        for n in 0..l0 {
            let bytes = if rng.one_in(3) { rng.between(1, 1000) } else { 100 };
            writeln!(text, "L0 order={} {}:a-z:{bytes}", 100 - n, 50 + n).unwrap();
        }
        let top = rng.between(1, 6);
        let mut held = [0u64; 7];
        for level in top..=6 {
            let ideal = 400 * 4u64.pow(u32::try_from(level - top).unwrap());
            held[usize::try_from(level).unwrap()] = ideal * rng.between(5, 40) / 10;
            writeln!(text, "L{level} order=1 {level}:a-z:{}", held[usize::try_from(level).unwrap()]).unwrap();
        }
        let version = parse(&text).unwrap();
        held[0] = version.levels[0].bytes();
        let sizes = Sizes { memtable_bytes: memtable, file_bytes: 100, size_ratio: 4, level1_bytes: 0 };
        let view = LsmView::new(&version, sizes);
        let (base, targets) = dynamic_oracle(&held, 7, 4, 4 * memtable);
        let mut best: Option<(f64, usize)> = None;
        let mut coming = held[0] as f64;
        for level in 0..6 {
            let score = if level == 0 {
                let runs = l0 as f64 / 4.0;
                // By its bytes L0 is due when they fill L1.
                let bytes = held[0] as f64 / 400.0;
                let target = targets[base].unwrap_or(u64::MAX) as f64;
                let against =
                    if held[0] as f64 > target { held[0] as f64 / target.max(held[base] as f64) } else { 0.0 };
                let score = if runs >= 1.0 || bytes >= 1.0 { runs.max(bytes).max(against) } else { 0.0 };
                if score > 1.0 { 10.0 * score } else { score }
            } else {
                let Some(target) = targets[level].map(|target| target as f64) else { continue };
                let bytes = held[level] as f64;
                let score = if bytes < target { bytes / target } else { 10.0 * bytes / (target + coming) };
                coming += (bytes - target).max(0.0);
                if bytes < target { 0.0 } else { score }
            };
            // One run alone counts only by its bytes.
            let due = if level == 0 { l0 >= 4 || held[0] >= 400 } else { score > 0.0 };
            if due && best.is_none_or(|(other, _)| score > other + 1e-9) {
                best = Some((score, level));
            }
        }
        let found = strategy.pick(&view).map(|plan| plan.inputs[0].level.index());
        assert_eq!(found, best.map(|(_, level)| level), "{text}base {base}, {targets:?}");
        if let Some(level) = found {
            from[level] += 1;
        }
    }
    assert!(from[..6].iter().all(|n| *n > 100), "{from:?}");
}
