//! Whether what a study says holds in our runs.

use serde::Serialize;

use super::run::RunResult;
use super::spec::{Across, Claim, Experiment, Trend};

/// How a claim came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// As the study says.
    Holds,
    /// The opposite of what it says.
    Reversed,
    /// Neither: the effect is smaller than what was asked for.
    Inconclusive,
    /// A run that it needs was not made, or ended early.
    NotRun,
}

impl Verdict {
    /// In a word or two.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::Reversed => "reversed",
            Verdict::Inconclusive => "inconclusive",
            Verdict::NotRun => "not run",
        }
    }
}

/// A claim and how it came out.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Finding {
    /// The claim's number.
    pub id: String,
    /// In words.
    pub says: String,
    /// What the study measured.
    pub paper: String,
    /// What we measured.
    pub measured: String,
    /// How it came out.
    pub verdict: Verdict,
    /// Why, where it does not hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diagnosis: Option<String>,
}

/// A trend may waver by this share.
const TREND_TOLERANCE: f64 = 0.05;
/// Latencies below a hundred microseconds are all the same: nobody waited.
const LEAST: f64 = 1e-4;

/// How the claims of an experiment came out in `results`.
pub fn judge(experiment: &Experiment, results: &[RunResult]) -> Vec<Finding> {
    experiment.claims.iter().map(|claim| finding(experiment, claim, results)).collect()
}

fn finding(experiment: &Experiment, claim: &Claim, results: &[RunResult]) -> Finding {
    let points = experiment.sweep.as_ref().map_or(1, |sweep| sweep.values.len());
    let values: Option<Vec<f64>> = (0..points).map(|point| value(claim, results, point)).collect();
    let (measured, verdict) = match &values {
        None => ("a run is missing".to_owned(), Verdict::NotRun),
        Some(values) => (told(experiment, claim, values), verdict(claim, &across(claim, values))),
    };
    Finding {
        id: claim.id.clone(),
        says: claim.says.clone(),
        paper: claim.paper.clone(),
        measured,
        verdict,
        diagnosis: claim.diagnosis.clone().filter(|_| verdict != Verdict::Holds),
    }
}

fn value(claim: &Claim, results: &[RunResult], point: usize) -> Option<f64> {
    let measure = |name: &str| {
        let (run, measure) = name.split_once('.')?;
        let found = results.iter().find(|result| result.name == run && result.point == point && !result.is_partial)?;
        found.measures.get(measure)
    };
    let left = measure(&claim.left)?;
    match &claim.over {
        None => Some(left),
        Some(over) => Some(left.max(LEAST) / measure(over)?.max(LEAST)),
    }
}

/// What the bounds are compared with.
fn across(claim: &Claim, values: &[f64]) -> Vec<f64> {
    let least = |value: f64| value.max(LEAST);
    let largest = values.iter().copied().fold(0.0, f64::max);
    let smallest = values.iter().copied().fold(f64::INFINITY, f64::min);
    match (claim.across, values) {
        (Some(Across::Spread), [_, ..]) => vec![least(largest) / least(smallest)],
        (Some(Across::Ends), [first, .., last]) => vec![least(*last) / least(*first)],
        _ => values.to_vec(),
    }
}

fn verdict(claim: &Claim, values: &[f64]) -> Verdict {
    if let Some(trend) = claim.trend {
        let goes = |up: bool| {
            let steps = |from: f64, to: f64| {
                if up { to >= from * (1.0 - TREND_TOLERANCE) } else { to <= from * (1.0 + TREND_TOLERANCE) }
            };
            let ends = values.first().zip(values.last());
            values.windows(2).all(|pair| steps(pair[0], pair[1]))
                && ends.is_some_and(|(a, b)| if up { b > a } else { b < a })
        };
        let up = trend == Trend::Rising;
        return if goes(up) {
            Verdict::Holds
        } else if goes(!up) {
            Verdict::Reversed
        } else {
            Verdict::Inconclusive
        };
    }
    let inside = |value: &f64| {
        claim.at_least.is_none_or(|least| *value >= least) && claim.at_most.is_none_or(|most| *value <= most)
    };
    let holds = if claim.some { values.iter().any(inside) } else { values.iter().all(inside) };
    // Only a ratio has an opposite: on the other side of 1.
    let opposite = |value: &f64| match (claim.at_least, claim.at_most) {
        (Some(least), None) => least >= 1.0 && *value < 1.0 / (1.0 + TREND_TOLERANCE),
        (None, Some(most)) => most <= 1.0 && *value > 1.0 + TREND_TOLERANCE,
        _ => false,
    };
    if holds {
        Verdict::Holds
    } else if (claim.over.is_some() || claim.across.is_some())
        && values.iter().any(opposite)
        && !values.iter().any(inside)
    {
        Verdict::Reversed
    } else {
        Verdict::Inconclusive
    }
}

