//! Who does how much of what, and which keys belong to whom: what follows from a spec before anything is drawn.
//!
//! Clients run beside each other, and none may delete a key that another one is about to read. So keys are divided into *shares*, as many as
//! the phase with the most clients has: share s has the keys s, s + shares, s + 2 shares, ... In a phase with C clients share s belongs to
//! client s mod C, and what a client does with keys that come and go, it does with those of its shares. Each share has its own random
//! numbers in each phase, so any client can work out what another one did to a share in an earlier phase, without asking it.
//!
//! Where no key comes or goes in a phase, and how many came before is known, everyone chooses among all keys.

use super::op::{OpKind, OpSpec};
use super::phase::{Group, Interleave, PhaseSpec};
use super::spec::Spec;
use crate::num::{count, float, floor, index};

/// What follows from a spec.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Plan {
    /// How many shares.
    pub(super) shares: u32,
    /// Numbers of keys are below it.
    pub(super) capacity: u64,
    /// Whether keys are numbers of a domain, which `upsert` stores, rather than counted by insertion.
    pub(super) is_domain: bool,
    /// The phases.
    pub(super) phases: Vec<PhasePlan>,
}

/// What follows for a phase.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct PhasePlan {
    /// Its clients.
    pub(super) clients: u32,
    /// The first of them, which do its operations.
    pub(super) own: u32,
    /// Operations by share; `None` without an end.
    pub(super) operations: Vec<Option<u64>>,
    /// Inserts by share, at most.
    pub(super) inserts: Vec<u64>,
    /// The number of all keys, if everyone chooses among all.
    pub(super) everyone: Option<u64>,
    /// Whether keys come or go.
    pub(super) changes_keys: bool,
}

impl Plan {
    /// The plan of a spec. Only the sums that it needs are looked at: the spec may still be wrong.
    pub(super) fn new(spec: &Spec) -> Plan {
        let shares = spec.most_clients().max(1);
        let is_domain = all_ops(spec).any(|op| op.kind == OpKind::Upsert);
        let mut inserted = vec![0u64; index(u64::from(shares))];
        // While it holds, `inserted` is exact and nothing was deleted.
        let mut is_exact = !is_domain;
        let mut phases = Vec::new();
        for phase in &spec.phases {
            let changes_keys = phase.groups().any(changes_keys);
            let total: u64 = inserted.iter().sum();
            let everyone = (!changes_keys && is_exact && are_level(&inserted)).then_some(total);
            let plan = phase_plan(spec, phase, &inserted, shares, everyone, changes_keys);
            is_exact &= phase.groups().all(|group| !deletes(group)) && is_counted(phase);
            for (inserted, more) in inserted.iter_mut().zip(&plan.inserts) {
                *inserted = inserted.saturating_add(*more);
            }
            phases.push(plan);
        }
        let most = inserted.iter().max().copied().unwrap_or(0);
        let capacity = if is_domain { spec.records } else { most.saturating_mul(u64::from(shares)) };
        let capacity = if are_level(&inserted) && !is_domain { inserted.iter().sum() } else { capacity };
        Plan { shares, capacity: capacity.max(1), is_domain, phases }
    }
}

fn all_ops(spec: &Spec) -> impl Iterator<Item = &OpSpec> {
    spec.phases.iter().flat_map(PhaseSpec::groups).flat_map(|group| &group.mix)
}

/// Whether the first so many numbers are inserted, and no others.
fn are_level(inserted: &[u64]) -> bool {
    let shares = count(inserted.len());
    let total = inserted.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
    (0..).zip(inserted).all(|(share, n)| *n == total / shares + u64::from(share < total % shares))
}

fn changes_keys(group: &Group) -> bool {
    group.keep.is_some() || group.mix.iter().any(|op| op.kind.changes_keys())
}

pub(super) fn deletes(group: &Group) -> bool {
    group.keep.is_some() || group.mix.iter().any(|op| matches!(op.kind, OpKind::Delete | OpKind::RangeDelete))
}

