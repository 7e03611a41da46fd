//! Damage on the command line: what `verify` finds of it, what can still be read, and what is none.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use serde_json::Value;

use super::room::{Room, json, shuffled_tsv, text, wait_for};

/// Flips bytes all over every kind of file of a store; `verify`, or opening, must name the file.
#[test]
fn verify_finds_damage_and_names_file_and_offset() {
    let room = Room::new();
    room.write("in.tsv", shuffled_tsv(20_000));
    room.ok(&["import", "s", "in.tsv"]);
    room.ok(&["compact", "s"]);
    assert!(text(&room.ok(&["verify", "s"])).starts_with("all is well"));
    assert_eq!(json(&room.ok(&["verify", "s", "--json"]))["damage"], Value::Array(Vec::new()));
    let sst = room.files("s", ".sst").into_iter().next().expect("the compaction left a table");
    let name = sst.file_name().unwrap().to_str().unwrap().to_owned();
    let good = fs::read(&sst).unwrap();
    for share in [0, 1, 2, 3, 4] {
        let at = (good.len() - 1) * share / 4;
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        fs::write(&sst, &bad).unwrap();
        let output = room.run(&["verify", "s", "--json"]);
        assert_eq!(output.status.code(), Some(2), "byte {at} of {}: {}", good.len(), text(&output.stdout));
        let damage = &json(&output.stdout)["damage"][0];
        assert!(damage["file"].as_str().unwrap().ends_with(&name), "{damage}");
        assert!(damage["offset"].is_u64(), "{damage}");
        let shown = text(&room.run(&["verify", "s"]).stdout);
        assert!(shown.contains(&name) && shown.contains("at offset"), "{shown}");
    }
    fs::write(&sst, &good).unwrap();
    room.ok(&["verify", "s"]);
}

/// Damage that keeps no store from opening was called well: one of the superblock's two slots, and what is not needed.
#[test]
fn verify_finds_damage_that_opening_does_without() {
    let room = Room::new();
    let small = ["--set", "keyspace.memtable_bytes=64KiB", "--set", "keyspace.file_bytes=64KiB"];
    room.write("in.tsv", shuffled_tsv(20_000));
    room.ok(&[&["import", "s", "in.tsv"][..], &small].concat());
    // So that a decision was recorded.
    room.ok("compact s");
    room.ok("put s k v");
    let spoil = |name: &str, at: usize| {
        let path = room.path(&format!("s/{name}"));
        let good = fs::read(&path).unwrap();
        let mut bad = good.clone();
        bad[at..at + 4].copy_from_slice(b"dirt");
        fs::write(&path, &bad).unwrap();
        (path, good)
    };
    for slot in [0, 4096] {
        let (path, good) = spoil("SUPERBLOCK", slot + 10);
        let output = room.run("verify s --json");
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
        let found = &json(&output.stdout)["damage"][0];
        assert!(found["file"].as_str().unwrap().ends_with("SUPERBLOCK") && found["keyspace"].is_null(), "{found}");
        assert_eq!(found["offset"], slot, "{found}");
        assert!(found["what"].as_str().unwrap().contains("opening it for writing"), "{found}");
        room.ok("put s k v");
        room.ok("verify s");
        assert_ne!(fs::read(path).unwrap(), good, "opening it for writing wrote it anew");
    }
    let log = room.files("s", ".log").pop().unwrap();
    let log = log.file_name().unwrap().to_str().unwrap();
    for (name, at) in [("DECISIONS", 0), ("DECISIONS", 40), (log, 1536)] {
        let (path, good) = spoil(name, at);
        let report = room.json("verify s --json");
        let note = &report["notes"][0];
        assert!(
            report["damage"] == serde_json::json!([]) && note["file"].as_str().unwrap().ends_with(name),
            "{report}"
        );
        assert!(room.said("verify s").starts_with("note: "));
        fs::write(path, good).unwrap();
        assert!(room.said("verify s").starts_with("all is well: "));
    }
}

/// `verify` named the first bad block of a table alone, and told to export what can be read, where `export` stopped at that block.
#[test]
fn what_a_damaged_store_still_holds_is_exported() {
    let room = Room::new();
    room.write("in.tsv", shuffled_tsv(20_000));
    // One table, without compression: what is damaged is one block each.
    let plain = ["--durability", "none", "--set", "keyspace.compression=[\"none\"]"];
    room.ok(&[&["import", "s", "in.tsv"][..], &plain].concat());
    room.ok("compact s");
    let whole = room.said("export s");
    let sst = room.files("s", ".sst").pop().unwrap();
    let good = fs::read(&sst).unwrap();
    let mut bad = good.clone();
    for at in [0, good.len() / 4, good.len() / 2] {
        bad[at] ^= 0x10;
    }
    fs::write(&sst, &bad).unwrap();
    let output = room.run("verify s --json");
    let report = json(&output.stdout);
    let damage = report["damage"].as_array().unwrap();
    assert_eq!((output.status.code(), damage.len()), (Some(2), 3), "{report}");
    let key = |of: &Value, end: &str| {
        let hex = of[end].as_str().unwrap();
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect::<Vec<_>>()
    };
    let is_lost = |record: &str| {
        let of = record.split('\t').next().unwrap().as_bytes().to_vec();
        damage.iter().any(|damage| key(damage, "first_key_hex") <= of && of <= key(damage, "last_key_hex"))
    };
    let rest: String = whole.lines().filter(|line| !is_lost(line)).map(|line| format!("{line}\n")).collect();
    assert!(rest.lines().count() > 19_000 && rest.lines().count() < 20_000, "a few blocks are a few records");
    assert!(text(&room.run("verify s").stdout).contains("--skip-damaged"));

    assert!(room.gives_up("export s out.tsv").contains("verify"));
    assert!(!room.path("out.tsv").exists());
    let output = room.run("export s out.tsv --skip-damaged -q");
    let told = text(&output.stderr);
    assert_eq!((output.status.code(), told.matches("left out keys").count()), (Some(2), 3), "{told}");
    assert_eq!(room.read("out.tsv"), rest);
    // What is asked for may be well.
    let keys: Vec<_> = rest.lines().map(|line| line.split('\t').next().unwrap()).collect();
    let (from, to) = (keys[keys.len() - 100], keys[keys.len() - 1]);
    assert_eq!(room.said(&["export", "s", "--skip-damaged", "--from", from, "--to", to]).lines().count(), 99);

    // What is newer and well does not stand for what is lost: it might have been deleted there.
    let lost = whole.lines().find(|line| is_lost(line)).unwrap().split('\t').next().unwrap();
    fs::write(&sst, &good).unwrap();
    room.ok(&["put", "s", lost, "newer"]);
    room.ok("put s zzz new");
    fs::write(&sst, &bad).unwrap();
    let output = room.run("export s --skip-damaged");
    assert!(output.status.code() == Some(2) && text(&output.stdout) == format!("{rest}zzz\tnew\n"), "{output:?}");
    fs::remove_file(&sst).unwrap();
    let output = room.run("export s --skip-damaged");
    assert!(output.status.code() == Some(2) && output.stdout == b"zzz\tnew\n", "{output:?}");
}

