//! The operations of a client, as bytes.

use std::sync::Arc;

use anyhow::{Context, ensure};
use siltstone::io::Rng;

use super::alias::Alias;
use super::coder::Coder;
use super::op::{OpKind, OpSpec};
use super::permutation::mix;
use super::phase::Group;
use super::picker::{Picker, pick_for};
use super::plan::Plan;
use super::size::SizePicker;
use super::spec::{Content, Spec};
use super::stream::{Choice, Stream};
use super::values::ValueBuffer;
use crate::num::{count, index};

/// The longest value.
pub(super) const MOST_VALUE_BYTES: u64 = 16 << 20;
/// Letters that write a value of an index.
const INDEX_DIGITS: usize = 10;

/// One operation, borrowed until the next one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Op<'a> {
    /// What is done.
    pub kind: OpKind,
    /// Where: a place in [`Spec::keyspace_names`].
    pub keyspace: u16,
    /// The key; a range's smallest key; a prefix; empty for what has none, and for a scan of everything.
    pub key: &'a [u8],
    /// The end of a range delete, which it does not reach; else empty.
    pub end: &'a [u8],
    /// What is stored.
    pub value: &'a [u8],
    /// Records of a scan, keys of a multi-get, keys that a range delete finds; else 1.
    pub count: u32,
    /// The next operation belongs to the same row: a store should do both or none.
    pub continues: bool,
    more: &'a [u8],
    ends: &'a [u32],
}

impl<'a> Op<'a> {
    /// An operation on one key of the first keyspace.
    pub fn new(kind: OpKind, key: &'a [u8], value: &'a [u8]) -> Op<'a> {
        Op { kind, keyspace: 0, key, end: &[], value, count: 1, continues: false, more: &[], ends: &[] }
    }

    /// The keys of a multi-get; the one key of anything else.
    pub fn keys(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (more, ends) = (self.more, self.ends);
        let at = move |i: usize| index(u64::from(ends[i]));
        let listed = (0..ends.len()).map(move |i| &more[if i == 0 { 0 } else { at(i - 1) }..at(i)]);
        let only = ends.is_empty().then_some(self.key);
        only.into_iter().chain(listed)
    }
}

/// The operations of one client, phase by phase. The same spec and client give the same operations on every machine.
///
/// # Memory
/// About 2 MiB, and a bit for each key between the oldest and the newest one once keys are deleted other than the oldest first: under 64 MiB in
/// any case, since a spec that could need more is refused. Where keys come from a file, 8 bytes a key, which all clients share.
#[derive(Debug)]
pub struct Generator {
    spec: Arc<Spec>,
    plan: Arc<Plan>,
    client: u32,
    phase: usize,
    coder: Coder,
    values: Values,
    streams: Vec<(u32, Stream)>,
    /// The streams that this client runs in this phase, and whose turn it is.
    turns: Vec<usize>,
    turn: usize,
    /// Operations that come every so often, for the first client of a group.
    every: Vec<(OpKind, u64)>,
    done: u64,
    /// The next of `every` to look at since the last operation.
    every_at: usize,
    keyspaces: Option<(Alias, u64)>,
    indexes: Vec<Index>,
    /// A row whose index entries are not all out yet, and the next of them.
    row: Option<(Choice, usize)>,
    /// Of each entry of the mix: the index that it reads, and the bytes of its prefix.
    entries: Vec<(Option<usize>, usize)>,
    failed: Option<anyhow::Error>,
    buffers: Buffers,
}

#[derive(Debug, Default)]
struct Buffers {
    key: Vec<u8>,
    end: Vec<u8>,
    value: Vec<u8>,
    more: Vec<u8>,
    ends: Vec<u32>,
}

#[derive(Debug)]
struct Index {
    picker: Picker,
    cardinality: u64,
    salt: u64,
}

#[derive(Debug)]
struct Values {
    buffer: ValueBuffer,
    bytes: SizePicker,
    fields: u32,
    entry_bytes: Option<u64>,
    content: Content,
}

