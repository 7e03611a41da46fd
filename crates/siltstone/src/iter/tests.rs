//! The iterators against ordered maps: random sources, versions, tombstones, snapshots, bounds, turns and failures.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;

use bytes::Bytes;

use super::*;
use crate::error::{Error, ErrorKind};
use crate::io::Rng;
use crate::key::{Kind, SeqNo};
use crate::num::to_usize;

/// An entry in internal order.
type Row = (Vec<u8>, Reverse<Trailer>, Vec<u8>);

/// A source that is a sorted list. It fails, and stays failed, when the moves that all sources share have run out.
struct ListCursor {
    rows: Rc<Vec<Row>>,
    at: usize,
    moves_left: Rc<Cell<u64>>,
}

impl ListCursor {
    fn new(rows: Vec<Row>, moves_left: &Rc<Cell<u64>>) -> ListCursor {
        ListCursor { rows: Rc::new(rows), at: usize::MAX, moves_left: Rc::clone(moves_left) }
    }

    fn go(&mut self, to: usize) -> Result<()> {
        let left = self.moves_left.get();
        if left == 0 {
            self.at = usize::MAX;
            return Err(Error::new(ErrorKind::Io, "planted"));
        }
        self.moves_left.set(left - 1);
        self.at = to;
        Ok(())
    }

    fn bound(&self, key: &[u8], trailer: Trailer) -> usize {
        self.rows.partition_point(|row| (&row.0[..], row.1) < (key, Reverse(trailer)))
    }
}

impl Cursor for ListCursor {
    fn seek_first(&mut self) -> Result<()> {
        self.go(0)
    }
    fn seek_last(&mut self) -> Result<()> {
        self.go(self.rows.len().wrapping_sub(1))
    }
    fn seek(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        self.go(self.bound(key, trailer))
    }
    fn seek_before(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        self.go(self.bound(key, trailer).wrapping_sub(1))
    }
    fn next(&mut self) -> Result<()> {
        assert!(self.entry().is_some());
        self.go(self.at + 1)
    }
    fn prev(&mut self) -> Result<()> {
        assert!(self.entry().is_some());
        self.go(self.at.wrapping_sub(1))
    }
    fn next_at_hand(&mut self) -> Option<Arrival> {
        // Two of three entries are where the one before is.
        let at = self.at.wrapping_add(1);
        let (key, Reverse(trailer), _) = self.rows.get(at).filter(|_| at > 0 && !at.is_multiple_of(3))?;
        self.at = at;
        Some(Arrival { head: key::head(key), key_len: key.len(), trailer: *trailer })
    }
    fn entry(&self) -> Option<Entry<'_>> {
        self.rows.get(self.at).map(|row| Entry { key: &row.0, trailer: row.1.0, value: &row.2 })
    }
}

/// Keys that stress heads: short ones, zeros, and ones that differ after 16 bytes only.
fn key(rng: &mut Rng) -> Vec<u8> {
    match rng.below(4) {
        0 => vec![0; to_usize(rng.below(20))],
        1 => format!("a-key-of-which-the-end-differs-{}", rng.below(20)).into_bytes(),
        2 => vec![0xff; to_usize(rng.below(20))],
        _ => format!("{}", rng.below(60)).into_bytes(),
    }
}

fn endless() -> Rc<Cell<u64>> {
    Rc::new(Cell::new(u64::MAX))
}

/// Random entries, dealt to `sources` lists. Values name the source, so that the order of equal entries shows.
fn sources(rng: &mut Rng, entries: u64, sources: usize, ties: bool) -> Vec<Vec<Row>> {
    let mut lists: Vec<BTreeSet<Row>> = vec![BTreeSet::new(); sources];
    let mut hot = key(rng);
    for n in 0..entries {
        if rng.one_in(30) {
            hot = key(rng);
        }
        let key = if rng.one_in(2) { hot.clone() } else { key(rng) };
        let kind = if rng.one_in(3) { Kind::Delete } else { Kind::Put };
        let row = |list: usize, seq: u64| {
            let value = if kind == Kind::Delete { Vec::new() } else { format!("{list}/{seq}").into_bytes() };
            (key.clone(), Reverse(Trailer::new(SeqNo(seq), kind)), value)
        };
        for list in 0..if ties { 2 } else { 1 } {
            let to = to_usize(rng.below(sources as u64));
            // With ties, the same entry may go to two sources, though never twice to one.
            if list == 0 || !lists[to].iter().any(|known| known.1.0.seq() == SeqNo(n + 1)) {
                lists[to].insert(row(to, n + 1));
            }
        }
    }
    lists.into_iter().map(|list| list.into_iter().collect()).collect()
}

