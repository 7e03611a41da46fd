//! Draws by a [`Law`]: a number below n, where n may be another one each time.

use siltstone::io::Rng;

use super::alias::{self, Alias};
use super::law::{Drift, Hot, Law};
use super::permutation::Permutation;
use super::random;
use super::zipf::Zipf;
use crate::num::{float, floor};

/// A law, ready to draw from.
#[derive(Clone, Debug)]
pub(super) struct Picker {
    sampler: Sampler,
    hot: Hot,
    scatter: Permutation,
    distinct: Option<f64>,
    drift: Option<Drift>,
    draws: u64,
}

#[derive(Clone, Debug)]
enum Sampler {
    Uniform,
    Zipf(Zipf),
    Normal { mean: f64, deviation: f64 },
    Beta { alpha: f64, beta: f64 },
    HotRange { start: f64, width: f64, operations: f64 },
    Exponential { scale: f64 },
    Sequential { next: u64 },
    Window { newest: u64, skip: u64 },
    Oldest,
    Lognormal { median: f64, sigma: f64 },
    Lomax { scale: f64, shape: f64 },
    Weibull { scale: f64, shape: f64 },
    Poisson { mean: f64 },
    PowerLaw { a: f64, b: f64 },
    Mixgraph { ranges: Alias, order: Permutation, key: [f64; 2] },
    Parts(Alias),
}

impl Picker {
    /// `shuffle` decides which keys are hot: equal ones make them the same for all laws. Reads a histogram's file.
    pub(super) fn new(law: &Law, hot: Option<Hot>, shuffle: &Rng) -> anyhow::Result<Picker> {
        let sampler = match *law {
            Law::Uniform => Sampler::Uniform,
            Law::Zipf { theta } | Law::Latest { theta } => Sampler::Zipf(Zipf::new(1, theta)),
            Law::Normal { mean, deviation } => Sampler::Normal { mean, deviation },
            Law::Beta { alpha, beta } => Sampler::Beta { alpha, beta },
            Law::Hotspot { data, operations } => Sampler::HotRange { start: 0.0, width: data, operations },
            Law::HotRange { start, width, operations } => Sampler::HotRange { start, width, operations },
            Law::Exponential { percentile, data } => {
                Sampler::Exponential { scale: data / -libm::log(1.0 - percentile / 100.0) }
            }
            Law::Sequential => Sampler::Sequential { next: 0 },
            Law::Window { newest, skip } => Sampler::Window { newest, skip },
            Law::Oldest => Sampler::Oldest,
            Law::Lognormal { median, sigma } => Sampler::Lognormal { median, sigma },
            Law::Pareto { scale, shape } => Sampler::Lomax { scale, shape },
            Law::Weibull { scale, shape } => Sampler::Weibull { scale, shape },
            Law::Poisson { mean } => Sampler::Poisson { mean },
            Law::PowerLaw { a, b } => Sampler::PowerLaw { a, b },
            Law::Mixgraph { ranges, range: [a, b, c, d], key } => {
                let weight = |r: u32| a * libm::exp(b * f64::from(r)) + c * libm::exp(d * f64::from(r));
                let weights: Vec<f64> = (1..=ranges).map(weight).collect();
                let order = Permutation::new(u64::from(ranges), &mut shuffle.split("ranges"));
                Sampler::Mixgraph { ranges: Alias::new(&weights), order, key }
            }
            Law::Histogram { ref path } => Sampler::Parts(Alias::new(&alias::read(path)?)),
            Law::Weights { ref of } => Sampler::Parts(Alias::new(of)),
        };
        let hot = match law {
            Law::Latest { .. } => Hot::Last,
            _ => hot.unwrap_or(if law.is_by_rank() { Hot::Scattered } else { Hot::First }),
        };
        let scatter = Permutation::new(1, &mut shuffle.split("order"));
        Ok(Picker { sampler, hot, scatter, distinct: None, drift: None, draws: 0 })
    }

    /// Only so many of the numbers are ever drawn, as a share: a random selection, or the first by `hot`.
    #[must_use]
    pub(super) fn distinct(mut self, share: Option<f64>) -> Picker {
        self.distinct = share;
        if share.is_some() && matches!(self.sampler, Sampler::Uniform) {
            self.hot = Hot::Scattered;
        }
        self
    }

    /// The numbers move on.
    #[must_use]
    pub(super) fn drift(mut self, drift: Option<Drift>) -> Picker {
        self.drift = drift;
        self
    }

