//! Which of the running merges gets the disk, and when writers wait. Pure, like `compaction`.

pub mod constraint;
