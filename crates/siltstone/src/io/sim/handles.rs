//! [`SimFs`] as an [`Fs`], and its open files.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::{
    Clock, CreateOptions, DirEntry, FileLock, Fs, IoClass, IoCtx, LogFile, LogMemory, LogSegment, OpenOptions,
    ReadableFile, SlotFile, WritableFile,
};
use super::SimFs;
use super::disk::{Inode, Node, clean};
use super::faults::{CallKind, Effect};
use super::fs::{Call, Shared, State, path_hash};
use super::oplog::OpKind;
use crate::num::{to_u64, to_usize};

impl Fs for SimFs {
    fn create_dir_all(&self, dir: &Path, ctx: IoCtx) -> io::Result<()> {
        let mutates = self.shared.state.lock().disk.missing_dirs(dir).is_ok_and(|missing| !missing.is_empty());
        self.shared.call(&Call::new(CallKind::CreateDir, ctx, dir, mutates), |state, _| {
            for dir in state.disk.missing_dirs(dir)? {
                state.mutate(OpKind::CreateDir, &dir, ctx, |disk| disk.create_dir(&dir), |_, ()| {})?;
            }
            Ok(())
        })
    }

    fn list(&self, dir: &Path, ctx: IoCtx) -> io::Result<Vec<DirEntry>> {
        self.shared.call(&Call::new(CallKind::List, ctx, dir, false), |state, _| {
            let Node::Dir = state.disk.node(dir)? else {
                return Err(ErrorKind::NotADirectory.into());
            };
            let names = state.disk.tree.get(clean(dir).as_os_str());
            let entry = |(name, node): (&String, &Node)| DirEntry {
                name: name.clone(),
                bytes: match node {
                    Node::Dir => 0,
                    Node::File(inode) => inode.file.lock().data.len(),
                },
                is_dir: matches!(node, Node::Dir),
            };
            let mut entries: Vec<_> = names.into_iter().flatten().map(entry).collect();
            state.shuffle(&mut entries);
            Ok(entries)
        })
    }

    fn exists(&self, path: &Path, ctx: IoCtx) -> io::Result<bool> {
        let call = Call::new(CallKind::Exists, ctx, path, false);
        self.shared.call(&call, |state, _| Ok(state.disk.node(path).is_ok()))
    }

    fn create(&self, path: &Path, _: CreateOptions, ctx: IoCtx) -> io::Result<Box<dyn WritableFile>> {
        let call = Call::new(CallKind::Create, ctx, path, true);
        let handle = self.create_file(&call, OpKind::Create, 0)?;
        Ok(Box::new(Appender { handle, bytes: 0 }))
    }

    fn create_over(&self, old: &Path, path: &Path, ctx: IoCtx) -> io::Result<Box<dyn WritableFile>> {
        let inode = self.shared.state.lock().disk.file(old)?;
        if !inode.file.lock().is_own() {
            self.remove_file(old, ctx)?;
            return self.create(path, CreateOptions::default(), ctx);
        }
        let inode = self.take_over(old, path, ctx)?;
        Ok(Box::new(Appender { handle: self.handle(path, inode), bytes: 0 }))
    }

