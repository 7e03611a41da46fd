//! Several sorted sources as one, in both directions: what a user's iterator reads.
//!
//! Only the two smallest positions matter from step to step: the leader is advanced until it passes the runner-up, and only
//! then are the others looked at. In a tree nine of ten entries come from the last level, so most steps cost one compare of two
//! 16-byte integers ([`Cursor::head`]); keys are compared in full only when their heads are equal. A seek takes each
//! step ([`Approach`]) in every source before the next step, so that their cache misses overlap.

use std::cmp::Ordering;

use super::{Approach, Cursor, Target};
use crate::error::{Error, Result};
use crate::key::{Entry, Trailer, compare};

/// `C`s merged into internal order. Sources are given newest first: of two equal entries (they exist only where a file is
/// taken in whose entries have one sequence number) the one of the earlier source comes first.
pub struct Merging<C> {
    sources: Vec<Source<C>>,
    /// The source at the position, if any is.
    leader: Option<usize>,
    /// The source that is next in the direction after the leader, if another has an entry.
    runner_up: Option<usize>,
    /// The runner-up's head.
    runner_up_head: u128,
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
    #[inline(always)]
    fn look(&mut self) {
        self.head = self.cursor.head();
    }
}

impl<C: Cursor> Merging<C> {
    /// A merge of `sources`, newest first, at no entry.
    pub fn new(sources: Vec<C>) -> Merging<C> {
        let sources = sources.into_iter().map(|cursor| Source { cursor, head: None }).collect();
        Merging {
            sources,
            leader: None,
            runner_up: None,
            runner_up_head: 0,
            backward: false,
            key: Vec::new(),
            failed: None,
        }
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
        self.find_runner_up();
    }

    fn find_runner_up(&mut self) {
        self.runner_up = self.foremost(self.leader);
        self.runner_up_head = self.runner_up.and_then(|at| self.sources[at].head).unwrap_or_default();
    }

    /// After the leader moved: is it the leader still?
    #[inline(always)]
    fn settle(&mut self, leader: usize) {
        self.sources[leader].look();
        let head = self.sources[leader].head;
        let Some(runner_up) = self.runner_up else {
            self.leader = head.map(|_| leader);
            return;
        };
        if let Some(head) = head {
            let stays = if head == self.runner_up_head {
                self.leads(leader, runner_up)
            } else {
                (head < self.runner_up_head) != self.backward
            };
            if stays {
                return;
            }
        }
        self.overtake(runner_up);
    }

    /// The runner-up has become the leader.
    #[inline(never)]
    fn overtake(&mut self, runner_up: usize) {
        self.leader = Some(runner_up);
        self.find_runner_up();
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

    fn approach_all(&mut self, target: Target<'_>) {
        for step in Approach::STEPS {
            self.sources.iter_mut().for_each(|source| source.cursor.approach(step, target));
        }
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

    #[inline(always)]
    fn step(&mut self, backward: bool) -> Result<()> {
        let Some(leader) = self.leader else {
            debug_assert!(self.failed.is_some(), "a step needs an entry");
            return self.check();
        };
        if self.backward != backward {
            return self.step_back(leader, backward);
        }
        let cursor = &mut self.sources[leader].cursor;
        let outcome = if backward { cursor.prev() } else { cursor.next() };
        if outcome.is_err() {
            return self.keep(outcome);
        }
        self.settle(leader);
        Ok(())
    }

    /// A step in the other direction than the one before.
    #[cold]
    fn step_back(&mut self, leader: usize, backward: bool) -> Result<()> {
        let cursor = |merging: &mut Self| {
            merging.turn(leader, backward)?;
            let cursor = &mut merging.sources[leader].cursor;
            if backward { cursor.prev() } else { cursor.next() }
        };
        let outcome = cursor(self);
        self.keep(outcome)?;
        self.line_up(backward);
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
        self.approach_all(Target { key, trailer, before: false });
        self.place_all(false, |cursor| cursor.seek(key, trailer))
    }

    fn seek_before(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        self.approach_all(Target { key, trailer, before: true });
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

    #[inline(always)]
    fn entry(&self) -> Option<Entry<'_>> {
        self.leader.and_then(|leader| self.sources[leader].cursor.entry())
    }
}
