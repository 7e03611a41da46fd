//! Options: plain data, nested by room, printed to text and parsed back.
//!
//! [`Options`] belong to the store, [`KeyspaceOptions`] to one keyspace. Both are TOML: unknown names are refused, and
//! [`Options::validate`] lists every problem at once. The text of a keyspace's options is kept in the manifest, so that they
//! can be read back from the store.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::schedule::constraint::{Constraint, Global};
use crate::schedule::{Scheduler, WriteControl};

pub(crate) mod age;

pub use age::parse_time;

/// Options of a store.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Create the store if the folder holds none. Default true.
    pub create_if_missing: bool,
    /// Fail if the folder holds a store. Default false.
    pub error_if_exists: bool,
    /// Bytes of memory that all memtables of the store may take together, immutable ones included. Default 64 MiB. When it
    /// is used up, the largest memtable is flushed; when nothing can be flushed, writers wait.
    pub write_memory_bytes: u64,
    /// Bytes of the block cache, filters and indexes of open tables included. Default 64 MiB. Memory is taken as blocks come, and as much again ahead
    /// of them. Tables that are being read stay open: if their filters and indexes (for records of 100 bytes about 2 % of the data) take more than
    /// three quarters, blocks keep the last one and the rest comes on top.
    pub cache_bytes: u64,
    /// File descriptors that SSTs may take for reading. Default 1000. The least used table is closed and reopened on demand. A
    /// merge takes one more for each run that it reads, and one for its output; threads that share it as many each.
    pub max_open_files: u32,
    /// Background threads that merge. Default 2. A merge of several output files is divided by keys, so that all can share it. Flushes and
    /// the log have one thread of their own each.
    pub compaction_threads: u32,
    /// Unix niceness of the merging threads; flushes and the log have half of it. Default 10: foreground work first.
    pub compaction_nice: u8,
    /// Which of the running merges gets the disk: `single`, `fair`, `greedy`, `spring-gear`, `silk` or `score`, or a table with
    /// parameters ([`Scheduler`]). Changed while the store is open by [`Db::set_scheduler`](crate::Db::set_scheduler). Default `greedy`.
    pub scheduler: Scheduler,
    /// Bandwidth of flushes and merges together, in bytes a second. Default 0: unlimited.
    pub rate_limit_bytes_per_s: u64,
    /// Flushes and merges force a file that they write to disk whenever it has grown by this many bytes. Default 16 MiB (luo19
    /// section 3.1); 0 only at its end, which leaves it to the operating system when to write, and how much at once.
    pub force_every_bytes: u64,
    /// Disk space that merges may take for a time beyond the live files, in bytes: outputs that are being written, and replaced
    /// files that are not deleted yet. A merge that may need more is done in parts; if no part fits, writers are told `NoSpace`.
    /// Iterators that are held open keep replaced files, which count: when for a second nothing else has kept a merge waiting, those who wait for it
    /// are told as well ([`Db::wait_idle`](crate::Db::wait_idle), too), and merges go on once the files are given up. Default 0: no limit, and
    /// replaced files of as many bytes as the tables may be kept for seconds, to be written over.
    pub extra_space_bytes: u64,
    /// The log.
    pub log: LogOptions,
    /// Direct I/O.
    pub direct: DirectOptions,
    /// What recovery does with a damaged log. Default [`Recovery::Strict`].
    pub recovery: Recovery,
    /// Compaction decisions that are kept for each keyspace, in memory and in the file `DECISIONS`, for `siltstone explain`. Default 256, at
    /// most 65536; 0 keeps none.
    pub decision_records: u32,
    /// The options of the keyspace `default`, and of a keyspace that is created without any.
    pub keyspace: KeyspaceOptions,
}

/// Options of the write-ahead log.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogOptions {
    /// Size of a log segment. Default 8 MiB: two or three are in memory at a time, and count as
    /// memory, so a segment is never larger than a quarter of `write_memory_bytes`, nor than a 64th of the memory that the process may
    /// have (the machine's, or what its control group allows; 1 MiB is always allowed). A record that does not fit gets a segment of its own size,
    /// and a log whose writers rest goes on in one of a quarter.
    pub segment_bytes: u64,
    /// When the log exceeds this from the first segment on that a mutable memtable needs, that memtable is set aside for its flush. What memtables need
    /// that were set aside before, at most `write_memory_bytes` of them, comes on top. Default 256 MiB.
    pub max_bytes: u64,
}

/// Where the page cache is bypassed.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DirectOptions {
    /// Users' reads. Default false.
    pub reads: bool,
    /// The files that flushes write. Default false.
    pub flushes: bool,
    /// The files that merges read and write. Default false.
    pub compactions: bool,
}

