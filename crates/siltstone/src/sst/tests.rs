//! Tests of tables as a whole: against a model, against damage, and under threads.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::cache::BlockCache;
use crate::error::{ErrorKind, Result};
use crate::io::{IoClass, IoCtx, ReadableFile, Rng, WritableFile};
use crate::iter::{Approach, Arrival, Cursor, Target};
use crate::key::{Kind, SeqNo, Trailer, hash, head};
use crate::options::Compression;
use crate::sst::footer::FORMAT_VERSION;
use crate::sst::{Table, TableOptions, TableSummary, TableWriter};
use crate::version::SstId;

mod ahead;
mod blocks;

pub(crate) const CTX: IoCtx = IoCtx::foreground(IoClass::UserRead);

/// A file in memory.
#[derive(Clone, Default)]
pub(crate) struct MemFile(pub(crate) Arc<Mutex<Vec<u8>>>);

impl WritableFile for MemFile {
    fn append(&mut self, data: &[u8], _: IoCtx) -> io::Result<()> {
        self.0.lock().extend_from_slice(data);
        Ok(())
    }

    fn sync(&mut self, _: IoCtx) -> io::Result<()> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.0.lock().len() as u64
    }
}

/// A file that cannot change.
pub(crate) struct Fixed(pub(crate) Vec<u8>);

impl ReadableFile for Fixed {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64, _: IoCtx) -> io::Result<()> {
        let from = usize::try_from(offset).unwrap();
        let some = self.0.get(from..).and_then(|rest| rest.get(..buf.len()));
        buf.copy_from_slice(some.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }
}

/// Key and reversed trailer: internal order.
type ModelKey = (Vec<u8>, Reverse<u64>);
type Model = BTreeMap<ModelKey, Vec<u8>>;

pub(crate) fn write(model: &Model, options: TableOptions) -> (Vec<u8>, TableSummary) {
    let file = MemFile::default();
    let mut writer = TableWriter::new("test.sst", Box::new(file.clone()), options, CTX);
    for ((key, Reverse(trailer)), value) in model {
        writer.add(key, Trailer(*trailer), value).unwrap();
    }
    let estimate = writer.estimated_bytes();
    let summary = writer.finish().unwrap();
    let bytes = std::mem::take(&mut *file.0.lock());
    assert_eq!(summary.bytes, bytes.len() as u64);
    if options.compression == Compression::None {
        let slack = 600 + estimate / 8 + 4 * (summary.smallest.len() + summary.largest.len()) as u64;
        assert!(estimate.abs_diff(summary.bytes) < slack, "estimated {estimate}, took {}", summary.bytes);
    }
    (bytes, summary)
}

pub(crate) fn open(bytes: Vec<u8>, cache: &Arc<BlockCache>) -> Result<Arc<Table>> {
    let len = bytes.len() as u64;
    Table::open("test.sst", Arc::new(Fixed(bytes)), SstId(1), len, Arc::clone(cache), CTX).map(Arc::new)
}

fn below(rng: &mut Rng, n: usize) -> usize {
    usize::try_from(rng.below(n as u64)).unwrap()
}

fn any_key(rng: &mut Rng, style: usize) -> Vec<u8> {
    match style {
        // Few short keys: many versions each, the empty key too.
        0 => vec![b'k'; below(rng, 4)],
        // Decimal keys that share most of their bytes.
        1 => format!("user{:012}", rng.below(500)).into_bytes(),
        // Random bytes.
        2 => (0..16).map(|_| rng.next_u64().to_le_bytes()[0]).collect(),
        // Extremes: zeros, 0xff, prefixes of one another.
        3 => (0..below(rng, 9)).map(|_| [0, 0xff, 0x80, 1][below(rng, 4)]).collect(),
        // Long keys with equal starts.
        _ => {
            let mut key = vec![b'p'; [40, 300, 3000][below(rng, 3)]];
            key.extend_from_slice(&rng.below(40).to_be_bytes());
            key
        }
    }
}

