//! What is asked: a question of many trials, and the task of one.
//!
//! Both are whole: a task can be carried to another machine and done there, and a question asked again years later. Both say which generator,
//! which version of Siltstone and which commit they were asked of, since another one may answer otherwise.

use std::collections::BTreeSet;
use std::fmt::Display;

use anyhow::{Context, bail, ensure};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use siltstone::Options;
use siltstone::io::sim::Device;

use crate::load::SimWorld;
use crate::num::count;
use crate::strategy::Chosen;
use crate::workload::{GENERATOR_VERSION, Spec};

/// The format of results folders that is written and read here.
pub const FORMAT: u32 = 1;

/// Where trials run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Real files, real time.
    Disk,
    /// A simulated disk in virtual time.
    Sim,
}

impl Place {
    /// As files spell it.
    pub fn name(self) -> &'static str {
        match self {
            Place::Disk => "disk",
            Place::Sim => "sim",
        }
    }
}

/// The disk of a simulated world, and what an operation costs beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SimDevice {
    /// Bytes a second, read or written; 0 for no limit.
    pub bandwidth_bytes_per_s: u64,
    /// Calls a second; 0 for no limit.
    pub iops: u64,
    /// Nanoseconds before each call's first byte.
    pub latency_ns: u64,
    /// Nanoseconds that a sync takes.
    pub sync_ns: u64,
    /// Only what flushes and merges write is charged (luo19 section 3.1).
    pub background_writes_only: bool,
    /// Nanoseconds that an operation costs its client, beyond what it waits for; from 1 to a second's.
    #[serde(deserialize_with = "some_time")]
    pub operation_ns: u64,
}

/// A get from memory would take no virtual time, and a phase of such gets never end.
fn some_time<'de, D: Deserializer<'de>>(ns: D) -> Result<u64, D::Error> {
    let ns = u64::deserialize(ns)?;
    if (1..=1_000_000_000).contains(&ns) {
        return Ok(ns);
    }
    Err(D::Error::custom(format!("operation_ns: found {ns}, expected 1 to 1000000000")))
}

impl Default for SimDevice {
    /// About a solid-state disk on the SATA bus: 500 MB a second, 80 microseconds to the first byte.
    fn default() -> SimDevice {
        SimDevice {
            bandwidth_bytes_per_s: 500_000_000,
            iops: 0,
            latency_ns: 80_000,
            sync_ns: 500_000,
            background_writes_only: false,
            operation_ns: SimWorld::OPERATION_NS,
        }
    }
}

impl SimDevice {
    /// A world with this disk.
    pub(super) fn world(&self, seed: u64) -> SimWorld {
        let SimDevice { bandwidth_bytes_per_s, iops, latency_ns, sync_ns, background_writes_only, operation_ns } =
            *self;
        let device = Device { bandwidth_bytes_per_s, iops, latency_ns, sync_ns, background_writes_only };
        SimWorld::new(device, operation_ns, seed)
    }
}

/// A strategy and what it is made of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// What the option `strategy` of a keyspace becomes: the name of a preset, or the text of a file.
    pub text: String,
}

impl From<&Chosen> for Named {
    fn from(chosen: &Chosen) -> Named {
        Named { name: chosen.name.clone(), text: chosen.option.clone() }
    }
}

/// What `siltstone run` was asked: `run.json`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// [`FORMAT`].
    pub format: u32,
    /// Of the workload.
    pub name: String,
    /// The workload, as TOML.
    pub spec: String,
    /// The strategies, in the order of the rows.
    pub strategies: Vec<Named>,
    /// Where.
    pub world: Place,
    /// Repetitions of each strategy, each with a seed of its own.
    pub repeat: u32,
    /// Options of every store, as TOML; the strategy is put in.
    pub options: String,
    /// The disk, where it is simulated.
    pub device: Option<SimDevice>,
    /// Of the generator.
    pub generator_version: u32,
    /// Of Siltstone.
    pub siltstone_version: String,
    /// The commit that it was built from, empty where that is not known.
    pub commit: String,
}

