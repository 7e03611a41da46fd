//! A trace is done again.
//!
//! One client does what the trace says, in its order. Paced by the recorded times it is an open loop: an operation is due when it was then,
//! and its latency counts from there, so what a stall delays is charged with it (luo19 section 3.2). As fast as possible it is a closed loop.
//!
//! Values are made of the key and have the recorded length, so that two replays store the same. What the engine cannot do is done as a user would do it: a range is
//! deleted by reading it and deleting its keys in batches. What cannot be done at all (an ingestion, whose keys are not in the trace) is counted and left out.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use anyhow::{Result, bail};
use bytes::Bytes;
use serde::Serialize;
use siltstone::io::Rng;
use siltstone::key::hash;
use siltstone::trace::{Op, Write};
use siltstone::version::KeyspaceId;
use siltstone::{Batch, Cancel, Db, Durability, Keyspace, Range};

use super::{Kind, Source, Step};
use crate::load::{Moment, World};
use crate::metrics::{Latencies, LatencySummary};
use crate::num::{float, floor, index, per_second, ratio};

/// How fast.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pace {
    /// So many times as fast as it was.
    Recorded(f64),
    /// One after the other.
    Fast,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Replay {
    /// How fast.
    pub pace: Pace,
    /// The durability of all writes; the recorded one if none.
    pub durability: Option<Durability>,
}

/// What became of it.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayResult {
    /// Operations that were done; a batch is one.
    pub operations: u64,
    /// Seconds that they took together.
    pub elapsed_s: f64,
    /// Operations a second.
    pub ops_per_s: f64,
    /// How many times as fast as recorded they were due; none as fast as possible.
    pub speed: Option<f64>,
    /// By the name of the kind.
    pub kinds: BTreeMap<&'static str, KindResult>,
    /// Ranges that were deleted by reading them and deleting their keys, and how many keys that were.
    pub range_deletes: u64,
    /// Keys that they deleted.
    pub range_deleted_keys: u64,
    /// Operations that cannot be done again: ingestions.
    pub left_out: u64,
    /// Operations that the trace says it has lost.
    pub lost: u64,
    /// The share of the lookups that found a key, or found none, as they did when they were recorded; none without such lookups.
    pub found_as_recorded: Option<f64>,
    /// It was ended early.
    pub is_partial: bool,
}

/// What became of the operations of a kind.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct KindResult {
    /// How many.
    pub count: u64,
    /// Keys found or records read.
    pub found: u64,
    /// From when they were due to their end; the same as `processing` where nothing was due.
    pub latency: LatencySummary,
    /// From their start to their end.
    pub processing: LatencySummary,
}

/// How often the caller is asked whether to go on.
const TICK: u64 = 1 << 8;
/// Keys that are deleted at a time.
const DELETES: usize = 10_000;

/// Does what `source` says in `db`. `world` gives the time.
///
/// # Errors
/// The first error of the store or of reading. A pace by recorded times for operations without times.
pub fn replay(
    source: &mut Source,
    db: &Db,
    world: &dyn World,
    ask: Replay,
    watch: &mut dyn FnMut(Moment) -> bool,
) -> Result<ReplayResult> {
    let header = source.header();
    if let Pace::Recorded(speed) = ask.pace {
        if header.is_untimed {
            bail!("nobody knows when these operations were: they can only be done as fast as possible");
        }
        if !(speed.is_finite() && speed > 0.0) {
            bail!("a speed of {speed}: it must be above 0");
        }
    }
    let knows_found = matches!(source, Source::Trace(_)) && !header.is_untimed;
    let mut client = Client::new(db, ask.durability, header.hashed_beyond.is_some(), knows_found);
    let mut tallies: BTreeMap<&'static str, Tally> = BTreeMap::new();
    let start_ns = world.now_ns();
    let (mut done, mut is_partial) = (0u64, false);
    while let Some(step) = source.step()? {
        let Some(kind) = Kind::of(&step.op) else {
            client.note(&step.op)?;
            continue;
        };
        let mut due_ns = None;
        if let Pace::Recorded(speed) = ask.pace {
            let due = floor(float(step.at_ns) / speed);
            if world.now_ns() - start_ns < due && !wait(world, start_ns + due, done, source, watch) {
                is_partial = true;
                break;
            }
            due_ns = Some(due);
        }
        let began_ns = world.now_ns() - start_ns;
        let Some(found) = client.act(&step)? else { continue };
        world.spend();
        let ended_ns = world.now_ns() - start_ns;
        tallies.entry(kind.name()).or_default().add(due_ns.unwrap_or(began_ns), began_ns, ended_ns, found);
        done += 1;
        if done.is_multiple_of(TICK) && !watch(moment(done, source)) {
            is_partial = true;
            break;
        }
    }
    let elapsed_s = float(world.now_ns() - start_ns) / 1e9;
    let lookups = client.found_alike + client.found_otherwise;
    Ok(ReplayResult {
        operations: done,
        elapsed_s,
        ops_per_s: per_second(done, elapsed_s),
        speed: match ask.pace {
            Pace::Recorded(speed) => Some(speed),
            Pace::Fast => None,
        },
        kinds: tallies.into_iter().map(|(name, tally)| (name, tally.result())).collect(),
        range_deletes: client.range_deletes,
        range_deleted_keys: client.range_deleted_keys,
        left_out: client.left_out,
        lost: client.lost,
        found_as_recorded: (lookups > 0).then(|| ratio(client.found_alike, lookups)),
        is_partial,
    })
}

