//! One kind of operation in a mix: what is done, how often, and on which keys.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::law::{Drift, Hot, Law, Over, named};
use super::size::SizeLaw;

/// What an operation does to a store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum OpKind {
    /// Store a key that was never stored, or (`reuse`) one that was deleted.
    Insert,
    /// Store a key of the domain, whether it is there or not. The stream says `insert` or `update`, as the case is.
    Upsert,
    /// Store an existing key again.
    Update,
    /// Get an existing key and store it again.
    ReadModifyWrite,
    /// Delete an existing key.
    Delete,
    /// Delete a key that was never stored.
    DeleteMissing,
    /// Delete the keys from `key` to before `end`: a range scan and a batch of deletes, since the engine has no range tombstones.
    RangeDelete,
    /// Get an existing key.
    Get,
    /// Get a key that was never stored, but lies among those that are.
    GetMissing,
    /// Get several existing keys in one call.
    MultiGet,
    /// Read `count` records from an existing key on.
    Scan,
    /// Read `count` records from an existing key on, backwards.
    ScanReverse,
    /// Read up to `count` of the records whose keys begin with `key`.
    ScanPrefix,
    /// Flush all memtables.
    Flush,
    /// Compact the whole keyspace.
    Compact,
    /// Take a snapshot and hold it. Reads go on to see the newest records.
    TakeSnapshot,
    /// Give back the oldest snapshot that is held; nothing if none is.
    DropSnapshot,
}

impl OpKind {
    /// All of them.
    pub const ALL: [OpKind; 17] = [
        OpKind::Insert,
        OpKind::Upsert,
        OpKind::Update,
        OpKind::ReadModifyWrite,
        OpKind::Delete,
        OpKind::DeleteMissing,
        OpKind::RangeDelete,
        OpKind::Get,
        OpKind::GetMissing,
        OpKind::MultiGet,
        OpKind::Scan,
        OpKind::ScanReverse,
        OpKind::ScanPrefix,
        OpKind::Flush,
        OpKind::Compact,
        OpKind::TakeSnapshot,
        OpKind::DropSnapshot,
    ];

    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            OpKind::Insert => "insert",
            OpKind::Upsert => "upsert",
            OpKind::Update => "update",
            OpKind::ReadModifyWrite => "read-modify-write",
            OpKind::Delete => "delete",
            OpKind::DeleteMissing => "delete-missing",
            OpKind::RangeDelete => "range-delete",
            OpKind::Get => "get",
            OpKind::GetMissing => "get-missing",
            OpKind::MultiGet => "multi-get",
            OpKind::Scan => "scan",
            OpKind::ScanReverse => "scan-reverse",
            OpKind::ScanPrefix => "scan-prefix",
            OpKind::Flush => "flush",
            OpKind::Compact => "compact",
            OpKind::TakeSnapshot => "take-snapshot",
            OpKind::DropSnapshot => "drop-snapshot",
        }
    }

    /// Whether it stores a value.
    pub const fn has_value(self) -> bool {
        matches!(self, OpKind::Insert | OpKind::Upsert | OpKind::Update | OpKind::ReadModifyWrite)
    }

    /// Whether it changes records.
    pub const fn writes(self) -> bool {
        self.has_value() || self.changes_keys()
    }

    /// Whether it changes which keys there are.
    pub const fn changes_keys(self) -> bool {
        matches!(self, OpKind::Insert | OpKind::Upsert | OpKind::Delete | OpKind::RangeDelete)
    }

    /// Whether it has a key at all.
    pub const fn has_key(self) -> bool {
        !matches!(self, OpKind::Flush | OpKind::Compact | OpKind::TakeSnapshot | OpKind::DropSnapshot)
    }

    /// Whether its key must be there.
    pub const fn needs_key(self) -> bool {
        matches!(
            self,
            OpKind::Update
                | OpKind::ReadModifyWrite
                | OpKind::Delete
                | OpKind::RangeDelete
                | OpKind::Get
                | OpKind::MultiGet
                | OpKind::Scan
                | OpKind::ScanReverse
                | OpKind::ScanPrefix
        )
    }

    /// Whether it never has a key that is there.
    pub const fn is_missing(self) -> bool {
        matches!(self, OpKind::GetMissing | OpKind::DeleteMissing)
    }

    /// Whether `count` says how much of it.
    pub const fn has_count(self) -> bool {
        matches!(self, OpKind::MultiGet | OpKind::Scan | OpKind::ScanReverse | OpKind::ScanPrefix | OpKind::RangeDelete)
    }
}

