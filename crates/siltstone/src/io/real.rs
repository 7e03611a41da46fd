//! The operating system as an [`Fs`].
//!
//! Interrupted calls are repeated and short transfers continued; nothing else is: a failed sync is reported once and never
//! tried again. Files are made for their owner alone (0600, folders 0700), never over something that is there and never
//! through a symbolic link.
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "this module is the seam to std::fs")]

mod direct;
mod memory;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs::{File, Metadata, OpenOptions as StdOptions};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Write};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{Advice, FallocateFlags, FlockOperation, OFlags};
use rustix::io::ReadWriteFlags;

use self::direct::{DirectReader, DirectWriter};
use super::map::{Map, MapPages};
use super::{
    CreateOptions, DirEntry, FileLock, Fs, IoCtx, LogFile, LogMemory, LogSegment, OpenOptions, ReadableFile, SlotFile,
    WritableFile,
};
use crate::num::{to_u64, to_usize};

/// The operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealFs;

impl Fs for RealFs {
    fn create_dir_all(&self, dir: &Path, _: IoCtx) -> io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
    }

    fn list(&self, dir: &Path, _: IoCtx) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                // Removed since the folder was read.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            entries.push(DirEntry {
                name: entry.file_name().to_string_lossy().into_owned(),
                bytes: if metadata.is_dir() { 0 } else { metadata.len() },
                is_dir: metadata.is_dir(),
            });
        }
        Ok(entries)
    }

    fn exists(&self, path: &Path, _: IoCtx) -> io::Result<bool> {
        path.try_exists()
    }

    fn create(&self, path: &Path, options: CreateOptions, _: IoCtx) -> io::Result<Box<dyn WritableFile>> {
        let file = create_new(path)?;
        Ok(match options.direct.then(|| DirectWriter::new(&file)).flatten() {
            Some(direct) => Box::new(direct),
            None => Box::new(Appender { file, bytes: 0, begun: 0, old_bytes: 0 }),
        })
    }

    fn create_over(&self, old: &Path, path: &Path, ctx: IoCtx) -> io::Result<Box<dyn WritableFile>> {
        let Some((file, metadata)) = open_own(old)? else {
            std::fs::remove_file(old)?;
            return self.create(path, CreateOptions::default(), ctx);
        };
        rename_new(old, path)?;
        Ok(Box::new(Appender { file, bytes: 0, begun: 0, old_bytes: metadata.len() }))
    }

    fn create_log(&self, path: &Path, bytes: u64, header: &[u8], _: IoCtx) -> io::Result<LogSegment> {
        let file = create_new(path)?;
        let make = || {
            allocate(&file, bytes)?;
            if !header.is_empty() {
                file.write_all_at(header, 0)?;
                file.sync_all()?;
            }
            Map::shared(&file, bytes)
        };
        // A segment that could not be made leaves nothing behind, above all not its blocks on a full disk.
        let map = make().inspect_err(|_| drop(std::fs::remove_file(path)))?;
        Ok(Segment::with(file, map))
    }

    fn create_log_over(&self, old: &Path, path: &Path, bytes: u64, header: &[u8], _: IoCtx) -> io::Result<LogSegment> {
        let file = open_own(old)?.filter(|(_, metadata)| metadata.len() == bytes).map(|(file, _)| file);
        let file = file.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "not a segment to be written over"))?;
        rename_new(old, path)?;
        write_durably(&file, header)?;
        // Who has opened it by its old name sees that it has another one now.
        rustix::fs::flock(&file, FlockOperation::Unlock)?;
        let map = Map::shared(&file, bytes)?;
        Ok(Segment::with(file, map))
    }

    fn sync_file(&self, path: &Path, _: IoCtx) -> io::Result<()> {
        let read_only =
            StdOptions::new().read(true).custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK)).open(path)?;
        read_only.sync_all()
    }

    fn open(&self, path: &Path, options: OpenOptions, _: IoCtx) -> io::Result<Arc<dyn ReadableFile>> {
        // NONBLOCK changes nothing for files; without it, a named pipe in the file's place would block for ever. Each read would look whether
        // it has to note its time; only the file's owner may do without.
        let open = |more| StdOptions::new().read(true).custom_flags(flags(OFlags::NONBLOCK | more)).open(path);
        let file = match open(OFlags::NOATIME) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => open(OFlags::empty())?,
            file => file?,
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
        }
        hold(&file, &metadata, path)?;
        let bytes = metadata.len();
        if options.direct
            && let Some(direct) = DirectReader::new(&file, bytes)
        {
            return Ok(Arc::new(direct));
        }
        if options.random {
            // Only advice: without it reads are slower, not wrong.
            let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
        }
        Ok(Arc::new(Reader { file, bytes }))
    }

    fn open_slots(
        &self,
        path: &Path,
        slots: u32,
        slot_bytes: u32,
        create: bool,
        _: IoCtx,
    ) -> io::Result<Box<dyn SlotFile>> {
        let file = if create {
            let file = create_new(path)?;
            let zeros = vec![0; to_usize(u64::from(slots) * u64::from(slot_bytes))];
            (&file).write_all(&zeros).inspect_err(|_| drop(std::fs::remove_file(path)))?;
            file
        } else {
            let nofollow = flags(OFlags::NOFOLLOW);
            let both = StdOptions::new().read(true).write(true).custom_flags(nofollow).open(path);
            match both {
                // A store that may only be read can be opened read-only all the same; a write will fail.
                Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
                    StdOptions::new().read(true).custom_flags(nofollow).open(path)?
                }
                both => both?,
            }
        };
        Ok(Box::new(Slots { file, slots, slot_bytes }))
    }

    fn rename(&self, from: &Path, to: &Path, _: IoCtx) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path, _: IoCtx) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn remove_dir(&self, dir: &Path, _: IoCtx) -> io::Result<()> {
        std::fs::remove_dir(dir)
    }

    fn hard_link(&self, from: &Path, to: &Path, _: IoCtx) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn sync_dir(&self, dir: &Path, _: IoCtx) -> io::Result<()> {
        // The parent of a relative path of one component is "".
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        let folder = File::open(dir)?;
        Ok(rustix::io::retry_on_intr(|| rustix::fs::fsync(&folder))?)
    }

    fn lock(&self, path: &Path, _: IoCtx) -> io::Result<Box<dyn FileLock>> {
        Lock::take(path).map(|lock| Box::new(lock) as _)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn memory_bytes(&self) -> Option<u64> {
        Some(memory::bytes())
    }
}

