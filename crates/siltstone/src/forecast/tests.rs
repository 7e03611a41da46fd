use std::collections::BTreeSet;

use super::*;
use crate::compaction::guards::Guarded;
use crate::compaction::layout::Layout;
use crate::compaction::{ManualRequest, ManualStep, Sizes, Strategy, plan_manual, strategies};
use crate::io::Rng;
use crate::key::SeqNo;
use crate::num::{to_f64, to_u64, to_usize};
use crate::version::{RunOrder, SstId};

const KEYS: u64 = 4000;
const MEMTABLE: u64 = 200;

fn key(n: u64) -> Bytes {
    format!("user{n:08}").into_bytes().into()
}

/// A file with these keys, written as sequence numbers `seqs`; 100 bytes a record.
fn file(id: u64, keys: &BTreeSet<u64>, seqs: (u64, u64)) -> Arc<FileMeta> {
    let entries = to_u64(keys.len());
    Arc::new(FileMeta {
        id: SstId(id),
        bytes: 100 * entries,
        entries,
        tombstones: 0,
        range_tombstones: 0,
        raw_bytes: 90 * entries,
        smallest: key(*keys.first().unwrap()),
        largest: key(*keys.last().unwrap()),
        min_seq: SeqNo(seqs.0),
        max_seq: SeqNo(seqs.1),
        created_ms: 1,
        oldest_tombstone_ms: None,
        entered_level_ms: 1,
        whole: None,
    })
}

/// Runs of L0, oldest first, `flushes[i]` memtables merged into the ith; each write draws a key, and only one write in `shared` is ours.
/// The tree, and how many different keys were drawn.
fn drawn(rng: &mut Rng, flushes: &[u64], keys: Option<u64>, shared: u64) -> (Version, u64) {
    let (mut seq, mut next, mut all, mut added) = (1, 0, BTreeSet::new(), Vec::new());
    for (n, flushes) in (1u64..).zip(flushes) {
        let first = seq;
        let mut run = BTreeSet::new();
        for _ in 0..flushes * MEMTABLE {
            next += 1;
            run.insert(keys.map_or(next * 7919 % 1_000_003, |keys| rng.below(keys)));
            seq += shared;
        }
        all.extend(run.iter().copied());
        added.push((LevelId(0), RunOrder(n), file(n, &run, (first, seq - 1))));
    }
    let version = Version::empty().apply(&VersionEdit { removed: Vec::new(), added }).unwrap();
    (version, to_u64(all.len()))
}

fn among(lanes: usize) -> Circumstances {
    Circumstances { lanes, own_writes: Some(1.0) }
}

fn sizes() -> Sizes {
    Sizes { memtable_bytes: 100 * MEMTABLE, file_bytes: 50 * MEMTABLE, size_ratio: 4, level1_bytes: 0 }
}

/// Everything in one run: what is written is what was drawn, within a few percent.
#[test]
fn the_union_of_runs_is_what_draws_make_it() {
    let mut rng = Rng::new(5);
    let policy = Strategy::named("leveling").unwrap();
    for flushes in [vec![40, 1, 1], vec![10, 10], vec![3, 3, 3, 3], vec![80, 20]] {
        for (keys, shared) in [(Some(KEYS), 1), (Some(KEYS), 3), (Some(50_000), 1), (None, 1), (None, 2)] {
            if shared > 1 && !flushes.contains(&1) {
                // Nothing tells how many of the writes are ours.
                continue;
            }
            let (version, distinct) = drawn(&mut rng, &flushes, keys, shared);
            let view = LsmView::new(&version, sizes());
            let ManualStep::Run(plan) = plan_manual(&policy, &view, &ManualRequest::default()).unwrap() else {
                panic!("several runs are not done");
            };
            let (outputs, _) = Estimate::new(&version, None, 1, (shared == 1).then_some(1.0)).outputs(&plan, &version);
            let bytes: u64 = outputs.iter().map(|file| file.bytes).sum();
            let (found, wanted) = (to_f64(bytes), to_f64(100 * distinct));
            let wrong = (found / wanted - 1.0).abs();
            assert!(wrong < 0.05, "{flushes:?} of {keys:?} keys, shared {shared}: {found} bytes, {wanted} drawn");
        }
    }
}

