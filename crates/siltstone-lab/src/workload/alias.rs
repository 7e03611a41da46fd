//! Draws from a list of weights in constant time: Walker's alias method (Vose, "A linear algorithm for generating random numbers with a given
//! distribution", 1991). Each cell holds one entry for a share of its width and another entry for the rest.

use std::path::Path;

use anyhow::{Context, ensure};
use siltstone::io::Rng;

use crate::num::{count, float, index};

/// The most weights that a list may have: the table takes 16 bytes each.
const MAX_WEIGHTS: usize = 1 << 20;

/// A list of weights, ready to draw from.
#[derive(Clone, Debug)]
pub(super) struct Alias {
    /// Below which share of a cell, in 2^-64ths, its own entry is meant; and whose the rest is.
    cells: Vec<(u64, u32)>,
}

/// What is wrong with a list of weights.
pub(super) fn check(weights: &[f64]) -> anyhow::Result<()> {
    ensure!(!weights.is_empty(), "no weights");
    ensure!(weights.len() <= MAX_WEIGHTS, "{} weights are more than {MAX_WEIGHTS}", weights.len());
    for (i, weight) in weights.iter().enumerate() {
        ensure!(weight.is_finite() && *weight >= 0.0, "weight {} is {weight}; weights are 0 or more", i + 1);
    }
    ensure!(weights.iter().sum::<f64>() > 0.0, "all weights are 0");
    Ok(())
}

/// The weights of a file: one a line; the last word counts, so that a table "bucket weight" is read, too; `#` begins a comment.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<f64>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the weights {}", path.display()))?;
    let mut weights = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        if let Some(word) = line.split_whitespace().next_back() {
            let weight: f64 =
                word.parse().ok().with_context(|| format!("{}:{}: {word:?} is no number", path.display(), at + 1))?;
            weights.push(weight);
        }
    }
    check(&weights).with_context(|| path.display().to_string())?;
    Ok(weights)
}

impl Alias {
    /// A table of `weights`, which passed [`check`].
    pub(super) fn new(weights: &[f64]) -> Alias {
        let n = float(count(weights.len()));
        let total: f64 = weights.iter().sum();
        let mut left: Vec<f64> = weights.iter().map(|weight| weight / total * n).collect();
        let (mut small, mut large): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
        for (i, share) in (0u32..).zip(&left) {
            if *share < 1.0 { small.push(i) } else { large.push(i) }
        }
        let mut cells: Vec<(u64, u32)> = (0u32..).take(weights.len()).map(|i| (u64::MAX, i)).collect();
        while let (Some(poor), Some(rich)) = (small.pop(), large.pop()) {
            let (at, from) = (index(u64::from(poor)), index(u64::from(rich)));
            // 2^64 rounds down to the largest number, which loses 2^-64.
            cells[at] = (crate::num::floor(left[at] * 18_446_744_073_709_551_616.0), rich);
            left[from] -= 1.0 - left[at];
            if left[from] < 1.0 { small.push(rich) } else { large.push(rich) }
        }
        Alias { cells }
    }

    /// How many entries there are.
    pub(super) fn len(&self) -> u64 {
        count(self.cells.len())
    }

    /// The next entry.
    #[inline]
    pub(super) fn draw(&self, rng: &mut Rng) -> u64 {
        let cell = rng.below(self.len());
        let (own, other) = self.cells[index(cell)];
        if rng.next_u64() < own { cell } else { u64::from(other) }
    }
}
