use super::*;

/// Every format gives back what it was given, or refuses it.
#[test]
fn what_is_written_is_read_again() {
    let odd: [&[u8]; 14] = [
        b"",
        b"a",
        b" ",
        b"a b",
        b"\"",
        b"\"\"",
        b",",
        b"\r",
        b"a\r\n",
        b"\t",
        b"{}",
        b"\xff\x00\xfe",
        "\u{1f4a1} \u{e9}".as_bytes(),
        b"\\n",
    ];
    for format in [Format::Tsv, Format::Csv, Format::Jsonl] {
        for header in [false, true] {
            let mut writer = format.writer(Vec::new(), header).unwrap();
            let mut expected = Vec::new();
            for key in odd {
                for value in odd {
                    match writer.write(key, value) {
                        Ok(()) => expected.push((key.to_vec(), value.to_vec())),
                        Err(error) => assert!(format == Format::Tsv && error.to_string().contains("jsonl"), "{error}"),
                    }
                }
            }
            assert_eq!(expected.len(), if format == Format::Tsv { 12 * 13 } else { 14 * 14 });
            let text = writer.finish().unwrap();
            let mut reader = format.reader(Box::new(&text[..]), header);
            let mut found = Vec::new();
            loop {
                match reader.next().unwrap() {
                    Next::Record => found.push((reader.key().to_vec(), reader.value().to_vec())),
                    Next::Bad(why) => panic!("{format:?}, line {}: {why}", reader.line()),
                    Next::End => break,
                }
            }
            assert_eq!(found, expected, "{format:?}");
        }
    }
}

/// Lists what a reader makes of a text: the key, or the line and the reason.
fn read(format: Format, text: &str) -> Vec<String> {
    let mut reader = format.reader(Box::new(text.as_bytes()), false);
    let mut found = Vec::new();
    loop {
        match reader.next().unwrap() {
            Next::Record => found.push(String::from_utf8_lossy(reader.key()).into_owned()),
            Next::Bad(why) => found.push(format!("{}: {why}", reader.line())),
            Next::End => return found,
        }
    }
}

#[test]
fn bad_lines_are_told_with_their_number_and_reading_goes_on() {
    assert_eq!(
        read(Format::Tsv, "a\t1\nno tab\n\nb\t2"),
        ["a", "2: no tab between key and value: no tab", "3: no tab between key and value: (empty)", "b"]
    );
    let csv = read(Format::Csv, "a,1\nx\n\"multi\nline\",2\ny,1,2\nb,2\n");
    assert_eq!(csv[0], "a");
    assert!(csv[1].starts_with("2: 1 column") && csv[3].starts_with("5: 3 columns"), "{csv:?}");
    assert_eq!(csv[4], "b");
    // An end of line of two bytes, and blank lines, were counted with the record after them.
    let csv = read(Format::Csv, "a,1\r\nb\r\n\r\n\"c\r\n\r\n\",2\r\nd,1,2\r\n");
    assert!(csv[1].starts_with("2: 1 column") && csv[3].starts_with("7: 3 columns") && csv.len() == 4, "{csv:?}");
    assert!(read(Format::Csv, "a,1\rb\nc,3")[1].starts_with("1: 1 column"));
    let csv = read(Format::Csv, &format!("a,{}\n\n\nb\n", "v".repeat(1 << 20)));
    assert!(csv[1].starts_with("4: 1 column") && csv.len() == 2, "{csv:?}");
    let json = read(
        Format::Jsonl,
        "{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":1}\n\n{\"key\":\"k\"}\n{\"key\":\"k\",\"value\":\"\",\"more\":1}\n{\"key_hex\":\"0g\",\"value\":\"\"}\n{\"value_hex\":\"00\",\"key_hex\":\"62\"}",
    );
    assert_eq!(json.len(), 6, "{json:?}");
    assert!(
        json[1].starts_with("2: ") && json[2] == "4: neither value nor value_hex" && json[3].contains("more"),
        "{json:?}"
    );
    assert_eq!((json[4].as_str(), json[5].as_str()), ("6: key_hex is not hexadecimal", "b"));
    let mark = "\u{feff}";
    assert_eq!(
        read(Format::Jsonl, &format!("{mark}{}", r#"{"key":"a","value":"1"}"#)),
        ["a"],
        "as some programs begin"
    );
    assert!(read(Format::Jsonl, &format!("\n{mark}{{}}"))[0].starts_with("2: "), "elsewhere it is none of JSON's");
    let long = format!("{}\tv\nb\t2", "k".repeat(MAX_KEY_BYTES + 1));
    assert!(read(Format::Tsv, &long)[0].starts_with("1: a key of 65537 bytes"));
}

/// All lines after an open quote went into one value, and the import said that all was well.
#[test]
fn an_open_quote_is_a_bad_record() {
    for (text, keys, line) in [
        ("a,\"x\nb,2\nc,3\n", 0, 1),
        ("a,\"x\nb,2\nc,3", 0, 1),
        ("a,1\r\n\r\nb,\"x\r\nc,3\r\n", 1, 3),
        ("a,1\nb,\"", 1, 2),
        ("a,1\nb,\"two \"\" quotes\"\"", 1, 2),
    ] {
        let found = read(Format::Csv, text);
        let told = found.last().unwrap();
        assert!(found.len() == keys + 1 && told.starts_with(&format!("{line}: a quote is left open")), "{found:?}");
    }
    for text in ["a,\"x\"", "a,\"x\"\r\n", "a,x\"y", "a,\"x\ny\"\n\n", "a,1\r", "a,\"\""] {
        assert_eq!(read(Format::Csv, text), ["a"], "{text:?}");
    }
    let mut reader = Format::Csv.reader(Box::new(&b"key,\"value\na,1\nb,2\n"[..]), true);
    assert!(matches!(reader.next().unwrap(), Next::Bad(why) if why.contains("quote")), "in the header");
    assert_eq!((reader.line(), reader.next().unwrap()), (1, Next::End));
    for empty in ["", "key,value", "\n\n"] {
        let mut reader = Format::Csv.reader(Box::new(empty.as_bytes()), true);
        assert_eq!((reader.next().unwrap(), reader.next().unwrap()), (Next::End, Next::End), "{empty:?}");
    }
}

#[test]
fn a_line_that_is_too_long_is_skipped_without_being_held() {
    let mut lines = lines::Lines::new(&b"12345\n123456\n1\n123456789"[..], 5);
    assert_eq!((lines.next().unwrap(), lines.line()), (Next::Record, &b"12345"[..]));
    assert!(matches!(lines.next().unwrap(), Next::Bad(_)));
    assert_eq!((lines.next().unwrap(), lines.line(), lines.number()), (Next::Record, &b"1"[..], 3));
    assert!(matches!(lines.next().unwrap(), Next::Bad(_)));
    assert_eq!(lines.next().unwrap(), Next::End);
}

#[test]
fn the_ending_tells_format_and_codec() {
    assert_eq!(Format::of_name("a/b.TSV.gz"), (Some(Format::Tsv), Codec::Gzip));
    assert_eq!(Format::of_name("b.ndjson.zst"), (Some(Format::Jsonl), Codec::Zstd));
    assert_eq!(Format::of_name("tsv"), (None, Codec::Plain));
    assert_eq!(Format::of_name("words.txt.gz"), (None, Codec::Gzip));
    assert!(format_for(None, "words.txt").unwrap_err().to_string().contains("--format"));
}
