//! The simulated file system: a disk, and around it what a test wants to know and to spoil.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::super::{Clock, IoClass, IoCtx, Rng};
use super::SimClock;
use super::content::mix;
use super::crash::{Profile, durability};
use super::device::{ClassBytes, Device, Meter};
use super::disk::{Disk, Inode, Node, clean};
use super::faults::{CallKind, Effect, Errno, Fault, Faults, Injected};
use super::oplog::{Op, OpKind, OpLog};
use crate::num::{to_u64, to_usize};

/// A file system in memory that knows what is durable. Cheap to clone: clones are the same disk.
///
/// Give `Arc::new(fs.clone())` to the store and keep `fs`. Everything that begins with reading or changing files here, and not
/// through [`Fs`](super::super::Fs), counts as no call and no mutation.
#[derive(Clone)]
pub struct SimFs {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) clock: Arc<SimClock>,
    /// Taken before any [`Inode`]'s own lock.
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    pub(super) disk: Disk,
    pub(super) faults: Faults,
    pub(super) meter: Meter,
    pub(super) rng: Rng,
    pub(super) locks: BTreeSet<PathBuf>,
    pub(super) open_handles: u64,
    log: Option<OpLog>,
    trace: u64,
    read_only: bool,
    memory_bytes: Option<u64>,
    violations: Vec<String>,
}

/// How much of a file would survive any crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Durability {
    /// Its name, and those of the folders around it.
    pub name: bool,
    /// All of its bytes.
    pub data: bool,
    /// Its durable length.
    pub synced_bytes: u64,
}

impl SimFs {
    /// An empty disk. The seed decides what is left to chance: the order of listings, the length of partial appends.
    pub fn new(clock: &Arc<SimClock>, seed: u64) -> SimFs {
        SimFs::with(clock.clone(), Disk::new(), Meter::default(), Rng::new(seed).split("sim fs"))
    }

    fn with(clock: Arc<SimClock>, disk: Disk, meter: Meter, rng: Rng) -> SimFs {
        let state = State {
            disk,
            faults: Faults::default(),
            meter,
            rng,
            locks: BTreeSet::new(),
            open_handles: 0,
            log: None,
            trace: 0,
            read_only: false,
            memory_bytes: None,
            violations: Vec::new(),
        };
        SimFs { shared: Arc::new(Shared { clock, state: Mutex::new(state) }) }
    }

    /// A file system like this one, with its clock, device and capacity, on `disk`.
    pub(super) fn with_disk(&self, mut disk: Disk) -> SimFs {
        let state = self.shared.state.lock();
        disk.capacity = state.disk.capacity;
        let meter = Meter::new(state.meter.device);
        SimFs::with(self.clock(), disk, meter, state.rng.clone())
    }

    /// Its clock.
    pub fn clock(&self) -> Arc<SimClock> {
        self.shared.clock.clone()
    }

