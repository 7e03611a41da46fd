//! Figures as short text.

use crate::num::float;

/// `1536` as `1.50 KiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = float(n) / 1024.0;
    let mut unit = 0;
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", three_digits(value), UNITS[unit])
}

/// Nanoseconds as `870 ns`, `12.3 us`, `4.56 ms`, `1.20 s`; long times in minutes, hours or days.
pub fn duration_ns(ns: u64) -> String {
    let value = float(ns);
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} us", three_digits(value / 1e3)),
        1_000_000..1_000_000_000 => format!("{} ms", three_digits(value / 1e6)),
        1_000_000_000..1_000_000_000_000 => format!("{} s", three_digits(value / 1e9)),
        1_000_000_000_000..10_000_000_000_000 => format!("{} min", three_digits(value / 6e10)),
        10_000_000_000_000..200_000_000_000_000 => format!("{} h", three_digits(value / 3.6e12)),
        _ => format!("{} days", three_digits(value / 8.64e13)),
    }
}

/// A count or rate: `950`, `12.3 K`, `4.56 M`.
pub fn number(value: f64) -> String {
    match value {
        v if v < 1e3 && v.fract() == 0.0 => format!("{v}"),
        v if v < 1e3 => three_digits(v),
        v if v < 1e6 => format!("{} K", three_digits(v / 1e3)),
        v if v < 1e9 => format!("{} M", three_digits(v / 1e6)),
        v => format!("{} G", three_digits(v / 1e9)),
    }
}

/// Three significant digits; whole numbers below 1000 stay whole.
fn three_digits(value: f64) -> String {
    let decimals = match value {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    text.strip_suffix(".00").map(str::to_owned).unwrap_or(text)
}
