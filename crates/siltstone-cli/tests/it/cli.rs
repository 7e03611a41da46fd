//! Stores, keys, strategies and experiments on the command line.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::room::{Room, json, shuffled_tsv, signal, text, wait_for};

#[test]
fn get_put_delete_scan() {
    let room = Room::new();
    room.ok(&["put", "s", "apple", "red"]);
    room.ok(&["put", "s", "pear", "green", "--durability", "buffered"]);
    // Without a log the record was lost every time: the store was closed before it was flushed.
    room.ok("put s none 1 --durability none");
    assert_eq!(room.said("get s none"), "1\n");
    room.ok("delete s none --durability none");
    assert_eq!(room.run("get s none").status.code(), Some(1));
    room.ok(&["put", "s", "", ""]);
    room.ok(&["put", "s", "00ff", "0a", "--hex"]);
    room.ok(&["put", "s", "--", "-k", "-v"]);
    assert_eq!(room.ok(&["get", "s", "apple"]), b"red\n");
    assert_eq!(room.ok(&["get", "s", "apple", "--raw"]), b"red");
    assert_eq!(room.ok(&["get", "s", ""]), b"\n", "an empty key and an empty value are legal");
    assert_eq!(room.ok(&["get", "s", "00ff", "--hex"]), b"0a\n");
    assert_eq!(json(&room.ok(&["get", "s", "00ff", "--hex", "--json"]))["key_hex"], "00ff");
    assert_eq!(room.ok(&["scan", "s", "--from", "a"]), b"apple\tred\npear\tgreen\n");
    assert_eq!(room.ok(&["scan", "s", "--reverse", "--limit", "1", "--keys-only"]), b"pear\n");
    assert_eq!(room.ok(&["scan", "s", "--prefix", "app", "--keys-only"]), b"apple\n");
    assert_eq!(room.ok(&["scan", "s", "--from", "z", "--to", "a"]), b"", "a backwards range is empty");
    assert_eq!(room.ok(&["scan", "s", "--hex", "--to", "01"]), b"\t\n00ff\t0a\n");
    room.ok(&["delete", "s", "apple"]);
    let output = room.run(&["get", "s", "apple\n\x1b[31m"]);
    assert_eq!(output.status.code(), Some(1));
    // It went to the terminal as it was.
    assert_eq!(text(&output.stderr), "siltstone: no such key: apple\\n\\u{1b}[31m\n");
    assert_eq!(room.run(&["get", "s", "apple"]).status.code(), Some(1));
    room.ok(&["put", "s", "ff00", "0a", "--hex"]);
    let keys = room.said("scan s --keys-only --json --from p");
    assert_eq!(keys, "{\"key\":\"pear\"}\n{\"key_hex\":\"ff00\"}\n");
    room.ok(&["put", "s", "apple", "fruit", "--keyspace", "kinds"]);
    assert_eq!(room.ok(&["get", "s", "apple", "--keyspace", "kinds"]), b"fruit\n");
    assert_eq!(room.run(&["get", "s", "apple"]).status.code(), Some(1), "keyspaces are apart");
    let value = vec![0xa5; 3 << 20];
    assert!(room.feed(&["put", "s", "large", "-"], &value).status.success());
    assert_eq!(room.ok(&["get", "s", "large", "--raw"]), value);
}

