//! Memtables against each other and against the maps at hand: `cargo bench -p siltstone --bench memtable [entries]`.
//!
//! Each figure is the median of several rounds that take turns, in ns of processor time an operation: an insert includes
//! faulting in fresh memory. Inserts may overlap in the processor; a get waits for the answer of the one before.
#![allow(missing_docs, clippy::disallowed_macros, reason = "a program that prints its figures")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

use crossbeam_skiplist::SkipMap;
use parking_lot::RwLock;
use siltstone::io::Rng;
use siltstone::iter::Cursor;
use siltstone::key::{Kind, SeqNo, Trailer};
use siltstone::memtable::{self, Memtable, MemtableWriter};
use siltstone::options::MemtableKind;

const ROUNDS: usize = 5;
const VALUE: [u8; 100] = [b'v'; 100];

/// What a memtable is asked to do.
trait Table: Sized {
    const NAME: &'static str;
    fn create(capacity: u64) -> Self;
    fn insert(&mut self, key: &[u8], seq: u64);
    fn get(&self, key: &[u8]) -> Option<u8>;
    /// The sum of the values' last bytes, in order.
    fn scan(&self) -> u64;
}

struct Ours<const VECTOR: bool>(MemtableWriter, Arc<Memtable>);

impl<const VECTOR: bool> Table for Ours<VECTOR> {
    const NAME: &'static str = if VECTOR { "sorted vector" } else { "tree" };
    fn create(capacity: u64) -> Self {
        let kind = if VECTOR { MemtableKind::SortedVector } else { MemtableKind::Tree };
        let (writer, table) = memtable::new(kind, capacity);
        Ours(writer, table)
    }
    fn insert(&mut self, key: &[u8], seq: u64) {
        self.0.insert(key, Trailer::new(SeqNo(seq), Kind::Put), &VALUE);
    }
    fn get(&self, key: &[u8]) -> Option<u8> {
        self.1.get(key, SeqNo::MAX).map(|(_, value)| value[99])
    }
    fn scan(&self) -> u64 {
        let mut cursor = self.1.cursor();
        let mut sum = 0;
        cursor.seek_first().expect("memory does not fail");
        while let Some(entry) = cursor.entry() {
            sum += u64::from(entry.value[99]) + u64::from(entry.key.is_empty());
            cursor.next().expect("memory does not fail");
        }
        sum
    }
}

struct Locked(RwLock<BTreeMap<Vec<u8>, Vec<u8>>>);

impl Table for Locked {
    const NAME: &'static str = "BTreeMap in a RwLock";
    fn create(_: u64) -> Self {
        Locked(RwLock::default())
    }
    fn insert(&mut self, key: &[u8], _: u64) {
        self.0.write().insert(key.to_vec(), VALUE.to_vec());
    }
    fn get(&self, key: &[u8]) -> Option<u8> {
        self.0.read().get(key).map(|value| value[99])
    }
    fn scan(&self) -> u64 {
        self.0.read().values().map(|value| u64::from(value[99])).sum()
    }
}

struct Skip(SkipMap<Vec<u8>, Vec<u8>>);

impl Table for Skip {
    const NAME: &'static str = "crossbeam-skiplist";
    fn create(_: u64) -> Self {
        Skip(SkipMap::new())
    }
    fn insert(&mut self, key: &[u8], _: u64) {
        self.0.insert(key.to_vec(), VALUE.to_vec());
    }
    fn get(&self, key: &[u8]) -> Option<u8> {
        self.0.get(key).map(|entry| entry.value()[99])
    }
    fn scan(&self) -> u64 {
        self.0.iter().map(|entry| u64::from(entry.value()[99])).sum()
    }
}

/// The processor time of this thread: what else runs on the machine counts less than in wall time.
fn cpu_ns() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// ns an operation of insert, get of a present key, get of an absent key, scan step.
type Figures = [f64; 4];

fn measure<T: Table>(keys: &[[u8; 16]], absent: &[[u8; 16]]) -> Figures {
    let timed = |work: &mut dyn FnMut()| {
        let start = cpu_ns();
        work();
        (cpu_ns() - start) / keys.len() as f64
    };
    let mut table = T::create(keys.len() as u64 * 160);
    let insert = timed(&mut || {
        for (seq, key) in keys.iter().enumerate() {
            table.insert(key, seq as u64 + 1);
        }
    });
    // Each get waits for the answer of the one before: their cache misses do not overlap.
    let get = |keys: &[[u8; 16]]| {
        let mut wait = 0;
        let half = keys.len() / 2;
        for n in 0..keys.len() {
            let n = (n * 7 + usize::from(wait)) % half + usize::from(n & 1 == 1) * half;
            wait = table.get(black_box(&keys[n])).unwrap_or(0) & 1;
        }
        black_box(wait);
    };
    let hit = timed(&mut || get(keys));
    let miss = timed(&mut || get(absent));
    let scan = timed(&mut || {
        black_box(table.scan());
    });
    [insert, hit, miss, scan]
}

fn median(mut rounds: Vec<Figures>) -> Figures {
    std::array::from_fn(|column| {
        rounds.sort_by(|a, b| a[column].total_cmp(&b[column]));
        rounds[rounds.len() / 2][column]
    })
}

fn keys(entries: usize, law: &str, seed: u64) -> Vec<[u8; 16]> {
    let mut rng = Rng::new(seed);
    let decimal = |n: u64| -> [u8; 16] { format!("{n:016}").into_bytes().try_into().expect("sixteen digits") };
    (0..entries as u64)
        .map(|n| match law {
            "random" => {
                let [high, low] = [rng.next_u64(), rng.next_u64()].map(u64::to_be_bytes);
                std::array::from_fn(|byte| if byte < 8 { high[byte] } else { low[byte - 8] })
            }
            "decimal" => decimal(rng.below(1 << 30) * 2 + (seed & 1)),
            _ => decimal(n * 2 + (seed & 1)),
        })
        .collect()
}

fn main() {
    let entries = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(480_000);
    println!(
        "{:22} {:10} {:>8} {:>8} {:>8} {:>8}   ns, {entries} entries",
        "", "keys", "insert", "hit", "miss", "scan"
    );
    for law in ["random", "decimal", "ascending"] {
        let (present, absent) = (keys(entries, law, 2), keys(entries, law, 3));
        let mut rounds: [(&str, Vec<Figures>); 4] = Default::default();
        for _ in 0..ROUNDS {
            let all = [
                (Ours::<false>::NAME, measure::<Ours<false>>(&present, &absent)),
                (Ours::<true>::NAME, measure::<Ours<true>>(&present, &absent)),
                (Locked::NAME, measure::<Locked>(&present, &absent)),
                (Skip::NAME, measure::<Skip>(&present, &absent)),
            ];
            for (slot, (name, figures)) in rounds.iter_mut().zip(all) {
                slot.0 = name;
                slot.1.push(figures);
            }
        }
        for (name, rounds) in rounds {
            let [insert, hit, miss, scan] = median(rounds);
            println!("{name:22} {law:10} {insert:8.0} {hit:8.0} {miss:8.0} {scan:8.0}");
        }
    }
}
