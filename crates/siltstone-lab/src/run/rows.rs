//! The rows of all trials, as JSON lines and as one CSV table.

use std::collections::BTreeMap;
use std::fs;

use anyhow::Context;
use siltstone::{Error, ErrorKind};

use super::folder::{ROW, Results, write_file};
use super::question::{Question, Task, check_format};
use super::row::Row;
use super::stage::{Stage, stages};
use crate::metrics::LatencySummary;
use crate::strategy::choose;
use crate::workload::Spec;

/// Of the results folder.
const ROWS_JSONL: &str = "rows.jsonl";
const ROWS_CSV: &str = "rows.csv";

/// Reads the rows of all trials and writes them down together. Everything comes from the trials' folders, so that it is the same whether they were
/// made at once, on several machines, or after an interruption.
pub(super) fn gather(results: &Results) -> anyhow::Result<Vec<Row>> {
    let tasks = results.question().tasks()?;
    let (mut rows, mut lines) = (Vec::new(), String::new());
    for task in &tasks {
        let path = results.trial(task).join(ROW);
        let line = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let value: serde_json::Value = serde_json::from_str(&line).with_context(|| path.display().to_string())?;
        check_format(&value).with_context(|| path.display().to_string())?;
        rows.push(serde_json::from_str(&line).with_context(|| path.display().to_string())?);
        lines += line.trim_end();
        lines.push('\n');
    }
    check_same(results.question(), &tasks, &rows)?;
    write_file(&results.folder().join(ROWS_JSONL), &lines)?;
    write_file(&results.folder().join(ROWS_CSV), &csv(&rows)?)?;
    Ok(rows)
}

/// Strategies that were given the same operations must end with the same records. They were given the same only where one client did a number of
/// operations: what several clients do takes turns as it comes, and how much is done in a time depends on the store. Those that drop the
/// oldest data are compared with none.
fn check_same(question: &Question, tasks: &[Task], rows: &[Row]) -> anyhow::Result<()> {
    let spec = Spec::parse(&question.spec, &question.name)?;
    if !stages(&spec).iter().all(Stage::is_fixed) {
        return Ok(());
    }
    let mut first: BTreeMap<u32, &Row> = BTreeMap::new();
    for (task, row) in tasks.iter().zip(rows) {
        if choose(&task.strategy.text)?.loses_oldest() {
            continue;
        }
        let first = first.entry(task.repetition).or_insert(row);
        if (&first.fingerprint, first.live_records) != (&row.fingerprint, row.live_records) {
            let what = format!(
                "strategies {:?} and {:?} end with different records ({} and {}): please report this as a bug",
                first.strategy, row.strategy, first.live_records, row.live_records
            );
            return Err(Error::new(ErrorKind::Corruption, what).into());
        }
    }
    Ok(())
}

/// One line a trial; what a trial has not is empty.
fn csv(rows: &[Row]) -> anyhow::Result<String> {
    let rows: Vec<Vec<(String, String)>> = rows.iter().map(cells).collect();
    let mut columns: Vec<&str> = Vec::new();
    for (name, _) in rows.iter().flatten() {
        if !columns.contains(&&name[..]) {
            columns.push(name);
        }
    }
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(&columns)?;
    for row in &rows {
        let cell = |column: &&str| row.iter().find(|(name, _)| name == column).map_or("", |(_, cell)| cell);
        writer.write_record(columns.iter().map(cell))?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

/// The figures of a row by the names of their columns; those of a phase and a kind as `PHASE.KIND.FIGURE`. The levels are in the JSON only.
fn cells(row: &Row) -> Vec<(String, String)> {
    let mut cells = Vec::new();
    macro_rules! add {
        ($($field:ident)*) => { $(cells.push((stringify!($field).to_owned(), row.$field.to_string()));)* };
    }
    add! { workload strategy repetition seed world generator_version elapsed_s operations ops_per_s write_amplification
    read_amplification space_amplification log_write_amplification disk_reads_per_get runs_probed_per_get cache_hit_ratio flushes
    compactions trivial_moves compaction_bytes_read compaction_bytes_written }
    latency(&mut cells, "compaction_latency", &row.compaction_latency);
    add! { compaction_cpu_s compaction_io_s tombstones oldest_tombstone_s runs files disk_bytes live_records live_bytes settle_s stall_s }
    cells.push(("cpu_s".to_owned(), row.cpu_s.map_or_else(String::new, |cpu_s| cpu_s.to_string())));
    cells.push(("memory_bytes".to_owned(), row.memory_bytes.map_or_else(String::new, |bytes| bytes.to_string())));
    add! { fingerprint }
    for phase in &row.phases {
        let name = &phase.name;
        cells.push((format!("{name}.elapsed_s"), phase.elapsed_s.to_string()));
        cells.push((format!("{name}.operations"), phase.operations.to_string()));
        cells.push((format!("{name}.ops_per_s"), phase.ops_per_s.to_string()));
        for (kind, of) in &phase.kinds {
            cells.push((format!("{name}.{kind}.found"), of.found.to_string()));
            latency(&mut cells, &format!("{name}.{kind}.latency"), &of.latency);
            latency(&mut cells, &format!("{name}.{kind}.processing"), &of.processing);
        }
    }
    cells
}

fn latency(cells: &mut Vec<(String, String)>, name: &str, latency: &LatencySummary) {
    let LatencySummary { count, mean_ns, p50_ns, p90_ns, p99_ns, p999_ns, max_ns } = *latency;
    cells.push((format!("{name}.count"), count.to_string()));
    cells.push((format!("{name}.mean_ns"), mean_ns.to_string()));
    for (figure, ns) in
        [("p50_ns", p50_ns), ("p90_ns", p90_ns), ("p99_ns", p99_ns), ("p999_ns", p999_ns), ("max_ns", max_ns)]
    {
        cells.push((format!("{name}.{figure}"), ns.to_string()));
    }
}
