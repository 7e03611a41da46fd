use super::*;
use crate::compare::{Comparison, Fixed, Row, Scale, Survey};
use siltstone::Options;

mod folder;

fn rows() -> Vec<Row> {
    let row = |strategy: &str, wa, ra, runs| Row {
        strategy: strategy.to_owned(),
        write_amplification: wa,
        read_amplification: ra,
        runs,
        tree: vec![vec![1000, 500], vec![], vec![1 << 20]],
        ..Row::default()
    };
    vec![row("leveling", 9.0, 1.0, 4), row("<tiering>", 3.0, 1.5, 4)]
}

#[test]
fn units_are_short_and_right_at_their_borders() {
    assert_eq!(
        [0, 1023, 1024, 1536, 1 << 20, 5 << 40].map(bytes),
        ["0 B", "1023 B", "1 KiB", "1.50 KiB", "1 MiB", "5 TiB"]
    );
    assert_eq!(bytes((1 << 20) - 1), "1 MiB", "not 1024 KiB");
    assert_eq!(
        [999, 1_000, 12_340, 4_560_000, 1_200_000_000].map(duration_ns),
        ["999 ns", "1 us", "12.3 us", "4.56 ms", "1.20 s"]
    );
    assert_eq!(
        [0.0, 4.0, 77.0, 77.25, 950.0, 12_345.0, 4.56e6].map(number),
        ["0", "4", "77", "77.2", "950", "12.3 K", "4.56 M"]
    );
}

#[test]
fn the_best_is_marked_and_a_draw_is_not() {
    let lines = table(&rows());
    let column = |title: &str| titles().iter().position(|t| *t == title).unwrap() - 1;
    let best = |title: &str| lines.iter().map(|(_, cells)| cells[column(title)].best).collect::<Vec<_>>();
    assert_eq!(best("WA"), [false, true]);
    assert_eq!(best("RA"), [true, false]);
    assert_eq!(best("runs"), [false, false], "all alike: nothing is best");
}

/// The data of a page.
fn data_of(page: &str) -> serde_json::Value {
    let json = page.split("id=\"figures\">").nth(1).unwrap().split("</script>").next().unwrap();
    serde_json::from_str(json).unwrap()
}

#[test]
fn a_comparison_is_a_page_that_no_name_can_break() {
    let comparison = Comparison {
        input: "</script><script>alert(1)</script>.tsv".to_owned(),
        survey: Survey { records: 1, key_bytes: 1, value_bytes: 1, sampled_keys: 1, ascending_share: 0.0 },
        scale: Scale::new(&Options::default(), Fixed::default(), 1),
        updates: 0,
        deletes: 0,
        reads: 1,
        missing_reads: 0,
        seed: 1,
        rows: rows(),
    };
    let page = html(&comparison);
    assert_eq!(page.matches("<script").count(), 2, "the data and the script");
    assert!(!page.contains("<tiering>") && !page.contains("alert(1)</script>"));
    assert!(!page.contains("/*STYLE*/") && !page.contains("/*DATA*/") && page.contains("MIT"), "every part is there");
    let data = data_of(&page);
    assert_eq!(data["subjects"][1]["name"], "<tiering>");
    assert_eq!(data["subjects"][1]["rows"][0]["levels"][2]["runs"][0], 1 << 20);
}
