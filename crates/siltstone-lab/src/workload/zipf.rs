//! Zipf-distributed ranks by rejection-inversion: Hörmann and Derflinger, "Rejection-inversion to generate variates from
//! monotone discrete distributions", ACM TOMACS 6(3), 1996.
//!
//! The idea: the probability of rank k is proportional to h(k) = k^-theta. The integral H of h has a closed inverse, so a
//! uniform number between H's ends is turned into a real x, and x is rounded to the rank. Rounding is right nearly always; the
//! rest is put right by rejecting where the rectangle of rank k reaches beyond the area under h. No table, no set-up per n.
//!
//! Logarithms and exponentials come from the `libm` crate: the ones of the platform differ in the last bit, and then the
//! streams would, too.

use siltstone::io::Rng;

use crate::num::{float, floor};

/// Draws ranks `0..n`, the smallest most often.
#[derive(Clone, Debug)]
pub struct Zipf {
    n: u64,
    theta: f64,
    /// H at the left end of rank 1's area and at the right end of rank n's.
    area_first: f64,
    area_last: f64,
    /// Where x is at most this far below its rank, the draw is accepted without computing H.
    sure: f64,
}

impl Zipf {
    /// Ranks of `n` items with skew `theta`.
    ///
    /// # Panics
    /// If `n` is 0, or `theta` is not a positive number.
    pub fn new(n: u64, theta: f64) -> Zipf {
        assert!(n > 0, "no rank among no items");
        assert!(theta > 0.0 && theta.is_finite(), "a Zipf skew is positive, not {theta}");
        let mut zipf = Zipf { n, theta, area_first: 0.0, area_last: 0.0, sure: 0.0 };
        zipf.area_first = zipf.integral(1.5) - 1.0;
        zipf.area_last = zipf.integral(float(n) + 0.5);
        zipf.sure = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    /// The same skew over `n` items.
    ///
    /// # Panics
    /// If `n` is 0.
    #[inline]
    pub fn resize(&mut self, n: u64) {
        assert!(n > 0, "no rank among no items");
        if n != self.n {
            self.n = n;
            self.area_last = self.integral(float(n) + 0.5);
        }
    }

    /// The next rank, below `n`.
    pub fn next(&self, rng: &mut Rng) -> u64 {
        loop {
            let area = self.area_last + rng.unit() * (self.area_first - self.area_last);
            let x = self.inverse(area);
            let rank = floor(x + 0.5).clamp(1, self.n);
            let k = float(rank);
            if k - x <= self.sure || area >= self.integral(k + 0.5) - self.weight(k) {
                return rank - 1;
            }
        }
    }

    /// h(x) = x^-theta.
    fn weight(&self, x: f64) -> f64 {
        libm::exp(-self.theta * libm::log(x))
    }

    /// H(x) = (x^(1-theta) - 1) / (1 - theta), and ln x at theta = 1, without loss near it.
    fn integral(&self, x: f64) -> f64 {
        let log = libm::log(x);
        let t = (1.0 - self.theta) * log;
        // expm1(t) / t, continued over the gap at 0.
        log * if t.abs() > 1e-8 { libm::expm1(t) / t } else { 1.0 + t / 2.0 }
    }

    fn inverse(&self, area: f64) -> f64 {
        // Rounding can push the argument of ln(1 + t) below -1.
        let t = (area * (1.0 - self.theta)).max(-1.0);
        libm::exp(area * if t.abs() > 1e-8 { libm::log1p(t) / t } else { 1.0 - t / 2.0 })
    }
}
