//! The merge scheduler of an open store: which it is, how it is changed, and what it does with the merges under way.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Serialize;

use super::core::{Core, KeyspaceCore};
use super::work::MergeLimit;
use super::write::read_only;
use crate::compaction::decision::predict_ns;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::num::to_f64;
use crate::schedule::{MergeProgress, Scheduler, Why, WorkClass};
use crate::version::KeyspaceId;

/// A merge under way, as the scheduler sees it.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct MergeState {
    /// The job's number.
    pub job: u64,
    /// Whose.
    #[serde(skip)]
    pub keyspace: KeyspaceId,
    /// The shallowest level that it reads.
    pub from_level: u8,
    /// The level that it writes.
    pub to_level: u8,
    /// What it is for.
    pub class: WorkClass,
    /// Bytes of its input.
    pub input_bytes: u64,
    /// Bytes of its input that are still to be read.
    pub left_bytes: u64,
    /// Whether it has a share of the bandwidth.
    pub steps: bool,
    /// Why it steps or waits, in words.
    pub why: String,
}

/// What flushes and merges owe in a keyspace, all that its strategy wants because of what is there included; nothing is read or written to find out.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct Debt {
    /// Sorted runs and full memtables that count against the limits.
    pub runs: u64,
    /// Runs from which writers are slowed down, where the write control does that.
    pub slow_runs: u64,
    /// Runs at which writers stop.
    pub stop_runs: u64,
    /// How near the stop is, from 0 to 1.
    pub share: f64,
    /// How writes wait, as options spell it.
    pub write_control: String,
    /// Bytes of full memtables.
    pub flush_bytes: u64,
    /// Merges until nothing is due, by the dry run.
    pub merges: u64,
    /// Bytes that they read.
    pub read_bytes: u64,
    /// Bytes that they write.
    pub write_bytes: u64,
    /// How long they take if nothing more is written, in seconds, at the speed of the merges since the store was opened, or of those that
    /// are on record; none without any.
    pub seconds: Option<f64>,
}

impl MergeState {
    fn new(progress: &MergeProgress, why: Why) -> MergeState {
        MergeState {
            job: progress.job,
            keyspace: KeyspaceId(progress.tree),
            from_level: progress.from_level,
            to_level: progress.to_level,
            class: progress.class,
            input_bytes: progress.input_bytes,
            left_bytes: progress.left_bytes,
            steps: why == Why::Steps,
            why: why.to_string(),
        }
    }
}

impl Core {
    /// The scheduler, now.
    pub(crate) fn scheduler(&self) -> Scheduler {
        self.merges.lock().scheduler()
    }

    /// Makes `scheduler` the store's, from the next step on.
    pub(crate) fn set_scheduler(&self, scheduler: Scheduler) -> Result<()> {
        self.health.check_open()?;
        if self.read_only {
            return Err(read_only());
        }
        scheduler.validate().map_err(|what| Error::invalid(format!("scheduler {}: {what}", scheduler.name())))?;
        let before = {
            let mut merges = self.merges.lock();
            let before = merges.scheduler();
            merges.set_scheduler(scheduler);
            before
        };
        self.wake_compactions();
        if before != scheduler {
            self.tell(&Event::SchedulerSet { from: before.to_string(), to: scheduler.to_string() });
        }
        Ok(())
    }

    /// What a keyspace owes, by a dry run.
    pub(crate) fn debt_of(&self, keyspace: &KeyspaceCore) -> Result<Debt> {
        self.health.check_open()?;
        let policy = Arc::clone(&keyspace.steering.load().policy);
        let view = keyspace.view.load_full();
        let forecast = self.dry_run(keyspace, &*policy, &view.tree.version, true)?;
        let on_record = || {
            let kept = keyspace.decisions.lock();
            let ns = predict_ns(kept.iter().map(|decision| &**decision), forecast.read_bytes + forecast.write_bytes)?;
            Some(to_f64(ns) / 1e9)
        };
        let runs = keyspace.counted_runs(&view);
        Ok(Debt {
            runs,
            slow_runs: keyspace.slow_runs.load(Ordering::Relaxed),
            stop_runs: keyspace.stop_runs.load(Ordering::Relaxed),
            share: keyspace.limits().debt(to_f64(runs)),
            write_control: keyspace.options.write_control.to_string(),
            flush_bytes: view.immutable_bytes(),
            merges: forecast.merges,
            read_bytes: forecast.read_bytes,
            write_bytes: forecast.write_bytes,
            seconds: self.merge_time(&forecast).map(|time| time.as_secs_f64()).or_else(on_record),
        })
    }

    /// Changes the budget of background I/O.
    pub(crate) fn set_rate_limit(&self, bytes_per_s: u64) {
        self.limiter.set_rate(bytes_per_s);
        self.merges.lock().forget_debts();
        self.wake_compactions();
    }

    /// Limits a merge under way.
    pub(crate) fn limit_merge(&self, job: u64, limit: MergeLimit) -> Result<()> {
        self.health.check_open()?;
        if !self.merges.lock().limit(job, limit) {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no merge {job} under way")));
        }
        self.wake_compactions();
        Ok(())
    }

    /// The merges under way, the oldest first.
    pub(crate) fn merge_states(&self) -> Vec<MergeState> {
        let now_ms = self.now_ms();
        let now_ns = self.clock.mono_ns();
        let whys = self.merges.lock().whys(now_ns, now_ms);
        let mut states: Vec<_> = whys.iter().map(|(progress, why)| MergeState::new(progress, *why)).collect();
        states.sort_by_key(|state| state.job);
        states
    }
}
