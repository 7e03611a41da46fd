//! Charts as hand-made SVG: they print, they diff, and they need no script.
//!
//! Colours are classes (`s0`, `s1`, ... for the strategies in order), so that the page's style sheet decides them for light and
//! dark. Every mark has a `<title>`, which browsers show as a tooltip.

use std::fmt::Write;

use super::html::escape;
use super::units::{bytes, duration_ns};
use crate::compare::Row;
use crate::num::{count, float};

const WIDTH: f64 = 720.0;
/// Room for names on the left of a chart.
const LEFT: f64 = 150.0;
/// Room for figures on the right.
const RIGHT: f64 = 90.0;
const BAR: f64 = 18.0;
const GAP: f64 = 8.0;
/// Colours that the style sheet defines.
pub(super) const SERIES: usize = 8;

fn svg(height: f64, label: &str, body: &str) -> String {
    let label = escape(label);
    format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{label}\">{body}</svg>\n")
}

fn text(out: &mut String, x: f64, y: f64, class: &str, text: &str) {
    let _ = write!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>", escape(text));
}

/// A horizontal bar for each strategy.
pub(super) fn bars(rows: &[Row], label: &str, value: fn(&Row) -> f64) -> String {
    let most = rows.iter().map(value).fold(0.0, f64::max);
    let scale = if most > 0.0 { (WIDTH - LEFT - RIGHT) / most } else { 0.0 };
    let mut out = String::new();
    let mut y = 4.0;
    for (i, row) in rows.iter().enumerate() {
        let (v, series) = (value(row), i % SERIES);
        let width = (v * scale).max(1.0);
        text(&mut out, LEFT - 10.0, y + 14.0, "end", &row.strategy);
        let _ = write!(
            out,
            "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"2\" class=\"s{series}\"><title>{}: {v:.3}</title></rect>",
            escape(&row.strategy)
        );
        text(&mut out, LEFT + width + 8.0, y + 14.0, "value", &format!("{v:.2}"));
        y += BAR + GAP;
    }
    svg(y, label, &out)
}

/// Write latency percentiles, one line of dots for each strategy, on a logarithmic axis.
pub(super) fn latencies(rows: &[Row]) -> String {
    let percentiles = |row: &Row| {
        let l = &row.write_latency;
        [("p50", l.p50_ns), ("p99", l.p99_ns), ("p99.9", l.p999_ns), ("max", l.max_ns)]
    };
    let all = || rows.iter().flat_map(percentiles).map(|(_, ns)| float(ns.max(1)).log10());
    let low = all().fold(f64::INFINITY, f64::min).floor();
    let high = all().fold(f64::NEG_INFINITY, f64::max).ceil().max(low + 1.0);
    let x = |log: f64| LEFT + (log - low) / (high - low) * (WIDTH - LEFT - 40.0);
    let height = float(count(rows.len())) * 44.0 + 34.0;
    let mut out = String::new();
    let mut decade = low;
    while decade <= high {
        let at = x(decade);
        let _ =
            write!(out, "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"0\" y2=\"{:.1}\" class=\"grid\"/>", height - 24.0);
        text(&mut out, at, height - 8.0, "middle", &duration_ns(crate::num::floor(10f64.powf(decade).round())));
        decade += 1.0;
    }
    for (i, row) in rows.iter().enumerate() {
        let (y, series) = (float(count(i)) * 44.0 + 20.0, i % SERIES);
        text(&mut out, LEFT - 10.0, y + 5.0, "end", &row.strategy);
        let points = percentiles(row).map(|(name, ns)| (name, ns, x(float(ns.max(1)).log10())));
        let _ = write!(
            out,
            "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y}\" y2=\"{y}\" class=\"line s{series}\"/>",
            points[0].2, points[3].2
        );
        for (name, ns, at) in points {
            let _ = write!(
                out,
                "<circle cx=\"{at:.1}\" cy=\"{y}\" r=\"5\" class=\"s{series}\"><title>{} {name}: {}</title></circle>",
                escape(&row.strategy),
                duration_ns(ns)
            );
            text(&mut out, at, y + 19.0, "small middle", name);
        }
    }
    svg(height, "write latency percentiles of each strategy, logarithmic", &out)
}

