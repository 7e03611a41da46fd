//! What TOML cannot express: combinations that make no sense, and layouts that no rule keeps in shape.

use super::super::filters::{FilterBits, MAX_BITS};
use super::super::granularity::{Granularity, RunPick};
use super::super::layout::Layout;
use super::super::movement::Movement;
use super::super::plan::{Release, Reuse};
use super::super::targets::LevelTargets;
use super::super::trigger::Trigger;
use super::super::view::MAX_LEVELS;
use super::{Levels, Rule, Strategy, TieBreak, whole_runs};

impl Strategy {
    /// What TOML cannot express. The rule concerned, counted from 0, and the problem.
    pub(super) fn validate(&self) -> std::result::Result<(), (Option<usize>, String)> {
        let check = |holds: bool, rule: Option<usize>, what: &str| {
            if holds { Ok(()) } else { Err((rule, what.to_owned())) }
        };
        check(self.size_ratio >= 2 && self.size_ratio <= 1000, None, "size_ratio: from 2 to 1000")?;
        let level1 = self.level1_memtables.is_none_or(|n| n > 0.0 && n.is_finite());
        check(level1, None, "level1_memtables: above 0")?;
        match &self.layout {
            Layout::OneLeveling { l0_runs, .. } => {
                check(*l0_runs >= 2, None, "layout: l0_runs: at least 2 (one run is the layout leveling)")?
            }
            Layout::Hybrid { runs } => {
                check(
                    !runs.is_empty() && runs.iter().all(|n| *n >= 1),
                    None,
                    "layout: runs: at least one entry, each at least 1",
                )?;
            }
            Layout::Runs { grouping, expected_runs } => {
                check(expected_runs.is_none_or(|n| n >= 2), None, "layout: expected_runs: at least 2")?;
                whole_runs::validate_grouping(grouping).map_err(|what| (None, format!("layout: grouping: {what}")))?;
            }
            Layout::Guarded(guarded) => guarded.validate().map_err(|what| (None, format!("layout: {what}")))?,
            Layout::Leveling { .. } | Layout::Tiering {} | Layout::LLeveling {} | Layout::Log {} => {}
        }
        self.validate_beside()?;
        whole_runs::validate_cut(self).map_err(|what| (None, what))?;
        for (n, rule) in self.rules.iter().enumerate() {
            self.validate_rule(rule).map_err(|what| (Some(n), what))?;
            whole_runs::validate_rule(&self.layout, rule).map_err(|what| (Some(n), what))?;
            self.validate_guards(rule).map_err(|what| (Some(n), what))?;
            self.validate_losses(rule).map_err(|what| (Some(n), what))?;
        }
        if matches!(self.layout, Layout::Runs { .. } | Layout::Log {}) {
            // What it expects limits the runs of the tree; a log's rules limit what it holds.
            return Ok(());
        }
        // Without it, runs would gather until writers stop for good. Which level is the last one changes: a rule for that limits no other.
        let limits = |level| {
            self.rules.iter().any(|rule| {
                matches!(rule.trigger, Trigger::SortedRuns { .. })
                    && rule.levels != Levels::Last
                    && self.may_apply(rule, level)
            })
        };
        match (0..MAX_LEVELS).find(|level| self.may_be_tiered(*level) && !limits(*level)) {
            Some(level) => {
                Err((None, format!("L{level} is tiered and no rule with trigger sorted-runs limits its runs")))
            }
            None => Ok(()),
        }
    }

