//! Each rule against a brute-force oracle that shares no code with it (`oracles`), what records show of their choice (`considered`), and what each preset must do to deserve its name, over
//! trees of sizes (`proofs`).

mod considered;
mod oracles;
mod proofs;
