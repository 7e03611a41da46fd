//! Where the output files of a merge end.
//!
//! Every file ends at its size. Besides, the level below the output, whose files are called grandparents here as in LevelDB,
//! can have a say, for the output will one day be merged with it:
//!
//! - [`align`](CutRule::align): from half of the size on, a file ends at the border of a grandparent, so that later merges rewrite
//!   fewer files that overlap by a little. RocksDB's rule: each border passed raises the size at which the next one counts, from
//!   50 % by 5 % up to 90 %. It lowers write amplification more than most picking policies do.
//! - [`grandparent_bytes`](CutRule::grandparent_bytes): a file ends before it overlaps more than this, so that no later merge
//!   of one file grows without bound (LevelDB).
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
    /// Grandparent borders that the current file has passed.
    borders: u64,
    /// Bytes of the grandparents that the current file has left behind.
    overlapped_bytes: u64,
    /// Whether the current file holds an entry.
    begun: bool,
}

impl OutputCut {
    /// For a merge above `grandparents`, files ascending by key ([`Plan::grandparents`](crate::compaction::Plan::grandparents)).
    pub fn new(rule: CutRule, grandparents: Vec<Arc<FileMeta>>) -> OutputCut {
        OutputCut { rule, grandparents, next: 0, borders: 0, overlapped_bytes: 0, begun: false }
    }

    /// Whether the current output file, now of `file_bytes`, ends before `key`. Call it once before each entry that is kept, with
    /// [`Fate::first_of_key`](super::survive::Fate::first_of_key). Never true within a user key, nor for an empty file.
    pub fn before(&mut self, key: &[u8], first_of_key: bool, file_bytes: u64) -> bool {
        if !first_of_key && !planted::active(Bug::VersionsSplit) {
            return false;
        }
        let crossed = self.advance(key);
        let ends = self.begun
            && (file_bytes >= self.rule.file_bytes
                || (crossed && self.rule.align && self.is_aligned_end(file_bytes))
                || (self.rule.grandparent_bytes > 0 && self.overlapped_bytes > self.rule.grandparent_bytes));
        if ends {
            self.borders = 0;
            self.overlapped_bytes = 0;
        }
        self.begun = true;
        ends
    }

    /// Leaves behind the grandparents that end below `key`; whether there were any.
    fn advance(&mut self, key: &[u8]) -> bool {
        let from = self.next;
        while let Some(file) = self.grandparents.get(self.next).filter(|file| file.largest[..] < *key) {
            self.next += 1;
            if self.begun {
                self.borders += 1;
                self.overlapped_bytes += file.bytes;
            }
        }
        self.next > from
    }

    /// Percentages of the size, in integers so that no rounding decides.
    fn is_aligned_end(&self, file_bytes: u64) -> bool {
        let percent = (45 + 5 * self.borders.min(9)).clamp(50, 90);
        u128::from(file_bytes) * 100 >= u128::from(self.rule.file_bytes) * u128::from(percent)
    }
}

#[cfg(test)]
mod tests;
