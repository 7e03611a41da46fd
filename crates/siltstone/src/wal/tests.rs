//! Tests of the log against a plain list of what was appended, under crashes, damage and failing calls.

mod crash;
mod damage;
mod faults;
mod format;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::*;
use crate::error::Result;
use crate::io::sim::{SimClock, SimFs};
use crate::io::{Fs, Rng};
use crate::key::{Kind, SeqNo};
use crate::num::to_u64;
use crate::options::Recovery;
use crate::version::KeyspaceId;

pub(super) const STORE: u128 = 0x5117_5702;

/// What one append wrote: applied whole or not at all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Unit {
    first: SeqNo,
    records: Vec<(KeyspaceId, Kind, Vec<u8>, Vec<u8>)>,
}

impl Unit {
    fn random(first: SeqNo, rng: &mut Rng, max_value: u64) -> Unit {
        let count = if rng.one_in(3) { rng.between(1, 4) } else { 1 };
        let bytes = |rng: &mut Rng, max: u64| -> Vec<u8> {
            let len = rng.below(max + 1);
            (0..len).map(|_| rng.next_u64().to_le_bytes()[0]).collect()
        };
        let records = (0..count)
            .map(|_| {
                let kind = if rng.one_in(4) { Kind::Delete } else { Kind::Put };
                let value = if kind == Kind::Put { bytes(rng, max_value) } else { Vec::new() };
                let keyspace = KeyspaceId(u32::try_from(rng.below(300)).unwrap());
                (keyspace, kind, bytes(rng, 20), value)
            })
            .collect();
        Unit { first, records }
    }

    fn next_seq(&self) -> SeqNo {
        SeqNo(self.first.0 + to_u64(self.records.len()))
    }

    fn append(&self, writer: &mut LogWriter) -> Result<LogPos> {
        if let [(keyspace, kind, key, value)] = &self.records[..] {
            return writer.append_record(self.first, *keyspace, *kind, key, value);
        }
        let mut payload = Vec::new();
        for (keyspace, kind, key, value) in &self.records {
            encode_record(&mut payload, *keyspace, *kind, key, value);
        }
        writer.append_batch(self.first, u32::try_from(self.records.len()).unwrap(), &payload)
    }
}

pub(super) fn dir() -> PathBuf {
    PathBuf::from("/log")
}

pub(super) fn new_fs(seed: u64) -> SimFs {
    let fs = SimFs::new(&SimClock::new(), seed);
    fs.create_dir_all(&dir(), CTX).unwrap();
    fs.sync_dir(Path::new("/"), CTX).unwrap();
    fs
}

pub(super) fn config(fs: &SimFs, nonce: u64) -> LogConfig {
    LogConfig { fs: Arc::new(fs.clone()), dir: dir(), store_id: STORE, nonce, segment_bytes: 8192, clock: fs.clock() }
}

/// What replay hands out.
pub(super) fn read(fs: &SimFs, from: SegmentId, mode: Recovery) -> Result<(Vec<Unit>, ReplaySummary)> {
    let mut units = Vec::new();
    let summary = replay(fs, &dir(), STORE, from, mode, CTX, &mut |first, records| {
        let records = records.map(|r| (r.keyspace, r.kind, r.key.to_vec(), r.value.to_vec())).collect();
        units.push(Unit { first, records });
        Ok(())
    })?;
    Ok((units, summary))
}

/// A log that was written to and closed.
pub(super) fn closed_log(seed: u64, units: usize, max_value: u64) -> (SimFs, Vec<Unit>) {
    let fs = new_fs(seed);
    let mut rng = Rng::new(seed);
    let (mut writer, shared) = LogWriter::open(config(&fs, 1), &ReplaySummary::default()).unwrap();
    let mut written: Vec<Unit> = Vec::new();
    for _ in 0..units {
        let first = written.last().map_or(SeqNo(1), Unit::next_seq);
        let unit = Unit::random(first, &mut rng, max_value);
        let end = unit.append(&mut writer).unwrap();
        if rng.one_in(5) {
            shared.sync_to(end).unwrap();
        }
        if writer.is_prepare_due() {
            assert!(shared.prepare().unwrap());
        }
        written.push(unit);
    }
    writer.close().unwrap();
    (fs, written)
}

#[test]
fn what_was_written_comes_back() {
    let (fs, written) = closed_log(1, 400, 200);
    let (units, summary) = read(&fs, SegmentId(0), Recovery::Strict).unwrap();
    assert_eq!(units, written);
    assert_eq!(summary.last_seq.map(|seq| seq.0 + 1), written.last().map(|unit| unit.next_seq().0));
    assert!(summary.torn.is_none() && summary.unsynced.is_empty() && summary.leftovers.is_empty());
    assert!(summary.end().segment > SegmentId(3), "the log rolled: {summary:?}");
    // From a later segment on: a suffix.
    let (suffix, _) = read(&fs, SegmentId(3), Recovery::Strict).unwrap();
    assert!(!suffix.is_empty() && suffix.len() < written.len() && written.ends_with(&suffix));
}

