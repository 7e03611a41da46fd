//! `siltstone-sim`: runs the simulation's tiers, replays a seed, hunts planted bugs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde_json::{Value, json};
use siltstone_simtest::counters::Counters;
use siltstone_simtest::pool::Report;
use siltstone_simtest::tiers::{
    Budget, crash, damage, deadline, equal, faults, forecast, kill9, space, swarm, switch, zoo,
};

/// Tests Siltstone in a simulated world. Every failure prints the command that shows it again.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Args, Clone)]
struct Common {
    /// All seeds are derived from this number; a commit id in hex works too. Default: the time.
    #[arg(long, value_parser = base)]
    base: Option<u64>,
    /// Worlds side by side.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Stop after so many seconds.
    #[arg(long)]
    time_limit: Option<u64>,
    /// Merge the counts into this JSON file.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Cmd {
    /// Random worlds: options, operations, crashes from a seed each.
    Swarm {
        #[command(flatten)]
        common: Common,
        /// How many worlds.
        #[arg(long, default_value_t = 1000)]
        seeds: u64,
        /// Operations of each.
        #[arg(long, default_value_t = 5200)]
        ops: usize,
    },
    /// A crash at every file operation of many workloads.
    Crash {
        #[command(flatten)]
        common: Common,
        /// Stop after so many crash points (0: all workloads).
        #[arg(long, default_value_t = 0)]
        points: u64,
        /// Only the workload with this number.
        #[arg(long)]
        only: Option<u64>,
    },
    /// A second crash at every file operation of the recovery.
    Double {
        #[command(flatten)]
        common: Common,
        /// Stop after so many double crashes (0: all workloads).
        #[arg(long, default_value_t = 0)]
        points: u64,
        /// Only the workload with this number.
        #[arg(long)]
        only: Option<u64>,
    },
    /// Every bit of every kind of file, flipped.
    Flip {
        #[command(flatten)]
        common: Common,
    },
    /// Every file cut to every length.
    Truncate {
        #[command(flatten)]
        common: Common,
    },
    /// Every call failed, in every way.
    Faults {
        #[command(flatten)]
        common: Common,
        /// Only the workload with this number.
        #[arg(long)]
        only: Option<u64>,
    },
    /// Deletes with a date, in virtual time.
    Deadline {
        #[command(flatten)]
        common: Common,
        /// How many worlds.
        #[arg(long, default_value_t = 1000)]
        worlds: u64,
        /// Only the world with this number.
        #[arg(long)]
        only: Option<u64>,
    },
    /// The strategy changed while merges run, and a crash, for every ordered pair of strategies.
    Switch {
        #[command(flatten)]
        common: Common,
        /// Worlds a pair.
        #[arg(long, default_value_t = SEEDS_A_PAIR)]
        seeds: u64,
        /// A crash at every so many file operations behind the switch; 1 for each of them.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
        stride: u64,
        /// Only the world with this number.
        #[arg(long)]
        only: Option<u64>,
    },
    /// A budget for the space that merges take for a time.
    Space {
        #[command(flatten)]
        common: Common,
        /// How many worlds.
        #[arg(long, default_value_t = 500)]
        worlds: u64,
        /// Only the world with this number.
        #[arg(long)]
        only: Option<u64>,
    },
    /// The same operations under different strategies.
    Equal {
        #[command(flatten)]
        common: Common,
        /// Lists of operations.
        #[arg(long, default_value_t = EQUAL_LISTS)]
        lists: u64,
        /// Only the list with this number.
        #[arg(long)]
        only: Option<u64>,
    },
    /// What dry runs of switches predict, against what the switches take.
    Forecast {
        #[command(flatten)]
        common: Common,
        /// Size of the stores, about.
        #[arg(long, default_value_t = 20_000_000)]
        bytes: u64,
        /// Size of their records.
        #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u64).range(24..))]
        record_bytes: u64,
        /// Only the switches from this strategy.
        #[arg(long)]
        from: Option<String>,
    },
    /// Real processes killed at random moments.
    Kill9 {
        #[command(flatten)]
        common: Common,
        /// How many.
        #[arg(long, default_value_t = 150)]
        kills: u64,
    },
    /// The process that kill9 kills.
    #[command(hide = true)]
    Kill9Child { folder: PathBuf, starts: String },
    /// One seed of the swarm again.
    Replay {
        /// The seed.
        #[arg(long)]
        seed: u64,
        /// Operations.
        #[arg(long, default_value_t = 5200)]
        ops: usize,
        /// Print each operation.
        #[arg(long)]
        verbose: bool,
        /// Cut a failure down, with at most so many tries.
        #[arg(long, default_value_t = 0)]
        shrink: usize,
    },
    /// Plants one bug and looks for it; exit code 1 if something was found, 3 if a world hangs.
    #[command(hide = true)]
    Hunt {
        #[command(flatten)]
        common: Common,
        /// The bug's row; none plants nothing.
        #[arg(long)]
        bug: Option<u8>,
    },
    /// Hunts every planted bug.
    Zoo {
        #[command(flatten)]
        common: Common,
        /// Seconds for each bug.
        #[arg(long, default_value_t = 60)]
        each: u64,
        /// Only the bug of this row.
        #[arg(long)]
        only: Option<u8>,
    },
    /// Everything, within a budget; fails on any violation and on any rare state that was never reached.
    All {
        #[command(flatten)]
        common: Common,
        /// How much.
        #[arg(long, value_enum, default_value_t = Size::Ci)]
        budget: Size,
        /// Kill real processes too.
        #[arg(long)]
        kill9: bool,
    },
}

