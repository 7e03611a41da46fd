//! The closed-loop runner: one thread repeats the operation of a phase as fast as the store answers, one latency each.
//!
//! In a closed loop a stall delays one operation only, so the tail is an underestimate of what independent clients would see
//! (luo19 section 3.2); the maximum shows the stall itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::Serialize;
use siltstone::io::Rng;
use siltstone::{Db, Error, ErrorKind, Keyspace, Result};

use crate::metrics::{Latencies, LatencySummary, cpu_seconds};
use crate::num::{count, index, per_second};
use crate::workload::{KeyPicker, KeyWriter, Operation, Phase, ValueSource, Workload};

/// Operations between two looks at the caller's stop flag and two calls of its progress function.
const TICK: u64 = 1 << 10;

/// What a phase took.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseResult {
    /// The phase's name.
    pub workload: String,
    /// Operations done.
    pub operations: u64,
    /// Reads among them that found a record.
    pub found: u64,
    /// Seconds.
    pub elapsed_s: f64,
    /// Operations a second.
    pub ops_per_s: f64,
    /// Bytes of keys and values that went in or out, a second, in units of 10^6.
    pub mb_per_s: f64,
    /// Processor seconds of the whole process meanwhile, background threads included.
    pub cpu_s: f64,
    /// One latency an operation.
    #[serde(flatten)]
    pub latency: LatencySummary,
}

/// Runs `phase` of `workload` on `keyspace`. `progress` is told the operations done, every thousand or so; when it answers
/// false, the run ends early.
///
/// # Errors
/// The first error of the store; `Cancelled` when `progress` said so.
pub fn run_phase(
    db: &Db,
    keyspace: &Keyspace,
    workload: &Workload,
    phase: &Phase,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<PhaseResult> {
    if !phase.background_writer {
        return run(keyspace, workload, phase, progress);
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(&stop, keyspace, workload));
        let result = run(keyspace, workload, phase, progress);
        stop.store(true, Ordering::Release);
        let written = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        written.and(result)
    })
    .and_then(|result| db.sync().map(|()| result))
}

/// Puts uniformly chosen keys until told to stop.
fn write_until(stop: &AtomicBool, keyspace: &Keyspace, workload: &Workload) -> Result<()> {
    let mut stream = Stream::new(workload, crate::workload::KeyLaw::Uniform, "background");
    while !stop.load(Ordering::Acquire) {
        stream.put(keyspace)?;
    }
    Ok(())
}

/// The keys and values of a phase.
struct Stream {
    picker: KeyPicker,
    keys: KeyWriter,
    values: ValueSource,
    value_bytes: usize,
}

impl Stream {
    fn new(workload: &Workload, law: crate::workload::KeyLaw, label: &str) -> Stream {
        let value_bytes = index(u64::from(workload.value_bytes));
        Stream {
            picker: KeyPicker::new(workload, law, label),
            keys: KeyWriter::new(workload.key_bytes),
            values: ValueSource::new(value_bytes, Rng::new(workload.seed).split("values")),
            value_bytes,
        }
    }

    /// Puts the next key and returns the bytes put.
    #[inline]
    fn put(&mut self, keyspace: &Keyspace) -> Result<u64> {
        let key = self.keys.key(self.picker.pick());
        let value = self.values.next(self.value_bytes);
        keyspace.put(key, value)?;
        Ok(count(key.len() + value.len()))
    }
}

fn run(
    keyspace: &Keyspace,
    workload: &Workload,
    phase: &Phase,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<PhaseResult> {
    let mut stream = Stream::new(workload, phase.law, &phase.name);
    let mut scan = None;
    let mut latencies = Latencies::new();
    let (mut operations, mut found, mut bytes) = (0, 0, 0);
    let cpu_before = cpu_seconds();
    let start = Instant::now();
    let mut last = start;
    while operations < phase.count {
        let seen = match phase.operation {
            Operation::Put => Some(stream.put(keyspace)?),
            Operation::Delete => {
                let key = stream.keys.key(stream.picker.pick());
                keyspace.delete(key)?;
                Some(count(key.len()))
            }
            Operation::Get => get(keyspace, stream.keys.key(stream.picker.pick()))?,
            Operation::GetMissing => get(keyspace, stream.keys.missing(stream.picker.pick()))?,
            Operation::Seek => {
                let mut range = keyspace.range(stream.keys.key(stream.picker.pick())..)?;
                range.advance()?.then(|| count(range.key().len() + range.value().len()))
            }
            Operation::Scan => {
                let range = match &mut scan {
                    Some(range) => range,
                    none => none.insert(keyspace.range::<&[u8]>(..)?),
                };
                if !range.advance()? {
                    break;
                }
                Some(count(range.key().len() + range.value().len()))
            }
        };
        last = latencies.record_since(last);
        operations += 1;
        found += u64::from(seen.is_some());
        bytes += seen.unwrap_or(0);
        if operations.is_multiple_of(TICK) && !progress(operations) {
            return Err(Error::new(ErrorKind::Cancelled, "the run was cancelled"));
        }
    }
    let elapsed_s = (last - start).as_secs_f64();
    Ok(PhaseResult {
        workload: phase.name.clone(),
        operations,
        found,
        elapsed_s,
        ops_per_s: per_second(operations, elapsed_s),
        mb_per_s: per_second(bytes, elapsed_s) / 1e6,
        cpu_s: cpu_seconds() - cpu_before,
        latency: latencies.summary(),
    })
}

fn get(keyspace: &Keyspace, key: &[u8]) -> Result<Option<u64>> {
    Ok(keyspace.get(key)?.map(|value| count(key.len() + value.len())))
}
