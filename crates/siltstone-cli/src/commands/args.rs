//! Arguments that several commands take, and what follows from them.

use anyhow::ensure;
use clap::{Args, ValueEnum};
use serde::Serialize;
use siltstone_lab::compare::Fixed;
use siltstone_lab::strategy::{Chosen, choose};

use crate::output::{print, print_json};

/// How a command that takes a while tells what it does. What its JSON is, a command may say by `mut_arg`.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct Telling {
    /// No progress
    #[arg(long, short)]
    pub(super) quiet: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl Telling {
    /// Prints a result, as JSON or as a text.
    pub(super) fn print<T: Serialize + ?Sized>(
        self,
        result: &T,
        text: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        if self.json { print_json(&result) } else { Ok(print(&text(result))?) }
    }
}

/// What is compared.
#[derive(Args, Clone, Debug)]
pub(super) struct Compared {
    /// Strategies, separated by commas: names that `siltstone strategies` lists, or files (./mine.toml) [default:
    /// leveling,one-leveling,tiering,leveldb]
    #[arg(long, visible_alias = "strategies", value_delimiter = ',')]
    strategy: Vec<String>,
}

const DEFAULT_STRATEGIES: [&str; 4] = ["leveling", "one-leveling", "tiering", "leveldb"];

impl Compared {
    /// Whether strategies were named.
    pub(super) fn is_given(&self) -> bool {
        !self.strategy.is_empty()
    }

    /// The strategies, each another one.
    pub(super) fn choose(&self) -> anyhow::Result<Vec<Chosen>> {
        let given = self.strategy.iter().map(String::as_str);
        let names: Vec<&str> = if self.is_given() { given.collect() } else { DEFAULT_STRATEGIES.to_vec() };
        let strategies = names.into_iter().map(choose).collect::<anyhow::Result<Vec<_>>>()?;
        for (i, strategy) in strategies.iter().enumerate() {
            let name = &strategy.name;
            ensure!(strategies[..i].iter().all(|other| other.name != *name), "strategy {name:?} is named twice");
        }
        Ok(strategies)
    }

    /// Which sizes were given, of `given` options, and so are not scaled.
    pub(super) fn fixed(given: &toml::Table) -> anyhow::Result<Fixed> {
        let keyspace = given.get("keyspace").and_then(toml::Value::as_table);
        let in_keyspace = |name| keyspace.is_some_and(|table| table.contains_key(name));
        ensure!(!in_keyspace("strategy"), "keyspace.strategy is what is compared: use --strategy");
        Ok(Fixed {
            memtable: in_keyspace("memtable_bytes"),
            file: in_keyspace("file_bytes"),
            cache: given.contains_key("cache_bytes"),
            write_memory: given.contains_key("write_memory_bytes"),
        })
    }
}

/// Where a store lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum World {
    /// Real files, real time
    Disk,
    /// A simulated disk in virtual time
    Sim,
}
