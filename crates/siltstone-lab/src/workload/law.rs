//! Which of the keys: the laws by which operations choose among them.
//!
//! A law gives a *rank* below a count n; the numbers of [`Law`]'s variants that have no unit are shares of n, so that a law means the same for
//! a thousand keys and for a billion. [`Hot`] says which key a rank is: the law says how skewed the choice is, not where the hot keys lie.

use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;

use anyhow::ensure;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor, value};
use serde::{Deserialize as DeriveDeserialize, Serialize};

/// How skewed a choice is.
#[derive(Clone, PartialEq, Debug, Default, Serialize, DeriveDeserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Law {
    /// Each rank equally likely.
    #[default]
    Uniform,
    /// Rank r with probability proportional to (r + 1)^-theta.
    Zipf {
        /// The skew, above 0.
        theta: f64,
    },
    /// `zipf` with the newest key the hottest, whatever `hot` says (YCSB's `latest`).
    Latest {
        /// The skew, above 0; YCSB's is 0.99.
        #[serde(default = "ycsb_theta")]
        theta: f64,
    },
    /// Bell-shaped; what falls outside is drawn again.
    Normal {
        /// Its middle, 0 to 1.
        mean: f64,
        /// Its standard deviation, above 0 and up to 10.
        deviation: f64,
    },
    /// Beta-distributed.
    Beta {
        /// Both above 0.
        alpha: f64,
        /// Both above 0.
        beta: f64,
    },
    /// A share of the operations on the first ranks, the rest on the others, both uniformly (YCSB).
    Hotspot {
        /// The share of the ranks that is hot.
        data: f64,
        /// The share of the operations that goes there.
        operations: f64,
    },
    /// `hotspot` over a range that begins anywhere, its ranks one after the other: with `over = "keys"` a range of the key space (guo17's RangeHot).
    HotRange {
        /// Where it begins, 0 to 1 less the width.
        start: f64,
        /// The share of the ranks in it.
        width: f64,
        /// The share of the operations that goes there.
        operations: f64,
    },
    /// Exponential: `percentile` in a hundred fall on the first `data` of the ranks (YCSB: 95, 0.8571); what falls outside is drawn again.
    Exponential {
        /// From 1 to below 100.
        percentile: f64,
        /// The share of the ranks, up to 1.
        data: f64,
    },
    /// 0, 1, 2, ... and round again.
    Sequential,
    /// The newest keys uniformly, some of the very newest left out.
    Window {
        /// How many.
        newest: u64,
        /// How many still newer ones are left out.
        #[serde(default)]
        skip: u64,
    },
    /// The oldest key: with deletes, a queue.
    Oldest,
    /// exp of a normal number; what falls outside is drawn again.
    Lognormal {
        /// The median, above 0 and up to 1.
        median: f64,
        /// The deviation of the logarithm, above 0 and up to 10.
        sigma: f64,
    },
    /// Pareto of the second kind (Lomax), so that it begins at rank 0; what falls outside is drawn again.
    Pareto {
        /// Above 0 and up to 1.
        scale: f64,
        /// The exponent of the tail, from 0.1.
        shape: f64,
    },
    /// Weibull; what falls outside is drawn again.
    Weibull {
        /// Above 0 and up to 1.
        scale: f64,
        /// Above 0.
        shape: f64,
    },
    /// Poisson around a rank; what falls outside is drawn again.
    Poisson {
        /// Above 0 and up to 1.
        mean: f64,
    },
    /// The rank (u / a)^(1 / b) of a uniform u, round and round: the power function that db_bench's mixgraph fits to key popularity.
    PowerLaw {
        /// Above 0.
        a: f64,
        /// Above 0.
        b: f64,
    },
    /// mixgraph's model of key ranges (Cao et al., FAST 2020): a range by a e^(b r) + c e^(d r), then a key of it by the power law. Ranges are
    /// pieces of the order that the law runs over; which range is how hot is shuffled.
    Mixgraph {
        /// How many ranges, up to 65536.
        ranges: u32,
        /// a, b, c, d of a range's popularity.
        range: [f64; 4],
        /// a, b of a key's.
        key: [f64; 2],
    },
    /// Equal parts of the ranks, each as often as a file of numbers says: one weight a line, `#` begins a comment.
    Histogram {
        /// The file.
        path: PathBuf,
    },
    /// Equal parts of the ranks, each by its weight.
    Weights {
        /// The weights.
        of: Vec<f64>,
    },
}

fn ycsb_theta() -> f64 {
    0.99
}

