//! What must be true of a preset if it is the system that it is named after: for each the cheapest test that a fake would fail.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use siltstone::compaction::layout::Layout;
use siltstone::compaction::targets::LevelTargets;
use siltstone::compaction::{Action, LsmView, Plan, Sizes, Strategy, plan};
use siltstone::io::Rng;
use siltstone::version::{FileMeta, LevelId, RunOrder};

use super::sim::Sim;

const SIZES: Sizes = Sizes { memtable_bytes: 200, file_bytes: 100, size_ratio: 4, level1_bytes: 0 };

fn number(n: u64) -> u32 {
    u32::try_from(n).unwrap()
}

/// Random flushes until nothing is due after each; `deletes` in a hundred. Calls `after` with each plan and its outputs.
fn run(
    sim: &mut Sim,
    flushes: u32,
    deletes: u64,
    mut after: impl FnMut(&Sim, Option<(&Plan, &[Arc<FileMeta>])>),
) -> String {
    let mut rng = Rng::new(77);
    let mut trace = String::new();
    for _ in 0..flushes {
        let keys: Vec<u32> = (0..20).map(|_| number(rng.below(4000))).collect();
        let (dead, alive): (Vec<u32>, Vec<u32>) = keys.into_iter().partition(|_| rng.below(100) < deletes);
        sim.flush(&alive, &dead);
        sim.now_ms += 1000;
        after(sim, None);
        while let Some((plan, files)) = sim.step() {
            // What is done, not why.
            let ids: Vec<u64> = plan.files().map(|file| file.id.0).collect();
            writeln!(trace, "{:?} {ids:?} {:?}", plan.action, plan.output).unwrap();
            after(sim, Some((&plan, &files)));
        }
    }
    trace
}

pub(super) fn trace(strategy: Strategy, deletes: u64) -> String {
    run(&mut Sim::new(strategy, SIZES), 600, deletes, |_, _| {})
}

pub(super) fn named(name: &str) -> Strategy {
    Strategy::named(name).unwrap()
}

#[test]
fn clsm_is_leveldb() {
    assert_eq!(trace(named("clsm"), 10), trace(named("leveldb"), 10));
}

/// Without deletes, whatever goes by tombstones is LO+1, bit for bit.
#[test]
fn without_deletes_the_delete_aware_are_lo1() {
    let lo1 = trace(named("lo1"), 0);
    assert!(lo1.lines().count() > 1000);
    for name in ["tsd", "tsa", "lethe"] {
        assert!(trace(named(name), 0) == lo1, "{name} differs from LO+1");
        assert!(trace(named(name), 30) != trace(named("lo1"), 30), "{name} does nothing about deletes");
    }
}

#[test]
fn a_bush_of_equal_ratios_is_lazy_leveling() {
    let mut bush = named("lsm-bush");
    bush.size_ratio = 4;
    bush.level_targets = LevelTargets::DoublyExponential { exponent: 1.0 };
    let lazy = Strategy { size_ratio: 4, ..named("dostoevsky") };
    assert_eq!(trace(bush.clone(), 5), trace(lazy.clone(), 5));
    bush.level_targets = LevelTargets::DoublyExponential { exponent: 2.0 };
    assert_ne!(trace(bush, 5), trace(lazy, 5));
}

/// The number of levels of a bush grows with the logarithm of the logarithm: a level more squares what the tree holds.
#[test]
fn a_bush_squares_its_size_with_each_level() {
    let sizes = Sizes { size_ratio: 0, ..SIZES };
    let mut sim = Sim::named("lsm-bush", sizes);
    let mut rng = Rng::new(5);
    let mut grew: Vec<u32> = Vec::new();
    for flush in 0..1500 {
        let keys: Vec<u32> = (0..20).map(|_| number(rng.below(1 << 30))).collect();
        sim.flush(&keys, &[]);
        sim.settle();
        if usize::from(sim.view().last_level().0) > grew.len() {
            grew.push(flush + 1);
        }
    }
    // L1 holds 2 T memtables, L2 4 of those twice, L3 16 of those ...: with T = 2 a new level after 2, 4, 16, 128 flushes or more.
    assert_eq!(grew.len(), 4, "{grew:?}");
    let steps: Vec<f64> = grew.windows(2).map(|pair| f64::from(pair[1]) / f64::from(pair[0])).collect();
    assert!(steps.windows(2).all(|pair| pair[1] > 1.5 * pair[0]), "{grew:?}");
}

