//! What commands on a store share: its path and options, opening it, keys given as text.

use std::ops::Bound;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use siltstone::io::RealFs;
use siltstone::version::superblock;
use siltstone::{Db, ErrorKind, Keyspace, Options};
use siltstone_lab::setting;
use siltstone_lab::strategy::choose;

use crate::output::from_hex;
use crate::progress::line;

/// Options that a store is opened with.
#[derive(Args, Clone, Debug)]
pub(crate) struct OptionArgs {
    /// TOML file of options, as `siltstone stats --print-options` prints them
    #[arg(long, value_name = "FILE", help_heading = "Store options")]
    options: Option<PathBuf>,
    /// One option, e.g. cache_bytes=64MiB, keyspace.strategy=tiering or keyspace.strategy=./mine.toml; overrides --options, can be repeated
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Store options")]
    set: Vec<String>,
}

impl OptionArgs {
    /// Whether none was given.
    pub(crate) fn is_empty(&self) -> bool {
        self.options.is_none() && self.set.is_empty()
    }

    /// Whether `--set` names the option, or a part of it.
    pub(crate) fn sets(&self, option: &str) -> bool {
        let names = self.set.iter().filter_map(|given| given.split_once('=')).map(|(name, _)| name.trim());
        names.filter_map(|name| name.strip_prefix(option)).any(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    /// The settings whose names begin with `prefix`, without it, and the options without them.
    ///
    /// # Errors
    /// If a setting has no value.
    pub(crate) fn split(&self, prefix: &str) -> anyhow::Result<(Vec<(String, toml::Value)>, OptionArgs)> {
        let (with, rest): (Vec<_>, Vec<_>) = self.set.iter().partition(|given| given.trim_start().starts_with(prefix));
        let setting = |given: &&String| {
            let (name, value) = name_and_value(given)?;
            Ok((name[prefix.len()..].to_owned(), value_of(name, value).with_context(|| format!("--set {given}"))?))
        };
        let with = with.iter().map(setting).collect::<anyhow::Result<_>>()?;
        Ok((with, OptionArgs { options: self.options.clone(), set: rest.into_iter().cloned().collect() }))
    }

    /// The options, and the table of those that were given.
    pub(crate) fn read(&self) -> anyhow::Result<(Options, toml::Table)> {
        let mut given = match &self.options {
            Some(path) => std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the options file {}", path.display()))?
                .parse()
                .with_context(|| format!("options file {}", path.display()))?,
            None => toml::Table::new(),
        };
        for setting in &self.set {
            set(&mut given, setting)?;
        }
        let mut options = Options::from_text(&given.to_string())?;
        options.keyspace.strategy = choose(&options.keyspace.strategy)?.option;
        Ok((options, given))
    }
}

/// Puts `a.b=value` into the table.
fn set(table: &mut toml::Table, given: &str) -> anyhow::Result<()> {
    let (name, value) = name_and_value(given)?;
    let value = value_of(name, value).with_context(|| format!("--set {given}"))?;
    setting::set(table, name, value).map_err(|problem| anyhow!("--set {given}: {problem}"))
}

fn name_and_value(given: &str) -> anyhow::Result<(&str, &str)> {
    let Some((name, value)) = given.split_once('=') else {
        bail!("--set {given}: expected NAME=VALUE, for example --set cache_bytes=64MiB");
    };
    Ok((name.trim(), value.trim()))
}

/// A size with a unit for a `_bytes` or `_bytes_per_s` option, else TOML, else a text without quotes.
fn value_of(name: &str, value: &str) -> anyhow::Result<toml::Value> {
    let is_size = name.ends_with("_bytes") || name.ends_with("_bytes_per_s");
    if let Some(size) = size(value).filter(|_| is_size).and_then(|size| i64::try_from(size).ok()) {
        return Ok(size.into());
    }
    let parsed = format!("value = {value}").parse::<toml::Table>().ok().and_then(|mut table| table.remove("value"));
    // Of a workload, a size may also be a law with its parameters: a table.
    ensure!(!is_size || parsed.as_ref().is_some_and(|value| !value.is_str()), "expected a size, for example 64MiB");
    Ok(parsed.unwrap_or_else(|| value.into()))
}

/// `64MiB`, `64M`, `65536`: units of 1024.
pub(crate) fn size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// How often a reading that has printed nothing yet is begun anew when another process writes to the store.
pub(crate) const TRIES: u32 = 5;

fn names_a_missing_file(error: &anyhow::Error) -> bool {
    let path = error.chain().find_map(|cause| cause.downcast_ref()).and_then(siltstone::Error::path);
    path.is_some_and(|path| !path.exists())
}

/// A store and how to open it.
#[derive(Args, Clone, Debug)]
pub(crate) struct StoreArgs {
    /// Folder of the store
    #[arg(value_name = "STORE")]
    pub(crate) path: PathBuf,
    #[command(flatten)]
    options: OptionArgs,
}

impl StoreArgs {
    /// For a command whose store may be left out.
    pub(crate) fn new(path: PathBuf, options: OptionArgs) -> StoreArgs {
        StoreArgs { path, options }
    }

    /// Opens an existing store for reading alone.
    pub(crate) fn open_to_read(&self) -> anyhow::Result<Db> {
        let (options, _) = self.options.read()?;
        self.must_exist()?;
        self.reading(TRIES, || Ok(Db::open_read_only(&self.path, options.clone())?))
    }

    /// Does `work`, which reads the store through an opening for reading alone, up to `tries` times. Such an opening locks nobody out, so a
    /// process that writes to the store may remove what was still to be read.
    ///
    /// # Errors
    /// What `work` fails with, unless that is a file which such a process has removed.
    pub(crate) fn reading<T>(&self, tries: u32, work: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
        self.reading_whole(tries, work, |_| false)
    }

    /// The same where `lacks` tells of a result whether files were missing.
    pub(crate) fn reading_whole<T>(
        &self,
        tries: u32,
        mut work: impl FnMut() -> anyhow::Result<T>,
        lacks: impl Fn(&T) -> bool,
    ) -> anyhow::Result<T> {
        // Whatever leaves the tree or the log is removed after the commit that says so, and each commit changes the superblock.
        let root = || superblock::read(&RealFs, &self.path).ok();
        for _ in 0..tries {
            let before = root();
            let done = work();
            let is_short = match &done {
                Ok(result) => lacks(result),
                Err(error) => names_a_missing_file(error),
            };
            if !is_short || root() == before {
                return done;
            }
        }
        bail!(
            "another process is writing to {} and has replaced files that were still to be read: try again, or read a checkpoint of it",
            self.path.display()
        )
    }

    /// Opens an existing store.
    pub(crate) fn open(&self) -> anyhow::Result<Db> {
        let (options, _) = self.options.read()?;
        self.must_exist()?;
        Ok(Db::open(&self.path, Options { create_if_missing: false, ..options })?)
    }

    /// Opens a store, making it when there is none.
    pub(crate) fn open_or_create(&self) -> anyhow::Result<Db> {
        let (options, _) = self.options.read()?;
        Ok(Db::open(&self.path, options)?)
    }

    /// The keyspace called `name`, which must exist.
    pub(crate) fn keyspace(&self, db: &Db, name: &str) -> anyhow::Result<Keyspace> {
        db.keyspace(name).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                anyhow::anyhow!("there is no keyspace {name:?}; the store has: {}", db.list_keyspaces().join(", "))
            }
            _ => error.into(),
        })
    }

    fn must_exist(&self) -> anyhow::Result<()> {
        if !self.path.is_dir() {
            bail!("there is no store at {}: check the path; `put` and `import` make a store", self.path.display());
        }
        Ok(())
    }
}