/// What `siltstone trial` is given: `trial.json`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// [`FORMAT`].
    pub format: u32,
    /// The workload, as TOML.
    pub spec: String,
    /// The strategy.
    pub strategy: Named,
    /// Where.
    pub world: Place,
    /// From 1.
    pub repetition: u32,
    /// Decides every random choice; takes the place of the workload's.
    pub seed: u64,
    /// Options of the store, as TOML; the strategy is put in.
    pub options: String,
    /// The disk, where it is simulated.
    pub device: Option<SimDevice>,
    /// Of the generator.
    pub generator_version: u32,
    /// Of Siltstone.
    pub siltstone_version: String,
    /// The commit that it was built from, empty where that is not known.
    pub commit: String,
}

impl Question {
    /// A question about `spec`.
    ///
    /// # Errors
    /// Without strategies, with two of one name, or with no repetition.
    pub fn new(
        spec: &Spec,
        strategies: &[Chosen],
        world: Place,
        repeat: u32,
        options: &Options,
        device: SimDevice,
        commit: &str,
    ) -> anyhow::Result<Question> {
        ensure!(!strategies.is_empty(), "a run needs a strategy");
        ensure!(repeat > 0, "a run needs a repetition: expected a number from 1");
        let mut names = BTreeSet::new();
        for Chosen { name, .. } in strategies {
            ensure!(names.insert(folder_name(name)), "strategy {name:?} is named twice");
        }
        Ok(Question {
            format: FORMAT,
            name: spec.name.clone(),
            spec: spec.text().to_owned(),
            strategies: strategies.iter().map(Named::from).collect(),
            world,
            repeat,
            options: options.to_text(),
            device: (world == Place::Sim).then_some(device),
            generator_version: GENERATOR_VERSION,
            siltstone_version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: commit.to_owned(),
        })
    }

    /// A question from a file's text.
    ///
    /// # Errors
    /// If it is of another format, with both numbers; if it is none.
    pub fn parse(text: &str) -> anyhow::Result<Question> {
        parse(text)
    }

    /// The trials, in the order of the rows: by strategy, then repetition.
    ///
    /// # Errors
    /// If the workload is broken.
    pub fn tasks(&self) -> anyhow::Result<Vec<Task>> {
        let seed = Spec::parse(&self.spec, &self.name)?.seed;
        let task = |strategy: &Named, repetition: u32| Task {
            format: self.format,
            spec: self.spec.clone(),
            strategy: strategy.clone(),
            world: self.world,
            repetition,
            seed: seed + u64::from(repetition - 1),
            options: self.options.clone(),
            device: self.device,
            generator_version: self.generator_version,
            siltstone_version: self.siltstone_version.clone(),
            commit: self.commit.clone(),
        };
        let each = |strategy| (1..=self.repeat).map(move |repetition| task(strategy, repetition));
        Ok(self.strategies.iter().flat_map(each).collect())
    }

    /// What of `other` is not the same, one line each; empty if they ask the same.
    pub fn differences(&self, other: &Question) -> Vec<String> {
        let names = |question: &Question| -> String {
            question.strategies.iter().map(|strategy| &strategy.name[..]).collect::<Vec<_>>().join(",")
        };
        let mut found = Vec::new();
        let mut note = |what: &str, mine: &dyn ToString, theirs: &dyn ToString| {
            let (mine, theirs) = (mine.to_string(), theirs.to_string());
            if mine != theirs {
                found.push(format!("{what}: {}", first_difference(&mine, &theirs)));
            }
        };
        note("workload", &self.name, &other.name);
        note("spec", &self.spec, &other.spec);
        note("strategies", &names(self), &names(other));
        for (mine, theirs) in self.strategies.iter().zip(&other.strategies).filter(|(a, b)| a.name == b.name) {
            note(&format!("strategy {}", mine.name), &mine.text, &theirs.text);
        }
        note("world", &self.world.name(), &other.world.name());
        note("repeat", &self.repeat, &other.repeat);
        note("options", &self.options, &other.options);
        let device = |question: &Question| question.device.as_ref().map(toml::to_string).transpose();
        note("device", &shown(device(self)), &shown(device(other)));
        note("generator_version", &self.generator_version, &other.generator_version);
        note("siltstone_version", &self.siltstone_version, &other.siltstone_version);
        note("commit", &self.commit, &other.commit);
        found
    }
}

/// A device as text; none on disk.
fn shown(device: Result<Option<String>, toml::ser::Error>) -> String {
    device.ok().flatten().unwrap_or_default()
}

