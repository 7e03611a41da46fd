//! `trace replay TRACE STORE`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use clap::Args;
use siltstone_lab::load::DiskWorld;
use siltstone_lab::num::floor;
use siltstone_lab::report::{duration_ns, number};
use siltstone_lab::trace::{Pace, Replay as Ask, ReplayResult, Source, replay};

use crate::commands::DurabilityArg;
use crate::commands::args::Telling;
use crate::failure::Interrupted;
use crate::interrupt::Interrupt;
use crate::output::{Cell, plural, text_table};
use crate::progress::Meter;
use crate::store::StoreArgs;

/// Do what a trace says again, in another store.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone trace replay shop.trace other-store                       as it was
  siltstone trace replay shop.trace other-store --speed 10            ten times as fast
  siltstone trace replay shop.trace other-store --as-fast-as-possible
  siltstone trace replay workload.txt other-store --as-fast-as-possible --set keyspace.strategy=tiering

STORE is made if there is none; keyspaces that the trace names are made as well. One client does everything in the \
recorded order. Paced, an operation is due when it was then, and its latency counts from there: what a stall delays is \
charged with it. Values are made of the key and have the recorded length; a text's own values are used. Deletions of \
ranges are done by reading the range and deleting its keys in batches, since the engine has no range deletion.

Records that were there before the trace began are not in it: replay on a copy of the store of then (siltstone \
checkpoint) for lookups to find what they found.")]
pub(super) struct Replay {
    /// A trace or a text
    #[arg(value_name = "TRACE")]
    file: PathBuf,
    #[command(flatten)]
    store: StoreArgs,
    /// So many times as fast as it was recorded; default 1
    #[arg(long, value_name = "TIMES", value_parser = speed, conflicts_with = "as_fast_as_possible")]
    speed: Option<f64>,
    /// One operation after the other, without waiting
    #[arg(long)]
    as_fast_as_possible: bool,
    /// What all writes survive; default as recorded
    #[arg(long, value_enum)]
    durability: Option<DurabilityArg>,
    #[command(flatten)]
    telling: Telling,
}

fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse::<f64>().ok().filter(|speed| speed.is_finite() && *speed > 0.0);
    speed.ok_or_else(|| "expected a number above 0, for example 2".to_owned())
}

impl Replay {
    pub(super) fn run(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        let mut source = Source::open(&self.file)?;
        let pace = if self.as_fast_as_possible { Pace::Fast } else { Pace::Recorded(self.speed.unwrap_or(1.0)) };
        if pace != Pace::Fast && source.header().is_untimed {
            anyhow::bail!("{} has no times: add --as-fast-as-possible", self.file.display());
        }
        let db = self.store.open_or_create()?;
        let mut meter = Meter::new("replay", "operations", Some(1000), self.telling.quiet);
        let ask = Ask { pace, durability: self.durability.map(Into::into) };
        let result = replay(&mut source, &db, &DiskWorld::of(db.path()), ask, &mut |moment| {
            meter.update(moment.operations, 0, floor(moment.share * 1e3));
            !interrupt.is_set()
        });
        meter.clear();
        // As recorded, some writes may be in no log. What was replayed before a broken line stays as well.
        let kept = self.durability.unwrap_or(DurabilityArg::None).keep(&db);
        let result = result?;
        kept?;
        db.close()?;
        self.telling.print(&result, text)?;
        ensure!(!result.is_partial, Interrupted::leaving("the rest of the trace was not replayed"));
        Ok(ExitCode::SUCCESS)
    }
}

fn text(result: &ReplayResult) -> String {
    let how =
        result.speed.map_or("as fast as possible".to_owned(), |speed| format!("at {speed} times the recorded speed"));
    let ended = if result.is_partial { "; partial" } else { "" };
    let mut out = format!(
        "{} in {:.3} s {how}, {}/s{ended}\n\n",
        plural(result.operations, "operation"),
        result.elapsed_s,
        number(result.ops_per_s)
    );
    let rows: Vec<Vec<Cell>> = (result.kinds.iter())
        .map(|(name, kind)| {
            let latency = &kind.latency;
            let times = [latency.p50_ns, latency.p99_ns, latency.p999_ns, latency.max_ns];
            let cells = [(*name).to_owned(), kind.count.to_string(), kind.found.to_string()].into_iter();
            cells.chain(times.map(duration_ns)).map(Cell::from).collect()
        })
        .collect();
    out += &text_table(&["kind", "operations", "found", "p50", "p99", "p99.9", "max"], &rows);
    if let Some(share) = result.found_as_recorded {
        out += &format!("\n{:.2} % of the lookups found what they found when they were recorded\n", 100.0 * share);
    }
    if result.range_deletes > 0 {
        out += &format!(
            "{} ranges were deleted by reading them and deleting their {} keys in batches: the engine has no range deletion\n",
            result.range_deletes, result.range_deleted_keys
        );
    }
    if result.left_out > 0 {
        out += &format!("{} ingestions were left out: their keys are not in the trace\n", result.left_out);
    }
    if result.lost > 0 {
        out += &format!("{} operations are missing in the trace\n", result.lost);
    }
    out
}
