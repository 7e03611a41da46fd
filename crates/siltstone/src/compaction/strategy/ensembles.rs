//! How many different strategies can be written: the size of the design space (sarkar21 section 3.2 estimates more than 10^4).
//!
//! Nothing is multiplied. The options of each primitive are asked from the parser, every combination is put together as a strategy and
//! goes through the validation that every strategy file goes through; those that pass are counted. What counts as different:
//!
//! - **layout**: its kind, with default parameters; `runs` with each grouping;
//! - **rule for the tiered levels**, where the layout has some: trigger `sorted-runs` and a granularity;
//! - **rules for the leveled levels**, where it has some: one trigger, or two different ones in either order of importance, with one
//!   granularity and, where files are picked, one movement or two different ones in either order.
//!
//! Parameters (ratios, shares, ages, sizes) and what stands beside the primitives (priority, cut, expansion, tie-break, reuse) do
//! not count, nor do three triggers or movements: with them the number has no end.

use serde::de::DeserializeOwned;

use super::{Levels, Rule, Strategy};
use crate::compaction::CompactionPolicy;
use crate::compaction::granularity::Granularity;
use crate::compaction::layout::Layout;
use crate::compaction::movement::Movement;
use crate::compaction::runs::Grouping;
use crate::compaction::trigger::Trigger;
use crate::compaction::view::{LsmView, Sizes};
use crate::num::to_u64;
use crate::version::{LevelId, Version, text};

/// Values for parameters without a default, by name, in TOML: those that make an option complete are tried.
const SAMPLES: [(&str, &str); 17] = [
    ("w", "[0]"),
    ("grouping", "{ kind = \"time-order\" }"),
    ("age", "\"1h\""),
    ("ttl", "\"1h\""),
    ("after", "\"10s\""),
    ("window", "\"1h\""),
    ("count", "2"),
    ("bytes", "1048576"),
    ("runs", "[4, 1]"),
    ("files", "4"),
    ("limits", "[4, 1]"),
    ("share", "0.5"),
    ("percent", "50"),
    ("k", "3"),
    ("z", "1"),
    ("reads", "100"),
    ("factor", "2"),
];

/// What the parser knows, and what of it can be combined.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Ensembles {
    /// Layouts.
    pub layouts: Vec<String>,
    /// Triggers.
    pub triggers: Vec<String>,
    /// Granularities; the ways to pick runs apart.
    pub granularities: Vec<String>,
    /// Movements.
    pub movements: Vec<String>,
    /// Different strategies that the validation accepts; the module says what is counted.
    pub valid: u64,
    /// Those that it refuses.
    pub refused: u64,
}

/// Counts the strategies that can be written.
pub fn count_ensembles() -> Ensembles {
    let grouped = options::<Grouping>("kind")
        .into_iter()
        .map(|(name, grouping)| (format!("runs by {name}"), Layout::Runs { grouping, expected_runs: None }));
    let plain = options::<Layout>("kind").into_iter().filter(|(_, layout)| !matches!(layout, Layout::Runs { .. }));
    let layouts: Vec<(String, Layout)> = plain.chain(grouped).collect();
    let triggers = options::<Trigger>("kind");
    let movements = movements();
    let mut granularities = options::<Granularity>("kind");
    // Which runs are picked is as much a choice as how much is.
    for pick in expected(&read::<Granularity>("{ kind = \"sorted-runs\", pick = \"?\" }").err().unwrap_or_default()) {
        let name = format!("sorted-runs {pick}");
        let found = read::<Granularity>(&format!("{{ kind = \"sorted-runs\", pick = \"{pick}\" }}"));
        let is_new = |option: &Granularity| granularities.iter().all(|(_, other)| other != option);
        if let Some(option) = found.ok().filter(is_new) {
            granularities.push((name, option));
        }
    }
    let mut count = Ensembles {
        layouts: names(&layouts),
        triggers: names(&triggers),
        granularities: names(&granularities),
        movements: names(&movements),
        valid: 0,
        refused: 0,
    };
    let rule = |levels: &Levels, trigger: &Trigger, granularity: &Granularity, movement: &[Movement]| Rule {
        levels: levels.clone(),
        trigger: trigger.clone(),
        granularity: granularity.clone(),
        movement: movement.to_vec(),
    };
    let movement_lists: Vec<Vec<Movement>> = std::iter::once(Vec::new())
        .chain(one_or_two(&movements).map(|list| list.into_iter().copied().collect()))
        .collect();
    let is_about_runs = |trigger: &&(String, Trigger)| matches!(trigger.1, Trigger::SortedRuns { .. });
    let base = super::PRESETS.first().and_then(|preset| Strategy::parse(preset.text).ok()).expect("presets are valid");
    let ensemble = |layout: &Layout, rules| Strategy { layout: layout.clone(), rules, ..base.clone() };
    for (_, layout) in &layouts {
        let (tiered, leveled) = kinds_of_levels(&ensemble(layout, Vec::new()));
        // A rule that is refused by itself is refused in company, too: no need to try all its company.
        let is_refused = |rule: &Rule| matches!(ensemble(layout, vec![rule.clone()]).validate(), Err((Some(0), _)));
        let (mut above, mut below): (Vec<Vec<Rule>>, Vec<Vec<Rule>>) = (Vec::new(), Vec::new());
        let (mut above_total, mut below_total) = (0, 0);
        for (_, trigger) in triggers.iter().filter(is_about_runs).filter(|_| tiered) {
            above_total += granularities.len();
            let rules = granularities.iter().map(|(_, how)| rule(&Levels::Tiered, trigger, how, &[]));
            above.extend(rules.filter(|rule| !is_refused(rule)).map(|rule| vec![rule]));
        }
        for (_, how) in granularities.iter().filter(|_| leveled) {
            for movement in &movement_lists {
                let single = |(name, trigger): &(String, Trigger)| {
                    let rule = rule(&Levels::Leveled, trigger, how, movement);
                    (!is_refused(&rule)).then(|| (name.clone(), rule))
                };
                let allowed: Vec<(String, Rule)> = triggers.iter().filter_map(single).collect();
                below_total += triggers.len() * triggers.len();
                below.extend(one_or_two(&allowed).map(|rules| rules.into_iter().cloned().collect()));
            }
        }
        // A layout without such levels has no rule for them.
        if !tiered {
            above.push(Vec::new());
        }
        if !leveled {
            below.push(Vec::new());
        }
        let valid = above.iter().flat_map(|above| below.iter().map(move |below| (above, below)));
        let valid = valid.map(|(above, below)| ensemble(layout, above.iter().chain(below).cloned().collect()));
        let valid = to_u64(valid.filter(|strategy| strategy.validate().is_ok()).count());
        count.valid += valid;
        count.refused += to_u64(above_total.max(1) * below_total.max(1)) - valid;
    }
    count
}