/// Which key a rank is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, DeriveDeserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hot {
    /// Spread over all keys at random, the same for each law of a workload. The default for laws that begin with their hottest rank.
    #[default]
    Scattered,
    /// The oldest key is rank 0, or the smallest with `over = "keys"`.
    First,
    /// The newest key is rank 0, or the largest with `over = "keys"`.
    Last,
}

/// What ranks number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, DeriveDeserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    /// The keys in the order of their insertion.
    #[default]
    Insertion,
    /// The keys in their own order. Needs an order of keys that can be computed back.
    Keys,
}

/// How the hot keys become others over time.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, DeriveDeserialize)]
#[serde(deny_unknown_fields)]
pub struct Drift {
    /// After as many choices by this law ...
    pub every: u64,
    /// ... all choices move on by this share of the keys. Small and often is a slow drift, large and rarely an abrupt one.
    pub step: f64,
}

impl Law {
    /// Whether a rank's probability falls with the rank, so that spreading the ranks makes sense.
    pub fn is_by_rank(&self) -> bool {
        matches!(
            self,
            Law::Zipf { .. }
                | Law::Exponential { .. }
                | Law::Pareto { .. }
                | Law::PowerLaw { .. }
                | Law::Hotspot { .. }
        )
    }

    /// What is wrong with its numbers.
    ///
    /// # Errors
    /// In words, with what would be allowed.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let share = |name: &str, x: f64| {
            ensure!((0.0..=1.0).contains(&x), "`{name}` is a share, from 0 to 1, not {x}");
            Ok(())
        };
        let within = |name: &str, x: f64, low: f64, high: f64| {
            ensure!(x.is_finite() && x >= low && x <= high, "`{name}` must be from {low} to {high}, not {x}");
            Ok(())
        };
        match *self {
            Law::Uniform | Law::Sequential | Law::Oldest | Law::Histogram { .. } => Ok(()),
            Law::Zipf { theta } | Law::Latest { theta } => within("theta", theta, 1e-6, 100.0),
            Law::Normal { mean, deviation } => {
                share("mean", mean)?;
                within("deviation", deviation, 1e-9, 10.0)
            }
            Law::Beta { alpha, beta } => {
                within("alpha", alpha, 1e-3, 1e6)?;
                within("beta", beta, 1e-3, 1e6)
            }
            Law::Hotspot { data, operations } => {
                share("data", data)?;
                share("operations", operations)
            }
            Law::HotRange { start, width, operations } => {
                share("start", start)?;
                share("width", width)?;
                share("operations", operations)?;
                ensure!(start + width <= 1.0, "the hot range ends at {}, beyond 1", start + width);
                Ok(())
            }
            Law::Exponential { percentile, data } => {
                within("percentile", percentile, 1.0, 99.999_999)?;
                within("data", data, 1e-9, 1.0)
            }
            Law::Window { newest, .. } => {
                ensure!(newest > 0, "`newest` must be above 0");
                Ok(())
            }
            Law::Lognormal { median, sigma } => {
                within("median", median, 1e-9, 1.0)?;
                within("sigma", sigma, 1e-9, 10.0)
            }
            Law::Pareto { scale, shape } => {
                within("scale", scale, 1e-9, 1.0)?;
                within("shape", shape, 0.1, 1e3)
            }
            Law::Weibull { scale, shape } => {
                within("scale", scale, 1e-9, 1.0)?;
                within("shape", shape, 0.01, 1e3)
            }
            Law::Poisson { mean } => within("mean", mean, 1e-9, 1.0),
            Law::PowerLaw { a, b } => {
                within("a", a, 1e-12, 1e12)?;
                within("b", b, 0.02, 1e3)
            }
            Law::Mixgraph { ranges, range: [a, b, c, d], key: [key_a, key_b] } => {
                ensure!((1..=1 << 16).contains(&ranges), "`ranges` must be from 1 to 65536, not {ranges}");
                for r in 1..=ranges {
                    let weight = a * libm::exp(b * f64::from(r)) + c * libm::exp(d * f64::from(r));
                    ensure!(weight.is_finite() && weight >= 0.0, "range {r} has the weight {weight}");
                }
                within("key[0]", key_a, 1e-12, 1e12)?;
                within("key[1]", key_b, 0.02, 1e3)
            }
            Law::Weights { ref of } => super::alias::check(of),
        }
    }
}

/// For serde: `"uniform"` for `{ kind = "uniform" }`.
pub(super) fn named<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_any(Named(PhantomData))
}

struct Named<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Named<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name, or a table with a `kind`")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<T, E> {
        T::deserialize(value::MapDeserializer::new(std::iter::once(("kind", name))))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(value::MapAccessDeserializer::new(map))
    }
}
