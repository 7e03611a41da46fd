//! Data blocks.
//!
//! ```text
//! entry 0 | entry 1 | ... | common prefix | offsets | heads | trailer base u64 | prefix length u32 | count and flags u32
//! entry = varint key suffix length, varint value length, trailer less the base, key suffix, value
//! ```
//!
//! What all keys of a block begin with is stored once. The *head* of an entry is the two bytes that follow (zeros where the
//! key ends), as an integer: heads ascend, so counting those below the wanted one finds the entry, and only equal heads
//! need a full compare. Offsets and heads lie at the block's end, so a lookup touches the end and one entry: two cache
//! misses. Trailers take the bytes that the largest distance from the block's smallest needs: four of eight where records were written in
//! random order, none in a block of one entry.
//!
//! LZ4 finds nothing in offsets and heads, and both follow from the entries: compressed blocks are *packed*, they leave them out
//! ([`packed`], [`unpack`]).
//!
//! A [`Layout`] is what was parsed of a block's end: plain positions, so that cursors can keep it beside the bytes. Positions
//! were checked against the block's length; entries are checked as they are decoded. `None` always means damage.

use std::cmp::Ordering;

use crate::codec::{put_varint, varint_len, varint32};
use crate::key::{Trailer, compare};
use crate::num::{to_u8, to_u16, to_u32, to_u64};
use crate::sst::codec::{common_prefix, u32_at, u64_at};
use crate::sst::simd;

/// Prefix length and count.
const TAIL_BYTES: usize = 8;
/// A head.
const HEAD_BYTES: usize = 2;
/// The flag beside the count: offsets take four bytes.
const WIDE: u32 = 1 << 31;
/// Beside the count, too: how many bytes of each trailer are left out because the base has them. 0: trailers are whole, and there is no base.
const CUT_SHIFT: u32 = 27;
const CUT: u32 = 15 << CUT_SHIFT;
const WHOLE_BYTES: usize = 8;
/// A block that cuts trailers has their base.
const BASE_BYTES: usize = 8;
/// Up to so many entries with equal heads are fetched together.
const FETCH_TOGETHER: usize = 16;
/// Entries that end before this need two bytes of offset only.
const NARROW_LIMIT: usize = 1 << 16;

/// The parsed end of a block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Layout {
    /// Bits that an entry has of its trailer, and what is added to them.
    trailer_mask: u64,
    trailer_base: u64,
    /// Where entries end and the common prefix begins. Positions are short because cursors, which are moved when a range is opened, hold them.
    prefix_at: u32,
    offsets_at: u32,
    heads_at: u32,
    count: u32,
    /// Bytes that an entry has of its trailer.
    trailer_bytes: u8,
    wide: bool,
}

/// An entry's parts, as positions in its block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawEntry {
    pub(crate) trailer: Trailer,
    /// Where the key's suffix begins.
    pub(crate) suffix_at: usize,
    /// Where the value begins: the end of the key's suffix.
    pub(crate) value_at: usize,
    /// Where the value ends.
    pub(crate) end: usize,
}

impl RawEntry {
    /// The key without the block's common prefix.
    #[inline(always)]
    pub(crate) fn suffix(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.suffix_at..self.value_at]
    }

    /// The value.
    #[inline(always)]
    pub(crate) fn value(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.value_at..self.end]
    }
}

/// The two bytes that order keys within a block, as an integer.
#[inline(always)]
fn head(suffix: &[u8]) -> u16 {
    match suffix {
        [a, b, ..] => u16::from_be_bytes([*a, *b]),
        [a] => u16::from_be_bytes([*a, 0]),
        [] => 0,
    }
}

/// A mask of the lowest `bytes` bytes.
#[inline(always)]
fn low_bytes(bytes: usize) -> u64 {
    u64::MAX.checked_shr(to_u32(8 * (WHOLE_BYTES - bytes))).unwrap_or(0)
}

/// How many bytes the trailers of a block need that lie between these two.
#[inline(always)]
fn bytes_between(least: u64, greatest: u64) -> usize {
    WHOLE_BYTES - ((greatest - least).leading_zeros() / 8) as usize
}

/// The fields at the very end of a block.
struct Tail {
    /// Where they begin.
    at: usize,
    prefix_len: usize,
    count: usize,
    wide: bool,
    trailer_bytes: usize,
    trailer_base: u64,
}