impl Values {
    /// How long the value is that `seed` decides.
    #[inline]
    fn length(&self, seed: u64, key_bytes: usize) -> u64 {
        if let Some(entry) = self.entry_bytes {
            return entry.saturating_sub(count(key_bytes));
        }
        match self.bytes.constant() {
            Some(bytes) => bytes * u64::from(self.fields),
            None => {
                let mut rng = Rng::new(seed.rotate_left(32));
                (0..self.fields).map(|_| self.bytes.draw(&mut rng)).sum()
            }
        }
    }
}

impl Generator {
    /// The operations of a client, from the first phase on. Reads the files that the spec names.
    ///
    /// # Errors
    /// If a file cannot be read or holds too little, or no phase has such a client.
    pub fn new(spec: &Spec, client: u32) -> anyhow::Result<Generator> {
        ensure!(
            client < spec.most_clients(),
            "there is no client {client}: the phases have up to {}",
            spec.most_clients()
        );
        let plan = Plan::new(spec);
        let root = Rng::new(spec.seed);
        let mut coder = Coder::new(&spec.keys, plan.capacity, &root)?;
        if let Some(file) = coder.file().filter(|_| spec.values.content == Content::File) {
            ensure!(file.has_values(), "values from a file need TSV, and the keys come from a file without values");
        }
        let bytes = SizePicker::new(&spec.values.bytes, MOST_VALUE_BYTES).context("values")?;
        let most = spec.values.entry_bytes.unwrap_or(bytes.max() * u64::from(spec.values.fields));
        let values = Values {
            buffer: ValueBuffer::new(&spec.values, most, root.split("values")),
            bytes,
            fields: spec.values.fields,
            entry_bytes: spec.values.entry_bytes,
            content: spec.values.content,
        };
        let mut salts = root.split("indexes");
        let indexes = spec
            .indexes
            .iter()
            .map(|entry| {
                let picker = Picker::new(&entry.law, None, &root.split(&entry.name))?;
                Ok(Index { picker, cardinality: entry.cardinality, salt: salts.next_u64() })
            })
            .collect::<anyhow::Result<_>>()?;
        let weights: Vec<f64> = spec.keyspaces.iter().map(|keyspace| keyspace.weight).collect();
        let keyspaces = (weights.len() > 1).then(|| (Alias::new(&weights), root.split("keyspaces").next_u64()));
        let has = |share: u32| plan.phases.iter().any(|phase| share % phase.clients == client);
        let streams = (0..plan.shares).filter(|share| has(*share)).map(|share| (share, Stream::new(&plan, share)));
        let mut generator = Generator {
            spec: Arc::new(spec.clone()),
            client,
            phase: 0,
            coder,
            values,
            streams: streams.collect(),
            turns: Vec::new(),
            turn: 0,
            every: Vec::new(),
            done: 0,
            every_at: 0,
            keyspaces,
            indexes,
            row: None,
            entries: Vec::new(),
            failed: None,
            buffers: Buffers::default(),
            plan: Arc::new(plan),
        };
        generator.begin()?;
        Ok(generator)
    }

    /// The phase at work, by its place in the spec.
    pub fn phase(&self) -> usize {
        self.phase
    }

    /// Goes on with the next phase, whether or not this one has come to its end; false after the last one.
    ///
    /// It takes as long as generating what other clients did in this phase to keys that are this one's in a later phase.
    pub fn next_phase(&mut self) -> bool {
        if self.phase + 1 >= self.spec.phases.len() {
            self.turns.clear();
            self.every.clear();
            self.row = None;
            return false;
        }
        let result = self.catch_up().and_then(|()| {
            self.phase += 1;
            self.begin()
        });
        if let Err(error) = result {
            self.failed = Some(error);
        }
        true
    }

