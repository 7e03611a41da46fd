//! The form of the keys, and whether all of them fit.

use anyhow::{Context, ensure};

use super::super::coder::MOST_KEYS;
use super::super::keyset::{KeySpec, Order, Segment};
use super::super::plan::Plan;
use super::super::spec::Spec;
use super::stateless;
use crate::num::count;

/// Finds what is wrong with them.
pub(super) fn check(spec: &Spec, plan: &Plan) -> anyhow::Result<()> {
    ensure!(plan.capacity < MOST_KEYS, "{} keys are too many", plan.capacity);
    if let Order::NearSorted { share, distance } = *spec.keys.order() {
        ensure!((0.0..=1.0).contains(&share), "`share` is a share, from 0 to 1, not {share}");
        ensure!((1..=1 << 40).contains(&distance), "`distance` must be from 1 to 2^40, not {distance}");
    }
    let places = spec.keys.order().reach(plan.capacity);
    match &spec.keys {
        KeySpec::Integer { bytes, .. } => {
            ensure!(matches!(bytes, 4 | 8), "integer keys have 4 or 8 bytes, not {bytes}");
            fits(places, if *bytes == 4 { 1 << 32 } else { 1 << 63 })
        }
        KeySpec::String { bytes, prefix, alphabet, .. } => {
            bytes.check(count(prefix.len()) + 1, 60_000).context("bytes")?;
            let digits = bytes.bounds().0 - count(prefix.len());
            let slots = super::super::coder::slots(crate::num::index(digits), alphabet.letters());
            fits(places, slots).with_context(|| format!("{digits} letters after the prefix"))
        }
        KeySpec::Binary { bytes, .. } => bytes.check(8, 60_000).context("bytes"),
        KeySpec::Composite { segments, separator, .. } => composite(segments, separator, places),
        KeySpec::File { order, .. } => {
            ensure!(
                matches!(order, Order::Random | Order::Ordered),
                "keys of a file come in `random` order, or `ordered` as in the file"
            );
            Ok(())
        }
    }
}

fn fits(capacity: u64, slots: u64) -> anyhow::Result<()> {
    ensure!(
        capacity.saturating_mul(2) <= slots,
        "{capacity} keys do not fit: with a gap after each there is room for {}",
        slots / 2
    );
    Ok(())
}

fn composite(segments: &[Segment], separator: &str, capacity: u64) -> anyhow::Result<()> {
    let count_of = |is: fn(&Segment) -> bool| segments.iter().filter(|segment| is(segment)).count();
    let numbers = count_of(|segment| matches!(segment, Segment::Number { .. }));
    let times = count_of(|segment| matches!(segment, Segment::Time { .. }));
    let series = count_of(|segment| matches!(segment, Segment::Series { .. }));
    ensure!(
        (numbers, times) == (1, 0) || (numbers, times) == (0, 1),
        "a composite key needs exactly one segment `number` or `time`: it makes the key unique"
    );
    ensure!(series <= 1, "a key has one segment `series`");
    ensure!(separator.len() <= 16, "a separator of {} bytes; at most 16", separator.len());
    // Where the parts of fixed length end, the unique one must begin, from one side or the other.
    let is_fixed = |segment: &Segment| match segment {
        Segment::Random { bytes, .. } => bytes.as_constant().is_some(),
        Segment::Choice { of, .. } => of.iter().all(|word| word.len() == of[0].len()),
        _ => true,
    };
    let is_unique =
        |segment: &Segment| matches!(segment, Segment::Number { .. } | Segment::Time { .. } | Segment::Series { .. });
    let first = segments.iter().position(is_unique).unwrap_or(0);
    let last = segments.iter().rposition(is_unique).unwrap_or(0);
    let fixed_before = segments[..=last].iter().all(is_fixed);
    let fixed_after = segments[first..].iter().all(is_fixed);
    ensure!(
        fixed_before || fixed_after,
        "segments of varying length stand on both sides of the `number`: two keys could be the same; put it first or last"
    );
    for segment in segments {
        check_segment(segment, segments, capacity)?;
    }
    Ok(())
}

fn check_segment(segment: &Segment, segments: &[Segment], capacity: u64) -> anyhow::Result<()> {
    let slots = |letters: u32, alphabet: super::super::keyset::Alphabet| {
        ensure!((1..=1000).contains(&letters), "`letters` must be from 1 to 1000, not {letters}");
        Ok(super::super::coder::slots(crate::num::index(u64::from(letters)), alphabet.letters()))
    };
    match segment {
        Segment::Constant { .. } => Ok(()),
        Segment::Number { letters, alphabet } => fits(capacity, slots(*letters, *alphabet)?),
        Segment::Group { count, law, letters, alphabet, .. } => {
            stateless(law)?;
            let slots = slots(*letters, *alphabet)?;
            ensure!((1..=slots).contains(count), "{letters} letters write up to {slots} groups, not {count}");
            Ok(())
        }
        Segment::Random { bytes, .. } => bytes.check(0, 10_000),
        Segment::Choice { of, weights } => {
            ensure!(!of.is_empty(), "a choice of no words");
            ensure!(
                weights.is_empty() || weights.len() == of.len(),
                "{} weights for {} words",
                weights.len(),
                of.len()
            );
            if weights.is_empty() { Ok(()) } else { super::super::alias::check(weights) }
        }
        Segment::Series { count, letters, alphabet } => {
            let slots = slots(*letters, *alphabet)?;
            ensure!((1..=slots).contains(count), "{letters} letters write up to {slots} series, not {count}");
            let same = segments.iter().any(|other| matches!(other, Segment::Time { series, .. } if series == count));
            ensure!(same, "a `series` needs a `time` with as many `series`");
            Ok(())
        }
        Segment::Time { start, interval, sparsity, series, letters, alphabet } => {
            ensure!(*interval >= 2, "`interval` must be 2 or more: keys that are never stored have times in between");
            ensure!((0.0..0.999).contains(sparsity), "`sparsity` is a share, from 0 to below 0.999, not {sparsity}");
            ensure!(*series >= 1, "`series` must be above 0");
            let named = segments.iter().any(|other| matches!(other, Segment::Series { .. }));
            ensure!(*series == 1 || named, "several series need a segment `series`: else their keys would be the same");
            let slots = slots(*letters, *alphabet)?;
            let ticks = (crate::num::float(capacity / series) / (1.0 - sparsity)) + 3.0;
            let end = crate::num::float(*start) + ticks * crate::num::float(*interval);
            ensure!(
                end < crate::num::float(slots),
                "{letters} letters write times below {slots}, and the last is {end}"
            );
            Ok(())
        }
    }
}
