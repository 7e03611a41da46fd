//! Does a sample follow its law? Seeds are fixed, so a sample that does stays so.

use crate::num::{count, float};

/// Chi-square: the sum over the cells of (seen - expected)^2 / expected, against five standard deviations above its mean. Cells expected to be
/// seen less than ten times are taken together.
pub(super) fn chi_square(what: &str, seen: &[u64], probability: impl Fn(usize) -> f64) {
    let total = float(seen.iter().sum());
    let (mut sum, mut cells) = (0.0, 0u64);
    let (mut rest_seen, mut rest_expected, mut mass) = (0.0, 0.0, 0.0);
    for (cell, n) in seen.iter().enumerate() {
        mass += probability(cell);
        let expected = probability(cell) * total;
        rest_seen += float(*n);
        rest_expected += expected;
        if rest_expected >= 10.0 {
            sum += (rest_seen - rest_expected).powi(2) / rest_expected;
            cells += 1;
            (rest_seen, rest_expected) = (0.0, 0.0);
        }
    }
    assert!((mass - 1.0).abs() < 1e-6, "{what}: the probabilities add up to {mass}");
    if rest_expected > 0.0 {
        sum += (rest_seen - rest_expected).powi(2) / rest_expected.max(1.0);
        cells += 1;
    }
    let free = float(cells.max(2) - 1);
    let limit = free + 5.0 * (2.0 * free).sqrt() + 10.0;
    assert!(sum < limit, "{what}: chi-square {sum:.1} over {cells} cells, the limit is {limit:.1}");
}

/// Kolmogorov-Smirnov: the largest distance between the shares of a sample up to x and the law's. 1.95 / sqrt(n) is exceeded by one sample in a
/// thousand.
pub(super) fn kolmogorov_smirnov(what: &str, mut sample: Vec<f64>, cdf: impl Fn(f64) -> f64) {
    sample.sort_by(f64::total_cmp);
    let n = float(count(sample.len()));
    let mut worst = (0.0f64, 0.0);
    for (i, x) in (0u64..).zip(&sample) {
        let p = cdf(*x);
        let far = (p - float(i) / n).abs().max((float(i + 1) / n - p).abs());
        if far > worst.0 {
            worst = (far, *x);
        }
    }
    let limit = 1.95 / n.sqrt();
    assert!(worst.0 < limit, "{what}: off by {:.5} at {}, the limit is {limit:.5}", worst.0, worst.1);
}

/// The standard normal law's share up to x.
pub(super) fn normal_cdf(x: f64) -> f64 {
    0.5 * (1.0 + libm::erf(x / std::f64::consts::SQRT_2))
}

/// A law cut down to what lies between two numbers.
pub(super) fn between(low: f64, high: f64, cdf: impl Fn(f64) -> f64) -> impl Fn(f64) -> f64 {
    move |x| (cdf(x) - cdf(low)) / (cdf(high) - cdf(low))
}
