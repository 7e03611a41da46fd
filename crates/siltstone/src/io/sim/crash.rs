//! What a power cut leaves.
//!
//! | profile | unsynced bytes | unsynced names | finds |
//! | --- | --- | --- | --- |
//! | `Kill` | all there, still unsynced | all there, still unsynced | what a killed process loses; recovery that trusts what only the page cache has |
//! | `Strict` | lost | lost | a missing sync, at once |
//! | `Prefix` | of the mutations that no sync covers, those before some moment survive, data and names alike | | the common case: a journaling file system |
//! | `Subset` | each sector apart is old or new (as of the crash or of an earlier moment); the length apart; new sectors may be zeros or garbage | each change apart; a rename is done or not | reliance on an order that nothing enforces |
//! | `Nasty` | as `Subset`; garbage may be old bytes of other files; bytes of failed syncs come back | as `Subset` | stale records taken for new ones; "failed" taken for "not done" |

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use super::super::Rng;
use super::SimFs;
use super::content::Content;
use super::disk::{Change, Disk, FileState, Inode, NameChange, Node, Tree, Write};
use super::oplog::{Op, OpKind};
use crate::num::{to_u64, to_usize};

const SECTOR_BYTES: u64 = 512;

/// What a crash may do with what was not synced.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Profile {
    /// The process dies, the system lives: nothing is lost, and nothing becomes durable.
    Kill,
    /// Everything that was not synced is lost.
    Strict,
    /// Of what was not synced, a prefix in time survives.
    Prefix,
    /// Any subset survives, sector by sector and name by name.
    Subset,
    /// The worst that is legal.
    Nasty,
}

impl Profile {
    /// All profiles.
    pub const ALL: [Profile; 5] = [Profile::Kill, Profile::Strict, Profile::Prefix, Profile::Subset, Profile::Nasty];
    /// Those in which the power fails.
    pub const POWER: [Profile; 4] = [Profile::Strict, Profile::Prefix, Profile::Subset, Profile::Nasty];
}

impl Disk {
    /// A copy of the disk, with nothing open. What is not durable stays so.
    pub(super) fn fork(&self) -> Disk {
        let mut copies = Copies::default();
        let mut copy = |inode: &Inode| copies.of(inode, |file| file.clone());
        let mut fork = Disk {
            tree: map_files(&self.tree, &mut copy),
            durable: map_files(&self.durable, &mut copy),
            changes: self.changes.iter().map(|change| change.map_files(&mut copy)).collect(),
            ..self.bare()
        };
        fork.recount();
        fork
    }

    /// The disk after a crash now.
    pub(super) fn crash(&self, profile: Profile, rng: &mut Rng) -> Disk {
        if profile == Profile::Kill {
            return self.fork();
        }
        let cut = if profile == Profile::Prefix { self.random_cut(rng) } else { 0 };
        let mut tree = self.durable.clone();
        for NameChange { op, change } in &self.changes {
            let survives = match profile {
                Profile::Kill | Profile::Strict => false,
                Profile::Prefix => *op < cut,
                Profile::Subset | Profile::Nasty => rng.one_in(2),
            };
            if survives {
                change.apply(&mut tree);
            }
        }
        let tree = reachable(&tree);
        // Garbage for recycled blocks: what other files hold.
        let stale: Vec<Content> = match profile {
            Profile::Nasty => files(&self.tree).map(|inode| inode.file.lock().data.clone()).collect(),
            _ => Vec::new(),
        };
        let mut copies = Copies::default();
        let mut copy = |inode: &Inode| {
            copies.of(inode, |file| {
                let data = match profile {
                    Profile::Kill | Profile::Strict => file.durable.clone(),
                    Profile::Prefix => file.before(cut),
                    Profile::Subset | Profile::Nasty => file.torn(profile, &stale, rng),
                };
                FileState::durable(data)
            })
        };
        let tree = map_files(&tree, &mut copy);
        let mut disk = Disk { durable: tree.clone(), tree, changes: Vec::new(), ..self.bare() };
        disk.recount();
        disk
    }

