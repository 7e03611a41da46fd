//! What every [`Fs`] must do, asked of the real one and of the simulated one.

use super::super::sim::{SimClock, SimFs};
use super::*;
use crate::io::{IoClass, Rng};

const CTX: IoCtx = IoCtx::foreground(IoClass::Meta);

fn kinds<T>(result: io::Result<T>) -> ErrorKind {
    result.err().map_or(ErrorKind::Other, |error| error.kind())
}

fn names(fs: &dyn Fs, dir: &Path) -> Vec<(String, u64, bool)> {
    let mut entries = fs.list(dir, CTX).unwrap();
    entries.sort();
    entries.into_iter().map(|entry| (entry.name, entry.bytes, entry.is_dir)).collect()
}

fn conformance(fs: &dyn Fs, root: &Path) {
    folders_and_names(fs, &root.join("names"));
    for direct in [false, true] {
        appends_and_reads(fs, &root.join(format!("data-{direct}")), direct);
    }
    slots(fs, &root.join("slots"));
    log_segments(fs, &root.join("log"));
    written_over(fs, &root.join("over"));
    locks(fs, &root.join("locks"));
}

fn folders_and_names(fs: &dyn Fs, dir: &Path) {
    let path = |name: &str| dir.join(name);
    fs.create_dir_all(&path("a/b"), CTX).unwrap();
    fs.create_dir_all(&path("a/b"), CTX).unwrap();
    assert!(fs.exists(&path("a"), CTX).unwrap() && !fs.exists(&path("x"), CTX).unwrap());
    assert_eq!(names(fs, dir), [("a".to_owned(), 0, true)]);
    assert_eq!(kinds(fs.list(&path("x"), CTX)), ErrorKind::NotFound);
    assert_eq!(kinds(fs.remove_dir(&path("a"), CTX)), ErrorKind::DirectoryNotEmpty);
    fs.remove_dir(&path("a/b"), CTX).unwrap();
    assert_eq!(kinds(fs.remove_dir(&path("a/b"), CTX)), ErrorKind::NotFound);

    let options = CreateOptions::default();
    let mut file = fs.create(&path("one"), options, CTX).unwrap();
    file.append(b"1", CTX).unwrap();
    assert_eq!(kinds(fs.create(&path("one"), options, CTX)), ErrorKind::AlreadyExists);
    assert_eq!(kinds(fs.create(&path("a"), options, CTX)), ErrorKind::AlreadyExists);
    assert_eq!(kinds(fs.create(&path("no/file"), options, CTX)), ErrorKind::NotFound);
    assert_eq!(kinds(fs.create_dir_all(&path("one/b"), CTX)), ErrorKind::NotADirectory);
    fs.create(&path("two"), options, CTX).unwrap().append(b"22", CTX).unwrap();
    fs.hard_link(&path("one"), &path("link"), CTX).unwrap();
    assert_eq!(kinds(fs.hard_link(&path("two"), &path("link"), CTX)), ErrorKind::AlreadyExists);
    assert_eq!(kinds(fs.hard_link(&path("x"), &path("y"), CTX)), ErrorKind::NotFound);
    assert_eq!(kinds(fs.rename(&path("x"), &path("y"), CTX)), ErrorKind::NotFound);
    fs.rename(&path("two"), &path("one"), CTX).unwrap();
    fs.rename(&path("one"), &path("a/three"), CTX).unwrap();
    // The link still is the file that the rename replaced; the handle writes to it.
    file.append(b"1", CTX).unwrap();
    file.append(b"1", CTX).unwrap();
    assert_eq!(names(fs, dir), [("a".to_owned(), 0, true), ("link".to_owned(), 3, false)]);
    assert_eq!(names(fs, &path("a")), [("three".to_owned(), 2, false)]);

    let open = fs.open(&path("link"), OpenOptions::default(), CTX).unwrap();
    fs.remove_file(&path("link"), CTX).unwrap();
    assert_eq!(kinds(fs.remove_file(&path("link"), CTX)), ErrorKind::NotFound);
    let mut buf = [0; 3];
    open.read_exact_at(&mut buf, 0, CTX).unwrap();
    assert_eq!(&buf, b"111");
    assert_eq!(kinds(fs.open(&path("link"), OpenOptions::default(), CTX)), ErrorKind::NotFound);
    assert!(fs.open(&path("a"), OpenOptions::default(), CTX).is_err(), "a folder is no file");
    fs.sync_dir(dir, CTX).unwrap();
    assert_eq!(kinds(fs.sync_dir(&path("x"), CTX)), ErrorKind::NotFound);
    assert!(fs.free_bytes(dir).unwrap() > 0);
}

