//! `import STORE FILE`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use siltstone::{Batch, Db, Durability};

use super::DurabilityArg;
use super::args::Telling;
use crate::failure::Interrupted;
use crate::format::{self, Format, Next, Place, open_import};
use crate::interrupt::Interrupt;
use crate::output::{plural, print_json};
use crate::progress::{Done, Meter, line};
use crate::store::{KeyspaceArgs, shown};

/// A batch is written when it holds this many bytes or records.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_RECORDS: usize = 1000;
/// Bad lines that are told one by one; the others are only counted.
const TOLD: u64 = 20;

/// Load records from a file or standard input.
#[derive(Args)]
#[command(mut_arg("json", |arg| arg.help("Print the totals as JSON")))]
#[command(after_long_help = "Examples:
  siltstone import shop words.tsv                  key, tab, value, byte for byte
  siltstone import shop people.csv --header        two columns, the first line names them
  siltstone import shop log.jsonl.zst --on-error skip
  apt-cache dumpavail | awk ... | siltstone import shop - --format tsv

The format follows from the ending: .tsv .csv .jsonl .ndjson, each plain, .gz or .zst; standard input is TSV unless \
--format says otherwise. Records go in while the file is read; a key that is there already gets the new value. When \
the import ends, for whatever reason, what was read until then is stored and synced.")]
pub(crate) struct Import {
    #[command(flatten)]
    place: KeyspaceArgs,
    /// The file; `-` for standard input
    file: PathBuf,
    /// How records are written down, where the ending does not tell
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// The first line of a CSV file names the columns
    #[arg(long)]
    header: bool,
    /// What to do about a bad line
    #[arg(long, value_enum, default_value = "stop")]
    on_error: OnError,
    /// When each batch of about 1 MiB is safe from what; in any case all is synced at the end
    #[arg(long, value_enum, default_value = "buffered")]
    durability: DurabilityArg,
    #[command(flatten)]
    telling: Telling,
}

/// What a bad line does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum OnError {
    /// End the import with the line's number
    Stop,
    /// Tell, count, and go on
    Skip,
}

#[derive(Serialize)]
struct Totals {
    #[serde(flatten)]
    done: Done,
    bad_lines: u64,
}

impl Import {
    pub(crate) fn run(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        let place = Place::from(self.file.as_path());
        let mut input = open_import(&place, self.format, self.header)?;
        let db = self.place.store.open_or_create()?;
        let keyspace = self.place.find_or_create(&db)?;
        let mut meter = Meter::new("import", "records", input.total, self.telling.quiet);
        let mut loader = Loader {
            db: &db,
            durability: self.durability.into(),
            batch: Batch::new(),
            batch_bytes: 0,
            records: 0,
            bytes: 0,
        };
        let (mut bad_lines, mut stored_line) = (0, 0);
        let end = loop {
            if interrupt.is_set() {
                break Err(None);
            }
            match input.reader.next() {
                Err(error) => {
                    break Err(Some(anyhow::Error::new(error).context(format!("after line {}", input.reader.line()))));
                }
                Ok(Next::End) => break Ok(()),
                Ok(Next::Bad(why)) if self.on_error == OnError::Stop => {
                    let line = input.reader.line();
                    break Err(Some(anyhow::anyhow!(
                        "line {line}: {why}: mend it, or go on without bad lines: --on-error skip"
                    )));
                }
                Ok(Next::Bad(why)) => {
                    bad_lines += 1;
                    tell_bad_line(bad_lines, input.reader.line(), &why);
                }
                Ok(Next::Record) => {
                    loader.batch.put(&keyspace, input.reader.key(), input.reader.value());
                    match loader.added(input.reader.key().len() + input.reader.value().len()) {
                        Ok(false) => {}
                        Ok(true) => {
                            stored_line = input.reader.line();
                            meter.update(loader.records, loader.bytes, input.position());
                        }
                        // A full disk, most likely.
                        Err(error) => {
                            break Err(Some(anyhow::Error::new(error).context(format!("after line {stored_line}"))));
                        }
                    }
                }
            }
        };
        let synced = loader.write().and_then(|()| self.sync(&db));
        let (records, bytes) = (loader.records, loader.bytes);
        let synced_or_not = if synced.is_ok() { "and synced" } else { "but could not be synced" };
        match end.and(synced.and(db.close()).map_err(|error| Some(error.into()))) {
            Ok(()) => {
                let done = meter.finish(records, bytes);
                if bad_lines > 0 {
                    line(&format!("import: {} left out", plural(bad_lines, "bad line")));
                }
                if self.telling.json {
                    print_json(&Totals { done, bad_lines })?;
                }
                Ok(ExitCode::SUCCESS)
            }
            Err(why) => {
                meter.clear();
                let were = if records == 1 { "was" } else { "were" };
                let kept = format!("{} {were} stored {synced_or_not}", plural(records, "record"));
                let of = if place == Place::Stream { "standard input".to_owned() } else { shown(&self.file) };
                match why {
                    None => bail!(Interrupted::leaving(kept)),
                    Some(error) => Err(error).with_context(|| format!("import of {of} ended, {kept}")),
                }
            }
        }
    }

