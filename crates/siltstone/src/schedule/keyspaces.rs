//! Which keyspace is asked first what it wants compacted, when several share the lanes of merges.
//!
//! ```text
//!  every turn but the 8th     1 stall      nearly as many runs as slow its writers down, or more
//!                             2 deadline   a tombstone is three quarters of `delete_by` old
//!                             3 space      data that newer data may have replaced
//!                             4 rest
//!  the 8th                    whoever has waited longest
//! ```
//!
//! Within a class the more urgent one goes first, and of equals the one that has waited longer. A keyspace that is asked and wants nothing costs
//! a question: the next one is asked in the same turn. So the order matters only where there is more to do than lanes. The classes
//! are those of background I/O, by what it costs to let them wait: a stalled writer, a broken promise, disk space, nothing.
//!
//! **No starvation.** The urgent could keep the others waiting for ever, so every [`RELIEF`]th turn goes by waiting alone: among n keyspaces
//! that all want something, each is served at least once in `RELIEF * n` turns, and the urgent lose an eighth.
//!
//! Everything here is plain data in, an order out.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::constraint::RunLimits;
use crate::compaction::deadline::{Deadline, Urgency};
use crate::num::to_f64;
use crate::version::{KeyspaceId, Version};

/// Every so many turns the one that has waited longest goes first, whatever the others need.
pub const RELIEF: u64 = 8;

/// Bytes in the newer runs for each byte of the oldest, from which on merging them counts as saving space.
const SPACE_DUE: f64 = 0.1;

/// How a keyspace stands.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Standing {
    /// Its sorted runs, memtables that wait for their flush included, those that running merges will take away not.
    pub runs: u64,
    /// From how many runs on its writers are slowed down and stopped.
    pub limits: RunLimits,
    /// How old its oldest tombstone is, as a share of the time after which [`Deadline`] takes care of it; 0 without one.
    pub deadline: f64,
    /// Bytes of the runs above the oldest for each byte of the oldest: at most so much of it may have been replaced (sarkar21 section 4.2).
    pub newer_share: f64,
    /// Turns since it was asked last.
    pub waited: u64,
}

/// Why it should be served, the most urgent last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// Nothing would be missed.
    Rest,
    /// Disk space.
    Space,
    /// A promise about deletes.
    Deadline,
    /// Writers are slowed down, or with the next run will be.
    Stall,
}

impl Standing {
    /// Why it should be served, and how urgent that is among others of the class; larger is more.
    pub fn urgency(&self) -> (Class, f64) {
        let RunLimits { slowdown_runs, stop_runs, .. } = self.limits;
        let slack = to_f64(u64::from(stop_runs.saturating_sub(slowdown_runs).max(1)));
        if self.runs >= u64::from(slowdown_runs) {
            // At 1 writers stop.
            return (Class::Stall, to_f64(self.runs - u64::from(slowdown_runs)) / slack);
        }
        if self.deadline >= 1.0 {
            return (Class::Deadline, self.deadline);
        }
        if self.newer_share >= SPACE_DUE {
            // Steps of doubling: what is alike takes turns.
            return (Class::Space, self.newer_share.log2().floor());
        }
        (Class::Rest, 0.0)
    }
}

/// The order in which keyspaces are asked in turn `turn`, as positions in `standings`.
pub fn order(standings: &[Standing], turn: u64) -> Vec<usize> {
    let relief = turn % RELIEF == RELIEF - 1;
    let urgencies: Vec<(Class, f64)> = standings.iter().map(Standing::urgency).collect();
    let mut order: Vec<usize> = (0..standings.len()).collect();
    order.sort_by(|a, b| {
        let waited = standings[*b].waited.cmp(&standings[*a].waited);
        let ((class_a, by_a), (class_b, by_b)) = (urgencies[*a], urgencies[*b]);
        let urgency = class_b.cmp(&class_a).then(by_b.total_cmp(&by_a));
        if relief { waited.then(urgency) } else { urgency.then(waited) }
    });
    order
}

/// What of a keyspace's needs only a look at all its files tells.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Needs {
    oldest_tombstone_ms: Option<u64>,
    newer_share: f64,
}

impl Needs {
    fn of(version: &Version) -> Needs {
        let mut bytes: Vec<u64> = version.runs().map(|(_, run)| run.bytes()).collect();
        let oldest = bytes.pop().unwrap_or(0).max(1);
        Needs {
            oldest_tombstone_ms: version.files().filter_map(|(_, _, file)| file.oldest_tombstone_ms).min(),
            newer_share: to_f64(bytes.iter().sum()) / to_f64(oldest),
        }
    }
}

