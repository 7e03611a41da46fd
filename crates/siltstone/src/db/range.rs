//! Range reads: lazy, double-ended, seekable, over one moment of a keyspace.

use std::cell::Cell;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use bytes::Bytes;

use super::core::{Core, KeyspaceCore};
use super::read::{Source, USER_READ, View};
use crate::error::Result;
use crate::iter::file::RunTables;
use crate::iter::merging::Merging;
use crate::iter::run::RunCursor;
use crate::iter::visible::{Bounds, Visible};
use crate::key::SeqNo;
use crate::trace::RangeTrace;

/// The records of a key range, in order, as they were when the range was opened (or at its snapshot).
///
/// An [`Iterator`] of `(key, value)` from both ends. Where a copy of each record is too dear, use the lending form:
/// [`advance`](Range::advance), then [`key`](Range::key) and [`value`](Range::value). It holds the files that it reads; drop it
/// when done. After an error it yields that error once and then nothing.
pub struct Range {
    front: End,
    back: Option<End>,
    /// What a second end is opened from.
    view: Arc<View>,
    seq: SeqNo,
    /// When it began, if reads are counted by file.
    counted_ms: Option<u64>,
    finished: bool,
    /// What is recorded when it is dropped.
    trace: Option<Box<RangeTrace>>,
}

thread_local! {
    /// The list that the thread's last range had its sources in, empty. Such lists are longer than allocators keep ready.
    static SOURCES: Cell<Vec<Source>> = const { Cell::new(Vec::new()) };
}

/// A longer list is not kept.
const MOST_KEPT: usize = 32;

struct End {
    entries: Visible<Merging<Source>>,
    started: bool,
    /// A seek has placed it already.
    positioned: bool,
}

impl Range {
    pub(crate) fn open<K: AsRef<[u8]>>(
        core: &Core,
        keyspace: &KeyspaceCore,
        bounds: impl RangeBounds<K>,
        snapshot: Option<SeqNo>,
    ) -> Result<Range> {
        core.check_read(keyspace)?;
        core.count_range(keyspace);
        // The range keeps its view, so no merge takes away from it.
        let (view, now) = core.view_now(keyspace);
        let (view, seq) = (arc_swap::Guard::into_inner(view), snapshot.unwrap_or(now));
        let bounds = Bounds { lower: owned(bounds.start_bound()), upper: owned(bounds.end_bound()) };
        let counted_ms = core.counted_ms(keyspace);
        let trace = core.trace_range(keyspace, &bounds);
        let front = End::open(&view, seq, bounds, counted_ms);
        Ok(Range { front, back: None, view, seq, counted_ms, finished: false, trace })
    }

    /// Moves the front to the next record; false at the end. The record is then at [`key`](Self::key) and
    /// [`value`](Self::value).
    ///
    /// # Errors
    /// `Corruption` or `Io`. The range is finished after one.
    #[inline]
    pub fn advance(&mut self) -> Result<bool> {
        if self.front.started && self.back.is_none() && self.trace.is_none() && !self.finished {
            let moved = self.front.entries.next();
            if moved.is_ok() && self.front.entries.valid() {
                return Ok(true);
            }
            return self.end(moved.map(|()| false));
        }
        self.advance_in_full()
    }

    /// [`advance`](Self::advance) where there is more to it than a step of the front.
    #[inline(never)]
    fn advance_in_full(&mut self) -> Result<bool> {
        if self.finished {
            return Ok(false);
        }
        let moved = self.front.forward();
        let met = self.back.as_ref().is_some_and(|back| back.reached(&self.front));
        if !matches!(moved, Ok(true)) || met {
            return self.end(moved);
        }
        if let Some(trace) = &mut self.trace {
            trace.forward += 1;
        }
        Ok(true)
    }

    /// Moves the back to the record before; false at the end. The record is then at [`key_back`](Self::key_back) and
    /// [`value_back`](Self::value_back).
    ///
    /// # Errors
    /// As [`advance`](Self::advance).
    pub fn advance_back(&mut self) -> Result<bool> {
        if self.finished {
            return Ok(false);
        }
        let bounds = self.front.entries.bounds();
        let back = self.back.get_or_insert_with(|| End::open(&self.view, self.seq, bounds.clone(), self.counted_ms));
        let moved = back.backward();
        if !matches!(moved, Ok(true)) || back.reached(&self.front) {
            return self.end(moved);
        }
        if let Some(trace) = &mut self.trace {
            trace.backward += 1;
        }
        Ok(true)
    }

    /// Nothing is left, or the last move failed.
    #[cold]
    fn end(&mut self, moved: Result<bool>) -> Result<bool> {
        self.finished = true;
        moved.map(|_| false)
    }

