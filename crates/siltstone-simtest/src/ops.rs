//! What a simulated client does: operations as plain data, and the swarm that draws them from a seed.
//!
//! An operation names keys, keyspaces and snapshots by *number*, taken modulo what there is when it runs, and carries the
//! number from which its values are made. So any part of a list of operations is a legal list too, which is what lets
//! [`shrink`](crate::shrink) cut a failure down to a few lines.

use siltstone::io::Rng;

use crate::config::Config;

/// How a write is to be acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ack {
    /// Not logged.
    None,
    /// Survives a killed process.
    Buffered,
    /// Survives power loss.
    Sync,
}

/// How the writes of a world are acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acks {
    /// All are logged.
    Logged,
    /// Some are, some are not.
    Mixed,
    /// None is; what is ingested is durable all the same.
    Unlogged,
}

/// A key that bounds a range: a key of the table, made a little smaller, larger, or left alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    /// Which key of the table.
    pub key: u32,
    /// 0: as it is; 1: followed by a zero byte; 2: without its last byte; 3: followed by 0xff.
    pub tweak: u8,
    /// Whether a key equal to the edge is inside.
    pub inclusive: bool,
}

/// How a range is walked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walk {
    /// From its first key up.
    Forward,
    /// From its last key down.
    Reverse,
    /// From both ends by turns, drawn from this number.
    BothEnds(u64),
    /// With jumps: at each step a seek to a later key with some probability, and from there forward, or from the end back to it. Drawn from this
    /// number.
    Seeks(u64),
    /// With the lending form (`advance`).
    Lending,
}

/// One write of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// Which keyspace.
    pub keyspace: u8,
    /// Which key.
    pub key: u32,
    /// The value, or none to delete.
    pub value: Option<Value>,
}

/// A value as its recipe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Value {
    /// Unique in a list of operations.
    pub id: u64,
    /// Its length in bytes.
    pub len: u32,
}

impl Value {
    /// Makes the bytes: the number first, then a pattern that compresses or does not, as the number says.
    pub fn fill(self, out: &mut Vec<u8>) {
        out.clear();
        let len = usize::try_from(self.len).expect("a length fits memory");
        out.extend_from_slice(&self.id.to_le_bytes()[..len.min(8)]);
        if self.id.is_multiple_of(3) {
            // Noise.
            let mut x = self.id.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            while out.len() < len {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                let rest = len - out.len();
                out.extend_from_slice(&x.to_le_bytes()[..rest.min(8)]);
            }
        } else {
            let byte = self.id.to_le_bytes()[0];
            out.resize(len.max(out.len()), byte);
        }
    }
}

/// What a crash keeps of what was not made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// The process is killed: everything written stays.
    Kill,
    /// Power loss: nothing that was not synced stays.
    Strict,
    /// Power loss: a prefix of the operations stays.
    Prefix,
    /// Power loss: any subset of sectors and names stays.
    Subset,
    /// Power loss, the worst that is legal.
    Nasty,
}

/// One operation.
#[derive(Clone, PartialEq, Debug)]
#[expect(missing_docs, reason = "the names of the fields say all: keyspace, key, snapshot numbers and lengths")]
pub enum Op {
    Put { keyspace: u8, key: u32, value: Value, ack: Ack },
    Delete { keyspace: u8, key: u32, ack: Ack },
    Batch { writes: Vec<Write>, ack: Ack },
    Get { keyspace: u8, key: u32, snapshot: Option<u8> },
    MultiGet { keyspace: u8, keys: Vec<u32>, snapshot: Option<u8> },
    Range { keyspace: u8, from: Option<Edge>, to: Option<Edge>, walk: Walk, limit: u32, snapshot: Option<u8> },
    Prefix { keyspace: u8, key: u32, len: u8, reverse: bool, snapshot: Option<u8> },
    TakeSnapshot,
    DropSnapshot(u8),
    Flush(Option<u8>),
    Compact { keyspace: u8, from: Option<Edge>, to: Option<Edge>, cancelled: bool },
    Sync,
    Checkpoint,
    Ingest { keyspace: u8, first: u32, step: u32, count: u32, value: Value },
    CreateKeyspace { name: u8, seed: u64 },
    DropKeyspace { keyspace: u8 },
    Reopen { seed: u64 },
    ReopenReadOnly,
    Crash { loss: Loss, seed: u64 },
    ClockJump { wall_ms: i64, mono_ms: u32 },
    CheckAll,
    WaitIdle,
    Verify,
    SetStrategy { keyspace: u8, strategy: u8, back: bool },
    SetScheduler { seed: u64 },
    Trace,
}