/// Fluid trees at their ends: one run a level is leveling, T - 1 runs above a leveled last level are Dostoevsky's shape.
#[test]
fn dostoevsky_keeps_one_run_in_the_last_level_only() {
    let mut sim = Sim::named("dostoevsky", SIZES);
    let mut tiered = 0;
    run(&mut sim, 500, 0, |sim, done| {
        if done.is_none() {
            return;
        }
        let last = sim.view().last_level();
        let runs: Vec<usize> = sim.version.levels.iter().map(|level| level.runs.len()).collect();
        assert!(runs.iter().all(|runs| *runs <= 4), "{runs:?}");
        tiered += u32::from(runs[..last.index()].iter().any(|runs| *runs > 1));
    });
    let last = sim.view().last_level();
    assert!(last.0 >= 3 && tiered > 50 && sim.version.levels[last.index()].runs.len() == 1);
}

/// Fluid trees by their run limits: 1 everywhere is leveling, the ratio everywhere is tiering.
#[test]
fn run_limits_alone_make_leveling_and_tiering() {
    let hybrid = |name: &str, runs: u32| Strategy { layout: Layout::Hybrid { runs: vec![runs] }, ..named(name) };
    assert_eq!(trace(hybrid("lo1", 1), 5), trace(named("lo1"), 5));
    assert_eq!(trace(hybrid("tiering", 4), 5), trace(named("tiering"), 5));
}

/// Full, and all that work like it: every merge takes all of a level and all of the next one.
#[test]
fn full_merges_take_two_whole_levels() {
    for name in ["full", "asterixdb-leveling", "fd-tree", "blsm"] {
        let mut sim = Sim::named(name, SIZES);
        let mut merges = 0;
        let mut before = sim.version.clone();
        run(&mut sim, 400, 0, |sim, done| {
            if let Some((plan, _)) = done
                && plan.action == Action::Merge
                && plan.inputs[0].level < plan.output.level
            {
                merges += 1;
                let level = plan.inputs[0].level;
                assert_eq!(plan.output.level, level.parent());
                for taken in [level, level.parent()] {
                    let held = before.levels.get(taken.index()).map_or(0, |level| level.files().count());
                    let inputs = plan.inputs.iter().filter(|input| input.level == taken);
                    assert_eq!(inputs.map(|input| input.files.len()).sum::<usize>(), held, "{name}: {plan}");
                }
            }
            before = sim.version.clone();
        });
        assert!(merges > 20, "{name}: {merges}");
        let runs: Vec<usize> = sim.version.levels.iter().map(|level| level.runs.len()).collect();
        assert!(runs.iter().all(|runs| *runs <= 1), "{name}: {runs:?}");
        assert!(name != "blsm" || runs.len() == 2, "{runs:?}");
    }
}

/// A cursor goes round: between two wraps it compacts no part of the key space twice.
#[test]
fn a_cursor_compacts_every_range_once_a_round() {
    for name in ["rr", "leveldb", "lsbm", "cassandra-lcs", "scylla-lcs"] {
        let mut sim = Sim::named(name, SIZES);
        let mut last: Vec<Option<Vec<u8>>> = vec![None; 40];
        let (mut picks, mut wraps, mut twice) = (0, 0, 0);
        run(&mut sim, 800, 0, |_, done| {
            let Some((plan, _)) = done else { return };
            let Some((level, key)) = &plan.cursor else { return };
            if level.0 == 0 && name != "rr" && name != "lsbm" {
                return;
            }
            let inputs = plan.inputs.iter().filter(|input| input.level == *level).flat_map(|input| &input.files);
            let first = inputs.map(|file| file.smallest.to_vec()).min().unwrap();
            picks += 1;
            // The cursor only goes on. A file may begin before it if it was written since, or joined (LevelDB's expansion).
            if last[level.index()].as_ref().is_some_and(|last| key[..] <= last[..]) {
                wraps += 1;
            } else {
                twice += u32::from(last[level.index()].as_ref().is_some_and(|last| first <= *last));
            }
            last[level.index()] = Some(key.to_vec());
        });
        assert!(
            wraps > 10 && picks > 8 * wraps && twice < picks / 3,
            "{name}: {picks} picks, {wraps} wraps, {twice} twice"
        );
    }
}

