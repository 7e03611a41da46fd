//! The file: a header, then blocks, each with its own checksum; the last one says that nothing is missing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::op::{Op, Record};
use crate::codec::{Taker, put_varint};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::crc32c;
use crate::io::{CreateOptions, Fs, IoClass, IoCtx, WritableFile};
use crate::num::{to_u32, to_u64};

pub(super) const CTX: IoCtx = IoCtx::foreground(IoClass::Trace);
const MAGIC: [u8; 8] = *b"SiltTrc\n";
pub(super) const FORMAT: u32 = 1;
pub(super) const HEADER: usize = 48;
pub(super) const BLOCK_MAGIC: [u8; 4] = *b"TBlk";
pub(super) const BLOCK_HEADER: usize = 32;
/// A block is written when it has this many bytes, or after a while.
pub(super) const BLOCK_BYTES: usize = 64 << 10;
/// The longest payload: one record may be a long batch.
pub(super) const MAX_PAYLOAD: usize = 256 << 20;

const HASHED: u32 = 1;
const UNTIMED: u32 = 2;

/// What stands in front of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TraceHeader {
    /// When it began, in nanoseconds since 1970.
    pub began_ns: u64,
    /// The keys are hashes; of each the first bytes, as many as this says, are the key's own. See [`KeyHash`](super::KeyHash).
    pub hashed_beyond: Option<u32>,
    /// Nobody knows when the operations were: all times are 0.
    pub is_untimed: bool,
}

impl TraceHeader {
    fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let flags = if self.hashed_beyond.is_some() { HASHED } else { 0 } | if self.is_untimed { UNTIMED } else { 0 };
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[12..16].copy_from_slice(&flags.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.began_ns.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.hashed_beyond.unwrap_or(0).to_le_bytes());
        let crc = crc32c(0, &bytes[..HEADER - 4]);
        bytes[HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads the header of the trace `path`.
    pub(super) fn decode(bytes: &[u8], path: &Path) -> Result<TraceHeader> {
        if bytes.len() < HEADER || bytes[..8] != MAGIC {
            let what = "this is no trace: a trace begins with \"SiltTrc\" and a header of 48 bytes";
            return Err(Error::corruption(path, 0, what));
        }
        let mut taker = Taker::new(&bytes[8..HEADER]);
        let mut word = || taker.u32().unwrap_or(0);
        let (format, flags) = (word(), word());
        if format != FORMAT {
            let what = format!("a trace of format {format}; this version reads format {FORMAT}");
            return Err(Error::new(ErrorKind::Unsupported, what).at(path));
        }
        let (low, high, hashed_beyond) = (word(), word(), word());
        let crc = u32::from_le_bytes([bytes[44], bytes[45], bytes[46], bytes[47]]);
        if crc != crc32c(0, &bytes[..HEADER - 4]) {
            return Err(Error::corruption(path, 0, "the header has the wrong checksum"));
        }
        if flags & !(HASHED | UNTIMED) != 0 {
            let what = format!("the header has flags {flags:#x} that this version does not know");
            return Err(Error::new(ErrorKind::Unsupported, what).at(path));
        }
        Ok(TraceHeader {
            began_ns: u64::from(low) | u64::from(high) << 32,
            hashed_beyond: (flags & HASHED != 0).then_some(hashed_beyond),
            is_untimed: flags & UNTIMED != 0,
        })
    }
}

/// Writes a trace.
///
/// The file is as new as its last block; it is complete and durable after [`finish`](TraceWriter::finish).
pub struct TraceWriter {
    path: PathBuf,
    file: Box<dyn WritableFile>,
    block: Block,
    blocks: u64,
    last_ns: u64,
    operations: u64,
    lost: u64,
}

/// Records that go together, each with its time after the one before.
#[derive(Default)]
struct Block {
    /// Room for the header, then the records; empty while there are none.
    bytes: Vec<u8>,
    base_ns: u64,
    records: u32,
}

impl TraceWriter {
    /// Begins a trace in the new file `path`.
    ///
    /// # Errors
    /// `AlreadyExists` if there is such a file; `Io`, `NoSpace`.
    pub fn create(fs: &Arc<dyn Fs>, path: &Path, header: &TraceHeader) -> Result<TraceWriter> {
        let mut file = fs.create(path, CreateOptions::default(), CTX).map_err(|source| match source.kind() {
            std::io::ErrorKind::AlreadyExists => {
                Error::new(ErrorKind::AlreadyExists, "there is such a file already; a trace needs a new one").at(path)
            }
            _ => Error::io(path, "cannot create the trace", source),
        })?;
        // Durable at once, so that whatever a crash leaves behind it can be told to be a trace.
        let written = file.append(&header.encode(), CTX).and_then(|()| file.sync(CTX));
        written.map_err(|source| Error::io(path, "cannot write the trace", source))?;
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            // A folder of somebody else's may not be ours to sync; the trace is no worse for it while the machine runs.
            let _ = fs.sync_dir(parent, CTX);
        }
        let path = path.to_path_buf();
        Ok(TraceWriter { path, file, block: Block::default(), blocks: 0, last_ns: 0, operations: 0, lost: 0 })
    }

