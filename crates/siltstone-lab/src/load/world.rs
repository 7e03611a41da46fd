//! Where a load runs.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use siltstone::io::sim::{Device, SimClock, SimExecutor, SimFs};
use siltstone::io::{Clock, RealClock, Rng};
use siltstone::{Db, Env, EventListener, Options};

/// Time and files. The same driver runs in each.
pub trait World {
    /// The time, in nanoseconds since some fixed moment.
    fn now_ns(&self) -> u64;

    /// The clock that tells it.
    fn clock(&self) -> Arc<dyn Clock>;

    /// Lets time pass until `at_ns`; the store's background work goes on meanwhile. Real time may be a tenth of a millisecond later then.
    fn wait_until(&self, at_ns: u64);

    /// What an operation costs its caller, beyond what it waits for; nothing where operations are real.
    fn operation_ns(&self) -> u64 {
        0
    }

    /// Lets the cost of an operation pass. It passes by itself where operations are real.
    fn spend(&self) {}

    /// Opens the world's store, a new and empty one at first.
    ///
    /// # Errors
    /// As [`Db::open`].
    fn open(&self, options: &Options, listener: Option<Arc<dyn EventListener>>) -> siltstone::Result<Db>;
}

/// Real files and real time.
pub struct DiskWorld {
    clock: RealClock,
    store: PathBuf,
    /// Goes when the world does, if it was made for it.
    _folder: Option<tempfile::TempDir>,
    wait: Wait,
}

impl DiskWorld {
    /// A world whose files are in a new folder below `parent`, or below the system's folder for temporary files; the folder goes when the
    /// world does.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn new(parent: Option<&Path>) -> anyhow::Result<DiskWorld> {
        let mut builder = tempfile::Builder::new();
        let folder = builder.prefix("siltstone-load-");
        let folder = match parent {
            Some(parent) => {
                folder.tempdir_in(parent).with_context(|| format!("cannot make a folder in {}", parent.display()))
            }
            None => folder.tempdir().context("cannot make a temporary folder"),
        }?;
        let world = DiskWorld::of(&folder.path().join("store"));
        Ok(DiskWorld { _folder: Some(folder), ..world })
    }

    /// The world of a user's own store in `store`.
    pub fn of(store: &Path) -> DiskWorld {
        DiskWorld { clock: RealClock, store: store.to_path_buf(), _folder: None, wait: Wait::default() }
    }
}

impl World for DiskWorld {
    fn now_ns(&self) -> u64 {
        self.clock.mono_ns()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.clock)
    }

    fn wait_until(&self, at_ns: u64) {
        self.wait.until(&|| self.now_ns(), at_ns, &|| true);
    }

    fn open(&self, options: &Options, listener: Option<Arc<dyn EventListener>>) -> siltstone::Result<Db> {
        Db::open_with(&self.store, options.clone(), Env { listener, ..Env::default() })
    }
}

/// A sleep may take this much longer than asked for; the rest is waited for awake. Where one wait follows another faster than that, a client
/// that stays awake would keep a processor for good, which the store's own threads need: then it sleeps, and what is due meanwhile is
/// late by as much. Then it sleeps for no less than this even if the next operation is due before: where a million a second are, waking for
/// each few dozen is dear for all that runs on the machine.
const SLEEP_ERROR_NS: u64 = 150_000;
/// The longest sleep without a look at whether to go on.
const NAP_NS: u64 = 50_000_000;

/// How a client waits in real time.
#[derive(Default)]
pub(crate) struct Wait {
    /// When the last wait ended.
    ended_ns: Cell<u64>,
}

impl Wait {
    /// Waits until `now_ns` says `at_ns`; false if it is not to `go_on` meanwhile.
    pub(crate) fn until(&self, now_ns: &dyn Fn() -> u64, at_ns: u64, go_on: &dyn Fn() -> bool) -> bool {
        loop {
            let now_ns = now_ns();
            let left_ns = at_ns.saturating_sub(now_ns);
            if left_ns == 0 {
                self.ended_ns.set(now_ns);
                return true;
            }
            if !go_on() {
                return false;
            }
            if left_ns > SLEEP_ERROR_NS {
                std::thread::sleep(Duration::from_nanos((left_ns - SLEEP_ERROR_NS).min(NAP_NS)));
            } else if now_ns.saturating_sub(self.ended_ns.get()) < SLEEP_ERROR_NS {
                std::thread::sleep(Duration::from_nanos(SLEEP_ERROR_NS));
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// A simulated disk in virtual time: the real engine, bit for bit the same on every run.
pub struct SimWorld {
    clock: Arc<SimClock>,
    fs: SimFs,
    executor: SimExecutor,
    seed: u64,
    operation_ns: u64,
}

impl SimWorld {
    /// What a write costs its client unless something else is known: far less than what it makes the disk do.
    pub const OPERATION_NS: u64 = 20_000;

    /// A world with a disk of the given kind, in which an operation costs its caller `operation_ns`.
    pub fn new(device: Device, operation_ns: u64, seed: u64) -> SimWorld {
        let clock = SimClock::new();
        let fs = SimFs::new(&clock, seed);
        fs.set_device(Some(device));
        let executor = SimExecutor::new(&clock, seed);
        executor.set_side_by_side(true);
        SimWorld { clock, fs, executor, seed, operation_ns }
    }

    /// Another world that goes on from here, with a time of its own. No store may be open.
    #[must_use]
    pub fn fork(&self) -> SimWorld {
        let clock = SimClock::new();
        clock.advance_to(self.clock.mono_ns());
        let fs = self.fs.clone_image_for(&clock);
        let executor = SimExecutor::new(&clock, self.seed);
        executor.set_side_by_side(true);
        SimWorld { clock, fs, executor, seed: self.seed, operation_ns: self.operation_ns }
    }

    /// The disk.
    pub fn fs(&self) -> &SimFs {
        &self.fs
    }
}

impl World for SimWorld {
    fn now_ns(&self) -> u64 {
        self.clock.mono_ns()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock) as Arc<dyn Clock>
    }

    fn wait_until(&self, at_ns: u64) {
        self.executor.run_for(at_ns.saturating_sub(self.now_ns()));
    }

    fn operation_ns(&self) -> u64 {
        self.operation_ns
    }

    fn spend(&self) {
        self.wait_until(self.now_ns() + self.operation_ns);
    }

    fn open(&self, options: &Options, listener: Option<Arc<dyn EventListener>>) -> siltstone::Result<Db> {
        let env = Env {
            listener,
            fs: Arc::new(self.fs.clone()),
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            rng: Rng::new(self.seed),
            executor: Arc::new(self.executor.clone()),
            ..Env::default()
        };
        Db::open_with(PathBuf::from("/store"), options.clone(), env)
    }
}
