//! What one workload of one engine and repetition came to, and whether all engines came to the same records.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::drive::Drive;
use crate::engines::Engine;
use crate::process::{self, Usage};
use crate::store::{Sink, Store};

/// What one workload came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) engine: Engine,
    /// Its name.
    pub(crate) workload: String,
    /// Operations finished.
    pub(crate) ops: u64,
    /// Keys found, or entries read by scans.
    pub(crate) found: u64,
    pub(crate) elapsed_s: f64,
    /// Of that, the time in which the harness made up the operations of a spec.
    pub(crate) idle_s: f64,
    /// Thousands of operations a second, of the time that is not idle.
    pub(crate) kops: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
    /// The slowest tenth of a second as a share of the average one; none when the workload took less than two of them.
    pub(crate) slowest_tenth: Option<f64>,
    /// Seconds that the host of a virtual machine took from all of its processors meanwhile.
    pub(crate) stolen_s: f64,
    /// `max_us` and `slowest_tenth` of the tenths of a second in which it took nothing, nor right before or after, over the average one of these; none
    /// if there are none, or for the slowest not two.
    pub(crate) max_undisturbed_us: Option<f64>,
    pub(crate) slowest_undisturbed: Option<f64>,
    /// Thousands of operations a second when flushing and finishing the compactions counts as well, and idle time, in which they go on; none for
    /// reads.
    pub(crate) settled_kops: Option<f64>,
    /// Bytes made dirty until settled, log included, over bytes put; none where nothing is put.
    pub(crate) write_amp: Option<f64>,
    /// Bytes made dirty until settled.
    pub(crate) written_bytes: u64,
    /// Bytes that the store takes on disk once settled.
    pub(crate) disk_bytes: u64,
    /// That over the bytes of the records that are there; none where nobody knows them.
    pub(crate) space_amp: Option<f64>,
    /// CPU seconds of all threads until settled.
    pub(crate) cpu_s: f64,
    /// Peak of resident memory, mapped files included.
    pub(crate) peak_rss_bytes: u64,
    /// Of that, what is no file: memory that the engine has taken, at the end.
    pub(crate) anon_bytes: u64,
    /// What was read; none where that hangs on the engine's speed.
    pub(crate) fingerprint: Option<Fingerprint>,
    /// What was in the store afterwards; of the last workload on it, and none where that hangs on the engine's speed.
    pub(crate) contents: Option<Fingerprint>,
    /// What the engine itself has counted since it was opened.
    pub(crate) statistics: serde_json::Value,
    /// The thread that writes beside `readwhilewriting`.
    pub(crate) writer: Option<Writer>,
}

/// What the writer beside `readwhilewriting` got done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Writer {
    pub(crate) puts: u64,
    pub(crate) kops: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
}

/// What must be the same for all engines: equal operations find equal records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Fingerprint {
    /// Keys found, or entries read by scans.
    pub(crate) found: u64,
    /// Bytes read: values of gets, keys and values of scans.
    pub(crate) bytes: u64,
    /// Follows from some of these bytes and their order; none where another thread changes values meanwhile.
    pub(crate) sum: Option<u64>,
}

impl Fingerprint {
    /// Of `found` records that went into `sink`.
    pub(crate) fn new(found: u64, sink: &Sink) -> Fingerprint {
        Fingerprint { found, bytes: sink.bytes(), sum: Some(sink.sum()) }
    }

    /// Of all records of `store`.
    ///
    /// # Errors
    /// What the engine says.
    pub(crate) fn of_contents<S: Store>(store: &S) -> Result<Fingerprint> {
        let mut sink = Sink::new();
        let found = store.scan(b"", usize::MAX - 1, &mut sink)?;
        Ok(Fingerprint::new(crate::count(found), &sink))
    }
}

/// What a row needs to know of its workload.
pub(crate) struct Work {
    pub(crate) engine: Engine,
    pub(crate) workload: String,
    /// Whether what is measured are writes, so that what they postponed counts.
    pub(crate) writes: bool,
    /// Bytes of keys and values put, 0 for reads and deletes.
    pub(crate) put_bytes: u64,
    /// Bytes of the records that are there at the end, where somebody knows.
    pub(crate) live_bytes: Option<u64>,
}

/// Looks at the process while a workload runs.
pub(crate) struct Meter {
    before: Usage,
}

