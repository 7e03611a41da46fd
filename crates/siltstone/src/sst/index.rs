//! The index: which block may hold a key.
//!
//! Between two neighbouring blocks stands a *separator*: a user key, as short as possible, that is not below the last key of
//! the first block and below the first key of the second. When versions of one key are spread over both blocks there is no
//! such key; then the separator is *exact*: the last key of the first block and its trailer.
//!
//! On disk separators lie in partitions of about 16 KiB, each with its own checksum, and a top index lists the partitions. They
//! are not prefix-compressed: what they take in memory is bounded by what they take in the file. In memory they are one flat structure, [`Fences`]:
//!
//! - the 8 bytes of each separator that follow what all separators of the table begin with (decimal keys share many bytes),
//!   as integers in a tree of cache lines, eight a line: the lowest level holds all of them, each upper one the largest of
//!   every line below;
//! - the separators themselves, for keys that tie.
//!
//! ```text
//! [largest of line 0, of line 1, ..]            <- root: one line
//! [line 0: 8 prefixes][line 1: 8 prefixes] ..   <- lowest level
//! ```

use std::cmp::Ordering;

use crate::cache::shelf::{Kept, Shelf};
use crate::codec::{put_varint, varint64};
use crate::key::{MAX_KEY_BYTES, Trailer, compare};
use crate::num::{to_u32, to_u64, to_usize};
use crate::sst::codec::{BlockHandle, MAX_BLOCK_BYTES, common_prefix, seal_frame, u64_at};
use crate::sst::compress::TAG_NONE;
use crate::sst::simd::{Line, descend, prefetch_address};

/// A partition is closed when it reaches this size.
const PARTITION_BYTES: usize = 16 << 10;
/// Separators of a table take at most this much memory; a writer that would exceed it fails.
const MAX_SEPARATOR_BYTES: usize = 1 << 31;
/// In the list of separators' ends: the separator is exact, its last 8 bytes are a trailer.
const EXACT: u32 = 1 << 31;

/// The shortest key that separates `last` from `next`, which must be greater: appended to `out`, which is cleared.
pub(crate) fn separator(last: &[u8], next: &[u8], out: &mut Vec<u8>) {
    out.clear();
    let same = common_prefix(last, next);
    if same == last.len() {
        out.extend_from_slice(last);
    } else if let (Some(&a), Some(&b)) = (last.get(same), next.get(same))
        && a + 1 < b
    {
        out.extend_from_slice(&last[..same]);
        out.push(a + 1);
    } else if next.len() > same + 1 {
        // A proper prefix of `next` that is above `last`.
        out.extend_from_slice(&next[..=same]);
    } else {
        out.extend_from_slice(last);
    }
}

/// Collects the index of a file that is being written.
#[derive(Default)]
pub(crate) struct IndexBuilder {
    /// Closed partitions, with trailers, and the open one.
    out: Vec<u8>,
    /// Where the open partition begins in `out`.
    open_at: usize,
    in_open: u64,
    /// End of the block before, trailer included: offsets are stored as distances.
    last_end: u64,
    last_separator: Vec<u8>,
    /// Length, entries and last separator of each closed partition.
    top: Vec<u8>,
    partitions: u64,
    blocks: u64,
    separator_bytes: usize,
}

impl IndexBuilder {
    /// Adds a block. `exact` is the trailer of the block's last entry if the separator is exact. False if the index is full.
    pub(crate) fn add(&mut self, separator: &[u8], exact: Option<Trailer>, handle: BlockHandle) -> bool {
        self.separator_bytes += separator.len() + 8;
        if self.separator_bytes >= MAX_SEPARATOR_BYTES {
            return false;
        }
        if self.in_open == 0 {
            self.open_at = self.out.len();
            put_varint(&mut self.out, handle.offset);
        } else {
            put_varint(&mut self.out, handle.offset - self.last_end);
        }
        put_varint(&mut self.out, handle.len);
        put_varint(&mut self.out, to_u64(separator.len()) << 1 | u64::from(exact.is_some()));
        self.out.extend_from_slice(separator);
        if let Some(trailer) = exact {
            self.out.extend_from_slice(&trailer.0.to_le_bytes());
        }
        self.last_end = handle.end().expect("the writer counts its own bytes");
        self.last_separator.clear();
        self.last_separator.extend_from_slice(separator);
        self.in_open += 1;
        self.blocks += 1;
        if self.out.len() - self.open_at >= PARTITION_BYTES {
            self.close();
        }
        true
    }

