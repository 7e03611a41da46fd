//! The protocol of a frame's word, which says who may touch the frame's bytes: its pins, and a bit that says that one thread has
//! *claimed* it. A claim is made out of 0 only, so never while anybody reads; a pin is added whatever there is, and taken back if
//! the frame was claimed. So readers never wait, and never see bytes change.
//!
//! `loom_tests` tries it in every order.

#[cfg(loom)]
use loom::sync::atomic::AtomicU32;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

/// The claim; the pins are below it.
const CLAIMED: u32 = 1 << 31;

/// Pins and claim of a frame.
pub(super) struct PinWord(AtomicU32);

impl PinWord {
    /// Claimed from the start, by whoever takes the frame.
    pub(super) fn claimed() -> PinWord {
        PinWord(AtomicU32::new(CLAIMED))
    }

    /// Adds a pin, unless the frame is claimed.
    #[inline(always)]
    #[must_use]
    pub(super) fn pin(&self) -> bool {
        // Acquire: what the last claim wrote, and whose block it is, is seen from here on.
        let before = self.0.fetch_add(1, Ordering::Acquire);
        debug_assert!(before & !CLAIMED < CLAIMED / 2, "a billion pins");
        if before & CLAIMED == 0 {
            return true;
        }
        self.unpin();
        false
    }

    /// Takes a pin back.
    #[inline(always)]
    pub(super) fn unpin(&self) {
        // Release: whoever claims the frame next comes after what was read.
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Claims the frame, unless somebody has it pinned or claimed.
    #[must_use]
    pub(super) fn claim(&self) -> bool {
        self.0.compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Ends the claim.
    pub(super) fn unclaim(&self) {
        self.0.fetch_sub(CLAIMED, Ordering::Release);
    }

    /// The claim becomes a pin. Pins of readers who came too late for the former block may be there; they go away by themselves.
    pub(super) fn claim_to_pin(&self) {
        self.0.fetch_sub(CLAIMED - 1, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
#[expect(unsafe_code, reason = "the frame of the model is plain memory, as in the pool")]
mod loom_tests;
