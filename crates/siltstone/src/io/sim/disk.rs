//! What lies on a simulated disk, twice: as a running process sees it, and as it is durable.
//!
//! A file ([`Inode`]) has its content and its durable content, which share their chunks, and the list of writes between the two.
//! Names likewise: a tree, a durable tree, and the changes between them. Mutations are numbered; a crash may keep those below a
//! number, or any subset of those that no sync covers (`crash.rs`).
//!
//! Writes to new bytes (appends, log records) need no copy of anything: what was there before is zeros or nothing. Only a write
//! over bytes that were not synced yet keeps them, so that it can be taken back alone.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::content::Content;
use super::faults::Effect;
use crate::num::to_u64;

/// Folders, by their [`clean`] paths, and the names in each. The keys are plain strings, for a path is compared component by
/// component, which a simulation feels.
pub(super) type Tree = BTreeMap<OsString, BTreeMap<String, Node>>;

/// What a name stands for.
#[derive(Clone)]
pub(super) enum Node {
    Dir,
    File(Arc<Inode>),
}

/// A file, whatever its names.
pub(super) struct Inode {
    pub(super) id: u64,
    pub(super) file: Mutex<FileState>,
}

#[derive(Clone, Default)]
pub(super) struct FileState {
    pub(super) data: Content,
    pub(super) durable: Content,
    /// Writes that no sync has covered, in order.
    pub(super) pending: Vec<Write>,
    /// Writes that a failed sync has marked as clean: no sync will cover them.
    pub(super) limbo: Vec<Write>,
    /// No pending or limbo write ends beyond this.
    pending_end: u64,
    pub(super) links: u32,
    pub(super) open: u32,
    /// Of these, for reading.
    pub(super) readers: u32,
}

/// A write that is not durable.
#[derive(Clone)]
pub(super) struct Write {
    /// The number of the mutation.
    pub(super) op: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// The file's length before.
    len_before: u64,
    /// The bytes before, if they were not durable either.
    before: Option<Box<[u8]>>,
}

impl Write {
    pub(super) fn end(&self) -> u64 {
        self.offset + self.len
    }

    /// Whether it made the file shorter.
    fn is_cut(&self) -> bool {
        self.len == 0 && self.offset < self.len_before
    }
}

impl FileState {
    /// A file all of which is durable.
    pub(super) fn durable(data: Content) -> FileState {
        FileState { durable: data.clone(), data, ..FileState::default() }
    }

    /// Whether it may be written over: nobody reads it, or knows it by another name.
    pub(super) fn is_own(&self) -> bool {
        self.links == 1 && self.readers == 0
    }

    /// Writes, and says by how much the file grew.
    fn write(&mut self, op: u64, offset: u64, data: &[u8]) -> u64 {
        let len_before = self.data.len();
        let before = (offset < self.pending_end && !data.is_empty())
            .then(|| self.data.bytes(offset, to_u64(data.len())).into_boxed_slice());
        self.data.write(offset, data);
        let write = Write { op, offset, len: to_u64(data.len()), len_before, before };
        if write.len > 0 {
            self.pending_end = self.pending_end.max(write.end());
        }
        self.pending.push(write);
        self.data.len() - len_before
    }

    /// Cuts the content: until a sync the old length may come back, and what was durable behind the new one.
    fn cut(&mut self, op: u64, len: u64) {
        self.pending.push(Write { op, offset: len, len: 0, len_before: self.data.len(), before: None });
        self.data.set_len(len);
    }

    fn sync(&mut self) {
        let start = self.pending.iter().map(|write| write.offset).min().unwrap_or(u64::MAX);
        let end = self.pending.iter().map(Write::end).max().unwrap_or(0);
        if self.limbo.is_empty() {
            self.durable.share(&self.data, start, end);
            self.pending_end = 0;
        } else {
            let is_cut = self.pending.iter().any(Write::is_cut);
            self.durable.set_len(if is_cut { self.data.len() } else { self.durable.len().max(end) });
            for write in &self.pending {
                self.durable.copy_within_len(&self.data, write.offset, write.end());
            }
        }
        self.pending.clear();
    }

    fn sync_failed(&mut self, effect: Effect) {
        match effect {
            Effect::Full => self.sync(),
            Effect::Nothing | Effect::Partial => self.limbo.append(&mut self.pending),
            Effect::Revert => {
                self.data = self.durable.clone();
                self.pending.clear();
                self.limbo.clear();
                self.pending_end = 0;
            }
        }
    }

