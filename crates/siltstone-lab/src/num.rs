//! The conversions between counts and floating point that figures need, each in one named place.

/// A count as a float. Exact up to 2^53, which no count here reaches in a lifetime.
#[inline]
pub const fn float(n: u64) -> f64 {
    n as f64
}

/// `a / b`, and 0 where `b` is 0: a figure over nothing is shown as 0.
#[inline]
pub fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { float(a) / float(b) }
}

/// A rate in events a second, 0 for no time at all.
#[inline]
pub fn per_second(count: u64, elapsed_s: f64) -> f64 {
    if elapsed_s > 0.0 { float(count) / elapsed_s } else { 0.0 }
}

/// A non-negative float rounded down; what is out of range is clamped.
#[inline]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float to integer casts saturate")]
pub const fn floor(x: f64) -> u64 {
    x as u64
}

/// A length in memory as a count.
#[inline]
pub const fn count(n: usize) -> u64 {
    n as u64
}

/// A count that is known to fit memory, as an index.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "siltstone supports 64-bit targets only")]
pub const fn index(n: u64) -> usize {
    n as usize
}
