//! What commands say: under which names, before the work begins, and when it cannot go on.

use std::process::Command;

use super::room::{Room, shuffled_tsv, text};

/// Of a store with two keyspaces all options were printed, into one file that `--options` then refused.
#[test]
fn printed_options_are_taken() {
    let room = Room::new();
    room.said("put s k v --set keyspace.size_ratio=5");
    let of_kinds =
        ["--set", "keyspace.size_ratio=7", "--set", "keyspace.write_control={kind=\"limit\",rate_bytes_per_s=100000}"];
    room.ok(&[&["put", "s", "k", "v", "--keyspace", "kinds"], &of_kinds[..]].concat());
    for (flags, ratio) in [("", "size_ratio = 5"), ("--keyspace kinds", "size_ratio = 7")] {
        let printed = room.said(&format!("stats s --print-options {flags}"));
        assert!(printed.contains(ratio), "{printed}");
        room.write("options.toml", &printed);
        let again = format!("again{}", flags.len());
        room.said(&format!("put {again} k v --options options.toml"));
        let body = |text: &str| text.split_once('\n').unwrap().1.to_owned();
        assert_eq!(body(&room.said(&format!("stats {again} --print-options"))), body(&printed));
    }
    assert!(room.fails("stats s --print-options --keyspace other").contains("default, kinds"));
}

/// Options for new keyspaces were ignored where there is one, and what was shown of its strategy was not in force.
#[test]
fn options_of_a_keyspace_stay_and_are_told() {
    let room = Room::new();
    room.said("put s k v --set keyspace.size_ratio=5 --set keyspace.strategy=leveling");
    let commands = ["put s k v", "delete s k", "compact s", "strategy plan s tiering", "strategy set s tiering"];
    for (line, other) in commands.iter().flat_map(|line| [(line, "5"), (line, "7")]) {
        let ratio = format!("--set keyspace.size_ratio={other}");
        let output = room.run(&format!("{line} {ratio} --set keyspace.strategy=leveling"));
        assert!(output.status.success(), "{line}: {output:?}");
        let is_told = text(&output.stderr).contains("note: keyspace default keeps the options");
        assert_eq!(is_told, other == "7", "{line}: {output:?}");
    }
    let shown = room.said("strategy show s");
    assert!(shown.contains("\nsize ratio 5, the keyspace's option; the strategy's own is "), "{shown}");
    let shown = room.json("strategy show s --json");
    assert_eq!((&shown["size_ratio"], &shown["size_ratio_is_option"]), (&5.into(), &true.into()), "{shown}");
    room.said("put t k v");
    let shown = room.json("strategy show t --json");
    assert_eq!((&shown["size_ratio"], &shown["size_ratio_is_option"]), (&10.into(), &false.into()), "{shown}");
    assert!(!room.said("strategy show t").contains("option"));
}

/// Two figures of space amplification stood side by side and told different things, and one that was asked for and perfect was left out.
#[test]
fn space_amplification_is_one_figure_under_its_name() {
    let room = Room::new();
    room.write("in.tsv", shuffled_tsv(20_000));
    room.said("import s in.tsv --durability none --set keyspace.memtable_bytes=64KiB --set keyspace.strategy=rocksdb-universal");
    assert!(room.said("stats s").contains("universal size amplification percent"));
    room.said("strategy set s leveling --wait");
    room.said("compact s");
    let stats = room.said("stats s --scan");
    let (head, cells) = stats.split_once("\n\nkeyspace").unwrap().1.split_once('\n').unwrap();
    assert!(head.contains("space amplification") && !head.contains("percent") && cells.contains("0.000"), "{stats}");
}

#[test]
fn figures_are_labelled_as_one_says_them() {
    let room = Room::new();
    room.write("in.tsv", "a\t1\nno tab here\n");
    let import = text(&room.run("import s in.tsv --on-error skip --durability none").stderr);
    assert!(
        import.contains("import: 1 record, ") && import.contains("B/s in ") && import.contains("1 bad line left"),
        "{import}"
    );
    assert!(room.said("stats debt s").starts_with("default: 1 sorted run; "));
    room.said("compact s");
    let stats = room.said("stats s");
    assert!(stats.contains("  took\n") && !stats.contains("took ns"), "{stats}");
    let (counters, _) = stats.split_once("\n\nkeyspace").unwrap();
    assert!(counters.lines().all(|line| !line.ends_with(" 0.000") && !line.ends_with(" 0")), "{stats}");
}

/// A number below 0 was an "unexpected argument", whatever the option.
#[test]
fn negative_numbers_are_values() {
    let room = Room::new();
    room.said("put s -5 cold");
    assert_eq!(room.said("get s -5"), "cold\n");
    for (line, allowed) in [
        ("two-phase --utilization -0.5", "above 0 and below 1"),
        ("compare --updates -1", "from 0 to 1000"),
        ("compare --deletes -1", "from 0 to 0.5"),
        ("compare --deletes 0.9", "from 0 to 0.5"),
        ("trace replay x y --speed -1", "speed"),
        ("scan s --limit -1", "--limit <N>"),
    ] {
        let output = room.run(line);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(allowed) && error.contains("invalid value '"), "{line}: {error}");
    }
}

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

/// Runs a command that cannot write beyond `blocks` of 512 bytes into any file: the nearest to a full disk that a test can make.
#[cfg(unix)]
fn cramped(room: &Room, blocks: u32, line: &str) -> (String, String) {
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" {line}");
    let program = env!("CARGO_BIN_EXE_siltstone");
    let output = Command::new("sh").args(["-c", &script, program]).current_dir(room.dir()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{line}: {}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

/// The import said neither what was in nor where it was, and left out the sync that its help promises.
#[cfg(unix)]
#[test]
fn an_import_that_cannot_write_says_what_is_in() {
    let room = Room::new();
    room.write("in.tsv", shuffled_tsv(3000) + "large\t" + &"v".repeat(3 << 20) + "\nlast\tone\n");
    let (_, error) = cramped(&room, 4096, "import s in.tsv -q --set log.segment_bytes=1MiB");
    assert!(error.contains("3000 records were stored") && error.contains("after line 3000"), "{error}");
    assert_eq!(room.said("scan s --keys-only").lines().count(), 3000, "{error}");
    let (_, error) = cramped(&room, 64, "import t in.tsv -q --durability none --set log.segment_bytes=8KiB");
    assert!(error.contains("could not be synced"), "{error}");
}

/// Only after Ctrl-C was it said how to go on.
#[cfg(unix)]
#[test]
fn a_run_that_fails_says_how_to_go_on() {
    let room = Room::new();
    let (_, error) = cramped(&room, 256, "run ycsb-c --strategy tiering --set workload.records=1000 --out results -q");
    let (how, what) = error.trim_end().split_once('\n').unwrap();
    assert!(
        how.contains("`siltstone run --resume --out results`") && what.starts_with("siltstone: trial tiering-1"),
        "{error}"
    );
}
