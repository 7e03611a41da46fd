//! The one policy that we ship: a layout and ordered rules, read from a TOML file.
//!
//! ```toml
//! name = "mine"
//! layout = { kind = "one-leveling", l0_runs = 4 }
//!
//! [[rule]]
//! levels      = "tiered"
//! trigger     = { kind = "sorted-runs" }
//! granularity = { kind = "sorted-runs" }
//! ```
//!
//! Reading is strict: an unknown key, an unknown option or an impossible combination is refused with the line and with what would be
//! allowed. What can be written works; what is not built cannot be written.
//!
//! `validate.rs` refuses what TOML cannot, `decide.rs` is the policy.

use std::fmt;
use std::sync::OnceLock;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use toml::Spanned;

use super::CompactionPolicy;
use super::filters::FilterBits;
use super::granularity::Granularity;
use super::layout::Layout;
use super::movement::Movement;
use super::plan::{Release, Reuse};
use super::runs::Shards;
use super::targets::LevelTargets;
use super::trigger::Trigger;
use super::view::MAX_LEVELS;
use crate::error::{Error, Result};
use crate::kind;

mod decide;
mod ensembles;
mod validate;
mod whole_runs;

pub use ensembles::{Ensembles, count_ensembles};

/// A strategy that is compiled in.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// Its file.
    pub text: &'static str,
}

impl Preset {
    /// Whether it drops the oldest data, so that a keyspace needs the option `may_lose_oldest` for it.
    pub fn loses_oldest(&self) -> bool {
        Strategy::named(self.name).is_ok_and(|strategy| strategy.loses_oldest())
    }
}

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        &[$(Preset { name: $name, text: include_str!(concat!("../../../../strategies/", $name, ".toml")) }),*]
    };
}

static PRESETS: &[Preset] = presets![
    "1-lvl",
    "accumulo",
    "asterixdb-concurrent",
    "asterixdb-constant",
    "asterixdb-leveling",
    "asterixdb-prefix",
    "asterixdb-tiering",
    "blsm",
    "cassandra-lcs",
    "cassandra-stcs",
    "cassandra-twcs",
    "cassandra-ucs",
    "clsm",
    "cold",
    "dlsm",
    "dostoevsky",
    "fd-tree",
    "full",
    "hbase",
    "hyperleveldb",
    "lethe",
    "leveldb",
    "leveling",
    "lo1",
    "lo2",
    "lsbm",
    "lsm-bush",
    "monkey",
    "old",
    "one-leveling",
    "pebblesdb",
    "rocksdb-fifo",
    "rocksdb-leveled",
    "rocksdb-round-robin",
    "rocksdb-universal",
    "rr",
    "scylla-ics",
    "scylla-lcs",
    "scylla-stcs",
    "sifrdb",
    "silk",
    "slimdb",
    "stepped-merge",
    "tarantool",
    "tier",
    "tiering",
    "tsa",
    "tsd",
    "vt-tree",
    "wiredtiger",
    "x-engine",
];

/// The strategies that are compiled in, by name.
pub fn strategies() -> &'static [Preset] {
    PRESETS
}

/// A layout, rules, and what stands beside the primitives.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Strategy {
    /// Its name.
    pub name: String,
    /// Where it comes from.
    #[serde(default)]
    pub source: String,
    /// What of the system it is named after it leaves out.
    #[serde(default)]
    pub leaves_out: String,
    /// Capacity ratio of neighbouring levels; the keyspace's option wins. Default 10, at least 2.
    #[serde(default = "ten")]
    pub size_ratio: u32,
    /// Capacity of L1 in memtables; the keyspace's option wins. Default: what the layout says.
    pub level1_memtables: Option<f64>,
    /// How many runs each level may hold.
    pub layout: Layout,
    /// How much each level should hold. Default `static`.
    #[serde(default)]
    pub level_targets: LevelTargets,
    /// What goes first when several rules or levels fire. Default `highest-score`.
    #[serde(default)]
    pub priority: Priority,
    /// Where output files end.
    #[serde(default)]
    pub cut: Cut,
    /// Which further inputs join.
    #[serde(default)]
    pub expand: Expand,
    /// How filter memory is shared out among the runs. Default `uniform`.
    #[serde(default)]
    pub filter_bits: FilterBits,
    /// Which of equal candidates is taken. Default `left-most`.
    #[serde(default)]
    pub tie_break: TieBreak,
    /// Of movement `random` and tie-break `seeded`: other seeds throw other dice. Default 0.
    #[serde(default)]
    pub seed: u64,
    /// A flush that overlaps nothing in L0 and the levels below goes down at once, without being rewritten, as deep as this level at most,
    /// as long as it does not overlap more than `cut.grandparent_files` of the level after. Decided by the first pick after the
    /// flush (LevelDB, to L2, decides it when it writes the file). Default 0: it stays in L0.
    #[serde(default)]
    pub flush_placement: u8,
    /// Merges within L0 while a running job blocks the way down. Default never.
    pub intra_l0: Option<IntraL0>,
    /// What is not rewritten: `moves-first`, `picked`, `never`, or `{ kind = "stitch", min_bytes = .., max_dead_percent = .. }` ([`Stitch`](super::Stitch)),
    /// which takes no progressive release and no guards. Default `moves-first`.
    #[serde(default, deserialize_with = "reuse")]
    pub reuse: Reuse,
    /// When what a merge has replaced leaves the tree: `at-end`, or `progressive`, as soon as finished output files cover it. Default
    /// `at-end`.
    #[serde(default)]
    pub release: Release,
    /// The rules, the important ones first.
    #[serde(rename = "rule")]
    pub rules: Vec<Rule>,
}

