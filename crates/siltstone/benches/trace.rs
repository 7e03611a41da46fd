//! What recording a trace costs: the same operations in two stores, one of which records them, taking turns.
//!
//! ```sh
//! cargo bench -p siltstone --bench trace                    # 9 rounds of a million puts in each store
//! cargo bench -p siltstone --bench trace -- --rounds 21 --dir /data
//! cargo bench -p siltstone --bench trace -- --gets          # gets of records in the memtable instead
//! cargo bench -p siltstone --bench trace -- --hashed        # keyed hashes in the trace instead of keys
//! ```
//!
//! Records of 16 + 100 bytes with random keys (`fillrandom`), memtables of 64 MiB, flushed and merged in the background; two new stores each round. One
//! thread does 20 000 operations in one store, then the same in the other, and so on; which is first changes. So whatever slows the machine meets
//! both, and the trace's lane, which works every 10 ms, works mostly while its own store is asked. What recording costs is the median of the
//! quotients of neighbours.
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

/// Operations until the other store has its turn, and how many turns a round has.
const SLICE: u64 = 20_000;
const SLICES: u64 = 50;

/// What is measured.
struct Question {
    dir: PathBuf,
    gets: bool,
    hashed: bool,
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

fn key(rng: &mut Rng) -> [u8; 16] {
    let mut key = [b'0'; 16];
    key[..8].copy_from_slice(&rng.next_u64().to_be_bytes());
    key
}

impl Question {
    /// Nanoseconds an operation took without and with a trace, by slice, and what the trace has lost.
    fn round(&self, round: u64) -> (Vec<[f64; 2]>, u64) {
        let folder = tempfile::tempdir_in(&self.dir).unwrap();
        let stores = ["first", "second"].map(|name| Db::open(folder.path().join(name), options()).unwrap());
        let keyspaces = stores.each_ref().map(Db::default_keyspace);
        // What the first store's place in memory is good for changes hands.
        let traced = usize::try_from(round % 2).unwrap();
        if self.gets {
            keyspaces.iter().for_each(|keyspace| put(keyspace, 0));
        }
        let hash_keys = self.hashed.then_some(KeyHash { secret: [7; 16], keep_prefix: 4 });
        stores[traced].start_trace(folder.path().join("trace"), TraceOptions { hash_keys, max_bytes: 0 }).unwrap();
        let mut slices = Vec::new();
        for slice in 0..SLICES {
            let mut ns = [0.0; 2];
            let first = usize::from(slice % 2 == 0);
            for store in [first, 1 - first] {
                let start = Instant::now();
                if self.gets {
                    get(&keyspaces[store])
                } else {
                    put(&keyspaces[store], slice)
                }
                ns[usize::from(store == traced)] = start.elapsed().as_nanos() as f64 / SLICE as f64;
            }
            slices.push(ns);
        }
        let lost = stores[traced].stop_trace().unwrap().lost;
        for store in &stores {
            store.wait_idle().unwrap();
            store.close().unwrap();
        }
        (slices, lost)
    }
}

fn put(keyspace: &Keyspace, slice: u64) {
    let mut rng = Rng::new(slice);
    (0..SLICE).for_each(|_| keyspace.put(key(&mut rng), VALUE).unwrap());
}

fn get(keyspace: &Keyspace) {
    let mut rng = Rng::new(0);
    (0..SLICE).for_each(|_| assert!(black_box(keyspace.get(key(&mut rng)).unwrap()).is_some()));
}

/// The middle of `values`, and what lies at a quarter and three quarters.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_unstable_by(f64::total_cmp);
    [values.len() / 2, values.len() / 4, values.len() * 3 / 4].map(|at| values[at])
}

fn main() {
    let mut question = Question { dir: std::env::temp_dir(), gets: false, hashed: false };
    let mut rounds = 9;
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    while let Some(arg) = args.next() {
        match &arg[..] {
            "--dir" => question.dir = args.next().unwrap().into(),
            "--rounds" => rounds = args.next().unwrap().parse().unwrap(),
            "--gets" => question.gets = true,
            "--hashed" => question.hashed = true,
            other => panic!("{other}: --rounds N, --dir FOLDER, --gets or --hashed"),
        }
    }
    let (mut slices, mut lost) = (Vec::new(), 0);
    for round in 0..rounds {
        let (more, missing) = question.round(round);
        slices.extend(more);
        lost += missing;
    }
    let row = |what: &str, of: fn(&[f64; 2]) -> f64, unit: &str| {
        let [median, low, high] = quartiles(slices.iter().map(of).collect());
        println!("{what:16} {median:8.1} {unit} [{low:.1} .. {high:.1}]");
    };
    row("without a trace", |ns| ns[0], "ns");
    row("with one", |ns| ns[1], "ns");
    row("what it costs", |ns| ns[1] - ns[0], "ns");
    row("", |ns| (ns[1] / ns[0] - 1.0) * 100.0, "% ");
    println!("medians and quartiles of {} pairs of slices; lost from the traces: {lost}", slices.len());
}
