//! The laboratory: what makes work for a store, measures it and shows the figures.
//!
//! ```text
//! workload  plain data -> a deterministic stream of operations
//! load      runs a phase of a workload against a store, closed loop, one latency per operation
//! metrics   latency histograms, processor time
//! run       a question -> a folder of results: any workload under any strategies, in either world
//! compare   the same input into one store per strategy, then reads, updates and deletes
//! experiment  published studies: runs in virtual time, and whether their claims hold here
//! setting   options by their names with dots
//! strategy  what a user calls a strategy: a preset's name or a file
//! trace     recorded operations: read, written, replayed, described as a workload
//! recorder  writes down how the trees of a store change
//! report    rows -> a table, JSON, and one HTML page that works offline
//! ```
//!
//! The engine decides and acts; this crate only looks on. It may read the clock and the file system of the machine, since it
//! measures them, but what it *does* to a store follows from a seed.

pub mod compare;
pub mod experiment;
pub mod load;
pub mod metrics;
pub mod num;
pub mod recorder;
pub mod report;
pub mod run;
pub mod setting;
pub mod strategy;
pub mod trace;
pub mod workload;
