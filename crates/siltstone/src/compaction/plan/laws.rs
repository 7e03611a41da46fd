//! Every law that a plan must obey, in one place; [`Plan::check`] names the one that is broken.
//!
//! The laws are sufficient: whatever passes is invisible to every reader, several jobs at once included. A test throws dice for plans
//! and asks all readers after each one that passed (`tests/it/compaction/invisible.rs`).

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::super::oldest::{Aged, ages};
use super::super::view::{LsmView, MAX_LEVELS};
use super::{Action, Place, Plan, PlanInput};
use crate::version::{FileMeta, Run, SstId, Version};

/// The laws of plans.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Law {
    /// A plan has inputs.
    HasInputs,
    /// Every input is in the tree where the plan says, once, in key order, newest place first.
    InputsExist,
    /// No input is in use by a running job.
    NotBusy,
    /// The output level is one that a tree may have.
    LevelExists,
    /// No file that is not an input, and no output of a running job, overlaps an input on its way to the output place.
    AgeOrder,
    /// The output run's files that are no inputs, and the outputs of running jobs to that run, do not overlap the output.
    OutputDisjoint,
    /// No running job's input meets this plan's output on its way.
    RunningApart,
    /// Only flushes and ingestions make newer runs in L0.
    NewestIsFlushed,
    /// Files that move go to another place and do not overlap each other.
    MoveKeepsFiles,
    /// Files that are dropped hold tombstones only, seen by all snapshots, and no older file could hold their keys.
    DropLosesNothing,
    /// In a keyspace that may lose its oldest data: files that are dropped with more than dead tombstones are the oldest, whatever older
    /// they hide goes with them, and no snapshot sees any of it.
    DropsOldest,
}

impl Law {
    /// The law's name in messages and events.
    pub fn name(self) -> &'static str {
        match self {
            Law::HasInputs => "has-inputs",
            Law::InputsExist => "inputs-exist",
            Law::NotBusy => "not-busy",
            Law::LevelExists => "level-exists",
            Law::AgeOrder => "age-order",
            Law::OutputDisjoint => "output-disjoint",
            Law::RunningApart => "running-apart",
            Law::NewestIsFlushed => "newest-is-flushed",
            Law::MoveKeepsFiles => "move-keeps-files",
            Law::DropLosesNothing => "drop-loses-nothing",
            Law::DropsOldest => "drops-oldest",
        }
    }
}

/// A plan broke a law.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LawBroken {
    /// Which.
    pub law: Law,
    /// By what.
    pub what: String,
}

impl fmt::Display for LawBroken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "law {} broken: {}", self.law.name(), self.what)
    }
}

impl std::error::Error for LawBroken {}
impl Plan {
    /// Checks every law of plans.
    ///
    /// # Errors
    /// The first law that is broken, and by what.
    pub fn check(&self, view: &LsmView<'_>) -> Result<(), LawBroken> {
        self.check_inputs(view)?;
        match self.action {
            Action::Drop => self.check_drop(view),
            Action::Merge | Action::Move => {
                self.check_output(view)?;
                self.check_way(view)?;
                self.check_running(view)
            }
        }
    }

    fn check_inputs(&self, view: &LsmView<'_>) -> Result<(), LawBroken> {
        ensure(!self.inputs.is_empty(), Law::HasInputs, || "the plan has none".to_owned())?;
        for pair in self.inputs.windows(2) {
            ensure(pair[0].place() < pair[1].place(), Law::InputsExist, || {
                format!("{} stands before {}", show(pair[0].place()), show(pair[1].place()))
            })?;
        }
        for input in &self.inputs {
            let place = input.place();
            ensure(!input.files.is_empty(), Law::HasInputs, || format!("no file of {}", show(place)))?;
            let run = view.level(input.level).run(input.run);
            let mut rest = run.map_or(&[][..], |run| &run.files[..]);
            let touched = view.is_touched(place);
            for file in &input.files {
                // Both sides ascend, so each file is searched behind the one before it: duplicates and disorder show as missing.
                // Most plans take neighbours, or whole runs.
                let next = rest.first().is_some_and(|other| Arc::ptr_eq(other, file));
                let at = if next { 0 } else { rest.partition_point(|other| other.smallest < file.smallest) };
                let found = rest.get(at).is_some_and(|other| Arc::ptr_eq(other, file) || other == file);
                ensure(found, Law::InputsExist, || {
                    format!("file {} is not in {}, or is there twice", file.id.0, show(place))
                })?;
                rest = &rest[at + 1..];
                ensure(!touched || !view.is_busy(file.id), Law::NotBusy, || format!("file {} is in use", file.id.0))?;
            }
        }
        Ok(())
    }

