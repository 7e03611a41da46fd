//! Opening simulated stores, and reading them whole.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use siltstone::io::sim::{SimClock, SimExecutor, SimFs};
use siltstone::io::{Clock, Executor, Fs, Rng};
use siltstone::version::KeyspaceId;
use siltstone::{Db, Env, Event, EventListener, Options};

use crate::counters::{Counters, Rare};
use crate::model::{Contents, Model, Pos, Uid, show};

/// The folder of the store under test.
pub const FOLDER: &str = "/db";

/// Something that must never be.
#[derive(Clone, Debug)]
pub struct Violation(pub String);

/// `Err` is a violation.
pub type Check<T = ()> = Result<T, Violation>;

/// A violation.
pub fn broken<T>(what: impl Into<String>) -> Check<T> {
    Err(Violation(what.into()))
}

/// Counts what the engine tells.
pub struct Probe {
    counters: Arc<Counters>,
    compactions: AtomicU64,
    last_stall: Mutex<String>,
    /// Jobs that have begun and not ended, by keyspace, in this life of the store; a failed one is forgotten with all others.
    merging: Mutex<BTreeMap<KeyspaceId, i64>>,
}

impl Probe {
    /// A probe that counts into `counters`.
    pub fn new(counters: &Arc<Counters>) -> Arc<Probe> {
        Arc::new(Probe {
            counters: Arc::clone(counters),
            compactions: AtomicU64::new(0),
            last_stall: Mutex::default(),
            merging: Mutex::default(),
        })
    }

    /// Compactions that have ended.
    pub fn compactions(&self) -> u64 {
        self.compactions.load(Ordering::Relaxed)
    }

    /// Whether a merge of a keyspace is under way.
    pub fn is_merging(&self, keyspace: KeyspaceId) -> bool {
        self.merging.lock().unwrap_or_else(PoisonError::into_inner).get(&keyspace).is_some_and(|jobs| *jobs > 0)
    }

    /// How many jobs of a keyspace are under way.
    pub fn merges(&self, keyspace: KeyspaceId) -> u64 {
        let merging = self.merging.lock().unwrap_or_else(PoisonError::into_inner);
        merging.get(&keyspace).map_or(0, |jobs| u64::try_from(*jobs).unwrap_or(0))
    }

