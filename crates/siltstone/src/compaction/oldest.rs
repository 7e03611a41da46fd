//! Dropping the oldest data of a keyspace that may lose it (RocksDB's FIFO compaction): which files go, in which order.
//!
//! A reader stops at the newest version that it meets, so a file cannot go alone while an older one holds versions that it hides: they
//! would come back. What goes with a file is what it overlaps in older places, and what that overlaps. A file is therefore as young as
//! the youngest record that must go with it, its *age*:
//!
//! ```text
//!  newer   L0   [a---c] 90                age 90
//!          L0        [c---f] 70           age 80: the file below it must go first, and with it a record of 80
//!          L1   [a-b] 60   [e-h] 80       age 60, age 80
//!  older   L2                 [i-k] 50    age 50: goes first; then [a-b], then [e-h] with or before [c---f], then the rest
//! ```
//!
//! Files go in the order of age; of equal ones the older place goes first, so whatever goes is closed: nothing that it hides stays. Hence
//! the contract of a keyspace that loses its oldest data: *a read gives the newest version or nothing, never an older one, and
//! nothing only where the newest version is no younger than the youngest record that was dropped.*
//!
//! In a tree that only such a strategy has built, files stand in L0 as they were flushed, and the age of each is its own youngest record.

use std::sync::Arc;

use super::plan::{Place, PlanInput, places};
use super::record::{Candidate, MAX_CANDIDATES};
use super::trigger::Trigger;
use super::view::LsmView;
use crate::key::SeqNo;
use crate::num::to_f64;
use crate::version::FileMeta;

/// A plan drops at most so many files: the check compares each with the runs below it.
const MAX_FILES: usize = 256;

/// A file, and when it may go.
#[derive(Clone, Copy, Debug)]
pub struct Aged<'a> {
    /// Where it is.
    pub place: Place,
    /// It.
    pub file: &'a Arc<FileMeta>,
    /// The largest sequence number in it and in all that must go with it.
    pub age: SeqNo,
}

impl Aged<'_> {
    /// The order in which files go.
    fn order(&self, other: &Aged<'_>) -> std::cmp::Ordering {
        let by_place = || other.place.cmp(&self.place).then_with(|| self.file.smallest.cmp(&other.file.smallest));
        self.age.cmp(&other.age).then_with(by_place)
    }
}

/// The age of every file of the tree, oldest place first. One pass; a file is compared with older runs only if they hold something
/// younger than it.
pub fn ages<'a>(view: &LsmView<'a>) -> Vec<Aged<'a>> {
    let version: &'a crate::version::Version = view.version;
    let mut ages: Vec<Aged<'a>> = Vec::with_capacity(version.files().count());
    // The runs seen so far: where their files begin and end in `ages`, and the largest age among them.
    let mut older: Vec<(usize, usize, SeqNo)> = Vec::with_capacity(version.run_count());
    let mut youngest = SeqNo(0);
    for (place, run) in places(version).rev() {
        let begin = ages.len();
        let mut of_run = SeqNo(0);
        for file in &run.files {
            let mut age = file.max_seq;
            if youngest > age {
                for (from, to, largest) in &older {
                    if *largest > age {
                        age = age.max(age_of_overlapped(&ages[*from..*to], file));
                    }
                }
            }
            of_run = of_run.max(age);
            ages.push(Aged { place, file, age });
        }
        older.push((begin, ages.len(), of_run));
        youngest = youngest.max(of_run);
    }
    ages
}

/// The largest age of the files of `run`, ascending by key, that `file` overlaps; 0 if there are none.
fn age_of_overlapped(run: &[Aged<'_>], file: &FileMeta) -> SeqNo {
    let from = run.partition_point(|other| other.file.largest < file.smallest);
    let met = run[from..].iter().take_while(|other| other.file.smallest <= file.largest);
    met.map(|other| other.age).max().unwrap_or_default()
}

/// The file that goes first.
pub fn first<'a>(view: &LsmView<'a>) -> Option<Aged<'a>> {
    ages(view).into_iter().min_by(Aged::order)
}

