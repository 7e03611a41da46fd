//! The files of one sorted run as one source: they do not overlap, so they are read one after the other, and at most one is
//! open at a time.

use bytes::Bytes;

use super::{Approach, Arrival, Cursor, Target};
use crate::error::{Error, Result};
use crate::key::{Entry, SeqNo, Trailer};

/// The files of a run, in key order, and how to open them.
pub trait FileCursors {
    /// A cursor over one file.
    type Cursor: Cursor;
    /// How many files there are.
    fn len(&self) -> usize;
    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The smallest and the largest user key of file `index`.
    fn bounds(&self, index: usize) -> (&[u8], &[u8]);
    /// A cursor over file `index`, at no entry.
    ///
    /// # Errors
    /// `Corruption` or `Io` from the file.
    fn open(&self, index: usize) -> Result<Self::Cursor>;
    /// The first file that ends at or after `key`.
    fn first_reaching(&self, key: &[u8]) -> usize {
        partition_point(self.len(), |index| self.bounds(index).1 < key)
    }
}

/// A position in a run.
pub struct RunCursor<F: FileCursors> {
    files: F,
    /// The file that is open. There may be none even between seeks: then the cursor is at no entry.
    open: Option<(usize, F::Cursor)>,
    /// The file that the seek which is being approached begins in.
    sought: Option<usize>,
    failed: Option<Error>,
}

/// Where to go in a file.
#[derive(Clone, Copy)]
enum Place<'k> {
    First,
    Last,
    AtOrAfter(&'k [u8], Trailer),
    Before(&'k [u8], Trailer),
}

impl<F: FileCursors> RunCursor<F> {
    /// A cursor over `files`, at no entry.
    pub fn new(files: F) -> RunCursor<F> {
        RunCursor { files, open: None, sought: None, failed: None }
    }

    /// The files that it reads.
    pub fn files(&self) -> &F {
        &self.files
    }

    /// The files, to let go of those that will not be read again.
    pub fn files_mut(&mut self) -> &mut F {
        &mut self.files
    }

    /// The file that the position is in, and the position there; none behind the last entry.
    pub fn at(&self) -> Option<(usize, &F::Cursor)> {
        self.open.as_ref().map(|(index, cursor)| (*index, cursor))
    }

    /// Moves to the first entry at or after `limit`, which is after the position and not behind the end of the file that this is in. Returns the
    /// last key before it.
    ///
    /// # Errors
    /// `Corruption` or `Io` from a file.
    pub fn skip_to(&mut self, limit: &[u8]) -> Result<Bytes> {
        let index = self.open.as_ref().map_or(self.files.len(), |(index, _)| *index);
        self.place(index, Place::Before(limit, Trailer::seek(SeqNo::MAX)))?;
        let entry = self.entry().expect("the position was before the limit, and its entry is there still");
        let last = Bytes::copy_from_slice(entry.key);
        self.next()?;
        Ok(last)
    }

    /// Moves behind every version of `key`, which is in the file that the position is in. If it is that file's last, nothing more of it is read.
    ///
    /// # Errors
    /// `Corruption` or `Io` from a file.
    pub fn skip_past(&mut self, key: &[u8]) -> Result<()> {
        let Some(index) = self.open.as_ref().map(|(index, _)| *index) else {
            return self.failed.clone().map_or(Ok(()), Err);
        };
        if self.files.bounds(index).1 <= key {
            return self.place(index + 1, Place::First);
        }
        self.place(index, Place::AtOrAfter(key, Trailer(0)))?;
        while self.entry().is_some_and(|entry| entry.key == key) {
            self.next()?;
        }
        Ok(())
    }

    /// The file in which a seek begins.
    #[inline]
    fn file_of(&self, key: &[u8], before: bool) -> usize {
        if before {
            // Before the first file wraps to behind the last one: there is no such entry.
            return partition_point(self.files.len(), |index| self.files.bounds(index).0 <= key).wrapping_sub(1);
        }
        self.files.first_reaching(key)
    }

    /// The same, if it was not found out already.
    #[inline]
    fn take_sought(&mut self, key: &[u8], before: bool) -> usize {
        let Some(file) = self.sought.take() else {
            return self.file_of(key, before);
        };
        debug_assert_eq!(file, self.file_of(key, before), "a seek that was not approached");
        file
    }

    /// Makes file `index` the open one.
    #[inline]
    fn enter(&mut self, index: usize) -> Result<&mut F::Cursor> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != index) {
            // What is open elsewhere is closed first.
            self.open = None;
            self.open = Some((index, self.files.open(index)?));
        }
        let (_, cursor) = self.open.as_mut().expect("just opened");
        Ok(cursor)
    }

    /// Places the cursor in file `index`, or in the next one in the direction of `place` that has such an entry.
    fn place(&mut self, index: usize, place: Place<'_>) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let outcome = self.try_place(index, place);
        if let Err(error) = &outcome {
            self.failed = Some(error.clone());
            self.open = None;
        }
        outcome
    }

    fn try_place(&mut self, mut index: usize, place: Place<'_>) -> Result<()> {
        while index < self.files.len() {
            let cursor = self.enter(index)?;
            match place {
                Place::First => cursor.seek_first()?,
                Place::Last => cursor.seek_last()?,
                Place::AtOrAfter(key, trailer) => cursor.seek(key, trailer)?,
                Place::Before(key, trailer) => cursor.seek_before(key, trailer)?,
            }
            if cursor.entry().is_some() {
                return Ok(());
            }
            // Before the first file wraps to behind the last one, which ends the search too.
            index = match place {
                Place::First | Place::AtOrAfter(..) => index + 1,
                Place::Last | Place::Before(..) => index.wrapping_sub(1),
            };
        }
        self.open = None;
        Ok(())
    }

    #[cold]
    fn fail(&mut self, error: Error) -> Error {
        self.failed = Some(error.clone());
        self.open = None;
        error
    }

    #[inline(always)]
    fn step(&mut self, go: impl FnOnce(&mut F::Cursor) -> Result<()>) -> Result<Option<usize>> {
        let Some((index, cursor)) = &mut self.open else {
            debug_assert!(self.failed.is_some(), "a step needs an entry");
            return self.failed.clone().map_or(Ok(None), Err);
        };
        if let Err(error) = go(cursor) {
            return Err(self.fail(error));
        }
        Ok(cursor.head().is_none().then_some(*index))
    }
}