/// A damaged log keeps the store from opening; there, too, the advice must be one that can be followed.
#[test]
fn what_is_before_the_damage_of_a_log_is_exported() {
    let room = Room::new();
    room.ok("put s a 1");
    room.ok("put s b 2");
    room.ok("put s c 3");
    let log = room.files("s", ".log").pop().unwrap();
    let mut bytes = fs::read(&log).unwrap();
    bytes[4096 + 10] ^= 0x10;
    fs::write(&log, bytes).unwrap();
    let output = room.run("verify s");
    let told = text(&output.stdout);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("--set recovery=salvage"), "{told}");
    room.ok("export s out.tsv --set recovery=salvage");
    assert_eq!(room.read("out.tsv"), "a\t1\nb\t2\n");
}

/// CRC-32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |crc: u32| {
        if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 }
    };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| bit(crc)))
}

/// Sets the format version in both slots of a superblock (docs/format/manifest.md), checksums included.
fn set_format(superblock: &mut [u8], format: u32) {
    for slot in superblock.chunks_exact_mut(4096) {
        assert_eq!(slot[4092..], crc32c(&slot[..4092]).to_le_bytes(), "the layout that this test knows");
        slot[8..12].copy_from_slice(&format.to_le_bytes());
        let crc = crc32c(&slot[..4092]);
        slot[4092..].copy_from_slice(&crc.to_le_bytes());
    }
}

#[test]
fn a_store_of_a_newer_format_is_refused_and_stays_as_it_is() {
    let room = Room::new();
    room.ok(&["put", "s", "k", "v"]);
    let path = room.path("s/SUPERBLOCK");
    let good = fs::read(&path).unwrap();
    let mut newer = good.clone();
    set_format(&mut newer, 99);
    fs::write(&path, &newer).unwrap();
    for line in [&["get", "s", "k"][..], &["put", "s", "k", "w"], &["verify", "s"], &["inspect", "s"]] {
        let error = room.fails(line);
        assert!(error.contains("SUPERBLOCK") && error.contains("newer"), "{error}");
    }
    assert_eq!(fs::read(&path).unwrap(), newer);
    // Damage is told apart from a newer format.
    fs::write(&path, vec![0x5a; good.len()]).unwrap();
    let error = room.fails(&["get", "s", "k"]);
    assert!(error.contains("corruption") && error.contains("SUPERBLOCK") && error.contains("verify"), "{error}");
    fs::write(&path, good).unwrap();
    assert_eq!(room.ok(&["get", "s", "k"]), b"v\n");
}

/// Readers beside a writer that flushes and merges all the time: files vanish beneath them, and that was told as damage.
#[test]
fn reading_beside_a_writer_finds_no_damage() {
    let room = Room::new();
    let small = ["--set", "keyspace.memtable_bytes=64KiB", "--set", "keyspace.file_bytes=64KiB"];
    room.ok(&[&["put", "s", "k", "v"][..], &small].concat());
    let import = [&["import", "s", "-", "-q"][..], &small].concat();
    let mut child = room.command(&import).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || while stdin.write_all(shuffled_tsv(20_000).as_bytes()).is_ok() {});
    wait_for("tables", || !room.files("s", ".sst").is_empty());
    for _ in 0..5 {
        for line in ["verify s", "scan s", "export s", "export s out.tsv -q", "stats s --scan", "get s k"] {
            let output = room.run(line);
            let error = text(&output.stderr);
            let is_told = error.contains("another process is writing") && !error.contains("corruption");
            assert!(output.status.success() || is_told, "{line}: {error} {}", text(&output.stdout));
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    feeder.join().unwrap();
    room.ok("verify s");
}

#[cfg(unix)]
#[test]
fn a_file_without_permission_is_no_damage() {
    use std::os::unix::fs::PermissionsExt;
    let room = Room::new();
    room.write("in.tsv", "a\t1\n");
    room.ok("import s in.tsv --durability none");
    let sst = room.files("s", ".sst").pop().unwrap();
    fs::set_permissions(&sst, fs::Permissions::from_mode(0o0)).unwrap();
    if fs::read(&sst).is_ok() {
        return; // root reads everything
    }
    for line in ["verify s", "scan s"] {
        let error = room.fails(line);
        assert!(error.contains("ermission denied") && !error.contains("damage"), "{error}");
    }
}
