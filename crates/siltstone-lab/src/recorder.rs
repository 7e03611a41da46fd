//! Writes down what happens to the trees of a store: `tree.jsonl` and `compactions.jsonl` of a results folder.
//!
//! ```text
//! store --events--> TreeRecorder --lines in the order of the changes--> tree.jsonl, compactions.jsonl
//! ```
//!
//! The fields are those of docs/design/0008-workloads-and-runs.md. In a simulated world times are virtual, so that two runs of one
//! seed write the same bytes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use siltstone::compaction::Decision;
use siltstone::compaction::decision::Ending;
use siltstone::compaction::plan::Action;
use siltstone::io::Clock;
use siltstone::version::{FileMeta, KeyspaceId, LevelId, RunOrder, VersionEdit};
use siltstone::{Event, EventListener};

use crate::num::float;

/// The file of the trees' changes.
pub const TREE_FILE: &str = "tree.jsonl";
/// The file of flushes and compactions.
pub const COMPACTIONS_FILE: &str = "compactions.jsonl";
/// Bytes of a key that are written down.
pub const KEY_BYTES: usize = 24;

/// Listens to a store and writes its changes down. Never calls the store.
///
/// It must listen from the time when the store is opened, and the store must be new: what was there before is not told.
pub struct TreeRecorder {
    clock: Arc<dyn Clock>,
    begin_ns: u64,
    state: Mutex<State>,
}

struct State {
    tree: Box<dyn Write + Send>,
    compactions: Box<dyn Write + Send>,
    names: BTreeMap<KeyspaceId, String>,
    /// The number of the next change to be written.
    next: u64,
    /// Changes that were told before one with a smaller number.
    early: BTreeMap<u64, Change>,
    /// When the last line was written.
    last_ns: u64,
    failed: Option<io::Error>,
}

struct Change {
    at_ns: u64,
    keyspace: KeyspaceId,
    job: Option<u64>,
    edit: Arc<VersionEdit>,
}

/// A line of `tree.jsonl`.
#[derive(Serialize)]
struct TreeLine<'a> {
    at_s: f64,
    keyspace: &'a str,
    removed: Vec<u64>,
    added: Vec<AddedFile>,
    cause: Option<u64>,
}

/// A file that came to a tree, or was there when a page was made.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct AddedFile {
    /// Its number.
    pub id: u64,
    /// The level.
    pub level: u8,
    /// The order of its run: larger is newer.
    pub run: u64,
    /// Its size.
    pub bytes: u64,
    /// Its records.
    pub entries: u64,
    /// Tombstones among them.
    pub tombstones: u64,
    /// Its smallest key in hex, cut after [`KEY_BYTES`] bytes.
    pub smallest: String,
    /// Its largest key, likewise.
    pub largest: String,
}

impl AddedFile {
    /// The file at this place of a tree.
    pub fn new(level: LevelId, run: RunOrder, file: &FileMeta) -> AddedFile {
        AddedFile {
            id: file.id.0,
            level: level.0,
            run: run.0,
            bytes: file.bytes,
            entries: file.entries,
            tombstones: file.tombstones,
            smallest: key_hex(&file.smallest),
            largest: key_hex(&file.largest),
        }
    }
}

/// A line of `compactions.jsonl`. `at_s` is when it took effect, or was given up.
#[derive(Serialize)]
struct CompactionLine<'a> {
    at_s: f64,
    took_s: f64,
    keyspace: &'a str,
    kind: &'static str,
    from_level: Option<u8>,
    to_level: u8,
    bytes_read: u64,
    bytes_written: u64,
    decision: Option<&'a Decision>,
}

impl TreeRecorder {
    /// A recorder whose time begins now, by `clock`; its files are made in `folder`.
    ///
    /// # Errors
    /// If a file cannot be made.
    pub fn create(folder: &Path, clock: Arc<dyn Clock>) -> io::Result<TreeRecorder> {
        let file = |name: &str| {
            let file = File::create_new(folder.join(name))?;
            Ok::<_, io::Error>(Box::new(BufWriter::with_capacity(256 << 10, file)))
        };
        Ok(TreeRecorder::new(file(TREE_FILE)?, file(COMPACTIONS_FILE)?, clock))
    }

    /// A recorder whose time begins now, by `clock`, and that writes to `tree` and `compactions`.
    pub fn new(tree: Box<dyn Write + Send>, compactions: Box<dyn Write + Send>, clock: Arc<dyn Clock>) -> TreeRecorder {
        let names = BTreeMap::new();
        let early = BTreeMap::new();
        let state = State { tree, compactions, names, next: 1, early, last_ns: 0, failed: None };
        TreeRecorder { begin_ns: clock.mono_ns(), clock, state: Mutex::new(state) }
    }

    /// Says how a keyspace is called. Before that it is called by its number.
    pub fn name(&self, keyspace: KeyspaceId, name: &str) {
        self.lock().names.insert(keyspace, name.to_owned());
    }

