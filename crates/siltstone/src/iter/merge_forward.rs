//! Several sorted sources as one, forward only: what flushes and merges read.
//!
//! A loser tree (Knuth, TAOCP 3, 5.4.1): each inner node keeps the loser of the match below it, so an entry costs one compare
//! per level of the tree, always against the same nodes. The first 16 bytes of the keys stand in the nodes as integers; full
//! keys are compared only when those are equal.
//!
//! ```text
//!          winner            nodes[0]: the winner
//!            |               nodes[1]: the loser of the final
//!          [ 1 ]             nodes[n]: the loser of the match between what comes up from 2n and 2n + 1
//!         /     \            source s enters at n = (s + sources) / 2
//!      [ 2 ]   [ 3 ]
//!      /   \   /   \
//!     s0   s1 s2   s3
//! ```

use super::Cursor;
use super::run::{FileCursors, RunCursor};
use crate::error::{Error, Result};
use crate::key::{Entry, Trailer, compare, head};

/// `C`s merged into internal order. Sources are given newest first: of two equal entries the one of the earlier source comes
/// first, and both come.
pub struct MergeForward<C> {
    sources: Vec<C>,
    nodes: Vec<Contender>,
    failed: Option<Error>,
}

/// A source and its key's head; the largest head when it is exhausted, which a full compare then finds out.
#[derive(Clone, Copy)]
struct Contender {
    head: u128,
    source: usize,
}

impl<C: Cursor> MergeForward<C> {
    /// A merge of `sources`, newest first, at no entry.
    pub fn new(sources: Vec<C>) -> MergeForward<C> {
        MergeForward { sources, nodes: Vec::new(), failed: None }
    }

    /// Moves to the first entry.
    ///
    /// # Errors
    /// `Corruption` or `Io` from a source; from then on there is no entry, and every move returns the error again.
    pub fn seek_first(&mut self) -> Result<()> {
        self.place(C::seek_first)
    }

    /// Moves to the first entry at or after `(key, trailer)`.
    ///
    /// # Errors
    /// As [`MergeForward::seek_first`].
    pub fn seek(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        self.place(|source| source.seek(key, trailer))
    }

    /// The entry at the position, or none past the end and before the first seek.
    #[inline]
    pub fn peek(&self) -> Option<Entry<'_>> {
        self.sources[self.nodes.first()?.source].entry()
    }

    /// Which source the entry at the position comes from.
    #[inline]
    pub fn source(&self) -> Option<usize> {
        self.peek()?;
        Some(self.nodes.first()?.source)
    }

    /// The entry at which another source stands that comes next after the position; none if only one is not exhausted.
    pub fn runner_up(&self) -> Option<Entry<'_>> {
        let leader = self.nodes.first()?.source;
        // Whoever lost to the leader and to nobody else is on its way up.
        let mut node = usize::midpoint(leader, self.sources.len());
        let mut best: Option<Contender> = None;
        while node > 0 {
            let other = self.nodes[node];
            if best.is_none_or(|best| self.beats(other, best)) {
                best = Some(other);
            }
            node /= 2;
        }
        self.sources[best?.source].entry()
    }

    /// Moves the source at the position on, by `skip`, which leaves it at a later entry or behind its last. Must be at an entry.
    ///
    /// # Errors
    /// As [`MergeForward::seek_first`].
    pub fn skip(&mut self, skip: impl FnOnce(&mut C) -> Result<()>) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let Some(leader) = self.nodes.first().map(|node| node.source) else {
            return Ok(());
        };
        let outcome = skip(&mut self.sources[leader]);
        self.keep(outcome)?;
        self.replay(leader);
        Ok(())
    }

    /// The sources, in the order given.
    pub fn sources(&self) -> &[C] {
        &self.sources
    }

    /// The sources, to let go of what will not be read again; their positions must stay.
    pub fn sources_mut(&mut self) -> &mut [C] {
        &mut self.sources
    }

    /// Moves to the following entry. Must be at an entry.
    ///
    /// # Errors
    /// As [`MergeForward::seek_first`].
    #[inline]
    pub fn advance(&mut self) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let Some(winner) = self.nodes.first().copied() else {
            return Ok(());
        };
        let outcome = self.sources[winner.source].next();
        self.keep(outcome)?;
        self.replay(winner.source);
        Ok(())
    }

    fn place(&mut self, place: impl Fn(&mut C) -> Result<()>) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let outcome = self.sources.iter_mut().try_for_each(place);
        self.keep(outcome)?;
        self.play_all();
        Ok(())
    }

    fn keep(&mut self, outcome: Result<()>) -> Result<()> {
        if let Err(error) = &outcome {
            self.failed = Some(error.clone());
            self.nodes.clear();
        }
        outcome
    }

    fn contender(&self, source: usize) -> Contender {
        Contender { head: self.sources[source].entry().map_or(u128::MAX, |entry| head(entry.key)), source }
    }

    /// Plays every match from the leaves up.
    fn play_all(&mut self) {
        let count = self.sources.len();
        self.nodes.clear();
        if count == 0 {
            return;
        }
        let mut winners: Vec<Contender> = (0..2 * count).map(|n| self.contender(n % count)).collect();
        self.nodes = winners[..count].to_vec();
        for node in (1..count).rev() {
            let (left, right) = (winners[2 * node], winners[2 * node + 1]);
            (winners[node], self.nodes[node]) = if self.beats(left, right) { (left, right) } else { (right, left) };
        }
        self.nodes[0] = winners[1];
    }

    /// Plays the matches of one source that has moved.
    #[inline]
    fn replay(&mut self, source: usize) {
        let mut winner = self.contender(source);
        let mut node = usize::midpoint(source, self.sources.len());
        while node > 0 {
            let other = self.nodes[node];
            if self.beats(other, winner) {
                self.nodes[node] = winner;
                winner = other;
            }
            node /= 2;
        }
        self.nodes[0] = winner;
    }

    #[inline]
    fn beats(&self, a: Contender, b: Contender) -> bool {
        if a.head == b.head { self.beats_in_full(a.source, b.source) } else { a.head < b.head }
    }

    fn beats_in_full(&self, a: usize, b: usize) -> bool {
        match (self.sources[a].entry(), self.sources[b].entry()) {
            (Some(left), Some(right)) => {
                compare(left.key, left.trailer, right.key, right.trailer).then(a.cmp(&b)).is_lt()
            }
            (left, right) => left.is_some() && right.is_none(),
        }
    }
}

impl<F: FileCursors> MergeForward<RunCursor<F>> {
    /// Which source the entry at the position comes from, and which of its files.
    #[inline]
    pub fn position(&self) -> Option<(usize, usize)> {
        let source = self.nodes.first()?.source;
        self.sources[source].at().map(|(file, _)| (source, file))
    }
}
