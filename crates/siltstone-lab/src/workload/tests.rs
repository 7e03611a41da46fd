use std::collections::BTreeSet;

use super::*;
use siltstone::io::Rng;

fn workload(records: u64) -> Workload {
    Workload { seed: 7, records, key_bytes: 16, value_bytes: 100, phases: Vec::new() }
}

/// The stream is part of every published figure: when one of these changes, `GENERATOR_VERSION` must go up.
#[test]
fn golden_vectors() {
    let picks = |law| {
        let mut picker = KeyPicker::new(&workload(1_000_000), law, "golden");
        std::array::from_fn::<u64, 6, _>(|_| picker.pick())
    };
    assert_eq!(GENERATOR_VERSION, 3);
    assert_eq!(picks(KeyLaw::Sequential), [0, 1, 2, 3, 4, 5]);
    assert_eq!(picks(KeyLaw::Shuffled), [471580, 393349, 695014, 193240, 545916, 36615]);
    assert_eq!(picks(KeyLaw::Uniform), [763229, 570414, 806466, 554266, 150597, 32860]);
    assert_eq!(picks(KeyLaw::Zipf { theta: 0.99 }), [96450, 996613, 754349, 853148, 638359, 578420]);
    let ranks = |theta| {
        let (zipf, mut rng) = (Zipf::new(100_000_000, theta), Rng::new(1));
        std::array::from_fn::<u64, 8, _>(|_| zipf.next(&mut rng))
    };
    assert_eq!(ranks(0.5), [3551213, 6398340, 80974145, 6443332, 66477085, 16774259, 17416, 22716764]);
    assert_eq!(ranks(1.0), [19, 67, 14891329, 68, 2984604, 1329, 0, 4758]);
    assert_eq!(ranks(1.2), [1, 1, 22314, 1, 1632, 6, 0, 12]);
    assert_eq!(ValueSource::new(100, Rng::new(3)).next(10), b"$]rp[*1[T\"");
}

/// The share of each rank must be what the law says, for skews below, at and above 1.
#[test]
fn zipf_frequencies_follow_the_law() {
    const DRAWS: u32 = 400_000;
    for (n, theta) in [(1, 0.99), (2, 0.5), (10, 0.5), (10, 1.0), (100, 0.99), (1000, 1.2)] {
        let weight = |k: u32| f64::from(k).powf(-theta);
        let total: f64 = (1..=n).map(weight).sum();
        let (zipf, mut rng) = (Zipf::new(u64::from(n), theta), Rng::new(42));
        let mut seen = vec![0u32; usize::try_from(n).unwrap()];
        for _ in 0..DRAWS {
            seen[usize::try_from(zipf.next(&mut rng)).unwrap()] += 1;
        }
        for k in 1..=n.min(20) {
            let expected = weight(k) / total * f64::from(DRAWS);
            let found = f64::from(seen[usize::try_from(k - 1).unwrap()]);
            // Five standard deviations: a false alarm is once in millions, a wrong formula is far outside.
            assert!(
                (found - expected).abs() <= 5.0 * expected.sqrt() + 1.0,
                "n {n} theta {theta} rank {k}: {found} for {expected}"
            );
        }
    }
}

#[test]
fn a_permutation_is_a_bijection_and_mixes() {
    for n in [1, 2, 3, 4, 5, 16, 17, 1000, 4096, 10_000] {
        let permutation = Permutation::new(n, &mut Rng::new(n));
        let images: BTreeSet<u64> = (0..n).map(|i| permutation.apply(i)).collect();
        assert_eq!(images, (0..n).collect(), "n = {n}");
    }
    let permutation = Permutation::new(10_000, &mut Rng::new(1));
    let rising = (1..10_000).filter(|&i| permutation.apply(i - 1) < permutation.apply(i)).count();
    assert!((4_500..5_500).contains(&rising), "{rising} of 9999 neighbours ascend: a random order has half");
}

#[test]
fn keys_order_as_their_numbers_and_missing_ones_lie_between() {
    let mut writer = KeyWriter::new(8);
    assert_eq!(writer.key(1234), b"00001234");
    let (a, gap, b) = (writer.key(41).to_vec(), writer.missing(41).to_vec(), writer.key(42).to_vec());
    assert!(a < gap && gap < b);
}

#[test]
fn values_have_their_length_and_half_of_them_repeats() {
    let mut values = ValueSource::new(3 << 20, Rng::new(9));
    assert_eq!(values.next(3 << 20).len(), 3 << 20);
    let value = values.next(100).to_vec();
    assert_eq!(value.len(), 100);
    assert_ne!(values.next(100), value);
}