    fn check_output(&self, view: &LsmView<'_>) -> Result<(), LawBroken> {
        let output = self.output;
        ensure(output.level.0 < MAX_LEVELS, Law::LevelExists, || {
            format!("L{}, the deepest is L{}", output.level.0, MAX_LEVELS - 1)
        })?;
        if output.level.0 == 0 {
            let newest = self.inputs.iter().filter(|input| input.level.0 == 0).map(|input| input.run).max();
            ensure(newest.is_some_and(|newest| output.run <= newest), Law::NewestIsFlushed, || {
                format!("output {} is newer than the inputs", show(output))
            })?;
        }
        if self.action == Action::Move {
            let mut files: Vec<_> = self.files().collect();
            files.sort_by(|a, b| a.smallest.cmp(&b.smallest));
            let meet = files.windows(2).find(|pair| pair[0].largest >= pair[1].smallest);
            ensure(meet.is_none(), Law::MoveKeepsFiles, || {
                meet.map_or(String::new(), |pair| format!("files {} and {} overlap", pair[0].id.0, pair[1].id.0))
            })?;
            let stays = self.inputs.iter().any(|input| input.place() == output);
            ensure(!stays, Law::MoveKeepsFiles, || format!("files of {} would stay there", show(output)))?;
        }
        match view.level(output.level).run(output.run) {
            Some(run) => self.check_disjoint(run),
            None => Ok(()),
        }
    }

    /// The input files of the run in `place`.
    fn taken(&self, place: Place) -> &[Arc<FileMeta>] {
        self.inputs.binary_search_by(|input| input.place().cmp(&place)).map_or(&[], |at| &self.inputs[at].files)
    }

    /// A merge may write one file over the inputs' whole hull; a moved file takes its own range only.
    fn check_disjoint(&self, run: &Run) -> Result<(), LawBroken> {
        let taken = self.taken(self.output);
        let overlapped = match self.action {
            Action::Move => self.files().find_map(|file| outsider(&run.files, taken, &file.smallest, &file.largest)),
            Action::Merge | Action::Drop => {
                let (first, last) = self.hull();
                outsider(&run.files, taken, first, last)
            }
        };
        match overlapped {
            None => Ok(()),
            Some(file) => {
                broken(Law::OutputDisjoint, format!("file {} of {} overlaps the output", file.id.0, show(self.output)))
            }
        }
    }

    fn check_way(&self, view: &LsmView<'_>) -> Result<(), LawBroken> {
        let ends = || self.inputs.iter().map(PlanInput::place).chain([self.output]);
        let (newest, oldest) = (ends().min().unwrap_or(self.output), ends().max().unwrap_or(self.output));
        // Runs that are inputs as a whole stand in nobody's way. The inputs are known to be there, each once.
        let between = places(view.version).filter(|(place, _)| newest <= *place && *place <= oldest);
        let partly = between.map(|(place, run)| (place, &run.files[..], self.taken(place)));
        let partly: Vec<_> = partly.filter(|(_, files, taken)| taken.len() < files.len()).collect();
        for input in &self.inputs {
            for (place, mut rest, mut taken) in partly.iter().copied() {
                if !place.on_way(input.place(), self.output) {
                    continue;
                }
                // Mostly all that stands in the way comes along: two searches tell.
                let (first, last) = (&input.files[0].smallest, &input.files[input.files.len() - 1].largest);
                if outsider(rest, taken, first, last).is_none() {
                    continue;
                }
                // All ascend: what ends before a file ends before the next one, too.
                for file in &input.files {
                    rest = behind(rest, &file.smallest);
                    taken = behind(taken, &file.smallest);
                    if rest.is_empty() {
                        break;
                    }
                    if let Some(other) = first_other(until(rest, &file.largest), until(taken, &file.largest)) {
                        return broken(
                            Law::AgeOrder,
                            format!("file {} would pass file {} of {}", file.id.0, other.id.0, show(place)),
                        );
                    }
                }
            }
        }
        Ok(())
    }

