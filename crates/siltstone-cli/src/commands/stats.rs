//! `stats STORE` and `stats deletes STORE`

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;
use siltstone::{DeleteStats, TombstoneBlocker, TombstonePlace};
use siltstone_lab::report::{bytes, duration_ns};

use crate::output::{Cell, print, print_json, text_table};
use crate::store::StoreArgs;

/// Print what the store counts. Counters of operations start at 0 when a store is opened; sizes are those on disk.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone stats shop
  siltstone stats shop --json | jq .disk_bytes
  siltstone stats shop --print-options > options.toml      the options of its keyspaces, for --options
  siltstone stats deletes shop                             is what was deleted gone? (a store named \"deletes\": ./deletes)")]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Stats {
    #[command(subcommand)]
    about: Option<About>,
    #[command(flatten)]
    store: Option<StoreArgs>,
    /// Print the options of each keyspace as TOML instead
    #[arg(long, conflicts_with = "json")]
    print_options: bool,
    /// Print all counters as JSON
    #[arg(long)]
    json: bool,
}

/// What else there is to know.
#[derive(Subcommand)]
enum About {
    /// Print where deletes stand: the oldest tombstone of each keyspace, what it waits for, when it will be gone
    Deletes(Deletes),
}

#[derive(Args)]
struct Deletes {
    #[command(flatten)]
    store: StoreArgs,
    /// Print as JSON: a list with an object for each keyspace
    #[arg(long)]
    json: bool,
}

impl Deletes {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let db = self.store.open_to_read()?;
        let mut stats = Vec::new();
        for name in db.list_keyspaces() {
            stats.push(db.keyspace(&name)?.delete_stats());
        }
        if self.json {
            print_json(&serde_json::to_value(&stats)?)?;
        } else {
            print(&stats.iter().map(deletes).collect::<Vec<_>>().join("\n"))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The lines about the deletes of a keyspace.
fn deletes(stats: &DeleteStats) -> String {
    let time = |ms: u64| duration_ns(ms.saturating_mul(1_000_000));
    let by = stats.delete_by_ms.map_or_else(|| "no delete_by".to_owned(), |ms| format!("delete_by {}", time(ms)));
    let mut out = format!("{}: {by}, {} tombstones in {} files\n", stats.keyspace, stats.tombstones, stats.files);
    if let Some(oldest) = &stats.oldest {
        let place = match &oldest.place {
            TombstonePlace::File { id, level, .. } => format!("file {id} of L{level}"),
            _ => "a memtable".to_owned(),
        };
        out += &format!("  the oldest is {} old, in {place}\n", time(oldest.age_ms));
        out += &match (oldest.gone_in_ms, oldest.due_in_ms) {
            (Some(0), _) => "  it is overdue\n".to_owned(),
            (Some(gone), Some(0)) => format!("  it is being taken care of, and gone within {}\n", time(gone)),
            (Some(gone), due) => {
                format!("  it is taken care of in {}, and gone within {}\n", time(due.unwrap_or(0)), time(gone))
            }
            (None, _) => "  it goes when a merge takes it to the last level; set delete_by for a date\n".to_owned(),
        };
        match &oldest.blocked_by {
            Some(TombstoneBlocker::Snapshot { seq, age_ms }) => {
                out += &format!("  it waits for a snapshot at write {seq}, {} old\n", time(*age_ms));
            }
            Some(TombstoneBlocker::Merge) => out += "  a merge has it now\n",
            _ => {}
        }
    }
    if stats.held_files > 0 {
        let (files, held) = (stats.held_files, bytes(stats.held_bytes));
        out += &format!("  {files} files ({held}) have left the tree and stay on disk for iterators that are open\n");
    }
    out
}

impl Stats {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        if let Some(About::Deletes(deletes)) = &self.about {
            return deletes.run();
        }
        let store = self.store.as_ref().ok_or_else(|| anyhow::anyhow!("stats wants a store: siltstone stats STORE"))?;
        let db = store.open_to_read()?;
        if self.print_options {
            let mut text = String::new();
            for name in db.list_keyspaces() {
                text += &format!("# keyspace {name}\n[keyspace]\n{}\n", db.keyspace(&name)?.options().to_text());
            }
            print(&text)?;
            return Ok(ExitCode::SUCCESS);
        }
        let stats = serde_json::to_value(db.stats())?;
        if self.json {
            print_json(&stats)?;
        } else {
            print(&text(&stats))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The counters that are not 0, and a table of the keyspaces.
fn text(stats: &Value) -> String {
    let mut rows = Vec::new();
    for (name, value) in stats.as_object().into_iter().flatten() {
        if let Some(cell) = figure(name, value).filter(|_| value.as_u64() != Some(0)) {
            rows.push(vec![name.replace('_', " ").into(), cell]);
        }
    }
    let mut out = text_table(&["counter", "value"], &rows);
    let keyspaces: Vec<_> =
        stats.get("keyspaces").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object).collect();
    // The columns are the figures that any keyspace has, in the order of the library.
    let mut columns: Vec<&str> = Vec::new();
    for (name, value) in keyspaces.iter().flat_map(|keyspace| keyspace.iter()) {
        let shown = value.is_string() || value.as_u64().is_some_and(|n| n > 0);
        if shown && !columns.contains(&name.as_str()) {
            columns.push(name);
        }
    }
    columns.sort_by_key(|name| *name != "name");
    if !columns.is_empty() {
        let row = |keyspace: &&serde_json::Map<String, Value>| {
            let cell = |name: &&str| {
                keyspace.get(*name).and_then(|value| figure(name, value)).unwrap_or_else(|| String::new().into())
            };
            columns.iter().map(cell).collect()
        };
        let titles: Vec<String> = columns
            .iter()
            .map(|name| if *name == "name" { "keyspace".to_owned() } else { name.replace('_', " ") })
            .collect();
        let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
        out += "\n";
        out += &text_table(&titles, &keyspaces.iter().map(row).collect::<Vec<_>>());
    }
    out
}

/// A number with the unit that its name ends with.
fn figure(name: &str, value: &Value) -> Option<Cell> {
    let text = match (value.as_u64(), value) {
        (Some(n), _) if name.contains("bytes") => bytes(n),
        (Some(n), _) if name.ends_with("_ns") => siltstone_lab::report::duration_ns(n),
        (Some(n), _) => n.to_string(),
        (None, Value::Number(n)) => format!("{:.3}", n.as_f64()?),
        (None, Value::String(text)) => text.clone(),
        _ => return None,
    };
    Some(text.into())
}
