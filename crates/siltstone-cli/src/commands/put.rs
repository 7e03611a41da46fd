//! `put STORE KEY VALUE`

use std::io::Read;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;

use super::DurabilityArg;
use crate::format::too_long;
use crate::store::{KeyspaceArgs, Spelling};

/// Store a record.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone put shop apple red
  siltstone put shop 00ff 0102 --hex
  siltstone put shop photo - < photo.jpg      the value from standard input
  siltstone put shop apple red --keyspace fruit --set keyspace.strategy=tiering

Makes the store and the keyspace when there is none.")]
pub(crate) struct Put {
    #[command(flatten)]
    place: KeyspaceArgs,
    /// The key
    #[arg(allow_hyphen_values = true)]
    key: String,
    /// The value; `-` reads standard input, byte for byte
    #[arg(allow_hyphen_values = true)]
    value: String,
    #[command(flatten)]
    spelling: Spelling,
    /// When the write is safe from what
    #[arg(long, value_enum, default_value = "sync")]
    durability: DurabilityArg,
}

impl Put {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        let key = self.spelling.bytes("key", &self.key)?;
        let value = if self.value == "-" { from_stdin()? } else { self.spelling.bytes("value", &self.value)? };
        if let Some(why) = too_long(&key, &value) {
            bail!(why);
        }
        let db = self.place.store.open_or_create()?;
        self.place.find_or_create(&db)?.put_with(&key, &value, self.durability.into())?;
        self.durability.keep(&db)?;
        db.close()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// All of standard input, but never much more than the longest value.
fn from_stdin() -> anyhow::Result<Vec<u8>> {
    let most = u64::try_from(siltstone::key::MAX_VALUE_BYTES)?;
    let mut value = Vec::new();
    std::io::stdin()
        .lock()
        .take(most + 1)
        .read_to_end(&mut value)
        .context("cannot read the value from standard input")?;
    Ok(value)
}
