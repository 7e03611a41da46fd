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
    let long = format!("{}\tv\nb\t2", "k".repeat(MAX_KEY_BYTES + 1));
    assert!(read(Format::Tsv, &long)[0].starts_with("1: a key of 65537 bytes"));
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
