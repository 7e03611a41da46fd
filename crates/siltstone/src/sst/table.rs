//! An open table: filter and index in memory, blocks through the block cache.
//!
//! A point lookup is: filter (one cache line), fences (a few lines of a small tree), slot, then the end of the block and one
//! entry. Its stages can be called apart, so that a caller with several tables can start the fetches of all of them before
//! it waits for the first: [`prefetch_filter`](Table::prefetch_filter), [`may_contain`](Table::may_contain),
//! [`prefetch_block`](Table::prefetch_block), [`get_hashed`](Table::get_hashed).

use std::cell::RefCell;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use crate::cache::block::{BlockCache, Slots};
use crate::cache::frames::{FramePool, Pinned};
use crate::cache::shelf::Shelf;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{IoClass, IoCtx, ReadableFile};
use crate::key::{SeqNo, Trailer};
use crate::num::{to_u64, to_usize};
use crate::sst::block::Layout;
use crate::sst::codec::{BlockHandle, TRAILER_BYTES, check_frame};
use crate::sst::compress::{Refusal, TAG_NONE, decompress, raw_len};
use crate::sst::cursor::{Cached, Entries, Reach, Scanned, TableCursor, TableScan};
use crate::sst::filter::Filter;
use crate::sst::footer::{FOOTER_BYTES, Footer};
use crate::sst::index::{Fences, FencesBuilder, parse_top};
use crate::sst::properties::Properties;
use crate::version::SstId;

/// An open table. Shared by `Arc`; reads need no lock.
pub struct Table {
    path: PathBuf,
    file: Arc<dyn ReadableFile>,
    id: SstId,
    pub(crate) parts: Parts,
    slots: Slots,
    pub(crate) reach: Reach,
    charged: u64,
}

/// What is kept in memory of a file.
pub(crate) struct Parts {
    pub(crate) footer: Footer,
    pub(crate) properties: Properties,
    pub(crate) fences: Fences,
    pub(crate) filter: Filter,
}

/// Memory for blocks that do not go into the cache; reused.
#[derive(Default)]
pub(crate) struct Scratch {
    stored: Vec<u8>,
    raw: Vec<u8>,
    /// Where the block read last is: in `raw` or in `stored`, from `at` on.
    in_raw: bool,
    at: usize,
    len: usize,
    /// What piece of the file is in `stored`: its first byte's offset and its length; empty if it is not known to be more than that block.
    ahead: (u64, usize),
}

/// The most that is read in one piece for a cursor that goes on.
const MOST_AHEAD_BYTES: usize = 256 << 10;
/// So many blocks in a row that are in the cache are read once more with those on both sides of them: a page more costs 0.1 us, a read
/// more 0.8, both out of the page cache.
const MOST_BRIDGED: usize = 2;
/// Scratch memory beyond this is not kept.
const KEEP_SCRATCH_BYTES: usize = 1 << 20;

impl Scratch {
    /// The block read last.
    #[inline]
    pub(crate) fn block(&self) -> &[u8] {
        &(if self.in_raw { &self.raw } else { &self.stored })[self.at..self.at + self.len]
    }

    /// Where in `stored` a block of the table lies that was read ahead.
    fn read_ahead(&self, handle: BlockHandle) -> Option<usize> {
        let at = to_usize(handle.offset.checked_sub(self.ahead.0)?);
        (at + to_usize(handle.len) + TRAILER_BYTES <= self.ahead.1).then_some(at)
    }

    fn trim(&mut self) {
        for buffer in [&mut self.stored, &mut self.raw] {
            if buffer.len() > KEEP_SCRATCH_BYTES {
                *buffer = Vec::new();
            }
        }
        (self.at, self.len, self.ahead) = (0, 0, (0, 0));
    }
}

/// The first `len` bytes of `buffer`, grown if need be.
pub(crate) fn room_in(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}

