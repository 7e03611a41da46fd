//! Several sorted sources as one, in both directions: what a user's iterator reads.
//!
//! Only the two smallest positions matter from step to step: the leader is advanced until it passes the runner-up, and only
//! then are the others looked at. In a tree nine of ten entries come from the last level, so most steps cost one compare of two
//! 16-byte integers ([`Cursor::head`]); keys are compared in full only when their heads are equal. A seek takes each
//! step ([`Approach`]) in every source before the next step, so that their cache misses overlap.

use super::{Approach, Arrival, Cursor, Target};
use crate::error::{Error, Result};
use crate::key::{Entry, Trailer, compare};

/// `C`s merged into internal order. Sources are given newest first: of two equal entries (they exist only where a file is
/// taken in whose entries have one sequence number) the one of the earlier source comes first.
pub struct Merging<C> {
    sources: Vec<C>,
    /// The head of each source's key, while it is at an entry.
    heads: Vec<Option<u128>>,
    /// The source at the position, if any is.
    leader: Option<usize>,
    /// The source that is next in the direction after the leader, if another has an entry, and its head.
    runner_up: Option<(usize, u128)>,
    backward: bool,
    /// The key at the position while the others are moved to its other side.
    key: Vec<u8>,
    failed: Option<Error>,
}

impl<C: Cursor> Merging<C> {
    /// A merge of `sources`, newest first, at no entry.
    pub fn new(sources: Vec<C>) -> Merging<C> {
        Merging {
            heads: vec![None; sources.len()],
            sources,
            leader: None,
            runner_up: None,
            backward: false,
            key: Vec::new(),
            failed: None,
        }
    }

    /// Gives its sources back: nothing is left to be merged.
    pub fn take_sources(&mut self) -> Vec<C> {
        (self.leader, self.runner_up) = (None, None);
        self.heads.clear();
        std::mem::take(&mut self.sources)
    }

    /// Whether source `a`, at a key of head `a_head`, comes before source `b` in the present direction: keys, versions, then
    /// the newer source first.
    #[inline(always)]
    fn leads(&self, (a, a_head): (usize, u128), (b, b_head): (usize, u128)) -> bool {
        let before = if a_head == b_head { self.is_before_in_full(a, b) } else { a_head < b_head };
        before != self.backward
    }

    #[inline(never)]
    fn is_before_in_full(&self, a: usize, b: usize) -> bool {
        match (self.sources[a].entry(), self.sources[b].entry()) {
            (Some(left), Some(right)) => {
                compare(left.key, left.trailer, right.key, right.trailer).then(a.cmp(&b)).is_lt()
            }
            _ => a < b,
        }
    }

    /// The foremost source that is at an entry, other than `besides`, and its head.
    #[inline(always)]
    fn foremost(&self, besides: Option<usize>) -> Option<(usize, u128)> {
        let mut best = None;
        for (index, head) in self.heads.iter().enumerate() {
            if let Some(head) = *head
                && Some(index) != besides
                && best.is_none_or(|best| self.leads((index, head), best))
            {
                best = Some((index, head));
            }
        }
        best
    }

    /// Finds leader and runner-up anew, after all sources were placed.
    fn line_up(&mut self, backward: bool) {
        self.backward = backward;
        self.heads.iter_mut().zip(&self.sources).for_each(|(head, source)| *head = source.head());
        self.leader = self.foremost(None).map(|(leader, _)| leader);
        self.find_runner_up();
    }

    fn find_runner_up(&mut self) {
        self.runner_up = self.foremost(self.leader);
    }

    /// After the leader moved: is it the leader still?
    #[inline(always)]
    fn settle(&mut self, leader: usize) {
        let head = self.sources[leader].head();
        self.heads[leader] = head;
        let Some(runner_up) = self.runner_up else {
            self.leader = head.map(|_| leader);
            return;
        };
        if head.is_some_and(|head| self.leads((leader, head), runner_up)) {
            return;
        }
        self.overtake(runner_up.0);
    }

    /// The runner-up has become the leader.
    #[inline(never)]
    fn overtake(&mut self, runner_up: usize) {
        self.leader = Some(runner_up);
        self.find_runner_up();
    }

    /// The entry at the position as what a step came to.
    #[inline]
    fn arrival(&self) -> Option<Arrival> {
        let leader = self.leader?;
        let entry = self.sources[leader].entry()?;
        Some(Arrival { head: self.heads[leader]?, key_len: entry.key.len(), trailer: entry.trailer })
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
            self.sources.iter_mut().for_each(|source| source.approach(step, target));
        }
    }

    fn place_all(&mut self, backward: bool, place: impl FnMut(&mut C) -> Result<()>) -> Result<()> {
        self.check()?;
        let outcome = self.sources.iter_mut().try_for_each(place);
        self.keep(outcome)?;
        self.line_up(backward);
        Ok(())
    }

    /// Moves the others from the one side of the leader's entry to the other.
    fn turn(&mut self, leader: usize, backward: bool) -> Result<()> {
        let Some(at) = self.sources[leader].entry() else {
            return Ok(());
        };
        let trailer = at.trailer;
        self.key.clear();
        self.key.extend_from_slice(at.key);
        for (index, cursor) in self.sources.iter_mut().enumerate() {
            if index == leader {
                continue;
            }
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
        let cursor = &mut self.sources[leader];
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
            let cursor = &mut merging.sources[leader];
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
    fn next_at_hand(&mut self) -> Option<Arrival> {
        let leader = self.leader.filter(|_| !self.backward)?;
        let arrival = self.sources[leader].next_at_hand()?;
        if self.runner_up.is_none_or(|(_, head)| arrival.head < head) {
            self.heads[leader] = Some(arrival.head);
            return Some(arrival);
        }
        self.settle(leader);
        self.arrival()
    }

    #[inline(always)]
    fn entry(&self) -> Option<Entry<'_>> {
        self.sources[self.leader?].entry()
    }
}
