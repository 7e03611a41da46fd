use super::*;
use crate::compaction::{LsmView, Sizes, Strategy, plan};
use crate::version::text::parse;

const SIZES: Sizes = Sizes { memtable_bytes: 10 << 10, file_bytes: 10 << 10, size_ratio: 0, level1_bytes: 0 };

fn merge() -> Decision {
    let version = parse("L0 4:a-z:1K\nL0 3:a-z:1K\nL0 2:b-c:1K\nL0 1:a-z:1K\nL1 9:a-z:1K\n").unwrap();
    let view = LsmView::new(&version, SIZES);
    let plan = plan(&Strategy::named("1-lvl").unwrap(), &view).unwrap().unwrap();
    let decision = Decision::new(&plan, KeyspaceId(0), "one-leveling");
    assert_eq!(decision.to_string(), plan.to_string());
    assert_eq!((decision.from_level, decision.to_level), (0, 1));
    decision
}

#[test]
fn time_is_predicted_from_merges_that_were_done() {
    let decision = merge();
    assert_eq!(decision.input_bytes(), decision.record.read_bytes);
    let after = |ending, bytes_read, took_ns| Decision {
        ended: Some(Ended { ending, bytes_read, bytes_written: bytes_read, took_ns, ..Ended::default() }),
        ..decision.clone()
    };
    assert_eq!(predict_ns([].iter(), 100), None);
    let moved = Decision { action: Action::Move, ..after(Ending::Done, 100, 1) };
    let failed = after(Ending::Failed("full".to_owned()), 1000, 1);
    assert_eq!(
        predict_ns([&moved, &failed, &decision].into_iter(), 100),
        None,
        "none of them is a merge that was done"
    );
    let done = [after(Ending::Done, 100, 400), moved, after(Ending::Done, 100, 600), failed];
    assert_eq!(predict_ns(done.iter(), 80), Some(200), "400 bytes in 1000 ns");
    // Old merges are forgotten.
    let many: Vec<_> = std::iter::repeat_n(after(Ending::Done, 100, 10), 3)
        .chain(std::iter::repeat_n(after(Ending::Done, 100, 200), PREDICT_FROM))
        .collect();
    assert_eq!(predict_ns(many.iter(), 10), Some(10));
    assert_eq!(predict_ns([after(Ending::Done, 100, 0)].iter(), 10), None, "no time, no throughput");
}

#[test]
fn many_inputs_are_counted_and_not_listed() {
    let text: String = (0..40).map(|n| format!("{}:{n:02}a-{n:02}z:1K ", n + 10)).collect();
    let version = parse(&format!("L0 9:00-40:1K\nL0 8:00-40:1K\nL0 7:00-40:1K\nL0 6:00-40:1K\nL1 {text}\n")).unwrap();
    let view = LsmView::new(&version, SIZES);
    let plan = plan(&Strategy::named("1-lvl").unwrap(), &view).unwrap().unwrap();
    let decision = Decision::new(&plan, KeyspaceId(0), "x");
    let last = decision.inputs.last().unwrap();
    assert_eq!((last.files, last.ids.len(), last.bytes), (40, MAX_INPUT_FILES, 40 << 10));
    assert!(decision.to_string().contains("(and 24 more) -> L1"), "{decision}");
}