thread_local! {
    /// What the thread's lookups and cursors have given back: memory that is in the processor's cache still.
    #[expect(clippy::vec_box, reason = "boxes come and go whole: a cursor keeps one")]
    static SPARE: RefCell<Vec<Box<Scratch>>> = const { RefCell::new(Vec::new()) };
}

/// So many are kept: a scan needs one for each run that it reads.
const KEEP_SPARE: usize = 8;

impl Scratch {
    /// Scratch memory for this thread.
    pub(crate) fn take() -> Box<Scratch> {
        SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten().unwrap_or_default()
    }

    /// Keeps the memory for the next one who needs some.
    pub(crate) fn give_back(mut self: Box<Scratch>) {
        self.trim();
        // A thread that ends has nowhere to keep it.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < KEEP_SPARE {
                spare.push(self);
            }
        });
    }
}

/// Runs `work` with scratch memory.
fn with_scratch<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
    let mut scratch = Scratch::take();
    let result = work(&mut scratch);
    scratch.give_back();
    result
}

impl Table {
    /// Opens the table in `file`, which must be `expected_bytes` long, and loads its index and filter. `path` is for messages.
    ///
    /// # Errors
    /// `Corruption` if the file is damaged or not a table, `Unsupported` if a newer version wrote it, `Io`.
    pub fn open(
        path: impl Into<PathBuf>,
        file: Arc<dyn ReadableFile>,
        id: SstId,
        expected_bytes: u64,
        cache: Arc<BlockCache>,
        ctx: IoCtx,
    ) -> Result<Table> {
        Table::open_parts(path.into(), file, id, expected_bytes, cache, true, ctx)
    }

