//! Cursors over the files of a run: which file holds a key, and what sequence number its records have.
//!
//! An ingested file is written before it is known when it takes effect. Its records carry sequence number 0, which no other
//! record has, and take the one of their file's metadata. Everything above this module sees only the real number.

use std::sync::Arc;

use super::Cursor;
use super::run::FileCursors;
use crate::cache::TableHandle;
use crate::error::Result;
use crate::io::{IoCtx, IoMeter};
use crate::key::{self, Entry, SeqNo, Trailer};
use crate::sst::{Properties, TableCursor, TableScan};
use crate::version::FileMeta;

/// The files of one run, with the inline heads by which a key's file is found.
pub(crate) struct RunFiles {
    pub(crate) handles: Vec<Arc<TableHandle>>,
    /// The head of each file's largest key.
    fences: Vec<u128>,
}

impl RunFiles {
    pub(crate) fn new(handles: Vec<Arc<TableHandle>>) -> RunFiles {
        RunFiles { fences: handles.iter().map(|handle| key::head(&handle.meta().largest)).collect(), handles }
    }

    /// Whether these are its files.
    pub(crate) fn holds(&self, files: &[Arc<FileMeta>]) -> bool {
        self.handles.len() == files.len()
            && self.handles.iter().zip(files).all(|(handle, file)| handle.meta().id == file.id)
    }

    /// Handles for `files`, which ascend by key: its own where it has them, those that `handle` gives otherwise. Costs a
    /// comparison of keys only where a file has gone.
    pub(crate) fn handles_for(
        &self,
        files: &[Arc<FileMeta>],
        mut handle: impl FnMut(&Arc<FileMeta>) -> Arc<TableHandle>,
    ) -> Vec<Arc<TableHandle>> {
        let mut own = self.handles.iter().peekable();
        let mut find = |file: &Arc<FileMeta>| {
            let stays = |own: &Arc<TableHandle>| own.meta().id == file.id;
            while own.next_if(|own| !stays(own) && own.meta().smallest < file.smallest).is_some() {}
            own.next_if(|own| stays(own)).cloned()
        };
        files.iter().map(|file| find(file).unwrap_or_else(|| handle(file))).collect()
    }

    /// The file whose key range holds `key`, if there is one. `head` is the key's.
    #[inline]
    pub(crate) fn file_for(&self, key: &[u8], head: u128) -> Option<&TableHandle> {
        let mut at = self.fences.partition_point(|fence| *fence < head);
        // Equal heads decide nothing: compare in full from the first of them.
        while self.fences.get(at) == Some(&head) && self.handles[at].meta().largest[..] < *key {
            at += 1;
        }
        let handle = self.handles.get(at)?;
        (handle.meta().smallest[..] <= *key).then_some(handle)
    }
}

/// The trailer of a record of file `meta`.
#[inline]
pub(crate) fn restamp(trailer: Trailer, meta: &FileMeta) -> Trailer {
    if trailer.seq() == SeqNo::ZERO { Trailer(meta.max_seq.0 << 8 | u64::from(trailer.kind_u8())) } else { trailer }
}

/// Whether the records of this file take their sequence number from the file.
fn is_ingested(properties: &Properties, meta: &FileMeta) -> bool {
    properties.max_seq == SeqNo::ZERO && meta.max_seq > SeqNo::ZERO
}

/// A cursor over one file, through the cache ([`TableCursor`]) or past it ([`TableScan`]).
pub(crate) struct FileCursor<C> {
    cursor: C,
    meta: Arc<FileMeta>,
    /// Whether the file's records carry sequence number 0. Such a file holds each key once.
    ingested: bool,
}

impl<C: Cursor> FileCursor<C> {
    /// Moves an ingested file's cursor to the first record with a key at or after `key`; says whether that record comes before
    /// `(key, trailer)`.
    fn seek_ingested(&mut self, key: &[u8], trailer: Trailer) -> Result<bool> {
        self.cursor.seek(key, Trailer::seek(SeqNo::MAX))?;
        Ok(self.entry().is_some_and(|entry| key::compare(entry.key, entry.trailer, key, trailer).is_lt()))
    }
}

impl<C: Cursor> Cursor for FileCursor<C> {
    fn seek_first(&mut self) -> Result<()> {
        self.cursor.seek_first()
    }

    fn seek_last(&mut self) -> Result<()> {
        self.cursor.seek_last()
    }

    fn seek(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        if !self.ingested {
            return self.cursor.seek(key, trailer);
        }
        if self.seek_ingested(key, trailer)? { self.cursor.next() } else { Ok(()) }
    }

    fn seek_before(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        if !self.ingested {
            return self.cursor.seek_before(key, trailer);
        }
        match self.seek_ingested(key, trailer)? {
            true => Ok(()),
            false if self.cursor.entry().is_some() => self.cursor.prev(),
            false => self.cursor.seek_last(),
        }
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        self.cursor.next()
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        self.cursor.prev()
    }

    #[inline]
    fn entry(&self) -> Option<Entry<'_>> {
        let entry = self.cursor.entry()?;
        if self.ingested { Some(Entry { trailer: restamp(entry.trailer, &self.meta), ..entry }) } else { Some(entry) }
    }

    fn prefetch(&mut self, key: &[u8]) {
        self.cursor.prefetch(key);
    }
}

/// Opens cursors of a run's files for a user's range read: blocks come through the cache.
pub(crate) struct RunTables {
    pub(crate) files: Arc<RunFiles>,
    pub(crate) ctx: IoCtx,
    /// The wall time of the read, in milliseconds, if reads are counted.
    pub(crate) counted_ms: Option<u64>,
}

impl FileCursors for RunTables {
    type Cursor = FileCursor<TableCursor>;

    fn len(&self) -> usize {
        self.files.handles.len()
    }

    fn bounds(&self, file: usize) -> (&[u8], &[u8]) {
        let meta = self.files.handles[file].meta();
        (&meta.smallest, &meta.largest)
    }

    fn open(&self, file: usize) -> Result<Self::Cursor> {
        let handle = &self.files.handles[file];
        if let Some(now_ms) = self.counted_ms {
            handle.count_read(now_ms);
        }
        let table = handle.table()?;
        let meta = Arc::clone(handle.meta());
        Ok(FileCursor { ingested: is_ingested(table.properties(), &meta), cursor: table.cursor_with(self.ctx), meta })
    }
}

/// Opens scans of a run's files for a merge: big sequential reads that leave the cache alone.
pub(crate) struct RunScans {
    pub(crate) handles: Vec<Arc<TableHandle>>,
    pub(crate) read_ahead_bytes: usize,
    pub(crate) ctx: IoCtx,
    pub(crate) meter: Arc<IoMeter>,
}

impl FileCursors for RunScans {
    type Cursor = FileCursor<TableScan>;

    fn len(&self) -> usize {
        self.handles.len()
    }

    fn bounds(&self, file: usize) -> (&[u8], &[u8]) {
        let meta = self.handles[file].meta();
        (&meta.smallest, &meta.largest)
    }

    fn open(&self, file: usize) -> Result<Self::Cursor> {
        let handle = &self.handles[file];
        let cursor = handle.scan(self.read_ahead_bytes, self.ctx, &self.meter)?;
        let meta = Arc::clone(handle.meta());
        Ok(FileCursor { ingested: is_ingested(cursor.table().properties(), &meta), cursor, meta })
    }
}
