//! One fault at every call (R6-R8): EIO, a full disk, a failed sync with each of its outcomes, once or for good.
//!
//! Each workload runs once undisturbed to count its calls of each kind; then again for every call and every way in which it
//! can fail. While the fault lasts, an answer is right or an error. After it is gone the store must take writes again, at once
//! or (when it says `Poisoned`) after a reopen, must still be in a state that existed, and must survive a power loss.

use std::sync::Arc;

use siltstone::ErrorKind;
use siltstone::io::sim::{CallKind, Effect, Errno, Fault};

use super::Budget;
use crate::config::Config;
use crate::counters::{Counters, Rare};
use crate::ops::{Ack, Acks, Generator, Loss, Op, Step, Value};
use crate::pool::{Pool, Report};
use crate::store::{Check, Violation, broken};
use crate::world::World;

/// Workloads, each with options of its own.
const WORKLOADS: u64 = 24;
/// Operations of a workload.
const OPS: usize = 40;
/// A full disk must be forgotten this soon after space returns.
const RESUME_NS: u64 = 1_000_000_000;

/// A way to fail.
#[derive(Clone, Copy, Debug)]
struct Way {
    errno: Errno,
    effect: Effect,
    sticky: bool,
}

const ONCE: bool = false;
const STICKY: bool = true;

/// How calls of this kind fail.
fn ways(kind: CallKind) -> Vec<Way> {
    use Effect::{Full, Nothing, Partial, Revert};
    use Errno::{Io, NoSpace, TooManyFiles};
    let ways: &[(Errno, Effect, bool)] = match kind {
        CallKind::Append => &[
            (Io, Nothing, ONCE),
            (Io, Partial, STICKY),
            (NoSpace, Nothing, STICKY),
            (NoSpace, Partial, ONCE),
            (NoSpace, Partial, STICKY),
        ],
        CallKind::WriteSlot => &[
            (Io, Nothing, ONCE),
            (Io, Partial, ONCE),
            (Io, Full, ONCE),
            (Io, Partial, STICKY),
            (NoSpace, Nothing, STICKY),
            (NoSpace, Partial, ONCE),
            (NoSpace, Full, ONCE),
        ],
        CallKind::Sync => &[
            (Io, Nothing, ONCE),
            (Io, Full, ONCE),
            (Io, Revert, ONCE),
            (NoSpace, Nothing, ONCE),
            (Io, Nothing, STICKY),
        ],
        CallKind::Create | CallKind::CreateLog | CallKind::CreateDir | CallKind::Link | CallKind::OpenSlots => {
            &[(Io, Nothing, ONCE), (Io, Full, ONCE), (NoSpace, Nothing, ONCE), (NoSpace, Nothing, STICKY)]
        }
        CallKind::Rename | CallKind::Remove | CallKind::RemoveDir | CallKind::SyncDir => {
            &[(Io, Nothing, ONCE), (Io, Full, ONCE), (Io, Nothing, STICKY)]
        }
        CallKind::Open => &[(Io, Nothing, ONCE), (TooManyFiles, Nothing, STICKY)],
        _ => &[(Io, Nothing, ONCE), (Io, Nothing, STICKY)],
    };
    ways.iter().map(|&(errno, effect, sticky)| Way { errno, effect, sticky }).collect()
}