    /// Appends an operation. Times are nanoseconds since the trace's begin; one before the last is taken as the last.
    ///
    /// # Errors
    /// `Io`, `NoSpace`; `InvalidArgument` for a batch whose keys are more than 128 MiB.
    pub fn push(&mut self, record: &Record) -> Result<()> {
        self.add(record.at_ns, |out| record.op.encode(out))?;
        if let Op::Lost { operations } = &record.op {
            self.lost += operations;
        }
        self.operations += u64::from(!record.op.is_mark());
        if self.block.bytes.len() >= BLOCK_BYTES { self.write_block() } else { Ok(()) }
    }

    /// Appends a record that `encode` writes from its kind on.
    fn add(&mut self, at_ns: u64, encode: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let at_ns = at_ns.max(self.last_ns);
        let block = &mut self.block;
        if block.records == 0 {
            (block.base_ns, self.last_ns) = (at_ns, at_ns);
            block.bytes.resize(BLOCK_HEADER, 0);
        }
        let before = block.bytes.len();
        put_varint(&mut block.bytes, at_ns - self.last_ns);
        encode(&mut block.bytes);
        if block.bytes.len() - before > MAX_PAYLOAD / 2 {
            block.bytes.truncate(if block.records == 0 { 0 } else { before });
            return Err(Error::invalid("an operation with more than 128 MiB of keys does not fit a trace"));
        }
        self.last_ns = at_ns;
        block.records += 1;
        Ok(())
    }

    /// Writes `records` records from `base_ns` on as a block of their own. Before them is room for its header.
    pub(super) fn push_block(&mut self, base_ns: u64, last_ns: u64, records: u32, bytes: &mut [u8]) -> Result<()> {
        self.write_block()?;
        self.append(bytes, records, base_ns)?;
        self.last_ns = last_ns;
        self.operations += u64::from(records);
        Ok(())
    }

    /// Bytes so far, those that are not written yet included.
    pub fn bytes(&self) -> u64 {
        self.file.bytes() + to_u64(self.block.bytes.len())
    }

    /// Operations so far; a batch is one.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Operations that are known to be missing.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes what is gathered.
    ///
    /// # Errors
    /// `Io`, `NoSpace`: give the trace up then.
    pub fn write_block(&mut self) -> Result<()> {
        let mut block = std::mem::take(&mut self.block);
        if !block.bytes.is_empty() {
            self.append(&mut block.bytes, block.records, block.base_ns)?;
            block.bytes.clear();
        }
        self.block.bytes = block.bytes;
        Ok(())
    }

    /// Says that nothing is missing, and makes the file durable.
    ///
    /// # Errors
    /// `Io`, `NoSpace`.
    pub fn finish(mut self) -> Result<u64> {
        self.write_block()?;
        // A block without records is the end.
        let mut bytes = vec![0; BLOCK_HEADER];
        put_varint(&mut bytes, self.operations);
        put_varint(&mut bytes, self.lost);
        self.append(&mut bytes, 0, self.last_ns)?;
        self.file.sync(CTX).map_err(|source| Error::io(&self.path, "cannot sync the trace", source))?;
        Ok(self.file.bytes())
    }

    /// Appends a block whose header has room at the front of `bytes`.
    fn append(&mut self, bytes: &mut [u8], records: u32, base_ns: u64) -> Result<()> {
        let payload = to_u32(bytes.len() - BLOCK_HEADER);
        bytes[..4].copy_from_slice(&BLOCK_MAGIC);
        bytes[8..12].copy_from_slice(&payload.to_le_bytes());
        bytes[12..16].copy_from_slice(&records.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.blocks.to_le_bytes());
        bytes[24..32].copy_from_slice(&base_ns.to_le_bytes());
        let crc = crc32c(0, &bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        self.file.append(bytes, CTX).map_err(|source| Error::io(&self.path, "cannot write the trace", source))?;
        self.blocks += 1;
        Ok(())
    }
}
