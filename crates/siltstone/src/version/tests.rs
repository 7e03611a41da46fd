use super::*;
use crate::error::Error;
use crate::io::Rng;
use crate::key::SeqNo;
use crate::num::{to_u64, to_usize};
use bytes::Bytes;

#[test]
fn a_tree_prints_and_parses_back() {
    let drawn = "\
L0  4:a-m:10K
L0  3:c-z:10K:120:7
L1  order=9 1:a-k:20K 2:l-z:20K@seq=1..9,created=5
L3  9:\\x00\\x2d-\\xff:7:5:2@ranges=1,oldest=3,raw=8
L4  7:f-k:4K:9:3@raw=4000,of=a-k:10240:22:8:9000 8:l-m:3K@of=a-z:9216:9:0:9216:5
";
    let version = text::parse(drawn).unwrap();
    assert_eq!(text::print(&version), drawn);
    assert_eq!(version.levels[3].runs[0].files[0].smallest, Bytes::from_static(b"\x00-"));
    assert!(version.levels[2].runs.is_empty());
    assert_eq!(text::parse(&text::print(&version)).unwrap(), version);
}

#[test]
fn broken_trees_are_refused_with_the_law() {
    for (drawn, law) in [
        ("L0 1:b-a:1", "smallest key is above"),
        ("L0 1:a-c:1 2:c-d:1", "overlap"),
        ("L0 1:a-b:1\nL1 1:a-b:1", "twice"),
        ("L0 1:a-b:0", "empty"),
        ("L0 1:a-b:9:1:2", "more tombstones"),
        ("L0 1:a-b:9@seq=3..2", "sequence number"),
        ("L0 1:a-c:9@of=b-d:90:9:0:90", "no slice"),
        ("L0 1:b-d:9@of=b-d:90:9:0:90", "no slice"),
        ("L0 1:c-d:91@of=b-d:90:9:0:90", "no slice"),
        ("L0 1:c-d:9:2:1@of=b-d:90:9:0:90", "no slice"),
        ("L0 1:c-d:9:2:2@of=b-d:90:9:3:90", "no slice"),
        ("L0 1:c-d:9:2@of=b-d:90:9:0", "no table"),
        ("L0 1:c-d:9@of=b-f:90:9:0:90\nL0 2:d-f:9@of=b-f:90:9:0:90:1", "do not agree"),
        ("L0 1:c-d:9@of=b-f:90:9:0:90\nL0 2:e-f:9@of=b-f:91:9:0:90:1", "do not agree"),
        ("L0 1:c-d:9\nL0 2:e-f:9@of=b-f:90:9:0:90:1", "all of a table"),
        ("L0 1:a-b:9@oldest=3", "tombstone that it does not have"),
        ("L0 order=1 1:a-b:1\nL0 order=2 2:a-b:1", "not older"),
        ("L 1:a-b:1", "no level"),
        ("L0 1:a:1", "id:first-last:bytes"),
        ("L0 1:a-b:99999999999999999999", "not a number"),
    ] {
        let error = text::parse(drawn).unwrap_err().to_string();
        assert!(error.contains(law), "{drawn:?} gave {error:?}");
    }
}

#[test]
fn an_edit_moves_files_grows_levels_and_drops_what_is_empty() {
    let before = text::parse("L0 order=5 4:a-m:10K\nL0 order=3 3:c-z:10K\nL1 order=1 1:a-k:20K 2:l-z:20K").unwrap();
    let moved = Arc::clone(before.find(SstId(2)).unwrap().2);
    let edit = VersionEdit {
        removed: vec![(LevelId(0), RunOrder(3), SstId(3)), (LevelId(1), RunOrder(1), SstId(2))],
        added: vec![(LevelId(3), RunOrder(1), moved)],
    };
    let after = before.apply(&edit).unwrap();
    assert_eq!(text::print(&after), "L0  order=5 4:a-m:10K\nL1  order=1 1:a-k:20K\nL3  2:l-z:20K\n");
    let undo = VersionEdit {
        removed: vec![(LevelId(3), RunOrder(1), SstId(2))],
        added: vec![
            (LevelId(1), RunOrder(1), Arc::clone(before.find(SstId(2)).unwrap().2)),
            (LevelId(0), RunOrder(3), Arc::clone(before.find(SstId(3)).unwrap().2)),
        ],
    };
    assert_eq!(after.apply(&undo).unwrap(), before);
    assert_eq!(Version::empty().apply(&VersionEdit::of(&before)).unwrap(), before);
}

