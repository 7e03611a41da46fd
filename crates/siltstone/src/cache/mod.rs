//! What is kept in memory of files: blocks ([`block`]) in frames on huge pages ([`frames`]), and open tables ([`mod@file`]), whose filters and indexes
//! lie on huge pages too (`shelf`).

pub mod block;
pub mod file;
#[expect(unsafe_code, reason = "frames are shared by pins and written under claims; memory comes from the system")]
pub mod frames;
mod pins;
#[expect(unsafe_code, reason = "pieces of huge pages are handed out as slices")]
pub(crate) mod shelf;

#[cfg(test)]
mod tests;

pub use block::{BlockCache, CacheStats};
pub use file::{Obsolete, PurgeQueue, TableCache, TableGuard, TableHandle, sst_path};
