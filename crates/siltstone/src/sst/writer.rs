//! Writes a table: entries in, blocks out, through one reused buffer.
//!
//! Nothing is allocated per entry. Blocks gather in a buffer that is appended to the file in pieces of 256 KiB. The
//! keys' hashes are kept (8 bytes a key) and become the filter at the end; the index grows in memory (some 20 bytes a block).

use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::io::{IoCtx, WritableFile};
use crate::key::{MAX_KEY_BYTES, MAX_VALUE_BYTES, SeqNo, Trailer, compare, hash};
use crate::num::{to_u64, to_usize};
use crate::options::Compression;
use crate::planted::{self, Bug};
use crate::sst::codec::{BlockHandle, TRAILER_BYTES, seal_frame};
use crate::sst::compress::{Compressor, TAG_LZ4, TAG_NONE, TAG_ZSTD};
use crate::sst::footer::{FOOTER_BYTES, Footer};
use crate::sst::index::{IndexBuilder, separator};
use crate::sst::properties::Properties;
use crate::sst::{block::BlockBuilder, filter};

/// The file is appended to in pieces of this length, each of which begins at a multiple of it: it is in the core's cache still when the system
/// copies it, and the page cache takes it in as one folio. Pages are found sooner in larger folios, but memory for those is dearer.
const PIECE_BYTES: usize = 256 << 10;
/// Blocks that nearly fill a page are padded to its end, so that the next one does not straddle two.
const PAGE_BYTES: u64 = 4096;
/// No padding is longer.
const MAX_PADDING_BYTES: u64 = 256;

/// How to write a table.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TableOptions {
    /// A block and its trailer take at most this before compression, unless it holds a single entry that is larger.
    pub block_bytes: u32,
    /// Bits of the filter per distinct user key; 0 for no filter.
    pub filter_bits_per_key: f64,
    /// Of data blocks.
    pub compression: Compression,
}

/// What was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableSummary {
    /// Size of the file.
    pub bytes: u64,
    /// Records, tombstones included.
    pub entries: u64,
    /// Tombstones among them.
    pub tombstones: u64,
    /// Bytes of keys and values.
    pub raw_bytes: u64,
    /// Smallest user key.
    pub smallest: Bytes,
    /// Largest user key.
    pub largest: Bytes,
    /// Smallest sequence number.
    pub min_seq: SeqNo,
    /// Largest sequence number.
    pub max_seq: SeqNo,
}

/// Writes one table. Dropping it unfinished leaves a file that is no table: remove it.
pub struct TableWriter {
    path: PathBuf,
    file: Box<dyn WritableFile>,
    options: TableOptions,
    ctx: IoCtx,
    /// Bytes of a block without its trailer.
    block_limit: usize,
    block: BlockBuilder,
    compressor: Compressor,
    scratch: Vec<u8>,
    /// Finished blocks that were not appended yet.
    out: Vec<u8>,
    /// Bytes appended and in `out`.
    offset: u64,
    /// What was appended is forced to disk whenever it has grown by this many bytes; 0 for only at the end.
    force_every_bytes: u64,
    /// Finished blocks are appended in pieces of so many bytes.
    piece_bytes: usize,
    /// Bytes appended since the last time.
    unforced: u64,
    index: IndexBuilder,
    /// The last finished block, until the key after it is known.
    pending: Option<BlockHandle>,
    /// The last key of the last finished block, and its trailer.
    last_key: Vec<u8>,
    last_trailer: Trailer,
    separator: Vec<u8>,
    hashes: Vec<u64>,
    /// Distinct user keys.
    keys: u64,
    entries: u64,
    tombstones: u64,
    raw_bytes: u64,
    smallest: Bytes,
    min_seq: SeqNo,
    max_seq: SeqNo,
}

impl TableWriter {
    /// A writer to the empty file `file`; `path` is for messages.
    pub fn new(
        path: impl Into<PathBuf>,
        file: Box<dyn WritableFile>,
        options: TableOptions,
        ctx: IoCtx,
    ) -> TableWriter {
        let block_bytes = to_usize(u64::from(options.block_bytes.max(64)));
        TableWriter {
            path: path.into(),
            file,
            options,
            ctx,
            block_limit: block_bytes - TRAILER_BYTES,
            block: BlockBuilder::default(),
            compressor: Compressor::new(options.compression),
            scratch: Vec::new(),
            out: Vec::new(),
            offset: 0,
            force_every_bytes: 0,
            piece_bytes: PIECE_BYTES,
            unforced: 0,
            index: IndexBuilder::default(),
            pending: None,
            last_key: Vec::new(),
            last_trailer: Trailer(0),
            separator: Vec::new(),
            hashes: Vec::new(),
            keys: 0,
            entries: 0,
            tombstones: 0,
            raw_bytes: 0,
            smallest: Bytes::new(),
            min_seq: SeqNo::MAX,
            max_seq: SeqNo::ZERO,
        }
    }