impl Op {
    /// The name of its kind, for counts.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Put { .. } => "put",
            Op::Delete { .. } => "delete",
            Op::Batch { .. } => "batch",
            Op::Get { .. } => "get",
            Op::MultiGet { .. } => "multi_get",
            Op::Range { .. } => "range",
            Op::Prefix { .. } => "prefix",
            Op::TakeSnapshot => "take_snapshot",
            Op::DropSnapshot(_) => "drop_snapshot",
            Op::Flush(_) => "flush",
            Op::Compact { .. } => "compact",
            Op::Sync => "sync",
            Op::Checkpoint => "checkpoint",
            Op::Ingest { .. } => "ingest",
            Op::CreateKeyspace { .. } => "create_keyspace",
            Op::DropKeyspace { .. } => "drop_keyspace",
            Op::Reopen { .. } => "reopen",
            Op::ReopenReadOnly => "reopen_read_only",
            Op::Crash { .. } => "crash",
            Op::ClockJump { .. } => "clock_jump",
            Op::CheckAll => "check_all",
            Op::WaitIdle => "wait_idle",
            Op::Verify => "verify",
            Op::SetStrategy { .. } => "set_strategy",
            Op::SetScheduler { .. } => "set_scheduler",
            Op::Trace => "trace",
        }
    }
}

/// One operation and what happens in the background after it.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// The operation.
    pub op: Op,
    /// How many steps of background lanes follow.
    pub lane_steps: u32,
    /// For choices that the world makes while it runs the operation: a step draws alike whatever was cut before it.
    pub seed: u64,
}

impl Step {
    /// A step without background work, for scripted workloads.
    pub fn quiet(op: Op, seed: u64) -> Step {
        Step { op, lane_steps: 0, seed }
    }
}

/// The kinds of operation that a swarm may leave out, and how often each comes when it is in.
const KINDS: &[(Kind, u64)] = &[
    (Kind::Put, 400),
    (Kind::Delete, 120),
    (Kind::Batch, 60),
    (Kind::Get, 200),
    (Kind::MultiGet, 20),
    (Kind::Range, 50),
    (Kind::Prefix, 10),
    (Kind::TakeSnapshot, 20),
    (Kind::DropSnapshot, 18),
    (Kind::SnapshotRead, 60),
    (Kind::Flush, 6),
    (Kind::Compact, 3),
    (Kind::Sync, 10),
    (Kind::Checkpoint, 1),
    (Kind::Ingest, 3),
    (Kind::CreateKeyspace, 2),
    (Kind::DropKeyspace, 1),
    (Kind::Reopen, 3),
    (Kind::ReopenReadOnly, 1),
    (Kind::Crash, 4),
    (Kind::ClockJump, 2),
    (Kind::CheckAll, 2),
    (Kind::WaitIdle, 4),
    (Kind::Verify, 1),
    (Kind::SetStrategy, 4),
    (Kind::SetScheduler, 6),
    (Kind::Trace, 2),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Put,
    Delete,
    Batch,
    Get,
    MultiGet,
    Range,
    Prefix,
    TakeSnapshot,
    DropSnapshot,
    SnapshotRead,
    Flush,
    Compact,
    Sync,
    Checkpoint,
    Ingest,
    CreateKeyspace,
    DropKeyspace,
    Reopen,
    ReopenReadOnly,
    Crash,
    ClockJump,
    CheckAll,
    WaitIdle,
    Verify,
    SetStrategy,
    SetScheduler,
    Trace,
}

/// Draws operations for one world.
pub struct Generator {
    rng: Rng,
    weights: Vec<(Kind, u64)>,
    total: u64,
    keys: u64,
    /// Half of the draws come from a window of the keys, so that overwrites and deletes of fresh keys are common.
    hot: u64,
    acks: Acks,
    value_limit: u32,
    sync_one_in: u64,
    next_value: u64,
    steps_between: u64,
}