#[test]
fn edits_that_break_a_law_are_refused() {
    let before = text::parse("L0 order=5 4:a-m:10K\nL1 order=1 1:a-k:20K 2:l-z:20K").unwrap();
    let file = |drawn: &str| Arc::new(text::parse_file(drawn, RunOrder(1)).unwrap());
    let removed =
        |level, order, id| VersionEdit { removed: vec![(LevelId(level), RunOrder(order), SstId(id))], added: vec![] };
    let added = |level, order, drawn| VersionEdit {
        removed: vec![],
        added: vec![(LevelId(level), RunOrder(order), file(drawn))],
    };
    for (edit, law) in [
        (removed(1, 1, 4), "does not hold"),
        (removed(1, 2, 1), "does not hold"),
        (removed(9, 1, 1), "does not hold"),
        (added(1, 1, "7:k-kk:1"), "overlap"),
        (added(2, 1, "4:a-b:1"), "in the tree"),
        (added(2, 1, "8:b-a:1"), "smallest key"),
    ] {
        let error = before.apply(&edit).unwrap_err().to_string();
        assert!(error.contains(law), "{edit:?} gave {error:?}");
    }
    let twice = VersionEdit { removed: vec![(LevelId(1), RunOrder(1), SstId(1)); 2], added: vec![] };
    assert!(before.apply(&twice).unwrap_err().to_string().contains("twice"));
}

/// Random edits against a plain list of placed files.
#[test]
fn random_edits_agree_with_a_list_of_files() {
    let mut rng = Rng::new(11);
    let mut version = Version::empty();
    let mut model: Vec<(u8, u64, u64, Bytes)> = Vec::new();
    for id in 1..3000u64 {
        let mut edit = VersionEdit::default();
        if !model.is_empty() && rng.one_in(2) {
            for _ in 0..=rng.below(3).min(to_u64(model.len()) - 1) {
                let (level, order, id, _) = model.swap_remove(to_usize(rng.below(to_u64(model.len()))));
                edit.removed.push((LevelId(level), RunOrder(order), SstId(id)));
            }
        }
        let (level, order) = (rng.below(5).to_le_bytes()[0], rng.below(6));
        let key = Bytes::from(format!("{:03}", rng.below(200)));
        if !model.iter().any(|(l, o, _, k)| (*l, *o) == (level, order) && *k == key) {
            let mut file = text::parse_file("1:a-a:100", RunOrder(order)).unwrap();
            (file.id, file.smallest, file.largest) = (SstId(id), key.clone(), key.clone());
            (file.min_seq, file.max_seq) = (SeqNo(id), SeqNo(id));
            edit.added.push((LevelId(level), RunOrder(order), Arc::new(file)));
            model.push((level, order, id, key));
        }
        version = version.apply(&edit).unwrap();
        version.check().unwrap();
        model.sort_by(|a, b| (a.0, std::cmp::Reverse(a.1), &a.3).cmp(&(b.0, std::cmp::Reverse(b.1), &b.3)));
        let listed: Vec<_> = version.files().map(|(l, o, f)| (l.0, o.0, f.id.0, f.smallest.clone())).collect();
        assert_eq!(listed, model);
    }
}

