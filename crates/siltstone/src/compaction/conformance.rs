//! The suite that any policy can be run through.
//!
//! Trees are grown by metadata only: a simulated flush adds a run to L0, a simulated merge replaces its inputs by files that cover the
//! same keys. On every step, and on random legal trees that the policy has not made itself:
//!
//! - **legal**: what [`plan`](super::planner::plan) returns obeys every law, with other jobs running as well;
//! - **pure**: equal views give equal plans;
//! - **live**: when flushes end, compaction ends too, and while they go on, jobs never wait for each other for ever;
//! - **bounded**: the settled tree holds no more runs than writers would be stopped at (luo19 section 4.2).

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::{Action, CompactionPolicy, LsmView, ManualRequest, ManualStep, Place, Plan, Sizes, plan, plan_manual};
use crate::io::Rng;
use crate::key::SeqNo;
use crate::num::to_u64;
use crate::version::{FileMeta, LevelId, RunOrder, SstId, Version, VersionEdit};

/// Keys are numbers below this, as two bytes.
const KEYS: u64 = 1000;
const SIZES: Sizes = Sizes { memtable_bytes: 1000, file_bytes: 500, size_ratio: 0, level1_bytes: 0 };
/// A tree that needs more jobs than this to settle does not settle.
const MAX_JOBS: u32 = 20_000;

/// What a run of the suite did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Merges that were planned and carried out.
    pub merges: u64,
    /// Moves.
    pub moves: u64,
    /// Drops.
    pub drops: u64,
    /// Plans that were made while another job ran.
    pub concurrent: u64,
    /// Bytes of all flushes.
    pub flushed_bytes: u64,
    /// Bytes that merges wrote.
    pub merged_bytes: u64,
}

/// Runs `rounds` random histories from `seed`.
///
/// # Errors
/// What the policy did wrong, and how to see it again.
pub fn run(policy: &dyn CompactionPolicy, seed: u64, rounds: u64) -> Result<Report, String> {
    let mut report = Report::default();
    for round in 0..rounds {
        let rng = Rng::new(seed).split(&format!("round {round}"));
        let mut world = World::new(policy, rng);
        let outcome = world.live().and_then(|()| world.accept_anything());
        let tree = crate::version::text::print(&world.version);
        outcome.map_err(|what| format!("policy {}, seed {seed}, round {round}: {what}\n{tree}", policy.name()))?;
        report = report.plus(&world.report);
    }
    Ok(report)
}

impl Report {
    fn plus(&self, other: &Report) -> Report {
        Report {
            merges: self.merges + other.merges,
            moves: self.moves + other.moves,
            drops: self.drops + other.drops,
            concurrent: self.concurrent + other.concurrent,
            flushed_bytes: self.flushed_bytes + other.flushed_bytes,
            merged_bytes: self.merged_bytes + other.merged_bytes,
        }
    }
}

/// A tree with its running jobs. The simulated time is a counter.
struct World<'p> {
    policy: &'p dyn CompactionPolicy,
    rng: Rng,
    version: Version,
    running: Vec<Arc<Plan>>,
    cursors: Vec<Bytes>,
    read_work: BTreeMap<Place, u64>,
    next_id: u64,
    next_order: u64,
    seq: u64,
    now_ms: u64,
    flushed_ms: u64,
    oldest_snapshot: Option<SeqNo>,
    sizes: Sizes,
    report: Report,
}

