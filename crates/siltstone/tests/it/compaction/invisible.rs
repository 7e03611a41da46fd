//! Compaction is invisible: files with contents, merged by the real survivor and the real output cut, planned by every preset, with
//! several jobs at once and snapshots held. After every step each reader sees what it saw before.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use siltstone::compaction::{
    Action, CompactionPolicy, CutRule, DecisionRecord, LsmView, ManualRequest, ManualStep, Place, Plan, PlanInput,
    Reason, Release, Reuse, Sizes, Strategy, plan, plan_manual, strategies,
};
use siltstone::io::Rng;
use siltstone::jobs::cut::OutputCut;
use siltstone::jobs::survive::{OlderRuns, Survivor};
use siltstone::key::{Kind, SeqNo, Trailer};
use siltstone::version::{FileMeta, LevelId, RunOrder, SstId, Version, VersionEdit};

/// Key, sequence number, whether it is a tombstone; in internal order within a file.
type Record = (u8, u64, bool);

/// The newest version under each key, unless it is a tombstone.
type Seen = [Option<u64>; 60];

struct Job {
    plan: Arc<Plan>,
    snapshots: Vec<SeqNo>,
    older: OlderRuns,
    grandparents: Vec<Arc<FileMeta>>,
}

struct Store {
    strategy: Strategy,
    rng: Rng,
    version: Version,
    contents: BTreeMap<SstId, Vec<Record>>,
    jobs: Vec<Job>,
    cursors: Vec<Bytes>,
    /// What each snapshot sees under each key.
    snapshots: Vec<(u64, Seen)>,
    /// What a reader sees now.
    now: Seen,
    seq: u64,
    next_id: u64,
    next_order: u64,
    sizes: Sizes,
    dropped: u64,
    /// The largest sequence number that was lost, with strategies that drop the oldest data.
    lost: u64,
    lost_files: u64,
}

const RECORD_BYTES: u64 = 10;

impl Store {
    fn new(strategy: Strategy, mut rng: Rng) -> Store {
        let sizes = Sizes { memtable_bytes: 100, file_bytes: 10 * rng.between(2, 10), size_ratio: 2, level1_bytes: 0 };
        Store {
            strategy,
            rng,
            version: Version::empty(),
            contents: BTreeMap::new(),
            jobs: Vec::new(),
            cursors: vec![Bytes::new(); 40],
            snapshots: Vec::new(),
            now: [None; 60],
            seq: 0,
            next_id: 1,
            next_order: 1,
            sizes,
            dropped: 0,
            lost: 0,
            lost_files: 0,
        }
    }

    fn flush(&mut self) {
        let keys = [3, 8, 60][usize::try_from(self.rng.below(3)).unwrap()];
        let from = self.rng.below(60);
        let mut records = Vec::new();
        for _ in 0..self.rng.between(1, 10) {
            self.seq += 1;
            let key = u8::try_from((from + self.rng.below(keys)) % 60).unwrap();
            records.push((key, self.seq, self.rng.one_in(3)));
        }
        for (key, seq, dead) in &records {
            self.now[usize::from(*key)] = (!dead).then_some(*seq);
        }
        records.sort_by_key(|record| (record.0, std::cmp::Reverse(record.1)));
        let file = self.file(records);
        let order = RunOrder(self.next_order);
        self.next_order += 1;
        self.version =
            self.version.apply(&VersionEdit { removed: vec![], added: vec![(LevelId(0), order, file)] }).unwrap();
    }

    fn file(&mut self, records: Vec<Record>) -> Arc<FileMeta> {
        let id = SstId(self.next_id);
        self.next_id += 1;
        let entries = u64::try_from(records.len()).unwrap();
        let tombstones = u64::try_from(records.iter().filter(|record| record.2).count()).unwrap();
        let key = |record: Option<&Record>| Bytes::copy_from_slice(&[record.unwrap().0]);
        let file = FileMeta {
            id,
            bytes: entries * RECORD_BYTES,
            entries,
            tombstones,
            range_tombstones: 0,
            raw_bytes: entries * RECORD_BYTES,
            smallest: key(records.first()),
            largest: key(records.last()),
            min_seq: SeqNo(records.iter().map(|record| record.1).min().unwrap()),
            max_seq: SeqNo(records.iter().map(|record| record.1).max().unwrap()),
            created_ms: 1,
            oldest_tombstone_ms: (tombstones > 0).then_some(1),
            entered_level_ms: 1,
            whole: None,
        };
        self.contents.insert(id, records);
        Arc::new(file)
    }

