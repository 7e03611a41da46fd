//! What an experiment's file says.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Deserializer};
use siltstone::Options;
use siltstone::options::parse_time;
use siltstone::schedule::WriteControl;

use crate::setting;

/// A figure, a table or a theorem of a study.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Its number here: `F8`.
    pub id: String,
    /// What it is about.
    pub title: String,
    /// Where it stands in the original: `figure 8`.
    pub source: String,
    /// What all runs have in common, over the study's defaults.
    #[serde(default)]
    pub setup: Setup,
    /// All runs are made once for each of these values.
    pub sweep: Option<Sweep>,
    /// The runs.
    #[serde(rename = "run")]
    pub runs: Vec<RunSpec>,
    /// The claims.
    #[serde(rename = "claim")]
    pub claims: Vec<Claim>,
}

/// Sizes of the original; what is left out is the study's.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// Keys, all of which are loaded before a run.
    pub records: Option<u64>,
    /// Bytes of a value.
    pub value_bytes: Option<u32>,
    /// What flushes and merges may write a second.
    pub bandwidth_bytes_per_s: Option<u64>,
    /// How long a run takes, in virtual time, warm-up included.
    #[serde(default, deserialize_with = "time")]
    pub run: Option<Duration>,
    /// What of it is not counted.
    #[serde(default, deserialize_with = "time")]
    pub warm_up: Option<Duration>,
    /// Throughput is told for each such time.
    #[serde(default, deserialize_with = "time")]
    pub window: Option<Duration>,
    /// Skew of the updates; 0 for uniform ones.
    pub zipf: Option<f64>,
    /// Options of the store.
    #[serde(default)]
    pub options: toml::Table,
}

/// What a setup says of every run, all of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) records: u64,
    pub(super) value_bytes: u32,
    pub(super) bandwidth_bytes_per_s: u64,
    pub(super) run_ns: u64,
    pub(super) warm_up_ns: u64,
    pub(super) window_ns: u64,
}

/// An option that is varied.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// The option, with dots: `keyspace.size_ratio`; or `utilization`.
    pub option: String,
    /// Its values.
    pub values: Vec<toml::Value>,
    /// How long a run takes with each of them, where they need different times to show what they do; none: all the same.
    #[serde(default, deserialize_with = "times")]
    pub run: Vec<Duration>,
}

/// A run of an experiment.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// What claims call it.
    pub name: String,
    /// Closed or open loop.
    pub load: LoadKind,
    /// For an open loop: the closed run whose rate is taken.
    pub of: Option<String>,
    /// The share of that rate.
    pub utilization: Option<f64>,
    /// Bursts instead of a steady rate: shares of that rate, each for a time, in turns.
    #[serde(default)]
    pub bursts: Vec<Burst>,
    /// The store takes no more than this share of that rate at any time (`write_control = "limit"`).
    pub limit: Option<f64>,
    /// At the end of every window the store is asked, too: points, short and long ranges. The disk of the runs charges no reads, so the writes
    /// are the same with and without.
    #[serde(default)]
    pub queries: bool,
    /// What is different from the experiment's setup.
    #[serde(default)]
    pub setup: Setup,
}

/// A stretch of an uneven load.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Burst {
    /// The share of the measured rate.
    pub utilization: f64,
    /// For how long.
    #[serde(rename = "for", deserialize_with = "some_time")]
    pub time: Duration,
}

/// Who decides when the next write starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadKind {
    /// The store.
    Closed,
    /// The clock.
    Open,
}

/// A statement of the study as a comparison of two measures, or a measure with a number.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Its number: `F8.a`.
    pub id: String,
    /// In words.
    pub says: String,
    /// What the original measured.
    pub paper: String,
    /// `run.measure`.
    pub left: String,
    /// `run.measure`, by which the left one is divided; without it the left one itself is compared.
    pub over: Option<String>,
    /// The least that the quotient may be.
    pub at_least: Option<f64>,
    /// The most that it may be.
    pub at_most: Option<f64>,
    /// Over a sweep: the quotient must rise or fall with the swept values, within 5 %.
    pub trend: Option<Trend>,
    /// Over a sweep: what is made of the values before they are compared.
    pub across: Option<Across>,
    /// Over a sweep: must every value hold (default), or is one enough?
    #[serde(default)]
    pub some: bool,
    /// Why it comes out as it does here, if it does not hold.
    pub diagnosis: Option<String>,
}

