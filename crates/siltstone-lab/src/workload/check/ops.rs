//! The operations of a mix, one by one and together.

use anyhow::{Context, bail, ensure};

use super::super::keyset::{KeySpec, Order};
use super::super::law::{Law, Over};
use super::super::op::{Amount, OpKind, OpSpec};
use super::super::phase::{Group, Interleave};
use super::super::spec::Spec;

/// One of them.
pub(super) fn check(spec: &Spec, group: &Group, op: &OpSpec) -> anyhow::Result<()> {
    use OpKind::{
        Delete, Insert, MultiGet, RangeDelete, ReadModifyWrite, Scan, ScanPrefix, ScanReverse, Update, Upsert,
    };
    let kind = op.kind;
    let only = |name: &str, is_set: bool, kinds: &[OpKind]| {
        let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        ensure!(!is_set || kinds.contains(&kind), "`{name}` is for {}", names.join(", "));
        Ok(())
    };
    let share = |name: &str, x: Option<f64>| {
        let fits = x.is_none_or(|x| (0.0..=1.0).contains(&x));
        ensure!(fits, "`{name}` is a share, from 0 to 1, not {}", x.unwrap_or(0.0));
        Ok(())
    };
    only("reuse", op.reuse.is_some(), &[Insert])?;
    only("same", op.same.is_some(), &[Update, ReadModifyWrite, Upsert])?;
    only("stride", op.stride.is_some(), &[MultiGet])?;
    only("prefix_bytes", op.prefix_bytes.is_some(), &[ScanPrefix])?;
    only("length", op.length.is_some(), &[MultiGet, Scan, ScanReverse, ScanPrefix, RangeDelete])?;
    only("selectivity", op.selectivity.is_some(), &[Scan, ScanReverse, RangeDelete])?;
    only("whole", op.whole, &[Scan, ScanReverse])?;
    only("index", op.index.is_some(), &[Scan, ScanReverse])?;
    for (name, x) in
        [("reuse", op.reuse), ("same", op.same), ("selectivity", op.selectivity), ("distinct", op.distinct)]
    {
        share(name, x)?;
    }
    share("after", op.after)?;
    ensure!(op.distinct.is_none_or(|distinct| distinct > 0.0), "`distinct` must be above 0");
    if op.count.is_some_and(|count| matches!(count, Amount::Percent(_))) {
        ensure!(spec.records > 0, "a share of the records needs `records`");
    }
    if let Some(every) = op.every {
        ensure!(!kind.has_key(), "`every` is for flush, compact, take-snapshot, drop-snapshot");
        ensure!(every > 0, "`every` must be above 0");
        ensure!(op.share.is_none() && op.count.is_none(), "`every` excludes `share` and `count`");
    }
    if op.after.is_some() {
        let inserts = group.mix.iter().any(|op| op.kind == Insert);
        ensure!(
            group.interleave == Interleave::Proportional && inserts,
            "`after` is a share of the phase's inserts; it needs some, and `interleave = \"proportional\"`"
        );
        ensure!(kind != Insert, "inserts cannot wait for themselves");
    }
    if matches!(kind, Scan | ScanReverse | RangeDelete) {
        let ways = [op.length.is_some(), op.selectivity.is_some(), op.whole];
        let is_one = ways.iter().filter(|way| **way).count() == 1;
        ensure!(
            is_one,
            "give one of `length`, in records, `selectivity`, a share of the keys, and, for a scan, `whole = true`"
        );
    }
    ensure!(kind != MultiGet || op.length.is_some(), "`length` is missing: the keys of one call");
    ensure!(kind != MultiGet || spec.keyspaces.len() < 2, "one call asks one keyspace, and here keys lie in several");
    ensure!(
        !op.whole || op.index.is_some() || spec.keyspaces.len() < 2,
        "a scan of everything reads one keyspace, and here keys lie in several"
    );
    ensure!(kind != ScanPrefix || op.prefix_bytes.is_some_and(|bytes| bytes > 0), "`prefix_bytes` is missing");
    if let Some(length) = &op.length {
        length.check(1, if kind == MultiGet { 100_000 } else { u64::from(u32::MAX) }).context("length")?;
    }
    if let Some(name) = &op.index {
        let names: Vec<&str> = spec.indexes.iter().map(|index| &index.name[..]).collect();
        let known = if names.is_empty() { "the workload has none".to_owned() } else { names.join(", ") };
        ensure!(names.contains(&&name[..]), "there is no index {name:?}; there are: {known}");
    }
    law(spec, op)?;
    if kind == Delete && group.keep.is_some() {
        bail!("`keep` deletes by itself");
    }
    Ok(())
}