    /// All files with their lengths, sorted.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let state = self.shared.state.lock();
        let mut files = Vec::new();
        for (dir, names) in &state.disk.tree {
            for (name, node) in names {
                if let Node::File(inode) = node {
                    files.push((Path::new(dir).join(name), inode.file.lock().data.len()));
                }
            }
        }
        files.sort();
        files
    }

    /// All folders, sorted.
    pub fn dirs(&self) -> Vec<PathBuf> {
        self.shared.state.lock().disk.tree.keys().map(PathBuf::from).collect()
    }

    /// A file's bytes.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn read_all(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let inode = self.shared.state.lock().disk.file(path.as_ref())?;
        let file = inode.file.lock();
        Ok(file.data.bytes(0, file.data.len()))
    }

    /// Puts a file there, in place of any that has the name, durable at once.
    ///
    /// # Errors
    /// If its folder cannot be.
    pub fn write_all(&self, path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
        let path = clean(path.as_ref());
        let mut state = self.shared.state.lock();
        let disk = &mut state.disk;
        let ops = disk.ops;
        for dir in disk.missing_dirs(path.parent().unwrap_or(&path))? {
            disk.create_dir(&dir)?;
            disk.settle(&dir);
        }
        if disk.file(&path).is_ok() {
            disk.remove(&path)?;
        }
        let inode = disk.create(&path, 0)?;
        disk.settle(&path);
        inode.file.lock().damage(|content| content.write(0, bytes));
        disk.used += to_u64(bytes.len());
        disk.ops = ops;
        Ok(())
    }

    /// Removes a file, durably at once.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn remove_all(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        let ops = state.disk.ops;
        state.disk.remove(path.as_ref())?;
        state.disk.settle(path.as_ref());
        state.disk.ops = ops;
        Ok(())
    }

    /// Damage: turns bit `bit` of a file over.
    ///
    /// # Errors
    /// If there is no such file, or it is shorter.
    pub fn flip_bit(&self, path: impl AsRef<Path>, bit: u64) -> io::Result<()> {
        let inode = self.shared.state.lock().disk.file(path.as_ref())?;
        let mut file = inode.file.lock();
        if bit / 8 >= file.data.len() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        file.damage(|content| content.flip_bit(bit));
        Ok(())
    }

    /// Damage: cuts a file to `len` bytes, or grows it by zeros.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn truncate(&self, path: impl AsRef<Path>, len: u64) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        let inode = state.disk.file(path.as_ref())?;
        let mut file = inode.file.lock();
        let before = file.data.len();
        file.damage(|content| content.set_len(len));
        state.disk.used = (state.disk.used + len).saturating_sub(before);
        Ok(())
    }

    /// Sets the size of the disk; what is beyond fails with `ENOSPC`. `None` is no limit.
    pub fn set_capacity(&self, capacity: Option<u64>) {
        self.shared.state.lock().disk.capacity = capacity;
    }

    /// Bytes that files take, those included that have no name but are open.
    pub fn used_bytes(&self) -> u64 {
        self.shared.state.lock().disk.used
    }

    /// Charges calls to the clock from now on, or no more.
    pub fn set_device(&self, device: Option<Device>) {
        self.shared.state.lock().meter.device = device;
    }

    /// Files and locks that are open.
    pub fn open_handles(&self) -> u64 {
        self.shared.state.lock().open_handles
    }

    /// Sets the memory that a process may have; `None`, as at first, is no bound.
    pub fn set_memory(&self, bytes: Option<u64>) {
        self.shared.state.lock().memory_bytes = bytes;
    }

    pub(super) fn memory(&self) -> Option<u64> {
        self.shared.state.lock().memory_bytes
    }

    /// In the read-only role each mutation fails with `EROFS` and is remembered as a violation.
    pub fn set_read_only(&self, read_only: bool) {
        self.shared.state.lock().read_only = read_only;
    }

    /// The mutations tried in the read-only role.
    pub fn violations(&self) -> Vec<String> {
        self.shared.state.lock().violations.clone()
    }

    /// Bytes written for `class`.
    pub fn bytes_written(&self, class: IoClass) -> u64 {
        self.shared.state.lock().meter.classes.get(&class).map_or(0, |bytes| bytes.written)
    }

    /// Bytes read for `class`.
    pub fn bytes_read(&self, class: IoClass) -> u64 {
        self.shared.state.lock().meter.classes.get(&class).map_or(0, |bytes| bytes.read)
    }

    /// All classes that did anything.
    pub fn bytes_by_class(&self) -> Vec<(IoClass, ClassBytes)> {
        self.shared.state.lock().meter.classes.iter().map(|(class, bytes)| (*class, *bytes)).collect()
    }

    /// A hash over every call so far: kind, path, place, length, data, and whether it worked. Two runs that differ in it differ.
    pub fn trace_hash(&self) -> u64 {
        self.shared.state.lock().trace
    }

    /// A hash over names and contents, as a running process sees them.
    pub fn image_hash(&self) -> u64 {
        let state = self.shared.state.lock();
        let mut hash = 0;
        for (dir, names) in &state.disk.tree {
            hash = mix(hash, path_hash(Path::new(dir)));
            for (name, node) in names {
                let content = match node {
                    Node::Dir => 1,
                    Node::File(inode) => inode.file.lock().data.hash(),
                };
                hash = mix(mix(hash, crate::key::hash(name.as_bytes())), content);
            }
        }
        hash
    }

    /// What of `path` would survive any crash; `None` if a running process sees no such name.
    pub fn durability(&self, path: impl AsRef<Path>) -> Option<Durability> {
        durability(&self.shared.state.lock().disk, path.as_ref())
    }

    /// An independent copy, for the price of a pointer per 32 KiB. What is not durable here is not durable there; handles, locks,
    /// faults, counts and the log of mutations stay behind.
    pub fn clone_image(&self) -> SimFs {
        let disk = self.shared.state.lock().disk.fork();
        self.with_disk(disk)
    }

    /// The same for a machine with a clock of its own.
    pub fn clone_image_for(&self, clock: &Arc<SimClock>) -> SimFs {
        let state = self.shared.state.lock();
        SimFs::with(Arc::clone(clock), state.disk.fork(), Meter::new(state.meter.device), state.rng.clone())
    }

    /// The disk as a crash leaves it now: independent of this one, which goes on as if nothing had happened.
    pub fn crash(&self, profile: Profile, rng: &mut Rng) -> SimFs {
        let disk = self.shared.state.lock().disk.crash(profile, rng);
        self.with_disk(disk)
    }

    /// Begins an empty log of mutations with the disk as it is, or ends it. Off at first: it keeps every byte that is written.
    pub fn record_ops(&self, on: bool) {
        let mut state = self.shared.state.lock();
        let first = state.disk.ops;
        state.log = on.then(|| OpLog { base: state.disk.fork(), first, ops: Vec::new() });
    }

    /// Mutations so far: since the log began, if it has.
    pub fn op_count(&self) -> u64 {
        let state = self.shared.state.lock();
        state.disk.ops - state.log.as_ref().map_or(0, |log| log.first)
    }

    /// The mutations in the log.
    pub fn op_log(&self) -> Vec<Op> {
        self.shared.state.lock().log.as_ref().map_or(Vec::new(), |log| log.ops.clone())
    }

    pub(super) fn recorded(&self) -> Option<(Disk, Vec<Op>)> {
        let state = self.shared.state.lock();
        let log = state.log.as_ref()?;
        let mut base = log.base.fork();
        // What fitted then fits now.
        base.capacity = None;
        Some((base, log.ops.clone()))
    }

    /// Adds a fault to come.
    pub fn set_fault(&self, fault: Fault) {
        self.shared.state.lock().faults.set(fault);
    }

    /// No more faults.
    pub fn clear_faults(&self) {
        self.shared.state.lock().faults.clear();
    }

    /// Calls so far, of all kinds.
    pub fn calls(&self) -> u64 {
        self.shared.state.lock().faults.calls
    }

    /// Calls of one kind so far.
    pub fn calls_of(&self, kind: CallKind) -> u64 {
        self.shared.state.lock().faults.by_kind[kind as usize]
    }

    /// Calls into which a fault was injected.
    pub fn faults_hit(&self) -> u64 {
        self.shared.state.lock().faults.hits
    }
}

