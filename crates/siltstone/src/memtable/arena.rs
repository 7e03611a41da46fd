//! The memory of a memtable: records and nodes, appended, never moved and never freed before the whole arena is.
//!
//! Everything is named by a 32-bit offset in units of 8 bytes, so an arena holds up to 32 GiB. The first region is as large as
//! the memtable is expected to grow; it lies on huge pages when it is large (a tree walk without them pays a TLB miss per
//! node), on the heap when it is small (a simulation opens thousands of stores with memtables of a few KiB). Memory is only
//! touched when it is used, so a generous region costs address space, not memory. What does not fit goes to further regions,
//! each as large as all before it together, up to 1 GiB, so that there are at most a few dozen; a record larger than that gets a region of
//! its own size.
//!
//! When an arena goes, its first region is kept in the store's [`ArenaPool`] for the next memtable. Until there are such, memory is made ready
//! ahead of the writer: [`Arena::prepare`] and [`ArenaPool::prepare`].
//!
//! A record is written once, before its offset is published, and never changed: readers borrow it for the arena's life.
#![expect(unsafe_code, reason = "raw memory is what this module hides; records are shared with readers without a lock")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::io::{HUGE_PAGE_BYTES, HugePages};
use crate::key::{Entry, Trailer};
use crate::num::{to_u32, to_u64, to_usize};
use crate::sst::simd::{prefetch_address, prefetch_for_appending};

/// Regions of at least this size lie on huge pages.
const HUGE_FROM: usize = 1 << 20;
/// Every allocation of nodes and the start of every region is aligned so.
const LINE: usize = 64;
/// Offsets are in units of so many bytes.
const UNIT: u64 = 8;
/// What a 32-bit offset can name.
const LIMIT: u64 = UNIT << 32;
/// Regions double up to 1 GiB: an arena that begins with 1 KiB comes to so many at 28 GiB, one that begins with 64 KiB never does.
const MAX_REGIONS: usize = 48;
/// Trailer, key length, value length.
const RECORD_HEADER: usize = 16;

/// The address of a record or node: bytes from the arena's start, divided by 8. 0 names nothing.
pub(super) type Offset = u32;

/// Words of an arena that are shared as atomics.
pub(super) struct Words {
    at: Offset,
    len: usize,
}

/// The shared, readable side.
pub(super) struct Arena {
    first: *mut u8,
    first_bytes: u64,
    /// How far a writer mostly comes in it: no more is made ready ahead of him.
    expected_bytes: u64,
    /// The first region, there until the arena goes.
    first_region: Region,
    /// The further regions: where each starts in the arena, and its memory. `u64::MAX` while there is none.
    starts: [AtomicU64; MAX_REGIONS],
    bases: [AtomicPtr<u8>; MAX_REGIONS],
    /// They, to be freed at the end. Locked by the writer when it adds one, a few times in an arena's life.
    owned: Mutex<Vec<Region>>,
    /// Where the first region goes at the end.
    pool: Arc<ArenaPool>,
}

/// Memory of memtables that are gone, kept for the next ones. It is mapped and faulted in already: a new mapping would cost a
/// writer milliseconds when the kernel is busy with others, and the zeroing of its pages a tenth of all inserts.
#[derive(Default)]
pub struct ArenaPool {
    kept: Mutex<Vec<HugePages>>,
    /// Arenas on huge pages that are in use.
    used: AtomicUsize,
    /// When a memtable was begun last, by the monotonic clock.
    begun_ns: AtomicU64,
}

/// A store's memtables take turns: one is filled while another is flushed.
const POOLED: usize = 2;
/// A writer comes upon memory that is ready for so many times as much as he has used: at 500 MB/s, and with a system that needs milliseconds for
/// a huge page, whoever makes it ready is not much faster than he.
const AHEAD_SHARE: u64 = 4;
/// And for this much more, in a store with few memtables. Where there are many, each that is hardly used would take it.
const AHEAD_BYTES: u64 = 4 * HUGE_PAGE_BYTES;

impl ArenaPool {
    /// Notes that a memtable is begun.
    pub(crate) fn touch(&self, now_ns: u64) {
        self.begun_ns.store(now_ns, Ordering::Relaxed);
    }

