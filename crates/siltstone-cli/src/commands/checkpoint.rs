//! `checkpoint STORE DIR`

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::progress::line;
use crate::store::{StoreArgs, shown};

/// Copy the store by hard links: quick, and no space until the stores grow apart.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone checkpoint shop shop-monday
  siltstone get shop-monday apple      a checkpoint is a store like any other

DIR must not exist and must be on the same file system.")]
pub(crate) struct Checkpoint {
    #[command(flatten)]
    store: StoreArgs,
    /// Folder to make
    dir: PathBuf,
}

impl Checkpoint {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        let db = self.store.open()?;
        db.checkpoint(&self.dir)?;
        db.close()?;
        line(&format!("checkpoint: {} is complete", shown(&self.dir)));
        Ok(ExitCode::SUCCESS)
    }
}