/// A direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trend {
    /// Up.
    Rising,
    /// Down.
    Falling,
}

/// One number of the values of a sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Across {
    /// The largest by the smallest.
    Spread,
    /// The last by the first.
    Ends,
}

fn a_time(text: &str) -> Result<Duration, String> {
    parse_time(text).ok_or_else(|| format!("{text:?} is no time; write \"30s\", \"20m\" or \"2h\""))
}

fn some_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    a_time(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    some_time(deserializer).map(Some)
}

fn times<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Duration>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| a_time(text)).collect::<Result<_, _>>().map_err(serde::de::Error::custom)
}

impl Setup {
    /// This setup, with `other`'s where this one says nothing.
    #[must_use]
    pub fn over(&self, other: &Setup) -> Setup {
        let mut options = other.options.clone();
        setting::overlay(&mut options, &self.options);
        Setup {
            records: self.records.or(other.records),
            value_bytes: self.value_bytes.or(other.value_bytes),
            bandwidth_bytes_per_s: self.bandwidth_bytes_per_s.or(other.bandwidth_bytes_per_s),
            run: self.run.or(other.run),
            warm_up: self.warm_up.or(other.warm_up),
            window: self.window.or(other.window),
            zipf: self.zipf.or(other.zipf),
            options,
        }
    }

    /// What every run needs.
    ///
    /// # Errors
    /// What is missing.
    pub(super) fn sizes(&self) -> anyhow::Result<Sizes> {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Ok(Sizes {
            records: self.records.context("`records` is missing")?,
            value_bytes: self.value_bytes.context("`value_bytes` is missing")?,
            bandwidth_bytes_per_s: self.bandwidth_bytes_per_s.context("`bandwidth_bytes_per_s` is missing")?,
            run_ns: self.run.map(ns).context("`run` is missing")?,
            warm_up_ns: self.warm_up.map(ns).context("`warm_up` is missing")?,
            window_ns: self.window.map(ns).context("`window` is missing")?,
        })
    }

    /// The store's options, a `scale`th of the original's sizes, with files and levels that have room for what [tables have
    /// too much](table_excess).
    ///
    /// # Errors
    /// If they are none.
    pub fn store_options(&self, scale: u64) -> anyhow::Result<Options> {
        let mut options = Options::from_text(&self.options.to_string())?;
        let keyspace = &mut options.keyspace;
        for size in [
            &mut keyspace.memtable_bytes,
            &mut keyspace.file_bytes,
            &mut keyspace.level1_bytes,
            &mut options.write_memory_bytes,
            &mut options.force_every_bytes,
        ] {
            *size = if *size == 0 { 0 } else { (*size / scale).max(4 << 10) };
        }
        keyspace.file_bytes += table_excess(scale);
        keyspace.level1_bytes = with_excess(keyspace.level1_bytes, keyspace.file_bytes, scale);
        let rate = |rate: &mut u64| *rate = (*rate / scale).max(1);
        match &mut options.keyspace.write_control {
            WriteControl::Limit(limit) => rate(&mut limit.rate_bytes_per_s),
            WriteControl::Delay(delay) => {
                rate(&mut delay.free_bytes_per_s);
                rate(&mut delay.least_bytes_per_s);
            }
            _ => {}
        }
        options.log.segment_bytes = (options.write_memory_bytes / 4).clamp(8 << 10, 16 << 20);
        options.log.max_bytes = 1 << 40;
        options.decision_records = 0;
        options.validate()?;
        Ok(options)
    }
}

/// What a table has whatever its size: footer, properties, frames of blocks, a filter's last line.
const TABLE_BYTES: u64 = 300;

