//! How many and how long: bytes of values and keys, records of a scan.
//!
//! In contrast to [`Law`](super::Law) the numbers are absolute. Real-valued laws are rounded down and drawn again outside `min..=max`.

use std::path::PathBuf;

use anyhow::ensure;
use serde::de::{Deserializer, MapAccess, Visitor, value};
use serde::{Deserialize, Serialize};
use siltstone::io::Rng;

use super::alias::{self, Alias};
use super::random;
use super::zipf::Zipf;
use crate::num::{float, floor};

/// Draws that fall outside the bounds before one of them is taken instead: only a law that hardly ever falls inside comes to that.
const TRIES: u32 = 1000;

/// A law of sizes. In a file a plain number stands for `{ kind = "constant", value = ... }`.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(transparent)]
pub struct SizeLaw(Kind);

/// The laws.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
enum Kind {
    Constant {
        value: u64,
    },
    Uniform {
        min: u64,
        max: u64,
    },
    Zipf {
        min: u64,
        max: u64,
        theta: f64,
    },
    Normal {
        mean: f64,
        deviation: f64,
        min: u64,
        max: u64,
    },
    Lognormal {
        median: f64,
        sigma: f64,
        min: u64,
        max: u64,
    },
    Exponential {
        mean: f64,
        min: u64,
        max: u64,
    },
    /// The generalized Pareto law with location theta, scale sigma and shape k, as mixgraph has it.
    Pareto {
        theta: f64,
        sigma: f64,
        k: f64,
        min: u64,
        max: u64,
    },
    Weibull {
        scale: f64,
        shape: f64,
        min: u64,
        max: u64,
    },
    Poisson {
        mean: f64,
        min: u64,
        max: u64,
    },
    Beta {
        alpha: f64,
        beta: f64,
        min: u64,
        max: u64,
    },
    /// The n-th line of a file is the weight of the size `min + n`, the first n being 0.
    Histogram {
        path: PathBuf,
        min: u64,
    },
    Weights {
        of: Vec<f64>,
        min: u64,
    },
}

impl SizeLaw {
    /// Always the same.
    pub const fn constant(value: u64) -> SizeLaw {
        SizeLaw(Kind::Constant { value })
    }

    /// The one size that it has, if it has one.
    pub const fn as_constant(&self) -> Option<u64> {
        match self.0 {
            Kind::Constant { value } => Some(value),
            _ => None,
        }
    }

    /// The bounds of what it gives. The upper one of a histogram in a file is not known before the file is read.
    pub fn bounds(&self) -> (u64, Option<u64>) {
        match self.0 {
            Kind::Constant { value } => (value, Some(value)),
            Kind::Uniform { min, max }
            | Kind::Zipf { min, max, .. }
            | Kind::Normal { min, max, .. }
            | Kind::Lognormal { min, max, .. }
            | Kind::Exponential { min, max, .. }
            | Kind::Pareto { min, max, .. }
            | Kind::Weibull { min, max, .. }
            | Kind::Poisson { min, max, .. }
            | Kind::Beta { min, max, .. } => (min, Some(max)),
            Kind::Histogram { min, .. } => (min, None),
            Kind::Weights { ref of, min } => (min, Some(min + crate::num::count(of.len()).saturating_sub(1))),
        }
    }

    /// What is wrong with it, where sizes are from `least` to `most`.
    ///
    /// # Errors
    /// In words, with what would be allowed.
    pub(super) fn check(&self, least: u64, most: u64) -> anyhow::Result<()> {
        let (min, max) = self.bounds();
        ensure!(min >= least, "{min} is below the least, {least}");
        if let Some(max) = max {
            ensure!(min <= max, "`min` {min} is above `max` {max}");
            ensure!(max <= most, "{max} is above the most, {most}");
        }
        let positive = |name: &str, x: f64| {
            ensure!(x.is_finite() && x > 0.0, "`{name}` must be above 0, not {x}");
            Ok(())
        };
        let finite = |name: &str, x: f64| {
            ensure!(x.is_finite(), "`{name}` must be a number, not {x}");
            Ok(())
        };
        match self.0 {
            Kind::Constant { .. } | Kind::Uniform { .. } | Kind::Histogram { .. } => Ok(()),
            Kind::Zipf { theta, .. } => positive("theta", theta),
            Kind::Normal { mean, deviation, .. } => {
                finite("mean", mean)?;
                positive("deviation", deviation)
            }
            Kind::Lognormal { median, sigma, .. } => {
                positive("median", median)?;
                positive("sigma", sigma)
            }
            Kind::Exponential { mean, .. } | Kind::Poisson { mean, .. } => positive("mean", mean),
            Kind::Pareto { theta, sigma, k, .. } => {
                finite("theta", theta)?;
                finite("k", k)?;
                positive("sigma", sigma)
            }
            Kind::Weibull { scale, shape, .. } => {
                positive("scale", scale)?;
                positive("shape", shape)
            }
            Kind::Beta { alpha, beta, .. } => {
                positive("alpha", alpha)?;
                positive("beta", beta)
            }
            Kind::Weights { ref of, .. } => alias::check(of),
        }
    }
}

