//! Threads as a seam: the core offers *lanes* of bounded steps, an executor runs them.
//!
//! The core owns no thread. It names its lanes (flush, log, each compaction slot), and whoever runs the store calls a lane's
//! step until it says [`LaneStep::Idle`]. With real threads, each lane has one (`db/background.rs`). In a simulation one
//! thread picks the lane that steps next from the seed, so every interleaving of jobs at step borders can be replayed, and a
//! writer that must wait runs other lanes until it need not.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;

/// Which lane. Small and dense: an index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LaneId(pub usize);

/// What a step did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaneStep {
    /// Something: call again.
    Worked,
    /// Nothing to do until [`Workers::wake`].
    Idle,
    /// Nothing to do before this much time has passed, or [`Workers::wake`] (a retry after an error, a pause).
    IdleFor(Duration),
}

/// A source of steps.
#[derive(Clone)]
pub struct Lane {
    /// For thread names and traces.
    pub name: String,
    /// Unix niceness of the thread that runs it.
    pub nice: i32,
    /// Does a bounded piece of work. Called by one thread at a time, and not again after a panic.
    pub step: Arc<dyn Fn() -> LaneStep + Send + Sync>,
}

/// Starts lanes.
pub trait Executor: Send + Sync + 'static {
    /// Begins to run `lanes`; lane `i` is `LaneId(i)`.
    ///
    /// # Errors
    /// If threads cannot be started.
    fn start(&self, lanes: Vec<Lane>) -> Result<Box<dyn Workers>>;
}

/// Running lanes.
pub trait Workers: Send + Sync {
    /// There may be work for this lane. Cheap when the lane is busy.
    fn wake(&self, lane: LaneId);
    /// Something changed that a waiter may be waiting for.
    fn notify(&self);
    /// Blocks the caller, without spinning, until `done()`; it is asked again after every [`notify`](Workers::notify).
    ///
    /// # Errors
    /// In a simulation, if no lane can do anything and `done()` stays false: a deadlock. Never with real threads.
    fn wait(&self, done: &mut dyn FnMut() -> bool) -> Result<()>;
    /// Blocks the caller for `time`. In a simulation the lanes go on meanwhile.
    fn sleep(&self, time: Duration);
    /// Ends the lanes: returns when each has finished the step it is in, but for a lane whose step calls this. Idempotent.
    fn stop(&self);
}
