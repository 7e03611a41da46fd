//! Tests of manifest and superblock against the list of states that were committed, under crashes, damage and failing calls.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::super::codec;
use super::super::{KeyspaceId, LevelId, RunOrder, SstId, VersionEdit, text};
use super::*;
use crate::io::Rng;
use crate::io::sim::{CallKind, CrashImages, Effect, Errno, Fault, Profile, SimClock, SimFs};
use crate::key::SeqNo;
use crate::wal::SegmentId;

const SMALL: ManifestOptions = ManifestOptions { roll_bytes: 300 };

fn dir() -> PathBuf {
    PathBuf::from("/store")
}

fn new_fs(seed: u64) -> SimFs {
    let fs = SimFs::new(&SimClock::new(), seed);
    fs.create_dir_all(&dir(), CTX).unwrap();
    fs.sync_dir(Path::new("/"), CTX).unwrap();
    fs
}

fn create(fs: &SimFs) -> Result<Manifest> {
    Manifest::create(Arc::new(fs.clone()), &dir(), 77, 5, SMALL)
}

fn open(fs: &SimFs) -> Result<Manifest> {
    Manifest::open(Arc::new(fs.clone()), &dir(), SMALL)
}

/// Edits that fit `state`.
fn random_edits(state: &StoreState, rng: &mut Rng) -> Vec<ManifestEdit> {
    let some = |rng: &mut Rng| {
        let n = to_u64(state.keyspaces.len());
        (n > 0).then(|| state.keyspaces.iter().nth(to_usize(rng.below(n))).unwrap())
    };
    let mut edits = Vec::new();
    match (rng.below(10), some(rng)) {
        (0, _) | (_, None) => edits.push(ManifestEdit::CreateKeyspace {
            id: KeyspaceId(state.next_keyspace.0 + u32::from(rng.one_in(2))),
            name: format!("ks{}", state.next_keyspace.0),
            options_text: "x".repeat(to_usize(rng.below(30))),
        }),
        (1, Some((id, _))) if rng.one_in(3) => edits.push(ManifestEdit::DropKeyspace(*id)),
        (2, Some((id, _))) => edits.push(ManifestEdit::SetOptions(*id, format!("o = {}", rng.below(9)))),
        (_, Some((id, keyspace))) => {
            let mut edit = VersionEdit::default();
            let files: Vec<_> = keyspace.version.files().collect();
            if !files.is_empty() && rng.one_in(2) {
                let (level, order, file) = files[to_usize(rng.below(to_u64(files.len())))];
                edit.removed.push((level, order, file.id));
                if rng.one_in(2) {
                    // Moved, or cut as well; what is cut off may be linked.
                    let (before, cut) = (Bytes::from_static(b"ax"), Bytes::from_static(b"az"));
                    let place = (LevelId(level.0 + 1), RunOrder(keyspace.next_run_order));
                    let moved = match file.smallest < before && cut < file.largest {
                        true if rng.one_in(2) => Arc::new(file.without_before(cut, rng.below(9), 9)),
                        _ => Arc::clone(file),
                    };
                    if moved.smallest != file.smallest && rng.one_in(2) {
                        let front = file.slice(file.smallest.clone(), before, rng.below(9), 9);
                        edit.added.push((
                            place.0,
                            place.1,
                            Arc::new(crate::version::FileMeta { id: state.next_sst, ..front }),
                        ));
                    }
                    edit.added.push((place.0, place.1, moved));
                }
            } else {
                let order = RunOrder(keyspace.next_run_order);
                let drawn = format!("{}:a{}-b:{}", state.next_sst.0, rng.below(9), 1 + rng.below(9000));
                edit.added.push((LevelId(0), order, Arc::new(text::parse_file(&drawn, order).unwrap())));
            }
            edits.push(ManifestEdit::Version(*id, edit));
            edits.push(ManifestEdit::Flushed(*id, SeqNo(keyspace.flushed_seq.0 + rng.below(9))));
            edits.push(ManifestEdit::LastSeq(SeqNo(rng.below(1000))));
            edits.push(ManifestEdit::LogFloor(SegmentId(state.log_floor.0 + rng.below(2))));
        }
    }
    edits
}

/// A store with some history, and every state that it had.
fn with_history(fs: &SimFs, commits: usize, rng: &mut Rng) -> (Manifest, Vec<StoreState>) {
    let mut manifest = create(fs).unwrap();
    let mut states = vec![manifest.state().clone()];
    for _ in 0..commits {
        let edits = random_edits(manifest.state(), rng);
        manifest.commit(&edits).unwrap();
        states.push(manifest.state().clone());
    }
    (manifest, states)
}

