//! Real processes killed with SIGKILL (R12): what this proves is that nothing acknowledged is lost when the *process* dies, on
//! the real file system with real threads. Power loss is what the simulation is for.
//!
//! The child writes from two threads, each its own keys and its own numbered operations, and reports each acknowledged number
//! over a pipe. The parent kills it at a random moment, drains the pipe, opens the store and compares: for each thread it must
//! hold every operation up to the last reported one, perhaps the one under way, whole, and nothing else.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use siltstone::Durability;
use siltstone::io::{Clock, RealClock, Rng};
use siltstone::options::{Compression, LogOptions};
use siltstone::{Batch, Db, Options};

use super::Budget;
use crate::ops::Value;
use crate::pool::Report;
use crate::store::{Check, Violation, broken};

/// Writing threads of the child.
const THREADS: u64 = 2;
/// Keys of each.
const KEYS: u64 = 3000;

fn options() -> Options {
    let mut options = Options {
        write_memory_bytes: 2 << 20,
        cache_bytes: 1 << 20,
        log: LogOptions { segment_bytes: 1 << 20, max_bytes: 4 << 20 },
        ..Options::default()
    };
    options.keyspace.memtable_bytes = 256 << 10;
    options.keyspace.file_bytes = 256 << 10;
    options.keyspace.compression = vec![Compression::None, Compression::Lz4];
    options
}

/// Operation `n` of thread `thread`: what it writes, and how durably.
fn operation(thread: u64, n: u64) -> (Vec<(String, Option<Value>)>, Durability) {
    let mut rng = Rng::new(n.wrapping_mul(THREADS) + thread);
    let writes = if rng.one_in(4) { rng.between(2, 20) } else { 1 };
    let writes = (0..writes)
        .map(|i| {
            let key = format!("{thread}/{:06}", rng.below(KEYS));
            let len = if rng.one_in(500) { 40_000 } else { rng.between(0, 200) };
            let value = Value { id: n * 100 + i, len: crate::ops::number(len) };
            (key, if rng.one_in(6) { None } else { Some(value) })
        })
        .collect();
    (writes, if rng.one_in(200) { Durability::Sync } else { Durability::Buffered })
}

/// The child: writes until it is killed.
///
/// # Errors
/// Whatever the store says; the parent takes any end but SIGKILL for a failure.
pub fn child(folder: &Path, starts: &[u64]) -> anyhow::Result<()> {
    let db = Db::open(folder, options())?;
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0u64..)
            .zip(starts)
            .map(|(thread, start)| {
                let db = db.clone();
                let start = *start;
                scope.spawn(move || write_for_ever(&db, thread, start))
            })
            .collect();
        for writer in writers {
            writer.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??;
        }
        Ok(())
    })
}

fn write_for_ever(db: &Db, thread: u64, start: u64) -> anyhow::Result<()> {
    let keyspace = db.default_keyspace();
    let mut buffer = Vec::new();
    for n in start.. {
        let (writes, durability) = operation(thread, n);
        let mut batch = Batch::new();
        for (key, value) in &writes {
            match value {
                Some(value) => {
                    value.fill(&mut buffer);
                    batch.put(&keyspace, key, &buffer);
                }
                None => batch.delete(&keyspace, key),
            }
        }
        db.write_with(&batch, durability)?;
        // 16 bytes at once: a pipe takes them whole or not at all.
        let mut ack = [0; 16];
        ack[..8].copy_from_slice(&thread.to_le_bytes());
        ack[8..].copy_from_slice(&n.to_le_bytes());
        std::io::stdout().lock().write_all(&ack)?;
        std::io::stdout().lock().flush()?;
    }
    Ok(())
}

type State = BTreeMap<String, Value>;

fn apply(state: &mut State, thread: u64, n: u64) {
    for (key, value) in operation(thread, n).0 {
        match value {
            Some(value) => state.insert(key, value),
            None => state.remove(&key),
        };
    }
}

/// Kills `kills` children, within the budget's time.
pub fn run(budget: &Budget, kills: u64) -> Report {
    let pool = budget.pool("kill9");
    let folder = std::env::temp_dir().join(format!("siltstone-kill9-{}-{}", std::process::id(), budget.base));
    let outcome = crate::pool::guarded(|| {
        let mut rng = Rng::new(budget.base);
        let mut next = vec![1u64; usize::try_from(THREADS).unwrap_or(0)];
        let mut states: Vec<State> = vec![State::new(); next.len()];
        for kill in 0..kills {
            if pool.is_over() {
                break;
            }
            let acked = run_child(&folder, &next, Duration::from_millis(rng.between(20, 600)), &mut rng)?;
            pool.count("acknowledged", acked.iter().zip(&next).map(|(acked, next)| acked + 1 - next).sum());
            verify(&folder, &acked, &mut next, &mut states, kill % 10 == 9)
                .map_err(|v| Violation(format!("kill {kill}: {} (folder {})", v.0, folder.display())))?;
            pool.count("kills", 1);
            if kill % 25 == 24 {
                println!("  kill9: {} kills, {} operations acknowledged", kill + 1, pool.counted("acknowledged"));
            }
        }
        Ok(())
    });
    match outcome {
        Ok(()) => drop(std::fs::remove_dir_all(&folder)),
        Err(violation) => pool.fail(&violation.0, &format!("kill9 --base {}", budget.base)),
    }
    pool.finish()
}

