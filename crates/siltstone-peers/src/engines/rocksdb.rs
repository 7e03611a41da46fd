//! RocksDB: its defaults, the budget, and from its tuning guide the hyper-clock cache and a steady write-back.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, Options, ReadOptions, WaitForCompactOptions, WriteOptions,
};

use crate::store::{Budget, Compression, Sink, Store};

/// An open RocksDB.
pub(crate) struct RocksDb {
    db: DB,
    write: WriteOptions,
}

impl Store for RocksDb {
    fn open(path: &Path, budget: &Budget) -> Result<RocksDb> {
        let mut table = BlockBasedOptions::default();
        table.set_block_size(budget.block_bytes);
        table.set_bloom_filter(f64::from(budget.filter_bits_per_key), false);
        // An estimate of 0 chooses the variant that sizes itself.
        table.set_block_cache(&Cache::new_hyper_clock_cache(budget.cache_bytes, 0));

        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&table);
        options.set_write_buffer_size(budget.memtable_bytes);
        options.set_max_write_buffer_number(i32::from(budget.memtables));
        options.set_max_background_jobs(i32::from(budget.threads));
        // All but the one that flushes may share a merge.
        options.set_max_subcompactions(u32::from(budget.threads).saturating_sub(1).max(1));
        options.set_compression_type(match budget.compression {
            Compression::None => DBCompressionType::None,
            Compression::Lz4 => DBCompressionType::Lz4,
        });
        options.set_bytes_per_sync(1 << 20);

        let mut write = WriteOptions::default();
        write.set_sync(budget.sync);
        Ok(RocksDb { db: DB::open(&options, path)?, write })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.db.put_opt(key, value, &self.write)?)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        Ok(self.db.delete_opt(key, &self.write)?)
    }

    fn get(&self, key: &[u8], sink: &mut Sink) -> Result<bool> {
        let value = self.db.get_pinned(key)?;
        if let Some(value) = &value {
            sink.take(value);
        }
        Ok(value.is_some())
    }

    fn scan(&self, from: &[u8], nexts: usize, sink: &mut Sink) -> Result<usize> {
        let mut iterator = self.db.raw_iterator_opt(ReadOptions::default());
        iterator.seek(from);
        let mut seen = 0;
        while let Some((key, value)) = iterator.item() {
            sink.take(key);
            sink.take(value);
            seen += 1;
            if seen > nexts {
                break;
            }
            iterator.next();
        }
        iterator.status()?;
        Ok(seen)
    }

    fn settle(&self) -> Result<Instant> {
        let mut options = WaitForCompactOptions::default();
        options.set_flush(true);
        self.db.wait_for_compact(&options)?;
        Ok(Instant::now())
    }

    fn debt_bytes(&self) -> Option<u64> {
        self.db.property_int_value(rocksdb::properties::ESTIMATE_PENDING_COMPACTION_BYTES).ok().flatten()
    }
}
