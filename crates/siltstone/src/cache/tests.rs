//! Tests of the cache's budget and of open tables.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cache::block::{DEFAULT_FRAME_BYTES, Slots};
use crate::cache::file::{TableCache, sst_path};
use crate::cache::frames::{FramePool, Owner};
use crate::cache::{BlockCache, Obsolete, PurgeQueue, TableHandle};
use crate::error::ErrorKind;
use crate::io::sim::{Errno, Fault, SimClock, SimFs};
use crate::io::{CreateOptions, Fs, IoMeter, Rng};
use crate::iter::Cursor;
use crate::key::{Kind, SeqNo, Trailer, hash};
use crate::num::to_u64;
use crate::options::{Compression, DirectOptions};
use crate::sst::tests::{CTX, Fixed, MemFile};
use crate::sst::{Table, TableOptions, TableWriter};
use crate::version::text::parse_file;
use crate::version::{FileMeta, RunOrder, SstId};

const DIR: &str = "/store";
const KEYS: u32 = 200;

fn meter() -> Arc<IoMeter> {
    IoMeter::new(SimClock::new())
}

/// Writes table `id` with [`KEYS`] keys into `fs`.
fn write_table(fs: &SimFs, id: u64) -> FileMeta {
    let path = sst_path(Path::new(DIR), SstId(id));
    let file = fs.create(&path, CreateOptions::default(), CTX).unwrap();
    let options = TableOptions { block_bytes: 512, filter_bits_per_key: 10.0, compression: Compression::None };
    let mut writer = TableWriter::new(path, file, options, CTX);
    for i in 0..KEYS {
        writer.add(&i.to_be_bytes(), Trailer::new(SeqNo(id + 1), Kind::Put), format!("{id}:{i}").as_bytes()).unwrap();
    }
    let summary = writer.finish().unwrap();
    FileMeta {
        id: SstId(id),
        bytes: summary.bytes,
        entries: summary.entries,
        tombstones: summary.tombstones,
        range_tombstones: 0,
        raw_bytes: summary.raw_bytes,
        smallest: summary.smallest,
        largest: summary.largest,
        min_seq: summary.min_seq,
        max_seq: summary.max_seq,
        created_ms: 0,
        oldest_tombstone_ms: None,
        entered_level_ms: 0,
        whole: None,
    }
}

fn store(tables: u64, max_open: usize) -> (SimFs, TableCache, Vec<Arc<TableHandle>>) {
    store_at(SimClock::new(), tables, max_open, 1 << 20)
}

fn store_at(
    clock: Arc<SimClock>,
    tables: u64,
    max_open: usize,
    cache_bytes: u64,
) -> (SimFs, TableCache, Vec<Arc<TableHandle>>) {
    let fs = SimFs::new(&clock, 1);
    fs.create_dir_all(Path::new(DIR), CTX).unwrap();
    let metas: Vec<FileMeta> = (0..tables).map(|id| write_table(&fs, id)).collect();
    let blocks = Arc::new(BlockCache::new(cache_bytes));
    let cache = TableCache::new(Arc::new(fs.clone()), clock, DIR, max_open, blocks, DirectOptions::default());
    let handles = metas.into_iter().map(|meta| cache.handle(Arc::new(meta))).collect();
    (fs, cache, handles)
}

fn get(handle: &TableHandle, i: u32) -> String {
    let key = i.to_be_bytes();
    let (_, value) = handle.table().unwrap().get(&key, hash(&key), SeqNo::MAX).unwrap().unwrap();
    String::from_utf8(value.to_vec()).unwrap()
}

