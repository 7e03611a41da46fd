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
use crate::key::{Entry, Trailer};

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
    /// Starts fetching what a `seek` to `key` will touch, so that several sources' cache misses overlap. Changes nothing.
    fn prefetch(&mut self, key: &[u8]) {
        let _ = key;
    }
}
