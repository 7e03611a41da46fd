//! The log lane: prepares the next segment and memory for the block cache, removes segments and files that nothing needs any more.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::core::{Core, LOG_LANE};
use crate::cache::sst_path;
use crate::error::ErrorKind;
use crate::event::Event;
use crate::io::{IoClass, IoCtx, LaneStep};
use crate::wal::SegmentId;

impl Core {
    /// Lets the log lane remove what is older than `floor`.
    pub(super) fn drop_log_before(&self, floor: SegmentId) {
        self.obsolete_before.fetch_max(floor.0, Ordering::AcqRel);
        self.wake(LOG_LANE);
    }

    /// A step of the log lane: prepares the next segment or the cache's memory, removes segments and files that nothing needs.
    pub(crate) fn log_step(&self) -> LaneStep {
        let Some(log) = &self.log else {
            return LaneStep::Idle;
        };
        if !self.may_work() {
            return LaneStep::Idle;
        }
        match log.prepare() {
            Ok(true) => return LaneStep::Worked,
            Ok(false) => {}
            Err(error) => {
                // Not needed yet: the writer creates its segment itself if it must, and is told what is wrong then.
                if error.kind() == ErrorKind::Poisoned {
                    self.health.poison(&error);
                    self.notify();
                    return LaneStep::Idle;
                }
                self.tell(&Event::Error { doing: "prepare a log segment".to_owned(), error });
                self.remove_obsolete();
                return LaneStep::IdleFor(Duration::from_millis(100));
            }
        }
        if self.cache.prepare() || self.remove_obsolete() { LaneStep::Worked } else { LaneStep::Idle }
    }

    /// Removes one log segment or the tables that no reader needs any more. Failing is fine: the next open removes them.
    fn remove_obsolete(&self) -> bool {
        let ctx = IoCtx::foreground(IoClass::Meta);
        let mut removed = false;
        if let Some(log) = &self.log {
            let floor = SegmentId(self.obsolete_before.load(Ordering::Acquire));
            // What cannot be removed now is tried again at the next step.
            let _ = log.remove_before(floor);
        }
        for (id, bytes) in self.tables.purge_queue().take() {
            let _ = self.fs.remove_file(&sst_path(&self.dir, id), ctx);
            self.tables.purge_queue().deleted(bytes);
            removed = true;
        }
        if removed && self.options.extra_space_bytes > 0 {
            // A merge may have waited for the space.
            self.wake_compactions();
        }
        removed
    }
}
