//! Pebble, an LSM store in Go, through the few C functions that `pebble/pebble.go` exports and `build.rs` compiles.
//!
//! Go copies what is read into a buffer of the calling thread. A scan is one call, so that the way into Go is not paid for each entry; only
//! one that does not fit into the buffer takes more calls, each with an iterator of its own.
#![allow(unsafe_code, reason = "calls into a C library")]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{ptr, thread};

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::store::{Budget, Sink, Store};

/// What stands for an open store on Go's side.
type Handle = usize;
type Error = *mut c_char;

/// The budget in Pebble's terms.
#[repr(C)]
struct Settings {
    memtable_bytes: u64,
    memtables: u64,
    cache_bytes: u64,
    block_bytes: u64,
    filter_bits_per_key: u64,
    threads: u64,
    sync: u64,
}

/// How far a scan came.
#[repr(C)]
#[derive(Default)]
struct Batch {
    entries: usize,
    /// What they take of the buffer.
    bytes: usize,
    /// What the first entry takes that had no room; 0 if the scan is complete.
    next_bytes: usize,
}

/// What Pebble has counted.
#[repr(C)]
#[derive(Default, Serialize)]
struct Figures {
    #[serde(skip)]
    busy: u64,
    debt_bytes: u64,
    read_amp: u64,
    flushes: u64,
    compactions: u64,
    cache_bytes: u64,
    cache_hits: u64,
    cache_misses: u64,
}

unsafe extern "C" {
    fn pebble_open(path: *const c_char, settings: *const Settings, handle: *mut Handle) -> Error;
    fn pebble_close(handle: Handle) -> Error;
    #[rustfmt::skip]
    fn pebble_put(handle: Handle, key: *const u8, key_bytes: usize, value: *const u8, value_bytes: usize) -> Error;
    fn pebble_delete(handle: Handle, key: *const u8, key_bytes: usize) -> Error;
    #[rustfmt::skip]
    fn pebble_get(
        handle: Handle,
        key: *const u8,
        key_bytes: usize,
        into: *mut u8,
        room: usize,
        value_bytes: *mut isize,
    ) -> Error;
    #[rustfmt::skip]
    fn pebble_scan(
        handle: Handle,
        from: *const u8,
        from_bytes: usize,
        most: usize,
        into: *mut u8,
        room: usize,
        got: *mut Batch,
    ) -> Error;
    fn pebble_flush(handle: Handle) -> Error;
    fn pebble_figures(handle: Handle, figures: *mut Figures);
    #[cfg(test)]
    fn pebble_nothing();
    fn free(pointer: *mut c_void);
}

thread_local! {
    /// Where Go puts what this thread reads; it grows with the largest record.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; 256 << 10]);
}

/// An open Pebble.
pub(crate) struct Pebble {
    handle: Handle,
}

/// Turns an error's text, if there is one, into an error, and frees it.
fn check(error: Error) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: a non-null error is a string that ends in 0 and belongs to us.
    let text = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: Go took it from C's `malloc`, and it is not used any more.
    unsafe { free(error.cast()) };
    bail!("pebble: {text}")
}

/// Where `bytes` are. Go ends the process where it finds the small number on its stack that Rust has for the place of no bytes.
fn place(bytes: &[u8]) -> *const u8 {
    if bytes.is_empty() { ptr::null() } else { bytes.as_ptr() }
}

impl Pebble {
    fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        // SAFETY: the store is open, `figures` lives through the call.
        unsafe { pebble_figures(self.handle, &mut figures) };
        figures
    }
}

impl Store for Pebble {
    fn open(path: &Path, budget: &Budget) -> Result<Pebble> {
        let path = CString::new(path.as_os_str().as_bytes()).context("a path with a zero byte")?;
        let settings = Settings {
            memtable_bytes: u64::try_from(budget.memtable_bytes)?,
            memtables: u64::from(budget.memtables),
            cache_bytes: u64::try_from(budget.cache_bytes)?,
            block_bytes: u64::try_from(budget.block_bytes)?,
            filter_bits_per_key: u64::from(budget.filter_bits_per_key),
            threads: u64::from(budget.threads),
            sync: u64::from(budget.sync),
        };
        let mut handle = 0;
        // SAFETY: `path`, `settings` and `handle` live through the call.
        check(unsafe { pebble_open(path.as_ptr(), &settings, &mut handle) })?;
        Ok(Pebble { handle })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        // SAFETY: the store is open, the slices live through the call.
        check(unsafe { pebble_put(self.handle, place(key), key.len(), place(value), value.len()) })
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        // SAFETY: the store is open, the slice lives through the call.
        check(unsafe { pebble_delete(self.handle, place(key), key.len()) })
    }

