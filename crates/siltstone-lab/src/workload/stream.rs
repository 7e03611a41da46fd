//! The operations of one share of the keys: which comes next, and on which key. No bytes yet.

use anyhow::{Context, bail};
use siltstone::io::Rng;

use super::coder::Places;
use super::law::{Hot, Law, Over};
use super::live::Live;
use super::op::{OpKind, OpSpec};
use super::permutation::mix;
use super::phase::{Group, Interleave, Shift};
use super::picker::Picker;
use super::plan::{PhasePlan, Plan, exact_counts, split};
use super::size::SizePicker;
use super::spec::Spec;
use crate::num::{count, float, floor, index};

/// Draws that hit a deleted key before ranks are counted among the keys that are there.
const TRIES: u32 = 32;
/// The same where the law runs over the order of keys, of which many may not have been inserted yet.
const PLACE_TRIES: u32 = 1000;

/// An operation as numbers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Choice {
    pub(super) kind: OpKind,
    /// Its place in the mix; the length of the mix for a delete that `keep` asks for.
    pub(super) entry: usize,
    pub(super) number: u64,
    /// 1 for a key that is never stored.
    pub(super) bit: u64,
    /// A range delete's last place in the order of keys.
    pub(super) last_place: u64,
    pub(super) count: u32,
    /// What decides the value.
    pub(super) value_seed: u64,
    /// Whether it is the key's first value.
    pub(super) is_first: bool,
    /// A scan of everything has no key.
    pub(super) is_whole: bool,
}

impl Choice {
    /// One operation on a key that may be there, of an entry of the mix.
    #[inline]
    fn new(kind: OpKind, entry: usize, number: u64) -> Choice {
        Choice { kind, entry, number, bit: 0, last_place: 0, count: 1, value_seed: 0, is_first: false, is_whole: false }
    }
}

/// A share of the keys, over all phases.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    share: u64,
    shares: u64,
    live: Live,
    run: Run,
    /// The keys of a multi-get.
    pub(super) list: Vec<u64>,
}

/// What a share does in a phase.
#[derive(Clone, Debug)]
struct Run {
    rng: Rng,
    phase: String,
    /// Operations left; none without an end.
    left: Option<u64>,
    total: u64,
    done: u64,
    entries: Vec<Entry>,
    order: Sequence,
    everyone: Option<u64>,
    capacity: u64,
    keep: Option<u64>,
    /// A delete that `keep` asks for comes next.
    over_keep: bool,
    /// Where inserts stand in the mix.
    insert: Option<usize>,
    inserts_total: u64,
    inserts_done: u64,
    first_value: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    kind: OpKind,
    picker: Picker,
    over: Over,
    length: Option<SizePicker>,
    selectivity: Option<f64>,
    whole: bool,
    stride: Option<u64>,
    reuse: f64,
    same: f64,
    after: f64,
    left: u64,
}

/// Which entry of the mix comes next.
#[derive(Clone, Debug)]
enum Sequence {
    One,
    Independent { from: Vec<u64>, to: Vec<u64>, shift: Option<Shift> },
    Proportional,
    Serial,
}

impl Stream {
    pub(super) fn new(plan: &Plan, share: u32) -> Stream {
        let (share, shares) = (u64::from(share), u64::from(plan.shares));
        let live =
            if plan.is_domain { Live::empty_domain(split(plan.capacity, shares, share)) } else { Live::default() };
        Stream { share, shares, live, run: Run::nothing(), list: Vec::new() }
    }

