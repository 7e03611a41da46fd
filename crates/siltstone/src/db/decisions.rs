//! The last decisions of each keyspace: a bounded ring in memory, and a small file from which they come back.
//!
//! ```text
//! job ends --> ring of its keyspace --> one frame appended to DECISIONS, never synced
//!                     |                        |
//!   Keyspace::decisions                        +-- too long? written anew from the rings, under another name, renamed
//! ```
//!
//! The file is a convenience. A failure to write it is no failure of the store, a crash may take all of it or its end, and whatever
//! cannot be read is left out. It holds no keys and no values. Format: docs/format/decisions.md.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

use super::core::{Core, KeyspaceCore};
use crate::compaction::Decision;
use crate::error::{Error, Result};
use crate::frame::{FRAME_HEADER, Frame, FrameReader, crc32c, seal};
use crate::io::{CreateOptions, Fs, IoClass, IoCtx, OpenOptions, WritableFile};
use crate::num::to_u64;
use crate::version::KeyspaceId;

mod codec;

/// The file of the last decisions.
pub(crate) const FILE_NAME: &str = "DECISIONS";
/// The same, while it is written anew.
pub(crate) const TEMPORARY_NAME: &str = "DECISIONS.new";

const CTX: IoCtx = IoCtx::foreground(IoClass::Meta);
const MAGIC: [u8; 8] = *b"SiltDec\n";
const HEADER: usize = 16;
const FORMAT: u32 = 1;
/// What may be appended before the file is written anew, in bytes, beside as much as the rings hold.
const SLACK_BYTES: u64 = 64 << 10;
/// No reader looks further than this; the largest ring stays below by far.
const MAX_BYTES: u64 = 256 << 20;

/// The last decisions of a keyspace, oldest first.
#[derive(Default)]
pub(crate) struct Ring {
    kept: usize,
    decisions: VecDeque<Arc<Decision>>,
}

impl Ring {
    pub(crate) fn new(kept: usize, decisions: Vec<Arc<Decision>>) -> Ring {
        let mut ring = Ring { kept, decisions: VecDeque::new() };
        decisions.into_iter().for_each(|decision| ring.push(decision));
        ring
    }

    pub(crate) fn push(&mut self, decision: Arc<Decision>) {
        if self.kept == 0 {
            return;
        }
        if self.decisions.len() == self.kept {
            self.decisions.pop_front();
        }
        self.decisions.push_back(decision);
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Decision>> {
        self.decisions.iter()
    }
}

/// The open end of the file; none until a decision is written, and after a failure.
#[derive(Default)]
pub(crate) struct DecisionFile(Option<Tail>);

struct Tail {
    file: Box<dyn WritableFile>,
    chain: u32,
    /// Beyond this the file is written anew.
    limit: u64,
}

impl Core {
    /// Keeps a decision whose job has ended.
    pub(crate) fn keep_decision(&self, keyspace: &KeyspaceCore, decision: &Arc<Decision>) {
        if self.options.decision_records == 0 {
            return;
        }
        // Held around both, so that the file never holds a decision twice.
        let mut file = self.decision_file.lock();
        keyspace.decisions.lock().push(Arc::clone(decision));
        if self.read_only || self.health.is_poisoned() {
            return;
        }
        if file.append(decision).is_err() {
            // Failing is fine: the next one tries again.
            *file = self.rewrite().map_or_else(|_| DecisionFile::default(), |tail| DecisionFile(Some(tail)));
        }
    }

    /// Writes the file anew from the rings.
    fn rewrite(&self) -> std::io::Result<Tail> {
        let mut bytes = header();
        let mut chain = crc32c(0, &bytes);
        for keyspace in self.keyspaces.load().values() {
            for decision in keyspace.decisions.lock().iter() {
                chain = put_frame(&mut bytes, decision, chain);
            }
        }
        let (path, temporary) = (self.dir.join(FILE_NAME), self.dir.join(TEMPORARY_NAME));
        let _ = self.fs.remove_file(&temporary, CTX);
        let mut file = self.fs.create(&temporary, CreateOptions::default(), CTX)?;
        file.append(&bytes, CTX)?;
        self.fs.rename(&temporary, &path, CTX)?;
        Ok(Tail { file, chain, limit: 2 * to_u64(bytes.len()) + SLACK_BYTES })
    }
}

impl DecisionFile {
    /// Appends a decision, if there is a file and room in it.
    fn append(&mut self, decision: &Decision) -> std::result::Result<(), ()> {
        let tail = self.0.as_mut().ok_or(())?;
        let mut frame = Vec::new();
        let chain = put_frame(&mut frame, decision, tail.chain);
        if tail.file.bytes() + to_u64(frame.len()) > tail.limit {
            return Err(());
        }
        tail.file.append(&frame, CTX).map_err(drop)?;
        tail.chain = chain;
        Ok(())
    }
}

fn header() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER);
    bytes.extend(MAGIC);
    bytes.extend(FORMAT.to_le_bytes());
    bytes.extend([0; 4]);
    bytes
}

fn put_frame(out: &mut Vec<u8>, decision: &Decision, chain: u32) -> u32 {
    let start = out.len();
    out.extend([0; FRAME_HEADER]);
    codec::put(out, decision);
    seal(&mut out[start..], chain)
}

/// The decisions that the file of the store in `dir` holds, oldest first: those before the first byte that is damaged, or all.
pub(crate) fn read(fs: &dyn Fs, dir: &Path) -> BTreeMap<KeyspaceId, Vec<Arc<Decision>>> {
    let mut decisions: BTreeMap<_, Vec<_>> = BTreeMap::new();
    // No file, damage, a read error: there are so many, and no more.
    let _ = read_frames(fs, &dir.join(FILE_NAME), |decision| {
        decisions.entry(decision.keyspace).or_default().push(Arc::new(decision));
    });
    decisions
}

/// What keeps the file of the store in `dir` from being read to its end.
pub(crate) fn damage(fs: &dyn Fs, dir: &Path) -> Option<Error> {
    let path = dir.join(FILE_NAME);
    // That there is no file is fine.
    if !fs.exists(&path, CTX).is_ok_and(|exists| exists) {
        return None;
    }
    read_frames(fs, &path, |_| ()).err()
}

fn read_frames(fs: &dyn Fs, path: &Path, mut each: impl FnMut(Decision)) -> Result<()> {
    let io = |source| Error::io(path, "reading the decisions", source);
    let damage = |at: u64, what: &str| {
        let what = format!("{what}; decisions are lost, no records, and the next compaction writes the file anew");
        Err(Error::corruption(path, at, what))
    };
    let file = fs.open(path, OpenOptions::default(), CTX).map_err(io)?;
    let mut found = [0; HEADER];
    file.read_exact_at(&mut found, 0, CTX).map_err(io)?;
    if found[..] != header()[..] {
        return damage(0, "the header is not one that this version writes");
    }
    let limit = file.bytes().min(MAX_BYTES);
    let mut frames = FrameReader::new(file, path, to_u64(HEADER), limit, crc32c(0, &found), CTX);
    loop {
        let at = frames.offset();
        match frames.next()? {
            Frame::Body(body) => match codec::take(body) {
                Some(codec::Body::Decision(decision)) => each(*decision),
                Some(codec::Body::Unknown) => {}
                None => return damage(at, "a decision that cannot be decoded"),
            },
            Frame::End => return Ok(()),
            Frame::Torn(what) => return damage(at, what),
        }
    }
}

#[cfg(test)]
mod tests;
