//! Manifest edits as bytes: a list of `tag varint | length varint | value`.
//!
//! An unknown tag that is odd may be ignored; one that is even must be understood, so it is
//! [`Unsupported`](crate::ErrorKind::Unsupported). Byte tables: `docs/format/manifest.md`.

use std::sync::Arc;

use bytes::Bytes;

use super::{FileMeta, KeyspaceId, LevelId, ManifestEdit, RunOrder, SstId, VersionEdit, Whole};
use crate::codec::{Taker, put_bytes, put_varint};
use crate::key::SeqNo;
use crate::num::to_u64;
use crate::wal::SegmentId;

const CREATE_KEYSPACE: u64 = 2;
const DROP_KEYSPACE: u64 = 4;
const SET_OPTIONS: u64 = 6;
const VERSION: u64 = 8;
const FLUSHED: u64 = 10;
const NEXT_RUN_ORDER: u64 = 12;
const NEXT_SST: u64 = 14;
const NEXT_KEYSPACE: u64 = 16;
const LAST_SEQ: u64 = 18;
const LOG_FLOOR: u64 = 20;

/// Of a file that is a slice: its table. Whoever does not know it would read dead keys, so the tag is even.
const WHOLE: u64 = 2;
/// The same, with the number of the table in front, which is another than the file's.
const WHOLE_OF: u64 = 4;

/// Why bytes are no list of edits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum BadEdits {
    /// A newer version wrote them.
    Unknown(String),
    /// No version wrote them.
    Malformed(&'static str),
}

/// Appends the edits.
pub(super) fn encode(edits: &[ManifestEdit], out: &mut Vec<u8>) {
    let mut value = Vec::new();
    for edit in edits {
        value.clear();
        let tag = encode_one(edit, &mut value);
        put_varint(out, tag);
        put_bytes(out, &value);
    }
}

fn encode_one(edit: &ManifestEdit, value: &mut Vec<u8>) -> u64 {
    let mut with = |tag: u64, numbers: &[u64], texts: &[&str]| {
        numbers.iter().for_each(|&n| put_varint(value, n));
        texts.iter().for_each(|text| put_bytes(value, text.as_bytes()));
        tag
    };
    match edit {
        ManifestEdit::CreateKeyspace { id, name, options_text } => {
            with(CREATE_KEYSPACE, &[u64::from(id.0)], &[name, options_text])
        }
        ManifestEdit::DropKeyspace(id) => with(DROP_KEYSPACE, &[u64::from(id.0)], &[]),
        ManifestEdit::SetOptions(id, text) => with(SET_OPTIONS, &[u64::from(id.0)], &[text]),
        ManifestEdit::Version(id, edit) => {
            with(VERSION, &[u64::from(id.0)], &[]);
            encode_version(edit, value);
            VERSION
        }
        ManifestEdit::Flushed(id, seq) => with(FLUSHED, &[u64::from(id.0), seq.0], &[]),
        ManifestEdit::NextRunOrder(id, order) => with(NEXT_RUN_ORDER, &[u64::from(id.0), *order], &[]),
        ManifestEdit::NextSst(id) => with(NEXT_SST, &[id.0], &[]),
        ManifestEdit::NextKeyspace(id) => with(NEXT_KEYSPACE, &[u64::from(id.0)], &[]),
        ManifestEdit::LastSeq(seq) => with(LAST_SEQ, &[seq.0], &[]),
        ManifestEdit::LogFloor(segment) => with(LOG_FLOOR, &[segment.0], &[]),
    }
}

fn encode_version(edit: &VersionEdit, value: &mut Vec<u8>) {
    put_varint(value, to_u64(edit.removed.len()));
    for (level, order, id) in &edit.removed {
        value.push(level.0);
        put_varint(value, order.0);
        put_varint(value, id.0);
    }
    put_varint(value, to_u64(edit.added.len()));
    let mut meta = Vec::new();
    for (level, order, file) in &edit.added {
        value.push(level.0);
        put_varint(value, order.0);
        meta.clear();
        encode_file(file, &mut meta);
        put_bytes(value, &meta);
    }
}