    /// Begins a phase as one of a group of clients.
    pub(super) fn begin(&mut self, spec: &Spec, plan: &Plan, at: usize, group: &Group) -> anyhow::Result<()> {
        let phase: &PhasePlan = &plan.phases[at];
        let root = Rng::new(spec.seed);
        let rng = root.split(&format!("share {} phase {at}", self.share));
        let operations = phase.operations[index(self.share)];
        let counts = exact_counts(spec, group, operations.unwrap_or(0));
        let entries: Vec<Entry> = group
            .mix
            .iter()
            .filter(|op| op.every.is_none())
            .zip(group.mix.iter().zip(&counts).filter(|(op, _)| op.every.is_none()).map(|(_, n)| *n))
            .map(|(op, left)| Entry::new(op, left, &root))
            .collect::<anyhow::Result<_>>()
            .with_context(|| format!("phase {}", spec.phases[at].name))?;
        let order = match group.interleave {
            Interleave::Proportional => Sequence::Proportional,
            Interleave::Serial => Sequence::Serial,
            Interleave::Independent if entries.len() == 1 => Sequence::One,
            Interleave::Independent => {
                let ops = || group.mix.iter().filter(|op| op.every.is_none());
                let weight =
                    |op: &OpSpec| op.share.or(op.count.map(|count| float(count.of(spec.records)))).unwrap_or(0.0);
                Sequence::Independent {
                    from: thresholds(ops().map(weight).collect()),
                    to: thresholds(ops().map(|op| op.share_to.unwrap_or_else(|| weight(op))).collect()),
                    shift: group.shift,
                }
            }
        };
        let insert = entries.iter().position(|entry| matches!(entry.kind, OpKind::Insert | OpKind::Upsert));
        let is_exact = group.interleave != Interleave::Independent;
        let inserts_total = if is_exact { insert.map_or(0, |at| entries[at].left) } else { 0 };
        self.run = Run {
            rng,
            phase: spec.phases[at].name.clone(),
            left: operations,
            total: operations.unwrap_or(u64::MAX),
            done: 0,
            entries,
            order,
            everyone: phase.everyone,
            capacity: plan.capacity,
            keep: group.keep.map(|keep| split(keep.of(spec.records), self.shares, self.share)),
            over_keep: false,
            insert,
            inserts_total,
            inserts_done: 0,
            first_value: root.split("first values").next_u64(),
        };
        Ok(())
    }

    /// The next operation of the phase.
    #[inline]
    pub(super) fn step(&mut self, places: &Places) -> anyhow::Result<Option<Choice>> {
        if self.run.over_keep {
            self.run.over_keep = false;
            return Ok(Some(self.delete_oldest()));
        }
        match &mut self.run.left {
            Some(0) => return Ok(None),
            Some(left) => *left -= 1,
            None => {}
        }
        let entry = self.run.next_entry();
        let choice = match self.choose(entry, places) {
            Some(choice) => choice,
            // A key must be there: one is made.
            None => match self.run.insert.and_then(|insert| self.instead(entry, insert, places)) {
                Some(choice) => choice,
                None => bail!(
                    "phase {}: no key is left for `{}` after {} operations: more keys go than come",
                    self.run.phase,
                    self.run.entries[entry].kind.name(),
                    self.run.done
                ),
            },
        };
        self.run.done += 1;
        Ok(Some(choice))
    }

    /// An insert in the place of another operation, which comes later where the numbers are exact.
    fn instead(&mut self, entry: usize, insert: usize, places: &Places) -> Option<Choice> {
        if matches!(self.run.order, Sequence::Proportional | Sequence::Serial) {
            if self.run.entries[insert].left == 0 {
                return None;
            }
            self.run.entries[entry].left += 1;
            self.run.entries[insert].left -= 1;
        }
        self.choose(insert, places)
    }