/// On these levels, when this fires, move this much, chosen so.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The levels. Default all.
    #[serde(default)]
    pub levels: Levels,
    /// When.
    pub trigger: Trigger,
    /// How much.
    pub granularity: Granularity,
    /// Which, for granularities that choose among files.
    #[serde(default)]
    pub movement: Vec<Movement>,
}

/// The levels of a rule.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Levels {
    /// Every level.
    #[default]
    All,
    /// Those that the layout makes tiered.
    Tiered,
    /// Those that the layout limits to one run.
    Leveled,
    /// The deepest level that holds data.
    Last,
    /// These numbers.
    These(Vec<u8>),
}

/// What goes first when several rules or levels fire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Priority {
    /// Value / threshold, the highest first (LevelDB, RocksDB); equal ones by rule, then by level.
    #[default]
    HighestScore,
    /// The rules as written, the layout's last; within a rule the highest score.
    RuleOrder,
    /// The shallowest level.
    ShallowestFirst,
    /// The deepest level.
    DeepestFirst,
    /// The shallowest level whose next level has nothing due; those whose next level has come after them (HyperLevelDB).
    RoomBelow,
}

/// Merges within L0 while a running job blocks the way down (RocksDB's intra-L0 compaction).
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IntraL0 {
    /// So many runs more than the layout's limit of L0 make one due. Default 2.
    pub extra_runs: u32,
    /// Fewer runs are not worth a merge. Default 4, at least 2.
    pub min_runs: u32,
}

impl Default for IntraL0 {
    fn default() -> IntraL0 {
        IntraL0 { extra_runs: 2, min_runs: 4 }
    }
}

/// Where output files end.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cut {
    /// At this size, in bytes, at least 256. Default: the option `file_bytes` of the keyspace.
    pub file_bytes: Option<u64>,
    /// From about half of the size on, preferably at a file border of the level below the output (RocksDB). Default false.
    pub align: bool,
    /// Before overlapping more than as many full files of the level below the output; 0 for no limit. With `align` the file's own size
    /// counts too, as in RocksDB's max_compaction_bytes. Default 0.
    pub grandparent_files: u32,
    /// At the borders of shards; with the layout `runs` only. Default: none.
    pub shards: Option<Shards>,
}

/// Which further inputs join.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expand {
    /// More files of the level join as long as no further file of the next level is met and all inputs together stay below as many
    /// full files; 0 for never. Default 0.
    pub files: u32,
    /// For movement `round-robin` in leveled levels (RocksDB's kRoundRobin): the files behind the chosen one join, one after the other, as
    /// long as the level would be over its capacity without those taken so far, all inputs together are within as many full files, and no
    /// running job has them or what they meet; never beyond the end of the run. A merge into a level ends a file at the level's cursor, so that
    /// the next pick there begins where the last one ended. 0 for one file. Default 0.
    pub contiguous_files: u32,
    /// The tree's last level counts as starved when at least so many files were written since its newest one. Then a merge of a file from a
    /// leveled level into one above the last takes a file of the last level along, up: the first in key order that lies within the keys of
    /// the merge and meets nothing between the two levels (Cassandra's LeveledCompactionStrategy). So a level that nothing reaches any more,
    /// since the levels above it have shrunk, is worked off. 0 for never. Default 0.
    pub starved_files: u32,
}

/// Which of equal candidates is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TieBreak {
    /// The first in key order.
    #[default]
    LeftMost,
    /// The last in key order.
    RightMost,
    /// By dice, see movement `random`.
    Seeded,
    /// The one whose successor overlaps most of the next level per byte; the level's last file before all (RefinedMOR's choice among ties).
    LargestSuccessor,
}

const fn ten() -> u32 {
    10
}

fn reuse<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Reuse, D::Error> {
    kind::read(deserializer, Reuse::deserialize, |read| toml::Value::try_from(read))
}

