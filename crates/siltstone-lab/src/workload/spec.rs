//! A workload as plain data, and its text.

use std::path::Path;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::check;
use super::keyset::KeySpec;
use super::law::{Law, named};
use super::phase::PhaseSpec;
use super::size::SizeLaw;
use crate::setting;

/// A workload: keys, values, and what is done with them. Equal specs give equal streams of operations.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Its name.
    pub name: String,
    /// What it is, and where it comes from.
    #[serde(default)]
    pub about: String,
    /// Decides every random choice.
    #[serde(default = "one")]
    pub seed: u64,
    /// What shares like `operations = "50%"` are shares of.
    #[serde(default)]
    pub records: u64,
    /// The keys.
    #[serde(default)]
    pub keys: KeySpec,
    /// The values.
    #[serde(default)]
    pub values: ValueSpec,
    /// Where the rows lie; one keyspace, the default one, if left out.
    #[serde(default, rename = "keyspace", skip_serializing_if = "Vec::is_empty")]
    pub keyspaces: Vec<KeyspaceSpec>,
    /// Secondary indexes: for each row that is inserted or deleted an entry in a keyspace of their own.
    #[serde(default, rename = "index", skip_serializing_if = "Vec::is_empty")]
    pub indexes: Vec<IndexSpec>,
    /// What is done, in order.
    #[serde(rename = "phase")]
    pub phases: Vec<PhaseSpec>,
    #[serde(skip)]
    text: String,
}

/// A keyspace for rows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyspaceSpec {
    /// Its name.
    pub name: String,
    /// Its weight: how many of the rows it holds.
    #[serde(default = "weight")]
    pub weight: f64,
}

/// A secondary index (insert benchmark). Its keys are a value of the row, then the row's key; its values are empty.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexSpec {
    /// The name of its keyspace.
    pub name: String,
    /// How many different values there are.
    pub cardinality: u64,
    /// How often each.
    #[serde(default, deserialize_with = "named")]
    pub law: Law,
}

/// Values.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueSpec {
    /// Bytes of a value, or of each of its fields.
    #[serde(default = "hundred")]
    pub bytes: SizeLaw,
    /// Bytes of key and value together, instead (K-V workload generator: `-E`, where the key's share is lambda).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_bytes: Option<u64>,
    /// Fields of a value, each as long as `bytes` says.
    #[serde(default = "one_field")]
    pub fields: u32,
    /// What a compressor would leave of it, 0 to 1.
    #[serde(default = "half")]
    pub compressible_to: f64,
    /// What it is made of.
    #[serde(default)]
    pub content: Content,
    /// The first 8 bytes are a checksum of the key and the rest, so that a reader can tell whether it got the value that belongs to the key.
    #[serde(default)]
    pub checked: bool,
}

/// What values are made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// Letters, digits and signs.
    #[default]
    Text,
    /// Little-endian floats of 8 bytes that go up and down a little, as a sensor's.
    Floats,
    /// The values of the file that the keys come from: an insert stores the key's own, others that of another key.
    File,
}

impl Default for ValueSpec {
    fn default() -> ValueSpec {
        ValueSpec {
            bytes: hundred(),
            entry_bytes: None,
            fields: 1,
            compressible_to: half(),
            content: Content::default(),
            checked: false,
        }
    }
}

fn one() -> u64 {
    1
}

fn one_field() -> u32 {
    1
}

fn weight() -> f64 {
    1.0
}

fn half() -> f64 {
    0.5
}

fn hundred() -> SizeLaw {
    SizeLaw::constant(100)
}

impl Spec {
    /// Reads a spec. `origin` is what messages call it: the name of its file.
    ///
    /// # Errors
    /// `origin:line: ` and what is wrong, with what would be allowed.
    pub fn parse(text: &str, origin: &str) -> anyhow::Result<Spec> {
        Spec::parse_counted(text, origin, None)
    }

