//! What a policy may see: the tree's metadata, what runs, live counters, the time. Nothing else decides a compaction.
//!
//! A view is borrowed, cheap to make and never changes. Equal views give equal plans.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::plan::{Place, Plan, PlanInput};
use crate::key::SeqNo;
use crate::options::KeyspaceOptions;
pub use crate::version::ReadCounters;
use crate::version::{FileMeta, Level, LevelId, Run, SstId, Version};

/// The number of levels that a tree may have; nothing is compacted out of the last of them.
pub const MAX_LEVELS: u8 = 32;

static EMPTY: Level = Level { runs: Vec::new(), buffer: Vec::new() };

/// The sizes that a keyspace's options set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Size of a full memtable, in bytes: the unit of the levels' capacities.
    pub memtable_bytes: u64,
    /// A merge starts a new output file at this size, in bytes.
    pub file_bytes: u64,
    /// Capacity ratio of neighbouring levels; 0 leaves it to the strategy.
    pub size_ratio: u32,
    /// Capacity of L1 in bytes; 0 leaves it to the strategy.
    pub level1_bytes: u64,
}

impl From<&KeyspaceOptions> for Sizes {
    fn from(options: &KeyspaceOptions) -> Sizes {
        Sizes {
            memtable_bytes: options.memtable_bytes,
            file_bytes: options.file_bytes,
            size_ratio: options.size_ratio,
            level1_bytes: options.level1_bytes,
        }
    }
}

/// What a policy may see. Made with [`LsmView::new`] and the `with_` functions.
#[derive(Clone, Debug)]
pub struct LsmView<'a> {
    /// The tree.
    pub version: &'a Version,
    /// The sizes that the options set.
    pub sizes: Sizes,
    /// Wall time, in milliseconds since 1970.
    pub now_ms: u64,
    /// Wall time of the keyspace's last write as far as it is known, in milliseconds since 1970; none counts as just now.
    pub last_write_ms: Option<u64>,
    /// The oldest sequence number that a snapshot reads at; none without snapshots.
    pub oldest_snapshot: Option<SeqNo>,
    /// The newest one. Not known unless it was said: then it counts as the newest that there could be.
    pub newest_snapshot: Option<SeqNo>,
    /// Whether the keyspace may lose its oldest data ([`KeyspaceOptions::may_lose_oldest`]).
    pub may_lose_oldest: bool,
    /// Reads by file. A file that is missing here was not read.
    pub counters: Option<&'a BTreeMap<SstId, ReadCounters>>,
    /// What reads have paid for each sorted run since it is there, in bytes that merges take through in the same time. A run that is missing here
    /// has cost nothing.
    pub read_work: Option<&'a BTreeMap<Place, u64>>,
    /// By level, the largest key that round-robin took last; missing or empty stands for the start.
    pub cursors: &'a [Bytes],
    running: &'a [Arc<Plan>],
    /// The inputs of the running jobs: first and last of numbers that follow each other, ascending. Collected when first asked for: a running
    /// job can have ten thousand of them, a view is made for each decision, and most decisions need not know. The files of a merge's output
    /// have numbers that follow each other, so there are far fewer stretches than files to search.
    busy: OnceLock<Vec<(SstId, SstId)>>,
    /// What running jobs have put into the tree before their end, ascending; nearly always nothing.
    made: Vec<SstId>,
}

impl<'a> LsmView<'a> {
    /// A view of `version` while nothing runs, no snapshot is held, nothing was read, and at time 0.
    pub fn new(version: &'a Version, sizes: Sizes) -> LsmView<'a> {
        LsmView {
            version,
            sizes,
            now_ms: 0,
            last_write_ms: None,
            oldest_snapshot: None,
            newest_snapshot: None,
            may_lose_oldest: false,
            counters: None,
            read_work: None,
            cursors: &[],
            running: &[],
            busy: OnceLock::new(),
            made: Vec::new(),
        }
    }

    /// The same view while the jobs of `running` are at work; their inputs are busy. Every plan that was started and whose
    /// edit is not in `version` yet belongs here.
    #[must_use]
    pub fn with_running(mut self, running: &'a [Arc<Plan>]) -> LsmView<'a> {
        (self.busy, self.made) = (OnceLock::new(), Vec::new());
        self.running = running;
        self
    }

    /// The same view with these files busy as well: what running jobs have put into the tree before their end. After
    /// [`with_running`](Self::with_running).
    #[must_use]
    pub fn with_busy(mut self, files: impl IntoIterator<Item = SstId>) -> LsmView<'a> {
        self.made.extend(files);
        self.made.sort_unstable();
        self
    }

    /// Another tree, other jobs and cursors, everything else the same: for dry runs.
    #[must_use]
    pub fn over<'b>(&self, version: &'b Version, running: &'b [Arc<Plan>], cursors: &'b [Bytes]) -> LsmView<'b>
    where
        'a: 'b,
    {
        LsmView { version, cursors, ..self.clone() }.with_running(running)
    }

