//! Snapshots: a sequence number that merges respect until the handle is dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::core::Core;
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
        let seq = SeqNo(core.visible.load(Ordering::Acquire));
        *snapshots.entry(seq).or_default() += 1;
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
        *self.core.snapshots.lock().entry(self.seq).or_default() += 1;
        Snapshot { core: Arc::clone(&self.core), seq: self.seq }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let mut snapshots = self.core.snapshots.lock();
        let count = snapshots.get_mut(&self.seq).expect("registered when it was taken");
        *count -= 1;
        if *count == 0 {
            snapshots.remove(&self.seq);
        }
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("seq", &self.seq).finish()
    }
}