    /// What stands beside the primitives.
    fn validate_beside(&self) -> std::result::Result<(), (Option<usize>, String)> {
        let refuse = |what: &str| Err((None, what.to_owned()));
        match &self.level_targets {
            LevelTargets::Dynamic { levels } if !(2..=MAX_LEVELS).contains(levels) => {
                return refuse("level_targets: levels: from 2 to 32");
            }
            LevelTargets::Dynamic { .. }
                if !matches!(self.layout, Layout::Leveling { .. } | Layout::OneLeveling { .. }) =>
            {
                return refuse("level_targets: dynamic takes layout leveling or one-leveling");
            }
            LevelTargets::DoublyExponential { exponent } if !(1.0..=2.0).contains(exponent) => {
                return refuse("level_targets: exponent: from 1 to 2");
            }
            LevelTargets::Table { memtables }
                if memtables.is_empty() || !memtables.iter().all(|n| *n > 0.0 && n.is_finite()) =>
            {
                return refuse("level_targets: memtables: at least one entry, each above 0");
            }
            LevelTargets::Table { .. } if self.level1_memtables.is_some() => {
                return refuse("level_targets: the table holds L1 already; level1_memtables goes with the other kinds");
            }
            _ => {}
        }
        if self.cut.file_bytes.is_some_and(|bytes| bytes < 256) {
            return refuse("cut: file_bytes: at least 256");
        }
        if let FilterBits::PerLevel { bits } = &self.filter_bits
            && (bits.is_empty() || !bits.iter().all(|n| (0.0..=MAX_BITS).contains(n)))
        {
            return refuse("filter_bits: bits: at least one entry, each from 0 to 64");
        }
        let throws_dice = self.tie_break == TieBreak::Seeded
            || self.rules.iter().any(|rule| rule.movement.contains(&Movement::Random));
        if self.seed != 0 && !throws_dice {
            return refuse("seed: belongs to movement random and tie_break seeded");
        }
        let static_l0 = self.may_be_tiered(0) && !matches!(self.level_targets, LevelTargets::Dynamic { .. });
        if self.flush_placement > 0
            && (!static_l0 || self.reuse == Reuse::Never || self.flush_placement >= MAX_LEVELS - 1)
        {
            return refuse(
                "flush_placement: a level below 31; it takes a layout with a tiered L0, level targets that are not dynamic, \
                 and reuse that is not never",
            );
        }
        if let Reuse::Stitch(stitch) = self.reuse {
            if stitch.min_bytes == Some(0) || stitch.max_dead_percent > 99 {
                return refuse("reuse: stitch: min_bytes is above 0, max_dead_percent is from 0 to 99");
            }
            if self.release == Release::Progressive {
                return refuse(
                    "reuse: stitch takes release = \"at-end\": a table that is linked in part gives nothing back before its last part is gone",
                );
            }
            if matches!(self.layout, Layout::Guarded(_)) {
                return refuse(
                    "reuse: stitch takes another layout than guarded: what is linked could hold guards that no merge has met",
                );
            }
        }
        if self.layout == (Layout::Log {}) && (self.flush_placement > 0 || self.intra_l0.is_some()) {
            let what = if self.intra_l0.is_some() { "intra_l0" } else { "flush_placement" };
            return Err((None, format!("{what}: layout log leaves every flush where it is")));
        }
        let files_down = |rule: &Rule| {
            rule.granularity.picks_files()
                && (1..MAX_LEVELS).any(|level| self.may_apply(rule, level) && !self.may_be_tiered(level))
        };
        if self.expand.starved_files > 0 && !self.rules.iter().any(files_down) {
            return refuse(
                "expand: starved_files takes a rule that moves files of leveled levels (granularity file or files)",
            );
        }
        let goes_round = |rule: &Rule| {
            rule.movement.contains(&Movement::RoundRobin) && matches!(rule.granularity, Granularity::File {})
        };
        if self.expand.contiguous_files > 0 && (self.expand.files > 0 || !self.rules.iter().any(goes_round)) {
            return refuse(
                "expand: contiguous_files takes a rule with granularity file and movement round-robin, and goes without files",
            );
        }
        if let Some(intra) = &self.intra_l0 {
            if intra.min_runs < 2 {
                return refuse("intra_l0: min_runs: at least 2");
            }
            if !self.may_be_tiered(0) {
                return refuse("intra_l0: this layout limits L0 to one run, which is merged there anyway");
            }
        }
        Ok(())
    }

