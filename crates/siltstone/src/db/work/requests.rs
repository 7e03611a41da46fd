//! What users ask of the lanes: a compaction of a range, and to be told when all is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::super::core::{Core, FLUSH_LANE, KeyspaceCore};
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
        let manual = Arc::new(Manual {
            keyspace: keyspace.id,
            request,
            cancelled,
            done: AtomicBool::new(false),
            result: Mutex::new(None),
        });
        self.compaction.lock().manual.push(Arc::clone(&manual));
        self.wake_compactions();
        let waited = self.wait(|| {
            manual.done.load(Ordering::Acquire)
                || (manual.cancelled)()
                || keyspace.dropped.load(Ordering::Acquire)
                || self.health.check_write().is_err()
                // A full disk must not hang who asks.
                || self.health.background().is_some()
        });
        self.compaction.lock().manual.retain(|other| !Arc::ptr_eq(other, &manual));
        self.wake_compactions();
        waited?;
        if manual.done.load(Ordering::Acquire) {
            return match manual.result.lock().take() {
                None => Ok(()),
                Some(error) => Err(error),
            };
        }
        self.health.check_write()?;
        if let Some(error) = self.health.background() {
            return Err(error);
        }
        Err(Error::new(ErrorKind::Cancelled, "the compaction was cancelled; what it had done so far stays"))
    }

    /// Waits until nothing is to be flushed or merged, and gives up the files that are kept to be written over.
    pub(crate) fn wait_idle(&self) -> Result<()> {
        let fails = || self.health.check_write().is_err() || self.health.background().is_some();
        self.wake(FLUSH_LANE);
        self.wake_compactions();
        self.wait(|| fails() || self.is_flushed())?;
        // Who waits for rest writes nothing meanwhile: what idle stores do need not wait for its time.
        self.keyspaces.load().values().for_each(|keyspace| keyspace.rest(self.now_ms()));
        // Again: a flush publishes its tree before it says that there is work, and a lane may have found nothing just before.
        self.wake_compactions();
        self.wait(|| fails() || self.is_idle())?;
        if self.is_idle() {
            // And the store is to take what it needs.
            self.rest_now();
            return Ok(());
        }
        self.health.check_write()?;
        self.health.background().map_or(Ok(()), Err)
    }

    fn is_idle(&self) -> bool {
        self.settled_epoch.load(Ordering::Acquire) == self.work_epoch.load(Ordering::Acquire) && self.is_flushed()
    }

    fn is_flushed(&self) -> bool {
        self.keyspaces.load().values().all(|keyspace| keyspace.view.load().immutables.is_empty())
    }
}