/// What is remembered from turn to turn.
#[derive(Debug, Default)]
pub struct Turns {
    turn: u64,
    /// The turn in which each keyspace was asked last.
    asked: BTreeMap<KeyspaceId, u64>,
    /// What was found in each tree; looked up again when the tree has changed.
    needs: BTreeMap<KeyspaceId, (Arc<Version>, Needs)>,
}

/// A keyspace, as the lanes know it.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Which.
    pub keyspace: KeyspaceId,
    /// Its tree.
    pub version: Arc<Version>,
    /// As in [`Standing`].
    pub runs: u64,
    /// As in [`Standing`].
    pub limits: RunLimits,
    /// Its option `delete_by`.
    pub deadline: Option<Deadline>,
}

impl Turns {
    /// The order in which `candidates` are asked now, at wall time `now_ms` in milliseconds since 1970, as positions.
    pub fn order(&mut self, candidates: &[Candidate], now_ms: u64) -> Vec<usize> {
        let is_there = |id: &KeyspaceId| candidates.iter().any(|candidate| candidate.keyspace == *id);
        if self.asked.len() > candidates.len() || self.needs.len() > candidates.len() {
            self.asked.retain(|id, _| is_there(id));
            self.needs.retain(|id, _| is_there(id));
        }
        let standings: Vec<Standing> = candidates.iter().map(|candidate| self.standing(candidate, now_ms)).collect();
        order(&standings, self.turn)
    }

    fn standing(&mut self, candidate: &Candidate, now_ms: u64) -> Standing {
        let Candidate { keyspace, version, runs, limits, deadline } = candidate;
        let known = self.needs.get(keyspace).filter(|(of, _)| Arc::ptr_eq(of, version)).map(|(_, needs)| *needs);
        let needs = known.unwrap_or_else(|| {
            let needs = Needs::of(version);
            self.needs.insert(*keyspace, (Arc::clone(version), needs));
            needs
        });
        let share = |deadline: &Deadline, oldest: u64| {
            to_f64(now_ms.saturating_sub(oldest)) / to_f64(deadline.at_ms(Urgency::Due).max(1))
        };
        let deadline = deadline.as_ref().zip(needs.oldest_tombstone_ms).map_or(0.0, |(by, oldest)| share(by, oldest));
        // One that was never asked has waited since the first turn.
        let waited = self.turn - self.asked.get(keyspace).copied().unwrap_or(0);
        Standing { runs: *runs, limits: *limits, deadline, newer_share: needs.newer_share, waited }
    }

    /// `keyspace` was asked what it wants.
    pub fn asked(&mut self, keyspace: KeyspaceId) {
        self.asked.insert(keyspace, self.turn);
    }

    /// A job began: the turn is over.
    pub fn end(&mut self) {
        self.turn += 1;
    }

