//! Power cut at every file operation (R2), and again at every file operation of the recovery (R3).
//!
//! A workload runs once with the op log on. Then each prefix of the log, under each loss profile, is a disk that a crash may
//! leave: the store must open on it, be in a state that the moment allows, take writes, and keep them over another end. Short
//! workloads are enumerated exhaustively (all sequences of a small alphabet, CrashMonkey's lesson: three operations on a fresh
//! store find most crash bugs); longer ones are scripted or drawn.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use siltstone::Durability;
use siltstone::io::sim::{CrashImages, Profile, SimFs};
use siltstone::options::{Compression, LogOptions, MemtableKind};
use siltstone::{Db, KeyspaceOptions, Options};

use super::Budget;
use crate::config::{Config, released_progressively, strategies};
use crate::counters::{Counters, Rare};
use crate::model::{Model, Pos};
use crate::ops::{Ack, Acks, Generator, Op, Step, Value, Write, number};
use crate::pool::{Pool, Report};
use crate::store::{ByName, Check, Expect, Machine, Recovered, Violation, broken, check_recovered, read_all};
use crate::world::{Mark, World};

/// The workloads that are drawn from seeds.
const DRAWN: u64 = 60;
/// One in so many first crashes is crashed again.
const FIRST_CRASHES: u64 = 12;
/// The operations of a drawn workload.
const DRAWN_OPS: usize = 45;

/// One workload.
pub struct Workload {
    /// What it is, for messages.
    pub name: String,
    /// Its world.
    pub config: Config,
    /// What is done.
    pub steps: Vec<Step>,
}

/// The options of enumerated and scripted workloads: `n` varies what does not change the story.
pub fn small_config(n: u64) -> Config {
    let strategies = strategies();
    let pick = |n: u64, of: usize| usize::try_from(n).unwrap_or(0) % of;
    let keyspace = KeyspaceOptions {
        memtable_bytes: 1024,
        memtable: if n % 3 == 1 { MemtableKind::SortedVector } else { MemtableKind::Tree },
        strategy: {
            let name = &strategies[pick(n, strategies.len())];
            if n.is_multiple_of(3) { released_progressively(name) } else { name.clone() }
        },
        size_ratio: 2,
        level1_bytes: 0,
        file_bytes: 1024,
        block_bytes: 128,
        filter_bits_per_key: 10.0,
        compression: vec![[Compression::None, Compression::Lz4, Compression::Zstd][pick(n / 4, 3)]],
        max_runs: 0,
        ..KeyspaceOptions::default()
    };
    let options = Options {
        write_memory_bytes: 16 << 10,
        cache_bytes: 8192,
        max_open_files: 16,
        compaction_threads: 1 + number(n / 2 % 2),
        log: LogOptions { segment_bytes: 8192, max_bytes: 16_384 },
        keyspace,
        ..Options::default()
    };
    let keys = ["", "a", "b", "c", "d", "e", "f", "g"].map(|key| key.as_bytes().to_vec()).to_vec();
    Config { seed: n, options, keys, acks: Acks::Logged, may_lose: false, value_limit: 300, steps_between: 4 }
}

fn put(keyspace: u8, key: u32, id: u64, len: u32, ack: Ack) -> Op {
    Op::Put { keyspace, key, value: Value { id, len }, ack }
}

/// The alphabet of the enumerated workloads; `at` makes values unique.
fn letter(n: u64, at: u64) -> Op {
    let id = 100 + at * 20;
    match n {
        0 => put(0, 1, id, 40, Ack::Buffered),
        1 => put(0, 1, id, 40, Ack::Sync),
        2 => Op::Delete { keyspace: 0, key: 1, ack: Ack::Sync },
        3 => Op::Batch {
            writes: (0..4)
                .map(|i| Write {
                    keyspace: u8::try_from(i % 2).unwrap_or(0),
                    key: i,
                    value: Some(Value { id: id + u64::from(i), len: 400 }),
                })
                .collect(),
            ack: Ack::Sync,
        },
        4 => Op::Flush(None),
        5 => Op::Compact { keyspace: 0, from: None, to: None, cancelled: false },
        6 => Op::Sync,
        7 => Op::Reopen { seed: at },
        8 => Op::Ingest { keyspace: 0, first: 1, step: 2, count: 3, value: Value { id, len: 30 } },
        9 => Op::CreateKeyspace { name: 1, seed: at },
        10 => Op::DropKeyspace { keyspace: 1 },
        11 => Op::SetStrategy { keyspace: 0, strategy: u8::try_from(at).unwrap_or(0), back: false },
        // A record that needs most of a segment: the log rolls.
        _ => put(1, 2, id, 5000, Ack::Buffered),
    }
}

