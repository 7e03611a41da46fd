//! `export STORE [FILE]`

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::args::Telling;
use crate::format::{self, Format, Place};
use crate::interrupt::Interrupt;
use crate::output::print_json;
use crate::progress::{Done, Meter};
use crate::store::{Bounds, KeyspaceArgs, RangeArgs, Spelling, is_backwards};

/// Records between two looks at Ctrl-C and the progress.
const TICK: u64 = 1 << 10;

/// Write all records to a file or standard output, in key order.
#[derive(Args)]
#[command(mut_arg("json", |arg| arg.help("Print the totals as JSON; only with a FILE")))]
#[command(after_long_help = "Examples:
  siltstone export shop                            TSV to standard output
  siltstone export shop shop.jsonl.zst
  siltstone export shop part.csv --from a --to m --header

The records are those of one moment, whatever is written meanwhile. A file appears only when it is complete: until then, and
after a failure, an older file of the name stays. TSV has no escapes, so a value with a line feed ends the export with an
error; CSV and JSON lines hold any bytes.")]
pub(crate) struct Export {
    #[command(flatten)]
    place: KeyspaceArgs,
    /// The file; `-`, or nothing, for standard output
    #[arg(default_value = "-")]
    file: PathBuf,
    /// How records are written down, where the ending does not tell
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Begin a CSV file with a line that names the columns
    #[arg(long)]
    header: bool,
    #[command(flatten)]
    range: RangeArgs,
    #[command(flatten)]
    spelling: Spelling,
    #[command(flatten)]
    telling: Telling,
}

impl Export {
    pub(crate) fn run(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        let place = Place::from(self.file.as_path());
        let to_file = place != Place::Stream;
        anyhow::ensure!(
            to_file || !self.telling.json,
            "--json prints totals to standard output, where the records go: give a FILE"
        );
        let bounds = self.range.bounds(self.spelling)?;
        // Once: a second try would write a second time what the first one did.
        let done = self.place.store.reading(1, || self.write(&place, bounds.clone(), interrupt))?;
        if self.telling.json {
            print_json(&done)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn write(&self, place: &Place, bounds: Bounds, interrupt: &Interrupt) -> anyhow::Result<Done> {
        let to_file = *place != Place::Stream;
        let db = self.place.store.open_to_read()?;
        let keyspace = self.place.find(&db)?;
        let snapshot = db.snapshot();
        let mut output = format::Export::open(place, self.format, self.header)?;
        let mut meter = Meter::new("export", "records", None, self.telling.quiet || !to_file);
        let (mut records, mut bytes) = (0u64, 0u64);
        if !is_backwards(&bounds) {
            let mut range = keyspace.range_at(bounds, &snapshot)?;
            while range.advance()? {
                let (key, value) = (range.key(), range.value());
                output.write(key, value)?;
                records += 1;
                bytes += u64::try_from(key.len() + value.len())?;
                if records.is_multiple_of(TICK) {
                    interrupt.check(|| {
                        if to_file { "interrupted; no file was written".to_owned() } else { "interrupted".to_owned() }
                    })?;
                    meter.update(records, bytes, 0);
                }
            }
        }
        output.finish()?;
        Ok(meter.finish(records, bytes))
    }
}
