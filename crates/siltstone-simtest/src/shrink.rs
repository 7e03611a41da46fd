//! Cutting a failing list of steps down: what is left fails too, and nothing of it can go.

use crate::ops::Step;

/// The smallest list that delta debugging finds within `tries` runs. `fails` runs a list and says whether it still fails.
pub fn shrink(steps: &[Step], tries: usize, mut fails: impl FnMut(&[Step]) -> bool) -> Vec<Step> {
    let mut best = steps.to_vec();
    let mut left = tries;
    let mut piece = best.len().div_ceil(2).max(1);
    while left > 0 {
        let before = best.len();
        let mut at = 0;
        while at < best.len() && left > 0 {
            let end = (at + piece).min(best.len());
            let candidate: Vec<Step> = best[..at].iter().chain(&best[end..]).cloned().collect();
            left -= 1;
            if fails(&candidate) {
                best = candidate;
            } else {
                at = end;
            }
        }
        if piece > 1 {
            piece = piece.div_ceil(2);
        } else if best.len() == before {
            break;
        }
    }
    calm(&mut best, left, &mut fails);
    best
}

/// Removes the background steps that are not needed.
fn calm(best: &mut [Step], mut left: usize, fails: &mut impl FnMut(&[Step]) -> bool) {
    for at in 0..best.len() {
        let lane_steps = best[at].lane_steps;
        if lane_steps == 0 || left == 0 {
            continue;
        }
        left -= 1;
        best[at].lane_steps = 0;
        if !fails(best) {
            best[at].lane_steps = lane_steps;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Ack, Op, Value};

    #[test]
    fn two_steps_that_matter_are_found_among_a_thousand() {
        let step = |n: u64| {
            let key = u32::try_from(n).unwrap();
            Step {
                op: Op::Put { keyspace: 0, key, value: Value { id: n, len: 1 }, ack: Ack::Sync },
                lane_steps: 3,
                seed: n,
            }
        };
        let steps: Vec<Step> = (0..1000).map(step).collect();
        let has = |steps: &[Step], n| steps.iter().any(|step| step.seed == n);
        let left = shrink(&steps, 10_000, |steps| has(steps, 7) && has(steps, 900));
        assert_eq!(left.iter().map(|step| (step.seed, step.lane_steps)).collect::<Vec<_>>(), [(7, 0), (900, 0)]);
    }
}
