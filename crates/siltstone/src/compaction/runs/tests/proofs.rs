//! What each preset must do to deserve its name, over trees of sizes: a flush adds a run over all keys, a merge adds the sizes up. No version
//! is ever obsolete, so every byte that a strategy writes twice shows.

use std::sync::Arc;

use bytes::Bytes;

use crate::compaction::layout::Layout;
use crate::compaction::plan::Action;
use crate::compaction::{CompactionPolicy, LsmView, Plan, Sizes, Strategy, plan};
use crate::io::Rng;
use crate::key::SeqNo;
use crate::num::{to_f64, to_u64};
use crate::version::{FileMeta, LevelId, RunOrder, SstId, Version, VersionEdit};

const MEMTABLE: u64 = 1000;

struct Tree {
    strategy: Strategy,
    sizes: Sizes,
    /// Merges cut their output into files of this size; then keys are two bytes and evenly spread.
    cut_bytes: Option<u64>,
    version: Version,
    flushes: u64,
    flushed_bytes: u64,
    merged_bytes: u64,
    next_id: u64,
    now_ms: u64,
    plans: Vec<Plan>,
}

impl Tree {
    fn new(strategy: Strategy) -> Tree {
        Tree {
            strategy,
            sizes: Sizes { memtable_bytes: MEMTABLE, file_bytes: u64::MAX, size_ratio: 0, level1_bytes: 0 },
            cut_bytes: None,
            version: Version::empty(),
            flushes: 0,
            flushed_bytes: 0,
            merged_bytes: 0,
            next_id: 0,
            now_ms: 1_000_000_000,
            plans: Vec::new(),
        }
    }

    fn named(name: &str) -> Tree {
        Tree::new(Strategy::named(name).unwrap())
    }

    /// The preset with some words of its file replaced: its sizes are made for larger trees.
    fn adapted(name: &str, words: &[(&str, &str)]) -> Tree {
        let preset = crate::compaction::strategies().iter().find(|preset| preset.name == name).unwrap();
        let mut text = preset.text.to_owned();
        for (from, to) in words {
            assert!(text.contains(from), "{from} is not in {name}");
            text = text.replace(from, to);
        }
        Tree::new(Strategy::parse(&text).unwrap())
    }

    fn file(&mut self, bytes: u64, entered_level_ms: u64) -> FileMeta {
        self.next_id += 1;
        FileMeta {
            id: SstId(self.next_id),
            bytes,
            entries: bytes,
            tombstones: 0,
            range_tombstones: 0,
            raw_bytes: bytes,
            smallest: Bytes::from_static(&[0, 0]),
            largest: Bytes::from_static(&[0xff, 0xff]),
            min_seq: SeqNo(1),
            max_seq: SeqNo(1),
            created_ms: self.now_ms,
            oldest_tombstone_ms: None,
            entered_level_ms,
            whole: None,
        }
    }

    /// The files that a merge writes over the keys of its inputs.
    fn merged(&mut self, plan: &Plan) -> Vec<Arc<FileMeta>> {
        let number = |key: &[u8]| u64::from(u16::from_be_bytes([key[0], key[1]]));
        let (first, last) = plan.hull();
        let (first, last) = (number(first), number(last));
        let bytes = plan.input_bytes();
        let parts = self.cut_bytes.map_or(1, |cut| bytes.div_ceil(cut)).min(last - first + 1);
        let mut begins: Vec<u64> = (0..parts).map(|n| first + (last - first + 1) * n / parts).collect();
        begins.extend(plan.borders.iter().map(|border| number(border)));
        begins.sort_unstable();
        begins.dedup();
        begins.push(last + 1);
        let key = |n: u64| Bytes::copy_from_slice(&u16::try_from(n).unwrap().to_be_bytes());
        let since_ms = plan.stayed_since_ms().unwrap_or(self.now_ms);
        let up_to = |n: u64| bytes * (n - first) / (last + 1 - first);
        let part = |pair: &[u64]| {
            let bytes = (up_to(pair[1]) - up_to(pair[0])).max(1);
            FileMeta { smallest: key(pair[0]), largest: key(pair[1] - 1), ..self.file(bytes, since_ms) }
        };
        begins.windows(2).map(part).map(Arc::new).collect()
    }

