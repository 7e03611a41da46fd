//! Iteration over a table: one cursor, two ways to get at blocks.
//!
//! - [`TableCursor`] takes blocks from the block cache and pins the one it is in; blocks that the cache does not admit are
//!   read into memory of its own. With a block that is missing it reads those behind it to which cursors over this table mostly go on ([`Reach`]);
//!   once it goes further, it reads ahead: what is missing comes in ever larger pieces.
//! - [`TableScan`] reads big sequential pieces past the cache, for merges and verification, and decodes them in place.
//!
//! A step costs the decoding of one entry and a copy of its key's suffix behind the block's common prefix; nothing is
//! allocated. Both directions are alike, since a block knows where each entry begins.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use crate::cache::frames::{FramePool, Pinned};
use crate::error::{Error, Result};
use crate::io::{IoCtx, ReadableFile};
use crate::iter::{Approach, Arrival, Cursor, Target};
use crate::key::{self, Entry, SeqNo, Trailer};
use crate::num::{to_u32, to_u64, to_usize};
use crate::sst::block::{Layout, RawEntry};
use crate::sst::codec::{TRAILER_BYTES, check_frame};
use crate::sst::compress::{TAG_NONE, decompress, raw_len};
use crate::sst::simd;
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
    /// No more blocks of `table` are loaded from where the last seek went.
    fn leave(&mut self, table: &Table) {
        let _ = table;
    }
    /// Starts fetching where block `block` lies in memory, if that is known.
    fn prefetch_place(&self, table: &Table, block: usize) {
        let _ = (table, block);
    }
    /// Starts fetching the end of block `block`, if it is in memory: a seek begins there.
    fn prefetch(&self, table: &Table, block: usize) {
        let _ = (table, block);
    }
    /// Starts fetching the end of block `block` and its first entry, if it is in memory: a scan comes to both.
    fn prefetch_next(&self, table: &Table, block: usize) {
        let _ = (table, block);
    }
}

/// Suffixes up to this length are copied as if they had it: one load and one store instead of a call.
const SHORT: usize = 16;
/// So many entries before a block's end the following block is looked for in the cache.
const ENTRIES_AHEAD: usize = 6;
/// A cursor that has come to so many blocks in a row, and further than most, reads ahead; few ranges are long.
const SHORT_SCAN: u16 = 3;
/// How many blocks it reads ahead at first, and at most.
const FIRST_AHEAD: u16 = 3;
const MOST_AHEAD: u16 = 63;
/// A [`Reach`] counts in such parts of a block. It grows by three of them for a cursor that goes further and shrinks by one for another, so it comes
/// to rest where one of four goes further.
const REACH_PARTS: u16 = 32;
const REACH_GROWS: u16 = 3;
/// It is not longer than so many blocks: where a long scan begins is no matter.
const MOST_REACH: u16 = 31;
/// So many bytes behind an entry are fetched when a scan comes to it.
const BYTES_AHEAD: usize = 256;

/// A position in a table.
pub struct Entries<B: Blocks> {
    /// Before `table`: what it pins must be let go before the last user of a table frees the table's frames.
    blocks: B,
    table: Arc<Table>,
    /// The current block, if one is loaded.
    block: Option<usize>,
    layout: Layout,
    /// The current entry's index in the block, and its parts, if there is one.
    index: usize,
    entry: Option<RawEntry>,
    /// The head of its key.
    head: u128,
    /// The block's common prefix, then the entry's suffix, up to `key_len`; at least [`SHORT`] bytes behind the prefix.
    key: Vec<u8>,
    key_len: usize,
    prefix_len: usize,
    /// The head of the prefix, and how many bits of a key's head are in it.
    prefix_head: u128,
    prefix_bits: u32,
    /// Of the seek that is being approached: the block, and the index in it once it is loaded.
    sought: Option<(u32, Option<u32>)>,
    failed: Option<Error>,
}

