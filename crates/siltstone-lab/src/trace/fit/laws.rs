//! Which law comes nearest to what was seen.
//!
//! Which keys are hot nobody knows beforehand, so a skewed law is recognised by how unequal the keys are, not by which they are: `theta` follows from how often two
//! accesses meet on one key, `sum p_i^2`, whose estimate from the counts `sum c (c - 1) / (m (m - 1))` is unbiased however few accesses there are.
//! (Fitting a line through counts sorted by rank finds a skew in uniform ones, too.) Then as many accesses are drawn by the law as were seen, and what the
//! hottest keys get of both is compared.

use std::collections::BTreeMap;

use serde::Serialize;
use siltstone::io::Rng;

use super::GOOD_DISTANCE;
use super::observe::Sizes;
use crate::num::{count, float, floor, ratio};
use crate::workload::Zipf;

/// Accesses that are kept of a kind; of more, every second, fourth and so on.
const KEPT: usize = 1 << 18;

/// Which keys were accessed, by their numbers.
#[derive(Default)]
pub(super) struct Accesses {
    kept: Vec<(u32, u32)>,
    stride: u64,
    seen: u64,
    was_kept: bool,
    last: Option<u32>,
    in_sequence: u64,
    /// These two before the last access.
    before: (Option<u32>, u64),
}

/// A law of access, as a spec has it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "as in `Law`")]
pub enum AccessLaw {
    Uniform,
    Zipf { theta: f64 },
    Latest { theta: f64 },
    Hotspot { data: f64, operations: f64 },
    Sequential,
}

/// The law that comes nearest.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct AccessFit {
    /// The law.
    pub law: AccessLaw,
    /// How far it is from what was seen, 0 to 1: for `uniform`, `zipf` and `hotspot` between the shares that the hottest keys get, for `latest` between the ages of the
    /// keys, for `sequential` the share of accesses that did not go to the next key.
    pub distance: f64,
    /// Whether that is at most [`GOOD_DISTANCE`].
    pub is_good: bool,
    /// Accesses that it was fitted to.
    pub accesses: u64,
    /// The distances of all laws that were tried.
    pub tried: BTreeMap<&'static str, f64>,
}

impl Accesses {
    pub(super) fn add(&mut self, number: u32, stored: u32) {
        self.before = (self.last, self.in_sequence);
        let follows = self.last.is_some_and(|last| number == last.wrapping_add(1) || number == 0 && last + 1 >= stored);
        self.in_sequence += u64::from(follows);
        self.last = Some(number);
        self.was_kept = self.seen.is_multiple_of(self.stride.max(1));
        if self.was_kept {
            if self.kept.len() == KEPT {
                let mut at = 0u64;
                self.kept.retain(|_| {
                    at += 1;
                    at % 2 == 1
                });
                self.stride = 2 * self.stride.max(1);
                self.was_kept = self.seen.is_multiple_of(self.stride);
            }
            if self.was_kept {
                self.kept.push((number, stored));
            }
        }
        self.seen += 1;
    }

    /// The last one was none.
    pub(super) fn take_back(&mut self) {
        if self.seen > 0 {
            self.seen -= 1;
            (self.last, self.in_sequence) = self.before;
            if self.was_kept {
                self.kept.pop();
                self.was_kept = false;
            }
        }
    }

    /// The law that comes nearest; none without accesses.
    pub(super) fn fit(&self) -> Option<AccessFit> {
        if self.kept.is_empty() {
            return None;
        }
        let mut tried = BTreeMap::new();
        let sequential = 1.0 - ratio(self.in_sequence, self.seen.saturating_sub(1));
        tried.insert("sequential", sequential);
        let best = |law, distance, tried| {
            Some(AccessFit { law, distance, is_good: distance <= GOOD_DISTANCE, accesses: self.seen, tried })
        };
        if sequential < GOOD_DISTANCE && self.seen > 1 {
            return best(AccessLaw::Sequential, sequential, tried);
        }
        let stored: u64 = self.kept.iter().map(|(_, stored)| u64::from(*stored)).sum();
        let n = floor((float(stored) / float(count(self.kept.len()))).round()).max(1);
        let (theta, latest) = latest(&self.kept, n);
        tried.insert("latest", latest);
        if theta > 0.3 && latest < GOOD_DISTANCE {
            return best(AccessLaw::Latest { theta }, latest, tried);
        }
        let counts = Counts::of(self.kept.iter().map(|(number, _)| *number), n);
        let uniform = counts.distance_of(&mut |rng| rng.below(n));
        tried.insert("uniform", uniform);
        let theta = counts.theta();
        let zipf = Zipf::new(n, theta.max(1e-6));
        let by_zipf = counts.distance_of(&mut |rng| zipf.next(rng));
        tried.insert("zipf", by_zipf);
        let hotspot = counts.hotspot();
        let by_hotspot = hotspot.map_or(1.0, |(data, operations)| {
            let hot = floor((float(n) * data).round()).clamp(1, n);
            counts.distance_of(&mut |rng| {
                let is_hot = unit(rng) < operations;
                if is_hot || hot == n { rng.below(hot) } else { hot + rng.below(n - hot) }
            })
        });
        tried.insert("hotspot", by_hotspot);
        // A law with more numbers must be clearly nearer.
        const CLEARLY: f64 = 0.01;
        match hotspot {
            _ if uniform <= by_zipf.min(by_hotspot) + CLEARLY => best(AccessLaw::Uniform, uniform, tried),
            Some((data, operations)) if by_hotspot + CLEARLY < by_zipf => {
                best(AccessLaw::Hotspot { data, operations }, by_hotspot, tried)
            }
            _ => best(AccessLaw::Zipf { theta }, by_zipf, tried),
        }
    }
}