#[test]
fn files_stay_bounded_and_readers_keep_theirs() {
    let (fs, cache, handles) = store(20, 3);
    let mut rng = Rng::new(1);
    let mut kept = None;
    for round in 0..3000 {
        let id = usize::try_from(rng.below(20)).unwrap();
        let i = u32::try_from(rng.below(u64::from(KEYS))).unwrap();
        assert_eq!(get(&handles[id], i), format!("{id}:{i}"));
        assert!(cache.open_tables() <= 3);
        // Those that are open, and the one that a cursor holds.
        assert!(fs.open_handles() <= 4, "{} handles", fs.open_handles());
        if round % 100 == 0 {
            let mut cursor = handles[id].table().unwrap().cursor();
            cursor.seek(&i.to_be_bytes(), Trailer::seek(SeqNo::MAX)).unwrap();
            kept = Some((cursor, id, i));
        }
        if let Some((cursor, id, i)) = &kept {
            assert_eq!(cursor.entry().unwrap().value, format!("{id}:{i}").as_bytes());
        }
    }
    let again = cache.handle(Arc::new(parse_file("7:a-b:10", RunOrder(1)).unwrap()));
    assert!(Arc::ptr_eq(&again, &handles[7]), "one handle a number");
    drop((kept, again, handles));
    assert_eq!((fs.open_handles(), cache.open_tables()), (0, 0));
    let stats = cache.blocks().stats();
    assert_eq!((stats.used_bytes, stats.charged_bytes), (0, 0));
}

#[test]
fn a_cache_too_small_for_the_tables_closes_idle_ones_only() {
    let clock = SimClock::new();
    let (fs, cache, handles) = store_at(Arc::clone(&clock), 60, 1000, 16 << 10);
    let opened = |handle: &TableHandle| Arc::as_ptr(&*handle.table().unwrap());
    let (all_at_once, in_turn) = handles.split_at(40);
    // Read at the same time: opened once each, though they take more than the whole cache.
    let first: Vec<_> = all_at_once.iter().map(|handle| opened(handle)).collect();
    let charged = cache.blocks().stats().charged_bytes;
    assert!(charged > 16 << 10, "{charged} bytes");
    assert!(all_at_once.iter().zip(&first).all(|(handle, first)| opened(handle) == *first), "one in use was closed");
    assert_eq!((cache.open_tables(), fs.open_handles()), (40, 40));
    // Then one is read all the time, and others in turn: what is idle goes as they are opened.
    for (i, other) in in_turn.iter().enumerate() {
        clock.advance(300_000_000);
        assert_eq!(opened(&handles[0]), first[0], "the one that is read all the time was closed");
        assert_eq!(get(other, 5), format!("{}:5", 40 + i));
    }
    let charged = cache.blocks().stats().charged_bytes;
    assert!(charged <= 12 << 10, "{charged} bytes");
    assert_eq!(fs.open_handles(), to_u64(cache.open_tables()));
}

#[test]
fn a_scan_opens_a_file_of_its_own_and_closes_it() {
    let (fs, cache, handles) = store(2, 3);
    for opened in [false, true] {
        if opened {
            get(&handles[0], 0);
        }
        let mut scan = handles[0].scan(1000, CTX, &meter()).unwrap();
        assert_eq!((cache.open_tables(), fs.open_handles()), (usize::from(opened), 1 + u64::from(opened)));
        scan.seek_first().unwrap();
        let mut entries = 0;
        while scan.entry().is_some() {
            entries += 1;
            scan.next().unwrap();
        }
        assert_eq!(entries, KEYS);
    }
}

#[test]
fn an_obsolete_file_is_offered_for_deletion_when_its_last_user_is_gone() {
    let (_, cache, mut handles) = store(3, 8);
    let woken = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&woken);
    cache.purge_queue().set_wake(move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    get(&handles[1], 5);
    let reader = Arc::clone(&handles[1]);
    handles[1].mark_obsolete();
    handles.clear();
    assert!(cache.purge_queue().is_empty());
    let bytes = reader.bytes();
    assert_eq!(cache.purge_queue().obsolete_bytes(), bytes, "it counts while it is read");
    assert_eq!(cache.purge_queue().held_bytes(), bytes);
    assert_eq!(get(&reader, 6), "1:6");
    drop(reader);
    assert_eq!(cache.purge_queue().take(2), [Obsolete { id: SstId(1), bytes, must_go: false }]);
    assert_eq!((cache.purge_queue().obsolete_bytes(), cache.purge_queue().held_bytes()), (bytes, 0));
    cache.purge_queue().deleted(bytes);
    assert_eq!(cache.purge_queue().obsolete_bytes(), 0);
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    assert_eq!(cache.purge_queue().len(), 0);
}

