use super::*;
use crate::io::Rng;
use crate::version::RunOrder;
use crate::version::text::parse_file;

const RULE: CutRule = CutRule { file_bytes: 100, align: false, grandparent_bytes: 0 };

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
    // The border after c comes too early, the one after g counts.
    assert_eq!(files(rule, grandparents(&["1:a-c:1K", "2:d-g:1K"]), "abcdefghijk"), ["abcdefg", "hijk"]);
    assert_eq!(files(rule, grandparents(&["1:a-c:1K"]), "abcdefghijk"), ["abcdefghij", "k"]);
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
        };
        let files = files(rule, below, &text);
        assert_eq!(files.concat(), text);
        assert!(files.iter().all(|file| !file.is_empty()));
        assert!(files.windows(2).all(|pair| pair[0].chars().last() < pair[1].chars().next()), "{files:?}");
    }
}
