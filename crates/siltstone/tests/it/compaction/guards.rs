//! Guards: what is picked against brute force on random trees, and what must be true of PebblesDB's preset.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use bytes::Bytes;
use siltstone::compaction::guards::{Guarded, columns, known};
use siltstone::compaction::layout::Layout;
use siltstone::compaction::{Action, CompactionPolicy, LsmView, Plan, ReadCounters, Sizes, Strategy, strategies};
use siltstone::io::Rng;
use siltstone::version::text::{parse, print};
use siltstone::version::{LevelId, RunOrder, SstId, Version};

use super::sim::Sim;

/// A file as the oracle sees it.
#[derive(Clone, Debug)]
struct File {
    id: u64,
    first: u64,
    last: u64,
    bytes: u64,
    level: u8,
    run: u64,
}

impl File {
    fn meets(&self, first: u64, last: u64) -> bool {
        self.first <= last && first <= self.last
    }
}

fn key(n: u64) -> String {
    format!("{n:02}")
}

/// A job, as the oracle and the strategy say it: action, input files, output level and run, borders.
type Answer = (Action, BTreeSet<u64>, u8, u64, Vec<u64>);

const KEYS: u64 = 90;

fn random_tree(rng: &mut Rng, guarded: &Guarded) -> Vec<File> {
    let mut files = Vec::new();
    let most = rng.between(1, 3);
    for level in 1..=u8::try_from(most).unwrap() {
        let mut run = rng.between(7, 10);
        for _ in 0..rng.below(6) {
            run -= 1;
            let (wide, gaps) = (rng.between(2, 14), rng.between(1, 20));
            let weight = if rng.one_in(5) { 20 } else { 1 };
            let mut at = rng.below(20);
            while at < KEYS {
                // Often at a guard, where merges would end files.
                if rng.one_in(2) {
                    let guard = (at..KEYS).find(|n| guarded.mask(LevelId(level)).is_guard(key(*n).as_bytes()));
                    at = guard.unwrap_or(at);
                }
                let last = (at + rng.below(wide)).min(KEYS - 1);
                let bytes = weight * if rng.one_in(4) { rng.between(1, 900) } else { 100 * rng.between(1, 3) };
                files.push(File { id: 1 + files.len() as u64, first: at, last, bytes, level, run });
                at = last + 1 + rng.below(gaps);
            }
        }
    }
    files
}

fn version(files: &[File]) -> Version {
    let mut text = String::new();
    let mut place = (0, 0);
    for file in files {
        if place != (file.level, file.run) {
            place = (file.level, file.run);
            write!(text, "\nL{} order={}", file.level, file.run).unwrap();
        }
        write!(text, " {}:{}-{}:{}", file.id, key(file.first), key(file.last), file.bytes).unwrap();
    }
    parse(&text).unwrap()
}