    /// One operation of an entry; `None` if it needs a key and there is none.
    #[inline]
    fn choose(&mut self, at: usize, places: &Places) -> Option<Choice> {
        let mut choice = Choice::new(self.run.entries[at].kind, at, 0);
        match choice.kind {
            OpKind::Get => choice.number = self.existing(at, places)?,
            OpKind::Insert => self.insert(at, &mut choice),
            OpKind::Upsert => self.upsert(at, places, &mut choice),
            OpKind::Update | OpKind::ReadModifyWrite => {
                choice.number = self.existing(at, places)?;
                let same = self.run.entries[at].same;
                choice.is_first = same > 0.0 && self.run.rng.unit() < same;
            }
            OpKind::Delete => {
                choice.number = self.existing(at, places)?;
                self.live.remove(choice.number / self.shares);
            }
            OpKind::GetMissing | OpKind::DeleteMissing => {
                choice.number = self.missing(at, places);
                choice.bit = 1;
            }
            OpKind::RangeDelete => {
                choice.number = self.existing(at, places)?;
                self.delete_range(at, places, &mut choice);
            }
            OpKind::MultiGet => {
                choice.count = self.run.length(at, self.everyone());
                self.multi_get(at, places, choice.count)?;
                choice.number = self.list[0];
            }
            OpKind::Scan | OpKind::ScanReverse | OpKind::ScanPrefix => {
                if self.run.entries[at].whole {
                    (choice.is_whole, choice.count) = (true, u32::MAX);
                } else {
                    choice.number = self.existing(at, places)?;
                    choice.count = self.run.length(at, self.everyone());
                }
            }
            OpKind::Flush | OpKind::Compact | OpKind::TakeSnapshot | OpKind::DropSnapshot => {}
        }
        if choice.kind.has_value() {
            choice.value_seed =
                if choice.is_first { mix(choice.number ^ self.run.first_value) } else { self.run.rng.next_u64() };
        }
        Some(choice)
    }

    fn insert(&mut self, at: usize, choice: &mut Choice) {
        let reuse = self.run.entries[at].reuse;
        let holes = self.live.holes();
        let index = if reuse > 0.0 && holes > 0 && self.run.rng.unit() < reuse {
            let index = self.live.select_hole(self.run.rng.below(holes));
            self.live.revive(index);
            index
        } else {
            self.live.insert()
        };
        choice.number = index * self.shares + self.share;
        choice.is_first = true;
        self.inserted();
    }

    fn upsert(&mut self, at: usize, places: &Places, choice: &mut Choice) {
        let index = match self.run.entries[at].over {
            Over::Insertion => self.run.entries[at].picker.pick(self.live.end(), &mut self.run.rng),
            Over::Keys => {
                let place = self.run.entries[at].picker.pick(self.run.capacity, &mut self.run.rng);
                places.number(place).unwrap_or(place)
            }
        };
        choice.number = index * self.shares + self.share;
        if self.live.contains(index) {
            choice.kind = OpKind::Update;
            let same = self.run.entries[at].same;
            choice.is_first = same > 0.0 && self.run.rng.unit() < same;
        } else {
            choice.kind = OpKind::Insert;
            self.live.revive(index);
            choice.is_first = true;
            self.inserted();
        }
    }

    fn inserted(&mut self) {
        self.run.inserts_done += 1;
        self.run.over_keep = self.run.keep.is_some_and(|keep| self.live.len() > keep);
    }

    fn delete_oldest(&mut self) -> Choice {
        let index = self.live.select(0);
        self.live.remove(index);
        Choice::new(OpKind::Delete, self.run.entries.len(), index * self.shares + self.share)
    }

    /// Deletes what is there of a range as wide as so many keys.
    fn delete_range(&mut self, at: usize, places: &Places, choice: &mut Choice) {
        let width = u64::from(self.run.length(at, self.everyone()).max(1));
        let first = places.slot(choice.number, 0) >> 1;
        choice.last_place = (first + width - 1).min(self.run.capacity - 1).max(first);
        let mut deleted = 0;
        for place in first..=choice.last_place {
            let Some(number) = places.number(place) else { break };
            if self.live.contains(number) {
                self.live.remove(number);
                deleted += 1;
            }
        }
        choice.count = deleted;
    }

