//! A fit as the text of a spec.

use std::fmt::Write as _;

use super::{AccessLaw, ArrivalFit, Fit, OpFit, PhaseFit, SizeFit, SizeShape};
use crate::num::{float, floor, ratio};

/// The spec. What it cannot say is added to the notes.
pub(super) fn text(name: &str, fit: &mut Fit, keyspaces: &[(String, u64)]) -> String {
    let mut out = String::new();
    if keyspaces.len() > 1 {
        keep_to_one_keyspace(fit);
    }
    let ops = || fit.phases.iter().flat_map(|phase| &phase.mix);
    let inserted: u64 = ops().filter(|op| op.kind == "insert").map(|op| op.count - op.reused).sum();
    let fills = ops().any(|op| op.kind == "upsert");
    let mut before = fit.preloaded;
    if before == 0
        && !fills
        && let Some(phase) = reads_nothing(fit)
    {
        before = fit.keys.max(KEYS_TO_READ);
        fit.notes.push(format!(
            "{phase} reads or deletes before anything was seen stored; the spec stores {before} keys first"
        ));
    }
    let records = if fills { fit.keys } else { before + inserted }.max(1);
    let _ = writeln!(
        out,
        "# Fitted to a trace. `distance` is how far a law is from what was seen, 0 to 1; above {} it fits badly.",
        super::GOOD_DISTANCE
    );
    let keys = keys(fit, records);
    for note in &fit.notes {
        let _ = writeln!(out, "# Note: {note}.");
    }
    let _ = writeln!(out, "name = {}\nabout = \"fitted to a trace\"\nseed = 1\nrecords = {records}\n", quoted(name));
    out += &keys;
    out += "\n[values]\n";
    let value_bytes = fit.value_bytes.as_ref();
    let _ = match value_bytes {
        Some(fit) => writeln!(out, "bytes = {}{}", size(fit, 0), how_near(fit.distance)),
        None => writeln!(out, "bytes = 100 # no value was seen"),
    };
    if keyspaces.len() > 1 || keyspaces.first().is_some_and(|(name, _)| name != "default") {
        for (name, used) in keyspaces {
            let _ = writeln!(out, "\n[[keyspace]]\nname = {}\nweight = {}", quoted(name), float(*used));
        }
    }
    if before > 0 {
        let put = if fills { "do = \"upsert\", law = \"sequential\"" } else { "do = \"insert\"" };
        let _ = writeln!(
            out,
            "\n# These keys were there when the trace began.\n[[phase]]\nname = \"before\"\noperations = {before}\nwarm_up = true\nsettle = true\nmix = [{{ {put} }}]",
        );
    }
    for at in &fit.phases {
        phase(&mut out, at, fills);
    }
    out
}

/// Keys that a spec stores where the trace reads and nothing tells how many there were.
const KEYS_TO_READ: u64 = 1000;

/// The first phase that needs keys while none is there.
fn reads_nothing(fit: &Fit) -> Option<String> {
    let fills = |op: &OpFit| matches!(op.kind, "insert" | "upsert");
    let is_bare = |op: &OpFit| matches!(op.kind, "flush" | "compact");
    let first = fit.phases.iter().find(|phase| phase.mix.iter().any(|op| !is_bare(op)))?;
    (!first.mix.iter().any(fills)).then(|| first.name.clone())
}

/// A call asks one keyspace, and a range lies in one: with several, a spec has single keys instead.
fn keep_to_one_keyspace(fit: &mut Fit) {
    for (kind, instead) in [("multi-get", "get"), ("range-delete", "delete")] {
        let ops = fit.phases.iter_mut().flat_map(|phase| &mut phase.mix).filter(|op| op.kind == kind);
        let mut calls = 0;
        for op in ops {
            calls += op.count;
            (op.kind, op.length) = (instead, None);
        }
        if calls > 0 {
            fit.notes.push(format!("{calls} times `{kind}` is a `{instead}` of one key: there are several keyspaces"));
        }
    }
}

