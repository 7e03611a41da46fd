//! How long compactions took, and whoever else listens to the store.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use siltstone::compaction::plan::Action;
use siltstone::{Event, EventListener};

use crate::metrics::{Latencies, LatencySummary};
use crate::num::float;

/// Hands every event to several listeners.
pub(super) struct Fan(pub(super) Vec<Arc<dyn EventListener>>);

impl EventListener for Fan {
    fn event(&self, event: &Event) {
        self.0.iter().for_each(|listener| listener.event(event));
    }
}

/// Adds up what merges took that ended while it counted.
#[derive(Default)]
pub(super) struct MergeTimes(Mutex<Times>);

#[derive(Default)]
struct Times {
    is_counting: bool,
    latency: Latencies,
    cpu_ns: u64,
    io_ns: u64,
}

impl MergeTimes {
    /// From here on merges are counted, or not: those of a warm-up are not.
    pub(super) fn count(&self, on: bool) {
        self.lock().is_counting = on;
    }

    /// From picking to the manifest's update, and the seconds of that in computing and in file calls.
    pub(super) fn seen(&self) -> (LatencySummary, f64, f64) {
        let times = self.lock();
        (times.latency.summary(), float(times.cpu_ns) / 1e9, float(times.io_ns) / 1e9)
    }

    fn lock(&self) -> MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventListener for MergeTimes {
    fn event(&self, event: &Event) {
        let Event::CompactionEnd { decision, .. } = event else { return };
        let mut times = self.lock();
        if let Some(ended) = decision.ended.as_ref().filter(|_| times.is_counting && decision.action == Action::Merge) {
            times.latency.record(Duration::from_nanos(ended.took_ns));
            times.cpu_ns += ended.cpu_ns;
            times.io_ns += ended.io_ns;
        }
    }
}
