//! `inspect STORE`

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use siltstone::version::FileMeta;
use siltstone::{Db, Keyspace};
use siltstone_lab::num::count;
use siltstone_lab::report::{bytes, store_page};

use super::report::write_page;
use crate::interrupt::Interrupt;
use crate::output::{plural, print, print_json, visible};
use crate::store::StoreArgs;

/// Characters of a key that are drawn.
const KEY_CHARS: usize = 24;
/// Characters of the longest bar.
const BAR_CHARS: usize = 24;

/// Draw the trees of a store: levels, sorted runs, files, sizes, key ranges.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone inspect shop
  siltstone inspect shop --files --keyspace default
  siltstone inspect shop --json | jq '.[0].levels[].bytes'
  siltstone inspect shop --html shop.html       the same as a page, with the last decisions

Reading a tree: L0 holds what was flushed last. A run is sorted and does not overlap itself; a lookup asks every run \
whose key range holds the key, newest first, so fewer runs read faster.")]
pub(crate) struct Inspect {
    #[command(flatten)]
    store: StoreArgs,
    /// Only this keyspace
    #[arg(long, value_name = "NAME")]
    keyspace: Option<String>,
    /// List every file
    #[arg(long)]
    files: bool,
    /// Print the trees as JSON, files included; keys are hexadecimal
    #[arg(long)]
    json: bool,
    /// Write a page instead: every file by level and key range, and why the last compactions were chosen
    #[arg(long, value_name = "FILE", conflicts_with_all = ["files", "json"])]
    html: Option<PathBuf>,
}

#[derive(Serialize)]
struct Tree {
    keyspace: String,
    strategy: String,
    memtable_bytes: u64,
    bytes: u64,
    files: u64,
    runs: u64,
    entries: u64,
    tombstones: u64,
    levels: Vec<Level>,
}

#[derive(Serialize)]
struct Level {
    level: u8,
    bytes: u64,
    runs: Vec<Run>,
}

#[derive(Serialize)]
struct Run {
    order: u64,
    bytes: u64,
    entries: u64,
    tombstones: u64,
    smallest_hex: String,
    largest_hex: String,
    files: Vec<File>,
    #[serde(skip)]
    range: String,
}

#[derive(Serialize)]
struct File {
    id: u64,
    /// The number of its table, if that is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<u64>,
    bytes: u64,
    /// Size of the table, if only a part of it is alive.
    #[serde(skip_serializing_if = "Option::is_none")]
    slice_of_bytes: Option<u64>,
    entries: u64,
    tombstones: u64,
    raw_bytes: u64,
    smallest_hex: String,
    largest_hex: String,
    min_seq: u64,
    max_seq: u64,
    created_ms: u64,
    #[serde(skip)]
    range: String,
}