    fn validate_rule(&self, rule: &Rule) -> std::result::Result<(), String> {
        let picks_files = rule.granularity.picks_files();
        let problem = match &rule.trigger {
            Trigger::LevelSaturation { full_at, files }
                if !(*full_at > 0.0 && full_at.is_finite()) || *files == Some(0) =>
            {
                Some("level-saturation: full_at and files are above 0")
            }
            Trigger::SortedRuns { runs: Some(0 | 1) } => Some("sorted-runs: runs is at least 2"),
            Trigger::SpaceAmplification { percent: 0, .. } => Some("space-amplification: percent is above 0"),
            Trigger::SpaceAmplification { .. } if rule.granularity != all_runs() || rule.levels != Levels::All => Some(
                "space-amplification looks at the whole tree: it takes levels = \"all\" and granularity = { kind = \"sorted-runs\" }",
            ),
            Trigger::TombstoneDensity { share, .. } if !(*share > 0.0 && *share <= 1.0) => {
                Some("tombstone-density: share is above 0 and at most 1")
            }
            Trigger::ReadAmplification { bytes_per_read, min_reads } if *bytes_per_read == 0 || *min_reads == 0 => {
                Some("read-amplification: bytes_per_read and min_reads are at least 1")
            }
            Trigger::ReadCost { share } if !(*share > 0.0 && share.is_finite()) => Some("read-cost: share is above 0"),
            Trigger::ReadCost { .. } if rule.granularity != all_runs() || rule.levels != Levels::Tiered => Some(
                "read-cost is about what several runs cost reads: it takes levels = \"tiered\" and granularity = { kind = \"sorted-runs\" }",
            ),
            Trigger::ReadCost { .. } if matches!(self.layout, Layout::Runs { .. }) => {
                Some("read-cost: layout runs groups its runs, and read-cost weighs levels: it takes another layout")
            }
            Trigger::Idle { met_ratio: Some(ratio), .. }
                if !(*ratio > 0.0 && ratio.is_finite()) || rule.granularity != all_runs() =>
            {
                Some("idle: met_ratio is above 0, and takes granularity = { kind = \"sorted-runs\" }")
            }
            Trigger::TombstoneShare { share } if !(*share > 0.0 && share.is_finite()) => {
                Some("tombstone-share: share is above 0")
            }
            Trigger::TombstoneShare { .. } if matches!(self.layout, Layout::Runs { .. }) => Some(
                "tombstone-share: layout runs groups its runs, and tombstone-share weighs levels: it takes another layout",
            ),
            trigger if trigger.wants_files() && !picks_files => {
                Some("this trigger is about single files: it takes granularity file or files")
            }
            _ => None,
        };
        if let Some(problem) = problem {
            return Err(problem.to_owned());
        }
        match &rule.granularity {
            _ if picks_files == rule.movement.is_empty() => {
                return Err(match picks_files {
                    true => "granularity file and files need a movement".to_owned(),
                    false => {
                        "a movement chooses among files; granularity level, sorted-runs and guard take none".to_owned()
                    }
                });
            }
            Granularity::Files { count, bytes, window_files: Some(files) } => {
                let alone = count.is_none() && bytes.is_none();
                if !alone || *files < 2 || rule.movement != [Movement::MaxRatioWindow] {
                    return Err("granularity files: window_files (at least 2) goes with movement = [\"max-ratio-window\"] alone, \
                         without count and bytes"
                        .to_owned());
                }
            }
            _ if rule.movement.contains(&Movement::MaxRatioWindow) => {
                return Err(
                    "movement max-ratio-window takes granularity = { kind = \"files\", window_files = 16 }".to_owned()
                );
            }
            Granularity::Files { count: None, bytes: None, .. } | Granularity::Files { count: Some(0), .. } => {
                return Err("granularity files: count (at least 1) or bytes says how many".to_owned());
            }
            Granularity::SortedRuns { pick } if *pick != RunPick::All {} => {
                // A full level that is merged within stays as full.
                if !matches!(rule.trigger, Trigger::SortedRuns { .. } | Trigger::Idle { .. }) {
                    return Err(format!("pick = \"{}\" takes trigger sorted-runs or idle", pick.name()));
                }
                whole_runs::validate_pick(pick)?;
            }
            _ => {}
        }
        let two_phase = matches!(
            self.layout,
            Layout::Leveling { two_phase: true, .. } | Layout::OneLeveling { two_phase: true, .. }
        );
        let on_leveled = (0..MAX_LEVELS).any(|level| self.may_apply(rule, level) && !self.may_be_tiered(level));
        if let Layout::Leveling { pairwise: true, two_phase } = self.layout {
            if two_phase {
                return Err(
                    "pairwise levels go down as whole runs, two_phase levels file by file: one of the two".to_owned()
                );
            }
            let by_run = matches!(rule.trigger, Trigger::LevelSaturation { files: None, .. });
            if !by_run || rule.granularity != (Granularity::Level {}) {
                return Err(format!(
                    "pairwise merges whole runs that are full: its rules take trigger level-saturation without files and granularity \
                     level, not {} and what goes with it",
                    rule.trigger.name()
                ));
            }
        }
        if two_phase && on_leveled && !picks_files && !rule.trigger.is_tree_wide() {
            return Err(format!(
                "two_phase levels go down file by file: a rule of theirs takes granularity file or files, and trigger {} with \
                 whole runs takes levels = \"tiered\"",
                rule.trigger.name()
            ));
        }
        // A file that goes to a tiered level would be a run of its own there.
        let to_tiered = |level: &u8| self.may_apply(rule, *level) && self.may_be_tiered(level + 1);
        let in_place = matches!(self.layout, Layout::Runs { .. });
        if picks_files
            && !in_place
            && let Some(level) = (0..MAX_LEVELS - 1).find(to_tiered)
        {
            let others =
                if matches!(self.layout, Layout::Guarded(_)) { "guard or sorted-runs" } else { "sorted-runs or level" };
            return Err(format!(
                "granularity file and files need a leveled next level, and L{} is tiered: take {others}",
                level + 1
            ));
        }
        Ok(())
    }