    fn get(&self, key: &[u8], sink: &mut Sink) -> Result<bool> {
        BUFFER.with_borrow_mut(|buffer| {
            loop {
                let (into, room, mut len) = (buffer.as_mut_ptr(), buffer.len(), 0);
                // SAFETY: the store is open, key, buffer and `len` live through the call, and the buffer has `room` bytes.
                check(unsafe { pebble_get(self.handle, place(key), key.len(), into, room, &mut len) })?;
                // A value that is not there has -1 bytes.
                let Ok(len) = usize::try_from(len) else { return Ok(false) };
                if len <= buffer.len() {
                    sink.take(&buffer[..len]);
                    return Ok(true);
                }
                buffer.resize(len, 0);
            }
        })
    }

    fn scan(&self, from: &[u8], nexts: usize, sink: &mut Sink) -> Result<usize> {
        let (mut from, mut seen) = (from.to_vec(), 0);
        BUFFER.with_borrow_mut(|buffer| {
            loop {
                let (into, room, most) = (buffer.as_mut_ptr(), buffer.len(), nexts - seen + 1);
                let mut got = Batch::default();
                // SAFETY: the store is open, `from`, buffer and `got` live through the call, and the buffer has `room` bytes.
                check(unsafe { pebble_scan(self.handle, place(&from), from.len(), most, into, room, &mut got) })?;
                let mut rest = &buffer[..got.bytes];
                while let Some((key, value)) = entry(&mut rest) {
                    sink.take(key);
                    sink.take(value);
                    if rest.is_empty() && got.next_bytes > 0 {
                        // The next key there can be.
                        from = [key, &[0]].concat();
                    }
                }
                seen += got.entries;
                if got.next_bytes == 0 {
                    return Ok(seen);
                }
                buffer.resize(buffer.len().max(got.next_bytes), 0);
            }
        })
    }

    fn settle(&self) -> Result<Instant> {
        // SAFETY: the store is open.
        check(unsafe { pebble_flush(self.handle) })?;
        // Between the end of a compaction and the start of the one that it made due nothing is.
        let mut quiet_since = Instant::now();
        while quiet_since.elapsed() < Duration::from_millis(20) {
            thread::sleep(Duration::from_millis(4));
            if self.figures().busy != 0 {
                quiet_since = Instant::now();
            }
        }
        Ok(quiet_since)
    }

    fn debt_bytes(&self) -> Option<u64> {
        Some(self.figures().debt_bytes)
    }

    fn statistics(&self) -> serde_json::Value {
        serde_json::to_value(self.figures()).unwrap_or_default()
    }
}

/// Takes an entry off the front of what a scan left.
fn entry<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let mut len = || {
        let four = rest.split_off(..4)?.first_chunk()?;
        usize::try_from(u32::from_ne_bytes(*four)).ok()
    };
    let (key_len, value_len) = (len()?, len()?);
    Some((rest.split_off(..key_len)?, rest.split_off(..value_len)?))
}

impl Drop for Pebble {
    fn drop(&mut self) {
        // SAFETY: the store is open, and nothing uses the handle after this.
        let closed = check(unsafe { pebble_close(self.handle) });
        if let Err(error) = closed {
            eprintln!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For the README: `cargo test --release --features pebble crossing -- --ignored --nocapture`.
    #[test]
    #[ignore = "it measures"]
    fn crossing_into_go() {
        let calls = 5_000_000;
        for _ in 0..3 {
            let start = Instant::now();
            for _ in 0..calls {
                // SAFETY: it takes nothing and does nothing.
                unsafe { pebble_nothing() };
            }
            println!("{} ns a call", start.elapsed().as_nanos() / calls);
        }
    }
}
