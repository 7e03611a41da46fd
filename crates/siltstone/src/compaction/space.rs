//! The space that a merge takes for a time: what it writes stands beside what it replaces until the end.
//!
//! A store can be given a budget for that (`extra_space_bytes`). A merge begins only if its worst case fits what others leave;
//! otherwise a part of it is done: of its keys, or, where the files of its runs all overlap, of its runs (the oldest of them, so that
//! nothing older is overtaken).

use std::sync::Arc;

use bytes::Bytes;

use super::plan::{Action, Plan, PlanInput};
use super::view::LsmView;
use crate::version::FileMeta;

/// What a record may take in a file beyond its key and value: its place in the block, its share of the index and the filter, padding.
const RECORD_OVERHEAD: u64 = 24;
/// What a file takes besides its records.
const FILE_OVERHEAD: u64 = 1024;

/// Bytes that a job on `files` may take at most beyond the live files: what it writes, or afterwards what it has replaced. The job is
/// stopped if it comes to write more, so this need not be proven; `percent` is how far to trust it.
pub fn worst_case(files: &[&Arc<FileMeta>], file_bytes: u64, percent: u64) -> u64 {
    let sum = |of: &dyn Fn(&FileMeta) -> u64| files.iter().map(|file| of(file)).sum::<u64>();
    // Of a slice the whole table is deleted, if no other file is one, too.
    let replaced = sum(&FileMeta::table_bytes);
    let records = sum(&|file| file.raw_bytes + RECORD_OVERHEAD * file.entries);
    let outputs = 1 + records / file_bytes.max(1);
    replaced.max((records + outputs * FILE_OVERHEAD) / 100 * percent)
}

/// The largest part of a merge that is legal and costs at most `budget`; none if no part of it is small enough.
///
/// Whatever the merge does with the older of its runs, a part brings everything to the place of the oldest: so data only ever goes down by parts,
/// and two merges of which each undoes the other's parts do not go on for ever.
pub fn cut(view: &LsmView<'_>, plan: &Plan, budget: u64, cost: impl Fn(&[&Arc<FileMeta>]) -> u64) -> Option<Plan> {
    debug_assert_eq!(plan.action, Action::Merge);
    let oldest = plan.inputs.last()?.place();
    let output = oldest.max(plan.output);
    // A run alone is written anew where it stands.
    let is_to_move = |input: &PlanInput| input.place() != output || plan.inputs.len() == 1;
    // Newer runs may stay behind, older ones not.
    (0..plan.inputs.len()).find_map(|left| {
        let inputs = part_of(&plan.inputs[left..], budget, &cost, is_to_move)?;
        let read_bytes = inputs.iter().flat_map(|input| &input.files).map(|file| file.bytes).sum();
        let mut part = Plan { inputs, output, cursor: None, ..plan.clone() };
        (part.record.read_bytes, part.record.write_bytes) = (read_bytes, read_bytes);
        part.check(view).is_ok().then_some(part)
    })
}

/// The files of the first keys that are to move and fit the budget, with all that they overlap.
fn part_of(
    inputs: &[PlanInput],
    budget: u64,
    cost: &impl Fn(&[&Arc<FileMeta>]) -> u64,
    is_to_move: impl Fn(&PlanInput) -> bool,
) -> Option<Vec<PlanInput>> {
    let mut files: Vec<(usize, &Arc<FileMeta>)> =
        inputs.iter().enumerate().flat_map(|(n, input)| input.files.iter().map(move |file| (n, file))).collect();
    files.sort_by(|(_, a), (_, b)| a.smallest.cmp(&b.smallest));
    // Where a part may end: whatever begins behind the reach of all before it overlaps none of them.
    let mut ends = Vec::new();
    let mut reach: Option<&Bytes> = None;
    for (at, (_, file)) in files.iter().enumerate() {
        let so_far = reach.map_or(&file.largest, |reach| reach.max(&file.largest));
        if files.get(at + 1).is_none_or(|(_, next)| next.smallest > *so_far) {
            ends.push(at + 1);
        }
        reach = Some(so_far);
    }
    // And it begins there, too: what an earlier part brought to the output is not written again.
    let first = files.iter().position(|(n, _)| is_to_move(&inputs[*n]))?;
    let begin = ends.iter().copied().take_while(|end| *end <= first).last().unwrap_or(0);
    let fits = |end: &usize| {
        let files = files.get(begin..*end).unwrap_or_default();
        cost(&files.iter().map(|(_, file)| *file).collect::<Vec<_>>()) <= budget
    };
    let taken = ends[..ends.partition_point(fits)].last().copied().filter(|end| *end > begin)?;
    let mut part: Vec<PlanInput> = inputs.iter().map(|input| PlanInput { files: Vec::new(), ..*input }).collect();
    for (n, file) in &files[begin..taken] {
        part[*n].files.push(Arc::clone(file));
    }
    part.retain(|input| !input.files.is_empty());
    Some(part)
}

#[cfg(test)]
mod tests;