/// A new, empty file that only its owner may read.
fn create_new(path: &Path) -> io::Result<File> {
    // `create_new` is O_EXCL, which follows no symbolic link in the last component either.
    let mut options = StdOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600).custom_flags(flags(OFlags::NOFOLLOW));
    options.open(path)
}

/// Keeps others from writing over a file as long as it is open for reading: a process that only reads the store knows nothing of what
/// the one that writes to it needs no more.
fn hold(file: &File, metadata: &Metadata, path: &Path) -> io::Result<()> {
    let error = |kind| Err(io::Error::new(kind, "it is being written over"));
    match rustix::io::retry_on_intr(|| rustix::fs::flock(file, FlockOperation::NonBlockingLockShared)) {
        // It may still have this name, and then it is not missing.
        Err(rustix::io::Errno::WOULDBLOCK) => return error(ErrorKind::WouldBlock),
        // Where there are no locks nothing is written over.
        Err(_) => return Ok(()),
        Ok(()) => {}
    }
    // What was written over before that has another name.
    let named = std::fs::metadata(path)?;
    if (named.dev(), named.ino()) == (metadata.dev(), metadata.ino()) { Ok(()) } else { error(ErrorKind::NotFound) }
}

/// Gives up the lock of a file that is about to be closed. Closing alone does not do it while a child that this process has forked has the file
/// open, too: until it runs its own program.
fn unlock(file: &File) {
    let _ = rustix::io::retry_on_intr(|| rustix::fs::flock(file, FlockOperation::Unlock));
}

