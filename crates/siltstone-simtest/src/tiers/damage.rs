//! Damage at rest: every bit flipped (R4), every length cut, every tail zeroed, garbage appended, every file gone (R5).
//!
//! The store is small, so that *every* bit of every file can be tried. After damage it may refuse to open, or a read may
//! fail, with an error that says `Corruption` (or `Unsupported`, where a version was hit). It may never panic, hang, or give
//! anything but what was written. A store that was killed may also have lost what it was never told to keep: records behind
//! the last position that the log *knows* to be synced look like a torn tail when they are damaged.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use siltstone::ErrorKind;
use siltstone::io::sim::{Profile, SimFs};
use siltstone::options::{Compression, Recovery};

use super::Budget;
use super::crash::small_config;
use crate::counters::{Counters, Rare};
use crate::model::Pos;
use crate::ops::{Ack, Op, Step, Value};
use crate::pool::Report;
use crate::store::{Check, Expect, Machine, Unreadable, Violation, broken, check_contents, read_all};
use crate::world::World;

/// A store to be damaged.
struct Victim {
    name: String,
    world: World,
    fs: SimFs,
    expect: Expect,
    /// The last position that is in tables: no damage of a log takes it.
    flushed: Pos,
}

/// Small stores: closed ones in each compression, one that was killed with a log.
fn victims() -> Check<Vec<Victim>> {
    let mut victims = Vec::new();
    for (n, compression) in [Compression::None, Compression::Lz4, Compression::Zstd].into_iter().enumerate() {
        victims.push(victim(&format!("closed, {compression:?}"), n as u64, compression, true)?);
    }
    victims.push(victim("killed", 3, Compression::None, false)?);
    Ok(victims)
}

fn victim(name: &str, n: u64, compression: Compression, closed: bool) -> Check<Victim> {
    let mut config = small_config(n);
    config.options.keyspace.compression = vec![compression];
    config.options.keyspace.memtable_bytes = 16 << 10;
    let mut world = World::create(config, &Arc::new(Counters::default()), false)?;
    let mut id = 0;
    let mut put = |world: &mut World, key: u32, ack: Ack| {
        id += 1;
        let op = Op::Put { keyspace: 0, key, value: Value { id, len: 60 }, ack };
        world.apply(&Step::quiet(op, id))
    };
    for key in 0..8 {
        put(&mut world, key, Ack::Buffered)?;
    }
    world.apply(&Step::quiet(Op::Delete { keyspace: 0, key: 2, ack: Ack::Sync }, 1))?;
    world.apply(&Step::quiet(Op::Flush(None), 1))?;
    let flushed = world.model().last();
    for key in 3..6 {
        put(&mut world, key, Ack::Buffered)?;
    }
    world.apply(&Step::quiet(Op::Sync, 1))?;
    // The log knows that a record is synced when a later one says so, or when it is sealed.
    let known = world.model().last();
    for key in 0..2 {
        put(&mut world, key, Ack::Sync)?;
    }
    let last = world.model().last();
    let keyspaces = vec![world.keyspaces()];
    let (fs, floor) = if closed {
        world.close()?;
        (world.machine.fs.clone_image(), last)
    } else {
        (world.machine.fs.crash(Profile::Kill, &mut siltstone::io::Rng::new(1)), known)
    };
    Ok(Victim {
        name: name.to_owned(),
        world,
        fs,
        expect: Expect { allowed: floor..=last, keyspaces, flushed: None },
        flushed,
    })
}

/// What became of a damaged store.
enum Fate {
    Detected,
    Harmless,
}

impl Victim {
    fn files(&self) -> Vec<(PathBuf, u64)> {
        self.fs.files()
    }

