//! From a key's number to its bytes.

use anyhow::ensure;
use siltstone::io::Rng;

use super::file::KeyFile;
use super::keyset::{Alphabet, KeySpec, Order, Segment, near_half};
use super::permutation::{Permutation, mix};
use super::picker::{Picker, pick_for};
use super::size::SizePicker;
use crate::num::{float, floor, index};

/// Key numbers stay below it, so that a number and a bit fit everywhere.
pub(super) const MOST_KEYS: u64 = 1 << 61;

/// Where a key stands among all keys that could be. Stored keys have even slots.
#[derive(Clone, Debug)]
pub(super) enum Places {
    Ordered,
    /// Among `domain` keys.
    Dense(Permutation),
    /// Among all keys of the form.
    Hashed(Permutation),
    Near {
        /// Displaced keys come in pairs, each half of a block.
        half: u64,
        /// Out of 2^64.
        share: u64,
        salt: u64,
    },
}

impl Places {
    pub(super) fn new(order: &Order, capacity: u64, form_slots: u64, seed: &Rng) -> anyhow::Result<Places> {
        let places = match *order {
            Order::Ordered => Places::Ordered,
            Order::Random => Places::Dense(Permutation::new(capacity, &mut seed.split("order"))),
            Order::Hashed => Places::Hashed(Permutation::new(form_slots.min(1 << 62), &mut seed.split("order"))),
            Order::NearSorted { share, distance } => Places::Near {
                half: near_half(distance),
                share: floor(share * 18_446_744_073_709_551_616.0),
                salt: seed.split("order").next_u64(),
            },
        };
        let most = order.reach(capacity).saturating_mul(2);
        ensure!(
            most <= form_slots,
            "{capacity} keys and the gaps between them do not fit into a form with {form_slots} keys"
        );
        Ok(places)
    }

    /// The slot of a stored key (`bit` 0) or of the one after it that never is (1).
    #[inline]
    pub(super) fn slot(&self, number: u64, bit: u64) -> u64 {
        match self {
            Places::Ordered => number << 1 | bit,
            Places::Dense(order) => order.apply(number) << 1 | bit,
            Places::Hashed(order) => order.apply(number << 1 | bit),
            Places::Near { half, share, salt } => swapped(number, *half, *share, *salt) << 1 | bit,
        }
    }

    /// The number of the stored key with the `place`-th slot, where that can be computed back.
    pub(super) fn number(&self, place: u64) -> Option<u64> {
        match self {
            Places::Ordered => Some(place),
            Places::Dense(order) => Some(order.invert(place)),
            Places::Hashed(_) => None,
            Places::Near { half, share, salt } => Some(swapped(place, *half, *share, *salt)),
        }
    }
}

/// Some of the numbers change places with one of the next half block, so that twice is not at all.
fn swapped(number: u64, half: u64, share: u64, salt: u64) -> u64 {
    let block = number / (2 * half);
    let within = number % (2 * half);
    // How far the second half is turned against the first.
    let turn = mix(block ^ salt) % half;
    let left = if within < half { within } else { (within - half + half - turn) % half };
    if mix(mix(block.wrapping_mul(half).wrapping_add(left)) ^ salt) >= share {
        return number;
    }
    let partner = if within < half { half + (left + turn) % half } else { left };
    block * 2 * half + partner
}

/// Writes keys.
#[derive(Clone, Debug)]
pub(super) struct Coder {
    pub(super) places: Places,
    form: Form,
    salt: u64,
}