impl Tail {
    #[inline(always)]
    fn parse(block: &[u8]) -> Option<Tail> {
        let fields = block.len().checked_sub(TAIL_BYTES)?;
        let prefix_len = u32_at(block, fields)? as usize;
        let flagged = u32_at(block, fields + 4)?;
        let cut = ((flagged & CUT) >> CUT_SHIFT) as usize;
        let (at, trailer_base) = match cut {
            0 => (fields, 0),
            _ => {
                let base_at = fields.checked_sub(BASE_BYTES)?;
                (base_at, u64_at(block, base_at)?)
            }
        };
        Some(Tail {
            at,
            prefix_len,
            count: (flagged & !(WIDE | CUT)) as usize,
            wide: flagged & WIDE != 0,
            trailer_bytes: WHOLE_BYTES.checked_sub(cut)?,
            trailer_base,
        })
    }

    /// Bytes of an entry's offset.
    #[inline(always)]
    fn offset_bytes(&self) -> usize {
        if self.wide { 4 } else { 2 }
    }
}

/// The block without offsets and heads: what is before them, and what is behind.
pub(crate) fn packed(block: &[u8]) -> Option<(&[u8], &[u8])> {
    let layout = Layout::parse(block)?;
    Some((&block[..layout.offsets_at as usize], &block[layout.heads_at as usize + HEAD_BYTES * layout.count()..]))
}

/// Makes the block of which the first `packed_len` bytes are the [`packed`] form; the rest is the room for what that leaves out.
pub(crate) fn unpack(block: &mut [u8], packed_len: usize) -> Option<()> {
    let tail = Tail::parse(block.get(..packed_len)?)?;
    let left_out = block.len() - packed_len;
    if tail.count * (tail.offset_bytes() + HEAD_BYTES) != left_out {
        return None;
    }
    block.copy_within(tail.at..packed_len, tail.at + left_out);
    let entries_end = tail.at.checked_sub(tail.prefix_len)?;
    let (entries, lookup) = block.split_at_mut(tail.at);
    let (offsets, heads) = lookup[..left_out].split_at_mut(tail.count * tail.offset_bytes());
    let mut at = 0;
    // Mostly all entries are as long as the first. Then where one begins does not wait for the lengths of the one before to be loaded.
    let (mut lengths, mut suffix_from, mut suffix_len, mut entry_bytes) = ([u8::MAX; 2], 0, 0, 0);
    for (i, place) in heads.chunks_exact_mut(HEAD_BYTES).enumerate() {
        if tail.wide {
            offsets[4 * i..4 * i + 4].copy_from_slice(&u32::try_from(at).ok()?.to_le_bytes());
        } else {
            offsets[2 * i..2 * i + 2].copy_from_slice(&u16::try_from(at).ok()?.to_le_bytes());
        }
        let here = *entries.get(at..)?.first_chunk::<2>()?;
        if here != lengths || (here[0] | here[1]) >= 0x80 {
            let mut behind = at;
            suffix_len = varint32(entries, &mut behind)? as usize;
            let value_len = varint32(entries, &mut behind)? as usize;
            suffix_from = behind - at + tail.trailer_bytes;
            entry_bytes = suffix_from + suffix_len + value_len;
            lengths = here;
        }
        let suffix = entries.get(at + suffix_from..at + suffix_from + suffix_len)?;
        place.copy_from_slice(&head(suffix).to_le_bytes());
        at += entry_bytes;
    }
    (at == entries_end).then_some(())
}

impl Layout {
    /// Parses the end of `block`.
    #[inline]
    pub(crate) fn parse(block: &[u8]) -> Option<Layout> {
        let tail = Tail::parse(block)?;
        let heads_at = tail.at.checked_sub(HEAD_BYTES * tail.count)?;
        let offsets_at = heads_at.checked_sub(tail.count * tail.offset_bytes())?;
        let prefix_at = offsets_at.checked_sub(tail.prefix_len)?;
        let layout = Layout {
            trailer_mask: low_bytes(tail.trailer_bytes),
            trailer_base: tail.trailer_base,
            prefix_at: to_u32(prefix_at),
            offsets_at: to_u32(offsets_at),
            heads_at: to_u32(heads_at),
            count: to_u32(tail.count),
            trailer_bytes: to_u8(tail.trailer_bytes),
            wide: tail.wide,
        };
        (tail.count > 0).then_some(layout)
    }

