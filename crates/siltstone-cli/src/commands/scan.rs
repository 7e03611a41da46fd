//! `scan STORE`

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use siltstone::Keyspace;

use crate::format::{Format, write_key};
use crate::interrupt::Interrupt;
use crate::output::{Output, hex};
use crate::store::{Bounds, KeyspaceArgs, RangeArgs, Spelling, is_backwards, within_prefix};

/// List records in key order: key, tab, value.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone scan shop
  siltstone scan shop --prefix app --keys-only
  siltstone scan shop --from apple --to pear --limit 10
  siltstone scan shop --reverse --limit 1 --json      the last record
  siltstone scan shop --keys-only --json              the keys alone, whatever bytes they hold

Keys and values are printed as they are; --json is safe for any bytes, `export` is faster.")]
pub(crate) struct Scan {
    #[command(flatten)]
    place: KeyspaceArgs,
    #[command(flatten)]
    range: RangeArgs,
    /// Keys that start with this
    #[arg(long, value_name = "KEY")]
    prefix: Option<String>,
    /// From the last key to the first
    #[arg(long)]
    reverse: bool,
    /// Stop after this many records
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Leave the values out
    #[arg(long)]
    keys_only: bool,
    #[command(flatten)]
    spelling: Spelling,
    /// Print JSON lines, `key_hex` and `value_hex` where a text is no UTF-8
    #[arg(long, conflicts_with = "hex")]
    json: bool,
}

/// Prints one record.
type Print<'a> = dyn FnMut(&[u8], &[u8]) -> anyhow::Result<()> + 'a;

impl Scan {
    pub(crate) fn run(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        let mut bounds = self.range.bounds(self.spelling)?;
        if let Some(prefix) = &self.prefix {
            bounds = within_prefix(bounds, &self.spelling.bytes("prefix", prefix)?);
        }
        // Once: a second try would print a second time what the first one did.
        self.place.store.reading(1, || self.print(bounds.clone(), interrupt))?;
        Ok(ExitCode::SUCCESS)
    }

    fn print(&self, bounds: Bounds, interrupt: &Interrupt) -> anyhow::Result<()> {
        let db = self.place.store.open_to_read()?;
        let keyspace = self.place.find(&db)?;
        let mut output = Output::new();
        if self.json && self.keys_only {
            self.each(&keyspace, bounds, interrupt, &mut |key, _| write_key(&mut output, key))?;
        } else if self.json {
            let mut writer = Format::Jsonl.writer(output, false)?;
            self.each(&keyspace, bounds, interrupt, &mut |key, value| writer.write(key, value))?;
            output = writer.finish()?;
        } else {
            self.each(&keyspace, bounds, interrupt, &mut |key, value| Ok(self.line(&mut output, key, value)?))?;
        }
        Ok(output.finish()?)
    }

    fn line(&self, output: &mut Output, key: &[u8], value: &[u8]) -> std::io::Result<()> {
        let mut write = |bytes: &[u8]| {
            if self.spelling.hex { output.write_all(hex(bytes).as_bytes()) } else { output.write_all(bytes) }
        };
        write(key)?;
        if !self.keys_only {
            output.write_all(b"\t")?;
            if self.spelling.hex { output.write_all(hex(value).as_bytes())? } else { output.write_all(value)? }
        }
        output.write_all(b"\n")
    }

    /// Calls `print` for each record that was asked for.
    fn each(
        &self,
        keyspace: &Keyspace,
        bounds: Bounds,
        interrupt: &Interrupt,
        print: &mut Print<'_>,
    ) -> anyhow::Result<()> {
        if is_backwards(&bounds) {
            return Ok(());
        }
        let mut range = keyspace.range(bounds)?;
        let mut left = self.limit.unwrap_or(u64::MAX);
        while left > 0 {
            if self.reverse {
                let Some(record) = range.next_back() else { break };
                let (key, value) = record?;
                print(&key, &value)?;
            } else {
                if !range.advance()? {
                    break;
                }
                print(range.key(), range.value())?;
            }
            left -= 1;
            interrupt.check(|| "interrupted".to_owned())?;
        }
        Ok(())
    }
}
