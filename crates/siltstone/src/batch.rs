//! A batch: writes over any keyspaces of a store that happen together or not at all.

use crate::db::Keyspace;
use crate::error::{Error, Result};
use crate::key::{Kind, MAX_KEY_BYTES, MAX_VALUE_BYTES};
use crate::wal::{RecordIter, encode_record};

/// Writes that are applied atomically by [`Db::write`](crate::Db::write): after a crash either all of them are there or none,
/// and no reader sees a part. Later writes to one key win.
#[derive(Clone, Default, Debug)]
pub struct Batch {
    /// The records, encoded as the log stores them, so that writing a batch copies it once.
    payload: Vec<u8>,
    records: u32,
    user_bytes: u64,
    deletes: u32,
    /// What was wrong with a record, told when the batch is written: building one cannot fail.
    problem: Option<Error>,
    /// Of which open store the keyspaces are, by its number in this process.
    store: Option<u64>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Adds a put. Sizes are checked when the batch is written.
    pub fn put(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.add(keyspace, Kind::Put, key.as_ref(), value.as_ref());
    }

    /// Adds a delete.
    pub fn delete(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) {
        self.add(keyspace, Kind::Delete, key.as_ref(), &[]);
        self.deletes += 1;
    }

    fn add(&mut self, keyspace: &Keyspace, kind: Kind, key: &[u8], value: &[u8]) {
        let store = keyspace.store_number();
        if *self.store.get_or_insert(store) != store {
            self.problem.get_or_insert_with(|| Error::invalid("a batch may not span two stores"));
        }
        match check_sizes(key, value) {
            Ok(()) => encode_record(&mut self.payload, keyspace.id(), kind, key, value),
            Err(error) => {
                self.problem.get_or_insert(error);
                return;
            }
        }
        self.records += 1;
        self.user_bytes += crate::num::to_u64(key.len() + value.len());
    }

    /// The number of writes.
    pub fn len(&self) -> usize {
        crate::num::to_usize(u64::from(self.records))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Bytes of the encoded writes.
    pub fn bytes(&self) -> usize {
        self.payload.len()
    }

    /// Removes all writes and keeps the memory.
    pub fn clear(&mut self) {
        self.payload.clear();
        (self.records, self.user_bytes, self.deletes, self.problem, self.store) = (0, 0, 0, None, None);
    }

    pub(crate) fn check(&self, store: u64) -> Result<()> {
        if let Some(problem) = &self.problem {
            return Err(problem.clone());
        }
        match self.store {
            Some(mine) if mine != store => Err(Error::invalid("the batch was made for another store")),
            _ => Ok(()),
        }
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload
    }

    pub(crate) fn count(&self) -> u32 {
        self.records
    }

    pub(crate) fn records(&self) -> RecordIter<'_> {
        RecordIter::of_payload(self.records, &self.payload).expect("we encoded it")
    }

    pub(crate) fn user_bytes(&self) -> u64 {
        self.user_bytes
    }

    pub(crate) fn deletes(&self) -> u32 {
        self.deletes
    }
}

/// Whether a record may be stored at all.
pub(crate) fn check_sizes(key: &[u8], value: &[u8]) -> Result<()> {
    if key.len() > MAX_KEY_BYTES {
        return Err(Error::invalid(format!(
            "a key of {} bytes is longer than the limit of {MAX_KEY_BYTES}",
            key.len()
        )));
    }
    if value.len() > MAX_VALUE_BYTES {
        return Err(Error::invalid(format!(
            "a value of {} bytes is longer than the limit of {MAX_VALUE_BYTES}",
            value.len()
        )));
    }
    Ok(())
}
