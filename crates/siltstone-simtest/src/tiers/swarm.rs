//! Many random worlds (R1, R9, R10, R13, R17, R20): each seed its own options, its own mix of operations.

use std::sync::Arc;

use super::Budget;
use crate::config::Config;
use crate::counters::Counters;
use crate::ops::{Generator, Op, Step};
use crate::pool::{Report, guarded};
use crate::shrink::shrink;
use crate::store::{Check, broken};
use crate::world::World;

/// Every so many worlds one is run twice, and must leave the same trace (R20).
const TWICE_ONE_IN: u64 = 50;

/// Runs `seeds` worlds of `ops` operations each.
pub fn run(budget: &Budget, seeds: u64, ops: usize) -> Report {
    let pool = budget.pool("swarm");
    let replay = |n| format!("replay --seed {} --ops {ops}", budget.seed(n));
    pool.run(seeds, replay, |n| {
        let seed = budget.seed(n);
        let counters = Arc::new(Counters::default());
        let outcome = run_seed(seed, ops, &counters);
        pool.counters().merge(&counters);
        let trace = outcome?;
        pool.count("seeds", 1);
        pool.count("operations", ops as u64);
        if n % TWICE_ONE_IN == 0 {
            let again = run_seed(seed, ops, &Arc::default())?;
            pool.count("operations", ops as u64);
            pool.count("run_twice", 1);
            if again != trace {
                return broken(format!("the same seed leaves two traces: {trace:016x} and {again:016x}"));
            }
        }
        Ok(())
    });
    let mut report = pool.finish();
    if report.seconds > 0.0 {
        let operations = report.counts.get("operations").copied().unwrap_or(0);
        let per_core = operations as f64 / report.seconds / budget.jobs as f64;
        report.counts.insert("operations_per_second_per_core".to_owned(), whole(per_core));
    }
    report
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate for people")]
fn whole(rate: f64) -> u64 {
    rate as u64
}

/// Runs one world; returns the hash of its trace.
///
/// # Errors
/// If a rule is broken.
pub fn run_seed(seed: u64, ops: usize, counters: &Arc<Counters>) -> Check<u64> {
    let config = Config::from_seed(seed);
    let steps = Generator::steps(&config, ops);
    run_steps(&config, &steps, counters, false)
}

/// Runs these steps in the world of `config`.
///
/// # Errors
/// If a rule is broken.
pub fn run_steps(config: &Config, steps: &[Step], counters: &Arc<Counters>, verbose: bool) -> Check<u64> {
    let mut world = World::create(config.clone(), counters, false)?;
    world.verbose = verbose;
    for (n, step) in steps.iter().enumerate() {
        world.apply(step).map_err(|violation| crate::store::Violation(format!("step {n}: {}", violation.0)))?;
    }
    world.finish().map_err(|violation| crate::store::Violation(format!("at the end: {}", violation.0)))?;
    Ok(world.trace_hash())
}

/// Runs a seed again, cuts it down if asked, prints what is left. True if nothing is wrong with it.
pub fn replay(seed: u64, ops: usize, verbose: bool, shrink_tries: usize) -> bool {
    let config = Config::from_seed(seed);
    let steps = Generator::steps(&config, ops);
    println!("{}", config.options.to_text());
    println!("{} keys, {:?}", config.keys.len(), config.acks);
    let run = |steps: &[Step], verbose| guarded(|| run_steps(&config, steps, &Arc::default(), verbose));
    let violation = match run(&steps, verbose) {
        Ok(trace) => {
            println!("no violation; trace {trace:016x}");
            return true;
        }
        Err(violation) => violation,
    };
    println!("VIOLATION {}", violation.0);
    if shrink_tries > 0 {
        let kind = class(&violation.0);
        let least = shrink(&steps, shrink_tries, |steps| run(steps, false).is_err_and(|v| class(&v.0) == kind));
        println!("{} steps are left:", least.len());
        let _ = run(&least, true);
        if let Err(violation) = run(&least, false) {
            println!("VIOLATION {}", violation.0);
        }
        let reads = least.iter().filter(|step| matches!(step.op, Op::Get { .. } | Op::Range { .. })).count();
        println!("({reads} of them read)");
    }
    false
}

/// What kind of violation a message tells: its words without numbers, so that shrinking does not slip to another one.
fn class(what: &str) -> String {
    let what = what.split_once(": ").map_or(what, |(_, rest)| rest);
    what.chars().filter(|c| c.is_ascii_alphabetic() || *c == ' ').take(40).collect()
}
