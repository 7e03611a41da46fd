//! `delete STORE KEY`

use std::process::ExitCode;

use clap::Args;

use super::DurabilityArg;
use crate::store::{KeyspaceArgs, Spelling};

/// Remove a key. Removing a key that is not there is no error.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone delete shop apple
  siltstone delete shop 00ff --hex")]
pub(crate) struct Delete {
    #[command(flatten)]
    place: KeyspaceArgs,
    /// The key
    #[arg(allow_hyphen_values = true)]
    key: String,
    #[command(flatten)]
    spelling: Spelling,
    /// When the delete is safe from what
    #[arg(long, value_enum, default_value = "sync")]
    durability: DurabilityArg,
}

impl Delete {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        let key = self.spelling.bytes("key", &self.key)?;
        let db = self.place.store.open()?;
        self.place.find_to_change(&db)?.delete_with(&key, self.durability.into())?;
        self.durability.keep(&db)?;
        db.close()?;
        Ok(ExitCode::SUCCESS)
    }
}
