//! Siltstone: an embedded LSM-tree key-value store in which compaction is not a black box.
//!
//! # A tour
//!
//! [`Db`] opens a store, [`Keyspace`] is a map in it; [`Options`] say how both behave. Below that facade:
//!
//! | room | what it does |
//! | --- | --- |
//! | [`io`] | the seams: files, time, randomness, threads; each real or simulated |
//! | [`memtable`] | the newest records, sorted in memory |
//! | [`wal`] | the write-ahead log |
//! | [`sst`], [`cache`] | sorted tables on disk, and their blocks in memory |
//! | [`version`] | the shape of the tree, its edits, the manifest |
//! | [`compaction`], [`schedule`] | decide, on metadata alone |
//! | [`forecast`] | the dry run: the planner on estimated outputs |
//! | [`jobs`], [`iter`] | act: flushes and merges as steps, and the iterators under them |
//! | [`trace`] | what was asked of a store, as a file |
//! | [`db`] | puts it together |
//!
//! Two rules shape all of it: deciding is pure, acting is stepwise. `ARCHITECTURE.md` tells the whole story.

pub mod cache;
pub mod compaction;
pub mod db;
pub mod forecast;
pub mod io;
pub mod iter;
pub mod jobs;
pub mod key;
pub mod memtable;
pub mod options;
pub mod planted;
pub mod schedule;
pub mod sst;
pub mod trace;
pub mod version;
pub mod wal;

mod batch;
mod codec;
mod error;
mod event;
mod frame;
mod kind;
mod num;

pub use batch::Batch;
pub use bytes::Bytes;
pub use db::{
    Cancel, Damage, Db, Debt, DeleteStats, Durability, Env, Keyspace, KeyspaceStats, LevelStats, MergeLatency,
    MergeLimit, MergeState, OldestTombstone, Pending, PendingRule, Policies, Range, ReasonStats, RunsSample, Salvage,
    Snapshot, Stats, SwitchPlan, SwitchProgress, TombstoneBlocker, TombstonePlace, Tree, TreeLevel, TreeRun,
    VerifyReport, prefix_bounds,
};
pub use error::{Error, ErrorKind, Result};
pub use event::{Event, EventListener};
pub use options::{KeyspaceOptions, Options};
