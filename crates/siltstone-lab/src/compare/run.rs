//! One strategy as a trial of a run: load, update, delete, settle, read, scan.

use std::cell::RefCell;

use siltstone::Durability;
use siltstone::io::Rng;

use super::survey::Input;
use super::{Comparison, Observer, Plan, Records, Row, Source, Step};
use crate::load::DiskWorld;
use crate::metrics::Latencies;
use crate::num::{float, per_second};
use crate::run::{Crew, Operations, PhaseRow, Progress, Stage, Trial};
use crate::strategy::Chosen;
use crate::workload::{ArrivalSpec, Op, OpKind, Permutation};

/// Runs one strategy in a folder of its own, which is removed at the end, and upon errors.
pub(super) fn run_strategy(
    source: &dyn Source,
    input: &Input,
    plan: &Plan,
    comparison: &Comparison,
    strategy: &Chosen,
    observer: &mut dyn Observer,
) -> anyhow::Result<Row> {
    let options = comparison.scale.apply(&plan.options, &strategy.option);
    let stages = [
        stage("load", input.survey.records, false),
        stage("update", comparison.updates, false),
        stage("delete", comparison.deletes, true),
        stage("read", comparison.reads, false),
        stage("read-missing", comparison.missing_reads, false),
    ];
    let observer = RefCell::new(observer);
    let watch = |progress: Progress<'_>| {
        let total = stages.iter().find(|stage| stage.name == progress.phase).and_then(|stage| stage.operations);
        let step = Step { strategy: &strategy.name, phase: progress.phase, done: progress.operations, total };
        observer.borrow_mut().step(step)
    };
    let world = DiskWorld::new(Some(&plan.dir))?;
    let trial = Trial {
        world: &world,
        is_sim: false,
        options: &options,
        keyspaces: &[""],
        stages: &stages,
        is_checked: false,
        seed: plan.seed,
        recorder: None,
        watch: &watch,
    };
    let (mut writes, mut reads) = (Latencies::new(), Latencies::new());
    let row = trial.run(
        &mut |_| {
            let rng = Rng::new(plan.seed).split("operations");
            let order = Permutation::new(input.keys.len(), &mut rng.split("deletes"));
            let records = source.open()?;
            Ok(Box::new(Stream {
                input,
                records,
                rng,
                order,
                missing: Vec::new(),
                at: 0,
                done: 0,
                sizes: sizes(&stages),
            }))
        },
        &mut std::io::sink(),
        &mut |stage, tally| {
            let into = if stage.name == "read" { &mut reads } else { &mut writes };
            let kinds = [OpKind::Insert, OpKind::Update, OpKind::Delete, OpKind::Get];
            kinds.iter().filter_map(|kind| tally.latencies(*kind)).for_each(|latencies| into.merge(latencies));
        },
    )?;
    let phase = |name: &str| row.phases.iter().find(|phase| phase.name == name).cloned().unwrap_or_default();
    let per_s = |name: &str| phase(name).ops_per_s;
    let load = phase("load");
    Ok(Row {
        strategy: strategy.name.clone(),
        write_amplification: row.write_amplification,
        log_write_amplification: row.log_write_amplification,
        read_amplification: row.read_amplification,
        disk_reads_per_get: row.disk_reads_per_get,
        runs_probed_per_get: row.runs_probed_per_get,
        space_amplification: row.space_amplification,
        load_ops_per_s: load.ops_per_s,
        load_mb_per_s: per_second(input.survey.bytes(), load.elapsed_s) / 1e6,
        load_s: load.elapsed_s,
        update_ops_per_s: per_s("update"),
        delete_ops_per_s: per_s("delete"),
        settle_s: row.settle_s,
        read_ops_per_s: per_s("read"),
        missing_read_ops_per_s: per_s("read-missing"),
        scan_ops_per_s: float(row.live_records) / row.scan_s.max(1e-9),
        write_latency: writes.summary(),
        read_latency: reads.summary(),
        runs: row.runs,
        files: row.files,
        disk_bytes: row.disk_bytes,
        live_records: row.live_records,
        live_bytes: row.live_bytes,
        flushes: row.flushes,
        compactions: row.compactions,
        trivial_moves: row.trivial_moves,
        compaction_bytes_read: row.compaction_bytes_read,
        compaction_bytes_written: row.compaction_bytes_written,
        stall_s: row.stall_s,
        cpu_s: row.cpu_s.unwrap_or_default(),
        reads_found: found(&phase("read")) + found(&phase("read-missing")),
        tree: row.levels.into_iter().map(|level| level.runs).collect(),
        fingerprint: u64::from_str_radix(&row.fingerprint, 16)?,
    })
}

fn found(phase: &PhaseRow) -> u64 {
    phase.kinds.values().map(|kind| kind.found).sum()
}

fn stage(name: &str, operations: u64, settle_after: bool) -> Stage {
    let crew = Crew {
        clients: 1,
        arrivals: ArrivalSpec::Closed,
        think_ns: 0,
        batch: 1,
        ingest: false,
        durability: Durability::Buffered,
    };
    Stage {
        name: name.to_owned(),
        operations: Some(operations),
        duration_ns: None,
        crews: vec![crew],
        is_warm_up: false,
        settle_after,
    }
}

fn sizes(stages: &[Stage]) -> Vec<u64> {
    stages.iter().map(|stage| stage.operations.unwrap_or(0)).collect()
}

/// The operations of a comparison: the same ones, in the same order, for every strategy.
struct Stream<'a> {
    input: &'a Input,
    records: Box<dyn Records + 'a>,
    rng: Rng,
    /// Of deletes. They take the first of it, reads of existing keys what follows.
    order: Permutation,
    missing: Vec<u8>,
    /// The phase, and what of it is done.
    at: usize,
    done: u64,
    sizes: Vec<u64>,
}

impl Operations for Stream<'_> {
    fn next(&mut self) -> anyhow::Result<Option<Op<'_>>> {
        if self.done == self.sizes[self.at] {
            return Ok(None);
        }
        self.done += 1;
        let (input, keys) = (self.input, self.input.keys.len());
        if self.at == 0 {
            return Ok(self.records.next()?.map(|(key, value)| Op::new(OpKind::Insert, key, value)));
        }
        if self.at == 2 {
            return Ok(Some(Op::new(OpKind::Delete, input.keys.get(self.order.apply(self.done - 1)), &[])));
        }
        if self.at == 3 {
            let deleted = self.sizes[2];
            let place = self.order.apply(deleted + self.rng.below(keys - deleted));
            return Ok(Some(Op::new(OpKind::Get, input.keys.get(place), &[])));
        }
        let key = input.keys.get(self.rng.below(keys));
        Ok(Some(match self.at {
            1 => Op::new(OpKind::Update, key, input.values.get(self.rng.below(input.values.len()))),
            _ => {
                // The successor of an existing key: among the keys that exist, so no file's key range excludes it.
                self.missing.clear();
                self.missing.extend_from_slice(&key[..key.len().min(siltstone::key::MAX_KEY_BYTES - 1)]);
                self.missing.push(0);
                Op::new(OpKind::GetMissing, &self.missing, &[])
            }
        }))
    }

    fn next_phase(&mut self) {
        (self.at, self.done) = (self.at + 1, 0);
    }
}
