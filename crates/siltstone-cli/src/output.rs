//! What commands give out: standard output, buffered and checked (a full disk behind `>` must not pass for success); files that are
//! written at the end of long work; bytes made visible.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;

/// Standard output in a buffer. Call [`finish`](Output::finish), or the end of the text may go missing without an error.
pub(crate) struct Output(BufWriter<Named<StdoutLock<'static>>>);

impl Output {
    pub(crate) fn new() -> Output {
        Output(BufWriter::with_capacity(64 << 10, Named::new(STDOUT, io::stdout().lock())))
    }

    /// Writes what is left.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// What standard output is called in errors.
pub(crate) const STDOUT: &str = "standard output";

/// A sink whose errors say what was being written: "No space left on device" alone could be the store's.
pub(crate) struct Named<W> {
    name: String,
    sink: W,
}

impl<W> Named<W> {
    pub(crate) fn new(name: impl Into<String>, sink: W) -> Named<W> {
        Named { name: name.into(), sink }
    }

    fn name<T>(&self, done: io::Result<T>) -> io::Result<T> {
        done.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.name)))
    }
}

impl<W: Write> Write for Named<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.sink.write(bytes);
        self.name(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        let done = self.sink.flush();
        self.name(done)
    }
}

/// Prints a text.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut output = Output::new();
    output.write_all(text.as_bytes())?;
    output.finish()
}

/// Prints a value as indented JSON.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(print(&(serde_json::to_string_pretty(value)? + "\n"))?)
}

/// A file that is written when long work is over. That it can be written shows before the work begins.
pub(crate) struct LateFile {
    path: PathBuf,
    file: File,
    /// It was not there before, and holds nothing yet.
    is_empty: bool,
}

impl LateFile {
    /// Opens the file, or makes it. What an older one holds stays until [`write`](LateFile::write).
    pub(crate) fn open(path: &Path) -> anyhow::Result<LateFile> {
        let cannot = || format!("cannot write {}", path.display());
        let (file, is_empty) = match File::create_new(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                (File::options().write(true).open(path).with_context(cannot)?, false)
            }
            made => (made.with_context(cannot)?, true),
        };
        Ok(LateFile { path: path.to_owned(), file, is_empty })
    }

    /// Writes all that the file shall hold.
    pub(crate) fn write(mut self, text: &str) -> anyhow::Result<()> {
        self.is_empty = false;
        // A pipe or a terminal has no length.
        let is_file = self.file.metadata().is_ok_and(|meta| meta.is_file());
        let emptied = if is_file { self.file.set_len(0) } else { Ok(()) };
        let written = emptied.and_then(|()| self.file.write_all(text.as_bytes()));
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

impl Drop for LateFile {
    fn drop(&mut self) {
        if self.is_empty {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A count with its noun: `1 file`, `2 files`.
pub(crate) fn plural(n: u64, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// Bytes for a human: text as it is where it is printable UTF-8 and not longer than `most` characters, else escaped, cut.
pub(crate) fn visible(bytes: &[u8], most: usize) -> String {
    let mut out = String::new();
    let mut shown = 0;
    'pieces: for piece in bytes.utf8_chunks() {
        for c in piece.valid().chars() {
            if shown == most {
                out.push_str("...");
                break 'pieces;
            }
            shown += 1;
            if c.is_control() || c == '\\' { out.extend(c.escape_default()) } else { out.push(c) }
        }
        for byte in piece.invalid() {
            if shown >= most {
                out.push_str("...");
                break 'pieces;
            }
            shown += 1;
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    if bytes.is_empty() { "(empty)".to_owned() } else { out }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Reads hexadecimal; `None` if it is none.
pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

/// A cell of a [`text_table`].
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) marked: bool,
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell { text, marked: false }
    }
}

/// Columns of text: the first one left-aligned, the others right-aligned. Marked cells get a `*`, and are bold on a terminal.
pub(crate) fn text_table(titles: &[&str], rows: &[Vec<Cell>]) -> String {
    let marks = rows.iter().flatten().any(|cell| cell.marked);
    let bold = io::stdout().is_terminal();
    let width = |column: usize| {
        let mark = usize::from(marks && column > 0);
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.text.as_str());
        cells.chain([titles[column]]).map(|text| text.chars().count() + mark).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let mut out = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = (String, bool)>| {
        let start = out.len();
        for (i, (text, marked)) in cells.enumerate() {
            let room = widths.get(i).copied().unwrap_or(0);
            let cell = if i == 0 { format!("{text:<room$}") } else { format!("  {text:>room$}") };
            out.push_str(&if marked && bold { format!("\x1b[1m{cell}\x1b[0m") } else { cell });
        }
        let end = start + out[start..].trim_end().len();
        out.truncate(end);
        out.push('\n');
    };
    let pad = |i: usize, marked: bool| {
        if !marks || i == 0 {
            ""
        } else if marked {
            "*"
        } else {
            " "
        }
    };
    line(&mut titles.iter().enumerate().map(|(i, title)| (format!("{title}{}", pad(i, false)), false)));
    for row in rows {
        line(
            &mut row.iter().enumerate().map(|(i, cell)| (format!("{}{}", cell.text, pad(i, cell.marked)), cell.marked)),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_and_hexadecimal_comes_back() {
        assert_eq!(visible(b"a\tb\\\xff\xc3\xa9", 100), "a\\tb\\\\\\xff\u{e9}");
        assert_eq!(visible(b"abcdef", 3), "abc...");
        assert_eq!(visible(b"", 3), "(empty)");
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&hex(&all)), Some(all));
        assert_eq!((from_hex("abc"), from_hex("zz"), from_hex("+1")), (None, None, None));
    }

    #[test]
    fn a_failed_write_says_of_what() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let error = Named::new("a/b.tsv", Full).write_all(b"abc").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().starts_with("a/b.tsv: "), "{error}");
    }

    #[test]
    fn a_late_file_leaves_what_is_there_until_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.html");
        drop(LateFile::open(&path).unwrap());
        assert!(!path.exists(), "work that failed leaves no empty file");
        LateFile::open(&path).unwrap().write("a long text").unwrap();
        drop(LateFile::open(&path).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"a long text");
        LateFile::open(&path).unwrap().write("short").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"short");
        LateFile::open(Path::new("/dev/null")).unwrap().write("nothing").unwrap();
        assert!(LateFile::open(folder.path()).is_err() && LateFile::open(&folder.path().join("no/a.html")).is_err());
    }

    #[test]
    fn a_table_aligns_and_marks() {
        let row =
            |name: &str, value: &str, marked| vec![name.to_owned().into(), Cell { text: value.to_owned(), marked }];
        let table = text_table(&["name", "WA"], &[row("a", "10.5", false), row("longer", "3", true)]);
        assert_eq!(table, "name      WA\na       10.5\nlonger     3*\n");
    }
}
