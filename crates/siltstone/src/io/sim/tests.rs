//! The simulated file system against a model of a few lines, and the promises of each crash profile against what the model knows.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::super::{
    Clock, CreateOptions, Executor, Fs, IoClass, IoCtx, Lane, LaneId, LaneStep, LogSegment, OpenOptions, Rng, SlotFile,
    Workers, WritableFile,
};
use super::*;
use crate::num::{to_u64, to_usize};

const CTX: IoCtx = IoCtx::foreground(IoClass::Flush);
const DIR: &str = "/db";
const SECTOR: usize = 512;
const SLOT: usize = 1024;

type Files = BTreeMap<PathBuf, Vec<u8>>;

fn contents(fs: &SimFs) -> Files {
    fs.files().into_iter().map(|(path, _)| (path.clone(), fs.read_all(&path).unwrap())).collect()
}

fn empty_db() -> SimFs {
    let fs = SimFs::new(&SimClock::new(), 1);
    fs.create_dir_all(Path::new(DIR), CTX).unwrap();
    fs.sync_dir(Path::new("/"), CTX).unwrap();
    fs
}

fn create(fs: &SimFs, path: &str) -> Box<dyn WritableFile> {
    fs.create(Path::new(path), CreateOptions::default(), CTX).unwrap()
}

enum Handle {
    Append(Box<dyn WritableFile>),
    /// Over what the file held before.
    Over(Box<dyn WritableFile>),
    Slots(Box<dyn SlotFile>),
    Log(LogSegment, u64),
}

/// A file as the model has it: what is in it, what was when it was last synced, and all that it was since.
struct ModelFile {
    handle: Handle,
    data: Vec<u8>,
    synced: Vec<u8>,
    since: Vec<Vec<u8>>,
}

/// Random operations on one folder, done to a [`SimFs`] and to a model.
struct Run {
    fs: SimFs,
    rng: Rng,
    files: Vec<ModelFile>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    /// Names that changed since the folder was synced.
    touched: Vec<PathBuf>,
    syncs: bool,
}

impl Run {
    fn new(seed: u64, syncs: bool) -> Run {
        Run {
            fs: empty_db(),
            rng: Rng::new(seed),
            files: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            touched: Vec::new(),
            syncs,
        }
    }

    fn some_name(&mut self) -> Option<(PathBuf, usize)> {
        let n = self.rng.below(to_u64(self.names.len()).max(1));
        self.names.iter().nth(to_usize(n)).map(|(path, file)| (path.clone(), *file))
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let fill = u8::try_from(self.rng.between(1, 255)).unwrap();
        vec![fill; to_usize(self.rng.between(1, most))]
    }

    fn step(&mut self) {
        let new = Path::new(DIR).join(format!("f{}", self.rng.below(6)));
        match self.rng.below(if self.syncs { 16 } else { 12 }) {
            0 | 1 if !self.names.contains_key(&new) => self.create(new),
            2 => {
                let Some((from, file)) = self.some_name() else {
                    return;
                };
                self.fs.rename(&from, &new, CTX).unwrap();
                if from != new {
                    self.names.remove(&from);
                    self.names.insert(new.clone(), file);
                    self.touched.extend([from, new]);
                }
            }
            3 => {
                let Some((path, _)) = self.some_name() else { return };
                self.fs.remove_file(&path, CTX).unwrap();
                self.names.remove(&path);
                self.touched.push(path);
            }
            4..12 => self.write(),
            12 | 13 => {
                let Some((_, file)) = self.some_name() else { return };
                let file = &mut self.files[file];
                match &mut file.handle {
                    Handle::Append(handle) => handle.sync(CTX).unwrap(),
                    Handle::Over(handle) => {
                        handle.cut(CTX).unwrap();
                        handle.sync(CTX).unwrap();
                        file.data.truncate(to_usize(handle.bytes()));
                    }
                    Handle::Slots(handle) => handle.sync(CTX).unwrap(),
                    Handle::Log(segment, _) => segment.file.sync(CTX).unwrap(),
                }
                file.synced.clone_from(&file.data);
                file.since.clear();
            }
            14 => {
                self.fs.sync_dir(Path::new(DIR), CTX).unwrap();
                self.durable_names.clone_from(&self.names);
                self.touched.clear();
            }
            _ => self.write_over(new),
        }
    }

