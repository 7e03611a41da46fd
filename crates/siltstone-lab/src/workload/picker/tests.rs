//! Every law against its formula.

use super::super::fit::{between, chi_square, kolmogorov_smirnov, normal_cdf};
use super::*;
use crate::num::count;

const DRAWS: u64 = 100_000;
/// Wide enough that the step from a real number to a rank is below what the test could see.
const WIDE: u64 = 1 << 30;

fn picker(law: &Law) -> Picker {
    Picker::new(law, Some(Hot::First), &Rng::new(5)).unwrap()
}

fn seen(law: &Law, n: u64) -> Vec<u64> {
    let (mut picker, mut rng) = (picker(law), Rng::new(11));
    let mut seen = vec![0; index(n)];
    for _ in 0..DRAWS {
        seen[index(picker.pick(n, &mut rng))] += 1;
    }
    seen
}

use crate::num::index;

/// Shares of the keys, as real numbers.
fn shares(law: &Law) -> Vec<f64> {
    let (mut picker, mut rng) = (picker(law), Rng::new(12));
    (0..DRAWS).map(|_| (float(picker.pick(WIDE, &mut rng)) + 0.5) / float(WIDE)).collect()
}

#[test]
fn discrete_laws() {
    chi_square("uniform", &seen(&Law::Uniform, 1000), |_| 1e-3);
    for theta in [0.2, 0.5, 0.99, 1.0, 1.5, 3.0] {
        for n in [1u64, 2, 100, 3000] {
            let weight = |k: u64| float(k + 1).powf(-theta);
            let total: f64 = (0..n).map(weight).sum();
            let seen = seen(&Law::Zipf { theta }, n);
            chi_square(&format!("zipf {theta} over {n}"), &seen, |k| weight(count(k)) / total);
            assert!(n == 1 || (1..seen.len()).all(|k| k < 5 || seen[k] < seen[0]), "rank 0 is the most frequent");
        }
    }
    // The same through another size first: nothing of it may stay.
    let (mut picker, mut rng) = (picker(&Law::Zipf { theta: 0.9 }), Rng::new(1));
    let mut cells = vec![0; 50];
    for _ in 0..DRAWS {
        picker.pick(1_000_000, &mut rng);
        cells[index(picker.pick(50, &mut rng))] += 1;
    }
    let total: f64 = (1..=50).map(|k| f64::from(k).powf(-0.9)).sum();
    chi_square("zipf resized", &cells, |k| float(count(k) + 1).powf(-0.9) / total);
    let hotspot = Law::Hotspot { data: 0.2, operations: 0.8 };
    chi_square("hotspot", &seen(&hotspot, 100), |k| if k < 20 { 0.8 / 20.0 } else { 0.2 / 80.0 });
    let range = Law::HotRange { start: 0.3, width: 0.1, operations: 0.9 };
    chi_square("hot-range", &seen(&range, 100), |k| if (30..40).contains(&k) { 0.09 } else { 0.1 / 90.0 });
    let weights = Law::Weights { of: vec![1.0, 0.0, 5.0, 4.0] };
    chi_square("weights", &seen(&weights, 40), |k| [0.1, 0.0, 0.5, 0.4][k / 10] / 10.0);
    chi_square("sequential", &seen(&Law::Sequential, 100), |_| 1e-2);
    let window = Law::Window { newest: 10, skip: 5 };
    chi_square("window", &seen(&window, 100), |k| if (85..95).contains(&k) { 0.1 } else { 0.0 });
    assert_eq!(seen(&Law::Oldest, 7)[0], DRAWS);
    let mut latest = seen(&Law::Latest { theta: 0.99 }, 100);
    latest.reverse();
    let total: f64 = (1..=100).map(|k| f64::from(k).powf(-0.99)).sum();
    chi_square("latest", &latest, |k| float(count(k) + 1).powf(-0.99) / total);
    for (mean, n) in [(0.005, 401u64), (0.5, 401), (0.1, 5001)] {
        let m = mean * float(n - 1);
        let p = |k: usize| libm::exp(float(count(k)) * m.ln() - m - libm::lgamma(float(count(k)) + 1.0));
        chi_square(&format!("poisson {m}"), &seen(&Law::Poisson { mean }, n), p);
    }
    // (u / a)^(1 / b) is below k with probability a k^b, and goes round at n.
    let law = Law::PowerLaw { a: 0.01, b: 0.5 };
    let below = |k: usize| (0.01 * float(count(k)).sqrt()).min(1.0);
    chi_square("power-law", &seen(&law, 10_000), |k| below(k + 1) - below(k));
    let round = |k: usize| (0..4).map(|turn| below(k + 1 + turn * 2500) - below(k + turn * 2500)).sum();
    chi_square("power-law, round", &seen(&law, 2500), round);
}

