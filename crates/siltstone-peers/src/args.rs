//! What the commands have in common on the command line: the budget of an engine, and what is stored.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::engines::Engine;
use crate::host::Host;
use crate::run::Job;
use crate::store::{Budget, Compression};
use crate::workload::Workload;

/// The block cache as a share of what is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CacheShare {
    /// All of it, and a quarter more for what a store adds.
    All,
    /// A third.
    Third,
    /// A fiftieth.
    Fiftieth,
}

impl CacheShare {
    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            CacheShare::All => "all",
            CacheShare::Third => "third",
            CacheShare::Fiftieth => "fiftieth",
        }
    }

    fn of(self, data_bytes: u64) -> u64 {
        match self {
            CacheShare::All => data_bytes + data_bytes / 4,
            CacheShare::Third => data_bytes / 3,
            CacheShare::Fiftieth => data_bytes / 50,
        }
    }
}

/// Where engines store, and what of the budget is the same in every setting.
#[derive(Args, Clone)]
pub(crate) struct Common {
    /// Folder for the stores, on the disk that is to be measured; what lies in its subfolders `ENGINE` is removed
    #[arg(long, default_value = "target/peers-stores")]
    pub(crate) dir: PathBuf,
    /// Make every write durable before it returns
    #[arg(long)]
    pub(crate) sync: bool,
    /// MiB that the process of an engine may have, page cache included: stores beyond memory; needs root [default: no bound]
    #[arg(long, value_parser = clap::value_parser!(u64).range(64..=1 << 20))]
    memory: Option<u64>,
    /// Memtable, MiB; Siltstone's are 16 if that is less, and 64 all together
    #[arg(long, default_value_t = 64)]
    memtable: usize,
    /// Memtables: the one that is written, and those that wait for their flush;
    /// RocksDB's own default is 2
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..))]
    memtables: u8,
    /// Background threads; all but one of them merge
    #[arg(long, default_value_t = 2)]
    threads: u8,
    /// Options of Siltstone that replace the budget's, as TOML: 'compaction_threads = 2'
    #[arg(long, default_value = "")]
    siltstone_options: String,
    /// LevelDB verifies block checksums when it reads, as the others do by default and it does not
    #[arg(long)]
    leveldb_verifies: bool,
}

impl Common {
    /// Where engines run.
    ///
    /// # Errors
    /// If memory cannot be limited.
    pub(crate) fn host(&self) -> Result<Host> {
        Host::new(&self.dir, self.memory_bytes())
    }

    /// Whether so many bytes of keys and values do not fit into memory.
    pub(crate) fn is_beyond_memory(&self, data_bytes: u64) -> bool {
        self.memory_bytes().is_some_and(|memory| memory < data_bytes)
    }

    fn memory_bytes(&self) -> Option<u64> {
        self.memory.map(|mib| mib << 20)
    }
}

/// What a table of comparisons varies.
#[derive(Args, Clone)]
pub(crate) struct Setting {
    /// Block cache, MiB
    #[arg(long, default_value_t = 256)]
    pub(crate) cache: usize,
    /// Block cache as a share of the bytes of all keys and values
    #[arg(long, conflicts_with = "cache")]
    pub(crate) cache_share: Option<CacheShare>,
    /// Compression of data blocks; engines without it are refused
    #[arg(long, default_value = "none")]
    pub(crate) compression: Compression,
}

impl Setting {
    /// The budget of a store for so many bytes of keys and values.
    ///
    /// # Errors
    /// If that many bytes of cache cannot be addressed.
    pub(crate) fn budget(&self, common: &Common, data_bytes: u64) -> Result<Budget> {
        let cache_bytes = match self.cache_share {
            Some(share) => usize::try_from(share.of(data_bytes))?,
            None => self.cache << 20,
        };
        Ok(Budget {
            memtable_bytes: common.memtable << 20,
            memtables: common.memtables,
            cache_bytes,
            block_bytes: 4096,
            filter_bits_per_key: 10,
            compression: self.compression,
            threads: common.threads,
            sync: common.sync,
            siltstone_options: common.siltstone_options.clone(),
            leveldb_verifies: common.leveldb_verifies,
        })
    }

    /// Checks that there are engines and that each can compress as is wanted.
    ///
    /// # Errors
    /// The first one that cannot.
    pub(crate) fn check(&self, engines: &[Engine]) -> Result<()> {
        ensure!(!engines.is_empty(), "at least one engine");
        engines.iter().try_for_each(|engine| engine.check(self.compression))
    }
}

/// What `db_bench`'s workloads store and read.
#[derive(Args, Clone)]
pub(crate) struct Load {
    /// Keys in the store [default: 5000000, with --sync 50000]
    #[arg(long)]
    pub(crate) num: Option<u64>,
    /// Bytes of a value
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub(crate) value_bytes: u32,
    /// Operations of a workload that reads
    #[arg(long, default_value_t = 500_000)]
    pub(crate) reads: u64,
    /// Seconds after which a workload that reads stops, and with --sync any [default: 5, with --memory 30: the system's cache fills at first]
    #[arg(long)]
    pub(crate) cap: Option<f64>,
    /// Fixes keys and values
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) setting: Setting,
    #[command(flatten)]
    pub(crate) common: Common,
}

impl Load {
    /// Keys in the store.
    pub(crate) fn num(&self) -> u64 {
        self.num.unwrap_or(if self.common.sync { 50_000 } else { 5_000_000 })
    }

    /// The job of one process.
    ///
    /// # Errors
    /// If there is nothing to store, or too much.
    pub(crate) fn job(&self, workloads: Vec<Workload>) -> Result<Job> {
        let num = self.num();
        ensure!(num > 0, "at least one key");
        let mut job = Job {
            budget: self.setting.budget(&self.common, 0)?,
            workloads,
            num,
            value_bytes: usize::try_from(self.value_bytes)?,
            reads: self.reads,
            cap_s: self.cap.unwrap_or(if self.common.memory.is_some() { 30.0 } else { 5.0 }),
            seed: self.seed,
            filled: false,
        };
        job.budget = self.setting.budget(&self.common, num * job.record_bytes())?;
        Ok(job)
    }
}
