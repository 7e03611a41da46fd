//! Which runs of a group are merged: one option for each published rule. The rules themselves are in [`rules`].

use std::fmt;

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, MapDeserializer};
use serde::de::{self, Deserializer, MapAccess, Visitor};

use super::{RunFact, rules};
use crate::num::to_usize;

/// Which runs of a group are merged. Written as a word, `pick = "similar-size"`, or with parameters, `pick = { kind = "similar-size", percent
/// = 20 }`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum RunPick {
    /// All: into the next level where levels are physical, into one run of the same group otherwise.
    All {},
    /// As many as make the rule fire, or, if its trigger does not count runs, as the layout allows, the oldest: into the next level where levels
    /// are physical, into one run of the same group otherwise. So each merge takes away the same number of runs, however many have gathered
    /// (luo19 section 2); merges of `all` do more at once when they are behind, and what is measured then does not last (luo19 section 6.2).
    /// With `max_runs`, up to that many where more have gathered.
    /// With `max_left`, so many more that no more than those stay behind: where the next level is merged as a whole, a byte of L0 is then
    /// the cheaper the more are waiting, so that a store which is held to a low debt has something in hand for the time in which it is not.
    Due {
        /// The most runs, unless `max_left` says otherwise. Default: as many as make the rule fire, which it never is less than.
        max_runs: Option<u32>,
        /// The most runs that stay behind. Default: no limit.
        max_left: Option<u32>,
    },
    /// Neighbours of similar size (RocksDB universal, rules 3 and 4): the first span, from the newest on, in which each run is not much larger than
    /// the newer ones together; if there is none and the group holds more runs than the trigger allows, as many of the newest as bring it
    /// back to that number.
    SimilarSize {
        /// A run joins while it is at most so many percent larger than what it is compared with. Default 1.
        #[serde(default = "one")]
        percent: u32,
        /// The fewest runs of a span. Default 2.
        #[serde(default = "two")]
        min_runs: u32,
        /// The most runs of a span. Default: no limit.
        max_runs: Option<u32>,
        /// What a run is compared with. Default `total`.
        #[serde(default)]
        stop: StopStyle,
    },
    /// The best window of neighbours (HBase's exploring policy): of all windows of `min_runs` to `max_runs` in which no run is larger than
    /// `ratio` times the others together, the one with the most runs, then the fewest bytes. When the group holds `stuck_runs`, the one
    /// with the fewest bytes a run, a later one only if it is better by 5 %; and if no window qualifies, the one with the fewest bytes.
    Exploring {
        /// The fewest runs. Default 3.
        #[serde(default = "three")]
        min_runs: u32,
        /// The most runs. Default 10.
        #[serde(default = "ten")]
        max_runs: u32,
        /// The largest run per bytes of the others. Default 1.2 (HBase: 5.0 off peak).
        #[serde(default = "ratio_1_2")]
        ratio: f64,
        /// Windows of fewer memtables than this need not keep the ratio. Default 1 (HBase: the flush size).
        #[serde(default = "one_memtable")]
        min_memtables: f64,
        /// As many runs and the policy counts as stuck. Default 16 (HBase: blocking store files).
        #[serde(default = "sixteen")]
        stuck_runs: u32,
    },
    /// The smallest runs of the group, at most `max_runs` (Cassandra's STCS once a bucket is chosen; ties: the newest).
    Smallest {
        /// The most runs. Default 32.
        #[serde(default = "thirty_two")]
        max_runs: u32,
    },
    /// The oldest runs of the group, at most `max_runs`.
    Oldest {
        /// The most runs. Default 15 (WiredTiger's merge_max).
        #[serde(default = "fifteen")]
        max_runs: u32,
    },
    /// By ascending size, the most runs of which the largest times `ratio` is less than all together; fewer of them where merging more
    /// would make a run that is merged again at once (Accumulo). With more than `file_max` runs the ratio is lowered in steps of 0.1 down
    /// to `lowest_ratio` until something qualifies.
    SizeSorted {
        /// Sum per largest run. Default 3.
        #[serde(default = "ratio_3")]
        ratio: f64,
        /// How far the ratio is lowered. Default 1.1.
        #[serde(default = "ratio_1_1")]
        lowest_ratio: f64,
        /// The most runs of one merge. Default 10.
        #[serde(default = "ten")]
        max_runs: u32,
        /// More runs than this and the ratio is lowered. Default 15.
        #[serde(default = "fifteen")]
        file_max: u32,
    },
    /// Levels by size (Tarantool's vinyl): the target of the first level is the oldest run's size divided by `ratio`, rounded up, until it is
    /// not above the newest run's; each next level's is `ratio` times larger. All runs from the newest through the deepest level that holds too
    /// many are merged. The last level holds one run. Nothing while a job runs in the group.
    SizeLevels {
        /// The ratio of neighbouring levels. Default 3.5, at least 2.
        #[serde(default = "ratio_3_5")]
        ratio: f64,
        /// The runs of a level that are not too many. Default 2.
        #[serde(default = "two")]
        runs_per_level: u32,
        /// So many percent of the runs, chosen by their number, allow one more run in their level. Default 10.
        #[serde(default = "ten")]
        jitter_percent: u32,
    },
    /// The oldest run that is not larger than `ratio` times those before it, with them (AsterixDB's concurrent policy). Only runs newer than all
    /// that are being merged count.
    Suffix {
        /// The fewest runs. Default 3.
        #[serde(default = "three")]
        min_runs: u32,
        /// The most runs. Default 10.
        #[serde(default = "ten")]
        max_runs: u32,
        /// The oldest run per bytes of the others. Default 1.2.
        #[serde(default = "ratio_1_2")]
        ratio: f64,
    },
    /// The longest sequence of small runs from the newest on, once they are together larger than `max_bytes` or more than `tolerance`
    /// (AsterixDB's prefix policy); the oldest of them stay behind while one is larger than `ratio` times the newer ones.
    Prefix {
        /// A run larger than this ends the sequence, in bytes. Default 1073741824 (1 GiB).
        #[serde(default = "gib")]
        max_bytes: u64,
        /// So many small runs are tolerated. Default 5.
        #[serde(default = "five")]
        tolerance: u32,
        /// The oldest run per bytes of the others. Default 1.2.
        #[serde(default = "ratio_1_2")]
        ratio: f64,
    },
    /// After the nth flush, the runs from a position on that n alone decides, so that never more than `runs` remain (AsterixDB's constant policy;
    /// Mathieu, Staelin, Young, Yousefi: Bigtable merge compaction).
    Binomial {
        /// The most runs that remain, at least 2. Default 3.
        #[serde(default = "three")]
        runs: u32,
    },
    /// For time windows (Cassandra's TWCS): in the newest window what STCS would merge, in a closed one everything, at most `max_runs` at once.
    TimeWindow {
        /// The fewest runs of a bucket in the newest window. Default 4.
        #[serde(default = "four")]
        min_runs: u32,
        /// The most runs of one merge. Default 32.
        #[serde(default = "thirty_two")]
        max_runs: u32,
        /// As in the grouping `size-buckets`. Default 0.5.
        #[serde(default = "ratio_half")]
        low: f64,
        /// As in the grouping `size-buckets`. Default 1.5.
        #[serde(default = "ratio_1_5")]
        high: f64,
        /// As in the grouping `size-buckets`, in bytes. Default 52428800 (50 MiB).
        #[serde(default = "fifty_mib")]
        min_bytes: u64,
    },
}

