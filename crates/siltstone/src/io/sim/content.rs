//! The bytes of a simulated file: chunks shared copy-on-write, so that a crash image of a whole disk costs a pointer per chunk.

use std::sync::{Arc, OnceLock};

use crate::num::{to_u64, to_usize};

const CHUNK_BYTES: u64 = 32 << 10;

/// Up to [`CHUNK_BYTES`] bytes; what is missing at the end is zeros.
#[derive(Clone, Default)]
struct Chunk {
    bytes: Vec<u8>,
    hash: OnceLock<u64>,
}

/// A file's bytes. Holes are free: a log segment of many megabytes takes what was written to it.
#[derive(Clone, Default)]
pub(super) struct Content {
    chunks: Vec<Arc<Chunk>>,
    len: u64,
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Cuts the content, or grows it by zeros.
    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.chunks.truncate(to_usize(len.div_ceil(CHUNK_BYTES)));
            let (index, within) = split(len);
            if within > 0
                && let Some(chunk) = self.chunks.get_mut(index)
                && chunk.bytes.len() > within
            {
                let chunk = Arc::make_mut(chunk);
                chunk.bytes.truncate(within);
                chunk.hash.take();
            }
        }
        self.len = len;
    }

    /// Writes `data` at `offset`, growing the content as needed.
    pub(super) fn write(&mut self, offset: u64, mut data: &[u8]) {
        self.len = self.len.max(offset + to_u64(data.len()));
        let (mut index, mut within) = split(offset);
        while !data.is_empty() {
            if self.chunks.len() <= index {
                self.chunks.resize_with(index + 1, Arc::default);
            }
            let piece = data.len().min(to_usize(CHUNK_BYTES) - within);
            let (now, rest) = data.split_at(piece);
            let chunk = Arc::make_mut(&mut self.chunks[index]);
            chunk.hash.take();
            if chunk.bytes.len() < within {
                chunk.bytes.resize(within, 0);
            }
            let old = (chunk.bytes.len() - within).min(piece);
            chunk.bytes[within..within + old].copy_from_slice(&now[..old]);
            chunk.bytes.extend_from_slice(&now[old..]);
            (data, index, within) = (rest, index + 1, 0);
        }
    }

    /// Fills `buf` from `offset`; beyond the end there are zeros.
    pub(super) fn read(&self, offset: u64, mut buf: &mut [u8]) {
        let (mut index, mut within) = split(offset);
        while !buf.is_empty() {
            let piece = buf.len().min(to_usize(CHUNK_BYTES) - within);
            let (now, rest) = buf.split_at_mut(piece);
            let bytes = self.chunks.get(index).and_then(|chunk| chunk.bytes.get(within..)).unwrap_or(&[]);
            let there = bytes.len().min(piece);
            now[..there].copy_from_slice(&bytes[..there]);
            now[there..].fill(0);
            (buf, index, within) = (rest, index + 1, 0);
        }
    }

    /// `len` bytes from `offset`.
    pub(super) fn bytes(&self, offset: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; to_usize(len)];
        self.read(offset, &mut bytes);
        bytes
    }

    /// Makes the bytes `start..end`, and no others, equal to those of `other`, without changing the length: what lies beyond
    /// the end is left out.
    pub(super) fn copy_within_len(&mut self, other: &Content, start: u64, end: u64) {
        let end = end.min(self.len);
        if start < end {
            self.write(start, &other.bytes(start, end - start));
        }
    }

    /// Becomes equal to `other`, from which it differs in `start..end` and in length only: shares the chunks.
    pub(super) fn share(&mut self, other: &Content, start: u64, end: u64) {
        self.set_len(other.len);
        self.chunks.truncate(other.chunks.len());
        let first = split(start).0.min(self.chunks.len());
        let last = to_usize(end.div_ceil(CHUNK_BYTES)).min(other.chunks.len());
        if self.chunks.len() < last {
            self.chunks.resize_with(last, Arc::default);
        }
        if first < last {
            self.chunks[first..last].clone_from_slice(&other.chunks[first..last]);
        }
    }

    pub(super) fn flip_bit(&mut self, bit: u64) {
        let mut byte = [0];
        self.read(bit / 8, &mut byte);
        byte[0] ^= 1 << (bit % 8);
        self.write(bit / 8, &byte);
    }

    /// A hash of all bytes. Equal contents that were written differently may differ in it (a hole is not the zeros in it).
    pub(super) fn hash(&self) -> u64 {
        let mut hash = mix(self.len, to_u64(self.chunks.len()));
        for chunk in &self.chunks {
            hash = mix(hash, *chunk.hash.get_or_init(|| crate::key::hash(&chunk.bytes)));
        }
        hash
    }
}

/// The chunk that holds `offset`, and where in it.
fn split(offset: u64) -> (usize, usize) {
    (to_usize(offset / CHUNK_BYTES), to_usize(offset % CHUNK_BYTES))
}

/// Folds `value` into a running hash.
#[inline]
pub(super) fn mix(hash: u64, value: u64) -> u64 {
    let product = u128::from(hash ^ 0x9e37_79b9_7f4a_7c15) * u128::from(value ^ 0xd1b5_4a32_d192_ed03 | 1 << 63);
    let folded = (product >> 64) ^ (product & u128::from(u64::MAX));
    u64::try_from(folded & u128::from(u64::MAX)).unwrap_or(0) ^ hash.rotate_left(23) ^ value
}

#[cfg(test)]
mod tests {
    use super::super::super::Rng;
    use super::*;

    #[test]
    fn behaves_as_a_vector_of_bytes() {
        let mut rng = Rng::new(1);
        let (mut content, mut model) = (Content::default(), Vec::new());
        let mut shared = Content::default();
        let mut dirty = (u64::MAX, 0);
        for round in 0..2000u32 {
            match rng.below(10) {
                0 => {
                    let len = rng.below(200_000);
                    content.set_len(len);
                    // Whatever is cut off and grown again is dirty; `share` is told so.
                    dirty = (0, u64::MAX >> 1);
                    model.resize(to_usize(len), 0);
                }
                1 => {
                    if dirty.0 <= dirty.1 {
                        shared.share(&content, dirty.0, dirty.1);
                    }
                    dirty = (u64::MAX, 0);
                    assert!(shared.bytes(0, shared.len()) == model, "round {round}");
                    assert_eq!(shared.hash(), content.hash());
                }
                _ => {
                    let offset = rng.below(150_000);
                    let data = vec![u8::try_from(rng.below(256)).unwrap(); to_usize(rng.below(50_000))];
                    let end = offset + to_u64(data.len());
                    content.write(offset, &data);
                    dirty = (dirty.0.min(offset), dirty.1.max(end));
                    model.resize(model.len().max(to_usize(end)), 0);
                    model[to_usize(offset)..to_usize(end)].copy_from_slice(&data);
                }
            }
            assert_eq!(content.len(), to_u64(model.len()));
        }
        assert!(content.bytes(0, content.len()) == model);
    }
}
