//! Frames: the checksummed envelope of every record of the log and of the manifest.
//!
//! ```text
//! crc u32 | length u32 | body (length bytes, never 0)          all integers little-endian
//! ```
//!
//! The checksum is CRC-32C over length and body, **continued from the frame before** (the first one from a seed that the
//! file's header gives). So a frame is valid only in its own file, at its own place, after exactly the frames that were
//! written before it: stale blocks, misplaced writes and frames behind a hole never validate. And the last checksum stands for
//! the whole file up to there: whoever notes (length, checksum) can tell later whether anything is missing or changed.
//!
//! Whether the end of the valid frames is a torn tail or damage cannot be seen here; the log's watermark and the superblock's
//! length decide that.

use std::path::Path;
use std::sync::Arc;

use crc_fast::{CrcAlgorithm, Digest};

use crate::error::{Error, Result};
use crate::io::{IoCtx, ReadableFile};
use crate::num::{to_u32, to_u64, to_usize};

/// Bytes in front of a body.
pub(crate) const FRAME_HEADER: usize = 8;
/// The longest body: what 31 bits count, so that sums of a few lengths never wrap.
pub(crate) const MAX_BODY: usize = (1 << 31) - 1;
/// How much is read at a time.
const CHUNK: u64 = 256 << 10;

/// CRC-32C of everything that gave `previous`, followed by `data`. The CRC of nothing is 0.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "a CRC-32 has 32 bits")]
pub(crate) fn crc32c(previous: u32, data: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!previous));
    digest.update(data);
    digest.finalize() as u32
}

/// Fills in the header of `frame`, whose body is in place, and returns the new end of the chain.
///
/// # Panics
/// If there is no body or it is longer than [`MAX_BODY`].
#[inline]
pub(crate) fn seal(frame: &mut [u8], chain: u32) -> u32 {
    let body = frame.len() - FRAME_HEADER;
    assert!(body > 0 && body <= MAX_BODY, "a frame of {body} bytes");
    frame[4..8].copy_from_slice(&to_u32(body).to_le_bytes());
    let crc = crc32c(chain, &frame[4..]);
    frame[..4].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// What a reader found.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Frame<'a> {
    /// The body of a valid frame.
    Body(&'a [u8]),
    /// Nothing more: the limit is reached, or the next length is 0.
    End,
    /// Bytes that are no valid frame, and why not.
    Torn(&'static str),
}

/// Reads the frames of a file in order. After anything but a body it stays where it is.
pub(crate) struct FrameReader<'a> {
    file: Arc<dyn ReadableFile>,
    path: &'a Path,
    ctx: IoCtx,
    buffer: Vec<u8>,
    /// Where `buffer` begins in the file.
    buffer_at: u64,
    offset: u64,
    limit: u64,
    chain: u32,
}

impl<'a> FrameReader<'a> {
    /// A reader of the frames in `from..limit`; `limit` is not beyond the end of the file. `seed` is where the chain begins.
    pub(crate) fn new(
        file: Arc<dyn ReadableFile>,
        path: &'a Path,
        from: u64,
        limit: u64,
        seed: u32,
        ctx: IoCtx,
    ) -> Self {
        FrameReader { file, path, ctx, buffer: Vec::new(), buffer_at: from, offset: from, limit, chain: seed }
    }

    /// Where the next frame begins: the end of what is valid so far.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The checksum of the last frame, or the seed.
    pub(crate) fn chain(&self) -> u32 {
        self.chain
    }

    /// The next frame.
    ///
    /// # Errors
    /// `Io` if the file cannot be read or the memory for a long frame not be had. Never taken for an end.
    pub(crate) fn next(&mut self) -> Result<Frame<'_>> {
        let left = self.limit - self.offset;
        if left <= to_u64(FRAME_HEADER) {
            return if left == 0 { Ok(Frame::End) } else { self.rest(left) };
        }
        let header = self.bytes(to_u64(FRAME_HEADER))?;
        let crc = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        let frame = to_u64(FRAME_HEADER) + u64::from(length);
        if length == 0 {
            return Ok(if crc == 0 { Frame::End } else { Frame::Torn("a checksum without a record") });
        }
        if frame > left {
            return Ok(Frame::Torn("a record reaches beyond the end"));
        }
        let chain = self.chain;
        let found = crc32c(chain, &self.bytes(frame)?[4..]);
        if found != crc {
            return Ok(Frame::Torn("a record has the wrong checksum"));
        }
        let at = to_usize(self.offset - self.buffer_at);
        self.offset += frame;
        self.chain = crc;
        Ok(Frame::Body(&self.buffer[at + FRAME_HEADER..at + to_usize(frame)]))
    }

    /// Too few bytes for a frame: fine if they are zeros.
    fn rest(&mut self, left: u64) -> Result<Frame<'_>> {
        let zeros = self.bytes(left)?.iter().all(|&byte| byte == 0);
        Ok(if zeros { Frame::End } else { Frame::Torn("the beginning of a record at the end") })
    }

    /// The next `n` bytes, which are within the limit; so never more memory than the file is long.
    fn bytes(&mut self, n: u64) -> Result<&[u8]> {
        let have = self.buffer_at + to_u64(self.buffer.len()) - self.offset;
        if have < n {
            let take = n.max(CHUNK.min(self.limit - self.offset));
            self.buffer.drain(..to_usize(self.offset - self.buffer_at));
            self.buffer_at = self.offset;
            let old = self.buffer.len();
            let missing = to_usize(take) - old;
            self.buffer.try_reserve(missing).map_err(|_| {
                let source = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
                Error::io(self.path, "reading a record", source).at_offset(self.offset)
            })?;
            self.buffer.resize(old + missing, 0);
            self.file
                .read_exact_at(&mut self.buffer[old..], self.offset + to_u64(old), self.ctx)
                .map_err(|source| Error::io(self.path, "reading records", source).at_offset(self.offset))?;
        }
        let at = to_usize(self.offset - self.buffer_at);
        Ok(&self.buffer[at..at + to_usize(n)])
    }
}
