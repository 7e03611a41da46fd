//! What compaction costs, by keyspace, level and reason (sarkar21 section 4.2).
//!
//! Everything here is added up when a job ends or a tree is installed, from the job's [`Decision`]; reads count on the striped counters of
//! their keyspace. Nothing is counted per entry.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use crate::compaction::oldest::Loss;
use crate::compaction::{Action, Decision, Ending, Reason};
use crate::num::{to_f64, to_u64, to_usize};

/// Reasons that are told apart: a policy's own words could be new each time.
const MAX_REASONS: usize = 64;
/// Samples of the runs over time.
const MAX_SAMPLES: usize = 256;

/// What the jobs of one reason did. Bytes; times are nanoseconds.
#[derive(Clone, Default, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct ReasonStats {
    /// The trigger of the rule that fired, `layout`, `manual`, or a policy's own words.
    pub reason: String,
    /// Jobs that took effect: merges, moves and drops.
    pub jobs: u64,
    /// Jobs that failed or were cancelled. What they read and wrote is counted with the rest.
    pub abandoned: u64,
    /// Bytes that merges read.
    pub bytes_read: u64,
    /// Bytes that merges wrote.
    pub bytes_written: u64,
    /// Bytes that merges linked to their output instead of reading and writing them.
    pub bytes_linked: u64,
    /// Files that changed their level without being rewritten.
    pub moved_files: u64,
    /// Their bytes.
    pub moved_bytes: u64,
    /// Files that went away unread, because they held dead tombstones only, or the oldest data of a keyspace that may lose it.
    pub dropped_files: u64,
    /// From picking to the manifest's update, all jobs together.
    pub took_ns: u64,
    /// Computing.
    pub cpu_ns: u64,
    /// File calls.
    pub io_ns: u64,
}

/// How long merges took, over the decisions that are kept (option `decision_records`). Nanoseconds.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct MergeLatency {
    /// Merges that took effect.
    pub merges: u64,
    /// From picking to the manifest's update, on average.
    pub mean_ns: u64,
    /// Half of them took at most this.
    pub p50_ns: u64,
    /// Nine in ten.
    pub p90_ns: u64,
    /// Ninety-nine in a hundred.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Computing, on average.
    pub mean_cpu_ns: u64,
    /// File calls, on average.
    pub mean_io_ns: u64,
}

/// Sorted runs on disk at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct RunsSample {
    /// Wall time, in milliseconds since 1970.
    pub at_ms: u64,
    /// The runs.
    pub runs: u64,
}

/// What was written to a level, and what was read for it.
#[derive(Clone, Copy, Default)]
pub(crate) struct LevelWork {
    pub(crate) jobs: u64,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    pub(crate) moved_files: u64,
    pub(crate) moved_bytes: u64,
}

/// Work by reason.
#[derive(Default)]
pub(crate) struct ByReason(BTreeMap<String, ReasonStats>);

impl ByReason {
    pub(crate) fn add(&mut self, decision: &Decision) {
        let Some(ended) = &decision.ended else { return };
        let mut reason = name(decision);
        if self.0.len() >= MAX_REASONS && !self.0.contains_key(reason) {
            reason = "other";
        }
        if !self.0.contains_key(reason) {
            self.0.insert(reason.to_owned(), ReasonStats { reason: reason.to_owned(), ..ReasonStats::default() });
        }
        let Some(stats) = self.0.get_mut(reason) else { return };
        stats.bytes_read += ended.bytes_read;
        stats.bytes_written += ended.bytes_written;
        stats.bytes_linked += ended.bytes_linked;
        stats.took_ns += ended.took_ns;
        stats.cpu_ns += ended.cpu_ns;
        stats.io_ns += ended.io_ns;
        if ended.ending != Ending::Done {
            stats.abandoned += 1;
            return;
        }
        stats.jobs += 1;
        match decision.action {
            Action::Merge => {}
            Action::Move => {
                stats.moved_files += decision.input_files();
                stats.moved_bytes += decision.input_bytes();
            }
            Action::Drop => stats.dropped_files += decision.input_files(),
        }
    }

    pub(crate) fn read(&self) -> Vec<ReasonStats> {
        self.0.values().cloned().collect()
    }
}

fn name(decision: &Decision) -> &str {
    match &decision.record.reason {
        Reason::Manual => "manual",
        Reason::Layout => "layout",
        Reason::Policy(words) => words,
        _ => &decision.record.trigger,
    }
}

/// A keyspace's work since the store was opened.
#[derive(Default)]
pub(crate) struct Metrics {
    pub(crate) by_reason: ByReason,
    /// By output level.
    pub(crate) levels: Vec<LevelWork>,
    pub(crate) merge_bytes_read: u64,
    pub(crate) merge_bytes_written: u64,
    pub(crate) merge_bytes_linked: u64,
    pub(crate) flush_bytes: u64,
    /// Bytes of keys and values of the memtables that were flushed, and of what was ingested.
    pub(crate) ingested_bytes: u64,
    /// Bytes that merges under way have written and not installed, and bytes that they have released and that are not gone.
    pub(crate) temporary_bytes: u64,
    pub(crate) temporary_bytes_peak: u64,
    /// What was dropped that was not deleted.
    pub(crate) lost: Loss,
    runs: VecDeque<RunsSample>,
    /// Milliseconds between samples, at least.
    every_ms: u64,
}

