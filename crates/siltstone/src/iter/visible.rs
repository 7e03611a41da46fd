//! What a reader sees: each user key once, at its newest version that the snapshot includes, tombstones left out, within bounds.
//!
//! Forward, versions of a key come newest first: the first visible one decides, the rest are skipped. Backward they come
//! oldest first: the last visible one decides, so key and value are kept until the key changes. When a key has many versions to
//! pass, a seek passes them. Buffers are reused; nothing is allocated per entry.

use std::ops::Bound;

use bytes::Bytes;

use super::Cursor;
use crate::error::{Error, Result};
use crate::key::{SeqNo, Trailer, head};

/// After so many steps over entries that are not wanted, a seek is cheaper.
const STEPS: u32 = 16;
/// Before and after every version of a key.
const NEWEST: Trailer = Trailer(u64::MAX);
const OLDEST: Trailer = Trailer(0);

/// The user keys between which an iteration stays.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Where it begins.
    pub lower: Bound<Bytes>,
    /// Where it ends.
    pub upper: Bound<Bytes>,
}

impl Bounds {
    /// All keys.
    pub const ALL: Bounds = Bounds { lower: Bound::Unbounded, upper: Bound::Unbounded };

    fn is_below(&self, key: &[u8]) -> bool {
        match &self.lower {
            Bound::Included(lower) => key < lower.as_ref(),
            Bound::Excluded(lower) => key <= lower.as_ref(),
            Bound::Unbounded => false,
        }
    }

    fn is_above(&self, key: &[u8]) -> bool {
        match &self.upper {
            Bound::Included(upper) => key > upper.as_ref(),
            Bound::Excluded(upper) => key >= upper.as_ref(),
            Bound::Unbounded => false,
        }
    }
}

/// The visible keys of `C`, whose entries are in internal order.
pub struct Visible<C> {
    cursor: C,
    seq: SeqNo,
    bounds: Bounds,
    /// The head of the upper bound, the largest one if there is none: keys of smaller heads lie below the bound.
    upper_head: u128,
    place: Place,
    /// The key at the position, or the one being passed.
    key: HeldKey,
    /// The value at the position when it was reached backward.
    value: Vec<u8>,
    failed: Option<Error>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// At no key.
    Nowhere,
    /// The cursor is at the visible version of `key`.
    Forward,
    /// The cursor is before all versions of `key`; the value is in the buffer.
    Backward,
}

impl<C: Cursor> Visible<C> {
    /// What a read at `seq` sees of `cursor` within `bounds`, at no key.
    pub fn new(cursor: C, seq: SeqNo, bounds: Bounds) -> Visible<C> {
        let (key, value) = (HeldKey::default(), Vec::new());
        let upper_head = match &bounds.upper {
            Bound::Included(upper) | Bound::Excluded(upper) => head(upper),
            Bound::Unbounded => u128::MAX,
        };
        Visible { cursor, seq, bounds, upper_head, place: Place::Nowhere, key, value, failed: None }
    }

    /// The keys between which it stays.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// What it goes over. Whoever moves that takes its position away.
    pub fn source_mut(&mut self) -> &mut C {
        &mut self.cursor
    }

    /// Whether there is a key at the position.
    #[inline]
    pub fn valid(&self) -> bool {
        self.place != Place::Nowhere
    }

