//! Memory for what is kept of open tables: filters, indexes, and where blocks lie in the cache.
//!
//! A lookup touches a line here and a line there of all of it, a hundredth of the data. On pages of 4 KiB each touch is a miss of the TLB as well as of
//! the cache once that is more than some MiB, so the pieces of several tables share huge pages. A piece is cut once and never used again; a huge page
//! goes when the last table with a piece in it has gone.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::io::{HUGE_PAGE_BYTES, HugePages};
use crate::num::{to_u64, to_usize};

#[cfg(test)]
mod tests;

/// Smaller pieces stay where they are: a huge page for a few of them would be the larger waste.
const LEAST_BYTES: usize = 32 << 10;
/// Larger ones have huge pages of their own.
const MOST_BYTES: usize = 3 << 19;
const LINE_BYTES: usize = 64;

/// Where pieces are cut from.
#[derive(Default)]
pub(crate) struct Shelf {
    open: Mutex<Option<Open>>,
}

/// The huge page that pieces are cut from at present, and how much of it is cut.
struct Open {
    pages: Arc<HugePages>,
    used: usize,
}

impl Shelf {
    /// Zeroed bytes that nobody else has or will have, from a cache line on. None for few, and if there is no memory.
    fn cut(&self, bytes: usize) -> Option<(Arc<HugePages>, NonNull<u8>)> {
        if bytes < LEAST_BYTES {
            return None;
        }
        if bytes > MOST_BYTES {
            let pages = Arc::new(HugePages::new(to_u64(bytes)).ok()?);
            let start = NonNull::new(pages.as_ptr())?;
            return Some((pages, start));
        }
        let len = bytes.next_multiple_of(LINE_BYTES);
        let mut open = self.open.lock();
        let fits = open.take().filter(|open| open.used + len <= to_usize(open.pages.len()));
        let page = match fits {
            Some(page) => page,
            None => Open { pages: Arc::new(HugePages::new(HUGE_PAGE_BYTES).ok()?), used: 0 },
        };
        let start = NonNull::new(page.pages.as_ptr().wrapping_add(page.used))?;
        let pages = Arc::clone(&page.pages);
        *open = Some(Open { used: page.used + len, ..page });
        Some((pages, start))
    }
}

/// Items that stay where they are, on a [`Shelf`] or on the heap.
pub(crate) struct Kept<T> {
    items: NonNull<[T]>,
    /// What they lie in; on the heap they are a box.
    pages: Option<Arc<HugePages>>,
}

// SAFETY: it owns its items as a box does, and is all that knows of them.
unsafe impl<T: Send> Send for Kept<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Kept<T> {}

impl<T> Kept<T> {
    /// Keeps `items` on the shelf, if there is one and they are many enough for it.
    pub(crate) fn new(items: Vec<T>, shelf: Option<&Shelf>) -> Kept<T> {
        const { assert!(!std::mem::needs_drop::<T>() && align_of::<T>() <= LINE_BYTES) };
        let Some((pages, start)) = shelf.and_then(|shelf| shelf.cut(size_of_val(&items[..]))) else {
            return Kept { items: NonNull::from(Box::leak(items.into_boxed_slice())), pages: None };
        };
        let start = start.cast::<T>();
        // SAFETY: `start` begins as many bytes as the items have, aligned to a line, which nobody else has. The items are moved: nothing of them is
        // dropped with the vector but its memory, since they need no drop.
        unsafe { start.copy_from_nonoverlapping(NonNull::from(&items[..]).cast(), items.len()) };
        Kept { items: NonNull::slice_from_raw_parts(start, items.len()), pages: Some(pages) }
    }
}

impl<T> Deref for Kept<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the items were moved here by `new`, and their memory lives until `self` is dropped.
        unsafe { self.items.as_ref() }
    }
}

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        if self.pages.is_none() {
            // SAFETY: without pages the items came from a box, which nobody else has freed.
            drop(unsafe { Box::from_raw(self.items.as_ptr()) });
        }
    }
}

impl<T> std::fmt::Debug for Kept<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").field("items", &self.len()).field("on_pages", &self.pages.is_some()).finish()
    }
}
