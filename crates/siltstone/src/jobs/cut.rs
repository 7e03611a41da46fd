//! Where the output files of a merge end.
//!
//! Every file ends at its size, and before each key that is a guard of the output level ([`guards`](CutRule::guards), PebblesDB). Besides,
//! the level below the output, whose files are called grandparents here as in LevelDB, can have a say, for the output will one day be
//! merged with it:
//!
//! - [`grandparent_bytes`](CutRule::grandparent_bytes): a file ends before it overlaps more than this, so that no later merge
//!   of one file grows without bound (LevelDB).
//! - [`align`](CutRule::align): RocksDB's rule (level_compaction_dynamic_file_size). Each begin and end of a grandparent is a border.
//!   Where one is crossed, the file ends if it has reached 50 % of its size and 5 % more for each border that it has crossed, this one too,
//!   at most 90 %; if it skips a whole grandparent of more than an eighth of its size; or if it and the grandparents that
//!   it overlaps come to more than `grandparent_bytes`. So later merges rewrite fewer files that overlap by a little. It lowers
//!   write amplification more than most picking policies do.
//!
//! A file never ends between two versions of one user key: if it did, the newer version could move down
//! alone and uncover the older one.

use std::sync::Arc;

use crate::compaction::CutRule;
use crate::planted::{self, Bug};
use crate::version::FileMeta;

/// Decides, before each entry, whether the current output file ends here.
#[derive(Debug)]
pub struct OutputCut {
    rule: CutRule,
    /// Ascending by key.
    grandparents: Vec<Arc<FileMeta>>,
    /// The grandparents before it end below the entries to come.
    next: usize,
    /// With `align`: whether the entry before was in none of the grandparents, but before `next`.
    in_gap: bool,
    /// With `align`: grandparent borders that the current file has crossed.
    borders: u64,
    /// Bytes of the grandparents that the current file overlaps; without `align`, those that it has left behind.
    overlapped_bytes: u64,
    /// Whether the current file holds an entry.
    begun: bool,
}

impl OutputCut {
    /// For a merge above `grandparents`, files ascending by key ([`Plan::grandparents`](crate::compaction::Plan::grandparents)).
    pub fn new(rule: CutRule, grandparents: Vec<Arc<FileMeta>>) -> OutputCut {
        OutputCut { rule, grandparents, next: 0, in_gap: true, borders: 0, overlapped_bytes: 0, begun: false }
    }

    /// Whether the current output file, now of `file_bytes`, ends before `key`. Call it once before each entry that is kept, with
    /// [`Fate::first_of_key`](super::survive::Fate::first_of_key). Never true within a user key, nor for an empty file.
    pub fn before(&mut self, key: &[u8], first_of_key: bool, file_bytes: u64) -> bool {
        if !first_of_key && !planted::active(Bug::VersionsSplit) {
            return false;
        }
        let at_border =
            if self.rule.align { self.ends_aligned(key, file_bytes) } else { self.ends_before_overlap(key) };
        let at_border = at_border || self.rule.guards.is_some_and(|guards| guards.is_guard(key));
        let ends = self.begun && (at_border || file_bytes >= self.rule.file_bytes);
        if ends {
            self.borders = 0;
            // LevelDB counts on when a file ends for its size: a file may end early, never late.
            self.overlapped_bytes = match (self.rule.align, at_border) {
                (true, _) => self.bytes_here(),
                (false, true) => 0,
                (false, false) => self.overlapped_bytes,
            };
        }
        self.begun = true;
        ends
    }

    /// Whether a file with the keys from `first` to `last` that is linked as it is would keep [`CutRule::grandparent_bytes`]. Where it ends
    /// decides nothing else: it is not made anew for being [aligned](CutRule::align).
    pub fn may_hold(&self, first: &[u8], last: &[u8]) -> bool {
        let most = self.rule.grandparent_bytes;
        let met = self.grandparents.iter().skip_while(|file| file.largest[..] < *first);
        let met = met.take_while(|file| file.smallest[..] <= *last);
        most == 0 || met.map(|file| file.bytes).sum::<u64>() <= most
    }

    /// The current file has ended for another reason: the next entry begins one.
    pub fn ended(&mut self) {
        (self.begun, self.borders, self.overlapped_bytes) = (false, 0, 0);
    }

    /// Leaves behind the grandparents that end below `key`; whether those of this file are too many.
    fn ends_before_overlap(&mut self, key: &[u8]) -> bool {
        while let Some(file) = self.grandparents.get(self.next).filter(|file| file.largest[..] < *key) {
            self.next += 1;
            if self.begun {
                self.overlapped_bytes += file.bytes;
            }
        }
        self.rule.grandparent_bytes > 0 && self.overlapped_bytes > self.rule.grandparent_bytes
    }

    fn ends_aligned(&mut self, key: &[u8], file_bytes: u64) -> bool {
        let before = self.overlapped_bytes;
        let crossed = self.cross(key);
        if !self.begun {
            self.overlapped_bytes = self.bytes_here();
        }
        if crossed == 0 {
            return false;
        }
        let CutRule { file_bytes: target, grandparent_bytes: most, .. } = self.rule;
        let too_much = most > 0 && self.overlapped_bytes.saturating_add(file_bytes) > most;
        let skips_one = crossed >= if self.in_gap { 2 } else { 3 } && self.overlapped_bytes - before > target / 8;
        // In integers, so that no rounding decides.
        let percent = 50 + 5 * self.borders.min(8);
        too_much || skips_one || file_bytes >= target.div_ceil(100).saturating_mul(percent)
    }

    /// Goes on to where `key` is among the grandparents; the borders crossed since the entry before.
    fn cross(&mut self, key: &[u8]) -> u64 {
        let mut crossed = 0;
        while let Some(file) = self.grandparents.get(self.next) {
            if *key < if self.in_gap { &file.smallest } else { &file.largest }[..]
                || (!self.in_gap && file.largest == key)
            {
                break;
            }
            if self.begun {
                crossed += 1;
                self.overlapped_bytes += if self.in_gap { file.bytes } else { 0 };
            }
            self.next += usize::from(!self.in_gap);
            self.in_gap = !self.in_gap;
        }
        self.borders += crossed;
        crossed
    }

    /// Bytes of the grandparent that the last key is in.
    fn bytes_here(&self) -> u64 {
        if self.in_gap { 0 } else { self.grandparents.get(self.next).map_or(0, |file| file.bytes) }
    }
}

#[cfg(test)]
mod tests;