    fn create_log(&self, path: &Path, bytes: u64, header: &[u8], ctx: IoCtx) -> io::Result<LogSegment> {
        if bytes == 0 || to_u64(header.len()) > bytes {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                "a log segment cannot be empty or shorter than its header",
            ));
        }
        let call = Call { len: bytes, ..Call::new(CallKind::CreateLog, ctx, path, true) };
        let handle = self.create_file(&call, OpKind::CreateLog, bytes)?;
        let mut memory = vec![0; to_usize(bytes)].into_boxed_slice();
        memory[..header.len()].copy_from_slice(header);
        let segment = Segment { handle, bytes };
        if !header.is_empty() {
            segment.written(0, header, ctx);
            segment.sync(ctx)?;
        }
        Ok(LogSegment { memory: LogMemory::plain(memory), file: Arc::new(segment) })
    }

    fn create_log_over(
        &self,
        old: &Path,
        path: &Path,
        bytes: u64,
        header: &[u8],
        ctx: IoCtx,
    ) -> io::Result<LogSegment> {
        let is_own = self.shared.state.lock().disk.file(old).is_ok_and(|inode| {
            let file = inode.file.lock();
            file.is_own() && file.data.len() == bytes
        });
        if !is_own {
            return Err(io::Error::new(ErrorKind::InvalidInput, "not a segment to be written over"));
        }
        let inode = self.take_over(old, path, ctx)?;
        let mut memory = inode.file.lock().data.bytes(0, bytes).into_boxed_slice();
        memory[..header.len()].copy_from_slice(header);
        let segment = Segment { handle: self.handle(path, inode), bytes };
        segment.written(0, header, ctx);
        segment.sync(ctx)?;
        Ok(LogSegment { memory: LogMemory::plain(memory), file: Arc::new(segment) })
    }

    fn sync_file(&self, path: &Path, ctx: IoCtx) -> io::Result<()> {
        let inode = self.open_file(path, ctx)?;
        self.handle(path, inode).sync(ctx)
    }

    fn open(&self, path: &Path, _: OpenOptions, ctx: IoCtx) -> io::Result<Arc<dyn ReadableFile>> {
        let inode = self.open_file(path, ctx)?;
        let mut file = inode.file.lock();
        file.readers += 1;
        let bytes = file.data.len();
        drop(file);
        Ok(Arc::new(Reader { handle: self.handle(path, inode), bytes }))
    }

    fn open_slots(
        &self,
        path: &Path,
        slots: u32,
        slot_bytes: u32,
        create: bool,
        ctx: IoCtx,
    ) -> io::Result<Box<dyn SlotFile>> {
        let bytes = u64::from(slots) * u64::from(slot_bytes);
        let call = Call { len: bytes, ..Call::new(CallKind::OpenSlots, ctx, path, create) };
        let handle = if create {
            self.create_file(&call, OpKind::CreateSlots, bytes)?
        } else {
            let inode = self.shared.call(&call, |state, _| {
                let inode = state.disk.file(path)?;
                state.opened(&inode);
                Ok(inode)
            })?;
            self.handle(path, inode)
        };
        Ok(Box::new(Slots { handle, slots, slot_bytes }))
    }

    fn rename(&self, from: &Path, to: &Path, ctx: IoCtx) -> io::Result<()> {
        self.shared.call(&Call::new(CallKind::Rename, ctx, from, true), |state, _| {
            let work = |disk: &mut super::disk::Disk| disk.rename(from, to);
            state.mutate(OpKind::Rename, from, ctx, work, |op, ()| op.to = Some(to.into()))
        })
    }

    fn remove_file(&self, path: &Path, ctx: IoCtx) -> io::Result<()> {
        self.shared.call(&Call::new(CallKind::Remove, ctx, path, true), |state, _| {
            state.mutate(OpKind::Remove, path, ctx, |disk| disk.remove(path), |_, ()| {})
        })
    }

    fn remove_dir(&self, dir: &Path, ctx: IoCtx) -> io::Result<()> {
        self.shared.call(&Call::new(CallKind::RemoveDir, ctx, dir, true), |state, _| {
            state.mutate(OpKind::RemoveDir, dir, ctx, |disk| disk.remove_dir(dir), |_, ()| {})
        })
    }

    fn hard_link(&self, from: &Path, to: &Path, ctx: IoCtx) -> io::Result<()> {
        self.shared.call(&Call::new(CallKind::Link, ctx, from, true), |state, _| {
            let work = |disk: &mut super::disk::Disk| disk.link(from, to);
            state.mutate(OpKind::Link, from, ctx, work, |op, ()| op.to = Some(to.into()))
        })
    }

    fn sync_dir(&self, dir: &Path, ctx: IoCtx) -> io::Result<()> {
        self.shared.call(&Call::new(CallKind::SyncDir, ctx, dir, true), |state, _| {
            state.mutate(OpKind::SyncDir, dir, ctx, |disk| disk.sync_dir(dir), |_, ()| {})
        })
    }

    fn lock(&self, path: &Path, ctx: IoCtx) -> io::Result<Box<dyn FileLock>> {
        let creates = self.shared.state.lock().disk.node(path).is_err();
        self.shared.call(&Call::new(CallKind::Lock, ctx, path, creates), |state, effect| {
            if creates {
                let create = |disk: &mut super::disk::Disk| disk.create(path, 0);
                state.mutate(OpKind::Create, path, ctx, create, |op, inode| op.inode = inode.id)?;
            } else {
                state.disk.file(path)?;
            }
            // A call that fails after all gives nobody a lock.
            if effect.is_none() {
                if !state.locks.insert(clean(path).into_owned()) {
                    return Err(io::Error::new(ErrorKind::WouldBlock, "locked by another handle"));
                }
                state.open_handles += 1;
            }
            Ok(())
        })?;
        Ok(Box::new(Lock { shared: self.shared.clone(), path: clean(path).into_owned() }))
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let call = Call::new(CallKind::FreeBytes, IoCtx::foreground(IoClass::Meta), dir, false);
        self.shared.call(&call, |state, _| Ok(state.disk.free()))
    }

    fn memory_bytes(&self) -> Option<u64> {
        self.memory()
    }
}

