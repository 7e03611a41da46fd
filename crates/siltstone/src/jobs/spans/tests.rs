use super::*;
use crate::io::Rng;

fn whole(bytes: u64) -> Span {
    Span { from: None, before: None, of: 1, bytes, raw_bytes: 2 * bytes + 1 }
}

/// Samples of runs that overlap, each of which begins somewhere and has as many bytes from each of its keys to the next.
fn samples(rng: &mut Rng) -> Vec<Sample> {
    let mut samples = Vec::new();
    for _ in 0..rng.between(1, 9) {
        let (from, step, bytes) = (rng.below(500), rng.between(1, 20), rng.between(1, 1000));
        let key = |n| Bytes::from(format!("{:06}", from + n * step));
        samples.extend((0..rng.between(1, 60)).map(|n| Sample { key: key(n), bytes }));
    }
    samples
}

#[test]
fn spans_follow_each_other_and_are_about_equal() {
    let mut rng = Rng::new(5);
    let mut divided = 0;
    for round in 0..2000 {
        let samples = samples(&mut rng);
        let bytes = samples.iter().map(|sample| sample.bytes).sum();
        // What begins at one key is not divided.
        let mut at: std::collections::BTreeMap<Bytes, u64> = std::collections::BTreeMap::new();
        samples.iter().for_each(|sample| *at.entry(sample.key.clone()).or_default() += sample.bytes);
        let largest = at.values().copied().max().unwrap();
        let parts = rng.between(1, 8);
        let spans = whole(bytes).cut(samples, parts);
        assert!((1..=parts).contains(&to_u64(spans.len())), "round {round}");
        assert!(spans.iter().all(|span| span.of == spans.len()));
        assert_eq!(spans.iter().map(|span| span.bytes).sum::<u64>(), bytes, "round {round}");
        assert_eq!(spans.iter().map(|span| span.raw_bytes).sum::<u64>(), 2 * bytes + 1, "round {round}");
        assert!(spans[0].from.is_none() && spans[spans.len() - 1].before.is_none());
        for pair in spans.windows(2) {
            assert!(pair[0].before.is_some() && pair[0].before == pair[1].from, "round {round}: {pair:?}");
            assert!(pair[0].from < pair[0].before, "round {round}: {pair:?}");
        }
        assert!(spans.iter().all(|span| span.bytes <= bytes / parts + 1 + largest), "round {round}: {spans:?}");
        assert!(spans.iter().all(|span| span.bytes > 0), "round {round}: {spans:?}");
        divided += usize::from(spans.len() > 1);
    }
    assert!(divided > 1500, "{divided}");
}

#[test]
fn one_key_is_not_divided() {
    let sample = |key: &'static str| Sample { key: Bytes::from_static(key.as_bytes()), bytes: 10 };
    assert_eq!(whole(30).cut(vec![sample("a"), sample("a"), sample("a")], 3), [whole(30)]);
    let spans = whole(30).cut(vec![sample("a"), sample("a"), sample("b")], 3);
    assert_eq!(spans.iter().map(|span| span.bytes).collect::<Vec<_>>(), [20, 10]);
}
