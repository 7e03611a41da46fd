//! Why a compaction was chosen: what `explain` shows and what an event listener gets.

use std::fmt;

use serde::Serialize;

use crate::version::SstId;

/// How many candidates a record keeps; the others are only counted.
pub const MAX_CANDIDATES: usize = 16;

/// Who asked for the compaction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// A rule of the strategy, counted from 1.
    Rule(usize),
    /// The layout: a leveled level holds more than one run.
    Layout,
    /// A user.
    Manual,
    /// The keyspace's option `delete_by`.
    Deadline,
    /// A policy of the user's own, with its words.
    Policy(String),
}

/// Files, or whole runs, that could have been taken; named by the first file, of runs the newest one's.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Candidate {
    /// The first file.
    #[serde(serialize_with = "id")]
    pub file: SstId,
    /// How many sorted runs it is, of a group, a level or a window of runs; 0 for files.
    pub runs: u32,
    /// Smaller ones go first. Of files, one score for each movement choice of the rule; of runs, what the picker compares
    /// ([`considered`](super::runs::considered)), or the place in the strategy's priority. Infinite for what may not be taken.
    pub scores: Vec<f64>,
    /// Whether it was taken.
    pub chosen: bool,
    /// Whether it could not be taken because a running job stands in the way.
    pub blocked: bool,
}

fn id<S: serde::Serializer>(id: &SstId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(id.0)
}

/// Why a plan was made, and what it should cost. The actual cost is added when the job has ended.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DecisionRecord {
    /// Who asked.
    pub reason: Reason,
    /// The trigger's name.
    pub trigger: String,
    /// The trigger's value.
    pub value: f64,
    /// Where the trigger fires.
    pub threshold: f64,
    /// The best candidates, the chosen first, then in the order of preference; at most [`MAX_CANDIDATES`].
    pub candidates: Vec<Candidate>,
    /// How many candidates there were.
    pub candidates_total: usize,
    /// Bytes that the job will read.
    pub read_bytes: u64,
    /// Bytes that it will write at most.
    pub write_bytes: u64,
}

impl DecisionRecord {
    /// A record without candidates; the predicted bytes follow when the inputs are known.
    pub fn new(reason: Reason, trigger: impl Into<String>, value: f64, threshold: f64) -> DecisionRecord {
        DecisionRecord {
            reason,
            trigger: trigger.into(),
            value,
            threshold,
            candidates: Vec::new(),
            candidates_total: 0,
            read_bytes: 0,
            write_bytes: 0,
        }
    }
}

impl fmt::Display for DecisionRecord {
    /// `rule 1, sorted-runs 2 >= 2`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Reason::Rule(n) => write!(f, "rule {n}, ")?,
            Reason::Layout => write!(f, "layout, ")?,
            Reason::Manual => return write!(f, "manual"),
            Reason::Deadline => write!(f, "deadline, ")?,
            Reason::Policy(why) => write!(f, "{why}, ")?,
        }
        // Two decimals are enough to compare; a whole number is shown as one.
        let show = |x: f64| {
            if x.fract() == 0.0 { format!("{x:.0}") } else { format!("{x:.2}") }
        };
        write!(f, "{} {} >= {}", self.trigger, show(self.value), show(self.threshold))
    }
}