    /// Begins a file in another one's place.
    fn write_over(&mut self, new: PathBuf) {
        let Some((old, file)) = self.some_name() else { return };
        if self.names.contains_key(&new) || !matches!(self.files[file].handle, Handle::Append(_)) {
            return;
        }
        self.files[file].handle = Handle::Over(self.fs.create_over(&old, &new, CTX).unwrap());
        self.names.remove(&old);
        self.names.insert(new.clone(), file);
        self.touched.extend([old, new]);
    }

    fn create(&mut self, path: PathBuf) {
        let (handle, data) = match self.rng.below(3) {
            0 => (Handle::Append(self.fs.create(&path, CreateOptions::default(), CTX).unwrap()), Vec::new()),
            1 => {
                let slot_bytes = u32::try_from(SLOT).unwrap();
                let file = self.fs.open_slots(&path, 2, slot_bytes, true, CTX).unwrap();
                (Handle::Slots(file), vec![0; 2 * SLOT])
            }
            _ => (Handle::Log(self.fs.create_log(&path, 5000, &[], CTX).unwrap(), 0), vec![0; 5000]),
        };
        self.names.insert(path.clone(), self.files.len());
        self.touched.push(path);
        self.files.push(ModelFile { handle, data, synced: Vec::new(), since: Vec::new() });
    }

    fn write(&mut self) {
        let Some((_, file)) = self.some_name() else { return };
        let (data, slot) = (self.bytes(1500), u32::from(self.rng.one_in(2)));
        let file = &mut self.files[file];
        match &mut file.handle {
            Handle::Append(handle) => {
                handle.append(&data, CTX).unwrap();
                file.data.extend_from_slice(&data);
            }
            Handle::Over(handle) => {
                let start = to_usize(handle.bytes());
                handle.append(&data, CTX).unwrap();
                file.data.resize(file.data.len().max(start + data.len()), 0);
                file.data[start..start + data.len()].copy_from_slice(&data);
            }
            Handle::Slots(handle) => {
                let data = vec![data[0]; SLOT];
                handle.write(slot, &data, CTX).unwrap();
                let start = SLOT * usize::try_from(slot).unwrap();
                file.data[start..start + SLOT].copy_from_slice(&data);
            }
            Handle::Log(segment, at) => {
                // Now and then over the first bytes again, as over a header.
                let start = if slot == 0 && *at > 0 { 0 } else { to_usize(*at) };
                let data = &data[..data.len().min(5000 - start)];
                segment.file.written(to_u64(start), data, CTX);
                file.data[start..start + data.len()].copy_from_slice(data);
                *at = (*at).max(to_u64(start + data.len()));
            }
        }
        file.since.push(file.data.clone());
    }

    fn volatile(&self) -> Files {
        self.names.iter().map(|(path, file)| (path.clone(), self.files[*file].data.clone())).collect()
    }

    fn durable(&self) -> Files {
        self.durable_names.iter().map(|(path, file)| (path.clone(), self.files[*file].synced.clone())).collect()
    }

