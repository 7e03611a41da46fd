//! All integration tests in one binary, one module per topic: one link instead of ten.

#![allow(clippy::unwrap_used, reason = "in a test, a panic with its place is the best message")]

mod compaction;
mod db;
mod explain;
mod fifo;
mod filters;
mod golden;
mod keyspaces;
mod listeners;
mod meanwhile;
mod open;
mod policies;
mod read_cost;
mod release;
mod rest;
mod schedule;
mod space;
mod stitch;
mod switch;
mod tombstone_share;
