//! All trials of a question: simulated ones side by side, those on disk one at a time.

use std::panic::resume_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use siltstone::ErrorKind;

use super::folder::Results;
use super::question::{Place, Task, trials};
use super::row::Row;
use super::rows::gather;
use super::task::run_trial;
use super::trial::Progress;
use crate::num::{count, float};

/// How far a run is.
#[derive(Clone, Debug)]
pub struct RunProgress {
    /// Trials of the question.
    pub trials: u64,
    /// Trials that are finished.
    pub finished: u64,
    /// The share of all work that is over, about, from 0 to 1.
    pub share: f64,
    /// How long the rest takes, about; none in the first moments.
    pub left: Option<Duration>,
    /// What is done now: trial and phase.
    pub doing: Vec<String>,
}

/// Does what is left of a question, `jobs` trials at a time where the world is simulated, and gathers the rows. `watch` ends the run by answering
/// false; what is finished by then stays.
///
/// # Errors
/// The first error of a trial; `Cancelled` if told so; `Corruption` if two strategies end with different records that should not.
pub fn run_all(
    results: &Results,
    jobs: usize,
    scratch: Option<&Path>,
    watch: &(dyn Fn(&RunProgress) -> bool + Sync),
) -> anyhow::Result<Vec<Row>> {
    let open = results.open_tasks()?;
    let board = Board::new(trials(results.question()), &open);
    let jobs = if results.question().world == Place::Disk { 1 } else { jobs.clamp(1, open.len().max(1)) };
    std::thread::scope(|scope| {
        let work = || board.work(results, scratch, watch);
        let others: Vec<_> = (1..jobs).map(|_| scope.spawn(work)).collect();
        let mut ends = vec![work()];
        ends.extend(others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic))));
        // Whoever was stopped because another one failed can say no more than that.
        let first = ends.into_iter().min_by_key(|end| match end {
            Err(error) if !is_cancelled(error) => 0,
            Err(_) => 1,
            Ok(()) => 2,
        });
        first.unwrap_or(Ok(()))
    })?;
    gather(results)
}

/// Whether a run ended so because it was told to.
pub fn is_cancelled(error: &anyhow::Error) -> bool {
    let kind = error.chain().find_map(|cause| cause.downcast_ref()).map(siltstone::Error::kind);
    kind == Some(ErrorKind::Cancelled)
}

/// What is open and what is being done.
struct Board<'a> {
    trials: u64,
    open: &'a [Task],
    next: AtomicUsize,
    /// Somebody failed or was told to stop.
    stop: AtomicBool,
    start: Instant,
    /// By place in `open`: the share that is over, and what is done now.
    at: Mutex<Vec<(f64, Option<String>)>>,
}

impl<'a> Board<'a> {
    fn new(trials: u64, open: &'a [Task]) -> Board<'a> {
        let at = Mutex::new(vec![(0.0, None); open.len()]);
        Board { trials, open, next: AtomicUsize::new(0), stop: AtomicBool::new(false), start: Instant::now(), at }
    }

    /// Does trials until none is left.
    fn work(
        &self,
        results: &Results,
        scratch: Option<&Path>,
        watch: &(dyn Fn(&RunProgress) -> bool + Sync),
    ) -> anyhow::Result<()> {
        while !self.stop.load(Ordering::Relaxed) {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(task) = self.open.get(n) else { break };
            let watching = |progress: Progress<'_>| {
                let doing = format!("{} {}", task.name(), progress.phase);
                let now = self.note(n, progress.share, Some(doing));
                watch(&now) && !self.stop.load(Ordering::Relaxed)
            };
            let done = run_trial(task, &results.trial(task), scratch, &watching)
                .with_context(|| format!("trial {}", task.name()));
            if done.is_err() {
                self.stop.store(true, Ordering::Relaxed);
            }
            done?;
            watch(&self.note(n, 1.0, None));
        }
        Ok(())
    }

    fn note(&self, n: usize, share: f64, doing: Option<String>) -> RunProgress {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        at[n] = (share, doing);
        let over: f64 = at.iter().map(|(share, _)| share).sum();
        let ended = count(at.iter().filter(|(share, _)| *share >= 1.0).count());
        let all = float(count(at.len()));
        let elapsed = self.start.elapsed();
        let enough = over > 0.0 && elapsed > Duration::from_secs(1);
        RunProgress {
            trials: self.trials,
            finished: self.trials - count(at.len()) + ended,
            share: over / all,
            left: enough.then(|| elapsed.mul_f64(((all - over) / over).clamp(0.0, 1e6))),
            doing: at.iter().filter_map(|(_, doing)| doing.clone()).collect(),
        }
    }
}