    /// Entries in the block; never 0.
    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        self.count as usize
    }

    /// What all keys begin with.
    #[inline(always)]
    pub(crate) fn prefix<'a>(&self, block: &'a [u8]) -> &'a [u8] {
        &block[self.prefix_at as usize..self.offsets_at as usize]
    }

    #[inline(always)]
    fn heads<'a>(&self, block: &'a [u8]) -> &'a [u8] {
        &block[self.heads_at as usize..self.heads_at as usize + HEAD_BYTES * self.count()]
    }

    #[inline(always)]
    fn head(&self, block: &[u8], i: usize) -> u16 {
        let at = self.heads_at as usize + HEAD_BYTES * i;
        u16::from_le_bytes([block[at], block[at + 1]])
    }

    /// Where entry `i` begins, not yet checked.
    #[inline(always)]
    pub(crate) fn offset(&self, block: &[u8], i: usize) -> Option<usize> {
        debug_assert!(i < self.count());
        if self.wide {
            Some(u32_at(block, self.offsets_at as usize + 4 * i)? as usize)
        } else {
            let at = self.offsets_at as usize + 2 * i;
            Some(usize::from(u16::from_le_bytes([*block.get(at)?, *block.get(at + 1)?])))
        }
    }

    /// Decodes entry `i < count`.
    #[inline(always)]
    pub(crate) fn entry(&self, block: &[u8], i: usize) -> Option<RawEntry> {
        self.decode(block, self.offset(block, i)?)
    }

    /// Decodes the entry that begins at `at`, where the one before it ends.
    #[inline(always)]
    pub(crate) fn decode(&self, block: &[u8], mut at: usize) -> Option<RawEntry> {
        let entries = block.get(..self.prefix_at as usize)?;
        let suffix_len = varint32(entries, &mut at)? as usize;
        let value_len = varint32(entries, &mut at)? as usize;
        // Eight bytes whatever there is: the block's end comes behind the entries.
        let trailer = u64_at(block, at)? & self.trailer_mask;
        let trailer = Trailer::checked(self.trailer_base.wrapping_add(trailer))?;
        let suffix_at = at + usize::from(self.trailer_bytes);
        let value_at = suffix_at + suffix_len;
        let end = value_at + value_len;
        (end <= self.prefix_at as usize).then_some(RawEntry { trailer, suffix_at, value_at, end })
    }

    /// Splits `key` at the common prefix: the suffix to search for, or, if the key does not begin with the prefix, on which
    /// side of all entries it lies.
    #[inline(always)]
    fn suffix_of<'k>(&self, block: &[u8], key: &'k [u8]) -> Result<&'k [u8], Ordering> {
        let prefix = self.prefix(block);
        match key.split_at_checked(prefix.len()) {
            Some((start, suffix)) if start == prefix => Ok(suffix),
            _ => Err(key.cmp(prefix)),
        }
    }

    /// The newest version of `key` that a read at the sequence number behind `bound` (a [`Trailer::seek`]) may see.
    #[inline]
    pub(crate) fn get(&self, block: &[u8], key: &[u8], bound: Trailer) -> Option<Option<RawEntry>> {
        let Ok(suffix) = self.suffix_of(block, key) else {
            return Some(None);
        };
        let wanted = head(suffix);
        let first = simd::count_below(self.heads(block), wanted);
        if first == self.count() || self.head(block, first) != wanted {
            return Some(None);
        }
        let at = self.offset(block, first)?;
        // The rest of the entry, while its beginning is waited for: of one of 116 bytes mostly two lines.
        simd::prefetch(block, at + 64);
        simd::prefetch(block, at + 128);
        if first + 1 == self.count() || self.head(block, first + 1) != wanted {
            // The usual case.
            let entry = self.decode(block, at)?;
            return Some((entry.suffix(block) == suffix && entry.trailer <= bound).then_some(entry));
        }
        let i = self.seek_suffix(block, suffix, bound, first)?;
        if i == self.count() {
            return Some(None);
        }
        let entry = self.entry(block, i)?;
        Some((entry.suffix(block) == suffix).then_some(entry))
    }

    /// The index of the first entry at or after `(key, trailer)` in internal order; `count` if there is none.
    pub(crate) fn seek(&self, block: &[u8], key: &[u8], trailer: Trailer) -> Option<usize> {
        let suffix = match self.suffix_of(block, key) {
            Ok(suffix) => suffix,
            Err(Ordering::Greater) => return Some(self.count()),
            Err(_) => return Some(0),
        };
        let wanted = head(suffix);
        let low = simd::count_below(self.heads(block), wanted);
        if low == self.count() || self.head(block, low) != wanted {
            return Some(low);
        }
        self.seek_suffix(block, suffix, trailer, low)
    }

    /// [`seek`](Self::seek) among the entries with the head of `suffix`, of which `low` is the first.
    #[inline]
    fn seek_suffix(&self, block: &[u8], suffix: &[u8], trailer: Trailer, mut low: usize) -> Option<usize> {
        let mut high = match head(suffix).checked_add(1) {
            Some(next) => simd::count_below(self.heads(block), next).max(low),
            None => self.count(),
        };
        // A search among a few touches most of them, one after another: fetched together they cost one wait.
        if high - low <= FETCH_TOGETHER {
            for i in low..high {
                simd::prefetch(block, self.offset(block, i)?);
            }
        }
        // Invariant: entries before `low` are before the wanted position, those from `high` on are not. A damaged block may
        // break the order, never the bounds.
        while low < high {
            let middle = low + (high - low) / 2;
            let entry = self.entry(block, middle)?;
            if compare(entry.suffix(block), entry.trailer, suffix, trailer) == Ordering::Less {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Some(low)
    }

    /// Whether the stored heads and offsets are those that the entries imply, entries fill their space and keys ascend: what
    /// [`verify`](super::Table::verify) asks of every block.
    pub(crate) fn check(&self, block: &[u8]) -> Result<(), &'static str> {
        let mut at = 0;
        let mut last: Option<RawEntry> = None;
        for i in 0..self.count() {
            if self.offset(block, i) != Some(at) {
                return Err("entry offsets that do not follow one another");
            }
            let entry = self.decode(block, at).ok_or("an entry that cannot be decoded")?;
            if self.head(block, i) != head(entry.suffix(block)) {
                return Err("a key head that is not its key's");
            }
            if entry.trailer.is_delete() && entry.end != entry.value_at {
                return Err("a tombstone with a value");
            }
            if let Some(last) = last
                && compare(last.suffix(block), last.trailer, entry.suffix(block), entry.trailer) != Ordering::Less
            {
                return Err("entries out of order");
            }
            at = entry.end;
            last = Some(entry);
        }
        if at == self.prefix_at as usize { Ok(()) } else { Err("bytes that belong to no entry") }
    }
}