    /// The same without the filter, for a merge: every key may be there.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_for_scan(
        path: impl Into<PathBuf>,
        file: Arc<dyn ReadableFile>,
        id: SstId,
        expected_bytes: u64,
        cache: Arc<BlockCache>,
        ctx: IoCtx,
    ) -> Result<Table> {
        Table::open_parts(path.into(), file, id, expected_bytes, cache, false, ctx)
    }

    fn open_parts(
        path: PathBuf,
        file: Arc<dyn ReadableFile>,
        id: SstId,
        expected_bytes: u64,
        cache: Arc<BlockCache>,
        with_filter: bool,
        ctx: IoCtx,
    ) -> Result<Table> {
        if file.bytes() != expected_bytes {
            let what = format!("table is {} bytes long, not {expected_bytes}", file.bytes());
            return Err(Error::corruption(&path, file.bytes().min(expected_bytes), what));
        }
        // Merges are done with it soon.
        let shelf = with_filter.then(|| cache.shelf());
        let parts = Parts::read(&path, &*file, with_filter, shelf, ctx)?;
        let slots = Slots::new(Arc::clone(&cache), parts.fences.blocks(), shelf);
        let mut table = Table { path, file, id, parts, slots, reach: Reach::default(), charged: 0 };
        table.charged = table.memory_bytes();
        table.slots.cache().charge(table.charged);
        Ok(table)
    }

    /// The table's number.
    pub fn id(&self) -> SstId {
        self.id
    }

    /// The path given at the start.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the table says of itself.
    pub fn properties(&self) -> &Properties {
        &self.parts.properties
    }

    /// Bytes of memory that the open table holds, cached blocks not counted.
    pub fn memory_bytes(&self) -> u64 {
        let parts = &self.parts;
        parts.fences.memory_bytes()
            + parts.filter.memory_bytes()
            + self.slots.memory_bytes()
            + to_u64(size_of::<Table>())
    }

    /// False if no version of the key with this [hash](crate::key::hash) is here.
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        self.parts.filter.may_contain(hash)
    }

    /// Starts fetching what [`may_contain`](Self::may_contain) will touch.
    #[inline]
    pub fn prefetch_filter(&self, hash: u64) {
        self.parts.filter.prefetch(hash);
    }

    /// Starts fetching the end of the cached block where a lookup of `key` at `seq` begins. Reads nothing from the file.
    #[inline]
    pub fn prefetch_block(&self, key: &[u8], seq: SeqNo) {
        let block = self.parts.fences.locate(key, Trailer::seek(seq));
        if block < self.parts.fences.blocks() {
            self.slots.prefetch(block, to_usize(self.parts.fences.handle(block).len));
        }
    }

    /// The newest version of `key` that a read at `seq` sees, or none if this table has no such version. A tombstone is
    /// returned as such. `hash` is the key's [hash](crate::key::hash).
    ///
    /// # Errors
    /// `Corruption`, `Io`.
    #[inline]
    pub fn get(&self, key: &[u8], hash: u64, seq: SeqNo) -> Result<Option<(Trailer, Bytes)>> {
        if !self.may_contain(hash) {
            return Ok(None);
        }
        self.get_hashed(key, hash, seq, IoCtx::foreground(IoClass::UserRead))
    }

    /// The same without asking the filter: for callers that did.
    ///
    /// # Errors
    /// `Corruption`, `Io`.
    #[inline]
    pub fn get_hashed(&self, key: &[u8], hash: u64, seq: SeqNo, ctx: IoCtx) -> Result<Option<(Trailer, Bytes)>> {
        debug_assert_eq!(hash, crate::key::hash(key), "another key's hash");
        let bound = Trailer::seek(seq);
        let block = self.parts.fences.locate(key, bound);
        if block == self.parts.fences.blocks() {
            return Ok(None);
        }
        if let Some(pinned) = self.slots.get(block, to_usize(self.parts.fences.handle(block).len)) {
            return self.find(&pinned, block, key, bound);
        }
        self.get_missed(block, key, bound, ctx)
    }

    #[inline(never)]
    fn get_missed(&self, block: usize, key: &[u8], bound: Trailer, ctx: IoCtx) -> Result<Option<(Trailer, Bytes)>> {
        with_scratch(|scratch| match self.read(block, scratch, |pool| &**pool, ctx)? {
            Some(pinned) => self.find(&pinned, block, key, bound),
            None => self.find(scratch.block(), block, key, bound),
        })
    }

    #[inline]
    fn find(&self, bytes: &[u8], block: usize, key: &[u8], bound: Trailer) -> Result<Option<(Trailer, Bytes)>> {
        let found = Layout::parse(bytes).and_then(|layout| layout.get(bytes, key, bound));
        match found {
            Some(found) => Ok(found.map(|entry| (entry.trailer, Bytes::copy_from_slice(entry.value(bytes))))),
            None => Err(self.damaged(block, "a block that cannot be decoded")),
        }
    }

    /// A cursor over the table's entries, through the block cache.
    pub fn cursor(self: &Arc<Self>) -> TableCursor {
        self.cursor_with(IoCtx::foreground(IoClass::UserRead))
    }

    /// The same, with the tag that its reads carry.
    #[inline(always)]
    pub fn cursor_with(self: &Arc<Self>, ctx: IoCtx) -> TableCursor {
        Entries::new(Arc::clone(self), Cached::new(ctx))
    }

    /// A cursor for reading the table from end to end: in pieces of `read_ahead_bytes`, past the block cache.
    pub fn scan(self: &Arc<Self>, read_ahead_bytes: usize, ctx: IoCtx) -> TableScan {
        self.scan_file(Arc::clone(&self.file), read_ahead_bytes, ctx)
    }

    /// The same through another handle to the same file (one that reads ahead, or past the page cache).
    pub fn scan_file(self: &Arc<Self>, file: Arc<dyn ReadableFile>, read_ahead_bytes: usize, ctx: IoCtx) -> TableScan {
        Entries::new(Arc::clone(self), Scanned::new(file, read_ahead_bytes, ctx))
    }

    /// Keys before which about 1, 2, 3... in every `of` bytes of the table lie; ascending, some more than once if it has few blocks.
    pub(crate) fn quantiles(&self, of: usize) -> Vec<Bytes> {
        let fences = &self.parts.fences;
        let ends = (1..of).filter_map(|n| (fences.blocks() * n / of).checked_sub(1));
        ends.map(|block| Bytes::copy_from_slice(fences.separator(block).0)).collect()
    }

    /// Reads and checks every byte: checksums, order, counts, separators, and that the filter has every key.
    ///
    /// # Errors
    /// The first damage, as `Corruption` with its offset; `Io`.
    pub fn verify(self: &Arc<Self>, ctx: IoCtx) -> Result<()> {
        super::verify::verify(self, ctx)
    }

    /// The same for all blocks, whichever are damaged.
    pub(crate) fn examine(
        self: &Arc<Self>,
        ctx: IoCtx,
        watch: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Vec<super::verify::Flaw>> {
        super::verify::examine(self, ctx, watch)
    }

    /// The file that lookups read.
    pub(crate) fn file(&self) -> &dyn ReadableFile {
        &*self.file
    }

    /// The table's share of the block cache.
    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    #[cold]
    pub(crate) fn damaged(&self, block: usize, what: &str) -> Error {
        Error::corruption(&self.path, self.parts.fences.handle(block).offset, what)
    }

    #[cold]
    fn refused(&self, block: usize, refusal: &Refusal) -> Error {
        refuse(&self.path, self.parts.fences.handle(block).offset, refusal)
    }

    /// Reads a block that is not in the cache: into the cache, if it admits the block (then the result is pinned), or into
    /// `scratch`.
    pub(crate) fn read<'a, P: Deref<Target = FramePool>>(
        &'a self,
        block: usize,
        scratch: &mut Scratch,
        pool: impl FnOnce(&'a Arc<FramePool>) -> P,
        ctx: IoCtx,
    ) -> Result<Option<Pinned<P>>> {
        let handle = self.parts.fences.handle(block);
        let len = to_usize(handle.len);
        let stored_len = len + TRAILER_BYTES;
        if self.parts.properties.compression == u64::from(TAG_NONE)
            && let Some(mut room) = self.slots.room(block, len, TRAILER_BYTES)
        {
            let stored = &mut room.bytes_mut()[..stored_len];
            self.read_stored(stored, block, ctx)?;
            let (payload, tag) =
                check_frame(stored).ok_or_else(|| self.damaged(block, "block checksum does not match"))?;
            if tag == TAG_NONE && Layout::parse(payload).is_some() {
                return Ok(Some(room.fill(len, pool)));
            }
            return Err(self.damaged(block, "a block that cannot be decoded"));
        }
        scratch.ahead = (0, 0);
        self.read_stored(room_in(&mut scratch.stored, stored_len), block, ctx)?;
        let may_enter = self.parts.properties.compression != u64::from(TAG_NONE);
        self.take(block, 0, may_enter, scratch, pool)
    }

    /// Whether the block came with an earlier one.
    pub(crate) fn is_read_ahead(&self, block: usize, scratch: &Scratch) -> bool {
        scratch.read_ahead(self.parts.fences.handle(block)).is_some()
    }

    /// The same for a cursor that goes on to the blocks behind: with the block come up to `more` of those that follow it, in one piece. That ends
    /// where more than a few of them are in the cache. What came with an earlier one is not read again.
    pub(crate) fn read_on<'a, P: Deref<Target = FramePool>>(
        &'a self,
        block: usize,
        more: usize,
        scratch: &mut Scratch,
        pool: impl FnOnce(&'a Arc<FramePool>) -> P,
        ctx: IoCtx,
    ) -> Result<Option<Pinned<P>>> {
        let fences = &self.parts.fences;
        let handle = fences.handle(block);
        if let Some(at) = scratch.read_ahead(handle) {
            return self.take(block, at, true, scratch, pool);
        }
        scratch.ahead = (0, 0);
        let bytes = |last: usize| Some(to_usize(fences.handle(last).end()?.checked_sub(handle.offset)?));
        let fits = |last: &usize| bytes(*last).is_some_and(|bytes| bytes <= MOST_AHEAD_BYTES);
        let behind = block + 1..fences.blocks().min(block + 1 + more);
        let mut last = block;
        for next in behind.take_while(fits) {
            if !self.slots.holds(next) {
                last = next;
            } else if next - last > MOST_BRIDGED {
                break;
            }
        }
        let Some(len) = bytes(last).filter(|_| last > block) else { return self.read(block, scratch, pool, ctx) };
        let piece = room_in(&mut scratch.stored, len);
        if read(&self.path, &*self.file, piece, handle.offset, ctx).is_err() {
            // What is wrong may be further on, where nobody has asked for anything yet.
            return self.read(block, scratch, pool, ctx);
        }
        scratch.ahead = (handle.offset, len);
        self.take(block, 0, true, scratch, pool)
    }

    /// Takes a block that is `at` in `scratch` as it was stored: into the cache, if it may enter there and is admitted (then the result is
    /// pinned), or as the scratch memory's block.
    fn take<'a, P: Deref<Target = FramePool>>(
        &'a self,
        block: usize,
        at: usize,
        may_enter: bool,
        scratch: &mut Scratch,
        pool: impl FnOnce(&'a Arc<FramePool>) -> P,
    ) -> Result<Option<Pinned<P>>> {
        let len = to_usize(self.parts.fences.handle(block).len);
        let Scratch { stored, raw, .. } = scratch;
        let stored = &stored[at..at + len + TRAILER_BYTES];
        let (payload, tag) = check_frame(stored).ok_or_else(|| self.damaged(block, "block checksum does not match"))?;
        let is_raw = tag == TAG_NONE && self.parts.properties.compression == u64::from(TAG_NONE);
        let raw_len =
            if is_raw { len } else { raw_len(tag, payload).map_err(|refusal| self.refused(block, &refusal))? };
        let unpack = |to: &mut [u8]| {
            if is_raw {
                to.copy_from_slice(payload);
                return Ok(());
            }
            decompress(tag, payload, to).map_err(|refusal| self.refused(block, &refusal))
        };
        if may_enter && let Some(mut room) = self.slots.room(block, raw_len, 0) {
            unpack(&mut room.bytes_mut()[..raw_len])?;
            if Layout::parse(&room.bytes_mut()[..raw_len]).is_none() {
                return Err(self.damaged(block, "a block that cannot be decoded"));
            }
            return Ok(Some(room.fill(raw_len, pool)));
        }
        if is_raw {
            (scratch.in_raw, scratch.at, scratch.len) = (false, at, len);
        } else {
            unpack(room_in(raw, raw_len))?;
            (scratch.in_raw, scratch.at, scratch.len) = (true, 0, raw_len);
        }
        Ok(None)
    }

    fn read_stored(&self, stored: &mut [u8], block: usize, ctx: IoCtx) -> Result<()> {
        read(&self.path, &*self.file, stored, self.parts.fences.handle(block).offset, ctx)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.slots.cache().release(self.charged);
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("path", &self.path).field("properties", &self.parts.properties).finish()
    }
}