/// Around what an edit touches the same is found as in whole runs and among all files, in the same words, whether the edit is legal or not;
/// and what is kept beside the files is what they come to.
#[test]
fn an_edit_is_refused_for_what_is_broken_anywhere() {
    let mut rng = Rng::new(21);
    let mut version = Version::empty();
    let mut next_id = 1;
    let mut refused = BTreeMap::new();
    for _ in 0..20_000 {
        let placed: Vec<_> = version.files().map(|(level, order, file)| (level, order, Arc::clone(file))).collect();
        let mut edit = VersionEdit::default();
        for (level, order, file) in &placed {
            if rng.one_in(12) {
                // Now and then from where it is not, twice, or one that nobody knows.
                let level = if rng.one_in(60) { LevelId(3) } else { *level };
                let id = if rng.one_in(60) { SstId(next_id + 1) } else { file.id };
                edit.removed.extend(vec![(level, *order, id); if rng.one_in(60) { 2 } else { 1 }]);
            }
        }
        for _ in 0..rng.below(4) {
            let (first, len) = (rng.below(300), rng.below(6));
            let mut file = text::parse_file("1:a-a:100", RunOrder(1)).unwrap();
            (file.id, file.bytes) = (SstId(next_id), rng.between(1, 400));
            next_id += 1;
            file.smallest = Bytes::from(format!("{first:03}"));
            file.largest =
                Bytes::from(format!("{:03}", if rng.one_in(40) { first.saturating_sub(3) } else { first + len }));
            if !placed.is_empty() && rng.one_in(6) {
                // One that the tree has, or had a moment ago.
                let (.., known) = &placed[to_usize(rng.below(to_u64(placed.len())))];
                file.id = known.id;
            }
            if rng.one_in(4) && file.smallest < file.largest {
                file = FileMeta { id: file.id, ..file.slice(file.smallest.clone(), file.smallest.clone(), 1, 2) };
                file.whole =
                    file.whole.map(|whole| Arc::new(Whole { table: SstId(1_000_000 + next_id), ..(*whole).clone() }));
            }
            if rng.one_in(60) {
                file.tombstones = file.entries + 1;
            }
            let level = LevelId(rng.below(3).to_le_bytes()[0]);
            edit.added.push((level, RunOrder(rng.below(2)), Arc::new(file)));
        }
        let cheap = edit::apply_checked(&version, &edit).map_err(|error| error.to_string());
        let whole = apply_and_check_runs(&version, &edit).map_err(|error| error.to_string());
        assert_eq!(cheap, whole, "{edit:?}\n{}", text::print(&version));
        match cheap {
            // What slices of one table say of it is checked nowhere else.
            Ok(next) if next.check().is_ok() => version = next,
            Ok(next) => assert!(next.check().unwrap_err().contains("table"), "{edit:?}"),
            Err(error) => {
                let law = error.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
                *refused.entry(law).or_insert(0) += 1;
                continue;
            }
        }
        for (_, run) in version.runs() {
            assert_eq!(run.bytes(), run.files.iter().map(|file| file.bytes).sum());
            assert_eq!(run.files.has_slices(), run.files.iter().any(|file| file.whole.is_some()));
            assert_eq!(run.files.ids(), run.files.iter().map(|file| file.id).collect::<Vec<_>>());
            assert_eq!(run.files.newest(), run.files.iter().map(|file| file.id).max());
        }
    }
    for law in ["overlap", "smallest key", "more tombstones", "in the tree", "removes file", "hold all"] {
        assert!(refused.keys().any(|refused| refused.contains(law)), "no edit was refused for: {law}");
    }
}

