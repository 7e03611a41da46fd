//! A store is opened: what is refused, what a session leaves behind, and folders that outlive a power loss.

#![allow(clippy::disallowed_methods, reason = "tests of the real thing use real files")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use siltstone::io::sim::{Profile, SimClock, SimExecutor, SimFs};
use siltstone::io::{Fs, IoClass, IoCtx, Rng};
use siltstone::{Db, Durability, Env, ErrorKind, Keyspace, Options};

use crate::db::{key, simulated, tiny};

/// Each session begins a log segment, however little it writes, and a dropped keyspace leaves what it had logged.
#[test]
fn short_sessions_do_not_fill_the_disk_with_their_logs() {
    let clock = SimClock::new();
    let fs = SimFs::new(&clock, 1);
    let mut options = Options { write_memory_bytes: 256 << 10, ..tiny() };
    options.log.segment_bytes = 32 << 10;
    let open = || {
        let executor = Arc::new(SimExecutor::new(&clock, 1));
        let env = Env { fs: Arc::new(fs.clone()), clock: clock.clone(), executor, ..Env::default() };
        Db::open_with("/store", options.clone(), env).unwrap()
    };
    let log_bytes = || {
        let files = fs.files().into_iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "log"));
        files.map(|(_, bytes)| bytes).sum::<u64>()
    };
    let mut flushes = 0;
    for n in 0..100 {
        let db = open();
        db.default_keyspace().put(key(n), "value").unwrap();
        flushes += db.stats().flushes;
        db.close().unwrap();
        // Two long segments and one that begins, and a short one.
        assert!(log_bytes() <= 4 * options.log.segment_bytes, "{} bytes after {n} sessions", log_bytes());
    }
    assert!((5..25).contains(&flushes), "{flushes} flushes");
    let db = open();
    assert_eq!(db.default_keyspace().range::<&[u8]>(..).unwrap().count(), 100);
    db.flush().unwrap();
    let dropped = db.create_keyspace("dropped", options.keyspace.clone()).unwrap();
    while log_bytes() < 8 * options.log.segment_bytes {
        dropped.put(key(1), "x".repeat(1000)).unwrap();
    }
    db.drop_keyspace("dropped").unwrap();
    db.close().unwrap();
    open().close().unwrap();
    assert!(log_bytes() <= options.log.segment_bytes, "{} bytes of a dropped keyspace", log_bytes());
}

/// What a fast writer had left to be written over, below what the manifest needs, stayed until the next flush if he was killed.
#[test]
fn what_a_killed_process_left_of_its_log_goes_when_the_store_is_opened() {
    let fs = SimFs::new(&SimClock::new(), 1);
    let logs = |fs: &SimFs| {
        let files = fs.files().into_iter().map(|(path, _)| path);
        files.filter(|path| path.extension().is_some_and(|end| end == "log")).collect::<BTreeSet<_>>()
    };
    let mut options = Options { write_memory_bytes: 256 << 10, ..tiny() };
    options.log.segment_bytes = 16 << 10;
    let db = Db::open_with("/store", options.clone(), simulated(&fs)).unwrap();
    (0..3000).for_each(|n| db.default_keyspace().put(key(n), "x".repeat(90)).unwrap());
    db.flush().unwrap();
    (0..10).for_each(|n| db.default_keyspace().put(key(n), "y").unwrap());
    let after = fs.crash(Profile::Strict, &mut Rng::new(1));
    let left = logs(&after);
    let db = Db::open_with("/store", options, simulated(&after)).unwrap();
    assert_eq!(db.default_keyspace().get(key(9)).unwrap().as_deref(), Some(&b"x".repeat(90)[..]));
    db.wait_idle().unwrap();
    let kept: Vec<_> = logs(&after).intersection(&left).cloned().collect();
    assert!(kept.len() == 1 && left.len() > 4, "{kept:?} of {left:?}, the last one has the records");
}

/// Counting on from such a number overflowed: the next segment had the number 0, which the session after did not read.
#[test]
fn numbers_that_cannot_be_counted_on_from_are_not_ours() {
    let fs = SimFs::new(&SimClock::new(), 1);
    let open = |fs: &SimFs| Db::open_with("/store", tiny(), simulated(fs)).unwrap();
    open(&fs).close().unwrap();
    for name in ["{}.log", "{}.log.tmp", "{}.sst", "MANIFEST-{}"] {
        fs.write_all(Path::new("/store").join(name.replace("{}", &u64::MAX.to_string())), b"").unwrap();
    }
    let db = open(&fs);
    db.default_keyspace().put_with("key", "value", Durability::Sync).unwrap();
    let db = open(&fs.crash(Profile::Strict, &mut Rng::new(1)));
    assert_eq!(db.default_keyspace().get("key").unwrap().as_deref(), Some(&b"value"[..]));
}