pub(crate) fn any_model(rng: &mut Rng, style: usize, entries: usize, big_values: bool) -> Model {
    let mut model = Model::new();
    // Blocks cut trailers more or less, according to how far they lie apart.
    let far = [1, 20, 1 << 10, 1 << 40][below(rng, 4)];
    let seqs = [rng.below(20), rng.below(far), if far == 1 << 40 { SeqNo::MAX.0 } else { far }];
    for _ in 0..entries {
        let kind = if rng.one_in(5) { Kind::Delete } else { Kind::Put };
        let seq = SeqNo([rng.below(far), seqs[0], seqs[1], seqs[2]][below(rng, 4)]);
        let len = match rng.below(if big_values { 60 } else { 30 }) {
            0..10 => 0,
            10..25 => below(rng, 30),
            25..58 => below(rng, 200),
            _ => below(rng, 150_000),
        };
        let fill = rng.next_u64();
        let value = if kind == Kind::Delete {
            Vec::new()
        } else {
            (0..len).map(|i| if i % 3 == 0 { b'x' } else { fill.to_le_bytes()[i % 8] }).collect()
        };
        let key = any_key(rng, style);
        // One record a key and sequence number.
        let taken = model
            .range((key.clone(), Reverse(seq.0 << 8 | 0xff))..=(key.clone(), Reverse(seq.0 << 8)))
            .next()
            .is_some();
        if !taken {
            model.insert((key, Reverse(Trailer::new(seq, kind).0)), value);
        }
    }
    model
}

pub(crate) fn any_options(rng: &mut Rng) -> TableOptions {
    TableOptions {
        block_bytes: [64, 100, 256, 1024, 4096, 4096, 65536][below(rng, 7)],
        filter_bits_per_key: [0.0, 1.5, 10.0, 16.0][below(rng, 4)],
        compression: [Compression::None, Compression::None, Compression::Lz4, Compression::Zstd][below(rng, 4)],
    }
}

type Item = (ModelKey, Vec<u8>);

fn here<C: Cursor>(cursor: &C) -> Option<Item> {
    cursor.entry().map(|e| ((e.key.to_vec(), Reverse(e.trailer.0)), e.value.to_vec()))
}

fn item(found: Option<(&ModelKey, &Vec<u8>)>) -> Option<Item> {
    found.map(|(k, v)| (k.clone(), v.clone()))
}

/// Compares everything that a cursor can do with the model.
fn check_cursor<C: Cursor>(cursor: &mut C, model: &Model, rng: &mut Rng, style: usize, probes: usize) {
    assert!(cursor.entry().is_none(), "before the first seek");
    cursor.seek_first().unwrap();
    let mut arrival = None;
    for (k, v) in model {
        assert_eq!(here(cursor), Some((k.clone(), v.clone())));
        assert_eq!(cursor.head(), Some(head(&k.0)));
        if let Some(Arrival { head: arrived, key_len, trailer }) = arrival {
            assert_eq!((arrived, key_len, trailer.0), (head(&k.0), k.0.len(), k.1.0));
        }
        arrival = cursor.next_at_hand();
        if arrival.is_none() {
            cursor.next().unwrap();
        }
    }
    assert!(cursor.entry().is_none());
    cursor.seek_last().unwrap();
    for (k, v) in model.iter().rev() {
        assert_eq!(here(cursor), Some((k.clone(), v.clone())));
        cursor.prev().unwrap();
    }
    assert!(cursor.entry().is_none());
    for _ in 0..probes {
        let (key, trailer) = probe(rng, model, style);
        let target = (key.clone(), Reverse(trailer.0));
        let before = rng.one_in(2);
        // None of the steps, some, or all.
        for step in Approach::STEPS.into_iter().take(below(rng, 4)) {
            cursor.approach(step, Target { key: &key, trailer, before });
        }
        let mut expected;
        if !before {
            cursor.seek(&key, trailer).unwrap();
            expected = item(model.range(target..).next());
        } else {
            cursor.seek_before(&key, trailer).unwrap();
            expected = item(model.range(..target).next_back());
        }
        assert_eq!(here(cursor), expected, "{key:?} {trailer:?}");
        for _ in 0..below(rng, 12) {
            let Some((at, _)) = &expected else { break };
            if rng.one_in(2) {
                cursor.next().unwrap();
                expected = item(model.range((std::ops::Bound::Excluded(at), std::ops::Bound::Unbounded)).next());
            } else {
                cursor.prev().unwrap();
                expected = item(model.range(..at).next_back());
            }
            assert_eq!(here(cursor), expected);
        }
    }
}

