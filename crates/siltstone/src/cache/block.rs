//! The block cache: which blocks are kept.
//!
//! Each open table has an array of *slots*, one a block: the number of the frame that held the block last, or 0. A hit is one
//! load of the slot and one pin of the frame ([`frames`](super::frames)), without a lock or a hash table. A slot may be out
//! of date; the frame itself knows whose it is.
//!
//! Eviction is CLOCK: a hand goes round the frames, spares those whose reference bit is set and clears it. Bits are dense,
//! apart from the frames, and written only when they change, so hits on many threads do not fight for a line.
//!
//! Not every miss is admitted once the cache is full: writing to a cold frame makes a read 1.7 times dearer, and most
//! blocks of a set that does not fit are evicted unused. A *doorkeeper* remembers the last misses, an eighth as many as there
//! are frames, and admits a block that is missed again while remembered. Other misses are read into memory that the thread reuses, and so
//! are those for which the system has not given memory yet.
//!
//! The budget is one number of bytes: frames in use, larger blocks, and what open tables hold in memory (filters, indexes:
//! [`BlockCache::charge`]). Charges displace frames, but a quarter of the budget stays for blocks.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::cache::frames::{Claim, FramePool, Owner, Pinned, frames_in, slot_of};
use crate::cache::shelf::{Kept, Shelf};
use crate::io::HUGE_PAGE_BYTES;
use crate::num::{to_u32, to_u64, to_usize};
use crate::sst::simd::prefetch_address;

/// The frame size of [`BlockCache::new`]: a block of the default size with its trailer.
pub const DEFAULT_FRAME_BYTES: usize = 4096;

/// Blocks of all tables of a store, in bounded memory. Shared by `Arc`.
pub struct BlockCache {
    pool: Arc<FramePool>,
    capacity_bytes: u64,
    /// Bytes of frames and boxes that hold blocks.
    used: AtomicU64,
    /// Bytes that open tables hold.
    charged: AtomicU64,
    /// Reference bits, 64 frames a word.
    referenced: Box<[AtomicU64]>,
    hand: AtomicUsize,
    free: Mutex<Free>,
    /// How many frames, and boxes, were ever taken: the hand goes no further.
    frames_high: AtomicUsize,
    boxes_high: AtomicUsize,
    doorkeeper: Box<[AtomicU32]>,
    next_table: AtomicU32,
    counters: Box<[Stripe]>,
    /// Calls for [`prepare`](BlockCache::prepare).
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Where open tables have what they keep in memory.
    shelf: Shelf,
}

/// Numbers of parked frames and boxes, to be taken again.
#[derive(Default)]
struct Free {
    frames: Vec<u32>,
    boxes: Vec<u32>,
}

/// What the cache did so far, and what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct CacheStats {
    /// Blocks that were found.
    pub hits: u64,
    /// Blocks that had to be read.
    pub misses: u64,
    /// Of the misses, those that went into the cache.
    pub admitted: u64,
    /// Blocks that were displaced.
    pub evictions: u64,
    /// Bytes of blocks held.
    pub used_bytes: u64,
    /// Bytes of filters and indexes of open tables.
    pub charged_bytes: u64,
    /// The budget of both together.
    pub capacity_bytes: u64,
}

/// Counters of some of the threads, on a cache line of their own.
#[derive(Default)]
#[repr(align(128))]
struct Stripe {
    hits: AtomicU64,
    misses: AtomicU64,
    admitted: AtomicU64,
    evictions: AtomicU64,
}

const STRIPES: usize = 16;

fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        // Which counters a thread uses decides nothing: they are only ever added up.
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES;
    }
    MINE.with(|mine| *mine)
}

/// A table's share in the cache: its number, and a slot for each block. Dropping it frees the table's frames.
pub(crate) struct Slots {
    cache: Arc<BlockCache>,
    table: u32,
    slots: Kept<AtomicU32>,
}

impl BlockCache {
    /// A cache of at most `capacity_bytes`, for blocks of up to [`DEFAULT_FRAME_BYTES`]; larger ones take memory of their own.
    pub fn new(capacity_bytes: u64) -> BlockCache {
        BlockCache::with_frame_bytes(capacity_bytes, DEFAULT_FRAME_BYTES)
    }

