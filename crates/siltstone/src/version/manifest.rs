//! The manifest: the durable history of the store's state.
//!
//! `MANIFEST-NNNNNN` begins with a snapshot of the state; each frame after it is a commit, an atomic list of edits. The
//! [`superblock`] names the manifest that counts and how many of its bytes are durable.
//!
//! ```text
//! commit:  append frame -> sync manifest -> other superblock slot: new length -> sync
//! roll:    new manifest with a snapshot -> sync -> sync folder -> both superblock slots -> remove the old manifest
//! ```
//!
//! - Damage below the durable length is `Corruption`, no heuristics. Whole frames beyond it were written by a commit that a crash
//!   interrupted; they are applied, because what they name may be all that is left. A torn frame there is dropped.
//! - An opened manifest is never appended to: the first commit rolls. What was applied beyond the durable length is made
//!   durable and counted before [`Manifest::open`] returns, since the store relies on it from then on.
//! - **A commit that failed may have happened all the same** (RocksDB lost files that way: the record whose sync "failed" was found
//!   after the next start, its files deleted). On a full disk the superblock is rewritten with the old length and
//!   "nothing follows": then the commit has not happened, and [`ErrorKind::NoSpace`] says so; the next commit rolls. After any
//!   other failure the manifest is [poisoned](Manifest::is_poisoned): what the commit names must not be deleted.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::codec::{BadEdits, decode, encode};
use super::state::{ManifestEdit, StoreState};
use super::superblock::{self, Root, Superblock};
use crate::codec::Taker;
use crate::error::{Error, ErrorKind, Result};
use crate::frame::{FRAME_HEADER, Frame, FrameReader, MAX_BODY, crc32c, seal};
use crate::io::{CreateOptions, Fs, IoClass, IoCtx, OpenOptions, WritableFile};
use crate::num::{file_number, to_u64, to_usize};
use crate::planted::{self, Bug};

const CTX: IoCtx = IoCtx::foreground(IoClass::Meta);
const MAGIC: [u8; 8] = *b"SiltMan\n";
const FORMAT: u32 = 1;
/// Bytes in front of the first frame.
const HEADER: usize = 52;
const PREFIX: &str = "MANIFEST-";

/// Settings of a manifest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ManifestOptions {
    /// A manifest smaller than this many bytes is never rolled. A larger one is when it exceeds four times its snapshot.
    pub roll_bytes: u64,
}

impl Default for ManifestOptions {
    fn default() -> ManifestOptions {
        ManifestOptions { roll_bytes: 64 << 10 }
    }
}

/// The manifest of a store that is written to: its state, and the way to change it durably.
pub struct Manifest {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    options: ManifestOptions,
    superblock: Superblock,
    state: StoreState,
    /// The manifest to append to; none before the first commit of a session and after a failed one: then the next one rolls.
    open: Option<OpenManifest>,
    next_number: u64,
    poison: Option<String>,
}

struct OpenManifest {
    file: Box<dyn WritableFile>,
    path: PathBuf,
    chain: u32,
    snapshot_bytes: u64,
}

/// The name of manifest `number`.
pub fn file_name(number: u64) -> String {
    format!("{PREFIX}{number:06}")
}

/// The number in the name of a manifest.
pub fn from_file_name(name: &str) -> Option<u64> {
    let number = file_number(name.strip_prefix(PREFIX)?)?;
    (file_name(number) == name).then_some(number)
}

impl Manifest {
    /// Makes a new store in `dir`, an existing folder. A crash before it returns leaves either no store or a whole one; what it
    /// leaves behind is in nobody's way.
    ///
    /// # Errors
    /// `AlreadyExists` if there is a store; `Corruption` if there are tables or logs without a superblock; `Io`, `NoSpace`.
    pub fn create(
        fs: Arc<dyn Fs>,
        dir: &Path,
        store_id: u128,
        created_ms: u64,
        options: ManifestOptions,
    ) -> Result<Manifest> {
        let names = names(&*fs, dir)?;
        if names.iter().any(|name| name == superblock::FILE_NAME) {
            return Err(Error::new(ErrorKind::AlreadyExists, "there is a store already").at(dir));
        }
        if names.iter().any(|name| name.ends_with(".sst") || name.ends_with(".log")) {
            return Err(Error::corruption(&dir.join(superblock::FILE_NAME), 0, "tables or logs, but no superblock"));
        }
        let state = StoreState { store_id, created_ms, ..StoreState::default() };
        Manifest::create_with(fs, dir, state, options)
    }