    /// What holds after any power cut.
    fn check_power_cut(&self, image: &Files, what: &str) {
        for (path, bytes) in image {
            assert!(self.names.contains_key(path) || self.touched.contains(path), "{what}: {path:?} from nowhere");
            assert!(bytes.len() <= 1 << 20, "{what}");
        }
        for (path, file) in &self.durable_names {
            if self.touched.contains(path) {
                continue;
            }
            let (file, found) = (&self.files[*file], image.get(path));
            let found = found.unwrap_or_else(|| panic!("{what}: durable name {path:?} lost"));
            assert!(found.len() >= file.synced.len(), "{what}: {path:?} is shorter than synced");
            assert!(found.len() <= file.data.len(), "{what}: {path:?} is longer than it ever was");
            // Each sector is as it was synced, or as it was at some moment since: old or new, never a mixture.
            for start in (0..file.synced.len()).step_by(SECTOR) {
                let range = start..file.synced.len().min(start + SECTOR);
                let moments = std::iter::once(&file.synced).chain(&file.since);
                let mut sectors = moments.map(|moment| &moment[range.clone()]);
                assert!(sectors.any(|sector| sector == &found[range.clone()]), "{what}: {path:?} at {start}");
            }
        }
    }
}

#[test]
fn it_is_what_the_model_says_and_crashes_keep_what_was_synced() {
    for seed in 0..60 {
        let mut run = Run::new(seed, true);
        for step in 0..150 {
            run.step();
            if step % 10 != 0 {
                continue;
            }
            assert!(contents(&run.fs) == run.volatile(), "seed {seed} step {step}");
            let used: usize = run.volatile().values().map(Vec::len).sum();
            assert!(run.fs.used_bytes() >= to_u64(used), "open files without a name count too");
            for profile in Profile::ALL {
                let what = format!("seed {seed} step {step} {profile:?}");
                let image = run.fs.crash(profile, &mut Rng::new(seed));
                let again = run.fs.crash(profile, &mut Rng::new(seed));
                assert_eq!(image.image_hash(), again.image_hash(), "{what}: equal seeds, equal images");
                match profile {
                    Profile::Kill => {
                        assert!(contents(&image) == run.volatile(), "{what}");
                        let later = image.crash(Profile::Strict, &mut Rng::new(0));
                        assert!(contents(&later) == run.durable(), "{what}: a kill makes nothing durable");
                    }
                    Profile::Strict => assert!(contents(&image) == run.durable(), "{what}"),
                    _ => run.check_power_cut(&contents(&image), &what),
                }
            }
        }
    }
}

#[test]
fn without_syncs_a_prefix_image_is_a_moment_of_the_past() {
    for seed in 0..40 {
        let mut run = Run::new(seed, false);
        let mut moments = vec![run.volatile()];
        let mut found = vec![0; 101];
        for _ in 0..100 {
            run.step();
            moments.push(run.volatile());
        }
        for draw in 0..60 {
            let image = contents(&run.fs.crash(Profile::Prefix, &mut Rng::new(draw)));
            let moment = moments.iter().position(|moment| *moment == image);
            found[moment.unwrap_or_else(|| panic!("seed {seed} draw {draw}: no such moment"))] = 1;
        }
        assert!(found.iter().sum::<usize>() > 10, "the cuts are spread over the run");
    }
}

#[test]
fn images_of_a_recorded_run_are_those_of_a_crash_at_that_time() {
    for seed in 0..15 {
        let mut run = Run::new(seed, true);
        (0..30).for_each(|_| run.step());
        run.fs.record_ops(true);
        let mut expected = BTreeMap::new();
        for _ in 0..100 {
            run.step();
            let strict = run.fs.crash(Profile::Strict, &mut Rng::new(0));
            expected.insert(run.fs.op_count(), (contents(&run.fs), contents(&strict)));
        }
        for profile in [Profile::Kill, Profile::Strict] {
            let images = CrashImages::new(&run.fs, profile, seed);
            assert_eq!(images.images(), run.fs.op_count() + 1);
            for image in images {
                if let Some((volatile, strict)) = expected.get(&image.ops) {
                    let expected = if profile == Profile::Kill { volatile } else { strict };
                    assert!(contents(&image.fs) == *expected, "seed {seed} image {} {profile:?}", image.ops);
                }
            }
        }
        let nasty = |skip| -> Vec<u64> {
            CrashImages::new(&run.fs, Profile::Nasty, seed).skip(skip).map(|image| image.hash).collect()
        };
        assert_eq!(nasty(0)[7..], nasty(7), "skipping images changes none");
    }
}

