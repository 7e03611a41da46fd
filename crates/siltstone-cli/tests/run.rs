//! `siltstone run` and `siltstone trial` as a user runs them.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

struct Room(TempDir);

impl Room {
    fn new() -> Room {
        let room = Room(tempfile::tempdir().unwrap());
        fs::write(room.path("mine.toml"), SPEC).unwrap();
        room
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_siltstone"));
        command.args(line.split_whitespace()).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    fn ok(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn fails(&self, line: &str) -> String {
        let output = self.run(line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        let error = String::from_utf8(output.stderr).unwrap();
        let last = error.lines().last().unwrap().to_owned();
        assert!(last.starts_with("siltstone: "), "{error}");
        last
    }
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
    let room = Room::new();
    let ask = "run ./mine.toml --strategy leveling,tiering --repeat 3 --world sim -q --set workload.records=6000";
    room.ok(&format!("{ask} --out whole --jobs 2"));
    let expected = files(&room.path("whole"));
    assert_eq!(expected.len(), 3 + 6 * 5, "{:?}", expected.keys());

    let partial = |name: &str| room.path("broken/trials").join(name);
    let killed_thrice = || {
        let _ = fs::remove_dir_all(room.path("broken"));
        let mut flag = "";
        for victim in [".leveling-1.partial", ".leveling-3.partial", ".tiering-2.partial"] {
            let mut child = room.command(&format!("{ask} --out broken --jobs 1 {flag}")).spawn().unwrap();
            let start = Instant::now();
            while !partial(victim).join("tree.jsonl").exists() && child.try_wait().unwrap().is_none() {
                assert!(start.elapsed() < Duration::from_secs(300));
                std::thread::sleep(Duration::from_millis(1));
            }
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
    let rows: Value = serde_json::from_str(&room.ok("run --resume --out broken --json -q")).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 6);
    assert!(files(&room.path("broken")) == expected);
}

#[test]
fn trials_can_be_spread_and_gathered() {
    let room = Room::new();
    let plan = room.ok("run ./mine.toml --strategy leveling,tiering --plan spread");
    assert_eq!(plan.lines().count(), 2, "{plan}");
    for line in plan.lines() {
        room.ok(line.strip_prefix("siltstone ").unwrap());
    }
    let shown = room.ok("run --resume --out spread --html report.html");
    assert!(shown.contains("WA") && shown.contains("mix, scan, tiering") && shown.contains("disk world"), "{shown}");
    assert!(fs::read_to_string(room.path("report.html")).unwrap().contains("tiering"));
    let trial = room.path("spread/trials/tiering-1");
    assert_eq!(fs::read_dir(&trial).unwrap().count(), 6, "the store is gone");
    let machine: Value = serde_json::from_slice(&fs::read(trial.join("machine.json")).unwrap()).unwrap();
    assert!(machine["before"]["probes"]["disk_sync_ns"].as_u64().unwrap() > 0, "{machine}");
    let task = fs::read_to_string(room.path("spread/tasks/tiering-1.json")).unwrap();
    assert_eq!(fs::read_to_string(trial.join("trial.json")).unwrap(), task);
    // There already: nothing to do.
    room.ok("trial spread/tasks/tiering-1.json spread/trials/tiering-1");
    assert!(room.fails("trial spread/tasks/leveling-1.json spread/trials/tiering-1").contains("another trial"));
    fs::write(room.path("task.json"), task.replace("\"format\": 1", "\"format\": 9")).unwrap();
    assert!(room.fails("trial task.json out").contains("format is 9"));
    assert!(!room.path("out").exists() && !room.path(".out.partial").exists());
}

#[test]
fn wrong_questions_are_refused() {
    let room = Room::new();
    room.ok("run ./mine.toml --strategy tiering --world sim -q");
    assert!(room.path("siltstone-mine/rows.csv").exists());
    room.ok("run ./mine.toml --strategy tiering --world sim -q --resume");
    room.ok("run ./mine.toml --strategy tiering --world sim -q");
    assert!(room.path("siltstone-mine-2/rows.csv").exists(), "without --out a new folder each time");
    let other = room.fails("run ./mine.toml --strategy tiering --world sim -q --resume --set workload.records=5000");
    assert!(other.contains("records = 4000") && other.contains("records = 5000"), "{other}");
    assert!(room.fails("run ./mine.toml --out siltstone-mine -q").contains("--resume"));
    assert!(room.fails("run ./mine.toml --strategy levelling").contains("one-leveling"));
    assert!(room.fails("run nothing").contains("ycsb-a"));
    assert!(room.fails("run").contains("ycsb-a"));
    assert!(room.fails("run --resume --out nowhere").contains("nowhere"));
    assert!(room.fails("run ./mine.toml --set workload.recods=1").contains("recods"));
    assert!(room.fails("run ./mine.toml --set device.iops=1").contains("--world sim"));
    assert!(room.fails("run ./mine.toml --world sim --set device.iop=1").contains("iops"));
    assert!(room.fails("run ./mine.toml --strategy tiering,tiering").contains("twice"));
    assert!(room.fails("run ./mine.toml --set keyspace.strategy=tiering").contains("--strategy"));
    assert!(room.fails("run ./mine.toml --strategy rocksdb-fifo").contains("may_lose_oldest"));
    fs::create_dir(room.path("full")).unwrap();
    fs::write(room.path("full/notes.txt"), "mine").unwrap();
    assert!(room.fails("run ./mine.toml --out full").contains("not empty"));
    let folders = fs::read_dir(room.0.path()).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir()).count();
    assert_eq!(folders, 3, "what is refused makes no folder");
    for command in ["run", "trial"] {
        assert!(room.ok(&format!("{command} --help")).contains("Examples:"));
    }
}
