//! An online checkpoint: a second store made of hard links.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::core::{Core, FLUSH_LANE, KeyspaceCore};
use super::open::create_folder;
use crate::cache::sst_path;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{IoClass, IoCtx};
use crate::key::SeqNo;
use crate::version::{Manifest, ManifestOptions, SstId, StoreState};
use crate::wal::SegmentId;

const CTX: IoCtx = IoCtx::foreground(IoClass::Checkpoint);

impl Core {
    /// Makes `dir` a store that holds what this one holds now.
    ///
    /// All memtables are set aside at one moment and flushed, and memtables with newer records are not flushed until the
    /// files are linked. So the trees of all keyspaces end at the same sequence number, and a batch over two of them is whole.
    pub(crate) fn checkpoint(&self, dir: &Path) -> Result<()> {
        self.health.check_write()?;
        if self.fs.exists(dir, CTX).map_err(|e| Error::io(dir, "cannot look at", e))?
            && !self.fs.list(dir, CTX).map_err(|e| Error::io(dir, "cannot list", e))?.is_empty()
        {
            return Err(Error::new(ErrorKind::AlreadyExists, "a checkpoint needs a new or empty folder").at(dir));
        }
        let one_at_a_time = self.checkpointing.lock();
        let barrier = {
            let mut state = self.writer.lock();
            let ids: Vec<_> = state.memtables.keys().copied().collect();
            for id in ids {
                self.rotate(&mut state, id);
            }
            self.flush_barrier.store(state.last_seq.0, Ordering::Release);
            state.last_seq
        };
        let made = self.flush_up_to(barrier, None).and_then(|()| self.link_files(dir));
        self.flush_barrier.store(u64::MAX, Ordering::Release);
        self.wake(FLUSH_LANE);
        drop(one_at_a_time);
        if made.is_err() {
            self.remove_partial(dir);
        }
        made
    }

    /// Links the tables of all trees and writes a manifest for them. The manifest lock keeps the trees as they are, so no table
    /// is removed meanwhile.
    fn link_files(&self, dir: &Path) -> Result<()> {
        create_folder(&*self.fs, dir, CTX)?;
        let manifest = self.lock_manifest()?;
        for keyspace in manifest.state().keyspaces.values() {
            let tables: BTreeSet<SstId> = keyspace.version.files().map(|(_, _, file)| file.table()).collect();
            for id in tables {
                let (from, to) = (sst_path(&self.dir, id), sst_path(dir, id));
                self.fs.hard_link(&from, &to, CTX).map_err(|e| Error::io(&to, "cannot link a table", e))?;
            }
        }
        // Everything is in tables: the copy begins with no log.
        let state = StoreState { log_floor: SegmentId(0), ..manifest.state().clone() };
        // The names are durable before the manifest that counts on them.
        self.fs.sync_dir(dir, CTX).map_err(|e| Error::io(dir, "cannot sync the folder", e))?;
        Manifest::create_with(Arc::clone(&self.fs), dir, state, ManifestOptions::default())?;
        if let Some(parent) = dir.parent() {
            self.fs.sync_dir(parent, CTX).map_err(|e| Error::io(parent, "cannot sync the folder", e))?;
        }
        Ok(())
    }

    fn remove_partial(&self, dir: &Path) {
        let Ok(entries) = self.fs.list(dir, CTX) else {
            return;
        };
        for entry in entries {
            let _ = self.fs.remove_file(&dir.join(entry.name), CTX);
        }
        let _ = self.fs.remove_dir(dir, CTX);
    }

    /// Sets every memtable (of one keyspace, or of all) aside and waits for their flush.
    pub(crate) fn flush_all(&self, only: Option<&KeyspaceCore>) -> Result<()> {
        let last = {
            let mut state = self.writer.lock();
            self.health.check_write()?;
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
        self.wait(|| flushed() || self.health.check_write().is_err() || self.health.background().is_some())?;
        if flushed() {
            return Ok(());
        }
        self.health.check_write()?;
        self.health.background().map_or(Ok(()), Err)
    }
}
