//! Reading a trace: hostile bytes, one block in memory at a time.
//!
//! A process that dies leaves a file that ends in the middle of a block, or (after a power loss) in bytes that were never written. Such a
//! tail ends the trace quietly. Bytes that are wrong in front of a whole block are damage: an error that names the offset.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::file::{BLOCK_HEADER, BLOCK_MAGIC, CTX, HEADER, MAX_PAYLOAD, TraceHeader};
use super::op::{Op, Record};
use crate::codec::Taker;
use crate::error::{Error, Result};
use crate::frame::crc32c;
use crate::io::{Fs, OpenOptions, ReadableFile};
use crate::num::{to_u64, to_usize};

/// How a trace ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceEnd {
    /// It was stopped: nothing is missing but what is said to be lost.
    Stopped,
    /// It breaks off at this offset: the process died, or still writes.
    Torn(u64),
}

/// Reads a trace in order.
pub struct TraceReader {
    path: PathBuf,
    file: Arc<dyn ReadableFile>,
    header: TraceHeader,
    /// Where the next block begins.
    offset: u64,
    blocks: u64,
    /// The records of a block that are left, within it.
    block: Bytes,
    at: usize,
    left: u32,
    now_ns: u64,
    operations: u64,
    lost: u64,
    end: Option<TraceEnd>,
}

/// What stands at an offset.
enum Found {
    Block { records: u32, base_ns: u64, payload: Bytes },
    Nothing,
}

impl TraceReader {
    /// Opens the trace `path`.
    ///
    /// # Errors
    /// `Io`; `Corruption` if the file is no trace or its header is damaged; `Unsupported` for a newer format.
    pub fn open(fs: &dyn Fs, path: &Path) -> Result<TraceReader> {
        let file = fs
            .open(path, OpenOptions::default(), CTX)
            .map_err(|source| Error::io(path, "cannot open the trace", source))?;
        let mut bytes = vec![0; HEADER.min(to_usize(file.bytes()))];
        file.read_exact_at(&mut bytes, 0, CTX).map_err(|source| Error::io(path, "cannot read the trace", source))?;
        let header = TraceHeader::decode(&bytes, path)?;
        Ok(TraceReader {
            path: path.to_path_buf(),
            file,
            header,
            offset: to_u64(HEADER),
            blocks: 0,
            block: Bytes::new(),
            at: 0,
            left: 0,
            now_ns: 0,
            operations: 0,
            lost: 0,
            end: None,
        })
    }

    /// What stands in front.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// Bytes of the file, and how many of them are read.
    pub fn progress(&self) -> (u64, u64) {
        (self.file.bytes(), self.offset)
    }

    /// How it ended; none before the end was reached.
    pub fn end(&self) -> Option<TraceEnd> {
        self.end
    }

    /// The next record; none at the end.
    ///
    /// # Errors
    /// `Corruption` with the offset of the block that is damaged; `Io`. After an error there is no more.
    pub fn record(&mut self) -> Result<Option<Record>> {
        while self.left == 0 {
            if self.end.is_some() || !self.next_block()? {
                return Ok(None);
            }
        }
        let block = self.offset - to_u64(self.block.len());
        match self.take() {
            Some(record) => Ok(Some(record)),
            None => {
                // Its checksum is right, so nobody has changed it since it was written.
                self.end = Some(TraceEnd::Torn(block));
                self.left = 0;
                let what = "a record of this block makes no sense, though the checksum is right";
                Err(Error::corruption(&self.path, block - to_u64(BLOCK_HEADER), what))
            }
        }
    }

    fn take(&mut self) -> Option<Record> {
        let mut taker = Taker::new(&self.block[self.at..]);
        let delta_ns = taker.varint()?;
        let at_ns = self.now_ns.checked_add(delta_ns)?;
        let op = Op::decode(&mut taker, &self.block)?;
        self.at = self.block.len() - taker.rest().len();
        self.left -= 1;
        if self.left == 0 && !taker.is_empty() {
            return None;
        }
        self.now_ns = at_ns;
        if let Op::Lost { operations } = &op {
            self.lost = self.lost.saturating_add(*operations);
        }
        self.operations += u64::from(!op.is_mark());
        Some(Record { at_ns, op })
    }

