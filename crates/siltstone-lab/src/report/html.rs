//! One self-contained page: no script, no font, no network; good in light and dark, on paper too.

use std::fmt::Write;

use super::charts::{self, SERIES};
use super::table::{table, titles};
use super::units::{bytes, number};
use crate::compare::{Comparison, DEFINITIONS};
use crate::num::float;

/// `text` with the characters that mean something in HTML replaced. Strategy and file names come from the user.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// The comparison as an HTML page.
pub fn html(comparison: &Comparison) -> String {
    let rows = &comparison.rows;
    let mut out = String::with_capacity(64 << 10);
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Siltstone: {} strategies compared</title>\n<style>\n{}{}</style>\n</head>\n<body>\n<main>\n<h1>Compaction strategies compared</h1>\n",
        rows.len(),
        include_str!("style.css"),
        series_colours()
    );
    facts(&mut out, comparison);
    figure_table(&mut out, comparison);
    let mut chart = |title: &str, note: &str, body: String| {
        let _ = write!(
            out,
            "<section>\n<h2>{}</h2>\n<p class=\"note\">{}</p>\n{body}</section>\n",
            escape(title),
            escape(note)
        );
    };
    chart(
        "Write amplification",
        "Bytes written by flushes and compactions per byte put. Shorter is better.",
        charts::bars(rows, "write amplification", |row| row.write_amplification),
    );
    chart(
        "Read amplification",
        "Blocks looked into per lookup that found its key. Shorter is better.",
        charts::bars(rows, "read amplification", |row| row.read_amplification),
    );
    chart(
        "Space amplification",
        "Bytes of dead records per byte of live ones. Shorter is better.",
        charts::bars(rows, "space amplification", |row| row.space_amplification),
    );
    chart(
        "The trade-off",
        "Down and left is better; the larger a dot, the more space is wasted. No strategy wins everywhere: that is the point of choosing.",
        charts::trade_off(rows),
    );
    chart("Write latency", "Of every put, update and delete. The axis is logarithmic.", charts::latencies(rows));
    let largest = rows.iter().flat_map(|row| &row.tree).map(|runs| runs.iter().sum()).max().unwrap_or(0);
    let trees: String = rows
        .iter()
        .enumerate()
        .map(|(i, row)| format!("<h3>{}</h3>\n{}", escape(&row.strategy), charts::tree(row, i % SERIES, largest)))
        .collect();
    chart(
        "The trees at the end",
        "One line is a level, one box a sorted run, newest first. The width of a level grows with the square root of its bytes, on one scale for all trees.",
        trees,
    );
    legend(&mut out);
    data(&mut out, comparison);
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

fn facts(out: &mut String, comparison: &Comparison) {
    let (survey, scale) = (&comparison.survey, &comparison.scale);
    let facts = [
        ("Input", comparison.input.clone()),
        (
            "Size",
            format!(
                "{} records, {} of keys, {} of values; {:.0} % in ascending order",
                survey.records,
                bytes(survey.key_bytes),
                bytes(survey.value_bytes),
                survey.ascending_share * 100.0
            ),
        ),
        (
            "Then",
            format!(
                "{} updates, {} deletes, {} lookups of existing and {} of missing keys, one full scan",
                comparison.updates, comparison.deletes, comparison.reads, comparison.missing_reads
            ),
        ),
        (
            "Sizes",
            format!(
                "memtable {}, files {}, cache {}: about {} flushes for the load",
                bytes(scale.memtable_bytes),
                bytes(scale.file_bytes),
                bytes(scale.cache_bytes),
                number(float(scale.expected_flushes))
            ),
        ),
        ("Seed", format!("{} (generator version {})", comparison.seed, crate::workload::GENERATOR_VERSION)),
    ];
    out.push_str("<dl>\n");
    for (name, value) in facts {
        let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(&value));
    }
    out.push_str("</dl>\n");
}

fn figure_table(out: &mut String, comparison: &Comparison) {
    out.push_str("<section>\n<h2>Figures</h2>\n<p class=\"note\">The best value of each column is marked.</p>\n<div class=\"scroll\"><table>\n<thead><tr>");
    for title in titles() {
        let _ = write!(out, "<th>{}</th>", escape(title));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for (i, (strategy, cells)) in table(&comparison.rows).into_iter().enumerate() {
        let _ = write!(out, "<tr><th><span class=\"key s{}\"></span>{}</th>", i % SERIES, escape(&strategy));
        for cell in cells {
            let class = if cell.best { " class=\"best\"" } else { "" };
            let _ = write!(out, "<td{class}>{}</td>", escape(&cell.text));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n</section>\n");
}

fn legend(out: &mut String) {
    out.push_str("<section>\n<h2>What the figures mean</h2>\n<dl class=\"legend\">\n");
    for (name, meaning) in DEFINITIONS {
        let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(meaning));
    }
    out.push_str("</dl>\n</section>\n");
}

/// All figures for scripts, inside the page. `<` never appears in it, so no content can end the element.
fn data(out: &mut String, comparison: &Comparison) {
    let json = serde_json::to_string(comparison).expect("plain data always serializes").replace('<', "\\u003c");
    let _ = writeln!(out, "<script type=\"application/json\" id=\"figures\">{json}</script>");
}

fn series_colours() -> String {
    // Okabe and Ito's palette, which the colour-blind can tell apart; yellow, hard to see on white, comes last.
    const COLOURS: [&str; SERIES] =
        ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8a8a8a", "#b8a800"];
    COLOURS.iter().enumerate().map(|(i, c)| format!(".s{i} {{ fill: {c}; stroke: {c}; background: {c}; }}\n")).collect()
}
