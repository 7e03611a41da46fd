//! The superblock: which manifest counts, and how much of it.
//!
//! `SUPERBLOCK` has two slots of 4096 bytes. Each write goes to the slot that does not hold the newest valid contents, with a higher
//! generation, so a torn write leaves the other slot. Beside log segments it is the only file of the store that is
//! written in place.

use std::path::{Path, PathBuf};

use crate::codec::Taker;
use crate::error::{Error, ErrorKind, Result};
use crate::frame::crc32c;
use crate::io::{Fs, IoClass, IoCtx, SlotFile};

/// The name of the file.
pub const FILE_NAME: &str = "SUPERBLOCK";
/// Its name until its contents are durable.
pub(crate) const TEMPORARY_NAME: &str = "SUPERBLOCK.tmp";
/// The format of a store that this version writes, and the newest that it reads.
pub const FORMAT: u32 = 1;
/// The features that this version understands and that a reader must understand.
pub const MUST_UNDERSTAND: u64 = 0;

const SLOTS: u32 = 2;
const SLOT_BYTES: u32 = 4096;
const SLOT: usize = 4096;
const MAGIC: [u8; 8] = *b"SiltRoot";
const EXACT: u32 = 1;
const CTX: IoCtx = IoCtx::foreground(IoClass::Meta);

/// What a slot says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root {
    /// The store's random id.
    pub store_id: u128,
    /// Counts the writes; the valid slot with the higher one counts.
    pub generation: u64,
    /// The manifest that counts.
    pub manifest: u64,
    /// Its first so many bytes are durable and whole.
    pub manifest_bytes: u64,
    /// The last checksum of the chain at that length.
    pub manifest_chain: u32,
    /// The manifest ends there: what follows in the file was never committed. Otherwise whole records may follow, which
    /// a crash kept from being counted here.
    pub exact: bool,
    /// Features that a reader must understand.
    pub must_understand: u64,
    /// Features that a reader may ignore.
    pub may_ignore: u64,
}

/// The open superblock of a store that is written to.
pub(super) struct Superblock {
    file: Box<dyn SlotFile>,
    path: PathBuf,
    /// The slot that holds `root`.
    slot: u32,
    root: Root,
    /// The highest generation that was ever given to a write, even a failed one.
    generation: u64,
    /// Whether a sync of the file failed: it is never synced again.
    unsynced: bool,
}

impl Superblock {
    /// Makes the superblock of a new store: it gets its name when its contents are durable. The caller syncs the folder.
    pub(super) fn create(fs: &dyn Fs, dir: &Path, root: Root) -> Result<Superblock> {
        let (temporary, path) = (dir.join(TEMPORARY_NAME), dir.join(FILE_NAME));
        let make = || {
            let mut file = fs.open_slots(&temporary, SLOTS, SLOT_BYTES, true, CTX)?;
            let older = Root { generation: root.generation - 1, ..root };
            file.write(0, &encode(&root), CTX)?;
            file.write(1, &encode(&older), CTX)?;
            file.sync(CTX)?;
            fs.rename(&temporary, &path, CTX)?;
            Ok(file)
        };
        let file = make().map_err(|source| Error::io(&path, "creating the superblock", source))?;
        Ok(Superblock { file, path, slot: 0, root, generation: root.generation, unsynced: false })
    }

    /// Opens the superblock for reading and writing, and makes what it says durable.
    pub(super) fn open(fs: &dyn Fs, dir: &Path) -> Result<Superblock> {
        let path = dir.join(FILE_NAME);
        let file = fs.open_slots(&path, SLOTS, SLOT_BYTES, false, CTX);
        let mut file = file.map_err(|source| Error::io(&path, "opening the superblock", source))?;
        // Whoever wrote the newest slot may have been killed before it was durable. The next write goes to the other one: were
        // both pending then, a power cut could tear both.
        file.sync(CTX).map_err(|source| Error::io(&path, "syncing the superblock", source))?;
        let slots = read_slots(|slot, buf| file.read(slot, buf, CTX), &path)?;
        let (slot, root) = newest(&slots, &path)?;
        Ok(Superblock { file, path, slot, root, generation: root.generation, unsynced: false })
    }

    /// What counts.
    pub(super) fn root(&self) -> &Root {
        &self.root
    }

    /// Whether a sync of the superblock failed: every later write fails.
    pub(super) fn is_unsynced(&self) -> bool {
        self.unsynced
    }

    /// Makes `root` count, durably. Its generation is set here.
    ///
    /// After an error it is unknown which of the two counts; another `write` decides it.
    pub(super) fn write(&mut self, root: Root) -> Result<()> {
        if self.unsynced {
            return Err(Error::new(ErrorKind::Poisoned, "a sync of the superblock failed").at(&self.path));
        }
        self.generation += 1;
        let root = Root { generation: self.generation, ..root };
        let slot = 1 - self.slot;
        let written = self.file.write(slot, &encode(&root), CTX);
        written.map_err(|source| Error::io(&self.path, "writing the superblock", source))?;
        if let Err(source) = self.file.sync(CTX) {
            self.unsynced = true;
            return Err(Error::io(&self.path, "syncing the superblock", source));
        }
        (self.slot, self.root) = (slot, root);
        Ok(())
    }

