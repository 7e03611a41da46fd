//! The lives of a world's store: opened, closed, crashed, found again, copied.

use std::path::{Path, PathBuf};

use siltstone::Cancel;
use siltstone::io::sim::{CrashImages, Profile, SimFs};
use siltstone::io::{Clock, Rng};
use siltstone::options::Recovery;
use siltstone::{Db, ErrorKind};

use crate::counters::Rare;
use crate::model::Pos;
use crate::ops::{Ack, Acks, Loss, Value, Write, index, number};
use crate::store::{
    Check, Expect, FOLDER, Machine, Recovered, Unreadable, Violation, broken, check_contents, check_recovered, read_all,
};
use crate::traces::Ending;
use crate::world::{REST_NS, World};

impl World {
    /// Opens the store on the present disk: a new one, or one that must equal the model now.
    ///
    /// # Errors
    /// If it does not open.
    pub fn open(&mut self) -> Check {
        let start = self.machine.fs.op_count();
        self.lives += 1;
        let seed = self.config.seed ^ self.lives.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.trace = self.trace_hash();
        self.machine = Machine::with_disk(self.machine.fs.clone(), seed);
        let fresh = self.live.is_empty();
        self.probe.forget_merges();
        self.note_disk_before_open();
        let outcome = self.machine.open(&self.options, seed, Some(&self.probe));
        let Some(db) = self.allow(outcome).map_err(|v| Violation(format!("open: {}", v.0)))? else {
            return Ok(());
        };
        self.note_stats(&db);
        if fresh {
            let handle = db.default_keyspace();
            let options = handle.options();
            self.db = Some(db);
            self.adopt("default".to_owned(), handle, options);
        } else {
            self.take_handles(db)?;
        }
        self.last_error = None;
        (self.poisoned, self.messy) = (false, false);
        if fresh {
            self.mark(start);
        }
        Ok(())
    }

    /// New handles of the keyspaces after a reopen; their names and options must be as before.
    pub(crate) fn take_handles(&mut self, db: Db) -> Check {
        if self.keyspaces_in_doubt {
            let names = db.list_keyspaces();
            let gone: Vec<_> =
                self.live.iter().filter(|live| !names.contains(&live.name)).map(|live| live.uid).collect();
            gone.into_iter().for_each(|uid| self.model.remove(uid));
            self.live.retain(|live| names.contains(&live.name));
        }
        for live in &mut self.live {
            live.handle =
                db.keyspace(&live.name).map_err(|e| Violation(format!("keyspace {} is gone: {e:?}", live.name)))?;
            if let Some(other) = live.strategy_in_doubt.take()
                && live.handle.options().strategy == other
            {
                live.options.strategy = other;
            }
            if let Some(may) = live.may_lose_in_doubt.take()
                && live.handle.options().may_lose_oldest == may
            {
                live.options.may_lose_oldest = may;
            }
            if live.handle.options() != live.options {
                return broken(format!("keyspace {} changed its options over a reopen", live.name));
            }
        }
        self.db = Some(db);
        if std::mem::take(&mut self.keyspaces_in_doubt) {
            self.settle_keyspaces()?;
            self.keyspaces_in_doubt = false;
        }
        Ok(())
    }

    /// Ends the store's life without a word: handles are dropped, the disk is what `fs` says.
    pub(crate) fn abandon(&mut self, fs: SimFs) {
        self.collect_stats();
        self.trace = self.trace_hash();
        self.snapshots.clear();
        let db = self.db.take();
        // The model's clock is the machine's: the dead store may run on while it is dropped, on the old disk.
        drop(db);
        self.machine.fs = fs;
    }

    /// Closes the store and opens it again, with other options.
    ///
    /// # Errors
    /// If a rule is broken.
    pub fn reopen(&mut self, seed: u64) -> Check {
        self.snapshots.clear();
        let start = self.machine.clock.mono_ns();
        self.collect_stats();
        let outcome = self.db().close();
        let closed = self.allow(outcome)?.is_some();
        self.end_trace(Ending::Stopped)?;
        if self.machine.clock.mono_ns() - start > REST_NS {
            return broken("close takes more than a minute");
        }
        let late = self.live[0].handle.get(b"");
        if closed && !matches!(&late, Err(e) if e.kind() == ErrorKind::Closed) {
            return broken(format!("a get after close gives {late:?}"));
        }
        if closed && self.model.doubtful() == 0 {
            // Closing seals and syncs the log.
            (self.floor_kill, self.floor_power) = (self.model.last(), self.model.last());
        }
        self.db = None;
        self.options = self.config.redraw(&self.options, seed);
        self.recover(Loss::Kill)
    }

