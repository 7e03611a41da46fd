//! Errors for a human: one line that says what failed, where, and how to go on.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use siltstone::ErrorKind;
use siltstone::version::{manifest, superblock};

/// The work was ended by Ctrl-C or another signal. The message says what is left.
#[derive(Debug)]
pub(crate) struct Interrupted(pub(crate) String);

impl Interrupted {
    /// In the words that all commands use; `left` is what there is now, or how to go on.
    pub(crate) fn leaving(left: impl std::fmt::Display) -> Interrupted {
        Interrupted(format!("interrupted: {left}"))
    }
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Interrupted {}

/// Prints the error and returns the exit code. A closed pipe (`siltstone scan ... | head`) is no error.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_closed_pipe(error) {
        return ExitCode::SUCCESS;
    }
    let interrupted = error.chain().any(|cause| {
        cause.is::<Interrupted>() || cause.downcast_ref().map(siltstone::Error::kind) == Some(ErrorKind::Cancelled)
    });
    // Standard error may be closed as well; then there is nobody to tell.
    let _ = io::Write::write_all(&mut io::stderr(), format!("siltstone: {}\n", line(error)).as_bytes());
    ExitCode::from(if interrupted { 130 } else { 2 })
}

/// Whether nobody reads any more what is printed.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let mut sources = error.chain().filter_map(|cause| cause.downcast_ref());
    sources.any(|source: &io::Error| source.kind() == io::ErrorKind::BrokenPipe)
}

/// The whole chain of causes on one line, with a hint where the kind of error knows one.
pub(crate) fn line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause_text = one_line(&cause.to_string());
        // Our own error shows its source; do not say it twice.
        if !text.ends_with(&cause_text) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&cause_text);
        }
    }
    if let Some(hint) = error.chain().find_map(|cause| cause.downcast_ref()).and_then(hint) {
        text.push_str(": ");
        text.push_str(hint);
    }
    text
}

/// Joins lines. Of the drawings that TOML errors come with, the quoted line stays.
fn one_line(text: &str) -> String {
    let quoted = |line: &'_ str| -> Option<String> {
        let gutter = line.trim_start_matches(|c: char| c == ' ' || c.is_ascii_digit());
        let line = gutter.strip_prefix('|').unwrap_or(line).trim();
        (!line.trim_matches('^').is_empty()).then(|| line.to_owned())
    };
    text.lines().filter_map(quoted).collect::<Vec<_>>().join(": ")
}

fn hint(error: &siltstone::Error) -> Option<&'static str> {
    match error.kind() {
        // A trace can be damaged as well, and an export has nothing to do with a store any more.
        ErrorKind::Corruption if error.path().is_some_and(is_of_a_store) => {
            Some("run `siltstone verify` on the store to see all damage and what can be done")
        }
        ErrorKind::Unsupported => Some("use the version of siltstone that wrote it, or a newer one"),
        ErrorKind::NoSpace => Some("free some space and try again; what was synced is safe"),
        ErrorKind::Poisoned => Some("check the disk, then run the command again: opening finds out what is durable"),
        ErrorKind::Locked => Some("close it there first; get, scan, export, stats, inspect and verify work meanwhile"),
        // Not the name alone: a list of the options that there are holds it as well.
        ErrorKind::InvalidArgument if error.what().contains("may_lose_oldest = true has to allow") => {
            Some("use --set keyspace.may_lose_oldest=true or, with `strategy set`, --may-lose-oldest")
        }
        _ => None,
    }
}

/// Whether a store consists of such files: its folder counts, too.
fn is_of_a_store(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let endings = [".sst", ".log"];
    name == superblock::FILE_NAME
        || manifest::from_file_name(&name).is_some()
        || endings.iter().any(|ending| name.ends_with(ending))
        || path.is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once_on_one_line_with_a_hint() {
        let source = io::Error::new(io::ErrorKind::StorageFull, "no space left");
        let error = siltstone::Error::io(std::path::Path::new("a/b.log"), "write", source);
        let text = line(&anyhow::Error::from(error).context("import"));
        assert_eq!(
            text,
            "import: write: a/b.log: no space left: free some space and try again; what was synced is safe"
        );
        let toml = "options: TOML parse error at line 1, column 1\n  |\n1 | memtabel = 1\n  | ^^^^\nunknown field `memtabel`\n";
        assert_eq!(
            one_line(toml),
            "options: TOML parse error at line 1, column 1: memtabel = 1: unknown field `memtabel`"
        );
    }
}
