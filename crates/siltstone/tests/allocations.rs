//! What the hot paths allocate: a get of a cached block allocates the value that it returns and nothing else; a range few small things, and
//! iteration and merges nothing per record. A binary of its own, because it counts all allocations.

#![allow(unsafe_code, reason = "a counting allocator forwards to the system's")]
#![allow(clippy::unwrap_used, reason = "in a test, a panic with its place is the best message")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use siltstone::{Cancel, Db, Options};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static OWN: Cell<u64> = const { Cell::new(0) };
    static OWN_LARGE: Cell<u64> = const { Cell::new(0) };
}

/// Allocators keep smaller pieces of memory ready for a thread.
const LARGE: usize = 1024;

fn count(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    OWN.set(OWN.get() + 1);
    OWN_LARGE.set(OWN_LARGE.get() + u64::from(bytes >= LARGE));
}

// SAFETY: every call is forwarded to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread while `work` runs. Background threads may wake at any time to look for work.
fn own_allocations(work: impl FnOnce()) -> u64 {
    let before = OWN.get();
    work();
    OWN.get() - before
}

/// Allocations of the whole process, its background threads included, while `work` runs.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    work();
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

#[test]
fn hot_paths_allocate_nothing_per_record() {
    const RECORDS: u64 = 40_000;
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path(), Options::default()).unwrap();
    let keyspace = db.default_keyspace();
    let key = |n: u64| format!("key-{n:012}");
    for round in 0..2 {
        (0..RECORDS).for_each(|n| keyspace.put(key(n * 7 % RECORDS), format!("{round:0>100}")).unwrap());
        db.flush().unwrap();
    }
    db.wait_idle().unwrap();
    let keys: Vec<String> = (0..2000).map(|n| key(n * 13)).collect();
    let absent: Vec<String> = keys.iter().map(|key| format!("{key}-")).collect();
    let gets = |keys: &[String]| keys.iter().filter(|key| keyspace.get(key).unwrap().is_some()).count();

    assert_eq!(gets(&keys), 2000);
    assert_eq!(own_allocations(|| assert_eq!(gets(&keys), 2000)), 2000, "one for each value");
    gets(&absent);
    assert_eq!(own_allocations(|| assert_eq!(gets(&absent), 0)), 0, "an absent key costs none");

    let range = |key: &str| keyspace.range(key..).unwrap().take(10).filter(|found| found.is_ok()).count();
    range(&keys[0]);
    let large = OWN_LARGE.get();
    let ranges = own_allocations(|| keys.iter().for_each(|key| assert_eq!(range(key), 10)));
    let large = OWN_LARGE.get() - large;
    assert!(large < 20, "{large} large ones: what is large is kept from one range to the next");
    assert!(ranges < 40 * 2000, "{ranges} allocations for 2000 ranges of ten records, 20 of them for what each yields");

    let scan = allocations(|| {
        let mut range = keyspace.range::<&str>(..).unwrap();
        let mut count = 0;
        while range.advance().unwrap() {
            count += range.value().len() as u64;
        }
        assert_eq!(count, 100 * RECORDS);
    });
    assert!(scan < RECORDS / 20, "{scan} allocations to read {RECORDS} records");

    let puts = allocations(|| keys.iter().for_each(|key| keyspace.put(key, "value").unwrap()));
    assert!(puts < 50, "{puts} allocations for 2000 puts");

    let merge = allocations(|| keyspace.compact::<&str>(.., &Cancel::new()).unwrap());
    assert!(db.stats().compaction_entries_read > 2 * RECORDS);
    assert!(merge < RECORDS / 20, "{merge} allocations to merge {RECORDS} records twice over");
}