/// Whether a tree under this layout has tiered levels, and leveled ones.
fn kinds_of_levels(policy: &Strategy) -> (bool, bool) {
    let deep = text::parse("L0 5:a-z:1K\nL1 4:a-z:1K\nL2 3:a-z:1K\nL3 2:a-z:1K\nL4 1:a-z:1K\n");
    let version = deep.unwrap_or_else(|_| Version::empty());
    let view = LsmView::new(&version, Sizes { memtable_bytes: 1000, file_bytes: 1000, size_ratio: 0, level1_bytes: 0 });
    let limits: Vec<u32> = view.levels().map(|level: LevelId| policy.run_limit(&view, level)).collect();
    (limits.iter().any(|runs| *runs > 1), limits.contains(&1))
}

fn names<T>(options: &[(String, T)]) -> Vec<String> {
    options.iter().map(|(name, _)| name.clone()).collect()
}

/// All lists of one option or of two different ones.
fn one_or_two<T>(options: &[(String, T)]) -> impl Iterator<Item = Vec<&T>> {
    let one = options.iter().map(|(_, option)| vec![option]);
    let first = 0..options.len();
    let two = first.flat_map(move |a| {
        (0..options.len()).filter(move |b| *b != a).map(move |b| vec![&options[a].1, &options[b].1])
    });
    one.chain(two)
}

/// What a parser knows by `tag`, with the least that makes each complete.
fn options<T: DeserializeOwned>(tag: &str) -> Vec<(String, T)> {
    let unknown = read::<T>(&format!("{{ {tag} = \"?\" }}")).err().unwrap_or_default();
    let option = |name: String| {
        let mut fields = format!("{tag} = \"{name}\"");
        // Each turn names one missing field.
        for _ in 0..SAMPLES.len() {
            match read::<T>(&format!("{{ {fields} }}")) {
                Ok(option) => return Some((name, option)),
                Err(error) => {
                    let (field, value) =
                        SAMPLES.iter().find(|(field, _)| error.contains(&format!("missing field `{field}`")))?;
                    fields += &format!(", {field} = {value}");
                }
            }
        }
        None
    };
    expected(&unknown).into_iter().filter_map(option).collect()
}

/// Movements are words, or tables where they have parameters.
fn movements() -> Vec<(String, Movement)> {
    let unknown = read::<Movement>("\"?\"").err().unwrap_or_default();
    let movement = |name: String| read::<Movement>(&format!("\"{name}\"")).ok().map(|option| (name, option));
    expected(&unknown).into_iter().filter_map(movement).collect()
}

fn read<T: DeserializeOwned>(value: &str) -> Result<T, String> {
    #[derive(serde::Deserialize)]
    struct Holder<T> {
        value: T,
    }
    toml::from_str::<Holder<T>>(&format!("value = {value}"))
        .map(|holder| holder.value)
        .map_err(|error| error.to_string())
}

/// The words that an error says would have been understood.
fn expected(error: &str) -> Vec<String> {
    let allowed = error.split_once("expected").map_or("", |(_, allowed)| allowed);
    allowed.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// How many options a parser names, whether they can be completed or not.
#[cfg(test)]
fn named<T: DeserializeOwned>(sample: &str) -> usize {
    expected(&read::<T>(sample).err().unwrap_or_default()).len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_that_the_parser_knows_is_combined() {
        let found = count_ensembles();
        let grouped = named::<Grouping>("{ kind = \"?\" }");
        assert_eq!(found.layouts.len(), named::<Layout>("{ kind = \"?\" }") - 1 + grouped, "{:?}", found.layouts);
        assert_eq!(found.triggers.len(), named::<Trigger>("{ kind = \"?\" }"), "{:?}", found.triggers);
        assert!(found.granularities.len() > named::<Granularity>("{ kind = \"?\" }"), "{:?}", found.granularities);
        assert_eq!(found.movements.len(), named::<Movement>("\"?\""), "{:?}", found.movements);
        assert!(found.valid > 10_000 && found.refused > 0, "{} and {}", found.valid, found.refused);
    }
}
