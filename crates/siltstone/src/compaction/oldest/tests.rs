use std::collections::BTreeSet;

use bytes::Bytes;

use super::*;
use crate::compaction::{Action, CompactionPolicy, Sizes, Strategy, plan};
use crate::io::Rng;
use crate::version::text::parse;
use crate::version::{LevelId, Run, SstId, Version};

const SIZES: Sizes = Sizes { memtable_bytes: 1000, file_bytes: 1000, size_ratio: 0, level1_bytes: 0 };

/// Random levels of random runs. Every record of the tree has its own sequence number, and those of one key obey age order; so the
/// sequence numbers of a file are whatever its records make them.
fn random_tree(rng: &mut Rng) -> (Version, Vec<Vec<(u64, u64)>>) {
    let keys = rng.between(3, 30);
    let mut version = Version::empty();
    version.levels.resize_with(4, Default::default);
    let mut seq = 1000;
    let mut records = Vec::new();
    // Newest places first get the largest numbers of each key; shuffling the levels of one key is what merges of parts do.
    for level in 0..4u8 {
        for run in 0..rng.below(if level == 0 { 6 } else { 3 }) {
            let mut files = Vec::new();
            let mut key = rng.below(3);
            while key < keys {
                let last = (key + rng.below(5)).min(keys - 1);
                let mut held = Vec::new();
                for key in key..=last {
                    if rng.one_in(2) || key == last {
                        seq -= 1;
                        // Now and then something much older, as merges collect it.
                        let number = if rng.one_in(4) { seq } else { seq / 2 };
                        held.push((key, number));
                    }
                }
                let first = held[0].0;
                let id = crate::num::to_u64(records.len());
                files.push(file(id, first, last, &held, rng.between(1, 400)));
                records.push(held);
                key = last + 1 + rng.below(4);
            }
            if !files.is_empty() {
                let order = crate::version::RunOrder(100 - run);
                version.levels[usize::from(level)].runs.push(Run { order, files: files.into() });
            }
        }
    }
    (version, records)
}

fn key(n: u64) -> Bytes {
    Bytes::copy_from_slice(&n.to_be_bytes())
}

fn file(id: u64, first: u64, last: u64, records: &[(u64, u64)], bytes: u64) -> Arc<FileMeta> {
    let seqs = || records.iter().map(|(_, seq)| *seq);
    Arc::new(FileMeta {
        id: SstId(id),
        bytes,
        entries: crate::num::to_u64(records.len()),
        tombstones: 0,
        range_tombstones: 0,
        raw_bytes: bytes,
        smallest: key(first),
        largest: key(last),
        min_seq: SeqNo(seqs().min().unwrap()),
        max_seq: SeqNo(seqs().max().unwrap()),
        created_ms: seqs().max().unwrap(),
        oldest_tombstone_ms: None,
        entered_level_ms: 0,
        whole: None,
    })
}

/// The files that go with `id`, by following one overlap after the other.
fn goes_with(version: &Version, id: SstId) -> BTreeSet<SstId> {
    let all: Vec<(Place, &Arc<FileMeta>)> =
        places(version).flat_map(|(place, run)| run.files.iter().map(move |file| (place, file))).collect();
    let mut gone = BTreeSet::from([id]);
    loop {
        let more: Vec<SstId> = all
            .iter()
            .filter(|(place, file)| {
                all.iter().any(|(newer, other)| {
                    gone.contains(&other.id) && newer < place && other.overlaps(&file.smallest, &file.largest)
                })
            })
            .map(|(_, file)| file.id)
            .filter(|id| !gone.contains(id))
            .collect();
        if more.is_empty() {
            return gone;
        }
        gone.extend(more);
    }
}

/// The order in which files go is that of the definition; whatever prefix of it goes is legal, and nothing else of as many bytes is younger.
#[test]
fn ages_are_those_of_the_definition_and_every_prefix_is_legal() {
    let policy = Strategy::named("rocksdb-fifo").unwrap();
    let mut rng = Rng::new(7);
    let (mut hidden, mut plans) = (0, 0);
    for _ in 0..3000 {
        let (version, _) = random_tree(&mut rng);
        let view = LsmView::new(&version, SIZES).with_losses(true);
        let mut all = ages(&view);
        for aged in &all {
            let with = goes_with(&version, aged.file.id);
            let youngest =
                version.files().filter(|(_, _, file)| with.contains(&file.id)).map(|(_, _, file)| file.max_seq);
            assert_eq!(Some(aged.age), youngest.max());
            hidden += u32::from(aged.age > aged.file.max_seq);
        }
        all.sort_by(Aged::order);
        let bytes = version.bytes();
        let limit_bytes = SIZES.memtable_bytes * 16;
        let small = Sizes { memtable_bytes: (bytes / 20).max(1), ..SIZES };
        let limit = if rng.one_in(2) { small } else { SIZES };
        let view = LsmView::new(&version, limit).with_losses(true);
        let limit = if limit == SIZES { limit_bytes } else { small.memtable_bytes * 16 };
        let Some(plan) = plan(&policy, &view).unwrap() else {
            assert!(bytes < limit || bytes == 0);
            continue;
        };
        plans += 1;
        assert_eq!(plan.action, Action::Drop);
        assert!(plan.loses(&view));
        let gone: BTreeSet<SstId> = plan.files().map(|file| file.id).collect();
        let first: BTreeSet<SstId> = all.iter().take(gone.len()).map(|aged| aged.file.id).collect();
        assert_eq!(gone, first);
        // Not a file more than must go.
        let left = bytes - plan.input_bytes();
        assert!(left < limit && left + all[gone.len() - 1].file.bytes >= limit);
        for id in &gone {
            assert!(goes_with(&version, *id).is_subset(&gone), "what it hides goes with it");
        }
    }
    assert!(hidden > 1000 && plans > 1000, "{hidden} {plans}");
}

