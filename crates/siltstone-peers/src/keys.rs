//! Keys, values and the order in which they come: the same stream for every engine, whatever its speed.
//!
//! A key is what RocksDB's `db_bench` makes: a number, eight bytes big-endian, filled up to 16 bytes with `0`. A value
//! compresses to half. Everything follows from the workload's seed, so repetitions differ and engines do not.

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 16;
/// Bytes after which the random ones of a value repeat.
const REPEAT_BYTES: usize = 50;
const POOL_BYTES: usize = 1 << 20;

/// A key.
pub(crate) type Key = [u8; KEY_BYTES];

/// The key of number `n`.
pub(crate) fn key(n: u64) -> Key {
    let mut key = [b'0'; KEY_BYTES];
    key[..8].copy_from_slice(&n.to_be_bytes());
    key
}

/// A key that is never put, right after the one of `n`: it lies inside every table's range, so that only a filter can refuse it.
pub(crate) fn missing_key(n: u64) -> Key {
    let mut missing = key(n);
    missing[KEY_BYTES - 1] = b'1';
    missing
}

/// SplitMix64: one multiplication chain a number, and any seed will do.
#[derive(Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    /// A stream that is fixed by `seed`.
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `limit`, uniform but for a bias below 2^-32 at our sizes.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        let wide = u128::from(self.next()) * u128::from(limit);
        u64::try_from(wide >> 64).expect("the high half of a product fits")
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// All numbers below `len`, each once, in random order, without a table of them: a Feistel network over the next even power of two,
/// walked until it lands inside.
#[derive(Clone)]
pub(crate) struct Shuffle {
    len: u64,
    half_bits: u32,
    seed: u64,
}

impl Shuffle {
    /// A random order of the numbers below `len`.
    pub(crate) fn new(len: u64, seed: u64) -> Shuffle {
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        Shuffle { len, half_bits: bits.div_ceil(2).max(1), seed }
    }

    /// The `i`-th number of the order; `i` is below `len`.
    pub(crate) fn at(&self, i: u64) -> u64 {
        let mut n = i;
        loop {
            n = self.permute(n);
            if n < self.len {
                return n;
            }
        }
    }

    fn permute(&self, n: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (n >> self.half_bits, n & mask);
        for round in 0..4 {
            (left, right) = (right, left ^ (mix(right ^ self.seed.wrapping_add(round << 56)) & mask));
        }
        left << self.half_bits | right
    }
}

/// Values: slices of a megabyte in which every 50 random bytes come twice.
pub(crate) struct Values {
    pool: Vec<u8>,
    at: usize,
    value_bytes: usize,
}

impl Values {
    /// The values of one workload, each of `value_bytes` bytes.
    pub(crate) fn new(seed: u64, value_bytes: usize) -> Values {
        let mut rng = Rng::new(seed);
        let mut pool = Vec::with_capacity(POOL_BYTES + value_bytes);
        while pool.len() < POOL_BYTES + value_bytes {
            let mut piece = [0; REPEAT_BYTES];
            for bytes in piece.chunks_mut(8) {
                // Printable, as db_bench's are.
                let random = rng.next().to_le_bytes().map(|b| b' ' + b % 95);
                bytes.copy_from_slice(&random[..bytes.len()]);
            }
            pool.extend_from_slice(&piece);
            pool.extend_from_slice(&piece);
        }
        Values { pool, at: 0, value_bytes }
    }

    /// The next value.
    pub(crate) fn next(&mut self) -> &[u8] {
        if self.at + self.value_bytes > self.pool.len() {
            self.at = 0;
        }
        let value = &self.pool[self.at..self.at + self.value_bytes];
        self.at += self.value_bytes;
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_visits_every_number_once_and_in_no_order() {
        for len in [1, 2, 3, 1000, 4096, 4097] {
            let shuffle = Shuffle::new(len, 7);
            let mut seen: Vec<u64> = (0..len).map(|i| shuffle.at(i)).collect();
            let ascents = seen.windows(2).filter(|pair| pair[0] < pair[1]).count();
            if len >= 1000 {
                assert!((len as f64 * 0.45..len as f64 * 0.55).contains(&(ascents as f64)), "{len}: {ascents}");
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..len).collect::<Vec<_>>());
        }
    }

    #[test]
    fn streams_are_fixed_by_the_seed() {
        let draw = |seed| (0..5).map(|_| 0).scan(Rng::new(seed), |rng, _| Some(rng.below(100))).collect::<Vec<_>>();
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert_eq!(Values::new(3, 100).next(), Values::new(3, 100).next());
        let mut values = Values::new(3, 100);
        let value = values.next();
        assert_eq!(value[..50], value[50..]);
        assert_eq!(Values::new(3, 1024).next().len(), 1024);
    }
}