    /// Makes `dir`, whose tables are all there and durable, a store with this state: a checkpoint, or a new store that begins with
    /// keyspaces. As [`create`](Self::create) otherwise.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_with(fs: Arc<dyn Fs>, dir: &Path, state: StoreState, options: ManifestOptions) -> Result<Manifest> {
        let names = names(&*fs, dir)?;
        let store_id = state.store_id;
        let leftover = names.iter().any(|name| name == superblock::TEMPORARY_NAME);
        if leftover && !planted::active(Bug::LeftoverBlocksOpen) {
            let path = dir.join(superblock::TEMPORARY_NAME);
            fs.remove_file(&path, CTX).map_err(|source| Error::io(&path, "removing a leftover", source))?;
        }
        let number = 1 + names.iter().filter_map(|name| from_file_name(name)).max().unwrap_or(0);
        for name in names.iter().filter(|name| from_file_name(name).is_some()) {
            // Without a superblock they mean nothing: earlier attempts, perhaps many on a full disk, have left them.
            let _ = fs.remove_file(&dir.join(name), CTX);
        }
        let open = write_manifest(&*fs, dir, number, &state)?;
        sync_dir(&*fs, dir)?;
        let root = Root {
            store_id,
            generation: 2,
            manifest: number,
            manifest_bytes: open.file.bytes(),
            manifest_chain: open.chain,
            exact: false,
            must_understand: 0,
            may_ignore: 0,
        };
        let superblock = Superblock::create(&*fs, dir, root)?;
        sync_dir(&*fs, dir)?;
        let dir = dir.to_path_buf();
        let (open, next_number) = (Some(open), number + 1);
        Ok(Manifest { fs, dir, options, superblock, state, open, next_number, poison: None })
    }

    /// Opens the manifest of a store to write to it. The caller holds the store's lock.
    ///
    /// # Errors
    /// `NotFound` without a store, `Corruption` with file and offset, `Unsupported` for a newer format, `Io`.
    pub fn open(fs: Arc<dyn Fs>, dir: &Path, options: ManifestOptions) -> Result<Manifest> {
        superblock::read(&*fs, dir)?;
        let mut superblock = Superblock::open(&*fs, dir)?;
        // Whoever made the store may have been killed before its names were durable.
        sync_dir(&*fs, dir)?;
        let mut root = *superblock.root();
        let Loaded { state, end, chain, is_whole } = load(&*fs, dir, &root)?;
        if !is_whole {
            // Frames beyond the durable length were applied, or a torn one dropped: make that what counts. In a new file, for a
            // sync of the old one may have failed in the session before; its bytes may then be in memory only, and no
            // further sync writes them. On a full disk the old file has to do.
            root = match rewrite(&*fs, dir, &state, &root) {
                Ok(rewritten) => rewritten,
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    let path = dir.join(file_name(root.manifest));
                    fs.sync_file(&path, CTX).map_err(|source| Error::io(&path, "syncing the manifest", source))?;
                    Root { manifest_bytes: end, manifest_chain: chain, exact: true, ..root }
                }
                Err(error) => return Err(error),
            };
        }
        // Written anew even if nothing changes: the sync of what was read may have failed.
        superblock.write_both(root)?;
        let names = names(&*fs, dir)?;
        let numbers = || names.iter().filter_map(|name| from_file_name(name));
        let mut next_number = 1 + numbers().chain([root.manifest]).max().unwrap_or(0);
        if planted::active(Bug::FileNumberReused) {
            next_number = root.manifest;
        }
        for number in numbers().filter(|number| *number != root.manifest) {
            // A leftover of a roll; should it stay, the next open tries again.
            let _ = fs.remove_file(&dir.join(file_name(number)), CTX);
        }
        let dir = dir.to_path_buf();
        Ok(Manifest { fs, dir, options, superblock, state, open: None, next_number, poison: None })
    }

    /// Reads the state of a store without changing anything: no file is created, written, synced or removed.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_read_only(fs: &dyn Fs, dir: &Path) -> Result<StoreState> {
        let root = superblock::read(fs, dir)?;
        load(fs, dir, &root).map(|loaded| loaded.state)
    }

    /// Whether `dir` holds a store.
    ///
    /// # Errors
    /// `Io`.
    pub fn exists(fs: &dyn Fs, dir: &Path) -> Result<bool> {
        let path = dir.join(superblock::FILE_NAME);
        match fs.exists(&path, CTX) {
            Ok(exists) => Ok(exists),
            // `dir` is a file: no store either.
            Err(source) if source.kind() == std::io::ErrorKind::NotADirectory => Ok(false),
            Err(source) => Err(Error::io(&path, "looking for a store", source)),
        }
    }

    /// The state after the last commit.
    pub fn state(&self) -> &StoreState {
        &self.state
    }

    /// Whether a failed commit has left open what is durable. No commit succeeds until the store is opened again, and no file
    /// that the failed commit names, or no longer names, may be deleted.
    pub fn is_poisoned(&self) -> bool {
        self.poison.is_some()
    }

    /// Applies the edits, all or none, and makes that durable. Files that they name must be durable already, with their names;
    /// files that they un-name may be removed when this has returned.
    ///
    /// # Errors
    /// - `InvalidArgument` if the edits do not fit the state: nothing happened.
    /// - `NoSpace`, or `Io` while a new manifest was made: the commit has **not** happened, now or after a restart; it can be
    ///   tried again.
    /// - `Poisoned`, if it is unknown whether the commit will be found after a restart; see [`is_poisoned`](Self::is_poisoned).
    pub fn commit(&mut self, edits: &[ManifestEdit]) -> Result<()> {
        if let Some(why) = &self.poison {
            return Err(Error::new(ErrorKind::Poisoned, why.clone()));
        }
        let mut next = self.state.clone();
        edits.iter().try_for_each(|edit| next.apply(edit))?;
        match self.open.take() {
            Some(open) if !self.is_full(&open) => self.append(open, edits)?,
            Some(open) => match self.roll(&next) {
                // There is no space for a whole new manifest, or no file descriptor, but the old one is fine, is open, and has room for one more frame
                // perhaps.
                Err(error) if error.is_shortage() && !self.is_poisoned() => self.append(open, edits)?,
                result => result?,
            },
            None => self.roll(&next)?,
        }
        self.state = next;
        Ok(())
    }

    fn is_full(&self, open: &OpenManifest) -> bool {
        open.file.bytes() > self.options.roll_bytes.max(4 * open.snapshot_bytes)
    }

    fn append(&mut self, mut open: OpenManifest, edits: &[ManifestEdit]) -> Result<()> {
        let (frame, chain) = frame(edits, open.chain)?;
        let append = |open: &mut OpenManifest| {
            let file = &mut open.file;
            file.append(&frame, CTX).map_err(|source| Error::io(&open.path, "writing the manifest", source))?;
            let is_lazy = match edits {
                [ManifestEdit::CreateKeyspace { .. }] => planted::active(Bug::KeyspaceNotDurable),
                [ManifestEdit::SetOptions(..)] => planted::active(Bug::SwitchNotDurable),
                _ => false,
            };
            if is_lazy {
                return Ok(());
            }
            file.sync(CTX).map_err(|source| Error::io(&open.path, "syncing the manifest", source))
        };
        // A failed file is given up here: nothing may follow a frame of which only a part may be there.
        if let Err(error) = append(&mut open) {
            if planted::active(Bug::AppendBehindGarbage) {
                self.open = Some(open);
                return Err(error);
            }
            return Err(self.fail(error));
        }
        open.chain = chain;
        let root =
            Root { manifest_bytes: open.file.bytes(), manifest_chain: chain, exact: false, ..*self.superblock.root() };
        self.superblock.write(root).map_err(|error| self.fail(error))?;
        self.open = Some(open);
        Ok(())
    }

    /// Begins a new manifest with a snapshot of `state`, which is a commit if it differs from what was.
    fn roll(&mut self, state: &StoreState) -> Result<()> {
        let number = self.next_number;
        // A number is never tried twice, so no leftover is in the way.
        self.next_number += 1;
        // Until the superblock names it, the new manifest means nothing, whatever fails.
        let open = write_manifest(&*self.fs, &self.dir, number, state)?;
        if let Err(error) = sync_dir(&*self.fs, &self.dir) {
            let _ = self.fs.remove_file(&open.path, CTX);
            return Err(if error.is_shortage() { error } else { self.poison(&error) });
        }
        let old = *self.superblock.root();
        let root = Root {
            manifest: number,
            manifest_bytes: open.file.bytes(),
            manifest_chain: open.chain,
            exact: false,
            ..old
        };
        if let Err(error) = self.superblock.write(root) {
            let error = self.fail(error);
            if !self.is_poisoned() {
                let _ = self.fs.remove_file(&open.path, CTX);
            }
            return Err(error);
        }
        self.open = Some(open);
        // From here on the commit has happened. The second slot follows so that no slot names a file that is gone.
        match self.superblock.write(root) {
            Ok(()) => {
                // Should it stay, the next open removes it.
                let _ = self.fs.remove_file(&self.dir.join(file_name(old.manifest)), CTX);
            }
            Err(error) if self.superblock.is_unsynced() => drop(self.poison(&error)),
            // The first slot counts, and the next commit writes to the second one anyway.
            Err(_) => {}
        }
        Ok(())
    }

    /// A commit failed. On a full disk, decides that it has not happened, by saying in the superblock that nothing follows what was
    /// durable before; if that fails too, or after any other error, the manifest is poisoned.
    fn fail(&mut self, error: Error) -> Error {
        if error.kind() != ErrorKind::NoSpace {
            return self.poison(&error);
        }
        let before = Root { exact: true, ..*self.superblock.root() };
        match self.superblock.write_both(before) {
            Ok(()) => error,
            Err(fence) => self.poison(&fence),
        }
    }

    fn poison(&mut self, error: &Error) -> Error {
        let why = self
            .poison
            .get_or_insert_with(|| format!("the manifest could not be written, reopen the store to write: {error}"));
        Error::new(ErrorKind::Poisoned, why.clone())
    }
}

