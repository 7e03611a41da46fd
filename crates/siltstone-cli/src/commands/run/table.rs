//! The tables at the end of a run.

use siltstone::Options;
use siltstone_lab::num::{count, float};
use siltstone_lab::report::{bytes, duration_ns, number};
use siltstone_lab::run::{DEFINITIONS, Question, Row};

use crate::output::{Cell, text_table};

/// A column: its title, its figure, how that is shown, whether less or more is better.
struct Column {
    title: &'static str,
    figure: fn(&Row) -> Option<f64>,
    show: fn(f64) -> String,
    best: Best,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Best {
    Least,
    Most,
    Neither,
}

/// The figures of a whole trial.
const COLUMNS: [Column; 12] = [
    Column { title: "ops/s", figure: |row| Some(row.ops_per_s), show: number, best: Best::Most },
    Column { title: "WA", figure: |row| Some(row.write_amplification), show: two, best: Best::Least },
    Column { title: "RA", figure: |row| Some(row.read_amplification), show: two, best: Best::Least },
    Column { title: "SA", figure: |row| Some(row.space_amplification), show: two, best: Best::Least },
    Column { title: "cache", figure: |row| Some(row.cache_hit_ratio), show: percent, best: Best::Most },
    Column { title: "runs", figure: |row| Some(float(row.runs)), show: number, best: Best::Neither },
    Column { title: "disk", figure: |row| Some(float(row.disk_bytes)), show: size, best: Best::Least },
    Column { title: "merges", figure: |row| Some(float(row.compactions)), show: number, best: Best::Neither },
    Column { title: "tombstones", figure: |row| Some(float(row.tombstones)), show: number, best: Best::Least },
    Column { title: "stalled", figure: |row| Some(row.stall_s), show: time, best: Best::Least },
    Column { title: "settle", figure: |row| Some(row.settle_s), show: time, best: Best::Least },
    Column { title: "CPU", figure: |row| row.cpu_s, show: time, best: Best::Least },
];

/// What came of `question`.
pub(super) fn text(question: &Question, rows: &[Row]) -> anyhow::Result<String> {
    let options = Options::from_text(&question.options)?;
    let mut out = format!(
        "{}, {} world: memtable {}, files {}, cache {}\n\n",
        question.name,
        question.world.name(),
        bytes(options.keyspace.memtable_bytes),
        bytes(options.keyspace.file_bytes),
        bytes(options.cache_bytes)
    );
    // Rows stand by strategy, then repetition.
    let of_strategies: Vec<&[Row]> = rows.chunk_by(|a, b| a.strategy == b.strategy).collect();
    out += &totals(&of_strategies);
    if question.repeat > 1 {
        let repeat = question.repeat;
        out += &format!("each figure is the mean of {repeat} repetitions; +- is the largest distance from it\n\n");
        out += &format!("by operation, of the first of {repeat} repetitions:");
    }
    out += "\n";
    out += &operations(&of_strategies);
    out += "\n* best of the column\n";
    for (name, meaning) in DEFINITIONS {
        out += &format!("{name}: {meaning}\n");
    }
    Ok(out)
}

fn totals(of_strategies: &[&[Row]]) -> String {
    let shown: Vec<&Column> =
        COLUMNS.iter().filter(|column| of_strategies.iter().any(|rows| mean(rows, column).is_some())).collect();
    let mut titles = vec!["strategy"];
    titles.extend(shown.iter().map(|column| column.title));
    let line = |rows: &&[Row]| {
        let mut cells = vec![Cell::from(rows[0].strategy.clone())];
        for column in &shown {
            let all = || of_strategies.iter().filter_map(|rows| mean(rows, column));
            let mine = mean(rows, column);
            let best = match column.best {
                Best::Least => all().min_by(f64::total_cmp),
                Best::Most => all().max_by(f64::total_cmp),
                Best::Neither => None,
            };
            // Where all are alike, none is best.
            let differ = all().any(|figure| Some(figure) != mine);
            let marked = best.is_some() && best == mine && differ;
            cells.push(Cell {
                text: mine.map_or_else(String::new, |mine| (column.show)(mine) + &spread(rows, column, mine)),
                marked,
            });
        }
        cells
    };
    text_table(&titles, &of_strategies.iter().map(line).collect::<Vec<_>>())
}

/// Latencies of each kind of operation in each phase; of several repetitions, those of the first.
fn operations(of_strategies: &[&[Row]]) -> String {
    let titles = ["phase, operation, strategy", "count", "ops/s", "mean", "p50", "p99", "p99.9", "max", "found"];
    let mut lines: Vec<Vec<Cell>> = Vec::new();
    let Some(first) = of_strategies.first() else { return String::new() };
    for (at, phase) in first[0].phases.iter().enumerate() {
        for kind in phase.kinds.keys() {
            for rows in of_strategies {
                let Some(phase) = rows[0].phases.get(at) else { continue };
                let Some(of) = phase.kinds.get(kind) else { continue };
                let time = |ns| Cell::from(duration_ns(ns));
                let latency = &of.latency;
                let per_s = if phase.elapsed_s > 0.0 { float(of.count) / phase.elapsed_s } else { 0.0 };
                lines.push(vec![
                    format!("{}, {kind}, {}", phase.name, rows[0].strategy).into(),
                    number(float(of.count)).into(),
                    number(per_s).into(),
                    time(siltstone_lab::num::floor(latency.mean_ns)),
                    time(latency.p50_ns),
                    time(latency.p99_ns),
                    time(latency.p999_ns),
                    time(latency.max_ns),
                    number(float(of.found)).into(),
                ]);
            }
        }
    }
    text_table(&titles, &lines)
}

fn mean(rows: &[Row], column: &Column) -> Option<f64> {
    let figures: Vec<f64> = rows.iter().filter_map(column.figure).collect();
    (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / float(count(figures.len())))
}

/// ` +-3 %`; nothing if that is below half a percent.
fn spread(rows: &[Row], column: &Column, mean: f64) -> String {
    let most = rows.iter().filter_map(column.figure).map(|figure| (figure - mean).abs()).fold(0.0, f64::max);
    let percent = if mean == 0.0 { 0.0 } else { 100.0 * most / mean.abs() };
    if percent < 0.5 { String::new() } else { format!(" +-{percent:.0} %") }
}

fn two(figure: f64) -> String {
    format!("{figure:.2}")
}

fn percent(figure: f64) -> String {
    format!("{:.1} %", 100.0 * figure)
}

fn size(figure: f64) -> String {
    bytes(siltstone_lab::num::floor(figure))
}

fn time(figure: f64) -> String {
    format!("{figure:.2} s")
}