/// Collects the entries of one block, then writes the block. Reused from block to block.
#[derive(Default)]
pub(crate) struct BlockBuilder {
    /// Keys and values, one after another.
    staged: Vec<u8>,
    entries: Vec<Staged>,
    /// What all keys so far begin with.
    prefix_len: usize,
    /// Lengths as varints, keys, values, heads and narrow offsets: what the block would take without trailers, a common prefix and wide
    /// offsets.
    plain_bytes: usize,
    /// The least and the greatest trailer so far.
    trailers: (u64, u64),
    heads: Vec<u8>,
    offsets: Vec<u32>,
}

struct Staged {
    key_at: usize,
    key_len: u32,
    value_len: u32,
    trailer: Trailer,
}

impl BlockBuilder {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The last key added, and its trailer.
    #[inline]
    pub(crate) fn last(&self) -> Option<(&[u8], Trailer)> {
        let last = self.entries.last()?;
        Some((&self.staged[last.key_at..last.key_at + last.key_len as usize], last.trailer))
    }

    /// An upper bound of the size of a block of `count` entries whose keys share `prefix_len` bytes and whose trailers lie between `trailers`.
    #[inline]
    fn bound(count: usize, prefix_len: usize, plain_bytes: usize, trailers: (u64, u64)) -> usize {
        let trailers = count * bytes_between(trailers.0, trailers.1) + BASE_BYTES;
        let bound = plain_bytes + trailers - count * prefix_len + prefix_len + TAIL_BYTES;
        if bound > NARROW_LIMIT { bound + 2 * count } else { bound }
    }

    #[inline]
    fn prefix_with(&self, key: &[u8]) -> usize {
        match self.entries.first() {
            // The first key cut to what is still common: a compare never goes further than that.
            Some(first) => common_prefix(&self.staged[first.key_at..first.key_at + self.prefix_len], key),
            None => key.len(),
        }
    }

    #[inline]
    fn plain_entry(key: &[u8], value: &[u8]) -> usize {
        varint_len(to_u64(key.len())) + varint_len(to_u64(value.len())) + key.len() + value.len() + 4
    }

    /// An upper bound of the block's size.
    pub(crate) fn bytes(&self) -> usize {
        Self::bound(self.entries.len(), self.prefix_len, self.plain_bytes, self.trailers)
    }

