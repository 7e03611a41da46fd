//! Several sorted sources as one, in both directions: what a user's iterator reads.
//!
//! Only the two smallest positions matter from step to step: the leader is advanced until it passes the runner-up, and only
//! then are the others looked at. In a tree nine of ten entries come from the last level, so most steps cost one compare of two
//! 16-byte integers ([`head`]); keys are compared in full only when their heads are equal. A seek first tells every source what
//! is coming, so that their cache misses overlap.

use std::cmp::Ordering;

use super::Cursor;
use crate::error::{Error, Result};
use crate::key::{Entry, Trailer, compare, head};

/// `C`s merged into internal order. Sources are given newest first: of two equal entries (they exist only where a file is
/// taken in whose entries have one sequence number) the one of the earlier source comes first.
pub struct Merging<C> {
    sources: Vec<Source<C>>,
    /// The source at the position, if any is.
    leader: Option<usize>,
    /// The source that is next in the direction after the leader, if another has an entry.
    runner_up: Option<usize>,
    backward: bool,
    /// The key at the position while the others are moved to its other side.
    key: Vec<u8>,
    failed: Option<Error>,
}

struct Source<C> {
    cursor: C,
    /// The head of its key, while it is at an entry.
    head: Option<u128>,
}

impl<C: Cursor> Source<C> {
    #[inline]
    fn look(&mut self) {
        self.head = self.cursor.entry().map(|entry| head(entry.key));
    }
}

impl<C: Cursor> Merging<C> {
    /// A merge of `sources`, newest first, at no entry.
    pub fn new(sources: Vec<C>) -> Merging<C> {
        let sources = sources.into_iter().map(|cursor| Source { cursor, head: None }).collect();
        Merging { sources, leader: None, runner_up: None, backward: false, key: Vec::new(), failed: None }
    }

    /// The order of two sources that are at entries: keys, versions, then the newer source first.
    #[inline]
    fn order(&self, a: usize, b: usize) -> Ordering {
        let (left, right) = (&self.sources[a], &self.sources[b]);
        match left.head.cmp(&right.head) {
            Ordering::Equal => Self::order_in_full(&left.cursor, &right.cursor).then(a.cmp(&b)),
            decided => decided,
        }
    }

    fn order_in_full(left: &C, right: &C) -> Ordering {
        match (left.entry(), right.entry()) {
            (Some(left), Some(right)) => compare(left.key, left.trailer, right.key, right.trailer),
            _ => Ordering::Equal,
        }
    }

    /// Whether source `a` comes before source `b` in the present direction.
    #[inline]
    fn leads(&self, a: usize, b: usize) -> bool {
        self.order(a, b).is_lt() != self.backward
    }

    /// The foremost source that is at an entry, other than `besides`.
    fn foremost(&self, besides: Option<usize>) -> Option<usize> {
        let mut best = None;
        for (index, source) in self.sources.iter().enumerate() {
            if source.head.is_some() && Some(index) != besides && best.is_none_or(|best| self.leads(index, best)) {
                best = Some(index);
            }
        }
        best
    }

    /// Finds leader and runner-up anew, after all sources were placed.
    fn line_up(&mut self, backward: bool) {
        self.backward = backward;
        self.sources.iter_mut().for_each(Source::look);
        self.leader = self.foremost(None);
        self.runner_up = self.foremost(self.leader);
    }

    /// After the leader moved: is it the leader still?
    #[inline]
    fn settle(&mut self, leader: usize) {
        self.sources[leader].look();
        let Some(runner_up) = self.runner_up else {
            self.leader = self.sources[leader].head.map(|_| leader);
            return;
        };
        if self.sources[leader].head.is_some() && self.leads(leader, runner_up) {
            return;
        }
        self.leader = Some(runner_up);
        self.runner_up = self.foremost(Some(runner_up));
    }

    fn check(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Remembers a failure: from then on there is no entry, and every move returns it.
    fn keep(&mut self, outcome: Result<()>) -> Result<()> {
        if let Err(error) = &outcome {
            self.failed = Some(error.clone());
            (self.leader, self.runner_up) = (None, None);
        }
        outcome
    }

    fn place_all(&mut self, backward: bool, place: impl Fn(&mut C) -> Result<()>) -> Result<()> {
        self.check()?;
        let outcome = self.sources.iter_mut().try_for_each(|source| place(&mut source.cursor));
        self.keep(outcome)?;
        self.line_up(backward);
        Ok(())
    }

    /// Moves the others from the one side of the leader's entry to the other.
    fn turn(&mut self, leader: usize, backward: bool) -> Result<()> {
        let Some(at) = self.sources[leader].cursor.entry() else {
            return Ok(());
        };
        let trailer = at.trailer;
        self.key.clear();
        self.key.extend_from_slice(at.key);
        for (index, source) in self.sources.iter_mut().enumerate() {
            if index == leader {
                continue;
            }
            let cursor = &mut source.cursor;
            cursor.seek(&self.key, trailer)?;
            let equal = cursor.entry().is_some_and(|found| found.trailer == trailer && found.key == self.key);
            match (equal, backward) {
                // An equal entry of a newer source is before the leader's, one of an older source after it.
                (true, true) if index < leader => {}
                (true, false) if index < leader => cursor.next()?,
                (_, true) => cursor.seek_before(&self.key, trailer)?,
                (_, false) => {}
            }
        }
        Ok(())
    }

    fn step(&mut self, backward: bool) -> Result<()> {
        self.check()?;
        let Some(leader) = self.leader else {
            debug_assert!(false, "a step needs an entry");
            return Ok(());
        };
        let turned = self.backward != backward;
        if turned {
            let outcome = self.turn(leader, backward);
            self.keep(outcome)?;
        }
        let cursor = &mut self.sources[leader].cursor;
        let outcome = if backward { cursor.prev() } else { cursor.next() };
        self.keep(outcome)?;
        if turned {
            self.line_up(backward);
        } else {
            self.settle(leader);
        }
        Ok(())
    }
}

impl<C: Cursor> Cursor for Merging<C> {
    fn seek_first(&mut self) -> Result<()> {
        self.place_all(false, C::seek_first)
    }

    fn seek_last(&mut self) -> Result<()> {
        self.place_all(true, C::seek_last)
    }

    fn seek(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        self.prefetch(key);
        self.place_all(false, |cursor| cursor.seek(key, trailer))
    }

    fn seek_before(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        self.prefetch(key);
        self.place_all(true, |cursor| cursor.seek_before(key, trailer))
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        self.step(false)
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        self.step(true)
    }

    #[inline]
    fn entry(&self) -> Option<Entry<'_>> {
        self.leader.and_then(|leader| self.sources[leader].cursor.entry())
    }

    fn prefetch(&mut self, key: &[u8]) {
        self.sources.iter_mut().for_each(|source| source.cursor.prefetch(key));
    }
}