/// Waits in short pieces, so that a caller can end it; false if one does.
fn wait(world: &dyn World, until_ns: u64, done: u64, source: &Source, watch: &mut dyn FnMut(Moment) -> bool) -> bool {
    const PIECE_NS: u64 = 200_000_000;
    while until_ns > world.now_ns() + PIECE_NS {
        world.wait_until(world.now_ns() + PIECE_NS);
        if !watch(moment(done, source)) {
            return false;
        }
    }
    world.wait_until(until_ns);
    true
}

fn moment(operations: u64, source: &Source) -> Moment {
    let (bytes, read) = source.progress();
    Moment { share: ratio(read, bytes), operations }
}

/// Fills `value` with `length` letters that follow from `key`.
pub fn value_of(key: &[u8], length: usize, value: &mut Vec<u8>) {
    const LETTERS: [u8; 64] = *b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    let mut rng = Rng::new(hash(key));
    value.clear();
    while value.len() < length {
        let letters = rng.next_u64().to_le_bytes().map(|byte| LETTERS[usize::from(byte & 63)]);
        value.extend_from_slice(&letters[..letters.len().min(length - value.len())]);
    }
}

#[derive(Default)]
struct Tally {
    latency: Latencies,
    processing: Latencies,
    found: u64,
}

impl Tally {
    fn add(&mut self, due_ns: u64, began_ns: u64, ended_ns: u64, found: u64) {
        self.latency.record(Duration::from_nanos(ended_ns - due_ns));
        self.processing.record(Duration::from_nanos(ended_ns - began_ns));
        self.found += found;
    }

    fn result(&self) -> KindResult {
        let latency = self.latency.summary();
        KindResult { count: latency.count, found: self.found, latency, processing: self.processing.summary() }
    }
}

/// Who does it.
struct Client<'a> {
    db: &'a Db,
    durability: Option<Durability>,
    /// Bounds are hashes: an upper one says nothing.
    is_hashed: bool,
    /// What was found then is known.
    knows_found: bool,
    keyspaces: BTreeMap<KeyspaceId, Keyspace>,
    value: Vec<u8>,
    batch: Batch,
    found_alike: u64,
    found_otherwise: u64,
    range_deletes: u64,
    range_deleted_keys: u64,
    left_out: u64,
    lost: u64,
}

impl<'a> Client<'a> {
    fn new(db: &'a Db, durability: Option<Durability>, is_hashed: bool, knows_found: bool) -> Client<'a> {
        Client {
            db,
            durability,
            is_hashed,
            knows_found,
            keyspaces: BTreeMap::from([(KeyspaceId(0), db.default_keyspace())]),
            value: Vec::new(),
            batch: Batch::new(),
            found_alike: 0,
            found_otherwise: 0,
            range_deletes: 0,
            range_deleted_keys: 0,
            left_out: 0,
            lost: 0,
        }
    }

    /// Keyspaces come and go, and what is lost is counted.
    fn note(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Keyspace { id, name } => {
                let keyspace = match self.db.keyspace(name) {
                    Ok(keyspace) => keyspace,
                    Err(_) => self.db.create_keyspace(name, self.db.default_keyspace().options())?,
                };
                self.keyspaces.insert(*id, keyspace);
            }
            Op::DropKeyspace { id } => {
                if let Some(keyspace) = self.keyspaces.remove(id) {
                    self.db.drop_keyspace(keyspace.name())?;
                }
            }
            Op::Lost { operations } => self.lost += operations,
            _ => {}
        }
        Ok(())
    }

    fn keyspace(&self, id: KeyspaceId) -> Result<Keyspace> {
        match self.keyspaces.get(&id) {
            Some(keyspace) => Ok(keyspace.clone()),
            None => bail!("keyspace {} of the trace has no name: it was made by no Siltstone", id.0),
        }
    }

