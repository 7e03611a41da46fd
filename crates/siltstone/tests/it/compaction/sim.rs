//! A tree over numbered keys: flushes and merges with the real planner and the real output cut, one job at a time, in virtual time.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use siltstone::compaction::{Action, LsmView, Plan, Sizes, Strategy, plan};
use siltstone::jobs::cut::OutputCut;
use siltstone::key::SeqNo;
use siltstone::version::text::parse_file;
use siltstone::version::{FileMeta, LevelId, RunOrder, SstId, Version, VersionEdit};

/// The size of every record.
pub(super) const RECORD_BYTES: u64 = 10;

/// A version of a key; `born_ms` is the time of a tombstone's flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) key: u32,
    pub(super) seq: u64,
    pub(super) born_ms: Option<u64>,
}

pub(super) struct Sim {
    pub(super) strategy: Strategy,
    pub(super) sizes: Sizes,
    pub(super) version: Version,
    pub(super) contents: BTreeMap<SstId, Vec<Entry>>,
    pub(super) now_ms: u64,
    pub(super) flushed_ms: u64,
    pub(super) cursors: Vec<Bytes>,
    pub(super) flushed_bytes: u64,
    pub(super) written_bytes: u64,
    next_id: u64,
    next_order: u64,
    seq: u64,
}

pub(super) fn bytes_of(key: u32) -> Bytes {
    Bytes::copy_from_slice(&key.to_be_bytes())
}

impl Sim {
    pub(super) fn new(strategy: Strategy, sizes: Sizes) -> Sim {
        Sim {
            strategy,
            sizes,
            version: Version::empty(),
            contents: BTreeMap::new(),
            now_ms: 0,
            flushed_ms: 0,
            cursors: vec![Bytes::new(); 40],
            flushed_bytes: 0,
            written_bytes: 0,
            next_id: 1,
            next_order: 1,
            seq: 0,
        }
    }

    pub(super) fn named(name: &str, sizes: Sizes) -> Sim {
        Sim::new(Strategy::named(name).unwrap(), sizes)
    }

    /// A file of L0 with these keys; those of `deleted` are tombstones.
    pub(super) fn flush(&mut self, keys: &[u32], deleted: &[u32]) {
        let mut entries = BTreeMap::new();
        for (key, born_ms) in
            keys.iter().map(|key| (*key, None)).chain(deleted.iter().map(|key| (*key, Some(self.now_ms))))
        {
            self.seq += 1;
            entries.insert(key, Entry { key, seq: self.seq, born_ms });
        }
        let file = self.file(entries.into_values().collect(), self.now_ms);
        self.flushed_bytes += file.bytes;
        self.flushed_ms = self.now_ms;
        let order = RunOrder(self.next_order);
        self.next_order += 1;
        self.install(&VersionEdit { removed: Vec::new(), added: vec![(LevelId(0), order, file)] });
    }

    fn file(&mut self, entries: Vec<Entry>, oldest_ms: u64) -> Arc<FileMeta> {
        let id = SstId(self.next_id);
        self.next_id += 1;
        let count = u64::try_from(entries.len()).unwrap();
        let tombstones = u64::try_from(entries.iter().filter(|entry| entry.born_ms.is_some()).count()).unwrap();
        let seqs = || entries.iter().map(|entry| entry.seq);
        let file = FileMeta {
            id,
            bytes: count * RECORD_BYTES,
            entries: count,
            tombstones,
            smallest: bytes_of(entries[0].key),
            largest: bytes_of(entries[entries.len() - 1].key),
            min_seq: SeqNo(seqs().min().unwrap()),
            max_seq: SeqNo(seqs().max().unwrap()),
            created_ms: self.now_ms,
            entered_level_ms: self.now_ms,
            oldest_tombstone_ms: (tombstones > 0).then_some(oldest_ms),
            ..parse_file("1:a-b:10", RunOrder(1)).unwrap()
        };
        self.contents.insert(id, entries);
        Arc::new(file)
    }

    fn install(&mut self, edit: &VersionEdit) {
        self.version = self.version.apply(edit).unwrap();
    }

    pub(super) fn view(&self) -> LsmView<'_> {
        LsmView::new(&self.version, self.sizes)
            .with_cursors(&self.cursors)
            .with_last_write(self.flushed_ms)
            .at(self.now_ms)
    }

    /// The next plan, carried out; and its output files. None if nothing is due.
    pub(super) fn step(&mut self) -> Option<(Plan, Vec<Arc<FileMeta>>)> {
        let plan = plan(&self.strategy, &self.view()).unwrap()?;
        if let Some((level, key)) = &plan.cursor {
            self.cursors[level.index()] = key.clone();
        }
        let files = match plan.action {
            Action::Merge => self.merge(&plan),
            Action::Move => plan.moved(self.now_ms).into_iter().map(|(_, _, file)| file).collect(),
            Action::Drop => Vec::new(),
        };
        let added = files.iter().map(|file| (plan.output.level, plan.output.run, Arc::clone(file))).collect();
        self.install(&VersionEdit { removed: plan.removed(), added });
        if plan.action != Action::Move {
            for file in plan.files() {
                self.contents.remove(&file.id);
            }
        }
        Some((plan, files))
    }

    /// Steps until nothing is due; how many.
    pub(super) fn settle(&mut self) -> usize {
        for n in 0..100_000 {
            if self.step().is_none() {
                return n;
            }
        }
        panic!("{} does not settle", self.strategy.name);
    }

    fn merge(&mut self, plan: &Plan) -> Vec<Arc<FileMeta>> {
        let mut entries: Vec<Entry> = plan.files().flat_map(|file| self.contents[&file.id].iter().copied()).collect();
        entries.sort_by_key(|entry| (entry.key, std::cmp::Reverse(entry.seq)));
        entries.dedup_by_key(|entry| entry.key);
        let older = plan.older_files(&self.version);
        let may_hide = |key: u32| {
            let key = bytes_of(key);
            older.iter().flatten().any(|file| file.overlaps(&key, &key))
        };
        entries.retain(|entry| entry.born_ms.is_none() || may_hide(entry.key));
        let mut cut = OutputCut::new(plan.cut, plan.grandparents(&self.version));
        let mut files: Vec<Vec<Entry>> = Vec::new();
        for entry in entries {
            let bytes = files.last().map_or(0, |file| RECORD_BYTES * u64::try_from(file.len()).unwrap());
            let key = bytes_of(entry.key);
            let before = files.last().and_then(|file| file.last()).map(|before| bytes_of(before.key));
            let border = |before: &Bytes| plan.borders.iter().any(|border| before < border && *border <= key);
            if cut.before(&key, true, bytes) || before.as_ref().is_some_and(border) || files.is_empty() {
                files.push(Vec::new());
            }
            files.last_mut().unwrap().push(entry);
        }
        let oldest = plan.files().filter_map(|file| file.oldest_tombstone_ms).min().unwrap_or(0);
        let files: Vec<_> = files.into_iter().map(|entries| self.file(entries, oldest)).collect();
        self.written_bytes += files.iter().map(|file| file.bytes).sum::<u64>();
        files
    }

    /// Bytes that merges wrote for each byte that was flushed.
    pub(super) fn write_amplification(&self) -> f64 {
        self.written_bytes as f64 / self.flushed_bytes as f64
    }
}
