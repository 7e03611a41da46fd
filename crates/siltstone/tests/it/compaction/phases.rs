//! Levels in two parts (guo17 section IV-A): that they keep the shape and save the writes that they are there for, and every decision against
//! an oracle.

use std::fmt::Write as _;

use siltstone::compaction::layout::Layout;
use siltstone::compaction::{Action, CompactionPolicy, LsmView, Sizes, Strategy};
use siltstone::io::Rng;
use siltstone::version::text::parse;
use siltstone::version::{Level, LevelId, Version};

use super::sim::Sim;

const RATIO: u32 = 4;
const SIZES: Sizes = Sizes { memtable_bytes: 1000, file_bytes: 250, size_ratio: RATIO, level1_bytes: 0 };

fn number(n: u64) -> u32 {
    u32::try_from(n).unwrap()
}

/// What a level may hold: T memtables in L0, T times as much a level from there on.
fn capacity(level: usize) -> u64 {
    SIZES.memtable_bytes * u64::from(RATIO).pow(number(level.try_into().unwrap()) + 1)
}

fn flush(sim: &mut Sim, rng: &mut Rng) {
    let keys: Vec<u32> = (0..100).map(|_| number(rng.below(1 << 26))).collect();
    sim.flush(&keys, &[]);
}

fn level(version: &Version, n: usize) -> Level {
    version.levels.get(n).cloned().unwrap_or_default()
}

/// The parts of a level, by what they do: data comes to the newer one only, and leaves the older one only, in key order.
#[test]
fn data_comes_to_one_part_and_leaves_the_other() {
    let mut sim = Sim::named("lsbm", SIZES);
    let mut rng = Rng::new(3);
    let (mut came, mut rounds, mut beside) = (0, 0, 0);
    // By level, the run that is going down and the last key that left it.
    let mut leaving: Vec<Option<(u64, Vec<u8>)>> = vec![None; 8];
    for n in 0..500 {
        flush(&mut sim, &mut rng);
        let mut before = sim.version.clone();
        while let Some((plan, _)) = sim.step() {
            let last = before.levels.len() - 1;
            let (from, to) = (plan.inputs[0].level.index(), plan.output.level.index());
            if from == to {
                // A flush that is merged with the insertion part: the deletion part of L0 stays out of it.
                assert_eq!(from, 0, "{plan}");
                assert!(plan.inputs.len() == 2 && before.levels[0].runs.len() <= 3, "{plan}");
            } else {
                let run = &plan.inputs[0];
                assert_eq!((run.files.len(), plan.inputs.len() <= 2), (1, true), "a file and what it meets: {plan}");
                let oldest = before.levels[from].runs.last().unwrap();
                assert_eq!(run.run, oldest.order, "it leaves the older part: {plan}");
                let round = &mut leaving[from];
                if from < last {
                    assert_eq!(run.files[0].id, oldest.files[0].id, "in key order: {plan}");
                }
                match round {
                    Some((order, key)) if *order == run.run.0 => {
                        assert!(from == last || run.files[0].smallest[..] > key[..], "{plan}");
                    }
                    _ => rounds += 1,
                }
                *round = Some((run.run.0, run.files[0].largest.to_vec()));
                let held = level(&before, to);
                if to < last && 2 * held.bytes() >= capacity(to) {
                    let shrinking = held.runs.last().unwrap().order;
                    assert!(plan.output.run > shrinking, "{plan}");
                    assert!(
                        plan.inputs.iter().all(|input| input.place().run != shrinking || input.level.index() == from)
                    );
                    came += 1;
                    beside += u32::from(held.runs.len() == 2);
                }
            }
            before = sim.version.clone();
        }
        // At rest: two parts at most, one in the last level, and both together hold what the level may hold.
        let last = sim.version.levels.len() - 1;
        for (n_level, level) in sim.version.levels.iter().enumerate() {
            let limit = if n_level == last { 1 } else { 2 };
            assert!(level.runs.len() <= limit, "flush {n}: L{n_level} has {} runs", level.runs.len());
            assert!(level.bytes() <= capacity(n_level), "flush {n}: L{n_level} holds {}", level.bytes());
            // What goes down goes a file at a time: once it has been full, a level stays full within a file and a flush.
            if n_level < last && n > 200 {
                let slack = SIZES.file_bytes + SIZES.memtable_bytes;
                assert!(
                    level.bytes() + 2 * slack >= capacity(n_level),
                    "flush {n}: L{n_level} holds {}",
                    level.bytes()
                );
            }
        }
    }
    assert!(sim.version.levels.len() >= 4 && came > 500 && beside > 300 && rounds > 40, "{came} {beside} {rounds}");
}

