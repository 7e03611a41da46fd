//! The zoo of planted bugs (R21): each must be found by the budget that CI spends, or the checkers are worth nothing.
//!
//! Each bug is hunted in a process of its own, because a bug may hang it, with the tiers one after the other until one of them
//! finds it. Needs a build with the feature `planted-bugs`.

use std::process::{Command, Stdio};
use std::time::Duration;

use siltstone::io::{Clock, RealClock};
use siltstone::planted::Bug;

use super::{Budget, crash, faults, swarm, switch};
use crate::pool::{Pool, Report};

/// Hunts every bug, `limit` for each.
pub fn run(budget: &Budget, limit: Duration, only: Option<u8>) -> Report {
    let pool = budget.pool("zoo");
    if !cfg!(feature = "planted-bugs") {
        pool.fail("this build has no planted bugs: build with --features planted-bugs", "zoo");
        return pool.finish();
    }
    for bug in Bug::ALL.iter().filter(|bug| only.is_none_or(|row| row == bug.row())) {
        hunt_in_process(budget, *bug, limit, &pool);
    }
    pool.finish()
}

fn hunt_in_process(budget: &Budget, bug: Bug, limit: Duration, pool: &Pool) {
    let start = RealClock.mono_ns();
    let output = std::env::current_exe().and_then(|program| {
        Command::new(program)
            .args(["hunt", "--bug", &bug.row().to_string()])
            .args(["--base", &budget.base.to_string()])
            .args(["--jobs", &budget.jobs.to_string()])
            .args(["--time-limit", &limit.as_secs().to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
    });
    let ms = (RealClock.mono_ns() - start) / 1_000_000;
    match output {
        Err(e) => pool.fail(&format!("cannot hunt: {e}"), "zoo"),
        Ok(output) if output.status.success() => {
            pool.fail(
                &format!("planted bug {bug:?} (row {}) was not found in {ms} ms", bug.row()),
                &format!("zoo --only {}", bug.row()),
            );
        }
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            let found = text
                .lines()
                .find(|line| line.contains("FOUND") || line.contains("VIOLATION"))
                .unwrap_or("by its death");
            println!(
                "  row {:>2} {bug:?}: found after {ms} ms {}",
                bug.row(),
                found.chars().take(200).collect::<String>()
            );
            pool.count("found", 1);
            pool.count(&format!("row_{:02}_{bug:?}_ms", bug.row()), ms);
        }
    }
    pool.count("planted", 1);
}

/// Looks for whatever is wrong, tier by tier, cheapest first. True if something was found.
#[cfg(feature = "planted-bugs")]
pub fn hunt(budget: &Budget, row: u8) -> bool {
    let Some(bug) = Bug::ALL.iter().find(|bug| bug.row() == row) else {
        println!("no bug has row {row}");
        return false;
    };
    siltstone::planted::plant(Some(*bug));
    let each = |share: f64| {
        let limit = budget.limit.unwrap_or(Duration::from_secs(60)).mul_f64(share);
        Budget { limit: Some(limit), hunting: true, ..budget.clone() }
    };
    // The cheap look of everything first, the long one after.
    for share in [0.05, 0.2] {
        let switches = switch::Scale { seeds: 10, stride: 1 };
        let tiers: [(&str, &dyn Fn() -> Report); 5] = [
            ("swarm", &|| swarm::run(&each(share), u64::MAX, 3000)),
            ("crash", &|| crash::run(&each(share), 0)),
            ("faults", &|| faults::run(&each(share), None)),
            ("double", &|| crash::run_double(&each(share), 0)),
            ("switch", &|| switch::run(&each(share), switches, None)),
        ];
        for (name, tier) in tiers {
            if let Some(failure) = tier().failures.first() {
                println!("FOUND by {name}: {} | {}", failure.what, failure.replay);
                return true;
            }
        }
    }
    false
}

/// Without the feature nothing can be planted, so nothing is found.
#[cfg(not(feature = "planted-bugs"))]
pub fn hunt(_: &Budget, _: u8) -> bool {
    let _ = (swarm::run, crash::run, crash::run_double, faults::run, switch::run);
    false
}