    fn close(&mut self) {
        if self.in_open == 0 {
            return;
        }
        put_varint(&mut self.top, to_u64(self.out.len() - self.open_at));
        put_varint(&mut self.top, self.in_open);
        put_varint(&mut self.top, to_u64(self.last_separator.len()));
        self.top.extend_from_slice(&self.last_separator);
        seal_frame(&mut self.out, self.open_at, TAG_NONE);
        self.in_open = 0;
        self.partitions += 1;
    }

    /// Bytes that the index takes so far.
    pub(crate) fn bytes(&self) -> usize {
        self.out.len() + self.top.len()
    }

    /// The partitions with their trailers, to be written at `offset`; and the top index, without a trailer.
    pub(crate) fn finish(mut self, offset: u64) -> (Vec<u8>, Vec<u8>) {
        self.close();
        let mut top = Vec::with_capacity(self.top.len() + 24);
        put_varint(&mut top, self.partitions);
        put_varint(&mut top, self.blocks);
        put_varint(&mut top, offset);
        top.extend_from_slice(&self.top);
        (self.out, top)
    }
}

/// A partition as the top index describes it.
pub(crate) struct Partition {
    pub(crate) handle: BlockHandle,
    pub(crate) blocks: u64,
}

/// Reads a top index: the partitions and how many blocks they list together. None if it is damaged.
pub(crate) fn parse_top(top: &[u8]) -> Option<(Vec<Partition>, u64)> {
    let at = &mut 0;
    let count = varint64(top, at)?;
    let blocks = varint64(top, at)?;
    let mut offset = varint64(top, at)?;
    // Each partition takes at least three bytes here.
    if count > to_u64(top.len()) / 3 {
        return None;
    }
    let mut partitions = Vec::with_capacity(to_usize(count));
    let mut sum = 0u64;
    for _ in 0..count {
        let handle = BlockHandle { offset, len: varint64(top, at)? };
        let blocks = varint64(top, at)?;
        let separator_len = to_usize(varint64(top, at)?);
        *at = at.checked_add(separator_len).filter(|&end| end <= top.len())?;
        offset = handle.end()?;
        sum = sum.checked_add(blocks)?;
        partitions.push(Partition { handle, blocks });
    }
    (*at == top.len() && sum == blocks).then_some((partitions, blocks))
}

/// The index in memory.
#[derive(Debug)]
pub(crate) struct Fences {
    /// What all separators begin with.
    prefix: Vec<u8>,
    lines: Kept<Line>,
    /// Where each level begins in `lines`, the root first.
    levels: Vec<u32>,
    largest_head: u64,
    /// Where each separator ends in `separators`, with the flag [`EXACT`].
    ends: Kept<u32>,
    separators: Kept<u8>,
    offsets: Kept<u64>,
    lens: Kept<u32>,
}

/// Reads partitions into [`Fences`].
#[derive(Default)]
pub(crate) struct FencesBuilder {
    ends: Vec<u32>,
    separators: Vec<u8>,
    offsets: Vec<u64>,
    lens: Vec<u32>,
    end: u64,
}

