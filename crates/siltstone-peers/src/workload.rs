//! The workloads: what `db_bench` calls by the same names, with the two differences that the README tells.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A workload. They run in this order, whatever order they are asked for in: the later ones work on the store that `fillrandom` left.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub(crate) enum Workload {
    /// Puts every key once, ascending, into a store of its own.
    FillSeq,
    /// Puts every key once, in random order, into an empty store.
    FillRandom,
    /// Gets keys that are there, uniformly.
    ReadRandom,
    /// `readrandom` by two threads at once, each with keys of its own choice.
    ReadRandom2,
    /// Gets keys that are not there, each between two that are.
    ReadMissing,
    /// Seeks a key that is there, with a new iterator, and reads it and the next 50 entries.
    SeekRandom,
    /// Puts as many records as there are keys, each to a uniformly drawn key.
    Overwrite,
    /// `readrandom` while another thread puts 50 000 records a second.
    ReadWhileWriting,
    /// Deletes uniformly drawn keys, as many as there are.
    DeleteRandom,
}

impl Workload {
    /// All of them, in their order.
    pub(crate) const ALL: &[Workload] = &[
        Workload::FillSeq,
        Workload::FillRandom,
        Workload::ReadRandom,
        Workload::ReadRandom2,
        Workload::ReadMissing,
        Workload::SeekRandom,
        Workload::Overwrite,
        Workload::ReadWhileWriting,
        Workload::DeleteRandom,
    ];

    /// Its name in tables and on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Workload::FillSeq => "fillseq",
            Workload::FillRandom => "fillrandom",
            Workload::ReadRandom => "readrandom",
            Workload::ReadRandom2 => "readrandom2",
            Workload::ReadMissing => "readmissing",
            Workload::SeekRandom => "seekrandom",
            Workload::Overwrite => "overwrite",
            Workload::ReadWhileWriting => "readwhilewriting",
            Workload::DeleteRandom => "deleterandom",
        }
    }

    /// Its place among all, so that each can have random numbers of its own.
    pub(crate) fn number(self) -> u64 {
        let place = Workload::ALL.iter().position(|&workload| workload == self).expect("ALL holds all");
        u64::try_from(place).expect("few")
    }

    /// Whether what is measured are writes. Those run to their end; reads, and writes that are durable, stop at a time limit as well.
    pub(crate) fn writes(self) -> bool {
        use Workload::{DeleteRandom, FillRandom, FillSeq, Overwrite};
        matches!(self, FillSeq | FillRandom | Overwrite | DeleteRandom)
    }

    /// Whether it gets nothing but keys that are there.
    pub(crate) fn finds_all(self) -> bool {
        matches!(self, Workload::ReadRandom | Workload::ReadRandom2 | Workload::ReadWhileWriting)
    }

    /// Whether it needs the store that `fillrandom` leaves.
    pub(crate) fn needs_filled(self) -> bool {
        !matches!(self, Workload::FillSeq | Workload::FillRandom)
    }
}