fn probe(rng: &mut Rng, model: &Model, style: usize) -> (Vec<u8>, Trailer) {
    let pick = below(rng, model.len());
    let ((key, Reverse(trailer)), _) = model.iter().nth(pick).unwrap();
    let key = match rng.below(4) {
        0 => any_key(rng, style),
        1 => {
            let mut key = key.clone();
            key.push([0, 0xff][below(rng, 2)]);
            key
        }
        _ => key.clone(),
    };
    let trailer = match rng.below(4) {
        0 => Trailer::seek(SeqNo(rng.below(25))),
        1 => Trailer::seek(SeqNo::MAX),
        2 => Trailer(*trailer),
        _ => Trailer(0),
    };
    (key, trailer)
}

fn check_gets(table: &Table, model: &Model, rng: &mut Rng, style: usize, probes: usize) {
    for _ in 0..probes {
        let (key, trailer) = probe(rng, model, style);
        let seq = trailer.seq();
        let expected = model
            .range((key.clone(), Reverse(seq.0 << 8 | 0xff))..=(key.clone(), Reverse(0)))
            .next()
            .map(|((_, Reverse(trailer)), value)| (Trailer(*trailer), value.clone()));
        table.prefetch_filter(hash(&key));
        table.prefetch_block(&key, seq);
        let found = table.get(&key, hash(&key), seq).unwrap().map(|(t, v)| (t, v.to_vec()));
        assert_eq!(found, expected, "{key:?} at {seq:?}");
    }
}

#[test]
fn tables_answer_as_a_model_does() {
    for seed in 0..160 {
        let mut rng = Rng::new(seed);
        let style = below(&mut rng, 5);
        let entries = [1, 2, 40, 700][below(&mut rng, 4)];
        let big_values = rng.one_in(4);
        let model = any_model(&mut rng, style, entries, big_values);
        let options = any_options(&mut rng);
        let (bytes, summary) = write(&model, options);
        assert_eq!(summary.entries, model.len() as u64);
        assert_eq!(summary.smallest, model.first_key_value().unwrap().0.0);
        assert_eq!(summary.largest, model.last_key_value().unwrap().0.0);
        // From no cache to one that holds everything.
        let cache = Arc::new(BlockCache::with_frame_bytes(
            [0, 20_000, 100_000, 64 << 20][below(&mut rng, 4)],
            [256, 4096, 65536][below(&mut rng, 3)],
        ));
        let table = open(bytes, &cache).unwrap();
        assert_eq!(table.properties().entries, summary.entries);
        table.verify(CTX).unwrap();
        check_gets(&table, &model, &mut rng, style, 200);
        check_cursor(&mut table.cursor(), &model, &mut rng, style, 60);
        let read_ahead = [1, 700, 256 << 10][below(&mut rng, 3)];
        check_cursor(&mut table.scan(read_ahead, CTX), &model, &mut rng, style, 20);
        check_gets(&table, &model, &mut rng, style, 200);
        drop(table);
        let stats = cache.stats();
        assert_eq!((stats.used_bytes, stats.charged_bytes), (0, 0), "seed {seed}: {stats:?}");
    }
}

