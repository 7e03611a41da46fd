//! Every law of sizes against its formula.

use super::super::fit::{between, chi_square, kolmogorov_smirnov, normal_cdf};
use super::*;
use crate::num::count;

fn law(text: &str) -> SizeLaw {
    #[derive(Deserialize)]
    struct Table {
        law: SizeLaw,
    }
    let law = toml::from_str::<Table>(&format!("law = {text}")).unwrap().law;
    law.check(0, 1 << 40).unwrap();
    law
}

fn sample(text: &str) -> Vec<u64> {
    let (picker, mut rng) = (SizePicker::new(&law(text), 1 << 40).unwrap(), Rng::new(3));
    (0..100_000).map(|_| picker.draw(&mut rng)).collect()
}

fn cells(text: &str, from: u64, n: u64) -> Vec<u64> {
    let mut cells = vec![0; crate::num::index(n)];
    sample(text).into_iter().for_each(|size| cells[crate::num::index(size - from)] += 1);
    cells
}

#[test]
fn discrete_laws() {
    assert_eq!(cells("17", 17, 1), [100_000]);
    chi_square("uniform", &cells("{ kind = \"uniform\", min = 5, max = 14 }", 5, 10), |_| 0.1);
    let total: f64 = (1..=99).map(|k| f64::from(k).powf(-0.99)).sum();
    chi_square("zipf", &cells("{ kind = \"zipf\", min = 2, max = 100, theta = 0.99 }", 2, 99), |k| {
        float(count(k) + 1).powf(-0.99) / total
    });
    for mean in [3.5, 9.9, 10.1, 300.0] {
        let text = format!("{{ kind = \"poisson\", mean = {mean}, min = 0, max = 1000 }}");
        let p = |k: usize| libm::exp(float(count(k)) * f64::ln(mean) - mean - libm::lgamma(float(count(k)) + 1.0));
        chi_square(&text, &cells(&text, 0, 1001), p);
    }
    let weights = "{ kind = \"weights\", of = [3.0, 0.0, 1.0], min = 7 }";
    chi_square("weights", &cells(weights, 7, 3), |k| [0.75, 0.0, 0.25][k]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sizes");
    std::fs::write(&path, "1\n3\n").unwrap();
    let text = format!("{{ kind = \"histogram\", path = {path:?}, min = 100 }}");
    chi_square("histogram", &cells(&text, 100, 2), |k| [0.25, 0.75][k]);
    assert!(SizePicker::new(&law(&text), 100).is_err(), "it reaches 101");
}

#[test]
fn continuous_laws() {
    let check = |text: &str, min: f64, max: f64, cdf: &dyn Fn(f64) -> f64| {
        let sample = sample(&format!("{{ {text}, min = {min}, max = {max} }}"));
        // Rounded down: half a unit is the middle.
        let sample = sample.into_iter().map(|size| float(size) + 0.5).collect();
        kolmogorov_smirnov(text, sample, between(min, max + 1.0, cdf));
    };
    check("kind = \"normal\", mean = 50_000.0, deviation = 30_000.0", 0.0, 120_000.0, &|x| {
        normal_cdf((x - 50_000.0) / 30_000.0)
    });
    check("kind = \"lognormal\", median = 10_000.0, sigma = 0.5", 0.0, 1e6, &|x| {
        if x > 0.0 { normal_cdf((x / 10_000.0).ln() / 0.5) } else { 0.0 }
    });
    check("kind = \"exponential\", mean = 20_000.0", 0.0, 1e6, &|x| 1.0 - (-x / 20_000.0).exp());
    check("kind = \"pareto\", theta = 0.0, sigma = 25_450.0, k = 0.2615", 0.0, 1e6, &|x| {
        1.0 - (1.0 + 0.2615 * x / 25_450.0).powf(-1.0 / 0.2615)
    });
    check("kind = \"pareto\", theta = 1000.0, sigma = 20_000.0, k = 0.0", 1000.0, 1e6, &|x| {
        1.0 - (-(x - 1000.0) / 20_000.0).exp()
    });
    check("kind = \"weibull\", scale = 30_000.0, shape = 2.0", 0.0, 1e6, &|x| 1.0 - (-(x / 30_000.0).powi(2)).exp());
    check("kind = \"beta\", alpha = 2.0, beta = 3.0", 1000.0, 100_999.0, &|x| {
        let x = ((x - 1000.0) / 100_000.0).clamp(0.0, 1.0);
        6.0 * x.powi(2) - 8.0 * x.powi(3) + 3.0 * x.powi(4)
    });
}