const LETTERS: u64 = 13;

/// The enumerated workload with this number: all of one letter, then all of two, of three.
fn enumerated(n: u64) -> Option<Workload> {
    let (mut n, mut len, mut count) = (n, 1u32, LETTERS);
    while n >= count {
        n -= count;
        len += 1;
        count *= LETTERS;
    }
    if len > 3 {
        return None;
    }
    let mut rest = n;
    let mut name = String::from("ace");
    let mut steps = Vec::new();
    // Something to overwrite and to delete, partly in a file.
    if n % 2 == 1 {
        steps.push(Step::quiet(put(0, 1, 1, 20, Ack::Sync), 1));
        steps.push(Step::quiet(Op::Flush(None), 2));
        name += "+";
    }
    for at in 0..u64::from(len) {
        let op = letter(rest % LETTERS, at);
        rest /= LETTERS;
        name += "-";
        name += op.name();
        steps.push(Step { op, lane_steps: number(at * 3), seed: at });
    }
    Some(Workload { name, config: small_config(n), steps })
}

/// Longer stories, each about one thing that has gone wrong in some store.
fn scripted(n: u64) -> Option<Workload> {
    let mut steps: Vec<Step> = Vec::new();
    let mut id = 1;
    let mut add = |op: Op, lane_steps: u32| {
        id += 1;
        steps.push(Step { op, lane_steps, seed: id });
    };
    let name = match n % 8 {
        0 => {
            // Two logs: the older is not synced when the newer is.
            for i in 0..8 {
                add(put(0, i, 100 + u64::from(i), 2500, Ack::Buffered), 1);
            }
            add(put(0, 1, 200, 10, Ack::Sync), 5);
            "two logs, sync of the second"
        }
        1 => {
            for i in 0..24 {
                add(put(0, i % 8, 100 + u64::from(i), 220, Ack::Buffered), 6);
            }
            add(Op::WaitIdle, 0);
            "flushes and merges"
        }
        2 => {
            for i in 0..6u8 {
                add(Op::CreateKeyspace { name: i % 3, seed: u64::from(i) }, 1);
                add(put(1, u32::from(i), 100 + u64::from(i), 300, Ack::Sync), 2);
                if i % 2 == 1 {
                    add(Op::Flush(None), 2);
                    add(Op::DropKeyspace { keyspace: 1 }, 3);
                }
            }
            "keyspaces come and go"
        }
        3 => {
            for i in 0..5u64 {
                add(put(0, number(i), 100 + i, 600, Ack::Buffered), 1);
                add(Op::Reopen { seed: i }, 2);
            }
            "reopened again and again"
        }
        4 => {
            for i in 0..10u32 {
                add(put(0, i % 8, 100 + u64::from(i), 150, Ack::Sync), 1);
                add(Op::Delete { keyspace: 0, key: (i + 3) % 8, ack: Ack::Buffered }, 1);
                if i % 3 == 2 {
                    add(Op::Flush(None), 3);
                }
            }
            add(Op::Compact { keyspace: 0, from: None, to: None, cancelled: false }, 4);
            "deletes down to the last level"
        }
        5 => {
            for i in 0..4u64 {
                add(put(0, number(i), 100 + i, 300, Ack::Buffered), 0);
                add(
                    Op::Ingest {
                        keyspace: 0,
                        first: number(i),
                        step: 1,
                        count: 5,
                        value: Value { id: 200 + i * 10, len: 80 },
                    },
                    3,
                );
            }
            add(Op::Checkpoint, 2);
            add(put(0, 1, 300, 30, Ack::Sync), 1);
            "ingests and a checkpoint"
        }
        6 => {
            for i in 0..6u64 {
                let writes = (0..8)
                    .map(|k| Write {
                        keyspace: u8::try_from(k % 3).unwrap_or(0),
                        key: k,
                        value: Some(Value { id: 100 + i * 10 + u64::from(k), len: 120 }),
                    })
                    .collect();
                if i < 2 {
                    add(Op::CreateKeyspace { name: u8::try_from(i).unwrap_or(0), seed: i }, 0);
                }
                add(Op::Batch { writes, ack: if i % 2 == 0 { Ack::Buffered } else { Ack::Sync } }, 5);
            }
            add(Op::Flush(Some(1)), 2);
            "batches over keyspaces, one keyspace flushed"
        }
        _ => {
            // A huge record in a log of its own, between small ones.
            add(put(0, 1, 100, 10, Ack::Buffered), 0);
            add(put(0, 2, 101, 20_000, Ack::Buffered), 1);
            add(put(0, 3, 102, 10, Ack::Sync), 3);
            add(Op::Flush(None), 3);
            add(put(0, 2, 103, 9_000, Ack::Sync), 3);
            "records larger than a log segment"
        }
    };
    (n < 32).then(|| Workload { name: name.to_owned(), config: small_config(n / 8 * 5 + n), steps })
}

