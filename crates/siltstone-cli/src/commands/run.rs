//! `run [SPEC]`

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use siltstone::Options;
use siltstone_lab::compare::Scale;
use siltstone_lab::report::run_page;
use siltstone_lab::run::{
    Named, Place, Question, Results, RunProgress, SimDevice, is_cancelled, load_bytes, read_question, run_all, trials,
};
use siltstone_lab::setting;
use siltstone_lab::workload::Spec;

use super::COMMIT;
use super::args::{Compared, Telling, World};
use crate::failure::Interrupted;
use crate::interrupt::Interrupt;
use crate::output::{LateFile, plural, print};
use crate::progress::{RunMeter, line};
use crate::store::OptionArgs;

mod table;

/// Run a workload under compaction strategies, and keep what came of it in a folder.
#[derive(Args)]
#[command(mut_arg("json", |arg| arg.help("Print a list of objects, one a trial, instead of the table")))]
#[command(after_long_help = "Examples:
  siltstone run ycsb-a
  siltstone run ycsb-a --strategy leveling,tiering,./mine.toml --html report.html
  siltstone run ./queue.toml --world sim --repeat 3 --out results
  siltstone run ycsb-a --set workload.records=100000 --set keyspace.size_ratio=4 --json
  siltstone run --resume --out results
  siltstone run ycsb-a --strategy leveling,tiering --plan results

SPEC is the name of a shipped workload or a file. Each strategy meets the same operations, each repetition with \
another seed. The results folder holds the question (run.json), a folder for each trial, and all figures in rows.jsonl \
and rows.csv. Ctrl-C, or a failure, keeps the trials that are finished; --resume goes on with the rest.

--set names options of the store (keyspace.size_ratio=4), of the workload (workload.records=100000, \
workload.phase.run.clients=4) and of the simulated disk (device.bandwidth_bytes_per_s=100MiB, device.latency_ns, \
device.iops, device.sync_ns, device.operation_ns). Memtable, file and cache sizes that are not set are scaled to the \
records that the workload inserts, to about 160 flushes, so that strategies differ on small workloads too; the table \
says which were used.

With --world sim the real engine runs on a simulated disk in virtual time: one trial a core, and the same figures on \
every machine. With --world disk trials run one at a time, their stores in a folder beside the results, which is \
removed.

--plan writes the trials to FOLDER/tasks and runs none. Any launcher may then run each, on any machine with the same \
siltstone: `siltstone trial FOLDER/tasks/NAME.json FOLDER/trials/NAME`; when all are there, `siltstone run --resume \
--out FOLDER` gathers the rows.")]
pub(crate) struct Run {
    /// A shipped workload or a file (./mine.toml); may be left out with --resume
    spec: Option<String>,
    #[command(flatten)]
    compared: Compared,
    /// Real files and real time, or a simulated disk in virtual time [default: disk]
    #[arg(long, value_enum)]
    world: Option<World>,
    /// Repetitions of each strategy, each with a seed of its own [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: Option<u32>,
    /// Folder of the results [default: a new one, siltstone-SPEC]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Go on with the results in --out, which must answer the same question; without SPEC, what is not given is as it was, and another build may gather what is finished
    #[arg(long)]
    resume: bool,
    /// Write the trials to FOLDER/tasks, for another launcher, and run none
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["out", "resume", "html", "json", "dir", "jobs"])]
    plan: Option<PathBuf>,
    /// Trials at a time, with --world sim [default: one a core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Folder for the stores, with --world disk [default: beside the results]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// Where to write the report
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    options: OptionArgs,
    #[command(flatten)]
    telling: Telling,
}

