//! What the store tells a listener while it runs.
//!
//! Events are for people and dashboards: nothing in the store depends on who listens. A listener is called on the thread that
//! did the work; it should be quick and must not call back into the store.
//!
//! One call is allowed, [`Db::close`](crate::Db::close), so that a program can give up at once what it cannot go on with. Called from a listener it
//! does not wait for the step of background work that tells of the event: the store takes no call any more and has given up its lock, but that step
//! ends only after the listener has returned. Open the store again after that.
//!
//! A panic of a listener in the background ends that background work: the store takes no more writes, which fail with
//! [`Poisoned`](crate::ErrorKind::Poisoned), and must be opened again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::compaction::{Decision, Law};
use crate::error::Error;
use crate::version::{KeyspaceId, SstId, VersionEdit};

/// Receives events. See [`Env::listener`](crate::Env::listener).
pub trait EventListener: Send + Sync + 'static {
    /// Something happened.
    fn event(&self, event: &Event);
}

/// Something that happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A memtable became a file of L0.
    FlushEnd {
        /// Whose.
        keyspace: KeyspaceId,
        /// The new file.
        file: SstId,
        /// Its size in bytes.
        bytes: u64,
        /// From the first step to the last.
        took: Duration,
    },
    /// A compaction was chosen and begins.
    CompactionStart {
        /// Whose.
        keyspace: KeyspaceId,
        /// Why, in one line: what moves where, the rule, the trigger's value and threshold.
        reason: String,
        /// Bytes that it will read.
        input_bytes: u64,
        /// The whole record: candidates, scores, what it should cost.
        decision: Arc<Decision>,
    },
    /// A compaction took effect.
    CompactionEnd {
        /// Whose.
        keyspace: KeyspaceId,
        /// As at its start.
        reason: String,
        /// Whether files only changed their level.
        moved: bool,
        /// Bytes read; 0 for a move.
        bytes_read: u64,
        /// Bytes written; 0 for a move.
        bytes_written: u64,
        /// Versions that no one can see any more, dropped.
        dropped_versions: u64,
        /// Tombstones that had nothing left to hide, dropped.
        dropped_tombstones: u64,
        /// From picking to the manifest's update.
        took: Duration,
        /// The whole record, with what it did cost.
        decision: Arc<Decision>,
    },
    /// A compaction that had begun was cancelled or failed: nothing changed but what it had handed over by then (`release = "progressive"`). The record says which and why; of a failure an
    /// [`Error`](Event::Error) tells as well.
    CompactionAbandoned {
        /// Whose.
        keyspace: KeyspaceId,
        /// The whole record, with what was spent.
        decision: Arc<Decision>,
    },
    /// The tree of a keyspace changed: files came, went or moved. The edits of a keyspace in the order of their numbers, applied to the tree
    /// that it had when the store was opened, give the tree that it has.
    TreeChanged {
        /// Whose.
        keyspace: KeyspaceId,
        /// Counts the changes of all trees of the store since it was opened, from 1. Two that follow each other closely may be told by two
        /// threads, and then in either order.
        number: u64,
        /// The compaction that did it ([`Decision::job`]); none for a flush or an ingestion. A compaction that releases its inputs as it goes
        /// changes the tree more than once.
        job: Option<u64>,
        /// What was taken out and put in. A file that moves is in both; so is one of which a part is released.
        edit: Arc<VersionEdit>,
    },
    /// A policy's plan broke a law of the tree and was refused. The policy is asked again when its view of the keyspace has changed: a version
    /// was installed, a job has ended, a snapshot went, another strategy was set. Until then nothing of the keyspace is compacted.
    PlanRefused {
        /// Whose.
        keyspace: KeyspaceId,
        /// The policy's name.
        policy: String,
        /// The law.
        law: Law,
        /// By what it was broken.
        what: String,
    },
    /// Writers are near a limit: background work does not keep up. Told once, before they stop, and again only when the debt has gone down to
    /// half of what writers stop at.
    StallAhead {
        /// Whose.
        keyspace: KeyspaceId,
        /// From 0 (background work keeps up) to 1 (writers stop).
        debt: f64,
        /// Sorted runs and full memtables.
        runs: u64,
        /// The number at which writers stop.
        limit: u64,
    },
    /// Writers wait: too many sorted runs, or no memory for another memtable.
    Stall {
        /// Whose write met the limit.
        keyspace: KeyspaceId,
        /// Which limit, with its value.
        reason: String,
    },
    /// The writers that waited go on.
    StallEnd {
        /// Whose write had met the limit.
        keyspace: KeyspaceId,
        /// How long it waited.
        waited: Duration,
    },
    /// A keyspace got another strategy; nothing has been rewritten for it.
    StrategySet {
        /// Whose.
        keyspace: KeyspaceId,
        /// The name of the strategy before.
        from: String,
        /// The name of the strategy from now on.
        to: String,
    },
    /// The store got another merge scheduler.
    SchedulerSet {
        /// The one before, as options spell it.
        from: String,
        /// The one from now on.
        to: String,
    },
    /// A policy panicked and has lost its keyspace, until the store is opened again or a strategy is set.
    PolicyPanicked {
        /// Whose.
        keyspace: KeyspaceId,
        /// The policy's name.
        policy: String,
        /// What the panic said.
        message: String,
        /// The name of the one that has taken over.
        fallback: String,
    },
    /// A trace ended before it was stopped. The store goes on.
    TraceEnded {
        /// Its file, or the request for it.
        path: PathBuf,
        /// What went wrong; none if it has reached its [`max_bytes`](crate::trace::TraceOptions::max_bytes).
        error: Option<Error>,
    },
    /// Background work failed. It is tried again later unless the error says [`Poisoned`](crate::ErrorKind::Poisoned).
    Error {
        /// What it was doing.
        doing: String,
        /// What went wrong.
        error: Error,
    },
}
