//! A merge: the input files of a plan become new files of its output run.

use std::sync::Arc;

use super::borders::Borders;
use super::cut::OutputCut;
use super::output::Outputs;
use super::survive::{OlderRuns, Survivor};
use super::{JobCx, Outcome, Step};
use crate::cache::TableHandle;
use crate::compaction::plan::Plan;
use crate::error::Result;
use crate::io::{IoCtx, IoMeter};
use crate::iter::file::RunScans;
use crate::iter::{MergeForward, RunCursor};
use crate::key::SeqNo;
use crate::num::to_u64;
use crate::planted::{self, Bug};
use crate::sst::TableOptions;
use crate::version::{FileMeta, SstId, Version};

/// How much of an input file is read at a time. Two of these buffers a run are the memory of a merge.
const READ_AHEAD_BYTES: usize = 256 << 10;

/// A merge under way.
pub(crate) struct MergeJob {
    sources: Option<Vec<RunCursor<RunScans>>>,
    merge: Option<MergeForward<RunCursor<RunScans>>>,
    survivor: Survivor,
    cut: OutputCut,
    borders: Borders,
    outputs: Outputs,
    input_bytes: u64,
    input_raw_bytes: u64,
    consumed: u64,
}

impl MergeJob {
    /// The merge that `plan` asks for in the tree `version`. `snapshots` are those held now.
    pub(crate) fn new(
        plan: &Plan,
        version: &Version,
        snapshots: Vec<SeqNo>,
        options: TableOptions,
        ctx: IoCtx,
        meter: &Arc<IoMeter>,
        mut handle: impl FnMut(&Arc<FileMeta>) -> Arc<TableHandle>,
    ) -> MergeJob {
        let sources = plan.inputs.iter().map(|input| {
            let handles = input.files.iter().map(&mut handle).collect();
            RunCursor::new(RunScans { handles, read_ahead_bytes: READ_AHEAD_BYTES, ctx, meter: Arc::clone(meter) })
        });
        let mut outputs = Outputs::new(options, plan.files().filter_map(|file| file.oldest_tombstone_ms).min());
        if let Some(since_ms) = plan.stayed_since_ms() {
            outputs = outputs.since(since_ms);
        }
        MergeJob {
            sources: Some(sources.collect()),
            merge: None,
            survivor: Survivor::new(snapshots, OlderRuns::below(plan, version)),
            cut: OutputCut::new(plan.cut, plan.grandparents(version)),
            borders: Borders::new(&plan.borders),
            outputs,
            input_bytes: plan.input_bytes(),
            input_raw_bytes: plan.files().map(|file| file.raw_bytes).sum(),
            consumed: 0,
        }
    }

    /// Merges about `quota` bytes of input records.
    ///
    /// # Errors
    /// `Io`, `NoSpace`, `Corruption` of an input: throw the job away, [`discard`](super::discard) its [`ids`](Self::ids); the
    /// inputs are untouched.
    pub(crate) fn step(&mut self, cx: &JobCx<'_>, quota: u64) -> Result<Step> {
        if let Some(sources) = self.sources.take() {
            let merge = self.merge.insert(MergeForward::new(sources));
            merge.seek_first()?;
        }
        let merge = self.merge.as_mut().expect("made by the first step");
        let mut bytes = 0;
        while let Some(entry) = merge.peek() {
            let fate = self.survivor.judge(entry.key, entry.trailer);
            if fate.keep {
                let full = self.cut.before(entry.key, fate.first_of_key, self.outputs.file_bytes());
                if self.borders.crossed(entry.key) || full {
                    self.outputs.finish_file(cx)?;
                }
                self.outputs.add(cx, entry)?;
            }
            bytes += to_u64(entry.key.len() + entry.value.len());
            match merge.advance() {
                Err(_) if planted::active(Bug::ReadErrorIsEnd) => break,
                moved => moved?,
            }
            if bytes >= quota {
                self.consumed += bytes;
                return Ok(Step::More(bytes));
            }
        }
        self.consumed += bytes;
        let files = self.outputs.finish(cx)?;
        Ok(Step::Done(Outcome {
            counts: self.survivor.counts(),
            bytes_read: self.input_bytes,
            bytes_written: files.iter().map(|file| file.bytes).sum(),
            files,
        }))
    }

    /// What it has done so far, should it come to nothing: about so many bytes of input read, so many of output made.
    pub(crate) fn bytes_so_far(&self) -> (u64, u64) {
        let read = u128::from(self.input_bytes) * u128::from(self.consumed) / u128::from(self.input_raw_bytes.max(1));
        (u64::try_from(read).unwrap_or(u64::MAX).min(self.input_bytes), self.outputs.bytes_so_far())
    }

    /// The numbers of the files that it has created.
    pub(crate) fn ids(&self) -> &[SstId] {
        self.outputs.ids()
    }
}
