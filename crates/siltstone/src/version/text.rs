//! Trees as text: what golden tests read and people look at.
//!
//! One line is one sorted run, newest first within its level:
//!
//! ```text
//! L0  4:a-m:10K
//! L0  order=2 3:c-z:10K:120:7
//! L1  1:a-k:20K 2:l-z:20K@created=5,seq=1..9
//! ```
//!
//! A file is `id:first-last:bytes[:entries[:tombstones]][@name=value,...]`. Sizes take `K`, `M`, `G` (powers of 1024). In a
//! key, each byte that is not a letter, a digit or `_` is written `\xNN`; the empty key is an empty string. What is not
//! said has a default, and is not printed when it has that value, so parsing what was printed gives the same tree:
//!
//! | part | default |
//! | --- | --- |
//! | `order=` | counts down over all lines; the last line has 1 |
//! | entries | bytes / 1024, at least 1 |
//! | tombstones | 0 |
//! | `seq=low..high` | the run's order, both |
//! | `created=`, `entered=` | 0 (milliseconds) |
//! | `oldest=` (oldest tombstone, ms) | none |
//! | `raw=` (raw bytes) | bytes |
//! | `ranges=` (range tombstones) | 0 |
//! | `of=first-last:bytes:entries:tombstones:raw` (the table of a slice) | none |

use std::fmt::{self, Write as _};
use std::sync::Arc;

use bytes::Bytes;

use super::{FileMeta, LevelId, Run, RunOrder, SstId, Version, VersionEdit, Whole};
use crate::error::{Error, Result};
use crate::key::SeqNo;
use crate::num::to_u64;

/// Reads a tree. Empty lines and lines that begin with `#` are skipped.
///
/// # Errors
/// `InvalidArgument`, with the line, if a line cannot be read or the tree breaks a law.
pub fn parse(text: &str) -> Result<Version> {
    let lines: Vec<&str> =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let mut edit = VersionEdit::default();
    let mut last: Option<(LevelId, RunOrder)> = None;
    for (at, line) in lines.iter().enumerate() {
        let wrong = |what: &str| Error::invalid(format!("{what} in line {line:?} of a tree"));
        let mut words = line.split_whitespace().peekable();
        let level = words.next().and_then(|word| word.strip_prefix('L')).and_then(|n| n.parse().ok());
        let level = LevelId(level.ok_or_else(|| wrong("no level"))?);
        let mut order = RunOrder(to_u64(lines.len() - at));
        if let Some(n) = words.peek().and_then(|word| word.strip_prefix("order=")) {
            order = RunOrder(n.parse().map_err(|_| wrong("no order"))?);
            words.next();
        }
        if last.is_some_and(|(l, o)| l == level && o <= order) {
            return Err(wrong("a run that is not older than the one above it"));
        }
        last = Some((level, order));
        for word in words {
            edit.added.push((level, order, Arc::new(parse_file(word, order).map_err(|what| wrong(&what))?)));
        }
    }
    let version = Version::empty().apply(&edit)?;
    version.check().map_err(|law| Error::invalid(format!("a tree that breaks a law: {law}")))?;
    Ok(version)
}

/// Reads one file, as it stands in a run of order `order`.
///
/// # Errors
/// What is wrong with it.
pub fn parse_file(word: &str, order: RunOrder) -> std::result::Result<FileMeta, String> {
    let (main, extra) = word.split_once('@').unwrap_or((word, ""));
    let parts: Vec<&str> = main.split(':').collect();
    let (3..=5, Some((first, last))) = (parts.len(), parts.get(1).and_then(|range| range.split_once('-'))) else {
        return Err(format!("{word:?} is not id:first-last:bytes"));
    };
    let number = |text: &str| size(text).ok_or_else(|| format!("{text:?} in {word:?} is not a number"));
    let bytes = number(parts[2])?;
    let mut file = FileMeta {
        id: SstId(number(parts[0])?),
        bytes,
        entries: parts.get(3).map_or(Ok((bytes / 1024).max(1)), |n| number(n))?,
        tombstones: parts.get(4).map_or(Ok(0), |n| number(n))?,
        range_tombstones: 0,
        raw_bytes: bytes,
        smallest: unescape(first).ok_or_else(|| format!("{first:?} is not a key"))?,
        largest: unescape(last).ok_or_else(|| format!("{last:?} is not a key"))?,
        min_seq: SeqNo(order.0),
        max_seq: SeqNo(order.0),
        created_ms: 0,
        oldest_tombstone_ms: None,
        entered_level_ms: 0,
        whole: None,
    };
    for pair in extra.split(',').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or_else(|| format!("{pair:?} is not name=value"))?;
        match name {
            "seq" => {
                let (low, high) = value.split_once("..").ok_or_else(|| format!("{pair:?} is not seq=low..high"))?;
                (file.min_seq, file.max_seq) = (SeqNo(number(low)?), SeqNo(number(high)?));
            }
            "created" => file.created_ms = number(value)?,
            "entered" => file.entered_level_ms = number(value)?,
            "oldest" => file.oldest_tombstone_ms = Some(number(value)?),
            "raw" => file.raw_bytes = number(value)?,
            "ranges" => file.range_tombstones = number(value)?,
            "of" => {
                let whole = parse_whole(value, file.id).ok_or_else(|| format!("{pair:?} is no table"))?;
                file.whole = Some(Arc::new(whole));
            }
            _ => return Err(format!("{name:?} is not known of a file")),
        }
    }
    Ok(file)
}

