//! Metadata of files, runs and levels: plain data, the whole of what a compaction policy decides on.
//!
//! ```text
//! Version -> Level -> Run (newest first) -> FileMeta (sorted by key, disjoint)
//! ```

use std::sync::Arc;

use bytes::Bytes;

use super::Files;
use crate::key::SeqNo;

/// The number of a file of the tree, and of a table; never used twice in a store. Table n is in `NNNNNN.sst`. A file that a job has
/// written is the whole of the table of its own number; one that a merge has linked is a slice of another file's ([`FileMeta::table`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SstId(pub u64);

/// The number of a keyspace; never used twice in a store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct KeyspaceId(pub u32);

/// A level, 0 first on disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LevelId(pub u8);

impl LevelId {
    /// The next level down. (sarkar21's wording: level i+1 is the parent of level i.)
    #[must_use]
    pub fn parent(self) -> LevelId {
        LevelId(self.0 + 1)
    }

    /// The level's position in [`Version::levels`](super::Version).
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The age of a run among the runs of its level: larger is newer. Given out by one counter of the keyspace when a memtable is
/// flushed or a file ingested; a merge's output takes that of the input in whose place it comes, or the next above all runs of the
/// level that it goes down to. Never inferred from sequence numbers or list positions. Unique within a level.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RunOrder(pub u64);

/// What is known of one SST.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileMeta {
    /// Its number.
    pub id: SstId,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Records, tombstones included.
    pub entries: u64,
    /// Point tombstones among them.
    pub tombstones: u64,
    /// Range tombstones among them (none until they are supported).
    pub range_tombstones: u64,
    /// Bytes of keys and values of its records, before compression and without overheads.
    pub raw_bytes: u64,
    /// Smallest user key.
    pub smallest: Bytes,
    /// Largest user key, inclusive.
    pub largest: Bytes,
    /// Smallest sequence number.
    pub min_seq: SeqNo,
    /// Largest sequence number.
    pub max_seq: SeqNo,
    /// Wall time of its creation, in milliseconds since 1970.
    pub created_ms: u64,
    /// Wall time when its oldest tombstone was flushed, in milliseconds since 1970; none without tombstones.
    pub oldest_tombstone_ms: Option<u64>,
    /// Wall time when the file came to its level, in milliseconds since 1970 (a trivial move renews it).
    pub entered_level_ms: u64,
    /// The whole table, if only the keys from `smallest` to `largest` of it are alive: then this file is a slice, and `bytes`,
    /// `entries`, `tombstones` and `raw_bytes` are estimates.
    pub whole: Option<Arc<Whole>>,
}

/// A table of which a file is a slice. Its sequence numbers and dates are the slice's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Whole {
    /// Its number: that of the file that was all of it once. Other files may be slices of it as well, with other keys.
    pub table: SstId,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Records, tombstones included.
    pub entries: u64,
    /// Point tombstones among them.
    pub tombstones: u64,
    /// Bytes of keys and values of its records.
    pub raw_bytes: u64,
    /// Smallest user key.
    pub smallest: Bytes,
    /// Largest user key, inclusive.
    pub largest: Bytes,
}

impl FileMeta {
    /// The number of its table, by which that is found on disk.
    pub fn table(&self) -> SstId {
        self.whole.as_ref().map_or(self.id, |whole| whole.table)
    }

    /// Size of the table in bytes, dead keys and those of other slices included. Slices of one table take it once.
    pub fn table_bytes(&self) -> u64 {
        self.whole.as_ref().map_or(self.bytes, |whole| whole.bytes)
    }

    /// Bytes of the table that are not this file's, about: dead, unless other files are slices of it, too.
    pub fn dead_bytes(&self) -> u64 {
        self.table_bytes().saturating_sub(self.bytes)
    }

    /// Records in the table, dead keys included.
    pub fn table_entries(&self) -> u64 {
        self.whole.as_ref().map_or(self.entries, |whole| whole.entries)
    }

    /// Tombstones in the table, dead keys included.
    pub fn table_tombstones(&self) -> u64 {
        self.whole.as_ref().map_or(self.tombstones, |whole| whole.tombstones)
    }

    /// Smallest and largest user key of the table, dead keys included.
    pub fn table_keys(&self) -> (&Bytes, &Bytes) {
        self.whole.as_ref().map_or((&self.smallest, &self.largest), |whole| (&whole.smallest, &whole.largest))
    }

    /// Whether every record is a point tombstone. Estimates do not decide that.
    pub fn is_all_tombstones(&self) -> bool {
        self.table_tombstones() == self.table_entries() && self.range_tombstones == 0
    }