    /// What belongs to the layout `guarded`, and what that cannot do.
    fn validate_guards(&self, rule: &Rule) -> std::result::Result<(), String> {
        let is_guarded = matches!(self.layout, Layout::Guarded(_));
        let about_guards = matches!(rule.trigger, Trigger::GuardBytes { .. } | Trigger::GuardReads { .. });
        let problem = match (&rule.trigger, &rule.granularity) {
            (trigger, granularity) if !is_guarded => {
                let name = if about_guards { trigger.name() } else { "granularity guard" };
                let concerns = about_guards || *granularity == Granularity::Guard {};
                concerns.then(|| format!("{name} takes layout = {{ kind = \"guarded\" }}"))
            }
            _ if rule.levels == Levels::Leveled => Some(
                "layout guarded has no leveled levels: levels = \"all\", \"tiered\", \"last\" or a list of numbers"
                    .to_owned(),
            ),
            (Trigger::GuardBytes { memtables }, _)
                if memtables.is_empty() || !memtables.iter().all(|n| *n > 0.0 && n.is_finite()) =>
            {
                Some(format!("guard-bytes: memtables = {memtables:?}: at least one entry, each above 0"))
            }
            (Trigger::GuardReads { reads: 0 }, _) => Some("guard-reads: reads = 0: reads is at least 1".to_owned()),
            (trigger, granularity) if about_guards && *granularity != (Granularity::Guard {}) => Some(format!(
                "{} is about single guards: it takes granularity = {{ kind = \"guard\" }}",
                trigger.name()
            )),
            (trigger, granularity)
                if *granularity == (Granularity::Guard {})
                    && !about_guards
                    && !matches!(trigger, Trigger::SortedRuns { .. } | Trigger::LevelSaturation { .. }) =>
            {
                Some(format!(
                    "granularity guard takes trigger sorted-runs, level-saturation, guard-bytes or guard-reads, not {}",
                    trigger.name()
                ))
            }
            _ => None,
        };
        problem.map_or(Ok(()), Err)
    }

    /// What belongs to rules that drop the oldest data.
    fn validate_losses(&self, rule: &Rule) -> std::result::Result<(), String> {
        let drops = rule.granularity == Granularity::DropOldest {};
        let problem = match &rule.trigger {
            trigger if trigger.is_about_oldest() && !drops => Some(format!(
                "{} is about data that may be lost: it takes granularity = {{ kind = \"drop-oldest\" }}",
                trigger.name()
            )),
            trigger if drops && !trigger.is_about_oldest() => {
                Some(format!("granularity drop-oldest takes trigger total-size or data-ttl, not {}", trigger.name()))
            }
            trigger if drops && rule.levels != Levels::All => {
                Some(format!("levels: {} looks at the whole tree: it takes levels = \"all\"", trigger.name()))
            }
            Trigger::TotalSize { memtables: Some(_), bytes: Some(_) } => {
                Some("total-size: memtables or bytes, not both".to_owned())
            }
            Trigger::TotalSize { memtables: Some(memtables), .. } if !(*memtables > 0.0 && memtables.is_finite()) => {
                Some(format!("total-size: memtables = {memtables}: memtables is above 0"))
            }
            Trigger::TotalSize { bytes: Some(0), .. } => Some("total-size: bytes = 0: bytes is at least 1".to_owned()),
            trigger if self.layout == (Layout::Log {}) && !drops => Some(format!(
                "{}: layout log merges nothing: it takes trigger total-size or data-ttl with granularity drop-oldest",
                trigger.name()
            )),
            _ => None,
        };
        problem.map_or(Ok(()), Err)
    }

    fn may_be_tiered(&self, level: u8) -> bool {
        match &self.layout {
            Layout::Leveling { .. } => false,
            Layout::Tiering {} | Layout::Guarded(_) | Layout::Log {} => true,
            Layout::OneLeveling { .. } => level == 0,
            // Every level can be the last but L0; the rule of the last level is checked by what is below it, which is leveled.
            Layout::LLeveling {} => true,
            Layout::Runs { .. } => true,
            Layout::Hybrid { runs } => runs.get(usize::from(level)).or(runs.last()).is_some_and(|runs| *runs > 1),
        }
    }

    fn may_apply(&self, rule: &Rule, level: u8) -> bool {
        match &rule.levels {
            Levels::All | Levels::Last => true,
            Levels::Tiered => self.may_be_tiered(level),
            Levels::Leveled => !self.may_be_tiered(level),
            Levels::These(levels) => levels.contains(&level),
        }
    }
}

fn all_runs() -> Granularity {
    Granularity::SortedRuns { pick: RunPick::All {} }
}