impl Metrics {
    /// A job has ended.
    pub(crate) fn ended(&mut self, decision: &Decision) {
        self.by_reason.add(decision);
        let Some(ended) = &decision.ended else { return };
        self.merge_bytes_read += ended.bytes_read;
        self.merge_bytes_written += ended.bytes_written;
        self.merge_bytes_linked += ended.bytes_linked;
        let at = usize::from(decision.to_level);
        if self.levels.len() <= at {
            self.levels.resize(at + 1, LevelWork::default());
        }
        let level = &mut self.levels[at];
        level.jobs += u64::from(ended.ending == Ending::Done);
        level.bytes_read += ended.bytes_read;
        level.bytes_written += ended.bytes_written;
        if decision.action == Action::Move && ended.ending == Ending::Done {
            level.moved_files += decision.input_files();
            level.moved_bytes += decision.input_bytes();
        }
    }

    /// Data that was not deleted has gone.
    pub(crate) fn lose(&mut self, loss: Loss) {
        self.lost = self.lost.plus(loss);
    }

    /// A merge under way has written `more` bytes; it gives all of them back when it ends.
    pub(crate) fn written(&mut self, more: u64) {
        self.temporary_bytes += more;
        self.temporary_bytes_peak = self.temporary_bytes_peak.max(self.temporary_bytes);
    }

    /// A tree with so many runs was installed. When the samples are too many, every second one goes and new ones come half as often: the
    /// series always spans the whole time.
    pub(crate) fn sample(&mut self, at_ms: u64, runs: u64) {
        // The wall clock was set back: what it said before is of another time.
        while self.runs.back().is_some_and(|last| last.at_ms > at_ms) {
            self.runs.pop_back();
        }
        if self.runs.back().is_some_and(|last| at_ms < last.at_ms.saturating_add(self.every_ms)) {
            return;
        }
        if self.runs.len() == MAX_SAMPLES {
            let mut nth = 0;
            self.runs.retain(|_| {
                nth += 1;
                nth % 2 == 1
            });
            let span = self.runs.back().map_or(0, |last| last.at_ms.saturating_sub(self.runs[0].at_ms));
            self.every_ms = (2 * self.every_ms).max(span / to_u64(MAX_SAMPLES / 2)).max(1);
        }
        self.runs.push_back(RunsSample { at_ms, runs });
    }

    pub(crate) fn runs_over_time(&self) -> Vec<RunsSample> {
        self.runs.iter().copied().collect()
    }
}

/// How long the merges among `decisions` took.
pub(crate) fn latency<'a>(decisions: impl Iterator<Item = &'a Decision>) -> MergeLatency {
    let merges: Vec<_> =
        decisions.filter(|decision| decision.is_merge_done()).filter_map(|decision| decision.ended.as_ref()).collect();
    let mut took: Vec<u64> = merges.iter().map(|ended| ended.took_ns).collect();
    took.sort_unstable();
    let n = to_u64(took.len());
    if n == 0 {
        return MergeLatency::default();
    }
    // The smallest time that so many in a hundred do not exceed.
    let percentile = |percent: u64| took[to_usize((n * percent).div_ceil(100).max(1) - 1)];
    MergeLatency {
        merges: n,
        mean_ns: took.iter().sum::<u64>() / n,
        p50_ns: percentile(50),
        p90_ns: percentile(90),
        p99_ns: percentile(99),
        max_ns: percentile(100),
        mean_cpu_ns: merges.iter().map(|ended| ended.cpu_ns).sum::<u64>() / n,
        mean_io_ns: merges.iter().map(|ended| ended.io_ns).sum::<u64>() / n,
    }
}

/// `part` per `whole`; 0 without a whole.
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { to_f64(part) / to_f64(whole) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_is_bounded_and_spans_all_time() {
        let mut metrics = Metrics::default();
        for at in 0..100_000u64 {
            metrics.sample(at * 10, at % 17);
        }
        let series = metrics.runs_over_time();
        assert!(series.len() <= MAX_SAMPLES && series.len() >= MAX_SAMPLES / 4, "{}", series.len());
        assert!(series[0].at_ms == 0 && series.last().is_some_and(|last| last.at_ms > 980_000));
        let gaps: Vec<u64> = series.windows(2).map(|pair| pair[1].at_ms - pair[0].at_ms).collect();
        let widest = gaps.iter().max().copied().unwrap_or(0);
        assert!(gaps.iter().all(|gap| 4 * gap >= widest), "about even: {gaps:?}");
    }
}