    /// A moment between the oldest mutation that is not durable and now.
    fn random_cut(&self, rng: &mut Rng) -> u64 {
        let names = self.changes.iter().map(|change| change.op).min();
        let writes = files(&self.tree).filter_map(|inode| inode.file.lock().pending.first().map(|write| write.op));
        let oldest = writes.chain(names).min().unwrap_or(self.ops);
        rng.between(oldest, self.ops)
    }

    /// The numbers of the disk, without files.
    fn bare(&self) -> Disk {
        let (next_inode, ops, capacity) = (self.next_inode, self.ops, self.capacity);
        Disk { next_inode, ops, capacity, ..Disk::new() }
    }

    /// Does again what `op` did. `inodes` finds the files.
    fn replay(&mut self, op: &Op, inodes: &mut BTreeMap<u64, Arc<Inode>>) {
        let done = match op.kind {
            OpKind::CreateDir => self.create_dir(&op.path),
            OpKind::Create | OpKind::CreateLog | OpKind::CreateSlots => self.create(&op.path, op.len).map(|inode| {
                inodes.insert(inode.id, inode);
            }),
            OpKind::SyncDir => self.sync_dir(&op.path),
            OpKind::Rename => self.rename(&op.path, op.to.as_deref().unwrap_or(&op.path)),
            OpKind::Link => self.link(&op.path, op.to.as_deref().unwrap_or(&op.path)),
            OpKind::Remove => self.remove(&op.path),
            OpKind::RemoveDir => self.remove_dir(&op.path),
            OpKind::Append | OpKind::Write | OpKind::Cut | OpKind::Sync | OpKind::SyncFailed => {
                match (inodes.get(&op.inode), op.kind) {
                    // A file that had lost its names when the log began: no crash brings it back.
                    (None, _) => self.ops += 1,
                    (Some(inode), OpKind::Cut) => self.cut(inode, op.offset),
                    (Some(inode), OpKind::Sync) => self.sync(inode),
                    (Some(inode), OpKind::SyncFailed) => self.sync_failed(inode, op.effect),
                    (Some(inode), _) => drop(self.write(inode, op.offset, &op.data)),
                }
                Ok(())
            }
        };
        done.expect("what was done once can be done again on the same disk");
    }
}

impl FileState {
    /// The content with each unsynced sector old or new, apart from the others.
    fn torn(&self, profile: Profile, stale: &[Content], rng: &mut Rng) -> Content {
        let nasty = profile == Profile::Nasty;
        let mut image = self.durable.clone();
        let limbo: &[Write] = if nasty { &self.limbo } else { &[] };
        if self.pending.is_empty() && limbo.is_empty() {
            return image;
        }
        // The page cache may have been written back at any moment since the last sync.
        let moments = to_u64(self.pending.len());
        let earlier = match self.pending.get(to_usize(rng.below(moments + 1))) {
            Some(write) => self.before(write.op),
            None => self.data.clone(),
        };
        let longest = self.data.len().max(image.len());
        let is_cut = self.data.len() < image.len() && rng.one_in(2);
        image.set_len(match rng.below(4) {
            _ if is_cut => self.data.len(),
            0 => image.len(),
            1 => longest,
            2 => earlier.len().max(image.len()),
            _ => {
                let any = rng.between(image.len(), longest);
                if rng.one_in(4) { any } else { any.next_multiple_of(SECTOR_BYTES).min(longest) }
            }
        });
        // Draw how much is lost, too: with a fair coin for each of many sectors, "all" and "none" would never come.
        let kept_of_16 = [0, 1, 8, 15, 16][to_usize(rng.below(5))];
        let garbage = rng.one_in(4);
        for sector in sectors(self.pending.iter().chain(limbo)) {
            let (start, end) = (sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES);
            if rng.below(16) < kept_of_16 {
                let source = if rng.one_in(2) { &earlier } else { &self.data };
                // What a failed sync dropped is in `data`, and comes back only here, in the nasty profile.
                let source = if nasty || self.limbo.is_empty() { source } else { &earlier };
                image.copy_within_len(source, start, end);
            } else if garbage && start >= self.durable.len() && rng.one_in(2) {
                let junk = match stale.get(to_usize(rng.below(to_u64(stale.len()) + 1))) {
                    Some(other) if other.len() > 0 => {
                        let from = rng.below(other.len()) / SECTOR_BYTES * SECTOR_BYTES;
                        other.bytes(from, SECTOR_BYTES)
                    }
                    _ => (0..SECTOR_BYTES).map(|_| u8::try_from(rng.below(256)).unwrap_or(0)).collect(),
                };
                let room = image.len().saturating_sub(start).min(SECTOR_BYTES);
                image.write(start.min(image.len()), &junk[..to_usize(room)]);
            }
        }
        image
    }
}

