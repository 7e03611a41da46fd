//! Instructions that one operation takes, counted by callgrind and compared with `counts.txt`: what times cannot show on a busy machine.
//!
//! ```sh
//! cargo bench -p siltstone --bench counts                   # fails if an operation takes 3 % more than is written there
//! GOLDEN=rewrite cargo bench -p siltstone --bench counts    # writes there what it takes now; say why in the change log
//! ```
//!
//! The program runs itself under valgrind. There it makes a store whose shape is always the same (a memtable, three runs of L0, all blocks in
//! the cache once they were read) and calls each operation a fixed number of times in a function of its own, at whose borders callgrind starts
//! and stops. A count is good to about a tenth of a percent. Valgrind knows no AVX-512, so the AVX2 forms are what is counted; and another compiler gives
//! other counts, so those of one compiler are compared only.
#![expect(clippy::disallowed_types, clippy::disallowed_macros, clippy::disallowed_methods, reason = "it measures")]
#![expect(clippy::unwrap_used, clippy::cast_precision_loss, reason = "a program for developers")]

mod memory;

use std::collections::BTreeMap;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

use siltstone::cache::BlockCache;
use siltstone::db::{Db, Keyspace};
use siltstone::io::{IoClass, IoCtx, ReadableFile, Rng};
use siltstone::iter::MergeForward;
use siltstone::key::{Kind, SeqNo, Trailer};
use siltstone::options::Compression;
use siltstone::sst::{Table, TableOptions, TableScan, TableWriter};
use siltstone::version::SstId;
use siltstone::{KeyspaceOptions, Options};

use memory::{Fixed, Memory};

/// An operation may take so much more than is written down.
const MOST_GROWTH: f64 = 0.03;
const RUNS: u64 = 3;
const RECORDS_OF_A_RUN: u64 = 8_000;
const RECORDS: u64 = RUNS * RECORDS_OF_A_RUN;
const CALLS: u64 = 4_000;
const STEPS_OF_A_SCAN: u64 = 50;
const CTX: IoCtx = IoCtx::foreground(IoClass::UserRead);

/// The measured functions and how many operations each performs.
const MEASURED: [(&str, u64); 6] = [
    ("put", CALLS),
    ("get_hit", CALLS),
    ("get_miss", CALLS),
    ("seek", CALLS / 10),
    ("scan_step", CALLS / 10 * STEPS_OF_A_SCAN),
    ("merge_step", RECORDS),
];

fn main() -> ExitCode {
    if let Ok(dir) = std::env::var("COUNTED_DIR") {
        perform(Path::new(&dir));
        return ExitCode::SUCCESS;
    }
    let folder = tempfile::tempdir().unwrap();
    let counts = count(folder.path());
    let compiler = Command::new("rustc").arg("-V").output().map(|out| String::from_utf8(out.stdout).unwrap()).unwrap();
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("benches/counts.txt");
    if std::env::var("GOLDEN").as_deref() == Ok("rewrite") {
        let rows: String = counts.iter().map(|(name, count)| format!("{name} {count:.1}\n")).collect();
        fs::write(&path, format!("# Instructions an operation; see counts.rs. Compiler: {}\n{rows}", compiler.trim()))
            .unwrap();
    }
    compare(&fs::read_to_string(&path).unwrap(), &counts, compiler.trim())
}

