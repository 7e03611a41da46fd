//! `strategies`

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use siltstone::compaction::strategy::{self, Strategy, count_ensembles};

use crate::output::{print, print_json};

/// List the compaction strategies that are built in, or print one.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone strategies
  siltstone strategies leveling > mine.toml      a start for one of your own
  siltstone put shop apple red --set keyspace.strategy=tiering
  siltstone strategies --count

--count prints how many different strategies can be written: every layout, with a rule for its tiered levels (trigger \
sorted-runs, a granularity) and one or two rules for its leveled ones (triggers in order of importance, one \
granularity, one or two movements in order). Each is put together and validated; parameters do not count.")]
pub(crate) struct Strategies {
    /// Print the file of this strategy
    name: Option<String>,
    /// Print the number of different valid ensembles of layout, triggers, granularity and movement
    #[arg(long, conflicts_with = "name")]
    count: bool,
    /// Print the list, or the count with what is combined, as JSON
    #[arg(long, conflicts_with = "name")]
    json: bool,
}

/// A strategy in one line.
#[derive(Serialize)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) layout: String,
    pub(super) triggers: Vec<String>,
    pub(super) granularity: Vec<String>,
    pub(super) movement: Vec<String>,
    pub(super) size_ratio: u32,
    pub(super) source: String,
    pub(super) leaves_out: String,
}

impl Strategies {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        if let Some(name) = &self.name {
            print(find(name)?.text)?;
            return Ok(ExitCode::SUCCESS);
        }
        if self.count {
            let ensembles = count_ensembles();
            if self.json {
                print_json(&ensembles)?
            } else {
                print(&format!("{}\n", ensembles.valid))?
            }
            return Ok(ExitCode::SUCCESS);
        }
        let lines = strategy::strategies().iter().map(|preset| Line::of(preset.text));
        let lines = lines.collect::<anyhow::Result<Vec<_>>>()?;
        if self.json {
            print_json(&lines)?
        } else {
            print(&text(&lines))?
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The built-in strategy called `name`.
fn find(name: &str) -> anyhow::Result<&'static strategy::Preset> {
    let names = || strategy::strategies().iter().map(|preset| preset.name).collect::<Vec<_>>().join(", ");
    strategy::strategies()
        .iter()
        .find(|preset| preset.name == name)
        .ok_or_else(|| anyhow::anyhow!("there is no strategy {name:?}: choose one of {}", names()))
}

impl Line {
    /// What the option `strategy` of a keyspace says: a preset's name, or a file's text.
    pub(super) fn of_option(option: &str) -> anyhow::Result<Line> {
        let preset = strategy::strategies().iter().find(|preset| preset.name == option);
        Line::of(preset.map_or(option, |preset| preset.text))
    }

    /// What a strategy file says. The words of the file are shown, so a new option needs nothing here.
    pub(super) fn of(text: &str) -> anyhow::Result<Line> {
        let Strategy { name, size_ratio, source, leaves_out, .. } = Strategy::parse(text)?;
        let table: toml::Table = text.parse()?;
        let rules = || table.get("rule").and_then(toml::Value::as_array).into_iter().flatten();
        let each = |field: &str| {
            let mut words: Vec<String> = Vec::new();
            for word in rules().filter_map(|rule| rule.get(field)).flat_map(words_of) {
                if !words.contains(&word) {
                    words.push(word);
                }
            }
            words
        };
        Ok(Line {
            layout: table.get("layout").map(words_of).unwrap_or_default().join(" "),
            triggers: each("trigger"),
            granularity: each("granularity"),
            movement: each("movement"),
            name,
            size_ratio,
            source,
            leaves_out,
        })
    }
}

/// The option that a value of a strategy file names: its kind, itself, or those of its list.
fn words_of(value: &toml::Value) -> Vec<String> {
    match value {
        toml::Value::String(word) => vec![word.clone()],
        toml::Value::Array(list) => list.iter().flat_map(words_of).collect(),
        toml::Value::Table(table) => {
            let kind = table.get("kind").and_then(toml::Value::as_str).unwrap_or_default();
            let pick = table.get("pick").and_then(toml::Value::as_str).filter(|pick| *pick != "all");
            vec![pick.map_or_else(|| kind.to_owned(), |pick| format!("{kind} {pick}"))]
        }
        _ => Vec::new(),
    }
}

fn text(lines: &[Line]) -> String {
    let titles = ["NAME", "LAYOUT", "TRIGGERS", "GRANULARITY", "MOVEMENT", "SOURCE"].map(str::to_owned);
    let list = |words: &[String]| if words.is_empty() { "-".to_owned() } else { words.join(", ") };
    let row = |line: &Line| {
        let (triggers, granularity, movement) = (list(&line.triggers), list(&line.granularity), list(&line.movement));
        [line.name.clone(), line.layout.clone(), triggers, granularity, movement, line.source.clone()]
    };
    let rows: Vec<[String; 6]> = std::iter::once(titles).chain(lines.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..6).map(width).collect();
    let line = |row: &[String; 6]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
