//! The configuration of one world, drawn from its seed: options so tiny that everything rare happens often.
//!
//! Memtables of a kibibyte, blocks of some dozen bytes, files of one: a few hundred operations build a tree of several
//! levels, roll logs and manifests, evict handles and stall writers. Keys are nasty on purpose: empty, all 0xff, equal in
//! their first 16 bytes, prefixes of each other, as long as the store allows.

use std::sync::OnceLock;
use std::time::Duration;

use siltstone::compaction::{Sizes, Strategy};
use siltstone::io::Rng;
use siltstone::options::{Compression, DirectOptions, LogOptions, MemtableKind};
use siltstone::schedule::constraint::Local;
use siltstone::schedule::write_control::{Delay, Limit};
use siltstone::schedule::{Constraint, Scheduler, WriteControl};
use siltstone::{KeyspaceOptions, Options};

use crate::ops::{Acks, index};

/// Everything that is fixed about a world.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it was drawn from.
    pub seed: u64,
    /// Options of the store at first open.
    pub options: Options,
    /// All keys that operations name, ascending, no two equal.
    pub keys: Vec<Vec<u8>>,
    /// How its writes are acknowledged.
    pub acks: Acks,
    /// Keyspaces may lose their oldest data, and some have a strategy that does so.
    pub may_lose: bool,
    /// The longest value.
    pub value_limit: u32,
    /// Lane steps after an operation: up to this many.
    pub steps_between: u64,
}

impl Config {
    /// Draws the configuration of the world with this seed.
    pub fn from_seed(seed: u64) -> Config {
        let mut rng = Rng::new(seed).split("configuration");
        let keys = keys(&mut rng);
        let may_lose = rng.one_in(6);
        let keyspace = keyspace_options(&mut rng, may_lose);
        let memtable = keyspace.memtable_bytes;
        let segment_bytes = 8192 << rng.below(3);
        let options = Options {
            write_memory_bytes: (memtable * rng.between(1, 6)).max(4096),
            cache_bytes: [0, 512, 4096, 65_536][index(&mut rng, 4)],
            max_open_files: [8, 12, 30, 100][index(&mut rng, 4)],
            compaction_threads: crate::ops::number(rng.between(1, 3)),
            rate_limit_bytes_per_s: if rng.one_in(8) { 1 << 20 } else { 0 },
            force_every_bytes: [0, 4096, 16 << 20][index(&mut rng, 3)],
            decision_records: [0, 3, 256][index(&mut rng, 3)],
            scheduler: scheduler(rng.next_u64()),
            log: LogOptions { segment_bytes, max_bytes: segment_bytes * rng.between(1, 4) },
            direct: DirectOptions { reads: rng.one_in(4), flushes: rng.one_in(4), compactions: rng.one_in(4) },
            keyspace,
            ..Options::default()
        };
        Config {
            seed,
            options,
            keys,
            acks: if rng.one_in(12) { Acks::Unlogged } else { mixed_or_logged(seed) },
            may_lose,
            value_limit: [300, 2000, 20_000][index(&mut rng, 3)],
            steps_between: [0, 1, 4, 16][index(&mut rng, 4)],
        }
    }

    /// What a reopen changes: everything that may change between two lives of a store.
    pub fn redraw(&self, options: &Options, seed: u64) -> Options {
        let fresh = Config::from_seed(seed).options;
        Options { recovery: options.recovery, keyspace: options.keyspace.clone(), ..fresh }
    }
}

fn mixed_or_logged(seed: u64) -> Acks {
    if Rng::new(seed).split("acknowledgements").one_in(5) { Acks::Mixed } else { Acks::Logged }
}

/// Tiny options of a keyspace; where it `may_lose` its oldest data, most do.
pub fn keyspace_options(rng: &mut Rng, may_lose: bool) -> KeyspaceOptions {
    let may_lose_oldest = may_lose && !rng.one_in(4);
    let strategies = match may_lose_oldest && rng.one_in(2) {
        true => losing_strategies(),
        false if rng.one_in(8) => stitching_strategies(),
        false => strategies(),
    };
    // zstd makes a context for each tiny table, which takes most of a world's time: one world in eight is enough of it.
    let compression = match rng.below(16) {
        0..9 => vec![Compression::None],
        9..14 => vec![Compression::None, Compression::Lz4],
        14 => vec![Compression::Zstd],
        _ => vec![Compression::None, Compression::Lz4, Compression::Zstd],
    };
    let options = KeyspaceOptions {
        memtable_bytes: 1024 << rng.below(5),
        memtable: if rng.one_in(4) { MemtableKind::SortedVector } else { MemtableKind::Tree },
        strategy: {
            let name = &strategies[index(rng, strategies.len() as u64)];
            if rng.one_in(6) { released_progressively(name) } else { name.clone() }
        },
        // 0 leaves it to the strategy, as most users do.
        size_ratio: if rng.one_in(3) { 0 } else { crate::ops::number(rng.between(2, 4)) },
        level1_bytes: if rng.one_in(2) { 0 } else { 1024 << rng.below(4) },
        file_bytes: 1024 << rng.below(4),
        block_bytes: [64, 256, 512, 1024][index(rng, 4)],
        filter_bits_per_key: [0.0, 4.0, 10.0][index(rng, 3)],
        compression,
        delete_by: rng.one_in(4).then(|| Duration::from_secs(rng.between(1, 20))),
        may_lose_oldest,
        ..KeyspaceOptions::default()
    };
    write_limits(rng, options)
}

