//! Checks a whole table against the laws of its format.

use std::cmp::Ordering;
use std::sync::Arc;

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};
use crate::io::IoCtx;
use crate::iter::Cursor;
use crate::key::{SeqNo, Trailer, compare, hash};
use crate::num::{to_u64, to_usize};
use crate::sst::cursor::TableScan;
use crate::sst::properties::Properties;
use crate::sst::table::{Parts, Table, read};

/// How much is read at once.
const READ_AHEAD_BYTES: usize = 1 << 20;

/// Something that is wrong with a table.
pub(crate) struct Flaw {
    pub(crate) error: Error,
    /// The smallest and the largest key that may be affected; none: any of the table's.
    pub(crate) keys: Option<(Bytes, Bytes)>,
}

/// See [`Table::verify`].
pub(crate) fn verify(table: &Arc<Table>, ctx: IoCtx) -> Result<()> {
    examine(table, ctx, &mut |_| Ok(()))?.into_iter().next().map_or(Ok(()), |flaw| Err(flaw.error))
}

/// The same, which goes on behind a block that is damaged: all that is wrong with the blocks. `watch` is told the bytes of each block that was
/// read.
///
/// # Errors
/// What is wrong with the rest of the table, so that its blocks cannot be told apart; what `watch` fails with.
pub(crate) fn examine(table: &Arc<Table>, ctx: IoCtx, watch: &mut dyn FnMut(u64) -> Result<()>) -> Result<Vec<Flaw>> {
    // Metadata anew from the file: what is in memory may be older than the damage.
    let fresh = Parts::read(table.path(), table.file(), true, None, ctx)?;
    let damage = |what: &str| Error::corruption(table.path(), 0, what);
    if fresh.properties != table.parts.properties || fresh.footer != table.parts.footer {
        return Err(damage("the file was exchanged while it was open"));
    }
    let mut flaws = Vec::new();
    flaws.extend(gaps(table, ctx).err().map(|error| Flaw { error, keys: None }));
    let mut seen = Seen::default();
    let mut ahead = READ_AHEAD_BYTES;
    let mut scan = table.scan(ahead, ctx);
    for block in 0..fresh.fences.blocks() {
        let mut checked = check_block(&fresh, &mut scan, block, &mut seen);
        if checked.as_ref().is_err_and(|error| error.kind() == ErrorKind::Io) && ahead > 0 {
            // What cannot be read may be another block of the same piece: from here on each is read alone.
            ahead = 0;
            scan = table.scan(ahead, ctx);
            checked = check_block(&fresh, &mut scan, block, &mut seen);
        }
        if let Err(error) = checked {
            flaws.push(Flaw { error, keys: Some(keys_of(&fresh, block)) });
            // Beside one bad block there are often more: what was read with it is not read anew for each.
            ahead = 0;
            scan = table.scan(ahead, ctx);
            seen.has_last = false;
        }
        watch(fresh.fences.handle(block).len)?;
    }
    // Of a table that was read in part nothing can be counted.
    if flaws.is_empty()
        && let Err(what) = seen.check(&fresh.properties)
    {
        flaws.push(Flaw { error: damage(what), keys: None });
    }
    Ok(flaws)
}

/// Reads a block and checks every entry of it.
fn check_block(fresh: &Parts, scan: &mut TableScan, block: usize, seen: &mut Seen) -> Result<()> {
    scan.seek_block(block)?;
    let table = Arc::clone(scan.table());
    let (bytes, layout) = scan.current();
    layout.check(bytes).map_err(|what| table.damaged(block, what))?;
    while let (Some(entry), Some((_, index, count))) = (scan.entry(), scan.place()) {
        let (key, trailer) = (entry.key, entry.trailer);
        if block == 0 && index == 0 && fresh.properties.smallest != key {
            return Err(table.damaged(block, "the first key is not the smallest of the properties"));
        }
        if seen.has_last && compare(&seen.last_key, seen.last_trailer, key, trailer) != Ordering::Less {
            return Err(table.damaged(block, "keys out of order"));
        }
        // The separator before the block is below its first entry, the one after it not below its last.
        let after_previous = index > 0 || block == 0 || is_after(fresh, key, trailer, block - 1);
        if !after_previous || (index + 1 == count && is_after(fresh, key, trailer, block)) {
            return Err(table.damaged(block, "a key on the wrong side of its block's separator"));
        }
        if !fresh.filter.may_contain(hash(key)) {
            return Err(table.damaged(block, "a key that the filter denies"));
        }
        seen.add(key, trailer, entry.value);
        if index + 1 == count {
            break;
        }
        scan.next()?;
    }
    Ok(())
}

/// The smallest and the largest key that a block may hold.
fn keys_of(parts: &Parts, block: usize) -> (Bytes, Bytes) {
    let Properties { smallest, largest, .. } = &parts.properties;
    let first = block.checked_sub(1).map_or_else(
        || smallest.clone(),
        |before| match parts.fences.separator(before) {
            // Nothing of the separator's key is in the block: the key behind it is the first that may be.
            (key, Trailer(0)) => [key, &[0]].concat().into(),
            (key, _) => Bytes::copy_from_slice(key),
        },
    );
    let is_last = block + 1 == parts.fences.blocks();
    (first, if is_last { largest.clone() } else { Bytes::copy_from_slice(parts.fences.separator(block).0) })
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
    /// Whether `last_key` and `last_trailer` are of the entry before.
    has_last: bool,
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
            has_last: false,
            last_key: Vec::new(),
            last_trailer: Trailer(0),
        }
    }
}

impl Seen {
    fn add(&mut self, key: &[u8], trailer: Trailer, value: &[u8]) {
        self.keys += u64::from(!self.has_last || self.last_key != key);
        self.entries += 1;
        self.tombstones += u64::from(trailer.is_delete());
        self.raw_bytes += to_u64(key.len() + value.len());
        let seq = Some(trailer.seq());
        self.min_seq = self.min_seq.map_or(seq, |min| seq.min(Some(min)));
        self.max_seq = self.max_seq.max(seq);
        self.has_last = true;
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.last_trailer = trailer;
    }

    /// Whether the properties count the same.
    fn check(&self, properties: &Properties) -> std::result::Result<(), &'static str> {
        let keys = properties.filter_keys.max(properties.unfiltered_keys);
        if keys != 0 && keys != self.keys {
            return Err("the properties do not count the keys that are in the blocks");
        }
        let counted = (self.entries, self.tombstones, self.raw_bytes, self.min_seq, self.max_seq);
        let stated = (
            properties.entries,
            properties.tombstones,
            properties.raw_bytes,
            Some(properties.min_seq),
            Some(properties.max_seq),
        );
        if counted == stated { Ok(()) } else { Err("the properties do not count what is in the blocks") }
    }
}
