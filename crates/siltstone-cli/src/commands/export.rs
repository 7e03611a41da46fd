//! `export STORE [FILE]`

use std::ops::Bound;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use siltstone::{Damage, Db};

use super::args::Telling;
use crate::format::{self, Format, Place};
use crate::interrupt::Interrupt;
use crate::output::{print_json, visible};
use crate::progress::{Done, Meter, line};
use crate::store::{Bounds, KeyspaceArgs, RangeArgs, Spelling, is_backwards};

/// Records between two looks at Ctrl-C and the progress.
const TICK: u64 = 1 << 10;

/// Characters of a key that are shown.
const KEY_CHARS: usize = 40;

/// Write all records to a file or standard output, in key order.
#[derive(Args)]
#[command(mut_arg("json", |arg| arg.help("Print the totals as JSON; only with a FILE")))]
#[command(after_long_help = "Examples:
  siltstone export shop                            TSV to standard output
  siltstone export shop shop.jsonl.zst
  siltstone export shop part.csv --from a --to m --header
  siltstone export shop rest.tsv --skip-damaged    what a damaged store still holds

The records are those of one moment, whatever is written meanwhile. A file appears only when it is complete: until \
then, and after a failure, an older file of the name stays. A link is followed; a pipe or a device is written as it \
is. TSV has no escapes, so a value with a line feed ends the export with an error; CSV and JSON lines hold any bytes.

--skip-damaged reads the store twice: first all of it, to find what is damaged. No key of a damaged range is written, \
not even from a file that is well: what was lost may be newer. The ranges are told on standard error, and the exit \
code is 2 if there are any.")]
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
    /// Leave out the ranges of keys that damaged files hold, instead of stopping there
    #[arg(long)]
    skip_damaged: bool,
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
        let (done, is_whole) = self.place.store.reading(1, || self.write(&place, bounds.clone(), interrupt))?;
        if self.telling.json {
            print_json(&done)?;
        }
        Ok(ExitCode::from(if is_whole { 0 } else { 2 }))
    }

    /// Writes the records. Also says whether none had to be left out.
    fn write(&self, place: &Place, bounds: Bounds, interrupt: &Interrupt) -> anyhow::Result<(Done, bool)> {
        let to_file = *place != Place::Stream;
        let db = self.place.store.open_to_read()?;
        let keyspace = self.place.find(&db)?;
        let snapshot = db.snapshot();
        let damage = if self.skip_damaged { self.find_damage(&db, interrupt)? } else { Vec::new() };
        let mut output = format::Export::open(place, self.format, self.header)?;
        let mut meter = Meter::new("export", "records", None, self.telling.quiet || !to_file);
        let (mut records, mut bytes) = (0u64, 0u64);
        let mut put = |key: &[u8], value: &[u8]| {
            output.write(key, value)?;
            records += 1;
            bytes += u64::try_from(key.len() + value.len())?;
            if records.is_multiple_of(TICK) {
                interrupt.check(|| {
                    if to_file { "interrupted: no file was written".to_owned() } else { "interrupted".to_owned() }
                })?;
                meter.update(records, bytes, 0);
            }
            anyhow::Ok(())
        };
        if is_backwards(&bounds) {
            // Holds nothing.
        } else if damage.is_empty() {
            let mut range = keyspace.range_at(bounds.clone(), &snapshot)?;
            while range.advance()? {
                put(range.key(), range.value())?;
            }
        } else {
            let mut rest = keyspace.salvage(bounds.clone(), &snapshot, &damage)?;
            while rest.advance()? {
                put(rest.key(), rest.value())?;
            }
        }
        output.finish()?;
        let done = meter.finish(records, bytes);
        Ok((done, !self.tell_lost(&damage, &bounds)))
    }

    fn find_damage(&self, db: &Db, interrupt: &Interrupt) -> anyhow::Result<Vec<Damage>> {
        let mut meter = Meter::new("verify", "blocks", Some(db.stats().disk_bytes), self.telling.quiet);
        let report = db.verify_watched(&mut |blocks, bytes| {
            meter.update(blocks, bytes, bytes);
            !interrupt.is_set()
        });
        meter.clear();
        Ok(report?.damage)
    }

    /// Tells which of the keys that were asked for are left out. Returns whether there are any.
    fn tell_lost(&self, damage: &[Damage], (from, to): &Bounds) -> bool {
        let is_asked_for = |damage: &&Damage| {
            let is_before = matches!(from, Bound::Included(from) if damage.last_key < *from);
            let is_after = matches!(to, Bound::Excluded(to) if damage.first_key >= *to);
            damage.keyspace == self.place.keyspace && !is_before && !is_after
        };
        let mut lost = 0;
        for Damage { file, what, first_key, last_key, .. } in damage.iter().filter(is_asked_for) {
            let (first, last) = (visible(first_key, KEY_CHARS), visible(last_key, KEY_CHARS));
            line(&format!("export: left out keys {first} .. {last}: {}: {what}", file.display()));
            lost += 1;
        }
        if lost > 0 {
            line(&format!("export: {lost} damaged ranges are left out; nothing else is missing"));
        }
        lost > 0
    }
}