fn drawn(base: u64, n: u64) -> Workload {
    let mut config = Config::from_seed(base ^ (n << 8));
    config.keys.retain(|key| key.len() < 100);
    config.keys.truncate(40);
    config.value_limit = 2000;
    let mut steps = Generator::steps(&config, DRAWN_OPS);
    // A crash is what this tier is about; it is made from outside.
    steps.retain(|step| !matches!(step.op, Op::Crash { .. } | Op::ReopenReadOnly | Op::CheckAll | Op::Verify));
    if config.acks != Acks::Logged {
        // A close loses what is not logged, and the model would no longer know what was there before.
        steps.retain(|step| !matches!(step.op, Op::Reopen { .. }));
    }
    Workload { name: format!("drawn {n}"), config, steps }
}

/// The workload with this number: stories first, then those that are drawn, then the enumerated ones.
pub fn workload(base: u64, n: u64) -> Option<Workload> {
    if let Some(story) = scripted(n) {
        return Some(story);
    }
    let n = n - 32;
    if n < DRAWN { Some(drawn(base, n)) } else { enumerated(n - DRAWN) }
}

/// How many workloads there are.
pub fn workloads() -> u64 {
    32 + DRAWN + LETTERS + LETTERS * LETTERS + LETTERS * LETTERS * LETTERS
}

/// A crash at every operation of the workloads, until `points` have been tried (0: all).
pub fn run(budget: &Budget, points: u64) -> Report {
    explore(budget, "crash", points, false)
}

/// A second crash at every operation of the recovery from the first.
pub fn run_double(budget: &Budget, points: u64) -> Report {
    explore(budget, "double", points, true)
}

fn explore(budget: &Budget, tier: &str, points: u64, double: bool) -> Report {
    let pool = budget.pool(tier);
    let name = if double { "double_crashes" } else { "crash_points" };
    // Stories and drawn workloads first, then the enumerated ones, spread: a small budget does not see them all.
    let total = workloads();
    let order = move |task: u64| {
        if task < 32 + DRAWN { task } else { 32 + DRAWN + (task - 32 - DRAWN) * 509 % (total - 32 - DRAWN) }
    };
    let replay = |task| format!("{tier} --base {} --only {}", budget.base, order(task));
    pool.run(total, replay, |task| {
        if points > 0 && pool.counted(name) >= points {
            return Ok(());
        }
        match workload(budget.base, order(task)) {
            Some(workload) => run_workload(&workload, budget.base, &pool, double),
            None => Ok(()),
        }
    });
    pool.finish()
}

/// One workload alone, for replays.
pub fn run_only(budget: &Budget, n: u64, double: bool) -> Report {
    let pool = budget.pool(if double { "double" } else { "crash" });
    pool.run(
        1,
        |_| String::new(),
        |_| match workload(budget.base, n) {
            Some(workload) => {
                println!("{}\n{}", workload.name, workload.config.options.to_text());
                for step in &workload.steps {
                    println!("  {:?} then {} lane steps", step.op, step.lane_steps);
                }
                run_workload(&workload, budget.base, &pool, double)
            }
            None => Ok(()),
        },
    );
    pool.finish()
}

fn run_workload(workload: &Workload, base: u64, pool: &Pool, double: bool) -> Check {
    let counters = Arc::new(Counters::default());
    let outcome = crash_everywhere(workload, base, pool, &counters, double);
    pool.counters().merge(&counters);
    pool.count("workloads", 1);
    outcome.map_err(|violation| Violation(format!("{}: {}", workload.name, violation.0)))
}