/// What a run of similar size is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopStyle {
    /// All newer runs of the span together.
    #[default]
    Total,
    /// The run before it, in both directions.
    Similar,
}

impl Default for RunPick {
    fn default() -> RunPick {
        RunPick::All {}
    }
}

const fn one() -> u32 {
    1
}
const fn two() -> u32 {
    2
}
const fn three() -> u32 {
    3
}
const fn four() -> u32 {
    4
}
const fn five() -> u32 {
    5
}
const fn ten() -> u32 {
    10
}
const fn fifteen() -> u32 {
    15
}
const fn sixteen() -> u32 {
    16
}
const fn thirty_two() -> u32 {
    32
}
const fn gib() -> u64 {
    1 << 30
}
const fn fifty_mib() -> u64 {
    50 << 20
}
const fn one_memtable() -> f64 {
    1.0
}
const fn ratio_half() -> f64 {
    0.5
}
const fn ratio_1_1() -> f64 {
    1.1
}
const fn ratio_1_2() -> f64 {
    1.2
}
const fn ratio_1_5() -> f64 {
    1.5
}
const fn ratio_3() -> f64 {
    3.0
}
const fn ratio_3_5() -> f64 {
    3.5
}

/// Reads a [`RunPick`] that is a word or a table.
pub(crate) fn word_or_table<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RunPick, D::Error> {
    struct PickVisitor;
    impl<'de> Visitor<'de> for PickVisitor {
        type Value = RunPick;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a word as \"all\", or a table as {{ kind = \"exploring\", max_runs = 10 }}")
        }

        fn visit_str<E: de::Error>(self, word: &str) -> Result<RunPick, E> {
            RunPick::deserialize(MapDeserializer::new(std::iter::once(("kind", word))))
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RunPick, A::Error> {
            RunPick::deserialize(MapAccessDeserializer::new(map))
        }
    }
    deserializer.deserialize_any(PickVisitor)
}

