//! Memory of the block cache: frames of one size on huge pages, and separate buffers for blocks that are larger.
//!
//! Who may touch a frame is settled by its word (see `pins`): whoever changes it has the claim, whoever reads has a pin. Frames that
//! hold nothing stay claimed.
//!
//! The frame's owner (table and block ordinal) is checked after the pin: an index that is out of date leads to a frame
//! that says so, and nobody needs to correct indexes when a frame changes hands.
//!
//! This is the only file of the cache with unsafe code; its interface is safe.

use std::cell::UnsafeCell;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::Advice;

use super::pins::PinWord;
use crate::io::HugePages;
use crate::num::{to_u32, to_u64, to_usize};
use crate::sst::simd::{Line, prefetch_address};

/// Zeroed bytes that begin at a cache line; many of them on huge pages.
enum Memory {
    Lines(Box<[UnsafeCell<Line>]>),
    Pages(HugePages),
}

/// So many bytes are made ready with the first frame that is used.
const LEAST_AHEAD: usize = 16 << 20;

/// From this size on, memory is asked for as huge pages.
const PAGES_FROM: usize = 3 << 19;

impl Memory {
    /// `len` zero bytes at least.
    fn new(len: usize) -> Memory {
        if len >= PAGES_FROM
            && let Ok(pages) = HugePages::new(to_u64(len))
        {
            return Memory::Pages(pages);
        }
        Memory::Lines((0..len.div_ceil(64)).map(|_| UnsafeCell::new(Line([0; 8]))).collect())
    }

    #[inline(always)]
    fn start(&self) -> *const u8 {
        match self {
            Memory::Lines(lines) => lines.as_ptr().cast(),
            Memory::Pages(pages) => pages.as_ptr(),
        }
    }
}

/// Which block a frame holds: the table's number in the cache and the block's ordinal in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    pub(crate) table: u32,
    pub(crate) block: u32,
}

impl Owner {
    #[inline(always)]
    fn word(self) -> u64 {
        u64::from(self.table) << 32 | u64::from(self.block)
    }
}

struct Meta {
    word: PinWord,
    /// Length of the block.
    len: AtomicU32,
    owner: AtomicU64,
}

/// Frames `0..frames` are equal parts of one piece of memory; `frames..frames + boxes` hold a buffer each.
pub(crate) struct FramePool {
    memory: Memory,
    frame_bytes: usize,
    frames: usize,
    metas: Box<[Meta]>,
    boxes: Box<[UnsafeCell<Box<[u8]>>]>,
}

// SAFETY: frames and boxes are written only under a `Claim`, of which there is at most one each and which excludes pins, and
// read only under pins. The claim's release and the pin's acquire order the accesses.
unsafe impl Sync for FramePool {}

impl FramePool {
    /// A pool whose frames and boxes are all free, that is claimed: [`take_free`](Self::take_free) them.
    pub(crate) fn new(frames: usize, frame_bytes: usize, boxes: usize) -> FramePool {
        let meta = || Meta { word: PinWord::claimed(), len: AtomicU32::new(0), owner: AtomicU64::new(u64::MAX) };
        FramePool {
            memory: Memory::new(frames * frame_bytes),
            frame_bytes,
            frames,
            metas: (0..frames + boxes).map(|_| meta()).collect(),
            boxes: (0..boxes).map(|_| UnsafeCell::new(Box::default())).collect(),
        }
    }

    /// Takes the next huge page from the system if those for the first `used` frames, and for as many more, are not there; whether it did.
    /// Frames from `most` on are left alone. Called by one thread.
    pub(crate) fn prepare(&self, used: usize, most: usize) -> bool {
        let Memory::Pages(pages) = &self.memory else { return false };
        let ahead = (used * self.frame_bytes).max(LEAST_AHEAD);
        let wanted = (used * self.frame_bytes + ahead).min(most.min(self.frames) * self.frame_bytes);
        used > 0 && pages.prepare(to_u64(wanted))
    }

    /// How many frames lie in memory that is ready; all where it is not prepared.
    pub(crate) fn ready_frames(&self) -> usize {
        match &self.memory {
            Memory::Pages(pages) => to_usize(pages.ready()) / self.frame_bytes,
            Memory::Lines(_) => self.frames,
        }
    }

    /// Frames, boxes not counted.
    pub(crate) fn frames(&self) -> usize {
        self.frames
    }

