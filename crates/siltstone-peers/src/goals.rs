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
/// Where the store does not fit into memory and the disk is what is waited for.
const READS_BEYOND_MEMORY: Goal = goal(1.2, 1.1);
const WRITES_BEYOND_MEMORY: Goal = goal(1.8, 1.5);
/// Whose goal holds until all debt is paid as well.
const SETTLED: [&str; 2] = ["fillrandom", "overwrite"];
const WRITES: [&str; 4] = ["fillseq", "fillrandom", "overwrite", "deleterandom"];

/// Whether records with values of so many bytes have the goals of large ones.
pub(crate) fn is_large(value_bytes: usize) -> bool {
    value_bytes >= 512
}

/// The goal of a workload with values of `value_bytes` bytes, if it has one.
fn of(workload: &str, value_bytes: usize, is_beyond_memory: bool) -> Option<Goal> {
    let small = SMALL.iter().find(|(name, _)| *name == workload).map(|(_, goal)| *goal)?;
    Some(match () {
        () if is_beyond_memory && WRITES.contains(&workload) => WRITES_BEYOND_MEMORY,
        () if is_beyond_memory => READS_BEYOND_MEMORY,
        () if is_large(value_bytes) => LARGE,
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
        let goal = of(&ours.workload, value_bytes, is_beyond_memory);
        table.add_row(beside(ours, lines, ours.workload.clone(), goal, |line| Some(line.kops)));
        if SETTLED.contains(&&*ours.workload) && !is_beyond_memory {
            let name = format!("{}, settled", ours.workload);
            table.add_row(beside(ours, lines, name, goal, |line| line.settled_kops));
        }
    }
    table.to_string()
}

/// The row `name` of the overview: `rate` of our line beside that of the others.
fn beside(
    ours: &Line,
    lines: &[Line],
    name: String,
    goal: Option<Goal>,
    rate: impl Fn(&Line) -> Option<f64>,
) -> Vec<String> {
    let others = lines.iter().filter(|line| line.workload == ours.workload && line.engine != Engine::Siltstone);
    let peers = others.filter(|line| line.engine.is_lsm()).filter_map(|line| Some((line.engine, rate(line)?)));
    let rocksdb = peers.clone().find(|(engine, _)| *engine == Engine::RocksDb);
    let best = peers.max_by(|a, b| a.1.total_cmp(&b.1));
    let mine = rate(ours);
    let over = |peer: Option<(Engine, f64)>| Some(mine? / peer?.1);
    let reached = goal.zip(over(rocksdb)).zip(over(best)).map(|((goal, over_rocksdb), over_best)| {
        if over_rocksdb >= goal.over_rocksdb && over_best >= goal.over_best { "yes" } else { "no" }
    });
    let number = |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |v| format!("{v:.digits$}"));
    vec![
        name,
        number(mine, 1),
        number(rocksdb.map(|(_, rate)| rate), 1),
        number(over(rocksdb), 2),
        number(goal.map(|goal| goal.over_rocksdb), 1),
        best.map_or("-", |(engine, _)| engine.name()).to_owned(),
        number(best.map(|(_, rate)| rate), 1),
        number(over(best), 2),
        number(goal.map(|goal| goal.over_best), 1),
        reached.unwrap_or("-").to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::row;
    use crate::row::Row;

    #[test]
    fn what_is_settled_has_a_row_and_a_verdict_of_its_own() {
        let fill = |engine, kops, settled_kops| Row {
            workload: "fillrandom".to_owned(),
            settled_kops: Some(settled_kops),
            ..row(engine, kops)
        };
        let rows = [fill(Engine::Siltstone, 90.0, 30.0), fill(Engine::RocksDb, 10.0, 10.0)];
        let lines = report::summarize(&rows, &[Engine::Siltstone, Engine::RocksDb]);
        let verdicts = |is_beyond_memory| {
            let table = overview(&lines, 100, is_beyond_memory);
            let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
            let rows = table.lines().map(cells).filter(|cells| cells[1].starts_with("fillrandom"));
            rows.map(|cells| [1, 4, 10].map(|at| cells[at].clone())).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(false), [["fillrandom", "9.00", "yes"], ["fillrandom, settled", "3.00", "no"]]);
        assert_eq!(verdicts(true), [["fillrandom", "9.00", "yes"]]);
    }

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