/// What a rule knows besides the runs of the group.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Setting {
    /// Size of a full memtable, in bytes.
    pub memtable_bytes: u64,
    /// The runs at which the rule's trigger fires.
    pub due_runs: usize,
    /// Whether the group is the newest.
    pub newest_group: bool,
}

pub(super) fn count(n: u32) -> usize {
    to_usize(n.into())
}

/// How many runs of `present` a pick of `due` takes, if `fired` make its rule fire.
pub(crate) fn due(fired: usize, present: usize, max_runs: Option<u32>, max_left: Option<u32>) -> usize {
    let behind = max_left.map_or(0, |left| present.saturating_sub(count(left)));
    fired.max(max_runs.map_or(0, count)).max(behind)
}

impl RunPick {
    /// The name in strategy files.
    pub fn name(&self) -> &'static str {
        match self {
            RunPick::All {} => "all",
            RunPick::Due { .. } => "due",
            RunPick::SimilarSize { .. } => "similar-size",
            RunPick::Exploring { .. } => "exploring",
            RunPick::Smallest { .. } => "smallest",
            RunPick::Oldest { .. } => "oldest",
            RunPick::SizeSorted { .. } => "size-sorted",
            RunPick::SizeLevels { .. } => "size-levels",
            RunPick::Suffix { .. } => "suffix",
            RunPick::Prefix { .. } => "prefix",
            RunPick::Binomial { .. } => "binomial",
            RunPick::TimeWindow { .. } => "time-window",
        }
    }

    /// The runs of a group, newest first, that the rule merges next: positions in `runs`, ascending, two at least; none if it has
    /// nothing to merge.
    pub fn choose(&self, runs: &[RunFact<'_>], setting: Setting) -> Option<Vec<usize>> {
        let span = |span: Option<std::ops::Range<usize>>| span.map(|span| span.collect::<Vec<_>>());
        let chosen = match self {
            RunPick::All {} => runs.iter().all(|run| run.idle).then(|| (0..runs.len()).collect()),
            RunPick::Due { max_runs, max_left } => {
                span(rules::oldest(runs, due(setting.due_runs, runs.len(), *max_runs, *max_left)))
            }
            RunPick::SimilarSize { percent, min_runs, max_runs, stop } => {
                let max_runs = max_runs.map_or(usize::MAX, count);
                let similar = rules::similar_size(runs, *percent, count(*min_runs), max_runs, *stop);
                span(similar.or_else(|| rules::too_many(runs, setting.due_runs, max_runs)))
            }
            RunPick::Exploring { min_runs, max_runs, ratio, min_memtables, stuck_runs } => span(rules::exploring(
                runs,
                count(*min_runs).max(2)..=count(*max_runs),
                *ratio,
                min_memtables * crate::num::to_f64(setting.memtable_bytes),
                count(*stuck_runs),
            )),
            RunPick::Smallest { max_runs } => Some(rules::smallest(runs, count(*max_runs))),
            RunPick::Oldest { max_runs } => span(rules::oldest(runs, count(*max_runs))),
            RunPick::SizeSorted { ratio, lowest_ratio, max_runs, file_max } => {
                rules::size_sorted(runs, *ratio, *lowest_ratio, count(*max_runs), count(*file_max))
            }
            RunPick::SizeLevels { ratio, runs_per_level, jitter_percent } => {
                span(rules::size_levels(runs, *ratio, count(*runs_per_level), *jitter_percent))
            }
            RunPick::Suffix { min_runs, max_runs, ratio } => {
                span(rules::suffix(runs, count(*min_runs).max(2), count(*max_runs), *ratio))
            }
            RunPick::Prefix { max_bytes, tolerance, ratio } => {
                span(rules::prefix(runs, *max_bytes, count(*tolerance), *ratio))
            }
            RunPick::Binomial { runs: most } => span(rules::binomial(runs, count(*most))),
            RunPick::TimeWindow { min_runs, max_runs, low, high, min_bytes } => {
                let buckets = super::grouping::size_buckets(runs, *low, *high, *min_bytes);
                match setting.newest_group {
                    true => rules::window_bucket(runs, &buckets, count(*min_runs), count(*max_runs)),
                    false => Some(rules::smallest(runs, count(*max_runs))),
                }
            }
        };
        chosen.filter(|chosen| chosen.len() >= 2)
    }
}
