//! The protocol under loom, which tries every interleaving and every value that the memory model allows a load to return.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p siltstone --lib --release loom_tests`

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::*;

impl Version for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    fn store(&self, version: u64, order: Ordering) {
        AtomicU64::store(self, version, order);
    }
}

/// A node in small: its entries name records, 0 for none.
#[derive(Default)]
struct Small {
    version: AtomicU64,
    entries: [AtomicU64; 2],
}

impl Small {
    fn read(&self) -> (u64, u64) {
        (self.entries[0].load(Ordering::Relaxed), self.entries[1].load(Ordering::Relaxed))
    }

    fn write(&self, first: u64, second: u64) {
        self.entries[0].store(first, Ordering::Relaxed);
        self.entries[1].store(second, Ordering::Relaxed);
    }
}

/// Tries every schedule with at most three preemptions.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// A reader that validates sees the node before the insert or after it, and a record that is written: loom reports it if the
/// plain read of the record races with its write.
#[test]
fn what_is_validated_is_whole_and_published() {
    check(|| {
        let node = Arc::new(Small::default());
        let records = Arc::new([UnsafeCell::new(0u64), UnsafeCell::new(10), UnsafeCell::new(0)]);
        node.write(1, 0);
        let writer = {
            let (node, records) = (Arc::clone(&node), Arc::clone(&records));
            thread::spawn(move || {
                // SAFETY: nobody has the record's number yet.
                records[2].with_mut(|record| unsafe { *record = 20 });
                write_begin(&node.version);
                // As `Node::insert` does: move up, then put in.
                node.entries[1].store(1, Ordering::Relaxed);
                node.entries[0].store(2, Ordering::Relaxed);
                write_end(&node.version);
            })
        };
        let version = read_begin(&node.version);
        let (first, second) = node.read();
        if validate(&node.version, version) {
            assert!([(1, 0), (2, 1)].contains(&(first, second)), "torn: {first} {second}");
            // SAFETY: validated: this is what the test is about.
            let record = records[usize::try_from(first).unwrap()].with(|record| unsafe { *record });
            assert_eq!(record, 10 * first);
        }
        writer.join().unwrap();
    });
}

/// A parent whose child splits while a reader is on its way from the one to the other: the reader finds the key or starts again.
fn split(check_parent_again: bool) {
    check(move || {
        // The parent's entries: left child always, right child (1) or none (0). Keys are 1 and 2.
        let nodes = Arc::new((Small::default(), Small::default(), Small::default()));
        nodes.1.write(1, 2);
        let writer = {
            let nodes = Arc::clone(&nodes);
            thread::spawn(move || {
                let (parent, left, right) = &*nodes;
                right.write(2, 0);
                write_begin(&parent.version);
                write_begin(&left.version);
                left.write(1, 0);
                parent.write(0, 1);
                write_end(&left.version);
                write_end(&parent.version);
            })
        };
        let (parent, left, right) = &*nodes;
        let version = read_begin(&parent.version);
        let child = if parent.read().1 == 1 { right } else { left };
        if validate(&parent.version, version) {
            let child_version = read_begin(&child.version);
            if !check_parent_again || validate(&parent.version, version) {
                let (first, second) = child.read();
                if validate(&child.version, child_version) {
                    assert!(first == 2 || second == 2, "a published key was lost");
                }
            }
        }
        writer.join().unwrap();
    });
}

#[test]
fn a_split_loses_no_key() {
    split(true);
}

/// The model must find the bug that the second look at the parent prevents.
#[test]
#[should_panic(expected = "a published key was lost")]
fn without_the_second_look_a_key_is_lost() {
    split(false);
}