#[test]
fn states_come_back_and_manifests_roll() {
    let fs = new_fs(1);
    let mut rng = Rng::new(1);
    let (manifest, states) = with_history(&fs, 200, &mut rng);
    assert_eq!(Manifest::open_read_only(&fs, &dir()).unwrap(), *manifest.state());
    assert!(manifest.next_number > 5, "it rolled: {}", manifest.next_number);
    assert_eq!(fs.files().len(), 2, "one manifest and the superblock: {:?}", fs.files());
    drop(manifest);
    let mut again = open(&fs).unwrap();
    assert_eq!(*again.state(), states[200]);
    // Nothing was written until the first commit, and that goes to a new manifest.
    let number = again.superblock.root().manifest;
    again.commit(&[ManifestEdit::LastSeq(SeqNo(12345))]).unwrap();
    assert!(again.superblock.root().manifest > number);
    assert_eq!(open(&fs).unwrap().state().last_seq, SeqNo(12345));
    assert_eq!(create(&fs).err().unwrap().kind(), ErrorKind::AlreadyExists);
}

#[test]
fn a_read_only_open_changes_nothing() {
    let fs = new_fs(2);
    let (manifest, states) = with_history(&fs, 30, &mut Rng::new(2));
    drop(manifest);
    fs.set_read_only(true);
    assert_eq!(Some(&Manifest::open_read_only(&fs, &dir()).unwrap()), states.last());
    assert!(Manifest::exists(&fs, &dir()).unwrap());
    assert_eq!(fs.violations(), Vec::<String>::new());
    let nowhere = Manifest::open_read_only(&fs, Path::new("/")).unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::NotFound);
}

/// A crash at every operation, and at every operation of the recovery that follows.
#[test]
fn a_crash_anywhere_leaves_a_state_that_was_committed() {
    let mut points = 0;
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let fs = new_fs(seed);
        fs.record_ops(true);
        let mut manifest = create(&fs).unwrap();
        let mut states = vec![(fs.op_count(), manifest.state().clone())];
        for _ in 0..25 {
            if rng.one_in(8) {
                drop(manifest);
                manifest = open(&fs).unwrap();
            }
            let edits = random_edits(manifest.state(), &mut rng);
            manifest.commit(&edits).unwrap();
            states.push((fs.op_count(), manifest.state().clone()));
        }
        for profile in Profile::ALL {
            for image in CrashImages::new(&fs, profile, rng.next_u64()) {
                points += 1;
                let acked = states.iter().rposition(|(op, _)| *op <= image.ops);
                let what = format!("{profile:?} after {} operations", image.ops);
                let exists = Manifest::exists(&image.fs, &dir()).unwrap();
                assert!(exists || acked.is_none(), "{what}: no store");
                image.fs.record_ops(true);
                let found = if exists { open(&image.fs) } else { create(&image.fs) };
                let mut found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
                let from = acked.unwrap_or(0);
                let candidates = &states[from..(from + 2).min(states.len())];
                assert!(candidates.iter().any(|(_, state)| state == found.state()), "{what}: another state");
                if exists && rng.one_in(3) {
                    crash_again(&image.fs, &mut found, &mut rng, &what);
                }
            }
        }
    }
    assert!(points > 3000, "{points} crash points");
}

fn crash_again(fs: &SimFs, manifest: &mut Manifest, rng: &mut Rng, what: &str) {
    let opened = fs.op_count();
    let before = manifest.state().clone();
    manifest.commit(&random_edits(&before, rng)).unwrap();
    let acked = fs.op_count();
    for profile in Profile::ALL {
        for image in CrashImages::new(fs, profile, rng.next_u64()) {
            // A process that was killed while it made the store may leave names that are not durable.
            if image.ops < opened && !Manifest::exists(&image.fs, &dir()).unwrap() {
                continue;
            }
            let found = open(&image.fs).unwrap_or_else(|error| panic!("{what}, then {profile:?}: {error}"));
            let old = *found.state() == before;
            let new = found.state() == manifest.state();
            // Before the first open returned, what it found beyond the durable length may still be lost.
            let fine = if image.ops >= acked { new } else { old || new || image.ops < opened };
            assert!(fine, "{what}, then {profile:?} after {} of {opened}/{acked}", image.ops);
        }
    }
}

