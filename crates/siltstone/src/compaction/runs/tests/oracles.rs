//! Brute force, over random lists of runs: every answer that the published text allows is enumerated and the one that it prefers is taken.

use std::collections::BTreeSet;
use std::ops::Range;

use super::super::grouping::{Grouping, density_level};
use super::super::pick::{Setting, StopStyle};
use super::super::{RunFact, RunPick, Shards, rules};
use crate::compaction::{LsmView, Release, Sizes, Strategy, plan};
use crate::io::Rng;
use crate::num::{to_f64, to_u64};
use crate::version::{SstId, text};

const LISTS: u64 = 10_000;

fn run(bytes: u64) -> RunFact<'static> {
    RunFact {
        bytes,
        idle: true,
        order: 0,
        seed: SstId(0),
        entered_ms: 0,
        created_ms: 0,
        first: b"a",
        last: b"z",
        key_share: 1.0,
    }
}

fn runs(sizes: &[u64]) -> Vec<RunFact<'static>> {
    let newest = u64::try_from(sizes.len()).unwrap();
    (0..).zip(sizes).map(|(n, bytes)| RunFact { order: newest - n, seed: SstId(n), ..run(*bytes) }).collect()
}

pub(super) fn index(n: u64) -> usize {
    usize::try_from(n).unwrap()
}

/// Random runs: sizes of one magnitude, of many, or growing with age as in a real tree; some lists with busy runs.
fn random(rng: &mut Rng, most: u64) -> Vec<RunFact<'static>> {
    let kind = rng.below(3);
    let mut sizes: Vec<u64> = (0..rng.below(most + 1))
        .map(|_| match kind {
            0 => rng.between(1, 12),
            1 => rng.between(1, 5) << rng.below(10),
            _ => {
                let bits = rng.between(1, 16);
                1 + rng.below(1 << bits)
            }
        })
        .collect();
    if rng.one_in(2) {
        sizes.sort_unstable();
    }
    let mut list = runs(&sizes);
    let some_busy = rng.one_in(3);
    for run in &mut list {
        run.idle = !(some_busy && rng.one_in(5));
        run.seed = SstId(rng.below(1000));
    }
    list
}

