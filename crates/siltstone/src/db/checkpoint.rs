//! An online checkpoint: a second store made of hard links.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::core::{Core, FLUSH_LANE, KeyspaceCore, Trouble};
use super::open::create_folder;
use crate::cache::sst_path;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{IoClass, IoCtx};
use crate::key::SeqNo;
use crate::version::{KeyspaceId, KeyspaceState, Manifest, ManifestOptions, SstId, StoreState, manifest, superblock};
use crate::wal::SegmentId;

const CTX: IoCtx = IoCtx::foreground(IoClass::Checkpoint);

impl Core {
    /// Makes `dir` a store that holds what this one holds now.
    ///
    /// All memtables are set aside at one moment and flushed, and memtables with newer records are not flushed, nor newer files ingested, until the
    /// files are linked. So the trees of all keyspaces end at the same sequence number, and a batch over two of them is whole. If a keyspace is
    /// dropped meanwhile it is begun anew.
    pub(crate) fn checkpoint(&self, dir: &Path) -> Result<()> {
        let one_at_a_time = self.checkpointing.lock();
        self.check_write()?;
        if self.fs.exists(dir, CTX).map_err(|e| Error::io(dir, "cannot look at", e))?
            && !self.fs.list(dir, CTX).map_err(|e| Error::io(dir, "cannot list", e))?.is_empty()
        {
            return Err(Error::new(ErrorKind::AlreadyExists, "a checkpoint needs a new or empty folder").at(dir));
        }
        create_folder(&*self.fs, dir, CTX)?;
        let mut names = Vec::new();
        let made = loop {
            match self.try_checkpoint(dir, &mut names) {
                Ok(false) => {}
                made => break made.map(|_| ()),
            }
        };
        drop(one_at_a_time);
        if made.is_err() {
            for name in names {
                let _ = self.fs.remove_file(&name, CTX);
            }
            let _ = self.fs.remove_dir(dir, CTX);
        }
        made
    }

    /// The same, with the `names` that were made in `dir`; false if a keyspace was dropped meanwhile, or a newer memtable flushed that was chosen before.
    fn try_checkpoint(&self, dir: &Path, names: &mut Vec<PathBuf>) -> Result<bool> {
        let (barrier, keyspaces) = {
            let mut state = self.writer.lock();
            let ids: Vec<_> = state.memtables.keys().copied().collect();
            for id in &ids {
                self.rotate(&mut state, *id);
            }
            self.flush_barrier.store(state.last_seq.0, Ordering::Release);
            (state.last_seq, ids)
        };
        let made = self.flush_up_to(barrier, None).and_then(|()| self.link_files(dir, barrier, &keyspaces, names));
        self.flush_barrier.store(u64::MAX, Ordering::Release);
        self.wake(FLUSH_LANE);
        self.notify();
        made
    }

    /// Links the tables of all trees and writes a manifest for them. The manifest lock keeps the trees as they are, so no table
    /// is removed meanwhile. Nothing is done, and false returned, if the trees hold something newer than `barrier`, or one of `keyspaces` is gone.
    fn link_files(
        &self,
        dir: &Path,
        barrier: SeqNo,
        keyspaces: &[KeyspaceId],
        names: &mut Vec<PathBuf>,
    ) -> Result<bool> {
        let manifest = self.lock_manifest()?;
        let trees = &manifest.state().keyspaces;
        let is_newer = |keyspace: &KeyspaceState| keyspace.version.files().any(|(_, _, file)| file.max_seq > barrier);
        if keyspaces.iter().any(|id| !trees.contains_key(id)) || trees.values().any(is_newer) {
            return Ok(false);
        }
        for keyspace in trees.values() {
            let tables: BTreeSet<SstId> = keyspace.version.files().map(|(_, _, file)| file.table()).collect();
            for id in tables {
                let (from, to) = (sst_path(&self.dir, id), sst_path(dir, id));
                self.fs.hard_link(&from, &to, CTX).map_err(|e| Error::io(&to, "cannot link a table", e))?;
                names.push(to);
            }
        }
        // Everything is in tables: the copy begins with no log.
        let state = StoreState { log_floor: SegmentId(0), ..manifest.state().clone() };
        // The names are durable before the manifest that counts on them.
        self.fs.sync_dir(dir, CTX).map_err(|e| Error::io(dir, "cannot sync the folder", e))?;
        let own = [superblock::FILE_NAME, superblock::TEMPORARY_NAME, &manifest::file_name(1)];
        names.extend(own.map(|name| dir.join(name)));
        Manifest::create_with(Arc::clone(&self.fs), dir, state, ManifestOptions::default())?;
        Ok(true)
    }

    /// Sets every memtable (of one keyspace, or of all) aside and waits for their flush.
    pub(crate) fn flush_all(&self, only: Option<&KeyspaceCore>) -> Result<()> {
        let last = {
            let mut state = self.writer.lock();
            self.check_write()?;
            let ids: Vec<_> = state.memtables.keys().copied().collect();
            for id in ids.into_iter().filter(|id| only.is_none_or(|keyspace| keyspace.id == *id)) {
                self.rotate(&mut state, id);
            }
            state.last_seq
        };
        self.flush_up_to(last, only)
    }

    /// Waits until no immutable memtable (of one keyspace, or of all) with records up to `seq` is left.
    fn flush_up_to(&self, seq: SeqNo, only: Option<&KeyspaceCore>) -> Result<()> {
        let keyspaces = self.keyspaces.load();
        let of_interest = || keyspaces.values().filter(|keyspace| only.is_none_or(|only| keyspace.id == only.id));
        let flushed = || of_interest().all(|k| k.view.load().immutables.iter().all(|slot| slot.table.min_seq() > seq));
        self.wake(FLUSH_LANE);
        let is_flush = |trouble| trouble == Trouble::Flush;
        loop {
            self.wait(|| flushed() || self.health.check_write().is_err() || self.health.trouble(is_flush).is_some())?;
            if flushed() {
                return Ok(());
            }
            self.health.check_write()?;
            if let Some(error) = self.health.trouble(is_flush) {
                return Err(error);
            }
        }
    }
}