    /// A flush without what it makes due.
    fn add(&mut self, bytes: u64) {
        self.flushes += 1;
        self.flushed_bytes += bytes;
        let file = Arc::new(self.file(bytes, self.now_ms));
        let edit = VersionEdit { removed: Vec::new(), added: vec![(LevelId(0), RunOrder(self.flushes), file)] };
        self.version = self.version.apply(&edit).unwrap();
    }

    fn next(&self) -> Option<Plan> {
        plan(&self.strategy, &LsmView::new(&self.version, self.sizes).at(self.now_ms)).unwrap()
    }

    fn settle(&mut self) {
        while let Some(plan) = self.next() {
            let mut edit = VersionEdit { removed: plan.removed(), added: Vec::new() };
            match plan.action {
                Action::Merge => {
                    self.merged_bytes += plan.input_bytes();
                    let files = self.merged(&plan);
                    edit.added.extend(files.into_iter().map(|file| (plan.output.level, plan.output.run, file)));
                }
                Action::Move => edit.added = plan.moved(self.now_ms),
                Action::Drop => {}
            }
            self.version = self.version.apply(&edit).unwrap();
            self.plans.push(plan);
        }
    }

    /// A flush and all that it makes due.
    fn flush(&mut self, bytes: u64) {
        self.add(bytes);
        self.settle();
    }

    fn flush_many(mut self, flushes: u64) -> Tree {
        for _ in 0..flushes {
            self.flush(MEMTABLE);
        }
        self
    }

    /// Sizes, newest first.
    fn runs(&self) -> Vec<u64> {
        self.version.runs().map(|(_, run)| run.bytes()).collect()
    }

    /// Bytes that merges wrote per flushed byte.
    fn amplification(&self) -> f64 {
        to_f64(self.merged_bytes) / to_f64(self.flushed_bytes)
    }

    fn by_rule(&self) -> bool {
        self.plans.iter().all(|plan| plan.record.reason != crate::compaction::Reason::Layout)
    }
}

/// Sizes of flushes as they come in practice: mostly a full memtable, some smaller.
fn random_flush(rng: &mut Rng) -> u64 {
    if rng.one_in(4) { rng.between(1, MEMTABLE) } else { MEMTABLE }
}

#[test]
fn universal_keeps_its_runs_and_its_space() {
    for name in ["rocksdb-universal", "tier"] {
        let mut tree = Tree::named(name);
        let mut rng = Rng::new(1);
        for _ in 0..2000 {
            tree.flush(random_flush(&mut rng));
            let runs = tree.runs();
            assert!(runs.len() <= 4, "{runs:?}");
            let (oldest, newer) = runs.split_last().unwrap();
            assert!(runs.len() < 4 || newer.iter().sum::<u64>() < 2 * oldest, "{runs:?}");
        }
        assert!(tree.by_rule());
    }
    // A run that is a month old is rewritten with all others.
    let mut tree = Tree::named("rocksdb-universal");
    (0..2).for_each(|_| tree.flush(MEMTABLE));
    tree.now_ms += 31 * 86_400_000;
    tree.settle();
    assert_eq!(tree.runs(), [2 * MEMTABLE]);
    assert_eq!(tree.plans.last().unwrap().record.trigger, "periodic");
}

#[test]
fn hbase_merges_windows_and_everything_once_a_week() {
    let mut tree = Tree::named("hbase");
    let mut rng = Rng::new(2);
    for _ in 0..2000 {
        tree.flush(random_flush(&mut rng));
        assert!(tree.runs().len() < 16, "{:?}", tree.runs());
    }
    let widths = tree.plans.iter().map(|plan| plan.inputs.len());
    assert!(tree.by_rule() && widths.into_iter().all(|width| (3..=10).contains(&width)));
    // Between half and one and a half of seven days, as the oldest file's number says.
    assert!(tree.runs().len() > 1);
    tree.now_ms += 11 * 86_400_000;
    tree.settle();
    assert_eq!(tree.runs().len(), 1);
}

