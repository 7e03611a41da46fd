//! One module an engine: its settings for the budget, and nothing else.

#[cfg(feature = "fjall")]
pub(crate) mod fjall;
#[cfg(feature = "leveldb")]
pub(crate) mod leveldb;
#[cfg(feature = "pebble")]
pub(crate) mod pebble;
#[cfg(feature = "redb")]
pub(crate) mod redb;
#[cfg(feature = "rocksdb")]
pub(crate) mod rocksdb;
#[cfg(feature = "siltstone")]
pub(crate) mod siltstone;

use std::path::Path;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::row::Row;
use crate::run::{self, Job};
use crate::store::Compression;
use crate::{spec, steady};

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
            #[cfg(feature = "pebble")]
            Engine::Pebble => $module::$function::<pebble::Pebble>($($argument),*),
            #[cfg(feature = "redb")]
            Engine::Redb => $module::$function::<redb::Redb>($($argument),*),
            #[cfg(not(all(
                feature = "siltstone",
                feature = "rocksdb",
                feature = "leveldb",
                feature = "fjall",
                feature = "pebble",
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
    /// Pebble, an LSM store in Go.
    Pebble,
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
            Engine::Pebble => "pebble",
            Engine::Redb => "redb",
        }
    }

    /// Whether it is a log-structured merge store: redb is a reference only.
    pub(crate) fn is_lsm(self) -> bool {
        self != Engine::Redb
    }

    /// Checks that it can compress like this.
    ///
    /// # Errors
    /// If it, or this build of it, cannot.
    pub(crate) fn check(self, compression: Compression) -> Result<()> {
        if compression == Compression::Lz4 {
            let can = !matches!(self, Engine::LevelDb | Engine::Pebble | Engine::Redb);
            ensure!(
                can,
                "{} has no LZ4 (LevelDB has Snappy alone, Pebble Snappy, Zstandard and MinLZ, redb nothing): leave it out",
                self.name()
            );
            let is_built = self != Engine::RocksDb || cfg!(feature = "rocksdb-lz4");
            ensure!(
                is_built,
                "this build's RocksDB has no LZ4: enable the feature `rocksdb-lz4`, which compiles it anew"
            );
        }
        Ok(())
    }

    /// Runs the phases of a spec in this process.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub(crate) fn spec(self, job: &spec::Job, dir: &Path) -> Result<Vec<Row>> {
        with_store!(self, spec::run, (self, job, dir))
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
