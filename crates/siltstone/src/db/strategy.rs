//! Which strategy steers a keyspace, and how another one takes over while the store is open.
//!
//! A switch is one edit of the manifest (the keyspace's option `strategy`) and one pointer that is swapped; no data is touched. Jobs that
//! run go on: the laws that their plans were checked against know no strategy, and their inputs stay busy. From the next plan on
//! the new rules see the tree as it is and bring it to their shape by ordinary merges. Round-robin cursors are places in the key
//! space, not a strategy's, so they stay.
//!
//! A policy that panics loses the keyspace: the one before it takes over again, or the default. That is kept in memory only, so
//! that the option stands as the user has set it and counts again after a reopen.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Serialize;

use super::core::{Core, KeyspaceCore};
use super::policies::allow;
use super::read::dropped;
use super::stats::LevelStats;
use crate::compaction::{CompactionPolicy, LsmView, Sizes, Strategy};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::forecast::{Circumstances, Forecast, forecast};
use crate::num::{to_f64, to_usize};
use crate::options::KeyspaceOptions;
use crate::version::{ManifestEdit, Version};

/// What decides a keyspace's compactions now. Replaced as a whole, so that nobody sees half a switch.
pub(crate) struct Steering {
    /// The option: the name of a preset, or the text of a strategy file.
    pub(crate) strategy: String,
    pub(crate) policy: Arc<dyn CompactionPolicy>,
    /// What takes over if this one panics; without it, the default does.
    previous: Option<(String, Arc<dyn CompactionPolicy>)>,
    /// The default has taken over: nothing comes after it.
    is_last: bool,
    /// Where the switch began; none if there was none since the store was opened.
    departure: Option<Departure>,
}

/// Where a switch began.
struct Departure {
    from: String,
    version: Arc<Version>,
    /// Bytes that the merges were to move, by the dry run; worked out when first asked for.
    predicted: OnceLock<u64>,
}

impl Steering {
    /// The strategy that the option says, which means `policy`.
    pub(crate) fn new(strategy: &str, policy: Arc<dyn CompactionPolicy>) -> Steering {
        Steering { strategy: strategy.to_owned(), policy, previous: None, is_last: false, departure: None }
    }

    /// Whether it was set on the open store.
    pub(crate) fn has_departed(&self) -> bool {
        self.departure.is_some()
    }

    /// What takes over when this one has panicked; none if this is the last resort.
    fn fallback(&self) -> Option<Steering> {
        let (strategy, policy, is_last) = match &self.previous {
            Some((strategy, policy)) => (strategy.clone(), Arc::clone(policy), false),
            None if self.is_last => return None,
            None => {
                let default = KeyspaceOptions::default().strategy;
                let policy: Arc<dyn CompactionPolicy> = Arc::new(Strategy::named(&default).ok()?);
                (default, policy, true)
            }
        };
        Some(Steering { strategy, policy, previous: None, is_last, departure: None })
    }
}

/// What a switch would take, worked out by the planner on the tree's metadata alone; nothing is read or written.
///
/// It is the debt under the new rules of the tree as it is now: writes that come meanwhile are not counted, nor is what is in
/// memtables. How sizes are estimated, and how wrong that can be: [`forecast`](crate::forecast).
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct SwitchPlan {
    /// The strategy in force.
    pub from: String,
    /// The strategy asked about.
    pub to: String,
    /// Merges until nothing is due.
    pub merges: u64,
    /// Files that change their level without being rewritten.
    pub moved_files: u64,
    /// Files that go away because they hold nothing but dead tombstones.
    pub dropped_files: u64,
    /// Files that go away with what is in them: the oldest of a keyspace that may lose it.
    pub lost_files: u64,
    /// Their bytes.
    pub lost_bytes: u64,
    /// Bytes that the merges read.
    pub read_bytes: u64,
    /// Bytes that the merges write.
    pub write_bytes: u64,
    /// The most bytes that exist at once beyond those at the start.
    pub peak_extra_bytes: u64,
    /// How long it takes at the speed of the merges since the store was opened, nobody else using the disk; none before the first merge.
    pub seconds: Option<f64>,
    /// Whether the dry run came to its end; if not, it gave up after very many jobs, and all figures are lower bounds.
    pub settled: bool,
    /// The tree now, L0 first.
    pub levels_before: Vec<LevelStats>,
    /// The tree when nothing is due any more.
    pub levels_after: Vec<LevelStats>,
}