/// guo17 section IV-C: what comes down is merged with half of a level on average, r/2 bytes for each one, instead of with all of it. The picker to
/// compare with is one that takes files of average density (random); round-robin without parts does a little better than that, since its next
/// file is from the part of the level that has filled up for the longest time.
#[test]
fn two_phases_write_about_half_as_much() {
    // By level, the bytes of it that are rewritten for each byte that comes down; and write amplification.
    let rewritten = |two_phase: bool, movement: &str| {
        let text = siltstone::compaction::strategies().iter().find(|preset| preset.name == "lsbm").unwrap().text;
        let strategy = Strategy::parse(&text.replace("\"round-robin\"", &format!("\"{movement}\""))).unwrap();
        let mut sim = Sim::new(Strategy { layout: Layout::Leveling { two_phase, pairwise: false }, ..strategy }, SIZES);
        let mut rng = Rng::new(8);
        let (mut written, mut came) = ([0u64; 8], [0u64; 8]);
        for n in 0..700 {
            flush(&mut sim, &mut rng);
            while let Some((plan, files)) = sim.step() {
                let to = plan.output.level.index();
                if n > 200 && plan.inputs[0].level.index() < to {
                    let merged = if plan.action == Action::Merge { &files[..] } else { &[] };
                    written[to] += merged.iter().map(|file| file.bytes).sum::<u64>();
                    came[to] += plan.inputs[0].files.iter().map(|file| file.bytes).sum::<u64>();
                }
            }
        }
        assert_eq!(sim.version.levels.len(), 5);
        let rewritten: Vec<f64> = (1..3).map(|level| written[level] as f64 / came[level] as f64 - 1.0).collect();
        (rewritten, sim.write_amplification())
    };
    let (two, less) = rewritten(true, "round-robin");
    let (one, _) = rewritten(false, "random");
    let (_, amplification) = rewritten(false, "round-robin");
    for (level, (one, two)) in one.iter().zip(&two).enumerate() {
        let half = f64::from(RATIO) / 2.0;
        assert!((0.7..1.4).contains(&(two / half)), "L{}: {two:.2}, r/2 is {half}", level + 1);
        assert!((0.4..0.65).contains(&(two / one)), "L{}: {two:.2} of {one:.2}", level + 1);
    }
    assert!(less < 0.8 * amplification, "{less:.2} and {amplification:.2}");
}

/// A switch: leveling's tree gets its parts without a rewrite, and a tree of parts becomes leveling's by one merge a level.
#[test]
fn the_parts_come_and_go_with_the_strategy() {
    let leveling =
        Strategy { layout: Layout::Leveling { two_phase: false, pairwise: false }, ..Strategy::named("lsbm").unwrap() };
    let mut sim = Sim::new(leveling.clone(), SIZES);
    let mut rng = Rng::new(4);
    for _ in 0..250 {
        flush(&mut sim, &mut rng);
        sim.settle();
    }
    assert!(sim.version.levels.len() >= 4 && sim.version.levels.iter().all(|level| level.runs.len() == 1));
    sim.strategy = Strategy::named("lsbm").unwrap();
    assert_eq!(sim.settle(), 0, "the one run of a full level is its deletion part");
    for _ in 0..60 {
        flush(&mut sim, &mut rng);
        sim.settle();
    }
    let parted = |sim: &Sim| sim.version.levels.iter().filter(|level| level.runs.len() == 2).count();
    assert!(parted(&sim) >= 2);
    sim.strategy = leveling;
    let jobs = sim.settle();
    assert!(jobs > 0 && parted(&sim) == 0);
}