    /// When a memtable was begun last.
    pub(crate) fn begun_ns(&self) -> u64 {
        self.begun_ns.load(Ordering::Relaxed)
    }

    /// The same, if memory is kept for more.
    pub(crate) fn touched_ns(&self) -> Option<u64> {
        let any = !self.kept.lock().is_empty();
        any.then(|| self.begun_ns())
    }

    /// Gives the memory back to the system.
    pub(crate) fn release(&self) {
        let kept = std::mem::take(&mut *self.kept.lock());
        drop(kept);
    }

    /// Makes ready where the memtable after `now` begins, if no memory is kept for it and it is not one of a full round. Returns whether it did
    /// anything. Called by one thread.
    fn prepare(&self, now: &HugePages) -> bool {
        if self.used.load(Ordering::Relaxed) > POOLED || !self.kept.lock().is_empty() {
            return false;
        }
        let Ok(pages) = HugePages::new(now.len()) else { return false };
        while pages.prepare(AHEAD_BYTES) {}
        self.give(&mut Some(pages));
        true
    }

    fn take(&self, len: usize) -> Option<HugePages> {
        let mut kept = self.kept.lock();
        let fits = kept.iter().position(|pages| pages.len() >= to_u64(len))?;
        Some(kept.swap_remove(fits))
    }

    fn give(&self, pages: &mut Option<HugePages>) {
        let mut kept = self.kept.lock();
        if kept.len() < POOLED {
            kept.extend(pages.take());
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if let Region::Huge(pages) = &mut self.first_region {
            self.pool.used.fetch_sub(1, Ordering::Relaxed);
            self.pool.give(pages);
        }
    }
}

// SAFETY: the raw pointers name memory that the arena owns until it is dropped. Published records are immutable, and nodes are
// accessed through atomics only.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

/// Where the one writer allocates next.
pub(super) struct Bump {
    next: u64,
    end: u64,
    /// The current region's memory minus its start, so that `base + offset` is the address.
    base: *mut u8,
    start: u64,
    used: u64,
    regions: usize,
    /// The region was used before: what must be zero is zeroed when it is given out.
    dirty: bool,
}

// SAFETY: the pointer names memory of the arena that the bump belongs to; it moves with the one writer.
unsafe impl Send for Bump {}

/// A new arena that expects `bytes`, with room for `slack` more in its first region, and its allocator.
pub(super) fn new(bytes: u64, slack: u64, pool: &Arc<ArenaPool>) -> (Arena, Bump) {
    let len = to_usize((bytes + slack).clamp(1024, LIMIT / 2));
    let pooled = if len >= HUGE_FROM { pool.take(len) } else { None };
    let dirty = pooled.is_some();
    let region = pooled.map_or_else(|| Region::new(len), |pages| Region::Huge(Some(pages)));
    if matches!(region, Region::Huge(_)) {
        pool.used.fetch_add(1, Ordering::Relaxed);
    }
    let arena = Arena {
        first: region.base(),
        first_bytes: to_u64(region.len()),
        expected_bytes: bytes,
        first_region: region,
        starts: [const { AtomicU64::new(u64::MAX) }; MAX_REGIONS],
        bases: [const { AtomicPtr::new(ptr::null_mut()) }; MAX_REGIONS],
        owned: Mutex::new(Vec::new()),
        pool: Arc::clone(pool),
    };
    // The first line stays empty: offset 0 names nothing.
    let bump =
        Bump { next: to_u64(LINE), end: arena.first_bytes, base: arena.first, start: 0, used: 0, regions: 0, dirty };
    (arena, bump)
}

impl Arena {
    /// The address that `offset` names.
    #[inline]
    pub(super) fn address(&self, offset: Offset) -> *mut u8 {
        let at = u64::from(offset) * UNIT;
        if at < self.first_bytes {
            // `at` is inside the first region.
            return self.first.wrapping_add(to_usize(at));
        }
        self.far_address(at)
    }

    /// Makes more memory ready for the writer, who has used `used` bytes, or where the next memtable begins once this one is half full and `fast`
    /// says that he will come to it soon. Returns whether it did anything. Called by one thread.
    pub(super) fn prepare(&self, used: u64, fast: bool) -> bool {
        let Region::Huge(Some(pages)) = &self.first_region else { return false };
        pages.prepare(self.ahead(used)) || (fast && used >= pages.len() / 2 && self.pool.prepare(pages))
    }