/// What a table has more of that at a scale than a `scale`th.
///
/// Nothing else of a tree keeps its size. In files of 8 KB it would be 3.6 %: as much more for the disk to write, and as many fewer records in
/// a level; in files of 80 KB a tenth of that.
fn table_excess(scale: u64) -> u64 {
    TABLE_BYTES - TABLE_BYTES / scale
}

/// What `bytes` of tables are with what these have too much, which the `file_bytes` of each contain.
pub(super) fn with_excess(bytes: u64, file_bytes: u64, scale: u64) -> u64 {
    bytes * file_bytes / file_bytes.saturating_sub(table_excess(scale)).max(1)
}

impl Experiment {
    pub(super) fn parse(text: &str, defaults: &Setup) -> anyhow::Result<Experiment> {
        let mut experiment: Experiment = toml::from_str(text)?;
        experiment.setup = experiment.setup.over(defaults);
        if let Some(Sweep { values, run, .. }) = &experiment.sweep {
            let (runs, values) = (run.len(), values.len());
            ensure!(runs == 0 || runs == values, "sweep: `run` has {runs} times for {values} values");
        }
        let closed: Vec<&str> =
            experiment.runs.iter().filter(|run| run.load == LoadKind::Closed).map(|run| &run.name[..]).collect();
        for run in &experiment.runs {
            let name = &run.name;
            if run.load == LoadKind::Open {
                let of = run.of.as_deref().unwrap_or_default();
                ensure!(closed.contains(&of), "run {name}: `of` must name a closed run, one of {}", closed.join(", "));
                let swept = experiment.sweep.as_ref().is_some_and(|sweep| sweep.option == "utilization");
                let rates =
                    usize::from(run.utilization.is_some()) + usize::from(!run.bursts.is_empty()) + usize::from(swept);
                ensure!(rates == 1, "run {name}: an open loop needs either `utilization` or `bursts`");
            } else {
                let rates = run.of.is_some() || run.limit.is_some() || !run.bursts.is_empty();
                ensure!(!rates, "run {name}: a closed loop takes no rate");
            }
            let setup = run.setup.over(&experiment.setup);
            setup.store_options(1).and_then(|_| setup.sizes()).with_context(|| format!("run {name}"))?;
        }
        for claim in &experiment.claims {
            for measure in [Some(&claim.left), claim.over.as_ref()].into_iter().flatten() {
                let run = measure.split_once('.').map(|(run, _)| run).unwrap_or_default();
                if !experiment.runs.iter().any(|known| known.name == run) {
                    bail!("claim {}: {measure:?} names no run", claim.id);
                }
            }
            let bounds = claim.at_least.is_some() || claim.at_most.is_some() || claim.trend.is_some();
            ensure!(bounds, "claim {}: `at_least`, `at_most` or `trend` is missing", claim.id);
        }
        Ok(experiment)
    }
}

/// The experiments of a study, in the order of its figures.
///
/// # Errors
/// For a study that is not built in.
pub fn study(name: &str) -> anyhow::Result<Vec<Experiment>> {
    let Some(Study { defaults, files, .. }) = FILES.iter().find(|study| study.name == name) else {
        bail!("there is no study {name:?}: choose from {}", super::STUDIES.join(", "));
    };
    let defaults: Setup = toml::from_str(defaults).with_context(|| format!("experiments/{name}/study.toml"))?;
    let parse = |(file, text): &(&str, &str)| {
        Experiment::parse(text, &defaults).with_context(|| format!("experiments/{name}/{file}.toml"))
    };
    files.iter().map(parse).collect()
}

/// A study that is built in.
struct Study {
    name: &'static str,
    /// What its experiments have in common.
    defaults: &'static str,
    /// The experiments: names of files, and their texts.
    files: &'static [(&'static str, &'static str)],
}

macro_rules! experiments {
    ($($study:literal: $($file:literal)*;)*) => {
        const FILES: &[Study] = &[$(Study {
            name: $study,
            defaults: include_str!(concat!("../../../../experiments/", $study, "/study.toml")),
            files: &[$(($file, include_str!(concat!("../../../../experiments/", $study, "/", $file, ".toml")))),*],
        }),*];
    };
}

