//! Keys, and values, from a file of the user's: only the places of its lines are held in memory, 8 bytes each.
//!
//! The places are shared by all clients of a run, and lines are read when they are needed: the operating system keeps what is hot.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::{Context, bail, ensure};
use siltstone::key::{MAX_KEY_BYTES, hash};

use super::keyset::{Duplicates, FileFormat};
use crate::num::{count, index};

/// Hashes, with their lines, that are held at a time to find keys that occur twice: 64 MiB.
const HASHES: u64 = 4 << 20;
/// A line is read in pieces of this size.
const PIECE: usize = 512;

/// The lines of a file.
#[derive(Clone, Debug)]
pub(super) struct KeyFile {
    lines: Arc<Lines>,
    /// What was read last, from `from` on: an insert asks for a line's key and then for its value, and a call into the system costs
    /// more than most operations.
    read: Vec<u8>,
    from: Option<u64>,
}

#[derive(Debug)]
struct Lines {
    path: PathBuf,
    file: File,
    bytes: u64,
    is_tsv: bool,
    offsets: Vec<u64>,
}

/// A file as it stood when it was read, and how.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Identity {
    path: PathBuf,
    bytes: u64,
    changed: Option<SystemTime>,
    is_tsv: bool,
    skips: bool,
}

/// What was read. It stays until another file is read: a run asks for its keys a few times before the first trial and again in each one,
/// and a gigabyte takes seconds.
static READ: Mutex<BTreeMap<Identity, Arc<Lines>>> = Mutex::new(BTreeMap::new());

impl KeyFile {
    /// Reads the file once, or takes what is open already.
    pub(super) fn open(path: &Path, format: FileFormat, duplicates: Duplicates) -> anyhow::Result<KeyFile> {
        let by_name = path.extension().is_some_and(|ending| ending == "tsv");
        let is_tsv = format == FileFormat::Tsv || (format == FileFormat::ByName && by_name);
        let about = std::fs::metadata(path).with_context(|| cannot_open(path))?;
        ensure!(about.is_file(), "the keys {} are no file", path.display());
        let identity = Identity {
            path: path.to_owned(),
            bytes: about.len(),
            changed: about.modified().ok(),
            is_tsv,
            skips: duplicates == Duplicates::Skip,
        };
        let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lines) = read.get(&identity) {
            return Ok(KeyFile::of(Arc::clone(lines)));
        }
        let lines = Arc::new(Lines::read(path, is_tsv, duplicates)?);
        read.retain(|_, lines| Arc::strong_count(lines) > 1);
        read.insert(identity, Arc::clone(&lines));
        Ok(KeyFile::of(lines))
    }

    fn of(lines: Arc<Lines>) -> KeyFile {
        KeyFile { lines, read: Vec::new(), from: None }
    }

    /// How many keys there are.
    pub(super) fn len(&self) -> u64 {
        count(self.lines.offsets.len())
    }

    /// Whether each key has a value.
    pub(super) fn has_values(&self) -> bool {
        self.lines.is_tsv
    }

    /// Appends the key of a line.
    pub(super) fn key(&mut self, at: u64, out: &mut Vec<u8>) -> anyhow::Result<()> {
        let stop = if self.lines.is_tsv { b'\t' } else { b'\n' };
        let end = self.read_until(self.lines.offsets[index(at)], stop)?;
        out.extend_from_slice(&self.read[..end]);
        Ok(())
    }

    /// Appends the value of a line.
    pub(super) fn value(&mut self, at: u64, out: &mut Vec<u8>) -> anyhow::Result<()> {
        let end = self.read_until(self.lines.offsets[index(at)], b'\n')?;
        let line = &self.read[..end];
        let tab = line.iter().position(|byte| *byte == b'\t').map_or(end, |tab| tab + 1);
        out.extend_from_slice(&line[tab..]);
        Ok(())
    }

    /// Reads from an offset up to a byte; how far it is.
    fn read_until(&mut self, offset: u64, stop: u8) -> anyhow::Result<usize> {
        if self.from != Some(offset) {
            self.read.clear();
            self.from = Some(offset);
        }
        let mut looked_at = 0;
        loop {
            if let Some(end) = self.read[looked_at..].iter().position(|byte| *byte == stop) {
                return Ok(looked_at + end);
            }
            looked_at = self.read.len();
            let (mut piece, at) = ([0; PIECE], offset + count(looked_at));
            let read = self.lines.file.read_at(&mut piece, at);
            let read = read.with_context(|| format!("cannot read {}", self.lines.path.display()))?;
            self.read.extend_from_slice(&piece[..read]);
            if read == 0 {
                ensure!(at == self.lines.bytes, "{} has changed while it was read", self.lines.path.display());
                return Ok(looked_at);
            }
        }
    }
}