    /// What a reader at `seq` finds: the first visible version from the newest place down.
    fn read(&self, key: u8, seq: u64) -> Option<u64> {
        for (_, run) in self.version.runs() {
            for file in run.overlapping(&[key], &[key]) {
                let records = &self.contents[&file.id];
                let from = records.partition_point(|record| record.0 < key);
                let versions = records[from..].iter().take_while(|record| record.0 == key);
                if let Some((_, seq, dead)) = versions.into_iter().find(|record| record.1 <= seq) {
                    return (!dead).then_some(*seq);
                }
            }
        }
        None
    }

    fn check(&self, after: &str) {
        self.version.check().unwrap();
        let now = (u64::MAX, self.now);
        for (at, seen) in self.snapshots.iter().chain([&now]) {
            for (key, expected) in (0..).zip(seen) {
                let tree = || siltstone::version::text::print(&self.version);
                let found = self.read(key, *at);
                // The newest version or nothing; and nothing only if what is missing is no younger than what was lost. What a snapshot sees
                // is there as long as the snapshot is: it was written down when the snapshot was taken.
                if *at == u64::MAX && found.is_none() && expected.is_some_and(|seq| seq <= self.lost) {
                    continue;
                }
                assert_eq!(
                    found,
                    *expected,
                    "key {key} at {at} under {}, after {after}\n{}",
                    self.strategy.name,
                    tree()
                );
            }
        }
    }

    fn running(&self) -> Vec<Arc<Plan>> {
        self.jobs.iter().map(|job| Arc::clone(&job.plan)).collect()
    }

    fn next_plan(&mut self) -> Option<Plan> {
        let running = self.running();
        let view = LsmView::new(&self.version, self.sizes).with_running(&running).with_cursors(&self.cursors);
        let seqs = || self.snapshots.iter().map(|(at, _)| SeqNo(*at));
        let view = view.with_snapshots(seqs().min(), seqs().max()).with_losses(self.strategy.loses_oldest());
        if self.rng.one_in(8) {
            let (a, b) = (self.rng.below(60), self.rng.below(60));
            let key = |n: u64| Some(Bytes::copy_from_slice(&[u8::try_from(n).unwrap()]));
            let request = ManualRequest { first: key(a.min(b)), last: key(a.max(b)) };
            if let ManualStep::Run(plan) = plan_manual(&self.strategy, &view, &request).unwrap() {
                return Some(*plan);
            }
        }
        plan(&self.strategy, &view).unwrap()
    }

    /// What the strategy wants now.
    fn planned(&self) -> Option<Plan> {
        let view = LsmView::new(&self.version, self.sizes).with_losses(self.strategy.loses_oldest());
        plan(&self.strategy, &view).unwrap()
    }

    /// Some files, to some place; none if a law forbids it.
    fn random_plan(&mut self) -> Option<Plan> {
        let (a, b) = (self.rng.below(60), self.rng.below(60));
        let window = if self.rng.one_in(2) { (a.min(b), a.max(b)) } else { (a, a + 4) };
        let key = |n: u64| [u8::try_from(n).unwrap()];
        let (first, last) = (key(window.0), key(window.1));
        let runs: Vec<_> = self.version.runs().map(|(level, run)| (level, run.clone())).collect();
        let from = self.rng.below(u64::try_from(runs.len().max(1)).unwrap());
        let len = self.rng.between(1, 4);
        let careless = self.rng.one_in(3);
        let mut inputs = Vec::new();
        for (level, run) in runs.iter().skip(usize::try_from(from).unwrap()).take(usize::try_from(len).unwrap()) {
            let mut files = run.overlapping(&first, &last).to_vec();
            files.retain(|_| !careless || !self.rng.one_in(4));
            if !files.is_empty() {
                inputs.push(PlanInput { level: *level, run: run.order, files });
            }
        }
        let level = LevelId(u8::try_from(self.rng.below(5)).unwrap());
        let there: Vec<RunOrder> = runs.iter().filter(|(other, _)| *other == level).map(|(_, run)| run.order).collect();
        let pick = usize::try_from(self.rng.below(u64::try_from(there.len() + 1).unwrap())).unwrap();
        let run = there.get(pick).copied().unwrap_or(RunOrder(self.rng.between(1, self.next_order)));
        let plan = Plan {
            inputs,
            output: Place { level, run },
            action: [Action::Merge, Action::Merge, Action::Move, Action::Drop]
                [usize::try_from(self.rng.below(4)).unwrap()],
            cut: CutRule { file_bytes: self.sizes.file_bytes, align: true, grandparent_bytes: 100, guards: None },
            reuse: Reuse::Never,
            borders: Vec::new(),
            cursor: None,
            release: Release::AtEnd,
            record: DecisionRecord::new(Reason::Policy("dice".to_owned()), "none", 0.0, 0.0),
        };
        let running = self.running();
        let view = LsmView::new(&self.version, self.sizes).with_running(&running);
        let view = view.with_oldest_snapshot(self.snapshots.iter().map(|(at, _)| SeqNo(*at)).min());
        plan.check(&view).is_ok().then_some(plan)
    }