fn told(experiment: &Experiment, claim: &Claim, values: &[f64]) -> String {
    let name = match &claim.over {
        Some(over) => format!("{} / {over}", claim.left),
        None => claim.left.clone(),
    };
    match &experiment.sweep {
        None => format!("{name} = {}", figure(values.first().copied().unwrap_or_default())),
        Some(sweep) => {
            let points: Vec<String> =
                sweep.values.iter().zip(values).map(|(at, value)| format!("{at}: {}", figure(*value))).collect();
            let option = sweep.option.rsplit('.').next().unwrap_or_default();
            format!("{name} by {option}: {}", points.join(", "))
        }
    }
}

fn figure(value: f64) -> String {
    if value == 0.0 || (0.01..1e5).contains(&value.abs()) {
        let digits = if value.abs() >= 100.0 { 0 } else { 2 };
        format!("{value:.digits$}")
    } else {
        format!("{value:.1e}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::Setup;
    use super::*;

    fn claim(text: &str) -> Claim {
        toml::from_str(&format!("id = \"X\"\nsays = \"\"\npaper = \"\"\nleft = \"a.w\"\n{text}")).unwrap()
    }

    #[test]
    fn verdicts_follow_the_bounds() {
        let ratio = claim("over = \"b.w\"\nat_least = 3.0");
        assert_eq!(verdict(&ratio, &[3.0]), Verdict::Holds);
        assert_eq!(verdict(&ratio, &[1.5]), Verdict::Inconclusive);
        assert_eq!(verdict(&ratio, &[0.5]), Verdict::Reversed);
        assert_eq!(verdict(&ratio, &[3.0, 0.5]), Verdict::Inconclusive, "every value must hold");
        assert_eq!(verdict(&claim("over = \"b.w\"\nat_least = 3.0\nsome = true"), &[3.0, 0.5]), Verdict::Holds);
        let no_less = claim("over = \"b.w\"\nat_least = 1.0");
        assert_eq!((verdict(&no_less, &[0.5]), verdict(&no_less, &[0.97])), (Verdict::Reversed, Verdict::Inconclusive));
        assert_eq!(verdict(&claim("over = \"b.w\"\nat_most = 1.0"), &[2.0]), Verdict::Reversed);
        let range = claim("at_least = 0.6\nat_most = 1.2");
        assert_eq!((verdict(&range, &[0.6]), verdict(&range, &[1.3])), (Verdict::Holds, Verdict::Inconclusive));
        let ends = claim("across = \"ends\"\nat_least = 10.0");
        assert_eq!((across(&ends, &[1.0, 9.0, 10.0]), across(&ends, &[2.0])), (vec![10.0], vec![2.0]));
        assert_eq!(across(&claim("across = \"spread\"\nat_most = 1.2"), &[4.0, 2.0, 3.0]), [2.0]);
        let falls = claim("trend = \"falling\"");
        assert_eq!(verdict(&falls, &[5.0, 3.0, 3.1, 2.0]), Verdict::Holds, "within the tolerance");
        assert_eq!(verdict(&falls, &[2.0, 3.0, 4.0]), Verdict::Reversed);
        assert_eq!(verdict(&falls, &[2.0, 4.0, 1.0]), Verdict::Inconclusive);
    }

    #[test]
    fn a_claim_whose_run_is_missing_has_no_verdict() {
        let experiment = Experiment {
            id: "X".to_owned(),
            title: String::new(),
            source: String::new(),
            setup: Setup::default(),
            sweep: None,
            runs: Vec::new(),
            claims: vec![claim("at_least = 1.0\ndiagnosis = \"why\"")],
        };
        let found = judge(&experiment, &[]);
        assert_eq!((found[0].verdict, found[0].diagnosis.as_deref()), (Verdict::NotRun, Some("why")));
    }
}