#[test]
fn spares_are_as_many_as_there_is_room_for_and_rest_leaves_none() {
    let queue = PurgeQueue::default();
    (1..=5).for_each(|id| queue.push(SstId(id), 10));
    let kept = queue.take(4).into_iter().map(|file| queue.keep(file.id, file.bytes, 35, 7));
    assert_eq!(kept.collect::<Vec<_>>(), [true, true, true, false]);
    assert_eq!(queue.take_spare(8), Some(SstId(3)), "the last first");
    assert_eq!((queue.spare_bytes(), queue.spares_touched_ns()), (20, Some(8)));
    assert!(queue.release_spares());
    assert_eq!((queue.take_spare(9), queue.spare_bytes()), (None, 0));
    let rest = [5, 1, 2].map(|id| Obsolete { id: SstId(id), bytes: 10, must_go: true });
    assert_eq!(queue.take(9), rest, "what waited is kept no more, either");
}

#[test]
fn a_failed_open_is_an_error_and_is_tried_again() {
    let (fs, cache, handles) = store(2, 8);
    let mut n = 1;
    // Every call of an open fails once.
    let failures = loop {
        fs.clear_faults();
        fs.set_fault(Fault::nth(n, Errno::Io));
        match handles[0].table() {
            Ok(_) => break n - 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Io),
        }
        n += 1;
    };
    assert!(failures >= 4, "open, footer, index, filter: {failures}");
    fs.clear_faults();
    assert_eq!(get(&handles[0], 3), "0:3");
    // Another file than the manifest means.
    let bytes = handles[1].bytes();
    drop(handles);
    let meta = FileMeta { bytes, ..parse_file("1:x-y:10", RunOrder(1)).unwrap() };
    let wrong = cache.handle(Arc::new(meta));
    assert_eq!(wrong.table().err().unwrap().kind(), ErrorKind::Corruption);
    assert_eq!(wrong.scan(100, CTX, &meter()).err().unwrap().kind(), ErrorKind::Corruption);
}

/// A table of `blocks` blocks with one key each, on frames of 512 bytes.
fn blocks_table(cache: &Arc<BlockCache>, blocks: u32) -> Arc<Table> {
    let file = MemFile::default();
    let options = TableOptions { block_bytes: 512, filter_bits_per_key: 0.0, compression: Compression::None };
    let mut writer = TableWriter::new("test.sst", Box::new(file.clone()), options, CTX);
    for i in 0..blocks {
        writer.add(&i.to_be_bytes(), Trailer::new(SeqNo(1), Kind::Put), &[7; 400]).unwrap();
    }
    let bytes = writer.finish().unwrap().bytes;
    let file = Fixed(std::mem::take(&mut *file.0.lock()));
    Arc::new(Table::open("test.sst", Arc::new(file), SstId(1), bytes, Arc::clone(cache), CTX).unwrap())
}

fn touch(table: &Table, i: u32) {
    let key = i.to_be_bytes();
    assert!(table.get(&key, hash(&key), SeqNo::MAX).unwrap().is_some());
}

#[test]
fn hot_blocks_survive_a_scan_and_a_new_hot_set_gets_in() {
    let cache = Arc::new(BlockCache::with_frame_bytes(1 << 20, 512));
    let table = blocks_table(&cache, 20_000);
    let hits = |range: std::ops::Range<u32>| {
        let before = cache.stats().hits;
        range.clone().for_each(|i| touch(&table, i));
        cache.stats().hits - before
    };
    hits(0..500);
    assert_eq!(hits(0..500), 500);
    // Each block once: nearly nothing of it is admitted once the cache is full.
    hits(1000..20_000);
    assert!(hits(0..500) > 450, "a scan displaced the hot blocks");
    // Blocks that are missed twice in short succession come in.
    for _ in 0..20 {
        hits(6000..6100);
    }
    assert_eq!(hits(6000..6100), 100);
}

