//! Times as users write them: "90s", "15m", "12h", "30d", and where short ones make sense "50ms".

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3600), ('m', 60), ('s', 1)];

/// Reads a time; none if it is not one, or 0.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let (_, seconds) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let n: u64 = text.strip_suffix(unit)?.parse().ok()?;
    Some(Duration::from_secs(n.checked_mul(*seconds)?)).filter(|age| !age.is_zero())
}

/// Writes a time of whole seconds as [`parse`] reads it, in the largest unit that fits.
pub(crate) fn text(age: Duration) -> String {
    let seconds = age.as_secs();
    let fits = |(_, unit): &&(char, u64)| seconds.is_multiple_of(*unit);
    let (name, unit) = UNITS.iter().find(fits).unwrap_or(&('s', 1));
    format!("{}{name}", seconds / unit)
}

/// For serde: a time.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let wrong = || serde::de::Error::custom(format!("{text:?} is no time; write \"90s\", \"15m\", \"12h\" or \"30d\""));
    parse(&text).ok_or_else(wrong)
}

/// For serde: a time that may be left out.
pub(crate) mod optional {
    use super::{Deserializer, Duration, Serialize, Serializer};

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        super::deserialize(deserializer).map(Some)
    }

    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(crate) fn serialize<S: Serializer>(age: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        age.map(super::text).serialize(serializer)
    }
}

/// Reads a time as options spell it: a whole number above 0 and one of `ms`, `s`, `m`, `h` and `d`. None for anything else.
pub fn parse_time(text: &str) -> Option<Duration> {
    let Some(ms) = text.strip_suffix("ms") else { return parse(text) };
    Some(Duration::from_millis(ms.parse().ok()?)).filter(|time| !time.is_zero())
}

/// For serde: a short time that may be left out, as "50ms" or "2s".
pub(crate) mod short {
    use super::{Deserialize, Deserializer, Duration, Serialize, Serializer, parse_time};

    pub(crate) fn text(time: Duration) -> String {
        if time.subsec_nanos() == 0 { super::text(time) } else { format!("{}ms", time.as_millis()) }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom(format!("{text:?} is no time; write \"50ms\", \"2s\" or \"1m\""));
        parse_time(&text).ok_or_else(wrong).map(Some)
    }

    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(crate) fn serialize<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        time.map(text).serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_times_print_and_parse_back() {
        for (words, ms) in [("50ms", 50), ("2s", 2000), ("1m", 60_000), ("1500ms", 1500)] {
            assert_eq!(parse_time(words), Some(Duration::from_millis(ms)));
            assert_eq!(short::text(Duration::from_millis(ms)), words);
        }
        assert_eq!((parse_time("0ms"), parse_time("5"), parse_time("ms")), (None, None, None));
    }

    #[test]
    fn times_print_and_parse_back() {
        for (words, seconds) in [("90s", 90), ("15m", 900), ("12h", 43_200), ("30d", 2_592_000), ("61m", 3660)] {
            assert_eq!(parse(words), Some(Duration::from_secs(seconds)));
            assert_eq!(text(Duration::from_secs(seconds)), words);
        }
        for wrong in ["", "5", "0s", "h", "-1s", "1.5h", "99999999999999999d", "1 h", "3w"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
