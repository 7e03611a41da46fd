//! The comparison as rows of text, the best value of each column marked.

use super::units::{bytes, duration_ns, number};
use crate::compare::Row;
use crate::num::float;

/// One figure of one strategy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// As shown.
    pub text: String,
    /// Whether no other strategy is better, and at least one is worse.
    pub best: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Better {
    High,
    Low,
}

struct Column {
    title: &'static str,
    better: Better,
    value: fn(&Row) -> f64,
    show: fn(f64) -> String,
}

const COLUMNS: [Column; 15] = [
    Column { title: "load op/s", better: Better::High, value: |row| row.load_ops_per_s, show: number },
    Column { title: "read op/s", better: Better::High, value: |row| row.read_ops_per_s, show: number },
    Column { title: "missing/s", better: Better::High, value: |row| row.missing_read_ops_per_s, show: number },
    Column { title: "scan rec/s", better: Better::High, value: |row| row.scan_ops_per_s, show: number },
    Column { title: "write p50", better: Better::Low, value: |row| float(row.write_latency.p50_ns), show: time },
    Column { title: "p99", better: Better::Low, value: |row| float(row.write_latency.p99_ns), show: time },
    Column { title: "p99.9", better: Better::Low, value: |row| float(row.write_latency.p999_ns), show: time },
    Column { title: "max", better: Better::Low, value: |row| float(row.write_latency.max_ns), show: time },
    Column { title: "WA", better: Better::Low, value: |row| row.write_amplification, show: two_decimals },
    Column { title: "RA", better: Better::Low, value: |row| row.read_amplification, show: two_decimals },
    Column { title: "SA", better: Better::Low, value: |row| row.space_amplification, show: three_decimals },
    Column { title: "runs", better: Better::Low, value: |row| float(row.runs), show: number },
    Column { title: "disk", better: Better::Low, value: |row| float(row.disk_bytes), show: size },
    Column { title: "compactions", better: Better::Low, value: |row| float(row.compactions), show: number },
    Column { title: "CPU s", better: Better::Low, value: |row| row.cpu_s, show: one_decimal },
];

fn time(ns: f64) -> String {
    duration_ns(crate::num::floor(ns))
}

fn size(n: f64) -> String {
    bytes(crate::num::floor(n))
}

fn one_decimal(value: f64) -> String {
    format!("{value:.1}")
}

fn two_decimals(value: f64) -> String {
    format!("{value:.2}")
}

fn three_decimals(value: f64) -> String {
    format!("{value:.3}")
}

/// The titles of the columns of [`table`], "strategy" first.
pub fn titles() -> Vec<&'static str> {
    std::iter::once("strategy").chain(COLUMNS.iter().map(|column| column.title)).collect()
}

/// One line for each row: the strategy's name, then a cell for each column. Two values that show alike are equally good.
pub fn table(rows: &[Row]) -> Vec<(String, Vec<Cell>)> {
    let mut lines: Vec<_> = rows.iter().map(|row| (row.strategy.clone(), Vec::new())).collect();
    for column in &COLUMNS {
        let best = best_text(column, rows);
        for (row, (_, cells)) in rows.iter().zip(&mut lines) {
            let text = (column.show)((column.value)(row));
            cells.push(Cell { best: best.as_ref() == Some(&text), text });
        }
    }
    lines
}

/// How the best value of a column shows; `None` where all show alike, since nothing is best then.
fn best_text(column: &Column, rows: &[Row]) -> Option<String> {
    let order = |a: &f64, b: &f64| match column.better {
        Better::Low => a.total_cmp(b),
        Better::High => b.total_cmp(a),
    };
    let values = || rows.iter().map(column.value);
    let best = values().min_by(order).map(column.show)?;
    let worst = values().max_by(order).map(column.show)?;
    (best != worst).then_some(best)
}
