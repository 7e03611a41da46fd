//! What became of the operations of a phase: one tally a client, put together at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use super::kind::{KINDS, index_of};
use super::row::KindRow;
use super::series::{Cell, Series};
use crate::metrics::Latencies;
use crate::workload::OpKind;

/// One client's operations.
pub(crate) struct Tally {
    kinds: [Option<Box<OfKind>>; KINDS],
    windows: Series<Window>,
}

/// The operations of one kind.
#[derive(Default)]
struct OfKind {
    count: u64,
    found: u64,
    latency: Latencies,
    /// None in a closed loop: it would be the same as `latency`.
    processing: Option<Latencies>,
}

/// A stretch of time.
#[derive(Clone, Default)]
pub(super) struct Window {
    /// By kind.
    operations: [u64; KINDS],
    /// By kind, from the intended start.
    longest_ns: [u64; KINDS],
}

impl Cell for Window {
    fn absorb(&mut self, later: Window) {
        self.operations.iter_mut().zip(later.operations).for_each(|(mine, more)| *mine += more);
        self.longest_ns.iter_mut().zip(later.longest_ns).for_each(|(mine, more)| *mine = (*mine).max(more));
    }
}

impl Window {
    /// Operations by the names of their kinds.
    pub(super) fn operations(&self) -> BTreeMap<&'static str, u64> {
        self.by_name(&self.operations)
    }

    /// The longest latencies, likewise.
    pub(super) fn longest_ns(&self) -> BTreeMap<&'static str, u64> {
        self.by_name(&self.longest_ns)
    }

    fn by_name(&self, figures: &[u64; KINDS]) -> BTreeMap<&'static str, u64> {
        let there = OpKind::ALL.into_iter().filter(|kind| self.operations[index_of(*kind)] > 0);
        there.map(|kind| (kind.name(), figures[index_of(kind)])).collect()
    }
}

/// An operation that has ended. Times count from the phase's begin.
#[derive(Clone, Copy)]
pub(super) struct Ended {
    pub(super) kind: OpKind,
    /// When it was meant to begin, in an open loop.
    pub(super) due_ns: Option<u64>,
    pub(super) began_ns: u64,
    pub(super) ended_ns: u64,
    pub(super) found: u64,
}

impl Tally {
    /// Nothing yet, in windows of `window_ns` at first.
    pub(super) fn new(window_ns: u64) -> Tally {
        Tally { kinds: Default::default(), windows: Series::new(window_ns) }
    }

    /// Counts an operation.
    #[inline]
    pub(super) fn add(&mut self, ended: &Ended) {
        let Ended { kind, due_ns, began_ns, ended_ns, found } = *ended;
        let latency_ns = ended_ns - due_ns.unwrap_or(began_ns);
        let of = self.kinds[index_of(kind)].get_or_insert_default();
        of.count += 1;
        of.found += found;
        of.latency.record(Duration::from_nanos(latency_ns));
        if due_ns.is_some() {
            of.processing.get_or_insert_default().record(Duration::from_nanos(ended_ns - began_ns));
        }
        let window = self.windows.at(ended_ns);
        window.operations[index_of(kind)] += 1;
        let longest_ns = &mut window.longest_ns[index_of(kind)];
        *longest_ns = (*longest_ns).max(latency_ns);
    }

    /// Takes in another client's.
    pub(super) fn merge(&mut self, other: Tally) {
        for (mine, other) in self.kinds.iter_mut().zip(other.kinds) {
            let Some(other) = other else { continue };
            let mine = mine.get_or_insert_default();
            mine.count += other.count;
            mine.found += other.found;
            mine.latency.merge(&other.latency);
            if let Some(processing) = other.processing {
                mine.processing.get_or_insert_default().merge(&processing);
            }
        }
        let mut others = other.windows;
        self.windows.coarsen(others.length_ns());
        others.coarsen(self.windows.length_ns());
        let length_ns = self.windows.length_ns();
        for (at, window) in (0..).zip(others.into_cells()) {
            self.windows.at(at * length_ns).absorb(window);
        }
    }

    /// What became of each kind.
    pub(super) fn kinds(&self) -> BTreeMap<String, KindRow> {
        let row = |of: &OfKind| {
            let latency = of.latency.summary();
            let processing = of.processing.as_ref().map_or(latency, Latencies::summary);
            KindRow { count: of.count, found: of.found, latency, processing }
        };
        let there = OpKind::ALL.into_iter().zip(&self.kinds);
        there.filter_map(|(kind, of)| Some((kind.name().to_owned(), row(of.as_deref()?)))).collect()
    }

    /// The latencies of all operations of `kind`.
    pub(crate) fn latencies(&self, kind: OpKind) -> Option<&Latencies> {
        self.kinds[index_of(kind)].as_deref().map(|of| &of.latency)
    }

    /// All operations.
    pub(super) fn operations(&self) -> u64 {
        self.kinds.iter().flatten().map(|of| of.count).sum()
    }

    /// The windows.
    pub(super) fn into_windows(self) -> Series<Window> {
        self.windows
    }
}
