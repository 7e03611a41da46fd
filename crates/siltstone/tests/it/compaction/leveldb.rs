//! The preset `leveldb` against a model of LevelDB's rules that shares nothing with the planner: it has its own files, levels and
//! merges, and tables of what happens. For ten thousand flushes both must choose the same level, inputs and output files.
//!
//! | rule (LevelDB 1.23) | here |
//! | --- | --- |
//! | a flush that overlaps nothing goes to L1 or L2, if little is overlapped below | [`Model::place`] |
//! | the level with the highest score, L0 by files / 4, the others by bytes / capacity; at least 1 | [`Model::level`] |
//! | the first file behind the level's key; of L0 with everything that overlaps, through others too | [`Model::pick`] |
//! | more files of the level, if they meet no more of the next one and all stays below 25 files' worth | [`Model::pick`] |
//! | one file that meets nothing, and little two levels down, moves | [`Model::step`] |
//! | an output ends at its size, and before it has passed more than 10 files' worth two levels down | [`Model::merge`] |

use std::collections::BTreeSet;

use siltstone::compaction::{Action, Sizes};
use siltstone::io::Rng;
use siltstone::version::LevelId;

use super::sim::{RECORD_BYTES, Sim};

const FILE_BYTES: u64 = 100;
const MEMTABLE_BYTES: u64 = 200;

#[derive(Clone, PartialEq, Eq, Debug)]
struct Table {
    id: u64,
    keys: Vec<u32>,
}

impl Table {
    fn first(&self) -> u32 {
        self.keys[0]
    }

    fn last(&self) -> u32 {
        self.keys[self.keys.len() - 1]
    }

    fn bytes(&self) -> u64 {
        RECORD_BYTES * self.keys.len() as u64
    }
}

fn total(tables: &[Table]) -> u64 {
    tables.iter().map(Table::bytes).sum()
}

fn range(tables: &[&[Table]]) -> (u32, u32) {
    let all = || tables.iter().flat_map(|tables| tables.iter());
    (all().map(Table::first).min().unwrap(), all().map(Table::last).max().unwrap())
}

/// What was done: the level, its inputs, those of the next level, the outputs by id and keys.
#[derive(PartialEq, Eq, Debug)]
struct Done {
    level: usize,
    to: usize,
    inputs: [BTreeSet<u64>; 2],
    moved: bool,
    outputs: Vec<Table>,
}

struct Model {
    /// Sorted by first key.
    levels: Vec<Vec<Table>>,
    /// The key behind which each level goes on.
    pointers: [Option<u32>; 7],
    next_id: u64,
}