/// The first lines that differ, as `theirs, asked is mine`.
fn first_difference(mine: &str, theirs: &str) -> String {
    let (mut here, mut there) = (mine.lines(), theirs.lines());
    loop {
        match (here.next(), there.next()) {
            (a, b) if a == b && a.is_some() => {}
            (a, b) => {
                let shown = |line: Option<&str>| match line.map(str::trim) {
                    None | Some("") => "nothing".to_owned(),
                    Some(line) => format!("{line:?}"),
                };
                return format!("the folder has {}, asked is {}", shown(b), shown(a));
            }
        }
    }
}

impl Task {
    /// A task from a file's text.
    ///
    /// # Errors
    /// If it is of another format, with both numbers; if it is none.
    pub fn parse(text: &str) -> anyhow::Result<Task> {
        let task: Task = parse(text)?;
        ensure!(task.repetition > 0, "repetition: found 0, expected a number from 1");
        ensure!(
            task.device.is_some() == (task.world == Place::Sim),
            "device: the world `sim` needs one, the world `disk` has its own"
        );
        Ok(task)
    }

    /// Checks that this build, made from `commit`, is the one that the task is for: its figures would stand under another one's name.
    ///
    /// # Errors
    /// If the generator, the version or the commit is another, with both.
    pub fn check_build(&self, commit: &str) -> anyhow::Result<()> {
        let there = self.generator_version;
        ensure!(
            there == GENERATOR_VERSION,
            "the task is for the generator version {there}, this siltstone has {GENERATOR_VERSION}: the operations would be others"
        );
        let version = env!("CARGO_PKG_VERSION");
        ensure!(
            self.siltstone_version == version,
            "the task is for siltstone {}, this is {version}: use that one, or begin the run anew",
            self.siltstone_version
        );
        ensure!(
            self.commit == commit,
            "the task is for siltstone of commit {:?}, this is of {commit:?}: use that one, or begin the run anew",
            self.commit
        );
        Ok(())
    }

    /// Its folder's name: `STRATEGY-REPETITION`.
    pub fn name(&self) -> String {
        trial_name(&self.strategy.name, &self.repetition)
    }

    /// The workload with the task's seed.
    ///
    /// # Errors
    /// If it is broken.
    pub fn spec(&self) -> anyhow::Result<Spec> {
        let mut spec = Spec::parse(&self.spec, "the task's spec")?;
        spec.seed = self.seed;
        Ok(spec)
    }

    /// The options with the task's strategy.
    ///
    /// # Errors
    /// If they, or the strategy, are broken.
    pub fn options(&self) -> anyhow::Result<Options> {
        let mut options = Options::from_text(&self.options).context("the task's options")?;
        options.keyspace.strategy.clone_from(&self.strategy.text);
        options.create_if_missing = true;
        options.validate().with_context(|| format!("strategy {}", self.strategy.name))?;
        Ok(options)
    }
}

/// What the folder of a trial is called.
pub(crate) fn trial_name(strategy: &str, repetition: &dyn Display) -> String {
    format!("{}-{repetition}", folder_name(strategy))
}

/// A name of letters, digits, `.`, `_` and `-`, which every file system takes.
fn folder_name(name: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let name: String = name.chars().map(kept).collect();
    // A leading dot is for what is not finished.
    name.trim_start_matches('.').to_owned()
}

fn parse<T: DeserializeOwned>(text: &str) -> anyhow::Result<T> {
    let value: serde_json::Value = serde_json::from_str(text)?;
    check_format(&value)?;
    // From the text again: errors then tell the line.
    Ok(serde_json::from_str(text)?)
}

/// Refuses another format, before anything else of it is looked at.
pub(super) fn check_format(value: &serde_json::Value) -> anyhow::Result<()> {
    match value.get("format").and_then(serde_json::Value::as_u64) {
        Some(format) if format == u64::from(FORMAT) => Ok(()),
        Some(format) => bail!("the results format is {format}, this siltstone reads and writes {FORMAT}"),
        None => bail!("there is no `format`: this is no part of a results folder"),
    }
}

/// How many trials a question has.
pub fn trials(question: &Question) -> u64 {
    count(question.strategies.len()) * u64::from(question.repeat)
}
