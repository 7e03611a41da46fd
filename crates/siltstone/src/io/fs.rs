//! The file system as the store needs it: narrow, so that a simulated one can be exact.
//!
//! Data files are created once and appended to; nothing is written in place except the superblock's [`SlotFile`] and the log's
//! mapped segment. Every call says why it is made ([`IoCtx`]): the same tag drives rate limits, metrics and fault injection.
//!
//! Durability rules, which the simulation checks: bytes are durable after `sync`; a directory entry (create, rename, link,
//! remove) after [`Fs::sync_dir`] on its folder. Implementations never retry a failed sync.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Why an I/O call is made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum IoClass {
    /// The write-ahead log.
    Log,
    /// Writing a memtable to an SST.
    Flush,
    /// Reading or writing in a merge into this level.
    Compaction(u8),
    /// A read that a user waits for.
    UserRead,
    /// Superblock, manifest, folders, the lock.
    Meta,
    /// Verification of what is at rest.
    Scrub,
    /// A checkpoint or an ingested file.
    Checkpoint,
    /// A trace of what the store is asked for.
    Trace,
}

/// The number of a background job; 0 is the foreground.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct JobId(pub u64);

/// The tag that every I/O call carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IoCtx {
    /// Why.
    pub class: IoClass,
    /// For which job.
    pub job: JobId,
}

impl IoCtx {
    /// A call that belongs to no background job.
    pub const fn foreground(class: IoClass) -> IoCtx {
        IoCtx { class, job: JobId(0) }
    }
}

/// How a data file is to be created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CreateOptions {
    /// Bypass the page cache. The implementation does the alignment; a file system without direct I/O falls back quietly.
    pub direct: bool,
}

/// How a data file is to be opened for reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenOptions {
    /// Bypass the page cache. The implementation does the alignment; a file system without direct I/O falls back quietly.
    pub direct: bool,
    /// The system is not to read ahead (which is 8 MiB on some devices): reads jump about, or [tell](ReadableFile::will_read) what comes.
    pub random: bool,
}

/// One name in a folder.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DirEntry {
    /// The name, without the folder.
    pub name: String,
    /// Its size in bytes; 0 for a folder.
    pub bytes: u64,
    /// Whether it is a folder.
    pub is_dir: bool,
}

/// A file system. All paths are used as given; the store passes absolute ones or such that begin with its own folder.
pub trait Fs: Send + Sync + 'static {
    /// Creates a folder and its missing parents. Fine if it is there.
    ///
    /// # Errors
    /// What the operating system says; likewise for every call of this trait.
    fn create_dir_all(&self, dir: &Path, ctx: IoCtx) -> io::Result<()>;
    /// The names in `dir`, in no particular order.
    fn list(&self, dir: &Path, ctx: IoCtx) -> io::Result<Vec<DirEntry>>;
    /// Whether `path` names a file or folder.
    fn exists(&self, path: &Path, ctx: IoCtx) -> io::Result<bool>;
    /// Creates a file that must not exist, to be appended to. Mode 0600, follows no symbolic link.
    fn create(&self, path: &Path, options: CreateOptions, ctx: IoCtx) -> io::Result<Box<dyn WritableFile>>;
    /// As [`create`](Self::create), in the place of a file that nobody needs: it becomes `path`, and what is appended overwrites
    /// what was in it, so that its blocks on the disk and its pages in memory are used again. Until [`WritableFile::cut`] it may be longer
    /// than what was appended. A file that has other names, is [open](Self::open), or is not in memory any more is removed instead. After an error
    /// either name may be there.
    fn create_over(&self, old: &Path, path: &Path, ctx: IoCtx) -> io::Result<Box<dyn WritableFile>>;
    /// Creates a log segment of exactly `bytes` bytes that begins with `header` and goes on with zeros, allocated on disk (a full
    /// disk shows here, never at a store to memory). Header and size are durable when this returns; without a header nothing is synced.
    fn create_log(&self, path: &Path, bytes: u64, header: &[u8], ctx: IoCtx) -> io::Result<LogSegment>;
    /// As [`create_log`](Self::create_log), in the place of a segment of as many bytes that nobody needs any more, so that its blocks and
    /// pages are used again: it becomes `path` and begins with `header`, durably. What follows is what it held. Fails if it has
    /// another size or other names, is [open](Self::open) for reading, or is not in memory any more. After an error either name may be there.
    fn create_log_over(&self, old: &Path, path: &Path, bytes: u64, header: &[u8], ctx: IoCtx)
    -> io::Result<LogSegment>;
    /// Makes the bytes of an existing file durable: what recovery has read and goes on to rely on.
    fn sync_file(&self, path: &Path, ctx: IoCtx) -> io::Result<()>;
    /// Opens a file for positional reads. Nobody writes over it before it is closed, in no process.
    fn open(&self, path: &Path, options: OpenOptions, ctx: IoCtx) -> io::Result<Arc<dyn ReadableFile>>;
    /// Opens the only kind of file that is written in place: `slots` slots of `slot_bytes` (4096) each. With `create`, it
    /// must not exist and is made, full of zeros.
    fn open_slots(
        &self,
        path: &Path,
        slots: u32,
        slot_bytes: u32,
        create: bool,
        ctx: IoCtx,
    ) -> io::Result<Box<dyn SlotFile>>;
    /// Renames a file, not a folder, over another or to a new name.
    fn rename(&self, from: &Path, to: &Path, ctx: IoCtx) -> io::Result<()>;
    /// Removes a file. Handles that are open go on reading it.
    fn remove_file(&self, path: &Path, ctx: IoCtx) -> io::Result<()>;
    /// Removes an empty folder.
    fn remove_dir(&self, dir: &Path, ctx: IoCtx) -> io::Result<()>;
    /// Gives a file a second name, which must not exist.
    fn hard_link(&self, from: &Path, to: &Path, ctx: IoCtx) -> io::Result<()>;
    /// Makes the names in `dir` durable.
    fn sync_dir(&self, dir: &Path, ctx: IoCtx) -> io::Result<()>;
    /// Takes the exclusive lock on `path`, creating the file if need be; fails with `WouldBlock` if another process or
    /// another handle of this process holds it. Held until dropped.
    fn lock(&self, path: &Path, ctx: IoCtx) -> io::Result<Box<dyn FileLock>>;
    /// Bytes that can still be written in the file system of `dir`.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;
    /// The memory that this process may have, pages of files included; none if that has no bound.
    fn memory_bytes(&self) -> Option<u64> {
        None
    }
}