/// What [`edit::apply_checked`] does, by a look at whole runs and at all files.
fn apply_and_check_runs(version: &Version, edit: &VersionEdit) -> Result<Version> {
    let mut next = version.clone();
    edit::change(&mut next, edit)?;
    let places: BTreeSet<_> = edit.added.iter().map(|(level, order, _)| (*level, *order)).collect();
    for (level, order) in places {
        let run = next.levels[level.index()].run(order).unwrap();
        check_run(run).map_err(|law| edit::broken(format!("L{}: run {}: {law}", level.0, order.0)))?;
    }
    let mut added = BTreeSet::new();
    for (_, _, file) in &edit.added {
        if !added.insert(file.id) {
            return Err(Error::invalid(format!("version edit adds file {} twice", file.id.0)));
        }
    }
    let removed: BTreeSet<SstId> = edit.removed.iter().map(|(_, _, id)| *id).collect();
    match version.files().find(|(_, _, file)| added.contains(&file.id) && !removed.contains(&file.id)) {
        Some((_, _, file)) => {
            Err(Error::invalid(format!("version edit adds file {}, which is in the tree", file.id.0)))
        }
        None => Ok(next),
    }
}

/// However often a file is cut, it stays a legal slice of its table, and what decides about deletes is never guessed.
#[test]
fn a_file_is_cut_again_and_again() {
    let mut rng = Rng::new(4);
    for _ in 0..2000 {
        let entries = 1 + rng.below(40);
        let tombstones = [0, entries, rng.below(entries + 1)][to_usize(rng.below(3))];
        let mut file = text::parse_file("1:aaa-zzz:100", RunOrder(1)).unwrap();
        (file.entries, file.tombstones, file.bytes, file.raw_bytes) =
            (entries, tombstones, 1 + rng.below(99), rng.below(99));
        file.oldest_tombstone_ms = (tombstones > 0).then_some(5);
        let table = file.clone();
        for letter in [b'b', b'h', b'q', b'z'] {
            if rng.one_in(3) {
                continue;
            }
            let of = rng.below(50);
            file = file.without_before(Bytes::copy_from_slice(&[letter]), rng.below(60), of);
            super::check_file(&file).unwrap();
            assert_eq!((file.table_bytes(), file.table_entries()), (table.bytes, table.entries));
            assert_eq!(file.table_keys(), (&table.smallest, &table.largest));
            assert_eq!((file.tombstones > 0, file.oldest_tombstone_ms), (tombstones > 0, table.oldest_tombstone_ms));
            assert_eq!(file.is_all_tombstones(), tombstones == entries);
            assert!(file.bytes <= table.bytes && file.dead_bytes() == table.bytes - file.bytes);
        }
    }
}

/// What tables take and what of it no file has, whatever is cut from which side; a manifest's bytes know the table by its number.
#[test]
fn a_table_counts_once_however_many_files_are_slices_of_it() {
    let mut rng = Rng::new(12);
    for _ in 0..500 {
        let table = text::parse_file("1:aa-zz:1000:100@raw=900", RunOrder(1)).unwrap();
        let mut version = Version::empty();
        let (mut alive, mut first) = (0, 0);
        for id in 2..8u64 {
            let (from, to) = (first + rng.below(6), first + 6 + rng.below(6));
            first = to + 1;
            let letter = |n: u64| Bytes::from(format!("b{n:02}"));
            let slice = FileMeta { id: SstId(id), ..table.slice(letter(from), letter(to), rng.below(13), 100) };
            if rng.one_in(3) {
                continue;
            }
            alive += slice.bytes;
            let level = LevelId(rng.below(4).to_le_bytes()[0]);
            let added = vec![(level, RunOrder(id), Arc::new(slice))];
            version = version.apply(&VersionEdit { removed: vec![], added }).unwrap();
        }
        let slices = version.files().count();
        assert_eq!(version.sliced().values().sum::<u64>(), alive);
        assert!(version.files().all(|(_, _, file)| file.table() == SstId(1) && file.table_bytes() == 1000));
        assert_eq!(version.dead_bytes().iter().sum::<u64>(), if slices == 0 { 0 } else { 1000 - alive });
        let newest = version.files().next().map(|(level, _, _)| level.index());
        assert!(newest.is_none_or(|level| alive == 1000 || version.dead_bytes()[level] > 0));
        assert_eq!(text::parse(&text::print(&version)).unwrap(), version);
    }
}
