//! The protocol between the one writer and the readers of a node: a sequence lock on a version word.
//!
//! The writer makes the version odd, changes the node, and makes it even again. A reader notes an even version, reads what it
//! wants, and uses it only if the version is still the same. All words that both touch are relaxed atomics, so a torn read is
//! a wrong number that is thrown away, never a data race; the two fences order those words against the version (Boehm, "Can
//! seqlocks get along with programming language memory models?", MSPC 2012).
//!
//! The protocol is generic over the word so that loom can run it: see `loom_tests`.

#[cfg(loom)]
pub(super) use loom::sync::atomic::fence;
#[cfg(not(loom))]
pub(super) use std::sync::atomic::fence;
use std::sync::atomic::{AtomicU64, Ordering};

/// A version word.
pub(super) trait Version {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, version: u64, order: Ordering);
}

impl Version for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    #[inline(always)]
    fn store(&self, version: u64, order: Ordering) {
        AtomicU64::store(self, version, order);
    }
}

/// Waits until the writer is not changing the node, and returns the version to check against.
#[inline]
pub(super) fn read_begin(word: &impl Version) -> u64 {
    let mut tries = 0u32;
    loop {
        let version = word.load(Ordering::Acquire);
        if version & 1 == 0 {
            return version;
        }
        wait(&mut tries);
    }
}

/// Whether everything read since [`read_begin`] returned `version` belongs together. Only then may an offset be followed.
#[inline(always)]
pub(super) fn validate(word: &impl Version, version: u64) -> bool {
    fence(Ordering::Acquire);
    word.load(Ordering::Relaxed) == version
}

/// Before the writer's first change.
#[inline(always)]
pub(super) fn write_begin(word: &impl Version) {
    let version = word.load(Ordering::Relaxed);
    debug_assert!(version & 1 == 0, "one writer");
    word.store(version + 1, Ordering::Relaxed);
    fence(Ordering::Release);
}

/// After the writer's last change: publishes it, and all that the writer did before.
#[inline(always)]
pub(super) fn write_end(word: &impl Version) {
    let version = word.load(Ordering::Relaxed);
    debug_assert!(version & 1 == 1, "begun before");
    word.store(version + 1, Ordering::Release);
}

/// A change takes nanoseconds, unless the writer was descheduled in the middle: then its processor time is what it needs.
#[cold]
fn wait(tries: &mut u32) {
    *tries += 1;
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    if *tries < 64 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

#[cfg(all(test, loom))]
#[expect(unsafe_code, reason = "the records of the model are plain memory, as in the arena")]
mod loom_tests;
