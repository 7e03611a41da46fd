//! Values: consecutive pieces of one buffer that compresses to about half, as db_bench does it. Making fresh random bytes for
//! every value would cost more than storing them.

use siltstone::io::Rng;

const BUFFER_BYTES: usize = 1 << 20;
/// Each piece of the buffer is this many random bytes, twice.
const REPEAT_BYTES: usize = 50;

/// Hands out values.
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
