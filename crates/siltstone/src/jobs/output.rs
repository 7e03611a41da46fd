//! The files that a job writes, one after another.

use std::sync::Arc;

use super::JobCx;
use super::stitch::Link;
use crate::cache::sst_path;
use crate::error::{Error, Result};
use crate::key::Entry;
use crate::planted::{self, Bug};
use crate::sst::{TableOptions, TableWriter};
use crate::version::{FileMeta, SstId};

/// Output files of a job.
pub(crate) struct Outputs {
    options: TableOptions,
    current: Option<(SstId, TableWriter)>,
    files: Vec<Arc<FileMeta>>,
    /// Those of `ids` that were handed over last.
    handed_over: Vec<SstId>,
    /// Bytes of the files that are complete.
    finished_bytes: u64,
    /// All numbers that were given to files of this job: what to remove if it comes to nothing.
    ids: Vec<SstId>,
    /// When the oldest tombstone among the inputs was flushed; of outputs with tombstones we know no better.
    oldest_tombstone_ms: Option<u64>,
    /// When the data came to its level, if that was before this job.
    entered_level_ms: Option<u64>,
}

impl Outputs {
    pub(crate) fn new(options: TableOptions, oldest_tombstone_ms: Option<u64>) -> Outputs {
        Outputs {
            options,
            current: None,
            files: Vec::new(),
            handed_over: Vec::new(),
            finished_bytes: 0,
            ids: Vec::new(),
            oldest_tombstone_ms,
            entered_level_ms: None,
        }
    }

    /// The same for data that came to its level at wall time `entered_level_ms`.
    pub(crate) fn since(self, entered_level_ms: u64) -> Outputs {
        Outputs { entered_level_ms: Some(entered_level_ms), ..self }
    }

    /// Bytes of the file being written, about.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.current.as_ref().map_or(0, |(_, writer)| writer.estimated_bytes())
    }

    /// Bytes of all files so far, about.
    pub(crate) fn bytes_so_far(&self) -> u64 {
        self.finished_bytes + self.file_bytes()
    }

    #[inline]
    pub(crate) fn add(&mut self, cx: &JobCx<'_>, entry: Entry<'_>) -> Result<()> {
        if self.current.is_none() {
            self.begin(cx)?;
        }
        let (_, writer) = self.current.as_mut().expect("begun above");
        writer.add(entry.key, entry.trailer, entry.value)
    }

    fn begin(&mut self, cx: &JobCx<'_>) -> Result<()> {
        let id = (cx.new_id)();
        self.ids.push(id);
        let path = sst_path(cx.dir, id);
        let created = cx.meter.time(|| cx.create(&path));
        let file = created.map_err(|e| Error::io(&path, "cannot create a table", e))?;
        let writer = TableWriter::new(path, cx.meter.writer(file), self.options, cx.ctx);
        self.current = Some((id, writer.forcing_every(cx.force_every_bytes)));
        Ok(())
    }

    /// Ends the file being written, if there is one: it is complete and synced, its name is not yet durable.
    pub(crate) fn finish_file(&mut self, cx: &JobCx<'_>) -> Result<()> {
        let Some((id, writer)) = self.current.take() else { return Ok(()) };
        let summary = writer.finish()?;
        self.finished_bytes += summary.bytes;
        let now_ms = cx.now_ms();
        let oldest_tombstone_ms = (summary.tombstones > 0).then(|| self.oldest_tombstone_ms.unwrap_or(now_ms));
        self.files.push(Arc::new(FileMeta {
            id,
            bytes: summary.bytes,
            entries: summary.entries,
            tombstones: summary.tombstones,
            range_tombstones: 0,
            raw_bytes: summary.raw_bytes,
            smallest: summary.smallest,
            largest: summary.largest,
            min_seq: summary.min_seq,
            max_seq: summary.max_seq,
            created_ms: now_ms,
            oldest_tombstone_ms,
            entered_level_ms: self.entered_level_ms.unwrap_or(now_ms),
            whole: None,
        }));
        Ok(())
    }

    /// Puts `file`, a part of an input, behind what was written. It takes a number of its own unless it is all of that input.
    pub(crate) fn link(&mut self, cx: &JobCx<'_>, link: Link) -> Result<Arc<FileMeta>> {
        self.finish_file(cx)?;
        let Link { file, is_all, stays } = link;
        // No file has that number: there is nothing to remove if the job comes to nothing.
        let id = if is_all { file.id } else { (cx.new_id)() };
        let came_ms = self.entered_level_ms.unwrap_or_else(|| cx.now_ms());
        let entered_level_ms = if stays { file.entered_level_ms } else { came_ms };
        let file = Arc::new(FileMeta { id, entered_level_ms, ..file });
        self.files.push(Arc::clone(&file));
        Ok(file)
    }

    /// Ends the last file and makes all names durable: only now may the manifest name them.
    pub(crate) fn finish(&mut self, cx: &JobCx<'_>) -> Result<Vec<Arc<FileMeta>>> {
        self.finish_file(cx)?;
        self.hand_over(cx)
    }

    /// The files that are complete, with durable names; the one being written goes on.
    pub(crate) fn hand_over(&mut self, cx: &JobCx<'_>) -> Result<Vec<Arc<FileMeta>>> {
        if !self.files.is_empty() && !planted::active(Bug::FolderNotSynced) {
            let synced = cx.meter.time(|| cx.fs.sync_dir(cx.dir, cx.ctx));
            synced.map_err(|e| Error::io(cx.dir, "cannot sync the folder", e))?;
        }
        self.handed_over = self.files.iter().map(|file| file.id).collect();
        Ok(std::mem::take(&mut self.files))
    }

    /// The files that were handed over last are somebody else's: they are not among the [`ids`](Self::ids) any more.
    pub(crate) fn forget_handed_over(&mut self) {
        let handed_over = std::mem::take(&mut self.handed_over);
        self.ids.retain(|id| !handed_over.contains(id));
    }

    /// The numbers given to files so far, but for those that were forgotten.
    pub(crate) fn ids(&self) -> &[SstId] {
        &self.ids
    }
}