impl<B: Blocks> Entries<B> {
    #[inline(always)]
    pub(crate) fn new(table: Arc<Table>, blocks: B) -> Entries<B> {
        Entries {
            table,
            blocks,
            block: None,
            layout: Layout::default(),
            index: 0,
            entry: None,
            head: 0,
            key: Vec::with_capacity(2 * SHORT),
            key_len: 0,
            prefix_len: 0,
            prefix_head: 0,
            prefix_bits: 0,
            sought: None,
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
        let prefix = layout.prefix(bytes);
        self.prefix_len = prefix.len();
        self.key.clear();
        self.key.extend_from_slice(prefix);
        self.key.resize(self.prefix_len + SHORT, 0);
        self.prefix_head = self.key.first_chunk().map_or(0, |first| u128::from_be_bytes(*first));
        self.prefix_bits = to_u32(self.prefix_len).saturating_mul(8);
        self.block = Some(block);
        Ok(())
    }

    /// Makes `entry` the current one, the block's entry `index`: puts its key together, and the head from its parts, since a load of what was just
    /// stored in two of them waits for both.
    #[inline(always)]
    fn take(&mut self, index: usize, entry: RawEntry) {
        let bytes = self.blocks.bytes();
        let suffix = entry.suffix(bytes);
        self.key_len = self.prefix_len + suffix.len();
        if suffix.len() <= SHORT
            && let Some(from) = bytes.get(entry.suffix_at..).and_then(<[u8]>::first_chunk::<SHORT>)
            && let Some(to) = self.key.get_mut(self.prefix_len..).and_then(<[u8]>::first_chunk_mut::<SHORT>)
        {
            *to = *from;
            let behind = u128::from_be_bytes(*from).checked_shr(self.prefix_bits);
            self.head = self.prefix_head | behind.unwrap_or(0);
            if self.key_len < SHORT {
                self.head &= !(u128::MAX >> (8 * self.key_len));
            }
        } else {
            self.key.truncate(self.prefix_len);
            self.key.extend_from_slice(suffix);
            self.head = key::head(&self.key);
            self.key.resize(self.prefix_len + suffix.len().max(SHORT), 0);
        }
        self.index = index;
        self.entry = Some(entry);
    }

    /// Moves to entry `index` of the current block.
    #[inline(always)]
    fn set(&mut self, index: usize) -> Result<()> {
        let Some(entry) = self.layout.entry(self.blocks.bytes(), index) else {
            let block = self.block.unwrap_or(0);
            return Err(self.undecodable(block));
        };
        self.take(index, entry);
        Ok(())
    }

    /// The index of the first entry of the current block at or after `(key, trailer)`.
    fn search(&mut self, block: usize, key: &[u8], trailer: Trailer) -> Result<usize> {
        match self.layout.seek(self.blocks.bytes(), key, trailer) {
            Some(index) => Ok(index),
            None => Err(self.undecodable(block)),
        }
    }

    /// Where a seek goes: the block, which may be behind the last one, and the index in it, which may be behind its last entry.
    #[inline]
    fn find(&mut self, key: &[u8], trailer: Trailer) -> Result<(usize, usize)> {
        let fences = &self.table.parts.fences;
        let (block, index) = match self.sought.take() {
            Some((block, index)) => (block as usize, index.map(|index| index as usize)),
            None => (fences.locate(key, trailer), None),
        };
        debug_assert_eq!(block, fences.locate(key, trailer), "a seek that was not approached");
        if let Some(index) = index {
            debug_assert_eq!(self.block, Some(block), "approached, and loaded for it");
            return Ok((block, index));
        }
        if block == fences.blocks() {
            return Ok((block, 0));
        }
        self.load(block)?;
        Ok((block, self.search(block, key, trailer)?))
    }

    /// Starts fetching entry `index` of the current block and what follows it.
    fn prefetch_entries(&self, index: usize) {
        let bytes = self.blocks.bytes();
        if let Some(at) = self.layout.offset(bytes, index.min(self.layout.count() - 1)) {
            for line in 0..4 {
                simd::prefetch(bytes, at + 64 * line);
            }
        }
    }

    /// Goes to the first entry of a block; past the last block, to the end.
    pub(crate) fn seek_block(&mut self, block: usize) -> Result<()> {
        self.start()?;
        self.sought = None;
        self.first_of(block)
    }

    fn first_of(&mut self, block: usize) -> Result<()> {
        if block >= self.table.parts.fences.blocks() {
            self.entry = None;
            return Ok(());
        }
        self.load(block)?;
        self.prefetch_entries(0);
        if self.layout.count() < ENTRIES_AHEAD {
            self.blocks.prefetch_next(&self.table, block + 1);
        }
        self.set(0)
    }

    /// The step behind a block's last entry, or to one that cannot be decoded.
    #[inline(never)]
    fn next_from_afar(&mut self) -> Result<()> {
        let (Some(block), Some(_)) = (self.block, self.entry) else {
            debug_assert!(self.failed.is_some(), "next without an entry");
            return self.start();
        };
        let next = self.index + 1;
        if next < self.layout.count() { self.set(next) } else { self.first_of(block + 1) }
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

impl<B: Blocks> Drop for Entries<B> {
    fn drop(&mut self) {
        self.blocks.leave(&self.table);
    }
}

impl<B: Blocks> Cursor for Entries<B> {
    fn seek_first(&mut self) -> Result<()> {
        self.seek_block(0)
    }

    fn seek_last(&mut self) -> Result<()> {
        self.start()?;
        self.sought = None;
        self.last_of(self.table.parts.fences.blocks().checked_sub(1))
    }

    fn seek(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        self.start()?;
        let (block, index) = self.find(key, trailer)?;
        if block == self.table.parts.fences.blocks() {
            self.entry = None;
            return Ok(());
        }
        // Between the last key of a block and its separator there is room for keys that are nowhere.
        if index < self.layout.count() { self.set(index) } else { self.first_of(block + 1) }
    }

    fn seek_before(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        self.start()?;
        let (block, index) = self.find(key, trailer)?;
        if block == self.table.parts.fences.blocks() {
            return self.last_of(block.checked_sub(1));
        }
        match index.checked_sub(1) {
            Some(index) => self.set(index),
            None => self.last_of(block.checked_sub(1)),
        }
    }

    #[inline(always)]
    fn next(&mut self) -> Result<()> {
        if self.next_at_hand().is_some() { Ok(()) } else { self.next_from_afar() }
    }

    #[inline(always)]
    fn next_at_hand(&mut self) -> Option<Arrival> {
        let at = self.entry.as_ref()?.end;
        let left = self.layout.count() - self.index;
        if left == 1 {
            return None;
        }
        if left == ENTRIES_AHEAD
            && let Some(block) = self.block
        {
            self.blocks.prefetch_next(&self.table, block + 1);
        }
        let bytes = self.blocks.bytes();
        let entry = self.layout.decode(bytes, at)?;
        simd::prefetch(bytes, entry.end + BYTES_AHEAD);
        self.take(self.index + 1, entry);
        Some(Arrival { head: self.head, key_len: self.key_len, trailer: entry.trailer })
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

    #[inline(always)]
    fn entry(&self) -> Option<Entry<'_>> {
        let entry = self.entry?;
        Some(Entry { key: &self.key[..self.key_len], trailer: entry.trailer, value: entry.value(self.blocks.bytes()) })
    }

    #[inline(always)]
    fn head(&self) -> Option<u128> {
        self.entry.map(|_| self.head)
    }

    fn approach(&mut self, step: Approach, target: Target<'_>) {
        if step == Approach::Block {
            self.sought = Some((to_u32(self.table.parts.fences.locate(target.key, target.trailer)), None));
        }
        let sought = self.sought.map(|(block, _)| block as usize);
        let Some(block) = sought.filter(|block| *block < self.table.parts.fences.blocks()) else {
            return;
        };
        match step {
            Approach::Block => self.blocks.prefetch_place(&self.table, block),
            Approach::Index => self.blocks.prefetch(&self.table, block),
            Approach::Entry => {
                // A failure is kept, and told by the seek.
                if self.load(block).is_ok()
                    && let Ok(index) = self.search(block, target.key, target.trailer)
                {
                    self.sought = Some((to_u32(block), Some(to_u32(index))));
                    self.prefetch_entries(index.saturating_sub(usize::from(target.before)));
                }
            }
        }
    }
}

/// To how many blocks behind the one that a seek leads to three of four cursors over a table go on, as far as was seen.
///
/// With a block that has to be read those come in one piece: a page more costs 0.1 us, a read more 0.8, both out of the page cache. Where ranges are
/// short, or most of their records are in other runs, it is none. Readers share it, so it is written only when it changes.
#[derive(Default)]
pub(crate) struct Reach(AtomicU16);

impl Reach {
    fn blocks(&self) -> u16 {
        (self.0.load(Relaxed) + REACH_PARTS / 2) / REACH_PARTS
    }

    /// A cursor went on to so many blocks.
    fn learn(&self, blocks: u16) {
        let (before, seen) = (self.0.load(Relaxed), blocks.min(MOST_REACH) * REACH_PARTS);
        let after = if before < seen { seen.min(before + REACH_GROWS) } else { seen.max(before.saturating_sub(1)) };
        if after != before {
            self.0.store(after, Relaxed);
        }
    }
}

/// Blocks through the cache.
pub struct Cached {
    pinned: Option<Pinned<Arc<FramePool>>>,
    /// Where a block is that the cache did not admit, and what was read ahead.
    scratch: Option<Box<Scratch>>,
    /// The block loaded last, and how many were loaded one behind the other up to that; 0 before the first. These three are small because cursors are
    /// moved when a range is opened.
    last: u32,
    in_a_row: u16,
    /// How many more blocks are read with one.
    ahead: u16,
    ctx: IoCtx,
}

impl Cached {
    #[inline(always)]
    pub(crate) fn new(ctx: IoCtx) -> Cached {
        Cached { pinned: None, scratch: None, last: 0, in_a_row: 0, ahead: 0, ctx }
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        if let Some(scratch) = self.scratch.take() {
            scratch.give_back();
        }
    }
}

impl Blocks for Cached {
    fn load(&mut self, table: &Table, block: usize) -> Result<()> {
        if self.in_a_row == 0 || to_u32(block) != self.last.wrapping_add(1) {
            self.leave(table);
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.last = to_u32(block);
        self.pinned = None;
        self.pinned = match table.slots().get_owned(block) {
            Some(pinned) => Some(pinned),
            None => {
                let scratch = self.scratch.get_or_insert_with(Scratch::take);
                if !table.is_read_ahead(block, scratch) {
                    self.ahead = match (table.reach.blocks() + 1).saturating_sub(self.in_a_row) {
                        0 if self.in_a_row >= SHORT_SCAN => (2 * self.ahead + 1).clamp(FIRST_AHEAD, MOST_AHEAD),
                        rest => rest,
                    };
                }
                table.read_on(block, usize::from(self.ahead), scratch, Arc::clone, self.ctx)?
            }
        };
        Ok(())
    }

    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        match &self.pinned {
            Some(pinned) => pinned,
            None => self.scratch.as_ref().map_or(&[], |scratch| scratch.block()),
        }
    }

    fn leave(&mut self, table: &Table) {
        if let Some(blocks) = self.in_a_row.checked_sub(1) {
            table.reach.learn(blocks);
        }
        (self.in_a_row, self.ahead) = (0, 0);
    }

    fn prefetch_place(&self, table: &Table, block: usize) {
        table.parts.fences.prefetch_handle(block);
        table.slots().prefetch_place(block);
    }

    fn prefetch(&self, table: &Table, block: usize) {
        if block < table.parts.fences.blocks() {
            table.slots().prefetch(block, to_usize(table.parts.fences.handle(block).len));
        }
    }

    fn prefetch_next(&self, table: &Table, block: usize) {
        self.prefetch(table, block);
        table.slots().prefetch_start(block);
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
    /// Up to where the file was told that it will be read.
    told: u64,
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
            told: 0,
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
        self.tell(offset + to_u64(wanted), table.parts.footer.data_end);
        Ok(0)
    }

    /// Has the disk work while the window, which ends at `end`, is used: keeps one to two more of them on their way. The system's own read-ahead
    /// is as long as somebody has set it, which can be more than memory holds for all runs of a merge.
    fn tell(&mut self, end: u64, data_end: u64) {
        let step = to_u64(self.read_ahead_bytes);
        let (from, to) = (self.told.max(end), (end + 2 * step).min(data_end));
        if from < to && from < end + step {
            self.file.will_read(from..to);
            self.told = to;
        }
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