    fn multi_get(&mut self, at: usize, places: &Places, n: u32) -> Option<()> {
        self.list.clear();
        let first = self.existing(at, places)?;
        self.list.push(first);
        for i in 1..u64::from(n) {
            let number = match self.run.entries[at].stride {
                None => self.existing(at, places)?,
                Some(stride) => self.beyond(first, i * stride)?,
            };
            self.list.push(number);
        }
        Some(())
    }

    /// The key so many insertions after another one, round and round; the next one that is there.
    fn beyond(&self, number: u64, steps: u64) -> Option<u64> {
        if let Some(n) = self.run.everyone {
            return Some((number + steps) % n);
        }
        let (low, span) = (self.live.low(), self.live.end() - self.live.low());
        let from = (number / self.shares - low + steps) % span;
        let index = (0..span).map(|i| low + (from + i) % span).find(|index| self.live.contains(*index))?;
        Some(index * self.shares + self.share)
    }

    /// How many keys the laws choose from.
    fn everyone(&self) -> u64 {
        self.run.everyone.unwrap_or_else(|| self.live.len())
    }

    /// A key that is there.
    #[inline]
    fn existing(&mut self, at: usize, places: &Places) -> Option<u64> {
        let run = &mut self.run;
        let Entry { picker, over, .. } = &mut run.entries[at];
        if *over == Over::Keys {
            let all = run.everyone.unwrap_or_else(|| self.live.len());
            if all == 0 {
                return None;
            }
            for _ in 0..PLACE_TRIES {
                let number = places.number(picker.pick(run.capacity, &mut run.rng))?;
                if run.everyone.map_or_else(|| self.live.contains(number), |all| number < all) {
                    return Some(number);
                }
            }
            let rank = run.rng.below(all);
            return Some(if run.everyone.is_some() { rank } else { self.live.select(rank) });
        }
        if let Some(all) = run.everyone {
            return (all > 0).then(|| picker.pick(all, &mut run.rng));
        }
        let (low, span) = (self.live.low(), self.live.end() - self.live.low());
        if self.live.len() == 0 {
            return None;
        }
        let mut tries = 0;
        let index = loop {
            let index = low + picker.pick(span, &mut run.rng);
            if self.live.contains(index) {
                break index;
            }
            tries += 1;
            if tries == TRIES {
                break self.live.select(picker.pick(self.live.len(), &mut run.rng));
            }
        };
        Some(index * self.shares + self.share)
    }

    /// A number beside which a key is missing: one that was inserted, if there is any.
    fn missing(&mut self, at: usize, places: &Places) -> u64 {
        let run = &mut self.run;
        let Entry { picker, over, .. } = &mut run.entries[at];
        if *over == Over::Keys {
            // Beside keys that were inserted: others would lie beyond all that are there.
            let (low, end) = run.everyone.map_or((self.live.low(), self.live.end()), |all| (0, all));
            for _ in 0..PLACE_TRIES {
                let number = places.number(picker.pick(run.capacity, &mut run.rng));
                if let Some(number) = number.filter(|number| (low..end).contains(number)) {
                    return number;
                }
            }
            return if low < end { low + run.rng.below(end - low) } else { run.rng.below(run.capacity) };
        }
        if let Some(all) = run.everyone.filter(|all| *all > 0) {
            return picker.pick(all, &mut run.rng);
        }
        let (low, span) = (self.live.low(), self.live.end() - self.live.low());
        if span == 0 {
            return picker.pick(run.capacity, &mut run.rng);
        }
        (low + picker.pick(span, &mut run.rng)) * self.shares + self.share
    }
}

impl Run {
    fn nothing() -> Run {
        Run {
            rng: Rng::new(0),
            phase: String::new(),
            left: Some(0),
            total: 0,
            done: 0,
            entries: Vec::new(),
            order: Sequence::One,
            everyone: None,
            capacity: 1,
            keep: None,
            over_keep: false,
            insert: None,
            inserts_total: 0,
            inserts_done: 0,
            first_value: 0,
        }
    }