/// What recovery does with a damaged log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recovery {
    /// A torn tail ends recovery quietly; damage below what is known to be synced is an error.
    #[default]
    Strict,
    /// Damage ends recovery wherever it is: what comes before it is kept, what comes after is lost.
    Salvage,
}

/// How values of a level are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// LZ4: fast.
    Lz4,
    /// Zstandard, level 1: smaller.
    Zstd,
}

/// Which structure holds the newest records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemtableKind {
    /// A B+-tree of wide nodes on huge pages: the fastest on every workload measured (docs/design/0002).
    #[default]
    Tree,
    /// A vector that is sorted when it is read: for loads in nearly ascending order that are not read meanwhile.
    SortedVector,
}

/// Options of a keyspace.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KeyspaceOptions {
    /// A memtable of this size is flushed, or of an eighth of the memory that the process may have (as of `log.segment_bytes`) where that is
    /// less. Capacities of levels follow this size in any case. Default 16 MiB.
    pub memtable_bytes: u64,
    /// Its structure. Default `tree`.
    pub memtable: MemtableKind,
    /// The compaction strategy: a name that `siltstone strategies` lists, the text of a strategy file, or `policy:NAME` for a policy
    /// that the program registers ([`Env::policies`](crate::Env::policies)). Default `one-leveling`.
    pub strategy: String,
    /// Capacity ratio of neighbouring levels; 0 leaves it to the strategy. Default 0.
    pub size_ratio: u32,
    /// Capacity of the first level below L0, in bytes. Default 0: what the strategy says (`level1_memtables` or a table of
    /// levels), else as much as L0 may hold with the layout `one-leveling`, the size ratio times as much with others.
    pub level1_bytes: u64,
    /// A merge starts a new output file at this size. Default 32 MiB.
    pub file_bytes: u64,
    /// Size of a data block (page) before compression. Default 4096.
    pub block_bytes: u32,
    /// Filter bits per key; 0 for no filter. Default 10.
    pub filter_bits_per_key: f64,
    /// Compression by level; the last one holds for all deeper levels. Default `["none"]`.
    pub compression: Vec<Compression>,
    /// Sorted runs in all levels together at which writers stop; 0 lets the layout decide (twice what it expects, luo19
    /// section 4.2, L0 four times as much where it gathers runs). Default 0. Short for `constraint = { kind = "global", max_runs = N }`.
    pub max_runs: u32,
    /// How many sorted runs there may be before writers wait, in all levels together (`global`) or in each (`local`). Default `global`.
    #[serde(skip_serializing_if = "is_default")]
    pub constraint: Constraint,
    /// How writes wait for merges until that limit: `stop`, `delay`, `limit` or `compaction-first`. Default `delay`.
    #[serde(skip_serializing_if = "is_default")]
    pub write_control: WriteControl,
    /// How long a write may wait, as "50ms" or "2s". From what flushes and merges were measured to do follows how fast writers may be before a
    /// limit, so that whoever meets it waits no longer than this. An aim, no guarantee: it holds as far as the next merge takes as long as
    /// the last ones and has the disk for itself. From 1 ms to 1 h. Default: none.
    #[serde(with = "age::short", skip_serializing_if = "Option::is_none")]
    pub max_write_stall: Option<Duration>,
    /// What is deleted is gone for good within this time, as "90s", "15m", "12h" or "30d": no tombstone is older, on an idle store
    /// too, unless a snapshot still needs it ([`Keyspace::delete_stats`](crate::Keyspace::delete_stats) says which). The last
    /// quarter of the time is for the work, so choose it longer than the store takes to merge all that it holds. Default: none.
    #[serde(with = "age::optional", skip_serializing_if = "Option::is_none")]
    pub delete_by: Option<Duration>,
    /// Data that was not deleted may go, the oldest first, when the strategy says so: a strategy with granularity `drop-oldest` (`rocksdb-fifo`)
    /// is refused without it. Then a read gives a key's newest version or nothing, never an older one, and nothing only where the newest
    /// is no younger than what was dropped. Changed while the store is open by
    /// [`Keyspace::set_may_lose_oldest`](crate::Keyspace::set_may_lose_oldest). Default false.
    #[serde(skip_serializing_if = "is_default")]
    pub may_lose_oldest: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            create_if_missing: true,
            error_if_exists: false,
            write_memory_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            max_open_files: 1000,
            compaction_threads: 2,
            compaction_nice: 10,
            scheduler: Scheduler::default(),
            rate_limit_bytes_per_s: 0,
            force_every_bytes: 16 << 20,
            extra_space_bytes: 0,
            log: LogOptions::default(),
            direct: DirectOptions::default(),
            recovery: Recovery::Strict,
            decision_records: 256,
            keyspace: KeyspaceOptions::default(),
        }
    }
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions { segment_bytes: 8 << 20, max_bytes: 256 << 20 }
    }
}

