//! Reading the log back: which segments make up history, and where it ends.
//!
//! First the headers of all segments are read, and links followed from the newest segment back: that is the *chain*. Segments off
//! the chain were prepared and never used, or lie behind a hole that an earlier recovery decided on. Then the watermarks say of
//! each segment how far it must be intact; only then are records read. See [`super`] for what is promised and why.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::header::{BadIdentity, FIRST_RECORD, FORMAT, Identity, Link, Mark, PAGE, Part};
use super::record::BadBody;
use super::{LogPos, RecordIter, SegmentId, Tail};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::{Frame, FrameReader};
use crate::io::{Fs, IoCtx, OpenOptions, ReadableFile};
use crate::key::SeqNo;
use crate::num::{to_u64, to_usize};
use crate::options::Recovery;
use crate::planted::{self, Bug};

/// What replay found.
#[derive(Clone, Debug, Default)]
pub struct ReplaySummary {
    /// Batches handed out; a single record counts as one.
    pub batches: u64,
    /// Records handed out.
    pub records: u64,
    /// Bytes of the valid frames.
    pub bytes: u64,
    /// The last sequence number handed out.
    pub last_seq: Option<SeqNo>,
    /// What ended replay before the log's last byte, if anything did: a torn tail, a hole, or with [`Recovery::Salvage`] damage.
    pub torn: Option<Error>,
    /// Where history ends.
    pub(crate) tail: Tail,
    /// The highest number that any file has.
    pub(super) highest: SegmentId,
    /// Every segment with a file, ascending, and its bytes; the leftovers not among them.
    pub(super) files: Vec<(SegmentId, u64)>,
    /// Segments that were read and are not known to be durable, ascending.
    pub(super) unsynced: Vec<SegmentId>,
    /// Names of files that mean nothing: half-made segments, and prepared ones that were never used.
    pub(super) leftovers: Vec<String>,
}

impl ReplaySummary {
    /// Where history ends; zeros if there is none.
    pub fn end(&self) -> LogPos {
        LogPos { segment: self.tail.segment, offset: self.tail.len }
    }

    /// Bytes that the files of the segments from `floor` on take; from the floor of the replay on, valid frames are [`bytes`](Self::bytes) of them.
    pub fn file_bytes(&self, floor: SegmentId) -> u64 {
        self.files.iter().filter(|(id, _)| *id >= floor).map(|(_, bytes)| bytes).sum()
    }
}

