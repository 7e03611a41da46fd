//! What the machine was and how quiet: it stands beside the figures, and nothing is computed from it.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use siltstone::io::Rng;

use super::question::Place;
use crate::num::{count, float, index};

/// `machine.json`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Machine {
    format: u32,
    /// The processor's name.
    cpu: String,
    cores: u64,
    memory_bytes: u64,
    /// System and processor family, and the kernel's version.
    system: String,
    /// Whether this siltstone was built with optimisation.
    build: &'static str,
    began_unix_s: u64,
    wall_s: f64,
    before: Noise,
    after: Noise,
}

/// How quiet the machine is.
#[derive(Clone, Debug, Serialize)]
struct Noise {
    /// Processes that ran or wanted to, over the last minute.
    load_average: Option<f64>,
    /// None where the world is simulated: there it changes nothing.
    probes: Option<Probes>,
}

/// Short measurements that should come out alike before and after. The best of three each.
#[derive(Clone, Debug, Serialize)]
struct Probes {
    /// Nanoseconds for a million steps of a random generator.
    cpu_ns: u64,
    /// Nanoseconds of a dependent read from 32 MiB of memory.
    memory_ns: f64,
    /// Nanoseconds to append 4 KiB and sync them.
    disk_sync_ns: u64,
}

/// A trial that has begun.
pub(super) struct Begun {
    world: Place,
    before: Noise,
    wall: SystemTime,
    start: Instant,
}

/// Looks at the machine before a trial in `folder`.
pub(super) fn begin(world: Place, folder: &Path) -> std::io::Result<Begun> {
    let before = noise(world, folder)?;
    Ok(Begun { world, before, wall: SystemTime::now(), start: Instant::now() })
}

impl Begun {
    /// Looks at it again.
    pub(super) fn end(self, folder: &Path) -> std::io::Result<Machine> {
        let wall_s = self.start.elapsed().as_secs_f64();
        Ok(Machine {
            format: super::FORMAT,
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, |cores| count(cores.get())),
            memory_bytes: memory_bytes().unwrap_or(0),
            system: system(),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            began_unix_s: self.wall.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            wall_s,
            before: self.before,
            after: noise(self.world, folder)?,
        })
    }
}

fn noise(world: Place, folder: &Path) -> std::io::Result<Noise> {
    let load = fs::read_to_string("/proc/loadavg").ok();
    let load_average = load.and_then(|text| text.split_whitespace().next()?.parse().ok());
    let probes = match world {
        Place::Sim => None,
        Place::Disk => Some(Probes { cpu_ns: cpu(), memory_ns: memory(), disk_sync_ns: disk(folder)? }),
    };
    Ok(Noise { load_average, probes })
}

fn best(mut probe: impl FnMut() -> Duration) -> u64 {
    let times = (0..3).map(|_| u64::try_from(probe().as_nanos()).unwrap_or(u64::MAX));
    times.min().unwrap_or(0)
}

fn cpu() -> u64 {
    best(|| {
        let mut rng = Rng::new(1);
        let start = Instant::now();
        let sum = (0..1_000_000).fold(0u64, |sum, _| sum.wrapping_add(rng.next_u64()));
        std::hint::black_box(sum);
        start.elapsed()
    })
}

/// A chain through memory that no cache holds and no processor can foresee.
fn memory() -> f64 {
    const CELLS: u64 = (32 << 20) / 8;
    const STEPS: u64 = 100_000;
    // One cycle through all cells (Sattolo).
    let mut next: Vec<u64> = (0..CELLS).collect();
    let mut rng = Rng::new(1);
    for i in (1..next.len()).rev() {
        next.swap(i, index(rng.below(count(i))));
    }
    let took = best(|| {
        let start = Instant::now();
        let end = (0..STEPS).fold(0, |at, _| next[index(at)]);
        std::hint::black_box(end);
        start.elapsed()
    });
    float(took) / float(STEPS)
}

fn disk(folder: &Path) -> std::io::Result<u64> {
    let path = folder.join("probe");
    let mut file = File::create(&path)?;
    let mut problem = Ok(());
    let took = best(|| {
        let start = Instant::now();
        if let Err(error) = file.write_all(&[7; 4096]).and_then(|()| file.sync_data()) {
            problem = Err(error);
        }
        start.elapsed()
    });
    drop(file);
    fs::remove_file(&path)?;
    problem.map(|()| took)
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory_bytes() -> Option<u64> {
    let kib: u64 = field("/proc/meminfo", "MemTotal")?.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

fn system() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{} {} {}", std::env::consts::OS, std::env::consts::ARCH, kernel.trim()).trim().to_owned()
}