    /// The next operation of this phase, `None` at its end.
    ///
    /// # Errors
    /// If an operation needs a key and none is left, or a file cannot be read.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "an iterator could not lend its buffers")]
    pub fn next(&mut self) -> anyhow::Result<Option<Op<'_>>> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if let Some((choice, at)) = self.row {
            return self.index_entry(choice, at).map(Some);
        }
        if !self.every.is_empty()
            && let Some(kind) = self.due()
        {
            return Ok(Some(Buffers::bare(kind)));
        }
        let Some((at, choice)) = self.choose()? else { return Ok(None) };
        self.done += 1;
        self.every_at = 0;
        if !self.indexes.is_empty() && matches!(choice.kind, OpKind::Insert | OpKind::Delete) {
            self.row = Some((choice, 0));
        }
        self.op(at, choice).map(Some)
    }

    /// The next choice, of the streams in turn.
    #[inline]
    fn choose(&mut self) -> anyhow::Result<Option<(usize, Choice)>> {
        while !self.turns.is_empty() {
            let at = self.turns[self.turn];
            if let Some(choice) = self.streams[at].1.step(&self.coder.places)? {
                self.turn = if self.turn + 1 == self.turns.len() { 0 } else { self.turn + 1 };
                return Ok(Some((at, choice)));
            }
            self.turns.remove(self.turn);
            if self.turn == self.turns.len() {
                self.turn = 0;
            }
        }
        Ok(None)
    }

    /// What comes every so many operations and is due now.
    fn due(&mut self) -> Option<OpKind> {
        while self.every_at < self.every.len() {
            let (kind, every) = self.every[self.every_at];
            self.every_at += 1;
            if self.done > 0 && self.done.is_multiple_of(every) {
                return Some(kind);
            }
        }
        None
    }

    /// Starts the phase in all streams that are this client's.
    fn begin(&mut self) -> anyhow::Result<()> {
        let spec = Arc::clone(&self.spec);
        let phase = &spec.phases[self.phase];
        let clients = self.plan.phases[self.phase].clients;
        self.turns.clear();
        (self.turn, self.done, self.every_at, self.row) = (0, 0, 0, None);
        for (at, (share, stream)) in self.streams.iter_mut().enumerate() {
            let (_, group) = phase.group_of(*share % clients).context("every share has a client")?;
            stream.begin(&spec, &self.plan, self.phase, group)?;
            if *share % clients == self.client {
                self.turns.push(at);
            }
        }
        self.every = phase.group_of(self.client).map_or_else(Vec::new, |(group, _)| {
            let before: u32 = phase.groups().take(group).map(|group| group.clients).sum();
            if before == self.client { every(phase.groups().nth(group)) } else { Vec::new() }
        });
        self.entries = phase.group_of(self.client).map_or_else(Vec::new, |(_, group)| entries(&spec, group));
        Ok(())
    }

    /// Does to the streams of other clients what those have done to them.
    fn catch_up(&mut self) -> anyhow::Result<()> {
        let plan = &self.plan.phases[self.phase];
        if !plan.changes_keys {
            return Ok(());
        }
        for (share, stream) in &mut self.streams {
            if *share % plan.clients != self.client && plan.operations[index(u64::from(*share))].is_some() {
                while stream.step(&self.coder.places)?.is_some() {}
            }
        }
        Ok(())
    }

    #[inline]
    fn keyspace(&self, number: u64) -> u16 {
        match &self.keyspaces {
            None => 0,
            Some((weights, salt)) => {
                let keyspace = weights.draw(&mut Rng::new(mix(number ^ salt)));
                u16::try_from(keyspace).expect("a spec has fewer keyspaces")
            }
        }
    }

    #[inline]
    fn op(&mut self, at: usize, choice: Choice) -> anyhow::Result<Op<'_>> {
        let Choice { kind, number, bit, .. } = choice;
        if !kind.has_key() {
            return Ok(Buffers::bare(kind));
        }
        let keyspace = self.keyspace(number);
        let (index, prefix_bytes) = self.entries.get(choice.entry).copied().unwrap_or((None, usize::MAX));
        if choice.is_whole {
            let keyspace = index.map_or(Ok(keyspace), |at| self.index_keyspace(at))?;
            return Ok(Op { keyspace, count: choice.count, ..Buffers::bare(kind) });
        }
        if let Some(at) = index {
            return self.read_index(choice, at);
        }
        let buffers = &mut self.buffers;
        buffers.key.clear();
        buffers.end.clear();
        buffers.ends.clear();
        self.coder.write(number, bit, &mut buffers.key)?;
        match kind {
            OpKind::RangeDelete => {
                let last = choice.last_place;
                self.coder.write_slot(last, last << 1 | 1, &mut buffers.end)?;
            }
            OpKind::MultiGet => {
                buffers.more.clear();
                for number in &self.streams[at].1.list {
                    self.coder.write(*number, 0, &mut buffers.more)?;
                    buffers.ends.push(u32::try_from(buffers.more.len()).context("keys of a multi-get")?);
                }
            }
            OpKind::ScanPrefix => buffers.key.truncate(prefix_bytes),
            _ => {}
        }
        let mut op = Op {
            kind,
            keyspace,
            key: &[],
            end: &[],
            value: &[],
            count: choice.count,
            continues: self.row.is_some(),
            more: &[],
            ends: &[],
        };
        if kind.has_value() {
            op.value = value(&self.values, &mut self.coder, choice, &buffers.key, &mut buffers.value)?;
        }
        (op.key, op.end, op.more, op.ends) = (&buffers.key, &buffers.end, &buffers.more, &buffers.ends);
        Ok(op)
    }

    /// The next index entry of a row that was inserted or deleted.
    fn index_entry(&mut self, choice: Choice, at: usize) -> anyhow::Result<Op<'_>> {
        let is_last = at + 1 == self.indexes.len();
        self.row = (!is_last).then_some((choice, at + 1));
        self.read_index(choice, at).map(|op| Op { count: 1, continues: !is_last, ..op })
    }

    fn index_keyspace(&self, at: usize) -> anyhow::Result<u16> {
        u16::try_from(self.spec.keyspaces.len().max(1) + at).context("a spec has fewer keyspaces")
    }

    /// An operation on the index entry of a row.
    fn read_index(&mut self, choice: Choice, at: usize) -> anyhow::Result<Op<'_>> {
        let keyspace = self.index_keyspace(at)?;
        let Index { picker, cardinality, salt } = &mut self.indexes[at];
        let value = pick_for(picker, choice.number, *salt, *cardinality);
        let buffers = &mut self.buffers;
        buffers.key.clear();
        buffers.key.resize(INDEX_DIGITS, b'0');
        let mut rest = value;
        for byte in buffers.key.iter_mut().rev() {
            *byte += u8::try_from(rest % 10).expect("a digit");
            rest /= 10;
        }
        self.coder.write(choice.number, choice.bit, &mut buffers.key)?;
        Ok(Op { keyspace, key: &buffers.key, count: choice.count, ..Buffers::bare(choice.kind) })
    }
}