/// The rule in words, every possibility looked at.
fn oracle(files: &[File], guarded: &Guarded) -> Option<Answer> {
    let of = |level: u8| files.iter().filter(move |file| file.level == level);
    // Newest first.
    let runs =
        |level: u8| of(level).map(|file| file.run).collect::<BTreeSet<u64>>().into_iter().rev().collect::<Vec<_>>();
    let deepest = files.iter().map(|file| file.level).max()?;
    let due = usize::try_from(guarded.max_guard_files).unwrap() + 1;
    let bytes = |level: u8| of(level).map(|file| file.bytes).sum::<u64>() as f64;
    for level in 1..=deepest {
        let runs = runs(level);
        if runs.len() < due {
            continue;
        }
        let position = |file: &File| runs.iter().position(|run| *run == file.run).unwrap();
        let bottom = |file: &File| {
            let free = |at: usize| !of(level).any(|other| other.run == runs[at] && other.meets(file.first, file.last));
            (position(file) + 1..runs.len()).take_while(|at| free(*at)).last().unwrap_or(position(file))
        };
        let deepest = of(level).filter(|file| bottom(file) > position(file)).map(bottom).max();
        if let Some(to) = deepest {
            let falls = of(level).filter(|file| bottom(file) == to && position(file) < to).map(|file| file.id);
            return Some((Action::Move, falls.collect(), level, runs[to], Vec::new()));
        }
    }
    for level in 1..=deepest {
        let mask = guarded.mask(LevelId(level));
        let is_known = |n: u64, mask: siltstone::compaction::GuardMask| {
            mask.is_guard(key(n).as_bytes()) && files.iter().any(|file| file.first == n)
        };
        let parts = |n: u64| is_known(n, mask) && !of(level).any(|file| file.first < n && n <= file.last);
        let column = |file: &File| (0..=file.first).filter(|n| parts(*n)).count();
        let columns: BTreeSet<usize> = of(level).map(column).collect();
        let inside = |at: usize| of(level).filter(move |file| column(file) == at);
        let rows = |at: usize| inside(at).map(|file| file.run).collect::<BTreeSet<u64>>();
        // Ascending: of equal ones the left-most stays.
        let mut best: Option<(usize, u64, usize)> = None;
        for at in columns.into_iter().filter(|at| rows(*at).len() >= due) {
            let found = (rows(at).len(), inside(at).map(|file| file.bytes).sum::<u64>(), at);
            if best.is_none_or(|best| (found.0, found.1) > (best.0, best.1)) {
                best = Some(found);
            }
        }
        let Some((_, total, at)) = best else { continue };
        let last = deepest.max(guarded.levels - 1);
        let dwarfed = level + 1 == last && bytes(last) > guarded.in_place_ratio * bytes(level);
        let mut rows = rows(at);
        let (to, run) = if level == last || dwarfed {
            let oldest = *rows.first().unwrap();
            let held: u64 = inside(at).filter(|file| file.run == oldest).map(|file| file.bytes).sum();
            let average = total as f64 / f64::from(guarded.max_guard_files);
            if guarded.max_guard_files > 1 && rows.len() > 2 && held as f64 > 1.5 * average {
                rows.pop_first();
            }
            (level, *rows.first().unwrap())
        } else {
            let first = inside(at).map(|file| file.first).min().unwrap();
            let last = inside(at).map(|file| file.last).max().unwrap();
            let there = runs(level + 1);
            let legal = |run: u64| !of(level + 1).any(|file| file.run >= run && file.meets(first, last));
            let own = *rows.last().unwrap();
            let above = there.first().map_or(own, |newest| own.max(newest + 1));
            (level + 1, there.into_iter().filter(|run| legal(*run)).min().unwrap_or(above))
        };
        let inputs: Vec<&File> = inside(at).filter(|file| rows.contains(&file.run)).collect();
        let first = inputs.iter().map(|file| file.first).min().unwrap();
        let last = inputs.iter().map(|file| file.last).max().unwrap();
        let mask = guarded.mask(LevelId(to));
        let borders = (first + 1..=last).filter(|n| is_known(*n, mask)).collect();
        return Some((Action::Merge, inputs.iter().map(|file| file.id).collect(), to, run, borders));
    }
    None
}

fn answer(plan: &Plan) -> Answer {
    let number = |key: &Bytes| std::str::from_utf8(key).unwrap().parse().unwrap();
    let inputs = plan.files().map(|file| file.id.0).collect();
    (plan.action, inputs, plan.output.level.0, plan.output.run.0, plan.borders.iter().map(number).collect())
}

