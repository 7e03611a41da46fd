//! What was done is what is read; what breaks the file is told or ends it, and never hurts the store.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::*;
use crate::db::{DEFAULT_KEYSPACE, Durability};
use crate::io::sim::{CallKind, Errno, Fault, Profile, SimClock, SimExecutor, SimFs};
use crate::io::{Fs, IoClass, Rng};
use crate::num::to_u32;
use crate::version::KeyspaceId;
use crate::{Batch, Cancel, Db, Env, ErrorKind, Event, EventListener, Options};

const TRACE: &str = "/run.trace";

#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl EventListener for Heard {
    fn event(&self, event: &Event) {
        if let Event::TraceEnded { path, error } = event {
            self.0.lock().push(format!("{}: {error:?}", path.display()));
        }
    }
}

struct Machine {
    fs: SimFs,
    clock: Arc<SimClock>,
    executor: SimExecutor,
    heard: Arc<Heard>,
}

impl Machine {
    fn new(seed: u64) -> Machine {
        let clock = SimClock::new();
        let fs = SimFs::new(&clock, seed);
        Machine { fs, executor: SimExecutor::new(&clock, seed), clock, heard: Arc::default() }
    }

    fn open(&self, read_only: bool) -> Db {
        let env = Env {
            fs: Arc::new(self.fs.clone()),
            clock: self.clock.clone(),
            executor: Arc::new(self.executor.clone()),
            rng: Rng::new(1),
            listener: Some(self.heard.clone()),
            read_only,
            ..Env::default()
        };
        let mut options = Options { write_memory_bytes: 64 << 10, ..Options::default() };
        options.log.segment_bytes = 16 << 10;
        options.keyspace.memtable_bytes = 16 << 10;
        Db::open_with("/store", options, env).unwrap()
    }

    fn read(&self, path: &str) -> (Vec<Record>, Result<Option<TraceEnd>>) {
        read(&self.fs, path)
    }
}

type Result<T> = std::result::Result<T, Error>;

fn read(fs: &SimFs, path: &str) -> (Vec<Record>, Result<Option<TraceEnd>>) {
    let mut reader = match TraceReader::open(fs, Path::new(path)) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Err(error)),
    };
    let mut records = Vec::new();
    loop {
        match reader.record() {
            Ok(Some(record)) => records.push(record),
            Ok(None) => return (records, Ok(reader.end())),
            Err(error) => return (records, Err(error)),
        }
    }
}

fn ops(records: Vec<Record>) -> Vec<Op> {
    let names = |op: &Op| !matches!(op, Op::Keyspace { .. });
    records.into_iter().map(|record| record.op).filter(names).collect()
}

