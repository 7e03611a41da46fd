//! A merge: the input files of a plan become new files of its output run.
//!
//! With progressive release it says in between what is done: output files that end before a key, and what is left of the inputs from
//! that key on.
//!
//! ```text
//!  inputs   [----][----]|[--|--][----]      behind the cut nothing was merged yet, or only into the output file being written
//!           [-------][--|---][-------]      before it everything is in finished output files
//!  outputs  [---][---]  [--                 the cut is the first key of the output file being written, the same for all inputs
//! ```
//!
//! So what a finished file says of a key, "gone" included, never stands beside an older version in an input that was cut elsewhere.
//!
//! A merge that may link parts of its inputs instead of copying them asks [`stitch`](super::stitch). One that several lanes share is several
//! jobs, each of a [`Span`].

use std::sync::Arc;

use bytes::Bytes;

use super::borders::Borders;
use super::cut::OutputCut;
use super::output::Outputs;
use super::spans::Span;
use super::stitch::{Linked, Stitcher};
use super::survive::{OlderRuns, Survivor};
use super::{JobCx, Outcome};
use crate::cache::TableHandle;
use crate::compaction::plan::{Plan, PlanInput, Release};
use crate::error::Result;
use crate::io::{IoCtx, IoMeter};
use crate::iter::file::{RunScans, ScanFile};
use crate::iter::{MergeForward, RunCursor};
use crate::key::{SeqNo, Trailer};
use crate::num::to_u64;
use crate::planted::{self, Bug};
use crate::sst::TableOptions;
use crate::version::{FileMeta, SstId, Version};

/// How much of an input file is read at a time. Two of these buffers a run are the memory of a merge; its spans share them, down to
/// [`LEAST_READ_AHEAD_BYTES`].
const READ_AHEAD_BYTES: usize = 256 << 10;
const LEAST_READ_AHEAD_BYTES: usize = 64 << 10;

/// How far a step of a merge came.
pub(crate) enum MergeStep {
    /// There is more to do.
    More,
    /// A part is done, and durable: put it into the tree, [say so](MergeJob::installed), then go on.
    Part(Part),
    /// All is done, and durable.
    Done(Outcome),
}

/// What a merge with progressive release has done since the last part.
pub(crate) struct Part {
    /// New files, in key order: a part of the output run.
    pub(crate) files: Vec<Arc<FileMeta>>,
    /// What is left of the inputs: what the files hold is no longer in them.
    pub(crate) rest: Vec<PlanInput>,
}

/// A merge under way, or one span of it.
pub(crate) struct MergeJob {
    span: Span,
    sources: Option<Vec<RunCursor<RunScans>>>,
    merge: Option<MergeForward<RunCursor<RunScans>>>,
    survivor: Survivor,
    cut: OutputCut,
    borders: Borders,
    outputs: Outputs,
    /// Finds what is linked instead of being copied, if the plan allows that.
    stitcher: Option<Stitcher>,
    consumed: u64,
    /// What of the inputs is still in the tree, if they are released progressively.
    rest: Option<Rest>,
}