    /// Goes on to the next block; false at the end.
    fn next_block(&mut self) -> Result<bool> {
        let begin = self.offset;
        if begin == self.file.bytes() {
            self.end = Some(TraceEnd::Torn(begin));
            return Ok(false);
        }
        match self.block_at(begin, self.blocks)? {
            Found::Block { records: 0, payload, .. } => self.check_end(begin, &payload).map(|()| false),
            Found::Block { records, base_ns, payload } => {
                self.offset = begin + to_u64(BLOCK_HEADER) + to_u64(payload.len());
                self.blocks += 1;
                if base_ns < self.now_ns || to_u64(payload.len()) < 2 * u64::from(records) {
                    self.end = Some(TraceEnd::Torn(begin));
                    let what = "this block cannot follow the one before, though the checksum is right";
                    return Err(Error::corruption(&self.path, begin, what));
                }
                (self.block, self.at, self.left, self.now_ns) = (payload, 0, records, base_ns);
                Ok(true)
            }
            Found::Nothing => {
                self.end = Some(TraceEnd::Torn(begin));
                match self.later_block(begin)? {
                    None => Ok(false),
                    Some(later) => {
                        let what = format!("the trace is damaged: no block stands here, but one does at {later}");
                        Err(Error::corruption(&self.path, begin, what))
                    }
                }
            }
        }
    }

    /// The last block says how much there was.
    fn check_end(&mut self, begin: u64, payload: &Bytes) -> Result<()> {
        self.end = Some(TraceEnd::Stopped);
        let mut taker = Taker::new(payload);
        let said = (taker.varint(), taker.varint());
        let behind = begin + to_u64(BLOCK_HEADER) + to_u64(payload.len());
        if said != (Some(self.operations), Some(self.lost)) || !taker.is_empty() || behind != self.file.bytes() {
            let what = format!(
                "the end of the trace does not fit what comes before it ({} operations, {} lost) or after it",
                self.operations, self.lost
            );
            return Err(Error::corruption(&self.path, begin, what));
        }
        self.offset = behind;
        Ok(())
    }

    /// The block number `number`, if it begins at `offset` and is whole.
    fn block_at(&self, offset: u64, number: u64) -> Result<Found> {
        let left = self.file.bytes() - offset;
        if left < to_u64(BLOCK_HEADER) {
            return Ok(Found::Nothing);
        }
        let mut header = [0; BLOCK_HEADER];
        self.fill(&mut header, offset)?;
        let mut taker = Taker::new(&header[4..]);
        let word = |taker: &mut Taker<'_>| taker.u32().unwrap_or(0);
        let (crc, length, records) = (word(&mut taker), word(&mut taker), word(&mut taker));
        let found = taker.u64().unwrap_or(0);
        let base_ns = taker.u64().unwrap_or(0);
        let length = u64::from(length);
        let fits = length <= to_u64(MAX_PAYLOAD) && length <= left - to_u64(BLOCK_HEADER);
        if header[..4] != BLOCK_MAGIC || !fits || found < number {
            return Ok(Found::Nothing);
        }
        let mut payload = Vec::new();
        payload.try_reserve_exact(to_usize(length)).map_err(|_| {
            let source = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
            Error::io(&self.path, "reading a block", source).at_offset(offset)
        })?;
        payload.resize(to_usize(length), 0);
        self.fill(&mut payload, offset + to_u64(BLOCK_HEADER))?;
        if crc32c(crc32c(0, &header[8..]), &payload) != crc {
            return Ok(Found::Nothing);
        }
        // A block of the right bytes at the wrong place: one before it is missing.
        if found > number {
            let what = format!("block {found} of the trace stands where block {number} should");
            return Err(Error::corruption(&self.path, offset, what));
        }
        Ok(Found::Block { records, base_ns, payload: payload.into() })
    }

    /// Where a whole block stands behind `offset`, if one does: then what is wrong at `offset` is no torn tail.
    fn later_block(&self, offset: u64) -> Result<Option<u64>> {
        const STEP: u64 = 1 << 20;
        /// A file made to be slow to read has many beginnings of blocks; one that tore has few.
        const CANDIDATES: u32 = 1000;
        let mut candidates = 0;
        let mut from = offset + 1;
        while from + to_u64(BLOCK_HEADER) <= self.file.bytes() {
            // Overlaps by what a beginning has, so that none is cut in two.
            let length = (self.file.bytes() - from).min(STEP + 3);
            let mut bytes = vec![0; to_usize(length)];
            self.fill(&mut bytes, from)?;
            for (at, _) in bytes.windows(4).enumerate().filter(|(_, window)| **window == BLOCK_MAGIC) {
                let at = from + to_u64(at);
                candidates += 1;
                if candidates > CANDIDATES {
                    return Ok(None);
                }
                match self.block_at(at, self.blocks) {
                    Ok(Found::Nothing) => {}
                    Ok(Found::Block { .. }) => return Ok(Some(at)),
                    Err(error) if error.kind() == crate::ErrorKind::Corruption => return Ok(Some(at)),
                    Err(error) => return Err(error),
                }
            }
            from += STEP;
        }
        Ok(None)
    }

    fn fill(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.file
            .read_exact_at(buffer, offset, CTX)
            .map_err(|source| Error::io(&self.path, "cannot read the trace", source).at_offset(offset))
    }
}

impl Iterator for TraceReader {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        self.record().transpose()
    }
}