/// Reads the log of the store `store_id` from segment `from` on (the manifest's log floor; 0 if there was never a log) and hands
/// each record or batch to `apply`, in order: its first sequence number and its records. Changes nothing on disk.
///
/// What `apply` has seen is durable only once [`LogWriter::open`](super::LogWriter::open) has returned.
///
/// # Errors
/// - `Corruption`, with file and offset, for damage below what is known to be durable, a segment that is missing and that a link
///   or the floor names, or a segment of another store. With [`Recovery::Salvage`] such damage ends replay instead.
/// - `Unsupported` if a newer version wrote the log.
/// - `Io` if a file cannot be read; never taken for an end.
/// - What `apply` returns.
pub fn replay(
    fs: &dyn Fs,
    dir: &Path,
    store_id: u128,
    from: SegmentId,
    mode: Recovery,
    ctx: IoCtx,
    apply: &mut dyn FnMut(SeqNo, RecordIter<'_>) -> Result<()>,
) -> Result<ReplaySummary> {
    let mut summary = ReplaySummary::default();
    let mut log = Log::read(fs, dir, store_id, from, ctx, &mut summary)?;
    let chain = match mode {
        Recovery::Strict => log.chain(from)?,
        Recovery::Salvage => log.salvage_chain(from, &mut summary),
    };
    let mut reader = Reader { mode, ctx, summary, apply };
    for part in log.parts(&chain) {
        if !reader.read(&part)? && !planted::active(Bug::ReplayAfterHole) {
            break;
        }
    }
    let mut summary = reader.summary;
    // What was prepared and never used may go, unless something names it: the floor, or a link. A used segment that lost all it
    // held in a power cut looks the same, and a later one may be linked to it.
    let all = || log.segments.values().chain(&log.lost);
    let newest_linked = all().filter(|segment| segment.is_linked()).map(|segment| segment.id).max();
    for segment in all() {
        let is_unnamed = segment.id != from && newest_linked.is_none_or(|newest| segment.id > newest);
        if is_unnamed && segment.header.as_ref().is_ok_and(Header::is_unused) {
            summary.leftovers.push(segment.id.file_name());
        } else {
            summary.files.push((segment.id, segment.bytes));
        }
    }
    summary.files.sort_unstable();
    Ok(summary)
}

/// A segment's file and what its header says.
struct Segment {
    id: SegmentId,
    path: PathBuf,
    bytes: u64,
    /// The header, or what is wrong with it.
    header: Result<Header>,
}

#[derive(Clone)]
struct Header {
    file: Arc<dyn ReadableFile>,
    seed: u32,
    link: Part<Link>,
    mark: Mark,
    /// Whether the place of the first record is zeros.
    is_empty: bool,
}

/// All segments of a folder that are at or above the floor.
struct Log {
    segments: BTreeMap<SegmentId, Segment>,
    /// What salvage gave up.
    lost: Vec<Segment>,
    dir: PathBuf,
}

impl Log {
    fn read(
        fs: &dyn Fs,
        dir: &Path,
        store_id: u128,
        from: SegmentId,
        ctx: IoCtx,
        summary: &mut ReplaySummary,
    ) -> Result<Log> {
        let mut segments = BTreeMap::new();
        let mut entries = fs.list(dir, ctx).map_err(|source| Error::io(dir, "listing the log", source))?;
        entries.sort();
        for entry in entries {
            let name = entry.name.strip_suffix(".tmp");
            if let Some(id) = name.and_then(SegmentId::from_file_name) {
                summary.highest = summary.highest.max(id);
                summary.leftovers.push(entry.name);
            } else if let Some(id) = SegmentId::from_file_name(&entry.name) {
                summary.highest = summary.highest.max(id);
                if id < from {
                    // Not needed; kept in the list so that it is removed with the others.
                    summary.files.push((id, entry.bytes));
                    continue;
                }
                let path = dir.join(&entry.name);
                let (bytes, header) = read_header(fs, &path, id, store_id, ctx)?;
                segments.insert(id, Segment { id, path, bytes, header });
            }
        }
        summary.highest = summary.highest.max(SegmentId(from.0.saturating_sub(1)));
        Ok(Log { segments, lost: Vec::new(), dir: dir.to_path_buf() })
    }

    /// The chain: segments of one history, oldest first.
    fn chain(&self, from: SegmentId) -> Result<Vec<SegmentId>> {
        let mut below = SegmentId(u64::MAX);
        loop {
            // A link may be missing because nothing of its segment was ever synced; then that segment and all after it never
            // happened. But a name and an identity were durable before the segment was used.
            let Some(newest) = self.newest_linked(below)? else {
                let is_gone = from.0 > 0 && !self.segments.contains_key(&from);
                return if is_gone { Err(self.missing(from)) } else { Ok(Vec::new()) };
            };
            match self.walk(newest, from)? {
                Ok(chain) => return Ok(chain),
                Err(unlinked) => {
                    self.check_never_synced(unlinked)?;
                    below = unlinked;
                }
            }
        }
    }

    /// The newest segment below `below` that has a link; those above it must never have been synced.
    fn newest_linked(&self, below: SegmentId) -> Result<Option<SegmentId>> {
        for segment in self.segments.range(..below).rev().map(|(_, segment)| segment) {
            let header = segment.header.as_ref().map_err(Clone::clone)?;
            if matches!(header.link, Part::Valid(_)) {
                return Ok(Some(segment.id));
            }
            self.check_never_synced(segment.id)?;
        }
        Ok(None)
    }

    /// Follows the links from `newest` back to the floor. The inner error is a segment on the way that has no link.
    fn walk(&self, newest: SegmentId, from: SegmentId) -> Result<std::result::Result<Vec<SegmentId>, SegmentId>> {
        let mut chain = Vec::new();
        let mut id = newest;
        loop {
            let segment = self.segments.get(&id).ok_or_else(|| self.missing(id))?;
            let Part::Valid(link) = segment.header.as_ref().map_err(Clone::clone)?.link else {
                return Ok(Err(id));
            };
            chain.push(id);
            let before = link.before.segment;
            if before >= id {
                return Err(Error::corruption(&segment.path, 0, "the segment is linked to a later one"));
            }
            if before < from || before.0 == 0 {
                chain.reverse();
                return Ok(Ok(chain));
            }
            id = before;
        }
    }

    /// Fails if segment `id` or one after it was synced.
    fn check_never_synced(&self, id: SegmentId) -> Result<()> {
        for segment in self.segments.range(id..).map(|(_, segment)| segment) {
            let Ok(header) = &segment.header else { continue };
            let link_says_so =
                matches!(header.link, Part::Valid(link) if link.before.segment >= id && link.synced_to > 0);
            if header.mark.synced_to > 0 || link_says_so {
                let what = format!("segment {} was synced, but the link of segment {} is damaged", segment.id.0, id.0);
                return Err(Error::corruption(&self.dir.join(id.file_name()), to_u64(super::header::LINK_AT), what));
            }
        }
        Ok(())
    }

    fn missing(&self, id: SegmentId) -> Error {
        Error::corruption(&self.dir.join(id.file_name()), 0, "a segment of the log is missing")
    }

    /// The chain below any damage.
    fn salvage_chain(&mut self, from: SegmentId, summary: &mut ReplaySummary) -> Vec<SegmentId> {
        // Give up the newest segment until the rest is a chain.
        loop {
            let error = match self.chain(from) {
                Ok(chain) => return chain,
                Err(error) => error,
            };
            summary.torn = Some(error);
            match self.segments.pop_last() {
                Some((_, segment)) => self.lost.push(segment),
                None => return Vec::new(),
            }
        }
    }

    /// For each segment of the chain, what is to be read and how much of it must be intact.
    fn parts(&self, chain: &[SegmentId]) -> Vec<Piece<'_>> {
        let mut pieces = Vec::new();
        let mut next: Option<Link> = None;
        let mut later_synced = false;
        for id in chain.iter().rev() {
            let segment = &self.segments[id];
            let Ok(header) = &segment.header else { unreachable!("a chain has only valid headers") };
            let (limit, durable) = match next {
                Some(link) if link.decided || later_synced => (link.before.len, link.before.len),
                Some(link) => (link.before.len, link.synced_to.max(header.mark.synced_to)),
                None if header.mark.end > 0 => (header.mark.end, header.mark.synced_to),
                None => (segment.bytes, header.mark.synced_to),
            };
            later_synced |= durable > 0;
            pieces.push(Piece { segment, header, limit, durable: durable.min(limit), next });
            next = match header.link {
                Part::Valid(link) => Some(link),
                Part::Absent | Part::Damaged => None,
            };
        }
        pieces.reverse();
        pieces
    }
}