impl SimFs {
    fn create_file(&self, call: &Call<'_>, kind: OpKind, len: u64) -> io::Result<Handle> {
        let inode = self.shared.call(call, |state, effect| {
            let create = |disk: &mut super::disk::Disk| disk.create(call.path, len);
            let inode = state.mutate(kind, call.path, call.ctx, create, |op, inode| {
                (op.inode, op.len) = (inode.id, len);
            })?;
            // A call that fails after all leaves a file, but no handle.
            if effect.is_none() {
                state.opened(&inode);
            }
            Ok(inode)
        })?;
        Ok(self.handle(call.path, inode))
    }

    /// Renames a file to a name that must be free, and opens it.
    fn take_over(&self, old: &Path, path: &Path, ctx: IoCtx) -> io::Result<Arc<Inode>> {
        if self.shared.state.lock().disk.node(path).is_ok() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.rename(old, path, ctx)?;
        self.open_file(path, ctx)
    }

    fn open_file(&self, path: &Path, ctx: IoCtx) -> io::Result<Arc<Inode>> {
        self.shared.call(&Call::new(CallKind::Open, ctx, path, false), |state, _| {
            let inode = state.disk.file(path)?;
            state.opened(&inode);
            Ok(inode)
        })
    }

    fn handle(&self, path: &Path, inode: Arc<Inode>) -> Handle {
        Handle { shared: self.shared.clone(), inode, path: path.into(), path_hash: path_hash(path) }
    }
}

impl State {
    fn opened(&mut self, inode: &Inode) {
        self.disk.opened(inode);
        self.open_handles += 1;
    }
}

/// What every open file has.
struct Handle {
    shared: Arc<Shared>,
    inode: Arc<Inode>,
    path: Arc<Path>,
    path_hash: u64,
}

impl Handle {
    fn call(&self, kind: CallKind, ctx: IoCtx, offset: u64, data: &[u8], mutates: bool) -> Call<'_> {
        let (path, path_hash) = (&*self.path, self.path_hash);
        let data_hash = if mutates && !data.is_empty() { crate::key::hash(data) } else { 0 };
        Call { kind, ctx, path, path_hash, offset, len: to_u64(data.len()), data_hash, mutates }
    }

    fn read(&self, kind: CallKind, buf: &mut [u8], offset: u64, ctx: IoCtx) -> io::Result<()> {
        self.shared.call(&self.call(kind, ctx, offset, buf, false), |_, _| {
            let file = self.inode.file.lock();
            if offset.checked_add(to_u64(buf.len())).is_none_or(|end| end > file.data.len()) {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "the file ends before the bytes asked for"));
            }
            file.data.read(offset, buf);
            Ok(())
        })
    }

    fn sync(&self, ctx: IoCtx) -> io::Result<()> {
        self.shared.call(&self.call(CallKind::Sync, ctx, 0, &[], true), |state, failed| {
            state.sync(&self.inode, &self.path, failed, ctx);
            Ok(())
        })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.disk.closed(&self.inode);
        state.open_handles -= 1;
    }
}