fn law(spec: &Spec, op: &OpSpec) -> anyhow::Result<()> {
    op.law.check().context("law")?;
    if !op.kind.has_key() || op.kind == OpKind::Insert {
        let is_default = op.law == Law::Uniform && op.hot.is_none() && op.over == Over::Insertion && op.drift.is_none();
        ensure!(is_default && op.distinct.is_none(), "it chooses no key, so that `law` and the like mean nothing");
    }
    if let Some(drift) = op.drift {
        ensure!(drift.every > 0, "`drift.every` must be above 0");
        ensure!((0.0..=1.0).contains(&drift.step), "`drift.step` is a share, from 0 to 1, not {}", drift.step);
    }
    let by_age = matches!(op.law, Law::Latest { .. } | Law::Oldest | Law::Window { .. });
    if by_age {
        ensure!(op.hot.is_none(), "the law says itself which keys are hot; `hot` must be left out");
        ensure!(op.over == Over::Insertion, "a law by age runs over the order of insertion");
    }
    if op.over == Over::Keys || op.kind == OpKind::RangeDelete {
        let what = if op.over == Over::Keys { "`over = \"keys\"`" } else { "a range delete" };
        ensure!(
            *spec.keys.order() != Order::Hashed,
            "{what} needs an order of insertion that can be computed back: random, ordered or near-sorted"
        );
        let plain = matches!(spec.keys, KeySpec::Integer { .. } | KeySpec::String { .. } | KeySpec::Binary { .. });
        ensure!(plain, "{what} needs integer, string or binary keys, whose order follows from their numbers");
    }
    if op.kind == OpKind::RangeDelete {
        ensure!(
            spec.most_clients() == 1,
            "a range holds keys of several clients' shares: range deletes need one client"
        );
        ensure!(spec.indexes.is_empty(), "a range delete leaves the entries of indexes behind");
        ensure!(spec.keyspaces.len() < 2, "a range delete with several keyspaces: a range lies in one of them only");
    }
    Ok(())
}

/// Shares add up, or everything has a count.
pub(super) fn fractions(spec: &Spec, group: &Group) -> anyhow::Result<()> {
    let counted = || group.mix.iter().filter(|op| op.every.is_none());
    if counted().all(|op| op.count.is_some()) {
        ensure!(counted().any(|op| op.count.is_some_and(|n| n.of(spec.records) > 0)), "all counts are 0");
        return Ok(());
    }
    ensure!(
        counted().all(|op| op.count.is_none()),
        "some operations have a `count` and others a `share`; give all the same"
    );
    if counted().count() == 1 && counted().all(|op| op.share.is_none()) {
        return Ok(());
    }
    for op in counted() {
        let share = op.share.with_context(|| format!("`{}` has no `share`", op.kind.name()))?;
        for share in [Some(share), op.share_to].into_iter().flatten() {
            ensure!(
                (0.0..=1.0).contains(&share),
                "the share of `{}` is {share}; shares are from 0 to 1",
                op.kind.name()
            );
        }
    }
    let add_up = |name: &str, sum: f64| {
        ensure!((sum - 1.0).abs() < 1e-6, "the {name} add up to {}, not to 1", (sum * 1e6).round() / 1e6);
        Ok(())
    };
    add_up("shares", counted().filter_map(|op| op.share).sum())?;
    add_up("shares at the end", counted().filter_map(|op| op.share_to.or(op.share)).sum())
}