    /// Which entry of the mix is next.
    #[inline]
    fn next_entry(&mut self) -> usize {
        match &self.order {
            Sequence::One => 0,
            Sequence::Independent { from, to, shift } => {
                let is_later = match shift {
                    None => false,
                    Some(Shift::Abrupt { at }) => float(self.done) >= at * float(self.total),
                    Some(Shift::Slow) => self.rng.below(self.total) < self.done,
                };
                let thresholds = if is_later { to } else { from };
                let draw = self.rng.next_u64();
                thresholds.iter().take_while(|end| **end < draw).count()
            }
            Sequence::Serial => {
                let at = self.entries.iter().position(|entry| entry.left > 0).unwrap_or(0);
                self.entries[at].left = self.entries[at].left.saturating_sub(1);
                at
            }
            Sequence::Proportional => self.proportional(),
        }
    }

    fn proportional(&mut self) -> usize {
        let (done, total) = (float(self.inserts_done), float(self.inserts_total));
        let may = |entry: &Entry| if done >= entry.after * total { entry.left } else { 0 };
        let left: u64 = self.entries.iter().map(may).sum();
        if left == 0 {
            // Reached only if inserts cannot come to the share that others wait for.
            let at = self.entries.iter().position(|entry| entry.left > 0).unwrap_or(0);
            self.entries[at].left = self.entries[at].left.saturating_sub(1);
            return at;
        }
        let mut draw = self.rng.below(left);
        let at = self.entries.iter().position(|entry| {
            let weight = may(entry);
            let here = draw < weight;
            draw = draw.wrapping_sub(weight);
            here
        });
        let at = at.expect("the draw is below the sum of the weights");
        self.entries[at].left -= 1;
        at
    }

    /// How long a scan or the like is, where there are so many keys.
    fn length(&mut self, at: usize, keys: u64) -> u32 {
        let entry = &self.entries[at];
        let length = match (&entry.length, entry.selectivity) {
            (Some(length), _) => length.draw(&mut self.rng),
            (None, Some(share)) => floor((share * float(keys)).round()).max(1),
            (None, None) => u64::from(u32::MAX),
        };
        u32::try_from(length).unwrap_or(u32::MAX)
    }
}

impl Entry {
    fn new(op: &OpSpec, left: u64, root: &Rng) -> anyhow::Result<Entry> {
        let hot = if op.over == Over::Keys { op.hot.or(Some(Hot::First)) } else { op.hot };
        let law = if op.kind.has_key() { &op.law } else { &Law::Uniform };
        let length = op.length.as_ref().map(|length| SizePicker::new(length, u64::from(u32::MAX))).transpose()?;
        Ok(Entry {
            kind: op.kind,
            picker: Picker::new(law, hot, &root.split("hot"))?.distinct(op.distinct).drift(op.drift),
            over: op.over,
            length,
            selectivity: op.selectivity,
            whole: op.whole,
            stride: op.stride,
            reuse: op.reuse.unwrap_or(0.0),
            same: op.same.unwrap_or(0.0),
            after: op.after.unwrap_or(0.0),
            left,
        })
    }
}

/// The ends of the entries' parts of all 64-bit numbers, but for the last one's.
fn thresholds(weights: Vec<f64>) -> Vec<u64> {
    let total: f64 = weights.iter().sum();
    let mut sum = 0.0;
    let mut ends: Vec<u64> = weights
        .iter()
        .map(|weight| {
            sum += weight;
            floor(sum / total * 18_446_744_073_709_551_616.0)
        })
        .collect();
    // Whatever rounding did, the last entry with a weight takes the rest.
    let last = weights.iter().rposition(|weight| *weight > 0.0).unwrap_or(0);
    ends.truncate(last);
    debug_assert!(count(ends.len()) < count(weights.len()).max(1));
    ends
}