/// The sectors that `writes` touch, ascending.
fn sectors<'a>(writes: impl Iterator<Item = &'a Write>) -> BTreeSet<u64> {
    let range = |write: &Write| write.offset / SECTOR_BYTES..write.end().div_ceil(SECTOR_BYTES);
    writes.filter(|write| write.len > 0).flat_map(range).collect()
}

/// The copies of files made so far, so that two names of one file stay so.
#[derive(Default)]
struct Copies(BTreeMap<u64, Arc<Inode>>);

impl Copies {
    fn of(&mut self, inode: &Inode, copy: impl FnOnce(&FileState) -> FileState) -> Arc<Inode> {
        let copied = self.0.entry(inode.id);
        copied.or_insert_with(|| Inode::new(inode.id, copy(&inode.file.lock()))).clone()
    }
}

impl Node {
    fn map_files(&self, copy: &mut impl FnMut(&Inode) -> Arc<Inode>) -> Node {
        match self {
            Node::Dir => Node::Dir,
            Node::File(inode) => Node::File(copy(inode)),
        }
    }
}

impl NameChange {
    fn map_files(&self, copy: &mut impl FnMut(&Inode) -> Arc<Inode>) -> NameChange {
        let change = match &self.change {
            Change::Link { at, node } => Change::Link { at: at.clone(), node: node.map_files(copy) },
            Change::Unlink { at } => Change::Unlink { at: at.clone() },
            Change::Rename { from, to, file } => {
                Change::Rename { from: from.clone(), to: to.clone(), file: copy(file) }
            }
        };
        NameChange { op: self.op, change }
    }
}

fn map_files(tree: &Tree, copy: &mut impl FnMut(&Inode) -> Arc<Inode>) -> Tree {
    let mut mapped = Tree::new();
    for (dir, names) in tree {
        let names = names.iter().map(|(name, node)| (name.clone(), node.map_files(copy))).collect();
        mapped.insert(dir.clone(), names);
    }
    mapped
}

fn files(tree: &Tree) -> impl Iterator<Item = &Arc<Inode>> {
    tree.values().flat_map(BTreeMap::values).filter_map(|node| match node {
        Node::File(inode) => Some(inode),
        Node::Dir => None,
    })
}

/// What can be reached from the root: names in a folder that is lost are lost with it.
fn reachable(tree: &Tree) -> Tree {
    let mut found = Tree::new();
    let mut open = vec![OsString::from("/")];
    while let Some(dir) = open.pop() {
        let names = tree.get(&dir).cloned().unwrap_or_default();
        for (name, node) in &names {
            if matches!(node, Node::Dir) {
                open.push(Path::new(&dir).join(name).into());
            }
        }
        found.insert(dir, names);
    }
    found
}

/// The disk after a crash, and when that was.
pub struct CrashImage {
    /// The crash came after this many mutations since [`SimFs::record_ops`].
    pub ops: u64,
    /// The disk.
    pub fs: SimFs,
    /// [`SimFs::image_hash`]: images with equal hashes need to be checked once, if the same was promised for both.
    pub hash: u64,
}

