//! What users ask of the lanes: a compaction of a range, and to be told when all is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::super::core::{Core, FLUSH_LANE, KeyspaceCore, Trouble};
use super::Manual;
use crate::compaction::planner::ManualRequest;
use crate::error::{Error, ErrorKind, Result};

impl Core {
    /// Asks for a compaction of a range and waits for its end.
    pub(crate) fn compact(
        &self,
        keyspace: &Arc<KeyspaceCore>,
        request: ManualRequest,
        cancelled: Box<dyn Fn() -> bool + Send + Sync>,
    ) -> Result<()> {
        self.check_write()?;
        let manual = Arc::new(Manual {
            keyspace: keyspace.id,
            request,
            cancelled,
            done: AtomicBool::new(false),
            result: Mutex::new(None),
        });
        self.compaction.lock().manual.push(Arc::clone(&manual));
        self.wake_compactions();
        let ended = loop {
            // A full disk must not hang who asks.
            let trouble =
                || self.health.trouble(|trouble| trouble == Trouble::Flush || trouble.is_of_merges(keyspace.id));
            let is_over = || manual.done.load(Ordering::Acquire);
            let is_off = || (manual.cancelled)() || keyspace.dropped.load(Ordering::Acquire);
            let waited =
                self.wait(|| is_over() || is_off() || self.health.check_write().is_err() || trouble().is_some());
            if waited.is_err() || is_over() {
                break waited;
            }
            if let Some(error) = self.health.check_write().err().or_else(trouble) {
                break Err(error);
            }
            if is_off() {
                let what = "the compaction was cancelled; what it had done so far stays";
                break Err(Error::new(ErrorKind::Cancelled, what));
            }
        };
        self.compaction.lock().manual.retain(|other| !Arc::ptr_eq(other, &manual));
        self.wake_compactions();
        // It may have ended just now.
        if manual.done.load(Ordering::Acquire) {
            return manual.result.lock().take().map_or(Ok(()), Err);
        }
        ended
    }

    /// Waits until nothing is to be flushed or merged, and gives up the files that are kept to be written over.
    pub(crate) fn wait_idle(&self) -> Result<()> {
        if self.read_only {
            // Nothing will be flushed or merged.
            return self.health.check_open();
        }
        let trouble = || self.health.check_write().err().or_else(|| self.health.trouble(|_| true));
        self.wake(FLUSH_LANE);
        self.wake_compactions();
        self.wait(|| trouble().is_some() || self.is_flushed())?;
        // Who waits for rest writes nothing meanwhile: what idle stores do need not wait for its time.
        self.keyspaces.load().values().for_each(|keyspace| keyspace.rest(self.now_ms()));
        // Again: a flush publishes its tree before it says that there is work, and a lane may have found nothing just before.
        self.wake_compactions();
        loop {
            self.wait(|| trouble().is_some() || self.is_idle())?;
            if self.is_idle() {
                // And the store is to take what it needs.
                self.rest_now();
                return Ok(());
            }
            if let Some(error) = trouble() {
                return Err(error);
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.settled_epoch.load(Ordering::Acquire) == self.work_epoch.load(Ordering::Acquire) && self.is_flushed()
    }

    fn is_flushed(&self) -> bool {
        self.keyspaces.load().values().all(|keyspace| keyspace.view.load().immutables.is_empty())
    }
}