/// Lethe and TSA: at every moment, no tombstone is older than it may be in its level, and none older than the bound at all.
#[test]
fn no_tombstone_outlives_its_bound() {
    for name in ["lethe", "tsa"] {
        let text = siltstone::compaction::strategies().iter().find(|preset| preset.name == name).unwrap().text;
        let strategy = Strategy::parse(&text.replace("ttl = \"1h\"", "ttl = \"5m\"")).unwrap();
        let bound = Duration::from_secs(300);
        let mut sim = Sim::new(strategy, SIZES);
        let mut rng = Rng::new(31);
        let (mut deepest, mut held, mut due) = (0, 0u64, 0);
        for flush in 0..3000u64 {
            // Bursts, and pauses in which nothing is written.
            if flush % 100 < 60 {
                let keys: Vec<u32> = (0..20).map(|_| number(rng.below(8000))).collect();
                let (dead, alive) = keys.split_at(3);
                sim.flush(alive, dead);
            }
            sim.now_ms += 2000;
            while let Some((plan, _)) = sim.step() {
                due += u32::from(plan.record.trigger == "tombstone-ttl");
            }
            let last = sim.view().last_level();
            deepest = deepest.max(last.0);
            for (level, run) in sim.version.runs() {
                for file in &run.files {
                    let born = sim.contents[&file.id].iter().filter_map(|entry| entry.born_ms);
                    held += u64::from(file.tombstones > 0);
                    for age in born.map(|born| sim.now_ms - born) {
                        let allowed = allowed_ms(bound, 4, level, last);
                        assert!(age as f64 <= allowed, "{name}: {age} ms in {level:?} of {last:?}, allowed {allowed}");
                    }
                }
            }
        }
        assert!(deepest >= 2 && held > 1000 && due > 100, "{name}: L{deepest}, {held} files, {due} for the bound");
    }
}

/// The shares summed one by one: x T^j with x = D (T - 1) / (T^n - 1), n levels above the last.
fn allowed_ms(bound: Duration, ratio: u32, level: LevelId, last: LevelId) -> f64 {
    let (n, ratio) = (i32::from(last.0), f64::from(ratio));
    let x = bound.as_secs_f64() * 1000.0 * (ratio - 1.0) / (ratio.powi(n) - 1.0);
    let shares = (0..n.min(i32::from(level.0) + 1)).map(|j| x * ratio.powi(j));
    if n == 0 { bound.as_secs_f64() * 1000.0 } else { shares.sum::<f64>() * (1.0 + 1e-9) }
}

/// Cutting outputs at the borders below helps a picker by overlap more than a cursor (the cut is a choice of its own).
#[test]
fn aligned_cuts_help_a_picker_by_overlap_more_than_a_cursor() {
    let measure = |movement: &str, align: bool| {
        let text = siltstone::compaction::strategies().iter().find(|preset| preset.name == "lo1").unwrap().text;
        let text = text
            .replace("least-overlap-parent", movement)
            .replace("[[rule]]", &format!("cut = {{ align = {align} }}\n[[rule]]"));
        let strategy = Strategy {
            layout: Layout::OneLeveling { l0_runs: 4, two_phase: false },
            ..Strategy::parse(&text).unwrap()
        };
        let text_rule =
            siltstone::compaction::strategies().iter().find(|preset| preset.name == "one-leveling").unwrap();
        let l0 = Strategy::parse(text_rule.text).unwrap().rules.into_iter().next().unwrap();
        let mut strategy = strategy;
        strategy.rules.insert(0, l0);
        let mut sim =
            Sim::new(strategy, Sizes { memtable_bytes: 2000, file_bytes: 1000, size_ratio: 5, level1_bytes: 0 });
        let mut rng = Rng::new(3);
        for _ in 0..700 {
            let keys: Vec<u32> = (0..200).map(|_| number(rng.below(1 << 24))).collect();
            sim.flush(&keys, &[]);
            sim.settle();
        }
        sim.write_amplification()
    };
    let [mor, mor_cut, rr, rr_cut] =
        [("min-overlap-ratio", false), ("min-overlap-ratio", true), ("round-robin", false), ("round-robin", true)]
            .map(|(movement, align)| measure(movement, align));
    assert!(mor_cut < mor && rr_cut < rr, "MOR {mor:.2} -> {mor_cut:.2}, RR {rr:.2} -> {rr_cut:.2}");
    assert!(mor_cut / mor < rr_cut / rr, "MOR {mor:.2} -> {mor_cut:.2}, RR {rr:.2} -> {rr_cut:.2}");
}