impl Default for KeyspaceOptions {
    fn default() -> KeyspaceOptions {
        KeyspaceOptions {
            memtable_bytes: 16 << 20,
            memtable: MemtableKind::Tree,
            strategy: "one-leveling".to_owned(),
            size_ratio: 0,
            level1_bytes: 0,
            file_bytes: 32 << 20,
            block_bytes: 4096,
            filter_bits_per_key: 10.0,
            compression: vec![Compression::None],
            max_runs: 0,
            constraint: Constraint::default(),
            write_control: WriteControl::default(),
            max_write_stall: None,
            delete_by: None,
            may_lose_oldest: false,
        }
    }
}

impl KeyspaceOptions {
    /// The compression of files at `level`.
    pub fn compression_at(&self, level: u8) -> Compression {
        let last = self.compression.len().saturating_sub(1);
        self.compression.get(usize::from(level).min(last)).copied().unwrap_or_default()
    }

    /// The constraint, `max_runs` included.
    pub fn constraint(&self) -> Constraint {
        match self.constraint {
            Constraint::Global(Global { max_runs: 0 }) => Constraint::Global(Global { max_runs: self.max_runs }),
            other => other,
        }
    }

    fn problems(&self, problems: &mut Vec<String>) {
        let mut check = |holds: bool, what: &str| {
            if !holds {
                problems.push(what.to_owned());
            }
        };
        check((1 << 10..=16 << 30).contains(&self.memtable_bytes), "memtable_bytes: from 1024 to 16 GiB");
        check(self.file_bytes >= 256, "file_bytes: at least 256");
        check((64..=16 << 20).contains(&self.block_bytes), "block_bytes: from 64 to 16777216");
        check(
            self.filter_bits_per_key >= 0.0 && self.filter_bits_per_key <= 64.0,
            "filter_bits_per_key: from 0 (no filter) to 64",
        );
        check(self.size_ratio != 1 && self.size_ratio <= 1000, "size_ratio: 0 (the strategy's own) or from 2 to 1000");
        check(!self.compression.is_empty(), "compression: at least one entry, the last holds for all deeper levels");
        check(self.compression.len() <= 32, "compression: at most 32 entries");
        let once = self.max_runs == 0 || self.constraint == Constraint::default();
        check(once, "max_runs: not beside a constraint with a limit of its own or of another kind");
        let stalls = Duration::from_millis(1)..=Duration::from_secs(3600);
        check(self.max_write_stall.is_none_or(|time| stalls.contains(&time)), "max_write_stall: from 1ms to 1h");
        if let Err(what) = self.write_control.validate() {
            check(false, &format!("write_control {what}"));
        }
        let whole_seconds = |age: Duration| age.subsec_nanos() == 0 && age.as_secs() > 0;
        check(self.delete_by.is_none_or(whole_seconds), "delete_by: whole seconds, at least one");
        #[cfg(not(feature = "zstd"))]
        check(!self.compression.contains(&Compression::Zstd), "compression: this build has no zstd (feature \"zstd\")");
    }

    /// Checks everything that can be checked without a store.
    ///
    /// # Errors
    /// `InvalidArgument`, listing every problem.
    pub fn validate(&self) -> Result<()> {
        let mut problems = Vec::new();
        self.problems(&mut problems);
        fail_on(&problems)
    }

    /// The options as TOML; [`from_text`](Self::from_text) reads it back.
    pub fn to_text(&self) -> String {
        toml::to_string(self).expect("plain data always serializes")
    }

    /// Reads what [`to_text`](Self::to_text) wrote, or a part of it.
    ///
    /// # Errors
    /// `InvalidArgument`, with the line, for an unknown name or a wrong value.
    pub fn from_text(text: &str) -> Result<KeyspaceOptions> {
        let options: KeyspaceOptions = toml::from_str(text).map_err(|e| Error::invalid(format!("options: {e}")))?;
        options.validate()?;
        Ok(options)
    }
}

