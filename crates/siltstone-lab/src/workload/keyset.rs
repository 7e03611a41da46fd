//! What keys look like, and in which order they come.
//!
//! Every key has a *number*, counted by insertion. Its bytes follow from the number alone, and two numbers never have the same bytes:
//!
//! ```text
//! number --order--> slot --form--> bytes          stored keys take the even slots,
//!                                                 keys that are never stored the odd ones between them
//! ```

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::law::{Law, named};
use super::size::SizeLaw;

/// Keys: their form, and the order in which they are inserted.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum KeySpec {
    /// The slot as a big-endian number.
    Integer {
        /// Bytes: 4 or 8.
        #[serde(default = "eight")]
        bytes: u32,
        /// The order of insertion.
        #[serde(default, deserialize_with = "named")]
        order: Order,
    },
    /// A prefix, the slot in the letters of an alphabet, zero-padded, and letters up to the key's length.
    String {
        /// The length of a key, the prefix included.
        #[serde(default = "sixteen")]
        bytes: SizeLaw,
        /// What every key begins with.
        #[serde(default)]
        prefix: String,
        /// The letters.
        #[serde(default)]
        alphabet: Alphabet,
        /// The order of insertion.
        #[serde(default, deserialize_with = "named")]
        order: Order,
    },
    /// The slot as a big-endian number of 8 bytes, and bytes of any value up to the key's length.
    Binary {
        /// The length of a key, from 8.
        #[serde(default = "sixteen")]
        bytes: SizeLaw,
        /// The order of insertion.
        #[serde(default, deserialize_with = "named")]
        order: Order,
    },
    /// Segments, one after the other.
    Composite {
        /// What stands between two segments.
        #[serde(default)]
        separator: String,
        /// The segments. One of them is `number`, or one `series` and one `time`.
        segments: Vec<Segment>,
        /// The order of insertion.
        #[serde(default, deserialize_with = "named")]
        order: Order,
    },
    /// Real keys: the lines of a file.
    File {
        /// The file, not compressed.
        path: PathBuf,
        /// What a line is.
        #[serde(default)]
        format: FileFormat,
        /// What a key is that the file has twice.
        #[serde(default)]
        duplicates: Duplicates,
        /// The order of insertion: `random`, or `ordered` for the file's own.
        #[serde(default, deserialize_with = "named")]
        order: Order,
    },
}

impl Default for KeySpec {
    fn default() -> KeySpec {
        KeySpec::String {
            bytes: sixteen(),
            prefix: String::new(),
            alphabet: Alphabet::default(),
            order: Order::default(),
        }
    }
}

impl KeySpec {
    /// The order of insertion.
    pub fn order(&self) -> &Order {
        match self {
            KeySpec::Integer { order, .. }
            | KeySpec::String { order, .. }
            | KeySpec::Binary { order, .. }
            | KeySpec::Composite { order, .. }
            | KeySpec::File { order, .. } => order,
        }
    }
}

fn eight() -> u32 {
    8
}

fn sixteen() -> SizeLaw {
    SizeLaw::constant(16)
}

/// In which order keys are inserted.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Order {
    /// At random, each of a known number of keys once: together they lie densely.
    #[default]
    Random,
    /// At random over all keys of the form, however many are inserted in the end (YCSB's `hashed`).
    Hashed,
    /// Ascending.
    Ordered,
    /// Ascending but for some.
    NearSorted {
        /// The share of the keys that are out of place.
        share: f64,
        /// The most places that they are away from theirs.
        distance: u64,
    },
}

impl Order {
    /// How many places the numbers below `capacity` take: displaced keys change places within whole blocks.
    pub(super) fn reach(&self, capacity: u64) -> u64 {
        match *self {
            Order::NearSorted { distance, .. } => {
                capacity.checked_next_multiple_of(2 * near_half(distance)).unwrap_or(u64::MAX)
            }
            _ => capacity,
        }
    }
}

/// Half a block of an order that is nearly sorted.
pub(super) fn near_half(distance: u64) -> u64 {
    (distance / 2).max(1)
}

/// The letters of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Alphabet {
    /// 0 to 9.
    #[default]
    Digits,
    /// 0 to 9, a to f.
    Hex,
    /// a to z.
    Lowercase,
    /// A to Z, a to z.
    Letters,
    /// 0 to 9, A to Z, a to z.
    Alphanumeric,
}

/// A piece of a composite key.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Segment {
    /// The same for each key.
    Constant {
        /// What it says.
        text: String,
    },
    /// The slot, zero-padded: what makes a key unique.
    Number {
        /// Letters.
        #[serde(default = "sixteen_letters")]
        letters: u32,
        /// Which.
        #[serde(default)]
        alphabet: Alphabet,
    },
    /// One of a number of groups, chosen for each key by a law: with `zipf` the hot prefixes of sarkar21's PrefixZipf, with `normal` or `beta` a
    /// key space that is filled unevenly.
    Group {
        /// How many groups.
        count: u64,
        /// Which.
        #[serde(default, deserialize_with = "named")]
        law: Law,
        /// Letters.
        letters: u32,
        /// Which.
        #[serde(default)]
        alphabet: Alphabet,
        /// Whether a group's text follows from its rank by chance, so that the hot groups are spread over the key space.
        #[serde(default)]
        scattered: bool,
    },
    /// Letters by chance; the key's number decides them.
    Random {
        /// How many.
        bytes: SizeLaw,
        /// Which.
        #[serde(default)]
        alphabet: Alphabet,
    },
    /// One of some words, chosen for each key by their weights.
    Choice {
        /// The words.
        of: Vec<String>,
        /// Their weights; all the same if left out.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        weights: Vec<f64>,
    },
    /// The series of a time series: the slot's remainder by the number of series.
    Series {
        /// How many series.
        count: u64,
        /// Letters.
        letters: u32,
        /// Which.
        #[serde(default)]
        alphabet: Alphabet,
    },
    /// The time in a time series, where each series has one record in each interval. Slots with neighbouring numbers share it.
    Time {
        /// The time of the first record.
        #[serde(default)]
        start: u64,
        /// Between the records of a series: 2 or more, since keys that are never stored have times in between.
        interval: u64,
        /// The share of intervals in which a series has no record.
        #[serde(default)]
        sparsity: f64,
        /// How many series there are; 1 without a segment `series`.
        #[serde(default = "one")]
        series: u64,
        /// Letters.
        #[serde(default = "sixteen_letters")]
        letters: u32,
        /// Which.
        #[serde(default)]
        alphabet: Alphabet,
    },
}

fn one() -> u64 {
    1
}

fn sixteen_letters() -> u32 {
    16
}

/// What a line of a file of keys is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileFormat {
    /// TSV for a file that is called `.tsv`, else lines.
    #[default]
    ByName,
    /// A key.
    Lines,
    /// A key, a tab, a value; byte for byte, without escapes.
    Tsv,
}

/// What a second occurrence of a key in a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Duplicates {
    /// An error.
    #[default]
    Refuse,
    /// Left out.
    Skip,
}
