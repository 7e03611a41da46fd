//! The oracle: the same merge by one lane and without linking. However many lanes share it and whatever is linked, the output holds the same records.

use std::path::Path;

use super::*;
use crate::cache::{BlockCache, TableCache};
use crate::compaction::plan::{Action, CutRule, Place, PlanInput, Release, Reuse};
use crate::compaction::record::{DecisionRecord, Reason};
use crate::io::sim::{SimClock, SimFs};
use crate::io::{Fs, IoClass, IoCtx, IoMeter, Rng};
use crate::iter::Cursor;
use crate::iter::file::ScanFile;
use crate::jobs::merge::{MergeJob, MergeStep};
use crate::jobs::output::Outputs;
use crate::jobs::spans::Span;
use crate::jobs::{JobCx, Outcome};
use crate::key::{Entry, Kind, SeqNo, Trailer};
use crate::num::to_u64;
use crate::options::{Compression, DirectOptions};
use crate::sst::TableOptions;
use crate::version::{LevelId, RunOrder, VersionEdit};

const CTX: IoCtx = IoCtx::foreground(IoClass::Meta);
const DIR: &str = "/store";

type Record = (Vec<u8>, Trailer, Vec<u8>);

struct Bench {
    fs: SimFs,
    tables: TableCache,
    meter: Arc<IoMeter>,
    ids: std::cell::Cell<u64>,
    options: TableOptions,
}

impl Bench {
    fn new(rng: &mut Rng) -> Bench {
        let clock = SimClock::new();
        let fs = SimFs::new(&clock, rng.next_u64());
        fs.create_dir_all(Path::new(DIR), CTX).unwrap();
        let blocks = Arc::new(BlockCache::new(1 << 16));
        let tables = TableCache::new(Arc::new(fs.clone()), clock.clone(), DIR, 100, blocks, DirectOptions::default());
        let filter_bits_per_key = if rng.one_in(3) { 0.0 } else { 10.0 };
        let compression = if rng.one_in(4) { Compression::Lz4 } else { Compression::None };
        let options = TableOptions { block_bytes: 128, filter_bits_per_key, compression };
        Bench { fs, tables, meter: IoMeter::new(clock), ids: std::cell::Cell::new(1), options }
    }

