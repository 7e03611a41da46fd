//! Every bit flip, truncation and zeroed tail of a closed log is found out or changes nothing.

use super::*;
use crate::ErrorKind;

/// Applies `damage` to a copy of a closed log: strict replay must refuse it or not notice it, salvage must give a prefix.
fn check(fs: &SimFs, written: &[Unit], what: &str, damage: impl FnOnce(&SimFs)) -> bool {
    let fs = fs.clone_image();
    damage(&fs);
    let found = read(&fs, SegmentId(1), Recovery::Strict);
    let refused = match found {
        Ok((units, _)) => {
            assert_eq!(units, written, "{what}: records are lost or changed without a word");
            false
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corruption, "{what}: {error}");
            assert!(error.path().is_some() && error.offset().is_some(), "{what}: {error:?}");
            true
        }
    };
    let (units, _) = read(&fs, SegmentId(1), Recovery::Salvage).unwrap();
    assert!(written.starts_with(&units), "{what}: salvage gives no prefix");
    refused
}

#[test]
fn every_bit_flip_of_a_closed_log_is_found_out_or_harmless() {
    let (fs, written) = closed_log(3, 24, 400);
    let files = fs.files();
    assert!(files.len() >= 2, "{files:?}");
    let mut refused = 0;
    for (path, bytes) in files {
        for bit in 0..bytes * 8 {
            // Of the empty parts of header and tail, every 61st bit.
            let is_zero = fs.read_all(&path).is_ok_and(|all| all[usize::try_from(bit / 8).unwrap()] == 0);
            if is_zero && bit % 61 != 0 {
                continue;
            }
            let what = format!("bit {bit} of {}", path.display());
            refused += u64::from(check(&fs, &written, &what, |fs| fs.flip_bit(&path, bit).unwrap()));
        }
    }
    assert!(refused > 10_000, "{refused} flips refused");
}

#[test]
fn every_truncation_and_zeroed_tail_of_a_closed_log_is_found_out_or_harmless() {
    let (fs, written) = closed_log(4, 40, 300);
    for (path, bytes) in fs.files() {
        let whole = fs.read_all(&path).unwrap();
        for len in (0..bytes).filter(|len| len % 3 == 0 || *len > 4090) {
            let what = format!("{} cut to {len} bytes", path.display());
            assert!(check(&fs, &written, &what, |fs| fs.truncate(&path, len).unwrap()), "{what} goes unnoticed");
            let what = format!("{} zeroed from {len}", path.display());
            let mut zeroed = whole.clone();
            zeroed[usize::try_from(len).unwrap()..].fill(0);
            check(&fs, &written, &what, |fs| fs.write_all(&path, &zeroed).unwrap());
        }
        let what = format!("{} is gone", path.display());
        if fs.files().last().is_some_and(|(last, _)| *last != path) {
            assert!(check(&fs, &written, &what, |fs| fs.remove_all(&path).unwrap()), "{what}");
        }
    }
}

/// RocksDB 7701, Pebble 864: damage in one log, and the next one replayed all the same.
#[test]
fn nothing_is_replayed_behind_a_hole() {
    let fs = new_fs(9);
    let mut rng = Rng::new(9);
    let (mut writer, _shared) = LogWriter::open(config(&fs, 1), &ReplaySummary::default()).unwrap();
    let mut written: Vec<Unit> = Vec::new();
    while writer.end().segment < SegmentId(3) {
        let first = written.last().map_or(SeqNo(1), Unit::next_seq);
        written.push(Unit::random(first, &mut rng, 500));
        written.last().unwrap().append(&mut writer).unwrap();
    }
    // Nothing was synced, so the hole is a torn tail: it ends recovery quietly, in the middle of segment 1.
    fs.flip_bit(dir().join("000001.log"), 8 * 6000).unwrap();
    let (units, summary) = read(&fs, SegmentId(0), Recovery::Strict).unwrap();
    assert!(units.len() < written.len() && written.starts_with(&units));
    assert_eq!(summary.end().segment, SegmentId(1));
    assert!(summary.torn.is_some());
    // The next session links to the hole, and that history is the one that counts from then on.
    drop(writer);
    let (mut writer, shared) = LogWriter::open(config(&fs, 2), &summary).unwrap();
    let unit = Unit::random(SeqNo(9000), &mut rng, 10);
    let end = unit.append(&mut writer).unwrap();
    assert!(end.segment > SegmentId(3));
    shared.sync_to(end).unwrap();
    let mut expected = units;
    expected.push(unit);
    assert_eq!(read(&fs, SegmentId(0), Recovery::Strict).unwrap().0, expected);
    // Had it been synced, the same hole would be damage.
    fs.flip_bit(dir().join("000001.log"), 8 * 4200).unwrap();
    let error = read(&fs, SegmentId(0), Recovery::Strict).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
}