/// The workload with this number.
fn workload(base: u64, n: u64) -> (Config, Vec<Step>) {
    let mut config = Config::from_seed(base ^ 0xfa17 ^ (n << 20));
    config.acks = Acks::Logged;
    config.keys.retain(|key| key.len() < 100);
    config.keys.truncate(30);
    config.value_limit = 1000;
    config.options.keyspace.memtable_bytes = 1024;
    let mut steps = Generator::steps(&config, OPS);
    steps.retain(|step| !matches!(step.op, Op::Crash { .. } | Op::ReopenReadOnly | Op::Verify));
    // Something of everything that writes, whatever the draw has left out.
    let extra = [
        Op::Flush(None),
        Op::Reopen { seed: n },
        Op::Compact { keyspace: 0, from: None, to: None, cancelled: false },
        Op::SetStrategy { keyspace: 0, strategy: u8::try_from(n % 251).unwrap_or(0), back: false },
        Op::Sync,
        Op::CreateKeyspace { name: 1, seed: n },
        Op::Put { keyspace: 1, key: 1, value: Value { id: 9_100_000, len: 50 }, ack: Ack::Sync },
        Op::Ingest { keyspace: 1, first: 2, step: 1, count: 9, value: Value { id: 9_200_000, len: 50 } },
        Op::Checkpoint,
        Op::DropKeyspace { keyspace: 1 },
        Op::CheckAll,
    ];
    let parts = extra.len() + 1;
    for (i, op) in extra.into_iter().enumerate() {
        let at = (i + 1) * steps.len() / parts;
        steps.insert(at, Step { op, lane_steps: 3, seed: i as u64 });
    }
    (config, steps)
}

