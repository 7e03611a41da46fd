//! The strategy of an open store is changed while merges run, and the power fails (R11).
//!
//! For every ordered pair of strategies and many seeds: a small store is loaded under the one, a merge is under way, the other is set
//! (and in some worlds a third, or the first again, before the tree has its new shape), and merges bring the tree to rest. Then a crash at every
//! file operation from the switch until the merges that ran at it have ended: each must leave a store with the old strategy or the new,
//! the same records, every law kept, that comes to rest again. Ten seeds a pair see every operation under each loss profile twice.
//!
//! Most of these crashes leave the same: images are compared by their hash, and checked once for each expectation. And what a store does after its recovery
//! depends on what it has recovered, so of the images of a world that recover to the same tree under the same strategy one is
//! brought to rest, verified and closed; of all of them the strategy and every record are checked.

use std::collections::BTreeSet;
use std::sync::Arc;

use siltstone::Db;
use siltstone::io::Rng;
use siltstone::io::sim::{CrashImage, CrashImages, Profile};
use siltstone::options::{Compression, LogOptions};
use siltstone::schedule::Constraint;
use siltstone::{KeyspaceOptions, Options};

use super::Budget;
use crate::config::{Config, least, released_progressively, strategies};
use crate::counters::{Counters, Rare};
use crate::ops::{Ack, Acks, Op, Step, Value, index, number};
use crate::pool::{Pool, Report};
use crate::store::{Check, Expect, Machine, Violation, broken, check_recovered, read_all};
use crate::world::World;

/// Keys of a world.
const KEYS: u64 = 60;
/// Steps of lanes after which a store that has not come to rest never does.
const MOST_STEPS: u64 = 60_000;

/// A switch: what was set, and between which file operations.
struct Switch {
    start: u64,
    end: u64,
    before: String,
    after: String,
}

/// How much of it is done.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Worlds for each ordered pair.
    pub seeds: u64,
    /// A crash at every so many file operations of the window, 1 for each; which of them, the seed decides.
    pub stride: u64,
}

/// Runs worlds for each ordered pair, with crashes in each.
pub fn run(budget: &Budget, scale: Scale, only: Option<u64>) -> Report {
    let Scale { seeds, stride } = scale;
    let pool = budget.pool("switch");
    let names = strategies();
    let n = names.len() as u64;
    let pairs = n * (n - 1);
    let tasks = if only.is_some() { 1 } else { pairs * seeds };
    let task_of = |task| only.unwrap_or(task);
    let replay =
        |task| format!("switch --base {} --seeds {seeds} --stride {stride} --only {}", budget.base, task_of(task));
    pool.run(tasks, replay, |task| {
        let task = task_of(task);
        let (from, to) = (task % pairs / (n - 1), task % pairs % (n - 1));
        let to = if to >= from { to + 1 } else { to };
        let released = task / pairs % 2 == 1 || task.is_multiple_of(3);
        let name = |n: u64| {
            let name = &names[usize::try_from(n).unwrap_or(0)];
            if released { released_progressively(name) } else { name.clone() }
        };
        let counters = Arc::new(Counters::default());
        // Each profile in turn, so that ten seeds see all of them twice.
        let profile = Profile::ALL[usize::try_from((task / pairs + task) % 5).unwrap_or(0)];
        let crashes = Crashes { profile, stride };
        let outcome = run_world(&name(from), &name(to), budget.seed(task), crashes, &pool, &counters);
        pool.counters().merge(&counters);
        pool.count("worlds", 1);
        outcome.map_err(|violation| Violation(format!("{} -> {}: {}", name(from), name(to), violation.0)))
    });
    pool.count("pairs", if only.is_some() { 1 } else { pairs });
    pool.finish()
}

/// The crashes of a world.
#[derive(Clone, Copy)]
struct Crashes {
    profile: Profile,
    stride: u64,
}

