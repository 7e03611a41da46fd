//! What a picker had to choose from: every set of runs that it looks at, with the scores by which it compares them, for the decision record.
//!
//! | picker | candidates | scores, smaller goes first |
//! | --- | --- | --- |
//! | `similar-size` | the span that begins at each idle run | its position, from the newest; none if it is too short |
//! | `exploring` | every window | minus its runs, then its bytes; its bytes a run while stuck; none for the first if out of ratio |
//! | `size-sorted` | every window of neighbours by size | the bytes of its smallest run; none if nothing of it qualifies |
//! | `size-levels`, `prefix` | the newest runs down to each | minus how many; none if the level has room, or the oldest is too large |
//! | `suffix` | the runs that end at each | minus its position, so that the oldest goes first; none if it is too large |
//! | `time-window`, newest window | every bucket | the average bytes of its runs; none if it has too few |
//!
//! The other pickers take what their group gives; there the groups are the candidates. A score of "none" is infinite. While a tree of HBase's is
//! stuck, a later window must be better by 5 %, so the chosen one may be a little behind the best.

use std::cmp::Ordering;

use super::pick::{RunPick, Setting, count};
use super::{RunFact, grouping, rules};
use crate::num::{to_f64, to_u64};

/// Runs that a picker could have taken.
#[derive(Clone, PartialEq, Debug)]
pub struct Considered {
    /// The position of the newest of them.
    pub newest: usize,
    /// How many.
    pub runs: usize,
    /// What the picker compares, smaller ones first.
    pub scores: Vec<f64>,
}

impl Considered {
    /// Compares by scores, the first that differ.
    pub fn cmp_scores(&self, other: &Considered) -> Ordering {
        let scores = self.scores.iter().zip(&other.scores).map(|(a, b)| a.total_cmp(b));
        scores.into_iter().find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    }
}

/// The position of the runs `taken`, ascending, among what was considered.
pub fn chosen(considered: &[Considered], taken: &[usize]) -> Option<usize> {
    let fits = |(_, one): &(usize, &Considered)| taken.first() == Some(&one.newest) && taken.len() == one.runs;
    // Windows by size may begin at the same run and be as long.
    let fitting = considered.iter().enumerate().filter(fits);
    fitting.min_by(|(_, a), (_, b)| a.cmp_scores(b)).map(|(at, _)| at)
}

const NONE: f64 = f64::INFINITY;

