//! `trial IN OUT`

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::Context;
use clap::Args;
use siltstone_lab::run::{Progress, RunProgress, Task, run_trial};

use super::COMMIT;
use super::run::check_scratch;
use crate::interrupt::Interrupt;
use crate::progress::{RunMeter, line};

/// Run one trial of a run: one file in, one results folder out.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone run ycsb-a --strategy leveling,tiering --plan results
  siltstone trial results/tasks/leveling-1.json results/trials/leveling-1
  siltstone trial results/tasks/tiering-1.json results/trials/tiering-1
  siltstone run --resume --out results

IN is a task that `siltstone run --plan` wrote, or the trial.json of a finished trial. OUT appears by one rename when \
the trial is complete, never half of it. A trial that is there already is left alone, so a launcher may simply start \
all of them again.")]
pub(crate) struct Trial {
    /// The task
    #[arg(value_name = "IN")]
    task: PathBuf,
    /// The folder of the trial
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// Folder for the store, in the world `disk` [default: beside OUT]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// No progress
    #[arg(long, short)]
    quiet: bool,
}

impl Trial {
    pub(crate) fn run(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        let shown = self.task.display();
        let text = std::fs::read_to_string(&self.task).with_context(|| format!("cannot read the task {shown}"))?;
        let task = Task::parse(&text).with_context(|| shown.to_string())?;
        task.check_build(COMMIT).with_context(|| shown.to_string())?;
        if let Some(dir) = &self.dir {
            check_scratch(dir, task.world)?;
        }
        let name = task.name();
        let meter = Mutex::new(RunMeter::new(&name, self.quiet));
        let start = std::time::Instant::now();
        let made = run_trial(&task, &self.out, self.dir.as_deref(), &|progress: Progress<'_>| {
            let left = (progress.share > 0.0).then(|| start.elapsed().mul_f64((1.0 - progress.share) / progress.share));
            let doing = vec![progress.phase.to_owned()];
            let now = RunProgress { trials: 1, finished: 0, share: progress.share, left, doing };
            meter.lock().unwrap_or_else(std::sync::PoisonError::into_inner).update(&now);
            !interrupt.is_set()
        });
        meter.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
        if made? {
            line(&format!("trial: {name} is in {}", self.out.display()));
        } else {
            line(&format!("trial: {name} was finished in {} already", self.out.display()));
        }
        Ok(ExitCode::SUCCESS)
    }
}
