//! Recorded operations: read from a trace or from text, shown, replayed, described as a workload.
//!
//! ```text
//! trace file --.                      .--> show    what is in it
//!               +--> Source --Step--> +--> replay  done again, paced or as fast as possible
//! text file ---'                      +--> fit     as a workload spec
//!                                     '--> convert to the other form
//! ```
//!
//! The text is the K-V workload generator's: `I key value`, `U key value`, `D key`, `R start end`, `Q key`, `S start end`, one operation a line.

mod convert;
pub mod fit;
mod replay;
mod show;
mod source;
mod text;

pub use convert::{Converted, export, import};
pub use replay::{KindResult, Pace, Replay, ReplayResult, replay, value_of};
pub use show::{KeyspaceSummary, KindSummary, Show, TraceShow, show};
pub use source::{Kind, Source, Step};
pub use text::{TextReader, TextWriter};

/// What a keyspace is called, whose name in the trace is `recorded`: a text has no names.
fn name_of(id: siltstone::version::KeyspaceId, recorded: &str) -> String {
    match (recorded, id.0) {
        ("", 0) => "default".to_owned(),
        ("", id) => format!("keyspace {id}"),
        (name, _) => name.to_owned(),
    }
}

#[cfg(test)]
mod tests;
