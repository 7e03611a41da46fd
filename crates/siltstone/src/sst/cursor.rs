//! Iteration over a table: one cursor, two ways to get at blocks.
//!
//! - [`TableCursor`] takes blocks from the block cache and pins the one it is in; blocks that the cache does not admit are
//!   read into memory of its own.
//! - [`TableScan`] reads big sequential pieces past the cache, for merges and verification, and decodes them in place.
//!
//! A step costs the decoding of one entry and a copy of its key's suffix behind the block's common prefix; nothing is
//! allocated. Both directions are alike, since a block knows where each entry begins.

use std::sync::Arc;

use crate::cache::frames::{FramePool, Pinned};
use crate::error::{Error, Result};
use crate::io::{IoCtx, ReadableFile};
use crate::iter::Cursor;
use crate::key::{Entry, SeqNo, Trailer};
use crate::num::{to_u64, to_usize};
use crate::sst::block::{Layout, RawEntry};
use crate::sst::codec::{TRAILER_BYTES, check_frame};
use crate::sst::compress::{TAG_NONE, decompress, raw_len};
use crate::sst::table::{Scratch, Table, read, refuse, room_in};

/// A cursor through the block cache: see [`Table::cursor`].
pub type TableCursor = Entries<Cached>;
/// A cursor that reads the file in big pieces: see [`Table::scan`].
pub type TableScan = Entries<Scanned>;

/// How a cursor gets at blocks.
pub trait Blocks {
    /// Makes block `block` of `table` the current one. After an error there is none.
    ///
    /// # Errors
    /// `Corruption`, `Io`.
    fn load(&mut self, table: &Table, block: usize) -> Result<()>;
    /// The bytes of the current block.
    fn bytes(&self) -> &[u8];
}

/// A position in a table.
pub struct Entries<B> {
    /// Before `table`: what it pins must be let go before the last user of a table frees the table's frames.
    blocks: B,
    table: Arc<Table>,
    /// The current block, if one is loaded.
    block: Option<usize>,
    layout: Layout,
    /// The current entry's index in the block, and its parts, if there is one.
    index: usize,
    entry: Option<RawEntry>,
    /// The block's common prefix, then the entry's suffix.
    key: Vec<u8>,
    prefix_len: usize,
    failed: Option<Error>,
}

impl<B: Blocks> Entries<B> {
    pub(crate) fn new(table: Arc<Table>, blocks: B) -> Entries<B> {
        Entries {
            table,
            blocks,
            block: None,
            layout: Layout::default(),
            index: 0,
            entry: None,
            key: Vec::new(),
            prefix_len: 0,
            failed: None,
        }
    }

    /// The table.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// The ordinal of the block that the position is in, the entry's index there, and how many entries the block has.
    pub(crate) fn place(&self) -> Option<(usize, usize, usize)> {
        Some((self.block?, self.index, self.layout.count()))
    }

