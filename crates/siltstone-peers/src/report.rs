//! From the rows of all repetitions to medians, spreads and ratios; as tables and as JSON.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::engines::Engine;
use crate::row::Row;

/// The engine that ratios refer to.
const MARK: Engine = Engine::RocksDb;

/// One line of the table: medians over the repetitions.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) workload: String,
    pub(crate) engine: Engine,
    pub(crate) repetitions: usize,
    pub(crate) kops: f64,
    /// How far the repetitions lie apart: largest less smallest `kops`, over their median.
    pub(crate) spread: f64,
    /// `kops` over RocksDB's; none without RocksDB.
    pub(crate) ratio: Option<f64>,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
    pub(crate) slowest_tenth: Option<f64>,
    pub(crate) stolen_s: f64,
    pub(crate) max_undisturbed_us: Option<f64>,
    pub(crate) slowest_undisturbed: Option<f64>,
    pub(crate) settled_kops: Option<f64>,
    /// `settled_kops` over RocksDB's.
    pub(crate) settled_ratio: Option<f64>,
    /// `kops` of two readers over those of one.
    pub(crate) over_one: Option<f64>,
    pub(crate) write_amp: Option<f64>,
    pub(crate) space_amp: Option<f64>,
    pub(crate) disk_bytes: f64,
    /// CPU seconds of a million operations, those of a writer beside included, until settled.
    pub(crate) cpu_s_per_million: f64,
    pub(crate) peak_rss_bytes: f64,
    pub(crate) anon_bytes: f64,
    /// Of the writer beside `readwhilewriting`.
    pub(crate) writer_kops: Option<f64>,
    pub(crate) writer_max_us: Option<f64>,
}

/// The medians of `rows`: workloads in the order in which they come, engines in that of `engines`.
pub(crate) fn summarize(rows: &[Row], engines: &[Engine]) -> Vec<Line> {
    let place = |row: &Row| {
        let workload = rows.iter().position(|other| other.workload == row.workload);
        (workload, engines.iter().position(|&engine| engine == row.engine))
    };
    let mut groups: BTreeMap<_, Vec<&Row>> = BTreeMap::new();
    rows.iter().for_each(|row| groups.entry(place(row)).or_default().push(row));
    let mut lines: Vec<Line> = groups.values().map(|group| line(group)).collect();
    let marks: BTreeMap<String, (f64, Option<f64>)> = lines
        .iter()
        .filter(|line| line.engine == MARK)
        .map(|line| (line.workload.clone(), (line.kops, line.settled_kops)))
        .collect();
    let ones: BTreeMap<Engine, f64> =
        lines.iter().filter(|line| line.workload == "readrandom").map(|line| (line.engine, line.kops)).collect();
    for line in &mut lines {
        if let Some(&(kops, settled_kops)) = marks.get(&line.workload) {
            line.ratio = Some(line.kops / kops);
            line.settled_ratio = line.settled_kops.zip(settled_kops).map(|(ours, theirs)| ours / theirs);
        }
        if line.workload == "readrandom2" {
            line.over_one = ones.get(&line.engine).map(|one| line.kops / one);
        }
    }
    lines
}

fn line(group: &[&Row]) -> Line {
    let over = |figure: &dyn Fn(&Row) -> f64| median(group.iter().map(|row| figure(row)).collect());
    let maybe = |figure: &dyn Fn(&Row) -> Option<f64>| {
        let all: Vec<f64> = group.iter().filter_map(|row| figure(row)).collect();
        (!all.is_empty()).then(|| median(all))
    };
    let kops = over(&|row| row.kops);
    let fastest = group.iter().map(|row| row.kops).fold(f64::MIN, f64::max);
    let slowest = group.iter().map(|row| row.kops).fold(f64::MAX, f64::min);
    Line {
        workload: group[0].workload.clone(),
        engine: group[0].engine,
        repetitions: group.len(),
        kops,
        spread: (fastest - slowest) / kops,
        ratio: None,
        p50_us: over(&|row| row.p50_us),
        p99_us: over(&|row| row.p99_us),
        p999_us: over(&|row| row.p999_us),
        max_us: over(&|row| row.max_us),
        slowest_tenth: maybe(&|row| row.slowest_tenth),
        stolen_s: over(&|row| row.stolen_s),
        max_undisturbed_us: maybe(&|row| row.max_undisturbed_us),
        slowest_undisturbed: maybe(&|row| row.slowest_undisturbed),
        settled_kops: maybe(&|row| row.settled_kops),
        settled_ratio: None,
        over_one: None,
        write_amp: maybe(&|row| row.write_amp),
        space_amp: maybe(&|row| row.space_amp),
        disk_bytes: over(&|row| crate::float(row.disk_bytes)),
        cpu_s_per_million: over(&|row| {
            let beside = row.writer.as_ref().map_or(0, |writer| writer.puts);
            row.cpu_s / crate::float(row.ops + beside) * 1e6
        }),
        peak_rss_bytes: over(&|row| crate::float(row.peak_rss_bytes)),
        anon_bytes: over(&|row| crate::float(row.anon_bytes)),
        writer_kops: maybe(&|row| row.writer.as_ref().map(|writer| writer.kops)),
        writer_max_us: maybe(&|row| row.writer.as_ref().map(|writer| writer.max_us)),
    }
}

