//! Commands that are told to end before they are done.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use super::room::{Line, Room, signal, text, wait_for};

fn start(room: &Room, line: impl Line) -> Child {
    room.command(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// What an interrupted command printed, and what it said last.
fn interrupted(child: Child) -> (String, String) {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    assert_eq!(status.code(), Some(130), "{}", text(&stderr));
    (text(&stdout), text(&stderr).lines().last().unwrap_or_default().to_owned())
}

/// Whether this process was started with SIGHUP ignored.
fn is_hangup_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1)
}

/// `timeout 3 siltstone compare` left its stores in the temporary folder, as did a closed terminal: only Ctrl-C was heard.
#[test]
fn every_signal_that_ends_a_command_lets_it_remove_its_stores() {
    // Under `nohup` these tests ignore it, and so do commands.
    let endings = if is_hangup_ignored() { &["-INT", "-TERM"][..] } else { &["-INT", "-TERM", "-HUP"] };
    for ending in endings {
        let room = Room::new();
        let child = start(&room, "compare --num 1000000 --strategy leveling --dir . --no-html -q");
        wait_for("the store", || fs::read_dir(room.dir()).unwrap().next().is_some());
        // Twice at once is one wish: `timeout` signals the process and its group.
        signal(&child, ending);
        signal(&child, ending);
        interrupted(child);
        assert_eq!(fs::read_dir(room.dir()).unwrap().count(), 0, "{ending} left a store");
    }
}

/// A command that was ended by Ctrl-C after it said `sign`: its standard output, and what it said last.
fn interrupted_after(room: &Room, line: impl Line, sign: &str) -> (String, String) {
    let mut child = start(room, line);
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.any(|line| line.contains(sign)));
    signal(&child, "-INT");
    let last = said.last().unwrap_or_default();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{last}");
    (text(&output.stdout), last)
}

/// Ctrl-C in the second hour threw the figures of the first away.
#[test]
fn what_is_finished_is_told() {
    let room = Room::new();
    let bench = "bench --num 2000 --reads 1000000000 --workloads fillseq,readrandom,readseq";
    let (shown, last) = interrupted_after(&room, bench, "readrandom: ");
    assert!(shown.contains("fillseq") && !shown.contains("readrandom"), "{shown}");
    assert_eq!(last, "siltstone: interrupted: 1 of 3 workloads are finished");

    let line = "compare --num 100000 --strategy leveling,tiering --dir . -q --html report.html";
    let child = start(&room, line);
    let store = || {
        let paths = fs::read_dir(room.dir()).unwrap().map(|entry| entry.unwrap().path());
        paths.filter(|path| path.is_dir()).collect::<Vec<_>>()
    };
    wait_for("the first store", || !store().is_empty());
    let first = store();
    wait_for("the second store", || !store().is_empty() && store() != first);
    signal(&child, "-INT");
    let (shown, last) = interrupted(child);
    let rows = shown.lines().filter(|line| line.starts_with("leveling ")).count();
    assert!(rows > 0 && !shown.contains("\ntiering "), "{shown}");
    assert_eq!(last, "siltstone: interrupted: 1 of 2 strategies are finished, no report is written");
    assert_eq!(fs::read_dir(room.dir()).unwrap().count(), 0);
}

#[test]
fn a_load_that_is_not_finished_has_no_figures() {
    let room = Room::new();
    let (shown, last) = interrupted_after(&room, "two-phase --records 100000000", "two-phase: ");
    assert_eq!(shown, "partial: the store of the testing phase was not loaded to its end\n");
    assert_eq!(last, "siltstone: interrupted: the store of the testing phase was not loaded to its end");
}

/// What a running merge had done was counted as done, and then thrown away with the merge.
#[test]
fn a_switch_says_what_is_left_of_it() {
    let room = Room::new();
    let line = |i: u32| format!("key{:08}\tvalue {i} of a line {}\n", i * 7919 % 20_011, "x".repeat(60));
    room.write("in.tsv", (0..20_000).map(line).collect::<String>());
    let small = "--set keyspace.memtable_bytes=64KiB --set keyspace.file_bytes=64KiB";
    room.said(&format!("import s in.tsv --durability none {small} --set keyspace.strategy=tiering"));
    let before = room.files("s", ".sst");
    let mut child = start(&room, "strategy set s leveling --wait --set rate_limit_bytes_per_s=262144");
    let is_new = |path: &PathBuf| !before.contains(path);
    wait_for("a merge that has done something", || {
        room.files("s", ".sst").iter().filter(|path| is_new(path)).count() > 1
    });
    assert!(child.try_wait().unwrap().is_none());
    signal(&child, "-INT");
    let (_, last) = interrupted(child);
    let shown = room.said("strategy show s");
    let left =
        shown.lines().nth(1).unwrap().strip_prefix("merges have to move ").unwrap().strip_suffix(" still").unwrap();
    assert!(
        last.starts_with(&format!("siltstone: interrupted: the switch stands; {left} are left, ")),
        "{last} {shown}"
    );
}

#[test]
fn under_nohup_a_closed_terminal_ends_nothing() {
    let room = Room::new();
    let mut command = Command::new("nohup");
    command.args([env!("CARGO_BIN_EXE_siltstone"), "import", "s", "-"]).current_dir(room.dir());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    wait_for("the store", || room.path("s/SUPERBLOCK").exists());
    signal(&child, "-HUP");
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"a\t1\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(room.ok(&["get", "s", "a"]), b"1\n");
}