fn encode_file(file: &FileMeta, out: &mut Vec<u8>) {
    let FileMeta {
        id,
        bytes,
        entries,
        tombstones,
        range_tombstones,
        raw_bytes,
        smallest,
        largest,
        min_seq,
        max_seq,
        created_ms,
        oldest_tombstone_ms,
        entered_level_ms,
        whole,
    } = file;
    for n in [id.0, *bytes, *entries, *tombstones, *range_tombstones, *raw_bytes] {
        put_varint(out, n);
    }
    put_bytes(out, smallest);
    put_bytes(out, largest);
    // No tombstone is 0, so a time is stored plus one.
    let oldest = oldest_tombstone_ms.map_or(0, |ms| ms.saturating_add(1));
    for n in [min_seq.0, max_seq.0, *created_ms, oldest, *entered_level_ms] {
        put_varint(out, n);
    }
    if let Some(whole) = whole {
        let mut value = Vec::new();
        let is_own = whole.table == *id;
        if !is_own {
            put_varint(&mut value, whole.table.0);
        }
        for n in [whole.bytes, whole.entries, whole.tombstones, whole.raw_bytes] {
            put_varint(&mut value, n);
        }
        put_bytes(&mut value, &whole.smallest);
        put_bytes(&mut value, &whole.largest);
        put_varint(out, if is_own { WHOLE } else { WHOLE_OF });
        put_bytes(out, &value);
    }
}

/// Reads a list of edits.
///
/// # Errors
/// If the bytes are none.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<ManifestEdit>, BadEdits> {
    let mut edits = Vec::new();
    let mut rest = Taker::new(bytes);
    while !rest.is_empty() {
        let tag = rest.varint().ok_or(BadEdits::Malformed("an edit without a tag"))?;
        let value = rest.bytes().ok_or(BadEdits::Malformed("an edit that is cut off"))?;
        let mut value = Taker::new(value);
        let edit = match tag {
            CREATE_KEYSPACE => create_keyspace(&mut value),
            DROP_KEYSPACE => keyspace(&mut value).map(ManifestEdit::DropKeyspace),
            SET_OPTIONS => pair(&mut value, text).map(|(id, text)| ManifestEdit::SetOptions(id, text)),
            VERSION => match keyspace(&mut value) {
                Some(id) => version_edit(&mut value)?.map(|edit| ManifestEdit::Version(id, edit)),
                None => None,
            },
            FLUSHED => pair(&mut value, seq).map(|(id, seq)| ManifestEdit::Flushed(id, seq)),
            NEXT_RUN_ORDER => pair(&mut value, Taker::varint).map(|(id, n)| ManifestEdit::NextRunOrder(id, n)),
            NEXT_SST => value.varint().map(|n| ManifestEdit::NextSst(SstId(n))),
            NEXT_KEYSPACE => keyspace(&mut value).map(ManifestEdit::NextKeyspace),
            LAST_SEQ => seq(&mut value).map(ManifestEdit::LastSeq),
            LOG_FLOOR => value.varint().map(|n| ManifestEdit::LogFloor(SegmentId(n))),
            odd if odd % 2 == 1 => continue,
            _ => return Err(BadEdits::Unknown(format!("an edit with the unknown tag {tag}"))),
        };
        match edit {
            Some(edit) if value.is_empty() => edits.push(edit),
            _ => return Err(BadEdits::Malformed("an edit whose value is malformed")),
        }
    }
    Ok(edits)
}

fn keyspace(value: &mut Taker<'_>) -> Option<KeyspaceId> {
    value.varint32().map(KeyspaceId)
}

fn seq(value: &mut Taker<'_>) -> Option<SeqNo> {
    value.varint().map(SeqNo).filter(|seq| *seq <= SeqNo::MAX)
}

fn text(value: &mut Taker<'_>) -> Option<String> {
    std::str::from_utf8(value.bytes()?).ok().map(str::to_owned)
}

