//! Random numbers of the continuous laws, each exact for its law. Logarithms and the like come from `libm`, so that the numbers are the
//! same on every machine.

use siltstone::io::Rng;

use crate::num::float;

/// A number above 0 and up to 1.
#[inline]
pub(super) fn positive_unit(rng: &mut Rng) -> f64 {
    float((rng.next_u64() >> 11) + 1) / float(1 << 53)
}

/// Exponential with mean 1.
#[inline]
pub(super) fn exponential(rng: &mut Rng) -> f64 {
    -libm::log(positive_unit(rng))
}

/// Standard normal: the polar method (Marsaglia and Bray 1964). The second number of a pair is left: a picker then has no state.
pub(super) fn normal(rng: &mut Rng) -> f64 {
    loop {
        let (x, y) = (2.0 * rng.unit() - 1.0, 2.0 * rng.unit() - 1.0);
        let s = x * x + y * y;
        if s > 0.0 && s < 1.0 {
            return x * libm::sqrt(-2.0 * libm::log(s) / s);
        }
    }
}

/// Gamma with scale 1 (Marsaglia and Tsang 2000), with their boost for shapes below 1, as a logarithm: at small shapes the number itself
/// is often too small for a float.
fn log_gamma_number(shape: f64, rng: &mut Rng) -> f64 {
    if shape < 1.0 {
        return log_gamma_number(shape + 1.0, rng) - exponential(rng) / shape;
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / libm::sqrt(9.0 * d);
    loop {
        let x = normal(rng);
        let t = 1.0 + c * x;
        if t <= 0.0 {
            continue;
        }
        let v = t * t * t;
        if libm::log(positive_unit(rng)) < 0.5 * x * x + d - d * v + d * libm::log(v) {
            return libm::log(d * v);
        }
    }
}

/// Beta: x / (x + y) of two gamma numbers, below 1. With small parameters many come nearer to 1 than a float can, as many as to 0, where it can: drawn
/// anew, they would be missing there.
pub(super) fn beta(a: f64, b: f64, rng: &mut Rng) -> f64 {
    let (x, y) = (log_gamma_number(a, rng), log_gamma_number(b, rng));
    (1.0 / (1.0 + libm::exp(y - x))).min(1.0 - f64::EPSILON / 2.0)
}

/// Pareto of the second kind (Lomax), beginning at 0.
pub(super) fn lomax(scale: f64, shape: f64, rng: &mut Rng) -> f64 {
    scale * libm::expm1(exponential(rng) / shape)
}

/// Weibull.
pub(super) fn weibull(scale: f64, shape: f64, rng: &mut Rng) -> f64 {
    scale * libm::pow(exponential(rng), 1.0 / shape)
}

/// Poisson: by multiplication below a mean of 10, else by transformed rejection (Hörmann, "The transformed rejection method for generating
/// Poisson random variables", 1993, PTRS).
pub(super) fn poisson(mean: f64, rng: &mut Rng) -> f64 {
    if mean < 10.0 {
        let end = libm::exp(-mean);
        let (mut n, mut product) = (0.0, positive_unit(rng));
        while product > end {
            n += 1.0;
            product *= positive_unit(rng);
        }
        return n;
    }
    let (root, log) = (libm::sqrt(mean), libm::log(mean));
    let b = 0.931 + 2.53 * root;
    let a = -0.059 + 0.024_83 * b;
    let inverse_alpha = 1.1239 + 1.1328 / (b - 3.4);
    let bound = 0.9277 - 3.6224 / (b - 2.0);
    loop {
        let u = rng.unit() - 0.5;
        let v = positive_unit(rng);
        let us = 0.5 - u.abs();
        let k = libm::floor((2.0 * a / us + b) * u + mean + 0.43);
        if us >= 0.07 && v <= bound {
            return k;
        }
        if k < 0.0 || (us < 0.013 && v > us) {
            continue;
        }
        let left = libm::log(v) + libm::log(inverse_alpha) - libm::log(a / (us * us) + b);
        if left <= k * log - mean - libm::lgamma(k + 1.0) {
            return k;
        }
    }
}
