//! A merge that several lanes share: its keys are divided into spans, and each is merged by itself (RocksDB's subcompactions).
//!
//! ```text
//!  inputs   [------|------]      a border is a key before which about its share of the inputs' bytes lies;
//!           [--][--|--][--]      every version of a key is in one span
//!  outputs  [-][-]  [-][-]       files of one run, which come into the tree together
//! ```
//!
//! Where borders are is guessed from metadata and from the indexes of large files; nothing but the balance depends on it.

use std::sync::Arc;

use bytes::Bytes;

use crate::compaction::plan::{Plan, Release};
use crate::error::Result;
use crate::num::to_u64;
use crate::sst::Table;
use crate::version::FileMeta;

/// A file is looked into if it has more than this share of the input: so many files are opened at most.
const FILES_OPENED: u64 = 128;
/// Keys that are taken from the index of such a file.
const KEYS_A_FILE: usize = 32;

/// The keys of a merge that one lane at a time merges.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    /// The first key; none for the first of all.
    pub(crate) from: Option<Bytes>,
    /// The key before which it ends; none if it does not.
    pub(crate) before: Option<Bytes>,
    /// How many spans its merge has.
    pub(crate) of: usize,
    /// Bytes of the input files that are its, about.
    pub(crate) bytes: u64,
    /// The same of their keys and values.
    pub(crate) raw_bytes: u64,
}

/// A key of an input file, and how many of its bytes lie from there on to the next such key, about.
struct Sample {
    key: Bytes,
    bytes: u64,
}

impl Span {
    /// All that `plan` reads.
    pub(crate) fn whole(plan: &Plan) -> Span {
        let raw_bytes = plan.files().map(|file| file.raw_bytes).sum();
        Span { from: None, before: None, of: 1, bytes: plan.input_bytes(), raw_bytes }
    }

    /// What `plan` reads, for as many lanes, of which none has less than a file to write. Not divided is a merge that gives up its inputs from
    /// the first key on ([`Release::Progressive`]), and one that links: how much of a table is dead is for one to know.
    pub(crate) fn divide(
        plan: &Plan,
        lanes: u32,
        mut open: impl FnMut(&Arc<FileMeta>) -> Result<Arc<Table>>,
    ) -> Result<Vec<Span>> {
        let input_bytes = plan.input_bytes();
        let most = (input_bytes / plan.cut.file_bytes.max(1)).min(u64::from(lanes));
        if most < 2 || plan.release == Release::Progressive || plan.stitch().is_some() {
            return Ok(vec![Span::whole(plan)]);
        }
        let mut samples = Vec::new();
        for file in plan.files() {
            let within = |key: &[u8]| file.smallest[..] < *key && *key <= file.largest[..];
            let keys = if file.bytes > input_bytes / FILES_OPENED {
                let keys = open(file)?.quantiles(KEYS_A_FILE);
                keys.into_iter().filter(|key| within(key)).collect()
            } else {
                Vec::new()
            };
            let parts = to_u64(keys.len() + 1);
            let bytes = |n: usize| file.bytes * (to_u64(n) + 1) / parts - file.bytes * to_u64(n) / parts;
            let keys = std::iter::once(file.smallest.clone()).chain(keys);
            samples.extend(keys.enumerate().map(|(n, key)| Sample { key, bytes: bytes(n) }));
        }
        Ok(Span::whole(plan).cut(samples, most))
    }

    /// As many spans of about as many bytes each, or fewer if there are too few keys.
    fn cut(self, mut samples: Vec<Sample>, parts: u64) -> Vec<Span> {
        samples.sort_by(|a, b| a.key.cmp(&b.key));
        let mut borders: Vec<(Bytes, u64)> = Vec::new();
        let (mut passed, mut last) = (0, samples.first().map(|sample| sample.key.clone()).unwrap_or_default());
        for Sample { key, bytes } in samples {
            let due = u128::from(self.bytes) * u128::from(to_u64(borders.len()) + 1) / u128::from(parts);
            if u128::from(passed) >= due && to_u64(borders.len()) + 1 < parts && key > last {
                last.clone_from(&key);
                borders.push((key, passed));
            }
            passed += bytes;
        }
        let of = borders.len() + 1;
        let raw = |bytes: u64| {
            let raw = u128::from(self.raw_bytes) * u128::from(bytes) / u128::from(self.bytes.max(1));
            u64::try_from(raw).unwrap_or(u64::MAX)
        };
        let end = |n: usize| borders.get(n).map_or(self.bytes, |(_, passed)| *passed);
        let span = |n: usize| {
            let begin = n.checked_sub(1).map_or(0, end);
            Span {
                from: n.checked_sub(1).map(|n| borders[n].0.clone()),
                before: borders.get(n).map(|(key, _)| key.clone()),
                of,
                bytes: end(n) - begin,
                raw_bytes: raw(end(n)) - raw(begin),
            }
        };
        (0..of).map(span).collect()
    }

    /// Whether `key` is behind it.
    #[inline(always)]
    pub(crate) fn ends_before(&self, key: &[u8]) -> bool {
        self.before.as_ref().is_some_and(|before| before[..] <= *key)
    }
}

#[cfg(test)]
mod tests;