/// A file that grows at its end.
pub trait WritableFile: Send {
    /// Appends all of `data`. After an error nothing may be assumed of the file's tail: give the file up.
    ///
    /// # Errors
    /// What the operating system says, a short write included.
    fn append(&mut self, data: &[u8], ctx: IoCtx) -> io::Result<()>;
    /// Ends the file where it was appended to last: cuts off what is left of the file that it was made over. Before the last sync.
    ///
    /// # Errors
    /// What the operating system says: give the file up.
    fn cut(&mut self, _ctx: IoCtx) -> io::Result<()> {
        Ok(())
    }
    /// Makes everything appended so far durable.
    ///
    /// # Errors
    /// What the operating system says. After one the contents are unknown: never sync this file again.
    fn sync(&mut self, ctx: IoCtx) -> io::Result<()>;
    /// Bytes appended so far.
    fn bytes(&self) -> u64;
}

/// A file that is read at positions.
pub trait ReadableFile: Send + Sync {
    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before `buf` is full; otherwise what the operating system says.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64, ctx: IoCtx) -> io::Result<()>;
    /// Says that these bytes will be read soon, so that the system may begin to, and returns at once. Does nothing where it cannot.
    fn will_read(&self, _range: Range<u64>) {}
    /// The file's size in bytes when it was opened.
    fn bytes(&self) -> u64;
}

/// A file of fixed slots that are overwritten in place: the superblock.
pub trait SlotFile: Send {
    /// Reads slot `slot` whole.
    ///
    /// # Errors
    /// What the operating system says.
    fn read(&self, slot: u32, buf: &mut [u8], ctx: IoCtx) -> io::Result<()>;
    /// Overwrites slot `slot`; `data` is one slot long. May be torn at sector borders by a crash.
    ///
    /// # Errors
    /// What the operating system says.
    fn write(&mut self, slot: u32, data: &[u8], ctx: IoCtx) -> io::Result<()>;
    /// Makes the slots durable.
    ///
    /// # Errors
    /// What the operating system says; see [`WritableFile::sync`].
    fn sync(&mut self, ctx: IoCtx) -> io::Result<()>;
}

/// An exclusive lock; dropping it gives it up.
pub trait FileLock: Send + Sync {}

/// A log segment: memory to write to, and the file behind it.
pub struct LogSegment {
    /// The segment's bytes. What is stored here survives the death of the process.
    pub memory: LogMemory,
    /// The file: for syncing, possibly from other threads.
    pub file: Arc<dyn LogFile>,
}

/// The file behind a log segment.
pub trait LogFile: Send + Sync {
    /// Makes a part of the segment's memory, which begins at a multiple of the system's page size, ready to be written without page faults, where the
    /// system can. It changes no byte, but a sync writes all that was made ready: not earlier than needed. Does nothing once the memory is gone.
    fn prepare(&self, range: Range<u64>) {
        let _ = range;
    }
    /// Says that the writer has just stored `data` at `offset` of the segment's memory. Costs nothing on a real file system; a
    /// simulated one learns here what a crash may keep.
    fn written(&self, offset: u64, data: &[u8], ctx: IoCtx);
    /// Makes everything stored before this call durable.
    ///
    /// # Errors
    /// What the operating system says; see [`WritableFile::sync`].
    fn sync(&self, ctx: IoCtx) -> io::Result<()>;
}

/// The bytes of a log segment, owned by its one writer: a shared memory map, or plain memory in a simulation.
pub struct LogMemory(MemoryKind);

enum MemoryKind {
    Mapped(super::map::Map),
    Plain(Box<[u8]>),
}

impl LogMemory {
    /// Memory of a simulated segment.
    pub fn plain(bytes: Box<[u8]>) -> LogMemory {
        LogMemory(MemoryKind::Plain(bytes))
    }

    /// Memory mapped from a file.
    pub(super) fn mapped(map: super::map::Map) -> LogMemory {
        LogMemory(MemoryKind::Mapped(map))
    }

    /// The whole segment.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            MemoryKind::Mapped(map) => map.bytes_mut(),
            MemoryKind::Plain(bytes) => bytes,
        }
    }
}