/// A new manifest with this state, durable with its name; returns the root that would name it.
fn rewrite(fs: &dyn Fs, dir: &Path, state: &StoreState, root: &Root) -> Result<Root> {
    let names = names(fs, dir)?;
    let highest = names.iter().filter_map(|name| from_file_name(name)).chain([root.manifest]).max();
    let number = 1 + highest.unwrap_or(0);
    let open = write_manifest(fs, dir, number, state)?;
    sync_dir(fs, dir)?;
    Ok(Root { manifest: number, manifest_bytes: open.file.bytes(), manifest_chain: open.chain, exact: false, ..*root })
}

/// Writes and syncs a manifest with a snapshot of `state`; on failure removes what there is of it.
fn write_manifest(fs: &dyn Fs, dir: &Path, number: u64, state: &StoreState) -> Result<OpenManifest> {
    let path = dir.join(file_name(number));
    let write = || -> Result<OpenManifest> {
        let io = |doing: &'static str| move |source| Error::io(&dir.join(file_name(number)), doing, source);
        let (mut bytes, seed) = header(state, number);
        let (frame, chain) = frame(&state.snapshot(), seed)?;
        bytes.extend_from_slice(&frame);
        let mut file = fs.create(&path, CreateOptions::default(), CTX).map_err(io("creating a manifest"))?;
        file.append(&bytes, CTX).map_err(io("writing a manifest"))?;
        file.sync(CTX).map_err(io("syncing a manifest"))?;
        Ok(OpenManifest { file, path: path.clone(), chain, snapshot_bytes: to_u64(bytes.len()) })
    };
    write().inspect_err(|_| {
        // The superblock does not name it, so it does not matter whether this succeeds.
        let _ = fs.remove_file(&path, CTX);
    })
}