/// How far a keyspace is on its way to the shape that its strategy wants.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct SwitchProgress {
    /// The strategy in force.
    pub strategy: String,
    /// The strategy before it; none if it was not changed since the store was opened.
    pub from: Option<String>,
    /// Bytes that merges were to read and write from the switch on, by the dry run then; 0 if there was no switch.
    pub predicted_bytes: u64,
    /// Bytes that merges have to read and write still, by the dry run now. It can exceed the prediction: writes go on.
    pub left_bytes: u64,
    /// Nothing is due and nothing runs.
    pub is_done: bool,
}

impl SwitchProgress {
    /// The share that is done, from 0 to 1.
    pub fn share(&self) -> f64 {
        if self.is_done {
            return 1.0;
        }
        let all = self.predicted_bytes.max(self.left_bytes).max(1);
        (1.0 - to_f64(self.left_bytes) / to_f64(all)).clamp(0.0, 1.0)
    }
}

impl KeyspaceCore {
    /// The options with the strategy in force.
    pub(crate) fn current_options(&self) -> KeyspaceOptions {
        KeyspaceOptions {
            strategy: self.steering.load().strategy.clone(),
            may_lose_oldest: self.may_lose_oldest(),
            ..self.options.clone()
        }
    }

    /// The option in force.
    pub(crate) fn may_lose_oldest(&self) -> bool {
        self.may_lose_oldest.load(Ordering::Acquire)
    }

    /// Takes from the policy in force what others look up: the limits on sorted runs that fit the shape of `version`, and whether
    /// reads count.
    pub(crate) fn set_limits(&self, version: &Version) {
        let view = LsmView::new(version, Sizes::from(&self.options));
        let asked =
            |policy: &dyn CompactionPolicy| (self.options.constraint().limits(policy, &view), policy.counts_reads());
        // If not even the default can be asked, they stay as they are.
        if let Ok((limits, counts_reads)) = self.ask(asked) {
            self.counts_reads.store(counts_reads, Ordering::Relaxed);
            self.slow_runs.store(u64::from(limits.slowdown_runs), Ordering::Relaxed);
            self.stop_runs.store(u64::from(limits.stop_runs), Ordering::Relaxed);
        }
    }

    /// Asks the policy in force; if it panics, the one that takes over.
    ///
    /// # Errors
    /// `InvalidArgument` if there is none left to take over.
    pub(crate) fn ask<T>(&self, mut question: impl FnMut(&dyn CompactionPolicy) -> T) -> Result<T> {
        loop {
            let steering = self.steering.load_full();
            // Nothing of a question outlives it but its answer, and the policy that broke off is not asked again.
            match catch_unwind(AssertUnwindSafe(|| question(&*steering.policy))) {
                Ok(answer) => return Ok(answer),
                Err(panic) => self.fall_back(&steering, &words(&*panic))?,
            }
        }
    }

    fn fall_back(&self, panicked: &Arc<Steering>, message: &str) -> Result<()> {
        let policy = panicked.policy.name().to_owned();
        let Some(fallback) = panicked.fallback() else {
            return Err(Error::invalid(format!(
                "policy {policy} panicked, and nothing is left to take over: {message}"
            )));
        };
        let fallback = Arc::new(fallback);
        let before = self.steering.compare_and_swap(panicked, Arc::clone(&fallback));
        // Otherwise a user was faster, and has chosen another one.
        if Arc::ptr_eq(&before, panicked) {
            let message = message.to_owned();
            let fallback = fallback.policy.name().to_owned();
            self.untold.lock().push(Event::PolicyPanicked { keyspace: self.id, policy, message, fallback });
        }
        Ok(())
    }
}

/// What a panic said.
pub(super) fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "(no message)".to_owned())
}

impl Core {
    /// The same where there mostly is nothing to tell.
    pub(crate) fn tell_if_untold(&self) {
        if self.is_untold.load(Ordering::Relaxed) && self.is_untold.swap(false, Ordering::Relaxed) {
            self.tell_untold();
        }
    }

