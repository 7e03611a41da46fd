//! What the manifest says of the whole store, and the edits that change it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{KeyspaceId, RunOrder, SstId, Version, VersionEdit, edit};
use crate::error::{Error, Result};
use crate::key::SeqNo;
use crate::wal::SegmentId;

/// The longest name of a keyspace, in bytes.
pub const MAX_KEYSPACE_NAME_BYTES: usize = 1 << 10;

/// Everything about a store that is not in its tables or its log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StoreState {
    /// The store's random id.
    pub store_id: u128,
    /// When it was created, in milliseconds since 1970.
    pub created_ms: u64,
    /// The keyspaces. A dropped one is gone; its number is not used again.
    pub keyspaces: BTreeMap<KeyspaceId, KeyspaceState>,
    /// Above the number of every table that a commit ever named. A crash may leave tables at or above it, which no commit
    /// names: remove them before the numbers are given out.
    pub next_sst: SstId,
    /// Above the number of every keyspace that ever was.
    pub next_keyspace: KeyspaceId,
    /// No write has a sequence number up to this that is not in the log or in a table: a lower bound of the last one given out.
    pub last_seq: SeqNo,
    /// Replay begins at this segment. 0 while there never was a log.
    pub log_floor: SegmentId,
}

/// A keyspace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeyspaceState {
    /// Its name, unique among the keyspaces.
    pub name: String,
    /// Its options as text.
    pub options_text: String,
    /// Its tree.
    pub version: Arc<Version>,
    /// Its records up to this sequence number are in the tree: replay skips them.
    pub flushed_seq: SeqNo,
    /// Above every run order that was ever in the tree.
    pub next_run_order: u64,
}

/// A change of the store's state. A commit is a list of them, applied whole or not at all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ManifestEdit {
    /// A new keyspace with an empty tree; `id` is at or above [`StoreState::next_keyspace`].
    CreateKeyspace {
        /// Its number.
        id: KeyspaceId,
        /// Its name.
        name: String,
        /// Its options as text.
        options_text: String,
    },
    /// The keyspace and its tree are gone.
    DropKeyspace(KeyspaceId),
    /// Other options of a keyspace.
    SetOptions(KeyspaceId, String),
    /// The tree of a keyspace changes. Moves `next_sst` and the keyspace's `next_run_order` above what it adds.
    Version(KeyspaceId, VersionEdit),
    /// Records of the keyspace up to here are in the tree. Never goes back.
    Flushed(KeyspaceId, SeqNo),
    /// Run orders below this are taken. Never goes back.
    NextRunOrder(KeyspaceId, u64),
    /// Table numbers below this are taken. Never goes back.
    NextSst(SstId),
    /// Keyspace numbers below this are taken. Never goes back.
    NextKeyspace(KeyspaceId),
    /// A lower bound of the last sequence number. A smaller one than known changes nothing.
    LastSeq(SeqNo),
    /// Replay begins here. Never goes back.
    LogFloor(SegmentId),
}

impl StoreState {
    /// The keyspace named `name`.
    pub fn keyspace(&self, name: &str) -> Option<(KeyspaceId, &KeyspaceState)> {
        self.keyspaces.iter().find(|(_, keyspace)| keyspace.name == name).map(|(id, keyspace)| (*id, keyspace))
    }

    /// The state after an edit.
    ///
    /// # Errors
    /// `InvalidArgument` if the edit does not fit the state; then the state may be half changed: throw it away.
    pub fn apply(&mut self, edit: &ManifestEdit) -> Result<()> {
        self.change(edit, |version, edit| {
            *version = Arc::new(version.apply(edit)?);
            Ok(())
        })
    }