    /// How many turns there were.
    pub fn turns(&self) -> u64 {
        self.turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::Rng;

    fn limits(slowdown_runs: u32, stop_runs: u32) -> RunLimits {
        RunLimits { expected: slowdown_runs, slowdown_runs, stop_runs }
    }

    fn any(rng: &mut Rng) -> Standing {
        let slowdown = u32::try_from(rng.between(1, 30)).unwrap();
        let stop = slowdown + u32::try_from(rng.between(1, 30)).unwrap();
        Standing {
            runs: rng.below(70),
            limits: limits(slowdown, stop),
            deadline: if rng.one_in(3) { 0.0 } else { to_f64(rng.below(200)) / 100.0 },
            newer_share: to_f64(rng.below(300)) / 100.0,
            waited: rng.below(20),
        }
    }

    /// A bystander: few runs, no deadline, any space.
    fn calm(rng: &mut Rng) -> Standing {
        Standing { runs: 1, limits: limits(6, 12), deadline: 0.0, ..any(rng) }
    }

    #[test]
    fn the_most_urgent_goes_first() {
        let mut rng = Rng::new(1);
        for _ in 0..20_000 {
            let standings: Vec<Standing> = (0..rng.between(1, 8)).map(|_| any(&mut rng)).collect();
            let turn = rng.below(100);
            let order = order(&standings, turn);
            let mut seen = order.clone();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..standings.len()), "{order:?} names each once");
            for pair in order.windows(2) {
                let (a, b) = (&standings[pair[0]], &standings[pair[1]]);
                if turn % RELIEF == RELIEF - 1 {
                    assert!(a.waited >= b.waited, "a turn of relief goes by waiting: {a:?} {b:?}");
                    continue;
                }
                // Spelt out again, without classes.
                let stalls = |s: &Standing| s.runs >= u64::from(s.limits.slowdown_runs);
                let late = |s: &Standing| s.deadline >= 1.0;
                assert!(stalls(a) || !stalls(b), "near its limit before not: {a:?} {b:?}");
                if stalls(a) == stalls(b) && !stalls(a) {
                    assert!(late(a) || !late(b), "late before not: {a:?} {b:?}");
                    assert!(!(late(a) && late(b)) || a.deadline >= b.deadline, "the latest first: {a:?} {b:?}");
                    let space = |s: &Standing| !late(s) && s.newer_share >= 0.1;
                    assert!(late(a) || space(a) || !space(b), "space before nothing: {a:?} {b:?}");
                }
                if a.urgency() == b.urgency() {
                    assert!(a.waited >= b.waited, "equals take turns: {a:?} {b:?}");
                }
            }
        }
    }

    #[test]
    fn one_run_before_the_stop_goes_before_one_after_the_slow_down() {
        let at = |runs| Standing { runs, limits: limits(6, 12), deadline: 9.0, newer_share: 9.0, waited: 0 };
        assert_eq!(order(&[at(5), at(7), at(11), at(6)], 0), [2, 1, 3, 0]);
    }

    /// Keyspaces that always want something, served as the lanes do it.
    fn serve(standings: &mut [Standing], turns: u64, mut change: impl FnMut(&mut [Standing])) -> Vec<Vec<u64>> {
        let mut served = vec![Vec::new(); standings.len()];
        for turn in 0..turns {
            change(standings);
            let first = order(standings, turn)[0];
            standings.iter_mut().for_each(|standing| standing.waited += 1);
            standings[first].waited = 0;
            served[first].push(turn);
        }
        served
    }

    #[test]
    fn nobody_starves_whatever_the_others_need() {
        let mut rng = Rng::new(2);
        for _ in 0..300 {
            let n = rng.between(1, 12);
            let mut standings: Vec<Standing> = (0..n).map(|_| any(&mut rng)).collect();
            // Most keep needing the same, which is the hardest case; some change at every turn.
            let restless = rng.one_in(3);
            let served = serve(&mut standings, 40 * RELIEF * n, |standings| {
                if restless {
                    for standing in standings {
                        *standing = Standing { waited: standing.waited, ..any(&mut rng) };
                    }
                }
            });
            for turns in served {
                let ends = std::iter::once(0).chain(turns.iter().copied()).chain([40 * RELIEF * n]);
                let longest = ends.clone().zip(ends.skip(1)).map(|(a, b)| b - a).max().unwrap();
                assert!(longest <= RELIEF * n, "{longest} turns without one, of {n} keyspaces");
            }
        }
    }

    #[test]
    fn equals_share_and_the_urgent_gets_seven_of_eight() {
        let mut rng = Rng::new(3);
        let calm = Standing { newer_share: 0.0, waited: 0, ..calm(&mut rng) };
        let served = serve(&mut [calm; 5], 1000, |_| ());
        assert!(served.iter().all(|turns| turns.len() == 200), "{served:?}");
        let urgent = Standing { runs: 11, ..calm };
        let served = serve(&mut [calm, calm, urgent, calm], 800, |_| ());
        assert!(served[2].len() >= 700, "{}", served[2].len());
    }

    #[test]
    fn turns_remember_who_was_asked_and_what_trees_hold() {
        let tree = |text: &str| Arc::new(crate::version::text::parse(text).unwrap());
        let candidate = |id, version: &Arc<Version>, deadline| Candidate {
            keyspace: KeyspaceId(id),
            version: Arc::clone(version),
            runs: 1,
            limits: limits(6, 12),
            deadline,
        };
        let (flat, newer) = (tree("L1 1:a-z:10K\n"), tree("L0 2:a-z:9K\nL1 1:a-z:10K\n"));
        let mut turns = Turns::default();
        // Of equals the one that was not asked lately; a tree with newer data before both.
        let all = [candidate(0, &flat, None), candidate(1, &flat, None), candidate(2, &newer, None)];
        assert_eq!(turns.order(&all, 0), [2, 0, 1]);
        turns.end();
        turns.asked(KeyspaceId(0));
        assert_eq!(turns.order(&all, 0), [2, 1, 0]);
        // The tree has changed: what was known of it counts no more.
        let all = [candidate(0, &flat, None), candidate(1, &flat, None), candidate(2, &flat, None)];
        assert_eq!(turns.order(&all, 0), [1, 2, 0]);
        assert_eq!(turns.turns(), 1);
    }
}
