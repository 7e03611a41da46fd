//! `strategy show|set|plan STORE`

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use clap::{Args, Subcommand};
use serde::Serialize;
use siltstone::compaction::strategy::strategies;
use siltstone::{Db, Keyspace, LevelStats, SwitchPlan, SwitchProgress};
use siltstone_lab::report::bytes;
use siltstone_lab::strategy::choose;

use super::strategies::Line;
use crate::failure::Interrupted;
use crate::interrupt::Interrupt;
use crate::output::{Cell, plural, print, print_json, text_table};
use crate::progress::{Meter, line};
use crate::store::KeyspaceArgs;

/// How often the dry run is asked for what is left.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Show, change or try out the compaction strategy of a store.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone strategy show shop
  siltstone strategy plan shop tiering        what would a switch take? Nothing is changed
  siltstone strategy set shop tiering --wait  switch, and merge until the tree has its new shape
  siltstone strategy set shop ./mine.toml     a strategy file of your own
  siltstone strategy set shop rocksdb-fifo --may-lose-oldest

A switch rewrites nothing by itself: from then on, merges follow the new rules. It is durable at once and can be taken \
back at any time.")]
pub(crate) struct Strategy {
    #[command(subcommand)]
    command: Sub,
}

#[derive(Subcommand)]
enum Sub {
    /// Print the strategy of a keyspace and whether its tree has the shape that it wants
    Show(Show),
    /// Give a keyspace another strategy
    Set(Set),
    /// Tell what a switch would take: bytes, time, space. Nothing is changed
    Plan(Plan),
}

