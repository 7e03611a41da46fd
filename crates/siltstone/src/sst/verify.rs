//! Checks a whole table against the laws of its format.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::IoCtx;
use crate::iter::Cursor;
use crate::key::{SeqNo, Trailer, compare, hash};
use crate::num::{to_u64, to_usize};
use crate::sst::table::{Parts, Table, read};

/// How much is read at once.
const READ_AHEAD_BYTES: usize = 1 << 20;

/// See [`Table::verify`].
pub(crate) fn verify(table: &Arc<Table>, ctx: IoCtx) -> Result<()> {
    // Metadata anew from the file: what is in memory may be older than the damage.
    let fresh = Parts::read(table.path(), table.file(), true, ctx)?;
    let damage = |what: &str| Err(Error::corruption(table.path(), 0, what));
    if fresh.properties != table.parts.properties || fresh.footer != table.parts.footer {
        return damage("the file was exchanged while it was open");
    }
    gaps(table, ctx)?;
    let properties = &fresh.properties;
    let mut seen = Seen::default();
    let mut scan = table.scan(READ_AHEAD_BYTES, ctx);
    scan.seek_first()?;
    while let Some(entry) = scan.entry() {
        let Some((block, index, count)) = scan.place() else {
            break;
        };
        if index == 0 {
            let (bytes, layout) = scan.current();
            layout.check(bytes).map_err(|what| table.damaged(block, what))?;
        }
        let (key, trailer) = (entry.key, entry.trailer);
        if seen.entries == 0 && properties.smallest != key {
            return Err(table.damaged(block, "the first key is not the smallest of the properties"));
        }
        let in_order = seen.entries == 0 || compare(&seen.last_key, seen.last_trailer, key, trailer) == Ordering::Less;
        if !in_order {
            return Err(table.damaged(block, "keys out of order"));
        }
        // The separator before the block is below its first entry, the one after it not below its last.
        let after_previous = index > 0 || block == 0 || is_after(&fresh, key, trailer, block - 1);
        if !after_previous || (index + 1 == count && is_after(&fresh, key, trailer, block)) {
            return Err(table.damaged(block, "a key on the wrong side of its block's separator"));
        }
        if !fresh.filter.may_contain(hash(key)) {
            return Err(table.damaged(block, "a key that the filter denies"));
        }
        seen.add(key, trailer, entry.value);
        scan.next()?;
    }
    let keys = properties.filter_keys.max(properties.unfiltered_keys);
    if keys != 0 && keys != seen.keys {
        return damage("the properties do not count the keys that are in the blocks");
    }
    let counted = (seen.entries, seen.tombstones, seen.raw_bytes, seen.min_seq, seen.max_seq);
    let stated = (
        properties.entries,
        properties.tombstones,
        properties.raw_bytes,
        Some(properties.min_seq),
        Some(properties.max_seq),
    );
    if counted != stated {
        return damage("the properties do not count what is in the blocks");
    }
    Ok(())
}

fn is_after(parts: &Parts, key: &[u8], trailer: Trailer, block: usize) -> bool {
    let (separator, bound) = parts.fences.separator(block);
    compare(key, trailer, separator, bound) == Ordering::Greater
}

/// Between blocks lie at most some zeros.
fn gaps(table: &Table, ctx: IoCtx) -> Result<()> {
    let fences = &table.parts.fences;
    let mut end = 0;
    for block in 0..=fences.blocks() {
        let next = if block < fences.blocks() { fences.handle(block).offset } else { table.parts.footer.data_end };
        let gap = next.saturating_sub(end);
        if gap > 0 {
            let mut buffer = [0u8; 4096];
            let bad = match buffer.get_mut(..to_usize(gap)) {
                Some(buffer) => {
                    read(table.path(), table.file(), buffer, end, ctx)?;
                    buffer.iter().any(|&byte| byte != 0)
                }
                None => true,
            };
            if bad {
                return Err(Error::corruption(table.path(), end, "bytes that belong to no block"));
            }
        }
        if block < fences.blocks() {
            end = fences.handle(block).end().unwrap_or(next);
        }
    }
    Ok(())
}

/// What the blocks hold.
struct Seen {
    keys: u64,
    entries: u64,
    tombstones: u64,
    raw_bytes: u64,
    min_seq: Option<SeqNo>,
    max_seq: Option<SeqNo>,
    last_key: Vec<u8>,
    last_trailer: Trailer,
}

impl Default for Seen {
    fn default() -> Seen {
        Seen {
            keys: 0,
            entries: 0,
            tombstones: 0,
            raw_bytes: 0,
            min_seq: None,
            max_seq: None,
            last_key: Vec::new(),
            last_trailer: Trailer(0),
        }
    }
}

impl Seen {
    fn add(&mut self, key: &[u8], trailer: Trailer, value: &[u8]) {
        self.keys += u64::from(self.entries == 0 || self.last_key != key);
        self.entries += 1;
        self.tombstones += u64::from(trailer.is_delete());
        self.raw_bytes += to_u64(key.len() + value.len());
        let seq = Some(trailer.seq());
        self.min_seq = self.min_seq.map_or(seq, |min| seq.min(Some(min)));
        self.max_seq = self.max_seq.max(seq);
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.last_trailer = trailer;
    }
}