/// All entries in the order in which a merge gives them.
fn merged(lists: &[Vec<Row>]) -> Vec<Row> {
    let mut all: Vec<(usize, &Row)> = Vec::new();
    for (index, list) in lists.iter().enumerate() {
        all.extend(list.iter().map(|row| (index, row)));
    }
    all.sort_by_key(|(index, row)| (&row.0, row.1, *index));
    all.into_iter().map(|(_, row)| row.clone()).collect()
}

fn row(entry: Option<Entry<'_>>) -> Option<Row> {
    entry.map(|entry| (entry.key.to_vec(), Reverse(entry.trailer), entry.value.to_vec()))
}

/// Seeks, steps and turns, compared with positions in a list.
fn walk(cursor: &mut impl Cursor, rows: &[Row], rng: &mut Rng, moves: u64) {
    assert!(cursor.entry().is_none());
    let mut at = usize::MAX;
    for _ in 0..moves {
        let here = rows.get(at).is_some();
        let (to, trailer) = (key(rng), Trailer::seek(SeqNo(rng.below(rows.len() as u64 + 2))));
        let bound = rows.partition_point(|row| (&row.0, row.1) < (&to, Reverse(trailer)));
        let go = rng.below(if here { 24 } else { 4 });
        // A seek may be approached, wholly or in part; one to an end forgets what was approached.
        for step in Approach::STEPS.into_iter().take(to_usize(rng.below(4))).filter(|_| go < 4) {
            cursor.approach(step, Target { key: &to, trailer, before: go == 3 });
        }
        match go {
            0 => (at, _) = (0, cursor.seek_first().unwrap()),
            1 => (at, _) = (rows.len().wrapping_sub(1), cursor.seek_last().unwrap()),
            2 => (at, _) = (bound, cursor.seek(&to, trailer).unwrap()),
            3 => (at, _) = (bound.wrapping_sub(1), cursor.seek_before(&to, trailer).unwrap()),
            n if n % 3 == 0 => (at, _) = (at.wrapping_sub(1), cursor.prev().unwrap()),
            n => {
                at += 1;
                let arrival = if n % 3 == 1 { cursor.next_at_hand() } else { None };
                match (arrival, rows.get(at)) {
                    (Some(Arrival { head, key_len, trailer }), Some((key, Reverse(there), _))) => {
                        assert_eq!((head, key_len, trailer), (key::head(key), key.len(), *there));
                    }
                    (arrival, _) => {
                        assert!(arrival.is_none(), "behind the end");
                        cursor.next().unwrap();
                    }
                }
            }
        }
        assert_eq!(row(cursor.entry()), rows.get(at).cloned());
    }
}

#[test]
fn a_merge_is_the_sorted_union_in_both_directions() {
    let mut rng = Rng::new(1);
    for round in 0..300 {
        let (count, entries) = (to_usize(rng.below(7)), rng.below(200));
        let lists = if count == 0 { Vec::new() } else { sources(&mut rng, entries, count, round % 2 == 0) };
        let all = merged(&lists);
        let endless = endless();
        let cursors = || lists.iter().map(|list| ListCursor::new(list.clone(), &endless)).collect();
        walk(&mut Merging::new(cursors()), &all, &mut rng, 300);

        let mut forward = MergeForward::new(cursors());
        assert!(forward.peek().is_none());
        forward.seek_first().unwrap();
        for expected in &all {
            assert_eq!(row(forward.peek()).as_ref(), Some(expected));
            let source = forward.source().unwrap();
            assert!(lists[source].contains(expected));
            forward.advance().unwrap();
        }
        assert!(forward.peek().is_none() && forward.source().is_none());
        let (to, trailer) = (key(&mut rng), Trailer::seek(SeqNo(rng.below(200))));
        forward.seek(&to, trailer).unwrap();
        let bound = all.partition_point(|row| (&row.0, row.1) < (&to, Reverse(trailer)));
        assert_eq!(row(forward.peek()), all.get(bound).cloned());
    }
}

