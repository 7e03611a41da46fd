//! A results folder as a page (docs/design/0008-workloads-and-runs.md). Only the raw rows are read: any machine, any time.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::decisions::Compaction;
use super::machine::{self, Measured};
use super::pack::{Change, PackedTree, candidates_kept};
use super::page::{Page, Subject};
use super::windows::{PackedWindows, Window};
use crate::num::count;
use crate::recorder::{AddedFile, COMPACTIONS_FILE, TREE_FILE};
use crate::run::trial_name;

/// The format of results folders that is read.
const FORMAT: u64 = 1;

/// A page with more is drawn again with less of its trees' history.
const MOST_BYTES: usize = 5_000_000;

/// `run.json`.
#[derive(Deserialize)]
struct Question {
    #[serde(default)]
    name: String,
    strategies: Vec<StrategyText>,
    #[serde(default)]
    world: String,
    #[serde(default)]
    repeat: u64,
    #[serde(default)]
    generator_version: Value,
    #[serde(default)]
    siltstone_version: Value,
    #[serde(default)]
    commit: Value,
}

#[derive(Deserialize)]
struct StrategyText {
    name: String,
    #[serde(default)]
    text: String,
}

/// A line of `tree.jsonl`.
#[derive(Deserialize)]
struct TreeLine {
    at_s: f64,
    keyspace: String,
    removed: Vec<u64>,
    added: Vec<AddedFile>,
    cause: Option<u64>,
}

/// What a trial recorded of its trees, by keyspace.
#[derive(Default)]
struct Record {
    changes: BTreeMap<String, Vec<Change>>,
    compactions: BTreeMap<String, Vec<Compaction>>,
}

impl Record {
    fn compactions(&self) -> usize {
        self.compactions.values().map(Vec::len).sum()
    }
}

/// The page of a results folder, as HTML.
///
/// Of a run that was stopped, the page shows the trials that are there, and says so.
///
/// # Errors
/// If the folder holds no results, those of another format, or a line that is not what it should be: told with file and line.
pub fn run_page(folder: &Path) -> anyhow::Result<String> {
    ensure!(folder.is_dir(), "there is no folder {}", folder.display());
    let question = question(folder)?;
    let rows = rows(folder, &question)?;
    ensure!(!rows.is_empty(), "{} holds no finished trial yet", folder.display());
    let mut notes = Vec::new();
    let asked = count(question.strategies.len()) * question.repeat.max(1);
    if count(rows.len()) < asked {
        notes.push(format!("The run is not finished: {} of {asked} trials are there.", rows.len()));
    }
    let mut records = Vec::new();
    let mut subjects = Vec::new();
    for strategy in &question.strategies {
        let own: Vec<Value> = rows.iter().filter(|row| row["strategy"] == strategy.name[..]).cloned().collect();
        let Some(first) = own.first() else { continue };
        let trial = trial_folder(folder, &strategy.name, &first["repetition"]);
        let windows: Vec<Window> = lines(&trial.join("windows.jsonl"))?;
        records.push(record(&trial)?);
        subjects.push(Subject {
            name: strategy.name.clone(),
            text: (!strategy.text.is_empty()).then(|| strategy.text.clone()),
            rows: own,
            windows: (!windows.is_empty()).then(|| PackedWindows::new(&windows)),
            trees: Vec::new(),
        });
    }
    if question.repeat > 1 {
        notes.push(
            "Time series and trees are those of the first repetition; figures are medians, with their spread."
                .to_owned(),
        );
    }
    let machines = machines(folder, &rows, &mut notes)?;
    let title = if question.name.is_empty() {
        "Siltstone: results".to_owned()
    } else {
        format!("Siltstone: {}", question.name)
    };
    let mut page = Page { kind: "run", title, facts: facts(&question, &rows), subjects, notes, machines };
    let most_changes = records.iter().flat_map(|record| record.changes.values()).map(Vec::len).max().unwrap_or(0);
    let mut at_once = 1;
    loop {
        let left_out = draw_trees(&mut page, &records, at_once)?;
        if left_out > 0 {
            page.notes.push(format!(
                "To keep the page small, up to {at_once} successive changes of a tree are shown as one, with the largest of the flushes and \
                 compactions that made it; {left_out} smaller ones are left out here and stand in `{COMPACTIONS_FILE}`."
            ));
        }
        let html = page.render();
        if html.len() < MOST_BYTES || at_once >= most_changes {
            return Ok(html);
        }
        page.notes.truncate(page.notes.len() - usize::from(left_out > 0));
        at_once *= 2;
    }
}

/// Puts the trees in, with up to `at_once` changes taken as one; how many flushes and compactions that leaves out.
fn draw_trees(page: &mut Page, records: &[Record], at_once: usize) -> anyhow::Result<usize> {
    let total: usize = records.iter().map(Record::compactions).sum();
    let candidates = candidates_kept(total / at_once);
    let mut left_out = 0;
    for (subject, record) in page.subjects.iter_mut().zip(records) {
        subject.trees.clear();
        for (keyspace, changes) in &record.changes {
            let compactions = record.compactions.get(keyspace).map_or(&[][..], Vec::as_slice);
            let packed = PackedTree::new(keyspace, changes, compactions, candidates, at_once)
                .with_context(|| format!("{TREE_FILE} of {}, keyspace {keyspace}", subject.name))?;
            left_out += packed.left_out();
            subject.trees.push(packed);
        }
    }
    Ok(left_out)
}