    /// The same view at wall time `now_ms`.
    #[must_use]
    pub fn at(mut self, now_ms: u64) -> LsmView<'a> {
        self.now_ms = now_ms;
        self
    }

    /// The same view with the last write at wall time `ms`.
    #[must_use]
    pub fn with_last_write(mut self, ms: impl Into<Option<u64>>) -> LsmView<'a> {
        self.last_write_ms = ms.into();
        self
    }

    /// The same view with this oldest snapshot; the newest is not known.
    #[must_use]
    pub fn with_oldest_snapshot(self, oldest: Option<SeqNo>) -> LsmView<'a> {
        self.with_snapshots(oldest, oldest.map(|_| SeqNo::MAX))
    }

    /// The same view with snapshots of which these are the oldest and the newest.
    #[must_use]
    pub fn with_snapshots(mut self, oldest: Option<SeqNo>, newest: Option<SeqNo>) -> LsmView<'a> {
        (self.oldest_snapshot, self.newest_snapshot) = (oldest, newest);
        self
    }

    /// The same view of a keyspace that may, or may not, lose its oldest data.
    #[must_use]
    pub fn with_losses(mut self, may_lose_oldest: bool) -> LsmView<'a> {
        self.may_lose_oldest = may_lose_oldest;
        self
    }

    /// The same view with these read counters, if there are any.
    #[must_use]
    pub fn with_counters(mut self, counters: impl Into<Option<&'a BTreeMap<SstId, ReadCounters>>>) -> LsmView<'a> {
        self.counters = counters.into();
        self
    }

    /// The same view of runs that reads have paid this for, if any.
    #[must_use]
    pub fn with_read_work(mut self, work: impl Into<Option<&'a BTreeMap<Place, u64>>>) -> LsmView<'a> {
        self.read_work = work.into();
        self
    }

    /// The same view with these round-robin cursors, by level.
    #[must_use]
    pub fn with_cursors(mut self, cursors: &'a [Bytes]) -> LsmView<'a> {
        self.cursors = cursors;
        self
    }

    /// The jobs that are at work.
    pub fn running(&self) -> &'a [Arc<Plan>] {
        self.running
    }

    /// Whether a running job reads file `id`, or has written it.
    pub fn is_busy(&self, id: SstId) -> bool {
        if self.running.is_empty() && self.made.is_empty() {
            return false;
        }
        let busy = self.busy_stretches();
        let at = busy.partition_point(|(_, last)| *last < id);
        busy.get(at).is_some_and(|(first, _)| *first <= id) || self.made.binary_search(&id).is_ok()
    }

    fn busy_stretches(&self) -> &[(SstId, SstId)] {
        self.busy.get_or_init(|| {
            let mut busy: Vec<SstId> = self.running.iter().flat_map(|plan| plan.files()).map(|file| file.id).collect();
            // Each input ascends, mostly: a stable sort merges what is in order already.
            busy.sort();
            busy.chunk_by(|a, b| a.0 + 1 == b.0).map(|ids| (ids[0], ids[ids.len() - 1])).collect()
        })
    }

    /// The positions of the busy files of `run`, which is at `place`, ascending.
    pub(super) fn busy_positions(&self, place: Place, run: &Run) -> Vec<usize> {
        if !self.is_touched(place) {
            return Vec::new();
        }
        let ids = run.files.ids().iter().enumerate();
        ids.filter(|(_, id)| self.is_busy(**id)).map(|(at, _)| at).collect()
    }

    /// Whether a running job may read, or have written, some file of the run at `place`; if not, none of its files need be asked about.
    pub fn is_touched(&self, place: Place) -> bool {
        !self.made.is_empty() || self.inputs_at(place).next().is_some()
    }

    /// Whether any of `files`, which are in the run at `place`, is busy.
    pub fn any_busy(&self, place: Place, files: &[Arc<FileMeta>]) -> bool {
        let mut inputs = self.inputs_at(place).peekable();
        if inputs.peek().is_none() && self.made.is_empty() {
            return false;
        }
        // Mostly a running job reads the whole run, or what it reads of it is far away.
        let there = |file: &Arc<FileMeta>| {
            let at = files.partition_point(|other| other.smallest < file.smallest);
            files.get(at).is_some_and(|other| other.id == file.id)
        };
        inputs.filter_map(|input| input.files.first()).any(there) || files.iter().any(|file| self.is_busy(file.id))
    }

    /// Whether running jobs read every file of `run`, which is in `level`.
    pub fn is_consumed(&self, level: LevelId, run: &Run) -> bool {
        let place = Place { level, run: run.order };
        self.is_touched(place) && run.files.iter().all(|file| self.is_busy(file.id))
    }

    /// Whether a running job takes the whole of `run`, which is in `level`, into another level.
    pub fn is_leaving(&self, level: LevelId, run: &Run) -> bool {
        let place = Place { level, run: run.order };
        let leaves =
            |plan: &Arc<Plan>| plan.output.level != level && plan.inputs.iter().any(|input| input.place() == place);
        self.running.iter().any(leaves) && self.is_consumed(level, run)
    }

    /// The files of a level that no running job reads.
    pub fn idle_files(&self, level: LevelId) -> impl Iterator<Item = &'a Arc<FileMeta>> {
        let idle = move |run: &'a Run| {
            let touched = self.is_touched(Place { level, run: run.order });
            run.files.iter().filter(move |file| !(touched && self.is_busy(file.id)))
        };
        self.level(level).runs.iter().flat_map(idle)
    }

    fn inputs_at(&self, place: Place) -> impl Iterator<Item = &'a PlanInput> {
        self.running.iter().flat_map(|plan| &plan.inputs).filter(move |input| input.place() == place)
    }

    /// A level; an empty one below the tree.
    pub fn level(&self, level: LevelId) -> &'a Level {
        self.version.levels.get(level.index()).unwrap_or(&EMPTY)
    }

    /// The deepest level that holds a run; L0 in an empty tree.
    pub fn last_level(&self) -> LevelId {
        let last = self.version.levels.iter().rposition(|level| !level.runs.is_empty());
        LevelId(u8::try_from(last.unwrap_or(0)).unwrap_or(MAX_LEVELS - 1))
    }

    /// The levels that hold a run, L0 first.
    pub fn levels(&self) -> impl Iterator<Item = LevelId> + use<'a> {
        (0..MAX_LEVELS)
            .map(LevelId)
            .zip(&self.version.levels)
            .filter(|(_, level)| !level.runs.is_empty())
            .map(|(id, _)| id)
    }

    /// Sorted runs in all levels.
    pub fn runs(&self) -> u32 {
        u32::try_from(self.version.run_count()).unwrap_or(u32::MAX)
    }

    /// The newest run of a level.
    pub fn newest_run(&self, level: LevelId) -> Option<&'a Run> {
        self.level(level).runs.first()
    }

    /// Bytes of `level` that will still be there when the running jobs have ended, the bytes that they bring not counted.
    pub fn staying_bytes(&self, level: LevelId) -> u64 {
        let leaving = self.running.iter().filter(|plan| plan.output.level != level);
        let leaving = leaving.flat_map(|plan| &plan.inputs).filter(|input| input.level == level);
        let leaving: u64 = leaving.flat_map(|input| &input.files).map(|file| file.bytes).sum();
        self.level(level).bytes().saturating_sub(leaving)
    }

    /// Whether no file was read, or nobody counts.
    pub fn is_unread(&self) -> bool {
        self.counters.is_none_or(BTreeMap::is_empty)
    }

    /// What reads did to a file.
    pub fn reads_of(&self, id: SstId) -> ReadCounters {
        self.counters.and_then(|counters| counters.get(&id)).copied().unwrap_or_default()
    }

    /// The key after which round-robin goes on in `level`; empty for the start.
    pub fn cursor(&self, level: LevelId) -> &'a [u8] {
        self.cursors.get(level.index()).map_or(&[], |key| &key[..])
    }

    /// For how long nothing has been written, in milliseconds.
    pub fn idle_ms(&self) -> u64 {
        self.last_write_ms.map_or(0, |ms| self.now_ms.saturating_sub(ms))
    }

    /// Whether some snapshot sees something that is in `file`.
    pub fn is_seen(&self, file: &FileMeta) -> bool {
        self.newest_snapshot.is_some_and(|newest| file.min_seq <= newest)
    }

    /// Whether every snapshot sees everything that is in `file`.
    pub fn visible_to_all_snapshots(&self, file: &FileMeta) -> bool {
        self.oldest_snapshot.is_none_or(|oldest| file.max_seq <= oldest)
    }
}