fn parse_whole(text: &str, own: SstId) -> Option<Whole> {
    let mut parts = text.split(':');
    let (smallest, largest) = parts.next()?.split_once('-')?;
    let mut number = || size(parts.next()?);
    let (bytes, entries, tombstones, raw_bytes) = (number()?, number()?, number()?, number()?);
    let (smallest, largest) = (unescape(smallest)?, unescape(largest)?);
    let table = parts.next().map_or(Some(own), |id| size(id).map(SstId))?;
    parts.next().is_none().then_some(Whole { table, bytes, entries, tombstones, raw_bytes, smallest, largest })
}

/// Draws a tree; [`parse`] reads it back.
pub fn print(version: &Version) -> String {
    let mut text = String::new();
    let lines = to_u64(version.run_count());
    for (at, (level, run)) in version.runs().enumerate() {
        print_run(&mut text, level, run, RunOrder(lines - to_u64(at)));
    }
    text
}

fn print_run(text: &mut String, level: LevelId, run: &Run, default: RunOrder) {
    let order = if run.order == default { String::new() } else { format!(" order={}", run.order.0) };
    let files: Vec<String> = run.files.iter().map(|file| print_file(file, run.order)).collect();
    text.push_str(format!("L{} {order} {}\n", level.0, files.join(" ")).as_str());
}

/// Draws one file, as it stands in a run of order `order`.
pub fn print_file(file: &FileMeta, order: RunOrder) -> String {
    let mut text = format!("{}:{}-{}:{}", file.id.0, escape(&file.smallest), escape(&file.largest), Size(file.bytes));
    if file.tombstones != 0 || file.entries != (file.bytes / 1024).max(1) {
        text.push_str(&format!(":{}", file.entries));
    }
    if file.tombstones != 0 {
        text.push_str(&format!(":{}", file.tombstones));
    }
    let mut extra = Vec::new();
    if (file.min_seq, file.max_seq) != (SeqNo(order.0), SeqNo(order.0)) {
        extra.push(format!("seq={}..{}", file.min_seq.0, file.max_seq.0));
    }
    let named = [("created", file.created_ms), ("entered", file.entered_level_ms), ("ranges", file.range_tombstones)];
    extra.extend(named.iter().filter(|(_, n)| *n != 0).map(|(name, n)| format!("{name}={n}")));
    extra.extend(file.oldest_tombstone_ms.map(|ms| format!("oldest={ms}")));
    if file.raw_bytes != file.bytes {
        extra.push(format!("raw={}", file.raw_bytes));
    }
    extra.extend(file.whole.as_ref().map(|whole| {
        let Whole { table, bytes, entries, tombstones, raw_bytes, smallest, largest } = &**whole;
        let of = if *table == file.id { String::new() } else { format!(":{}", table.0) };
        format!("of={}-{}:{bytes}:{entries}:{tombstones}:{raw_bytes}{of}", escape(smallest), escape(largest))
    }));
    if !extra.is_empty() {
        text.push_str(&format!("@{}", extra.join(",")));
    }
    text
}

/// A size with the largest unit that divides it.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, letter) in [(1 << 30, 'G'), (1 << 20, 'M'), (1 << 10, 'K')] {
            if self.0 != 0 && self.0.is_multiple_of(unit) {
                return write!(f, "{}{letter}", self.0 / unit);
            }
        }
        write!(f, "{}", self.0)
    }
}

fn size(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        b'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn escape(key: &[u8]) -> String {
    let mut text = String::with_capacity(key.len());
    for &byte in key {
        if byte.is_ascii_alphanumeric() || byte == b'_' {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

fn unescape(text: &str) -> Option<Bytes> {
    let mut key = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("\\x") {
        key.extend_from_slice(&rest.as_bytes()[..at]);
        key.push(u8::from_str_radix(rest.get(at + 2..at + 4)?, 16).ok()?);
        rest = &rest[at + 4..];
    }
    key.extend_from_slice(rest.as_bytes());
    Some(Bytes::from(key))
}