    /// What a running job will write is in no version yet: it counts as one file over its inputs' hull, in its output place.
    fn check_running(&self, view: &LsmView<'_>) -> Result<(), LawBroken> {
        let (first, last) = self.hull();
        for other in view.running().iter().filter(|other| other.action != Action::Drop) {
            let (other_first, other_last) = other.hull();
            if first > other_last || other_first > last {
                continue;
            }
            ensure(self.output != other.output, Law::OutputDisjoint, || {
                format!("a running job writes {} to {}", show_range(other_first, other_last), show(other.output))
            })?;
            let mut met = self.inputs.iter().filter(|input| other.output.on_way(input.place(), self.output));
            let met = met.find_map(|input| overlapping(&input.files, other_first, other_last).first());
            if let Some(file) = met {
                return broken(
                    Law::AgeOrder,
                    format!("file {} would pass what a running job writes to {}", file.id.0, show(other.output)),
                );
            }
            let mut met = other.inputs.iter().filter(|input| self.output.on_way(input.place(), other.output));
            let met = met.find_map(|input| overlapping(&input.files, first, last).first());
            if let Some(file) = met {
                return broken(Law::RunningApart, format!("file {} of a running job would pass the output", file.id.0));
            }
        }
        Ok(())
    }

    fn check_drop(&self, view: &LsmView<'_>) -> Result<(), LawBroken> {
        let inputs: BTreeSet<SstId> = self.files().map(|file| file.id).collect();
        match self.first_loss(view, &inputs) {
            None => Ok(()),
            Some(_) if view.may_lose_oldest => self.check_oldest(view, &inputs),
            Some(file) => broken(
                Law::DropLosesNothing,
                format!("file {} holds more than tombstones that hide nothing", file.id.0),
            ),
        }
    }

    /// Whether it drops more than tombstones that hide nothing.
    pub fn loses(&self, view: &LsmView<'_>) -> bool {
        let inputs = || self.files().map(|file| file.id).collect();
        self.action == Action::Drop && self.first_loss(view, &inputs()).is_some()
    }

    /// A file that holds more than tombstones that hide nothing; those of `leaving` go with it.
    fn first_loss(&self, view: &LsmView<'_>, leaving: &BTreeSet<SstId>) -> Option<&Arc<FileMeta>> {
        let mut files = self.inputs.iter().flat_map(|input| input.files.iter().map(move |file| (input.place(), file)));
        files.find(|(place, file)| !only_dead_tombstones(view, *place, file, leaving)).map(|(_, file)| file)
    }

    fn check_oldest(&self, view: &LsmView<'_>, leaving: &BTreeSet<SstId>) -> Result<(), LawBroken> {
        let seen = self.files().find(|file| view.is_seen(file));
        ensure(seen.is_none(), Law::DropsOldest, || {
            format!("a snapshot sees file {}", seen.map_or(0, |file| file.id.0))
        })?;
        // Most files of a large tree are younger than all that leaves, and need not be looked up.
        let newest = self.files().map(|file| file.max_seq).max();
        let leaves = |aged: &&Aged<'_>| Some(aged.file.max_seq) <= newest && leaving.contains(&aged.file.id);
        let files = ages(view);
        let Some(oldest) = files.iter().filter(|aged| !leaves(aged)).min_by_key(|aged| aged.age) else {
            return Ok(());
        };
        for aged in files.iter().filter(leaves) {
            // What a file hides is no younger than it: where all that stays is younger than the file, it hides nothing of that.
            let closed = aged.age < oldest.age || hides_nothing(view, aged.place, aged.file, leaving);
            ensure(closed, Law::DropsOldest, || {
                format!("what file {} hides in older files would come back", aged.file.id.0)
            })?;
            ensure(aged.file.max_seq <= oldest.age, Law::DropsOldest, || {
                format!("file {} stays, which is older than file {}", oldest.file.id.0, aged.file.id.0)
            })?;
        }
        Ok(())
    }
}