/// The new file takes the place of the old one by a rename. `forget` is the planted bug.
fn replace(fs: &SimFs, forget: &str) {
    let mut file = create(fs, "/db/new");
    file.append(&[2; 3000], CTX).unwrap();
    if forget != "sync" {
        file.sync(CTX).unwrap();
    }
    fs.rename(Path::new("/db/new"), Path::new("/db/current"), CTX).unwrap();
    if forget != "sync_dir" {
        fs.sync_dir(Path::new(DIR), CTX).unwrap();
    }
}

#[test]
fn a_forgotten_sync_is_caught_and_a_right_protocol_is_not_accused() {
    for forget in ["", "sync", "sync_dir"] {
        for profile in Profile::POWER {
            let mut caught = 0;
            for seed in 0..50 {
                let fs = empty_db();
                fs.write_all("/db/current", &[1; 3000]).unwrap();
                replace(&fs, forget);
                let image = fs.crash(profile, &mut Rng::new(seed));
                match image.read_all("/db/current") {
                    Ok(bytes) if bytes == [2; 3000] => {}
                    Ok(bytes) if bytes == [1; 3000] => caught += 1,
                    // Old or new, never neither, unless the bytes were not synced.
                    other => {
                        assert_eq!(forget, "sync", "{profile:?}: {other:?}");
                        caught += 1;
                    }
                }
            }
            assert_eq!(caught > 0, !forget.is_empty(), "{forget} {profile:?}: caught {caught} of 50");
        }
    }
}

#[test]
fn a_subset_loses_keeps_and_tears() {
    let fs = empty_db();
    let mut file = create(&fs, "/db/a");
    fs.sync_dir(Path::new(DIR), CTX).unwrap();
    file.append(&[1; 700], CTX).unwrap();
    file.sync(CTX).unwrap();
    for fill in 2..8 {
        file.append(&[fill; 700], CTX).unwrap();
    }
    let (mut lengths, mut holes, mut garbage, mut whole) = (BTreeMap::new(), 0, 0, 0);
    for seed in 0..400 {
        let bytes = fs.crash(Profile::Subset, &mut Rng::new(seed)).read_all("/db/a").unwrap();
        assert!(bytes[..700] == [1; 700]);
        *lengths.entry(bytes.len()).or_insert(0) += 1;
        whole += u32::from(
            bytes.len() == 4900 && bytes.iter().enumerate().all(|(at, byte)| to_usize((*byte).into()) == at / 700 + 1),
        );
        holes += u32::from(bytes.chunks(SECTOR).any(|sector| sector.iter().all(|byte| *byte == 0)));
        garbage += u32::from(bytes.iter().any(|byte| *byte > 8));
    }
    assert!(lengths.len() > 8 && lengths.contains_key(&700) && whole > 10, "{lengths:?} {whole}");
    assert!(holes > 20 && garbage > 10, "{holes} {garbage}");
}

