//! How many filter bits a new run gets: the same memory can spare more reads if it is not spread evenly.
//!
//! A lookup of a key that is not there costs a wasted read with the false-positive rate of each run that it asks, so what counts is the sum
//! of the rates p_r. Under a fixed memory of M bits, `sum n_r ln(1/p_r) = M (ln 2)^2`, the sum is least for
//!
//! ```text
//! p_r = min(1, c n_r)       n_r: entries of run r
//! ```
//!
//! (Monkey; Dayan, Athanassoulis, Idreos 2017; by Lagrange for runs of any sizes). Small runs get more bits a key, and a run
//! whose rate would reach 1 gets no filter, its memory goes to the others.
//!
//! A file keeps its bits until it is rewritten, so shares that followed the tree as it is would be wrong soon after. The levels above the last
//! count as full therefore, as in the paper: all runs of a level get the same. Of the last level the runs count that are there.

use std::collections::BTreeMap;
use std::f64::consts::LN_2;

use serde::Deserialize;

use super::layout::Shape;
use super::plan::{Place, PlanInput, places};
use super::view::LsmView;
use crate::num::{to_f64, to_usize};
use crate::sst::filter::expected_rate;
use crate::version::LevelId;

/// How the option `filter_bits_per_key` is shared out among the runs that flushes and merges write. Ingested tables get it as it is.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum FilterBits {
    /// Every run the same bits per key.
    Uniform {},
    /// The same memory for the whole tree, shared out so that a lookup in vain costs the fewest reads (Monkey).
    Monkey {},
    /// Bits per key by level; the option is not looked at.
    PerLevel {
        /// L0 first, each from 0 (no filter) to 64; the last entry holds for all deeper levels.
        bits: Vec<f64>,
    },
    /// Every run so many bits that the runs of a full level together answer falsely as often as one run would with the option's: about
    /// 1.44 log2 of their number more. A lookup then asks one run of a level and that rate, however many runs there are, as
    /// with one filter for the whole level (SlimDB).
    LevelRate {},
    /// No filter for the oldest run, where most lookups that come so far find what they look for (WiredTiger's bloom_oldest = false).
    NoneOnOldest {},
}

impl Default for FilterBits {
    fn default() -> FilterBits {
        FilterBits::Uniform {}
    }
}

/// The most bits per key that a filter is given.
pub const MAX_BITS: f64 = 64.0;

/// Files that are about to be written.
#[derive(Clone, Copy, Debug)]
pub struct NewFiles<'a> {
    /// Where they will stand.
    pub place: Place,
    /// About how many entries they will hold.
    pub entries: u64,
    /// What they replace.
    pub replaced: &'a [PlanInput],
    /// The option `filter_bits_per_key`.
    pub option_bits: f64,
}

impl FilterBits {
    /// Bits per key for `new`; 0 for no filter.
    pub fn bits(&self, shape: &Shape<'_>, new: &NewFiles<'_>) -> f64 {
        match self {
            FilterBits::Uniform {} => new.option_bits,
            FilterBits::PerLevel { bits } => {
                bits.get(new.place.level.index()).or(bits.last()).copied().unwrap_or(new.option_bits)
            }
            FilterBits::LevelRate {} => shared_rate(new.option_bits, shape.runs_at_rest(new.place.level)),
            FilterBits::NoneOnOldest {} => {
                let oldest = entries_by_run(shape.view, new).into_keys().next_back();
                if oldest == Some(new.place) { 0.0 } else { new.option_bits }
            }
            FilterBits::Monkey {} => {
                let (entries, at) = full_tree(shape, new);
                monkey(&entries, new.option_bits).get(at).copied().unwrap_or(new.option_bits)
            }
        }
    }
}

/// Bits per key with which `runs` filters together answer falsely as often as one of `bits`; at most [`MAX_BITS`].
pub fn shared_rate(bits: f64, runs: u32) -> f64 {
    if bits <= 0.0 || runs <= 1 {
        return bits;
    }
    let rate = expected_rate(bits) / f64::from(runs);
    let (mut few, mut enough) = (bits, MAX_BITS);
    while enough - few > 0.05 {
        let middle = f64::midpoint(few, enough);
        if expected_rate(middle) > rate { few = middle } else { enough = middle }
    }
    enough
}

