//! How large the output of a merge will be, and where its files will end.
//!
//! # Shared keys
//!
//! Let the writes of the keyspace be draws from `U` keys, each alike. After `w` writes about `U (1 - e^(-w/U))` different keys have been
//! written. The runs with the most entries give both sides: their entries, and the writes that they have taken in, which are the
//! sequence numbers that a run spans, less what of that span is still in other runs. That gives `U`. (Keyspaces share the sequence:
//! of the numbers in a span only some are ours. If the caller does not know how many, the run whose entries fill its span best tells,
//! since no run has more entries than it took in writes.) If nothing was ever written twice, `U` is infinite and no keys are shared.
//!
//! A merge is cut at the borders of its inputs. Between two borders each input holds entries in proportion to the width, and `U` is spread
//! as the entries of that largest run are. `n` entries hit a given key with probability `n/u`, so the union of several inputs is
//! `u (1 - (1 - n1/u)(1 - n2/u)...)`.
//!
//! # Files
//!
//! The output ends where [`OutputCut`] says, as in a real merge, asked a few dozen times a file instead of at every entry, and at the plan's
//! borders. Guards that no file begins with yet are not foreseen: made-up keys say nothing about hashes.

use std::sync::Arc;

use bytes::Bytes;

use crate::compaction::{CutRule, Plan};
use crate::jobs::cut::OutputCut;
use crate::key::SeqNo;
use crate::num::{to_f64, to_u64};
use crate::version::{FileMeta, Run, SstId, Version};

/// How often a file's end is asked for while it fills.
const ASKED_A_FILE: f64 = 32.0;
/// A run that fills its sequence numbers to this share was written without overwriting anything.
const NO_OVERWRITES: f64 = 0.999;

/// What is known of the keys of a tree, and how it is applied to merges.
pub(super) struct Estimate {
    heads: Heads,
    /// The files of the largest run: borders and entries.
    reference: Vec<Spread>,
    /// Which share of all keys the largest run holds, from 0 to 1; 0 if keys are written once.
    fill: f64,
    oldest_snapshot: Option<SeqNo>,
    now_ms: u64,
    next_id: u64,
}

/// Entries spread evenly over positions.
#[derive(Clone, Copy, Debug)]
struct Spread {
    from: u128,
    to: u128,
    entries: f64,
}

