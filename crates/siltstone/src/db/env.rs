//! What a store runs in, and a way to cancel long work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::background::Threads;
use super::core::Core;
use super::policies::Policies;
use crate::event::EventListener;
use crate::io::{Clock, Executor, Fs, RealClock, RealFs, Rng};

/// What a store runs in: the seams of [`io`](crate::io), each replaceable. [`Env::default`] is the operating system.
#[derive(Clone)]
pub struct Env {
    /// Files.
    pub fs: Arc<dyn Fs>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub rng: Rng,
    /// Threads.
    pub executor: Arc<dyn Executor>,
    /// Who is told what happens.
    pub listener: Option<Arc<dyn EventListener>>,
    /// Compaction policies of the caller's own, which a keyspace's `strategy = "policy:NAME"` names.
    pub policies: Policies,
    /// Open without the right to change anything.
    pub read_only: bool,
}

impl Default for Env {
    fn default() -> Env {
        let clock = RealClock;
        Env {
            fs: Arc::new(RealFs),
            rng: Rng::new(clock.wall_ns() ^ clock.mono_ns().rotate_left(32)),
            clock: Arc::new(clock),
            executor: Arc::new(Threads),
            listener: None,
            policies: Policies::new(),
            read_only: false,
        }
    }
}

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Env").field("read_only", &self.read_only).finish_non_exhaustive()
    }
}

/// A switch that ends long work early. Clones share it.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Shared>);

#[derive(Default)]
struct Shared {
    cancelled: AtomicBool,
    /// Stores in which someone waits.
    waiting: Mutex<Vec<Weak<Core>>>,
}

impl Cancel {
    /// A switch that is off.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Ends the work that holds this switch. It returns `Cancelled` soon after.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Release);
        for core in self.0.waiting.lock().iter().filter_map(Weak::upgrade) {
            core.wake_compactions();
            core.notify();
        }
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    pub(crate) fn attach(&self, core: &Arc<Core>) {
        let mut waiting = self.0.waiting.lock();
        waiting.retain(|core| core.strong_count() > 0);
        if !waiting.iter().any(|known| known.as_ptr() == Arc::as_ptr(core)) {
            waiting.push(Arc::downgrade(core));
        }
    }
}

impl std::fmt::Debug for Cancel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cancel").field(&self.is_cancelled()).finish()
    }
}