/// Aggressive compaction (guo17 section VI): a pause brings everything to the last level, and no sooner than it is one.
#[test]
fn a_pause_brings_everything_down() {
    let mut sim = Sim::named("dlsm", SIZES);
    let mut busy = Sim::named("lsbm", SIZES);
    let mut rng = Rng::new(6);
    for n in 0..150 {
        let keys: Vec<u32> = (0..100).map(|_| number(rng.below(1 << 26))).collect();
        for sim in [&mut sim, &mut busy] {
            sim.flush(&keys, &[]);
            sim.now_ms += 9_000;
            sim.settle();
        }
        assert_eq!(sim.version, busy.version, "flush {n}: nine seconds are no pause");
    }
    let due = sim.strategy.next_time_ms(&sim.view());
    assert_eq!(due, Some(sim.flushed_ms + 10_000));
    sim.now_ms += 1_000;
    assert!(sim.settle() > 50);
    let runs: Vec<usize> = sim.version.levels.iter().map(|level| level.runs.len()).collect();
    assert!(runs.len() >= 4 && runs.iter().sum::<usize>() == 1, "{runs:?}");
    assert_eq!(sim.strategy.next_time_ms(&sim.view()), None);
}

/// A file as the oracle sees it: id, first, last, bytes.
type File = (u64, u64, u64, u64);

/// Up to four levels of up to four runs, newest first; some levels near their capacity, so that both readings of a run come up.
fn random_tree(rng: &mut Rng) -> Vec<Vec<Vec<File>>> {
    let mut id = 0;
    let depth = rng.between(1, 4);
    let mut tree = Vec::new();
    for _ in 0..depth {
        let runs = rng.below(4);
        let bytes = rng.between(1, 120);
        let mut level = Vec::new();
        for _ in 0..runs {
            let mut files = Vec::new();
            let mut at = rng.below(30);
            while at < 100 {
                id += 1;
                let last = (at + rng.below(25)).min(99);
                files.push((id, at, last, rng.between(1, bytes)));
                at = last + 1 + rng.below(20);
            }
            level.push(files);
        }
        level.retain(|run: &Vec<File>| !run.is_empty());
        tree.push(level);
    }
    tree
}

fn text_of(tree: &[Vec<Vec<File>>]) -> String {
    let mut text = String::new();
    let mut order = 100;
    for (n, level) in tree.iter().enumerate() {
        for run in level {
            order -= 1;
            write!(text, "L{n} order={order}").unwrap();
            for (id, first, last, bytes) in run {
                write!(text, " {id}:{first:02}-{last:02}:{bytes}").unwrap();
            }
            text.push('\n');
        }
    }
    text
}

/// The decision by brute force: what is taken, from each run, and the position of the run that gets the output (none for a new one).
fn oracle(tree: &[Vec<Vec<File>>], capacity: impl Fn(usize) -> u64) -> Option<(Vec<u64>, usize, Option<usize>)> {
    let sum = |level: &Vec<Vec<File>>| level.iter().flatten().map(|file| file.3).sum::<u64>();
    let last = tree.iter().rposition(|level| !level.is_empty())?;
    // By level: whether its oldest run is going down.
    let shrinks: Vec<bool> =
        (0..tree.len()).map(|n| n < last && !tree[n].is_empty() && 2 * sum(&tree[n]) >= capacity(n)).collect();
    let mut due: Vec<(f64, bool, usize)> = Vec::new();
    for (n, level) in tree.iter().enumerate().filter(|(_, level)| !level.is_empty()) {
        let full = sum(level) as f64 / capacity(n) as f64;
        if full >= 1.0 {
            due.push((full, false, n));
        }
        let growing = level.len() - usize::from(shrinks[n]);
        if growing > 1 {
            due.push((growing as f64 - 1.0, true, n));
        }
    }
    // The highest score; of equals the full level, then the upper one.
    due.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
    let (_, joins, n) = *due.first()?;
    let meets = |a: &File, first: u64, last: u64| a.1 <= last && first <= a.2;
    let level = &tree[n];
    if joins {
        let growing = &level[..level.len() - usize::from(shrinks[n])];
        let (oldest, newer) = growing.split_last().unwrap();
        let first = newer.iter().flatten().map(|file| file.1).min().unwrap();
        let last = newer.iter().flatten().map(|file| file.2).max().unwrap();
        let met = oldest.iter().filter(|file| meets(file, first, last));
        let taken = newer.iter().flatten().chain(met).map(|file| file.0).collect();
        return Some((taken, n, Some(growing.len() - 1)));
    }
    // Its first file. In an undivided level the cursor stands at the start.
    let file = level.last()?[0];
    let below = tree.get(n + 1).filter(|below| !below.is_empty());
    let growing = below.filter(|below| below.len() > usize::from(shrinks[n + 1]));
    let met = growing.into_iter().flat_map(|below| &below[0]).filter(|other| meets(other, file.1, file.2));
    let taken = std::iter::once(&file).chain(met).map(|file| file.0).collect();
    Some((taken, n + 1, growing.map(|_| 0)))
}

