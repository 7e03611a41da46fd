//! Where the trials of a run were made: `machine.json` of each.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// Trials whose machine is told, at most.
pub(super) const MOST: usize = 400;

/// `machine.json`, as the page needs it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Measured {
    /// The trial's folder.
    #[serde(default)]
    pub(super) trial: String,
    cpu: String,
    cores: u64,
    memory_bytes: u64,
    system: String,
    build: String,
    began_unix_s: u64,
    wall_s: f64,
    before: Noise,
    after: Noise,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Noise {
    load_average: Option<f64>,
    /// None of a simulated trial.
    probes: Option<Probes>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Probes {
    cpu_ns: u64,
    memory_ns: f64,
    disk_sync_ns: u64,
}

/// What the trial in this folder tells of its machine; none if the file is not there.
///
/// # Errors
/// If it cannot be read, with its name.
pub(super) fn measured(trial: &Path) -> anyhow::Result<Option<Measured>> {
    let path = trial.join("machine.json");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    let mut measured: Measured = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    measured.trial = trial.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
    Ok(Some(measured))
}