    /// Tells what happened while a lock was held.
    pub(crate) fn tell_untold(&self) {
        for keyspace in self.keyspaces.load().values() {
            let untold = std::mem::take(&mut *keyspace.untold.lock());
            untold.iter().for_each(|event| self.tell(event));
        }
    }

    /// Makes `strategy` the keyspace's, durably.
    pub(crate) fn set_strategy(&self, keyspace: &Arc<KeyspaceCore>, strategy: &str) -> Result<()> {
        self.health.check_write()?;
        // A name is a name with blanks around it; a text is kept as it is.
        let strategy = if strategy.contains('\n') { strategy } else { strategy.trim() };
        let mut manifest = self.lock_manifest()?;
        let next = Steering::new(strategy, self.policies.resolve_for(strategy, keyspace.may_lose_oldest())?);
        if keyspace.dropped.load(Ordering::Acquire) {
            return Err(dropped(keyspace));
        }
        let before = keyspace.steering.load_full();
        let options = KeyspaceOptions { strategy: strategy.to_owned(), ..keyspace.current_options() };
        let options_text = options.to_text();
        if before.strategy == strategy && manifest.state().keyspaces[&keyspace.id].options_text == options_text {
            return Ok(());
        }
        self.poison_on_failure(manifest.commit(&[ManifestEdit::SetOptions(keyspace.id, options_text)]))?;
        // The manifest lock keeps other switches and new versions away until the limits fit again.
        let version = Arc::clone(&keyspace.view.load().tree.version);
        let from = before.policy.name().to_owned();
        let to = next.policy.name().to_owned();
        let previous = Some((before.strategy.clone(), Arc::clone(&before.policy)));
        let departure =
            Some(Departure { from: from.clone(), version: Arc::clone(&version), predicted: OnceLock::new() });
        keyspace.steering.store(Arc::new(Steering { previous, departure, ..next }));
        keyspace.set_limits(&version);
        drop(manifest);
        // Who waited at the old limit looks again, and there may be something to merge.
        self.retune();
        self.wake_compactions();
        self.notify();
        self.tell(&Event::StrategySet { keyspace: keyspace.id, from, to });
        self.tell_untold();
        Ok(())
    }

    /// Sets the option `may_lose_oldest`, durably.
    pub(crate) fn set_may_lose_oldest(&self, keyspace: &Arc<KeyspaceCore>, may: bool) -> Result<()> {
        self.health.check_write()?;
        // Who drops data asks under this lock.
        let mut manifest = self.lock_manifest()?;
        if keyspace.dropped.load(Ordering::Acquire) {
            return Err(dropped(keyspace));
        }
        let steering = keyspace.steering.load_full();
        // What would take over from a policy that panics counts as well.
        let previous = steering.previous.iter().map(|(_, policy)| policy);
        for policy in std::iter::once(&steering.policy).chain(previous) {
            allow(&**policy, may)?;
        }
        if keyspace.may_lose_oldest() == may {
            return Ok(());
        }
        let options = KeyspaceOptions { may_lose_oldest: may, ..keyspace.current_options() };
        self.poison_on_failure(manifest.commit(&[ManifestEdit::SetOptions(keyspace.id, options.to_text())]))?;
        keyspace.may_lose_oldest.store(may, Ordering::Release);
        drop(manifest);
        self.wake_compactions();
        Ok(())
    }

    /// The dry run of a switch to `strategy`.
    pub(crate) fn plan_switch(&self, keyspace: &KeyspaceCore, strategy: &str) -> Result<SwitchPlan> {
        self.health.check_open()?;
        let policy = self.policies.resolve_for(strategy, keyspace.may_lose_oldest())?;
        let version = Arc::clone(&keyspace.view.load().tree.version);
        let forecast = self.dry_run(keyspace, &*policy, &version, true)?;
        Ok(SwitchPlan {
            from: keyspace.steering.load().policy.name().to_owned(),
            to: policy.name().to_owned(),
            merges: forecast.merges,
            moved_files: forecast.moved_files,
            dropped_files: forecast.dropped_files,
            lost_files: forecast.lost.files,
            lost_bytes: forecast.lost.bytes,
            read_bytes: forecast.read_bytes,
            write_bytes: forecast.write_bytes,
            peak_extra_bytes: forecast.peak_extra_bytes,
            seconds: self.merge_time(&forecast).map(|time| time.as_secs_f64()),
            settled: forecast.settled,
            levels_before: LevelStats::of_all(&version),
            levels_after: LevelStats::of_all(&forecast.end),
        })
    }