/// A store and one of its keyspaces.
#[derive(Args, Clone, Debug)]
pub(crate) struct KeyspaceArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Keyspace to work on
    #[arg(long, default_value = "default", value_name = "NAME")]
    pub(crate) keyspace: String,
}

impl KeyspaceArgs {
    /// The keyspace, which must exist.
    pub(crate) fn find(&self, db: &Db) -> anyhow::Result<Keyspace> {
        self.store.keyspace(db, &self.keyspace)
    }

    /// The keyspace, which must exist, for a command that changes it: says so if options were given that it does not take.
    pub(crate) fn find_to_change(&self, db: &Db) -> anyhow::Result<Keyspace> {
        let keyspace = self.find(db)?;
        self.note_other_options(&keyspace)?;
        Ok(keyspace)
    }

    /// The keyspace, made when there is none.
    pub(crate) fn find_or_create(&self, db: &Db) -> anyhow::Result<Keyspace> {
        match db.keyspace(&self.keyspace) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let (options, _) = self.store.options.read()?;
                Ok(db.create_keyspace(&self.keyspace, options.keyspace)?)
            }
            found => {
                let found = found?;
                self.note_other_options(&found)?;
                Ok(found)
            }
        }
    }

    fn note_other_options(&self, keyspace: &Keyspace) -> anyhow::Result<()> {
        let (options, given) = self.store.options.read()?;
        if given.contains_key("keyspace") && keyspace.options() != options.keyspace {
            let name = &self.keyspace;
            line(&format!(
                "note: keyspace {name} keeps the options that it was made with; those given are for new ones"
            ));
        }
        Ok(())
    }
}

