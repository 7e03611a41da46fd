//! Files and standard streams: opened, compressed by their ending, replaced as a whole.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;

use crate::output::{Named, STDOUT};

use super::{Codec, Format, RecordReader, RecordWriter, check_header, format_for};

const BUFFER_BYTES: usize = 256 << 10;

/// A file, or `-`: a standard stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Stream,
    File(PathBuf),
}

impl From<&Path> for Place {
    fn from(path: &Path) -> Place {
        if path.as_os_str() == "-" { Place::Stream } else { Place::File(path.to_path_buf()) }
    }
}

impl Place {
    fn codec(&self) -> Codec {
        match self {
            Place::Stream => Codec::Plain,
            Place::File(path) => Format::of_name(&path.to_string_lossy()).1,
        }
    }
}

/// An open import.
pub(crate) struct Import {
    pub(crate) reader: Box<dyn RecordReader>,
    /// Size of the file, compressed as it is.
    pub(crate) total: Option<u64>,
    position: Arc<AtomicU64>,
}

impl Import {
    /// Bytes of the file that were read.
    pub(crate) fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }
}

/// Opens a file or standard input. Without a format and an ending that tells it, standard input is TSV.
pub(crate) fn open_import(place: &Place, format: Option<Format>, header: bool) -> anyhow::Result<Import> {
    let (raw, total, format): (Box<dyn Read + Send>, _, _) = match place {
        Place::Stream => (Box::new(io::stdin()), None, format.unwrap_or(Format::Tsv)),
        Place::File(path) => {
            let format = format_for(format, &path.to_string_lossy())?;
            let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            let meta = file.metadata().with_context(|| format!("cannot look at {}", path.display()))?;
            anyhow::ensure!(!meta.is_dir(), "{} is a folder: give a file", path.display());
            // A pipe has no length.
            (Box::new(file), meta.is_file().then_some(meta.len()), format)
        }
    };
    check_header(format, header)?;
    let position = Arc::new(AtomicU64::new(0));
    let counted = BufReader::with_capacity(BUFFER_BYTES, Counted { input: raw, position: Arc::clone(&position) });
    let input: Box<dyn BufRead + Send> = match place.codec() {
        Codec::Plain => Box::new(counted),
        Codec::Gzip => Box::new(BufReader::with_capacity(BUFFER_BYTES, flate2::bufread::MultiGzDecoder::new(counted))),
        Codec::Zstd => {
            Box::new(BufReader::with_capacity(BUFFER_BYTES, zstd::stream::read::Decoder::with_buffer(counted)?))
        }
    };
    Ok(Import { reader: format.reader(input, header), total, position })
}

struct Counted<R> {
    input: R,
    position: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.position.fetch_add(u64::try_from(read).unwrap_or(0), Ordering::Relaxed);
        Ok(read)
    }
}

/// An open export. A file appears under its name only when it is complete and synced; until then, and after a failure, what
/// stood there before stands. What is no file, a pipe or a device, is written as it is.
pub(crate) struct Export {
    writer: Box<dyn RecordWriter<Sink>>,
    file: Option<Replacement>,
}

/// Where the bytes go.
enum Sink {
    Plain(BufWriter<Box<dyn Write>>),
    Gzip(flate2::write::GzEncoder<BufWriter<Box<dyn Write>>>),
    Zstd(zstd::stream::write::Encoder<'static, BufWriter<Box<dyn Write>>>),
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Sink::Plain(sink) => sink.write(bytes),
            Sink::Gzip(sink) => sink.write(bytes),
            Sink::Zstd(sink) => sink.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Sink::Plain(sink) => sink.flush(),
            Sink::Gzip(sink) => sink.flush(),
            Sink::Zstd(sink) => sink.flush(),
        }
    }
}

impl Sink {
    fn finish(self) -> io::Result<()> {
        let mut sink = match self {
            Sink::Plain(sink) => sink,
            Sink::Gzip(sink) => sink.finish()?,
            Sink::Zstd(sink) => sink.finish()?,
        };
        sink.flush()
    }
}

impl Export {
    /// Opens a file or standard output. Without a format and an ending that tells it, standard output is TSV.
    pub(crate) fn open(place: &Place, format: Option<Format>, header: bool) -> anyhow::Result<Export> {
        let format = match place {
            Place::Stream => format.unwrap_or(Format::Tsv),
            Place::File(path) => format_for(format, &path.to_string_lossy())?,
        };
        check_header(format, header)?;
        let (raw, file): (Box<dyn Write>, _) = match place {
            Place::Stream => (Box::new(Named::new(STDOUT, io::stdout())), None),
            Place::File(path) => {
                let (file, replacement) = open_target(path)?;
                (Box::new(Named::new(path.to_string_lossy(), file)), replacement)
            }
        };
        let raw = BufWriter::with_capacity(BUFFER_BYTES, raw);
        let sink = match place.codec() {
            Codec::Plain => Sink::Plain(raw),
            Codec::Gzip => Sink::Gzip(flate2::write::GzEncoder::new(raw, flate2::Compression::default())),
            Codec::Zstd => Sink::Zstd(zstd::stream::write::Encoder::new(raw, 3)?),
        };
        Ok(Export { writer: format.writer(sink, header)?, file })
    }

    /// Writes a record.
    pub(crate) fn write(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        self.writer.write(key, value)
    }

    /// Writes what is left and gives the file its name.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        self.writer.finish()?.finish()?;
        self.file.map_or(Ok(()), Replacement::finish)
    }
}

/// What to write to for `path`, and what makes a file of it in the end.
fn open_target(path: &Path) -> anyhow::Result<(File, Option<Replacement>)> {
    let cannot = || format!("cannot write {}", path.display());
    // A rename would put a file in the place of a pipe or a device, and whoever uses that would never hear of it. It is opened by the path
    // that was given: where `/dev/stdout` or the shell's `>(...)` lead to has no other.
    if std::fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return Ok((File::options().write(true).open(path).with_context(cannot)?, None));
    }
    // A link stays: what it leads to is replaced.
    let target = match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => path.to_path_buf(),
        found => found.with_context(cannot)?,
    };
    let replacement = Replacement::new(&target)?;
    Ok((replacement.file.try_clone()?, Some(replacement)))
}

/// A file under a temporary name in the folder of its place, removed unless it is finished.
struct Replacement {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
}

impl Replacement {
    fn new(path: &Path) -> anyhow::Result<Replacement> {
        let name = path.file_name().with_context(|| format!("{} names no file", path.display()))?;
        let temporary = path.with_file_name(format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id()));
        let file = File::create_new(&temporary).with_context(|| format!("cannot write {}", temporary.display()))?;
        Ok(Replacement { file, temporary, path: path.to_path_buf() })
    }

    fn finish(self) -> anyhow::Result<()> {
        let doing = || format!("cannot write {}", self.path.display());
        self.file.sync_all().with_context(doing)?;
        std::fs::rename(&self.temporary, &self.path).with_context(doing)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // After `finish` the name is gone already.
        let _ = std::fs::remove_file(&self.temporary);
    }
}
