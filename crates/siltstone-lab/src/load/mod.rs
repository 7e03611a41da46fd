//! Runs work against a store and measures how it bears it.
//!
//! ```text
//! phase      one operation repeated as fast as the store answers, on the machine's own clock
//! arrivals   when operations are due: closed loop, steady, bursts, on and off
//! world      where a load runs: real files and real time, or a simulated disk in virtual time
//! driver     a load of either kind, in either world: waiting and processing time apart, throughput over time
//! trial      one store, loaded and then driven
//! beside     what else is looked at meanwhile: flushes during merges, pages that queries read
//! two_phase  how much a store can do, and whether it bears nearly that much for long (luo19)
//! ```

mod arrivals;
mod beside;
mod driver;
mod phase;
mod trial;
pub mod two_phase;
mod world;

pub use arrivals::{Arrivals, Rate, Schedule, Spacing, Stretch};
pub use beside::{Beside, FlushesBeside, QueryPages};
pub use driver::{Load, LoadResult, Moment, Window, drive};
pub use phase::{PhaseResult, run_phase};
pub use trial::{Stage, Trial, TrialResult};
pub(crate) use world::Wait;
pub use world::{DiskWorld, SimWorld, World};
