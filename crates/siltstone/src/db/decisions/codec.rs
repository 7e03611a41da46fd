//! A [`Decision`] as bytes: the body of a frame of the file `DECISIONS` (docs/format/decisions.md).

use crate::codec::{Taker, put_bytes, put_varint};
use crate::compaction::{Action, Candidate, Decision, DecisionInput, DecisionRecord, Ended, Ending, Reason};
use crate::num::to_u64;
use crate::version::{KeyspaceId, SstId};

/// The kind of a frame that holds a decision; frames of other kinds are skipped.
const DECISION: u64 = 1;

/// What a frame holds.
#[derive(PartialEq, Debug)]
pub(super) enum Body {
    Decision(Box<Decision>),
    /// Of a later version.
    Unknown,
}

/// Appends `decision`, which has ended.
pub(super) fn put(out: &mut Vec<u8>, decision: &Decision) {
    let Decision { record, .. } = decision;
    for n in [DECISION, u64::from(decision.keyspace.0), decision.job, decision.started_ms] {
        put_varint(out, n);
    }
    out.push(match decision.action {
        Action::Merge => 0,
        Action::Move => 1,
        Action::Drop => 2,
    });
    out.extend([decision.from_level, decision.to_level]);
    put_varint(out, decision.to_run);
    put_bytes(out, decision.strategy.as_bytes());
    put_varint(out, to_u64(decision.inputs.len()));
    for input in &decision.inputs {
        out.push(input.level);
        for n in [input.run, input.files, input.bytes, to_u64(input.ids.len())] {
            put_varint(out, n);
        }
        input.ids.iter().for_each(|id| put_varint(out, *id));
    }
    put_record(out, record);
    put_varint(out, decision.predicted_ns.map_or(0, |ns| ns.saturating_add(1)));
    let ended = decision.ended.as_ref().expect("a decision is written when its job has ended");
    let (tag, why) = match &ended.ending {
        Ending::Done => (0, ""),
        Ending::Cancelled(why) => (1, &why[..]),
        Ending::Failed(why) => (2, &why[..]),
    };
    out.push(tag);
    put_bytes(out, why.as_bytes());
    costs(ended).into_iter().for_each(|n| put_varint(out, n));
    record.candidates.iter().for_each(|candidate| put_varint(out, candidate.runs.into()));
    put_varint(out, ended.bytes_linked);
    put_varint(out, ended.spans);
}

fn costs(ended: &Ended) -> [u64; 10] {
    [
        ended.bytes_read,
        ended.bytes_written,
        ended.files_out,
        ended.entries_read,
        ended.entries_written,
        ended.dropped_versions,
        ended.dropped_tombstones,
        ended.took_ns,
        ended.cpu_ns,
        ended.io_ns,
    ]
}

fn put_record(out: &mut Vec<u8>, record: &DecisionRecord) {
    match &record.reason {
        Reason::Rule(n) => {
            out.push(0);
            put_varint(out, to_u64(*n));
        }
        Reason::Layout => out.push(1),
        Reason::Manual => out.push(2),
        Reason::Policy(why) => {
            out.push(3);
            put_bytes(out, why.as_bytes());
        }
        Reason::Deadline => out.push(4),
    }
    put_bytes(out, record.trigger.as_bytes());
    out.extend(record.value.to_le_bytes());
    out.extend(record.threshold.to_le_bytes());
    put_varint(out, to_u64(record.candidates_total));
    put_varint(out, to_u64(record.candidates.len()));
    for candidate in &record.candidates {
        put_varint(out, candidate.file.0);
        out.push(u8::from(candidate.chosen) | u8::from(candidate.blocked) << 1);
        put_varint(out, to_u64(candidate.scores.len()));
        candidate.scores.iter().for_each(|score| out.extend(score.to_le_bytes()));
    }
    put_varint(out, record.read_bytes);
    put_varint(out, record.write_bytes);
}

