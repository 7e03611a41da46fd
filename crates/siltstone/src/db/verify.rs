//! Verification of what is at rest: every checksum, every law of the tree.

use std::collections::BTreeSet;
use std::path::PathBuf;

use bytes::Bytes;
use serde::Serialize;

use super::core::Core;
use crate::cache::sst_path;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{IoClass, IoCtx};
use crate::iter::file::LiveFile;
use crate::key::SeqNo;
use crate::sst::Table;
use crate::version::FileMeta;

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
}

/// A damaged file.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Damage {
    /// The keyspace that it belongs to.
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

impl Core {
    /// Reads every byte of every table. The log and the manifest were verified when the store was opened.
    pub(crate) fn verify(&self) -> Result<VerifyReport> {
        self.health.check_open()?;
        let mut report = VerifyReport::default();
        let ctx = IoCtx::foreground(IoClass::Scrub);
        for keyspace in self.keyspaces.load().values() {
            // The view keeps the files that it names, whatever merges do meanwhile.
            let view = keyspace.view.load_full();
            let mut found = |error: Error, file: Option<&FileMeta>| {
                report.damage.push(Damage {
                    keyspace: keyspace.name.clone(),
                    file: error.path().map_or_else(|| self.dir.clone(), PathBuf::from),
                    offset: error.offset(),
                    what: error.to_string(),
                    first_key: file.map(|file| file.smallest.clone()).unwrap_or_default(),
                    last_key: file.map(|file| file.largest.clone()).unwrap_or_default(),
                });
            };
            if let Err(law) = view.tree.version.check() {
                found(Error::new(ErrorKind::Corruption, law).at(&self.dir), None);
            }
            let mut read = BTreeSet::new();
            for LiveFile { meta, table } in view.tree.files() {
                // Of a slice the dead keys are read as well: damage of the disk is worth knowing.
                let first = read.insert(table.id());
                let checked = table.table().and_then(|table| {
                    if first {
                        table.verify(ctx)?;
                    }
                    self.compare(&table, meta)
                });
                if let Err(error) = checked {
                    found(error, Some(meta));
                }
                report.files += u64::from(first);
                report.bytes += if first { meta.table_bytes() } else { 0 };
                report.entries += meta.entries;
            }
        }
        Ok(report)
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