/// Starts a child, kills it after `life` (sometimes as soon as it starts), returns the last acknowledged numbers.
fn run_child(folder: &PathBuf, next: &[u64], life: Duration, rng: &mut Rng) -> Check<Vec<u64>> {
    let fault = |e: std::io::Error| Violation(format!("child: {e}"));
    let starts = next.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let mut child = Command::new(std::env::current_exe().map_err(fault)?)
        .arg("kill9-child")
        .arg(folder)
        .arg(starts)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(fault)?;
    let mut pipe = child.stdout.take().ok_or_else(|| Violation("child without a pipe".to_owned()))?;
    // One in eight dies while it opens the store.
    let life = if rng.one_in(8) { Duration::from_millis(rng.between(0, 15)) } else { life };
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).map(|_| bytes)
    });
    let start = RealClock.mono_ns();
    while u128::from(RealClock.mono_ns() - start) < life.as_nanos() {
        std::thread::sleep(Duration::from_micros(200));
        if let Some(status) = child.try_wait().map_err(fault)? {
            return broken(format!("the child ended by itself: {status}"));
        }
    }
    child.kill().map_err(fault)?;
    child.wait().map_err(fault)?;
    let bytes = reader.join().map_err(|_| Violation("reader panicked".to_owned()))?.map_err(fault)?;
    let mut acked: Vec<u64> = next.iter().map(|next| next - 1).collect();
    for ack in bytes.chunks_exact(16) {
        let number = |part: &[u8]| part.try_into().map(u64::from_le_bytes).unwrap_or(0);
        let (thread, n) = (number(&ack[..8]), number(&ack[8..]));
        let Some(last) = acked.get_mut(usize::try_from(thread).unwrap_or(usize::MAX)) else {
            return broken("a torn acknowledgement");
        };
        if n != *last + 1 {
            return broken(format!("thread {thread} acknowledges {n} after {last}"));
        }
        *last = n;
    }
    Ok(acked)
}

/// Opens the store and compares it; moves `next` and `states` to where it stands.
fn verify(folder: &Path, acked: &[u64], next: &mut [u64], states: &mut [State], scrub: bool) -> Check {
    let fault = |e: siltstone::Error| Violation(format!("{e:?}"));
    let db = Db::open(folder, options()).map_err(fault)?;
    if scrub {
        let report = db.verify().map_err(fault)?;
        if !report.damage.is_empty() {
            return broken(format!("verify finds {:?}", report.damage));
        }
    }
    let keyspace = db.default_keyspace();
    for (thread, (acked, (next, state))) in (0u64..).zip(acked.iter().zip(next.iter_mut().zip(states))) {
        while *next <= *acked {
            apply(state, thread, *next);
            *next += 1;
        }
        let found: Vec<_> =
            keyspace.prefix(format!("{thread}/")).map_err(fault)?.collect::<Result<_, _>>().map_err(fault)?;
        let Err(without) = compare(&found, state) else {
            continue;
        };
        // The operation under way may have been done, whole.
        let mut with = state.clone();
        apply(&mut with, thread, *next);
        compare(&found, &with).map_err(|with| {
            Violation(format!("thread {thread} after {acked}: without the next operation {without}; with it {with}"))
        })?;
        *state = with;
        *next += 1;
    }
    db.close().map_err(fault)
}

fn compare(found: &[(siltstone::Bytes, siltstone::Bytes)], state: &State) -> Result<(), String> {
    let mut buffer = Vec::new();
    let mut wanted = state.iter();
    for (key, value) in found {
        match wanted.next() {
            None => return Err(format!("too much: {}", key.escape_ascii())),
            Some((want, recipe)) => {
                recipe.fill(&mut buffer);
                if want.as_bytes() != &key[..] || buffer[..] != value[..] {
                    return Err(format!("want {want} {recipe:?}, have {} ({} bytes)", key.escape_ascii(), value.len()));
                }
            }
        }
    }
    wanted.next().map_or(Ok(()), |(want, _)| Err(format!("{want} is missing")))
}
