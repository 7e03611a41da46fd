//! What a trial's executor is given: a stream of operations for each client, and how each phase does them.

use std::time::Duration;

use siltstone::Durability;

use crate::num::{count, float, floor, ratio};
use crate::workload::{ArrivalSpec, Generator, Group, Op, OpKind, PhaseSpec, Spec};

/// How a phase is done.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Stage {
    /// Its name.
    pub(crate) name: String,
    /// Operations of its own clients together; none where only time ends the phase.
    pub(crate) operations: Option<u64>,
    /// Ends the phase, if its operations have not.
    pub(crate) duration_ns: Option<u64>,
    /// Its own clients first; when they have ended, so do the others.
    pub(crate) crews: Vec<Crew>,
    /// Done, and in no figure but the windows.
    pub(crate) is_warm_up: bool,
    /// Whether the next phase waits until nothing is left to flush or merge.
    pub(crate) settle_after: bool,
}

/// Clients that do the same.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Crew {
    /// How many.
    pub(crate) clients: u64,
    /// When operations are due; the rate is that of all of them together.
    pub(crate) arrivals: ArrivalSpec,
    /// In a closed loop: how long a client waits between two operations.
    pub(crate) think_ns: u64,
    /// Writes that go together.
    pub(crate) batch: u64,
    /// Batches are sorted and brought in as files.
    pub(crate) ingest: bool,
    /// How safe writes are when they are acknowledged.
    pub(crate) durability: Durability,
}

impl Stage {
    /// Clients of all crews.
    pub(crate) fn clients(&self) -> u64 {
        self.crews.iter().map(|crew| crew.clients).sum()
    }

    /// Whether what it does follows from the workload alone, whatever the store: one client does a number of operations.
    pub(super) fn is_fixed(&self) -> bool {
        self.clients() == 1 && self.duration_ns.is_none()
    }
}

/// The phases of `spec`.
pub(super) fn stages(spec: &Spec) -> Vec<Stage> {
    let stage = |phase: &PhaseSpec| Stage {
        name: phase.name.clone(),
        operations: spec.operations(phase),
        duration_ns: phase.duration.map(nanoseconds),
        crews: phase.groups().map(crew).collect(),
        is_warm_up: phase.warm_up,
        settle_after: phase.settle,
    };
    spec.phases.iter().map(stage).collect()
}

fn crew(group: &Group) -> Crew {
    Crew {
        clients: u64::from(group.clients),
        arrivals: group.arrivals.clone(),
        think_ns: group.think.map_or(0, nanoseconds),
        batch: u64::from(group.batch),
        ingest: group.ingest,
        durability: group.durability.into(),
    }
}

/// Operations of a phase that are looked at to learn how large they are.
const SAMPLE: u64 = 10_000;

/// Bytes of keys and values that `spec` inserts, about: what the sizes of a store are scaled to.
///
/// # Errors
/// If an input file of the workload cannot be read.
pub fn load_bytes(spec: &Spec) -> anyhow::Result<u64> {
    let mut generators = Vec::new();
    for client in 0..spec.most_clients() {
        generators.push(Generator::new(spec, client)?);
    }
    let stages = stages(spec);
    let known: u64 = stages.iter().filter_map(|stage| stage.operations).sum();
    let mut all = 0.0;
    for (n, stage) in stages.iter().enumerate() {
        let (mut looked_at, mut inserted) = (0u64, 0u64);
        // The same share of every phase: else the first deletes would be of more keys than the first inserts brought.
        let of_time = SAMPLE / count(stages.len());
        let most = stage.operations.map_or(of_time, |own| own.min(floor(float(SAMPLE) * ratio(own, known)) + 1));
        let of_client = most.div_ceil(count(generators.len()).max(1));
        for generator in &mut generators {
            if n > 0 {
                generator.next_phase();
            }
            // What cannot go on for want of keys has shown enough; any other trouble the trial will meet as well.
            let mut left = of_client;
            while left > 0
                && let Ok(Some(op)) = generator.next()
            {
                (left, looked_at) = (left - 1, looked_at + 1);
                if op.kind == OpKind::Insert {
                    inserted += count(op.key.len() + op.value.len());
                }
            }
        }
        all += ratio(inserted, looked_at) * float(stage.operations.unwrap_or(looked_at));
    }
    Ok(floor(all))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The operations of one client, phase by phase.
pub(crate) trait Operations: Send {
    /// The next one of this phase; none at its end.
    ///
    /// # Errors
    /// If its input cannot be read.
    fn next(&mut self) -> anyhow::Result<Option<Op<'_>>>;

    /// Goes on to the next phase, whatever is left of this one.
    fn next_phase(&mut self);
}

impl Operations for Generator {
    fn next(&mut self) -> anyhow::Result<Option<Op<'_>>> {
        Generator::next(self)
    }

    fn next_phase(&mut self) {
        Generator::next_phase(self);
    }
}
