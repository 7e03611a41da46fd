//! When operations come: how many a second, how evenly, and whether in bursts.

use serde::Serialize;

use crate::num::{count, float, ratio};

/// Rates are counted in at most as many windows; more are joined two by two.
const MOST: usize = 512;
const FIRST_NS: u64 = 1 << 20;

/// When the calls of a phase came.
#[derive(Default)]
pub(super) struct Times {
    calls: u64,
    first_ns: u64,
    last_ns: u64,
    squares: f64,
    window_ns: u64,
    windows: Vec<u64>,
}

/// How operations come.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ArrivalFit {
    /// Operations a second; 0 where nobody knows.
    pub per_second: f64,
    /// The deviation of the gaps between calls over their mean: 0 for a constant pace, 1 for a Poisson process, more for bursts.
    pub gap_variation: f64,
    /// `constant`, `poisson`, `bursts`, or `unknown` for operations without times.
    pub law: &'static str,
    /// Of bursts: rates, and for how many seconds each holds, beginning with the first.
    pub stretches: Vec<(f64, f64)>,
    /// Of bursts: the share of the variance of the rate, window by window, that two levels explain.
    pub explained: f64,
}

impl Times {
    pub(super) fn add(&mut self, at_ns: u64) {
        if self.calls == 0 {
            (self.first_ns, self.last_ns, self.window_ns) = (at_ns, at_ns, FIRST_NS);
        }
        let gap = float(at_ns - self.last_ns);
        self.squares += gap * gap;
        self.last_ns = at_ns;
        self.calls += 1;
        let mut window = (at_ns - self.first_ns) / self.window_ns;
        while window >= count(MOST) {
            self.windows = self.windows.chunks(2).map(|pair| pair.iter().sum()).collect();
            self.window_ns *= 2;
            window = (at_ns - self.first_ns) / self.window_ns;
        }
        let window = crate::num::index(window);
        if window >= self.windows.len() {
            self.windows.resize(window + 1, 0);
        }
        self.windows[window] += 1;
    }

    pub(super) fn elapsed_s(&self) -> f64 {
        float(self.last_ns - self.first_ns) / 1e9
    }

    /// What comes nearest, where each call is so many operations.
    pub(super) fn fit(&self, operations: f64) -> ArrivalFit {
        let gaps = float(self.calls.saturating_sub(1));
        let elapsed_s = self.elapsed_s();
        if gaps < 2.0 || elapsed_s <= 0.0 {
            return ArrivalFit {
                per_second: 0.0,
                gap_variation: 0.0,
                law: "unknown",
                stretches: Vec::new(),
                explained: 0.0,
            };
        }
        let mean = elapsed_s * 1e9 / gaps;
        let gap_variation = libm::sqrt((self.squares / gaps - mean * mean).max(0.0)) / mean;
        let per_second = gaps / elapsed_s * operations;
        let (levels, explained) = self.bursts().unwrap_or_default();
        let law = if !levels.is_empty() {
            "bursts"
        } else if gap_variation < 0.5 {
            "constant"
        } else {
            "poisson"
        };
        let stretches = levels.into_iter().map(|(rate, time)| (rate * operations, time)).collect();
        ArrivalFit { per_second, gap_variation, law, stretches, explained }
    }

    /// Two levels of the rate that take turns, and what they explain of its variance; none if it has one level only.
    fn bursts(&self) -> Option<(Vec<(f64, f64)>, f64)> {
        // The last window is not whole.
        let windows = &self.windows[..self.windows.len().saturating_sub(1)];
        if windows.len() < 16 {
            return None;
        }
        let n = float(count(windows.len()));
        let mean = float(windows.iter().sum()) / n;
        let variance = windows.iter().map(|w| (float(*w) - mean) * (float(*w) - mean)).sum::<f64>() / n;
        // Otsu's threshold: what leaves least variance within two classes.
        let mut sorted = windows.to_vec();
        sorted.sort_unstable();
        let (mut below, mut best) = (0.0, (0.0, 0u64, 0.0, 0.0));
        for (at, pair) in sorted.windows(2).enumerate() {
            below += float(pair[0]);
            let low_n = float(count(at) + 1);
            let (low, high) = (below / low_n, (mean * n - below) / (n - low_n));
            let between = low_n / n * (1.0 - low_n / n) * (high - low) * (high - low);
            if between > best.0 && pair[0] < pair[1] {
                best = (between, pair[0], low, high);
            }
        }
        let (between, threshold, low, high) = best;
        let explained = if variance > 0.0 { between / variance } else { 0.0 };
        // Chance alone scatters a rate by its root.
        let is_clear = explained > 0.8 && high > 1.5 * low && high - low > 6.0 * libm::sqrt(mean.max(1.0));
        if !is_clear {
            return None;
        }
        let is_high: Vec<bool> = windows.iter().map(|w| *w > threshold).collect();
        let runs: Vec<(bool, u64)> = is_high.chunk_by(|a, b| a == b).map(|run| (run[0], count(run.len()))).collect();
        let window_s = float(self.window_ns) / 1e9;
        let level = |of: bool, rate: f64| {
            // The runs at both ends are cut off, if there are others.
            let inner = || runs.iter().enumerate().filter(|(at, run)| run.0 == of && *at > 0 && *at + 1 < runs.len());
            let cut: Vec<u64> = inner().map(|(_, run)| run.1).collect();
            let all: Vec<u64> = runs.iter().filter(|run| run.0 == of).map(|run| run.1).collect();
            let used = if cut.is_empty() { all } else { cut };
            (rate / window_s, ratio(used.iter().sum(), count(used.len())) * window_s)
        };
        let (low, high) = (level(false, low), level(true, high));
        Some((if runs.first()?.0 { vec![high, low] } else { vec![low, high] }, explained))
    }
}
