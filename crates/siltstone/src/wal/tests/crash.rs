//! Power cuts at every operation, once and again during or after recovery: replay gives a prefix that holds all that was promised.

use super::*;
use crate::io::sim::{CrashImages, Profile};
use crate::num::{to_u64, to_usize};

/// Units, and where each of them ends.
type History = (Vec<Unit>, Vec<LogPos>);

/// A log in use, and everything a checker must know about each moment of its life.
struct World {
    fs: SimFs,
    log: Option<(LogWriter, Arc<LogShared>)>,
    units: Vec<Unit>,
    ends: Vec<LogPos>,
    /// (operation count, units appended): promised against a killed process from then on.
    appended: Vec<(u64, usize)>,
    /// (operation count, units synced): promised against a power cut from then on.
    synced: Vec<(u64, usize)>,
    /// (operation count, floor).
    floors: Vec<(u64, SegmentId)>,
}

impl World {
    /// A log that begins with `units`, all of them durable, as the next session of a store that was found so.
    fn after(fs: SimFs, (units, ends): History, summary: &ReplaySummary, floor: SegmentId, nonce: u64) -> World {
        fs.record_ops(true);
        let log = LogWriter::open(config(&fs, nonce), summary).unwrap();
        // What a killed process left is durable only once the log is open again.
        let synced = vec![(0, 0), (fs.op_count(), units.len())];
        let appended = vec![(0, units.len())];
        World { fs, log: Some(log), ends, appended, synced, floors: vec![(0, floor)], units }
    }

    fn run(&mut self, steps: u64, rng: &mut Rng) {
        for _ in 0..steps {
            self.step(rng);
        }
    }

    fn step(&mut self, rng: &mut Rng) {
        let (writer, shared) = self.log.as_mut().unwrap();
        match rng.below(20) {
            0..=11 => {
                let first = self.units.last().map_or(SeqNo(1), Unit::next_seq);
                // Some sequence numbers never reach the log.
                let first = SeqNo(first.0 + rng.below(2));
                let max_value = if rng.one_in(8) { 5000 } else { 300 };
                let unit = Unit::random(first, rng, max_value);
                self.ends.push(unit.append(writer).unwrap());
                self.units.push(unit);
                self.appended.push((self.fs.op_count(), self.units.len()));
            }
            12..=14 => {
                if let Some(i) = (!self.units.is_empty()).then(|| to_usize(rng.below(to_u64(self.units.len())))) {
                    shared.sync_to(self.ends[i]).unwrap();
                    self.synced.push((self.fs.op_count(), i + 1));
                }
            }
            15..=16 => drop(shared.prepare().unwrap()),
            17 => {
                let segments = shared.segments();
                let old = self.floors.last().unwrap().1;
                let floor = segments.iter().copied().find(|id| *id > old && *id <= shared.end().segment);
                if let Some(floor) = floor.filter(|_| rng.one_in(3)) {
                    // The manifest that holds the floor is durable before anything is removed.
                    self.floors.push((self.fs.op_count(), floor));
                    shared.remove_before(floor).unwrap();
                }
            }
            18 => {
                let (mut writer, _) = self.log.take().unwrap();
                if rng.one_in(2) {
                    writer.close().unwrap();
                    self.synced.push((self.fs.op_count(), self.units.len()));
                }
                drop(writer);
                // The process dies, the system lives: nothing is missing.
                let floor = self.floors.last().unwrap().1;
                let (units, summary) = read(&self.fs, floor, Recovery::Strict).unwrap();
                assert!(self.units.ends_with(&units));
                let kept = self.ends.iter().filter(|end| end.segment >= floor).count();
                assert!(units.len() >= kept, "{} of {kept} units", units.len());
                self.log = Some(LogWriter::open(config(&self.fs, rng.next_u64()), &summary).unwrap());
                self.synced.push((self.fs.op_count(), self.units.len()));
            }
            _ => {
                let end = writer.end();
                shared.sync_to(end).unwrap();
                self.synced.push((self.fs.op_count(), self.units.len()));
            }
        }
    }

    /// Checks what is found on the disk after a power cut behind operation `ops`; returns it.
    fn check(&self, fs: &SimFs, ops: u64, profile: Profile) -> (History, ReplaySummary, SegmentId) {
        let at = |moments: &[(u64, usize)]| moments.iter().filter(|(op, _)| *op <= ops).map(|(_, n)| *n).max().unwrap();
        let promised = if profile == Profile::Kill { at(&self.appended) } else { at(&self.synced) };
        let floor = self.floors.iter().rev().find(|(op, _)| *op <= ops).unwrap().1;
        let before = fs.calls();
        let (found, summary) = read(fs, floor, Recovery::Strict).unwrap_or_else(|error| {
            panic!("{profile:?} after {ops} operations, floor {floor:?}: {error}; {:?}", fs.files())
        });
        assert!(fs.calls() > before);
        // What the floor cuts off is in tables: it counts as found.
        let cut = self.ends.iter().filter(|end| end.segment < floor).count();
        let skipped = match found.first() {
            Some(first) => self.units.iter().position(|unit| unit.first == first.first).unwrap(),
            None => cut,
        };
        assert!(skipped <= cut, "{profile:?} after {ops} operations: begins with unit {skipped}, {cut} are cut off");
        let have = (skipped + found.len()).max(cut);
        assert_eq!(found, self.units[skipped..skipped + found.len()], "{profile:?} after {ops} operations");
        assert!(have >= promised, "{profile:?} after {ops} operations: {have} units, {promised} promised, {summary:?}");
        ((self.units[..have].to_vec(), self.ends[..have].to_vec()), summary, floor)
    }
}

fn crash_everywhere(seed: u64, steps: u64, depth: u32) -> (u64, u64) {
    let mut rng = Rng::new(seed);
    let mut world =
        World::after(new_fs(seed), History::default(), &ReplaySummary::default(), SegmentId(0), rng.next_u64());
    world.run(steps, &mut rng);
    let (mut points, mut torn) = (0, 0);
    for profile in Profile::ALL {
        for image in CrashImages::new(&world.fs, profile, rng.next_u64()) {
            let (history, summary, floor) = world.check(&image.fs, image.ops, profile);
            points += 1;
            torn += u64::from(summary.torn.is_some());
            if rng.one_in(30) {
                crash_again(image.fs, history, &summary, floor, &mut rng, depth);
            }
        }
    }
    (points, torn)
}

/// The next session on what a crash left, and a crash at every operation of it.
fn crash_again(fs: SimFs, history: History, summary: &ReplaySummary, floor: SegmentId, rng: &mut Rng, depth: u32) {
    let mut world = World::after(fs, history, summary, floor, rng.next_u64());
    world.run(rng.between(1, 12), rng);
    for profile in Profile::ALL {
        for image in CrashImages::new(&world.fs, profile, rng.next_u64()) {
            let (history, summary, floor) = world.check(&image.fs, image.ops, profile);
            if depth > 0 && rng.one_in(30) {
                crash_again(image.fs, history, &summary, floor, rng, depth - 1);
            }
        }
    }
}

#[test]
fn a_crash_at_every_operation_leaves_a_prefix_with_all_that_was_promised() {
    let (mut points, mut torn) = (0, 0);
    for seed in 0..8 {
        let (p, t) = crash_everywhere(seed, 60, 1);
        (points, torn) = (points + p, torn + t);
    }
    assert!(points > 2_000 && torn > 100, "{points} crash points, {torn} with a torn tail");
}