/// Throws dice for sets of files: the law lets pass exactly those that are closed and of which nothing older stays.
#[test]
fn the_law_lets_only_the_oldest_go() {
    let mut rng = Rng::new(8);
    let (mut legal, mut kept) = (0, 0);
    for _ in 0..4000 {
        let (version, _) = random_tree(&mut rng);
        let newest = rng.one_in(2).then(|| SeqNo(rng.below(1000)));
        let view = LsmView::new(&version, SIZES).with_losses(true).with_snapshots(newest, newest);
        let mut all = ages(&view);
        all.sort_by(Aged::order);
        if all.is_empty() {
            continue;
        }
        let mut some: Vec<Aged<'_>> =
            all[..crate::num::to_usize(rng.between(1, crate::num::to_u64(all.len())))].to_vec();
        if rng.one_in(2) {
            some.remove(crate::num::to_usize(rng.below(crate::num::to_u64(some.len()))));
        }
        if some.is_empty() {
            continue;
        }
        let ids: BTreeSet<SstId> = some.iter().map(|aged| aged.file.id).collect();
        let closed = ids.iter().all(|id| goes_with(&version, *id).is_subset(&ids));
        let youngest = some.iter().map(|aged| aged.file.max_seq).max().unwrap();
        let oldest = all.iter().filter(|aged| !ids.contains(&aged.file.id)).all(|aged| aged.age >= youngest);
        let seen = some.iter().any(|aged| newest.is_some_and(|seq| aged.file.min_seq <= seq));
        let template = Strategy::named("leveling").unwrap();
        let inputs = inputs(&some);
        let plan = crate::compaction::Plan {
            output: inputs[0].place(),
            inputs,
            action: Action::Drop,
            cut: template.cut(&view),
            borders: Vec::new(),
            reuse: crate::compaction::Reuse::Never,
            release: crate::compaction::Release::AtEnd,
            cursor: None,
            record: crate::compaction::DecisionRecord::new(crate::compaction::Reason::Manual, "", 0.0, 0.0),
        };
        assert_eq!(plan.check(&view).is_ok(), closed && oldest && !seen, "{:?}", plan.check(&view));
        let forbidden = plan.check(&view.clone().with_losses(false)).unwrap_err();
        assert_eq!(forbidden.law.name(), "drop-loses-nothing");
        legal += u32::from(plan.check(&view).is_ok());
        kept += u32::from(seen);
    }
    assert!(legal > 500 && kept > 500, "{legal} {kept}");
}

#[test]
fn time_alone_drops_what_is_too_old() {
    let policy = Strategy::parse(
        "name = \"x\"\nlayout = { kind = \"log\" }\n[[rule]]\ntrigger = { kind = \"data-ttl\", ttl = \"10s\" }\n\
         granularity = { kind = \"drop-oldest\" }\n",
    )
    .unwrap();
    let mut version = parse("L0 3:a-m:10\nL0 2:b-z:10\nL0 1:a-c:10\n").unwrap();
    for (run, written) in version.levels[0].runs.iter_mut().zip([30_000, 20_000, 10_000]) {
        let mut file = (*run.files[0]).clone();
        (file.created_ms, file.min_seq, file.max_seq) = (written, SeqNo(written), SeqNo(written + 1));
        run.files = vec![Arc::new(file)].into();
    }
    let at = |ms: u64| LsmView::new(&version, SIZES).with_losses(true).at(ms);
    let gone = |ms: u64| {
        let plan = plan(&policy, &at(ms)).unwrap();
        plan.map(|plan| plan.files().map(|file| file.id.0).collect::<Vec<_>>()).unwrap_or_default()
    };
    assert_eq!((gone(19_999), gone(20_000), gone(30_000), gone(90_000)), (vec![], vec![1], vec![2, 1], vec![3, 2, 1]));
    assert_eq!(policy.next_time_ms(&at(12_000)), Some(20_000));
    assert_eq!(policy.run_limit(&at(0), LevelId(0)), u32::MAX);
    let held = at(90_000).with_snapshots(Some(SeqNo(5)), Some(SeqNo(20_500)));
    assert!(plan(&policy, &held).unwrap().is_none(), "the oldest file is seen, and the others come after it");
}