/// A layout in which a guard may hold `most` runs, and a strategy that counts them.
fn oracle_strategy(most: u32) -> (Guarded, Strategy) {
    let text = format!(
        "name = \"oracle\"\nlayout = {{ kind = \"guarded\", levels = 4, guard_bits = 5, guard_bits_step = 1, \
         max_guard_files = {most}, in_place_ratio = 2.0 }}\npriority = \"shallowest-first\"\nreuse = \"never\"\n[[rule]]\n\
         trigger = {{ kind = \"sorted-runs\" }}\ngranularity = {{ kind = \"guard\" }}\n"
    );
    let strategy = Strategy::parse(&text).unwrap();
    match &strategy.layout {
        Layout::Guarded(guarded) => (guarded.clone(), strategy),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_picked_guard_is_the_one_that_brute_force_finds() {
    let mut rng = Rng::new(5).split("guards");
    let sizes = Sizes { memtable_bytes: 1000, file_bytes: 500, size_ratio: 0, level1_bytes: 0 };
    let strategies: Vec<(Guarded, Strategy)> = (1..4).map(oracle_strategy).collect();
    let [mut falls, mut down, mut in_place, mut left_out, mut parted, mut fell_in, mut quiet] = [0; 7];
    for round in 0..10_000 {
        let (guarded, strategy) = &strategies[round % 3];
        let mut files = random_tree(&mut rng, guarded);
        // What can fall falls first, step by step; then what is due is merged.
        while !files.is_empty() {
            let version = version(&files);
            let view = LsmView::new(&version, sizes);
            let found = strategy.pick(&view);
            if let Some(plan) = &found {
                plan.check(&view).unwrap_or_else(|broken| panic!("{broken}: {plan}\n{}", print(&version)));
            }
            let expected = oracle(&files, guarded);
            assert_eq!(found.as_ref().map(answer), expected, "{guarded:?}\n{}", print(&version));
            let Some((action, inputs, to, run, _)) = expected else {
                quiet += 1;
                break;
            };
            if action == Action::Move {
                falls += 1;
                files.iter_mut().filter(|file| inputs.contains(&file.id)).for_each(|file| file.run = run);
                files.sort_by_key(|file| (file.level, std::cmp::Reverse(file.run), file.first));
                continue;
            }
            let from = files.iter().find(|file| inputs.contains(&file.id)).unwrap().level;
            let there = || files.iter().filter(|file| file.level == to);
            in_place += u32::from(from == to);
            left_out += u32::from(from == to && there().any(|file| file.run < run));
            down += u32::from(from < to);
            fell_in += u32::from(from < to && there().any(|file| file.run == run));
            parted += u32::from(columns(&view, guarded.mask(LevelId(from)), LevelId(from)).len() > 2);
            break;
        }
    }
    let seen = [falls, down, in_place, left_out, parted, fell_in, quiet];
    assert!(seen.iter().all(|n| *n > 50), "{seen:?}");
}

/// The preset with few enough bits for few keys.
fn preset(bits: u32, levels: u8) -> Strategy {
    let text = strategies().iter().find(|preset| preset.name == "pebblesdb").unwrap().text;
    let text = text.replace("guard_bits = 27", &format!("guard_bits = {bits}"));
    Strategy::parse(&text.replace("levels = 7", &format!("levels = {levels}"))).unwrap()
}

fn bytes_of(key: u32) -> [u8; 4] {
    key.to_be_bytes()
}

/// PebblesDB's shape, for every file that it writes and at every moment:
///
/// - each file lies inside one guard of its level: it holds no guard but as its first key, and none that is known lies within its range
///   when it comes;
/// - a guard goes down without reading, or removing, anything of the next level;
/// - at rest no guard holds more than two runs, so no level does.
#[test]
fn each_file_lies_inside_one_guard_and_nothing_below_is_read() {
    let sizes = Sizes { memtable_bytes: 200, file_bytes: 100, size_ratio: 0, level1_bytes: 0 };
    for (bits, levels) in [(14, 7), (10, 4), (30, 7), (9, 3)] {
        let strategy = preset(bits, levels);
        let masks: Vec<_> = (0..8).map(|level| strategy.guards(LevelId(level)).unwrap()).collect();
        let mut sim = Sim::new(strategy, sizes);
        let mut rng = Rng::new(7);
        let (mut down, mut in_place, mut falls, mut most_guards) = (0, 0, 0, 0);
        for flush in 0..700u32 {
            let keys: Vec<u32> = match flush % 100 < 70 {
                true => (0..20).map(|_| u32::try_from(rng.below(4000)).unwrap()).collect(),
                // Times in which a part of the keys is written in order.
                false => (0..20).map(|n| flush % 100 * 50 + n).collect(),
            };
            let (dead, alive) = keys.split_at(if rng.one_in(3) { 4 } else { 0 });
            let alive: Vec<u32> = alive.iter().copied().filter(|key| !dead.contains(key)).collect();
            sim.flush(&alive, dead);
            loop {
                let before = sim.version.clone();
                let Some((plan, files)) = sim.step() else { break };
                let to = plan.output.level;
                let from = plan.inputs[0].level;
                if plan.action == Action::Move {
                    assert_eq!(from, to, "only what falls within its level moves: {plan}");
                    falls += 1;
                    continue;
                }
                let view = LsmView::new(&before, sizes);
                for file in &files {
                    let within = known(&view, masks[to.index()], &file.smallest, &file.largest);
                    assert!(within.is_empty(), "{plan}: {within:?} in {file:?}");
                }
                assert!(plan.inputs.iter().all(|input| input.level == from), "{plan} reads two levels");
                if from == to {
                    assert!(to.0 + 1 == levels || to.0 + 2 == levels, "{plan}");
                    in_place += 1;
                } else {
                    assert!(to == from.parent() && to.0 < levels);
                    let stays = |file: &_| sim.version.levels[to.index()].files().any(|other| other == file);
                    assert!(before.levels.get(to.index()).is_none_or(|level| level.files().all(stays)), "{plan}");
                    down += 1;
                }
            }
            for (level, run) in sim.version.runs().filter(|(level, _)| level.0 > 0) {
                for file in &run.files {
                    let inner = &sim.contents[&file.id][1..];
                    let guard = inner.iter().find(|entry| masks[level.index()].is_guard(&bytes_of(entry.key)));
                    assert_eq!(guard, None, "L{}: {file:?}", level.0);
                }
                let runs = sim.version.levels[level.index()].runs.len();
                assert!(runs <= 2, "L{} holds {runs} runs at rest", level.0);
                let parts = columns(&sim.view(), masks[level.index()], level);
                most_guards = most_guards.max(parts.len());
            }
        }
        assert!(down > 50 && (levels > 4 || in_place > 50), "{down} down, {in_place} in place");
        let few = bits == 30;
        assert!(
            few == (most_guards == 1) && (few || (most_guards > 100 && falls > 5)),
            "{most_guards} guards, {falls} falls"
        );
    }
}

/// Write amplification of the preset, and of HyperLevelDB's, which it was made from, for the same writes.
#[test]
fn write_amplification_is_far_below_that_of_hyperleveldb() {
    let sizes = Sizes { memtable_bytes: 2000, file_bytes: 1000, size_ratio: 0, level1_bytes: 0 };
    let measure = |strategy: Strategy| {
        let mut sim = Sim::new(strategy, sizes);
        let mut rng = Rng::new(3);
        for _ in 0..1000 {
            let keys: Vec<u32> = (0..200).map(|_| u32::try_from(rng.below(1 << 24)).unwrap()).collect();
            sim.flush(&keys, &[]);
            sim.settle();
        }
        (sim.write_amplification(), sim.version.bytes())
    };
    let (base, base_bytes) = measure(Strategy::named("hyperleveldb").unwrap());
    for bits in [27, 18] {
        let (found, bytes) = measure(preset(bits, 7));
        assert!(base > 1.5 * found, "{bits} bits: {found:.2}, HyperLevelDB {base:.2}");
        let more = bytes as f64 / base_bytes as f64;
        assert!(more < 1.1, "the same data, and {more:.2} of the bytes");
    }
}

/// A straight read counts for the file that came last, and ten of them make a guard's runs one, when nothing else is due.
#[test]
fn reads_without_writes_compact_a_guard() {
    let version = parse("L1 order=2 2:a-m:1K 5:n-z:1K\nL1 order=1 1:a-m:1K\n").unwrap();
    let sizes = Sizes { memtable_bytes: 100 << 10, file_bytes: 10 << 10, size_ratio: 0, level1_bytes: 0 };
    let pick = |reads: &[(u64, u64)]| {
        let counters: BTreeMap<SstId, ReadCounters> = reads
            .iter()
            .map(|(id, reads)| (SstId(*id), ReadCounters { reads: *reads, ..ReadCounters::default() }))
            .collect();
        let plan = preset(27, 7).pick(&LsmView::new(&version, sizes).with_counters(&counters));
        plan.map(|plan| (plan.files().count(), plan.output.level, plan.output.run))
    };
    // One guard: file 5 was not read.
    assert_eq!(pick(&[(1, 50), (2, 50)]), None);
    assert_eq!(pick(&[(1, 50), (2, 50), (5, 9)]), None);
    assert_eq!(pick(&[(1, 50), (2, 50), (5, 10)]), Some((3, LevelId(2), RunOrder(2))));
    assert!(preset(27, 7).counts_reads());
}
