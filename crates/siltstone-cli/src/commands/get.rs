//! `get STORE KEY`

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use siltstone::Bytes;

use crate::format::Format;
use crate::output::{Output, hex, visible};
use crate::store::{KeyspaceArgs, Spelling, TRIES};

/// Characters of a missing key that are shown.
const KEY_CHARS: usize = 60;

/// Print the value of a key.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone get shop apple
  siltstone get shop 00ff --hex
  siltstone get shop apple --json      {\"key\":\"apple\",\"value\":\"red\"}

The value is printed as it is, with a line feed after it; --raw leaves that out. Exit code 1: no such key.")]
pub(crate) struct Get {
    #[command(flatten)]
    place: KeyspaceArgs,
    /// The key
    #[arg(allow_hyphen_values = true)]
    key: String,
    #[command(flatten)]
    spelling: Spelling,
    /// Print the record as a JSON line, `key_hex` and `value_hex` where it is no UTF-8
    #[arg(long, conflicts_with = "raw")]
    json: bool,
    /// No line feed after the value
    #[arg(long)]
    raw: bool,
}

impl Get {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        let key = self.spelling.bytes("key", &self.key)?;
        let found =
            self.place.store.reading(TRIES, || Ok(self.place.find(&self.place.store.open_to_read()?)?.get(&key)?));
        let Some(value) = found? else {
            crate::progress::line(&format!("siltstone: no such key: {}", visible(self.key.as_bytes(), KEY_CHARS)));
            return Ok(ExitCode::from(1));
        };
        self.print(&key, &value)?;
        Ok(ExitCode::SUCCESS)
    }

    fn print(&self, key: &[u8], value: &Bytes) -> anyhow::Result<()> {
        let mut output = Output::new();
        if self.json {
            let mut writer = Format::Jsonl.writer(output, false)?;
            writer.write(key, value)?;
            output = writer.finish()?;
        } else {
            if self.spelling.hex {
                output.write_all(hex(value).as_bytes())?;
            } else {
                output.write_all(value)?;
            }
            if !self.raw {
                output.write_all(b"\n")?;
            }
        }
        Ok(output.finish()?)
    }
}