/// The same options with a constraint and a write control of their own.
fn write_limits(rng: &mut Rng, mut options: KeyspaceOptions) -> KeyspaceOptions {
    let local = |per_level| Constraint::Local(Local { per_level });
    // Under a strategy that merges nothing there is no number of runs at which writers stop.
    let stops = least(&options, Constraint::default()) < u32::MAX;
    match if stops { rng.below(10) } else { 10 } {
        0 => options.max_runs = least(&options, Constraint::default()) + crate::ops::number(rng.below(7)),
        1 => options.constraint = local(0),
        2 => options.constraint = local(least(&options, local(0)) + crate::ops::number(rng.below(4))),
        _ => {}
    }
    // Most worlds have the default: those with others spend their time in waiting, and do less.
    options.write_control = match rng.below(16) {
        0 => WriteControl::Stop,
        1 => WriteControl::Limit(Limit { rate_bytes_per_s: 50_000 << rng.below(5) }),
        2 => WriteControl::CompactionFirst,
        3 => WriteControl::Delay(Delay { free_bytes_per_s: 4 << 20, least_bytes_per_s: 20_000 }),
        _ => WriteControl::default(),
    };
    options.max_write_stall = rng.one_in(12).then(|| Duration::from_millis(rng.between(1, 200)));
    options
}

/// The least limit that a constraint can have under the strategy of `options`.
pub fn least(options: &KeyspaceOptions, constraint: Constraint) -> u32 {
    let policy = Strategy::resolve(&options.strategy).expect("one of ours");
    constraint.least(&policy, Sizes::from(options))
}

/// One of the merge schedulers, most with the parameters that they have by default.
pub fn scheduler(seed: u64) -> Scheduler {
    let mut rng = Rng::new(seed).split("scheduler");
    let tables = [
        "{ kind = \"greedy\", width = 1 }",
        "{ kind = \"score\", exact_l0 = true }",
        "{ kind = \"spring-gear\", slack_permille = 1 }",
        // Slow, and busy with users: what is below L0 gets next to nothing.
        "{ kind = \"silk\", device_bytes_per_s = 1000000, least_bytes_per_s = 100000, sample_ms = 1 }",
    ];
    let drawn = index(&mut rng, 2 * Scheduler::NAMES.len() as u64);
    let text = Scheduler::NAMES.into_iter().chain(tables).nth(drawn).unwrap_or("greedy");
    Scheduler::from_text(text).expect("one of ours")
}

/// The strategies that drop the oldest data, with limits that a world reaches, alone and beside merges.
pub fn losing_strategies() -> &'static [String] {
    static SMALL: OnceLock<Vec<String>> = OnceLock::new();
    let presets = siltstone::compaction::strategy::strategies().iter().filter(|preset| preset.loses_oldest());
    let small =
        |text: &str| text.replace("memtables = 16.0", "memtables = 3.0").replace("ttl = \"30d\"", "ttl = \"30s\"");
    let capped = "name = \"capped\"\nlayout = { kind = \"one-leveling\", l0_runs = 2 }\n\
                  [[rule]]\ntrigger = { kind = \"total-size\", memtables = 6.0 }\ngranularity = { kind = \"drop-oldest\" }\n\
                  [[rule]]\nlevels = \"tiered\"\ntrigger = { kind = \"sorted-runs\" }\ngranularity = { kind = \"sorted-runs\" }\n\
                  [[rule]]\nlevels = \"leveled\"\ntrigger = { kind = \"level-saturation\" }\n\
                  granularity = { kind = \"file\" }\nmovement = [\"min-overlap-ratio\"]\n";
    SMALL.get_or_init(|| presets.map(|preset| small(preset.text)).chain([capped.to_owned()]).collect())
}