    /// The state after an edit of a manifest that is read back. Trees are changed in place and not checked: [`check`](Self::check) does
    /// that after the last edit.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub(super) fn replay(&mut self, edit: &ManifestEdit) -> Result<()> {
        self.change(edit, |version, edit| edit::change(Arc::make_mut(version), edit))
    }

    /// Whether every tree keeps the laws.
    ///
    /// # Errors
    /// The law that is broken.
    pub(super) fn check(&self) -> std::result::Result<(), String> {
        let named = |(id, keyspace): (&KeyspaceId, &KeyspaceState)| {
            keyspace.version.check().map_err(|law| format!("keyspace {}: {law}", id.0))
        };
        self.keyspaces.iter().try_for_each(named)
    }

    fn change(
        &mut self,
        edit: &ManifestEdit,
        apply: impl FnOnce(&mut Arc<Version>, &VersionEdit) -> Result<()>,
    ) -> Result<()> {
        match edit {
            ManifestEdit::CreateKeyspace { id, name, options_text } => self.create_keyspace(*id, name, options_text)?,
            ManifestEdit::DropKeyspace(id) => {
                self.known(*id)?;
                self.keyspaces.remove(id);
            }
            ManifestEdit::SetOptions(id, text) => self.known(*id)?.options_text.clone_from(text),
            ManifestEdit::Version(id, edit) => self.change_version(*id, edit, apply)?,
            ManifestEdit::Flushed(id, seq) => {
                forward(&mut self.known(*id)?.flushed_seq, *seq, "flushed sequence number")?
            }
            ManifestEdit::NextRunOrder(id, order) => {
                forward(&mut self.known(*id)?.next_run_order, *order, "next run order")?;
            }
            ManifestEdit::NextSst(id) => forward(&mut self.next_sst, *id, "next table number")?,
            ManifestEdit::NextKeyspace(id) => forward(&mut self.next_keyspace, *id, "next keyspace number")?,
            ManifestEdit::LastSeq(seq) => self.last_seq = self.last_seq.max(*seq),
            ManifestEdit::LogFloor(segment) => forward(&mut self.log_floor, *segment, "log floor")?,
        }
        Ok(())
    }

    fn known(&mut self, id: KeyspaceId) -> Result<&mut KeyspaceState> {
        self.keyspaces
            .get_mut(&id)
            .ok_or_else(|| Error::invalid(format!("manifest edit of keyspace {}, which is not there", id.0)))
    }

    fn create_keyspace(&mut self, id: KeyspaceId, name: &str, options_text: &str) -> Result<()> {
        let wrong = |what: &str| Err(Error::invalid(format!("manifest edit creates keyspace {}: {what}", id.0)));
        if id < self.next_keyspace || id.0 == u32::MAX {
            return wrong("the number is taken");
        }
        if name.is_empty() || name.len() > MAX_KEYSPACE_NAME_BYTES {
            return wrong("the name is empty or too long");
        }
        if self.keyspace(name).is_some() {
            return wrong("the name is taken");
        }
        let keyspace =
            KeyspaceState { name: name.to_owned(), options_text: options_text.to_owned(), ..KeyspaceState::default() };
        self.keyspaces.insert(id, keyspace);
        self.next_keyspace = KeyspaceId(id.0 + 1);
        Ok(())
    }

    fn change_version(
        &mut self,
        id: KeyspaceId,
        edit: &VersionEdit,
        apply: impl FnOnce(&mut Arc<Version>, &VersionEdit) -> Result<()>,
    ) -> Result<()> {
        let mut next_sst = self.next_sst;
        let keyspace = self.known(id)?;
        for (_, order, file) in &edit.added {
            let (Some(order), Some(sst)) = (order.0.checked_add(1), file.id.0.checked_add(1)) else {
                return Err(Error::invalid("version edit with an impossible number"));
            };
            keyspace.next_run_order = keyspace.next_run_order.max(order);
            next_sst = next_sst.max(SstId(sst));
        }
        apply(&mut keyspace.version, edit)?;
        self.next_sst = next_sst;
        Ok(())
    }

    /// The edits that make this state out of an empty one: the first record of a manifest.
    pub fn snapshot(&self) -> Vec<ManifestEdit> {
        let mut edits = Vec::new();
        for (&id, keyspace) in &self.keyspaces {
            let (name, options_text) = (keyspace.name.clone(), keyspace.options_text.clone());
            edits.push(ManifestEdit::CreateKeyspace { id, name, options_text });
            edits.push(ManifestEdit::Version(id, VersionEdit::of(&keyspace.version)));
            edits.push(ManifestEdit::Flushed(id, keyspace.flushed_seq));
            edits.push(ManifestEdit::NextRunOrder(id, keyspace.next_run_order));
        }
        edits.push(ManifestEdit::NextSst(self.next_sst));
        edits.push(ManifestEdit::NextKeyspace(self.next_keyspace));
        edits.push(ManifestEdit::LastSeq(self.last_seq));
        edits.push(ManifestEdit::LogFloor(self.log_floor));
        edits
    }

    /// Every file of every tree: what must exist. The rest of the tables is garbage.
    pub fn live_files(&self) -> impl Iterator<Item = (KeyspaceId, RunOrder, &Arc<super::FileMeta>)> {
        self.keyspaces
            .iter()
            .flat_map(|(id, keyspace)| keyspace.version.files().map(move |(_, order, file)| (*id, order, file)))
    }
}

fn forward<T: Ord + Copy + std::fmt::Debug>(value: &mut T, to: T, what: &str) -> Result<()> {
    if to < *value {
        return Err(Error::invalid(format!("manifest edit moves the {what} back from {value:?} to {to:?}")));
    }
    *value = to;
    Ok(())
}
