//! A flush: a full memtable becomes one file of L0.

use std::sync::Arc;

use super::output::Outputs;
use super::survive::{OlderRuns, Survivor};
use super::{JobCx, Outcome, Step};
use crate::error::Result;
use crate::iter::Cursor;
use crate::key::SeqNo;
use crate::memtable::{Memtable, MemtableCursor};
use crate::num::to_u64;
use crate::sst::TableOptions;
use crate::version::{SstId, Version};

/// A flush under way.
pub(crate) struct FlushJob {
    cursor: MemtableCursor,
    survivor: Survivor,
    outputs: Outputs,
    started: bool,
    consumed: u64,
}

impl FlushJob {
    /// A flush of `memtable` into the tree `version`. `snapshots` are those held now: versions that none of them sees and a
    /// newer one hides are not written. The memtable's first delete was written at wall time `oldest_tombstone_ms`.
    pub(crate) fn new(
        memtable: &Arc<Memtable>,
        snapshots: Vec<SeqNo>,
        version: &Version,
        options: TableOptions,
        oldest_tombstone_ms: u64,
    ) -> FlushJob {
        FlushJob {
            cursor: memtable.cursor(),
            survivor: Survivor::new(snapshots, OlderRuns::everything(version)),
            outputs: Outputs::new(options, Some(oldest_tombstone_ms)),
            started: false,
            consumed: 0,
        }
    }

    /// Writes about `quota` bytes of records.
    ///
    /// # Errors
    /// `Io`, `NoSpace`: throw the job away, [`discard`](super::discard) its [`ids`](Self::ids) and begin anew later.
    pub(crate) fn step(&mut self, cx: &JobCx<'_>, quota: u64) -> Result<Step> {
        if !self.started {
            self.cursor.seek_first()?;
            self.started = true;
        }
        let mut bytes = 0;
        while let Some(entry) = self.cursor.entry() {
            if self.survivor.judge(entry.key, entry.trailer).keep {
                self.outputs.add(cx, entry)?;
            }
            bytes += to_u64(entry.key.len() + entry.value.len());
            self.cursor.next()?;
            if bytes >= quota {
                self.consumed += bytes;
                return Ok(Step::More(bytes));
            }
        }
        self.consumed += bytes;
        let files = self.outputs.finish(cx)?;
        Ok(Step::Done(Outcome {
            counts: self.survivor.counts(),
            bytes_written: files.iter().map(|file| file.bytes).sum(),
            files,
            linked: super::stitch::Linked::default(),
        }))
    }

    /// Bytes of keys and values in the memtable, as far as it came.
    pub(crate) fn consumed(&self) -> u64 {
        self.consumed
    }

    /// The numbers of the files that it has created.
    pub(crate) fn ids(&self) -> &[SstId] {
        self.outputs.ids()
    }
}
