//! Calls that another one comes in the middle of, and work of one keyspace that fails while another's goes on.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use parking_lot::Mutex;

use siltstone::io::sim::{SimClock, SimExecutor, SimFs};
use siltstone::io::{
    Clock, CreateOptions, DirEntry, Executor, FileLock, Fs, IoClass, IoCtx, Lane, LaneId, LogSegment, OpenOptions,
    ReadableFile, RealFs, SlotFile, Workers, WritableFile,
};
use siltstone::{Db, Durability, Env, ErrorKind, Keyspace, KeyspaceOptions, Options};

use crate::explain::{Machine, options};

/// What is done once, when a folder is asked for or a table made.
type Hook = Mutex<Option<Box<dyn FnOnce() + Send>>>;

/// Real files, and a moment in which something else happens.
#[derive(Default)]
struct Hooked {
    folder: PathBuf,
    on_exists: Hook,
    on_create: Hook,
}

impl Hooked {
    fn new(folder: &Path) -> Arc<Hooked> {
        Arc::new(Hooked { folder: folder.to_path_buf(), ..Hooked::default() })
    }

    fn fire(&self, hook: &Hook) {
        let hook = hook.lock().take();
        hook.into_iter().for_each(|hook| hook());
    }
}

impl Fs for Hooked {
    fn create_dir_all(&self, dir: &Path, ctx: IoCtx) -> io::Result<()> {
        RealFs.create_dir_all(dir, ctx)
    }
    fn list(&self, dir: &Path, ctx: IoCtx) -> io::Result<Vec<DirEntry>> {
        RealFs.list(dir, ctx)
    }
    fn exists(&self, path: &Path, ctx: IoCtx) -> io::Result<bool> {
        let exists = RealFs.exists(path, ctx);
        if path == self.folder {
            self.fire(&self.on_exists);
        }
        exists
    }
    fn create(&self, path: &Path, options: CreateOptions, ctx: IoCtx) -> io::Result<Box<dyn WritableFile>> {
        if path.extension().is_some_and(|ending| ending == "sst") {
            self.fire(&self.on_create);
        }
        RealFs.create(path, options, ctx)
    }
    fn create_over(&self, old: &Path, path: &Path, ctx: IoCtx) -> io::Result<Box<dyn WritableFile>> {
        RealFs.create_over(old, path, ctx)
    }
    fn create_log(&self, path: &Path, bytes: u64, header: &[u8], ctx: IoCtx) -> io::Result<LogSegment> {
        RealFs.create_log(path, bytes, header, ctx)
    }
    fn create_log_over(
        &self,
        old: &Path,
        path: &Path,
        bytes: u64,
        header: &[u8],
        ctx: IoCtx,
    ) -> io::Result<LogSegment> {
        RealFs.create_log_over(old, path, bytes, header, ctx)
    }
    fn sync_file(&self, path: &Path, ctx: IoCtx) -> io::Result<()> {
        RealFs.sync_file(path, ctx)
    }
    fn open(&self, path: &Path, options: OpenOptions, ctx: IoCtx) -> io::Result<Arc<dyn ReadableFile>> {
        RealFs.open(path, options, ctx)
    }
    fn open_slots(
        &self,
        path: &Path,
        slots: u32,
        slot_bytes: u32,
        create: bool,
        ctx: IoCtx,
    ) -> io::Result<Box<dyn SlotFile>> {
        RealFs.open_slots(path, slots, slot_bytes, create, ctx)
    }
    fn rename(&self, from: &Path, to: &Path, ctx: IoCtx) -> io::Result<()> {
        RealFs.rename(from, to, ctx)
    }
    fn remove_file(&self, path: &Path, ctx: IoCtx) -> io::Result<()> {
        RealFs.remove_file(path, ctx)
    }
    fn remove_dir(&self, dir: &Path, ctx: IoCtx) -> io::Result<()> {
        RealFs.remove_dir(dir, ctx)
    }
    fn hard_link(&self, from: &Path, to: &Path, ctx: IoCtx) -> io::Result<()> {
        RealFs.hard_link(from, to, ctx)
    }
    fn sync_dir(&self, dir: &Path, ctx: IoCtx) -> io::Result<()> {
        RealFs.sync_dir(dir, ctx)
    }
    fn lock(&self, path: &Path, ctx: IoCtx) -> io::Result<Box<dyn FileLock>> {
        RealFs.lock(path, ctx)
    }
    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        RealFs.free_bytes(dir)
    }
}

