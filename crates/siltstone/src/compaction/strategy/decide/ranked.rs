//! The files that a rule may choose from, the best first.

use super::super::super::granularity::Pick;
use super::super::super::movement::{self, Choice, Movement};
use super::super::super::plan::Place;
use super::super::{Rule, Strategy, TieBreak};
use super::MAX_TRIED;
use crate::num::{to_f64, to_u64};
use crate::version::{FileMeta, INVARIANTS, Run};

/// The best candidates of a rule, at most [`MAX_TRIED`].
pub(super) struct Ranked<'a> {
    pub(super) best: Vec<Pick<'a>>,
    /// By movement, the scores of the best.
    pub(super) scores: Vec<Vec<f64>>,
    /// How many candidates there are.
    pub(super) total: usize,
}

impl<'a> Ranked<'a> {
    /// The candidates of `rule`, of `strategy`, ranked by its movement.
    pub(super) fn new(strategy: &Strategy, rule: &Rule, choice: &Choice<'a>) -> Ranked<'a> {
        let runs = runs(rule, choice);
        let by_score = || Ranked::by_score(strategy, rule, choice, candidates(rule, choice, runs));
        match runs {
            [run] if rule.movement == [Movement::RoundRobin] && !rule.trigger.wants_files() => {
                let ranked = Ranked::in_turn(choice, run);
                if INVARIANTS {
                    ranked.check_same(&by_score());
                }
                ranked
            }
            _ => by_score(),
        }
    }

    fn check_same(&self, other: &Ranked<'_>) {
        let of = |ranked: &Ranked<'_>| {
            (ranked.best.iter().map(|pick| pick.at).collect::<Vec<_>>(), ranked.scores.clone(), ranked.total)
        };
        assert_eq!(of(self), of(other), "round-robin counts as it would score");
    }

    fn by_score(strategy: &Strategy, rule: &Rule, choice: &Choice<'_>, picks: Vec<Pick<'a>>) -> Ranked<'a> {
        let files: Vec<&FileMeta> = picks.iter().map(|pick| &**pick.file()).collect();
        let scores: Vec<Vec<f64>> =
            rule.movement.iter().map(|movement| movement::scores(*movement, choice, &files)).collect();
        let best = strategy.rank(rule, choice, &scores, &files);
        let of_best = |scores: &Vec<f64>| best.iter().map(|at| scores[*at]).collect();
        Ranked {
            scores: scores.iter().map(of_best).collect(),
            best: best.iter().map(|at| picks[*at]).collect(),
            total: picks.len(),
        }
    }

    /// Round-robin over all files of one run: the same as by score, without a look at each file. A full level has thousands, and is asked
    /// for each of its merges.
    fn in_turn(choice: &Choice<'a>, run: &'a Run) -> Ranked<'a> {
        let (view, level) = (choice.shape.view, choice.level);
        let busy = view.busy_positions(Place { level, run: run.order }, run);
        let cursor = movement::cursor(choice);
        let turn = if cursor.is_empty() { 0 } else { run.files.partition_point(|file| file.largest[..] <= *cursor) };
        let idle = (turn..run.files.len()).chain(0..turn).filter(|at| busy.binary_search(at).is_err());
        let best: Vec<Pick<'a>> = idle.take(MAX_TRIED).map(|at| Pick { level, run, at }).collect();
        let total = run.files.len() - busy.len();
        let score = |pick: &Pick<'_>| {
            let rank = pick.at - busy.partition_point(|at| *at < pick.at);
            to_f64(to_u64(if pick.at < turn { rank + total } else { rank }))
        };
        Ranked { scores: vec![best.iter().map(score).collect()], best, total }
    }
}

/// The runs whose files a rule may choose from. In a leveled level with several runs only the oldest counts: the layout's rule is about
/// the others. An insertion part stays for long, so rules about single files see its files, too.
fn runs<'a>(rule: &Rule, choice: &Choice<'a>) -> &'a [Run] {
    let (shape, level) = (choice.shape, choice.level);
    let runs = &shape.view.level(level).runs;
    let all = !shape.is_leveled(level) || (shape.is_two_phase(level) && rule.trigger.wants_files());
    if all { runs } else { &runs[runs.len().saturating_sub(1)..] }
}

/// The idle files of `runs` that a rule may choose from, ascending by smallest key.
fn candidates<'a>(rule: &Rule, choice: &Choice<'a>, runs: &'a [Run]) -> Vec<Pick<'a>> {
    let (shape, level) = (choice.shape, choice.level);
    let view = shape.view;
    let mut picks = Vec::new();
    for run in runs {
        let place = Place { level, run: run.order };
        let touched = view.is_touched(place);
        let wanted = |file: &FileMeta| rule.trigger.wants(shape, place, file) && !(touched && view.is_busy(file.id));
        let wanted = (0..run.files.len()).filter(|at| wanted(&run.files[*at]));
        picks.extend(wanted.map(|at| Pick { level, run, at }));
    }
    if runs.len() > 1 {
        picks.sort_by(|a, b| a.file().smallest.cmp(&b.file().smallest).then(a.file().id.cmp(&b.file().id)));
    }
    picks
}

impl Strategy {
    /// The positions of the best candidates, at most [`MAX_TRIED`], the best first. `scores` are those of the rule's movement.
    fn rank(&self, rule: &Rule, choice: &Choice<'_>, scores: &[Vec<f64>], files: &[&FileMeta]) -> Vec<usize> {
        let finer: Vec<_> =
            rule.movement.iter().map(|movement| movement::finer_scores(*movement, choice, files)).collect();
        let mut columns: Vec<&[f64]> = Vec::new();
        for (scores, finer) in scores.iter().zip(&finer) {
            columns.push(scores);
            columns.extend(finer.as_deref());
        }
        let last = match self.tie_break {
            TieBreak::LeftMost | TieBreak::RightMost => Vec::new(),
            TieBreak::Seeded => movement::dice(self.seed, files),
            TieBreak::LargestSuccessor => {
                files.iter().map(|file| -movement::refined::successor_ratio(choice, file)).collect()
            }
        };
        if !last.is_empty() {
            columns.push(&last);
        }
        let compare = |a: &usize, b: &usize| {
            let by_score = columns.iter().map(|scores| scores[*a].total_cmp(&scores[*b])).find(|order| order.is_ne());
            by_score.unwrap_or_else(|| if self.tie_break == TieBreak::RightMost { b.cmp(a) } else { a.cmp(b) })
        };
        let len = files.len();
        let mut ranked: Vec<usize> = (0..len).collect();
        if len > MAX_TRIED {
            ranked.select_nth_unstable_by(MAX_TRIED, compare);
        }
        ranked.truncate(MAX_TRIED);
        ranked.sort_by(compare);
        ranked
    }
}