/// A segment of the chain as replay reads it.
struct Piece<'a> {
    segment: &'a Segment,
    header: &'a Header,
    /// Where its records end at the latest.
    limit: u64,
    /// Up to where they are known to be durable: any damage below is damage.
    durable: u64,
    /// The link of the following segment.
    next: Option<Link>,
}

struct Reader<'a> {
    mode: Recovery,
    ctx: IoCtx,
    summary: ReplaySummary,
    apply: &'a mut dyn FnMut(SeqNo, RecordIter<'_>) -> Result<()>,
}

impl Reader<'_> {
    /// Hands out the records of a segment. Returns whether history goes on in the next one.
    fn read(&mut self, piece: &Piece<'_>) -> Result<bool> {
        let Piece { segment, header, limit, durable, next } = piece;
        let damage = |at: u64, what: &str| Error::corruption(&segment.path, at, what);
        if *limit < FIRST_RECORD || *limit > segment.bytes {
            return self.end(Err(damage(to_u64(super::header::LINK_AT), "records end outside the file")));
        }
        let began_ms = match header.link {
            Part::Valid(link) => link.began_ms,
            Part::Absent | Part::Damaged => 0,
        };
        let file = Arc::clone(&header.file);
        let mut frames = FrameReader::new(file, &segment.path, FIRST_RECORD, *limit, header.seed, self.ctx);
        let mut end;
        let stopped = loop {
            let at = frames.offset();
            // From before the frame: one that is refused is no part of history, though its checksum is right.
            end = Tail { segment: segment.id, len: at, chain: frames.chain() };
            let next_seq = self.summary.last_seq.map_or(0, |seq| seq.0 + 1);
            match frames.next()? {
                Frame::Body(body) => {
                    let end =
                        LogPos { segment: segment.id, offset: at + to_u64(crate::frame::FRAME_HEADER + body.len()) };
                    let (first, records) = match RecordIter::of_body(body, end, began_ms) {
                        Ok((first, _)) if first.0 < next_seq => {
                            break Some((at, "sequence numbers that go back", true));
                        }
                        Ok(record) => record,
                        Err(BadBody::Unknown(what)) => {
                            return Err(Error::new(ErrorKind::Unsupported, what).at(&segment.path).at_offset(at));
                        }
                        Err(BadBody::Malformed(what)) => break Some((at, what, true)),
                    };
                    let count = u64::from(records.count_left());
                    self.summary.batches += 1;
                    self.summary.records += count;
                    self.summary.last_seq = Some(SeqNo(first.0 + count - 1));
                    self.summary.bytes += end.offset - at;
                    (self.apply)(first, records)?;
                }
                Frame::End => break None,
                Frame::Torn(what) => break Some((at, what, false)),
            }
        };
        self.summary.tail = end;
        if *durable < end.len {
            self.summary.unsynced.push(segment.id);
        }
        match (stopped, next) {
            (Some((at, what, true)), _) => self.end(Err(damage(at, what))),
            (Some((at, what, false)), _) if at < *durable => self.end(Err(damage(at, what))),
            (None, _) if end.len < *durable => self.end(Err(damage(end.len, "synced records are missing"))),
            (Some((at, what, false)), _) => self.end(Ok(Some(damage(at, what)))),
            (None, None) => self.end(Ok(None)),
            (None, Some(link)) if link.before == end => Ok(true),
            (None, Some(link)) if link.before.len > end.len => {
                self.end(Ok(Some(damage(end.len, "records are missing before the next segment"))))
            }
            (None, Some(_)) => self.end(Err(damage(end.len, "the next segment follows other records"))),
        }
    }

    /// Ends replay: quietly, or with damage, which only salvage survives.
    fn end(&mut self, why: Result<Option<Error>>) -> Result<bool> {
        match why {
            // Salvage may have noted already why there is no more.
            Ok(torn) => self.summary.torn = torn.or(self.summary.torn.take()),
            Err(error) if self.mode == Recovery::Salvage => self.summary.torn = Some(error),
            Err(error) => return Err(error),
        }
        Ok(false)
    }
}