#[test]
fn every_decision_is_the_oracles() {
    let mut strategy = Strategy::named("lsbm").unwrap();
    strategy.reuse = siltstone::compaction::Reuse::Never;
    let sizes = Sizes { memtable_bytes: 30, file_bytes: 30, size_ratio: 3, level1_bytes: 0 };
    let mut rng = Rng::new(17);
    let (mut beside, mut begins, mut joins, mut nothing) = (0, 0, 0, 0);
    for _ in 0..20_000 {
        let tree = random_tree(&mut rng);
        let text = text_of(&tree);
        let version = parse(&text).unwrap();
        let view = LsmView::new(&version, sizes);
        let plan = strategy.pick(&view);
        let expected = oracle(&tree, |level| 30 * 3u64.pow(number(u64::try_from(level).unwrap()) + 1));
        let Some(plan) = plan else {
            assert_eq!(expected, None, "{text}");
            nothing += 1;
            continue;
        };
        let ids: Vec<u64> = plan.files().map(|file| file.id.0).collect();
        let there = version.levels.get(plan.output.level.index());
        let at = there.and_then(|level| level.runs.iter().position(|run| run.order == plan.output.run));
        assert_eq!(Some((ids, plan.output.level.index(), at)), expected, "{text}{plan}");
        let from = plan.inputs[0].level;
        joins += u32::from(from == plan.output.level);
        beside +=
            u32::from(from < plan.output.level && at.is_some() && there.is_some_and(|level| level.runs.len() > 1));
        begins += u32::from(at.is_none() && there.is_some_and(|level| !level.runs.is_empty()));
        plan.check(&view).unwrap_or_else(|broken| panic!("{text}{plan}: {broken}"));
    }
    assert!(joins > 2000 && beside > 200 && begins > 500 && nothing > 200, "{joins} {beside} {begins} {nothing}");
}

/// Files of the insertion part that a rule about single files wants go down together with the older ones that they meet.
#[test]
fn a_wanted_file_of_the_insertion_part_takes_the_older_ones_along() {
    let text = "name = \"x\"\nsize_ratio = 2\nlayout = { kind = \"one-leveling\", l0_runs = 2, two_phase = true }\n\
                [[rule]]\nlevels = \"tiered\"\ntrigger = { kind = \"sorted-runs\" }\ngranularity = { kind = \"sorted-runs\" }\n\
                [[rule]]\nlevels = \"leveled\"\ntrigger = { kind = \"tombstone-density\", share = 0.5 }\n\
                granularity = { kind = \"file\" }\nmovement = [\"tombstone-density\"]\n";
    let strategy = Strategy::parse(text).unwrap();
    let version = parse(
        "L1 order=9 1:a-c:100:10 2:d-f:100:10:9@oldest=1\nL1 order=5 3:b-d:900:10 4:e-k:900:10 5:m-z:900:10\n\
         L2 order=3 6:a-b:900:10 7:i-l:900:10 8:m-n:900:10\n",
    )
    .unwrap();
    let sizes = Sizes { memtable_bytes: 1000, file_bytes: 1000, size_ratio: 0, level1_bytes: 0 };
    let view = LsmView::new(&version, sizes);
    let plan = strategy.pick(&view).unwrap();
    assert_eq!(plan.files().map(|file| file.id.0).collect::<Vec<_>>(), [2, 3, 4, 6, 7]);
    assert_eq!(plan.output.level, LevelId(2));
    plan.check(&view).unwrap();
}
