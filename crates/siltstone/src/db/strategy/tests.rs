use std::sync::atomic::AtomicU32;

use parking_lot::Mutex;

use super::*;
use crate::compaction::Plan;
use crate::event::EventListener;
use crate::version::LevelId;
use crate::{Db, Env, Options};

/// Panics at the nth question of a kind.
struct Panics {
    picks_before: AtomicU32,
    limits_before: AtomicU32,
}

impl Panics {
    fn count(left: &AtomicU32, what: &str) {
        let was = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        assert!(was.is_ok(), "out of {what}");
    }
}

impl CompactionPolicy for Panics {
    fn name(&self) -> &str {
        "panics"
    }

    fn pick(&self, _: &LsmView<'_>) -> Option<Plan> {
        Panics::count(&self.picks_before, "picks");
        None
    }

    fn run_limit(&self, _: &LsmView<'_>, _: LevelId) -> u32 {
        Panics::count(&self.limits_before, "limits");
        4
    }
}

#[derive(Default)]
struct Told(Mutex<Vec<(String, String, String)>>);

impl EventListener for Told {
    fn event(&self, event: &Event) {
        if let Event::PolicyPanicked { policy, message, fallback, .. } = event {
            self.0.lock().push((policy.clone(), message.clone(), fallback.clone()));
        }
    }
}

/// A store under `strategy` into which a policy that panics is put, and what was told in the end.
fn survive(
    strategy: &str,
    previous: Option<&str>,
    picks: u32,
    limits: u32,
) -> (Db, Vec<(String, String, String)>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let told = Arc::new(Told::default());
    let mut options = Options::default();
    options.keyspace.strategy = strategy.to_owned();
    options.keyspace.memtable_bytes = 16 << 10;
    let env = Env { listener: Some(Arc::clone(&told) as Arc<dyn EventListener>), ..Env::default() };
    let db = Db::open_with(folder.path(), options, env).unwrap();
    let keyspace = db.default_keyspace();
    let policy = Arc::new(Panics { picks_before: picks.into(), limits_before: limits.into() });
    let previous = previous.map(|name| (name.to_owned(), Arc::new(Strategy::named(name).unwrap()) as _));
    let strategy = strategy.to_owned();
    keyspace.keyspace.steering.store(Arc::new(Steering {
        strategy,
        policy,
        previous,
        is_last: false,
        departure: None,
    }));
    for n in 0..3000 {
        keyspace.put(format!("{:04}", n * 7 % 3000), "v".repeat(50)).unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    assert_eq!(keyspace.range::<&str>(..).unwrap().count(), 3000);
    assert!(db.stats().compactions > 0, "the successor compacts");
    // Told by the next step of a lane.
    for _ in 0..1000 {
        if !told.0.lock().is_empty() {
            break;
        }
        db.core().wake_compactions();
        db.wait_idle().unwrap();
    }
    let told = told.0.lock().clone();
    (db, told, folder)
}

fn expect(who: &str, why: &str, fallback: &str) -> Vec<(String, String, String)> {
    vec![(who.to_owned(), why.to_owned(), fallback.to_owned())]
}

#[test]
fn a_policy_that_panics_is_followed_by_the_one_before_it() {
    let (db, told, _folder) = survive("leveling", Some("leveling"), 3, 1000);
    assert_eq!(told, expect("panics", "out of picks", "leveling"));
    assert_eq!(db.default_keyspace().stats().strategy, "leveling");
    assert_eq!(db.stats().background_errors, 0, "nothing is put off for it");
}

#[test]
fn a_policy_that_panics_first_is_followed_by_the_default() {
    let (db, told, _folder) = survive("tiering", None, 0, 1000);
    assert_eq!(told, expect("panics", "out of picks", "one-leveling"));
    // The option stands, and counts again after a reopen or a switch.
    db.default_keyspace().set_strategy("tiering").unwrap();
    assert_eq!(db.default_keyspace().stats().strategy, "tiering");
}

#[test]
fn limits_are_asked_with_the_same_care() {
    let (_db, told, _folder) = survive("tiering", None, 1000, 2);
    assert_eq!(told, expect("panics", "out of limits", "one-leveling"));
}
