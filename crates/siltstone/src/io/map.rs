//! Memory from the operating system: mapped log segments, and huge pages for memtables and the block cache.
//!
//! The only unsafe code of `io`. Two owners of mappings, each unmapped when dropped:
//!
//! - [`Map`]: a log segment, shared with its file, so what is stored survives the death of the process without a system call
//!   per write. Another thread populates it ahead of the writer, who meets a page fault only where he is faster.
//! - [`HugePages`]: anonymous memory in 2 MiB pages where the system grants them. A tree walk misses the TLB at nearly every
//!   step with 4 KiB pages; that was measured to cost more than a tenth of all lookups in memory.
//!
//! A mapped file must not be shortened while it is mapped: a store beyond its end kills the process. Segments are allocated in
//! full before they are mapped, and only their owner, who holds the store's lock, removes them.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::num::{to_u64, to_usize};

/// A shared, writable memory map of a whole file.
#[derive(Debug)]
pub(super) struct Map {
    start: NonNull<u8>,
    len: usize,
    mapping: Arc<Mapping>,
}

/// The pages of a [`Map`], for other threads: they can have them made ready, and keep none of them once their owner has dropped them.
#[derive(Debug)]
pub(super) struct MapPages(Weak<Mapping>);

#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a `Map` alone reads and writes the bytes of its mapping, like a `Box<[u8]>`; it can be sent to and shared with other threads.
unsafe impl Send for Map {}
// SAFETY: as above: shared references give no access to the bytes at all.
unsafe impl Sync for Map {}
// SAFETY: it gives no access to the bytes. It can be unmapped in any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Map {
    /// Maps the first `bytes` bytes of `file`, which must be that long and stay so.
    pub(super) fn shared(file: impl AsFd, bytes: u64) -> io::Result<Map> {
        if bytes == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a log segment cannot be empty"));
        }
        let len = to_usize(bytes);
        // SAFETY: no address is asked for, so no mapping of anyone else is replaced.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
        }?;
        let start = NonNull::new(start.cast()).ok_or_else(no_address)?;
        Ok(Map { start, len, mapping: Arc::new(Mapping { start, len }) })
    }

    /// Its pages, for other threads.
    pub(super) fn pages(&self) -> MapPages {
        MapPages(Arc::downgrade(&self.mapping))
    }

    /// Its bytes.
    #[inline]
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is `len` bytes long, readable and writable until `self` drops it, and this borrow is exclusive: nobody else
        // has a way to the bytes. No other process writes the file: the store's lock keeps them out.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl MapPages {
    /// Takes the page faults of the first stores to `range`, which begins with a page, now and in one go. Changes no byte; the owner may write
    /// meanwhile.
    pub(super) fn prepare(&self, range: Range<u64>) {
        let Some(mapping) = self.0.upgrade() else { return };
        let (start, end) = (to_usize(range.start).min(mapping.len), to_usize(range.end).min(mapping.len));
        // Kernels before 5.14 refuse; then faults come one by one, at the first stores.
        // SAFETY: the range lies inside the mapping, which this reference keeps; populating changes no byte.
        let _ = unsafe {
            let at = mapping.start.as_ptr().add(start);
            rustix::mm::madvise(at.cast(), end.saturating_sub(start), Advice::LinuxPopulateWrite)
        };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `mmap` with this length, and no borrow outlives the map that kept it. It cannot fail for such a range.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// The size of a huge page.
pub(crate) const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Zeroed memory in huge pages, as far as the system grants them. Pages are taken when first touched.
///
/// It hands out a pointer only: who shares it, and how, is the owner's to prove.
#[derive(Debug)]
pub(crate) struct HugePages {
    mapping: NonNull<u8>,
    mapped: usize,
    start: NonNull<u8>,
    len: usize,
    /// So many bytes were [made ready](Self::prepare).
    ready: AtomicU64,
}

// SAFETY: it owns its mapping alone and gives out nothing but a raw pointer.
unsafe impl Send for HugePages {}
// SAFETY: as above.
unsafe impl Sync for HugePages {}

impl HugePages {
    /// At least `bytes` bytes, rounded up to whole huge pages and aligned to them.
    ///
    /// # Errors
    /// If there is no address space. A system without huge pages gives ordinary ones instead.
    pub(crate) fn new(bytes: u64) -> io::Result<HugePages> {
        let len = bytes.max(1).checked_next_multiple_of(HUGE_PAGE_BYTES);
        // One page more, so that an aligned start is inside. What is never touched costs nothing.
        let mapped = len.and_then(|len| len.checked_add(HUGE_PAGE_BYTES));
        let (Some(len), Some(mapped)) = (len, mapped) else {
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, "more memory than there are addresses"));
        };
        let (len, mapped) = (to_usize(len), to_usize(mapped));
        // NORESERVE: overcommit accounting would refuse large arenas of which little is touched.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: no address is asked for, so no mapping of anyone else is replaced.
        let mapping = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), mapped, ProtFlags::READ | ProtFlags::WRITE, flags)
        }?;
        let mapping = NonNull::new(mapping.cast::<u8>()).ok_or_else(no_address)?;
        let skip = mapping.align_offset(to_usize(HUGE_PAGE_BYTES));
        // SAFETY: `skip` is less than one huge page and the mapping is one huge page longer than `len`, so `start` and the
        // `len` bytes behind it lie inside.
        let start = unsafe { mapping.add(skip) };
        // SAFETY: the range lies inside the mapping; the advice changes no byte. Without huge pages the advice fails, and
        // nothing is lost but speed.
        let _ = unsafe { rustix::mm::madvise(start.as_ptr().cast(), len, Advice::LinuxHugepage) };
        Ok(HugePages { mapping, mapped, start, len, ready: AtomicU64::new(0) })
    }

    /// The first byte; aligned to a huge page. Valid for [`len`](HugePages::len) bytes until `self` is dropped.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Takes the next huge page from the system if those of the first `wanted` bytes are not there, so that nobody waits for it later; whether
    /// it did. The first touch of one takes 0.1 ms, and where the machine is a virtual one and its host makes the memory only then, several.
    /// Changes no byte; others may use the memory meanwhile. Called by one thread at a time.
    pub(crate) fn prepare(&self, wanted: u64) -> bool {
        let ready = self.ready();
        if ready >= wanted.min(self.len()) {
            return false;
        }
        // SAFETY: the range lies inside the mapping: `ready` and its length are whole huge pages. Populating changes no byte. Kernels before
        // 5.14 refuse; then pages are taken when they are touched.
        let _ = unsafe {
            let page = self.start.as_ptr().add(to_usize(ready));
            rustix::mm::madvise(page.cast(), to_usize(HUGE_PAGE_BYTES), Advice::LinuxPopulateWrite)
        };
        self.ready.store(ready + HUGE_PAGE_BYTES, Ordering::Relaxed);
        true
    }

    /// Gives the whole huge pages behind the first `kept` bytes back to the system; they come again, as zeros, when they are touched. In a thread
    /// that prepares at the same time, some of them may count as ready: then who touches them takes a page fault.
    ///
    /// # Safety
    /// Nobody needs what is in the bytes from `kept` on, or reads or writes them meanwhile.
    pub(crate) unsafe fn give_back(&self, kept: u64) {
        let from = kept.min(self.len()).next_multiple_of(HUGE_PAGE_BYTES);
        if from == self.len() {
            return;
        }
        // SAFETY: the range lies inside the mapping, and the caller says that its bytes are nobody's. If the system refuses, it keeps them.
        let _ = unsafe {
            let behind = self.start.as_ptr().add(to_usize(from));
            rustix::mm::madvise(behind.cast(), to_usize(self.len() - from), Advice::LinuxDontNeed)
        };
        self.ready.fetch_min(from, Ordering::Relaxed);
    }

    /// How many bytes were [made ready](Self::prepare).
    #[inline]
    pub(crate) fn ready(&self) -> u64 {
        self.ready.load(Ordering::Relaxed)
    }

    /// Bytes at [`as_ptr`](HugePages::as_ptr).
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        to_u64(self.len)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // SAFETY: made by `mmap_anonymous` with this length; the owner has given up its pointers into it.
        let _ = unsafe { rustix::mm::munmap(self.mapping.as_ptr().cast(), self.mapped) };
    }
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, "mmap gave no address")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_aligned_zeroed_and_writable_to_the_last_byte() {
        for bytes in [0, 1, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 1] {
            let pages = HugePages::new(bytes).unwrap();
            assert!(pages.len() >= bytes && pages.len().is_multiple_of(HUGE_PAGE_BYTES) && pages.len() > 0);
            assert_eq!(pages.as_ptr().align_offset(to_usize(HUGE_PAGE_BYTES)), 0);
            // SAFETY: the last of `len` valid bytes, and nobody else has the pointer.
            unsafe {
                let last = pages.as_ptr().add(to_usize(pages.len()) - 1);
                assert_eq!(*last, 0);
                *last = 7;
                assert_eq!(*last, 7);
            }
        }
        assert!(HugePages::new(u64::MAX).is_err());
    }

    #[test]
    fn preparing_keeps_what_is_there_and_goes_no_further_than_the_end() {
        let pages = HugePages::new(2 * HUGE_PAGE_BYTES).unwrap();
        // SAFETY: a byte inside, and nobody else has the pointer.
        unsafe { *pages.as_ptr().add(5) = 9 };
        let steps: Vec<(bool, u64)> =
            [0, 1, HUGE_PAGE_BYTES, u64::MAX, u64::MAX].map(|wanted| (pages.prepare(wanted), pages.ready())).into();
        let one = HUGE_PAGE_BYTES;
        assert_eq!(steps, [(false, 0), (true, one), (false, one), (true, 2 * one), (false, 2 * one)]);
        // SAFETY: as above.
        assert_eq!(unsafe { *pages.as_ptr().add(5) }, 9);
    }

    #[test]
    fn what_is_given_back_comes_again_as_zeros_and_the_rest_stays() {
        let pages = HugePages::new(3 * HUGE_PAGE_BYTES).unwrap();
        while pages.prepare(u64::MAX) {}
        let at = |page: u64| pages.as_ptr().wrapping_add(to_usize(page * HUGE_PAGE_BYTES));
        // SAFETY: bytes inside, and nobody else has the pointer.
        let now = || [0, 1, 2].map(|page| unsafe { *at(page) });
        // SAFETY: as above.
        (0..3).for_each(|page| unsafe { *at(page) = 7 });
        for (kept, left, ready) in
            [(u64::MAX, [7, 7, 7], 3), (2 * HUGE_PAGE_BYTES - 1, [7, 7, 0], 2), (1, [7, 0, 0], 1)]
        {
            // SAFETY: nobody uses the bytes meanwhile.
            unsafe { pages.give_back(kept) };
            assert_eq!((now(), pages.ready()), (left, ready * HUGE_PAGE_BYTES), "all but {kept}");
        }
        assert!(pages.prepare(u64::MAX), "they can be made ready again");
    }
}