#[test]
fn stcs_leaves_no_full_bucket() {
    for (name, most) in [("cassandra-stcs", 3), ("scylla-stcs", 1)] {
        let mut tree = Tree::adapted(name, &[("min_bytes = 52428800", "min_bytes = 500")]);
        let mut rng = Rng::new(3);
        for _ in 0..2000 {
            tree.flush(random_flush(&mut rng));
            let mut sizes = tree.runs();
            sizes.sort_unstable();
            // Runs within a tenth of each other are in one bucket however the averages fall.
            for size in &sizes {
                let like = sizes.iter().filter(|other| **other >= *size && **other * 10 <= size * 11).count();
                assert!(like <= most, "{name}: {sizes:?}");
            }
        }
        assert!(tree.by_rule(), "{name}");
        let most = tree.plans.iter().map(|plan| plan.inputs.len()).max();
        assert!(most <= Some(32), "{most:?}");
    }
}

#[test]
fn twcs_leaves_one_table_in_each_closed_window() {
    const WINDOWS: u64 = 30;
    let small = [("min_bytes = 52428800", "min_bytes = 500")];
    let mut windows = Tree::adapted("cassandra-twcs", &small);
    let mut stcs = Tree::adapted("cassandra-stcs", &small);
    let mut rng = Rng::new(4);
    windows.now_ms = 86_400_000;
    for window in 0..WINDOWS {
        for _ in 0..50 {
            let bytes = random_flush(&mut rng);
            windows.flush(bytes);
            stcs.flush(bytes);
            let closed =
                windows.version.runs().filter(|(_, run)| run.files[0].entered_level_ms < windows.now_ms).count();
            assert_eq!(to_u64(closed), window, "one table for each closed window");
        }
        windows.now_ms += 86_400_000;
        stcs.now_ms += 86_400_000;
    }
    let (own, other) = (windows.amplification(), stcs.amplification());
    assert!(windows.by_rule() && own <= other, "twcs {own:.2}, stcs {other:.2}");
}

#[test]
fn ucs_is_leveling_or_tiering_as_its_parameter_says() {
    // Leveling and tiering of whole levels, with ratio 10, over all keys.
    const LEVELING: &str = r#"
name = "whole levels"
layout = { kind = "leveling" }
reuse = "never"
[[rule]]
trigger = { kind = "level-saturation" }
granularity = { kind = "level" }
"#;
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.15;
    let flushes = 3000;
    let leveling = Tree::new(Strategy::parse(LEVELING).unwrap()).flush_many(flushes).amplification();
    let leveled = Tree::adapted("cassandra-ucs", &[("w = [2]", "w = [-8]")]).flush_many(flushes).amplification();
    let tiering = Tree::named("tiering").flush_many(flushes).amplification();
    let tiered = Tree::adapted("cassandra-ucs", &[("w = [2]", "w = [8]")]).flush_many(flushes).amplification();
    assert!(near(leveled, leveling), "leveled {leveled:.2}, leveling {leveling:.2}");
    assert!(near(tiered, tiering), "tiered {tiered:.2}, tiering {tiering:.2}");
}

/// After each settling, the two largest tiers of ScyllaDB's ICS together stay below the space amplification goal.
#[test]
fn ics_keeps_its_space_goal() {
    let mut tree = Tree::adapted("scylla-ics", &[("min_bytes = 52428800", "min_bytes = 500")]);
    let mut rng = Rng::new(5);
    for _ in 0..2000 {
        tree.flush(random_flush(&mut rng));
        // A tier is one run once no two are alike.
        let mut sizes = tree.runs();
        sizes.sort_unstable();
        if let [.., second, largest] = sizes[..] {
            assert!(2 * (largest + second) < 3 * largest, "{sizes:?}");
        }
    }
    assert!(tree.by_rule());
}