/// A run cut into files at any entry, empty ones included.
struct Files {
    files: Vec<Vec<Row>>,
    open: Rc<Cell<u32>>,
    moves_left: Rc<Cell<u64>>,
}

/// Counts how many files are open at once.
struct Counted(ListCursor, Rc<Cell<u32>>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.set(self.1.get() - 1);
    }
}

impl Cursor for Counted {
    fn seek_first(&mut self) -> Result<()> {
        self.0.seek_first()
    }
    fn seek_last(&mut self) -> Result<()> {
        self.0.seek_last()
    }
    fn seek(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        self.0.seek(key, trailer)
    }
    fn seek_before(&mut self, key: &[u8], trailer: Trailer) -> Result<()> {
        self.0.seek_before(key, trailer)
    }
    fn next(&mut self) -> Result<()> {
        self.0.next()
    }
    fn prev(&mut self) -> Result<()> {
        self.0.prev()
    }
    fn next_at_hand(&mut self) -> Option<Arrival> {
        self.0.next_at_hand()
    }
    fn entry(&self) -> Option<Entry<'_>> {
        self.0.entry()
    }
}

impl FileCursors for Files {
    type Cursor = Counted;
    fn len(&self) -> usize {
        self.files.len()
    }
    fn bounds(&self, index: usize) -> (&[u8], &[u8]) {
        let file = &self.files[index];
        (&file[0].0, &file[file.len() - 1].0)
    }
    fn open(&self, index: usize) -> Result<Counted> {
        self.open.set(self.open.get() + 1);
        assert_eq!(self.open.get(), 1, "one file at a time");
        Ok(Counted(ListCursor::new(self.files[index].clone(), &self.moves_left), Rc::clone(&self.open)))
    }
}

fn cut(rows: &[Row], rng: &mut Rng, moves_left: &Rc<Cell<u64>>) -> RunCursor<Files> {
    let mut files: Vec<Vec<Row>> = Vec::new();
    for row in rows {
        match files.last_mut() {
            Some(file) if !rng.one_in(5) => file.push(row.clone()),
            _ => files.push(vec![row.clone()]),
        }
    }
    RunCursor::new(Files { files, open: Rc::default(), moves_left: Rc::clone(moves_left) })
}

#[test]
fn a_run_is_the_concatenation_of_its_files() {
    let mut rng = Rng::new(2);
    for _ in 0..300 {
        let entries = rng.below(100);
        let rows = merged(&sources(&mut rng, entries, 1, false));
        walk(&mut cut(&rows, &mut rng, &endless()), &rows, &mut rng, 200);
    }
}

/// What a read at `seq` sees: the newest version of each key, without tombstones.
fn seen(rows: &[Row], seq: SeqNo, bounds: &Bounds) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut newest: BTreeMap<Vec<u8>, (Trailer, Vec<u8>)> = BTreeMap::new();
    for (key, Reverse(trailer), value) in rows.iter().rev() {
        if trailer.seq() <= seq {
            newest.insert(key.clone(), (*trailer, value.clone()));
        }
    }
    newest.retain(|key, (trailer, _)| !trailer.is_delete() && contains(bounds, key));
    newest.into_iter().map(|(key, (_, value))| (key, value)).collect()
}

fn contains(bounds: &Bounds, key: &[u8]) -> bool {
    use std::ops::RangeBounds;
    let range = (bounds.lower.as_ref().map(|key| &key[..]), bounds.upper.as_ref().map(|key| &key[..]));
    RangeBounds::<[u8]>::contains(&range, key)
}

fn bound(rng: &mut Rng) -> Bound<Bytes> {
    let key = Bytes::from(key(rng));
    match rng.below(3) {
        0 => Bound::Included(key),
        1 => Bound::Excluded(key),
        _ => Bound::Unbounded,
    }
}