    /// Boxes.
    pub(crate) fn boxes(&self) -> usize {
        self.boxes.len()
    }

    /// Bytes of a frame.
    pub(crate) fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// Where frame or box `i` has its bytes, and how many.
    #[inline(always)]
    fn place(&self, i: u32) -> (*const u8, usize) {
        let i = i as usize;
        if i < self.frames {
            // SAFETY: `i` is a frame, so the result lies within the pool's memory.
            return (unsafe { self.memory.start().add(i * self.frame_bytes) }, self.frame_bytes);
        }
        // SAFETY: the caller holds a pin or the claim of `i`, so no one replaces the box meanwhile (only claims do).
        let buffer = unsafe { &*self.boxes[i - self.frames].get() };
        (buffer.as_ptr(), buffer.len())
    }

    /// Pins frame `i` if it holds `owner`'s block.
    #[inline]
    pub(crate) fn pin<P: Deref<Target = FramePool>>(pool: P, i: u32, owner: Owner) -> Option<Pinned<P>> {
        let meta = pool.metas.get(i as usize)?;
        if !meta.word.pin() {
            return None;
        }
        if meta.owner.load(Ordering::Relaxed) != owner.word() {
            meta.word.unpin();
            return None;
        }
        let len = meta.len.load(Ordering::Relaxed) as usize;
        Some(Pinned { start: pool.place(i).0, pool, frame: i, len })
    }

    /// Starts fetching whose frame `i` is and its last lines, where a lookup begins.
    #[inline]
    pub(crate) fn prefetch_tail(&self, i: u32, len: usize) {
        let i = i as usize;
        if i < self.frames && len <= self.frame_bytes {
            prefetch_address(&raw const self.metas[i]);
            let end = i * self.frame_bytes + len;
            // Of 35 entries: 160 bytes and the common prefix.
            for back in [1, 64, 128, 192] {
                // Wrapping: a hint may name any address.
                prefetch_address(self.memory.start().wrapping_add(end.saturating_sub(back)));
            }
        }
    }

    /// Starts fetching the first lines of frame `i`.
    #[inline]
    pub(crate) fn prefetch_head(&self, i: u32) {
        let i = i as usize;
        if i < self.frames {
            for line in [0, 64] {
                prefetch_address(self.memory.start().wrapping_add(i * self.frame_bytes + line));
            }
        }
    }

    /// Claims frame `i` if nobody has it pinned or claimed.
    pub(crate) fn claim(&self, i: u32) -> Option<Claim<'_>> {
        self.metas.get(i as usize)?.word.claim().then_some(Claim { pool: self, frame: i })
    }

    /// Takes over a free frame: one that was never taken, or that [`Claim::park`] set free.
    ///
    /// The caller is the only one who was given this number since; taking a frame twice is a broken rule and panics where it
    /// can be noticed.
    pub(crate) fn take_free(&self, i: u32) -> Claim<'_> {
        let meta = &self.metas[i as usize];
        // A free frame belongs to nobody; the swap makes a second taker notice.
        let was = meta.owner.swap(TAKEN, Ordering::AcqRel);
        assert!(was == u64::MAX, "frame {i} was taken twice");
        Claim { pool: self, frame: i }
    }

    /// Whether frame `i` belongs to `owner` right now (it may change at once).
    pub(crate) fn belongs_to(&self, i: u32, owner: Owner) -> bool {
        self.metas.get(i as usize).is_some_and(|meta| meta.owner.load(Ordering::Relaxed) == owner.word())
    }
}

/// The owner of a claimed frame that is being filled.
const TAKEN: u64 = u64::MAX - 1;

/// The sole right to a frame's contents.
pub(crate) struct Claim<'a> {
    pool: &'a FramePool,
    frame: u32,
}

