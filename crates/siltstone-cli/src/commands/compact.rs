//! `compact STORE`

use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use siltstone_lab::report::bytes;

use crate::interrupt::Interrupt;
use crate::progress::line;
use crate::store::{KeyspaceArgs, RangeArgs, Spelling, is_backwards};

/// Merge a range of keys, or everything, to the last level: frees the space of old versions, makes one run.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone compact shop
  siltstone compact shop --from a --to m

Ctrl-C ends it cleanly; what was merged until then stays merged.")]
pub(crate) struct Compact {
    #[command(flatten)]
    place: KeyspaceArgs,
    #[command(flatten)]
    range: RangeArgs,
    #[command(flatten)]
    spelling: Spelling,
}

impl Compact {
    pub(crate) fn run(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        let bounds = self.range.bounds(self.spelling)?;
        let db = self.place.store.open()?;
        let keyspace = self.place.find_to_change(&db)?;
        if is_backwards(&bounds) {
            line("compact: no key is in the range: --from is not before --to");
            return Ok(ExitCode::SUCCESS);
        }
        // What is in memory belongs to the size before.
        keyspace.flush()?;
        let before = db.stats();
        let start = Instant::now();
        keyspace.compact(bounds, &interrupt.cancel())?;
        let after = db.stats();
        line(&format!(
            "compact: {} -> {}, {} -> {} runs, wrote {} in {:.1} s",
            bytes(before.disk_bytes),
            bytes(after.disk_bytes),
            before.runs,
            after.runs,
            bytes(after.compaction_bytes_written.saturating_sub(before.compaction_bytes_written)),
            start.elapsed().as_secs_f64()
        ));
        db.close()?;
        Ok(ExitCode::SUCCESS)
    }
}
