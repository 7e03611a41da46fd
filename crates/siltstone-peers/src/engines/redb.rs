//! redb: a copy-on-write B-tree with one transaction per operation, as every other engine's operations are atomic on their own.
//!
//! It has no log, so nothing lies between "a sync per commit" and "lost with the process": the unsynced form commits in memory and makes
//! every 10 000th commit durable, which also lets it reuse its pages. It promises less than the others' unsynced form.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Result;
use redb::{Database, Durability, ReadableDatabase, Table, TableDefinition};

use crate::store::{Budget, Sink, Store};

const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("default");
const COMMITS_PER_SYNC: u64 = 10_000;

/// An open redb database with one table.
pub(crate) struct Redb {
    db: Database,
    sync: bool,
    commits: AtomicU64,
}

impl Redb {
    fn write(&self, durable: bool, change: impl FnOnce(&mut Table<&[u8], &[u8]>) -> Result<()>) -> Result<()> {
        let mut transaction = self.db.begin_write()?;
        transaction.set_durability(if durable { Durability::Immediate } else { Durability::None })?;
        change(&mut transaction.open_table(TABLE)?)?;
        Ok(transaction.commit()?)
    }

    fn write_as_told(&self, change: impl FnOnce(&mut Table<&[u8], &[u8]>) -> Result<()>) -> Result<()> {
        let commit = self.commits.fetch_add(1, Ordering::Relaxed);
        self.write(self.sync || commit.is_multiple_of(COMMITS_PER_SYNC), change)
    }
}

impl Store for Redb {
    fn open(path: &Path, budget: &Budget) -> Result<Redb> {
        std::fs::create_dir_all(path)?;
        let mut builder = Database::builder();
        // It has no memtable: it gets the memory of all.
        builder.set_cache_size(budget.cache_bytes + usize::from(budget.memtables) * budget.memtable_bytes);
        let store = Redb { db: builder.create(path.join("redb"))?, sync: budget.sync, commits: AtomicU64::new(0) };
        store.write(true, |_| Ok(()))?;
        Ok(store)
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write_as_told(|table| {
            table.insert(key, value)?;
            Ok(())
        })
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.write_as_told(|table| {
            table.remove(key)?;
            Ok(())
        })
    }

    fn get(&self, key: &[u8], sink: &mut Sink) -> Result<bool> {
        let table = self.db.begin_read()?.open_table(TABLE)?;
        let value = table.get(key)?;
        if let Some(value) = &value {
            sink.take(value.value());
        }
        Ok(value.is_some())
    }

    fn scan(&self, from: &[u8], nexts: usize, sink: &mut Sink) -> Result<usize> {
        let table = self.db.begin_read()?.open_table(TABLE)?;
        let mut seen = 0;
        for entry in table.range(from..)?.take(nexts + 1) {
            let (key, value) = entry?;
            sink.take(key.value());
            sink.take(value.value());
            seen += 1;
        }
        Ok(seen)
    }

    fn settle(&self) -> Result<Instant> {
        self.write(true, |_| Ok(()))?;
        Ok(Instant::now())
    }
}