fn check_damage(fs: &SimFs, state: &StoreState, what: &str, damage: impl FnOnce(&SimFs)) -> bool {
    let fs = fs.clone_image();
    damage(&fs);
    match Manifest::open_read_only(&fs, &dir()) {
        Ok(found) => {
            assert!(found == *state, "{what}: another state, without a word");
            let opened = open(&fs).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(opened.state() == state, "{what}");
            false
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corruption, "{what}: {error}");
            assert!(error.path().is_some() && error.offset().is_some(), "{what}: {error:?}");
            true
        }
    }
}

#[test]
fn every_flip_truncation_and_zeroed_tail_is_found_out_or_harmless() {
    let fs = new_fs(3);
    let (manifest, states) = with_history(&fs, 14, &mut Rng::new(3));
    drop(manifest);
    let state = states.last().unwrap();
    let (mut flips, mut refused) = (0, 0);
    for (path, bytes) in fs.files() {
        let whole = fs.read_all(&path).unwrap();
        for bit in 0..bytes * 8 {
            flips += 1;
            let what = format!("bit {bit} of {}", path.display());
            refused += u64::from(check_damage(&fs, state, &what, |fs| fs.flip_bit(&path, bit).unwrap()));
        }
        for len in 0..bytes {
            let what = format!("{} cut to {len}", path.display());
            check_damage(&fs, state, &what, |fs| fs.truncate(&path, len).unwrap());
            let what = format!("{} zeroed from {len}", path.display());
            let mut zeroed = whole.clone();
            zeroed[usize::try_from(len).unwrap()..].fill(0);
            check_damage(&fs, state, &what, |fs| fs.write_all(&path, &zeroed).unwrap());
        }
        for garbage in [1u8, 0] {
            let what = format!("garbage behind {}", path.display());
            let longer = [&whole[..], &[garbage; 40]].concat();
            assert!(!check_damage(&fs, state, &what, |fs| fs.write_all(&path, &longer).unwrap()));
        }
        let what = format!("{} is gone", path.display());
        let fs = fs.clone_image();
        fs.remove_all(&path).unwrap();
        let error = open(&fs).err().unwrap_or_else(|| panic!("{what}, unnoticed"));
        assert!(matches!(error.kind(), ErrorKind::Corruption | ErrorKind::NotFound), "{what}: {error}");
    }
    assert!(flips > 60_000 && refused > 2000, "{refused} of {flips} flips refused");
}

/// Every call of commits, failing with every effect, once and for good: an error that says "not committed" is true, and the
/// manifest can be used again once there is space; an error that says "unknown" leaves the old state or the new one.
#[test]
fn failing_calls_never_lie_about_a_commit() {
    let (mut retried, mut poisoned) = (0, 0);
    for errno in [Errno::NoSpace, Errno::Io] {
        for effect in [Effect::Nothing, Effect::Partial, Effect::Full, Effect::Revert] {
            for sticky in [false, true] {
                for n in 1.. {
                    let fault = Fault::nth(n, errno).effect(effect);
                    let outcome = fail_one_commit(n, if sticky { fault.sticky() } else { fault });
                    match outcome {
                        Outcome::Untouched => break,
                        Outcome::Survived => {}
                        Outcome::Retried => retried += 1,
                        Outcome::Poisoned => poisoned += 1,
                    }
                    if errno == Errno::NoSpace && !sticky {
                        let is_sync = matches!(outcome, Outcome::Poisoned);
                        assert!(
                            !is_sync || effect != Effect::Nothing || n > 3,
                            "a full disk at call {n} is survivable"
                        );
                    }
                }
            }
        }
    }
    assert!(retried > 20 && poisoned > 20, "{retried} retried, {poisoned} poisoned");
}

enum Outcome {
    /// The fault came too late.
    Untouched,
    /// The commit succeeded all the same.
    Survived,
    /// It failed, and succeeded later.
    Retried,
    Poisoned,
}

