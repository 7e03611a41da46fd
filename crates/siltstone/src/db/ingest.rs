//! Ingestion: a sorted stream becomes tables of L0 without passing through log and memtable.
//!
//! The tables are written while the store goes on, with sequence number 0 in their records, since it is not known yet when they
//! will take effect ([`iter::file`](crate::iter)). Then, in one moment with the keyspace's writers held back: what is in memory
//! is flushed, the next sequence number is taken, and one edit puts the tables above everything older.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::core::{Core, KeyspaceCore};
use super::read::dropped;
use crate::batch::check_sizes;
use crate::error::{Error, Result};
use crate::io::{IoClass, IoCtx, IoMeter, JobId};
use crate::jobs::output::Outputs;
use crate::jobs::{self, JobCx};
use crate::key::{Entry, Kind, SeqNo, Trailer};
use crate::sst::TableOptions;
use crate::version::{FileMeta, LevelId, ManifestEdit, RunOrder, VersionEdit};

impl Core {
    /// Ingests `entries`, ascending by key; returns how many. All appear at once.
    pub(crate) fn ingest<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        keyspace: &Arc<KeyspaceCore>,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Result<u64> {
        self.check_write()?;
        let options = TableOptions {
            block_bytes: keyspace.options.block_bytes,
            filter_bits_per_key: keyspace.options.filter_bits_per_key,
            compression: keyspace.options.compression_at(0),
        };
        let mut outputs = Outputs::new(options, None);
        let ingested = self.write_tables(keyspace, entries, &mut outputs).and_then(|(files, count)| {
            if count > 0 {
                self.install_tables(keyspace, files)?;
            }
            Ok(count)
        });
        if ingested.is_err() && !self.health.is_poisoned() && !self.manifest_is_poisoned() {
            // Closed meanwhile, the folder may be another's, with other files of these numbers: the next open has removed these.
            let held = self.lock.lock();
            if held.is_some() {
                jobs::discard(&*self.fs, &self.dir, outputs.ids(), IoCtx::foreground(IoClass::Meta));
            }
        }
        ingested
    }

    fn write_tables<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        keyspace: &KeyspaceCore,
        entries: impl IntoIterator<Item = (K, V)>,
        outputs: &mut Outputs,
    ) -> Result<(Vec<Arc<FileMeta>>, u64)> {
        let new_id = || self.new_sst_id();
        let cx = JobCx {
            fs: &*self.fs,
            dir: &self.dir,
            clock: &*self.clock,
            new_id: &new_id,
            force_every_bytes: self.options.force_every_bytes,
            direct: self.options.direct.flushes,
            ctx: IoCtx { class: IoClass::Checkpoint, job: JobId(0) },
            meter: &IoMeter::new(Arc::clone(&self.clock)),
            obsolete: self.tables.purge_queue(),
        };
        let trailer = Trailer::new(SeqNo::ZERO, Kind::Put);
        let mut last: Option<Vec<u8>> = None;
        let mut count = 0;
        for (key, value) in entries {
            let (key, value) = (key.as_ref(), value.as_ref());
            check_sizes(key, value)?;
            match &mut last {
                Some(last) if last.as_slice() >= key => {
                    return Err(Error::invalid(format!("record {count} of the stream is not in ascending key order")));
                }
                Some(last) => {
                    last.clear();
                    last.extend_from_slice(key);
                }
                None => last = Some(key.to_vec()),
            }
            if outputs.file_bytes() >= keyspace.options.file_bytes {
                outputs.finish_file(&cx)?;
            }
            let entry = Entry { key, trailer, value };
            if outputs.file_bytes() == 0 {
                // The stream may take its time: no file is made in a folder that was given up meanwhile.
                let held = self.lock.lock();
                self.health.check_open()?;
                outputs.add(&cx, entry)?;
                drop(held);
            } else {
                outputs.add(&cx, entry)?;
            }
            count += 1;
        }
        Ok((outputs.finish(&cx)?, count))
    }

    fn install_tables(&self, keyspace: &Arc<KeyspaceCore>, files: Vec<Arc<FileMeta>>) -> Result<()> {
        // Other ingests of the keyspace, and its writers, wait from here on.
        self.wait(|| !keyspace.ingesting.swap(true, Ordering::AcqRel) || self.health.check_write().is_err())?;
        let installed = self.health.check_write().and_then(|()| self.install_quietly(keyspace, files));
        keyspace.ingesting.store(false, Ordering::Release);
        self.notify();
        installed
    }

    fn install_quietly(&self, keyspace: &Arc<KeyspaceCore>, files: Vec<Arc<FileMeta>>) -> Result<()> {
        loop {
            self.flush_all(Some(keyspace))?;
            let mut manifest = self.lock_manifest()?;
            let mut state = self.writer.lock();
            self.health.check_write()?;
            if keyspace.dropped.load(Ordering::Acquire) {
                return Err(dropped(keyspace));
            }
            // A checkpoint is taken, whose trees end before these files.
            let may_install = || self.flush_barrier.load(Ordering::Acquire) == u64::MAX;
            if !may_install() {
                drop(state);
                drop(manifest);
                self.wait(|| may_install() || self.health.check_write().is_err())?;
                continue;
            }
            let view = keyspace.view.load();
            if !view.memtable.table.is_empty() || !view.immutables.is_empty() {
                // A writer was past the check when we raised the flag: flush its record too.
                continue;
            }
            let seq = SeqNo(state.last_seq.0 + 1);
            let order = RunOrder(manifest.state().keyspaces[&keyspace.id].next_run_order);
            let stamped = files
                .iter()
                .map(|file| (LevelId(0), order, Arc::new(FileMeta { min_seq: seq, max_seq: seq, ..(**file).clone() })))
                .collect();
            // What is ingested is durable at once: no older write of any keyspace may be lost behind it.
            self.poison_on_failure(self.log.as_ref().map_or(Ok(()), |log| log.sync_all()))?;
            let edit = VersionEdit { removed: Vec::new(), added: stamped };
            let told = self.copy_to_tell(&edit);
            let committed = manifest.commit(&[
                ManifestEdit::NextSst(self.next_sst()),
                ManifestEdit::LastSeq(seq),
                ManifestEdit::Version(keyspace.id, edit),
            ]);
            self.poison_on_failure(committed)?;
            // Taken only now: a failed commit leaves no hole. Nobody else can have taken it, we hold the writer lock.
            state.last_seq = seq;
            let tree = self.next_tree(keyspace, &manifest.state().keyspaces[&keyspace.id].version);
            {
                // A merge may take the files from the tree at once. It must know of each snapshot that does not see them, so none is taken
                // between the two.
                let _snapshots = self.snapshots.lock();
                keyspace.set_tree(tree);
                self.visible.store(seq.0, Ordering::Release);
            }
            let number = self.number_change();
            self.counters.user_bytes_written.add(files.iter().map(|file| file.raw_bytes).sum());
            drop(state);
            drop(manifest);
            self.tell_change(keyspace.id, number, None, told);
            keyspace.note_written(seq, self.now_ms());
            self.counters.ingested_files.add(crate::num::to_u64(files.len()));
            {
                let mut metrics = keyspace.metrics.lock();
                metrics.ingested_bytes += files.iter().map(|file| file.raw_bytes).sum::<u64>();
                metrics.flush_bytes += files.iter().map(|file| file.bytes).sum::<u64>();
            }
            self.sample_runs(keyspace);
            self.wake_compactions();
            return Ok(());
        }
    }
}
