//! Full disks, failing syncs, and threads that share syncs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::super::shared::Live;
use super::*;
use crate::ErrorKind;
use crate::io::sim::{CallKind, Effect, Errno, Fault, Profile};
use crate::io::{IoCtx, LogFile};

/// A full disk, or a process with no file descriptor left, at any call of making a segment: the append fails, what is there stays, a later append
/// succeeds. The folder is opened to be synced, so the latter passed for a failed sync.
#[test]
fn a_shortage_fails_an_append_and_no_more() {
    let cases =
        [(Errno::NoSpace, Effect::Full), (Errno::NoSpace, Effect::Nothing), (Errno::TooManyFiles, Effect::Nothing)];
    for (errno, effect) in cases {
        for n in 1.. {
            let fs = new_fs(n);
            let mut rng = Rng::new(n);
            let (mut writer, shared) = LogWriter::open(config(&fs, 1), &ReplaySummary::default()).unwrap();
            let mut written: Vec<Unit> = Vec::new();
            fs.set_fault(Fault::nth(n, errno).effect(effect));
            let mut failures = 0;
            while writer.end().segment < SegmentId(3 + failures) {
                let first = written.last().map_or(SeqNo(1), Unit::next_seq);
                let unit = Unit::random(first, &mut rng, 700);
                match unit.append(&mut writer) {
                    Ok(_) => written.push(unit),
                    Err(error) => {
                        let wanted = if errno == Errno::NoSpace { ErrorKind::NoSpace } else { ErrorKind::Io };
                        assert_eq!(error.kind(), wanted, "{error}");
                        failures += 1;
                    }
                }
            }
            assert!(failures <= 1);
            let hit = fs.faults_hit();
            fs.clear_faults();
            shared.sync_all().unwrap();
            let image = fs.crash(Profile::Nasty, &mut rng);
            assert_eq!(read(&image, SegmentId(0), Recovery::Strict).unwrap().0, written, "call {n}");
            if hit == 0 {
                assert!(n > 4, "making a segment takes calls that can fail");
                break;
            }
        }
    }
}

/// After a failed sync nothing is acknowledged and nothing is synced again, whatever became of the bytes.
#[test]
fn a_failed_sync_poisons_for_good() {
    for effect in [Effect::Nothing, Effect::Full, Effect::Revert] {
        for n in 1..=3 {
            let fs = new_fs(n);
            let (mut writer, shared) = LogWriter::open(config(&fs, 1), &ReplaySummary::default()).unwrap();
            let put = |writer: &mut LogWriter, seq| writer.append_put(SeqNo(seq), KeyspaceId(0), b"key", &[1; 1500]);
            for seq in 1..=6 {
                put(&mut writer, seq).unwrap();
            }
            // Three segments are unsynced; the n-th of their syncs fails.
            fs.set_fault(Fault::nth(n, Errno::Io).of(CallKind::Sync).effect(effect));
            let end = writer.end();
            assert_eq!(shared.sync_to(end).unwrap_err().kind(), ErrorKind::Poisoned);
            assert!(shared.is_poisoned());
            let syncs = fs.calls_of(CallKind::Sync);
            assert_eq!(shared.sync_to(end).unwrap_err().kind(), ErrorKind::Poisoned);
            assert_eq!(shared.sync_all().unwrap_err().kind(), ErrorKind::Poisoned);
            assert_eq!(put(&mut writer, 7).unwrap_err().kind(), ErrorKind::Poisoned);
            assert!(!shared.prepare().unwrap() || !shared.prepare().unwrap());
            assert_eq!(writer.close().unwrap_err().kind(), ErrorKind::Poisoned);
            assert_eq!(fs.calls_of(CallKind::Sync), syncs, "nothing is synced again");
            let (units, _) =
                read(&fs.crash(Profile::Subset, &mut Rng::new(n)), SegmentId(0), Recovery::Strict).unwrap();
            assert!(units.len() <= 6);
        }
    }
}

/// What is read and cannot be synced is not relied on.
#[test]
fn recovery_fails_if_what_it_read_cannot_be_made_durable() {
    let fs = new_fs(1);
    let (mut writer, shared) = LogWriter::open(config(&fs, 1), &ReplaySummary::default()).unwrap();
    writer.append_put(SeqNo(1), KeyspaceId(0), b"key", b"value").unwrap();
    drop((writer, shared));
    let (units, summary) = read(&fs, SegmentId(0), Recovery::Strict).unwrap();
    assert_eq!((units.len(), &summary.unsynced[..]), (1, &[SegmentId(1)][..]));
    fs.set_fault(Fault::nth(1, Errno::Io).of(CallKind::Sync));
    assert!(LogWriter::open(config(&fs, 2), &summary).is_err());
}

/// A file whose sync takes a while, and counts.
struct Slow {
    syncs: AtomicU64,
}

impl LogFile for Slow {
    fn written(&self, _: u64, _: &[u8], _: IoCtx) {}

    #[expect(clippy::disallowed_methods, reason = "a test of real threads")]
    fn sync(&self, _: IoCtx) -> std::io::Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test of real threads")]
fn concurrent_writers_share_syncs() {
    let shared = LogShared::new(config(&new_fs(1), 1), &ReplaySummary::default());
    let slow = Arc::new(Slow { syncs: AtomicU64::new(0) });
    let live = Arc::new(Live::new(SegmentId(1), 1 << 20, slow.clone()));
    shared.begin(&live);
    let write_lock = Mutex::new(());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let offset = {
                        let _lock = write_lock.lock();
                        live.written.fetch_add(100, Ordering::Release) + 100
                    };
                    shared.sync_to(LogPos { segment: SegmentId(1), offset }).unwrap();
                    assert!(live.synced_to.load(Ordering::Relaxed) >= offset);
                }
            });
        }
    });
    let syncs = slow.syncs.load(Ordering::Relaxed);
    assert!((50..200).contains(&syncs), "{syncs} syncs for 400 writes of 8 threads");
}