/// The middle of `values`, of an even number of them the mean of the middle two; there is at least one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

/// The lines in full.
pub(crate) fn table(lines: &[Line]) -> String {
    #[rustfmt::skip]
    let mut table = new_table(&[
        "workload", "engine", "kops/s", "x rocksdb", "spread", "p50 us", "p99 us", "p99.9 us", "max ms", "worst 0.1 s",
        "stolen s", "max ms, none stolen", "worst 0.1 s, none stolen",
        "settled", "x rocksdb", "x one", "write amp", "space amp", "disk MiB", "CPU s/M", "RSS MiB", "anon MiB",
        "writer kops/s", "its max ms",
    ]);
    let mut last = "";
    for line in lines {
        let workload = if last == line.workload { "" } else { &line.workload };
        last = &line.workload;
        let maybe = |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |v| format!("{v:.digits$}"));
        table.add_row(vec![
            workload.to_owned(),
            line.engine.name().to_owned(),
            format!("{:.1}", line.kops),
            maybe(line.ratio, 2),
            format!("{:.0}%", line.spread * 100.0),
            format!("{:.2}", line.p50_us),
            format!("{:.1}", line.p99_us),
            format!("{:.1}", line.p999_us),
            format!("{:.2}", line.max_us / 1000.0),
            maybe(line.slowest_tenth, 2),
            format!("{:.2}", line.stolen_s),
            maybe(line.max_undisturbed_us.map(|us| us / 1000.0), 2),
            maybe(line.slowest_undisturbed, 2),
            maybe(line.settled_kops, 1),
            maybe(line.settled_ratio, 2),
            maybe(line.over_one, 2),
            maybe(line.write_amp, 2),
            maybe(line.space_amp, 2),
            format!("{:.0}", line.disk_bytes / f64::from(1 << 20)),
            format!("{:.2}", line.cpu_s_per_million),
            format!("{:.0}", line.peak_rss_bytes / f64::from(1 << 20)),
            format!("{:.0}", line.anon_bytes / f64::from(1 << 20)),
            maybe(line.writer_kops, 1),
            maybe(line.writer_max_us.map(|us| us / 1000.0), 2),
        ]);
    }
    table.to_string()
}

/// Thousands of operations a second, a row for each workload and a column for each engine, with the ratio to RocksDB.
pub(crate) fn overview(lines: &[Line], engines: &[Engine]) -> String {
    let names: Vec<&str> = engines.iter().map(|engine| engine.name()).collect();
    let mut table = new_table(&[&["kops/s (x rocksdb)"], names.as_slice()].concat());
    let mut workloads: Vec<&str> = lines.iter().map(|line| &line.workload[..]).collect();
    workloads.dedup();
    for workload in workloads {
        let cell = |&engine: &Engine| {
            let line = lines.iter().find(|line| line.workload == workload && line.engine == engine);
            line.map_or("-".to_owned(), |line| match line.ratio {
                Some(ratio) if engine != MARK => format!("{:.1} ({ratio:.2})", line.kops),
                _ => format!("{:.1}", line.kops),
            })
        };
        let mut row = vec![workload.to_owned()];
        row.extend(engines.iter().map(cell));
        table.add_row(row);
    }
    table.to_string()
}

/// An empty table.
pub(crate) fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header.iter().copied());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::row::Writer;

    pub(crate) fn row(engine: Engine, kops: f64) -> Row {
        Row {
            engine,
            workload: "fillseq".to_owned(),
            ops: 1,
            found: 0,
            elapsed_s: 1.0,
            idle_s: 0.0,
            kops,
            p50_us: 1.0,
            p99_us: 1.0,
            p999_us: 1.0,
            max_us: 1.0,
            slowest_tenth: None,
            stolen_s: 0.0,
            max_undisturbed_us: None,
            slowest_undisturbed: None,
            settled_kops: Some(kops / 2.0),
            write_amp: None,
            written_bytes: 0,
            disk_bytes: 0,
            space_amp: None,
            fingerprint: None,
            contents: None,
            cpu_s: 0.0,
            peak_rss_bytes: 0,
            anon_bytes: 0,
            statistics: serde_json::Value::Null,
            writer: None,
        }
    }

    /// The puts' work was told as the reads'.
    #[test]
    fn a_writer_beside_has_its_share_of_the_cpu() {
        let writer = Writer { puts: 1_000_000, kops: 50.0, p99_us: 1.0, max_us: 1.0 };
        let both = Row { ops: 3_000_000, cpu_s: 8.0, writer: Some(writer), ..row(MARK, 1.0) };
        assert_eq!(summarize(&[both], &[MARK])[0].cpu_s_per_million, 2.0);
    }

    #[test]
    fn ratios_are_those_of_medians() {
        let ours = [90.0, 120.0, 500.0].map(|kops| row(Engine::Siltstone, kops));
        let theirs = [100.0, 1.0, 99.0].map(|kops| row(MARK, kops));
        let lines = summarize(&[ours, theirs].concat(), &[Engine::Siltstone, MARK]);
        assert_eq!((lines[0].engine, lines[0].kops), (Engine::Siltstone, 120.0));
        assert_eq!(lines[0].ratio, Some(120.0 / 99.0));
        assert_eq!(lines[0].settled_ratio, Some(120.0 / 99.0));
        assert_eq!(lines[1].spread, 1.0);
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), 2.5);
    }
}
