//! The one error type. Its [`kind`](Error::kind) tells the caller what to do; the rest tells a human what and where.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// `Result` with our [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What a caller can do about an error. Stable: match on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call is wrong (a key too long, an unknown option): fix the call.
    InvalidArgument,
    /// Bytes on disk are not what was written: the message names file, offset, expected and found.
    Corruption,
    /// The store was written by a newer version: use that version.
    Unsupported,
    /// The operating system failed a call: look at the source; retry or stop.
    Io,
    /// The disk is full: free space; reads go on, writes can be tried again.
    NoSpace,
    /// A sync failed, so what is durable is unknown, or a background thread panicked: reads go on, reopen to write.
    Poisoned,
    /// The store was closed.
    Closed,
    /// Another process, or another handle of this one, has the store open.
    Locked,
    /// There is no such store, keyspace or file.
    NotFound,
    /// It exists already.
    AlreadyExists,
    /// The store was opened read-only.
    ReadOnly,
    /// The caller cancelled the work.
    Cancelled,
}

/// What went wrong, where, and what to do about it.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    what: String,
    path: Option<PathBuf>,
    offset: Option<u64>,
    source: Option<Arc<io::Error>>,
}

impl Error {
    /// An error of `kind`, with a message for a human.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Error {
        Error(Box::new(Inner { kind, what: what.into(), path: None, offset: None, source: None }))
    }

    /// The call is wrong.
    pub fn invalid(what: impl Into<String>) -> Error {
        Error::new(ErrorKind::InvalidArgument, what)
    }

    /// The bytes at `offset` of `path` are not what was written.
    pub fn corruption(path: &Path, offset: u64, what: impl Into<String>) -> Error {
        Error::new(ErrorKind::Corruption, what).at(path).at_offset(offset)
    }

    /// A failed call of the operating system; a full disk becomes [`ErrorKind::NoSpace`].
    pub fn io(path: &Path, doing: &str, source: io::Error) -> Error {
        let kind = match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
            _ => ErrorKind::Io,
        };
        let mut error = Error::new(kind, doing).at(path);
        error.0.source = Some(Arc::new(source));
        error
    }

    /// The same error, naming a file or folder.
    #[must_use]
    pub fn at(mut self, path: &Path) -> Error {
        self.0.path = Some(path.to_path_buf());
        self
    }

    /// The same error, naming an offset in the file.
    #[must_use]
    pub fn at_offset(mut self, offset: u64) -> Error {
        self.0.offset = Some(offset);
        self
    }

    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The file or folder concerned, where there is one.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// The offset in that file, where there is one.
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// Whether the system had nothing left to do it with, space or file descriptors: nothing was done, and of what was done before nothing is in doubt.
    pub(crate) fn is_shortage(&self) -> bool {
        use rustix::io::Errno;
        let os = self.0.source.as_ref().and_then(|source| source.raw_os_error());
        let no_files = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
        self.0.kind == ErrorKind::NoSpace || os.is_some_and(|os| no_files.contains(&os))
    }

    /// The message without place and source.
    pub fn what(&self) -> &str {
        &self.0.what
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.kind == ErrorKind::Corruption {
            write!(f, "corruption: ")?;
        }
        write!(f, "{}", self.0.what)?;
        if let Some(path) = &self.0.path {
            write!(f, ": {}", path.display())?;
        }
        if let Some(offset) = self.0.offset {
            write!(f, " at offset {offset}")?;
        }
        if let Some(source) = &self.0.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({self})", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}