/// Random calls on two keyspaces; what should be recorded of them, with ranges as dropped.
fn work(db: &Db, rng: &mut Rng, calls: u32, pause: &mut dyn FnMut(u64)) -> Vec<Op> {
    let spaces = [db.keyspace("b").unwrap(), db.default_keyspace()];
    let mut model: BTreeMap<(KeyspaceId, Vec<u8>), u32> = BTreeMap::new();
    let mut done = Vec::new();
    for _ in 0..calls {
        pause(1 + rng.below(40_000_000) / (1 + rng.below(1000)));
        let space = &spaces[usize::from(rng.below(2) == 1)];
        let id = space.id();
        let key = format!("key-{:03}", rng.below(200)).into_bytes();
        let mut write = |value_len: Option<u32>, key: &[u8], id| {
            match value_len {
                Some(length) => model.insert((id, key.to_vec()), length),
                None => model.remove(&(id, key.to_vec())),
            };
            Write { keyspace: id, key: Bytes::copy_from_slice(key), value_len }
        };
        let length = u32::try_from(rng.below(90)).unwrap();
        let durability = [Durability::Buffered, Durability::Sync, Durability::None][crate::num::to_usize(rng.below(3))];
        done.push(match rng.below(9) {
            0..=2 => {
                space.put_with(&key, vec![7; crate::num::to_usize(u64::from(length))], durability).unwrap();
                Op::Write(write(Some(length), &key, id), durability)
            }
            3 => {
                space.delete_with(&key, durability).unwrap();
                Op::Write(write(None, &key, id), durability)
            }
            4 => {
                let mut batch = Batch::new();
                batch.put(space, &key, [1; 5]);
                batch.delete(&spaces[0], "gone");
                db.write(batch).unwrap();
                let writes = vec![write(Some(5), &key, id), write(None, b"gone", spaces[0].id())];
                Op::Batch(writes, Durability::Buffered)
            }
            5 | 6 => {
                space.get(&key).unwrap();
                Op::Get { keyspace: id, found: model.get(&(id, key.clone())).copied(), key: key.into() }
            }
            7 => {
                let keys = [key, b"none".to_vec()];
                space.multi_get(&keys);
                let keys = keys.map(|key| (Bytes::from(key.clone()), model.get(&(id, key)).copied()));
                Op::MultiGet { keyspace: id, keys: keys.to_vec() }
            }
            _ => {
                let all = model.range((id, key.clone())..(id, b"key-9".to_vec())).count();
                let mut range = space.range(key.clone()..b"key-9".to_vec()).unwrap();
                let (mut forward, mut backward) = (0, 0);
                while forward + backward < 6 && forward + backward < crate::num::to_u64(all) {
                    if rng.below(4) == 0 {
                        backward += u64::from(range.advance_back().unwrap());
                    } else {
                        forward += u64::from(range.advance().unwrap());
                    }
                }
                drop(range);
                let (lower, upper) = (Bound::Included(key.into()), Bound::Excluded(Bytes::from_static(b"key-9")));
                Op::Range { keyspace: id, lower, upper, forward, backward, open_ns: 0 }
            }
        });
    }
    done
}

/// Virtual time stands still while a range is read, but not on every file system call.
fn without_open(mut ops: Vec<Op>) -> Vec<Op> {
    for op in &mut ops {
        if let Op::Range { open_ns, .. } = op {
            *open_ns = 0;
        }
    }
    ops
}

#[test]
fn what_was_done_is_what_is_read() {
    for seed in 0..20 {
        let machine = Machine::new(seed);
        let db = machine.open(false);
        db.create_keyspace("b", db.default_keyspace().options()).unwrap();
        assert_eq!(db.stop_trace().unwrap_err().kind(), ErrorKind::NotFound);
        db.start_trace(TRACE, TraceOptions::default()).unwrap();
        assert!(db.is_tracing() && db.start_trace("/two", TraceOptions::default()).is_err());
        let mut rng = Rng::new(seed);
        let began_ns = crate::io::Clock::mono_ns(&*machine.clock);
        let mut done = work(&db, &mut rng, 400, &mut |ns| machine.executor.run_for(ns));
        machine.clock.advance(1);
        db.default_keyspace().flush().unwrap();
        db.flush().unwrap();
        db.default_keyspace().compact("a".."b", &Cancel::new()).unwrap();
        db.drop_keyspace("b").unwrap();
        let id = KeyspaceId(0);
        let (lower, upper) = (Bound::Included("a".into()), Bound::Excluded("b".into()));
        done.extend([
            Op::Flush { keyspace: Some(id) },
            Op::Flush { keyspace: None },
            Op::Compact { keyspace: id, lower, upper },
            Op::DropKeyspace { id: KeyspaceId(1) },
        ]);
        let summary = db.stop_trace().unwrap();
        assert_eq!((summary.operations, summary.lost), (crate::num::to_u64(done.len()) - 1, 0), "{summary:?}");
        assert!(summary.error.is_none() && !db.is_tracing());
        db.default_keyspace().put("later", "is not recorded").unwrap();
        let (records, end) = machine.read(TRACE);
        assert_eq!(end.unwrap(), Some(TraceEnd::Stopped));
        assert!(records.is_sorted_by_key(|record| record.at_ns));
        let elapsed_ns = crate::io::Clock::mono_ns(&*machine.clock) - began_ns;
        assert!(records.last().unwrap().at_ns <= elapsed_ns && records.last().unwrap().at_ns > elapsed_ns / 2);
        let named = |id, name: &str| Op::Keyspace { id: KeyspaceId(id), name: name.to_owned() };
        assert_eq!(records[0].op, named(0, DEFAULT_KEYSPACE));
        assert_eq!(records[1].op, named(1, "b"));
        let found = without_open(ops(records));
        for (n, (found, done)) in found.iter().zip(&done).enumerate() {
            assert_eq!(found, done, "operation {n} of seed {seed}");
        }
        assert_eq!(found.len(), done.len());
    }
}

