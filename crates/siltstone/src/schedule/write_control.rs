//! What a keyspace does with writes when merges do not keep up (luo19 section 4.3).
//!
//! The *debt* of a keyspace is a number: 0 while background work keeps up, 1 where writers stop at the component constraint.
//! Whatever the control, they stop there.
//!
//! | control | until there |
//! | --- | --- |
//! | `stop` | writes are as fast as they can: the least latency for each write, queueing included (luo19 theorem 1), at the price of long pauses |
//! | `delay` | at debt `d` writers together may write `(1 - d)^3` of a rate that no writer reaches: the debt settles where that is what merges sustain, and pauses are short |
//! | `limit` | never more than so many bytes a second |
//! | `compaction-first` | every write waits until the tree has its shape: to measure compaction alone (sarkar21 section 4.1) |

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::kind;

/// How writes of a keyspace wait for merges. In options a word, or a table: `write_control = { kind = "limit", rate_bytes_per_s = 4000000 }`.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(remote = "Self", tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum WriteControl {
    /// Not until they must stop.
    Stop,
    /// Gradually more.
    Delay(Delay),
    /// As much as it takes to stay below a rate.
    Limit(Limit),
    /// Until the tree has its shape.
    CompactionFirst,
}

/// Parameters of `delay`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Delay {
    /// What a debt of nearly nothing allows, in bytes a second. Default 512 MB: faster than any single writer.
    pub free_bytes_per_s: u64,
    /// What any debt below 1 allows, in bytes a second. Default 64 kB: the stop is left to the constraint.
    pub least_bytes_per_s: u64,
}

/// Parameters of `limit`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limit {
    /// Bytes of keys and values a second, at least 1.
    pub rate_bytes_per_s: u64,
}

impl Default for Delay {
    fn default() -> Delay {
        Delay { free_bytes_per_s: 512_000_000, least_bytes_per_s: 64_000 }
    }
}

impl Default for WriteControl {
    fn default() -> WriteControl {
        WriteControl::Delay(Delay::default())
    }
}

impl WriteControl {
    /// The names, as options spell them.
    pub const NAMES: [&'static str; 4] = ["stop", "delay", "limit", "compaction-first"];

    /// The rate at which writers of a keyspace with this debt may write, all together, in bytes a second; none if as fast as they can.
    /// Never 0.
    #[expect(clippy::cast_precision_loss, reason = "rates")]
    pub fn rate(&self, debt: f64) -> Option<f64> {
        match self {
            WriteControl::Stop | WriteControl::CompactionFirst => None,
            WriteControl::Limit(limit) => Some(limit.rate_bytes_per_s.max(1) as f64),
            WriteControl::Delay(_) if debt <= 0.0 => None,
            WriteControl::Delay(delay) => {
                let left = (1.0 - debt).clamp(0.0, 1.0);
                Some((delay.free_bytes_per_s as f64 * left.powi(3)).max(delay.least_bytes_per_s as f64).max(1.0))
            }
        }
    }

    /// What is wrong with its parameters.
    pub(crate) fn validate(&self) -> Result<(), String> {
        match self {
            WriteControl::Limit(limit) if limit.rate_bytes_per_s == 0 => {
                Err("limit: rate_bytes_per_s is needed, at least 1".to_owned())
            }
            WriteControl::Delay(Delay { free_bytes_per_s: free, least_bytes_per_s: least })
                if *least == 0 || free < least =>
            {
                Err(format!(
                    "delay: free_bytes_per_s = {free}, least_bytes_per_s = {least}: the least is at least 1 and at most the other"
                ))
            }
            _ => Ok(()),
        }
    }
}

/// The derived form: always a table.
struct AsTable<'a>(&'a WriteControl);

impl Serialize for AsTable<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        WriteControl::serialize(self.0, serializer)
    }
}

impl Serialize for WriteControl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            WriteControl::Stop => serializer.serialize_str("stop"),
            WriteControl::CompactionFirst => serializer.serialize_str("compaction-first"),
            WriteControl::Delay(delay) if *delay == Delay::default() => serializer.serialize_str("delay"),
            _ => AsTable(self).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for WriteControl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WriteControl, D::Error> {
        kind::read(deserializer, WriteControl::deserialize, |read| toml::Value::try_from(AsTable(read)))
    }
}

impl fmt::Display for WriteControl {
    /// As options spell it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        kind::write(f, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_grows_with_the_debt_never_to_nothing_and_goes_with_it() {
        let control = WriteControl::default();
        assert_eq!((control.rate(0.0), control.rate(-1.0)), (None, None));
        let rates: Vec<f64> = (1..=100).map(|debt| control.rate(f64::from(debt) / 100.0).unwrap()).collect();
        assert!(rates.windows(2).all(|pair| pair[0] >= pair[1]), "{rates:?}");
        assert!((rates[99] - 64e3).abs() < 1.0 && rates[0] > 490e6);
        assert_eq!(control.rate(7.0), control.rate(1.0), "the curve has no memory and no hole");
    }

    #[test]
    fn the_others_do_not_look_at_the_debt() {
        for debt in [0.0, 0.5, 1.0] {
            assert_eq!((WriteControl::Stop.rate(debt), WriteControl::CompactionFirst.rate(debt)), (None, None));
            assert_eq!(WriteControl::Limit(Limit { rate_bytes_per_s: 5 }).rate(debt), Some(5.0));
        }
    }
}