impl<'de> Deserialize<'de> for SizeLaw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SizeLaw, D::Error> {
        struct NumberOrTable;
        impl<'de> Visitor<'de> for NumberOrTable {
            type Value = SizeLaw;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number, or a table with a `kind`")
            }
            fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<SizeLaw, E> {
                u64::try_from(n).map(SizeLaw::constant).map_err(|_| E::custom(format!("{n} is no size")))
            }
            fn visit_u64<E: serde::de::Error>(self, n: u64) -> Result<SizeLaw, E> {
                Ok(SizeLaw::constant(n))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SizeLaw, A::Error> {
                Kind::deserialize(value::MapAccessDeserializer::new(map)).map(SizeLaw)
            }
        }
        deserializer.deserialize_any(NumberOrTable)
    }
}

/// A law of sizes, ready to draw from.
#[derive(Clone, Debug)]
pub(super) struct SizePicker {
    law: Kind,
    zipf: Option<Zipf>,
    alias: Option<Alias>,
    min: u64,
    max: u64,
}

impl SizePicker {
    /// Reads a histogram's file. Sizes of `most` and more are refused here where the law's text could not tell.
    pub(super) fn new(law: &SizeLaw, most: u64) -> anyhow::Result<SizePicker> {
        let weights = match &law.0 {
            Kind::Histogram { path, .. } => Some(alias::read(path)?),
            Kind::Weights { of, .. } => Some(of.clone()),
            _ => None,
        };
        let alias = weights.as_deref().map(Alias::new);
        let (min, max) = law.bounds();
        let max = max.unwrap_or_else(|| min + alias.as_ref().map_or(0, Alias::len).saturating_sub(1));
        ensure!(max <= most, "the histogram reaches {max}, above the most, {most}");
        let zipf = match law.0 {
            Kind::Zipf { min, max, theta } => Some(Zipf::new(max - min + 1, theta)),
            _ => None,
        };
        Ok(SizePicker { law: law.0.clone(), zipf, alias, min, max })
    }

    /// The largest that it gives.
    pub(super) fn max(&self) -> u64 {
        self.max
    }

    /// The one size that it has, if it has one.
    #[inline]
    pub(super) const fn constant(&self) -> Option<u64> {
        match self.law {
            Kind::Constant { value } => Some(value),
            _ => None,
        }
    }

    /// The next size.
    #[inline]
    pub(super) fn draw(&self, rng: &mut Rng) -> u64 {
        if let Kind::Constant { value } = self.law {
            return value;
        }
        self.draw_any(rng)
    }

    fn draw_any(&self, rng: &mut Rng) -> u64 {
        if let Kind::Uniform { min, max } = self.law {
            return min + rng.below((max - min).saturating_add(1));
        }
        if let Some(zipf) = &self.zipf {
            return self.min + zipf.next(rng);
        }
        if let Some(alias) = &self.alias {
            return self.min + alias.draw(rng);
        }
        for _ in 0..TRIES {
            let x = self.real(rng);
            if x >= float(self.min) && x < float(self.max) + 1.0 {
                return floor(x).clamp(self.min, self.max);
            }
        }
        floor(self.real(rng)).clamp(self.min, self.max)
    }

    fn real(&self, rng: &mut Rng) -> f64 {
        match self.law {
            Kind::Normal { mean, deviation, .. } => mean + deviation * random::normal(rng),
            Kind::Lognormal { median, sigma, .. } => median * libm::exp(sigma * random::normal(rng)),
            Kind::Exponential { mean, .. } => mean * random::exponential(rng),
            Kind::Pareto { theta, sigma, k, .. } => {
                let e = random::exponential(rng);
                theta + sigma * if k.abs() < 1e-9 { e } else { libm::expm1(k * e) / k }
            }
            Kind::Weibull { scale, shape, .. } => random::weibull(scale, shape, rng),
            Kind::Poisson { mean, .. } => random::poisson(mean, rng),
            Kind::Beta { alpha, beta, min, max } => {
                let x = float(min) + float(max - min + 1) * random::beta(alpha, beta, rng);
                // The sum may be rounded up to the next size.
                x.min(float(max) + 0.5)
            }
            Kind::Constant { .. }
            | Kind::Uniform { .. }
            | Kind::Zipf { .. }
            | Kind::Histogram { .. }
            | Kind::Weights { .. } => unreachable!("these are drawn as whole numbers"),
        }
    }
}

#[cfg(test)]
mod tests;