    /// Opens and reads everything of a damaged copy.
    fn judge(&self, fs: SimFs, seed: u64) -> Check<Fate> {
        let machine = Machine::with_disk(fs, seed);
        let mut options = self.world.options().clone();
        options.create_if_missing = false;
        let db = match machine.open(&options, seed, None) {
            Ok(db) => db,
            Err(error) => return told(&error),
        };
        let contents = match read_all(&db, self.world.model()) {
            Ok(contents) => contents,
            Err(Unreadable::Error(error)) => return told(&error),
            Err(Unreadable::Wrong(what)) => return broken(what),
        };
        check_contents(contents, self.world.model(), &self.expect)?;
        // Point reads go through filters, which scans do not.
        let keyspace = db.default_keyspace();
        for (n, key) in self.world.model().keys().iter().enumerate() {
            let number = u32::try_from(n).unwrap_or(0);
            let found = match keyspace.get(key) {
                Ok(found) => found,
                Err(error) => return told(&error),
            };
            let allowed = self.expect.allowed.clone().any(|at| {
                crate::model::equal(self.world.model().get(0, number, at), found.as_deref(), &mut Vec::new())
            });
            if !allowed {
                return broken(format!("get of key #{n} gives what was never there"));
            }
        }
        match db.verify() {
            Ok(report) if report.damage.is_empty() => Ok(Fate::Harmless),
            Ok(_) => Ok(Fate::Detected),
            Err(error) => told(&error),
        }
    }

    /// The same with `Recovery::Salvage`: of a log it may lose what comes after the damage, and nothing else. Other files it does
    /// not mend.
    fn salvage(&self, fs: SimFs, path: &Path) -> Check {
        let machine = Machine::with_disk(fs, 1);
        let mut options = self.world.options().clone();
        options.recovery = Recovery::Salvage;
        options.create_if_missing = false;
        let is_log = path.extension().is_some_and(|e| e == "log");
        let floor = if is_log { self.flushed } else { *self.expect.allowed.start() };
        let expect = Expect { allowed: floor..=*self.expect.allowed.end(), ..self.expect.clone() };
        let contents =
            machine.open(&options, 1, None).map_err(Unreadable::Error).and_then(|db| read_all(&db, self.world.model()));
        match contents {
            Ok(contents) => check_contents(contents, self.world.model(), &expect).map(|_| ()),
            Err(Unreadable::Error(error)) if !is_log => told(&error).map(|_| ()),
            Err(unreadable) => Err(unreadable.into()),
        }
        .map_err(|v| Violation(format!("salvage: {}", v.0)))
    }
}

/// Damage must be called damage.
fn told(error: &siltstone::Error) -> Check<Fate> {
    match error.kind() {
        ErrorKind::Corruption | ErrorKind::Unsupported | ErrorKind::NotFound => Ok(Fate::Detected),
        _ => broken(format!("damage is reported as {error:?}")),
    }
}

/// Bits in one task.
const BITS: u64 = 512;

/// Every bit of every file, flipped.
pub fn run_flips(budget: &Budget) -> Report {
    let pool = budget.pool("flip");
    let mut tasks = Vec::new();
    match crate::pool::guarded(victims) {
        Ok(victims) => {
            for (v, victim) in victims.iter().enumerate() {
                for (path, bytes) in victim.files() {
                    // Superblock, manifest and log are alike in all closed stores.
                    let repeated = v == 1 || v == 2;
                    if repeated && path.extension().is_none_or(|e| e != "sst") {
                        continue;
                    }
                    tasks.extend((0..(bytes * 8).div_ceil(BITS)).map(|part| (v, path.clone(), part * BITS, bytes * 8)));
                }
            }
            let total = tasks.len() as u64;
            let task_of = |n: u64| &tasks[usize::try_from(n).unwrap_or(0)];
            let replay = |n| {
                let (v, path, bit, _) = task_of(n);
                format!("flip   # store {v}, {} from bit {bit}", path.display())
            };
            pool.run(total, replay, |n| {
                let (v, path, first, bits) = task_of(n);
                // Each thread damages stores of its own.
                with_victim(*v, |victim| {
                    for bit in *first..(*first + BITS).min(*bits) {
                        let fs = victim.fs.clone_image();
                        fs.flip_bit(path, bit).map_err(|e| Violation(format!("cannot flip: {e}")))?;
                        let at = || format!("{}: {} bit {bit} (offset {})", victim.name, path.display(), bit / 8);
                        let fate = victim.judge(fs, bit).map_err(|v| Violation(format!("{}: {}", at(), v.0)))?;
                        count(&pool, &fate, "flips");
                        if bit % 16 == 3 {
                            let fs = victim.fs.clone_image();
                            fs.flip_bit(path, bit).map_err(|e| Violation(format!("cannot flip: {e}")))?;
                            victim.salvage(fs, path).map_err(|v| Violation(format!("{}: {}", at(), v.0)))?;
                        }
                    }
                    Ok(())
                })
            });
        }
        Err(violation) => pool.fail(&violation.0, "flip"),
    }
    pool.finish()
}