/// Reads what [`put`] wrote; none for hostile bytes.
pub(super) fn take(bytes: &[u8]) -> Option<Body> {
    let mut from = Taker::new(bytes);
    if from.varint()? != DECISION {
        return Some(Body::Unknown);
    }
    let keyspace = KeyspaceId(from.varint32()?);
    let (job, started_ms) = (from.varint()?, from.varint()?);
    let action = match from.u8()? {
        0 => Action::Merge,
        1 => Action::Move,
        2 => Action::Drop,
        _ => return None,
    };
    let (from_level, to_level, to_run) = (from.u8()?, from.u8()?, from.varint()?);
    let strategy = text(&mut from)?;
    let inputs = list(&mut from, |from| {
        let (level, run, files, bytes) = (from.u8()?, from.varint()?, from.varint()?, from.varint()?);
        Some(DecisionInput { level, run, files, bytes, ids: list(from, Taker::varint)? })
    })?;
    let mut record = take_record(&mut from)?;
    let predicted_ns = from.varint()?.checked_sub(1);
    let ending = from.u8()?;
    let why = text(&mut from)?;
    let ending = match ending {
        0 => Ending::Done,
        1 => Ending::Cancelled(why),
        2 => Ending::Failed(why),
        _ => return None,
    };
    let mut n = || from.varint();
    let mut ended = Ended {
        ending,
        bytes_read: n()?,
        bytes_written: n()?,
        files_out: n()?,
        entries_read: n()?,
        entries_written: n()?,
        dropped_versions: n()?,
        dropped_tombstones: n()?,
        took_ns: n()?,
        cpu_ns: n()?,
        io_ns: n()?,
        bytes_linked: 0,
        spans: 1,
    };
    // Earlier versions end here.
    for candidate in &mut record.candidates {
        candidate.runs = n().and_then(|runs| u32::try_from(runs).ok()).unwrap_or(0);
    }
    ended.bytes_linked = n().unwrap_or(0);
    ended.spans = n().unwrap_or(1);
    // What follows is of later versions.
    Some(Body::Decision(Box::new(Decision {
        job,
        keyspace,
        strategy,
        started_ms,
        action,
        from_level,
        to_level,
        to_run,
        inputs,
        record,
        predicted_ns,
        ended: Some(ended),
    })))
}

fn take_record(from: &mut Taker<'_>) -> Option<DecisionRecord> {
    let reason = match from.u8()? {
        0 => Reason::Rule(usize::try_from(from.varint()?).ok()?),
        1 => Reason::Layout,
        2 => Reason::Manual,
        3 => Reason::Policy(text(from)?),
        4 => Reason::Deadline,
        _ => return None,
    };
    let trigger = text(from)?;
    let (value, threshold) = (float(from)?, float(from)?);
    let candidates_total = usize::try_from(from.varint()?).ok()?;
    let candidates = list(from, |from| {
        let file = SstId(from.varint()?);
        let flags = from.u8()?;
        let scores = list(from, float)?;
        Some(Candidate { file, runs: 0, scores, chosen: flags & 1 != 0, blocked: flags & 2 != 0 })
    })?;
    let (read_bytes, write_bytes) = (from.varint()?, from.varint()?);
    Some(DecisionRecord { reason, trigger, value, threshold, candidates, candidates_total, read_bytes, write_bytes })
}

fn float(from: &mut Taker<'_>) -> Option<f64> {
    from.array().map(f64::from_le_bytes)
}

fn text(from: &mut Taker<'_>) -> Option<String> {
    String::from_utf8(from.bytes()?.to_vec()).ok()
}

/// A count, then as many items. The count is not believed: memory grows with what is really there.
fn list<'a, T>(from: &mut Taker<'a>, mut item: impl FnMut(&mut Taker<'a>) -> Option<T>) -> Option<Vec<T>> {
    let mut items = Vec::new();
    for _ in 0..from.varint()? {
        items.push(item(from)?);
    }
    Some(items)
}
