//! Which key, and what its bytes are.

use siltstone::io::Rng;

use super::permutation::Permutation;
use super::zipf::Zipf;
use super::{KeyLaw, Workload};

/// Picks key numbers by a [`KeyLaw`].
#[derive(Clone, Debug)]
pub struct KeyPicker {
    records: u64,
    rng: Rng,
    law: Law,
}

#[derive(Clone, Debug)]
enum Law {
    Sequential { next: u64 },
    Shuffled { next: u64, order: Permutation },
    Uniform,
    Zipf { ranks: Zipf, spread: Permutation },
}

impl KeyPicker {
    /// A picker for one phase of `workload`; two phases with different labels draw independent numbers.
    ///
    /// # Panics
    /// If the workload has no records, or a Zipf skew is not positive.
    pub fn new(workload: &Workload, law: KeyLaw, label: &str) -> KeyPicker {
        assert!(workload.records > 0, "a workload without keys");
        let root = Rng::new(workload.seed);
        // Every picker of a workload shares the order, so that "shuffled" is one order and hot keys stay hot.
        let order = || Permutation::new(workload.records, &mut root.split("order"));
        let law = match law {
            KeyLaw::Sequential => Law::Sequential { next: 0 },
            KeyLaw::Shuffled => Law::Shuffled { next: 0, order: order() },
            KeyLaw::Uniform => Law::Uniform,
            KeyLaw::Zipf { theta } => Law::Zipf { ranks: Zipf::new(workload.records, theta), spread: order() },
        };
        KeyPicker { records: workload.records, rng: root.split(label), law }
    }

    /// The next key number, below the workload's `records`.
    pub fn pick(&mut self) -> u64 {
        match &mut self.law {
            Law::Sequential { next } => advance(next, self.records),
            Law::Shuffled { next, order } => order.apply(advance(next, self.records)),
            Law::Uniform => self.rng.below(self.records),
            Law::Zipf { ranks, spread } => spread.apply(ranks.next(&mut self.rng)),
        }
    }
}

fn advance(next: &mut u64, records: u64) -> u64 {
    let now = *next;
    *next = if now + 1 == records { 0 } else { now + 1 };
    now
}

/// Writes keys into one buffer: the number in decimal, zero-padded, so that the keys order as the numbers do.
#[derive(Clone, Debug)]
pub struct KeyWriter {
    bytes: Vec<u8>,
    digits: usize,
}

impl KeyWriter {
    /// A writer of keys of `key_bytes` bytes.
    ///
    /// # Panics
    /// If `key_bytes` is below 8: the numbers would not fit.
    pub fn new(key_bytes: u32) -> KeyWriter {
        assert!(key_bytes >= 8, "keys of {key_bytes} bytes hold too few numbers");
        let digits = usize::try_from(key_bytes).expect("u32 fits usize on the targets we support");
        KeyWriter { bytes: vec![b'0'; digits + 1], digits }
    }

    /// The key with number `i`.
    ///
    /// # Panics
    /// If `i` has more digits than the key has bytes.
    pub fn key(&mut self, i: u64) -> &[u8] {
        self.write(i);
        &self.bytes[..self.digits]
    }

    /// A key that is never stored, between the keys `i` and `i + 1`.
    ///
    /// # Panics
    /// As [`key`](Self::key).
    pub fn missing(&mut self, i: u64) -> &[u8] {
        self.write(i);
        self.bytes[self.digits] = b'.';
        &self.bytes
    }

    fn write(&mut self, i: u64) {
        let mut rest = i;
        for byte in self.bytes[..self.digits].iter_mut().rev() {
            *byte = b'0' + u8::try_from(rest % 10).expect("a decimal digit");
            rest /= 10;
        }
        assert!(rest == 0, "key {i} needs more than {} digits", self.digits);
    }
}
