//! When operations are due.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::load::{Arrivals, Rate, Spacing, Stretch};

/// Who decides when an operation starts.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ArrivalSpec {
    /// A closed loop: the next one when the last one has ended.
    #[default]
    Closed,
    /// An open loop with one rate.
    Open {
        /// Operations a second, of all clients of the group together.
        per_second: f64,
        /// The gaps between them.
        #[serde(default)]
        spacing: Spaced,
    },
    /// An open loop with one rate after the other, and from the first again: bursts; on and off with a rate of 0.
    Stretches {
        /// The rates.
        of: Vec<StretchSpec>,
        /// The gaps.
        #[serde(default)]
        spacing: Spaced,
    },
    /// An open loop whose rate swings: `per_second + swing sin(2 pi t / period)`, in steps of a fortieth of the period.
    Sine {
        /// The middle.
        per_second: f64,
        /// Up to the middle.
        swing: f64,
        /// How long a swing takes.
        #[serde(with = "time")]
        period: Duration,
        /// The gaps.
        #[serde(default)]
        spacing: Spaced,
    },
    /// An open loop at a share of what the store was measured to do in an earlier phase with a closed loop (luo19's two phases).
    Share {
        /// The share.
        of_maximum: f64,
        /// The earlier phase.
        of_phase: String,
        /// The gaps.
        #[serde(default)]
        spacing: Spaced,
    },
}

/// A rate that holds for a time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StretchSpec {
    /// Operations a second.
    pub per_second: f64,
    /// For how long.
    #[serde(rename = "for", with = "time")]
    pub time: Duration,
}

/// The gaps between operations of an open loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spaced {
    /// Equal.
    #[default]
    Constant,
    /// Exponential.
    Poisson,
}

/// The steps of a swing.
const SINE_STEPS: u32 = 40;

impl ArrivalSpec {
    /// The phase whose maximum must be known.
    pub fn needs(&self) -> Option<&str> {
        match self {
            ArrivalSpec::Share { of_phase, .. } => Some(of_phase),
            _ => None,
        }
    }

    /// As a load takes it. `measured` is the rate of the phase that it [`needs`](Self::needs).
    ///
    /// # Panics
    /// If it needs a measured rate, and there is none.
    pub fn arrivals(&self, measured: Option<Rate>) -> Arrivals {
        let stretch = |per_second: f64, time: Duration| Stretch { rate: rate(per_second), ns: nanoseconds(time) };
        match self {
            ArrivalSpec::Closed => Arrivals::Closed,
            ArrivalSpec::Open { per_second, spacing } => Arrivals::steady(rate(*per_second), spacing.spacing()),
            ArrivalSpec::Stretches { of, spacing } => Arrivals::Open {
                stretches: of.iter().map(|s| stretch(s.per_second, s.time)).collect(),
                spacing: spacing.spacing(),
            },
            ArrivalSpec::Sine { per_second, swing, period, spacing } => {
                let step = *period / SINE_STEPS;
                let at = |i: u32| {
                    let turn = (f64::from(i) + 0.5) / f64::from(SINE_STEPS) * std::f64::consts::TAU;
                    stretch(per_second + swing * libm::sin(turn), step)
                };
                Arrivals::Open { stretches: (0..SINE_STEPS).map(at).collect(), spacing: spacing.spacing() }
            }
            ArrivalSpec::Share { of_maximum, spacing, .. } => {
                let measured = measured.expect("the rate of the phase that it needs");
                let millionths = crate::num::floor((of_maximum * 1e6).round());
                Arrivals::steady(measured.times(millionths, 1_000_000), spacing.spacing())
            }
        }
    }
}

fn rate(per_second: f64) -> Rate {
    Rate::from_millionths(crate::num::floor((per_second * 1e6).round()))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Spaced {
    const fn spacing(self) -> Spacing {
        match self {
            Spaced::Constant => Spacing::Constant,
            Spaced::Poisson => Spacing::Poisson,
        }
    }
}

/// Serde for times.
pub(super) mod time {
    use super::{Deserialize, Deserializer, Duration, Serializer};

    pub(in super::super) fn text(time: Duration) -> String {
        let ms = time.as_millis();
        if ms.is_multiple_of(1000) { format!("{}s", ms / 1000) } else { format!("{ms}ms") }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        siltstone::options::parse_time(&text).ok_or_else(|| {
            serde::de::Error::custom(format!("{text:?} is no time; write \"50ms\", \"30s\", \"20m\" or \"2h\""))
        })
    }

    pub(in super::super) fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&text(*time))
    }
}

/// Serde for times that may be left out.
pub(super) mod some_time {
    use super::{Deserializer, Duration, Serializer, time};

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        time::deserialize(deserializer).map(Some)
    }

    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(in super::super) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => time::serialize(time, serializer),
            None => serializer.serialize_none(),
        }
    }
}
