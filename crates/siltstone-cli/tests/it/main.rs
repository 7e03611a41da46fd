//! The `siltstone` program as a user runs it.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod cli;
mod damage;
mod interrupt;
mod room;
mod run;
mod told;
mod trace;