/// Odd data through every format and compression: the export of the import is the sorted input, byte for byte.
#[test]
fn import_and_export_are_inverse() {
    let keys: [&[u8]; 9] = [b"", b" ", b"\"", b"a,b", b"k\r", b"\xff\xfe", b"\0", "\u{e9}\u{1f4a1}".as_bytes(), b"zz"];
    let values: [&[u8]; 7] =
        [b"", b"\t\ttabs", b"a \"quoted\" one, indeed", b"end\r", b"\xff\x00", b"\\n", "\u{4f60}".as_bytes()];
    let mut records: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for (i, key) in keys.iter().enumerate() {
        for (j, value) in values.iter().enumerate() {
            records.insert([*key, j.to_string().as_bytes()].concat(), [*value, &b"x".repeat(i * 100)].concat());
        }
    }
    let tsv: Vec<u8> = records.iter().flat_map(|(key, value)| [key, &b"\t"[..], value, b"\n"].concat()).collect();
    let mut unsorted: Vec<_> = records.iter().map(|(key, value)| [key, &b"\t"[..], value, b"\n"].concat()).collect();
    unsorted.sort_by_key(|line| line.iter().rev().copied().collect::<Vec<_>>());

    let room = Room::new();
    room.write("in.tsv", unsorted.concat());
    room.ok(&["import", "first", "in.tsv"]);
    assert_eq!(room.ok(&["export", "first"]), tsv);
    for format in ["tsv", "csv", "jsonl", "ndjson"] {
        for codec in ["", ".gz", ".zst"] {
            let (file, store) = (format!("out.{format}{codec}"), format!("store-{format}{codec}"));
            let totals = json(&room.ok(&["export", "first", &file, "--json"]));
            assert_eq!(totals["records"], records.len(), "{file}");
            room.ok(&["import", &store, &file]);
            assert_eq!(room.ok(&["export", &store]), tsv, "through {file}");
        }
    }
    // Values with line feeds pass through CSV and JSON lines; TSV refuses them and leaves no file behind.
    room.ok(&["put", "first", "multi", "two\nlines"]);
    assert!(room.fails(&["export", "first", "out.tsv", "-q"]).contains("jsonl"));
    assert_eq!(fs::read(room.path("out.tsv")).unwrap(), tsv, "the older file stands");
    assert!(
        !fs::read_dir(room.dir()).unwrap().any(|entry| entry.unwrap().file_name().to_string_lossy().ends_with(".tmp"))
    );
    for (file, header) in [("multi.csv", &["--header"][..]), ("multi.jsonl.zst", &[])] {
        room.ok(&[&["export", "first", file], header].concat());
        room.ok(&[&["import", &format!("{file}-store"), file], header].concat());
        assert_eq!(room.ok(&["get", &format!("{file}-store"), "multi"]), b"two\nlines\n");
    }
    // Ignored, it made a record of the line that names the columns.
    for line in ["import new out.tsv", "export first - --format jsonl", "export first new.tsv", "compare out.tsv"] {
        assert!(room.fails(&format!("{line} --header -q")).contains("--header is for CSV"), "{line}");
    }
    assert!(!room.path("new").exists() && !room.path("new.tsv").exists());
    for option in ["--header", "--format csv"] {
        assert!(room.fails(&format!("compare --num 1000 {option}")).contains("FILE"), "{option} without a file");
    }
}

#[test]
fn standard_streams() {
    let room = Room::new();
    let output = room.feed(&["import", "s", "-", "--json"], b"b\t2\na\t1\n");
    assert_eq!(json(&output.stdout)["records"], 2);
    let output = room.feed(&["import", "s", "-", "--format", "jsonl"], b"{\"key\":\"c\",\"value\":\"3\"}");
    assert!(output.status.success());
    let output = room.feed("import s - -q", b"no tab\n");
    assert!(text(&output.stderr).contains("import of standard input ended"), "{output:?}");
    assert_eq!(room.ok(&["export", "s"]), b"a\t1\nb\t2\nc\t3\n");
    assert_eq!(room.ok(&["export", "s", "-", "--format", "csv", "--from", "b", "--to", "c"]), b"b,2\n");
}

/// A rename put a regular file in the place of a pipe, or of `/dev/null`, and of a link instead of what it leads to.
#[cfg(unix)]
#[test]
fn an_export_leaves_what_is_no_file_as_it_is() {
    use std::os::unix::fs::{FileTypeExt, symlink};
    let room = Room::new();
    room.ok("put s a 1");
    assert!(Command::new("mkfifo").arg(room.path("pipe.tsv")).status().unwrap().success());
    let pipe = room.path("pipe.tsv");
    // Opened for writing as well, opening waits for nobody; the pipe holds the few bytes.
    let mut reader = fs::File::options().read(true).write(true).open(&pipe).unwrap();
    room.ok("export s pipe.tsv -q");
    assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
    let mut read = [0; 4];
    reader.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"a\t1\n");

    if cfg!(target_os = "linux") {
        symlink("/proc/self/fd/1", room.path("out.tsv")).unwrap();
        assert_eq!(room.said("export s out.tsv -q"), "a\t1\n", "as with the shell's >(...)");
        assert!(room.path("out.tsv").is_symlink());
    }

    fs::create_dir(room.path("other")).unwrap();
    room.write("other/file", "older and longer than what comes");
    symlink("other/file", room.path("link.tsv")).unwrap();
    symlink("nowhere", room.path("dangling.tsv")).unwrap();
    room.ok("export s link.tsv -q");
    assert_eq!(room.read("other/file"), "a\t1\n");
    assert!(room.path("link.tsv").is_symlink() && fs::read_dir(room.path("other")).unwrap().count() == 1);
    assert!(room.fails("export s dangling.tsv -q").contains("cannot write dangling.tsv"));
    assert!(room.fails("export s other --format tsv -q").contains("cannot write other"), "a folder");
}