/// Any tree, any preset: it ends, in a legal tree, alike each time, and never with more bytes than before.
#[test]
fn a_dry_run_ends_in_a_legal_tree() {
    let mut rng = Rng::new(9);
    let few_bits = Strategy::named("pebblesdb").map(|preset| {
        let guarded = Guarded { guard_bits: 10, levels: 5, ..Guarded::default() };
        Strategy { name: "few bits".to_owned(), layout: Layout::Guarded(guarded), ..preset }
    });
    let presets = strategies().iter().map(|preset| Strategy::named(preset.name));
    for policy in presets.chain([few_bits]).map(Result::unwrap) {
        for round in 0..20u64 {
            let flushes: Vec<u64> = (0..rng.between(1, 30)).map(|_| 1 + rng.below(8)).collect();
            let keys = [Some(300), Some(KEYS), None][to_usize(round % 3)];
            let (version, _) = drawn(&mut rng, &flushes, keys, 1);
            let view = LsmView::new(&version, sizes()).with_losses(policy.loses_oldest());
            let lanes = to_usize(1 + round % 3);
            let first = forecast(&policy, &view, among(lanes)).unwrap();
            first.end.check().unwrap();
            assert!(first.settled, "{}: {:?}", policy.name, first.jobs());
            assert_eq!(format!("{first:?}"), format!("{:?}", forecast(&policy, &view, among(lanes)).unwrap()));
            assert!(first.write_bytes <= first.read_bytes * 1001 / 1000, "{}: {first:?}", policy.name);
            assert!(first.end.bytes() <= version.bytes() * 1001 / 1000);
            assert!(first.lane_bytes <= first.read_bytes && first.lane_bytes * to_u64(lanes) >= first.read_bytes);
            assert!(first.merges == 0 || first.peak_extra_bytes > 0);
            let again = forecast(&policy, &view.over(&first.end, &[], &[]), among(lanes)).unwrap();
            assert_eq!(again.jobs(), 0, "{}: quiet means quiet", policy.name);
        }
    }
}

/// What no other input reaches into is linked, not written, if the strategy does that and the part is large enough.
#[test]
fn linked_parts_are_not_written() {
    let drawn = "L0  order=2 5:a-c:10K 6:m-p:10K\nL0  order=1 7:b-d:10K 8:x-z:10K\n";
    let version = crate::version::text::parse(drawn).unwrap();
    let bytes = |words: &str, file_bytes| {
        let text = strategies().iter().find(|preset| preset.name == "vt-tree").unwrap().text;
        let policy = Strategy::parse(&text.replace("{ kind = \"stitch\", max_dead_percent = 50 }", words)).unwrap();
        let sizes = Sizes { memtable_bytes: 20 << 10, file_bytes, size_ratio: 2, level1_bytes: 0 };
        let forecast = forecast(&policy, &LsmView::new(&version, sizes), among(1)).unwrap();
        assert_eq!((forecast.merges, forecast.end.bytes() / 100), (1, version.bytes() / 100));
        (forecast.read_bytes >> 10, forecast.write_bytes >> 10)
    };
    assert_eq!(bytes("\"picked\"", 10 << 10), (40, 40));
    let (read, written) = bytes("{ kind = \"stitch\" }", 10 << 10);
    assert!(read < 20 && written == read, "{read} {written}");
    assert_eq!(bytes("{ kind = \"stitch\", min_bytes = 10000 }", 10 << 10), (20, 20));
    assert_eq!(bytes("{ kind = \"stitch\" }", 10 << 20), (40, 40));
}

/// What runs at the start is finished, and counted.
#[test]
fn running_jobs_are_finished_first() {
    let (version, _) = drawn(&mut Rng::new(1), &[1, 1, 1, 1], Some(KEYS), 1);
    let policy = Strategy::named("leveling").unwrap();
    let sizes = Sizes { size_ratio: 8, ..sizes() };
    let view = LsmView::new(&version, sizes);
    let merge = plan(&policy, &view).unwrap().unwrap();
    let running = [Arc::new(merge)];
    let quiet = Strategy::named("tiering").unwrap();
    assert_eq!(forecast(&quiet, &LsmView::new(&version, sizes), among(2)).unwrap().jobs(), 0);
    let forecast = forecast(&quiet, &LsmView::new(&version, sizes).with_running(&running), among(2)).unwrap();
    assert_eq!((forecast.merges, forecast.read_bytes), (1, version.bytes()));
    assert_eq!(forecast.end.levels[0].runs.len(), 1);
}
