//! Bugs that are put in on purpose.
//!
//! A checker that has never found a bug proves nothing. The first of these are bugs that other stores really had, those from 39 on what could go
//! wrong in this one; where each would live stands a guarded line that brings it back. The simulation must find
//! every one of them (`siltstone-sim zoo`). Without the feature `planted-bugs` the guard is the constant `false`, the line is
//! not compiled, and nothing can be planted.

macro_rules! bugs {
    ($($(#[doc = $doc:literal])+ $name:ident = $row:literal,)+) => {
        /// A bug that can be planted. Its number stays; those that are missing are bugs that this store has no place for.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Bug { $($(#[doc = $doc])+ $name = $row,)+ }

        impl Bug {
            /// All of them.
            pub const ALL: &'static [Bug] = &[$(Bug::$name,)+];

            /// Its number.
            pub fn row(self) -> u8 {
                match self { $(Bug::$name => $row,)+ }
            }
        }
    };
}

bugs! {
    /// The store's folder is not synced after files were created in it.
    FolderNotSynced = 1,
    /// The older log is not synced before the newer one is said to be.
    OlderLogNotSynced = 4,
    /// A table is named by the manifest before it is synced.
    TableNotSynced = 5,
    /// After a failed append to the manifest the next record goes behind the broken one.
    AppendBehindGarbage = 6,
    /// Files are deleted although the manifest record that stops naming them failed.
    DeletedAfterFailedSync = 7,
    /// File numbers are given out again after a reopen.
    FileNumberReused = 9,
    /// Replay goes on with the next log after a hole in the one before.
    ReplayAfterHole = 11,
    /// The logs are removed before what was replayed from them is in tables.
    RecoveryNotReentrant = 13,
    /// A merge takes a failed read for the end of its input.
    ReadErrorIsEnd = 14,
    /// A merge drops tombstones although older runs lie below.
    TombstoneDroppedEarly = 16,
    /// The versions of one key are split over two files of a run.
    VersionsSplit = 18,
    /// Files of a running compaction may be picked again.
    PickedTwice = 20,
    /// A merge does not respect the newest snapshot.
    SnapshotIgnored = 23,
    /// The lane of flushes goes to sleep after a flush though more memtables wait.
    LostWakeup = 31,
    /// A read-only open writes.
    ReadOnlyWrites = 35,
    /// A file left by a crash blocks the next open.
    LeftoverBlocksOpen = 36,
    /// Handles of tables are never closed.
    HandlesLeak = 37,
    /// Creating a keyspace is acknowledged before it is durable.
    KeyspaceNotDurable = 38,
    /// A merge that releases its inputs while it runs cuts them where it stands, not where its finished files end.
    ReleasedTooFar = 39,
    /// Range reads and merges see the keys of a slice that are dead.
    DeadKeysRead = 40,
    /// Setting a strategy is acknowledged before it is durable.
    SwitchNotDurable = 41,
    /// The rules of a new strategy take no notice of the merges that run.
    SwitchForgetsRunning = 42,
    /// A table is deleted with the first of the files that are slices of it.
    SharedTableDeleted = 43,
    /// Data that may be lost goes although a snapshot sees it.
    LossIgnoresSnapshots = 44,
    /// Of the files that are dropped together the older ones stay, and what they hold comes back.
    LostComesBack = 45,
    /// A memtable whose first record is not logged does not hold on to the log of its others.
    MixedMemtableForgotten = 46,
    /// A table becomes durable before the log of older writes to other keyspaces.
    TableBeforeLog = 47,
    /// Blocks are taken whatever their checksums are.
    ChecksumIgnored = 48,
    /// A merge makes the tombstones that it keeps young again.
    TombstonesYoungAgain = 49,
    /// Files that were replaced but are not deleted yet do not count as space that is taken.
    ReplacedFilesUncounted = 50,
    /// What begins a span of a merge is taken to be in the span before.
    BorderKeyLost = 51,
}

#[cfg(feature = "planted-bugs")]
mod selected {
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::Bug;

    // The one piece of global state of the crate, and only in builds that are made to be broken.
    static SELECTED: AtomicU8 = AtomicU8::new(0);

    /// Plants a bug in every store of this process, or takes it out.
    pub fn plant(bug: Option<Bug>) {
        SELECTED.store(bug.map_or(0, Bug::row), Ordering::Relaxed);
    }

    /// Whether the bug is planted.
    #[inline]
    pub fn active(bug: Bug) -> bool {
        SELECTED.load(Ordering::Relaxed) == bug.row()
    }
}

#[cfg(feature = "planted-bugs")]
pub use selected::{active, plant};

/// Whether the bug is planted: never, in this build.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub const fn active(_: Bug) -> bool {
    false
}