pub(super) fn each_list(name: &str, most: u64, mut check: impl FnMut(&[RunFact<'static>], &mut Rng)) {
    let mut rng = Rng::new(7).split(name);
    for _ in 0..LISTS {
        let list = random(&mut rng, most);
        check(&list, &mut rng);
    }
}

fn bytes_of(list: &[RunFact<'_>]) -> f64 {
    to_f64(list.iter().map(|run| run.bytes).sum())
}

fn size(run: &RunFact<'_>) -> f64 {
    bytes_of(std::slice::from_ref(run))
}

/// Every span of neighbours, as (start, end).
fn spans(len: usize) -> Vec<Range<usize>> {
    (0..len).flat_map(|start| (start + 1..=len).map(move |end| start..end)).collect()
}

#[test]
fn universal_space_amplification() {
    each_list("space", 12, |list, _| {
        let idle_to_the_oldest =
            |span: &Range<usize>| span.end == list.len() && list[span.clone()].iter().all(|run| run.idle);
        let longest = spans(list.len()).into_iter().filter(|span| span.len() >= 2).find(idle_to_the_oldest);
        let expected = longest.map(|span| {
            let percent = 100.0 * bytes_of(&list[span.start..list.len() - 1]) / size(&list[list.len() - 1]);
            (span, percent)
        });
        assert_eq!(rules::space_amplification(list), expected, "{list:?}");
    });
}

#[test]
fn universal_size_ratio_and_run_count() {
    each_list("universal", 14, |list, rng| {
        let percent = u32::try_from(rng.below(80)).unwrap();
        let (min, max) = (index(rng.between(2, 4)), index(rng.between(4, 20)));
        let stop = if rng.one_in(2) { StopStyle::Total } else { StopStyle::Similar };
        let grown = |bytes: f64| bytes * f64::from(100 + percent);
        let joins = |start: usize, at: usize| {
            let (next, before) = (size(&list[at]), size(&list[at - 1]));
            match stop {
                StopStyle::Total => next * 100.0 <= grown(bytes_of(&list[start..at])),
                StopStyle::Similar => next * 100.0 <= grown(before) && before * 100.0 <= grown(next),
            }
        };
        let valid = |span: &Range<usize>| {
            span.len() <= max
                && list[span.clone()].iter().all(|run| run.idle)
                && (span.start + 1..span.end).all(|at| joins(span.start, at))
        };
        let valid: Vec<Range<usize>> = spans(list.len()).into_iter().filter(valid).collect();
        let longest = |start: usize| valid.iter().filter(|span| span.start == start).max_by_key(|span| span.end);
        let similar = (0..list.len()).filter_map(longest).find(|span| span.len() >= min).cloned();
        assert_eq!(rules::similar_size(list, percent, min, max, stop), similar, "{list:?}");

        let due = index(rng.between(2, 8));
        let idle = list.iter().filter(|run| run.idle).count();
        let wanted = if idle > due { (idle - due + 1).min(max) } else { 0 };
        let fits = |span: &&Range<usize>| (2..=wanted).contains(&span.len());
        let all_idle = |span: &Range<usize>| list[span.clone()].iter().all(|run| run.idle);
        let spans: Vec<Range<usize>> = spans(list.len()).into_iter().filter(all_idle).collect();
        let newest = spans.iter().filter(fits).map(|span| span.start).min();
        let count = newest
            .and_then(|start| spans.iter().filter(fits).filter(|span| span.start == start).max_by_key(|span| span.end));
        assert_eq!(rules::too_many(list, due, max), count.cloned(), "{due} {list:?}");

        let pick = RunPick::SimilarSize {
            percent,
            min_runs: u32::try_from(min).unwrap(),
            max_runs: Some(u32::try_from(max).unwrap()),
            stop,
        };
        let setting = Setting { memtable_bytes: 1, due_runs: due, newest_group: true };
        let both = similar.or(count.cloned()).map(|span| span.collect::<Vec<_>>());
        assert_eq!(pick.choose(list, setting), both, "rule 4 only if rule 3 has nothing");
    });
}

#[test]
fn hbase_exploring() {
    each_list("hbase", 20, |list, rng| {
        let (min, max) = (index(rng.between(2, 4)), index(rng.between(4, 10)));
        let ratio = [1.2, 1.0, 5.0][index(rng.below(3))];
        let min_bytes = [0.0, 10.0, 100.0][index(rng.below(3))];
        let stuck_runs = index(rng.between(4, 30));
        // HBase's order: the oldest first. Only what is newer than the newest busy file counts.
        let newest_busy = list.iter().position(|run| !run.idle);
        let oldest_first: Vec<&RunFact<'_>> = list[..newest_busy.unwrap_or(list.len())].iter().rev().collect();
        let total = |span: &Range<usize>| oldest_first[span.clone()].iter().map(|run| size(run)).sum::<f64>();
        let windows: Vec<Range<usize>> =
            spans(oldest_first.len()).into_iter().filter(|span| (min..=max).contains(&span.len())).collect();
        let qualifies = |span: &&Range<usize>| {
            let all = total(span);
            all < min_bytes || oldest_first[(*span).clone()].iter().all(|run| size(run) <= (all - size(run)) * ratio)
        };
        let busy = list.iter().filter(|run| !run.idle).count();
        let waiting = list.len() - busy + usize::from(busy > 0);
        let chosen = if waiting >= stuck_runs {
            let mut best: Option<&Range<usize>> = None;
            for window in windows.iter().filter(qualifies) {
                let files_per_byte = |span: &Range<usize>| to_f64(to_u64(span.len())) / total(span);
                if best.is_none_or(|best| files_per_byte(window) > files_per_byte(best) * 1.05) {
                    best = Some(window);
                }
            }
            best.or_else(|| windows.iter().min_by(|a, b| total(a).total_cmp(&total(b))))
        } else {
            let mut ranked: Vec<&Range<usize>> = windows.iter().filter(qualifies).collect();
            ranked
                .sort_by(|a, b| b.len().cmp(&a.len()).then(total(a).total_cmp(&total(b))).then(a.start.cmp(&b.start)));
            ranked.first().copied()
        };
        let expected = chosen.map(|span| oldest_first.len() - span.end..oldest_first.len() - span.start);
        let got = rules::exploring(list, min..=max, ratio, min_bytes, stuck_runs);
        assert_eq!(got, expected, "{list:?}");
    });
}

fn sorted_sizes(list: &[RunFact<'_>], taken: &[usize]) -> Vec<u64> {
    let mut sizes: Vec<u64> = taken.iter().map(|at| list[*at].bytes).collect();
    sizes.sort_unstable();
    sizes
}

#[test]
fn cassandra_buckets() {
    each_list("buckets", 20, |list, rng| {
        let (low, high) = [(0.5, 1.5), (0.7, 1.4)][index(rng.below(2))];
        let min_bytes = [0, 5, 100][index(rng.below(3))];
        let mut sizes: Vec<u64> = list.iter().filter(|run| run.idle).map(|run| run.bytes).collect();
        sizes.sort_unstable();
        // Any bucket may take a size, not only the last.
        let mut buckets: Vec<Vec<u64>> = Vec::new();
        for size in sizes {
            let average = |bucket: &Vec<u64>| {
                let mut average = bucket[0];
                for (n, size) in (1..).zip(&bucket[1..]) {
                    average = (average * n + size) / (n + 1);
                }
                average
            };
            let fits = |bucket: &&mut Vec<u64>| {
                let average = average(bucket);
                let within = to_f64(size) > low * to_f64(average) && to_f64(size) < high * to_f64(average);
                within || (size < min_bytes && average < min_bytes)
            };
            match buckets.iter_mut().find(fits) {
                Some(bucket) => bucket.push(size),
                None => buckets.push(vec![size]),
            }
        }
        let grouping = Grouping::SizeBuckets { low, high, min_bytes };
        let of = |list: &[RunFact<'_>]| {
            let groups = grouping.groups(list, 1);
            groups.iter().map(|group| sorted_sizes(list, &group.runs)).collect::<Vec<_>>()
        };
        assert_eq!(of(list), buckets, "{list:?}");
        // The ages do not matter.
        let mut shuffled = list.to_vec();
        for at in (1..shuffled.len()).rev() {
            shuffled.swap(at, index(rng.below(u64::try_from(at + 1).unwrap())));
        }
        assert_eq!(of(&shuffled), buckets);
        let smallest: Vec<u64> = sorted_sizes(list, &rules::smallest(list, 4));
        let mut all: Vec<u64> = list.iter().filter(|run| run.idle).map(|run| run.bytes).collect();
        all.sort_unstable();
        all.truncate(4);
        assert_eq!(smallest, all);
    });
}

/// ScyllaDB's ICS as a whole: of the buckets with two runs the fullest, else the two largest tiers if the goal asks for it.
#[test]
fn incremental_picks() {
    let preset = crate::compaction::strategies().iter().find(|preset| preset.name == "scylla-ics").unwrap();
    let strategy = Strategy::parse(&preset.text.replace("min_bytes = 52428800", "min_bytes = 5")).unwrap();
    let sizes = Sizes { memtable_bytes: 10, file_bytes: 10, size_ratio: 0, level1_bytes: 0 };
    let mut kinds = [0; 3];
    each_list("incremental", 12, |list, _| {
        let sizes_of: Vec<u64> = list.iter().map(|run| run.bytes).collect();
        let lines: Vec<String> = (1..).zip(&sizes_of).map(|(id, bytes)| format!("L0 {id}:a-z:{bytes}")).collect();
        let version = text::parse(&lines.join("\n")).unwrap();
        let plan = plan(&strategy, &LsmView::new(&version, sizes)).unwrap();
        // Buckets as lists of positions, by ascending size.
        let mut order: Vec<usize> = (0..sizes_of.len()).collect();
        order.sort_by_key(|at| sizes_of[*at]);
        let mut buckets: Vec<Vec<usize>> = Vec::new();
        for at in order {
            let average = |bucket: &[usize]| {
                let rest = (1..).zip(&bucket[1..]);
                rest.fold(sizes_of[bucket[0]], |mean, (n, at)| (mean * n + sizes_of[*at]) / (n + 1))
            };
            let bytes = sizes_of[at];
            let last = buckets.last_mut().filter(|bucket| {
                let mean = average(bucket);
                let (bytes_e4, mean_e4) = (1e4 * to_f64(bytes), to_f64(mean));
                (bytes_e4 > 7071.0 * mean_e4 && bytes_e4 < 14_142.0 * mean_e4) || (bytes < 5 && mean < 5)
            });
            match last {
                Some(bucket) => bucket.push(at),
                None => buckets.push(vec![at]),
            }
        }
        let tier = |bucket: &Vec<usize>| bucket.iter().map(|at| sizes_of[*at]).sum::<u64>();
        let fullest = buckets.iter().map(Vec::len).max().unwrap_or(0);
        let chosen: Option<Vec<usize>> = if fullest >= 2 {
            buckets.iter().find(|bucket| bucket.len() == fullest).cloned()
        } else {
            let mut tiers = buckets.clone();
            tiers.sort_by_key(|bucket| std::cmp::Reverse(tier(bucket)));
            match &tiers[..] {
                [largest, second, ..] if 2 * (tier(largest) + tier(second)) >= 3 * tier(largest) => {
                    Some([&largest[..], &second[..]].concat())
                }
                _ => None,
            }
        };
        kinds[usize::from(chosen.is_some()) + usize::from(fullest >= 2)] += 1;
        // All runs overlap, so those between the chosen come along.
        let expected = chosen.map(|chosen| (*chosen.iter().min().unwrap(), *chosen.iter().max().unwrap()));
        let taken = plan.map(|plan| {
            let at: Vec<usize> = plan.files().map(|file| index(file.id.0) - 1).collect();
            assert_eq!((plan.release, at.len()), (Release::Progressive, at[at.len() - 1] - at[0] + 1));
            (at[0], at[at.len() - 1])
        });
        assert_eq!(taken, expected, "{sizes_of:?}");
    });
    assert!(kinds.iter().all(|n| *n > 300), "nothing, tiers, a bucket: {kinds:?}");
}

#[test]
fn accumulo_by_size() {
    let choose = |sizes: &[u64]| {
        let list = runs(sizes);
        rules::size_sorted(&list, 3.0, 1.1, 10, 15).map(|taken| sorted_sizes(&list, &taken))
    };
    // The examples of Accumulo's documentation.
    assert_eq!(choose(&[101, 102, 103, 104, 4, 3, 3, 3, 3]), Some(vec![3, 3, 3, 3, 4]));
    assert_eq!(choose(&[100, 99, 33, 33, 33, 33]), Some(vec![33, 33, 33, 33, 99, 100]));
    let (mut found, mut lowered) = (0, 0);
    each_list("accumulo", 20, |list, rng| {
        let (max_runs, file_max) = (index(rng.between(2, 12)), index(rng.between(2, 18)));
        let mut sizes: Vec<u64> = list.iter().filter(|run| run.idle).map(|run| run.bytes).collect();
        sizes.sort_unstable();
        let try_ratio = |ratio: f64| -> Option<Vec<u64>> {
            let width = max_runs.min(sizes.len());
            for window in sizes.windows(width.max(1)) {
                let sum = |len: usize| to_f64(window[..len].iter().sum());
                let good = |len: usize| len >= 2 && to_f64(window[len - 1]) * ratio < sum(len);
                let ends: Vec<usize> =
                    (2..=window.len()).filter(|len| good(*len) && (*len == window.len() || !good(len + 1))).collect();
                let Some((first, rest)) = ends.split_first() else { continue };
                let longer = |chosen: usize, next: &usize| {
                    if sum(chosen) > to_f64(window[next - 1]) { *next } else { chosen }
                };
                return Some(window[..rest.iter().fold(*first, longer)].to_vec());
            }
            None
        };
        let mut expected = try_ratio(3.0);
        let mut step = 1;
        while expected.is_none() && list.len() > file_max && step <= 19 {
            expected = try_ratio(3.0 - 0.1 * f64::from(step));
            lowered += u32::from(expected.is_some());
            step += 1;
        }
        if expected.is_none() && list.len() > file_max {
            expected = try_ratio(1.1);
        }
        found += u32::from(expected.is_some());
        let got = rules::size_sorted(list, 3.0, 1.1, max_runs, file_max).map(|taken| sorted_sizes(list, &taken));
        assert_eq!(got, expected, "{max_runs} {file_max} {list:?}");
    });
    assert!(found > 1000 && lowered > 100, "{found} {lowered}");
}

#[test]
fn vinyl_levels() {
    let mut deep = 0;
    each_list("vinyl", 14, |list, rng| {
        let ratio = [3.5, 2.0, 10.0][index(rng.below(3))];
        let (per_level, jitter) = (index(rng.between(1, 3)), [0, 10, 50][index(rng.below(3))]);
        let expected = (list.len() >= 2 && list.iter().all(|run| run.idle)).then(|| {
            // Targets of the levels, the first so large that the last holds the oldest run.
            let mut targets = vec![size(&list[list.len() - 1])];
            while (targets[0] / ratio).ceil() > size(&list[0]) {
                targets.insert(0, (targets[0] / ratio).ceil());
            }
            let first = targets[0];
            let target = |level: usize| (0..level).fold(first, |target, _| target * ratio);
            // A run's level: where it fits, and not above the run before it.
            let fits = |run: &RunFact<'_>| (0..).find(|level| size(run) <= target(*level)).unwrap();
            let mut levels: Vec<usize> = Vec::new();
            for run in list {
                levels.push(fits(run).max(levels.last().copied().unwrap_or(0)));
            }
            let mut taken = 0;
            let mut last_level_runs = 0;
            for level in levels.iter().copied().collect::<BTreeSet<_>>() {
                let members: Vec<usize> = (0..list.len()).filter(|at| levels[*at] == level).collect();
                // What a merge above writes comes to this level if it is larger than the level above allows.
                let comes = level > 0 && taken > 0 && bytes_of(&list[..taken]) > target(level - 1);
                for (n, at) in members.iter().enumerate() {
                    let limit = per_level + usize::from(rules::hits(list[*at].seed.0, jitter));
                    if n + 1 + usize::from(comes && members[0] > 0) > limit {
                        taken = at + 1;
                    }
                }
                last_level_runs = members.len() + usize::from(comes && members[0] > 0);
            }
            if last_level_runs > 1 {
                taken = list.len();
            }
            taken
        });
        let expected = expected.filter(|taken| *taken >= 2).map(|taken| 0..taken);
        deep += u32::from(expected.as_ref().is_some_and(|span| span.len() < list.len()));
        assert_eq!(
            rules::size_levels(list, ratio, per_level, jitter),
            expected,
            "{ratio} {per_level} {jitter} {list:?}"
        );
    });
    assert!(deep > 100, "{deep}");
}

#[test]
fn asterixdb_suffix_and_prefix() {
    each_list("asterixdb", 16, |list, rng| {
        let idle = list.iter().position(|run| !run.idle).unwrap_or(list.len());
        let ratio = 1.2;
        let (min, max) = (index(rng.between(2, 4)), index(rng.between(4, 10)));
        // The window that ends at a run takes as many newer ones as it may.
        let window = |end: usize| end.saturating_sub(max)..end;
        let accepted = |span: &Range<usize>| {
            span.end >= min && size(&list[span.end - 1]) <= ratio * bytes_of(&list[span.start..span.end - 1])
        };
        let expected = (2..=idle).map(window).filter(accepted).max_by_key(|span| span.end);
        assert_eq!(rules::suffix(list, min, max, ratio), expected, "{list:?}");

        let (max_bytes, tolerance) = (rng.between(5, 200), index(rng.between(2, 6)));
        let small: Vec<&RunFact<'_>> = list[..idle].iter().take_while(|run| run.bytes <= max_bytes).collect();
        let total = |len: usize| small[..len].iter().map(|run| run.bytes).sum::<u64>();
        let due = total(small.len()) > max_bytes || small.len() > tolerance;
        let fits = |len: &usize| size(small[len - 1]) <= ratio * to_f64(total(len - 1));
        let expected = if due { (2..=small.len()).filter(fits).max().map(|len| 0..len) } else { None };
        assert_eq!(rules::prefix(list, max_bytes, tolerance, ratio), expected, "{list:?}");
    });
}

/// The nodes of a tree of the paper in order, each with the number of its ancestors that are before it.
fn in_order(depth: usize, width: usize) -> Vec<usize> {
    if depth == 0 || width == 0 {
        return Vec::new();
    }
    let right = in_order(depth, width - 1).into_iter().map(|before| before + 1);
    in_order(depth - 1, width).into_iter().chain([0]).chain(right).collect()
}

#[test]
fn binomial_positions() {
    for most in 2..=7usize {
        let round = |depth: usize| {
            let below = in_order(depth, depth.min(most).saturating_sub(1));
            below.into_iter().map(|before| before + 1).chain([0])
        };
        let positions: Vec<usize> = (0..).flat_map(round).take(4000).collect();
        for (n, position) in (1..).zip(positions) {
            assert_eq!(rules::merge_from(n, most), position, "flush {n} of at most {most}");
        }
    }
    // Large numbers neither overflow nor take long.
    assert!(rules::merge_from(u64::MAX / 2, 10) < 10 && rules::merge_from(u64::MAX / 2, 3) < 3);
}

#[test]
fn the_oldest_of_a_generation() {
    each_list("oldest", 20, |list, rng| {
        let max = index(rng.between(2, 15));
        let fits = |span: &Range<usize>| {
            span.end == list.len() && (2..=max).contains(&span.len()) && list[span.clone()].iter().all(|run| run.idle)
        };
        assert_eq!(rules::oldest(list, max), spans(list.len()).into_iter().find(fits));
        let (ratio, cap) = (u32::try_from(rng.between(2, 8)).unwrap(), 200u32);
        let generation = |run: &RunFact<'_>| {
            let ends = (1..).map(|n| u64::from(ratio).pow(n));
            (run.idle && run.bytes <= cap.into()).then(|| ends.take_while(|end| run.bytes >= *end).count())
        };
        let groups = Grouping::Generations { ratio, max_memtables: cap }.groups(list, 1);
        let groups: BTreeSet<Vec<usize>> = groups.into_iter().map(|group| group.runs).collect();
        let alike = |span: &Range<usize>| {
            let first = generation(&list[span.start]);
            first.is_some() && list[span.clone()].iter().all(|run| generation(run) == first)
        };
        let alike: Vec<Range<usize>> = spans(list.len()).into_iter().filter(alike).collect();
        let longest = |span: &&Range<usize>| {
            !alike.iter().any(|other| other.start <= span.start && span.end <= other.end && other.len() > span.len())
        };
        let expected: BTreeSet<Vec<usize>> = alike.iter().filter(longest).map(|span| span.clone().collect()).collect();
        assert_eq!(groups, expected, "{list:?}");
    });
}

#[test]
fn density_levels_and_overlap_sets() {
    const KEYS: [&[u8]; 8] = [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"];
    each_list("density", 14, |list, rng| {
        let w: i32 = [2, 0, -8, 8][index(rng.below(4))];
        let (fan_out, due) = if w < 0 { (2.0 - f64::from(w), 2) } else { (2.0 + f64::from(w), 2 + w.unsigned_abs()) };
        let mut list = list.to_vec();
        for run in &mut list {
            let (a, b) = (index(rng.below(8)), index(rng.below(8)));
            (run.first, run.last) = (KEYS[a.min(b)], KEYS[a.max(b)]);
            run.key_share = (to_f64(to_u64(a.abs_diff(b))) + 0.5) / 8.0;
        }
        let level = |run: &RunFact<'_>| {
            let exact = (size(run) / run.key_share / 4.0).ln() / f64::ln(fan_out);
            (exact.max(0.0) + 1e-9).floor()
        };
        for run in &list {
            assert_eq!(to_f64(to_u64(density_level(run, &[w], 4))), level(run), "{run:?}");
        }
        // Transitive closure of "same level and overlapping", by brute force.
        let meet = |a: &RunFact<'_>, b: &RunFact<'_>| {
            a.idle && b.idle && level(a) == level(b) && a.first <= b.last && b.first <= a.last
        };
        let mut sets: Vec<BTreeSet<usize>> =
            (0..list.len()).filter(|at| list[*at].idle).map(|at| BTreeSet::from([at])).collect();
        while let Some((a, b)) = sets.iter().enumerate().find_map(|(a, left)| {
            let joins = |right: &BTreeSet<usize>| left.iter().any(|x| right.iter().any(|y| meet(&list[*x], &list[*y])));
            (a + 1..sets.len()).find(|b| joins(&sets[*b])).map(|b| (a, b))
        }) {
            let right = sets.remove(b);
            sets[a].extend(right);
        }
        let groups = Grouping::Density { w: vec![w] }.groups(&list, 4);
        assert!(groups.iter().all(|group| group.due == Some(due)));
        for group in &groups {
            let covers = |key: &[u8], at: &usize| list[*at].first <= key && key <= list[*at].last;
            let most = KEYS.iter().map(|key| group.runs.iter().filter(|at| covers(key, at)).count()).max();
            assert_eq!(group.overlapping, most, "{group:?} {list:?}");
        }
        let groups: BTreeSet<BTreeSet<usize>> =
            groups.into_iter().map(|group| group.runs.into_iter().collect()).collect();
        assert_eq!(groups, sets.into_iter().collect(), "{list:?}");
    });
}

#[test]
fn shard_counts() {
    let shards = Shards { base: 4, target_bytes: 1000, growth: 0.0 };
    let count = |density: f64, growth: f64| rules::shard_count(density, &Shards { growth, ..shards.clone() });
    let mut rng = Rng::new(7).split("shards");
    for _ in 0..LISTS {
        // Without growth a shard's file is between the target divided and multiplied by the root of 2, but for the base.
        let density = to_f64(rng.between(1, 10_000_000));
        let file = density / to_f64(count(density, 0.0));
        let root = std::f64::consts::SQRT_2 * 1.000_001;
        assert!(file < 1000.0 * root && (file > 1000.0 / root || count(density, 0.0) == 4), "{density} {file}");
        assert_eq!(count(density, 1.0), 4);
        assert!(count(density, 0.333) <= count(density, 0.0) && count(density, 0.0).is_power_of_two());
    }
    assert_eq!([count(1e3, 0.333), count(64_000.0, 0.333), count(1e300, 0.0)], [4, 32, 65536]);
}

#[test]
fn time_windows() {
    each_list("windows", 16, |list, rng| {
        let mut list = list.to_vec();
        let mut at = rng.below(1000);
        for run in list.iter_mut().rev() {
            at += rng.below(500);
            run.entered_ms = at;
        }
        let grouping = Grouping::TimeWindows { window: std::time::Duration::from_millis(1000) };
        let groups = grouping.groups(&list, 1);
        let window = |at: &usize| list[*at].entered_ms / 1000;
        let newest = list.iter().map(|run| run.entered_ms / 1000).max();
        for group in &groups {
            assert!(group.runs.iter().all(|at| list[*at].idle && window(at) == window(&group.runs[0])));
            assert_eq!(group.number == 0, Some(window(&group.runs[0])) == newest, "{groups:?} {list:?}");
        }
        assert_eq!(
            groups.iter().map(|group| group.runs.len()).sum::<usize>(),
            list.iter().filter(|run| run.idle).count()
        );
        let windows: BTreeSet<u64> = groups.iter().map(|group| window(&group.runs[0])).collect();
        assert_eq!(windows.len(), groups.len(), "one group a window");
        let buckets = Grouping::SizeBuckets { low: 0.5, high: 1.5, min_bytes: 5 }.groups(&list, 1);
        let stcs = buckets.iter().find(|bucket| bucket.runs.len() >= 4).map(|bucket| {
            let mut sizes = sorted_sizes(&list, &bucket.runs);
            sizes.truncate(6);
            sizes
        });
        let pick = RunPick::TimeWindow { min_runs: 4, max_runs: 6, low: 0.5, high: 1.5, min_bytes: 5 };
        let choose = |newest_group| pick.choose(&list, Setting { memtable_bytes: 1, due_runs: 2, newest_group });
        assert_eq!(choose(true).map(|taken| sorted_sizes(&list, &taken)), stcs, "in the newest window, STCS");
        let idle = list.iter().filter(|run| run.idle).count().min(6);
        assert_eq!(choose(false).map_or(0, |taken| taken.len()), if idle < 2 { 0 } else { idle }, "else all");
    });
}