fn pair<'a, T>(value: &mut Taker<'a>, second: impl FnOnce(&mut Taker<'a>) -> Option<T>) -> Option<(KeyspaceId, T)> {
    Some((keyspace(value)?, second(value)?))
}

fn create_keyspace(value: &mut Taker<'_>) -> Option<ManifestEdit> {
    Some(ManifestEdit::CreateKeyspace { id: keyspace(value)?, name: text(value)?, options_text: text(value)? })
}

/// Counts are believed only as far as bytes follow, so memory stays within the size of the input.
fn version_edit(value: &mut Taker<'_>) -> Result<Option<VersionEdit>, BadEdits> {
    let mut edit = VersionEdit::default();
    let Some(count) = value.varint() else {
        return Ok(None);
    };
    for _ in 0..count {
        match place(value).and_then(|(level, order)| Some((level, order, SstId(value.varint()?)))) {
            Some(removed) => edit.removed.push(removed),
            None => return Ok(None),
        }
    }
    let Some(count) = value.varint() else {
        return Ok(None);
    };
    for _ in 0..count {
        let Some(((level, order), meta)) = place(value).and_then(|place| Some((place, value.bytes()?))) else {
            return Ok(None);
        };
        let mut meta = Taker::new(meta);
        let Some(mut file) = file(&mut meta) else {
            return Ok(None);
        };
        extras(&mut meta, &mut file)?;
        edit.added.push((level, order, Arc::new(file)));
    }
    Ok(Some(edit))
}

fn place(value: &mut Taker<'_>) -> Option<(LevelId, RunOrder)> {
    Some((LevelId(value.u8()?), RunOrder(value.varint()?)))
}

fn file(meta: &mut Taker<'_>) -> Option<FileMeta> {
    Some(FileMeta {
        id: SstId(meta.varint()?),
        bytes: meta.varint()?,
        entries: meta.varint()?,
        tombstones: meta.varint()?,
        range_tombstones: meta.varint()?,
        raw_bytes: meta.varint()?,
        smallest: Bytes::copy_from_slice(meta.bytes()?),
        largest: Bytes::copy_from_slice(meta.bytes()?),
        min_seq: seq(meta)?,
        max_seq: seq(meta)?,
        created_ms: meta.varint()?,
        oldest_tombstone_ms: meta.varint()?.checked_sub(1),
        entered_level_ms: meta.varint()?,
        whole: None,
    })
}

fn whole(mut value: Taker<'_>, own: Option<SstId>) -> Option<Whole> {
    let table = match own {
        Some(id) => id,
        None => SstId(value.varint()?),
    };
    let whole = Whole {
        table,
        bytes: value.varint()?,
        entries: value.varint()?,
        tombstones: value.varint()?,
        raw_bytes: value.varint()?,
        smallest: Bytes::copy_from_slice(value.bytes()?),
        largest: Bytes::copy_from_slice(value.bytes()?),
    };
    value.is_empty().then_some(whole)
}

/// What is known of a file beyond what all files have. What a newer version knows is fine if it says that it may be ignored.
fn extras(meta: &mut Taker<'_>, file: &mut FileMeta) -> Result<(), BadEdits> {
    while !meta.is_empty() {
        match (meta.varint(), meta.bytes()) {
            (Some(tag @ (WHOLE | WHOLE_OF)), Some(value)) if file.whole.is_none() => {
                let own = (tag == WHOLE).then_some(file.id);
                let whole = whole(Taker::new(value), own).filter(|whole| own.is_some() || whole.table != file.id);
                let whole = whole.ok_or(BadEdits::Malformed("the table of a slice is malformed"))?;
                file.whole = Some(Arc::new(whole));
            }
            (Some(WHOLE | WHOLE_OF), Some(_)) => return Err(BadEdits::Malformed("a slice of two tables")),
            (Some(tag), Some(_)) if tag % 2 == 1 => {}
            (Some(tag), Some(_)) => {
                return Err(BadEdits::Unknown(format!("a file with the unknown tag {tag}")));
            }
            _ => return Err(BadEdits::Malformed("the description of a file is malformed")),
        }
    }
    Ok(())
}
