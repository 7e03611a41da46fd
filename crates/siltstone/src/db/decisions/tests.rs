use super::*;
use crate::compaction::{Action, Candidate, DecisionInput, DecisionRecord, Ended, Ending, Reason};
use crate::io::Rng;
use crate::io::sim::{SimClock, SimFs};
use crate::version::SstId;

/// A decision with something in every field.
fn decision(rng: &mut Rng, job: u64) -> Decision {
    let text = |rng: &mut Rng| "näme ".repeat(usize::try_from(rng.below(4)).unwrap());
    let reason = match rng.below(4) {
        0 => Reason::Rule(usize::try_from(rng.below(9)).unwrap()),
        1 => Reason::Layout,
        2 => Reason::Manual,
        _ => Reason::Policy(text(rng)),
    };
    let ending = match rng.below(3) {
        0 => Ending::Done,
        1 => Ending::Cancelled(text(rng)),
        _ => Ending::Failed(text(rng)),
    };
    let candidate = |rng: &mut Rng| Candidate {
        file: SstId(rng.next_u64()),
        runs: u32::try_from(rng.below(5)).unwrap(),
        scores: (0..rng.below(3)).map(|n| if n == 0 { rng.unit() } else { f64::INFINITY }).collect(),
        chosen: rng.one_in(2),
        blocked: rng.one_in(2),
    };
    let input = |rng: &mut Rng| DecisionInput {
        level: 3,
        run: rng.next_u64(),
        files: rng.below(500),
        bytes: rng.next_u64(),
        ids: (0..rng.below(16)).collect(),
    };
    Decision {
        job,
        keyspace: KeyspaceId(u32::try_from(rng.below(3)).unwrap()),
        strategy: text(rng),
        started_ms: rng.next_u64(),
        action: [Action::Merge, Action::Move, Action::Drop][usize::try_from(rng.below(3)).unwrap()],
        from_level: 1,
        to_level: 2,
        to_run: rng.next_u64(),
        inputs: (0..rng.below(4)).map(|_| input(rng)).collect(),
        record: DecisionRecord {
            candidates: (0..rng.below(17)).map(|_| candidate(rng)).collect(),
            candidates_total: 1000,
            read_bytes: rng.next_u64(),
            write_bytes: 7,
            ..DecisionRecord::new(reason, text(rng), rng.unit(), 0.5)
        },
        predicted_ns: rng.one_in(2).then(|| rng.below(1000)),
        ended: Some(Ended {
            ending,
            bytes_read: rng.next_u64(),
            bytes_written: 1,
            bytes_linked: rng.below(3) * 1000,
            files_out: 2,
            entries_read: 3,
            entries_written: 4,
            dropped_versions: 5,
            dropped_tombstones: 6,
            took_ns: 7,
            cpu_ns: 8,
            io_ns: rng.next_u64(),
            spans: rng.between(1, 64),
        }),
    }
}

fn file_of(decisions: &[Decision]) -> Vec<u8> {
    let mut bytes = header();
    let mut chain = crc32c(0, &bytes);
    for decision in decisions {
        chain = put_frame(&mut bytes, decision, chain);
    }
    bytes
}

fn read_back(bytes: &[u8]) -> Vec<Decision> {
    let fs = SimFs::new(&SimClock::new(), 1);
    fs.create_dir_all(Path::new("/s"), CTX).unwrap();
    fs.write_all("/s/DECISIONS", bytes).unwrap();
    let mut decisions: Vec<Decision> =
        read(&fs, Path::new("/s")).into_values().flatten().map(|decision| (*decision).clone()).collect();
    decisions.sort_by_key(|decision| decision.job);
    decisions
}

#[test]
fn decisions_come_back() {
    let mut rng = Rng::new(1);
    let decisions: Vec<_> = (0..200).map(|job| decision(&mut rng, job)).collect();
    assert_eq!(read_back(&file_of(&decisions)), decisions);
    assert_eq!(read_back(&[]), []);
    // A frame of a later version's kind is skipped, the next one is read.
    let mut bytes = file_of(&decisions[..1]);
    let chain = u32::from_le_bytes(bytes[HEADER..HEADER + 4].try_into().unwrap());
    let start = bytes.len();
    bytes.extend([0; FRAME_HEADER]);
    bytes.extend([77, 1, 2, 3]);
    let chain = seal(&mut bytes[start..], chain);
    put_frame(&mut bytes, &decisions[1], chain);
    assert_eq!(read_back(&bytes), decisions[..2]);
}

#[test]
fn whatever_is_damaged_the_decisions_before_it_are_shown() {
    let mut rng = Rng::new(2);
    let decisions: Vec<_> = (0..4).map(|job| decision(&mut rng, job)).collect();
    let bytes = file_of(&decisions);
    let ends: Vec<usize> = (0..=4).map(|n| file_of(&decisions[..n]).len()).collect();
    for cut in 0..bytes.len() {
        let whole = ends.iter().skip(1).filter(|end| **end <= cut).count();
        assert_eq!(read_back(&bytes[..cut]), decisions[..whole], "cut at {cut}");
        let mut damaged = bytes.clone();
        damaged[cut] ^= 1 << rng.below(8);
        let before = ends.iter().skip(1).filter(|end| **end <= cut).count();
        assert_eq!(read_back(&damaged), decisions[..before], "damaged at {cut}");
    }
    // A valid checksum over a body that is none: hostile, not torn.
    let mut body = Vec::new();
    codec::put(&mut body, &decisions[0]);
    // The last byte for each candidate, what was linked and the number of spans are missing in older files.
    let linked = if decisions[0].ended.as_ref().unwrap().bytes_linked < 128 { 1 } else { 2 };
    let required = body.len() - decisions[0].record.candidates.len() - linked - 1;
    for cut in 0..body.len() {
        assert_eq!(codec::take(&body[..cut]).is_none(), cut < required, "{cut}");
        let mut hostile = body.clone();
        hostile[cut] = 0xff;
        let _ = codec::take(&hostile);
    }
}

#[test]
fn a_ring_is_bounded() {
    let mut rng = Rng::new(3);
    let decisions: Vec<_> = (0..10).map(|job| Arc::new(decision(&mut rng, job))).collect();
    let jobs = |kept| Ring::new(kept, decisions.clone()).iter().map(|decision| decision.job).collect::<Vec<_>>();
    assert_eq!((jobs(3), jobs(0), jobs(100).len()), (vec![7, 8, 9], vec![], 10));
}
