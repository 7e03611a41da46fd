//! Those who wait for background work when it panics, and listeners that close the store.

#![allow(clippy::disallowed_methods, reason = "tests of the real thing use real threads")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use siltstone::io::IoClass;
use siltstone::io::sim::{CallKind, Errno, Fault, SimClock, SimFs};
use siltstone::schedule::WriteControl;
use siltstone::{Cancel, Db, Env, Error, ErrorKind, Event, EventListener, Options};

use crate::db::{key, simulated, tiny};

/// What `call` returns, which must not wait for ever.
fn ends<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (told, ended) = mpsc::channel();
    std::thread::spawn(move || told.send(call()));
    ended.recv_timeout(Duration::from_secs(60)).expect("it waits for ever")
}

/// Why writes and flushes fail in the end.
fn first_failure(db: &Db) -> Error {
    let keyspace = db.default_keyspace();
    let mut n = 0..;
    // Now and then more than the memory for memtables takes, so that the writer waits.
    let written = n.find_map(|n| {
        let many = 1..if n % 10 == 9 { 2000 } else { 1 };
        let mut puts = std::iter::once(key(n % 10)).chain(many.map(key)).map(|key| keyspace.put(key, "value"));
        puts.find(Result::is_err).unwrap_or(Ok(())).and_then(|()| keyspace.flush()).err()
    });
    written.expect("it is asked again and again")
}

/// Panics once, when a flush has ended.
#[derive(Default)]
struct Panics(AtomicBool);

impl EventListener for Panics {
    fn event(&self, event: &Event) {
        let is_first = matches!(event, Event::FlushEnd { .. }) && !self.0.swap(true, Ordering::Relaxed);
        assert!(!is_first, "a bug of the listener");
    }
}

/// A panic ended the thread of the lane without a word: the next flush, and writers that had to wait for it, hung.
#[test]
fn a_panic_in_the_background_fails_those_who_wait() {
    let folder = tempfile::tempdir().unwrap();
    let env = Env { listener: Some(Arc::new(Panics::default())), ..Env::default() };
    let db = Db::open_with(folder.path(), tiny(), env).unwrap();
    let (writer, waiter) = (db.clone(), db.clone());
    let error = ends(move || first_failure(&writer));
    assert_eq!(error.kind(), ErrorKind::Poisoned);
    assert!(error.to_string().contains("panicked") && error.to_string().contains("a bug of the listener"), "{error}");
    assert_eq!(ends(move || waiter.wait_idle()).unwrap_err().kind(), ErrorKind::Poisoned);
    // Reads go on, and nothing is lost.
    assert_eq!(db.default_keyspace().get(key(0)).unwrap().as_deref(), Some(&b"value"[..]));
    ends(move || db.close()).unwrap();
    let db = Db::open(folder.path(), tiny()).unwrap();
    assert_eq!(db.default_keyspace().get(key(0)).unwrap().as_deref(), Some(&b"value"[..]));

    // A simulation ends with the panic, in whoever waits.
    let fs = SimFs::new(&SimClock::new(), 1);
    let env = Env { listener: Some(Arc::new(Panics::default())), ..simulated(&fs) };
    let db = Db::open_with("/panics", tiny(), env).unwrap();
    db.default_keyspace().put("key", "value").unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| db.flush())).is_err());
    assert_eq!(db.default_keyspace().put("key", "value").unwrap_err().kind(), ErrorKind::Poisoned);
}

/// A merge under way ends without a word when the store takes no more writes, and the log, which rests meanwhile, had not told that it does not: who
/// waited for the merge waited for ever.
#[test]
fn a_log_that_fails_at_rest_fails_those_who_wait() {
    let fs = SimFs::new(&SimClock::new(), 1);
    let mut options = Options { write_memory_bytes: 256 << 10, ..tiny() };
    options.log.segment_bytes = 64 << 10;
    let db = Db::open_with("/store", options, simulated(&fs)).unwrap();
    (0..8000).for_each(|n| db.default_keyspace().put(key(n % 700), "value").unwrap());
    db.flush().unwrap();
    // A merge of a minute: the store is idle for longer than the log waits for writers.
    db.set_rate_limit(500);
    fs.set_fault(Fault::nth(1, Errno::Io).of(CallKind::SyncDir).class(IoClass::Log));
    let error = db.default_keyspace().compact::<&str>(.., &Cancel::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
}

/// Closes the store at the first event that `at` names.
struct Closes {
    at: fn(&Event) -> bool,
    store: Mutex<Option<(Db, mpsc::Sender<siltstone::Result<()>>)>>,
}

impl EventListener for Closes {
    fn event(&self, event: &Event) {
        if (self.at)(event)
            && let Some((db, closed)) = self.store.lock().take()
        {
            let _ = closed.send(db.close());
        }
    }
}

/// The thread that told the listener was joined by itself.
#[test]
fn a_listener_may_close_the_store() {
    let events: [fn(&Event) -> bool; 6] = [
        |event| matches!(event, Event::FlushEnd { .. }),
        |event| matches!(event, Event::TreeChanged { job: Some(_), .. }),
        |event| matches!(event, Event::CompactionStart { .. }),
        |event| matches!(event, Event::CompactionEnd { .. }),
        |event| matches!(event, Event::Stall { .. }),
        |event| matches!(event, Event::StallEnd { .. }),
    ];
    for at in events {
        let folder = tempfile::tempdir().unwrap();
        let closes = Arc::new(Closes { at, store: Mutex::default() });
        let env = Env { listener: Some(closes.clone()), ..Env::default() };
        let mut options = tiny();
        options.keyspace.write_control = WriteControl::Stop;
        let db = Db::open_with(folder.path(), options, env).unwrap();
        let (told, closed) = mpsc::channel();
        *closes.store.lock() = Some((db.clone(), told));
        assert_eq!(ends(move || first_failure(&db)).kind(), ErrorKind::Closed);
        closed.recv_timeout(Duration::from_secs(60)).expect("close waits for ever").unwrap();
        let db = Db::open(folder.path(), tiny()).unwrap();
        assert_eq!(db.default_keyspace().get(key(0)).unwrap().as_deref(), Some(&b"value"[..]));
    }
}