/// How keys and values are spelled on the command line.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Spelling {
    /// Keys and values are hexadecimal, in arguments and in what is printed
    #[arg(long)]
    pub(crate) hex: bool,
}

impl Spelling {
    /// The bytes that an argument stands for.
    pub(crate) fn bytes(self, what: &str, text: &str) -> anyhow::Result<Vec<u8>> {
        if self.hex {
            from_hex(text).with_context(|| {
                format!("the {what} {text:?} is not hexadecimal: write two digits 0-9a-f for each byte")
            })
        } else {
            Ok(text.as_bytes().to_vec())
        }
    }
}

/// A range of keys as the library takes it.
pub(crate) type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// A range of keys on the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct RangeArgs {
    /// First key, inclusive
    #[arg(long, value_name = "KEY")]
    from: Option<String>,
    /// Last key, exclusive
    #[arg(long, value_name = "KEY")]
    to: Option<String>,
}

impl RangeArgs {
    /// The bounds.
    pub(crate) fn bounds(&self, spelling: Spelling) -> anyhow::Result<Bounds> {
        let key = |what, text: &Option<String>| text.as_deref().map(|text| spelling.bytes(what, text)).transpose();
        let from = key("--from key", &self.from)?.map_or(Bound::Unbounded, Bound::Included);
        let to = key("--to key", &self.to)?.map_or(Bound::Unbounded, Bound::Excluded);
        Ok((from, to))
    }
}

/// `bounds` without the keys that do not start with `prefix`.
pub(crate) fn within_prefix((from, to): Bounds, prefix: &[u8]) -> Bounds {
    let (first, after) = siltstone::prefix_bounds(prefix);
    let from = match from {
        Bound::Included(key) if key[..] > *prefix => Bound::Included(key),
        _ => first,
    };
    let to = match (to, after) {
        (Bound::Excluded(key), Bound::Excluded(after)) => Bound::Excluded(key.min(after)),
        (to, Bound::Unbounded) => to,
        (_, after) => after,
    };
    (from, to)
}

/// Whether a range holds no key at all: the library refuses bounds in the wrong order.
pub(crate) fn is_backwards(bounds: &Bounds) -> bool {
    matches!(bounds, (Bound::Included(from), Bound::Excluded(to)) if from >= to)
}

