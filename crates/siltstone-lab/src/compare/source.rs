//! Where the records of a comparison come from: a file of the user's, or the generator.

use siltstone::io::Rng;

use crate::num::index;
use crate::workload::{KeyLaw, KeyPicker, KeyWriter, ValueSource, Workload};

/// A key and its value, borrowed until the next call.
pub type Record<'a> = (&'a [u8], &'a [u8]);

/// An input that can be read several times: once to learn its size, then once for each strategy.
pub trait Source: Sync {
    /// What it is, for the report.
    fn describe(&self) -> String;
    /// How many records it holds, where that is known without reading it.
    fn records(&self) -> Option<u64>;
    /// Reads it from the start.
    ///
    /// # Errors
    /// When it cannot be opened.
    fn open(&self) -> anyhow::Result<Box<dyn Records + '_>>;
}

/// A stream of records.
pub trait Records: Send {
    /// The next record, or `None` at the end.
    ///
    /// # Errors
    /// A read error, or a bad record with its place.
    fn next(&mut self) -> anyhow::Result<Option<Record<'_>>>;
}

/// The built-in input: the keys of a workload in random order, each once.
#[derive(Clone, Debug)]
pub struct Generated(pub Workload);

impl Source for Generated {
    fn describe(&self) -> String {
        let Workload { records, key_bytes, value_bytes, seed, .. } = self.0;
        format!(
            "built-in workload: {records} records in random order, keys of {key_bytes} bytes, values of {value_bytes}, seed {seed}"
        )
    }

    fn records(&self) -> Option<u64> {
        Some(self.0.records)
    }

    fn open(&self) -> anyhow::Result<Box<dyn Records + '_>> {
        let value_bytes = index(u64::from(self.0.value_bytes));
        Ok(Box::new(GeneratedRecords {
            left: self.0.records,
            picker: KeyPicker::new(&self.0, KeyLaw::Shuffled, "load"),
            keys: KeyWriter::new(self.0.key_bytes),
            values: ValueSource::new(value_bytes, Rng::new(self.0.seed).split("values")),
            value_bytes,
        }))
    }
}

struct GeneratedRecords {
    left: u64,
    picker: KeyPicker,
    keys: KeyWriter,
    values: ValueSource,
    value_bytes: usize,
}

impl Records for GeneratedRecords {
    fn next(&mut self) -> anyhow::Result<Option<Record<'_>>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        Ok(Some((self.keys.key(self.picker.pick()), self.values.next(self.value_bytes))))
    }
}