/// Whether the number of inserts of a phase is exact and all of them are new keys.
fn is_counted(phase: &PhaseSpec) -> bool {
    let is_exact = |group: &Group| {
        let inserts = || group.mix.iter().filter(|op| op.kind == OpKind::Insert);
        let only = group.mix.iter().filter(|op| op.every.is_none()).all(|op| op.kind == OpKind::Insert);
        let counts = only || group.interleave != Interleave::Independent;
        inserts().next().is_none() || (counts && inserts().all(|op| op.reuse.is_none()))
    };
    let beside = phase.beside.iter().all(|group| group.mix.iter().all(|op| op.kind != OpKind::Insert));
    let inserts = phase.own.mix.iter().any(|op| op.kind == OpKind::Insert);
    beside && is_exact(&phase.own) && !(inserts && phase.duration.is_some())
}

fn phase_plan(
    spec: &Spec,
    phase: &PhaseSpec,
    inserted: &[u64],
    shares: u32,
    everyone: Option<u64>,
    changes_keys: bool,
) -> PhasePlan {
    let clients = phase.clients().max(1);
    let own = phase.own.clients;
    let is_own = |share: u32| share % clients < own;
    // Odd operations go to the shares with the fewest keys, so that the first so many numbers are inserted in the end.
    let mut order: Vec<u32> = (0..shares).filter(|share| is_own(*share)).collect();
    order.sort_by_key(|share| (inserted[index(u64::from(*share))], *share));
    let mut operations: Vec<Option<u64>> = (0..shares).map(|share| is_own(share).then_some(0)).collect();
    let total = spec.operations(phase);
    for (at, share) in (0..).zip(&order) {
        operations[index(u64::from(*share))] = total.map(|total| split(total, count(order.len()), at));
    }
    let inserts = (0..shares)
        .map(|share| {
            let group = phase.group_of(share % clients).map(|(_, group)| group);
            group.map_or(0, |group| most_inserts(spec, group, operations[index(u64::from(share))]))
        })
        .collect();
    PhasePlan { clients, own, operations, inserts, everyone, changes_keys }
}

/// The `at`-th of `parts` nearly equal parts of a number.
pub(super) fn split(total: u64, parts: u64, at: u64) -> u64 {
    total / parts + u64::from(at < total % parts)
}

/// At most so many keys come; without an end as many as a domain of keys may have.
fn most_inserts(spec: &Spec, group: &Group, operations: Option<u64>) -> u64 {
    if !group.mix.iter().any(|op| op.kind == OpKind::Insert) {
        return 0;
    }
    let Some(operations) = operations else { return UNKNOWN };
    if group.interleave == Interleave::Independent {
        return operations;
    }
    let counts = exact_counts(spec, group, operations);
    group.mix.iter().zip(counts).filter(|(op, _)| op.kind == OpKind::Insert).map(|(_, n)| n).sum()
}

/// Stands for "as many as there is time for".
pub(super) const UNKNOWN: u64 = 1 << 40;

/// How many of each operation of a mix there are among `operations`, exactly: by largest remainder.
pub(super) fn exact_counts(spec: &Spec, group: &Group, operations: u64) -> Vec<u64> {
    let weight = |op: &OpSpec| match (op.every, op.count, op.share) {
        (Some(_), ..) => 0.0,
        (None, Some(count), _) => float(count.of(spec.records)),
        (None, None, share) => share.unwrap_or(0.0),
    };
    let weights: Vec<f64> = group.mix.iter().map(weight).collect();
    let total: f64 = weights.iter().sum();
    if total <= 0.0 {
        return vec![0; weights.len()];
    }
    let ideal: Vec<f64> = weights.iter().map(|weight| weight / total * float(operations)).collect();
    // A product that should be whole may come out a little less.
    let mut counts: Vec<u64> = ideal.iter().map(|ideal| floor(ideal + 1e-6)).collect();
    let mut order: Vec<usize> = (0..counts.len()).filter(|i| weights[*i] > 0.0).collect();
    order.sort_by(|a, b| {
        let rest = |i: usize| ideal[i] - float(counts[i]);
        rest(*b).total_cmp(&rest(*a)).then(a.cmp(b))
    });
    let mut missing = operations.saturating_sub(counts.iter().sum());
    for i in order.iter().cycle() {
        if missing == 0 {
            break;
        }
        counts[*i] += 1;
        missing -= 1;
    }
    counts
}
