//! What may be wrong with a spec beyond its grammar, and on which line.

mod keys;
mod ops;

use anyhow::{Context, Error, ensure};

use super::arrive::ArrivalSpec;
use super::coder::MOST_KEYS;
use super::generator::MOST_VALUE_BYTES;
use super::keyset::KeySpec;
use super::law::{Law, Over};
use super::live::MOST_WITH_HOLES;
use super::op::{Amount, OpKind};
use super::phase::{Group, Interleave, PhaseSpec, Shift};
use super::plan::{Plan, UNKNOWN, deletes};
use super::spec::{Content, Spec};

/// A step to a place in a spec.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Name(&'static str),
    Place(usize),
}

/// What is wrong, and where.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) place: Vec<Step>,
    pub(super) what: Error,
}

/// The line of a byte, counted from 1.
pub(super) fn line_at(text: &str, byte: usize) -> usize {
    text.as_bytes()[..byte.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// The line of a place; of the innermost part of it that the text has.
pub(super) fn line_of(text: &str, place: &[Step]) -> usize {
    let Ok(table) = toml::de::DeTable::parse(text) else { return 1 };
    let mut start = 0;
    let mut value: Option<&toml::de::DeValue<'_>> = None;
    for step in place {
        let next = match (step, value) {
            (Step::Name(name), None) => table.get_ref().get(*name),
            (Step::Name(name), Some(toml::de::DeValue::Table(table))) => table.get(*name),
            (Step::Place(at), Some(toml::de::DeValue::Array(list))) => list.get(*at),
            _ => None,
        };
        let Some(next) = next else { break };
        start = next.span().start;
        value = Some(next.get_ref());
    }
    line_at(text, start)
}

trait At<T> {
    fn at(self, place: &[Step]) -> Result<T, Wrong>;
}

impl<T> At<T> for anyhow::Result<T> {
    fn at(self, place: &[Step]) -> Result<T, Wrong> {
        self.map_err(|what| Wrong { place: place.to_vec(), what })
    }
}

use Step::{Name, Place};

/// Finds the first thing that is wrong.
pub(super) fn check(spec: &Spec) -> Result<(), Wrong> {
    head(spec)?;
    for (at, phase) in spec.phases.iter().enumerate() {
        check_phase(spec, at, phase)?;
    }
    let plan = Plan::new(spec);
    order_of_phases(spec, &plan)?;
    keys::check(spec, &plan).at(&[Name("keys")])
}

fn head(spec: &Spec) -> Result<(), Wrong> {
    let name = || {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
        let fits = !spec.name.is_empty() && !spec.name.starts_with('.') && spec.name.chars().all(is_plain);
        ensure!(fits, "{:?} is no name for a workload: letters, digits, and `-_.+`", spec.name);
        Ok(())
    };
    name().at(&[Name("name")])?;
    let phases = || {
        ensure!(!spec.phases.is_empty(), "a workload needs a [[phase]]");
        for (at, phase) in spec.phases.iter().enumerate() {
            let twice = spec.phases[..at].iter().any(|other| other.name == phase.name);
            ensure!(!twice, "two phases are called {:?}", phase.name);
        }
        Ok(())
    };
    phases().at(&[Name("phase")])?;
    values(spec).at(&[Name("values")])?;
    let keyspaces = || {
        let names = spec.keyspace_names();
        ensure!(names.len() <= 1024, "{} keyspaces are more than 1024", names.len());
        for (at, name) in names.iter().enumerate() {
            ensure!(!names[..at].contains(name), "two keyspaces or indexes are called {name:?}");
            ensure!(!name.is_empty() || spec.keyspaces.is_empty(), "a keyspace without a name");
        }
        for keyspace in &spec.keyspaces {
            let weight = keyspace.weight;
            ensure!(weight.is_finite() && weight > 0.0, "keyspace {:?} has the weight {weight}", keyspace.name);
        }
        Ok(())
    };
    keyspaces().at(&[Name("keyspace")])?;
    let indexes = || {
        for index in &spec.indexes {
            ensure!(!index.name.is_empty(), "an index without a name");
            let most = 10_000_000_000;
            ensure!((1..=most).contains(&index.cardinality), "`cardinality` must be from 1 to {most}");
            stateless(&index.law)?;
        }
        Ok(())
    };
    indexes().at(&[Name("index")])
}

/// A law that gives each key a value of its own needs no history.
fn stateless(law: &Law) -> anyhow::Result<()> {
    law.check()?;
    let has_history = matches!(law, Law::Sequential | Law::Oldest | Law::Window { .. } | Law::Latest { .. });
    ensure!(!has_history, "this law is about keys in the order of their insertion; here it cannot be used");
    Ok(())
}

fn values(spec: &Spec) -> anyhow::Result<()> {
    let values = &spec.values;
    ensure!((1..=1000).contains(&values.fields), "`fields` must be from 1 to 1000, not {}", values.fields);
    values.bytes.check(0, MOST_VALUE_BYTES / u64::from(values.fields)).context("bytes")?;
    let to = values.compressible_to;
    ensure!((0.0..=1.0).contains(&to), "`compressible_to` is a share, from 0 to 1, not {to}");
    if let Some(bytes) = values.entry_bytes {
        ensure!(bytes <= MOST_VALUE_BYTES, "`entry_bytes` {bytes} is above {MOST_VALUE_BYTES}");
        ensure!(values.fields == 1, "`entry_bytes` and `fields` exclude each other");
    }
    if values.checked {
        let least = if values.entry_bytes.is_some() { 8 } else { values.bytes.bounds().0 * u64::from(values.fields) };
        ensure!(least >= 8, "checked values need 8 bytes and more, not {least}");
        ensure!(values.content != Content::File, "values from a file carry no checksum");
    }
    if values.content == Content::File {
        ensure!(matches!(spec.keys, KeySpec::File { .. }), "values from a file need keys from a file");
    }
    Ok(())
}

fn check_phase(spec: &Spec, at: usize, phase: &PhaseSpec) -> Result<(), Wrong> {
    let here = [Name("phase"), Place(at)];
    let is_counted = spec.operations(phase).is_some();
    let ends = || {
        ensure!(!phase.name.is_empty(), "a phase needs a `name`");
        ensure!(
            is_counted || phase.duration.is_some(),
            "phase {}: `operations`, a `duration` or a `count` for each operation is missing",
            phase.name
        );
        let counted = phase.own.mix.iter().any(|op| op.count.is_some());
        ensure!(
            phase.operations.is_none() || !counted,
            "phase {}: `operations` and counts in the mix exclude each other",
            phase.name
        );
        for amount in [phase.operations, phase.own.keep].into_iter().flatten() {
            let needs = matches!(amount, Amount::Percent(_)) && spec.records == 0;
            ensure!(!needs, "phase {}: a share of the records needs `records`", phase.name);
        }
        if let Some(operations) = spec.operations(phase) {
            ensure!(operations < MOST_KEYS / 1024, "phase {}: {operations} operations are too many", phase.name);
        }
        Ok(())
    };
    ends().at(&here)?;
    for (group_at, group) in phase.groups().enumerate() {
        let mut place = here.to_vec();
        if group_at > 0 {
            place.extend([Name("beside"), Place(group_at - 1)]);
        }
        check_group(phase, group, group_at > 0, is_counted)
            .with_context(|| format!("phase {}", phase.name))
            .at(&place)?;
        place.push(Name("mix"));
        for (op_at, op) in group.mix.iter().enumerate() {
            place.push(Place(op_at));
            let result = ops::check(spec, group, op);
            result.with_context(|| format!("phase {}: `{}`", phase.name, op.kind.name())).at(&place)?;
            place.pop();
        }
        ops::fractions(spec, group).with_context(|| format!("phase {}", phase.name)).at(&place)?;
    }
    Ok(())
}

fn check_group(phase: &PhaseSpec, group: &Group, is_beside: bool, is_counted: bool) -> anyhow::Result<()> {
    ensure!((1..=1024).contains(&group.clients), "`clients` must be from 1 to 1024, not {}", group.clients);
    ensure!((1..=1_000_000).contains(&group.batch), "`batch` must be from 1 to 1000000, not {}", group.batch);
    ensure!(!group.mix.is_empty(), "an empty `mix`");
    if group.ingest {
        let writes = group.mix.iter().all(|op| op.kind == OpKind::Insert && op.reuse.is_none());
        ensure!(writes && group.keep.is_none(), "`ingest` is for phases that insert new keys and do nothing else");
    }
    let is_closed = group.arrivals == ArrivalSpec::Closed;
    ensure!(group.think.is_none() || is_closed, "`think` is for a closed loop; an open one has its rate");
    let is_independent = group.interleave == Interleave::Independent;
    if is_beside || !is_counted {
        ensure!(
            is_independent,
            "`interleave = \"proportional\"` and `\"serial\"` need a number of operations, which there is none without an end"
        );
        ensure!(group.shift.is_none(), "a mix that shifts needs a number of operations");
    }
    if let Some(shift) = group.shift {
        ensure!(is_independent, "a mix that shifts needs `interleave = \"independent\"`");
        ensure!(group.mix.iter().any(|op| op.share_to.is_some()), "a mix that shifts needs `share_to`");
        if let Shift::Abrupt { at } = shift {
            ensure!((0.0..=1.0).contains(&at), "`at` is a share of the phase, from 0 to 1, not {at}");
        }
    } else {
        let shifts = group.mix.iter().any(|op| op.share_to.is_some());
        ensure!(!shifts, "`share_to` needs a `shift`: \"slow\", or {{ kind = \"abrupt\", at = 0.5 }}");
    }
    if let Some(keep) = group.keep {
        ensure!(keep != Amount::Count(0), "`keep` must be above 0");
        ensure!(group.mix.iter().any(|op| op.kind == OpKind::Insert), "`keep` without inserts deletes nothing");
    }
    arrivals(phase, &group.arrivals)
}

fn arrivals(phase: &PhaseSpec, arrivals: &ArrivalSpec) -> anyhow::Result<()> {
    let rate = |name: &str, x: f64, least: f64| {
        ensure!(x.is_finite() && x >= least && x <= 1e9, "`{name}` must be from {least} to 1e9, not {x}");
        Ok(())
    };
    match arrivals {
        ArrivalSpec::Closed => Ok(()),
        ArrivalSpec::Open { per_second, .. } => rate("per_second", *per_second, 1e-6),
        ArrivalSpec::Stretches { of, .. } => {
            ensure!(of.iter().any(|stretch| stretch.per_second > 0.0), "an open loop needs a rate above 0");
            let of = of.iter().filter(|stretch| stretch.per_second != 0.0);
            of.into_iter().try_for_each(|stretch| rate("per_second", stretch.per_second, 1e-6))
        }
        ArrivalSpec::Sine { per_second, swing, .. } => {
            rate("per_second", *per_second, 1e-6)?;
            ensure!((0.0..=*per_second).contains(swing), "`swing` must be from 0 to `per_second`, not {swing}");
            Ok(())
        }
        ArrivalSpec::Share { of_maximum, of_phase, .. } => {
            ensure!((1e-6..=10.0).contains(of_maximum), "`of_maximum` must be from 1e-6 to 10, not {of_maximum}");
            ensure!(*of_phase != phase.name, "`of_phase` must be an earlier phase");
            Ok(())
        }
    }
}

/// What one phase needs of those before it.
fn order_of_phases(spec: &Spec, plan: &Plan) -> Result<(), Wrong> {
    let mut has_keys = plan.is_domain;
    let mut most_holes = if plan.is_domain { plan.capacity } else { 0 };
    let mut may_delete = false;
    for (at, phase) in spec.phases.iter().enumerate() {
        let here = [Name("phase"), Place(at)];
        for (group_at, group) in phase.groups().enumerate() {
            let mut place = here.to_vec();
            if group_at > 0 {
                place.extend([Name("beside"), Place(group_at - 1)]);
            }
            place.push(Name("mix"));
            let inserts = group.mix.iter().any(|op| matches!(op.kind, OpKind::Insert | OpKind::Upsert));
            for (op_at, op) in group.mix.iter().enumerate() {
                place.push(Place(op_at));
                let has_some = has_keys || inserts;
                let name = op.kind.name();
                let known = || {
                    ensure!(
                        has_some || !(op.kind.needs_key() || op.kind.is_missing()),
                        "phase {}: `{name}` before any insert: no key is there",
                        phase.name
                    );
                    ensure!(
                        op.kind != OpKind::Insert || !plan.is_domain,
                        "phase {}: `insert` takes keys that were never stored, `upsert` any: a workload has one of them",
                        phase.name
                    );
                    ensure!(
                        op.kind != OpKind::Upsert || spec.records > 0,
                        "phase {}: `upsert` needs `records`, the number of keys in the domain",
                        phase.name
                    );
                    ensure!(
                        op.over != Over::Keys || plan.shares == 1 || plan.phases[at].everyone.is_some(),
                        "phase {}: `over = \"keys\"` with several clients needs a phase in which no key comes or goes",
                        phase.name
                    );
                    Ok(())
                };
                known().at(&place)?;
                place.pop();
                let by_age = op.kind == OpKind::Delete && op.law == Law::Oldest;
                may_delete |= matches!(op.kind, OpKind::Delete | OpKind::RangeDelete) && !by_age;
            }
            if let Some(of) = group.arrivals.needs() {
                let earlier = spec.phases[..at].iter().find(|phase| phase.name == of);
                let is_closed = earlier.is_some_and(|phase| phase.own.arrivals == ArrivalSpec::Closed);
                let names: Vec<&str> = spec.phases[..at].iter().map(|phase| &phase.name[..]).collect();
                let known = || {
                    ensure!(
                        is_closed,
                        "phase {}: `of_phase` must be an earlier phase with a closed loop, not {of:?}; earlier are {}",
                        phase.name,
                        names.join(", ")
                    );
                    Ok(())
                };
                known().at(&here)?;
            }
        }
        has_keys |= phase.groups().flat_map(|group| &group.mix).any(|op| op.kind == OpKind::Insert);
        goes_on(spec, plan, at).at(&here)?;
    }
    let most = plan.phases.iter().flat_map(|phase| &phase.inserts).fold(0u64, |sum, n| sum.saturating_add(*n));
    if may_delete {
        most_holes = most_holes.max(most.min(plan.capacity));
    }
    let known = || {
        let is_unknown = most >= UNKNOWN && may_delete;
        ensure!(
            most_holes <= MOST_WITH_HOLES && !is_unknown,
            "which of {} keys are deleted takes a bit each, and {MOST_WITH_HOLES} is the most; deletes with `law = \"oldest\"` take none, and a \
             number of `operations` bounds the keys",
            if is_unknown { "endlessly many".to_owned() } else { most_holes.to_string() }
        );
        Ok(())
    };
    known().at(&[Name("phase")])
}

/// After a phase without an exact end nobody can work out what others did: whoever wrote to keys must keep them.
fn goes_on(spec: &Spec, plan: &Plan, at: usize) -> anyhow::Result<()> {
    let phase = &spec.phases[at];
    let endless = |group: &Group| group.mix.iter().any(|op| op.kind.changes_keys()) || deletes(group);
    let own = phase.duration.is_some() && endless(&phase.own);
    if !own && !phase.beside.iter().any(endless) {
        return Ok(());
    }
    let clients = plan.phases[at].clients;
    for later in &spec.phases[at + 1..] {
        ensure!(
            later.clients() == clients,
            "phase {} inserts or deletes without an exact end, so that the phases after it must have as many clients: {clients}, and {} has {}",
            phase.name,
            later.name,
            later.clients()
        );
    }
    Ok(())
}
