//! A table of hostile bytes: opening, scanning, seeking and verifying it may fail, and must not panic, hang or allocate beyond
//! what the file can hold.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use siltstone::cache::BlockCache;
use siltstone::io::sim::{SimClock, SimFs};
use siltstone::io::{Fs, IoClass, IoCtx, OpenOptions};
use siltstone::iter::Cursor;
use siltstone::key::{SeqNo, Trailer};
use siltstone::sst::Table;
use siltstone::version::SstId;

fuzz_target!(|bytes: &[u8]| {
    let path = Path::new("/000001.sst");
    let fs = SimFs::new(&SimClock::new(), 1);
    fs.write_all(path, bytes).expect("memory takes it");
    let ctx = IoCtx::foreground(IoClass::Scrub);
    let file = fs.open(path, OpenOptions::default(), ctx).expect("it is there");
    let cache = Arc::new(BlockCache::new(1 << 20));
    let length = bytes.len() as u64;
    let Ok(table) = Table::open(path, file, SstId(1), length, cache, ctx) else { return };
    let table = Arc::new(table);
    let _ = table.verify(ctx);
    let key = &bytes[..bytes.len().min(8)];
    let _ = table.get(key, siltstone::key::hash(key), SeqNo::MAX);
    let mut cursor = table.cursor();
    let mut left = 100_000;
    let mut moved = cursor.seek(key, Trailer::seek(SeqNo::MAX));
    while moved.is_ok() && cursor.entry().is_some() && left > 0 {
        moved = cursor.next();
        left -= 1;
    }
    let mut scan = table.scan(4096, ctx);
    let mut moved = scan.seek_first();
    while moved.is_ok() && scan.entry().is_some() && left > 0 {
        moved = scan.next();
        left -= 1;
    }
});