impl Buffers {
    /// An operation without a key.
    fn bare(kind: OpKind) -> Op<'static> {
        Op { kind, keyspace: 0, key: &[], end: &[], value: &[], count: 1, continues: false, more: &[], ends: &[] }
    }
}

/// The operations of a group that come every so often.
fn every(group: Option<&Group>) -> Vec<(OpKind, u64)> {
    group.into_iter().flat_map(|group| &group.mix).filter_map(|op| op.every.map(|every| (op.kind, every))).collect()
}

/// Of each entry of a group's mix that a choice counts: the index that it reads, and the bytes of its prefix.
fn entries(spec: &Spec, group: &Group) -> Vec<(Option<usize>, usize)> {
    let of = |op: &OpSpec| {
        let at = op.index.as_ref().and_then(|name| spec.indexes.iter().position(|index| index.name == *name));
        (at, op.prefix_bytes.map_or(usize::MAX, |bytes| index(u64::from(bytes))))
    };
    group.mix.iter().filter(|op| op.every.is_none()).map(of).collect()
}

/// The value that a choice stores under a key.
#[inline]
fn value<'a>(
    values: &'a Values,
    coder: &mut Coder,
    choice: Choice,
    key: &[u8],
    out: &'a mut Vec<u8>,
) -> anyhow::Result<&'a [u8]> {
    if values.content == Content::File {
        out.clear();
        let slot = coder.places.slot(choice.number, 0) >> 1;
        let file = coder.file().context("values of a file of keys")?;
        let line = if choice.is_first { slot } else { choice.value_seed % file.len() };
        file.value(line, out)?;
        return Ok(out);
    }
    let bytes = values.length(choice.value_seed, key.len());
    if values.buffer.is_checked() {
        values.buffer.write_checked(key, choice.value_seed, bytes, out);
        return Ok(out);
    }
    Ok(values.buffer.value(choice.value_seed, bytes))
}