    pub(crate) fn reopen_read_only(&mut self) -> Check {
        if self.tolerant {
            return Ok(());
        }
        self.close()?;
        self.look(self.machine.fs.clone(), self.model.last())?;
        self.recover(Loss::Kill)
    }

    /// Closes the store and leaves it closed.
    ///
    /// # Errors
    /// If closing fails.
    pub fn close(&mut self) -> Check {
        self.snapshots.clear();
        self.collect_stats();
        let outcome = self.db().close();
        self.allow(outcome)?;
        self.end_trace(Ending::Stopped)?;
        self.db = None;
        (self.floor_kill, self.floor_power) = (self.model.last(), self.model.last());
        Ok(())
    }

    pub(crate) fn crash(&mut self, loss: Loss, seed: u64) -> Check {
        let mut rng = Rng::new(seed);
        let fs = if rng.one_in(2) && self.marks.is_none() && !self.tolerant {
            self.crash_inside(loss, &mut rng)?
        } else {
            self.machine.fs.crash(profile(loss), &mut rng)
        };
        // A crash is no damage: who is told to go on in spite of that finds the same.
        self.options.recovery = if rng.one_in(6) { Recovery::Salvage } else { Recovery::Strict };
        let is_looked_at = rng.one_in(3) && !self.tolerant;
        let floor = if loss == Loss::Kill { self.floor_kill } else { self.floor_power };
        let looked = is_looked_at.then(|| self.look(fs.clone_image(), floor)).transpose();
        let looked = looked.map_err(|v| Violation(format!("after {loss:?}: {}", v.0)))?;
        self.abandon(fs);
        self.end_trace(Ending::Torn)?;
        self.recover(loss)?;
        match looked {
            // Who opens to write may have dropped the oldest data by now.
            Some(at) if at != self.model.last() && !self.config.may_lose => {
                broken(format!("after {loss:?} a look finds position {at}, who opens to write {}", self.model.last()))
            }
            _ => Ok(()),
        }
    }

    /// Opens what is on `fs` for reading alone, which changes nothing and finds the last position or one from `floor` on. Answers which it is.
    fn look(&self, fs: SimFs, floor: Pos) -> Check<Pos> {
        let machine = Machine::with_disk(fs, self.config.seed);
        machine.fs.set_read_only(true);
        let db = machine
            .open_at(Path::new(FOLDER), &self.options, 1, None, true)
            .map_err(|e| Violation(format!("open read-only: {e:?}")))?;
        let found = check_recovered(&db, &self.model, &self.expect(floor))
            .map_err(|v| Violation(format!("read-only: {}", v.0)))?;
        let refused = db.default_keyspace().put(b"x", b"y");
        if !matches!(&refused, Err(e) if e.kind() == ErrorKind::ReadOnly) {
            return broken(format!("a put into a read-only store gives {refused:?}"));
        }
        drop(db);
        machine.fs.set_read_only(false);
        let violations = machine.fs.violations();
        if !violations.is_empty() {
            return broken(format!("a read-only store changes its folder: {violations:?}"));
        }
        Ok(found.at)
    }

    /// Cuts the power in the middle of an operation: runs it with the op log on, then goes back to some point within.
    pub(crate) fn crash_inside(&mut self, loss: Loss, rng: &mut Rng) -> Check<SimFs> {
        self.machine.fs.record_ops(true);
        // The file operations after which a call returned, with what was promised by then.
        let mut promises = vec![(0, self.floor_kill, self.floor_power, self.flushed.clone())];
        let mut switches: Vec<(u64, u64, String)> = Vec::new();
        for _ in 0..rng.between(1, 3) {
            match rng.below(6) {
                0 => self.flush(None)?,
                1 => {
                    let outcome = self.live[0].handle.compact::<&[u8]>(.., &Cancel::new());
                    self.allow(outcome)?;
                }
                2 => {
                    let start = self.machine.fs.op_count();
                    let before = self.live[0].options.strategy.clone();
                    self.set_strategy(0, rng.next_u64().to_le_bytes()[0], rng.one_in(3), rng.next_u64())?;
                    switches.push((start, self.machine.fs.op_count(), before));
                }
                3 => {
                    for _ in 0..rng.below(60) {
                        self.machine.executor.step_random();
                    }
                }
                _ => {
                    let writes: Vec<Write> = (0..rng.between(1, 12))
                        .map(|i| Write {
                            keyspace: rng.next_u64().to_le_bytes()[0],
                            key: number(rng.below(1000)),
                            value: Some(Value { id: rng.next_u64() >> 1, len: number(8 + i) }),
                        })
                        .collect();
                    let ack = match self.config.acks {
                        Acks::Logged => Ack::Sync,
                        Acks::Mixed => [Ack::None, Ack::Buffered, Ack::Sync][index(rng, 3)],
                        Acks::Unlogged => Ack::None,
                    };
                    self.write_batch(&writes, ack)?;
                }
            }
            promises.push((self.machine.fs.op_count(), self.floor_kill, self.floor_power, self.flushed.clone()));
        }
        let ops = self.machine.fs.op_count();
        let at = rng.below(ops + 1);
        let image = CrashImages::new(&self.machine.fs, profile(loss), rng.next_u64())
            .nth(usize::try_from(at).expect("a small log"))
            .ok_or_else(|| Violation(format!("no crash image at {at} of {ops} operations")))?;
        self.machine.fs.record_ops(false);
        // What was not begun has not happened; what was under way may have.
        while let Some((start, end, before)) = switches.pop().filter(|(_, end, _)| at < *end) {
            let after = std::mem::replace(&mut self.live[0].options.strategy, before);
            self.live[0].strategy_in_doubt = (at > start).then_some(after);
            if at > start {
                self.counters.reach(Rare::CrashInSwitch);
            }
            debug_assert!(start <= end);
        }
        if at < ops {
            self.counters.reach(Rare::CrashInside);
        }
        promises.retain(|(end, ..)| *end <= at);
        if let Some((_, kill, power, flushed)) = promises.pop() {
            (self.floor_kill, self.floor_power, self.flushed) = (kill, power, flushed);
        }
        Ok(image.fs)
    }