impl FencesBuilder {
    /// Adds the blocks that a partition (without trailer) lists; they must lie in order and before `data_end`. None if it is
    /// damaged.
    pub(crate) fn add(&mut self, partition: &[u8], blocks: u64, data_end: u64) -> Option<()> {
        let at = &mut 0;
        for i in 0..blocks {
            let distance = varint64(partition, at)?;
            // The first offset of a partition is absolute, so that each can be read by itself.
            let offset = if i == 0 { distance } else { self.end.checked_add(distance)? };
            let len = varint64(partition, at)?;
            let handle = BlockHandle { offset, len };
            let in_order = offset >= self.end && len <= MAX_BLOCK_BYTES && handle.end()? <= data_end;
            let flagged = varint64(partition, at)?;
            let separator_len = to_usize(flagged >> 1);
            if !in_order || separator_len > MAX_KEY_BYTES {
                return None;
            }
            let separator = partition.get(*at..*at + separator_len)?;
            *at += separator_len;
            self.separators.extend_from_slice(separator);
            let mut end = self.separators.len();
            let mut flag = 0;
            if flagged & 1 != 0 {
                let raw = u64_at(partition, *at)?;
                Trailer::checked(raw)?;
                *at += 8;
                self.separators.extend_from_slice(&raw.to_le_bytes());
                end += 8;
                flag = EXACT;
            }
            if end >= MAX_SEPARATOR_BYTES {
                return None;
            }
            self.ends.push(to_u32(end) | flag);
            self.offsets.push(offset);
            self.lens.push(to_u32(to_usize(len)));
            self.end = handle.end()?;
        }
        (*at == partition.len()).then_some(())
    }

    /// Blocks so far.
    pub(crate) fn blocks(&self) -> usize {
        self.ends.len()
    }

    /// The fences over all blocks added, on the shelf if there is one. None if there are none, or separators are out of order.
    pub(crate) fn finish(self, shelf: Option<&Shelf>) -> Option<Fences> {
        let mut fences = Fences {
            prefix: Vec::new(),
            lines: Kept::new(Vec::new(), None),
            levels: Vec::new(),
            largest_head: 0,
            ends: Kept::new(self.ends, shelf),
            separators: Kept::new(self.separators, shelf),
            offsets: Kept::new(self.offsets, shelf),
            lens: Kept::new(self.lens, shelf),
        };
        let blocks = fences.blocks();
        for i in 1..blocks {
            let ((a, at), (b, bt)) = (fences.separator(i - 1), fences.separator(i));
            if compare(a, at, b, bt) != Ordering::Less {
                return None;
            }
        }
        let last = fences.separator(blocks.checked_sub(1)?).0;
        let first = fences.separator(0).0;
        fences.prefix = first[..common_prefix(first, last)].to_vec();
        let skip = fences.prefix.len();
        let heads: Vec<u64> = (0..blocks).map(|i| head(&fences.separator(i).0[skip..])).collect();
        fences.largest_head = *heads.last()?;
        let (lines, levels) = build_tree(&heads);
        (fences.lines, fences.levels) = (Kept::new(lines, shelf), levels);
        Some(fences)
    }
}

/// The first 8 bytes as an integer, zeros where there are fewer: orders as the bytes do, up to ties.
#[inline(always)]
fn head(suffix: &[u8]) -> u64 {
    if let Some(first) = suffix.first_chunk::<8>() {
        return u64::from_be_bytes(*first);
    }
    let mut padded = [0u8; 8];
    padded[..suffix.len()].copy_from_slice(suffix);
    u64::from_be_bytes(padded)
}

/// The tree over ascending `heads` (not empty): lines, and where each level begins, the root first.
pub(crate) fn build_tree(heads: &[u64]) -> (Vec<Line>, Vec<u32>) {
    let mut levels: Vec<Vec<Line>> = Vec::new();
    let mut below: Vec<u64> = heads.to_vec();
    loop {
        let lines: Vec<Line> = below
            .chunks(8)
            .map(|chunk| Line(std::array::from_fn(|i| chunk.get(i).copied().unwrap_or(u64::MAX))))
            .collect();
        // The largest real head of each line, so that nothing is ever found in the padding.
        below = below.chunks(8).map(|chunk| chunk[chunk.len() - 1]).collect();
        let done = lines.len() <= 1;
        levels.push(lines);
        if done {
            break;
        }
    }
    let mut starts = Vec::with_capacity(levels.len());
    let mut all = Vec::with_capacity(levels.iter().map(Vec::len).sum());
    for level in levels.iter().rev() {
        starts.push(to_u32(all.len()));
        all.extend_from_slice(level);
    }
    (all, starts)
}

