//! Flushes and compactions with their decision records, as columns.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::pack::{Delta, micros, short};

/// A line of `compactions.jsonl`.
#[derive(Deserialize)]
pub(super) struct Compaction {
    pub(super) at_s: f64,
    #[serde(default)]
    pub(super) took_s: f64,
    pub(super) keyspace: String,
    pub(super) kind: String,
    pub(super) from_level: Option<u8>,
    pub(super) to_level: u8,
    pub(super) bytes_read: u64,
    pub(super) bytes_written: u64,
    pub(super) decision: Option<Decision>,
}

/// What the page shows of a decision record.
#[derive(Deserialize)]
pub(super) struct Decision {
    job: u64,
    reason: Value,
    trigger: String,
    #[serde(deserialize_with = "number")]
    value: f64,
    #[serde(deserialize_with = "number")]
    threshold: f64,
    candidates: Vec<Candidate>,
    candidates_total: usize,
    #[serde(default)]
    read_bytes: u64,
    #[serde(default)]
    write_bytes: u64,
    #[serde(default)]
    predicted_ns: Option<u64>,
    #[serde(default)]
    ended: Option<Ended>,
}

#[derive(Deserialize)]
struct Candidate {
    file: u64,
    #[serde(default)]
    runs: u32,
    /// JSON has no infinity: it is null.
    scores: Vec<Option<f64>>,
    chosen: bool,
    blocked: bool,
}

#[derive(Deserialize)]
struct Ended {
    ending: Value,
    #[serde(default)]
    dropped_versions: u64,
    #[serde(default)]
    dropped_tombstones: u64,
}

/// JSON has no infinity: it is null.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::INFINITY))
}

impl Compaction {
    pub(super) fn job(&self) -> Option<u64> {
        self.decision.as_ref().map(|decision| decision.job)
    }

    pub(super) fn is_flush(&self) -> bool {
        self.kind == "flush"
    }
}

/// Columns, one entry a compaction, but for the candidates: those of all compactions one after the other, and of each how many.
#[derive(Default, Serialize)]
pub(super) struct PackedDecisions {
    /// Microseconds since the one before.
    at: Vec<i64>,
    took_us: Vec<u64>,
    kind: Vec<usize>,
    from: Vec<Option<u8>>,
    to: Vec<u8>,
    read: Vec<u64>,
    written: Vec<u64>,
    job: Vec<i64>,
    /// Numbers of texts, as `kind` and `ending` are.
    reason: Vec<usize>,
    trigger: Vec<usize>,
    ending: Vec<usize>,
    value: Vec<Option<f64>>,
    threshold: Vec<Option<f64>>,
    planned_read: Vec<u64>,
    planned_written: Vec<u64>,
    predicted_us: Vec<Option<u64>>,
    dropped: Vec<(u64, u64)>,
    /// How many candidates there were.
    total: Vec<usize>,
    /// How many are kept.
    kept: Vec<usize>,
    candidate_file: Vec<i64>,
    candidate_runs: Vec<u32>,
    /// 1 chosen, 2 blocked.
    candidate_flags: Vec<u8>,
    candidate_scores: Vec<Vec<Option<f64>>>,
    texts: Vec<String>,
}

impl PackedDecisions {
    pub(super) fn new(compactions: &[&Compaction], candidates: usize) -> PackedDecisions {
        let mut packed = PackedDecisions { texts: vec![String::new()], ..PackedDecisions::default() };
        let (mut at, mut job) = (Delta(0), Delta(0));
        for compaction in compactions {
            packed.at.push(at.to(micros(compaction.at_s)));
            packed.took_us.push(micros(compaction.took_s));
            let kind = packed.text(&compaction.kind);
            packed.kind.push(kind);
            packed.from.push(compaction.from_level);
            packed.to.push(compaction.to_level);
            packed.read.push(compaction.bytes_read);
            packed.written.push(compaction.bytes_written);
            packed.job.push(compaction.job().map_or(0, |n| job.to(n)));
            packed.decision(compaction.decision.as_ref(), candidates);
        }
        packed
    }

    fn decision(&mut self, decision: Option<&Decision>, candidates: usize) {
        let reason = self.text(&decision.map_or(String::new(), |decision| reason(&decision.reason)));
        let trigger = self.text(decision.map_or("", |decision| &decision.trigger));
        let ended = decision.and_then(|decision| decision.ended.as_ref());
        let ending = self.text(&match ended {
            Some(ended) => ending(&ended.ending),
            None if decision.is_some() => "running".to_owned(),
            None => "done".to_owned(),
        });
        self.reason.push(reason);
        self.trigger.push(trigger);
        self.ending.push(ending);
        let finite = |x: Option<f64>| x.filter(|x| x.is_finite()).map(short);
        self.value.push(finite(decision.map(|decision| decision.value)));
        self.threshold.push(finite(decision.map(|decision| decision.threshold)));
        self.planned_read.push(decision.map_or(0, |decision| decision.read_bytes));
        self.planned_written.push(decision.map_or(0, |decision| decision.write_bytes));
        self.predicted_us.push(decision.and_then(|decision| decision.predicted_ns).map(|ns| ns / 1000));
        self.dropped.push(ended.map_or((0, 0), |ended| (ended.dropped_versions, ended.dropped_tombstones)));
        self.total.push(decision.map_or(0, |decision| decision.candidates_total));
        let kept = decision.map_or(&[][..], |decision| &decision.candidates);
        let kept = &kept[..kept.len().min(candidates)];
        self.kept.push(kept.len());
        let mut file = Delta(0);
        for candidate in kept {
            self.candidate_file.push(file.to(candidate.file));
            self.candidate_runs.push(candidate.runs);
            self.candidate_flags.push(u8::from(candidate.chosen) + 2 * u8::from(candidate.blocked));
            self.candidate_scores.push(candidate.scores.iter().map(|score| finite(*score)).collect());
        }
    }

    /// The number of a text. There are few: kinds, rules, triggers, and seldom the message of an error.
    fn text(&mut self, text: &str) -> usize {
        self.texts.iter().position(|known| known == text).unwrap_or_else(|| {
            self.texts.push(text.to_owned());
            self.texts.len() - 1
        })
    }
}

/// `{"rule": 1}` as `rule 1`, `"layout"` as it is, a policy's words as they are.
fn reason(reason: &Value) -> String {
    match (reason, &reason["rule"], &reason["policy"]) {
        (_, Value::Number(n), _) => format!("rule {n}"),
        (_, _, Value::String(words)) => words.clone(),
        (Value::String(name), _, _) => name.clone(),
        _ => String::new(),
    }
}

/// `"done"` as it is, `{"failed": "why"}` as `failed: why`.
fn ending(ending: &Value) -> String {
    match ending {
        Value::String(name) => name.clone(),
        Value::Object(fields) => {
            let field = fields.iter().next();
            field.map_or(String::new(), |(name, why)| format!("{name}: {}", why.as_str().unwrap_or_default()))
        }
        _ => String::new(),
    }
}
