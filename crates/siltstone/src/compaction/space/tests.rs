use super::*;
use crate::compaction::{Sizes, Strategy, plan};
use crate::version::text::parse;

const SIZES: Sizes = Sizes { memtable_bytes: 100 << 10, file_bytes: 1000, size_ratio: 0, level1_bytes: 0 };

/// Parts went to the newest run here and to the oldest there, as their merges would: two merges undid each other's parts for ever.
#[test]
fn parts_bring_data_to_the_oldest_run_and_leave_it_there() {
    let strategy = Strategy::named("cassandra-ucs").unwrap();
    let part = |tree: &str| {
        let version = parse(tree).unwrap();
        let view = LsmView::new(&version, SIZES);
        let plan = plan(&strategy, &view).unwrap().unwrap();
        let cost = |files: &[&Arc<FileMeta>]| files.iter().map(|file| file.bytes).sum();
        let part = cut(&view, &plan, 4 << 10, cost).unwrap();
        let ids: Vec<u64> = part.files().map(|file| file.id.0).collect();
        assert!(part.inputs.iter().all(|input| input.place() <= part.output), "{part}");
        assert_eq!(part.output, plan.inputs.last().unwrap().place(), "{part}");
        ids
    };
    let all = "L0 7:a-b:1K 8:m-n:1K\nL0 5:a-b:1K 6:m-n:1K\nL0 3:a-b:1K 4:m-n:1K\nL0 1:a-b:1K 2:m-n:1K\n";
    assert_eq!(part(all), [7, 5, 3, 1]);
    assert_eq!(part("L0 8:m-n:1K\nL0 6:m-n:1K\nL0 4:m-n:1K\nL0 1:a-b:4K 2:m-n:1K\n"), [8, 6, 4, 2]);
}
