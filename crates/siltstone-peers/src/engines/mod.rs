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
        match self {
            #[cfg(feature = "siltstone")]
            Engine::Siltstone => run::run::<siltstone::Siltstone>(self, job, dir),
            #[cfg(feature = "rocksdb")]
            Engine::RocksDb => run::run::<rocksdb::RocksDb>(self, job, dir),
            #[cfg(feature = "leveldb")]
            Engine::LevelDb => run::run::<leveldb::LevelDb>(self, job, dir),
            #[cfg(feature = "fjall")]
            Engine::Fjall => run::run::<fjall::Fjall>(self, job, dir),
            #[cfg(feature = "redb")]
            Engine::Redb => run::run::<redb::Redb>(self, job, dir),
            #[cfg(not(all(
                feature = "siltstone",
                feature = "rocksdb",
                feature = "leveldb",
                feature = "fjall",
                feature = "redb"
            )))]
            other => anyhow::bail!("this build has no {}: enable the feature of that name", other.name()),
        }
    }
}
