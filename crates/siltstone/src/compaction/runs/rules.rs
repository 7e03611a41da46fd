//! The published rules that choose runs, pure functions. Each is given runs newest first and answers positions among them; a brute-force
//! oracle stands beside each in the tests.

use std::ops::{Range, RangeInclusive};

use super::pick::StopStyle;
use super::{RunFact, Shards};
use crate::num::{to_f64, to_u64};

fn sum(runs: &[RunFact<'_>]) -> u64 {
    runs.iter().map(|run| run.bytes).fold(0, u64::saturating_add)
}

/// RocksDB universal, rule 2: the runs above the oldest, as far up as none is busy, with the oldest, if they are at least `percent` of it.
/// The value is the percentage.
pub fn space_amplification(runs: &[RunFact<'_>]) -> Option<(Range<usize>, f64)> {
    let (oldest, newer) = runs.split_last().filter(|(oldest, _)| oldest.idle)?;
    let span = newer.iter().rev().take_while(|run| run.idle).count();
    let start = newer.len() - span;
    let percent = 100.0 * to_f64(sum(&newer[start..])) / to_f64(oldest.bytes.max(1));
    (span > 0).then_some((start..runs.len(), percent))
}

/// RocksDB universal, rule 3: the first span, from the newest on, of at least `min` runs in which each is not much larger than the newer ones.
pub fn similar_size(
    runs: &[RunFact<'_>],
    percent: u32,
    min: usize,
    max: usize,
    stop: StopStyle,
) -> Option<Range<usize>> {
    similar_spans(runs, percent, max, stop).find(|span| span.len() >= min.max(2))
}

/// For each idle run, from the newest on, the span that begins there.
pub(super) fn similar_spans(
    runs: &[RunFact<'_>],
    percent: u32,
    max: usize,
    stop: StopStyle,
) -> impl Iterator<Item = Range<usize>> {
    let grown = move |bytes: u128| bytes * (100 + u128::from(percent));
    let span_from = move |start: usize| {
        let mut bytes = u128::from(runs[start].bytes);
        let mut end = start + 1;
        while end < runs.len() && end - start < max && runs[end].idle {
            let next = u128::from(runs[end].bytes);
            let alike = grown(bytes) >= next * 100 && (stop == StopStyle::Total || grown(next) >= bytes * 100);
            if !alike {
                break;
            }
            bytes = if stop == StopStyle::Total { bytes + next } else { next };
            end += 1;
        }
        start..end
    };
    (0..runs.len()).filter(|start| runs[*start].idle).map(span_from)
}

/// RocksDB universal, rule 4: with more idle runs than `due`, the newest neighbours that are idle, one more than there are too many.
pub fn too_many(runs: &[RunFact<'_>], due: usize, max: usize) -> Option<Range<usize>> {
    excess_spans(runs, due, max)?.find(|span| span.len() >= 2)
}

/// From each run on, as many neighbours that are idle as are to be merged; none if there are not too many runs.
pub(super) fn excess_spans(runs: &[RunFact<'_>], due: usize, max: usize) -> Option<impl Iterator<Item = Range<usize>>> {
    let idle = runs.iter().filter(|run| run.idle).count();
    let width = (idle.checked_sub(due).filter(|excess| *excess > 0)? + 1).min(max.max(2));
    let idle_from = move |start: usize| runs[start..].iter().take_while(|run| run.idle).count().min(width);
    Some((0..runs.len()).map(move |start| start..start + idle_from(start)))
}

/// The newest runs up to the first busy one.
pub(super) fn idle_newest<'r, 'a>(runs: &'r [RunFact<'a>]) -> &'r [RunFact<'a>] {
    &runs[..runs.iter().take_while(|run| run.idle).count()]
}

/// Whether so many runs have gathered that HBase counts as stuck.
pub(super) fn is_stuck(runs: &[RunFact<'_>], stuck_runs: usize) -> bool {
    let busy = runs.iter().filter(|run| !run.idle).count();
    runs.len() - busy + usize::from(busy > 0) >= stuck_runs
}

/// Whether no run of a window is larger than `ratio` times the others together.
pub(super) fn in_ratio(window: &[RunFact<'_>], ratio: f64) -> bool {
    let bytes = to_f64(sum(window));
    window.iter().all(|run| {
        let own = to_f64(run.bytes);
        own <= ratio * (bytes - own)
    })
}

/// HBase's exploring policy. Windows are tried from the oldest on, so the oldest of equals wins.
pub fn exploring(
    runs: &[RunFact<'_>],
    widths: RangeInclusive<usize>,
    ratio: f64,
    min_bytes: f64,
    stuck_runs: usize,
) -> Option<Range<usize>> {
    let stuck = is_stuck(runs, stuck_runs);
    let candidates = idle_newest(runs);
    let mut best: Option<(Range<usize>, f64)> = None;
    let mut smallest: Option<(Range<usize>, f64)> = None;
    for oldest in (0..candidates.len()).rev() {
        for width in widths.clone().take_while(|width| *width <= oldest + 1) {
            let window = oldest + 1 - width..oldest + 1;
            let bytes = to_f64(sum(&candidates[window.clone()]));
            if smallest.as_ref().is_none_or(|(_, least)| bytes < *least) {
                smallest = Some((window.clone(), bytes));
            }
            if bytes >= min_bytes && !in_ratio(&candidates[window.clone()], ratio) {
                continue;
            }
            let better = best.as_ref().is_none_or(|(best, best_bytes)| {
                let (len, best_len) = (to_f64(to_u64(width)), to_f64(to_u64(best.len())));
                match stuck {
                    true => len / bytes > 1.05 * (best_len / best_bytes),
                    false => width > best.len() || (width == best.len() && bytes < *best_bytes),
                }
            });
            if better {
                best = Some((window, bytes));
            }
        }
    }
    best.or(smallest.filter(|_| stuck)).map(|(window, _)| window)
}

/// The idle runs, ascending by size, the newest of equals first.
fn by_size(runs: &[RunFact<'_>]) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..runs.len()).filter(|at| runs[*at].idle).collect();
    positions.sort_by_key(|at| runs[*at].bytes);
    positions
}

fn ascending(mut positions: Vec<usize>) -> Vec<usize> {
    positions.sort_unstable();
    positions
}

/// The smallest idle runs, `max` at most.
pub fn smallest(runs: &[RunFact<'_>], max: usize) -> Vec<usize> {
    ascending(by_size(runs).into_iter().take(max).collect())
}

/// The oldest runs, `max` at most, if they are idle.
pub fn oldest(runs: &[RunFact<'_>], max: usize) -> Option<Range<usize>> {
    let idle = runs.iter().rev().take(max).take_while(|run| run.idle).count();
    (idle >= 2).then(|| runs.len() - idle..runs.len())
}

/// Cassandra's STCS among the buckets of one window: of those with at least `min` runs the one with the smallest average.
pub fn window_bucket(runs: &[RunFact<'_>], buckets: &[Vec<usize>], min: usize, max: usize) -> Option<Vec<usize>> {
    // Buckets ascend by size.
    let bucket = buckets.iter().find(|bucket| bucket.len() >= min.max(2))?;
    let mut positions = bucket.clone();
    positions.sort_by_key(|at| runs[*at].bytes);
    positions.truncate(max);
    Some(ascending(positions))
}

/// Accumulo. The runs that are merged at once are searched in windows of `max_runs` neighbours by size, the smallest first.
pub fn size_sorted(
    runs: &[RunFact<'_>],
    ratio: f64,
    lowest_ratio: f64,
    max_runs: usize,
    file_max: usize,
) -> Option<Vec<usize>> {
    ratios(runs, ratio, lowest_ratio, file_max)
        .find_map(|ratio| size_windows(runs, ratio, max_runs).find_map(|(_, taken)| taken))
        .map(ascending)
}

/// The ratios that are tried, one after the other.
pub(super) fn ratios(
    runs: &[RunFact<'_>],
    ratio: f64,
    lowest_ratio: f64,
    file_max: usize,
) -> impl Iterator<Item = f64> {
    let tenth = move |step: u32| ratio - 0.1 * f64::from(step);
    let lowered = (1..).map(tenth).take_while(move |ratio| *ratio >= lowest_ratio).chain([lowest_ratio]);
    std::iter::once(ratio).chain(lowered.take(if runs.len() > file_max { usize::MAX } else { 0 }))
}

/// The windows of `max_runs` neighbours by size, the smallest first, and what of each would be merged; both by ascending size.
pub(super) fn size_windows(
    runs: &[RunFact<'_>],
    ratio: f64,
    max_runs: usize,
) -> impl Iterator<Item = (Vec<usize>, Option<Vec<usize>>)> {
    let sorted = by_size(runs);
    let sizes: Vec<u64> = sorted.iter().map(|at| runs[*at].bytes).collect();
    let width = max_runs.min(sizes.len()).max(1);
    let starts = (sizes.len() + 1).saturating_sub(width);
    (0..starts).map(move |start| {
        let window = sorted[start..start + width].to_vec();
        let taken = largest_good_prefix(&sizes[start..start + width], ratio).map(|len| window[..len].to_vec());
        (window, taken)
    })
}

/// How many of `sizes`, which ascend, are merged. A prefix is good if its largest times the ratio is less than its sum. Where the next
/// size ends a row of good prefixes, the row's longest is a candidate; a longer one takes its place only if what the candidate would write
/// is larger than the longer one's largest, for otherwise the candidate's output joins that merge later.
fn largest_good_prefix(sizes: &[u64], ratio: f64) -> Option<usize> {
    let mut chosen: Option<(usize, u64)> = None;
    let mut total = 0u64;
    let mut good: Option<usize> = None;
    for (at, size) in sizes.iter().enumerate() {
        total = total.saturating_add(*size);
        if at > 0 && to_f64(*size) * ratio < to_f64(total) {
            good = Some(at);
        }
        let row_ends = good.is_some_and(|good| good == at) && {
            let next = sizes.get(at + 1).map(|next| to_f64(*next) * ratio < to_f64(total.saturating_add(*next)));
            next != Some(true)
        };
        if row_ends && chosen.is_none_or(|(_, written)| written > *size) {
            chosen = Some((at + 1, total));
        }
    }
    chosen.map(|(len, _)| len)
}

/// Into how many shards a job's output of this density is cut: the base, doubled as often as the density exceeds what the base holds at
/// the target size, less the part of the growth that goes into larger files. At most 65536.
pub fn shard_count(density: f64, shards: &Shards) -> u64 {
    let base = f64::from(shards.base.max(1));
    let excess = density / (to_f64(shards.target_bytes.max(1)) * base);
    let doublings = ((1.0 - shards.growth) * excess.max(1.0).log2()).round();
    let mut count = u64::from(shards.base.max(1));
    let mut done = 0.0;
    while done < doublings && count <= 1 << 15 {
        count *= 2;
        done += 1.0;
    }
    count
}

/// A number below `sides` that a seed decides.
pub fn scatter(seed: u64, sides: u64) -> u64 {
    // The finalizer of splitmix64.
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)) % sides.max(1)
}

/// Whether chance, as the run's seed decides it, hits with so many percent.
pub fn hits(seed: u64, percent: u32) -> bool {
    scatter(seed, 100) < u64::from(percent)
}

/// Tarantool's vinyl. A level that would receive the output of a merge above counts it at once, so that one merge goes as deep as it must.
pub fn size_levels(
    runs: &[RunFact<'_>],
    ratio: f64,
    runs_per_level: usize,
    jitter_percent: u32,
) -> Option<Range<usize>> {
    full_prefixes(runs, ratio, runs_per_level, jitter_percent).last().map(|taken| 0..*taken)
}

/// How many of the newest runs a merge would take to relieve each level that holds too many, ascending.
pub(super) fn full_prefixes(
    runs: &[RunFact<'_>],
    ratio: f64,
    runs_per_level: usize,
    jitter_percent: u32,
) -> Vec<usize> {
    if runs.len() < 2 || runs.iter().any(|run| !run.idle) {
        return Vec::new();
    }
    let ratio = ratio.max(2.0);
    let bytes = |run: Option<&RunFact<'_>>| to_f64(run.map_or(1, |run| run.bytes.max(1)));
    let (newest, oldest) = (bytes(runs.first()), bytes(runs.last()));
    let mut target = oldest;
    while (target / ratio).ceil() > newest {
        target = (target / ratio).ceil();
    }
    let (mut level_runs, mut total, mut written) = (0, 0.0, 0.0);
    let mut full = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        level_runs += 1;
        total += to_f64(run.bytes);
        while to_f64(run.bytes) > target {
            level_runs = 1 + usize::from(written > target);
            target *= ratio;
        }
        if level_runs > runs_per_level + usize::from(hits(run.seed.0, jitter_percent)) {
            written = total;
            full.push(at + 1);
        }
    }
    if level_runs > 1 && full.last() != Some(&runs.len()) {
        full.push(runs.len());
    }
    full.retain(|taken| *taken >= 2);
    full
}

/// AsterixDB's concurrent policy.
pub fn suffix(runs: &[RunFact<'_>], min: usize, max: usize, ratio: f64) -> Option<Range<usize>> {
    let runs = idle_newest(runs);
    let spans = (min.max(2) - 1..runs.len()).rev().map(|end| (end + 1).saturating_sub(max)..end + 1);
    spans.into_iter().find(|span| suffix_fits(runs, span, ratio))
}

/// Whether the oldest run of a span is not larger than `ratio` times the others.
pub(super) fn suffix_fits(runs: &[RunFact<'_>], span: &Range<usize>, ratio: f64) -> bool {
    let end = span.end - 1;
    to_f64(runs[end].bytes) <= ratio * to_f64(sum(&runs[span.start..end]))
}

/// AsterixDB's prefix policy.
pub fn prefix(runs: &[RunFact<'_>], max_bytes: u64, tolerance: usize, ratio: f64) -> Option<Range<usize>> {
    let small = small_newest(runs, max_bytes);
    if sum(&runs[..small]) <= max_bytes && small <= tolerance {
        return None;
    }
    (2..=small).rev().find(|len| prefix_fits(runs, *len, ratio)).map(|len| 0..len)
}

/// How many of the newest runs are idle and not larger than `max_bytes`.
pub(super) fn small_newest(runs: &[RunFact<'_>], max_bytes: u64) -> usize {
    idle_newest(runs).iter().take_while(|run| run.bytes <= max_bytes).count()
}

/// Whether the oldest of the newest `len` runs is not larger than `ratio` times the newer ones.
pub(super) fn prefix_fits(runs: &[RunFact<'_>], len: usize, ratio: f64) -> bool {
    to_f64(runs[len - 1].bytes) <= ratio * to_f64(sum(&runs[..len - 1]))
}

/// AsterixDB's constant policy: the flush with number n, which is the newest run's order, merges everything from the position that
/// [`merge_from`] gives it. Should more runs be there than the policy leaves, because merges came late or another strategy left them, those too.
pub fn binomial(runs: &[RunFact<'_>], most: usize) -> Option<Range<usize>> {
    if runs.iter().any(|run| !run.idle) {
        return None;
    }
    let from = merge_from(runs.first()?.order, most).min(most.saturating_sub(1));
    let len = runs.len().checked_sub(from)?;
    (len >= 2).then_some(0..len)
}

/// How many of the oldest runs stay when flush `n`, counted from 1, comes, with at most `most` runs, at least 2.
///
/// The positions are those of the nodes of an infinite binary tree, in order: how many ancestors of a node are before it. Flushes come in
/// rounds; the last of a round is on the tree's left spine and merges everything. Round d has as many flushes as there are ways to choose d of d + min(d,
/// most) - 1: those before the last are the tree of depth d and width min(d, most) - 1, which hangs to the right of the spine. The left
/// child of such a tree has a depth of one less, the right one a width of one less.
pub fn merge_from(n: u64, most: usize) -> usize {
    let most = to_u64(most.max(2));
    let mut n = n.max(1) - 1;
    let mut depth = 0u64;
    let mut round = 1;
    while n >= round {
        n -= round;
        depth += 1;
        round = choose_of(depth + depth.min(most) - 1, depth);
    }
    if n == round - 1 {
        return 0;
    }
    let mut width = depth.min(most) - 1;
    let mut position = 1;
    loop {
        let root = choose_of(depth - 1 + width, width) - 1;
        if n == root {
            return position;
        } else if n < root {
            depth -= 1;
        } else {
            n -= root + 1;
            width -= 1;
            position += 1;
        }
    }
}

/// The ways to choose `k` of `n`, at most `u64::MAX`.
fn choose_of(n: u64, k: u64) -> u64 {
    let k = k.min(n - k);
    let mut ways = 1u128;
    for i in 0..k {
        ways = ways * u128::from(n - i) / u128::from(i + 1);
        if ways > u128::from(u64::MAX) {
            return u64::MAX;
        }
    }
    u64::try_from(ways).unwrap_or(u64::MAX)
}