#[test]
fn a_record_larger_than_a_segment_gets_its_own() {
    let fs = new_fs(1);
    let (mut writer, shared) = LogWriter::open(config(&fs, 1), &ReplaySummary::default()).unwrap();
    let keyspace = KeyspaceId(0);
    writer.append_put(SeqNo(1), keyspace, b"a", &[1; 3000]).unwrap();
    assert!(writer.is_prepare_due() && shared.prepare().unwrap());
    let big = vec![7; 100_000];
    let end = writer.append_put(SeqNo(2), keyspace, b"b", &big).unwrap();
    assert_eq!(end.segment, SegmentId(3), "the prepared segment 2 was too small");
    writer.append_put(SeqNo(3), keyspace, b"c", &[9; 4000]).unwrap();
    writer.close().unwrap();
    let (units, _) = read(&fs, SegmentId(0), Recovery::Strict).unwrap();
    assert_eq!(units.len(), 3);
    assert_eq!(units[1].records[0].3, big);
    assert_eq!(shared.segments(), [1, 3, 4].map(SegmentId));
    shared.remove_before(SegmentId(9)).unwrap();
    assert_eq!(shared.segments(), [SegmentId(4)], "the last one stays");
}

#[test]
fn a_session_begins_in_a_short_segment_and_the_next_one_is_made_at_once() {
    let fs = new_fs(1);
    let config = LogConfig { segment_bytes: 64 << 10, ..config(&fs, 1) };
    let (mut writer, shared) = LogWriter::open(config, &ReplaySummary::default()).unwrap();
    let mut seq = 0;
    let mut put = |writer: &mut LogWriter, bytes: usize| {
        seq += 1;
        writer.append_put(SeqNo(seq), KeyspaceId(0), b"k", &vec![1; bytes]).unwrap()
    };
    put(&mut writer, 10);
    let files = fs.files().len();
    assert!(shared.prepare().unwrap() && !shared.prepare().unwrap(), "its memory is made ready");
    assert_eq!(fs.files().len(), files, "whoever writes one record takes a short segment only");
    put(&mut writer, 300);
    assert!(writer.is_prepare_due() && shared.prepare().unwrap());
    assert_eq!(shared.segments(), [SegmentId(1)], "made, and not in use");
    let lens: Vec<u64> = (0..40)
        .map(|_| put(&mut writer, 1800))
        .scan(LogPos::default(), |last, at| {
            let before = std::mem::replace(last, at);
            Some((before.segment.0 > 0 && at.segment != before.segment).then_some(before.offset))
        })
        .flatten()
        .collect();
    assert!(matches!(lens[..], [14_336..=16_384, 61_440..=65_536]), "a quarter of the usual, and the usual: {lens:?}");
}

/// A writer who finds no segment waits for two syncs; one who finds no memory, for a page at a time.
#[test]
fn the_next_segment_is_made_before_memory_is_made_ready_which_goes_piece_by_piece_from_where_the_writer_is() {
    const MIB: usize = 1 << 20;
    let fs = new_fs(1);
    let config = LogConfig { segment_bytes: to_u64(8 * MIB), ..config(&fs, 1) };
    let (mut writer, shared) = LogWriter::open(config, &ReplaySummary::default()).unwrap();
    let mut seq = 0;
    let mut put = |writer: &mut LogWriter, bytes: usize| {
        seq += 1;
        // Slowly: one segment is made ahead.
        fs.clock().advance(1_000_000_000);
        writer.append_put(SeqNo(seq), KeyspaceId(0), b"k", &vec![1; bytes]).unwrap().segment
    };
    let steps = || std::iter::from_fn(|| shared.prepare().unwrap().then_some(fs.files().len())).collect::<Vec<_>>();
    put(&mut writer, MIB / 2);
    assert_eq!(steps(), [2; 5], "the next one, two pieces of this one, which is short, and eight of that");
    assert_eq!(put(&mut writer, 3 * MIB), SegmentId(2));
    assert_eq!(steps(), [2], "the memory of the one before goes; this one is ready, and not half full");
    let last = put(&mut writer, 7 * MIB);
    assert_eq!(last, SegmentId(3), "which the writer had to make itself");
    assert_eq!(steps(), [4; 5], "the next one, what is left of this one, and that one");
}

#[test]
fn a_closed_log_accepts_nothing_and_leaves_no_spare_segment() {
    let (fs, _) = closed_log(2, 60, 100);
    let (_, summary) = read(&fs, SegmentId(0), Recovery::Strict).unwrap();
    let (mut writer, shared) = LogWriter::open(config(&fs, 2), &summary).unwrap();
    writer.append_put(SeqNo(1000), KeyspaceId(0), b"k", &[0; 3900]).unwrap();
    assert!(shared.prepare().unwrap());
    let files = fs.files().len();
    writer.close().unwrap();
    assert_eq!(fs.files().len(), files - 1);
    writer.close().unwrap();
    let error = writer.append_put(SeqNo(1001), KeyspaceId(0), b"k", b"").unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Closed);
    assert_eq!(fs.open_handles(), 1, "the shared half holds the file of the last segment");
    drop(shared);
    drop(writer);
    assert_eq!(fs.open_handles(), 0);
}