/// The runs of a version with their places, newest first.
pub(in super::super) fn places(version: &Version) -> impl DoubleEndedIterator<Item = (Place, &Run)> {
    version.runs().map(|(level, run)| (Place { level, run: run.order }, run))
}

/// Whether `file` could be left out of the tree: only tombstones, seen by all snapshots, and nothing older that they hide. Files
/// of `leaving` go away with it and hide nothing.
pub(in super::super) fn only_dead_tombstones(
    view: &LsmView<'_>,
    place: Place,
    file: &FileMeta,
    leaving: &BTreeSet<SstId>,
) -> bool {
    file.is_all_tombstones() && view.visible_to_all_snapshots(file) && hides_nothing(view, place, file, leaving)
}

/// Whether no older file than `place` could hold a key of `file`; files of `leaving` do not count.
pub(in super::super) fn hides_nothing(
    view: &LsmView<'_>,
    place: Place,
    file: &FileMeta,
    leaving: &BTreeSet<SstId>,
) -> bool {
    places(view.version)
        .filter(|(older, _)| *older > place)
        .all(|(_, run)| run.overlapping(&file.smallest, &file.largest).iter().all(|other| leaving.contains(&other.id)))
}

/// The files that do not end before `key`. Looks near the front first: in a walk along two runs it is mostly there.
pub(in super::super) fn behind<'a>(files: &'a [Arc<FileMeta>], key: &[u8]) -> &'a [Arc<FileMeta>] {
    &files[leading(files, |file| file.largest[..] < *key)..]
}

/// The files that do not begin after `key`; looks near the front first.
fn until<'a>(files: &'a [Arc<FileMeta>], key: &[u8]) -> &'a [Arc<FileMeta>] {
    &files[..leading(files, |file| file.smallest[..] <= *key)]
}

/// How many files at the front `hold`; behind the first that does not, none does.
fn leading(files: &[Arc<FileMeta>], holds: impl Fn(&Arc<FileMeta>) -> bool) -> usize {
    let mut reach = 1;
    while files.get(reach - 1).is_some_and(&holds) {
        reach *= 2;
    }
    let (from, to) = (reach / 2, reach.min(files.len()));
    from + files[from..to].partition_point(holds)
}

/// The files of `files`, which ascend and share no key, that could hold a key of `first..=last`.
fn overlapping<'a>(files: &'a [Arc<FileMeta>], first: &[u8], last: &[u8]) -> &'a [Arc<FileMeta>] {
    let rest = &files[files.partition_point(|file| file.largest[..] < *first)..];
    &rest[..rest.partition_point(|file| file.smallest[..] <= *last)]
}

/// A file of the run `files` that overlaps `first..=last` and is not one of `taken`, which are files of the same run.
fn outsider<'a>(
    files: &'a [Arc<FileMeta>],
    taken: &[Arc<FileMeta>],
    first: &[u8],
    last: &[u8],
) -> Option<&'a Arc<FileMeta>> {
    first_other(overlapping(files, first, last), overlapping(taken, first, last))
}

/// The first of `met` that is not in `ours`. Both are what a run and a part of it hold of one key range, ascending: as many in both means that they
/// are the same.
fn first_other<'a>(met: &'a [Arc<FileMeta>], ours: &[Arc<FileMeta>]) -> Option<&'a Arc<FileMeta>> {
    if met.len() == ours.len() {
        return None;
    }
    met.iter().enumerate().find(|(at, file)| ours.get(*at).is_none_or(|own| own.id != file.id)).map(|(_, file)| file)
}

fn ensure(holds: bool, law: Law, what: impl FnOnce() -> String) -> Result<(), LawBroken> {
    if holds { Ok(()) } else { broken(law, what()) }
}

fn broken(law: Law, what: String) -> Result<(), LawBroken> {
    Err(LawBroken { law, what })
}

fn show(place: Place) -> String {
    format!("L{} run {}", place.level.0, place.run.0)
}

fn show_range(first: &[u8], last: &[u8]) -> String {
    format!("{}..={}", first.escape_ascii(), last.escape_ascii())
}
