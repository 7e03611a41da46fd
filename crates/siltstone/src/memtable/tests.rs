//! The memtable against an ordered map, and readers against a writer.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::io::Rng;
use crate::iter::{Approach, Target};
use crate::key::Kind;

type Model = BTreeMap<(Vec<u8>, Reverse<Trailer>), Vec<u8>>;

/// The key laws that stress the tree: what is common, what ties, what is short, what comes in order.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Law {
    Binary,
    Decimal,
    Ascending,
    LongShared,
    Short,
    Hot,
    MixedLengths,
}

const LAWS: [Law; 7] =
    [Law::Binary, Law::Decimal, Law::Ascending, Law::LongShared, Law::Short, Law::Hot, Law::MixedLengths];

impl Law {
    fn key(self, n: u64, rng: &mut Rng) -> Vec<u8> {
        let random = rng.next_u64();
        match self {
            Law::Binary => [random.to_be_bytes(), n.to_be_bytes()].concat(),
            Law::Decimal => format!("{:016}", random % 5000).into_bytes(),
            Law::Ascending => format!("user{n:012}").into_bytes(),
            Law::LongShared => format!("tenant/0123456789/table/objects/{:07}", random % 5000).into_bytes(),
            // Zeros and nothing: padding must not confuse them.
            Law::Short => vec![0; to_usize(random % 24)],
            Law::Hot => format!("key{}", random % 3).into_bytes(),
            Law::MixedLengths => {
                let mut key = vec![b'a'; to_usize(random % 300)];
                if let Some(byte) = key.get_mut(to_usize(random >> 32) % 300) {
                    *byte = 0;
                }
                key
            }
        }
    }
}

use crate::num::to_usize;

fn entry(seq: u64, rng: &mut Rng) -> (Trailer, Vec<u8>) {
    if rng.one_in(4) {
        (Trailer::new(SeqNo(seq), Kind::Delete), Vec::new())
    } else {
        (Trailer::new(SeqNo(seq), Kind::Put), vec![b'v'; to_usize(rng.below(40))])
    }
}

fn fill(kind: MemtableKind, law: Law, entries: u64, capacity: u64) -> (MemtableWriter, Model) {
    let (mut writer, _) = new(kind, capacity);
    let model = insert(&mut writer, law, entries, |_, _| ());
    (writer, model)
}

/// Inserts `entries`, and calls `after` with the writer and the number of each.
fn insert(writer: &mut MemtableWriter, law: Law, entries: u64, after: impl Fn(&MemtableWriter, u64)) -> Model {
    let mut rng = Rng::new(11 + entries);
    let mut model = Model::new();
    for n in 0..entries {
        let key = law.key(n, &mut rng);
        let (trailer, value) = entry(n + 1, &mut rng);
        writer.insert(&key, trailer, &value);
        model.insert((key, Reverse(trailer)), value);
        after(writer, n);
    }
    model
}

fn owned(entry: Option<Entry<'_>>) -> Option<(Vec<u8>, Trailer, Vec<u8>)> {
    entry.map(|entry| (entry.key.to_vec(), entry.trailer, entry.value.to_vec()))
}

type Row<'m> = (&'m (Vec<u8>, Reverse<Trailer>), &'m Vec<u8>);

fn row(row: Option<Row<'_>>) -> Option<(Vec<u8>, Trailer, Vec<u8>)> {
    row.map(|(key, value)| (key.0.clone(), key.1.0, value.clone()))
}

/// Every law, both kinds, sizes around the splits, arenas that must grow: reads and moves are those of an ordered map.
#[test]
fn agrees_with_an_ordered_map() {
    for kind in [MemtableKind::Tree, MemtableKind::SortedVector] {
        for law in LAWS {
            for (entries, capacity) in [(0, 4096), (1, 0), (81, 4096), (700, 4096), (12_000, 1 << 20)] {
                let (writer, model) = fill(kind, law, entries, capacity);
                check(&writer, &model, law, &format!("{kind:?} {law:?} {entries}"));
            }
        }
    }
}