/// The disk after a crash behind each mutation of a recorded run: first none of them, last all.
///
/// The run is replayed once; each image shares its bytes with the next. `skip` and `nth` make no image of what they skip.
pub struct CrashImages {
    disk: Disk,
    inodes: BTreeMap<u64, Arc<Inode>>,
    ops: Vec<Op>,
    profile: Profile,
    rng: Rng,
    next: usize,
    applied: usize,
    like: SimFs,
}

impl CrashImages {
    /// The images of the run that `fs` has recorded.
    ///
    /// # Panics
    /// If it has recorded none: see [`SimFs::record_ops`].
    pub fn new(fs: &SimFs, profile: Profile, seed: u64) -> CrashImages {
        let (disk, ops) = fs.recorded().expect("record_ops(true) comes before the run");
        let changed = disk.changes.iter().filter_map(|change| match &change.change {
            Change::Link { node: Node::File(inode), .. } | Change::Rename { file: inode, .. } => Some(inode),
            Change::Link { node: Node::Dir, .. } | Change::Unlink { .. } => None,
        });
        let all = files(&disk.tree).chain(files(&disk.durable)).chain(changed);
        let inodes = all.map(|inode| (inode.id, inode.clone())).collect();
        let rng = Rng::new(seed).split("crash images");
        CrashImages { disk, inodes, ops, profile, rng, next: 0, applied: 0, like: fs.clone() }
    }

    /// How many images there are in all: one more than mutations.
    pub fn images(&self) -> u64 {
        to_u64(self.ops.len()) + 1
    }

    /// The mutation behind which image `ops` is cut, if it is not the first.
    pub fn last_op(&self, ops: u64) -> Option<&Op> {
        self.ops.get(to_usize(ops.checked_sub(1)?))
    }
}

impl Iterator for CrashImages {
    type Item = CrashImage;

    fn next(&mut self) -> Option<CrashImage> {
        if self.next > self.ops.len() {
            return None;
        }
        for op in &self.ops[self.applied..self.next] {
            self.disk.replay(op, &mut self.inodes);
        }
        self.applied = self.next;
        let ops = to_u64(self.next);
        // A generator for each image: which images are skipped changes no other.
        let mut rng = self.rng.split(&ops.to_string());
        let fs = self.like.with_disk(self.disk.crash(self.profile, &mut rng));
        self.next += 1;
        Some(CrashImage { ops, hash: fs.image_hash(), fs })
    }

    fn nth(&mut self, n: usize) -> Option<CrashImage> {
        self.next = self.next.saturating_add(n);
        self.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.ops.len() + 1).saturating_sub(self.next);
        (left, Some(left))
    }
}

/// Whether `path` would survive any crash, as a name and with all its bytes.
pub(super) fn durability(disk: &Disk, path: &Path) -> Option<super::Durability> {
    let clean = super::disk::clean(path);
    let node = disk.node(&clean).ok()?;
    let mut name = clean.ancestors().all(|ancestor| {
        let Ok(at) = super::disk::name(ancestor) else {
            return true;
        };
        let durable = disk.durable.get(at.dir.as_os_str()).and_then(|names| names.get(&at.name));
        match (&node, durable) {
            (Node::File(inode), Some(Node::File(old))) if ancestor == clean => inode.id == old.id,
            (_, Some(Node::Dir)) => true,
            _ => false,
        }
    });
    // A change that is under way may take a durable name away as well.
    name &= !disk.changes.iter().any(|change| match &change.change {
        Change::Link { at, .. } | Change::Unlink { at } => at.path() == clean,
        Change::Rename { from, to, .. } => from.path() == clean || to.path() == clean,
    });
    let (data, synced_bytes) = match &node {
        Node::Dir => (true, 0),
        Node::File(inode) => {
            let file = inode.file.lock();
            (file.pending.is_empty() && file.limbo.is_empty(), file.durable.len())
        }
    };
    Some(super::Durability { name, data, synced_bytes })
}