    /// A cache of at most `capacity_bytes` with frames of another size: the block size that most tables use.
    pub fn with_frame_bytes(capacity_bytes: u64, frame_bytes: usize) -> BlockCache {
        let frame_bytes = frame_bytes.clamp(64, 16 << 20).next_multiple_of(64);
        let frames = frames_in(capacity_bytes, frame_bytes);
        let boxes = if frames == 0 { 0 } else { frames / 4 + 16 };
        BlockCache {
            pool: Arc::new(FramePool::new(frames, frame_bytes, boxes)),
            capacity_bytes,
            used: AtomicU64::new(0),
            charged: AtomicU64::new(0),
            referenced: (0..(frames + boxes).div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            hand: AtomicUsize::new(0),
            free: Mutex::default(),
            frames_high: AtomicUsize::new(0),
            boxes_high: AtomicUsize::new(0),
            doorkeeper: (0..(frames / 8).next_power_of_two().max(8)).map(|_| AtomicU32::new(0)).collect(),
            next_table: AtomicU32::new(0),
            counters: (0..STRIPES).map(|_| Stripe::default()).collect(),
            wake: OnceLock::new(),
            shelf: Shelf::default(),
        }
    }

    /// Where tables that are open for readers have what they keep in memory.
    pub(crate) fn shelf(&self) -> &Shelf {
        &self.shelf
    }

    /// Whom to call when it is time to [`prepare`](Self::prepare). The first one stays.
    pub(crate) fn set_wake(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.wake.set(Box::new(wake));
    }

    /// Makes memory ready that frames are going to need, a piece at a time and within the budget; whether there was any to make. Called by
    /// one thread.
    pub(crate) fn prepare(&self) -> bool {
        let most = to_usize(self.block_budget()).checked_div(self.pool.frame_bytes()).unwrap_or(0);
        self.pool.prepare(self.frames_high.load(Ordering::Relaxed), most)
    }

    /// What the cache did so far, and what it holds.
    pub fn stats(&self) -> CacheStats {
        let mut stats = CacheStats {
            used_bytes: self.used.load(Ordering::Relaxed),
            charged_bytes: self.charged.load(Ordering::Relaxed),
            capacity_bytes: self.capacity_bytes,
            ..CacheStats::default()
        };
        for stripe in &self.counters {
            stats.hits += stripe.hits.load(Ordering::Relaxed);
            stats.misses += stripe.misses.load(Ordering::Relaxed);
            stats.admitted += stripe.admitted.load(Ordering::Relaxed);
            stats.evictions += stripe.evictions.load(Ordering::Relaxed);
        }
        stats
    }

    /// Counts `bytes` of memory outside the cache against its budget; blocks make room for them, down to a quarter of it.
    pub fn charge(&self, bytes: u64) {
        self.charged.fetch_add(bytes, Ordering::Relaxed);
        while self.used.load(Ordering::Relaxed) > self.block_budget() {
            let Some(mut victim) = self.evict() else { break };
            victim.give_back();
            self.park(victim);
        }
    }

    /// Takes back a [`charge`](Self::charge).
    pub fn release(&self, bytes: u64) {
        self.charged.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The bytes that blocks may take now.
    fn block_budget(&self) -> u64 {
        let charged = self.charged.load(Ordering::Relaxed);
        self.capacity_bytes.saturating_sub(charged).max(self.capacity_bytes / 4)
    }

    /// Whether another frame lies in memory that the system has given already. If not, who prepares it is woken: a reader would wait for the
    /// system, now and then for milliseconds, and is better off with memory that it has used before.
    fn is_ready(&self) -> bool {
        let Some(wake) = self.wake.get() else { return true };
        // The first piece shows that there is somebody who reads.
        let ready = self.pool.ready_frames().max(to_usize(HUGE_PAGE_BYTES) / self.pool.frame_bytes()).max(1);
        if self.frames_high.load(Ordering::Relaxed) < ready || !self.free.lock().frames.is_empty() {
            return true;
        }
        wake();
        false
    }

    fn count(&self, counter: impl Fn(&Stripe) -> &AtomicU64) {
        counter(&self.counters[stripe()]).fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a block that was just missed should be put into the cache.
    fn admits(&self, owner: Owner, bytes: usize) -> bool {
        if self.pool.frames() == 0 || to_u64(bytes) > self.capacity_bytes / 4 {
            return false;
        }
        let taken = if bytes <= self.pool.frame_bytes() { self.pool.frame_bytes() } else { bytes };
        if self.used.load(Ordering::Relaxed) + to_u64(taken) <= self.block_budget() {
            return bytes > self.pool.frame_bytes() || self.is_ready();
        }
        // Any mixing will do; the multiplier is the golden ratio's.
        let mixed = (u64::from(owner.table) << 32 | u64::from(owner.block)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = &self.doorkeeper[to_usize(mixed >> 40) & (self.doorkeeper.len() - 1)];
        let tag = to_u32(to_usize(mixed & 0xffff_ffff)) | 1;
        if place.load(Ordering::Relaxed) == tag {
            place.store(0, Ordering::Relaxed);
            return true;
        }
        place.store(tag, Ordering::Relaxed);
        false
    }

    /// An empty frame that the caller alone may use, evicting blocks for it if need be; none if all are pinned.
    fn take_frame(&self) -> Option<Claim<'_>> {
        let bytes = to_u64(self.pool.frame_bytes());
        loop {
            if self.used.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.block_budget() {
                if let Some(frame) = self.free.lock().frames.pop() {
                    return Some(self.pool.take_free(frame));
                }
                let fresh = self.frames_high.fetch_add(1, Ordering::Relaxed);
                if fresh < self.pool.frames() {
                    if fresh.is_multiple_of((to_usize(HUGE_PAGE_BYTES) / self.pool.frame_bytes()).max(1))
                        && let Some(wake) = self.wake.get()
                    {
                        wake();
                    }
                    return Some(self.pool.take_free(to_u32(fresh)));
                }
                self.frames_high.fetch_sub(1, Ordering::Relaxed);
            }
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            let mut victim = self.evict()?;
            if !victim.is_box() && self.used.load(Ordering::Relaxed) + bytes <= self.block_budget() {
                self.used.fetch_add(bytes, Ordering::Relaxed);
                return Some(victim);
            }
            victim.give_back();
            self.park(victim);
        }
    }

    /// An empty box for a block of `bytes`, which are counted; none if there is no room.
    fn take_box(&self, bytes: u64) -> Option<Claim<'_>> {
        while self.used.fetch_add(bytes, Ordering::Relaxed) + bytes > self.block_budget() {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            let mut victim = self.evict()?;
            victim.give_back();
            self.park(victim);
        }
        if let Some(free) = self.free.lock().boxes.pop() {
            return Some(self.pool.take_free(free));
        }
        let fresh = self.boxes_high.fetch_add(1, Ordering::Relaxed);
        if fresh < self.pool.boxes() {
            return Some(self.pool.take_free(to_u32(self.pool.frames() + fresh)));
        }
        self.boxes_high.fetch_sub(1, Ordering::Relaxed);
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        None
    }

    fn park(&self, claim: Claim<'_>) {
        let is_box = claim.is_box();
        let number = claim.park();
        let mut free = self.free.lock();
        if is_box { free.boxes.push(number) } else { free.frames.push(number) }
    }

    /// Turns the hand until it finds a block that is neither pinned nor recently used; its bytes are no longer counted. None
    /// if two rounds find nothing.
    fn evict(&self) -> Option<Claim<'_>> {
        let frames = self.frames_high.load(Ordering::Relaxed).min(self.pool.frames());
        let total = frames + self.boxes_high.load(Ordering::Relaxed).min(self.pool.boxes());
        if total == 0 {
            return None;
        }
        for _ in 0..2 * total + 1 {
            let turn = self.hand.fetch_add(1, Ordering::Relaxed) % total;
            let i = if turn < frames { turn } else { self.pool.frames() + turn - frames };
            let (word, bit) = (&self.referenced[i / 64], 1u64 << (i % 64));
            if word.load(Ordering::Relaxed) & bit != 0 {
                word.fetch_and(!bit, Ordering::Relaxed);
                continue;
            }
            if let Some(claim) = self.pool.claim(to_u32(i)) {
                self.uncount(&claim);
                self.count(|c| &c.evictions);
                return Some(claim);
            }
        }
        None
    }

    fn uncount(&self, claim: &Claim<'_>) {
        self.used.fetch_sub(to_u64(claim.room()), Ordering::Relaxed);
    }

    #[inline]
    fn touch(&self, frame: u32) {
        let (word, bit) = (&self.referenced[frame as usize / 64], 1u64 << (frame % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }
}

impl std::fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stats().fmt(f)
    }
}

/// Room in the cache for a block that is about to be read. Dropping it gives the room back.
pub(crate) struct Room<'a> {
    slots: &'a Slots,
    block: u32,
    claim: Option<Claim<'a>>,
}

