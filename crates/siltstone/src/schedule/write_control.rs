//! What a keyspace does with writes when merges do not keep up (luo19 section 4.3).
//!
//! The *debt* of a keyspace is a number: 0 while background work keeps up, 1 where writers stop at the component constraint.
//! Whatever the control, they stop there.
//!
//! | control | until there |
//! | --- | --- |
//! | `stop` | writes are as fast as they can: the least latency for each write, queueing included (luo19 theorem 1), at the price of long pauses |
//! | `delay` | writers together may write about what merges were found to sustain, far more at a low debt, next to nothing shortly before the stop |
//! | `limit` | never more than so many bytes a second |
//! | `compaction-first` | every write waits until the tree has its shape: to measure compaction alone (sarkar21 section 4.1) |
//!
//! # What merges sustain
//!
//! It depends on the machine, the data and what else runs, so it is learnt: [`Sustained`] is an integral controller. While the debt is above
//! the middle its rate sinks, while it is below its rate grows, so that writers as fast as they can settle in the middle whatever that takes.
//! A price that depends on the debt alone has to be steep to hold all machines between 0 and 1, and then writers at nineteen twentieths
//! of what merges sustain are held back by every flush that comes a moment before the end of a merge. With the rate known, the price is flat
//! where the debt is not dangerous: what a merge needs longer is room, not a pause. And it sinks only while it holds writers back: a debt
//! that comes at a lower rate of writes is no word about the higher one, and would take away the room just when it is needed.
//!
//! The middle is low. Where merges of L0 are the cheaper the more runs wait (`one-leveling`), what writers who never wait reach at a low debt
//! is less than what merges could do at a high one: that is in hand for writers at nineteen twentieths of it, when the machine is slower for a while.
//!
//! What flushes and merges were [measured](super::contract::Work::sustainable_bytes_per_s) to take says more about minutes to come than a rate at which
//! there was no debt yet: a burst that L0 takes in is no rate for a tree whose deeper merges have not begun. So the higher the debt, the more
//! it counts, if it is the lower one; from a debt of one half on it is the rate. And while there is no debt to speak of, nobody needs to write much less than that.
//!
//! Flushes are met in the same way: a rate at which they are under way nearly all of the time sinks, since who writes just as fast as flushes
//! are on average waits for every flush that is slower. That, too, only while it holds writers back: for who writes less, flushes that are slower for
//! a minute are still fast enough.
//!
//! # What is in hand
//!
//! Both rates leave something in hand that writers who never wait do not get: three tenths of the time of flushes, and the debt up to where it is
//! steep. It is for writers who wrote less than that. But a machine that is slower for a while leaves them behind a queue, where they, too, write as
//! fast as they can. So what they were seen to write for minutes without being held back is theirs and a little more, to make the queue
//! shorter, until the debt is steep. Who never waits is always held back, and earns nothing.
//!
//! ```text
//! rate / sustained
//! 1.4 |*
//!   1 | * * * * * * * * *        d < 0.05          ((1 - d) / 0.95)^6, at most free_bytes_per_s
//!     |                  *       0.05 <= d < 0.8   1 - (d - 0.05) / 2
//!     |                   *      0.8 <= d < 1      0.625 (5 - 5d)^2, at least least_bytes_per_s
//!   0 |                     *
//!     +-+-----------------+--- debt d
//!     0 0.05             0.8 1
//! ```

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::kind;
use crate::num::to_f64;

/// How writes of a keyspace wait for merges. In options a word, or a table: `write_control = { kind = "limit", rate_bytes_per_s = 4000000 }`.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(remote = "Self", tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum WriteControl {
    /// Not until they must stop.
    Stop,
    /// Gradually more.
    Delay(Delay),
    /// As much as it takes to stay below a rate.
    Limit(Limit),
    /// Until the tree has its shape.
    CompactionFirst,
}

