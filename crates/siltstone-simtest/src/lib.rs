//! The simulation that tests Siltstone: one seed drives a whole store.
//!
//! ```text
//! seed -> Config, Generator -> steps -> World { Machine, Db, Model } -> a violation, or nothing
//! ```
//!
//! [`ops`] are what a client does, as plain data; [`config`] draws tiny options; [`model`] is what the store should hold;
//! [`world`] runs the one beside the other and checks after every step; [`shrink`] cuts a failure down. [`tiers`] are the
//! searches built on them: a swarm of random worlds, a crash at every file operation, a second crash during recovery, every
//! bit flipped, every length cut, every call failed, and real processes killed. [`counters`] say which rare states were
//! reached. The binary `siltstone-sim` runs them and replays a seed.
//!
//! The model shares no code with the engine, so that the two cannot be wrong alike.

pub mod config;
pub mod counters;
mod lives;
pub mod model;
pub mod ops;
pub mod pool;
mod reads;
pub mod shrink;
pub mod store;
pub mod tiers;
mod traces;
pub mod world;
mod writes;