fn fail_one_commit(n: u64, fault: Fault) -> Outcome {
    let fs = new_fs(n);
    let mut rng = Rng::new(n % 7);
    let (mut manifest, _) = with_history(&fs, 6, &mut rng);
    let what = format!("{fault:?}");
    fs.set_fault(fault);
    let mut failed = None;
    for _ in 0..6 {
        let before = manifest.state().clone();
        let edits = random_edits(&before, &mut rng);
        if let Err(error) = manifest.commit(&edits) {
            assert!(*manifest.state() == before, "{what}: a failed commit shows");
            let mut after = before.clone();
            edits.iter().for_each(|edit| after.apply(edit).unwrap());
            failed = Some((error, edits, before, after));
            break;
        }
    }
    let hit = fs.faults_hit() > 0;
    fs.clear_faults();
    let Some((error, edits, before, after)) = failed else {
        let state = manifest.state().clone();
        drop(manifest);
        assert!(*open(&fs.crash(Profile::Subset, &mut rng)).unwrap().state() == state, "{what}");
        return if hit { Outcome::Survived } else { Outcome::Untouched };
    };
    let is_poisoned = error.kind() == ErrorKind::Poisoned;
    assert_eq!(is_poisoned, manifest.is_poisoned(), "{what}: {error}");
    for profile in Profile::ALL {
        let found = open(&fs.crash(profile, &mut rng)).unwrap_or_else(|error| panic!("{what}, {profile:?}: {error}"));
        let old = *found.state() == before;
        let new = *found.state() == after;
        assert!(old || (is_poisoned && new), "{what}, {profile:?}: {error}, but the commit is there");
    }
    if is_poisoned {
        let syncs = fs.calls_of(CallKind::Sync);
        assert_eq!(manifest.commit(&edits).unwrap_err().kind(), ErrorKind::Poisoned);
        assert_eq!(fs.calls_of(CallKind::Sync), syncs, "{what}: synced again");
        return Outcome::Poisoned;
    }
    manifest.commit(&edits).unwrap_or_else(|error| panic!("{what}: no retry: {error}"));
    for profile in Profile::ALL {
        let found = open(&fs.crash(profile, &mut rng)).unwrap();
        assert!(*found.state() == after, "{what}, {profile:?}: the retried commit is lost");
    }
    Outcome::Retried
}

/// RocksDB 6316: a full disk in the middle of a manifest record, later records appended behind the garbage.
#[test]
fn a_full_disk_in_the_middle_of_a_record_leaves_a_manifest_that_opens() {
    let fs = new_fs(4);
    let (mut manifest, _) = with_history(&fs, 3, &mut Rng::new(4));
    for room in (0..400).step_by(7) {
        fs.set_capacity(Some(fs.used_bytes() + room));
        let result = manifest.commit(&[ManifestEdit::CreateKeyspace {
            id: manifest.state().next_keyspace,
            name: format!("room{room}"),
            options_text: "o".repeat(200),
        }]);
        fs.set_capacity(None);
        if let Err(error) = result {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        }
        assert_eq!(Manifest::open_read_only(&fs, &dir()).unwrap(), *manifest.state(), "room for {room} bytes");
        manifest.commit(&[ManifestEdit::LastSeq(SeqNo(room))]).unwrap();
        assert_eq!(Manifest::open_read_only(&fs, &dir()).unwrap(), *manifest.state());
    }
}

/// A process has as many files open as it may: a full manifest goes on as it is, since no other can be made, and no commit fails.
#[test]
fn without_file_descriptors_the_manifest_goes_on() {
    for kind in [CallKind::Create, CallKind::SyncDir] {
        let fs = new_fs(6);
        let mut rng = Rng::new(6);
        let (mut manifest, _) = with_history(&fs, 3, &mut rng);
        fs.set_fault(Fault::nth(1, Errno::TooManyFiles).of(kind).sticky());
        while fs.faults_hit() < 3 {
            let edits = random_edits(manifest.state(), &mut rng);
            manifest.commit(&edits).unwrap();
        }
        let state = manifest.state().clone();
        fs.clear_faults();
        assert!(*open(&fs.crash(Profile::Strict, &mut rng)).unwrap().state() == state, "{kind:?}");
    }
}

#[test]
fn edits_that_do_not_fit_change_nothing() {
    let fs = new_fs(5);
    let (mut manifest, _) = with_history(&fs, 40, &mut Rng::new(5));
    let before = manifest.state().clone();
    let (&id, keyspace) = before.keyspaces.iter().next().unwrap();
    let nobody = KeyspaceId(999);
    let create =
        |id, name: &str| ManifestEdit::CreateKeyspace { id, name: name.to_owned(), options_text: String::new() };
    for edit in [
        create(id, "new"),
        create(before.next_keyspace, &keyspace.name),
        create(before.next_keyspace, ""),
        ManifestEdit::DropKeyspace(nobody),
        ManifestEdit::SetOptions(nobody, String::new()),
        ManifestEdit::Version(nobody, VersionEdit::default()),
        ManifestEdit::Version(id, VersionEdit { removed: vec![(LevelId(9), RunOrder(1), SstId(1))], added: vec![] }),
        ManifestEdit::NextSst(SstId(0)),
        ManifestEdit::NextKeyspace(KeyspaceId(0)),
        ManifestEdit::NextRunOrder(nobody, 1),
    ] {
        let edits = [ManifestEdit::LastSeq(SeqNo(77_777)), edit];
        let error = manifest.commit(&edits).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{edits:?}");
        assert_eq!(*manifest.state(), before);
    }
    assert_eq!(open(&fs).unwrap().state(), &before);
}