#[test]
fn bad_lines_stop_or_are_skipped() {
    let room = Room::new();
    room.write("bad.tsv", "a\t1\nno tab here\nb\t2\n");
    let error = room.fails(&["import", "s", "bad.tsv"]);
    assert!(
        error.contains("line 2")
            && error.contains("--on-error skip")
            && error.contains("1 record was stored and synced"),
        "{error}"
    );
    assert_eq!(room.ok(&["export", "s"]), b"a\t1\n", "what came before is stored");
    let output = room.run(&["import", "s", "bad.tsv", "--on-error", "skip", "--json"]);
    assert!(output.status.success() && text(&output.stderr).contains("line 2"));
    assert_eq!(json(&output.stdout)["bad_lines"], 1);
    assert_eq!(room.ok(&["export", "s"]), b"a\t1\nb\t2\n");
    let output = room.run("import s bad.tsv --on-error skip -q");
    assert!(text(&output.stderr).contains("line 2: no tab"), "quiet is about progress, not about what is left out");

    room.write("long.tsv", [&b"k".repeat(65_537)[..], b"\tv\n"].concat());
    assert!(room.fails(&["import", "s", "long.tsv"]).contains("65537 bytes"));
    room.write("bad.csv", "a,1\nb,2,3\n");
    assert!(room.fails(&["import", "s", "bad.csv"]).contains("line 2"));
    room.write("bad.tsv.gz", "this is no gzip");
    room.fails(&["import", "s", "bad.tsv.gz"]);
    room.write("words.txt", "a\t1\n");
    assert!(room.fails(&["import", "s", "words.txt"]).contains("--format"));
    assert!(room.fails(&["import", "s", "missing.tsv"]).contains("missing.tsv"));
}