#[test]
fn each_effect_of_a_failed_sync() {
    for effect in [Effect::Nothing, Effect::Full, Effect::Revert] {
        let fs = empty_db();
        let mut file = create(&fs, "/db/a");
        fs.sync_dir(Path::new(DIR), CTX).unwrap();
        file.append(b"old", CTX).unwrap();
        file.sync(CTX).unwrap();
        file.append(b"new", CTX).unwrap();
        fs.record_ops(true);
        fs.set_fault(Fault::nth(1, Errno::Io).of(CallKind::Sync).effect(effect));
        assert!(file.sync(CTX).is_err());
        let read = fs.read_all("/db/a").unwrap();
        // The second sync succeeds, and proves nothing.
        file.sync(CTX).unwrap();
        let strict = fs.crash(Profile::Strict, &mut Rng::new(0)).read_all("/db/a").unwrap();
        let (visible, durable): (&[u8], &[u8]) = match effect {
            Effect::Full => (b"oldnew", b"oldnew"),
            Effect::Revert => (b"old", b"old"),
            _ => (b"oldnew", b"old"),
        };
        assert_eq!((&*read, &*strict), (visible, durable), "{effect:?}");
        assert_eq!(fs.durability("/db/a").unwrap().data, effect != Effect::Nothing);
        let mut came_back = 0;
        for seed in 0..100 {
            let nasty = fs.crash(Profile::Nasty, &mut Rng::new(seed)).read_all("/db/a").unwrap();
            assert!(nasty.starts_with(b"old"));
            came_back += u32::from(nasty == b"oldnew");
        }
        assert_eq!(came_back > 0, effect != Effect::Revert, "{effect:?}");
        let kinds: Vec<_> = fs.op_log().iter().map(|op| (op.kind, op.data_durable)).collect();
        assert_eq!(kinds, [(OpKind::SyncFailed, false), (OpKind::Sync, effect != Effect::Nothing)]);
    }
}

#[test]
fn faults_hit_the_calls_that_were_meant() {
    let fs = empty_db();
    let path = Path::new("/db/x.sst");
    fs.set_fault(
        Fault::nth(2, Errno::Io).of(CallKind::Append).suffix(".sst").class(IoClass::Flush).effect(Effect::Partial),
    );
    let (mut file, mut other) = (create(&fs, "/db/x.sst"), create(&fs, "/db/y.log"));
    other.append(&[0; 10], CTX).unwrap();
    file.append(&[1; 100], IoCtx::foreground(IoClass::Meta)).unwrap();
    file.append(&[1; 100], CTX).unwrap();
    assert!(file.append(&[1; 100], CTX).is_err());
    file.append(&[1; 1], CTX).unwrap();
    assert!((201..302).contains(&fs.read_all(path).unwrap().len()));
    assert_eq!((fs.faults_hit(), fs.calls_of(CallKind::Append)), (1, 5));

    fs.set_fault(Fault::nth(1, Errno::TooManyFiles).of(CallKind::Open).sticky());
    for _ in 0..3 {
        let error = fs.open(path, OpenOptions::default(), CTX).err().unwrap();
        assert_eq!(error.raw_os_error(), Some(24));
    }
    fs.clear_faults();
    assert!(fs.open(path, OpenOptions::default(), CTX).is_ok());

    let before = fs.clock().mono_ns();
    fs.set_fault(Fault::stall(1, 30_000_000_000));
    file.append(&[1], CTX).unwrap();
    assert_eq!(fs.clock().mono_ns() - before, 30_000_000_000);

    fs.set_fault(Fault::nth(1, Errno::Io).of(CallKind::Rename).effect(Effect::Full));
    assert!(fs.rename(path, Path::new("/db/z"), CTX).is_err());
    assert!(fs.exists(Path::new("/db/z"), CTX).unwrap(), "it failed and was done");

    fs.set_fault(Fault::nth(1, Errno::Io).of(CallKind::Create).effect(Effect::Full));
    assert!(fs.create(Path::new("/db/w"), CreateOptions::default(), CTX).is_err());
    drop((file, other));
    assert_eq!(fs.open_handles(), 0);
}

#[test]
fn a_full_disk_takes_what_fits_and_deleting_helps() {
    let fs = empty_db();
    fs.set_capacity(Some(1000));
    let mut file = create(&fs, "/db/a");
    file.append(&[1; 600], CTX).unwrap();
    let error = file.append(&[1; 600], CTX).unwrap_err();
    assert_eq!((error.kind(), fs.free_bytes(Path::new(DIR)).unwrap()), (ErrorKind::StorageFull, 0));
    assert!(fs.create_log(Path::new("/db/log"), 1, &[], CTX).is_err());
    assert!(!fs.exists(Path::new("/db/log"), CTX).unwrap());
    fs.remove_file(Path::new("/db/a"), CTX).unwrap();
    assert_eq!(fs.used_bytes(), 1000, "it is open still");
    drop(file);
    assert_eq!(fs.used_bytes(), 0);
    assert!(fs.create_log(Path::new("/db/log"), 1000, &[], CTX).is_ok());
    assert_eq!(fs.crash(Profile::Kill, &mut Rng::new(0)).used_bytes(), 1000);
}