/// The path as an argument error shows it.
pub(crate) fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_become_options() {
        let args = |set: &[&str]| OptionArgs { options: None, set: set.iter().map(|s| (*s).to_owned()).collect() };
        let (options, given) = args(&[
            "cache_bytes=7MiB",
            "log.segment_bytes=1m",
            "keyspace.strategy=tiering",
            "keyspace.compression=[\"lz4\"]",
        ])
        .read()
        .unwrap();
        assert_eq!((options.cache_bytes, options.log.segment_bytes), (7 << 20, 1 << 20));
        assert_eq!(options.keyspace.strategy, "tiering");
        assert_eq!(options.keyspace.compression, [siltstone::options::Compression::Lz4]);
        assert!(given.contains_key("cache_bytes") && !given.contains_key("max_open_files"));
        assert!(args(&["memtabel=1"]).read().unwrap_err().to_string().contains("memtabel"));
        assert!(args(&["cache_bytes"]).read().is_err());
        for wrong in ["lots", "\"64MiB\"", "1.5GiB", ""] {
            let error = format!("{:#}", args(&[&format!("cache_bytes={wrong}")]).read().unwrap_err());
            assert!(error.contains("cache_bytes") && error.contains("a size, for example 64MiB"), "{error}");
        }
        assert!(args(&["cache_bytes=1", "cache_bytes.x=1"]).read().is_err());
    }

    /// A table that was merged away beneath a reader was called damage, with the advice to restore a checkpoint.
    #[test]
    fn what_a_writer_removes_is_no_damage() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(folder.path(), Options::default()).unwrap();
        db.default_keyspace().put("k", "v").unwrap();
        db.flush().unwrap();
        let table = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let table = table.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "sst")).unwrap();
        let hidden = table.with_extension("hidden");
        let hide = || std::fs::rename(&table, &hidden).unwrap();
        let commits = std::cell::Cell::new(0);
        let commit_and_hide = || {
            commits.set(commits.get() + 1);
            db.create_keyspace(&commits.get().to_string(), siltstone::KeyspaceOptions::default()).unwrap();
            hide();
        };
        let store = StoreArgs::new(
            folder.path().to_owned(),
            OptionArgs { options: None, set: vec!["cache_bytes=1MiB".into()] },
        );
        let read_after = |change: &dyn Fn()| {
            let _ = std::fs::rename(&hidden, &table);
            let reader = store.open_to_read()?;
            change();
            Ok(reader.default_keyspace().get("k")?.is_some())
        };
        let error = store.reading(1, || read_after(&commit_and_hide)).unwrap_err();
        assert!(error.to_string().contains("another process is writing"), "{error}");
        assert!(error.downcast_ref::<siltstone::Error>().is_none(), "an error without the hints for damage");
        let found = store.reading(TRIES, || {
            read_after(&|| {
                if commits.get() < 3 {
                    commit_and_hide();
                }
            })
        });
        assert!(found.unwrap() && commits.get() == 3);
        // Where nobody writes, a missing table is what it was.
        let error = store.reading(TRIES, || read_after(&hide)).unwrap_err();
        assert_eq!(error.downcast_ref().map(siltstone::Error::kind), Some(ErrorKind::Corruption), "{error}");
    }

    #[test]
    fn a_prefix_narrows_a_range() {
        let all = || (Bound::Unbounded, Bound::Unbounded);
        let within = |from: &[u8], to: &[u8]| (Bound::Included(from.to_vec()), Bound::Excluded(to.to_vec()));
        assert_eq!(within_prefix(all(), b"ab"), within(b"ab", b"ac"));
        assert_eq!(within_prefix(all(), b"a\xff\xff"), within(b"a\xff\xff", b"b"));
        assert_eq!(within_prefix(all(), b"\xff"), (Bound::Included(b"\xff".to_vec()), Bound::Unbounded));
        assert_eq!(within_prefix(within(b"abc", b"abx"), b"ab"), within(b"abc", b"abx"));
        assert_eq!(within_prefix(within(b"a", b"z"), b"ab"), within(b"ab", b"ac"));
    }
}