/// How often each key was accessed, hottest first.
struct Counts {
    sorted: Vec<u32>,
    /// All accesses, and keys that there are.
    accesses: u64,
    keys: u64,
}

impl Counts {
    fn of(numbers: impl Iterator<Item = u32>, keys: u64) -> Counts {
        let mut numbers: Vec<u32> = numbers.collect();
        numbers.sort_unstable();
        let mut sorted: Vec<u32> =
            numbers.chunk_by(|a, b| a == b).map(|same| u32::try_from(same.len()).unwrap_or(u32::MAX)).collect();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        let keys = keys.max(count(sorted.len()));
        Counts { sorted, accesses: count(numbers.len()), keys }
    }

    /// An unbiased estimate of the sum over all keys of their probabilities to the power of `power`, 2 or 3.
    fn moment(&self, power: u32) -> f64 {
        let falling = |n: f64| (0..power).map(|i| n - f64::from(i)).product::<f64>();
        let all = falling(float(self.accesses));
        if all <= 0.0 { 0.0 } else { self.sorted.iter().map(|c| falling(f64::from(*c))).sum::<f64>() / all }
    }

    /// The skew of the zipf law with this second moment.
    fn theta(&self) -> f64 {
        let aim = self.moment(2);
        bisect(0.0, 5.0, |theta| {
            let once = zipf_sum(self.keys, self.keys, theta);
            zipf_sum(self.keys, self.keys, 2.0 * theta) / (once * once) < aim
        })
    }

    /// The hotspot, as shares of keys and accesses, with these second and third moments.
    fn hotspot(&self) -> Option<(f64, f64)> {
        let n = float(self.keys);
        let (second, third) = (self.moment(2) * n, self.moment(3) * n * n);
        if second <= 1.0 {
            return None;
        }
        let of = |data: f64| {
            let operations = data + libm::sqrt(data * (1.0 - data) * (second - 1.0));
            let cold = (1.0 - operations) / (1.0 - data);
            let wrong =
                operations * operations * operations / (data * data) + cold * cold * cold * (1.0 - data) - third;
            (operations < 1.0).then_some((wrong.abs(), data, operations))
        };
        let grid = (0..900).map(|i| libm::pow(10.0, -3.0 + 2.95 * f64::from(i) / 899.0));
        let (_, data, operations) = grid.filter_map(of).min_by(|a, b| a.0.total_cmp(&b.0))?;
        Some((data, operations))
    }

    /// The largest difference between the shares that the hottest 1, 2, ... keys get here and of as many accesses that `draw` makes.
    fn distance_of(&self, draw: &mut dyn FnMut(&mut Rng) -> u64) -> f64 {
        let mut rng = Rng::new(1).split("fit");
        let drawn = (0..self.accesses).map(|_| u32::try_from(draw(&mut rng)).unwrap_or(u32::MAX));
        let other = Counts::of(drawn, self.keys);
        let (mut here, mut there, mut most) = (0u64, 0u64, 0u64);
        for at in 0..self.sorted.len().max(other.sorted.len()) {
            here += u64::from(self.sorted.get(at).copied().unwrap_or(0));
            there += u64::from(other.sorted.get(at).copied().unwrap_or(0));
            most = most.max(here.abs_diff(there));
        }
        ratio(most, self.accesses)
    }
}

/// The zipf law over the ages of keys, newest first, and how far it is from what was seen.
fn latest(accesses: &[(u32, u32)], n: u64) -> (f64, f64) {
    let mut ages: Vec<u64> =
        accesses.iter().map(|(number, stored)| u64::from(stored.saturating_sub(number.saturating_add(1)))).collect();
    ages.sort_unstable();
    let all = float(count(ages.len()));
    let aim = ages.iter().map(|age| libm::log(float(age + 1))).sum::<f64>() / all;
    // The mean of the logarithm falls with theta. It is the derivative of the logarithm of the sum.
    let theta = bisect(0.0, 5.0, |theta| {
        const STEP: f64 = 1e-4;
        let slope = libm::log(zipf_sum(n, n, theta + STEP) / zipf_sum(n, n, (theta - STEP).max(0.0)))
            / (theta + STEP - (theta - STEP).max(0.0));
        -slope > aim
    });
    let whole = zipf_sum(n, n, theta);
    let mut distance: f64 = 0.0;
    let mut rank = 1u64;
    while rank <= n {
        let here = float(count(ages.partition_point(|age| *age < rank))) / all;
        distance = distance.max((here - zipf_sum(rank, n, theta) / whole).abs());
        rank = (rank + 1).max(rank + rank / 8);
    }
    (theta, distance)
}

