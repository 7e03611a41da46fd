//! A comparison as a page: the same figures, charts and trade-offs as of a run, without time series.

use serde_json::{Value, json};

use super::page::{Page, Subject};
use super::units::{bytes, number};
use crate::compare::{Comparison, Row};
use crate::metrics::LatencySummary;
use crate::num::{count, float};

/// The comparison as an HTML page.
pub fn html(comparison: &Comparison) -> String {
    let subjects = comparison.rows.iter().map(|row| Subject {
        name: row.strategy.clone(),
        rows: vec![row_of(row, comparison)],
        ..Subject::default()
    });
    Page {
        kind: "comparison",
        title: "Compaction strategies compared".to_owned(),
        facts: facts(comparison),
        subjects: subjects.collect(),
        notes: Vec::new(),
        machines: Vec::new(),
    }
    .render()
}

fn row_of(row: &Row, comparison: &Comparison) -> Value {
    let mut value = serde_json::to_value(row).expect("plain data always serializes");
    let kind = |latency: &LatencySummary| json!({ "count": latency.count, "latency": latency });
    let phase = |name: &str, ops_per_s: f64| json!({ "name": name, "ops_per_s": ops_per_s, "kinds": {} });
    let mut phases = vec![
        phase("load", row.load_ops_per_s),
        phase("update", row.update_ops_per_s),
        phase("delete", row.delete_ops_per_s),
        phase("read", row.read_ops_per_s),
        phase("read missing", row.missing_read_ops_per_s),
        phase("scan", row.scan_ops_per_s),
    ];
    phases.retain(|phase| phase["ops_per_s"].as_f64() != Some(0.0));
    phases.push(json!({
        "name": "all", "ops_per_s": null,
        "kinds": { "write": kind(&row.write_latency), "read": kind(&row.read_latency) },
    }));
    let levels = (0u64..).zip(&row.tree).map(|(level, runs)| json!({ "level": level, "runs": runs }));
    value["phases"] = Value::Array(phases);
    value["levels"] = Value::Array(levels.collect());
    value["seed"] = comparison.seed.into();
    value["repetition"] = 1.into();
    value["fingerprint"] = format!("{:016x}", row.fingerprint).into();
    value
}

fn facts(comparison: &Comparison) -> Vec<(String, String)> {
    let (survey, scale) = (&comparison.survey, &comparison.scale);
    let facts = [
        ("Input", comparison.input.clone()),
        (
            "Size",
            format!(
                "{} records, {} of keys, {} of values; {:.0} % in ascending order",
                survey.records,
                bytes(survey.key_bytes),
                bytes(survey.value_bytes),
                survey.ascending_share * 100.0
            ),
        ),
        (
            "Then",
            format!(
                "{} updates, {} deletes, {} lookups of existing and {} of missing keys, one full scan",
                comparison.updates, comparison.deletes, comparison.reads, comparison.missing_reads
            ),
        ),
        (
            "Sizes",
            format!(
                "memtable {}, files {}, cache {}: about {} flushes for the load",
                bytes(scale.memtable_bytes),
                bytes(scale.file_bytes),
                bytes(scale.cache_bytes),
                number(float(scale.expected_flushes))
            ),
        ),
        ("Seed", format!("{} (generator version {})", comparison.seed, crate::workload::GENERATOR_VERSION)),
        ("Strategies", count(comparison.rows.len()).to_string()),
    ];
    facts.map(|(name, value)| (name.to_owned(), value)).into()
}
