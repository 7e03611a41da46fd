//! One module an engine: its settings for the budget, and nothing else.

#[cfg(feature = "fjall")]
pub(crate) mod fjall;
#[cfg(feature = "leveldb")]
pub(crate) mod leveldb;
#[cfg(feature = "redb")]
pub(crate) mod redb;
#[cfg(feature = "rocksdb")]
pub(crate) mod rocksdb;
#[cfg(feature = "siltstone")]
pub(crate) mod siltstone;

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::run::{self, Job, Row};
use crate::steady;

/// Calls a function with the type of an engine's store.
macro_rules! with_store {
    ($engine:expr, $module:ident::$function:ident, ($($argument:expr),*)) => {
        match $engine {
            #[cfg(feature = "siltstone")]
            Engine::Siltstone => $module::$function::<siltstone::Siltstone>($($argument),*),
            #[cfg(feature = "rocksdb")]
            Engine::RocksDb => $module::$function::<rocksdb::RocksDb>($($argument),*),
            #[cfg(feature = "leveldb")]
            Engine::LevelDb => $module::$function::<leveldb::LevelDb>($($argument),*),
            #[cfg(feature = "fjall")]
            Engine::Fjall => $module::$function::<fjall::Fjall>($($argument),*),
            #[cfg(feature = "redb")]
            Engine::Redb => $module::$function::<redb::Redb>($($argument),*),
            #[cfg(not(all(
                feature = "siltstone",
                feature = "rocksdb",
                feature = "leveldb",
                feature = "fjall",
                feature = "redb"
            )))]
            other => anyhow::bail!("this build has no {}: enable the feature of that name", other.name()),
        }
    };
}

/// The engines that can be compared; those that this build was made without are refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub(crate) enum Engine {
    /// Ours.
    Siltstone,
    /// RocksDB, the mark that ratios refer to.
    RocksDb,
    /// LevelDB, the system's.
    LevelDb,
    /// fjall, an LSM store in Rust.
    Fjall,
    /// redb, a copy-on-write B-tree in Rust: a reference, not an LSM store.
    Redb,
}

impl Engine {
    /// Its name in tables and on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Engine::Siltstone => "siltstone",
            Engine::RocksDb => "rocksdb",
            Engine::LevelDb => "leveldb",
            Engine::Fjall => "fjall",
            Engine::Redb => "redb",
        }
    }

    /// Runs `job` in this process.
    ///
    /// # Errors
    /// What the engine says, and an engine that this build lacks.
    pub(crate) fn run(self, job: &Job, dir: &Path) -> Result<Vec<Row>> {
        with_store!(self, run::run, (self, job, dir))
    }

    /// Bears a steady load in this process.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub(crate) fn steady(self, job: &steady::Job, dir: &Path) -> Result<steady::Outcome> {
        with_store!(self, steady::run, (self, job, dir))
    }
}
