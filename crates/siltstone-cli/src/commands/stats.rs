//! `stats STORE` and `stats deletes STORE`

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;
use siltstone::{Cancel, Db, Debt, DeleteStats, Keyspace, TombstoneBlocker, TombstonePlace};
use siltstone_lab::report::{bytes, duration_ns};

use super::strategies::Line;
use crate::interrupt::Interrupt;
use crate::output::{Cell, plural, print, print_json, text_table};
use crate::store::{OptionArgs, StoreArgs, TRIES};

/// What --scan adds to a keyspace.
const SPACE_AMPLIFICATION: &str = "space_amplification";

/// Print what the store counts. Counters of operations start at 0 when a store is opened; sizes are those on disk.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone stats shop
  siltstone stats shop --json | jq .disk_bytes
  siltstone stats shop --print-options > options.toml      the options of its default keyspace, for --options
  siltstone stats debt shop                                what do merges owe, and how near are writers to a limit?
  siltstone stats deletes shop                             is what was deleted gone? (a store named \"deletes\": ./deletes)")]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Stats {
    #[command(subcommand)]
    about: Option<About>,
    /// Folder of the store
    #[arg(value_name = "STORE", required = true)]
    path: Option<PathBuf>,
    #[command(flatten)]
    options: OptionArgs,
    /// Print the options of a keyspace as TOML instead, as --options takes them
    #[arg(long, conflicts_with = "json")]
    print_options: bool,
    /// Keyspace whose options are printed
    #[arg(long, value_name = "NAME", default_value = "default", requires = "print_options")]
    keyspace: String,
    /// Read all records and add the space amplification by sarkar21's definition: what no reader needs over what one sees
    #[arg(long, conflicts_with = "print_options")]
    scan: bool,
    /// Print all counters as JSON
    #[arg(long)]
    json: bool,
}

/// What else there is to know.
#[derive(Subcommand)]
enum About {
    /// Print where deletes stand: the oldest tombstone of each keyspace, what it waits for, when it will be gone
    Deletes(Deletes),
    /// Print what merges owe in each keyspace: bytes, seconds, and how near the number of sorted runs is to where writers wait
    Debt(DebtArgs),
}

#[derive(Args)]
struct DebtArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Print as JSON: a list with an object for each keyspace
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct DebtOf {
    keyspace: String,
    #[serde(flatten)]
    debt: Debt,
}

