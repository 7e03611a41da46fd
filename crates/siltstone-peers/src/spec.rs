//! Runs a workload spec, the same one that `siltstone run` runs, against one engine, in this process, and measures.
//!
//! The operations come from the laboratory's generator and follow from the spec alone, so every engine gets the same ones. Making one up
//! costs more than some engines take to do it (a Zipf draw is an exponential and a logarithm), so the clock is read before and after an
//! operation, and what lies between two operations counts as idle.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use siltstone_lab::workload::{ArrivalSpec, Durable, Generator, Group, Op, OpKind, PhaseSpec, Spec};

use crate::drive::{Drive, nanos};
use crate::engines::Engine;
use crate::row::{Fingerprint, Meter, Row, Work};
use crate::store::{Budget, Sink, Store};

/// What one process is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// What the engine may use.
    pub(crate) budget: Budget,
    /// The spec, in full.
    pub(crate) spec: String,
}

/// Checks that every engine can be told to do what `spec` says, and that what it does then follows from the spec alone.
///
/// # Errors
/// The first thing that the engines do not have in common, or that hangs on their speed.
pub(crate) fn check(spec: &Spec) -> Result<()> {
    ensure!(spec.indexes.is_empty(), "{}: it has indexes, and not every engine has atomic batches here", spec.name);
    let keyspaces = spec.keyspace_names();
    ensure!(
        matches!(keyspaces[..], ["" | "default"]),
        "{}: it has {} keyspaces, and not every engine has more than one",
        spec.name,
        keyspaces.len()
    );
    for phase in &spec.phases {
        let wrong = why_not(phase);
        ensure!(wrong.is_none(), "{}, phase {}: {}", spec.name, phase.name, wrong.unwrap_or_default());
    }
    Ok(())
}

/// Why a phase cannot be compared.
fn why_not(phase: &PhaseSpec) -> Option<String> {
    let Group { arrivals, think, batch, ingest, durability, mix, .. } = &phase.own;
    if phase.clients() != 1 {
        return Some("it has more than one client: what reads find would hang on which of them is faster".to_owned());
    }
    if phase.duration.is_some() {
        return Some("it ends by time: a faster engine would do more, and not the same, operations".to_owned());
    }
    if *arrivals != ArrivalSpec::Closed || think.is_some() {
        return Some("it is no closed loop; `siltstone-peers steady` compares open ones".to_owned());
    }
    if *batch != 1 || *ingest {
        return Some("it writes in batches or files, which not every engine has".to_owned());
    }
    if *durability != Durable::Buffered {
        return Some("its durability is its own; `--sync` makes every write of every engine durable".to_owned());
    }
    let op = mix.iter().find(|op| !can(op.kind))?;
    Some(format!("`{}` is not what every engine can do", op.kind.name()))
}

/// Whether the engines can be told to do it.
fn can(kind: OpKind) -> bool {
    use OpKind::{Delete, DeleteMissing, Get, GetMissing, Insert, MultiGet, ReadModifyWrite, Scan, Update, Upsert};
    matches!(
        kind,
        Insert | Upsert | Update | ReadModifyWrite | Delete | DeleteMissing | Get | GetMissing | MultiGet | Scan
    )
}

/// What the rows of a phase are called: a phase called `run`, or as the spec, is what the spec is about.
fn label(spec: &Spec, phase: &PhaseSpec) -> String {
    if phase.name == "run" || phase.name == spec.name {
        spec.name.clone()
    } else {
        format!("{}-{}", spec.name, phase.name)
    }
}

/// Runs `job` with engine `S`, which is called `engine`, in the folder `dir`. Leaves the store there.
///
/// # Errors
/// What the engine says, and answers that cannot be right.
pub(crate) fn run<S: Store>(engine: Engine, job: &Job, dir: &Path) -> Result<Vec<Row>> {
    let spec = Spec::parse(&job.spec, "the workload")?;
    check(&spec)?;
    let store = S::open(dir, &job.budget)?;
    let mut generator = Generator::new(&spec, 0)?;
    let mut ledger = Ledger::default();
    let mut rows = Vec::new();
    for (n, phase) in spec.phases.iter().enumerate() {
        if n > 0 {
            generator.next_phase();
        }
        let meter = Meter::start()?;
        ledger.put_bytes = 0;
        let mut sink = Sink::new();
        let drive = perform(&store, &mut generator, &mut sink, &mut ledger)
            .with_context(|| format!("{}, {}", engine.name(), label(&spec, phase)))?;
        let ended = Instant::now();
        let writes = phase.own.mix.iter().any(|op| op.kind.writes());
        // The last one is settled as well: `siltstone run` does that at the end.
        let settles = phase.settle || n + 1 == spec.phases.len();
        let settled = if settles { store.settle()? } else { ended };
        let work = Work {
            engine,
            workload: label(&spec, phase),
            writes: writes && settles,
            put_bytes: ledger.put_bytes,
            live_bytes: ledger.live_bytes(),
        };
        let row = meter.row(work, &drive, [ended, settled], &store, dir)?;
        if !phase.warm_up {
            rows.push(Row { fingerprint: Some(Fingerprint::new(drive.found, &sink)), ..row });
        }
    }
    let contents = Fingerprint::of_contents(&store)?;
    ensure!(
        contents.found == ledger.records,
        "{}, {}: {} records are there, and must be {}",
        engine.name(),
        spec.name,
        contents.found,
        ledger.records
    );
    if let Some(last) = rows.last_mut() {
        last.note_contents(contents, true);
    }
    Ok(rows)
}