    /// The key at the position.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn key(&self) -> &[u8] {
        assert!(self.valid(), "at no key");
        self.key.bytes()
    }

    /// The value at the position.
    ///
    /// # Panics
    /// If there is no key.
    #[inline]
    pub fn value(&self) -> &[u8] {
        match self.place {
            Place::Forward => self.cursor.entry().expect("forward, the cursor is at the entry").value,
            Place::Backward => &self.value,
            Place::Nowhere => panic!("at no key"),
        }
    }

    /// Moves to the first key.
    ///
    /// # Errors
    /// `Corruption` or `Io` from the source; from then on there is no key, and every move returns the error again. Likewise for
    /// every move.
    pub fn seek_first(&mut self) -> Result<()> {
        self.go(|it| {
            match &it.bounds.lower {
                Bound::Included(lower) => it.cursor.seek(lower, NEWEST),
                Bound::Excluded(lower) => it.cursor.seek(lower, OLDEST),
                Bound::Unbounded => it.cursor.seek_first(),
            }?;
            it.find_forward(false)
        })
    }

    /// Moves to the last key.
    ///
    /// # Errors
    /// As [`Visible::seek_first`].
    pub fn seek_last(&mut self) -> Result<()> {
        self.go(|it| {
            match &it.bounds.upper {
                Bound::Included(upper) => it.cursor.seek_before(upper, OLDEST),
                Bound::Excluded(upper) => it.cursor.seek_before(upper, NEWEST),
                Bound::Unbounded => it.cursor.seek_last(),
            }?;
            it.find_backward()
        })
    }

    /// Moves to the first key at or after `key`.
    ///
    /// # Errors
    /// As [`Visible::seek_first`].
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        if self.bounds.is_below(key) {
            return self.seek_first();
        }
        self.go(|it| {
            it.cursor.seek(key, Trailer::seek(it.seq))?;
            it.find_forward(false)
        })
    }

    /// Moves to the last key at or before `key`.
    ///
    /// # Errors
    /// As [`Visible::seek_first`].
    pub fn seek_back(&mut self, key: &[u8]) -> Result<()> {
        if self.bounds.is_above(key) {
            return self.seek_last();
        }
        self.go(|it| {
            it.cursor.seek_before(key, OLDEST)?;
            it.find_backward()
        })
    }

    /// Moves to the following key; from the last one, to none. Must be at a key.
    ///
    /// # Errors
    /// As [`Visible::seek_first`].
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "this one lends: an `Iterator` would have to copy")]
    pub fn next(&mut self) -> Result<()> {
        if self.place == Place::Forward
            && let Some(arrival) = self.cursor.next_at_hand()
        {
            // Another key for certain, of a record that is seen, and below the bound. What is not as plain is looked at in full.
            if self.key.has_head(arrival.head)
                || arrival.head >= self.upper_head
                || arrival.trailer.seq() > self.seq
                || arrival.trailer.is_delete()
            {
                return self.look();
            }
            if arrival.key_len <= SHORT {
                self.key.set_short(arrival.head, arrival.key_len);
            } else if let Some(entry) = self.cursor.entry() {
                self.key.set(entry.key);
            }
            return Ok(());
        }
        self.next_from_afar()
    }

    /// The record at the cursor, which a step has come to, or the first behind it that is seen.
    #[inline(never)]
    fn look(&mut self) -> Result<()> {
        self.go(|it| it.find_forward(true))
    }

    /// [`next`](Self::next) by a step that takes more than memory, or after steps backward.
    #[inline(never)]
    fn next_from_afar(&mut self) -> Result<()> {
        self.go(|it| {
            match it.place {
                Place::Forward => it.cursor.next()?,
                Place::Backward => it.cursor.seek(it.key.bytes(), OLDEST)?,
                Place::Nowhere => {
                    debug_assert!(false, "next needs a key");
                    return Ok(());
                }
            }
            it.find_forward(true)
        })
    }

    /// Moves to the preceding key; from the first one, to none. Must be at a key.
    ///
    /// # Errors
    /// As [`Visible::seek_first`].
    pub fn prev(&mut self) -> Result<()> {
        self.go(|it| {
            match it.place {
                Place::Forward => it.cursor.seek_before(it.key.bytes(), NEWEST)?,
                Place::Backward => {}
                Place::Nowhere => {
                    debug_assert!(false, "prev needs a key");
                    return Ok(());
                }
            }
            it.find_backward()
        })
    }

    #[inline(always)]
    fn go(&mut self, moving: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        if self.failed.is_some() {
            return self.failed.clone().map_or(Ok(()), Err);
        }
        let outcome = moving(self);
        if let Err(error) = &outcome {
            self.failed = Some(error.clone());
            self.place = Place::Nowhere;
        }
        outcome
    }

    /// From the cursor's entry on, the first key to show. With `passing`, versions of `self.key` are passed.
    #[inline(always)]
    fn find_forward(&mut self, mut passing: bool) -> Result<()> {
        self.place = Place::Nowhere;
        let mut steps = 0;
        while let Some(entry) = self.cursor.entry() {
            let past = passing && self.key.is(entry.key);
            if !past && self.bounds.is_above(entry.key) {
                return Ok(());
            }
            if past || entry.trailer.seq() > self.seq {
                steps += 1;
                passing &= self.pass(past, steps % STEPS == 0)?;
                continue;
            }
            self.key.set(entry.key);
            if !entry.trailer.is_delete() {
                self.place = Place::Forward;
                return Ok(());
            }
            passing = true;
            self.cursor.next()?;
        }
        Ok(())
    }

    /// Passes an entry that is not wanted: another version of `self.key` (`past`) or one that is too new; all of them if `many` were passed. Says
    /// whether `self.key` is still the key to pass.
    #[inline(never)]
    fn pass(&mut self, past: bool, many: bool) -> Result<bool> {
        if !many {
            self.cursor.next()?;
            return Ok(true);
        }
        if let Some(entry) = self.cursor.entry().filter(|_| !past) {
            self.key.set(entry.key);
        }
        let behind = if past { OLDEST } else { Trailer::seek(self.seq) };
        self.cursor.seek(self.key.bytes(), behind)?;
        Ok(past)
    }

    /// From the cursor's entry back, the last key to show. Leaves the cursor before all versions of it.
    fn find_backward(&mut self) -> Result<()> {
        self.place = Place::Nowhere;
        // Whether `self.key` is the key whose versions are being gone through, and whether the last visible one is a value.
        let mut inside = false;
        let mut found = false;
        let mut steps = 0;
        while let Some(entry) = self.cursor.entry() {
            if !(inside && self.key.is(entry.key)) {
                if found || self.bounds.is_below(entry.key) {
                    break;
                }
                self.key.set(entry.key);
                inside = true;
                steps = 0;
            }
            // Versions before this one may be too new; those after it were older.
            if entry.trailer.seq() <= self.seq {
                found = !entry.trailer.is_delete();
                set(&mut self.value, entry.value);
            }
            steps += 1;
            if steps < STEPS {
                self.cursor.prev()?;
                continue;
            }
            // Many versions: straight to the one that decides, then to before them all.
            self.cursor.seek(self.key.bytes(), Trailer::seek(self.seq))?;
            if let Some(entry) = self.cursor.entry().filter(|entry| self.key.is(entry.key)) {
                found = !entry.trailer.is_delete();
                set(&mut self.value, entry.value);
            }
            self.cursor.seek_before(self.key.bytes(), NEWEST)?;
        }
        if found {
            self.place = Place::Backward;
        }
        Ok(())
    }
}

