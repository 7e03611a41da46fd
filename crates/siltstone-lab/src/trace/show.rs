//! What is in a trace: figures, and its first lines.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;

use anyhow::Result;
use bytes::Bytes;
use serde::Serialize;
use siltstone::Durability;
use siltstone::key::hash;
use siltstone::trace::{Op, TraceEnd, Write};
use siltstone::version::KeyspaceId;

use super::{Kind, Source, name_of};
use crate::num::{count, float, per_second, ratio};

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Show {
    /// So many first operations and notes.
    pub first: u64,
    /// Keys as hexadecimal digits.
    pub hex: bool,
}

/// What is in a trace.
#[derive(Clone, Debug, Serialize)]
pub struct TraceShow {
    /// `trace`, or `text`.
    pub form: &'static str,
    /// When it began, in nanoseconds since 1970; none for a text.
    pub began_ns: Option<u64>,
    /// Keys are hashes but for so many first bytes.
    pub hashed_beyond: Option<u32>,
    /// Seconds from its begin to its last operation; none where nobody knows.
    pub elapsed_s: Option<f64>,
    /// Operations; a batch is one.
    pub operations: u64,
    /// Operations a second; 0 where nobody knows.
    pub ops_per_s: f64,
    /// Operations that are known to be missing.
    pub lost: u64,
    /// `stopped`, or `breaks off at byte N`: the process died or still writes. `text` for a text.
    pub end: String,
    /// By kind.
    pub kinds: BTreeMap<&'static str, KindSummary>,
    /// By name.
    pub keyspaces: Vec<KeyspaceSummary>,
    /// Lookups that found nothing, of all; none without lookups or where nobody knows.
    pub empty_lookups: Option<f64>,
    /// The first lines.
    pub first: Vec<String>,
    /// Damage: what is above is what comes before it.
    pub error: Option<String>,
}

/// The operations of a kind.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct KindSummary {
    /// How many.
    pub count: u64,
    /// Keys of them: more than one in a batch, records read of a range.
    pub keys: u64,
    /// Mean bytes of the keys.
    pub key_bytes: f64,
    /// Mean bytes of the values that were put or found.
    pub value_bytes: f64,
}

/// What was done in a keyspace.
#[derive(Clone, Debug, Serialize)]
pub struct KeyspaceSummary {
    /// Its name.
    pub name: String,
    /// Keys written, looked up, or where ranges began.
    pub keys: u64,
    /// Different ones among them, by their hashes.
    pub distinct_keys: u64,
}

#[derive(Default)]
struct Sums {
    count: u64,
    keys: u64,
    sized_keys: u64,
    key_bytes: u64,
    values: u64,
    value_bytes: u64,
}

#[derive(Default)]
struct Space {
    name: String,
    keys: u64,
    distinct: HashSet<u64>,
}

/// Reads everything once. Damage ends it and is in the answer; `watch` is told how far it is and ends it by answering false.
///
/// # Errors
/// A broken line of a text.
pub fn show(source: &mut Source, ask: Show, watch: &mut dyn FnMut(u64, u64) -> bool) -> Result<TraceShow> {
    let mut look = Look::default();
    let mut error = None;
    let mut first = Vec::new();
    let mut last_ns = 0;
    loop {
        let step = match source.step() {
            Ok(Some(step)) => step,
            Ok(None) => break,
            Err(wrong) if matches!(source, Source::Trace(_)) => {
                error = Some(format!("{wrong:#}"));
                break;
            }
            Err(wrong) => return Err(wrong),
        };
        look.see(&step.op);
        if count(first.len()) < ask.first {
            let at = if source.header().is_untimed {
                String::new()
            } else {
                format!("{:>13.6} s  ", float(step.at_ns) / 1e9)
            };
            first.push(at + &look.line(&step.op, ask.hex));
        }
        last_ns = step.at_ns;
        if look.operations.is_multiple_of(1 << 12) && !watch(look.operations, source.progress().1) {
            break;
        }
    }
    let header = source.header();
    let elapsed_s = (!header.is_untimed).then(|| float(last_ns) / 1e9);
    let is_trace = matches!(source, Source::Trace(_));
    let knows_found = is_trace && !header.is_untimed && look.lookups > 0;
    Ok(TraceShow {
        form: if is_trace { "trace" } else { "text" },
        began_ns: (header.began_ns > 0).then_some(header.began_ns),
        hashed_beyond: header.hashed_beyond,
        elapsed_s,
        operations: look.operations,
        ops_per_s: per_second(look.operations, elapsed_s.unwrap_or(0.0)),
        lost: look.lost,
        end: match source.end() {
            _ if error.is_some() => "damaged".to_owned(),
            Some(TraceEnd::Stopped) => "stopped".to_owned(),
            Some(TraceEnd::Torn(at)) => format!("breaks off at byte {at}"),
            None if is_trace => "not read to its end".to_owned(),
            None => "text".to_owned(),
        },
        kinds: look.kinds.iter().map(|(kind, sums)| (kind.name(), sums.summary())).collect(),
        keyspaces: look.keyspaces(),
        empty_lookups: knows_found.then(|| ratio(look.empty, look.lookups)),
        first,
        error,
    })
}