#[test]
fn accumulo_stays_below_its_file_limit() {
    let mut tree = Tree::named("accumulo");
    let mut rng = Rng::new(6);
    for _ in 0..2000 {
        tree.flush(random_flush(&mut rng));
        assert!(tree.runs().len() <= 15, "{:?}", tree.runs());
    }
    assert!(tree.by_rule() && tree.plans.iter().all(|plan| plan.inputs.len() <= 10));
}

#[test]
fn tarantool_keeps_one_run_in_the_last_level() {
    let mut tree = Tree::adapted("tarantool", &[("jitter_percent = 10", "jitter_percent = 0")]);
    let mut rng = Rng::new(7);
    for _ in 0..2000 {
        tree.flush(random_flush(&mut rng));
        let (oldest, newer) =
            tree.version.runs().map(|(_, run)| run.bytes()).fold((0, 0), |(last, sum), bytes| (bytes, sum + last));
        // Two runs at most a level, each 3.5 times smaller than the next level's: below twice the data.
        assert!(newer < oldest, "{:?}", tree.runs());
        assert!(tree.runs().iter().filter(|bytes| 7 * **bytes > 2 * oldest).count() <= 1, "{:?}", tree.runs());
    }
    assert!(tree.by_rule());
    let mut tree = Tree::named("tarantool");
    for _ in 0..2000 {
        tree.flush(MEMTABLE);
    }
    assert!(tree.by_rule());
}

#[test]
fn wiredtiger_bounds_generations_and_widths() {
    let mut tree = Tree::named("wiredtiger");
    let mut rng = Rng::new(8);
    for _ in 0..5000 {
        tree.flush(random_flush(&mut rng));
        let runs = tree.runs();
        for (low, high) in [(0, 7), (7, 49), (49, 343), (343, 513)] {
            let chunks = runs.iter().filter(|bytes| (low * MEMTABLE..high * MEMTABLE).contains(*bytes)).count();
            assert!(chunks < 7, "{runs:?}");
        }
    }
    assert!(tree.by_rule() && tree.plans.iter().all(|plan| (2..=15).contains(&plan.inputs.len())));
    assert!(tree.runs().iter().any(|bytes| *bytes > 512 * MEMTABLE), "nothing grew out of the last generation");
}

#[test]
fn asterixdb_policies_bound_their_runs() {
    let mut concurrent = Tree::named("asterixdb-concurrent");
    let mut prefix = Tree::adapted("asterixdb-prefix", &[("max_bytes = 1073741824", "max_bytes = 1000000")]);
    let mut rng = Rng::new(9);
    for _ in 0..3000 {
        let bytes = random_flush(&mut rng);
        concurrent.flush(bytes);
        assert!(concurrent.runs().len() < 15, "{:?}", concurrent.runs());
        prefix.flush(bytes);
    }
    assert!(concurrent.by_rule());
    let widths = concurrent.plans.iter().map(|plan| plan.inputs.len());
    assert!(widths.into_iter().all(|width| (3..=10).contains(&width)));
    let small = prefix.runs().into_iter().filter(|bytes| *bytes <= 1_000_000).count();
    assert!(small <= 15, "{:?}", prefix.runs());
}

/// The least that any schedule writes for `flushes` equal flushes with at most `most` runs: by dynamic programming over the runs, each as
/// a number of flushes.
fn least_writes(flushes: u64, most: usize) -> u64 {
    let mut states = std::collections::BTreeMap::from([(Vec::<u64>::new(), 0u64)]);
    for _ in 0..flushes {
        let mut next = std::collections::BTreeMap::new();
        for (runs, cost) in &states {
            for keep in 0..=runs.len().min(most - 1) {
                let written = 1 + runs[keep..].iter().sum::<u64>();
                let state = [&runs[..keep], &[written]].concat();
                let least = next.entry(state).or_insert(u64::MAX);
                *least = (*least).min(cost + written);
            }
        }
        states = next;
    }
    states.into_values().min().unwrap_or(0)
}