/// Prints the table; fails if something grew.
fn compare(golden: &str, counts: &BTreeMap<String, f64>, compiler: &str) -> ExitCode {
    let comparable = golden.lines().next().is_some_and(|line| line.ends_with(compiler));
    let written: BTreeMap<&str, f64> = golden
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_once(' ').expect("a name and a number"))
        .map(|(name, count)| (name, count.parse().unwrap()))
        .collect();
    let mut grown = false;
    for (name, now) in counts {
        let before = written.get(&name[..]).copied().unwrap_or(0.0);
        let change = now / before - 1.0;
        let grew = change > MOST_GROWTH;
        grown |= grew;
        println!(
            "{name:12} {now:9.1} instructions, {before:9.1} written down, {:+.1} %{}",
            change * 100.0,
            if grew { "  GREW" } else { "" }
        );
    }
    if !comparable {
        println!("counts.txt is of another compiler than {compiler}: nothing is compared");
        return ExitCode::SUCCESS;
    }
    if grown {
        println!("make it shorter, or GOLDEN=rewrite and say in the change log what it is good for");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// No `rep movsb` and no `rep stosb`. Callgrind counts one instruction for each byte of theirs, and whether the C library uses them for a copy
/// of some KiB depends on the addresses: with them `merge_step` moved by 3 % when an unrelated allocation changed its size.
const PLAIN_COPIES: &str = "glibc.cpu.x86_rep_movsb_threshold=0x40000000:glibc.cpu.x86_rep_stosb_threshold=0x40000000";

/// Runs this program under callgrind: instructions an operation, by name.
fn count(folder: &Path) -> BTreeMap<String, f64> {
    let out = folder.join("out");
    let status = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet", "--toggle-collect=counts::measured::*"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe().unwrap())
        .env("COUNTED_DIR", folder.join("store"))
        .env("GLIBC_TUNABLES", PLAIN_COPIES)
        .status()
        .expect("valgrind is installed");
    assert!(status.success(), "valgrind: {status}");
    let table =
        Command::new("callgrind_annotate").args(["--inclusive=yes", "--threshold=100"]).arg(out).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    let count = |(name, operations): &(&str, u64)| {
        // A row is `1,234 (5.6%)  file:function [program]`; one for each file whose code is in the function, and the largest is all of it.
        let function = format!(":counts::measured::{name} ");
        let rows = table.lines().filter(|line| format!("{line} ").contains(&function));
        let total = rows.filter_map(|row| row.split_whitespace().next()?.replace(',', "").parse::<f64>().ok());
        let total = total.fold(f64::NAN, f64::max);
        assert!(total > 0.0, "no row for {name}:\n{table}");
        ((*name).to_owned(), total / *operations as f64)
    };
    MEASURED.iter().map(count).collect()
}

/// Keys in no order, each once.
fn key(n: u64) -> [u8; 16] {
    let mut key = [b'0'; 16];
    key[..8].copy_from_slice(&(n * 7919 % RECORDS).to_be_bytes());
    key
}

fn missing(n: u64) -> [u8; 16] {
    let mut key = key(n);
    key[15] = b'1';
    key
}

const VALUE: [u8; 100] = [7; 100];

/// Makes the store, then calls what is measured.
fn perform(dir: &Path) {
    let keyspace_options = KeyspaceOptions { compression: vec![Compression::None], ..KeyspaceOptions::default() };
    let db = Db::open(dir, Options { keyspace: keyspace_options, ..Options::default() }).unwrap();
    let keyspace = db.default_keyspace();
    for run in 0..RUNS {
        for n in 0..RECORDS_OF_A_RUN {
            keyspace.put(key(run * RECORDS_OF_A_RUN + n), VALUE).unwrap();
        }
        // At rest the runs would become one.
        db.flush().unwrap();
    }
    let runs: usize = keyspace.tree().levels.iter().map(|level| level.runs.len()).sum();
    assert_eq!(u64::try_from(runs), Ok(RUNS), "the store must have this shape");
    // Until all blocks are in the cache: while its memory is being made ready it admits none.
    loop {
        let before = db.stats().cache_misses;
        assert_eq!(keyspace.range::<&[u8]>(..).unwrap().count(), usize::try_from(RECORDS).unwrap());
        if db.stats().cache_misses == before {
            break;
        }
    }
    let tables = tables();

    measured::put(&keyspace);
    measured::get_hit(&keyspace);
    measured::get_miss(&keyspace);
    measured::seek(&keyspace);
    measured::scan_step(&keyspace);
    measured::merge_step(&tables);
}

/// What callgrind counts: all of these and what they call.
mod measured {
    use super::*;

    #[inline(never)]
    pub(super) fn put(keyspace: &Keyspace) {
        // Over what is there, so that the memtable is part of what is read below.
        (0..CALLS).for_each(|n| keyspace.put(key(n * 5 % RECORDS), VALUE).unwrap());
    }

    #[inline(never)]
    pub(super) fn get_hit(keyspace: &Keyspace) {
        (0..CALLS).for_each(|n| assert!(black_box(keyspace.get(key(n * 11 % RECORDS)).unwrap()).is_some()));
    }

    #[inline(never)]
    pub(super) fn get_miss(keyspace: &Keyspace) {
        (0..CALLS).for_each(|n| assert!(black_box(keyspace.get(missing(n * 11 % RECORDS)).unwrap()).is_none()));
    }

    #[inline(never)]
    pub(super) fn seek(keyspace: &Keyspace) {
        for n in 0..CALLS / 10 {
            let mut range = keyspace.range(key(n * 11 % RECORDS)..).unwrap();
            assert!(range.advance().unwrap());
            black_box(range.value());
        }
    }

    #[inline(never)]
    pub(super) fn scan_step(keyspace: &Keyspace) {
        let mut range = keyspace.range::<&[u8]>(..).unwrap();
        for _ in 0..CALLS / 10 * STEPS_OF_A_SCAN {
            assert!(range.advance().unwrap());
            black_box((range.key(), range.value()));
        }
    }

    /// Reading, merging and writing again, as compactions do; the survivors' rules left out.
    #[inline(never)]
    pub(super) fn merge_step(tables: &[Arc<Table>]) {
        let scans: Vec<TableScan> = tables.iter().map(|table| table.scan(128 << 10, CTX)).collect();
        let mut merge = MergeForward::new(scans);
        let mut writer = writer(&Memory::default());
        merge.seek_first().unwrap();
        while let Some(entry) = merge.peek() {
            writer.add(entry.key, entry.trailer, entry.value).unwrap();
            merge.advance().unwrap();
        }
        black_box(writer.finish().unwrap());
    }
}

/// The runs of the store again, as tables in memory.
fn tables() -> Vec<Arc<Table>> {
    let cache = Arc::new(BlockCache::new(0));
    let mut rng = Rng::new(3);
    let mut runs: Vec<Vec<[u8; 16]>> = vec![Vec::new(); usize::try_from(RUNS).unwrap()];
    (0..RECORDS).for_each(|n| runs[usize::try_from(rng.below(RUNS)).unwrap()].push(key(n)));
    let table = |keys: &mut Vec<[u8; 16]>| {
        keys.sort_unstable();
        let memory = Memory::default();
        let mut writer = writer(&memory);
        for key in keys {
            writer.add(key, Trailer::new(SeqNo(7), Kind::Put), &VALUE).unwrap();
        }
        writer.finish().unwrap();
        let file = Fixed(Arc::new(std::mem::take(&mut *memory.0.lock().unwrap())));
        let bytes = file.bytes();
        Arc::new(Table::open("counts.sst", Arc::new(file), SstId(1), bytes, Arc::clone(&cache), CTX).unwrap())
    };
    runs.iter_mut().map(table).collect()
}

fn writer(memory: &Memory) -> TableWriter {
    let options = TableOptions { block_bytes: 4096, filter_bits_per_key: 10.0, compression: Compression::None };
    TableWriter::new("counts.sst", Box::new(memory.clone()), options, CTX)
}
