//! Data-driven tests: a text file of commands and what they should print.
//!
//! ```text
//! # A comment.
//! command argument name=value
//! input, any number of lines
//! ----
//! expected output, up to the next blank line
//! ```
//!
//! `GOLDEN=rewrite cargo test` writes what was printed into the files; the diff is reviewed like code. Output never holds a blank line.

#![expect(clippy::disallowed_methods, reason = "tests read and rewrite the checked-in files")]

use std::fmt::Write as _;
use std::path::Path;

/// One command of a golden file.
#[derive(Debug)]
pub(crate) struct Command {
    /// The first word of the command line.
    pub(crate) name: String,
    /// Its other words.
    words: Vec<String>,
    /// The lines up to `----`.
    pub(crate) input: String,
    /// File and line, for messages.
    at: String,
}

impl Command {
    /// The value of `name=value`.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    /// The value of `name=value`, parsed.
    pub(crate) fn parsed<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        let parse = |text: &str| text.parse().unwrap_or_else(|_| panic!("{}: {name}={text} cannot be read", self.at));
        self.value(name).map(parse)
    }

    /// The words without `=`.
    pub(crate) fn plain(&self) -> impl Iterator<Item = &str> {
        self.words.iter().map(String::as_str).filter(|word| !word.contains('='))
    }

    /// Whether a plain word is there.
    pub(crate) fn has(&self, word: &str) -> bool {
        self.plain().any(|other| other == word)
    }

    /// Panics if an argument is none of `names`: a misspelt one would be ignored otherwise.
    pub(crate) fn allow(&self, names: &[&str]) {
        for word in self.words.iter().filter_map(|word| word.split_once('=')) {
            assert!(names.contains(&word.0), "{}: unknown argument {}", self.at, word.0);
        }
    }
}

/// Runs every file of the folder `testdata/<room>` whose name ends in `.txt`; `start` makes a fresh runner for each.
///
/// # Panics
/// If an output differs from what a file expects, listing all differences of the file.
pub(crate) fn run_folder<R: FnMut(&Command) -> String>(room: &str, mut start: impl FnMut() -> R) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(room);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "txt"));
    paths.sort();
    assert!(!paths.is_empty(), "no golden file in {}", folder.display());
    let rewrite = std::env::var("GOLDEN").is_ok_and(|word| word == "rewrite");
    let mut problems = String::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        let got = run_file(&path, &text, start(), &mut problems);
        if rewrite && got != text {
            std::fs::write(&path, got).unwrap();
        }
    }
    assert!(rewrite || problems.is_empty(), "{problems}\nGOLDEN=rewrite cargo test accepts what was printed");
}

/// The file with its expectations replaced by what `run` printed.
fn run_file(path: &Path, text: &str, mut run: impl FnMut(&Command) -> String, problems: &mut String) -> String {
    let mut got = String::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((n, line)) = lines.next() {
        writeln!(got, "{line}").unwrap();
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let at = format!("{}:{}", path.file_name().unwrap().display(), n + 1);
        let mut words = line.split_whitespace().map(str::to_owned);
        let name = words.next().unwrap();
        let mut command = Command { name, words: words.collect(), input: String::new(), at };
        loop {
            let (_, line) = lines.next().unwrap_or_else(|| panic!("{}: no ---- behind the command", command.at));
            writeln!(got, "{line}").unwrap();
            if line == "----" {
                break;
            }
            writeln!(command.input, "{line}").unwrap();
        }
        let mut expected = String::new();
        while let Some((_, line)) = lines.next_if(|(_, line)| !line.trim().is_empty()) {
            writeln!(expected, "{line}").unwrap();
        }
        let mut printed = run(&command);
        if !printed.is_empty() && !printed.ends_with('\n') {
            printed.push('\n');
        }
        assert!(
            !printed.lines().any(|line| line.trim().is_empty()),
            "{}: a blank line in the output:\n{printed}",
            command.at
        );
        if printed != expected {
            writeln!(problems, "{}: {}\nexpected:\n{expected}printed:\n{printed}", command.at, command.name).unwrap();
        }
        got.push_str(&printed);
    }
    got
}
