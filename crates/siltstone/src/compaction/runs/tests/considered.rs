//! A record shows what the picker had to choose from: what it chose is there, nothing better is, and where it chose nothing, nothing fits.

use super::super::considered::{Considered, chosen as of_chosen};
use super::super::pick::{RunPick, Setting, StopStyle};
use super::super::rules;
use super::oracles::{each_list, index};

#[test]
fn the_chosen_runs_are_the_best_of_those_shown() {
    let (mut chose, mut passed) = (0, 0);
    each_list("considered", 20, |list, rng| {
        let (few, many) = (u32::try_from(rng.between(2, 4)).unwrap(), u32::try_from(rng.between(4, 10)).unwrap());
        let ratio = [1.1, 1.2, 3.0][index(rng.below(3))];
        let stop = [StopStyle::Total, StopStyle::Similar][index(rng.below(2))];
        let pick = match rng.below(7) {
            0 => RunPick::SimilarSize { percent: 1, min_runs: few, max_runs: rng.one_in(2).then_some(many), stop },
            1 => RunPick::Exploring { min_runs: few, max_runs: many, ratio, min_memtables: 0.5, stuck_runs: 8 },
            2 => RunPick::SizeSorted { ratio: 3.0, lowest_ratio: 1.1, max_runs: many, file_max: 6 },
            3 => RunPick::SizeLevels { ratio: 3.5, runs_per_level: few, jitter_percent: 10 },
            4 => RunPick::Suffix { min_runs: few, max_runs: many, ratio },
            5 => RunPick::Prefix { max_bytes: rng.between(1, 100), tolerance: few, ratio },
            _ => RunPick::TimeWindow { min_runs: few, max_runs: 32, low: 0.5, high: 1.5, min_bytes: 3 },
        };
        let setting = Setting { memtable_bytes: 4, due_runs: index(rng.between(2, 12)), newest_group: true };
        let considered = pick.considered(list, setting);
        for one in &considered {
            assert!(one.runs > 0 && one.newest < list.len() && !one.scores[0].is_nan(), "{one:?} of {pick:?}");
        }
        let fits = |scores: &[f64]| scores[0].is_finite();
        let stuck = matches!(&pick, RunPick::Exploring { .. }) && rules::is_stuck(list, 8);
        let Some(chosen) = pick.choose(list, setting) else {
            // The prefix policy tolerates some runs first; a stuck one takes what does not fit.
            if !matches!(&pick, RunPick::Prefix { .. }) {
                assert!(!considered.iter().any(|one| fits(&one.scores) && one.runs >= 2), "{pick:?} {considered:?}");
            }
            passed += 1;
            return;
        };
        chose += 1;
        let at = of_chosen(&considered, &chosen).unwrap_or_else(|| panic!("{pick:?}: {chosen:?} of {considered:?}"));
        let own = &considered[at];
        let better = |one: &&Considered| match stuck {
            // Each one that was tried later must have been better by 5 %.
            true => one.scores[0] * 1.05 < own.scores[0] && one.newest < own.newest,
            false => one.cmp_scores(own).is_lt(),
        };
        assert!(stuck || fits(&own.scores), "{pick:?} {chosen:?} {considered:?}");
        let better = considered.iter().find(better);
        assert!(better.is_none(), "{pick:?} took {chosen:?}, {better:?} is better");
    });
    assert!(chose > 3000 && passed > 500, "{chose} {passed}");
}
