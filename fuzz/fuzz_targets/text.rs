//! Texts that people write: options and strategies. Wrong ones are refused with a message; right ones print and parse back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use siltstone::compaction::Strategy;
use siltstone::{KeyspaceOptions, Options};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = Strategy::parse(text);
    if let Ok(options) = Options::from_text(text) {
        assert_eq!(Options::from_text(&options.to_text()).expect("what we print"), options);
    }
    if let Ok(options) = KeyspaceOptions::from_text(text) {
        assert_eq!(KeyspaceOptions::from_text(&options.to_text()).expect("what we print"), options);
    }
});