struct Appender {
    handle: Handle,
    bytes: u64,
}

impl WritableFile for Appender {
    fn append(&mut self, data: &[u8], ctx: IoCtx) -> io::Result<()> {
        let handle = &self.handle;
        let call = handle.call(CallKind::Append, ctx, self.bytes, data, true);
        let mut landed = 0;
        let result = handle.shared.call(&call, |state, effect| {
            let wanted = if effect == Some(Effect::Partial) { state.some_of(data) } else { data };
            landed = state.write(OpKind::Append, (&handle.inode, &handle.path), (call.offset, wanted), ctx);
            state.meter.class(ctx.class).written += to_u64(landed);
            if landed < data.len() { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
        });
        self.bytes += to_u64(landed);
        result
    }

    fn cut(&mut self, ctx: IoCtx) -> io::Result<()> {
        let handle = &self.handle;
        if handle.inode.file.lock().data.len() <= self.bytes {
            return Ok(());
        }
        handle.shared.call(&handle.call(CallKind::Cut, ctx, self.bytes, &[], true), |state, _| {
            state.cut(&handle.inode, &handle.path, self.bytes, ctx);
            Ok(())
        })
    }

    fn sync(&mut self, ctx: IoCtx) -> io::Result<()> {
        self.handle.sync(ctx)
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

struct Reader {
    handle: Handle,
    bytes: u64,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.handle.inode.file.lock().readers -= 1;
    }
}

impl ReadableFile for Reader {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64, ctx: IoCtx) -> io::Result<()> {
        self.handle.read(CallKind::Read, buf, offset, ctx)
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

struct Segment {
    handle: Handle,
    bytes: u64,
}

impl LogFile for Segment {
    fn written(&self, offset: u64, data: &[u8], ctx: IoCtx) {
        assert!(offset + to_u64(data.len()) <= self.bytes, "a store beyond the segment of {} bytes", self.bytes);
        let handle = &self.handle;
        let mut state = handle.shared.state.lock();
        if state.violation("store", &handle.path) {
            return;
        }
        let clock = &handle.shared.clock;
        clock.advance(state.store(clock.mono_ns(), handle.path_hash, offset, data, ctx));
        state.write(OpKind::Write, (&handle.inode, &handle.path), (offset, data), ctx);
    }

    fn sync(&self, ctx: IoCtx) -> io::Result<()> {
        self.handle.sync(ctx)
    }
}

struct Slots {
    handle: Handle,
    slots: u32,
    slot_bytes: u32,
}

impl Slots {
    fn offset(&self, slot: u32, len: usize) -> io::Result<u64> {
        if slot >= self.slots || to_u64(len) != u64::from(self.slot_bytes) {
            return Err(io::Error::new(ErrorKind::InvalidInput, "no such slot, or not a whole slot"));
        }
        Ok(u64::from(slot) * u64::from(self.slot_bytes))
    }
}

impl SlotFile for Slots {
    fn read(&self, slot: u32, buf: &mut [u8], ctx: IoCtx) -> io::Result<()> {
        let offset = self.offset(slot, buf.len())?;
        self.handle.read(CallKind::ReadSlot, buf, offset, ctx)
    }

    fn write(&mut self, slot: u32, data: &[u8], ctx: IoCtx) -> io::Result<()> {
        let offset = self.offset(slot, data.len())?;
        let handle = &self.handle;
        handle.shared.call(&handle.call(CallKind::WriteSlot, ctx, offset, data, true), |state, effect| {
            let wanted = if effect == Some(Effect::Partial) { state.some_of(data) } else { data };
            let landed = state.write(OpKind::Write, (&handle.inode, &handle.path), (offset, wanted), ctx);
            state.meter.class(ctx.class).written += to_u64(landed);
            if landed < data.len() { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
        })
    }

    fn sync(&mut self, ctx: IoCtx) -> io::Result<()> {
        self.handle.sync(ctx)
    }
}

struct Lock {
    shared: Arc<Shared>,
    path: PathBuf,
}

impl FileLock for Lock {}

impl Drop for Lock {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.locks.remove(&self.path);
        state.open_handles -= 1;
    }
}
