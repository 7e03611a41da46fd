//! Reading what a damaged store still holds: blocks and tables that cannot be read are passed over, and so is each key that they may have held.
//!
//! A key of a damaged range may be in another file as well, at an older version or undeleted. Whoever gets a record here can rely on it, so
//! such keys are left out.

use std::ops::RangeBounds;
use std::sync::Arc;

use bytes::Bytes;

use super::core::{Core, KeyspaceCore};
use super::range::owned;
use super::read::Source;
use super::verify::Damage;
use crate::cache::TableHandle;
use crate::error::{Error, Result};
use crate::io::{IoClass, IoCtx};
use crate::iter::Cursor;
use crate::iter::file::{FileCursor, LiveFile};
use crate::iter::merging::Merging;
use crate::iter::run::{FileCursors, RunCursor};
use crate::iter::visible::{Bounds, Visible};
use crate::key::{Entry, SeqNo, Trailer, compare};
use crate::sst::{Table, TableScan};
use crate::version::FileMeta;

const CTX: IoCtx = IoCtx::foreground(IoClass::Scrub);
/// How much of a table is read at once that has no damage.
const READ_AHEAD_BYTES: usize = 256 << 10;

/// The records of a key range that no damage may affect, in order.
pub struct Salvage {
    entries: Visible<Merging<Source<SoundFiles>>>,
    started: bool,
    /// Ranges of keys that are left out, their ends included: ascending and apart. Those before the position are gone.
    lost: std::iter::Peekable<std::vec::IntoIter<(Bytes, Bytes)>>,
}

impl Salvage {
    pub(crate) fn open<K: AsRef<[u8]>>(
        core: &Core,
        keyspace: &KeyspaceCore,
        bounds: impl RangeBounds<K>,
        seq: SeqNo,
        damage: &[Damage],
    ) -> Result<Salvage> {
        core.check_read(keyspace)?;
        if let Some(tree) = damage.iter().find(|damage| damage.file == core.dir) {
            return Err(Error::corruption(&tree.file, 0, tree.what.clone()));
        }
        let view = keyspace.view.load_full();
        let damage: Arc<[Damage]> = damage.iter().filter(|damage| damage.keyspace == keyspace.name).cloned().collect();
        let memtables = std::iter::once(&view.memtable).chain(&view.immutables);
        let mut sources: Vec<_> = memtables.map(|slot| Source::memtable(&slot.table)).collect();
        for run in &view.tree.runs {
            let files = SoundFiles::of(run.files(), &damage)?;
            sources.push(Source::Run(RunCursor::new(files)));
        }
        let bounds = Bounds { lower: owned(bounds.start_bound()), upper: owned(bounds.end_bound()) };
        let lost = apart(damage.iter().map(|damage| (damage.first_key.clone(), damage.last_key.clone())).collect());
        let entries = Visible::new(Merging::new(sources), seq, bounds);
        Ok(Salvage { entries, started: false, lost: lost.into_iter().peekable() })
    }

    /// Moves to the next record; false at the end. The record is then at [`key`](Self::key) and [`value`](Self::value).
    ///
    /// # Errors
    /// `Corruption` or `Io` where there is other damage than was said.
    pub fn advance(&mut self) -> Result<bool> {
        loop {
            if self.started {
                self.entries.next()?
            } else {
                self.entries.seek_first()?
            }
            self.started = true;
            if !self.entries.valid() {
                return Ok(false);
            }
            let key = self.entries.key();
            while self.lost.next_if(|(_, last)| *last < *key).is_some() {}
            if self.lost.peek().is_none_or(|(first, _)| *first > *key) {
                return Ok(true);
            }
        }
    }

    /// The key at the position.
    ///
    /// # Panics
    /// If the last [`advance`](Self::advance) did not return true.
    pub fn key(&self) -> &[u8] {
        self.entries.key()
    }

    /// The value at the position.
    ///
    /// # Panics
    /// If the last [`advance`](Self::advance) did not return true.
    pub fn value(&self) -> &[u8] {
        self.entries.value()
    }
}

impl std::fmt::Debug for Salvage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Salvage").field("bounds", self.entries.bounds()).finish_non_exhaustive()
    }
}