impl Options {
    /// Checks everything that can be checked without a store.
    ///
    /// # Errors
    /// `InvalidArgument`, listing every problem.
    pub fn validate(&self) -> Result<()> {
        let mut problems = Vec::new();
        let mut check = |holds: bool, what: &str| {
            if !holds {
                problems.push(what.to_owned());
            }
        };
        check(self.write_memory_bytes >= 4 << 10, "write_memory_bytes: at least 4096");
        check(self.cache_bytes <= 1 << 40, "cache_bytes: at most 1 TiB");
        check(self.max_open_files >= 8, "max_open_files: at least 8");
        check((1..=64).contains(&self.compaction_threads), "compaction_threads: from 1 to 64");
        check(self.compaction_nice <= 19, "compaction_nice: from 0 to 19");
        let forces = self.force_every_bytes == 0 || self.force_every_bytes >= 4 << 10;
        check(forces, "force_every_bytes: 0 (only at the end of a file) or at least 4096");
        if let Err(what) = self.scheduler.validate() {
            check(false, &format!("scheduler {}: {what}", self.scheduler.name()));
        }
        check(self.decision_records <= 1 << 16, "decision_records: at most 65536");
        check(self.log.segment_bytes >= 8 << 10, "log.segment_bytes: at least 8192");
        check(self.log.max_bytes >= self.log.segment_bytes, "log.max_bytes: at least log.segment_bytes");
        self.keyspace.problems(&mut problems);
        fail_on(&problems)
    }

    /// The options as TOML; [`from_text`](Self::from_text) reads it back.
    pub fn to_text(&self) -> String {
        toml::to_string(self).expect("plain data always serializes")
    }

    /// Reads what [`to_text`](Self::to_text) wrote, or a part of it; what is not named keeps its default.
    ///
    /// # Errors
    /// `InvalidArgument`, with the line, for an unknown name or a wrong value.
    pub fn from_text(text: &str) -> Result<Options> {
        let options: Options = toml::from_str(text).map_err(|e| Error::invalid(format!("options: {e}")))?;
        options.validate()?;
        Ok(options)
    }
}

fn is_default<T: Default + PartialEq>(option: &T) -> bool {
    *option == T::default()
}

fn fail_on(problems: &[String]) -> Result<()> {
    if problems.is_empty() { Ok(()) } else { Err(Error::invalid(format!("options: {}", problems.join("; ")))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_print_and_parse_back() {
        let mut options = Options { cache_bytes: 7 << 20, ..Options::default() };
        options.keyspace.compression = vec![Compression::None, Compression::Lz4];
        options.keyspace.filter_bits_per_key = 7.5;
        options.keyspace.delete_by = Some(Duration::from_secs(7200));
        assert_eq!(Options::from_text(&options.to_text()).unwrap(), options);
        let tables = "scheduler = { kind = \"greedy\", width = 1 }\n[keyspace]\nmax_write_stall = \"50ms\"\n\
                      constraint = { kind = \"local\", per_level = 7 }\nwrite_control = { kind = \"limit\", rate_bytes_per_s = 9 }\n";
        let options = Options::from_text(tables).unwrap();
        assert_eq!(Options::from_text(&options.to_text()).unwrap(), options);
        assert_eq!(KeyspaceOptions::from_text(&options.keyspace.to_text()).unwrap(), options.keyspace);
        assert!(matches!(options.keyspace.write_control, WriteControl::Limit(limit) if limit.rate_bytes_per_s == 9));
    }

    #[test]
    fn every_problem_is_listed_and_unknown_names_are_refused() {
        let text = Options::from_text("max_open_files = 1\n[keyspace]\nblock_bytes = 1\n").unwrap_err().to_string();
        assert!(text.contains("max_open_files") && text.contains("block_bytes"), "{text}");
        let wrong = Options::from_text("[keyspace]\ndelete_by = \"soon\"\n").unwrap_err().to_string();
        assert!(wrong.contains("line 2") && wrong.contains("\"soon\" is no time"), "{wrong}");
        let refused = |text: &str| Options::from_text(text).unwrap_err().to_string();
        let wrong = refused("scheduler = \"gready\"\n");
        assert!(wrong.contains("line 1") && wrong.contains("gready") && wrong.contains("spring-gear"), "{wrong}");
        let wrong = refused("[keyspace]\nwrite_control = \"limit\"\n");
        assert!(wrong.contains("rate_bytes_per_s is needed"), "{wrong}");
        let wrong = refused("[keyspace]\nwrite_control = \"gently\"\n");
        assert!(wrong.contains("gently") && wrong.contains("compaction-first"), "{wrong}");
        let wrong = refused("[keyspace]\nmax_runs = 9\nconstraint = \"local\"\n");
        assert!(wrong.contains("max_runs: not beside"), "{wrong}");
        assert!(refused("[keyspace]\nmax_write_stall = \"soon\"\n").contains("50ms"));
        assert!(refused("cache_bytes = 2000000000000\n").contains("1 TiB"));
        assert!(refused("[keyspace]\nmemtable_bytes = 40000000000\n").contains("16 GiB"));
        assert!(Options::from_text("memtabel = 1\n").unwrap_err().to_string().contains("memtabel"));
    }
}