    /// Adds an entry, unless the block has some already and would then exceed `limit` bytes.
    #[inline]
    pub(crate) fn add(&mut self, key: &[u8], trailer: Trailer, value: &[u8], limit: usize) -> bool {
        let prefix_len = self.prefix_with(key);
        let plain_bytes = self.plain_bytes + Self::plain_entry(key, value);
        let mut trailers = (trailer.0, trailer.0);
        if !self.entries.is_empty() {
            trailers = (trailer.0.min(self.trailers.0), trailer.0.max(self.trailers.1));
            if Self::bound(self.entries.len() + 1, prefix_len, plain_bytes, trailers) > limit {
                return false;
            }
        }
        self.prefix_len = prefix_len;
        self.plain_bytes = plain_bytes;
        self.trailers = trailers;
        let key_at = self.staged.len();
        self.staged.extend_from_slice(key);
        self.staged.extend_from_slice(value);
        self.entries.push(Staged { key_at, key_len: to_u32(key.len()), value_len: to_u32(value.len()), trailer });
        true
    }

    /// Appends the block to `out` and starts the next one.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) {
        let start = out.len();
        let prefix_len = self.prefix_len;
        let trailer_bytes = bytes_between(self.trailers.0, self.trailers.1);
        let base = if trailer_bytes < WHOLE_BYTES { self.trailers.0 } else { 0 };
        out.reserve(self.bytes());
        self.heads.clear();
        self.offsets.clear();
        for staged in &self.entries {
            let suffix_at = staged.key_at + prefix_len;
            let key_end = staged.key_at + staged.key_len as usize;
            let suffix = &self.staged[suffix_at..key_end];
            self.offsets.push(to_u32(out.len() - start));
            self.heads.extend_from_slice(&head(suffix).to_le_bytes());
            put_entry_head(out, suffix.len(), staged.value_len, staged.trailer.0 - base, trailer_bytes);
            // Key suffix and value lie side by side.
            out.extend_from_slice(&self.staged[suffix_at..key_end + staged.value_len as usize]);
        }
        let wide = out.len() - start >= NARROW_LIMIT;
        if let Some(first) = self.entries.first() {
            out.extend_from_slice(&self.staged[first.key_at..first.key_at + prefix_len]);
        }
        let offsets_at = out.len();
        if wide {
            out.resize(offsets_at + 4 * self.offsets.len(), 0);
            for (place, &offset) in out[offsets_at..].chunks_exact_mut(4).zip(&self.offsets) {
                place.copy_from_slice(&offset.to_le_bytes());
            }
        } else {
            out.resize(offsets_at + 2 * self.offsets.len(), 0);
            for (place, &offset) in out[offsets_at..].chunks_exact_mut(2).zip(&self.offsets) {
                place.copy_from_slice(&to_u16(offset as usize).to_le_bytes());
            }
        }
        out.extend_from_slice(&self.heads);
        let cut = to_u32(WHOLE_BYTES - trailer_bytes);
        if cut > 0 {
            out.extend_from_slice(&base.to_le_bytes());
        }
        out.extend_from_slice(&to_u32(prefix_len).to_le_bytes());
        let flags = if wide { WIDE } else { 0 } | cut << CUT_SHIFT;
        out.extend_from_slice(&(to_u32(self.entries.len()) | flags).to_le_bytes());
        self.entries.clear();
        self.staged.clear();
        // One huge value must not hold its memory for the rest of the file.
        self.staged.shrink_to(1 << 20);
        self.prefix_len = 0;
        self.plain_bytes = 0;
    }
}

/// Appends lengths and trailer of an entry. Short lengths, which nearly all entries have, are written in one go.
#[inline(always)]
fn put_entry_head(out: &mut Vec<u8>, suffix_len: usize, value_len: u32, trailer: u64, trailer_bytes: usize) {
    let mut head = [0; 11];
    match (suffix_len, value_len) {
        (0..0x80, 0..0x80) => {
            head[0] = to_u8(suffix_len);
            head[1] = to_u8(value_len as usize);
            head[2..10].copy_from_slice(&trailer.to_le_bytes());
            out.extend_from_slice(&head[..2 + trailer_bytes]);
        }
        (0..0x80, 0x80..0x4000) => {
            head[0] = to_u8(suffix_len);
            head[1] = to_u8(value_len as usize & 0x7f) | 0x80;
            head[2] = to_u8(value_len as usize >> 7);
            head[3..].copy_from_slice(&trailer.to_le_bytes());
            out.extend_from_slice(&head[..3 + trailer_bytes]);
        }
        _ => {
            put_varint(out, to_u64(suffix_len));
            put_varint(out, u64::from(value_len));
            out.extend_from_slice(&trailer.to_le_bytes()[..trailer_bytes]);
        }
    }
}