/// The same keys in ranges that ascend and do not overlap.
fn apart(mut ranges: Vec<(Bytes, Bytes)>) -> Vec<(Bytes, Bytes)> {
    ranges.sort_unstable();
    let mut out: Vec<(Bytes, Bytes)> = Vec::new();
    for (first, last) in ranges {
        match out.last_mut() {
            Some((_, end)) if first <= *end => *end = last.max(end.clone()),
            _ => out.push((first, last)),
        }
    }
    out
}

/// Whether the damage is known.
fn is_known(error: &Error, damage: &[Damage]) -> bool {
    damage.iter().any(|known| error.path() == Some(&known.file) && error.offset() == known.offset)
}

/// Whether the damage may affect all keys of a file.
fn is_whole(file: &FileMeta, damage: &[Damage]) -> bool {
    damage.iter().any(|known| known.first_key <= file.smallest && file.largest <= known.last_key)
}

/// The files of a run that can be opened.
struct SoundFiles {
    files: Vec<(Arc<FileMeta>, Arc<TableHandle>)>,
    damage: Arc<[Damage]>,
}

impl SoundFiles {
    fn of<'a>(run: impl Iterator<Item = LiveFile<'a>>, damage: &Arc<[Damage]>) -> Result<SoundFiles> {
        let mut files = Vec::new();
        for LiveFile { meta, table } in run {
            match table.table_with(CTX) {
                Ok(_) => files.push((Arc::clone(meta), Arc::clone(table))),
                // All its keys are left out, not those of one block of it.
                Err(error) if is_known(&error, damage) && is_whole(meta, damage) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(SoundFiles { files, damage: Arc::clone(damage) })
    }
}

impl FileCursors for SoundFiles {
    type Cursor = FileCursor<SoundCursor>;

    fn len(&self) -> usize {
        self.files.len()
    }

    fn bounds(&self, file: usize) -> (&[u8], &[u8]) {
        let (meta, _) = &self.files[file];
        (&meta.smallest, &meta.largest)
    }

    fn open(&self, file: usize) -> Result<Self::Cursor> {
        let (meta, table) = &self.files[file];
        let table = table.table_with(CTX)?;
        Ok(FileCursor::new(SoundCursor::new(&table, &self.damage), table.properties(), meta))
    }
}

/// The entries of a table in the blocks that can be read. Goes forward only.
struct SoundCursor {
    table: Arc<Table>,
    scan: TableScan,
    ahead: usize,
    damage: Arc<[Damage]>,
}

impl SoundCursor {
    fn new(table: &Arc<Table>, damage: &Arc<[Damage]>) -> SoundCursor {
        // A block that cannot be read takes nothing along that would be read with it.
        let ahead = if damage.iter().any(|damage| damage.file == table.path()) { 0 } else { READ_AHEAD_BYTES };
        let scan = table.scan(ahead, CTX);
        SoundCursor { table: Arc::clone(table), scan, ahead, damage: Arc::clone(damage) }
    }

    /// Goes to the first entry of block `block`, or of the next one that can be read.
    fn enter(&mut self, mut block: usize) -> Result<()> {
        while let Err(error) = self.scan.seek_block(block) {
            self.pass(error)?;
            block += 1;
        }
        Ok(())
    }

    /// Makes a failed scan able to move again.
    fn pass(&mut self, error: Error) -> Result<()> {
        if !is_known(&error, &self.damage) {
            return Err(error);
        }
        self.scan = self.table.scan(self.ahead, CTX);
        Ok(())
    }
}

impl Cursor for SoundCursor {
    fn seek_first(&mut self) -> Result<()> {
        self.enter(0)
    }

    fn seek(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        if let Err(error) = self.scan.seek(key, trailer) {
            self.pass(error)?;
            self.enter(self.table.parts.fences.locate(key, trailer))?;
            while self.entry().is_some_and(|entry| compare(entry.key, entry.trailer, key, trailer).is_lt()) {
                self.next()?;
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        let block = self.scan.place().map_or(0, |(block, _, _)| block);
        match self.scan.next() {
            Ok(()) => Ok(()),
            Err(error) => {
                self.pass(error)?;
                self.enter(block + 1)
            }
        }
    }

    fn entry(&self) -> Option<Entry<'_>> {
        self.scan.entry()
    }

    fn seek_last(&mut self) -> Result<()> {
        unreachable!("a salvage goes forward only")
    }

    fn seek_before(&mut self, _: &[u8], _: Trailer) -> Result<()> {
        unreachable!("a salvage goes forward only")
    }

    fn prev(&mut self) -> Result<()> {
        unreachable!("a salvage goes forward only")
    }
}