impl Model {
    fn flush(&mut self, keys: &[u32]) {
        let keys: BTreeSet<u32> = keys.iter().copied().collect();
        let table = Table { id: self.new_id(), keys: keys.into_iter().collect() };
        self.add(0, table);
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    fn add(&mut self, level: usize, table: Table) {
        self.levels[level].push(table);
        self.levels[level].sort_by_key(|table| (table.first(), table.id));
    }

    fn level(&self) -> Option<usize> {
        let capacity = [0.0, 500.0, 5000.0, 50_000.0, 500_000.0, 5_000_000.0];
        let mut best = (0, self.levels[0].len() as f64 / 4.0);
        for (level, capacity) in capacity.iter().enumerate().skip(1) {
            let score = total(&self.levels[level]) as f64 / capacity;
            if score > best.1 {
                best = (level, score);
            }
        }
        (best.1 >= 1.0).then_some(best.0)
    }

    fn overlapping(&self, level: usize, (mut first, mut last): (u32, u32)) -> Vec<Table> {
        loop {
            let met: Vec<Table> =
                self.levels[level].iter().filter(|t| t.first() <= last && t.last() >= first).cloned().collect();
            if level > 0 || met.is_empty() || range(&[&met]) == (first, last) {
                return met;
            }
            let wider = range(&[&met]);
            let grown = (wider.0.min(first), wider.1.max(last));
            if grown == (first, last) {
                return met;
            }
            (first, last) = grown;
        }
    }

    fn pick(&self, level: usize) -> (Vec<Table>, Vec<Table>) {
        let files = &self.levels[level];
        let behind = |table: &&Table| self.pointers[level].is_none_or(|pointer| table.last() > pointer);
        let first = files.iter().find(behind).unwrap_or(&files[0]).clone();
        let mut inputs = vec![first];
        if level == 0 {
            inputs = self.overlapping(0, range(&[&inputs]));
        }
        let mut parents = self.overlapping(level + 1, range(&[&inputs]));
        if !parents.is_empty() {
            let wider = self.overlapping(level, range(&[&inputs, &parents]));
            if wider.len() > inputs.len() && total(&parents) + total(&wider) < 25 * FILE_BYTES {
                let more = self.overlapping(level + 1, range(&[&wider]));
                if more.len() == parents.len() {
                    (inputs, parents) = (wider, more);
                }
            }
        }
        (inputs, parents)
    }

    /// Where a table that was flushed just now and overlaps nothing may go.
    fn place(&self, table: &Table) -> usize {
        let range = (table.first(), table.last());
        let mut level = 0;
        if self.levels[0].iter().filter(|t| t.first() <= range.1 && t.last() >= range.0).count() == 1 {
            while level < 2
                && self.overlapping(level + 1, range).is_empty()
                && total(&self.overlapping(level + 2, range)) <= 10 * FILE_BYTES
            {
                level += 1;
            }
        }
        level
    }

    fn step(&mut self) -> Option<Done> {
        let newest = self.next_id - 1;
        if let Some(table) = self.levels[0].iter().find(|table| table.id == newest).cloned()
            && self.place(&table) > 0
        {
            let to = self.place(&table);
            self.levels[0].retain(|other| *other != table);
            self.add(to, table.clone());
            let inputs = [BTreeSet::from([newest]), BTreeSet::new()];
            return Some(Done { level: 0, to, inputs, moved: true, outputs: vec![table] });
        }
        let level = self.level()?;
        let (inputs, parents) = self.pick(level);
        self.pointers[level] = Some(range(&[&inputs]).1);
        let grandparents = self.overlapping(level + 2, range(&[&inputs, &parents]));
        let moved = inputs.len() == 1 && parents.is_empty() && total(&grandparents) <= 10 * FILE_BYTES;
        let outputs = if moved { inputs.clone() } else { self.merge(&inputs, &parents, &grandparents) };
        let ids = |tables: &[Table]| tables.iter().map(|table| table.id).collect::<BTreeSet<_>>();
        let done = Done { level, to: level + 1, inputs: [ids(&inputs), ids(&parents)], moved, outputs };
        for (level, gone) in [(level, &done.inputs[0]), (level + 1, &done.inputs[1])] {
            self.levels[level].retain(|table| !gone.contains(&table.id));
        }
        for table in done.outputs.clone() {
            self.add(level + 1, table);
        }
        Some(done)
    }

    fn merge(&mut self, inputs: &[Table], parents: &[Table], grandparents: &[Table]) -> Vec<Table> {
        let keys: BTreeSet<u32> = inputs.iter().chain(parents).flat_map(|table| table.keys.iter().copied()).collect();
        let (mut outputs, mut current): (Vec<Vec<u32>>, Vec<u32>) = (Vec::new(), Vec::new());
        let (mut at, mut passed, mut seen) = (0, 0, false);
        for key in keys {
            while at < grandparents.len() && key > grandparents[at].last() {
                passed += if seen { grandparents[at].bytes() } else { 0 };
                at += 1;
            }
            seen = true;
            if passed > 10 * FILE_BYTES {
                passed = 0;
                outputs.push(std::mem::take(&mut current));
            }
            current.push(key);
            if RECORD_BYTES * current.len() as u64 >= FILE_BYTES {
                outputs.push(std::mem::take(&mut current));
            }
        }
        outputs.push(current);
        outputs.retain(|keys| !keys.is_empty());
        outputs.into_iter().map(|keys| Table { id: self.new_id(), keys }).collect()
    }
}

/// What the engine's planner did.
fn engine_step(sim: &mut Sim) -> Option<Done> {
    let (plan, files) = sim.step()?;
    let level = plan.inputs[0].level;
    let ids = |of: LevelId| {
        let inputs = plan.inputs.iter().filter(|input| input.level == of);
        inputs.flat_map(|input| &input.files).map(|file| file.id.0).collect::<BTreeSet<_>>()
    };
    let keys = |id| sim.contents[&id].iter().map(|entry| entry.key).collect();
    Some(Done {
        level: level.index(),
        to: plan.output.level.index(),
        inputs: [ids(level), ids(level.parent())],
        moved: plan.action == Action::Move,
        outputs: files.iter().map(|file| Table { id: file.id.0, keys: keys(file.id) }).collect(),
    })
}

#[test]
fn ten_thousand_flushes_are_decided_as_leveldb_does() {
    let sizes = Sizes { memtable_bytes: MEMTABLE_BYTES, file_bytes: FILE_BYTES, size_ratio: 0, level1_bytes: 0 };
    let mut sim = Sim::named("leveldb", sizes);
    let mut model = Model { levels: vec![Vec::new(); 10], pointers: [None; 7], next_id: 1 };
    let mut rng = Rng::new(1);
    let (mut expanded, mut moves, mut early, mut from, mut placed) = (0, 0, 0, [0u32; 7], 0);
    for flush in 0..10_000u32 {
        // Spread, in a band, dense, in sequence: so that all rules come up.
        let band = rng.below(6000);
        let keys: Vec<u32> = (0..rng.between(3, 9))
            .map(|n| {
                let key = match flush / 50 % 5 {
                    0 | 1 => rng.below(6000),
                    2 => band + rng.below(300),
                    3 => band + n,
                    _ => u64::from(flush) * 20 % 6000 + n,
                };
                u32::try_from(key).unwrap()
            })
            .collect();
        sim.flush(&keys, &[]);
        model.flush(&keys);
        loop {
            let (expected, found) = (model.step(), engine_step(&mut sim));
            assert_eq!(found, expected, "after flush {flush}");
            let Some(done) = expected else { break };
            from[done.level] += 1;
            moves += u32::from(done.moved);
            placed += u32::from(done.to > 1 && done.level == 0);
            let (last, others) = done.outputs.split_last().unwrap();
            early += u32::from(!done.moved && others.iter().any(|table| table.bytes() < FILE_BYTES));
            expanded += u32::from(done.level > 0 && done.inputs[0].len() > 1);
            assert!(!last.keys.is_empty());
        }
    }
    assert!(placed > 50, "{placed}");
    assert!(moves > 200 && expanded > 500 && early > 100, "moves {moves}, expanded {expanded}, cut early {early}");
    assert!(from[..3].iter().all(|n| *n > 1000), "{from:?}");
}