impl Lines {
    fn read(path: &Path, is_tsv: bool, duplicates: Duplicates) -> anyhow::Result<Lines> {
        let name = path.display();
        let open = || File::open(path).with_context(|| cannot_open(path));
        let mut offsets = Vec::new();
        let bytes = each_line(open()?, path, |line, offset, key| {
            let key = key_of(key, is_tsv)
                .with_context(|| format!("{name}:{line}: a line without a tab; TSV is key, tab, value"))?;
            ensure!(!key.is_empty(), "{name}:{line}: an empty key");
            ensure!(
                key.len() < MAX_KEY_BYTES,
                "{name}:{line}: a key of {} bytes; at most {}",
                key.len(),
                MAX_KEY_BYTES - 1
            );
            ensure!(
                key.last() != Some(&0),
                "{name}:{line}: the key ends with a byte 0, which is kept for keys that are never stored"
            );
            offsets.push(offset);
            Ok(())
        })?;
        ensure!(!offsets.is_empty(), "{name} holds no keys");
        let twice = find_twice(&open, path, is_tsv, count(offsets.len()))?;
        if let Some((line, first)) = twice.first().filter(|_| duplicates == Duplicates::Refuse) {
            bail!(
                "{name}:{line}: the key stands in line {first} already; `duplicates = \"skip\"` leaves such lines out"
            );
        }
        let mut left_out = twice.iter().map(|(line, _)| line - 1).peekable();
        let mut at = 0;
        offsets.retain(|_| {
            at += 1;
            left_out.next_if_eq(&(at - 1)).is_none()
        });
        Ok(Lines { path: path.to_owned(), file: open()?, bytes, is_tsv, offsets })
    }
}

fn cannot_open(path: &Path) -> String {
    format!(
        "cannot open the keys {}; `keys.path` names the file, on the command line --set workload.keys.path=FILE",
        path.display()
    )
}

fn key_of(line: &[u8], is_tsv: bool) -> Option<&[u8]> {
    if is_tsv { line.iter().position(|byte| *byte == b'\t').map(|tab| &line[..tab]) } else { Some(line) }
}

/// Calls `then` with each line's number, offset and bytes; the length of all.
fn each_line(
    file: File,
    path: &Path,
    mut then: impl FnMut(u64, u64, &[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<u64> {
    let mut input = BufReader::with_capacity(1 << 20, file);
    let (mut offset, mut number, mut line) = (0, 0, Vec::new());
    loop {
        line.clear();
        let read = input.read_until(b'\n', &mut line).with_context(|| format!("cannot read {}", path.display()))?;
        if read == 0 {
            return Ok(offset);
        }
        number += 1;
        then(number, offset, line.strip_suffix(b"\n").unwrap_or(&line))?;
        offset += count(read);
    }
}

/// The lines whose key stands in an earlier line, with that line; ascending. Hashes of 64 bits decide: among a hundred million keys two different
/// ones have the same hash once in four thousand files.
fn find_twice(
    open: &dyn Fn() -> anyhow::Result<File>,
    path: &Path,
    is_tsv: bool,
    keys: u64,
) -> anyhow::Result<Vec<(u64, u64)>> {
    let rounds = keys.div_ceil(HASHES).max(1);
    let mut twice = Vec::new();
    for round in 0..rounds {
        let mut hashes = Vec::new();
        each_line(open()?, path, |number, _, line| {
            let hash = hash(key_of(line, is_tsv).unwrap_or(line));
            if hash % rounds == round {
                hashes.push((hash, number));
            }
            Ok(())
        })?;
        hashes.sort_unstable();
        let mut first = (0, 0);
        for (hash, number) in hashes {
            if first.1 > 0 && hash == first.0 {
                twice.push((number, first.1));
            } else {
                first = (hash, number);
            }
        }
    }
    twice.sort_unstable();
    Ok(twice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_values_are_found_and_bad_ones_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("k.tsv");
        let long = "v".repeat(2000);
        std::fs::write(&path, format!("b\t1\na\t{long}\nc\t")).unwrap();
        let mut file = KeyFile::open(&path, FileFormat::ByName, Duplicates::Refuse).unwrap();
        let mut text = |at| {
            let (mut key, mut value) = (Vec::new(), Vec::new());
            file.key(at, &mut key).unwrap();
            file.value(at, &mut value).unwrap();
            (String::from_utf8(key).unwrap(), String::from_utf8(value).unwrap())
        };
        assert_eq!(text(0), ("b".into(), "1".into()));
        assert_eq!(text(1), ("a".into(), long));
        assert_eq!(text(2), ("c".into(), String::new()));
        drop(file);
        let open = |text: &str, duplicates| {
            std::fs::write(&path, text).unwrap();
            KeyFile::open(&path, FileFormat::Tsv, duplicates)
        };
        let refused = |text: &str| format!("{:#}", open(text, Duplicates::Refuse).unwrap_err());
        assert!(refused("a\t1\nb\t2\na\t3\n").contains("k.tsv:3: the key stands in line 1 already"));
        assert!(refused("a\t1\nb\n").contains("k.tsv:2: a line without a tab"));
        assert!(refused("a\t1\n\t2\n").contains("k.tsv:2: an empty key"));
        assert!(refused("").contains("no keys"));
        let mut file = open("a\t1\nb\t2\na\t3\nc\t4\n", Duplicates::Skip).unwrap();
        assert_eq!(file.len(), 3);
        let mut value = Vec::new();
        file.value(2, &mut value).unwrap();
        assert_eq!(value, b"4");
    }
}