impl Fences {
    /// Blocks of the table; at least 1.
    #[inline]
    pub(crate) fn blocks(&self) -> usize {
        self.ends.len()
    }

    /// Where a block lies.
    #[inline]
    pub(crate) fn handle(&self, block: usize) -> BlockHandle {
        BlockHandle { offset: self.offsets[block], len: u64::from(self.lens[block]) }
    }

    /// Starts fetching what [`handle`](Self::handle) reads.
    #[inline]
    pub(crate) fn prefetch_handle(&self, block: usize) {
        if let (Some(offset), Some(len)) = (self.offsets.get(block), self.lens.get(block)) {
            prefetch_address(offset);
            prefetch_address(len);
        }
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        to_u64(self.lines.len() * 64 + self.ends.len() * 16 + self.separators.len())
    }

    /// The separator after a block: everything in the block is at or before it, everything in later blocks after it.
    #[inline]
    pub(crate) fn separator(&self, block: usize) -> (&[u8], Trailer) {
        let start = block.checked_sub(1).map_or(0, |before| (self.ends[before] & !EXACT) as usize);
        let end = (self.ends[block] & !EXACT) as usize;
        let bytes = &self.separators[start..end];
        if self.ends[block] & EXACT != 0
            && let Some((key, trailer)) = bytes.split_last_chunk::<8>()
        {
            return (key, Trailer(u64::from_le_bytes(*trailer)));
        }
        // After every version of the key.
        (bytes, Trailer(0))
    }

    /// Whether `(key, trailer)` is after the separator of `block`.
    #[inline]
    fn is_after(&self, key: &[u8], trailer: Trailer, block: usize) -> bool {
        let (separator, bound) = self.separator(block);
        compare(key, trailer, separator, bound) == Ordering::Greater
    }

    /// The first block whose separator is not before `(key, trailer)`: the only one that can hold it, and where a seek to it
    /// begins. The number of blocks if there is none.
    #[inline]
    pub(crate) fn locate(&self, key: &[u8], trailer: Trailer) -> usize {
        let suffix = match key.split_at_checked(self.prefix.len()) {
            Some((start, suffix)) if start == self.prefix => suffix,
            _ if key > &self.prefix[..] => return self.blocks(),
            _ => return 0,
        };
        let wanted = head(suffix);
        if wanted > self.largest_head {
            return self.blocks();
        }
        let mut low = descend(&self.lines, &self.levels, wanted);
        // Separators with the same head: usually none or one.
        while low < self.blocks() && self.head(low) == wanted {
            if !self.is_after(key, trailer, low) {
                return low;
            }
            low += 1;
            if low < self.blocks() && self.head(low) == wanted {
                return self.locate_among_ties(key, trailer, low, wanted);
            }
        }
        low
    }

    #[inline]
    fn head(&self, block: usize) -> u64 {
        let start = self.levels.last().map_or(0, |&start| start as usize);
        self.lines[start + block / 8].0[block % 8]
    }

