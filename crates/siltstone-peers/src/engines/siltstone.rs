//! Siltstone: the budget, its defaults for the rest.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use siltstone::db::{Db, Durability, Keyspace};
use siltstone::options::Compression as Codec;
use siltstone::{KeyspaceOptions, Options};

use crate::store::{Budget, Compression, Sink, Store};

/// An open Siltstone store and its default keyspace.
pub(crate) struct Siltstone {
    db: Db,
    keyspace: Keyspace,
    durability: Durability,
}

impl Store for Siltstone {
    fn open(path: &Path, budget: &Budget) -> Result<Siltstone> {
        let db = Db::open(path, options(budget)?)?;
        let durability = if budget.sync { Durability::Sync } else { Durability::Buffered };
        Ok(Siltstone { keyspace: db.default_keyspace(), db, durability })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.keyspace.put_with(key, value, self.durability)?)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        Ok(self.keyspace.delete_with(key, self.durability)?)
    }

    fn get(&self, key: &[u8], sink: &mut Sink) -> Result<bool> {
        let value = self.keyspace.get(key)?;
        if let Some(value) = &value {
            sink.take(value);
        }
        Ok(value.is_some())
    }

    fn scan(&self, from: &[u8], nexts: usize, sink: &mut Sink) -> Result<usize> {
        let mut range = self.keyspace.range(from..)?;
        let mut seen = 0;
        while seen <= nexts && range.advance()? {
            sink.take(range.key());
            sink.take(range.value());
            seen += 1;
        }
        Ok(seen)
    }

    fn settle(&self) -> Result<Instant> {
        self.db.flush()?;
        self.db.wait_idle()?;
        Ok(Instant::now())
    }

    fn debt_bytes(&self) -> Option<u64> {
        Some(self.db.stats().debt_bytes)
    }

    fn held(&self) -> Option<Duration> {
        let waits = self.db.stats().keyspaces.into_iter().map(|keyspace| keyspace.pace_ns + keyspace.stall_ns);
        Some(Duration::from_nanos(waits.sum()))
    }

    fn statistics(&self) -> serde_json::Value {
        serde_json::to_value(self.db.stats()).unwrap_or_default()
    }
}

/// The budget as options. Flushes have a thread of their own, so one of the budget's threads is not given to merges; RocksDB divides
/// its background jobs in the same way. All memtables together are what RocksDB calls `max_write_buffer_number`. Of that memory it takes what it
/// takes by default, if that is less.
fn options(budget: &Budget) -> Result<Options> {
    let (own, memtable_bytes) = (Options::default(), u64::try_from(budget.memtable_bytes)?);
    let budgeted = Options {
        write_memory_bytes: own.write_memory_bytes.min(memtable_bytes * u64::from(budget.memtables)),
        cache_bytes: u64::try_from(budget.cache_bytes)?,
        compaction_threads: u32::from(budget.threads).saturating_sub(1).max(1),
        keyspace: KeyspaceOptions {
            memtable_bytes: own.keyspace.memtable_bytes.min(memtable_bytes),
            block_bytes: u32::try_from(budget.block_bytes)?,
            filter_bits_per_key: f64::from(budget.filter_bits_per_key),
            compression: vec![match budget.compression {
                Compression::None => Codec::None,
                Compression::Lz4 => Codec::Lz4,
            }],
            ..KeyspaceOptions::default()
        },
        ..Options::default()
    };
    let mut text: toml::Table = budgeted.to_text().parse()?;
    merge(&mut text, budget.siltstone_options.parse().context("--siltstone-options")?);
    Ok(Options::from_text(&text.to_string())?)
}

/// Lays `over` on top of `table`, tables within tables included.
fn merge(table: &mut toml::Table, over: toml::Table) {
    for (name, value) in over {
        match (table.get_mut(&name), value) {
            (Some(toml::Value::Table(inner)), toml::Value::Table(value)) => merge(inner, value),
            (_, value) => drop(table.insert(name, value)),
        }
    }
}