#[test]
fn wrong_arguments_and_paths_say_what_to_do() {
    let room = Room::new();
    assert!(room.fails(&["get", "nowhere", "k"]).contains("nowhere"));
    assert!(!room.path("nowhere").exists(), "reading makes no store");
    room.ok(&["put", "s", "k", "v"]);
    assert!(room.fails(&["get", "s", "k", "--set", "memtabel=1"]).contains("memtabel"));
    assert!(room.fails(&["get", "s", "k", "--set", "cache_bytes=lots"]).contains("cache_bytes"));
    for line in ["get s k", "inspect s", "inspect s --html s.html"] {
        assert!(room.fails(&format!("{line} --keyspace other")).contains("the store has: default"), "{line}");
    }
    assert!(room.fails(&["put", "new", "k", "v", "--set", "keyspace.strategy=leveled"]).contains("leveled"));
    assert!(room.fails(&["put", "new", &"k".repeat(65_537), "v"]).contains("65537 bytes"));
    assert!(!room.path("new").exists(), "a refused option or record makes no store");
    assert!(room.fails(&["get", "s", "xyz", "--hex"]).contains("hexadecimal"));
    assert!(room.fails(&["compare", "--strategies", "leveling,nonsense"]).contains("nonsense"));
    assert!(room.fails(&["bench", "--workloads", "fillsequential"]).contains("fillseq"));
    room.write("options.toml", "cache_bytes = 1048576\n[keyspace]\nblock_bytes = 1\n");
    assert!(room.fails(&["get", "s", "k", "--options", "options.toml"]).contains("block_bytes"));
    room.write("a-file", "text");
    room.fails(&["put", "a-file", "k", "v"]);
    fs::create_dir(room.path("folder")).unwrap();
    room.write("folder/notes.txt", "mine");
    room.fails(&["put", "folder", "k", "v"]);
    assert_eq!(fs::read(room.path("folder/notes.txt")).unwrap(), b"mine");
    assert_eq!(fs::read_dir(room.path("folder")).unwrap().count(), 1, "a folder of something else stays as it is");
    let output = room.run(&["frobnicate", "s"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_second_writer_is_kept_out_and_ctrl_c_leaves_a_store_that_opens() {
    let room = Room::new();
    let mut child = room.command(&["import", "s", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let all = shuffled_tsv(50_000);
    let (first, rest) = all.as_bytes().split_at(all.len() / 2);
    stdin.write_all(first).unwrap();
    wait_for("the store", || room.path("s/SUPERBLOCK").exists());
    let error = room.fails(&["put", "s", "k", "v"]);
    assert!(error.contains("open already") && error.contains("close it"), "{error}");

    // Ctrl-C, then more input: the import must end by itself, with what it read stored.
    signal(&child, "-INT");
    let feeder = std::thread::spawn({
        let rest = rest.to_vec();
        move || stdin.write_all(&rest).ok()
    });
    let status = child.wait().unwrap();
    feeder.join().unwrap();
    let mut error = String::new();
    child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    assert_eq!(status.code(), Some(130), "{error}");
    let told: usize = error.split("interrupted: ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let stored = text(&room.ok(&["scan", "s", "--keys-only"]));
    assert_eq!(stored.lines().count(), told, "{error}");
    assert!(told > 0);
    room.ok(&["verify", "s"]);
    room.ok(&["put", "s", "k", "v"]);
}

#[test]
fn inspect_stats_checkpoint_compact_strategies() {
    let room = Room::new();
    room.write("in.tsv", shuffled_tsv(20_000));
    room.ok(&["import", "s", "in.tsv", "--set", "keyspace.memtable_bytes=64KiB", "--set", "keyspace.file_bytes=64KiB"]);
    let before = room.ok(&["export", "s"]);
    room.ok(&["compact", "s"]);
    assert_eq!(room.ok(&["export", "s"]), before, "compaction changes no record");
    // A backwards range passed for done, whatever the store.
    let output = room.run("compact s --from z --to a");
    assert!(output.status.success() && text(&output.stderr).contains("no key is in the range"), "{output:?}");
    assert!(room.fails("compact nostore --from z --to a").contains("nostore"));
    assert!(room.fails("compact s --from z --to a --keyspace nope").contains("default"));
    let trees = json(&room.ok(&["inspect", "s", "--json"]));
    let tree = &trees[0];
    assert_eq!((tree["keyspace"].as_str(), tree["entries"].as_u64()), (Some("default"), Some(20_000)), "{tree}");
    // All of it was in one run for a moment; what a level cannot hold then goes on to the next.
    let runs: Vec<_> =
        tree["levels"].as_array().unwrap().iter().flat_map(|level| level["runs"].as_array().unwrap()).collect();
    let mut bounds: Vec<_> =
        runs.iter().map(|run| (run["smallest_hex"].as_str(), run["largest_hex"].as_str())).collect();
    bounds.sort_unstable();
    assert!(bounds.is_sorted_by(|a, b| a.1 < b.0), "no two runs share a key: {tree}");
    assert_eq!(tree["runs"].as_u64(), Some(runs.len() as u64));
    let drawing = text(&room.ok(&["inspect", "s", "--files"]));
    assert!(drawing.contains("key00000000") && drawing.contains(".sst") && drawing.contains("`-- run"), "{drawing}");
    let stats = json(&room.ok(&["stats", "s", "--json"]));
    assert_eq!(stats["runs"], tree["runs"], "{stats}");
    assert!(text(&room.ok(&["stats", "s"])).contains("disk bytes"));
    room.ok(&["checkpoint", "s", "copy"]);
    room.ok(&["put", "s", "key00000000", "changed"]);
    assert_eq!(room.ok(&["export", "copy"]), before);
    room.ok(&["verify", "copy"]);
    assert!(room.fails(&["checkpoint", "s", "copy"]).contains("copy"));
    let names = json(&room.ok(&["strategies", "--json"]));
    let names: Vec<_> = names.as_array().unwrap().iter().map(|line| line["name"].as_str().unwrap()).collect();
    for name in ["leveling", "one-leveling", "tiering", "leveldb"] {
        assert!(names.contains(&name), "{names:?}");
        assert!(text(&room.ok(&["strategies", name])).contains("[[rule]]"));
    }
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let room = Room::new();
    room.write("in.tsv", shuffled_tsv(20_000));
    room.ok(&["import", "s", "in.tsv"]);
    for line in ["scan s", "export s"] {
        let mut child = room.command(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = [0; 3];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{line:?}: {}", text(&output.stderr));
    }
    // What `verify` finds is in its exit code as well: `siltstone verify s | head -1` passed for a healthy store.
    let sst = room.path("s/SUPERBLOCK");
    let mut bytes = fs::read(&sst).unwrap();
    bytes[10] ^= 0x10;
    fs::write(&sst, bytes).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = room.command("verify s").stdout(writer).output().unwrap();
    assert!(output.status.code() == Some(2) && output.stderr.is_empty(), "{output:?}");
}

/// "No space left on device" did not say where.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_standard_output_is_named() {
    let room = Room::new();
    room.ok("put s k v");
    for line in ["get s k", "scan s", "scan s --json", "stats s", "stats s --json", "export s"] {
        let full = fs::File::create("/dev/full").unwrap();
        let output = room.command(line).stdout(full).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {error}");
        assert!(error.starts_with("siltstone: standard output: No space left"), "{line}: {error}");
    }
}

/// The parser's own words for a key of any bytes named no way out.
#[cfg(unix)]
#[test]
fn an_argument_that_is_no_text_is_for_hex() {
    use std::os::unix::ffi::OsStrExt;
    let room = Room::new();
    let key = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    for line in ["put s", "get s", "delete s"] {
        let output = room.command(line).arg(key).output().unwrap();
        let error = text(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains("--hex"), "{line}: {error}");
    }
}

/// What the program said in place of these sent the user to the wrong thing.
#[test]
fn hints_are_about_what_failed() {
    let room = Room::new();
    let _writer = siltstone::Db::open(room.path("s"), siltstone::Options::default()).unwrap();
    let error = room.fails("checkpoint s copy");
    assert!(error.contains("open already") && !error.contains("work on a copy"), "{error}");

    room.write("kv.txt", "I a 1\nI b 2\nQ a\n");
    room.ok("trace import kv.txt kv.trace");
    let mut trace = fs::read(room.path("kv.trace")).unwrap();
    trace[20] ^= 0x10;
    room.write("kv.trace", trace);
    for line in ["trace fit kv.trace -q", "trace replay kv.trace t --as-fast-as-possible -q"] {
        let error = room.gives_up(line);
        assert!(error.contains("corruption") && !error.contains("store"), "{error}");
    }
    for line in
        ["compare --num 1000 --strategies rocksdb-fifo -q", "bench --num 10 --set keyspace.strategy=rocksdb-fifo -q"]
    {
        let error = room.gives_up(line);
        assert!(error.contains("--set keyspace.may_lose_oldest=true") && !error.contains("Keyspace::"), "{error}");
    }
    let error = room.fails("get s ada --set keyspace.nope=1");
    assert!(error.contains("unknown field `nope`") && !error.contains("may_lose_oldest=true"), "{error}");
}

/// Who may not read a file cannot tell that it is damaged.
#[test]
fn a_checkpoint_is_made_where_it_can_be_found() {
    let room = Room::new();
    room.ok("put s k v");
    let error = room.fails("checkpoint s nowhere/deeper/copy");
    assert!(error.contains("there is no folder") && !room.path("nowhere").exists(), "{error}");
    for dir in ["s/copy", "./s/copy", "other/../s/copy"] {
        fs::create_dir_all(room.path("other")).unwrap();
        let error = room.fails(&["checkpoint", "s", dir]);
        assert!(error.contains("inside the store") && !room.path("s/copy").exists(), "{error}");
    }
    room.ok("checkpoint s other/copy");
    room.ok("verify other/copy");
}

/// The first Ctrl-C was taken and nothing came of it.
#[test]
fn ctrl_c_ends_what_reads_a_store() {
    let room = Room::new();
    room.write("in.tsv", shuffled_tsv(200_000));
    room.ok("import s in.tsv -q --durability none");
    let whole = Instant::now();
    room.ok("verify s");
    let whole = whole.elapsed();
    for line in ["verify s", "stats s --scan"] {
        let (mut early, mut late) = (Duration::ZERO, whole);
        let is_ended = (0..40).any(|_| {
            let after = (early + late) / 2;
            let mut child = room.command(line).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(after);
            Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
            match child.wait().unwrap().code() {
                Some(130) => return true,
                // Nobody had asked for the signal yet.
                None => early = after,
                Some(_) => late = after,
            }
            if late - early < whole / 100 {
                (early, late) = (Duration::ZERO, whole);
            }
            false
        });
        assert!(is_ended, "{line}");
    }
}

#[test]
fn bench_runs_every_workload() {
    let room = Room::new();
    let rows = json(&room.ok(&["bench", "--num", "2000", "--json", "-q"]));
    let names: Vec<_> = rows.as_array().unwrap().iter().map(|row| row["workload"].as_str().unwrap()).collect();
    assert_eq!(names[0], "fillseq");
    assert_eq!(names.len(), 9);
    let row = |name: &str| &rows[names.iter().position(|n| *n == name).unwrap()];
    assert_eq!((row("readmissing")["found"].as_u64(), row("fillseq")["operations"].as_u64()), (Some(0), Some(2000)));
    assert!(row("readrandom")["found"].as_u64().unwrap() > 1000, "fillrandom stores about 63 % of the keys");
    assert!(rows.as_array().unwrap().iter().all(|row| row["ops_per_s"].as_f64().unwrap() > 0.0));
    assert!(text(&room.ok(&["bench", "mine", "--num", "1000", "--workloads", "fillseq,readseq"])).contains("readseq"));
    let tiering = "--set keyspace.strategy=tiering -q";
    let refused = room.fails(&format!("bench mine --num 1000 --workloads readseq {tiering}"));
    assert!(refused.contains("keeps the options") && refused.contains("fillrandom"), "{refused}");
    room.ok(&format!("bench mine --num 1000 --workloads fillrandom,readseq {tiering}"));
}

/// Beside other stores another program does the work; here one that only says what it was asked for.
#[cfg(unix)]
#[test]
fn bench_asks_the_program_of_the_peers() {
    use std::os::unix::fs::PermissionsExt;
    let room = Room::new();
    let (program, peers) = (room.path("siltstone"), room.path("siltstone-peers"));
    // Copied by another process: a program that is open for writing here is open in every child that another test starts at that moment, and
    // cannot be run as long as it is.
    let install = |from: &Path, to: &Path| {
        assert!(Command::new("cp").arg("-p").args([from, to]).status().unwrap().success());
    };
    install(Path::new(env!("CARGO_BIN_EXE_siltstone")), &program);
    let bench = |args: &str| {
        let mut command = Command::new(&program);
        command
            .arg("bench")
            .args(args.split(' '))
            .current_dir(room.dir())
            .env("PATH", "/bin:/usr/bin")
            .output()
            .unwrap()
    };
    let told = bench("--peers rocksdb");
    assert!(!told.status.success() && text(&told.stderr).contains("crates/siltstone-peers"), "{told:?}");
    let script = r#"#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in --json) rows=$2 ;; --dir) ;; *) args="$args $1 $2" ;; esac
    shift 2
done
echo "table:$args"
echo "{\"medians\": [\"$args\"]}" > "$rows"
"#;
    let written = room.path("peers.sh");
    fs::write(&written, script).unwrap();
    fs::set_permissions(&written, fs::Permissions::from_mode(0o755)).unwrap();
    install(&written, &peers);
    let asked =
        "--engines siltstone,rocksdb,fjall --num 500 --value-bytes 100 --reps 3 --seed 301 --workloads fillseq,ycsb-a";
    let told = bench("--peers rocksdb,fjall --num 500 --workloads fillseq,ycsb-a");
    assert_eq!(text(&told.stdout), format!("table: {asked}\n"), "{told:?}");
    let asked = " --engines siltstone,leveldb --num 1000000 --value-bytes 100 --reps 1 --seed 301 --reads 7";
    let told = bench("--peers leveldb --reps 1 --reads 7 --json");
    assert_eq!(json(&told.stdout), serde_json::json!([asked]));
    for refused in ["--set cache_bytes=1MiB", "mine", "--key-bytes 20"] {
        let told = bench(&format!("--peers rocksdb {refused}"));
        assert!(!told.status.success() && text(&told.stderr).contains("equal budgets"), "{refused}: {told:?}");
    }
}

#[test]
fn two_phases_tell_what_a_store_bears() {
    let room = Room::new();
    let short = ["two-phase", "--records", "2000", "--value-bytes", "100", "--duration", "2m", "-q"];
    let result = json(&room.ok(&[&short[..], &["--utilization", "0.5", "--json"]].concat()));
    assert_eq!(result["is_sustainable"], true, "{result}");
    for (asked, answer) in [
        ("world", "sim".into()),
        ("strategy", "one-leveling".into()),
        ("scheduler", "greedy".into()),
        ("testing_scheduler", "fair".into()),
        ("utilization", 0.5.into()),
        ("records", 2000.into()),
        ("seed", Value::from(1)),
    ] {
        assert_eq!(result[asked], answer, "{asked}: {result}");
    }
    let per_s = |name: &str| result[name]["ops_per_s"].as_f64().unwrap();
    assert!((per_s("running") / per_s("testing") - 0.5).abs() < 0.1, "{result}");
    let shown = text(&room.ok(&[&short[..], &["--utilization", "0.5", "--strategy", "tiering"]].concat()));
    assert!(
        shown.contains("\nsustainable: at ")
            && shown.lines().any(|line| line.starts_with("running, 50 %  ") && line.contains("  greedy  ")),
        "{shown}"
    );
    let near = json(&room.ok(&[&short[..], &["--utilization", "0.995", "--json"]].concat()));
    let rate = near["arrivals_per_s"].as_f64().unwrap() / near["testing"]["ops_per_s"].as_f64().unwrap();
    assert!(near["utilization"] == 0.995 && (rate - 0.995).abs() < 1e-3, "not rounded to a percent: {rate}, {near}");
    // Sizes for the simulation stand in the place of defaults alone.
    let stop = [&short[..], &["--set", "keyspace.write_control=stop", "--json"]].concat();
    let more = [&stop[..], &["--set", "write_memory_bytes=4MiB"]].concat();
    assert_ne!(room.ok(&stop), room.ok(&more), "memory for writes that was set");
    let disk = ["--world", "disk", "--duration", "1s", "--dir", ".", "--bandwidth", "1MiB", "--json"];
    let disk = json(&room.ok(&[&short[..5], &disk[..], &["-q"]].concat()));
    assert!(
        disk["testing"]["operations"].as_u64().unwrap() > 0 && disk["running"]["ops_per_s"].as_f64().unwrap() > 0.0
    );
    assert_eq!(fs::read_dir(room.dir()).unwrap().count(), 0, "the store is gone");
    for (wrong, allowed) in [
        (["--utilization", "1"], "below 1"),
        (["--utilization", "0"], "above 0"),
        (["--warm-up", "180s"], "--duration"),
        (["--bandwidth", "fast"], "100MiB"),
        (["--strategy", "levelling"], "one-leveling"),
        (["--strategy=tiering", "--set=keyspace.strategy=tiering"], "leave one out"),
        (["--scheduler=single", "--set=scheduler=single"], "leave one out"),
    ] {
        let output = room.run(&[&short[..], &wrong[..]].concat());
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        let named = wrong[1].trim_start_matches("--set=").trim_end_matches("=single").trim_end_matches("=tiering");
        assert!(error.contains(named) && error.contains(allowed), "{error}");
    }
}

#[test]
fn compare_tells_strategies_apart() {
    let room = Room::new();
    let rows = json(&room.ok(&["compare", "--num", "20000", "--json", "-q"]));
    let rows = rows.as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["strategy"].as_str().unwrap()).collect();
    assert_eq!(names, ["leveling", "one-leveling", "tiering", "leveldb"]);
    for row in rows {
        for figure in ["write_amplification", "read_amplification", "space_amplification", "load_ops_per_s", "cpu_s"] {
            assert!(row[figure].as_f64().is_some(), "{figure}: {row}");
        }
        assert!(row["write_amplification"].as_f64().unwrap() > 0.9, "every record is flushed: {row}");
        assert_eq!(row["fingerprint"], rows[0]["fingerprint"]);
    }
    let figure = |row: usize, name: &str| rows[row][name].as_f64().unwrap();
    assert!(figure(0, "write_amplification") > figure(2, "write_amplification"), "leveling writes more than tiering");
    assert!(!room.path("siltstone-compare.html").exists(), "--json alone writes no report");
    room.ok("compare --num 2000 --strategy tiering --json -q --html siltstone-compare.html");
    fs::remove_file(room.path("siltstone-compare.html")).unwrap();

    room.write("in.tsv", shuffled_tsv(5000));
    let shown = text(&room.ok(&["compare", "in.tsv", "--strategies", "leveling,tiering", "--dir", "."]));
    assert!(shown.contains("WA") && shown.contains('*') && shown.contains("memtable"), "{shown}");
    let page = fs::read_to_string(room.path("siltstone-compare.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("in.tsv"));
    assert!(!fs::read_dir(room.dir()).unwrap().any(|entry| entry.unwrap().path().is_dir()), "the stores are gone");
    room.write("empty.tsv", "");
    assert!(room.fails(&["compare", "empty.tsv", "-q"]).contains("no records"));
}

#[test]
fn strategies_are_shown_planned_and_set() {
    let room = Room::new();
    let list = text(&room.ok(&["strategies"]));
    let head = list.lines().next().unwrap();
    assert_eq!(
        head.split_whitespace().collect::<Vec<_>>(),
        ["NAME", "LAYOUT", "TRIGGERS", "GRANULARITY", "MOVEMENT", "SOURCE"]
    );
    let tiering = list.lines().find(|line| line.starts_with("tiering ")).unwrap();
    assert!(tiering.contains("sorted-runs") && tiering.contains("luo19"), "{tiering}");
    let count: u64 = text(&room.ok(&["strategies", "--count"])).trim().parse().unwrap();
    assert!(count > 10_000, "{count}");
    assert_eq!(json(&room.ok(&["strategies", "--count", "--json"]))["valid"], count);

    room.write("in.tsv", shuffled_tsv(20_000));
    let mine = text(&room.ok(&["strategies", "leveling"])).replace("name = \"leveling\"", "name = \"mine\"");
    room.write("mine.toml", &mine);
    let small = ["--set", "keyspace.memtable_bytes=64KiB", "--set", "keyspace.file_bytes=64KiB"];
    // Without a log all of it is flushed before the command ends: a plan counts only what is in files.
    let import = ["import", "s", "in.tsv", "--durability", "none", "--set", "keyspace.strategy=tiering"];
    room.ok(&[&import[..], &small[..]].concat());
    let records = room.ok(&["export", "s"]);
    let plan = json(&room.ok(&["strategy", "plan", "s", "./mine.toml", "--json"]));
    assert_eq!((plan["from"].as_str(), plan["to"].as_str()), (Some("tiering"), Some("mine")));
    assert!(plan["read_bytes"].as_u64().unwrap() > 0 && plan["settled"] == true, "{plan}");
    assert!(text(&room.ok(&["strategy", "plan", "s", "leveling"])).contains("extra space"));
    assert!(
        text(&room.ok(&["strategy", "show", "s"])).starts_with("default: tiering (built in)"),
        "a plan changes nothing"
    );
    room.ok(&["strategy", "set", "s", "./mine.toml", "--wait"]);
    let shown = json(&room.ok(&["strategy", "show", "s", "--json"]));
    assert_eq!((shown["name"].as_str(), &shown["progress"]["is_done"]), (Some("mine"), &Value::Bool(true)), "{shown}");
    assert_eq!(shown["text"].as_str(), Some(&mine[..]));
    assert!(shown["levels"].as_array().unwrap().iter().all(|level| level["runs"].as_u64().unwrap() <= 1), "{shown}");
    assert_eq!(room.ok(&["export", "s"]), records);
    room.ok(&["strategy", "set", "s", "tiering"]);
    assert!(text(&room.ok(&["inspect", "s"])).contains("tiering"));
    room.ok(&["verify", "s"]);

    // One that drops the oldest data must be allowed to.
    let refused = room.fails(&["strategy", "set", "s", "rocksdb-fifo"]);
    assert!(refused.contains("may_lose_oldest = true"), "{refused}");
    let fifo = text(&room.ok(&["strategies", "rocksdb-fifo"])).replace("memtables = 16.0", "memtables = 3.0");
    room.write("fifo.toml", &fifo);
    let set = room.run(&["strategy", "set", "s", "./fifo.toml", "--may-lose-oldest", "--wait"]);
    assert!(set.status.success() && text(&set.stderr).contains("dropped with their data"), "{set:?}");
    assert!(room.ok(&["export", "s"]).len() < records.len());
    assert!(text(&room.ok(&["stats", "debt", "s"])).contains("do not wait for their number"));
    let both = ["compare", "in.tsv", "--strategies", "tiering,./fifo.toml,leveling", "--json", "-q"];
    let allow = ["--set", "keyspace.may_lose_oldest=true"];
    let rows = json(&room.ok(&[&both[..], &allow[..]].concat()));
    assert_eq!(
        (&rows[1]["compaction_bytes_written"], &rows[2]["fingerprint"]),
        (&Value::from(0), &rows[0]["fingerprint"])
    );
    assert!(room.fails(&both).contains("may_lose_oldest"));

    // A file stands wherever a name may.
    let rows = json(&room.ok(&["compare", "in.tsv", "--strategies", "tiering,./mine.toml", "--json", "-q"]));
    assert_eq!(rows[1]["strategy"], "mine");
    room.ok(&["bench", "--num", "1000", "--workloads", "fillseq", "--set", "keyspace.strategy=./mine.toml", "-q"]);
    assert!(room.fails(&["strategy", "set", "s", "levelling"]).contains("one-leveling"));
    room.write("wrong.toml", mine.replace("size_ratio = 10", "size_ratio = 1"));
    for line in [
        &["strategy", "set", "s", "./wrong.toml"][..],
        &["compare", "in.tsv", "--strategies", "./wrong.toml"],
        &["put", "t", "k", "v", "--set", "keyspace.strategy=./wrong.toml"],
    ] {
        let error = room.fails(line);
        assert!(
            error.contains("wrong.toml") && error.contains("line 4") && error.contains("from 2 to 1000"),
            "{error}"
        );
    }
}

#[test]
fn help_has_examples() {
    let room = Room::new();
    for command in
        ["get", "import", "export", "verify", "compare", "bench", "inspect", "strategies", "strategy", "two-phase"]
    {
        let help = text(&room.ok(&[command, "--help"]));
        assert!(help.contains("Examples:"), "{help}");
        // Where no terminal says how wide it is.
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    }
    assert!(Path::new(env!("CARGO_BIN_EXE_siltstone")).exists());
}
