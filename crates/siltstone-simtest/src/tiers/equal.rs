//! The same operations under different strategies (R14): whatever compaction does, every moment of every snapshot must hold the same
//! records. The model is not asked; the worlds are compared with each other.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use siltstone::schedule::Constraint;

use super::Budget;
use crate::config::{Config, strategies};
use crate::counters::Counters;
use crate::ops::{Acks, Generator, Op, Step};
use crate::pool::Report;
use crate::store::{Check, Violation, broken, read_all};
use crate::world::World;

/// Strategies that each list runs under.
const STRATEGIES: usize = 8;
/// Operations of a list.
const OPS: usize = 160;
/// After so many operations everything is read.
const LOOK_EVERY: usize = 20;

/// Runs `lists` lists of operations.
pub fn run(budget: &Budget, lists: u64, only: Option<u64>) -> Report {
    let pool = budget.pool("equal");
    let task_of = |task| only.unwrap_or(task);
    let replay = |task| format!("equal --base {} --only {}", budget.base, task_of(task));
    pool.run(if only.is_some() { 1 } else { lists }, replay, |task| {
        let task = task_of(task);
        let counters = Arc::new(Counters::default());
        let outcome = compare(budget.seed(task), task, &counters);
        pool.counters().merge(&counters);
        pool.count("worlds", outcome?);
        pool.count("lists", 1);
        Ok(())
    });
    pool.finish()
}

/// Runs one list under several strategies; how many.
fn compare(seed: u64, list: u64, counters: &Arc<Counters>) -> Check<u64> {
    let mut config = Config::from_seed(seed);
    config.acks = Acks::Logged;
    // What is lost depends on which files there are, and so on the strategy.
    config.may_lose = false;
    config.options.keyspace.may_lose_oldest = false;
    // A limit on runs that suits one strategy is refused under another.
    (config.options.keyspace.max_runs, config.options.keyspace.constraint) = (0, Constraint::default());
    let mut steps = Generator::steps(&config, OPS);
    // What is lost by a crash may differ, and a world that sets its strategy itself is not under the one that we compare.
    steps.retain(|step| !matches!(step.op, Op::Crash { .. } | Op::SetStrategy { .. } | Op::Verify | Op::CheckAll));
    let names = strategies();
    let offset = usize::try_from(list).unwrap_or(0) * STRATEGIES;
    let mut first: Option<(String, Vec<u64>)> = None;
    let mut worlds = 0;
    for n in 0..STRATEGIES.min(names.len()) {
        let name = &names[(offset + n) % names.len()];
        config.options.keyspace.strategy.clone_from(name);
        let seen = run_list(&config, &steps, counters).map_err(|v| Violation(format!("under {name}: {}", v.0)))?;
        worlds += 1;
        match &first {
            None => first = Some((name.clone(), seen)),
            Some((other, expected)) if *expected != seen => {
                let at = expected.iter().zip(&seen).position(|(a, b)| a != b);
                return broken(format!("{other} and {name} hold different records at look {at:?} of {}", seen.len()));
            }
            Some(_) => {}
        }
    }
    Ok(worlds)
}

/// What is seen on the way: everything now and in every snapshot, as hashes.
fn run_list(config: &Config, steps: &[Step], counters: &Arc<Counters>) -> Check<Vec<u64>> {
    let mut world = World::create(config.clone(), counters, false)?;
    let mut seen = Vec::new();
    for (n, step) in steps.iter().enumerate() {
        world.apply(step)?;
        if (n + 1).is_multiple_of(LOOK_EVERY) || n + 1 == steps.len() {
            look(&world, &mut seen)?;
        }
    }
    world.rest()?;
    look(&world, &mut seen)?;
    Ok(seen)
}

fn look(world: &World, seen: &mut Vec<u64>) -> Check {
    seen.push(hash(&read_all(world.db(), world.model())?));
    for (snapshot, ..) in &world.snapshots {
        let mut hasher = DefaultHasher::new();
        for live in &world.live {
            live.name.hash(&mut hasher);
            let error = |error: siltstone::Error| Violation(format!("snapshot scan: {error:?}"));
            let mut range = live.handle.range_at::<&[u8]>(.., snapshot).map_err(error)?;
            while range.advance().map_err(error)? {
                (range.key(), range.value()).hash(&mut hasher);
            }
        }
        seen.push(hasher.finish());
    }
    Ok(())
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