impl<F: FileCursors> Cursor for RunCursor<F> {
    fn seek_first(&mut self) -> Result<()> {
        self.sought = None;
        self.place(0, Place::First)
    }

    fn seek_last(&mut self) -> Result<()> {
        self.sought = None;
        self.place(self.files.len().wrapping_sub(1), Place::Last)
    }

    fn seek(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        let file = self.take_sought(key, false);
        self.place(file, Place::AtOrAfter(key, trailer))
    }

    fn seek_before(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        let file = self.take_sought(key, true);
        self.place(file, Place::Before(key, trailer))
    }

    #[inline(always)]
    fn next(&mut self) -> Result<()> {
        match self.step(F::Cursor::next)? {
            Some(left) => self.place(left + 1, Place::First),
            None => Ok(()),
        }
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        match self.step(F::Cursor::prev)? {
            Some(left) => self.place(left.wrapping_sub(1), Place::Last),
            None => Ok(()),
        }
    }

    #[inline(always)]
    fn next_at_hand(&mut self) -> Option<Arrival> {
        self.open.as_mut()?.1.next_at_hand()
    }

    #[inline(always)]
    fn entry(&self) -> Option<Entry<'_>> {
        self.open.as_ref()?.1.entry()
    }

    #[inline(always)]
    fn head(&self) -> Option<u128> {
        self.open.as_ref()?.1.head()
    }

    fn approach(&mut self, step: Approach, target: Target<'_>) {
        if self.failed.is_some() {
            return;
        }
        if step == Approach::Block {
            let index = self.file_of(target.key, target.before);
            self.sought = Some(index);
            if index < self.files.len() && self.enter(index).is_err() {
                // The seek tries again, and tells.
                self.open = None;
            }
        }
        if let Some((index, cursor)) = &mut self.open
            && self.sought == Some(*index)
        {
            cursor.approach(step, target);
        }
    }
}

/// The first index below `len` for which `before` is false; `before` is true, then false.
fn partition_point(len: usize, before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = usize::midpoint(low, high);
        if before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}
