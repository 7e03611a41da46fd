//! A permutation of `0..n` in no memory: a Feistel network over the smallest even number of bits that holds `n`, walked on
//! until the image falls below `n` ("cycle walking", Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
//!
//! It gives every key once in random order, and spreads Zipf ranks over the key space, where a table would take 8 bytes a key.

use siltstone::io::Rng;

const ROUNDS: usize = 4;

/// A bijection of `0..n`.
#[derive(Clone, Debug)]
pub struct Permutation {
    n: u64,
    half_bits: u32,
    round_keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation of `0..n` that `rng` decides.
    ///
    /// # Panics
    /// If `n` is 0 or above 2^62.
    pub fn new(n: u64, rng: &mut Rng) -> Permutation {
        assert!((1..=1 << 62).contains(&n), "a permutation of {n} numbers");
        Permutation { n, half_bits: half_bits(n), round_keys: std::array::from_fn(|_| rng.next_u64()) }
    }

    /// Where `i` goes.
    ///
    /// # Panics
    /// If `i` is not below `n`.
    pub fn apply(&self, i: u64) -> u64 {
        assert!(i < self.n, "{i} is not below {}", self.n);
        // The network's domain is less than 4 n, so this takes fewer than four rounds on average; it ends because a
        // bijection's cycle comes back to `i`, which is below n.
        let mut x = i;
        loop {
            x = self.network(x);
            if x < self.n {
                return x;
            }
        }
    }

    /// What goes to `x`: the inverse of [`apply`](Self::apply).
    ///
    /// # Panics
    /// If `x` is not below `n`.
    pub fn invert(&self, x: u64) -> u64 {
        assert!(x < self.n, "{x} is not below {}", self.n);
        let mut i = x;
        loop {
            i = self.network_back(i);
            if i < self.n {
                return i;
            }
        }
    }

    /// The permutation of `0..n` with the same round keys. One more number leaves all images but one as they are, unless the network must grow:
    /// at powers of four.
    ///
    /// # Panics
    /// If `n` is 0 or above 2^62.
    pub fn resize(&mut self, n: u64) {
        if n != self.n {
            assert!((1..=1 << 62).contains(&n), "a permutation of {n} numbers");
            self.n = n;
            self.half_bits = half_bits(n);
        }
    }

    fn network_back(&self, x: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (x >> self.half_bits, x & mask);
        for key in self.round_keys.iter().rev() {
            (left, right) = (right ^ (mix(left ^ key) & mask), left);
        }
        left << self.half_bits | right
    }

    fn network(&self, x: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (x >> self.half_bits, x & mask);
        for key in self.round_keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        left << self.half_bits | right
    }
}

fn half_bits(n: u64) -> u32 {
    (u64::BITS - (n - 1).leading_zeros()).div_ceil(2).max(1)
}

/// The finalizer of splitmix64.
pub(super) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
