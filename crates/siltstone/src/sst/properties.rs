//! What a table says of itself: a block of tagged fields. Fields that a reader does not know are skipped, so later versions
//! can add some.

use bytes::Bytes;

use crate::codec::{put_varint, varint64};
use crate::key::SeqNo;
use crate::num::{to_u64, to_usize};

/// Facts about a table, written by its writer and checked when it is verified.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Properties {
    /// Records, tombstones included.
    pub entries: u64,
    /// Tombstones among them.
    pub tombstones: u64,
    /// Bytes of keys and values, before compression and without overheads.
    pub raw_bytes: u64,
    /// Smallest sequence number.
    pub min_seq: SeqNo,
    /// Largest sequence number.
    pub max_seq: SeqNo,
    /// Smallest user key.
    pub smallest: Bytes,
    /// Largest user key.
    pub largest: Bytes,
    /// Data blocks.
    pub blocks: u64,
    /// Filter bits per key that were asked for, in thousandths.
    pub filter_millibits: u64,
    /// Distinct user keys in the filter; 0 without one.
    pub filter_keys: u64,
    /// Distinct user keys of a file without a filter; 0 with one, and in files of writers that did not count.
    pub unfiltered_keys: u64,
    /// The compression that was asked for: its tag.
    pub compression: u64,
    /// The target size of a block.
    pub block_bytes: u64,
    /// The version of the software that wrote the file.
    pub creator: String,
}

/// Field numbers.
mod field {
    pub(super) const ENTRIES: u64 = 1;
    pub(super) const TOMBSTONES: u64 = 2;
    pub(super) const RAW_BYTES: u64 = 3;
    pub(super) const MIN_SEQ: u64 = 4;
    pub(super) const MAX_SEQ: u64 = 5;
    pub(super) const SMALLEST: u64 = 6;
    pub(super) const LARGEST: u64 = 7;
    pub(super) const BLOCKS: u64 = 8;
    pub(super) const FILTER_MILLIBITS: u64 = 9;
    pub(super) const FILTER_KEYS: u64 = 10;
    pub(super) const COMPRESSION: u64 = 11;
    pub(super) const BLOCK_BYTES: u64 = 12;
    pub(super) const CREATOR: u64 = 13;
    pub(super) const UNFILTERED_KEYS: u64 = 14;
}

/// Every number that must be there.
const REQUIRED_NUMBERS: u32 = 0b1_1111_0011_1110;

impl Properties {
    /// Whether no key has two versions here. Without a filter and a count nobody knows.
    pub fn is_one_version_a_key(&self) -> bool {
        self.filter_keys.max(self.unfiltered_keys) == self.entries
    }

    /// The block, without its trailer.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let numbers = [
            (field::ENTRIES, self.entries),
            (field::TOMBSTONES, self.tombstones),
            (field::RAW_BYTES, self.raw_bytes),
            (field::MIN_SEQ, self.min_seq.0),
            (field::MAX_SEQ, self.max_seq.0),
            (field::BLOCKS, self.blocks),
            (field::FILTER_MILLIBITS, self.filter_millibits),
            (field::FILTER_KEYS, self.filter_keys),
            (field::COMPRESSION, self.compression),
            (field::BLOCK_BYTES, self.block_bytes),
        ];
        for (tag, value) in numbers {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            put_field(&mut out, tag, &bytes);
        }
        if self.filter_keys == 0 {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, self.unfiltered_keys);
            put_field(&mut out, field::UNFILTERED_KEYS, &bytes);
        }
        put_field(&mut out, field::SMALLEST, &self.smallest);
        put_field(&mut out, field::LARGEST, &self.largest);
        put_field(&mut out, field::CREATOR, self.creator.as_bytes());
        out
    }

    /// Reads a block. None if it is damaged or lacks a field.
    pub(crate) fn decode(block: &[u8]) -> Option<Properties> {
        let mut properties = Properties::default();
        let mut seen = 0u32;
        let (mut smallest, mut largest) = (None, None);
        let at = &mut 0;
        while *at < block.len() {
            let tag = varint64(block, at)?;
            let len = to_usize(varint64(block, at)?);
            let end = at.checked_add(len)?;
            let bytes = block.get(*at..end)?;
            *at = end;
            let number = match tag {
                field::ENTRIES => &mut properties.entries,
                field::TOMBSTONES => &mut properties.tombstones,
                field::RAW_BYTES => &mut properties.raw_bytes,
                field::MIN_SEQ => &mut properties.min_seq.0,
                field::MAX_SEQ => &mut properties.max_seq.0,
                field::BLOCKS => &mut properties.blocks,
                field::FILTER_MILLIBITS => &mut properties.filter_millibits,
                field::FILTER_KEYS => &mut properties.filter_keys,
                field::COMPRESSION => &mut properties.compression,
                field::BLOCK_BYTES => &mut properties.block_bytes,
                field::UNFILTERED_KEYS => &mut properties.unfiltered_keys,
                field::SMALLEST => {
                    smallest = Some(Bytes::copy_from_slice(bytes));
                    continue;
                }
                field::LARGEST => {
                    largest = Some(Bytes::copy_from_slice(bytes));
                    continue;
                }
                field::CREATOR => {
                    properties.creator = String::from_utf8_lossy(bytes).into_owned();
                    continue;
                }
                _ => continue,
            };
            let mut inner = 0;
            *number = varint64(bytes, &mut inner)?;
            if inner != bytes.len() {
                return None;
            }
            seen |= 1 << tag;
        }
        properties.smallest = smallest?;
        properties.largest = largest?;
        let complete = seen & REQUIRED_NUMBERS == REQUIRED_NUMBERS;
        let sane = properties.entries > 0
            && properties.blocks > 0
            && properties.blocks <= properties.entries
            && properties.tombstones <= properties.entries
            && properties.filter_keys.max(properties.unfiltered_keys) <= properties.entries
            && properties.smallest <= properties.largest
            && properties.min_seq <= properties.max_seq
            && properties.max_seq <= SeqNo::MAX;
        (complete && sane).then_some(properties)
    }
}

fn put_field(out: &mut Vec<u8>, tag: u64, bytes: &[u8]) {
    put_varint(out, tag);
    put_varint(out, to_u64(bytes.len()));
    out.extend_from_slice(bytes);
}
