//! `siltstone trace record|show|replay|fit|import|export` as a user runs them.

use std::fs;

use super::room::Room;

/// A text of `count` operations: each of 300 keys put and put again, every tenth operation a delete, lookups and ranges between.
fn write_text(room: &Room, name: &str, count: u64) {
    let text: String = (0..count)
        .map(|n| {
            let key = format!("key-{:03}", n * 7919 % 300);
            match n % 10 {
                0 => format!("D {key}\n"),
                1 | 2 => format!("Q {key}\n"),
                3 => format!("S {key} key-999\n"),
                // Not always the same, and one that is empty.
                length => format!(
                    "{} {key} {}\n",
                    if n < 300 { "I" } else { "U" },
                    "v".repeat(usize::try_from(length - 4).unwrap())
                ),
            }
        })
        .collect();
    room.write(name, text);
}

/// A line of text without its value, which traces do not keep, and without the difference of `I` and `U`.
fn shapes(text: &str) -> Vec<(String, usize)> {
    let shape = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let (kind, key) = (words.next().unwrap().replace('U', "I"), words.next().unwrap());
        let rest = words.next().unwrap_or_default();
        match &kind[..] {
            "I" => (format!("I {key}"), rest.len()),
            _ => (format!("{kind} {key} {rest}"), 0),
        }
    };
    text.lines().map(shape).collect()
}

#[test]
fn a_text_comes_back_from_its_trace() {
    let room = Room::new();
    write_text(&room, "ops.txt", 2000);
    assert_eq!(room.json("trace import ops.txt ops.trace --json -q")["operations"], 2000);
    assert!(room.fails("trace import ops.txt ops.trace").contains("ops.trace"), "nothing is overwritten");
    assert!(room.fails("trace import ops.trace other.trace").contains("is a trace already"));
    assert_eq!(room.json("trace export ops.trace back.txt --json -q")["operations"], 2000);
    assert_eq!(shapes(&room.read("back.txt")), shapes(&room.read("ops.txt")));
    // What was lost the first time is lost once: from here on all is equal.
    room.said("trace import back.txt again.trace -q");
    room.said("trace export again.trace again.txt -q");
    assert_eq!(room.read("again.txt"), room.read("back.txt"));
    assert_eq!(room.said("trace export ops.trace -"), room.read("back.txt"));
    assert!(room.fails("trace export ops.trace back.txt").contains("there already"));
    let hex = room.said("trace export ops.trace - --hex");
    assert!(hex.starts_with("D 6b65792d303030\n"), "{}", hex.lines().next().unwrap());

    let shown = room.json("trace show ops.trace --json --first 3 -q");
    assert_eq!((&shown["form"], &shown["operations"]), (&"trace".into(), &2000.into()));
    assert_eq!(shown["first"].as_array().unwrap().len(), 3, "{shown}");
    assert_eq!(shown["keyspaces"][0]["distinct_keys"], 300, "{shown}");
    assert_eq!(shown["kinds"], room.json("trace show again.trace --json -q")["kinds"]);
    assert!(room.said("trace show ops.txt -q").contains("nobody knows when"));
}

#[test]
fn a_recorded_store_can_be_made_again() {
    let room = Room::new();
    write_text(&room, "ops.txt", 3000);
    // The text has no times, and no commands but these would wait for them.
    assert!(room.fails("trace replay ops.txt one").contains("--as-fast-as-possible"));
    room.said("trace import ops.txt ops.trace -q");
    let done = room.json("trace replay ops.trace one --as-fast-as-possible --json -q");
    assert_eq!((&done["operations"], &done["lost"]), (&3000.into(), &0.into()), "{done}");
    let expected = room.said("export one");
    assert!(expected.lines().count() > 100, "{expected}");
    // A replay without a log left an empty store, also where the trace has recorded that there was none.
    room.said("put bare other value");
    room.said("delete bare other");
    room.said("trace record bare bare.trace");
    room.said("trace replay ops.trace bare --as-fast-as-possible --durability none -q");
    room.said("trace record bare --stop");
    room.said("trace replay bare.trace bare-again --as-fast-as-possible -q");
    assert_eq!((&room.said("export bare"), &room.said("export bare-again")), (&expected, &expected));

    assert!(room.fails("trace record two two.trace").contains("no store"));
    room.said("put two other value");
    room.said("delete two other");
    assert_eq!(room.json("trace record two --json")["asked"], false);
    let asked = room.json("trace record two two.trace --json --max-bytes 1GiB");
    assert_eq!(
        (&asked["asked"], &asked["hash_keys"], &asked["max_bytes"]),
        (&true.into(), &false.into(), &(1u64 << 30).into())
    );
    assert!(room.said("trace record two").contains("two.trace"));
    room.said("trace replay ops.trace two --as-fast-as-possible -q");
    // Another opening, another file.
    room.said("get two key-001");
    assert!(room.said("trace record two --stop").contains("record nothing"));
    room.said("get two key-002");
    assert!(room.path("two.trace.2").exists() && !room.path("two.trace.3").exists());
    assert!(room.said("trace record two --stop").contains("no trace was asked for"));

    assert_eq!(room.said("export two"), expected);
    let shown = room.json("trace show two.trace --json -q");
    assert_eq!((&shown["operations"], &shown["end"], &shown["lost"]), (&3000.into(), &"stopped".into(), &0.into()));
    // At a thousand times the speed, so in order of time but not at once.
    let done = room.json("trace replay two.trace three --speed 1000 --json -q");
    assert_eq!((&done["operations"], &done["found_as_recorded"]), (&3000.into(), &1.0.into()), "{done}");
    assert_eq!(room.said("export three"), expected);
    room.said("trace export two.trace two.txt -q");
    room.said("trace export ops.trace ops-2.txt -q");
    assert_eq!(room.read("two.txt"), room.read("ops-2.txt"), "what was recorded is what was asked");
}