impl<'de> Deserialize<'de> for Levels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Levels, D::Error> {
        struct LevelsVisitor;
        impl<'de> Visitor<'de> for LevelsVisitor {
            type Value = Levels;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"all\", \"tiered\", \"leveled\", \"last\" or a list of level numbers")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> std::result::Result<Levels, E> {
                match word {
                    "all" => Ok(Levels::All),
                    "tiered" => Ok(Levels::Tiered),
                    "leveled" => Ok(Levels::Leveled),
                    "last" => Ok(Levels::Last),
                    _ => Err(E::invalid_value(de::Unexpected::Str(word), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Levels, A::Error> {
                let mut levels = Vec::new();
                while let Some(level) = seq.next_element::<u8>()? {
                    if level >= MAX_LEVELS {
                        return Err(de::Error::custom(format!("L{level}: the deepest level is L{}", MAX_LEVELS - 1)));
                    }
                    levels.push(level);
                }
                if levels.is_empty() {
                    return Err(de::Error::invalid_length(0, &self));
                }
                Ok(Levels::These(levels))
            }
        }
        deserializer.deserialize_any(LevelsVisitor)
    }
}

/// The line of a part of a strategy file that a problem is about, with its number: the first that holds the name with which the problem
/// begins, else the layout's, else the first of the part.
fn offending_line(text: &str, within: std::ops::Range<usize>, problem: &str) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let part = text.get(within.clone()).unwrap_or_default();
    let names = problem.split(':').next().unwrap_or_default().split(|c| !is_name(c)).filter(|name| !name.is_empty());
    let holds = |line: &str| names.clone().any(|name| line.split(|c| !is_name(c)).any(|word| word == name));
    let is_said = |line: &&str| !line.trim_start().starts_with('#') && holds(line);
    let first = part.lines().next().unwrap_or_default();
    let is_layout = |line: &&str| line.trim_start().starts_with("layout");
    let line = part.lines().find(is_said).or_else(|| part.lines().find(is_layout)).unwrap_or(first);
    let before = within.start + line.as_ptr().addr().saturating_sub(part.as_ptr().addr());
    let number = 1 + text.get(..before).map_or(0, |before| before.matches('\n').count());
    format!("line {number}, `{}`", line.trim())
}

impl Strategy {
    /// Reads a strategy file.
    ///
    /// # Errors
    /// `InvalidArgument`, with the line, for what is unknown or impossible, and with what would be allowed.
    pub fn parse(text: &str) -> Result<Strategy> {
        // Where the rules stand, which only who writes an impossible one wants to know.
        #[derive(Deserialize)]
        struct Spans {
            #[serde(default)]
            rule: Vec<Spanned<de::IgnoredAny>>,
        }
        let refuse = |what: String| Error::invalid(format!("strategy: {what}"));
        let strategy: Strategy =
            toml::from_str(text).map_err(|error| refuse(error.to_string().trim_end().to_owned()))?;
        strategy.validate().map_err(|(rule, what)| {
            let spans: Spans = match toml::from_str(text) {
                Ok(spans) => spans,
                Err(error) => return refuse(error.to_string()),
            };
            let rule_start = |n: usize| spans.rule.get(n).map_or(0, |span| span.span().start);
            let within = match rule {
                Some(n) => rule_start(n)..spans.rule.get(n + 1).map_or(text.len(), |next| next.span().start),
                None => 0..spans.rule.first().map_or(text.len(), |first| first.span().start),
            };
            let place = rule.map_or_else(String::new, |n| format!("rule {}: ", n + 1));
            refuse(format!("{}: {place}{what}", offending_line(text, within, &what)))
        })?;
        Ok(strategy)
    }

    /// The preset of that name.
    ///
    /// # Errors
    /// `InvalidArgument`, with all names, if there is none.
    pub fn named(name: &str) -> Result<Strategy> {
        // Each is parsed once: a store may have many keyspaces of one strategy.
        static PARSED: [OnceLock<Strategy>; PRESETS.len()] = [const { OnceLock::new() }; PRESETS.len()];
        match PRESETS.iter().position(|preset| preset.name == name) {
            Some(at) => match PARSED[at].get() {
                Some(strategy) => Ok(strategy.clone()),
                None => Strategy::parse(PRESETS[at].text).map(|strategy| PARSED[at].get_or_init(|| strategy).clone()),
            },
            None => {
                let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
                Err(Error::invalid(format!("no strategy is named {name:?}; there are {}", names.join(", "))))
            }
        }
    }

    /// What the option `strategy` of a keyspace means: the name of a preset, or the text of a strategy file.
    ///
    /// # Errors
    /// As [`named`](Self::named) and [`parse`](Self::parse).
    pub fn resolve(name_or_text: &str) -> Result<Strategy> {
        if name_or_text.contains(['\n', '=']) {
            Strategy::parse(name_or_text)
        } else {
            Strategy::named(name_or_text.trim())
        }
    }
}