fn keys(fit: &mut Fit, records: u64) -> String {
    // Stored keys take every second slot; the slot is written with letters.
    let letters = |base: f64| floor(libm::ceil(libm::log(2.0 * float(records) + 2.0) / libm::log(base)));
    let (digits, letters) = (letters(10.0), letters(62.0));
    let least = match &fit.key_bytes.law {
        SizeShape::Constant { value } => *value,
        SizeShape::Uniform { min, .. }
        | SizeShape::Normal { min, .. }
        | SizeShape::Lognormal { min, .. }
        | SizeShape::Exponential { min, .. }
        | SizeShape::Weights { min, .. } => *min,
    };
    let alphabet = if least >= digits { "" } else { "alphabet = \"alphanumeric\"\n" };
    let needed = if least >= digits { digits } else { letters };
    if least < needed {
        fit.notes.push(format!(
            "keys of {least} bytes are too short for {records} different ones made of letters; the spec's have {needed} bytes and more"
        ));
    }
    let order = if fit.sorted_inserts > 0.999 { "ordered" } else { "random" };
    if fit.sorted_inserts > 0.7 && order == "random" {
        fit.notes.push(format!(
            "{:.1} % of the inserts come in ascending order; the spec has them at random",
            100.0 * fit.sorted_inserts
        ));
    }
    let near = how_near(fit.key_bytes.distance);
    format!(
        "[keys]\nkind = \"string\"\nbytes = {}{near}\n{alphabet}order = \"{order}\"\n",
        size(&fit.key_bytes, needed)
    )
}

fn phase(out: &mut String, phase: &PhaseFit, fills: bool) {
    let _ = writeln!(out, "\n[[phase]]\nname = {}\noperations = {}", quoted(&phase.name), phase.operations);
    if phase.batch > 1 {
        let _ = writeln!(out, "batch = {}", phase.batch);
    }
    if phase.durability != "buffered" {
        let _ = writeln!(out, "durability = \"{}\"", phase.durability);
    }
    arrivals(out, &phase.arrivals);
    out.push_str("mix = [\n");
    // The shares add up to 1 to the last digit.
    let mut left = 1_000_000u64;
    for (at, op) in phase.mix.iter().enumerate() {
        let is_last = at + 1 == phase.mix.len();
        let share = if is_last { left } else { floor((op.share * 1e6).round()).min(left) };
        left -= share;
        entry(out, op, share, fills);
    }
    out.push_str("]\n");
}

fn entry(out: &mut String, op: &OpFit, share: u64, fills: bool) {
    // A workload has either.
    let kind = if op.kind == "insert" && fills { "upsert" } else { op.kind };
    let _ = write!(out, "    {{ do = \"{kind}\", share = {}", float(share) / 1e6);
    if op.kind == "insert" && op.reused > 0 && !fills {
        let _ = write!(out, ", reuse = {}", figure(ratio(op.reused, op.count), 4));
    }
    let mut distances = Vec::new();
    if let Some(access) = op.access.as_ref().filter(|_| op.kind != "insert") {
        let law = match access.law {
            AccessLaw::Uniform => "\"uniform\"".to_owned(),
            AccessLaw::Sequential => "\"sequential\"".to_owned(),
            AccessLaw::Zipf { theta } => format!("{{ kind = \"zipf\", theta = {} }}", figure(theta, 3)),
            AccessLaw::Latest { theta } => format!("{{ kind = \"latest\", theta = {} }}", figure(theta, 3)),
            AccessLaw::Hotspot { data, operations } => {
                format!("{{ kind = \"hotspot\", data = {data:.4}, operations = {operations:.4} }}")
            }
        };
        let _ = write!(out, ", law = {law}");
        distances.push(format!("law {:.3}", access.distance));
    }
    if let Some(length) = &op.length {
        let _ = write!(out, ", length = {}", size(length, 1));
        distances.push(format!("length {:.3}", length.distance));
    } else if op.kind.starts_with("scan") || op.kind == "range-delete" {
        out.push_str(", length = 100");
        distances.push("its length is not known".to_owned());
    }
    if let Some(bytes) = op.prefix_bytes {
        let _ = write!(out, ", prefix_bytes = {bytes}");
    }
    let told = if distances.is_empty() { String::new() } else { format!(" # distance: {}", distances.join(", ")) };
    let _ = writeln!(out, " }},{told}");
}