/// In a container of 384 MiB three memtables of 64 MiB and a log as long were all the memory that there was: the system wrote the log out just before
/// it was removed.
#[test]
fn where_memory_is_short_memtables_and_log_segments_are_small() {
    // Memtables that are set aside after writes and after the log was read again, and the longest log segment.
    let filled = |memory: Option<u64>| {
        let fs = SimFs::new(&SimClock::new(), 1);
        fs.set_memory(memory);
        let open = || Db::open_with("/store", Options::default(), simulated(&fs)).unwrap();
        let set_aside = |db: &Db| db.stats().keyspaces.iter().map(|keyspace| keyspace.immutables).sum::<u64>();
        let db = open();
        let other = db.create_keyspace("other", Options::default().keyspace).unwrap();
        let fill = |keyspace: &Keyspace| (0..10 << 10).for_each(|n| keyspace.put(key(n), "x".repeat(1000)).unwrap());
        fill(&db.default_keyspace());
        fill(&other);
        let logs = fs.files().into_iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "log"));
        let longest = logs.map(|(_, bytes)| bytes).max().unwrap();
        let before = set_aside(&db);
        db.close().unwrap();
        (before, set_aside(&open()), longest)
    };
    assert_eq!(filled(None), (0, 0, 8 << 20));
    assert_eq!(filled(Some(64 << 20)), (2, 2, 1 << 20), "memtables of 8 MiB");
}

/// Only the parent of the store's own folder was synced, and not even that one if the path was a bare name: a power loss took the folders above, and
/// with them a store of synced writes, or a checkpoint. Who made the folders may have died before it could sync them, too.
#[test]
fn a_power_loss_takes_no_folder_of_a_store() {
    for (path, is_there) in
        ["/data/app/store", "/store", "app/store", "store"].map(|path| [(path, false), (path, true)]).concat()
    {
        let fs = SimFs::new(&SimClock::new(), 1);
        let copy = format!("{path}-copies/today/store");
        for folder in [path, &copy].into_iter().filter(|_| is_there) {
            fs.create_dir_all(Path::new(folder), IoCtx::foreground(IoClass::Meta)).unwrap();
        }
        let db = Db::open_with(path, tiny(), simulated(&fs)).unwrap();
        db.default_keyspace().put_with("key", "value", Durability::Sync).unwrap();
        db.checkpoint(&copy).unwrap();
        let after = fs.crash(Profile::Strict, &mut Rng::new(1));
        for path in [path, &copy] {
            let existing = Options { create_if_missing: false, ..tiny() };
            let db = Db::open_with(path, existing, simulated(&after)).unwrap();
            assert_eq!(db.default_keyspace().get("key").unwrap().as_deref(), Some(&b"value"[..]), "{path}");
        }
    }
}

/// Every opening by clones of one `Env` drew the same numbers: two stores had one id, so that a log of one passed for the other's, and all sessions
/// one nonce, which is there to tell what earlier sessions left on the disk.
#[test]
fn an_env_that_is_used_again_gives_other_numbers() {
    let fs = SimFs::new(&SimClock::new(), 1);
    let env = simulated(&fs);
    for path in ["/a", "/a", "/b", "/b"] {
        let db = Db::open_with(path, tiny(), env.clone()).unwrap();
        db.default_keyspace().put_with("key", "value", Durability::Sync).unwrap();
        db.close().unwrap();
    }
    // docs/format/wal.md: the identity of each segment.
    let logs = fs.files().into_iter().filter(|(path, _)| path.extension().is_some_and(|end| end == "log"));
    let identities: Vec<_> = logs.map(|(path, _)| fs.read_all(&path).unwrap()[512..568].to_vec()).collect();
    assert_eq!(identities.len(), 4);
    let distinct =
        |at: std::ops::Range<usize>| identities.iter().map(|i| &i[at.clone()]).collect::<BTreeSet<_>>().len();
    assert_eq!((distinct(16..32), distinct(48..56)), (2, 4), "store ids, nonces");
}

#[test]
fn what_cannot_be_opened_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let kind = |result: siltstone::Result<Db>| result.unwrap_err().kind();
    let none = Options { create_if_missing: false, ..tiny() };
    assert_eq!(kind(Db::open(at("none"), none)), ErrorKind::NotFound);
    assert_eq!(kind(Db::open_read_only(at("none"), tiny())), ErrorKind::NotFound);
    std::fs::create_dir(at("photos")).unwrap();
    std::fs::write(at("photos").join("cat.jpg"), "meow").unwrap();
    assert_eq!(kind(Db::open(at("photos"), tiny())), ErrorKind::NotFound);
    assert_eq!(kind(Db::open(at("photos").join("cat.jpg"), tiny())), ErrorKind::NotFound);
    let wrong = Options { max_open_files: 0, ..tiny() };
    assert_eq!(kind(Db::open(at("store"), wrong)), ErrorKind::InvalidArgument);

    let db = Db::open(at("store"), tiny()).unwrap();
    assert_eq!(kind(Db::open(at("store"), tiny())), ErrorKind::Locked);
    let keyspace = db.default_keyspace();
    assert_eq!(keyspace.put(vec![0; (64 << 10) + 1], "").unwrap_err().kind(), ErrorKind::InvalidArgument);
    keyspace.put("", "").unwrap();
    keyspace.put(vec![0xff; 64 << 10], vec![7; 3 << 20]).unwrap();
    db.close().unwrap();
    let error_if_exists = Options { error_if_exists: true, ..tiny() };
    assert_eq!(kind(Db::open(at("store"), error_if_exists)), ErrorKind::AlreadyExists);
    let db = Db::open_read_only(at("store"), tiny()).unwrap();
    assert_eq!(db.default_keyspace().get("").unwrap().as_deref(), Some(&b""[..]));
    assert_eq!(db.default_keyspace().get(vec![0xff; 64 << 10]).unwrap().map(|v| v.len()), Some(3 << 20));
    assert_eq!(db.default_keyspace().put("a", "b").unwrap_err().kind(), ErrorKind::ReadOnly);
}