/// What other stores do and the engine does not, and why, or what stands for it.
const REFUSED: [(&str, &str); 4] = [
    ("merge", "the engine has no merge operands; `read-modify-write` does what a merge stands for"),
    ("single-delete", "the engine has no single deletes; `delete` is right for keys that were stored once, too"),
    ("range-tombstone", "the engine has no range tombstones; `range-delete` scans the range and deletes its keys"),
    (
        "secondary-range-delete",
        "the engine orders records by one key only and cannot drop those of a time without reading them; where keys are `ordered`, `range-delete` takes those of a time",
    ),
];

impl Serialize for OpKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for OpKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OpKind, D::Error> {
        let text = String::deserialize(deserializer)?;
        OpKind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let names: Vec<&str> = OpKind::ALL.iter().map(|kind| kind.name()).collect();
            let why = REFUSED.iter().find(|(name, _)| *name == text).map(|(_, why)| (*why).to_owned());
            let why = why.unwrap_or_else(|| format!("choose one of {}", names.join(", ")));
            serde::de::Error::custom(format!("there is no operation {text:?}: {why}"))
        })
    }
}

/// A number of operations: itself, or a share of the workload's `records`, written as `"50%"`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Amount {
    /// So many.
    Count(u64),
    /// So many for every hundred records.
    Percent(f64),
}

impl Amount {
    /// The number, where there are `records` records.
    pub fn of(self, records: u64) -> u64 {
        match self {
            Amount::Count(n) => n,
            Amount::Percent(percent) => crate::num::floor((crate::num::float(records) * percent / 100.0).round()),
        }
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Amount::Count(n) => serializer.serialize_u64(*n),
            Amount::Percent(percent) => serializer.serialize_str(&format!("{percent}%")),
        }
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Amount, D::Error> {
        struct NumberOrShare;
        impl serde::de::Visitor<'_> for NumberOrShare {
            type Value = Amount;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number, or a share of the records like \"50%\"")
            }
            fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<Amount, E> {
                u64::try_from(n).map(Amount::Count).map_err(|_| E::custom(format!("{n} is no number of operations")))
            }
            fn visit_u64<E: serde::de::Error>(self, n: u64) -> Result<Amount, E> {
                Ok(Amount::Count(n))
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Amount, E> {
                let percent = text.strip_suffix('%').and_then(|percent| percent.trim().parse::<f64>().ok());
                match percent {
                    Some(percent) if percent >= 0.0 && percent.is_finite() => Ok(Amount::Percent(percent)),
                    _ => Err(E::custom(format!("{text:?} is no share of the records; write \"50%\""))),
                }
            }
        }
        deserializer.deserialize_any(NumberOrShare)
    }
}

/// One kind of operation in a mix.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpSpec {
    /// What is done.
    #[serde(rename = "do")]
    pub kind: OpKind,
    /// Its share of the phase's operations; all shares together are 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Its share at the end of the phase, if the mix shifts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_to: Option<f64>,
    /// Instead of a share: how often. In a phase all operations have shares or all have counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<Amount>,
    /// Instead of either: once after so many other operations, beside the phase's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<u64>,
    /// It begins when this share of the phase's inserts is done; needs counts that are exact (`interleave = "proportional"`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<f64>,
    /// Which keys.
    #[serde(default, deserialize_with = "named")]
    pub law: Law,
    /// Where the hot keys lie.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hot: Option<Hot>,
    /// What the law runs over.
    #[serde(default)]
    pub over: Over,
    /// How hot keys become others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
    /// The most different keys that it touches, as a share of the keys (K-V workload generator: `--UE`, `--UZ`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distinct: Option<f64>,
    /// Records of a scan or range delete, keys of a multi-get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<SizeLaw>,
    /// Instead of a length: the share of the existing keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selectivity: Option<f64>,
    /// A scan reads everything: its key is empty, and it begins at the first key, or at the last one backwards.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// Keys between two keys of a multi-get, in the order that the law runs over; without it each is chosen by the law.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stride: Option<u64>,
    /// Bytes of the prefix of a prefix scan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_bytes: Option<u32>,
    /// The share of inserts that store a deleted key again, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reuse: Option<f64>,
    /// The share of writes that store the key's first value again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same: Option<f64>,
    /// The index of the rows that it reads, by its name; the rows themselves if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
}

impl OpSpec {
    /// As often as others, on any key alike.
    pub fn new(kind: OpKind) -> OpSpec {
        OpSpec {
            kind,
            share: None,
            share_to: None,
            count: None,
            every: None,
            after: None,
            law: Law::Uniform,
            hot: None,
            over: Over::Insertion,
            drift: None,
            distinct: None,
            length: None,
            selectivity: None,
            whole: false,
            stride: None,
            prefix_bytes: None,
            reuse: None,
            same: None,
            index: None,
        }
    }
}
