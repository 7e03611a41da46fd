//! Work that acts: flushes and merges as state machines with bounded steps.
//!
//! A job is made from a decision ([`Plan`](crate::compaction::plan::Plan)) or a full memtable, advances by
//! [`step`](merge::MergeJob::step), and ends in an [`Outcome`]: the new files. It changes nothing that anyone can see; the store
//! turns the outcome into a version edit. So a job can be paused after any step, given another bandwidth, or thrown away.

pub mod cut;
pub mod survive;

mod borders;
pub(crate) mod flush;
pub(crate) mod merge;
pub(crate) mod output;
pub(crate) mod spans;
pub(crate) mod stitch;

use std::io;
use std::iter::Sum;
use std::path::Path;
use std::sync::Arc;

use crate::cache::{PurgeQueue, sst_path};
use crate::io::{Clock, CreateOptions, Fs, IoCtx, IoMeter, WritableFile};
use crate::version::{FileMeta, SstId};

/// What a job needs from the store at each step.
pub(crate) struct JobCx<'a> {
    pub(crate) fs: &'a dyn Fs,
    pub(crate) dir: &'a Path,
    pub(crate) clock: &'a dyn Clock,
    /// Gives out the numbers of new files.
    pub(crate) new_id: &'a dyn Fn() -> SstId,
    /// Whether its output bypasses the page cache.
    pub(crate) direct: bool,
    /// Its output is forced to disk whenever it has grown by this; 0 for only at the end of a file.
    pub(crate) force_every_bytes: u64,
    pub(crate) ctx: IoCtx,
    /// Counts the time of file calls.
    pub(crate) meter: &'a Arc<IoMeter>,
    /// Where files may be that new ones are written over.
    pub(crate) obsolete: &'a PurgeQueue,
}

impl JobCx<'_> {
    /// Wall time in milliseconds.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.wall_ns() / 1_000_000
    }

    /// A new file.
    fn create(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        // Around the page cache there is nothing to use again.
        let spare = if self.direct { None } else { self.obsolete.take_spare(self.clock.mono_ns()) };
        if let Some(id) = spare {
            let old = sst_path(self.dir, id);
            if let Ok(file) = self.fs.create_over(&old, path, self.ctx) {
                return Ok(file);
            }
            let _ = (self.fs.remove_file(&old, self.ctx), self.fs.remove_file(path, self.ctx));
        }
        self.fs.create(path, CreateOptions { direct: self.direct }, self.ctx)
    }
}

/// How far a step came.
pub(crate) enum Step {
    /// There is more to do. The bytes of input that the step consumed.
    More(u64),
    /// All is done, and durable.
    Done(Outcome),
}

/// What a job made.
#[derive(Default)]
pub(crate) struct Outcome {
    /// The new files that are in no [`Part`](merge::Part), in key order: a part of one run.
    pub(crate) files: Vec<Arc<FileMeta>>,
    /// What happened to the records.
    pub(crate) counts: survive::SurvivorCounts,
    /// By the whole job.
    pub(crate) bytes_written: u64,
    /// What of `files` was linked, neither read nor written.
    pub(crate) linked: stitch::Linked,
}

/// What jobs made that follow each other by key.
impl Sum for Outcome {
    fn sum<I: Iterator<Item = Outcome>>(outcomes: I) -> Outcome {
        outcomes.fold(Outcome::default(), |mut sum, next| {
            sum.files.extend(next.files);
            sum.counts += next.counts;
            sum.bytes_written += next.bytes_written;
            sum.linked += next.linked;
            sum
        })
    }
}

/// Removes files that a job wrote and nobody names. Failing is fine: the next open finds and removes them.
pub(crate) fn discard(fs: &dyn Fs, dir: &Path, ids: &[SstId], ctx: IoCtx) {
    for id in ids {
        let _ = fs.remove_file(&sst_path(dir, *id), ctx);
    }
}