#[test]
fn the_read_only_role_changes_nothing_and_tells() {
    let fs = empty_db();
    fs.write_all("/db/a", b"a").unwrap();
    fs.write_all("/db/LOCK", b"").unwrap();
    let mut segment = fs.create_log(Path::new("/db/log"), 10, &[], CTX).unwrap();
    let before = fs.image_hash();
    fs.set_read_only(true);
    let path = Path::new("/db/a");
    assert!(fs.open(path, OpenOptions::default(), CTX).is_ok());
    assert!(fs.create_dir_all(Path::new(DIR), CTX).is_ok() && fs.lock(Path::new("/db/LOCK"), CTX).is_ok());
    assert_eq!(fs.violations(), Vec::<String>::new());
    assert!(fs.remove_file(path, CTX).is_err());
    assert!(fs.create(Path::new("/db/b"), CreateOptions::default(), CTX).is_err());
    segment.memory.bytes_mut()[0] = 1;
    segment.file.written(0, &[1], CTX);
    assert_eq!((fs.violations().len(), fs.image_hash()), (3, before));
}

#[test]
fn damage_stays_through_a_crash_and_copies_are_apart() {
    let fs = empty_db();
    fs.write_all("/db/a", &[0; 4]).unwrap();
    let copy = fs.clone_image();
    copy.flip_bit("/db/a", 9).unwrap();
    copy.truncate("/db/a", 3).unwrap();
    let crashed = copy.crash(Profile::Strict, &mut Rng::new(0));
    assert_eq!(crashed.read_all("/db/a").unwrap(), [0, 2, 0]);
    assert_eq!(fs.read_all("/db/a").unwrap(), [0; 4]);
    assert!(copy.flip_bit("/db/a", 24).is_err());
    copy.remove_all("/db/a").unwrap();
    assert!(copy.crash(Profile::Nasty, &mut Rng::new(0)).files().is_empty());
}

#[test]
fn the_device_is_charged_and_classes_are_counted() {
    let fs = empty_db();
    fs.set_device(Some(Device {
        bandwidth_bytes_per_s: 1_000_000,
        iops: 1000,
        latency_ns: 500,
        sync_ns: 7,
        ..Device::default()
    }));
    let start = fs.clock().mono_ns();
    let passed = || fs.clock().mono_ns() - start;
    let mut file = create(&fs, "/db/a");
    file.append(&[0; 2000], CTX).unwrap();
    assert_eq!(passed(), 500 + 2_000_000);
    file.append(&[0; 1], CTX).unwrap();
    assert_eq!(passed(), 2 * 500 + 3_000_000, "a small call costs its share of the calls a second");
    file.sync(CTX).unwrap();
    assert_eq!(passed(), 3_001_007);
    let log = IoCtx::foreground(IoClass::Log);
    fs.create_log(Path::new("/db/log"), 100, &[], log).unwrap().file.written(0, &[1; 100], log);
    assert_eq!(passed(), 3_101_007);
    let counted = [(IoClass::Log, 100, 0), (IoClass::Flush, 2001, 1)];
    let found: Vec<_> = fs.bytes_by_class().iter().map(|(class, bytes)| (*class, bytes.written, bytes.syncs)).collect();
    // The folder's sync in the set-up was for the same class.
    assert_eq!(found, counted.map(|(class, written, syncs)| (class, written, syncs + u64::from(syncs > 0))));
}