fn bytes(runs: &[RunFact<'_>]) -> f64 {
    to_f64(runs.iter().map(|run| run.bytes).fold(0, u64::saturating_add))
}

fn number(n: usize) -> f64 {
    to_f64(to_u64(n))
}

impl RunPick {
    /// What [`choose`](RunPick::choose) chooses from; empty for pickers that have no choice within a group.
    pub fn considered(&self, runs: &[RunFact<'_>], setting: Setting) -> Vec<Considered> {
        let one = |newest: usize, runs: usize, score: f64| Considered { newest, runs, scores: vec![score] };
        let if_fits = |fits: bool, score: f64| if fits { score } else { NONE };
        match self {
            RunPick::SimilarSize { percent, min_runs, max_runs, stop } => {
                let (min, max) = (count(*min_runs).max(2), max_runs.map_or(usize::MAX, count));
                let spans: Vec<_> = rules::similar_spans(runs, *percent, max, *stop).collect();
                if spans.iter().any(|span| span.len() >= min) {
                    let score = |span: &std::ops::Range<usize>| if_fits(span.len() >= min, number(span.start));
                    return spans.iter().map(|span| one(span.start, span.len(), score(span))).collect();
                }
                let excess = rules::excess_spans(runs, setting.due_runs, max).into_iter().flatten();
                let excess = excess.filter(|span| span.len() >= 2);
                excess.map(|span| one(span.start, span.len(), number(span.start))).collect()
            }
            RunPick::Exploring { min_runs, max_runs, ratio, min_memtables, stuck_runs } => {
                let stuck = rules::is_stuck(runs, count(*stuck_runs));
                let idle = rules::idle_newest(runs);
                let min_bytes = min_memtables * to_f64(setting.memtable_bytes);
                let widths = count(*min_runs).max(2)..=count(*max_runs);
                let windows = (0..idle.len()).rev().flat_map(|oldest| {
                    let widths = widths.clone().take_while(move |width| *width <= oldest + 1);
                    widths.map(move |width| oldest + 1 - width..oldest + 1)
                });
                let scored = windows.map(|window| {
                    let own = &idle[window.clone()];
                    let total = bytes(own);
                    let fits = total < min_bytes || rules::in_ratio(own, *ratio);
                    let first = if stuck { total / number(own.len()) } else { -number(own.len()) };
                    Considered { newest: window.start, runs: own.len(), scores: vec![if_fits(fits, first), total] }
                });
                scored.collect()
            }
            RunPick::SizeSorted { ratio, lowest_ratio, max_runs, file_max } => {
                let tried = rules::ratios(runs, *ratio, *lowest_ratio, count(*file_max));
                let windows = |ratio: f64| rules::size_windows(runs, ratio, count(*max_runs)).collect::<Vec<_>>();
                let found = tried.map(windows).find(|windows| windows.iter().any(|(_, taken)| taken.is_some()));
                let scored = found.unwrap_or_default().into_iter().map(|(window, taken)| {
                    let all = taken.as_ref().unwrap_or(&window);
                    let newest = all.iter().copied().min().unwrap_or(0);
                    let smallest = window.first().map_or(0.0, |at| to_f64(runs[*at].bytes));
                    one(newest, all.len(), if_fits(taken.is_some(), smallest))
                });
                scored.collect()
            }
            RunPick::SizeLevels { ratio, runs_per_level, jitter_percent } => {
                let full = rules::full_prefixes(runs, *ratio, count(*runs_per_level), *jitter_percent);
                let prefixes = 2..=if full.is_empty() { 0 } else { runs.len() };
                prefixes.map(|len| one(0, len, if_fits(full.contains(&len), -number(len)))).collect()
            }
            RunPick::Suffix { min_runs, max_runs, ratio } => {
                let (min, max) = (count(*min_runs).max(2), count(*max_runs));
                let idle = rules::idle_newest(runs);
                let suffixes = (min - 1..idle.len()).map(|end| (end + 1).saturating_sub(max)..end + 1);
                let score = |span: &std::ops::Range<usize>| {
                    if_fits(rules::suffix_fits(idle, span, *ratio), -number(span.end - 1))
                };
                suffixes.map(|span| one(span.start, span.len(), score(&span))).collect()
            }
            RunPick::Prefix { max_bytes, ratio, .. } => {
                let small = rules::small_newest(runs, *max_bytes);
                let score = |len: usize| if_fits(rules::prefix_fits(runs, len, *ratio), -number(len));
                (2..=small).map(|len| one(0, len, score(len))).collect()
            }
            RunPick::TimeWindow { min_runs, low, high, min_bytes, .. } if setting.newest_group => {
                let buckets = grouping::size_buckets(runs, *low, *high, *min_bytes);
                let scored = buckets.into_iter().map(|bucket| {
                    let total: f64 = bucket.iter().map(|at| to_f64(runs[*at].bytes)).sum();
                    let fits = bucket.len() >= count(*min_runs).max(2);
                    let newest = bucket.first().copied().unwrap_or(0);
                    one(newest, bucket.len(), if_fits(fits, total / number(bucket.len())))
                });
                scored.collect()
            }
            RunPick::All {}
            | RunPick::Due { .. }
            | RunPick::Smallest { .. }
            | RunPick::Oldest { .. }
            | RunPick::Binomial { .. }
            | RunPick::TimeWindow { .. } => Vec::new(),
        }
    }
}