fn crash_everywhere(workload: &Workload, base: u64, pool: &Pool, counters: &Arc<Counters>, double: bool) -> Check {
    let seed = workload.config.seed ^ base;
    let mut world = World::create(workload.config.clone(), counters, true)?;
    for step in &workload.steps {
        world.apply(step)?;
    }
    world.collect_stats();
    let marks = world.marks.take().unwrap_or_default();
    let context = Context { model: world.model(), options: world.options(), counters, pool };
    for profile in Profile::ALL {
        let mut seen = BTreeSet::new();
        let mut points = 0;
        let mut images = 0;
        for image in CrashImages::new(&world.machine.fs, profile, seed) {
            points += 1;
            let (expect, key) = expect_at(&marks, image.ops, profile);
            if !seen.insert((image.hash, key)) {
                continue;
            }
            images += 1;
            let at = format!("{profile:?} after {} operations{}", image.ops, near(&world.machine.fs, image.ops));
            let outcome = if double {
                // A share of the first crashes, another for each workload.
                if !seed.wrapping_add(image.ops).is_multiple_of(FIRST_CRASHES) {
                    continue;
                }
                let (power, _) = expect_at(&marks, image.ops, Profile::Strict);
                context.crash_again(image.fs, &expect, *power.allowed.start(), profile, image.ops)
            } else {
                context.check_image(image.fs, &expect, image.ops)
            };
            outcome.map_err(|violation| Violation(format!("{at}: {}", violation.0)))?;
            if pool.is_over() {
                break;
            }
        }
        if !double {
            pool.count("crash_points", points);
            pool.count("images", images);
            counters.reach(Rare::CrashInside);
        }
    }
    Ok(())
}

/// The file operations around a crash, for messages.
fn near(fs: &SimFs, at: u64) -> String {
    let log = fs.op_log();
    let at = usize::try_from(at).unwrap_or(usize::MAX);
    let name = |op: Option<&siltstone::io::sim::Op>| match op {
        Some(op) => format!("{:?} {} +{}", op.kind, op.path.display(), op.len),
        None => "-".to_owned(),
    };
    format!(
        " (of {}; last {}, next {})",
        log.len(),
        name(at.checked_sub(1).and_then(|i| log.get(i))),
        name(log.get(at))
    )
}

/// What a crash after `ops` operations may leave, and a key that tells different expectations apart.
fn expect_at(marks: &[Mark], ops: u64, profile: Profile) -> (Expect, (u64, u64, usize)) {
    let done = marks.partition_point(|mark| mark.end <= ops);
    let before = done.checked_sub(1).map(|i| &marks[i]);
    // The operation that was under way; the one before it has returned.
    let during = marks.get(done).filter(|mark| mark.start < ops);
    let floor = before.map_or(0, |mark| if profile == Profile::Kill { mark.floor_kill } else { mark.floor_power });
    let last = during.or(before).map_or(0, |mark| mark.last);
    let first = &marks[0];
    let mut keyspaces = vec![Arc::clone(before.map_or(&first.keyspaces, |mark| &mark.keyspaces))];
    keyspaces.extend(during.map(|mark| Arc::clone(&mark.keyspaces)));
    let flushed = before.map_or_else(|| first.flushed.as_ref().map(|_| BTreeMap::new()), |mark| mark.flushed.clone());
    (Expect { allowed: floor.min(last)..=last, keyspaces, flushed }, (floor, last, done))
}

struct Context<'a> {
    model: &'a Model,
    options: &'a Options,
    counters: &'a Arc<Counters>,
    pool: &'a Pool,
}

