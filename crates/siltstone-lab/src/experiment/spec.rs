//! What an experiment's file says.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Deserializer};
use siltstone::Options;

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

/// An option that is varied.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// The option, with dots: `keyspace.size_ratio`; or `utilization`.
    pub option: String,
    /// Its values.
    pub values: Vec<toml::Value>,
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

fn parse_time(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let unit = match &text[digits..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(unit).map(Duration::from_secs)
}

fn some_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_time(&text)
        .ok_or_else(|| serde::de::Error::custom(format!("{text:?} is no time; write \"30s\", \"20m\" or \"2h\"")))
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    some_time(deserializer).map(Some)
}

impl Setup {
    /// This setup, with `other`'s where this one says nothing.
    #[must_use]
    pub fn over(&self, other: &Setup) -> Setup {
        let mut options = other.options.clone();
        overlay(&mut options, &self.options);
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

    /// Sets the option called `name`, with dots.
    pub(super) fn set(&mut self, name: &str, value: &toml::Value) {
        let mut table = &mut self.options;
        let mut rest = name;
        while let Some((folder, within)) = rest.split_once('.') {
            let inner = table.entry(folder).or_insert_with(|| toml::Table::new().into());
            let toml::Value::Table(inner) = inner else { return };
            (table, rest) = (inner, within);
        }
        table.insert(rest.to_owned(), value.clone());
    }

    /// The store's options, a `scale`th of the original's sizes.
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
        options.log.segment_bytes = (options.write_memory_bytes / 4).clamp(8 << 10, 16 << 20);
        options.log.max_bytes = 1 << 40;
        options.decision_records = 0;
        options.validate()?;
        Ok(options)
    }
}

/// Puts what `over` says into `under`, table by table.
fn overlay(under: &mut toml::Table, over: &toml::Table) {
    for (name, value) in over {
        match (under.get_mut(name), value) {
            (Some(toml::Value::Table(under)), toml::Value::Table(over)) => overlay(under, over),
            _ => {
                under.insert(name.clone(), value.clone());
            }
        }
    }
}

impl Experiment {
    pub(super) fn parse(text: &str, defaults: &Setup) -> anyhow::Result<Experiment> {
        let mut experiment: Experiment = toml::from_str(text)?;
        experiment.setup = experiment.setup.over(defaults);
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
                ensure!(run.of.is_none() && run.bursts.is_empty(), "run {name}: a closed loop takes no rate");
            }
            run.setup.over(&experiment.setup).store_options(1).with_context(|| format!("run {name}"))?;
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
    let Some((_, defaults, files)) = FILES.iter().find(|(known, ..)| *known == name) else {
        bail!("there is no study {name:?}: choose from {}", super::STUDIES.join(", "));
    };
    let defaults: Setup = toml::from_str(defaults).with_context(|| format!("experiments/{name}/study.toml"))?;
    let parse = |(file, text): &(&str, &str)| {
        Experiment::parse(text, &defaults).with_context(|| format!("experiments/{name}/{file}.toml"))
    };
    files.iter().map(parse).collect()
}

macro_rules! experiments {
    ($($study:literal: $($file:literal)*;)*) => {
        /// The studies: name, defaults, and its files.
        #[allow(clippy::type_complexity, reason = "a table of texts")]
        const FILES: &[(&str, &str, &[(&str, &str)])] = &[$((
            $study,
            include_str!(concat!("../../../../experiments/", $study, "/study.toml")),
            &[$(($file, include_str!(concat!("../../../../experiments/", $study, "/", $file, ".toml")))),*],
        )),*];
    };
}

experiments! {
    "luo19": "f07" "f08" "f09" "f10" "f12";
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
        assert_eq!(full.keyspace.memtable_bytes, 128 << 20);
        assert_eq!(small.keyspace.memtable_bytes, (128 << 20) / 100);
        assert_eq!(full.keyspace.size_ratio, small.keyspace.size_ratio);
    }

    #[test]
    fn wrong_files_are_refused_with_what_is_wrong() {
        let parse = |text: &str| Experiment::parse(text, &Setup::default()).unwrap_err();
        let head = "id = \"X\"\ntitle = \"\"\nsource = \"\"\n";
        let run = "[[run]]\nname = \"a\"\nload = \"open\"\nof = \"b\"\nutilization = 0.5\n";
        let claim = "[[claim]]\nid = \"X.a\"\nsays = \"\"\npaper = \"\"\nleft = \"a.w\"\nat_least = 1\n";
        assert!(format!("{:#}", parse(&format!("{head}{run}{claim}"))).contains("must name a closed run"));
        let closed = "[[run]]\nname = \"b\"\nload = \"closed\"\n";
        assert!(format!("{:#}", parse(&format!("{head}{closed}{claim}"))).contains("names no run"));
        assert!(format!("{:#}", parse(&format!("{head}{closed}utilisation = 0.5\n{claim}"))).contains("utilisation"));
    }
}
