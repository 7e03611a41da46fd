//! What each kind of operation does to a store: what a user of the engine would do for it.

use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;

use siltstone::{Batch, Cancel, Db, Durability, Error, ErrorKind, Keyspace, Range, Result, Snapshot};

use super::stage::Crew;
use crate::workload::{Op, OpKind, value_belongs};

/// Deletes of a range go in batches of so many.
const RANGE_DELETE_BATCH: u64 = 1000;

/// Records by key.
type Sorted = BTreeMap<Vec<u8>, Vec<u8>>;

/// One client's access to the store.
pub(super) struct Client {
    db: Db,
    /// By the numbers that operations give.
    keyspaces: Vec<Keyspace>,
    durability: Durability,
    /// Writes that wait for their batch to be full.
    batch: Batch,
    /// Of a batch that is ingested: records by keyspace, a later one in the place of an earlier one.
    files: Option<BTreeMap<u16, Sorted>>,
    /// How many rows make a batch.
    batch_size: u64,
    /// How many are in the one that is being made.
    rows: u64,
    /// Whether values tell to which key they belong.
    is_checked: bool,
    /// Oldest first.
    snapshots: VecDeque<Snapshot>,
    deletes: Batch,
}

/// What an operation came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// It is done, and found so many records.
    Done(u64),
    /// It is a part of a row; the client's next operation is another.
    Part,
    /// It found so many records and waits for its batch.
    Batched(u64),
    /// It found so many and was the last one of its batch, which is written.
    BatchWritten(u64),
}

impl Client {
    pub(super) fn new(db: &Db, keyspaces: &[Keyspace], is_checked: bool) -> Client {
        Client {
            db: db.clone(),
            keyspaces: keyspaces.to_vec(),
            durability: Durability::Buffered,
            batch: Batch::new(),
            batch_size: 1,
            files: None,
            rows: 0,
            is_checked,
            snapshots: VecDeque::new(),
            deletes: Batch::new(),
        }
    }

    /// From here on writes go as those of `crew` do.
    pub(super) fn begin(&mut self, crew: &Crew) {
        (self.batch_size, self.durability) = (crew.batch, crew.durability);
        self.files = crew.ingest.then(BTreeMap::new);
    }

    /// Does `op`.
    pub(super) fn perform(&mut self, op: &Op<'_>) -> Result<Outcome> {
        let keyspace = &self.keyspaces[usize::from(op.keyspace)];
        let count = u64::from(op.count);
        match op.kind {
            OpKind::Insert | OpKind::Upsert | OpKind::Update | OpKind::Delete | OpKind::DeleteMissing => {
                return self.write(op, 0);
            }
            OpKind::ReadModifyWrite => {
                let found = self.check(op.key, keyspace.get(op.key)?)?;
                return self.write(op, found);
            }
            OpKind::RangeDelete => self.range_delete(op),
            OpKind::Get | OpKind::GetMissing => self.check(op.key, keyspace.get(op.key)?),
            OpKind::MultiGet => self.multi_get(op),
            OpKind::Scan => forward(&mut keyspace.range(op.key..)?, count),
            OpKind::ScanReverse => backward(&mut keyspace.range(..=op.key)?, count),
            OpKind::ScanPrefix => forward(&mut keyspace.prefix(op.key)?, count),
            OpKind::Flush => self.db.flush().map(|()| 0),
            OpKind::Compact => keyspace.compact::<&[u8]>(.., &Cancel::new()).map(|()| 0),
            OpKind::TakeSnapshot => {
                self.snapshots.push_back(self.db.snapshot());
                Ok(0)
            }
            OpKind::DropSnapshot => Ok(u64::from(self.snapshots.pop_front().is_some())),
        }
        .map(Outcome::Done)
    }

    /// Writes what waits for its batch. Answers whether there was something.
    pub(super) fn write_batch(&mut self) -> Result<bool> {
        self.rows = 0;
        if let Some(files) = self.files.as_mut().filter(|files| !files.is_empty()) {
            for (keyspace, records) in std::mem::take(files) {
                self.keyspaces[usize::from(keyspace)].ingest(records)?;
            }
            return Ok(true);
        }
        let there = !self.batch.is_empty();
        if there {
            self.db.write_with(&self.batch, self.durability)?;
            self.batch.clear();
        }
        Ok(there)
    }

    /// Puts or deletes: at once, or with the rest of its row or batch.
    fn write(&mut self, op: &Op<'_>, found: u64) -> Result<Outcome> {
        let keyspace = &self.keyspaces[usize::from(op.keyspace)];
        let removes = matches!(op.kind, OpKind::Delete | OpKind::DeleteMissing);
        if let Some(files) = &mut self.files {
            if removes {
                let what = "a delete cannot be ingested: a file that is brought in holds records";
                return Err(Error::new(ErrorKind::InvalidArgument, what));
            }
            files.entry(op.keyspace).or_default().insert(op.key.to_vec(), op.value.to_vec());
        } else if !op.continues && self.batch_size == 1 && self.batch.is_empty() {
            if removes {
                keyspace.delete_with(op.key, self.durability)?;
            } else {
                keyspace.put_with(op.key, op.value, self.durability)?;
            }
            return Ok(Outcome::Done(found));
        } else if removes {
            self.batch.delete(keyspace, op.key);
        } else {
            self.batch.put(keyspace, op.key, op.value);
        }
        if op.continues {
            return Ok(Outcome::Part);
        }
        self.rows += 1;
        if self.rows < self.batch_size {
            return Ok(Outcome::Batched(found));
        }
        self.write_batch().map(|_| Outcome::BatchWritten(found))
    }

    fn multi_get(&self, op: &Op<'_>) -> Result<u64> {
        let keys: Vec<&[u8]> = op.keys().collect();
        let values = self.keyspaces[usize::from(op.keyspace)].multi_get(&keys);
        keys.iter().zip(values).try_fold(0, |found, (key, value)| Ok(found + self.check(key, value?)?))
    }

    /// Whether there is a value; an error if it belongs to another key.
    fn check(&self, key: &[u8], value: Option<impl AsRef<[u8]>>) -> Result<u64> {
        let Some(value) = black_box(value) else { return Ok(0) };
        if self.is_checked && !value_belongs(key, value.as_ref()) {
            let what = format!("the key {} has a value that belongs to another one", key.escape_ascii());
            return Err(Error::new(ErrorKind::Corruption, what));
        }
        Ok(1)
    }

    /// The engine has no range tombstones: the range is read, and each of its keys deleted.
    fn range_delete(&mut self, op: &Op<'_>) -> Result<u64> {
        let keyspace = &self.keyspaces[usize::from(op.keyspace)];
        let mut range = keyspace.range(op.key..op.end)?;
        let mut deleted = 0u64;
        while range.advance()? {
            self.deletes.delete(keyspace, range.key());
            deleted += 1;
            if deleted.is_multiple_of(RANGE_DELETE_BATCH) {
                self.db.write_with(&self.deletes, self.durability)?;
                self.deletes.clear();
            }
        }
        if !self.deletes.is_empty() {
            self.db.write_with(&self.deletes, self.durability)?;
            self.deletes.clear();
        }
        Ok(deleted)
    }
}

fn forward(range: &mut Range, most: u64) -> Result<u64> {
    let mut found = 0;
    while found < most && range.advance()? {
        black_box((range.key(), range.value()));
        found += 1;
    }
    Ok(found)
}

fn backward(range: &mut Range, most: u64) -> Result<u64> {
    let mut found = 0;
    while found < most && range.advance_back()? {
        black_box((range.key_back(), range.value_back()));
        found += 1;
    }
    Ok(found)
}