experiments! {
    "luo19": "f01" "f06" "table1" "tolerance" "f07" "f08" "f09" "f10" "f11" "f12" "f13" "f14" "f15" "f18";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_study_parses_and_its_claims_have_runs() {
        for name in super::super::STUDIES {
            let experiments = study(name).unwrap();
            let mut ids: Vec<&str> =
                experiments.iter().flat_map(|e| e.claims.iter().map(|claim| &claim.id[..])).collect();
            assert!(ids.len() > 5);
            ids.sort_unstable();
            assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "{ids:?}");
        }
        assert!(study("luo20").unwrap_err().to_string().contains("luo19"));
    }

    #[test]
    fn a_scale_divides_what_it_should() {
        let experiment = &study("luo19").unwrap()[0];
        let setup = experiment.runs[0].setup.over(&experiment.setup);
        let (full, small) = (setup.store_options(1).unwrap(), setup.store_options(100).unwrap());
        assert_eq!(full.keyspace.memtable_bytes, 13_421_773);
        assert_eq!(small.keyspace.memtable_bytes, 134_217);
        assert_eq!(full.keyspace.size_ratio, small.keyspace.size_ratio);
    }

    #[test]
    fn files_and_levels_have_room_for_what_tables_have_too_much() {
        let experiment = &study("luo19").unwrap().into_iter().find(|experiment| experiment.id == "F15").unwrap();
        let setup = experiment.runs[0].setup.over(&experiment.setup);
        let [full, small] = [1, 100].map(|scale| setup.store_options(scale).unwrap().keyspace);
        assert_eq!((full.file_bytes, full.level1_bytes), (6_710_886, 134_217_728));
        assert_eq!(small.file_bytes, 67_108 + 297);
        let files = |keyspace: &siltstone::KeyspaceOptions| keyspace.level1_bytes / keyspace.file_bytes;
        assert_eq!(files(&full), 20);
        assert_eq!(files(&small), files(&full));
        assert_eq!(with_excess(10_000_000, full.file_bytes, 1), 10_000_000);
    }

    #[test]
    fn wrong_files_are_refused_with_what_is_wrong() {
        let defaults = Setup {
            records: Some(1000),
            value_bytes: Some(10),
            bandwidth_bytes_per_s: Some(1000),
            run: Some(Duration::from_secs(60)),
            warm_up: Some(Duration::from_secs(6)),
            window: Some(Duration::from_secs(1)),
            ..Setup::default()
        };
        let parse = |text: &str| Experiment::parse(text, &defaults).unwrap_err();
        let head = "id = \"X\"\ntitle = \"\"\nsource = \"\"\n";
        let run = "[[run]]\nname = \"a\"\nload = \"open\"\nof = \"b\"\nutilization = 0.5\n";
        let claim = "[[claim]]\nid = \"X.a\"\nsays = \"\"\npaper = \"\"\nleft = \"a.w\"\nat_least = 1\n";
        assert!(format!("{:#}", parse(&format!("{head}{run}{claim}"))).contains("must name a closed run"));
        let closed = "[[run]]\nname = \"b\"\nload = \"closed\"\n";
        assert!(format!("{:#}", parse(&format!("{head}{closed}{claim}"))).contains("names no run"));
        assert!(format!("{:#}", parse(&format!("{head}{closed}utilisation = 0.5\n{claim}"))).contains("utilisation"));
        let sweep = "[sweep]\noption = \"utilization\"\nvalues = [0.5, 0.9]\nrun = [\"2h\"]\n";
        assert!(format!("{:#}", parse(&format!("{head}{sweep}{closed}{claim}"))).contains("1 times for 2 values"));
        let nothing = Experiment::parse(&format!("{head}{closed}{claim}"), &Setup::default()).unwrap_err();
        assert!(format!("{nothing:#}").contains("run b: `records` is missing"), "{nothing:#}");
    }
}
