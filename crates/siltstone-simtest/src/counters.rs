//! Which rare states a run has reached: the guard against a generator that is blind to something.
//!
//! A test that never stalls a writer says nothing about stalls. Every state that the checks are there for is counted, and a
//! run of the whole budget fails when one of them was never reached.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! rare {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A state worth reaching.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Rare { $($(#[doc = $doc])+ $name,)+ }

        impl Rare {
            /// All of them.
            pub const ALL: &'static [Rare] = &[$(Rare::$name,)+];
        }
    };
}

rare! {
    /// A writer waited.
    Stall,
    /// Several immutable memtables waited to be flushed.
    ImmutableQueue,
    /// A file changed its level without being rewritten.
    TrivialMove,
    /// A merge dropped a tombstone.
    TombstoneDropped,
    /// A merge kept a tombstone.
    TombstoneKept,
    /// A merge kept an old version because a snapshot sees it.
    VersionKept,
    /// The log went on in another segment.
    LogRolled,
    /// The manifest was rewritten.
    ManifestRolled,
    /// Recovery found a torn tail of the log.
    TornTail,
    /// Recovery found a log with nothing in it.
    EmptyLogAtOpen,
    /// A store with records in its log was opened.
    LogReplayed,
    /// A table was closed to keep the number of handles.
    HandleEvicted,
    /// A block left the cache for another.
    CacheEviction,
    /// A record was larger than a block.
    LargeRecord,
    /// A record was larger than a memtable.
    HugeRecord,
    /// A manual compaction was cancelled.
    CompactionCancelled,
    /// Several runs in one level.
    ManyRuns,
    /// Three levels or more.
    DeepTree,
    /// Files without owner were removed at open.
    OrphanRemoved,
    /// The power failed in the middle of an operation.
    CrashInside,
    /// A crash lost acknowledged writes, as it may.
    CrashLostTail,
    /// A crash lost nothing.
    CrashLostNothing,
    /// The power failed again during recovery.
    CrashInRecovery,
    /// A file was full of damage and the store said so.
    DamageDetected,
    /// Damage that changed nothing.
    DamageHarmless,
    /// A full disk failed a flush or a merge.
    NoSpaceInBackground,
    /// A full disk failed a write.
    NoSpaceInWrite,
    /// A failed sync stopped the writes.
    Poisoned,
    /// A failed write appeared after a reopen.
    DoubtfulAppeared,
    /// A failed write did not appear after a reopen.
    DoubtfulVanished,
    /// A snapshot older than every file was read.
    OldSnapshotRead,
    /// A snapshot of an empty store was read later.
    EmptySnapshotRead,
    /// A keyspace was created under a name that had been dropped.
    NameReused,
    /// A range was walked from both ends until they met.
    EndsMet,
    /// The strategy changed while a merge ran.
    SwitchedWhileMerging,
    /// The strategy changed back before the tree had its new shape.
    SwitchedBack,
    /// The power failed while the strategy was changed.
    CrashInSwitch,
    /// The merge scheduler changed while a merge waited for its turn.
    RescheduledWhileWaiting,
    /// A merge was paused.
    MergePaused,
    /// A merge had released a file in part, or linked a part of it.
    Slice,
    /// A keyspace lost its oldest data, as its strategy says.
    OldestLost,
    /// A snapshot kept data that would have been lost.
    LossWaited,
    /// A merge had linked a part of a table to a file of another number.
    Linked,
    /// An ingest went over keys that the keyspace held.
    IngestOverlapped,
    /// A merge of which lanes could share the keys took effect.
    MergeShared,
    /// A trace that was stopped was read.
    TraceRead,
}

/// Counts of rare states, shared by the parts of a world.
#[derive(Debug)]
pub struct Counters(Vec<AtomicU64>);

impl Default for Counters {
    fn default() -> Counters {
        Counters(Rare::ALL.iter().map(|_| AtomicU64::new(0)).collect())
    }
}

impl Counters {
    /// One more.
    pub fn reach(&self, rare: Rare) {
        self.add(rare, 1);
    }

    /// Some more.
    pub fn add(&self, rare: Rare, times: u64) {
        if times > 0
            && let Some(place) = Rare::ALL.iter().position(|&each| each == rare)
        {
            self.0[place].fetch_add(times, Ordering::Relaxed);
        }
    }

    /// Whether it was reached.
    pub fn reached(&self, rare: Rare) -> bool {
        Rare::ALL.iter().zip(&self.0).any(|(each, n)| *each == rare && n.load(Ordering::Relaxed) > 0)
    }

    /// Adds what another run reached.
    pub fn merge(&self, other: &Counters) {
        for (mine, theirs) in self.0.iter().zip(&other.0) {
            mine.fetch_add(theirs.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// The counts by name.
    pub fn by_name(&self) -> BTreeMap<String, u64> {
        Rare::ALL.iter().zip(&self.0).map(|(rare, n)| (format!("{rare:?}"), n.load(Ordering::Relaxed))).collect()
    }

    /// What was never reached.
    pub fn missing(&self) -> Vec<Rare> {
        Rare::ALL.iter().zip(&self.0).filter(|(_, n)| n.load(Ordering::Relaxed) == 0).map(|(rare, _)| *rare).collect()
    }
}
