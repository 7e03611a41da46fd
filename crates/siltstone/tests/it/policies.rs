//! Policies of users' own: one that steers a store, one that breaks a law, one that is missing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use siltstone::compaction::{Action, CompactionPolicy, Law, LsmView, Plan, Reason, Strategy};
use siltstone::version::LevelId;
use siltstone::{Cancel, Db, Env, ErrorKind, Event, KeyspaceOptions, Options, Policies};

use crate::db::short_l0;
use crate::explain::{Machine, load, options};

/// Asks a preset and says so in its own words; or, `until` it has been asked so often, breaks a law.
#[derive(Clone)]
struct Mine {
    preset: Arc<Strategy>,
    asked: Arc<AtomicU64>,
    illegal_until: u64,
}

impl Mine {
    fn new(illegal_until: u64) -> Mine {
        Mine { preset: Arc::new(Strategy::parse(&short_l0()).unwrap()), asked: Arc::default(), illegal_until }
    }
}

impl CompactionPolicy for Mine {
    fn name(&self) -> &str {
        "mine"
    }

    fn pick(&self, view: &LsmView<'_>) -> Option<Plan> {
        let mut plan = self.preset.pick(view)?;
        plan.record.reason = Reason::Policy("as I like it".to_owned());
        if self.asked.fetch_add(1, Ordering::Relaxed) < self.illegal_until {
            // The newest run of L0 alone: it would pass those below it.
            plan.inputs.truncate(1);
            plan.output.level = LevelId(2);
            plan.action = Action::Move;
        }
        Some(plan)
    }

    fn run_limit(&self, view: &LsmView<'_>, level: LevelId) -> u32 {
        self.preset.run_limit(view, level)
    }
}

fn with(machine: &Machine, policy: Mine) -> Env {
    Env { policies: Policies::new().with("mine", policy), ..machine.env() }
}

fn mine() -> Options {
    let mut options = options();
    options.keyspace.strategy = "policy:mine".to_owned();
    options
}

#[test]
fn a_registered_policy_steers_a_store_and_is_asked_for_at_reopen() {
    let machine = Machine::new();
    let policy = Mine::new(0);
    let db = Db::open_with("/store", mine(), with(&machine, policy.clone())).unwrap();
    load(&db, 3000);
    let keyspace = db.default_keyspace();
    assert_eq!((keyspace.stats().strategy.as_str(), keyspace.options().strategy.as_str()), ("mine", "policy:mine"));
    assert!(policy.asked.load(Ordering::Relaxed) > 3);
    let decisions = keyspace.decisions();
    assert!(decisions.iter().any(|d| d.record.reason == Reason::Policy("as I like it".to_owned())), "{decisions:#?}");
    assert!(keyspace.pending().unwrap().rules.is_empty(), "it does not explain itself");
    keyspace.compact::<&str>(.., &Cancel::new()).unwrap();
    assert!(db.verify().unwrap().damage.is_empty());
    let decisions = keyspace.decisions();
    db.close().unwrap();

    // Without it: no writing, and the error says what to do. Reading works.
    let error = Db::open_with("/store", options(), machine.env()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(
        error.to_string().contains("\"mine\" is not registered") && error.to_string().contains("read-only"),
        "{error}"
    );
    let read_only = Env { read_only: true, ..machine.env() };
    let db = Db::open_with("/store", options(), read_only).unwrap();
    assert_eq!(db.default_keyspace().range::<&str>(..).unwrap().count(), 300);
    assert_eq!(db.default_keyspace().decisions().len(), decisions.len());
    assert!(db.default_keyspace().pending().unwrap().next.is_none());
    drop(db);

    // With it, and away from it.
    let db = Db::open_with("/store", options(), with(&machine, policy)).unwrap();
    assert_eq!(db.default_keyspace().stats().strategy, "mine");
    let unknown = KeyspaceOptions { strategy: "policy:yours".to_owned(), ..options().keyspace };
    let error = db.create_keyspace("other", unknown).err().unwrap();
    assert!(error.to_string().contains("there are mine"), "{error}");
    db.default_keyspace().set_strategy("leveling").unwrap();
    db.close().unwrap();
    assert_eq!(machine.open(&options()).default_keyspace().stats().strategy, "leveling");
}

#[test]
fn an_illegal_plan_is_refused_by_the_laws_name_and_the_store_goes_on() {
    let machine = Machine::new();
    let policy = Mine::new(u64::MAX);
    let db = Db::open_with("/store", options(), with(&machine, policy.clone())).unwrap();
    let bad = db.create_keyspace("bad", mine().keyspace).unwrap();
    // Writes go on up to the limit on runs; then they are told what is wrong instead of waiting for ever.
    let mut written = 0u64;
    let error = loop {
        match bad.put(format!("key-{:04}", written * 7919 % 300), format!("{written:040}")) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 20_000, "a limit must be met");
    };
    let runs = bad.stats().runs;
    assert!(runs >= 8, "{runs} runs");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("law age-order broken") && error.to_string().contains("limit"), "{error}");
    // Told once for each view, not in a loop.
    machine.executor.run_for(10_000_000_000);
    let told = || {
        let heard = machine.heard.0.lock();
        let refused = heard.iter().filter(|event| match event {
            Event::PlanRefused { policy, law, .. } => {
                assert_eq!((policy.as_str(), *law), ("mine", Law::AgeOrder));
                true
            }
            Event::Error { error, .. } => panic!("{error}"),
            _ => false,
        });
        refused.count() as u64
    };
    assert_eq!((told(), db.stats().refused_plans), (policy.asked.load(Ordering::Relaxed), told()));
    assert!((1..=runs + 4).contains(&told()), "{} refusals for {runs} runs", told());
    let pending = bad.pending().unwrap();
    assert!(pending.refused.unwrap().contains("age-order") && pending.next.is_none());
    // Nobody else suffers.
    load(&db, 3000);
    assert!(db.default_keyspace().stats().levels.len() > 1, "its merges go on");
    assert_eq!(bad.get("key-0000").unwrap().map(|value| value.len()), Some(40));
    // A request by hand is not the policy's plan: it works.
    bad.compact::<&str>(.., &Cancel::new()).unwrap();
    bad.put("key", "value").unwrap();
    db.close().unwrap();
}

#[test]
fn a_policy_that_comes_to_its_senses_is_heard() {
    let machine = Machine::new();
    let db = Db::open_with("/store", mine(), with(&machine, Mine::new(3))).unwrap();
    load(&db, 4000);
    assert_eq!(db.stats().refused_plans, 3);
    assert!(db.stats().compactions > 3 && db.verify().unwrap().damage.is_empty());
    // Another strategy is asked at once, though the tree is the same.
    let machine = Machine::new();
    let db = Db::open_with("/store", mine(), with(&machine, Mine::new(u64::MAX))).unwrap();
    load(&db, 600);
    assert_eq!(db.stats().compactions, 0);
    db.default_keyspace().set_strategy("one-leveling").unwrap();
    db.wait_idle().unwrap();
    assert!(db.stats().compactions > 0);
}