#[test]
fn a_histogram_comes_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("h.txt");
    std::fs::write(&path, "# bucket weight\n0 1\n1 2\n\n2 5 # most\n").unwrap();
    let law = Law::Histogram { path: path.clone() };
    chi_square("histogram", &seen(&law, 30), |k| [1.0, 2.0, 5.0][k / 10] / 80.0);
    std::fs::write(&path, "1\nx\n").unwrap();
    let error = format!("{:#}", Picker::new(&law, None, &Rng::new(1)).unwrap_err());
    assert!(error.contains("h.txt:2: \"x\" is no number"), "{error}");
    std::fs::write(&path, "0\n-1\n").unwrap();
    assert!(format!("{:#}", Picker::new(&law, None, &Rng::new(1)).unwrap_err()).contains("weight 2 is -1"));
}

#[test]
fn continuous_laws() {
    let check = |law: Law, cdf: &dyn Fn(f64) -> f64| {
        kolmogorov_smirnov(&format!("{law:?}"), shares(&law), between(0.0, 1.0, cdf));
    };
    for (mean, deviation) in [(0.5, 0.1), (0.5, 1.0), (0.0, 0.34), (1.0, 3.0)] {
        check(Law::Normal { mean, deviation }, &|x| normal_cdf((x - mean) / deviation));
    }
    check(Law::Beta { alpha: 2.0, beta: 3.0 }, &|x| 6.0 * x.powi(2) - 8.0 * x.powi(3) + 3.0 * x.powi(4));
    check(Law::Beta { alpha: 0.5, beta: 0.5 }, &|x| x.sqrt().asin() * 2.0 / std::f64::consts::PI);
    check(Law::Beta { alpha: 1.0, beta: 1.0 }, &|x| x);
    check(Law::Beta { alpha: 0.5, beta: 1.0 }, &|x| x.sqrt());
    check(Law::Beta { alpha: 20.0, beta: 1.0 }, &|x| x.powi(20));
    // So near to both ends that floats tell nothing but the half.
    let small = shares(&Law::Beta { alpha: 0.01, beta: 0.01 });
    let lower = crate::num::ratio(count(small.iter().filter(|x| **x < 0.5).count()), count(small.len()));
    assert!((0.48..0.52).contains(&lower), "{lower}");
    check(Law::Exponential { percentile: 95.0, data: 0.2 }, &|x| 1.0 - (0.05f64.ln() * x / 0.2).exp());
    check(Law::Lognormal { median: 0.1, sigma: 1.0 }, &|x| if x > 0.0 { normal_cdf((x / 0.1).ln()) } else { 0.0 });
    check(Law::Pareto { scale: 0.1, shape: 1.5 }, &|x| 1.0 - (1.0 + x / 0.1).powf(-1.5));
    check(Law::Weibull { scale: 0.3, shape: 0.7 }, &|x| 1.0 - (-(x / 0.3).powf(0.7)).exp());
    check(Law::Weibull { scale: 0.5, shape: 4.0 }, &|x| 1.0 - (-(x / 0.5).powi(4)).exp());
}

