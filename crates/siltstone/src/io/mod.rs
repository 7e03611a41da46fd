//! The seams: everything that is not a pure function of the store's own state comes through here.
//!
//! Files ([`Fs`]), time ([`Clock`]), randomness ([`Rng`]), bandwidth ([`Limiter`]) and threads ([`Executor`]) each have a real
//! and a simulated form. With the simulated ones a whole store runs on one thread from one seed: the same seed gives the same
//! operations on the same files in the same order, and power can be cut between any two of them.
//!
//! | seam | real | simulated |
//! | --- | --- | --- |
//! | [`Fs`] | [`RealFs`]: the operating system | [`sim::SimFs`]: memory that knows what was synced; faults, crashes, a modelled device |
//! | [`Clock`] | [`RealClock`] | [`sim::SimClock`]: virtual nanoseconds |
//! | [`Rng`] | seeded from the clock | seeded by the test |
//! | [`Executor`] | threads, in `db/background.rs` | [`sim::SimExecutor`]: one step of one lane at a time, chosen by the seed |
//!
//! clippy's `disallowed-methods` keeps the rest of the crate off `std::fs`, clocks and threads.

pub mod clock;
pub mod executor;
pub mod fs;
pub mod limiter;
#[expect(unsafe_code, reason = "maps memory")]
mod map;
pub mod meter;
pub mod real;
pub mod rng;
pub mod sim;

pub use clock::{Clock, RealClock};
pub use executor::{Executor, Lane, LaneId, LaneStep, Workers};
pub use fs::{
    CreateOptions, DirEntry, FileLock, Fs, IoClass, IoCtx, JobId, LogFile, LogMemory, LogSegment, OpenOptions,
    ReadableFile, SlotFile, WritableFile,
};
pub use limiter::{Limiter, WorkClass};
#[allow(unused_imports, reason = "memtables and the block cache take their memory here")]
pub(crate) use map::{HUGE_PAGE_BYTES, HugePages};
pub use meter::IoMeter;
pub use real::RealFs;
pub use rng::Rng;