#[test]
fn traces_tell_runs_apart() {
    let trace = |seed, byte| {
        let mut run = Run::new(seed, true);
        (0..50).for_each(|_| run.step());
        create(&run.fs, "/db/last").append(&[byte], CTX).unwrap();
        run.fs.trace_hash()
    };
    assert_eq!(trace(1, 1), trace(1, 1));
    assert_ne!(trace(1, 1), trace(1, 2));
    assert_ne!(trace(1, 1), trace(2, 1));
}

fn lane(name: &str, step: impl Fn() -> LaneStep + Send + Sync + 'static) -> Lane {
    Lane { name: name.to_owned(), nice: 0, step: Arc::new(step) }
}

/// Workers that their own lanes can call.
type Known = Arc<Mutex<Option<Arc<dyn Workers>>>>;

fn notify(workers: &Known) {
    let workers = workers.lock().clone();
    workers.iter().for_each(|workers| workers.notify());
}

#[test]
fn waiting_runs_lanes_and_knows_a_deadlock() {
    let clock = SimClock::new();
    let executor = SimExecutor::new(&clock, 1);
    let count = Arc::new(AtomicU64::new(0));
    let (counter, known) = (count.clone(), Known::default());
    let teller = known.clone();
    let step = move || {
        let said = match counter.fetch_add(1, Ordering::Relaxed) {
            0..5 => LaneStep::Worked,
            5 => LaneStep::IdleFor(Duration::from_secs(3)),
            _ => LaneStep::Idle,
        };
        notify(&teller);
        said
    };
    let workers: Arc<dyn Workers> = Arc::from(executor.start(vec![lane("counter", step)]).unwrap());
    *known.lock() = Some(workers.clone());
    let start = clock.mono_ns();
    workers.wait(&mut || count.load(Ordering::Relaxed) >= 7).unwrap();
    assert!(clock.mono_ns() - start >= 3_000_000_000, "the clock went on to the deadline");
    let deadlock = workers.wait(&mut || false).unwrap_err();
    assert!(deadlock.what().contains("deadlock"));
    assert!(!executor.step_random());
    known.lock().take();
    workers.wake(LaneId(0));
    workers.sleep(Duration::from_secs(1));
    assert_eq!(count.load(Ordering::Relaxed), 8);
    workers.wake(LaneId(0));
    workers.stop();
    assert!(!executor.step_random());
    assert_eq!(Arc::strong_count(&count), 1, "a stopped lane lets go of what it held");

    // The executor can be started again; who belongs to the stopped store has no say any more.
    let again = executor.start(vec![lane("again", || LaneStep::Idle)]).unwrap();
    assert!(executor.step_random() && !executor.step_random());
    workers.wake(LaneId(0));
    workers.stop();
    assert!(!executor.step_random());
    again.wake(LaneId(0));
    assert!(executor.step_random());
}