/// Ranges by their two-term weights, wherever they were shuffled to; within the hottest range, ranks by the power law, wherever they were spread to.
#[test]
fn mixgraph_has_its_ranges_and_its_keys() {
    let law = Law::Mixgraph { ranges: 30, range: [14.18, -2.917, 0.0164, -0.082], key: [0.02, 0.4] };
    let seen = seen(&law, 30_000);
    let mut ranges: Vec<u64> = seen.chunks(1000).map(|range| range.iter().sum()).collect();
    let hottest = (0..30).max_by_key(|r| ranges[*r]).unwrap();
    let mut keys = seen[hottest * 1000..][..1000].to_vec();
    ranges.sort_unstable_by(|a, b| b.cmp(a));
    let weight = |r: f64| 14.18 * (-2.917 * r).exp() + 0.0164 * (-0.082 * r).exp();
    let total: f64 = (1..=30).map(|r| weight(f64::from(r))).sum();
    // Sorting puts neighbours with nearly equal weights the right way round: compared in tens.
    let tens = |values: &mut dyn Iterator<Item = u64>| -> Vec<u64> {
        let all: Vec<u64> = values.collect();
        all.chunks(10).map(|ten| ten.iter().sum()).collect()
    };
    chi_square("ranges", &tens(&mut ranges.into_iter()), |ten| {
        (0..10).map(|r| weight(float(count(ten * 10 + r) + 1)) / total).sum()
    });
    keys.sort_unstable_by(|a, b| b.cmp(a));
    let all = float(keys.iter().sum());
    let below = |k: f64| (0.02 * k.powf(0.4)).min(1.0);
    // Round and round: rank k also stands for k + 1000, k + 2000, ...
    let share = |k: u32| {
        (0..20).map(|turn| below(f64::from(k + 1 + turn * 1000)) - below(f64::from(k + turn * 1000))).sum::<f64>()
    };
    for k in 0..3 {
        let expected = share(k) * all;
        assert!((float(keys[index(u64::from(k))]) - expected).abs() < 5.0 * expected.sqrt() + 1.0, "rank {k}");
    }
}

#[test]
fn hot_keys_are_where_they_should_be() {
    let law = Law::Zipf { theta: 1.2 };
    let hottest = |hot, drift, n: u64| {
        let mut picker = Picker::new(&law, Some(hot), &Rng::new(5)).unwrap().drift(drift);
        let mut rng = Rng::new(2);
        let mut seen = vec![0; index(n)];
        (0..5000).for_each(|_| seen[index(picker.pick(n, &mut rng))] += 1);
        (0..index(n)).max_by_key(|k| seen[*k]).unwrap()
    };
    assert_eq!(hottest(Hot::First, None, 900), 0);
    assert_eq!(hottest(Hot::Last, None, 900), 899);
    let at = hottest(Hot::Scattered, None, 900);
    assert_eq!(hottest(Hot::Scattered, None, 901), at, "one key more leaves the hot ones hot");
    let drift = Drift { every: 5000, step: 0.1 };
    let mut picker = Picker::new(&law, Some(Hot::First), &Rng::new(5)).unwrap().drift(Some(drift));
    let mut rng = Rng::new(2);
    for step in 0..12 {
        let mut seen = vec![0; 1000];
        (0..5000).for_each(|_| seen[index(picker.pick(1000, &mut rng))] += 1);
        let hot = (0..1000).max_by_key(|k| seen[*k]).unwrap();
        assert!(hot.abs_diff(step * 100 % 1000) <= 1, "step {step}: {hot}");
    }
    let mut few = Picker::new(&Law::Uniform, None, &Rng::new(5)).unwrap().distinct(Some(0.25));
    let touched: std::collections::BTreeSet<u64> = (0..20_000).map(|_| few.pick(1000, &mut rng)).collect();
    assert_eq!(touched.len(), 250);
    assert!(touched.iter().any(|k| *k > 900) && touched.iter().any(|k| *k < 100));
}