    /// The content as it was before mutation `cut`, with everything that was synced since.
    pub(super) fn before(&self, cut: u64) -> Content {
        let kept = self.pending.partition_point(|write| write.op < cut);
        let (mut content, undone) = (self.data.clone(), &self.pending[kept..]);
        for write in undone.iter().rev() {
            match &write.before {
                Some(before) => content.write(write.offset, before),
                None => content.copy_within_len(&self.durable, write.offset, write.end()),
            }
        }
        if let Some(first) = undone.first() {
            // A cut that is not undone leaves nothing behind it.
            let is_cut = self.pending[..kept].iter().any(Write::is_cut);
            content.set_len(if is_cut { first.len_before } else { first.len_before.max(self.durable.len()) });
        }
        for cut in undone.iter().filter(|write| write.is_cut()) {
            content.copy_within_len(&self.durable, cut.offset, self.durable.len());
        }
        for write in &self.limbo {
            content.copy_within_len(&self.durable, write.offset, write.end());
        }
        content
    }

    /// Writes to the disk at once: damage, or a test's own files.
    pub(super) fn damage(&mut self, change: impl Fn(&mut Content)) {
        change(&mut self.data);
        change(&mut self.durable);
        self.pending.clear();
        self.limbo.clear();
        self.pending_end = 0;
    }
}

impl Inode {
    pub(super) fn new(id: u64, file: FileState) -> Arc<Inode> {
        Arc::new(Inode { id, file: Mutex::new(file) })
    }
}

/// A change of names that is not durable.
#[derive(Clone)]
pub(super) struct NameChange {
    pub(super) op: u64,
    pub(super) change: Change,
}

#[derive(Clone)]
pub(super) enum Change {
    Link { at: Name, node: Node },
    Unlink { at: Name },
    Rename { from: Name, to: Name, file: Arc<Inode> },
}

/// A name in a folder.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) dir: PathBuf,
    pub(super) name: String,
}

impl Name {
    pub(super) fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }
}

impl Change {
    fn touches(&self, dir: &Path) -> bool {
        match self {
            Change::Link { at, .. } | Change::Unlink { at } => at.dir == dir,
            Change::Rename { from, to, .. } => from.dir == dir || to.dir == dir,
        }
    }

    pub(super) fn apply(&self, tree: &mut Tree) {
        let mut link = |at: &Name, node: &Node| {
            if matches!(node, Node::Dir) {
                tree.entry(at.path().into()).or_default();
            }
            tree.entry(at.dir.clone().into()).or_default().insert(at.name.clone(), node.clone());
        };
        match self {
            Change::Link { at, node } => link(at, node),
            Change::Rename { from, to, file } => {
                link(to, &Node::File(file.clone()));
                let names = tree.entry(from.dir.clone().into()).or_default();
                if matches!(names.get(&from.name), Some(Node::File(old)) if old.id == file.id) {
                    names.remove(&from.name);
                }
            }
            Change::Unlink { at } => {
                if let Some(names) = tree.get_mut(at.dir.as_os_str())
                    && matches!(names.remove(&at.name), Some(Node::Dir))
                {
                    tree.remove(at.path().as_os_str());
                }
            }
        }
    }
}

/// A disk.
pub(super) struct Disk {
    pub(super) tree: Tree,
    pub(super) durable: Tree,
    /// What leads from `durable` to `tree`, in order.
    pub(super) changes: Vec<NameChange>,
    pub(super) next_inode: u64,
    /// Mutations so far.
    pub(super) ops: u64,
    pub(super) capacity: Option<u64>,
    pub(super) used: u64,
}

impl Disk {
    /// An empty disk: a root folder, which is durable.
    pub(super) fn new() -> Disk {
        let root = Tree::from([(OsString::from("/"), BTreeMap::new())]);
        Disk { tree: root.clone(), durable: root, changes: Vec::new(), next_inode: 1, ops: 0, capacity: None, used: 0 }
    }

