//! LevelDB through its C interface, of which the few functions used here are declared by hand: no binding generator, no build of C++.
//!
//! It has one background thread, whatever the budget says, and no call that flushes: the last memtable stays in the log.
#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::marker::{PhantomData, PhantomPinned};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::slice;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::process;
use crate::store::{Budget, Sink, Store};

/// Something of LevelDB's that only pointers reach; `Kind` keeps two kinds of pointers apart.
#[repr(C)]
struct Opaque<const KIND: u8> {
    _bytes: [u8; 0],
    _not_ours: PhantomData<(*mut u8, PhantomPinned)>,
}
type Db = Opaque<0>;
type Options = Opaque<1>;
type ReadOptions = Opaque<2>;
type WriteOptions = Opaque<3>;
type Cache = Opaque<4>;
type Filter = Opaque<5>;
type Iter = Opaque<6>;

type Char = c_char;

#[link(name = "leveldb")]
unsafe extern "C" {
    fn leveldb_open(options: *const Options, name: *const Char, error: *mut *mut Char) -> *mut Db;
    fn leveldb_close(db: *mut Db);
    #[rustfmt::skip]
    fn leveldb_put(
        db: *mut Db,
        options: *const WriteOptions,
        key: *const Char,
        key_bytes: usize,
        value: *const Char,
        value_bytes: usize,
        error: *mut *mut Char,
    );
    #[rustfmt::skip]
    fn leveldb_delete(
        db: *mut Db,
        options: *const WriteOptions,
        key: *const Char,
        key_bytes: usize,
        error: *mut *mut Char,
    );
    #[rustfmt::skip]
    fn leveldb_get(
        db: *mut Db,
        options: *const ReadOptions,
        key: *const Char,
        key_bytes: usize,
        value_bytes: *mut usize,
        error: *mut *mut Char,
    ) -> *mut Char;
    fn leveldb_create_iterator(db: *mut Db, options: *const ReadOptions) -> *mut Iter;
    fn leveldb_iter_destroy(iter: *mut Iter);
    fn leveldb_iter_valid(iter: *const Iter) -> c_uchar;
    fn leveldb_iter_seek(iter: *mut Iter, key: *const Char, key_bytes: usize);
    fn leveldb_iter_next(iter: *mut Iter);
    fn leveldb_iter_key(iter: *const Iter, bytes: *mut usize) -> *const Char;
    fn leveldb_iter_value(iter: *const Iter, bytes: *mut usize) -> *const Char;
    fn leveldb_iter_get_error(iter: *const Iter, error: *mut *mut Char);
    fn leveldb_options_create() -> *mut Options;
    fn leveldb_options_destroy(options: *mut Options);
    fn leveldb_options_set_create_if_missing(options: *mut Options, yes: c_uchar);
    fn leveldb_options_set_write_buffer_size(options: *mut Options, bytes: usize);
    fn leveldb_options_set_block_size(options: *mut Options, bytes: usize);
    fn leveldb_options_set_compression(options: *mut Options, kind: c_int);
    fn leveldb_options_set_cache(options: *mut Options, cache: *mut Cache);
    fn leveldb_options_set_filter_policy(options: *mut Options, filter: *mut Filter);
    fn leveldb_cache_create_lru(bytes: usize) -> *mut Cache;
    fn leveldb_cache_destroy(cache: *mut Cache);
    fn leveldb_filterpolicy_create_bloom(bits_per_key: c_int) -> *mut Filter;
    fn leveldb_filterpolicy_destroy(filter: *mut Filter);
    fn leveldb_readoptions_create() -> *mut ReadOptions;
    fn leveldb_readoptions_destroy(options: *mut ReadOptions);
    fn leveldb_readoptions_set_verify_checksums(options: *mut ReadOptions, yes: c_uchar);
    fn leveldb_writeoptions_create() -> *mut WriteOptions;
    fn leveldb_writeoptions_destroy(options: *mut WriteOptions);
    fn leveldb_writeoptions_set_sync(options: *mut WriteOptions, yes: c_uchar);
    fn leveldb_free(pointer: *mut c_void);
}

/// An open LevelDB, and what must outlive it.
pub(crate) struct LevelDb {
    db: NonNull<Db>,
    read: *mut ReadOptions,
    write: *mut WriteOptions,
    options: *mut Options,
    cache: *mut Cache,
    filter: *mut Filter,
}

// SAFETY: LevelDB's database may be used from any number of threads at once (its doc/index.md, "Concurrency"); the options are not
// changed after `open`.
unsafe impl Sync for LevelDb {}

/// Turns LevelDB's error string, if there is one, into an error, and frees it.
fn check(error: *mut Char) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: a non-null error is a string that ends in 0 and belongs to us.
    let text = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: it came from LevelDB and is not used any more.
    unsafe { leveldb_free(error.cast()) };
    bail!("leveldb: {text}")
}