/// The error for a payload that is not a block.
pub(crate) fn refuse(path: &Path, offset: u64, refusal: &Refusal) -> Error {
    match refusal {
        Refusal::Damaged(what) => Error::corruption(path, offset, *what),
        Refusal::Unsupported(what) => Error::new(ErrorKind::Unsupported, *what).at(path).at_offset(offset),
    }
}

/// Reads `buf` from `offset`; a file that ends too early is damaged.
pub(crate) fn read(path: &Path, file: &dyn ReadableFile, buf: &mut [u8], offset: u64, ctx: IoCtx) -> Result<()> {
    file.read_exact_at(buf, offset, ctx).map_err(|source| {
        if source.kind() == std::io::ErrorKind::UnexpectedEof {
            Error::corruption(path, offset, "table ends too early")
        } else {
            Error::io(path, "cannot read table", source).at_offset(offset)
        }
    })
}

impl Parts {
    /// Reads everything of a file but its data blocks; it lies on the shelf if there is one.
    pub(crate) fn read(
        path: &Path,
        file: &dyn ReadableFile,
        with_filter: bool,
        shelf: Option<&Shelf>,
        ctx: IoCtx,
    ) -> Result<Parts> {
        let bytes = file.bytes();
        let Some(footer_at) = bytes.checked_sub(to_u64(FOOTER_BYTES)) else {
            return Err(Error::corruption(path, 0, "too short for a table"));
        };
        let mut footer = [0; FOOTER_BYTES];
        read(path, file, &mut footer, footer_at, ctx)?;
        let footer = Footer::decode(&footer, bytes, path)?;

        // Partitions, top index and properties in one piece. Its size is bounded by the file's.
        let start = footer.partitions_at();
        let mut tail = vec![0; to_usize(footer_at - start)];
        read(path, file, &mut tail, start, ctx)?;
        let meta = |handle: BlockHandle, what: &str| -> Result<&[u8]> {
            let range = handle.offset.checked_sub(start).zip(handle.end().map(|end| end.saturating_sub(start)));
            range
                .and_then(|(from, to)| tail.get(to_usize(from)..to_usize(to)))
                .and_then(check_frame)
                .filter(|&(_, tag)| tag == TAG_NONE)
                .map(|(payload, _)| payload)
                .ok_or_else(|| Error::corruption(path, handle.offset, format!("{what} checksum does not match")))
        };
        let damage = |handle: BlockHandle, what: &str| Error::corruption(path, handle.offset, what);

        let properties = Properties::decode(meta(footer.properties, "properties")?)
            .ok_or_else(|| damage(footer.properties, "properties that cannot be decoded"))?;
        let (partitions, blocks) = parse_top(meta(footer.top_index, "top index")?)
            .filter(|(partitions, blocks)| {
                *blocks == properties.blocks
                    && partitions.first().is_some_and(|first| first.handle.offset == start)
                    && partitions.last().and_then(|last| last.handle.end()) == Some(footer.top_index.offset)
            })
            .ok_or_else(|| damage(footer.top_index, "top index that cannot be decoded"))?;
        let mut fences = FencesBuilder::default();
        for partition in &partitions {
            fences
                .add(meta(partition.handle, "index partition")?, partition.blocks, footer.data_end)
                .ok_or_else(|| damage(partition.handle, "index partition that cannot be decoded"))?;
        }
        debug_assert_eq!(to_usize(blocks), fences.blocks());
        let fences = fences
            .finish(shelf)
            .filter(|fences| fences.separator(fences.blocks() - 1).0 == properties.largest)
            .ok_or_else(|| damage(footer.top_index, "separators out of order"))?;

        if (footer.filter.len == 0) != (properties.filter_keys == 0) {
            return Err(damage(footer.filter, "properties and footer do not agree on the filter"));
        }
        let filter = if with_filter && footer.filter.len > 0 {
            Parts::read_filter(path, file, footer.filter, shelf, ctx)?
        } else {
            Filter::none()
        };
        Ok(Parts { footer, properties, fences, filter })
    }

    /// Reads the filter.
    fn read_filter(
        path: &Path,
        file: &dyn ReadableFile,
        handle: BlockHandle,
        shelf: Option<&Shelf>,
        ctx: IoCtx,
    ) -> Result<Filter> {
        let mut block = vec![0; to_usize(handle.len) + TRAILER_BYTES];
        read(path, file, &mut block, handle.offset, ctx)?;
        let (filter, _) = check_frame(&block)
            .filter(|(_, tag)| *tag == TAG_NONE)
            .ok_or_else(|| Error::corruption(path, handle.offset, "filter checksum does not match"))?;
        Filter::parse(filter, shelf)
            .ok_or_else(|| Error::corruption(path, handle.offset, "filter that cannot be decoded"))
    }
}