#[test]
fn edits_come_back_from_bytes_and_unknown_ones_say_whether_they_matter() {
    let mut rng = Rng::new(6);
    let mut state = StoreState::default();
    for _ in 0..500 {
        let edits = random_edits(&state, &mut rng);
        edits.iter().for_each(|edit| state.apply(edit).unwrap());
        let mut bytes = Vec::new();
        codec::encode(&edits, &mut bytes);
        assert_eq!(codec::decode(&bytes), Ok(edits));
        // Cut or changed bytes are refused or something else, never a panic.
        let cut = to_usize(rng.below(to_u64(bytes.len())));
        let _ = codec::decode(&bytes[..cut]);
        bytes[cut] ^= 1 << rng.below(8);
        let _ = codec::decode(&bytes);
    }
    let mut rebuilt = StoreState::default();
    state.snapshot().iter().for_each(|edit| rebuilt.apply(edit).unwrap());
    assert_eq!(rebuilt, state);
    assert_eq!(codec::decode(&[101, 1, 9, 18, 1, 5]), Ok(vec![ManifestEdit::LastSeq(SeqNo(5))]));
    assert!(matches!(codec::decode(&[100, 1, 9]), Err(codec::BadEdits::Unknown(_))));
    assert!(matches!(codec::decode(&[18, 2, 5, 5]), Err(codec::BadEdits::Malformed(_))));
    let huge_count = [8, 6, 0, 0xff, 0xff, 0xff, 0xff, 0x0f];
    assert!(matches!(codec::decode(&huge_count), Err(codec::BadEdits::Malformed(_))));
}

#[test]
fn a_newer_store_is_refused_by_name() {
    let fs = new_fs(7);
    let (manifest, _) = with_history(&fs, 3, &mut Rng::new(7));
    let root = Root { must_understand: 1 << 5, ..*manifest.superblock.root() };
    let mut superblock = Superblock::open(&fs, &dir()).unwrap();
    superblock.write(root).unwrap();
    let error = open(&fs).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("newer version"), "{error}");
    superblock.write(Root { must_understand: 0, may_ignore: 1 << 9, ..root }).unwrap();
    let again = open(&fs).unwrap();
    assert_eq!(again.superblock.root().may_ignore, 1 << 9, "what may be ignored is kept");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Format 1, byte for byte: what `docs/format/manifest.md` says. A change here needs a new format version.
#[test]
fn format_1_does_not_change() {
    let fs = new_fs(8);
    let mut manifest = create(&fs).unwrap();
    let order = RunOrder(3);
    let file = text::parse_file("9:a-m:2K:5:1@seq=1..300,created=7,oldest=6,entered=8,raw=99", order).unwrap();
    manifest
        .commit(&[
            ManifestEdit::CreateKeyspace {
                id: KeyspaceId(0),
                name: "default".to_owned(),
                options_text: "o".to_owned(),
            },
            ManifestEdit::Version(
                KeyspaceId(0),
                VersionEdit { removed: vec![], added: vec![(LevelId(1), order, Arc::new(file))] },
            ),
            ManifestEdit::Flushed(KeyspaceId(0), SeqNo(300)),
        ])
        .unwrap();
    let manifest = fs.read_all(dir().join("MANIFEST-000001")).unwrap();
    let superblock = fs.read_all(dir().join("SUPERBLOCK")).unwrap();
    assert_eq!(superblock.len(), 8192);
    let tail = |slot: usize| hex(&superblock[slot * 4096 + 4088..(slot + 1) * 4096]);
    let found = [hex(&manifest), hex(&superblock[..76]), tail(0), hex(&superblock[4096..4096 + 76]), tail(1)];
    assert_eq!(found, EXPECTED);
}

const EXPECTED: [&str; 5] = [
    "53696c744d616e0a01000000000000004d00000000000000000000000000000001000000000000000500000000000000bab4d88a04c8b07a0c0000000e0100100100120100140100cedda0c62b000000020b000764656661756c74016f0817000001010311098010050100630161016d01ac020707080a0300ac02",
    "53696c74526f6f740100000000000000000000000000000000000000000000004d00000000000000000000000000000002000000000000000100000000000000480000000000000004c8b07a",
    "000000006e60ea74",
    "53696c74526f6f740100000000000000000000000000000000000000000000004d000000000000000000000000000000030000000000000001000000000000007b00000000000000cedda0c6",
    "0000000088dcb330",
];