/// Salvage took the history to end behind the record that it had refused. The next session was linked to that place, which the refused record keeps
/// replay from reaching: what was written and synced after a salvage was gone at the next open.
#[test]
fn what_is_written_after_salvage_comes_back() {
    let fs = new_fs(10);
    let put =
        |writer: &mut LogWriter, seq: u64| writer.append_put(SeqNo(seq), KeyspaceId(0), b"key", b"value").unwrap();
    let seqs = |units: &[Unit]| units.iter().map(|unit| unit.first.0).collect::<Vec<_>>();
    let (mut writer, shared) = LogWriter::open(config(&fs, 1), &ReplaySummary::default()).unwrap();
    // The third one is as it was written, and cannot be.
    let ends = [1, 2, 1, 3].map(|seq| put(&mut writer, seq));
    shared.sync_to(ends[3]).unwrap();
    drop(writer);
    assert_eq!(read(&fs, SegmentId(0), Recovery::Strict).unwrap_err().kind(), ErrorKind::Corruption);
    let (units, summary) = read(&fs, SegmentId(0), Recovery::Salvage).unwrap();
    assert_eq!((seqs(&units), summary.end()), (vec![1, 2], ends[1]));

    let (mut writer, shared) = LogWriter::open(config(&fs, 2), &summary).unwrap();
    let end = put(&mut writer, 3);
    shared.sync_to(end).unwrap();
    for mode in [Recovery::Strict, Recovery::Salvage] {
        assert_eq!(seqs(&read(&fs, SegmentId(0), mode).unwrap().0), [1, 2, 3], "{mode:?}");
    }
}

/// A segment of another store, or under another number, is never taken for one's own.
#[test]
fn foreign_segments_are_refused() {
    let (fs, _) = closed_log(5, 20, 50);
    let (other, _) = closed_log(6, 20, 50);
    let first = dir().join("000001.log");
    let bytes = other.read_all(&first).unwrap();
    let of_other = replay(&fs, &dir(), STORE + 1, SegmentId(0), Recovery::Strict, CTX, &mut |_, _| Ok(())).unwrap_err();
    assert!(of_other.to_string().contains("another store"), "{of_other}");
    fs.write_all(dir().join("000009.log"), &bytes).unwrap();
    let misnamed = read(&fs, SegmentId(0), Recovery::Strict).unwrap_err();
    assert!(misnamed.to_string().contains("name of another"), "{misnamed}");
}

/// A read error is not an end (RocksDB 11782).
#[test]
fn a_failed_read_is_an_error_and_not_an_end() {
    use crate::io::sim::{CallKind, Errno, Fault};
    let (fs, written) = closed_log(7, 60, 300);
    for mode in [Recovery::Strict, Recovery::Salvage] {
        for n in 1.. {
            let fs = fs.clone_image();
            fs.set_fault(Fault::nth(n, Errno::Io));
            match read(&fs, SegmentId(0), mode) {
                Err(error) => assert_eq!(error.kind(), ErrorKind::Io),
                Ok((units, _)) => {
                    assert_eq!((units.len(), fs.faults_hit()), (written.len(), 0), "call {n}");
                    break;
                }
            }
        }
    }
    assert!(fs.calls_of(CallKind::Read) > 0 || fs.calls() > 0);
}