impl Claim<'_> {
    /// Whether it is a box.
    pub(crate) fn is_box(&self) -> bool {
        self.frame as usize >= self.pool.frames
    }

    /// Bytes of the frame, or of the box's buffer.
    pub(crate) fn room(&self) -> usize {
        self.pool.place(self.frame).1
    }

    /// Ends the claim and leaves the frame as it was.
    pub(crate) fn unclaim(self) {
        self.pool.metas[self.frame as usize].word.unclaim();
    }

    /// The whole frame, to be written.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        if self.is_box() {
            // SAFETY: the claim excludes every other access, and `&mut self` a second one through it.
            return unsafe { &mut *self.cell().get() };
        }
        let (start, len) = self.pool.place(self.frame);
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(start.cast_mut(), len) }
    }

    /// The box's.
    fn cell(&self) -> &UnsafeCell<Box<[u8]>> {
        &self.pool.boxes[self.frame as usize - self.pool.frames]
    }

    /// Puts `buffer` in the box, and returns the one before. For boxes only.
    pub(crate) fn replace(&mut self, buffer: Box<[u8]>) -> Box<[u8]> {
        // SAFETY: the claim excludes every other access to the box.
        std::mem::replace(unsafe { &mut *self.cell().get() }, buffer)
    }

    /// Ends the claim: the frame's first `len` bytes are `owner`'s block now. Returns it pinned.
    ///
    /// # Panics
    /// If the frame is shorter than `len`.
    pub(crate) fn publish<P: Deref<Target = FramePool>>(self, pool: P, owner: Owner, len: usize) -> Pinned<P> {
        assert!(std::ptr::eq(&raw const *pool, self.pool), "published to another pool");
        assert!(len <= self.pool.place(self.frame).1, "a block of {len} bytes is longer than its frame");
        let meta = &self.pool.metas[self.frame as usize];
        meta.len.store(to_u32(len), Ordering::Relaxed);
        meta.owner.store(owner.word(), Ordering::Relaxed);
        meta.word.claim_to_pin();
        Pinned { start: pool.place(self.frame).0, pool, frame: self.frame, len }
    }

    /// Leaves the frame free: nobody can pin or claim it until it is taken again. Returns the number to take it by.
    pub(crate) fn park(self) -> u32 {
        self.pool.metas[self.frame as usize].owner.store(u64::MAX, Ordering::Release);
        self.frame
    }

    /// Gives the frame's memory back to the system as far as it can be; its contents become zeros.
    pub(crate) fn give_back(&mut self) {
        if self.is_box() {
            self.replace(Box::default());
            return;
        }
        let (start, len) = self.pool.place(self.frame);
        if matches!(self.pool.memory, Memory::Pages(_)) && len.is_multiple_of(rustix::param::page_size()) {
            // SAFETY: the range is within our private mapping, is a whole number of pages (the mapping begins at one), and
            // the claim excludes every other access.
            let _ = unsafe { rustix::mm::madvise(start.cast_mut().cast(), len, Advice::LinuxDontNeed) };
        }
    }
}

/// A block in the cache that cannot be evicted while this exists. `P` is a reference to the pool, or an `Arc` of it.
pub(crate) struct Pinned<P: Deref<Target = FramePool>> {
    pool: P,
    frame: u32,
    /// Where the frame's bytes begin, and how many are the block.
    start: *const u8,
    len: usize,
}

// SAFETY: `start` points into the pool, which is `Sync`, and stays valid as long as `pool` and the pin: wherever `pool` may go or be
// looked at, so may this.
unsafe impl<P: Deref<Target = FramePool> + Send> Send for Pinned<P> {}
// SAFETY: as above.
unsafe impl<P: Deref<Target = FramePool> + Sync> Sync for Pinned<P> {}

impl<P: Deref<Target = FramePool>> Pinned<P> {
    /// The frame's number.
    pub(crate) fn frame(&self) -> u32 {
        self.frame
    }
}

impl<P: Deref<Target = FramePool>> Deref for Pinned<P> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: while pinned a frame is not claimed, so nobody writes it or replaces its buffer; `len` was published with the contents and
        // is at most the frame's length. The pool, which owns the memory, is kept by `pool`.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl<P: Deref<Target = FramePool>> Drop for Pinned<P> {
    #[inline]
    fn drop(&mut self) {
        self.pool.metas[self.frame as usize].word.unpin();
    }
}

/// The number of a frame for indexes in which 0 means none.
#[inline(always)]
pub(crate) fn slot_of(frame: u32) -> u32 {
    frame + 1
}

/// How many frames of `frame_bytes` fit into `bytes`, at most as many as slots can name.
pub(crate) fn frames_in(bytes: u64, frame_bytes: usize) -> usize {
    to_usize(bytes).checked_div(frame_bytes).unwrap_or(0).min(u32::MAX as usize / 4)
}