/// RocksDB's dynamic levels: at rest the last level holds nearly all, and no level between L0 and the base holds anything.
#[test]
fn dynamic_levels_keep_the_upper_ones_small() {
    let sizes = Sizes { memtable_bytes: 200, file_bytes: 200, size_ratio: 4, level1_bytes: 0 };
    let mut sim = Sim::named("rocksdb-leveled", sizes);
    let mut fixed = named("rocksdb-leveled");
    fixed.level_targets = LevelTargets::Static {};
    let mut fixed = Sim::new(fixed, sizes);
    let mut rng = Rng::new(2);
    let (mut bases, mut worst, mut worst_fixed) = (std::collections::BTreeSet::new(), 0.0f64, 0.0f64);
    for flush in 0..1500 {
        let keys: Vec<u32> = (0..20).map(|_| number(rng.below(3_000))).collect();
        for (sim, worst) in [(&mut sim, &mut worst), (&mut fixed, &mut worst_fixed)] {
            sim.flush(&keys, &[]);
            sim.settle();
            if flush > 300 {
                let all: u64 = sim.version.bytes();
                let last: u64 = sim.version.levels[sim.view().last_level().index()].bytes();
                *worst = worst.max(all as f64 / last as f64);
            }
        }
        let held: Vec<usize> =
            (1..=6).filter(|n| !sim.version.levels.get(*n).is_none_or(|l| l.runs.is_empty())).collect();
        if let Some(first) = held.first() {
            assert!(held.last() == Some(&6) && held.len() == 7 - first, "{held:?}");
            bases.insert(*first);
        }
    }
    assert!(bases.len() >= 2, "the base moves up as the tree grows: {bases:?}");
    assert!(worst < 1.6 && worst < worst_fixed, "space: {worst} with dynamic targets, {worst_fixed} with static ones");
}

/// LCS: while L0 fills, the deeper levels are served first; more than 32 tables of L0 are merged among themselves.
#[test]
fn lcs_serves_the_deepest_level_first() {
    for name in ["cassandra-lcs", "scylla-lcs"] {
        let mut sim = Sim::named(name, SIZES);
        let (mut below, mut thinned) = (0, 0);
        let mut rng = Rng::new(6);
        for burst in 0..60 {
            for _ in 0..if burst % 3 == 0 { 40 } else { 2 } {
                let keys: Vec<u32> = (0..20).map(|_| number(rng.below(4000))).collect();
                sim.flush(&keys, &[]);
            }
            while let Some((plan, _)) = sim.step() {
                let from = plan.inputs[0].level;
                if plan.output.level == LevelId(0) {
                    thinned += 1;
                }
                let capacity = |level: u8| 10.0 * 200.0 * 4f64.powi(i32::from(level) - 1) * 1.001;
                // When L0 was served, no level below was over its size.
                if from == LevelId(0) && plan.output.level == LevelId(1) && plan.action == Action::Merge {
                    let brought: u64 = plan.files().map(|file| file.bytes).sum();
                    for level in 2..4u8 {
                        let held =
                            sim.version.levels.get(usize::from(level)).map_or(0, siltstone::version::Level::bytes);
                        assert!((held as f64) < capacity(level), "{name}: L{level} holds {held}, {brought} came to L1");
                    }
                }
                below += u32::from(from > LevelId(0));
            }
        }
        assert!(below > 100 && thinned > 5, "{name}: {below} {thinned}");
    }
}

/// HyperLevelDB serves no level while the next one has something due, and takes windows of several files.
#[test]
fn hyperleveldb_takes_windows_and_leaves_room() {
    let sizes = Sizes { memtable_bytes: 200, file_bytes: 100, size_ratio: 4, level1_bytes: 1000 };
    let mut sim = Sim::named("hyperleveldb", sizes);
    let mut several = 0;
    run(&mut sim, 800, 0, |_, done| {
        if let Some((plan, _)) = done
            && plan.action == Action::Merge
            && plan.inputs[0].level > LevelId(0)
        {
            let own = plan.inputs[0].files.len();
            several += u32::from(own > 1);
            assert!(own == 1 || plan.input_bytes() < 16 * 100, "{plan}");
        }
    });
    assert!(several > 50, "{several}");
}