/// A file to be written over, which nobody can open for reading until it is closed or unlocked; none if its bytes are not this name's alone, or are
/// being read, or are not in memory any more: then writing over them would read them first, and costs more than new blocks.
fn open_own(path: &Path) -> io::Result<Option<(File, Metadata)>> {
    let nofollow = flags(OFlags::NOFOLLOW | OFlags::NONBLOCK);
    let file = StdOptions::new().read(true).write(true).custom_flags(nofollow).open(path)?;
    let metadata = file.metadata()?;
    let lock = || rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    let is_own = metadata.is_file() && metadata.nlink() == 1 && rustix::io::retry_on_intr(lock).is_ok();
    Ok((is_own && is_cached(&file, metadata.len())).then_some((file, metadata)))
}

/// Whether the page cache holds a file, as far as a few of its pages tell.
fn is_cached(file: &File, bytes: u64) -> bool {
    const PROBES: u64 = 16;
    let is_there = |at: u64| {
        let mut byte = [0];
        let read = || {
            let mut into = [IoSliceMut::new(&mut byte)];
            rustix::io::preadv2(file, &mut into, at, ReadWriteFlags::NOWAIT)
        };
        // Who cannot ask without reading may as well read.
        rustix::io::retry_on_intr(read) != Err(rustix::io::Errno::AGAIN)
    };
    (0..PROBES).all(|n| is_there(bytes / PROBES * n))
}

/// Writes the first bytes of `file` and makes them durable, them alone where the system can: the rest may be megabytes that were
/// never written to the disk and never need to be.
fn write_durably(file: &File, bytes: &[u8]) -> io::Result<()> {
    let write = || rustix::io::pwritev2(file, &[IoSlice::new(bytes)], 0, ReadWriteFlags::DSYNC);
    match rustix::io::retry_on_intr(write) {
        Ok(written) if written == bytes.len() => Ok(()),
        Ok(_) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            file.write_all_at(bytes, 0)?;
            file.sync_data()
        }
        Err(error) => Err(error.into()),
    }
}

/// Renames `from` to `to`, which must not exist.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match rustix::io::retry_on_intr(|| renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)) {
        // Not every file system can.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) if !to.try_exists()? => std::fs::rename(from, to),
        done => Ok(done?),
    }
}

#[expect(clippy::cast_possible_wrap, reason = "open flags are bits; the system's type for them is signed")]
fn flags(flags: OFlags) -> i32 {
    flags.bits() as i32
}

/// Gives `file` `bytes` zero bytes that are really allocated, so that a store through a map never meets a full disk.
fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    let fallocate = || rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes);
    match rustix::io::retry_on_intr(fallocate) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            let zeros = vec![0; 1 << 20];
            let mut left = bytes;
            while left > 0 {
                let piece = left.min(to_u64(zeros.len()));
                let mut file = file;
                file.write_all(&zeros[..to_usize(piece)])?;
                left -= piece;
            }
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// The system is told to begin writing whenever a file has grown by this much, so that a sync finds most of it done. Otherwise nothing moves
/// before the sync, and whoever appends stands still for all of it.
const BEGIN_EVERY_BYTES: u64 = 1 << 20;

/// Appends through the page cache. Callers hand in big pieces, so there is no buffer here.
struct Appender {
    file: File,
    bytes: u64,
    /// Up to where the system was told to begin.
    begun: u64,
    /// How long the file was that it was made over.
    old_bytes: u64,
}

impl WritableFile for Appender {
    fn append(&mut self, data: &[u8], _: IoCtx) -> io::Result<()> {
        self.file.write_all(data)?;
        self.bytes += to_u64(data.len());
        if let Some(fresh) = NonZeroU64::new(self.bytes - self.begun).filter(|fresh| fresh.get() >= BEGIN_EVERY_BYTES) {
            // Linux begins to write the dirty pages that it is advised to forget, and keeps them meanwhile.
            let _ = rustix::fs::fadvise(&self.file, self.begun, Some(fresh), Advice::DontNeed);
            self.begun = self.bytes;
        }
        Ok(())
    }