thread_local! {
    static VICTIMS: std::cell::RefCell<Vec<Victim>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Runs `work` on this thread's copy of a store: copies of one disk made by two threads would wait for each other.
fn with_victim<T>(v: usize, work: impl FnOnce(&Victim) -> Check<T>) -> Check<T> {
    VICTIMS.with_borrow_mut(|mine| {
        if mine.is_empty() {
            *mine = victims()?;
        }
        work(&mine[v])
    })
}

fn count(pool: &crate::pool::Pool, fate: &Fate, what: &str) {
    pool.count(what, 1);
    match fate {
        Fate::Detected => {
            pool.count("detected", 1);
            pool.counters().reach(Rare::DamageDetected);
        }
        Fate::Harmless => {
            pool.count("harmless", 1);
            pool.counters().reach(Rare::DamageHarmless);
        }
    }
}

/// Lengths in one task.
const LENGTHS: u64 = 128;

/// Every file cut to every length, with every tail zeroed, with garbage behind it, and gone.
pub fn run_truncations(budget: &Budget) -> Report {
    let pool = budget.pool("truncate");
    let mut tasks = Vec::new();
    match crate::pool::guarded(victims) {
        Ok(victims) => {
            for (v, victim) in victims.iter().enumerate() {
                for (path, bytes) in victim.files() {
                    tasks.extend(
                        (0..(bytes + 1).div_ceil(LENGTHS)).map(|part| (v, path.clone(), part * LENGTHS, bytes)),
                    );
                }
            }
        }
        Err(violation) => pool.fail(&violation.0, "truncate"),
    }
    let task_of = |n: u64| &tasks[usize::try_from(n).unwrap_or(0)];
    let replay = |n| {
        let (v, path, length, _) = task_of(n);
        format!("truncate   # store {v}, {} from length {length}", path.display())
    };
    pool.run(tasks.len() as u64, replay, |n| {
        let (v, path, first, bytes) = task_of(n);
        with_victim(*v, |victim| {
            let whole =
                victim.fs.read_all(path).map_err(|e| Violation(format!("cannot read {}: {e}", path.display())))?;
            for length in *first..(*first + LENGTHS).min(*bytes + 1) {
                let at = |how: &str| format!("{}: {} {how} {length}", victim.name, path.display());
                let fs = victim.fs.clone_image();
                fs.truncate(path, length).map_err(|e| Violation(format!("cannot cut: {e}")))?;
                let fate = victim.judge(fs, length).map_err(|v| Violation(format!("{}: {}", at("cut to"), v.0)))?;
                count(&pool, &fate, "truncations");

                let keep = usize::try_from(length).unwrap_or(0);
                if whole[keep..].iter().any(|byte| *byte != 0) {
                    let mut zeroed = whole.clone();
                    zeroed[keep..].fill(0);
                    let fs = victim.fs.clone_image();
                    fs.write_all(path, &zeroed).map_err(|e| Violation(format!("cannot write: {e}")))?;
                    let fate =
                        victim.judge(fs, length).map_err(|v| Violation(format!("{}: {}", at("zeroed from"), v.0)))?;
                    count(&pool, &fate, "zeroed_tails");
                }
            }
            if *first == 0 {
                for (n, tail) in
                    [vec![0; 4096], vec![0xff; 17], whole.clone(), vec![1], b"MANIFEST".repeat(9)].iter().enumerate()
                {
                    let fs = victim.fs.clone_image();
                    fs.write_all(path, &[&whole[..], tail].concat())
                        .map_err(|e| Violation(format!("cannot write: {e}")))?;
                    let fate = victim.judge(fs, n as u64).map_err(|v| {
                        Violation(format!(
                            "{}: {} with {} bytes of garbage: {}",
                            victim.name,
                            path.display(),
                            tail.len(),
                            v.0
                        ))
                    })?;
                    count(&pool, &fate, "garbage_appended");
                }
                let fs = victim.fs.clone_image();
                fs.remove_all(path).map_err(|e| Violation(format!("cannot remove: {e}")))?;
                let fate = victim
                    .judge(fs, 0)
                    .map_err(|v| Violation(format!("{}: {} gone: {}", victim.name, path.display(), v.0)))?;
                count(&pool, &fate, "files_gone");
            }
            Ok(())
        })
    });
    pool.finish()
}