/// Runs every fault of every workload; `only` limits it to one workload.
pub fn run(budget: &Budget, only: Option<u64>) -> Report {
    let pool = budget.pool("faults");
    let mut tasks: Vec<(u64, CallKind, u64, Way)> = Vec::new();
    for n in (0..WORKLOADS).filter(|n| only.is_none_or(|only| only == *n)) {
        match crate::pool::guarded(|| calls(budget.base, n)) {
            Ok(calls) => {
                for (kind, times) in calls {
                    // Reads are many and alike: a share of them.
                    let by = if kind == CallKind::Read { times.div_ceil(60).max(1) } else { 1 };
                    for at in (1..=times).step_by(usize::try_from(by).unwrap_or(1)) {
                        tasks.extend(ways(kind).into_iter().map(|way| (n, kind, at, way)));
                    }
                }
                pool.count("workloads", 1);
            }
            Err(violation) => pool.fail(&format!("without a fault: {}", violation.0), &format!("faults --only {n}")),
        }
    }
    let task_of = |task: u64| tasks[usize::try_from(task).unwrap_or(0)];
    // Spread over the list, so that a short budget sees all kinds.
    let total = tasks.len() as u64;
    let stride = (0..).map(|i| 7919 + i).find(|stride| gcd(*stride, total.max(1)) == 1).unwrap_or(1);
    let order = |task: u64| task * stride % total.max(1);
    let replay = |task| {
        let (n, kind, at, way) = task_of(order(task));
        format!("faults --base {} --only {n}   # {kind:?} call {at} {way:?}", budget.base)
    };
    pool.run(total, replay, |task| {
        let (n, kind, at, way) = task_of(order(task));
        let counters = Arc::new(Counters::default());
        let outcome = run_one(budget.base, n, kind, at, way, &pool, &counters);
        pool.counters().merge(&counters);
        pool.count("runs", 1);
        outcome.map_err(|v| Violation(format!("workload {n}, {kind:?} call {at} {way:?}: {}", v.0)))
    });
    pool.finish()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// How often each kind of call is made without faults.
fn calls(base: u64, n: u64) -> Check<Vec<(CallKind, u64)>> {
    let (config, steps) = workload(base, n);
    let mut world = World::create(config, &Arc::default(), false)?;
    for step in &steps {
        world.apply(step)?;
    }
    let fs = &world.machine.fs;
    Ok(CallKind::ALL.iter().map(|kind| (*kind, fs.calls_of(*kind))).collect())
}

fn run_one(base: u64, n: u64, kind: CallKind, at: u64, way: Way, pool: &Pool, counters: &Arc<Counters>) -> Check {
    let (config, steps) = workload(base, n);
    let mut world = World::without_store(config, counters, false);
    world.tolerant = true;
    world.reverts = way.effect == Effect::Revert;
    let mut fault = Fault::nth(at, way.errno).of(kind).effect(way.effect);
    if way.sticky {
        fault = fault.sticky();
    }
    world.machine.fs.set_fault(fault);
    world.open()?;
    for step in &steps {
        world.apply(step)?;
    }
    if world.machine.fs.faults_hit() == 0 {
        pool.count("not_hit", 1);
    } else {
        pool.count("hit", 1);
    }
    world.machine.fs.clear_faults();
    world.messy = true;
    after(&mut world, kind, way, pool).map_err(|v| Violation(format!("after the fault: {}", v.0)))
}

/// The disk is well again.
fn after(world: &mut World, kind: CallKind, way: Way, pool: &Pool) -> Check {
    if !world.is_open() {
        world.recover(Loss::Kill)?;
        if !world.is_open() {
            return broken("the store does not open");
        }
    }
    let mut outcome = write_within(world, RESUME_NS)?;
    if outcome.is_ok() {
        // Background work that was put off is done now, and may find that it cannot trust the disk any more.
        world.machine.executor.run_for(RESUME_NS);
        world.last_error = None;
        world.apply(&Step::quiet(Op::WaitIdle, 7))?;
        if world.last_error == Some(ErrorKind::Poisoned) {
            outcome = Err(ErrorKind::Poisoned);
        }
    }
    // What a poisoned store promises is less, but a full disk alone must not poison one, not even until the next reopen.
    let may_poison =
        way.errno != Errno::NoSpace || matches!(kind, CallKind::Sync | CallKind::SyncDir | CallKind::WriteSlot);
    if !may_poison && world.counters.reached(Rare::Poisoned) {
        return broken("a full disk has poisoned the store");
    }
    if let Err(kind_of) = outcome {
        if kind_of != ErrorKind::Poisoned {
            return broken(format!("writes still fail a second later: {kind_of:?}"));
        }
        pool.count("poisoned", 1);
        world.counters.reach(Rare::Poisoned);
        // Reads go on in a poisoned store.
        world.tolerant = false;
        world.apply(&Step::quiet(Op::CheckAll, 2))?;
        world.tolerant = true;
        world.apply(&Step::quiet(Op::Reopen { seed: 5 }, 5))?;
        world.tolerant = false;
        if !world.is_open() {
            return broken("a poisoned store does not open again");
        }
        if let Err(kind) = write_within(world, 0)? {
            return broken(format!("a reopened store takes no writes: {kind:?}"));
        }
    } else {
        pool.count("went_on", 1);
    }
    world.tolerant = false;
    world.apply(&Step::quiet(Op::CheckAll, 2))?;
    // What had failed is tried again by now.
    world.machine.executor.run_for(RESUME_NS);
    world.apply(&Step { op: Op::WaitIdle, lane_steps: 10, seed: 1 })?;
    world.apply(&Step::quiet(put(9_000_001), 1))?;
    world.apply(&Step::quiet(Op::Crash { loss: Loss::Strict, seed: 2 }, 3))?;
    world.apply(&Step::quiet(put(9_000_002), 1))?;
    world.finish()
}

fn put(id: u64) -> Op {
    Op::Put { keyspace: 0, key: 3, value: Value { id, len: 30 }, ack: Ack::Sync }
}

/// Tries to write for some virtual time; the error if it never works.
fn write_within(world: &mut World, ns: u64) -> Check<Result<(), ErrorKind>> {
    let pause = 100_000_000;
    let mut waited = 0;
    loop {
        world.tolerant = true;
        world.last_error = None;
        world.apply(&Step::quiet(put(9_000_100 + waited), waited))?;
        match world.last_error {
            None => return Ok(Ok(())),
            Some(kind) if waited >= ns || kind == ErrorKind::Poisoned => return Ok(Err(kind)),
            Some(_) => {}
        }
        world.machine.executor.run_for(pause);
        waited += pause;
    }
}
