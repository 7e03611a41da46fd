//! What is done, in order: phases, and the clients in each.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use siltstone::Durability;

use super::arrive::{ArrivalSpec, some_time};
use super::law::named;
use super::op::{Amount, OpSpec};

/// How the operations of a mix follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interleave {
    /// Each is drawn by the shares, whatever went before.
    #[default]
    Independent,
    /// Each is drawn by what is left of each kind, so that in the end the numbers are exact.
    Proportional,
    /// One kind after the other, in the order of the mix; the numbers are exact.
    Serial,
}

/// How a mix becomes another one within a phase.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Shift {
    /// At once.
    Abrupt {
        /// When, as a share of the phase.
        at: f64,
    },
    /// Evenly over the whole phase.
    Slow,
}

/// What a write survives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durable {
    /// Nothing: it does not go into the log.
    None,
    /// The end of the process.
    #[default]
    Buffered,
    /// A power loss.
    Sync,
}

impl From<Durable> for Durability {
    fn from(durable: Durable) -> Durability {
        match durable {
            Durable::None => Durability::None,
            Durable::Buffered => Durability::Buffered,
            Durable::Sync => Durability::Sync,
        }
    }
}

/// Clients that do the same.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// For people; the phase's own clients have none.
    #[serde(default)]
    pub name: String,
    /// How many clients.
    #[serde(default = "one")]
    pub clients: u32,
    /// When their operations are due.
    #[serde(default, deserialize_with = "named")]
    pub arrivals: ArrivalSpec,
    /// In a closed loop: how long a client waits between two operations.
    #[serde(default, with = "some_time", skip_serializing_if = "Option::is_none")]
    pub think: Option<Duration>,
    /// Writes of one batch.
    #[serde(default = "one")]
    pub batch: u32,
    /// Batches are sorted and brought into the store as files (`Keyspace::ingest`).
    #[serde(default)]
    pub ingest: bool,
    /// What writes survive.
    #[serde(default)]
    pub durability: Durable,
    /// How the operations of the mix follow each other.
    #[serde(default)]
    pub interleave: Interleave,
    /// How the mix becomes the one of `share_to`.
    #[serde(default, deserialize_with = "some_named", skip_serializing_if = "Option::is_none")]
    pub shift: Option<Shift>,
    /// With more keys than this, the oldest is deleted after each insert.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Amount>,
    /// What is done.
    pub mix: Vec<OpSpec>,
}

fn one() -> u32 {
    1
}

/// A piece of a workload. In a file the fields of its own clients stand among its own.
///
/// A phase has clients of its own, whose operations are counted, and may have others `beside` them that go on until these are done.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(from = "PhaseTable", into = "PhaseTable")]
pub struct PhaseSpec {
    /// Its name.
    pub name: String,
    /// The operations of its own clients together. Left out for a duration, or for counts in the mix.
    pub operations: Option<Amount>,
    /// It ends after this time, or after `operations`, whichever is first.
    pub duration: Option<Duration>,
    /// Its figures count for nothing.
    pub warm_up: bool,
    /// After it: flush, and wait until no compaction is due. The time is a figure of its own.
    pub settle: bool,
    /// Its own clients.
    pub own: Group,
    /// Others.
    pub beside: Vec<Group>,
}

impl PhaseSpec {
    /// All its clients. Its own come first, then the groups beside them in their order.
    pub fn clients(&self) -> u32 {
        self.groups().map(|group| group.clients).sum()
    }

    /// Its own clients' group, then those beside it.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        std::iter::once(&self.own).chain(&self.beside)
    }

    /// The group of a client, and its place in [`groups`](Self::groups).
    pub fn group_of(&self, client: u32) -> Option<(usize, &Group)> {
        let mut end = 0;
        self.groups().enumerate().find(|(_, group)| {
            end += group.clients;
            client < end
        })
    }
}

/// How a phase stands in a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PhaseTable {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    operations: Option<Amount>,
    #[serde(default, with = "some_time", skip_serializing_if = "Option::is_none")]
    duration: Option<Duration>,
    #[serde(default)]
    warm_up: bool,
    #[serde(default)]
    settle: bool,
    #[serde(default = "one")]
    clients: u32,
    #[serde(default, deserialize_with = "named")]
    arrivals: ArrivalSpec,
    #[serde(default, with = "some_time", skip_serializing_if = "Option::is_none")]
    think: Option<Duration>,
    #[serde(default = "one")]
    batch: u32,
    #[serde(default)]
    ingest: bool,
    #[serde(default)]
    durability: Durable,
    #[serde(default)]
    interleave: Interleave,
    #[serde(default, deserialize_with = "some_named", skip_serializing_if = "Option::is_none")]
    shift: Option<Shift>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keep: Option<Amount>,
    mix: Vec<OpSpec>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    beside: Vec<Group>,
}

impl From<PhaseTable> for PhaseSpec {
    fn from(table: PhaseTable) -> PhaseSpec {
        let PhaseTable { name, operations, duration, warm_up, settle, clients, arrivals, think, batch, .. } = table;
        let PhaseTable { ingest, durability, interleave, shift, keep, mix, beside, .. } = table;
        let group = String::new();
        let own =
            Group { name: group, clients, arrivals, think, batch, ingest, durability, interleave, shift, keep, mix };
        PhaseSpec { name, operations, duration, warm_up, settle, own, beside }
    }
}

impl From<PhaseSpec> for PhaseTable {
    fn from(phase: PhaseSpec) -> PhaseTable {
        let PhaseSpec { name, operations, duration, warm_up, settle, own, beside } = phase;
        let Group { clients, arrivals, think, batch, ingest, durability, interleave, shift, keep, mix, .. } = own;
        PhaseTable {
            name,
            operations,
            duration,
            warm_up,
            settle,
            clients,
            arrivals,
            think,
            batch,
            ingest,
            durability,
            interleave,
            shift,
            keep,
            mix,
            beside,
        }
    }
}

fn some_named<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    named(deserializer).map(Some)
}