    /// How far the keyspace is since its strategy was set last.
    pub(crate) fn switch_progress(&self, keyspace: &KeyspaceCore) -> Result<SwitchProgress> {
        self.health.check_open()?;
        let steering = keyspace.steering.load_full();
        // The dry run counts running merges as a whole; about as many bytes as they have read they have written, too.
        let merged_bytes = self.merged_bytes(keyspace.id);
        let version = Arc::clone(&keyspace.view.load().tree.version);
        let left = self.dry_run(keyspace, &*steering.policy, &version, true)?;
        let moved_bytes = |forecast: &Forecast| forecast.read_bytes + forecast.write_bytes;
        let mut predicted_bytes = 0;
        if let Some(departure) = &steering.departure {
            predicted_bytes = match departure.predicted.get() {
                Some(bytes) => *bytes,
                None => {
                    // Jobs of that moment have ended since; the same planner chooses about the same again.
                    let then = self.dry_run(keyspace, &*steering.policy, &departure.version, false)?;
                    *departure.predicted.get_or_init(|| moved_bytes(&then))
                }
            };
        }
        Ok(SwitchProgress {
            strategy: steering.policy.name().to_owned(),
            from: steering.departure.as_ref().map(|departure| departure.from.clone()),
            predicted_bytes,
            left_bytes: moved_bytes(&left).saturating_sub(2 * merged_bytes),
            is_done: left.jobs() == 0,
        })
    }

    pub(super) fn dry_run(
        &self,
        keyspace: &KeyspaceCore,
        policy: &dyn CompactionPolicy,
        version: &Version,
        with_running: bool,
    ) -> Result<Forecast> {
        let (mut running, cursors) = self.compactions_of(keyspace.id);
        let live = version.files().map(|(_, _, file)| file.id).collect::<std::collections::BTreeSet<_>>();
        // A job can have ended, or begun, between the two looks.
        running.retain(|plan| with_running && plan.files().all(|file| live.contains(&file.id)));
        let now_ms = self.now_ms();
        let (oldest, newest) = self.snapshot_ends();
        let view = LsmView::new(version, Sizes::from(&keyspace.options))
            .with_running(&running)
            .with_cursors(&cursors)
            .with_snapshots(oldest, newest)
            .with_losses(keyspace.may_lose_oldest())
            .with_last_write(keyspace.last_write_ms(now_ms))
            .at(now_ms);
        let paid = keyspace.paid_by_reads(policy, &view);
        let view = view.with_read_work(paid.as_ref());
        let keyspaces = self.keyspaces.load();
        let is_empty = |other: &KeyspaceCore| other.view.load().tree.version.run_count() == 0;
        let alone = keyspaces.values().all(|other| other.id == keyspace.id || is_empty(other));
        let circumstances = Circumstances {
            lanes: to_usize(u64::from(self.options.compaction_threads)),
            own_writes: alone.then_some(1.0),
        };
        catch_unwind(AssertUnwindSafe(|| forecast(policy, &view, circumstances))).unwrap_or_else(|panic| {
            Err(Error::invalid(format!("policy {} panicked: {}", policy.name(), words(&*panic))))
        })
    }

    /// How long merges take at the speed that they have had so far.
    pub(super) fn merge_time(&self, forecast: &Forecast) -> Option<Duration> {
        let merging = to_f64(forecast.lane_bytes) * self.work(0, 0).merge_ns_per_byte()? / 1e9;
        let rate = self.limiter.rate_bytes_per_s();
        let limited = if rate == 0 { 0.0 } else { to_f64(forecast.read_bytes) / to_f64(rate) };
        Duration::try_from_secs_f64(merging.max(limited)).ok()
    }
}

#[cfg(test)]
mod tests;