type Stack = Visible<Merging<RunCursor<Files>>>;

/// Random sources cut into files, merged, seen at a random sequence number within random bounds.
fn stack(rng: &mut Rng, moves_left: &Rc<Cell<u64>>) -> (Stack, BTreeMap<Vec<u8>, Vec<u8>>) {
    let (entries, count) = (rng.below(250), 1 + to_usize(rng.below(5)));
    let lists = sources(rng, entries, count, false);
    let seq = SeqNo(rng.below(entries + 2));
    let bounds = Bounds { lower: bound(rng), upper: bound(rng) };
    let model = seen(&merged(&lists), seq, &bounds);
    let runs = lists.iter().map(|list| cut(list, rng, moves_left)).collect();
    (Visible::new(Merging::new(runs), seq, bounds), model)
}

fn shown(it: &Stack) -> Option<(&[u8], &[u8])> {
    it.valid().then(|| (it.key(), it.value()))
}

fn pair<'m>(row: Option<(&'m Vec<u8>, &'m Vec<u8>)>) -> Option<(&'m [u8], &'m [u8])> {
    row.map(|(key, value)| (&key[..], &value[..]))
}

#[test]
fn a_reader_sees_each_key_once_at_its_newest_visible_version() {
    let mut rng = Rng::new(3);
    for round in 0..600 {
        let (mut it, model) = stack(&mut rng, &endless());
        assert!(!it.valid());
        let mut at: Option<Vec<u8>> = None;
        for _ in 0..150 {
            let to = key(&mut rng);
            let expected = match (rng.below(if at.is_some() { 16 } else { 4 }), &at) {
                (0, _) => (it.seek_first().unwrap(), model.iter().next()).1,
                (1, _) => (it.seek_last().unwrap(), model.iter().next_back()).1,
                (2, _) => (it.seek(&to).unwrap(), model.range(to..).next()).1,
                (3, _) => (it.seek_back(&to).unwrap(), model.range(..=to).next_back()).1,
                (n, Some(key)) if n < 9 => (it.prev().unwrap(), model.range(..key.clone()).next_back()).1,
                (_, key) => {
                    it.next().unwrap();
                    let key = key.clone().expect("only then are there more ways to move");
                    model.range((Bound::Excluded(key), Bound::Unbounded)).next()
                }
            };
            assert_eq!(shown(&it), pair(expected), "round {round}");
            at = expected.map(|(key, _)| key.clone());
        }
    }
}

/// Every move of every source fails in turn: what was shown before is right, and after the error there is nothing but it.
#[test]
fn an_error_ends_an_iteration_for_good() {
    for seed in 0..40 {
        for moves in 0.. {
            let left = Rc::new(Cell::new(moves));
            let (mut it, model) = stack(&mut Rng::new(seed), &left);
            let backward = seed % 2 == 0;
            let mut outcome = if backward { it.seek_last() } else { it.seek_first() };
            let mut rows = 0;
            while outcome.is_ok() && it.valid() {
                let expected = if backward { model.iter().rev().nth(rows) } else { model.iter().nth(rows) };
                assert_eq!(shown(&it), pair(expected));
                rows += 1;
                outcome = if backward { it.prev() } else { it.next() };
            }
            if outcome.is_ok() {
                assert_eq!(rows, model.len());
                break;
            }
            // The source works again, but what was missed would be missing.
            left.set(u64::MAX);
            assert!(!it.valid());
            assert!(it.seek_first().is_err() && it.seek(b"a").is_err() && it.next().is_err() && !it.valid());
        }
    }
}

#[test]
fn an_error_ends_a_merge_for_good() {
    let lists = sources(&mut Rng::new(9), 60, 4, false);
    for moves in 0..63 {
        let left = Rc::new(Cell::new(moves));
        let mut merge = MergeForward::new(lists.iter().map(|list| ListCursor::new(list.clone(), &left)).collect());
        let mut outcome = merge.seek_first();
        while outcome.is_ok() {
            assert!(merge.peek().is_some());
            outcome = merge.advance();
        }
        left.set(u64::MAX);
        assert!(merge.peek().is_none() && merge.advance().is_err() && merge.seek_first().is_err());
    }
}
