//! The simulated forms of the seams: files, time and threads that one seed decides, on one thread.
//!
//! [`SimFs`] knows, for every byte and every name, whether it is durable. From that, [`SimFs::crash`] builds the disk as a power
//! cut would leave it, under a [`Profile`] of what file systems and devices may do with what was not synced, and [`CrashImages`]
//! builds it after each single operation of a run. [`Fault`]s fail any call, [`Device`] charges calls to the [`SimClock`], and
//! [`SimExecutor`] runs the steps of background lanes in an order drawn from the seed.
//!
//! The model is meant to be as cruel as real disks are legally, and no crueller: a checker that cries wolf is muted. What holds
//! in every profile: a successful sync of a file makes its bytes and its size durable; a successful sync of a folder makes its
//! names durable; a rename is atomic; a sector of 512 bytes is written whole or not at all.
//!
//! Not modelled: two steps that use the device at the same time (they take turns, as steps do), and reads served by a page
//! cache (every read is charged).

pub mod clock;
mod content;
pub mod crash;
pub mod device;
mod disk;
pub mod executor;
pub mod faults;
pub mod fs;
mod handles;
pub mod oplog;
#[cfg(test)]
mod tests;

pub use clock::SimClock;
pub use crash::{CrashImage, CrashImages, Profile};
pub use device::{ClassBytes, Device};
pub use executor::SimExecutor;
pub use faults::{CallKind, Effect, Errno, Fault, Filter};
pub use fs::{Durability, SimFs};
pub use oplog::{Op, OpKind};
