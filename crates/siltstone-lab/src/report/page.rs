//! The page: one HTML file with its style, its script and its data, that asks no network for anything.
//!
//! ```text
//! results.rs     a results folder  --.
//! comparison.rs  a comparison       +--> Page --render--> shell.html with style, scripts and one JSON element
//! store.rs       an open store     --'
//! ```

use serde::Serialize;
use serde_json::Value;

use super::machine::Measured;
use super::pack::PackedTree;
use super::windows::PackedWindows;

/// What a page shows.
#[derive(Serialize)]
pub(super) struct Page {
    /// `run`, `comparison` or `store`: which views there are.
    pub(super) kind: &'static str,
    pub(super) title: String,
    /// Names and values that stand at the top.
    pub(super) facts: Vec<(String, String)>,
    /// Strategies, or the keyspaces of a store.
    pub(super) subjects: Vec<Subject>,
    /// What is not on the page, and why; shown at its top.
    pub(super) notes: Vec<String>,
    /// Where the trials were made, and how quiet it was; of a run only.
    pub(super) machines: Vec<Measured>,
}

/// A strategy of a run, or a keyspace of a store.
#[derive(Default, Serialize)]
pub(super) struct Subject {
    pub(super) name: String,
    /// The strategy as TOML.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<String>,
    /// One for each repetition, as in `rows.jsonl`.
    pub(super) rows: Vec<Value>,
    /// Of the first repetition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) windows: Option<PackedWindows>,
    /// One for each keyspace, of the first repetition.
    pub(super) trees: Vec<PackedTree>,
}

/// What the shell is filled with. Scripts come in the order in which they build on each other.
const PARTS: [(&str, &str); 3] = [
    ("/*STYLE*/", concat!(include_str!("vendor/uPlot.min.css"), include_str!("page.css"))),
    ("/*LICENCE*/", include_str!("vendor/uPlot.LICENSE")),
    (
        "/*SCRIPT*/",
        concat!(
            include_str!("vendor/uPlot.iife.min.js"),
            "\n(() => {\n'use strict';\n",
            include_str!("base.js"),
            include_str!("figures.js"),
            include_str!("charts.js"),
            include_str!("series.js"),
            include_str!("timeline.js"),
            include_str!("tree.js"),
            include_str!("machine.js"),
            include_str!("views.js"),
            "})();\n"
        ),
    ),
];

/// `text` with the characters that mean something in HTML replaced. Names come from the user.
fn escape(text: &str) -> String {
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

impl Page {
    /// The page as HTML.
    pub(super) fn render(&self) -> String {
        // `<` never appears in the data, so that no content can end its element.
        let json = serde_json::to_string(self).expect("plain data always serializes").replace('<', "\\u003c");
        let mut out = String::with_capacity(json.len() + (160 << 10));
        let mut rest = include_str!("shell.html");
        let title = escape(&self.title);
        let parts = PARTS.iter().copied().chain([("/*TITLE*/", &title[..]), ("/*DATA*/", &json[..])]);
        let mut parts: Vec<(usize, &str, &str)> =
            parts.filter_map(|(mark, text)| rest.find(mark).map(|at| (at, mark, text))).collect();
        parts.sort_unstable();
        debug_assert_eq!(parts.len(), PARTS.len() + 2, "the shell has a place for each part");
        let mut done = 0;
        for (at, mark, text) in parts {
            out.push_str(&rest[..at - done]);
            out.push_str(text);
            rest = &rest[at - done + mark.len()..];
            done = at + mark.len();
        }
        out.push_str(rest);
        out
    }
}
