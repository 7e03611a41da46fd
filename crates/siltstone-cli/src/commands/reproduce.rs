//! `reproduce STUDY`

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use anyhow::{bail, ensure};
use clap::Args;
use siltstone_lab::experiment::{Experiment, Finding, Verdict, judge, run_all, study};
use siltstone_lab::num::count;

use super::args::Telling;
use crate::failure::Interrupted;
use crate::interrupt::Interrupt;
use crate::output::{LateFile, print};
use crate::progress::Meter;

/// Run a published study again and say which of its claims hold.
#[derive(Args)]
#[command(mut_arg("json", |arg| arg.help("Print a JSON object for each claim")))]
#[command(after_long_help = "Examples:
  siltstone reproduce luo19
  siltstone reproduce luo19 --figure 9 --scale 1000
  siltstone reproduce luo19 --json --runs runs.jsonl > claims.jsonl

The runs are made in virtual time, on a simulated disk and with the real engine, so they come out the same everywhere. \
The scale divides records, memory, files and bandwidth together: the tree keeps its number of levels, and time its \
axis. A claim that does not hold is a result too: the table says `reversed` or `inconclusive`, and why as far as we \
know. With --json, one object a line: id, says, paper, measured, verdict. --runs keeps all that was measured: writes a \
second, latencies, stalls and the rest by run.

All of luo19 takes three to four minutes of two cores at the scale 100, one at 1000.")]
pub(crate) struct Reproduce {
    /// The study
    #[arg(value_parser = siltstone_lab::experiment::STUDIES)]
    study: String,
    /// Only this figure, e.g. 9, or another experiment by its name, e.g. A2
    #[arg(long, value_name = "N|NAME")]
    figure: Option<String>,
    /// What the original's sizes are divided by
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    scale: u64,
    /// Decides every random choice
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write a JSON object for each run, with all that it measured
    #[arg(long, value_name = "FILE")]
    runs: Option<PathBuf>,
    #[command(flatten)]
    telling: Telling,
}

impl Reproduce {
    pub(crate) fn run(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        let experiments = self.experiments()?;
        let runs = self.runs.as_deref().map(LateFile::open).transpose()?;
        let meter = Mutex::new(Meter::new(&self.study, "runs", Some(1000), self.telling.quiet));
        let results = run_all(&experiments, self.scale, self.seed, &|done, total| {
            let (done, total) = (count(done), count(total));
            meter.lock().unwrap_or_else(PoisonError::into_inner).update(done, 0, done * 1000 / total.max(1));
            !interrupt.is_set()
        });
        meter.into_inner().unwrap_or_else(PoisonError::into_inner).clear();
        let results = results?;
        let mut findings = Vec::new();
        for experiment in &experiments {
            let own: Vec<_> = results.iter().filter(|result| result.experiment == experiment.id).cloned().collect();
            findings.push((experiment, judge(experiment, &own)));
        }
        if self.telling.json {
            for finding in findings.iter().flat_map(|(_, findings)| findings) {
                print(&(serde_json::to_string(finding)? + "\n"))?;
            }
        } else {
            print(&text(&findings))?;
        }
        if let Some(runs) = runs {
            let lines = results.iter().map(|result| Ok(serde_json::to_string(result)? + "\n"));
            runs.write(&lines.collect::<anyhow::Result<String>>()?)?;
        }
        ensure!(!interrupt.is_set(), Interrupted::leaving("what is marked `not run` was not made; the rest stands"));
        Ok(ExitCode::SUCCESS)
    }

    fn experiments(&self) -> anyhow::Result<Vec<Experiment>> {
        let all = study(&self.study)?;
        let Some(figure) = &self.figure else { return Ok(all) };
        let is_number = figure.chars().all(|c| c.is_ascii_digit());
        let id = if is_number { format!("F{figure}") } else { figure.to_uppercase() };
        // The runs of one figure can bear claims of others: those of F15 show F16 and F17.
        let shows = |experiment: &Experiment| {
            let figures = experiment.claims.iter().filter_map(|claim| claim.id.split('.').next().map(str::to_owned));
            figures.chain([experiment.id.clone()]).collect::<BTreeSet<_>>()
        };
        let there: BTreeSet<_> = all.iter().flat_map(shows).collect();
        let chosen: Vec<_> = all.into_iter().filter(|experiment| shows(experiment).contains(&id)).collect();
        if chosen.is_empty() {
            let mut there: Vec<_> = there.into_iter().collect();
            there.sort_by_key(|id| (id.starts_with('F'), id.len()));
            bail!("{} has no figure {figure} here: there are {}", self.study, there.join(", "));
        }
        Ok(chosen)
    }
}

fn text(findings: &[(&Experiment, Vec<Finding>)]) -> String {
    let mut text = String::new();
    let mut counts = [(Verdict::Holds, 0), (Verdict::Reversed, 0), (Verdict::Inconclusive, 0), (Verdict::NotRun, 0)];
    for (experiment, findings) in findings {
        text += &format!("{}  {} ({})\n", experiment.id, experiment.title, experiment.source);
        for finding in findings {
            text += &format!("  {:<6} {:<13} {}\n", finding.id, finding.verdict.name().to_uppercase(), finding.says);
            text += &format!("         paper: {}\n         here:  {}\n", finding.paper, finding.measured);
            if let Some(diagnosis) = &finding.diagnosis {
                text += &format!("         why:   {diagnosis}\n");
            }
            if let Some((_, found)) = counts.iter_mut().find(|(verdict, _)| *verdict == finding.verdict) {
                *found += 1;
            }
        }
        text += "\n";
    }
    let told: Vec<String> = counts
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(verdict, count)| format!("{count} {}", verdict.name()))
        .collect();
    text + &format!("claims: {}\n", told.join(", "))
}