/// What becomes of a wish to drop the oldest files.
#[derive(Debug)]
pub enum Dropping<'a> {
    /// These go, in this order; the others come after them.
    Files(Vec<Aged<'a>>, Vec<Aged<'a>>),
    /// A running job has the oldest file.
    Busy,
    /// A snapshot sees the oldest file, or nothing is old enough.
    Nothing,
}

/// The files that must go until `trigger` is quiet, those in the way of running jobs and snapshots left alone.
pub fn drop_for<'a>(view: &LsmView<'a>, trigger: &Trigger) -> Dropping<'a> {
    let mut files = ages(view);
    if files.len() > MAX_FILES {
        files.select_nth_unstable_by(MAX_FILES, Aged::order);
        files.truncate(MAX_FILES);
    }
    files.sort_by(Aged::order);
    let mut bytes = view.version.bytes();
    let mut busy = false;
    let goes = |aged: &&Aged<'a>| {
        let wanted = match trigger {
            Trigger::TotalSize { .. } => bytes >= trigger.limit_bytes(view.sizes),
            Trigger::DataTtl { ttl } => is_expired(view, aged.file, to_ms(*ttl)),
            _ => false,
        };
        bytes = bytes.saturating_sub(aged.file.bytes);
        busy |= wanted && view.is_busy(aged.file.id);
        wanted && !view.is_busy(aged.file.id) && !view.is_seen(aged.file)
    };
    let count = files.iter().take_while(goes).count();
    match count {
        0 if busy => Dropping::Busy,
        0 => Dropping::Nothing,
        _ => {
            let rest = files.split_off(count);
            Dropping::Files(files, rest)
        }
    }
}

/// Whether everything in `file` was written `ttl_ms` ago or earlier: nothing in it is younger than the file.
fn is_expired(view: &LsmView<'_>, file: &FileMeta, ttl_ms: u64) -> bool {
    view.now_ms >= file.created_ms.saturating_add(ttl_ms)
}

pub(super) fn to_ms(ttl: std::time::Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

/// `files` as a plan's inputs.
pub fn inputs(files: &[Aged<'_>]) -> Vec<PlanInput> {
    let mut files: Vec<&Aged<'_>> = files.iter().collect();
    files.sort_by(|a, b| a.place.cmp(&b.place).then(a.file.smallest.cmp(&b.file.smallest)));
    let mut inputs: Vec<PlanInput> = Vec::new();
    for aged in files {
        match inputs.last_mut().filter(|input| input.place() == aged.place) {
            Some(input) => input.files.push(Arc::clone(aged.file)),
            None => inputs.push(PlanInput {
                level: aged.place.level,
                run: aged.place.run,
                files: vec![Arc::clone(aged.file)],
            }),
        }
    }
    inputs
}

/// What dropping the files of a plan loses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Loss {
    /// Files.
    pub files: u64,
    /// Records in them, all versions and tombstones.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The largest sequence number in them: nothing younger is lost.
    pub newest: SeqNo,
}

impl Loss {
    /// Of these files.
    pub fn of<'a>(files: impl IntoIterator<Item = &'a Arc<FileMeta>>) -> Loss {
        files.into_iter().fold(Loss::default(), |loss, file| {
            loss.plus(Loss { files: 1, records: file.entries, bytes: file.bytes, newest: file.max_seq })
        })
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Loss) -> Loss {
        Loss {
            files: self.files + other.files,
            records: self.records + other.records,
            bytes: self.bytes + other.bytes,
            newest: self.newest.max(other.newest),
        }
    }
}

/// The files for a record, the first to go first; its score is a file's age.
pub(super) fn shown(going: &[Aged<'_>], staying: &[Aged<'_>]) -> Vec<Candidate> {
    let candidate = |aged: &Aged<'_>, chosen| Candidate {
        file: aged.file.id,
        runs: 0,
        scores: vec![to_f64(aged.age.0)],
        chosen,
        blocked: false,
    };
    let all = going.iter().map(|aged| candidate(aged, true)).chain(staying.iter().map(|aged| candidate(aged, false)));
    all.take(MAX_CANDIDATES).collect()
}

#[cfg(test)]
mod tests;