    /// What is left of the file when the keys before `first` are dead: a slice, if that is inside the file. About `left` of every `of`
    /// bytes of the table's records are from `first` to the file's end.
    #[must_use]
    pub fn without_before(&self, first: Bytes, left: u64, of: u64) -> FileMeta {
        debug_assert!(self.smallest < first && first <= self.largest, "the key is inside the file");
        self.slice(first, self.largest.clone(), left, of)
    }

    /// The keys from `first` to `last`, both included, of the file: a slice, if that is not all of it. About `inside` of every `of` bytes
    /// of the table's records are there, one record at least.
    #[must_use]
    pub fn slice(&self, first: Bytes, last: Bytes, inside: u64, of: u64) -> FileMeta {
        debug_assert!(self.smallest <= first && first <= last && last <= self.largest, "a slice is inside the file");
        if first == self.smallest && last == self.largest {
            return self.clone();
        }
        let whole = self.whole.clone().unwrap_or_else(|| {
            Arc::new(Whole {
                table: self.id,
                bytes: self.bytes,
                entries: self.entries,
                tombstones: self.tombstones,
                raw_bytes: self.raw_bytes,
                smallest: self.smallest.clone(),
                largest: self.largest.clone(),
            })
        });
        let share = |n: u64| {
            let share = u128::from(n) * u128::from(inside.min(of)) / u128::from(of.max(1));
            u64::try_from(share).unwrap_or(n)
        };
        // Records of both kinds may be left as long as the table has both.
        let mixed = 0 < whole.tombstones && whole.tombstones < whole.entries;
        let entries = share(whole.entries).clamp(1 + u64::from(mixed), self.entries.max(1 + u64::from(mixed)));
        let tombstones = match whole.tombstones {
            0 => 0,
            all if all == whole.entries => entries,
            some => share(some).clamp(1, entries - 1),
        };
        FileMeta {
            smallest: first,
            largest: last,
            bytes: share(whole.bytes).clamp(1, self.bytes),
            entries,
            tombstones,
            raw_bytes: share(whole.raw_bytes).min(self.raw_bytes),
            whole: Some(whole),
            ..self.clone()
        }
    }

    /// Whether some key could be both in `first..=last` and in this file.
    pub fn overlaps(&self, first: &[u8], last: &[u8]) -> bool {
        self.smallest[..] <= *last && *first <= self.largest[..]
    }
}

/// A sorted run: files in key order that share no user key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// Its age among the runs of its level.
    pub order: RunOrder,
    /// Its files, ascending by key; never empty.
    pub files: Files,
}

impl Run {
    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.bytes()
    }

    /// The files that could hold a key of `first..=last`, in key order.
    pub fn overlapping(&self, first: &[u8], last: &[u8]) -> &[Arc<FileMeta>] {
        let from = self.files.partition_point(|file| file.largest[..] < *first);
        let len = self.files[from..].partition_point(|file| file.smallest[..] <= *last);
        &self.files[from..from + len]
    }
}

/// A level: sorted runs, newest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Level {
    /// Newest (largest [`RunOrder`]) first.
    pub runs: Vec<Run>,
    /// The compaction buffer (guo17), newest first; empty unless a keyspace asks for one.
    pub buffer: Vec<Run>,
}

impl Level {
    /// Size in bytes of the runs, the buffer not counted.
    pub fn bytes(&self) -> u64 {
        self.runs.iter().map(Run::bytes).sum()
    }

    /// The run of that order.
    pub fn run(&self, order: RunOrder) -> Option<&Run> {
        self.position(order).ok().map(|at| &self.runs[at])
    }

    /// Where the run of that order stands, or else would stand: orders descend.
    pub(super) fn position(&self, order: RunOrder) -> Result<usize, usize> {
        self.runs.binary_search_by(|run| order.cmp(&run.order))
    }

    /// The files of all runs, newest run first.
    pub fn files(&self) -> impl Iterator<Item = &Arc<FileMeta>> {
        self.runs.iter().flat_map(|run| &run.files)
    }
}

/// What reads have done to a file since the store was opened. Lives beside the manifest: a reopened store begins at zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadCounters {
    /// Wall time of the last read of its blocks, in milliseconds since 1970; 0 if there was none. A range read counts for the time
    /// at which it began.
    pub last_read_ms: u64,
    /// Reads of its blocks: point lookups that its filter let through, and range reads that came to it.
    pub reads: u64,
    /// Point lookups that considered this file first, did not find the key and had to consider another one: wasted seeks, as
    /// LevelDB charges them.
    pub empty_reads: u64,
}

impl ReadCounters {
    /// The share of `bytes` out of `of` bytes; the time stays.
    #[must_use]
    pub fn share(self, bytes: u64, of: u64) -> ReadCounters {
        if bytes >= of {
            return self;
        }
        let share = |n: u64| u64::try_from(u128::from(n) * u128::from(bytes) / u128::from(of)).unwrap_or(n);
        ReadCounters { reads: share(self.reads), empty_reads: share(self.empty_reads), ..self }
    }
}