    /// Moves the front so that the next [`advance`](Self::advance) yields the first record at or after `key` (and inside the
    /// range). It may go back as well. The back, if it was used, begins anew at the end of the range, and goes no further than to that record.
    ///
    /// # Errors
    /// As [`advance`](Self::advance).
    pub fn seek(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        self.finished = false;
        self.back = None;
        self.front.entries.seek(key.as_ref())?;
        self.front.started = false;
        self.front.positioned = true;
        Ok(())
    }

    /// The key at the front.
    ///
    /// # Panics
    /// If the last [`advance`](Self::advance) did not return true.
    pub fn key(&self) -> &[u8] {
        self.front.entries.key()
    }

    /// The value at the front.
    ///
    /// # Panics
    /// If the last [`advance`](Self::advance) did not return true.
    pub fn value(&self) -> &[u8] {
        self.front.entries.value()
    }

    /// The key at the back.
    ///
    /// # Panics
    /// If the last [`advance_back`](Self::advance_back) did not return true.
    pub fn key_back(&self) -> &[u8] {
        self.back.as_ref().expect("advance_back was called").entries.key()
    }

    /// The value at the back.
    ///
    /// # Panics
    /// If the last [`advance_back`](Self::advance_back) did not return true.
    pub fn value_back(&self) -> &[u8] {
        self.back.as_ref().expect("advance_back was called").entries.value()
    }
}

impl Iterator for Range {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.advance() {
            Ok(true) => Some(Ok((Bytes::copy_from_slice(self.key()), Bytes::copy_from_slice(self.value())))),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        match self.advance_back() {
            Ok(true) => Some(Ok((Bytes::copy_from_slice(self.key_back()), Bytes::copy_from_slice(self.value_back())))),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

impl std::iter::FusedIterator for Range {}

impl std::fmt::Debug for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Range")
            .field("seq", &self.seq)
            .field("bounds", self.front.entries.bounds())
            .finish_non_exhaustive()
    }
}

impl End {
    fn open(view: &View, seq: SeqNo, bounds: Bounds, counted_ms: Option<u64>) -> End {
        let memtables = std::iter::once(&view.memtable).chain(&view.immutables);
        let mut sources = SOURCES.try_with(Cell::take).unwrap_or_default();
        sources.reserve(1 + view.immutables.len() + view.tree.runs.len());
        sources.extend(memtables.filter(|slot| !slot.table.is_empty()).map(|slot| Source::memtable(&slot.table)));
        let tables = |run| RunTables { files: Arc::clone(run), ctx: USER_READ, counted_ms };
        sources.extend(view.tree.runs.iter().map(|run| Source::Run(RunCursor::new(tables(run)))));
        End { entries: Visible::new(Merging::new(sources), seq, bounds), started: false, positioned: false }
    }

    /// Moves to the following record: the first one at first.
    fn forward(&mut self) -> Result<bool> {
        if self.started {
            self.entries.next()?;
        } else if !self.positioned {
            self.entries.seek_first()?;
        }
        self.started = true;
        Ok(self.entries.valid())
    }

    fn backward(&mut self) -> Result<bool> {
        if self.started {
            self.entries.prev()?;
        } else {
            self.entries.seek_last()?;
        }
        self.started = true;
        Ok(self.entries.valid())
    }

    /// Whether nothing is left between this end, which is the back, and the front. A front that a seek has placed has not yielded its record yet:
    /// that one is left for the back.
    fn reached(&self, front: &End) -> bool {
        if !self.started || !(front.started || front.positioned) {
            return false;
        }
        if !self.entries.valid() || !front.entries.valid() {
            return true;
        }
        let (back, front_key) = (self.entries.key(), front.entries.key());
        back < front_key || (back == front_key && front.started)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut sources = self.entries.source_mut().take_sources();
        sources.clear();
        if sources.capacity() <= MOST_KEPT {
            // A thread that ends has nowhere to keep it.
            let _ = SOURCES.try_with(|kept| kept.set(sources));
        }
    }
}

pub(crate) fn owned<K: AsRef<[u8]>>(bound: Bound<&K>) -> Bound<Bytes> {
    bound.map(|key| Bytes::copy_from_slice(key.as_ref()))
}

/// The bounds of all keys that begin with `prefix`.
pub fn prefix_bounds(prefix: &[u8]) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let mut end = prefix.to_vec();
    // The first key after them: the prefix with its last byte that can grow grown, the rest cut off.
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return (Bound::Included(prefix.to_vec()), Bound::Excluded(end));
        }
    }
    (Bound::Included(prefix.to_vec()), Bound::Unbounded)
}
