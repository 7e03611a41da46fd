//! `report RESULTS`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use siltstone_lab::num::count;
use siltstone_lab::report::{bytes, run_page};

use crate::progress::line;

/// Make the page of a results folder: figures, trade-offs, two strategies side by side, the tree over time.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone report results
  siltstone report results --html /tmp/page.html

RESULTS is what `siltstone run` has made; only its raw rows are read. The page is one file that needs no network. Of a \
run that was stopped, it shows the trials that are finished.")]
pub(crate) struct Report {
    /// A results folder
    results: PathBuf,
    /// Where to write the page [default: report.html in the folder]
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl Report {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        let page = run_page(&self.results)?;
        let path = self.html.clone().unwrap_or_else(|| self.results.join("report.html"));
        write_page(&path, &page, "report")?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes a page and tells where it is.
pub(super) fn write_page(path: &Path, page: &str, command: &str) -> anyhow::Result<()> {
    std::fs::write(path, page).with_context(|| format!("cannot write the page {}", path.display()))?;
    line(&format!("{command}: page in {} ({})", path.display(), bytes(count(page.len()))));
    Ok(())
}
