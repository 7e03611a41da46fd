//! Cursors over the files of a run: which file holds a key, and what sequence number its records have.
//!
//! An ingested file is written before it is known when it takes effect. Its records carry sequence number 0, which no other
//! record has, and take the one of their file's metadata. Everything above this module sees only the real number.
//!
//! A file may be a slice of its table: records outside of its metadata's bounds are dead, and nothing above this module sees them.

use std::sync::Arc;

use super::run::FileCursors;
use super::{Approach, Arrival, Cursor, Target};
use crate::cache::TableHandle;
use crate::error::Result;
use crate::io::{IoCtx, IoMeter};
use crate::key::{self, Entry, SeqNo, Trailer};
use crate::planted::{self, Bug};
use crate::sst::{Properties, TableCursor, TableScan};
use crate::version::{FileMeta, Files};

/// A file of a tree: what the tree says of it, and its table.
#[derive(Clone, Copy)]
pub(crate) struct LiveFile<'a> {
    /// Of the table only the keys from `smallest` to `largest` exist.
    pub(crate) meta: &'a Arc<FileMeta>,
    pub(crate) table: &'a Arc<TableHandle>,
}

/// The files of one run, with the inline heads by which a key's file is found.
pub(crate) struct RunFiles {
    files: Files,
    /// The table of each.
    tables: Vec<Arc<TableHandle>>,
    /// The head of each file's largest key.
    fences: Vec<u128>,
}