/// Write against read amplification; the area of a dot grows with space amplification. Down and left is better.
pub(super) fn trade_off(rows: &[Row]) -> String {
    const HEIGHT: f64 = 360.0;
    const BOTTOM: f64 = HEIGHT - 44.0;
    const TOP: f64 = 12.0;
    const START: f64 = 70.0;
    const END: f64 = WIDTH - 40.0;
    let most = |value: fn(&Row) -> f64| rows.iter().map(value).fold(0.0, f64::max);
    // One block a lookup is the ideal: where all are above it, the axis begins there.
    let least = rows.iter().map(|row| row.read_amplification).fold(f64::INFINITY, f64::min);
    let ra_low = if least >= 1.0 { 1.0 } else { 0.0 };
    let ra_span = ((most(|row| row.read_amplification) - ra_low) * 1.25).max(0.05);
    let wa_span = (most(|row| row.write_amplification) * 1.15).max(0.05);
    let sa_most = most(|row| row.space_amplification).max(1e-9);
    let x = |wa: f64| START + wa / wa_span * (END - START);
    let y = |ra: f64| BOTTOM - (ra - ra_low) / ra_span * (BOTTOM - TOP);
    let mut out = String::new();
    for i in 0..=4u32 {
        let (wa, ra) = (f64::from(i) / 4.0 * wa_span, ra_low + f64::from(i) / 4.0 * ra_span);
        let (x, y) = (x(wa), y(ra));
        let _ = write!(out, "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{BOTTOM}\" class=\"grid\"/>");
        let _ = write!(out, "<line x1=\"{START}\" x2=\"{END}\" y1=\"{y:.1}\" y2=\"{y:.1}\" class=\"grid\"/>");
        text(&mut out, x, BOTTOM + 18.0, "small middle", &format!("{wa:.1}"));
        text(&mut out, START - 8.0, y + 4.0, "small end", &format!("{ra:.2}"));
    }
    text(&mut out, WIDTH / 2.0, HEIGHT - 6.0, "middle", "write amplification");
    let middle = BOTTOM / 2.0;
    let _ = write!(
        out,
        "<text x=\"18\" y=\"{middle}\" class=\"middle\" transform=\"rotate(-90 18 {middle})\">read amplification</text>"
    );
    // From left to right, names stand above and below in turn, so that those of neighbours do not collide.
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by(|&a, &b| rows[a].write_amplification.total_cmp(&rows[b].write_amplification));
    for (place, i) in order.into_iter().enumerate() {
        let row = &rows[i];
        let (x, y) = (x(row.write_amplification), y(row.read_amplification));
        let radius = 6.0 + 20.0 * (row.space_amplification / sa_most).clamp(0.0, 1.0).sqrt();
        let _ = write!(
            out,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\" class=\"dot s{}\"><title>{}: WA {:.2}, RA {:.2}, SA {:.3}</title></circle>",
            i % SERIES,
            escape(&row.strategy),
            row.write_amplification,
            row.read_amplification,
            row.space_amplification
        );
        let name_y = if place % 2 == 0 { y - radius - 5.0 } else { y + radius + 14.0 };
        text(&mut out, x, name_y, "middle", &row.strategy);
    }
    svg(HEIGHT, "write amplification against read amplification", &out)
}

/// The shape of one tree: a line for each level, a box for each run, as wide as the square root of its bytes.
pub(super) fn tree(row: &Row, series: usize, largest_level: u64) -> String {
    let mut out = String::new();
    let mut y = 4.0;
    let runs_most = row.tree.iter().map(Vec::len).max().unwrap_or(0);
    let room = WIDTH - 60.0 - 120.0 - 3.0 * float(count(runs_most));
    for (level, runs) in row.tree.iter().enumerate() {
        let level_bytes: u64 = runs.iter().sum();
        text(&mut out, 40.0, y + 15.0, "end", &format!("L{level}"));
        let level_width = room * (float(level_bytes) / float(largest_level.max(1))).sqrt();
        let mut x = 50.0;
        for (i, &run) in runs.iter().enumerate() {
            let width = (level_width * float(run) / float(level_bytes.max(1))).max(2.0);
            let _ = write!(
                out,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"20\" rx=\"2\" class=\"s{series}\"><title>L{level}, run {} of {}: {}</title></rect>",
                i + 1,
                runs.len(),
                bytes(run)
            );
            x += width + 3.0;
        }
        let note = match runs.len() {
            0 => "empty".to_owned(),
            1 => bytes(level_bytes),
            n => format!("{n} runs, {}", bytes(level_bytes)),
        };
        text(&mut out, x + 6.0, y + 15.0, "small", &note);
        y += 26.0;
    }
    svg(y.max(10.0), &format!("tree of {}", row.strategy), &out)
}
