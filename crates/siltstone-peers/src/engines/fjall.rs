//! fjall: the budget, its defaults for the rest.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use fjall::config::{BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use crate::process;
use crate::store::{Budget, Compression, Sink, Store};

/// An open fjall database with one keyspace.
pub(crate) struct Fjall {
    db: Database,
    keyspace: Keyspace,
    sync: bool,
}

impl Fjall {
    fn persist(&self) -> Result<()> {
        if self.sync {
            self.db.persist(PersistMode::SyncData)?;
        }
        Ok(())
    }
}

impl Store for Fjall {
    fn open(path: &Path, budget: &Budget) -> Result<Fjall> {
        let db = Database::builder(path)
            .cache_size(u64::try_from(budget.cache_bytes)?)
            .worker_threads(usize::from(budget.threads))
            .journal_compression(CompressionType::None)
            .open()?;
        let filter = BloomConstructionPolicy::BitsPerKey(f32::from(budget.filter_bits_per_key));
        let memtable_bytes = u64::try_from(budget.memtable_bytes)?;
        let block_bytes = u32::try_from(budget.block_bytes)?;
        let compression = match budget.compression {
            Compression::None => CompressionPolicy::disabled(),
            Compression::Lz4 => CompressionPolicy::all(CompressionType::Lz4),
        };
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(memtable_bytes)
                .data_block_size_policy(BlockSizePolicy::all(block_bytes))
                .data_block_compression_policy(compression.clone())
                .index_block_compression_policy(CompressionPolicy::disabled())
                .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(filter)))
        };
        let keyspace = db.keyspace("default", options)?;
        Ok(Fjall { db, keyspace, sync: budget.sync })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.keyspace.insert(key, value)?;
        self.persist()
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.keyspace.remove(key)?;
        self.persist()
    }

    fn get(&self, key: &[u8], sink: &mut Sink) -> Result<bool> {
        let value = self.keyspace.get(key)?;
        if let Some(value) = &value {
            sink.take(value);
        }
        Ok(value.is_some())
    }

    fn scan(&self, from: &[u8], nexts: usize, sink: &mut Sink) -> Result<usize> {
        let mut seen = 0;
        for entry in self.keyspace.range(from..).take(nexts + 1) {
            let (key, value) = entry.into_inner()?;
            sink.take(&key);
            sink.take(&value);
            seen += 1;
        }
        Ok(seen)
    }

    fn settle(&self) -> Result<Instant> {
        self.keyspace.rotate_memtable_and_wait()?;
        // Compactions that are due but not started cannot be asked for.
        loop {
            let quiet_since = process::wait_until_quiet()?;
            if self.db.outstanding_flushes() == 0 && self.db.active_compactions() == 0 {
                return Ok(quiet_since);
            }
        }
    }
}
