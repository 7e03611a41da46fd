//! Deletes with a date: the memtable's share of a keyspace's `delete_by`, when the lanes must wake on an idle store, and what can be
//! said about the oldest tombstone. The tree's share is [`Deadline`]'s.

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use super::core::{Core, KeyspaceCore};
use super::read::View;
use crate::compaction::deadline::{Deadline, Urgency};
use crate::compaction::view::{LsmView, Sizes};
use crate::io::LaneStep;
use crate::key::SeqNo;
use crate::num::to_u64;
use crate::version::{FileMeta, LevelId};

/// How often a lane looks again at what is overdue and blocked; what blocks it wakes the lane when it ends.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Where deletes of a keyspace stand: what is deleted and not gone yet.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DeleteStats {
    /// The keyspace.
    pub keyspace: String,
    /// The option, in milliseconds.
    pub delete_by_ms: Option<u64>,
    /// Tombstones in the files; an estimate where files are slices.
    pub tombstones: u64,
    /// Files that hold some.
    pub files: u64,
    /// The oldest tombstone; none if there is no tombstone.
    pub oldest: Option<OldestTombstone>,
    /// Files of the store, of whichever keyspace, that left their tree, with what was deleted in them, and are kept on disk because a reader is
    /// still in them.
    pub held_files: u64,
    /// Their bytes.
    pub held_bytes: u64,
}

/// The oldest tombstone of a keyspace.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct OldestTombstone {
    /// Where it is.
    pub place: TombstonePlace,
    /// Its age in milliseconds. Of a log that was replayed: the age of the log segment, which is not less.
    pub age_ms: u64,
    /// In how many milliseconds it will be gone at the latest; 0 if that is over; none without `delete_by`.
    pub gone_in_ms: Option<u64>,
    /// In how many milliseconds the planner will take care of it if no merge comes by before; 0 if that has begun; none without
    /// `delete_by`.
    pub due_in_ms: Option<u64>,
    /// What it waits for.
    pub blocked_by: Option<TombstoneBlocker>,
}

/// Where a tombstone is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TombstonePlace {
    /// In a memtable.
    Memtable,
    /// In a file.
    File {
        /// Its number.
        id: u64,
        /// Its level.
        level: u8,
        /// Its smallest key.
        #[serde(serialize_with = "lossy")]
        smallest: Bytes,
        /// Its largest key.
        #[serde(serialize_with = "lossy")]
        largest: Bytes,
    },
}

/// What a tombstone waits for.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TombstoneBlocker {
    /// A snapshot that may still see what it deletes.
    Snapshot {
        /// The last write that the snapshot sees.
        seq: u64,
        /// Its age in milliseconds.
        age_ms: u64,
    },
    /// A merge has its file now.
    Merge,
}

fn lossy<S: serde::Serializer>(key: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&String::from_utf8_lossy(key))
}

impl KeyspaceCore {
    pub(crate) fn deadline(&self) -> Option<Deadline> {
        self.options.delete_by.map(Deadline::new)
    }
}

/// The first delete of the memtables.
fn first_delete_ms(view: &View) -> Option<u64> {
    std::iter::once(&view.memtable).chain(&view.immutables).filter_map(|slot| slot.first_delete_ms()).min()
}

impl Core {
    /// Sets memtables aside whose first delete has been in memory for its share of `delete_by`. Called by the flush lane.
    pub(crate) fn set_overdue_aside(&self) {
        let now_ms = self.now_ms();
        for keyspace in self.keyspaces.load().values() {
            let Some(deadline) = keyspace.deadline() else { continue };
            let is_due = || {
                let first_ms = keyspace.view.load().memtable.first_delete_ms();
                first_ms.is_some_and(|ms| now_ms >= ms.saturating_add(deadline.memtable_ms()))
            };
            if is_due() {
                let mut state = self.writer.lock();
                // Another writer may have set it aside meanwhile.
                if is_due() {
                    self.rotate(&mut state, keyspace.id);
                }
            }
        }
    }

    /// How long the flush lane may sleep: until a memtable's deletes are due.
    pub(crate) fn flush_idle(&self) -> LaneStep {
        let keyspaces = self.keyspaces.load();
        let due = keyspaces.values().filter_map(|keyspace| {
            let first_ms = keyspace.view.load().memtable.first_delete_ms()?;
            Some(first_ms.saturating_add(keyspace.deadline()?.memtable_ms()))
        });
        self.idle_until(due.min())
    }