fn arrivals(out: &mut String, fit: &ArrivalFit) {
    let told = format!("# gaps vary by {:.2} of their mean", fit.gap_variation);
    match fit.law {
        "unknown" => {}
        "bursts" => {
            let stretch = |(rate, time): &(f64, f64)| {
                let rate = if *rate < LEAST_RATE { 0.0 } else { *rate };
                format!("{{ per_second = {}, for = \"{}ms\" }}", figure(rate, 3), floor((time * 1e3).round()).max(1))
            };
            let of: Vec<String> = fit.stretches.iter().map(stretch).collect();
            let _ = writeln!(
                out,
                "arrivals = {{ kind = \"stretches\", spacing = \"poisson\", of = [{}] }} {told}; two levels explain {:.0} % of the rate's variance",
                of.join(", "),
                100.0 * fit.explained
            );
        }
        law => {
            let _ = writeln!(
                out,
                "arrivals = {{ kind = \"open\", per_second = {}, spacing = \"{law}\" }} {told}",
                figure(fit.per_second.max(LEAST_RATE), 3)
            );
        }
    }
}

/// Operations a second that a spec may ask for at least.
const LEAST_RATE: f64 = 1e-6;

/// A number with so many digits behind the point, or with as many that count where it is so small that these are all 0.
fn figure(x: f64, digits: usize) -> String {
    if x == 0.0 || x >= libm::pow(10.0, -float(crate::num::count(digits))) {
        format!("{x:.digits$}")
    } else {
        format!("{x:.digits$e}")
    }
}

/// A law of sizes of at least `least`.
fn size(fit: &SizeFit, least: u64) -> String {
    let from = |min: u64| min.max(least);
    let bounds = |min: u64, max: u64| format!("min = {}, max = {}", from(min), max.max(from(min)));
    match &fit.law {
        SizeShape::Constant { value } => from(*value).to_string(),
        SizeShape::Uniform { min, max } => format!("{{ kind = \"uniform\", {} }}", bounds(*min, *max)),
        SizeShape::Normal { mean, deviation, min, max } => {
            let deviation = figure(*deviation, 3);
            format!("{{ kind = \"normal\", mean = {mean:.3}, deviation = {deviation}, {} }}", bounds(*min, *max))
        }
        SizeShape::Lognormal { median, sigma, min, max } => {
            let sigma = figure(*sigma, 4);
            format!("{{ kind = \"lognormal\", median = {median:.3}, sigma = {sigma}, {} }}", bounds(*min, *max))
        }
        SizeShape::Exponential { mean, min, max } => {
            format!("{{ kind = \"exponential\", mean = {}, {} }}", figure(*mean, 3), bounds(*min, *max))
        }
        SizeShape::Weights { of, min } => {
            let skipped = crate::num::index(least.saturating_sub(*min)).min(of.len().saturating_sub(1));
            let of: Vec<String> = of[skipped..].iter().map(|n| format!("{n:.1}")).collect();
            format!("{{ kind = \"weights\", min = {}, of = [{}] }}", from(*min), of.join(", "))
        }
    }
}

fn how_near(distance: f64) -> String {
    format!(" # distance {distance:.3}")
}

/// A string of TOML.
fn quoted(text: &str) -> String {
    ::toml::Value::String(text.to_owned()).to_string()
}
