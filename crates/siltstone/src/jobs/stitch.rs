//! Stitching (VT-tree; X-Engine's data block reuse): what a merge need not rewrite it links.
//!
//! ```text
//!  inputs   [a b c|k l m n o|x y z]     while its next blocks precede every other input's position, a source needs no merging:
//!           [d e f]       [p q r]       from its position to the end of the last such block it becomes a slice of the same table
//!  outputs  [a..f ][ k..o ][p.....z]    `k..o` is a link
//! ```
//!
//! A part of an input is linked only if the merge would have copied every record of it, and only as metadata can show that:
//!
//! - *No older version is hidden.* Other inputs have nothing between its bounds, and its table has one version of each key
//!   ([`Properties::is_one_version_a_key`](crate::sst::Properties::is_one_version_a_key)).
//! - *No tombstone could be dropped* ([`Survivor::keeps_tombstones`]).
//! - *The output may have it as a file*: no border lies inside, it does not overlap too much below.
//! - *It is worth it*: it has `min_bytes`, and the table can still stay less dead than it may be ([`Stitch`]): what is behind the merge and
//!   was not linked is dead for certain, what is ahead may be linked. If it is not, what was linked is rewritten one day, as it would
//!   have been now.
//!
//! While one source leads, the positions of the others stay, so that each source is asked once when it comes to lead, not at every entry. Where
//! sources alternate one look at the index, some blocks ahead, says no.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::Arc;

use bytes::Bytes;

use super::borders::Borders;
use super::cut::OutputCut;
use super::survive::Survivor;
use crate::compaction::plan::{Plan, Stitch};
use crate::error::Result;
use crate::iter::file::RunScans;
use crate::iter::{MergeForward, RunCursor};
use crate::num::to_usize;
use crate::sst::TableScan;
use crate::version::{FileMeta, SstId, Version};

/// What was linked instead of being copied. Of slices that is an estimate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Linked {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) raw_bytes: u64,
    pub(crate) entries: u64,
}

impl AddAssign for Linked {
    fn add_assign(&mut self, other: Linked) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.raw_bytes += other.raw_bytes;
        self.entries += other.entries;
    }
}

/// Finds what can be linked.
pub(crate) struct Stitcher {
    min_bytes: u64,
    max_dead_percent: u64,
    /// Of each table with slices, the bytes of files that stay or were linked.
    alive: BTreeMap<SstId, u64>,
    /// By source, the file that was looked at last.
    files: Vec<Option<Looked>>,
    /// Whether the source's files are in the output's level already.
    stays: Vec<bool>,
    /// The source and its file from which nothing can be linked before another one leads.
    settled: Option<(usize, usize)>,
    linked: Linked,
}

/// What is known of an input file once it is open.
#[derive(Clone, Copy)]
struct Looked {
    file: usize,
    is_plain: bool,
    /// Fewer blocks than this are not worth it.
    blocks: usize,
}

/// A part of an input that is to be linked.
pub(crate) struct Link {
    /// The file that it becomes, but for its number unless it is all of the input.
    pub(crate) file: FileMeta,
    /// Whether it is all of the input: then the file itself goes to the output.
    pub(crate) is_all: bool,
    /// Whether it does not change its level.
    pub(crate) stays: bool,
}

/// Where a link begins and ends.
struct Found {
    source: usize,
    file: Arc<FileMeta>,
    first: Bytes,
    /// The key before which it ends; none for the end of the file.
    limit: Option<Bytes>,
    /// Of every `of` bytes of the table's records, those from the position to the end of the file.
    ahead: u64,
    of: u64,
}

impl Stitcher {
    /// For a merge of `plan` in `version`; none if it rewrites everything.
    pub(crate) fn new(plan: &Plan, version: &Version) -> Option<Stitcher> {
        let stitch = plan.stitch()?;
        let mut alive = version.sliced();
        for file in plan.files() {
            if let Some(bytes) = alive.get_mut(&file.table()) {
                *bytes = bytes.saturating_sub(file.bytes);
            }
        }
        Some(Stitcher {
            min_bytes: stitch.min_bytes(plan.cut.file_bytes),
            max_dead_percent: u64::from(stitch.max_dead_percent),
            alive,
            files: vec![None; plan.inputs.len()],
            stays: plan.inputs.iter().map(|input| input.level == plan.output.level).collect(),
            settled: None,
            linked: Linked::default(),
        })
    }

    /// Whether it makes sense to try to [`link`](Self::link) while this source is in this file of its. A compare of integers.
    #[inline]
    pub(crate) fn is_due(&self, at: Option<(usize, usize)>) -> bool {
        self.settled != at
    }