    /// The same writer, which forces what it has written to disk whenever that has grown by `bytes` (0: only at the end), so that the
    /// operating system does not gather gigabytes and write them out at once, in everybody's way (luo19 section 3.1).
    #[must_use]
    pub fn forcing_every(mut self, bytes: u64) -> TableWriter {
        self.force_every_bytes = bytes;
        if bytes > 0 {
            self.piece_bytes = to_usize(bytes.min(to_u64(PIECE_BYTES)));
        }
        self
    }

    /// Adds an entry, which must be after all others in internal order.
    ///
    /// # Errors
    /// `InvalidArgument` for an entry out of order or too large; `Io`, `NoSpace` from the file. After an error the file is
    /// to be given up.
    #[inline]
    pub fn add(&mut self, key: &[u8], trailer: Trailer, value: &[u8]) -> Result<()> {
        let is_new_key = match self.block.last() {
            Some((last, last_trailer)) => self.check_order(last, last_trailer, key, trailer)?,
            None if self.entries > 0 => self.check_order(&self.last_key, self.last_trailer, key, trailer)?,
            None => true,
        };
        if key.len() > MAX_KEY_BYTES || value.len() > MAX_VALUE_BYTES {
            return Err(self.invalid("a key or value that is too large"));
        }
        if self.entries == 0 {
            self.smallest = Bytes::copy_from_slice(key);
        }
        if !self.block.add(key, trailer, value, self.block_limit) {
            self.finish_block()?;
            let fits = self.block.add(key, trailer, value, self.block_limit);
            assert!(fits, "an empty block takes any entry");
        }
        if self.pending.is_some() {
            self.index_pending(Some(key))?;
        }
        if is_new_key && self.options.filter_bits_per_key > 0.0 {
            self.hashes.push(hash(key));
        }
        self.keys += u64::from(is_new_key);
        self.entries += 1;
        self.tombstones += u64::from(trailer.is_delete());
        self.raw_bytes += to_u64(key.len() + value.len());
        self.min_seq = self.min_seq.min(trailer.seq());
        self.max_seq = self.max_seq.max(trailer.seq());
        Ok(())
    }

    /// Whether the key is another one than the last; an error if it is not after it.
    #[inline(always)]
    fn check_order(&self, last: &[u8], last_trailer: Trailer, key: &[u8], trailer: Trailer) -> Result<bool> {
        match last.cmp(key) {
            std::cmp::Ordering::Less => Ok(true),
            std::cmp::Ordering::Equal if compare(last, last_trailer, key, trailer).is_lt() => Ok(false),
            _ => Err(self.invalid("entries of a table must be in order")),
        }
    }

    #[cold]
    fn invalid(&self, what: &str) -> Error {
        Error::invalid(what).at(&self.path)
    }

