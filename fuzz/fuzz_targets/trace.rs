//! A trace of hostile bytes: reading it ends, and what is read can be written and read again.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use siltstone::io::sim::{SimClock, SimFs};
use siltstone::io::Fs;
use siltstone::trace::{Record, TraceReader, TraceWriter};

fn read(fs: &SimFs, path: &Path) -> Option<(Vec<Record>, TraceReader)> {
    let mut reader = TraceReader::open(fs, path).ok()?;
    let mut records = Vec::new();
    while let Ok(Some(record)) = reader.record() {
        records.push(record);
    }
    Some((records, reader))
}

fuzz_target!(|bytes: &[u8]| {
    let fs = SimFs::new(&SimClock::new(), 1);
    fs.write_all("/trace", bytes).expect("memory takes it");
    let Some((records, reader)) = read(&fs, Path::new("/trace")) else { return };
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    let mut writer = TraceWriter::create(&shared, Path::new("/again"), reader.header()).expect("memory takes it");
    for record in &records {
        writer.push(record).expect("what fits a trace fits another");
    }
    writer.finish().expect("memory takes it");
    let (again, _) = read(&fs, Path::new("/again")).expect("what we wrote");
    assert_eq!(again, records);
});
