//! Snapshots: a sequence number that merges respect until the handle is dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::core::Core;
use super::deletes::HeldSeq;
use crate::key::SeqNo;

/// The store as it was at one moment, over all keyspaces. Reads at it always answer alike. While it is held, merges keep the
/// versions that it sees; drop it to let them go. Cheap to take and to clone.
pub struct Snapshot {
    core: Arc<Core>,
    seq: SeqNo,
}

impl Snapshot {
    pub(crate) fn new(core: &Arc<Core>) -> Snapshot {
        // The number is read and registered under one lock, the one under which merges read the list: a merge either knows
        // of this snapshot or sees only inputs that were visible before it.
        let mut snapshots = core.snapshots.lock();
        // Data that it would see is being dropped: it is taken a manifest's write later, and sees nothing of that. Who cannot wait any
        // more finds the store closed.
        while core.losing.load(Ordering::Acquire) > 0 {
            drop(snapshots);
            let waited = core.wait(|| core.losing.load(Ordering::Acquire) == 0);
            snapshots = core.snapshots.lock();
            if waited.is_err() {
                break;
            }
        }
        let seq = SeqNo(core.visible.load(Ordering::Acquire));
        let since_ms = core.now_ms();
        snapshots.entry(seq).or_insert(HeldSeq { count: 0, since_ms }).count += 1;
        drop(snapshots);
        Snapshot { core: Arc::clone(core), seq }
    }

    /// The last write that it sees.
    pub fn seq(&self) -> SeqNo {
        self.seq
    }

    pub(crate) fn is_of(&self, core: &Arc<Core>) -> bool {
        Arc::ptr_eq(&self.core, core)
    }
}

impl Clone for Snapshot {
    fn clone(&self) -> Snapshot {
        let mut snapshots = self.core.snapshots.lock();
        snapshots.get_mut(&self.seq).expect("this one holds it").count += 1;
        drop(snapshots);
        Snapshot { core: Arc::clone(&self.core), seq: self.seq }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let mut snapshots = self.core.snapshots.lock();
        let was_oldest = snapshots.first_key_value().is_some_and(|(seq, _)| *seq == self.seq);
        let was_newest = snapshots.last_key_value().is_some_and(|(seq, _)| *seq == self.seq);
        let held = snapshots.get_mut(&self.seq).expect("registered when it was taken");
        held.count -= 1;
        if held.count == 0 {
            snapshots.remove(&self.seq);
            drop(snapshots);
            if was_oldest || was_newest {
                // Tombstones may have waited for the oldest, data that may be lost for the newest.
                self.core.wake_compactions();
            }
        }
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("seq", &self.seq).finish()
    }
}
