//! One world: a simulated machine, a store on it, a model beside it, and the rules that must hold after every operation.
//!
//! Everything that happens in a world follows from its configuration and its steps: the same steps give the same calls on the
//! same files in the same order. A world checks, as it goes, that reads, scans and snapshots equal the model (R9, R10), that a
//! reopened or crashed store equals the model at an allowed position (R1), that nothing waits for ever (R13) and that files and
//! handles stay bounded (R17).

use std::collections::BTreeMap;
use std::sync::Arc;

use siltstone::{Cancel, Snapshot};
use siltstone::{Db, ErrorKind, Keyspace, KeyspaceOptions, Options};

use crate::config::Config;
use crate::counters::{Counters, Rare};
use crate::model::{Model, Pos, Uid};
use crate::ops::{Acks, Loss, Op, Step, Value, number};
use crate::store::{Check, Keyspaces, Machine, Probe, Violation, broken};
use crate::traces::Traced;

/// Virtual time within which a store must come to rest once nothing disturbs it.
pub const REST_NS: u64 = 60_000_000_000;
/// More snapshots than this are not held at once.
const MOST_SNAPSHOTS: usize = 6;

/// One write as the model sees it.
pub(crate) type Change = (Uid, u32, Option<Value>);

/// A keyspace that is open.
pub(crate) struct Live {
    pub(crate) uid: Uid,
    pub(crate) name: String,
    pub(crate) handle: Keyspace,
    pub(crate) options: KeyspaceOptions,
    /// The strategy before the last switch.
    pub(crate) came_from: Option<String>,
    /// A switch was cut short: a reopened store may have this strategy instead.
    pub(crate) strategy_in_doubt: Option<String>,
    /// The same of whether it may lose its oldest data.
    pub(crate) may_lose_in_doubt: Option<bool>,
}

/// What stood after an operation: enough to say what a crash at any file operation may leave.
#[derive(Clone, Debug)]
pub struct Mark {
    /// File operations when it began.
    pub start: u64,
    /// File operations when it returned.
    pub end: u64,
    /// The last position after it.
    pub last: Pos,
    /// The last position that a killed process may not lose.
    pub floor_kill: Pos,
    /// The last position that a power loss may not take.
    pub floor_power: Pos,
    /// The keyspaces after it.
    pub keyspaces: Arc<Keyspaces>,
    /// Where some writes are not logged: what each keyspace has flushed.
    pub flushed: Option<BTreeMap<Uid, Pos>>,
}

/// A simulated machine, a store and its model.
pub struct World {
    pub(crate) config: Config,
    /// The machine.
    pub machine: Machine,
    pub(crate) options: Options,
    pub(crate) db: Option<Db>,
    pub(crate) live: Vec<Live>,
    pub(crate) model: Model,
    /// Each with its position and with what was lost before it.
    pub(crate) snapshots: Vec<(Snapshot, Pos, BTreeMap<Uid, Pos>)>,
    /// The last sequence number of each position, ascending; kept where keyspaces may lose data.
    pub(crate) seqs: Vec<(u64, Pos)>,
    /// Compactions that had ended when losses were looked up last.
    pub(crate) losses_seen: u64,
    pub(crate) floor_kill: Pos,
    pub(crate) floor_power: Pos,
    /// What each keyspace has flushed, at least: what is certain to be left of writes that are not logged.
    pub(crate) flushed: BTreeMap<Uid, Pos>,
    pub(crate) next_uid: Uid,
    pub(crate) names_dropped: Vec<String>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) probe: Arc<Probe>,
    /// Errors of the disk are to be expected: they are not violations.
    pub tolerant: bool,
    /// Failed syncs make the page cache forget: even without a crash unsynced writes may be lost.
    pub reverts: bool,
    /// Set when a call failed since the last reopen.
    pub last_error: Option<ErrorKind>,
    /// Marks of all operations, if they are to be kept.
    pub marks: Option<Vec<Mark>>,
    /// Print each operation.
    pub verbose: bool,
    pub(crate) lives: u64,
    pub(crate) trace: u64,
    pub(crate) compactions_seen: u64,
    /// Calls that remove files have failed in this life: what they left is removed at the next open.
    pub messy: bool,
    /// Creating or dropping a keyspace has failed: a reopened store may have it or not.
    pub(crate) keyspaces_in_doubt: bool,
    /// A call of this life has said `Poisoned`.
    pub(crate) poisoned: bool,
    /// The trace that is being recorded.
    pub(crate) tracing: Option<Traced>,
    applied: u64,
}

impl World {
    /// A fresh machine with a new, open store. With `record`, file operations and marks are kept from the first one on.
    ///
    /// # Errors
    /// If the store cannot be created.
    pub fn create(config: Config, counters: &Arc<Counters>, record: bool) -> Check<World> {
        let mut world = World::without_store(config, counters, record);
        world.open()?;
        Ok(world)
    }