    /// Seconds since its begin.
    pub fn now_s(&self) -> f64 {
        seconds(self.now_ns())
    }

    /// Writes out what is buffered. Called when the store is closed; later lines, if any, are written too, but must be flushed again.
    ///
    /// # Errors
    /// The first failure of a write so far: what was recorded since is not whole.
    pub fn finish(&self) -> io::Result<()> {
        let mut state = self.lock();
        // A number that never came belongs to a change whose commit failed: the store is poisoned, and this is all there is.
        for change in std::mem::take(&mut state.early).into_values() {
            state.write_change(&change);
        }
        match state.failed.take() {
            Some(error) => Err(error),
            None => state.tree.flush().and_then(|()| state.compactions.flush()),
        }
    }

    fn now_ns(&self) -> u64 {
        self.clock.mono_ns().saturating_sub(self.begin_ns)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of another thread leaves whole lines at worst without the last one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventListener for TreeRecorder {
    fn event(&self, event: &Event) {
        let at_ns = self.now_ns();
        match event {
            Event::TreeChanged { keyspace, number, job, edit } => {
                let change = Change { at_ns, keyspace: *keyspace, job: *job, edit: Arc::clone(edit) };
                self.lock().change(*number, change);
            }
            Event::FlushEnd { keyspace, bytes, took, .. } => {
                let line = CompactionLine {
                    at_s: seconds(at_ns),
                    took_s: took.as_secs_f64(),
                    keyspace: "",
                    kind: "flush",
                    from_level: None,
                    to_level: 0,
                    bytes_read: 0,
                    bytes_written: *bytes,
                    decision: None,
                };
                self.lock().compaction(*keyspace, line);
            }
            Event::CompactionEnd { keyspace, decision, .. } | Event::CompactionAbandoned { keyspace, decision } => {
                self.lock().compaction(*keyspace, line_of(decision, at_ns));
            }
            _ => {}
        }
    }
}

/// The line of `compactions.jsonl` for a decision of a store that is looked at, `at_ns` after some beginning.
pub(crate) fn compaction_json(decision: &Decision, at_ns: u64) -> serde_json::Result<serde_json::Value> {
    serde_json::to_value(line_of(decision, at_ns))
}

fn line_of(decision: &Decision, at_ns: u64) -> CompactionLine<'_> {
    let ended = decision.ended.as_ref();
    CompactionLine {
        at_s: seconds(at_ns),
        took_s: ended.map_or(0.0, |ended| seconds(ended.took_ns)),
        keyspace: "",
        kind: match decision.action {
            Action::Merge => "merge",
            Action::Move => "move",
            Action::Drop => "drop",
        },
        from_level: Some(decision.from_level),
        to_level: decision.to_level,
        bytes_read: ended.map_or(0, |ended| ended.bytes_read),
        bytes_written: ended.filter(|ended| ended.ending == Ending::Done).map_or(0, |ended| ended.bytes_written),
        decision: Some(decision),
    }
}

impl State {
    /// Writes the change if it is the next one, and those after it that came earlier.
    fn change(&mut self, number: u64, change: Change) {
        self.early.insert(number, change);
        while let Some(change) = self.early.remove(&self.next) {
            self.next += 1;
            self.write_change(&change);
        }
    }

    fn write_change(&mut self, change: &Change) {
        // Changes that were told in the wrong order have times in the wrong order, too.
        self.last_ns = self.last_ns.max(change.at_ns);
        let line = TreeLine {
            at_s: seconds(self.last_ns),
            keyspace: &called(&self.names, change.keyspace),
            removed: change.edit.removed.iter().map(|(_, _, id)| id.0).collect(),
            added: change.edit.added.iter().map(|(level, run, file)| AddedFile::new(*level, *run, file)).collect(),
            cause: change.job,
        };
        let written = write_line(&mut *self.tree, &line);
        self.failed = self.failed.take().or(written.err());
    }

    fn compaction(&mut self, keyspace: KeyspaceId, line: CompactionLine<'_>) {
        let line = CompactionLine { keyspace: &called(&self.names, keyspace), ..line };
        let written = write_line(&mut *self.compactions, &line);
        self.failed = self.failed.take().or(written.err());
    }
}

fn called(names: &BTreeMap<KeyspaceId, String>, keyspace: KeyspaceId) -> String {
    names.get(&keyspace).cloned().unwrap_or_else(|| keyspace.0.to_string())
}

fn write_line(to: &mut dyn Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *to, line)?;
    to.write_all(b"\n")
}

fn seconds(ns: u64) -> f64 {
    float(ns) / 1e9
}

fn key_hex(key: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = |byte: u8| [byte >> 4, byte & 15].map(|half| char::from(DIGITS[usize::from(half)]));
    key.iter().take(KEY_BYTES).flat_map(|&byte| digits(byte)).collect()
}

#[cfg(test)]
mod tests;