/// What CI spends on switches: worlds for each ordered pair of strategies, with a crash at each file operation.
const SEEDS_A_PAIR: u64 = 10;
/// What CI spends on strategies that must agree: lists of operations.
const EQUAL_LISTS: u64 = 200;

#[derive(Clone, Copy, ValueEnum)]
enum Size {
    /// What every change must pass.
    Ci,
    /// A night.
    Soak,
}

/// A number, or a commit id of which the first 13 digits count.
fn base(text: &str) -> Result<u64, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    u64::from_str_radix(text.get(..13).unwrap_or(text), 16).map_err(|_| "neither a number nor a commit id".to_owned())
}

/// Worlds are made of many small allocations; the system's allocator took a fifth of their time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("siltstone-sim: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn budget(common: &Common) -> Budget {
    let base = common.base.unwrap_or_else(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        since.as_secs()
    });
    Budget { base, jobs: common.jobs, limit: common.time_limit.map(Duration::from_secs), hunting: false }
}

fn run(command: Cmd) -> anyhow::Result<bool> {
    match command {
        Cmd::Swarm { common, seeds, ops } => single(&common, |budget| swarm::run(budget, seeds, ops)),
        Cmd::Crash { common, points, only } => single(&common, |budget| match only {
            Some(n) => crash::run_only(budget, n, false),
            None => crash::run(budget, points),
        }),
        Cmd::Double { common, points, only } => single(&common, |budget| match only {
            Some(n) => crash::run_only(budget, n, true),
            None => crash::run_double(budget, points),
        }),
        Cmd::Flip { common } => single(&common, damage::run_flips),
        Cmd::Truncate { common } => single(&common, damage::run_truncations),
        Cmd::Faults { common, only } => single(&common, |budget| faults::run(budget, only)),
        Cmd::Deadline { common, worlds, only } => single(&common, |budget| match only {
            Some(n) => deadline::run_only(budget, n),
            None => deadline::run(budget, worlds),
        }),
        Cmd::Space { common, worlds, only } => single(&common, |budget| match only {
            Some(n) => space::run_only(budget, n),
            None => space::run(budget, worlds),
        }),
        Cmd::Switch { common, seeds, stride, only } => {
            single(&common, |budget| switch::run(budget, switch::Scale { seeds, stride }, only))
        }
        Cmd::Equal { common, lists, only } => single(&common, |budget| equal::run(budget, lists, only)),
        Cmd::Forecast { common, bytes, record_bytes, from } => {
            let size = forecast::Size { bytes, record_bytes };
            single(&common, |budget| forecast::run(budget, size, from.as_deref()))
        }
        Cmd::Kill9 { common, kills } => single(&common, |budget| kill9::run(budget, kills)),
        Cmd::Zoo { common, each, only } => single(&common, |budget| zoo::run(budget, Duration::from_secs(each), only)),
        Cmd::Kill9Child { folder, starts } => {
            let starts: Vec<u64> = starts.split(',').map(str::parse).collect::<Result<_, _>>()?;
            kill9::child(&folder, &starts)?;
            Ok(true)
        }
        Cmd::Replay { seed, ops, verbose, shrink } => Ok(swarm::replay(seed, ops, verbose, shrink)),
        Cmd::Hunt { common, bug } => Ok(!zoo::hunt(&budget(&common), bug)?),
        Cmd::All { common, budget: size, kill9 } => all(&common, size, kill9),
    }
}

