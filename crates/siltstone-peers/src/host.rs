//! The machine: a process for each engine and repetition, and where that was.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::engines::Engine;
use crate::memory::MemoryLimit;

/// Where engines run.
pub(crate) struct Host {
    dir: PathBuf,
    memory: Option<MemoryLimit>,
}

impl Host {
    /// Stores in subfolders of `dir`; processes with at most `memory_bytes`, page cache included.
    ///
    /// # Errors
    /// If memory cannot be limited.
    pub(crate) fn new(dir: &Path, memory_bytes: Option<u64>) -> Result<Host> {
        Ok(Host { dir: dir.to_owned(), memory: memory_bytes.map(MemoryLimit::new).transpose()? })
    }

    /// Runs `job` in a process of its own, from an empty folder and with nothing left to write back, and removes the folder.
    ///
    /// # Errors
    /// If the process fails, or prints what cannot be read.
    pub(crate) fn child<T: DeserializeOwned>(&self, command: &str, engine: Engine, job: &impl Serialize) -> Result<T> {
        let dir = self.dir.join(engine.name());
        remove(&dir)?;
        fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        Command::new("sync").status().context("running sync")?;
        let child = self
            .program()?
            .args([command, engine.name()])
            .arg(&dir)
            .arg(serde_json::to_string(job)?)
            .stderr(Stdio::inherit())
            .output()
            .context("starting a process for the engine")?;
        if !child.status.success() {
            bail!("{}: the process ended with {}", engine.name(), child.status);
        }
        remove(&dir)?;
        serde_json::from_slice(&child.stdout).context("reading what the engine's process printed")
    }

    /// This program; where memory is limited it starts within the limit, so that no page of it was taken outside.
    fn program(&self) -> Result<Command> {
        let program = std::env::current_exe()?;
        let Some(memory) = &self.memory else { return Ok(Command::new(program)) };
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"echo $$ > "$0" && exec "$@""#]).arg(memory.door()).arg(program);
        Ok(shell)
    }
}

/// Removes a folder, if it is there.
///
/// # Errors
/// If it is there and stays.
pub(crate) fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("removing {}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Writes `document`, with the machine and the versions, to `path`, if there is one.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn write_json(path: Option<&Path>, mut document: serde_json::Value) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    document["machine"] = serde_json::to_value(machine())?;
    document["versions"] = serde_json::to_value(versions())?;
    fs::write(path, serde_json::to_string_pretty(&document)?).with_context(|| format!("writing {}", path.display()))
}

/// The engines' versions, as the lock file has them, and Pebble's `go.mod`.
fn versions() -> BTreeMap<String, String> {
    let lines: Vec<&str> = include_str!("../Cargo.lock").lines().collect();
    let named = |pair: &[&str]| {
        let name = pair[0].strip_prefix("name = ")?.trim_matches('"');
        let version = pair[1].strip_prefix("version = ")?.trim_matches('"');
        let wanted = ["siltstone", "rocksdb", "librocksdb-sys", "fjall", "lsm-tree", "redb"];
        wanted.contains(&name).then(|| (name.to_owned(), version.to_owned()))
    };
    let pebble = include_str!("../pebble/go.mod")
        .lines()
        .find_map(|line| line.strip_prefix("require github.com/cockroachdb/pebble/v2 v"))
        .map(|version| ("pebble".to_owned(), version.to_owned()));
    lines.windows(2).filter_map(named).chain(pebble).collect()
}

/// Where this ran: kernel, processor, cores, memory, and the commit of the working folder.
fn machine() -> BTreeMap<&'static str, String> {
    let line = |path: &str, prefix: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let found = text.lines().find_map(|line| line.strip_prefix(prefix));
        found.unwrap_or_default().trim_matches([' ', '\t', ':']).to_owned()
    };
    let commit = Command::new("git").args(["rev-parse", "HEAD"]).output();
    let commit = commit.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned()).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    BTreeMap::from([
        ("kernel", line("/proc/version", "")),
        ("processor", line("/proc/cpuinfo", "model name")),
        ("cores", cores.to_string()),
        ("memory", line("/proc/meminfo", "MemTotal:")),
        ("commit", commit),
    ])
}