    fn start(&mut self, plan: Plan) {
        if let Some((level, key)) = &plan.cursor {
            self.cursors[level.index()] = key.clone();
        }
        let text = plan.to_string();
        let edit = VersionEdit { removed: plan.removed(), added: Vec::new() };
        match plan.action {
            Action::Move => self.install(VersionEdit { added: plan.moved(1), ..edit }, &text),
            Action::Drop => {
                let view = LsmView::new(&self.version, self.sizes).with_losses(true);
                if plan.loses(&view) {
                    self.lost = self.lost.max(plan.files().map(|file| file.max_seq.0).max().unwrap());
                    self.lost_files += u64::try_from(plan.files().count()).unwrap();
                }
                self.install(edit, &text);
            }
            Action::Merge => self.jobs.push(Job {
                snapshots: self.snapshots.iter().map(|(at, _)| SeqNo(*at)).collect(),
                older: OlderRuns::below(&plan, &self.version),
                grandparents: plan.grandparents(&self.version),
                plan: Arc::new(plan),
            }),
        }
    }

    fn install(&mut self, edit: VersionEdit, after: &str) {
        self.version = self.version.apply(&edit).unwrap();
        self.check(after);
    }

    fn finish(&mut self, job: Job) {
        let plan = job.plan;
        let inputs = plan.files().flat_map(|file| self.contents[&file.id].iter().copied());
        let mut records: Vec<Record> = inputs.collect();
        records.sort_by_key(|record| (record.0, std::cmp::Reverse(record.1)));
        let mut survivor = Survivor::new(job.snapshots, job.older);
        let mut cut = OutputCut::new(plan.cut, job.grandparents);
        let mut files: Vec<Vec<Record>> = Vec::new();
        for record in records {
            let kind = if record.2 { Kind::Delete } else { Kind::Put };
            let fate = survivor.judge(&[record.0], Trailer::new(SeqNo(record.1), kind));
            if !fate.keep {
                continue;
            }
            let bytes = files.last().map_or(0, |file| RECORD_BYTES * u64::try_from(file.len()).unwrap());
            let before = files.last().and_then(|file| file.last()).map(|record| record.0);
            let is_crossed =
                |border: &Bytes| before.is_some_and(|before| [before][..] < border[..]) && border[..] <= [record.0][..];
            let border = plan.borders.iter().any(is_crossed);
            if cut.before(&[record.0], fate.first_of_key, bytes) || border || files.is_empty() {
                files.push(Vec::new());
            }
            files.last_mut().unwrap().push(record);
        }
        self.dropped += survivor.counts().dropped_versions + survivor.counts().dropped_tombstones;
        let files: Vec<_> = files.into_iter().map(|records| self.file(records)).collect();
        let added = files.into_iter().map(|file| (plan.output.level, plan.output.run, file)).collect();
        self.install(VersionEdit { removed: plan.removed(), added }, &plan.to_string());
    }

    fn step(&mut self) {
        self.step_with(Store::next_plan);
    }

    fn step_with(&mut self, next_plan: impl FnOnce(&mut Store) -> Option<Plan>) {
        match self.rng.below(10) {
            0..3 => self.flush(),
            3 => {
                let mut seen = self.now;
                for (key, seen) in (0..).zip(&mut seen) {
                    *seen = self.read(key, self.seq);
                }
                self.snapshots.push((self.seq, seen));
            }
            4 if !self.snapshots.is_empty() => {
                let at = self.rng.below(u64::try_from(self.snapshots.len()).unwrap());
                self.snapshots.swap_remove(usize::try_from(at).unwrap());
            }
            5..8 if self.jobs.len() < 4 => {
                if let Some(plan) = next_plan(self) {
                    self.start(plan);
                }
            }
            _ if !self.jobs.is_empty() => {
                let at = self.rng.below(u64::try_from(self.jobs.len()).unwrap());
                let job = self.jobs.swap_remove(usize::try_from(at).unwrap());
                self.finish(job);
            }
            _ => {}
        }
    }
}