/// A store in `folder`, where a checkpoint into `folder/copy` can be met on its way.
fn hooked(folder: &Path) -> (Db, Arc<Hooked>, PathBuf) {
    let copy = folder.join("copy");
    let fs = Hooked::new(&copy);
    let env = Env { fs: Arc::clone(&fs) as Arc<dyn Fs>, ..Env::default() };
    (Db::open_with(folder.join("store"), Options::default(), env).unwrap(), fs, copy)
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the second checkpoint is called inside the first, and may outlast it")]
fn of_two_checkpoints_into_one_folder_the_second_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (db, fs, copy) = hooked(folder.path());
    db.default_keyspace().put("key", "value").unwrap();
    let (tell, told) = mpsc::channel();
    let (other, into) = (db.clone(), copy.clone());
    *fs.on_exists.lock() = Some(Box::new(move || {
        let (tell_early, early) = mpsc::channel();
        std::thread::spawn(move || {
            let made = other.checkpoint(&into);
            let _ = tell_early.send(());
            tell.send(made).unwrap();
        });
        // It goes on at once, or waits for the first to end.
        let _ = early.recv_timeout(Duration::from_millis(300));
    }));
    let made = [db.checkpoint(&copy), told.recv().unwrap()];
    let refused = made.iter().filter_map(|made| made.as_ref().err()).map(|error| error.kind());
    assert_eq!(refused.collect::<Vec<_>>(), [ErrorKind::AlreadyExists], "{made:?}");
    let copied = Db::open(&copy, Options { create_if_missing: false, ..Options::default() }).unwrap();
    assert_eq!(copied.default_keyspace().get("key").unwrap().as_deref(), Some(&b"value"[..]));
}

/// The second saw the tables and the log of the first, and no superblock, since it had looked for that before: damage.
#[test]
fn of_two_that_create_a_store_at_once_the_second_finds_it_locked() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let fs = Hooked::new(&store);
    let first = Arc::new(Mutex::new(None));
    let (of_hook, path) = (Arc::clone(&first), store.clone());
    *fs.on_exists.lock() = Some(Box::new(move || {
        let db = Db::open(path, Options::default()).unwrap();
        db.default_keyspace().put("key", "value").unwrap();
        *of_hook.lock() = Some(db);
    }));
    RealFs.create_dir_all(&store, IoCtx::foreground(IoClass::Meta)).unwrap();
    let second = Db::open_with(&store, Options::default(), Env { fs, ..Env::default() });
    assert_eq!(second.unwrap_err().kind(), ErrorKind::Locked);
    first.lock().take().unwrap().close().unwrap();
}

/// What is ingested or dropped takes effect without a flush, and flushes wait for the checkpoint: with it the copy would lack what was before.
#[test]
#[expect(clippy::disallowed_methods, reason = "the ingest is called in a step of the flush, and may outlast it")]
fn a_checkpoint_holds_nothing_without_what_came_before_it() {
    for drops in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (db, fs, copy) = hooked(folder.path());
        let kept = db.default_keyspace();
        let other = db.create_keyspace("other", KeyspaceOptions::default()).unwrap();
        other.put("old", "1").unwrap();
        let (tell, told) = mpsc::channel();
        let meanwhile = (db.clone(), kept.clone(), other.clone());
        // As the first table of the checkpoint is flushed.
        *fs.on_create.lock() = Some(Box::new(move || {
            let (db, kept, other) = meanwhile;
            kept.put("first", "1").unwrap();
            if drops {
                db.drop_keyspace("other").unwrap();
                return tell.send(Ok(0)).unwrap();
            }
            let (tell_early, early) = mpsc::channel();
            std::thread::spawn(move || {
                let ingested = other.ingest([("second", "2")]);
                let _ = tell_early.send(());
                tell.send(ingested).unwrap();
            });
            // It takes effect at once, or waits for the checkpoint.
            let _ = early.recv_timeout(Duration::from_millis(300));
        }));
        db.checkpoint(&copy).unwrap();
        told.recv().unwrap().unwrap();
        let copied = Db::open(&copy, Options::default()).unwrap();
        let first = copied.default_keyspace().get("first").unwrap();
        let second = copied.keyspace("other").map(|other| other.get("second").unwrap());
        let is_before = matches!(second, Ok(None));
        assert!(first.is_some() || is_before, "drops {drops}: {first:?} {second:?}");
    }
}

