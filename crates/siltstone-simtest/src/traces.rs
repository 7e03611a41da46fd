//! Traces of a world: while one is recorded, the writes that it must hold, in their order.

use std::path::PathBuf;

use siltstone::ErrorKind;
use siltstone::trace::{Op, TraceEnd, TraceOptions, TraceReader, Write};

use crate::counters::Rare;
use crate::store::{Check, broken};
use crate::world::{Change, World};

/// A trace that is being recorded.
pub(crate) struct Traced {
    path: PathBuf,
    /// The writes that were asked for since: a batch is one.
    writes: Vec<Vec<Write>>,
    /// It may end before.
    is_limited: bool,
}

/// How a trace ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// It was stopped, or the store closed.
    Stopped,
    /// With the process, or the machine.
    Torn,
}

impl World {
    /// Begins a trace, or ends the one that is being recorded.
    pub(crate) fn trace(&mut self, seed: u64) -> Check {
        if self.tracing.is_none() {
            let path = PathBuf::from(format!("/trace-{}-{}", self.lives, self.model.last()));
            let max_bytes = if seed.is_multiple_of(4) { 500 + seed % 3000 } else { 0 };
            let outcome = self.db().start_trace(&path, TraceOptions { hash_keys: None, max_bytes });
            if self.allow(outcome)?.is_some() {
                self.tracing = Some(Traced { path, writes: Vec::new(), is_limited: max_bytes > 0 });
            } else {
                // What there is of it is nobody's.
                let _ = self.machine.fs.remove_all(&path);
            }
            return Ok(());
        }
        let outcome = self.db().stop_trace();
        let Some(summary) = self.allow(outcome)? else { return Ok(()) };
        if !self.tolerant && (summary.lost > 0 || summary.error.is_some()) {
            return broken(format!("a trace of a few operations is not whole: {summary:?}"));
        }
        self.end_trace(Ending::Stopped)
    }

    /// Reads the trace that has ended, if one was recorded, and removes it. What it holds was written, in this order; if it was stopped, nothing is
    /// missing.
    pub(crate) fn end_trace(&mut self, ending: Ending) -> Check {
        let Some(traced) = self.tracing.take() else { return Ok(()) };
        if !self.tolerant {
            self.check_trace(&traced, ending)?;
        }
        // A crash may have taken its name.
        let _ = self.machine.fs.remove_all(&traced.path);
        Ok(())
    }

    fn check_trace(&self, traced: &Traced, ending: Ending) -> Check {
        let unreadable = |error| broken(format!("a trace cannot be read: {error:?}"));
        let mut reader = match TraceReader::open(&self.machine.fs, &traced.path) {
            Ok(reader) => reader,
            // Its name was never made durable.
            Err(_) if ending == Ending::Torn => return Ok(()),
            Err(error) => return unreadable(error),
        };
        let mut written = traced.writes.iter();
        loop {
            let writes = match reader.record().map(|record| record.map(|record| record.op)) {
                Ok(None) => break,
                Ok(Some(Op::Write(write, _))) => vec![write],
                Ok(Some(Op::Batch(writes, _))) => writes,
                Ok(Some(_)) => continue,
                // Of what was written a later part is there and an earlier one not.
                Err(error) if ending == Ending::Torn && error.kind() == ErrorKind::Corruption => return Ok(()),
                Err(error) => return unreadable(error),
            };
            let expected = written.next();
            if expected != Some(&writes) {
                return broken(format!("a trace tells of {writes:?} where {expected:?} was written"));
            }
        }
        if ending == Ending::Stopped {
            self.counters.reach(Rare::TraceRead);
            let missing = written.len();
            if reader.end() != Some(TraceEnd::Stopped) || missing > 0 && !traced.is_limited {
                return broken(format!(
                    "a trace that was stopped ends with {:?}, {missing} writes are missing",
                    reader.end()
                ));
            }
        }
        Ok(())
    }

    /// Notes a write that is about to be made.
    pub(crate) fn trace_write(&mut self, changes: &[Change]) {
        let Some(traced) = self.tracing.as_mut().filter(|_| !changes.is_empty()) else { return };
        let keyspace = |uid| self.live.iter().find(|live| live.uid == uid).map(|live| live.handle.id());
        let writes = changes.iter().filter_map(|&(uid, key, value)| {
            let key = self.config.keys[usize::try_from(key).expect("a small table")].clone().into();
            Some(Write { keyspace: keyspace(uid)?, key, value_len: value.map(|value| value.len) })
        });
        traced.writes.push(writes.collect());
    }
}