/// The edits as a frame, and the new end of the chain.
fn frame(edits: &[ManifestEdit], chain: u32) -> Result<(Vec<u8>, u32)> {
    let mut frame = vec![0; FRAME_HEADER];
    encode(edits, &mut frame);
    let body = frame.len() - FRAME_HEADER;
    if body == 0 || body > MAX_BODY {
        return Err(Error::invalid(format!("a commit of {body} bytes")));
    }
    let chain = seal(&mut frame, chain);
    Ok((frame, chain))
}

/// The header of a manifest, and the seed of its checksums.
fn header(state: &StoreState, number: u64) -> (Vec<u8>, u32) {
    let mut bytes = Vec::with_capacity(HEADER);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&state.store_id.to_le_bytes());
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&state.created_ms.to_le_bytes());
    let seed = crc32c(0, &bytes);
    bytes.extend_from_slice(&seed.to_le_bytes());
    (bytes, seed)
}

/// What a manifest says.
struct Loaded {
    state: StoreState,
    /// Where its last whole frame ends, and the chain there.
    end: u64,
    chain: u32,
    /// Whether that is also what the superblock says, and the end of the file.
    is_whole: bool,
}

fn load(fs: &dyn Fs, dir: &Path, root: &Root) -> Result<Loaded> {
    let path = dir.join(file_name(root.manifest));
    let damage = |at: u64, what: &str| Error::corruption(&path, at, what);
    let file = fs.open(&path, OpenOptions::default(), CTX).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => damage(0, "the manifest that the superblock names is missing"),
        _ => Error::io(&path, "opening the manifest", source),
    })?;
    let (bytes, durable) = (file.bytes(), root.manifest_bytes);
    if bytes < durable || durable < to_u64(HEADER) {
        return Err(damage(bytes, &format!("the manifest has {bytes} bytes, {durable} are durable")));
    }
    let mut header = [0; HEADER];
    file.read_exact_at(&mut header, 0, CTX).map_err(|source| Error::io(&path, "reading the manifest", source))?;
    let (mut state, seed) = read_header(&header, root, &path)?;
    let limit = if root.exact { durable } else { bytes };
    let mut frames = FrameReader::new(file, &path, to_u64(HEADER), limit, seed, CTX);
    let mut is_torn = false;
    loop {
        let at = frames.offset();
        if at == durable && frames.chain() != root.manifest_chain {
            return Err(damage(at, "the manifest is not the one that the superblock names"));
        }
        match frames.next()? {
            Frame::Body(body) => {
                let edits = decode(body).map_err(|bad| match bad {
                    BadEdits::Unknown(what) => Error::new(ErrorKind::Unsupported, what).at(&path).at_offset(at),
                    BadEdits::Malformed(what) => damage(at, what),
                })?;
                for edit in &edits {
                    state.replay(edit).map_err(|error| damage(at, error.what()))?;
                }
            }
            Frame::End if at == limit => break,
            Frame::Torn(what) if at < durable => return Err(damage(at, what)),
            Frame::End if at < durable => return Err(damage(at, "records are missing")),
            Frame::End | Frame::Torn(_) => {
                is_torn = true;
                break;
            }
        }
        if at < durable && frames.offset() > durable {
            return Err(damage(at, "a record reaches beyond what the superblock counts"));
        }
    }
    let (end, chain) = (frames.offset(), frames.chain());
    state.check().map_err(|law| damage(end, &format!("the tree is broken: {law}")))?;
    Ok(Loaded { state, end, chain, is_whole: end == durable && !is_torn })
}