fn appends_and_reads(fs: &dyn Fs, dir: &Path, direct: bool) {
    fs.create_dir_all(dir, CTX).unwrap();
    let path = dir.join("file");
    let mut rng = Rng::new(7);
    let mut file = fs.create(&path, CreateOptions { direct }, CTX).unwrap();
    let mut model: Vec<u8> = Vec::new();
    file.sync(CTX).unwrap();
    for round in 0..40u64 {
        let len = [0, 1, 511, 4096, 4097, 70_000, 3_000_000][to_usize(rng.below(if round < 35 { 6 } else { 7 }))];
        let data: Vec<u8> = (0..len).map(|i| u8::try_from((i + round) % 251).unwrap()).collect();
        file.append(&data, CTX).unwrap();
        model.extend_from_slice(&data);
        assert_eq!(file.bytes(), to_u64(model.len()));
        if rng.one_in(3) {
            file.sync(CTX).unwrap();
            assert_eq!(names(fs, dir), [("file".to_owned(), to_u64(model.len()), false)]);
            check_reads(fs, &path, &model, &mut rng);
        }
    }
    file.sync(CTX).unwrap();
    drop(file);
    check_reads(fs, &path, &model, &mut rng);
}

fn check_reads(fs: &dyn Fs, path: &Path, model: &[u8], rng: &mut Rng) {
    let len = to_u64(model.len());
    for options in [(false, false), (false, true), (true, false), (true, true)] {
        let options = OpenOptions { direct: options.0, random: options.1 };
        let file = fs.open(path, options, CTX).unwrap();
        assert_eq!(file.bytes(), len);
        let mut whole = vec![1; model.len()];
        file.read_exact_at(&mut whole, 0, CTX).unwrap();
        assert!(whole == model, "{options:?}");
        for _ in 0..20 {
            let start = rng.below(len + 1);
            let piece = rng.below((len - start).min(20_000) + 1);
            let mut buf = vec![1; to_usize(piece)];
            file.read_exact_at(&mut buf, start, CTX).unwrap();
            assert!(buf == model[to_usize(start)..to_usize(start + piece)], "{options:?} {start} {piece}");
        }
        for (start, piece) in [(len, 1), (len.saturating_sub(1), 2), (len + 5000, 1)] {
            let eof = file.read_exact_at(&mut vec![0; piece], start, CTX);
            assert_eq!(kinds(eof), ErrorKind::UnexpectedEof, "{options:?} {start} {piece}");
        }
        assert!(file.read_exact_at(&mut [0; 9], u64::MAX - 3, CTX).is_err());
    }
}

fn slots(fs: &dyn Fs, dir: &Path) {
    fs.create_dir_all(dir, CTX).unwrap();
    let path = dir.join("slots");
    assert_eq!(kinds(fs.open_slots(&path, 2, 4096, false, CTX)), ErrorKind::NotFound);
    let mut file = fs.open_slots(&path, 2, 4096, true, CTX).unwrap();
    assert_eq!(kinds(fs.open_slots(&path, 2, 4096, true, CTX)), ErrorKind::AlreadyExists);
    let mut buf = [1; 4096];
    file.read(1, &mut buf, CTX).unwrap();
    assert_eq!(buf, [0; 4096]);
    file.write(1, &[7; 4096], CTX).unwrap();
    file.sync(CTX).unwrap();
    for wrong in [file.write(2, &[0; 4096], CTX), file.write(0, &[0; 10], CTX), file.read(2, &mut buf, CTX)] {
        assert_eq!(kinds(wrong), ErrorKind::InvalidInput);
    }
    drop(file);
    let mut file = fs.open_slots(&path, 2, 4096, false, CTX).unwrap();
    file.read(1, &mut buf, CTX).unwrap();
    assert_eq!(buf, [7; 4096]);
    file.write(0, &[8; 4096], CTX).unwrap();
    file.read(0, &mut buf, CTX).unwrap();
    assert_eq!(buf, [8; 4096]);
    assert_eq!(names(fs, dir), [("slots".to_owned(), 8192, false)]);
}