    /// Opens what a crash (or a close) has left, and finds which position it is.
    ///
    /// # Errors
    /// If it does not open, or is in no state that it may be in.
    pub fn recover(&mut self, loss: Loss) -> Check {
        self.open()?;
        if self.db.is_none() {
            return Ok(());
        }
        // Numbers that were taken back are given out again.
        let known = self.db().last_seq().0;
        self.seqs.retain(|(seq, _)| *seq <= known);
        let last = self.model.last();
        let reverted = self.reverts && self.machine.fs.faults_hit() > 0;
        let floor = if loss == Loss::Kill && !reverted { self.floor_kill } else { self.floor_power };
        let contents = match read_all(self.db(), &self.model) {
            Ok(contents) => contents,
            // A bad disk may fail this read too; it is tried again with the next operation.
            Err(Unreadable::Error(error)) if self.tolerant => {
                self.allow::<()>(Err(error))?;
                // Handles of keyspaces would keep it open, and locked.
                let _ = self.db().close();
                self.db = None;
                return Ok(());
            }
            Err(unreadable) => return broken(format!("after {loss:?}: {}", Violation::from(unreadable).0)),
        };
        let Recovered { at, without, flushed, contents } =
            check_contents(contents, &self.model, &self.expect(floor))
                .map_err(|v| Violation(format!("after {loss:?}: {}", v.0)))?;
        let doubtful = self.model.doubtful();
        if doubtful > 0 {
            let vanished = without != 0 || at < last;
            self.counters.reach(if vanished { Rare::DoubtfulVanished } else { Rare::DoubtfulAppeared });
        }
        if loss != Loss::Kill {
            self.counters.reach(if at < last { Rare::CrashLostTail } else { Rare::CrashLostNothing });
        }
        let is_logged = self.config.acks == Acks::Logged;
        if is_logged {
            self.model.truncate(at, without);
        } else {
            self.model.truncate_mixed(at, &flushed);
        }
        self.flushed.values_mut().for_each(|flushed| *flushed = (*flushed).min(at));
        self.flushed.extend(flushed.into_iter().map(|(uid, flushed)| (uid, *flushed.start())));
        for live in &self.live {
            if let Some(found) = contents.get(&live.name) {
                let floor = if is_logged { floor } else { self.flushed[&live.uid] };
                self.model.note_missing(live.uid, found, floor);
            }
        }
        self.floor_kill = at;
        // What a power loss has left is on the disk; what a kill has left may still be in the page cache.
        self.floor_power = if loss == Loss::Kill { self.floor_power.min(at) } else { at };
        if is_logged && self.marks.is_none() && self.model.last().is_multiple_of(8) {
            self.model.forget_before(self.floor_power);
        }
        Ok(())
    }

    /// What a store may be that has lost nothing up to `floor` of what is logged.
    fn expect(&self, floor: Pos) -> Expect {
        let last = self.model.last();
        Expect { allowed: floor.min(last)..=last, keyspaces: vec![self.keyspaces()], flushed: self.flushed_at_least() }
    }