/// Parameters of `delay`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Delay {
    /// The most that any debt allows, in bytes a second. Default 2,048 MB: faster than any single writer. Merges are presumed to sustain an
    /// eighth of it until they are seen at work.
    pub free_bytes_per_s: u64,
    /// What any debt below 1 allows, in bytes a second. Default 64 kB: the stop is left to the constraint. A pause takes 8 ms at most, or the time
    /// that this takes for 512 bytes if that is longer.
    pub least_bytes_per_s: u64,
}

/// Parameters of `limit`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limit {
    /// Bytes of keys and values a second, at least 1.
    pub rate_bytes_per_s: u64,
}

impl Default for Delay {
    fn default() -> Delay {
        Delay { free_bytes_per_s: 2_048_000_000, least_bytes_per_s: 64_000 }
    }
}

impl Default for WriteControl {
    fn default() -> WriteControl {
        WriteControl::Delay(Delay::default())
    }
}

/// Writers as fast as they can settle at this debt.
const MIDDLE_DEBT: f64 = 0.05;
/// From this debt on the price rises steeply.
pub(crate) const STEEP_DEBT: f64 = 0.8;
/// How much less writers may write for a debt of 1 more, where the price is flat: what keeps the debt from swinging around the middle.
const SLOPE: f64 = 0.5;
/// How fast the rate sinks: by a tenth in so many seconds for a debt that is a tenth too high, by four tenths where it is steep.
const FOLLOWS_S: f64 = 20.0;
/// Without any debt it grows by one such part in a second.
const GROWS_S: f64 = 16.0;
/// What merges are presumed to sustain, as a share of what any debt allows.
const PRESUMED: f64 = 0.125;
/// Writers who write less than they may show nothing about merges. The rate grows to so many times what they write.
const MOST_AHEAD: f64 = 1.5;
/// The rate is not less than so much of what flushes and merges were measured to take, whatever was presumed, nor sinks below it.
const LEAST_OF_MEASURED: f64 = 0.5;
/// The same while the debt is below the middle.
const LEAST_WITHOUT_DEBT: f64 = 0.7;
/// From this debt on writers get no more than what was measured.
const MEASURED_DEBT: f64 = 0.5;
/// It is averaged over so many seconds: what a merge that begins has to read is owed at once.
const MEASURED_S: f64 = 4.0;
/// What writers write is averaged over so many seconds.
const WRITES_S: f64 = 10.0;

/// The rate that flushes sustain sinks while a flush is under way for more than this share of the time, and grows while for less: what is left
/// is room for flushes that are slower.
const FLUSHING_SHARE: f64 = 0.7;
/// What writers wrote without being held back is averaged over so many seconds: that is theirs to write while the debt is not steep.
const EARNS_S: f64 = 60.0;
/// And so many times as much, so that a queue becomes shorter.
const EARNED_AHEAD: f64 = 1.25;
/// Where it is steep it is forgotten within so many seconds.
const EARNED_LASTS_S: f64 = 10.0;

/// It follows within so many seconds.
const FLUSHES_FOLLOW_S: f64 = 5.0;
/// While flushes are under way for more than that, but nobody is held back, it grows by one such part in a second: the few writers who met a
/// flush that was slower are no reason to slow down all.
const FLUSHES_FORGET_S: f64 = 64.0;

/// The rates of writes that merges and flushes of a keyspace were found to sustain, and what its writers have kept to without being told.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sustained {
    by_merges: f64,
    by_flushes: f64,
    writes_per_s: f64,
    /// What writers wrote a second while nobody held them back.
    earned: f64,
    /// What was measured, averaged; none before the first flush.
    measured: Option<f64>,
}

/// What was seen of a keyspace for some time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Seen {
    /// How long.
    pub elapsed_s: f64,
    /// Its debt.
    pub debt: f64,
    /// The share of it in which a flush was under way.
    pub flushing: f64,
    /// Bytes that were written; none if nobody counted them.
    pub written: Option<u64>,
    /// Whether writers were held back.
    pub held: bool,
    /// What [`Work`](super::contract::Work) says of the rate that is sustained, in bytes a second.
    pub measured: Option<f64>,
}