impl Inspect {
    pub(crate) fn run(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        // Opening, which reads the log, is what may take a while.
        let db = self.store.open_to_read()?;
        interrupt.check(|| "interrupted".to_owned())?;
        if let Some(path) = &self.html {
            write_page(path, &self.page(&db)?, "inspect")?;
            return Ok(ExitCode::SUCCESS);
        }
        let trees = match &self.keyspace {
            Some(name) => vec![tree(&self.store.keyspace(&db, name)?)],
            None => all_trees(&db)?,
        };
        if self.json {
            print_json(&trees)?;
        } else {
            let drawings: Vec<_> = trees.iter().map(|tree| draw(tree, self.files)).collect();
            print(&drawings.join("\n"))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn page(&self, db: &Db) -> anyhow::Result<String> {
        let names = self.keyspace.clone().map_or_else(|| db.list_keyspaces(), |name| vec![name]);
        let keyspaces = names.iter().map(|name| self.store.keyspace(db, name)).collect::<anyhow::Result<Vec<_>>>()?;
        store_page(&self.store.path.display().to_string(), &keyspaces)
    }
}

fn all_trees(db: &Db) -> anyhow::Result<Vec<Tree>> {
    db.list_keyspaces().iter().map(|name| Ok(tree(&db.keyspace(name)?))).collect()
}

fn tree(keyspace: &Keyspace) -> Tree {
    let tree = keyspace.tree();
    let levels: Vec<_> = tree
        .levels
        .iter()
        .map(|level| {
            let runs: Vec<_> = level
                .runs
                .iter()
                .map(|run| {
                    let files: Vec<_> = run.files.iter().map(|file| file_of(file)).collect();
                    let first = run.files.first().map(|file| file.smallest.clone()).unwrap_or_default();
                    let last = run.files.last().map(|file| file.largest.clone()).unwrap_or_default();
                    Run {
                        order: run.order,
                        bytes: files.iter().map(|file| file.bytes).sum(),
                        entries: files.iter().map(|file| file.entries).sum(),
                        tombstones: files.iter().map(|file| file.tombstones).sum(),
                        smallest_hex: crate::output::hex(&first),
                        largest_hex: crate::output::hex(&last),
                        range: range(&first, &last),
                        files,
                    }
                })
                .collect();
            Level { level: level.level, bytes: runs.iter().map(|run| run.bytes).sum(), runs }
        })
        .collect();
    let runs = || levels.iter().flat_map(|level| &level.runs);
    Tree {
        keyspace: keyspace.name().to_owned(),
        strategy: keyspace.stats().strategy,
        memtable_bytes: tree.memtable_bytes,
        bytes: runs().map(|run| run.bytes).sum(),
        files: runs().map(|run| count(run.files.len())).sum(),
        runs: count(runs().count()),
        entries: runs().map(|run| run.entries).sum(),
        tombstones: runs().map(|run| run.tombstones).sum(),
        levels,
    }
}

fn file_of(file: &FileMeta) -> File {
    File {
        id: file.id.0,
        table: (file.table() != file.id).then_some(file.table().0),
        bytes: file.bytes,
        slice_of_bytes: file.whole.as_ref().map(|whole| whole.bytes),
        entries: file.entries,
        tombstones: file.tombstones,
        raw_bytes: file.raw_bytes,
        smallest_hex: crate::output::hex(&file.smallest),
        largest_hex: crate::output::hex(&file.largest),
        min_seq: file.min_seq.0,
        max_seq: file.max_seq.0,
        created_ms: file.created_ms,
        range: range(&file.smallest, &file.largest),
    }
}

fn range(first: &[u8], last: &[u8]) -> String {
    format!("{} .. {}", visible(first, KEY_CHARS), visible(last, KEY_CHARS))
}

/// The tree as text:
///
/// ```text
/// keyspace default (one-leveling): 2 levels, 3 runs, 5 files, 12.0 MiB, 40000 entries
/// L0  1.00 MiB  2 runs
/// |-- run 9     512 KiB  1 file   ##         a .. z
/// `-- run 8     512 KiB  1 file   ##         a .. z
/// ```
fn draw(tree: &Tree, list_files: bool) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "keyspace {} ({}): {}, {}, {}, {}, {}, {}",
        tree.keyspace,
        tree.strategy,
        plural(count(tree.levels.iter().filter(|level| !level.runs.is_empty()).count()), "level"),
        plural(tree.runs, "run"),
        plural(tree.files, "file"),
        bytes(tree.bytes),
        plural(tree.entries, "record"),
        plural(tree.tombstones, "tombstone")
    );
    if tree.memtable_bytes > 0 {
        let _ = writeln!(out, "memory  {}", bytes(tree.memtable_bytes));
    }
    let largest = tree.levels.iter().flat_map(|level| &level.runs).map(|run| run.bytes).max().unwrap_or(0);
    for level in &tree.levels {
        let _ =
            writeln!(out, "L{:<3} {:>9}  {}", level.level, bytes(level.bytes), plural(count(level.runs.len()), "run"));
        for (i, run) in level.runs.iter().enumerate() {
            let last = i + 1 == level.runs.len();
            let bar = "#".repeat(usize::try_from((run.bytes * count(BAR_CHARS)).div_ceil(largest.max(1))).unwrap_or(0));
            let _ = writeln!(
                out,
                "{} run {:<6} {:>9}  {:<9} {bar:<width$}  {}",
                if last { "`--" } else { "|--" },
                run.order,
                bytes(run.bytes),
                plural(count(run.files.len()), "file"),
                run.range,
                width = BAR_CHARS
            );
            for file in run.files.iter().filter(|_| list_files) {
                let slice =
                    file.slice_of_bytes.map_or(String::new(), |whole| format!(" (a slice of {})", bytes(whole)));
                let number = file
                    .table
                    .map_or(format!("{:06}.sst", file.id), |table| format!("{:06} in {table:06}.sst", file.id));
                let _ = writeln!(
                    out,
                    "{}     {number} {:>9}  {}, {}  {}{slice}",
                    if last { " " } else { "|" },
                    bytes(file.bytes),
                    plural(file.entries, "record"),
                    plural(file.tombstones, "tombstone"),
                    file.range
                );
            }
        }
    }
    out
}