impl Slots {
    /// The share of a new table with `blocks` blocks, which lies on the shelf if there is one.
    pub(crate) fn new(cache: Arc<BlockCache>, blocks: usize, shelf: Option<&Shelf>) -> Slots {
        // After four billion tables numbers begin again; by then no frame of the first ones is left.
        let table = cache.next_table.fetch_add(1, Ordering::Relaxed) % (u32::MAX - 1);
        let slots = Kept::new((0..blocks).map(|_| AtomicU32::new(0)).collect(), shelf);
        Slots { cache, table, slots }
    }

    /// The cache.
    pub(crate) fn cache(&self) -> &Arc<BlockCache> {
        &self.cache
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        to_u64(self.slots.len() * size_of::<AtomicU32>())
    }

    #[inline]
    fn owner(&self, block: usize) -> Owner {
        Owner { table: self.table, block: to_u32(block) }
    }

    #[inline]
    fn find<P: std::ops::Deref<Target = FramePool>>(&self, pool: P, block: usize) -> Option<Pinned<P>> {
        let slot = self.slots.get(block)?.load(Ordering::Acquire);
        let pinned = FramePool::pin(pool, slot.checked_sub(1)?, self.owner(block))?;
        self.cache.touch(pinned.frame());
        Some(pinned)
    }