    /// What can be linked from the position of `merge` on, where the entry was not judged yet; the merge goes on behind it then.
    ///
    /// # Errors
    /// `Corruption` or `Io` from the input.
    pub(crate) fn link(
        &mut self,
        merge: &mut MergeForward<RunCursor<RunScans>>,
        survivor: &mut Survivor,
        cut: &OutputCut,
        borders: &Borders,
    ) -> Result<Option<Link>> {
        let Some(found) = self.look(merge, survivor, cut, borders) else { return Ok(None) };
        let Found { source, file, first, limit, ahead, of } = found;
        let mut last = file.largest.clone();
        merge.skip(|run| match &limit {
            Some(limit) => {
                last = run.skip_to(limit)?;
                Ok(())
            }
            None => run.skip_past(&file.largest),
        })?;
        // Where it stands now tells how much it has passed.
        let left = match limit {
            Some(_) => merge.sources()[source].at().map_or(0, |(_, cursor)| cursor.inner().up_to(&file.largest).0),
            None => 0,
        };
        let slice = file.slice(first, last, ahead.saturating_sub(left), of);
        let is_all = (&slice.smallest, &slice.largest) == (&file.smallest, &file.largest);
        Ok(Some(Link { file: slice, is_all, stays: self.stays[source] }))
    }

    /// Whether something can be linked, and up to where.
    fn look(
        &mut self,
        merge: &MergeForward<RunCursor<RunScans>>,
        survivor: &mut Survivor,
        cut: &OutputCut,
        borders: &Borders,
    ) -> Option<Found> {
        let (source, index) = merge.position()?;
        let key = merge.peek()?.key;
        // Other versions of this key were merged: from the next key on.
        if !survivor.is_new_key(key) {
            self.settled = None;
            return None;
        }
        self.settled = Some((source, index));
        let run = merge.sources().get(source)?;
        let (_, cursor) = run.at()?;
        let scan = cursor.inner();
        let file = &run.files().files[index].meta;
        let looked = self.looked(source, index, scan);
        if !looked.is_plain || file.range_tombstones > 0 {
            return None;
        }
        let limit = [merge.runner_up().map(|entry| entry.key), borders.next_after(key)].into_iter().flatten().min();
        let limit = limit.filter(|limit| *limit <= &file.largest[..]);
        let certain = match limit {
            Some(limit) => scan.blocks_before(looked.blocks, limit)?,
            None => &file.largest[..],
        };
        // Keys before the limit are all that is linked, but which is the last of them is not known yet.
        let last = limit.unwrap_or(&file.largest);
        let (inside, of) = scan.up_to(certain);
        let (ahead, _) = scan.up_to(&file.largest);
        let links = share(file.table_bytes(), inside, of) >= self.min_bytes
            && self.may_live(file, share(file.table_bytes(), ahead, of))
            && (file.table_tombstones() == 0 || survivor.keeps_tombstones(key, last, file.min_seq))
            && cut.may_hold(key, last);
        links.then(|| Found {
            source,
            file: Arc::clone(file),
            first: Bytes::copy_from_slice(key),
            limit: limit.map(Bytes::copy_from_slice),
            ahead,
            of,
        })
    }

    /// Notes that a link was made.
    pub(crate) fn made(&mut self, link: &FileMeta) {
        *self.alive.entry(link.table()).or_insert(0) += link.bytes;
        self.linked.files += 1;
        self.linked.bytes += link.bytes;
        self.linked.raw_bytes += link.raw_bytes;
        self.linked.entries += link.entries;
        self.settled = None;
    }

    /// What stood in the way may be behind the merge: a border was crossed.
    pub(crate) fn look_again(&mut self) {
        self.settled = None;
    }

    pub(crate) fn linked(&self) -> Linked {
        self.linked
    }

    /// Whether enough of the table of `file` may be alive in the end, if `ahead` bytes of it are not behind the merge.
    fn may_live(&self, file: &FileMeta, ahead: u64) -> bool {
        let alive = self.alive.get(&file.table()).copied().unwrap_or(0).saturating_add(ahead);
        Stitch::may_live(file.table_bytes(), alive, self.max_dead_percent)
    }

    fn looked(&mut self, source: usize, file: usize, scan: &TableScan) -> Looked {
        if let Some(looked) = self.files[source].filter(|looked| looked.file == file) {
            return looked;
        }
        let properties = scan.table().properties();
        let block_bytes = (scan.data_bytes() / properties.blocks.max(1)).max(1);
        let looked = Looked {
            file,
            is_plain: properties.is_one_version_a_key(),
            // Blocks differ in size.
            blocks: to_usize(self.min_bytes / block_bytes / 2).max(1),
        };
        self.files[source] = Some(looked);
        looked
    }
}

/// Of `n`, `part` in every `of`.
fn share(n: u64, part: u64, of: u64) -> u64 {
    u64::try_from(u128::from(n) * u128::from(part) / u128::from(of.max(1))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