fn log_segments(fs: &dyn Fs, dir: &Path) {
    const BYTES: u64 = 100_000;
    fs.create_dir_all(dir, CTX).unwrap();
    let path = dir.join("1.log");
    let mut segment = fs.create_log(&path, BYTES, &[], CTX).unwrap();
    assert_eq!(kinds(fs.create_log(&path, BYTES, &[], CTX)), ErrorKind::AlreadyExists);
    assert!(fs.create_log(&dir.join("2.log"), 0, &[], CTX).is_err());
    assert_eq!(to_u64(segment.memory.bytes_mut().len()), BYTES);
    let mut model = vec![0; to_usize(BYTES)];
    for (offset, len) in [(0, 10), (10, 4096), (50_000, 3), (99_999, 1)] {
        let data = vec![9; len];
        segment.memory.bytes_mut()[offset..offset + len].copy_from_slice(&data);
        segment.file.written(to_u64(offset), &data, CTX);
        model[offset..offset + len].copy_from_slice(&data);
    }
    segment.file.sync(CTX).unwrap();
    drop(segment);
    let file = fs.open(&path, OpenOptions::default(), CTX).unwrap();
    let mut bytes = vec![1; model.len()];
    file.read_exact_at(&mut bytes, 0, CTX).unwrap();
    assert!(bytes == model);
}

