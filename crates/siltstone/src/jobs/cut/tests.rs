use super::*;
use crate::compaction::guards::Guarded;
use crate::io::Rng;
use crate::version::text::parse_file;
use crate::version::{LevelId, RunOrder};

const RULE: CutRule = CutRule { file_bytes: 100, align: false, grandparent_bytes: 0, guards: None };

fn grandparents(words: &[&str]) -> Vec<Arc<FileMeta>> {
    words.iter().map(|word| Arc::new(parse_file(word, RunOrder(1)).unwrap())).collect()
}

/// Feeds keys of 10 bytes each; the files that come out, as strings of their keys.
fn files(rule: CutRule, grandparents: Vec<Arc<FileMeta>>, keys: &str) -> Vec<String> {
    let mut cut = OutputCut::new(rule, grandparents);
    let mut files = vec![String::new()];
    let mut last = None;
    for key in keys.chars() {
        let bytes = files.last().map_or(0, |file| 10 * u64::try_from(file.len()).unwrap());
        if cut.before(key.to_string().as_bytes(), last != Some(key), bytes) {
            files.push(String::new());
        }
        files.last_mut().unwrap().push(key);
        last = Some(key);
    }
    files
}

#[test]
fn a_file_ends_at_its_size_but_never_within_a_key() {
    assert_eq!(files(RULE, Vec::new(), "abcdefghijklmnopqrstuvw"), ["abcdefghij", "klmnopqrst", "uvw"]);
    assert_eq!(files(RULE, Vec::new(), "abcdefghiiiiiijk"), ["abcdefghiiiiii", "jk"]);
}

#[test]
fn aligned_files_end_at_a_border_from_half_of_the_size_on() {
    let rule = CutRule { align: true, ..RULE };
    // The borders behind c and before d come too early; that behind g is the third: 65 % are enough.
    assert_eq!(files(rule, grandparents(&["1:a-c:1K", "2:d-g:1K"]), "abcdefghijk"), ["abcdefg", "hijk"]);
    assert_eq!(files(rule, grandparents(&["1:a-c:1K"]), "abcdefghijk"), ["abcdefghij", "k"]);
    // A grandparent that would be skipped as a whole ends the file, unless it is small.
    assert_eq!(files(rule, grandparents(&["1:c-d:13"]), "abz"), ["ab", "z"]);
    assert_eq!(files(rule, grandparents(&["1:c-d:12"]), "abz"), ["abz"]);
    // With a limit, the file counts too: 20 bytes and 81.
    let limited = CutRule { grandparent_bytes: 100, ..rule };
    assert_eq!(files(limited, grandparents(&["1:c-z:81"]), "abcd"), ["ab", "cd"]);
    assert_eq!(files(limited, grandparents(&["1:c-z:80"]), "abcd"), ["abcd"]);
}

/// RocksDB's rule without a running state: where a key lies among the borders is counted from the start each time.
fn oracle(rule: CutRule, grandparents: &[(char, char, u64)], keys: &str) -> Vec<String> {
    let region = |key: char| {
        grandparents.iter().map(|(first, last, _)| usize::from(*first <= key) + usize::from(*last < key)).sum::<usize>()
    };
    let overlapped = |from: char, to: char| -> u64 {
        grandparents.iter().filter(|(first, last, _)| *first <= to && *last >= from).map(|(.., bytes)| bytes).sum()
    };
    let mut files: Vec<String> = Vec::new();
    for key in keys.chars() {
        let Some(file) = files.last_mut() else {
            files.push(key.to_string());
            continue;
        };
        let (start, last) = (file.chars().next().unwrap(), file.chars().last().unwrap());
        let bytes = 10 * u64::try_from(file.len()).unwrap();
        let crossed = region(key) - region(last);
        let borders = region(key) - region(start);
        let skipped = overlapped(start, key) - overlapped(start, last);
        let skippable = if region(key) % 2 == 0 { 2 } else { 3 };
        let percent = [50, 55, 60, 65, 70, 75, 80, 85, 90][borders.min(8)];
        let ends = bytes >= rule.file_bytes
            || crossed > 0
                && (rule.grandparent_bytes > 0 && overlapped(start, key) + bytes > rule.grandparent_bytes
                    || crossed >= skippable && skipped > rule.file_bytes / 8
                    || bytes >= rule.file_bytes.div_ceil(100) * percent);
        if ends && key != last {
            files.push(key.to_string());
        } else {
            file.push(key);
        }
    }
    files
}