impl Sustained {
    /// What is presumed before there is a debt to learn from.
    pub fn presumed(control: &WriteControl) -> Sustained {
        let free = match control {
            WriteControl::Delay(delay) => to_f64(delay.free_bytes_per_s),
            _ => 0.0,
        };
        Sustained { by_merges: free * PRESUMED, by_flushes: free, writes_per_s: 0.0, earned: 0.0, measured: None }
    }

    /// Learns from what was seen.
    pub fn learn(&mut self, delay: &Delay, seen: &Seen) {
        let Seen { elapsed_s, debt, flushing, written, held, measured } = *seen;
        if elapsed_s <= 0.0 {
            return;
        }
        if let Some(bytes) = written {
            let rate = to_f64(bytes) / elapsed_s;
            self.writes_per_s += (rate - self.writes_per_s) * (elapsed_s / WRITES_S).min(1.0);
        }
        let earned = match written {
            _ if debt >= STEEP_DEBT => -self.earned / EARNED_LASTS_S,
            Some(bytes) if !held => (to_f64(bytes) / elapsed_s - self.earned) / EARNS_S,
            _ => 0.0,
        };
        self.earned = (self.earned + earned * elapsed_s.min(1.0)).max(0.0);
        if let Some(measured) = measured {
            let before = self.measured.unwrap_or(measured);
            self.measured = Some(before + (measured - before) * (elapsed_s / MEASURED_S).min(1.0));
        }
        let most = written.map_or(0.0, |_| (MOST_AHEAD * self.writes_per_s).min(to_f64(delay.free_bytes_per_s)));
        // A debt that takes minutes to pay is no reason to go on slowing down.
        let least_of = |share: f64| (measured.unwrap_or(0.0) * share).max(to_f64(delay.least_bytes_per_s));
        let least = least_of(LEAST_OF_MEASURED);
        // One look after a long time says little about that time.
        let elapsed_s = elapsed_s.min(1.0);
        // What is sustained is known before its debt comes: while there is little, the price holds back only who writes far more.
        let by_debt = match debt {
            ..MIDDLE_DEBT => (1.0 - debt.max(0.0) / MIDDLE_DEBT) / GROWS_S,
            ..STEEP_DEBT => (MIDDLE_DEBT - debt) / FOLLOWS_S,
            _ => (MIDDLE_DEBT - debt) / FOLLOWS_S * 4.0,
        };
        let change = |rate: &mut f64, by: f64| {
            let next = *rate * (1.0 + by * elapsed_s);
            *rate = if by < 0.0 { next.max(least.min(*rate)) } else { rate.max(next.min(most)) };
        };
        if held || debt < MIDDLE_DEBT {
            change(&mut self.by_merges, by_debt);
        }
        // It grows slowly, and who writes large records may be at several times what was presumed.
        let least = if debt < MIDDLE_DEBT { least_of(LEAST_WITHOUT_DEBT) } else { least };
        self.by_merges = self.by_merges.max(least.min(to_f64(delay.free_bytes_per_s)));
        // The further the rate is above all that was measured, the faster it sinks: what was presumed is no rate to come down from.
        let far = measured.map_or(1.0, |measured| (self.by_flushes / measured.max(1.0)).max(1.0));
        let by_flushing = match (FLUSHING_SHARE - flushing) / FLUSHES_FOLLOW_S {
            slower @ ..0.0 if held => (slower * far).max(-1.0),
            ..0.0 => 1.0 / FLUSHES_FORGET_S,
            faster => faster,
        };
        change(&mut self.by_flushes, by_flushing);
    }

    /// What merges sustain as far as a debt says: what was learnt while it is low, and ever more what was measured, if that is less.
    fn by_merges_at(&self, debt: f64) -> f64 {
        let less = self.measured.map_or(0.0, |measured| (self.by_merges - measured).max(0.0));
        self.by_merges - less * ((debt - MIDDLE_DEBT) / (MEASURED_DEBT - MIDDLE_DEBT)).clamp(0.0, 1.0)
    }
}

