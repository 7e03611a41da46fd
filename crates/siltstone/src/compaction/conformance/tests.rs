use super::*;
use crate::compaction::layout::Layout;
use crate::compaction::{Strategy, strategies};

#[test]
fn every_preset_conforms() {
    for preset in strategies() {
        let strategy = Strategy::named(preset.name).unwrap();
        let report = run(&strategy, 1, 150).unwrap_or_else(|error| panic!("{error}"));
        if strategy.layout == (Layout::Log {}) {
            // Only manual compactions merge, and move.
            assert!(report.drops > 500 && report.merges > 100, "{}: {report:?}", preset.name);
            continue;
        }
        let whole_runs = matches!(strategy.layout, Layout::Runs { .. });
        // Neighbours in age that overlap cannot be merged by two jobs at once, and only manual compactions move.
        let varied = whole_runs || (report.moves > 50 && report.concurrent > 20);
        assert!(report.merges > 500 && varied, "{}: {report:?}", preset.name);
    }
}

/// Every trigger, granularity, movement and priority in some strategy.
const OTHERS: &[&str] = &[
    r#"
name = "full"
layout = { kind = "leveling" }
size_ratio = 4
[[rule]]
trigger = { kind = "level-saturation" }
granularity = { kind = "level" }
"#,
    r#"
name = "universal"
layout = { kind = "hybrid", runs = [4] }
priority = "rule-order"
[[rule]]
trigger = { kind = "space-amplification", percent = 200 }
granularity = { kind = "sorted-runs" }
[[rule]]
trigger = { kind = "sorted-runs" }
granularity = { kind = "sorted-runs", pick = "similar-size" }
"#,
    r#"
name = "deletes"
layout = { kind = "leveling" }
priority = "rule-order"
tie_break = "right-most"
[[rule]]
trigger = { kind = "tombstone-density", share = 0.5 }
granularity = { kind = "file" }
movement = ["tombstone-density", "expired-tombstones"]
[[rule]]
trigger = { kind = "file-staleness", age = "90s" }
granularity = { kind = "file" }
movement = ["oldest", "coldest"]
[[rule]]
trigger = { kind = "level-saturation" }
granularity = { kind = "files", count = 3 }
movement = ["least-overlap-grandparent", "largest"]
"#,
    r#"
name = "fluid"
layout = { kind = "hybrid", runs = [3, 2, 1] }
size_ratio = 3
priority = "deepest-first"
reuse = "never"
[[rule]]
levels = [0, 1]
trigger = { kind = "sorted-runs" }
granularity = { kind = "sorted-runs" }
[[rule]]
levels = "leveled"
trigger = { kind = "level-saturation", full_at = 0.9 }
granularity = { kind = "files", bytes = 1200 }
movement = ["least-overlap-parent"]
"#,
    r#"
name = "by files"
layout = { kind = "one-leveling", l0_runs = 2 }
priority = "shallowest-first"
[[rule]]
levels = "tiered"
trigger = { kind = "sorted-runs", runs = 3 }
granularity = { kind = "sorted-runs" }
[[rule]]
levels = "leveled"
trigger = { kind = "level-saturation", files = 8 }
granularity = { kind = "file" }
movement = ["round-robin"]
"#,
    r#"
name = "major"
layout = { kind = "runs", grouping = { kind = "time-order" } }
[[rule]]
trigger = { kind = "periodic", age = "900s", jitter_percent = 20 }
granularity = { kind = "sorted-runs" }
[[rule]]
trigger = { kind = "sorted-runs", runs = 3 }
granularity = { kind = "sorted-runs", pick = { kind = "similar-size", stop = "similar", max_runs = 5 } }
"#,
    r#"
name = "small windows"
layout = { kind = "runs", grouping = { kind = "time-windows", window = "20s" } }
priority = "deepest-first"
[[rule]]
trigger = { kind = "sorted-runs", runs = 2 }
granularity = { kind = "sorted-runs", pick = { kind = "time-window", min_bytes = 100 } }
"#,
    r#"
name = "small buckets"
layout = { kind = "runs", grouping = { kind = "size-buckets", min_bytes = 100 }, expected_runs = 6 }
[[rule]]
trigger = { kind = "sorted-runs", runs = 3 }
granularity = { kind = "sorted-runs", pick = { kind = "smallest", max_runs = 4 } }
[[rule]]
trigger = { kind = "tombstone-density", share = 0.1 }
granularity = { kind = "file" }
movement = ["tombstone-density"]
[[rule]]
trigger = { kind = "tier-amplification", percent = 30 }
granularity = { kind = "sorted-runs" }
"#,
    r#"
name = "leveled by density"
layout = { kind = "runs", grouping = { kind = "density", w = [2, 0, -8] } }
priority = "shallowest-first"
[[rule]]
trigger = { kind = "sorted-runs" }
granularity = { kind = "sorted-runs" }
"#,
    r#"
name = "exploring in levels"
layout = { kind = "hybrid", runs = [6, 4, 1] }
[[rule]]
levels = [0]
trigger = { kind = "sorted-runs", runs = 4 }
granularity = { kind = "sorted-runs", pick = "exploring" }
[[rule]]
levels = "tiered"
trigger = { kind = "sorted-runs" }
granularity = { kind = "sorted-runs" }
"#,
    r#"
name = "dice"
layout = { kind = "one-leveling", l0_runs = 3 }
level_targets = { kind = "dynamic", levels = 4 }
intra_l0 = { extra_runs = 1, min_runs = 2 }
priority = "room-below"
tie_break = "seeded"
seed = 7
cut = { align = true, grandparent_files = 5 }
[[rule]]
levels = "tiered"
trigger = { kind = "sorted-runs" }
granularity = { kind = "sorted-runs" }
[[rule]]
levels = [1, 2]
trigger = { kind = "level-saturation", full_at = 0.8 }
granularity = { kind = "file" }
movement = ["choose-best", "random"]
[[rule]]
levels = "leveled"
trigger = { kind = "level-saturation" }
granularity = { kind = "file" }
movement = ["refined-mor"]
[[rule]]
trigger = { kind = "tombstone-ttl", ttl = "2m" }
levels = "leveled"
granularity = { kind = "file" }
movement = ["expired-tombstones"]
"#,
    r#"
name = "ages"
layout = { kind = "leveling" }
level_targets = { kind = "table", memtables = [3, 5, 30] }
tie_break = "largest-successor"
[[rule]]
levels = [0]
trigger = { kind = "level-saturation" }
granularity = { kind = "file" }
movement = ["oldest-smallest-seq"]
[[rule]]
levels = [1, 2]
trigger = { kind = "level-saturation" }
granularity = { kind = "file" }
movement = ["refined-mor-rightmost", "oldest-largest-seq"]
[[rule]]
trigger = { kind = "level-saturation" }
granularity = { kind = "file" }
movement = ["compensated-size"]
"#,
    r#"
name = "expanding"
layout = { kind = "one-leveling", l0_runs = 2 }
size_ratio = 3
expand = { contiguous_files = 6, starved_files = 5 }
[[rule]]
levels = "tiered"
trigger = { kind = "sorted-runs" }
granularity = { kind = "sorted-runs" }
[[rule]]
levels = "leveled"
trigger = { kind = "level-saturation" }
granularity = { kind = "file" }
movement = ["round-robin"]
"#,
    r#"
name = "parts"
layout = { kind = "leveling", two_phase = true }
[[rule]]
trigger = { kind = "tombstone-density", share = 0.4 }
granularity = { kind = "file" }
movement = ["tombstone-density"]
[[rule]]
trigger = { kind = "level-saturation", full_at = 0.4 }
granularity = { kind = "files", count = 2 }
movement = ["round-robin"]
"#,
    r#"
name = "parts below tiers"
layout = { kind = "one-leveling", l0_runs = 2, two_phase = true }
level_targets = { kind = "dynamic", levels = 5 }
expand = { files = 9 }
[[rule]]
levels = "tiered"
trigger = { kind = "sorted-runs" }
granularity = { kind = "sorted-runs" }
[[rule]]
levels = "leveled"
trigger = { kind = "level-saturation" }
granularity = { kind = "file" }
movement = ["least-overlap-parent"]
[[rule]]
levels = "leveled"
trigger = { kind = "file-staleness", age = "30s" }
granularity = { kind = "file" }
movement = ["oldest"]
"#,
    r#"
name = "bushy tiers"
layout = { kind = "tiering" }
size_ratio = 2
level_targets = { kind = "doubly-exponential", exponent = 1.5 }
[[rule]]
trigger = { kind = "sorted-runs" }
granularity = { kind = "sorted-runs" }
"#,
    r#"
name = "guards in each level"
layout = { kind = "guarded", levels = 4, guard_bits = 8, guard_bits_step = 2 }
level_targets = { kind = "table", memtables = [6, 20] }
flush_placement = 2
[[rule]]
trigger = { kind = "sorted-runs" }
granularity = { kind = "guard" }
[[rule]]
trigger = { kind = "guard-bytes", memtables = [2, 3, 4] }
granularity = { kind = "guard" }
[[rule]]
trigger = { kind = "level-saturation" }
granularity = { kind = "guard" }
[[rule]]
trigger = { kind = "guard-reads" }
granularity = { kind = "guard" }
"#,
    r#"
name = "guards like leveling"
layout = { kind = "guarded", l0_runs = 2, levels = 3, guard_bits = 6, guard_bits_step = 1, max_guard_files = 1, in_place_ratio = 1.0 }
priority = "rule-order"
reuse = "never"
cut = { align = true, grandparent_files = 3 }
intra_l0 = { extra_runs = 1, min_runs = 2 }
[[rule]]
trigger = { kind = "space-amplification" }
granularity = { kind = "sorted-runs" }
[[rule]]
trigger = { kind = "guard-bytes", memtables = [1] }
granularity = { kind = "guard" }
[[rule]]
trigger = { kind = "sorted-runs" }
granularity = { kind = "guard" }
"#,
    r#"
name = "whole runs of guards"
layout = { kind = "guarded", levels = 5, guard_bits = 10, guard_bits_step = 2, max_guard_files = 4 }
priority = "deepest-first"
reuse = "picked"
[[rule]]
levels = [0]
trigger = { kind = "sorted-runs", runs = 3 }
granularity = { kind = "sorted-runs" }
[[rule]]
levels = [1, 2]
trigger = { kind = "sorted-runs", runs = 3 }
granularity = { kind = "sorted-runs", pick = "exploring" }
[[rule]]
levels = "all"
trigger = { kind = "sorted-runs", runs = 3 }
granularity = { kind = "sorted-runs" }
"#,
];

