//! Throughput and gauges over time, as columns.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::pack::short;

/// Points of a time series, at most: more than a screen is wide.
const POINTS: usize = 1500;

/// A line of `windows.jsonl`.
#[derive(Clone, Deserialize)]
pub(super) struct Window {
    at_s: f64,
    length_s: f64,
    #[serde(default)]
    phase: String,
    #[serde(default)]
    operations: BTreeMap<String, u64>,
    #[serde(default)]
    longest_ns: BTreeMap<String, u64>,
    queued: Option<u64>,
    runs: Option<u64>,
    debt_bytes: Option<u64>,
    tree_bytes: Option<u64>,
    cache_hits: Option<u64>,
    cache_misses: Option<u64>,
    stall_s: Option<f64>,
    cpu_s: Option<f64>,
    memory_bytes: Option<u64>,
}

/// Columns, one entry a window. What was not measured is null.
#[derive(Default, Serialize)]
pub(super) struct PackedWindows {
    at: Vec<f64>,
    length: Vec<f64>,
    phase: Vec<usize>,
    phases: Vec<String>,
    operations: BTreeMap<String, Vec<u64>>,
    longest_ns: BTreeMap<String, Vec<Option<u64>>>,
    queued: Vec<Option<u64>>,
    runs: Vec<Option<u64>>,
    debt_bytes: Vec<Option<u64>>,
    tree_bytes: Vec<Option<u64>>,
    cache_hits: Vec<Option<u64>>,
    cache_misses: Vec<Option<u64>>,
    stall_s: Vec<Option<f64>>,
    cpu_s: Vec<Option<f64>>,
    memory_bytes: Vec<Option<u64>>,
    /// How many windows of the run are one here.
    joined: usize,
}

impl PackedWindows {
    pub(super) fn new(windows: &[Window]) -> PackedWindows {
        let joined = windows.len().div_ceil(POINTS).max(1);
        let windows: Vec<Window> = windows.chunks(joined).filter_map(join).collect();
        let kinds = |of: fn(&Window) -> &BTreeMap<String, u64>| {
            let mut kinds: Vec<&String> = windows.iter().flat_map(|window| of(window).keys()).collect();
            kinds.sort_unstable();
            kinds.dedup();
            kinds
        };
        let mut phases: Vec<String> = Vec::new();
        let mut phase = Vec::with_capacity(windows.len());
        for window in &windows {
            let known = phases.iter().position(|name| *name == window.phase);
            phase.push(known.unwrap_or(phases.len()));
            if known.is_none() {
                phases.push(window.phase.clone());
            }
        }
        let column = |of: fn(&Window) -> Option<u64>| windows.iter().map(of).collect();
        let fraction = |of: fn(&Window) -> Option<f64>| windows.iter().map(|window| of(window).map(short)).collect();
        PackedWindows {
            at: windows.iter().map(|window| (window.at_s * 1e6).round() / 1e6).collect(),
            length: windows.iter().map(|window| short(window.length_s)).collect(),
            phase,
            operations: kinds(|window| &window.operations)
                .into_iter()
                .map(|kind| {
                    (kind.clone(), windows.iter().map(|w| w.operations.get(kind).copied().unwrap_or(0)).collect())
                })
                .collect(),
            longest_ns: kinds(|window| &window.longest_ns)
                .into_iter()
                .map(|kind| (kind.clone(), windows.iter().map(|w| w.longest_ns.get(kind).copied()).collect()))
                .collect(),
            queued: column(|window| window.queued),
            runs: column(|window| window.runs),
            debt_bytes: column(|window| window.debt_bytes),
            tree_bytes: column(|window| window.tree_bytes),
            cache_hits: column(|window| window.cache_hits),
            cache_misses: column(|window| window.cache_misses),
            stall_s: fraction(|window| window.stall_s),
            cpu_s: fraction(|window| window.cpu_s),
            memory_bytes: column(|window| window.memory_bytes),
            phases,
            joined,
        }
    }
}

/// Neighbours as one: what is counted is added up, of latencies the longest, of gauges the last.
fn join(windows: &[Window]) -> Option<Window> {
    let (last, first) = (windows.last()?, windows.first()?);
    if windows.len() == 1 {
        return Some(last.clone());
    }
    let mut joined = last.clone();
    (joined.at_s, joined.length_s) = (first.at_s, windows.iter().map(|window| window.length_s).sum());
    joined.operations.clear();
    joined.longest_ns.clear();
    for window in windows {
        for (kind, n) in &window.operations {
            *joined.operations.entry(kind.clone()).or_insert(0) += n;
        }
        for (kind, ns) in &window.longest_ns {
            let longest = joined.longest_ns.entry(kind.clone()).or_insert(0);
            *longest = (*longest).max(*ns);
        }
    }
    let sum = |of: fn(&Window) -> Option<u64>| windows.iter().filter_map(of).reduce(|a, b| a + b);
    joined.cache_hits = sum(|window| window.cache_hits);
    joined.cache_misses = sum(|window| window.cache_misses);
    joined.stall_s = windows.iter().filter_map(|window| window.stall_s).reduce(|a, b| a + b);
    joined.cpu_s = windows.iter().filter_map(|window| window.cpu_s).reduce(|a, b| a + b);
    let most = |of: fn(&Window) -> Option<u64>| windows.iter().filter_map(of).max();
    // A peak that lasted one window only is what a reader looks for.
    joined.queued = most(|window| window.queued);
    joined.debt_bytes = most(|window| window.debt_bytes);
    joined.runs = most(|window| window.runs);
    Some(joined)
}
