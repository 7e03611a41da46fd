//! Direct I/O: around the page cache, so that a merge does not push out what readers need.
//!
//! The device wants offsets, lengths and memory in multiples of [`ALIGN`]. The writer collects whole blocks and writes a padded
//! last block at a sync, then cuts the file back to its length; what follows overwrites that block. The reader reads the blocks
//! around what is asked for. Where a file system refuses, at once or at some call, both go on through the page cache.
#![expect(clippy::disallowed_types, reason = "part of the seam to std::fs")]

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::OFlags;

use super::super::{IoCtx, ReadableFile, WritableFile};
use crate::num::{to_u64, to_usize};

/// What offsets, lengths and addresses are multiples of. No device in use wants more.
const ALIGN: usize = 4096;
const WRITE_BUFFER_BYTES: usize = 1 << 20;
/// The largest read whose buffer is kept for the next one.
const KEPT_READ_BYTES: usize = 1 << 20;

/// Bytes at an aligned address.
struct AlignedBuffer {
    bytes: Vec<u8>,
    skip: usize,
    len: usize,
}

impl AlignedBuffer {
    fn new(len: usize) -> AlignedBuffer {
        let bytes = vec![0; len + ALIGN];
        let skip = bytes.as_ptr().align_offset(ALIGN);
        AlignedBuffer { bytes, skip, len }
    }

    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.skip..self.skip + self.len]
    }

    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.skip..self.skip + self.len]
    }
}

fn set_direct(file: &File, on: bool) -> bool {
    let Ok(flags) = rustix::fs::fcntl_getfl(file) else {
        return false;
    };
    let flags = if on { flags | OFlags::DIRECT } else { flags - OFlags::DIRECT };
    rustix::fs::fcntl_setfl(file, flags).is_ok()
}

/// Appends around the page cache. Nothing of the last megabyte can be read from the file before a sync.
pub(super) struct DirectWriter {
    file: File,
    buffer: AlignedBuffer,
    /// Bytes of the buffer in use.
    filled: usize,
    /// The file's offset of the buffer's first byte; aligned.
    offset: u64,
}

impl DirectWriter {
    /// `None` if the file system has no direct I/O. `file` is new and empty.
    pub(super) fn new(file: &File) -> Option<DirectWriter> {
        let file = file.try_clone().ok()?;
        set_direct(&file, true).then(|| DirectWriter {
            file,
            buffer: AlignedBuffer::new(WRITE_BUFFER_BYTES),
            filled: 0,
            offset: 0,
        })
    }

    /// Writes the first `len` bytes of the buffer, a multiple of [`ALIGN`].
    fn write_blocks(&mut self, len: usize) -> io::Result<()> {
        let blocks = &self.buffer.as_ref()[..len];
        match self.file.write_all_at(blocks, self.offset) {
            // Some devices want larger blocks, and a short write ends unaligned: go on through the page cache.
            Err(error) if error.kind() == ErrorKind::InvalidInput && set_direct(&self.file, false) => {
                self.file.write_all_at(blocks, self.offset)
            }
            result => result,
        }
    }
}

impl WritableFile for DirectWriter {
    fn append(&mut self, mut data: &[u8], _: IoCtx) -> io::Result<()> {
        while !data.is_empty() {
            let piece = data.len().min(WRITE_BUFFER_BYTES - self.filled);
            self.buffer.as_mut()[self.filled..self.filled + piece].copy_from_slice(&data[..piece]);
            self.filled += piece;
            data = &data[piece..];
            if self.filled == WRITE_BUFFER_BYTES {
                self.write_blocks(WRITE_BUFFER_BYTES)?;
                self.offset += to_u64(WRITE_BUFFER_BYTES);
                self.filled = 0;
            }
        }
        Ok(())
    }

    fn sync(&mut self, _: IoCtx) -> io::Result<()> {
        let padded = self.filled.next_multiple_of(ALIGN);
        if padded > 0 {
            let filled = self.filled;
            self.buffer.as_mut()[filled..padded].fill(0);
            self.write_blocks(padded)?;
            if padded > filled {
                self.file.set_len(self.offset + to_u64(filled))?;
            }
            // Whole blocks are done with; the last, partial one stays, to be written again when it has grown.
            let whole = filled - filled % ALIGN;
            self.buffer.as_mut().copy_within(whole..filled, 0);
            self.offset += to_u64(whole);
            self.filled -= whole;
        }
        self.file.sync_data()
    }

    fn bytes(&self) -> u64 {
        self.offset + to_u64(self.filled)
    }
}

/// Reads around the page cache.
pub(super) struct DirectReader {
    file: File,
    bytes: u64,
    /// Cleared when the file system turns out to want more than [`ALIGN`].
    direct: AtomicBool,
}

impl DirectReader {
    /// `None` if the file system has no direct I/O.
    pub(super) fn new(file: &File, bytes: u64) -> Option<DirectReader> {
        let file = file.try_clone().ok()?;
        set_direct(&file, true).then(|| DirectReader { file, bytes, direct: AtomicBool::new(true) })
    }

    fn read_blocks(&self, buf: &mut [u8], offset: u64, blocks: &mut [u8]) -> io::Result<()> {
        let skip = to_usize(offset % to_u64(ALIGN));
        let start = offset - to_u64(skip);
        let wanted = skip + buf.len();
        let mut got = 0;
        while got < wanted {
            match self.file.read_at(&mut blocks[got..], start + to_u64(got)) {
                Ok(n) => {
                    got += n;
                    // Direct reads end between blocks only where the file does.
                    if n == 0 || (got < wanted && !got.is_multiple_of(ALIGN)) {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if got < wanted {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "the file ends before the bytes asked for"));
        }
        buf.copy_from_slice(&blocks[skip..wanted]);
        Ok(())
    }
}

thread_local! {
    /// A read of a block must not allocate: each thread keeps one buffer.
    static READ_BUFFER: RefCell<AlignedBuffer> = RefCell::new(AlignedBuffer::new(0));
}

impl ReadableFile for DirectReader {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64, _: IoCtx) -> io::Result<()> {
        let past_end = || io::Error::new(ErrorKind::UnexpectedEof, "the file ends before the bytes asked for");
        let end = offset.checked_add(to_u64(buf.len())).ok_or_else(past_end)?;
        if buf.is_empty() {
            return Ok(());
        }
        if self.direct.load(Ordering::Relaxed) {
            let first = offset - offset % to_u64(ALIGN);
            let len = to_usize(end.checked_next_multiple_of(to_u64(ALIGN)).ok_or_else(past_end)? - first);
            let result = if len <= KEPT_READ_BYTES {
                READ_BUFFER.with_borrow_mut(|kept| {
                    if kept.len < len {
                        *kept = AlignedBuffer::new(len);
                    }
                    self.read_blocks(buf, offset, &mut kept.as_mut()[..len])
                })
            } else {
                self.read_blocks(buf, offset, AlignedBuffer::new(len).as_mut())
            };
            match result {
                Err(error) if error.kind() == ErrorKind::InvalidInput && set_direct(&self.file, false) => {
                    self.direct.store(false, Ordering::Relaxed);
                }
                result => return result,
            }
        }
        self.file.read_exact_at(buf, offset)
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}