    /// Makes `root` count in both slots, so that it stands even if one of them is damaged later.
    pub(super) fn write_both(&mut self, root: Root) -> Result<()> {
        self.write(root)?;
        self.write(root)
    }
}

/// What counts, read without writing anything.
///
/// # Errors
/// `NotFound` if there is no superblock, `Corruption` if neither slot is valid, `Unsupported` if a newer version wrote it, `Io`.
pub fn read(fs: &dyn Fs, dir: &Path) -> Result<Root> {
    newest(&look(fs, dir)?, &dir.join(FILE_NAME)).map(|(_, root)| root)
}

/// What is wrong with the superblock's slot `slot`, 0 or 1, while the store is open.
pub(crate) fn damage(fs: &dyn Fs, dir: &Path, slot: u32) -> Option<Error> {
    let (first, second) = match look(fs, dir) {
        Ok([first, second]) => (first.is_some(), second.is_some()),
        Err(error) => return Some(error),
    };
    let (is_valid, other_is) = if slot == 0 { (first, second) } else { (second, first) };
    let what = match (is_valid, other_is) {
        (true, _) => return None,
        (false, true) => {
            "this slot of the superblock is damaged; the other one stands in for it, so the store opens, and opening it for writing \
             writes both anew"
        }
        (false, false) => "both slots of the superblock are damaged; the store cannot be opened any more",
    };
    Some(Error::corruption(&dir.join(FILE_NAME), u64::from(slot * SLOT_BYTES), what))
}

fn look(fs: &dyn Fs, dir: &Path) -> Result<[Option<Root>; 2]> {
    let path = dir.join(FILE_NAME);
    let file = fs.open(&path, crate::io::OpenOptions::default(), CTX).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => Error::new(ErrorKind::NotFound, "there is no store here").at(dir),
        _ => Error::io(&path, "opening the superblock", source),
    })?;
    read_slots(|slot, buf| file.read_exact_at(buf, u64::from(slot * SLOT_BYTES), CTX), &path)
}

fn read_slots(read: impl Fn(u32, &mut [u8]) -> std::io::Result<()>, path: &Path) -> Result<[Option<Root>; 2]> {
    let mut roots = [None; 2];
    for (slot, root) in (0..SLOTS).zip(&mut roots) {
        let mut buf = [0; SLOT];
        match read(slot, &mut buf) {
            Ok(()) => *root = decode(&buf),
            // Cut off: as good as damaged.
            Err(source) if source.kind() == std::io::ErrorKind::UnexpectedEof => {}
            Err(source) => return Err(Error::io(path, "reading the superblock", source)),
        }
    }
    Ok(roots)
}

fn newest(roots: &[Option<Root>; 2], path: &Path) -> Result<(u32, Root)> {
    let valid = (0u32..).zip(roots).filter_map(|(slot, root)| root.map(|root| (slot, root)));
    let (slot, root) = valid
        .max_by_key(|(_, root)| root.generation)
        .ok_or_else(|| Error::corruption(path, 0, "both slots of the superblock are damaged"))?;
    if root.must_understand & !MUST_UNDERSTAND != 0 {
        let what = format!(
            "the store needs a newer version: features {:#x}, this version knows format {FORMAT} and features {MUST_UNDERSTAND:#x}",
            root.must_understand
        );
        return Err(Error::new(ErrorKind::Unsupported, what).at(path));
    }
    Ok((slot, root))
}

fn encode(root: &Root) -> [u8; SLOT] {
    let mut bytes = Vec::with_capacity(SLOT);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&(if root.exact { EXACT } else { 0 }).to_le_bytes());
    bytes.extend_from_slice(&root.must_understand.to_le_bytes());
    bytes.extend_from_slice(&root.may_ignore.to_le_bytes());
    bytes.extend_from_slice(&root.store_id.to_le_bytes());
    for n in [root.generation, root.manifest, root.manifest_bytes] {
        bytes.extend_from_slice(&n.to_le_bytes());
    }
    bytes.extend_from_slice(&root.manifest_chain.to_le_bytes());
    let mut slot = [0; SLOT];
    slot[..bytes.len()].copy_from_slice(&bytes);
    let crc = crc32c(0, &slot[..SLOT - 4]);
    slot[SLOT - 4..].copy_from_slice(&crc.to_le_bytes());
    slot
}

fn decode(slot: &[u8; SLOT]) -> Option<Root> {
    let (bytes, crc) = slot.split_last_chunk::<4>()?;
    if crc32c(0, bytes) != u32::from_le_bytes(*crc) {
        return None;
    }
    let mut bytes = Taker::new(bytes);
    if bytes.array()? != MAGIC {
        return None;
    }
    let format = bytes.u32()?;
    let flags = bytes.u32()?;
    // A newer format is a feature that this version does not have.
    let newer = if format == FORMAT { 0 } else { 1 << 63 };
    Some(Root {
        exact: flags & EXACT != 0,
        must_understand: bytes.u64()? | newer,
        may_ignore: bytes.u64()?,
        store_id: u128::from_le_bytes(bytes.array()?),
        generation: bytes.u64()?,
        manifest: bytes.u64()?,
        manifest_bytes: bytes.u64()?,
        manifest_chain: bytes.u32()?,
    })
}