fn config(from: &str, seed: u64) -> Config {
    let mut rng = Rng::new(seed).split("switch");
    let keyspace = KeyspaceOptions {
        memtable_bytes: 1024,
        strategy: from.to_owned(),
        size_ratio: number(rng.between(2, 3)),
        file_bytes: [512, 1024, 2048][index(&mut rng, 3)],
        block_bytes: 256,
        filter_bits_per_key: if rng.one_in(2) { 0.0 } else { 10.0 },
        compression: vec![Compression::None],
        ..KeyspaceOptions::default()
    };
    // Some writers wait at the old limit when the new one comes.
    let tight = if rng.one_in(3) { least(&keyspace, Constraint::default()) } else { 0 };
    let keyspace = KeyspaceOptions { max_runs: tight, ..keyspace };
    let options = Options {
        write_memory_bytes: 16 << 10,
        cache_bytes: 16 << 10,
        max_open_files: 64,
        compaction_threads: number(rng.between(1, 3)),
        log: LogOptions { segment_bytes: 8192, max_bytes: 32 << 10 },
        keyspace,
        ..Options::default()
    };
    let keys = (0..KEYS).map(|n| format!("key-{n:03}").into_bytes()).collect();
    Config { seed, options, keys, acks: Acks::Logged, may_lose: false, value_limit: 100, steps_between: 4 }
}

/// A write with background work behind it.
fn write(rng: &mut Rng, id: u64) -> Step {
    let key = number(rng.below(KEYS));
    let op = match rng.below(5) {
        0 => Op::Delete { keyspace: 0, key, ack: Ack::Buffered },
        _ => Op::Put { keyspace: 0, key, value: Value { id, len: number(20 + rng.below(100)) }, ack: Ack::Buffered },
    };
    Step { op, lane_steps: number(rng.below(4)), seed: id }
}

fn run_world(from: &str, to: &str, seed: u64, crashes: Crashes, pool: &Pool, counters: &Arc<Counters>) -> Check {
    let mut rng = Rng::new(seed);
    let mut world = World::create(config(from, seed), counters, false)?;
    let mut id = 0;
    let mut write_some = |world: &mut World, rng: &mut Rng, n: u64| -> Check {
        for _ in 0..n {
            id += 1;
            world.apply(&write(rng, id))?;
        }
        Ok(())
    };
    let loaded = rng.between(30, 110);
    write_some(&mut world, &mut rng, loaded)?;
    if rng.one_in(3) {
        world.apply(&Step::quiet(Op::TakeSnapshot, 1))?;
    }
    // Until a merge is under way; strategies that merge rarely may have none.
    let default = world.live[0].handle.id();
    for _ in 0..40 {
        if world.probe.is_merging(default) {
            break;
        }
        write_some(&mut world, &mut rng, 3)?;
    }
    pool.count("while_merging", u64::from(world.probe.is_merging(default)));
    // All that was written is durable: whatever the crash, nothing may be missing.
    world.apply(&Step::quiet(Op::Sync, 2))?;
    let jobs_before = jobs(world.db());
    let (running, ended_before) = (world.probe.merges(default), world.probe.compactions());
    world.machine.fs.record_ops(true);
    let mut switches = Vec::new();
    let names = strategies();
    let at =
        |name: &str| names.iter().position(|other| other == name).and_then(|at| u8::try_from(at).ok()).unwrap_or(0);
    let mut set = |world: &mut World, strategy: u8, back: bool, rng: &mut Rng| -> Check {
        let start = world.machine.fs.op_count();
        let before = world.live[0].options.strategy.clone();
        world.set_strategy(0, strategy, back, rng.next_u64())?;
        let after = world.live[0].options.strategy.clone();
        switches.push(Switch { start, end: world.machine.fs.op_count(), before, after });
        Ok(())
    };
    set(&mut world, at(to), false, &mut rng)?;
    if rng.one_in(4) {
        // Midway back, or on to another, and perhaps to and fro.
        for _ in 0..rng.between(1, 3) {
            for _ in 0..rng.below(40) {
                world.machine.executor.step_random();
            }
            let any = rng.next_u64().to_le_bytes()[0];
            let back = rng.one_in(2);
            set(&mut world, any, back, &mut rng)?;
        }
    }
    // As many jobs have ended as ran, and one at least.
    let enough = ended_before + running.max(1);
    for _ in 0..MOST_STEPS {
        if world.probe.compactions() >= enough || !world.machine.executor.step_random() {
            break;
        }
    }
    let window_end = world.machine.fs.op_count();
    come_to_rest(&world.machine)?;
    world.rest()?;
    let files = world.db().stats().files;
    bounded(world.db(), jobs_before, files)?;
    world.check_all(rng.next_u64())?;
    world.apply(&Step::quiet(Op::Verify, 3))?;

    let context = Context { world: &world, switches: &switches, counters, pool };
    let Crashes { profile, stride } = crashes;
    let mut seen = BTreeSet::new();
    let mut recovered = BTreeSet::new();
    let mut images = CrashImages::new(&world.machine.fs, profile, seed);
    let mut skip = switches[0].start + seed % stride;
    while skip <= window_end {
        // `nth` makes no image of what it skips.
        let at = if seen.is_empty() { skip } else { stride - 1 };
        let Some(image) = images.nth(usize::try_from(at).unwrap_or(0)) else { break };
        skip += stride;
        pool.count("crash_points", 1);
        let allowed = context.allowed(image.ops);
        if !seen.insert((image.hash, allowed.clone())) {
            continue;
        }
        pool.count("images", 1);
        let at = image.ops;
        context.check(image, &allowed, seed, &mut recovered).map_err(|violation| {
            Violation(format!("{profile:?} after {at} operations of {window_end}: {}", violation.0))
        })?;
    }
    pool.count("recovered_states", recovered.len() as u64);
    Ok(())
}

