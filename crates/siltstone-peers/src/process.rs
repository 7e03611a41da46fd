//! What the kernel says about this process: CPU time, memory, bytes written; and what a folder takes on disk.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Counters at one moment; subtract two of them.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    /// Seconds of CPU, all threads, user and system.
    pub(crate) cpu_s: f64,
    /// Bytes that became dirty in the page cache, or went past it: `write_bytes` of `/proc/self/io`.
    pub(crate) written_bytes: u64,
}

impl Usage {
    /// The counters now.
    pub(crate) fn now() -> Result<Usage> {
        let stat = fs::read_to_string("/proc/self/stat").context("reading /proc/self/stat")?;
        // The command's name, in parentheses, may hold anything; what follows are numbers.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks: u64 = [11, 12].iter().filter_map(|&i| fields.get(i)?.parse::<u64>().ok()).sum();
        let io = fs::read_to_string("/proc/self/io").context("reading /proc/self/io")?;
        // Linux counts CPU time for user space in hundredths of a second on every architecture.
        Ok(Usage { cpu_s: crate::float(ticks) / 100.0, written_bytes: field(&io, "write_bytes:") })
    }
}

/// What the host of a virtual machine has taken from its processors since it was started, all of them together, in hundredths of a second; 0
/// where there is none.
pub(crate) fn stolen() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    // cpu user nice system idle iowait irq softirq steal
    let steal = stat.lines().next().and_then(|all| all.split_whitespace().nth(8));
    steal.and_then(|steal| steal.parse().ok()).unwrap_or(0)
}

/// Makes the kernel forget this process's peak of memory, so that the next [`peak_rss_bytes`] speaks of what follows.
pub(crate) fn reset_peak_rss() {
    // Not every kernel offers it; then the peak is that of the process's life.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// The peak of resident memory, mapped files included.
pub(crate) fn peak_rss_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    field(&status, "VmHWM:") * 1024
}

/// Resident memory now, without mapped files.
pub(crate) fn anon_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    field(&status, "RssAnon:") * 1024
}

fn field(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    value.and_then(|v| v.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Bytes that the files under `path` take on disk, by allocated blocks: holes are free and preallocation is not.
pub(crate) fn disk_bytes(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else {
        return 0;
    };
    let of_entry = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => disk_bytes(&entry.path()),
        Ok(meta) => meta.blocks() * 512,
        // A file that background work has just removed.
        Err(_) => 0,
    };
    entries.flatten().map(of_entry).sum()
}

/// Waits until the process does nothing for 300 ms: for engines that cannot be asked whether work is left. Returns when it last did
/// something, so that the wait itself is not counted.
#[cfg_attr(
    not(any(feature = "leveldb", feature = "fjall")),
    expect(dead_code, reason = "all engines of this build can be asked")
)]
pub(crate) fn wait_until_quiet() -> Result<Instant> {
    let (mut quiet_since, mut last) = (Instant::now(), Usage::now()?);
    while quiet_since.elapsed() < Duration::from_millis(300) {
        thread::sleep(Duration::from_millis(20));
        let now = Usage::now()?;
        if now.cpu_s - last.cpu_s > 0.011 || now.written_bytes != last.written_bytes {
            (quiet_since, last) = (Instant::now(), now);
        }
    }
    Ok(quiet_since)
}