/// The strategies whose merges link what they would only copy, linking the smallest parts; and one that merges file by file, so that the files
/// of one table part soon.
fn stitching_strategies() -> &'static [String] {
    static SMALL: OnceLock<Vec<String>> = OnceLock::new();
    let presets = siltstone::compaction::strategy::strategies().iter().filter(|preset| preset.text.contains(STITCH));
    let small = |text: &str| text.replace(STITCH, "kind = \"stitch\", min_bytes = 1");
    let by_file = "name = \"stitched\"\nlayout = { kind = \"one-leveling\", l0_runs = 2 }\n\
                   reuse = { kind = \"stitch\", min_bytes = 1, max_dead_percent = 90 }\n\
                   [[rule]]\nlevels = \"tiered\"\ntrigger = { kind = \"sorted-runs\" }\ngranularity = { kind = \"sorted-runs\" }\n\
                   [[rule]]\nlevels = \"leveled\"\ntrigger = { kind = \"level-saturation\" }\n\
                   granularity = { kind = \"file\" }\nmovement = [\"round-robin\"]\n";
    SMALL.get_or_init(|| presets.map(|preset| small(preset.text)).chain([by_file.to_owned()]).collect())
}

/// The strategies of the small worlds.
pub fn strategies() -> &'static [String] {
    static SMALL: OnceLock<Vec<String>> = OnceLock::new();
    SMALL.get_or_init(|| strategies_for(256))
}

/// All strategies that the engine knows but those that lose data, whose answers differ from all others', by name; one that would show
/// nothing of itself in a store of so many keys as its text, scaled down.
pub fn strategies_for(keys: u64) -> Vec<String> {
    let presets = siltstone::compaction::strategy::strategies().iter().filter(|preset| !preset.loses_oldest());
    // Of fewer than 2^27 keys hardly one would be a guard. In the last level each has 2^6 times as many as in the first.
    let bits = format!("guard_bits = {}", keys.max(1).ilog2().max(6));
    presets
        .map(|preset| match preset.name {
            "pebblesdb" => preset.text.replace("guard_bits = 27", &bits).replace("levels = 7", "levels = 4"),
            // So many runs of small memtables would be all that most worlds have.
            "one-leveling" => {
                preset.text.replace("= 32", "= 8").replace("level1_memtables = 16.0", "level1_memtables = 4.0")
            }
            name => name.to_owned(),
        })
        .collect()
}

/// The preset of that name, its merges with progressive release.
pub fn released_progressively(name: &str) -> String {
    let presets = siltstone::compaction::strategy::strategies();
    match presets.iter().find(|preset| preset.name == name) {
        // What is linked gives nothing back: the two do not go together.
        Some(preset) if !preset.text.contains("\nrelease") && !preset.text.contains("\"stitch\"") => {
            preset.text.replacen("[[rule]]", "release = \"progressive\"\n\n[[rule]]", 1)
        }
        _ => name.to_owned(),
    }
}

const STITCH: &str = "kind = \"stitch\"";

fn keys(rng: &mut Rng) -> Vec<Vec<u8>> {
    let count = [16, 60, 250, 1000][index(rng, 4)];
    let mut keys: Vec<Vec<u8>> =
        vec![Vec::new(), vec![0], vec![0, 0], vec![0xff], vec![0xff; 16], vec![0xff; 17], vec![0xff; 40]];
    let long = if rng.one_in(60) { siltstone::key::MAX_KEY_BYTES } else { 700 };
    keys.push(vec![b'm'; long]);
    keys.push([&vec![b'm'; long - 1][..], b"n"].concat());
    let style = rng.below(4);
    let mut n = 0u64;
    while keys.len() < count {
        n += 1;
        let key = match (style, rng.below(20)) {
            // Equal in more than the first 16 bytes.
            (0, _) | (_, 0) => format!("a-shared-prefix-of-many-bytes/{n:06}").into_bytes(),
            // Zeros at the end: equal 16-byte heads although the keys differ.
            (_, 1) => [&b"head"[..], &vec![0; index(rng, 20)]].concat(),
            (1, _) => format!("{n:05}").into_bytes(),
            (2, _) => {
                let len = rng.between(1, 24);
                (0..len).map(|_| [0, 1, b'a', b'b', 0xfe, 0xff][index(rng, 6)]).collect()
            }
            _ => {
                let len = rng.between(1, 40);
                (0..len).map(|_| rng.next_u64().to_le_bytes()[0]).collect()
            }
        };
        if key.len() <= siltstone::key::MAX_KEY_BYTES {
            keys.push(key);
        }
        if n > 10_000 {
            break;
        }
    }
    keys.sort();
    keys.dedup();
    keys
}