fn written_over(fs: &dyn Fs, dir: &Path) {
    fs.create_dir_all(dir, CTX).unwrap();
    let path = |name: &str| dir.join(name);
    let contents = |name: &str| {
        let file = fs.open(&path(name), OpenOptions::default(), CTX).unwrap();
        let mut bytes = vec![0; to_usize(file.bytes())];
        file.read_exact_at(&mut bytes, 0, CTX).unwrap();
        String::from_utf8(bytes).unwrap()
    };
    let uncut = |old: &str, new: &str, what: &str| {
        let mut file = fs.create_over(&path(old), &path(new), CTX).unwrap();
        what.as_bytes().chunks(3).for_each(|piece| file.append(piece, CTX).unwrap());
        file.sync(CTX).unwrap();
        file
    };
    let over = |old: &str, new: &str, what: &str| {
        let mut file = uncut(old, new, what);
        file.cut(CTX).unwrap();
        file.sync(CTX).unwrap();
        assert_eq!(file.bytes(), to_u64(what.len()));
        drop(file);
        assert_eq!(contents(new), what);
    };
    fs.create(&path("1"), CreateOptions::default(), CTX).unwrap().append(b"0123456789", CTX).unwrap();
    drop(uncut("1", "0", "abcdef"));
    assert_eq!(contents("0"), "abcdef6789", "shorter: the rest stays until the cut");
    over("0", "2", "ABC");
    over("2", "3", "a longer one");
    assert_eq!(names(fs, dir), [("3".to_owned(), 12, false)]);
    assert_eq!(kinds(fs.create_over(&path("2"), &path("4"), CTX)), ErrorKind::NotFound);
    // What has another name stays there.
    fs.hard_link(&path("3"), &path("link"), CTX).unwrap();
    over("3", "4", "short");
    assert_eq!(contents("link"), "a longer one");
    // What is being read stays as it is until it is closed.
    let reader = fs.open(&path("4"), OpenOptions::default(), CTX).unwrap();
    over("4", "5", "another");
    let mut bytes = [0; 5];
    reader.read_exact_at(&mut bytes, 0, CTX).unwrap();
    assert_eq!(&bytes, b"short");
    drop(reader);
    fs.rename(&path("5"), &path("4"), CTX).unwrap();
    over("4", "6", "short");
    fs.rename(&path("6"), &path("4"), CTX).unwrap();
    assert_eq!(kinds(fs.create_over(&path("link"), &path("4"), CTX)), ErrorKind::AlreadyExists);
    assert_eq!((contents("link").as_str(), contents("4").as_str()), ("a longer one", "short"));
    fs.remove_file(&path("link"), CTX).unwrap();
    fs.remove_file(&path("4"), CTX).unwrap();

    const BYTES: u64 = 20_000;
    let mut segment = fs.create_log(&path("1"), BYTES, b"the first", CTX).unwrap();
    // Only what is in memory is written over.
    segment.file.prepare(0..BYTES);
    segment.memory.bytes_mut()[9000..9004].copy_from_slice(b"data");
    segment.file.written(9000, b"data", CTX);
    drop(segment);
    assert!(fs.create_log_over(&path("1"), &path("2"), BYTES - 1, b"x", CTX).is_err(), "of another size");
    let reader = fs.open(&path("1"), OpenOptions::default(), CTX).unwrap();
    assert!(fs.create_log_over(&path("1"), &path("2"), BYTES, b"x", CTX).is_err(), "being read");
    drop(reader);
    fs.hard_link(&path("1"), &path("link"), CTX).unwrap();
    assert!(fs.create_log_over(&path("1"), &path("2"), BYTES, b"x", CTX).is_err(), "with two names");
    fs.remove_file(&path("link"), CTX).unwrap();
    let mut segment = fs.create_log_over(&path("1"), &path("2"), BYTES, b"another", CTX).unwrap();
    segment.file.prepare(0..BYTES);
    // A part, and what is not there.
    segment.file.prepare(8192..BYTES);
    segment.file.prepare(BYTES..2 * BYTES);
    segment.file.prepare(1 << 40..2 << 40);
    assert_eq!(names(fs, dir), [("2".to_owned(), BYTES, false)]);
    segment.memory.bytes_mut()[7..9].copy_from_slice(b"!!");
    segment.file.written(7, b"!!", CTX);
    segment.file.sync(CTX).unwrap();
    let model = |at: std::ops::Range<usize>| contents("2")[at].to_owned();
    assert_eq!((model(0..10), model(8999..9005)), ("another!!\0".to_owned(), "\0data\0".to_owned()));
    assert_eq!(&segment.memory.bytes_mut()[..9], b"another!!");
    drop(segment.memory);
    segment.file.prepare(0..BYTES);
    segment.file.sync(CTX).unwrap();
    assert_eq!((model(0..10), model(8999..9005)), ("another!!\0".to_owned(), "\0data\0".to_owned()));
}

fn locks(fs: &dyn Fs, dir: &Path) {
    fs.create_dir_all(dir, CTX).unwrap();
    let path = dir.join("LOCK");
    let lock = fs.lock(&path, CTX).unwrap();
    assert_eq!(kinds(fs.lock(&path, CTX)), ErrorKind::WouldBlock);
    assert_eq!(kinds(fs.lock(&dir.join("../locks/LOCK"), CTX)), ErrorKind::WouldBlock);
    drop(lock);
    drop(fs.lock(&path, CTX).unwrap());
    assert_eq!(names(fs, dir), [("LOCK".to_owned(), 0, false)]);
}

#[test]
fn the_real_one_conforms() {
    let dir = tempfile::tempdir().unwrap();
    conformance(&RealFs, dir.path());
}

#[test]
fn the_real_one_conforms_on_tmpfs() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        return;
    };
    conformance(&RealFs, dir.path());
}

#[test]
fn the_simulated_one_conforms() {
    let fs = SimFs::new(&SimClock::new(), 1);
    conformance(&fs, Path::new("/store"));
    assert_eq!(fs.open_handles(), 0);
    let total: u64 = fs.files().iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(fs.used_bytes(), total);
}