/// The entries of every run once `new` is in the tree, newest first; runs that are consumed wholly are gone.
fn entries_by_run(view: &LsmView<'_>, new: &NewFiles<'_>) -> BTreeMap<Place, u64> {
    let mut runs: BTreeMap<Place, u64> =
        places(view.version).map(|(place, run)| (place, run.files.iter().map(|file| file.entries).sum())).collect();
    for input in new.replaced {
        if let Some(entries) = runs.get_mut(&input.place()) {
            *entries = entries.saturating_sub(input.files.iter().map(|file| file.entries).sum());
        }
    }
    *runs.entry(new.place).or_default() += new.entries;
    runs.retain(|place, entries| *entries > 0 || *place == new.place);
    runs
}

/// The entries of every run of the tree, the levels above the last full, and which of them `new` belongs to.
fn full_tree(shape: &Shape<'_>, new: &NewFiles<'_>) -> (Vec<u64>, usize) {
    let runs = entries_by_run(shape.view, new);
    let last = runs.keys().next_back().map_or(new.place.level, |place| place.level);
    let files = || shape.view.version.runs().flat_map(|(_, run)| &run.files);
    let entry_bytes = to_f64(files().map(|file| file.bytes).sum()) / to_f64(files().map(|file| file.entries).sum());
    let (mut entries, mut at) = (Vec::new(), 0);
    for level in (0..last.0).map(LevelId) {
        if level == new.place.level {
            at = entries.len();
        }
        let limit = shape.runs_at_rest(level).min(MAX_RUNS);
        let run = shape.capacity_bytes(level) / f64::from(limit) / entry_bytes;
        // Of a level that should hold nothing, what it holds.
        if run >= 1.0 && run.is_finite() {
            entries.extend(std::iter::repeat_n(whole(run), to_usize(limit.into())));
        } else {
            entries.extend(runs.iter().filter(|(place, _)| place.level == level).map(|(_, entries)| *entries));
        }
    }
    for (place, held) in runs.iter().filter(|(place, _)| place.level == last) {
        if *place == new.place {
            at = entries.len();
        }
        entries.push(*held);
    }
    (entries, at)
}

/// More runs of a level than these change nothing but the time that it takes.
const MAX_RUNS: u32 = 1000;

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "finite and at least 1")]
fn whole(entries: f64) -> u64 {
    entries as u64
}

/// Bits per key for runs of these sizes, at `bits_per_key` for the tree as a whole; at most [`MAX_BITS`] each.
///
/// The multiplier c follows in closed form from the runs that have a filter at all; if the largest of them would come out above rate 1,
/// it has none and c is worked out from the others.
pub fn monkey(entries: &[u64], bits_per_key: f64) -> Vec<f64> {
    let sizes = || entries.iter().copied().filter(|n| *n > 0).map(to_f64);
    let memory = bits_per_key * sizes().sum::<f64>() * LN_2 * LN_2;
    let mut filtered: Vec<f64> = sizes().collect();
    filtered.sort_by(f64::total_cmp);
    let mut ln_c = f64::NEG_INFINITY;
    while let Some(largest) = filtered.last() {
        let weighted: f64 = filtered.iter().map(|n| n * n.ln()).sum();
        ln_c = -(memory + weighted) / filtered.iter().sum::<f64>();
        if ln_c + largest.ln() <= 0.0 {
            break;
        }
        filtered.pop();
    }
    let kept = filtered.last().copied().unwrap_or(0.0);
    let bits = |n: u64| match to_f64(n) {
        n if n > 0.0 && n <= kept => (-(ln_c + n.ln()) / (LN_2 * LN_2)).clamp(0.0, MAX_BITS),
        _ => 0.0,
    };
    entries.iter().map(|n| bits(*n)).collect()
}