#[test]
fn a_wrong_order_is_refused() {
    let file = MemFile::default();
    let options = TableOptions { block_bytes: 64, filter_bits_per_key: 10.0, compression: Compression::None };
    let mut writer = TableWriter::new("test.sst", Box::new(file), options, CTX);
    let at = |seq| Trailer::new(SeqNo(seq), Kind::Put);
    for i in 0..20u8 {
        writer.add(&[i], at(7), &[0; 20]).unwrap();
        for (key, seq) in [(i, 7), (i, 8), (i.saturating_sub(1), 7)] {
            assert_eq!(writer.add(&[key], at(seq), b"").unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    }
    assert_eq!(writer.finish().unwrap().entries, 20);
    let empty = TableWriter::new("test.sst", Box::new(MemFile::default()), options, CTX);
    assert_eq!(empty.finish().unwrap_err().kind(), ErrorKind::InvalidArgument);
}

/// Everything that a reader can see of a file: entries, or the error.
/// A file that notes where each piece lies that it is given.
struct Pieces(MemFile, Arc<Mutex<Vec<Range<u64>>>>);

impl WritableFile for Pieces {
    fn append(&mut self, data: &[u8], ctx: IoCtx) -> io::Result<()> {
        let begin = self.0.bytes();
        self.0.append(data, ctx)?;
        self.1.lock().push(begin..self.0.bytes());
        Ok(())
    }

    fn sync(&mut self, ctx: IoCtx) -> io::Result<()> {
        self.0.sync(ctx)
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }
}

#[test]
fn tables_are_written_in_aligned_pieces() {
    let options = TableOptions { block_bytes: 4096, filter_bits_per_key: 10.0, compression: Compression::None };
    for (force_every_bytes, piece) in [(0, 256 << 10), (40 << 10, 40 << 10), (1 << 20, 256 << 10)] {
        let pieces = Arc::default();
        let file = Pieces(MemFile::default(), Arc::clone(&pieces));
        let mut writer = TableWriter::new("test.sst", Box::new(file), options, CTX).forcing_every(force_every_bytes);
        for n in 0..20_000_u32 {
            let value = vec![1; if n % 5000 == 4999 { 700_000 } else { 100 }];
            writer.add(&n.to_be_bytes(), Trailer::new(SeqNo(1), Kind::Put), &value).unwrap();
        }
        writer.finish().unwrap();
        let pieces = pieces.lock();
        let (last, whole) = pieces.split_last().unwrap();
        assert!(whole.len() > 8, "{pieces:?}");
        assert!(whole.iter().all(|it| it.start % piece == 0 && it.end % piece == 0), "of {piece}: {pieces:?}");
        assert_eq!(last.start % piece, 0, "{pieces:?}");
    }
}

fn everything(bytes: Vec<u8>) -> Result<Vec<Item>> {
    let table = open(bytes, &Arc::new(BlockCache::new(1 << 20)))?;
    let mut out = Vec::new();
    let mut scan = table.scan(4096, CTX);
    scan.seek_first()?;
    while let Some(found) = here(&scan) {
        let ((key, Reverse(trailer)), value) = &found;
        let got = table.get(key, hash(key), Trailer(*trailer).seq())?;
        assert_eq!(got.map(|(t, v)| (t.0, v.to_vec())), Some((*trailer, value.clone())));
        out.push(found);
        scan.next()?;
    }
    table.verify(CTX)?;
    Ok(out)
}

/// A file on a disk with sectors that cannot be read.
struct Sick {
    file: Fixed,
    bad: Vec<u64>,
}

impl ReadableFile for Sick {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64, ctx: IoCtx) -> io::Result<()> {
        let piece = offset..offset + buf.len() as u64;
        if self.bad.iter().any(|at| piece.contains(at)) {
            return Err(io::Error::other("bad sector"));
        }
        self.file.read_exact_at(buf, offset, ctx)
    }

    fn bytes(&self) -> u64 {
        self.file.bytes()
    }
}

/// Verification ended at the first bad block, so nobody could tell what else was lost. And what is read in one piece fails in one piece.
#[test]
fn every_bad_block_is_told_with_its_keys() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let style = below(&mut rng, 5);
        let model = any_model(&mut rng, style, 700, false);
        let (mut bytes, _) = write(&model, any_options(&mut rng));
        let cache = Arc::new(BlockCache::new(1 << 20));
        let table = open(bytes.clone(), &cache).unwrap();
        let fences = &table.parts.fences;
        let bad: BTreeSet<usize> = (0..3).map(|_| below(&mut rng, fences.blocks())).collect();
        let offsets: Vec<u64> = bad.iter().map(|block| fences.handle(*block).offset).collect();
        let damaged = if rng.one_in(2) {
            offsets.iter().for_each(|at| bytes[usize::try_from(*at).unwrap()] ^= 1);
            open(bytes, &cache).unwrap()
        } else {
            let file = Sick { file: Fixed(bytes), bad: offsets.clone() };
            let len = file.bytes();
            let table = Table::open("test.sst", Arc::new(file), SstId(1), len, Arc::clone(&cache), CTX);
            Arc::new(table.unwrap())
        };
        let mut read = 0;
        let flaws = damaged.examine(CTX, &mut |_| {
            read += 1;
            Ok(())
        });
        let flaws = flaws.unwrap();
        let told: Vec<_> = flaws.iter().map(|flaw| flaw.error.offset().unwrap()).collect();
        assert_eq!((told, read), (offsets, fences.blocks()), "seed {seed}");
        let mut scan = table.scan(4096, CTX);
        scan.seek_first().unwrap();
        while let (Some(((key, _), _)), Some((of, _, _))) = (here(&scan), scan.place()) {
            for (block, flaw) in bad.iter().zip(&flaws) {
                let (first, last) = flaw.keys.as_ref().unwrap();
                // Two blocks may have versions of one key.
                let may_be = *first <= key && *last >= key;
                let is_inside = *first < key && *last > key;
                assert!(if of == *block { may_be } else { !is_inside }, "seed {seed}: {key:?} of block {of}");
            }
            scan.next().unwrap();
        }
    }
}

