//! The log of mutations: for crashes after each of them, and for rules about their order.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::super::IoCtx;
use super::disk::Disk;
use super::faults::Effect;

/// One mutation.
#[derive(Clone, Debug)]
pub struct Op {
    /// Its number, from 0 at the start of the log.
    pub index: u64,
    /// What was done.
    pub kind: OpKind,
    /// To which file or folder: the name under which it was opened.
    pub path: Arc<Path>,
    /// The new name, of a rename or link.
    pub to: Option<Arc<Path>>,
    /// Where in the file.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// The bytes of an append or write.
    pub data: Bytes,
    /// Why.
    pub ctx: IoCtx,
    /// Whether, just before, `path` would have survived any crash as a name.
    pub name_durable: bool,
    /// Whether, just before, every byte of the file at `path` would have survived any crash. True for folders.
    pub data_durable: bool,
    pub(super) inode: u64,
    pub(super) effect: Effect,
}

/// What a mutation did.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum OpKind {
    /// A folder was made.
    CreateDir,
    /// An empty file was made.
    Create,
    /// A log segment was made, `len` bytes long.
    CreateLog,
    /// A file of slots was made, `len` bytes long.
    CreateSlots,
    /// Bytes were added at the end of a file.
    Append,
    /// Bytes were written in place: a slot, or a log record.
    Write,
    /// A file that was made over another was cut to `offset` bytes.
    Cut,
    /// A file was synced.
    Sync,
    /// A sync failed.
    SyncFailed,
    /// A folder's names were synced.
    SyncDir,
    /// A file was renamed from `path` to `to`.
    Rename,
    /// A file got a second name, `to`.
    Link,
    /// A file's name was removed.
    Remove,
    /// A folder was removed.
    RemoveDir,
}

/// The mutations since the log was switched on, and the disk as it was then.
pub(super) struct OpLog {
    pub(super) base: Disk,
    pub(super) first: u64,
    pub(super) ops: Vec<Op>,
}