    /// How many bytes of the table's data blocks, about, are at the position or behind it, and how many there are in all.
    pub(crate) fn left(&self) -> (u64, u64) {
        let all = self.table.parts.footer.data_end;
        let Some((block, index, count)) = self.place().filter(|_| self.entry.is_some()) else {
            return (0, all);
        };
        let handle = self.table.parts.fences.handle(block);
        let passed = u128::from(handle.len) * u128::from(to_u64(index)) / u128::from(to_u64(count.max(1)));
        let passed = handle.offset.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX));
        (all.saturating_sub(passed), all)
    }

    /// The same of what does not come after the block in which `last` would be.
    pub(crate) fn up_to(&self, last: &[u8]) -> (u64, u64) {
        let (left, all) = self.left();
        let fences = &self.table.parts.fences;
        let next = fences.locate(last, Trailer(0)) + 1;
        let behind = if next < fences.blocks() { all.saturating_sub(fences.handle(next).offset) } else { 0 };
        (left.saturating_sub(behind), all)
    }

    /// The end of the last block that lies before `limit` as a whole, from the position's block on: a key that is not below the last key in it
    /// and below all behind it but other versions of the same. None if there are fewer such blocks than `at_least`.
    pub(crate) fn blocks_before(&self, at_least: usize, limit: &[u8]) -> Option<&[u8]> {
        let (block, ..) = self.place()?;
        let fences = &self.table.parts.fences;
        // Mostly the answer is no, and one look is enough for it.
        let probe = (block + at_least.max(1) - 1).min(fences.blocks() - 1);
        if fences.separator(probe).0 >= limit {
            return None;
        }
        let end = fences.locate(limit, Trailer::seek(SeqNo::MAX));
        (end > probe).then(|| fences.separator(end - 1).0)
    }

    /// Bytes of the table's data blocks.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.table.parts.footer.data_end
    }

    /// The current block's bytes and layout.
    pub(crate) fn current(&self) -> (&[u8], &Layout) {
        (self.blocks.bytes(), &self.layout)
    }

    /// Refuses to move after an error.
    #[inline]
    fn start(&mut self) -> Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    #[cold]
    fn fail(&mut self, error: Error) -> Error {
        self.entry = None;
        self.block = None;
        self.failed = Some(error.clone());
        error
    }

    #[cold]
    fn undecodable(&mut self, block: usize) -> Error {
        let error = self.table.damaged(block, "a block that cannot be decoded");
        self.fail(error)
    }

    fn load(&mut self, block: usize) -> Result<()> {
        if self.block == Some(block) {
            return Ok(());
        }
        self.entry = None;
        if let Err(error) = self.blocks.load(&self.table, block) {
            return Err(self.fail(error));
        }
        let bytes = self.blocks.bytes();
        let Some(layout) = Layout::parse(bytes) else {
            return Err(self.undecodable(block));
        };
        self.layout = layout;
        self.key.clear();
        self.key.extend_from_slice(layout.prefix(bytes));
        self.prefix_len = self.key.len();
        self.block = Some(block);
        Ok(())
    }

    /// Moves to entry `index` of the current block.
    #[inline(always)]
    fn set(&mut self, index: usize) -> Result<()> {
        let bytes = self.blocks.bytes();
        let Some(entry) = self.layout.entry(bytes, index) else {
            let block = self.block.unwrap_or(0);
            return Err(self.undecodable(block));
        };
        self.key.truncate(self.prefix_len);
        self.key.extend_from_slice(entry.suffix(bytes));
        self.index = index;
        self.entry = Some(entry);
        Ok(())
    }

    /// The index of the first entry of the current block at or after `(key, trailer)`.
    fn search(&mut self, block: usize, key: &[u8], trailer: Trailer) -> Result<usize> {
        match self.layout.seek(self.blocks.bytes(), key, trailer) {
            Some(index) => Ok(index),
            None => Err(self.undecodable(block)),
        }
    }

    fn first_of(&mut self, block: usize) -> Result<()> {
        if block >= self.table.parts.fences.blocks() {
            self.entry = None;
            return Ok(());
        }
        self.load(block)?;
        self.set(0)
    }

    fn last_of(&mut self, block: Option<usize>) -> Result<()> {
        let Some(block) = block else {
            self.entry = None;
            return Ok(());
        };
        self.load(block)?;
        self.set(self.layout.count() - 1)
    }
}

impl<B: Blocks> Cursor for Entries<B> {
    fn seek_first(&mut self) -> Result<()> {
        self.start()?;
        self.first_of(0)
    }

    fn seek_last(&mut self) -> Result<()> {
        self.start()?;
        self.last_of(self.table.parts.fences.blocks().checked_sub(1))
    }

    fn seek(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        self.start()?;
        let block = self.table.parts.fences.locate(key, trailer);
        if block == self.table.parts.fences.blocks() {
            self.entry = None;
            return Ok(());
        }
        self.load(block)?;
        let index = self.search(block, key, trailer)?;
        // Between the last key of a block and its separator there is room for keys that are nowhere.
        if index < self.layout.count() { self.set(index) } else { self.first_of(block + 1) }
    }

    fn seek_before(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        self.start()?;
        let block = self.table.parts.fences.locate(key, trailer);
        if block == self.table.parts.fences.blocks() {
            return self.last_of(block.checked_sub(1));
        }
        self.load(block)?;
        match self.search(block, key, trailer)?.checked_sub(1) {
            Some(index) => self.set(index),
            None => self.last_of(block.checked_sub(1)),
        }
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        if let Some(block) = self.block
            && self.entry.is_some()
        {
            if self.index + 1 < self.layout.count() {
                return self.set(self.index + 1);
            }
            return self.first_of(block + 1);
        }
        debug_assert!(self.failed.is_some(), "next without an entry");
        self.start()
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        if let Some(block) = self.block
            && self.entry.is_some()
        {
            if let Some(index) = self.index.checked_sub(1) {
                return self.set(index);
            }
            return self.last_of(block.checked_sub(1));
        }
        debug_assert!(self.failed.is_some(), "prev without an entry");
        self.start()
    }