    /// A fresh machine on which no store has been created yet.
    pub fn without_store(config: Config, counters: &Arc<Counters>, record: bool) -> World {
        let machine = Machine::new(config.seed);
        machine.fs.record_ops(record);
        let model = Model::new(Arc::new(config.keys.clone()));
        let options = config.options.clone();
        let (counters, probe) = (Arc::clone(counters), Probe::new(counters));
        World {
            config,
            machine,
            options,
            db: None,
            live: Vec::new(),
            model,
            snapshots: Vec::new(),
            seqs: Vec::new(),
            losses_seen: 0,
            floor_kill: 0,
            floor_power: 0,
            flushed: BTreeMap::new(),
            next_uid: 0,
            names_dropped: Vec::new(),
            counters,
            probe,
            tolerant: false,
            reverts: false,
            last_error: None,
            marks: record.then(Vec::new),
            verbose: false,
            lives: 0,
            trace: 0,
            compactions_seen: 0,
            poisoned: false,
            keyspaces_in_doubt: false,
            messy: false,
            tracing: None,
            applied: 0,
        }
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The options with which the store was opened last.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Whether the store is open.
    pub fn is_open(&self) -> bool {
        self.db.is_some()
    }

    /// Where some writes are not logged: what each keyspace has flushed, at least.
    pub(crate) fn flushed_at_least(&self) -> Option<BTreeMap<Uid, Pos>> {
        (self.config.acks != Acks::Logged).then(|| self.flushed.clone())
    }

    /// Keyspaces by name.
    pub fn keyspaces(&self) -> Arc<Keyspaces> {
        Arc::new(self.live.iter().map(|live| (live.name.clone(), live.uid)).collect())
    }

    /// A hash of everything that the machine did.
    pub fn trace_hash(&self) -> u64 {
        self.trace ^ self.machine.fs.trace_hash().rotate_left(1) ^ self.machine.executor.trace_hash().rotate_left(2)
    }

    /// Runs a step.
    ///
    /// # Errors
    /// If a rule is broken.
    pub fn apply(&mut self, step: &Step) -> Check {
        if self.verbose {
            println!("  {:?} then {} lane steps", step.op, step.lane_steps);
        }
        let start = self.machine.fs.op_count();
        self.applied += 1;
        if self.db.is_none() {
            // An open failed under faults: try again with each operation.
            self.recover(Loss::Kill)?;
        }
        if self.db.is_some() {
            crate::pool::doing(format_args!("{} (operation {})", step.op.name(), self.applied));
            self.run(step).map_err(|violation| Violation(format!("{}: {}", step.op.name(), violation.0)))?;
        }
        // What it promised holds from here on: a crash in the lanes' steps comes after it.
        self.mark(start);
        for _ in 0..step.lane_steps {
            if !self.machine.executor.step_random() {
                break;
            }
        }
        self.after_compactions(step)
    }

    pub(crate) fn mark(&mut self, start: u64) {
        let Some(marks) = &self.marks else { return };
        let keyspaces = match marks.last() {
            Some(mark) if same_keyspaces(&mark.keyspaces, &self.live) => Arc::clone(&mark.keyspaces),
            Some(_) | None => self.keyspaces(),
        };
        let mark = Mark {
            start,
            end: self.machine.fs.op_count(),
            last: self.model.last(),
            floor_kill: self.floor_kill,
            floor_power: self.floor_power,
            keyspaces,
            flushed: self.flushed_at_least(),
        };
        if let Some(marks) = &mut self.marks {
            marks.push(mark);
        }
    }

    fn run(&mut self, step: &Step) -> Check {
        match &step.op {
            Op::Put { keyspace, key, value, ack } => {
                let slot = self.slot(*keyspace);
                self.write_one(slot, self.key(*key), Some(*value), *ack, step.seed)
            }
            Op::Delete { keyspace, key, ack } => {
                let slot = self.slot(*keyspace);
                self.write_one(slot, self.key(*key), None, *ack, step.seed)
            }
            Op::Batch { writes, ack } => self.write_batch(writes, *ack),
            Op::Get { keyspace, key, snapshot } => self.check_get(self.slot(*keyspace), self.key(*key), *snapshot),
            Op::MultiGet { keyspace, keys, snapshot } => {
                let keys = keys.iter().map(|key| self.key(*key)).collect();
                self.check_multi_get(self.slot(*keyspace), keys, *snapshot)
            }
            Op::Range { keyspace, from, to, walk, limit, snapshot } => {
                self.check_range(self.slot(*keyspace), *from, *to, *walk, *limit, *snapshot)
            }
            Op::Prefix { keyspace, key, len, reverse, snapshot } => {
                self.check_prefix(self.slot(*keyspace), self.key(*key), *len, *reverse, *snapshot)
            }
            Op::TakeSnapshot => {
                if self.snapshots.len() == MOST_SNAPSHOTS {
                    self.snapshots.remove(0);
                }
                self.note_losses();
                self.snapshots.push((self.db().snapshot(), self.model.last(), self.model.losses().clone()));
                Ok(())
            }
            Op::DropSnapshot(n) => {
                if !self.snapshots.is_empty() {
                    let at = usize::from(*n) % self.snapshots.len();
                    self.snapshots.remove(at);
                }
                Ok(())
            }
            Op::Flush(which) => self.flush(*which),
            Op::Compact { keyspace, from, to, cancelled } => {
                let cancel = Cancel::new();
                if *cancelled {
                    cancel.cancel();
                }
                let bounds = self.bounds(*from, *to);
                let outcome = self.live[self.slot(*keyspace)].handle.compact(bounds, &cancel);
                match outcome {
                    Err(e) if e.kind() == ErrorKind::Cancelled && *cancelled => {
                        self.counters.reach(Rare::CompactionCancelled);
                        Ok(())
                    }
                    other => self.allow(other).map(|_| ()),
                }
            }
            Op::Sync => {
                let outcome = self.db().sync();
                if self.allow(outcome)?.is_some() {
                    self.floor_power = self.model.last();
                    self.floor_kill = self.model.last();
                }
                Ok(())
            }
            Op::Checkpoint => self.checkpoint(step.seed),
            Op::Ingest { keyspace, first, step: by, count, value } => {
                self.ingest(*keyspace, *first, *by, *count, *value)
            }
            Op::CreateKeyspace { name, seed } => self.create_keyspace(*name, *seed),
            Op::DropKeyspace { keyspace } => self.drop_keyspace(*keyspace),
            Op::Reopen { seed } => self.reopen(*seed),
            Op::ReopenReadOnly => self.reopen_read_only(),
            Op::Crash { loss, seed } => self.crash(*loss, *seed),
            Op::ClockJump { wall_ms, mono_ms } => {
                self.machine.clock.shift_wall(wall_ms * 1_000_000);
                self.machine.clock.advance(u64::from(*mono_ms) * 1_000_000);
                Ok(())
            }
            Op::CheckAll => self.check_all(step.seed),
            Op::WaitIdle => self.rest(),
            Op::SetScheduler { seed } => self.set_scheduler(*seed),
            Op::Trace => self.trace(step.seed),
            Op::SetStrategy { keyspace, strategy, back } => {
                let slot = self.slot(*keyspace);
                if step.seed.is_multiple_of(7) {
                    self.set_may_lose(slot, strategy.is_multiple_of(2))?;
                }
                self.set_strategy(slot, *strategy, *back, step.seed)
            }
            Op::Verify => {
                let outcome = self.db().verify();
                match self.allow(outcome)? {
                    Some(report) if !report.damage.is_empty() => {
                        broken(format!("verify finds damage: {:?}", report.damage))
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    pub(crate) fn db(&self) -> &Db {
        self.db.as_ref().expect("operations run on an open store")
    }

    /// Which live keyspace a number means.
    pub(crate) fn slot(&self, n: u8) -> usize {
        usize::from(n) % self.live.len()
    }

    pub(crate) fn key(&self, n: u32) -> u32 {
        n % number(self.config.keys.len() as u64)
    }

    pub(crate) fn key_bytes(&self, n: u32) -> &[u8] {
        &self.config.keys[usize::try_from(self.key(n)).expect("a small table")]
    }

    /// An error is a violation unless faults are on and it is one that a bad disk may cause.
    pub(crate) fn allow<T>(&mut self, outcome: siltstone::Result<T>) -> Check<Option<T>> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                let kind = error.kind();
                self.last_error = Some(kind);
                match kind {
                    ErrorKind::NoSpace => self.counters.reach(Rare::NoSpaceInWrite),
                    ErrorKind::Poisoned => self.counters.reach(Rare::Poisoned),
                    _ => {}
                }
                let expected = matches!(kind, ErrorKind::Io | ErrorKind::NoSpace | ErrorKind::Poisoned);
                if self.tolerant && expected && !error.to_string().contains("deadlock") {
                    Ok(None)
                } else {
                    let mut text = format!("unexpected error {error:?}");
                    if let Some(db) = self.db.as_ref().filter(|_| text.contains("deadlock")) {
                        let stats = db.stats();
                        text += &format!("; last stall {}; keyspaces {:?}", self.probe.last_stall(), stats.keyspaces);
                    }
                    broken(text)
                }
            }
        }
    }

    fn after_compactions(&mut self, step: &Step) -> Check {
        let now = self.probe.compactions();
        if now == self.compactions_seen || self.db.is_none() {
            return Ok(());
        }
        self.compactions_seen = now;
        // R9: what a compaction did must be invisible. A share of them is followed by a full scan, each by whatever is read next.
        if step.seed.is_multiple_of(48) {
            self.check_all(step.seed).map_err(|violation| Violation(format!("after a compaction: {}", violation.0)))?;
        }
        Ok(())
    }
}

fn same_keyspaces(a: &Keyspaces, live: &[Live]) -> bool {
    a.len() == live.len() && a.iter().zip(live).all(|((_, uid), live)| *uid == live.uid)
}
