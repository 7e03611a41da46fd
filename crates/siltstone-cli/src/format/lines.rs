//! Lines of bounded length. A file without line feeds must not be read into memory whole.

use std::io::{self, BufRead, Read};

use super::Next;

/// Reads lines into one buffer.
pub(super) struct Lines<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
    most: usize,
}

impl<R: BufRead> Lines<R> {
    /// Lines of at most `most` bytes.
    pub(super) fn new(input: R, most: usize) -> Lines<R> {
        Lines { input, line: Vec::new(), number: 0, most }
    }

    /// Reads the next line; a longer one is skipped and bad.
    pub(super) fn next(&mut self) -> io::Result<Next> {
        // A value of the largest size must not pin its memory for the rest of the file.
        if self.line.capacity() > 1 << 20 {
            self.line = Vec::new();
        }
        self.line.clear();
        let room = u64::try_from(self.most).unwrap_or(u64::MAX).saturating_add(1);
        let read = (&mut self.input).take(room).read_until(b'\n', &mut self.line)?;
        if read == 0 {
            return Ok(Next::End);
        }
        self.number += 1;
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
        } else if self.line.len() > self.most {
            self.input.skip_until(b'\n')?;
            return Ok(Next::Bad(format!("a line longer than {} bytes", self.most)));
        }
        Ok(Next::Record)
    }

    /// The line without its line feed.
    pub(super) fn line(&self) -> &[u8] {
        &self.line
    }

    /// Its number, from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}
