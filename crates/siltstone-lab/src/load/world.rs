//! Where a load runs.

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

    /// Lets time pass until `at_ns`; the store's background work goes on meanwhile.
    fn wait_until(&self, at_ns: u64);

    /// What an operation costs its caller, beyond what it waits for. Passes by itself where operations are real.
    fn spend(&self) {}

    /// Opens the world's store, a new and empty one at first.
    ///
    /// # Errors
    /// As [`Db::open`].
    fn open(&self, options: &Options, listener: Option<Arc<dyn EventListener>>) -> siltstone::Result<Db>;
}

/// Real files in a temporary folder, and real time.
pub struct DiskWorld {
    clock: RealClock,
    folder: tempfile::TempDir,
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
        };
        Ok(DiskWorld { clock: RealClock, folder: folder? })
    }
}

/// A sleep may take this much longer than asked for; the rest is waited for awake.
const SLEEP_ERROR_NS: u64 = 150_000;

impl World for DiskWorld {
    fn now_ns(&self) -> u64 {
        self.clock.mono_ns()
    }

    fn wait_until(&self, at_ns: u64) {
        loop {
            let left_ns = at_ns.saturating_sub(self.now_ns());
            if left_ns == 0 {
                return;
            }
            if left_ns > SLEEP_ERROR_NS {
                std::thread::sleep(Duration::from_nanos(left_ns - SLEEP_ERROR_NS));
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn open(&self, options: &Options, listener: Option<Arc<dyn EventListener>>) -> siltstone::Result<Db> {
        Db::open_with(self.folder.path().join("store"), options.clone(), Env { listener, ..Env::default() })
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

    fn wait_until(&self, at_ns: u64) {
        self.executor.run_for(at_ns.saturating_sub(self.now_ns()));
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