impl DebtArgs {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let db = self.store.open_to_read()?;
        let mut debts = Vec::new();
        for keyspace in db.list_keyspaces() {
            debts.push(DebtOf { debt: db.keyspace(&keyspace)?.debt()?, keyspace });
        }
        if self.json {
            print_json(&debts)?;
        } else {
            print(&debts.iter().map(debt).collect::<Vec<_>>().join("\n"))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The lines about the debt of a keyspace.
fn debt(DebtOf { keyspace, debt }: &DebtOf) -> String {
    let Debt { runs, slow_runs, stop_runs, merges, .. } = debt;
    let owed = match merges {
        0 => "nothing is to be merged".to_owned(),
        _ => {
            let time = debt.seconds.map_or_else(
                || "no merge was ever measured".to_owned(),
                |seconds| format!("about {seconds:.1} s if nothing more is written"),
            );
            format!(
                "{}, to read {} and write {}: {time}",
                plural(*merges, "merge"),
                bytes(debt.read_bytes),
                bytes(debt.write_bytes)
            )
        }
    };
    let limits = match *slow_runs >= u64::from(u32::MAX) {
        true => "writers do not wait for their number, since nothing merges them".to_owned(),
        false => format!(
            "writers are slowed down above {slow_runs} and wait at {stop_runs} (write_control {})",
            debt.write_control
        ),
    };
    format!("{keyspace}: {}; {limits}\n  {owed}\n", plural(*runs, "sorted run"))
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
    let (tombstones, files) = (plural(stats.tombstones, "tombstone"), plural(stats.files, "file"));
    let mut out = format!("{}: {by}, {tombstones} in {files}\n", stats.keyspace);
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
        let (files, held) = (plural(stats.held_files, "file"), bytes(stats.held_bytes));
        out += &format!("  {files} ({held}) out of the tree, still on disk for iterators that are open\n");
    }
    out
}

impl Stats {
    pub(crate) fn run(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        match &self.about {
            Some(About::Deletes(deletes)) => return deletes.run(),
            Some(About::Debt(debt)) => return debt.run(),
            None => {}
        }
        let path = self.path.clone().expect("clap asks for it where there is no subcommand");
        let store = StoreArgs::new(path, self.options.clone());
        if self.print_options {
            let db = store.open_to_read()?;
            let options = BTreeMap::from([("keyspace", store.keyspace(&db, &self.keyspace)?.options())]);
            print(&format!("# keyspace {}\n{}", self.keyspace, toml::to_string(&options)?))?;
            return Ok(ExitCode::SUCCESS);
        }
        let stats = store.reading(TRIES, || {
            let db = store.open_to_read()?;
            let mut stats = serde_json::to_value(db.stats())?;
            name_size_amplification(&db, &mut stats)?;
            if self.scan {
                add_space_amplification(&db, &interrupt.cancel(), &mut stats)?;
            }
            Ok(stats)
        })?;
        if self.json {
            print_json(&stats)?;
        } else {
            print(&text(&stats))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The measure that RocksDB's universal compaction goes by gets a name of its own, where a rule goes by it. It compares younger runs with the
/// oldest: of leveled ones, which are meant to differ in size, it says nothing about space.
fn name_size_amplification(db: &Db, stats: &mut Value) -> anyhow::Result<()> {
    for (keyspace, stats) in keyspaces_of(db, stats)? {
        let percent = stats.remove("space_amplification_percent");
        // A policy of a program's own is unknown here.
        let line = Line::of_option(&keyspace.options().strategy);
        if line.is_ok_and(|line| line.triggers.iter().any(|trigger| trigger == "space-amplification")) {
            stats.insert("universal_size_amplification_percent".to_owned(), percent.into());
        }
    }
    Ok(())
}

fn add_space_amplification(db: &Db, cancel: &Cancel, stats: &mut Value) -> anyhow::Result<()> {
    for (keyspace, stats) in keyspaces_of(db, stats)? {
        stats.insert(SPACE_AMPLIFICATION.to_owned(), keyspace.space_amplification(cancel)?.into());
    }
    Ok(())
}

/// Each keyspace with its counters.
fn keyspaces_of<'a>(db: &Db, stats: &'a mut Value) -> anyhow::Result<Vec<(Keyspace, &'a mut Row)>> {
    let rows = stats.get_mut("keyspaces").and_then(Value::as_array_mut).into_iter().flatten();
    let rows = rows.filter_map(Value::as_object_mut);
    rows.map(|row| Ok((db.keyspace(row.get("name").and_then(Value::as_str).unwrap_or_default())?, row))).collect()
}

/// The counters that are not 0, and a table of the keyspaces.
fn text(stats: &Value) -> String {
    let mut rows = Vec::new();
    for (name, value) in stats.as_object().into_iter().flatten() {
        // A fraction is shown with three digits.
        let is_shown_as_0 = value.as_f64().is_some_and(|n| n.abs() < 0.0005);
        if let Some(cell) = figure(name, value).filter(|_| !is_shown_as_0) {
            rows.push(vec![label(name).into(), cell]);
        }
    }
    let mut out = text_table(&["counter", "value"], &rows);
    let keyspaces: Vec<_> =
        stats.get("keyspaces").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object).collect();
    out += &table("keyspace", "name", &keyspaces);
    for keyspace in &keyspaces {
        let name = keyspace.get("name").and_then(Value::as_str).unwrap_or_default();
        // Counted rows: a level has no name of its own.
        let levels: Vec<_> = rows_of(keyspace, "levels")
            .into_iter()
            .enumerate()
            .map(|(n, mut level)| {
                level.insert("level".to_owned(), format!("L{n}").into());
                level
            })
            .collect();
        out += &table(&format!("{name}: level"), "level", &levels.iter().collect::<Vec<_>>());
        // Of a store that is only looked at, what its last decisions say.
        let (title, reasons) = match rows_of(keyspace, "reasons") {
            now if !now.is_empty() => ("why it compacted", now),
            _ => ("why it compacted, the decisions that are kept", rows_of(keyspace, "kept_reasons")),
        };
        out += &table(&format!("{name}: {title}"), "reason", &reasons.iter().collect::<Vec<_>>());
        let latency: Vec<_> = keyspace.get("latency").and_then(Value::as_object).into_iter().collect();
        if latency.iter().any(|latency| latency.get("merges").and_then(Value::as_u64) > Some(0)) {
            out += &table(&format!("{name}: merges that are kept"), "merges", &latency);
        }
    }
    out
}

fn rows_of(keyspace: &Row, name: &str) -> Vec<Row> {
    keyspace.get(name).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object).cloned().collect()
}

type Row = serde_json::Map<String, Value>;

/// A table of the figures that any row has, in the order of the library, after a blank line; nothing without rows. The column `first` comes
/// first, under `title`.
fn table(title: &str, first: &str, rows: &[&Row]) -> String {
    let mut columns: Vec<&str> = Vec::new();
    for (name, value) in rows.iter().flat_map(|row| row.iter()) {
        // What was asked for is shown at its best, too.
        let shown = value.is_string() || value.as_f64().is_some_and(|n| n > 0.0) || name == SPACE_AMPLIFICATION;
        if shown && !columns.contains(&name.as_str()) {
            columns.push(name);
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    columns.sort_by_key(|name| *name != first);
    let cells = |row: &&Row| {
        let cell =
            |name: &&str| row.get(*name).and_then(|value| figure(name, value)).unwrap_or_else(|| String::new().into());
        columns.iter().map(cell).collect::<Vec<Cell>>()
    };
    let titles: Vec<String> =
        columns.iter().map(|name| if *name == first { title.to_owned() } else { label(name) }).collect();
    let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
    format!("\n{}", text_table(&titles, &rows.iter().map(cells).collect::<Vec<_>>()))
}

/// The name of a figure that shows its unit itself.
fn label(name: &str) -> String {
    let bare = name.strip_suffix("_ns").or(name.strip_suffix("_ms")).unwrap_or(name);
    bare.replace('_', " ")
}

/// A number with the unit that its name ends with.
fn figure(name: &str, value: &Value) -> Option<Cell> {
    let text = match (value.as_u64(), value) {
        (Some(n), _) if name.contains("bytes") => bytes(n),
        (Some(n), _) if name.ends_with("_ns") => siltstone_lab::report::duration_ns(n),
        (Some(n), _) if name.ends_with("_ms") => siltstone_lab::report::duration_ns(n.saturating_mul(1_000_000)),
        (Some(n), _) => n.to_string(),
        (None, Value::Number(n)) => format!("{:.3}", n.as_f64()?),
        (None, Value::String(text)) => text.clone(),
        _ => return None,
    };
    Some(text.into())
}