    fn with_cx<R>(&self, work: impl FnOnce(&JobCx<'_>) -> R) -> R {
        let clock = self.fs.clock();
        let new_id = || SstId(self.ids.replace(self.ids.get() + 1));
        work(&JobCx {
            fs: &self.fs,
            dir: Path::new(DIR),
            clock: &*clock,
            new_id: &new_id,
            direct: false,
            force_every_bytes: 0,
            ctx: CTX,
            meter: &self.meter,
            obsolete: self.tables.purge_queue(),
        })
    }

    /// Writes a run, several files of it; versions of a key stay together.
    fn write(&self, rng: &mut Rng, records: &[Record], stamp: Option<SeqNo>) -> Vec<Arc<FileMeta>> {
        let cut_in = rng.between(1, 400);
        let files = self.with_cx(|cx| {
            let mut outputs = Outputs::new(self.options, None);
            let mut last: Option<&[u8]> = None;
            for (key, trailer, value) in records {
                if last.is_some_and(|last| last != &key[..]) && rng.one_in(cut_in) {
                    outputs.finish_file(cx).unwrap();
                }
                outputs.add(cx, Entry { key, trailer: *trailer, value }).unwrap();
                last = Some(key);
            }
            outputs.finish(cx).unwrap()
        });
        match stamp {
            Some(seq) => {
                let stamped =
                    |file: Arc<FileMeta>| Arc::new(FileMeta { min_seq: seq, max_seq: seq, ..(*file).clone() });
                files.into_iter().map(stamped).collect()
            }
            None => files,
        }
    }

    fn read(&self, files: &[Arc<FileMeta>]) -> Vec<Record> {
        let scanned = |meta: &Arc<FileMeta>| ScanFile {
            meta: Arc::clone(meta),
            table: Some(self.tables.handle(Arc::clone(meta))),
        };
        let files = files.iter().map(scanned).collect();
        let mut run =
            RunCursor::new(RunScans { files, read_ahead_bytes: 1000, ctx: CTX, meter: Arc::clone(&self.meter) });
        run.seek_first().unwrap();
        let mut records = Vec::new();
        while let Some(entry) = run.entry() {
            records.push((entry.key.to_vec(), entry.trailer, entry.value.to_vec()));
            run.next().unwrap();
        }
        records
    }

    /// Merges for so many lanes, whose steps take turns as dice say. What was made, the files that were written, and how many spans there were.
    fn merge(
        &self,
        rng: &mut Rng,
        (plan, version): (&Plan, &Version),
        lanes: u32,
        snapshots: &[SeqNo],
        quota: u64,
    ) -> (Outcome, Vec<SstId>, usize) {
        let handle = |meta: &Arc<FileMeta>| self.tables.handle(Arc::clone(meta));
        let open = |meta: &Arc<FileMeta>| handle(meta).scan(0, CTX, &self.meter).map(|scan| Arc::clone(scan.table()));
        let spans = Span::divide(plan, lanes, open).unwrap();
        let job =
            |span| MergeJob::new((plan, span), version, snapshots.to_vec(), self.options, CTX, &self.meter, handle);
        let mut jobs: Vec<(MergeJob, Option<Outcome>)> = spans.into_iter().map(|span| (job(span), None)).collect();
        while jobs.iter().any(|(_, outcome)| outcome.is_none()) {
            let at = to_usize(rng.below(to_u64(jobs.len())));
            let (job, outcome) = &mut jobs[at];
            if outcome.is_none() {
                match self.with_cx(|cx| job.step(cx, quota)).unwrap() {
                    MergeStep::More => {}
                    MergeStep::Part(_) => unreachable!("nothing is released"),
                    MergeStep::Done(done) => *outcome = Some(done),
                }
            }
        }
        let (ids, spans) = (jobs.iter().flat_map(|(job, _)| job.ids()).copied().collect(), jobs.len());
        (jobs.into_iter().filter_map(|(_, outcome)| outcome).sum(), ids, spans)
    }
}

/// Stretches of keys, some of them deleted, some with several versions, or all of one sequence number.
fn records(rng: &mut Rng, first_seq: u64) -> (Vec<Record>, Option<SeqNo>) {
    let ingested = rng.one_in(8);
    let (deletes, versions) = (!ingested && rng.one_in(3), !ingested && rng.one_in(4));
    let mut seq = first_seq;
    let mut records: BTreeMap<(Vec<u8>, std::cmp::Reverse<Trailer>), Vec<u8>> = BTreeMap::new();
    for _ in 0..rng.between(1, 6) {
        let from = rng.below(900);
        for n in from..from + rng.between(1, 200) {
            let key = format!("{n:04}").into_bytes();
            for _ in 0..if versions { rng.between(1, 2) } else { 1 } {
                seq += 1;
                let kind = if deletes && rng.one_in(20) { Kind::Delete } else { Kind::Put };
                let trailer = Trailer::new(SeqNo(if ingested { 0 } else { seq }), kind);
                records.insert((key.clone(), std::cmp::Reverse(trailer)), vec![b'v'; to_usize(rng.below(30))]);
            }
        }
    }
    if !versions {
        let mut seen = std::collections::BTreeSet::new();
        records.retain(|(key, _), _| seen.insert(key.clone()));
    }
    let records = records.into_iter().map(|((key, trailer), value)| (key, trailer.0, value)).collect();
    (records, ingested.then_some(SeqNo(first_seq)))
}

fn place(level: u8, run: u64) -> (LevelId, RunOrder) {
    (LevelId(level), RunOrder(run))
}

/// A plan of everything in the two upper levels into the lower of them.
fn plan(rng: &mut Rng, version: &Version, reuse: Reuse) -> Plan {
    let upper = version.runs().filter(|(level, _)| level.0 < 2);
    let inputs = upper.map(|(level, run)| PlanInput { level, run: run.order, files: run.files.to_vec() }).collect();
    let mut borders: Vec<Bytes> = (0..rng.below(3)).map(|_| Bytes::from(format!("{:04}", rng.below(1000)))).collect();
    borders.sort();
    borders.dedup();
    let cut = CutRule {
        file_bytes: rng.between(500, 6000),
        align: rng.one_in(3),
        grandparent_bytes: if rng.one_in(3) { rng.between(500, 20_000) } else { 0 },
        guards: None,
    };
    Plan {
        inputs,
        output: Place { level: LevelId(1), run: RunOrder(1) },
        action: Action::Merge,
        cut,
        borders,
        reuse,
        release: Release::AtEnd,
        cursor: None,
        record: DecisionRecord::new(Reason::Manual, "manual", 0.0, 0.0),
    }
}

#[test]
fn a_merge_that_links_or_is_shared_leaves_the_records_that_one_that_copies_leaves() {
    let mut rng = Rng::new(17);
    let (mut linked, mut files, mut slices_in, mut with_tombstones, mut dropped, mut shared) = (0, 0, 0, 0, 0, 0);
    for round in 0..250 {
        let bench = Bench::new(&mut rng);
        let mut version = Version::empty();
        let mut seq = 1;
        // Something older, which tombstones may hide.
        if rng.one_in(2) {
            let (below, stamp) = records(&mut rng, seq);
            seq += 3000;
            let added =
                bench.write(&mut rng, &below, stamp).into_iter().map(|file| (place(2, 1).0, place(2, 1).1, file));
            version = version.apply(&VersionEdit { removed: vec![], added: added.collect() }).unwrap();
        }
        for merge in 0..4 {
            for order in 0..rng.between(1, 4) {
                let (run, stamp) = records(&mut rng, seq);
                seq += 3000;
                let files = bench.write(&mut rng, &run, stamp);
                let (level, order) = place(0, 1 + order);
                let added = files.into_iter().map(|file| (level, order, file)).collect();
                version = version.apply(&VersionEdit { removed: vec![], added }).unwrap();
            }
            let snapshots: Vec<SeqNo> = (0..rng.below(3)).map(|_| SeqNo(rng.below(seq))).collect();
            let stitch =
                Stitch { min_bytes: Some(rng.between(1, 600)), max_dead_percent: if rng.one_in(2) { 50 } else { 99 } };
            let stitched = plan(&mut rng, &version, Reuse::Stitch(stitch));
            let copied = Plan { reuse: Reuse::Never, ..stitched.clone() };
            let quota = rng.between(1, 5000);
            slices_in += stitched.files().filter(|file| file.table() != file.id).count();
            let lanes = 1 + u32::try_from(rng.below(4)).unwrap();
            let (expected, ..) = bench.merge(&mut rng, (&copied, &version), 1, &snapshots, quota);
            let (outcome, ids, _) = bench.merge(&mut rng, (&stitched, &version), lanes, &snapshots, quota);
            let (divided, _, spans) = bench.merge(&mut rng, (&copied, &version), lanes, &snapshots, quota);
            shared += usize::from(spans > 1);
            let what = format!("round {round}, merge {merge}");
            assert!(bench.read(&outcome.files) == bench.read(&expected.files), "{what}");
            assert!(bench.read(&divided.files) == bench.read(&expected.files), "{what}");
            assert_eq!(divided.counts, expected.counts, "{what}");
            let drops = |outcome: &Outcome| (outcome.counts.dropped_versions, outcome.counts.dropped_tombstones);
            assert_eq!(drops(&outcome), drops(&expected), "{what}");
            dropped += drops(&outcome).1;
            // What was linked was not written, and what was written is there.
            let link = |file: &&Arc<FileMeta>| !ids.contains(&file.id);
            let links: Vec<_> = outcome.files.iter().filter(link).collect();
            assert_eq!(links.len(), to_usize(outcome.linked.files), "{what}");
            assert_eq!(links.iter().map(|file| file.bytes).sum::<u64>(), outcome.linked.bytes, "{what}");
            let made: u64 = outcome.files.iter().filter(|file| !link(file)).map(|file| file.bytes).sum();
            assert_eq!(made, outcome.bytes_written, "{what}");
            assert!(links.iter().all(|file| file.bytes + 200 >= stitch.min_bytes(0)), "{what}: {links:?}");
            for border in &stitched.borders {
                let across = |file: &Arc<FileMeta>| file.smallest < *border && *border <= file.largest;
                let files = || outcome.files.iter().chain(&divided.files);
                assert!(!files().any(across), "{what}: a file across {border:?}");
            }
            if stitched.cut.grandparent_bytes > 0 {
                let below = |file: &FileMeta| {
                    let run = version.levels.get(2).and_then(|level| level.runs.first());
                    run.map_or(0, |run| {
                        run.overlapping(&file.smallest, &file.largest).iter().map(|f| f.bytes).sum::<u64>()
                    })
                };
                assert!(links.iter().all(|file| below(file) <= stitched.cut.grandparent_bytes), "{what}");
            }
            with_tombstones += links.iter().filter(|file| file.table_tombstones() > 0).count();
            linked += outcome.linked.entries;
            files += outcome.linked.files;
            // The estimates of how much a slice holds are near.
            let counted: u64 = links.iter().map(|file| to_u64(bench.read(&[Arc::clone(file)]).len())).sum();
            assert!(counted.abs_diff(outcome.linked.entries) <= 8 * outcome.linked.files + counted / 4, "{what}");
            let added = outcome.files.into_iter().map(|file| (LevelId(1), RunOrder(1), file)).collect();
            version = version.apply(&VersionEdit { removed: stitched.removed(), added }).unwrap();
            version.check().unwrap();
        }
    }
    assert!(linked > 20_000 && files > 500 && slices_in > 500, "{linked} records in {files} links, {slices_in} slices");
    assert!(shared > 300, "{shared} merges were shared");
    assert!(with_tombstones > 20 && dropped > 200, "{with_tombstones} links with tombstones, {dropped} dropped");
}
