//! Which of the running merges gets the disk, which keyspace is served first, and when writers wait. Pure, like `compaction`.

pub mod constraint;
pub mod keyspaces;