    /// `counted`: how many records there are, if the text does not say.
    fn parse_counted(text: &str, origin: &str, counted: Option<u64>) -> anyhow::Result<Spec> {
        let mut spec: Spec = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| check::line_at(text, span.start));
            anyhow::anyhow!("{origin}:{line}: {}", error.message().trim())
        })?;
        if let Some(records) = counted.filter(|_| spec.records == 0) {
            spec.records = records;
        }
        if let Err(wrong) = check::check(&spec) {
            bail!("{origin}:{}: {:#}", check::line_of(text, &wrong.place), wrong.what);
        }
        spec.text = toml::to_string(&spec).with_context(|| format!("{origin}: cannot be written down again"))?;
        Ok(spec)
    }

    /// The spec that `argument` means, a shipped one's name or the path of a file (`./mine.toml`), with the settings of `set`: names with dots,
    /// phases by their names or places, as `phase.run.clients`.
    ///
    /// # Errors
    /// If it is neither, with the names that there are; if the file cannot be read; if it is wrong, as [`parse`](Self::parse) says it.
    pub fn choose(argument: &str, set: &[(String, toml::Value)]) -> anyhow::Result<Spec> {
        let argument = argument.trim();
        let shipped = Spec::shipped().iter().find(|(name, _)| *name == argument);
        let (text, origin) = match shipped {
            Some((name, text)) => ((*text).to_owned(), format!("workloads/{name}.toml")),
            None => (read(argument)?, argument.to_owned()),
        };
        let Ok(mut table) = toml::from_str::<toml::Table>(&text) else { return Spec::parse(&text, &origin) };
        if shipped.is_none() {
            resolve_paths(&mut table, Path::new(&origin).parent().unwrap_or(Path::new("")))?;
        }
        // The text may name a file of keys that is not there, if a setting names another.
        let mut of_keys = set.iter().filter(|(name, _)| name.starts_with("keys."));
        of_keys.try_for_each(|setting| apply(&mut table, setting))?;
        resolve_paths(&mut table, Path::new(""))?;
        // As it stands first, so that messages tell the lines of the file.
        let spec = Spec::parse_counted(&text, &origin, count_records(&table)?)?;
        set.iter().try_for_each(|setting| apply(&mut table, setting))?;
        resolve_paths(&mut table, Path::new(""))?;
        if set.is_empty() && !spec.has_paths() {
            return Ok(spec);
        }
        let names: Vec<&str> = set.iter().map(|(name, _)| &name[..]).collect();
        let changed = if set.is_empty() { origin } else { format!("{origin} with {}", names.join(", ")) };
        Spec::parse_counted(&toml::to_string(&table)?, &changed, count_records(&table)?)
    }

    /// The spec of a [`text`](Self::text) with the settings of `set`, as in [`choose`](Self::choose).
    ///
    /// # Errors
    /// If a setting names nothing, or with them the spec is wrong.
    pub fn with(text: &str, set: &[(String, toml::Value)]) -> anyhow::Result<Spec> {
        let mut table: toml::Table = text.parse()?;
        set.iter().try_for_each(|setting| apply(&mut table, setting))?;
        resolve_paths(&mut table, Path::new(""))?;
        Spec::parse(&toml::to_string(&table)?, "the workload with what is set")
    }

    /// The specs that come with Siltstone: names and texts.
    pub fn shipped() -> &'static [(&'static str, &'static str)] {
        super::shipped::SHIPPED
    }

    /// The spec as TOML with every setting in it; it parses back to an equal spec.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The operations of a phase's own clients together, if they are known beforehand.
    pub fn operations(&self, phase: &PhaseSpec) -> Option<u64> {
        if let Some(operations) = phase.operations {
            return Some(operations.of(self.records));
        }
        let counts = phase.own.mix.iter().filter(|op| op.every.is_none()).map(|op| op.count);
        counts.map(|count| count.map(|count| count.of(self.records))).sum()
    }

    /// The names of the keyspaces by their numbers in [`Op::keyspace`](super::Op): those of the rows, then those of the indexes. Where the rows
    /// have none of their own, it is the store's default keyspace, and its name is empty.
    pub fn keyspace_names(&self) -> Vec<&str> {
        let rows = self.keyspaces.iter().map(|keyspace| &keyspace.name[..]);
        let only = self.keyspaces.is_empty().then_some("");
        only.into_iter().chain(rows).chain(self.indexes.iter().map(|index| &index.name[..])).collect()
    }

    /// Whether it names files.
    fn has_paths(&self) -> bool {
        self.text.lines().any(|line| line.contains("path = "))
    }

    /// The most clients that any phase has.
    pub fn most_clients(&self) -> u32 {
        self.phases.iter().map(PhaseSpec::clients).max().unwrap_or(1)
    }
}

fn apply(table: &mut toml::Table, (name, value): &(String, toml::Value)) -> anyhow::Result<()> {
    setting::set(table, name, value.clone()).map_err(|what| anyhow::anyhow!("{name}: {what}"))
}

/// The keys of the file that they come from, where nobody says how many records there are.
fn count_records(table: &toml::Table) -> anyhow::Result<Option<u64>> {
    let known = table.get("records").and_then(toml::Value::as_integer).is_some_and(|records| records > 0);
    let keys = table.get("keys").filter(|keys| keys.get("kind").and_then(toml::Value::as_str) == Some("file"));
    let Some(Ok(KeySpec::File { path, format, duplicates, .. })) =
        keys.filter(|_| !known).map(|keys| KeySpec::deserialize(keys.clone()))
    else {
        return Ok(None);
    };
    Ok(Some(super::file::KeyFile::open(&path, format, duplicates)?.len()))
}

fn read(argument: &str) -> anyhow::Result<String> {
    let path = Path::new(argument);
    let is_toml = path.extension().is_some_and(|ending| ending == "toml");
    if is_toml || argument.contains(std::path::MAIN_SEPARATOR) || path.is_file() {
        return std::fs::read_to_string(path).with_context(|| format!("cannot read the workload {argument}"));
    }
    let names: Vec<&str> = Spec::shipped().iter().map(|(name, _)| *name).collect();
    bail!(
        "there is no workload {argument:?}: give the path of a file (./mine.toml) or choose one of {}",
        names.join(", ")
    );
}

/// Turns every relative `path` into an absolute one: results are gone on with from another folder, too, where the same name is another file.
fn resolve_paths(table: &mut toml::Table, base: &Path) -> anyhow::Result<()> {
    for (name, value) in table.iter_mut() {
        match value {
            toml::Value::String(path) if name == "path" && Path::new(&path).is_relative() => {
                let absolute = std::path::absolute(base.join(&*path)).with_context(|| format!("path = {path:?}"))?;
                *path = absolute.to_string_lossy().into_owned();
            }
            toml::Value::Table(inner) => resolve_paths(inner, base)?,
            toml::Value::Array(values) => {
                for inner in values.iter_mut().filter_map(toml::Value::as_table_mut) {
                    resolve_paths(inner, base)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}