impl Delay {
    /// As fast as they can, until memory was seen to be short.
    fn rate_without_debt(&self, sustained: &Sustained) -> Option<f64> {
        let rate = sustained.by_flushes.max(sustained.earned * EARNED_AHEAD);
        (rate < to_f64(self.free_bytes_per_s)).then_some(rate.max(1.0))
    }

    /// At a debt above 0.
    fn rate(&self, debt: f64, sustained: &Sustained) -> f64 {
        let share = if debt < MIDDLE_DEBT {
            ((1.0 - debt) / (1.0 - MIDDLE_DEBT)).powi(6)
        } else {
            1.0 - SLOPE * (debt.min(STEEP_DEBT) - MIDDLE_DEBT)
        };
        let rate =
            (share * sustained.by_merges_at(debt)).min(sustained.by_flushes).max(sustained.earned * EARNED_AHEAD);
        let rate = rate * ((1.0 - debt) / (1.0 - STEEP_DEBT)).clamp(0.0, 1.0).powi(2);
        rate.min(to_f64(self.free_bytes_per_s)).max(to_f64(self.least_bytes_per_s)).max(1.0)
    }
}

impl WriteControl {
    /// The names, as options spell them.
    pub const NAMES: [&'static str; 4] = ["stop", "delay", "limit", "compaction-first"];

    /// The rate at which writers of a keyspace with this debt may write, all together, in bytes a second, if so much is sustained; none if
    /// as fast as they can. Never 0.
    pub fn rate(&self, debt: f64, sustained: &Sustained) -> Option<f64> {
        match self {
            WriteControl::Stop | WriteControl::CompactionFirst => None,
            WriteControl::Limit(limit) => Some(to_f64(limit.rate_bytes_per_s.max(1))),
            WriteControl::Delay(delay) if debt <= 0.0 => delay.rate_without_debt(sustained),
            WriteControl::Delay(delay) => Some(delay.rate(debt, sustained)),
        }
    }

    /// What is wrong with its parameters.
    pub(crate) fn validate(&self) -> Result<(), String> {
        match self {
            WriteControl::Limit(limit) if limit.rate_bytes_per_s == 0 => {
                Err("limit: rate_bytes_per_s is needed, at least 1".to_owned())
            }
            WriteControl::Delay(Delay { free_bytes_per_s: free, least_bytes_per_s: least })
                if *least == 0 || free < least =>
            {
                Err(format!(
                    "delay: free_bytes_per_s = {free}, least_bytes_per_s = {least}: the least is at least 1 and at most the other"
                ))
            }
            _ => Ok(()),
        }
    }
}

/// The derived form: always a table.
struct AsTable<'a>(&'a WriteControl);

impl Serialize for AsTable<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        WriteControl::serialize(self.0, serializer)
    }
}

impl Serialize for WriteControl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            WriteControl::Stop => serializer.serialize_str("stop"),
            WriteControl::CompactionFirst => serializer.serialize_str("compaction-first"),
            WriteControl::Delay(delay) if *delay == Delay::default() => serializer.serialize_str("delay"),
            _ => AsTable(self).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for WriteControl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WriteControl, D::Error> {
        kind::read(deserializer, WriteControl::deserialize, |read| toml::Value::try_from(AsTable(read)))
    }
}

impl fmt::Display for WriteControl {
    /// As options spell it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        kind::write(f, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: f64 = 1e6;

