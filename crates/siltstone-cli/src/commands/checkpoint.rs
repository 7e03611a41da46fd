//! `checkpoint STORE DIR`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Args;

use crate::interrupt::Interrupt;
use crate::progress::line;
use crate::store::{StoreArgs, shown};

/// Copy the store by hard links: quick, and no space until the stores grow apart.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone checkpoint shop shop-monday
  siltstone get shop-monday apple      a checkpoint is a store like any other

DIR must not exist, or be empty; the folder that it is made in must exist, on the same file system and outside the \
store.")]
pub(crate) struct Checkpoint {
    #[command(flatten)]
    store: StoreArgs,
    /// Folder to make
    dir: PathBuf,
}

impl Checkpoint {
    pub(crate) fn run(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        self.check_place()?;
        // Opening, which reads the log, is what may take a while.
        let db = self.store.open()?;
        interrupt.check(|| "interrupted; no checkpoint was made".to_owned())?;
        db.checkpoint(&self.dir)?;
        db.close()?;
        line(&format!("checkpoint: {} is complete", shown(&self.dir)));
        Ok(ExitCode::SUCCESS)
    }

    /// Refuses a place where a checkpoint would be in the way or would not be found.
    fn check_place(&self) -> anyhow::Result<()> {
        let dir =
            std::path::absolute(&self.dir).with_context(|| format!("cannot tell where {} is", shown(&self.dir)))?;
        let folder = dir.parent().unwrap_or(&dir);
        ensure!(folder.is_dir(), "there is no folder {}", shown(folder));
        // A store that is not there is told by opening it.
        if let (Ok(store), Ok(folder)) = (self.store.path.canonicalize(), folder.canonicalize()) {
            ensure!(!folder.starts_with(&store), "{} is inside the store: choose a folder outside", shown(&self.dir));
        }
        Ok(())
    }
}
