//! Tables, room by room: writing, scanning, lookups with the cache full and partly full, absent keys, seeks.
//!
//! `cargo bench -p siltstone --bench sst [-- MILLIONS [write]]`, the latter for writing only. Records of 16 + 100 bytes, 4 KiB blocks, 10 filter bits. *isolated*
//! lookups are kept from overlapping each other: each key depends on the value found before. Times are the thread's processor
//! time, so that other work on the machine disturbs little.
#![expect(clippy::disallowed_types, clippy::disallowed_macros, reason = "it measures and prints")]
#![expect(clippy::unwrap_used, clippy::cast_precision_loss, reason = "a program for developers")]

mod memory;

use std::sync::Arc;

use siltstone::cache::BlockCache;
use siltstone::io::{IoClass, IoCtx, Rng};
use siltstone::iter::Cursor;
use siltstone::key::{Kind, SeqNo, Trailer, hash};
use siltstone::options::Compression;
use siltstone::sst::{Table, TableOptions, TableWriter};
use siltstone::version::SstId;

use memory::{Fixed, Memory};

const CTX: IoCtx = IoCtx::foreground(IoClass::UserRead);

fn key(decimal: bool, i: u64) -> [u8; 16] {
    if decimal {
        let mut key = [b'0'; 16];
        let mut rest = i;
        for digit in key.iter_mut().rev() {
            *digit = b'0' + u8::try_from(rest % 10).unwrap();
            rest /= 10;
        }
        return key;
    }
    let mut key = [0; 16];
    key[..8].copy_from_slice(&i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[8..].copy_from_slice(&i.to_be_bytes());
    key
}

/// Processor time of this thread.
fn now_ns() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn report(what: &str, operations: u64, mut run: impl FnMut()) {
    let mut times: Vec<f64> = (0..5)
        .map(|_| {
            let start = now_ns();
            run();
            (now_ns() - start) / operations as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{what:40} {:8.1} ns  [{:.1} .. {:.1}]", times[2], times[0], times[4]);
}

fn main() {
    let millions: f64 = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(0.5);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small positive number")]
    let n = (millions * 1e6) as u64;
    for decimal in [false, true] {
        println!("{} keys, {n} entries", if decimal { "decimal" } else { "binary" });
        let mut keys: Vec<[u8; 16]> = (0..n).map(|i| key(decimal, i)).collect();
        keys.sort_unstable();
        let mut rng = Rng::new(1);
        let values: Vec<u8> = (0..100_000).map(|_| rng.next_u64().to_le_bytes()[0]).collect();
        let file = Memory::default();
        let write = || {
            file.0.lock().unwrap().clear();
            let options = TableOptions { block_bytes: 4096, filter_bits_per_key: 10.0, compression: Compression::None };
            let mut writer = TableWriter::new("bench.sst", Box::new(file.clone()), options, CTX);
            for (i, key) in keys.iter().enumerate() {
                let at = i * 37 % 99_000;
                writer.add(key, Trailer::new(SeqNo(7), Kind::Put), &values[at..at + 100]).unwrap();
            }
            writer.finish().unwrap();
        };
        report("write (with filter, to memory)", n, write);
        let bytes = Arc::new(std::mem::take(&mut *file.0.lock().unwrap()));
        let len = bytes.len() as u64;
        println!("{:40} {:8.1} bytes an entry", "size", len as f64 / n as f64);
        if std::env::args().any(|arg| arg == "write") {
            continue;
        }
        for share in [2.0, 0.44] {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive")]
            let cache = Arc::new(BlockCache::new((len as f64 * share) as u64));
            let start = now_ns();
            let file = Arc::new(Fixed(Arc::clone(&bytes)));
            let table = Arc::new(Table::open("bench.sst", file, SstId(1), len, Arc::clone(&cache), CTX).unwrap());
            println!("{:40} {:8.1} us", "open", (now_ns() - start) / 1e3);
            if share > 1.0 {
                report("scan", n, || {
                    let mut scan = table.scan(256 << 10, CTX);
                    scan.seek_first().unwrap();
                    let mut sum = 0u64;
                    while let Some(entry) = scan.entry() {
                        sum += u64::from(entry.key[15]) + entry.value.len() as u64;
                        scan.next().unwrap();
                    }
                    std::hint::black_box(sum);
                });
            }
            let mut cursor = table.cursor();
            cursor.seek_first().unwrap();
            while cursor.entry().is_some() {
                cursor.next().unwrap();
            }
            let gets = 300_000u64;
            let mut pick = Rng::new(2);
            let mut chosen: Vec<u64> = (0..gets).map(|_| pick.below(n)).collect();
            let get = |i: u64| {
                let key = key(decimal, i);
                table.get(&key, hash(&key), SeqNo::MAX).unwrap()
            };
            if share < 1.0 {
                // Until what is in the cache no longer depends on the scan.
                for _ in 0..4 * n / 32 {
                    std::hint::black_box(get(pick.below(n)));
                }
            }
            let label = if share > 1.0 { "cached" } else { "44 % cached" };
            report(&format!("get hit, {label}"), gets, || {
                for i in &mut chosen {
                    *i = pick.below(n);
                    std::hint::black_box(get(*i));
                }
            });
            report(&format!("get hit, {label}, isolated"), gets, || {
                let mut last = 0u64;
                let zero = std::hint::black_box(0);
                for &i in &chosen {
                    // The next key waits for this value's last byte, though that never changes it.
                    let (_, value) = get(i ^ (last & zero)).unwrap();
                    last = u64::from(value[99]);
                }
                std::hint::black_box(last);
            });
            if share > 1.0 {
                report("get absent", gets, || {
                    for &i in &chosen {
                        let mut key = key(decimal, i);
                        key[15] ^= 0x40;
                        std::hint::black_box(table.get(&key, hash(&key), SeqNo::MAX).unwrap());
                    }
                });
            }
            let seeks = 60_000u64;
            for nexts in [0, 50] {
                report(&format!("seek + {nexts} nexts, {label}"), seeks, || {
                    for _ in 0..seeks {
                        let mut cursor = table.cursor();
                        cursor.seek(&key(decimal, pick.below(n)), Trailer::seek(SeqNo::MAX)).unwrap();
                        for _ in 0..nexts {
                            let Some(entry) = cursor.entry() else { break };
                            std::hint::black_box(entry.value[0]);
                            cursor.next().unwrap();
                        }
                    }
                });
            }
            println!("{:?}", cache.stats());
        }
    }
}