#[test]
fn no_reader_notices_any_preset() {
    for preset in strategies().iter().filter(|preset| !preset.loses_oldest()) {
        let mut dropped = 0;
        for seed in 0..30 {
            let rng = Rng::new(seed).split(preset.name);
            let mut store = Store::new(Strategy::named(preset.name).unwrap(), rng);
            for _ in 0..250 {
                store.step();
            }
            dropped += store.dropped;
        }
        assert!(dropped > 1000, "{}: merges dropped only {dropped} entries", preset.name);
    }
}

/// A strategy that drops the oldest data, alone and over trees that another one has built: a read gives the newest version or, if that was
/// dropped, nothing; no older one comes back; snapshots stay as they were; and what is left is less than the limit and a flush as soon as no
/// snapshot is in the way.
#[test]
fn what_is_lost_is_the_oldest_and_never_comes_back() {
    let fifo = siltstone::compaction::strategies().iter().find(|preset| preset.name == "rocksdb-fifo").unwrap();
    let fifo = Strategy::parse(&fifo.text.replace("memtables = 16.0", "memtables = 4.0")).unwrap();
    let (mut lost, mut after_others) = (0, 0);
    for seed in 0..200 {
        let rng = Rng::new(seed).split("fifo");
        let others = ["leveling", "tiering", "rocksdb-universal", "rocksdb-leveled"];
        let other = others[usize::try_from(seed % 4).unwrap()];
        let first = if seed % 3 == 0 { fifo.clone() } else { Strategy::named(other).unwrap() };
        let mut store = Store::new(first, rng);
        for step in 0..300 {
            if step == 100 {
                store.strategy = fifo.clone();
            }
            store.step();
            let idle = store.jobs.is_empty() && store.snapshots.is_empty();
            if step > 100 && idle {
                while let Some(plan) = store.planned() {
                    store.start(plan);
                }
                assert!(store.jobs.is_empty(), "nothing is merged");
                assert!(store.version.bytes() < 4 * store.sizes.memtable_bytes);
            }
        }
        lost += store.lost_files;
        after_others += if seed % 3 == 0 { 0 } else { store.lost_files };
    }
    assert!(lost > 3000 && after_others > 2000, "{lost} {after_others}");
}

/// The laws suffice: whatever passes [`Plan::check`], however senseless, is invisible, several jobs at once included.
#[test]
fn no_reader_notices_any_legal_plan() {
    let (mut legal, mut together, mut upwards) = (0, 0, 0);
    for seed in 0..300 {
        let rng = Rng::new(seed).split("any legal plan");
        let mut store = Store::new(Strategy::named("leveling").unwrap(), rng);
        for _ in 0..150 {
            store.step_with(|store| {
                let plan = (0..10).find_map(|_| store.random_plan())?;
                legal += 1;
                together += u32::from(!store.jobs.is_empty());
                upwards += u32::from(plan.inputs.iter().any(|input| input.place() > plan.output));
                Some(plan)
            });
        }
    }
    assert!(legal > 5000 && together > 1000 && upwards > 500, "{legal} {together} {upwards}");
}

/// A tree in the shape of leveling with ratio 10: as many files as asked, all overlapping the next level by a little.
pub(super) fn large_tree(files: u64) -> Version {
    let mut edit = VersionEdit::default();
    let mut id = 0;
    let mut add = |level: u8, order: u64, n: u64, of: u64| {
        id += 1;
        let key = |n: u64| Bytes::copy_from_slice(&n.to_be_bytes());
        let width = u64::MAX / of;
        let file = FileMeta {
            id: SstId(id),
            bytes: 1000 + (n * 7919) % 100,
            entries: 10,
            tombstones: 0,
            range_tombstones: 0,
            raw_bytes: 1000,
            smallest: key(n * width + 1),
            largest: key(n * width + width),
            min_seq: SeqNo(1),
            max_seq: SeqNo(1),
            created_ms: 0,
            oldest_tombstone_ms: None,
            entered_level_ms: 0,
            whole: None,
        };
        edit.added.push((LevelId(level), RunOrder(order), Arc::new(file)));
    };
    for run in 0..3 {
        add(0, 10 + run, 0, 1);
    }
    for (level, of) in [
        (1u8, files / 1000),
        (2, files / 100),
        (3, files / 10),
        (4, files - files / 10 - files / 100 - files / 1000 - 3),
    ] {
        for n in 0..of {
            add(level, 1, n, of);
        }
    }
    Version::empty().apply(&edit).unwrap()
}