impl Generator {
    /// A generator for the world that `config` describes; the same config gives the same operations.
    pub fn new(config: &Config) -> Generator {
        let mut rng = Rng::new(config.seed).split("operations");
        let mut weights = Vec::new();
        for &(kind, weight) in KINDS {
            // Swarm testing: each world leaves some kinds out altogether, and stretches others. Puts always stay.
            let keep = kind == Kind::Put || !rng.one_in(5);
            let stretch = rng.between(1, 4);
            if keep {
                weights.push((kind, weight * stretch));
            }
        }
        let total = weights.iter().map(|(_, weight)| weight).sum();
        let keys = config.keys.len() as u64;
        let sync_one_in = [1, 4, 20, 100][index(&mut rng, 4)];
        Generator {
            rng,
            weights,
            total,
            keys,
            hot: 0,
            acks: config.acks,
            value_limit: config.value_limit,
            sync_one_in,
            next_value: 1,
            steps_between: config.steps_between,
        }
    }

    /// The first `len` steps of the world with this configuration.
    pub fn steps(config: &Config, len: usize) -> Vec<Step> {
        let mut generator = Generator::new(config);
        (0..len).map(|_| generator.next_step()).collect()
    }

    /// The next step.
    pub fn next_step(&mut self) -> Step {
        let op = self.next_op();
        let lane_steps = number(self.rng.below(self.steps_between + 1));
        Step { op, lane_steps, seed: self.rng.next_u64() }
    }

    fn next_op(&mut self) -> Op {
        let mut ticket = self.rng.below(self.total);
        let mut kind = Kind::Put;
        for &(candidate, weight) in &self.weights {
            if ticket < weight {
                kind = candidate;
                break;
            }
            ticket -= weight;
        }
        self.draw(kind)
    }

    fn draw(&mut self, kind: Kind) -> Op {
        let keyspace = self.keyspace();
        match kind {
            Kind::Put => Op::Put { keyspace, key: self.key(), value: self.value(), ack: self.ack() },
            Kind::Delete => Op::Delete { keyspace, key: self.key(), ack: self.ack() },
            Kind::Batch => {
                let most = if self.rng.one_in(10) { 60 } else { 8 };
                let len = 1 + self.rng.below(most);
                let writes = (0..len)
                    .map(|_| Write {
                        keyspace: self.keyspace(),
                        key: self.key(),
                        value: if self.rng.one_in(3) { None } else { Some(self.value()) },
                    })
                    .collect();
                Op::Batch { writes, ack: self.ack() }
            }
            Kind::Get => Op::Get { keyspace, key: self.key(), snapshot: None },
            Kind::SnapshotRead => {
                let snapshot = Some(self.small());
                if self.rng.one_in(6) {
                    self.range(keyspace, snapshot)
                } else {
                    Op::Get { keyspace, key: self.key(), snapshot }
                }
            }
            Kind::MultiGet => {
                let len = 1 + self.rng.below(12);
                let keys = (0..len).map(|_| self.key()).collect();
                Op::MultiGet { keyspace, keys, snapshot: self.maybe_snapshot() }
            }
            Kind::Range => {
                let snapshot = self.maybe_snapshot();
                self.range(keyspace, snapshot)
            }
            Kind::Prefix => Op::Prefix {
                keyspace,
                key: self.key(),
                len: self.small() % 24,
                reverse: self.rng.one_in(2),
                snapshot: self.maybe_snapshot(),
            },
            Kind::TakeSnapshot => Op::TakeSnapshot,
            Kind::DropSnapshot => Op::DropSnapshot(self.small()),
            Kind::Flush => Op::Flush(if self.rng.one_in(2) { Some(keyspace) } else { None }),
            Kind::Compact => {
                let from = self.edge();
                let to = self.edge();
                Op::Compact { keyspace, from, to, cancelled: self.rng.one_in(5) }
            }
            Kind::Sync => Op::Sync,
            Kind::Checkpoint => Op::Checkpoint,
            Kind::Ingest => Op::Ingest {
                keyspace,
                first: self.key(),
                step: 1 + number(self.rng.below(3)),
                count: 1 + number(self.rng.below(40)),
                value: self.value_block(200),
            },
            Kind::CreateKeyspace => Op::CreateKeyspace { name: self.small(), seed: self.rng.next_u64() },
            Kind::DropKeyspace => Op::DropKeyspace { keyspace },
            Kind::Reopen => Op::Reopen { seed: self.rng.next_u64() },
            Kind::ReopenReadOnly => Op::ReopenReadOnly,
            Kind::Crash => {
                let loss = [Loss::Kill, Loss::Strict, Loss::Prefix, Loss::Subset, Loss::Nasty][index(&mut self.rng, 5)];
                Op::Crash { loss, seed: self.rng.next_u64() }
            }
            Kind::ClockJump => {
                let years = i64::try_from(self.rng.below(21)).expect("small") - 10;
                let wall_ms = if self.rng.one_in(3) { years * 365 * 86_400_000 } else { years };
                Op::ClockJump { wall_ms, mono_ms: number(self.rng.below(5_000)) }
            }
            Kind::CheckAll => Op::CheckAll,
            Kind::WaitIdle => Op::WaitIdle,
            Kind::Verify => Op::Verify,
            Kind::SetScheduler => Op::SetScheduler { seed: self.rng.next_u64() },
            Kind::Trace => Op::Trace,
            Kind::SetStrategy => Op::SetStrategy { keyspace, strategy: self.small(), back: self.rng.one_in(3) },
        }
    }