/// A stream may take its time, and the store be closed and opened again before it ends.
#[test]
fn an_ingest_that_outlives_its_store_touches_nothing() {
    let machine = Machine::new();
    let db = machine.open(&options());
    let mut again = None;
    let mut records = Some(("k", "v")).into_iter();
    let stream = std::iter::from_fn(|| {
        let record = records.next()?;
        db.close().unwrap();
        let new = machine.open(&options());
        new.default_keyspace().put_with("live", "1", Durability::Sync).unwrap();
        new.flush().unwrap();
        again = Some(new);
        Some(record)
    });
    let error = db.default_keyspace().ingest(stream).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    let new = again.unwrap();
    let tables =
        |fs: &SimFs| fs.files().iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "sst")).count();
    assert_eq!(tables(&machine.fs), 1);
    new.close().unwrap();
    let last = machine.open(&options());
    assert_eq!(last.default_keyspace().get("live").unwrap().as_deref(), Some(&b"1"[..]));
}

/// Says when lanes have done what they are waited for.
type Until = Arc<Mutex<Option<Box<dyn FnMut() -> bool + Send>>>>;

/// An executor whose callers are slow to go on: when their wait is over the lanes do more before they look again.
struct Slow {
    executor: SimExecutor,
    until: Until,
}

struct SlowWorkers {
    workers: Box<dyn Workers>,
    executor: SimExecutor,
    until: Until,
}

impl Executor for Slow {
    fn start(&self, lanes: Vec<Lane>) -> siltstone::Result<Box<dyn Workers>> {
        let workers = self.executor.start(lanes)?;
        Ok(Box::new(SlowWorkers { workers, executor: self.executor.clone(), until: Arc::clone(&self.until) }))
    }
}

impl Workers for SlowWorkers {
    fn wake(&self, lane: LaneId) {
        self.workers.wake(lane);
    }
    fn notify(&self) {
        self.workers.notify();
    }
    fn wait(&self, done: &mut dyn FnMut() -> bool) -> siltstone::Result<()> {
        self.workers.wait(done)?;
        let until = self.until.lock().take();
        if let Some(mut until) = until {
            while !until() {
                self.executor.run_for(1_000_000);
            }
        }
        Ok(())
    }
    fn sleep(&self, time: Duration) {
        self.workers.sleep(time);
    }
    fn stop(&self) {
        self.workers.stop();
    }
}

#[test]
fn a_trouble_that_ends_while_it_is_told_is_no_success() {
    let clock = SimClock::new();
    let fs = SimFs::new(&clock, 1);
    let executor = SimExecutor::new(&clock, 1);
    let until = Until::default();
    let slow = Slow { executor: executor.clone(), until: Arc::clone(&until) };
    let env = |executor: Arc<dyn Executor>| Env {
        fs: Arc::new(fs.clone()) as Arc<dyn Fs>,
        clock: Arc::<SimClock>::clone(&clock),
        executor,
        ..Env::default()
    };
    let db = Db::open_with("/store", options(), env(Arc::new(slow))).unwrap();
    let other = db.create_keyspace("other", options().keyspace).unwrap();
    db.default_keyspace().put("key", "1").unwrap();
    other.put("key", "1").unwrap();
    executor.run_until_idle();
    // The first table cannot be made, once; then one keyspace is flushed, and the other is not.
    fs.set_capacity(Some(fs.used_bytes()));
    let (disk, store) = (fs.clone(), db.clone());
    *until.lock() = Some(Box::new(move || {
        disk.set_capacity(None);
        store.stats().flushes > 0
    }));
    db.checkpoint("/copy").unwrap();
    let copied = Db::open_with("/copy", options(), env(Arc::new(SimExecutor::new(&clock, 2)))).unwrap();
    for keyspace in [copied.default_keyspace(), copied.keyspace("other").unwrap()] {
        assert_eq!(keyspace.get("key").unwrap().as_deref(), Some(&b"1"[..]), "{}", keyspace.name());
    }
}