    pub(crate) fn checkpoint(&mut self, seed: u64) -> Check {
        let folder = PathBuf::from(format!("/checkpoint-{}", self.lives * 1000 + seed % 1000));
        let outcome = self.db().checkpoint(&folder);
        let taken = self.allow(outcome)?.is_some();
        if taken {
            // A checkpoint survives a power loss right after it, and is a store of its own.
            let mut rng = Rng::new(seed);
            let disk = if rng.one_in(2) {
                self.machine.fs.crash(Profile::Strict, &mut rng)
            } else {
                self.machine.fs.clone_image()
            };
            let machine = Machine::with_disk(disk, seed);
            let db = machine
                .open_at(&folder, &self.options, 1, None, false)
                .map_err(|e| Violation(format!("open of a checkpoint: {e:?}")))?;
            let last = self.model.last();
            let expect = Expect { allowed: last..=last, keyspaces: vec![self.keyspaces()], flushed: None };
            check_recovered(&db, &self.model, &expect)?;
        }
        let files: Vec<_> = self.machine.fs.files().into_iter().filter(|(path, _)| path.starts_with(&folder)).collect();
        for (path, _) in files {
            self.machine
                .fs
                .remove_all(&path)
                .map_err(|e| Violation(format!("cannot remove {}: {e}", path.display())))?;
        }
        Ok(())
    }

    /// Ends a world well: everything comes to rest, is checked, closed and found again.
    ///
    /// # Errors
    /// If a rule is broken.
    pub fn finish(&mut self) -> Check {
        if self.db.is_none() {
            self.open()?;
        }
        self.check_all(1)?;
        self.snapshots.clear();
        self.check_all(0)?;
        self.rest()?;
        self.reopen(index(&mut Rng::new(self.config.seed), 1 << 20) as u64)?;
        self.check_all(2)?;
        self.close()
    }

    pub(crate) fn note_disk_before_open(&self) {
        let mut logs = 0;
        let mut newest = None;
        for (path, _) in self.machine.fs.files() {
            if path.starts_with(FOLDER) && path.extension().is_some_and(|e| e == "log") {
                logs += 1;
                newest = Some(path);
            }
        }
        if logs > 1 {
            self.counters.reach(Rare::LogRolled);
        }
        if let Some(path) = newest
            && self.machine.fs.read_all(&path).is_ok_and(|bytes| bytes.iter().skip(4096).all(|byte| *byte == 0))
        {
            self.counters.reach(Rare::EmptyLogAtOpen);
        }
    }

    pub(crate) fn note_stats(&self, db: &Db) {
        let stats = db.stats();
        self.counters.add(Rare::OrphanRemoved, stats.orphans_removed);
        self.counters.add(Rare::LogReplayed, stats.replayed_records);
        self.counters.add(Rare::TornTail, stats.torn_tails);
    }

    /// Takes over what the engine has counted in this life.
    pub(crate) fn collect_stats(&self) {
        let Some(db) = &self.db else { return };
        let stats = db.stats();
        self.counters.add(Rare::Stall, stats.stalls);
        self.counters.add(Rare::TrivialMove, stats.trivial_moves);
        self.counters.add(Rare::TombstoneDropped, stats.dropped_tombstones);
        for (path, _) in self.machine.fs.files() {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if let Some(n) = name.strip_prefix("MANIFEST-")
                && n.parse::<u64>().is_ok_and(|n| n > self.lives + 1)
            {
                self.counters.reach(Rare::ManifestRolled);
            }
        }
        // More tables than may be open, or more blocks read than the cache holds: some were let go.
        if stats.files > u64::from(self.options.max_open_files) {
            self.counters.reach(Rare::HandleEvicted);
        }
        let block_bytes = u64::from(self.options.keyspace.block_bytes);
        if self.options.cache_bytes > 0 && stats.cache_misses * block_bytes > 4 * self.options.cache_bytes {
            self.counters.reach(Rare::CacheEviction);
        }
        let keys = self.config.keys.len() as u64;
        for level in stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels) {
            // One run with more records than there are keys holds several versions of some.
            if level.runs == 1 && level.entries > keys {
                self.counters.reach(Rare::VersionKept);
            }
        }
        for keyspace in &stats.keyspaces {
            if keyspace.immutables > 1 {
                self.counters.reach(Rare::ImmutableQueue);
            }
            let filled = keyspace.levels.iter().filter(|level| level.runs > 0).count();
            if filled >= 3 {
                self.counters.reach(Rare::DeepTree);
            }
            if keyspace.levels.iter().any(|level| level.runs > 3) {
                self.counters.reach(Rare::ManyRuns);
            }
            if keyspace.levels.iter().skip(1).any(|level| level.tombstones > 0) {
                self.counters.reach(Rare::TombstoneKept);
            }
        }
    }
}

/// The simulated disk's name for a loss.
pub(crate) fn profile(loss: Loss) -> Profile {
    match loss {
        Loss::Kill => Profile::Kill,
        Loss::Strict => Profile::Strict,
        Loss::Prefix => Profile::Prefix,
        Loss::Subset => Profile::Subset,
        Loss::Nasty => Profile::Nasty,
    }
}