/// `sum of k^-theta for k = 1 .. upto`, of a law over `n`: the first thousand exactly, the rest as an integral.
fn zipf_sum(upto: u64, n: u64, theta: f64) -> f64 {
    const EXACT: u64 = 1000;
    let upto = upto.min(n);
    let mut sum = 0.0;
    for k in 1..=upto.min(EXACT) {
        sum += libm::pow(float(k), -theta);
    }
    if upto > EXACT {
        let (from, to) = (float(EXACT) + 0.5, float(upto) + 0.5);
        let power = 1.0 - theta;
        sum += if power.abs() < 1e-9 {
            libm::log(to / from)
        } else {
            (libm::pow(to, power) - libm::pow(from, power)) / power
        };
    }
    sum
}

/// Where `is_below` turns from true to false.
fn bisect(mut low: f64, mut high: f64, is_below: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if is_below(middle) { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

fn unit(rng: &mut Rng) -> f64 {
    float(rng.next_u64() >> 11) / float(1 << 53)
}

/// A law of sizes, as a spec has it.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "as in `SizeLaw`")]
pub enum SizeShape {
    Constant { value: u64 },
    Uniform { min: u64, max: u64 },
    Normal { mean: f64, deviation: f64, min: u64, max: u64 },
    Lognormal { median: f64, sigma: f64, min: u64, max: u64 },
    Exponential { mean: f64, min: u64, max: u64 },
    Weights { of: Vec<f64>, min: u64 },
}

/// The law of sizes that comes nearest.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SizeFit {
    /// The law.
    pub law: SizeShape,
    /// The largest difference of the distribution functions, 0 to 1.
    pub distance: f64,
    /// Whether that is at most [`GOOD_DISTANCE`].
    pub is_good: bool,
    /// The mean of what was seen.
    pub mean: f64,
}

/// Fits the laws to sizes, of which there is at least one.
pub(super) fn fit_sizes(sizes: &Sizes) -> SizeFit {
    let all = float(sizes.values().sum());
    let mean_of =
        |of: &dyn Fn(f64) -> f64| sizes.iter().map(|(size, n)| of(float(*size)) * float(*n)).sum::<f64>() / all;
    let mean = mean_of(&|size| size);
    let (min, max) = (sizes.keys().next().copied().unwrap_or(0), sizes.keys().next_back().copied().unwrap_or(0));
    let fit = |law, distance: f64| SizeFit { law, distance, is_good: distance <= GOOD_DISTANCE, mean };
    if min == max {
        return fit(SizeShape::Constant { value: min }, 0.0);
    }
    // Whole sizes are real ones rounded down: half a byte more on average.
    let deviation = libm::sqrt(mean_of(&|size| (size - mean) * (size - mean))).max(1e-6);
    let log_mean = mean_of(&|size| libm::log(size + 0.5));
    let sigma = libm::sqrt(mean_of(&|size| libm::pow(libm::log(size + 0.5) - log_mean, 2.0))).clamp(1e-6, 1e3);
    let laws = [
        SizeShape::Uniform { min, max },
        SizeShape::Normal { mean: mean + 0.5, deviation, min, max },
        SizeShape::Lognormal { median: libm::exp(log_mean), sigma, min, max },
        SizeShape::Exponential { mean: (mean + 0.5).max(1e-6), min, max },
    ];
    let fits = laws.map(|law| {
        let distance = distance(sizes, &law, (min, max));
        fit(law, distance)
    });
    let nearest = fits.into_iter().min_by(|a, b| a.distance.total_cmp(&b.distance));
    match nearest {
        Some(nearest) if nearest.is_good || max - min > 4096 => nearest,
        _ => {
            let of = (min..=max).map(|size| float(sizes.get(&size).copied().unwrap_or(0))).collect();
            fit(SizeShape::Weights { of, min }, 0.0)
        }
    }
}

fn distance(sizes: &Sizes, law: &SizeShape, (min, max): (u64, u64)) -> f64 {
    let below = |x: f64| match law {
        SizeShape::Uniform { .. } => (x - float(min)) / float(max - min + 1),
        SizeShape::Normal { mean, deviation, .. } => normal((x - mean) / deviation),
        SizeShape::Lognormal { median, sigma, .. } if x > 0.0 => normal(libm::log(x / median) / sigma),
        SizeShape::Exponential { mean, .. } => 1.0 - libm::exp(-x.max(0.0) / mean),
        _ => 0.0,
    };
    let (low, high) = (below(float(min)), below(float(max) + 1.0));
    let all = float(sizes.values().sum());
    let (mut seen, mut distance) = (0.0f64, 0.0f64);
    for (size, n) in sizes {
        let expected = |x: f64| (below(x) - low) / (high - low).max(1e-12);
        distance = distance.max((seen / all - expected(float(*size))).abs());
        seen += float(*n);
        distance = distance.max((seen / all - expected(float(*size) + 1.0)).abs());
    }
    distance
}

fn normal(x: f64) -> f64 {
    0.5 * (1.0 + libm::erf(x / std::f64::consts::SQRT_2))
}
