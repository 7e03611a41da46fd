//! What commands say: under which names, before the work begins, and when it cannot go on.

use std::process::Command;

use super::room::{Room, shuffled_tsv, text};

/// What could not be written was found out when the work was done, and its figures were lost.
#[test]
fn a_place_that_cannot_be_written_is_told_before_the_work() {
    let room = Room::new();
    // Each of these would take minutes.
    for line in [
        "compare --num 100000000 --html no/a.html",
        "reproduce luo19 --scale 1 --runs no/a.jsonl",
        "run ycsb-a --strategy tiering --world sim --set workload.records=100000000 --html no/a.html",
    ] {
        let output = room.run(line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(
            output.stdout.is_empty() && text(&output.stderr).contains("cannot write no/a."),
            "{}",
            text(&output.stderr)
        );
    }
    room.said("reproduce luo19 --figure A2 --scale 10000 --runs runs.jsonl -q");
    assert!(room.read("runs.jsonl").lines().count() > 0);
}