/// Operations in quick succession share readings of the clock and go to the file as they are in memory: a path of its own.
#[test]
fn a_quick_load_is_recorded_whole_and_in_order() {
    let machine = Machine::new(1);
    let db = machine.open(false);
    db.start_trace(TRACE, TraceOptions::default()).unwrap();
    let keyspace = db.default_keyspace();
    let mut found = Vec::new();
    // About the borders of what has a short form, and of the pieces in which that is copied.
    let at = |n: u32, of: &[usize]| of[usize::try_from(n).unwrap() % of.len()];
    let key = |n: u32| format!("{:01$}", n % 100, at(n / 3, &[8, 7, 16, 140, 17, 32, 33, 13, 27]));
    let long = |n: u32| at(n / 20, &[300, 127, 128, 0x3fff, 0x4000]);
    for n in 0..30_000u32 {
        // Sometimes too slow for a time of one byte.
        machine.clock.advance(if n % 1000 == 0 { 1_000_000 } else { 100 });
        // Runs of equal records, and changes of each part of them.
        match n / 5 % 4 {
            1 => keyspace.delete(key(n)),
            2 => keyspace.put(key(n), vec![b'v'; long(n)]),
            3 => keyspace.put_with(key(n), "v", Durability::None),
            _ => keyspace.put(key(n), "v"),
        }
        .unwrap();
        if n % 10_000 == 9_999 {
            machine.executor.run_for(50_000_000);
            found.push(keyspace.get("00000000").unwrap().map(|value| to_u32(value.len())));
            machine.clock.advance(1);
            keyspace.put("00000001", "v").unwrap();
        }
    }
    assert_eq!(db.stop_trace().unwrap().operations, 30_006);
    let (records, end) = machine.read(TRACE);
    end.unwrap();
    let mut n = 0;
    let mut ops = ops(records).into_iter();
    while let Some(op) = ops.next() {
        let Op::Write(write, durability) = op else { panic!("{n}: {op:?}") };
        assert_eq!(write.key, key(n));
        assert_eq!(
            write.value_len,
            [Some(1), None, Some(to_u32(long(n))), Some(1)][usize::try_from(n / 5 % 4).unwrap()]
        );
        assert_eq!(durability == Durability::None, n / 5 % 4 == 3);
        if n % 10_000 == 9_999 {
            let expected = found.remove(0);
            assert!(matches!(ops.next(), Some(Op::Get { found, .. }) if found == expected));
            assert!(matches!(ops.next(), Some(Op::Write(write, _)) if write.key == "00000001"));
        }
        n += 1;
    }
    assert_eq!(n, 30_000);
}

fn small_trace() -> (Machine, Vec<Record>, Vec<u8>) {
    let machine = Machine::new(3);
    let db = machine.open(false);
    db.create_keyspace("b", db.default_keyspace().options()).unwrap();
    db.start_trace(TRACE, TraceOptions::default()).unwrap();
    // Two seconds, so a few blocks.
    work(&db, &mut Rng::new(3), 60, &mut |_| machine.executor.run_for(50_000_000));
    db.stop_trace().unwrap();
    let (records, end) = machine.read(TRACE);
    end.unwrap();
    let bytes = machine.fs.read_all(TRACE).unwrap();
    (machine, records, bytes)
}

#[test]
fn whatever_bit_is_wrong_nothing_else_is_read() {
    let (machine, records, bytes) = small_trace();
    let mut quiet = 0;
    for bit in 0..bytes.len() * 8 {
        let mut wrong = bytes.clone();
        wrong[bit / 8] ^= 1 << (bit % 8);
        machine.fs.write_all("/wrong", &wrong).unwrap();
        let (found, end) = machine.read("/wrong");
        assert!(found.len() <= records.len() && found[..] == records[..found.len()], "bit {bit}");
        match end {
            Err(error) => assert!(error.offset().is_some() || error.kind() == ErrorKind::Unsupported, "{error}"),
            Ok(Some(TraceEnd::Torn(_))) => quiet += 1,
            Ok(end) => panic!("bit {bit}: {end:?}"),
        }
    }
    // Only the last block has none behind it that would tell.
    assert!(quiet > 0 && quiet <= 8 * 48, "{quiet} flips end the trace quietly");
}