impl RunFiles {
    pub(crate) fn new(files: &Files, handle: impl FnMut(&Arc<FileMeta>) -> Arc<TableHandle>) -> RunFiles {
        RunFiles {
            files: files.clone(),
            tables: files.iter().map(handle).collect(),
            fences: files.iter().map(|file| key::head(&file.largest)).collect(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// The file at a position.
    #[inline]
    pub(crate) fn meta(&self, at: usize) -> &Arc<FileMeta> {
        &self.files[at]
    }

    /// The table of the file at a position.
    #[inline]
    pub(crate) fn table(&self, at: usize) -> &Arc<TableHandle> {
        &self.tables[at]
    }

    /// Both.
    #[inline]
    pub(crate) fn file(&self, at: usize) -> LiveFile<'_> {
        LiveFile { meta: self.meta(at), table: self.table(at) }
    }

    /// Every file, ascending by key.
    pub(crate) fn files(&self) -> impl Iterator<Item = LiveFile<'_>> {
        self.files.iter().zip(&self.tables).map(|(meta, table)| LiveFile { meta, table })
    }

    /// Whether these are its files, with the same bounds.
    pub(crate) fn holds(&self, files: &Files) -> bool {
        let same = |(own, file): (&Arc<FileMeta>, &Arc<FileMeta>)| {
            Arc::ptr_eq(own, file)
                || (own.id == file.id && own.smallest == file.smallest && own.largest == file.largest)
        };
        self.files.is_same(files) || (self.files.len() == files.len() && self.files.iter().zip(files).all(same))
    }

    /// The run of `files`, which ascend by key: with its own tables where it has them, those that `handle` gives otherwise. What begins and
    /// ends as this run does is taken over as it is, so that a key is looked at only where files come and go.
    pub(crate) fn next(&self, files: &Files, mut handle: impl FnMut(&Arc<FileMeta>) -> Arc<TableHandle>) -> RunFiles {
        let same = |(own, file): &(&Arc<FileMeta>, &Arc<FileMeta>)| Arc::ptr_eq(own, file);
        let begin = self.files.iter().zip(files).take_while(same).count();
        let rest = self.files[begin..].iter().rev().zip(files[begin..].iter().rev());
        let behind = rest.take_while(same).count();
        let (own_end, end) = (self.files.len() - behind, files.len() - behind);
        let mut own = self.files[begin..own_end].iter().zip(&self.tables[begin..own_end]).peekable();
        let mut find = |file: &Arc<FileMeta>| {
            while own.next_if(|(own, _)| own.id != file.id && own.smallest < file.smallest).is_some() {}
            own.next_if(|(own, _)| own.id == file.id).map(|(_, table)| Arc::clone(table))
        };
        let part = &files[begin..end];
        let tables: Vec<_> = part.iter().map(|file| find(file).unwrap_or_else(|| handle(file))).collect();
        let fences: Vec<_> = part.iter().map(|file| key::head(&file.largest)).collect();
        RunFiles {
            files: files.clone(),
            tables: [&self.tables[..begin], &tables, &self.tables[own_end..]].concat(),
            fences: [&self.fences[..begin], &fences, &self.fences[own_end..]].concat(),
        }
    }

    /// The first file that ends at or after `key`, whose head is `head`.
    #[inline]
    pub(crate) fn first_reaching(&self, key: &[u8], head: u128) -> usize {
        let mut at = self.fences.partition_point(|fence| *fence < head);
        // Equal heads decide nothing: compare in full from the first of them.
        while self.fences.get(at) == Some(&head) && self.files[at].largest[..] < *key {
            at += 1;
        }
        at
    }

    /// The position of the file whose key range holds `key`, if there is one. `head` is the key's.
    #[inline]
    pub(crate) fn position_for(&self, key: &[u8], head: u128) -> Option<usize> {
        let at = self.first_reaching(key, head);
        (self.files.get(at)?.smallest[..] <= *key).then_some(at)
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
    /// Whether all records of the table count, as they are: neither ingested nor a slice.
    plain: bool,
    /// Whether the file's records carry sequence number 0. Such a file holds each key once.
    ingested: bool,
}

/// Every version of a key comes at or after this.
const NEWEST: Trailer = Trailer::seek(SeqNo::MAX);
/// No version of a key comes after this.
const OLDEST: Trailer = Trailer(0);

impl<C: Cursor> FileCursor<C> {
    #[inline(always)]
    pub(crate) fn new(cursor: C, properties: &Properties, meta: &Arc<FileMeta>) -> FileCursor<C> {
        let ingested = is_ingested(properties, meta);
        FileCursor { cursor, plain: !ingested && meta.whole.is_none(), ingested, meta: Arc::clone(meta) }
    }

    /// The cursor below, which knows nothing of slices.
    pub(crate) fn inner(&self) -> &C {
        &self.cursor
    }

    /// What the record at the position is to those above: nothing if it is outside of the slice.
    #[inline(never)]
    fn shown(&self) -> Option<Entry<'_>> {
        let entry = self.cursor.entry()?;
        let before = *entry.key < self.meta.smallest[..] && !planted::active(Bug::DeadKeysRead);
        if before || *entry.key > self.meta.largest[..] {
            None
        } else if self.ingested {
            Some(Entry { trailer: restamp(entry.trailer, &self.meta), ..entry })
        } else {
            Some(entry)
        }
    }

    /// Moves an ingested file's cursor to the first record with a key at or after `key`; says whether that record comes before
    /// `(key, trailer)`.
    fn seek_ingested(&mut self, key: &[u8], trailer: Trailer) -> Result<bool> {
        self.cursor.seek(key, NEWEST)?;
        let comes_before =
            |entry: Entry<'_>| key::compare(entry.key, restamp(entry.trailer, &self.meta), key, trailer).is_lt();
        Ok(self.cursor.entry().is_some_and(comes_before))
    }
}

impl<C: Cursor> Cursor for FileCursor<C> {
    fn seek_first(&mut self) -> Result<()> {
        if self.meta.whole.is_none() {
            return self.cursor.seek_first();
        }
        self.cursor.seek(&self.meta.smallest, NEWEST)
    }

    fn seek_last(&mut self) -> Result<()> {
        if self.meta.whole.is_none() {
            return self.cursor.seek_last();
        }
        self.cursor.seek(&self.meta.largest, OLDEST)?;
        match self.cursor.entry() {
            Some(entry) if *entry.key == self.meta.largest[..] => Ok(()),
            Some(_) => self.cursor.prev(),
            None => self.cursor.seek_last(),
        }
    }