    /// How much of the first region should be ready for a writer who has used `used` bytes.
    pub(super) fn ahead(&self, used: u64) -> u64 {
        let is_one_of_few = self.pool.used.load(Ordering::Relaxed) <= POOLED + 1;
        (used * AHEAD_SHARE + if is_one_of_few { AHEAD_BYTES } else { 0 }).min(self.expected_bytes)
    }

    #[cold]
    fn far_address(&self, at: u64) -> *mut u8 {
        let after = self.starts.iter().position(|start| start.load(Ordering::Acquire) > at).unwrap_or(MAX_REGIONS);
        assert!(after > 0, "offset {at} is in no region");
        let start = self.starts[after - 1].load(Ordering::Acquire);
        self.bases[after - 1].load(Ordering::Acquire).wrapping_add(to_usize(at - start))
    }

    /// The record at `offset`.
    ///
    /// # Safety
    /// `offset` came from [`Bump::record`] of this arena, and reached the caller after that call (in the same thread, or through
    /// an acquire of what the writer released).
    #[inline]
    pub(super) unsafe fn record(&self, offset: Offset) -> Entry<'_> {
        let at = self.address(offset);
        // SAFETY: the caller promises a whole record at `at`, which the writer filled before it gave out the offset and nobody
        // changes. Records start at multiples of 8.
        unsafe {
            let trailer = Trailer(at.cast::<u64>().read());
            let key_len = at.add(8).cast::<u32>().read() as usize;
            let value_len = at.add(12).cast::<u32>().read() as usize;
            let key = at.add(RECORD_HEADER);
            Entry {
                key: std::slice::from_raw_parts(key, key_len),
                trailer,
                value: std::slice::from_raw_parts(key.add(key_len), value_len),
            }
        }
    }

    /// The words at a place that [`Bump::words`] of this arena gave out.
    #[inline]
    pub(super) fn words(&self, words: &Words) -> &[AtomicU64] {
        // SAFETY: `Words` are made by `Bump::words` only, for zeroed memory that nothing else uses; there is one arena beside
        // each of them (`Memtable`).
        unsafe { std::slice::from_raw_parts(self.address(words.at).cast(), words.len) }
    }

    /// Starts fetching the key of the record at `offset`, which must be one, though perhaps not one that may be read yet.
    #[inline]
    pub(super) fn prefetch_key(&self, offset: Offset) {
        let at = self.address(offset);
        prefetch_address(at);
        prefetch_address(at.wrapping_add(LINE));
    }

    /// The same with the value: as many lines as a key of 16 bytes and a value of 100 lie in. Of longer ones the processor fetches the rest.
    #[inline]
    pub(super) fn prefetch(&self, offset: Offset) {
        self.prefetch_key(offset);
        prefetch_address(self.address(offset).wrapping_add(2 * LINE));
    }
}

impl Bump {
    /// Gives back the memory of the first region that was not given out yet, but for its first `kept` bytes: an earlier memtable may have filled it.
    pub(super) fn give_back(&self, arena: &Arena, kept: u64) {
        if let (Region::Huge(Some(pages)), 0) = (&arena.first_region, self.regions) {
            // SAFETY: `arena` is the one that this allocator was made with (`MemtableWriter` keeps both). Behind `next` nothing was given out yet, so
            // nobody has an offset there, and nothing is given out meanwhile: that takes `&mut self`.
            unsafe { pages.give_back(self.next.max(kept)) };
        }
    }

    /// Bytes given out so far.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// `len` zeroed words, aligned to a cache line, not counted in [`Bump::used`].
    pub(super) fn words(&mut self, arena: &Arena, len: usize) -> Words {
        Words { at: self.lines(arena, 8 * len), len }
    }

    /// A node of `len` zeroed bytes, aligned to a cache line.
    pub(super) fn node(&mut self, arena: &Arena, len: usize) -> Offset {
        self.used += to_u64(len);
        self.lines(arena, len)
    }