    #[test]
    fn the_delay_grows_with_the_debt_never_to_nothing_and_goes_with_it() {
        let control = WriteControl::default();
        let rate = |debt: f64, mb: f64| {
            let sustained = Sustained {
                by_merges: mb * MB,
                by_flushes: 2048.0 * MB,
                writes_per_s: 0.0,
                earned: 0.0,
                measured: None,
            };
            control.rate(debt, &sustained).map(|rate| rate / MB)
        };
        assert_eq!((rate(0.0, 9.0), rate(-1.0, 9.0)), (None, None));
        let rates: Vec<f64> = (1..=1000).map(|debt| rate(f64::from(debt) / 1000.0, 100.0).unwrap()).collect();
        assert!(rates.windows(2).all(|pair| pair[0] >= pair[1] && pair[0] - pair[1] < 5.0), "{rates:?}");
        assert_eq!((rate(0.01, 1900.0), rate(1.0, 100.0)), (Some(2048.0), Some(0.064)));
        let flushed =
            Sustained { by_merges: 100.0 * MB, by_flushes: 90.0 * MB, writes_per_s: 0.0, earned: 0.0, measured: None };
        let rates = [0.0, 0.02, 0.1].map(|debt| control.rate(debt, &flushed));
        assert_eq!(rates, [Some(90.0 * MB); 3], "no more than flushes");
        assert!((rate(MIDDLE_DEBT, 100.0).unwrap() - 100.0).abs() < 0.001);
        assert!(rate(MIDDLE_DEBT + 0.1, 100.0).unwrap() >= 94.999, "nineteen twentieths are no matter for a pause");
        assert_eq!(rate(7.0, 100.0), rate(1.0, 100.0), "no hole behind the stop");
    }

    /// A store whose writers offer `offered` megabytes a second and whose merges take `sustained`, on average what was measured, for some seconds; the
    /// debt is a gigabyte and more wide. The debts and what was written, second by second.
    fn run(learnt: &mut Sustained, debt: &mut f64, offered: f64, sustained: impl Fn(u32) -> f64) -> Vec<(f64, f64)> {
        run_with(learnt, debt, |_| offered, f64::INFINITY, sustained)
    }

    /// The same with flushes that take `flushed` megabytes a second.
    fn run_with(
        learnt: &mut Sustained,
        debt: &mut f64,
        offered: impl Fn(u32) -> f64,
        flushed: f64,
        sustained: impl Fn(u32) -> f64,
    ) -> Vec<(f64, f64)> {
        const STEPS: u32 = 20;
        let control = WriteControl::default();
        let WriteControl::Delay(delay) = &control else { unreachable!() };
        let mut backlog = 0.0;
        let mut taken = 0.0;
        (0..300)
            .map(|second| {
                let mut written = 0.0;
                taken += sustained(second);
                let offered = offered(second);
                for step in 0..STEPS {
                    let dt = 1.0 / f64::from(STEPS);
                    let allowed = control.rate(*debt, learnt).unwrap_or(f64::INFINITY) / MB * dt;
                    backlog += offered * dt;
                    let held = allowed.min(flushed * dt) < backlog;
                    let now = allowed.min(flushed * dt).min(backlog).min(20.0);
                    backlog = if offered > 1000.0 { 0.0 } else { backlog - now };
                    *debt = (*debt + (now - sustained(second) * dt) / 1900.0).clamp(0.0, 1.0);
                    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive")]
                    let bytes = (now * MB) as u64;
                    let flushing = (now / dt / flushed).min(1.0);
                    let seen = Seen {
                        elapsed_s: dt,
                        debt: *debt,
                        flushing,
                        written: allowed.is_finite().then_some(bytes),
                        // Now and then a flush takes longer than the last memtable takes to fill.
                        held: held || flushing > FLUSHING_SHARE && step % 10 == 0,
                        measured: Some(taken / f64::from(second + 1) * MB),
                    };
                    learnt.learn(delay, &seen);
                    written += now;
                }
                (*debt, written)
            })
            .collect()
    }

    #[test]
    fn whatever_merges_sustain_writers_who_never_wait_settle_in_the_middle() {
        for sustained in [20.0, 150.0, 300.0] {
            let mut learnt = Sustained::presumed(&WriteControl::default());
            let seconds = run(&mut learnt, &mut 0.0, 5000.0, |_| sustained);
            let last = &seconds[200..];
            let far = |at: &(f64, f64)| (at.0 - MIDDLE_DEBT).abs();
            let worst = last.iter().copied().max_by(|a, b| far(a).total_cmp(&far(b))).unwrap();
            assert!(far(&worst) < 0.1, "{sustained}: {worst:?}");
            assert!(seconds.iter().all(|(debt, _)| *debt < 0.999), "{sustained}: never at the stop");
            let written: f64 = last.iter().map(|(_, written)| written).sum();
            let share = written / (100.0 * sustained);
            assert!((0.95..1.05).contains(&share), "{sustained}: {share}");
        }
    }