impl Meter {
    /// From here on.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub(crate) fn start() -> Result<Meter> {
        process::reset_peak_rss();
        Ok(Meter { before: Usage::now()? })
    }

    /// To here. `ended` is when the last operation did, `settled` when no work was left behind; `path` holds the store.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub(crate) fn row<S: Store>(
        &self,
        work: Work,
        drive: &Drive,
        [ended, settled]: [Instant; 2],
        store: &S,
        path: &Path,
    ) -> Result<Row> {
        let after = Usage::now()?;
        let kops = |elapsed: Duration| crate::float(drive.ops) / elapsed.as_secs_f64() / 1000.0;
        let written_bytes = after.written_bytes - self.before.written_bytes;
        let disk_bytes = process::disk_bytes(path);
        let over = |bytes: u64, of: u64| (of > 0).then(|| crate::float(bytes) / crate::float(of));
        let row = Row {
            engine: work.engine,
            workload: work.workload,
            ops: drive.ops,
            found: drive.found,
            elapsed_s: drive.elapsed.as_secs_f64(),
            idle_s: drive.idle.as_secs_f64(),
            kops: kops(drive.busy()),
            p50_us: drive.latencies.quantile_us(0.5),
            p99_us: drive.latencies.quantile_us(0.99),
            p999_us: drive.latencies.quantile_us(0.999),
            max_us: drive.latencies.max_us(),
            slowest_tenth: drive.slowest_tenth(),
            stolen_s: drive.stolen_s(),
            max_undisturbed_us: drive.max_undisturbed_us(),
            slowest_undisturbed: drive.slowest_undisturbed(),
            settled_kops: work.writes.then(|| kops(until_settled(drive, [ended, settled]))),
            write_amp: over(written_bytes, work.put_bytes),
            written_bytes,
            disk_bytes,
            space_amp: work.live_bytes.and_then(|live| over(disk_bytes, live)),
            cpu_s: after.cpu_s - self.before.cpu_s,
            peak_rss_bytes: process::peak_rss_bytes(),
            anon_bytes: process::anon_bytes(),
            fingerprint: None,
            contents: None,
            statistics: store.statistics(),
            writer: None,
        };
        eprintln!("{:<10} {:<17} {:>9.1} kops/s", row.engine.name(), row.workload, row.kops);
        Ok(row)
    }
}

/// From the first operation's begin until no work was left. What is made up meanwhile takes time in which the engine works, too.
fn until_settled(drive: &Drive, [ended, settled]: [Instant; 2]) -> Duration {
    drive.elapsed + settled.saturating_duration_since(ended)
}

impl Row {
    /// Notes what was in the store after this workload; `is_fixed` says that it must be the same for all engines.
    pub(crate) fn note_contents(&mut self, contents: Fingerprint, is_fixed: bool) {
        self.space_amp = (contents.bytes > 0).then(|| crate::float(self.disk_bytes) / crate::float(contents.bytes));
        self.contents = is_fixed.then_some(contents);
    }
}

/// Checks that the engines found the same records, and left the same ones behind. `rows` are those of one repetition.
///
/// # Errors
/// If two engines answered differently: one of them is wrong, or the harness is, and no figure can be believed.
pub(crate) fn agree(rows: &[Row]) -> Result<()> {
    let mut first: BTreeMap<(&str, &str), (Engine, Fingerprint)> = BTreeMap::new();
    for row in rows {
        for (what, print) in [("read", row.fingerprint), ("left behind", row.contents)] {
            let Some(print) = print else { continue };
            let &mut (engine, expected) = first.entry((&row.workload, what)).or_insert((row.engine, print));
            ensure!(
                print == expected,
                "{}: the engines disagree about the records {what}: {} has {print:?}, {} has {expected:?}",
                row.workload,
                row.engine.name(),
                engine.name(),
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Idle time was left out: 2 s instead of 4, and background work that ran in it cost nothing.
    #[test]
    fn what_is_settled_in_idle_time_is_paid() {
        let second = Duration::from_secs(1);
        let mut drive = Drive::new();
        (drive.elapsed, drive.idle) = (3 * second, 2 * second);
        let ended = Instant::now();
        assert_eq!(drive.busy(), second);
        assert_eq!(until_settled(&drive, [ended, ended + second]), 4 * second);
    }
}
