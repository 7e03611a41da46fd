//! The payload of a log record: whatever the bytes are, decoding ends, and what is accepted can be walked without failing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use siltstone::wal::RecordIter;

fuzz_target!(|bytes: &[u8]| {
    let Some((&count, payload)) = bytes.split_first() else { return };
    if let Ok(records) = RecordIter::of_payload(u32::from(count), payload) {
        assert_eq!(records.count(), usize::from(count));
    }
});