/// What must be in the store.
#[derive(Default)]
struct Ledger {
    records: u64,
    /// Of keys and values put in this phase.
    put_bytes: u64,
    /// Of each record, while all that were put are equally long.
    record_bytes: Option<u64>,
    is_uneven: bool,
}

impl Ledger {
    fn put(&mut self, op: &Op<'_>) {
        let bytes = crate::count(op.key.len() + op.value.len());
        self.put_bytes += bytes;
        self.is_uneven |= *self.record_bytes.get_or_insert(bytes) != bytes;
        self.records += u64::from(op.kind == OpKind::Insert);
    }

    fn live_bytes(&self) -> Option<u64> {
        self.record_bytes.filter(|_| !self.is_uneven).map(|bytes| bytes * self.records)
    }
}

/// Performs the operations of the phase that `generator` is at.
fn perform<S: Store>(store: &S, generator: &mut Generator, sink: &mut Sink, ledger: &mut Ledger) -> Result<Drive> {
    let mut drive = Drive::new();
    let mut busy_ns = 0;
    let start = Instant::now();
    while let Some(op) = generator.next()? {
        let began_ns = nanos(start.elapsed());
        let found = perform_one(store, &op, sink)?;
        let now_ns = nanos(start.elapsed());
        drive.ended(now_ns - began_ns, now_ns, found);
        drive.elapsed = Duration::from_nanos(now_ns);
        busy_ns += now_ns - began_ns;
        note(ledger, &op, found)?;
    }
    drive.idle = drive.elapsed - Duration::from_nanos(busy_ns);
    Ok(drive)
}

/// Does to a store what `siltstone run` does.
#[inline]
fn perform_one<S: Store>(store: &S, op: &Op<'_>, sink: &mut Sink) -> Result<u64> {
    Ok(match op.kind {
        OpKind::Insert | OpKind::Upsert | OpKind::Update => store.put(op.key, op.value).map(|()| 0)?,
        OpKind::ReadModifyWrite => {
            let found = store.get(op.key, sink)?;
            store.put(op.key, op.value)?;
            u64::from(found)
        }
        OpKind::Delete | OpKind::DeleteMissing => store.delete(op.key).map(|()| 0)?,
        OpKind::Get | OpKind::GetMissing => u64::from(store.get(op.key, sink)?),
        OpKind::MultiGet => {
            let mut found = 0;
            for key in op.keys() {
                found += u64::from(store.get(key, sink)?);
            }
            found
        }
        OpKind::Scan if op.count == 0 => 0,
        OpKind::Scan => {
            let nexts = usize::try_from(op.count - 1).context("records of a scan")?;
            crate::count(store.scan(op.key, nexts, sink)?)
        }
        other => bail!("`{}` is not what every engine can do", other.name()),
    })
}

/// Keeps book of an operation, and checks that it found what it must have found.
fn note(ledger: &mut Ledger, op: &Op<'_>, found: u64) -> Result<()> {
    let expected = match op.kind {
        OpKind::Get | OpKind::ReadModifyWrite => 1,
        OpKind::MultiGet => u64::from(op.count),
        // It begins at a key that is there, and may come to the end.
        OpKind::Scan => found.clamp(u64::from(op.count.min(1)), u64::from(op.count)),
        _ => 0,
    };
    ensure!(
        found == expected,
        "`{}` of {} found {found} records, and must find {expected}",
        op.kind.name(),
        op.key.escape_ascii()
    );
    if op.kind.has_value() {
        ledger.put(op);
    }
    if op.kind == OpKind::Delete {
        ledger.records -= 1;
    }
    Ok(())
}

#[cfg(all(test, feature = "siltstone"))]
mod tests;