    fn lines(&mut self, arena: &Arena, len: usize) -> Offset {
        self.next = self.next.next_multiple_of(to_u64(LINE));
        let len = len.next_multiple_of(LINE);
        let (offset, at) = self.take(arena, len);
        if self.dirty {
            // SAFETY: `at` starts `len` bytes that nobody else uses yet.
            unsafe { at.write_bytes(0, len) };
        }
        offset
    }

    /// Appends a record; it can be read at the returned offset at once.
    #[inline]
    pub(super) fn record(&mut self, arena: &Arena, key: &[u8], trailer: Trailer, value: &[u8]) -> Offset {
        let len = (RECORD_HEADER + key.len() + value.len()).next_multiple_of(to_usize(UNIT));
        self.used += to_u64(len);
        let (offset, at) = self.take(arena, len);
        prefetch_for_appending(at.wrapping_add(len));
        // SAFETY: `at` starts `len` bytes that nobody else uses yet, aligned to 8; header, key and value fit in them. Key and
        // value are the caller's memory, so they do not overlap fresh arena memory.
        unsafe {
            at.cast::<u64>().write(trailer.0);
            at.add(8).cast::<u32>().write(to_u32(key.len()));
            at.add(12).cast::<u32>().write(to_u32(value.len()));
            ptr::copy_nonoverlapping(key.as_ptr(), at.add(RECORD_HEADER), key.len());
            ptr::copy_nonoverlapping(value.as_ptr(), at.add(RECORD_HEADER + key.len()), value.len());
        }
        offset
    }

    #[inline]
    fn take(&mut self, arena: &Arena, len: usize) -> (Offset, *mut u8) {
        if self.next + to_u64(len) > self.end {
            self.grow(arena, len);
        }
        let at = self.next;
        self.next += to_u64(len);
        (to_u32(to_usize(at / UNIT)), self.base.wrapping_add(to_usize(at - self.start)))
    }

    /// Adds a region in which `need` bytes fit. The rest of the current one is left unused.
    #[cold]
    fn grow(&mut self, arena: &Arena, need: usize) {
        let len = to_usize(self.end).min(1 << 30).max(need).next_multiple_of(LINE);
        let region = Region::new(len);
        let start = self.end;
        let end = start + to_u64(region.len());
        // Before anything points into the region, which a panic gives back. A memtable that is set aside at the option's most does not come here.
        assert!(end <= LIMIT && self.regions < MAX_REGIONS, "a memtable holds at most 32 GiB");
        self.start = start;
        self.next = start;
        self.end = end;
        self.base = region.base();
        self.dirty = false;
        // The base first: whoever sees the start may use it.
        arena.bases[self.regions].store(region.base(), Ordering::Release);
        arena.starts[self.regions].store(start, Ordering::Release);
        self.regions += 1;
        arena.owned.lock().push(region);
    }
}

/// Memory that the arena owns.
enum Region {
    Heap(Heap),
    /// None once it went back to the pool.
    Huge(Option<HugePages>),
}

impl Region {
    /// At least `len` zeroed bytes. Like any allocation of Rust's, it ends the process when there is no memory left.
    fn new(len: usize) -> Region {
        if len >= HUGE_FROM {
            // Where the kernel refuses the mapping, the heap may still do.
            if let Ok(pages) = HugePages::new(to_u64(len)) {
                return Region::Huge(Some(pages));
            }
        }
        Region::Heap(Heap::new(len))
    }

    fn base(&self) -> *mut u8 {
        match self {
            Region::Heap(heap) => heap.base,
            Region::Huge(pages) => pages.as_ref().map_or(ptr::null_mut(), HugePages::as_ptr),
        }
    }

    fn len(&self) -> usize {
        match self {
            Region::Heap(heap) => heap.layout.size(),
            Region::Huge(pages) => pages.as_ref().map_or(0, |pages| to_usize(pages.len())),
        }
    }
}

/// Zeroed memory from the allocator.
struct Heap {
    base: *mut u8,
    layout: Layout,
}

impl Heap {
    fn new(len: usize) -> Heap {
        let layout = Layout::from_size_align(len.next_multiple_of(LINE), LINE).expect("64 is a power of two");
        // SAFETY: the layout's size is not zero.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            handle_alloc_error(layout);
        }
        Heap { base, layout }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { dealloc(self.base, self.layout) };
    }
}