    #[test]
    fn what_was_measured_counts_at_once() {
        let control = WriteControl::default();
        let WriteControl::Delay(delay) = &control else { unreachable!() };
        let cases = [(200.0, 0.05, 256.0), (700.0, 0.05, 350.0), (5000.0, 0.05, 2048.0), (700.0, 0.04, 490.0)];
        for (measured, debt, expected) in cases {
            let mut learnt = Sustained::presumed(&control);
            let seen = Seen {
                elapsed_s: 0.02,
                debt,
                flushing: FLUSHING_SHARE,
                written: Some(1 << 20),
                held: true,
                measured: Some(measured * MB),
            };
            learnt.learn(delay, &seen);
            let rate = control.rate(MIDDLE_DEBT, &learnt).map(|rate| (rate / MB).round());
            assert_eq!(rate, Some(expected), "{measured} measured at {debt}");
        }
    }

    /// The rate of a burst is none for minutes: L0 was full before what was learnt had sunk to what merges take, and writers all but stopped.
    #[test]
    fn the_higher_the_debt_the_more_counts_what_was_measured() {
        let control = WriteControl::default();
        let learnt = Sustained {
            by_merges: 400.0 * MB,
            by_flushes: 2048.0 * MB,
            writes_per_s: 0.0,
            earned: 0.0,
            measured: Some(200.0 * MB),
        };
        let rates = |learnt: Sustained| {
            [MIDDLE_DEBT, 0.275, 0.5, 0.7].map(|debt| {
                let share = 1.0 - SLOPE * (debt - MIDDLE_DEBT);
                (control.rate(debt, &learnt).expect("a debt has its price") / share / MB).round()
            })
        };
        assert_eq!(rates(learnt), [400.0, 300.0, 200.0, 200.0]);
        assert_eq!(rates(Sustained { measured: Some(900.0 * MB), ..learnt }), [400.0; 4], "only if it is less");
        assert_eq!(rates(Sustained { measured: None, ..learnt }), [400.0; 4]);
        let leaps = |seconds: u32| {
            let WriteControl::Delay(delay) = &control else { unreachable!() };
            let mut learnt = learnt;
            let seen = Seen {
                elapsed_s: 0.1,
                debt: 0.5,
                flushing: 0.5,
                written: None,
                held: false,
                measured: Some(100.0 * MB),
            };
            (0..10 * seconds).for_each(|_| learnt.learn(delay, &seen));
            learnt.measured.map(|measured| (measured / MB).round())
        };
        assert_eq!((leaps(1), leaps(20)), (Some(178.0), Some(101.0)));
    }

    #[test]
    fn while_a_debt_of_minutes_is_paid_writers_go_on() {
        let mut learnt = Sustained::presumed(&WriteControl::default());
        let mut debt = 0.0;
        run(&mut learnt, &mut debt, 5000.0, |_| 2.0);
        assert!((0.4..0.95).contains(&debt), "minutes from the middle: {debt}");
        let seconds = run(&mut learnt, &mut debt, 5000.0, |_| 2.0);
        assert!(seconds.iter().all(|(_, written)| *written > 0.2), "a tenth and more of what merges take: {seconds:?}");
    }

    #[test]
    fn writers_at_nineteen_twentieths_are_not_held_back_by_what_merges_need_longer_for_at_times() {
        let mut learnt = Sustained::presumed(&WriteControl::default());
        let mut debt = 0.0;
        run(&mut learnt, &mut debt, 5000.0, |_| 190.0);
        // Of a minute merges stand still for two seconds.
        debt = 0.0;
        let seconds = run(&mut learnt, &mut debt, 180.0, |second| if second % 60 < 58 { 196.7 } else { 0.0 });
        assert!(seconds.iter().all(|(_, written)| *written > 178.0), "hardly the first time: {seconds:?}");
        assert!(seconds[100..].iter().all(|(_, written)| *written > 179.9), "and then not at all: {seconds:?}");
    }