    /// The next number below `n`.
    #[inline]
    pub(super) fn pick(&mut self, n: u64, rng: &mut Rng) -> u64 {
        debug_assert!(n > 0, "nothing to pick from");
        if matches!(self.sampler, Sampler::Uniform) && self.distinct.is_none() {
            return rng.below(n);
        }
        let among = match self.distinct {
            Some(share) => floor(libm::ceil(float(n) * share)).clamp(1, n),
            None => n,
        };
        let rank = self.rank(among, rng);
        let at = match self.hot {
            Hot::First => rank,
            Hot::Last => n - 1 - rank,
            Hot::Scattered => {
                self.scatter.resize(n);
                self.scatter.apply(rank)
            }
        };
        self.draws += 1;
        match self.drift {
            Some(Drift { every, step }) => {
                let moved = step * float((self.draws - 1) / every);
                let shift = floor((moved - libm::floor(moved)) * float(n)).min(n - 1);
                let at = at + shift;
                if at >= n { at - n } else { at }
            }
            None => at,
        }
    }

    fn rank(&mut self, n: u64, rng: &mut Rng) -> u64 {
        match &mut self.sampler {
            Sampler::Uniform => rng.below(n),
            Sampler::Zipf(zipf) => {
                zipf.resize(n);
                zipf.next(rng)
            }
            Sampler::Normal { mean, deviation } => within(n, || *mean + *deviation * random::normal(rng)),
            Sampler::Beta { alpha, beta } => within(n, || random::beta(*alpha, *beta, rng)),
            Sampler::HotRange { start, width, operations } => {
                let first = floor(*start * float(n)).min(n - 1);
                let wide = floor((*width * float(n)).round()).clamp(1, n - first);
                if wide == n || rng.unit() < *operations {
                    return first + rng.below(wide);
                }
                let cold = rng.below(n - wide);
                if cold < first { cold } else { cold + wide }
            }
            Sampler::Exponential { scale } => within(n, || *scale * random::exponential(rng)),
            Sampler::Sequential { next } => {
                let now = if *next >= n { 0 } else { *next };
                *next = now + 1;
                now
            }
            Sampler::Window { newest, skip } => {
                let skip = (*skip).min(n - 1);
                n - 1 - skip - rng.below((*newest).min(n - skip))
            }
            Sampler::Oldest => 0,
            Sampler::Lognormal { median, sigma } => within(n, || *median * libm::exp(*sigma * random::normal(rng))),
            Sampler::Lomax { scale, shape } => within(n, || random::lomax(*scale, *shape, rng)),
            Sampler::Weibull { scale, shape } => within(n, || random::weibull(*scale, *shape, rng)),
            Sampler::Poisson { mean } => {
                let mean = *mean * float(n - 1);
                loop {
                    let k = random::poisson(mean, rng);
                    if k < float(n) {
                        return floor(k).min(n - 1);
                    }
                }
            }
            Sampler::PowerLaw { a, b } => power_rank(*a, *b, rng) % n,
            Sampler::Mixgraph { ranges, order, key } => {
                let count = ranges.len().min(n);
                let range = order.apply(ranges.draw(rng)) % count;
                let (first, end) = part(range, count, n);
                // The keys of a range that are hot are spread over it; each range has the same pattern.
                let within = power_rank(key[0], key[1], rng) % (end - first);
                self.scatter.resize(end - first);
                first + self.scatter.apply(within)
            }
            Sampler::Parts(alias) => {
                let count = alias.len().min(n);
                let (first, end) = part(alias.draw(rng) % count, count, n);
                first + rng.below(end - first)
            }
        }
    }
}

/// The `i`-th of `count` equal parts of `0..n`.
fn part(i: u64, count: u64, n: u64) -> (u64, u64) {
    let at = |i: u64| {
        let product = u128::from(i) * u128::from(n) / u128::from(count);
        u64::try_from(product).expect("at most n")
    };
    (at(i), at(i + 1))
}

fn power_rank(a: f64, b: f64, rng: &mut Rng) -> u64 {
    floor(libm::pow(random::positive_unit(rng) / a, 1.0 / b))
}

/// Draws until the number is at least 0 and below 1, as a number below `n`.
fn within(n: u64, mut next: impl FnMut() -> f64) -> u64 {
    loop {
        let x = next();
        if (0.0..1.0).contains(&x) {
            return floor(x * float(n)).min(n - 1);
        }
    }
}

/// The number of a key that its own number decides: a draw from a generator that is made for it.
pub(super) fn pick_for(picker: &mut Picker, key_number: u64, salt: u64, n: u64) -> u64 {
    let mut rng = Rng::new(super::permutation::mix(key_number ^ salt));
    picker.pick(n, &mut rng)
}

#[cfg(test)]
mod tests;