impl MergeJob {
    /// The merge of `span` of what `plan` asks for in the tree `version`. `snapshots` are those held now.
    pub(crate) fn new(
        (plan, span): (&Plan, Span),
        version: &Version,
        snapshots: Vec<SeqNo>,
        options: TableOptions,
        ctx: IoCtx,
        meter: &Arc<IoMeter>,
        mut handle: impl FnMut(&Arc<FileMeta>) -> Arc<TableHandle>,
    ) -> MergeJob {
        let read_ahead_bytes = (READ_AHEAD_BYTES / span.of).max(LEAST_READ_AHEAD_BYTES);
        let sources = plan.inputs.iter().map(|input| {
            let scanned = |meta| ScanFile { meta: Arc::clone(meta), table: Some(handle(meta)) };
            let files = input.files.iter().map(scanned).collect();
            RunCursor::new(RunScans { files, read_ahead_bytes, ctx, meter: Arc::clone(meter) })
        });
        let oldest_tombstone_ms = plan.files().filter_map(|file| file.oldest_tombstone_ms).min();
        let oldest_tombstone_ms = oldest_tombstone_ms.filter(|_| !planted::active(Bug::TombstonesYoungAgain));
        let mut outputs = Outputs::new(options, oldest_tombstone_ms);
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
            stitcher: Stitcher::new(plan, version),
            span,
            consumed: 0,
            rest: (plan.release == Release::Progressive).then(|| Rest { inputs: plan.inputs.clone() }),
        }
    }

    /// Merges about `quota` bytes of input records.
    ///
    /// # Errors
    /// `Io`, `NoSpace`, `Corruption` of an input: throw the job away, [`discard`](super::discard) its [`ids`](Self::ids); the
    /// inputs are untouched.
    pub(crate) fn step(&mut self, cx: &JobCx<'_>, quota: u64) -> Result<MergeStep> {
        if let Some(sources) = self.sources.take() {
            let merge = self.merge.insert(MergeForward::new(sources));
            match &self.span.from {
                None => merge.seek_first()?,
                Some(key) => {
                    let lost = planted::active(Bug::BorderKeyLost);
                    merge.seek(key, if lost { Trailer(0) } else { Trailer::seek(SeqNo::MAX) })?;
                }
            }
        }
        let merge = self.merge.as_mut().expect("made by the first step");
        let mut bytes = 0;
        let mut cut_at: Option<Bytes> = None;
        loop {
            if let Some(stitcher) = &mut self.stitcher
                && stitcher.is_due(merge.position())
                && let Some(link) = stitcher.link(merge, &mut self.survivor, &self.cut, &self.borders)?
            {
                let link = self.outputs.link(cx, link)?;
                self.borders.crossed(&link.smallest);
                self.cut.ended();
                self.survivor.passed(link.entries);
                stitcher.made(&link);
                self.consumed += bytes + link.raw_bytes;
                return Ok(MergeStep::More);
            }
            let Some(entry) = merge.peek().filter(|entry| !self.span.ends_before(entry.key)) else { break };
            let fate = self.survivor.judge(entry.key, entry.trailer);
            if fate.keep {
                let full = self.cut.before(entry.key, fate.first_of_key, self.outputs.file_bytes());
                let crossed = self.borders.crossed(entry.key);
                if let Some(stitcher) = self.stitcher.as_mut().filter(|_| crossed) {
                    stitcher.look_again();
                }
                if crossed || full {
                    self.outputs.finish_file(cx)?;
                    if self.rest.as_ref().is_some_and(|rest| rest.frees(entry.key)) {
                        cut_at = Some(Bytes::copy_from_slice(entry.key));
                    }
                }
                self.outputs.add(cx, entry)?;
            }
            bytes += to_u64(entry.key.len() + entry.value.len());
            match merge.advance() {
                Err(_) if planted::active(Bug::ReadErrorIsEnd) => break,
                moved => moved?,
            }
            if let Some(mut first) = cut_at {
                if planted::active(Bug::ReleasedTooFar)
                    && let Some(next) = merge.peek()
                {
                    first = Bytes::copy_from_slice(next.key);
                }
                self.consumed += bytes;
                return self.part(cx, first).map(MergeStep::Part);
            }
            if bytes >= quota {
                self.consumed += bytes;
                return Ok(MergeStep::More);
            }
        }
        self.consumed += bytes;
        let files = self.outputs.finish(cx)?;
        // Other spans may go on for long: this one holds nothing open.
        self.merge = None;
        Ok(MergeStep::Done(Outcome {
            counts: self.survivor.counts(),
            bytes_written: self.outputs.bytes_so_far(),
            linked: self.linked(),
            files,
        }))
    }

    /// What is done when the inputs are cut at `first`: all finished output files, now durable.
    fn part(&mut self, cx: &JobCx<'_>, first: Bytes) -> Result<Part> {
        let files = self.outputs.hand_over(cx)?;
        let rest = self.rest.as_mut().expect("only a job that releases its inputs is cut");
        let merge = self.merge.as_ref().expect("it is at work");
        rest.cut(first, merge.sources());
        let inputs = rest.inputs.iter().filter(|input| !input.files.is_empty()).cloned().collect();
        Ok(Part { files, rest: inputs })
    }

    /// What the last [`Part`] holds is in the tree: its files are not this job's any more, and the tables that it has used up may be
    /// deleted.
    pub(crate) fn installed(&mut self) {
        self.outputs.forget_handed_over();
        let (Some(rest), Some(merge)) = (&self.rest, &mut self.merge) else { return };
        for (source, input) in merge.sources_mut().iter_mut().zip(&rest.inputs) {
            let scans = source.files_mut();
            let passed = scans.files.len() - input.files.len();
            scans.files[..passed].iter_mut().for_each(|file| file.table = None);
        }
    }

    /// What it has linked so far, neither read nor written.
    pub(crate) fn linked(&self) -> Linked {
        self.stitcher.as_ref().map_or_else(Linked::default, Stitcher::linked)
    }

    /// What it has done so far, should it come to nothing: about so many bytes of input read, so many of output made.
    pub(crate) fn bytes_so_far(&self) -> (u64, u64) {
        let Span { bytes, raw_bytes, .. } = self.span;
        let read = u128::from(bytes) * u128::from(self.consumed) / u128::from(raw_bytes.max(1));
        (u64::try_from(read).unwrap_or(u64::MAX).min(bytes), self.outputs.bytes_so_far())
    }

    /// Bytes of its input, about.
    pub(crate) fn input_bytes(&self) -> u64 {
        self.span.bytes
    }

    /// The numbers of the files that it has created.
    pub(crate) fn ids(&self) -> &[SstId] {
        self.outputs.ids()
    }
}

/// What is left of the inputs of a merge. One input for each source, in their order, those that are used up included.
struct Rest {
    inputs: Vec<PlanInput>,
}

impl Rest {
    /// Whether a file would leave the tree if the inputs were cut before `key`.
    fn frees(&self, key: &[u8]) -> bool {
        let mut first = self.inputs.iter().filter_map(|input| input.files.first());
        first.any(|file| file.largest[..] < *key)
    }

    /// Takes away what is before `first`. The sources stand at or behind it.
    fn cut(&mut self, first: Bytes, sources: &[RunCursor<RunScans>]) {
        for (input, source) in self.inputs.iter_mut().zip(sources) {
            let passed = input.files.iter().take_while(|file| file.largest < first).count();
            input.files.drain(..passed);
            let index = source.files().files.len() - input.files.len();
            let Some(file) = input.files.first_mut().filter(|file| file.smallest < first) else { continue };
            // The source may be past this file already: the entry at the cut was its last.
            let (left, of) = match source.at() {
                Some((at, cursor)) if at == index => cursor.inner().up_to(&file.largest),
                _ => (0, 1),
            };
            *file = Arc::new(file.without_before(first.clone(), left, of));
        }
    }
}
