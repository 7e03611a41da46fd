//! `siltstone run` and `siltstone trial` as a user runs them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::room::{Room, wait_for};

/// A room with a workload.
fn room() -> Room {
    let room = Room::new();
    room.write("mine.toml", SPEC);
    room
}

const SPEC: &str = r#"
name = "mine"
records = 4000

[[phase]]
name = "load"
operations = "100%"
mix = [{ do = "insert" }]

[[phase]]
name = "mix"
operations = "200%"
mix = [
    { do = "get", share = 0.4 },
    { do = "update", share = 0.4 },
    { do = "delete", share = 0.1 },
    { do = "scan", share = 0.1, length = 10 },
]
"#;

/// All files of a results folder but those that may differ.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut open = vec![folder.to_owned()];
    while let Some(from) = open.pop() {
        for entry in fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.file_name().is_some_and(|name| name != "machine.json") {
                files.insert(path.strip_prefix(folder).unwrap().to_owned(), fs::read(path).unwrap());
            }
        }
    }
    files
}

/// Issue 6, acceptance 5: the process is killed while trials are under way, several times, and the files in the end are those of an undisturbed run.
#[test]
fn a_run_that_is_killed_and_resumed_gives_the_same_files() {
    let room = room();
    let ask = "run ./mine.toml --strategy leveling,tiering --repeat 3 --world sim -q --set workload.records=6000";
    room.said(&format!("{ask} --out whole --jobs 2"));
    let expected = files(&room.path("whole"));
    assert_eq!(expected.len(), 3 + 6 * 5, "{:?}", expected.keys());

    let partial = |name: &str| room.path("broken/trials").join(name);
    let killed_thrice = || {
        let _ = fs::remove_dir_all(room.path("broken"));
        let mut flag = "";
        for victim in [".leveling-1.partial", ".leveling-3.partial", ".tiering-2.partial"] {
            let mut child = room.command(&format!("{ask} --out broken --jobs 1 {flag}")).spawn().unwrap();
            let is_under_way = || partial(victim).join("tree.jsonl").exists();
            wait_for(victim, || is_under_way() || child.try_wait().unwrap().is_some());
            child.kill().unwrap();
            if child.wait().unwrap().code().is_some() {
                return false;
            }
            assert!(!room.path("broken/rows.jsonl").exists());
            flag = "--resume";
        }
        true
    };
    // On a machine that has no time for this process, the child may be done before it is killed.
    assert!((0..5).any(|_| killed_thrice()));
    // The question is in the folder.
    let rows: Value = serde_json::from_str(&room.said("run --resume --out broken --json -q")).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 6);
    assert!(files(&room.path("broken")) == expected);
}

#[test]
fn trials_can_be_spread_and_gathered() {
    let room = room();
    let plan = room.said("run ./mine.toml --strategy leveling,tiering --plan spread");
    assert_eq!(plan.lines().count(), 2, "{plan}");
    for line in plan.lines() {
        room.said(line.strip_prefix("siltstone ").unwrap());
    }
    let shown = room.said("run --resume --out spread --html report.html");
    assert!(shown.contains("WA") && shown.contains("mix, scan, tiering") && shown.contains("disk world"), "{shown}");
    assert!(fs::read_to_string(room.path("report.html")).unwrap().contains("tiering"));
    let trial = room.path("spread/trials/tiering-1");
    assert_eq!(fs::read_dir(&trial).unwrap().count(), 6, "the store is gone");
    let machine: Value = serde_json::from_slice(&fs::read(trial.join("machine.json")).unwrap()).unwrap();
    assert!(machine["before"]["probes"]["disk_sync_ns"].as_u64().unwrap() > 0, "{machine}");
    let task = fs::read_to_string(room.path("spread/tasks/tiering-1.json")).unwrap();
    assert_eq!(fs::read_to_string(trial.join("trial.json")).unwrap(), task);
    // There already: nothing to do.
    room.said("trial spread/tasks/tiering-1.json spread/trials/tiering-1");
    assert!(room.gives_up("trial spread/tasks/leveling-1.json spread/trials/tiering-1").contains("another trial"));
    fs::write(room.path("task.json"), task.replace("\"format\": 1", "\"format\": 9")).unwrap();
    assert!(room.gives_up("trial task.json out").contains("format is 9"));
    assert!(!room.path("out").exists() && !room.path(".out.partial").exists());
}

/// Without SPEC the folder's own commit stood in the question, so another build did the rest and its figures stood under the first one's commit.
#[test]
fn another_build_gathers_what_is_finished_and_does_none_of_the_rest() {
    let room = room();
    let mine = room.said("run ./mine.toml --strategy leveling,tiering --world sim -q --json --out out");
    let of_another_build = |name: &str| {
        let mut file: Value = serde_json::from_slice(&fs::read(room.path(name)).unwrap()).unwrap();
        file["commit"] = "another".into();
        file["siltstone_version"] = "0.0.1".into();
        room.write(name, file.to_string());
    };
    for name in ["out/run.json", "out/trials/leveling-1/trial.json", "out/trials/tiering-1/trial.json"] {
        of_another_build(name);
    }
    fs::remove_file(room.path("out/rows.jsonl")).unwrap();
    assert_eq!(room.said("run --resume --out out -q --json"), mine);
    fs::rename(room.path("out/trials/tiering-1"), room.path("tiering-1")).unwrap();
    let error = room.gives_up("run --resume --out out -q");
    assert!(error.contains("tiering-1 is open") && error.contains("0.0.1"), "{error}");
    assert!(!room.path("out/trials/tiering-1").exists());
    assert!(room.gives_up("trial tiering-1/trial.json out/trials/tiering-1").contains("0.0.1"));
}