    pub(super) fn node(&self, path: &Path) -> io::Result<Node> {
        let path = clean(path);
        if self.tree.contains_key(path.as_os_str()) {
            return Ok(Node::Dir);
        }
        let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str)) else {
            return Err(not_found());
        };
        self.tree.get(dir.as_os_str()).and_then(|names| names.get(name)).cloned().ok_or_else(not_found)
    }

    pub(super) fn file(&self, path: &Path) -> io::Result<Arc<Inode>> {
        match self.node(path)? {
            Node::File(inode) => Ok(inode),
            Node::Dir => Err(ErrorKind::IsADirectory.into()),
        }
    }

    /// The folders that must be made for `dir` to be, outermost first.
    pub(super) fn missing_dirs(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let dir = clean(dir);
        let mut missing = Vec::new();
        for ancestor in dir.ancestors() {
            match self.node(ancestor) {
                Ok(Node::Dir) => break,
                Ok(Node::File(_)) => return Err(ErrorKind::NotADirectory.into()),
                Err(_) => missing.push(ancestor.to_path_buf()),
            }
        }
        missing.reverse();
        Ok(missing)
    }

    pub(super) fn create_dir(&mut self, path: &Path) -> io::Result<()> {
        let at = self.free_name(path)?;
        self.change(Change::Link { at, node: Node::Dir });
        Ok(())
    }

    /// A new file of `len` zeros.
    pub(super) fn create(&mut self, path: &Path, len: u64) -> io::Result<Arc<Inode>> {
        let at = self.free_name(path)?;
        if len > self.free() {
            return Err(ErrorKind::StorageFull.into());
        }
        let mut file = FileState { links: 1, ..FileState::default() };
        if len > 0 {
            // An empty write at the end: growing is a write like others, lost unless synced.
            self.used += file.write(self.ops, len, &[]);
        }
        let inode = Inode::new(self.next_inode, file);
        self.next_inode += 1;
        self.change(Change::Link { at, node: Node::File(inode.clone()) });
        Ok(inode)
    }

    /// Writes as much of `data` as the disk has room for, and says how much that was.
    #[inline]
    pub(super) fn write<'a>(&mut self, inode: &Inode, offset: u64, data: &'a [u8]) -> &'a [u8] {
        let mut file = inode.file.lock();
        let growth = (offset + to_u64(data.len())).saturating_sub(file.data.len());
        let missing = growth.saturating_sub(self.free());
        let fits = data.len() - usize::try_from(missing).unwrap_or(data.len()).min(data.len());
        self.used += file.write(self.ops, offset, &data[..fits]);
        self.ops += 1;
        &data[..fits]
    }

    /// Cuts a file, all of whose unsynced writes are below `len`.
    pub(super) fn cut(&mut self, inode: &Inode, len: u64) {
        let mut file = inode.file.lock();
        self.used -= file.data.len() - len;
        file.cut(self.ops, len);
        self.ops += 1;
    }

    pub(super) fn sync(&mut self, inode: &Inode) {
        inode.file.lock().sync();
        self.ops += 1;
    }

    pub(super) fn sync_failed(&mut self, inode: &Inode, effect: Effect) {
        let mut file = inode.file.lock();
        let before = file.data.len();
        file.sync_failed(effect);
        // Without a cut, too, it is as long as it was when it was synced last.
        self.used = self.used + file.data.len() - before;
        self.ops += 1;
    }

    pub(super) fn sync_dir(&mut self, dir: &Path) -> io::Result<()> {
        let dir = clean(dir);
        if !self.tree.contains_key(dir.as_os_str()) {
            return Err(not_found());
        }
        let durable = &mut self.durable;
        self.changes.retain(|NameChange { change, .. }| {
            let synced = change.touches(&dir);
            if synced {
                change.apply(durable);
            }
            !synced
        });
        self.ops += 1;
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let file = self.file(from)?;
        let (from, to) = (name(&clean(from))?, name(&clean(to))?);
        if !self.tree.contains_key(to.dir.as_os_str()) {
            return Err(not_found());
        }
        let replaced = match self.node(&to.path()) {
            Ok(Node::Dir) => return Err(ErrorKind::IsADirectory.into()),
            Ok(Node::File(replaced)) => Some(replaced),
            Err(_) => None,
        };
        if replaced.as_ref().is_some_and(|replaced| replaced.id == file.id) {
            // Two names of one file: POSIX says that nothing happens.
            return Ok(());
        }
        self.change(Change::Rename { from, to, file });
        if let Some(replaced) = replaced {
            self.unlinked(&replaced);
        }
        Ok(())
    }

    pub(super) fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let file = self.file(from)?;
        let at = self.free_name(to)?;
        file.file.lock().links += 1;
        self.change(Change::Link { at, node: Node::File(file) });
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        let file = self.file(path)?;
        self.change(Change::Unlink { at: name(&clean(path))? });
        self.unlinked(&file);
        Ok(())
    }

    pub(super) fn remove_dir(&mut self, path: &Path) -> io::Result<()> {
        let path = clean(path);
        match self.tree.get(path.as_os_str()) {
            Some(names) if names.is_empty() => {}
            Some(_) => return Err(ErrorKind::DirectoryNotEmpty.into()),
            None => {
                return Err(self.node(&path).map_or_else(|error| error, |_| ErrorKind::NotADirectory.into()));
            }
        }
        self.change(Change::Unlink { at: name(&path)? });
        Ok(())
    }

    /// A handle was opened.
    pub(super) fn opened(&mut self, inode: &Inode) {
        inode.file.lock().open += 1;
    }

    /// A handle was closed: a file without names goes with its last one.
    pub(super) fn closed(&mut self, inode: &Inode) {
        let mut file = inode.file.lock();
        file.open -= 1;
        if file.open == 0 && file.links == 0 {
            self.used = self.used.saturating_sub(file.data.len());
        }
    }

    pub(super) fn free(&self) -> u64 {
        self.capacity.map_or(1 << 50, |capacity| capacity.saturating_sub(self.used))
    }

    /// Counts afresh what the files take, and how many names each has; nothing is open.
    pub(super) fn recount(&mut self) {
        let mut links: BTreeMap<u64, (u32, &Arc<Inode>)> = BTreeMap::new();
        for node in self.tree.values().flat_map(BTreeMap::values) {
            if let Node::File(inode) = node {
                links.entry(inode.id).or_insert((0, inode)).0 += 1;
            }
        }
        self.used = 0;
        for (links, inode) in links.into_values() {
            let mut file = inode.file.lock();
            (file.links, file.open, file.readers) = (links, 0, 0);
            self.used += file.data.len();
        }
    }

    /// Makes the name durable as it is now, there or gone: for tests that put files there and take them away.
    pub(super) fn settle(&mut self, path: &Path) {
        let Ok(at) = name(&clean(path)) else { return };
        // What was under way with this name is over; a rename to it has still taken the other name away.
        for NameChange { change, .. } in &mut self.changes {
            if let Change::Rename { from, to, .. } = change
                && *to == at
            {
                *change = Change::Unlink { at: from.clone() };
            }
        }
        self.changes.retain(|NameChange { change, .. }| match change {
            Change::Link { at: other, .. } | Change::Unlink { at: other } => *other != at,
            Change::Rename { .. } => true,
        });
        let now = match self.tree.get(at.dir.as_os_str()).and_then(|names| names.get(&at.name)).cloned() {
            Some(node) => Change::Link { at, node },
            None => Change::Unlink { at },
        };
        now.apply(&mut self.durable);
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.tree);
        self.changes.push(NameChange { op: self.ops, change });
        self.ops += 1;
    }

    fn unlinked(&mut self, inode: &Inode) {
        let mut file = inode.file.lock();
        file.links -= 1;
        if file.links == 0 && file.open == 0 {
            self.used = self.used.saturating_sub(file.data.len());
        }
    }

    /// `path` as a name that can be given to something new.
    fn free_name(&self, path: &Path) -> io::Result<Name> {
        let path = clean(path);
        let at = name(&path).map_err(|_| io::Error::from(ErrorKind::AlreadyExists))?;
        match self.node(&at.dir)? {
            Node::Dir if self.node(&path).is_ok() => Err(ErrorKind::AlreadyExists.into()),
            Node::Dir => Ok(at),
            Node::File(_) => Err(ErrorKind::NotADirectory.into()),
        }
    }
}

/// One spelling for each path: absolute, without dots.
pub(super) fn clean(path: &Path) -> Cow<'_, Path> {
    let bytes = path.as_os_str().as_encoded_bytes();
    let odd = |pair: &[u8]| pair[0] == b'/' && matches!(pair[1], b'/' | b'.');
    if bytes.first() == Some(&b'/') && bytes.last() != Some(&b'/') && !bytes.windows(2).any(odd) {
        // It is spelt so already, which a look at its bytes tells sooner than a walk over its components.
        return Cow::Borrowed(path);
    }
    let mut clean = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => drop(clean.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Cow::Owned(clean)
}

/// A clean path as a name in its folder; the root has none.
pub(super) fn name(path: &Path) -> io::Result<Name> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(not_found());
    };
    Ok(Name { dir: dir.to_path_buf(), name: name.to_string_lossy().into_owned() })
}

fn not_found() -> io::Error {
    ErrorKind::NotFound.into()
}