    #[test]
    fn writers_who_never_wait_leave_flushes_some_room() {
        let mut learnt = Sustained::presumed(&WriteControl::default());
        let seconds = run_with(&mut learnt, &mut 0.0, |_| 5000.0, 160.0, |_| 190.0);
        let last: f64 = seconds[200..].iter().map(|(_, written)| written / 100.0).sum();
        assert!((105.0..119.0).contains(&last), "flushes take 160, seven tenths of which are 112: {last}");
    }

    /// They stood behind a queue that only the price kept there: it sank to seven tenths of what flushes took.
    #[test]
    fn writers_at_nineteen_twentieths_are_not_held_back_by_flushes_that_are_slower_for_minutes() {
        let mut learnt = Sustained::presumed(&WriteControl::default());
        let mut debt = 0.0;
        run_with(&mut learnt, &mut debt, |_| 5000.0, 200.0, |_| 300.0);
        let before = run_with(&mut learnt, &mut debt, |_| 133.0, 200.0, |_| 300.0);
        // What was earned would hide it.
        learnt.earned = 0.0;
        let slower = run_with(&mut learnt, &mut debt, |_| 133.0, 160.0, |_| 200.0);
        for (what, seconds) in [("as measured", before), ("slower", slower)] {
            assert!(seconds[10..].iter().all(|(_, written)| *written > 132.9), "{what}: {seconds:?}");
        }
    }

    /// Behind a queue everybody is a writer who never waits, and those are held to seven tenths of what flushes take: the queue never ended.
    #[test]
    fn who_kept_a_rate_for_minutes_may_make_good_what_was_missed() {
        let mut learnt = Sustained::presumed(&WriteControl::default());
        let mut debt = 0.0;
        run_with(&mut learnt, &mut debt, |_| 5000.0, 200.0, |_| 300.0);
        run_with(&mut learnt, &mut debt, |_| 133.0, 200.0, |_| 300.0);
        let queue = |second| if second == 10 { 133.0 + 300.0 } else { 133.0 };
        let seconds = run_with(&mut learnt, &mut debt, queue, 145.0, |_| 200.0);
        let written: f64 = seconds[..60].iter().map(|(_, written)| written).sum();
        assert!(written > 60.0 * 133.0 + 299.0, "within a minute: {written}, {seconds:?}");
    }

    #[test]
    fn who_writes_little_teaches_nothing() {
        let delay = Delay::default();
        let mut learnt = Sustained {
            by_merges: 100.0 * MB,
            by_flushes: 100.0 * MB,
            writes_per_s: 1.0 * MB,
            earned: 0.0,
            measured: None,
        };
        let before = learnt;
        let seen =
            Seen { elapsed_s: 1.0, debt: 0.04, flushing: 0.5, written: Some(1_000_000), held: false, measured: None };
        for _ in 0..1000 {
            learnt.learn(&delay, &seen);
            learnt.learn(&delay, &Seen { written: None, ..seen });
        }
        assert_eq!((learnt.by_merges, learnt.by_flushes), (before.by_merges, before.by_flushes));
        learnt.learn(&delay, &Seen { debt: 0.9, ..seen });
        assert_eq!(learnt.by_merges, before.by_merges, "nobody was held back at that rate");
        learnt.learn(&delay, &Seen { elapsed_s: 1e9, debt: 0.9, written: None, held: true, ..seen });
        assert!((82.0 * MB..84.0 * MB).contains(&learnt.by_merges), "a long time without a look is not a long debt");
    }

    #[test]
    fn the_others_do_not_look_at_the_debt() {
        let any = Sustained { by_merges: 7.0, by_flushes: 7.0, writes_per_s: 7.0, earned: 0.0, measured: None };
        for debt in [0.0, 0.5, 1.0] {
            assert_eq!(
                (WriteControl::Stop.rate(debt, &any), WriteControl::CompactionFirst.rate(debt, &any)),
                (None, None)
            );
            assert_eq!(WriteControl::Limit(Limit { rate_bytes_per_s: 5 }).rate(debt, &any), Some(5.0));
        }
    }
}
