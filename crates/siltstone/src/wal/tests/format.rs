//! The bytes of the format, and hostile ones.

use super::super::header::{Identity, Link, Mark, PAGE, Part};
use super::super::record::{BODY_HEADER, BadBody};
use super::*;
use crate::frame::{Frame, FrameReader, crc32c, seal};
use crate::io::OpenOptions;
use crate::num::{to_u64, to_usize};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Format 1, byte for byte: what `docs/format/wal.md` says. A change here needs a new format version.
#[test]
fn format_1_does_not_change() {
    assert_eq!(crc32c(0, b"123456789"), 0xe306_9283, "CRC-32C");
    assert_eq!(crc32c(crc32c(0, b"1234"), b"56789"), 0xe306_9283, "a continued checksum is that of the whole");
    let fs = new_fs(1);
    let (mut writer, shared) = LogWriter::open(config(&fs, 0x0102_0304_0506_0708), &ReplaySummary::default()).unwrap();
    let end = writer.append_put(SeqNo(7), KeyspaceId(2), b"key", b"value").unwrap();
    shared.sync_to(end).unwrap();
    let mut payload = Vec::new();
    encode_record(&mut payload, KeyspaceId(300), Kind::Delete, b"k", b"");
    encode_record(&mut payload, KeyspaceId(0), Kind::Put, b"", b"v");
    writer.append_batch(SeqNo(8), 2, &payload).unwrap();
    let bytes = fs.read_all(dir().join("000001.log")).unwrap();
    assert_eq!(bytes.len(), 8192);
    let parts = [&bytes[..32], &bytes[512..576], &bytes[1024..1072], &bytes[1536..1568], &bytes[4096..4160]];
    assert_eq!(parts.map(hex), EXPECTED);
    assert!(bytes[4160..].iter().all(|&byte| byte == 0));
}

const EXPECTED: [&str; 5] = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "53696c744c6f670a0100000000000000025717510000000000000000000000000100000000000000002000000000000008070605040302015b1a3d6000000000",
    "0000000000000000000000000000000000000000000000000000000003000000e8df207497010000f3ffe1f100000000",
    "01000000000000001c1000000000000000000000000000003987bbc500000000",
    "bbe1a0901400000001070000000000000102036b65790576616c75654c53be4d1400000002080000000000000200ac02016b0001000001760000000000000000",
];

#[test]
fn header_parts_come_back_and_any_flip_is_seen() {
    let identity = Identity { store_id: STORE, segment: SegmentId(7), bytes: 8192, nonce: 99 };
    let (mut page, seed) = identity.encode();
    assert_eq!(Identity::decode(&page), Ok((identity, seed)));
    assert_eq!((Link::decode(&page, seed), Mark::newest(&page, seed)), (Part::Absent, Mark::default()));
    let before = Tail { segment: SegmentId(6), len: 5000, chain: 77 };
    let link = Link { before, synced_to: 4500, decided: true, began_ms: 1234 };
    let bytes = link.encode(seed);
    page[1024..1024 + bytes.len()].copy_from_slice(&bytes);
    assert_eq!(Link::decode(&page, seed), Part::Valid(link));
    assert_eq!(Link::decode(&page, seed + 1), Part::Damaged, "a link of another segment");
    for generation in 1..4 {
        let mark = Mark { generation, synced_to: 4096 + generation, end: 0 };
        let bytes = mark.encode(seed);
        page[mark.slot()..mark.slot() + bytes.len()].copy_from_slice(&bytes);
        assert_eq!(Mark::newest(&page, seed), mark);
    }
    // The newest slot is damaged: the one before counts.
    page[1536] ^= 1;
    assert_eq!(Mark::newest(&page, seed).generation, 2);
    for bit in 512 * 8..(512 + 60) * 8 {
        let mut flipped: [u8; PAGE] = page;
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(Identity::decode(&flipped).is_err(), "bit {bit}");
    }
}

