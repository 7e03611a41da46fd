//! Shows the figures: rows of text for a terminal, and one HTML page that works offline.

mod charts;
mod html;
mod table;
mod units;

#[cfg(test)]
mod tests;

pub use html::html;
pub use table::{Cell, table, titles};
pub use units::{bytes, duration_ns, number};
