//! The laboratory: what makes work for a store, measures it and shows the figures.
//!
//! ```text
//! workload  plain data -> a deterministic stream of keys and values
//! load      runs a phase of a workload against a store, closed loop, one latency per operation
//! metrics   latency histograms, processor time
//! compare   the same input into one store per strategy, then reads, updates and deletes
//! experiment  published studies: runs in virtual time, and whether their claims hold here
//! setting   options by their names with dots
//! strategy  what a user calls a strategy: a preset's name or a file
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
pub mod report;
pub mod setting;
pub mod strategy;
pub mod workload;