/// A thread that waits would sleep on.
#[test]
fn who_waits_is_not_asked_before_he_is_told() {
    let executor = SimExecutor::new(&SimClock::new(), 1);
    let count = Arc::new(AtomicU64::new(0));
    let counter = count.clone();
    let step = move || {
        counter.fetch_add(1, Ordering::Relaxed);
        LaneStep::Idle
    };
    let workers = executor.start(vec![lane("silent", step)]).unwrap();
    let deadlock = workers.wait(&mut || count.load(Ordering::Relaxed) > 0).unwrap_err();
    assert!(deadlock.what().contains("deadlock"));
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

#[test]
fn a_step_may_wake_and_wait_and_is_not_entered_twice() {
    let clock = SimClock::new();
    let executor = SimExecutor::new(&clock, 3);
    let workers = Known::default();
    let (inside, helped) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (of_lane, entered, help) = (workers.clone(), inside.clone(), helped.clone());
    let waiter = lane("waiter", move || {
        assert_eq!(entered.fetch_add(1, Ordering::Relaxed), 0, "entered twice");
        let workers = of_lane.lock().clone().unwrap();
        let before = help.load(Ordering::Relaxed);
        workers.wake(LaneId(0));
        workers.wake(LaneId(1));
        workers.notify();
        workers.wait(&mut || help.load(Ordering::Relaxed) > before).unwrap();
        entered.fetch_sub(1, Ordering::Relaxed);
        LaneStep::Idle
    });
    let (help, of_helper) = (helped.clone(), workers.clone());
    let helper = lane("helper", move || {
        help.fetch_add(1, Ordering::Relaxed);
        notify(&of_helper);
        LaneStep::Idle
    });
    *workers.lock() = Some(Arc::from(executor.start(vec![waiter, helper]).unwrap()));
    for _ in 0..20 {
        assert!(executor.step_random(), "woken during its own step, it runs again");
    }
    assert_eq!(inside.load(Ordering::Relaxed), 0);
    let trace = executor.trace_hash();
    assert_ne!(trace, 0);
    workers.lock().take();
}

/// Two lanes that write share a device of 1 MB/s, a third one that does not is not held up, and neither is who waits for nothing of theirs.
#[test]
fn lanes_side_by_side_share_the_device_and_nothing_else() {
    let fs = empty_db();
    let clock = fs.clock();
    fs.set_device(Some(Device { bandwidth_bytes_per_s: 1_000_000, ..Device::default() }));
    let executor = SimExecutor::new(&clock, 1);
    executor.set_step_cost_ns(1);
    executor.set_side_by_side(true);
    let (written, thought) = (Arc::new([const { AtomicU64::new(0) }; 2]), Arc::new(AtomicU64::new(0)));
    let known = Known::default();
    let writer = |number: usize| {
        let (file, written) = (Mutex::new(create(&fs, &format!("/db/{number}"))), Arc::clone(&written));
        let known = known.clone();
        lane(&format!("writer {number}"), move || {
            file.lock().append(&[0; 10_000], CTX).unwrap();
            written[number].fetch_add(10_000, Ordering::Relaxed);
            notify(&known);
            LaneStep::Worked
        })
    };
    let (of_lane, on) = (Arc::clone(&thought), Arc::clone(&clock));
    let thinker = lane("thinker", move || {
        on.advance(1_000_000);
        of_lane.fetch_add(1, Ordering::Relaxed);
        LaneStep::Worked
    });
    let workers: Arc<dyn Workers> = Arc::from(executor.start(vec![writer(0), writer(1), thinker]).unwrap());
    *known.lock() = Some(workers.clone());
    let start = clock.mono_ns();
    workers.sleep(Duration::from_secs(10));
    assert_eq!(clock.mono_ns() - start, 10_000_000_000);
    for bytes in &*written {
        let bytes = bytes.load(Ordering::Relaxed);
        assert!((4_990_000..=5_010_000).contains(&bytes), "half of ten seconds' bytes: {bytes}");
    }
    let thought = thought.load(Ordering::Relaxed);
    assert!((9_990..=10_000).contains(&thought), "a thousand steps of a millisecond each second: {thought}");
    // Who waits for a change goes on when the step that made it is over: a write takes 10 ms, and waits 10 ms for the other's.
    let before = written[0].load(Ordering::Relaxed);
    let began = clock.mono_ns();
    workers.wait(&mut || written[0].load(Ordering::Relaxed) > before).unwrap();
    let waited = clock.mono_ns() - began;
    assert!((10_000_000..=40_000_000).contains(&waited), "{waited}");
    known.lock().take();
}

#[test]
#[should_panic(expected = "seed 42")]
fn a_wait_that_goes_nowhere_is_ended() {
    let executor = SimExecutor::new(&SimClock::new(), 42);
    let workers = executor.start(vec![lane("busy", || LaneStep::Worked)]).unwrap();
    let _ = workers.wait(&mut || false);
}
