//! What recording a trace costs: the same operations in one store with a trace and without one, taking turns.
//!
//! ```sh
//! cargo bench -p siltstone --bench trace                    # 9 stores of 2.6 million puts
//! cargo bench -p siltstone --bench trace -- --rounds 21 --dir /data
//! cargo bench -p siltstone --bench trace -- --gets          # gets of records in the memtable instead
//! cargo bench -p siltstone --bench trace -- --hashed        # keyed hashes in the trace instead of keys
//! cargo bench -p siltstone --bench trace -- --sustained     # one store of 5 million keys, 180 million puts: a minute and a half, 2 GiB of disk
//! ```
//!
//! Records of 16 + 100 bytes with random keys (`fillrandom`), memtables of 64 MiB, flushed and merged in the background. One thread does 200 000
//! operations while a trace is recorded, then as many without, and so on; chance says which is first. So whatever slows the machine, and whatever state
//! the store is in, meets both. A trace's first memory is taken in operations that do not count. What recording costs is the median of the quotients
//! of neighbours, and the quotient of the sums.
//!
//! Such short runs show a put alone: nothing holds it back yet. `--sustained` shows what a store takes for long, with its default options and turns of
//! two million puts: there flushes and merges say how fast writers may be.
#![expect(clippy::disallowed_types, clippy::disallowed_macros, clippy::disallowed_methods, reason = "it measures")]
#![expect(clippy::unwrap_used, clippy::cast_precision_loss, reason = "a program for developers")]

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use siltstone::db::{Db, Keyspace};
use siltstone::io::Rng;
use siltstone::options::Compression;
use siltstone::trace::{KeyHash, TraceOptions};
use siltstone::{KeyspaceOptions, Options};

const VALUE: [u8; 100] = [7; 100];

/// Operations of a turn, those before it that do not count, and how many pairs of turns a round has.
const SLICE: u64 = 200_000;
const BEFORE: u64 = 100_000;
const PAIRS: u64 = 5;
/// With `--sustained`: a turn's operations and the pairs, the keys, and the puts before all turns.
const LONG_SLICE: u64 = 2_000_000;
const LONG_PAIRS: u64 = 40;
const KEYS: u64 = 5_000_000;
const FILL: u64 = 15_000_000;

/// What is measured.
struct Question {
    dir: PathBuf,
    gets: bool,
    hashed: bool,
    sustained: bool,
}

fn options() -> Options {
    Options {
        write_memory_bytes: 256 << 20,
        compaction_threads: 1,
        keyspace: KeyspaceOptions {
            memtable_bytes: 64 << 20,
            compression: vec![Compression::None],
            ..KeyspaceOptions::default()
        },
        ..Options::default()
    }
}

/// One of `keys` keys.
fn key(keys: u64, rng: &mut Rng) -> [u8; 16] {
    let mut key = [b'0'; 16];
    key[..8].copy_from_slice(&rng.below(keys).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key
}

impl Question {
    /// Nanoseconds an operation took without and with a trace, by pairs of turns, and what the traces have lost.
    fn round(&self, round: u64) -> (Vec<[f64; 2]>, u64) {
        let folder = tempfile::tempdir_in(&self.dir).unwrap();
        let path = folder.path().join("trace");
        let options = if self.sustained { Options::default() } else { options() };
        let store = Db::open(folder.path().join("store"), options).unwrap();
        let keyspace = store.default_keyspace();
        let (slice, turns) = if self.sustained { (LONG_SLICE, LONG_PAIRS) } else { (SLICE, PAIRS) };
        let keys = if self.sustained { KEYS } else { u64::MAX };
        if self.gets {
            put(&keyspace, slice, keys, &mut Rng::new(0));
        }
        if self.sustained {
            put(&keyspace, FILL, keys, &mut Rng::new(0));
        }
        let (mut rng, mut coin) = (Rng::new(round + 1), Rng::new(round));
        let (mut pairs, mut lost) = (Vec::new(), 0);
        for _ in 0..turns {
            let mut ns = [0.0; 2];
            // By chance: what comes in turns, as flushes do, must not meet one of the two more often.
            let first = coin.next_u64() % 2 == 0;
            for is_traced in [first, !first] {
                if is_traced {
                    let hash_keys = self.hashed.then_some(KeyHash { secret: [7; 16], keep_prefix: 4 });
                    store.start_trace(&path, TraceOptions { hash_keys, max_bytes: 0 }).unwrap();
                }
                let mut operate = |count| {
                    if self.gets { get(&keyspace, count) } else { put(&keyspace, count, keys, &mut rng) }
                };
                operate(BEFORE);
                let start = Instant::now();
                operate(slice);
                ns[usize::from(is_traced)] = start.elapsed().as_nanos() as f64 / slice as f64;
                if is_traced {
                    lost += store.stop_trace().unwrap().lost;
                    std::fs::remove_file(&path).unwrap();
                }
            }
            pairs.push(ns);
        }
        store.wait_idle().unwrap();
        store.close().unwrap();
        (pairs, lost)
    }
}

fn put(keyspace: &Keyspace, count: u64, keys: u64, rng: &mut Rng) {
    (0..count).for_each(|_| keyspace.put(key(keys, rng), VALUE).unwrap());
}

fn get(keyspace: &Keyspace, count: u64) {
    let mut rng = Rng::new(0);
    (0..count).for_each(|_| assert!(black_box(keyspace.get(key(u64::MAX, &mut rng)).unwrap()).is_some()));
}

/// The middle of `values`, and what lies at a quarter and three quarters.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_unstable_by(f64::total_cmp);
    [values.len() / 2, values.len() / 4, values.len() * 3 / 4].map(|at| values[at])
}

fn main() {
    let mut question = Question { dir: std::env::temp_dir(), gets: false, hashed: false, sustained: false };
    let mut rounds = None;
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    while let Some(arg) = args.next() {
        match &arg[..] {
            "--dir" => question.dir = args.next().unwrap().into(),
            "--rounds" => rounds = Some(args.next().unwrap().parse().unwrap()),
            "--gets" => question.gets = true,
            "--hashed" => question.hashed = true,
            "--sustained" => question.sustained = true,
            other => panic!("{other}: --rounds N, --dir FOLDER, --gets, --hashed or --sustained"),
        }
    }
    let (mut pairs, mut lost) = (Vec::new(), 0);
    for round in 0..rounds.unwrap_or(if question.sustained { 1 } else { 9 }) {
        let (more, missing) = question.round(round);
        pairs.extend(more);
        lost += missing;
    }
    let row = |what: &str, of: fn(&[f64; 2]) -> f64, unit: &str| {
        let [median, low, high] = quartiles(pairs.iter().map(of).collect());
        println!("{what:16} {median:8.1} {unit} [{low:.1} .. {high:.1}]");
    };
    row("without a trace", |ns| ns[0], "ns");
    row("with one", |ns| ns[1], "ns");
    row("what it costs", |ns| ns[1] - ns[0], "ns");
    row("", |ns| (ns[1] / ns[0] - 1.0) * 100.0, "% ");
    let [without, with] = [0, 1].map(|at| pairs.iter().map(|ns| ns[at]).sum::<f64>());
    println!("{:16} {:8.1} %", "of the sums", (with / without - 1.0) * 100.0);
    println!("medians and quartiles of {} pairs of turns; lost from the traces: {lost}", pairs.len());
}