impl Segment {
    fn is_linked(&self) -> bool {
        self.header.as_ref().is_ok_and(|header| matches!(header.link, Part::Valid(_)))
    }
}

impl Header {
    /// Whether nothing was ever written behind the identity, or nothing of it is left.
    fn is_unused(&self) -> bool {
        self.link == Part::Absent && self.mark == Mark::default() && self.is_empty
    }
}

/// The watermark of the segment in `path` that is damaged, if one is. Replay does without it: the other one counts.
pub(crate) fn damaged_mark(fs: &dyn Fs, path: &Path, ctx: IoCtx) -> Option<Error> {
    let file = fs.open(path, OpenOptions::default(), ctx).ok()?;
    let mut page = [0; PAGE];
    file.read_exact_at(&mut page, 0, ctx).ok()?;
    // A segment without an identity is none; where it should be one, opening has said so.
    let (_, seed) = Identity::decode(&page).ok()?;
    let at = Mark::damaged(&page, seed)?;
    let what = "a mark of how far the log is durable is damaged; the other one stands in for it, and it goes with this segment";
    Some(Error::corruption(path, to_u64(at), what))
}

/// The size and header of a segment. The outer error is a failure to read, the inner one damage.
fn read_header(fs: &dyn Fs, path: &Path, id: SegmentId, store_id: u128, ctx: IoCtx) -> Result<(u64, Result<Header>)> {
    let io = |source| Error::io(path, "reading a log segment", source);
    let file = fs.open(path, OpenOptions::default(), ctx).map_err(io)?;
    let bytes = file.bytes();
    let damage = |what: &str| Ok((bytes, Err(Error::corruption(path, 0, what))));
    // The first record's length is read with the page.
    let mut first = [0; PAGE + 8];
    let take = first.len().min(to_usize(bytes));
    file.read_exact_at(&mut first[..take], 0, ctx).map_err(io)?;
    let Some(page) = first.first_chunk::<PAGE>().filter(|_| take >= PAGE) else {
        return damage("the segment is shorter than its header");
    };
    let (identity, seed) = match Identity::decode(page) {
        Ok(identity) => identity,
        Err(BadIdentity::Damaged) => return damage("the segment's identity is damaged"),
        Err(BadIdentity::Newer(format)) => {
            let what = format!("log format {format}, this version knows {FORMAT}");
            return Err(Error::new(ErrorKind::Unsupported, what).at(path));
        }
    };
    if identity.store_id != store_id {
        return damage("the segment belongs to another store");
    }
    if identity.segment != id {
        return damage("the segment has the name of another one");
    }
    if identity.bytes != bytes {
        return damage("the segment does not have its size");
    }
    let is_empty = first[PAGE..].iter().all(|&byte| byte == 0);
    let (link, mark) = (Link::decode(page, seed), Mark::newest(page, seed));
    Ok((bytes, Ok(Header { file, seed, link, mark, is_empty })))
}
