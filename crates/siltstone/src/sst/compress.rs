//! Compression of blocks: one place for every codec. A compressed payload is its uncompressed size (u32, little-endian) and
//! the codec's bytes of the [packed](super::block::packed) block.

#[cfg(feature = "zstd")]
use std::cell::RefCell;

use crate::num::{to_u32, to_u64};
use crate::options::Compression;
use crate::sst::block::{packed, unpack};
use crate::sst::codec::{MAX_BLOCK_BYTES, u32_at};

/// The tag of a block that is stored as it is.
pub(crate) const TAG_NONE: u8 = 0;
/// The tag of LZ4 (block format).
pub(crate) const TAG_LZ4: u8 = 1;
/// The tag of Zstandard.
pub(crate) const TAG_ZSTD: u8 = 2;

/// The flag beside a codec: the block was packed before it was compressed. Files of before version 3 have blocks that were not.
pub(crate) const PACKED: u8 = 0x80;

/// Up to this size a block may claim any compression ratio; beyond it, at most [`MAX_RATIO`]. So a small hostile file cannot
/// ask for much memory, and the writer keeps to the same rule (a larger block that compresses better is stored as it is).
const FREE_BYTES: u64 = 16 << 20;
const MAX_RATIO: u64 = 4;

/// Compresses the blocks of one file.
pub(crate) enum Compressor {
    /// Stores blocks as they are.
    None,
    /// LZ4.
    Lz4(Box<lz4_flex::block::CompressTable>),
    /// Zstandard, with the context of the thread.
    #[cfg(feature = "zstd")]
    Zstd,
}

/// Why a payload could not be turned back into a block.
pub(crate) enum Refusal {
    /// The bytes are not what was written.
    Damaged(&'static str),
    /// This build or version lacks the codec.
    Unsupported(&'static str),
}

impl Compressor {
    /// A compressor for a new file. Without the feature `zstd`, that codec stores blocks as they are (options are refused
    /// long before).
    pub(crate) fn new(kind: Compression) -> Compressor {
        match kind {
            Compression::None => Compressor::None,
            Compression::Lz4 => Compressor::Lz4(Box::new(lz4_flex::block::CompressTable::small())),
            #[cfg(feature = "zstd")]
            Compression::Zstd => Compressor::Zstd,
            #[cfg(not(feature = "zstd"))]
            Compression::Zstd => Compressor::None,
        }
    }

    /// Replaces the block at `start..` of `out` by its compressed payload if that saves at least a sixteenth; returns the tag.
    /// `scratch` is working memory.
    pub(crate) fn compress(&mut self, out: &mut Vec<u8>, start: usize, scratch: &mut Vec<u8>) -> u8 {
        let raw_len = out.len() - start;
        let (tag, room) = match self {
            Compressor::None => return TAG_NONE,
            Compressor::Lz4(_) => (TAG_LZ4, lz4_flex::block::get_maximum_output_size(raw_len)),
            #[cfg(feature = "zstd")]
            Compressor::Zstd => (TAG_ZSTD, zstd::zstd_safe::compress_bound(raw_len)),
        };
        let Some((front, back)) = packed(&out[start..]) else { return TAG_NONE };
        scratch.resize(raw_len + room, 0);
        let (block, compressed) = scratch.split_at_mut(raw_len);
        block[..front.len()].copy_from_slice(front);
        let block = &mut block[..front.len() + back.len()];
        block[front.len()..].copy_from_slice(back);
        let len = match self {
            Compressor::None => None,
            Compressor::Lz4(table) => lz4_flex::block::compress_into_with_table(block, compressed, table).ok(),
            #[cfg(feature = "zstd")]
            Compressor::Zstd => zstd(block, compressed),
        };
        match len {
            Some(len) if len + 4 <= raw_len - raw_len / 16 && plausible(to_u64(raw_len), to_u64(len)) => {
                out.truncate(start);
                out.extend_from_slice(&to_u32(raw_len).to_le_bytes());
                out.extend_from_slice(&compressed[..len]);
                tag | PACKED
            }
            _ => TAG_NONE,
        }
    }
}

fn plausible(raw_len: u64, stored_len: u64) -> bool {
    raw_len <= FREE_BYTES || raw_len / MAX_RATIO <= stored_len
}

/// The size of the block behind a payload, checked against what the payload can plausibly hold.
pub(crate) fn raw_len(tag: u8, payload: &[u8]) -> Result<usize, Refusal> {
    if tag == TAG_NONE {
        return Ok(payload.len());
    }
    if !matches!(tag & !PACKED, TAG_LZ4 | TAG_ZSTD) {
        return Err(Refusal::Unsupported("a compression that this version does not know"));
    }
    let len = u32_at(payload, 0).ok_or(Refusal::Damaged("compressed block without a size"))?;
    if u64::from(len) > MAX_BLOCK_BYTES || !plausible(u64::from(len), to_u64(payload.len() - 4)) {
        return Err(Refusal::Damaged("compressed block claims an impossible size"));
    }
    Ok(len as usize)
}

/// Turns a payload back into the block; `out` is as long as [`raw_len`] said.
pub(crate) fn decompress(tag: u8, payload: &[u8], out: &mut [u8]) -> Result<(), Refusal> {
    let body = payload.get(4..).unwrap_or_default();
    if tag == TAG_NONE {
        out.copy_from_slice(payload);
        return Ok(());
    }
    let len = match tag & !PACKED {
        TAG_LZ4 => lz4_flex::block::decompress_into(body, out).ok(),
        #[cfg(feature = "zstd")]
        TAG_ZSTD => unzstd(body, out),
        _ => {
            return Err(Refusal::Unsupported("a compression that this build does not have (feature \"zstd\")"));
        }
    };
    let is_whole = |len| if tag & PACKED == 0 { len == out.len() } else { unpack(out, len).is_some() };
    if len.is_some_and(is_whole) {
        Ok(())
    } else {
        Err(Refusal::Damaged("compressed block does not decompress to what it says"))
    }
}

// A context of Zstandard takes longer to make than to use on a block: each thread keeps its own (600 KiB to compress at this
// level, 150 KiB to decompress).

/// Level 1: the price of the higher ones is the merges'.
#[cfg(feature = "zstd")]
const ZSTD_LEVEL: i32 = 1;

#[cfg(feature = "zstd")]
fn zstd(raw: &[u8], out: &mut [u8]) -> Option<usize> {
    thread_local! {
        static CONTEXT: RefCell<Option<zstd::bulk::Compressor<'static>>> = const { RefCell::new(None) };
    }
    CONTEXT.with_borrow_mut(|context| {
        if context.is_none() {
            *context = zstd::bulk::Compressor::new(ZSTD_LEVEL).ok();
        }
        context.as_mut()?.compress_to_buffer(raw, out).ok()
    })
}

#[cfg(feature = "zstd")]
fn unzstd(body: &[u8], out: &mut [u8]) -> Option<usize> {
    thread_local! {
        static CONTEXT: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
    }
    CONTEXT.with_borrow_mut(|context| {
        if context.is_none() {
            *context = zstd::bulk::Decompressor::new().ok();
        }
        context.as_mut()?.decompress_to_buffer(body, out).ok()
    })
}
