//! `compare [FILE]`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{bail, ensure};
use clap::Args;
use siltstone_lab::compare::{Comparison, DEFINITIONS, Generated, MOST_DELETES, Observer, Plan, Source, Step, compare};
use siltstone_lab::report::{bytes, html, table, titles};
use siltstone_lab::workload::Workload;

use super::args::{Compared, Telling};
use super::import::{FileSource, OnError};
use crate::failure::Interrupted;
use crate::format::{Format, format_for};
use crate::interrupt::Interrupt;
use crate::output::{Cell, LateFile, text_table};
use crate::progress::{Meter, line};
use crate::store::{OptionArgs, shown};

/// The widest line of the table, about.
const COLUMNS_A_TABLE: usize = 8;

/// Load the same data into one store per compaction strategy, update, delete and read it, and print the figures side by side.
#[derive(Args)]
#[command(mut_arg("json", |arg| arg.help("Print a list of objects, one a strategy, instead of the table; no report unless --html says where")))]
#[command(after_long_help = "Examples:
  siltstone compare                                        a built-in workload
  siltstone compare words.tsv.gz --strategy leveling,tiering
  siltstone compare people.csv --header --json > figures.json
  siltstone compare log.jsonl --updates 2 --html report.html

FILE is anything that `import` reads. Memtable and file sizes are scaled to the input, to about 160 flushes, unless \
they are set (--set keyspace.memtable_bytes=...), so that strategies differ on small files too. The stores live in a \
temporary folder, one after the other, and are removed. A sorted FILE needs hardly any merging; updates show the \
differences then.")]
pub(crate) struct Compare {
    /// The data; without it, records are generated
    file: Option<PathBuf>,
    #[command(flatten)]
    compared: Compared,
    /// Records of the built-in workload: 16-byte keys in random order, 100-byte values
    #[arg(long, default_value_t = 1_000_000, conflicts_with = "file", value_parser = clap::value_parser!(u64).range(1..=100_000_000_000))]
    num: u64,
    /// Updates of random keys after the load, per record loaded
    #[arg(long, default_value_t = 0.5, value_parser = share)]
    updates: f64,
    /// Deletes of random keys after the updates, per record loaded, from 0 to 0.5
    #[arg(long, default_value_t = 0.05, value_parser = delete_share)]
    deletes: f64,
    /// Lookups of existing keys, and half as many of missing ones [default: a fifth of the records, at most 200000]
    #[arg(long, value_name = "N")]
    reads: Option<u64>,
    /// How records are written down, where the ending does not tell
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// The first line of a CSV file names the columns
    #[arg(long)]
    header: bool,
    /// What to do about a bad line
    #[arg(long, value_enum, default_value = "stop")]
    on_error: OnError,
    /// Folder for the temporary stores [default: the system's]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// Decides every random choice
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where to write the report [default: siltstone-compare.html, with --json none]
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write no report
    #[arg(long)]
    no_html: bool,
    #[command(flatten)]
    options: OptionArgs,
    #[command(flatten)]
    telling: Telling,
}

fn share(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if (0.0..=1000.0).contains(&value) { Ok(value) } else { Err("expected a number from 0 to 1000".to_owned()) }
}

fn delete_share(text: &str) -> Result<f64, String> {
    let allowed = text.parse().ok().filter(|value| (0.0..=MOST_DELETES).contains(value));
    allowed.ok_or_else(|| format!("expected a number from 0 to {MOST_DELETES}"))
}

impl Compare {
    pub(crate) fn run(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        let source = self.source()?;
        let plan = self.plan()?;
        if !self.telling.quiet {
            let names: Vec<&str> = plan.strategies.iter().map(|strategy| &strategy.name[..]).collect();
            line(&format!("compare: {} under {}", source.describe(), names.join(", ")));
        }
        // Shows before the work that it can be written.
        let path = self.report();
        let report = path.map(LateFile::open).transpose()?;
        let mut watch = Watch { interrupt, quiet: self.telling.quiet, meter: None, phase: String::new() };
        let result = compare(&*source, &plan, &mut watch);
        watch.end();
        let all = plan.strategies.len();
        if interrupt.is_set() && result.is_err() {
            bail!(Interrupted::leaving(format!("0 of {all} strategies are finished")));
        }
        let comparison = result?;
        self.telling.print(&comparison.rows, |_| text(&comparison))?;
        let done = comparison.rows.len();
        ensure!(
            done == all,
            Interrupted::leaving(format!("{done} of {all} strategies are finished, no report is written"))
        );
        if let Some((report, path)) = report.zip(path) {
            report.write(&html(&comparison))?;
            line(&format!("compare: report in {}", path.display()));
        }
        Ok(ExitCode::SUCCESS)
    }