impl Run {
    pub(crate) fn run(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        if let Some(folder) = &self.plan {
            return self.write_plan(folder);
        }
        let results = self.results()?;
        // May be in the folder of the results.
        let report = self.html.as_deref().map(LateFile::open).transpose()?;
        let question = results.question();
        if !self.telling.quiet {
            let names: Vec<&str> = question.strategies.iter().map(|strategy| &strategy.name[..]).collect();
            line(&format!(
                "run: {} under {}, {}, results in {}",
                question.name,
                names.join(", "),
                plural(trials(question), "trial"),
                results.folder().display()
            ));
        }
        let jobs = self.jobs.map_or_else(cores, usize::from);
        let meter = Mutex::new(RunMeter::new("run", self.telling.quiet));
        let rows = run_all(&results, jobs, self.dir.as_deref(), &|progress: &RunProgress| {
            meter.lock().unwrap_or_else(PoisonError::into_inner).update(progress);
            !interrupt.is_set()
        });
        meter.into_inner().unwrap_or_else(PoisonError::into_inner).clear();
        let rows = rows.map_err(|error| self.how_to_go_on(error, results.folder()))?;
        let text = table::text(question, &rows)?;
        self.telling.print(&rows, |_| text)?;
        if let Some((report, path)) = report.zip(self.html.as_ref()) {
            report.write(&run_page(results.folder())?)?;
            line(&format!("run: report in {}", path.display()));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Says what an interruption, or a full disk, leaves.
    fn how_to_go_on(&self, error: anyhow::Error, folder: &Path) -> anyhow::Error {
        let left = format!(
            "the trials that are finished stay; go on with `siltstone run --resume --out {}`",
            folder.display()
        );
        if is_cancelled(&error) {
            return Interrupted::leaving(left).into();
        }
        line(&format!("run: {left}"));
        error
    }

    /// Refuses what would have no effect in `world`.
    fn check(&self, world: Place) -> anyhow::Result<()> {
        if let Some(dir) = &self.dir {
            check_scratch(dir, world)?;
        }
        ensure!(
            self.jobs.is_none() || world == Place::Sim,
            "--jobs is for --world sim: on a real disk trials run one at a time, or they would slow each other"
        );
        Ok(())
    }

    fn results(&self) -> anyhow::Result<Results> {
        let question = match &self.spec {
            Some(spec) => Some(self.question(spec)?),
            None => None,
        };
        match (question, &self.out, self.resume) {
            (None, Some(out), true) => {
                let results = Results::resume(out, Some(&self.question_about(read_question(out)?)?))?;
                results.check_build(COMMIT)?;
                Ok(results)
            }
            (Some(question), Some(out), true) => Results::resume(out, Some(&question)),
            (Some(question), None, true) => {
                let out = last(&question.name).with_context(|| {
                    format!("there is no folder siltstone-{} to go on with: name it with --out", question.name)
                })?;
                Results::resume(&out, Some(&question))
            }
            (Some(question), out, false) => {
                let out = out.clone().unwrap_or_else(|| fresh(&question.name));
                Results::create(&out, question)
            }
            (None, None, true) => bail!("--resume needs the folder: name it with --out"),
            (None, _, false) => {
                let names: Vec<&str> = Spec::shipped().iter().map(|(name, _)| *name).collect();
                bail!("which workload? give the path of a file (./mine.toml) or choose one of {}", names.join(", "))
            }
        }
    }

    fn question(&self, spec: &str) -> anyhow::Result<Question> {
        let (of_workload, rest) = self.options.split("workload.")?;
        let (of_device, rest) = rest.split("device.")?;
        let spec = Spec::choose(spec, &of_workload)?;
        let strategies = self.compared.choose()?;
        let (options, given) = rest.read()?;
        let options = scaled(&spec, options, &given)?;
        for chosen in &strategies {
            let mut options = options.clone();
            options.keyspace.strategy.clone_from(&chosen.option);
            options.validate().with_context(|| format!("strategy {}", chosen.name))?;
            ensure!(
                !chosen.loses_oldest() || options.keyspace.may_lose_oldest,
                "strategy {} drops the oldest data: allow it with --set keyspace.may_lose_oldest=true",
                chosen.name
            );
        }
        let world = self.place().unwrap_or(Place::Disk);
        self.check(world)?;
        let device = device(world, SimDevice::default(), &of_device)?;
        Question::new(&spec, &strategies, world, self.repeat.unwrap_or(1), &options, device, COMMIT)
    }

    fn place(&self) -> Option<Place> {
        self.world.map(|world| match world {
            World::Disk => Place::Disk,
            World::Sim => Place::Sim,
        })
    }

    /// The question that a folder `found` answers, with what is given here in its place: it must be the same still. Which build asked it stays: who
    /// only gathers need not be that one.
    fn question_about(&self, found: Question) -> anyhow::Result<Question> {
        let world = self.place().unwrap_or(found.world);
        self.check(world)?;
        let (of_workload, rest) = self.options.split("workload.")?;
        let (of_device, rest) = rest.split("device.")?;
        let (_, given) = rest.read()?;
        Compared::fixed(&given)?;
        let mut asked = Question { world, repeat: self.repeat.unwrap_or(found.repeat), ..found };
        if self.compared.is_given() {
            asked.strategies = self.compared.choose()?.iter().map(Named::from).collect();
        }
        if !of_workload.is_empty() {
            asked.spec = Spec::with(&asked.spec, &of_workload).context("--set workload")?.text().to_owned();
        }
        if !given.is_empty() {
            let mut options: toml::Table = asked.options.parse()?;
            setting::overlay(&mut options, &given);
            asked.options = Options::from_text(&options.to_string())?.to_text();
        }
        if !of_device.is_empty() {
            asked.device = Some(device(world, asked.device.unwrap_or_default(), &of_device)?);
        }
        Ok(asked)
    }

    fn write_plan(&self, folder: &Path) -> anyhow::Result<ExitCode> {
        let spec = self.spec.as_deref().context("--plan needs a workload")?;
        let results = Results::create(folder, self.question(spec)?)?;
        let tasks = results.write_tasks()?;
        let mut text = String::new();
        for (path, place) in tasks {
            text += &format!("siltstone trial {} {}\n", path.display(), place.display());
        }
        print(&text)?;
        line(&format!("run: when all of these are done, `siltstone run --resume --out {}`", folder.display()));
        Ok(ExitCode::SUCCESS)
    }
}

/// Refuses a folder for stores that is not there, or where `world` has no use for it.
pub(super) fn check_scratch(dir: &Path, world: Place) -> anyhow::Result<()> {
    ensure!(world == Place::Disk, "--dir is for --world disk: the simulated world has no folder");
    ensure!(dir.is_dir(), "the folder {} does not exist: make it, or name another with --dir", dir.display());
    Ok(())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The simulated `disk` with what is set.
fn device(world: Place, disk: SimDevice, set: &[(String, toml::Value)]) -> anyhow::Result<SimDevice> {
    let mut table = toml::Table::try_from(disk)?;
    for (name, value) in set {
        ensure!(world == Place::Sim, "--set device.{name} is for --world sim: a real disk is what it is");
        setting::set(&mut table, name, value.clone()).map_err(|what| anyhow!("--set device.{name}: {what}"))?;
    }
    toml::from_str(&table.to_string()).context("--set device")
}

/// The sizes that were not given, scaled to the records that the workload inserts.
fn scaled(spec: &Spec, options: Options, given: &toml::Table) -> anyhow::Result<Options> {
    let fixed = Compared::fixed(given)?;
    let strategy = options.keyspace.strategy.clone();
    Ok(Scale::new(&options, fixed, load_bytes(spec)?).apply(&options, &strategy))
}

/// `siltstone-NAME`, or with the first number that is free.
fn fresh(name: &str) -> PathBuf {
    numbered(name).find(|path| !path.exists()).unwrap_or_else(|| PathBuf::from("siltstone-results"))
}

/// The last one of these that is there.
fn last(name: &str) -> Option<PathBuf> {
    numbered(name).take_while(|path| path.exists()).last().filter(|path| read_question(path).is_ok())
}

fn numbered(name: &str) -> impl Iterator<Item = PathBuf> {
    let first = std::iter::once(PathBuf::from(format!("siltstone-{name}")));
    let name = name.to_owned();
    first.chain((2..).map(move |n: u64| PathBuf::from(format!("siltstone-{name}-{n}"))))
}
