//! Deletes with a date (`delete_by`), in virtual time: whatever the strategy, nothing that was deleted longer ago is left.
//!
//! The oracle does not ask the store how old its tombstones are. It knows when each delete was made, and counts: there can be no
//! more tombstones in the files than deletes within the last `delete_by`. Most of the time nobody writes, for an idle store must
//! keep its promise too; now and then the process is killed, for the clock must not start anew.

use std::collections::VecDeque;
use std::time::Duration;

use siltstone::io::sim::Profile;
use siltstone::io::{Clock, Rng};
use siltstone::{Batch, Db, Keyspace, Snapshot, TombstoneBlocker};

use super::Budget;
use crate::config::Config;
use crate::ops::index;
use crate::pool::Report;
use crate::store::{Check, Machine, Violation, broken};

const DELETE_BY: Duration = Duration::from_secs(3600);
const BY_NS: u64 = 3600 * 1_000_000_000;
/// Things that happen in a world.
const EVENTS: u64 = 150;

/// Runs `worlds` worlds.
pub fn run(budget: &Budget, worlds: u64) -> Report {
    let pool = budget.pool("deadline");
    let replay = |n| format!("deadline --base {} --only {n}", budget.base);
    pool.run(worlds, replay, |n| {
        let counts = world(budget.seed(n ^ 0xdea_d11e))?;
        pool.count("worlds", 1);
        pool.count("deletes", counts.deletes);
        pool.count("checks", counts.checks);
        pool.count("kills", counts.kills);
        pool.count("held_by_snapshot", counts.held);
        Ok(())
    });
    pool.finish()
}

/// Runs the world with this number.
pub fn run_only(budget: &Budget, n: u64) -> Report {
    let pool = budget.pool("deadline");
    pool.run(
        1,
        |_| format!("deadline --base {} --only {n}", budget.base),
        |_| world(budget.seed(n ^ 0xdea_d11e)).map(drop),
    );
    pool.finish()
}

#[derive(Default)]
struct Counts {
    deletes: u64,
    checks: u64,
    kills: u64,
    held: u64,
}

fn fails(doing: &'static str) -> impl Fn(siltstone::Error) -> Violation {
    move |error| Violation(format!("{doing}: {error:?}"))
}

fn world(seed: u64) -> Check<Counts> {
    let mut config = Config::from_seed(seed);
    config.keys.retain(|key| key.len() < 100);
    config.options.rate_limit_bytes_per_s = 0;
    config.options.keyspace.delete_by = Some(DELETE_BY);
    let mut rng = Rng::new(seed).split("deadline");
    let mut machine = Machine::new(seed);
    let mut db = machine.open(&config.options, seed, None).map_err(fails("open"))?;
    let mut counts = Counts::default();
    // When deletes were made, oldest first, in nanoseconds of virtual time.
    let mut deletes: VecDeque<u64> = VecDeque::new();
    for _ in 0..EVENTS {
        let keyspace = db.default_keyspace();
        let busy = rng.one_in(3);
        for _ in 0..if busy { rng.between(1, 60) } else { 0 } {
            let key = &config.keys[index(&mut rng, config.keys.len() as u64)];
            match rng.below(6) {
                0..2 => {
                    keyspace.delete(key).map_err(fails("delete"))?;
                    deletes.push_back(machine.clock.mono_ns());
                }
                2 => {
                    let mut batch = Batch::new();
                    batch.put(&keyspace, key, b"batch");
                    batch.delete(&keyspace, b"another");
                    db.write(batch).map_err(fails("batch"))?;
                    deletes.push_back(machine.clock.mono_ns());
                }
                _ => {
                    let value = vec![b'v'; index(&mut rng, 120)];
                    keyspace.put(key, value).map_err(fails("put"))?;
                }
            }
            counts.deletes = counts.deletes.max(deletes.len() as u64);
        }
        match rng.below(40) {
            0 => {
                drop(keyspace);
                let disk = machine.fs.crash(Profile::Kill, &mut rng);
                drop(db);
                machine = Machine::with_disk(disk, seed ^ counts.kills);
                // The process is away for a while.
                machine.clock.advance(rng.below(BY_NS / 10));
                db = machine.open(&config.options, seed, None).map_err(fails("reopen"))?;
                counts.kills += 1;
                // It has been down; it gets the time for the work that it is always given.
                machine.executor.run_for(BY_NS / 8);
            }
            1 => {
                let snapshot = db.snapshot();
                hold(&machine, &keyspace, &config.keys, snapshot, &mut rng, &mut counts)?;
            }
            _ => machine.executor.run_for(rng.below(BY_NS / 20)),
        }
        check(&machine, &db, &mut deletes)?;
        counts.checks += 1;
    }
    // Nobody writes any more: in the end there is no tombstone.
    machine.executor.run_for(BY_NS);
    check(&machine, &db, &mut deletes)?;
    let left = db.default_keyspace().delete_stats();
    if left.tombstones != 0 || left.oldest.is_some() {
        return broken(format!("an idle store keeps tombstones: {left:?}\n{:?}", db.default_keyspace().tree()));
    }
    db.close().map_err(fails("close"))?;
    Ok(counts)
}

/// A snapshot is held for longer than `delete_by`. What it blocks says so, and goes soon after the snapshot.
fn hold(
    machine: &Machine,
    keyspace: &Keyspace,
    keys: &[Vec<u8>],
    snapshot: Snapshot,
    rng: &mut Rng,
    counts: &mut Counts,
) -> Check {
    // Deletes that the snapshot does not see: what they delete must stay for it.
    for _ in 0..rng.below(20) {
        keyspace.delete(&keys[index(rng, keys.len() as u64)]).map_err(fails("delete"))?;
    }
    machine.executor.run_for(BY_NS + rng.below(BY_NS));
    let stats = keyspace.delete_stats();
    if let Some(oldest) = stats.oldest.filter(|oldest| oldest.gone_in_ms == Some(0)) {
        match oldest.blocked_by {
            Some(TombstoneBlocker::Snapshot { seq, .. }) if seq == snapshot.seq().0 => counts.held += 1,
            other => {
                return broken(format!("overdue, and blocked by {other:?}, not by the snapshot: {:?}", oldest.place));
            }
        }
    }
    drop(snapshot);
    machine.executor.run_for(BY_NS / 8);
    Ok(())
}

fn check(machine: &Machine, db: &Db, deletes: &mut VecDeque<u64>) -> Check {
    let now_ns = machine.clock.mono_ns();
    while deletes.front().is_some_and(|at_ns| at_ns + BY_NS < now_ns) {
        deletes.pop_front();
    }
    let keyspace = db.default_keyspace();
    let tree = keyspace.tree();
    let files = || tree.levels.iter().flat_map(|level| &level.runs).flat_map(|run| &run.files);
    let expired = |at_ms: u64| machine.clock.wall_ns() / 1_000_000 > at_ms + BY_NS / 1_000_000;
    if let Some(file) = files().find(|file| file.oldest_tombstone_ms.is_some_and(expired)) {
        return broken(format!("a tombstone is older than an hour: {file:?}"));
    }
    // How many are in a slice of a table nobody has counted.
    let found: u64 = files().filter(|file| file.whole.is_none()).map(|file| file.tombstones).sum();
    if found > deletes.len() as u64 {
        let stats = keyspace.delete_stats();
        return broken(format!(
            "{found} tombstones, but only {} deletes were made in the last hour: {stats:?}\n{:?}",
            deletes.len(),
            tree
        ));
    }
    Ok(())
}
