//! A whole store with bytes of its files replaced: it opens with the right data, or fails; nothing else.
//!
//! The input is a list of edits `(file, position, byte)`. Single flips are covered exhaustively by the simulation; this looks for
//! what several of them together do.
#![no_main]

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use siltstone::io::Rng;
use siltstone::io::sim::{SimClock, SimExecutor, SimFs};
use siltstone::{Db, Env, Options};

fn env(fs: &SimFs, read_only: bool) -> Env {
    let clock = fs.clock();
    Env {
        fs: Arc::new(fs.clone()),
        executor: Arc::new(SimExecutor::new(&clock, 1)),
        clock,
        rng: Rng::new(1),
        listener: None,
        read_only,
        policies: siltstone::Policies::default(),
    }
}

fn options() -> Options {
    let mut options = Options { write_memory_bytes: 16 << 10, ..Options::default() };
    options.log.segment_bytes = 8 << 10;
    options.log.max_bytes = 32 << 10;
    options.keyspace.memtable_bytes = 4 << 10;
    options.keyspace.block_bytes = 256;
    options
}

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// A small store with tables and a log, closed, and what it holds.
fn store() -> &'static (SimFs, Contents) {
    static STORE: OnceLock<(SimFs, Contents)> = OnceLock::new();
    STORE.get_or_init(|| {
        let fs = SimFs::new(&SimClock::new(), 1);
        let db = Db::open_with("/store", options(), env(&fs, false)).expect("an empty folder");
        let keyspace = db.default_keyspace();
        let mut contents = Contents::new();
        for n in 0..200u32 {
            let (key, value) = (format!("key-{:03}", n % 90), format!("value {n}"));
            keyspace.put(&key, &value).expect("memory takes it");
            contents.insert(key.into_bytes(), value.into_bytes());
            if n == 120 {
                db.flush().expect("memory takes it");
            }
        }
        db.close().expect("memory takes it");
        (fs, contents)
    })
}

fuzz_target!(|bytes: &[u8]| {
    let (fs, contents) = store();
    let fs = fs.clone_image();
    let files = fs.files();
    for edit in bytes.chunks_exact(4).take(16) {
        let (path, length) = &files[usize::from(edit[0]) % files.len()];
        let at = usize::from(u16::from_le_bytes([edit[1], edit[2]]));
        let mut data = fs.read_all(path).expect("it is there");
        if (at as u64) < *length {
            data[at] = edit[3];
            fs.write_all(path, &data).expect("memory takes it");
        }
    }
    let Ok(db) = Db::open_with("/store", options(), env(&fs, true)) else { return };
    let Ok(range) = db.default_keyspace().range::<&[u8]>(..) else { return };
    for record in range {
        let Ok((key, value)) = record else { return };
        // Damage of the last, unsealed bytes of a log may end the history early; no value may be one that was never written.
        assert!(contents.contains_key(&key[..]), "a key that nobody wrote");
        assert!(value.starts_with(b"value "), "a value that nobody wrote");
    }
});