/// A call on its way: what it is, for counts, faults, costs and the trace.
pub(super) struct Call<'a> {
    pub(super) kind: CallKind,
    pub(super) ctx: IoCtx,
    pub(super) path: &'a Path,
    pub(super) path_hash: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) data_hash: u64,
    /// Whether it changes the disk.
    pub(super) mutates: bool,
}

impl<'a> Call<'a> {
    pub(super) fn new(kind: CallKind, ctx: IoCtx, path: &'a Path, mutates: bool) -> Call<'a> {
        let path_hash = path_hash(path);
        Call { kind, ctx, path, path_hash, offset: 0, len: 0, data_hash: 0, mutates }
    }
}

impl Shared {
    /// Makes a call: counts it, injects what was asked for, charges the device, and does `work` unless it fails first. `work` is
    /// told what part of the call is to be done although it fails.
    pub(super) fn call<T>(
        &self,
        call: &Call<'_>,
        work: impl FnOnce(&mut State, Option<Effect>) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut state = self.state.lock();
        let Injected { error, stall_ns } = state.faults.call(call.kind, call.ctx.class, call.path);
        let cost_ns = state.charge(call, self.clock.mono_ns());
        self.clock.advance(stall_ns + cost_ns);
        let result = match error {
            _ if call.mutates && state.read_only => {
                let what = format!("{:?} of {}", call.kind, call.path.display());
                state.violations.push(what);
                Err(Errno::ReadOnly.error())
            }
            None => work(&mut state, None),
            Some((errno, effect)) => {
                let acts = match call.kind {
                    CallKind::Sync => true,
                    CallKind::Append | CallKind::WriteSlot => matches!(effect, Effect::Partial | Effect::Full),
                    _ => call.mutates && effect == Effect::Full,
                };
                if acts {
                    // Whether it could have been done does not matter: it has failed.
                    drop(work(&mut state, Some(effect)));
                }
                Err(errno.error())
            }
        };
        let trace = [call.path_hash, call.offset, call.len, call.data_hash];
        let head = mix(state.trace, call.kind as u64 * 2 + u64::from(result.is_ok()));
        state.trace = trace.into_iter().fold(head, mix);
        result
    }
}

impl State {
    fn charge(&mut self, call: &Call<'_>, now_ns: u64) -> u64 {
        let class = call.ctx.class;
        match call.kind {
            CallKind::Read | CallKind::ReadSlot => {
                self.meter.class(class).read += call.len;
                self.meter.call_ns(now_ns, call.len, class, false)
            }
            CallKind::Append | CallKind::WriteSlot => self.meter.call_ns(now_ns, call.len, class, true),
            CallKind::Sync | CallKind::SyncDir => {
                self.meter.class(class).syncs += 1;
                self.meter.sync_ns(now_ns, class)
            }
            _ => 0,
        }
    }

