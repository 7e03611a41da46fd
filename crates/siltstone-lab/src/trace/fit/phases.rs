//! Where the mix shifts: windows of operations that differ from their neighbours by more than chance does.

use crate::num::float;
use crate::workload::OpKind;

const KINDS: usize = OpKind::ALL.len();
/// More windows than this are joined two by two.
const MOST: usize = 512;
const FIRST_LENGTH: u64 = 256;
/// Two parts are one if their mixes differ by less than this (the sum of what the shares of all kinds differ, halved), whatever chance says.
const DIFFERENCE: f64 = 0.08;

/// How often each kind came, window by window.
pub(super) struct Windows {
    length: u64,
    counts: Vec<[u64; KINDS]>,
    filled: u64,
    operations: u64,
}

impl Default for Windows {
    fn default() -> Windows {
        Windows { length: FIRST_LENGTH, counts: Vec::new(), filled: 0, operations: 0 }
    }
}

impl Windows {
    /// Counts operation number `done`. If there was one of that number, it was the lookup of a read-modify-write and is taken back.
    pub(super) fn add(&mut self, kind: OpKind, done: u64) {
        if done < self.operations
            && let Some(window) = self.counts.last_mut()
        {
            window[place(OpKind::Get)] -= 1;
            self.filled -= 1;
            self.operations -= 1;
        }
        if self.counts.is_empty() || self.filled == self.length {
            if self.counts.len() == MOST {
                self.counts = self.counts.chunks(2).map(sum).collect();
                self.length *= 2;
            }
            self.counts.push([0; KINDS]);
            self.filled = 0;
        }
        if let Some(window) = self.counts.last_mut() {
            window[place(kind)] += 1;
        }
        self.filled += 1;
        self.operations += 1;
    }

    /// Counts inserts as updates: of keys that were there before the trace, nobody can tell them apart.
    pub(super) fn join_puts(&mut self) {
        for window in &mut self.counts {
            let inserts = std::mem::take(&mut window[place(OpKind::Insert)]);
            window[place(OpKind::Update)] += inserts;
        }
    }

    pub(super) fn operations(&self) -> u64 {
        self.operations
    }

    /// The numbers of operations at which the parts end, and which of them fill a domain of keys.
    ///
    /// Neighbours are joined as long as two of them are alike, the most alike first: those whose counts a common mix explains nearly as well as
    /// two mixes do (the log-likelihood ratio, G).
    pub(super) fn parts(&self) -> Vec<(u64, bool)> {
        let mut parts: Vec<[u64; KINDS]> = self.counts.clone();
        while parts.len() > 1 {
            let pairs = parts.windows(2).enumerate().map(|(at, pair)| (at, apart(&pair[0], &pair[1])));
            let Some((at, (g, difference))) = pairs.min_by(|a, b| a.1.0.total_cmp(&b.1.0)) else { break };
            // With 16 degrees of freedom chance gives 50 once in a hundred thousand times.
            let alike = |g: f64, difference: f64| g < 50.0 || difference < DIFFERENCE;
            let other = || parts.windows(2).position(|pair| apart(&pair[0], &pair[1]).1 < DIFFERENCE);
            let Some(at) = (if alike(g, difference) { Some(at) } else { other() }) else { break };
            parts[at] = sum(&parts[at..at + 2]);
            parts.remove(at + 1);
        }
        self.absorb(&mut parts);
        let mut all: Vec<Part> = parts.into_iter().map(|mix| Part { mix, fills: false }).collect();
        join_fills(&mut all);
        let mut done = 0;
        all.iter()
            .map(|part| {
                done += part.mix.iter().sum::<u64>();
                (done, part.fills)
            })
            .collect()
    }

    /// A window that lies over a border is no part of its own: it goes to the neighbour that it is more like.
    fn absorb(&self, parts: &mut Vec<[u64; KINDS]>) {
        while parts.len() > 1 {
            let Some(at) = parts.iter().position(|part| part.iter().sum::<u64>() <= self.length) else { break };
            let before = at.checked_sub(1).map(|before| apart(&parts[before], &parts[at]).1);
            let after = parts.get(at + 1).map(|after| apart(&parts[at], after).1);
            let first = if after.is_none_or(|after| before.is_some_and(|before| before < after)) { at - 1 } else { at };
            parts[first] = sum(&parts[first..first + 2]);
            parts.remove(first + 1);
        }
    }
}

/// A stretch with one mix.
struct Part {
    mix: [u64; KINDS],
    /// Its puts choose among all keys of a domain, whether they are there or not.
    fills: bool,
}

impl Part {
    fn joined(&self) -> [u64; KINDS] {
        let mut mix = self.mix;
        mix[place(OpKind::Update)] += std::mem::take(&mut mix[place(OpKind::Insert)]);
        mix
    }

    fn insert_share(&self) -> f64 {
        let [inserts, updates] = [OpKind::Insert, OpKind::Update].map(|kind| float(self.mix[place(kind)]));
        inserts / (inserts + updates).max(1.0)
    }
}

/// Three and more parts that differ only in that ever fewer of the puts are of new keys are one: the puts choose among all keys of a domain.
fn join_fills(parts: &mut Vec<Part>) {
    let goes_on = |a: &Part, b: &Part| {
        apart(&a.joined(), &b.joined()).1 < DIFFERENCE && b.insert_share() < a.insert_share() && a.insert_share() > 0.0
    };
    let mut at = 0;
    while at < parts.len() {
        let mut end = at + 1;
        while end < parts.len() && goes_on(&parts[end - 1], &parts[end]) {
            end += 1;
        }
        if end - at >= 3 {
            let mix = sum(&parts[at..end].iter().map(|part| part.mix).collect::<Vec<_>>());
            parts.splice(at..end, [Part { mix, fills: true }]);
        }
        at += 1;
    }
}

fn place(kind: OpKind) -> usize {
    OpKind::ALL.iter().position(|other| *other == kind).unwrap_or(0)
}

fn sum(parts: &[[u64; KINDS]]) -> [u64; KINDS] {
    std::array::from_fn(|kind| parts.iter().map(|part| part[kind]).sum())
}

/// G, and by how much the mixes differ.
fn apart(a: &[u64; KINDS], b: &[u64; KINDS]) -> (f64, f64) {
    let (all_a, all_b) = (float(a.iter().sum()), float(b.iter().sum()));
    let (mut g, mut difference) = (0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (float(*a), float(*b));
        let expected = (a + b) / (all_a + all_b);
        let mut term = |n: f64, all: f64| {
            if n > 0.0 {
                g += 2.0 * n * libm::log(n / (all * expected));
            }
        };
        term(a, all_a);
        term(b, all_b);
        difference += (a / all_a - b / all_b).abs() / 2.0;
    }
    (g, difference)
}