/// A copy of a key. Short ones, which most are, lie here, and are copied and compared as one integer.
#[derive(Default)]
struct HeldKey {
    len: usize,
    /// The head's bytes: all of a short key.
    short: [u8; SHORT],
    /// A longer key.
    long: Vec<u8>,
}

/// What a head says all of.
const SHORT: usize = 16;

impl HeldKey {
    #[inline]
    fn set(&mut self, key: &[u8]) {
        (self.len, self.short) = (key.len(), head(key).to_be_bytes());
        if key.len() > SHORT {
            set(&mut self.long, key);
        }
    }

    /// [`set`](Self::set) of a key that its head says all of.
    #[inline(always)]
    fn set_short(&mut self, head: u128, len: usize) {
        (self.len, self.short) = (len, head.to_be_bytes());
    }

    #[inline(always)]
    fn has_head(&self, head: u128) -> bool {
        head == u128::from_be_bytes(self.short)
    }

    #[inline]
    fn is(&self, key: &[u8]) -> bool {
        let alike = key.len() == self.len && head(key).to_be_bytes() == self.short;
        alike && (key.len() <= SHORT || *key == self.long[..])
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        if self.len <= SHORT { &self.short[..self.len] } else { &self.long }
    }
}

#[inline]
fn set(buffer: &mut Vec<u8>, bytes: &[u8]) {
    buffer.clear();
    buffer.extend_from_slice(bytes);
}