    #[cold]
    fn locate_among_ties(&self, key: &[u8], trailer: Trailer, from: usize, wanted: u64) -> usize {
        let mut low = from;
        let mut high = match wanted.checked_add(1) {
            Some(next) if next <= self.largest_head => descend(&self.lines, &self.levels, next),
            _ => self.blocks(),
        };
        while low < high {
            let middle = low + (high - low) / 2;
            if self.is_after(key, trailer, middle) { low = middle + 1 } else { high = middle }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::Rng;
    use crate::key::{Kind, SeqNo};

    fn any_key(rng: &mut Rng) -> Vec<u8> {
        let len = usize::try_from(rng.below(14)).unwrap();
        let alphabet = [0, 1, b'a', b'b', 0xfe, 0xff];
        let mut key = if rng.one_in(2) { b"shared-by-all".to_vec() } else { Vec::new() };
        key.extend((0..len).map(|_| alphabet[usize::try_from(rng.below(6)).unwrap()]));
        key
    }

    #[test]
    fn separators_separate() {
        let mut rng = Rng::new(3);
        let mut out = Vec::new();
        for _ in 0..20_000 {
            let (a, b) = (any_key(&mut rng), any_key(&mut rng));
            let (last, next) = if a < b { (a, b) } else { (b, a) };
            if last == next {
                continue;
            }
            separator(&last, &next, &mut out);
            assert!(out >= last && out < next, "{last:?} {out:?} {next:?}");
            assert!(out.len() <= last.len().max(next.len()));
        }
    }

    #[test]
    fn fences_locate_as_a_linear_search_does_and_damage_never_panics() {
        let mut rng = Rng::new(4);
        for round in 0..200 {
            let mut fences: Vec<(Vec<u8>, Option<Trailer>)> = Vec::new();
            for _ in 0..rng.between(1, 120) {
                let key =
                    if round % 3 == 0 { vec![b'k'; usize::try_from(rng.below(3)).unwrap()] } else { any_key(&mut rng) };
                let exact = rng.one_in(2).then(|| Trailer::new(SeqNo(rng.between(1, 50)), Kind::Put));
                fences.push((key, exact));
            }
            let order = |f: &(Vec<u8>, Option<Trailer>)| (f.0.clone(), std::cmp::Reverse(f.1.unwrap_or(Trailer(0))));
            fences.sort_by_key(order);
            fences.dedup_by_key(|f| order(f));
            let mut builder = IndexBuilder::default();
            let mut offset = 0;
            for (key, exact) in &fences {
                offset += rng.below(300);
                let handle = BlockHandle { offset, len: rng.between(1, 5000) };
                assert!(builder.add(key, *exact, handle));
                if rng.one_in(7) {
                    builder.close();
                }
                offset = handle.end().unwrap();
            }
            let (bytes, top) = builder.finish(offset);
            let (partitions, blocks) = parse_top(&top).unwrap();
            assert_eq!(blocks, fences.len() as u64);
            let mut read = FencesBuilder::default();
            for p in &partitions {
                let at = usize::try_from(p.handle.offset - offset).unwrap();
                let body = &bytes[at..at + usize::try_from(p.handle.len).unwrap()];
                read.add(body, p.blocks, offset).unwrap();
                // Damage is noticed or harmless, never a panic.
                let mut bad = body.to_vec();
                let bit = usize::try_from(rng.below(bad.len() as u64 * 8)).unwrap();
                bad[bit / 8] ^= 1 << (bit % 8);
                let mut other = FencesBuilder::default();
                if other.add(&bad, p.blocks, offset).is_some() {
                    let _ = other.finish(None);
                }
            }
            let read = read.finish(None).expect("what was just built");
            for (i, (key, exact)) in fences.iter().enumerate() {
                assert_eq!(read.separator(i), (&key[..], exact.unwrap_or(Trailer(0))));
            }
            for _ in 0..200 {
                let key = if rng.one_in(2) {
                    any_key(&mut rng)
                } else {
                    fences[usize::try_from(rng.below(blocks)).unwrap()].0.clone()
                };
                let trailer = Trailer::seek(SeqNo(rng.below(55)));
                let expected = fences
                    .iter()
                    .position(|(k, t)| compare(&key, trailer, k, t.unwrap_or(Trailer(0))) != Ordering::Greater)
                    .unwrap_or(fences.len());
                assert_eq!(read.locate(&key, trailer), expected, "{key:?} {trailer:?}");
            }
        }
    }
}