#[test]
fn a_trace_that_breaks_off_is_read_to_its_last_whole_block() {
    let (machine, records, bytes) = small_trace();
    let mut lengths = Vec::new();
    for length in 48..bytes.len() {
        for tail in [0usize, 7, 600] {
            let mut cut = bytes[..length].to_vec();
            cut.resize(length + tail, 0);
            if cut.starts_with(&bytes) {
                // Zeros that were there.
                continue;
            }
            machine.fs.write_all("/cut", &cut).unwrap();
            let (found, end) = machine.read("/cut");
            assert!(matches!(end, Ok(Some(TraceEnd::Torn(_)))), "{length} bytes and {tail} zeros: {end:?}");
            assert!(found[..] == records[..found.len()]);
            lengths.push(found.len());
        }
    }
    lengths.dedup();
    assert!(lengths.is_sorted() && lengths.len() > 2, "{lengths:?}");
    let (_, end) = read(&machine.fs, "/store/SUPERBLOCK");
    assert!(end.unwrap_err().to_string().contains("no trace"));
}

#[test]
fn a_crash_leaves_a_prefix() {
    for seed in 0..30 {
        let machine = Machine::new(seed);
        let db = machine.open(false);
        db.create_keyspace("b", db.default_keyspace().options()).unwrap();
        db.start_trace(TRACE, TraceOptions::default()).unwrap();
        let mut rng = Rng::new(seed);
        let calls = 50 + u32::try_from(rng.below(100)).unwrap();
        let done = work(&db, &mut rng, calls, &mut |ns| machine.executor.run_for(3 * ns));
        if seed % 3 == 0 {
            machine.executor.run_for(2_100_000_000);
        }
        let profile = Profile::ALL[crate::num::to_usize(seed) % Profile::ALL.len()];
        let after = machine.fs.crash(profile, &mut rng);
        let (records, end) = read(&after, TRACE);
        match end {
            Ok(end) => assert!(matches!(end, Some(TraceEnd::Torn(_)))),
            // A power loss may keep a later block and not an earlier one, which cannot be told from damage.
            Err(error) => assert!(matches!(profile, Profile::Subset | Profile::Nasty), "{profile:?}: {error}"),
        }
        let found = without_open(ops(records));
        assert!(found.len() <= done.len() && found[..] == done[..found.len()], "seed {seed}");
        if profile == Profile::Kill && seed % 3 == 0 {
            assert_eq!(found.len(), done.len(), "what is older than a second is in the file");
        }
    }
}

#[test]
fn a_full_disk_ends_the_trace_and_not_the_store() {
    let machine = Machine::new(1);
    let db = machine.open(false);
    db.start_trace(TRACE, TraceOptions::default()).unwrap();
    machine.fs.set_fault(Fault::nth(2, Errno::NoSpace).of(CallKind::Append).class(IoClass::Trace).sticky());
    let keyspace = db.default_keyspace();
    for n in 0..100u32 {
        keyspace.put(n.to_le_bytes(), "v").unwrap();
        machine.executor.run_for(50_000_000);
    }
    assert!(!db.is_tracing());
    assert_eq!(machine.heard.0.lock().len(), 1, "{:?}", machine.heard.0.lock());
    let summary = db.stop_trace().unwrap();
    assert_eq!(summary.error.unwrap().kind(), ErrorKind::NoSpace);
    let (records, end) = machine.read(TRACE);
    assert!(end.is_ok() && !records.is_empty() && records.len() < 100);
    // And another one may begin.
    machine.fs.clear_faults();
    let limited = TraceOptions { max_bytes: 2000, ..TraceOptions::default() };
    db.start_trace("/limited", limited).unwrap();
    for n in 0..400u32 {
        keyspace.put(n.to_le_bytes(), "v").unwrap();
        machine.executor.run_for(50_000_000);
    }
    let summary = db.stop_trace().unwrap();
    assert!(summary.is_full && summary.bytes < 3000 && summary.operations > 50, "{summary:?}");
    assert_eq!(machine.read("/limited").1.unwrap(), Some(TraceEnd::Stopped));
}

