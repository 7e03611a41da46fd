//! What is read of a table's file, and how far ahead.

use std::cmp::Reverse;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{CTX, Fixed, Model, here, write};
use crate::cache::BlockCache;
use crate::error::{ErrorKind, Result};
use crate::io::{IoCtx, ReadableFile};
use crate::iter::Cursor;
use crate::key::{Kind, SeqNo, Trailer};
use crate::options::Compression;
use crate::sst::{Table, TableCursor, TableOptions};
use crate::version::SstId;

/// A file that notes what is read of it, and cannot be read at one place.
struct Watched {
    bytes: Vec<u8>,
    bad: Option<u64>,
    reads: Arc<Mutex<Vec<(u64, usize)>>>,
    told: Arc<Mutex<Vec<Range<u64>>>>,
}

impl ReadableFile for Watched {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64, ctx: IoCtx) -> io::Result<()> {
        if self.bad.is_some_and(|bad| (offset..offset + buf.len() as u64).contains(&bad)) {
            return Err(io::Error::other("bad sector"));
        }
        self.reads.lock().push((offset, buf.len()));
        Fixed(self.bytes.clone()).read_exact_at(buf, offset, ctx)
    }

    fn will_read(&self, range: Range<u64>) {
        self.told.lock().push(range);
    }

    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// The numbers below `count` as keys, each with 40 bytes.
fn ascending(count: u32) -> Model {
    let row = |n: u32| ((n.to_be_bytes().to_vec(), Reverse(Trailer::new(SeqNo(1), Kind::Put).0)), vec![7; 40]);
    (0..count).map(row).collect()
}

#[test]
fn a_merge_tells_what_it_will_read_a_little_ahead() {
    let model = ascending(20_000);
    let options = TableOptions { block_bytes: 256, filter_bits_per_key: 10.0, compression: Compression::None };
    let (bytes, _) = write(&model, options);
    let (reads, told): (Arc<Mutex<Vec<_>>>, Arc<Mutex<Vec<_>>>) = Default::default();
    let (len, cache) = (bytes.len() as u64, Arc::new(BlockCache::new(0)));
    let file = Watched { bytes, bad: None, reads: Arc::clone(&reads), told: Arc::clone(&told) };
    let table = Arc::new(Table::open("test.sst", Arc::new(file), SstId(1), len, cache, CTX).unwrap());
    assert!(told.lock().is_empty());
    const WINDOW: u64 = 10_000;
    let data_end = table.parts.footer.data_end;
    let mut scan = table.scan(usize::try_from(WINDOW).unwrap(), CTX);
    scan.seek_first().unwrap();
    let mut ends = Vec::new();
    while here(&scan).is_some() {
        let (at, len) = *reads.lock().last().unwrap();
        ends.push((at + len as u64, told.lock().last().map_or(0, |range| range.end)));
        scan.next().unwrap();
    }
    for (read, told) in &ends {
        assert!((WINDOW..=2 * WINDOW).contains(&(told - read)) || *told == data_end, "read to {read}, told to {told}");
    }
    let told = told.lock();
    assert!(told.windows(2).all(|pair| pair[0].end == pair[1].start), "no gap, nothing twice: {told:?}");
    assert_eq!(told.last().unwrap().end, data_end);
    assert!(ends.len() == 20_000 && told.len() as u64 <= 2 + data_end / WINDOW, "{} calls", told.len());
}

