//! Values: pieces of one buffer, as db_bench does it. Making fresh random bytes for every value would cost more than storing them.

use siltstone::io::Rng;

use super::spec::{Content, ValueSpec};
use crate::num::{count, float, floor, index};

const BUFFER_BYTES: usize = 1 << 20;
/// Each piece of the buffer is this many random bytes, twice.
const REPEAT_BYTES: usize = 50;
/// A piece of the buffer of [`ValueBuffer`]: random at first, then repeated.
const PIECE_BYTES: u64 = 100;
/// Bytes of the checksum that a checked value begins with.
const CHECK_BYTES: usize = 8;

/// Hands out values of one length.
#[derive(Clone, Debug)]
pub struct ValueSource {
    buffer: Vec<u8>,
    at: usize,
}

impl ValueSource {
    /// Values of up to `max_bytes`, decided by `rng`.
    pub fn new(max_bytes: usize, mut rng: Rng) -> ValueSource {
        let len = BUFFER_BYTES.max(max_bytes);
        let mut buffer = Vec::with_capacity(len + 2 * REPEAT_BYTES);
        while buffer.len() < len {
            let start = buffer.len();
            // Printable, so that an export of a generated store can be read.
            buffer.extend((0..REPEAT_BYTES).map(|_| b' ' + u8::try_from(rng.below(95)).expect("below 95")));
            buffer.extend_from_within(start..);
        }
        ValueSource { buffer, at: 0 }
    }

    /// The next value of `bytes` bytes.
    ///
    /// # Panics
    /// If `bytes` is more than the `max_bytes` given to [`new`](Self::new) and than 1 MiB.
    pub fn next(&mut self, bytes: usize) -> &[u8] {
        if self.at + bytes > self.buffer.len() {
            self.at = 0;
        }
        let value = &self.buffer[self.at..self.at + bytes];
        self.at += bytes;
        value
    }
}

/// What the values of a spec are cut from.
#[derive(Clone, Debug)]
pub(super) struct ValueBuffer {
    buffer: Vec<u8>,
    /// Values begin at multiples of it.
    step: u64,
    /// Values begin below `starts * step`.
    starts: u64,
    checked: bool,
}

impl ValueBuffer {
    /// Room for values of `max_bytes` bytes.
    pub(super) fn new(values: &ValueSpec, max_bytes: u64, mut rng: Rng) -> ValueBuffer {
        let len = BUFFER_BYTES + index(max_bytes);
        let mut buffer = Vec::with_capacity(len + index(PIECE_BYTES));
        let mut level = 20.0;
        while buffer.len() < len {
            match values.content {
                Content::Floats => {
                    level += rng.unit() - 0.5;
                    // A sensor's value has few digits.
                    let rounded = libm::round(level * 100.0) / 100.0;
                    buffer.extend_from_slice(&rounded.to_le_bytes());
                }
                Content::Text | Content::File => piece(values.compressible_to, &mut rng, &mut buffer),
            }
        }
        let step = if values.content == Content::Floats { 8 } else { 1 };
        ValueBuffer { buffer, step, starts: count(BUFFER_BYTES) / step, checked: values.checked }
    }

    /// Whether values carry a checksum.
    pub(super) fn is_checked(&self) -> bool {
        self.checked
    }

    /// The value of `bytes` bytes that `seed` decides.
    #[inline]
    pub(super) fn value(&self, seed: u64, bytes: u64) -> &[u8] {
        let start = (u128::from(seed) * u128::from(self.starts)) >> 64;
        let start = index(u64::try_from(start).expect("below 2^64") * self.step);
        &self.buffer[start..start + index(bytes)]
    }

    /// Writes the value with its checksum.
    pub(super) fn write_checked(&self, key: &[u8], seed: u64, bytes: u64, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&[0; CHECK_BYTES]);
        out.extend_from_slice(self.value(seed, bytes.saturating_sub(count(CHECK_BYTES))));
        let sum = checksum(key, &out[CHECK_BYTES..]);
        out[..CHECK_BYTES].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Random letters, repeated to 100 bytes: about `compressible_to` of it is left by a compressor.
fn piece(compressible_to: f64, rng: &mut Rng, buffer: &mut Vec<u8>) {
    let start = buffer.len();
    let random = floor((float(PIECE_BYTES) * compressible_to).round()).clamp(1, PIECE_BYTES);
    buffer.extend((0..random).map(|_| b' ' + u8::try_from(rng.below(95)).expect("below 95")));
    while buffer.len() < start + index(PIECE_BYTES) {
        let more = (buffer.len() - start).min(start + index(PIECE_BYTES) - buffer.len());
        buffer.extend_from_within(start..start + more);
    }
}

fn checksum(key: &[u8], rest: &[u8]) -> u64 {
    siltstone::key::hash(rest) ^ siltstone::key::hash(key).rotate_left(1)
}

/// Whether a value that was read is one that a spec with `checked` values stored under this key.
pub fn value_belongs(key: &[u8], value: &[u8]) -> bool {
    value.split_first_chunk::<CHECK_BYTES>().is_some_and(|(sum, rest)| u64::from_le_bytes(*sum) == checksum(key, rest))
}