/// Bodies behind a valid checksum that no version wrote: refused, without a panic or a large allocation.
#[test]
fn hostile_bodies_are_refused() {
    let end = LogPos { segment: SegmentId(1), offset: 9 };
    let header = |kind: u8, seq: u64| (seq << 8 | u64::from(kind)).to_le_bytes().to_vec();
    let body = |kind: u8, seq: u64, rest: &[u8]| [header(kind, seq), rest.to_vec()].concat();
    for (bytes, bad) in [
        (vec![1; BODY_HEADER - 1], "header"),
        (body(2, 1, &[]), "count"),
        (body(2, 1, &[0]), "count"),
        (body(2, 1, &[0xff, 0xff, 0xff, 0xff, 0x0f]), "malformed"),
        (body(2, SeqNo::MAX.0, &[2, 1, 0, 0, 0, 1, 0, 0, 0]), "count"),
        (body(1, 1, &[1, 0, 0xff, 0xff, 0x7f]), "malformed"),
        (body(1, 1, &[1, 0, 1, b'k', 0, 9]), "after the last"),
        (body(1, 1, &[9, 0, 0, 0]), "malformed"),
        (body(1, 1, &[1, 0xff, 0xff, 0xff, 0xff, 0x7f, 0, 0]), "malformed"),
    ] {
        match RecordIter::of_body(&bytes, end, 0) {
            Err(BadBody::Malformed(what)) => assert!(what.contains(bad), "{bytes:?}: {what}"),
            other => panic!("{bytes:?}: {other:?}"),
        }
    }
    assert!(matches!(RecordIter::of_body(&body(3, 1, &[0, 0]), end, 0), Err(BadBody::Unknown(_))));
    let mut rng = Rng::new(5);
    for _ in 0..20_000 {
        let mut bytes = body(1 + rng.below(2).to_le_bytes()[0], rng.below(1000), &[]);
        bytes.extend((0..rng.below(40)).map(|_| rng.below(6).to_le_bytes()[0]));
        if let Ok((_, records)) = RecordIter::of_body(&bytes, end, 0) {
            assert_eq!(to_usize(u64::from(records.count_left())), records.count());
        }
    }
}

/// The reader of frames against random lengths and damage: bodies come back in order up to the damage.
#[test]
fn frames_are_valid_only_in_their_place() {
    let mut rng = Rng::new(8);
    for round in 0..300u64 {
        let fs = new_fs(round);
        let path = dir().join("frames");
        let (mut file, mut chain, mut bodies) = (vec![0xaa; 16], 5u32, Vec::new());
        for _ in 0..rng.between(1, 8) {
            let len = if rng.one_in(10) { rng.between(200_000, 700_000) } else { rng.between(1, 50) };
            let mut frame = vec![rng.next_u64().to_le_bytes()[0]; 8 + usize::try_from(len).unwrap()];
            chain = seal(&mut frame, chain);
            bodies.push((file.len(), frame[8..].to_vec()));
            file.extend_from_slice(&frame);
        }
        let damaged_at = rng.one_in(2).then(|| to_usize(rng.between(16, to_u64(file.len()) - 1)));
        if let Some(at) = damaged_at {
            file[at] ^= 1 << rng.below(8);
        }
        fs.write_all(&path, &file).unwrap();
        let open = fs.open(&path, OpenOptions::default(), CTX).unwrap();
        let mut frames = FrameReader::new(open, &path, 16, to_u64(file.len()), 5, CTX);
        let mut read = 0;
        while let Frame::Body(body) = frames.next().unwrap() {
            assert_eq!(body, bodies[read].1);
            read += 1;
        }
        let intact = bodies.iter().filter(|(at, body)| damaged_at.is_none_or(|d| at + 8 + body.len() <= d)).count();
        assert_eq!(read, intact);
        // Two equal frames that change places: the chain notices.
        let mut seeded = FrameReader::new(
            fs.open(&path, OpenOptions::default(), CTX).unwrap(),
            &path,
            16,
            to_u64(file.len()),
            6,
            CTX,
        );
        assert!(matches!(seeded.next().unwrap(), Frame::Torn(_) | Frame::End));
    }
}