#[test]
fn scans_read_ahead_and_short_ones_do_not() {
    let model = ascending(4000);
    for compression in [Compression::None, Compression::Lz4] {
        let options = TableOptions { block_bytes: 256, filter_bits_per_key: 10.0, compression };
        let (bytes, _) = write(&model, options);
        let open = |cache_bytes, bad| {
            let reads = Arc::new(Mutex::new(Vec::new()));
            let file = Watched { bytes: bytes.clone(), bad, reads: Arc::clone(&reads), told: Arc::default() };
            let cache = Arc::new(BlockCache::with_frame_bytes(cache_bytes, 256));
            let len = bytes.len() as u64;
            let table = Arc::new(Table::open("test.sst", Arc::new(file), SstId(1), len, cache, CTX).unwrap());
            reads.lock().clear();
            (table, reads)
        };
        let blocks = open(0, None).0.parts.fences.blocks();
        assert!(blocks > 300);
        let scan = |table: &Arc<Table>, from: u32, count: u32| -> Result<u32> {
            let mut cursor = table.cursor();
            cursor.seek(&from.to_be_bytes(), Trailer::seek(SeqNo::MAX))?;
            for n in 0..count {
                let Some(((key, _), value)) = here(&cursor) else { return Ok(n) };
                assert_eq!((key, value), ((from + n).to_be_bytes().to_vec(), vec![7; 40]));
                cursor.next()?;
            }
            Ok(count)
        };

        // From no cache to one that holds everything; whatever is read, is read once.
        for cache_bytes in [0, 10_000, 1 << 20] {
            let (table, reads) = open(cache_bytes, None);
            assert_eq!(scan(&table, 0, 5000).unwrap(), 4000);
            let reads = std::mem::take(&mut *reads.lock());
            assert!(reads.len() < 10 + blocks / 60, "{} reads of {blocks} blocks", reads.len());
            let end = reads.iter().fold(0, |end, (offset, len)| {
                assert!(*offset >= end, "{offset} was read before");
                offset + *len as u64
            });
            assert_eq!(end, table.parts.footer.data_end);
        }

        // A range within three blocks reads those.
        let (table, reads) = open(0, None);
        let per_block = 4000 / u32::try_from(blocks).unwrap();
        assert_eq!(scan(&table, 1000, per_block).unwrap(), per_block);
        assert!(reads.lock().len() <= 3 && reads.lock().iter().all(|(_, len)| *len < 600), "{:?}", reads.lock());

        // One or two blocks in the cache are read over, three are left out, wherever else there are some.
        for (cached, is_read) in [(1, true), (2, true), (3, false)] {
            let (table, reads) = open(1 << 20, None);
            (100..100 + cached).chain([104, 106]).for_each(|block| table.cursor().seek_block(block).unwrap());
            reads.lock().clear();
            assert_eq!(scan(&table, 0, 5000).unwrap(), 4000);
            let there = table.parts.fences.handle(100).offset;
            let again = reads.lock().iter().any(|(at, len)| (*at..at + *len as u64).contains(&there));
            assert_eq!(again, is_read, "{cached} blocks of the cache");
        }
        let (table, reads) = open(1 << 20, None);
        (0..blocks).step_by(3).for_each(|block| table.cursor().seek_block(block).unwrap());
        reads.lock().clear();
        assert_eq!(scan(&table, 0, 5000).unwrap(), 4000);
        assert!(reads.lock().len() < 10 + blocks / 60, "{} reads of {blocks} blocks", reads.lock().len());

        // What cannot be read, or is damaged, is told to those who come to it.
        let (table, reads) = open(0, None);
        assert_eq!(scan(&table, 2000, 1).unwrap(), 1);
        let at = reads.lock()[0].0 + 10;
        let (table, _) = open(0, Some(at));
        assert!(scan(&table, 0, 2000 - 2 * per_block).is_ok());
        assert_eq!(scan(&table, 0, 4000).unwrap_err().kind(), ErrorKind::Io);
        let mut damaged = bytes.clone();
        damaged[usize::try_from(at).unwrap()] ^= 1;
        let table = super::open(damaged, &Arc::new(BlockCache::new(0))).unwrap();
        assert!(scan(&table, 0, 2000 - 2 * per_block).is_ok());
        assert_eq!(scan(&table, 0, 4000).unwrap_err().kind(), ErrorKind::Corruption);
    }
}

#[test]
fn what_most_cursors_go_on_to_comes_with_the_first_block() {
    let model = ascending(4000);
    let options = TableOptions { block_bytes: 256, filter_bits_per_key: 10.0, compression: Compression::None };
    let (bytes, _) = write(&model, options);
    let reads = Arc::new(Mutex::new(Vec::new()));
    let len = bytes.len() as u64;
    let file = Watched { bytes, bad: None, reads: Arc::clone(&reads), told: Arc::default() };
    let table = Table::open("test.sst", Arc::new(file), SstId(1), len, Arc::new(BlockCache::new(0)), CTX).unwrap();
    let table = Arc::new(table);
    let blocks = table.parts.fences.blocks();
    let mut from = 0;
    let fences = &table.parts.fences;
    let blocks_in = |at: u64, len: usize| {
        (0..blocks).filter(|block| (at..at + len as u64).contains(&fences.handle(*block).offset)).count()
    };
    // How many blocks each read brings of a cursor that goes on to `more` of them; another place each time.
    let mut go = |cursor: &mut TableCursor, more: usize| -> Vec<usize> {
        reads.lock().clear();
        from = (from + 37) % (blocks - 50);
        cursor.seek_block(from).unwrap();
        while cursor.place().unwrap().0 < from + more {
            cursor.next().unwrap();
        }
        let reads = reads.lock();
        reads.iter().map(|(at, len)| blocks_in(*at, *len)).collect()
    };
    // Ranges that go on to so many blocks, each with a cursor of its own or all with one that seeks; and then two that go on to none and two.
    let mut after = |ranges: usize, seeks: bool, more: fn(usize) -> usize| -> [Vec<usize>; 2] {
        let mut cursor = table.cursor();
        for n in 0..ranges {
            if !seeks {
                cursor = table.cursor();
            }
            go(&mut cursor, more(n));
        }
        drop(cursor);
        [0, 2].map(|more| go(&mut table.cursor(), more))
    };
    assert_eq!(after(0, false, |_| 0), [vec![1], vec![1, 1, 4]], "nothing is known of a new table");
    assert_eq!(after(50, false, |_| 2), [vec![3], vec![3]]);
    assert_eq!(after(200, true, |_| 0), [vec![1], vec![1, 1, 4]], "and it is forgotten");
    assert_eq!(after(200, true, |n| usize::from(n % 3 == 0)), [vec![2], vec![2, 4]], "one of three goes on");
    assert_eq!(after(400, false, |n| usize::from(n % 6 == 0)), [vec![1], vec![1, 1, 4]], "one of six");
    assert_eq!(after(200, true, |_| 15), [vec![16], vec![16]]);
    assert_eq!(after(400, true, |_| 40), [vec![32], vec![32]], "long ranges go further than this knows");
}