    /// A store to a log segment's memory: no call, but it passes through here all the same.
    #[inline]
    pub(super) fn store(&mut self, now_ns: u64, path_hash: u64, offset: u64, data: &[u8], ctx: IoCtx) -> u64 {
        self.meter.class(ctx.class).written += to_u64(data.len());
        let trace = [path_hash, offset, to_u64(data.len()), crate::key::hash(data)];
        self.trace = trace.into_iter().fold(self.trace, mix);
        self.meter.store_ns(now_ns, to_u64(data.len()), ctx.class)
    }

    pub(super) fn violation(&mut self, what: &str, path: &Path) -> bool {
        if self.read_only {
            self.violations.push(format!("{what} of {}", path.display()));
        }
        self.read_only
    }

    pub(super) fn recording(&self) -> bool {
        self.log.is_some()
    }

    /// Notes a mutation that is about to be done; call only when [`recording`](State::recording).
    pub(super) fn entry(&self, kind: OpKind, path: &Path, ctx: IoCtx) -> Op {
        let durability = durability(&self.disk, path);
        let index = self.disk.ops - self.log.as_ref().map_or(0, |log| log.first);
        Op {
            index,
            kind,
            path: path.into(),
            to: None,
            offset: 0,
            len: 0,
            data: Bytes::new(),
            ctx,
            name_durable: durability.is_some_and(|durability| durability.name),
            data_durable: durability.is_some_and(|durability| durability.data),
            inode: 0,
            effect: Effect::Full,
        }
    }

    /// Does a mutation of names and logs it if it worked.
    pub(super) fn mutate<T>(
        &mut self,
        kind: OpKind,
        path: &Path,
        ctx: IoCtx,
        work: impl FnOnce(&mut Disk) -> io::Result<T>,
        complete: impl FnOnce(&mut Op, &T),
    ) -> io::Result<T> {
        let op = self.recording().then(|| self.entry(kind, path, ctx));
        let before = self.disk.ops;
        let done = work(&mut self.disk)?;
        // A rename of a file to another of its names is none.
        if let (Some(mut op), Some(log)) = (op, &mut self.log)
            && self.disk.ops > before
        {
            complete(&mut op, &done);
            log.ops.push(op);
        }
        Ok(done)
    }

    /// Writes what fits, logs it, and says how much that was.
    #[inline]
    pub(super) fn write(
        &mut self,
        kind: OpKind,
        (inode, path): (&Inode, &Arc<Path>),
        (offset, data): (u64, &[u8]),
        ctx: IoCtx,
    ) -> usize {
        let op = self.recording().then(|| self.entry(kind, path, ctx));
        let written = self.disk.write(inode, offset, data);
        if let (Some(op), Some(log)) = (op, &mut self.log) {
            let (path, inode, len) = (path.clone(), inode.id, to_u64(written.len()));
            log.ops.push(Op { path, inode, offset, len, data: Bytes::copy_from_slice(written), ..op });
        }
        written.len()
    }

    /// Cuts a file to `len` bytes.
    pub(super) fn cut(&mut self, inode: &Inode, path: &Path, len: u64, ctx: IoCtx) {
        let op = self.recording().then(|| self.entry(OpKind::Cut, path, ctx));
        self.disk.cut(inode, len);
        if let (Some(op), Some(log)) = (op, &mut self.log) {
            log.ops.push(Op { inode: inode.id, offset: len, ..op });
        }
    }

    /// Syncs a file, or fails to with this effect.
    pub(super) fn sync(&mut self, inode: &Inode, path: &Path, failed: Option<Effect>, ctx: IoCtx) {
        let kind = if failed.is_some() { OpKind::SyncFailed } else { OpKind::Sync };
        let op = self.recording().then(|| self.entry(kind, path, ctx));
        match failed {
            None => self.disk.sync(inode),
            Some(effect) => self.disk.sync_failed(inode, effect),
        }
        if let (Some(op), Some(log)) = (op, &mut self.log) {
            log.ops.push(Op { inode: inode.id, effect: failed.unwrap_or(Effect::Full), ..op });
        }
    }

    /// A random prefix of `data`.
    pub(super) fn some_of<'a>(&mut self, data: &'a [u8]) -> &'a [u8] {
        &data[..to_usize(self.rng.below(to_u64(data.len()) + 1))]
    }

    /// Shuffles.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, to_usize(self.rng.below(to_u64(i) + 1)));
        }
    }
}

pub(super) fn path_hash(path: &Path) -> u64 {
    crate::key::hash(path.as_os_str().as_encoded_bytes())
}

impl std::fmt::Debug for SimFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimFs").field("mono_ns", &self.shared.clock.mono_ns()).field("files", &self.files()).finish()
    }
}
