//! What an engine must offer to be compared, and the budget it is given.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};

/// What every engine may use; the same for all, as far as each can be told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Budget {
    /// Bytes of a memtable.
    pub(crate) memtable_bytes: usize,
    /// Memtables that an engine may hold: the one that is written, and those that wait for their flush.
    pub(crate) memtables: u8,
    /// Bytes of the block cache.
    pub(crate) cache_bytes: usize,
    /// Bytes of a data block.
    pub(crate) block_bytes: usize,
    /// Bloom filter bits per key.
    pub(crate) filter_bits_per_key: u8,
    /// How data blocks are compressed.
    pub(crate) compression: Compression,
    /// Background threads, flushes and merges together.
    pub(crate) threads: u8,
    /// Whether a write waits for the disk.
    pub(crate) sync: bool,
    /// Options of Siltstone that replace what follows from the budget, as TOML; for trying settings out.
    pub(crate) siltstone_options: String,
    /// Whether LevelDB verifies the blocks that it reads, as the others do and it does not by default.
    pub(crate) leveldb_verifies: bool,
}

#[cfg(all(test, feature = "siltstone"))]
impl Budget {
    /// Of a store in a test.
    pub(crate) fn small() -> Budget {
        Budget {
            memtable_bytes: 1 << 20,
            memtables: 2,
            cache_bytes: 1 << 20,
            block_bytes: 4096,
            filter_bits_per_key: 10,
            compression: Compression::None,
            threads: 2,
            sync: false,
            siltstone_options: String::new(),
            leveldb_verifies: false,
        }
    }
}

/// How data blocks are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Compression {
    /// Not at all.
    #[default]
    None,
    /// With LZ4, on every level.
    Lz4,
}

/// Where read bytes go, so that no engine gets away with not fetching them, and so that engines can be held against each other.
pub(crate) struct Sink {
    buffer: [u8; 256],
    bytes: u64,
    sum: u64,
}

impl Sink {
    /// An empty sink.
    pub(crate) fn new() -> Sink {
        Sink { buffer: [0; 256], bytes: 0, sum: 0 }
    }

    /// Copies `bytes` to where the compiler must assume that somebody looks at them.
    #[inline]
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        let len = bytes.len().min(self.buffer.len());
        self.buffer[..len].copy_from_slice(&bytes[..len]);
        black_box(&self.buffer);
        self.bytes += crate::count(bytes.len());
        // The ends of what was copied: no cache line is fetched for it, and neither numbers at the end of a key nor at its begin are lost.
        let word = |eight: Option<&[u8; 8]>| eight.map_or(0, |eight| u64::from_le_bytes(*eight));
        let (first, last) = (word(bytes[..len].first_chunk()), word(bytes[..len].last_chunk()));
        self.sum = (self.sum.rotate_left(7) ^ first ^ last.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// How many bytes went into it.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A number that follows from what went into it and in which order.
    pub(crate) fn sum(&self) -> u64 {
        self.sum
    }
}

/// An open store of one engine. The runner is compiled once for each implementation: no call goes through a pointer.
pub(crate) trait Store: Sized + Sync {
    /// Creates a store in the empty folder `path`.
    fn open(path: &Path, budget: &Budget) -> Result<Self>;

    /// Puts one record, as durable as the budget says.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Deletes one key, as durable as the budget says.
    fn delete(&self, key: &[u8]) -> Result<()>;

    /// Gives the newest value of `key` to `sink` and returns whether there is one.
    fn get(&self, key: &[u8], sink: &mut Sink) -> Result<bool>;

    /// Makes a new iterator, seeks the first key at or after `from`, reads it and the next `nexts` entries, keys and values, into `sink`;
    /// returns how many there were.
    fn scan(&self, from: &[u8], nexts: usize, sink: &mut Sink) -> Result<usize>;

    /// Flushes what is in memory, as far as the engine can be told to, and waits until no background work is left. Returns when that
    /// was: an engine that cannot be asked is watched until it has been quiet for a while.
    fn settle(&self) -> Result<Instant>;

    /// Bytes that compactions have to move until nothing is due, if the engine says so.
    fn debt_bytes(&self) -> Option<u64> {
        None
    }

    /// For how long writers were held back since the store was opened, if the engine says so.
    fn held(&self) -> Option<Duration> {
        None
    }

    /// What the engine has counted since it was opened, if it has something to say; for the JSON and for `profile`.
    fn statistics(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sink_tells_other_records_another_order_and_a_missing_one() {
        let taken = |records: &[&[u8]]| {
            let mut sink = Sink::new();
            records.iter().for_each(|record| sink.take(record));
            (sink.bytes(), sink.sum())
        };
        let (a, b): (&[u8], &[u8]) = (b"user000000000001", b"user000000000002");
        assert_eq!(taken(&[a, b]), taken(&[a, b]));
        assert_ne!(taken(&[a, b]).1, taken(&[b, a]).1);
        assert_ne!(taken(&[a, b]).1, taken(&[a, a]).1);
        assert_ne!(taken(&[a, b]), taken(&[a]));
    }
}
