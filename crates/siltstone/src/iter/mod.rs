//! Iterators over internal entries, from one source up to what a user sees.
//!
//! [`Cursor`] is one sorted source: a memtable, a table, a run of tables. [`merging`] combines sources into internal order,
//! [`visible`] applies snapshots and tombstones. [`merge_forward`] is the merge that compactions use, [`run`] makes one source
//! of a run's files, `file` opens them.

pub(crate) mod file;
pub mod merge_forward;
pub mod merging;
pub mod run;
pub mod visible;

#[cfg(test)]
mod tests;

pub use merge_forward::MergeForward;
pub use merging::Merging;
pub use run::{FileCursors, RunCursor};
pub use visible::{Bounds, Visible};

use crate::error::Result;
use crate::key::{self, Entry, Trailer};

/// A position in a sorted sequence of internal entries. Errors are sticky: after one the cursor is at no entry, and every
/// further move returns the error again.
pub trait Cursor {
    /// Moves to the first entry.
    ///
    /// # Errors
    /// `Corruption` or `Io` from the source; likewise for every move.
    fn seek_first(&mut self) -> Result<()>;
    /// Moves to the last entry.
    fn seek_last(&mut self) -> Result<()>;
    /// Moves to the first entry at or after `(key, trailer)` in internal order.
    fn seek(&mut self, key: &[u8], trailer: Trailer) -> Result<()>;
    /// Moves to the last entry before `(key, trailer)` in internal order.
    fn seek_before(&mut self, key: &[u8], trailer: Trailer) -> Result<()>;
    /// Moves to the following entry; from the last one, to no entry. Must be at an entry.
    fn next(&mut self) -> Result<()>;
    /// Moves to the preceding entry; from the first one, to no entry. Must be at an entry.
    fn prev(&mut self) -> Result<()>;
    /// The entry at the position, or none past either end and before the first seek.
    fn entry(&self) -> Option<Entry<'_>>;
    /// The [head](crate::key::head) of the entry's key, or none if there is no entry. Asked at every step of a merge.
    #[inline]
    fn head(&self) -> Option<u128> {
        self.entry().map(|entry| key::head(entry.key))
    }
    /// Moves to the following entry if that takes a look at memory and nothing else: nothing is read, nothing fails. Otherwise does not move, and
    /// [`next`](Self::next) does. Nearly all steps of a scan are of this kind, and what can go wrong at others costs them nothing.
    #[inline(always)]
    fn next_at_hand(&mut self) -> Option<Arrival> {
        None
    }
    /// Does a part of the seek to `target` that waits for nothing but memory. A caller with several sources takes each step with all of them before
    /// the next step, so that their cache misses overlap, and then seeks, to the same target. Failures are told by the seek.
    fn approach(&mut self, step: Approach, target: Target<'_>) {
        let _ = (step, target);
    }
}

/// What a step forward came to: as much of the entry as says whether a reader sees it.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The key's [head](crate::key::head).
    pub head: u128,
    /// The key's length.
    pub key_len: usize,
    /// Sequence number and kind.
    pub trailer: Trailer,
}

/// Where a seek goes.
#[derive(Clone, Copy, Debug)]
pub struct Target<'k> {
    /// The user key.
    pub key: &'k [u8],
    /// With the key: a position in internal order.
    pub trailer: Trailer,
    /// To the last entry before the position ([`Cursor::seek_before`]), not to the first one at or after it.
    pub before: bool,
}

/// The steps of a seek, in order: each touches what the one before began to fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Approach {
    /// Find out which block it is, and fetch where that lies in the cache.
    Block,
    /// Fetch the block's end, where a search begins.
    Index,
    /// Search the block, and fetch the entry.
    Entry,
}

impl Approach {
    /// All of them.
    pub const STEPS: [Approach; 3] = [Approach::Block, Approach::Index, Approach::Entry];
}
