//! `bench --peers`: the program `siltstone-peers` runs the rows, for it is built with the other stores and this one is not.

use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use siltstone_lab::workload::BASIC;

use super::{Bench, temporary_folder};
use crate::failure::Interrupted;
use crate::interrupt::Interrupt;
use crate::output::print_json;

/// How often the program is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl Bench {
    /// Runs Siltstone and the peers by turns and shows the table that `siltstone-peers` makes.
    pub(super) fn run_beside_peers(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        ensure!(
            self.store.is_none() && self.key_bytes == super::KEY_BYTES && self.options.is_empty(),
            "--peers measures all stores with the same keys of {} bytes and equal budgets, each in a folder of its own: leave out STORE, \
             --key-bytes, --options and --set (siltstone-peers --help has the budgets)",
            super::KEY_BYTES
        );
        let program = find()?;
        let folder = temporary_folder()?;
        let rows = folder.path().join("rows.json");
        let mut command = Command::new(&program);
        command.args(["--engines", &format!("siltstone,{}", self.peers.join(","))]);
        command.arg("--dir").arg(folder.path().join("stores")).arg("--json").arg(&rows);
        command.args(["--num", &self.num.to_string(), "--value-bytes", &self.value_bytes.to_string()]);
        command.args(["--reps", &self.reps.to_string(), "--seed", &self.seed.to_string()]);
        if let Some(reads) = self.reads {
            command.args(["--reads", &reads.to_string()]);
        }
        // Its own choice has YCSB besides.
        if self.workloads != BASIC {
            command.args(["--workloads", &self.workloads.join(",")]);
        }
        if self.telling.json {
            command.stdout(Stdio::null());
        }
        let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let cannot_wait = || format!("{} cannot be waited for", program.display());
        let status = loop {
            if let Some(status) = child.try_wait().with_context(cannot_wait)? {
                break status;
            }
            // Ctrl-C reaches it as well, a signal to this process alone does not.
            if interrupt.is_set() {
                child.kill().with_context(cannot_wait)?;
            }
            std::thread::sleep(LOOK_EVERY);
        };
        ensure!(!interrupt.is_set(), Interrupted::leaving("nothing is left behind"));
        if !status.success() {
            bail!("{} ended with {status}", program.display());
        }
        if self.telling.json {
            let text = std::fs::read(&rows).with_context(|| format!("cannot read {}", rows.display()))?;
            let mut document: serde_json::Value = serde_json::from_slice(&text)?;
            print_json(&document["medians"].take())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The program: beside this one, in a checkout where its README has it built, or in PATH.
fn find() -> anyhow::Result<PathBuf> {
    let name = format!("siltstone-peers{}", env::consts::EXE_SUFFIX);
    let own = env::current_exe().context("cannot tell where this program is")?;
    let beside = own.parent().map(|folder| folder.join(&name));
    let checkout = own.ancestors().nth(3).map(|root| root.join("crates/siltstone-peers/target/release").join(&name));
    let path = env::var_os("PATH").unwrap_or_default();
    let in_path = env::split_paths(&path).map(|folder| folder.join(&name));
    match beside.into_iter().chain(checkout).chain(in_path).find(|program| program.is_file()) {
        Some(program) => Ok(program),
        None => bail!(
            "--peers takes the program siltstone-peers, which is neither beside this one nor in PATH: in a checkout, cd crates/siltstone-peers && \
             cargo build --release (the README there tells what that needs, and how to leave a store out)"
        ),
    }
}
