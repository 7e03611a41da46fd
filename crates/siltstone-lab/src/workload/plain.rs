//! One operation repeated: what `siltstone bench`, `compare` and the experiments in virtual time are made of.
//!
//! These came before [`Spec`](super::Spec) and stay as they are, since published figures of experiments hang on their streams to the bit: other
//! keys, or values from other places, would be other runs.

use serde::Serialize;

/// A workload as plain data.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Workload {
    /// Decides every random choice.
    pub seed: u64,
    /// How many different keys there are.
    pub records: u64,
    /// Bytes of a key, at least 8: the key's number in decimal, zero-padded on the left.
    pub key_bytes: u32,
    /// Bytes of a value; half of them random, the other half a repetition, so that compression finds a factor of two.
    pub value_bytes: u32,
    /// What is done, in order.
    pub phases: Vec<Phase>,
}

impl Workload {
    /// Bytes of a record's key and value.
    pub fn record_bytes(&self) -> u64 {
        u64::from(self.key_bytes) + u64::from(self.value_bytes)
    }
}

/// One operation repeated.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Phase {
    /// Its name, as db_bench calls it where it is one of its workloads.
    pub name: String,
    /// What each repetition does.
    pub operation: Operation,
    /// Which key it picks.
    pub law: KeyLaw,
    /// How often.
    pub count: u64,
    /// Whether the phase starts from an empty keyspace.
    pub fresh: bool,
    /// Whether a second thread puts uniformly chosen keys all the while; its work is not in the phase's figures.
    pub background_writer: bool,
}

/// What a phase repeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Store a key.
    Put,
    /// Remove a key.
    Delete,
    /// Look a key up.
    Get,
    /// Look a key up that no phase ever stores, but that lies among those that are stored.
    GetMissing,
    /// Position an iterator at a key and read one record.
    Seek,
    /// Read the next record of one iterator over everything.
    Scan,
}

/// Which key each repetition picks.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyLaw {
    /// 0, 1, 2, ... and round again.
    Sequential,
    /// Every key once, in random order, and round again.
    Shuffled,
    /// Any key, each equally likely.
    Uniform,
    /// Few keys often: the key of rank r with probability proportional to r^-theta; ranks are spread over the key space.
    Zipf {
        /// The skew, above 0; YCSB uses 0.99.
        theta: f64,
    },
}

/// The names of [`basic`], in the order in which they make sense.
pub const BASIC: [&str; 9] = [
    "fillseq",
    "fillrandom",
    "overwrite",
    "readrandom",
    "readmissing",
    "readseq",
    "seekrandom",
    "readwhilewriting",
    "deleterandom",
];

/// db_bench's basic workload `name` as a phase of `count` operations; `None` for an unknown name.
pub fn basic(name: &str, count: u64) -> Option<Phase> {
    let (operation, law) = match name {
        "fillseq" => (Operation::Put, KeyLaw::Sequential),
        "fillrandom" | "overwrite" => (Operation::Put, KeyLaw::Uniform),
        "readrandom" | "readwhilewriting" => (Operation::Get, KeyLaw::Uniform),
        "readmissing" => (Operation::GetMissing, KeyLaw::Uniform),
        "readseq" => (Operation::Scan, KeyLaw::Sequential),
        "seekrandom" => (Operation::Seek, KeyLaw::Uniform),
        "deleterandom" => (Operation::Delete, KeyLaw::Uniform),
        _ => return None,
    };
    Some(Phase {
        name: name.to_owned(),
        operation,
        law,
        count,
        fresh: name.starts_with("fill"),
        background_writer: name == "readwhilewriting",
    })
}