#[derive(Args)]
struct Show {
    #[command(flatten)]
    place: KeyspaceArgs,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Set {
    #[command(flatten)]
    place: KeyspaceArgs,
    /// Name of a strategy, or a file (./mine.toml)
    #[arg(value_name = "NAME|FILE")]
    strategy: String,
    /// Allow the keyspace to lose data that was not deleted, the oldest first, as rocksdb-fifo does; from now on and durably
    #[arg(long)]
    may_lose_oldest: bool,
    /// Merge until the tree has its new shape; Ctrl-C ends the waiting, not the switch
    #[arg(long)]
    wait: bool,
    /// No progress
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Args)]
struct Plan {
    #[command(flatten)]
    place: KeyspaceArgs,
    /// Name of a strategy, or a file (./mine.toml)
    #[arg(value_name = "NAME|FILE")]
    strategy: String,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

impl Strategy {
    pub(crate) fn run(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        match &self.command {
            Sub::Show(show) => show.run(),
            Sub::Set(set) => set.run(interrupt),
            Sub::Plan(plan) => plan.run(),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

/// What `show --json` prints.
#[derive(Serialize)]
struct Shown {
    keyspace: String,
    #[serde(flatten)]
    strategy: Line,
    /// Whether the size ratio is that of the keyspace's option instead of the strategy's own.
    size_ratio_is_option: bool,
    progress: SwitchProgress,
    levels: Vec<LevelStats>,
    text: String,
}

impl Show {
    fn run(&self) -> anyhow::Result<()> {
        let db = self.place.store.open_to_read()?;
        let keyspace = self.place.find(&db)?;
        let options = keyspace.options();
        let option = options.strategy;
        let preset = strategies().iter().find(|preset| preset.name == option);
        let text = preset.map_or(option, |preset| preset.text.to_owned());
        let mut strategy = Line::of(&text)?;
        let own_ratio = strategy.size_ratio;
        let size_ratio_is_option = options.size_ratio != 0;
        if size_ratio_is_option {
            strategy.size_ratio = options.size_ratio;
        }
        let shown = Shown {
            keyspace: keyspace.name().to_owned(),
            strategy,
            size_ratio_is_option,
            progress: keyspace.switch_progress()?,
            levels: keyspace.stats().levels,
            text,
        };
        if self.json {
            return print_json(&shown);
        }
        let origin = if preset.is_some() { "built in" } else { "a file of your own" };
        let mut out = format!("{}: {} ({origin})\n", shown.keyspace, shown.strategy.name);
        if size_ratio_is_option {
            let ratio = shown.strategy.size_ratio;
            writeln!(out, "size ratio {ratio}, the keyspace's option; the strategy's own is {own_ratio}")?;
        }
        let left = &shown.progress;
        out += &match left.is_done {
            true => "the tree has the shape that it wants\n".to_owned(),
            false => format!("merges have to move {} still\n", bytes(left.left_bytes)),
        };
        write!(out, "\n{}\n{}", levels(&shown.levels, None), shown.text)?;
        Ok(print(&out)?)
    }
}

impl Plan {
    fn run(&self) -> anyhow::Result<()> {
        let chosen = choose(&self.strategy)?;
        let db = self.place.store.open_to_read()?;
        let plan = self.place.find_to_change(&db)?.plan_switch(&chosen.option)?;
        if self.json { print_json(&plan) } else { Ok(print(&tell(&plan))?) }
    }
}

/// The dry run for people.
fn tell(plan: &SwitchPlan) -> String {
    let mut out = format!("{} -> {}\n", plan.from, plan.to);
    let at_least = if plan.settled { "" } else { "at least " };
    let rows = [
        ("merges", plan.merges.to_string()),
        ("files moved without rewriting", plan.moved_files.to_string()),
        ("bytes read", bytes(plan.read_bytes)),
        ("bytes written", bytes(plan.write_bytes)),
        ("extra space at the peak", bytes(plan.peak_extra_bytes)),
    ];
    for (what, figure) in rows {
        let _ = writeln!(out, "{what:<30} {at_least}{figure}");
    }
    if plan.lost_files > 0 {
        let lost = format!("{} in {}, the oldest", bytes(plan.lost_bytes), plural(plan.lost_files, "file"));
        let _ = writeln!(out, "{:<30} {at_least}{lost}", "data lost");
    }
    if let Some(seconds) = plan.seconds {
        let _ = writeln!(out, "{:<30} {at_least}{seconds:.1} s", "time");
    }
    out + "\n" + &levels(&plan.levels_before, Some(&plan.levels_after))
}

/// The shape of a tree, before and after.
fn levels(before: &[LevelStats], after: Option<&[LevelStats]>) -> String {
    let figures = |levels: &[LevelStats], n: usize| {
        let level = levels.get(n).cloned().unwrap_or_default();
        [level.runs.to_string(), level.files.to_string(), bytes(level.bytes)].map(Cell::from)
    };
    let depth = before.len().max(after.map_or(0, <[LevelStats]>::len));
    let row = |n: usize| {
        let mut row = vec![Cell::from(format!("L{n}"))];
        row.extend(figures(before, n));
        row.extend(after.into_iter().flat_map(|after| figures(after, n)));
        row
    };
    let rows: Vec<Vec<Cell>> = (0..depth).map(row).collect();
    let titles = ["level", "runs", "files", "size", "runs after", "files after", "size after"];
    text_table(if after.is_some() { &titles } else { &titles[..4] }, &rows)
}

impl Set {
    fn run(&self, interrupt: &Interrupt) -> anyhow::Result<()> {
        let chosen = choose(&self.strategy)?;
        let db = self.place.store.open()?;
        let keyspace = self.place.find_to_change(&db)?;
        if self.may_lose_oldest {
            keyspace.set_may_lose_oldest(true)?;
        }
        let plan = keyspace.plan_switch(&chosen.option)?;
        keyspace.set_strategy(&chosen.option)?;
        line(&format!(
            "strategy: {} -> {}; merges will read {} and write {}, with {} of extra space at the peak",
            plan.from,
            plan.to,
            bytes(plan.read_bytes),
            bytes(plan.write_bytes),
            bytes(plan.peak_extra_bytes)
        ));
        if plan.lost_files > 0 {
            line(&format!(
                "strategy: {} ({}) dropped with their data",
                plural(plan.lost_files, "file"),
                bytes(plan.lost_bytes)
            ));
        }
        if self.wait {
            let is_done = self.wait(&db, &keyspace, interrupt)?;
            drop(keyspace);
            db.close()?;
            ensure!(is_done, Interrupted::leaving(self.left()?));
            return Ok(());
        }
        if plan.merges + plan.moved_files > 0 {
            line("strategy: that happens while the store is open, from now on; --wait waits for it");
        }
        db.close()?;
        Ok(())
    }

    /// What is left of the switch once the store is closed: a merge that was running then has come to nothing.
    fn left(&self) -> anyhow::Result<String> {
        let db = self.place.store.open_to_read()?;
        let left = bytes(self.place.find(&db)?.switch_progress()?.left_bytes);
        Ok(format!("the switch stands; {left} are left, and are merged whenever the store is open"))
    }

    /// Waits until the tree has its new shape, and says whether it has.
    fn wait(&self, db: &Db, keyspace: &Keyspace, interrupt: &Interrupt) -> anyhow::Result<bool> {
        let start = db.stats();
        let mut progress = keyspace.switch_progress()?;
        let total = progress.predicted_bytes.max(progress.left_bytes);
        let mut meter = Meter::new("strategy", "merges", Some(total), self.quiet);
        let mut figures = (0, 0);
        while !progress.is_done && !interrupt.is_set() {
            std::thread::sleep(LOOK_EVERY);
            let stats = db.stats();
            if stats.background_errors > start.background_errors {
                // Says what keeps merges from going on, if something still does.
                db.wait_idle()?;
            }
            figures = (
                stats.compactions - start.compactions,
                stats.compaction_bytes_read + stats.compaction_bytes_written
                    - start.compaction_bytes_read
                    - start.compaction_bytes_written,
            );
            progress = keyspace.switch_progress()?;
            meter.update(figures.0, figures.1, total.saturating_sub(progress.left_bytes));
        }
        if progress.is_done {
            meter.finish(figures.0, figures.1);
        } else {
            meter.clear();
        }
        Ok(progress.is_done)
    }
}
