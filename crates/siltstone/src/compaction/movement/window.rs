//! HyperLevelDB's picker: not a file but the window of neighbouring files of a level that carries down the most bytes for each byte
//! that it rewrites in the next level, `bytes(i) / bytes(i+1)`, both together below a budget. Of windows with equal ratios the
//! smallest is taken. Files that overlap nothing are in no window: they move for free.
//!
//! Where no window fits the budget, the file that overlaps the fewest files goes.

use std::ops::Range;
use std::sync::Arc;

use super::Choice;
use crate::num::to_f64;
use crate::version::{FileMeta, Run};

/// The best window that begins with a file.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Window {
    /// Its files.
    pub len: usize,
    /// Bytes of its files for each byte of the next level that they overlap.
    pub ratio: f64,
    /// Bytes of its files and of what they overlap.
    pub bytes: u64,
}

/// What the files of a run overlap in one run below, found in one pass over both.
struct Met {
    /// By file, the positions of what it overlaps.
    ranges: Vec<Range<usize>>,
    /// Bytes of the files below before each position.
    bytes_before: Vec<u64>,
}

impl Met {
    fn new(run: &Run, below: &Run) -> Met {
        let mut bytes_before = vec![0];
        for file in &below.files {
            bytes_before.push(bytes_before.last().copied().unwrap_or(0) + file.bytes);
        }
        let (mut from, mut to) = (0, 0);
        let range = |file: &Arc<FileMeta>| {
            from += below.files[from..].iter().take_while(|other| other.largest < file.smallest).count();
            to = from.max(to);
            to += below.files[to..].iter().take_while(|other| other.smallest <= file.largest).count();
            from..to
        };
        let ranges = run.files.iter().map(range).collect();
        Met { ranges, bytes_before }
    }

    fn bytes(&self, files: Range<usize>) -> u64 {
        let (first, last) = (&self.ranges[files.start], &self.ranges[files.end - 1]);
        self.bytes_before[last.end] - self.bytes_before[first.start]
    }
}

/// The windows of a run.
struct Windows<'a> {
    choice: &'a Choice<'a>,
    run: &'a Run,
    met: Vec<Met>,
}

impl<'a> Windows<'a> {
    fn new(choice: &'a Choice<'a>, run: &'a Run) -> Windows<'a> {
        let below = choice.view().level(choice.below()).runs.iter();
        Windows { choice, run, met: below.map(|below| Met::new(run, below)).collect() }
    }

    fn overlapped(&self, files: Range<usize>) -> u64 {
        self.met.iter().map(|met| met.bytes(files.clone())).sum()
    }

    /// The best window that begins at file `at`; none if no window fits.
    fn best(&self, at: usize) -> Option<Window> {
        let mut own = 0u64;
        let mut best: Option<Window> = None;
        for (n, file) in self.run.files.iter().enumerate().skip(at) {
            let moves_freely = self.overlapped(n..n + 1) == 0;
            if moves_freely || self.choice.view().is_busy(file.id) {
                break;
            }
            own += file.bytes;
            let rewritten = self.overlapped(at..n + 1);
            let bytes = own.saturating_add(rewritten);
            if bytes >= self.choice.window_bytes {
                break;
            }
            let ratio = to_f64(own) / to_f64(rewritten);
            if best.is_none_or(|best| ratio > best.ratio) {
                best = Some(Window { len: n + 1 - at, ratio, bytes });
            }
        }
        best
    }
}

/// The best window of each candidate. Both the candidates and the files of a run ascend, so one pass over each run finds them.
fn of_candidates(choice: &Choice<'_>, candidates: &[&FileMeta]) -> Vec<Option<Window>> {
    let mut found = vec![None; candidates.len()];
    for run in &choice.view().level(choice.level).runs {
        let windows = Windows::new(choice, run);
        let mut at = 0;
        for (candidate, found) in candidates.iter().zip(&mut found) {
            while run.files.get(at).is_some_and(|file| file.smallest < candidate.smallest) {
                at += 1;
            }
            if run.files.get(at).is_some_and(|file| file.id == candidate.id) {
                *found = windows.best(at);
            }
        }
    }
    found
}

/// The window's ratio, negative; without a window the number of files overlapped.
pub fn scores(choice: &Choice<'_>, candidates: &[&FileMeta]) -> Vec<f64> {
    let fewest = super::overlapped_files(choice.view(), choice.below(), candidates);
    let windows = of_candidates(choice, candidates).into_iter();
    windows.zip(fewest).map(|(window, met)| window.map_or(met, |window| -window.ratio)).collect()
}

/// The bytes of each candidate's window.
pub fn sizes(choice: &Choice<'_>, candidates: &[&FileMeta]) -> Vec<f64> {
    let windows = of_candidates(choice, candidates).into_iter();
    windows.map(|window| window.map_or(0.0, |window| to_f64(window.bytes))).collect()
}

/// The files of the window that begins at `at`; that file alone if no window fits.
pub fn files<'a>(choice: &Choice<'_>, run: &'a Run, at: usize) -> &'a [Arc<FileMeta>] {
    let len = Windows::new(choice, run).best(at).map_or(1, |window| window.len);
    &run.files[at..(at + len).min(run.files.len())]
}