#[derive(Default)]
struct Look {
    operations: u64,
    lost: u64,
    lookups: u64,
    empty: u64,
    kinds: BTreeMap<Kind, Sums>,
    spaces: BTreeMap<KeyspaceId, Space>,
}

impl Look {
    fn see(&mut self, op: &Op) {
        match op {
            Op::Keyspace { id, name } => self.spaces.entry(*id).or_default().name.clone_from(name),
            Op::Lost { operations } => self.lost += operations,
            _ => {}
        }
        let Some(kind) = Kind::of(op) else { return };
        self.operations += 1;
        self.kinds.entry(kind).or_default().count += 1;
        match op {
            Op::Write(write, _) => self.key(kind, write.keyspace, &write.key, write.value_len),
            Op::Batch(writes, _) => {
                writes.iter().for_each(|write| self.key(kind, write.keyspace, &write.key, write.value_len));
            }
            Op::Get { keyspace, key, found } => self.lookup(kind, *keyspace, key, *found),
            Op::MultiGet { keyspace, keys } => {
                keys.iter().for_each(|(key, found)| self.lookup(kind, *keyspace, key, *found));
            }
            Op::Range { keyspace, lower, forward, backward, .. } => {
                if let Bound::Included(key) | Bound::Excluded(key) = lower {
                    self.key(kind, *keyspace, key, None);
                    self.sums(kind).keys -= 1;
                }
                let read = if *forward == u64::MAX { 0 } else { forward.saturating_add(*backward) };
                self.sums(kind).keys += read;
            }
            Op::DeleteRange { keyspace, lower, .. } => self.key(kind, *keyspace, lower, None),
            Op::Ingest { records, .. } => self.sums(kind).keys += records,
            _ => {}
        }
    }

    fn sums(&mut self, kind: Kind) -> &mut Sums {
        self.kinds.entry(kind).or_default()
    }

    fn lookup(&mut self, kind: Kind, keyspace: KeyspaceId, key: &Bytes, found: Option<u32>) {
        self.lookups += 1;
        self.empty += u64::from(found.is_none());
        self.key(kind, keyspace, key, found);
    }

    fn key(&mut self, kind: Kind, keyspace: KeyspaceId, key: &Bytes, value_len: Option<u32>) {
        let sums = self.sums(kind);
        sums.keys += 1;
        sums.sized_keys += 1;
        sums.key_bytes += count(key.len());
        if let Some(length) = value_len {
            sums.values += 1;
            sums.value_bytes += u64::from(length);
        }
        let space = self.spaces.entry(keyspace).or_default();
        space.keys += 1;
        space.distinct.insert(hash(key));
    }

    fn name(&self, id: KeyspaceId) -> String {
        name_of(id, self.spaces.get(&id).map_or("", |space| &space.name))
    }

