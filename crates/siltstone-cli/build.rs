//! Tells the program which commit it was built from, for the results that it writes; nothing where there is no repository.

use std::process::Command;

fn main() {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
    };
    println!("cargo::rustc-env=SILTSTONE_COMMIT={}", git(&["rev-parse", "HEAD"]).unwrap_or_default());
    // Every commit and every switch of branches adds a line there.
    match git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        Some(log) => println!("cargo::rerun-if-changed={log}"),
        None => println!("cargo::rerun-if-changed=build.rs"),
    }
}
