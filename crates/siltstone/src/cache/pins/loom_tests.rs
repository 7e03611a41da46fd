//! The protocol under loom, which tries every interleaving and every value that the memory model allows a load to return.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p siltstone --lib --release loom_tests`

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::*;

/// A frame in small: block `n` has the contents `10 * n`.
struct Frame {
    word: PinWord,
    owner: AtomicU64,
    contents: UnsafeCell<u64>,
}

impl Frame {
    /// Holds block 1, with nobody reading it.
    fn new() -> Frame {
        let frame = Frame { word: PinWord::claimed(), owner: AtomicU64::new(1), contents: UnsafeCell::new(10) };
        frame.word.unclaim();
        frame
    }

    /// The contents, if it is `block`'s frame; loom reports the read if it races with a write.
    fn read(&self, block: u64) -> Option<u64> {
        if !self.word.pin() {
            return None;
        }
        let contents = (self.owner.load(Ordering::Relaxed) == block).then(|| {
            // SAFETY: pinned, and the block's: this is what the test is about.
            self.contents.with(|contents| unsafe { *contents })
        });
        self.word.unpin();
        contents
    }

    /// Makes it `block`'s frame, unless it is in use.
    fn replace(&self, block: u64) -> bool {
        if !self.word.claim() {
            return false;
        }
        // SAFETY: claimed: this is what the test is about.
        self.contents.with_mut(|contents| unsafe { *contents = 10 * block });
        self.owner.store(block, Ordering::Relaxed);
        self.word.claim_to_pin();
        // SAFETY: pinned.
        assert_eq!(self.contents.with(|contents| unsafe { *contents }), 10 * block, "changed under a pin");
        self.word.unpin();
        true
    }
}

/// Readers of the former block and of the next one, while the frame changes hands.
#[test]
fn a_pinned_block_does_not_change() {
    loom::model(|| {
        let frame = Arc::new(Frame::new());
        let spawn = |act: fn(&Frame)| {
            let frame = Arc::clone(&frame);
            thread::spawn(move || act(&frame))
        };
        let reader = spawn(|frame| {
            assert!([None, Some(10)].contains(&frame.read(1)));
            assert!([None, Some(20)].contains(&frame.read(2)));
        });
        let evicting = spawn(|frame| {
            frame.replace(2);
        });
        assert!([None, Some(20)].contains(&frame.read(2)));
        reader.join().unwrap();
        evicting.join().unwrap();
        assert!(frame.word.claim(), "a pin was left");
    });
}

/// Of two who want the frame at once at most one has it, and all pins go away.
#[test]
fn a_claim_is_the_only_one() {
    loom::model(|| {
        let frame = Arc::new(Frame::new());
        let other = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || frame.replace(2))
        };
        let mine = frame.replace(3);
        let others = other.join().unwrap();
        assert!(mine || others, "neither has got it");
        let owner = frame.owner.load(Ordering::Relaxed);
        assert_eq!(frame.read(owner), Some(10 * owner));
        assert!(frame.word.claim(), "a pin was left");
    });
}

/// The model must find what happens to a reader who does not look whether the frame is claimed.
#[test]
#[should_panic(expected = "Causality violation")]
fn who_does_not_look_for_the_claim_reads_what_is_being_written() {
    loom::model(|| {
        let frame = Arc::new(Frame::new());
        let evicting = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || frame.replace(2))
        };
        let _ = frame.word.pin();
        if frame.owner.load(Ordering::Relaxed) == 1 {
            // SAFETY: not so: this is what the test is about.
            frame.contents.with(|contents| unsafe { *contents });
        }
        evicting.join().unwrap();
    });
}
