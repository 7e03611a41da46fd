//! Each rule against a brute-force oracle that shares no code with it (`oracles`), and what each preset must do to deserve its name, over
//! trees of sizes (`proofs`).

mod oracles;
mod proofs;