    fn keyspaces(&self) -> Vec<KeyspaceSummary> {
        let used = self.spaces.iter().filter(|(_, space)| space.keys > 0);
        let mut all: Vec<_> = used
            .map(|(id, space)| KeyspaceSummary {
                name: self.name(*id),
                keys: space.keys,
                distinct_keys: count(space.distinct.len()),
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// An operation as a line for people.
    fn line(&self, op: &Op, hex: bool) -> String {
        let text = |key: &[u8]| spell(key, hex);
        let name = |id: &KeyspaceId| self.name(*id);
        let found = |found: &Option<u32>| found.map_or("nothing".to_owned(), |length| format!("{length} B"));
        match op {
            Op::Write(write, durability) => format!("{}{}", self.write(write, hex), durable(*durability)),
            Op::Batch(writes, durability) => {
                let shown: Vec<String> = writes.iter().take(4).map(|write| self.write(write, hex)).collect();
                let more = if writes.len() > 4 { format!(", and {} more", writes.len() - 4) } else { String::new() };
                format!("batch of {}{}: {}{more}", writes.len(), durable(*durability), shown.join(", "))
            }
            Op::Get { keyspace, key, found: value } => {
                format!("get {}/{} -> {}", name(keyspace), text(key), found(value))
            }
            Op::MultiGet { keyspace, keys } => {
                let shown: Vec<String> =
                    keys.iter().take(4).map(|(key, value)| format!("{} -> {}", text(key), found(value))).collect();
                let more = if keys.len() > 4 { format!(", and {} more", keys.len() - 4) } else { String::new() };
                format!("multi-get of {} in {}: {}{more}", keys.len(), name(keyspace), shown.join(", "))
            }
            Op::Range { keyspace, lower, upper, forward, backward, .. } => {
                let read = match (*forward, *backward) {
                    (u64::MAX, _) => "all records".to_owned(),
                    (forward, 0) => format!("{forward} records"),
                    (forward, backward) => format!("{forward} records and {backward} from the end"),
                };
                format!("range {} {} -> {read}", name(keyspace), bounds(lower, upper, hex))
            }
            Op::Flush { keyspace } => keyspace.as_ref().map_or("flush".to_owned(), |id| format!("flush {}", name(id))),
            Op::Compact { keyspace, lower, upper } => {
                format!("compact {} {}", name(keyspace), bounds(lower, upper, hex))
            }
            Op::Keyspace { id, name } => format!("keyspace {} is {name:?}", id.0),
            Op::DropKeyspace { id } => format!("drop keyspace {}", name(id)),
            Op::Lost { operations } => format!("{operations} operations are lost here"),
            Op::Ingest { keyspace, records } => format!("ingest {records} records into {}", name(keyspace)),
            Op::DeleteRange { keyspace, lower, upper } => {
                format!("delete-range {} {}..{}", name(keyspace), text(lower), text(upper))
            }
            _ => format!("{op:?}"),
        }
    }

    fn write(&self, write: &Write, hex: bool) -> String {
        let (name, key) = (self.name(write.keyspace), spell(&write.key, hex));
        match write.value_len {
            Some(length) => format!("put {name}/{key} {length} B"),
            None => format!("delete {name}/{key}"),
        }
    }
}

impl Sums {
    fn summary(&self) -> KindSummary {
        KindSummary {
            count: self.count,
            keys: self.keys,
            key_bytes: ratio(self.key_bytes, self.sized_keys),
            value_bytes: ratio(self.value_bytes, self.values),
        }
    }
}

fn durable(durability: Durability) -> &'static str {
    match durability {
        Durability::Buffered => "",
        Durability::Sync => " sync",
        Durability::None => " unlogged",
    }
}

fn bounds(lower: &Bound<Bytes>, upper: &Bound<Bytes>, hex: bool) -> String {
    let lower = match lower {
        Bound::Unbounded => String::new(),
        Bound::Included(key) => spell(key, hex),
        Bound::Excluded(key) => format!("(after){}", spell(key, hex)),
    };
    let upper = match upper {
        Bound::Unbounded => String::new(),
        Bound::Included(key) => format!("={}", spell(key, hex)),
        Bound::Excluded(key) => spell(key, hex),
    };
    format!("{lower}..{upper}")
}

/// A key for people, cut after 40 bytes.
fn spell(key: &[u8], hex: bool) -> String {
    let shown = &key[..key.len().min(40)];
    let more = if shown.len() < key.len() { "..." } else { "" };
    let text =
        if hex { shown.iter().map(|byte| format!("{byte:02x}")).collect() } else { shown.escape_ascii().to_string() };
    text + more
}