#[test]
fn hashed_keys_keep_what_they_should() {
    let machine = Machine::new(1);
    let db = machine.open(false);
    let hash = KeyHash { secret: *b"sixteen letters!", keep_prefix: 3 };
    let options = TraceOptions { hash_keys: Some(hash.clone()), ..TraceOptions::default() };
    db.start_trace(TRACE, options).unwrap();
    let keyspace = db.default_keyspace();
    let keys = ["abc-first and long enough to need two hashes", "abc-2", "ab", "abd-2", "abc-2"];
    keys.iter().for_each(|key| keyspace.put(key, "v").unwrap());
    db.stop_trace().unwrap();
    let (records, end) = machine.read(TRACE);
    end.unwrap();
    let reader = TraceReader::open(&machine.fs, Path::new(TRACE)).unwrap();
    assert_eq!(reader.header().hashed_beyond, Some(3));
    let hashed: Vec<Bytes> = ops(records)
        .into_iter()
        .map(|op| match op {
            Op::Write(write, _) => write.key,
            op => panic!("{op:?}"),
        })
        .collect();
    for (key, hashed) in keys.iter().zip(&hashed) {
        assert!(hashed.len() == key.len() && hashed[..key.len().min(3)] == key.as_bytes()[..key.len().min(3)]);
        assert_eq!((*hashed == key.as_bytes()), key.len() <= 3, "{key}");
        assert_eq!(*hashed, hash.hash(key.as_bytes()));
    }
    assert!(hashed[1] == hashed[4] && hashed[1][3..] != hashed[3][3..]);
    let other = KeyHash { secret: *b"another sixteen!", keep_prefix: 3 };
    assert_ne!(other.hash(b"abc-2"), hashed[1]);
}

#[test]
fn a_request_is_honoured_by_each_opening_that_does_something() {
    let machine = Machine::new(1);
    machine.open(false).close().unwrap();
    let store = Path::new("/store");
    let hash_keys = Some(KeyHash { secret: [0xab; 16], keep_prefix: 2 });
    let request = TraceRequest { path: "/asked".into(), options: TraceOptions { hash_keys, max_bytes: 1 << 20 } };
    request.leave(&machine.fs, store).unwrap();
    assert_eq!(TraceRequest::find(&machine.fs, store).unwrap(), Some(request));
    for n in 0..3 {
        let db = machine.open(false);
        assert!(db.is_tracing());
        // The second one does nothing.
        if n != 1 {
            db.default_keyspace().put("key", vec![0; n]).unwrap();
        }
        db.close().unwrap();
    }
    let reader = machine.open(true);
    reader.default_keyspace().get("key").unwrap();
    reader.close().unwrap();
    for (path, value) in [("/asked", 0), ("/asked.2", 2)] {
        let (records, end) = machine.read(path);
        assert_eq!(end.unwrap(), Some(TraceEnd::Stopped));
        assert!(matches!(&ops(records)[..], [Op::Write(write, _)] if write.value_len == Some(value)), "{path}");
    }
    assert!(matches!(&ops(machine.read("/asked.3").0)[..], [Op::Get { found: Some(2), .. }]));
    assert!(!machine.fs.exists(Path::new("/asked.4"), crate::io::IoCtx::foreground(IoClass::Meta)).unwrap());
    assert!(
        TraceRequest::withdraw(&machine.fs, store).unwrap() && !TraceRequest::withdraw(&machine.fs, store).unwrap()
    );
    assert!(!machine.open(false).is_tracing());
    // One that makes no sense is told of, and hurts nobody.
    machine.fs.write_all("/store/TRACE-REQUEST", b"path = 7").unwrap();
    let db = machine.open(false);
    assert!(!db.is_tracing() && machine.heard.0.lock()[0].contains("makes no sense"));
}