    #[inline]
    fn entry(&self) -> Option<Entry<'_>> {
        let entry = self.entry?;
        Some(Entry { key: &self.key, trailer: entry.trailer, value: entry.value(self.blocks.bytes()) })
    }

    fn prefetch(&mut self, key: &[u8]) {
        self.table.prefetch_block(key, SeqNo::MAX);
    }
}

/// Blocks through the cache.
pub struct Cached {
    pinned: Option<Pinned<Arc<FramePool>>>,
    scratch: Scratch,
    ctx: IoCtx,
}

impl Cached {
    pub(crate) fn new(ctx: IoCtx) -> Cached {
        Cached { pinned: None, scratch: Scratch::default(), ctx }
    }
}

impl Blocks for Cached {
    fn load(&mut self, table: &Table, block: usize) -> Result<()> {
        self.pinned = None;
        self.pinned = match table.slots().get_owned(block) {
            Some(pinned) => Some(pinned),
            None => table.read(block, &mut self.scratch, Arc::clone, self.ctx)?,
        };
        Ok(())
    }

    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        match &self.pinned {
            Some(pinned) => pinned,
            None => self.scratch.block(),
        }
    }
}

/// Blocks from a window that slides over the file.
pub struct Scanned {
    file: Arc<dyn ReadableFile>,
    read_ahead_bytes: usize,
    ctx: IoCtx,
    window: Vec<u8>,
    /// Offset in the file of the window's first byte.
    window_at: u64,
    /// Bytes of the window that were read.
    window_len: usize,
    /// A decompressed block.
    raw: Vec<u8>,
    in_raw: bool,
    /// Where the current block lies in the window or in `raw`.
    at: usize,
    len: usize,
}

impl Scanned {
    pub(crate) fn new(file: Arc<dyn ReadableFile>, read_ahead_bytes: usize, ctx: IoCtx) -> Scanned {
        Scanned {
            file,
            read_ahead_bytes,
            ctx,
            window: Vec::new(),
            window_at: 0,
            window_len: 0,
            raw: Vec::new(),
            in_raw: false,
            at: 0,
            len: 0,
        }
    }

    /// Makes the window hold `len` bytes from `offset`, which lie before `data_end`. Returns where in the window they begin.
    fn slide(&mut self, table: &Table, offset: u64, len: usize) -> Result<usize> {
        if let Some(at) = offset.checked_sub(self.window_at)
            && at.checked_add(to_u64(len)).is_some_and(|end| end <= to_u64(self.window_len))
        {
            return Ok(to_usize(at));
        }
        let left = to_usize(table.parts.footer.data_end - offset);
        let wanted = self.read_ahead_bytes.min(left).max(len);
        self.window_len = 0;
        if self.window.len() > wanted.max(self.read_ahead_bytes) {
            self.window = Vec::new();
        }
        read(table.path(), &*self.file, room_in(&mut self.window, wanted), offset, self.ctx)?;
        (self.window_at, self.window_len) = (offset, wanted);
        Ok(0)
    }
}

impl Blocks for Scanned {
    fn load(&mut self, table: &Table, block: usize) -> Result<()> {
        let handle = table.parts.fences.handle(block);
        let len = to_usize(handle.len);
        self.len = 0;
        let at = self.slide(table, handle.offset, len + TRAILER_BYTES)?;
        let stored = &self.window[at..at + len + TRAILER_BYTES];
        let (payload, tag) =
            check_frame(stored).ok_or_else(|| table.damaged(block, "block checksum does not match"))?;
        if tag == TAG_NONE {
            (self.in_raw, self.at, self.len) = (false, at, len);
            return Ok(());
        }
        let refuse = |refusal| refuse(table.path(), handle.offset, &refusal);
        let raw_len = raw_len(tag, payload).map_err(refuse)?;
        decompress(tag, payload, room_in(&mut self.raw, raw_len)).map_err(refuse)?;
        (self.in_raw, self.at, self.len) = (true, 0, raw_len);
        Ok(())
    }

    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        &(if self.in_raw { &self.raw } else { &self.window })[self.at..self.at + self.len]
    }
}
