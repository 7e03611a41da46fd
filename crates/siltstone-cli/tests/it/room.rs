//! A folder in which commands run.

use std::fmt::Debug;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// A command line without the program's name: a text without quotes, or words.
pub(crate) trait Line: Copy + Debug {
    fn words(&self) -> Vec<&str>;
}

impl Line for &str {
    fn words(&self) -> Vec<&str> {
        self.split_whitespace().collect()
    }
}

impl Line for &String {
    fn words(&self) -> Vec<&str> {
        self.split_whitespace().collect()
    }
}

impl Line for &[&str] {
    fn words(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl Line for &Vec<&str> {
    fn words(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl<const N: usize> Line for &[&str; N] {
    fn words(&self) -> Vec<&str> {
        self.to_vec()
    }
}

/// An empty folder in which commands run.
pub(crate) struct Room(TempDir);

impl Room {
    pub(crate) fn new() -> Room {
        Room(tempfile::tempdir().unwrap())
    }

    pub(crate) fn dir(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).unwrap();
    }

    pub(crate) fn command(&self, line: impl Line) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_siltstone"));
        command.args(line.words()).current_dir(self.dir()).stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, line: impl Line) -> Output {
        self.command(line).output().unwrap()
    }

    /// Runs a command that must succeed and returns its standard output.
    pub(crate) fn ok(&self, line: impl Line) -> Vec<u8> {
        let output = self.run(line);
        assert!(output.status.success(), "{line:?}: {}", text(&output.stderr));
        output.stdout
    }

    /// The same as text.
    pub(crate) fn said(&self, line: impl Line) -> String {
        String::from_utf8(self.ok(line)).unwrap()
    }

    /// The same of a command that prints JSON.
    pub(crate) fn json(&self, line: impl Line) -> Value {
        json(&self.ok(line))
    }

    /// Runs a command that must fail with exit code 2, and returns what it said last, which begins with the program's name.
    pub(crate) fn gives_up(&self, line: impl Line) -> String {
        let output = self.run(line);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line:?}: {error}");
        let last = error.lines().last().unwrap_or_default();
        assert!(last.starts_with("siltstone: "), "{line:?}: {error}");
        last.to_owned()
    }

    /// The same of a command that says nothing else.
    pub(crate) fn fails(&self, line: impl Line) -> String {
        let output = self.run(line);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line:?}: {error}");
        assert!(
            error.starts_with("siltstone: ") && error.matches('\n').count() == 1,
            "one line for {line:?}: {error:?}"
        );
        error
    }

    pub(crate) fn feed(&self, line: impl Line, input: &[u8]) -> Output {
        let mut child =
            self.command(line).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let feeder = std::thread::spawn(move || stdin.write_all(&input).ok());
        let output = child.wait_with_output().unwrap();
        feeder.join().unwrap();
        output
    }

    pub(crate) fn files(&self, store: &str, ending: &str) -> Vec<PathBuf> {
        let mut files: Vec<_> = fs::read_dir(self.path(store)).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.to_string_lossy().ends_with(ending));
        files.sort();
        files
    }
}

/// `records` lines of TSV in an order that is not sorted.
pub(crate) fn shuffled_tsv(records: u32) -> String {
    let key = |i: u32| u64::from(i) * 7919 % u64::from(records);
    (0..records).map(|i| format!("key{:08}\tvalue {i} of a line that is somewhat longer\n", key(i))).collect()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|error| panic!("{error}: {}", text(bytes)))
}

/// Sends a signal, `-INT` or another, to a command.
pub(crate) fn signal(child: &Child, signal: &str) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

/// Waits until `holds`; fails the test after five minutes.
pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(300), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