/// Runs one tier.
fn single(common: &Common, tier: impl FnOnce(&Budget) -> Report) -> anyhow::Result<bool> {
    let budget = budget(common);
    println!("base {}", budget.base);
    let report = tier(&budget);
    save(common.json.as_deref(), &budget, std::slice::from_ref(&report), None)?;
    Ok(report.failures.is_empty())
}

/// Runs all tiers but the zoo, which needs another build.
fn all(common: &Common, size: Size, with_kill9: bool) -> anyhow::Result<bool> {
    let budget = budget(common);
    println!("base {}", budget.base);
    let times = match size {
        Size::Ci => 1,
        Size::Soak => 100,
    };
    let mut reports = vec![
        swarm::run(&budget, 1000 * times, 5200),
        crash::run(&budget, 0),
        crash::run_double(&budget, 0),
        damage::run_flips(&budget),
        damage::run_truncations(&budget),
        faults::run(&budget, None),
        deadline::run(&budget, 500 * times),
        space::run(&budget, 500 * times),
        switch::run(&budget, switch::Scale { seeds: SEEDS_A_PAIR * times, stride: 1 }, None),
        equal::run(&budget, EQUAL_LISTS * times, None),
    ];
    if with_kill9 {
        reports.push(kill9::run(&budget, 150 * times));
    }
    let counters = Counters::default();
    for report in &reports {
        counters.merge(&report.counters);
    }
    println!("rare states: {:?}", counters.by_name());
    let missing = counters.missing();
    if !missing.is_empty() {
        println!("VIOLATION: never reached: {missing:?}");
    }
    save(common.json.as_deref(), &budget, &reports, Some(&counters))?;
    Ok(missing.is_empty() && reports.iter().all(|report| report.failures.is_empty()))
}

/// Merges the counts into the JSON file: a tier that ran before and not now keeps its figures.
fn save(path: Option<&Path>, budget: &Budget, reports: &[Report], counters: Option<&Counters>) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let mut document = match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)?,
        Err(_) => json!({}),
    };
    document["base"] = json!(budget.base);
    for report in reports {
        let failures: Vec<Value> =
            report.failures.iter().map(|failure| json!({"what": failure.what, "replay": failure.replay})).collect();
        document["tiers"][&report.tier] = json!({
            "counts": report.counts,
            "seconds": report.seconds,
            "violations": failures.len(),
            "failures": failures,
            "rare_states": report.counters.by_name(),
        });
    }
    if let Some(counters) = counters {
        document["rare_states"] = json!(counters.by_name());
        document["never_reached"] =
            json!(counters.missing().iter().map(|rare| format!("{rare:?}")).collect::<Vec<_>>());
    }
    std::fs::write(path, serde_json::to_vec_pretty(&document)?)?;
    Ok(())
}