#[test]
fn aligned_files_end_where_the_oracle_says() {
    let mut rng = Rng::new(9);
    let letter = |n: u64| char::from(b'A' + u8::try_from(n).unwrap());
    let mut inside = 0;
    for _ in 0..10_000 {
        let mut keys: Vec<char> = (0..rng.between(1, 80)).map(|_| letter(rng.below(58))).collect();
        keys.sort_unstable();
        let text: String = keys.into_iter().filter(char::is_ascii_alphabetic).collect();
        let mut borders: Vec<char> = (0..rng.below(12) * 2).map(|_| letter(rng.below(58))).collect();
        borders.retain(char::is_ascii_alphabetic);
        borders.sort_unstable();
        borders.dedup();
        let below: Vec<(char, char, u64)> =
            borders.chunks_exact(2).map(|pair| (pair[0], pair[1], rng.between(1, 100))).collect();
        let words: Vec<String> = below.iter().map(|(first, last, bytes)| format!("1:{first}-{last}:{bytes}")).collect();
        let metas = grandparents(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let rule = CutRule {
            file_bytes: 10 * rng.between(1, 30),
            align: true,
            grandparent_bytes: if rng.one_in(2) { 0 } else { rng.between(50, 400) },
            guards: None,
        };
        let found: Vec<String> = files(rule, metas, &text).into_iter().filter(|file| !file.is_empty()).collect();
        assert_eq!(found, oracle(rule, &below, &text), "{rule:?} over {below:?}");
        inside += u64::from(found.iter().any(|file| 10 * (file.len() as u64) < rule.file_bytes));
    }
    assert!(inside > 5000, "only {inside} lists were cut at a border");
}

#[test]
fn the_overlap_with_grandparents_is_bounded() {
    let rule = CutRule { grandparent_bytes: 2048, ..RULE };
    let below = grandparents(&["1:a-a:1K", "2:b-b:1K", "3:c-c:1K", "4:d-d:1K", "5:e-z:1K"]);
    assert_eq!(files(rule, below, "abcdef"), ["abc", "def"]);
}

#[test]
fn no_rule_ever_splits_a_key_or_makes_an_empty_file() {
    let mut rng = Rng::new(3);
    for _ in 0..5_000 {
        let mut keys: Vec<char> =
            (0..rng.between(1, 60)).map(|_| char::from(b'a' + u8::try_from(rng.below(20)).unwrap())).collect();
        keys.sort_unstable();
        let text: String = keys.into_iter().collect();
        let mut borders: Vec<char> =
            (0..rng.below(8) * 2).map(|_| char::from(b'a' + u8::try_from(rng.below(20)).unwrap())).collect();
        borders.sort_unstable();
        borders.dedup();
        let words: Vec<String> = borders.chunks_exact(2).map(|pair| format!("1:{}-{}:1K", pair[0], pair[1])).collect();
        let below = grandparents(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let rule = CutRule {
            file_bytes: 10 * rng.between(1, 20),
            align: rng.one_in(2),
            grandparent_bytes: 1024 * rng.below(3),
            guards: rng.one_in(2).then(|| Guarded { guard_bits: 3, ..Guarded::default() }.mask(LevelId(0))),
        };
        let files = files(rule, below, &text);
        assert_eq!(files.concat(), text);
        assert!(files.iter().all(|file| !file.is_empty()));
        assert!(files.windows(2).all(|pair| pair[0].chars().last() < pair[1].chars().next()), "{files:?}");
        // A guard begins a file.
        let is_guard = |key: char| rule.guards.is_some_and(|guards| guards.is_guard(key.to_string().as_bytes()));
        let within = |file: &String| file.chars().any(|key| !file.starts_with(key) && is_guard(key));
        assert!(!files.iter().any(within), "{files:?}");
    }
}