    /// How long a compaction lane that found nothing to do may sleep: until a tombstone is due, or something else that the clock
    /// decides.
    pub(crate) fn compaction_idle(&self) -> LaneStep {
        let keyspaces = self.keyspaces.load();
        let due = keyspaces.values().filter_map(|keyspace| {
            let view = keyspace.view.load();
            let version = &view.tree.version;
            let by_date = keyspace.deadline().and_then(|deadline| deadline.next_ms(version));
            let now_ms = self.now_ms();
            let view = LsmView::new(version, Sizes::from(&keyspace.options))
                .with_last_write(keyspace.last_write_ms(now_ms))
                .at(now_ms);
            let by_policy = keyspace.ask(|policy| policy.next_time_ms(&view)).ok().flatten();
            by_date.into_iter().chain(by_policy).min()
        });
        self.idle_until(due.min())
    }

    fn idle_until(&self, ms: Option<u64>) -> LaneStep {
        match ms.map(|ms| ms.saturating_sub(self.now_ms())) {
            None => LaneStep::Idle,
            Some(0) => LaneStep::IdleFor(LOOK_AGAIN),
            Some(wait_ms) => LaneStep::IdleFor(Duration::from_millis(wait_ms)),
        }
    }

    /// Where the deletes of a keyspace stand.
    pub(crate) fn delete_stats(&self, keyspace: &KeyspaceCore) -> DeleteStats {
        let now_ms = self.now_ms();
        let view = keyspace.view.load();
        let version = &view.tree.version;
        let with_tombstones = || version.files().filter(|(_, _, file)| file.oldest_tombstone_ms.is_some());
        let in_files = with_tombstones().min_by_key(|(_, _, file)| file.oldest_tombstone_ms);
        let in_memory = first_delete_ms(&view);
        let age_ms = |ms: u64| now_ms.saturating_sub(ms);
        let oldest = match (in_memory, in_files) {
            (Some(ms), file) if file.is_none_or(|(_, _, file)| file.oldest_tombstone_ms > Some(ms)) => {
                Some((TombstonePlace::Memtable, ms, None))
            }
            (_, Some((level, _, file))) => {
                let ms = file.oldest_tombstone_ms.unwrap_or(now_ms);
                Some((place_of(level, file), ms, self.blocker_of(keyspace, file)))
            }
            (_, None) => None,
        };
        let deadline = keyspace.deadline();
        let oldest = oldest.map(|(place, ms, blocked_by)| OldestTombstone {
            age_ms: age_ms(ms),
            gone_in_ms: deadline.map(|deadline| deadline.by_ms().saturating_sub(age_ms(ms))),
            due_in_ms: deadline.map(|deadline| {
                let due_ms = match place {
                    TombstonePlace::Memtable => deadline.memtable_ms(),
                    TombstonePlace::File { .. } => deadline.at_ms(Urgency::Due),
                };
                due_ms.saturating_sub(age_ms(ms))
            }),
            place,
            blocked_by,
        });
        let (held_files, held_bytes) = self.tables.obsolete();
        DeleteStats {
            keyspace: keyspace.name.clone(),
            delete_by_ms: deadline.map(Deadline::by_ms),
            tombstones: version.files().map(|(_, _, file)| file.tombstones).sum(),
            files: to_u64(with_tombstones().count()),
            oldest,
            held_files,
            held_bytes,
        }
    }

    /// What keeps a compaction from the tombstones of `file` now.
    fn blocker_of(&self, keyspace: &KeyspaceCore, file: &FileMeta) -> Option<TombstoneBlocker> {
        if self.is_merging(keyspace.id, file.id) {
            return Some(TombstoneBlocker::Merge);
        }
        let snapshots = self.snapshots.lock();
        let (seq, held) = snapshots.first_key_value().filter(|(seq, _)| **seq < file.max_seq)?;
        let age_ms = self.now_ms().saturating_sub(held.since_ms);
        Some(TombstoneBlocker::Snapshot { seq: seq.0, age_ms })
    }
}

fn place_of(level: LevelId, file: &FileMeta) -> TombstonePlace {
    TombstonePlace::File {
        id: file.id.0,
        level: level.0,
        smallest: file.smallest.clone(),
        largest: file.largest.clone(),
    }
}

/// A sequence number that snapshots hold.
pub(crate) struct HeldSeq {
    /// How many snapshots hold it.
    pub(crate) count: u32,
    /// Since when, in milliseconds of wall time.
    pub(crate) since_ms: u64,
}

/// The sequence numbers that snapshots hold.
pub(crate) type HeldSeqs = std::collections::BTreeMap<SeqNo, HeldSeq>;
