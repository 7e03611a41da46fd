//! Sorted string tables: immutable files of entries in internal order.
//!
//! ```text
//! data block 0 | data block 1 | ... | filter | index partition 0.. | top index | properties | footer
//! ```
//!
//! - [`block`]: entries with ordered 2-byte key heads at the block's end, so that a lookup touches the end and one entry.
//! - [`filter`]: a blocked Bloom filter, one cache line a key.
//! - [`index`]: shortened separators in checksummed partitions on disk, one flat structure of fences in memory.
//! - [`writer`]: streams entries to a file. [`table`]: reads it back. [`cursor`]: iteration, through the block cache or, for
//!   merges, in big sequential pieces.
//!
//! The bytes are described in `docs/format/sst.md`. Bytes from
//! disk are hostile here: every length is checked before it is used, and damage is an error that names file and offset.

pub(crate) mod block;
pub(crate) mod codec;
pub(crate) mod compress;
pub mod cursor;
pub(crate) mod filter;
pub(crate) mod footer;
pub(crate) mod index;
pub mod properties;
#[expect(unsafe_code, reason = "vector instructions chosen at run time, and prefetch")]
pub(crate) mod simd;
pub mod table;
mod verify;
pub mod writer;

#[cfg(test)]
pub(crate) mod tests;

pub use cursor::{TableCursor, TableScan};
pub use properties::Properties;
pub use table::Table;
pub(crate) use verify::Flaw;
pub use writer::{TableOptions, TableSummary, TableWriter};