    fn source(&self) -> anyhow::Result<Box<dyn Source>> {
        let Some(path) = &self.file else {
            ensure!(!self.header && self.format.is_none(), "--header and --format tell how to read a FILE: give one");
            let workload =
                Workload { seed: self.seed, records: self.num, key_bytes: 16, value_bytes: 100, phases: Vec::new() };
            return Ok(Box::new(Generated(workload)));
        };
        ensure!(path.as_os_str() != "-", "compare reads its input once for each strategy: give a file, not a stream");
        // An unknown format should be told before anything is read.
        format_for(self.format, &shown(path))?;
        Ok(Box::new(FileSource {
            path: path.clone(),
            format: self.format,
            header: self.header,
            on_error: self.on_error,
        }))
    }

    fn plan(&self) -> anyhow::Result<Plan> {
        let strategies = self.compared.choose()?;
        let (options, given) = self.options.read()?;
        let fixed = Compared::fixed(&given)?;
        let dir = self.dir.clone().unwrap_or_else(std::env::temp_dir);
        ensure!(dir.is_dir(), "the folder {} does not exist: make it, or name another with --dir", dir.display());
        Ok(Plan {
            strategies,
            options,
            fixed,
            reads: self.reads,
            update_share: self.updates,
            delete_share: self.deletes,
            dir,
            seed: self.seed,
        })
    }

    /// Where the report goes, if there shall be one.
    fn report(&self) -> Option<&Path> {
        let by_default = (!self.telling.json).then_some(Path::new("siltstone-compare.html"));
        self.html.as_deref().or(by_default).filter(|_| !self.no_html)
    }
}

/// The tables and the legend.
fn text(comparison: &Comparison) -> String {
    let (survey, scale) = (&comparison.survey, &comparison.scale);
    let mut out = format!(
        "{}\n{} records, {} of keys, {} of values; then {} updates, {} deletes, {} + {} lookups of existing and missing keys\n",
        comparison.input,
        survey.records,
        bytes(survey.key_bytes),
        bytes(survey.value_bytes),
        comparison.updates,
        comparison.deletes,
        comparison.reads,
        comparison.missing_reads
    );
    out += &format!(
        "sizes for this input: memtable {}, files {}, cache {}, about {} flushes for the load\n",
        bytes(scale.memtable_bytes),
        bytes(scale.file_bytes),
        bytes(scale.cache_bytes),
        scale.expected_flushes
    );
    if survey.ascending_share > 0.9 {
        out += "the input is nearly sorted: its load needs hardly any merging, the updates make the difference\n";
    }
    let lines = table(&comparison.rows);
    let titles = titles();
    for (from, columns) in titles[1..].chunks(COLUMNS_A_TABLE).enumerate().map(|(i, part)| (i * COLUMNS_A_TABLE, part))
    {
        let titles: Vec<&str> = titles[..1].iter().chain(columns).copied().collect();
        let rows: Vec<Vec<Cell>> = lines
            .iter()
            .map(|(strategy, cells)| {
                let cells = cells[from..from + columns.len()].iter();
                let cells = cells.map(|cell| Cell { text: cell.text.clone(), marked: cell.best });
                std::iter::once(Cell::from(strategy.clone())).chain(cells).collect()
            })
            .collect();
        out += "\n";
        out += &text_table(&titles, &rows);
    }
    out += "\n* best of the column\n";
    for (name, meaning) in DEFINITIONS {
        out += &format!("{name}: {meaning}\n");
    }
    out
}

/// Shows progress, and ends the comparison upon Ctrl-C.
struct Watch<'a> {
    interrupt: &'a Interrupt,
    quiet: bool,
    meter: Option<Meter>,
    phase: String,
}

impl Watch<'_> {
    fn end(&mut self) {
        if let Some(meter) = self.meter.take() {
            meter.clear();
        }
    }
}

impl Observer for Watch<'_> {
    fn step(&mut self, step: Step<'_>) -> bool {
        let phase = format!("{} {}", step.strategy, step.phase);
        if phase != self.phase {
            self.end();
            self.meter = Some(Meter::new(&phase, "operations", step.total, self.quiet));
            self.phase = phase;
        }
        if let Some(meter) = &mut self.meter {
            meter.update(step.done, 0, step.done);
        }
        !self.interrupt.is_set()
    }
}