    /// What the file will take if it is finished now, the filter included; compression is not foreseen for the open block.
    pub fn estimated_bytes(&self) -> u64 {
        let filter = if self.hashes.is_empty() { 0 } else { self.filter_bytes() };
        let open = if self.block.is_empty() { 0 } else { self.block.bytes() };
        self.offset + to_u64(open + self.index.bytes() + FOOTER_BYTES + 2 * self.last_key.len() + 128) + filter
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an estimate"
    )]
    fn filter_bytes(&self) -> u64 {
        (self.hashes.len() as f64 * self.options.filter_bits_per_key / 8.0) as u64
    }

    /// Entries so far.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// The path given at the start.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn finish_block(&mut self) -> Result<()> {
        let Some((last, trailer)) = self.block.last() else {
            return Ok(());
        };
        self.last_key.clear();
        self.last_key.extend_from_slice(last);
        self.last_trailer = trailer;
        let start = self.out.len();
        self.block.finish(&mut self.out);
        let tag = self.compressor.compress(&mut self.out, start, &mut self.scratch);
        self.scratch.shrink_to(1 << 20);
        let len = to_u64(self.out.len() - start);
        seal_frame(&mut self.out, start, tag);
        let handle = BlockHandle { offset: self.offset, len };
        self.offset += to_u64(self.out.len() - start);
        self.pad_page();
        assert!(self.pending.replace(handle).is_none(), "the block before was not indexed");
        let whole = self.out.len() - self.out.len() % self.piece_bytes;
        if whole > 0 { self.append(whole) } else { Ok(()) }
    }

    /// Pads to the end of the page if that costs at most a sixteenth of a block.
    fn pad_page(&mut self) {
        let gap = self.offset.wrapping_neg() % PAGE_BYTES;
        if gap <= MAX_PADDING_BYTES.min(u64::from(self.options.block_bytes) / 16)
            && self.options.compression == Compression::None
        {
            self.out.resize(self.out.len() + to_usize(gap), 0);
            self.offset += gap;
        }
    }

    /// Enters the last finished block in the index; `next` is the key after it, if there is one.
    fn index_pending(&mut self, next: Option<&[u8]>) -> Result<()> {
        let Some(handle) = self.pending.take() else {
            return Ok(());
        };
        let mut exact = None;
        match next {
            Some(next) if next == self.last_key => {
                exact = Some(self.last_trailer);
                self.separator.clone_from(&self.last_key);
            }
            Some(next) => separator(&self.last_key, next, &mut self.separator),
            None => self.separator.clone_from(&self.last_key),
        }
        if self.index.add(&self.separator, exact, handle) {
            Ok(())
        } else {
            Err(self.invalid("a table with more index than it can hold: use smaller files or larger blocks"))
        }
    }

    /// Appends the first `len` bytes of the buffer.
    fn append(&mut self, len: usize) -> Result<()> {
        self.file
            .append(&self.out[..len], self.ctx)
            .map_err(|source| Error::io(&self.path, "cannot write to table", source))?;
        self.unforced += to_u64(len);
        if self.force_every_bytes > 0 && self.unforced >= self.force_every_bytes {
            self.unforced = 0;
            self.file.sync(self.ctx).map_err(|source| Error::io(&self.path, "cannot sync table", source))?;
        }
        self.out.drain(..len);
        self.out.shrink_to(4 * PIECE_BYTES);
        Ok(())
    }

    /// Appends a block of metadata.
    fn put_meta(&mut self, body: &[u8]) -> BlockHandle {
        let start = self.out.len();
        self.out.extend_from_slice(body);
        seal_frame(&mut self.out, start, TAG_NONE);
        let handle = BlockHandle { offset: self.offset, len: to_u64(body.len()) };
        self.offset += to_u64(self.out.len() - start);
        handle
    }

    /// Writes the rest of the file and syncs it. Its name is the caller's to make durable.
    ///
    /// # Errors
    /// `InvalidArgument` without entries; `Io`, `NoSpace` from the file. After an error the file is to be given up.
    pub fn finish(mut self) -> Result<TableSummary> {
        if self.entries == 0 {
            return Err(self.invalid("a table needs an entry"));
        }
        self.finish_block()?;
        self.index_pending(None)?;
        let data_end = self.offset;
        let mut filter_handle = BlockHandle { offset: data_end, len: 0 };
        let start = self.out.len();
        if filter::write(&self.hashes, self.options.filter_bits_per_key, &mut self.out) {
            filter_handle.len = to_u64(self.out.len() - start);
            seal_frame(&mut self.out, start, TAG_NONE);
            self.offset += to_u64(self.out.len() - start);
        }
        let (partitions, top) = std::mem::take(&mut self.index).finish(self.offset);
        self.out.extend_from_slice(&partitions);
        self.offset += to_u64(partitions.len());
        let top_index = self.put_meta(&top);
        let properties = self.properties(&top)?;
        let properties_handle = self.put_meta(&properties.encode());
        let footer = Footer { filter: filter_handle, top_index, properties: properties_handle, data_end };
        self.out.extend_from_slice(&footer.encode());
        self.offset += to_u64(FOOTER_BYTES);
        self.append(self.out.len())?;
        assert_eq!(self.file.bytes(), self.offset, "the file is not as long as what was appended");
        self.file.cut(self.ctx).map_err(|source| Error::io(&self.path, "cannot cut table", source))?;
        if !planted::active(Bug::TableNotSynced) {
            self.file.sync(self.ctx).map_err(|source| Error::io(&self.path, "cannot sync table", source))?;
        }
        Ok(TableSummary {
            bytes: self.offset,
            entries: self.entries,
            tombstones: self.tombstones,
            raw_bytes: self.raw_bytes,
            smallest: properties.smallest,
            largest: properties.largest,
            min_seq: self.min_seq,
            max_seq: self.max_seq,
        })
    }

    fn properties(&self, top: &[u8]) -> Result<Properties> {
        let (_, blocks) =
            crate::sst::index::parse_top(top).ok_or_else(|| self.invalid("a top index that cannot be read back"))?;
        let largest = Bytes::copy_from_slice(&self.last_key);
        assert!(self.smallest <= largest, "smallest key above the largest");
        assert!(self.min_seq <= self.max_seq, "smallest sequence number above the largest");
        Ok(Properties {
            entries: self.entries,
            tombstones: self.tombstones,
            raw_bytes: self.raw_bytes,
            min_seq: self.min_seq,
            max_seq: self.max_seq,
            smallest: self.smallest.clone(),
            largest,
            blocks,
            filter_millibits: self.filter_millibits(),
            filter_keys: to_u64(self.hashes.len()),
            unfiltered_keys: if self.hashes.is_empty() { self.keys } else { 0 },
            compression: u64::from(match self.options.compression {
                Compression::None => TAG_NONE,
                Compression::Lz4 => TAG_LZ4,
                Compression::Zstd => TAG_ZSTD,
            }),
            block_bytes: u64::from(self.options.block_bytes),
            creator: concat!("siltstone ", env!("CARGO_PKG_VERSION")).to_owned(),
        })
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 64000")]
    fn filter_millibits(&self) -> u64 {
        (self.options.filter_bits_per_key * 1000.0).round().clamp(0.0, 1e9) as u64
    }
}
