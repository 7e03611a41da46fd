//! How fast operations are made, and in how little memory.
//!
//! ```sh
//! cargo bench -p siltstone-lab --bench generator                # rates; an argument is the operations of a round
//! cargo bench -p siltstone-lab --bench generator -- --memory    # peak memory with a thousand million keys: minutes
//! ```
//!
//! One core, 16-byte keys, values of 100 bytes. The bars: 10 million operations a second with uniform keys, 6 million with Zipf-distributed ones, so
//! that the generator never bounds a benchmark. Each figure is the best of five rounds, in processor time; below a bar the program fails. Memory is the peak of
//! what the whole program had resident; above 64 MiB it fails.
#![allow(missing_docs, clippy::disallowed_macros, clippy::disallowed_methods, reason = "it measures and prints")]

use std::hint::black_box;
use std::process::ExitCode;

use siltstone_lab::workload::{Generator, Spec};

const ROUNDS: usize = 5;
const MOST_MIB: f64 = 64.0;

/// What is measured, the bar in millions a second, and the mix.
const CASES: [(&str, f64, &str); 8] = [
    ("uniform: get", 10.0, r#"{ do = "get" }"#),
    ("uniform: update", 10.0, r#"{ do = "update" }"#),
    ("uniform: half and half", 10.0, r#"{ do = "get", share = 0.5 }, { do = "update", share = 0.5 }"#),
    ("zipf 0.99: get", 6.0, r#"{ do = "get", law = { kind = "zipf", theta = 0.99 } }"#),
    (
        "zipf 0.99: half and half",
        6.0,
        r#"{ do = "get", share = 0.5, law = { kind = "zipf", theta = 0.99 } }, { do = "update", share = 0.5, law = { kind = "zipf", theta = 0.99 } }"#,
    ),
    ("latest: with inserts", 0.0, r#"{ do = "get", share = 0.95, law = "latest" }, { do = "insert", share = 0.05 }"#),
    ("missing", 0.0, r#"{ do = "get-missing" }"#),
    ("deletes at random", 0.0, r#"{ do = "insert", share = 0.5 }, { do = "delete", share = 0.5 }"#),
];

fn spec(records: u64, mix: &str, operations: u64) -> Spec {
    let text = format!(
        "name = \"bench\"\nrecords = {records}\n[keys]\nkind = \"string\"\nbytes = 16\n[[phase]]\nname = \"load\"\noperations = \"100%\"\n\
         mix = [{{ do = \"insert\" }}]\n[[phase]]\nname = \"run\"\noperations = {operations}\nmix = [{mix}]\n"
    );
    Spec::parse(&text, "bench").expect("a right spec")
}

/// The processor time of this thread: what else runs on the machine counts less than in wall time.
fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Millions of operations a second of the phase at work.
fn rate(generator: &mut Generator) -> f64 {
    let (start, mut operations) = (cpu_s(), 0u64);
    while let Some(op) = generator.next().expect("operations") {
        black_box((op.kind, op.key, op.value));
        operations += 1;
    }
    operations as f64 / (cpu_s() - start) / 1e6
}

/// The most that this program has had resident, in MiB.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux says what a program takes");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line for the peak");
    line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") / 1024.0
}

/// Makes all keys, then ten million operations and shows the peak so far after each; false if it is too much.
fn memory() -> bool {
    let mut is_small = true;
    // The last is about the largest of those that delete anywhere: a bit for each key.
    let cases = [
        (
            1_000_000_000,
            "uniform and zipf 0.99",
            r#"{ do = "get", share = 0.5 }, { do = "update", share = 0.5, law = { kind = "zipf", theta = 0.99 } }"#,
        ),
        (400_000_000, "deletes at random", r#"{ do = "get", share = 0.5 }, { do = "delete", share = 0.5 }"#),
    ];
    for (records, name, mix) in cases {
        let spec = spec(records, mix, 10_000_000);
        let mut generator = Generator::new(&spec, 0).expect("a generator");
        rate(&mut generator);
        assert!(generator.next_phase());
        rate(&mut generator);
        let peak_mib = peak_mib();
        println!("{records:>12} keys, then 10 M operations, {name:<22} peak {peak_mib:5.1} MiB of {MOST_MIB}");
        is_small &= peak_mib <= MOST_MIB;
    }
    is_small
}

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--memory") {
        return if memory() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let operations = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(4_000_000);
    let mut is_slow = false;
    let mut show = |name: &str, best: f64, bar: f64| {
        let verdict = if best < bar { "TOO SLOW" } else { "" };
        let bar_text = if bar > 0.0 { format!("bar {bar:4.1}") } else { String::new() };
        println!("{name:<28} {best:6.2} M/s  {bar_text} {verdict}");
        is_slow |= best < bar;
    };
    let mut load: f64 = 0.0;
    for (name, bar, mix) in CASES {
        let spec = spec(10_000_000, mix, operations);
        let mut best: f64 = 0.0;
        for _ in 0..ROUNDS {
            let mut generator = Generator::new(&spec, 0).expect("a generator");
            load = load.max(rate(&mut generator));
            assert!(generator.next_phase());
            best = best.max(rate(&mut generator));
        }
        show(name, best, bar);
    }
    show("uniform: insert", load, 10.0);
    if is_slow { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