    fn cut(&mut self, _: IoCtx) -> io::Result<()> {
        if self.old_bytes > self.bytes {
            self.file.set_len(self.bytes)?;
            self.old_bytes = self.bytes;
        }
        Ok(())
    }

    fn sync(&mut self, _: IoCtx) -> io::Result<()> {
        self.file.sync_data()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Appender {
    fn drop(&mut self) {
        // What was made over another file is locked until here.
        unlock(&self.file);
    }
}

struct Reader {
    file: File,
    bytes: u64,
}

/// Without the C library: its `pread` is a point of cancellation, which costs a hundredth of a lookup.
fn read_exact_at(file: &File, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buf.is_empty() {
        match rustix::io::pread(file, &mut *buf, offset) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                buf = &mut buf[read..];
                offset += to_u64(read);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

impl ReadableFile for Reader {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64, _: IoCtx) -> io::Result<()> {
        read_exact_at(&self.file, buf, offset)
    }

    fn will_read(&self, range: Range<u64>) {
        // Only advice: without it reads wait for the disk, and come out the same.
        let _ = NonZeroU64::new(range.end.saturating_sub(range.start))
            .map(|bytes| rustix::fs::fadvise(&self.file, range.start, Some(bytes), Advice::WillNeed));
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

struct Segment {
    file: File,
    pages: MapPages,
}

impl Segment {
    fn with(file: File, map: Map) -> LogSegment {
        let file = Arc::new(Segment { file, pages: map.pages() });
        LogSegment { memory: LogMemory::mapped(map), file }
    }
}

impl LogFile for Segment {
    fn prepare(&self, range: Range<u64>) {
        self.pages.prepare(range);
    }

    #[inline]
    fn written(&self, _: u64, _: &[u8], _: IoCtx) {}

    fn sync(&self, _: IoCtx) -> io::Result<()> {
        // Writes back what was stored through the map as well: both are the page cache.
        self.file.sync_data()
    }
}

struct Slots {
    file: File,
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
    fn read(&self, slot: u32, buf: &mut [u8], _: IoCtx) -> io::Result<()> {
        self.file.read_exact_at(buf, self.offset(slot, buf.len())?)
    }

    fn write(&mut self, slot: u32, data: &[u8], _: IoCtx) -> io::Result<()> {
        self.file.write_all_at(data, self.offset(slot, data.len())?)
    }

    fn sync(&mut self, _: IoCtx) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// The files that this process has locked, by device and inode. `flock` excludes other processes, and other handles of this
/// one on most file systems; where it is emulated with record locks, as on NFS, it does not, and the registry does.
static LOCKED: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

struct Lock {
    file: File,
    id: (u64, u64),
}

impl Lock {
    fn take(path: &Path) -> io::Result<Lock> {
        let mut options = StdOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK)).open(path)?;
        let metadata = file.metadata()?;
        let id = (metadata.dev(), metadata.ino());
        let held = || io::Error::new(ErrorKind::WouldBlock, "locked by another handle");
        if !LOCKED.lock().insert(id) {
            return Err(held());
        }
        // From here on, dropping the lock leaves the registry again.
        let lock = Lock { file, id };
        let flock = || rustix::fs::flock(&lock.file, FlockOperation::NonBlockingLockExclusive);
        rustix::io::retry_on_intr(flock)?;
        // Between opening and locking, someone may have removed the file: a lock on a nameless file keeps nobody out.
        let now = std::fs::symlink_metadata(path)?;
        if (now.dev(), now.ino()) != id {
            return Err(held());
        }
        Ok(lock)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        unlock(&self.file);
        LOCKED.lock().remove(&self.id);
    }
}

impl FileLock for Lock {}
