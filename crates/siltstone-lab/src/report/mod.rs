//! Shows the figures: rows of text for a terminal, and one HTML page that works offline.
//!
//! ```text
//! results folder, comparison or store --> Page (plain data, packed) --> one HTML file
//! ```
//!
//! The page is drawn by plain JavaScript, a file a room: `base.js` (numbers, elements, colours), `figures.js` (what is measured and the table),
//! `charts.js` (hand-made SVG), `series.js` (time series, uPlot), `timeline.js` (the tree after any change), `tree.js` (its picture and
//! controls), `machine.js` (where it was measured), `views.js` (what stands where). They share one scope and are put together by [`page`].

mod comparison;
mod decisions;
mod joined;
mod machine;
mod pack;
mod page;
mod results;
mod store;
mod table;
mod units;
mod windows;

#[cfg(test)]
mod tests;

pub use comparison::html;
pub use results::run_page;
pub use store::store_page;
pub use table::{Cell, table, titles};
pub use units::{bytes, duration_ns, number};
