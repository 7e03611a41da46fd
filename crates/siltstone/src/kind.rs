//! Options of which a word is enough in the usual case: `"greedy"`, or `{ kind = "greedy", width = 1 }`.

use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

/// Reads a word or a table with the key `kind`. `parse` makes of the table what it says, `print` the table again: what is
/// then missing was no parameter of it.
pub(crate) fn read<'de, T, D: Deserializer<'de>>(
    deserializer: D,
    parse: impl Fn(toml::Value) -> Result<T, toml::de::Error>,
    print: impl Fn(&T) -> Result<toml::Value, toml::ser::Error>,
) -> Result<T, D::Error> {
    let table = match toml::Value::deserialize(deserializer)? {
        toml::Value::String(word) => toml::Table::from_iter([("kind".to_owned(), toml::Value::String(word))]),
        toml::Value::Table(table) => table,
        other => return Err(D::Error::custom(format!("{other} is neither a word nor a table with the key \"kind\""))),
    };
    let read = parse(toml::Value::Table(table.clone())).map_err(|error| D::Error::custom(error.message()))?;
    let known = print(&read).ok().and_then(|known| known.as_table().cloned()).unwrap_or_default();
    if let Some(unknown) = table.keys().find(|name| !known.contains_key(*name)) {
        let kind = table.get("kind").and_then(toml::Value::as_str).unwrap_or_default();
        let names: Vec<&str> = known.keys().map(String::as_str).filter(|name| *name != "kind").collect();
        let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        return Err(D::Error::custom(format!("{unknown:?} is no parameter of {kind}; it has: {there}")));
    }
    Ok(read)
}

/// Writes it as options spell it: a word as it is, a table in one line.
pub(crate) fn write(f: &mut fmt::Formatter<'_>, option: &impl Serialize) -> fmt::Result {
    match toml::Value::try_from(option) {
        Ok(toml::Value::String(word)) => f.write_str(&word),
        Ok(other) => write!(f, "{other}"),
        Err(_) => Err(fmt::Error),
    }
}