/// Merges and moves so far.
fn jobs(db: &Db) -> u64 {
    let stats = db.stats();
    stats.compactions + stats.trivial_moves
}

/// Compaction that goes on for ever would show as many more jobs than there are files to put in order.
fn bounded(db: &Db, before: u64, files: u64) -> Check {
    let (done, most) = (jobs(db) - before, 100 + 12 * files);
    if done > most { broken(format!("{done} jobs after a switch, for {files} files")) } else { Ok(()) }
}

/// Runs the lanes until none has anything to do.
fn come_to_rest(machine: &Machine) -> Check {
    for _ in 0..MOST_STEPS {
        if !machine.executor.step_random() {
            return Ok(());
        }
    }
    broken(format!("not at rest after {MOST_STEPS} steps: compaction does not converge"))
}

struct Context<'a> {
    world: &'a World,
    switches: &'a [Switch],
    counters: &'a Arc<Counters>,
    pool: &'a Pool,
}

impl Context<'_> {
    /// The strategies that a store may have after a crash behind `at` operations.
    fn allowed(&self, at: u64) -> Vec<&str> {
        let done = self.switches.iter().rev().find(|switch| switch.end <= at).map(|switch| &switch.after[..]);
        let first = &self.switches[0].before[..];
        let during = self.switches.iter().find(|switch| switch.start < at && at < switch.end);
        if during.is_some() {
            self.counters.reach(Rare::CrashInSwitch);
            self.pool.count("crashes_in_switch", 1);
        }
        std::iter::once(done.unwrap_or(first)).chain(during.map(|switch| &switch.after[..])).collect()
    }

    /// `recovered` holds what was recovered and brought to rest in this world before.
    fn check(&self, image: CrashImage, allowed: &[&str], seed: u64, recovered: &mut BTreeSet<String>) -> Check {
        let machine = Machine::with_disk(image.fs, seed);
        let db = machine
            .open(self.world.options(), seed, None)
            .map_err(|error| Violation(format!("open after the crash: {error:?}")))?;
        let found = db.default_keyspace().options().strategy;
        if !allowed.contains(&&found[..]) {
            return broken(format!("the strategy is {found}, it should be one of {allowed:?}"));
        }
        let model = self.world.model();
        let allowed = model.last()..=model.last();
        let expect = Expect { allowed, keyspaces: vec![self.world.keyspaces()], flushed: None };
        let before = check_recovered(&db, model, &expect)?.contents;
        if !recovered.insert(state(&machine, &db, &found)) {
            return Ok(());
        }
        let jobs_before = jobs(&db);
        come_to_rest(&machine)?;
        db.wait_idle().map_err(|error| Violation(format!("after the crash: {error:?}")))?;
        let stats = db.stats();
        bounded(&db, jobs_before, stats.files)?;
        if read_all(&db, model)? != before {
            return broken("merges after the crash change what the store holds");
        }
        let report = db.verify().map_err(|error| Violation(format!("verify: {error:?}")))?;
        if !report.damage.is_empty() {
            return broken(format!("verify finds damage: {:?}", report.damage));
        }
        db.close().map_err(|error| Violation(format!("close: {error:?}")))
    }
}

/// What a recovered store goes on from: its strategy, the shape of its tree, its tables, what was replayed.
fn state(machine: &Machine, db: &Db, strategy: &str) -> String {
    let levels: Vec<_> = db.default_keyspace().stats().levels.iter().map(|l| (l.runs, l.files, l.bytes)).collect();
    let tables = machine.fs.files().into_iter().filter(|(path, _)| path.extension().is_some_and(|is| is == "sst"));
    let tables: Vec<_> = tables.map(|(path, bytes)| (path.file_name().map(ToOwned::to_owned), bytes)).collect();
    format!("{strategy} {levels:?} {tables:?} {}", db.stats().replayed_records)
}