/// A store, and a keyspace of it whose first table is damaged and whose merges fail.
fn damaged(machine: &Machine) -> (Db, Keyspace) {
    let db = machine.open(&options());
    let bad = db.create_keyspace("bad", options().keyspace).unwrap();
    bad.put("key", "x".repeat(2000)).unwrap();
    bad.flush().unwrap();
    machine.fs.flip_bit("/store/000001.sst", 800).unwrap();
    while db.stats().background_errors == 0 {
        bad.put("key", "y").unwrap();
        bad.flush().unwrap();
        machine.executor.run_for(1_000_000);
    }
    (db, bad)
}

/// Merges of one keyspace fail, again and again. Flushes do not, nor do writers who wait for them, nor the other keyspace's merges.
#[test]
fn what_cannot_be_merged_hinders_no_other_keyspace() {
    let machine = Machine::new();
    let (db, bad) = damaged(&machine);
    let good = db.default_keyspace();
    for n in 0..3000 {
        good.put(format!("key-{n:04}"), format!("{n:040}")).unwrap();
        assert!(n % 500 > 0 || db.checkpoint(format!("/copy-{n}")).is_ok());
    }
    assert!(good.stats().stalls > 0 && good.stats().levels.len() > 1, "{:?}", good.stats());
    good.flush().unwrap();
    let error = bad.compact::<&str>(.., &siltstone::Cancel::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(db.stats().background_errors > 1, "it is tried again");
}

/// A merge that has failed often is tried again in half a minute. Those of another keyspace begin at once, and end.
#[test]
fn what_is_put_off_in_one_keyspace_is_not_in_another() {
    let machine = Machine::new();
    let (db, _bad) = damaged(&machine);
    // The waits so far were 41 s and 30 s together.
    machine.executor.run_for(75_000_000_000);
    let (failed, began) = (db.stats().background_errors, machine.clock.mono_ns());
    let good = db.default_keyspace();
    for n in 0..3000 {
        good.put(format!("key-{n:04}"), format!("{n:040}")).unwrap();
    }
    good.compact::<&str>(.., &siltstone::Cancel::new()).unwrap();
    let took_s = (machine.clock.mono_ns() - began) / 1_000_000_000;
    assert!(took_s < 3, "{took_s}");
    machine.executor.run_for(100_000_000_000);
    let again = db.stats().background_errors - failed;
    assert!((3..=4).contains(&again), "{again} times in 100 s");
}

/// Flushes fail, and memtables that wait for them are as many as there may be runs: no merge will change that.
#[test]
fn a_writer_at_the_limit_of_runs_is_told_of_a_full_disk() {
    let machine = Machine::new();
    let mut options = options();
    options.write_memory_bytes = 1 << 20;
    options.keyspace.strategy = "leveling".to_owned();
    options.keyspace.write_control = siltstone::schedule::WriteControl::Stop;
    let db = machine.open(&options);
    db.default_keyspace().put("key", "value").unwrap();
    machine.executor.run_until_idle();
    machine.fs.set_capacity(Some(machine.fs.used_bytes()));
    let error = (0..20_000)
        .find_map(|n| db.default_keyspace().put_with(format!("key-{n:05}"), "x".repeat(100), Durability::None).err());
    assert_eq!(error.unwrap().kind(), ErrorKind::NoSpace);
    assert!(db.stats().memtable_bytes < options.write_memory_bytes / 2, "{:?}", db.stats());
    machine.fs.set_capacity(None);
    machine.executor.run_for(60_000_000_000);
    db.default_keyspace().put("key", "value").unwrap();
}

/// Nothing will be flushed or merged in a store that is opened to be read.
#[test]
fn a_store_opened_to_be_read_keeps_nobody_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path().join("store"), options()).unwrap();
    db.default_keyspace().put("key", "value").unwrap();
    db.close().unwrap();
    let db = Db::open_read_only(folder.path().join("store"), options()).unwrap();
    let keyspace = db.default_keyspace();
    let refused = [
        db.flush(),
        keyspace.flush(),
        keyspace.compact::<&str>(.., &siltstone::Cancel::new()),
        db.checkpoint(folder.path().join("copy")),
    ];
    for refused in refused {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ReadOnly);
    }
    assert!(!RealFs.exists(&folder.path().join("copy"), IoCtx::foreground(IoClass::Meta)).unwrap());
    db.wait_idle().unwrap();
}