    fn seek(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        if self.plain {
            return self.cursor.seek(key, trailer);
        }
        if *key < self.meta.smallest[..] && !planted::active(Bug::DeadKeysRead) {
            return self.seek_first();
        }
        if !self.ingested {
            return self.cursor.seek(key, trailer);
        }
        if self.seek_ingested(key, trailer)? { self.cursor.next() } else { Ok(()) }
    }

    fn seek_before(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        if self.plain {
            return self.cursor.seek_before(key, trailer);
        }
        if *key > self.meta.largest[..] {
            return self.seek_last();
        }
        if !self.ingested {
            return self.cursor.seek_before(key, trailer);
        }
        match self.seek_ingested(key, trailer)? {
            true => Ok(()),
            false if self.cursor.entry().is_some() => self.cursor.prev(),
            false => self.cursor.seek_last(),
        }
    }

    #[inline(always)]
    fn next(&mut self) -> Result<()> {
        self.cursor.next()
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        self.cursor.prev()
    }

    #[inline(always)]
    fn next_at_hand(&mut self) -> Option<Arrival> {
        if self.plain { self.cursor.next_at_hand() } else { None }
    }

    #[inline(always)]
    fn entry(&self) -> Option<Entry<'_>> {
        if self.plain { self.cursor.entry() } else { self.shown() }
    }

    #[inline(always)]
    fn head(&self) -> Option<u128> {
        if self.plain { self.cursor.head() } else { self.shown().map(|entry| key::head(entry.key)) }
    }

    fn approach(&mut self, step: Approach, target: Target<'_>) {
        // In other files the cursor below is sent to other places.
        if self.plain {
            self.cursor.approach(step, target);
        }
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
        self.files.len()
    }

    fn bounds(&self, file: usize) -> (&[u8], &[u8]) {
        let meta = self.files.meta(file);
        (&meta.smallest, &meta.largest)
    }

    fn first_reaching(&self, key: &[u8]) -> usize {
        self.files.first_reaching(key, key::head(key))
    }

    // Inlined, as what it calls is: a cursor is made where it stays, not handed from call to call.
    #[inline(always)]
    fn open(&self, file: usize) -> Result<Self::Cursor> {
        let LiveFile { meta, table } = self.files.file(file);
        if let Some(now_ms) = self.counted_ms {
            table.count_read(now_ms);
        }
        let table = table.table()?;
        Ok(FileCursor::new(table.cursor_with(self.ctx), table.properties(), meta))
    }
}

/// A file that a merge reads.
pub(crate) struct ScanFile {
    pub(crate) meta: Arc<FileMeta>,
    /// None once the merge is past it: the table may be deleted then.
    pub(crate) table: Option<Arc<TableHandle>>,
}

/// Opens scans of a run's files for a merge: big sequential reads that leave the cache alone.
pub(crate) struct RunScans {
    pub(crate) files: Vec<ScanFile>,
    pub(crate) read_ahead_bytes: usize,
    pub(crate) ctx: IoCtx,
    pub(crate) meter: Arc<IoMeter>,
}

impl FileCursors for RunScans {
    type Cursor = FileCursor<TableScan>;

    fn len(&self) -> usize {
        self.files.len()
    }

    fn bounds(&self, file: usize) -> (&[u8], &[u8]) {
        let meta = &self.files[file].meta;
        (&meta.smallest, &meta.largest)
    }

    fn open(&self, file: usize) -> Result<Self::Cursor> {
        let ScanFile { meta, table } = &self.files[file];
        let table = table.as_ref().expect("a merge goes forward only");
        let cursor = table.scan(self.read_ahead_bytes, self.ctx, &self.meter)?;
        let table = Arc::clone(cursor.table());
        Ok(FileCursor::new(cursor, table.properties(), meta))
    }
}
