//! `strategies`

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use siltstone::compaction::strategy::{self, Strategy};

use crate::output::{print, print_json};

/// List the compaction strategies that are built in, or print one.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone strategies
  siltstone strategies leveling > mine.toml      a start for one of your own
  siltstone put shop apple red --set keyspace.strategy=tiering")]
pub(crate) struct Strategies {
    /// Print the file of this strategy
    name: Option<String>,
    /// Print the list as JSON
    #[arg(long, conflicts_with = "name")]
    json: bool,
}

#[derive(Serialize)]
struct Line {
    name: String,
    layout: String,
    size_ratio: u32,
    source: String,
    leaves_out: String,
}

impl Strategies {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        if let Some(name) = &self.name {
            print(find(name)?.text)?;
            return Ok(ExitCode::SUCCESS);
        }
        let lines = strategy::strategies().iter().map(line).collect::<anyhow::Result<Vec<_>>>()?;
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

fn line(preset: &strategy::Preset) -> anyhow::Result<Line> {
    let Strategy { name, size_ratio, source, leaves_out, .. } = Strategy::parse(preset.text)?;
    let table: toml::Table = preset.text.parse()?;
    let kind = table.get("layout").and_then(|layout| layout.get("kind")).and_then(toml::Value::as_str);
    Ok(Line { name, layout: kind.unwrap_or_default().to_owned(), size_ratio, source, leaves_out })
}

fn text(lines: &[Line]) -> String {
    let widest = |field: fn(&Line) -> &str| lines.iter().map(|line| field(line).chars().count()).max().unwrap_or(0);
    let (name, layout) = (widest(|line| &line.name), widest(|line| &line.layout));
    lines
        .iter()
        .map(|line| format!("{:name$}  {:layout$}  T={:<3} {}\n", line.name, line.layout, line.size_ratio, line.source))
        .collect()
}
