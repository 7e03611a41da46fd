//! Compiles Pebble, which is Go, if the feature `pebble` asks for it: `pebble/` becomes a static library with a C interface.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=pebble");
    if env::var_os("CARGO_FEATURE_PEBBLE").is_none() {
        return;
    }
    let out = env::var("OUT_DIR").expect("cargo sets it");
    let status = Command::new("go")
        .args(["build", "-buildmode=c-archive", "-trimpath", "-o"])
        .arg(Path::new(&out).join("libpebble.a"))
        .arg(".")
        .current_dir("pebble")
        .env("CGO_ENABLED", "1")
        .status()
        .expect("the feature `pebble` needs Go: `go` must be in PATH");
    assert!(status.success(), "go build of Pebble ended with {status}");
    println!("cargo::rustc-link-search=native={out}");
    println!("cargo::rustc-link-lib=static=pebble");
}
