//! What a store has counted, as one value that can be subtracted: the figures of a stretch are the end's less the begin's.

use std::ops::{AddAssign, Sub};

use siltstone::{Db, Stats};

macro_rules! totals {
    ($($(#[$doc:meta])* $name:ident = $from:expr),* $(,)?) => {
        /// Counters of a store. Sizes are bytes, times nanoseconds.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub(super) struct Totals { $($(#[$doc])* pub(super) $name: u64,)* }

        impl Totals {
            fn of(stats: &Stats) -> Totals {
                Totals { $($name: ($from)(stats),)* }
            }
        }

        impl Sub for Totals {
            type Output = Totals;

            fn sub(self, before: Totals) -> Totals {
                Totals { $($name: self.$name - before.$name,)* }
            }
        }

        impl AddAssign for Totals {
            fn add_assign(&mut self, more: Totals) {
                $(self.$name += more.$name;)*
            }
        }
    };
}

totals! {
    user_bytes = |s: &Stats| s.user_bytes_written,
    log_bytes = |s: &Stats| s.log_bytes,
    flush_bytes = |s: &Stats| s.flush_bytes,
    flushes = |s: &Stats| s.flushes,
    compactions = |s: &Stats| s.compactions,
    trivial_moves = |s: &Stats| s.trivial_moves,
    compaction_bytes_read = |s: &Stats| s.compaction_bytes_read,
    compaction_bytes_written = |s: &Stats| s.compaction_bytes_written,
    gets = |s: &Stats| s.gets,
    get_hits = |s: &Stats| s.get_hits,
    runs_probed = |s: &Stats| s.filter_checks,
    filter_negatives = |s: &Stats| s.filter_negatives,
    cache_hits = |s: &Stats| s.cache_hits,
    cache_misses = |s: &Stats| s.cache_misses,
    stall_ns = |s: &Stats| s.stall_ns,
}

impl Totals {
    /// What `db` has counted so far.
    pub(super) fn now(db: &Db) -> Totals {
        Totals::of(&db.stats())
    }

    /// Data blocks that point lookups looked into: each run that the filter did not rule out costs one.
    pub(super) fn pages(&self) -> u64 {
        self.runs_probed.saturating_sub(self.filter_negatives)
    }
}

impl From<&Stats> for Totals {
    fn from(stats: &Stats) -> Totals {
        Totals::of(stats)
    }
}