    /// Does an operation; how much it found, or none if it cannot be done.
    fn act(&mut self, step: &Step) -> Result<Option<u64>> {
        Ok(Some(match &step.op {
            Op::Write(write, durability) => self.write(write, step.value.as_ref(), *durability).map(|()| 0)?,
            Op::Batch(writes, durability) => self.batch(writes, *durability).map(|()| 0)?,
            Op::Get { keyspace, key, found } => {
                let value = self.keyspace(*keyspace)?.get(key)?;
                self.look(value.is_some(), found.is_some())
            }
            Op::MultiGet { keyspace, keys } => {
                let asked: Vec<&Bytes> = keys.iter().map(|(key, _)| key).collect();
                let values = self.keyspace(*keyspace)?.multi_get(&asked);
                let mut all = 0;
                for (value, (_, found)) in values.into_iter().zip(keys) {
                    all += self.look(value?.is_some(), found.is_some());
                }
                all
            }
            Op::Range { keyspace, lower, upper, forward, backward, .. } => {
                let range = self.keyspace(*keyspace)?.range((lower.clone(), self.upper(upper)))?;
                if self.is_hashed { read(range, forward + backward, 0)? } else { read(range, *forward, *backward)? }
            }
            Op::DeleteRange { keyspace, lower, upper } => self.delete_range(*keyspace, lower, upper)?,
            Op::Flush { keyspace: None } => self.db.flush().map(|()| 0)?,
            Op::Flush { keyspace: Some(id) } => self.keyspace(*id)?.flush().map(|()| 0)?,
            Op::Compact { keyspace, lower, upper } => {
                let bounds =
                    if self.is_hashed { (Bound::Unbounded, Bound::Unbounded) } else { (lower.clone(), upper.clone()) };
                self.keyspace(*keyspace)?.compact(bounds, &Cancel::new()).map(|()| 0)?
            }
            _ => {
                self.left_out += 1;
                return Ok(None);
            }
        }))
    }

    fn upper(&self, upper: &Bound<Bytes>) -> Bound<Bytes> {
        if self.is_hashed { Bound::Unbounded } else { upper.clone() }
    }

    fn look(&mut self, found: bool, recorded: bool) -> u64 {
        if self.knows_found {
            let as_recorded = if found == recorded { &mut self.found_alike } else { &mut self.found_otherwise };
            *as_recorded += 1;
        }
        u64::from(found)
    }

    fn write(&mut self, write: &Write, value: Option<&Bytes>, durability: Durability) -> Result<()> {
        let (keyspace, durability) = (self.keyspace(write.keyspace)?, self.durability.unwrap_or(durability));
        match (write.value_len, value) {
            (None, _) => keyspace.delete_with(&write.key, durability)?,
            (Some(_), Some(value)) => keyspace.put_with(&write.key, value, durability)?,
            (Some(length), None) => {
                value_of(&write.key, index(u64::from(length)), &mut self.value);
                keyspace.put_with(&write.key, &self.value, durability)?;
            }
        }
        Ok(())
    }

    fn batch(&mut self, writes: &[Write], durability: Durability) -> Result<()> {
        self.batch.clear();
        for write in writes {
            let keyspace = self.keyspace(write.keyspace)?;
            match write.value_len {
                None => self.batch.delete(&keyspace, &write.key),
                Some(length) => {
                    value_of(&write.key, index(u64::from(length)), &mut self.value);
                    self.batch.put(&keyspace, &write.key, &self.value);
                }
            }
        }
        self.db.write_with(&self.batch, self.durability.unwrap_or(durability))?;
        Ok(())
    }

    fn delete_range(&mut self, keyspace: KeyspaceId, lower: &Bytes, upper: &Bytes) -> Result<u64> {
        let keyspace = self.keyspace(keyspace)?;
        self.range_deletes += 1;
        let mut deleted = 0;
        if lower < upper {
            let mut range = keyspace.range(lower.clone()..upper.clone())?;
            loop {
                self.batch.clear();
                while self.batch.len() < DELETES && range.advance()? {
                    self.batch.delete(&keyspace, range.key());
                }
                if self.batch.is_empty() {
                    break;
                }
                deleted += crate::num::count(self.batch.len());
                self.db.write_with(&self.batch, self.durability.unwrap_or_default())?;
            }
        }
        self.range_deleted_keys += deleted;
        Ok(deleted)
    }
}

/// Reads so many records from both ends, or all that there are.
fn read(mut range: Range, forward: u64, backward: u64) -> Result<u64> {
    let mut records = 0;
    while records < forward && range.advance()? {
        records += 1;
    }
    let mut back = 0;
    while back < backward && range.advance_back()? {
        back += 1;
    }
    Ok(records + back)
}