    /// A new life of the store begins: nothing runs.
    pub fn forget_merges(&self) {
        self.merging.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn job(&self, keyspace: KeyspaceId, change: i64) {
        *self.merging.lock().unwrap_or_else(PoisonError::into_inner).entry(keyspace).or_default() += change;
    }

    /// Why a writer waited last.
    pub fn last_stall(&self) -> String {
        self.last_stall.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl EventListener for Probe {
    fn event(&self, event: &Event) {
        match event {
            Event::CompactionStart { keyspace, .. } => self.job(*keyspace, 1),
            Event::CompactionEnd { keyspace, decision, .. } => {
                self.job(*keyspace, -1);
                if decision.ended.as_ref().is_some_and(|ended| ended.spans > 1) {
                    self.counters.reach(Rare::MergeShared);
                }
                self.compactions.fetch_add(1, Ordering::Relaxed);
            }
            Event::Stall { keyspace, reason } => {
                self.counters.reach(Rare::Stall);
                *self.last_stall.lock().unwrap_or_else(PoisonError::into_inner) = format!("{keyspace:?}: {reason}");
            }
            Event::Error { error, .. } => {
                self.forget_merges();
                if error.kind() == siltstone::ErrorKind::NoSpace {
                    self.counters.reach(Rare::NoSpaceInBackground);
                }
            }
            _ => {}
        }
    }
}

/// A simulated machine: files, time, threads.
#[derive(Clone)]
pub struct Machine {
    /// The files.
    pub fs: SimFs,
    /// The time.
    pub clock: Arc<SimClock>,
    /// The threads; each life of the store has its own.
    pub executor: SimExecutor,
}

impl Machine {
    /// A fresh machine with an empty disk.
    pub fn new(seed: u64) -> Machine {
        let clock = SimClock::new();
        let fs = SimFs::new(&clock, seed);
        let executor = SimExecutor::new(&clock, seed);
        Machine { fs, clock, executor }
    }

    /// A machine that finds this disk when it starts.
    pub fn with_disk(fs: SimFs, seed: u64) -> Machine {
        let clock = fs.clock();
        let executor = SimExecutor::new(&clock, seed);
        Machine { fs, clock, executor }
    }

    /// Opens the store in [`FOLDER`].
    ///
    /// # Errors
    /// As [`Db::open_with`].
    pub fn open(&self, options: &Options, seed: u64, probe: Option<&Arc<Probe>>) -> siltstone::Result<Db> {
        self.open_at(Path::new(FOLDER), options, seed, probe, false)
    }

    /// Opens a store.
    ///
    /// # Errors
    /// As [`Db::open_with`].
    pub fn open_at(
        &self,
        folder: &Path,
        options: &Options,
        seed: u64,
        probe: Option<&Arc<Probe>>,
        read_only: bool,
    ) -> siltstone::Result<Db> {
        let env = Env {
            fs: Arc::new(self.fs.clone()) as Arc<dyn Fs>,
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            rng: Rng::new(seed),
            executor: Arc::new(self.executor.clone()) as Arc<dyn Executor>,
            listener: probe.map(|probe| Arc::clone(probe) as Arc<dyn EventListener>),
            read_only,
            ..Env::default()
        };
        Db::open_with(folder, options.clone(), env)
    }
}

/// The keyspaces of a store: names and the model's numbers.
pub type Keyspaces = Vec<(String, Uid)>;

/// What a recovered store may be.
#[derive(Clone, Debug)]
pub struct Expect {
    /// The positions that it may equal.
    pub allowed: RangeInclusive<Pos>,
    /// The keyspaces that it may have: those before the operation that was cut short, or after it.
    pub keyspaces: Vec<Arc<Keyspaces>>,
    /// Where some writes are not logged: up to where each keyspace has flushed, at least.
    pub flushed: Option<BTreeMap<Uid, Pos>>,
}

/// What a store holds, by name of keyspace.
pub type ByName = BTreeMap<String, Contents>;

/// Why a store could not be read whole.
#[derive(Debug)]
pub enum Unreadable {
    /// The store says so.
    Error(siltstone::Error),
    /// The store gave something that cannot be.
    Wrong(String),
}

impl From<Unreadable> for Violation {
    fn from(unreadable: Unreadable) -> Violation {
        Violation(match unreadable {
            Unreadable::Error(error) => format!("full scan: {error:?}"),
            Unreadable::Wrong(what) => what,
        })
    }
}

/// What a store holds, read by full scans.
///
/// # Errors
/// If a read fails, keys are out of order, or a key turns up that was never written.
pub fn read_all(db: &Db, model: &Model) -> Result<ByName, Unreadable> {
    let mut all = BTreeMap::new();
    for name in db.list_keyspaces() {
        let keyspace = db.keyspace(&name).map_err(Unreadable::Error)?;
        let mut contents = Contents::new();
        let mut range = keyspace.range::<&[u8]>(..).map_err(Unreadable::Error)?;
        while range.advance().map_err(Unreadable::Error)? {
            let Some(key) = model.key_number(range.key()) else {
                let key = show(range.key());
                return Err(Unreadable::Wrong(format!("keyspace {name} holds a key that was never written: {key}")));
            };
            if contents.last().is_some_and(|(before, _)| *before >= key) {
                return Err(Unreadable::Wrong(format!("full scan of {name} is out of order at {}", show(range.key()))));
            }
            contents.push((key, range.value().to_vec()));
        }
        all.insert(name, contents);
    }
    Ok(all)
}

/// Which allowed state a store is in.
#[derive(Debug)]
pub struct Recovered {
    /// The position.
    pub at: Pos,
    /// The doubtful writes that are not in it, a bit each.
    pub without: u64,
    /// Where some writes are not logged: between which positions lies what each keyspace has flushed.
    pub flushed: BTreeMap<Uid, RangeInclusive<Pos>>,
    /// What it holds.
    pub contents: ByName,
}

/// Checks a recovered store against what it may be.
///
/// # Errors
/// If it is none of that.
pub fn check_recovered(db: &Db, model: &Model, expect: &Expect) -> Check<Recovered> {
    let contents = read_all(db, model)?;
    check_contents(contents, model, expect)
}

/// Checks what a recovered store holds against what it may hold.
///
/// # Errors
/// If it is none of that.
pub fn check_contents(contents: ByName, model: &Model, expect: &Expect) -> Check<Recovered> {
    let names: Vec<&String> = contents.keys().collect();
    let Some(keyspaces) = expect.keyspaces.iter().find(|set| {
        let mut expected: Vec<&String> = set.iter().map(|(name, _)| name).collect();
        expected.sort();
        expected == names
    }) else {
        return broken(format!("recovered keyspaces {names:?}, expected one of {:?}", expect.keyspaces));
    };
    let by_uid = keyspaces.iter().map(|(name, uid)| (*uid, contents.get(name).cloned().unwrap_or_default())).collect();
    let found = match &expect.flushed {
        None => model.positions(&by_uid, expect.allowed.clone()).map(|(at, without)| (at, without, BTreeMap::new())),
        Some(flushed) => {
            model.mixed_positions(&by_uid, expect.allowed.clone(), flushed).map(|(at, flushed)| (at, 0, flushed))
        }
    };
    let (at, without, flushed) = found.map_err(|mismatch| Violation(mismatch.0))?;
    Ok(Recovered { at, without, flushed, contents })
}