impl Context<'_> {
    fn open(&self, machine: &Machine, seed: u64) -> Check<Db> {
        let db = machine.open(self.options, seed, None).map_err(|e| Violation(format!("does not open: {e:?}")))?;
        let stats = db.stats();
        self.counters.add(Rare::OrphanRemoved, stats.orphans_removed);
        self.counters.add(Rare::TornTail, stats.torn_tails);
        self.counters.add(Rare::LogReplayed, stats.replayed_records);
        Ok(db)
    }

    /// Opens a crash image, checks it, writes to it, ends it in one of three ways, and finds the writes again.
    fn check_image(&self, fs: SimFs, expect: &Expect, seed: u64) -> Check {
        let machine = Machine::with_disk(fs, seed);
        let db = self.open(&machine, seed)?;
        let Recovered { contents, .. } = check_recovered(&db, self.model, expect)?;
        let contents = self.write(&db, contents)?;
        let (disk, how) = match seed % 3 {
            0 => {
                db.close().map_err(|e| Violation(format!("close: {e:?}")))?;
                (machine.fs.clone(), "a close")
            }
            1 => {
                db.flush().map_err(|e| Violation(format!("flush: {e:?}")))?;
                (machine.fs.crash(Profile::Strict, &mut siltstone::io::Rng::new(seed)), "a flush and a power loss")
            }
            _ => (machine.fs.crash(Profile::Strict, &mut siltstone::io::Rng::new(seed)), "a power loss"),
        };
        drop(db);
        let machine = Machine::with_disk(disk, seed + 1);
        let db = self.open(&machine, seed + 1)?;
        let found = read_all(&db, self.model)?;
        // The last writes, and merges on the way, may have cost the oldest data where that may be lost.
        let may_lose = |name: &str| db.keyspace(name).is_ok_and(|keyspace| keyspace.options().may_lose_oldest);
        match difference(&contents, &found, may_lose) {
            Some(what) => broken(format!("after recovery, four writes and {how} the store is another: {what}")),
            None => Ok(()),
        }
    }

    /// Writes to the default keyspace; returns what the store must hold then.
    fn write(&self, db: &Db, mut contents: ByName) -> Check<ByName> {
        let keyspace = db.default_keyspace();
        let mut entries: BTreeMap<u32, Vec<u8>> = contents.remove("default").unwrap_or_default().into_iter().collect();
        let keys = self.model.keys();
        for n in 0..4u32 {
            let key = n * number(keys.len() as u64) / 4;
            let bytes = &keys[usize::try_from(key).unwrap_or(0)];
            let outcome = if n == 2 {
                entries.remove(&key);
                keyspace.delete_with(bytes, Durability::Buffered)
            } else {
                let value = format!("after the crash {n}").into_bytes();
                entries.insert(key, value.clone());
                keyspace.put_with(bytes, &value, if n == 3 { Durability::Sync } else { Durability::Buffered })
            };
            outcome.map_err(|e| Violation(format!("write after recovery: {e:?}")))?;
        }
        contents.insert("default".to_owned(), entries.into_iter().collect());
        Ok(contents)
    }

    /// Crashes at every operation of the recovery of `fs`.
    fn crash_again(&self, fs: SimFs, expect: &Expect, power_floor: Pos, first: Profile, seed: u64) -> Check {
        let machine = Machine::with_disk(fs, seed);
        machine.fs.record_ops(true);
        let db = self.open(&machine, seed)?;
        let Recovered { at, flushed, .. } = check_recovered(&db, self.model, expect)?;
        let found = expect.flushed.as_ref().map(|_| {
            let starts = flushed.into_iter().map(|(uid, flushed)| (uid, *flushed.start()));
            starts.collect()
        });
        let ops = machine.fs.op_count();
        for second in Profile::ALL {
            let mut seen = BTreeSet::new();
            for image in CrashImages::new(&machine.fs, second, seed) {
                self.pool.count("double_crashes", 1);
                if !seen.insert(image.hash) {
                    continue;
                }
                self.pool.count("images", 1);
                if image.ops < ops {
                    self.counters.reach(Rare::CrashInRecovery);
                }
                // What a power loss has left is on the disk and cannot be lost by another; what a kill has left can.
                let (floor, flushed) = if first == Profile::Kill && second != Profile::Kill {
                    (power_floor.min(at), expect.flushed.clone())
                } else {
                    (at, found.clone())
                };
                let again = Expect { allowed: floor..=at, keyspaces: expect.keyspaces.clone(), flushed };
                let n = image.ops;
                self.check_second(image.fs, &again, n)
                    .map_err(|v| Violation(format!("{second:?} after {n} of {ops} operations of recovery: {}", v.0)))?;
            }
        }
        Ok(())
    }

    fn check_second(&self, fs: SimFs, expect: &Expect, seed: u64) -> Check {
        if seed.is_multiple_of(4) {
            return self.check_image(fs, expect, seed);
        }
        let machine = Machine::with_disk(fs, seed);
        let db = self.open(&machine, seed)?;
        check_recovered(&db, self.model, expect).map(|_| ())
    }
}

/// What differs; none if nothing does, but for what keyspaces lose that may.
fn difference(want: &ByName, have: &ByName, may_lose: impl Fn(&str) -> bool) -> Option<String> {
    if want.keys().ne(have.keys()) {
        return Some(format!("keyspaces {:?} instead of {:?}", have.keys(), want.keys()));
    }
    for ((name, want), have) in want.iter().zip(have.values()) {
        let mut missing = 0;
        for (key, value) in want {
            match have.iter().find(|(k, _)| k == key) {
                None if may_lose(name) => missing += 1,
                None => return Some(format!("{name} key #{key} is gone")),
                Some((_, found)) if found != value => return Some(format!("{name} key #{key} has another value")),
                Some(_) => {}
            }
        }
        if have.len() + missing != want.len() {
            return Some(format!("{name} has {} entries instead of {}", have.len(), want.len() - missing));
        }
    }
    None
}