#[test]
fn files_are_private_and_symbolic_links_are_not_followed() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    RealFs.create_dir_all(&path("sub"), CTX).unwrap();
    drop(RealFs.create(&path("file"), CreateOptions::default(), CTX).unwrap());
    drop(RealFs.lock(&path("LOCK"), CTX).unwrap());
    for (name, mode) in [("sub", 0o700), ("file", 0o600), ("LOCK", 0o600)] {
        let found = std::fs::metadata(path(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(found & !mode, 0, "{name}: {found:o}");
    }
    std::os::unix::fs::symlink(path("target"), path("dangling")).unwrap();
    assert!(RealFs.create(&path("dangling"), CreateOptions::default(), CTX).is_err());
    assert!(RealFs.create_log(&path("dangling"), 4096, &[], CTX).is_err());
    assert!(RealFs.lock(&path("dangling"), CTX).is_err());
    assert!(!path("target").exists());
}

/// A segment that does not fit must fail when it is made, and leave nothing; not kill the process at a store to memory.
#[test]
fn a_segment_that_does_not_fit_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("1.log");
    assert!(RealFs.create_log(&path, 1 << 55, &[], CTX).is_err());
    assert!(names(&RealFs, dir.path()).is_empty());
}

/// A child that was forked and does not run its own program yet has the same open files. Closing them did not give up their locks: a table that was
/// just made over another one was called missing, and a store that was just closed was locked.
#[test]
fn a_forked_child_keeps_no_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    RealFs.create(&path("1"), CreateOptions::default(), CTX).unwrap().append(b"old", CTX).unwrap();
    let (file, _) = open_own(&path("1")).unwrap().unwrap();
    // It shares the lock as a child's copy does.
    let of_child = file.try_clone().unwrap();
    let writer = Appender { file, bytes: 0, begun: 0, old_bytes: 3 };
    let open = || RealFs.open(&path("1"), OpenOptions::default(), CTX);
    assert_eq!(kinds(open()), ErrorKind::WouldBlock, "it is there, and is being written over");
    drop(writer);
    assert_eq!(open().unwrap().bytes(), 3);

    let lock = Lock::take(&path("LOCK")).unwrap();
    let of_child = (of_child, lock.file.try_clone().unwrap());
    drop(lock);
    assert!(Lock::take(&path("LOCK")).is_ok());
    drop(of_child);
}

/// Storing to a page that is not there reads it first: that is dearer than a new one.
#[test]
fn what_is_not_in_memory_any_more_is_not_written_over() {
    const BYTES: u64 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let write = |name: &str| {
        let mut file = RealFs.create(&path(name), CreateOptions::default(), CTX).unwrap();
        file.append(&vec![1; to_usize(BYTES)], CTX).unwrap();
        file.sync(CTX).unwrap();
    };
    let is_forgotten = |name: &str| {
        let file = File::open(path(name)).unwrap();
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        let mut byte = [0];
        rustix::io::preadv2(&file, &mut [IoSliceMut::new(&mut byte)], BYTES / 2, ReadWriteFlags::NOWAIT).is_err()
    };
    ["1", "2", "3", "4"].into_iter().for_each(write);
    drop(RealFs.create_over(&path("1"), &path("over"), CTX).unwrap());
    drop(RealFs.create_log_over(&path("2"), &path("log"), BYTES, b"x", CTX).unwrap());
    let bytes = |name: &str| std::fs::metadata(path(name)).unwrap().len();
    assert_eq!((bytes("over"), bytes("log")), (BYTES, BYTES), "not cut yet");

    // Some file systems keep all of it, whatever they are advised.
    if is_forgotten("3") && is_forgotten("4") {
        drop(RealFs.create_over(&path("3"), &path("new"), CTX).unwrap());
        assert_eq!(bytes("new"), 0);
        assert!(RealFs.create_log_over(&path("4"), &path("5"), BYTES, b"x", CTX).is_err());
    }
}