#[test]
fn strategies_with_every_other_option_conform() {
    for text in OTHERS {
        let strategy = Strategy::parse(text).unwrap_or_else(|error| panic!("{error}"));
        run(&strategy, 2, 100).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// A planted bug: files go to the next level without what they overlap there.
struct Careless(Strategy);

impl CompactionPolicy for Careless {
    fn name(&self) -> &str {
        "careless"
    }

    fn pick(&self, view: &LsmView<'_>) -> Option<Plan> {
        let mut plan = self.0.pick(view)?;
        if plan.inputs.len() > 1 {
            plan.inputs.pop();
        }
        Some(plan)
    }

    fn run_limit(&self, view: &LsmView<'_>, level: LevelId) -> u32 {
        self.0.run_limit(view, level)
    }
}

#[test]
fn the_suite_catches_a_careless_policy() {
    let error = run(&Careless(Strategy::named("one-leveling").unwrap()), 1, 20).unwrap_err();
    assert!(error.contains("law output-disjoint broken") || error.contains("law age-order broken"), "{error}");
}

/// A planted bug: never merges the upper levels.
struct Lazy(Strategy);

impl CompactionPolicy for Lazy {
    fn name(&self) -> &str {
        "lazy"
    }

    fn pick(&self, view: &LsmView<'_>) -> Option<Plan> {
        self.0.pick(view).filter(|plan| plan.inputs[0].level.0 > 0)
    }

    fn run_limit(&self, view: &LsmView<'_>, level: LevelId) -> u32 {
        self.0.run_limit(view, level)
    }
}

#[test]
fn the_suite_catches_a_policy_that_starves_a_level() {
    let error = run(&Lazy(Strategy::named("1-lvl").unwrap()), 1, 20).unwrap_err();
    assert!(error.contains("writers would wait for ever"), "{error}");
}
