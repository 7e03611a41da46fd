//! What is looked at from outside while a phase runs: the tree, the cache, the queue, the process.

use siltstone::Db;

use super::series::{Cell, Series};
use super::totals::Totals;
use crate::load::Schedule;
use crate::metrics::{cpu_seconds, resident_bytes};

/// A stretch of time: what stood at its end, and what was counted in it.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Gauge {
    pub(super) queued: u64,
    pub(super) runs: u64,
    pub(super) debt_bytes: u64,
    pub(super) tree_bytes: u64,
    pub(super) cache_hits: u64,
    pub(super) cache_misses: u64,
    pub(super) stall_ns: u64,
    /// The process's; 0 in a simulated world.
    pub(super) cpu_s: f64,
    pub(super) memory_bytes: u64,
    /// The most that it had at any sample.
    pub(super) most_memory_bytes: u64,
}

impl Cell for Gauge {
    fn absorb(&mut self, later: Gauge) {
        *self = Gauge {
            cache_hits: self.cache_hits + later.cache_hits,
            cache_misses: self.cache_misses + later.cache_misses,
            stall_ns: self.stall_ns + later.stall_ns,
            cpu_s: self.cpu_s + later.cpu_s,
            most_memory_bytes: self.most_memory_bytes.max(later.most_memory_bytes),
            ..later
        };
    }
}

/// Gauges over the time of a phase.
pub(super) struct Gauges {
    series: Series<Gauge>,
    queue: Queue,
    before: Totals,
    /// What the process has used, where that means something.
    cpu_s: Option<f64>,
    /// The next window that has not been looked at.
    next: u64,
    last_ns: u64,
}

impl Gauges {
    pub(super) fn new(db: &Db, window_ns: u64, queue: Queue, of_process: bool) -> Gauges {
        let cpu_s = of_process.then(cpu_seconds);
        Gauges { series: Series::new(window_ns), queue, before: Totals::now(db), cpu_s, next: 1, last_ns: 0 }
    }

    /// The end of a window that is over at `now_ns` and was not sampled; samples are taken in order.
    pub(super) fn due(&self, now_ns: u64) -> Option<u64> {
        let end_ns = self.next * self.series.length_ns();
        (end_ns <= now_ns).then_some(end_ns)
    }

    /// Looks at the store at `at_ns`, when `begun` operations of open loops have begun.
    pub(super) fn sample(&mut self, db: &Db, at_ns: u64, begun: u64) {
        let stats = db.stats();
        let totals = Totals::from(&stats);
        let since = totals - self.before;
        self.before = totals;
        let mut gauge = Gauge {
            queued: self.queue.waiting(at_ns, begun),
            runs: stats.runs,
            debt_bytes: stats.debt_bytes,
            tree_bytes: stats.disk_bytes,
            cache_hits: since.cache_hits,
            cache_misses: since.cache_misses,
            stall_ns: since.stall_ns,
            ..Gauge::default()
        };
        if let Some(before_s) = &mut self.cpu_s {
            let now_s = cpu_seconds();
            gauge.cpu_s = now_s - std::mem::replace(before_s, now_s);
            gauge.memory_bytes = resident_bytes();
            gauge.most_memory_bytes = gauge.memory_bytes;
        }
        // What ends with a window belongs to it.
        self.series.at(at_ns.saturating_sub(1)).absorb(gauge);
        self.last_ns = at_ns;
        self.next = at_ns / self.series.length_ns() + 1;
    }

    /// The time of the last sample.
    pub(super) fn last_ns(&self) -> u64 {
        self.last_ns
    }

    /// The windows.
    pub(super) fn into_series(self) -> Series<Gauge> {
        self.series
    }
}

/// What one crew is to do.
struct Due {
    /// The times after the next one.
    schedule: Schedule,
    next_ns: u64,
    so_far: u64,
    most: u64,
}

/// Operations of open loops that are due and have not begun.
#[derive(Default)]
pub(super) struct Queue {
    crews: Vec<Due>,
}

impl Queue {
    /// With nothing due yet. Each crew has times, and perhaps a number of operations.
    pub(super) fn new(crews: impl Iterator<Item = (Schedule, Option<u64>)>) -> Queue {
        let first = |(mut schedule, most): (Schedule, Option<u64>)| {
            let next_ns = schedule.next().unwrap_or(u64::MAX);
            Due { schedule, next_ns, so_far: 0, most: most.unwrap_or(u64::MAX) }
        };
        Queue { crews: crews.map(first).collect() }
    }

    /// How many wait at `at_ns`; `begun` of them have begun, which were due.
    fn waiting(&mut self, at_ns: u64, begun: u64) -> u64 {
        let mut all = 0;
        for due in &mut self.crews {
            while due.next_ns < at_ns && due.so_far < due.most {
                due.so_far += 1;
                due.next_ns = due.schedule.next().unwrap_or(u64::MAX);
            }
            all += due.so_far;
        }
        all.saturating_sub(begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_of_memory_outlives_the_windows() {
        let mut series: Series<Gauge> = Series::new(10);
        for (at, memory_bytes) in [(5, 9), (15, 1), (25, 2)] {
            series.at(at).absorb(Gauge { memory_bytes, most_memory_bytes: memory_bytes, ..Gauge::default() });
        }
        series.coarsen(40);
        let [all] = series.into_cells()[..] else { panic!("one window") };
        assert_eq!((all.memory_bytes, all.most_memory_bytes), (2, 9));
    }
}