#[test]
fn memory_stays_within_the_budget_and_charges_displace_blocks() {
    let cache = Arc::new(BlockCache::with_frame_bytes(1 << 20, 512));
    let table = blocks_table(&cache, 8000);
    let fill = || (0..8000).chain(0..8000).for_each(|i| touch(&table, i));
    fill();
    let charged = cache.stats().charged_bytes;
    assert!(charged > 0);
    let used = cache.stats().used_bytes;
    assert!(used + charged <= 1 << 20 && used + charged > (1 << 20) - 1024);
    cache.charge(300 << 10);
    assert!(cache.stats().used_bytes + charged + (300 << 10) <= 1 << 20);
    fill();
    assert!(cache.stats().used_bytes + charged + (300 << 10) <= 1 << 20);
    // A quarter stays, however much is charged.
    cache.charge(10 << 20);
    assert!(cache.stats().used_bytes <= 256 << 10 && cache.stats().used_bytes > 250 << 10);
    cache.release((10 << 20) + (300 << 10));
    fill();
    assert!(cache.stats().used_bytes + charged > (1 << 20) - 1024);
}

#[test]
fn memory_is_made_ready_ahead_of_its_use_and_within_the_budget() {
    const PIECE: usize = 2 << 20;
    let cache = Arc::new(BlockCache::new(to_u64(20 * PIECE)));
    let woken = Arc::new(AtomicU64::new(0));
    let waker = Arc::clone(&woken);
    cache.set_wake(move || {
        waker.fetch_add(1, Ordering::Relaxed);
    });
    assert!(!cache.prepare(), "a cache that nobody uses takes no memory");
    let slots = Slots::new(Arc::clone(&cache), 10 * PIECE / DEFAULT_FRAME_BYTES, None);
    let fill = |block: usize| {
        let mut room = slots.room(block, DEFAULT_FRAME_BYTES, 0).unwrap();
        room.bytes_mut().fill(7);
        drop(room.fill(DEFAULT_FRAME_BYTES, |pool| &**pool));
    };
    let prepared = || std::iter::from_fn(|| cache.prepare().then_some(())).count();
    fill(0);
    assert_eq!((woken.load(Ordering::Relaxed), prepared()), (1, 9), "16 MiB ahead of the first frame");
    let next = 9 * PIECE / DEFAULT_FRAME_BYTES;
    (1..next).for_each(fill);
    assert_eq!(woken.load(Ordering::Relaxed), 9, "once a piece");
    assert!(slots.room(next, DEFAULT_FRAME_BYTES, 0).is_none(), "no memory is ready");
    assert_eq!(woken.load(Ordering::Relaxed), 10, "and it is asked for");
    cache.charge(to_u64(4 * PIECE));
    assert_eq!(prepared(), 7, "as much as is used, but for what tables take");
    cache.release(to_u64(4 * PIECE));
    assert_eq!(prepared(), 2);
    fill(next);
    assert!(slots.get(3, DEFAULT_FRAME_BYTES).unwrap().iter().all(|byte| *byte == 7));
}

/// Of a pool too small for huge pages, and of a block longer than a frame.
#[test]
fn what_is_written_through_a_claim_is_what_a_pin_reads() {
    let pool = FramePool::new(1, 64, 1);
    for (frame, len, fill) in [(0, 64, 1), (1, 1000, 2)] {
        let mut claim = pool.take_free(frame);
        assert_eq!(claim.is_box(), frame == 1);
        if claim.is_box() {
            assert!(claim.replace(vec![0; len].into()).is_empty());
        }
        claim.bytes_mut().fill(fill);
        let owner = Owner { table: 1, block: frame };
        drop(claim.publish(&pool, owner, len));
        let pinned = FramePool::pin(&pool, frame, owner).unwrap();
        assert!(*pinned == vec![fill; len], "frame {frame}");
    }
}
