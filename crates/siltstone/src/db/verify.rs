//! Verification of what is at rest: every checksum, every law of the tree.

use std::collections::BTreeSet;
use std::path::PathBuf;

use bytes::Bytes;
use serde::Serialize;

use super::core::Core;
use super::decisions;
use crate::cache::sst_path;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{IoClass, IoCtx};
use crate::iter::file::LiveFile;
use crate::key::SeqNo;
use crate::sst::{Flaw, Table};
use crate::version::{FileMeta, Manifest, superblock};
use crate::wal::{self, SegmentId};

/// What a verification found.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Tables read whole.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Records in them.
    pub entries: u64,
    /// What is wrong; empty if nothing is.
    pub damage: Vec<Damage>,
    /// What cannot be read and nothing needs: the file of the last decisions, a watermark of the log whose twin stands in for it. Damage and a
    /// crash look the same there.
    pub notes: Vec<Damage>,
}

/// A damaged file.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Damage {
    /// The keyspace that it belongs to; empty for a file of the whole store.
    pub keyspace: String,
    /// The file.
    pub file: PathBuf,
    /// Where in the file, if that is known.
    pub offset: Option<u64>,
    /// What is wrong.
    pub what: String,
    /// The smallest key that may be affected.
    #[serde(serialize_with = "as_text")]
    pub first_key: Bytes,
    /// The largest key that may be affected.
    #[serde(serialize_with = "as_text")]
    pub last_key: Bytes,
}

fn as_text<S: serde::Serializer>(key: &Bytes, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str(&String::from_utf8_lossy(key))
}

const CTX: IoCtx = IoCtx::foreground(IoClass::Scrub);
/// So many looks at bytes that are written in place.
const LOOKS: usize = 3;

/// What `look` finds each time. A writer, who may be another process, leaves bytes torn for a moment only.
fn lasting(look: impl Fn() -> Option<Error>) -> Option<Error> {
    for _ in 1..LOOKS {
        look()?;
    }
    look()
}

/// Damage to a file that belongs to no keyspace.
fn whole_store(error: &Error) -> Damage {
    let source = std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
    Damage {
        keyspace: String::new(),
        file: error.path().map(PathBuf::from).unwrap_or_default(),
        offset: error.offset(),
        what: error.what().to_owned() + &source,
        first_key: Bytes::new(),
        last_key: Bytes::new(),
    }
}

fn is_forbidden(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(|source| source.kind() == std::io::ErrorKind::PermissionDenied)
}

impl Core {
    /// Reads every byte of every table, and what can be damaged without keeping the store from opening. The log and the manifest were
    /// verified when it was opened. `watch` is told the blocks and bytes so far and says whether to go on.
    pub(crate) fn verify(&self, watch: &mut dyn FnMut(u64, u64) -> bool) -> Result<VerifyReport> {
        self.health.check_open()?;
        let mut report = VerifyReport::default();
        let (mut blocks, mut block_bytes) = (0, 0);
        let mut watch = |bytes: u64| {
            (blocks, block_bytes) = (blocks + 1, block_bytes + bytes);
            let cancelled = || Error::new(ErrorKind::Cancelled, "the store was not verified to its end");
            watch(blocks, block_bytes).then_some(()).ok_or_else(cancelled)
        };
        for keyspace in self.keyspaces.load().values() {
            // The view keeps the files that it names, whatever merges do meanwhile.
            let view = keyspace.view.load_full();
            let mut found = |error: &Error, (first_key, last_key): (Bytes, Bytes)| {
                let damage = whole_store(error);
                report.damage.push(Damage { keyspace: keyspace.name.clone(), first_key, last_key, ..damage });
            };
            if let Err(law) = view.tree.version.check() {
                found(&Error::new(ErrorKind::Corruption, law).at(&self.dir), Default::default());
            }
            let mut read = BTreeSet::new();
            for file in view.tree.files() {
                let (meta, is_first) = (file.meta, read.insert(file.table.id()));
                for Flaw { error, keys } in self.flaws(&file, is_first, &mut watch)? {
                    let (smallest, largest) = meta.table_keys();
                    found(&error, keys.unwrap_or_else(|| (smallest.clone(), largest.clone())));
                }
                report.files += u64::from(is_first);
                report.bytes += if is_first { meta.table_bytes() } else { 0 };
                report.entries += meta.entries;
            }
        }
        report.damage.extend(self.damaged_slots());
        report.notes.extend(self.damaged_spares());
        Ok(report)
    }

    /// What is wrong with a file. Of the slices of a table the first one stands for all of it: the dead keys are read as well, for damage of the
    /// disk is worth knowing.
    fn flaws(
        &self,
        LiveFile { meta, table }: &LiveFile,
        is_first: bool,
        watch: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Vec<Flaw>> {
        let whole = |error: Error| match &error {
            // Whoever may not look cannot tell.
            error if error.kind() == ErrorKind::Cancelled || is_forbidden(error) => Err(error.clone()),
            _ => Ok(Flaw { error, keys: None }),
        };
        let table = match table.table() {
            Ok(table) => table,
            Err(error) => return if is_first { Ok(vec![whole(error)?]) } else { Ok(Vec::new()) },
        };
        let mut flaws = match is_first.then(|| table.examine(CTX, watch)) {
            None => Vec::new(),
            Some(Ok(flaws)) => flaws,
            Some(Err(error)) => vec![whole(error)?],
        };
        flaws.extend(self.compare(&table, meta).err().map(whole).transpose()?);
        Ok(flaws)
    }

    /// The slots of the superblock that are damaged.
    fn damaged_slots(&self) -> Vec<Damage> {
        // Held, so that none is just being written. After a write that failed a slot may be torn, until the next opening.
        let _manifest = match self.manifest.lock() {
            manifest if manifest.as_ref().is_some_and(Manifest::is_poisoned) => return Vec::new(),
            manifest => manifest,
        };
        let slots = (0..2).filter_map(|slot| lasting(|| superblock::damage(&*self.fs, &self.dir, slot)));
        slots.map(|error| whole_store(&error)).collect()
    }

    /// What is damaged and not needed.
    fn damaged_spares(&self) -> Vec<Damage> {
        let decisions = {
            let _file = self.decision_file.lock();
            lasting(|| decisions::damage(&*self.fs, &self.dir))
        };
        let mut names: Vec<_> = self.fs.list(&self.dir, CTX).unwrap_or_default();
        names.retain(|entry| SegmentId::from_file_name(&entry.name).is_some());
        names.sort();
        let marks = names.iter().map(|entry| self.dir.join(&entry.name));
        let marks = marks.filter_map(|path| lasting(|| wal::damaged_mark(&*self.fs, &path, CTX)));
        decisions.into_iter().chain(marks).map(|error| whole_store(&error)).collect()
    }

    /// Whether the manifest and the table say the same of it.
    fn compare(&self, table: &Table, meta: &FileMeta) -> Result<()> {
        let properties = table.properties();
        let ingested = properties.max_seq == SeqNo::ZERO;
        let same = properties.entries == meta.table_entries()
            && properties.tombstones == meta.table_tombstones()
            && meta.table_keys() == (&properties.smallest, &properties.largest)
            && (ingested || (properties.min_seq == meta.min_seq && properties.max_seq == meta.max_seq));
        if same {
            return Ok(());
        }
        let what = "the table's properties differ from what the manifest says of it";
        Err(Error::corruption(&sst_path(&self.dir, meta.table()), 0, what))
    }
}