#[test]
fn asterixdb_constant_writes_nearly_the_least() {
    for (most, limit) in [(2u32, 1.5), (3, 1.6), (5, 2.25)] {
        let mut exact = 0;
        let mut tree = Tree::adapted("asterixdb-constant", &[("runs = 3 }", &format!("runs = {most} }}"))]);
        for n in 1..=14 {
            tree.flush(MEMTABLE);
            assert!(tree.view_runs() <= most, "{:?}", tree.runs());
            // As the paper counts: what a merge writes, or the flush itself where nothing is merged.
            let alone = n - to_u64(tree.plans.len());
            let own = to_f64(tree.merged_bytes / MEMTABLE + alone);
            let least = to_f64(least_writes(n, usize::try_from(most).unwrap()));
            assert!(own >= least && own <= limit * least, "flush {n} of {most} runs: {own}, at least {least}");
            exact += u32::from(own == least);
        }
        // With two runs it is the optimum itself at the end of each round.
        assert!(most > 2 || exact == 7, "{exact}");
        for _ in 0..2000 {
            tree.flush(MEMTABLE);
            assert!(tree.view_runs() <= most, "{:?}", tree.runs());
        }
        assert!(tree.by_rule());
    }
}

impl Tree {
    fn view_runs(&self) -> u32 {
        LsmView::new(&self.version, self.sizes).runs()
    }
}

#[test]
fn stepped_merge_writes_each_byte_once_a_level() {
    for (name, ratio) in [("stepped-merge", 10), ("slimdb", 10), ("asterixdb-tiering", 3)] {
        let mut tree = Tree::named(name);
        let mut rng = Rng::new(10);
        for _ in 0..3000 {
            tree.flush(random_flush(&mut rng));
            assert!(tree.version.levels.iter().all(|level| level.runs.len() < ratio), "{name}");
        }
        let levels = (0..).zip(&tree.version.levels).map(|(n, level)| n * level.bytes());
        assert_eq!(levels.sum::<u64>(), tree.merged_bytes, "{name}: data in Ln was written n times by merges");
    }
}

/// Tiering in which a range of all runs is a job.
#[test]
fn slices_of_runs_need_little_space_for_a_merge() {
    let grown = |name: &str| {
        let mut tree = Tree::named(name);
        tree.sizes.file_bytes = MEMTABLE;
        tree.cut_bytes = Some(MEMTABLE);
        // Uneven sizes, so that the files of two runs do not begin at the same keys by themselves.
        let mut rng = Rng::new(12);
        for _ in 0..2100 {
            tree.flush(random_flush(&mut rng));
        }
        tree
    };
    let (sliced, whole) = (grown("slimdb"), grown("stepped-merge"));
    // The largest merge takes ten runs of a hundred memtables each; what a job reads is what it needs room for.
    let largest = |tree: &Tree| {
        let deep = tree.plans.iter().filter(|plan| plan.output.level == LevelId(3));
        deep.map(Plan::input_bytes).max().unwrap()
    };
    assert!(largest(&sliced) * 5 < largest(&whole), "{} {}", largest(&sliced), largest(&whole));
    let (a, b) = (sliced.amplification(), whole.amplification());
    assert!((a / b - 1.0).abs() < 0.02, "{a} {b}");
    let shape = |tree: &Tree| tree.version.levels.iter().map(|level| level.runs.len()).collect::<Vec<_>>();
    assert_eq!(shape(&sliced), shape(&whole));
}

/// However a tree got its runs, something is picked before writers stop for good.
#[test]
fn writers_never_stop_for_good() {
    for preset in crate::compaction::strategies() {
        let strategy = Strategy::named(preset.name).unwrap();
        if !matches!(strategy.layout, Layout::Runs { .. }) {
            continue;
        }
        let mut rng = Rng::new(11).split(preset.name);
        for _ in 0..200 {
            let mut tree = Tree::new(strategy.clone());
            for _ in 0..rng.between(2, 120) {
                tree.add(1 << rng.below(30));
                tree.now_ms += rng.below(40_000_000);
            }
            tree.settle();
            let view = LsmView::new(&tree.version, tree.sizes);
            assert!(view.runs() <= strategy.expected_runs(&view), "{}: {:?}", preset.name, tree.runs());
        }
    }
}