impl Store for LevelDb {
    fn open(path: &Path, budget: &Budget) -> Result<LevelDb> {
        let name = CString::new(path.as_os_str().as_bytes()).context("a path with a zero byte")?;
        let mut error = ptr::null_mut();
        // SAFETY: every pointer comes from the matching create function and lives until `Drop`, after the database is closed;
        // `name` and `error` live through the call.
        let (db, read, write, options, cache, filter) = unsafe {
            let options = leveldb_options_create();
            let cache = leveldb_cache_create_lru(budget.cache_bytes);
            let filter = leveldb_filterpolicy_create_bloom(c_int::from(budget.filter_bits_per_key));
            leveldb_options_set_create_if_missing(options, 1);
            leveldb_options_set_write_buffer_size(options, budget.memtable_bytes);
            leveldb_options_set_block_size(options, budget.block_bytes);
            leveldb_options_set_compression(options, 0);
            leveldb_options_set_cache(options, cache);
            leveldb_options_set_filter_policy(options, filter);
            let write = leveldb_writeoptions_create();
            leveldb_writeoptions_set_sync(write, c_uchar::from(budget.sync));
            let read = leveldb_readoptions_create();
            leveldb_readoptions_set_verify_checksums(read, c_uchar::from(budget.leveldb_verifies));
            let db = leveldb_open(options, name.as_ptr(), &mut error);
            (db, read, write, options, cache, filter)
        };
        check(error)?;
        let db = NonNull::new(db).context("leveldb gave neither a database nor an error")?;
        Ok(LevelDb { db, read, write, options, cache, filter })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut error = ptr::null_mut();
        // SAFETY: the database is open, the slices live through the call.
        unsafe {
            let (k, v) = (key.as_ptr().cast(), value.as_ptr().cast());
            leveldb_put(self.db.as_ptr(), self.write, k, key.len(), v, value.len(), &mut error);
        }
        check(error)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        let mut error = ptr::null_mut();
        // SAFETY: the database is open, the slice lives through the call.
        unsafe { leveldb_delete(self.db.as_ptr(), self.write, key.as_ptr().cast(), key.len(), &mut error) };
        check(error)
    }

    fn get(&self, key: &[u8], sink: &mut Sink) -> Result<bool> {
        let (mut error, mut len) = (ptr::null_mut(), 0);
        let k = key.as_ptr().cast();
        // SAFETY: the database is open, the slice lives through the call.
        let value = unsafe { leveldb_get(self.db.as_ptr(), self.read, k, key.len(), &mut len, &mut error) };
        check(error)?;
        if value.is_null() {
            return Ok(false);
        }
        // SAFETY: a value that is not null holds `len` bytes, which are ours until freed.
        sink.take(unsafe { slice::from_raw_parts(value.cast(), len) });
        // SAFETY: it came from LevelDB and is not used any more.
        unsafe { leveldb_free(value.cast()) };
        Ok(true)
    }

    fn scan(&self, from: &[u8], nexts: usize, sink: &mut Sink) -> Result<usize> {
        let (mut error, mut seen, mut len) = (ptr::null_mut(), 0, 0);
        // SAFETY: the iterator is destroyed below, before the database can be closed; key and value are looked at only while it is
        // valid, and not after it moves.
        unsafe {
            let iter = leveldb_create_iterator(self.db.as_ptr(), self.read);
            leveldb_iter_seek(iter, from.as_ptr().cast(), from.len());
            while leveldb_iter_valid(iter) != 0 {
                let key = leveldb_iter_key(iter, &mut len);
                sink.take(slice::from_raw_parts(key.cast(), len));
                let value = leveldb_iter_value(iter, &mut len);
                sink.take(slice::from_raw_parts(value.cast(), len));
                seen += 1;
                if seen > nexts {
                    break;
                }
                leveldb_iter_next(iter);
            }
            leveldb_iter_get_error(iter, &mut error);
            leveldb_iter_destroy(iter);
        }
        check(error)?;
        Ok(seen)
    }

    fn settle(&self) -> Result<Instant> {
        process::wait_until_quiet()
    }
}

impl Drop for LevelDb {
    fn drop(&mut self) {
        // SAFETY: all of them are what `open` made, and nothing uses them after this.
        unsafe {
            leveldb_close(self.db.as_ptr());
            leveldb_readoptions_destroy(self.read);
            leveldb_writeoptions_destroy(self.write);
            leveldb_options_destroy(self.options);
            leveldb_cache_destroy(self.cache);
            leveldb_filterpolicy_destroy(self.filter);
        }
    }
}