impl World<'_> {
    fn new(policy: &dyn CompactionPolicy, mut rng: Rng) -> World<'_> {
        // The policy's own ratio, or one so small that the tree gets deep.
        let size_ratio = if rng.one_in(2) { 0 } else { u32::try_from(rng.between(2, 4)).unwrap_or(2) };
        World {
            policy,
            rng,
            version: Version::empty(),
            running: Vec::new(),
            cursors: Vec::new(),
            read_work: BTreeMap::new(),
            next_id: 1,
            next_order: 1,
            seq: 1,
            now_ms: 1,
            flushed_ms: 1,
            oldest_snapshot: None,
            sizes: Sizes { size_ratio, ..SIZES },
            report: Report::default(),
        }
    }

    fn view(&self) -> LsmView<'_> {
        LsmView::new(&self.version, self.sizes)
            .with_running(&self.running)
            .with_cursors(&self.cursors)
            .with_read_work(&self.read_work)
            .with_snapshots(self.oldest_snapshot, self.oldest_snapshot)
            .with_losses(self.policy.loses_oldest())
            .at(self.now_ms)
            .with_last_write(self.flushed_ms)
    }

    /// Flushes and merges in turn, then merges alone until nothing is due; then everything by hand.
    fn live(&mut self) -> Result<(), String> {
        let flushes = self.rng.between(1, 60);
        let sequential = self.rng.one_in(3);
        for n in 0..flushes {
            self.flush(n, sequential)?;
            self.read();
            self.oldest_snapshot = self.rng.one_in(4).then(|| SeqNo(self.rng.below(self.seq)));
            for _ in 0..self.rng.below(4) {
                self.step()?;
            }
            // Writers stop here, so merges must be able to go on.
            while self.view().runs() >= self.stop_runs() {
                self.step()?.ok_or_else(|| format!("writers would wait for ever at {} runs", self.view().runs()))?;
            }
        }
        self.oldest_snapshot = None;
        self.settle()?;
        let runs = self.view().runs();
        if runs >= self.stop_runs() {
            return Err(format!("the settled tree has {runs} runs, writers stop at {}", self.stop_runs()));
        }
        self.compact_by_hand()?;
        self.settle()
    }

    fn stop_runs(&self) -> u32 {
        crate::schedule::constraint::run_limits(self.policy, &self.view(), 0).stop_runs
    }

    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..MAX_JOBS {
            if self.step()?.is_none() {
                return Ok(());
            }
        }
        Err(format!("not settled after {MAX_JOBS} jobs"))
    }

    /// Starts a job or ends one; none if there is nothing to start and nothing runs.
    fn step(&mut self) -> Result<Option<()>, String> {
        self.now_ms += 1000;
        if self.running.len() < 3
            && let Some(plan) = self.ask()?
        {
            self.start(plan)?;
            return Ok(Some(()));
        }
        if self.running.is_empty() {
            return Ok(None);
        }
        let at = usize::try_from(self.rng.below(to_u64(self.running.len()))).unwrap_or(0);
        let plan = self.running.swap_remove(at);
        self.finish(&plan)?;
        Ok(Some(()))
    }

    fn ask(&self) -> Result<Option<Plan>, String> {
        let view = self.view();
        let first = plan(self.policy, &view).map_err(|error| error.to_string())?;
        let second = plan(self.policy, &view.clone()).map_err(|error| error.to_string())?;
        if first != second {
            return Err(format!("equal views gave {first:?} and {second:?}"));
        }
        if let Some(plan) = &first {
            plan.check(&view).map_err(|broken| format!("{plan}: {broken}"))?;
        }
        Ok(first)
    }

    fn start(&mut self, plan: Plan) -> Result<(), String> {
        self.report.concurrent += u64::from(!self.running.is_empty());
        if let Some((level, key)) = &plan.cursor {
            if self.cursors.len() <= level.index() {
                self.cursors.resize(level.index() + 1, Bytes::new());
            }
            self.cursors[level.index()] = key.clone();
        }
        match plan.action {
            Action::Merge => {
                self.running.push(Arc::new(plan));
                Ok(())
            }
            Action::Move | Action::Drop => self.finish(&plan),
        }
    }

    fn finish(&mut self, plan: &Plan) -> Result<(), String> {
        let added = match plan.action {
            Action::Move => plan.moved(self.now_ms),
            Action::Drop => Vec::new(),
            Action::Merge => {
                self.merge(plan).into_iter().map(|file| (plan.output.level, plan.output.run, file)).collect()
            }
        };
        match plan.action {
            Action::Merge => self.report.merges += 1,
            Action::Move => self.report.moves += 1,
            Action::Drop => self.report.drops += 1,
        }
        let edit = VersionEdit { removed: plan.removed(), added };
        self.version = self.version.apply(&edit).map_err(|error| format!("{plan}: {error}"))?;
        self.version.check().map_err(|law| format!("{plan}: {law}"))
    }

    fn flush(&mut self, n: u64, sequential: bool) -> Result<(), String> {
        let (first, last) = match sequential {
            true => (n * 15 % KEYS, (n * 15 % KEYS + 14).min(KEYS - 1)),
            false => self.range(),
        };
        let bytes = self.rng.between(200, 1000);
        self.flushed_ms = self.now_ms;
        self.report.flushed_bytes += bytes;
        let tombstones = if self.rng.one_in(5) { bytes / 10 } else { self.rng.below(3) };
        let file = self.file(first, last, bytes, bytes / 10, tombstones);
        let order = RunOrder(self.next_order);
        self.next_order += 1;
        let edit = VersionEdit { removed: Vec::new(), added: vec![(LevelId(0), order, file)] };
        self.version = self.version.apply(&edit).map_err(|error| error.to_string())?;
        Ok(())
    }

    /// Sometimes what is there is read.
    fn read(&mut self) {
        let work = if self.rng.one_in(3) { self.rng.below(4000) } else { 0 };
        let places = self.version.runs().map(|(level, run)| Place { level, run: run.order });
        let before = std::mem::take(&mut self.read_work);
        self.read_work = places.map(|place| (place, before.get(&place).copied().unwrap_or(0) + work)).collect();
    }

    fn range(&mut self) -> (u64, u64) {
        let (a, b) = (self.rng.below(KEYS), self.rng.below(KEYS));
        let wide = self.rng.one_in(2);
        if wide { (a.min(b), a.max(b)) } else { (a, (a + self.rng.below(20)).min(KEYS - 1)) }
    }

    fn file(&mut self, first: u64, last: u64, bytes: u64, entries: u64, tombstones: u64) -> Arc<FileMeta> {
        let entries = entries.max(1);
        let tombstones = tombstones.min(entries);
        self.next_id += 1;
        self.seq += entries;
        Arc::new(FileMeta {
            id: SstId(self.next_id),
            bytes: bytes.max(1),
            entries,
            tombstones,
            range_tombstones: 0,
            raw_bytes: bytes,
            smallest: key(first),
            largest: key(last),
            min_seq: SeqNo(self.seq - entries),
            max_seq: SeqNo(self.seq),
            created_ms: self.now_ms,
            oldest_tombstone_ms: (tombstones > 0).then_some(self.now_ms),
            entered_level_ms: self.now_ms,
            whole: None,
        })
    }

    /// Files over the inputs' ranges: nine tenths of the inputs' bytes, and of the tombstones none if nothing older is below.
    fn merge(&mut self, plan: &Plan) -> Vec<Arc<FileMeta>> {
        let bottom = plan.older_files(&self.version).is_empty();
        let bytes = (plan.input_bytes() * 9 / 10).max(1);
        let entries: u64 = plan.files().map(|file| file.entries).sum();
        let tombstones: u64 = plan.files().map(|file| file.tombstones).sum();
        let max_seq = plan.files().map(|file| file.max_seq).max().unwrap_or_default();
        let (first, last) = plan.hull();
        let (first, last) = (number(first), number(last));
        let keeps_tombstones = !bottom || self.oldest_snapshot.is_some_and(|oldest| max_seq > oldest);
        let live = if keeps_tombstones { tombstones } else { 0 };
        if entries == tombstones && live == 0 {
            return Vec::new();
        }
        let parts = bytes.div_ceil(plan.cut.file_bytes.max(1)).clamp(1, last - first + 1);
        self.report.merged_bytes += bytes;
        let mut begins: Vec<u64> = (0..parts).map(|n| first + (last - first + 1) * n / parts).collect();
        begins.extend(plan.borders.iter().map(|key| number(key)).filter(|n| (first..=last).contains(n)));
        let is_guard = |n: &u64| plan.cut.guards.is_some_and(|guards| guards.is_guard(&key(*n)));
        begins.extend((first..=last).filter(is_guard));
        begins.sort_unstable();
        begins.dedup();
        let parts = to_u64(begins.len());
        let files = (0..begins.len()).map(|n| {
            let to = begins.get(n + 1).map_or(last, |next| next - 1);
            let file = self.file(begins[n], to, bytes / parts, entries / parts, live / parts);
            let oldest = plan.files().filter_map(|file| file.oldest_tombstone_ms).min();
            let tombstoned = file.oldest_tombstone_ms.is_some();
            Arc::new(FileMeta {
                max_seq,
                min_seq: SeqNo(0),
                oldest_tombstone_ms: oldest.filter(|_| tombstoned),
                entered_level_ms: plan.stayed_since_ms().unwrap_or(self.now_ms),
                ..(*file).clone()
            })
        });
        files.collect()
    }

    /// A random range, then everything: it must end, with what was asked in one run of the last level.
    fn compact_by_hand(&mut self) -> Result<(), String> {
        let (first, last) = self.range();
        for request in [ManualRequest { first: Some(key(first)), last: Some(key(last)) }, ManualRequest::default()] {
            for job in 0.. {
                if job > MAX_JOBS {
                    return Err("a manual compaction does not end".to_owned());
                }
                match plan_manual(self.policy, &self.view(), &request).map_err(|error| error.to_string())? {
                    ManualStep::Done => break,
                    ManualStep::Run(plan) => self.finish(&plan)?,
                    ManualStep::Wait => {
                        return Err("a manual compaction waits although nothing runs".to_owned());
                    }
                }
            }
        }
        match self.version.run_count() {
            0 | 1 => Ok(()),
            runs => Err(format!("{runs} runs are left after everything was compacted by hand")),
        }
    }

    /// Trees of any shape: legal, but not of the policy's making.
    fn accept_anything(&mut self) -> Result<(), String> {
        let mut edit = VersionEdit::default();
        let mut order = 40;
        for level in 0..self.rng.between(1, 5) {
            for _ in 0..self.rng.below(5) {
                order -= 1;
                let mut at = self.rng.below(200);
                while at < KEYS && edit.added.len() < 60 {
                    let last = (at + self.rng.below(300)).min(KEYS - 1);
                    let bytes = self.rng.between(1, 3000);
                    let tombstones = self.rng.below(bytes / 10 + 1);
                    let file = self.file(at, last, bytes, bytes / 10, tombstones);
                    edit.added.push((LevelId(u8::try_from(level).unwrap_or(0)), RunOrder(order), file));
                    at = last + 1 + self.rng.below(200);
                }
            }
        }
        self.version = Version::empty().apply(&edit).map_err(|error| error.to_string())?;
        self.next_order = 41;
        self.cursors.clear();
        self.read_work.clear();
        self.settle()
    }
}

fn key(n: u64) -> Bytes {
    let [.., high, low] = n.to_be_bytes();
    Bytes::copy_from_slice(&[high, low])
}

fn number(key: &[u8]) -> u64 {
    key.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests;
