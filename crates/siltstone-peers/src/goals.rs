//! What Siltstone is to reach beside the other stores, in one place.

use crate::engines::Engine;
use crate::report::{self, Line};

/// Operations a second, over those of others.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Goal {
    /// Over RocksDB's.
    over_rocksdb: f64,
    /// Over those of the best LSM store among the others.
    over_best: f64,
}

const fn goal(over_rocksdb: f64, over_best: f64) -> Goal {
    Goal { over_rocksdb, over_best }
}

/// Of records with about a hundred bytes.
const SMALL: [(&str, Goal); 14] = [
    ("fillseq", goal(3.0, 2.5)),
    ("fillrandom", goal(3.5, 3.2)),
    ("overwrite", goal(3.5, 3.2)),
    ("readrandom", goal(3.0, 2.8)),
    ("readmissing", goal(2.5, 2.1)),
    ("seekrandom", goal(5.0, 2.6)),
    ("readwhilewriting", goal(2.5, 2.0)),
    ("ycsb-a", goal(2.5, 2.2)),
    ("ycsb-b", goal(2.5, 2.2)),
    ("ycsb-c", goal(2.5, 2.2)),
    ("ycsb-d", goal(2.5, 2.2)),
    ("ycsb-e", goal(5.0, 2.5)),
    ("ycsb-f", goal(2.5, 2.2)),
    ("deleterandom", goal(2.5, 2.2)),
];
/// Of records with about a KiB, whatever is done with them: a share of the time goes into copying them.
const LARGE: Goal = goal(2.0, 1.7);
/// From so many bytes on a value is large.
const LARGE_BYTES: usize = 512;
/// Where the store does not fit into memory and the disk is what is waited for.
const READS_BEYOND_MEMORY: Goal = goal(1.2, 1.1);
const WRITES_BEYOND_MEMORY: Goal = goal(1.8, 1.5);
const WRITES: [&str; 4] = ["fillseq", "fillrandom", "overwrite", "deleterandom"];

/// The goal of a workload with values of `value_bytes` bytes, if it has one.
fn of(workload: &str, value_bytes: usize, is_beyond_memory: bool) -> Option<Goal> {
    let small = SMALL.iter().find(|(name, _)| *name == workload).map(|(_, goal)| *goal)?;
    Some(match () {
        () if is_beyond_memory && WRITES.contains(&workload) => WRITES_BEYOND_MEMORY,
        () if is_beyond_memory => READS_BEYOND_MEMORY,
        () if value_bytes >= LARGE_BYTES => LARGE,
        () => small,
    })
}

/// Siltstone beside RocksDB and the best LSM store, and beside what is to be reached: a row for each workload.
pub(crate) fn overview(lines: &[Line], value_bytes: usize, is_beyond_memory: bool) -> String {
    #[rustfmt::skip]
    let mut table = report::new_table(&[
        "workload", "siltstone kops/s", "rocksdb", "x rocksdb", "goal", "best LSM peer", "its kops/s", "x best", "goal", "reached",
    ]);
    for ours in lines.iter().filter(|line| line.engine == Engine::Siltstone) {
        let best = best_peer(lines, &ours.workload);
        let over_best = best.map(|best| ours.kops / best.kops);
        let goal = of(&ours.workload, value_bytes, is_beyond_memory);
        let number = |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |v| format!("{v:.digits$}"));
        let reached = goal.zip(ours.ratio).zip(over_best).map(|((goal, ratio), over_best)| {
            if ratio >= goal.over_rocksdb && over_best >= goal.over_best { "yes" } else { "no" }
        });
        table.add_row(vec![
            ours.workload.clone(),
            number(Some(ours.kops), 1),
            number(ours.ratio.map(|ratio| ours.kops / ratio), 1),
            number(ours.ratio, 2),
            number(goal.map(|goal| goal.over_rocksdb), 1),
            best.map_or("-", |best| best.engine.name()).to_owned(),
            number(best.map(|best| best.kops), 1),
            number(over_best, 2),
            number(goal.map(|goal| goal.over_best), 1),
            reached.unwrap_or("-").to_owned(),
        ]);
    }
    table.to_string()
}

/// The best LSM store besides Siltstone: its line among those of `workload`.
fn best_peer<'a>(lines: &'a [Line], workload: &str) -> Option<&'a Line> {
    let peers = lines.iter().filter(|line| line.workload == workload && line.engine != Engine::Siltstone);
    peers.filter(|line| line.engine.is_lsm()).max_by(|a, b| a.kops.total_cmp(&b.kops))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_hangs_on_the_size_of_values_and_on_memory() {
        assert_eq!(of("seekrandom", 100, false), Some(goal(5.0, 2.6)));
        assert_eq!(of("seekrandom", 1024, false), Some(LARGE));
        assert_eq!(of("seekrandom", 1024, true), Some(READS_BEYOND_MEMORY));
        assert_eq!(of("overwrite", 1024, true), Some(WRITES_BEYOND_MEMORY));
        assert_eq!(of("ycsb-load", 100, false), None);
        assert!(WRITES.iter().all(|name| of(name, 100, false).is_some()));
    }
}
