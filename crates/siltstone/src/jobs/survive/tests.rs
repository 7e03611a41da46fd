//! A brute-force oracle: what every reader sees, before and after, must be the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::io::Rng;
use crate::key::{Kind, compare};
use crate::version::text::parse_file;
use crate::version::{FileMeta, RunOrder};

/// `(key, seq, kind)`: one version. Values do not matter: the sequence number identifies it.
type Record = (Vec<u8>, u64, Kind);

/// What a reader at `at` finds under each key: the newest visible version unless it is a tombstone.
fn seen(records: &[Record], at: u64) -> BTreeMap<&[u8], u64> {
    let mut newest: BTreeMap<&[u8], (u64, Kind)> = BTreeMap::new();
    for (key, seq, kind) in records.iter().filter(|(_, seq, _)| *seq <= at) {
        let version = newest.entry(key).or_insert((*seq, *kind));
        *version = (*version).max((*seq, *kind));
    }
    newest.into_iter().filter(|(_, (_, kind))| *kind == Kind::Put).map(|(key, (seq, _))| (key, seq)).collect()
}

/// A file around the records of one older run, with borders wider than its keys, as other files' keys make them.
fn older_files(rng: &mut Rng, records: &[Record]) -> Vec<Arc<FileMeta>> {
    let mut keys: Vec<&[u8]> = records.iter().map(|(key, _, _)| &key[..]).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut files = Vec::new();
    let mut keys = &keys[..];
    while !keys.is_empty() {
        let len = usize::try_from(rng.between(1, 3)).unwrap().min(keys.len());
        let (head, rest) = keys.split_at(len);
        let show = |key: &[u8]| key.escape_ascii().to_string();
        let text = format!("{}:{}-{}:1K", files.len() + 1, show(head[0]), show(head[len - 1]));
        files.push(Arc::new(parse_file(&text, RunOrder(1)).unwrap()));
        keys = rest;
    }
    files
}

struct Case {
    inputs: Vec<Record>,
    below: Vec<Record>,
    runs: Vec<Vec<Arc<FileMeta>>>,
    snapshots: Vec<SeqNo>,
}

fn random_case(rng: &mut Rng) -> Case {
    let keys = rng.between(1, 6);
    let key = |rng: &mut Rng| vec![b'a' + u8::try_from(rng.below(keys)).unwrap()];
    let kind = |rng: &mut Rng| if rng.one_in(2) { Kind::Delete } else { Kind::Put };
    // Older data first: its sequence numbers are below those of the inputs, key by key and here altogether.
    let mut seq = rng.below(2);
    let mut below = Vec::new();
    let mut runs = Vec::new();
    for _ in 0..rng.below(3) {
        let mut run = Vec::new();
        for _ in 0..rng.between(1, 5) {
            run.push((key(rng), seq, kind(rng)));
            seq += 1;
        }
        runs.push(older_files(rng, &run));
        below.extend(run);
    }
    let mut inputs = Vec::new();
    for _ in 0..rng.between(1, 12) {
        inputs.push((key(rng), seq, kind(rng)));
        seq += 1;
    }
    inputs.sort_by(|a, b| compare(&a.0, Trailer::new(SeqNo(a.1), a.2), &b.0, Trailer::new(SeqNo(b.1), b.2)));
    let mut snapshots: Vec<SeqNo> = (0..rng.below(4)).map(|_| SeqNo(rng.below(seq + 1))).collect();
    if rng.one_in(4) {
        snapshots.push(SeqNo::ZERO);
    }
    if rng.one_in(4) {
        snapshots.push(SeqNo::MAX);
    }
    Case { inputs, below, runs, snapshots }
}

/// Runs the survivor over a case and checks all readers; returns what was kept.
fn check(case: &Case) -> Result<SurvivorCounts, String> {
    let mut survivor =
        Survivor::new(case.snapshots.clone(), OlderRuns::new(case.runs.iter().cloned().map(Files::from).collect()));
    let mut after = case.below.clone();
    let mut last_kept: Option<&[u8]> = None;
    for (key, seq, kind) in &case.inputs {
        let fate = survivor.judge(key, Trailer::new(SeqNo(*seq), *kind));
        if fate.first_of_key != (fate.keep && last_kept != Some(&key[..])) {
            return Err(format!("first_of_key is wrong at {seq}"));
        }
        if fate.keep {
            after.push((key.clone(), *seq, *kind));
            last_kept = Some(key);
        }
    }
    let before: Vec<Record> = case.below.iter().chain(&case.inputs).cloned().collect();
    for at in case.snapshots.iter().map(|seq| seq.0).chain([SeqNo::MAX.0]) {
        if seen(&before, at) != seen(&after, at) {
            return Err(format!("a reader at {at} sees {:?}, not {:?}", seen(&after, at), seen(&before, at)));
        }
    }
    let counts = survivor.counts();
    let judged = counts.kept + counts.dropped_versions + counts.dropped_tombstones;
    if judged != u64::try_from(case.inputs.len()).unwrap() {
        return Err(format!("counted {judged}"));
    }
    Ok(counts)
}

#[test]
fn no_reader_notices_a_merge_and_nothing_needless_is_kept() {
    let mut rng = Rng::new(7);
    let mut total = SurvivorCounts::default();
    for round in 0..100_000 {
        let case = random_case(&mut rng);
        let counts = check(&case).unwrap_or_else(|error| {
            panic!(
                "round {round}: {error}\ninputs {:?}\nbelow {:?}\nsnapshots {:?}",
                case.inputs, case.below, case.snapshots
            )
        });
        // Minimal: a key and a stripe keep one entry at most.
        let stripes = case.snapshots.iter().collect::<std::collections::BTreeSet<_>>().len() + 1;
        assert!(counts.kept <= u64::try_from(6 * stripes).unwrap());
        if case.snapshots.is_empty() && case.runs.is_empty() {
            let live = seen(&case.inputs, SeqNo::MAX.0).len();
            assert_eq!(
                counts.kept,
                u64::try_from(live).unwrap(),
                "with nothing below and no snapshot only what is visible stays"
            );
        }
        total.kept += counts.kept;
        total.dropped_versions += counts.dropped_versions;
        total.dropped_tombstones += counts.dropped_tombstones;
    }
    assert!(total.dropped_tombstones > 10_000 && total.dropped_versions > 100_000, "{total:?}");
}

/// Reliability 3, row 23: stores took a snapshot at 0 for "no snapshot" and dropped what it needed.
#[test]
fn a_snapshot_at_zero_counts() {
    let mut survivor = Survivor::new(vec![SeqNo::ZERO], OlderRuns::new(Vec::new()));
    let keep = |survivor: &mut Survivor, seq, kind| survivor.judge(b"k", Trailer::new(SeqNo(seq), kind)).keep;
    assert!(
        keep(&mut survivor, 5, Kind::Delete),
        "the reader at 0 sees the older version, so others need the tombstone"
    );
    assert!(!keep(&mut survivor, 4, Kind::Put));
    assert!(keep(&mut survivor, 0, Kind::Put));
}