#[test]
fn hashed_keys_are_hashes() {
    let room = Room::new();
    write_text(&room, "ops.txt", 500);
    room.said("put s other value");
    let secret = "000102030405060708090a0b0c0d0e0f";
    let asked = room.json(&format!("trace record s s.trace --hash-keys --keep-prefix 4 --secret {secret} --json"));
    assert_eq!(asked["hash_keys"], true);
    room.said("trace replay ops.txt s --as-fast-as-possible -q");
    room.said("trace record s --stop");
    let shown = room.json("trace show s.trace --json -q");
    assert_eq!(shown["hashed_beyond"], 4, "{shown}");
    let plain = room.json("trace show ops.txt --json -q");
    assert_eq!(shown["keyspaces"][0]["distinct_keys"], plain["keyspaces"][0]["distinct_keys"], "which are equal stays");
    assert!(room.said("trace show s.trace -q").contains("keys are hashes but for their first 4 bytes"));
    let bytes = fs::read(room.path("s.trace")).unwrap();
    let holds = |what: &[u8]| bytes.windows(what.len()).any(|window| window == what);
    assert!(holds(b"key-") && !(0..300).any(|n| holds(format!("key-{n:03}").as_bytes())));
    assert!(!holds(&(0..16).collect::<Vec<u8>>()) && !holds(secret.as_bytes()), "the secret is in no trace");
    // Without a place they were ignored.
    for flags in ["--hash-keys", "--max-bytes 1MiB", "--hash-keys --keep-prefix 2"] {
        let output = room.run(&format!("trace record s {flags}"));
        assert_eq!(output.status.code(), Some(2), "{flags}");
        assert!(String::from_utf8(output.stderr).unwrap().contains("<OUT>"), "{flags}");
    }
    assert!(room.fails("trace record s t.trace --hash-keys --secret 0102").contains("32 hexadecimal digits"));
    assert!(!room.path("s/TRACE-REQUEST").exists(), "what is refused leaves nothing");
}

#[test]
fn a_bad_line_is_told_with_its_file_and_number() {
    let room = Room::new();
    fs::write(room.path("bad.txt"), "I a 1\n\nQ a\nX b\n").unwrap();
    for line in [
        "trace import bad.txt bad.trace -q",
        "trace show bad.txt -q",
        "trace fit bad.txt -q",
        "trace export bad.txt out.txt -q",
        "trace replay bad.txt store --as-fast-as-possible -q",
    ] {
        let output = room.run(line);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}: {error}");
        assert!(
            error.contains("bad.txt:4") && error.contains("\"X b\"") && error.contains("I key value"),
            "{line}: {error}"
        );
    }
    assert!(!room.path("out.txt").exists());
    // A trace with a changed byte: what comes before is shown, and where it is damaged.
    write_text(&room, "ops.txt", 20_000);
    room.said("trace import ops.txt ops.trace -q");
    let mut bytes = fs::read(room.path("ops.trace")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(room.path("ops.trace"), bytes).unwrap();
    let output = room.run("trace show ops.trace -q");
    assert_eq!(output.status.code(), Some(2));
    let (shown, error) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(
        shown.contains("operations") && error.contains("ops.trace") && error.contains("at offset"),
        "{shown}{error}"
    );
}

#[test]
fn what_is_fitted_can_be_run() {
    let room = Room::new();
    write_text(&room, "ops.txt", 5000);
    let fitted = room.json("trace fit ops.txt --json -q");
    assert!(fitted["spec"].as_str().unwrap().contains("[[phase]]"), "{fitted}");
    assert!(room.said("trace fit ops.txt --out mine.toml -q").contains("siltstone run mine.toml"));
    assert_eq!(room.said("trace fit ops.txt --name mine --out - -q"), room.said("trace fit ops.txt --name mine -q"));
    assert!(!room.path("-").exists());
    assert!(room.fails("trace fit ops.txt --out mine.toml -q").contains("there already"));
    room.said("run ./mine.toml --strategy tiering --world sim -q --out results");
    assert!(room.path("results/rows.csv").exists());
}
