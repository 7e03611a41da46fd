//! `two-phase`

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{bail, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;
use siltstone::Options;
use siltstone::io::sim::Device;
use siltstone::options::parse_time;
use siltstone::schedule::{Scheduler, WriteControl};
use siltstone_lab::load::two_phase::{Part, TwoPhase, TwoPhaseResult, run};
use siltstone_lab::load::{DiskWorld, LoadResult, SimWorld, Spacing, World};
use siltstone_lab::num::{float, floor};
use siltstone_lab::report::{bytes, duration_ns, number};
use siltstone_lab::setting;
use siltstone_lab::workload::{KeyLaw, Workload};

use super::args::{Telling, World as Place};
use crate::failure::Interrupted;
use crate::interrupt::Interrupt;
use crate::output::text_table;
use crate::progress::{Meter, line};
use crate::store::{OptionArgs, size};

/// Measure how many writes a store bears for long, without stalls.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone two-phase
  siltstone two-phase --strategy tiering --scheduler single --utilization 0.9
  siltstone two-phase --world disk --duration 5m --set keyspace.strategy=./mine.toml --json

The method of luo19 (section 3). All records are loaded. Then a closed loop updates random ones as fast as the store \
takes them: the testing phase, which gives the rate W. Then, on a fresh store loaded alike, an open loop updates at \
--utilization times W: the running phase. Its latencies count from when a write was due, so a stall is charged to \
every write that it delays. The answer is `sustainable` if 99 % of the writes end within --p99-limit and no queue \
grows over the last third.

World sim, the default: the real engine on a simulated disk in virtual time, the same on every run; two hours a phase \
in some seconds. Its sizes are luo19's (100 million records of 1 KB, 128 MiB memtables, 100 MB/s for flushes and \
merges) divided by a thousand.

World disk: real files in a temporary folder and real time; --bandwidth is a limit that the store keeps \
(rate_limit_bytes_per_s), which lets flushes go first. The same run simulated: the same sizes, --world sim, \
--bandwidth as fast as the disk, --set rate_limit_bytes_per_s=... and --write-ns of about 2000. Where writes are due \
more often than every 0.15 ms, the client sleeps for as long at least and they wait for it: a p50 or p99 of the \
running phase below about 0.25 ms is the client's, not the store's.")]
pub(crate) struct TwoPhaseCommand {
    /// Strategy: a name that `strategies` lists, or a file
    #[arg(long, value_name = "NAME|FILE")]
    strategy: Option<String>,
    /// Merge scheduler of the running phase: single, fair, greedy, spring-gear, silk or score
    #[arg(long, value_name = "NAME")]
    scheduler: Option<String>,
    /// Merge scheduler of the testing phase; greedy ones measure more than they can keep up
    #[arg(long, value_name = "NAME", default_value = "fair")]
    testing_scheduler: String,
    /// Share of the measured rate at which writes come in the running phase, above 0 and below 1
    #[arg(long, default_value_t = 0.95, value_parser = utilization)]
    utilization: f64,
    /// Where it runs
    #[arg(long, value_enum, default_value = "sim")]
    world: Place,
    /// How writes come in the running phase
    #[arg(long, value_enum, default_value = "constant")]
    arrivals: ArrivalLaw,
    /// Which keys are updated
    #[arg(long, value_enum, default_value = "uniform")]
    updates: Updates,
    /// Different keys; default 100000, on disk 1000000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1000..=10_000_000_000))]
    records: Option<u64>,
    /// Bytes of a value
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    value_bytes: u32,
    /// What flushes and merges may write a second, e.g. 100MiB; default 100 kB, on disk as fast as it goes
    #[arg(long, value_name = "SIZE", value_parser = bandwidth)]
    bandwidth: Option<u64>,
    /// What a write costs its client in the world sim when nothing holds it up, in nanoseconds, at least 1; default 20000, which is little
    /// beside the default bandwidth
    #[arg(long, value_name = "NS", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    write_ns: Option<u64>,
    /// How long each phase takes, warm-up included; default 2h, on disk 1m
    #[arg(long, value_name = "TIME", value_parser = time)]
    duration: Option<Duration>,
    /// What of each phase is not counted; default a sixth
    #[arg(long, value_name = "TIME", value_parser = time)]
    warm_up: Option<Duration>,
    /// The p99 write latency up to which a load counts as sustainable
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    p99_limit: Duration,
    /// Decides every random choice
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder on whose disk to run, with --world disk; default the system's for temporary files
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    options: OptionArgs,
    #[command(flatten)]
    telling: Telling,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum ArrivalLaw {
    /// Evenly spaced
    Constant,
    /// With exponential gaps
    Poisson,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Updates {
    /// Each key equally likely
    Uniform,
    /// Few keys often, as YCSB has it
    Zipf,
}

fn utilization(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| *share > 0.0 && *share < 1.0);
    share.ok_or_else(|| "expected a number above 0 and below 1, for example 0.95".to_owned())
}

fn bandwidth(text: &str) -> Result<u64, String> {
    size(text).filter(|size| *size > 0).ok_or_else(|| "expected bytes a second, for example 100MiB".to_owned())
}

/// `500ms`, `90s`, `15m`, `2h`.
fn time(text: &str) -> Result<Duration, String> {
    parse_time(text).ok_or_else(|| "expected a time, for example 500ms, 90s, 15m or 2h".to_owned())
}

/// luo19's sizes, divided by a thousand.
const SIM_RECORDS: u64 = 100_000;
const SIM_MEMTABLE_BYTES: u64 = 128 << 10;
const SIM_BANDWIDTH: u64 = 100_000;

impl TwoPhaseCommand {
    pub(crate) fn run(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        let ask = self.ask()?;
        if !self.telling.quiet {
            let workload = &ask.workload;
            line(&format!(
                "two-phase: {} records of {}, strategy {}, {} a phase",
                workload.records,
                bytes(u64::from(workload.value_bytes + workload.key_bytes)),
                name_of(&ask.running.keyspace.strategy),
                duration_ns(ask.running_ns)
            ));
        }
        let mut world = || self.world();
        let (mut at, mut meter) = (Part::Load, self.meter(Part::Load));
        let result = run(&ask, &mut world, &mut |part, moment| {
            if part != at {
                at = part;
                std::mem::replace(&mut meter, self.meter(part)).clear();
            }
            meter.update(moment.operations, 0, floor(moment.share * 1e3));
            !interrupt.is_set()
        });
        meter.clear();
        let told = self.told(&ask, result?);
        self.telling.print(&told, text)?;
        ensure!(!told.result.is_partial, Interrupted::leaving(&told.result.reason));
        Ok(ExitCode::SUCCESS)
    }

    fn told(&self, ask: &TwoPhase, result: TwoPhaseResult) -> Told {
        Told {
            world: if self.world == Place::Disk { "disk" } else { "sim" },
            strategy: name_of(&ask.running.keyspace.strategy),
            scheduler: ask.running.scheduler.name(),
            testing_scheduler: ask.testing.scheduler.name(),
            utilization: float(ask.utilization_millionths) / 1e6,
            records: ask.workload.records,
            seed: self.seed,
            result,
        }
    }

    fn meter(&self, part: Part) -> Meter {
        let name = match part {
            Part::Load => "load",
            Part::Testing => "testing",
            Part::Running => "running",
        };
        Meter::new(name, "writes", Some(1000), self.telling.quiet)
    }

    fn ask(&self) -> anyhow::Result<TwoPhase> {
        let (mut options, given) = self.options.read()?;
        let is_disk = self.world == Place::Disk;
        for (flag, is_given, name) in [
            ("--strategy", self.strategy.is_some(), "keyspace.strategy"),
            ("--scheduler", self.scheduler.is_some(), "scheduler"),
            ("--bandwidth", is_disk && self.bandwidth.is_some(), "rate_limit_bytes_per_s"),
        ] {
            ensure!(
                !is_given || !self.options.sets(name),
                "{flag} and --set {name} set the same option: leave one out"
            );
        }
        if let Some(strategy) = &self.strategy {
            options.keyspace.strategy = siltstone_lab::strategy::choose(strategy)?.option;
        }
        if is_disk {
            ensure!(self.write_ns.is_none(), "--write-ns is for --world sim: on disk a write takes what it takes");
            options.rate_limit_bytes_per_s = self.bandwidth.unwrap_or(options.rate_limit_bytes_per_s);
        } else {
            ensure!(self.dir.is_none(), "--dir is for --world disk: the simulated world has no folder");
            scale_down(&mut options, &given);
        }
        if let Some(scheduler) = &self.scheduler {
            options.scheduler = Scheduler::from_text(scheduler)?;
        }
        let mut testing = options.clone();
        testing.scheduler = Scheduler::from_text(&self.testing_scheduler)?;
        let duration = self.duration.unwrap_or(Duration::from_secs(if is_disk { 60 } else { 7200 }));
        let warm_up = self.warm_up.unwrap_or(duration / 6);
        if warm_up >= duration {
            bail!("--warm-up {warm_up:?} leaves nothing of --duration {duration:?}: choose a shorter one");
        }
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Ok(TwoPhase {
            testing,
            running: options,
            workload: Workload {
                seed: self.seed,
                records: self.records.unwrap_or(if is_disk { 1_000_000 } else { SIM_RECORDS }),
                key_bytes: 16,
                value_bytes: self.value_bytes,
                phases: Vec::new(),
            },
            law: match self.updates {
                Updates::Uniform => KeyLaw::Uniform,
                Updates::Zipf => KeyLaw::Zipf { theta: 0.99 },
            },
            testing_ns: ns(duration),
            running_ns: ns(duration),
            warm_up_ns: ns(warm_up),
            // luo19 has a window of 30 s in two hours.
            window_ns: (ns(duration) / 240).max(1),
            utilization_millionths: floor((self.utilization * 1e6).round()).clamp(1, 999_999),
            spacing: match self.arrivals {
                ArrivalLaw::Constant => Spacing::Constant,
                ArrivalLaw::Poisson => Spacing::Poisson,
            },
            p99_limit_ns: ns(self.p99_limit),
        })
    }

    fn world(&self) -> anyhow::Result<Box<dyn World>> {
        Ok(match self.world {
            Place::Disk => Box::new(DiskWorld::new(self.dir.as_deref())?),
            Place::Sim => {
                let device = Device {
                    bandwidth_bytes_per_s: self.bandwidth.unwrap_or(SIM_BANDWIDTH),
                    background_writes_only: true,
                    ..Device::default()
                };
                Box::new(SimWorld::new(device, self.write_ns.unwrap_or(SimWorld::OPERATION_NS), self.seed))
            }
        })
    }
}

/// What was asked, and what came of it.
#[derive(Serialize)]
struct Told {
    world: &'static str,
    strategy: String,
    scheduler: &'static str,
    testing_scheduler: &'static str,
    utilization: f64,
    records: u64,
    seed: u64,
    #[serde(flatten)]
    result: TwoPhaseResult,
}

fn text(told: &Told) -> String {
    let titles =
        ["phase", "scheduler", "writes/s", "p50", "p99", "p99.9", "max", "processing p99", "stalled", "runs", "queued"];
    let row = |name: String, scheduler: &str, load: &LoadResult| {
        let time = |ns| duration_ns(ns).into();
        let runs = load.windows.iter().map(|window| window.gauge).max().unwrap_or(0);
        vec![
            name.into(),
            scheduler.to_owned().into(),
            number(load.ops_per_s).into(),
            time(load.latency.p50_ns),
            time(load.latency.p99_ns),
            time(load.latency.p999_ns),
            time(load.latency.max_ns),
            time(load.processing.p99_ns),
            format!("{:.1} s", load.stalled_s).into(),
            runs.to_string().into(),
            load.queued_at_end.to_string().into(),
        ]
    };
    let result = &told.result;
    let testing = result.testing.as_ref().map(|load| row("testing, closed loop".into(), told.testing_scheduler, load));
    let share = format!("running, {} %", (told.utilization * 1e6).round() / 1e4);
    let running = result.running.as_ref().map(|load| row(share, told.scheduler, load));
    let rows: Vec<_> = testing.into_iter().chain(running).collect();
    let table = if rows.is_empty() { String::new() } else { text_table(&titles, &rows) + "\n" };
    let verdict = match (result.is_partial, result.is_sustainable) {
        (true, _) => return table + &format!("partial: {}\n", result.reason),
        (false, true) => "sustainable",
        (false, false) => "not sustainable",
    };
    let rate = number(result.arrivals_per_s);
    table + &format!("{verdict}: at {rate} writes a second, {}\n", result.reason)
}

/// Gives what is not `given` the sizes of the simulated study.
fn scale_down(options: &mut Options, given: &toml::Table) {
    let is_free = |option: &str| !setting::holds(given, option);
    let keyspace = &mut options.keyspace;
    if is_free("keyspace.memtable_bytes") {
        keyspace.memtable_bytes = SIM_MEMTABLE_BYTES;
    }
    if is_free("keyspace.file_bytes") {
        keyspace.file_bytes = floor(float(keyspace.memtable_bytes) / 2.0).max(1 << 10);
    }
    if let WriteControl::Delay(delay) = &mut keyspace.write_control {
        if is_free("keyspace.write_control.free_bytes_per_s") {
            delay.free_bytes_per_s /= 1000;
        }
        if is_free("keyspace.write_control.least_bytes_per_s") {
            delay.least_bytes_per_s = (delay.least_bytes_per_s / 1000).max(1);
        }
    }
    // Two memtables, as luo19 has them: one is written while the other is flushed.
    if is_free("write_memory_bytes") {
        options.write_memory_bytes = options.write_memory_bytes.min(2 * keyspace.memtable_bytes);
    }
    let log = &mut options.log;
    if is_free("log.segment_bytes") {
        log.segment_bytes = log.segment_bytes.min(options.write_memory_bytes / 4);
    }
    if is_free("log.max_bytes") {
        log.max_bytes = log.max_bytes.max(8 * log.segment_bytes);
    }
}

/// What to call a strategy option, which may be a file's text.
fn name_of(strategy: &str) -> String {
    siltstone_lab::strategy::choose(strategy).map_or_else(|_| strategy.to_owned(), |chosen| chosen.name)
}