    /// The block, pinned, if it is in the cache; counts a hit or a miss. `len` is the block's length if it is not compressed:
    /// its end is fetched while the pin is taken.
    #[inline]
    pub(crate) fn get(&self, block: usize, len: usize) -> Option<Pinned<&FramePool>> {
        self.prefetch(block, len);
        let found = self.find(&*self.cache.pool, block);
        self.cache.count(|c| if found.is_some() { &c.hits } else { &c.misses });
        found
    }

    /// The same, for keeping.
    pub(crate) fn get_owned(&self, block: usize) -> Option<Pinned<Arc<FramePool>>> {
        let found = self.find(Arc::clone(&self.cache.pool), block);
        self.cache.count(|c| if found.is_some() { &c.hits } else { &c.misses });
        found
    }

    /// Whether the block is in the cache, mostly: it may come or go meanwhile.
    pub(crate) fn holds(&self, block: usize) -> bool {
        let frame = self.slots.get(block).and_then(|slot| slot.load(Ordering::Relaxed).checked_sub(1));
        frame.is_some_and(|frame| self.cache.pool.belongs_to(frame, self.owner(block)))
    }

    /// Starts fetching what [`prefetch`](Self::prefetch) reads.
    #[inline]
    pub(crate) fn prefetch_place(&self, block: usize) {
        if let Some(slot) = self.slots.get(block) {
            prefetch_address(slot);
        }
    }

    /// Starts fetching the end of the block, where a lookup begins, if it is in the cache. `len` is the block's length.
    #[inline]
    pub(crate) fn prefetch(&self, block: usize, len: usize) {
        if let Some(slot) = self.slots.get(block) {
            let slot = slot.load(Ordering::Relaxed);
            if slot != 0 {
                self.cache.pool.prefetch_tail(slot - 1, len);
            }
        }
    }

    /// Starts fetching the beginning of the block, if it is in the cache.
    #[inline]
    pub(crate) fn prefetch_start(&self, block: usize) {
        let slot = self.slots.get(block).map_or(0, |slot| slot.load(Ordering::Relaxed));
        if slot != 0 {
            self.cache.pool.prefetch_head(slot - 1);
        }
    }

    /// Room for a block that was missed, of `bytes` as it will lie in memory, with `spare` bytes after it while it is read; none
    /// if it should not be cached.
    pub(crate) fn room(&self, block: usize, bytes: usize, spare: usize) -> Option<Room<'_>> {
        if !self.cache.admits(self.owner(block), bytes) {
            return None;
        }
        let claim = if bytes + spare <= self.cache.pool.frame_bytes() {
            self.cache.take_frame()?
        } else {
            let mut claim = self.cache.take_box(to_u64(bytes + spare))?;
            claim.replace(vec![0; bytes + spare].into_boxed_slice());
            claim
        };
        self.cache.count(|c| &c.admitted);
        Some(Room { slots: self, block: to_u32(block), claim: Some(claim) })
    }

    /// Frees the frames that hold blocks of this table and that nobody has pinned.
    fn free_all(&self) {
        let cache = &*self.cache;
        for (block, slot) in self.slots.iter().enumerate() {
            let Some(frame) = slot.swap(0, Ordering::Relaxed).checked_sub(1) else {
                continue;
            };
            if !cache.pool.belongs_to(frame, self.owner(block)) {
                continue;
            }
            let Some(mut claim) = cache.pool.claim(frame) else {
                continue;
            };
            // It may have changed hands between the look and the claim.
            if !cache.pool.belongs_to(frame, self.owner(block)) {
                claim.unclaim();
                continue;
            }
            cache.uncount(&claim);
            if claim.is_box() {
                claim.give_back();
            }
            cache.park(claim);
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.free_all();
    }
}

impl<'a> Room<'a> {
    /// The room, to be written.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.claim.as_mut().map(Claim::bytes_mut).unwrap_or_default()
    }

    /// Makes the first `len` bytes of the room the block. Returns it pinned.
    pub(crate) fn fill<P: std::ops::Deref<Target = FramePool>>(
        mut self,
        len: usize,
        pool: impl FnOnce(&'a Arc<FramePool>) -> P,
    ) -> Pinned<P> {
        let claim = self.claim.take().expect("room is filled once");
        let slots = self.slots;
        let pinned = claim.publish(pool(&slots.cache.pool), slots.owner(self.block as usize), len);
        slots.slots[self.block as usize].store(slot_of(pinned.frame()), Ordering::Release);
        pinned
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        if let Some(mut claim) = self.claim.take() {
            let cache = &*self.slots.cache;
            cache.uncount(&claim);
            if claim.is_box() {
                claim.give_back();
            }
            cache.park(claim);
        }
    }
}