#[test]
fn every_flipped_bit_and_every_truncation_is_noticed() {
    for (seed, compression) in
        [(1, Compression::None), (2, Compression::Lz4), (3, Compression::Zstd), (4, Compression::None)]
    {
        let mut rng = Rng::new(seed);
        let model = any_model(&mut rng, if seed == 4 { 0 } else { 1 }, 24, false);
        let options = TableOptions { block_bytes: 256, filter_bits_per_key: 10.0, compression };
        let (bytes, _) = write(&model, options);
        let expected: Vec<Item> = model.into_iter().collect();
        assert_eq!(everything(bytes.clone()).unwrap(), expected);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let error = everything(bad).expect_err("a flipped bit");
            assert_eq!(error.kind(), ErrorKind::Corruption, "bit {bit}: {error}");
            assert_eq!(error.path(), Some(Path::new("test.sst")));
            assert!(error.offset().is_some());
        }
        for len in 0..bytes.len() {
            assert_eq!(everything(bytes[..len].to_vec()).expect_err("a truncation").kind(), ErrorKind::Corruption);
        }
    }
}

/// Sets right all checksums that cover a changed byte, as an attacker would.
fn repair(bytes: &mut [u8], parts: &[(usize, usize)]) {
    for &(start, end) in parts {
        let sum = crate::sst::codec::crc(&bytes[start..end]);
        bytes[end..end + 4].copy_from_slice(&sum.to_le_bytes());
    }
}

#[test]
fn hostile_files_with_good_checksums_end_in_errors_or_order() {
    for seed in 0..6000 {
        let mut rng = Rng::new(seed);
        let style = below(&mut rng, 4);
        let model = any_model(&mut rng, style, 20, false);
        let options = TableOptions { block_bytes: 256, ..any_options(&mut rng) };
        let (mut bytes, _) = write(&model, options);
        let table = open(bytes.clone(), &Arc::new(BlockCache::new(0))).unwrap();
        let footer = table.parts.footer;
        let mut parts = Vec::new();
        let mut part = |handle: crate::sst::codec::BlockHandle| {
            let start = usize::try_from(handle.offset).unwrap();
            parts.push((start, start + usize::try_from(handle.len).unwrap() + 1));
        };
        (0..table.parts.fences.blocks()).for_each(|i| part(table.parts.fences.handle(i)));
        if footer.filter.len > 0 {
            part(footer.filter);
        }
        part(footer.top_index);
        part(footer.properties);
        // One partition: from the filter's end to the top index.
        let partition = usize::try_from(footer.partitions_at()).unwrap();
        parts.push((partition, usize::try_from(footer.top_index.offset).unwrap() - 4));
        for _ in 0..rng.between(1, 3) {
            let (start, end) = parts[below(&mut rng, parts.len())];
            let at = start + below(&mut rng, end - start);
            bytes[at] = [rng.next_u64().to_le_bytes()[0], 0, 0xff, bytes[at] ^ 1, bytes[at].wrapping_add(1)]
                [below(&mut rng, 5)];
        }
        repair(&mut bytes, &parts);
        let len = bytes.len() as u64;
        let cache = Arc::new(BlockCache::new(1 << 16));
        let Ok(table) = open(bytes, &cache) else { continue };
        for (key, _) in model.keys() {
            let _ = table.get(key, hash(key), SeqNo::MAX);
        }
        let mut cursor = table.cursor();
        let mut steps = 0;
        let mut moved = cursor.seek_first();
        while moved.is_ok() && cursor.entry().is_some() {
            steps += 1;
            assert!(steps <= len, "a walk without end");
            moved = cursor.next();
        }
        if let Err(error) = moved {
            let again = cursor.seek_last().unwrap_err();
            assert_eq!((error.kind(), cursor.entry().is_none()), (again.kind(), true), "errors are sticky");
        }
        let mut scan = table.scan(100, CTX);
        let _ = scan.seek_last();
        while scan.entry().is_some() && scan.prev().is_ok() {}
        for (key, Reverse(trailer)) in model.keys() {
            let _ = table.cursor().seek(key, Trailer(*trailer));
            let _ = table.cursor().seek_before(key, Trailer(*trailer));
        }
        let _ = table.verify(CTX);
    }
}

