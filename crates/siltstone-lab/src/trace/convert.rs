//! A trace becomes text, or a text a trace.

use std::collections::HashSet;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use serde::Serialize;
use siltstone::io::{Fs, RealFs};
use siltstone::key::hash;
use siltstone::trace::{Op, Record, TraceWriter, Write};
use siltstone::version::KeyspaceId;

use super::text::TextWriter;
use super::{Kind, Source, Step, value_of};
use crate::num::index;

/// What became of the operations.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Converted {
    /// Operations that are in the other file now; each write of a batch is one in a text.
    pub operations: u64,
    /// Operations that a text has no line for: flushes, compactions, ingestions, ranges without both bounds.
    pub left_out: u64,
    /// Operations of other keyspaces than the default one, which a text does not tell apart.
    pub other_keyspaces: u64,
    /// It was ended early.
    pub is_partial: bool,
}

/// Makes the trace `to` of what `source` gives: of a text, that is. Values are not kept, only their lengths.
///
/// # Errors
/// A broken line; if `to` is there or cannot be written. What was written is removed then.
pub fn import(source: &mut Source, to: &Path, watch: &mut dyn FnMut(u64, u64) -> bool) -> Result<Converted> {
    let fs: Arc<dyn Fs> = Arc::new(RealFs);
    let mut writer = TraceWriter::create(&fs, to, &source.header())?;
    let converted = copy(source, &mut writer, watch).and_then(|converted| {
        writer.finish()?;
        Ok(converted)
    });
    if converted.is_err() {
        // Half a trace would look like a whole one that was torn.
        let _ = std::fs::remove_file(to);
    }
    converted
}

fn copy(source: &mut Source, writer: &mut TraceWriter, watch: &mut dyn FnMut(u64, u64) -> bool) -> Result<Converted> {
    let mut converted = Converted::default();
    while let Some(Step { at_ns, op, .. }) = source.step()? {
        converted.operations += u64::from(!op.is_mark());
        writer.push(&Record { at_ns, op })?;
        if converted.operations.is_multiple_of(1 << 12) && !watch(converted.operations, source.progress().1) {
            converted.is_partial = true;
            break;
        }
    }
    Ok(converted)
}

/// Writes what `source` gives as text. A put of a key that was not put before is an `I`, any other a `U`; values are letters made of the key.
/// With `hex` keys are written as hexadecimal digits.
///
/// # Errors
/// Damage of the trace; a key that does not fit a line; if the text cannot be written.
pub fn export(
    source: &mut Source,
    out: impl std::io::Write,
    hex: bool,
    watch: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Converted> {
    let text = TextWriter::new(out);
    let mut export = Export { text, hex, known: HashSet::new(), value: Vec::new(), converted: Converted::default() };
    while let Some(Step { op, value, .. }) = source.step()? {
        export.op(&op, value.as_deref())?;
        if export.converted.operations.is_multiple_of(1 << 12)
            && !watch(export.converted.operations, source.progress().1)
        {
            export.converted.is_partial = true;
            break;
        }
    }
    export.text.finish()?;
    Ok(export.converted)
}

struct Export<W> {
    text: TextWriter<W>,
    hex: bool,
    /// Hashes of the keys that were put.
    known: HashSet<u64>,
    value: Vec<u8>,
    converted: Converted,
}

impl<W: std::io::Write> Export<W> {
    fn op(&mut self, op: &Op, value: Option<&[u8]>) -> Result<()> {
        match op {
            Op::Write(write, _) => self.write(write, value),
            Op::Batch(writes, _) => writes.iter().try_for_each(|write| self.write(write, None)),
            Op::Get { keyspace, key, .. } => {
                self.count(*keyspace);
                self.text.get(&self.key(key))
            }
            Op::MultiGet { keyspace, keys } => keys.iter().try_for_each(|(key, _)| {
                self.count(*keyspace);
                self.text.get(&self.key(key))
            }),
            Op::Range { keyspace, lower: Bound::Included(lower), upper: Bound::Excluded(upper), .. } => {
                self.count(*keyspace);
                self.text.range(false, &self.key(lower), &self.key(upper))
            }
            Op::DeleteRange { keyspace, lower, upper } => {
                self.count(*keyspace);
                self.text.range(true, &self.key(lower), &self.key(upper))
            }
            Op::Lost { operations } => {
                bail!("{operations} operations of the trace are lost, and a text cannot say so")
            }
            other => {
                self.converted.left_out += u64::from(Kind::of(other).is_some());
                Ok(())
            }
        }
    }

    fn write(&mut self, write: &Write, value: Option<&[u8]>) -> Result<()> {
        self.count(write.keyspace);
        let key = self.key(&write.key);
        let Some(length) = write.value_len else { return self.text.delete(&key) };
        let is_new = self.known.insert(hash(&write.key) ^ u64::from(write.keyspace.0));
        if let Some(value) = value {
            return self.text.put(is_new, &key, value);
        }
        value_of(&write.key, index(u64::from(length)), &mut self.value);
        self.text.put(is_new, &key, &self.value)
    }

    fn key<'a>(&self, key: &'a [u8]) -> std::borrow::Cow<'a, [u8]> {
        if self.hex { key.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect() } else { key.into() }
    }

    fn count(&mut self, keyspace: KeyspaceId) {
        self.converted.operations += 1;
        self.converted.other_keyspaces += u64::from(keyspace != KeyspaceId(0));
    }
}