/// The folder of a trial.
fn trial_folder(folder: &Path, strategy: &str, repetition: &dyn Display) -> PathBuf {
    folder.join("trials").join(trial_name(strategy, repetition))
}

/// Where the trials of `rows` were made.
fn machines(folder: &Path, rows: &[Value], notes: &mut Vec<String>) -> anyhow::Result<Vec<Measured>> {
    if rows.len() > machine::MOST {
        notes.push(format!("Of {} trials the machine is told for the first {}.", rows.len(), machine::MOST));
    }
    let mut machines = Vec::new();
    for row in rows.iter().take(machine::MOST) {
        let strategy = row["strategy"].as_str().unwrap_or_default();
        machines.extend(machine::measured(&trial_folder(folder, strategy, &row["repetition"]))?);
    }
    Ok(machines)
}

fn question(folder: &Path) -> anyhow::Result<Question> {
    let path = folder.join("run.json");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("{} holds no results: cannot read {}", folder.display(), path.display()))?;
    let value: Value = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    check_format(&value).with_context(|| path.display().to_string())?;
    serde_json::from_value(value).with_context(|| path.display().to_string())
}

fn check_format(value: &Value) -> anyhow::Result<()> {
    match value["format"].as_u64() {
        Some(FORMAT) => Ok(()),
        Some(other) => anyhow::bail!("results of format {other}; this siltstone reads format {FORMAT}"),
        None => anyhow::bail!("no format is named; this siltstone reads format {FORMAT}"),
    }
}

/// The rows, ordered by strategy, then repetition.
fn rows(folder: &Path, question: &Question) -> anyhow::Result<Vec<Value>> {
    let path = folder.join("rows.jsonl");
    let rows = if path.exists() { lines(&path)? } else { trial_rows(folder, question)? };
    rows.iter().try_for_each(check_format).with_context(|| path.display().to_string())?;
    Ok(rows)
}

/// The rows of the trials that are there.
fn trial_rows(folder: &Path, question: &Question) -> anyhow::Result<Vec<Value>> {
    let mut rows = Vec::new();
    for strategy in &question.strategies {
        for repetition in 1..=question.repeat.max(1) {
            let path = trial_folder(folder, &strategy.name, &repetition).join("row.json");
            match std::fs::read_to_string(&path) {
                Ok(text) => rows.push(serde_json::from_str(&text).with_context(|| path.display().to_string())?),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error).with_context(|| path.display().to_string()),
            }
        }
    }
    Ok(rows)
}

fn record(trial: &Path) -> anyhow::Result<Record> {
    let mut record = Record::default();
    for line in lines::<TreeLine>(&trial.join(TREE_FILE))? {
        let TreeLine { at_s, keyspace, removed, added, cause } = line;
        record.changes.entry(keyspace).or_default().push(Change { at_s, removed, added, cause });
    }
    for line in lines::<Compaction>(&trial.join(COMPACTIONS_FILE))? {
        record.compactions.entry(line.keyspace.clone()).or_default().push(line);
    }
    Ok(record)
}

/// The lines of a file, none if it is not there.
fn lines<T: DeserializeOwned>(path: &Path) -> anyhow::Result<Vec<T>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    let mut parsed = Vec::new();
    let mut text = String::new();
    let mut reader = BufReader::with_capacity(256 << 10, file);
    for n in 1.. {
        text.clear();
        let read = reader.read_line(&mut text).with_context(|| format!("{}:{n}", path.display()))?;
        if read == 0 {
            break;
        }
        if !text.trim().is_empty() {
            parsed.push(serde_json::from_str(&text).with_context(|| format!("{}:{n}", path.display()))?);
        }
    }
    Ok(parsed)
}

fn facts(question: &Question, rows: &[Value]) -> Vec<(String, String)> {
    let seed = rows.first().map_or(Value::Null, |row| row["seed"].clone());
    let world = match &question.world[..] {
        "sim" => "simulated: virtual time, the same on every run".to_owned(),
        "disk" => "disk: real time on one machine".to_owned(),
        other => other.to_owned(),
    };
    let facts = [
        ("Workload", Value::from(question.name.clone())),
        ("World", Value::from(world)),
        ("Repetitions", Value::from(question.repeat.max(1))),
        ("Seed", seed),
        ("Generator", question.generator_version.clone()),
        ("Siltstone", question.siltstone_version.clone()),
        (
            "Commit",
            question.commit.as_str().map_or(Value::Null, |commit| commit.chars().take(12).collect::<String>().into()),
        ),
    ];
    let shown = |value: Value| match value {
        Value::String(text) => text,
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let facts = facts.map(|(name, value)| (name.to_owned(), shown(value)));
    facts.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}