    fn range(&mut self, keyspace: u8, snapshot: Option<u8>) -> Op {
        let walk = match self.rng.below(8) {
            0..=2 => Walk::Forward,
            3 | 4 => Walk::Reverse,
            5 => Walk::BothEnds(self.rng.next_u64()),
            6 => Walk::Seeks(self.rng.next_u64()),
            _ => Walk::Lending,
        };
        let from = self.edge();
        let to = self.edge();
        let limit = if self.rng.one_in(4) { u32::MAX } else { 1 + number(self.rng.below(30)) };
        Op::Range { keyspace, from, to, walk, limit, snapshot }
    }

    fn edge(&mut self) -> Option<Edge> {
        if self.rng.one_in(3) {
            return None;
        }
        let tweak = if self.rng.one_in(2) { 0 } else { self.small() % 4 };
        Some(Edge { key: self.key(), tweak, inclusive: self.rng.one_in(2) })
    }

    fn keyspace(&mut self) -> u8 {
        if self.rng.one_in(2) { 0 } else { self.small() % 4 }
    }

    fn small(&mut self) -> u8 {
        self.rng.next_u64().to_le_bytes()[7]
    }

    fn key(&mut self) -> u32 {
        if self.rng.one_in(500) {
            self.hot = self.rng.below(self.keys);
        }
        let key =
            if self.rng.one_in(2) { (self.hot + self.rng.below(16)) % self.keys } else { self.rng.below(self.keys) };
        number(key)
    }

    fn value(&mut self) -> Value {
        let len = match self.rng.below(200) {
            0..=9 => 0,
            10..=19 => self.rng.below(8),
            20..=149 => self.rng.below(60),
            150..=198 => self.rng.below(300),
            _ => self.rng.below(u64::from(self.value_limit) + 1),
        };
        let id = self.next_value;
        self.next_value += 1;
        Value { id, len: number(len) }
    }

    /// A value whose next `count` numbers are taken as well.
    fn value_block(&mut self, count: u64) -> Value {
        let value = self.value();
        self.next_value += count;
        Value { len: value.len.min(300), ..value }
    }

    fn ack(&mut self) -> Ack {
        if self.acks == Acks::Unlogged || self.acks == Acks::Mixed && self.rng.one_in(3) {
            Ack::None
        } else if self.rng.one_in(self.sync_one_in) {
            Ack::Sync
        } else {
            Ack::Buffered
        }
    }

    fn maybe_snapshot(&mut self) -> Option<u8> {
        if self.rng.one_in(4) { Some(self.small()) } else { None }
    }
}

/// A draw from `0..n` as an index.
pub(crate) fn index(rng: &mut Rng, n: u64) -> usize {
    usize::try_from(rng.below(n)).expect("a draw below a small number")
}

/// A draw that is known to be small as a `u32`.
pub(crate) fn number(n: u64) -> u32 {
    u32::try_from(n).expect("a draw below a small number")
}
