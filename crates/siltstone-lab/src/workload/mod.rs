//! Workloads: plain data that says what to do, and the deterministic stream of operations that follows from it.
//!
//! ```text
//! spec.toml -- parse, check --> Spec -- who does what --> Plan
//!                                                          |
//!    stream   which operation, which key: numbers  <-------+   one for each share of the keys
//!    coder    a key's number -> its bytes
//!    values   pieces of a buffer
//!    Generator = streams + coder + values: the operations of one client, borrowed one by one
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | `spec` `phase` `op` `arrive` `keyset` | what a file may say |
//! | `check` | what may be wrong with it, and on which line |
//! | `law` `picker` | which key: laws as data, and their draws; `zipf`, `alias`, `random` are the methods |
//! | `size` | how long, how many |
//! | `live` | which keys are there, in bits |
//! | `plan` | shares of the keys, and exact numbers |
//! | `file` | keys and values of the user's own |
//!
//! Equal specs give equal streams on every platform and in every version with the same [`GENERATOR_VERSION`]: the random numbers are the
//! engine's xoshiro256++, logarithms come from the portable `libm` crate, and goldens of every shipped spec hold it down.
//! `docs/workloads.md` has the language, and where each degree of freedom of other generators is set.

mod alias;
mod arrive;
mod check;
mod coder;
mod file;
mod generator;
mod keys;
mod keyset;
mod law;
mod live;
mod op;
mod permutation;
mod phase;
mod picker;
mod plain;
mod plan;
mod random;
mod shipped;
mod size;
mod spec;
mod stream;
mod values;
mod zipf;

#[cfg(test)]
mod fit;
#[cfg(test)]
mod spec_tests;
#[cfg(test)]
mod tests;

pub use arrive::{ArrivalSpec, Spaced, StretchSpec};
pub use generator::{Generator, Op};
pub use keys::{KeyPicker, KeyWriter};
pub use keyset::{Alphabet, Duplicates, FileFormat, KeySpec, Order, Segment};
pub use law::{Drift, Hot, Law, Over};
pub use op::{Amount, OpKind, OpSpec};
pub use permutation::Permutation;
pub use phase::{Durable, Group, Interleave, PhaseSpec, Shift};
pub use plain::{BASIC, KeyLaw, Operation, Phase, Workload, basic};
pub use size::SizeLaw;
pub use spec::{Content, IndexSpec, KeyspaceSpec, Spec, ValueSpec};
pub use values::{ValueSource, value_belongs};
pub use zipf::Zipf;

/// Goes up whenever the same workload gives another stream. It stands in every result.
pub const GENERATOR_VERSION: u32 = 3;
