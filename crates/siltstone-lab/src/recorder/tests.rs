use std::collections::BTreeMap;

use serde_json::Value;
use siltstone::io::sim::Device;
use siltstone::io::{RealClock, Rng};
use siltstone::{Db, Env, Options};

use super::*;
use crate::load::{SimWorld, World};

/// A file as a line of `tree.jsonl` has it, by keyspace and number.
type Files = BTreeMap<(String, u64), Value>;

/// The trees after all lines, each of which must fit what was there before it.
fn replayed(lines: &str) -> Files {
    let mut files = Files::new();
    let mut last_s = 0.0;
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let keyspace = line["keyspace"].as_str().unwrap();
        assert!(line["at_s"].as_f64().unwrap() >= last_s);
        last_s = line["at_s"].as_f64().unwrap();
        for id in line["removed"].as_array().unwrap() {
            assert!(files.remove(&(keyspace.to_owned(), id.as_u64().unwrap())).is_some(), "{id} was not there");
        }
        for file in line["added"].as_array().unwrap() {
            let before = files.insert((keyspace.to_owned(), file["id"].as_u64().unwrap()), file.clone());
            assert!(before.is_none(), "{file} was there");
        }
    }
    files
}

fn trees(db: &Db) -> Files {
    let mut files = Files::new();
    for name in db.list_keyspaces() {
        for level in db.keyspace(&name).unwrap().tree().levels {
            for run in level.runs {
                for file in run.files {
                    let added = AddedFile::new(LevelId(level.level), RunOrder(run.order), &file);
                    files.insert((name.clone(), file.id.0), serde_json::to_value(added).unwrap());
                }
            }
        }
    }
    files
}

fn options(strategy: &str) -> Options {
    let mut options = Options::default();
    options.keyspace.strategy = strategy.to_owned();
    options.keyspace.may_lose_oldest = true;
    options.keyspace.memtable_bytes = 16 << 10;
    options.keyspace.file_bytes = 16 << 10;
    options
}

/// Puts, deletes and an ingestion at random, in two keyspaces.
fn write_at_random(db: &Db, recorder: &TreeRecorder, seed: u64, spend: &dyn Fn()) {
    let other = db.create_keyspace("other", db.default_keyspace().options()).unwrap();
    let keyspaces = [db.default_keyspace(), other];
    keyspaces.iter().for_each(|keyspace| recorder.name(keyspace.id(), keyspace.name()));
    let mut rng = Rng::new(seed);
    for n in 0..9_000u64 {
        let keyspace = &keyspaces[usize::from(rng.below(4) == 0)];
        let key = format!("{:05}", rng.below(4_000));
        if rng.below(8) == 0 {
            keyspace.delete(&key).unwrap();
        } else {
            keyspace.put(&key, [b'v'; 60]).unwrap();
        }
        if n == 5_000 {
            keyspaces[0].ingest((0..500).map(|n| (format!("{n:05}i"), "ingested"))).unwrap();
        }
        spend();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
}

/// What a simulated trial under `strategy` records, and the trees that its store has in the end.
fn simulated(strategy: &str, folder: &Path) -> (String, String, Files) {
    let device = Device { bandwidth_bytes_per_s: 20_000_000, latency_ns: 50_000, ..Device::default() };
    let world = SimWorld::new(device, 20_000, 1);
    let recorder = Arc::new(TreeRecorder::create(folder, world.clock()).unwrap());
    let db = world.open(&options(strategy), Some(Arc::clone(&recorder) as Arc<dyn EventListener>)).unwrap();
    write_at_random(&db, &recorder, 7, &|| world.spend());
    let trees = trees(&db);
    db.close().unwrap();
    recorder.finish().unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    (read(TREE_FILE), read(COMPACTIONS_FILE), trees)
}

#[test]
fn the_recorded_changes_make_the_tree_under_every_strategy() {
    for strategy in siltstone::compaction::strategies().iter().map(|preset| preset.name) {
        let folder = tempfile::tempdir().unwrap();
        let (tree, compactions, trees) = simulated(strategy, folder.path());
        assert_eq!(replayed(&tree), trees, "{strategy}");
        let jobs: Vec<Value> = compactions
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .filter(|line| line["kind"] != "flush")
            .map(|line| line["decision"]["job"].clone())
            .collect();
        assert!(compactions.lines().count() > jobs.len(), "{strategy}: flushes are listed");
        for line in tree.lines() {
            let cause = &serde_json::from_str::<Value>(line).unwrap()["cause"];
            assert!(cause.is_null() || jobs.contains(cause), "{strategy}: no record of job {cause}");
        }
    }
}

#[test]
fn a_simulated_trial_records_the_same_bytes_again() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [first, second] = folders.each_ref().map(|folder| simulated("leveldb", folder.path()));
    assert!(first.0.lines().count() > 20);
    assert!(first == second);
}

#[test]
fn threads_that_tell_out_of_order_are_put_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let records = tempfile::tempdir().unwrap();
    let recorder = Arc::new(TreeRecorder::create(records.path(), Arc::new(RealClock)).unwrap());
    let listener = Some(Arc::clone(&recorder) as Arc<dyn EventListener>);
    let db = Db::open_with(folder.path(), options("leveldb"), Env { listener, ..Env::default() }).unwrap();
    write_at_random(&db, &recorder, 3, &|| ());
    let trees = trees(&db);
    db.close().unwrap();
    recorder.finish().unwrap();
    assert_eq!(replayed(&std::fs::read_to_string(records.path().join(TREE_FILE)).unwrap()), trees);

    // The same with every pair of neighbours swapped: as if each were told by another thread.
    let [swapped, compactions] = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
    let recorder = TreeRecorder::new(
        Box::new(swapped.try_clone().unwrap()),
        Box::new(compactions),
        Arc::new(RealClock) as Arc<dyn Clock>,
    );
    let change = |number: u64| Event::TreeChanged {
        keyspace: KeyspaceId(0),
        number,
        job: Some(number),
        edit: Arc::new(VersionEdit::default()),
    };
    for number in [2, 1, 4, 3] {
        recorder.event(&change(number));
    }
    recorder.finish().unwrap();
    let lines = read_from_start(swapped);
    let causes: Vec<u64> =
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["cause"].as_u64().unwrap()).collect();
    assert_eq!(causes, [1, 2, 3, 4]);
}

fn read_from_start(mut file: std::fs::File) -> String {
    use std::io::{Read, Seek};
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn keys_are_cut_and_hex() {
    assert_eq!(key_hex(b"a\xff"), "61ff");
    assert_eq!(key_hex(&[0x10; 40]), "10".repeat(KEY_BYTES));
}