#[derive(Clone, Debug)]
enum Form {
    Integer { bytes: usize },
    String { prefix: Vec<u8>, digits: usize, letters: &'static [u8], bytes: SizePicker },
    Binary { bytes: SizePicker },
    Composite { separator: Vec<u8>, pieces: Vec<Piece> },
    File(KeyFile),
}

#[derive(Clone, Debug)]
enum Piece {
    Constant(Vec<u8>),
    Number { digits: usize, letters: &'static [u8] },
    Group { picker: Picker, count: u64, digits: usize, letters: &'static [u8], scatter: Option<Permutation>, salt: u64 },
    Random { bytes: SizePicker, letters: &'static [u8], salt: u64 },
    Choice { of: Vec<Vec<u8>>, picker: Picker, salt: u64 },
    Series { count: u64, digits: usize, letters: &'static [u8] },
    Time { start: u64, interval: u64, stretch: f64, series: u64, digits: usize, letters: &'static [u8], salt: u64 },
}

impl Alphabet {
    pub(super) const fn letters(self) -> &'static [u8] {
        match self {
            Alphabet::Digits => b"0123456789",
            Alphabet::Hex => b"0123456789abcdef",
            Alphabet::Lowercase => b"abcdefghijklmnopqrstuvwxyz",
            Alphabet::Letters => b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
            Alphabet::Alphanumeric => b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
        }
    }
}

/// How many numbers `digits` letters write, or 2^63 if more.
pub(super) fn slots(digits: usize, letters: &[u8]) -> u64 {
    let base = crate::num::count(letters.len());
    let power = u32::try_from(digits).ok().and_then(|digits| base.checked_pow(digits));
    power.unwrap_or(u64::MAX).min(1 << 63)
}

impl Coder {
    /// Opens the file of keys, if they come from one. `capacity` keys will be asked for.
    pub(super) fn new(keys: &KeySpec, capacity: u64, seed: &Rng) -> anyhow::Result<Coder> {
        let salt = seed.split("keys").next_u64();
        let mut salts = seed.split("segments");
        let (form, form_slots) = match keys {
            KeySpec::Integer { bytes, .. } => {
                (Form::Integer { bytes: index(u64::from(*bytes)) }, if *bytes == 4 { 1 << 32 } else { 1 << 63 })
            }
            KeySpec::String { bytes, prefix, alphabet, .. } => {
                let letters = alphabet.letters();
                let digits = index(bytes.bounds().0) - prefix.len();
                let bytes = SizePicker::new(bytes, 1 << 16)?;
                (Form::String { prefix: prefix.clone().into_bytes(), digits, letters, bytes }, slots(digits, letters))
            }
            KeySpec::Binary { bytes, .. } => (Form::Binary { bytes: SizePicker::new(bytes, 1 << 16)? }, 1 << 63),
            KeySpec::Composite { separator, segments, .. } => {
                let mut pieces = Vec::new();
                for segment in segments {
                    pieces.push(Piece::new(segment, seed, salts.next_u64())?);
                }
                (Form::Composite { separator: separator.clone().into_bytes(), pieces }, composite_slots(segments))
            }
            KeySpec::File { path, format, duplicates, .. } => {
                let file = KeyFile::open(path, *format, *duplicates)?;
                let keys = file.len();
                ensure!(capacity <= keys, "the workload inserts {capacity} keys, and {} has {keys}", path.display());
                (Form::File(file), 1 << 63)
            }
        };
        Ok(Coder { places: Places::new(keys.order(), capacity, form_slots, seed)?, form, salt })
    }

    /// Appends the key of a number, or (`bit` 1) the key after it that is never stored.
    #[inline]
    pub(super) fn write(&mut self, number: u64, bit: u64, out: &mut Vec<u8>) -> anyhow::Result<()> {
        let slot = self.places.slot(number, bit);
        self.write_slot(number, slot, out)
    }

    /// Appends the key of a slot whose number decides what does not follow from the slot.
    #[inline]
    pub(super) fn write_slot(&mut self, number: u64, slot: u64, out: &mut Vec<u8>) -> anyhow::Result<()> {
        match &mut self.form {
            Form::Integer { bytes } => out.extend_from_slice(&slot.to_be_bytes()[8 - *bytes..]),
            Form::String { prefix, digits, letters, bytes } => {
                out.extend_from_slice(prefix);
                push_number(slot, *digits, letters, out);
                let mut rng = None;
                let length = match bytes.constant() {
                    Some(length) => length,
                    None => bytes.draw(rng.insert(Rng::new(mix(number ^ self.salt)))),
                };
                let more = index(length) - (prefix.len() + *digits).min(index(length));
                push_letters(more, letters, mix(slot ^ self.salt), out);
            }
            Form::Binary { bytes } => {
                out.extend_from_slice(&slot.to_be_bytes());
                let length = match bytes.constant() {
                    Some(length) => length,
                    None => bytes.draw(&mut Rng::new(mix(number ^ self.salt))),
                };
                push_bytes(index(length) - 8, mix(slot ^ self.salt), out);
            }
            Form::Composite { separator, pieces } => {
                for (at, piece) in pieces.iter_mut().enumerate() {
                    if at > 0 {
                        out.extend_from_slice(separator);
                    }
                    piece.write(number, slot, out);
                }
            }
            Form::File(file) => {
                file.key(slot >> 1, out)?;
                if slot & 1 == 1 {
                    out.push(0);
                }
            }
        }
        Ok(())
    }

    /// The file of keys, if they come from one.
    pub(super) fn file(&mut self) -> Option<&mut KeyFile> {
        match &mut self.form {
            Form::File(file) => Some(file),
            _ => None,
        }
    }
}

impl Piece {
    fn new(segment: &Segment, seed: &Rng, salt: u64) -> anyhow::Result<Piece> {
        let width = |letters: u32| index(u64::from(letters));
        Ok(match segment {
            Segment::Constant { text } => Piece::Constant(text.clone().into_bytes()),
            Segment::Number { letters, alphabet } => {
                Piece::Number { digits: width(*letters), letters: alphabet.letters() }
            }
            Segment::Group { count, law, letters, alphabet, scattered } => Piece::Group {
                picker: Picker::new(law, Some(super::law::Hot::First), seed)?,
                count: *count,
                digits: width(*letters),
                letters: alphabet.letters(),
                scatter: scattered.then(|| Permutation::new(*count, &mut seed.split("groups"))),
                salt,
            },
            Segment::Random { bytes, alphabet } => {
                Piece::Random { bytes: SizePicker::new(bytes, 1 << 16)?, letters: alphabet.letters(), salt }
            }
            Segment::Choice { of, weights } => {
                let weights = if weights.is_empty() { vec![1.0; of.len()] } else { weights.clone() };
                let law = super::law::Law::Weights { of: weights };
                let of = of.iter().map(|word| word.clone().into_bytes()).collect();
                Piece::Choice { of, picker: Picker::new(&law, None, seed)?, salt }
            }
            Segment::Series { count, letters, alphabet } => {
                Piece::Series { count: *count, digits: width(*letters), letters: alphabet.letters() }
            }
            Segment::Time { start, interval, sparsity, series, letters, alphabet } => Piece::Time {
                start: *start,
                interval: *interval,
                stretch: 1.0 / (1.0 - sparsity),
                series: *series,
                digits: width(*letters),
                letters: alphabet.letters(),
                salt,
            },
        })
    }

    fn write(&mut self, number: u64, slot: u64, out: &mut Vec<u8>) {
        match self {
            Piece::Constant(text) => out.extend_from_slice(text),
            Piece::Number { digits, letters } => push_number(slot, *digits, letters, out),
            Piece::Group { picker, count, digits, letters, scatter, salt } => {
                let group = pick_for(picker, number, *salt, *count);
                let group = scatter.as_ref().map_or(group, |scatter| scatter.apply(group));
                push_number(group, *digits, letters, out);
            }
            Piece::Random { bytes, letters, salt } => {
                let mut rng = Rng::new(mix(slot ^ *salt));
                let length = bytes.draw(&mut rng);
                push_letters(index(length), letters, rng.next_u64(), out);
            }
            Piece::Choice { of, picker, salt } => {
                let words = crate::num::count(of.len());
                out.extend_from_slice(&of[index(pick_for(picker, number, *salt, words))]);
            }
            Piece::Series { count, digits, letters } => push_number((slot >> 1) % *count, *digits, letters, out),
            Piece::Time { start, interval, stretch, series, digits, letters, salt } => {
                let tick = (slot >> 1) / *series;
                // The ticks without a record are those that the stretched line leaves out, from a place of each series' own.
                let tick = if *stretch > 1.0 {
                    let from = mix(((slot >> 1) % *series) ^ *salt) >> 11;
                    floor(float(tick) * *stretch + float(from) / float(1 << 53))
                } else {
                    tick
                };
                let between = if slot & 1 == 1 { *interval / 2 } else { 0 };
                push_number(*start + tick * *interval + between, *digits, letters, out);
            }
        }
    }
}

/// How many slots a composite key has.
fn composite_slots(segments: &[Segment]) -> u64 {
    let of = |segment: &Segment| match segment {
        Segment::Number { letters, alphabet } => Some(slots(index(u64::from(*letters)), alphabet.letters())),
        Segment::Time { start, interval, sparsity, series, letters, alphabet } => {
            let times = slots(index(u64::from(*letters)), alphabet.letters()).saturating_sub(*start) / interval;
            let ticks = floor(float(times) * (1.0 - sparsity)).saturating_sub(2);
            Some(ticks.saturating_mul(*series).saturating_mul(2).min(1 << 63))
        }
        _ => None,
    };
    segments.iter().filter_map(of).min().unwrap_or(0)
}

/// Appends a number, zero-padded.
#[inline]
fn push_number(number: u64, digits: usize, letters: &'static [u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + digits, letters[0]);
    let place = &mut out[start..];
    // A base that the compiler knows divides several times faster.
    match letters.len() {
        10 => fill::<10>(number, letters, place),
        16 => fill::<16>(number, letters, place),
        26 => fill::<26>(number, letters, place),
        52 => fill::<52>(number, letters, place),
        _ => fill::<62>(number, letters, place),
    }
}

#[inline]
fn fill<const BASE: u64>(number: u64, letters: &[u8], place: &mut [u8]) {
    let mut rest = number;
    for byte in place.iter_mut().rev() {
        if rest == 0 {
            break;
        }
        *byte = letters[index(rest % BASE)];
        rest /= BASE;
    }
    debug_assert!(rest == 0, "{number} needs more than {} letters", place.len());
}

/// Appends letters that `seed` decides.
fn push_letters(n: usize, letters: &[u8], seed: u64, out: &mut Vec<u8>) {
    let base = crate::num::count(letters.len());
    let (mut left, mut from) = (n, seed);
    while left > 0 {
        from = mix(from.wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut bits = from;
        for _ in 0..left.min(8) {
            // Eight bits are enough for 62 letters, nearly evenly.
            out.push(letters[index(((bits & 0xff) * base) >> 8)]);
            bits >>= 8;
        }
        left -= left.min(8);
    }
}

fn push_bytes(n: usize, seed: u64, out: &mut Vec<u8>) {
    let (mut left, mut from) = (n, seed);
    while left > 0 {
        from = mix(from.wrapping_add(0x9e37_79b9_7f4a_7c15));
        let now = left.min(8);
        out.extend_from_slice(&from.to_le_bytes()[..now]);
        left -= now;
    }
}
