//! Reads of a whole store: the seeks, gets and misses of the comparison with other stores, alone, for a profiler or before and after a change.
//!
//! ```sh
//! cargo bench -p siltstone --bench reads -- /tmp/store fill 5000000         # fillrandom, until settled
//! cargo bench -p siltstone --bench reads -- /tmp/store seek get miss        # ns an operation
//! cargo bench -p siltstone --bench reads -- /tmp/store warm seek --cache-mib 1500
//! ```
//!
//! Records of 16 + 100 bytes as `db_bench` makes them, memtables of 64 MiB, a cache of 256 MiB, blocks of 4096 bytes, 10 filter bits a key. The
//! store is read without being changed, so the same one serves before and after. Times are the thread's processor time.
#![expect(clippy::disallowed_macros, reason = "it measures and prints")]
#![expect(clippy::unwrap_used, clippy::cast_precision_loss, reason = "a program for developers")]

use std::hint::black_box;
use std::path::Path;

use siltstone::db::{Db, Keyspace};
use siltstone::io::Rng;
use siltstone::options::Compression;
use siltstone::{KeyspaceOptions, Options};

type Key = [u8; 16];

fn key(n: u64) -> Key {
    let mut key = [b'0'; 16];
    key[..8].copy_from_slice(&n.to_be_bytes());
    key
}

/// Never put, right after the key of `n`.
fn missing(n: u64) -> Key {
    let mut key = key(n);
    key[15] = b'1';
    key
}

fn options(cache_mib: u64) -> Options {
    Options {
        write_memory_bytes: 128 << 20,
        cache_bytes: cache_mib << 20,
        compaction_threads: 1,
        keyspace: KeyspaceOptions {
            memtable_bytes: 64 << 20,
            block_bytes: 4096,
            filter_bits_per_key: 10.0,
            compression: vec![Compression::None],
            ..KeyspaceOptions::default()
        },
        ..Options::default()
    }
}

fn fill(dir: &Path, records: u64) {
    let db = Db::open(dir, options(256)).unwrap();
    let keyspace = db.default_keyspace();
    let mut rng = Rng::new(1);
    let values: Vec<u8> = (0..1 << 20).map(|_| rng.next_u64().to_le_bytes()[0]).collect();
    // A permutation: a multiplication by an odd number and a shift, twice, over the next power of two.
    let mask = records.next_power_of_two() - 1;
    let mix = |n: u64| {
        let n = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask) ^ 0x5bd1_e995 & mask;
        let n = n ^ n >> (mask.count_ones() / 2);
        n.wrapping_mul(0xbf58_476d_1ce4_e5b9) & mask
    };
    for n in (0..=mask).map(mix).filter(|n| *n < records) {
        let at = usize::try_from(rng.below((1 << 20) - 100)).unwrap();
        keyspace.put(key(n), &values[at..at + 100]).unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
}

/// Processor time of this thread.
fn now_ns() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Calls `operation` for random records and prints what one call takes; the first fifth warms the cache up.
fn report(what: &str, records: u64, calls: u64, mut operation: impl FnMut(u64)) {
    let mut rng = Rng::new(records ^ calls);
    for _ in 0..calls / 5 {
        operation(rng.below(records));
    }
    let start = now_ns();
    for _ in 0..calls {
        operation(rng.below(records));
    }
    println!("{what:12} {:8.0} ns", (now_ns() - start) / calls as f64);
}

fn scan(keyspace: &Keyspace, from: Key, nexts: usize, sink: &mut [u8]) {
    let mut range = keyspace.range(from..).unwrap();
    let mut seen = 0;
    while seen <= nexts && range.advance().unwrap() {
        let (key, value) = (range.key(), range.value());
        sink[..key.len()].copy_from_slice(key);
        sink[..value.len()].copy_from_slice(value);
        black_box(&sink);
        seen += 1;
    }
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let Some(dir) = args.next() else { return };
    let dir = Path::new(&dir);
    let (mut what, mut numbers) = (Vec::new(), Vec::new());
    let (mut cache_mib, mut calls) = (256, 300_000);
    while let Some(arg) = args.next() {
        match &arg[..] {
            "--cache-mib" => cache_mib = args.next().unwrap().parse().unwrap(),
            "--calls" => calls = args.next().unwrap().parse().unwrap(),
            _ if arg.parse::<u64>().is_ok() => numbers.push(arg.parse().unwrap()),
            _ => what.push(arg),
        }
    }
    if what.iter().any(|what| what == "fill") {
        return fill(dir, numbers.first().copied().unwrap_or(5_000_000));
    }
    let db = Db::open_read_only(dir, options(cache_mib)).unwrap();
    let keyspace = db.default_keyspace();
    let tree = keyspace.tree();
    let records = numbers.first().copied().unwrap_or(5_000_000);
    for level in &tree.levels {
        let runs: Vec<usize> = level.runs.iter().map(|run| run.files.len()).collect();
        println!("level {:?}: files of each run {runs:?}", level.level);
    }
    let mut sink = [0; 256];
    for what in what {
        match &what[..] {
            "seek" => {
                for nexts in [0, 50] {
                    let label = format!("seek + {nexts}");
                    report(&label, records, calls / 2, |n| scan(&keyspace, key(n), nexts, &mut sink));
                }
            }
            // All of it, so that a cache that can hold all does.
            "warm" => scan(&keyspace, key(0), usize::MAX, &mut sink),
            "scan" => report("scan 5000", records, calls / 1000, |n| scan(&keyspace, key(n), 5000, &mut sink)),
            "get" => report("get", records, calls, |n| {
                let value = keyspace.get(key(n)).unwrap().unwrap();
                sink[..value.len()].copy_from_slice(&value);
                black_box(&sink);
            }),
            "miss" => report("miss", records, calls, |n| assert!(keyspace.get(missing(n)).unwrap().is_none())),
            other => panic!("{other}: fill, warm, seek, scan, get or miss"),
        }
    }
    let stats = db.stats();
    println!("cache: {} hits, {} misses", stats.cache_hits, stats.cache_misses);
}