fn check(writer: &MemtableWriter, model: &Model, law: Law, what: &str) {
    let table = writer.table();
    assert_eq!(table.entries(), model.len() as u64, "{what}");
    assert_eq!(table.is_empty(), model.is_empty());
    assert_eq!(table.tombstones(), model.keys().filter(|key| key.1.0.is_delete()).count() as u64);
    assert_eq!(table.raw_bytes(), model.iter().map(|(key, value)| (key.0.len() + value.len()) as u64).sum::<u64>());
    assert_eq!(table.max_seq(), SeqNo(model.len() as u64));
    assert_eq!(table.min_seq(), if model.is_empty() { SeqNo::MAX } else { SeqNo(1) });
    let mut rng = Rng::new(5);
    let mut cursor = table.cursor();
    assert!(cursor.entry().is_none());

    cursor.seek_first().unwrap();
    for expected in model {
        assert_eq!(owned(cursor.entry()), row(Some(expected)), "{what}");
        cursor.next().unwrap();
    }
    assert!(cursor.entry().is_none(), "{what}");
    cursor.seek_last().unwrap();
    for expected in model.iter().rev() {
        assert_eq!(owned(cursor.entry()), row(Some(expected)), "{what}");
        cursor.prev().unwrap();
    }
    assert!(cursor.entry().is_none(), "{what}");

    let keys: Vec<&Vec<u8>> = model.keys().map(|key| &key.0).collect();
    for n in 0..1000 {
        let key = match keys.len() {
            0 => law.key(n, &mut rng),
            _ if rng.one_in(2) => law.key(rng.below(2 * n + 1), &mut rng),
            len => keys[to_usize(rng.below(len as u64))].clone(),
        };
        let seq = SeqNo(rng.below(model.len() as u64 + 2));
        let from = (key.clone(), Reverse(Trailer::seek(seq)));
        let expected = row(model.range(from.clone()..).next().filter(|(found, _)| found.0 == key));
        let got = table.get(&key, seq).map(|(trailer, value)| (key.clone(), trailer, value.to_vec()));
        assert_eq!(got, expected, "{what}: get {key:?} at {seq:?}");

        let before = rng.one_in(2);
        cursor.approach(Approach::Block, Target { key: &key, trailer: from.1.0, before });
        let mut at = if !before {
            cursor.seek(&key, from.1.0).unwrap();
            model.range(from.clone()..).next()
        } else {
            cursor.seek_before(&key, from.1.0).unwrap();
            model.range(..from).next_back()
        };
        assert_eq!(owned(cursor.entry()), row(at), "{what}: seek {key:?} at {seq:?}");
        for _ in 0..rng.below(100) {
            let Some((here, _)) = at else { break };
            at = if rng.one_in(2) {
                cursor.next().unwrap();
                model.range((std::ops::Bound::Excluded(here), std::ops::Bound::Unbounded)).next()
            } else {
                cursor.prev().unwrap();
                model.range(..here).next_back()
            };
            assert_eq!(owned(cursor.entry()), row(at), "{what}: step from {here:?}");
        }
    }
}

/// A record larger than everything else gets memory of its own, and what was there before stays where it was.
#[test]
fn holds_records_larger_than_it_was_made_for() {
    for kind in [MemtableKind::Tree, MemtableKind::SortedVector] {
        let (mut writer, table) = new(kind, 1000);
        let value = vec![7; 3 << 20];
        let mut before = table.bytes();
        for n in 1..=6u64 {
            writer.insert(&n.to_be_bytes(), Trailer::new(SeqNo(n), Kind::Put), &value);
            assert!(table.bytes() > before + value.len() as u64);
            before = table.bytes();
            writer.insert(b"small", Trailer::new(SeqNo(n), Kind::Put), &n.to_be_bytes());
        }
        for n in 1..=6u64 {
            assert_eq!(table.get(&n.to_be_bytes(), SeqNo::MAX).unwrap().1, value);
            assert_eq!(table.get(b"small", SeqNo(n)).unwrap().1, n.to_be_bytes());
        }
        assert_eq!(table.get(b"small", SeqNo::ZERO), None);
    }
}

/// Readers race a writer: every published entry is found, at its value, by get, seek and both scans, and order always holds.
#[test]
#[expect(clippy::disallowed_methods, reason = "the test is about threads that race")]
fn readers_racing_the_writer_see_all_that_was_published() {
    const ENTRIES: usize = 40_000;
    for kind in [MemtableKind::Tree, MemtableKind::SortedVector] {
        for law in [Law::Binary, Law::Decimal, Law::Ascending, Law::Hot] {
            let mut rng = Rng::new(3);
            let entries = if kind == MemtableKind::Tree { ENTRIES } else { ENTRIES / 40 };
            let keys: Vec<Vec<u8>> = (0..entries as u64).map(|n| law.key(n, &mut rng)).collect();
            let (mut writer, table) = new(kind, 64 << 10);
            let published = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for reader in 0..2 {
                    let (keys, table, published) = (&keys, &table, &published);
                    scope.spawn(move || race(keys, table, published, Rng::new(reader)));
                }
                for (n, key) in keys.iter().enumerate() {
                    let trailer = Trailer::new(SeqNo(n as u64 + 1), Kind::Put);
                    writer.insert(key, trailer, &(n as u64).to_le_bytes());
                    published.store(n + 1, Ordering::Release);
                }
            });
        }
    }
}

