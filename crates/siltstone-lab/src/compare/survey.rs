//! The first pass over the input: its size, and a sample of it in bounded memory.
//!
//! Updates, deletes and reads need keys that exist. The sample keeps those keys whose hash is below a threshold; when it grows
//! over its budget the threshold is halved and the sample thinned. So it is a uniform sample of the whole input, it follows
//! from the input alone, and small inputs are kept whole.

use serde::Serialize;
use siltstone::io::Rng;
use siltstone::key;

use super::{Observer, Source, Step, cancelled};
use crate::num::{count, index, ratio};

/// Bytes of keys, and of values, that the sample holds at most.
const BUDGET_BYTES: u64 = 24 << 20;
/// Bytes of bookkeeping for each piece.
const PIECE_BYTES: u64 = 8;
const TICK: u64 = 1 << 12;

/// The size of an input.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Survey {
    /// Records.
    pub records: u64,
    /// Bytes of all keys.
    pub key_bytes: u64,
    /// Bytes of all values.
    pub value_bytes: u64,
    /// Keys that updates, deletes and reads are drawn from.
    pub sampled_keys: u64,
    /// Share of records whose key is larger than that of the record before: 1 is a sorted input, which needs no merging.
    pub ascending_share: f64,
}

impl Survey {
    /// Bytes of keys and values.
    pub fn bytes(&self) -> u64 {
        self.key_bytes + self.value_bytes
    }
}

/// An input that was looked at.
pub(super) struct Input {
    pub(super) survey: Survey,
    /// Keys that exist, in input order.
    pub(super) keys: Pieces,
    /// Values that exist.
    pub(super) values: Pieces,
}

/// Byte strings one after the other.
#[derive(Default)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Pieces {
    pub(super) fn len(&self) -> u64 {
        count(self.ends.len())
    }

    pub(super) fn get(&self, i: u64) -> &[u8] {
        let i = index(i);
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.bytes[start..self.ends[i]]
    }

    fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
        self.ends.push(self.bytes.len());
    }

    fn memory(&self) -> u64 {
        count(self.bytes.len()) + self.len() * PIECE_BYTES
    }

    fn retain(&mut self, mut keep: impl FnMut(&[u8]) -> bool) {
        let mut kept = Pieces::default();
        (0..self.len()).map(|i| self.get(i)).filter(|piece| keep(piece)).for_each(|piece| kept.push(piece));
        *self = kept;
    }
}

/// Reads the input once.
pub(super) fn survey(source: &dyn Source, seed: u64, observer: &mut dyn Observer) -> anyhow::Result<Input> {
    let mut records = source.open()?;
    let mut survey = Survey { records: 0, key_bytes: 0, value_bytes: 0, sampled_keys: 0, ascending_share: 0.0 };
    let (mut keys, mut values) = (Pieces::default(), Pieces::default());
    let mut rng = Rng::new(seed).split("sample");
    let mut threshold = u64::MAX;
    let mut ascending = 0u64;
    let mut last_key = Vec::new();
    let step = |done| Step { strategy: "input", phase: "survey", done, total: source.records() };
    while let Some((key, value)) = records.next()? {
        ascending += u64::from(survey.records > 0 && *key > last_key[..]);
        last_key.clear();
        last_key.extend_from_slice(key);
        survey.records += 1;
        survey.key_bytes += count(key.len());
        survey.value_bytes += count(value.len());
        // Hashing with a rotation: the filters use the same hash, and a sample must not favour what they favour.
        if key::hash(key).rotate_left(32) <= threshold {
            keys.push(key);
            while keys.memory() > BUDGET_BYTES && keys.len() > 1 {
                threshold >>= 1;
                keys.retain(|key| key::hash(key).rotate_left(32) <= threshold);
            }
            // A value is kept while there is room, later ones replace none: the first megabytes are sample enough of lengths.
            if values.len() == 0 || (values.memory() + count(value.len()) <= BUDGET_BYTES && rng.one_in(2)) {
                values.push(value);
            }
        }
        if survey.records.is_multiple_of(TICK) && !observer.step(step(survey.records)) {
            return Err(cancelled().into());
        }
    }
    // Few keys, each so often that no sample of their records has room.
    if keys.len() == 0 && survey.records > 0 {
        keys.push(&last_key);
    }
    survey.sampled_keys = keys.len();
    survey.ascending_share = ratio(ascending, survey.records.saturating_sub(1));
    Ok(Input { survey, keys, values })
}
