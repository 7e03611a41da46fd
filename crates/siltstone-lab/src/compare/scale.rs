//! Sizes that follow from the input: the shape of sarkar21's base run at any scale.
//!
//! The shape of a tree depends on the number of flushes, the size ratio, files against memtable and cache against data, not on
//! absolute bytes. So the memtable is the input / 160, a file is as large as a memtable, and the cache is a small part of the data.

use serde::Serialize;
use siltstone::{KeyspaceOptions, Options};

/// Flushes of sarkar21's base run: 10 M records of 128 bytes through 8 MiB.
const FLUSHES: u64 = 160;
const MEMTABLE_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=64 << 20;
/// The cache takes this part of the data.
const CACHE_PART: u64 = 16;
const CACHE_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=256 << 20;
/// Memtables that may fill while older ones are flushed.
const MEMTABLES: u64 = 4;

/// Which sizes were chosen by the user and stay.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fixed {
    /// `keyspace.memtable_bytes`
    pub memtable: bool,
    /// `keyspace.file_bytes`
    pub file: bool,
    /// `cache_bytes`
    pub cache: bool,
    /// `write_memory_bytes`
    pub write_memory: bool,
}

/// The sizes of a comparison.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Scale {
    /// Size of a memtable.
    pub memtable_bytes: u64,
    /// Size at which a file ends.
    pub file_bytes: u64,
    /// Size of the block cache.
    pub cache_bytes: u64,
    /// Memory of all memtables together.
    pub write_memory_bytes: u64,
    /// Flushes that the load will take, about.
    pub expected_flushes: u64,
}

impl Scale {
    /// The sizes for an input of `input_bytes` of keys and values.
    pub fn new(options: &Options, fixed: Fixed, input_bytes: u64) -> Scale {
        let clamp = |bytes: u64, range: std::ops::RangeInclusive<u64>| bytes.clamp(*range.start(), *range.end());
        let pick = |fixed, chosen: u64, scaled: u64| if fixed { chosen } else { scaled };
        let memtable_bytes =
            pick(fixed.memtable, options.keyspace.memtable_bytes, clamp(input_bytes / FLUSHES, MEMTABLE_BYTES));
        Scale {
            memtable_bytes,
            file_bytes: pick(fixed.file, options.keyspace.file_bytes, memtable_bytes),
            cache_bytes: pick(fixed.cache, options.cache_bytes, clamp(input_bytes / CACHE_PART, CACHE_BYTES)),
            write_memory_bytes: pick(
                fixed.write_memory,
                options.write_memory_bytes,
                memtable_bytes.saturating_mul(MEMTABLES).max(8 << 20),
            ),
            expected_flushes: (input_bytes / memtable_bytes.max(1)).max(1),
        }
    }

    /// `options` with these sizes and the strategy.
    pub fn apply(&self, options: &Options, strategy: &str) -> Options {
        Options {
            create_if_missing: true,
            cache_bytes: self.cache_bytes,
            write_memory_bytes: self.write_memory_bytes,
            keyspace: KeyspaceOptions {
                memtable_bytes: self.memtable_bytes,
                file_bytes: self.file_bytes,
                strategy: strategy.to_owned(),
                ..options.keyspace.clone()
            },
            ..options.clone()
        }
    }
}
