//! From shares to turns: which merge steps next.
//!
//! Stride scheduling in whole numbers: every merge has a *pass*, which a step moves on by its bytes over the merge's weight; the smallest
//! pass steps next. So over time each gets bytes in proportion to its weight, whoever steps it and however long its steps are.

use super::{FULL, Share};

/// What a merge has had.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Turn {
    pass: u64,
    /// Whether it had a share when it was last looked at.
    had_share: bool,
}

impl Turn {
    /// Notes that it has stepped `bytes` with `share`.
    pub fn stepped(&mut self, bytes: u64, share: Share) {
        let pass = u128::from(bytes) * u128::from(FULL) / u128::from(share.weight.max(1));
        self.pass = self.pass.saturating_add(u64::try_from(pass).unwrap_or(u64::MAX));
    }
}

/// The merge that steps next, of those with a share for which `free` holds; and whether there is another one that could step beside
/// it. `clock` is where the last one stood: who comes back after a wait, or is new, gets no credit for the time that it was away.
pub fn next(
    turns: &mut [Turn],
    shares: &[Share],
    clock: &mut u64,
    free: impl Fn(usize) -> bool,
) -> (Option<usize>, bool) {
    let (mut best, mut able) = (None::<usize>, 0);
    for (at, share) in shares.iter().enumerate() {
        let turn = &mut turns[at];
        if share.weight > 0 && !turn.had_share {
            turn.pass = turn.pass.max(*clock);
        }
        turn.had_share = share.weight > 0;
        if share.weight == 0 || !free(at) {
            continue;
        }
        able += 1;
        if best.is_none_or(|best| turns[at].pass < turns[best].pass) {
            best = Some(at);
        }
    }
    if let Some(best) = best {
        *clock = (*clock).max(turns[best].pass);
    }
    (best, able > 1)
}