fn race(keys: &[Vec<u8>], table: &Arc<Memtable>, published: &AtomicUsize, mut rng: Rng) {
    let mut cursor = table.cursor();
    loop {
        let count = published.load(Ordering::Acquire);
        if count == 0 {
            continue;
        }
        let n = to_usize(rng.below(count as u64));
        let trailer = Trailer::new(SeqNo(n as u64 + 1), Kind::Put);
        let value = (n as u64).to_le_bytes();
        assert_eq!(table.get(&keys[n], trailer.seq()), Some((trailer, &value[..])));
        cursor.seek(&keys[n], trailer).unwrap();
        let entry = cursor.entry().expect("published");
        assert_eq!((entry.key, entry.trailer, entry.value), (&keys[n][..], trailer, &value[..]));
        if rng.one_in(200) {
            scan(&mut cursor, count, true);
            scan(&mut cursor, count, false);
        }
        if count == keys.len() {
            return;
        }
    }
}

/// A whole scan meets every entry published before it began, in order.
fn scan(cursor: &mut MemtableCursor, published: usize, forward: bool) {
    if forward { cursor.seek_first() } else { cursor.seek_last() }.unwrap();
    let mut last: Option<(Vec<u8>, Trailer)> = None;
    let mut met = 0;
    while let Some(entry) = cursor.entry() {
        met += usize::from(entry.trailer.seq().0 <= published as u64);
        if let Some((key, trailer)) = &last {
            let order = key::compare(key, *trailer, entry.key, entry.trailer);
            assert_eq!(order.is_lt(), forward);
            assert!(order.is_ne());
        }
        last = Some((entry.key.to_vec(), entry.trailer));
        if forward { cursor.next() } else { cursor.prev() }.unwrap();
    }
    assert_eq!(met, published);
}

/// Memory is made ready ahead of the writer, in proportion to what he has used, and for the next memtable once this one is half full.
#[test]
fn memory_is_ready_before_the_writer_comes_to_it() {
    const CAPACITY: u64 = 32 << 20;
    let pool = Arc::default();
    let (mut writer, table) = new_in(MemtableKind::Tree, CAPACITY, &pool);
    let prepared = |table: &Memtable| std::iter::from_fn(|| table.prepare(true).then_some(())).count();
    assert_eq!(prepared(&table), 0, "nobody writes to it");
    let mut seq = 0u64;
    let mut fill = |writer: &mut MemtableWriter, bytes: u64| {
        while writer.table().bytes() < bytes {
            seq += 1;
            writer.insert(&seq.to_be_bytes(), Trailer::new(SeqNo(seq), Kind::Put), &[7; 4000]);
        }
    };
    fill(&mut writer, 1 << 20);
    assert!((6..=7).contains(&prepared(&table)), "four times one mebibyte and eight more, in pages of two");
    assert_eq!(prepared(&table), 0);
    fill(&mut writer, CAPACITY);
    let rest = std::iter::from_fn(|| table.prepare(false).then_some(())).count();
    assert!((9..=11).contains(&rest), "what is left of 32 MiB and the filter, not of what nobody comes to: {rest}");
    assert_eq!((prepared(&table), prepared(&table)), (1, 0), "where the next memtable begins");
    let (_, next) = new_in(MemtableKind::Tree, CAPACITY, &pool);
    let (_, third) = new_in(MemtableKind::Tree, CAPACITY, &pool);
    assert_eq!((prepared(&table), prepared(&next), prepared(&third)), (0, 0, 0), "all of a round are there");
    drop((writer, table));
    let (mut writer, table) = new_in(MemtableKind::Tree, CAPACITY, &pool);
    writer.rest();
    writer.insert(b"key", Trailer::new(SeqNo(1), Kind::Put), b"value");
    assert_eq!(prepared(&table), 4, "at rest it gave back what the first one had filled, but for two mebibytes");
}

/// What a memtable holds stays when it gives back the memory behind it, which an earlier one had filled with something else.
#[test]
fn at_rest_a_memtable_keeps_what_it_holds() {
    let pool = Arc::default();
    for law in [Law::Binary, Law::Decimal] {
        let (mut writer, _) = new_in(MemtableKind::Tree, 8 << 20, &pool);
        let model = insert(&mut writer, law, 100_000, |writer, n| {
            if n % 1000 == 0 {
                writer.rest();
            }
        });
        assert!(writer.table().bytes() > 4 << 20, "it comes past some huge pages");
        check(&writer, &model, law, &format!("{law:?}"));
    }
}