/// X-Engine has three levels, and blocked flushes are merged within L0 before anything else there.
#[test]
fn x_engine_has_three_levels() {
    let mut sim = Sim::named("x-engine", SIZES);
    run(&mut sim, 600, 20, |_, _| {});
    assert_eq!(sim.view().last_level(), LevelId(2));
    assert!(sim.version.levels[2].bytes() > 10 * sim.version.levels[1].bytes() / 4);
}

/// SILK serves the shallowest level that has something due; RocksDB the one with the highest score.
#[test]
fn silk_serves_the_shallowest_level_first() {
    let mut sim = Sim::named("silk", SIZES);
    let mut rng = Rng::new(9);
    let mut deeper = 0;
    for _ in 0..60 {
        for _ in 0..10 {
            let keys: Vec<u32> = (0..20).map(|_| number(rng.below(4000))).collect();
            sim.flush(&keys, &[]);
        }
        let mut last = LevelId(0);
        while let Some((plan, _)) = sim.step() {
            // Merges bring work to the next level only, so within a burst the level served goes down step by step.
            let from = plan.inputs[0].level;
            assert!(from >= last || from.parent() == last, "{from:?} after {last:?}");
            deeper += u32::from(from > LevelId(1));
            last = from;
        }
    }
    assert!(deeper > 20, "{deeper}");
}

/// The plans that are there at once: each begun, the policy asked again. Runs are numbered from the oldest on.
fn at_once(name: &str, text: &str) -> Vec<String> {
    let version = siltstone::version::text::parse(text).unwrap();
    let sizes = Sizes { memtable_bytes: 1 << 10, file_bytes: 1 << 20, size_ratio: 0, level1_bytes: 0 };
    let strategy = named(name);
    let mut running: Vec<Arc<Plan>> = Vec::new();
    while let Some(plan) = plan(&strategy, &LsmView::new(&version, sizes).with_running(&running)).unwrap() {
        running.push(Arc::new(plan));
    }
    let place = |level: LevelId, run: RunOrder| format!("L{}.{}", level.0, run.0);
    let show = |plan: &Arc<Plan>| {
        let inputs: Vec<String> = plan.inputs.iter().map(|input| place(input.level, input.run)).collect();
        format!("{} {} > {}", plan.action.name(), inputs.join(" "), place(plan.output.level, plan.output.run))
    };
    running.iter().map(show).collect()
}

/// luo19's merges take away the same number of runs each, and no level waits for the merges below it.
#[test]
fn luo19s_merges_take_two_runs_or_as_many_as_are_due() {
    let full = "L0 4:a-z:1K\nL0 3:a-z:1K\nL0 2:a-z:10K\nL1 1:a-z:20K\n";
    assert_eq!(at_once("asterixdb-leveling", full), ["merge L0.2 L1.1 > L1.1", "merge L0.4 L0.3 > L0.3"]);
    assert_eq!(at_once("full", full).len(), 1, "all of L0 goes down, and what comes meanwhile waits");
    // The level below is on its way itself: what comes down makes a new run.
    let both = "L0 3:a-z:10K\nL1 2:a-z:110K\nL2 1:a-z:200K\n";
    assert_eq!(at_once("asterixdb-leveling", both), ["merge L1.2 L2.1 > L2.1", "move L0.3 > L1.3"]);
    // It goes first even if the one above is fuller. Equal ratios make both as full after as many merges, and the bytes of a footer decided
    // whether a tree took eleven merges a level or ten: at another scale of the same study it was another tree.
    let fuller = "L0 3:a-z:12K\nL1 2:a-z:101K\nL2 1:a-z:200K\n";
    assert_eq!(at_once("asterixdb-leveling", fuller), at_once("asterixdb-leveling", both));
    let behind = "L0 5:a-z:1K\nL0 4:a-z:1K\nL0 3:a-z:1K\nL0 2:a-z:1K\nL0 1:a-z:1K\n";
    assert_eq!(at_once("asterixdb-leveling", behind), ["merge L0.2 L0.1 > L0.1"]);
    assert_eq!(at_once("asterixdb-tiering", behind), ["merge L0.3 L0.2 L0.1 > L1.3"]);
}