#[test]
#[ignore = "takes 4 GiB of memory and half a minute"]
fn the_largest_key_and_value_work() {
    let key = vec![0xff; crate::key::MAX_KEY_BYTES];
    let value: Vec<u8> = (0..crate::key::MAX_VALUE_BYTES).map(|i| (i >> 12).to_le_bytes()[0]).collect();
    for compression in [Compression::None, Compression::Lz4] {
        let mut model = Model::new();
        model.insert((b"a".to_vec(), Reverse(Trailer::new(SeqNo(1), Kind::Put).0)), b"small".to_vec());
        model.insert((key.clone(), Reverse(Trailer::new(SeqNo(2), Kind::Put).0)), value.clone());
        let options = TableOptions { block_bytes: 4096, filter_bits_per_key: 10.0, compression };
        let (bytes, _) = write(&model, options);
        drop(model);
        let table = open(bytes, &Arc::new(BlockCache::new(64 << 20))).unwrap();
        let (_, found) = table.get(&key, hash(&key), SeqNo::MAX).unwrap().unwrap();
        assert!(found == value);
        let mut scan = table.scan(256 << 10, CTX);
        scan.seek_last().unwrap();
        assert!(scan.entry().unwrap().value == value);
    }
}

#[test]
fn a_newer_format_is_unsupported_not_corrupt() {
    let mut rng = Rng::new(1);
    let model = any_model(&mut rng, 1, 10, false);
    let (mut bytes, _) = write(&model, any_options(&mut rng));
    let end = bytes.len();
    bytes[end - 12] = u8::try_from(FORMAT_VERSION).unwrap() + 1;
    let mut covered = bytes[end - 96..].to_vec();
    covered[80..84].fill(0);
    let sum = crate::sst::codec::crc(&covered).to_le_bytes();
    bytes[end - 16..end - 12].copy_from_slice(&sum);
    assert_eq!(everything(bytes).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "pins and claims are to be tested under real threads")]
fn readers_share_a_tiny_cache() {
    let mut rng = Rng::new(9);
    let mut model = Model::new();
    for i in 0..3000u32 {
        let value = hash(&i.to_be_bytes()).to_le_bytes().repeat(1 + below(&mut rng, 8));
        model.insert((i.to_be_bytes().to_vec(), Reverse(Trailer::new(SeqNo(1), Kind::Put).0)), value);
    }
    // 17 frames, and blocks that do not fit into one.
    for (frame_bytes, compression) in [(512, Compression::None), (512, Compression::Lz4), (256, Compression::None)] {
        let options = TableOptions { block_bytes: 512, filter_bits_per_key: 0.0, compression };
        let (bytes, _) = write(&model, options);
        let cache = Arc::new(BlockCache::with_frame_bytes(17 * 512, frame_bytes));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (cache, bytes, model) = (&cache, &bytes, &model);
                scope.spawn(move || {
                    let mut rng = Rng::new(thread);
                    for _ in 0..6 {
                        // Tables come and go meanwhile.
                        let table = open(bytes.clone(), cache).unwrap();
                        for _ in 0..1500 {
                            // Skewed, so that blocks are found in the cache as well.
                            let bound = rng.between(1, 3000);
                            let i = u32::try_from(rng.below(bound)).unwrap();
                            let key = i.to_be_bytes();
                            let at = (key.to_vec(), Reverse(Trailer::new(SeqNo(1), Kind::Put).0));
                            if rng.one_in(10) {
                                let mut cursor = table.cursor();
                                cursor.seek(&key, Trailer::seek(SeqNo::MAX)).unwrap();
                                for (k, v) in model.range(at..).take(30) {
                                    assert_eq!(here(&cursor), Some((k.clone(), v.clone())));
                                    cursor.next().unwrap();
                                }
                            } else {
                                let (_, value) = table.get(&key, hash(&key), SeqNo::MAX).unwrap().unwrap();
                                assert_eq!(value, model[&at]);
                            }
                        }
                    }
                });
            }
        });
        let stats = cache.stats();
        assert_eq!((stats.used_bytes, stats.charged_bytes), (0, 0), "{stats:?}");
        assert!(stats.hits > 0 && stats.admitted > 0 && stats.evictions > 0, "{stats:?}");
    }
}
