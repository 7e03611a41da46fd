//! The zoo of planted bugs (R21): each must be found by the budget that CI spends, or the checkers are worth nothing.
//!
//! Each bug is hunted in a process of its own, because a bug may hang it, with the tiers one after the other until one of them
//! finds it. Needs a build with the feature `planted-bugs`.

use std::process::{Command, Stdio};
use std::time::Duration;

#[cfg(feature = "planted-bugs")]
use anyhow::Context;
use siltstone::io::{Clock, RealClock};
use siltstone::planted::Bug;

use super::{Budget, crash, damage, deadline, faults, space, swarm, switch};
use crate::pool::Report;

/// What is spent on the hunt without a planted bug: long enough for each tier to have its turn.
const CONTROL: Duration = Duration::from_secs(12);

/// Hunts every bug, `limit` for each. One hunt has no planted bug and must find nothing, or the others say nothing.
pub fn run(budget: &Budget, limit: Duration, only: Option<u8>) -> Report {
    let pool = budget.pool("zoo");
    if !cfg!(feature = "planted-bugs") {
        pool.fail("this build has no planted bugs: build with --features planted-bugs", "zoo");
        return pool.finish();
    }
    if only.is_none() {
        let replay = format!("hunt --base {} --time-limit {}", budget.base, CONTROL.as_secs());
        match hunt_in_process(budget, None, CONTROL) {
            Ok(None) => pool.count("controls", 1),
            Ok(Some(found)) => pool.fail(&format!("found without a planted bug: {found}"), &replay),
            Err(e) => pool.fail(&format!("cannot hunt: {e:#}"), &replay),
        }
    }
    for bug in Bug::ALL.iter().filter(|bug| only.is_none_or(|row| row == bug.row())) {
        let (row, start) = (bug.row(), RealClock.mono_ns());
        let outcome = hunt_in_process(budget, Some(*bug), limit);
        let ms = (RealClock.mono_ns() - start) / 1_000_000;
        let fail =
            |what: &str| pool.fail(&format!("planted bug {bug:?} (row {row}) {what}"), &format!("zoo --only {row}"));
        match outcome {
            Ok(Some(found)) => {
                println!("  row {row:>2} {bug:?}: found after {ms} ms {}", found.chars().take(200).collect::<String>());
                pool.count("found", 1);
                pool.count(&format!("row_{row:02}_{bug:?}_ms"), ms);
            }
            Ok(None) => fail(&format!("was not found in {ms} ms")),
            Err(e) => fail(&format!("cannot be hunted: {e:#}")),
        }
        pool.count("planted", 1);
    }
    pool.finish()
}

/// What a hunt has found, if anything. Any end that is none of a hunt's is an error: a bad argument, a kill from outside.
fn hunt_in_process(budget: &Budget, bug: Option<Bug>, limit: Duration) -> anyhow::Result<Option<String>> {
    let output = Command::new(std::env::current_exe()?)
        .arg("hunt")
        .args(bug.map(|bug| format!("--bug={}", bug.row())))
        .args(["--base", &budget.base.to_string()])
        .args(["--jobs", &budget.jobs.to_string()])
        .args(["--time-limit", &limit.as_secs().to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let says = |word: &str| text.lines().find(|line| line.starts_with(word)).map(str::to_owned);
    let found = match output.status.code() {
        Some(0) => return Ok(None),
        Some(1) => says("FOUND"),
        // A world that hangs.
        Some(3) => says("VIOLATION"),
        _ => None,
    };
    match found {
        Some(found) => Ok(Some(found)),
        None => anyhow::bail!("the hunt has ended with {}", output.status),
    }
}

/// Looks for whatever is wrong, tier by tier, cheapest first. True if something was found.
///
/// # Errors
/// If no bug has this row.
#[cfg(feature = "planted-bugs")]
pub fn hunt(budget: &Budget, row: Option<u8>) -> anyhow::Result<bool> {
    let of_row =
        |row| Bug::ALL.iter().copied().find(|bug| bug.row() == row).with_context(|| format!("no bug has row {row}"));
    siltstone::planted::plant(row.map(of_row).transpose()?);
    let each = |share: f64| {
        let limit = budget.limit.unwrap_or(Duration::from_secs(60)).mul_f64(share);
        Budget { limit: Some(limit), hunting: true, ..budget.clone() }
    };
    // The cheap look of everything first, the long one after.
    for share in [0.05, 0.2] {
        let switches = switch::Scale { seeds: 10, stride: 1 };
        let tiers: [(&str, &dyn Fn() -> Report); 8] = [
            ("swarm", &|| swarm::run(&each(share), u64::MAX, 3000)),
            ("crash", &|| crash::run(&each(share), 0)),
            ("faults", &|| faults::run(&each(share), None)),
            ("double", &|| crash::run_double(&each(share), 0)),
            ("switch", &|| switch::run(&each(share), switches, None)),
            ("flip", &|| damage::run_flips(&each(share))),
            ("deadline", &|| deadline::run(&each(share), 500)),
            ("space", &|| space::run(&each(share), 500)),
        ];
        for (name, tier) in tiers {
            if let Some(failure) = tier().failures.first() {
                println!("FOUND by {name}: {} | {}", failure.what, failure.replay);
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Nothing can be planted without the feature.
///
/// # Errors
/// Always.
#[cfg(not(feature = "planted-bugs"))]
pub fn hunt(_: &Budget, _: Option<u8>) -> anyhow::Result<bool> {
    let _ = (swarm::run, crash::run, crash::run_double, faults::run, switch::run);
    let _ = (damage::run_flips, deadline::run, space::run);
    anyhow::bail!("this build has no planted bugs")
}