/// An empty state with what the header says, and the seed of the checksums.
fn read_header(header: &[u8; HEADER], root: &Root, path: &Path) -> Result<(StoreState, u32)> {
    let damage = || Error::corruption(path, 0, "the manifest's header is damaged");
    let (bytes, crc) = header.split_last_chunk::<4>().ok_or_else(damage)?;
    let seed = u32::from_le_bytes(*crc);
    let mut taker = Taker::new(bytes);
    let fields = |taker: &mut Taker<'_>| {
        let (magic, format, _) = (taker.array::<8>()?, taker.u32()?, taker.u32()?);
        Some((magic, format, u128::from_le_bytes(taker.array()?), taker.u64()?, taker.u64()?))
    };
    let (magic, format, store_id, number, created_ms) = fields(&mut taker).ok_or_else(damage)?;
    if crc32c(0, bytes) != seed || magic != MAGIC {
        return Err(damage());
    }
    if format != FORMAT {
        let what = format!("manifest format {format}, this version knows {FORMAT}");
        return Err(Error::new(ErrorKind::Unsupported, what).at(path));
    }
    if (store_id, number) != (root.store_id, root.manifest) {
        return Err(Error::corruption(path, 0, "the manifest is of another store or has another one's name"));
    }
    Ok((StoreState { store_id, created_ms, ..StoreState::default() }, seed))
}

fn names(fs: &dyn Fs, dir: &Path) -> Result<Vec<String>> {
    let entries = fs.list(dir, CTX).map_err(|source| Error::io(dir, "listing the store's folder", source))?;
    let mut names: Vec<String> = entries.into_iter().map(|entry| entry.name).collect();
    names.sort_unstable();
    Ok(names)
}

fn sync_dir(fs: &dyn Fs, dir: &Path) -> Result<()> {
    fs.sync_dir(dir, CTX).map_err(|source| Error::io(dir, "syncing the store's folder", source))
}

const _: () = assert!(HEADER == to_usize(8 + 4 + 4 + 16 + 8 + 8 + 4));

#[cfg(test)]
mod tests;