#[test]
fn wrong_questions_are_refused() {
    let room = room();
    room.said("run ./mine.toml --strategy tiering --world sim -q");
    assert!(room.path("siltstone-mine/rows.csv").exists());
    room.said("run ./mine.toml --strategy tiering --world sim -q --resume");
    room.said("run ./mine.toml --strategy tiering --world sim -q");
    assert!(room.path("siltstone-mine-2/rows.csv").exists(), "without --out a new folder each time");
    let other = room.gives_up("run ./mine.toml --strategy tiering --world sim -q --resume --set workload.records=5000");
    assert!(other.contains("records = 4000") && other.contains("records = 5000"), "{other}");
    // Without SPEC the folder's question is asked again, with what else is given.
    let resume = "run --resume --out siltstone-mine -q";
    room.said(&format!(
        "{resume} --strategy tiering --world sim --repeat 1 --set workload.records=4000 --set device.iops=0"
    ));
    for (wrong, there) in [
        ("--repeat 2", "repeat"),
        ("--world disk", "world"),
        ("--strategy leveling", "strategies"),
        ("--set workload.records=5000", "records = 4000"),
        ("--set keyspace.size_ratio=3", "size_ratio = 3"),
        ("--set device.iops=7", "iops = 0"),
        ("--dir .", "--world disk"),
    ] {
        let error = room.gives_up(&format!("{resume} {wrong}"));
        assert!(error.contains(there), "{error}");
    }
    assert!(room.gives_up("run ./mine.toml --jobs 2").contains("--world sim"));
    assert!(room.gives_up("run ./mine.toml --out siltstone-mine -q").contains("--resume"));
    assert!(room.gives_up("run ./mine.toml --strategy levelling").contains("one-leveling"));
    assert!(room.gives_up("run nothing").contains("ycsb-a"));
    assert!(room.gives_up("run").contains("ycsb-a"));
    assert!(room.gives_up("run --resume --out nowhere").contains("nowhere"));
    assert!(room.gives_up("run ./mine.toml --set workload.recods=1").contains("recods"));
    assert!(room.gives_up("run ./mine.toml --set device.iops=1").contains("--world sim"));
    assert!(room.gives_up("run ./mine.toml --world sim --set device.iop=1").contains("iops"));
    assert!(room.gives_up("run ./mine.toml --strategy tiering,tiering").contains("twice"));
    assert!(room.gives_up("run ./mine.toml --set keyspace.strategy=tiering").contains("--strategy"));
    assert!(room.gives_up("run ./mine.toml --strategy rocksdb-fifo").contains("may_lose_oldest"));
    fs::create_dir(room.path("full")).unwrap();
    fs::write(room.path("full/notes.txt"), "mine").unwrap();
    assert!(room.gives_up("run ./mine.toml --out full").contains("not empty"));
    let folders = fs::read_dir(room.dir()).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir()).count();
    assert_eq!(folders, 3, "what is refused makes no folder");
    for command in ["run", "trial"] {
        assert!(room.said(&format!("{command} --help")).contains("Examples:"));
    }
}

#[test]
fn settings_of_the_simulated_disk_have_units_and_bounds() {
    let room = room();
    let ask = "run ./mine.toml --strategy tiering --world sim -q";
    room.said(&format!("{ask} --out out --set device.bandwidth_bytes_per_s=100MiB"));
    let asked: Value = serde_json::from_str(&room.read("out/run.json")).unwrap();
    assert_eq!(asked["device"]["bandwidth_bytes_per_s"], 100 << 20);
    let error = room.gives_up(&format!("{ask} --out none --set device.operation_ns=0"));
    assert!(error.contains("operation_ns: found 0, expected 1"), "{error}");
    assert!(!room.path("none").exists());
}

#[test]
fn what_has_no_effect_is_refused() {
    let room = room();
    for option in ["--dir .", "--jobs 2"] {
        let output = room.run(&format!("run ./mine.toml --plan planned {option}"));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(option.split(' ').next().unwrap()), "{error}");
    }
    room.said("run ./mine.toml --strategy tiering --world sim --plan planned");
    let error = room.gives_up("trial planned/tasks/tiering-1.json out --dir .");
    assert!(error.contains("--dir is for --world disk"), "{error}");
}

#[test]
fn latencies_of_several_repetitions_are_not_called_means() {
    let room = room();
    let shown = room.said("run ./mine.toml --strategy tiering --world sim --repeat 2 -q");
    let (totals, operations) = shown.split_once("by operation, of the first of 2 repetitions").unwrap();
    assert!(totals.contains("the mean of 2 repetitions") && operations.contains("p99.9"), "{shown}");
}