    fn sync(&self, db: &Db) -> siltstone::Result<()> {
        self.durability.keep(db)?;
        db.sync()
    }
}

fn tell_bad_line(count: u64, number: u64, why: &str) {
    if count <= TOLD {
        line(&format!("import: line {number}: {why}"));
    }
    if count == TOLD {
        line("import: further bad lines are counted, not told");
    }
}

/// Collects records in batches.
struct Loader<'a> {
    db: &'a Db,
    durability: Durability,
    batch: Batch,
    batch_bytes: usize,
    /// Records and bytes that were written.
    records: u64,
    bytes: u64,
}

impl Loader<'_> {
    /// A record of `bytes` bytes was added to the batch. Writes the batch when it is large enough, and says so.
    fn added(&mut self, bytes: usize) -> siltstone::Result<bool> {
        self.batch_bytes += bytes;
        let full = self.batch_bytes >= BATCH_BYTES || self.batch.len() >= BATCH_RECORDS;
        if full {
            self.write()?;
        }
        Ok(full)
    }

    /// Writes what is in the batch, which is empty then in any case: a write that failed ends the import.
    fn write(&mut self) -> siltstone::Result<()> {
        let (records, bytes) = (self.batch.len(), std::mem::take(&mut self.batch_bytes));
        if records > 0 {
            let written = self.db.write_with(&self.batch, self.durability);
            self.batch.clear();
            written?;
            let count = |n| u64::try_from(n).unwrap_or(u64::MAX);
            self.records += count(records);
            self.bytes += count(bytes);
        }
        Ok(())
    }
}

/// A file as the input of a comparison, which reads it once for each strategy and once before.
pub(crate) struct FileSource {
    pub(crate) path: PathBuf,
    pub(crate) format: Option<Format>,
    pub(crate) header: bool,
    pub(crate) on_error: OnError,
}

impl siltstone_lab::compare::Source for FileSource {
    fn describe(&self) -> String {
        shown(&self.path)
    }

    fn records(&self) -> Option<u64> {
        None
    }

    fn open(&self) -> anyhow::Result<Box<dyn siltstone_lab::compare::Records + '_>> {
        let input = open_import(&Place::File(self.path.clone()), self.format, self.header)?;
        Ok(Box::new(FileRecords { source: self, input }))
    }
}

struct FileRecords<'a> {
    source: &'a FileSource,
    input: format::Import,
}

impl siltstone_lab::compare::Records for FileRecords<'_> {
    fn next(&mut self) -> anyhow::Result<Option<siltstone_lab::compare::Record<'_>>> {
        let reader = &mut self.input.reader;
        loop {
            match reader.next().with_context(|| shown(&self.source.path))? {
                Next::End => return Ok(None),
                Next::Record => break,
                Next::Bad(_) if self.source.on_error == OnError::Skip => {}
                Next::Bad(why) => bail!(
                    "{}, line {}: {why}: mend it, or go on without bad lines: --on-error skip",
                    shown(&self.source.path),
                    reader.line()
                ),
            }
        }
        Ok(Some((self.input.reader.key(), self.input.reader.value())))
    }
}