impl Spread {
    /// The entries in `from..=to`.
    fn within(&self, from: u128, to: u128) -> f64 {
        let (from, to) = (from.max(self.from), to.min(self.to));
        if from > to { 0.0 } else { self.entries * width(from, to) / width(self.from, self.to) }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a width for ratios")]
fn width(from: u128, to: u128) -> f64 {
    (to - from) as f64 + 1.0
}

/// Keys as numbers, in the same order: the bytes behind the prefix that all keys of the tree share are digits, and each place has the
/// digits that its bytes suggest. Counting "09", "10" as neighbours is what spreads decimal keys evenly.
struct Heads {
    prefix: Bytes,
    /// By place behind the prefix, the bytes that may stand there, ascending.
    digits: Vec<Vec<u8>>,
}

impl Heads {
    fn new(version: &Version) -> Heads {
        let keys = || version.files().flat_map(|(_, _, file)| [&file.smallest, &file.largest]);
        let (Some(first), Some(last)) = (keys().min(), keys().max()) else {
            return Heads { prefix: Bytes::new(), digits: Vec::new() };
        };
        let common = first.iter().zip(last.iter()).take_while(|(a, b)| a == b).count();
        let mut digits = Vec::new();
        let mut numbers = 1u128;
        for place in common.. {
            let mut seen = [false; 256];
            keys().filter_map(|key| key.get(place)).for_each(|byte| seen[usize::from(*byte)] = true);
            let bytes = suggested(&seen);
            // Enough to tell keys apart, or no key is longer.
            let Some(more) = numbers.checked_mul(to_u128(bytes.len())).filter(|_| !bytes.is_empty()) else { break };
            numbers = more;
            digits.push(bytes);
        }
        Heads { prefix: first.slice(..common), digits }
    }

    /// A short key counts as filled up with the smallest digits.
    fn position(&self, key: &[u8]) -> u128 {
        let rest = key.get(self.prefix.len()..).unwrap_or_default();
        (0..).zip(&self.digits).fold(0, |position, (place, bytes): (usize, _)| {
            let digit = rest.get(place).map_or(0, |byte| bytes.partition_point(|other| other < byte));
            position * to_u128(bytes.len()) + to_u128(digit.min(bytes.len() - 1))
        })
    }

    fn key(&self, mut position: u128) -> Bytes {
        let mut key = vec![0; self.digits.len()];
        for (byte, bytes) in key.iter_mut().zip(&self.digits).rev() {
            let radix = to_u128(bytes.len());
            *byte = bytes[usize::try_from(position % radix).unwrap_or(0)];
            position /= radix;
        }
        [&self.prefix[..], &key].concat().into()
    }
}

/// The bytes that may stand where those of `seen` were found: a digit suggests all digits, a letter all letters of its case (those
/// up to `f` where there are digits and no others), a byte that is no printable ASCII suggests every byte.
fn suggested(seen: &[bool; 256]) -> Vec<u8> {
    let any = |bytes: std::ops::RangeInclusive<u8>| bytes.into_iter().any(|byte| seen[usize::from(byte)]);
    let all = any(0..=0x1f) || any(0x7f..=0xff);
    let digits = any(b'0'..=b'9');
    let letter = |byte: u8, first: u8| {
        let hex = digits && !any(first + 6..=first + 25);
        any(first..=first + 25) && (first..=if hex { first + 5 } else { first + 25 }).contains(&byte)
    };
    let suggested = |byte: &u8| {
        all || seen[usize::from(*byte)]
            || (digits && byte.is_ascii_digit())
            || letter(*byte, b'a')
            || letter(*byte, b'A')
    };
    (0..=u8::MAX).filter(suggested).collect()
}

fn to_u128(n: usize) -> u128 {
    u128::from(to_u64(n))
}

impl Estimate {
    pub(super) fn new(
        version: &Version,
        oldest_snapshot: Option<SeqNo>,
        now_ms: u64,
        own_writes: Option<f64>,
    ) -> Estimate {
        let heads = Heads::new(version);
        let largest = version.runs().map(|(_, run)| run).max_by_key(|run| (entries(run), run.order));
        let spread = |file: &Arc<FileMeta>| Spread {
            from: heads.position(&file.smallest),
            to: heads.position(&file.largest),
            entries: to_f64(file.entries),
        };
        let reference = largest.map_or_else(Vec::new, |run| run.files.iter().map(spread).collect());
        let fill = largest.map_or(0.0, |run| fill(version, run, own_writes));
        let next_id = version.files().map(|(_, _, file)| file.id.0 + 1).max().unwrap_or(1);
        Estimate { heads, reference, fill, oldest_snapshot, now_ms, next_id }
    }

    /// The keys between two positions from which writes are drawn; none if each key is written once.
    fn universe(&self, from: u128, to: u128) -> Option<f64> {
        if self.fill == 0.0 {
            return None;
        }
        let begin = self.reference.partition_point(|file| file.to < from);
        let met = self.reference[begin..].iter().take_while(|file| file.from <= to);
        let entries: f64 = met.map(|file| file.within(from, to)).sum();
        (entries > 0.0).then(|| entries / self.fill)
    }

    /// The files that the merge of `plan` would leave, and the bytes of them that it would link instead of reading and writing them.
    pub(super) fn outputs(&mut self, plan: &Plan, version: &Version) -> (Vec<Arc<FileMeta>>, u64) {
        let pieces = self.pieces(plan, version);
        let linked = linked_bytes(plan, &pieces);
        let mut files = Files::new(self, plan, version);
        for piece in &pieces {
            files.add(piece);
        }
        (files.finish(), linked)
    }

    /// What is left of the inputs, border by border, ascending.
    fn pieces(&self, plan: &Plan, version: &Version) -> Vec<Piece> {
        let mut inputs: Vec<(Spread, &FileMeta)> = plan
            .files()
            .map(|file| {
                let (from, to) = (self.heads.position(&file.smallest), self.heads.position(&file.largest));
                (Spread { from, to, entries: to_f64(file.entries) }, &**file)
            })
            .collect();
        inputs.sort_by_key(|(spread, _)| spread.from);
        let older: Vec<Vec<(u128, u128)>> = plan
            .older_files(version)
            .iter()
            .map(|run| {
                run.iter().map(|f| (self.heads.position(&f.smallest), self.heads.position(&f.largest))).collect()
            })
            .collect();
        let hides_nothing = |from: u128, to: u128| {
            older.iter().all(|run: &Vec<(u128, u128)>| {
                let at = run.partition_point(|(_, last)| *last < from);
                run.get(at).is_none_or(|(first, _)| *first > to)
            })
        };
        // Each border begins a piece.
        let (Some(first), Some(last)) = (inputs.first().map(|i| i.0.from), inputs.iter().map(|i| i.0.to).max()) else {
            return Vec::new();
        };
        let grandparents = plan.grandparents(version);
        let ends = inputs
            .iter()
            .map(|(spread, _)| spread.to)
            .chain(grandparents.iter().map(|f| self.heads.position(&f.largest)));
        let begins = ends.map(|end| end.saturating_add(1)).chain(inputs.iter().map(|(spread, _)| spread.from));
        let begins = begins.chain(plan.borders.iter().map(|border| self.heads.position(border)));
        let mut borders: Vec<u128> = begins.filter(|border| (first..=last).contains(border)).collect();
        borders.sort_unstable();
        borders.dedup();
        let mut pieces = Vec::with_capacity(borders.len());
        let mut begun = 0;
        let mut active: Vec<(Spread, &FileMeta)> = Vec::new();
        for (n, &from) in borders.iter().enumerate() {
            let to = borders.get(n + 1).map_or(last, |next| next - 1);
            active.retain(|(spread, _)| spread.to >= from);
            while let Some(input) = inputs.get(begun).filter(|(spread, _)| spread.from <= from) {
                active.push(*input);
                begun += 1;
            }
            if !active.is_empty() {
                pieces.extend(self.piece(from, to, &active, hides_nothing(from, to)));
            }
        }
        pieces
    }

    /// What is left of `inputs` between two positions.
    fn piece(&self, from: u128, to: u128, inputs: &[(Spread, &FileMeta)], hides_nothing: bool) -> Option<Piece> {
        let mut all = Piece { from, to, ..Piece::default() };
        // Versions on one side of the oldest snapshot hide each other; across it they do not.
        let mut sides = [(0.0, 0.0f64, 1.0); 2];
        let mut visible = true;
        let universe = self.universe(from, to);
        for (spread, file) in inputs {
            let share = spread.within(from, to) / spread.entries;
            let entries = to_f64(file.entries) * share;
            all.entries += entries;
            all.tombstones += to_f64(file.tombstones) * share;
            all.bytes += to_f64(file.bytes) * share;
            all.raw_bytes += to_f64(file.raw_bytes) * share;
            let newer = self.oldest_snapshot.is_some_and(|oldest| file.max_seq > oldest);
            visible &= !newer;
            let (sum, most, missed) = &mut sides[usize::from(newer)];
            *sum += entries;
            *most = most.max(entries);
            *missed *= universe.map_or(1.0, |universe| 1.0 - (entries / universe).min(1.0));
        }
        let distinct = |(sum, most, missed): (f64, f64, f64)| {
            universe.map_or(sum, |universe| (universe.max(most) * (1.0 - missed)).clamp(most, sum.max(most)))
        };
        let mut kept = sides.into_iter().map(distinct).sum::<f64>();
        let mut tombstones = all.tombstones * kept / all.entries;
        if hides_nothing && visible {
            kept -= tombstones;
            tombstones = 0.0;
        }
        let share = kept / all.entries;
        // Nothing of it would be dropped.
        let alone = match inputs {
            [(_, file)] if kept >= all.entries => Some(file.id),
            _ => None,
        };
        let (bytes, raw_bytes) = (all.bytes * share, all.raw_bytes * share);
        let left = Piece { entries: kept, tombstones, bytes, raw_bytes, alone, ..all };
        (kept > 0.0).then_some(left)
    }
}

fn entries(run: &Run) -> u64 {
    run.files.iter().map(|file| file.entries).sum()
}

/// The sequence numbers that a run spans, both ends included; none if it cannot have been written one by one (ingested files).
fn span(run: &Run) -> Option<(f64, f64)> {
    let first = run.files.iter().map(|file| file.min_seq.0).min()?;
    let last = run.files.iter().map(|file| file.max_seq.0).max()?;
    (last - first + 1 >= entries(run)).then(|| (to_f64(first), to_f64(last) + 1.0))
}

/// Which share of all keys the largest run holds; 0 if keys seem to be written once.
fn fill(version: &Version, largest: &Run, own_writes: Option<f64>) -> f64 {
    let runs = || version.runs().map(|(_, run)| run);
    let filled = |run: &Run| span(run).map(|(first, last)| to_f64(entries(run)) / (last - first));
    let ours = own_writes.unwrap_or_else(|| runs().filter_map(filled).fold(0.0, f64::max));
    let (mut found, mut taken) = (0.0, Vec::new());
    // Runs of about the same size count together: one alone may be too small to hold much that was written twice.
    for run in runs().filter(|run| entries(run) * 2 >= entries(largest)) {
        let Some((first, last)) = span(run).filter(|_| ours > 0.0) else { continue };
        // Of other runs, the part whose numbers lie within: those writes are not in this run.
        let within = |other: &Run| {
            let (from, to) = span(other)?;
            Some(to_f64(entries(other)) * ((to.min(last) - from.max(first)).max(0.0) / (to - from)))
        };
        let elsewhere: f64 = runs().filter(|other| !std::ptr::eq(*other, run)).filter_map(within).sum();
        let entries = to_f64(entries(run));
        found += entries;
        taken.push((ours * (last - first) - elsewhere).max(entries));
    }
    let writes: f64 = taken.iter().sum();
    if found >= writes * NO_OVERWRITES {
        return 0.0;
    }
    // The more keys there are, the more of the writes find one of their own.
    let distinct = |keys: f64| taken.iter().map(|writes| -keys * (-writes / keys).exp_m1()).sum::<f64>();
    let (mut low, mut high) = (1.0f64, writes * 1e6);
    for _ in 0..80 {
        let middle = (low * high).sqrt();
        if distinct(middle) < found { low = middle } else { high = middle }
    }
    (to_f64(entries(largest)) / high).min(1.0)
}

/// What a merge writes between two positions.
#[derive(Clone, Copy, Default, Debug)]
struct Piece {
    from: u128,
    to: u128,
    entries: f64,
    tombstones: f64,
    bytes: f64,
    raw_bytes: f64,
    /// The only input with keys there, if all of them are kept.
    alone: Option<SstId>,
}

/// Bytes that a merge of `plan` would link, as far as the borders of its inputs show what has to be merged. What alternates within the
/// borders of two files is not foreseen.
fn linked_bytes(plan: &Plan, pieces: &[Piece]) -> u64 {
    let Some(stitch) = plan.stitch() else { return 0 };
    // Neighbouring pieces of one file are one extent.
    let extents = pieces.chunk_by(|a, b| a.alone == b.alone).filter(|extent| extent[0].alone.is_some());
    let bytes = extents.map(|extent| whole(extent.iter().map(|piece| piece.bytes).sum()));
    bytes.filter(|bytes| *bytes >= stitch.min_bytes(plan.cut.file_bytes)).sum()
}

/// Output files in the making.
struct Files<'a> {
    estimate: &'a mut Estimate,
    cut: OutputCut,
    /// Positions and keys at which a file ends in any case; the last comes next.
    borders: Vec<(u128, Bytes)>,
    tick_bytes: f64,
    /// Positions and keys of the inputs' ends.
    first: (u128, Bytes),
    last: (u128, Bytes),
    min_seq: SeqNo,
    max_seq: SeqNo,
    oldest_tombstone_ms: Option<u64>,
    current: Option<Piece>,
    /// The border that the current file begins with.
    begin: Option<Bytes>,
    done: Vec<Arc<FileMeta>>,
}

impl<'a> Files<'a> {
    fn new(estimate: &'a mut Estimate, plan: &Plan, version: &Version) -> Files<'a> {
        let (first, last) = plan.hull();
        let end = |key: &[u8]| (estimate.heads.position(key), Bytes::copy_from_slice(key));
        Files {
            first: end(first),
            last: end(last),
            cut: OutputCut::new(CutRule { guards: None, ..plan.cut }, plan.grandparents(version)),
            borders: plan.borders.iter().rev().map(|key| end(key)).collect(),
            begin: None,
            tick_bytes: (to_f64(plan.cut.file_bytes) / ASKED_A_FILE).max(1.0),
            min_seq: plan.files().map(|file| file.min_seq).min().unwrap_or_default(),
            max_seq: plan.files().map(|file| file.max_seq).max().unwrap_or_default(),
            oldest_tombstone_ms: plan.files().filter_map(|file| file.oldest_tombstone_ms).min(),
            current: None,
            done: Vec::new(),
            estimate,
        }
    }

    /// Appends a piece, a tick at a time.
    fn add(&mut self, piece: &Piece) {
        let ticks = (piece.bytes / self.tick_bytes).ceil().max(1.0);
        let step = width(piece.from, piece.to) / ticks;
        let mut from = piece.from;
        let mut n = 0.0;
        while n < ticks {
            n += 1.0;
            let to =
                if n < ticks { piece.from.saturating_add(floor(step * n)).clamp(from, piece.to) } else { piece.to };
            let share = 1.0 / ticks;
            self.tick(Piece {
                from,
                to,
                entries: piece.entries * share,
                tombstones: piece.tombstones * share,
                bytes: piece.bytes * share,
                raw_bytes: piece.raw_bytes * share,
                alone: piece.alone,
            });
            if to == piece.to {
                // Too narrow to be cut as finely: the rest stands in its last position.
                let rest = (ticks - n) * share;
                if let Some(current) = self.current.as_mut().filter(|_| rest > 0.0) {
                    current.entries += piece.entries * rest;
                    current.tombstones += piece.tombstones * rest;
                    current.bytes += piece.bytes * rest;
                    current.raw_bytes += piece.raw_bytes * rest;
                }
                break;
            }
            from = to + 1;
        }
    }

    fn tick(&mut self, tick: Piece) {
        let bytes = self.current.as_ref().map_or(0, |file| whole(file.bytes));
        let ends = self.cut.before(&self.estimate.heads.key(tick.from), true, bytes);
        // A border at the very ends could not be told from the inputs' own keys, of which only the heads are known.
        let can_end = self.current.is_some_and(|file| file.to > self.first.0) && tick.from < self.last.0;
        let mut border = None;
        while let Some((_, key)) = self.borders.pop_if(|(position, _)| *position <= tick.from) {
            border = Some(key);
        }
        if (ends || border.is_some()) && can_end {
            self.end_file();
            self.begin = border;
        }
        match &mut self.current {
            Some(file) => {
                file.to = tick.to;
                file.entries += tick.entries;
                file.tombstones += tick.tombstones;
                file.bytes += tick.bytes;
                file.raw_bytes += tick.raw_bytes;
            }
            None => self.current = Some(tick),
        }
    }

    fn end_file(&mut self) {
        let Some(file) = self.current.take() else { return };
        // A known border is a real key, which others may ask for.
        let begin = self.begin.take().filter(|key| *key > self.first.1);
        let smallest = match begin {
            Some(key) => key,
            None if file.from <= self.first.0 => self.first.1.clone(),
            None => self.estimate.heads.key(file.from),
        };
        let largest = if file.to >= self.last.0 { self.last.1.clone() } else { self.estimate.heads.key(file.to) };
        // Heads of 16 bytes, filled up with zeros, can stand above the real last key, or below the real first.
        let smallest = smallest.min(self.last.1.clone());
        let largest = largest.max(smallest.clone());
        let entries = whole(file.entries);
        let tombstones = whole(file.tombstones).min(entries);
        // A border is a real key, and the heads of made-up keys need not keep order with it: what would overlap is one file.
        if let Some(before) = self.done.last_mut().filter(|before| before.largest >= smallest) {
            let before = Arc::make_mut(before);
            before.largest = largest.max(before.largest.clone());
            before.bytes += whole(file.bytes);
            before.raw_bytes += whole(file.raw_bytes);
            before.entries += entries;
            before.tombstones += if file.tombstones < 0.5 { 0 } else { tombstones };
            return;
        }
        let id = SstId(self.estimate.next_id);
        self.estimate.next_id += 1;
        self.done.push(Arc::new(FileMeta {
            id,
            bytes: whole(file.bytes),
            entries,
            tombstones: if file.tombstones < 0.5 { 0 } else { tombstones },
            range_tombstones: 0,
            raw_bytes: whole(file.raw_bytes),
            smallest,
            largest,
            min_seq: self.min_seq,
            max_seq: self.max_seq,
            created_ms: self.estimate.now_ms,
            oldest_tombstone_ms: self.oldest_tombstone_ms.filter(|_| file.tombstones >= 0.5),
            entered_level_ms: self.estimate.now_ms,
            whole: None,
        }));
    }

    fn finish(mut self) -> Vec<Arc<FileMeta>> {
        self.end_file();
        self.done
    }
}

/// A count or size, at least 1.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and far below 2^63")]
fn whole(x: f64) -> u64 {
    (x.round() as u64).max(1)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive; too large a float saturates")]
fn floor(x: f64) -> u128 {
    x as u128
}
